/* attention, base kernels in plain C: equations (1)-(5) of op.c.
 * Forward, per head, run of rows and tile of 64 keys counted from start_t, with K transposed so that the inner loops run
 * over keys or over columns (they vectorise without changing the order of any sum):
 *   m' = max(m, max_s s_ts),  c = exp(m - m'),  p_ts = exp(s_ts - m'),  l' = c l + sum_s p_ts,  o' = c o + sum_s p_ts v_s
 * o_t = o / l, lse_t = m + log l. Every sum is one chain in ascending order (d, then s within a tile), and the tiles of a
 * row start at start_t: the bits of a row depend on its document's keys up to pos_t alone, not on where the document lies
 * in the pack, what else is there, how rows are blocked, or the number of threads.
 * Backward, per document and head, key tiles outside, query rows inside: dv, dk are chains over ascending t, dq a chain
 * over ascending s; dkr adds the heads' parts in ascending h at the end.
 * With a sel, a tile's scores are packed to the selected ones and the chains go over those: what is not selected never enters.
 * Precision: F32; exp and log of libm.
 */
#include "ops/attention/attention.h"
#include <math.h>
#include <omp.h>

enum { KEYS = CDR__ATT_KEYS, BLOCK = 32 };     /* keys of a tile, query rows of a task */

static size_t floats(size_t n) { return cdr_align_up(n * sizeof(float), 64); }
static float *take(char **at, int64_t n)
{
    float *p = (float *)(void *)*at;
    *at += floats((size_t)n);
    return p;
}

typedef struct {
    const cdr_attention_attr *at;
    int64_t H, nope, ext, v, dk;
    cdr__att_mat q, kv, kr;
    const int32_t *start, *pos;
    cdr__att_sel sel;
} frame;

static frame frame_of(const cdr_args *a, int first, int sel)      /* operands q and sel */
{
    const cdr_attention_attr *at = a->attr;
    frame f = { at, at->heads, at->nope, at->ext, at->v, (int64_t)at->nope + at->ext, cdr__att_operand(a, first),
                cdr__att_operand(a, first + 1), cdr__att_operand(a, first + 2), a->ptr[first + 3], a->ptr[first + 4], cdr__att_mask(a, sel) };
    return f;
}
/* Indices below n of a tile at s0 that row t selects, ascending; returns their number. */
static int64_t selected(const frame *f, int64_t t, int64_t s0, int64_t n, int32_t *index)
{
    uint64_t bits = cdr__att_bits(&f->sel, cdr__att_mask_row(&f->sel, t), s0, n);
    int64_t k = 0;
    for (; bits; bits &= bits - 1) index[k++] = (int32_t)__builtin_ctzll(bits);
    return k;
}

/* keys [s0, s0 + n) of head h: k_KEYS_DK, and kt, its transpose [dk][KEYS] */
static void load_keys(const frame *f, int64_t h, int64_t s0, int64_t n, float *CDR_RESTRICT k, float *CDR_RESTRICT kt)
{
    for (int64_t s = 0; s < n; s++) {
        float *row = k + s * f->dk;
        cdr__att_load(&f->kv, s0 + s, h * (f->nope + f->v), f->nope, row);
        if (f->ext) cdr__att_load(&f->kr, s0 + s, 0, f->ext, row + f->nope);
        for (int64_t i = 0; i < f->dk; i++) kt[i * KEYS + s] = row[i];
    }
}

/* x[s] = sum_i a[i] b[i][s], ascending i */
static void row_times(const float *CDR_RESTRICT a, const float *CDR_RESTRICT b, int64_t k, int64_t n, float *CDR_RESTRICT x)
{
    for (int64_t s = 0; s < n; s++) x[s] = 0;
    for (int64_t i = 0; i < k; i++)
        for (int64_t s = 0; s < n; s++) x[s] += a[i] * b[i * KEYS + s];
}
static void axpy(float c, const float *CDR_RESTRICT x, float *CDR_RESTRICT y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += c * x[i];
}

/* ---- forward -------------------------------------------------------------------------------------------------- */
typedef struct { float *k, *kt, *v, *q, *o, *m, *l, *s; } fwd_work;

static size_t fwd_work_bytes(int64_t dk, int64_t v)
{
    size_t K = KEYS, B = BLOCK, D = (size_t)dk, V = (size_t)v;
    return 2 * floats(K * D) + floats(K * V) + floats(B * D) + floats(B * V) + 2 * floats(B) + floats(K);
}
size_t cdr__attention_fwd_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    const cdr_attention_attr *a = attr;
    (void)n_in, (void)n_out, (void)t;
    return (size_t)n_threads * fwd_work_bytes((int64_t)a->nope + a->ext, a->v);
}

