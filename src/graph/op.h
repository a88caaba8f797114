/* op.h: the program as data, the operator interface, and the builder. Read this first.
 *
 * A run is one bundle of programs that are placed together. A program is segments (straight-line calls) and a
 * schedule of turns (segment, micro-batch). A call names an operator, a kernel, and its operands: values. A value
 * has a type, a scope and, after `place`, bytes in a tier's slab. An operator is a const record: how shapes follow
 * (`infer`, the only validator), how its gradient is built from other operators (`grad`), and a table of kernels.
 *
 *   cdr_val y_TD = cdr_rmsnorm(g, x_TD, w_D, 1e-5f);       // each operator's own header has such a function
 *   cdr_val in[] = { x_TD, w_D };                          // ... which is this:
 *   cdr_val out[] = { CDR_NEW, CDR_NEW };                  // CDR_NONE leaves an optional output away
 *   cdr_graph_call(g, &cdr_op_rmsnorm, &attr, 2, in, 2, out);
 *
 * Errors while building are sticky: the first one is kept in g->err, later calls do nothing and return CDR_NONE,
 * so that model code reads like the paper. Source of the vocabulary: spec/spine.md.
 */
#ifndef CDR_OP_H
#define CDR_OP_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t cdr_val;
enum { CDR_NONE = -1, CDR_NEW = -2, CDR_MAX_OPERANDS = 64 };

typedef enum { CDR_RUN, CDR_STEP, CDR_TURN } cdr_scope;
typedef enum {                       /* class: what the plan adds up by */
    CDR_C_WEIGHT, CDR_C_FROZEN, CDR_C_GRAD, CDR_C_OPTIM, CDR_C_ACT, CDR_C_SAVED, CDR_C_WORK, CDR_C_COMM, CDR_C_INPUT, CDR_C_STATE,
    CDR_N_CLASSES
} cdr_class;
extern const char *const cdr_class_name[CDR_N_CLASSES];
enum { CDR_F_CKPT = 1, CDR_F_REPLICA = 2, CDR_F_INPUT = 4, CDR_F_PINNED = 8 };        /* value flags */
typedef enum { CDR_P_FWD, CDR_P_BWD, CDR_P_AGAIN, CDR_P_UPDATE } cdr_phase;
enum { CDR_K_EFFECT = 1 };                                                            /* call flags */

typedef struct {                     /* value */
    cdr_type t;
    uint8_t cls, scope, tier, flags;
    cdr_val alias; int64_t alias_at; /* shares another value's bytes, from this byte on: views, slices, in-place results */
    cdr_val live;                    /* I32 value: rows of axis 0 that hold data; CDR_NONE: all of them */
    int32_t param;                   /* -1, or the parameter that it stores a part of */
    int32_t name;                    /* offset in strings: "layers.3.mla.q" */
    int16_t n_inst;                  /* copies over micro-batches; the executor uses copy mb % n_inst. At least 1 */
    int64_t offset, stride;          /* filled by place: bytes in the tier's slab, bytes between copies */
} cdr_value;

typedef struct {                     /* call */
    uint16_t op, kernel, flags;      /* op: index in cdr_ops; kernel: index in its table (select) */
    uint8_t stream, phase;
    int16_t layer; uint8_t n_in, n_out;
    uint32_t arg;                    /* operands[arg..]: inputs, then outputs; CDR_NONE: optional and absent */
    uint32_t add;                    /* bit k: output k is added to instead of overwritten */
    uint32_t attr;                   /* byte offset into attrs */
    cdr_val pred, work;              /* skip when *pred == 0 (I32); scratch, a value like any other */
    uint32_t wait; uint16_t n_wait;  /* waits[wait..]: calls (program numbering) of other streams that must be over */
    int32_t origin;                  /* offset in strings: "layers.41.moe.dispatch" */
} cdr_call;

typedef struct { int32_t first, n; cdr_val repeat; int16_t repeat_max; const char *name; } cdr_segment;
typedef struct { int16_t segment, mb; } cdr_turn;

