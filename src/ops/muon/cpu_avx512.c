/* cpu_avx512.c: the iteration for small matrices with AVX-512: tiles of 12 x 16. */
#include "ops/linear/gemm_simd.h"
#include "ops/muon/muon.h"
#include "ops/muon/small.h"

#define MU_INLINE CDR__INLINE
#define LANES 16
#define CDR__MU_NV 1
#define CDR__MU_NAME cdr__muon_small_avx512
typedef __m512 vec;
MU_INLINE vec vzero(void) { return _mm512_setzero_ps(); }
MU_INLINE vec vget(const float *p) { return _mm512_load_ps(p); }
MU_INLINE vec vset(const float *p) { return _mm512_set1_ps(*p); }
MU_INLINE void vput(float *p, vec x) { _mm512_store_ps(p, x); }
MU_INLINE vec vmul(vec x, vec y) { return _mm512_mul_ps(x, y); }
MU_INLINE vec vfma(vec x, vec y, vec z) { return _mm512_fmadd_ps(x, y, z); }

#include "ops/muon/small.inc"
