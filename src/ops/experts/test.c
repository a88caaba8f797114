/* experts, test cases. Routes are drawn by `make`, sorted with plain loops (not by the operator dispatch). Tolerances: in F32 a few
 * ulp of sums of some hundred terms; in BF16 the roundings of gate, up, each row and the sum. */
#include "ops/experts/experts.h"

typedef enum { SPREAD, ONE, DISTINCT } how;

static void sort_pairs(double *perm, double *offs, double *pos, const int64_t *idx, int64_t R, int64_t E)
{
    int64_t row = 0;
    for (int64_t q = 0; q < R; q++) pos[q] = perm[q] = -1;
    for (int64_t e = 0; e <= E; e++) {
        offs[e] = (double)row;
        for (int64_t q = 0; q < R && e < E; q++)
            if (idx[q] == e) {
                perm[row] = (double)q;
                pos[q] = (double)row++;
            }
    }
}

/* SPREAD: distinct experts of each token in ascending order, token 5 of each 9 idle. ONE: all on the last experts. DISTINCT: expert
 * t A + slot for pair (t, slot), so that each has one row, others none. in, t: the forward's operands. */
static void routes(double *const *in, const cdr_type *t, cdr_rng_key key, how h)
{
    const int64_t T = t[CDR__EX_X].n[0], A = t[CDR__EX_P].n[1], E = t[CDR__EX_W1].n[0];
    int64_t idx[4096];
    for (int64_t i = 0; i < T; i++) {
        int64_t left = A, slot = 0;
        for (int64_t e = 0; e < E; e++) {
            const bool take = h == ONE ? e >= E - A : h == DISTINCT ? e / A == i
                              : (int64_t)(cdr_rng_u64(key, (uint64_t)(i * E + e)) % (uint64_t)(E - e)) < left;
            if (!take || left == 0) continue;
            idx[i * A + slot++] = h == SPREAD && i % 9 == 5 ? -1 : e;
            left--;
        }
        while (slot < A) idx[i * A + slot++] = -1;
    }
    sort_pairs(in[CDR__EX_PERM], in[CDR__EX_OFFS], in[CDR__EX_POS], idx, T * A, E);
    if (!in[CDR__EX_TABLE]) return;
    for (int64_t e = 0; e < E; e++)                        /* expert e's matrices lie where those of others would */
        for (int64_t m = 0; m < 3; m++) {
            const cdr_type *w = &t[CDR__EX_W1 + m];
            in[CDR__EX_TABLE][e * 3 + m] = (double)((e * (m + 1) + 1) % E * (int64_t)cdr_matrix_bytes(w));
        }
}

static void spread(double *const *in, const cdr_type *t, cdr_rng_key key) { routes(in, t, key, SPREAD); }
static void one(double *const *in, const cdr_type *t, cdr_rng_key key) { routes(in, t, key, ONE); }
static void distinct(double *const *in, const cdr_type *t, cdr_rng_key key) { routes(in, t, key, DISTINCT); }
static void spread_bwd(double *const *in, const cdr_type *t, cdr_rng_key key) { routes(in + CDR__EXB_X, t + CDR__EXB_X, key, SPREAD); }
static void one_bwd(double *const *in, const cdr_type *t, cdr_rng_key key) { routes(in + CDR__EXB_X, t + CDR__EXB_X, key, ONE); }
static void distinct_bwd(double *const *in, const cdr_type *t, cdr_rng_key key) { routes(in + CDR__EXB_X, t + CDR__EXB_X, key, DISTINCT); }

static const cdr_experts_attr scaled1 = { .top_k = 1, .scale = { 2, 2, 2 } }, scaled2 = { .top_k = 2, .scale = { 0.5f, 1.5f, -0.7f } },
    scaled4_7 = { .top_k = 4, .capacity = 7, .scale = { 1, 0.25f, 2 } },
    scaled2_situ = { .top_k = 2, .situ = 1, .beta = 4, .linear_beta = 25, .scale = { 2, 0.1f, 0.3f } };
static const cdr_experts_attr k1 = { .top_k = 1 }, k2 = { .top_k = 2 }, k4 = { .top_k = 4 }, k4_7 = { .top_k = 4, .capacity = 7 },
    k16 = { .top_k = 16, .situ = 1, .beta = 4, .linear_beta = 25 }, situ2 = { .top_k = 2, .situ = 1, .beta = 1, .linear_beta = 2 },
    situ4_50 = { .top_k = 4, .situ = 1, .beta = 4, .linear_beta = 25, .capacity = 50 };

