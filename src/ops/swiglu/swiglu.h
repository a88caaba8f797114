/* swiglu.h: the gated activation of the MLP, silu(gate) * up.
 *
 *   cdr_val y_TF = cdr_swiglu(g, gate_TF, up_TF);
 */
#ifndef CDR_OP_SWIGLU_H
#define CDR_OP_SWIGLU_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* in: gate_TF, up_TF.  out: y_TF (dtype of gate).  No attribute. */
extern const cdr_op cdr_op_swiglu;
/* in: dy_TF, gate_TF, up_TF.  out: dgate_TF, dup_TF */
extern const cdr_op cdr_op_swiglu_bwd;

cdr_val cdr_swiglu(cdr_graph *g, cdr_val gate_TF, cdr_val up_TF);

/* ---- inside of the folder: references and kernels, for the tables in op.c -------------------------------------- */
void cdr__swiglu_ref(const cdr_ref_args *a);
void cdr__swiglu_bwd_ref(const cdr_ref_args *a);
cdr_status cdr__swiglu_fwd_base(const cdr_args *a);
cdr_status cdr__swiglu_bwd_base(const cdr_args *a);
cdr_status cdr__swiglu_fwd_avx2(const cdr_args *a);
cdr_status cdr__swiglu_bwd_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
