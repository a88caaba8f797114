/* bench_avx2.c: F32 FMA peak of AVX2. 12 chains: two units of latency 4 need 8. */
#include "run/bench.h"
#include <immintrin.h>

static float fma_f32_avx2(int64_t rounds)
{
    /* named registers: gcc 12 keeps an array of accumulators in memory. volatile: no operand is known when it is
     * compiled, and no two chains are equal to the compiler */
    const volatile float a = 1e-9f, b = 1.0f;
    const __m256 x = _mm256_set1_ps(a), y = _mm256_set1_ps(b);
    const volatile float zero = 0.0f;
    __m256 c0 = _mm256_set1_ps(zero), c1 = _mm256_set1_ps(zero), c2 = _mm256_set1_ps(zero);
    __m256 c3 = _mm256_set1_ps(zero), c4 = _mm256_set1_ps(zero), c5 = _mm256_set1_ps(zero);
    __m256 c6 = _mm256_set1_ps(zero), c7 = _mm256_set1_ps(zero), c8 = _mm256_set1_ps(zero);
    __m256 c9 = _mm256_set1_ps(zero), c10 = _mm256_set1_ps(zero), c11 = _mm256_set1_ps(zero);
    for (int64_t i = 0; i < rounds; i++) {
        c0 = _mm256_fmadd_ps(x, y, c0);
        c1 = _mm256_fmadd_ps(x, y, c1);
        c2 = _mm256_fmadd_ps(x, y, c2);
        c3 = _mm256_fmadd_ps(x, y, c3);
        c4 = _mm256_fmadd_ps(x, y, c4);
        c5 = _mm256_fmadd_ps(x, y, c5);
        c6 = _mm256_fmadd_ps(x, y, c6);
        c7 = _mm256_fmadd_ps(x, y, c7);
        c8 = _mm256_fmadd_ps(x, y, c8);
        c9 = _mm256_fmadd_ps(x, y, c9);
        c10 = _mm256_fmadd_ps(x, y, c10);
        c11 = _mm256_fmadd_ps(x, y, c11);
    }
    const __m256 s0 = _mm256_add_ps(_mm256_add_ps(c0, c1), _mm256_add_ps(c2, c3)), s1 = _mm256_add_ps(_mm256_add_ps(c4, c5), _mm256_add_ps(c6, c7));
    const __m256 s = _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(_mm256_add_ps(c8, c9), _mm256_add_ps(c10, c11)));
    return _mm256_cvtss_f32(s);
}

const cdr__peak cdr__peak_avx2 = { "avx2", 12 * 8 * 2, fma_f32_avx2 };
