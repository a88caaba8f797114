/* indexer, the loss: equations (3) to (8) of op.c, forward and backward; both make p and I again from the operands.
 * Work goes by rounds of 16 rows a thread. First by rows: for a block of 16 rows, the union of their lists of keys, against it the
 * attention's scores by tiles (a key is widened once for the block), p summed over heads; then per row, over its own list, I, the two
 * distributions, and in the backward dI, dw and dq. dI of the round stays in scratch. Then by tiles of keys: dk adds the rows
 * of the round. Scratch a thread: about 40 S floats; T x S never exists.
 * Bits: p[t,s] and I[t,s] are chains (d, then heads) that know t and s alone; sums over a row go by place in its own list; dk of a
 * key is a chain over the rows that take it, ascending, and over the heads within, through memory from round to round. So neither
 * the pack, nor the block, nor the number of threads changes a bit. The loss is summed in F64, ascending t.
 * Precision: F32; cdr_exp, logf of libm.
 */
#include "ops/indexer/rows.h"
#include <math.h>

enum { KEYS = CDR__IX_KEYS, ROWS = CDR__IX_ROWS };

typedef struct {
    const cdr_args *a;
    const cdr_indexer_loss_attr *at;
    const cdr__indexer_math *m;
    int64_t T, H, D, D_up, dk, head;       /* head: columns of kv a main head has */
    const int32_t *start, *pos;
    cdr__att_sel sel;
    cdr__att_mat x[CDR__IL_SEL];           /* operands of numbers */
} frame;

static frame frame_of(const cdr_args *a, const cdr__indexer_math *m)
{
    const cdr_indexer_loss_attr *at = a->attr;
    frame f = { a, at, m, a->type[CDR__IL_QI].n[0], at->heads, at->dim, cdr__ix_up(at->dim), (int64_t)at->nope + at->ext, (int64_t)at->nope + at->v,
                a->ptr[CDR__IL_START], a->ptr[CDR__IL_POS], cdr__att_mask(a, CDR__IL_SEL), { { NULL, 0, 0, 0 } } };
    for (int i = 0; i < CDR__IL_SEL; i++) f.x[i] = cdr__att_operand(a, i);
    return f;
}

/* ---- scratch ---------------------------------------------------------------------------------------------------- */
typedef struct {
    int32_t *all, *own;                    /* lists of keys: of the block, of a row */
    float *p_all, *p, *z, *e;              /* p of the block's rows by place in `all`; of a row by place in `own`: p, I, exp(I - max) */
    float *q, *rows, *panel, *x, *g, *dq;
} part;
typedef struct { double *kl_T; float *dk, *q, *w, *di; int32_t *live; int64_t n_rows; char *parts; size_t part_bytes; } shared;

static part take_part(const cdr_indexer_loss_attr *at, int64_t T, cdr__ix_scratch *m)
{
    int64_t H = at->heads, D = cdr__ix_up(at->dim), dk = (int64_t)at->nope + at->ext, wide = CDR_MAX(D, dk), S = T + KEYS;
    part w;
    w.all = cdr__ix_take(m, T);
    w.own = cdr__ix_take(m, T);
    w.p_all = cdr__ix_take(m, ROWS * S);
    w.p = cdr__ix_take(m, S);
    w.z = cdr__ix_take(m, S);
    w.e = cdr__ix_take(m, S);
    w.q = cdr__ix_take(m, CDR_MAX(ROWS * dk, H * D));
    w.rows = cdr__ix_take(m, KEYS * wide);
    w.panel = cdr__ix_take(m, wide * KEYS);
    w.x = cdr__ix_take(m, CDR_MAX(ROWS, H) * KEYS);
    w.g = cdr__ix_take(m, H * KEYS);
    w.dq = cdr__ix_take(m, H * D + 2 * H);
    return w;
}
/* bwd: with what the rounds of the backward share */
static shared take_shared(const cdr_indexer_loss_attr *at, int64_t T, int n_threads, bool bwd, cdr__ix_scratch *m)
{
    int64_t H = at->heads, D = cdr__ix_up(at->dim), T_up = cdr_ceil_div(T, (int64_t)KEYS) * KEYS;
    shared s = { .n_rows = (int64_t)ROWS * n_threads };
    cdr__ix_scratch one = { NULL, 0 };
    s.kl_T = cdr__ix_take(m, 2 * T);
    if (bwd) {
        s.dk = cdr__ix_take(m, T_up * D);
        s.q = cdr__ix_take(m, s.n_rows * H * D);
        s.w = cdr__ix_take(m, s.n_rows * H);
        s.di = cdr__ix_take(m, s.n_rows * T_up);
        s.live = cdr__ix_take(m, s.n_rows);
    }
    take_part(at, T, &one);
    s.part_bytes = one.used;
    s.parts = m->base ? m->base + m->used : NULL;
    m->used += (size_t)n_threads * one.used;
    return s;
}
size_t cdr__indexer_loss_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    cdr__ix_scratch m = { NULL, 0 };
    (void)n_in, (void)n_out;
    take_shared(attr, t[CDR__IL_QI].n[0], n_threads, false, &m);
    return m.used;
}
size_t cdr__indexer_loss_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    cdr__ix_scratch m = { NULL, 0 };
    (void)n_in, (void)n_out;
    take_shared(attr, t[CDR__IL_QI].n[0], n_threads, true, &m);
    return m.used;
}
static part part_of(const frame *f, const shared *s)
{
    cdr__ix_scratch m = { s->parts + (size_t)omp_get_thread_num() * s->part_bytes, 0 };
    return take_part(f->at, f->T, &m);
}

