/* attn_res, CPU kernels: the loops over tokens, which all instruction sets share, and the base rows. All rows of a token are
 * read once, mixed and written; nothing is kept for the backward, which forms r, s and p again from the same rows (they are
 * there in any case; a kept p would be 4 n bytes a token for 3 n D of the backward's 12 n D FLOPs).
 * Precision: F32; sums over D in 16 partial sums; h rounded once. dproj and dnorm come from c_D = sum_t sum_i ds_i k_i, summed
 * over blocks of tokens whose number depends on T alone, each in ascending t and i, then the blocks in ascending order.
 * Bound: memory. */
#include "ops/attn_res/rows.inc"

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32 };

static const cdr__attn_res_rows base = { mix, backward };
cdr_status cdr__attn_res_fwd_base(const cdr_args *a) { return cdr__attn_res_fwd(a, &base); }
cdr_status cdr__attn_res_bwd_base(const cdr_args *a) { return cdr__attn_res_bwd(a, &base); }

static int64_t block_rows(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

/* query, proj and norm; then per thread: the rows, h */
size_t cdr__attn_res_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    const cdr_attn_res_attr *at = attr;
    return (size_t)(cdr_type_cols(&t[0]) * (3 + (at->n + 1) * n_threads)) * sizeof(float);
}

/* query_D = norm * proj; proj and norm lie behind it */
static void load_query(const cdr_args *a, int first, float *query_D, int64_t D)
{
    float *proj_D = query_D + D, *norm_D = proj_D + D;
    cdr_row_load(a->ptr[first], &a->type[first], 0, proj_D);
    cdr_row_load(a->ptr[first + 1], &a->type[first + 1], 0, norm_D);
    for (int64_t d = 0; d < D; d++) query_D[d] = norm_D[d] * proj_D[d];
}

cdr_status cdr__attn_res_fwd(const cdr_args *a, const cdr__attn_res_rows *rows)
{
    const cdr_attn_res_attr *at = a->attr;
    int n = at->n;
    int64_t T = cdr_type_rows(&a->type[0]), D = cdr_type_cols(&a->type[0]);
    float *query_D = a->work, *scratch = query_D + 3 * D;
    assert(a->work);
    load_query(a, n, query_D, D);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *v_nD = cdr_thread_part(scratch, (n + 1) * D), *h_D = v_nD + n * D;
        for (int i = 0; i < n; i++) cdr_row_load(a->ptr[i], &a->type[i], t, v_nD + i * D);
        rows->mix(v_nD, query_D, n, D, at->eps, h_D);
        cdr_row_store(h_D, a->ptr[n + 2], &a->type[n + 2], t);
    }
    return CDR_OK;
}

/* query, proj and norm; the blocks' sums of c; then per thread: dh, the rows, an old row */
size_t cdr__attn_res_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    const cdr_attn_res_attr *at = attr;
    int64_t T = cdr_type_rows(&t[0]), D = cdr_type_cols(&t[0]);
    return (size_t)(D * (3 + cdr_ceil_div(T, block_rows(T)) + (at->n + 2) * n_threads)) * sizeof(float);
}

/* (7): query_D, which nobody needs any more, holds the sum of the blocks */
static void param_grads(const cdr_args *a, const float *sum_ND, int64_t n_blocks, float *query_D, int64_t D)
{
    const float *proj_D = query_D + D, *norm_D = proj_D + D;
    float *dproj_D = a->ptr[a->n_in + CDR__ARB_DPROJ], *dnorm_D = a->ptr[a->n_in + CDR__ARB_DNORM];
    memset(query_D, 0, (size_t)D * sizeof(float));
    for (int64_t b = 0; b < n_blocks; b++) for (int64_t d = 0; d < D; d++) query_D[d] += sum_ND[b * D + d];
    for (int64_t d = 0; dproj_D && d < D; d++) dproj_D[d] = norm_D[d] * query_D[d];
    for (int64_t d = 0; dnorm_D && d < D; d++) dnorm_D[d] = proj_D[d] * query_D[d];
}

cdr_status cdr__attn_res_bwd(const cdr_args *a, const cdr__attn_res_rows *rows)
{
    const cdr_attn_res_attr *at = a->attr;
    int n = at->n, out = a->n_in + CDR__ARB_DV;
    int64_t T = cdr_type_rows(&a->type[0]), D = cdr_type_cols(&a->type[0]), n_rows = block_rows(T), n_blocks = cdr_ceil_div(T, n_rows);
    float *query_D = a->work, *sum_ND = query_D + 3 * D, *scratch = sum_ND + n_blocks * D;
    bool want_params = a->ptr[a->n_in + CDR__ARB_DPROJ] || a->ptr[a->n_in + CDR__ARB_DNORM];
    assert(a->work);
    load_query(a, n + 1, query_D, D);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *dh_D = cdr_thread_part(scratch, (n + 2) * D), *v_nD = dh_D + D, *old_D = v_nD + n * D;
        float *csum_D = want_params ? sum_ND + b * D : NULL;
        if (csum_D) memset(csum_D, 0, (size_t)D * sizeof(float));
        for (int64_t t = b * n_rows; t < CDR_MIN((b + 1) * n_rows, T); t++) {
            cdr_row_load(a->ptr[0], &a->type[0], t, dh_D);
            for (int i = 0; i < n; i++) cdr_row_load(a->ptr[1 + i], &a->type[1 + i], t, v_nD + i * D);
            rows->backward(dh_D, v_nD, query_D, n, D, at->eps, csum_D);
            for (int i = 0; i < n; i++) {
                if (!a->ptr[out + i]) continue;
                if ((a->add >> (CDR__ARB_DV + i)) & 1u) cdr_row_add(v_nD + i * D, a->ptr[out + i], &a->type[out + i], t, old_D);
                else cdr_row_store(v_nD + i * D, a->ptr[out + i], &a->type[out + i], t);
            }
        }
    }
    if (want_params) param_grads(a, sum_ND, n_blocks, query_D, D);
    return CDR_OK;
}
