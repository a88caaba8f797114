/* router, rows for AVX2: the same source as the base rows, compiled for it, the same bits. */
#include "ops/router/rows.inc"

static const cdr__router_rows avx2 = { route, backward };
cdr_status cdr__router_fwd_avx2(const cdr_args *a) { return cdr__router_fwd(a, &avx2); }
cdr_status cdr__router_bwd_avx2(const cdr_args *a) { return cdr__router_bwd(a, &avx2); }
