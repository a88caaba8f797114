/* dispatch, reference: equations (1), (2) of op.c; for each expert in turn, all pairs are looked through. */
#include "ops/dispatch/dispatch.h"

void cdr__dispatch_ref(const cdr_ref_args *a)
{
    const int64_t E = ((const cdr_dispatch_attr *)a->attr)->experts, R = cdr_type_elems(&a->type[0]);
    const double *idx = a->in[0];
    double *perm = a->out[0], *offs = a->out[1], *pos = a->out[2];
    int64_t row = 0;
    for (int64_t q = 0; q < R; q++) pos[q] = -1;
    for (int64_t e = 0; e < E; e++) {
        offs[e] = (double)row;
        for (int64_t q = 0; q < R; q++) {
            if (idx[q] != (double)e) continue;
            perm[row] = (double)q;
            pos[q] = (double)row++;
        }
    }
    offs[E] = (double)row;
    for (; row < R; row++) perm[row] = -1;
}
