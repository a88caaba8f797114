/* add, CPU kernel in plain C, by rows: widened to F32, added, rounded once. Bound: memory. */
#include "ops/add/add.h"
#include "ops/cpu.h"

/* per thread: a row of each operand */
size_t cdr__add_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)(cdr_type_cols(&t[0]) * 2 * n_threads) * sizeof(float);
}

cdr_status cdr__add_base(const cdr_args *a)
{
    const cdr_type *ta = &a->type[0], *tb = &a->type[1], *ty = &a->type[2];
    int64_t rows = cdr_type_rows(ta), n = cdr_type_cols(ta);
    assert(a->work && a->ptr[2]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *a_row = cdr_thread_part(a->work, 2 * n), *b_row = a_row + n;
        cdr_row_load(a->ptr[0], ta, r, a_row);
        cdr_row_load(a->ptr[1], tb, r, b_row);
        for (int64_t i = 0; i < n; i++) a_row[i] += b_row[i];
        cdr_row_store(a_row, a->ptr[2], ty, r);
    }
    return CDR_OK;
}
