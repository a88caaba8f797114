/* cache_write, CPU kernel in plain C: one row after the other, through F32. */
#include "ops/cache_write/cache_write.h"
#include "ops/cpu.h"

/* per thread: a row */
size_t cdr__cache_write_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out;
    return (size_t)(cdr_type_cols(&t[0]) * n_threads) * sizeof(float);
}

cdr_status cdr__cache_write_base(const cdr_args *a)
{
    const cdr_type *tx = &a->type[0], *tc = &a->type[3];
    int64_t C = cdr_type_cols(tx), n_live = *(const int32_t *)a->ptr[2], S = tc->n[0];
    const int32_t *pos_T = a->ptr[1];
    CDR_CHECK(n_live >= 0 && n_live <= tx->n[0]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < n_live; t++) {
        float *row_C = cdr_thread_part(a->work, C);
        CDR_CHECK(pos_T[t] >= 0 && pos_T[t] < S);          /* data, not shapes: it would write outside of the slab */
        cdr_row_load(a->ptr[0], tx, t, row_C);
        cdr_row_store(row_C, a->ptr[3], tc, pos_T[t]);
    }
    return CDR_OK;
}
