/* adapter.h: LoRA adapters as files: read from a PEFT directory or a run, written for each consumer, verified against a base, merged into it.
 * A consumer's layout is one row of the table in formats.c.
 *
 *   cdr_lora_set set;
 *   CDR_TRY(cdr_lora_read("runs/devil", model, pool, &set, err));            // every key bound to a parameter of the model, shapes checked
 *   cdr_lora_report rep;
 *   CDR_TRY(cdr_lora_write("adapter", &(cdr_lora_out){ .format = "sglang", .set = &set, .model = model }, &rep, err));
 *
 * y = W x + scale B (A x). Source of layouts: spec/formats.md, 1.6 to 1.8; of the mathematics: spec/operators.md, 4.3.
 */
#ifndef CDR_ADAPTER_H
#define CDR_ADAPTER_H

#include "weights/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a file holds the factors of one parameter. RUN: of our checkpoints; it is written anew for each consumer. EXPERTS: 2-D, one pair for each
 * expert. STACK: 3-D [1 or E, ..]. FUSED: PEFT's wrapper of a fused parameter, A with expert-major rows, B with rank-major columns. */
typedef enum { CDR_LORA_RUN, CDR_LORA_MATRIX, CDR_LORA_EXPERTS, CDR_LORA_STACK, CDR_LORA_FUSED } cdr_lora_layout;

typedef struct {                  /* one matrix's, or one stack's */
    int64_t i_param;              /* of the model */
    int32_t rank; float scale;    /* alpha / rank, or alpha / sqrt(rank) */
    int64_t experts, N, K;        /* experts 0: one matrix [N, K] */
    int64_t n_a, n_b;             /* matrices of A and of B: 1 or experts. Shared-outer: w1 and w3 share A, w2 shares B */
    const float *a, *b;           /* [n_a, rank, K], [n_b, N, rank]; in the pool */
    cdr_lora_layout layout;       /* of the file it was read from */
    int64_t n_keys;               /* tensors of that file; of a run as they lie there */
    bool untargeted;              /* the configuration's target_modules do not name it: PEFT makes no module for it */
} cdr_lora_pair;

typedef struct {
    cdr_lora_pair *pair; int n;
    const char *source, *base;    /* path it came from; base_model_name_or_path as the file says; NULL: unknown */
    uint64_t base_hash; bool has_hash;
    int32_t rank; double alpha; bool rslora;      /* the configuration's own */
    const char *target_regex;     /* target_modules where it is one string; NULL: a list */
    int64_t step;                 /* of a run; -1: a directory */
} cdr_lora_set;

/* path: PEFT directory in any layout that we write, or a run directory of a LoRA run (its newest complete checkpoint), or one checkpoint. A key that binds
 * to nothing is an error that lists such keys. pool holds what the set points to. */
cdr_status cdr_lora_read(const char *path, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err);
bool cdr_lora_is_dir(const char *path);           /* has an adapter_config.json */

/* ---- consumers ---------------------------------------------------------------------------------------------------------------------- */
/* What a consumer does with the adapter of a parameter. IGNORED: it loads and has no effect. REFUSED: the load fails, or the key is left behind.
 * UNKNOWN: neither the description's `serve` nor a source that was read says; it is taken as bound, and said so. */
typedef enum { CDR_SERVE_BINDS, CDR_SERVE_UNKNOWN, CDR_SERVE_IGNORED, CDR_SERVE_REFUSED } cdr_serve;
const char *const *cdr_lora_consumers(int *n);                           /* peft, vllm, sglang, gguf */
cdr_serve cdr_lora_serves(const cdr_model *m, const char *consumer, int64_t i_param, cdr_lora_layout layout, const char **why);
typedef struct { const char *consumer; int64_t keys, bound, dropped, unknown; char what[500]; /* "self_attn.g_proj (16): no LoRA module of that name" */ } cdr_lora_serve;
/* Of all keys of a set, scales too: a consumer with one scale for all would apply others wrongly, which counts as dropped. */
cdr_status cdr_lora_serve_set(const cdr_lora_set *set, const cdr_model *m, const char *consumer, cdr_lora_serve *s, cdr_err *err);

