/* cli.h: the command line. A subcommand is one file with one const record; the parser, --help and the nearest-name errors
 * read these records. Commands only parse and print: what they do is in libcadre (cadre.h).
 *
 *   const cli_command cli_eval = { .name = "eval", .args = "MODEL", .min_args = 1, .max_args = 1, .keys = true,
 *                                  .options = options, .example = "cadre eval runs/tiny-dense", .run = run };
 * Source of commands, flags, exit codes and the JSON document: spec/interface.md, 1 and 2.
 */
#ifndef CDR_CLI_H
#define CDR_CLI_H

#include "recipe/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CLI_MAX_ARGS = 8 };

typedef struct {
    const char *flag;            /* "--prompt"; NULL ends the table */
    const char *arg;             /* "TEXT"; NULL: a switch */
    bool reserved;               /* known, refused: not in this version */
    const char *help;
} cli_option;

typedef struct { const char *flag, *value; } cli_given;
typedef struct {                 /* a parsed command line; borrows argv */
    cdr_common common;
    const char *pos[CLI_MAX_ARGS]; int n_pos;
    const cli_given *given; int n_given;
    int rest_argc; char **rest_argv;          /* launch: COMMAND ... */
    bool help;
    cdr_pool *pool;
} cli_args;

typedef struct {
    const char *name, *args, *what;           /* "eval", "MODEL", one sentence */
    int min_args, max_args;                   /* of pos */
    bool keys;                                /* takes --set and the short-cuts of recipe keys */
    bool rest;                                /* everything from the first argument on is another command line */
    bool streams;                             /* --json writes records as they happen, not one document */
    const cli_option *options;                /* NULL: none of its own */
    const char *more, *example;               /* help: further lines, and an example that works */
    cdr_status (*run)(const cli_args *a, cdr_result *r, cdr_err *err);
} cli_command;

extern const cli_command cli_train, cli_generate, cli_chat, cli_eval, cli_plan, cli_bench, cli_check, cli_config, cli_launch, cli_doctor, cli_version, cli_data,
                         cli_export, cli_verify_adapter, cli_merge, cli_inspect, cli_onboard, cli_toy;
extern const cli_command *const cli_commands[];      /* ends with NULL */

cdr_status cli_parse(const cli_command *c, int argc, char **argv, cli_args *a, cdr_err *err);      /* argv: what follows the command's name */
void cli_help(const cli_command *c, cdr_pool *pool, cdr_text *out);
void cli_overview(cdr_text *out);
const char *cli_value(const cli_args *a, const char *flag);       /* last one given; NULL: not given */
bool cli_has(const cli_args *a, const char *flag);
const char **cli_values(const cli_args *a, const char *flag, int *n);      /* all, in order */
cdr_status cli_int(const cli_args *a, const char *flag, int64_t otherwise, int64_t *x, cdr_err *err);     /* at least 0 */

#ifdef __cplusplus
}
#endif
#endif
