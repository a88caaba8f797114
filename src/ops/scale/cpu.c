/* scale, CPU kernel in plain C, by rows: widened to F32, multiplied, rounded once. Bound: memory. */
#include "ops/scale/scale.h"
#include "ops/cpu.h"

/* per thread: a row of x, and one of y where it is added to */
size_t cdr__scale_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)(cdr_type_cols(&t[0]) * 2 * n_threads) * sizeof(float);
}

cdr_status cdr__scale_base(const cdr_args *a)
{
    const cdr_type *tx = &a->type[0], *ty = &a->type[1];
    int64_t rows = cdr_type_rows(tx), n = cdr_type_cols(tx);
    float s = ((const cdr_scale_attr *)a->attr)->factor;
    assert(a->work && a->ptr[1]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *x = cdr_thread_part(a->work, 2 * n), *old = x + n;
        cdr_row_load(a->ptr[0], tx, r, x);
        for (int64_t i = 0; i < n; i++) x[i] *= s;                                                                      /* (1) */
        if (a->add & 1u) cdr_row_add(x, a->ptr[1], ty, r, old);
        else cdr_row_store(x, a->ptr[1], ty, r);
    }
    return CDR_OK;
}
