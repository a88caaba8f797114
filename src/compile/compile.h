/* compile.h: a model's forward, for one device, becomes a bundle of programs for one rank. One pass per file, in the
 * order of the table in compile.c:
 *
 *   build ► adapt ► shard ► differentiate ► update ► policy ► select ► schedule ► place ► verify
 *
 *   cdr_compile_opts o = cdr_compile_defaults();
 *   o.T = 4096; o.n_micro = 4; o.mesh.size[CDR_AXIS_SHARD] = 2; ...
 *   CDR_TRY(cdr_compile(&o, &builder, pool, &bundle, err));
 *   bundle.run_bytes[0] + bundle.exec_bytes[0]                  // what the run allocates, to the byte
 */
#ifndef CDR_COMPILE_H
#define CDR_COMPILE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CDR_MODE_TRAIN, CDR_MODE_EVAL, CDR_MODE_GENERATE } cdr_mode;
typedef enum { CDR_CORE_DENSE, CDR_CORE_GATHERED } cdr_core;

/* What a model is given and gives back. All token arrays have T rows (packed documents of one logical shard).
 * tokens: ids. targets: next ids, -1: no loss here (also padding). start: index of the first key that this token may
 * see (first row of its document). pos: the token's own key index. So position within the document = pos - start.
 * TRAIN, EVAL: keys are the rows themselves, pos_t = t. GENERATE: keys are rows of a cache of S rows; the model keeps
 * its caches as STEP values, writes row pos_t, and reads rows start_t..pos_t; rows from n_live on are idle. */
/* One router whose load is kept even. The model's forward adds a row for each in TRAIN mode; `update` reads them. */
typedef enum { CDR_BALANCE_NONE, CDR_BALANCE_QUANTILE, CDR_BALANCE_SIGN, CDR_BALANCE_AUX } cdr_balance_kind;
typedef struct {
    int layer, experts, top_k; cdr_balance_kind kind;
    int32_t bias_param;               /* the selection bias, a parameter of train mode STATE; -1: none */
    cdr_val load_E;                   /* I32, STEP: tokens sent to each expert in this step */
    cdr_val hist_EB;                  /* I32, STEP: quantile balancing's counts; CDR_NONE with another kind */
} cdr_balance;

typedef struct {
    cdr_mode mode; int64_t T, S;
    int compute;                                /* dtype of activations and of parameters as kernels read them */
    int64_t loss_chunk_tokens, loss_chunk_vocab;
    cdr_val tokens_T, targets_T, start_T, pos_T;
    cdr_val weights_T;                          /* F32: each token's share of the loss; CDR_NONE: all 1; TRAIN, EVAL */
    cdr_val scale_1;                            /* F32: 1 / trained tokens of the step; TRAIN */
    cdr_val scale_rows_1;                       /* F32: 1 / rows of the step that are not idle; TRAIN */
    cdr_val micro_1;                            /* I32, 1: counters add; `begin` clears them, as micro-batches may run in any order; TRAIN */
    cdr_val n_live_1;                           /* I32; GENERATE */
    cdr_val dense_1;                            /* I32, RUN: 1 while sparse attention is still dense (indexer warm-up); the host sets it */
    int64_t sequence;                           /* tokens of a packed row; T is a multiple of it */
    int core;                                   /* cdr_core: how sparse attention is computed */
    cdr_balance_kind balance; bool balance_own; /* own: as the description says */
    int64_t balance_bins; double aux_coef, indexer_coef; bool indexer_train;
    int64_t capacity;                           /* routed rows that are worked on at a time; 0: all */
    bool keep_gate_up;                          /* experts keep the gate/up product for the backward, else only the dispatch input */
    cdr_val *extra; int64_t n_extra, cap_extra; /* out: further losses, F64, sums over rows that are not idle; their gradient's scale is scale_rows_1; TRAIN */
    cdr_balance *routers; int64_t n_routers, cap_routers;     /* out; TRAIN */
    cdr_val loss_1;                             /* out: F64, sum over trained tokens, nats; TRAIN, EVAL */
    cdr_val logits_TW;                          /* out: F32; GENERATE */
} cdr_io;

/* Whoever describes a model: models/ does for recipes, tests have tiny ones of their own. */
typedef struct {
    const void *model;
    cdr_status (*declare)(const void *model, cdr_graph *g, cdr_err *err);          /* parameters: name, global type, unit, init, rule */
    cdr_status (*forward)(const void *model, cdr_graph *g, cdr_io *io, cdr_err *err);
} cdr_builder;

typedef enum { CDR_POLICY_AUTO, CDR_POLICY_KEEP, CDR_POLICY_RECOMPUTE } cdr_policy_kind;
typedef enum { CDR_RESHARD_AUTO, CDR_RESHARD_ALWAYS, CDR_RESHARD_NEVER } cdr_reshard;

/* Low rank adapters beside a frozen matrix W [N, K]: y = W x + scale B (A x), A [rank, K], B [N, rank]; beside a stack of matrices, one
 * of each for every matrix, or one A or one B for all (shared-outer: A of a gate and an up, B of a down). A is drawn (init), B is zero. */
typedef enum { CDR_ADAPTER_KAIMING, CDR_ADAPTER_XAVIER, CDR_ADAPTER_GAUSSIAN } cdr_adapter_init;
typedef enum { CDR_ADAPTER_EACH, CDR_ADAPTER_SHARED_A, CDR_ADAPTER_SHARED_B } cdr_adapter_form;
typedef struct { const char *param; int32_t rank; float scale; int32_t form; } cdr_adapter;      /* param: the matrix, by name; form: of a stack */

