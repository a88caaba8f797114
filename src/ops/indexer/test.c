/* indexer, test cases. Selection: operands of small integers, so that every score is exact and many are equal: the set must be that of a
 * sort, ties and all. Rows below, at and above top_k, documents, idle rows, caches in any order, odd widths, the dense flag.
 * Loss: selections of the indexer itself and of all keys, lse of the attention over them. Properties that need several calls are in
 * test/test_dsa.c. */
#include "ops/attention/attention.h"
#include "ops/indexer/indexer.h"
#include <math.h>

/* ---- rows ----------------------------------------------------------------------------------------------------------- */
static void docs(double *start, double *pos, int64_t T, const int *len, int n_len)
{
    int64_t first = 0;
    for (int64_t t = 0, i = 0; t < T; t++) {
        if (t - first == len[i % n_len]) {
            first = t;
            i++;
        }
        start[t] = (double)first;
        pos[t] = (double)t;
    }
}
static void mixed(double *start, double *pos, int64_t T, int64_t S)
{
    static const int len[] = { 1, 2, 15, 16, 17, 70, 64, 130, 33 };
    (void)S;
    docs(start, pos, T, len, CDR_COUNT(len));
}
static void one(double *start, double *pos, int64_t T, int64_t S)
{
    int len = (int)T;
    (void)S;
    docs(start, pos, T, &len, 1);
}
/* documents of 10 rows, an idle row behind each */
static void idle(double *start, double *pos, int64_t T, int64_t S)
{
    (void)S;
    for (int64_t t = 0; t < T; t++) {
        start[t] = (double)(t % 11 == 10 ? t + 1 : t - t % 11);
        pos[t] = (double)t;
    }
}
/* queries of a cache: rows in no order, some idle */
static void cache(double *start, double *pos, int64_t T, int64_t S)
{
    for (int64_t t = 0; t < T; t++) {
        pos[t] = (double)((t * 7919 + 13) % S);
        start[t] = t % 5 == 4 ? pos[t] + 1 : floor(pos[t] / (double)(1 + t % 3));
    }
}

#define ROWS(NAME, HOW) static void NAME(double *const *in, const cdr_type *t, cdr_rng_key key) \
    { (void)key; HOW(in[CDR__IX_START], in[CDR__IX_POS], t[CDR__IX_Q].n[0], t[CDR__IX_K].n[0]); }
ROWS(rows_mixed, mixed)
ROWS(rows_one, one)
ROWS(rows_idle, idle)
ROWS(rows_cache, cache)

/* ---- what the loss reads: a selection, and the lse of the attention over it -------------------------------------------- */
static void saved(double *const *in, const cdr_type *t, const cdr_indexer_loss_attr *a, int32_t top_k)
{
    cdr_indexer_attr ia = { a->heads, a->dim, top_k };
    double dense = 0, *sel[1] = { in[CDR__IL_SEL] };
    const double *ix[6] = { in[CDR__IL_QI], in[CDR__IL_KI], in[CDR__IL_W], in[CDR__IL_START], in[CDR__IL_POS], &dense };
    cdr_ref_args select = { &ia, 6, 1, t, ix, sel };
    cdr_op_indexer.ref(&select);
    int64_t T = t[0].n[0], words = cdr_ceil_div(T, 32);
    for (int64_t row = 0; row < T; row++)                  /* and bits where a row must not look */
        for (int64_t s = row % 4; s < T; s += 4) {
            double *word = &in[CDR__IL_SEL][row * words + s / 32];
            bool seen = (double)s >= in[CDR__IL_START][row] && (double)s <= in[CDR__IL_POS][row];
            if (!seen) *word = (double)(int32_t)((uint32_t)(int64_t)*word | (uint32_t)1 << (s % 32));
        }
    cdr_attention_attr aa = { .heads = a->main_heads, .nope = a->nope, .ext = a->ext, .v = a->v, .scale = a->scale };
    double *o = cdr_alloc(sizeof(double) * (size_t)(t[0].n[0] * a->main_heads * a->v)), *out[3] = { o, NULL, in[CDR__IL_LSE] };
    const double *at[6] = { in[CDR__IL_Q], in[CDR__IL_KV], in[CDR__IL_KR], in[CDR__IL_START], in[CDR__IL_POS], in[CDR__IL_SEL] };
    cdr_type types[6] = { t[CDR__IL_Q], t[CDR__IL_KV], t[CDR__IL_KR], t[CDR__IL_START], t[CDR__IL_POS], t[CDR__IL_SEL] };
    cdr_ref_args attend = { &aa, 6, 3, types, at, out };
    cdr_op_attention.ref(&attend);
    cdr_free(o);
}

