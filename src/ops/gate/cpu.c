/* gate, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. F32 throughout, rounded once at
 * the store. Bound: memory; floor: its operands' bytes at the copy rate. */
#include "ops/gate/rows.inc"

static const cdr__gate_rows base = { forward, backward };
cdr_status cdr__gate_fwd_base(const cdr_args *a) { return cdr__gate_fwd(a, &base); }
cdr_status cdr__gate_bwd_base(const cdr_args *a) { return cdr__gate_bwd(a, &base); }

cdr_status cdr__gate_fwd(const cdr_args *a, const cdr__gate_rows *rows)
{
    const int64_t T = cdr_type_rows(&a->type[0]);
    const bool stream = cdr_streams(&a->type[2]);
#pragma omp parallel num_threads(a->lane->n_threads)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) rows->forward(a, t, stream);
        if (stream) cdr_stream_end();
    }
    return CDR_OK;
}

cdr_status cdr__gate_bwd(const cdr_args *a, const cdr__gate_rows *rows)
{
    const int64_t T = cdr_type_rows(&a->type[0]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) rows->backward(a, t);
    return CDR_OK;
}
