/* route, reference: equation (1) of op.c in double. */
#include "ops/route/route.h"
#include <math.h>

void cdr__route_ref(const cdr_ref_args *a)
{
    const cdr_router_attr *at = a->attr;
    int64_t T = a->type[0].n[0], E = a->type[0].n[1], k = at->top_k;
    for (int64_t t = 0; t < T; t++) {
        const double *x_E = a->in[0] + t * E, *given_k = a->in[1] + t * k;
        double *idx_k = a->out[0] + t * k, *p_k = a->out[1] + t * k, max = -INFINITY, all = 0, sum = 0;
        bool idle = a->in[2][t] > a->in[3][t];
        for (int64_t e = 0; e < E; e++) max = fmax(max, x_E[e]);
        for (int64_t e = 0; e < E; e++) all += exp(x_E[e] - max);
        for (int64_t j = 0; j < k; j++) {                                /* the j-th smallest id */
            double id = given_k[j] < 0 ? 0 : given_k[j] >= (double)E ? (double)(E - 1) : given_k[j];
            int64_t at_j = j;
            for (; at_j > 0 && idx_k[at_j - 1] > id; at_j--) idx_k[at_j] = idx_k[at_j - 1];
            idx_k[at_j] = id;
        }
        for (int64_t j = 0; j < k; j++) {
            double x = x_E[(int64_t)idx_k[j]];
            p_k[j] = at->softmax ? exp(x - max) / all : 1 / (1 + exp(-x));
            sum += p_k[j];
        }
        for (int64_t j = 0; j < k; j++) {
            p_k[j] = idle ? 0 : at->renormalize ? (double)at->scale * p_k[j] / (sum + 1e-20) : (double)at->scale * p_k[j];
            if (idle) idx_k[j] = -1;
        }
    }
}
