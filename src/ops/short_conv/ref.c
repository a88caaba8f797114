/* short_conv, reference: equations (1) to (6) of op.c in double. */
#include "ops/short_conv/short_conv.h"
#include <math.h>

/* x_(t-m) of (1), or NULL: before the document */
static const double *input(const double *x_TP, const double *hist, int64_t t, int64_t m, int64_t n_before, int64_t W, int64_t P)
{
    if (m > n_before) return NULL;
    return t >= m ? x_TP + (t - m) * P : hist + (W - 1 + t - m) * P;
}

void cdr__short_conv_ref(const cdr_ref_args *a)
{
    int64_t T = a->type[0].n[0], P = a->type[0].n[1], W = a->type[1].n[2], last = -1;
    const double *x = a->in[0], *w = a->in[1], *start = a->in[2], *pos = a->in[3];
    double *y = a->out[0], *hist = a->out[1];
    for (int64_t t = 0; t < T; t++) {
        int64_t n_before = (int64_t)(pos[t] - start[t]);
        if (n_before >= 0) last = t;
        for (int64_t c = 0; c < P; c++) {
            double p = 0;
            for (int64_t m = 0; m < W; m++) {
                const double *in = input(x, hist, t, m, n_before, W, P);
                if (in) p += w[c * W + W - 1 - m] * in[c];
            }
            y[t * P + c] = p / (1 + exp(-p));
        }
    }
    if (!hist || last < 0) return;
    int64_t n_before = (int64_t)(pos[last] - start[last]);
    for (int64_t i = 0; i < W - 1; i++) {                  /* ascending: row i of the new history is never read later */
        const double *in = input(x, hist, last, W - 2 - i, n_before, W, P);
        for (int64_t c = 0; c < P; c++) hist[i * P + c] = in ? in[c] : 0;
    }
}

void cdr__short_conv_bwd_ref(const cdr_ref_args *a)
{
    int64_t T = a->type[1].n[0], P = a->type[1].n[1], W = a->type[2].n[2];
    const double *dy = a->in[0], *x = a->in[1], *w = a->in[2], *start = a->in[3], *pos = a->in[4];
    double *dx = a->out[0], *dw = a->out[1];
    if (dx) memset(dx, 0, (size_t)(T * P) * sizeof(double));
    if (dw) memset(dw, 0, (size_t)(P * W) * sizeof(double));
    for (int64_t t = 0; t < T; t++) {
        int64_t n_before = (int64_t)(pos[t] - start[t]);
        for (int64_t c = 0; c < P; c++) {
            double p = 0;
            for (int64_t m = 0; m < W && m <= n_before; m++) p += w[c * W + W - 1 - m] * x[(t - m) * P + c];
            double s = 1 / (1 + exp(-p)), dp = dy[t * P + c] * s * (1 + p * (1 - s));
            for (int64_t m = 0; m < W && m <= n_before; m++) {
                if (dx) dx[(t - m) * P + c] += w[c * W + W - 1 - m] * dp;
                if (dw) dw[c * W + W - 1 - m] += x[(t - m) * P + c] * dp;
            }
        }
    }
}
