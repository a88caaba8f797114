/* cpu_avx2.c: AVX2 kernel of the matrix product. Numeric class "fma": acc = fma(a, b, acc), u ascending.
 *
 * Tile 6 x 16: 12 accumulators, 2 vectors of B, 1 or 2 broadcasts of A = 16 registers. A step along k is 12 FMA (6 cycles
 * at two a cycle) beside 2 loads and 6 broadcasts: bound by FMA. BF16 sources become F32 while they are packed.
 *
 * Measured on 2 cores of Zen 3 (AVX2 only) that other work shared, F32, GFLOP/s, best of short windows, oneDNN 2.6 timed in
 * turn with it; FMA peak 97.5 on one core, 195 on two:
 *   rows x columns x k    1 thread (share)   oneDNN    2 threads (share)   oneDNN
 *   2048 x 2048 x 2048    85.7 (88 %)        78.7      160.6 (82 %)        149.5
 *   4096 x 256 x 1024     87.9 (90 %)        69.8      165.7 (85 %)        117.7
 *   4096 x 1024 x 256     86.3 (88 %)        86.9      172   (88 %)        170.7
 *   512 x 512 x 512       89.0 (91 %)        84.4      166.9 (86 %)        165.4
 *   64 x 3072 x 3584      69.5 (71 %)        64.0      118   (60 %)        132
 *   16 x 3072 x 3584      42.5 (44 %)        38.9      65.5  (34 %)        82.5
 * The last two are bound by packing the weights. Beside a busy sibling thread of the core all fall to 60 to 65 %.
 * Tried: k unrolled by 4 (gcc 12 spills, 10 % slower); tile 4 x 24 (equal, worse on few rows); one prefetch in 4 units. */
#include "ops/linear/gemm_simd.h"

enum { MR = 6, NR = 16 };

/* The accumulators are 12 named variables: gcc 12 keeps an array of them in memory. rows is a constant where it is inlined. */
#define ROW(r, x, lo, hi) \
    if (rows > (r)) { \
        const __m256 a_ = _mm256_broadcast_ss(x); \
        lo = _mm256_fmadd_ps(a_, b0, lo); \
        hi = _mm256_fmadd_ps(a_, b1, hi); \
    }
#define LOAD(r, lo, hi) \
    if (rows > (r)) { \
        lo = _mm256_loadu_ps(t->c + (r) * t->ldc); \
        hi = _mm256_loadu_ps(t->c + (r) * t->ldc + 8); \
    }
#define STORE(r, lo, hi) \
    if (rows > (r)) { \
        _mm256_storeu_ps(t->c + (r) * t->ldc, lo); \
        _mm256_storeu_ps(t->c + (r) * t->ldc + 8, hi); \
    }

/* 8 BF16 as F32: each goes to the upper half of its lane. */
CDR__INLINE __m256 widen8(const uint16_t *p)
{
    const __m256i spread = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,
                                            -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(twice, spread));
}

/* narrow: B comes as BF16 and is left as F32 for the tiles that follow; two shuffles and two stores a step, which FMAs hide. */
CDR__INLINE void tile_avx2(const cdr__tile *t, const int rows, const bool narrow)
{
    const uint16_t *src = t->narrow;
    float *wide = (float *)(void *)t->wide;
    const float *b = (const float *)(const void *)t->b, *a = (const float *)(const void *)t->a;
    const int64_t row = t->a_row, row3 = 3 * row, col = t->a_col;
    const char *ahead = t->ahead;
    const __m256 zero = _mm256_setzero_ps();
    __m256 c00 = zero, c01 = zero, c10 = zero, c11 = zero, c20 = zero, c21 = zero;
    __m256 c30 = zero, c31 = zero, c40 = zero, c41 = zero, c50 = zero, c51 = zero;
    if (!t->first) {
        LOAD(0, c00, c01) LOAD(1, c10, c11) LOAD(2, c20, c21) LOAD(3, c30, c31) LOAD(4, c40, c41) LOAD(5, c50, c51)
    }
    for (int64_t u = t->k; u > 0; u--) {
        const __m256 b0 = narrow ? widen8(src) : _mm256_load_ps(b), b1 = narrow ? widen8(src + 8) : _mm256_load_ps(b + 8);
        if (narrow) {
            _mm256_store_ps(wide, b0);
            _mm256_store_ps(wide + 8, b1);
            src += NR;
            wide += NR;
        }
        const float *a3 = a + row3;
        ROW(0, a, c00, c01) ROW(1, a + row, c10, c11) ROW(2, a + 2 * row, c20, c21)
        ROW(3, a3, c30, c31) ROW(4, a3 + row, c40, c41) ROW(5, a3 + 2 * row, c50, c51)
        _mm_prefetch(ahead, _MM_HINT_T1);
        ahead += 64;
        a += col;
        b += NR;
    }
    STORE(0, c00, c01) STORE(1, c10, c11) STORE(2, c20, c21) STORE(3, c30, c31) STORE(4, c40, c41) STORE(5, c50, c51)
}

