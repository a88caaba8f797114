/* router.h: which experts a token is sent to, and with what weights.
 *
 *   cdr_router_attr a = { .top_k = 16, .renormalize = 1, .scale = 1.0f };
 *   cdr_router(g, logits_TE, bias_E, start_T, pos_T, &a, &idx_Tk, &p_Tk, &alpha_T);
 *
 * idx_Tk: expert ids, ascending within a token. p_Tk: their weights. A row with start > pos is idle: ids -1, weights 0.
 * bias_E (CDR_NONE: none) decides the selection and never a weight.
 */
#ifndef CDR_OP_ROUTER_H
#define CDR_OP_ROUTER_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_ROUTER_MAX_GROUPS = 64 };

typedef struct {
    int32_t top_k;                   /* experts of a token */
    int32_t softmax;                 /* scores: 0 sigmoid, 1 softmax over all experts */
    int32_t groups, top_groups;      /* experts come from the best top_groups of `groups` equal groups; groups 0 or 1: from all */
    int32_t renormalize;             /* weights of a token add up to scale */
    float scale;
} cdr_router_attr;

/* in: logits_TE F32, bias_E F32|absent, start_T, pos_T I32.  out: idx_Tk I32, p_Tk F32, alpha_T F32|absent: the (k+1)-th biased score
 * of the experts that might have been chosen (the k-th where there are no more), 0 in idle rows. */
extern const cdr_op cdr_op_router;
/* in: dp_Tk F32, logits_TE, idx_Tk, p_Tk, start_T, pos_T.  out: dlogits_TE F32 (add ok) */
extern const cdr_op cdr_op_router_bwd;

/* alpha_T NULL or CDR_NONE in *alpha_T: left away; else CDR_NEW or a value in it. idx_Tk, p_Tk: results. */
void cdr_router(cdr_graph *g, cdr_val logits_TE, cdr_val bias_E, cdr_val start_T, cdr_val pos_T, const cdr_router_attr *a,
                cdr_val *idx_Tk, cdr_val *p_Tk, cdr_val *alpha_T);

/* ---- inside of the folder -------------------------------------------------------------------------------------- */
enum { CDR__ROUTER_LOGITS, CDR__ROUTER_BIAS, CDR__ROUTER_START, CDR__ROUTER_POS, CDR__ROUTER_IDX, CDR__ROUTER_P, CDR__ROUTER_ALPHA };
enum { CDR__ROB_DP, CDR__ROB_LOGITS, CDR__ROB_IDX, CDR__ROB_P, CDR__ROB_START, CDR__ROB_POS, CDR__ROB_DLOGITS };

#define CDR__ROUTER_TINY 1e-20f      /* of the renormalisation */
enum { CDR__ROUTER_COLUMNS = 64 };   /* keys are padded to a multiple of it */
typedef struct { float *s_E; int32_t *v_E, *c_E, *i_E; } cdr__router_scratch;      /* scores, keys, candidates' keys and ids */
typedef struct {                     /* what is done to a row; one table per instruction set, the same bits in all (rows.inc) */
    float (*route)(const cdr_router_attr *a, const float *x_E, const float *bias_E, int64_t E, const cdr__router_scratch *w, int32_t *idx_k, float *p_k);
    void (*backward)(const cdr_router_attr *a, const float *dp_k, const float *x_E, const int32_t *idx_k, const float *p_k, int64_t E, float *w,
                     bool add, float *dx_E);
} cdr__router_rows;
void cdr__router_ref(const cdr_ref_args *a);
void cdr__router_bwd_ref(const cdr_ref_args *a);
size_t cdr__router_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__router_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__router_fwd(const cdr_args *a, const cdr__router_rows *rows);
cdr_status cdr__router_bwd(const cdr_args *a, const cdr__router_rows *rows);
cdr_status cdr__router_fwd_base(const cdr_args *a);
cdr_status cdr__router_bwd_base(const cdr_args *a);
cdr_status cdr__router_fwd_avx2(const cdr_args *a);
cdr_status cdr__router_bwd_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
