/* short_conv, rows for AVX2: the same source as the base rows, compiled for it, the same bits. */
#include "ops/short_conv/rows.inc"

static const cdr__short_conv_rows avx2 = { forward, backward, gradient };
cdr_status cdr__short_conv_fwd_avx2(const cdr_args *a) { return cdr__short_conv_fwd(a, &avx2); }
cdr_status cdr__short_conv_bwd_avx2(const cdr_args *a) { return cdr__short_conv_bwd(a, &avx2); }
