/* rmsnorm, rows for AVX2: the same source as the base rows, compiled for it, the same bits. */
#include "ops/rmsnorm/rows.inc"

static const cdr__rmsnorm_rows avx2 = { forward, backward };
cdr_status cdr__rmsnorm_fwd_avx2(const cdr_args *a) { return cdr__rmsnorm_fwd(a, &avx2); }
cdr_status cdr__rmsnorm_bwd_avx2(const cdr_args *a) { return cdr__rmsnorm_bwd(a, &avx2); }
