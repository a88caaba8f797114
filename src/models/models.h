/* models.h: a model description (models/NAME.yaml) becomes a forward graph. Descriptions recombine a fixed vocabulary of
 * blocks; a block is C in block_*.c, written for one device, in forward form.
 *
 *   cdr_model *m;
 *   cdr_model_spec s = { .path = r.model.path, .sizes = &r.model.sizes, .layers = r.model.layers };
 *   CDR_TRY(cdr_model_load(&s, pool, &m, err));
 *   cdr_builder b = cdr_model_builder(m);                      // for cdr_compile
 *   printf("%s\n", cdr_model_summary(m, pool));                // "tiny-dense: 4 layers (4 MLA), 1.90 M parameters, all trained"
 *
 * The experts' matrices of one layer are one parameter [experts, rows, columns], whose name keeps the text {expert}.
 * Source of the file format: spec/interface.md, section 4; of the mathematics: spec/model.md, 3, and spec/operators.md, 1.
 */
#ifndef CDR_MODELS_H
#define CDR_MODELS_H

#include "compile/compile.h"
#include "recipe/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cdr_model cdr_model;

typedef struct {
    const char *path;             /* bare name of a built-in model, a path ending in .yaml, or a directory with a config.json (interface.md, 3.6) */
    const cdr_pairs *sizes;       /* overrides of sizes ("hidden" = "64"); NULL: none */
    const char *layers;           /* layer set: a slice of the stack, each layer keeps its index and kind; NULL: all */
    int indexer;                  /* cdr_indexer_mode */
    bool random;                  /* model.weights: random. Of a directory, then only the description is taken, and sizes may be overridden */
    struct cdr_hf *hf;            /* path opened already (io/hf.h); NULL: opened where a row may be absent. Borrowed for the load */
} cdr_model_spec;
/* Sparse attention's indexers: as described; added where a block has none, with the sizes index.*; left out: dense attention. */
typedef enum { CDR_INDEXER_AUTO, CDR_INDEXER_ON, CDR_INDEXER_OFF } cdr_indexer_mode;
cdr_status cdr_model_load(const cdr_model_spec *s, cdr_pool *pool, cdr_model **m, cdr_err *err);
/* The same from text. where: as messages name it. */
cdr_status cdr_model_parse(const cdr_model_spec *s, const char *text, size_t bytes, const char *where, cdr_pool *pool, cdr_model **m, cdr_err *err);

cdr_builder cdr_model_builder(const cdr_model *m);      /* borrows m */
/* For comparing a forward with another implementation's: in the eval program every value lies for the whole execution, and cdr_exec_get reads by name
 *   embed.hidden, layers.N.hidden  [T, hidden]   the residual stream behind the embedding, behind layer N (AttnRes: the running sum)
 *   head.hidden [T, hidden], head.logits F32 [T, vocab]   behind the last norm
 *   layers.N.moe.logits F32 [T, experts], layers.N.moe.idx I32, layers.N.moe.p F32 [T, top_k]
 * FORCED: layers.N.moe.given I32 [T, top_k] are inputs that take the place of the choice. Set before the builder is compiled; a program of one rank. */
typedef enum { CDR_PROBE_OFF, CDR_PROBE_NATURAL, CDR_PROBE_FORCED } cdr_probe;
void cdr_model_set_probe(cdr_model *m, cdr_probe probe);

typedef struct { const char *kind; int n; } cdr_layer_count;       /* "MLA", 4 */
typedef struct {
    const char *name, *family;    /* family: the name unless given */
    int n_layers;
    int64_t hidden, vocab;
    /* Elements as a checkpoint stores them, padding too, exact. active: those that one token meets: all but the input
     * embedding, and top_k of a layer's experts. */
    int64_t n_params, n_active;
    int n_tensors;                /* parameters; a layer's stacked experts are one */
    double matmul_params;         /* elements of matrices that a token multiplies with: 6 FLOPs each and trained token */
    int n_kinds; cdr_layer_count kind[8];
    struct { int n, experts, top_k; } moe;       /* layers with routed experts; the largest counts where layers differ */
    struct { int n, top_k; } sparse;             /* layers with an indexer; keys that a query may see */
    const char *tokenizer;        /* "byte", "tiktoken", "hf_bpe" */
    const char *chat;             /* "none", "k3_xtml", ... */
    uint64_t hash;                /* of the description as resolved: sizes, layers, names, shapes */
    uint64_t function;            /* of every value that changes what the tensors compute, however a file orders or names it */
} cdr_model_info;
const cdr_model_info *cdr_model_get_info(const cdr_model *m);
char *cdr_model_summary(const cdr_model *m, cdr_pool *pool);
char *cdr_model_print(const cdr_model *m, cdr_pool *pool);         /* one line a parameter: name, shape, elements */
/* FLOPs of attention products for one query-key pair, forward, summed over layers: 2 H (nope + ext + v) each, and
 * 2 heads dim of an indexer. Linear attention has none: its work goes by tokens. */
