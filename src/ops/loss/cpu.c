/* loss, CPU kernels: equations (1)-(4) of op.c. The products are ops/linear's GEMM on the path of the kernel, what is
 * done to a row of logits is in loss_rows.h; this file is the chunk loop.
 *
 *   for each chunk of up to chunk_tokens tokens with a target (stable order; the others cost nothing)
 *     for each chunk of vocabulary:  logits = h w^T (F32);  forward: online (max, sum) per row
 *                                    backward: d = (p - onehot) scale;  dh += d w;  dw += d^T h
 * Where the head is not trained (loss_frozen), a chunk of tokens takes all of the vocabulary, and dh is made from the logits
 * that lse came from: two products for each token instead of three.
 * The backward's logits are the forward's bits: the same GEMM, whose element knows its row and column alone.
 * dh is summed over vocabulary chunks, dw over token chunks, each in ascending order, in F32.
 * Scratch: one chunk's logits, its tokens' rows of h and dh. Threads change no bit.
 * The bf16 path rounds d to BF16 (after the subtraction) where it enters a product.
 */
#include "ops/linear/gemm.h"
#include "ops/loss/loss_rows.h"
#include <math.h>

const cdr__loss_rows cdr__loss_rows_base = { row_stats, row_grad };

enum { FORK = 1 << 14 };      /* numbers from which a loop over rows is worth a fork and join (1 to 7 us) */

static size_t part(size_t n, size_t bytes) { return cdr_align_up(n * bytes, 64); }
static void *take(char **at, size_t n, size_t bytes)
{
    void *p = *at;
    *at += part(n, bytes);
    return p;
}
static int64_t chunk_of(int64_t chunk, int64_t n) { return chunk > 0 && chunk < n ? chunk : n; }

/* sizes of a call */
typedef struct { int64_t T, D, W, ct, cv; } sizes;
static sizes sizes_of(const cdr_loss_attr *a, const cdr_type *t)
{
    sizes z = { t[CDR__LOSS_H].n[0], t[CDR__LOSS_H].n[1], t[CDR__LOSS_W].n[0], 0, 0 };
    z.ct = chunk_of(a->chunk_tokens, z.T);
    z.cv = chunk_of(a->chunk_vocab, z.W);
    return z;
}

/* A chunk: the tokens that have a target, their rows of h in one piece. */
typedef struct { int64_t n, *token; const void *h; int64_t h_pitch; void *rows; float *logits, *m, *s, *at_y, *dh, *old; void *gemm; } chunk;

static size_t chunk_bytes(const sizes *z, const cdr_type *h)
{
    size_t n = (size_t)z->ct;
    return part(n, sizeof(int64_t)) + part(n * (size_t)z->D, (size_t)cdr_dtype_bytes(h->dtype, 1)) + part(n * (size_t)z->cv, 4) + 3 * part(n, 4);
}
static chunk chunk_take(const sizes *z, const cdr_type *h, char **at)
{
    size_t n = (size_t)z->ct;
    chunk c = { .token = take(at, n, sizeof(int64_t)), .rows = take(at, n * (size_t)z->D, (size_t)cdr_dtype_bytes(h->dtype, 1)),
                .logits = take(at, n * (size_t)z->cv, 4) };
    c.m = take(at, n, 4);
    c.s = take(at, n, 4);
    c.at_y = take(at, n, 4);
    return c;
}

/* Takes the next tokens from *t on. False: none left. Rows that lie together are used where they are. */
static bool chunk_next(const cdr_args *a, const sizes *z, chunk *c, int64_t *t)
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

/* logits[n][nv] = h w^T of vocabulary rows [v0, v0 + nv) */
static void chunk_logits(const cdr_args *a, const sizes *z, const chunk *c, int path, int64_t v0, int64_t nv)
{
    const cdr_type *wt = &a->type[CDR__LOSS_W];
    cdr__gemm_args g = { .m = c->n, .n = nv, .k = z->D, .a = cdr__rows(a->type[CDR__LOSS_H].dtype, c->h, c->h_pitch),
                         .b = cdr__cols(wt->dtype, cdr_row(a->ptr[CDR__LOSS_W], wt, v0), cdr_type_pitch(wt)),
                         .c = c->logits, .c_dtype = CDR_F32, .c_pitch = z->cv };
    cdr__gemm(path, &g, c->gemm, a->lane->n_threads);
}

