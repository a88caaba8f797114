/* The router and what keeps its load even: properties that no table of cases says (src/ops/router, balance, aux_loss).
 *
 *   test_routing              all tests
 *   test_routing quantile     those whose name contains "quantile"
 *   test_routing --bench      ms a call, T = 4096: E = 32, k = 4 and E = 896, k = 16
 */
#include "ops/aux_loss/aux_loss.h"
#include "ops/balance/balance.h"
#include "ops/router/router.h"
#include "ops/router/scores.h"
#include "golden.h"
#include "test.h"

/* ---- calls ------------------------------------------------------------------------------------------------------- */
static cdr_pool *pool;
static int n_threads = 2;

static void *zeros(int64_t n, size_t elem) { return cdr_pool_alloc(pool, (size_t)n * elem); }
static float *floats(int64_t n) { return zeros(n, sizeof(float)); }
static int32_t *ints(int64_t n) { return zeros(n, sizeof(int32_t)); }
static cdr_type f32(int64_t rows, int64_t cols) { return cdr_type_2d(CDR_F32, rows, cols); }
static cdr_type i32(int64_t rows, int64_t cols) { return cdr_type_2d(CDR_I32, rows, cols); }
static cdr_type f32s(int64_t n) { return cdr_type_1d(CDR_F32, n); }
static cdr_type i32s(int64_t n) { return cdr_type_1d(CDR_I32, n); }

/* The best kernel for this machine on dense operands: ptr has inputs (NULL: left away), then outputs. */
static void call(const cdr_op *op, const void *attr, int n_in, const cdr_type *in, void *const *ptr)
{
    cdr_err err = { 0 };
    cdr_type t[CDR_MAX_OPERANDS];
    int n_out = 0;
    CDR_CHECK(n_in <= 8);
    for (int i = 0; i < n_in; i++) t[i] = ptr[i] ? in[i] : (cdr_type){ .dtype = CDR_N_DTYPES };
    cdr_status st = op->infer(attr, n_in, t, &n_out, t + n_in, &err);
    T_STR(err.text, "");
    if (st != CDR_OK) return;
    CDR_CHECK(n_out >= 0 && n_out <= 8);
    for (int o = n_in; o < n_in + n_out; o++) if (!ptr[o]) t[o].dtype = CDR_N_DTYPES;
    const cdr_kernel *k = op->kernels;
    while (k->needs & ~cdr_cpu_isa(NULL)) k++;
    size_t work = k->work_bytes ? k->work_bytes(attr, n_in, n_out, t, n_threads) : 0;
    cdr_lane lane = { .n_threads = n_threads };
    void *scratch = work ? cdr_alloc(work) : NULL;
    T_CHECK(k->run(&(cdr_args){ .attr = attr, .type = t, .ptr = ptr, .n_in = n_in, .n_out = n_out, .work = scratch, .lane = &lane }) == CDR_OK);
    cdr_free(scratch);
}

/* Tokens with their logits, and what is made of them. */
typedef struct {
    int64_t T, E, k;
    float *x, *bias, *p, *alpha, *dx;
    int32_t *start, *pos, *idx, *load, *hist;
} batch;

static batch new_batch(int64_t T, int64_t E, int64_t k)
{
    batch b = { .T = T, .E = E, .k = k, .x = floats(T * E), .bias = floats(E), .p = floats(T * k), .alpha = floats(T), .dx = floats(T * E),
                .start = ints(T), .pos = ints(T), .idx = ints(T * k), .load = ints(E) };
    for (int64_t t = 0; t < T; t++) b.pos[t] = (int32_t)t;
    return b;
}

static float normal(uint64_t stream, int64_t i) { return cdr_rng_normal((cdr_rng_key){ 11, stream, 0 }, (uint64_t)i); }

/* Logits of one token have std 1; experts differ by std skew on top. */
static batch random_batch(int64_t T, int64_t E, int64_t k, float skew, uint64_t seed)
{
    batch b = new_batch(T, E, k);
    for (int64_t t = 0; t < T; t++) for (int64_t e = 0; e < E; e++) b.x[t * E + e] = normal(seed, t * E + e) + skew * normal(seed + 1, e);
    return b;
}

static void route(const batch *b, const cdr_router_attr *a, bool with_bias)
{
    cdr_type in[] = { f32(b->T, b->E), f32s(b->E), i32s(b->T), i32s(b->T) };
    call(&cdr_op_router, a, 4, in, (void *[]){ b->x, with_bias ? b->bias : NULL, b->start, b->pos, b->idx, b->p, b->alpha });
}

static void count_load(const batch *b, int32_t micro)
{
    cdr_balance_load_attr a = { .experts = (int32_t)b->E };
    call(&cdr_op_balance_load, &a, 2, (cdr_type[]){ i32(b->T, b->k), i32s(1) }, (void *[]){ b->idx, &micro, b->load });
}

static void count_hist(const batch *b, int bins, int32_t micro, int32_t *hist)
{
    cdr_balance_hist_attr a = { .bins = bins };
    cdr_type in[] = { f32(b->T, b->E), f32s(b->T), f32s(b->E), i32s(b->T), i32s(b->T), i32s(1) };
    call(&cdr_op_balance_hist, &a, 6, in, (void *[]){ b->x, b->alpha, b->bias, b->start, b->pos, &micro, hist });
}

