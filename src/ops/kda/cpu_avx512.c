/* kda with AVX-512: the vector of gemm.inc; the same bits as AVX2. */
#include "ops/vf_avx512_simd.h"

#define MAX_NV 4
#include "ops/kda/sweep.inc"

cdr_status cdr__kda_fwd_avx512(const cdr_args *a) { return fwd(a); }
cdr_status cdr__kda_bwd_avx512(const cdr_args *a) { return bwd(a); }
