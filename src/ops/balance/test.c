/* balance, test cases: the first micro-batch overwrites, later ones add; idle rows; no token at all; a quantile between and inside of bins; a width
 * that no block of experts divides. The histogram is compared with a double one: a score within a rounding of a border may fall into the neighbour
 * bin, which moves the distance by less than the tolerance; a row or an expert missed, or a bin off by one, does not pass. That the rules even out
 * the load is in test/test_routing.c. */
#include "ops/balance/balance.h"
#include <math.h>

static const cdr_balance_load_attr e_13 = { .experts = 13 }, e_896 = { .experts = 896 };
static const cdr_balance_hist_attr b_1000 = { .bins = 1000 }, b_16 = { .bins = 16 }, b_2 = { .bins = 2 }, soft_200 = { .softmax = 1, .bins = 200 };
static const cdr_balance_quantile_attr q_4_1000 = { .top_k = 4, .bins = 1000 }, q_3_16 = { .top_k = 3, .bins = 16 }, q_1_2 = { .top_k = 1, .bins = 2 },
    q_3_16_ema = { .top_k = 3, .bins = 16, .ema = 0.75f }, q_5_16 = { .top_k = 5, .bins = 16 };
static const cdr_balance_sign_attr rate_3 = { .rate = 1e-3f };

/* a fifth of the rows idle */
static void make_idx(double *const *in, const cdr_type *t, cdr_rng_key key, int64_t E)
{
    int64_t k = t[0].n[1];
    for (int64_t r = 0; r < t[0].n[0]; r++)
        for (int64_t j = 0; j < k; j++) in[0][r * k + j] = r % 5 == 3 ? -1.0 : (double)(cdr_rng_u64(key, (uint64_t)(r * k + j)) % (uint64_t)E);
}
static void make_idx_13(double *const *in, const cdr_type *t, cdr_rng_key key) { make_idx(in, t, key, 13); }
static void make_idx_896(double *const *in, const cdr_type *t, cdr_rng_key key) { make_idx(in, t, key, 896); }

static void make_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t r = 0; r < t[0].n[0]; r++) {
        in[4][r] = (double)r;
        in[3][r] = r % 5 == 3 ? (double)(r + 1) : (double)(r / 7 * 7);
    }
}

/* Each expert's row has m counts in a few bins around one of its own; the load is uneven and has m k. */
static void make_counts(double *const *in, const cdr_type *t, cdr_rng_key key, int64_t m, int64_t k)
{
    int64_t E = t[0].n[0], B = t[0].n[1];
    for (int64_t i = 0; i < E * B; i++) in[0][i] = 0;
    for (int64_t e = 0; e < E; e++) in[1][e] = 0;
    for (int64_t i = 0; i < m * k; i++) in[1][(int64_t)sqrt((double)(cdr_rng_u64(key, (uint64_t)i) % (uint64_t)(E * E)))] += 1;
    for (int64_t e = 0; e < E; e++)
        for (int64_t i = 0; i < m; i++) in[0][e * B + (int64_t)((cdr_rng_u64(key, (uint64_t)e) + cdr_rng_u64(key, (uint64_t)(E + e * m + i)) % 7) % (uint64_t)B)] += 1;
}
static void make_none(double *const *in, const cdr_type *t, cdr_rng_key key) { make_counts(in, t, key, 0, 1); }
static void make_1_of_k1(double *const *in, const cdr_type *t, cdr_rng_key key) { make_counts(in, t, key, 1, 1); }
static void make_101_of_k3(double *const *in, const cdr_type *t, cdr_rng_key key) { make_counts(in, t, key, 101, 3); }
static void make_64_of_k5(double *const *in, const cdr_type *t, cdr_rng_key key) { make_counts(in, t, key, 64, 5); }
static void make_513_of_k4(double *const *in, const cdr_type *t, cdr_rng_key key) { make_counts(in, t, key, 513, 4); }

#define M(dt, T, C) { .dtype = dt, .n_dim = 2, .n = { T, C } }
#define V(dt, T) { .dtype = dt, .n_dim = 1, .n = { T } }
#define LOAD(nm, at, T, k, micro, mk) { .name = nm, .op = &cdr_op_balance_load, .attr = &(at), .n_in = 2, .in = { M(CDR_I32, T, k), V(CDR_I32, 1) }, \
    .fill = { { 'f', 0, 0 }, { 'c', micro, 0 } }, .make = mk, .tol = 0 }
#define HIST(nm, at, T, E, micro, bias, tl) { .name = nm, .op = &cdr_op_balance_hist, .attr = &(at), .n_in = 6, \
    .in = { M(CDR_F32, T, E), V(CDR_F32, T), V(CDR_F32, E), V(CDR_I32, T), V(CDR_I32, T), V(CDR_I32, 1) }, \
    .fill = { { 'n', 1, 0 }, { 'u', 0.4, 0.9 }, { 'u', -(bias), bias }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'c', micro, 0 } }, .make = make_rows, .tol = tl }
#define QUANTILE(nm, at, E, B, mk) { .name = nm, .op = &cdr_op_balance_quantile, .attr = &(at), .n_in = 2, .in = { M(CDR_I32, E, B), V(CDR_I32, E) }, \
    .fill = { { 'f', 0, 0 }, { 'f', 0, 0 } }, .make = mk, .tol = 1e-7 }
#define SIGN(nm, E, ...) { .name = nm, .op = &cdr_op_balance_sign, .attr = &rate_3, .n_in = 1, .in = { V(CDR_I32, E) }, .fill = { __VA_ARGS__ }, .tol = 1e-7 }

const cdr_case cdr_cases_balance[] = {
    LOAD("T60 k4 E13, first", e_13, 60, 4, 0, make_idx_13),
    LOAD("T60 k4 E13, third", e_13, 60, 4, 2, make_idx_13),
    LOAD("T40 k16 E896, second", e_896, 40, 16, 1, make_idx_896),
    LOAD("T1 k1 E13", e_13, 1, 1, 0, make_idx_13),
    HIST("T130 E32 B1000, first", b_1000, 130, 32, 0, 0.1, 4e-2),
    HIST("T130 E32 B1000, second", b_1000, 130, 32, 1, 0.1, 2e-2),
    HIST("T77 E37 B16, third", b_16, 77, 37, 2, 0.4, 1e-2),
    HIST("T9 E3 B2, no bias", b_2, 9, 3, 0, 0.0, 1e-9),
    HIST("T60 E45 B200, softmax, second", soft_200, 60, 45, 1, 0.02, 2e-2),
    HIST("T5 E896 B1000", b_1000, 5, 896, 0, 0.1, 4e-2),
    QUANTILE("E32 B1000 k4, 513 tokens", q_4_1000, 32, 1000, make_513_of_k4),
    QUANTILE("E13 B16 k3, 101 tokens", q_3_16, 13, 16, make_101_of_k3),
    QUANTILE("E13 B16 k3, ema", q_3_16_ema, 13, 16, make_101_of_k3),
    QUANTILE("E13 B16 k3, no token", q_3_16, 13, 16, make_none),
    QUANTILE("E5 B2 k1, one token", q_1_2, 5, 2, make_1_of_k1),
    QUANTILE("E5 B16 k5, all experts", q_5_16, 5, 16, make_64_of_k5),
    SIGN("E64", 64, { 'i', 0, 40 }),
    SIGN("E9, all equal", 9, { 'c', 7, 0 }),
    SIGN("E9, no token", 9, { 'c', 0, 0 }),
    SIGN("E1", 1, { 'c', 3, 0 }),
    { .name = NULL }
};