static void quantile_update(const batch *b, int bins, float ema, int32_t *hist)
{
    cdr_balance_quantile_attr a = { .top_k = (int32_t)b->k, .bins = bins, .ema = ema };
    call(&cdr_op_balance_quantile, &a, 2, (cdr_type[]){ i32(b->E, bins), i32s(b->E) }, (void *[]){ hist, b->load, b->bias });
}

static void sign_update(const batch *b, float rate)
{
    cdr_balance_sign_attr a = { .rate = rate };
    call(&cdr_op_balance_sign, &a, 1, (cdr_type[]){ i32s(b->E) }, (void *[]){ b->load, b->bias });
}

static double max_over_mean(const batch *b)
{
    double max = 0, sum = 0;
    for (int64_t e = 0; e < b->E; e++) {
        max = fmax(max, (double)b->load[e]);
        sum += (double)b->load[e];
    }
    return max / (sum / (double)b->E);
}

static bool same(const void *a, const void *b, int64_t n) { return memcmp(a, b, (size_t)n * 4) == 0; }
static void *copy_of(const void *p, int64_t n) { return memcpy(floats(n), p, (size_t)n * 4); }

static const cdr_router_attr k3_4 = { .top_k = 4, .renormalize = 1, .scale = 1.0f }, kl_8 = { .top_k = 8, .renormalize = 1, .scale = 2.446f };

/* ---- router -------------------------------------------------------------------------------------------------------- */
/* A weight is scale s / sum of the chosen s, whatever the bias was: the bits of a computation that never sees it. */
static void bias_changes_the_selection_and_never_a_weight(void)
{
    batch b = random_batch(2000, 64, 8, 0.5f, 1);
    route(&b, &kl_8, false);
    int32_t *plain = copy_of(b.idx, b.T * b.k), moved = 0;
    for (int64_t e = 0; e < b.E; e++) b.bias[e] = 0.2f * normal(9, e);
    route(&b, &kl_8, true);
    for (int64_t t = 0; t < b.T; t++) {
        const int32_t *idx = b.idx + t * b.k;
        float sum = 0.0f;
        for (int j = 0; j < b.k; j++) sum += cdr_sigmoid(b.x[t * b.E + idx[j]]);
        for (int j = 0; j < b.k; j++) T_CHECK(b.p[t * b.k + j] == 2.446f * cdr_sigmoid(b.x[t * b.E + idx[j]]) / (sum + 1e-20f));
        moved += !same(idx, plain + t * b.k, b.k);
    }
    T_CHECK(moved > 1000);
}

static void weights_add_up_to_the_scale(void)
{
    batch b = random_batch(t_quick() ? 5000 : 100000, 64, 8, 1.0f, 3);
    double worst = 0;
    route(&b, &kl_8, true);
    for (int64_t t = 0; t < b.T; t++) {
        double sum = 0;
        for (int j = 0; j < b.k; j++) sum += (double)b.p[t * b.k + j];
        worst = fmax(worst, fabs(sum / (double)2.446f - 1));
    }
    T_NEAR(worst, 0, 4e-7);
}

/* Against a selection that is written without bisection. A bias that went through BF16 would choose others. */
static void selection_equals_a_sort_on_1e5_tokens_with_the_bias_in_f32(void)
{
    batch b = random_batch(t_quick() ? 5000 : 100000, 64, 4, 0.5f, 5);
    int64_t wrong = 0, moved = 0;
    for (int64_t e = 0; e < b.E; e++) b.bias[e] = 0.1f * normal(13, e);
    route(&b, &k3_4, true);
    for (int64_t t = 0; t < b.T; t++) {
        float v[64];
        int n = 0;
        for (int e = 0; e < 64; e++) v[e] = cdr_sigmoid(b.x[t * 64 + e]) + b.bias[e];
        for (int e = 0; e < 64; e++) {                      /* chosen: fewer than k experts come before it */
            int before = 0;
            for (int f = 0; f < 64; f++) before += v[f] > v[e] || (v[f] == v[e] && f < e);
            if (before < b.k) wrong += b.idx[t * b.k + n++] != e;
            if (before == b.k) wrong += b.alpha[t] != v[e];
        }
    }
    T_CHECK(wrong == 0);
    int32_t *exact = copy_of(b.idx, b.T * b.k);
    for (int64_t e = 0; e < b.E; e++) b.bias[e] = cdr_bf16_to_f32(cdr_f32_to_bf16(b.bias[e]));
    route(&b, &k3_4, true);
    for (int64_t t = 0; t < b.T; t++) moved += !same(b.idx + t * b.k, exact + t * b.k, b.k);
    T_CHECK(moved > 0);
}

/* What evaluation runs (no alpha) has the bits of what training runs. */
static void alpha_left_away_changes_nothing(void)
{
    batch b = random_batch(300, 48, 4, 0.5f, 7);
    route(&b, &k3_4, true);
    int32_t *idx = copy_of(b.idx, b.T * b.k);
    float *p = copy_of(b.p, b.T * b.k);
    b.alpha = NULL;
    route(&b, &k3_4, true);
    T_CHECK(same(b.idx, idx, b.T * b.k) && same(b.p, p, b.T * b.k));
}

