/* cpu_avx2.c: the iteration for small matrices with AVX2: tiles of 6 x 16. */
#include "ops/linear/gemm_simd.h"
#include "ops/muon/muon.h"
#include "ops/muon/small.h"

#define MU_INLINE CDR__INLINE
#define LANES 8
#define CDR__MU_NV 2
#define CDR__MU_NAME cdr__muon_small_avx2
typedef __m256 vec;
MU_INLINE vec vzero(void) { return _mm256_setzero_ps(); }
MU_INLINE vec vget(const float *p) { return _mm256_load_ps(p); }
MU_INLINE vec vset(const float *p) { return _mm256_broadcast_ss(p); }
MU_INLINE void vput(float *p, vec x) { _mm256_store_ps(p, x); }
MU_INLINE vec vmul(vec x, vec y) { return _mm256_mul_ps(x, y); }
MU_INLINE vec vfma(vec x, vec y, vec z) { return _mm256_fmadd_ps(x, y, z); }

#include "ops/muon/small.inc"
