/* scale, base CPU kernel: rows.inc for any x86-64. */
#include "ops/scale/rows.inc"

cdr_status cdr__scale_base(const cdr_args *a) { return run(a); }
