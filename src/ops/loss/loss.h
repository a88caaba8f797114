/* loss.h: cross entropy of the model's head, projection included, chunked over tokens and vocabulary: the T x W logits
 * never exist.
 *
 *   cdr_val loss_1 = cdr_loss(g, h_TD, w_WD, targets_T, CDR_NONE, 1024, 4096);     // F64, sum over targets >= 0, nats
 *
 * A target below 0 means "no loss here": such tokens are left out before anything is computed. chunk 0: all at once.
 * weights_T (F32, CDR_NONE: all 1): each token's share of the loss. It is the last input of every operator here, and may be left away: the
 * outputs then move up by one. Weights of 1 change no bit.
 */
#ifndef CDR_OPS_LOSS_H
#define CDR_OPS_LOSS_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int64_t chunk_tokens, chunk_vocab; } cdr_loss_attr;

extern const cdr_op cdr_op_loss;        /* h, w, targets, [weights] -> loss_1, [lse_T]; the gradient of loss_1 is scale_1 */
extern const cdr_op cdr_op_loss_bwd;    /* h, w, targets, lse, scale_1, [weights] -> [dh], [dw] */
cdr_val cdr_loss(cdr_graph *g, cdr_val h_TD, cdr_val w_WD, cdr_val targets_T, cdr_val weights_T, int64_t chunk_tokens, int64_t chunk_vocab);

/* For a head that is not trained: dh is made in the forward from the same logits, two products instead of three, in one sweep over
 * the vocabulary and the same chunks as loss. scale_1 F32 is what the gradient of loss_1 will be.
 * in: h, w, targets, scale_1, weights or CDR_NONE -> loss_1, [dh (dtype of h)] */
extern const cdr_op cdr_op_loss_frozen;
cdr_val cdr_loss_frozen(cdr_graph *g, const cdr_val in[5], int64_t chunk_tokens, int64_t chunk_vocab);

/* A head whose vocabulary rows are split over the ranks of a communicator as FSDP splits them: rank r of n holds the rows
 * [r W / n, (r + 1) W / n) in a shard of ceil(W / n). Each rank has tokens of its own, as many on each (T), and works through the
 * vocabulary in chunks of chunk_vocab rows, all ranks in step: a chunk is read from its owners into `stage`, and all of the rank's
 * tokens take it. So the head is never there whole; loss, lse and dh have the bits of their forms over the whole head.
 * dw is summed over ranks as the tree, chunk by chunk: the bits of loss_bwd followed by reduce_scatter.
 *   loss_pieces         h, w shard, targets, [weights] -> loss_1, [lse_T], stage
 *   loss_pieces_bwd     h, w shard, targets, lse, scale_1, [weights] -> [dh], [dw shard, F32], stage
 *   loss_frozen_pieces  h, w shard, targets, scale_1, [weights] -> loss_1, [dh], stage
 * stage: U8, class COMM, must lie where peers can read it. */
typedef struct { cdr_coll coll; int32_t size, dw; int64_t rows; cdr_loss_attr chunks; } cdr_loss_pieces_attr;   /* dw: it is asked for; rows: W */
extern const cdr_op cdr_op_loss_pieces, cdr_op_loss_pieces_bwd, cdr_op_loss_frozen_pieces;
/* coll of the result is complete. */
cdr_loss_pieces_attr cdr_loss_pieces_attr_of(int size, int64_t W, const cdr_type *w_shard, cdr_loss_attr chunks, bool dw);
/* in: the last one, weights, may be CDR_NONE. out[1]: lse_T, of the frozen form dh; CDR_NONE leaves it away. */
cdr_status cdr_loss_pieces(cdr_graph *g, int size, int64_t W, cdr_loss_attr chunks, const cdr_val in[4], cdr_val out[2]);
cdr_status cdr_loss_frozen_pieces(cdr_graph *g, int size, int64_t W, cdr_loss_attr chunks, const cdr_val in[5], cdr_val out[2]);

/* Which form a loss takes whose head is split over n ranks: cdr_head, never AUTO. w_bytes: of an element of the head. */
typedef struct { int n; int64_t T, D, W, w_bytes; bool trained; cdr_loss_attr chunks; } cdr_loss_split;
int cdr_loss_head(const cdr_loss_split *s, int asked);

/* ---- inside of the folder ------------------------------------------------------------------------------------- */
/* Inputs; the one where weights stand, if they are there; outputs, which are counted from the number of inputs on, so that operand k of
 * them is n_in + k */