CDR__INLINE void tiles_avx2(const cdr__tile *t, const bool narrow)
{
    switch (t->rows) {
    case 6: tile_avx2(t, 6, narrow); break;
    case 5: tile_avx2(t, 5, narrow); break;
    case 4: tile_avx2(t, 4, narrow); break;
    case 3: tile_avx2(t, 3, narrow); break;
    case 2: tile_avx2(t, 2, narrow); break;
    default: tile_avx2(t, 1, narrow); break;
    }
}

static void gemm_f32_avx2(const cdr__tile *t) { tiles_avx2(t, false); }
static void gemm_f32_bf16_avx2(const cdr__tile *t) { tiles_avx2(t, true); }

CDR__INLINE __m256 load8(int dtype, const void *p, int64_t i)
{
    if (dtype == CDR_F32) return _mm256_loadu_ps((const float *)p + i);
    const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

/* Stores 8 where 6 are wanted: the next unit's store mends the excess, so the last unit of a panel goes element by element. */
CDR__INLINE void pack_a_panels(int dtype, const cdr__pack *s)
{
    for (int64_t u0 = 0; u0 < s->n_p; u0 += CDR__PACK_UNITS)
        for (int64_t i = 0; i < s->n_i; i += MR) {
            const int64_t u1 = CDR_MIN(u0 + CDR__PACK_UNITS, s->n_p);
            int64_t u = u0;
            if (s->n_i - i >= 8)
                for (; u < CDR_MIN(u1, s->n_p - 1); u++)
                    _mm256_storeu_ps((float *)(void *)s->dst + i * s->n_p + u * MR, load8(dtype, s->src, i + u * s->pitch));
            cdr__pack_a_part(dtype, 1, MR, s, i, u, u1);
        }
}

CDR__INLINE void pack_b(int dtype, bool k_contig, const cdr__pack *s)
{
    const int64_t block = k_contig ? CDR_MAX(s->n_p, 1) : CDR__PACK_UNITS;
    for (int64_t u0 = 0; u0 < s->n_p; u0 += block)
        for (int64_t i = 0; i < s->n_i; i += NR) {
            const int64_t u1 = CDR_MIN(u0 + block, s->n_p);
            float *d = (float *)(void *)(s->dst + i / NR * s->ld);
            int64_t u = u0;
            if (s->n_i - i >= NR && k_contig)
                for (; u + 8 <= u1; u += 8)
                    for (int64_t h = 0; h < NR; h += 8) {
                        __m256 x[8], y[8];
                        for (int64_t l = 0; l < 8; l++) x[l] = load8(dtype, s->src, (i + h + l) * s->pitch + u);
                        cdr__transpose8(x, y);
                        for (int64_t l = 0; l < 8; l++) _mm256_store_ps(d + (u + l) * NR + h, y[l]);
                    }
            else if (s->n_i - i >= NR)
                for (; u < u1; u++) {
                    _mm256_store_ps(d + u * NR, load8(dtype, s->src, u * s->pitch + i));
                    _mm256_store_ps(d + u * NR + 8, load8(dtype, s->src, u * s->pitch + i + 8));
                }
            cdr__pack_b_part(dtype, 1, NR, k_contig, s, i, u, u1);
        }
}

static void a_f32_panels(const cdr__pack *s) { pack_a_panels(CDR_F32, s); }
static void a_f32_rows(const cdr__pack *s) { cdr__pack_a_rows(CDR_F32, 1, s); }
static void a_bf16_panels(const cdr__pack *s) { pack_a_panels(CDR_BF16, s); }
static void a_bf16_rows(const cdr__pack *s) { cdr__pack_a_rows(CDR_BF16, 1, s); }
static void b_f32_cols(const cdr__pack *s) { pack_b(CDR_F32, false, s); }
static void b_f32_k(const cdr__pack *s) { pack_b(CDR_F32, true, s); }
static void b_bf16_cols(const cdr__pack *s) { pack_b(CDR_BF16, false, s); }
static void b_bf16_k(const cdr__pack *s) { pack_b(CDR_BF16, true, s); }
static void finish_f32(const cdr__finish *f) { cdr__finish_body(CDR_F32, NR, f); }
static void finish_bf16(const cdr__finish *f) { cdr__finish_body(CDR_BF16, NR, f); }

const cdr__gemm_isa cdr__gemm_avx2 = {
    .name = "avx2", .mr = MR, .nr = NR, .mc = 144, .kc = 2048, .kc_min = 512, .kb = 256, .few = 144, .a_units = 96 * 1024,
    .pair = 1, .step = 1, .layout = CDR_PANEL16,
    .pack_a = { { a_f32_panels, a_f32_rows }, { a_bf16_panels, a_bf16_rows } },
    .pack_b = { { b_f32_cols, b_f32_k }, { b_bf16_cols, b_bf16_k } },
    .kernel = gemm_f32_avx2, .kernel_widen = gemm_f32_bf16_avx2, .finish = { finish_f32, finish_bf16 },
};
