/* indexer, selection: equations (1) and (2) of op.c. Blocks of 16 query rows; a tile of 64 keys is widened and transposed once
 * for the block; the scores of the rows that have more than top_k keys lie in scratch (16 S floats a thread), never T x S.
 * A score is a chain over d, then one over the heads, both ascending: its bits know t and s alone, so that a row selects the same
 * keys in training, in another pack, and from a cache.
 * Top-k is exact, by bisection: scores become integers of the same order (NaN above all, so that it reaches the output and is
 * seen); the k-th largest is found bit by bit, counting in vectors those that are as large, until exactly k are; ties with it are
 * taken from the lowest s on. Tried: four passes of a radix of 8 bits: half of the operator's time at 256 keys.
 */
#include "ops/indexer/rows.h"

enum { KEYS = CDR__IX_KEYS, ROWS = CDR__IX_ROWS };

typedef struct { float *q, *w, *rows, *panel, *x, *score; uint32_t *key; } work;

static work take(const cdr_indexer_attr *at, int64_t S, cdr__ix_scratch *m)
{
    int64_t H = at->heads, D = at->dim;
    work w;
    w.q = cdr__ix_take(m, ROWS * H * D);
    w.w = cdr__ix_take(m, ROWS * H);
    w.rows = cdr__ix_take(m, KEYS * D);
    w.panel = cdr__ix_take(m, D * KEYS);
    w.x = cdr__ix_take(m, H * KEYS);
    w.score = cdr__ix_take(m, ROWS * (S + KEYS));
    w.key = cdr__ix_take(m, S);
    return w;
}
static size_t thread_bytes(const cdr_indexer_attr *at, int64_t S)
{
    cdr__ix_scratch m = { NULL, 0 };
    take(at, S, &m);
    return m.used;
}
size_t cdr__indexer_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    return (size_t)n_threads * thread_bytes(attr, t[CDR__IX_K].n[0]);
}