/* ---- lists -------------------------------------------------------------------------------------------------------- */
/* Bits of Omega_t among the keys s .. s + 63. */
static uint64_t bits_of(const frame *f, int64_t t, int64_t s)
{
    int64_t n = CDR_MIN((int64_t)64, f->pos[t] + 1 - s), skip = f->start[t] - s;
    if (n <= 0 || skip >= 64) return 0;
    uint64_t bits = cdr__att_bits(&f->sel, cdr__att_mask_row(&f->sel, t), s, n);
    return skip > 0 ? bits >> skip << skip : bits;
}
/* Union of Omega over the rows t[0..n), ascending; returns its size. */
static int64_t list_of(const frame *f, const int64_t *t, int64_t n, int32_t *list)
{
    int64_t lo = f->T, hi = -1, size = 0;
    for (int64_t r = 0; r < n; r++) {
        lo = CDR_MIN(lo, f->start[t[r]]);
        hi = CDR_MAX(hi, f->pos[t[r]]);
    }
    for (int64_t s = lo; s <= hi; s += 64) {
        uint64_t bits = 0;
        for (int64_t r = 0; r < n; r++) bits |= bits_of(f, t[r], s);
        for (; bits; bits &= bits - 1) list[size++] = (int32_t)(s + __builtin_ctzll(bits));
    }
    return size;
}
/* Rows of fewer than two keys give nothing: one distribution is there, not two. */
static bool is_live(const frame *f, int64_t t)
{
    int64_t n = 0;
    for (int64_t s = f->start[t]; s <= f->pos[t] && n < 2; s += 64) n += __builtin_popcountll(bits_of(f, t, s));
    return n >= 2;
}

/* ---- p, for the rows of a block --------------------------------------------------------------------------------- */
static void load_main_keys(const frame *f, const part *w, int64_t h, const int32_t *list, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float *k = w->rows + i * f->dk;
        cdr__ix_load(f->m, &f->x[CDR__IL_KV], list[i], h * f->head, f->at->nope, k);
        if (f->at->ext) cdr__ix_load(f->m, &f->x[CDR__IL_KR], list[i], 0, f->at->ext, k + f->at->nope);
    }
    memset(w->rows + n * f->dk, 0, sizeof(float) * (size_t)((KEYS - n) * f->dk));
    f->m->transpose(w->rows, f->dk, f->dk, w->panel);
}

