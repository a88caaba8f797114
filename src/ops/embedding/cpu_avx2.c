/* embedding, kernels for AVX2: the same source as the base kernels, compiled for it, the same bits. */
#include "ops/embedding/rows.inc"

cdr_status cdr__embedding_avx2(const cdr_args *a) { return forward(a); }
cdr_status cdr__embedding_bwd_avx2(const cdr_args *a) { return backward(a); }
