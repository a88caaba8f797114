/* bench_avx512_bf16.c: vdpbf16ps peak of AVX-512 BF16. */
#include "run/bench.h"
#include "run/bench_chains_avx512_simd.h"

#define DOT(c) c = _mm512_dpbf16_ps(c, x, y);
static float dot_bf16_avx512(int64_t rounds)
{
    /* volatile: no operand is known when it is compiled, and no two chains are equal to the compiler */
    const volatile int a = 0x30003000, b = 0x3f803f80;      /* pairs of 2^-31 and of 1 */
    const __m512bh x = (__m512bh)_mm512_set1_epi32(a), y = (__m512bh)_mm512_set1_epi32(b);
    const volatile float zero = 0.0f;
    CHAINS(_mm512_set1_ps(zero));
    for (int64_t i = 0; i < rounds; i++) EACH_CHAIN(DOT)
    return SUM_OF_CHAINS;
}

const cdr__peak cdr__peak_avx512_bf16 = { "avx512_bf16", 24 * 32 * 2, dot_bf16_avx512 };
