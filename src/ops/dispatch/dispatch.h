/* dispatch.h: which rows an expert works on: the (token, slot) pairs of a router, sorted by expert.
 *
 *   cdr_val perm_R, offs_E1, pos_TA;
 *   cdr_dispatch(g, idx_TA, 32, &perm_R, &offs_E1, &pos_TA);        // A experts a token, R = T A
 *
 * Routed row r is pair perm[r] = t A + slot; rows offs[e] .. offs[e + 1] - 1 are expert e's, in ascending t. pos is the way back. */
#ifndef CDR_OP_DISPATCH_H
#define CDR_OP_DISPATCH_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int32_t experts; } cdr_dispatch_attr;
/* in: idx_TA I32 (an expert, or -1: no row).  out: perm_R I32 (-1 from the last row on), offs_E1 I32 [E + 1], pos_TA I32 (-1: none) */
extern const cdr_op cdr_op_dispatch;

void cdr_dispatch(cdr_graph *g, cdr_val idx_TA, int experts, cdr_val *perm_R, cdr_val *offs_E1, cdr_val *pos_TA);

/* ---- inside of the folder --------------------------------------------------------------------------------------- */
void cdr__dispatch_ref(const cdr_ref_args *a);
size_t cdr__dispatch_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__dispatch_base(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
