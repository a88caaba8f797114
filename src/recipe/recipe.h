/* recipe.h: one YAML file that holds a run, read into a plain struct. One schema table (schema.c) is the source of the
 * parser, of --set, help, JSON Schema, ranges, resume classes and tests: a key without a row does not exist.
 *
 *   cdr_recipe r;
 *   CDR_TRY(cdr_recipe_load("tiny-dense", &args->common, pool, &r, err));   // path, or the bare name of a built-in one
 *   CDR_TRY(cdr_recipe_derive(&r, "parallel.shard", "4", "4 ranks / replicate 1", err));   // an `auto` that needs the machine
 *   r.train.sequence_length, r.optimizer.learning_rate ...
 *   char *yaml = cdr_recipe_yaml(&r, pool);                // the resolved recipe, each value with its origin in a comment
 *
 * Order: default < recipe < flags (left to right). Origins are kept by key. Source: spec/interface.md, 1, 3 and 6.2.
 */
#ifndef CDR_RECIPE_H
#define CDR_RECIPE_H

#include "base/base.h"
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Words that stand where a number could: in int64_t, double and size fields. */
enum { CDR_AUTO = -1, CDR_UNSET = -2 /* none */, CDR_ALL = -3 };

/* Values of enumerated keys, in the order of the words in the table. */
enum { CDR_WEIGHTS_AUTO, CDR_WEIGHTS_RANDOM };
enum { CDR_FORMAT_AUTO, CDR_FORMAT_TEXT, CDR_FORMAT_MESSAGES, CDR_FORMAT_SHAREGPT, CDR_FORMAT_ALPACA, CDR_FORMAT_COMPLETION, CDR_FORMAT_TOKENS };
enum { CDR_TRAIN_ON_AUTO, CDR_TRAIN_ON_ASSISTANT, CDR_TRAIN_ON_LAST, CDR_TRAIN_ON_ALL };
enum { CDR_REDUCE_TREE, CDR_REDUCE_FREE };
enum { CDR_NONFINITE_STOP, CDR_NONFINITE_SKIP };
enum { CDR_DSA_AUTO, CDR_DSA_DENSE, CDR_DSA_GATHERED };                            /* train.dsa_core; AUTO is resolved by load */
enum { CDR_BAL_AUTO, CDR_BAL_QUANTILE, CDR_BAL_SIGN, CDR_BAL_AUX, CDR_BAL_NONE };  /* train.balance; AUTO: the description's */
enum { CDR_TRAIN_INDEXER_AUTO, CDR_TRAIN_INDEXER_FROZEN, CDR_TRAIN_INDEXER_TRAIN };/* train.indexer; AUTO is resolved by load */
enum { CDR_OPT_ADAMW, CDR_OPT_MUON };
enum { CDR_PER_HEAD_AUTO, CDR_PER_HEAD_TRUE, CDR_PER_HEAD_FALSE };
enum { CDR_SCHED_COSINE, CDR_SCHED_WSD, CDR_SCHED_LINEAR, CDR_SCHED_CONSTANT };
enum { CDR_DECAY_LINEAR, CDR_DECAY_COSINE, CDR_DECAY_SQRT };
enum { CDR_TRANSPORT_AUTO, CDR_TRANSPORT_SINGLE, CDR_TRANSPORT_SHM, CDR_TRANSPORT_MPI, CDR_TRANSPORT_NCCL };
enum { CDR_EXPERTS_HOME, CDR_EXPERTS_BALANCED, CDR_EXPERTS_AUTO };                  /* parallel.expert_placement; AUTO is resolved with the ranks */
enum { CDR_PREC_AUTO, CDR_PREC_BF16, CDR_PREC_F32 };
enum { CDR_EXPERTS_STORED, CDR_EXPERTS_BF16, CDR_EXPERTS_MXFP4 };                   /* precision.experts */
enum { CDR_LEVEL_ERROR, CDR_LEVEL_WARNING, CDR_LEVEL_INFO, CDR_LEVEL_DEBUG };      /* as cdr_log_level */
enum { CDR_COLOR_AUTO, CDR_COLOR_ALWAYS, CDR_COLOR_NEVER };
enum { CDR_USE_AUTO, CDR_USE_CPU, CDR_USE_CUDA };                                  /* machine.device */
enum { CDR_LORA_STANDARD, CDR_LORA_RSLORA };                                       /* lora.scaling */
enum { CDR_LORA_EXPERTS_NONE, CDR_LORA_PER_EXPERT, CDR_LORA_SHARED_OUTER };        /* lora.experts; lora.init: as cdr_adapter_init */
enum { CDR_FINAL_AUTO, CDR_FINAL_NONE, CDR_FINAL_PEFT, CDR_FINAL_HF };

