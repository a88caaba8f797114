/* layernorm, reference: equations (1) to (3) of op.c in double, as they are written. */
#include "ops/layernorm/layernorm.h"
#include <math.h>

static void stats(const double *x_D, int64_t D, double eps, double *mean, double *r)
{
    double m = 0, v = 0;
    for (int64_t d = 0; d < D; d++) m += x_D[d];
    m /= (double)D;
    for (int64_t d = 0; d < D; d++) v += (x_D[d] - m) * (x_D[d] - m);
    *mean = m;
    *r = 1 / sqrt(v / (double)D + eps);
}

void cdr__layernorm_ref(const cdr_ref_args *a)
{
    const cdr_layernorm_attr *at = a->attr;
    int64_t T = cdr_type_rows(&a->type[0]), D = cdr_type_cols(&a->type[0]);
    for (int64_t t = 0; t < T; t++) {
        const double *x = a->in[0] + t * D;
        double m, r;
        stats(x, D, (double)at->eps, &m, &r);
        for (int64_t d = 0; d < D; d++) a->out[0][t * D + d] = a->in[1][d] * (x[d] - m) * r + (a->in[2] ? a->in[2][d] : 0);
    }
}

void cdr__layernorm_bwd_ref(const cdr_ref_args *a)
{
    const cdr_layernorm_attr *at = a->attr;
    int64_t T = cdr_type_rows(&a->type[1]), D = cdr_type_cols(&a->type[1]);
    double *dx = a->out[0], *dw = a->out[1], *db = a->out[2];
    for (int64_t d = 0; d < D; d++) {
        if (dw) dw[d] = 0;
        if (db) db[d] = 0;
    }
    for (int64_t t = 0; t < T; t++) {
        const double *dy = a->in[0] + t * D, *x = a->in[1] + t * D, *w = a->in[2];
        double m, r, u1 = 0, un = 0;
        stats(x, D, (double)at->eps, &m, &r);
        for (int64_t d = 0; d < D; d++) {
            u1 += dy[d] * w[d] / (double)D;
            un += dy[d] * w[d] * (x[d] - m) * r / (double)D;
        }
        for (int64_t d = 0; d < D; d++) {
            if (dx) dx[t * D + d] = r * (dy[d] * w[d] - u1 - (x[d] - m) * r * un);
            if (dw) dw[d] += dy[d] * (x[d] - m) * r;
            if (db) db[d] += dy[d];
        }
    }
}
