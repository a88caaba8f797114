/* attention's forward with products in AMX tiles (pair.inc), class amx. */
#define ISA cdr__gemm_amx
enum { GROUP = 32 };
#define PAIRS(high, low) _mm512_cvtne2ps_pbh(high, low)      /* of BF16: 16 and 16 of F32, rounded */
#include "ops/attention/pair.inc"

cdr_status cdr__attention_fwd_amx(const cdr_args *a) { return fwd(a); }
size_t cdr__attention_fwd_amx_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)t;
    return (size_t)n_threads * thread_bytes(attr);
}
