/* attn_res, rows for AVX512: the same source as the base rows, compiled for it, the same bits. */
#include "ops/attn_res/rows.inc"

static const cdr__attn_res_rows avx512 = { mix, backward };
cdr_status cdr__attn_res_fwd_avx512(const cdr_args *a) { return cdr__attn_res_fwd(a, &avx512); }
cdr_status cdr__attn_res_bwd_avx512(const cdr_args *a) { return cdr__attn_res_bwd(a, &avx512); }
