/* rope, test cases: both styles and both directions, one head and several, with and without a nope part, packed
 * documents (positions count from the document's start), positions near 2^20, where F32 angles would fail, and YaRN. */
#include "ops/rope/rope.h"
#include <math.h>

static const cdr_rope_attr half = { .heads = 4, .nope = 0, .ext = 16, .theta = 10000.0f },
    inter = { .heads = 4, .nope = 0, .ext = 16, .theta = 10000.0f, .interleaved = 1 },
    inter_nope = { .heads = 3, .nope = 10, .ext = 6, .theta = 10000.0f, .interleaved = 1 },
    half_back = { .heads = 3, .nope = 10, .ext = 6, .theta = 500000.0f, .inverse = 1 },
    half_first = { .heads = 3, .nope = 10, .ext = 6, .theta = 10000.0f, .first = 1 },
    inter_first = { .heads = 3, .nope = 10, .ext = 6, .theta = 10000.0f, .interleaved = 1, .first = 1, .inverse = 1 },
    yarn = { .heads = 1, .nope = 0, .ext = 64, .theta = 10000.0f, .interleaved = 1, .factor = 40.0f, .original = 4096, .beta_fast = 32, .beta_slow = 1 },
    yarn_first = { .heads = 2, .nope = 8, .ext = 24, .theta = 500000.0f, .inverse = 1, .first = 1, .factor = 4.0f, .original = 8192, .beta_fast = 32, .beta_slow = 1 },
    yarn_step = { .heads = 1, .nope = 0, .ext = 64, .theta = 10000.0f, .factor = 8.0f, .original = 16, .beta_fast = 32, .beta_slow = 4 },
    inter_back = { .heads = 1, .nope = 0, .ext = 64, .theta = 10000.0f, .interleaved = 1, .inverse = 1 };

/* DeepSeek-V3's ramp, by hand: theta = 1e4, L = 4096, 64 wide: d(32) = 10.47.., d(1) = 22.51..; lo = 10, hi = 23. Pair 10 keeps
 * its frequency, pair 23 turns 40 times slower, pair 16 lies 6/13 on the way. factor 1 leaves every bit. */
static const char *yarn_holds(const cdr_args *a)
{
    const cdr_rope_attr *at = a->attr;
    double freq[32], plain[32], one[32];
    cdr_rope_attr p = *at;
    p.factor = 0;
    cdr__rope_frequencies(at, freq);
    cdr__rope_frequencies(&p, plain);
    p.factor = 1;
    cdr__rope_frequencies(&p, one);
    if (memcmp(plain, one, sizeof one) != 0) return "a factor of 1 changes frequencies";
    for (int i = 0; i <= 10; i++) if (!(freq[i] == plain[i])) return "a fast pair does not keep its frequency";
    for (int i = 23; i < 32; i++) if (fabs(freq[i] * 40 / plain[i] - 1) > 1e-12) return "a slow pair is not divided by the factor";
    return fabs(freq[16] / plain[16] - (7.0 + 6.0 / 40) / 13) < 1e-12 ? NULL : "the ramp is wrong";
}

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
    ROPE("T50 H3 6+10 half, rotated part first f32", half_first, CDR_F32, 50, 48, make_docs, 2e-7),
    ROPE("T50 H3 6+10 interleaved back, rotated part first bf16", inter_first, CDR_BF16, 50, 48, make_docs, 2.5e-3),
    { .name = "T40 H1 ext64 yarn 40 f32, far", .op = &cdr_op_rope, .attr = &yarn, .n_in = 3,
      .in = { { .dtype = CDR_F32, .n_dim = 2, .n = { 40, 64 } }, { .dtype = CDR_I32, .n_dim = 1, .n = { 40 } }, { .dtype = CDR_I32, .n_dim = 1, .n = { 40 } } },
      .fill = { { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .make = make_far, .grad = 1, .tol = 2e-7, .property = yarn_holds },
    ROPE("T50 H2 24+8 yarn 4 half back, first f32", yarn_first, CDR_F32, 50, 64, make_docs, 2e-7),
    ROPE("T50 H1 ext64 yarn 8, ramp of no width f32", yarn_step, CDR_F32, 50, 64, make_docs, 2e-7),
    ROPE("T1 H1 f32", inter_back, CDR_F32, 1, 64, make_docs, 2e-7),
    { .name = NULL }
};
