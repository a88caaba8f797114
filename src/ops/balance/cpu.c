/* balance, CPU kernels. The histogram is the one that weighs: E exponentials and E scattered increments a token. A thread owns up to 64 experts
 * at a time, whose rows of the histogram (256 KB at 1000 bins) stay in its cache while it walks over the tokens. No thread touches another's
 * counts, so that how experts are cut into blocks changes nothing. Prefetching: 15 ms instead of 48 for 4096 tokens, E = 896, one thread of
 * Zen 3, shared with others, best of 15. */
#include "ops/balance/rows.inc"

enum { PREFETCH_ROWS = 8 };          /* a row's piece is a few cache lines, 4 E bytes from the next: no hardware prefetcher follows that */

cdr_status cdr__balance_hist_base(const cdr_args *a) { return cdr__balance_hist(a, bins_of); }

/* ---- (1) ------------------------------------------------------------------------------------------------------------ */
cdr_status cdr__balance_load_base(const cdr_args *a)
{
    const cdr_type *ti = &a->type[0];
    int64_t T = ti->n[0], k = ti->n[1], E = a->type[2].n[0];
    int32_t *load_E = a->ptr[2];
    if (*(const int32_t *)a->ptr[1] == 0) memset(load_E, 0, (size_t)E * sizeof *load_E);
    for (int64_t t = 0; t < T; t++) {
        const int32_t *idx_k = cdr_row(a->ptr[0], ti, t);
        for (int64_t j = 0; j < k; j++) {
            CDR_CHECK(idx_k[j] < E);                        /* data, not shapes: it would write outside of the counts */
            if (idx_k[j] >= 0) load_E[idx_k[j]]++;
        }
    }
    return CDR_OK;
}

/* ---- (2), (3) -------------------------------------------------------------------------------------------------------- */
static void range_of(const float *bias_E, int64_t E, double *lo, double *width)          /* width of all bins together */
{
    float min = bias_E[0], max = bias_E[0];
    for (int64_t e = 1; e < E; e++) {
        min = bias_E[e] < min ? bias_E[e] : min;
        max = bias_E[e] > max ? bias_E[e] : max;
    }
    *lo = (double)min - 1;
    *width = (double)max - (double)min + 2;
}

/* softmax: maximum and sum of each token; per thread: a row of scores */
size_t cdr__balance_hist_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    const cdr_type *tx = &t[CDR__BAH_LOGITS];
    return ((const cdr_balance_hist_attr *)attr)->softmax ? (size_t)(2 * tx->n[0] + tx->n[1] * n_threads) * sizeof(float) : 0;
}

cdr_status cdr__balance_hist(const cdr_args *a, cdr__balance_bins bins)
{
    const cdr_balance_hist_attr *at = a->attr;
    const cdr_type *tx = &a->type[CDR__BAH_LOGITS], *th = &a->type[CDR__BAH_HIST];
    int64_t T = tx->n[0], E = tx->n[1], B = at->bins;
    const float *alpha_T = a->ptr[CDR__BAH_ALPHA], *bias_E = a->ptr[CDR__BAH_BIAS];
    const int32_t *start_T = a->ptr[CDR__BAH_START], *pos_T = a->ptr[CDR__BAH_POS];
    float *max_T = a->work, *sum_T = max_T ? max_T + T : NULL;
    bool softmax = at->softmax != 0, first = *(const int32_t *)a->ptr[CDR__BAH_MICRO] == 0;
    double lo, width;
    range_of(bias_E, E, &lo, &width);
    cdr__balance_row token = { .lo = (float)lo, .per_w = (float)((double)B / width), .last = (float)(B - 1) };
    int64_t per_thread = cdr_ceil_div(cdr_ceil_div(E, CDR__BAH_LANES), a->lane->n_threads) * CDR__BAH_LANES;
    int64_t block = CDR_MIN(per_thread, (int64_t)CDR__BAH_BLOCK), x_pitch = cdr_type_pitch(tx);
    const float *x_TE = a->ptr[CDR__BAH_LOGITS];
    assert(max_T || !softmax);
    if (softmax) {
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
        for (int64_t t = 0; t < T; t++)
            cdr_scores_softmax(cdr_row(a->ptr[CDR__BAH_LOGITS], tx, t), cdr_thread_part(sum_T + T, E), E, &max_T[t], &sum_T[t]);
    }
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t lo_e = 0; lo_e < E; lo_e += block) {
        int n = (int)CDR_MIN(block, E - lo_e);
        int32_t *row[CDR__BAH_BLOCK], bin[CDR__BAH_BLOCK];
        cdr__balance_row r = token;
        for (int j = 0; j < n; j++) {
            row[j] = cdr_row(a->ptr[CDR__BAH_HIST], th, lo_e + j);
            if (first) memset(row[j], 0, (size_t)B * sizeof *row[j]);
        }
        for (int64_t t = 0; t < T; t++) {
            if (start_T[t] > pos_T[t]) continue;
            r.alpha = alpha_T[t];
            if (softmax) {
                r.max = max_T[t];
                r.sum = sum_T[t];
            }
            const float *x = x_TE + t * x_pitch + lo_e, *ahead = x + PREFETCH_ROWS * x_pitch;
            for (int j = 0; j < n && t + PREFETCH_ROWS < T; j += 16) __builtin_prefetch(ahead + j);
            bins(x, n, softmax, &r, bin);
            for (int j = 0; j < n; j++) row[j][bin[j]]++;
        }
    }
    return CDR_OK;
}

