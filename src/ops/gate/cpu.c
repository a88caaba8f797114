/* gate, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. F32 throughout, rounded once at
 * the store. Bound: memory; floor: its operands' bytes at the copy rate. */
#include "ops/rowwise.h"
#include "ops/gate/rows.inc"

cdr_status cdr__gate_fwd_base(const cdr_args *a) { return cdr__rows_forward(a, 2, forward); }
cdr_status cdr__gate_bwd_base(const cdr_args *a) { return cdr__rows_backward(a, backward); }
