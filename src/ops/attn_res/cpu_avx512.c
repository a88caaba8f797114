/* attn_res for AVX-512: the same source as the base rows, compiled for it, the same bits. */
#include "ops/attn_res/rows.inc"

cdr_status cdr__attn_res_fwd_avx512(const cdr_args *a) { return fwd(a); }
cdr_status cdr__attn_res_bwd_avx512(const cdr_args *a) { return bwd(a); }
