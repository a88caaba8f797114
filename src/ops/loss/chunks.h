/* chunks.h: what is done with a chunk of tokens and a piece of the vocabulary, equations (1)-(4) of op.c, for the kernels of
 * whole heads (cpu.c) and of split ones (split_cpu.c): the same functions, hence the same bits. Internal; static functions only.
 *
 *   for (int64_t t = 0; chunk_next(a, &z, &c, &t);) {           // up to z.ct tokens that have a target
 *       piece w = piece_at(a, &z, v0);                           // up to z.cv rows of w
 *       chunk_logits(a, &z, &c, path, &w, c.logits);             // F32 [c.n][w.n], rows z.ld apart
 *       ...
 */
#ifndef CDR_OPS_LOSS_CHUNKS_H
#define CDR_OPS_LOSS_CHUNKS_H
#include "ops/cpu.h"
#include "ops/linear/gemm.h"
#include "ops/loss/loss.h"
#include <math.h>

enum { FORK = 1 << 14 };      /* numbers from which a loop over rows is worth a fork and join (1 to 7 us) */

static inline size_t part(size_t n, size_t bytes) { return cdr_align_up(n * bytes, 64); }
static inline void *take(char **at, size_t n, size_t bytes)
{
    void *p = *at;
    *at += part(n, bytes);
    return p;
}

/* Sizes of a call: tokens, width, vocabulary; tokens and vocabulary rows of a chunk; elements between rows of logits. */
typedef struct { int64_t T, D, W, ct, cv, ld; } sizes;
static inline sizes sizes_of(const cdr_loss_attr *a, const cdr_type *t, int64_t W)
{
    sizes z = { .T = t[CDR__LOSS_H].n[0], .D = t[CDR__LOSS_H].n[1], .W = W };
    z.ct = a->chunk_tokens > 0 ? CDR_MIN(a->chunk_tokens, z.T) : z.T;
    z.cv = z.ld = a->chunk_vocab > 0 ? CDR_MIN(a->chunk_vocab, z.W) : z.W;
    return z;
}

/* A chunk: the tokens that have a target, their rows of h in one piece. m, s, at_y, dh: of its tokens. */
typedef struct { int64_t n, *token; const void *h; int64_t h_pitch; void *rows; float *logits, *m, *s, *at_y, *dh, *old; void *gemm; } chunk;

/* Rows [v0, v0 + n) of w. */
typedef struct { const void *p; int dtype; int64_t pitch, v0, n; } piece;

static inline piece piece_at(const cdr_args *a, const sizes *z, int64_t v0)
{
    const cdr_type *wt = &a->type[CDR__LOSS_W];
    return (piece){ .p = cdr_row(a->ptr[CDR__LOSS_W], wt, v0), .dtype = wt->dtype, .pitch = cdr_type_pitch(wt), .v0 = v0, .n = CDR_MIN(z->cv, z->W - v0) };
}

/* n_stats: tokens that m, s and at_y have room for. */
static inline size_t chunk_bytes(const sizes *z, const cdr_type *h, int64_t n_stats)
{
    size_t n = (size_t)z->ct;
    return part(n, sizeof(int64_t)) + part(n * (size_t)z->D, (size_t)cdr_dtype_bytes(h->dtype, 1)) + part(n * (size_t)z->ld, 4) + 3 * part((size_t)n_stats, 4);
}
static inline chunk chunk_take(const sizes *z, const cdr_type *h, int64_t n_stats, char **at)
{
    size_t n = (size_t)z->ct;
    chunk c = { .token = take(at, n, sizeof(int64_t)), .rows = take(at, n * (size_t)z->D, (size_t)cdr_dtype_bytes(h->dtype, 1)),
                .logits = take(at, n * (size_t)z->ld, 4) };
    c.m = take(at, (size_t)n_stats, 4);
    c.s = take(at, (size_t)n_stats, 4);
    c.at_y = take(at, (size_t)n_stats, 4);
    return c;
}
/* Scratch of the three products of a chunk. */
static inline size_t products_work(int path, const sizes *z, int n_threads)
{
    size_t logits = cdr__gemm_work_bytes(path, z->ct, z->cv, z->D, n_threads), dh = cdr__gemm_work_bytes(path, z->ct, z->D, z->cv, n_threads);
    return CDR_MAX(CDR_MAX(logits, dh), cdr__gemm_work_bytes(path, z->cv, z->D, z->ct, n_threads));
}

/* Takes the next tokens from *t on. False: none left. Rows that lie together are used where they are. */
static inline bool chunk_next(const cdr_args *a, const sizes *z, chunk *c, int64_t *t)
{
    const int32_t *y = a->ptr[CDR__LOSS_TARGETS];
    const cdr_type *ht = &a->type[CDR__LOSS_H];
    c->n = 0;
    for (; *t < z->T && c->n < z->ct; ++*t) {
        assert(y[*t] < z->W);
        if (y[*t] >= 0) c->token[c->n++] = *t;
    }
    if (c->n == 0) return false;
    c->h = cdr_row(a->ptr[CDR__LOSS_H], ht, c->token[0]);
    c->h_pitch = cdr_type_pitch(ht);
    if (c->token[c->n - 1] - c->token[0] == c->n - 1) return true;
    size_t bytes = (size_t)cdr_dtype_bytes(ht->dtype, z->D);
    for (int64_t i = 0; i < c->n; i++) memcpy((char *)c->rows + (size_t)i * bytes, cdr_row(a->ptr[CDR__LOSS_H], ht, c->token[i]), bytes);
    c->h = c->rows;
    c->h_pitch = z->D;
    return true;
}

