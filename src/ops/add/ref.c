/* add, reference: equation (1) of op.c in double. */
#include "ops/add/add.h"

void cdr__add_ref(const cdr_ref_args *a)
{
    int64_t n = cdr_type_elems(&a->type[0]);
    for (int64_t i = 0; i < n; i++) a->out[0][i] = a->in[0][i] + a->in[1][i];
}
