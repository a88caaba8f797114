/* balance, bins for AVX2: the same source as the base, compiled for it, the same bits. */
#include "ops/balance/rows.inc"

cdr_status cdr__balance_hist_avx2(const cdr_args *a) { return cdr__balance_hist(a, bins_of); }
