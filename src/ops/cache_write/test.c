/* cache_write, test cases: all rows live, some, none; a conversion; positions out of order. Exact, so tolerance 0. */
#include "ops/cache_write/cache_write.h"

static const cdr_cache_write_attr s40_bf16 = { .rows = 40, .dtype = CDR_BF16 }, s40_f32 = { .rows = 40, .dtype = CDR_F32 };

/* positions: a permutation of 0..S-1 cut to T (7 and 40 have no common factor); those of idle rows lie outside of the
 * cache and must not be read */
static void make_pos(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    for (int64_t i = 0; i < t[1].n[0]; i++)
        in[1][i] = i < (int64_t)in[2][0] ? (double)((7 * i + (int64_t)(key.seed % 40)) % 40) : 1e9;
}

#define CW(nm, at, dt, T, C, live) { .name = nm, .op = &cdr_op_cache_write, .attr = &(at), .n_in = 3, \
    .in = { { .dtype = dt, .n_dim = 2, .n = { T, C } }, { .dtype = CDR_I32, .n_dim = 1, .n = { T } }, { .dtype = CDR_I32, .n_dim = 1, .n = { 1 } } }, \
    .fill = { { 'n', 1, 0 }, { 'f', 0, 0 }, { 'c', live, 0 } }, .make = make_pos, .tol = 0 }

const cdr_case cdr_cases_cache_write[] = {
    CW("T16 C72 bf16, 16 live", s40_bf16, CDR_BF16, 16, 72, 16),
    CW("T16 C72 bf16, 5 live", s40_bf16, CDR_BF16, 16, 72, 5),
    CW("T16 C72 bf16, none live", s40_bf16, CDR_BF16, 16, 72, 0),
    CW("T40 C9 f32, all rows", s40_f32, CDR_F32, 40, 9, 40),
    CW("T3 C9 f32 into bf16", s40_bf16, CDR_F32, 3, 9, 3),
    CW("T1 C9 bf16 into f32", s40_f32, CDR_BF16, 1, 9, 1),
    { .name = NULL }
};