/* ---- forward -------------------------------------------------------------------------------------------------- */
static cdr_status fwd(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = sizes_of(a->attr, a->type);
    const int32_t *y = a->ptr[CDR__LOSS_TARGETS];
    double sum = 0;
    float *lse = a->ptr[CDR__LOSS_LSE];
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LOSS_H], &at);
    c.gemm = at;
    if (lse) memset(lse, 0, sizeof(float) * (size_t)z.T);
    for (int64_t t = 0; chunk_next(a, &z, &c, &t);) {
        for (int64_t i = 0; i < c.n; i++) {
            c.m[i] = -INFINITY;
            c.s[i] = 0;
        }
        for (int64_t v0 = 0; v0 < z.W; v0 += z.cv) {
            int64_t nv = CDR_MIN(z.cv, z.W - v0);
            chunk_logits(a, &z, &c, path, v0, nv);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (c.n * nv > FORK)
            for (int64_t i = 0; i < c.n; i++) {
                const float *l = c.logits + i * z.cv;
                int64_t at_v = y[c.token[i]] - v0;
                rows->stats(l, nv, &c.m[i], &c.s[i]);
                if (at_v >= 0 && at_v < nv) c.at_y[i] = l[at_v];
            }
        }
        for (int64_t i = 0; i < c.n; i++) {
            double e = (double)c.m[i] + log((double)c.s[i]);
            sum += e - (double)c.at_y[i];
            if (lse) lse[c.token[i]] = (float)e;
        }
    }
    *(double *)a->ptr[CDR__LOSS_SUM] = sum;
    return CDR_OK;
}

static size_t fwd_work(int path, const void *attr, const cdr_type *t, int n_threads)
{
    const sizes z = sizes_of(attr, t);
    return chunk_bytes(&z, &t[CDR__LOSS_H]) + cdr__gemm_work_bytes(path, z.ct, z.cv, z.D, n_threads);
}

/* ---- backward ------------------------------------------------------------------------------------------------- */
/* The products of one vocabulary chunk; the logits hold d. dw_add: another token chunk, or the caller, was there before. */
static void bwd_vocab(const cdr_args *a, const sizes *z, const chunk *c, int path, int64_t v0, bool dw_add)
{
    const cdr_type *wt = &a->type[CDR__LSB_W];
    int64_t nv = CDR_MIN(z->cv, z->W - v0);
    if (a->ptr[CDR__LSB_DH]) {
        cdr__gemm_args g = { .m = c->n, .n = z->D, .k = nv, .a = cdr__rows(CDR_F32, c->logits, z->cv),
                             .b = cdr__rows(wt->dtype, cdr_row(a->ptr[CDR__LSB_W], wt, v0), cdr_type_pitch(wt)),
                             .c = c->dh, .c_dtype = CDR_F32, .c_pitch = z->D, .add = v0 > 0 };
        cdr__gemm(path, &g, c->gemm, a->lane->n_threads);
    }
    if (a->ptr[CDR__LSB_DW]) {
        const cdr_type *dwt = &a->type[CDR__LSB_DW];
        cdr__gemm_args g = { .m = nv, .n = z->D, .k = c->n, .a = cdr__cols(CDR_F32, c->logits, z->cv),
                             .b = cdr__rows(a->type[CDR__LSB_H].dtype, c->h, c->h_pitch),
                             .c = cdr_row(a->ptr[CDR__LSB_DW], dwt, v0), .c_dtype = CDR_F32, .c_pitch = cdr_type_pitch(dwt), .add = dw_add };
        cdr__gemm(path, &g, c->gemm, a->lane->n_threads);
    }
}

static void zero_row(const cdr_args *a, int i, int64_t row)
{
    memset(cdr_row(a->ptr[i], &a->type[i], row), 0, (size_t)cdr_dtype_bytes(a->type[i].dtype, cdr_type_cols(&a->type[i])));
}

