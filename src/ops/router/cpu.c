/* router, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. Bound: the exponentials, E a token.
 * Precision: F32 throughout; the sum of a softmax in 16 partial sums, the sum over a token's experts in ascending id.
 * Selection: a bound from the maxima of 64 columns, which some k + 4 scores are not below; the (k+1)-th largest of these by bisection (rows.inc).
 * Tried before it: bisection over all scores, a pass of comparisons for each of ten to thirty steps: E = 896, k = 16, AVX2, in cache,
 * 2.26 us a token of Zen 3 against 1.43, of which the exponentials are about half.
 * Tried: a sorted list of the k + 1 best so far, one pass over the scores against its last entry: branches that no predictor knows.
 * 4096 tokens, one thread of Zen 3, shared with others, best of 15: 1.6 ms against 0.94 (E = 32, k = 4), 37 ms against 21 (E = 896, k = 16). */
#include "ops/router/rows.inc"

static const cdr__router_rows base = { route, backward };
cdr_status cdr__router_fwd_base(const cdr_args *a) { return cdr__router_fwd(a, &base); }
cdr_status cdr__router_bwd_base(const cdr_args *a) { return cdr__router_bwd(a, &base); }

/* words of 4 bytes of each of the arrays of a thread: scores, keys, candidates' keys and ids */
static int64_t words(int64_t E) { return cdr_ceil_div(E, CDR__ROUTER_COLUMNS) * CDR__ROUTER_COLUMNS; }

size_t cdr__router_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)(4 * words(t[CDR__ROUTER_LOGITS].n[1]) * n_threads) * sizeof(float);
}

cdr_status cdr__router_fwd(const cdr_args *a, const cdr__router_rows *rows)
{
    const cdr_router_attr *at = a->attr;
    const cdr_type *tx = &a->type[CDR__ROUTER_LOGITS], *ti = &a->type[CDR__ROUTER_IDX], *tp = &a->type[CDR__ROUTER_P];
    int64_t T = tx->n[0], E = tx->n[1], k = at->top_k;
    const int32_t *start_T = a->ptr[CDR__ROUTER_START], *pos_T = a->ptr[CDR__ROUTER_POS];
    const float *bias_E = a->ptr[CDR__ROUTER_BIAS];
    float *alpha_T = a->ptr[CDR__ROUTER_ALPHA];
    assert(a->work);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        int32_t *idx_k = cdr_row(a->ptr[CDR__ROUTER_IDX], ti, t);
        float *p_k = cdr_row(a->ptr[CDR__ROUTER_P], tp, t), alpha = 0.0f;
        if (start_T[t] > pos_T[t]) {
            for (int64_t j = 0; j < k; j++) {
                idx_k[j] = -1;
                p_k[j] = 0.0f;
            }
        } else {
            const int64_t n = words(E);
            float *w = cdr_thread_part(a->work, 4 * n);
            cdr__router_scratch s = { .s_E = w, .v_E = (int32_t *)(w + n), .c_E = (int32_t *)(w + 2 * n), .i_E = (int32_t *)(w + 3 * n) };
            alpha = rows->route(at, cdr_row(a->ptr[CDR__ROUTER_LOGITS], tx, t), bias_E, E, &s, idx_k, p_k);
        }
        if (alpha_T) alpha_T[t] = alpha;
    }
    return CDR_OK;
}

/* per thread: the scores of a row (softmax only), three numbers of each chosen expert; whole cache lines */
static int64_t bwd_words(const cdr_router_attr *at, int64_t E) { return cdr_ceil_div((at->softmax ? E : 0) + 3 * (int64_t)at->top_k, 16) * 16; }

size_t cdr__router_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    return (size_t)(bwd_words(attr, t[CDR__ROB_LOGITS].n[1]) * n_threads) * sizeof(float);
}

cdr_status cdr__router_bwd(const cdr_args *a, const cdr__router_rows *rows)
{
    const cdr_router_attr *at = a->attr;
    const cdr_type *t_of = a->type;
    int64_t T = t_of[CDR__ROB_LOGITS].n[0], E = t_of[CDR__ROB_LOGITS].n[1];
    const int32_t *start_T = a->ptr[CDR__ROB_START], *pos_T = a->ptr[CDR__ROB_POS];
    bool add = (a->add & 1) != 0;
    assert(a->work);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *dx_E = cdr_row(a->ptr[CDR__ROB_DLOGITS], &t_of[CDR__ROB_DLOGITS], t);
        if (start_T[t] > pos_T[t]) {
            if (!add) memset(dx_E, 0, (size_t)E * sizeof *dx_E);
            continue;
        }
        const int32_t *idx_k = cdr_row(a->ptr[CDR__ROB_IDX], &t_of[CDR__ROB_IDX], t);
        const float *dp_k = cdr_row(a->ptr[CDR__ROB_DP], &t_of[CDR__ROB_DP], t), *p_k = cdr_row(a->ptr[CDR__ROB_P], &t_of[CDR__ROB_P], t);
        for (int j = 0; j < at->top_k; j++) assert(idx_k[j] >= 0 && idx_k[j] < E);
        rows->backward(at, dp_k, cdr_row(a->ptr[CDR__ROB_LOGITS], &t_of[CDR__ROB_LOGITS], t), idx_k, p_k, E,
                       cdr_thread_part(a->work, bwd_words(at, E)), add, dx_E);
    }
    return CDR_OK;
}
