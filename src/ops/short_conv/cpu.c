/* short_conv, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. Bound: memory; floor: the operands'
 * bytes at the copy rate. A task is a block of rows; within it, blocks of channels whose weights, sums and last W rows of dp stay in the first
 * cache while the rows go past. The W inputs of a row are read where they lie: widened W times, which costs less than a ring of F32 rows.
 * A row's sum runs over m ascending whatever the block, so that blocks and threads change no bit. dw is summed over blocks whose
 * number depends on T alone, then over the blocks in order. */
#include "ops/short_conv/rows.inc"

enum { MAX_BLOCKS = 64, MIN_BLOCK_ROWS = 32, PREFETCH_ROWS = 4 };

static const cdr__short_conv_rows base = { forward, backward, gradient };
cdr_status cdr__short_conv_fwd_base(const cdr_args *a) { return cdr__short_conv_fwd(a, &base); }
cdr_status cdr__short_conv_bwd_base(const cdr_args *a) { return cdr__short_conv_bwd(a, &base); }

static int64_t block_rows(int64_t T) { return CDR_MAX(MIN_BLOCK_ROWS, cdr_ceil_div(T, MAX_BLOCKS)); }

/* the weight as [W][P], P padded, then the new history [W-1][P] */
size_t cdr__short_conv_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out, (void)n_threads;
    int64_t P = cdr_padded(t[0].n[1]), W = t[1].n[2];
    return (size_t)(P * (W + W - 1)) * sizeof(float);
}

static void load_weight(void *w, const cdr_type *t, int64_t pitch, float *w_WP)
{
    int64_t P = t->n[0], W = t->n[2];
    float taps[CDR_SHORT_CONV_MAX];
    memset(w_WP, 0, (size_t)(W * pitch) * sizeof(float));
    for (int64_t c = 0; c < P; c++) {
        cdr_row_load(w, t, c, taps);
        for (int64_t j = 0; j < W; j++) w_WP[j * pitch + c] = taps[j];
    }
}

typedef struct {                     /* x and its documents */
    void *x; const cdr_type *tx; void *hist; const cdr_type *thist;      /* hist NULL: none */
    const int32_t *start_T, *pos_T; int64_t T, P, W, pitch;              /* pitch: of w_WP */
    int64_t x_bytes, row_bytes;      /* of an element and of a row of x */
    const float *w_WP;
} conv;

static conv conv_of(const cdr_args *a, int first)          /* first: operand number of x */
{
    const cdr_type *tx = &a->type[first];
    const int64_t x_bytes = (int64_t)cdr_dtype_bytes(tx->dtype, 1);
    return (conv){ .x_bytes = x_bytes, .row_bytes = x_bytes * cdr_type_pitch(tx), .x = a->ptr[first], .tx = tx,
                   .start_T = a->ptr[first + 2], .pos_T = a->ptr[first + 3],
                   .T = tx->n[0], .P = tx->n[1], .W = a->type[first + 1].n[2], .pitch = cdr_padded(tx->n[1]), .w_WP = a->work };
}

static int64_t n_before(const conv *s, int64_t t) { return (int64_t)s->pos_T[t] - s->start_T[t]; }
static const float *weight(const conv *s, int64_t m, int64_t at) { return s->w_WP + (s->W - 1 - m) * s->pitch + at; }

/* What (1) sums for row t, channels from `at` on; none in an idle row. */
static void inputs_of(const conv *s, int64_t t, int64_t at, cdr__conv_taps *p)
{
    int64_t n = n_before(s, t);
    CDR_CHECK(s->hist || n <= t);                          /* data: a document that began earlier needs its history */
    p->dtype = s->tx->dtype;
    p->n = 0;
    const char *row = (const char *)s->x + t * s->row_bytes + at * s->x_bytes;
    for (int64_t m = 0; m < s->W && m <= n; m++, p->n++) {
        p->x[m] = t >= m ? row - m * s->row_bytes : (const char *)cdr_row(s->hist, s->thist, s->W - 1 + t - m) + at * s->x_bytes;
        p->w[m] = weight(s, m, at);
    }
}

/* A block's part of a row that is worked on soon: rows lie a page apart, which the hardware does not foresee. */
static void prefetch(const void *p, int64_t row_bytes, int64_t at_bytes, int64_t bytes, int64_t row, int64_t T)
{
    if (row >= T) return;
    const char *from = (const char *)p + row * row_bytes + at_bytes;
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(from + b);
}

/* (3): the rows are collected before the first is written, since they may be rows of the old history. */
static void rewrite_history(const conv *s, float *rows_WP)
{
    int64_t last = s->T - 1;
    while (last >= 0 && n_before(s, last) < 0) last--;
    if (last < 0) return;
    for (int64_t i = 0; i < s->W - 1; i++) {
        int64_t m = s->W - 2 - i;
        float *row_P = rows_WP + i * s->pitch;
        if (m > n_before(s, last)) memset(row_P, 0, (size_t)s->P * sizeof(float));
        else if (last >= m) cdr_row_load(s->x, s->tx, last - m, row_P);
        else cdr_row_load(s->hist, s->thist, s->W - 1 + last - m, row_P);
    }
    for (int64_t i = 0; i < s->W - 1; i++) cdr_row_store(rows_WP + i * s->pitch, s->hist, s->thist, i);
}