typedef struct { int64_t steps; double seconds; } cdr_every;       /* one of them > 0; both 0: none */
typedef struct { const char **s; int n; } cdr_strings;
typedef struct { const char *name, *text; } cdr_pair;              /* free maps, flattened: "kda.heads" = "2", "0.match" = "embed" */
typedef struct { cdr_pair *p; int n; } cdr_pairs;
typedef struct {                                                   /* of data.train and data.eval */
    const char *path, *name;       /* name: the file's stem unless given */
    int format;                    /* CDR_FORMAT_*; AUTO: data.format */
    double weight; int64_t max_samples;    /* CDR_UNSET: all */
    int train_on;                  /* CDR_TRAIN_ON_*; AUTO: data.train_on */
    cdr_pairs columns;             /* name: ours, text: theirs */
} cdr_source;
typedef struct { cdr_source *s; int n; bool none; } cdr_sources;

/* Where a value comes from. */
typedef enum { CDR_FROM_DEFAULT, CDR_FROM_FILE, CDR_FROM_SET, CDR_FROM_DERIVED } cdr_from;
typedef struct {
    uint8_t from;
    int line, col;                 /* FILE: of the key, from 1 */
    const char *flag;              /* SET: "--set train.steps" or the short-cut "--steps" */
    const char *alias;             /* the alias that was read, or NULL */
    const char *why;               /* DERIVED: why this value; else NULL */
    const char *was;               /* DERIVED: the text that it replaced ("auto") */
} cdr_origin;

typedef struct cdr_recipe {
    const char *where;                          /* file as messages name it */
    const char *source; size_t source_bytes;    /* the user's file, byte for byte */
    cdr_pool *pool;                             /* borrows: everything here lives in it */
    cdr_origin *origin;                         /* by row of the schema */
    const char **notes; int n_notes;            /* aliases read, values resolved: one line each, for the banner */

    int64_t version, seed;
    const char *name, *output_dir;
    struct { const char *path; int weights; cdr_pairs sizes; const char *layers; int indexer, vision; } model;    /* indexer: as cdr_indexer_mode */
    struct {
        cdr_sources train, eval;
        double eval_fraction;
        int format; const char *tokenizer;      /* "model", "byte", path */
        int chat_format, chat_thinking_effort, chat_tools; bool chat_thinking; const char *chat_system;
        int train_on, train_eos, mask_think, untrained, long_samples;     /* long_samples: as cdr_long_samples */
        int64_t max_docs;
        bool pack; int64_t pack_window; bool shuffle;
        int64_t threads; const char *cache;     /* "auto", "none", path */
        const char *image_root; int64_t image_max_patches;
    } data;
    struct {
        int64_t steps; double epochs;           /* one of them is CDR_UNSET until the data are known; see cdr_recipe_derive */
        double max_time;                        /* s, or CDR_UNSET */
        int64_t sequence_length, micro_batch_tokens, global_batch_tokens, gradient_accumulation_steps;   /* resolved by load */
        int reduce, dsa_core;
        cdr_strings trainable, freeze;
        int balance; int64_t balance_bins; double balance_ema, balance_rate, aux_loss_coef;
        int indexer; int64_t indexer_warmup_steps; double indexer_loss_coef;
        int on_nonfinite;
    } train;
    struct {
        int name;
        double learning_rate, weight_decay, beta1, beta2, eps, max_grad_norm;
        double muon_momentum; bool muon_nesterov; int64_t muon_iterations; double muon_scale; int muon_per_head;
        cdr_pairs groups;
    } optimizer;
    struct {
        int name; int64_t horizon;              /* CDR_AUTO: train.steps */
        int64_t warmup_steps; double warmup_ratio;      /* warmup_steps is resolved by load where train.steps is known */
        double min_lr_ratio, decay_ratio; int decay_shape;
    } schedule;
    struct {
        bool on;                                /* there is a lora section */
        int64_t rank; double alpha; int scaling;        /* alpha: resolved by load */
        cdr_strings targets, exclude; const char *layers; cdr_pairs rank_pattern, alpha_pattern;
        int experts; int64_t expert_rank; int init; double dropout; const char *adapter; cdr_strings serve_with;
    } lora;
    struct {
        int64_t replicate, shard, context, expert, tensor, pipeline;    /* shard: CDR_AUTO until derived */
        int transport, reshard_after_forward;   /* reshard: as cdr_reshard */
        int64_t prefetch; int expert_placement; double dispatch_factor; int head;      /* head: as cdr_head */
        int64_t hash_every; double timeout;
    } parallel;
    struct {
        int64_t device_limit, host_limit, disk_limit;
        int policy;                             /* as cdr_policy_kind */
        cdr_pairs rules;
        int64_t loss_chunk_tokens, loss_chunk_vocab, layer_chunk_tokens;
        const char *swap_dir; int64_t swap_ring; int weights;
    } memory;
    struct { int compute, params, experts, attention_output, gather, reduce, dispatch, saved, qat; } precision;
    struct {
        cdr_every every; bool at_end; int64_t keep;             /* keep: CDR_ALL */
        const char *resume;                     /* "auto", "never", "must", path */
        bool async; int final;
        cdr_strings signals_save, signals_save_exit;            /* "USR1", ... */
    } checkpoint;
    struct {
        int64_t every, router_every; int level, color;
        const char *profile;                    /* "none" or "A-B" */
        bool tensorboard; const char *prometheus, *board;
    } log;
    struct { cdr_every every; bool at_start; int64_t tokens; } eval;          /* tokens: CDR_ALL */
    struct {
        cdr_every every; cdr_strings prompts; int64_t max_new_tokens;
        double temperature, top_p; int64_t top_k; cdr_strings stop; int64_t seed;      /* seed: resolved by load */
    } generate;
    struct { const char *file; int64_t devices; int device; int64_t threads; } machine;

    /* Not keys: filled by cdr_recipe_resolve_ranks. */
    struct { int64_t n_ranks, n_data, n_micro; } ranks;        /* n_data = replicate x shard; n_micro: turns of a rank a step */
} cdr_recipe;

