/* rmsnorm, reference: equations (1) to (3) of op.c in double, as they are written. Nothing is rounded: the rounding of
 * the normalised value in (1) belongs to the kernels' tolerance. */
#include "ops/rmsnorm/rmsnorm.h"
#include <math.h>

void cdr__rmsnorm_ref(const cdr_ref_args *a)
{
    const cdr_rmsnorm_attr *at = a->attr;
    int64_t T = cdr_type_rows(&a->type[0]), D = cdr_type_cols(&a->type[0]);
    const double *x_TD = a->in[0], *w_D = a->in[1];
    double *y_TD = a->out[0], *r_T = a->out[1];
    for (int64_t t = 0; t < T; t++) {
        double ss = 0;
        for (int64_t d = 0; d < D; d++) ss += x_TD[t * D + d] * x_TD[t * D + d];
        double r = 1 / sqrt(ss / (double)D + (double)at->eps);
        if (y_TD) for (int64_t d = 0; d < D; d++) y_TD[t * D + d] = w_D[d] * x_TD[t * D + d] * r;
        if (r_T) r_T[t] = r;
    }
}

void cdr__rmsnorm_bwd_ref(const cdr_ref_args *a)
{
    int64_t T = cdr_type_rows(&a->type[1]), D = cdr_type_cols(&a->type[1]);
    const double *dy_TD = a->in[0], *x_TD = a->in[1], *w_D = a->in[2], *r_T = a->in[3];
    double *dx_TD = a->out[0], *dw_D = a->out[1];
    if (dw_D) for (int64_t d = 0; d < D; d++) dw_D[d] = 0;
    for (int64_t t = 0; t < T; t++) {
        const double *dy = dy_TD + t * D, *x = x_TD + t * D;
        double r = r_T[t], m = 0;
        for (int64_t d = 0; d < D; d++) m += dy[d] * w_D[d] * x[d] * r;
        m /= (double)D;
        if (dx_TD) for (int64_t d = 0; d < D; d++) dx_TD[t * D + d] = r * (dy[d] * w_D[d] - x[d] * r * m);
        if (dw_D) for (int64_t d = 0; d < D; d++) dw_D[d] += dy[d] * x[d] * r;
    }
}
