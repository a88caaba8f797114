/* attention with AVX-512: the vector and the register tile of attention_simd.h.
 * Tile 12 x 32: 24 accumulators, 2 vectors of B, a broadcast of A = 27 of 32 registers; a step is 24 FMA beside 2 loads
 * and 12 broadcasts. */
#include "ops/vf_avx512_simd.h"
#include "ops/attention/tile_simd.h"

enum { MR = 12, NV = 2 };
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
