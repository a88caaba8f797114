/* attention in double: equations (1)-(5) of op.c as they stand, two passes over the keys, no tiles. The backward takes
 * lse and o from its operands, as the kernels do. */
#include "ops/attention/attention.h"
#include <math.h>

void cdr__attention_ref(const cdr_ref_args *a);
void cdr__attention_bwd_ref(const cdr_ref_args *a);

/* Is key s among those that row t sees? mask_TB: bits as the I32 numbers that they are, or NULL. */
static bool sees(const double *mask_TB, int64_t n_words, int64_t t, int64_t s)
{
    return !mask_TB || ((uint32_t)(int64_t)mask_TB[t * n_words + s / 32] >> (s % 32) & 1u) != 0;
}

/* Where things of head h lie in dense rows. */
typedef struct { const cdr_attention_attr *at; int64_t H, nope, ext, v, dk; const double *q, *kv, *kr; } heads;

static heads heads_of(const cdr_attention_attr *at, const double *q, const double *kv, const double *kr)
{
    heads d = { at, at->heads, at->nope, at->ext, at->v, (int64_t)at->nope + at->ext, q, kv, kr };
    return d;
}
static const double *q_row(const heads *d, int64_t t, int64_t h) { return d->q + (t * d->H + h) * d->dk; }
static const double *k_row(const heads *d, int64_t s, int64_t h) { return d->kv + (s * d->H + h) * (d->nope + d->v); }

static double score(const heads *d, int64_t t, int64_t s, int64_t h)
{
    const double *q = q_row(d, t, h), *k = k_row(d, s, h);
    double x = 0;
    for (int64_t i = 0; i < d->nope; i++) x += q[i] * k[i];
    for (int64_t i = 0; i < d->ext; i++) x += q[d->nope + i] * d->kr[s * d->ext + i];
    return x * (double)d->at->scale;
}

void cdr__attention_ref(const cdr_ref_args *a)
{
    heads d = heads_of(a->attr, a->in[0], a->in[1], a->in[2]);
    const double *mask = a->in[CDR__ATT_SEL];
    int64_t T = a->type[0].n[0], words = cdr_ceil_div(a->type[1].n[0], 32);
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < d.H; h++) {
            int64_t first = (int64_t)a->in[3][t], last = (int64_t)a->in[4][t];
            double m = -INFINITY, l = 0, *o = a->out[0] + (t * d.H + h) * d.v;
            for (int64_t s = first; s <= last; s++) if (sees(mask, words, t, s)) m = fmax(m, score(&d, t, s, h));
            for (int64_t i = 0; i < d.v; i++) o[i] = 0;
            for (int64_t s = first; s <= last; s++) {
                if (!sees(mask, words, t, s)) continue;
                double p = exp(score(&d, t, s, h) - m);
                const double *v = k_row(&d, s, h) + d.nope;
                l += p;
                for (int64_t i = 0; i < d.v; i++) o[i] += p * v[i];
            }
            for (int64_t i = 0; i < d.v; i++) o[i] = first <= last ? o[i] / l : 0;
            if (a->out[1]) memcpy(a->out[1] + (t * d.H + h) * d.v, o, sizeof(double) * (size_t)d.v);
            if (a->out[2]) a->out[2][t * d.H + h] = first <= last ? m + log(l) : 0;
        }
}

/* One query row and head: (3)-(5). NULL gradients are not wanted. */
static void row_bwd(const cdr_ref_args *a, const heads *d, int64_t t, int64_t h)
{
    const double *dout = a->in[CDR__ATB_DO] + (t * d->H + h) * d->v, *o = a->in[CDR__ATB_O] + (t * d->H + h) * d->v, *q = q_row(d, t, h);
    double *dq = a->out[0], *dkv = a->out[1], *dkr = a->out[2], delta = 0, scale = (double)d->at->scale;
    for (int64_t i = 0; i < d->v; i++) delta += dout[i] * o[i];
    for (int64_t s = (int64_t)a->in[CDR__ATB_START][t]; s <= (int64_t)a->in[CDR__ATB_POS][t]; s++) {
        if (!sees(a->in[CDR__ATB_SEL], cdr_ceil_div(a->type[CDR__ATB_KV].n[0], 32), t, s)) continue;
        const double *k = k_row(d, s, h), *v = k + d->nope;
        double p = exp(score(d, t, s, h) - a->in[CDR__ATB_LSE][t * d->H + h]), dp = 0;
        int64_t kv_at = (s * d->H + h) * (d->nope + d->v), q_at = (t * d->H + h) * d->dk;
        for (int64_t i = 0; i < d->v; i++) dp += dout[i] * v[i];
        double ds = p * (dp - delta) * scale;
        for (int64_t i = 0; dkv && i < d->v; i++) dkv[kv_at + d->nope + i] += p * dout[i];
        for (int64_t i = 0; dkv && i < d->nope; i++) dkv[kv_at + i] += ds * q[i];
        for (int64_t i = 0; dkr && i < d->ext; i++) dkr[s * d->ext + i] += ds * q[d->nope + i];
        for (int64_t i = 0; dq && i < d->nope; i++) dq[q_at + i] += ds * k[i];
        for (int64_t i = 0; dq && i < d->ext; i++) dq[q_at + d->nope + i] += ds * d->kr[s * d->ext + i];
    }
}

void cdr__attention_bwd_ref(const cdr_ref_args *a)
{
    heads d = heads_of(a->attr, a->in[CDR__ATB_Q], a->in[CDR__ATB_KV], a->in[CDR__ATB_KR]);
    int64_t T = a->type[CDR__ATB_Q].n[0];
    int64_t n[3] = { T * d.H * d.dk, T * d.H * (d.nope + d.v), T * d.ext };
    for (int k = 0; k < 3; k++)
        if (a->out[k]) memset(a->out[k], 0, sizeof(double) * (size_t)n[k]);
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < d.H; h++) row_bwd(a, &d, t, h);
}
