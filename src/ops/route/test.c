/* route, test cases: ids in descending order, so that the sort is seen; sigmoid and softmax, renormalised or not, one expert, idle rows. */
#include "ops/route/route.h"

static const cdr_router_attr kimi = { .top_k = 4, .renormalize = 1, .scale = 2.446f }, soft = { .top_k = 3, .softmax = 1, .scale = 16.0f };
static const cdr_router_attr soft_even = { .top_k = 3, .softmax = 1, .renormalize = 1, .scale = 1.0f }, one = { .top_k = 1, .scale = 1.0f };

/* Distinct ids of a token: E - 1 - (t + j step) mod E, falling for the first tokens. Rows t = 3 mod 5 are idle. */
static void given(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int64_t T = t[0].n[0], E = t[0].n[1], k = t[1].n[1];
    (void)key;
    for (int64_t r = 0; r < T; r++) {
        for (int64_t j = 0; j < k; j++) in[1][r * k + j] = (double)(E - 1 - (r + j * (E / k)) % E);
        in[2][r] = r % 5 == 3 ? (double)(r + 1) : 0;
        in[3][r] = (double)r;
    }
}

#define ROUTE(nm, at, T, E, k) { .name = nm, .op = &cdr_op_route, .attr = &(at), .n_in = 4, \
    .in = { { .dtype = CDR_F32, .n_dim = 2, .n = { T, E } }, { .dtype = CDR_I32, .n_dim = 2, .n = { T, k } }, { .dtype = CDR_I32, .n_dim = 1, .n = { T } }, \
            { .dtype = CDR_I32, .n_dim = 1, .n = { T } } }, \
    .fill = { { 'n', 2, 0 } }, .make = given, .tol = 3e-7 }

const cdr_case cdr_cases_route[] = {
    ROUTE("T33 E40 k4 sigmoid", kimi, 33, 40, 4), ROUTE("T17 E13 k3 softmax", soft, 17, 13, 3), ROUTE("T17 E12 k3 softmax, renormalised", soft_even, 17, 12, 3),
    ROUTE("T1 E1 k1", one, 1, 1, 1),
    { .name = NULL }
};
