/* session.h: what train, eval, generate and plan open alike: recipe, model, ranks, data, bundle, device, executor.
 * Internal to src/train.
 *
 *   cdr_session s;
 *   CDR_TRY(cdr__session_recipe(&s, path, &common, err));     // recipe and model
 *   CDR_TRY(cdr__session_ranks(&s, err));                     // communicator, mesh, steps
 *   CDR_TRY(cdr__session_compile(&s, err));                   // bundle
 *   CDR_TRY(cdr__session_device(&s, err));                    // slab, executor
 *   cdr__session_close(&s);
 */
#ifndef CDR_SESSION_H
#define CDR_SESSION_H

#include "adapter/adapter.h"
#include "data/data.h"
#include "io/io.h"
#include "models/models.h"
#include "plan/plan.h"
#include "recipe/recipe.h"
#include "run/run.h"
#include "weights/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int64_t done, total; double seconds; } cdr_load;

typedef struct {
    cdr_pool *pool;
    cdr_recipe r;
    cdr_model *model; const cdr_model_info *info; cdr_builder builder;
    cdr_tokenizer *tok;
    cdr_machine machine;
    cdr_comm *world; cdr_mesh mesh; int rank, n_ranks;
    cdr_data *data;
    cdr_compile_opts opts; cdr_bundle bundle; double compile_s;
    int64_t compile_bytes;                          /* of the pool once one rank's program is compiled: recipe, model, program */
    cdr_device *device; cdr_exec *exec;
    int32_t *tokens, *targets, *start, *pos; float *weights;      /* one micro-batch, host */
    int64_t T;
    const cdr_lora_set *adapter;                    /* of a file, beside a model that has none; NULL: none */
    cdr_hf *hf; cdr_weights *base;                  /* the base in a directory of somebody else; NULL: none */
    uint64_t base_hash; bool unasked;               /* 0: not asked for yet; nobody will ask: a directory is read that nothing is compared with */
    /* While its files are read, on rank 0: at once, once a second, and at the end; bytes of them, of all ranks. NULL: nobody wants to know. */
    cdr_status (*on_load)(void *ctx, const cdr_load *load, cdr_err *err); void *on_load_ctx;
    int dense;                                      /* what cdr__put_dense wrote last, + 1; 0: nothing */
} cdr_session;

/* The recipe that a checkpoint holds, with c's flags (NULL: none) on top; it outlives the checkpoint. */
cdr_status cdr__recipe_of_ckpt(const cdr_ckpt *ck, const cdr_common *c, cdr_pool *pool, cdr_recipe *r, cdr_err *err);
cdr_model_spec cdr__model_spec(const cdr_recipe *r);                       /* of the model that a recipe names; borrows r */
cdr_status cdr__session_recipe(cdr_session *s, const char *recipe, const cdr_common *c, cdr_err *err);
cdr_status cdr__session_model(cdr_session *s, cdr_err *err);               /* after the recipe: model, machine */
cdr_status cdr__session_tokenizer(cdr_session *s, cdr_err *err);           /* of what reads or writes text; a plan does neither */
/* A tokenizer at path (a file, or a directory that holds one): one line of text, and members of an open object (w may be NULL). *is false: there is none. */
cdr_status cdr__inspect_tokenizer(const char *path, bool *is, cdr_text *line, cdr_jw *w, cdr_err *err);
cdr_status cdr__session_ranks(cdr_session *s, cdr_err *err);
cdr_status cdr__session_data(cdr_session *s, cdr_err *err);
/* What the data is opened with, before that: sources and all options of data.*. The tokenizer is open after it. In s->pool. */
cdr_status cdr__session_data_opts(cdr_session *s, cdr_data_opts *o, cdr_err *err);
/* The chat format of data.chat_format and data.chat_options; format "none": there is none. */
cdr_chat_spec cdr__session_chat(const cdr_session *s);
/* NAME in the cache folder (interface.md, 1.1); false: there is none. */
bool cdr__cache_path(char *out, size_t bytes, const char *name);
cdr_status cdr__session_compile(cdr_session *s, cdr_err *err);
cdr_status cdr__session_device(cdr_session *s, cdr_err *err);
void cdr__session_close(cdr_session *s);
/* The mesh's place of a rank; opts for it. */
void cdr__session_mesh(cdr_session *s, int rank, int n_ranks);
/* "replicate 2 x shard 64 x context 1", and where experts are split "; ep 64 = 14 experts a rank, efsdp 1". In s->pool. */
char *cdr__mesh_text(const cdr_session *s);
void cdr__mesh_json(const cdr_mesh *m, cdr_jw *w);                         /* members of an open object */
/* Threads of a rank: the recipe's, else OMP_NUM_THREADS where the machine is this one, else its share of the cores. */
int cdr__session_threads(const cdr_session *s, int cores, bool this_machine);
cdr_status cdr__session_opts(cdr_session *s, int device, uint32_t isa, int n_threads, cdr_err *err);

