/* route.h: the weights of routes that are given, not chosen: for comparing a model with another implementation layer by layer, where a score
 * that is a rounding away would send a token elsewhere. ops/router has the equations.
 *
 *   cdr_val idx_Tk = ..;                                   // an input of the program: expert ids, in any order
 *   cdr_route(g, logits_TE, idx_Tk, start_T, pos_T, &a, &sorted_Tk, &p_Tk);
 */
#ifndef CDR_OP_ROUTE_H
#define CDR_OP_ROUTE_H

#include "ops/router/router.h"

#ifdef __cplusplus
extern "C" {
#endif

/* in: logits_TE F32, given_Tk I32, start_T, pos_T I32.  out: idx_Tk I32, ascending within a token; p_Tk F32. Idle rows: ids -1, weights 0. No gradient. */
extern const cdr_op cdr_op_route;

void cdr_route(cdr_graph *g, cdr_val logits_TE, cdr_val given_Tk, cdr_val start_T, cdr_val pos_T, const cdr_router_attr *a, cdr_val *idx_Tk, cdr_val *p_Tk);

void cdr__route_ref(const cdr_ref_args *a);
cdr_status cdr__route_base(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
