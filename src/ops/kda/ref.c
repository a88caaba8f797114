/* kda, reference: the recurrence (3) of op.c in double, row after row, and the same recurrence backwards. No chunks: it shares
 * neither equations nor code with the kernels. The backward keeps the state after every row of a head. */
#include "ops/kda/kda.h"
#include <math.h>

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }

/* One row of one head: (1) and (2). Arrays of d. */
typedef struct { double *q, *k, *g, *u, *o; double rq, rk, beta, a; } row;
typedef struct {
    const cdr_kda_attr *at; const double *const *in;       /* as kda's inputs */
    int64_t T, d, H, h;
} head;

static double *doubles(int64_t n)
{
    double *p = cdr_alloc((size_t)n * sizeof(double));
    memset(p, 0, (size_t)n * sizeof(double));
    return p;
}
static const double *at_row(const head *s, int i, int64_t t) { return s->in[i] + (t * s->H + s->h) * s->d; }
static bool live(const head *s, int64_t t) { return s->in[CDR__KDA_POS][t] >= s->in[CDR__KDA_START][t]; }
/* row t goes on where row t-1 stopped */
static bool goes_on(const head *s, int64_t t)
{
    const double *start = s->in[CDR__KDA_START], *pos = s->in[CDR__KDA_POS];
    return t > 0 && live(s, t) && live(s, t - 1) && start[t] == start[t - 1] && pos[t] == pos[t - 1] + 1;
}

static double normalise(const double *x, double *y, int64_t d)
{
    double ss = 1e-6;
    for (int64_t i = 0; i < d; i++) ss += x[i] * x[i];
    for (int64_t i = 0; i < d; i++) y[i] = x[i] / sqrt(ss);
    return 1 / sqrt(ss);
}

static void fill_row(const head *s, int64_t t, row *r)
{
    const double *z = at_row(s, CDR__KDA_Z, t), *bias = s->in[CDR__KDA_DT_BIAS] + s->h * s->d;
    r->rq = normalise(at_row(s, CDR__KDA_Q, t), r->q, s->d);
    r->rk = normalise(at_row(s, CDR__KDA_K, t), r->k, s->d);
    r->beta = sigmoid(s->in[CDR__KDA_BETA][t * s->H + s->h]);
    r->a = exp(s->in[CDR__KDA_A_LOG][s->h]);
    for (int64_t i = 0; i < s->d; i++) {
        r->u[i] = z[i] + bias[i];
        r->g[i] = s->at->softplus ? -r->a * softplus(r->u[i]) : (double)s->at->lower_bound * sigmoid(r->a * r->u[i]);
    }
}

/* S (in place, [dk][dv]) over one row, (3); o */
static void step(const head *s, const row *r, const double *v, double *S)
{
    int64_t d = s->d;
    for (int64_t i = 0; i < d * d; i++) S[i] *= exp(r->g[i / d]);
    for (int64_t j = 0; j < d; j++) {
        double delta = v[j];
        for (int64_t i = 0; i < d; i++) delta -= S[i * d + j] * r->k[i];
        for (int64_t i = 0; i < d; i++) S[i * d + j] += r->beta * r->k[i] * delta;
        r->o[j] = 0;
        for (int64_t i = 0; i < d; i++) r->o[j] += S[i * d + j] * r->q[i] / sqrt((double)d);
    }
}

static row row_new(int64_t d)
{
    double *p = doubles(5 * d);
    return (row){ .q = p, .k = p + d, .g = p + 2 * d, .u = p + 3 * d, .o = p + 4 * d };
}

static double rms_factor(const head *s, const double *o)
{
    double ss = 0;
    for (int64_t i = 0; i < s->d; i++) ss += o[i] * o[i];
    return 1 / sqrt(ss / (double)s->d + (double)s->at->norm_eps);
}