typedef struct {
    int64_t T;                     /* tokens of one logical shard = of one micro-batch */
    int64_t gen_T, gen_S;          /* rows of one generate turn; cache rows. 0: no generate program */
    int n_micro;                   /* turns of a rank per step; a power of two */
    cdr_mesh mesh;
    int compute, params;           /* dtypes: of activations; of stored trained weights (the master is F32) */
    int64_t loss_chunk_tokens, loss_chunk_vocab;
    cdr_policy_kind policy; cdr_reshard reshard; int prefetch;
    int order;                     /* cdr_order: TREE, FREE */
    cdr_shard_opts parallel;       /* mesh.expert > 1: how rows travel; how the loss reads a split head */
    const cdr_adapter *adapters; int n_adapters; int adapter_init;    /* cdr_adapter_init; every other parameter is named in freeze */
    int experts_dtype;             /* frozen stacks of experts in memory: CDR_MXFP4, CDR_BF16; -1: MXFP4 where cdr_param.packed, else as compute */
    bool map_experts;              /* packed stacks that only experts read stay in the mapped files that they come from: cdr_exec_map gives the addresses */
    /* optimizer */
    double weight_decay, beta1, beta2, eps, max_grad_norm;
    bool muon, muon_nesterov, muon_per_head; int muon_iterations;    /* parameters whose rule is MUON take it, else ADAMW */
    double muon_momentum, muon_scale;
    const char *const *freeze; int n_freeze;                          /* patterns (cdr_glob) over parameter names: train mode FROZEN */
    /* sparse models; the model's forward reads these through cdr_io */
    int64_t sequence; int core;                                       /* tokens of a packed row; cdr_core */
    int balance; bool balance_own; int64_t balance_bins; double balance_rate, balance_ema, aux_coef;
    bool indexer_train; double indexer_coef;
    int64_t capacity; bool keep_gate_up;
    bool loss_weights;                                                /* the step and eval programs have an input "weights" */
    /* machine */
    int device; uint32_t isa; int n_threads;                          /* device CDR_N_DEVICES: a kind without a backend, for a plan alone */
    bool plan_kernels;             /* a plan: where the device has no kernel, the scratch of the CPU's base kernel with one thread stands in */
    bool rows_only;                /* every parameter lies in rows (CADRE_DEBUG=rows): the same bits, slower */
    int64_t budget_bytes;          /* first tier; 0: none */
    bool unplaced;                 /* no offsets, not verified: for comparing programs (plan/classes.c). Not with policy AUTO, which needs bytes */
    bool infer_only;               /* no step, no optimizer states: eval and generate alone */
    int micro_split;               /* 0: one segment forward + backward. 1: two segments, for schedules that interleave micro-batches */
    const cdr_turn *turns; int n_turns;   /* with micro_split: the order of (0 forward | 1 backward, mb); NULL: f0 b0 f1 b1 .. */
} cdr_compile_opts;
cdr_compile_opts cdr_compile_defaults(void);

cdr_status cdr_compile(const cdr_compile_opts *o, const cdr_builder *m, cdr_pool *pool, cdr_bundle *b, cdr_err *err);

/* verify one bundle (ordering, overlap, in-place); all ranks' bundles together (collective order). */
cdr_status cdr_verify(const cdr_bundle *b, cdr_err *err);
cdr_status cdr_verify_ranks(const cdr_bundle *const *b, int n, cdr_err *err);
/* Of a bundle compiled with plan_kernels: calls of all programs, and how many of them have a CPU kernel's scratch standing in. */
enum { CDR_KERNEL_STAND_IN = UINT16_MAX };                            /* cdr_call.kernel of those */
typedef struct { int64_t calls, stand_in; } cdr_kernel_count;
cdr_kernel_count cdr_compile_stand_ins(const cdr_bundle *b);
/* Why each kernel was chosen, and each that was not, and how each matrix lies: text for --print why. */
void cdr_compile_why(cdr_text *out, const cdr_compile_opts *o, const cdr_bundle *b);

/* Segments of the step program by name: "begin", "micro" (or "forward", "backward"), "finish". Values that the host
 * fills or reads, by name (cdr_program_find):
 *   step: tokens targets start pos (weights F32[T], with loss_weights) micro [n_inst = n_micro] · hyper F32[8] {lr, 1/(1-beta1^t), 1/(1-beta2^t), 0..} ·
 *         count I64[8] {trained tokens, stop, save, time, rows that are not idle, 0..}: the rank's own going in, summed over
 *         ranks after `begin` · extra F64[n]: sums of the further losses over the step's rows, in the order of cdr_io.extra ·
 *         layers.N.moe.load I32[experts]: tokens sent to each expert, after `finish` of all ranks ·
 *         metrics F64[4] {loss sum, grad norm, clip scale, ok} after `finish` · ok I32[1], RUN: sticky, 0 after a
 *         non-finite step until the host sets it to 1 · dsa_dense I32[1], RUN: cdr_io.dense_1
 *   eval: tokens targets start pos (weights) · sums F64[world]: the loss sum of each rank, by rank
 *   generate: tokens start pos n_live · logits F32[gen_T, W] */
enum { CDR_HYPER_LR, CDR_HYPER_BC1, CDR_HYPER_BC2, CDR_N_HYPER = 8 };
enum { CDR_METRIC_LOSS, CDR_METRIC_NORM, CDR_METRIC_CLIP, CDR_METRIC_OK, CDR_N_METRIC = 4 };

#ifdef __cplusplus
}
#endif
#endif
