/* cpu_avx2.c: AVX2 kernel of the matrix product. Numeric class "fma": acc = fma(a, b, acc), u ascending.
 *
 * Tile 6 x 16: 12 accumulators, 2 vectors of B, 1 or 2 broadcasts of A = 16 registers. A step along k is 12 FMA (6 cycles
 * at two a cycle) beside 2 loads and 6 broadcasts: bound by FMA. BF16 sources become F32 while they are packed.
 *
 * Floor: 2 m n k at two FMAs a cycle (97.5 GFLOP/s a core of Zen 3, 195 on two); few rows: the bytes of B at 17.6 GB/s on two cores.
 * Measured on Zen 3, best of short windows, rows x columns x k, one thread unless it says two:
 *   the kernel alone, its operands in L2                     94.5 GFLOP/s (97 %); in pieces of 512, 256: 92, 88.5 (a call costs 100 cycles)
 *   512 x 256 x 256 F32                                      93.7         (96 %)
 *   16 x 512 x 3584, 64 x 256 x 3584, BF16 PANEL16           89, 82.5     (91, 85 %)
 *   16 x 512 x 3584, BF16 rows, packed piece by piece        69           (71 %)
 *   1 x 3072 x 3584, BF16 rows, two threads                  17.8 GB/s    (101 % of reading memory, some of it from L3)
 *   1024 x 256 x 4096 F32, both operands transposed, two     122          (63 %)
 *   2048 x 2048 x 2048 F32, two                              161          (83 %)
 * Lost there: packing A^T (1.6 elements a ns where rows are 8 KiB apart) and packing B (4.8, BF16 7).
 * Tried: k unrolled by 4 (gcc 12 spills, 10 % slower); tile 4 x 24 (equal, worse on few rows); one prefetch in 4 units; packing F32 rows
 * of A that are dense already (equal in the kernel, 2 to 5 % slower in all); 4 to 16 units at a time, or stores that do not overlap, in
 * packing A^T (equal). */
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
        lo = _mm256_loadu_ps(old + (r) * ldo); \
        hi = _mm256_loadu_ps(old + (r) * ldo + 8); \
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
    const float *old = t->old ? t->old : t->c;
    const int64_t ldo = t->old ? NR : t->ldc;
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
CDR__INLINE void pack_a_panels(int dtype, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    for (int64_t u0 = 0; u0 < s->n_p; u0 += CDR__PACK_UNITS)
        for (int64_t i = 0; i < s->n_i; i += MR) {
            const int64_t u1 = CDR_MIN(u0 + CDR__PACK_UNITS, s->n_p);
            int64_t u = u0;
            if (s->n_i - i >= 8)
                for (; u < CDR_MIN(u1, s->n_p - 1); u++)
                    _mm256_storeu_ps((float *)(void *)s->dst + i * s->ld + u * MR, load8(dtype, s->src, i + u * s->pitch));
            cdr__pack_a_part(dtype, 1, MR, s, i, u, u1);
        }
}

/* Lanes 0 .. 3 of each half: x[l] of rows l and l + 4 becomes y[p] of k = p, for 8 rows. */
CDR__INLINE void transpose4(const __m256 x[4], __m256 y[4])
{
    const __m256 t0 = _mm256_unpacklo_ps(x[0], x[1]), t1 = _mm256_unpackhi_ps(x[0], x[1]);
    const __m256 t2 = _mm256_unpacklo_ps(x[2], x[3]), t3 = _mm256_unpackhi_ps(x[2], x[3]);
    y[0] = _mm256_shuffle_ps(t0, t2, 0x44);
    y[1] = _mm256_shuffle_ps(t0, t2, 0xee);
    y[2] = _mm256_shuffle_ps(t1, t3, 0x44);
    y[3] = _mm256_shuffle_ps(t1, t3, 0xee);
}

CDR__INLINE __m256i two_halves(const void *low, const void *high)      /* 16 bytes each */
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)), _mm_loadu_si128((const __m128i *)high), 1);
}

/* 16 columns, a line (16) along k, to d[16][16]: k runs along a row of the source. 8 rows at a time: where they are a multiple of 4 KiB
 * apart, all lie in one set of L1, which holds 8 lines. */