/* row t, the i-th of its block, against the n visible keys of the tile at s0 */
static void fwd_row(const frame *f, fwd_work *w, int64_t t, int64_t i, int64_t s0, int64_t n)
{
    float *o = w->o + i * f->v, *s = w->s, m = w->m[i];
    int32_t index[KEYS];
    int64_t n_sel = selected(f, t, s0, n, index);
    if (n_sel == 0) return;
    row_times(w->q + i * f->dk, w->kt, f->dk, n, s);
    n = n_sel;
    for (int64_t j = 0; j < n; j++) {
        s[j] = s[index[j]] * f->at->scale;
        m = !(s[j] <= m) ? s[j] : m;      /* a NaN becomes the maximum, and so reaches o */
    }
    float c = expf(w->m[i] - m), sum = 0;
    for (int64_t j = 0; j < n; j++) {
        s[j] = expf(s[j] - m);
        sum += s[j];
    }
    w->l[i] = w->l[i] * c + sum;
    w->m[i] = m;
    for (int64_t j = 0; j < f->v; j++) o[j] *= c;
    for (int64_t j = 0; j < n; j++) axpy(s[j], w->v + index[j] * f->v, o, f->v);
}

static void fwd_out(const cdr_args *a, const frame *f, fwd_work *w, int64_t h, int64_t t, int64_t i)
{
    cdr__att_mat o = cdr__att_operand(a, CDR__ATT_O), o32 = cdr__att_operand(a, CDR__ATT_O32), lse = cdr__att_operand(a, CDR__ATT_LSE);
    float *x = w->o + i * f->v, stat = w->l[i] > 0.0f || isnan(w->l[i]) ? w->m[i] + logf(w->l[i]) : 0.0f;
    float inv = w->l[i] != 0.0f ? 1.0f / w->l[i] : 0.0f;       /* 0: an idle row */
    for (int64_t j = 0; j < f->v; j++) x[j] *= inv;
    cdr__att_store(&o, t, h * f->v, f->v, x, NULL);
    if (o32.p) cdr__att_store(&o32, t, h * f->v, f->v, x, NULL);
    if (lse.p) cdr__att_store(&lse, t, h, 1, &stat, NULL);
}

/* rows [a0, b0) of head h: one run (or one idle row) */
static void fwd_run(const cdr_args *a, const frame *f, fwd_work *w, int64_t h, int64_t a0, int64_t b0)
{
    int64_t first = f->start[a0], last = f->pos[b0 - 1];
    for (int64_t i = 0; i < b0 - a0; i++) {
        cdr__att_load(&f->q, a0 + i, h * f->dk, f->dk, w->q + i * f->dk);
        w->m[i] = -INFINITY;
        w->l[i] = 0;
        memset(w->o + i * f->v, 0, sizeof(float) * (size_t)f->v);
    }
    for (int64_t s0 = first; s0 <= last; s0 += KEYS) {
        int64_t n = CDR_MIN((int64_t)KEYS, last + 1 - s0);
        load_keys(f, h, s0, n, w->k, w->kt);
        for (int64_t s = 0; s < n; s++) cdr__att_load(&f->kv, s0 + s, h * (f->nope + f->v) + f->nope, f->v, w->v + s * f->v);
        for (int64_t i = 0; i < b0 - a0; i++) {
            int64_t seen = CDR_MIN(n, f->pos[a0 + i] + 1 - s0);
            if (seen > 0) fwd_row(f, w, a0 + i, i, s0, seen);
        }
    }
    for (int64_t i = 0; i < b0 - a0; i++) fwd_out(a, f, w, h, a0 + i, i);
}

cdr_status cdr__attention_fwd_base(const cdr_args *a)
{
    const frame f = frame_of(a, CDR__ATT_Q, CDR__ATT_SEL);
    int64_t T = a->type[CDR__ATT_Q].n[0], S = a->type[CDR__ATT_KV].n[0], n_blocks = cdr_ceil_div(T, BLOCK);
    size_t bytes = fwd_work_bytes(f.dk, f.v);
    (void)S;
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < f.H * n_blocks; i++) {
        char *at = (char *)a->work + (size_t)omp_get_thread_num() * bytes;
        fwd_work w = { take(&at, KEYS * f.dk), take(&at, KEYS * f.dk), take(&at, KEYS * f.v), take(&at, BLOCK * f.dk),
                       take(&at, BLOCK * f.v), take(&at, BLOCK), take(&at, BLOCK), take(&at, KEYS) };
        int64_t h = i / n_blocks, t = i % n_blocks * BLOCK, end = CDR_MIN(T, t + BLOCK);
        while (t < end) {
            bool idle = f.start[t] > f.pos[t];
            int64_t b = idle ? t + 1 : cdr__att_run_end(f.start, f.pos, t, end);
            assert(idle || (f.start[t] >= 0 && f.pos[b - 1] < S));
            fwd_run(a, &f, &w, h, t, b);
            t = b;
        }
    }
    return CDR_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------------- */
