/* situ, rows for AVX2: the same source as the base rows, compiled for it, the same bits. */
#include "ops/situ/rows.inc"

const cdr__situ_rows cdr__situ_rows_avx2 = { forward, backward, forward_row, backward_row };