#define M(dt, a, b) { .dtype = dt, .n_dim = 2, .n = { a, b } }
#define V(dt, a) { .dtype = dt, .n_dim = 1, .n = { a } }
#define C(dt, a, b, c) { .dtype = dt, .n_dim = 3, .n = { a, b, c } }
#define ADAPTERS(da, E, L, I, k1, k3, k2) C(da, E, k1, L), C(da, E, I, k1), C(da, E, k3, L), C(da, E, I, k3), C(da, E, k2, I), C(da, E, L, k2)
#define ADAPTED(dx, dw, da, T, A, E, L, I, k1, k3, k2) M(dx, T, L), M(CDR_F32, T, A), V(CDR_I32, (T) * (A)), V(CDR_I32, (E) + 1), M(CDR_I32, T, A), \
    C(dw, E, I, L), C(dw, E, I, L), C(dw, E, L, I), M(CDR_I64, E, 3), ADAPTERS(da, E, L, I, k1, k3, k2)
#define OPERANDS(dx, dw, T, A, E, L, I) ADAPTED(dx, dw, CDR_F32, T, A, E, L, I, 1, 1, 1)
#define FILLS { 'n', 1, 0 }, { 'u', 0.1, 1 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'n', 0.3, 0 }, { 'n', 0.3, 0 }, { 'n', 0.3, 0 }, { 'f', 0, 0 }, \
    { 'n', 0.3, 0 }, { 'n', 0.3, 0 }, { 'n', 0.3, 0 }, { 'n', 0.3, 0 }, { 'n', 0.3, 0 }, { 'n', 0.3, 0 }
enum { NO_TABLE = 1 << CDR__EX_TABLE, NO_TABLE_BWD = 1 << (CDR__EXB_X + CDR__EX_TABLE), NO_GU_BWD = 1 << CDR__EXB_GU, NO_DV = 1 << CDR__EXB_DV, NO_GU = 2,
       NO_ADAPTERS = 63 << CDR__EX_A1, NO_ADAPTERS_BWD = 63 << (CDR__EXB_X + CDR__EX_A1), NO_ADAPTERS_OUT = 63 << CDR__EXB_DA1,
       ALL = 1 << CDR__EX_X | 1 << CDR__EX_P | 1 << CDR__EX_W1 | 1 << CDR__EX_W3 | 1 << CDR__EX_W2, NO_W = 1 << CDR__EX_X | 1 << CDR__EX_P };
#define FWD(nm, at, dx, dw, T, A, E, L, I, mk, ab, sk, gr, tl) { .name = nm, .op = &cdr_op_experts, .attr = &at, .n_in = CDR__EX_N, \
    .in = { OPERANDS(dx, dw, T, A, E, L, I) }, .fill = { FILLS }, .absent = (ab) | NO_ADAPTERS, .skip_out = sk, .grad = gr, .tol = tl, .make = mk }
#define BWD(nm, at, du, dx, dw, T, A, E, L, I, mk, ab, sk, tl) { .name = nm, .op = &cdr_op_experts_bwd, .attr = &at, .n_in = CDR__EXB_N, \
    .in = { M(du, T, L), OPERANDS(dx, dw, T, A, E, L, I), M(dx, (T) * (A), 2 * (I)) }, .fill = { { 'n', 1, 0 }, FILLS, { 'n', 1, 0 } }, \
    .absent = (ab) | NO_ADAPTERS_BWD | NO_DV, .skip_out = (sk) | NO_ADAPTERS_OUT, .tol = tl, .make = mk }
/* with adapters of ranks k1, k3, k2 and dtype da */
#define FWD_A(nm, at, dx, dw, da, T, A, E, L, I, k1, k3, k2, mk, ab, sk, gr, tl) { .name = nm, .op = &cdr_op_experts, .attr = &at, .n_in = CDR__EX_N, \
    .in = { ADAPTED(dx, dw, da, T, A, E, L, I, k1, k3, k2) }, .fill = { FILLS }, .absent = ab, .skip_out = sk, .grad = gr, .tol = tl, .make = mk }
#define BWD_A(nm, at, du, dx, dw, da, T, A, E, L, I, k1, k3, k2, mk, ab, sk, tl) { .name = nm, .op = &cdr_op_experts_bwd, .attr = &at, .n_in = CDR__EXB_N, \
    .in = { M(du, T, L), ADAPTED(dx, dw, da, T, A, E, L, I, k1, k3, k2), M(dx, (T) * (A), 2 * (I)) }, .fill = { { 'n', 1, 0 }, FILLS, { 'n', 1, 0 } }, \
    .absent = (ab) | NO_DV, .skip_out = sk, .tol = tl, .make = mk }
/* shared-outer: h1_TK, h3_TK of ranks k1, k3, B1, B3 and A2 of rank k2 */
#define OUTER(dx, dw, da, T, A, E, L, I, k1, k3, k2) M(dx, T, L), M(CDR_F32, T, A), V(CDR_I32, (T) * (A)), V(CDR_I32, (E) + 1), M(CDR_I32, T, A), \
    C(dw, E, I, L), C(dw, E, I, L), C(dw, E, L, I), M(CDR_I64, E, 3), M(dx, T, k1), C(da, E, I, k1), M(dx, T, k3), C(da, E, I, k3), C(da, E, k2, I), V(CDR_F32, 1)
