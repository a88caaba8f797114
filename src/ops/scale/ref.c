/* scale, reference: equation (1) of op.c in double. */
#include "ops/scale/scale.h"

void cdr__scale_ref(const cdr_ref_args *a)
{
    int64_t n = cdr_type_elems(&a->type[0]);
    double s = (double)((const cdr_scale_attr *)a->attr)->factor;
    for (int64_t i = 0; i < n; i++) a->out[0][i] = s * a->in[0][i];
}