CDR__INLINE void pack_f32_line(const float *x, int64_t pitch, float *d)
{
    for (int h = 0; h < NR; h += 8)
        for (int q = 0; q < 16; q += 4) {
            __m256 r[4], y[4];
            for (int l = 0; l < 4; l++) r[l] = _mm256_castsi256_ps(two_halves(x + (h + l) * pitch + q, x + (h + l + 4) * pitch + q));
            transpose4(r, y);
            for (int l = 0; l < 4; l++) _mm256_store_ps(d + (q + l) * NR + h, y[l]);
        }
}

/* Columns j and j + 8 share a lane, so that after the transpose a shift and a mask widen them, 24 shuffles for 128 elements. */
CDR__INLINE void pack_bf16_16x8(const uint16_t *x, int64_t pitch, float *d)
{
    __m256 lo[4], hi[4], y[8];
    for (int l = 0; l < 4; l++) {
        const __m256i a = two_halves(x + l * pitch, x + (l + 4) * pitch), b = two_halves(x + (l + 8) * pitch, x + (l + 12) * pitch);
        lo[l] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(a, b));
        hi[l] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(a, b));
    }
    transpose4(lo, y);
    transpose4(hi, y + 4);
    for (int l = 0; l < 8; l++) {
        const __m256i both = _mm256_castps_si256(y[l]);
        _mm256_store_si256((__m256i *)(void *)(d + l * NR), _mm256_slli_epi32(both, 16));
        _mm256_store_si256((__m256i *)(void *)(d + l * NR + 8), _mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
    }
}

/* A line (32) along k. The 16 lines are copied first, so that each is visited once, whichever sets they lie in. */
CDR__INLINE void pack_bf16_line(const uint16_t *x, int64_t pitch, float *d)
{
    _Alignas(64) uint16_t line[NR][32];
    for (int l = 0; l < NR; l++)
        for (int h = 0; h < 32; h += 16)
            _mm256_store_si256((__m256i *)(void *)&line[l][h], _mm256_loadu_si256((const __m256i *)(const void *)(x + l * pitch + h)));
    for (int q = 0; q < 32; q += 8) pack_bf16_16x8(&line[0][q], 32, d + q * NR);
}

/* Whole lines of a whole panel; returns how many units. Each line of the source is asked for AHEAD bytes early: a panel walks
 * 16 rows at once, more than the hardware's prefetchers follow. */
CDR__INLINE int64_t pack_b_along(int dtype, const char *src, int64_t pitch, int64_t n, float *d)
{
    enum { AHEAD = 512 };
    const int64_t size = dtype == CDR_F32 ? 4 : 2, line = 64 / size;
    int64_t u = 0;
    for (; u + line <= n; u += line) {
        const void *x = src + u * size;
        for (int64_t l = 0; l < NR; l++) _mm_prefetch(src + (l * pitch + u) * size + AHEAD, _MM_HINT_T0);
        if (dtype == CDR_F32) pack_f32_line((const float *)x, pitch, d + u * NR);
        else pack_bf16_line((const uint16_t *)x, pitch, d + u * NR);
    }
    return u;
}

CDR__INLINE void pack_b(int dtype, bool k_contig, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t block = k_contig ? CDR_MAX(s->n_p, 1) : CDR__PACK_UNITS;
    for (int64_t u0 = 0; u0 < s->n_p; u0 += block)
        for (int64_t i = 0; i < s->n_i; i += NR) {
            const int64_t u1 = CDR_MIN(u0 + block, s->n_p);
            float *d = (float *)(void *)(s->dst + i / NR * s->ld);
            int64_t u = u0;
            if (s->n_i - i >= NR && k_contig)
                u = pack_b_along(dtype, (const char *)s->src + cdr_dtype_bytes(dtype, i * s->pitch), s->pitch, s->n_p, d);
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
    .name = "avx2", .mr = MR, .nr = NR, .mc = 144, .kc = 2048, .kc_min = 512, .kb = 512, .kb_in_place = 2048, .few = 144, .a_units = 96 * 1024,
    .pair = 1, .mac = 16, .step = 1, .layout = CDR_PANEL16,
    .pack_a = { { a_f32_panels, a_f32_rows }, { a_bf16_panels, a_bf16_rows } },
    .pack_b = { { b_f32_cols, b_f32_k }, { b_bf16_cols, b_bf16_k } },
    .kernel = gemm_f32_avx2, .kernel_widen = gemm_f32_bf16_avx2, .finish = { finish_f32, finish_bf16 },
};
