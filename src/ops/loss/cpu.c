/* loss, CPU kernels: equations (1)-(4) of op.c. The products are ops/linear's GEMM on the path of the kernel, what is
 * done to a row of logits is in loss_rows.h, what is done with a chunk in chunks.inc; this file is the chunk loop.
 *
 *   for each chunk of up to chunk_tokens tokens with a target (stable order; the others cost nothing)
 *     for each chunk of vocabulary:  logits = h w^T (F32);  forward: online (max, sum) per row
 *                                    backward: d = (p - onehot) scale;  dh += d w;  dw += d^T h
 * Where the head is not trained (loss_frozen), dh comes from the logits that lse comes from, in the same sweep, (5) and (6): two products
 * for each token instead of three, both over the piece of w that was just read, and the loss has loss's bits. Tried: logits of the
 * whole vocabulary, kept for as few tokens as fit (64 at W 163,840): w is packed for every 64 rows.
 * The backward's logits are the forward's bits: the same GEMM, whose element knows its row and column alone.
 * dh is summed over vocabulary chunks, dw over token chunks, each in ascending order, in F32.
 * Scratch: one chunk's logits, its tokens' rows of h and dh. Threads change no bit.
 * The paths of BF16 (avx512_bf16, amx) round d, or e, to BF16 where it enters a product, after the subtraction.
 */
#include "ops/loss/chunks.inc"
#include "ops/loss/loss_rows.h"

const cdr__loss_rows cdr__loss_rows_base = { row_stats, row_grad, row_online };

/* ---- forward -------------------------------------------------------------------------------------------------- */
/* (1) and (2), the sum to output 0; i_weights: the operand that weights would be; lse by token or NULL */
static cdr_status loss_of(const cdr_args *a, int path, const cdr__loss_rows *rows, int i_weights, float *lse)
{
    const sizes z = sizes_of(a->attr, a->type, a->type[CDR__LOSS_W].n[0]);
    double sum = 0;
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LOSS_H], z.ct, &at);
    c.weight = weights_of(a, i_weights);
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
    *(double *)output(a, 0) = sum;
    return CDR_OK;
}

static cdr_status fwd(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    return loss_of(a, path, rows, CDR__LOSS_WEIGHTS, output(a, CDR__LOSS_LSE));
}

static size_t fwd_work(int path, const void *attr, int n_in, const cdr_type *t, int n_threads)
{
    (void)n_in;
    const sizes z = sizes_of(attr, t, t[CDR__LOSS_W].n[0]);
    return chunk_bytes(&z, &t[CDR__LOSS_H], z.ct) + cdr__gemm_work_bytes(path, z.ct, z.cv, z.D, n_threads);
}

/* ---- backward ------------------------------------------------------------------------------------------------- */
static cdr_status bwd(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = sizes_of(a->attr, a->type, a->type[CDR__LOSS_W].n[0]);
    const float *lse = a->ptr[CDR__LSB_LSE], scale = *(const float *)a->ptr[CDR__LSB_SCALE];
    const cdr_type *dwt = output_type(a, CDR__LSB_DW);
    void *dh = output(a, CDR__LSB_DH), *dw = output(a, CDR__LSB_DW);
    bool dh_add = a->add & 1u, dw_add = (a->add >> 1) & 1u;
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LOSS_H], z.ct, &at);
    c.weight = weights_of(a, CDR__LSB_WEIGHTS);
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

static size_t bwd_work(int path, const void *attr, int n_in, const cdr_type *t, int n_threads)
{
    (void)n_in;
    const sizes z = sizes_of(attr, t, t[CDR__LOSS_W].n[0]);
    return chunk_bytes(&z, &t[CDR__LOSS_H], z.ct) + part((size_t)(z.ct * z.D), 4) + part((size_t)(z.D * n_threads), 4) + products_work(path, &z, n_threads);
}

/* ---- forward with dh: a head that is not trained -------------------------------------------------------------------- */
static cdr_status frozen(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    if (!output(a, CDR__LSF_DH)) return loss_of(a, path, rows, CDR__LSF_WEIGHTS, NULL);
    const sizes z = sizes_of(a->attr, a->type, a->type[CDR__LOSS_W].n[0]);
    const float scale = *(const float *)a->ptr[CDR__LSF_SCALE];
    double sum = 0;
    char *at = a->work;
    chunk c = chunk_take(&z, &a->type[CDR__LOSS_H], z.ct, &at);
    c.weight = weights_of(a, CDR__LSF_WEIGHTS);
    c.rest = take(&at, (size_t)z.ct, 4);
    c.dh = take(&at, (size_t)(z.ct * z.D), 4);
    c.old = take(&at, (size_t)(z.D * a->lane->n_threads), 4);
    c.gemm = at;
    zero_masked(a, &z, CDR__LSF_DH);
    for (int64_t t = 0; chunk_next(a, &z, &c, &t);) {
        chunk_begin(&c);
        for (int64_t v0 = 0; v0 < z.W; v0 += z.cv) {
            piece w = piece_at(a, &z, v0);
            chunk_logits(a, &z, &c, path, &w, c.logits);
            chunk_online(a, &z, &c, rows, &w, c.logits);
            chunk_dh(a, &z, &c, path, &w, c.logits);
        }
        sum = chunk_loss(&c, sum, NULL);
        chunk_finish(a, &z, &c, scale);
        chunk_store(a, &z, &c, CDR__LSF_DH, false);
    }
    *(double *)output(a, CDR__LSF_SUM) = sum;
    return CDR_OK;
}

