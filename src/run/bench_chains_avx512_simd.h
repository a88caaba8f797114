/* bench_chains_avx512_simd.h: 24 chains, as in the matrix product: two units of latency 4 to 6 need 12. Named registers: gcc 12 keeps an array of
 * accumulators in memory.
 *
 *   const volatile float zero = 0.0f;
 *   CHAINS(_mm512_set1_ps(zero));
 *   for (int64_t i = 0; i < rounds; i++) EACH_CHAIN(FMA)              // #define FMA(c) c = _mm512_fmadd_ps(x, y, c);
 *   return SUM_OF_CHAINS;
 */
#ifndef CDR_RUN_BENCH_CHAINS_AVX512_SIMD_H
#define CDR_RUN_BENCH_CHAINS_AVX512_SIMD_H
#include <immintrin.h>

#define CHAINS(z) \
    __m512 c0 = z, c1 = z, c2 = z, c3 = z, c4 = z, c5 = z, c6 = z, c7 = z, c8 = z, c9 = z, c10 = z, c11 = z; \
    __m512 c12 = z, c13 = z, c14 = z, c15 = z, c16 = z, c17 = z, c18 = z, c19 = z, c20 = z, c21 = z, c22 = z, c23 = z
#define EACH_CHAIN(DO) { \
    DO(c0) DO(c1) DO(c2) DO(c3) DO(c4) DO(c5) DO(c6) DO(c7) DO(c8) DO(c9) DO(c10) DO(c11) \
    DO(c12) DO(c13) DO(c14) DO(c15) DO(c16) DO(c17) DO(c18) DO(c19) DO(c20) DO(c21) DO(c22) DO(c23) }
#define SUM_4(a, b, c, d) _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d))
#define SUM_OF_CHAINS _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps( \
    _mm512_add_ps(SUM_4(c0, c1, c2, c3), SUM_4(c4, c5, c6, c7)), _mm512_add_ps(SUM_4(c8, c9, c10, c11), SUM_4(c12, c13, c14, c15))), \
    _mm512_add_ps(SUM_4(c16, c17, c18, c19), SUM_4(c20, c21, c22, c23))))
#endif