static inline void chunk_begin(chunk *c)
{
    for (int64_t i = 0; i < c->n; i++) {
        c->m[i] = -INFINITY;
        c->s[i] = 0;
    }
}

/* l[n][w.n] = h w^T */
static inline void chunk_logits(const cdr_args *a, const sizes *z, const chunk *c, int path, const piece *w, float *l)
{
    cdr__gemm_args g = { .m = c->n, .n = w->n, .k = z->D, .a = cdr__rows(a->type[CDR__LOSS_H].dtype, c->h, c->h_pitch),
                         .b = cdr__cols(w->dtype, w->p, w->pitch), .c = l, .c_dtype = CDR_F32, .c_pitch = z->ld };
    cdr__gemm(path, &g, c->gemm, a->lane->n_threads);
}

/* (m, s) of each token goes on over this piece; the target's logit is kept where it is in it. */
static inline void chunk_stats(const cdr_args *a, const sizes *z, const chunk *c, const cdr__loss_rows *rows, const piece *w, const float *l)
{
    const int32_t *y = a->ptr[CDR__LOSS_TARGETS];
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (c->n * w->n > FORK)
    for (int64_t i = 0; i < c->n; i++) {
        int64_t at_v = y[c->token[i]] - w->v0;
        rows->stats(l + i * z->ld, w->n, &c->m[i], &c->s[i]);
        if (at_v >= 0 && at_v < w->n) c->at_y[i] = l[i * z->ld + at_v];
    }
}

/* The loss of the tokens so far and of this chunk, one chain in ascending order; lse by token, or NULL. */
static inline double chunk_loss(const chunk *c, double sum, float *lse)
{
    for (int64_t i = 0; i < c->n; i++) {
        double e = (double)c->m[i] + log((double)c->s[i]);
        sum += e - (double)c->at_y[i];
        if (lse) lse[c->token[i]] = (float)e;
    }
    return sum;
}

/* l = d */
static inline void chunk_grad(const cdr_args *a, const sizes *z, const chunk *c, const cdr__loss_rows *rows, const piece *w, float *l, const float *lse, float scale)
{
    const int32_t *y = a->ptr[CDR__LOSS_TARGETS];
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (c->n * w->n > FORK)
    for (int64_t i = 0; i < c->n; i++) rows->grad(l + i * z->ld, w->n, y[c->token[i]] - w->v0, lse[c->token[i]], scale);
}

/* c.dh = d w for the first piece, += for the others; l holds d. */
static inline void chunk_dh(const cdr_args *a, const sizes *z, const chunk *c, int path, const piece *w, const float *l)
{
    cdr__gemm_args g = { .m = c->n, .n = z->D, .k = w->n, .a = cdr__rows(CDR_F32, l, z->ld), .b = cdr__rows(w->dtype, w->p, w->pitch),
                         .c = c->dh, .c_dtype = CDR_F32, .c_pitch = z->D, .add = w->v0 > 0 };
    cdr__gemm(path, &g, c->gemm, a->lane->n_threads);
}

/* dw[w.n][D] (+)= d^T h; the logits hold d. add: another token chunk, or the caller, was there before. */
static inline void chunk_dw(const cdr_args *a, const sizes *z, const chunk *c, int path, const piece *w, void *dw, int64_t pitch, bool add)
{
    cdr__gemm_args g = { .m = w->n, .n = z->D, .k = c->n, .a = cdr__cols(CDR_F32, c->logits, z->ld),
                         .b = cdr__rows(a->type[CDR__LOSS_H].dtype, c->h, c->h_pitch), .c = dw, .c_dtype = CDR_F32, .c_pitch = pitch, .add = add };
    cdr__gemm(path, &g, c->gemm, a->lane->n_threads);
}

static inline void zero_row(const cdr_args *a, int i, int64_t row)
{
    memset(cdr_row(a->ptr[i], &a->type[i], row), 0, (size_t)cdr_dtype_bytes(a->type[i].dtype, cdr_type_cols(&a->type[i])));
}

static inline void zero_masked(const cdr_args *a, const sizes *z, int i)
{
    const int32_t *y = a->ptr[CDR__LOSS_TARGETS];
    for (int64_t t = 0; t < z->T; t++) if (y[t] < 0) zero_row(a, i, t);
}

/* The chunk's rows of dh to operand i, rounded once. */
static inline void chunk_store(const cdr_args *a, const sizes *z, const chunk *c, int i_dh, bool add)
{
    void *dh = a->ptr[i_dh];
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (c->n * z->D > FORK)
    for (int64_t i = 0; i < c->n; i++) {
        if (add) cdr_row_add(c->dh + i * z->D, dh, &a->type[i_dh], c->token[i], cdr_thread_part(c->old, z->D));
        else cdr_row_store(c->dh + i * z->D, dh, &a->type[i_dh], c->token[i]);
    }
}
#endif
