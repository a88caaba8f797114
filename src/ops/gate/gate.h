/* gate.h: the output gate of attention: o * sigmoid(logit).
 *
 *   cdr_val y_TP = cdr_gate(g, o_TP, logit_TP);
 */
#ifndef CDR_OP_GATE_H
#define CDR_OP_GATE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* in: o_TP (may be F32 beside narrower logits), logit_TP.  out: y_TP (dtype of logit).  No attribute. */
extern const cdr_op cdr_op_gate;
/* in: dy_TP, o_TP, logit_TP.  out: do_TP (dtype of o), dlogit_TP (dtype of logit); both optional, add ok */
extern const cdr_op cdr_op_gate_bwd;

cdr_val cdr_gate(cdr_graph *g, cdr_val o_TP, cdr_val logit_TP);

/* ---- inside of the folder: references and kernels, for the tables in op.c -------------------------------------- */
void cdr__gate_ref(const cdr_ref_args *a);
void cdr__gate_bwd_ref(const cdr_ref_args *a);
cdr_status cdr__gate_fwd_base(const cdr_args *a);
cdr_status cdr__gate_bwd_base(const cdr_args *a);
cdr_status cdr__gate_fwd_avx2(const cdr_args *a);
cdr_status cdr__gate_bwd_avx2(const cdr_args *a);
cdr_status cdr__gate_fwd_avx512(const cdr_args *a);
cdr_status cdr__gate_bwd_avx512(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
