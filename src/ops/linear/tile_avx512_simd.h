/* tile_avx512_simd.h: the 24 accumulators of a tile of 6 x 64, cRV of row R and vector V, and their way from and to memory. Named variables: gcc 12
 * keeps an array of them in memory. The body has rows (a constant where it is inlined), t, old and ldo; ROW is the caller's step.
 *
 *   ACCUMULATORS;
 *   if (!t->first) EACH_ROW(LOAD)
 *   for (...) STEP_ROWS(a, row)
 *   EACH_ROW(STORE)
 */
#ifndef CDR_OPS_LINEAR_TILE_AVX512_SIMD_H
#define CDR_OPS_LINEAR_TILE_AVX512_SIMD_H
#include <immintrin.h>

#define LOAD(r, c0, c1, c2, c3) \
    if (rows > (r)) { \
        c0 = _mm512_loadu_ps(old + (r) * ldo); \
        c1 = _mm512_loadu_ps(old + (r) * ldo + 16); \
        c2 = _mm512_loadu_ps(old + (r) * ldo + 32); \
        c3 = _mm512_loadu_ps(old + (r) * ldo + 48); \
    }
#define STORE(r, c0, c1, c2, c3) \
    if (rows > (r)) { \
        _mm512_storeu_ps(t->c + (r) * t->ldc, c0); \
        _mm512_storeu_ps(t->c + (r) * t->ldc + 16, c1); \
        _mm512_storeu_ps(t->c + (r) * t->ldc + 32, c2); \
        _mm512_storeu_ps(t->c + (r) * t->ldc + 48, c3); \
    }
#define ACCUMULATORS \
    const __m512 z = _mm512_setzero_ps(); \
    __m512 c00 = z, c01 = z, c02 = z, c03 = z, c10 = z, c11 = z, c12 = z, c13 = z, c20 = z, c21 = z, c22 = z, c23 = z; \
    __m512 c30 = z, c31 = z, c32 = z, c33 = z, c40 = z, c41 = z, c42 = z, c43 = z, c50 = z, c51 = z, c52 = z, c53 = z
#define EACH_ROW(DO) { \
    DO(0, c00, c01, c02, c03) DO(1, c10, c11, c12, c13) DO(2, c20, c21, c22, c23) \
    DO(3, c30, c31, c32, c33) DO(4, c40, c41, c42, c43) DO(5, c50, c51, c52, c53) }
/* a: of row 0; row: from one to the next; a3 = a + 3 row */
#define STEP_ROWS(a, row) \
    ROW(0, a, c00, c01, c02, c03) ROW(1, a + (row), c10, c11, c12, c13) ROW(2, a + 2 * (row), c20, c21, c22, c23) \
    ROW(3, a3, c30, c31, c32, c33) ROW(4, a3 + (row), c40, c41, c42, c43) ROW(5, a3 + 2 * (row), c50, c51, c52, c53)
#endif
