/* bench_avx512.c: F32 FMA peak of AVX-512. 24 chains, as in the matrix product: two units of latency 4 to 6
 * need 12. */
#include "run/bench.h"
#include <immintrin.h>

static float fma_f32_avx512(int64_t rounds)
{
    /* named registers: gcc 12 keeps an array of accumulators in memory. volatile: no operand is known when it is
     * compiled, and no two chains are equal to the compiler */
    const volatile float a = 1e-9f, b = 1.0f;
    const __m512 x = _mm512_set1_ps(a), y = _mm512_set1_ps(b);
    const volatile float zero = 0.0f;
    __m512 c0 = _mm512_set1_ps(zero), c1 = _mm512_set1_ps(zero), c2 = _mm512_set1_ps(zero);
    __m512 c3 = _mm512_set1_ps(zero), c4 = _mm512_set1_ps(zero), c5 = _mm512_set1_ps(zero);
    __m512 c6 = _mm512_set1_ps(zero), c7 = _mm512_set1_ps(zero), c8 = _mm512_set1_ps(zero);
    __m512 c9 = _mm512_set1_ps(zero), c10 = _mm512_set1_ps(zero), c11 = _mm512_set1_ps(zero);
    __m512 c12 = _mm512_set1_ps(zero), c13 = _mm512_set1_ps(zero), c14 = _mm512_set1_ps(zero);
    __m512 c15 = _mm512_set1_ps(zero), c16 = _mm512_set1_ps(zero), c17 = _mm512_set1_ps(zero);
    __m512 c18 = _mm512_set1_ps(zero), c19 = _mm512_set1_ps(zero), c20 = _mm512_set1_ps(zero);
    __m512 c21 = _mm512_set1_ps(zero), c22 = _mm512_set1_ps(zero), c23 = _mm512_set1_ps(zero);
    for (int64_t i = 0; i < rounds; i++) {
        c0 = _mm512_fmadd_ps(x, y, c0);
        c1 = _mm512_fmadd_ps(x, y, c1);
        c2 = _mm512_fmadd_ps(x, y, c2);
        c3 = _mm512_fmadd_ps(x, y, c3);
        c4 = _mm512_fmadd_ps(x, y, c4);
        c5 = _mm512_fmadd_ps(x, y, c5);
        c6 = _mm512_fmadd_ps(x, y, c6);
        c7 = _mm512_fmadd_ps(x, y, c7);
        c8 = _mm512_fmadd_ps(x, y, c8);
        c9 = _mm512_fmadd_ps(x, y, c9);
        c10 = _mm512_fmadd_ps(x, y, c10);
        c11 = _mm512_fmadd_ps(x, y, c11);
        c12 = _mm512_fmadd_ps(x, y, c12);
        c13 = _mm512_fmadd_ps(x, y, c13);
        c14 = _mm512_fmadd_ps(x, y, c14);
        c15 = _mm512_fmadd_ps(x, y, c15);
        c16 = _mm512_fmadd_ps(x, y, c16);
        c17 = _mm512_fmadd_ps(x, y, c17);
        c18 = _mm512_fmadd_ps(x, y, c18);
        c19 = _mm512_fmadd_ps(x, y, c19);
        c20 = _mm512_fmadd_ps(x, y, c20);
        c21 = _mm512_fmadd_ps(x, y, c21);
        c22 = _mm512_fmadd_ps(x, y, c22);
        c23 = _mm512_fmadd_ps(x, y, c23);
    }
    c0 = _mm512_add_ps(_mm512_add_ps(c0, c1), _mm512_add_ps(c2, c3));
    c4 = _mm512_add_ps(_mm512_add_ps(c4, c5), _mm512_add_ps(c6, c7));
    c8 = _mm512_add_ps(_mm512_add_ps(c8, c9), _mm512_add_ps(c10, c11));
    c12 = _mm512_add_ps(_mm512_add_ps(c12, c13), _mm512_add_ps(c14, c15));
    c16 = _mm512_add_ps(_mm512_add_ps(c16, c17), _mm512_add_ps(c18, c19));
    c20 = _mm512_add_ps(_mm512_add_ps(c20, c21), _mm512_add_ps(c22, c23));
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(_mm512_add_ps(c0, c4), _mm512_add_ps(c8, c12)), _mm512_add_ps(c16, c20)));
}

const cdr__peak cdr__peak_avx512 = { "avx512", 24 * 16 * 2, fma_f32_avx512 };