static void forward_head(const head *s, double *y, double *state)
{
    int64_t d = s->d;
    row r = row_new(d);
    double *S = doubles(d * d);
    bool any = false;
    for (int64_t t = 0; t < s->T; t++) {
        double *y_d = y + (t * s->H + s->h) * d;
        memset(y_d, 0, (size_t)d * sizeof(double));
        if (!live(s, t)) continue;
        if (!goes_on(s, t)) {
            bool fresh = s->in[CDR__KDA_POS][t] == s->in[CDR__KDA_START][t];
            for (int64_t i = 0; i < d * d; i++) S[i] = fresh ? 0 : state[(s->h * d + i % d) * d + i / d];
        }
        any = true;
        fill_row(s, t, &r);
        step(s, &r, at_row(s, CDR__KDA_V, t), S);
        double f = rms_factor(s, r.o);
        for (int64_t i = 0; i < d; i++) y_d[i] = r.o[i] * f * s->in[CDR__KDA_O_NORM][i] * sigmoid(at_row(s, CDR__KDA_GATE, t)[i]);
    }
    for (int64_t i = 0; state && any && i < d * d; i++) state[(s->h * d + i % d) * d + i / d] = S[i];
    cdr_free(S);
    cdr_free(r.q);
}

void cdr__kda_ref(const cdr_ref_args *a)
{
    const cdr_kda_attr *at = a->attr;
    for (int64_t h = 0; h < at->heads; h++) {
        head s = { at, a->in, a->type[0].n[0], at->dim, at->heads, h };
        forward_head(&s, a->out[0], a->out[1]);
    }
}

/* ---- backward -------------------------------------------------------------------------------------------------- */
typedef struct { double *o, *q, *k, *g, *v, beta; } row_grad;      /* of one row */

/* (9): dgate, do_norm; the gradient of o */
static void gate_backward(const head *s, int64_t t, const double *dy, const double *o, double *const *out, double *d_o)
{
    int64_t d = s->d, at = (t * s->H + s->h) * d;
    double r = rms_factor(s, o), mean = 0;
    for (int64_t i = 0; i < d; i++) {
        double x = o[i] * r, w = s->in[CDR__KDA_O_NORM][i], e = sigmoid(s->in[CDR__KDA_GATE][at + i]);
        if (out[CDR__KDA_GATE]) out[CDR__KDA_GATE][at + i] = dy[at + i] * x * w * e * (1 - e);
        if (out[CDR__KDA_O_NORM]) out[CDR__KDA_O_NORM][i] += dy[at + i] * x * e;
        d_o[i] = dy[at + i] * w * e;
        mean += d_o[i] * x / (double)d;
    }
    for (int64_t i = 0; i < d; i++) d_o[i] = r * (d_o[i] - o[i] * r * mean);
}

/* (3) backwards: dS comes in as the gradient of S_t and leaves as that of S_(t-1). before: S_(t-1), NULL for zero. */
static void step_backward(const head *s, const row *r, const double *v, const double *before, const double *after, double *dS, row_grad *g)
{
    int64_t d = s->d;
    double scale = 1 / sqrt((double)d);
    memset(g->q, 0, (size_t)d * sizeof(double));
    memset(g->k, 0, (size_t)d * sizeof(double));
    memset(g->g, 0, (size_t)d * sizeof(double));
    g->beta = 0;
    for (int64_t j = 0; j < d; j++) {
        double delta = v[j], d_delta = 0;
        for (int64_t i = 0; i < d; i++) {
            double D = before ? exp(r->g[i]) * before[i * d + j] : 0;
            dS[i * d + j] += scale * r->q[i] * g->o[j];
            g->q[i] += scale * after[i * d + j] * g->o[j];
            delta -= D * r->k[i];
            d_delta += r->beta * r->k[i] * dS[i * d + j];
        }
        for (int64_t i = 0; i < d; i++) {
            double D = before ? exp(r->g[i]) * before[i * d + j] : 0;
            g->beta += r->k[i] * dS[i * d + j] * delta;
            g->k[i] += r->beta * dS[i * d + j] * delta - D * d_delta;
            double dD = dS[i * d + j] - r->k[i] * d_delta;
            g->g[i] += dD * D;
            dS[i * d + j] = exp(r->g[i]) * dD;
        }
        g->v[j] = d_delta;
    }
}

