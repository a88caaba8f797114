/* merge.c: W + scale B A, and what a packed format leaves of it.
 * Precision: scale B A is summed in double over the rank, then rounded to F32 and added in F32.
 */
#include "adapter/adapter.h"
#include <math.h>

void cdr_lora_add(const cdr_lora_pair *p, int64_t first, int64_t n, float *w_NK)
{
    int64_t r = p->rank, K = p->K;
    double *row = cdr_alloc(sizeof *row * (size_t)K);
    for (int64_t i = 0; i < n; i++) {
        int64_t e = (first + i) / p->N, at = (first + i) % p->N;
        const float *a = p->a + (p->n_a == 1 ? 0 : e) * r * K, *b = p->b + ((p->n_b == 1 ? 0 : e) * p->N + at) * r;
        memset(row, 0, sizeof *row * (size_t)K);
        for (int64_t h = 0; h < r; h++) {
            double s = (double)p->scale * (double)b[h];
            if (s == 0) continue;
            for (int64_t k = 0; k < K; k++) row[k] += s * (double)a[h * K + k];
        }
        for (int64_t k = 0; k < K; k++) if (row[k] != 0) w_NK[i * K + k] = (float)((double)w_NK[i * K + k] + row[k]);     /* -0 stays -0 */
    }
    cdr_free(row);
}

/* Code of |x| <= 6 on the grid 0 0.5 1 1.5 2 3 4 6, ties to the even code, larger ones to 6. */
static uint8_t code_of(float x)
{
    static const float edge[] = { 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f };      /* halfway between code i and i + 1 */
    uint8_t c = 0;
    for (int i = 0; i < 7; i++) if (x > edge[i] || (x == edge[i] && (i & 1))) c = (uint8_t)(i + 1);
    return c;
}

double cdr_lora_survival(const cdr_lora_energy *e) { return e->delta > 0 ? e->kept / e->delta : 1; }

uint8_t cdr_lora_repack_scale(uint8_t scale) { return (uint8_t)CDR_MIN(CDR_MAX(scale, 2), 252); }

void cdr_lora_repack(const float *w, const float *merged, const uint8_t *scales, int64_t n, uint8_t *codes, cdr_lora_energy *e)
{
    static const float grid[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    for (int64_t i = 0; i < n; i++) {
        int scale = cdr_lora_repack_scale(scales[i / 32]);
        float unit = ldexpf(1.0f, scale - 127), inverse = ldexpf(1.0f, 127 - scale);
        uint8_t c = code_of(fabsf(merged[i]) * inverse), sign = signbit(merged[i]) ? 8 : 0;
        double q = (double)(sign ? -grid[c] : grid[c]) * (double)unit, delta = (double)merged[i] - (double)w[i];
        e->delta += delta * delta;
        e->kept += (q - (double)w[i]) * delta;
        e->lost += (q - (double)merged[i]) * (q - (double)merged[i]);
        codes[i / 2] = (uint8_t)(i % 2 == 0 ? (c | sign) : codes[i / 2] | (c | sign) << 4);
    }
}
