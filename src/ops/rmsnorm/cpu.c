/* rmsnorm, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. Bound: memory.
 * Precision: F32; sums over D in 16 partial sums (cdr_dot); r = 1 / sqrt in F32.
 * dw_D is summed over blocks of rows whose number depends on T alone: each block in ascending t, then the blocks in
 * ascending order. So threads change no bit. At most 64 blocks: scratch stays 64 D floats however long T is. */
#include "ops/rmsnorm/rows.inc"

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32 };

static const cdr__rmsnorm_rows base = { normalise, gain, backward };
cdr_status cdr__rmsnorm_fwd_base(const cdr_args *a) { return cdr__rmsnorm_fwd(a, &base); }
cdr_status cdr__rmsnorm_bwd_base(const cdr_args *a) { return cdr__rmsnorm_bwd(a, &base); }

static int64_t block_rows(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

/* gain, then per thread: x */
size_t cdr__rmsnorm_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)cdr_type_cols(&t[0]) * sizeof(float) * (size_t)(1 + n_threads);
}

cdr_status cdr__rmsnorm_fwd(const cdr_args *a, const cdr__rmsnorm_rows *rows)
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
        float r = rows->normalise(x_D, D, eps);
        cdr_row_store(x_D, a->ptr[2], ty, t);              /* rounds to the activation dtype ... */
        cdr_row_load(a->ptr[2], ty, t, x_D);
        rows->gain(x_D, w_D, D);                           /* ... before the gain */
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

cdr_status cdr__rmsnorm_bwd(const cdr_args *a, const cdr__rmsnorm_rows *rows)
{
    const cdr_type *tdy = &a->type[0], *tx = &a->type[1], *tdx = &a->type[4];
    int64_t T = cdr_type_rows(tx), D = cdr_type_cols(tx), n_rows = block_rows(T), n_blocks = cdr_ceil_div(T, n_rows);
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
        for (int64_t t = b * n_rows; t < CDR_MIN((b + 1) * n_rows, T); t++) {
            cdr_row_load(a->ptr[0], tdy, t, dy_D);
            cdr_row_load(a->ptr[1], tx, t, x_D);
            rows->backward(dy_D, x_D, w_D, r_T[t], sum_D, D);
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
