/* indexer, the loss: equations (3) to (8) of op.c, forward and backward; both make p and I again from the operands.
 * The indexer's keys are widened and transposed once. Work goes by rounds of 16 rows a thread. First by rows: for a block of 16 rows, the
 * union of their lists of keys, against it the attention's scores by tiles (a key is widened once for the block), p summed over heads;
 * then per row I, the two distributions over its own list, and in the backward dI, dw and dq. A row goes over the tiles of 64 keys that
 * it selects from, or, where these are mostly not selected, over its list, gathered (x of all heads stays in scratch, so that I is
 * made once). dI of the round, and whether x > 0, stay in scratch. Then by tiles of keys: dk adds the rows of the round, up to 16 rows
 * of a document in one product. Scratch a thread: about (40 + heads) S floats; T x S never exists.
 * Bits: p[t,s] and I[t,s] are chains (d, then heads) that know t and s alone; sums over a row go by place in its own list; dk of a
 * key is a chain over the rows that take it, ascending, and over the heads within, through memory from round to round. So neither
 * the pack, nor the block, nor the number of threads changes a bit. The loss is summed in F64, ascending t.
 * What a row does not select enters with a weight of 0 where all numbers of the tile are finite, else not at all.
 * Precision: F32; cdr_exp, logf of libm.
 * Tried: one product a row in dk (H steps of k each): a third of the backward at 2 heads. x made again for dq and once more for dk.
 */
#include "ops/indexer/rows.h"
#include <math.h>

enum { KEYS = CDR__IX_KEYS, ROWS = CDR__IX_ROWS,
       GATHER = 6 };                     /* to gather and transpose a key costs as much as its products with so many heads */

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
    int32_t *first, *off;                  /* of a row: the tiles' first keys; of a key in `own`, where its x of head 0 is in x_all */
    uint64_t *bits;                        /* of a row: what it takes of each tile */
    float *p_all, *p, *z, *e;              /* p of the block's rows by place in `all`; of a row by place in `own`: p, I, exp(I - max) */
    float *q, *rows, *panel, *x, *x_all, *x_own, *g, *dq;      /* x_all: [tiles of a row][heads][64] */
} part;
/* rows, panels, finite: of the indexer's keys, by tile; sign: bit s of (row of the round, head), x > 0 */
typedef struct {
    double *kl_T;
    float *rows, *panels; int32_t *finite;
    float *dk, *q, *w, *di; int32_t *live; uint64_t *sign;
    int64_t n_rows, n_tiles; char *parts; size_t part_bytes;
} shared;

