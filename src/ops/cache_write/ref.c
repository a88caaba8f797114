/* cache_write, reference: equation (1) of op.c; out[0] comes in with the cache's old content. */
#include "ops/cache_write/cache_write.h"

void cdr__cache_write_ref(const cdr_ref_args *a)
{
    int64_t C = cdr_type_cols(&a->type[0]), n_live = (int64_t)a->in[2][0];
    for (int64_t t = 0; t < n_live; t++) memcpy(a->out[0] + (int64_t)a->in[1][t] * C, a->in[0] + t * C, (size_t)C * sizeof(double));
}