static const cdr_indexer_attr s16 = { 4, 16, 16 }, s64 = { 2, 8, 64 }, s5_odd = { 3, 7, 5 }, s1 = { 1, 4, 1 };
static const cdr_indexer_loss_attr small = { 4, 16, 2, 8, 8, 16, 0.25f, 1.0f }, odd = { 3, 7, 3, 5, 3, 7, 0.35f, 0.5f }, nope = { 2, 8, 2, 16, 0, 8, 0.25f, 2.0f },
    wide = { 8, 64, 4, 32, 32, 64, 0.125f, 0.01f };

#define SAVED(NAME, HOW, ATTR, K) static void NAME(double *const *in, const cdr_type *t, cdr_rng_key key) \
    { (void)key; HOW(in[CDR__IL_START], in[CDR__IL_POS], t[0].n[0], t[0].n[0]); saved(in, t, &(ATTR), K); }
SAVED(small_mixed, mixed, small, 16)
SAVED(small_one, one, small, 10)
SAVED(small_all, mixed, small, 1000)
SAVED(small_idle, idle, small, 4)
SAVED(odd_mixed, mixed, odd, 9)
SAVED(nope_one, one, nope, 12)
SAVED(wide_one, one, wide, 64)

/* ---- the tables ------------------------------------------------------------------------------------------------------- */
#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define I(n_) { .dtype = CDR_I32, .n_dim = 1, .n = { n_ } }
#define SELECT(nm, dt, T, S, at, H, D, dense, mk) { .name = nm, .op = &cdr_op_indexer, .attr = &(at), .n_in = 6, \
    .in = { M(dt, T, (H) * (D)), M(dt, S, D), M(CDR_F32, T, H), I(T), I(T), I(1) }, .make = mk, \
    .fill = { { 'i', -3, 3 }, { 'i', -3, 3 }, { 'i', -2, 3 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'c', dense, 0 } } }
#define N1 { 'n', 1, 0 }
#define IX { 'f', 0, 0 }
#define LOSS_IN(dt, T, HI, DI, H, N, E, V) M(dt, T, (HI) * (DI)), M(dt, T, DI), M(CDR_F32, T, HI), M(dt, T, (H) * ((N) + (E))), M(dt, T, (H) * ((N) + (V))), \
    M(dt, T, E), M(CDR_F32, T, H), M(CDR_I32, T, ((T) + 31) / 32), I(T), I(T)
#define LOSS(nm, dt, T, at, HI, DI, H, N, E, V, no, mk, gr, tl) { .name = nm, .op = &cdr_op_indexer_loss, .attr = &(at), .n_in = 10, \
    .in = { LOSS_IN(dt, T, HI, DI, H, N, E, V) }, .fill = { N1, N1, N1, N1, N1, N1, IX, IX, IX, IX }, .absent = no, .make = mk, .grad = gr, .tol = tl }
#define BWD(nm, dt, T, at, HI, DI, H, N, E, V, no, sk, mk, tl) { .name = nm, .op = &cdr_op_indexer_loss_bwd, .attr = &(at), .n_in = 11, \
    .in = { LOSS_IN(dt, T, HI, DI, H, N, E, V), { .dtype = CDR_F32, .n_dim = 1, .n = { 1 } } }, \
    .fill = { N1, N1, N1, N1, N1, N1, IX, IX, IX, IX, { 'c', 0.125, 0 } }, .absent = no, .skip_out = sk, .make = mk, .tol = tl }