enum { CDR__LOSS_H, CDR__LOSS_W, CDR__LOSS_TARGETS, CDR__LOSS_WEIGHTS };
enum { CDR__LSB_H, CDR__LSB_W, CDR__LSB_TARGETS, CDR__LSB_LSE, CDR__LSB_SCALE, CDR__LSB_WEIGHTS };
enum { CDR__LSF_SCALE = 3, CDR__LSF_WEIGHTS };               /* h, w and targets as in loss */
enum { CDR__LOSS_SUM, CDR__LOSS_LSE };
enum { CDR__LSB_DH, CDR__LSB_DW };
enum { CDR__LSF_SUM, CDR__LSF_DH };
enum { CDR__LOSS_STAGE = 2 };                                /* split heads: outputs as above, then the stage */

/* What lies in the stage: a chunk of the head; where dw is summed, twice a chunk of its partial sums, and twice a rank's slice of
 * their sum, so that the chunks before are on their way while the next one is computed. */
typedef struct { int64_t w, dw[2], slice[2], bytes; } cdr__loss_stage;
cdr__loss_stage cdr__loss_stage_of(const cdr_loss_pieces_attr *a, const cdr_type *w_shard);

/* What is done to a row of logits; one table per instruction set, the same bits in all (loss_rows.h). */
typedef struct {
    void (*stats)(const float *l, int64_t n, float *m, float *s);                       /* online: max m, s = sum exp(l - m) */
    void (*grad)(float *l, int64_t n, int64_t y, float lse, float scale);               /* l = (exp(l - lse) - [i == y]) scale */
    float (*online)(float *l, int64_t n, int64_t y, float *m, float *s, float *rest);   /* stats, and l = exp(l - m) but 0 at y; rest: s without y */
} cdr__loss_rows;
extern const cdr__loss_rows cdr__loss_rows_base, cdr__loss_rows_avx2, cdr__loss_rows_avx512;

cdr_status cdr__loss_fwd_base(const cdr_args *a);
cdr_status cdr__loss_fwd_avx2(const cdr_args *a);
cdr_status cdr__loss_fwd_avx512(const cdr_args *a);
cdr_status cdr__loss_fwd_avx512_bf16(const cdr_args *a);
cdr_status cdr__loss_fwd_amx(const cdr_args *a);
cdr_status cdr__loss_bwd_base(const cdr_args *a);
cdr_status cdr__loss_bwd_avx2(const cdr_args *a);
cdr_status cdr__loss_bwd_avx512(const cdr_args *a);
cdr_status cdr__loss_bwd_avx512_bf16(const cdr_args *a);
cdr_status cdr__loss_bwd_amx(const cdr_args *a);
size_t cdr__loss_fwd_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_fwd_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_fwd_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_fwd_avx512_bf16_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_fwd_amx_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_avx512_bf16_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_bwd_amx_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__loss_frozen_base(const cdr_args *a);
cdr_status cdr__loss_frozen_avx2(const cdr_args *a);
cdr_status cdr__loss_frozen_avx512(const cdr_args *a);
cdr_status cdr__loss_frozen_avx512_bf16(const cdr_args *a);
cdr_status cdr__loss_frozen_amx(const cdr_args *a);
size_t cdr__loss_frozen_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_frozen_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_frozen_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_frozen_avx512_bf16_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__loss_frozen_amx_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
/* Of loss and loss_frozen, and of their split forms (split.c). */
cdr_status cdr__loss_shard(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, cdr_val *out, cdr_err *e);
cdr_status cdr__loss_frozen_shard(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, cdr_val *out, cdr_err *e);
cdr_status cdr__loss_pieces_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e);
cdr_status cdr__loss_pieces_bwd_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e);
cdr_status cdr__loss_frozen_pieces_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e);
cdr_status cdr__loss_pieces_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e);
cdr_status cdr__loss_frozen_pieces_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e);
cdr_cost cdr__loss_pieces_cost(const void *attr, int n_in, int n_out, const cdr_type *t);
cdr_cost cdr__loss_pieces_bwd_cost(const void *attr, int n_in, int n_out, const cdr_type *t);
cdr_cost cdr__loss_frozen_pieces_cost(const void *attr, int n_in, int n_out, const cdr_type *t);
extern const cdr_kernel cdr__loss_pieces_kernels[], cdr__loss_pieces_bwd_kernels[], cdr__loss_frozen_pieces_kernels[];

void cdr__loss_frozen_ref(const cdr_ref_args *a);
void cdr__loss_ref(const cdr_ref_args *a);
void cdr__loss_bwd_ref(const cdr_ref_args *a);

#ifdef __cplusplus
}
#endif
#endif