/* Experts and groups: the lower id first. */
static void ties_go_to_the_lower_id(void)
{
    batch b = new_batch(3, 32, 4);
    cdr_router_attr grouped = { .top_k = 4, .groups = 4, .top_groups = 2, .renormalize = 1, .scale = 1.0f };
    route(&b, &k3_4, true);
    for (int j = 0; j < 4; j++) T_CHECK(b.idx[j] == j && b.p[j] == 0.25f);
    for (int e = 20; e < 32; e++) b.x[e] = 1.0f;            /* twelve equal ones behind, in groups 2 and 3 */
    route(&b, &k3_4, true);
    for (int j = 0; j < 4; j++) T_CHECK(b.idx[j] == 20 + j);
    route(&b, &grouped, true);
    for (int j = 0; j < 4; j++) T_CHECK(b.idx[j] == 20 + j && b.idx[4 + j] == j);
    b.bias[31] = b.bias[9] = 1.0f;                          /* a bias makes groups 1 and 3 the best of rows that are equal */
    route(&b, &grouped, true);
    T_CHECK(b.idx[4] == 8 && b.idx[5] == 9 && b.idx[6] == 10 && b.idx[7] == 31);
}

/* Nothing of an idle row is read, counted or given a gradient; live rows do not know of it. */
static void idle_rows_are_never_counted(void)
{
    batch b = random_batch(96, 40, 4, 0.5f, 21), live = random_batch(96, 40, 4, 0.5f, 21);
    cdr_aux_loss_attr aux = { .top_k = 4, .row = 32, .coef = 1.0f };
    cdr_type in[] = { f32(96, 40), i32(96, 4), i32s(96), i32s(96) };
    int32_t *hist = ints(40 * 100), counted = 0, in_hist = 0;
    double sum = 0;
    for (int64_t t = 0; t < b.T; t++)
        for (int64_t e = 0; e < b.E && t % 3 == 1; e++) {
            b.start[t] = live.start[t] = (int32_t)(t + 1 + e);
            b.x[t * b.E + e] = NAN;                        /* the other batch has numbers there */
        }
    route(&b, &k3_4, true);
    route(&live, &k3_4, true);
    T_CHECK(same(b.idx, live.idx, b.T * b.k) && same(b.p, live.p, b.T * b.k) && same(b.alpha, live.alpha, b.T));
    for (int64_t t = 1; t < b.T; t += 3) for (int j = 0; j < 4; j++) T_CHECK(b.idx[t * 4 + j] == -1 && b.p[t * 4 + j] == 0 && b.alpha[t] == 0);
    count_load(&b, 0);
    count_hist(&b, 100, 0, hist);
    for (int64_t e = 0; e < b.E; e++) counted += b.load[e];
    for (int64_t n = 0; n < 100; n++) in_hist += hist[7 * 100 + n];
    T_CHECK(counted == 64 * 4 && in_hist == 64);
    call(&cdr_op_aux_loss, &aux, 4, in, (void *[]){ b.x, b.idx, b.start, b.pos, &sum });
    T_CHECK(isfinite(sum) && sum > 0);
    float *dp = floats(96 * 4), scale = 1.0f;
    for (int64_t i = 0; i < 96 * 4; i++) dp[i] = i / 4 % 3 == 1 ? NAN : normal(22, i);
    cdr_type in_bwd[] = { f32(96, 4), f32(96, 40), i32(96, 4), f32(96, 4), i32s(96), i32s(96) };
    for (int which = 0; which < 2; which++) {
        if (which == 0) call(&cdr_op_router_bwd, &k3_4, 6, in_bwd, (void *[]){ dp, b.x, b.idx, b.p, b.start, b.pos, b.dx });
        else call(&cdr_op_aux_loss_bwd, &aux, 5, (cdr_type[]){ f32s(1), in[0], in[1], in[2], in[3] }, (void *[]){ &scale, b.x, b.idx, b.start, b.pos, b.dx });
        int64_t bad = 0, zero = 0;
        for (int64_t i = 0; i < 96 * 40; i++) {
            bad += !isfinite(b.dx[i]) || (i / 40 % 3 == 1 && b.dx[i] != 0);
            zero += b.dx[i] == 0;
        }
        T_CHECK(bad == 0 && zero >= 32 * 40 && zero < 96 * 40);
    }
}

/* A NaN or an infinity must neither crash nor stay hidden: ids are valid, the NaN is in the token's weights, every row is still counted once. */
static void nan_logits_reach_the_weights(void)
{
    static const cdr_router_attr kinds[] = {
        { .top_k = 4, .renormalize = 1, .scale = 1.0f }, { .top_k = 4, .scale = 1.0f }, { .top_k = 4, .softmax = 1, .scale = 1.0f },
        { .top_k = 4, .groups = 4, .top_groups = 2, .renormalize = 1, .scale = 1.0f }, { .top_k = 4, .softmax = 1, .groups = 8, .top_groups = 2, .scale = 1.0f },
    };
    for (int kind = 0; kind < CDR_COUNT(kinds); kind++) {
        batch b = random_batch(44, 40, 4, 0.5f, 31);
        int32_t *hist = ints(40 * 50);
        for (int64_t t = 0; t < 40; t++) b.x[t * 40 + t] = NAN;
        for (int64_t e = 0; e < 40; e++) {
            b.x[40 * 40 + e] = NAN;
            b.x[41 * 40 + e] = -INFINITY;
            b.x[42 * 40 + e] = INFINITY;
        }
        route(&b, &kinds[kind], true);
        for (int64_t t = 0; t < 44; t++) {
            bool nan = false, finite = true;
            for (int j = 0; j < 4; j++) {
                int32_t e = b.idx[t * 4 + j], before = j ? b.idx[t * 4 + j - 1] : -1;
                T_CHECK(e > before && e < 40);
                nan = nan || isnan(b.p[t * 4 + j]);
                finite = finite && isfinite(b.p[t * 4 + j]);
            }
            if (t < 41) T_CHECK(nan);
            if (t == 43) T_CHECK(finite);
        }
        count_load(&b, 0);
        count_hist(&b, 50, 0, hist);
        for (int64_t e = 0; e < 40; e++) {
            int32_t n = 0;
            for (int i = 0; i < 50; i++) n += hist[e * 50 + i];
            T_CHECK(n == 44);
        }
        quantile_update(&b, 50, 0, hist);
        for (int64_t e = 0; e < 40; e++) T_CHECK(isfinite(b.bias[e]));
    }
}

