/* balance, references: equations (1) to (6) of op.c in double, as they are written; out[0] comes in with the old content. */
#include "ops/balance/balance.h"
#include <math.h>

void cdr__balance_load_ref(const cdr_ref_args *a)
{
    int64_t pairs = cdr_type_elems(&a->type[0]), E = a->type[2].n[0];
    for (int64_t e = 0; e < E && a->in[1][0] == 0; e++) a->out[0][e] = 0;
    for (int64_t i = 0; i < pairs; i++) if (a->in[0][i] >= 0) a->out[0][(int64_t)a->in[0][i]] += 1;
}

static void range(const double *b, int64_t E, int64_t B, double *lo, double *w)
{
    double min = b[0], max = b[0];
    for (int64_t e = 0; e < E; e++) {
        min = fmin(min, b[e]);
        max = fmax(max, b[e]);
    }
    *lo = min - 1;
    *w = (max - min + 2) / (double)B;
}

void cdr__balance_hist_ref(const cdr_ref_args *a)
{
    const cdr_balance_hist_attr *at = a->attr;
    int64_t T = a->type[0].n[0], E = a->type[0].n[1], B = at->bins;
    double lo, w;
    range(a->in[2], E, B, &lo, &w);
    for (int64_t i = 0; i < E * B && a->in[5][0] == 0; i++) a->out[0][i] = 0;
    for (int64_t t = 0; t < T; t++) {
        const double *x = a->in[0] + t * E;
        double max = -INFINITY, sum = 0;
        if (a->in[3][t] > a->in[4][t]) continue;
        for (int64_t e = 0; e < E; e++) max = fmax(max, x[e]);
        for (int64_t e = 0; e < E; e++) sum += exp(x[e] - max);
        for (int64_t e = 0; e < E; e++) {
            double s = at->softmax ? exp(x[e] - max) / sum : 1 / (1 + exp(-x[e])), n = floor((a->in[1][t] - s - lo) / w);
            a->out[0][e * B + (int64_t)fmin(fmax(n, 0), (double)(B - 1))] += 1;
        }
    }
}

void cdr__balance_quantile_ref(const cdr_ref_args *a)
{
    const cdr_balance_quantile_attr *at = a->attr;
    int64_t E = a->type[0].n[0], B = at->bins;
    double *b = a->out[0], lo, w, m = 0, mean = 0;
    for (int64_t n = 0; n < B; n++) m += a->in[0][n];
    if (m == 0) return;
    range(b, E, B, &lo, &w);
    for (int64_t e = 0; e < E; e++) {
        const double *h = a->in[0] + e * B;
        double q = m * at->top_k / (double)E, upto = 0, hat = 0;
        for (int64_t n = 0; n < B; n++) {
            upto += h[n];
            if (upto < q) continue;
            hat = lo + ((double)n + (q - (upto - h[n])) / h[n]) * w;
            break;
        }
        b[e] = (double)at->ema * b[e] + (1 - (double)at->ema) * hat;
        mean += b[e] / (double)E;
    }
    for (int64_t e = 0; e < E; e++) b[e] -= mean;
}

void cdr__balance_sign_ref(const cdr_ref_args *a)
{
    int64_t E = a->type[0].n[0];
    double sum = 0;
    for (int64_t e = 0; e < E; e++) sum += a->in[0][e];
    for (int64_t e = 0; e < E; e++) {
        double d = sum - a->in[0][e] * (double)E;
        a->out[0][e] += (double)((const cdr_balance_sign_attr *)a->attr)->rate * (d > 0 ? 1 : d < 0 ? -1 : 0);
    }
}