static cdr_status bwd(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = sizes_of(a->attr, a->type);
    const int32_t *y = a->ptr[CDR__LSB_TARGETS];
    const float *lse = a->ptr[CDR__LSB_LSE], scale = *(const float *)a->ptr[CDR__LSB_SCALE];
    void *dh = a->ptr[CDR__LSB_DH];
    bool dh_add = a->add & 1u, dw_add = (a->add >> 1) & 1u;
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LSB_H], &at);
    c.dh = take(&at, (size_t)(z.ct * z.D), 4);
    c.old = take(&at, (size_t)(z.D * a->lane->n_threads), 4);
    c.gemm = at;
    for (int64_t t = 0; t < z.T && dh && !dh_add; t++)
        if (y[t] < 0) zero_row(a, CDR__LSB_DH, t);
    for (int64_t t = 0; chunk_next(a, &z, &c, &t); dw_add = true) {
        for (int64_t v0 = 0; v0 < z.W; v0 += z.cv) {
            int64_t nv = CDR_MIN(z.cv, z.W - v0);
            chunk_logits(a, &z, &c, path, v0, nv);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (c.n * nv > FORK)
            for (int64_t i = 0; i < c.n; i++) rows->grad(c.logits + i * z.cv, nv, y[c.token[i]] - v0, lse[c.token[i]], scale);
            bwd_vocab(a, &z, &c, path, v0, dw_add);
        }
        if (!dh) continue;
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (c.n * z.D > FORK)
        for (int64_t i = 0; i < c.n; i++) {
            if (dh_add) cdr_row_add(c.dh + i * z.D, dh, &a->type[CDR__LSB_DH], c.token[i], cdr_thread_part(c.old, z.D));
            else cdr_row_store(c.dh + i * z.D, dh, &a->type[CDR__LSB_DH], c.token[i]);
        }
    }
    for (int64_t v = 0; v < z.W && a->ptr[CDR__LSB_DW] && !dw_add; v++) zero_row(a, CDR__LSB_DW, v);     /* no token had a target */
    return CDR_OK;
}

static size_t bwd_work(int path, const void *attr, const cdr_type *t, int n_threads)
{
    const sizes z = sizes_of(attr, t);
    size_t logits = cdr__gemm_work_bytes(path, z.ct, z.cv, z.D, n_threads), dh = cdr__gemm_work_bytes(path, z.ct, z.D, z.cv, n_threads);
    size_t dw = cdr__gemm_work_bytes(path, z.cv, z.D, z.ct, n_threads);
    return chunk_bytes(&z, &t[CDR__LSB_H]) + part((size_t)(z.ct * z.D), 4) + part((size_t)(z.D * n_threads), 4) + CDR_MAX(logits, CDR_MAX(dh, dw));
}

/* ---- forward with dh: a head that is not trained -------------------------------------------------------------------- */
/* One chunk, all of the vocabulary: lse, then d in the logits' place. Returns the chunk's loss. */
static double frozen_chunk(const cdr_args *a, const sizes *z, const chunk *c, int path, const cdr__loss_rows *rows)
{
    const int32_t *y = a->ptr[CDR__LOSS_TARGETS];
    const float scale = *(const float *)a->ptr[CDR__LSF_SCALE];
    double sum = 0;
    chunk_logits(a, z, c, path, 0, z->W);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (c->n * z->W > FORK)
    for (int64_t i = 0; i < c->n; i++) {
        float *l = c->logits + i * z->cv;
        int64_t at_y = y[c->token[i]];
        c->m[i] = -INFINITY;
        c->s[i] = 0;
        rows->stats(l, z->W, &c->m[i], &c->s[i]);
        c->at_y[i] = l[at_y];
        if (a->ptr[CDR__LSF_DH]) rows->grad(l, z->W, at_y, (float)((double)c->m[i] + log((double)c->s[i])), scale);
    }
    for (int64_t i = 0; i < c->n; i++) sum += (double)c->m[i] + log((double)c->s[i]) - (double)c->at_y[i];
    return sum;
}

static sizes frozen_sizes(const cdr_loss_attr *a, const cdr_type *t)
{
    sizes z = sizes_of(a, t);
    z.ct = CDR_MIN(z.ct, CDR_MAX((int64_t)64, z.ct * z.cv / z.W));
    z.cv = z.W;
    return z;
}

static cdr_status frozen(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = frozen_sizes(a->attr, a->type);
    const int32_t *y = a->ptr[CDR__LOSS_TARGETS];
    const cdr_type *wt = &a->type[CDR__LOSS_W];
    void *dh = a->ptr[CDR__LSF_DH];
    double sum = 0;
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LOSS_H], &at);
    c.dh = take(&at, (size_t)(z.ct * z.D), 4);
    c.gemm = at;
    for (int64_t t = 0; t < z.T && dh; t++) if (y[t] < 0) zero_row(a, CDR__LSF_DH, t);
    for (int64_t t = 0; chunk_next(a, &z, &c, &t);) {
        sum += frozen_chunk(a, &z, &c, path, rows);
        if (!dh) continue;
        cdr__gemm_args g = { .m = c.n, .n = z.D, .k = z.W, .a = cdr__rows(CDR_F32, c.logits, z.cv),
                             .b = cdr__rows(wt->dtype, a->ptr[CDR__LOSS_W], cdr_type_pitch(wt)), .c = c.dh, .c_dtype = CDR_F32, .c_pitch = z.D };
        cdr__gemm(path, &g, c.gemm, a->lane->n_threads);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (c.n * z.D > FORK)
        for (int64_t i = 0; i < c.n; i++) cdr_row_store(c.dh + i * z.D, dh, &a->type[CDR__LSF_DH], c.token[i]);
    }
    *(double *)a->ptr[CDR__LSF_SUM] = sum;
    return CDR_OK;
}