/* ---- (4), (5) --------------------------------------------------------------------------------------------------------- */
size_t cdr__balance_quantile_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out, (void)n_threads;
    return (size_t)t[0].n[0] * sizeof(double);
}

/* (4), in bins from lo */
static double quantile(const int32_t *hist_B, int64_t B, double q)
{
    int64_t before = 0, n = 0;
    while (n < B - 1 && (double)(before + hist_B[n]) < q) before += hist_B[n++];
    double part = hist_B[n] > 0 ? (q - (double)before) / (double)hist_B[n] : 1.0;
    return (double)n + CDR_MIN(CDR_MAX(part, 0.0), 1.0);
}

cdr_status cdr__balance_quantile_base(const cdr_args *a)
{
    const cdr_balance_quantile_attr *at = a->attr;
    const cdr_type *th = &a->type[0];
    int64_t E = th->n[0], B = at->bins, m = 0, pairs = 0;
    const int32_t *first_B = a->ptr[0], *load_E = a->ptr[1];
    float *bias_E = a->ptr[2];
    double *new_E = a->work, lo, width, mean = 0, ema = (double)at->ema;
    for (int64_t n = 0; n < B; n++) m += first_B[n];
    for (int64_t e = 0; e < E; e++) pairs += load_E[e];
    CDR_CHECK(pairs == m * at->top_k);                     /* each row counted once by each of two counters, on every rank */
    if (m == 0) return CDR_OK;
    range_of(bias_E, E, &lo, &width);
    double q = (double)m * at->top_k / (double)E;
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t e = 0; e < E; e++)
        new_E[e] = ema * (double)bias_E[e] + (1 - ema) * (lo + quantile(cdr_row(a->ptr[0], th, e), B, q) * (width / (double)B));
    for (int64_t e = 0; e < E; e++) mean += new_E[e];
    mean /= (double)E;
    for (int64_t e = 0; e < E; e++) bias_E[e] = (float)(new_E[e] - mean);
    return CDR_OK;
}

/* ---- (6): compared as integers, load_e E against the sum -------------------------------------------------------------- */
cdr_status cdr__balance_sign_base(const cdr_args *a)
{
    float rate = ((const cdr_balance_sign_attr *)a->attr)->rate, *bias_E = a->ptr[1];
    int64_t E = a->type[0].n[0], sum = 0;
    const int32_t *load_E = a->ptr[0];
    for (int64_t e = 0; e < E; e++) sum += load_E[e];
    for (int64_t e = 0; e < E; e++) {
        int64_t load = load_E[e] * E;
        bias_E[e] += load < sum ? rate : load > sum ? -rate : 0.0f;
    }
    return CDR_OK;
}