#define FWD_O(nm, at, dx, dw, da, T, A, E, L, I, k1, k3, k2, mk, ab, sk, gr, tl) { .name = nm, .op = &cdr_op_experts, .attr = &at, .n_in = CDR__EX_N, \
    .in = { OUTER(dx, dw, da, T, A, E, L, I, k1, k3, k2) }, .fill = { FILLS }, .absent = (ab) | 1 << CDR__EX_B2, .skip_out = sk, .grad = gr, .tol = tl, .make = mk }
#define BWD_O(nm, at, du, dx, dw, da, T, A, E, L, I, k1, k3, k2, mk, ab, sk, tl) { .name = nm, .op = &cdr_op_experts_bwd, .attr = &at, .n_in = CDR__EXB_N, \
    .in = { M(du, T, L), OUTER(dx, dw, da, T, A, E, L, I, k1, k3, k2), M(dx, (T) * (A), 2 * (I)), M(du, T, k2) }, \
    .fill = { { 'n', 1, 0 }, FILLS, { 'n', 1, 0 }, { 'n', 1, 0 } }, .absent = (ab) | 1 << (CDR__EXB_X + CDR__EX_B2), .skip_out = sk, .tol = tl, .make = mk }
/* with weights in panels */
#define P(dt, lay, a, b, c) { .dtype = dt, .layout = lay, .n_dim = 3, .n = { a, b, c } }
#define PANELS(dx, dw, lay, T, A, E, L, I) M(dx, T, L), M(CDR_F32, T, A), V(CDR_I32, (T) * (A)), V(CDR_I32, (E) + 1), M(CDR_I32, T, A), \
    P(dw, lay, E, I, L), P(dw, lay, E, I, L), P(dw, lay, E, L, I), M(CDR_I64, E, 3)
#define FWD_P(nm, at, dx, dw, lay, T, A, E, L, I, mk, ab, tl) { .name = nm, .op = &cdr_op_experts, .attr = &at, .n_in = CDR__EX_N, \
    .in = { PANELS(dx, dw, lay, T, A, E, L, I) }, .fill = { FILLS }, .absent = (ab) | NO_ADAPTERS, .skip_out = NO_GU, .tol = tl, .make = mk }
#define BWD_P(nm, at, dx, dw, lay, T, A, E, L, I, mk, ab, tl) { .name = nm, .op = &cdr_op_experts_bwd, .attr = &at, .n_in = CDR__EXB_N, \
    .in = { M(dx, T, L), PANELS(dx, dw, lay, T, A, E, L, I) }, .fill = { { 'n', 1, 0 }, FILLS }, .absent = (ab) | NO_GU_BWD | NO_ADAPTERS_BWD | NO_DV, \
    .skip_out = NO_DW | NO_ADAPTERS_OUT, .tol = tl, .make = mk }
/* mapped, with adapters */
#define MAPPED_A(dx, da, T, A, E, L, I, k1, k3, k2) PANELS(dx, CDR_MXFP4, CDR_MAPPED, T, A, E, L, I), ADAPTERS(da, E, L, I, k1, k3, k2)
#define FWD_MA(nm, at, dx, da, T, A, E, L, I, k1, k3, k2, mk, ab, tl) { .name = nm, .op = &cdr_op_experts, .attr = &at, .n_in = CDR__EX_N, \
    .in = { MAPPED_A(dx, da, T, A, E, L, I, k1, k3, k2) }, .fill = { FILLS }, .absent = ab, .skip_out = NO_GU, .tol = tl, .make = mk }
#define BWD_MA(nm, at, dx, da, T, A, E, L, I, k1, k3, k2, mk, ab, tl) { .name = nm, .op = &cdr_op_experts_bwd, .attr = &at, .n_in = CDR__EXB_N, \
    .in = { M(dx, T, L), MAPPED_A(dx, da, T, A, E, L, I, k1, k3, k2) }, .fill = { { 'n', 1, 0 }, FILLS }, .absent = (ab) | NO_DV, .skip_out = NO_DW, .tol = tl, \
    .make = mk }
enum { ADAPTERS_ALL = 63 << CDR__EX_A1, NO_13 = 15 << CDR__EX_A1, NO_2 = 3 << CDR__EX_A2, NO_DW = 7 << CDR__EXB_DW1,
       NO_13_BWD = NO_13 << CDR__EXB_X, NO_2_BWD = NO_2 << CDR__EXB_X, NO_13_OUT = 15 << CDR__EXB_DA1, NO_2_OUT = 3 << CDR__EXB_DA2,
       NO_DA = 21 << CDR__EXB_DA1, NO_DB = 42 << CDR__EXB_DA1, OUTER_ALL = 31 << CDR__EX_A1, NO_A2 = 1 << CDR__EX_A2, NO_A2_BWD = NO_A2 << CDR__EXB_X,
       NO_H1 = 3 << CDR__EX_A1, NO_H1_BWD = NO_H1 << CDR__EXB_X, NO_H3_BWD = 12 << (CDR__EXB_X + CDR__EX_A1) };
