/* gate, rows for AVX512: the same source as the base rows, compiled for it, the same bits. */
#include "ops/gate/rows.inc"

static const cdr__gate_rows avx512 = { forward, backward };
cdr_status cdr__gate_fwd_avx512(const cdr_args *a) { return cdr__gate_fwd(a, &avx512); }
cdr_status cdr__gate_bwd_avx512(const cdr_args *a) { return cdr__gate_bwd(a, &avx512); }
