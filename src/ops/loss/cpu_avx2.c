/* loss, rows of logits with AVX2: the plain C of rows.inc under this file's flags. */
#include "ops/loss/rows.inc"

const cdr__loss_rows cdr__loss_rows_avx2 = { row_stats, row_grad };