double cdr_model_pair_flop(const cdr_model *m);
/* FLOPs of linear attention's chunks for one token, forward, summed over layers (spec/model.md, 3.2.3). */
double cdr_model_token_flop(const cdr_model *m);

/* Parameters in the order in which the builder declares them, and the groups that patterns of recipes name: attention,
 * kda_gates, dense_mlp, shared_experts, latent, router, experts, indexer, embed, head, norms, all_linear. */
int64_t cdr_model_params(const cdr_model *m);
const char *cdr_model_param(const cdr_model *m, int64_t i_param);
int64_t cdr_model_param_stored(const cdr_model *m, int64_t i_param);      /* elements in a checkpoint, padding too: what counts of parameters add up */
bool cdr_model_in_group(const cdr_model *m, int64_t i_param, const char *group);
const char *const *cdr_model_groups(int *n);
typedef struct {
    const char *group;            /* its own: one of those above but all_linear; NULL: none */
    int layer;                    /* index in the full stack; -1: outside of it */
    int64_t top_k;                /* stacked experts: how many of the n[0] a token multiplies with; 0: not stacked */
    int n_dim; int64_t n[3];
    const char *part;             /* of its block: "q", "expert.down" */
} cdr_model_part;
cdr_model_part cdr_model_param_part(const cdr_model *m, int64_t i_param);
int cdr_model_stack(const cdr_model *m);                                  /* layers of the full stack, of which a slice may be loaded */

/* How a checkpoint stores parameter i: the description's row, opened. Stacked experts are one such tensor each, whose name has the index for {expert}. */
enum { CDR_STORED_FORMATS = 4, CDR_STORED_DIM = 8 };
typedef struct {
    const char *name;             /* prefix and layer put in; {expert} stays */
    const char *format[CDR_STORED_FORMATS]; int n_formats;      /* as in the description, preferred first: BF16 F32 F16 MXFP4 FP8_128 */
    int n_dim; int64_t n[CDR_STORED_DIM];                       /* in the file, of one expert: padding and extra axes too; a fused tensor whole */
    bool padded; double fill;     /* longer than the part: the rest is fill */
    bool optional; double absent; /* may be missing: the part is then this number; NAN: drawn by its own rule */
    int split_axis, split_n, split_i;                           /* part i of n equal ones of an axis of a fused tensor; n 0: whole */
} cdr_model_row;
cdr_model_row cdr_model_stored(const cdr_model *m, int64_t i_param);
bool cdr_model_carries(const cdr_model *m, const char *tensor);           /* the description's carry patterns, and layers outside of the slice */

/* The config.json that this model's family writes, one-based lists restored (malloc, cdr_text). A model read from a directory gives its own back, byte for
 * byte; with experts as the file does not have them, its quantization_config comes or goes. experts: CDR_MXFP4, CDR_BF16, CDR_F8_E4M3 (FP8_128); -1: as
 * the directory, else as the description's first format. */
cdr_status cdr_model_config(const cdr_model *m, int experts, cdr_text *json, cdr_err *err);
/* Which built-in description a config.json means: the most specific match. none: nearest is the best guess, and why it is none is in err. */
typedef struct { const char *name, *by; /* "architectures" */ const char *nearest; } cdr_model_match;
cdr_status cdr_model_match_config(const cdr_json *config, cdr_pool *pool, cdr_model_match *match, cdr_err *err);
/* Aliases that were read, "num_experts_per_tok read as num_experts_per_token", for notes. */
int cdr_model_notes(const cdr_model *m, const char *const **note);
/* Its sizes, in order: value as text; from: the key of config.json that gave it, "default", or NULL: a description. Base of layer lists in config.json. */
int64_t cdr_model_sizes(const cdr_model *m);
const char *cdr_model_size(const cdr_model *m, int64_t i, const char **value, const char **from);
int cdr_model_index_base(const cdr_model *m);
/* The tokenizer and chat sections. */
typedef struct { const char *type, *dir, *file, *pattern; int base, special; const char *chat; } cdr_model_text;
cdr_model_text cdr_model_get_text(const cdr_model *m);
const char *cdr_model_dir(const cdr_model *m);                            /* of the weights; NULL: none, the model starts from random ones */
/* serve: does this consumer bind adapters on a leaf name? 1 yes, 0 no, -1 the description does not say. */
int cdr_model_serves(const cdr_model *m, const char *consumer, const char *leaf);

