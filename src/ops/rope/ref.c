/* rope, reference: equation (1) of op.c in double, with libm's sine and cosine. */
#include "ops/rope/rope.h"
#include <math.h>

void cdr__rope_ref(const cdr_ref_args *a)
{
    const cdr_rope_attr *at = a->attr;
    int64_t T = cdr_type_rows(&a->type[0]), head = at->nope + at->ext, C = at->heads * head;
    for (int64_t t = 0; t < T; t++) {
        double place = a->in[1][t] - a->in[2][t];
        for (int64_t h = 0; h < at->heads; h++) {
            const double *x = a->in[0] + t * C + h * head;
            double *y = a->out[0] + t * C + h * head;
            for (int64_t d = 0; d < at->nope; d++) y[d] = x[d];
            for (int64_t i = 0; i < at->ext / 2; i++) {
                int64_t p = at->nope + (at->interleaved ? 2 * i : i), q = at->interleaved ? p + 1 : p + at->ext / 2;
                double phi = place * pow((double)at->theta, -2.0 * (double)i / at->ext) * (at->inverse ? -1 : 1);
                y[p] = x[p] * cos(phi) - x[q] * sin(phi);
                y[q] = x[q] * cos(phi) + x[p] * sin(phi);
            }
        }
    }
}
