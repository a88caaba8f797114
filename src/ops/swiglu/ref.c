/* swiglu, reference: equations (1) to (3) of op.c in double. */
#include "ops/swiglu/swiglu.h"
#include <math.h>

void cdr__swiglu_ref(const cdr_ref_args *a)
{
    int64_t n = cdr_type_elems(&a->type[0]);
    const double *gate = a->in[0], *up = a->in[1];
    for (int64_t i = 0; i < n; i++) a->out[0][i] = gate[i] / (1 + exp(-gate[i])) * up[i];
}

void cdr__swiglu_bwd_ref(const cdr_ref_args *a)
{
    int64_t n = cdr_type_elems(&a->type[0]);
    const double *dy = a->in[0], *gate = a->in[1], *up = a->in[2];
    double *dgate = a->out[0], *dup = a->out[1];
    for (int64_t i = 0; i < n; i++) {
        double s = 1 / (1 + exp(-gate[i]));
        if (dgate) dgate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
        if (dup) dup[i] = dy[i] * gate[i] * s;
    }
}
