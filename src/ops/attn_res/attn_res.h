/* attn_res.h: the mixer of Block Attention Residuals: each token's hidden state is a softmax-weighted sum of its earlier
 * block outputs (the bank) and of the running sum (the prefix), with one learned query for the whole layer.
 *
 *   cdr_val rows[] = { bank_0_TD, bank_1_TD, prefix_TD };      // bank first, prefix last
 *   cdr_val h_TD = cdr_attn_res(g, rows, 3, proj_1D, norm_D, 1e-5f);
 *
 * A zero query gives the plain mean; one row is handed through.
 */
#ifndef CDR_OP_ATTN_RES_H
#define CDR_OP_ATTN_RES_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_ATTN_RES_MAX = 16 };          /* rows that one call mixes */
typedef struct { int32_t n; float eps; } cdr_attn_res_attr;

/* in: V_0_TD .. V_n-1_TD, proj_1D (the query), norm_D (the keys' gain).  out: h_TD (dtype of the last row value) */
extern const cdr_op cdr_op_attn_res;
/* in: dh_TD, V_0_TD .. V_n-1_TD, proj_1D, norm_D.  out: dproj_1D F32, dnorm_D F32, dV_i_TD for each i (add ok); each optional */
extern const cdr_op cdr_op_attn_res_bwd;

cdr_val cdr_attn_res(cdr_graph *g, const cdr_val *rows, int n, cdr_val proj_1D, cdr_val norm_D, float eps);

/* ---- inside of the folder: references and kernels, for the tables in op.c -------------------------------------- */
enum { CDR__ARB_DPROJ, CDR__ARB_DNORM, CDR__ARB_DV };        /* outputs of the backward */
void cdr__attn_res_ref(const cdr_ref_args *a);
void cdr__attn_res_bwd_ref(const cdr_ref_args *a);
size_t cdr__attn_res_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attn_res_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
/* Shared by the kernels (cpu.c). up: D and what is read beyond it; the query takes 3 up. */
int64_t cdr__attn_res_block(int64_t T);
void cdr__attn_res_query(const cdr_args *a, int first, float *query_D, int64_t up);
void cdr__attn_res_params(const cdr_args *a, const float *sum_ND, int64_t n_blocks, float *query_D, int64_t up);
cdr_status cdr__attn_res_fwd_base(const cdr_args *a);
cdr_status cdr__attn_res_bwd_base(const cdr_args *a);
cdr_status cdr__attn_res_fwd_avx2(const cdr_args *a);
cdr_status cdr__attn_res_bwd_avx2(const cdr_args *a);
cdr_status cdr__attn_res_fwd_avx512(const cdr_args *a);
cdr_status cdr__attn_res_bwd_avx512(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
