/* cpu_avx2.c: experts' rows compiled for AVX2, the same bits as base; products of AVX2 and of AVX-512, which agree. */
#include "ops/experts/rows.inc"

const cdr__experts_isa cdr__experts_avx2 = {
    .gemm = &cdr__gemm_avx2, .situ = &cdr__situ_rows_avx2, .silu = forward, .silu_bwd = backward, .round = { NULL, round_bf16 }
};
const cdr__experts_isa cdr__experts_avx512 = {
    .gemm = &cdr__gemm_avx512, .situ = &cdr__situ_rows_avx2, .silu = forward, .silu_bwd = backward, .round = { NULL, round_bf16 }
};
