/* dispatch, test cases: everything is bit-equal. Duplicates within a token, which no router makes, are sorted all the same. */
#include "ops/dispatch/dispatch.h"

static const cdr_dispatch_attr e1 = { 1 }, e7 = { 7 }, e32 = { 32 }, e300 = { 300 };

/* distinct experts in ascending order, as a router gives them; every seventh token is idle */
static void routes(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    const int64_t T = t[0].n[0], A = t[0].n[1];
    for (int64_t i = 0; i < T; i++) {
        double e = (double)(cdr_rng_u64(key, (uint64_t)i) % 3);
        for (int64_t s = 0; s < A; s++) {
            in[0][i * A + s] = i % 7 == 6 ? -1 : e;
            e += 1 + (double)(cdr_rng_u64(key, (uint64_t)(T + i * A + s)) % 3);
        }
    }
}

#define CASE(nm, at, T, A, k, lo, hi, mk) { .name = nm, .op = &cdr_op_dispatch, .attr = &at, .n_in = 1, \
    .in = { { .dtype = CDR_I32, .n_dim = 2, .n = { T, A } } }, .fill = { { k, lo, hi } }, .make = mk, .tol = 0 }

const cdr_case cdr_cases_dispatch[] = {
    CASE("T129 A4 E32", e32, 129, 4, 'f', 0, 0, routes),
    CASE("T50 A16 E300", e300, 50, 16, 'f', 0, 0, routes),
    CASE("T64 A3 E7 random, some idle", e7, 64, 3, 'i', -1, 6, NULL),
    CASE("T40 A2 E32 all on the last", e32, 40, 2, 'c', 31, 0, NULL),
    CASE("T9 A2 E7 all idle", e7, 9, 2, 'c', -1, 0, NULL),
    CASE("T1 A1 E300", e300, 1, 1, 'i', 0, 299, NULL),
    CASE("T17 A1 E1", e1, 17, 1, 'i', -1, 0, NULL),
    { .name = NULL }
};
