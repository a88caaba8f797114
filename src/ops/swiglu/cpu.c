/* swiglu, CPU kernels in plain C, by rows. Equations: op.c. F32 throughout, rounded once at the store; e^x is cdr_exp
 * (ops/cpu.h), which vectorises and gives the same bits with every compiler. */
#include "ops/swiglu/swiglu.h"
#include "ops/cpu.h"

/* per thread: dy, gate, up (the forward uses two) */
size_t cdr__swiglu_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_out;
    return (size_t)(cdr_type_cols(&t[0]) * n_in * n_threads) * sizeof(float);
}

cdr_status cdr__swiglu_fwd_base(const cdr_args *a)
{
    const cdr_type *tg = &a->type[0], *tu = &a->type[1], *ty = &a->type[2];
    int64_t T = cdr_type_rows(tg), F = cdr_type_cols(tg);
    assert(a->work && a->ptr[2]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *CDR_RESTRICT gate_F = cdr_thread_part(a->work, 2 * F), *CDR_RESTRICT up_F = gate_F + F;
        cdr_row_load(a->ptr[0], tg, t, gate_F);
        cdr_row_load(a->ptr[1], tu, t, up_F);
        for (int64_t i = 0; i < F; i++) up_F[i] *= gate_F[i] / (1.0f + cdr_exp(-gate_F[i]));
        cdr_row_store(up_F, a->ptr[2], ty, t);
    }
    return CDR_OK;
}

/* dgate into gate's place, dup into up's */
static void bwd_row(const float *CDR_RESTRICT dy_F, float *CDR_RESTRICT gate_F, float *CDR_RESTRICT up_F, int64_t F)
{
    for (int64_t i = 0; i < F; i++) {
        float x = gate_F[i], s = 1.0f / (1.0f + cdr_exp(-x));
        gate_F[i] = dy_F[i] * up_F[i] * (s * (1.0f + x * (1.0f - s)));
        up_F[i] = dy_F[i] * (x * s);
    }
}

cdr_status cdr__swiglu_bwd_base(const cdr_args *a)
{
    const cdr_type *tdy = &a->type[0], *tg = &a->type[1], *tu = &a->type[2], *tdg = &a->type[3], *tdu = &a->type[4];
    int64_t T = cdr_type_rows(tg), F = cdr_type_cols(tg);
    assert(a->work);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *dy_F = cdr_thread_part(a->work, 3 * F), *gate_F = dy_F + F, *up_F = gate_F + F;
        cdr_row_load(a->ptr[0], tdy, t, dy_F);
        cdr_row_load(a->ptr[1], tg, t, gate_F);
        cdr_row_load(a->ptr[2], tu, t, up_F);
        bwd_row(dy_F, gate_F, up_F, F);
        if (a->ptr[3]) cdr_row_store(gate_F, a->ptr[3], tdg, t);
        if (a->ptr[4]) cdr_row_store(up_F, a->ptr[4], tdu, t);
    }
    return CDR_OK;
}
