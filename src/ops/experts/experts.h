/* experts.h: the gated MLPs of a mixture, on rows sorted by expert, and the weighted sum of each token's experts.
 *
 *   cdr_experts_attr a = { .top_k = 4, .capacity = 0 };                                   // silu(gate) * up; .situ: SiTU-GLU
 *   cdr_dispatch(g, idx_TA, E, &perm, &offs, &pos);
 *   cdr_val u_TL = cdr_experts(g, x_TL, p_TA, perm, offs, pos, w1_EIL, w3_EIL, w2_ELI, CDR_NONE, NULL, &a, false);
 */
#ifndef CDR_OP_EXPERTS_H
#define CDR_OP_EXPERTS_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t top_k, situ;         /* A; 0: silu(gate) * up, 1: SiTU-GLU with beta and linear_beta */
    float beta, linear_beta;
    int64_t capacity;            /* routed rows worked on at a time, 0: all of them. Bounds scratch; changes no bit */
    float scale[3];              /* of the adapters of w1, w3, w2 */
    int32_t zero;                /* fills the struct */
} cdr_experts_attr;
_Static_assert(sizeof(cdr_experts_attr) == 40, "attributes are compared by bytes: no padding");

/* in: x_TL (F32 or BF16), p_TA F32, perm_R, offs_E1, pos_TA (dispatch.h; R = T A), w1_EIL, w3_EIL, w2_ELI (F32 or BF16),
 *     table_E3 I64, may be absent: byte offset of expert e's matrices from the three base pointers, whose rows are dense then,
 *     adapters A1_EKL, B1_EIK, A3_EKL, B3_EIK, A2_EKI, B2_ELK (F32 or BF16; in pairs, each pair may be absent and has a rank K of its own)
 * out: u_TL (dtype of x), gu_R2I (dtype of x), may be absent: gate | up in dispatch order, for the backward */
extern const cdr_op cdr_op_experts;
/* in: du_TL, then the forward's, then gu, which may be absent: gate and up are made again then
 * out: dx_TL, dp_TA F32, dw1_EIL, dw3_EIL, dw2_ELI F32, in order of experts whatever the table says, gradients of the adapters F32;
 *      any may be absent */
extern const cdr_op cdr_op_experts_bwd;

typedef struct { cdr_val a, b; } cdr_experts_adapter;        /* CDR_NONE both: none */
/* adapters: of w1, w3, w2; NULL: none */
cdr_val cdr_experts(cdr_graph *g, cdr_val x, cdr_val p, cdr_val perm, cdr_val offs, cdr_val pos, cdr_val w1, cdr_val w3, cdr_val w2,
                    cdr_val table, const cdr_experts_adapter adapters[3], const cdr_experts_attr *a, bool keep_gate_up);

/* ---- inside of the folder ------------------------------------------------------------------------------------------ */
enum { CDR__EX_X, CDR__EX_P, CDR__EX_PERM, CDR__EX_OFFS, CDR__EX_POS, CDR__EX_W1, CDR__EX_W3, CDR__EX_W2, CDR__EX_TABLE,
       CDR__EX_A1, CDR__EX_B1, CDR__EX_A3, CDR__EX_B3, CDR__EX_A2, CDR__EX_B2, CDR__EX_N };
/* of the backward: du, then the forward's inputs, then gu */
enum { CDR__EXB_DU, CDR__EXB_X, CDR__EXB_GU = CDR__EXB_X + CDR__EX_N, CDR__EXB_N };
enum { CDR__EXB_DX, CDR__EXB_DP, CDR__EXB_DW1, CDR__EXB_DW3, CDR__EXB_DW2,
       CDR__EXB_DA1, CDR__EXB_DB1, CDR__EXB_DA3, CDR__EXB_DB3, CDR__EXB_DA2, CDR__EXB_DB2, CDR__EXB_N_OUT };

void cdr__experts_ref(const cdr_ref_args *a);
void cdr__experts_bwd_ref(const cdr_ref_args *a);
size_t cdr__experts_work_base(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_work_avx2(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_work_avx512(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_work_base(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_work_avx2(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_work_avx512(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__experts_fwd_base(const cdr_args *a);
cdr_status cdr__experts_fwd_avx2(const cdr_args *a);
cdr_status cdr__experts_fwd_avx512(const cdr_args *a);
cdr_status cdr__experts_bwd_base(const cdr_args *a);
cdr_status cdr__experts_bwd_avx2(const cdr_args *a);
cdr_status cdr__experts_bwd_avx512(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
