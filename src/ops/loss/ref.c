/* loss in double: equations (1)-(4) of op.c, a whole row of logits at a time. The backward takes lse from its operand. */
#include "ops/loss/loss.h"
#include <math.h>

static double logit(const cdr_ref_args *a, int64_t t, int64_t v)
{
    int64_t D = a->type[CDR__LOSS_H].n[1];
    double z = 0;
    for (int64_t i = 0; i < D; i++) z += a->in[CDR__LOSS_H][t * D + i] * a->in[CDR__LOSS_W][v * D + i];
    return z;
}

/* of token t; operand i: where weights would be */
static double weight(const cdr_ref_args *a, int i, int64_t t) { return a->n_in > i ? a->in[i][t] : 1; }

static void loss_of(const cdr_ref_args *a, int i_weights)
{
    int64_t T = a->type[CDR__LOSS_H].n[0], W = a->type[CDR__LOSS_W].n[0];
    a->out[0][0] = 0;
    for (int64_t t = 0; t < T; t++) {
        int64_t y = (int64_t)a->in[CDR__LOSS_TARGETS][t];
        double m = -INFINITY, s = 0;
        for (int64_t v = 0; v < W && y >= 0; v++) {      /* one pass: s is always relative to the largest so far */
            double z = logit(a, t, v), to = fmax(m, z);
            s = s * exp(m - to) + exp(z - to);
            m = to;
        }
        if (y >= 0) a->out[0][0] += weight(a, i_weights, t) * (m + log(s) - logit(a, t, y));
        if (a->out[1]) a->out[1][t] = y >= 0 ? m + log(s) : 0;
    }
}

void cdr__loss_ref(const cdr_ref_args *a) { loss_of(a, CDR__LOSS_WEIGHTS); }

void cdr__loss_bwd_ref(const cdr_ref_args *a)
{
    int64_t T = a->type[CDR__LSB_H].n[0], D = a->type[CDR__LSB_H].n[1], W = a->type[CDR__LSB_W].n[0];
    double *dh = a->out[0], *dw = a->out[1], scale = a->in[CDR__LSB_SCALE][0];
    if (dh) memset(dh, 0, sizeof(double) * (size_t)(T * D));
    if (dw) memset(dw, 0, sizeof(double) * (size_t)(W * D));
    for (int64_t t = 0; t < T; t++) {
        int64_t y = (int64_t)a->in[CDR__LSB_TARGETS][t];
        for (int64_t v = 0; v < W && y >= 0; v++) {
            double d = (exp(logit(a, t, v) - a->in[CDR__LSB_LSE][t]) - (v == y ? 1.0 : 0.0)) * scale * weight(a, CDR__LSB_WEIGHTS, t);
            for (int64_t i = 0; dh && i < D; i++) dh[t * D + i] += d * a->in[CDR__LSB_W][v * D + i];
            for (int64_t i = 0; dw && i < D; i++) dw[v * D + i] += d * a->in[CDR__LSB_H][t * D + i];
        }
    }
}

void cdr__loss_frozen_ref(const cdr_ref_args *a)
{
    int64_t T = a->type[CDR__LOSS_H].n[0];
    double *lse = cdr_alloc(sizeof(double) * (size_t)CDR_MAX(T, 1)), *out[2] = { a->out[0], lse }, *dh[2] = { a->out[1], NULL };
    cdr_ref_args fwd = *a;
    fwd.out = out;
    loss_of(&fwd, CDR__LSF_WEIGHTS);
    const double *in[6] = { a->in[0], a->in[1], a->in[2], lse, a->in[CDR__LSF_SCALE], a->n_in > CDR__LSF_WEIGHTS ? a->in[CDR__LSF_WEIGHTS] : NULL };
    cdr_ref_args bwd = *a;
    bwd.n_in = a->n_in + 1;
    bwd.in = in;
    bwd.out = dh;
    if (a->out[1]) cdr__loss_bwd_ref(&bwd);
    cdr_free(lse);
}
