/* situ, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. F32 throughout, rounded
 * once at the store; e^x and tanh are those of ops/cpu.h, in vectors, with the same bits from every compiler. */
#include "ops/rowwise.h"
#include "ops/situ/rows.inc"

const cdr__situ_rows cdr__situ_rows_base = { forward, backward, forward_row, backward_row };

cdr_status cdr__situ_fwd_base(const cdr_args *a) { return cdr__rows_forward(a, 2, cdr__situ_rows_base.forward_row); }
cdr_status cdr__situ_bwd_base(const cdr_args *a) { return cdr__rows_backward(a, cdr__situ_rows_base.backward_row); }
cdr_status cdr__situ_fwd_avx2(const cdr_args *a) { return cdr__rows_forward(a, 2, cdr__situ_rows_avx2.forward_row); }
cdr_status cdr__situ_bwd_avx2(const cdr_args *a) { return cdr__rows_backward(a, cdr__situ_rows_avx2.backward_row); }