/* p_all[r][i], (3), for the rows t[0..n) and the n_all keys of the union */
static void targets(const frame *f, const part *w, const int64_t *t, int64_t n, int64_t n_all)
{
    int64_t pitch = f->T + KEYS;
    for (int64_t r = 0; r < n; r++) memset(w->p_all + r * pitch, 0, sizeof(float) * (size_t)n_all);
    for (int64_t h = 0; h < f->at->main_heads; h++) {
        float lse[ROWS];
        for (int64_t r = 0; r < n; r++) {
            cdr__ix_load(f->m, &f->x[CDR__IL_Q], t[r], h * f->dk, f->dk, w->q + r * f->dk);
            cdr__ix_load(f->m, &f->x[CDR__IL_LSE], t[r], h, 1, &lse[r]);
        }
        for (int64_t i = 0; i < n_all; i += KEYS) {
            int64_t n_keys = CDR_MIN((int64_t)KEYS, n_all - i);
            load_main_keys(f, w, h, w->all + i, n_keys);
            f->m->product(n, KEYS, f->dk, w->q, f->dk, 1, w->panel, KEYS, w->x, KEYS, false);
            for (int64_t r = 0; r < n; r++) f->m->add_exp(w->x + r * KEYS, n_keys, f->at->scale, lse[r], w->p_all + r * pitch + i);
        }
    }
}

/* ---- one row over its own list ---------------------------------------------------------------------------------- */
/* sum of x, by place: sixteen partial sums merged as a tree */
static float sum_of(const float *x, int64_t n)
{
    float s[16] = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) for (int j = 0; j < 16; j++) s[j] += x[i + j];
    for (int j = 0; i + j < n; j++) s[j] += x[i + j];
    for (int d = 8; d > 0; d /= 2) for (int j = 0; j < d; j++) s[j] += s[j + d];
    return s[0];
}

/* Keys of the list, widened to rows of D_up and transposed; x = their products with q. */
static void score_tile(const frame *f, const part *w, const float *q, const int32_t *list, int64_t n)
{
    for (int64_t i = 0; i < n; i++) cdr__ix_load(f->m, &f->x[CDR__IL_KI], list[i], 0, f->D, w->rows + i * f->D_up);
    for (int64_t i = 0; i < KEYS; i++) {
        int64_t from = i < n ? f->D : 0;
        memset(w->rows + i * f->D_up + from, 0, sizeof(float) * (size_t)(f->D_up - from));
    }
    f->m->transpose(w->rows, f->D_up, f->D, w->panel);
    f->m->product(f->H, KEYS, f->D, q, f->D_up, 1, w->panel, KEYS, w->x, KEYS, false);
}

/* q in rows of D_up, and w, of row t */
static void load_query(const frame *f, int64_t t, float *q, float *w_H)
{
    for (int64_t j = 0; j < f->H; j++) {
        cdr__ix_load(f->m, &f->x[CDR__IL_QI], t, j * f->D, f->D, q + j * f->D_up);
        memset(q + j * f->D_up + f->D, 0, sizeof(float) * (size_t)(f->D_up - f->D));
    }
    cdr__ix_load(f->m, &f->x[CDR__IL_W], t, 0, f->H, w_H);
}

/* From p and I of the row's n keys: p normalised, e = softmax(I); returns KL(p || e), (4) to (6). */
static double distributions(const frame *f, const part *w, int64_t n)
{
    float max = w->z[0], sum_p = sum_of(w->p, n);
    for (int64_t i = 1; i < n; i++) max = !(w->z[i] <= max) ? w->z[i] : max;
    memcpy(w->e, w->z, sizeof(float) * (size_t)n);
    f->m->exp_of(w->e, n, max);
    float sum_e = sum_of(w->e, n), log_e = logf(sum_e), inv_e = 1.0f / sum_e, inv_p = 1.0f / (sum_p < 1e-10f ? 1e-10f : sum_p);
    double kl = 0;
    for (int64_t i = 0; i < n; i++) {
        w->p[i] *= inv_p;
        if (!(w->p[i] <= 0.0f)) kl += (double)(w->p[i] * (logf(w->p[i]) - ((w->z[i] - max) - log_e)));
        w->e[i] *= inv_e;
    }
    return kl;
}

