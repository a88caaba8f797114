/* short_conv, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. Bound: memory.
 * A task is a block of rows; the last W inputs (and in the backward W values of dp) lie in rings of W rows, so each row is
 * converted once, and W-1 rows again at a block's border. A row's sum runs over m ascending whatever the block, so that
 * blocks and threads change no bit. dw is summed over blocks whose number depends on T alone, then over the blocks in order. */
#include "ops/short_conv/rows.inc"

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32 };

static const cdr__short_conv_rows base = { multiply, silu, silu_backward };
cdr_status cdr__short_conv_fwd_base(const cdr_args *a) { return cdr__short_conv_fwd(a, &base); }
cdr_status cdr__short_conv_bwd_base(const cdr_args *a) { return cdr__short_conv_bwd(a, &base); }

static int64_t block_rows(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

/* the weight as [W][P], then the new history, then per thread: a ring of W inputs, a row */
size_t cdr__short_conv_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    int64_t P = t[0].n[1], W = t[1].n[2];
    return (size_t)(P * (W + W - 1 + (W + 1) * n_threads)) * sizeof(float);
}

static void load_weight(void *w, const cdr_type *t, float *w_WP)
{
    int64_t P = t->n[0], W = t->n[2];
    float taps[CDR_SHORT_CONV_MAX];
    for (int64_t c = 0; c < P; c++) {
        cdr_row_load(w, t, c, taps);
        for (int64_t j = 0; j < W; j++) w_WP[j * P + c] = taps[j];
    }
}

typedef struct {                     /* x and its documents */
    void *x; const cdr_type *tx; void *hist; const cdr_type *thist;      /* hist NULL: none */
    const int32_t *start_T, *pos_T; int64_t T, P, W;
    const float *w_WP;
} conv;

static int64_t n_before(const conv *s, int64_t t) { return (int64_t)s->pos_T[t] - s->start_T[t]; }
static float *slot(const conv *s, float *ring, int64_t t) { return ring + (t + s->W) % s->W * s->P; }

/* Input row t, from -(W-1) on, into its place of the ring. */
static void load_input(const conv *s, int64_t t, float *ring)
{
    if (t >= 0) cdr_row_load(s->x, s->tx, t, slot(s, ring, t));
    else if (s->hist) cdr_row_load(s->hist, s->thist, s->W - 1 + t, slot(s, ring, t));
}

/* (1), all inputs in the ring */
static void pre_activation(const conv *s, int64_t t, float *ring, float *pre_P, const cdr__short_conv_rows *rows)
{
    int64_t n = n_before(s, t);
    CDR_CHECK(s->hist || n <= t);                          /* data: a document that began earlier needs its history */
    memset(pre_P, 0, (size_t)s->P * sizeof(float));
    for (int64_t m = 0; m < s->W && m <= n; m++) rows->multiply(s->w_WP + (s->W - 1 - m) * s->P, slot(s, ring, t - m), pre_P, s->P);
}

/* (3): the rows are collected before the first is written, since they may be rows of the old history. */
static void rewrite_history(const conv *s, float *rows_WP)
{
    int64_t last = s->T - 1;
    while (last >= 0 && n_before(s, last) < 0) last--;
    if (last < 0) return;
    for (int64_t i = 0; i < s->W - 1; i++) {
        int64_t m = s->W - 2 - i;
        float *row_P = rows_WP + i * s->P;
        if (m > n_before(s, last)) memset(row_P, 0, (size_t)s->P * sizeof(float));
        else if (last >= m) cdr_row_load(s->x, s->tx, last - m, row_P);
        else cdr_row_load(s->hist, s->thist, s->W - 1 + last - m, row_P);
    }
    for (int64_t i = 0; i < s->W - 1; i++) cdr_row_store(rows_WP + i * s->P, s->hist, s->thist, i);
}

cdr_status cdr__short_conv_fwd(const cdr_args *a, const cdr__short_conv_rows *rows)
{
    const cdr_type *tx = &a->type[0], *ty = &a->type[4];
    conv s = { a->ptr[0], tx, a->ptr[5], &a->type[5], a->ptr[2], a->ptr[3], tx->n[0], tx->n[1], a->type[1].n[2], a->work };
    assert(a->work && a->ptr[4]);
    int64_t P = s.P, W = s.W, n_rows = block_rows(s.T), n_blocks = cdr_ceil_div(s.T, n_rows);
    float *w_WP = a->work, *hist_WP = w_WP + W * P, *scratch = hist_WP + (W - 1) * P;
    load_weight(a->ptr[1], &a->type[1], w_WP);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *ring = cdr_thread_part(scratch, (W + 1) * P), *pre_P = ring + W * P;
        for (int64_t t = b * n_rows - (W - 1); t < b * n_rows; t++) load_input(&s, t, ring);
        for (int64_t t = b * n_rows; t < CDR_MIN((b + 1) * n_rows, s.T); t++) {
            load_input(&s, t, ring);
            pre_activation(&s, t, ring, pre_P, rows);      /* zero in an idle row */
            rows->silu(pre_P, P);
            cdr_row_store(pre_P, a->ptr[4], ty, t);
        }
    }
    if (s.hist) rewrite_history(&s, hist_WP);
    return CDR_OK;
}

