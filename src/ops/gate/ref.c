/* gate, reference: equations (1) to (3) of op.c in double. */
#include "ops/gate/gate.h"
#include <math.h>

void cdr__gate_ref(const cdr_ref_args *a)
{
    int64_t n = cdr_type_elems(&a->type[0]);
    for (int64_t i = 0; i < n; i++) a->out[0][i] = a->in[0][i] / (1 + exp(-a->in[1][i]));
}

void cdr__gate_bwd_ref(const cdr_ref_args *a)
{
    int64_t n = cdr_type_elems(&a->type[0]);
    for (int64_t i = 0; i < n; i++) {
        double dy = a->in[0][i], x = a->in[2][i], s = 1 / (1 + exp(-x)), rest = 1 / (1 + exp(x));
        if (a->out[0]) a->out[0][i] = dy * s;
        if (a->out[1]) a->out[1][i] = dy * a->in[1][i] * s * rest;
    }
}