/* The r-th row of the block: its list, p from the block's, I, and the distributions; returns the size of the list, *kl. */
static int64_t row_of(const frame *f, const part *w, int64_t t, int64_t r, const float *q, const float *w_H, double *kl)
{
    const float *p_all = w->p_all + r * (f->T + KEYS);
    int64_t n = list_of(f, &t, 1, w->own);
    for (int64_t i = 0, j = 0; i < n; i++, j++) {
        while (w->all[j] != w->own[i]) j++;
        w->p[i] = p_all[j];
    }
    for (int64_t i = 0; i < n; i += KEYS) {
        score_tile(f, w, q, w->own + i, CDR_MIN((int64_t)KEYS, n - i));
        f->m->relu_sum(w->x, w_H, f->H, w->z + i);
    }
    *kl = distributions(f, w, n);
    return n;
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */
/* live rows of the block at t; returns their number */
static int64_t live_rows(const frame *f, int64_t t, int64_t end, int64_t *live)
{
    int64_t n = 0;
    for (; t < CDR_MIN(end, f->T); t++) if (is_live(f, t)) live[n++] = t;
    return n;
}

cdr_status cdr__indexer_loss_run(const cdr_args *a, const cdr__indexer_math *m)
{
    const frame f = frame_of(a, m);
    cdr__ix_scratch all = { a->work, 0 };
    shared s = take_shared(f.at, f.T, a->lane->n_threads, false, &all);
    assert(a->work && a->ptr[CDR__IL_KL]);
    memset(s.kl_T, 0, sizeof(double) * (size_t)f.T);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
    for (int64_t b = 0; b < cdr_ceil_div(f.T, (int64_t)ROWS); b++) {
        part w = part_of(&f, &s);
        int64_t live[ROWS], n = live_rows(&f, b * ROWS, (b + 1) * ROWS, live);
        if (n > 0) targets(&f, &w, live, n, list_of(&f, live, n, w.all));
        for (int64_t r = 0; r < n; r++) {
            float *q = w.q, *w_H = w.dq;
            load_query(&f, live[r], q, w_H);
            row_of(&f, &w, live[r], r, q, w_H, &s.kl_T[live[r]]);
        }
    }
    double sum = 0;
    for (int64_t t = 0; t < f.T; t++) sum += s.kl_T[t];
    *(double *)a->ptr[CDR__IL_KL] = (double)f.at->coef * sum;
    return CDR_OK;
}

/* ---- backward ----------------------------------------------------------------------------------------------------- */
static void put_row(const cdr_args *a, int i, int64_t t, float *x, float *old)
{
    if (!a->ptr[i]) return;
    if ((a->add >> (i - CDR__IL_DQI)) & 1u) cdr_row_add(x, a->ptr[i], &a->type[i], t, old);
    else cdr_row_store(x, a->ptr[i], &a->type[i], t);
}

/* Row t, the k-th of the round: dI by key to di, (7); dw and dq, (8). */
static void row_bwd(const frame *f, const part *w, const shared *s, int64_t t, int64_t k, int64_t r, float scale)
{
    int64_t H = f->H, D = f->D_up, T_up = cdr_ceil_div(f->T, (int64_t)KEYS) * KEYS;
    float *q = s->q + k * H * D, *w_H = s->w + k * H, *di = s->di + k * T_up, *dw = w->dq + H * D;
    double kl;
    load_query(f, t, q, w_H);
    int64_t n = row_of(f, w, t, r, q, w_H, &kl);
    memset(di + f->start[t], 0, sizeof(float) * (size_t)(f->pos[t] - f->start[t] + 1));
    for (int64_t i = 0; i < n; i++) {
        w->z[i] = scale * (w->e[i] - w->p[i]);
        di[w->own[i]] = w->z[i];
    }
    memset(w->dq, 0, sizeof(float) * (size_t)(H * D + H));
    for (int64_t i = 0; i < n; i += KEYS) {
        int64_t n_keys = CDR_MIN((int64_t)KEYS, n - i);
        score_tile(f, w, q, w->own + i, n_keys);
        for (int64_t j = 0; j < H; j++) {
            float *x = w->x + j * KEYS, *g = w->g + j * KEYS;
            for (int64_t c = 0; c < n_keys; c++) {
                g[c] = x[c] > 0.0f ? w->z[i + c] : 0.0f;
                x[c] = x[c] < 0.0f ? 0.0f : x[c];
            }
            dw[j] += cdr_dot(w->z + i, x, n_keys);
        }
        f->m->product(H, D, n_keys, w->g, KEYS, 1, w->rows, D, w->dq, D, true);
    }
    for (int64_t j = 0; j < H; j++)                        /* times w_j, and close up the rows */
        for (int64_t d = 0; d < f->D; d++) w->dq[j * f->D + d] = w->dq[j * D + d] * w_H[j];
}

/* The rows of one block in the round that begins at t0. */
static void block_bwd(const frame *f, const shared *s, int64_t t0, int64_t b, float scale)
{
    part w = part_of(f, s);
    int64_t live[ROWS], first = t0 + b * ROWS, end = CDR_MIN(first + ROWS, f->T), n = live_rows(f, first, end, live), H = f->H, D = f->D_up;
    float *dw = w.dq + H * D, *old = dw + H;
    if (n > 0) targets(f, &w, live, n, list_of(f, live, n, w.all));
    for (int64_t t = first, r = 0; t < end; t++) {
        bool is = r < n && live[r] == t;
        s->live[t - t0] = is;
        if (is) row_bwd(f, &w, s, t, t - t0, r++, scale);
        else memset(w.dq, 0, sizeof(float) * (size_t)(H * D + H));
        put_row(f->a, CDR__IL_DW, t, dw, old);
        put_row(f->a, CDR__IL_DQI, t, w.dq, w.q);
    }
}

/* dk of the keys [k0, k0 + 64) += the rows [t0, t1) of the round, (8) */
static void keys_bwd(const frame *f, const shared *s, int64_t k0, int64_t t0, int64_t t1)
{
    part w = part_of(f, s);
    int64_t H = f->H, D = f->D_up, T_up = cdr_ceil_div(f->T, (int64_t)KEYS) * KEYS;
    bool ready = false;
    for (int64_t t = t0; t < t1; t++) {
        uint64_t bits = s->live[t - t0] ? bits_of(f, t, k0) : 0;
        if (!bits) continue;
        const float *q = s->q + (t - t0) * H * D, *w_H = s->w + (t - t0) * H, *di = s->di + (t - t0) * T_up + k0;
        int64_t lo = __builtin_ctzll(bits), hi = 64 - __builtin_clzll(bits);
        if (ready) {
            f->m->product(H, KEYS, f->D, q, D, 1, w.panel, KEYS, w.x, KEYS, false);
        } else {
            int32_t list[KEYS];
            int64_t n = CDR_MIN((int64_t)KEYS, f->T - k0);
            for (int64_t i = 0; i < n; i++) list[i] = (int32_t)(k0 + i);
            score_tile(f, &w, q, list, n);
            ready = true;
        }
        for (int64_t j = 0; j < H; j++)
            for (int64_t c = lo; c < hi; c++) w.g[j * KEYS + c] = w.x[j * KEYS + c] > 0.0f ? di[c] * w_H[j] : 0.0f;
        f->m->product(hi - lo, D, H, w.g + lo, 1, KEYS, q, D, s->dk + (k0 + lo) * D, D, true);
    }
}

cdr_status cdr__indexer_loss_bwd_run(const cdr_args *a, const cdr__indexer_math *m)
{
    const frame f = frame_of(a, m);
    cdr__ix_scratch all = { a->work, 0 };
    shared s = take_shared(f.at, f.T, a->lane->n_threads, true, &all);
    const float scale = f.at->coef * *(const float *)a->ptr[CDR__IL_SCALE];
    assert(a->work);
    memset(s.dk, 0, sizeof(float) * (size_t)(cdr_ceil_div(f.T, (int64_t)KEYS) * KEYS * f.D_up));
    for (int64_t t0 = 0; t0 < f.T; t0 += s.n_rows) {
        int64_t t1 = CDR_MIN(t0 + s.n_rows, f.T);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
        for (int64_t b = 0; b < cdr_ceil_div(t1 - t0, (int64_t)ROWS); b++) block_bwd(&f, &s, t0, b, scale);
        if (!a->ptr[CDR__IL_DKI]) continue;
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
        for (int64_t k0 = 0; k0 < t1; k0 += KEYS) keys_bwd(&f, &s, k0, t0, t1);
    }
    if (!a->ptr[CDR__IL_DKI]) return CDR_OK;
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < f.T; t++) {
        part w = part_of(&f, &s);
        put_row(a, CDR__IL_DKI, t, s.dk + t * f.D_up, w.rows);
    }
    return CDR_OK;
}