/* (18), (19) */
static void inputs_backward(const head *s, int64_t t, const row *r, const row_grad *g, double *const *out)
{
    int64_t d = s->d, at = (t * s->H + s->h) * d;
    double qq = 0, kk = 0;
    for (int64_t i = 0; i < d; i++) {
        qq += r->q[i] * g->q[i];
        kk += r->k[i] * g->k[i];
    }
    for (int64_t i = 0; i < d; i++) {
        double e = sigmoid(r->a * r->u[i]);
        double dz = s->at->softplus ? -r->a * sigmoid(r->u[i]) * g->g[i] : g->g[i] * (double)s->at->lower_bound * e * (1 - e) * r->a;
        if (out[CDR__KDA_Q]) out[CDR__KDA_Q][at + i] = r->rq * (g->q[i] - r->q[i] * qq);
        if (out[CDR__KDA_K]) out[CDR__KDA_K][at + i] = r->rk * (g->k[i] - r->k[i] * kk);
        if (out[CDR__KDA_V]) out[CDR__KDA_V][at + i] = g->v[i];
        if (out[CDR__KDA_Z]) out[CDR__KDA_Z][at + i] = dz;
        if (out[CDR__KDA_A_LOG]) out[CDR__KDA_A_LOG][s->h] += s->at->softplus ? g->g[i] * r->g[i] : dz * r->u[i];
        if (out[CDR__KDA_DT_BIAS]) out[CDR__KDA_DT_BIAS][s->h * d + i] += dz;
    }
    if (out[CDR__KDA_BETA]) out[CDR__KDA_BETA][t * s->H + s->h] = g->beta * r->beta * (1 - r->beta);
}

static void backward_head(const head *s, const double *dy, double *const *out)
{
    int64_t d = s->d, T = s->T;
    row r = row_new(d);
    double *S_T = doubles((T + 1) * d * d), *o_T = doubles(T * d), *dS = doubles(d * d), *g_d = doubles(5 * d);
    row_grad g = { g_d, g_d + d, g_d + 2 * d, g_d + 3 * d, g_d + 4 * d, 0 };
    for (int64_t t = 0; t < T; t++) {
        double *S = S_T + t * d * d;
        if (!live(s, t)) continue;
        if (goes_on(s, t)) memcpy(S, S - d * d, (size_t)(d * d) * sizeof(double));
        fill_row(s, t, &r);
        step(s, &r, at_row(s, CDR__KDA_V, t), S);
        memcpy(o_T + t * d, r.o, (size_t)d * sizeof(double));
    }
    for (int64_t t = T - 1; t >= 0; t--) {
        if (!live(s, t)) continue;
        if (t == T - 1 || !goes_on(s, t + 1)) memset(dS, 0, (size_t)(d * d) * sizeof(double));
        fill_row(s, t, &r);
        gate_backward(s, t, dy, o_T + t * d, out, g.o);
        step_backward(s, &r, at_row(s, CDR__KDA_V, t), goes_on(s, t) ? S_T + (t - 1) * d * d : NULL, S_T + t * d * d, dS, &g);
        inputs_backward(s, t, &r, &g, out);
    }
    cdr_free(S_T);
    cdr_free(o_T);
    cdr_free(dS);
    cdr_free(g_d);
    cdr_free(r.q);
}

void cdr__kda_bwd_ref(const cdr_ref_args *a)
{
    const cdr_kda_attr *at = a->attr;
    for (int i = 0; i < CDR__KDA_START; i++)
        if (a->out[i]) memset(a->out[i], 0, (size_t)cdr_type_elems(&a->type[1 + i]) * sizeof(double));
    for (int64_t h = 0; h < at->heads; h++) {
        head s = { at, a->in + 1, a->type[0].n[0], at->dim, at->heads, h };
        backward_head(&s, a->in[0], a->out);
    }
}
