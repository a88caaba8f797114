/* vf_avx512_simd.h: the vector of attention's and kda's AVX-512 kernels; vf_avx2_simd.h has the same for AVX2. */
#ifndef CDR_OPS_VF_AVX512_SIMD_H
#define CDR_OPS_VF_AVX512_SIMD_H
#include "base/base.h"
#include <immintrin.h>

enum { V_LANES = 16 };
typedef __m512 vf;

static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }      /* c - a b */
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }      /* b where either is NaN */
static inline vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf v_round(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* 2^n of integers -127 .. 128: 0 and infinity at the ends */
static inline vf v_pow2(vf n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
/* x in the first n lanes, `rest` in the others; n may be any number */
static inline vf v_first(vf x, int64_t n, vf rest)
{
    if (n >= V_LANES) return x;
    return _mm512_mask_mov_ps(rest, (__mmask16)((1u << (n > 0 ? n : 0)) - 1u), x);
}
/* yes in the lanes of the set bits, else no */
static inline vf v_pick(uint32_t bits, vf yes, vf no) { return _mm512_mask_mov_ps(no, (__mmask16)bits, yes); }
static inline float v_hmax(vf x) { return _mm512_reduce_max_ps(x); }
/* sum of sixteen lanes as a tree: 8, 4, 2, 1 apart */
static inline float v_hsum16(const vf x[1])
{
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x[0]), _mm512_extractf32x8_ps(x[0], 1));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
#endif