#define OUTER_P(dx, dw, da, lay, T, A, E, L, I, k1, k3, k2) M(dx, T, L), M(CDR_F32, T, A), V(CDR_I32, (T) * (A)), V(CDR_I32, (E) + 1), M(CDR_I32, T, A), \
    P(dw, lay, E, I, L), P(dw, lay, E, I, L), P(dw, lay, E, L, I), M(CDR_I64, E, 3), M(dx, T, k1), C(da, E, I, k1), M(dx, T, k3), C(da, E, I, k3), C(da, E, k2, I)

const cdr_case cdr_cases_experts[] = {
    FWD("T37 k4 E11 L24 I20 f32", k4, CDR_F32, CDR_F32, 37, 4, 11, 24, 20, spread, NO_TABLE, 0, ALL, 1e-6),
    FWD("T37 k4 E11 L24 I20 f32, 7 rows at a time", k4_7, CDR_F32, CDR_F32, 37, 4, 11, 24, 20, spread, NO_TABLE, NO_GU, ALL, 1e-6),
    FWD("T37 k4 E11 L24 I20 bf16, 7 rows at a time", k4_7, CDR_BF16, CDR_BF16, 37, 4, 11, 24, 20, spread, NO_TABLE, 0, 0, 4e-3),
    FWD("T70 k2 E3 L64 I64 bf16", k2, CDR_BF16, CDR_BF16, 70, 2, 3, 64, 64, spread, NO_TABLE, 0, 0, 4e-3),
    FWD("T29 k2 E5 L70 I33 x f32, w bf16, situ", situ2, CDR_F32, CDR_BF16, 29, 2, 5, 70, 33, spread, NO_TABLE, 0, ALL, 1e-6),
    FWD("T29 k2 E5 L7 I9 table f32, situ", situ2, CDR_F32, CDR_F32, 29, 2, 5, 7, 9, spread, 0, 0, NO_W, 1e-6),
    FWD("T29 k2 E5 L18 I9 table bf16", k2, CDR_BF16, CDR_BF16, 29, 2, 5, 18, 9, spread, 0, NO_GU, 0, 4e-3),
    FWD("T300 k1 E2 L9 I5 f32, all on one", k1, CDR_F32, CDR_F32, 300, 1, 2, 9, 5, one, NO_TABLE, 0, ALL, 1e-6),
    FWD("T6 k2 E20 L16 I16 f32, a row each", k2, CDR_F32, CDR_F32, 6, 2, 20, 16, 16, distinct, NO_TABLE, 0, ALL, 1e-6),
    FWD("T11 k16 E40 L12 I8 f32, situ", k16, CDR_F32, CDR_F32, 11, 16, 40, 12, 8, spread, NO_TABLE, 0, ALL, 1e-6),
    FWD("T1 k1 E1 L1 I1 f32", k1, CDR_F32, CDR_F32, 1, 1, 1, 1, 1, spread, NO_TABLE, 0, ALL, 1e-6),
    BWD("T37 k4 E11 L24 I20 f32", k4, CDR_F32, CDR_F32, CDR_F32, 37, 4, 11, 24, 20, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    BWD("T37 k4 E11 L24 I20 f32, gu kept, 7 rows at a time", k4_7, CDR_F32, CDR_F32, CDR_F32, 37, 4, 11, 24, 20, spread_bwd, NO_TABLE_BWD, 0, 2e-6),
    BWD("T70 k2 E3 L64 I64 bf16, du f32", k2, CDR_F32, CDR_BF16, CDR_BF16, 70, 2, 3, 64, 64, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 5e-3),
    BWD("T140 k4 E8 L40 I120 bf16, situ, 50 rows at a time", situ4_50, CDR_BF16, CDR_BF16, CDR_BF16, 140, 4, 8, 40, 120, spread_bwd,
        NO_TABLE_BWD | NO_GU_BWD, 0, 5e-3),
    BWD("T29 k2 E5 L70 I33 x f32, w bf16, situ", situ2, CDR_F32, CDR_F32, CDR_BF16, 29, 2, 5, 70, 33, spread_bwd, NO_TABLE_BWD, 0, 2e-6),
    BWD("T29 k2 E5 L7 I9 table f32", k2, CDR_F32, CDR_F32, CDR_F32, 29, 2, 5, 7, 9, spread_bwd, NO_GU_BWD, 0, 2e-6),
    BWD("T600 k1 E2 L9 I5 f32, all on one", k1, CDR_F32, CDR_F32, CDR_F32, 600, 1, 2, 9, 5, one_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    BWD("T6 k2 E20 L16 I16 f32, a row each", k2, CDR_F32, CDR_F32, CDR_F32, 6, 2, 20, 16, 16, distinct_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    BWD("T11 k16 E40 L12 I8 f32, situ", k16, CDR_F32, CDR_F32, CDR_F32, 11, 16, 40, 12, 8, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    BWD("T1 k1 E1 L1 I1 f32", k1, CDR_F32, CDR_F32, CDR_F32, 1, 1, 1, 1, 1, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    BWD("T20 k2 E4 L100 I20 f32, dx and dp", k2, CDR_F32, CDR_F32, CDR_F32, 20, 2, 4, 100, 20, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 28, 2e-6),
    BWD("T20 k2 E4 L100 I20 f32, dw2 only", k2, CDR_F32, CDR_F32, CDR_F32, 20, 2, 4, 100, 20, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 15, 2e-6),
    FWD_A("T13 k4 E7 L12 I10 f32, ranks 1 3 8, 7 rows at a time", scaled4_7, CDR_F32, CDR_F32, CDR_F32, 13, 4, 7, 12, 10, 1, 3, 8, spread, NO_TABLE, NO_GU,
          ALL | ADAPTERS_ALL, 1e-6),
    FWD_A("T15 k2 E4 L21 I18 situ, ranks 8 1 3, adapters alone train", scaled2_situ, CDR_F32, CDR_BF16, CDR_F32, 15, 2, 4, 21, 18, 8, 1, 3, spread, NO_TABLE, 0,
          NO_W | ADAPTERS_ALL, 1e-6),
    FWD_A("T29 k2 E5 L7 I9 table f32, rank 3 on w2", scaled2, CDR_F32, CDR_F32, CDR_F32, 29, 2, 5, 7, 9, 1, 1, 3, spread, NO_13, 0, NO_W | NO_2, 1e-6),
    FWD_A("T3 k2 E8 L16 I16 f32, rank 8 on w1 and w3, a row each", scaled2, CDR_F32, CDR_F32, CDR_F32, 3, 2, 8, 16, 16, 8, 8, 1, distinct, NO_TABLE | NO_2, 0,
          ALL | NO_13, 1e-6),
    FWD_A("T30 k2 E3 L160 I72 bf16, rank 8", scaled2, CDR_BF16, CDR_BF16, CDR_BF16, 30, 2, 3, 160, 72, 8, 8, 8, spread, NO_TABLE, 0, 0, 4e-3),
    FWD_A("T40 k2 E3 L64 I64 bf16, adapters f32, rank 40", scaled2, CDR_BF16, CDR_BF16, CDR_F32, 40, 2, 3, 64, 64, 40, 40, 40, spread, NO_TABLE, 0, 0, 4e-3),
    FWD_A("T1 k1 E1 L1 I1 f32, rank 1", scaled1, CDR_F32, CDR_F32, CDR_F32, 1, 1, 1, 1, 1, 1, 1, 1, spread, NO_TABLE, 0, ALL | ADAPTERS_ALL, 1e-6),
    BWD_A("T37 k4 E11 L24 I20 f32, ranks 1 3 8, 7 rows at a time", scaled4_7, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 37, 4, 11, 24, 20, 1, 3, 8, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    BWD_A("T29 k2 E5 L70 I33 situ, ranks 8 1 3, adapters alone train", scaled2_situ, CDR_F32, CDR_F32, CDR_BF16, CDR_F32, 29, 2, 5, 70, 33, 8, 1, 3, spread_bwd,
          NO_TABLE_BWD, NO_DW, 2e-6),
    BWD_A("T29 k2 E5 L7 I9 table f32, rank 3 on w2", scaled2, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 29, 2, 5, 7, 9, 1, 1, 3, spread_bwd, NO_GU_BWD | NO_13_BWD,
          NO_DW | NO_13_OUT, 2e-6),
    BWD_A("T6 k2 E20 L16 I16 f32, rank 8 on w1 and w3, a row each", scaled2, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 6, 2, 20, 16, 16, 8, 8, 1, distinct_bwd,
          NO_TABLE_BWD | NO_GU_BWD | NO_2_BWD, NO_2_OUT, 2e-6),
    BWD_A("T160 k1 E2 L136 I72 bf16, rank 8, all on one", scaled1, CDR_BF16, CDR_BF16, CDR_BF16, CDR_BF16, 160, 1, 2, 136, 72, 8, 8, 8, one_bwd,
          NO_TABLE_BWD | NO_GU_BWD, NO_DW, 5e-3),
    BWD_A("T40 k2 E3 L64 I64 bf16, adapters f32, rank 40, dA", scaled2, CDR_F32, CDR_BF16, CDR_BF16, CDR_F32, 40, 2, 3, 64, 64, 40, 40, 40, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD, NO_DW | NO_DB, 5e-3),
    BWD_A("T20 k2 E4 L20 I10 f32, rank 3, dB", scaled2, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 20, 2, 4, 20, 10, 3, 3, 3, spread_bwd, NO_TABLE_BWD | NO_GU_BWD,
          NO_DW | NO_DA, 2e-6),
    BWD_A("T1 k1 E1 L1 I1 f32, rank 1", scaled1, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 1, 1, 1, 1, 1, 1, 1, 1, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    FWD_A("T11 k2 E4 L64 I32 mxfp4", k2, CDR_F32, CDR_MXFP4, CDR_F32, 11, 2, 4, 64, 32, 1, 1, 1, spread, NO_TABLE | NO_ADAPTERS, 0, NO_W, 1e-6),
    FWD_A("T29 k2 E5 L32 I32 table mxfp4 situ, adapters bf16 of ranks 8 1 3", scaled2_situ, CDR_BF16, CDR_MXFP4, CDR_BF16, 29, 2, 5, 32, 32, 8, 1, 3, spread, 0,
          NO_GU, 0, 4e-3),
    FWD_A("T9 k2 E3 L32 I32 mxfp4, ranks 3 3 3 train", scaled2, CDR_F32, CDR_MXFP4, CDR_F32, 9, 2, 3, 32, 32, 3, 3, 3, spread, NO_TABLE, 0,
          NO_W | ADAPTERS_ALL, 1e-6),
    BWD_A("T140 k4 E8 L160 I192 mxfp4, 50 rows at a time", situ4_50, CDR_BF16, CDR_BF16, CDR_MXFP4, CDR_F32, 140, 4, 8, 160, 192, 1, 1, 1, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD | NO_ADAPTERS_BWD, NO_DW | NO_ADAPTERS_OUT, 5e-3),
    BWD_A("T20 k2 E4 L64 I32 table mxfp4, ranks 3 3 3 train", scaled2, CDR_F32, CDR_F32, CDR_MXFP4, CDR_F32, 20, 2, 4, 64, 32, 3, 3, 3, spread_bwd, 0, NO_DW, 2e-6),
    FWD_O("T13 k4 E7 L12 I10 f32, outer, ranks 1 3 8, 7 rows at a time", k4_7, CDR_F32, CDR_F32, CDR_F32, 13, 4, 7, 12, 10, 1, 3, 8, spread, NO_TABLE, NO_GU,
          ALL | OUTER_ALL, 1e-6),
    FWD_O("T15 k2 E4 L21 I18 situ, outer, ranks 8 1 3, adapters alone train", situ2, CDR_F32, CDR_BF16, CDR_F32, 15, 2, 4, 21, 18, 8, 1, 3, spread, NO_TABLE, 0,
          NO_W | OUTER_ALL, 1e-6),
    FWD_O("T12 k2 E5 L16 I16 table f32, outer, rank 4 on w3 and w2, square", k2, CDR_F32, CDR_F32, CDR_F32, 12, 2, 5, 16, 16, 4, 4, 4, spread, NO_H1, 0,
          NO_W | (OUTER_ALL ^ NO_H1), 1e-6),
    FWD_O("T6 k2 E20 L16 I24 f32, outer, rank 17 on w1 and w3, a row each", k2, CDR_F32, CDR_F32, CDR_F32, 6, 2, 20, 16, 24, 17, 17, 1, distinct, NO_TABLE | NO_A2, 0,
          NO_W | (OUTER_ALL ^ NO_A2), 1e-6),
    FWD_O("T70 k2 E3 L160 I72 bf16, outer, rank 8", k2, CDR_BF16, CDR_BF16, CDR_BF16, 70, 2, 3, 160, 72, 8, 8, 8, spread, NO_TABLE, 0, 0, 4e-3),
    FWD_O("T40 k2 E3 L64 I64 bf16, outer, adapters f32, rank 40", k2, CDR_BF16, CDR_BF16, CDR_F32, 40, 2, 3, 64, 64, 40, 40, 40, spread, NO_TABLE, 0, 0, 4e-3),
    FWD_O("T29 k2 E5 L32 I32 table mxfp4 situ, outer, ranks 8 1 3", situ2, CDR_BF16, CDR_MXFP4, CDR_BF16, 29, 2, 5, 32, 32, 8, 1, 3, spread, 0, NO_GU, 0, 4e-3),
    FWD_O("T9 k2 E3 L32 I64 mxfp4, outer, ranks 3 3 3 train", k2, CDR_F32, CDR_MXFP4, CDR_F32, 9, 2, 3, 32, 64, 3, 3, 3, spread, NO_TABLE, 0, NO_W | OUTER_ALL, 1e-6),
    FWD_O("T8 k1 E2 L864 I640 mxfp4, outer, rank 3, in pieces", k1, CDR_F32, CDR_MXFP4, CDR_F32, 8, 1, 2, 864, 640, 3, 3, 3, spread, NO_TABLE, 0, 0, 2e-6),
    FWD_O("T1 k1 E1 L1 I1 f32, outer, rank 1", k1, CDR_F32, CDR_F32, CDR_F32, 1, 1, 1, 1, 1, 1, 1, 1, spread, NO_TABLE, 0, ALL | OUTER_ALL, 1e-6),
    { .name = "T21 k2 E3 L70 I41 bf16 vnni64, outer, ranks 5 6 7", .op = &cdr_op_experts, .attr = &k2, .n_in = CDR__EX_N,
      .in = { OUTER_P(CDR_BF16, CDR_BF16, CDR_BF16, CDR_VNNI64, 21, 2, 3, 70, 41, 5, 6, 7) }, .fill = { FILLS }, .absent = NO_TABLE | 1 << CDR__EX_B2, .tol = 4e-3,
      .make = spread },
    BWD_O("T37 k4 E11 L24 I20 f32, outer, ranks 1 3 8, 7 rows at a time", k4_7, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 37, 4, 11, 24, 20, 1, 3, 8, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    BWD_O("T29 k2 E5 L70 I33 situ, outer, ranks 8 1 3, gu kept, adapters alone train", situ2, CDR_F32, CDR_F32, CDR_BF16, CDR_F32, 29, 2, 5, 70, 33, 8, 1, 3,
          spread_bwd, NO_TABLE_BWD, NO_DW, 2e-6),
    BWD_O("T29 k2 E5 L16 I16 table f32, outer, rank 4 on w3 and w2, square", k2, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 29, 2, 5, 16, 16, 4, 4, 4, spread_bwd,
          NO_GU_BWD | NO_H1_BWD, NO_DW, 2e-6),
    BWD_O("T29 k2 E5 L12 I20 f32, outer, rank 4 on w1", k2, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 29, 2, 5, 12, 20, 4, 4, 4, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD | NO_H3_BWD | NO_A2_BWD | NO_DV, NO_DW, 2e-6),
    BWD_O("T160 k1 E2 L136 I72 bf16, outer, rank 8, all on one", k1, CDR_BF16, CDR_BF16, CDR_BF16, CDR_BF16, 160, 1, 2, 136, 72, 8, 8, 8, one_bwd,
          NO_TABLE_BWD | NO_GU_BWD, NO_DW, 5e-3),
    BWD_O("T40 k2 E3 L64 I64 bf16, outer, adapters f32, rank 40, du f32", k2, CDR_F32, CDR_BF16, CDR_BF16, CDR_F32, 40, 2, 3, 64, 64, 40, 40, 40, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD, NO_DW, 5e-3),
    BWD_O("T20 k2 E4 L20 I10 f32, outer, rank 3, dB1, dB3 and dA2 alone", k2, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 20, 2, 4, 20, 10, 3, 3, 3, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD, NO_DW | 3 | 1 << CDR__EXB_DA1 | 1 << CDR__EXB_DA3, 2e-6),
    BWD_O("T20 k2 E4 L20 I10 f32, outer, rank 3, dh alone", k2, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 20, 2, 4, 20, 10, 3, 3, 3, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD, NO_DW | 3 | 1 << CDR__EXB_DB1 | 1 << CDR__EXB_DB3 | 1 << CDR__EXB_DA2, 2e-6),
    BWD_O("T140 k4 E8 L160 I192 mxfp4, outer, rank 4, 50 rows at a time", situ4_50, CDR_BF16, CDR_BF16, CDR_MXFP4, CDR_BF16, 140, 4, 8, 160, 192, 4, 4, 4, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD, NO_DW, 5e-3),
    BWD_O("T8 k1 E2 L640 I864 mxfp4, outer, rank 5, in pieces", k1, CDR_F32, CDR_F32, CDR_MXFP4, CDR_BF16, 8, 1, 2, 640, 864, 5, 5, 5, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD, NO_DW, 4e-6),
    BWD_O("T1 k1 E1 L1 I1 f32, outer, rank 1", k1, CDR_F32, CDR_F32, CDR_F32, CDR_F32, 1, 1, 1, 1, 1, 1, 1, 1, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    FWD("T9 k1 E2 L840 I632 bf16, in pieces", k1, CDR_BF16, CDR_BF16, 9, 1, 2, 840, 632, spread, NO_TABLE, 0, 0, 4e-3),
    BWD("T7 k1 E2 L632 I840 f32, in pieces", k1, CDR_F32, CDR_F32, CDR_F32, 7, 1, 2, 632, 840, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 0, 2e-6),
    FWD_A("T8 k1 E2 L864 I640 mxfp4, rank 3 on w1 and w3, in pieces", scaled1, CDR_F32, CDR_MXFP4, CDR_F32, 8, 1, 2, 864, 640, 3, 3, 1, spread, NO_TABLE | NO_2, 0,
          0, 2e-6),
    BWD_A("T8 k1 E2 L640 I864 mxfp4, in pieces", k1, CDR_BF16, CDR_BF16, CDR_MXFP4, CDR_F32, 8, 1, 2, 640, 864, 1, 1, 1, spread_bwd,
          NO_TABLE_BWD | NO_GU_BWD | NO_ADAPTERS_BWD, NO_DW | NO_ADAPTERS_OUT, 5e-3),
    FWD_P("T21 k2 E3 L70 I41 bf16 vnni64", k2, CDR_BF16, CDR_BF16, CDR_VNNI64, 21, 2, 3, 70, 41, spread, NO_TABLE, 4e-3),
    FWD_P("T21 k2 E3 L70 I41 table bf16 panel16", k2, CDR_BF16, CDR_BF16, CDR_PANEL16, 21, 2, 3, 70, 41, spread, 0, 4e-3),
    FWD_P("T21 k2 E3 L70 I41 f32 panel64", situ2, CDR_F32, CDR_F32, CDR_PANEL64, 21, 2, 3, 70, 41, spread, NO_TABLE, 1e-6),
    FWD_P("T5 k1 E2 L840 I632 x f32, w bf16 panel64, in pieces", k1, CDR_F32, CDR_BF16, CDR_PANEL64, 5, 1, 2, 840, 632, spread, NO_TABLE, 1e-6),
    FWD_P("T60 k2 E3 L416 I160 bf16 vnni64, whole steps", k2, CDR_BF16, CDR_BF16, CDR_VNNI64, 60, 2, 3, 416, 160, spread, NO_TABLE, 4e-3),
    BWD_P("T21 k2 E3 L70 I41 bf16 vnni64", k2, CDR_BF16, CDR_BF16, CDR_VNNI64, 21, 2, 3, 70, 41, spread_bwd, NO_TABLE_BWD, 5e-3),
    BWD_P("T21 k2 E3 L70 I41 f32 panel16", k2, CDR_F32, CDR_F32, CDR_PANEL16, 21, 2, 3, 70, 41, spread_bwd, NO_TABLE_BWD, 2e-6),
    BWD_P("T21 k2 E3 L70 I41 table bf16 panel64", situ2, CDR_BF16, CDR_BF16, CDR_PANEL64, 21, 2, 3, 70, 41, spread_bwd, 0, 5e-3),
    BWD_P("T5 k1 E2 L640 I840 bf16 vnni64, in pieces", k1, CDR_BF16, CDR_BF16, CDR_VNNI64, 5, 1, 2, 640, 840, spread_bwd, NO_TABLE_BWD, 5e-3),
    { .name = "T21 k2 E3 L96 I64 mxfp4 mapped, outer, ranks 5 6 7", .op = &cdr_op_experts, .attr = &k2, .n_in = CDR__EX_N,
      .in = { OUTER_P(CDR_BF16, CDR_MXFP4, CDR_BF16, CDR_MAPPED, 21, 2, 3, 96, 64, 5, 6, 7) }, .fill = { FILLS }, .absent = NO_TABLE | 1 << CDR__EX_B2, .tol = 4e-3,
      .make = spread },
    { .name = "T21 k2 E3 L96 I64 mxfp4 mapped, outer, ranks 5 6 7", .op = &cdr_op_experts_bwd, .attr = &k2, .n_in = CDR__EXB_N,
      .in = { M(CDR_F32, 21, 96), OUTER_P(CDR_F32, CDR_MXFP4, CDR_F32, CDR_MAPPED, 21, 2, 3, 96, 64, 5, 6, 7), V(CDR_F32, 1), M(CDR_F32, 1, 1), M(CDR_F32, 21, 7) },
      .fill = { { 'n', 1, 0 }, FILLS, { 'n', 1, 0 }, { 'n', 1, 0 } }, .absent = NO_TABLE_BWD | 1 << (CDR__EXB_X + CDR__EX_B2) | NO_GU_BWD, .skip_out = NO_DW, .tol = 2e-6,
      .make = spread_bwd },
    FWD_P("T11 k2 E4 L64 I32 mxfp4 mapped", k2, CDR_F32, CDR_MXFP4, CDR_MAPPED, 11, 2, 4, 64, 32, spread, NO_TABLE, 1e-6),
    FWD_P("T30 k2 E3 L160 I96 mxfp4 mapped bf16", situ2, CDR_BF16, CDR_MXFP4, CDR_MAPPED, 30, 2, 3, 160, 96, spread, NO_TABLE, 4e-3),
    FWD_P("T9 k1 E2 L864 I640 mxfp4 mapped, in pieces", k1, CDR_F32, CDR_MXFP4, CDR_MAPPED, 9, 1, 2, 864, 640, spread, NO_TABLE, 2e-6),
    BWD_P("T37 k4 E8 L96 I64 mxfp4 mapped", k4_7, CDR_F32, CDR_MXFP4, CDR_MAPPED, 37, 4, 8, 96, 64, spread_bwd, NO_TABLE_BWD, 2e-6),
    BWD_P("T8 k1 E2 L640 I864 mxfp4 mapped bf16, in pieces", k1, CDR_BF16, CDR_MXFP4, CDR_MAPPED, 8, 1, 2, 640, 864, spread_bwd, NO_TABLE_BWD, 5e-3),
    FWD_MA("T15 k2 E4 L64 I96 mxfp4 mapped, ranks 8 1 3", scaled2_situ, CDR_F32, CDR_F32, 15, 2, 4, 64, 96, 8, 1, 3, spread, NO_TABLE, 1e-6),
    BWD_MA("T20 k2 E4 L160 I96 mxfp4 mapped, ranks 3 3 3", scaled2, CDR_F32, CDR_F32, 20, 2, 4, 160, 96, 3, 3, 3, spread_bwd, NO_TABLE_BWD | NO_GU_BWD, 2e-6),
    { .name = NULL }
};