int64_t cdr__attention_docs(const int32_t *start, const int32_t *pos, int64_t T, int32_t *doc)
{
    int64_t n = 0;
    for (int64_t t = 0; t < T;) {
        bool idle = start[t] > pos[t];
        assert(pos[t] == t);
        assert(idle || start[t] == t);
        doc[n++] = (int32_t)t;
        t = idle ? t + 1 : cdr__att_run_end(start, pos, t, T);
    }
    doc[n] = (int32_t)T;
    return n;
}

void cdr__attention_dkr(const cdr_args *a, const float *part_HSR)
{
    const cdr_attention_attr *at = a->attr;
    cdr__att_mat dkr = cdr__att_operand(a, CDR__ATB_DKR);
    int64_t S = a->type[CDR__ATB_KV].n[0], R = at->ext;
    bool add = (a->add >> 2) & 1u;
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t s = 0; s < S; s++)
        for (int64_t r0 = 0; r0 < R; r0 += 64) {
            int64_t n = CDR_MIN(R - r0, 64);
            float sum[64] = { 0 }, old[64];
            for (int64_t h = 0; h < at->heads; h++)
                for (int64_t i = 0; i < n; i++) sum[i] += part_HSR[(h * S + s) * R + r0 + i];
            cdr__att_store(&dkr, s, r0, n, sum, add ? old : NULL);
        }
}

typedef struct { float *k, *kt, *v, *vt, *dk, *dv, *q, *dout, *s, *dp, *old, *dq; } bwd_work;

static size_t bwd_work_bytes(int64_t dk, int64_t v, int64_t T)
{
    size_t K = KEYS, D = (size_t)dk, V = (size_t)v;
    return 3 * floats(K * D) + 3 * floats(K * V) + floats(D) + floats(V) + 2 * floats(K) + floats(D + V) + floats((size_t)T * D);
}
static bwd_work bwd_take(const frame *f, char *at, int64_t T)
{
    bwd_work w = { take(&at, KEYS * f->dk), take(&at, KEYS * f->dk), take(&at, KEYS * f->v), take(&at, KEYS * f->v),
                   take(&at, KEYS * f->dk), take(&at, KEYS * f->v), take(&at, f->dk), take(&at, f->v), take(&at, KEYS),
                   take(&at, KEYS), take(&at, f->dk + f->v), take(&at, T * f->dk) };
    return w;
}
/* documents, the heads' parts of dkr, then each thread's own */
size_t cdr__attention_bwd_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    const cdr_attention_attr *a = attr;
    int64_t T = t[CDR__ATB_Q].n[0], parts = (int64_t)a->heads * T * a->ext;
    (void)n_in, (void)n_out;
    return floats((size_t)T + 1) + floats((size_t)parts) + (size_t)n_threads * bwd_work_bytes((int64_t)a->nope + a->ext, a->v, T);
}

/* Query row t against the n visible keys of the tile at s0: (3)-(5); scale of dq and dk is applied by the caller. */
static void bwd_row(const frame *f, bwd_work *w, int64_t t, float lse, float delta, float *dq, int64_t s0, int64_t n)
{
    int32_t index[KEYS];
    int64_t n_sel = selected(f, t, s0, n, index);
    if (n_sel == 0) return;
    row_times(w->q, w->kt, f->dk, n, w->s);
    row_times(w->dout, w->vt, f->v, n, w->dp);
    for (int64_t j = 0; j < n_sel; j++) {
        float p = expf(w->s[index[j]] * f->at->scale - lse);
        w->s[j] = p;
        w->dp[j] = p * (w->dp[index[j]] - delta);
    }
    for (int64_t j = 0; j < n_sel; j++) {
        int64_t k = index[j];
        axpy(w->s[j], w->dout, w->dv + k * f->v, f->v);
        axpy(w->dp[j], w->q, w->dk + k * f->dk, f->dk);
        axpy(w->dp[j], w->k + k * f->dk, dq, f->dk);
    }
}

