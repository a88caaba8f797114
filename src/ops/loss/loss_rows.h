/* loss_rows.h: softmax statistics and gradient of a row of logits, in plain C and vectors of the compiler. Included by one
 * file per instruction set; sums are sixteen partial sums (element i in sum i mod 16) merged as a tree, and nothing is
 * contracted, so every one of them computes the same bits.
 * exp goes over 64 elements at a time, then its sum: in one loop gcc 12 keeps the sixteen sums in memory, half as fast. */
#include "ops/cpu.h"
#include "ops/loss/loss.h"

typedef float row_lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t row_words __attribute__((vector_size(32), may_alias));
static inline const row_lanes *row_at(const float *p) { return (const row_lanes *)(const void *)p; }

/* lo, hi: partial sums 0 .. 7 and 8 .. 15 */
static inline float row_merge(const row_lanes *lo, const row_lanes *hi)      /* pointers: without AVX a vector of 32 bytes has no way to be passed */
{
    float sum[8];
    const row_lanes both = *lo + *hi;
    memcpy(sum, &both, sizeof sum);
    for (int w = 4; w > 0; w /= 2)
        for (int j = 0; j < w; j++) sum[j] += sum[j + w];
    return sum[0];
}

/* max(m, max_i l_i); a NaN passes by */
static inline float row_max(const float *l, int64_t n, float m)
{
    row_lanes top = { m, m, m, m, m, m, m, m };
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const row_lanes x = *row_at(l + i);
        const row_words more = (row_words)(x > top);
        top = (row_lanes)(((row_words)x & more) | ((row_words)top & ~more));
    }
    for (int j = 0; i + j < n; j++) top[j] = l[i + j] > top[j] ? l[i + j] : top[j];
    for (int j = 1; j < 8; j++) top[0] = top[j] > top[0] ? top[j] : top[0];
    return top[0];
}

/* sum_i x_i */
static inline float row_sum(const float *x, int64_t n)
{
    row_lanes lo = { 0 }, hi = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        lo += *row_at(x + i);
        hi += *row_at(x + i + 8);
    }
    for (int j = 0; i + j < n; j++) {
        if (j < 8) lo[j] += x[i + j];
        else hi[j - 8] += x[i + j];
    }
    return row_merge(&lo, &hi);
}

/* m' = max(m, max_i l_i), s' = s exp(m - m') + sum_i exp(l_i - m'). A NaN passes the maximum by and reaches the sum. */
static void row_stats(const float *l, int64_t n, float *m, float *s)
{
    enum { BLOCK = 64 };
    const float top = row_max(l, n, *m);
    row_lanes lo = { 0 }, hi = { 0 };
    float e[BLOCK];
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        for (int j = 0; j < BLOCK; j++) e[j] = cdr_exp(l[i + j] - top);
        for (int j = 0; j < BLOCK; j += 16) {
            lo += *row_at(e + j);
            hi += *row_at(e + j + 8);
        }
    }
    for (int j = 0; i + j < n; j++) {
        if (j % 16 < 8) lo[j % 16] += cdr_exp(l[i + j] - top);
        else hi[j % 16 - 8] += cdr_exp(l[i + j] - top);
    }
    *s = *s * cdr_exp(*m - top) + row_merge(&lo, &hi);
    *m = top;
}

/* As row_stats; l_i becomes exp(l_i - m'), 0 at y, and *rest the sum of exp(l_i - m') without y, over all pieces so far. Returns
 * exp(m - m'), by which what was summed before is to be scaled. */
static float row_online(float *l, int64_t n, int64_t y, float *m, float *s, float *rest)
{
    const float top = row_max(l, n, *m), c = cdr_exp(*m - top);
    for (int64_t i = 0; i < n; i++) l[i] = cdr_exp(l[i] - top);
    float sum = row_sum(l, n);
    *s = *s * c + sum;
    if (y >= 0 && y < n) {
        l[y] = 0;
        sum = row_sum(l, n);
    }
    *rest = *rest * c + sum;
    *m = top;
    return c;
}

/* y: the target's place in the row; outside of 0 .. n - 1: in another chunk. (p - 1) is formed before any rounding of p:
 * near p = 1 that is all that is left. */
static void row_grad(float *l, int64_t n, int64_t y, float lse, float scale)
{
    float at_y = y >= 0 && y < n ? (cdr_exp(l[y] - lse) - 1.0f) * scale : 0.0f;
    for (int64_t i = 0; i < n; i++) l[i] = cdr_exp(l[i] - lse) * scale;
    if (y >= 0 && y < n) l[y] = at_y;
}
