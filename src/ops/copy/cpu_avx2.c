/* copy, kernel for AVX2: the same source as the base kernel, compiled for it, the same bits. */
#include "ops/copy/rows.inc"

cdr_status cdr__copy_avx2(const cdr_args *a) { return run(a); }