/* ---- writing ------------------------------------------------------------------------------------------------------------------------ */
typedef struct {
    int64_t tensors, padded, folded, filled, bytes, dropped;      /* filled: zero siblings that a fused module of the consumer needs */
    int32_t rank;                 /* 0: not uniform */
    char dropped_what[500];       /* "self_attn.g_proj (16), self_attn.f_a_proj (6)" */
} cdr_lora_report;
typedef struct {
    const char *format;           /* peft, peft-stacked, sglang, vllm, gguf */
    const cdr_lora_set *set; const cdr_model *model;
    int32_t rank;                 /* uniform rank by zero padding; 0: the largest where the consumer needs one rank, else as they are */
    bool allow_drop;              /* else a key that the consumer would drop is an error */
    const char *base_name; uint64_t base_hash; bool has_hash;
} cdr_lora_out;
/* Writes, opens again and binds every key; nothing is left behind on failure. */
cdr_status cdr_lora_write(const char *dir, const cdr_lora_out *o, cdr_lora_report *rep, cdr_err *err);
const char *const *cdr_lora_formats(int *n);

/* ---- merging ------------------------------------------------------------------------------------------------------------------------ */
/* Rows first .. first + n - 1 of W + scale B A of pair p, added to w_NK [n, K] (rows of a stack are flattened). */
void cdr_lora_add(const cdr_lora_pair *p, int64_t first, int64_t n, float *w_NK);
/* What a format of fewer bits leaves of a delta d, with q what is stored of w + d: survival = <q - w, d> / <d, d>, error = |q - w - d| / |d|.
 * The share that survives of isotropic deltas on packed weights: of 1 % of |w| nothing, of 10 % about 70 % (spec/model.md, 4.2). */
typedef struct { double delta, kept, lost; } cdr_lora_energy;         /* <d, d>, <q - w, d>, <q - w - d, q - w - d> */
double cdr_lora_survival(const cdr_lora_energy *e);                   /* 1 where d is zero */
/* A scale that a reader takes: that of the block, but of blocks of zeros, which may have any, the nearest one from 2 to 252. */
uint8_t cdr_lora_repack_scale(uint8_t scale);
/* Packs merged anew with the scales that w was packed with; w as decoded. n: a multiple of 32. e grows. */
void cdr_lora_repack(const float *w, const float *merged, const uint8_t *scales, int64_t n, uint8_t *codes, cdr_lora_energy *e);

/* ---- inside of the folder ------------------------------------------------------------------------------------------------------------ */
typedef struct cdr__lora_names cdr__lora_names;      /* module names of a model, canonical, sorted */
cdr_status cdr__lora_names_make(const cdr_model *m, cdr_pool *pool, const cdr__lora_names **names, cdr_err *err);
/* A key of a file: which parameter, which half. False: nothing of that name. */
typedef enum { CDR__ROLE_GATE, CDR__ROLE_UP, CDR__ROLE_DOWN, CDR__ROLE_NONE } cdr__role;
typedef struct { int64_t i_param; char half; /* 'A' 'B' */ cdr_lora_layout layout; int64_t expert; int depth; /* FUSED: base_layer levels */ } cdr__lora_key;
bool cdr__lora_key_parse(const cdr__lora_names *names, const char *key, cdr_pool *scratch, cdr__lora_key *k);
const char *cdr__lora_module(const cdr__lora_names *names, int64_t i_param);         /* canonical: no prefix, mlp. for block_sparse_moe. */
/* Of routed experts: which of the three matrices; the stack of another role in the same layer, -1. */
cdr__role cdr__lora_role(const cdr_model *m, int64_t i_param);
int64_t cdr__lora_sibling(const cdr__lora_names *names, int64_t i_param, cdr__role role);
int64_t cdr__lora_linear(const cdr__lora_names *names, int64_t i_param, const char *leaf);      /* another linear of the same module path; -1 */
/* [experts or 0, N, K] of a parameter that can carry an adapter; false: it cannot. */
bool cdr__lora_shape(const cdr_model *m, int64_t i_param, int64_t *experts, int64_t *N, int64_t *K);
bool cdr__lora_has_kda(const cdr_model *m, int layer);

