/* loss_rows.h: softmax statistics and gradient of a row of logits, in plain C that the compiler vectorises. Included by one
 * file per instruction set; sums are sixteen partial sums (element i in sum i mod 16) merged as a tree, and nothing is
 * contracted, so every one of them computes the same bits. */
#include "ops/cpu.h"
#include "ops/loss/loss.h"

/* m' = max(m, max_i l_i), s' = s exp(m - m') + sum_i exp(l_i - m'). A NaN passes the maximum by and reaches the sum. */
static void row_stats(const float *l, int64_t n, float *m, float *s)
{
    float top[16], sum[16] = { 0 };
    for (int j = 0; j < 16; j++) top[j] = *m;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) top[j] = l[i + j] > top[j] ? l[i + j] : top[j];
    for (int j = 0; i + j < n; j++) top[j] = l[i + j] > top[j] ? l[i + j] : top[j];
    for (int w = 8; w > 0; w /= 2)
        for (int j = 0; j < w; j++) top[j] = top[j + w] > top[j] ? top[j + w] : top[j];
    for (i = 0; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) sum[j] += cdr_exp(l[i + j] - top[0]);
    for (int j = 0; i + j < n; j++) sum[j] += cdr_exp(l[i + j] - top[0]);
    for (int w = 8; w > 0; w /= 2)
        for (int j = 0; j < w; j++) sum[j] += sum[j + w];
    *s = *s * cdr_exp(*m - top[0]) + sum[0];
    *m = top[0];
}

/* y: the target's place in the row; outside of 0 .. n - 1: in another chunk. (p - 1) is formed before any rounding of p:
 * near p = 1 that is all that is left. */
static void row_grad(float *l, int64_t n, int64_t y, float lse, float scale)
{
    float at_y = y >= 0 && y < n ? (cdr_exp(l[y] - lse) - 1.0f) * scale : 0.0f;
    for (int64_t i = 0; i < n; i++) l[i] = cdr_exp(l[i] - lse) * scale;
    if (y >= 0 && y < n) l[y] = at_y;
}
