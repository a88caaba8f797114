/* aux_loss, reference: equations (1) to (5) of op.c in double, as they are written. */
#include "ops/aux_loss/aux_loss.h"
#include <math.h>

/* (1) of one token: h, scores, and what h was divided by */
static double shares(const double *x_E, double *s_E, double *h_E, int64_t E, bool softmax)
{
    double max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < E; e++) max = fmax(max, x_E[e]);
    for (int64_t e = 0; e < E; e++) {
        s_E[e] = softmax ? exp(x_E[e] - max) : 1 / (1 + exp(-x_E[e]));
        sum += s_E[e];
    }
    if (softmax) for (int64_t e = 0; e < E; e++) s_E[e] /= sum;
    sum = softmax ? 1 : sum + 1e-20;
    for (int64_t e = 0; e < E; e++) h_E[e] = s_E[e] / sum;
    return sum;
}

/* (3), and dx of (4) or (5) where dx_TE is not NULL */
static double aux(const cdr_aux_loss_attr *at, const double *const *in, int64_t T, int64_t E, double g, double *dx_TE)
{
    double *f_E = cdr_alloc((size_t)(3 * E) * sizeof *f_E), *s_E = f_E + E, *h_E = s_E + E, total = 0;
    int64_t k = at->top_k;
    for (int64_t first = 0; first < T; first += at->row) {
        double n = 0;
        for (int64_t e = 0; e < E; e++) f_E[e] = 0;
        for (int64_t t = first; t < first + at->row; t++) {
            if (in[2][t] > in[3][t]) continue;
            n += 1;
            for (int64_t j = 0; j < k; j++) f_E[(int64_t)in[1][t * k + j]] += 1;
        }
        for (int64_t e = 0; e < E && n > 0; e++) f_E[e] *= (double)at->coef * (double)E / ((double)k * n);                              /* (2) */
        for (int64_t t = first; t < first + at->row; t++) {
            bool idle = in[2][t] > in[3][t];
            double mean = 0, sum = shares(in[0] + t * E, s_E, h_E, E, at->softmax != 0);
            for (int64_t e = 0; e < E; e++) mean += f_E[e] * h_E[e];
            if (!idle) total += mean;
            for (int64_t e = 0; e < E && dx_TE; e++) {
                double slope = at->softmax ? 1 : 1 / (1 + exp(in[0][t * E + e]));
                dx_TE[t * E + e] = idle ? 0 : g * (f_E[e] - mean) / sum * s_E[e] * slope;
            }
        }
    }
    cdr_free(f_E);
    return total;
}

void cdr__aux_loss_ref(const cdr_ref_args *a) { a->out[0][0] = aux(a->attr, a->in, a->type[0].n[0], a->type[0].n[1], 0, NULL); }
void cdr__aux_loss_bwd_ref(const cdr_ref_args *a) { aux(a->attr, a->in + 1, a->type[1].n[0], a->type[1].n[1], a->in[0][0], a->out[0]); }
