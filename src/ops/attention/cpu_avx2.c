/* attention with AVX2: the vector and the register tile of simd.inc.
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

/* C[MR][NB] (+)= sum over k of a[i * a_row + k * a_k] b[k * b_row + j], ascending k */
static inline __attribute__((always_inline)) void tile(int64_t k, const float *CDR_RESTRICT a, int64_t a_row, int64_t a_k,
                                                       const float *CDR_RESTRICT b, int64_t b_row, float *CDR_RESTRICT c, int64_t c_row, bool add)
{
    vf acc[MR][NV];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) acc[i][j] = add ? v_load(c + i * c_row + j * V_LANES) : v_set(0.0f);
    for (; k > 0; k--, a += a_k, b += b_row) {
        vf bj[NV];
        for (int j = 0; j < NV; j++) bj[j] = v_load(b + j * V_LANES);
        for (int i = 0; i < MR; i++) {
            vf ai = v_set(a[i * a_row]);
            for (int j = 0; j < NV; j++) acc[i][j] = v_fma(ai, bj[j], acc[i][j]);
        }
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) v_store(c + i * c_row + j * V_LANES, acc[i][j]);
}
/* dst[i][j] = src[j][i], 8 x 8 */
static inline void transpose_8x8(const float *src, int64_t src_pitch, float *dst, int64_t dst_pitch)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(src + i * src_pitch);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + i * dst_pitch, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(dst + (i + 4) * dst_pitch, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

#include "ops/attention/simd.inc"

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
