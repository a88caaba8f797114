/* copy, CPU kernel in plain C, by rows, through F32 (every float format up to 32 bits widens to it exactly). */
#include "ops/copy/copy.h"
#include "ops/cpu.h"

/* per thread: x, old y */
size_t cdr__copy_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)(cdr_type_cols(&t[0]) * 2 * n_threads) * sizeof(float);
}

cdr_status cdr__copy_base(const cdr_args *a)
{
    const cdr_type *tx = &a->type[0], *ty = &a->type[1];
    int64_t rows = cdr_type_rows(tx), n = cdr_type_cols(tx);
    bool add = (a->add & 1) != 0;
    assert(a->work && a->ptr[1]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *x_row = cdr_thread_part(a->work, 2 * n);
        cdr_row_load(a->ptr[0], tx, r, x_row);
        if (add) cdr_row_add(x_row, a->ptr[1], ty, r, x_row + n);
        else cdr_row_store(x_row, a->ptr[1], ty, r);
    }
    return CDR_OK;
}
