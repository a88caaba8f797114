/* loss, rows of logits with AVX2: the plain C of loss_rows.h under this file's flags. */
#include "ops/loss/loss_rows.h"

const cdr__loss_rows cdr__loss_rows_avx2 = { row_stats, row_grad, row_online };
