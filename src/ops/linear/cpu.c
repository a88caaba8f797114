/* cpu.c: base kernel of the matrix product, plain C for any machine, and the runs of linear's CPU kernels.
 *
 * Numeric class "base": acc_j = acc_j + a_u b_uj for u ascending, product and sum each rounded to F32; the compilers may
 * put four j in a vector, which changes no bit. Tile 4 x 8: 8 vectors of 4 lanes hold it, of the 16 that x86-64 has. */
#include "ops/linear/gemm_isa.h"

enum { MR = 4, NR = 8 };

CDR__INLINE void tile_base(const cdr__tile *t, const int rows)
{
    const float *b = (const float *)(const void *)t->b, *a = (const float *)(const void *)t->a;
    float acc[MR][NR];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < NR; j++) acc[r][j] = t->first ? 0.0f : t->c[r * t->ldc + j];
    for (int64_t u = 0; u < t->k; u++)
        for (int r = 0; r < rows; r++) {
            const float x = a[r * t->a_row + u * t->a_col];
            for (int j = 0; j < NR; j++) acc[r][j] += x * b[u * NR + j];
        }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < NR; j++) t->c[r * t->ldc + j] = acc[r][j];
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
    .name = "base", .mr = MR, .nr = NR, .mc = 96, .kc = 2048, .a_units = 48 * 1024, .pair = 1,
    .pack_a = { { a_f32_panels, a_f32_rows }, { a_bf16_panels, a_bf16_rows } },
    .pack_b = { { b_f32_cols, b_f32_k }, { b_bf16_cols, b_bf16_k } },
    .kernel = gemm_f32_base, .finish = { finish_f32, finish_bf16 },
};
