/* indexer in double: equations (1) to (8) of op.c as they stand. The selection by rank: a key is taken if fewer than top_k keys are
 * larger, or equal and lower. */
#include "ops/indexer/indexer.h"
#include <math.h>
#include <stdlib.h>

static double *doubles(int64_t n)
{
    double *p = calloc((size_t)n + 1, sizeof(double));
    CDR_CHECK(p);
    return p;
}
static double dot(const double *a, const double *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}
/* (1), from row t's q and w */
static double score(const double *q, const double *w, const double *k, int64_t H, int64_t D)
{
    double sum = 0;
    for (int64_t j = 0; j < H; j++) sum += w[j] * fmax(0, dot(q + j * D, k, D));
    return sum;
}

void cdr__indexer_ref(const cdr_ref_args *a)
{
    const cdr_indexer_attr *at = a->attr;
    int64_t H = at->heads, D = at->dim, T = a->type[CDR__IX_Q].n[0], S = a->type[CDR__IX_K].n[0], words = (S + 31) / 32;
    double *I = doubles(S);
    for (int64_t t = 0; t < T; t++) {
        int64_t first = (int64_t)a->in[CDR__IX_START][t], last = (int64_t)a->in[CDR__IX_POS][t];
        uint32_t *bits = calloc((size_t)words + 1, sizeof(uint32_t));
        CDR_CHECK(bits);
        for (int64_t s = first; s <= last; s++)
            I[s] = score(a->in[CDR__IX_Q] + t * H * D, a->in[CDR__IX_W] + t * H, a->in[CDR__IX_K] + s * D, H, D);
        for (int64_t s = first; s <= last; s++) {
            int64_t before = 0;
            for (int64_t r = first; r <= last; r++) before += I[r] > I[s] || (!(I[r] < I[s]) && r < s) ? 1 : 0;
            if (before < at->top_k || a->in[CDR__IX_DENSE][0] != 0) bits[s / 32] |= (uint32_t)1 << (s % 32);
        }
        for (int64_t i = 0; i < words; i++) a->out[0][t * words + i] = (double)(int32_t)bits[i];
        free(bits);
    }
    free(I);
}

/* p and q of row t over its list, (3) to (5); returns the size of the list */
static int64_t row(const cdr_ref_args *a, int64_t t, int64_t *list, double *p, double *q)
{
    const cdr_indexer_loss_attr *at = a->attr;
    int64_t H = at->heads, D = at->dim, M = at->main_heads, dk = at->nope + at->ext, T = a->type[CDR__IL_QI].n[0], words = (T + 31) / 32, n = 0;
    double sum = 0, l = 0, max = -INFINITY;
    for (int64_t s = (int64_t)a->in[CDR__IL_START][t]; s <= (int64_t)a->in[CDR__IL_POS][t]; s++)
        if ((uint32_t)(int64_t)a->in[CDR__IL_SEL][t * words + s / 32] >> (s % 32) & 1u) list[n++] = s;
    for (int64_t i = 0; i < n; i++) {
        p[i] = 0;
        for (int64_t h = 0; h < M; h++) {
            const double *qh = a->in[CDR__IL_Q] + (t * M + h) * dk, *kh = a->in[CDR__IL_KV] + (list[i] * M + h) * (at->nope + at->v);
            double s = dot(qh, kh, at->nope) + (at->ext ? dot(qh + at->nope, a->in[CDR__IL_KR] + list[i] * at->ext, at->ext) : 0);
            p[i] += exp((double)at->scale * s - a->in[CDR__IL_LSE][t * M + h]);
        }
        sum += p[i];
        q[i] = score(a->in[CDR__IL_QI] + t * H * D, a->in[CDR__IL_W] + t * H, a->in[CDR__IL_KI] + list[i] * D, H, D);
        max = fmax(max, q[i]);
    }
    for (int64_t i = 0; i < n; i++) l += exp(q[i] - max);
    for (int64_t i = 0; i < n; i++) {
        p[i] /= fmax(sum, 1e-10);
        q[i] = exp(q[i] - max) / l;
    }
    return n;
}

void cdr__indexer_loss_ref(const cdr_ref_args *a)
{
    const cdr_indexer_loss_attr *at = a->attr;
    int64_t T = a->type[CDR__IL_QI].n[0], *list = malloc(sizeof(int64_t) * (size_t)(T + 1));
    double *p = doubles(T), *q = doubles(T), kl = 0;
    CDR_CHECK(list);
    for (int64_t t = 0; t < T; t++) {
        int64_t n = row(a, t, list, p, q);
        for (int64_t i = 0; i < n; i++) if (p[i] > 0) kl += p[i] * (log(p[i]) - log(q[i]));
    }
    a->out[0][0] = (double)at->coef * kl;
    free(list);
    free(p);
    free(q);
}

void cdr__indexer_loss_bwd_ref(const cdr_ref_args *a)
{
    const cdr_indexer_loss_attr *at = a->attr;
    int64_t H = at->heads, D = at->dim, T = a->type[CDR__IL_QI].n[0], *list = malloc(sizeof(int64_t) * (size_t)(T + 1));
    double *p = doubles(T), *q = doubles(T), *dq = a->out[0], *dk = a->out[1], *dw = a->out[2], c = (double)at->coef * a->in[CDR__IL_SCALE][0];
    CDR_CHECK(list);
    if (dq) memset(dq, 0, sizeof(double) * (size_t)(T * H * D));
    if (dk) memset(dk, 0, sizeof(double) * (size_t)(T * D));
    if (dw) memset(dw, 0, sizeof(double) * (size_t)(T * H));
    for (int64_t t = 0; t < T; t++) {
        int64_t n = row(a, t, list, p, q);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < H; j++) {
                const double *qj = a->in[CDR__IL_QI] + (t * H + j) * D, *k = a->in[CDR__IL_KI] + list[i] * D;
                double x = dot(qj, k, D), di = c * (q[i] - p[i]), wj = a->in[CDR__IL_W][t * H + j];
                if (!(x > 0)) continue;
                if (dw) dw[t * H + j] += di * x;
                for (int64_t d = 0; d < D; d++) {
                    if (dq) dq[(t * H + j) * D + d] += di * wj * k[d];
                    if (dk) dk[list[i] * D + d] += di * wj * qj[d];
                }
            }
    }
    free(list);
    free(p);
    free(q);
}
