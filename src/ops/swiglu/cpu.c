/* swiglu, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. F32 throughout, rounded
 * once at the store; e^x is that of ops/cpu.h, in vectors, with the same bits from every compiler. Bound: memory, 0.31 ns
 * an element of the forward in BF16 for two threads of Zen 3; in cache one thread takes 1.1 ns with AVX2 and 2.0 in base. */
#include "ops/rowwise.h"
#include "ops/swiglu/rows.inc"

cdr_status cdr__swiglu_fwd_base(const cdr_args *a) { return cdr__rows_forward(a, 2, forward_row); }
cdr_status cdr__swiglu_bwd_base(const cdr_args *a) { return cdr__rows_backward(a, backward_row); }
