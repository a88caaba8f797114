/* attn_res, reference: equations (1) to (7) of op.c in double, as they are written; k is formed. */
#include "ops/attn_res/attn_res.h"
#include <math.h>

typedef struct { double r[CDR_ATTN_RES_MAX], p[CDR_ATTN_RES_MAX]; } token;

/* (1), (2) of token t; v: the first row operand */
static token mixed(const cdr_attn_res_attr *at, const double *const *v, int64_t t, int64_t D)
{
    token k;
    const double *proj = v[at->n], *norm = v[at->n + 1];
    double s[CDR_ATTN_RES_MAX], top = -INFINITY, sum = 0;
    for (int i = 0; i < at->n; i++) {
        const double *x = v[i] + t * D;
        double ss = 0;
        for (int64_t d = 0; d < D; d++) ss += x[d] * x[d];
        k.r[i] = 1 / sqrt(ss / (double)D + (double)at->eps);
        s[i] = 0;
        for (int64_t d = 0; d < D; d++) s[i] += x[d] * k.r[i] * (norm[d] * proj[d]);
        top = fmax(top, s[i]);
    }
    for (int i = 0; i < at->n; i++) sum += k.p[i] = exp(s[i] - top);
    for (int i = 0; i < at->n; i++) k.p[i] /= sum;
    return k;
}

void cdr__attn_res_ref(const cdr_ref_args *a)
{
    const cdr_attn_res_attr *at = a->attr;
    int64_t T = cdr_type_rows(&a->type[0]), D = cdr_type_cols(&a->type[0]);
    for (int64_t t = 0; t < T; t++) {
        token k = mixed(at, a->in, t, D);
        for (int64_t d = 0; d < D; d++) {
            double h = 0;
            for (int i = 0; i < at->n; i++) h += k.p[i] * a->in[i][t * D + d];
            a->out[0][t * D + d] = h;
        }
    }
}

void cdr__attn_res_bwd_ref(const cdr_ref_args *a)
{
    const cdr_attn_res_attr *at = a->attr;
    int64_t T = cdr_type_rows(&a->type[0]), D = cdr_type_cols(&a->type[0]);
    const double *const *v = a->in + 1, *proj = v[at->n], *norm = v[at->n + 1];
    double *dproj = a->out[CDR__ARB_DPROJ], *dnorm = a->out[CDR__ARB_DNORM];
    for (int64_t d = 0; d < D; d++) {
        if (dproj) dproj[d] = 0;
        if (dnorm) dnorm[d] = 0;
    }
    for (int64_t t = 0; t < T; t++) {
        token k = mixed(at, v, t, D);
        const double *dh = a->in[0] + t * D;
        double dp[CDR_ATTN_RES_MAX], mean_dp = 0;
        for (int i = 0; i < at->n; i++) {
            dp[i] = 0;
            for (int64_t d = 0; d < D; d++) dp[i] += v[i][t * D + d] * dh[d];
            mean_dp += k.p[i] * dp[i];
        }
        for (int i = 0; i < at->n; i++) {
            double ds = k.p[i] * (dp[i] - mean_dp), mean_ck = 0, *dv = a->out[CDR__ARB_DV + i];
            const double *x = v[i] + t * D;
            for (int64_t d = 0; d < D; d++) mean_ck += ds * norm[d] * proj[d] * x[d] * k.r[i];
            mean_ck /= (double)D;
            for (int64_t d = 0; d < D; d++) {
                double kd = x[d] * k.r[i], c = ds * norm[d] * proj[d];
                if (dv) dv[t * D + d] = k.p[i] * dh[d] + k.r[i] * (c - kd * mean_ck);
                if (dproj) dproj[d] += norm[d] * ds * kd;
                if (dnorm) dnorm[d] += proj[d] * ds * kd;
            }
        }
    }
}