static void threads_change_no_bit(void)
{
    batch b = random_batch(257, 83, 8, 0.5f, 41);
    cdr_aux_loss_attr aux = { .softmax = 1, .top_k = 8, .row = 257, .coef = 1.0f };
    int32_t *hist[3], *idx[3];
    float *p[3], *dx[3], scale = 0.3f;
    double sum[3];
    for (int n = 0; n < 3; n++) {
        n_threads = n + 1;
        route(&b, &kl_8, true);
        hist[n] = ints(83 * 64);
        count_hist(&b, 64, 0, hist[n]);
        cdr_type in[] = { f32s(1), f32(257, 83), i32(257, 8), i32s(257), i32s(257) };
        call(&cdr_op_aux_loss, &aux, 4, in + 1, (void *[]){ b.x, b.idx, b.start, b.pos, &sum[n] });
        call(&cdr_op_aux_loss_bwd, &aux, 5, in, (void *[]){ &scale, b.x, b.idx, b.start, b.pos, b.dx });
        idx[n] = copy_of(b.idx, 257 * 8);
        p[n] = copy_of(b.p, 257 * 8);
        dx[n] = copy_of(b.dx, 257 * 83);
        T_CHECK(same(idx[n], idx[0], 257 * 8) && same(p[n], p[0], 257 * 8) && same(hist[n], hist[0], 83 * 64) && same(dx[n], dx[0], 257 * 83));
        T_CHECK(sum[n] == sum[0]);
    }
    n_threads = 2;
}

/* ---- balance ------------------------------------------------------------------------------------------------------ */
/* Four micro-batches count what one would: the first overwrites what the last step left, the others add. */
static void micro_batches_overwrite_then_add(void)
{
    enum { T = 200, E = 37, K = 4, BINS = 64 };
    batch whole = random_batch(T, E, K, 0.5f, 51);
    int32_t *all = ints(E * BINS), *parts = ints(E * BINS), load[E];
    for (int i = 0; i < T; i += 7) whole.start[i] = T + 1;
    for (int e = 0; e < E; e++) whole.bias[e] = 0.05f * normal(53, e);
    route(&whole, &k3_4, true);
    memset(all, 0x11, E * BINS * 4);
    memset(parts, 0x22, E * BINS * 4);
    count_hist(&whole, BINS, 0, all);
    count_load(&whole, 0);
    memcpy(load, whole.load, sizeof load);
    for (int m = 0; m < 4; m++) {
        batch part = whole;
        int first = m * T / 4;
        part.T = T / 4;
        part.x += first * E;
        part.alpha += first;
        part.start += first;
        part.pos += first;
        part.idx += first * K;
        count_hist(&part, BINS, m, parts);
        count_load(&part, m);
    }
    T_CHECK(same(all, parts, E * BINS) && same(load, whole.load, E));
    int32_t pairs = 0;
    for (int e = 0; e < E; e++) pairs += load[e];
    T_CHECK(pairs == (T - (T + 6) / 7) * K);
    T_CHECK((cdr_op_balance_hist.flags & CDR_OP_EFFECT) && (cdr_op_balance_load.flags & CDR_OP_EFFECT) && (cdr_op_router.flags & CDR_OP_KEEP));
    T_CHECK((cdr_op_balance_quantile.flags & CDR_OP_EFFECT) && (cdr_op_balance_sign.flags & CDR_OP_EFFECT));
}

static void no_token_leaves_the_bias(void)
{
    batch b = new_batch(5, 16, 2);
    cdr_router_attr a = { .top_k = 2, .renormalize = 1, .scale = 1.0f };
    int32_t *hist = ints(16 * 20);
    for (int t = 0; t < 5; t++) b.start[t] = 99;
    for (int e = 0; e < 16; e++) b.bias[e] = normal(61, e);
    float *before = copy_of(b.bias, 16);
    route(&b, &a, true);
    count_load(&b, 0);
    count_hist(&b, 20, 0, hist);
    quantile_update(&b, 20, 0.5f, hist);
    sign_update(&b, 0.1f);
    T_CHECK(same(b.bias, before, 16));
}

static int by_value(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b; }

/* Against the exact quantile of r = alpha - s over all tokens: within one bin. With respect to the old cutoffs at most q tokens lie strictly above
 * the exact one, and at least q at or above it. */
