/* layernorm, CPU kernels in plain C: equations (1) to (3) of op.c. Bound: memory.
 * Precision: F32; sums over D in 16 partial sums; the mean in two passes and the variance around it, so that a mean 1000 times
 * the deviation costs nothing (one pass: 9e-5). dw and db are summed over blocks of rows whose number depends on T alone, each in ascending t, then the blocks in
 * ascending order: threads change no bit.
 */
#include "ops/layernorm/layernorm.h"
#include "ops/cpu.h"
#include <math.h>

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32 };
static int64_t block_rows(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

/* sum x_i, in the order of cdr_dot */
static float sum_of(const float *x, int64_t n)
{
    float s[16] = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) for (int j = 0; j < 16; j++) s[j] += x[i + j];
    for (int j = 0; i + j < n; j++) s[j] += x[i + j];
    for (int w = 8; w > 0; w /= 2) for (int j = 0; j < w; j++) s[j] += s[j + w];
    return s[0];
}

/* x becomes n = (x - m) r; returns r */
static float normalise(float *x_D, int64_t D, float eps)
{
    for (int pass = 0; pass < 2; pass++) {                 /* the second takes away what the first one's rounding left */
        float m = sum_of(x_D, D) / (float)D;
        for (int64_t d = 0; d < D; d++) x_D[d] -= m;
    }
    float r = 1.0f / sqrtf(cdr_dot(x_D, x_D, D) / (float)D + eps);
    for (int64_t d = 0; d < D; d++) x_D[d] *= r;
    return r;
}

/* gain, bias, then per thread: x */
size_t cdr__layernorm_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)cdr_type_cols(&t[CDR__LN_X]) * sizeof(float) * (size_t)(2 + n_threads);
}

cdr_status cdr__layernorm_base(const cdr_args *a)
{
    const cdr_layernorm_attr *at = a->attr;
    const cdr_type *tx = &a->type[CDR__LN_X], *ty = &a->type[CDR__LN_Y];
    int64_t T = cdr_type_rows(tx), D = cdr_type_cols(tx);
    float *w_D = a->work, *b_D = w_D + D;
    assert(a->work && a->ptr[CDR__LN_Y]);
    cdr_row_load(a->ptr[CDR__LN_W], &a->type[CDR__LN_W], 0, w_D);
    if (a->ptr[CDR__LN_B]) cdr_row_load(a->ptr[CDR__LN_B], &a->type[CDR__LN_B], 0, b_D);
    else memset(b_D, 0, (size_t)D * sizeof(float));
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *x_D = cdr_thread_part(b_D + D, D);
        cdr_row_load(a->ptr[CDR__LN_X], tx, t, x_D);
        normalise(x_D, D, at->eps);
        for (int64_t d = 0; d < D; d++) x_D[d] = w_D[d] * x_D[d] + b_D[d];
        cdr_row_store(x_D, a->ptr[CDR__LN_Y], ty, t);
    }
    return CDR_OK;
}

/* gain, the blocks' sums of dw and db, then per thread: dy, x, old dx */
size_t cdr__layernorm_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    int64_t T = cdr_type_rows(&t[CDR__LNB_X]), D = cdr_type_cols(&t[CDR__LNB_X]), n_blocks = cdr_ceil_div(T, block_rows(T));
    return (size_t)(D * (1 + 2 * n_blocks + 3 * n_threads)) * sizeof(float);
}

/* dy and n of a row: adds to the sums, leaves dx in dy */
static void row_bwd(float *dy_D, const float *n_D, const float *w_D, float r, float *dw_D, float *db_D, int64_t D)
{
    for (int64_t d = 0; d < D; d++) {
        dw_D[d] += dy_D[d] * n_D[d];
        db_D[d] += dy_D[d];
        dy_D[d] *= w_D[d];
    }
    float u1 = sum_of(dy_D, D) / (float)D, un = cdr_dot(dy_D, n_D, D) / (float)D;
    for (int64_t d = 0; d < D; d++) dy_D[d] = r * ((dy_D[d] - u1) - n_D[d] * un);
}

cdr_status cdr__layernorm_bwd_base(const cdr_args *a)
{
    const cdr_layernorm_attr *at = a->attr;
    const cdr_type *tdy = &a->type[CDR__LNB_DY], *tx = &a->type[CDR__LNB_X], *tdx = &a->type[CDR__LNB_DX];
    int64_t T = cdr_type_rows(tx), D = cdr_type_cols(tx), n_rows = block_rows(T), n_blocks = cdr_ceil_div(T, n_rows);
    float *w_D = a->work, *sum_N2D = w_D + D, *scratch = sum_N2D + 2 * n_blocks * D, *total[2] = { a->ptr[CDR__LNB_DW], a->ptr[CDR__LNB_DB] };
    assert(a->work);
    cdr_row_load(a->ptr[CDR__LNB_W], &a->type[CDR__LNB_W], 0, w_D);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *dy_D = cdr_thread_part(scratch, 3 * D), *x_D = dy_D + D, *old_D = x_D + D, *sum_2D = sum_N2D + b * 2 * D;
        memset(sum_2D, 0, (size_t)(2 * D) * sizeof(float));
        for (int64_t t = b * n_rows; t < CDR_MIN((b + 1) * n_rows, T); t++) {
            cdr_row_load(a->ptr[CDR__LNB_DY], tdy, t, dy_D);
            cdr_row_load(a->ptr[CDR__LNB_X], tx, t, x_D);
            float r = normalise(x_D, D, at->eps);
            row_bwd(dy_D, x_D, w_D, r, sum_2D, sum_2D + D, D);
            if (!a->ptr[CDR__LNB_DX]) continue;
            if (a->add & 1u) cdr_row_add(dy_D, a->ptr[CDR__LNB_DX], tdx, t, old_D);
            else cdr_row_store(dy_D, a->ptr[CDR__LNB_DX], tdx, t);
        }
    }
    for (int k = 0; k < 2; k++) {
        if (!total[k]) continue;
        memset(total[k], 0, (size_t)D * sizeof(float));
        for (int64_t b = 0; b < n_blocks; b++) for (int64_t d = 0; d < D; d++) total[k][d] += sum_N2D[(2 * b + k) * D + d];
    }
    return CDR_OK;
}
