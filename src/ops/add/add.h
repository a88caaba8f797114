/* add.h: elementwise sum of two values of one shape.
 *
 *   cdr_val x_TD = cdr_add(g, x_TD, y_TD);                 // residual connection; dtype of the first
 */
#ifndef CDR_OP_ADD_H
#define CDR_OP_ADD_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* in: a, b.  out: y (dtype of a). No attribute. The gradient passes through, so it is F32. */
extern const cdr_op cdr_op_add;

cdr_val cdr_add(cdr_graph *g, cdr_val a, cdr_val b);

void cdr__add_ref(const cdr_ref_args *a);
cdr_status cdr__add_base(const cdr_args *a);
cdr_status cdr__add_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
