/* rope, test cases: both styles and both directions, one head and several, with and without a nope part, packed
 * documents (positions count from the document's start), and positions near 2^20, where F32 angles would fail. */
#include "ops/rope/rope.h"

static const cdr_rope_attr half = { .heads = 4, .nope = 0, .ext = 16, .theta = 10000.0f },
    inter = { .heads = 4, .nope = 0, .ext = 16, .theta = 10000.0f, .interleaved = 1 },
    inter_nope = { .heads = 3, .nope = 10, .ext = 6, .theta = 10000.0f, .interleaved = 1 },
    half_back = { .heads = 3, .nope = 10, .ext = 6, .theta = 500000.0f, .inverse = 1 },
    inter_back = { .heads = 1, .nope = 0, .ext = 64, .theta = 10000.0f, .interleaved = 1, .inverse = 1 };

/* three documents: rows from T/3 on, then from T/2 on, start anew */
static void make_docs(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int64_t T = t[0].n[0];
    (void)key;
    for (int64_t i = 0; i < T; i++) {
        in[1][i] = (double)i;
        in[2][i] = (double)(i >= T / 2 ? T / 2 : i >= T / 3 ? T / 3 : 0);
    }
}

static void make_far(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[0].n[0]; i++) {
        in[1][i] = 1048576.0 + (double)(1237 * i);
        in[2][i] = (double)(3 * i);
    }
}

#define ROPE(nm, at, dt, T, C, mk, tl) { .name = nm, .op = &cdr_op_rope, .attr = &(at), .n_in = 3, \
    .in = { { .dtype = dt, .n_dim = 2, .n = { T, C } }, { .dtype = CDR_I32, .n_dim = 1, .n = { T } }, { .dtype = CDR_I32, .n_dim = 1, .n = { T } } }, \
    .fill = { { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .make = mk, .grad = 1, .tol = tl }

const cdr_case cdr_cases_rope[] = {
    ROPE("T50 H4 ext16 half f32", half, CDR_F32, 50, 64, make_docs, 2e-7),
    ROPE("T50 H4 ext16 interleaved bf16", inter, CDR_BF16, 50, 64, make_docs, 2.5e-3),
    ROPE("T50 H3 10+6 interleaved f32", inter_nope, CDR_F32, 50, 48, make_docs, 2e-7),
    ROPE("T50 H3 10+6 half back bf16", half_back, CDR_BF16, 50, 48, make_docs, 2.5e-3),
    ROPE("T50 H1 ext64 interleaved back f32", inter_back, CDR_F32, 50, 64, make_docs, 2e-7),
    ROPE("T20 far positions f32", half, CDR_F32, 20, 64, make_far, 2e-7),
    ROPE("T1 H1 f32", inter_back, CDR_F32, 1, 64, make_docs, 2e-7),
    { .name = NULL }
};
