/* adamw, blocks for AVX2: the same source as the base blocks, compiled for it, the same bits. */
#include "ops/adamw/rows.inc"

cdr_status cdr__adamw_avx2(const cdr_args *a) { return cdr__adamw_run(a, block); }
