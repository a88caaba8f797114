/* situ, reference: equations (1) to (3) of op.c in double. */
#include "ops/situ/situ.h"
#include <math.h>

void cdr__situ_ref(const cdr_ref_args *a)
{
    const cdr_situ_attr *at = a->attr;
    const double b1 = (double)at->beta, b2 = (double)at->linear_beta;
    int64_t n = cdr_type_elems(&a->type[0]);
    const double *gate = a->in[0], *up = a->in[1];
    for (int64_t i = 0; i < n; i++) a->out[0][i] = b1 * tanh(gate[i] / b1) / (1 + exp(-gate[i])) * b2 * tanh(up[i] / b2);
}

void cdr__situ_bwd_ref(const cdr_ref_args *a)
{
    const cdr_situ_attr *at = a->attr;
    const double b1 = (double)at->beta, b2 = (double)at->linear_beta;
    int64_t n = cdr_type_elems(&a->type[0]);
    const double *dy = a->in[0], *gate = a->in[1], *up = a->in[2];
    double *dgate = a->out[0], *dup = a->out[1];
    for (int64_t i = 0; i < n; i++) {
        double s = 1 / (1 + exp(-gate[i])), t1 = tanh(gate[i] / b1), t2 = tanh(up[i] / b2);
        if (dgate) dgate[i] = dy[i] * ((1 - t1 * t1) * s + b1 * t1 * s * (1 - s)) * b2 * t2;
        if (dup) dup[i] = dy[i] * b1 * t1 * s * (1 - t2 * t2);
    }
}
