/* cpu_avx512_bf16.c: AVX-512 BF16 kernel of the matrix product. Numeric class "bf16dot": acc = vdpbf16ps(acc, a, b), which
 * adds the products of k = 2u + 1 and 2u, u ascending; subnormal inputs and results count as zero in that instruction.
 *
 * Tile 6 x 64: 24 accumulators, 4 vectors of B, a broadcast pair of A = 29 of 32 registers; B packed [n/64][k/2][64][2].
 * A step along k is 24 vdpbf16ps beside 4 loads and 6 broadcasts: bound by vdpbf16ps, one a cycle or less. Emerald Rapids has one in two
 * cycles: 90 GFLOP/s a core in this kernel whatever the pieces; 2048 x 2048 x 2048 170 on two, 16 / 64 x 3072 x 3584 from VNNI64
 * 177 / 177 (98 %), from rows 117 to 127 at 16 (packing is the rest), 1 row from VNNI64 50 GB/s. */
#include "ops/linear/gemm_simd.h"
#include "ops/linear/tile_avx512_simd.h"

enum { MR = 6, NR = 64, PAIR = 2 };

#define ROW(r, x, c0, c1, c2, c3) \
    if (rows > (r)) { \
        const __m512bh a_ = as_bh(_mm512_set1_epi32((int)*(x))); \
        c0 = _mm512_dpbf16_ps(c0, a_, b0); \
        c1 = _mm512_dpbf16_ps(c1, a_, b1); \
        c2 = _mm512_dpbf16_ps(c2, a_, b2); \
        c3 = _mm512_dpbf16_ps(c3, a_, b3); \
    }

CDR__INLINE __m512bh as_bh(__m512i x) { return (__m512bh)x; }

CDR__INLINE void tile_bf16(const cdr__tile *t, const int rows)
{
    const uint32_t *b = t->b, *a = t->a;
    const int64_t row = t->a_row, row3 = 3 * row, col = t->a_col;
    const char *ahead = t->ahead;
    ACCUMULATORS;
    const float *old = t->old ? t->old : t->c;
    const int64_t ldo = t->old ? NR : t->ldc;
    if (!t->first) EACH_ROW(LOAD)
    for (int64_t u = t->k; u > 0; u--) {
        const __m512bh b0 = as_bh(_mm512_load_si512(b)), b1 = as_bh(_mm512_load_si512(b + 16));
        const __m512bh b2 = as_bh(_mm512_load_si512(b + 32)), b3 = as_bh(_mm512_load_si512(b + 48));
        const uint32_t *a3 = a + row3;
        STEP_ROWS(a, row)
        _mm_prefetch(ahead, _MM_HINT_T1);
        ahead += 64;
        a += col;
        b += NR;
    }
    EACH_ROW(STORE)
}

static void gemm_bf16_avx512(const cdr__tile *t)
{
    switch (t->rows) {
    case 6: tile_bf16(t, 6); break;
    case 5: tile_bf16(t, 5); break;
    case 4: tile_bf16(t, 4); break;
    case 3: tile_bf16(t, 3); break;
    case 2: tile_bf16(t, 2); break;
    default: tile_bf16(t, 1); break;
    }
}

static void a_f32_panels(const cdr__pack *s) { cdr__pack_a_panels_avx512(CDR_F32, PAIR, MR, s); }
static void a_f32_rows(const cdr__pack *s) { cdr__pack_a_rows_avx512(CDR_F32, PAIR, s); }
static void a_bf16_panels(const cdr__pack *s) { cdr__pack_a_panels_avx512(CDR_BF16, PAIR, MR, s); }
static void a_bf16_rows(const cdr__pack *s) { cdr__pack_a_rows_avx512(CDR_BF16, PAIR, s); }
static void b_f32_cols(const cdr__pack *s) { cdr__pack_b_avx512(CDR_F32, PAIR, NR, false, s); }
static void b_f32_k(const cdr__pack *s) { cdr__pack_b_avx512(CDR_F32, PAIR, NR, true, s); }
static void b_bf16_cols(const cdr__pack *s) { cdr__pack_b_avx512(CDR_BF16, PAIR, NR, false, s); }
static void b_bf16_k(const cdr__pack *s) { cdr__pack_b_avx512(CDR_BF16, PAIR, NR, true, s); }
static void across(const cdr__pack *s) { cdr__pack_across_avx512(s); }
static void finish_f32(const cdr__finish *f) { cdr__finish_body(CDR_F32, NR, f); }
static void finish_bf16(const cdr__finish *f) { cdr__finish_body(CDR_BF16, NR, f); }

const cdr__gemm_isa cdr__gemm_avx512_bf16 = {
    .name = "avx512_bf16", .mr = MR, .nr = NR, .mc = 240, .kc = 2048, .kc_min = 512, .kb = 128, .kb_in_place = 1024, .few = 240, .a_units = 128 * 1024,
    .pair = PAIR, .mac = 32, .step = 1, .layout = CDR_VNNI64, .pack_across = across,
    .pack_a = { { a_f32_panels, a_f32_rows }, { a_bf16_panels, a_bf16_rows } },
    .pack_b = { { b_f32_cols, b_f32_k }, { b_bf16_cols, b_bf16_k } },
    .kernel = gemm_bf16_avx512, .finish = { finish_f32, finish_bf16 },
};
