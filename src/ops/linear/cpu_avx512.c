/* cpu_avx512.c: AVX-512 F32 kernel of the matrix product. Numeric class "fma", the same chain as AVX2, bit for bit.
 *
 * Tile 6 x 64: 24 accumulators, 4 vectors of B, a broadcast of A = 29 of 32 registers. A step along k is 24 FMA beside
 * 4 loads and 6 broadcasts: bound by FMA with one or two units.
 * Emerald Rapids, ceiling 157 GFLOP/s a core, 315 on two: 2048 x 2048 x 2048 F32 153 (97 %) and 294 (93 %). BF16 weights
 * in PANEL64, two threads: 16 / 64 / 256 x 3072 x 3584 at 278 / 322 / 307 (88 / 102 / 97 %).
 * Tried, two threads: a packed B that they share, meeting at barriers (278 at best); B not in pieces (205); pieces of 64 to 1024
 * units (equal). */
#include "ops/linear/gemm_simd.h"
#include "ops/linear/tile_avx512_simd.h"

enum { MR = 6, NR = 64, PAIR = 1 };

#define ROW(r, x, c0, c1, c2, c3) \
    if (rows > (r)) { \
        const __m512 a_ = _mm512_set1_ps(*(x)); \
        c0 = _mm512_fmadd_ps(a_, b0, c0); \
        c1 = _mm512_fmadd_ps(a_, b1, c1); \
        c2 = _mm512_fmadd_ps(a_, b2, c2); \
        c3 = _mm512_fmadd_ps(a_, b3, c3); \
    }

CDR__INLINE __m512 widen16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}

/* narrow: B comes as BF16 and is left as F32 for the tiles that follow. */
CDR__INLINE void tile_avx512(const cdr__tile *t, const int rows, const bool narrow)
{
    const uint16_t *src = t->narrow;
    float *wide = (float *)(void *)t->wide;
    const float *b = (const float *)(const void *)t->b, *a = (const float *)(const void *)t->a;
    const int64_t row = t->a_row, row3 = 3 * row, col = t->a_col;
    const char *ahead = t->ahead;
    ACCUMULATORS;
    const float *old = t->old ? t->old : t->c;
    const int64_t ldo = t->old ? NR : t->ldc;
    if (!t->first) EACH_ROW(LOAD)
    for (int64_t u = t->k; u > 0; u--) {
        const __m512 b0 = narrow ? widen16(src) : _mm512_load_ps(b), b1 = narrow ? widen16(src + 16) : _mm512_load_ps(b + 16);
        const __m512 b2 = narrow ? widen16(src + 32) : _mm512_load_ps(b + 32), b3 = narrow ? widen16(src + 48) : _mm512_load_ps(b + 48);
        if (narrow) {
            _mm512_store_ps(wide, b0);
            _mm512_store_ps(wide + 16, b1);
            _mm512_store_ps(wide + 32, b2);
            _mm512_store_ps(wide + 48, b3);
            src += NR;
            wide += NR;
        }
        const float *a3 = a + row3;
        STEP_ROWS(a, row)
        _mm_prefetch(ahead, _MM_HINT_T1);
        ahead += 64;
        a += col;
        b += NR;
    }
    EACH_ROW(STORE)
}

CDR__INLINE void tiles_avx512(const cdr__tile *t, const bool narrow)
{
    switch (t->rows) {
    case 6: tile_avx512(t, 6, narrow); break;
    case 5: tile_avx512(t, 5, narrow); break;
    case 4: tile_avx512(t, 4, narrow); break;
    case 3: tile_avx512(t, 3, narrow); break;
    case 2: tile_avx512(t, 2, narrow); break;
    default: tile_avx512(t, 1, narrow); break;
    }
}

static void gemm_f32_avx512(const cdr__tile *t) { tiles_avx512(t, false); }
static void gemm_f32_bf16_avx512(const cdr__tile *t) { tiles_avx512(t, true); }

static void a_f32_panels(const cdr__pack *s) { cdr__pack_a_panels_avx512(CDR_F32, PAIR, MR, s); }
static void a_f32_rows(const cdr__pack *s) { cdr__pack_a_rows_avx512(CDR_F32, PAIR, s); }
static void a_bf16_panels(const cdr__pack *s) { cdr__pack_a_panels_avx512(CDR_BF16, PAIR, MR, s); }
static void a_bf16_rows(const cdr__pack *s) { cdr__pack_a_rows_avx512(CDR_BF16, PAIR, s); }
static void b_f32_cols(const cdr__pack *s) { cdr__pack_b_avx512(CDR_F32, PAIR, NR, false, s); }
static void b_f32_k(const cdr__pack *s) { cdr__pack_b_avx512(CDR_F32, PAIR, NR, true, s); }
static void b_bf16_cols(const cdr__pack *s) { cdr__pack_b_avx512(CDR_BF16, PAIR, NR, false, s); }
static void b_bf16_k(const cdr__pack *s) { cdr__pack_b_avx512(CDR_BF16, PAIR, NR, true, s); }
static void finish_f32(const cdr__finish *f) { cdr__finish_body(CDR_F32, NR, f); }
static void finish_bf16(const cdr__finish *f) { cdr__finish_body(CDR_BF16, NR, f); }

const cdr__gemm_isa cdr__gemm_avx512 = {
    .name = "avx512", .mr = MR, .nr = NR, .mc = 240, .kc = 1024, .kc_min = 512, .kb = 128, .kb_in_place = 1024, .few = 240, .a_units = 128 * 1024,
    .pair = PAIR, .mac = 32, .step = 1, .layout = CDR_PANEL64,
    .pack_a = { { a_f32_panels, a_f32_rows }, { a_bf16_panels, a_bf16_rows } },
    .pack_b = { { b_f32_cols, b_f32_k }, { b_bf16_cols, b_bf16_k } },
    .kernel = gemm_f32_avx512, .kernel_widen = gemm_f32_bf16_avx512, .finish = { finish_f32, finish_bf16 },
};