/* EXPERT is no axis of its own: it is carved out of SHARD (cdr_mesh). As a parameter's split it means whole matrices of a stack. */
typedef enum { CDR_AXIS_REPLICATE, CDR_AXIS_SHARD, CDR_AXIS_CONTEXT, CDR_N_AXES, CDR_AXIS_EXPERT = CDR_N_AXES } cdr_axis;
/* Where a parameter lies, as the description says: FSDP over the shard axis; whole on every rank; matrices of a stack over expert groups. */
typedef enum { CDR_PLACE_SHARD, CDR_PLACE_REPLICATE, CDR_PLACE_EXPERT } cdr_place;
typedef enum { CDR_FROZEN, CDR_FULL, CDR_STATE } cdr_train_mode;     /* STATE: no gradient; changed in `finish` by a rule of its own */
typedef enum { CDR_RULE_NONE, CDR_RULE_ADAMW, CDR_RULE_MUON } cdr_rule;
/* NORMAL: std init_std. UNIFORM: [-init_std, init_std]. LOG_UNIFORM: log of U(1, 16). DT_BIAS: b with softplus(b) = max(1e-4,
 * exp(U(log 1e-3, log 1e-1))) (spec/model.md, 3.2). */
typedef enum { CDR_INIT_ZEROS, CDR_INIT_ONES, CDR_INIT_NORMAL, CDR_INIT_UNIFORM, CDR_INIT_LOG_UNIFORM, CDR_INIT_DT_BIAS } cdr_init;

typedef struct {                     /* parameter: one row per stacked tensor */
    const char *name;                /* as in the checkpoint */
    cdr_type global;                 /* whole, as in the checkpoint */
    int8_t split[CDR_MAX_DIM];       /* mesh axis per dimension or -1 */
    uint8_t place;                   /* cdr_place */
    int16_t unit;                    /* gather unit: parameters of one unit are gathered by one call */
    uint8_t train, rule; int32_t block_rows;
    uint8_t init; float init_std; uint64_t rng;     /* distribution; random stream (hash of the name) */
    bool decay; float lr_scale;
    bool f32;                        /* kernels read it in F32 whatever the compute dtype is */
    bool packed;                     /* stored as MXFP4: lies so in memory while it is frozen, unless the run says otherwise */
    bool may_idle;                   /* no loss need depend on it: it then stays as it is */
    bool mapped;                     /* a packed stack that stays in its mapped file (CDR_MAPPED); each rank has all experts of its expert group's part */
    bool adapter;                    /* A or B of a low rank adapter, which the compiler put beside a frozen matrix */
    cdr_val shard, grad, master, m, v;              /* RUN, STEP, RUN, RUN, RUN. master = shard where they are one */
    uint8_t layout; const char *layout_why;         /* cdr_layout of shard, and why it lies so (compile/layout.c) */
} cdr_param;

typedef enum { CDR_COLL_GATHER, CDR_COLL_REDUCE_SCATTER, CDR_COLL_ALL_REDUCE, CDR_COLL_COUNT, CDR_COLL_ALL_GATHER, CDR_COLL_EXPERTS, CDR_COLL_LOSS } cdr_coll_kind;
typedef enum { CDR_ORDER_FREE, CDR_ORDER_TREE } cdr_order;
/* EXPERT: the ranks of one expert group, which hold all experts together. EFSDP: ranks of a shard axis that hold the same experts. */
typedef enum { CDR_COMM_WORLD, CDR_COMM_SHARD, CDR_COMM_REPLICATE, CDR_COMM_EXPERT, CDR_COMM_EFSDP, CDR_N_COMMS } cdr_comm_id;
extern const char *const cdr_comm_name[CDR_N_COMMS];
typedef struct { uint8_t kind, order; int16_t comm; int64_t wire_bytes; cdr_val counts; } cdr_coll;  /* first member of a collective's attr */
typedef struct { const char *name; cdr_val v; uint8_t reduce, unit; } cdr_metric;
typedef struct { const char *name; uint8_t kind; int16_t device; int32_t align; int64_t bytes; double in_bps, out_bps; } cdr_tier;

