/* kda with AVX-512: the vector of gemm.inc; the same bits as AVX2. */
#include "base/base.h"
#include <immintrin.h>

#define V_LANES 16
#define MAX_NV 4
typedef __m512 vf;
static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }

#include "ops/kda/sweep.inc"

cdr_status cdr__kda_fwd_avx512(const cdr_args *a) { return fwd(a); }
cdr_status cdr__kda_bwd_avx512(const cdr_args *a) { return bwd(a); }
