/* gate, rows for AVX2: the same source as the base rows, compiled for it, the same bits. */
#include "ops/rowwise.h"
#include "ops/gate/rows.inc"

cdr_status cdr__gate_fwd_avx2(const cdr_args *a) { return cdr__rows_forward(a, 2, forward); }
cdr_status cdr__gate_bwd_avx2(const cdr_args *a) { return cdr__rows_backward(a, backward); }