typedef enum { CDR_PROG_STEP, CDR_PROG_EVAL, CDR_PROG_GENERATE, CDR_PROG_PROBE, CDR_PROG_SNAPSHOT, CDR_N_PROGS } cdr_prog_id;
typedef struct {
    const char *name;
    cdr_value *vals; cdr_call *calls; cdr_val *operands; unsigned char *attrs; int32_t *waits; char *strings;
    cdr_segment *segs; cdr_turn *turns; cdr_metric *metrics;
    int32_t n_vals, n_calls, n_operands, n_attrs, n_waits, n_strings, n_segs, n_turns, n_metrics;
} cdr_program;

typedef struct {                     /* all programs of a run, placed together */
    int32_t *param_slot; int32_t n_slots;    /* hash table of parameter names: index + 1, 0: empty */
    cdr_param *params; cdr_value *shared; char *shared_strings;   /* shared: RUN values, numbered before every program's own */
    cdr_program *progs; cdr_tier *tiers;
    int32_t n_params, n_shared, n_progs, n_tiers;
    int64_t run_bytes[CDR_MAX_TIERS];    /* per tier: RUN part */
    int64_t exec_bytes[CDR_MAX_TIERS];   /* max over programs of STEP + TURN part */
    int64_t lower_bound[CDR_MAX_TIERS];  /* no placement can take fewer bytes (RUN + the largest sum of live values) */
    int64_t peak_call; int32_t peak_prog;    /* where the largest program's live sum peaks */
    uint64_t hash;                       /* of what must be equal on all ranks */
} cdr_bundle;

/* ---- operators -------------------------------------------------------------------------------------------- */
struct cdr_comm; struct cdr_graph; typedef struct cdr_graph cdr_graph;

typedef struct {                     /* what a kernel may use of the machine */
    int n_threads;                   /* CPU: threads of this rank */
    struct cdr_comm *const *comms;   /* by cdr_comm_id */
    void *stream;                    /* the device's stream handle; NULL on a CPU */
    struct cdr_device *device;
} cdr_lane;

typedef struct cdr_args {
    const void *attr; const cdr_type *type;    /* types of n_in + n_out operands; dtype CDR_N_DTYPES: absent */
    void *const *ptr;                          /* inputs, outputs; NULL: absent */
    int n_in, n_out;
    uint32_t add; void *work; const int32_t *pred;   /* pred: only devices whose host does not see it; NULL on a CPU */
    const cdr_lane *lane;
} cdr_args;

typedef struct {
    const char *name;                          /* "avx2": what bench, plan --why and traces print */
    const char *bits;                          /* numeric class; same class = same bits on the same input row */
    uint8_t device; uint32_t needs;
    const char *(*reject)(const void *attr, int n_in, int n_out, const cdr_type *t);  /* NULL: takes it; else the reason. NULL hook: takes all */
    size_t (*work_bytes)(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);   /* NULL hook: 0 */
    const char *symbol;                        /* looked up when the device's plug-in is loaded; NULL where run is set */
    cdr_status (*run)(const cdr_args *a);      /* CPU kernels; a kernel asserts, it does not validate */
} cdr_kernel;

typedef struct { uint32_t keep; double again_flop; } cdr_save;   /* mask of optional outputs kept; work to make the rest again */
typedef struct { double flop, read, write, wire; } cdr_cost;     /* FLOPs, bytes of device memory, bytes on the wire */

/* Double-precision reference: operands dense, row-major, integers as doubles. out is overwritten (the caller adds). */
typedef struct { const void *attr; int n_in, n_out; const cdr_type *type; const double *const *in; double *const *out; } cdr_ref_args;

