/* aux_loss.h: the auxiliary loss that keeps the load of experts even, one term for each packed row.
 *
 *   cdr_aux_loss_attr a = { .top_k = 4, .row = 2048, .coef = 1e-3f };
 *   cdr_val aux_1 = cdr_aux_loss(g, logits_TE, idx_Tk, start_T, pos_T, &a);          // F64: a sum over rows, each weighted with its tokens
 *
 * Divided by the step's tokens that are not idle (the scale of its gradient) it is the token-weighted mean over packed rows, however the rows
 * lie in micro-batches and ranks.
 */
#ifndef CDR_OP_AUX_LOSS_H
#define CDR_OP_AUX_LOSS_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t softmax, top_k;          /* as the router's */
    int64_t row;                     /* tokens of a packed row; divides T */
    float coef; int32_t unused;
} cdr_aux_loss_attr;

/* in: logits_TE F32, idx_Tk, start_T, pos_T I32.  out: aux_1 F64; the gradient of aux_1 is its scale */
extern const cdr_op cdr_op_aux_loss;
/* in: scale_1 F32, logits_TE, idx_Tk, start_T, pos_T.  out: dlogits_TE F32 (add ok) */
extern const cdr_op cdr_op_aux_loss_bwd;

cdr_val cdr_aux_loss(cdr_graph *g, cdr_val logits_TE, cdr_val idx_Tk, cdr_val start_T, cdr_val pos_T, const cdr_aux_loss_attr *a);

/* ---- inside of the folder -------------------------------------------------------------------------------------- */
enum { CDR__AUX_LOGITS, CDR__AUX_IDX, CDR__AUX_START, CDR__AUX_POS, CDR__AUX_SUM, CDR__AUX_N_IN = 4 };
typedef struct {                     /* what is done to a token; one table per instruction set, the same bits in all (rows.inc) */
    float (*value)(const float *x_E, const float *f_E, int64_t E, bool softmax, float *s_E);
    void (*backward)(const float *x_E, const float *f_E, int64_t E, bool softmax, float scale, float *s_E, bool add, float *dx_E);
} cdr__aux_rows;
void cdr__aux_loss_ref(const cdr_ref_args *a);
void cdr__aux_loss_bwd_ref(const cdr_ref_args *a);
size_t cdr__aux_loss_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__aux_loss_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__aux_loss_fwd(const cdr_args *a, const cdr__aux_rows *rows);
cdr_status cdr__aux_loss_bwd(const cdr_args *a, const cdr__aux_rows *rows);
cdr_status cdr__aux_loss_fwd_base(const cdr_args *a);
cdr_status cdr__aux_loss_bwd_base(const cdr_args *a);
cdr_status cdr__aux_loss_fwd_avx2(const cdr_args *a);
cdr_status cdr__aux_loss_bwd_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
