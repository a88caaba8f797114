/* rowwise.h: what the records of operators on rows share: checks of their operands, what a call costs, the gradient of an operator of two
 * operands, and the loops over rows of its CPU kernels.
 *
 *   CDR_TRY(cdr__rows_alike("gate", n_in, 2, in, e));
 *   return cdr__cost_of(19.0 * (double)cdr_type_elems(&t[0]), n_in, n_out, t);
 *   cdr_status cdr__gate_fwd_base(const cdr_args *a) { return cdr__rows_forward(a, 2, forward); }
 */
#ifndef CDR_OPS_ROWWISE_H
#define CDR_OPS_ROWWISE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* want_in operands, rows of float formats, of one shape */
cdr_status cdr__rows_alike(const char *op, int n_in, int want_in, const cdr_type *in, cdr_err *e);
/* x: rows; w: a gain for each of their columns */
cdr_status cdr__rows_and_gain(const char *op, const cdr_type *x, const cdr_type *w, cdr_err *e);
/* Of dy, x0, x1: gradients like x0 and x1 */
cdr_status cdr__rows_alike_bwd(const char *op, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e);
/* din[0], din[1] from one call of bwd on dout[0] and both operands, with the attribute of c */
cdr_status cdr__grad_of_two(cdr_graph *g, const cdr_call *c, const cdr_op *bwd, const cdr_val *dout, const bool *want, cdr_val *din);
/* Every operand that is there is read once, every output that is there written once. */
cdr_cost cdr__cost_of(double flop, int n_in, int n_out, const cdr_type *t);

/* Rows of operand 0, one by one, on the lane's threads. forward: stream says to write operand i_out past the caches. */
typedef void (*cdr__row_forward)(const cdr_args *a, int64_t t, bool stream);
typedef void (*cdr__row_backward)(const cdr_args *a, int64_t t);
cdr_status cdr__rows_forward(const cdr_args *a, int i_out, cdr__row_forward f);
cdr_status cdr__rows_backward(const cdr_args *a, cdr__row_backward f);

#ifdef __cplusplus
}
#endif
#endif
