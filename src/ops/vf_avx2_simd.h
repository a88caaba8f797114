/* vf_avx2_simd.h: the vector of attention's and kda's AVX2 kernels.
 *
 *   for (int64_t j = 0; j < n; j += V_LANES) v_store(y + j, v_fma(v_set(a), v_load(x + j), v_load(y + j)));
 */
#ifndef CDR_OPS_VF_AVX2_SIMD_H
#define CDR_OPS_VF_AVX2_SIMD_H
#include "base/base.h"
#include <immintrin.h>

enum { V_LANES = 8 };
typedef __m256 vf;

static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }      /* c - a b */
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }      /* b where either is NaN */
static inline vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf v_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* 2^n of integers -127 .. 128: 0 and infinity at the ends */
static inline vf v_pow2(vf n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
/* x in the first n lanes, `rest` in the others; n may be any number */
static inline vf v_first(vf x, int64_t n, vf rest)
{
    if (n >= V_LANES) return x;
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(rest, x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n > 0 ? n : 0)), lane)));
}
/* yes in the lanes of the set bits, else no */
static inline vf v_pick(uint32_t bits, vf yes, vf no)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)(bits & 255u)), lane), lane);
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(set));
}
static inline float v_hmax(vf x)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
/* sum of sixteen lanes as a tree: 8, 4, 2, 1 apart */
static inline float v_hsum16(const vf x[2])
{
    vf s = _mm256_add_ps(x[0], x[1]);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
#endif
