/* cpu.c: experts for any CPU, and the entry points of each instruction set. Numeric classes: those of the products (ops/linear/gemm.h),
 * "base" and "fma"; what is done to rows has the same bits in all. */
#include "ops/experts/rows.inc"
#include "ops/experts/unpack.h"

enum { NR = 8 };
static void unpack_panels(bool k_contig, const cdr__packed *s)
{
    assert(cdr__gemm_base.nr == NR);
    for (int64_t i = 0; i < s->n_i; i += NR) cdr__unpack_part(1, NR, k_contig, s, i, i + NR);
}
static void unpack_cols(const cdr__packed *s) { unpack_panels(false, s); }
static void unpack_k(const cdr__packed *s) { unpack_panels(true, s); }

const cdr__experts_isa cdr__experts_base = {
    .gemm = &cdr__gemm_base, .wide = &cdr__gemm_base, .unpack = { unpack_cols, unpack_k },
    .situ = &cdr__situ_rows_base, .silu = forward, .silu_bwd = backward, .round = { NULL, round_bf16 }
};

#define WORK_ARGS const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads
#define UNUSED (void)n_in, (void)n_out
#define ENTRIES(isa) \
    size_t cdr__experts_work_##isa(WORK_ARGS) { UNUSED; return cdr__experts_fwd_bytes(&cdr__experts_##isa, attr, t, n_threads); } \
    size_t cdr__experts_bwd_work_##isa(WORK_ARGS) { UNUSED; return cdr__experts_bwd_bytes(&cdr__experts_##isa, attr, t, n_threads); } \
    cdr_status cdr__experts_fwd_##isa(const cdr_args *a) { return cdr__experts_fwd(a, &cdr__experts_##isa); } \
    cdr_status cdr__experts_bwd_##isa(const cdr_args *a) { return cdr__experts_bwd(a, &cdr__experts_##isa); }

ENTRIES(base)
ENTRIES(avx2)
ENTRIES(avx512)
ENTRIES(avx512_bf16)
ENTRIES(amx)
