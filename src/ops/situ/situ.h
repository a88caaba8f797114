/* situ.h: SiTU-GLU, the gated activation of Kimi K3: b1 tanh(gate / b1) sigmoid(gate) * b2 tanh(up / b2).
 *
 *   cdr_val y_TF = cdr_situ(g, gate_TF, up_TF, 4.0f, 25.0f);
 */
#ifndef CDR_OP_SITU_H
#define CDR_OP_SITU_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { float beta, linear_beta; } cdr_situ_attr;     /* b1, b2: both above 0 */
/* in: gate_TF, up_TF.  out: y_TF (dtype of gate) */
extern const cdr_op cdr_op_situ;
/* in: dy_TF, gate_TF, up_TF.  out: dgate_TF, dup_TF; either may be absent */
extern const cdr_op cdr_op_situ_bwd;

cdr_val cdr_situ(cdr_graph *g, cdr_val gate_TF, cdr_val up_TF, float beta, float linear_beta);

/* ---- inside of ops/: what is done to a row, one table per instruction set, the same bits in all (rows.inc). The experts use the ones
 * for rows of F32. */
typedef struct {
    void (*forward)(const float *gate_F, float *up_F, int64_t F, const cdr_situ_attr *b);                   /* y into up's place */
    void (*backward)(const float *dy_F, float *gate_F, float *up_F, int64_t F, const cdr_situ_attr *b);     /* dgate into gate's, dup into up's */
    void (*forward_row)(const cdr_args *a, int64_t t, bool stream);                                         /* stream: y past the caches */
    void (*backward_row)(const cdr_args *a, int64_t t);
} cdr__situ_rows;
extern const cdr__situ_rows cdr__situ_rows_base, cdr__situ_rows_avx2;

/* references and kernels, for the tables in op.c */
void cdr__situ_ref(const cdr_ref_args *a);
void cdr__situ_bwd_ref(const cdr_ref_args *a);
cdr_status cdr__situ_fwd_base(const cdr_args *a);
cdr_status cdr__situ_bwd_base(const cdr_args *a);
cdr_status cdr__situ_fwd_avx2(const cdr_args *a);
cdr_status cdr__situ_bwd_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