/* ---- the schema table ------------------------------------------------------------------------------------------ */
typedef enum {
    CDR_KEY_INT, CDR_KEY_REAL, CDR_KEY_BOOL, CDR_KEY_ENUM, CDR_KEY_TEXT, CDR_KEY_DURATION, CDR_KEY_BYTES, CDR_KEY_EVERY,
    CDR_KEY_TEXTS, CDR_KEY_SOURCES, CDR_KEY_PAIRS
} cdr_key_type;
typedef enum { CDR_KEY_NOW, CDR_KEY_LATER } cdr_key_status;      /* LATER: only the default is taken */

typedef struct {
    const char *key;            /* "optimizer.learning_rate" */
    uint8_t type, status; char resume;      /* resume: 'F' fixed, 'R' rounding, 'L' layout or speed, 'C' free */
    size_t at;                  /* offset in cdr_recipe */
    const char *def;            /* default, as a recipe would write it; NULL: required */
    const char *words;          /* ENUM: its values "cosine|wsd"; others: words beside the numbers "auto|none", or members of a map */
    const char *later;          /* those of the words that this version refuses */
    double min, max; bool above;            /* min = max = 0: no range. above: min itself is excluded */
    int multiple;               /* 0: any */
    const char *aliases;        /* other names in the same section, separated by spaces */
    const char *shortcut;       /* "--seed" or NULL */
    const char *help;           /* one sentence */
    const char *def_help;       /* the default in words, where `auto` hides a rule; or NULL */
} cdr_key;
const cdr_key *cdr_recipe_schema(int *n);   /* rows in the order of the page; n NULL: not asked for */
int cdr_recipe_key(const char *key);                             /* row, -1: no such key */

/* ---- reading ---------------------------------------------------------------------------------------------------- */
cdr_status cdr_recipe_load(const char *path_or_builtin, const cdr_common *c, cdr_pool *pool, cdr_recipe *out, cdr_err *err);
/* The same from text; where: as messages name it; stem: default of `name`. */
typedef struct { const char *text; size_t bytes; const char *where, *stem; } cdr_recipe_text;
cdr_status cdr_recipe_parse(const cdr_recipe_text *t, const cdr_common *c, cdr_pool *pool, cdr_recipe *out, cdr_err *err);
/* A resolved recipe (of a checkpoint, with comments) is read by cdr_recipe_parse too.
 * Embedded files: kind "configs", "models", "machines"; name without folder and ".yaml". NULL: none. */
