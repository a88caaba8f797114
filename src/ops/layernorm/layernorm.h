/* layernorm.h: normalisation of rows by mean and variance, with a gain and, if given, a bias, over the last axis.
 *
 *   cdr_val y_TD = cdr_layernorm(g, x_TD, w_D, b_D, 1e-5f);     // y = w (x - mean) / sqrt(var + eps) + b;  b_D: CDR_NONE, no bias
 */
#ifndef CDR_OPS_LAYERNORM_H
#define CDR_OPS_LAYERNORM_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { float eps; } cdr_layernorm_attr;

extern const cdr_op cdr_op_layernorm;        /* x_TD, w_D, b_D or absent -> y_TD (dtype of x) */
extern const cdr_op cdr_op_layernorm_bwd;    /* dy_TD, x_TD, w_D -> [dx_TD (add ok)], [dw_D F32], [db_D F32] */

cdr_val cdr_layernorm(cdr_graph *g, cdr_val x_TD, cdr_val w_D, cdr_val b_D, float eps);

/* ---- inside of the folder ------------------------------------------------------------------------------------- */
enum { CDR__LN_X, CDR__LN_W, CDR__LN_B, CDR__LN_Y };
enum { CDR__LNB_DY, CDR__LNB_X, CDR__LNB_W, CDR__LNB_DX, CDR__LNB_DW, CDR__LNB_DB };
void cdr__layernorm_ref(const cdr_ref_args *a);
void cdr__layernorm_bwd_ref(const cdr_ref_args *a);
size_t cdr__layernorm_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__layernorm_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__layernorm_base(const cdr_args *a);
cdr_status cdr__layernorm_bwd_base(const cdr_args *a);
cdr_status cdr__layernorm_avx2(const cdr_args *a);
cdr_status cdr__layernorm_bwd_avx2(const cdr_args *a);
int64_t cdr__layernorm_block_rows(int64_t T);      /* rows that are summed before the blocks are */

#ifdef __cplusplus
}
#endif
#endif
