/* loss, rows of logits with AVX512: the plain C of rows.inc under this file's flags. */
#include "ops/loss/rows.inc"

const cdr__loss_rows cdr__loss_rows_avx512 = { row_stats, row_grad };