const char *cdr_builtin(const char *kind, const char *name);
const char *const *cdr_builtin_names(const char *kind, cdr_pool *pool, int *n);
/* Reads what a name means: with a '/' or ending in ".yaml" it is a path, else built-in. *where: for messages. */
cdr_status cdr_builtin_or_file(const char *kind, const char *name, cdr_pool *pool, const char **text, size_t *bytes, const char **where, cdr_err *err);

/* ---- values by key ---------------------------------------------------------------------------------------------- */
/* Sets an `auto` (or anything) to what was found out, parsed and checked as that key's type; keeps why. */
cdr_status cdr_recipe_derive(cdr_recipe *r, const char *key, const char *value, const char *why, cdr_err *err);
char *cdr_recipe_value(const cdr_recipe *r, int row, cdr_pool *pool);         /* as YAML flow text: 0.001, [a, b], "hacker: n. " */
char *cdr_recipe_from(const cdr_recipe *r, int row, cdr_pool *pool);          /* "recipe tiny-dense.yaml:7:3", "--steps", "default" */
char *cdr_recipe_yaml(const cdr_recipe *r, cdr_pool *pool);                   /* the resolved recipe, origins in comments */
uint64_t cdr_recipe_hash(const cdr_recipe *r);                                /* over the F keys, resolved */
void cdr_recipe_json(const cdr_recipe *r, cdr_jw *w, bool changed);           /* members {key: {value, origin, resume, ...}} */

/* What a resume changes, key by key. F: refused (message 8) unless allowed by name; run, step: for the message. */
typedef struct { int row; const char *old_value, *new_value; bool allowed; } cdr_recipe_change;
typedef struct { cdr_recipe_change *c; int n; bool bit_equal; } cdr_recipe_diff;     /* bit_equal: no R and no F change */
typedef struct { const char *run; int64_t step; const char *const *allow; int n_allow; } cdr_resume_spec;
cdr_status cdr_recipe_compare(const cdr_recipe *now, const cdr_recipe *old, const cdr_resume_spec *s, cdr_recipe_diff *d, cdr_err *err);

/* What ranks decide: parallel.shard where auto, global_batch_tokens from gradient_accumulation_steps, r->ranks. Checks that
 * replicate x shard = n_ranks, powers of two under reduce tree, that expert groups divide a replica, and that the batch divides. Call it once ranks are known. */
cdr_status cdr_recipe_resolve_ranks(cdr_recipe *r, int n_ranks, cdr_err *err);
/* What the length of the run decides: train.steps where epochs say it (steps_of_epochs: steps that train.epochs take, from the
 * data), schedule.horizon, schedule.warmup_steps. */
cdr_status cdr_recipe_resolve_steps(cdr_recipe *r, int64_t steps_of_epochs, cdr_err *err);

/* ---- text about the table (schema_text.c) ------------------------------------------------------------------------ */
char *cdr_schema_json(const char *key, cdr_pool *pool, cdr_err *err);         /* JSON Schema 2020-12, of all or of one key; NULL on error */
char *cdr_schema_explain(const char *key, cdr_pool *pool, cdr_err *err);      /* lines for a person */
char *cdr_recipe_show(const cdr_recipe *r, bool changed, cdr_pool *pool);     /* `config show` */

/* ---- inside the library ------------------------------------------------------------------------------------------ */
bool cdr__word_in(const char *words, const char *word, size_t n, int *index);  /* in "a|b|c" */
int cdr__recipe_alias(const char *section, const char *name);                  /* row, -1 */
int cdr__recipe_shortcut(const char *flag, size_t n);                          /* row of "--steps", -1 */
/* One value: node to field, and back. at: where the node is, for messages. */
cdr_status cdr__value_parse(cdr_recipe *r, const cdr_key *k, const cdr_yaml *node, const char *at, cdr_err *err);
void cdr__value_print(cdr_text *t, const cdr_recipe *r, const cdr_key *k);
void cdr__yaml_quote(cdr_text *t, const char *s);                              /* plain where that is safe, else "..." */
cdr_status cdr__recipe_resolve(cdr_recipe *r, cdr_err *err);                   /* the last part of parse */
void cdr__recipe_note(cdr_recipe *r, const char *fmt, ...) CDR_PRINTF(2, 3);
const char *cdr__recipe_at(const cdr_recipe *r, int row);                      /* "tiny.yaml:7:13", "--set a.b", or the key */

#ifdef __cplusplus
}
#endif
#endif