static void histogram_agrees_with_the_exact_quantile_within_a_bin(void)
{
    enum { T = 3001, E = 48, K = 4, BINS = 500 };
    batch b = random_batch(T, E, K, 0.7f, 71);
    int32_t *hist = ints(E * BINS);
    double *r = zeros(T, sizeof *r), exact[E], mean = 0, q = (double)(T * K) / (double)E, lo = 1e9, hi = -1e9, least = 0;
    for (int e = 0; e < E; e++) {
        b.bias[e] = 0.1f * normal(73, e);
        lo = fmin(lo, (double)b.bias[e]);
        hi = fmax(hi, (double)b.bias[e]);
    }
    double w = (hi - lo + 2) / (double)BINS;
    route(&b, &k3_4, true);
    count_load(&b, 0);
    count_hist(&b, BINS, 0, hist);
    for (int e = 0; e < E; e++) {
        for (int t = 0; t < T; t++) r[t] = (double)b.alpha[t] - (double)cdr_sigmoid(b.x[t * E + e]);
        qsort(r, T, sizeof *r, by_value);
        exact[e] = r[(int64_t)ceil(q) - 1];
        mean += exact[e] / (double)E;
        int64_t strictly = 0, upto = 0;
        for (int t = 0; t < T; t++) {
            strictly += r[t] < exact[e];
            upto += r[t] <= exact[e];
            T_CHECK(r[t] >= lo - 1 - 1e-6 && r[t] <= hi + 1 + 1e-6);
        }
        T_CHECK((double)strictly <= q && q <= (double)upto);
    }
    quantile_update(&b, BINS, 0, hist);
    /* A bias is known up to the mean of all; each estimate is off by less than a bin, and so is their mean. */
    for (int e = 0; e < E; e++) {
        double off = (double)b.bias[e] - (exact[e] - mean);
        least = fmin(least, off);
        T_NEAR(off, 0, w);
    }
    T_CHECK(least < 0);                                    /* a histogram: not exact to the last digit */
}

/* max/mean load before and after each of n updates on fixed scores */
static void update_n_times(const char *what, int bins, double *max_mean, int n)
{
    batch b = random_batch(8192, 64, 4, 1.6f, 81);
    int32_t *hist = ints(64 * bins);
    for (int u = 0; u <= n; u++) {
        route(&b, &k3_4, true);
        count_load(&b, 0);
        count_hist(&b, bins, 0, hist);
        max_mean[u] = max_over_mean(&b);
        quantile_update(&b, bins, 0, hist);
    }
    printf("      %s: max/mean load %.2f |", what, max_mean[0]);
    for (int u = 1; u <= n; u++) printf(" %.3f", max_mean[u]);
    printf("\n");
}

/* 64 experts, k = 4, 8192 tokens with fixed skewed scores, 8 updates (spec/model.md, 3.7: 1.09 to 1.15 with 1000 bins, 1.04 to 1.09 with 4000). */
static void quantile_balancing_evens_out_fixed_skewed_scores(void)
{
    double load[9];
    update_n_times("1000 bins", 1000, load, 8);
    T_CHECK(load[0] > 7 && load[0] < 10 && load[1] < 2 && load[8] < 1.2);
    update_n_times("4000 bins", 4000, load, 8);
    T_CHECK(load[8] < 1.1);
}

/* A zero router sends every token to experts 0..k-1, and as long as all tokens have the same scores no bias can change that: they move together.
 * Once it is trained, scores differ, and the load must become even. Loss: each expert has a random cost for a token, a linear function of it. */
static void zero_router_does_not_collapse(void)
{
    enum { T = 2048, E = 32, K = 4, D = 16, BINS = 1000, STEPS = 20 };
    batch b = new_batch(T, E, K);
    float *x_TD = floats(T * D), *w_ED = floats(E * D), *cost_TE = floats(T * E), *dp = floats(T * K), load[STEPS + 1];
    int32_t *hist = ints(E * BINS);
    for (int i = 0; i < T * D; i++) x_TD[i] = normal(91, i);
    for (int t = 0; t < T; t++)
        for (int e = 0; e < E; e++) for (int d = 0; d < D; d++) cost_TE[t * E + e] += 0.25f * x_TD[t * D + d] * normal(92, e * D + d);
    for (int step = 0; step <= STEPS; step++) {
        float rate = 0.02f * (float)(STEPS - step) / (float)STEPS;
        for (int t = 0; t < T; t++) for (int e = 0; e < E; e++) b.x[t * E + e] = cdr_dot(x_TD + t * D, w_ED + e * D, D);
        route(&b, &k3_4, true);
        count_load(&b, 0);
        count_hist(&b, BINS, 0, hist);
        load[step] = (float)max_over_mean(&b);
        quantile_update(&b, BINS, 0, hist);
        for (int i = 0; i < T * K; i++) dp[i] = cost_TE[i / K * E + b.idx[i]];
        cdr_type in[] = { f32(T, K), f32(T, E), i32(T, K), f32(T, K), i32s(T), i32s(T) };
        call(&cdr_op_router_bwd, &k3_4, 6, in, (void *[]){ dp, b.x, b.idx, b.p, b.start, b.pos, b.dx });
        for (int e = 0; e < E; e++)
            for (int d = 0; d < D; d++) {                  /* steps of one size, as AdamW's first ones */
                double g = 0;
                for (int t = 0; t < T; t++) g += (double)b.dx[t * E + e] * (double)x_TD[t * D + d];
                w_ED[e * D + d] -= g > 0 ? rate : g < 0 ? -rate : 0.0f;
            }
    }
    printf("      zero router: max/mean load");
    for (int step = 0; step <= STEPS; step++) printf(" %.2f", (double)load[step]);
    printf("\n");
    T_CHECK(load[0] == 8.0f && load[STEPS] < 1.2f);
}

