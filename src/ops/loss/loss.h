/* loss.h: cross entropy of the model's head, projection included, chunked over tokens and vocabulary: the T x W logits
 * never exist.
 *
 *   cdr_val loss_1 = cdr_loss(g, h_TD, w_WD, targets_T, 1024, 4096);     // F64, sum over targets >= 0, nats
 *
 * A target below 0 means "no loss here": such tokens are left out before anything is computed. chunk 0: all at once.
 */
#ifndef CDR_OPS_LOSS_H
#define CDR_OPS_LOSS_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int64_t chunk_tokens, chunk_vocab; } cdr_loss_attr;

extern const cdr_op cdr_op_loss;        /* h, w, targets -> loss_1, [lse_T]; the gradient of loss_1 is scale_1 */
extern const cdr_op cdr_op_loss_bwd;    /* h, w, targets, lse, scale_1 -> [dh], [dw] */
cdr_val cdr_loss(cdr_graph *g, cdr_val h_TD, cdr_val w_WD, cdr_val targets_T, int64_t chunk_tokens, int64_t chunk_vocab);

/* For a head that is not trained: dh is made in the forward from the same logits, two products instead of three. scale_1 F32 is
 * what the gradient of loss_1 will be. A row's logits are all there at once: chunk_tokens times the vocabulary, and where
 * chunk_vocab divides the vocabulary, fewer tokens (64 at least) so that the logits take no more room than loss's.
 * h, w, targets, scale_1 -> loss_1, [dh (dtype of h)] */
extern const cdr_op cdr_op_loss_frozen;
cdr_val cdr_loss_frozen(cdr_graph *g, cdr_val h_TD, cdr_val w_WD, cdr_val targets_T, cdr_val scale_1, int64_t chunk_tokens, int64_t chunk_vocab);

/* ---- inside of the folder ------------------------------------------------------------------------------------- */
enum { CDR__LOSS_H, CDR__LOSS_W, CDR__LOSS_TARGETS, CDR__LOSS_SUM, CDR__LOSS_LSE };
enum { CDR__LSB_H, CDR__LSB_W, CDR__LSB_TARGETS, CDR__LSB_LSE, CDR__LSB_SCALE, CDR__LSB_DH, CDR__LSB_DW };

enum { CDR__LSF_SCALE = 3, CDR__LSF_SUM, CDR__LSF_DH };      /* h, w and targets as in loss */

/* What is done to a row of logits; one table per instruction set, the same bits in all (loss_rows.h). */
typedef struct {
    void (*stats)(const float *l, int64_t n, float *m, float *s);                       /* online: max m, s = sum exp(l - m) */
    void (*grad)(float *l, int64_t n, int64_t y, float lse, float scale);               /* l = (exp(l - lse) - [i == y]) scale */
} cdr__loss_rows;
extern const cdr__loss_rows cdr__loss_rows_base, cdr__loss_rows_avx2, cdr__loss_rows_avx512;

cdr_status cdr__loss_fwd_base(const cdr_args *a);
cdr_status cdr__loss_fwd_avx2(const cdr_args *a);
cdr_status cdr__loss_fwd_avx512(const cdr_args *a);
cdr_status cdr__loss_fwd_avx512_bf16(const cdr_args *a);
cdr_status cdr__loss_bwd_base(const cdr_args *a);
cdr_status cdr__loss_bwd_avx2(const cdr_args *a);
cdr_status cdr__loss_bwd_avx512(const cdr_args *a);
cdr_status cdr__loss_bwd_avx512_bf16(const cdr_args *a);
size_t cdr__loss_fwd_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_fwd_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_fwd_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_fwd_avx512_bf16_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_avx512_bf16_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__loss_frozen_base(const cdr_args *a);
cdr_status cdr__loss_frozen_avx2(const cdr_args *a);
cdr_status cdr__loss_frozen_avx512(const cdr_args *a);
cdr_status cdr__loss_frozen_avx512_bf16(const cdr_args *a);
size_t cdr__loss_frozen_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_frozen_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_frozen_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_frozen_avx512_bf16_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
void cdr__loss_frozen_ref(const cdr_ref_args *a);
void cdr__loss_ref(const cdr_ref_args *a);
void cdr__loss_bwd_ref(const cdr_ref_args *a);

#ifdef __cplusplus
}
#endif
#endif
