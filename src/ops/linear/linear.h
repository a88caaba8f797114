/* linear.h: the matrix product with a weight, y_TN = x_TK w_NK^T, and its two gradients.
 *
 *   cdr_val gate_TF = cdr_linear(g, x_TD, w_FD);            // dtype of x
 *   cdr_val logits_TW = cdr_linear_f32(g, h_TD, w_WD);      // F32, whatever x is
 */
#ifndef CDR_OPS_LINEAR_H
#define CDR_OPS_LINEAR_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int32_t out_dtype; } cdr_linear_attr;      /* of y; -1: that of x. linear only: the gradients have no attribute */

extern const cdr_op cdr_op_linear;          /* (x_TK, w_NK) -> y_TN */
extern const cdr_op cdr_op_linear_dx;       /* (dy_TN, w_NK) -> dx_TK; add */
extern const cdr_op cdr_op_linear_dw;       /* (dy_TN, x_TK) -> dw_NK F32; add */

cdr_val cdr_linear(cdr_graph *g, cdr_val x_TK, cdr_val w_NK);
cdr_val cdr_linear_f32(cdr_graph *g, cdr_val x_TK, cdr_val w_NK);

/* inside the folder */
void cdr__linear_ref(const cdr_ref_args *a);
void cdr__linear_dx_ref(const cdr_ref_args *a);
void cdr__linear_dw_ref(const cdr_ref_args *a);
int cdr__linear_layout(const cdr_kernel *k, int i, const cdr_type *t);      /* cdr_op.layout of linear and linear_dx: panels of w */
extern const cdr_kernel cdr__linear_kernels[], cdr__linear_dx_kernels[], cdr__linear_dw_kernels[];

#ifdef __cplusplus
}
#endif
#endif
