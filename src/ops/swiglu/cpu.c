/* swiglu, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. F32 throughout, rounded
 * once at the store; e^x is that of ops/cpu.h, in vectors, with the same bits from every compiler. Bound: memory, 0.31 ns
 * an element of the forward in BF16 for two threads of Zen 3; in cache one thread takes 1.1 ns with AVX2 and 2.0 in base. */
#include "ops/swiglu/rows.inc"

static const cdr__swiglu_rows base = { forward, backward, forward_row, backward_row };
cdr_status cdr__swiglu_fwd_base(const cdr_args *a) { return cdr__swiglu_fwd(a, &base); }
cdr_status cdr__swiglu_bwd_base(const cdr_args *a) { return cdr__swiglu_bwd(a, &base); }

cdr_status cdr__swiglu_fwd(const cdr_args *a, const cdr__swiglu_rows *rows)
{
    const int64_t T = cdr_type_rows(&a->type[0]);
    const bool stream = cdr_streams(&a->type[2]);
    assert(a->ptr[2]);
#pragma omp parallel num_threads(a->lane->n_threads)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) rows->forward_row(a, t, stream);
        if (stream) cdr_stream_end();
    }
    return CDR_OK;
}

cdr_status cdr__swiglu_bwd(const cdr_args *a, const cdr__swiglu_rows *rows)
{
    const int64_t T = cdr_type_rows(&a->type[1]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) rows->backward_row(a, t);
    return CDR_OK;
}