/* the weight as [W][P], the blocks' sums of dw as [W][P], then per thread: rings of W inputs and W dp, a row, the old dx */
size_t cdr__short_conv_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    int64_t T = t[1].n[0], P = t[1].n[1], W = t[2].n[2], n_blocks = cdr_ceil_div(T, block_rows(T));
    return (size_t)(P * (W + n_blocks * W + (2 * W + 2) * n_threads)) * sizeof(float);
}

/* (5), rows t .. t + W-1 of dp in the ring */
static void input_gradient(const conv *s, int64_t t, float *dp_ring, float *dx_P, const cdr__short_conv_rows *rows)
{
    memset(dx_P, 0, (size_t)s->P * sizeof(float));
    if (n_before(s, t) < 0) return;
    for (int64_t m = 0; m < s->W && t + m < s->T; m++)
        if (m <= n_before(s, t + m)) rows->multiply(s->w_WP + (s->W - 1 - m) * s->P, slot(s, dp_ring, t + m), dx_P, s->P);
}

cdr_status cdr__short_conv_bwd(const cdr_args *a, const cdr__short_conv_rows *rows)
{
    const cdr_type *tx = &a->type[1], *tdx = &a->type[5];
    conv s = { a->ptr[1], tx, NULL, NULL, a->ptr[3], a->ptr[4], tx->n[0], tx->n[1], a->type[2].n[2], a->work };
    assert(a->work);
    int64_t P = s.P, W = s.W, n_rows = block_rows(s.T), n_blocks = cdr_ceil_div(s.T, n_rows);
    float *w_WP = a->work, *sum_NWP = w_WP + W * P, *scratch = sum_NWP + n_blocks * W * P;
    load_weight(a->ptr[2], &a->type[2], w_WP);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *ring = cdr_thread_part(scratch, (2 * W + 2) * P), *dp_ring = ring + W * P, *row_P = dp_ring + W * P, *old_P = row_P + P;
        float *sum_WP = sum_NWP + b * W * P;
        int64_t first = b * n_rows, end = CDR_MIN(first + n_rows, s.T);
        memset(sum_WP, 0, (size_t)(W * P) * sizeof(float));
        for (int64_t t = first - (W - 1); t < first; t++) load_input(&s, t, ring);
        for (int64_t t = first; t < end + W - 1; t++) {    /* W-1 rows of the next block belong to dx of this one */
            float *dp_P = slot(&s, dp_ring, t);
            if (t < s.T && n_before(&s, t) >= 0) {
                load_input(&s, t, ring);
                pre_activation(&s, t, ring, dp_P, rows);
                cdr_row_load(a->ptr[0], &a->type[0], t, row_P);
                rows->silu_backward(row_P, dp_P, P);
                for (int64_t m = 0; t < end && m < W && m <= n_before(&s, t); m++)
                    rows->multiply(dp_P, slot(&s, ring, t - m), sum_WP + (W - 1 - m) * P, P);
            } else if (t < s.T) {
                load_input(&s, t, ring);
            }
            int64_t ready = t - (W - 1);
            if (ready < first || !a->ptr[5]) continue;
            input_gradient(&s, ready, dp_ring, row_P, rows);
            if (a->add & 1) cdr_row_add(row_P, a->ptr[5], tdx, ready, old_P);
            else cdr_row_store(row_P, a->ptr[5], tdx, ready);
        }
    }
    if (!a->ptr[6]) return CDR_OK;
    for (int64_t b = 1; b < n_blocks; b++) for (int64_t i = 0; i < W * P; i++) sum_NWP[i] += sum_NWP[b * W * P + i];
    for (int64_t c = 0; c < P; c++) {
        float taps[CDR_SHORT_CONV_MAX];
        for (int64_t j = 0; j < W; j++) taps[j] = sum_NWP[j * P + c];
        cdr_row_store(taps, a->ptr[6], &a->type[6], c);
    }
    return CDR_OK;
}
