/* gate, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. F32 throughout, rounded once at
 * the store; e^x is cdr_exp (ops/cpu.h). Bound: memory, and the two e^x of the backward. */
#include "ops/gate/rows.inc"

static const cdr__gate_rows base = { forward, backward };
cdr_status cdr__gate_fwd_base(const cdr_args *a) { return cdr__gate_fwd(a, &base); }
cdr_status cdr__gate_bwd_base(const cdr_args *a) { return cdr__gate_bwd(a, &base); }

/* per thread: o, logit */
size_t cdr__gate_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)(cdr_type_cols(&t[0]) * 2 * n_threads) * sizeof(float);
}

/* per thread: dy, o, logit, an old row */
size_t cdr__gate_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)(cdr_type_cols(&t[0]) * 4 * n_threads) * sizeof(float);
}

cdr_status cdr__gate_fwd(const cdr_args *a, const cdr__gate_rows *rows)
{
    const cdr_type *to = &a->type[0], *tx = &a->type[1], *ty = &a->type[2];
    int64_t T = cdr_type_rows(to), P = cdr_type_cols(to);
    assert(a->work);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *o_P = cdr_thread_part(a->work, 2 * P), *logit_P = o_P + P;
        cdr_row_load(a->ptr[0], to, t, o_P);
        cdr_row_load(a->ptr[1], tx, t, logit_P);
        rows->forward(o_P, logit_P, P);
        cdr_row_store(logit_P, a->ptr[2], ty, t);
    }
    return CDR_OK;
}

cdr_status cdr__gate_bwd(const cdr_args *a, const cdr__gate_rows *rows)
{
    const cdr_type *tdy = &a->type[0], *to = &a->type[1], *tx = &a->type[2];
    int64_t T = cdr_type_rows(to), P = cdr_type_cols(to);
    assert(a->work);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *dy_P = cdr_thread_part(a->work, 4 * P), *o_P = dy_P + P, *logit_P = o_P + P, *old_P = logit_P + P;
        cdr_row_load(a->ptr[0], tdy, t, dy_P);
        cdr_row_load(a->ptr[1], to, t, o_P);
        cdr_row_load(a->ptr[2], tx, t, logit_P);
        rows->backward(dy_P, o_P, logit_P, P);
        const float *result[2] = { dy_P, logit_P };
        for (int k = 0; k < 2; k++) {
            if (!a->ptr[3 + k]) continue;
            if ((a->add >> k) & 1u) cdr_row_add(result[k], a->ptr[3 + k], &a->type[3 + k], t, old_P);
            else cdr_row_store(result[k], a->ptr[3 + k], &a->type[3 + k], t);
        }
    }
    return CDR_OK;
}
