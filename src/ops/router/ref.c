/* router, reference: equations (1) to (7) of op.c in double, as they are written; the selection by k searches for the largest. */
#include "ops/router/router.h"
#include <math.h>

static void scores(const double *x_E, double *s_E, int64_t E, bool softmax)                                          /* (1) */
{
    double max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < E; e++) max = fmax(max, x_E[e]);
    for (int64_t e = 0; e < E; e++) {
        s_E[e] = softmax ? exp(x_E[e] - max) : 1 / (1 + exp(-x_E[e]));
        sum += s_E[e];
    }
    if (softmax) for (int64_t e = 0; e < E; e++) s_E[e] /= sum;
}

/* First of the largest elements that are not out; out it goes. */
static int64_t pull(const double *v, bool *out, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) if (!out[i] && (best < 0 || v[i] > v[best])) best = i;
    if (best >= 0) out[best] = true;
    return best;
}

static void exclude_groups(const cdr_router_attr *a, const double *v_E, bool *out_E, int64_t E)                      /* (3) */
{
    int64_t size = E / a->groups;
    double score[CDR_ROUTER_MAX_GROUPS];
    bool chosen[CDR_ROUTER_MAX_GROUPS] = { false };
    for (int g = 0; g < a->groups; g++) {
        const double *v = v_E + g * size;
        bool *seen = out_E + g * size;
        int64_t first = pull(v, seen, size), second = pull(v, seen, size);
        score[g] = v[first] + v[second];
    }
    for (int n = 0; n < a->top_groups; n++) pull(score, chosen, a->groups);
    for (int64_t e = 0; e < E; e++) out_E[e] = !chosen[e / size];
}

void cdr__router_ref(const cdr_ref_args *a)
{
    const cdr_router_attr *at = a->attr;
    int64_t T = a->type[0].n[0], E = a->type[0].n[1], k = at->top_k;
    const double *start_T = a->in[2], *pos_T = a->in[3];
    double *s_E = cdr_alloc((size_t)E * sizeof *s_E), *v_E = cdr_alloc((size_t)E * sizeof *v_E);
    bool *out_E = cdr_alloc((size_t)E), *used_E = cdr_alloc((size_t)E);
    for (int64_t t = 0; t < T; t++) {
        double *idx_k = a->out[0] ? a->out[0] + t * k : NULL, *p_k = a->out[1] ? a->out[1] + t * k : NULL, sum = 0, alpha = 0;
        bool idle = start_T[t] > pos_T[t];
        memset(out_E, 0, (size_t)E);
        memset(used_E, 0, (size_t)E);
        scores(a->in[0] + t * E, s_E, E, at->softmax != 0);
        for (int64_t e = 0; e < E; e++) v_E[e] = s_E[e] + (a->in[1] ? a->in[1][e] : 0);                              /* (2) */
        if (at->groups > 1) exclude_groups(at, v_E, out_E, E);
        for (int64_t j = 0; j < k; j++) {                                                                           /* (4) */
            int64_t e = pull(v_E, out_E, E);
            used_E[e] = true;
            alpha = v_E[e];
            sum += s_E[e];
        }
        int64_t next = pull(v_E, out_E, E);
        if (next >= 0) alpha = v_E[next];
        for (int64_t e = 0, j = 0; e < E; e++) {
            if (!used_E[e]) continue;
            if (idx_k) idx_k[j] = idle ? -1 : (double)e;
            if (p_k) p_k[j] = idle ? 0 : at->renormalize ? (double)at->scale * s_E[e] / (sum + 1e-20) : (double)at->scale * s_E[e];   /* (5) */
            j++;
        }
        if (a->out[2]) a->out[2][t] = idle ? 0 : alpha;
    }
    cdr_free(s_E);
    cdr_free(v_E);
    cdr_free(out_E);
    cdr_free(used_E);
}

void cdr__router_bwd_ref(const cdr_ref_args *a)
{
    const cdr_router_attr *at = a->attr;
    int64_t T = a->type[1].n[0], E = a->type[1].n[1], k = at->top_k;
    double *s_E = cdr_alloc((size_t)E * sizeof *s_E);
    for (int64_t t = 0; t < T; t++) {
        const double *dp_k = a->in[0] + t * k, *x_E = a->in[1] + t * E, *idx_k = a->in[2] + t * k, *p_k = a->in[3] + t * k;
        double *dx_E = a->out[0] + t * E, sum = 1e-20, dot = 0, all = 0;
        for (int64_t e = 0; e < E; e++) dx_E[e] = 0;
        if (a->in[4][t] > a->in[5][t]) continue;
        scores(x_E, s_E, E, at->softmax != 0);
        for (int64_t j = 0; j < k; j++) {
            sum += s_E[(int64_t)idx_k[j]];
            dot += dp_k[j] * p_k[j];
        }
        for (int64_t j = 0; j < k; j++) dx_E[(int64_t)idx_k[j]] = at->renormalize ? ((double)at->scale * dp_k[j] - dot) / sum : (double)at->scale * dp_k[j];  /* (6) */
        for (int64_t e = 0; e < E; e++) all += dx_E[e] * s_E[e];
        for (int64_t e = 0; e < E; e++) dx_E[e] = at->softmax ? s_E[e] * (dx_E[e] - all) : dx_E[e] * s_E[e] * (1 / (1 + exp(x_E[e])));       /* (7) */
    }
    cdr_free(s_E);
}