enum { CDR_OP_ROWWISE = 1, CDR_OP_EFFECT = 2, CDR_OP_COLLECTIVE = 4, CDR_OP_PARAM_GRAD = 8,
       CDR_OP_F32_GRAD = 16,      /* passes its output's gradient through: that gradient is F32 */
       CDR_OP_VIEW = 32,          /* no kernel: output 0 aliases input 0 */
       CDR_OP_KEEP = 64,          /* its outputs are kept for the backward, never made again (routes, selections) */
       CDR_OP_DETACH = 128,       /* no gradient passes */
       CDR_OP_PIECES = 256,       /* output k is input k, gathered, summed or a part of it */
       CDR_OP_COMPUTES = 512 };   /* a collective that works more than it moves: on the compute stream, so that gathers do not wait for it */

typedef struct cdr_mesh cdr_mesh;
typedef struct {                     /* what `shard` hooks may know beside the mesh; the same on all ranks */
    double dispatch_factor;          /* rows that a rank of an expert group has room for, over tokens x top_k; 0: the worst case */
    bool balanced;                   /* redundant experts: a rank works on its even share of the rows */
    int head;                        /* cdr_head: how a loss reads a vocabulary that is split over ranks */
    bool any_order;                  /* train.reduce: free: sums over sources need not be the tree (set by `shard` from the options' order) */
} cdr_shard_opts;
typedef enum { CDR_HEAD_AUTO, CDR_HEAD_GATHER, CDR_HEAD_PIECES, CDR_HEAD_VOCAB } cdr_head;
typedef struct cdr_op {
    const char *name; uint32_t flags; uint16_t attr_bytes;
    uint32_t rmw;                 /* mask of outputs that are read before they are written (optimizer states, caches) */
    uint32_t optional;            /* mask of outputs that may be absent; an output that infer makes absent is */
    uint32_t add_ok;              /* mask of outputs whose kernels honour the add bit */
    cdr_status (*infer)(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e);
    /* Appends the backward calls. dout[k]: gradient of output k, or CDR_NONE. want[i]: input i needs one; leave it in
     * din[i]: a fresh output (a different one each), or dout itself where the gradient passes through. Dtype and
     * accumulation are the caller's. */
    cdr_status (*grad)(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e);
    /* Appends what stands for call c where ranks of an axis share the work, and leaves its results in out (as many as c has, CDR_NONE
     * where c has none); readers of c's outputs read these. Leaves out[0] = CDR_NONE where c stays as it is. NULL: c stays. */
    cdr_status (*shard)(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, cdr_val *out, cdr_err *e);
    int (*saves)(const void *attr, int n_in, const cdr_type *in, cdr_save *alt, int max);
    cdr_cost (*cost)(const void *attr, int n_in, int n_out, const cdr_type *t);   /* NULL: reads inputs, writes outputs */
    void (*ref)(const cdr_ref_args *a);
    const cdr_kernel *kernels;    /* best first; ends with name NULL */
    /* The layout (cdr_layout) of input i, a weight in rows, that kernel k can read, and without packing it in a product along its rows (the
     * product across them, as in the backward, packs from panels); CDR_ROWS: no wish. t: of all operands.
     * CDR_MAPPED for a packed stack: it reads it where a mapped file has it.
     * Where an operator names a layout for an input, `infer` and the kernel take that input in it. NULL: all kernels read rows. */
    int (*layout)(const cdr_kernel *k, int i, const cdr_type *t);
} cdr_op;
extern const cdr_op *const cdr_ops[];            /* generated from the folders of src/ops; ends with NULL */
/* Kernels of other devices lie in tables beside the operator's own (src/ops/<op>/cuda.c), so that a plan never needs the plug-in. */
typedef struct { const cdr_op *op; const cdr_kernel *kernels; } cdr_device_kernels;
extern const cdr_device_kernels cdr_cuda_kernels[];                     /* generated; ends with op NULL */
const cdr_kernel *cdr_op_kernels(const cdr_op *op, int device);         /* best first; ends with name NULL; never NULL */
int cdr_op_index(const cdr_op *op);              /* CDR_CHECKs that it is in the table */
const cdr_op *cdr_op_by_name(const char *name);  /* NULL: none */
static inline bool cdr_absent(const cdr_type *t) { return t->dtype == CDR_N_DTYPES; }
cdr_cost cdr_op_cost(const cdr_op *op, const void *attr, int n_in, int n_out, const cdr_type *t);

