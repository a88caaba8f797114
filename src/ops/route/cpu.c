/* route, CPU: equation (1) of op.c; scores in double, as a check's time is not measured, rounded once to F32. */
#include "ops/route/route.h"
#include "ops/cpu.h"
#include <math.h>

static void one_row(const cdr_router_attr *at, const float *x_E, int64_t E, int32_t *idx_k, float *p_k)
{
    double max = -INFINITY, all = 0, sum = 0;
    for (int64_t e = 0; e < E && at->softmax; e++) max = fmax(max, (double)x_E[e]);
    for (int64_t e = 0; e < E && at->softmax; e++) all += exp((double)x_E[e] - max);
    for (int j = 0; j < at->top_k; j++) {
        double x = (double)x_E[idx_k[j]], s = at->softmax ? exp(x - max) / all : 1 / (1 + exp(-x));
        sum += s;
        p_k[j] = (float)s;
    }
    for (int j = 0; j < at->top_k; j++) p_k[j] = (float)((double)at->scale * (double)p_k[j] / (at->renormalize ? sum + 1e-20 : 1.0));
}

cdr_status cdr__route_base(const cdr_args *a)
{
    const cdr_router_attr *at = a->attr;
    const int32_t *start_T = a->ptr[2], *pos_T = a->ptr[3];
    const int32_t E = (int32_t)a->type[0].n[1];
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < a->type[0].n[0]; t++) {
        const int32_t *given_k = cdr_row(a->ptr[1], &a->type[1], t);
        int32_t *idx_k = cdr_row(a->ptr[4], &a->type[4], t);
        float *p_k = cdr_row(a->ptr[5], &a->type[5], t);
        for (int j = 0; j < at->top_k; j++) {
            int32_t id = CDR_MIN(CDR_MAX(given_k[j], 0), E - 1);
            int i = j;
            for (; i > 0 && idx_k[i - 1] > id; i--) idx_k[i] = idx_k[i - 1];
            idx_k[i] = id;
        }
        one_row(at, cdr_row(a->ptr[0], &a->type[0], t), E, idx_k, p_k);
        for (int j = 0; j < at->top_k && start_T[t] > pos_T[t]; j++) {
            idx_k[j] = -1;
            p_k[j] = 0.0f;
        }
    }
    return CDR_OK;
}
