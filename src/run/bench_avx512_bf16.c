/* bench_avx512_bf16.c: vdpbf16ps peak of AVX-512 BF16. 24 chains, as in the matrix product: two units of latency 4 to 6
 * need 12. */
#include "run/bench.h"
#include <immintrin.h>

static float dot_bf16_avx512(int64_t rounds)
{
    /* named registers: gcc 12 keeps an array of accumulators in memory. volatile: no operand is known when it is
     * compiled, and no two chains are equal to the compiler */
    const volatile int a = 0x30003000, b = 0x3f803f80;      /* pairs of 2^-31 and of 1 */
    const __m512bh x = (__m512bh)_mm512_set1_epi32(a), y = (__m512bh)_mm512_set1_epi32(b);
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
        c0 = _mm512_dpbf16_ps(c0, x, y);
        c1 = _mm512_dpbf16_ps(c1, x, y);
        c2 = _mm512_dpbf16_ps(c2, x, y);
        c3 = _mm512_dpbf16_ps(c3, x, y);
        c4 = _mm512_dpbf16_ps(c4, x, y);
        c5 = _mm512_dpbf16_ps(c5, x, y);
        c6 = _mm512_dpbf16_ps(c6, x, y);
        c7 = _mm512_dpbf16_ps(c7, x, y);
        c8 = _mm512_dpbf16_ps(c8, x, y);
        c9 = _mm512_dpbf16_ps(c9, x, y);
        c10 = _mm512_dpbf16_ps(c10, x, y);
        c11 = _mm512_dpbf16_ps(c11, x, y);
        c12 = _mm512_dpbf16_ps(c12, x, y);
        c13 = _mm512_dpbf16_ps(c13, x, y);
        c14 = _mm512_dpbf16_ps(c14, x, y);
        c15 = _mm512_dpbf16_ps(c15, x, y);
        c16 = _mm512_dpbf16_ps(c16, x, y);
        c17 = _mm512_dpbf16_ps(c17, x, y);
        c18 = _mm512_dpbf16_ps(c18, x, y);
        c19 = _mm512_dpbf16_ps(c19, x, y);
        c20 = _mm512_dpbf16_ps(c20, x, y);
        c21 = _mm512_dpbf16_ps(c21, x, y);
        c22 = _mm512_dpbf16_ps(c22, x, y);
        c23 = _mm512_dpbf16_ps(c23, x, y);
    }
    c0 = _mm512_add_ps(_mm512_add_ps(c0, c1), _mm512_add_ps(c2, c3));
    c4 = _mm512_add_ps(_mm512_add_ps(c4, c5), _mm512_add_ps(c6, c7));
    c8 = _mm512_add_ps(_mm512_add_ps(c8, c9), _mm512_add_ps(c10, c11));
    c12 = _mm512_add_ps(_mm512_add_ps(c12, c13), _mm512_add_ps(c14, c15));
    c16 = _mm512_add_ps(_mm512_add_ps(c16, c17), _mm512_add_ps(c18, c19));
    c20 = _mm512_add_ps(_mm512_add_ps(c20, c21), _mm512_add_ps(c22, c23));
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(_mm512_add_ps(c0, c4), _mm512_add_ps(c8, c12)), _mm512_add_ps(c16, c20)));
}

const cdr__peak cdr__peak_avx512_bf16 = { "avx512_bf16", 24 * 32 * 2, dot_bf16_avx512 };
