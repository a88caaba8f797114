/* add, base CPU kernel: rows.inc for any x86-64. */
#include "ops/add/rows.inc"

cdr_status cdr__add_base(const cdr_args *a) { return run(a); }