/* writes dkv of key rows [s0, s0 + n), and the head's part of dkr */
static void bwd_keys_out(const cdr_args *a, const frame *f, bwd_work *w, int64_t h, int64_t s0, int64_t n, float *dkr_part)
{
    cdr__att_mat dkv = cdr__att_operand(a, CDR__ATB_DKV);
    int64_t S = a->type[CDR__ATB_KV].n[0];
    float *old = (a->add >> 1) & 1u ? w->old : NULL;
    for (int64_t s = 0; s < n; s++) {
        float *dk = w->dk + s * f->dk;
        for (int64_t i = 0; i < f->dk; i++) dk[i] *= f->at->scale;
        if (f->ext) memcpy(dkr_part + (h * S + s0 + s) * f->ext, dk + f->nope, sizeof(float) * (size_t)f->ext);
        if (!dkv.p) continue;
        cdr__att_store(&dkv, s0 + s, h * (f->nope + f->v), f->nope, dk, old);
        cdr__att_store(&dkv, s0 + s, h * (f->nope + f->v) + f->nope, f->v, w->dv + s * f->v, old);
    }
}

/* document [a0, b0) of head h */
static void bwd_doc(const cdr_args *a, const frame *f, bwd_work *w, int64_t h, int64_t a0, int64_t b0, float *dkr_part)
{
    cdr__att_mat dout = cdr__att_operand(a, CDR__ATB_DO), o = cdr__att_operand(a, CDR__ATB_O), dq = cdr__att_operand(a, CDR__ATB_DQ);
    cdr__att_mat lse = cdr__att_operand(a, CDR__ATB_LSE);
    bool idle = f->start[a0] > f->pos[a0];
    memset(w->dq, 0, sizeof(float) * (size_t)((b0 - a0) * f->dk));
    for (int64_t s0 = a0; s0 < b0; s0 += KEYS) {
        int64_t n = CDR_MIN((int64_t)KEYS, b0 - s0);
        memset(w->dk, 0, sizeof(float) * (size_t)(KEYS * f->dk));
        memset(w->dv, 0, sizeof(float) * (size_t)(KEYS * f->v));
        load_keys(f, h, s0, n, w->k, w->kt);
        for (int64_t s = 0; s < n; s++) {
            cdr__att_load(&f->kv, s0 + s, h * (f->nope + f->v) + f->nope, f->v, w->v);
            for (int64_t i = 0; i < f->v; i++) w->vt[i * KEYS + s] = w->v[i];
        }
        for (int64_t t = s0; t < b0 && !idle; t++) {
            float delta = 0, stat;
            cdr__att_load(&f->q, t, h * f->dk, f->dk, w->q);
            cdr__att_load(&dout, t, h * f->v, f->v, w->dout);
            cdr__att_load(&o, t, h * f->v, f->v, w->v);
            cdr__att_load(&lse, t, h, 1, &stat);
            for (int64_t i = 0; i < f->v; i++) delta += w->dout[i] * w->v[i];
            bwd_row(f, w, t, stat, delta, w->dq + (t - a0) * f->dk, s0, CDR_MIN(n, t + 1 - s0));
        }
        bwd_keys_out(a, f, w, h, s0, n, dkr_part);
    }
    for (int64_t t = a0; t < b0 && dq.p; t++) {
        float *row = w->dq + (t - a0) * f->dk;
        for (int64_t i = 0; i < f->dk; i++) row[i] *= f->at->scale;
        cdr__att_store(&dq, t, h * f->dk, f->dk, row, a->add & 1u ? w->old : NULL);
    }
}

cdr_status cdr__attention_bwd_base(const cdr_args *a)
{
    const frame f = frame_of(a, CDR__ATB_Q, CDR__ATB_SEL);
    int64_t T = a->type[CDR__ATB_Q].n[0];
    char *at = a->work;
    int32_t *doc = (int32_t *)(void *)take(&at, T + 1);
    float *dkr_part = take(&at, f.H * T * f.ext);
    int64_t n_docs = cdr__attention_docs(f.start, f.pos, T, doc);
    size_t bytes = bwd_work_bytes(f.dk, f.v, T);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < f.H * n_docs; i++) {
        bwd_work w = bwd_take(&f, at + (size_t)omp_get_thread_num() * bytes, T);
        int64_t h = i / n_docs, d = i % n_docs;
        bwd_doc(a, &f, &w, h, doc[d], doc[d + 1], dkr_part);
    }
    if (a->ptr[CDR__ATB_DKR]) cdr__attention_dkr(a, dkr_part);
    return CDR_OK;
}
