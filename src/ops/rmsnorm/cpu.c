/* rmsnorm, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. Bound: memory, 0.21 ns an
 * element of the forward in BF16 for two threads of Zen 3; in cache one thread takes 0.45 ns with AVX2 and 0.7 in base.
 * Precision: F32; sums over D in 16 partial sums (cdr_dot); r = 1 / sqrt in F32.
 * dw_D is summed over blocks of rows whose number depends on T alone: each block in ascending t, then the blocks in
 * ascending order. So threads change no bit. At most 64 blocks: scratch stays 64 D floats however long T is. */
#include "ops/rmsnorm/rows.inc"

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32 };

static const cdr__rmsnorm_rows base = { forward, backward };
cdr_status cdr__rmsnorm_fwd_base(const cdr_args *a) { return cdr__rmsnorm_fwd(a, &base); }
cdr_status cdr__rmsnorm_bwd_base(const cdr_args *a) { return cdr__rmsnorm_bwd(a, &base); }

static int64_t block_rows(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

/* The gain as F32, padded with zeros */
static void load_gain(const cdr_args *a, int i, float *w_D)
{
    const int64_t D = cdr_type_cols(&a->type[i]);
    cdr_row_load(a->ptr[i], &a->type[i], 0, w_D);
    memset(w_D + D, 0, (size_t)(cdr_padded(D) - D) * sizeof(float));
}

/* gain, then per thread: x */
size_t cdr__rmsnorm_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)cdr_padded(cdr_type_cols(&t[0])) * sizeof(float) * (size_t)(1 + n_threads);
}

cdr_status cdr__rmsnorm_fwd(const cdr_args *a, const cdr__rmsnorm_rows *rows)
{
    const int64_t T = cdr_type_rows(&a->type[0]), pad = cdr_padded(cdr_type_cols(&a->type[0]));
    const bool stream = cdr_streams(&a->type[2]);
    assert(a->work && a->ptr[2]);
    float *w_D = a->work, *r_T = a->ptr[3];
    load_gain(a, 1, w_D);
#pragma omp parallel num_threads(a->lane->n_threads)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) {
            const float r = rows->forward(a, t, w_D, cdr_thread_part(w_D + pad, pad), stream);
            if (r_T) r_T[t] = r;
        }
        if (stream) cdr_stream_end();
    }
    return CDR_OK;
}

/* gain, the blocks' sums of dw, then per thread: dy, x */
size_t cdr__rmsnorm_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    int64_t T = cdr_type_rows(&t[1]), D = cdr_type_cols(&t[1]), n_blocks = cdr_ceil_div(T, block_rows(T));
    return (size_t)(cdr_padded(D) * (1 + 2 * n_threads) + D * n_blocks) * sizeof(float);
}

cdr_status cdr__rmsnorm_bwd(const cdr_args *a, const cdr__rmsnorm_rows *rows)
{
    const int64_t T = cdr_type_rows(&a->type[1]), D = cdr_type_cols(&a->type[1]), pad = cdr_padded(D), n_rows = block_rows(T), n_blocks = cdr_ceil_div(T, n_rows);
    const bool stream = a->ptr[4] && !(a->add & 1u) && cdr_streams(&a->type[4]);
    assert(a->work);
    float *w_D = a->work, *sum_ND = w_D + pad, *scratch = sum_ND + n_blocks * D, *dw_D = a->ptr[5];
    load_gain(a, 2, w_D);
#pragma omp parallel num_threads(a->lane->n_threads)
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < n_blocks; b++) {
            float *sum_D = dw_D ? sum_ND + b * D : NULL;
            if (sum_D) memset(sum_D, 0, (size_t)D * sizeof(float));
            for (int64_t t = b * n_rows; t < CDR_MIN((b + 1) * n_rows, T); t++) rows->backward(a, t, w_D, sum_D, cdr_thread_part(scratch, 2 * pad), stream);
        }
        if (stream) cdr_stream_end();
    }
    if (!dw_D) return CDR_OK;
    memset(dw_D, 0, (size_t)D * sizeof(float));
    for (int64_t b = 0; b < n_blocks; b++) for (int64_t d = 0; d < D; d++) dw_D[d] += sum_ND[b * D + d];
    return CDR_OK;
}