static size_t frozen_work(int path, const void *attr, int n_in, const cdr_type *t, int n_threads)
{
    const sizes z = sizes_of(attr, t, t[CDR__LOSS_W].n[0]);
    if (cdr_absent(&t[n_in + CDR__LSF_DH])) return fwd_work(path, attr, n_in, t, n_threads);
    return chunk_bytes(&z, &t[CDR__LOSS_H], z.ct) + part((size_t)z.ct, 4) + part((size_t)(z.ct * z.D), 4) + part((size_t)(z.D * n_threads), 4) +
           products_work(path, &z, n_threads);
}

/* ---- one entry per path ------------------------------------------------------------------------------------------ */
cdr_status cdr__loss_fwd_base(const cdr_args *a) { return fwd(a, CDR__GEMM_BASE, &cdr__loss_rows_base); }
cdr_status cdr__loss_fwd_avx2(const cdr_args *a) { return fwd(a, CDR__GEMM_AVX2, &cdr__loss_rows_avx2); }
cdr_status cdr__loss_fwd_avx512(const cdr_args *a) { return fwd(a, CDR__GEMM_AVX512, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_fwd_avx512_bf16(const cdr_args *a) { return fwd(a, CDR__GEMM_AVX512_BF16, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_fwd_amx(const cdr_args *a) { return fwd(a, CDR__GEMM_AMX, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_bwd_base(const cdr_args *a) { return bwd(a, CDR__GEMM_BASE, &cdr__loss_rows_base); }
cdr_status cdr__loss_bwd_avx2(const cdr_args *a) { return bwd(a, CDR__GEMM_AVX2, &cdr__loss_rows_avx2); }
cdr_status cdr__loss_bwd_avx512(const cdr_args *a) { return bwd(a, CDR__GEMM_AVX512, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_bwd_avx512_bf16(const cdr_args *a) { return bwd(a, CDR__GEMM_AVX512_BF16, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_bwd_amx(const cdr_args *a) { return bwd(a, CDR__GEMM_AMX, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_frozen_base(const cdr_args *a) { return frozen(a, CDR__GEMM_BASE, &cdr__loss_rows_base); }
cdr_status cdr__loss_frozen_avx2(const cdr_args *a) { return frozen(a, CDR__GEMM_AVX2, &cdr__loss_rows_avx2); }
cdr_status cdr__loss_frozen_avx512(const cdr_args *a) { return frozen(a, CDR__GEMM_AVX512, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_frozen_avx512_bf16(const cdr_args *a) { return frozen(a, CDR__GEMM_AVX512_BF16, &cdr__loss_rows_avx512); }
cdr_status cdr__loss_frozen_amx(const cdr_args *a) { return frozen(a, CDR__GEMM_AMX, &cdr__loss_rows_avx512); }

#define WORK(NAME, WHICH, PATH) size_t NAME(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads) \
    { (void)n_out; return WHICH(PATH, attr, n_in, t, n_threads); }
WORK(cdr__loss_fwd_base_work, fwd_work, CDR__GEMM_BASE)
WORK(cdr__loss_fwd_avx2_work, fwd_work, CDR__GEMM_AVX2)
WORK(cdr__loss_fwd_avx512_work, fwd_work, CDR__GEMM_AVX512)
WORK(cdr__loss_fwd_avx512_bf16_work, fwd_work, CDR__GEMM_AVX512_BF16)
WORK(cdr__loss_fwd_amx_work, fwd_work, CDR__GEMM_AMX)
WORK(cdr__loss_bwd_base_work, bwd_work, CDR__GEMM_BASE)
WORK(cdr__loss_bwd_avx2_work, bwd_work, CDR__GEMM_AVX2)
WORK(cdr__loss_bwd_avx512_work, bwd_work, CDR__GEMM_AVX512)
WORK(cdr__loss_bwd_avx512_bf16_work, bwd_work, CDR__GEMM_AVX512_BF16)
WORK(cdr__loss_bwd_amx_work, bwd_work, CDR__GEMM_AMX)
WORK(cdr__loss_frozen_base_work, frozen_work, CDR__GEMM_BASE)
WORK(cdr__loss_frozen_avx2_work, frozen_work, CDR__GEMM_AVX2)
WORK(cdr__loss_frozen_avx512_work, frozen_work, CDR__GEMM_AVX512)
WORK(cdr__loss_frozen_avx512_bf16_work, frozen_work, CDR__GEMM_AVX512_BF16)
WORK(cdr__loss_frozen_amx_work, frozen_work, CDR__GEMM_AMX)
