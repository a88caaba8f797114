/* bench_avx512.c: F32 FMA peak of AVX-512. */
#include "run/bench.h"
#include "run/bench_chains_avx512_simd.h"

#define FMA(c) c = _mm512_fmadd_ps(x, y, c);
static float fma_f32_avx512(int64_t rounds)
{
    /* volatile: no operand is known when it is compiled, and no two chains are equal to the compiler */
    const volatile float a = 1e-9f, b = 1.0f;
    const __m512 x = _mm512_set1_ps(a), y = _mm512_set1_ps(b);
    const volatile float zero = 0.0f;
    CHAINS(_mm512_set1_ps(zero));
    for (int64_t i = 0; i < rounds; i++) EACH_CHAIN(FMA)
    return SUM_OF_CHAINS;
}

const cdr__peak cdr__peak_avx512 = { "avx512", 24 * 16 * 2, fma_f32_avx512 };