/* The base of model.path, where it is a directory with weights: opened and audited, once. */
cdr_status cdr__session_base(cdr_session *s, cdr_err *err);
/* What precision.experts=stored means there, after the compute dtype is known: a cdr_dtype; -1: the description says; -2: an error. */
int cdr__session_experts(cdr_session *s, cdr_err *err);
/* First values of all parameters: out of the directory, else drawn from the seed; so are those that it does not have. */
cdr_status cdr__session_weights(cdr_session *s, cdr_err *err);
const char *cdr__session_weights_text(const cdr_session *s);               /* "weights of toy-k3 (1,564 tensors, experts MXFP4)"; "random weights" */
/* Sets base_hash, the same for all ranks, where frozen weights stay in the base. Collective; cdr__session_device has done it. */
cdr_status cdr__session_base_hash(cdr_session *s, cdr_err *err);
/* A checkpoint that leaves frozen weights to its base was trained on another one: an error. */
cdr_status cdr__session_same_base(cdr_session *s, const cdr_ckpt *ck, cdr_err *err);
/* What a checkpoint says of it; path NULL: it needs none. The base's files are still what they were, or it is an error. */
cdr_status cdr__session_base_meta(cdr_session *s, const char **path, uint64_t *hash, cdr_err *err);

/* Logical shard that this rank's micro-batch mb is. */
int64_t cdr__shard_id(const cdr_session *s, int mb);
/* Inputs of this rank's micro-batches of a step (from 0): tokens, targets, start, pos, micro. What they hold, counted. An error of this rank's data alone:
 * the inputs are filled all the same. */
cdr_status cdr__put_batch(cdr_session *s, int64_t step, int64_t *trained, int64_t *rows, cdr_err *err);
/* Sparse attention is dense while step < train.indexer_warmup_steps: the flag that the programs read, after so many steps. */
void cdr__put_dense(cdr_session *s, int64_t step);
/* The parameters that train.trainable, train.freeze and train.indexer hold still, by name, into o->freeze. A pattern that
 * matches nothing is an error. */
cdr_status cdr__session_freeze(const cdr_session *s, cdr_compile_opts *o, cdr_err *err);
/* Under LoRA, in its place: all parameters are frozen, and lora.* become adapters. Then what the compiled program has of them. */
cdr_status cdr__session_lora(cdr_session *s, cdr_compile_opts *o, cdr_err *err);
enum { CDR_LORA_KINDS = 64 };
typedef struct { const char *kind; int64_t matched, expected, rank_min, rank, parameters; } cdr_lora_kind;
int cdr__lora_kinds(const cdr_session *s, cdr_lora_kind *kind, int max);       /* their number; kinds without an adapter are left out */
void cdr__lora_table(const cdr_session *s, cdr_text *t);
double cdr__lora_active(const cdr_session *s);                                 /* elements of adapters that a token multiplies with */

