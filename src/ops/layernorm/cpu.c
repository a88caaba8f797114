/* layernorm, CPU kernels: scratch and the base kernels; rows.inc has the loops. */
#include "ops/layernorm/rows.inc"

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32 };
int64_t cdr__layernorm_block_rows(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

cdr_status cdr__layernorm_base(const cdr_args *a) { return forward(a); }
cdr_status cdr__layernorm_bwd_base(const cdr_args *a) { return backward(a); }

/* gain, bias, then per thread: x */
size_t cdr__layernorm_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)cdr_padded(cdr_type_cols(&t[CDR__LN_X])) * sizeof(float) * (size_t)(2 + n_threads);
}

/* gain, the blocks' sums of dw and db, then per thread: n, u */
size_t cdr__layernorm_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    int64_t T = cdr_type_rows(&t[CDR__LNB_X]), D = cdr_type_cols(&t[CDR__LNB_X]), n_blocks = cdr_ceil_div(T, cdr__layernorm_block_rows(T));
    return (size_t)(cdr_padded(D) * (1 + 2 * n_threads) + 2 * n_blocks * D) * sizeof(float);
}
