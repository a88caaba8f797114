/* cpu.c: base kernel of the matrix product, plain C for any machine.
 *
 * Numeric class "base": acc_j = acc_j + a_u b_uj for u ascending, product and sum each rounded to F32, whichever
 * compiler. Tile 4 x 8: 8 vectors of 4 lanes hold it, of the 16 that x86-64 has. */
#include "ops/linear/gemm_isa.h"

enum { MR = 4, NR = 8 };

/* Four lanes in the compilers' own vector type: no instruction set is named. */
typedef float v4 __attribute__((vector_size(16)));

CDR__INLINE v4 load4(const float *p)
{
    v4 x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Named variables: gcc 12 keeps an array of accumulators in memory. rows is a constant where it is inlined. */
#define ROW(r, lo, hi) \
    if (rows > (r)) { \
        const float x = a[(r) * t->a_row]; \
        const v4 a_ = { x, x, x, x }; \
        lo += a_ * b0; \
        hi += a_ * b1; \
    }
#define LOAD(r, lo, hi) \
    if (rows > (r)) { \
        lo = load4(old + (r) * ldo); \
        hi = load4(old + (r) * ldo + 4); \
    }
#define STORE(r, lo, hi) \
    if (rows > (r)) { \
        memcpy(t->c + (r) * t->ldc, &lo, sizeof lo); \
        memcpy(t->c + (r) * t->ldc + 4, &hi, sizeof hi); \
    }

CDR__INLINE void tile_base(const cdr__tile *t, const int rows)
{
    const float *b = (const float *)(const void *)t->b, *a = (const float *)(const void *)t->a;
    const v4 zero = { 0, 0, 0, 0 };
    v4 c00 = zero, c01 = zero, c10 = zero, c11 = zero, c20 = zero, c21 = zero, c30 = zero, c31 = zero;
    const float *old = t->old ? t->old : t->c;
    const int64_t ldo = t->old ? NR : t->ldc;
    if (!t->first) {
        LOAD(0, c00, c01) LOAD(1, c10, c11) LOAD(2, c20, c21) LOAD(3, c30, c31)
    }
    for (int64_t u = t->k; u > 0; u--) {
        const v4 b0 = load4(b), b1 = load4(b + 4);
        ROW(0, c00, c01) ROW(1, c10, c11) ROW(2, c20, c21) ROW(3, c30, c31)
        a += t->a_col;
        b += NR;
    }
    STORE(0, c00, c01) STORE(1, c10, c11) STORE(2, c20, c21) STORE(3, c30, c31)
}

static void gemm_f32_base(const cdr__tile *t)
{
    if (t->rows == 4) tile_base(t, 4);
    else if (t->rows == 3) tile_base(t, 3);
    else if (t->rows == 2) tile_base(t, 2);
    else tile_base(t, 1);
}

static void a_f32_panels(const cdr__pack *s) { cdr__pack_a_panels(CDR_F32, 1, MR, s); }
static void a_f32_rows(const cdr__pack *s) { cdr__pack_a_rows(CDR_F32, 1, s); }
static void a_bf16_panels(const cdr__pack *s) { cdr__pack_a_panels(CDR_BF16, 1, MR, s); }
static void a_bf16_rows(const cdr__pack *s) { cdr__pack_a_rows(CDR_BF16, 1, s); }
static void b_f32_cols(const cdr__pack *s) { cdr__pack_b_panels(CDR_F32, 1, NR, false, s); }
static void b_f32_k(const cdr__pack *s) { cdr__pack_b_panels(CDR_F32, 1, NR, true, s); }
static void b_bf16_cols(const cdr__pack *s) { cdr__pack_b_panels(CDR_BF16, 1, NR, false, s); }
static void b_bf16_k(const cdr__pack *s) { cdr__pack_b_panels(CDR_BF16, 1, NR, true, s); }
static void finish_f32(const cdr__finish *f) { cdr__finish_body(CDR_F32, NR, f); }
static void finish_bf16(const cdr__finish *f) { cdr__finish_body(CDR_BF16, NR, f); }

const cdr__gemm_isa cdr__gemm_base = {
    .name = "base", .mr = MR, .nr = NR, .mc = 96, .kc = 2048, .kc_min = 512, .kb = 256, .kb_in_place = 2048, .few = 96, .a_units = 48 * 1024,
    .pair = 1, .mac = 4, .step = 1, .layout = CDR_ROWS,
    .pack_a = { { a_f32_panels, a_f32_rows }, { a_bf16_panels, a_bf16_rows } },
    .pack_b = { { b_f32_cols, b_f32_k }, { b_bf16_cols, b_bf16_k } },
    .kernel = gemm_f32_base, .finish = { finish_f32, finish_bf16 },
};
