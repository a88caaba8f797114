/* rope, kernel for AVX2: the same source as the base kernel, compiled for it, the same bits. */
#include "ops/rope/rows.inc"

cdr_status cdr__rope_avx2(const cdr_args *a) { return run(a); }
