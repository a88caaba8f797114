/* loss, CPU kernels: equations (1)-(4) of op.c. The products are ops/linear's GEMM on the path of the kernel, what is
 * done to a row of logits is in loss_rows.h, what is done with a chunk in chunks.inc; this file is the chunk loop.
 *
 *   for each chunk of up to chunk_tokens tokens with a target (stable order; the others cost nothing)
 *     for each chunk of vocabulary:  logits = h w^T (F32);  forward: online (max, sum) per row
 *                                    backward: d = (p - onehot) scale;  dh += d w;  dw += d^T h
 * Where the head is not trained (loss_frozen), a chunk of tokens has the logits of all of the vocabulary at once, and dh is made from
 * those that lse came from: two products for each token instead of three, in the same chunks of the vocabulary, so that all bits are
 * those of loss and loss_bwd.
 * The backward's logits are the forward's bits: the same GEMM, whose element knows its row and column alone.
 * dh is summed over vocabulary chunks, dw over token chunks, each in ascending order, in F32.
 * Scratch: one chunk's logits, its tokens' rows of h and dh. Threads change no bit.
 * The bf16 path rounds d to BF16 (after the subtraction) where it enters a product.
 */
#include "ops/loss/chunks.inc"
#include "ops/loss/loss_rows.h"

const cdr__loss_rows cdr__loss_rows_base = { row_stats, row_grad };

/* ---- forward -------------------------------------------------------------------------------------------------- */
static cdr_status fwd(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = sizes_of(a->attr, a->type, a->type[CDR__LOSS_W].n[0]);
    float *lse = a->ptr[CDR__LOSS_LSE];
    double sum = 0;
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LOSS_H], z.ct, &at);
    c.gemm = at;
    if (lse) memset(lse, 0, sizeof(float) * (size_t)z.T);
    for (int64_t t = 0; chunk_next(a, &z, &c, &t);) {
        chunk_begin(&c);
        for (int64_t v0 = 0; v0 < z.W; v0 += z.cv) {
            piece w = piece_at(a, &z, v0);
            chunk_logits(a, &z, &c, path, &w, c.logits);
            chunk_stats(a, &z, &c, rows, &w, c.logits);
        }
        sum = chunk_loss(&c, sum, lse);
    }
    *(double *)a->ptr[CDR__LOSS_SUM] = sum;
    return CDR_OK;
}

static size_t fwd_work(int path, const void *attr, const cdr_type *t, int n_threads)
{
    const sizes z = sizes_of(attr, t, t[CDR__LOSS_W].n[0]);
    return chunk_bytes(&z, &t[CDR__LOSS_H], z.ct) + cdr__gemm_work_bytes(path, z.ct, z.cv, z.D, n_threads);
}

/* ---- backward ------------------------------------------------------------------------------------------------- */
static cdr_status bwd(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = sizes_of(a->attr, a->type, a->type[CDR__LOSS_W].n[0]);
    const float *lse = a->ptr[CDR__LSB_LSE], scale = *(const float *)a->ptr[CDR__LSB_SCALE];
    const cdr_type *dwt = &a->type[CDR__LSB_DW];
    void *dh = a->ptr[CDR__LSB_DH], *dw = a->ptr[CDR__LSB_DW];
    bool dh_add = a->add & 1u, dw_add = (a->add >> 1) & 1u;
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LOSS_H], z.ct, &at);
    c.dh = take(&at, (size_t)(z.ct * z.D), 4);
    c.old = take(&at, (size_t)(z.D * a->lane->n_threads), 4);
    c.gemm = at;
    if (dh && !dh_add) zero_masked(a, &z, CDR__LSB_DH);
    for (int64_t t = 0; chunk_next(a, &z, &c, &t); dw_add = true) {
        for (int64_t v0 = 0; v0 < z.W; v0 += z.cv) {
            piece w = piece_at(a, &z, v0);
            chunk_logits(a, &z, &c, path, &w, c.logits);
            chunk_grad(a, &z, &c, rows, &w, c.logits, lse, scale);
            if (dh) chunk_dh(a, &z, &c, path, &w, c.logits);
            if (dw) chunk_dw(a, &z, &c, path, &w, cdr_row(dw, dwt, v0), cdr_type_pitch(dwt), dw_add);
        }
        if (dh) chunk_store(a, &z, &c, CDR__LSB_DH, dh_add);
    }
    for (int64_t v = 0; v < z.W && dw && !dw_add; v++) zero_row(a, CDR__LSB_DW, v);     /* no token had a target */
    return CDR_OK;
}

static size_t bwd_work(int path, const void *attr, const cdr_type *t, int n_threads)
{
    const sizes z = sizes_of(attr, t, t[CDR__LOSS_W].n[0]);
    return chunk_bytes(&z, &t[CDR__LOSS_H], z.ct) + part((size_t)(z.ct * z.D), 4) + part((size_t)(z.D * n_threads), 4) + products_work(path, &z, n_threads);
}

/* ---- forward with dh: a head that is not trained -------------------------------------------------------------------- */
static sizes frozen_sizes(const cdr_loss_attr *a, const cdr_type *t)
{
    sizes z = sizes_of(a, t, t[CDR__LOSS_W].n[0]);
    z.ct = CDR_MIN(z.ct, CDR_MAX((int64_t)64, z.ct * z.cv / z.W));
    z.ld = z.W;
    return z;
}

static cdr_status frozen(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = frozen_sizes(a->attr, a->type);
    const float scale = *(const float *)a->ptr[CDR__LSF_SCALE];
    void *dh = a->ptr[CDR__LSF_DH];
    double sum = 0;
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LOSS_H], z.ct, &at);
    float *lse_T = take(&at, (size_t)z.T, 4);
    c.dh = take(&at, (size_t)(z.ct * z.D), 4);
    c.gemm = at;
    if (dh) zero_masked(a, &z, CDR__LSF_DH);
    for (int64_t t = 0; chunk_next(a, &z, &c, &t);) {
        chunk_begin(&c);
        for (int64_t v0 = 0; v0 < z.W; v0 += z.cv) {
            piece w = piece_at(a, &z, v0);
            chunk_logits(a, &z, &c, path, &w, c.logits + v0);
            chunk_stats(a, &z, &c, rows, &w, c.logits + v0);
        }
        sum = chunk_loss(&c, sum, lse_T);
        for (int64_t v0 = 0; v0 < z.W && dh; v0 += z.cv) {
            piece w = piece_at(a, &z, v0);
            chunk_grad(a, &z, &c, rows, &w, c.logits + v0, lse_T, scale);
            chunk_dh(a, &z, &c, path, &w, c.logits + v0);
        }
        if (dh) chunk_store(a, &z, &c, CDR__LSF_DH, false);
    }
    *(double *)a->ptr[CDR__LSF_SUM] = sum;
    return CDR_OK;
}

static size_t frozen_work(int path, const void *attr, const cdr_type *t, int n_threads)
{
    const sizes z = frozen_sizes(attr, t);
    return chunk_bytes(&z, &t[CDR__LOSS_H], z.ct) + part((size_t)z.T, 4) + part((size_t)(z.ct * z.D), 4) + products_work(path, &z, n_threads);
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
