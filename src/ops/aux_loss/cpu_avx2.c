/* aux_loss, rows for AVX2: the same source as the base rows, compiled for it, the same bits. */
#include "ops/aux_loss/rows.inc"

static const cdr__aux_rows avx2 = { value, backward };
cdr_status cdr__aux_loss_fwd_avx2(const cdr_args *a) { return cdr__aux_loss_fwd(a, &avx2); }
cdr_status cdr__aux_loss_bwd_avx2(const cdr_args *a) { return cdr__aux_loss_bwd(a, &avx2); }
