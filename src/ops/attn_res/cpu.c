/* attn_res, CPU kernels: the base rows, and what all instruction sets share. All rows of a token are read once, mixed and written;
 * nothing is kept for the backward, which forms r, s and p again from the same rows (they are there in any case; a kept p would be 4 n
 * bytes a token for 3 n D of the backward's 12 n D FLOPs).
 * Precision: F32; sums over D in 16 partial sums; h rounded once. dproj and dnorm come from c_D = sum_t sum_i ds_i k_i, summed
 * over blocks of tokens whose number depends on T alone, each in ascending t and i, then the blocks in ascending order.
 * Bound: memory. */
#include "ops/attn_res/rows.inc"

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32 };

cdr_status cdr__attn_res_fwd_base(const cdr_args *a) { return fwd(a); }
cdr_status cdr__attn_res_bwd_base(const cdr_args *a) { return bwd(a); }

int64_t cdr__attn_res_block(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

/* query, proj and norm; then per thread: the rows, h */
size_t cdr__attn_res_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    const cdr_attn_res_attr *at = attr;
    return (size_t)(cdr_padded(cdr_type_cols(&t[0])) * (3 + (at->n + 1) * n_threads)) * sizeof(float);
}

/* query_D = norm * proj; proj and norm lie behind it; zeros up to `up` */
void cdr__attn_res_query(const cdr_args *a, int first, float *query_D, int64_t up)
{
    float *proj_D = query_D + up, *norm_D = proj_D + up;
    memset(query_D, 0, (size_t)(3 * up) * sizeof(float));
    cdr_row_load(a->ptr[first], &a->type[first], 0, proj_D);
    cdr_row_load(a->ptr[first + 1], &a->type[first + 1], 0, norm_D);
    for (int64_t d = 0; d < up; d++) query_D[d] = norm_D[d] * proj_D[d];
}

/* query, proj and norm; the blocks' sums of c; then per thread: dh, and of each row its numbers, dV and what is there already */
size_t cdr__attn_res_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    const cdr_attn_res_attr *at = attr;
    int64_t T = cdr_type_rows(&t[0]), up = cdr_padded(cdr_type_cols(&t[0]));
    return (size_t)(up * (3 + cdr_ceil_div(T, cdr__attn_res_block(T)) + (1 + 3 * at->n) * n_threads)) * sizeof(float);
}

/* (7): query_D, which nobody needs any more, holds the sum of the blocks */
void cdr__attn_res_params(const cdr_args *a, const float *sum_ND, int64_t n_blocks, float *query_D, int64_t up)
{
    const int64_t D = cdr_type_cols(&a->type[0]);
    const float *proj_D = query_D + up, *norm_D = proj_D + up;
    float *dproj_D = a->ptr[a->n_in + CDR__ARB_DPROJ], *dnorm_D = a->ptr[a->n_in + CDR__ARB_DNORM];
    memset(query_D, 0, (size_t)up * sizeof(float));
    for (int64_t b = 0; b < n_blocks; b++) for (int64_t d = 0; d < D; d++) query_D[d] += sum_ND[b * up + d];
    for (int64_t d = 0; dproj_D && d < D; d++) dproj_D[d] = norm_D[d] * query_D[d];
    for (int64_t d = 0; dnorm_D && d < D; d++) dnorm_D[d] = proj_D[d] * query_D[d];
}