cdr_status cdr__short_conv_fwd(const cdr_args *a, const cdr__short_conv_rows *rows)
{
    const cdr_type *ty = &a->type[4];
    conv s = conv_of(a, 0);
    s.hist = a->ptr[5];
    s.thist = &a->type[5];
    assert(a->work && a->ptr[4]);
    const bool stream = cdr_streams(ty);
    int64_t n_rows = block_rows(s.T), n_blocks = cdr_ceil_div(s.T, n_rows);
    float *w_WP = a->work;
    load_weight(a->ptr[1], &a->type[1], s.pitch, w_WP);
#pragma omp parallel num_threads(a->lane->n_threads)
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < n_blocks; b++)
            for (int64_t at = 0; at < s.P; at += CDR_CONV_BLOCK) {
                int64_t n = CDR_MIN(s.P - at, (int64_t)CDR_CONV_BLOCK);
                for (int64_t t = b * n_rows; t < CDR_MIN((b + 1) * n_rows, s.T); t++) {
                    cdr__conv_taps p;
                    prefetch(s.x, s.row_bytes, at * s.x_bytes, n * s.x_bytes, t + PREFETCH_ROWS, s.T);
                    inputs_of(&s, t, at, &p);              /* none in an idle row: zeros */
                    rows->forward(&p, ty->dtype, cdr_row(a->ptr[4], ty, t), at, n, stream);
                }
            }
        if (stream) cdr_stream_end();
    }
    if (s.hist) rewrite_history(&s, w_WP + s.W * s.pitch);
    return CDR_OK;
}

/* the weight as [W][P], the blocks' sums of dw as [W][P], P padded, then per thread: a ring of W rows of a block's dp */
size_t cdr__short_conv_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    int64_t T = t[1].n[0], P = cdr_padded(t[1].n[1]), W = t[2].n[2], n_blocks = cdr_ceil_div(T, block_rows(T));
    return (size_t)(P * (W + n_blocks * W) + W * CDR_CONV_BLOCK * n_threads) * sizeof(float);
}

/* What (5) sums for row t: rows t .. t + W-1 of dp, in the ring */
static void gradients_of(const conv *s, int64_t t, int64_t at, const float *ring, cdr__conv_taps *p)
{
    p->dtype = CDR_F32;
    p->n = 0;
    if (n_before(s, t) < 0) return;
    for (int64_t m = 0; m < s->W && t + m < s->T; m++) {
        if (m > n_before(s, t + m)) continue;
        p->x[p->n] = ring + (t + m) % s->W * CDR_CONV_BLOCK;
        p->w[p->n++] = weight(s, m, at);
    }
}

/* Rows first .. end-1, channels at .. at + n; the W-1 rows behind them belong to dx of these. */
static void backward_block(const cdr_args *a, const conv *s, const cdr__short_conv_rows *rows, int64_t first, int64_t end, int64_t at, int64_t n,
                           float *sum_WP, float *ring)
{
    const cdr_type *tdy = &a->type[0], *tdx = &a->type[5];
    const int64_t dy_bytes = (int64_t)cdr_dtype_bytes(tdy->dtype, 1);
    float *sum[CDR_SHORT_CONV_MAX];
    cdr__conv_taps p;
    for (int64_t m = 0; m < s->W; m++) sum[m] = sum_WP + (s->W - 1 - m) * s->pitch + at;
    for (int64_t t = first; t < end + s->W - 1; t++) {
        if (t < s->T && n_before(s, t) >= 0) {
            prefetch(s->x, s->row_bytes, at * s->x_bytes, n * s->x_bytes, t + PREFETCH_ROWS, s->T);
            prefetch(a->ptr[0], dy_bytes * cdr_type_pitch(tdy), at * dy_bytes, n * dy_bytes, t + PREFETCH_ROWS, s->T);
            inputs_of(s, t, at, &p);
            rows->backward(&p, tdy->dtype, cdr_row(a->ptr[0], tdy, t), ring + t % s->W * CDR_CONV_BLOCK, t < end ? sum : NULL, at, n);
        }
        int64_t ready = t - (s->W - 1);
        if (ready < first || !a->ptr[5]) continue;
        gradients_of(s, ready, at, ring, &p);
        rows->gradient(&p, tdx->dtype, cdr_row(a->ptr[5], tdx, ready), at, n, a->add & 1);
    }
}

cdr_status cdr__short_conv_bwd(const cdr_args *a, const cdr__short_conv_rows *rows)
{
    conv s = conv_of(a, 1);
    assert(a->work);
    int64_t W = s.W, n_rows = block_rows(s.T), n_blocks = cdr_ceil_div(s.T, n_rows), n_sum = W * s.pitch;
    float *w_WP = a->work, *sum_NWP = w_WP + n_sum, *scratch = sum_NWP + n_blocks * n_sum;
    load_weight(a->ptr[2], &a->type[2], s.pitch, w_WP);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t b = 0; b < n_blocks; b++) {
        memset(sum_NWP + b * n_sum, 0, (size_t)n_sum * sizeof(float));
        for (int64_t at = 0; at < s.P; at += CDR_CONV_BLOCK)
            backward_block(a, &s, rows, b * n_rows, CDR_MIN((b + 1) * n_rows, s.T), at, CDR_MIN(s.P - at, (int64_t)CDR_CONV_BLOCK), sum_NWP + b * n_sum,
                           cdr_thread_part(scratch, W * CDR_CONV_BLOCK));
    }
    if (!a->ptr[6]) return CDR_OK;
    for (int64_t b = 1; b < n_blocks; b++) for (int64_t i = 0; i < n_sum; i++) sum_NWP[i] += sum_NWP[b * n_sum + i];
    for (int64_t c = 0; c < s.P; c++) {
        float taps[CDR_SHORT_CONV_MAX];
        for (int64_t j = 0; j < W; j++) taps[j] = sum_NWP[j * s.pitch + c];
        cdr_row_store(taps, a->ptr[6], &a->type[6], c);
    }
    return CDR_OK;
}
