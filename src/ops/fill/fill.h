/* fill: one number in every element: counters at the beginning of a step.
 *
 *   cdr_fill_value(g, load_E, 0);             // an existing value
 */
#ifndef CDR_OPS_FILL_H
#define CDR_OPS_FILL_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { cdr_type t; double x; } cdr_fill_attr;

/* in: none.  out: y of type t. */
extern const cdr_op cdr_op_fill;
void cdr_fill_value(cdr_graph *g, cdr_val y, double x);

#ifdef __cplusplus
}
#endif
#endif