/* ---- test cases of an operator: src/ops/<op>/test.c has a table of them, ending with name NULL -------------- */
typedef struct {
    char kind;                    /* 'n' normal(0, a)  'u' uniform [a, b]  'i' integers a..b  'c' constant a  'f' filled by `make` */
    double a, b;
} cdr_fill;
typedef struct {
    const char *name;             /* "T130 D64 bf16" */
    const cdr_op *op; const void *attr;
    int n_in; cdr_type in[20]; cdr_fill fill[20];
    uint32_t absent;              /* inputs left away */
    uint32_t skip_out;            /* optional outputs left away */
    uint32_t grad;                /* inputs whose gradient is checked (through op->grad) */
    double tol, tol_grad;         /* relative Frobenius distance of a kernel to the double reference; 0: bit-equal */
    void (*make)(double *const *in, const cdr_type *t, cdr_rng_key key);   /* fills the 'f' inputs; NULL: none */
    /* extra property, run after the kernel: NULL = holds, else what is wrong */
    const char *(*property)(const cdr_args *a);
} cdr_case;
extern const cdr_case *const cdr_cases[];        /* generated; one table per operator folder; ends with NULL */

/* ---- the builder -------------------------------------------------------------------------------------------- */
/* world_rank = replica * n_shard + shard,   shard = f * expert + j: rank j of expert group f. Rank j holds the experts
 * [j E / expert, (j + 1) E / expert); where efsdp = n_shard / expert > 1 it stores the f-th of efsdp equal parts of them and gathers
 * them over the ranks with its j. So a sum over an expert group and then over f is the binary tree over the shard axis. */
struct cdr_mesh { int size[CDR_N_AXES]; int rank[CDR_N_AXES]; int world, world_rank; int expert; };   /* expert: width of an expert group; 0 reads as 1 */
static inline int cdr_mesh_expert(const cdr_mesh *m) { return m->expert > 0 ? m->expert : 1; }
static inline int cdr_mesh_efsdp(const cdr_mesh *m) { return m->size[CDR_AXIS_SHARD] / cdr_mesh_expert(m); }

typedef struct { const char *name; int32_t *calls; int64_t n, cap; } cdr_list;     /* a segment under construction: call ids in order */

/* One program under construction. Passes rewrite lists; calls and values are only ever appended. */
struct cdr_graph {
    cdr_pool *pool; cdr_err *err; bool failed;
    cdr_bundle *b;                    /* parameters and shared values grow here too */
    cdr_value *vals; int64_t n_vals, cap_vals;          /* the program's own, numbered from b->n_shared ... see val_base */
    cdr_call *calls; int64_t n_calls, cap_calls;
    cdr_val *operands; int64_t n_operands, cap_operands;
    unsigned char *attrs; int64_t n_attrs, cap_attrs;
    char *strings; int64_t n_strings, cap_strings;
    cdr_list *lists; int n_lists, cur;                  /* cur: list that calls are appended to */
    cdr_turn *turns; int64_t n_turns, cap_turns;
    cdr_metric *metrics; int64_t n_metrics, cap_metrics;
    int16_t layer; uint8_t phase, stream;               /* stamped on new calls */
    uint8_t scope;                                      /* of new outputs: CDR_TURN or CDR_STEP */
    const char *prefix;                                 /* of names: "layers.3.mla" */
    const char *prog_name;
};

/* Value ids: below CDR_LOCAL0 shared (RUN) values, from it on the program's own. The emitted program renumbers:
 * shared first (0..n_shared-1), then its own. */
enum { CDR_LOCAL0 = 1 << 24 };