/* ---- inside of the folder ----------------------------------------------------------------------------------------------
 * description.c reads the file into a tree with its sizes; model.c makes layers, tensors and the builder of it; each
 * block_*.c is one row of the block table. */
enum { CDR__MAX_NEEDS = 24, CDR__MAX_LOCALS = 24, CDR__MAX_FILES = 4 };

typedef struct {                      /* a size: an integer, a real number, or a list of integers */
    const char *name;
    bool real, list, read;            /* read: something asked for it */
    const cdr_yaml *node;             /* where it is given; NULL: a default of config, or a config.json */
    const char *from;                 /* the key of config.json that gave it, or "default"; NULL: a description file */
    int64_t i; double d;
    const int64_t *items; int n;
} cdr__size;

typedef struct {                      /* a description as read: the merged tree of the file and what it extends */
    cdr_pool *pool;
    cdr_yaml *root;
    const char *file[CDR__MAX_FILES]; int n_files;      /* a node's file is its line >> 20 */
    cdr__size *size; int64_t n_sizes, cap_sizes;
    int indexer;                      /* cdr_indexer_mode, as asked for */
    const char **note; int64_t n_notes, cap_notes;      /* aliases of config.json that were read */
    const char *family;               /* its own, or of the nearest file below that is one */
    struct cdr__source *source;       /* the directory that filled the sizes; NULL: none */
} cdr__desc;
typedef struct cdr__source cdr__source;      /* config_parts.h */

typedef enum { CDR__INIT_EMBED, CDR__INIT_LINEAR, CDR__INIT_OUT, CDR__INIT_ONES, CDR__INIT_ZEROS, CDR__INIT_CONV, CDR__INIT_LOG_UNIFORM,
               CDR__INIT_DT_BIAS } cdr__init_class;
typedef struct {                      /* a part that a block needs, with its shape */
    const char *part;
    int n_dim; int64_t n[3];
    uint8_t init; int32_t block_rows; /* rows of one head or expert where a matrix is several blocks; 0: whole */
    bool lookup;                      /* a table that is looked up, not multiplied with */
    bool f32;                         /* kernels read it in F32 whatever the compute dtype is */
    bool state;                       /* no gradient: changed by a rule of its own */
    bool plain;                       /* a matrix that Muon never takes */
    bool optional;                    /* the description may have no row for it */
    bool added;                       /* model.indexer=on: a directory may lack it; it is drawn then */
    bool may_idle;                    /* no loss need depend on it */
    int64_t top_k;                    /* stacked experts: how many of n[0] a token multiplies with; 0: not stacked */
} cdr__need;

typedef struct cdr__block cdr__block;
typedef struct {
    const char *type, *label;         /* "mla", "MLA" */
    bool mixer;                       /* else ffn */
    const char *attrs, *parts;        /* all names that a description may use, separated by spaces */
    cdr_status (*open)(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, cdr_err *err);      /* reads the attributes, fills need and attr */
    cdr_val (*forward)(cdr_graph *g, const cdr__block *b, const char *const *name, cdr_io *io, cdr_val x_TD);
    double (*pair_flop)(const cdr__block *b), (*token_flop)(const cdr__block *b);      /* NULL: none */
} cdr__block_type;
struct cdr__block {
    const cdr__block_type *type;
    const char *name, *label;         /* in the description; in summaries */
    int64_t hidden;
    double eps;                       /* the model's */
    cdr_probe probe;                  /* of the eval program */
    int experts, top_k, select;       /* of a router; keys that an indexer selects. 0: none */
    void *attr;                       /* the type's own struct */
    struct { const char *name; int64_t x; } local[CDR__MAX_LOCALS]; int n_locals;      /* its integer attributes, for shapes */
    cdr__need need[CDR__MAX_NEEDS]; int n_needs;
};
extern const cdr__block_type *const cdr__block_types[];     /* ends with NULL */
extern const cdr__block_type cdr__block_mla, cdr__block_glu, cdr__block_kda, cdr__block_moe;

