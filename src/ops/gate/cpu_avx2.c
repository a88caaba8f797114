/* gate, rows for AVX2: the same source as the base rows, compiled for it, the same bits. */
#include "ops/gate/rows.inc"

static const cdr__gate_rows avx2 = { forward, backward };
cdr_status cdr__gate_fwd_avx2(const cdr_args *a) { return cdr__gate_fwd(a, &avx2); }
cdr_status cdr__gate_bwd_avx2(const cdr_args *a) { return cdr__gate_bwd(a, &avx2); }
