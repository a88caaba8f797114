/* attention with AVX2: the vector and the register tile of attention_simd.h.
 * Tile 6 x 16: 12 accumulators, 2 vectors of B, a broadcast of A = 15 registers; a step is 12 FMA (6 cycles at two a cycle)
 * beside 2 loads and 6 broadcasts (4 cycles). */
#include "base/base.h"
#include <immintrin.h>

enum { V_LANES = 8, MR = 6, NV = 2 };
typedef __m256 vf;

static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
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

/* The accumulators are named: gcc 12 moves an array of them through the stack before and after the loop. */
#define FIRST(lo, hi, row) vf lo = add ? v_load(c + (row) * c_row) : v_set(0.0f), hi = add ? v_load(c + (row) * c_row + V_LANES) : v_set(0.0f);
#define STEP(lo, hi, at) { vf x = v_set(*(at)); lo = v_fma(x, b0, lo); hi = v_fma(x, b1, hi); }
#define LAST(lo, hi, row) v_store(c + (row) * c_row, lo); v_store(c + (row) * c_row + V_LANES, hi);

/* C[MR][NB] (+)= sum over k of a[i * a_row + k * a_k] b[k * b_row + j], ascending k */
static inline __attribute__((always_inline)) void tile(int64_t k, const float *CDR_RESTRICT a, int64_t a_row, int64_t a_k,
                                                       const float *CDR_RESTRICT b, int64_t b_row, float *CDR_RESTRICT c, int64_t c_row, bool add)
{
    FIRST(ca0, ca1, 0) FIRST(cb0, cb1, 1) FIRST(cc0, cc1, 2)
    FIRST(cd0, cd1, 3) FIRST(ce0, ce1, 4) FIRST(cf0, cf1, 5)
    for (; k > 0; k--, a += a_k, b += b_row) {
        const vf b0 = v_load(b), b1 = v_load(b + V_LANES);
        const float *a3 = a + 3 * a_row;
        STEP(ca0, ca1, a) STEP(cb0, cb1, a + a_row) STEP(cc0, cc1, a + 2 * a_row)
        STEP(cd0, cd1, a3) STEP(ce0, ce1, a3 + a_row) STEP(cf0, cf1, a3 + 2 * a_row)
    }
    LAST(ca0, ca1, 0) LAST(cb0, cb1, 1) LAST(cc0, cc1, 2)
    LAST(cd0, cd1, 3) LAST(ce0, ce1, 4) LAST(cf0, cf1, 5)
}

#include "ops/attention/attention_simd.h"

cdr_status cdr__attention_fwd_avx2(const cdr_args *a) { return fwd(a); }
cdr_status cdr__attention_bwd_avx2(const cdr_args *a) { return bwd(a); }
size_t cdr__attention_fwd_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)t;
    return (size_t)n_threads * fwd_bytes(attr);
}
size_t cdr__attention_bwd_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    return bwd_work_bytes(attr, t, n_threads);
}
