/* cadre.h: the public interface of libcadre. What the command line does is reachable from here.
 *
 *   cdr_err err = {0};
 *   cdr_result res = {0};
 *   cdr_train_args a = { .recipe = "tiny-dense" };
 *   if (cdr_train(&a, &res, &err) != CDR_OK) fprintf(stderr, "error: %s [%s]\n", err.text, err.id);
 *   cdr_result_free(&res);
 */
#ifndef CADRE_H
#define CADRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CDR_VERSION "0.1.0"

/* A status is the exit code that the command line returns for it (doc: README, "Exit codes"). */
typedef enum {
    CDR_OK = 0,
    CDR_EUSER = 1,        /* user, configuration, machine; or a fault found by check, verify-adapter, merge */
    CDR_EINVAL = 1,       /* a shape or attribute that an operator refuses: reaches the user as a wrong model or recipe */
    CDR_EUSAGE = 2,       /* unknown command or flag, missing argument, reserved command */
    CDR_EDATA = 3,        /* checkpoint, adapter, tokenizer or data set broken, missing, foreign */
    CDR_ENUMERIC = 4,     /* non-finite loss, gradient or weight; ranks that differ */
    CDR_EINTERRUPT = 130, /* second SIGINT */
    CDR_EBUG = 134,       /* broken invariant */
    CDR_ESAVED = 143,     /* checkpointed after SIGINT or SIGTERM: start again to continue */
    CDR_ERANK = 200       /* a rank, device or disk failed during a step; the last checkpoint is intact */
} cdr_status;

/* One error. text: "WHERE: WHAT; WHY. FIX", one line; id is stable ("config.unknown-key"). */
typedef struct {
    cdr_status status;
    char id[48];
    char text[1200];
} cdr_err;

/* What a command returns: the JSON document that --json prints ("result" member only), and the text for a person. */
typedef struct {
    char *json;    /* owned; NULL: none */
    char *text;    /* owned; NULL: none */
    char *warnings;    /* owned; a JSON array of strings, for the document's "warnings"; NULL: none */
} cdr_result;
void cdr_result_free(cdr_result *r);

/* Flags that every command takes. set: n_set strings "section.key=value", applied left to right. */
typedef struct {
    const char *const *set;
    int n_set;
    bool json, quiet, verbose;
} cdr_common;

typedef struct { cdr_common common; const char *recipe; const char *const *allow_change; int n_allow_change; } cdr_train_args;
typedef struct { cdr_common common; const char *model, *adapter; const char *const *prompts; int n_prompts; bool raw; } cdr_generate_args;
typedef struct { cdr_common common; const char *model, *adapter, *system; int thinking; /* 1 on, 0 off, -1 as the model's recipe says */ } cdr_chat_args;
typedef struct { cdr_common common; const char *model, *adapter, *data, *compare; int64_t n_tokens; /* 0: all */
                 int64_t n_answers; /* greedy answers to so many held-out samples */ } cdr_eval_args;
typedef struct { cdr_common common; const char *recipe; const char *const *print; int n_print; int rank; const char *layers;
                 bool require_fit; } cdr_plan_args;
typedef struct { cdr_common common; const char *pattern, *device, *step_recipe, *write_machine; bool quick, table; } cdr_bench_args;
typedef struct { cdr_common common; const char *pattern, *device; bool quick; } cdr_check_args;
typedef struct { cdr_common common; const char *verb;   /* show, schema, list, migrate */ const char *arg; bool changed;
                 const char *from, *out;   /* migrate */ } cdr_config_args;
typedef struct { cdr_common common; int n_ranks; const char *bind, *log_dir; int argc; char **argv; /* COMMAND ... */ } cdr_launch_args;
typedef struct { cdr_common common; const char *file;   /* a data file, or a recipe */ const char *model; int64_t show, line; /* 0: none */
                 bool colour; } cdr_data_check_args;
typedef struct { cdr_common common; const char *recipe, *out; } cdr_data_pack_args;
typedef struct { cdr_common common; const char *file, *out, *as; /* text, messages */ double eval_fraction; } cdr_data_make_args;
typedef struct { cdr_common common; } cdr_doctor_args;
typedef struct { cdr_common common; const char *source, *format, *out, *base, *experts; int rank; bool allow_drop; } cdr_export_args;
typedef struct { cdr_common common; const char *adapter, *base, *consumers;   /* "peft,sglang"; NULL: all */ } cdr_verify_adapter_args;
typedef struct { cdr_common common; const char *base, *adapter, *out, *experts;   /* stored, bf16 */ double min_survival; bool force; } cdr_merge_args;
typedef struct { cdr_common common; const char *path, *tensors; bool config; } cdr_inspect_args;
typedef struct { cdr_common common; const char *dir, *out, *verify, *machine; int64_t devices; } cdr_onboard_args;
typedef struct { cdr_common common; const char *family, *out, *from, *experts, *shard_size; } cdr_toy_args;

cdr_status cdr_train(const cdr_train_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_generate(const cdr_generate_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_chat_command(const cdr_chat_args *a, cdr_result *r, cdr_err *err);      /* reads stdin, writes stdout */
cdr_status cdr_eval(const cdr_eval_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_plan(const cdr_plan_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_bench(const cdr_bench_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_check(const cdr_check_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_config(const cdr_config_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_launch(const cdr_launch_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_data_check(const cdr_data_check_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_data_pack(const cdr_data_pack_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_data_make(const cdr_data_make_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_export(const cdr_export_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_verify_adapter(const cdr_verify_adapter_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_merge(const cdr_merge_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_doctor(const cdr_doctor_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_inspect(const cdr_inspect_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_onboard(const cdr_onboard_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_toy(const cdr_toy_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr_version(cdr_result *r, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