/* Equal scores stay a tie: the bias does not run away, and no expert gets an advantage that is not in the counts. */
static void equal_scores_keep_an_equal_bias(void)
{
    batch b = new_batch(512, 32, 4);
    int32_t *hist = ints(32 * 1000);
    for (int u = 0; u < 20; u++) {
        route(&b, &k3_4, true);
        count_load(&b, 0);
        count_hist(&b, 1000, 0, hist);
        quantile_update(&b, 1000, 0, hist);
        for (int e = 0; e < 32; e++) T_CHECK(b.bias[e] == 0.0f);
    }
}

static void sign_rule_drives_the_load_towards_the_mean(void)
{
    batch b = random_batch(4096, 32, 4, 0.8f, 101);
    double first = 0, last = 0;
    for (int u = 0; u < 200; u++) {
        route(&b, &k3_4, true);
        count_load(&b, 0);
        float *before = copy_of(b.bias, 32);
        sign_update(&b, 5e-3f);
        for (int e = 0; e < 32; e++) T_CHECK(b.load[e] > 512 ? b.bias[e] < before[e] : b.load[e] < 512 ? b.bias[e] > before[e] : b.bias[e] == before[e]);
        last = max_over_mean(&b);
        if (u == 0) first = last;
    }
    printf("      sign rule, 200 updates of 5e-3: max/mean load %.2f -> %.3f\n", first, last);
    T_CHECK(first > 2.5 && last < 1.2);
}

/* ---- auxiliary loss ------------------------------------------------------------------------------------------------ */
/* Packed rows in 1, 2 or 4 micro-batches, with 0, 5, 31 and all 32 tokens idle: the gradient of the logits has the same bits, the sums add up, and
 * the sum is the definition's: rows weighted with their tokens, each the product of load and mean share. */
static void aux_loss_does_not_know_micro_batches(void)
{
    enum { ROW = 32, ROWS = 4, T = ROW * ROWS, E = 24, K = 4 };
    static const int idle[ROWS] = { 0, 5, 31, 32 };
    cdr_aux_loss_attr a = { .top_k = K, .row = ROW, .coef = 0.3f };
    batch b = random_batch(T, E, K, 0.7f, 111);
    float *first_dx = NULL, scale = 1.0f / (32 + 27 + 1);
    double sum_of[3] = { 0 }, want = 0;
    for (int t = 0; t < T; t++) if (t % ROW >= ROW - idle[t / ROW]) b.start[t] = T + t;
    route(&b, &k3_4, true);
    for (int split = 0; split < 3; split++) {
        int parts = 1 << split, n = T / parts;
        memset(b.dx, 0xff, (size_t)T * E * 4);
        for (int m = 0; m < parts; m++) {
            int at = m * n;
            double part = NAN;
            cdr_type in[] = { f32s(1), f32(n, E), i32(n, K), i32s(n), i32s(n) };
            void *ptr[] = { &scale, b.x + at * E, b.idx + at * K, b.start + at, b.pos + at, b.dx + at * E };
            call(&cdr_op_aux_loss_bwd, &a, 5, in, ptr);
            call(&cdr_op_aux_loss, &a, 4, in + 1, (void *[]){ ptr[1], ptr[2], ptr[3], ptr[4], &part });
            sum_of[split] += part;
        }
        if (!first_dx) first_dx = copy_of(b.dx, T * E);
        T_CHECK(same(b.dx, first_dx, T * E));
        T_NEAR(sum_of[split] / sum_of[0], 1, 1e-15);
    }
    for (int r = 0; r < ROWS; r++) {
        double count[E] = { 0 }, share[E] = { 0 }, n = ROW - idle[r], product = 0;
        for (int t = r * ROW; t < (r + 1) * ROW - idle[r]; t++) {
            double s[E], all = 0;
            for (int e = 0; e < E; e++) all += s[e] = 1 / (1 + exp(-(double)b.x[t * E + e]));
            for (int e = 0; e < E; e++) share[e] += s[e] / all / n;
            for (int j = 0; j < K; j++) count[b.idx[t * K + j]] += 1;
        }
        for (int e = 0; e < E; e++) product += count[e] * share[e];
        if (n > 0) want += n * (double)a.coef * (double)E / ((double)K * n) * product;
    }
    T_NEAR(sum_of[0] / want, 1, 2e-7);
}

/* Descending the loss evens out the load: its gradient has the right sign. */
static void aux_loss_alone_evens_out_the_load(void)
{
    enum { T = 1024, E = 16, K = 2 };
    cdr_aux_loss_attr a = { .top_k = K, .row = 256, .coef = 1.0f };
    cdr_router_attr r = { .top_k = K, .renormalize = 1, .scale = 1.0f };
    batch b = random_batch(T, E, K, 0.5f, 121);
    float scale = 1.0f / (float)T;
    double first = 0, last = 0;
    for (int u = 0; u < 60; u++) {
        route(&b, &r, false);
        count_load(&b, 0);
        last = max_over_mean(&b);
        if (u == 0) first = last;
        call(&cdr_op_aux_loss_bwd, &a, 5, (cdr_type[]){ f32s(1), f32(T, E), i32(T, K), i32s(T), i32s(T) },
             (void *[]){ &scale, b.x, b.idx, b.start, b.pos, b.dx });
        for (int e = 0; e < E; e++) {                      /* what all tokens share: an offset of the expert's logit */
            double g = 0;
            for (int t = 0; t < T; t++) g += (double)b.dx[t * E + e];
            for (int t = 0; t < T; t++) b.x[t * E + e] -= 20.0f * (float)g;
        }
    }
    printf("      auxiliary loss, 60 steps: max/mean load %.2f -> %.3f\n", first, last);
    T_CHECK(first > 2 && last < 1.2);
}

