/* copy.h: a value in another number format, or added to another value.
 *
 *   cdr_val x32_TD = cdr_copy(g, x_TD, CDR_F32);           // a cast
 *   cdr_graph_call(g, &cdr_op_copy, &attr, 1, &dx, 1, &sum) with add bit 0: sum += dx
 */
#ifndef CDR_OP_COPY_H
#define CDR_OP_COPY_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int32_t dtype; } cdr_copy_attr;      /* of the output */

/* in: x.  out: y (add ok). */
extern const cdr_op cdr_op_copy;

cdr_val cdr_copy(cdr_graph *g, cdr_val x, int dtype);

void cdr__copy_ref(const cdr_ref_args *a);
cdr_status cdr__copy_base(const cdr_args *a);
cdr_status cdr__copy_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
