/* layernorm, kernels for AVX2: the same source as the base kernels, compiled for it, the same bits. */
#include "ops/layernorm/rows.inc"

cdr_status cdr__layernorm_avx2(const cdr_args *a) { return forward(a); }
cdr_status cdr__layernorm_bwd_avx2(const cdr_args *a) { return backward(a); }
