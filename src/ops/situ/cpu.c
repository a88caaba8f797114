/* situ, CPU kernels: the loops over rows, which all instruction sets share, and the base rows. F32 throughout, rounded
 * once at the store; e^x and tanh are those of ops/cpu.h, which vectorise and give the same bits with every compiler. */
#include "ops/situ/rows.inc"

const cdr__situ_rows cdr__situ_rows_base = { forward, backward };

/* per thread: each input's row */
size_t cdr__situ_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_out;
    return (size_t)(cdr_type_cols(&t[0]) * n_in * n_threads) * sizeof(float);
}

static cdr_status run_fwd(const cdr_args *a, const cdr__situ_rows *rows)
{
    const cdr_type *tg = &a->type[0], *tu = &a->type[1], *ty = &a->type[2];
    const int64_t T = cdr_type_rows(tg), F = cdr_type_cols(tg);
    assert(a->ptr[2]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *gate_F = cdr_thread_part(a->work, 2 * F), *up_F = gate_F + F;
        cdr_row_load(a->ptr[0], tg, t, gate_F);
        cdr_row_load(a->ptr[1], tu, t, up_F);
        rows->forward(gate_F, up_F, F, a->attr);
        cdr_row_store(up_F, a->ptr[2], ty, t);
    }
    return CDR_OK;
}

static cdr_status run_bwd(const cdr_args *a, const cdr__situ_rows *rows)
{
    const cdr_type *tdy = &a->type[0], *tg = &a->type[1], *tu = &a->type[2], *tdg = &a->type[3], *tdu = &a->type[4];
    const int64_t T = cdr_type_rows(tg), F = cdr_type_cols(tg);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *dy_F = cdr_thread_part(a->work, 3 * F), *gate_F = dy_F + F, *up_F = gate_F + F;
        cdr_row_load(a->ptr[0], tdy, t, dy_F);
        cdr_row_load(a->ptr[1], tg, t, gate_F);
        cdr_row_load(a->ptr[2], tu, t, up_F);
        rows->backward(dy_F, gate_F, up_F, F, a->attr);
        if (a->ptr[3]) cdr_row_store(gate_F, a->ptr[3], tdg, t);
        if (a->ptr[4]) cdr_row_store(up_F, a->ptr[4], tdu, t);
    }
    return CDR_OK;
}

cdr_status cdr__situ_fwd_base(const cdr_args *a) { return run_fwd(a, &cdr__situ_rows_base); }
cdr_status cdr__situ_bwd_base(const cdr_args *a) { return run_bwd(a, &cdr__situ_rows_base); }
cdr_status cdr__situ_fwd_avx2(const cdr_args *a) { return run_fwd(a, &cdr__situ_rows_avx2); }
cdr_status cdr__situ_bwd_avx2(const cdr_args *a) { return run_bwd(a, &cdr__situ_rows_avx2); }
