/* kda.h: Kimi delta attention of one layer, from the convolutions' outputs to what the output projection takes.
 *
 *   cdr_kda_attr attr = { .heads = 2, .dim = 64, .chunk = 64, .lower_bound = -5, .norm_eps = 1e-5f };
 *   cdr_val y_TP = cdr_kda(g, (cdr_val[11]){ q, k, v, z, beta, gate, A_log, dt_bias, o_norm, start, pos }, CDR_NONE, &attr);
 *
 * P = heads * dim. Full-rank and low-rank gates are the same operand gate_TP. start_T, pos_T: row t is the (pos - start)-th
 * of its document; start > pos: an idle row, whose output is zero. In generate, `state` carries S from turn to turn.
 */
#ifndef CDR_OP_KDA_H
#define CDR_OP_KDA_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t heads, dim;              /* dim: of keys and of values, a multiple of 16 */
    int32_t chunk;                   /* rows between two states that the backward keeps: 16, 32, 64; 0: 64. Memory against work: no bit depends on it */
    int32_t softplus;                /* decay g = -e^A softplus(u) instead of lower_bound * s(e^A u) */
    float lower_bound, norm_eps;     /* lower_bound: in [-5, 0), not read with softplus */
} cdr_kda_attr;

/* in: q_TP, k_TP, v_TP (before the L2 norm), z_TP (decay logits), beta_TH (logits), gate_TP (logits), A_log_H, dt_bias_P,
 *     o_norm_d, start_T I32, pos_T I32.
 * out: y_TP (dtype of q); state F32 [heads, dim of v, dim of k] (optional, read and rewritten) */
extern const cdr_op cdr_op_kda;
/* in: dy_TP, then kda's inputs.  out: dq, dk, dv, dz, dbeta, dgate (add ok), dA_log, ddt_bias, do_norm F32 */
extern const cdr_op cdr_op_kda_bwd;

/* state: an existing value, or CDR_NONE */
cdr_val cdr_kda(cdr_graph *g, const cdr_val in[11], cdr_val state, const cdr_kda_attr *a);

/* ---- inside of the folder: references and kernels, for the tables in op.c -------------------------------------- */
enum { CDR__KDA_Q, CDR__KDA_K, CDR__KDA_V, CDR__KDA_Z, CDR__KDA_BETA, CDR__KDA_GATE, CDR__KDA_A_LOG, CDR__KDA_DT_BIAS, CDR__KDA_O_NORM,
       CDR__KDA_START, CDR__KDA_POS, CDR__KDA_N_IN };
enum { CDR__KDA_ROWS = 16 };         /* C of (5) to (8) */
static inline int32_t cdr__kda_chunk(const cdr_kda_attr *a) { return a->chunk ? a->chunk : 64; }
void cdr__kda_ref(const cdr_ref_args *a);
void cdr__kda_bwd_ref(const cdr_ref_args *a);
#define CDR__KDA_KERNEL(isa) \
    cdr_status cdr__kda_fwd_##isa(const cdr_args *a); \
    cdr_status cdr__kda_bwd_##isa(const cdr_args *a)
CDR__KDA_KERNEL(base);
CDR__KDA_KERNEL(avx2);
CDR__KDA_KERNEL(avx512);
size_t cdr__kda_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__kda_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);

#ifdef __cplusplus
}
#endif
#endif
