/* adamw.h: one AdamW update of one parameter's shard, in place.
 *
 *   cdr_adamw(g, grad, clip_1, hyper_8, param_master, m, v, weight, &attr);
 */
#ifndef CDR_OP_ADAMW_H
#define CDR_OP_ADAMW_H
#include "graph/op.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct { float beta1, beta2, eps, weight_decay, lr_scale; } cdr_adamw_attr;
extern const cdr_op cdr_op_adamw;
/* master, m, v F32 (updated in place); weight: the same in the compute dtype, CDR_NONE where the master is what kernels read.
 * Returns the call's id, so that it can be predicated. */
int32_t cdr_adamw(cdr_graph *g, cdr_val grad, cdr_val clip_1, cdr_val hyper_8, cdr_val master, cdr_val m, cdr_val v, cdr_val weight,
                  const cdr_adamw_attr *a);

/* ---- inside of the folder: kernels, for the table in op.c ---------------------------------------------------- */
typedef struct {                     /* a block of elements: inputs, outputs (which may be inputs), the rounded copy or NULL */
    const float *grad, *hyper, *w0, *m0, *v0;
    float *w, *m, *v, clip;
    void *weight;
    int dtype;
} cdr__adamw_at;
typedef void cdr__adamw_block(const cdr_adamw_attr *t, int64_t n, const cdr__adamw_at *at);
cdr_status cdr__adamw_run(const cdr_args *a, cdr__adamw_block *one);
cdr_status cdr__adamw_base(const cdr_args *a);
cdr_status cdr__adamw_avx2(const cdr_args *a);
#ifdef __cplusplus
}
#endif
#endif
