/* scores.h: a token's scores over all experts in F32, the same bits for everyone who needs them: the router, the histogram of
 * quantile balancing and the auxiliary loss.
 *
 *   cdr_scores(x_E, s_E, E, softmax);                      // (1) of op.c
 */
#ifndef CDR_OPS_ROUTER_SCORES_H
#define CDR_OPS_ROUTER_SCORES_H

#include "ops/vector_simd.h"
#include <float.h>
#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline float cdr_sigmoid(float x) { return 1.0f / (1.0f + cdr_exp(-x)); }

/* Largest element; NaN is passed over, so that it is the sum that becomes NaN. Exact, so its order is free. */
static inline float cdr_row_max(const float *x, int64_t n)
{
    float m[16], best = -INFINITY;
    int64_t i = 0;
    for (int j = 0; j < 16; j++) m[j] = -INFINITY;
    for (; i + 16 <= n; i += 16) for (int j = 0; j < 16; j++) m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    for (int j = 0; j < 16; j++) best = m[j] > best ? m[j] : best;
    return best;
}

/* Sum in the order of cdr_dot. */
static inline float cdr_row_sum(const float *x, int64_t n)
{
    float s[16] = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) for (int j = 0; j < 16; j++) s[j] += x[i + j];
    for (int j = 0; i + j < n; j++) s[j] += x[i + j];
    for (int w = 8; w > 0; w /= 2) for (int j = 0; j < w; j++) s[j] += s[j + w];
    return s[0];
}

/* softmax: s = exp(x - max) / sum; leaves max and sum, from which any single score follows again. */
static inline void cdr_scores_softmax(const float *CDR_RESTRICT x_E, float *CDR_RESTRICT s_E, int64_t E, float *max, float *sum)
{
    const float m = cdr_row_max(x_E, E);
    float x_buf[CDR_BLOCK], s_buf[CDR_BLOCK];
    CDR_BLOCKS(at, n, E) {
        const float *x = cdr_take(CDR_F32, x_E, at, n, x_buf);
        float *s = cdr_room(CDR_F32, s_E, at, n, false, s_buf);
        for (int64_t i = 0; i < n; i += CDR_XLANES) {
            cdr_vx v = cdr_xget(x + i);
            CDR_EACH(j) v.v[j] = v.v[j] - m;
            cdr_xput(s + i, cdr_xexp(v));
        }
        cdr_give(CDR_F32, s, s_E, at, n, false);
    }
    *max = m;
    *sum = cdr_row_sum(s_E, E);
    for (int64_t e = 0; e < E; e++) s_E[e] = s_E[e] / *sum;
}

static inline void cdr_scores_sigmoid(const float *CDR_RESTRICT x_E, float *CDR_RESTRICT s_E, int64_t E)
{
    float x_buf[CDR_BLOCK], s_buf[CDR_BLOCK];
    CDR_BLOCKS(at, n, E) {
        const float *x = cdr_take(CDR_F32, x_E, at, n, x_buf);
        float *s = cdr_room(CDR_F32, s_E, at, n, false, s_buf);
        for (int64_t i = 0; i < n; i += CDR_XLANES) cdr_xput(s + i, cdr_xsigmoid(cdr_xget(x + i)));
        cdr_give(CDR_F32, s, s_E, at, n, false);
    }
}

static inline void cdr_scores(const float *CDR_RESTRICT x_E, float *CDR_RESTRICT s_E, int64_t E, bool softmax)
{
    float max, sum;
    if (softmax) cdr_scores_softmax(x_E, s_E, E, &max, &sum);
    else cdr_scores_sigmoid(x_E, s_E, E);
}

#ifdef __cplusplus
}
#endif
#endif
