/* cuda.h: what the descriptor rows and the CUDA kernels of loss agree on: chunks and the pieces of the scratch. */
#ifndef CDR_OPS_LOSS_CUDA_H
#define CDR_OPS_LOSS_CUDA_H
#include "device/cuda/rows.h"
#include "ops/loss/loss.h"

/* A chunk size of 0 means all: bounded here, so that the logits of a chunk take 256 MiB at most. */
enum { CDR_LOSS_MAX_TOKENS = 4096, CDR_LOSS_MAX_VOCAB = 16384 };

typedef struct {
    int64_t tokens, vocab, ld;           /* of a chunk; ld: elements between rows of logits, a multiple of 8 */
    int64_t n_vocab;                     /* chunks of the vocabulary */
    bool bf16;                           /* h and w are BF16: d is rounded to BF16 for its products */
    bool wide;                           /* dh is BF16 and gets several parts: they add up in F32 scratch */
    size_t logits, d, dh, row, sum;      /* bytes of each piece; row: one F32 a token of the chunk; sum: one F64 a token */
} cdr_loss_plan;

/* t: types of h and w first; dh: type of the gradient of h, or NULL */
static inline cdr_loss_plan cdr_loss_plan_of(const cdr_loss_attr *a, const cdr_type *t, const cdr_type *dh)
{
    cdr_loss_plan p;
    int64_t T = t[0].n[0], W = t[1].n[0];
    p.tokens = a->chunk_tokens > 0 ? CDR_MIN(a->chunk_tokens, T) : CDR_MIN(T, (int64_t)CDR_LOSS_MAX_TOKENS);
    p.vocab = a->chunk_vocab > 0 ? CDR_MIN(a->chunk_vocab, W) : CDR_MIN(W, (int64_t)CDR_LOSS_MAX_VOCAB);
    p.ld = (p.vocab + 7) / 8 * 8;
    p.n_vocab = cdr_ceil_div(W, p.vocab);
    p.bf16 = t[0].dtype == CDR_BF16 && t[1].dtype == CDR_BF16;
    p.wide = dh && !cdr_absent(dh) && dh->dtype == CDR_BF16 && p.n_vocab > 1;
    p.logits = cdr_cuda_piece(p.tokens * p.ld, sizeof(float));
    p.d = p.bf16 ? cdr_cuda_piece(p.tokens * p.ld, sizeof(uint16_t)) : 0;
    p.dh = p.wide ? cdr_cuda_piece(p.tokens * t[0].n[1], sizeof(float)) : 0;
    p.row = cdr_cuda_piece(p.tokens, sizeof(float));
    p.sum = cdr_cuda_piece(T, sizeof(double));
    return p;
}
#endif
