/* kda with AVX2: the vector of gemm.inc. Tile 4 x 16: 8 accumulators, as many as two FMA a cycle of latency 4 need. */
#include "base/base.h"
#include <immintrin.h>

#define V_LANES 8
typedef __m256 vf;
static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }

#include "ops/kda/sweep.inc"

cdr_status cdr__kda_fwd_avx2(const cdr_args *a) { return fwd(a); }
cdr_status cdr__kda_bwd_avx2(const cdr_args *a) { return bwd(a); }
