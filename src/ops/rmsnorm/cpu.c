/* rmsnorm, CPU kernels in plain C. Equations: op.c. Bound: memory.
 * Precision: F32; sums over D in 16 partial sums (cdr_dot); r = 1 / sqrt in F32.
 * dw_D is summed over blocks of rows whose number depends on T alone: each block in ascending t, then the blocks in
 * ascending order. So threads change no bit. At most 64 blocks: scratch stays 64 D floats however long T is. */
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/cpu.h"
#include <math.h>

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32 };

static int64_t block_rows(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

/* gain, then per thread: x */
size_t cdr__rmsnorm_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)cdr_type_cols(&t[0]) * sizeof(float) * (size_t)(1 + n_threads);
}

cdr_status cdr__rmsnorm_fwd_base(const cdr_args *a)
{
    const cdr_rmsnorm_attr *at = a->attr;
    const cdr_type *tx = &a->type[0], *ty = &a->type[2];
    int64_t T = cdr_type_rows(tx), D = cdr_type_cols(tx);
    assert(a->work && a->ptr[2]);
    float *w_D = a->work, *r_T = a->ptr[3], eps = at->eps;
    cdr_row_load(a->ptr[1], &a->type[1], 0, w_D);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *x_D = cdr_thread_part(w_D + D, D);
        cdr_row_load(a->ptr[0], tx, t, x_D);
        float r = 1.0f / sqrtf(cdr_dot(x_D, x_D, D) / (float)D + eps);
        for (int64_t d = 0; d < D; d++) x_D[d] *= r;
        cdr_row_store(x_D, a->ptr[2], ty, t);              /* rounds to the activation dtype ... */
        cdr_row_load(a->ptr[2], ty, t, x_D);
        for (int64_t d = 0; d < D; d++) x_D[d] *= w_D[d];  /* ... before the gain */
        cdr_row_store(x_D, a->ptr[2], ty, t);
        if (r_T) r_T[t] = r;
    }
    return CDR_OK;
}

/* gain, the blocks' sums of dw, then per thread: dy, x, old dx */
size_t cdr__rmsnorm_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    int64_t T = cdr_type_rows(&t[1]), D = cdr_type_cols(&t[1]), n_blocks = cdr_ceil_div(T, block_rows(T));
    return (size_t)(D * (1 + n_blocks + 3 * n_threads)) * sizeof(float);
}

/* One row: dx into dy's place; dy * n is added to dw_D (NULL: not wanted). */
static void bwd_row(float *dy_D, float *x_D, const float *w_D, float r, float *dw_D, int64_t D)
{
    for (int64_t d = 0; d < D; d++) x_D[d] *= r;           /* n */
    if (dw_D) for (int64_t d = 0; d < D; d++) dw_D[d] += dy_D[d] * x_D[d];
    for (int64_t d = 0; d < D; d++) dy_D[d] *= w_D[d];     /* u */
    float m = cdr_dot(dy_D, x_D, D) / (float)D;
    for (int64_t d = 0; d < D; d++) dy_D[d] = r * (dy_D[d] - x_D[d] * m);
}

cdr_status cdr__rmsnorm_bwd_base(const cdr_args *a)
{
    const cdr_type *tdy = &a->type[0], *tx = &a->type[1], *tdx = &a->type[4];
    int64_t T = cdr_type_rows(tx), D = cdr_type_cols(tx), rows = block_rows(T), n_blocks = cdr_ceil_div(T, rows);
    assert(a->work);
    float *w_D = a->work, *sum_ND = w_D + D, *scratch = sum_ND + n_blocks * D, *dw_D = a->ptr[5];
    const float *r_T = a->ptr[3];
    bool add_dx = (a->add & 1) != 0;
    cdr_row_load(a->ptr[2], &a->type[2], 0, w_D);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *dy_D = cdr_thread_part(scratch, 3 * D), *x_D = dy_D + D, *old_D = x_D + D;
        float *sum_D = dw_D ? sum_ND + b * D : NULL;
        if (sum_D) memset(sum_D, 0, (size_t)D * sizeof(float));
        for (int64_t t = b * rows; t < CDR_MIN((b + 1) * rows, T); t++) {
            cdr_row_load(a->ptr[0], tdy, t, dy_D);
            cdr_row_load(a->ptr[1], tx, t, x_D);
            bwd_row(dy_D, x_D, w_D, r_T[t], sum_D, D);
            if (!a->ptr[4]) continue;
            if (add_dx) cdr_row_add(dy_D, a->ptr[4], tdx, t, old_D);
            else cdr_row_store(dy_D, a->ptr[4], tdx, t);
        }
    }
    if (!dw_D) return CDR_OK;
    memset(dw_D, 0, (size_t)D * sizeof(float));
    for (int64_t b = 0; b < n_blocks; b++) for (int64_t d = 0; d < D; d++) dw_D[d] += sum_ND[b * D + d];
    return CDR_OK;
}