static part take_part(const cdr_indexer_loss_attr *at, int64_t T, cdr__ix_scratch *m)
{
    int64_t H = at->heads, D = cdr__ix_up(at->dim), dk = (int64_t)at->nope + at->ext, wide = CDR_MAX(D, dk), S = T + KEYS, n_tiles = cdr_ceil_div(T, (int64_t)KEYS);
    part w;
    w.all = cdr__ix_take(m, T);
    w.own = cdr__ix_take(m, T);
    w.first = cdr__ix_take(m, n_tiles);
    w.off = cdr__ix_take(m, T);
    w.bits = cdr__ix_take(m, 2 * n_tiles);
    w.p_all = cdr__ix_take(m, ROWS * S);
    w.p = cdr__ix_take(m, S);
    w.z = cdr__ix_take(m, S);
    w.e = cdr__ix_take(m, S);
    w.q = cdr__ix_take(m, CDR_MAX(ROWS * dk, H * D));
    w.rows = cdr__ix_take(m, KEYS * wide);
    w.panel = cdr__ix_take(m, wide * KEYS);
    w.x = cdr__ix_take(m, ROWS * KEYS);
    w.x_all = cdr__ix_take(m, n_tiles * H * KEYS);
    w.x_own = cdr__ix_take(m, S);
    w.g = cdr__ix_take(m, ROWS * H * KEYS);
    w.dq = cdr__ix_take(m, H * D + 2 * H);
    return w;
}
/* bwd: with what the rounds of the backward share */
static shared take_shared(const cdr_indexer_loss_attr *at, int64_t T, int n_threads, bool bwd, cdr__ix_scratch *m)
{
    int64_t H = at->heads, D = cdr__ix_up(at->dim), T_up = cdr_ceil_div(T, (int64_t)KEYS) * KEYS;
    shared s = { .n_rows = (int64_t)ROWS * n_threads, .n_tiles = T_up / KEYS };
    cdr__ix_scratch one = { NULL, 0 };
    s.kl_T = cdr__ix_take(m, 2 * T);
    s.rows = cdr__ix_take(m, T_up * D);
    s.panels = cdr__ix_take(m, T_up * D);
    s.finite = cdr__ix_take(m, s.n_tiles);
    if (bwd) {
        s.dk = cdr__ix_take(m, T_up * D);
        s.q = cdr__ix_take(m, s.n_rows * H * D);
        s.w = cdr__ix_take(m, s.n_rows * H);
        s.di = cdr__ix_take(m, s.n_rows * T_up);
        s.live = cdr__ix_take(m, s.n_rows);
        s.sign = cdr__ix_take(m, 2 * s.n_rows * H * s.n_tiles);
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

/* Tile i of the indexer's keys: rows of D_up, zeros behind the last; transposed. */
static void load_tile(const frame *f, const shared *s, int64_t i)
{
    const int64_t n = CDR_MIN((int64_t)KEYS, f->T - i * KEYS);
    float *rows = s->rows + i * KEYS * f->D_up;
    memset(rows, 0, sizeof(float) * (size_t)(KEYS * f->D_up));
    for (int64_t k = 0; k < n; k++) cdr__ix_load(f->m, &f->x[CDR__IL_KI], i * KEYS + k, 0, f->D, rows + k * f->D_up);
    f->m->transpose(rows, f->D_up, f->D_up, s->panels + i * KEYS * f->D_up);
    uint32_t special = 0;
    for (int64_t k = 0; k < KEYS * f->D_up; k++) {
        uint32_t u;
        memcpy(&u, rows + k, 4);
        special |= (u & 0x7f800000u) == 0x7f800000u;
    }
    s->finite[i] = !special;
}

static void load_tiles(const frame *f, const shared *s)
{
#pragma omp parallel for num_threads(f->a->lane->n_threads) schedule(static)
    for (int64_t i = 0; i < s->n_tiles; i++) load_tile(f, s, i);
}

/* n keys of a list as rows of D_up. */
static void gather(const frame *f, const shared *s, const int32_t *list, int64_t n, float *rows)
{
    for (int64_t i = 0; i < n; i++) memcpy(rows + i * f->D_up, s->rows + list[i] * f->D_up, sizeof(float) * (size_t)f->D_up);
}

/* x of the tiles that row t selects from, or of its own list by tiles; I, the list, and where each x is. w->bits 0: tiles of the list. */
typedef struct { int64_t n, n_tiles; bool gathered; } scores;
static void score_tile(const frame *f, const part *w, const float *q, const float *w_H, const float *panel, int64_t i_tile, float *z)
{
    float *x = w->x_all + i_tile * f->H * KEYS;
    f->m->product(f->H, KEYS, f->D, q, f->D_up, 1, panel, KEYS, x, KEYS, false);
    f->m->relu_sum(x, w_H, f->H, z);
}

static scores score_row(const frame *f, const part *w, const shared *s, int64_t t, const float *q, const float *w_H)
{
    scores r = { 0 };
    for (int64_t k = f->start[t] / KEYS * KEYS; k <= f->pos[t]; k += KEYS) {
        const uint64_t bits = bits_of(f, t, k);
        if (!bits) continue;
        w->first[r.n_tiles] = (int32_t)k;
        w->bits[r.n_tiles++] = bits;
        r.n += __builtin_popcountll(bits);
    }
    r.gathered = r.n_tiles * KEYS * f->H > r.n * (f->H + GATHER);
    int64_t n = 0;
    for (int64_t i = 0; i < r.n_tiles; i++) {
        float z[KEYS];
        if (!r.gathered) score_tile(f, w, q, w_H, s->panels + w->first[i] * f->D_up, i, z);
        for (uint64_t bits = w->bits[i]; bits; bits &= bits - 1, n++) {
            const int32_t c = __builtin_ctzll(bits);
            w->own[n] = w->first[i] + c;
            w->off[n] = (int32_t)(i * f->H * KEYS) + c;
            if (!r.gathered) w->z[n] = z[c];
        }
    }
    if (!r.gathered) return r;
    r.n_tiles = cdr_ceil_div(r.n, (int64_t)KEYS);
    for (int64_t i = 0; i < r.n_tiles; i++) {
        const int64_t n_keys = CDR_MIN((int64_t)KEYS, r.n - i * KEYS);
        gather(f, s, w->own + i * KEYS, n_keys, w->rows);
        memset(w->rows + n_keys * f->D_up, 0, sizeof(float) * (size_t)((KEYS - n_keys) * f->D_up));
        f->m->transpose(w->rows, f->D_up, f->D, w->panel);
        score_tile(f, w, q, w_H, w->panel, i, w->z + i * KEYS);
    }
    for (int64_t i = 0; i < r.n; i++) w->off[i] = (int32_t)(i / KEYS * f->H * KEYS + i % KEYS);
    return r;
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

/* The r-th row of the block, whose union has n_all keys: its list, p from the block's, I, and the distributions. */
static scores row_of(const frame *f, const part *w, const shared *s, int64_t t, int64_t r, int64_t n_all, const float *q, const float *w_H, double *kl)
{
    const float *p_all = w->p_all + r * (f->T + KEYS);
    const scores x = score_row(f, w, s, t, q, w_H);
    const bool whole = w->all[n_all - 1] - w->all[0] == n_all - 1;           /* the union is a range */
    for (int64_t i = 0; i < x.n && whole; i++) w->p[i] = p_all[w->own[i] - w->all[0]];
    for (int64_t i = 0, j = 0; i < x.n && !whole; i++, j++) {
        while (w->all[j] != w->own[i]) j++;
        w->p[i] = p_all[j];
    }
    *kl = distributions(f, w, x.n);
    return x;
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
    load_tiles(&f, &s);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
    for (int64_t b = 0; b < cdr_ceil_div(f.T, (int64_t)ROWS); b++) {
        part w = part_of(&f, &s);
        int64_t live[ROWS], n = live_rows(&f, b * ROWS, (b + 1) * ROWS, live);
        int64_t n_all = n > 0 ? list_of(&f, live, n, w.all) : 0;
        if (n > 0) targets(&f, &w, live, n, n_all);
        for (int64_t r = 0; r < n; r++) {
            float *q = w.q, *w_H = w.dq;
            load_query(&f, live[r], q, w_H);
            row_of(&f, &w, &s, live[r], r, n_all, q, w_H, &s.kl_T[live[r]]);
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

/* dq[H][D_up] += g[H][64] over the keys of tile i of the row, (8); g is 0 where a key is not selected. */
static void dq_tile(const frame *f, const part *w, const shared *s, const scores *x, int64_t i, const float *g)
{
    int64_t H = f->H, D = f->D_up;
    if (x->gathered) {
        const int64_t n_keys = CDR_MIN((int64_t)KEYS, x->n - i * KEYS);
        gather(f, s, w->own + i * KEYS, n_keys, w->rows);
        f->m->product(H, D, n_keys, g, KEYS, 1, w->rows, D, w->dq, D, true);
        return;
    }
    const float *rows = s->rows + w->first[i] * D;
    const int64_t lo = __builtin_ctzll(w->bits[i]), hi = 64 - __builtin_clzll(w->bits[i]);
    if (s->finite[w->first[i] / KEYS]) {
        f->m->product(H, D, hi - lo, g + lo, KEYS, 1, rows + lo * D, D, w->dq, D, true);
        return;
    }
    for (uint64_t bits = w->bits[i]; bits; bits &= bits - 1) {
        const int64_t c = __builtin_ctzll(bits);
        f->m->product(H, D, 1, g + c, KEYS, 1, rows + c * D, D, w->dq, D, true);
    }
}

/* Of row t, the k-th of the round: x > 0 by key, for dk; dq. di: dI by key. */
static void signs_and_dq(const frame *f, const part *w, const shared *s, const scores *x, int64_t k, const float *di)
{
    uint64_t *sign = s->sign + k * f->H * s->n_tiles;
    if (x->gathered)
        for (int64_t j = 0; j < f->H; j++)
            for (int64_t i = w->own[0] / KEYS; i <= w->own[x->n - 1] / KEYS; i++) sign[j * s->n_tiles + i] = 0;
    for (int64_t i = 0; i < x->n_tiles; i++) {
        for (int64_t j = 0; j < f->H; j++) {
            const float *x_S = w->x_all + (i * f->H + j) * KEYS;
            float *g = w->g + j * KEYS;
            if (x->gathered) {
                const int64_t n_keys = CDR_MIN((int64_t)KEYS, x->n - i * KEYS);
                for (int64_t c = 0; c < n_keys; c++) {
                    const int32_t key = w->own[i * KEYS + c];
                    g[c] = x_S[c] > 0.0f ? w->z[i * KEYS + c] : 0.0f;
                    sign[j * s->n_tiles + key / KEYS] |= (uint64_t)(x_S[c] > 0.0f) << (key % KEYS);
                }
            } else {
                const uint64_t bits = f->m->signs(x_S) & w->bits[i];
                sign[j * s->n_tiles + w->first[i] / KEYS] = bits;
                f->m->take_signs(di + w->first[i], 1.0f, bits, g);
            }
        }
        dq_tile(f, w, s, x, i, w->g);
    }
}

/* Row t, the k-th of the round: dI by key to di, (7); dw and dq, (8). */
static void row_bwd(const frame *f, const part *w, const shared *s, int64_t t, int64_t k, int64_t r, int64_t n_all, float scale)
{
    int64_t H = f->H, D = f->D_up;
    float *q = s->q + k * H * D, *w_H = s->w + k * H, *di = s->di + k * s->n_tiles * KEYS, *dw = w->dq + H * D;
    double kl;
    load_query(f, t, q, w_H);
    const scores x = row_of(f, w, s, t, r, n_all, q, w_H, &kl);
    memset(di + f->start[t], 0, sizeof(float) * (size_t)(f->pos[t] - f->start[t] + 1));
    for (int64_t i = 0; i < x.n; i++) {
        w->z[i] = scale * (w->e[i] - w->p[i]);
        di[w->own[i]] = w->z[i];
    }
    memset(w->dq, 0, sizeof(float) * (size_t)(H * D + H));
    for (int64_t j = 0; j < H; j++) {
        const float *x_S = w->x_all + j * KEYS;
        for (int64_t i = 0; i < x.n; i++) w->x_own[i] = x_S[w->off[i]] < 0.0f ? 0.0f : x_S[w->off[i]];
        for (int64_t i = 0; i < x.n; i += KEYS) dw[j] += cdr_dot(w->z + i, w->x_own + i, CDR_MIN((int64_t)KEYS, x.n - i));
    }
    signs_and_dq(f, w, s, &x, k, di);
    for (int64_t j = 0; j < H; j++)                        /* times w_j, and close up the rows */
        for (int64_t d = 0; d < f->D; d++) w->dq[j * f->D + d] = w->dq[j * D + d] * w_H[j];
}

/* The rows of one block in the round that begins at t0. */
static void block_bwd(const frame *f, const shared *s, int64_t t0, int64_t b, float scale)
{
    part w = part_of(f, s);
    int64_t live[ROWS], first = t0 + b * ROWS, end = CDR_MIN(first + ROWS, f->T), n = live_rows(f, first, end, live), H = f->H, D = f->D_up;
    int64_t n_all = n > 0 ? list_of(f, live, n, w.all) : 0;
    float *dw = w.dq + H * D, *old = dw + H;
    if (n > 0) targets(f, &w, live, n, n_all);
    for (int64_t t = first, r = 0; t < end; t++) {
        bool is = r < n && live[r] == t;
        s->live[t - t0] = is;
        if (is) row_bwd(f, &w, s, t, t - t0, r++, n_all, scale);
        else memset(w.dq, 0, sizeof(float) * (size_t)(H * D + H));
        put_row(f->a, CDR__IL_DW, t, dw, old);
        put_row(f->a, CDR__IL_DQI, t, w.dq, w.q);
    }
}

/* dk of the keys [k0, k0 + 64) += the rows [t0, t1) of the round, (8): runs of rows of one document that all take a key of the tile */
static void keys_bwd(const frame *f, const shared *s, int64_t k0, int64_t t0, int64_t t1)
{
    part w = part_of(f, s);
    int64_t H = f->H, D = f->D_up, n = 0;
    uint64_t any = 0;
    for (int64_t t = t0; t <= t1; t++) {
        const uint64_t bits = t < t1 && s->live[t - t0] ? bits_of(f, t, k0) : 0;
        if (n > 0 && (!bits || n == ROWS || f->start[t] != f->start[t - 1])) {
            const int64_t lo = __builtin_ctzll(any), hi = 64 - __builtin_clzll(any);
            f->m->product(hi - lo, D, n * H, w.g + lo, 1, KEYS, s->q + (t - n - t0) * H * D, D, s->dk + (k0 + lo) * D, D, true);
            n = 0;
            any = 0;
        }
        if (!bits) continue;
        for (int64_t j = 0; j < H; j++) {
            const int64_t row = (t - t0) * H + j;
            f->m->take_signs(s->di + (t - t0) * s->n_tiles * KEYS + k0, s->w[row], s->sign[row * s->n_tiles + k0 / KEYS], w.g + (n * H + j) * KEYS);
        }
        any |= bits;
        n++;
    }
}

cdr_status cdr__indexer_loss_bwd_run(const cdr_args *a, const cdr__indexer_math *m)
{
    const frame f = frame_of(a, m);
    cdr__ix_scratch all = { a->work, 0 };
    shared s = take_shared(f.at, f.T, a->lane->n_threads, true, &all);
    const float scale = f.at->coef * *(const float *)a->ptr[CDR__IL_SCALE];
    assert(a->work);
    memset(s.dk, 0, sizeof(float) * (size_t)(s.n_tiles * KEYS * f.D_up));
    load_tiles(&f, &s);
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
