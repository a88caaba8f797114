/* attention_rows.h: what the fast attention kernels do to rows of scores, in the vector (V_LANES lanes, v_load, v_fma, ..) of the file that
 * includes it; and their scratch. Bits: attention_simd.h. */
#ifndef CDR_OPS_ATTENTION_ROWS_H
#define CDR_OPS_ATTENTION_ROWS_H
#include "ops/attention/attention.h"
#include <math.h>
#include <omp.h>

#define LOG2E 1.44269504088896340736f
#define LN2 0.693147180559945309417f

static inline int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t odd_lines(int64_t n) { return up(n, 16) + (up(n, 16) / 16 % 2 == 0 ? 16 : 0); }
/* Scratch, cut into pieces; with base NULL it is only measured. */
typedef struct { char *base; size_t used; } scratch;
static inline float *take(scratch *m, int64_t n)
{
    float *p = m->base ? (float *)(void *)(m->base + m->used) : NULL;
    m->used += cdr_align_up((size_t)n * sizeof(float), 64);
    return p;
}

/* 2^x. n = round(x), 2^(x - n) by a polynomial of degree 6 (relative minimax on [-1/2, 1/2], 2e-9), 2^n by its bits. Below
 * -126.5: 0. From 127.5 on: infinity. NaN stays NaN (a NaN second operand passes through min and max). */
static inline vf v_exp2(vf x)
{
    x = v_min(v_set(128.0f), v_max(v_set(-127.0f), x));
    vf n = v_round(x), f = v_sub(x, n);
    vf p = v_set(0x1.41fbbcp-13f);
    p = v_fma(p, f, v_set(0x1.5f3e54p-10f));
    p = v_fma(p, f, v_set(0x1.3b2d4cp-7f));
    p = v_fma(p, f, v_set(0x1.c6aee8p-5f));
    p = v_fma(p, f, v_set(0x1.ebfbdcp-3f));
    p = v_fma(p, f, v_set(0x1.62e430p-1f));
    p = v_fma(p, f, v_set(1.0f));
    return v_mul(p, v_pow2(n));
}

static inline void scale_row(float *x, float c, int64_t n)
{
    vf cv = v_set(c);
    for (int64_t i = 0; i < n; i += V_LANES) v_store(x + i, v_mul(v_load(x + i), cv));
}

static inline int64_t clamp_keys(int64_t seen, int64_t n) { return seen < 0 ? 0 : CDR_MIN(seen, n); }

/* largest of s[0..n) and m */
static inline float row_max(const float *s, int64_t n, float m)
{
    vf top = v_set(m);
    for (int64_t j = 0; j < n; j += V_LANES) top = v_max(v_first(v_load(s + j), n - j, v_set(-INFINITY)), top);
    return v_hmax(top);
}
/* s = 2^(s - m), zeros from n on up to a multiple of 16; returns their sum */
static inline float row_exp(float *s, int64_t n, float m)
{
    vf sum[16 / V_LANES], mv = v_set(m);
    for (int g = 0; g < 16 / V_LANES; g++) sum[g] = v_set(0.0f);
    for (int64_t j = 0; j < n; j += 16)
        for (int g = 0; g < 16 / V_LANES; g++) {
            float *at = s + j + g * V_LANES;
            vf p = v_first(v_exp2(v_sub(v_load(at), mv)), n - j - g * V_LANES, v_set(0.0f));
            v_store(at, p);
            sum[g] = v_add(sum[g], p);
        }
    return v_hsum16(sum);
}

/* x[0..n) = rest where the bit is not set */
static inline void mask_row(float *x, int64_t n, uint64_t bits, float rest)
{
    for (int64_t j = 0; j < n; j += V_LANES) v_store(x + j, v_pick((uint32_t)(bits >> j), v_load(x + j), v_set(rest)));
}
#endif
