/* cpu.c: experts for any CPU, and the entry points of each instruction set. Numeric classes: those of the products (ops/linear/gemm.h),
 * "base" and "fma"; what is done to rows has the same bits in all. */
#include "ops/experts/rows.inc"

const cdr__experts_isa cdr__experts_base = {
    .gemm = &cdr__gemm_base, .situ = &cdr__situ_rows_base, .silu = forward, .silu_bwd = backward, .round = { NULL, round_bf16 }
};

#define WORK_ARGS const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads
#define UNUSED (void)n_in, (void)n_out

size_t cdr__experts_work_base(WORK_ARGS) { UNUSED; return cdr__experts_fwd_bytes(&cdr__experts_base, attr, t, n_threads); }
size_t cdr__experts_work_avx2(WORK_ARGS) { UNUSED; return cdr__experts_fwd_bytes(&cdr__experts_avx2, attr, t, n_threads); }
size_t cdr__experts_work_avx512(WORK_ARGS) { UNUSED; return cdr__experts_fwd_bytes(&cdr__experts_avx512, attr, t, n_threads); }
size_t cdr__experts_bwd_work_base(WORK_ARGS) { UNUSED; return cdr__experts_bwd_bytes(&cdr__experts_base, attr, t, n_threads); }
size_t cdr__experts_bwd_work_avx2(WORK_ARGS) { UNUSED; return cdr__experts_bwd_bytes(&cdr__experts_avx2, attr, t, n_threads); }
size_t cdr__experts_bwd_work_avx512(WORK_ARGS) { UNUSED; return cdr__experts_bwd_bytes(&cdr__experts_avx512, attr, t, n_threads); }
cdr_status cdr__experts_fwd_base(const cdr_args *a) { return cdr__experts_fwd(a, &cdr__experts_base); }
cdr_status cdr__experts_fwd_avx2(const cdr_args *a) { return cdr__experts_fwd(a, &cdr__experts_avx2); }
cdr_status cdr__experts_fwd_avx512(const cdr_args *a) { return cdr__experts_fwd(a, &cdr__experts_avx512); }
cdr_status cdr__experts_bwd_base(const cdr_args *a) { return cdr__experts_bwd(a, &cdr__experts_base); }
cdr_status cdr__experts_bwd_avx2(const cdr_args *a) { return cdr__experts_bwd(a, &cdr__experts_avx2); }
cdr_status cdr__experts_bwd_avx512(const cdr_args *a) { return cdr__experts_bwd(a, &cdr__experts_avx512); }