/* Held-out loss in nats a token and bits a byte, over the first `tokens` of the held-out data (CDR_ALL: all). Collective. */
typedef struct { double loss, perplexity, bits_per_byte, seconds; int64_t tokens, bytes; } cdr_eval_sum;
cdr_status cdr__evaluate(cdr_session *s, int64_t tokens, cdr_eval_sum *sum, cdr_err *err);

/* Continues a prompt; text grows by what was made. Collective (every rank makes the same). */
typedef struct {
    int64_t max_new_tokens; double temperature, top_p; int64_t top_k; uint64_t seed;
    const cdr_strings *stop;     /* text ends before the first of these */
} cdr_sample_opts;
cdr_sample_opts cdr__sample_opts(const cdr_recipe *r);
cdr_status cdr__sample(cdr_session *s, const cdr_sample_opts *o, const char *prompt, cdr_text *text, int64_t *n_new, cdr_err *err);

/* What went wrong on rank `root` (st there; CDR_OK: nothing), to all: every rank returns it and has its message, so that
 * whichever of them prints the job's one error prints the cause. Collective. */
cdr_status cdr__share_error(cdr_session *s, int root, cdr_status st, cdr_err *err);

/* The same where any rank may have failed by itself: the first of those that did speaks for all. Alone, or before ranks are known: st. Collective. */
cdr_status cdr__agree(cdr_session *s, cdr_status st, cdr_err *err);

/* Ranks that compiled another program, or read another recipe, must not meet in a collective. Collective. */
cdr_status cdr__same_program(cdr_session *s, cdr_err *err);
/* Tensors that ranks must hold alike, by hash: CDR_ENUMERIC on all ranks where they do not, and a message that names the first
 * such tensor and a rank. *n_tensors: values compared. Collective, between two runs of a program. */
typedef struct { int64_t step, agreed; } cdr__when;            /* agreed: step at which all was equal last; -1: none */
cdr_status cdr__same_tensors(cdr_session *s, cdr__when when, int64_t *n_tensors, cdr_err *err);

/* The values of a parameter that live from step to step, as a checkpoint names them; the first is the weight. */
enum { CDR_MAX_KEPT = 4 };
typedef struct { cdr_val v; const char *cls; } cdr_kept;
int cdr__kept_values(const cdr_param *q, cdr_kept x[CDR_MAX_KEPT]);

/* Checkpoints of a running session. */
cdr_status cdr__save(cdr_session *s, int64_t step, int64_t tokens, int64_t trained, double best_eval, int64_t *bytes, cdr_err *err);
typedef struct { int64_t step, tokens, trained; double best_eval; int from_ranks; char path[600]; } cdr_restored;
/* other_data: another corpus or order than the checkpoint's is said, not refused (--allow-change). */
typedef struct { bool states, other_data; } cdr_restore_opts;
/* Is any parameter, frozen as the session is compiled, the base's and not the checkpoint's? */
bool cdr__restore_needs_base(const cdr_session *s, const cdr_ckpt *ck);
cdr_status cdr__restore(cdr_session *s, cdr_ckpt *ck, cdr_restore_opts o, cdr_restored *out, cdr_err *err);

/* FLOP/s of this rank's threads on products of dtype: the best ever measured here; 0: unknown (not a CPU). */
double cdr__gemm_ceiling(const cdr_device *d, int dtype);

/* Elements that training changes: those of the model without its frozen parameters; the model's summary, which says so. */
int64_t cdr__trained_params(const cdr_session *s);
char *cdr__summary(const cdr_session *s);

/* FLOPs of one trained token, forward and backward, without recompute: 6 per matrix element, 4 where it is frozen (LoRA); attention by mean
 * key count. */
double cdr__flops_per_token(const cdr_session *s);

#ifdef __cplusplus
}
#endif
#endif
