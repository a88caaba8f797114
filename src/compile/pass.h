/* pass.h: what the passes share while a bundle is under construction. Internal to src/compile.
 *
 *   static cdr_status my_pass(cdr_pass *p) { ... return CDR_OK; }     // one line in the table of compile.c
 */
#ifndef CDR_PASS_H
#define CDR_PASS_H

#include "compile/compile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const cdr_compile_opts *o; const cdr_builder *m;
    cdr_pool *pool; cdr_bundle *b; cdr_err *err;
    cdr_graph *g[CDR_N_PROGS];        /* NULL: that program is not built; PROBE is made of STEP when emitted */
    cdr_io io[CDR_N_PROGS];
    cdr_val ok_1, dense_1, micro_1, hyper_8, count_8, total_8, loss_acc_1, extra_acc_n;
    int recompute_layers;             /* policy: the first so many layers keep only their inputs */
    int n_shard, shard, n_replicate;
} cdr_pass;

enum { CDR_BIG_ELEMS = 65536 };       /* parameters with fewer elements stay whole on every rank (spec/spine.md, section 5) */
/* Big parameters are those that FSDP splits, on any number of shards: the norm adds them up in one table. */
bool cdr__param_big(const cdr_param *p);
/* Stacks of experts, of any size: split by whole matrices, summed in a table of their own. */
bool cdr__param_stack(const cdr_param *p);

/* list names of the step program */
#define CDR_L_BEGIN "begin"
#define CDR_L_MICRO "micro"
#define CDR_L_BACKWARD "backward"
#define CDR_L_FINISH "finish"
cdr_list *cdr__list(cdr_graph *g, const char *name);      /* NULL: none */
void cdr__list_set_current(cdr_graph *g, const char *name);
void cdr__list_push(cdr_graph *g, cdr_list *l, int32_t call);
void cdr__replace_operand(cdr_graph *g, cdr_list *l, cdr_val from, cdr_val to);   /* in the calls of one list */
const cdr_op *cdr__op(const cdr_call *c);
cdr_status cdr__enter_call(cdr_graph *g, const cdr_call *c);      /* names and layer of what follows: those of c */
cdr_val cdr__root(const cdr_graph *g, cdr_val v);         /* follows views; CDR_NONE stays */
void cdr__drop_unread(cdr_graph *g);                      /* optional outputs that nobody reads are left away */

cdr_status cdr__build(cdr_pass *p);
cdr_status cdr__adapt(cdr_pass *p);
cdr_status cdr__adapters(cdr_pass *p);     /* the first part of adapt: adapters, and the calls that read them */
cdr_status cdr__shard(cdr_pass *p);
cdr_status cdr__differentiate(cdr_pass *p);
cdr_status cdr__update(cdr_pass *p);
cdr_status cdr__select(cdr_pass *p);
void cdr__mapped(cdr_pass *p);             /* the first part of shard: which stacks stay in their files (cdr_param.mapped), and why others do not */
void cdr__layouts(cdr_pass *p);            /* the second part of select: how weights lie in memory */
void cdr__call_types(const cdr_graph *g, const cdr_call *c, cdr_type t[CDR_MAX_OPERANDS]);       /* absent operands: dtype CDR_N_DTYPES */
cdr_status cdr__policy(cdr_pass *p);
cdr_status cdr__schedule(cdr_pass *p);     /* turns; emits the programs; waits */
cdr_status cdr__place(cdr_pass *p);

/* Byte ranges, each taken for an interval of positions (shelf.c). put: takes the lowest bytes that are free during all of [from, to]. */
typedef struct cdr__shelf cdr__shelf;
cdr__shelf *cdr__shelf_new(int64_t n_pos);
int64_t cdr__shelf_put(cdr__shelf *s, int32_t from, int32_t to, int64_t bytes);
void cdr__shelf_free(cdr__shelf *s);

/* Vector clocks. A call's clock says, per stream, the position (in list order, whole program) of the last call of that
 * stream that is over before it starts; -1: none. All streams join at the start of each turn. */
typedef struct { int32_t at[CDR_N_STREAMS]; } cdr_clock;
cdr_clock *cdr__clocks(cdr_pool *pool, const cdr_program *p);   /* one per call, joins at segment starts */
/* The turns that stand for all: of equal turns in a row only the first two (nothing of a turn outlives it then). */
int cdr__distinct_turns(const cdr_program *p, cdr_turn *out, int max);

#ifdef __cplusplus
}
#endif
#endif
