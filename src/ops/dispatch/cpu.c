/* dispatch, CPU: each thread counts its own range of tokens, the counts become starting rows (by expert, then by range, which
 * is the order of the tokens), each thread writes its range. The sort is unique, so threads change nothing. */
#include "ops/cpu.h"
#include "ops/dispatch/dispatch.h"

/* per thread: a count, then a next row, for each expert */
size_t cdr__dispatch_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)t;
    return (size_t)n_threads * (size_t)((const cdr_dispatch_attr *)attr)->experts * sizeof(int32_t);
}

/* Counts become first rows. */
static void first_rows(int32_t *counts, int64_t E, int n_ranges, int32_t *offs)
{
    int32_t row = 0;
    for (int64_t e = 0; e < E; e++) {
        offs[e] = row;
        for (int i = 0; i < n_ranges; i++) {
            const int32_t n = counts[i * E + e];
            counts[i * E + e] = row;
            row += n;
        }
    }
    offs[E] = row;
}

cdr_status cdr__dispatch_base(const cdr_args *a)
{
    const int64_t E = ((const cdr_dispatch_attr *)a->attr)->experts, T = a->type[0].n[0], A = a->type[0].n[1];
    const int64_t p_idx = cdr_type_pitch(&a->type[0]), p_pos = cdr_type_pitch(&a->type[3]);
    const int32_t *idx = a->ptr[0];
    int32_t *perm = a->ptr[1], *offs = a->ptr[2], *pos = a->ptr[3], *counts = a->work;
    assert(a->type[1].n[0] == T * A);
#pragma omp parallel num_threads(a->lane->n_threads)
    {
        const int n = omp_get_num_threads(), mine = omp_get_thread_num();
        const int64_t first = T * mine / n, last = T * (mine + 1) / n;
        int32_t *row_E = counts + mine * E;
        memset(row_E, 0, (size_t)E * sizeof *row_E);
        for (int64_t t = first; t < last; t++)
            for (int64_t s = 0; s < A; s++) {
                const int32_t e = idx[t * p_idx + s];
                assert(e >= -1 && e < E);
                if (e >= 0) row_E[e]++;
            }
#pragma omp barrier
#pragma omp single
        first_rows(counts, E, n, offs);
        for (int64_t t = first; t < last; t++)
            for (int64_t s = 0; s < A; s++) {
                const int32_t e = idx[t * p_idx + s];
                pos[t * p_pos + s] = e < 0 ? -1 : row_E[e];
                if (e >= 0) perm[row_E[e]++] = (int32_t)(t * A + s);
            }
        const int64_t rows = offs[E], unused = T * A - rows;
        for (int64_t r = rows + unused * mine / n; r < rows + unused * (mine + 1) / n; r++) perm[r] = -1;
    }
    return CDR_OK;
}