/* An integer of the same order. x is never -0: its sum began at +0. */
static inline uint32_t order_of(float x)
{
    uint32_t u;
    if (x != x) return UINT32_MAX;
    memcpy(&u, &x, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static void set_range(uint32_t *bits, int64_t first, int64_t last)
{
    for (int64_t s = first; s <= last; s++) {
        if (s % 32 == 0 && s + 31 <= last) {
            bits[s / 32] = UINT32_MAX;
            s += 31;
        } else {
            bits[s / 32] |= (uint32_t)1 << (s % 32);
        }
    }
}

/* Sets the bits of the k largest of key[0..n), n > k, which are keys first .. first + n - 1. */
static void set_largest(const cdr__indexer_math *m, const uint32_t *key, int64_t n, int64_t k, int64_t first, uint32_t *bits)
{
    uint32_t least = 0;                                    /* at least k keys are as large */
    int64_t n_least = n;
    for (int bit = 31; bit >= 0 && n_least > k; bit--) {
        const int64_t count = m->count_from(key, n, least | (uint32_t)1 << bit);
        if (count < k) continue;
        least |= (uint32_t)1 << bit;
        n_least = count;
    }
    int64_t ties = n_least > k ? k - (least == UINT32_MAX ? 0 : m->count_from(key, n, least + 1)) : n;       /* of those that equal least: the first so many */
    for (int64_t i = 0; i < n; i++) {
        const bool tie = key[i] == least;
        const bool is = key[i] > least || (tie && ties > 0);
        ties -= tie;
        bits[(first + i) / 32] |= (uint32_t)is << ((first + i) % 32);
    }
}

/* Scores of the rows t + r, for r with selects[r], against every key that one of them sees. */
static void score_block(const cdr_args *a, const cdr__indexer_math *m, const work *w, int64_t t, int64_t n, const bool *selects)
{
    const cdr_indexer_attr *at = a->attr;
    const int32_t *start = a->ptr[CDR__IX_START], *pos = a->ptr[CDR__IX_POS];
    const cdr__att_mat q_of = cdr__att_operand(a, CDR__IX_Q), k_of = cdr__att_operand(a, CDR__IX_K), w_of = cdr__att_operand(a, CDR__IX_W);
    int64_t H = at->heads, D = at->dim, S = a->type[CDR__IX_K].n[0], lo = S, hi = -1;
    for (int64_t r = 0; r < n; r++) {
        if (!selects[r]) continue;
        lo = CDR_MIN(lo, start[t + r]);
        hi = CDR_MAX(hi, pos[t + r]);
        cdr__ix_load(m, &q_of, t + r, 0, H * D, w->q + r * H * D);
        cdr__ix_load(m, &w_of, t + r, 0, H, w->w + r * H);
    }
    for (int64_t s0 = lo; s0 <= hi; s0 += KEYS) {
        int64_t n_keys = CDR_MIN((int64_t)KEYS, hi + 1 - s0);
        bool ready = false;
        for (int64_t r = 0; r < n; r++) {
            if (!selects[r] || start[t + r] >= s0 + n_keys || pos[t + r] < s0) continue;
            if (!ready) {
                for (int64_t s = 0; s < n_keys; s++) cdr__ix_load(m, &k_of, s0 + s, 0, D, w->rows + s * D);
                memset(w->rows + n_keys * D, 0, sizeof(float) * (size_t)((KEYS - n_keys) * D));
                m->transpose(w->rows, D, D, w->panel);
                ready = true;
            }
            m->product(H, KEYS, D, w->q + r * H * D, D, 1, w->panel, KEYS, w->x, KEYS, false);
            m->relu_sum(w->x, w->w + r * H, H, w->score + r * (S + KEYS) + s0);
        }
    }
}

cdr_status cdr__indexer_run(const cdr_args *a, const cdr__indexer_math *m)
{
    const cdr_indexer_attr *at = a->attr;
    const int32_t *start = a->ptr[CDR__IX_START], *pos = a->ptr[CDR__IX_POS];
    const bool dense = *(const int32_t *)a->ptr[CDR__IX_DENSE] != 0;
    int64_t T = a->type[CDR__IX_Q].n[0], S = a->type[CDR__IX_K].n[0], words = cdr_ceil_div(S, 32);
    size_t bytes = thread_bytes(at, S);
    assert(a->work && a->ptr[CDR__IX_SEL]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
    for (int64_t b = 0; b < cdr_ceil_div(T, (int64_t)ROWS); b++) {
        cdr__ix_scratch part = { (char *)a->work + (size_t)omp_get_thread_num() * bytes, 0 };
        work w = take(at, S, &part);
        int64_t t = b * ROWS, n = CDR_MIN((int64_t)ROWS, T - t);
        bool selects[ROWS] = { false }, any = false;
        for (int64_t r = 0; r < n; r++) {
            assert(start[t + r] > pos[t + r] || (start[t + r] >= 0 && pos[t + r] < S));
            selects[r] = !dense && (int64_t)pos[t + r] - start[t + r] + 1 > at->top_k;
            any = any || selects[r];
        }
        if (any) score_block(a, m, &w, t, n, selects);
        for (int64_t r = 0; r < n; r++) {
            uint32_t *bits = cdr_row(a->ptr[CDR__IX_SEL], &a->type[CDR__IX_SEL], t + r);
            int64_t first = start[t + r], n_seen = pos[t + r] - first + 1;
            const float *score = w.score + r * (S + KEYS) + first;
            memset(bits, 0, sizeof(uint32_t) * (size_t)words);
            if (!selects[r]) {
                set_range(bits, first, pos[t + r]);
                continue;
            }
            for (int64_t i = 0; i < n_seen; i++) w.key[i] = order_of(score[i]);
            set_largest(m, w.key, n_seen, at->top_k, first, bits);
        }
    }
    return CDR_OK;
}
