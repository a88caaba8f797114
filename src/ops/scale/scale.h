/* scale.h: a value times a constant.
 *
 *   cdr_val w_TJ = cdr_scale(g, w_TJ, 0.125f);             // the weights of sparse attention's indexer
 */
#ifndef CDR_OPS_SCALE_H
#define CDR_OPS_SCALE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { float factor; } cdr_scale_attr;

/* in: x.  out: y (shape and dtype of x; add ok). Its gradient is itself. */
extern const cdr_op cdr_op_scale;

cdr_val cdr_scale(cdr_graph *g, cdr_val x, float factor);

void cdr__scale_ref(const cdr_ref_args *a);
cdr_status cdr__scale_base(const cdr_args *a);
cdr_status cdr__scale_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
