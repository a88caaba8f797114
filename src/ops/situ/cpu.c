/* situ, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. F32 throughout, rounded
 * once at the store; e^x and tanh are those of ops/cpu.h, in vectors, with the same bits from every compiler. */
#include "ops/situ/rows.inc"

const cdr__situ_rows cdr__situ_rows_base = { forward, backward, forward_row, backward_row };

static cdr_status run_fwd(const cdr_args *a, const cdr__situ_rows *rows)
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

static cdr_status run_bwd(const cdr_args *a, const cdr__situ_rows *rows)
{
    const int64_t T = cdr_type_rows(&a->type[1]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) rows->backward_row(a, t);
    return CDR_OK;
}

cdr_status cdr__situ_fwd_base(const cdr_args *a) { return run_fwd(a, &cdr__situ_rows_base); }
cdr_status cdr__situ_bwd_base(const cdr_args *a) { return run_bwd(a, &cdr__situ_rows_base); }
cdr_status cdr__situ_fwd_avx2(const cdr_args *a) { return run_fwd(a, &cdr__situ_rows_avx2); }
cdr_status cdr__situ_bwd_avx2(const cdr_args *a) { return run_bwd(a, &cdr__situ_rows_avx2); }
