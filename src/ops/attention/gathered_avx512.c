/* attention, gathered core for AVX-512: the same source and the same bits as gathered.c. */
#include "ops/attention/gathered.inc"

cdr_status cdr__attention_fwd_gathered_avx512(const cdr_args *a) { return fwd(a); }
cdr_status cdr__attention_bwd_gathered_avx512(const cdr_args *a) { return bwd(a); }