const cdr_case cdr_cases_indexer[] = {
    SELECT("T300 k16 f32 one document", CDR_F32, 300, 300, s16, 4, 16, 0, rows_one),
    SELECT("T400 k16 bf16 documents", CDR_BF16, 400, 400, s16, 4, 16, 0, rows_mixed),
    SELECT("T150 k64 f32 documents around k", CDR_F32, 150, 150, s64, 2, 8, 0, rows_mixed),
    SELECT("T64 k64 f32 as many as k", CDR_F32, 64, 64, s64, 2, 8, 0, rows_one),
    SELECT("T65 k64 f32 one more than k", CDR_F32, 65, 65, s64, 2, 8, 0, rows_one),
    SELECT("T200 k5 f32 odd widths", CDR_F32, 200, 200, s5_odd, 3, 7, 0, rows_mixed),
    SELECT("T100 k1 f32", CDR_F32, 100, 100, s1, 1, 4, 0, rows_one),
    SELECT("T61 k5 bf16 idle rows", CDR_BF16, 61, 61, s5_odd, 3, 7, 0, rows_idle),
    SELECT("T300 k16 f32 dense", CDR_F32, 300, 300, s16, 4, 16, 1, rows_mixed),
    SELECT("T30 S333 k16 bf16 cache, any order", CDR_BF16, 30, 333, s16, 4, 16, 0, rows_cache),
    SELECT("T1 k1 f32 one row", CDR_F32, 1, 1, s1, 1, 4, 0, rows_one),
    LOSS("T24 f32 one document", CDR_F32, 24, small, 4, 16, 2, 8, 8, 16, 0, small_one, 7, 2e-5),
    LOSS("T300 f32 documents", CDR_F32, 300, small, 4, 16, 2, 8, 8, 16, 0, small_mixed, 0, 2e-5),
    LOSS("T300 bf16 documents, all keys", CDR_BF16, 300, small, 4, 16, 2, 8, 8, 16, 0, small_all, 0, 2e-5),
    LOSS("T61 f32 idle rows", CDR_F32, 61, small, 4, 16, 2, 8, 8, 16, 0, small_idle, 0, 2e-5),
    LOSS("T40 f32 odd widths", CDR_F32, 40, odd, 3, 7, 3, 5, 3, 7, 0, odd_mixed, 7, 2e-5),
    LOSS("T100 f32 no shared part", CDR_F32, 100, nope, 2, 8, 2, 16, 0, 8, 32, nope_one, 0, 2e-5),
    LOSS("T200 bf16 wide", CDR_BF16, 200, wide, 8, 64, 4, 32, 32, 64, 0, wide_one, 0, 2e-5),
    BWD("T300 f32 documents", CDR_F32, 300, small, 4, 16, 2, 8, 8, 16, 0, 0, small_mixed, 1e-5),
    BWD("T300 bf16 documents, all keys", CDR_BF16, 300, small, 4, 16, 2, 8, 8, 16, 0, 0, small_all, 3e-3),
    BWD("T61 f32 idle rows", CDR_F32, 61, small, 4, 16, 2, 8, 8, 16, 0, 0, small_idle, 1e-5),
    BWD("T140 f32 odd widths", CDR_F32, 140, odd, 3, 7, 3, 5, 3, 7, 0, 0, odd_mixed, 1e-5),
    BWD("T100 f32 no shared part", CDR_F32, 100, nope, 2, 8, 2, 16, 0, 8, 32, 0, nope_one, 1e-5),
    BWD("T200 bf16 wide", CDR_BF16, 200, wide, 8, 64, 4, 32, 32, 64, 0, 0, wide_one, 3e-3),
    BWD("T100 f32 dk alone", CDR_F32, 100, small, 4, 16, 2, 8, 8, 16, 0, 5, small_one, 1e-5),
    BWD("T100 f32 dq alone", CDR_F32, 100, small, 4, 16, 2, 8, 8, 16, 0, 6, small_one, 1e-5),
    { .name = NULL }
};
