/* rope, reference: equation (1) of op.c in double, with libm's sine and cosine. */
#include "ops/rope/rope.h"
#include <math.h>

/* (3)-(5), from the wavelengths: how often pair i turns over the original context tells where it lies on the ramp. */
static double frequency(const cdr_rope_attr *at, int64_t i)
{
    double theta = (double)at->theta, plain = pow(theta, -2.0 * (double)i / at->ext);
    if (at->factor <= 1) return plain;
    double edge[2], beta[2] = { (double)at->beta_fast, (double)at->beta_slow };
    for (int k = 0; k < 2; k++) edge[k] = at->ext / 2.0 * log(at->original / (2 * acos(-1.0) * beta[k])) / log(theta);
    double lo = floor(edge[0]), hi = ceil(edge[1]);
    if (lo < 0) lo = 0;
    if (hi > at->ext - 1) hi = at->ext - 1;
    if (lo >= hi) hi = lo + 0.001;
    double slow = (double)i <= lo ? 0 : (double)i >= hi ? 1 : ((double)i - lo) / (hi - lo);
    return plain / (1 / (1 - slow + slow / (double)at->factor));
}

void cdr__rope_ref(const cdr_ref_args *a)
{
    const cdr_rope_attr *at = a->attr;
    int64_t T = cdr_type_rows(&a->type[0]), head = at->nope + at->ext, C = at->heads * head;
    for (int64_t t = 0; t < T; t++) {
        double place = a->in[1][t] - a->in[2][t];
        for (int64_t h = 0; h < at->heads; h++) {
            const double *x = a->in[0] + t * C + h * head;
            double *y = a->out[0] + t * C + h * head;
            int64_t ext = at->first ? 0 : at->nope, nope = at->first ? at->ext : 0;
            for (int64_t d = 0; d < at->nope; d++) y[nope + d] = x[nope + d];
            for (int64_t i = 0; i < at->ext / 2; i++) {
                int64_t p = ext + (at->interleaved ? 2 * i : i), q = at->interleaved ? p + 1 : p + at->ext / 2;
                double phi = place * frequency(at, i) * (at->inverse ? -1 : 1);
                y[p] = x[p] * cos(phi) - x[q] * sin(phi);
                y[q] = x[q] * cos(phi) + x[p] * sin(phi);
            }
        }
    }
}