static size_t frozen_work(int path, const void *attr, const cdr_type *t, int n_threads)
{
    const sizes z = frozen_sizes(attr, t);
    size_t logits = cdr__gemm_work_bytes(path, z.ct, z.W, z.D, n_threads), dh = cdr__gemm_work_bytes(path, z.ct, z.D, z.W, n_threads);
    return chunk_bytes(&z, &t[CDR__LOSS_H]) + part((size_t)(z.ct * z.D), 4) + CDR_MAX(logits, dh);
}

/* ---- one entry per path ------------------------------------------------------------------------------------------ */
cdr_status cdr__loss_fwd_base(const cdr_args *a) { return fwd(a, CDR__GEMM_BASE, &cdr__loss_rows_base); }
cdr_status cdr__loss_fwd_avx2(const cdr_args *a) { return fwd(a, CDR__GEMM_AVX2, &cdr__loss_rows_avx2); }
cdr_status cdr__loss_fwd_avx512(const cdr_args *a) { return fwd(a, CDR__GEMM_AVX512, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_fwd_avx512_bf16(const cdr_args *a) { return fwd(a, CDR__GEMM_AVX512_BF16, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_bwd_base(const cdr_args *a) { return bwd(a, CDR__GEMM_BASE, &cdr__loss_rows_base); }
cdr_status cdr__loss_bwd_avx2(const cdr_args *a) { return bwd(a, CDR__GEMM_AVX2, &cdr__loss_rows_avx2); }
cdr_status cdr__loss_bwd_avx512(const cdr_args *a) { return bwd(a, CDR__GEMM_AVX512, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_bwd_avx512_bf16(const cdr_args *a) { return bwd(a, CDR__GEMM_AVX512_BF16, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_frozen_base(const cdr_args *a) { return frozen(a, CDR__GEMM_BASE, &cdr__loss_rows_base); }
cdr_status cdr__loss_frozen_avx2(const cdr_args *a) { return frozen(a, CDR__GEMM_AVX2, &cdr__loss_rows_avx2); }
cdr_status cdr__loss_frozen_avx512(const cdr_args *a) { return frozen(a, CDR__GEMM_AVX512, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_frozen_avx512_bf16(const cdr_args *a) { return frozen(a, CDR__GEMM_AVX512_BF16, &cdr__loss_rows_avx512); }

#define WORK(NAME, WHICH, PATH) size_t NAME(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads) \
    { (void)n_in, (void)n_out; return WHICH(PATH, attr, t, n_threads); }
WORK(cdr__loss_fwd_base_work, fwd_work, CDR__GEMM_BASE)
WORK(cdr__loss_fwd_avx2_work, fwd_work, CDR__GEMM_AVX2)
WORK(cdr__loss_fwd_avx512_work, fwd_work, CDR__GEMM_AVX512)
WORK(cdr__loss_fwd_avx512_bf16_work, fwd_work, CDR__GEMM_AVX512_BF16)
WORK(cdr__loss_bwd_base_work, bwd_work, CDR__GEMM_BASE)
WORK(cdr__loss_bwd_avx2_work, bwd_work, CDR__GEMM_AVX2)
WORK(cdr__loss_bwd_avx512_work, bwd_work, CDR__GEMM_AVX512)
WORK(cdr__loss_bwd_avx512_bf16_work, bwd_work, CDR__GEMM_AVX512_BF16)
WORK(cdr__loss_frozen_base_work, frozen_work, CDR__GEMM_BASE)
WORK(cdr__loss_frozen_avx2_work, frozen_work, CDR__GEMM_AVX2)
WORK(cdr__loss_frozen_avx512_work, frozen_work, CDR__GEMM_AVX512)
WORK(cdr__loss_frozen_avx512_bf16_work, frozen_work, CDR__GEMM_AVX512_BF16)
