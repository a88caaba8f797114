/* balance.h: keeps the load of experts even by a bias on the selection. Two rules: quantile balancing (K3), and the sign of the load's error.
 *
 *   cdr_balance_load(g, idx_Tk, micro_1, load_E, 896);                              // per micro-batch: counts, over the step
 *   cdr_balance_hist(g, logits_TE, alpha_T, bias_E, start_T, pos_T, micro_1, hist_EB, &h);
 *   cdr_all_reduce(g, CDR_COMM_WORLD, n, 2, counts, counts);                        // once per step: exact integers
 *   cdr_balance_quantile(g, hist_EB, bias_E, load_E, &q);                           // the bias of the next step
 *
 * Idle rows (start > pos) are never counted. Counts are made exactly once (EFFECT): recomputed layers and evaluation do not count.
 */
#ifndef CDR_OP_BALANCE_H
#define CDR_OP_BALANCE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_BALANCE_MIN_BINS = 2, CDR_BALANCE_MAX_BINS = 1 << 20 };

typedef struct { int32_t experts; } cdr_balance_load_attr;
typedef struct { int32_t softmax, bins; } cdr_balance_hist_attr;                     /* softmax: as the router's */
typedef struct { int32_t top_k, bins; float ema; } cdr_balance_quantile_attr;        /* ema: share of the old bias that stays; 0: none */
typedef struct { float rate; } cdr_balance_sign_attr;

/* in: idx_Tk I32, micro_1 I32.  out: load_E I32 (read and written): tokens sent to each expert; overwritten where *micro is 0, else added to */
extern const cdr_op cdr_op_balance_load;
/* in: logits_TE F32, alpha_T F32, bias_E F32, start_T, pos_T, micro_1 I32.  out: hist_EB I32 (read and written), as above */
extern const cdr_op cdr_op_balance_hist;
/* in: hist_EB I32, load_E I32, both of the whole step over all ranks.  out: bias_E F32 (read and written) */
extern const cdr_op cdr_op_balance_quantile;
/* in: load_E I32 of the whole step over all ranks.  out: bias_E F32 (read and written) */
extern const cdr_op cdr_op_balance_sign;

void cdr_balance_load(cdr_graph *g, cdr_val idx_Tk, cdr_val micro_1, cdr_val load_E, int experts);
void cdr_balance_hist(cdr_graph *g, cdr_val logits_TE, cdr_val alpha_T, cdr_val bias_E, cdr_val start_T, cdr_val pos_T, cdr_val micro_1, cdr_val hist_EB,
                      const cdr_balance_hist_attr *a);
/* Both return the call's id (-1 after an error), so that the caller can make it depend on the step's success. */
int32_t cdr_balance_quantile(cdr_graph *g, cdr_val hist_EB, cdr_val bias_E, cdr_val load_E, const cdr_balance_quantile_attr *a);
int32_t cdr_balance_sign(cdr_graph *g, cdr_val load_E, cdr_val bias_E, float rate);

/* ---- inside of the folder -------------------------------------------------------------------------------------- */
enum { CDR__BAH_LOGITS, CDR__BAH_ALPHA, CDR__BAH_BIAS, CDR__BAH_START, CDR__BAH_POS, CDR__BAH_MICRO, CDR__BAH_HIST, CDR__BAH_LANES = 16, CDR__BAH_BLOCK = 64 };
/* Bins of n scores of one token, n up to CDR__BAH_BLOCK; max and sum: of its softmax. One function per instruction set, the same bits in all. */
typedef struct { float alpha, max, sum, lo, per_w, last; } cdr__balance_row;
typedef void (*cdr__balance_bins)(const float *x, int n, bool softmax, const cdr__balance_row *r, int32_t *bin);
cdr_status cdr__balance_hist(const cdr_args *a, cdr__balance_bins bins);
cdr_status cdr__balance_hist_base(const cdr_args *a);
cdr_status cdr__balance_hist_avx2(const cdr_args *a);
size_t cdr__balance_hist_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__balance_load_base(const cdr_args *a);
cdr_status cdr__balance_quantile_base(const cdr_args *a);
size_t cdr__balance_quantile_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__balance_sign_base(const cdr_args *a);
void cdr__balance_load_ref(const cdr_ref_args *a);
void cdr__balance_hist_ref(const cdr_ref_args *a);
void cdr__balance_quantile_ref(const cdr_ref_args *a);
void cdr__balance_sign_ref(const cdr_ref_args *a);

#ifdef __cplusplus
}
#endif
#endif
