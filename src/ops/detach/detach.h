/* detach: the same bytes, through which no gradient flows.
 *
 *   cdr_val x_TD = cdr_detach(g, h_TD);       // what is made of x_TD trains its own weights, and nothing before it
 */
#ifndef CDR_OPS_DETACH_H
#define CDR_OPS_DETACH_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* in: x.  out: a view of x.  No attribute, no kernel. */
extern const cdr_op cdr_op_detach;
cdr_val cdr_detach(cdr_graph *g, cdr_val x);

#ifdef __cplusplus
}
#endif
#endif