cdr_graph *cdr_graph_new(cdr_pool *pool, cdr_bundle *b, const char *prog_name, cdr_err *err);
int cdr_graph_list(cdr_graph *g, const char *name);                       /* new segment list; becomes current */
cdr_value *cdr_graph_at(const cdr_graph *g, cdr_val v);                   /* the value's record */
const cdr_type *cdr_graph_type(const cdr_graph *g, cdr_val v);
cdr_val cdr_graph_value(cdr_graph *g, cdr_type t, cdr_scope scope, cdr_class cls, const char *name);   /* RUN goes to the bundle */
cdr_val cdr_graph_view(cdr_graph *g, cdr_val of, int64_t at_bytes, cdr_type t, const char *name);
/* out[k] in: CDR_NEW makes a value, CDR_NONE leaves an optional output away, else an existing value of the same shape.
 * Returns the call's id, or -1 after an error. */
int32_t cdr_graph_call(cdr_graph *g, const cdr_op *op, const void *attr, int n_in, const cdr_val *in, int n_out, cdr_val *out);
cdr_val cdr_graph_call1(cdr_graph *g, const cdr_op *op, const void *attr, int n_in, const cdr_val *in);   /* first output only */
cdr_val cdr_graph_param(cdr_graph *g, const char *fmt, ...) CDR_PRINTF(2, 3);   /* value of a declared parameter, by name */
int32_t cdr_graph_declare(cdr_graph *g, cdr_param p);                     /* new parameter; index in b->params, -1 on error */
int32_t cdr_param_find(const cdr_bundle *b, const char *name);            /* -1: none */
/* Rows [*first, *first + *n) of the whole parameter that a rank of the mesh holds. */
void cdr_param_rows(const cdr_param *q, const cdr_mesh *m, int64_t *first, int64_t *n);
void cdr_graph_enter(cdr_graph *g, int layer, const char *fmt, ...) CDR_PRINTF(3, 4);   /* prefix and layer of what follows */
cdr_status cdr_graph_fail(cdr_graph *g, cdr_status st, const char *fmt, ...) CDR_PRINTF(3, 4);
const void *cdr_graph_attr(const cdr_graph *g, const cdr_call *c);
static inline cdr_val cdr_graph_in(const cdr_graph *g, const cdr_call *c, int i) { return g->operands[c->arg + (uint32_t)i]; }
static inline cdr_val cdr_graph_out(const cdr_graph *g, const cdr_call *c, int k) { return g->operands[c->arg + c->n_in + (uint32_t)k]; }
/* Turns the graph into arrays: calls in list order, values renumbered. turns must be set. */
cdr_status cdr_graph_emit(cdr_graph *g, cdr_program *p);

/* ---- reading an emitted program ------------------------------------------------------------------------------ */
static inline cdr_value *cdr_value_at(const cdr_bundle *b, const cdr_program *p, cdr_val v)
{
    return v < b->n_shared ? &b->shared[v] : &p->vals[v - b->n_shared];
}
cdr_val cdr_value_root(const cdr_bundle *b, const cdr_program *p, cdr_val v, int64_t *at_bytes);   /* follows alias */
const char *cdr_value_name(const cdr_bundle *b, const cdr_program *p, cdr_val v);
cdr_val cdr_program_find(const cdr_bundle *b, const cdr_program *p, const char *name);             /* CDR_NONE */
/* Does call c read / write operand i (0 .. n_in + n_out - 1)? From the op's rmw mask and the add bits. */
bool cdr_call_reads(const cdr_program *p, const cdr_call *c, int i);
bool cdr_call_writes(const cdr_program *p, const cdr_call *c, int i);
/* Types of c's operands, absent ones as dtype CDR_N_DTYPES. */
void cdr_call_types(const cdr_bundle *b, const cdr_program *p, const cdr_call *c, cdr_type t[CDR_MAX_OPERANDS]);
void cdr_program_print(cdr_text *out, const cdr_bundle *b, const cdr_program *p);

#ifdef __cplusplus
}
#endif
#endif
