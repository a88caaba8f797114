/* copy, base CPU kernel: rows.inc for any x86-64. */
#include "ops/copy/rows.inc"

cdr_status cdr__copy_base(const cdr_args *a) { return run(a); }
