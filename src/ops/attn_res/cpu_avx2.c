/* attn_res, rows for AVX2: the same source as the base rows, compiled for it, the same bits. */
#include "ops/attn_res/rows.inc"

static const cdr__attn_res_rows avx2 = { mix, backward };
cdr_status cdr__attn_res_fwd_avx2(const cdr_args *a) { return cdr__attn_res_fwd(a, &avx2); }
cdr_status cdr__attn_res_bwd_avx2(const cdr_args *a) { return cdr__attn_res_bwd(a, &avx2); }