/* adapter_config.json. A pattern is PEFT's: a regular expression behind (.*\.)?, to the end of a module's name. */
typedef struct cdr__lora_regex cdr__lora_regex;
typedef struct { const char *pattern; double value; } cdr__lora_pattern;
typedef struct {
    double r, alpha; bool rslora;
    const char *base;
    const char **target; int64_t n_target; const char *target_regex;      /* target: sorted. regex: also "all-linear" */
    const char **parameter; int64_t n_parameter;                          /* target_parameters, sorted */
    cdr__lora_pattern *rank, *alphas; int n_rank, n_alphas;
    cdr__lora_regex *re;          /* as compiled; cdr__lora_config_close frees it */
} cdr__lora_config;
cdr_status cdr__lora_config_parse(const char *where, const char *text, size_t bytes, cdr_pool *pool, cdr__lora_config *c, cdr_err *err);
void cdr__lora_config_close(cdr__lora_config *c);
/* form: names that one module goes by. What PEFT would make of it. */
typedef struct { double rank, scale; bool targeted; } cdr__lora_fit;
cdr__lora_fit cdr__lora_config_fit(const cdr__lora_config *c, const char *const *form, int n_forms, bool parameter);
void cdr__lora_config_write(const cdr__lora_config *c, cdr_text *t);
/* The shortest alpha whose alpha / rank is this scale to the bit. */
double cdr__lora_alpha(float scale, int32_t rank);

/* One tensor to be written. A wrapper of gate and up (FUSED, wide) has the rows of p, then those of p2; where they do not share A, the ranks of p2
 * begin at `from`. */
typedef struct {
    const char *name; int n_dim; int64_t n[3];
    cdr_lora_layout layout; char half; bool wide;
    const cdr_lora_pair *p, *p2;  /* NULL: zeros in its place */
    int64_t expert, experts, N;   /* EXPERTS: which one. FUSED: how many, and rows of one matrix */
    int32_t rank, from;           /* padded to rank */
    float fold, fold2;            /* B of p, of p2, times this */
} cdr__lora_tensor;
void cdr__lora_fill(const cdr__lora_tensor *t, float *dst);                       /* all of it */
int64_t cdr__lora_elems(const cdr__lora_tensor *t);
/* The tensors of an adapter in a format, and the configuration that goes with them. */
typedef struct {
    cdr__lora_tensor *t; int64_t n, cap;
    cdr__lora_config config;
    double alpha;                 /* gguf: the file's */
    cdr_lora_report rep;
} cdr__lora_plan;
cdr_status cdr__lora_plan_make(const cdr_lora_out *o, cdr_pool *pool, cdr__lora_plan *p, cdr_err *err);
const char *cdr__lora_gguf_arch(const cdr_model *m);                              /* NULL: none that is known */
const char *cdr__lora_gguf_name(const cdr_model *m, const cdr__lora_names *names, int64_t i_param, cdr_pool *pool);       /* NULL: none */
cdr_status cdr__lora_gguf_write(const char *path, const cdr_lora_out *o, const cdr__lora_tensor *t, int64_t n, double alpha, int64_t *bytes, cdr_err *err);
/* Opens a GGUF adapter again: header, tensor infos, extents; calls back for each. */
typedef struct { const char *name; int n_dim; uint64_t n[4]; int type; const void *data; } cdr__gguf_tensor;
cdr_status cdr__lora_gguf_read(const char *path, cdr_pool *pool, cdr__gguf_tensor **t, int64_t *n, double *alpha, const char **arch, cdr_err *err);
cdr_status cdr__lora_gguf_parse(const char *where, const uint8_t *data, size_t bytes, cdr_pool *pool, cdr__gguf_tensor **t, int64_t *n, double *alpha,
                                const char **arch, cdr_err *err);
/* A directory's two files as bytes: what the fuzzer calls. */
typedef struct { const char *where, *config; size_t config_bytes; const void *tensors; size_t tensors_bytes; } cdr__lora_bytes;
cdr_status cdr__lora_read_bytes(const cdr__lora_bytes *b, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err);
bool cdr__lora_is_fused(const cdr_model *m);                                       /* transformers' class keeps routed experts in one parameter */
cdr_status cdr__lora_read_dir(const char *path, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err);
cdr_status cdr__lora_read_run(const char *path, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