typedef struct {                      /* a description's text; src: the directory whose config.json gives the sizes, NULL: none, or that of weights_from */
    const char *text; size_t bytes;
    const char *where;
    cdr__source *src;
} cdr__input;
cdr_status cdr__desc_read(const cdr_model_spec *s, const cdr__input *in, cdr_pool *pool, cdr__desc *d, cdr_err *err);
bool cdr__size_text(const char *text, cdr__size *z);                /* "1.0e-5", "4_096"; false: no number of at least 0 */
const char *cdr__desc_at(const cdr__desc *d, const cdr_yaml *node);            /* "tiny.yaml:7:13" */
/* Own block first: size TYPE.NAME, then NAME. b NULL: no block. */
const cdr__size *cdr__size_find(const cdr__desc *d, const cdr__block *b, const char *name);
cdr_status cdr__sizes_read(const cdr__desc *d, cdr_err *err);       /* once all are read: refuses names that only look like sizes */
/* An integer expression over the block's attributes and sizes: integers, names, + - * //, parentheses, round_up(n, m). at: for messages. */
cdr_status cdr__expr(const cdr__desc *d, const cdr__block *b, const char *text, const char *at, int64_t *x, cdr_err *err);
/* An attribute of a block: its own, else the size TYPE.NAME; absent without `otherwise`: an error. */
cdr_status cdr__attr_int(const cdr__desc *d, cdr__block *b, const cdr_yaml *node, const char *name, const int64_t *otherwise, int64_t *x, cdr_err *err);
/* An attribute of a map inside a block: its own, else the size GROUP.NAME; no local name of the block. */
cdr_status cdr__attr_group(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *group, const char *name, int64_t *x, cdr_err *err);
cdr_status cdr__attr_bool(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *name, bool otherwise, bool *x, cdr_err *err);
/* One of words ("a b c", in order), the first where it is absent. */
cdr_status cdr__attr_enum(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *name, const char *words, int *x, cdr_err *err);
/* The keys of a map inside a block are among words. */
cdr_status cdr__attr_known(const cdr__desc *d, const cdr_yaml *node, const char *what, const char *words, cdr_err *err);
cdr_status cdr__attr_real(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *name, const double *otherwise, double *x, cdr_err *err);
const char *cdr__attr_word(const cdr_yaml *node, const char *name);            /* NULL: absent or no scalar */
cdr_status cdr__block_refuse(const cdr__desc *d, const cdr__block *b, const cdr_yaml *at, const char *what, cdr_err *err);
cdr__need *cdr__block_need(cdr__block *b, const char *part, int64_t rows, int64_t cols, cdr__init_class init);    /* cols 0: one axis */
/* n_experts matrices, of which a token multiplies with b->top_k */
cdr__need *cdr__block_need_experts(cdr__block *b, const char *part, int64_t n_experts, int64_t rows, int64_t cols, cdr__init_class init);
cdr_val cdr__block_param(cdr_graph *g, const cdr__block *b, const char *const *name, const char *part);     /* CDR_NONE: optional and absent */
const char *cdr__block_param_name(const cdr__block *b, const char *const *name, const char *part);           /* NULL: the same */
const char *cdr__near_word(cdr_pool *pool, const char *words, const char *word);      /* NULL: it is one of them; else " Did you mean ..?" or "" */

/* The gated activation of feed-forward parts: silu(a) b, or SiTU. */
typedef struct { bool situ; float beta, linear_beta; } cdr__activation;
cdr_status cdr__activation_read(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, cdr__activation *a, cdr_err *err);
cdr_val cdr__glu(cdr_graph *g, const cdr__activation *a, cdr_val x_TD, cdr_val gate_FD, cdr_val up_FD, cdr_val down_DF);
/* One more loss of a training forward: an F64 sum over rows that are not idle. */
void cdr__extra_loss(cdr_graph *g, cdr_io *io, cdr_val loss_1);
/* Layer sets: all, 3, 0-7, "0-3,8,last", "every 4 from 3". in: n flags. */
bool cdr__layer_set(const char *text, int n, bool *in);

#ifdef __cplusplus
}
#endif
#endif
