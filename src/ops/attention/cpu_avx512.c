/* attention with AVX-512: the vector and the register tile of attention_simd.h.
 * Tile 12 x 32: 24 accumulators, 2 vectors of B, a broadcast of A = 27 of 32 registers; a step is 24 FMA beside 2 loads
 * and 12 broadcasts. */
#include "base/base.h"
#include <immintrin.h>

enum { V_LANES = 16, MR = 12, NV = 2 };
typedef __m512 vf;

static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
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
    FIRST(cg0, cg1, 6) FIRST(ch0, ch1, 7) FIRST(ci0, ci1, 8)
    FIRST(cj0, cj1, 9) FIRST(ck0, ck1, 10) FIRST(cl0, cl1, 11)
    for (; k > 0; k--, a += a_k, b += b_row) {
        const vf b0 = v_load(b), b1 = v_load(b + V_LANES);
        const float *a3 = a + 3 * a_row, *a6 = a + 6 * a_row, *a9 = a + 9 * a_row;
        STEP(ca0, ca1, a) STEP(cb0, cb1, a + a_row) STEP(cc0, cc1, a + 2 * a_row)
        STEP(cd0, cd1, a3) STEP(ce0, ce1, a3 + a_row) STEP(cf0, cf1, a3 + 2 * a_row)
        STEP(cg0, cg1, a6) STEP(ch0, ch1, a6 + a_row) STEP(ci0, ci1, a6 + 2 * a_row)
        STEP(cj0, cj1, a9) STEP(ck0, ck1, a9 + a_row) STEP(cl0, cl1, a9 + 2 * a_row)
    }
    LAST(ca0, ca1, 0) LAST(cb0, cb1, 1) LAST(cc0, cc1, 2)
    LAST(cd0, cd1, 3) LAST(ce0, ce1, 4) LAST(cf0, cf1, 5)
    LAST(cg0, cg1, 6) LAST(ch0, ch1, 7) LAST(ci0, ci1, 8)
    LAST(cj0, cj1, 9) LAST(ck0, ck1, 10) LAST(cl0, cl1, 11)
}

#include "ops/attention/attention_simd.h"

cdr_status cdr__attention_fwd_avx512(const cdr_args *a) { return fwd(a); }
cdr_status cdr__attention_bwd_avx512(const cdr_args *a) { return bwd(a); }
size_t cdr__attention_fwd_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)t;
    return (size_t)n_threads * fwd_bytes(attr);
}
size_t cdr__attention_bwd_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    return bwd_work_bytes(attr, t, n_threads);
}