/* ---- goldens: one step of quantile balancing and the auxiliary loss, written once more in tools/golden_ops.py ------------- */
static float *golden_f32(const golden *gd, const char *name)
{
    const golden_tensor *t = golden_get(gd, name);
    float *x = floats(t->elems);
    for (int64_t i = 0; i < t->elems; i++) x[i] = (float)t->x[i];
    return x;
}

static int32_t *golden_i32(const golden *gd, const char *name)
{
    const golden_tensor *t = golden_get(gd, name);
    int32_t *x = ints(t->elems);
    for (int64_t i = 0; i < t->elems; i++) x[i] = (int32_t)t->x[i];
    return x;
}

static void golden_balance(void)
{
    golden gd = golden_open("balance");
    cdr_router_attr a = { .top_k = 2, .renormalize = 1, .scale = 1.0f };
    int64_t T = golden_get(&gd, "logits")->n[0], E = golden_get(&gd, "logits")->n[1];
    batch b = new_batch(T, E, 2);
    b.x = golden_f32(&gd, "logits");
    b.bias = golden_f32(&gd, "bias");
    b.start = golden_i32(&gd, "start");
    b.pos = golden_i32(&gd, "pos");
    b.hist = ints(E * 20);
    route(&b, &a, true);
    count_load(&b, 0);
    count_hist(&b, 20, 0, b.hist);
    T_CHECK(same(b.idx, golden_i32(&gd, "idx"), T * 2) && same(b.load, golden_i32(&gd, "load"), E) && same(b.hist, golden_i32(&gd, "hist"), E * 20));
    for (int64_t t = 0; t < T; t++) T_NEAR(b.alpha[t], golden_get(&gd, "alpha")->x[t], 1e-6);
    quantile_update(&b, 20, 0.25f, b.hist);
    for (int64_t e = 0; e < E; e++) T_NEAR(b.bias[e], golden_get(&gd, "new")->x[e], 1e-7);
    for (int softmax = 0; softmax < 2; softmax++) {
        cdr_aux_loss_attr at = { .softmax = softmax, .top_k = 2, .row = 12, .coef = 0.3f };
        cdr_type in[] = { f32s(1), f32(T, E), i32(T, 2), i32s(T), i32s(T) };
        float one = 1.0f;
        double aux = 0, want = golden_get(&gd, softmax ? "aux_softmax" : "aux_sigmoid")->x[0];
        const double *dx = golden_get(&gd, softmax ? "dlogits_softmax" : "dlogits_sigmoid")->x;
        call(&cdr_op_aux_loss, &at, 4, in + 1, (void *[]){ b.x, b.idx, b.start, b.pos, &aux });
        call(&cdr_op_aux_loss_bwd, &at, 5, in, (void *[]){ &one, b.x, b.idx, b.start, b.pos, b.dx });
        T_NEAR(aux, want, 1e-6 * want);
        for (int64_t i = 0; i < T * E; i++) T_NEAR(b.dx[i], dx[i], 1e-6);
    }
    golden_close(&gd);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------- */
static void refused(const cdr_op *op, const void *attr, int n_in, const cdr_type *in, const char *words)
{
    cdr_err err = { 0 };
    cdr_type out[8];
    int n_out = 0;
    T_CHECK(op->infer(attr, n_in, in, &n_out, out, &err) != CDR_OK);
    T_HAS(err.text, words);
}

static void what_cannot_be_computed_is_refused(void)
{
    cdr_type in[] = { f32(8, 32), f32s(32), i32s(8), i32s(8) }, bf16[] = { in[0], in[1], in[2], in[3] };
    cdr_router_attr a = { .top_k = 33, .scale = 1.0f };
    refused(&cdr_op_router, &a, 4, in, "top_k is 33; there are 32 experts");
    a = (cdr_router_attr){ .top_k = 4, .groups = 5, .top_groups = 2, .scale = 1.0f };
    refused(&cdr_op_router, &a, 4, in, "32 experts in 5 groups");
    a.groups = 32;
    refused(&cdr_op_router, &a, 4, in, "two or more experts each");
    a = (cdr_router_attr){ .top_k = 9, .groups = 8, .top_groups = 2, .scale = 1.0f };
    refused(&cdr_op_router, &a, 4, in, "cannot give top_k = 9");
    a = (cdr_router_attr){ .top_k = 4, .scale = INFINITY };
    refused(&cdr_op_router, &a, 4, in, "not finite");
    bf16[1].dtype = CDR_BF16;
    refused(&cdr_op_router, &k3_4, 4, bf16, "it must be f32[32]");
    bf16[0].dtype = CDR_BF16;
    refused(&cdr_op_router, &k3_4, 4, bf16, "it must be f32[8,32]");
    cdr_balance_quantile_attr q = { .top_k = 4, .bins = 100, .ema = 1.0f };
    cdr_type counts[] = { i32(32, 100), i32s(32) };
    refused(&cdr_op_balance_quantile, &q, 2, counts, "it must lie in [0, 1)");
    q = (cdr_balance_quantile_attr){ .top_k = 4, .bins = 99 };
    refused(&cdr_op_balance_quantile, &q, 2, counts, "the histogram is i32[32,100]");
    cdr_aux_loss_attr aux = { .top_k = 4, .row = 3, .coef = 1.0f };
    cdr_type aux_in[] = { f32(8, 32), i32(8, 4), i32s(8), i32s(8) };
    refused(&cdr_op_aux_loss, &aux, 4, aux_in, "packed rows of 3 tokens");
}

/* ---- bench ------------------------------------------------------------------------------------------------------------ */
typedef void (*part_fn)(const batch *, const cdr_router_attr *);

static double best_ms(part_fn f, const batch *b, const cdr_router_attr *a)
{
    double best = 1e9;
    for (int i = 0; i < 15; i++) {
        int64_t t0 = cdr_now_ns();
        f(b, a);
        best = fmin(best, (double)(cdr_now_ns() - t0) / 1e6);
    }
    return best;
}

static void bench_fwd(const batch *b, const cdr_router_attr *a) { route(b, a, true); }
static void bench_load(const batch *b, const cdr_router_attr *a) { (void)a; count_load(b, 0); }
static void bench_hist(const batch *b, const cdr_router_attr *a) { (void)a; count_hist(b, 1000, 0, b->hist); }
static void bench_quantile(const batch *b, const cdr_router_attr *a) { (void)a; quantile_update(b, 1000, 0, b->hist); }
static void bench_copy(const batch *b, const cdr_router_attr *a) { (void)a; memcpy(b->dx, b->x, (size_t)(b->T * b->E) * 4); }
static void bench_bwd(const batch *b, const cdr_router_attr *a)
{
    cdr_type in[] = { f32(b->T, b->k), f32(b->T, b->E), i32(b->T, b->k), f32(b->T, b->k), i32s(b->T), i32s(b->T) };
    call(&cdr_op_router_bwd, a, 6, in, (void *[]){ b->p, b->x, b->idx, b->p, b->start, b->pos, b->dx });
}
static void bench_aux(const batch *b, const cdr_router_attr *a)
{
    cdr_aux_loss_attr at = { .top_k = a->top_k, .row = 2048, .coef = 1.0f };
    double sum;
    call(&cdr_op_aux_loss, &at, 4, (cdr_type[]){ f32(b->T, b->E), i32(b->T, b->k), i32s(b->T), i32s(b->T) }, (void *[]){ b->x, b->idx, b->start, b->pos, &sum });
}
static void bench_aux_bwd(const batch *b, const cdr_router_attr *a)
{
    cdr_aux_loss_attr at = { .top_k = a->top_k, .row = 2048, .coef = 1.0f };
    float scale = 1.0f;
    call(&cdr_op_aux_loss_bwd, &at, 5, (cdr_type[]){ f32s(1), f32(b->T, b->E), i32(b->T, b->k), i32s(b->T), i32s(b->T) },
         (void *[]){ &scale, b->x, b->idx, b->start, b->pos, b->dx });
}

static int bench(void)
{
    static const int64_t shape[][2] = { { 32, 4 }, { 896, 16 } };
    static const struct { const char *name; part_fn f; } part[] = {
        { "router", bench_fwd }, { "router_bwd", bench_bwd }, { "balance_load", bench_load }, { "balance_hist", bench_hist },
        { "balance_quantile", bench_quantile }, { "aux_loss", bench_aux }, { "aux_loss_bwd", bench_aux_bwd }, { "copy of the logits", bench_copy } };
    for (n_threads = 1; n_threads <= 2; n_threads++)
        for (int i = 0; i < 2; i++) {
            batch b = random_batch(4096, shape[i][0], shape[i][1], 0.5f, 131);
            cdr_router_attr a = { .top_k = (int32_t)b.k, .renormalize = 1, .scale = 1.0f };
            b.hist = ints(b.E * 1000);
            printf("T 4096, E %lld, k %lld, %d threads, best of 15, ms:", (long long)b.E, (long long)b.k, n_threads);
            for (int f = 0; f < CDR_COUNT(part); f++) printf("  %s %.3f", part[f].name, best_ms(part[f].f, &b, &a));
            printf("\n");
        }
    return t_end();
}

int main(int argc, char **argv)
{
    pool = cdr_pool_new();
    if (argc > 1 && !strcmp(argv[1], "--bench")) return bench();
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(bias_changes_the_selection_and_never_a_weight);
    T_RUN(weights_add_up_to_the_scale);
    T_RUN(selection_equals_a_sort_on_1e5_tokens_with_the_bias_in_f32);
    T_RUN(alpha_left_away_changes_nothing);
    T_RUN(ties_go_to_the_lower_id);
    T_RUN(idle_rows_are_never_counted);
    T_RUN(nan_logits_reach_the_weights);
    T_RUN(threads_change_no_bit);
    T_RUN(micro_batches_overwrite_then_add);
    T_RUN(no_token_leaves_the_bias);
    T_RUN(histogram_agrees_with_the_exact_quantile_within_a_bin);
    T_RUN(quantile_balancing_evens_out_fixed_skewed_scores);
    T_RUN(zero_router_does_not_collapse);
    T_RUN(equal_scores_keep_an_equal_bias);
    T_RUN(sign_rule_drives_the_load_towards_the_mean);
    T_RUN(aux_loss_does_not_know_micro_batches);
    T_RUN(aux_loss_alone_evens_out_the_load);
    T_RUN(golden_balance);
    T_RUN(what_cannot_be_computed_is_refused);
    cdr_pool_free(pool);
    return t_end();
}
