/* rope, CPU kernel in plain C, by rows: the angles of a row are made once and used by all heads. Equations: op.c.
 * The sine is cdr_sincos (ops/cpu.h): it vectorises, so no table of angles is kept between calls. */
#include "ops/rope/rope.h"
#include "ops/cpu.h"
#include <math.h>

/* (3)-(5); without YaRN the plain f_i */
void cdr__rope_frequencies(const cdr_rope_attr *a, double *freq)
{
    int64_t n = a->ext / 2;
    for (int64_t i = 0; i < n; i++) freq[i] = pow((double)a->theta, -2.0 * (double)i / a->ext) * (a->inverse ? -1 : 1);
    if (!(a->factor > 1)) return;
    double turn = a->ext / (2 * log((double)a->theta)), once = (double)a->original / 6.283185307179586477;
    double lo = CDR_MAX(floor(turn * log(once / (double)a->beta_fast)), 0.0);
    double hi = CDR_MIN(ceil(turn * log(once / (double)a->beta_slow)), (double)(a->ext - 1));
    if (hi <= lo) hi = lo + 0.001;
    for (int64_t i = 0; i < n; i++) {
        double part = CDR_MIN(CDR_MAX(((double)i - lo) / (hi - lo), 0.0), 1.0);
        freq[i] = freq[i] * (1 - part) + freq[i] / (double)a->factor * part;
    }
}

/* frequencies (F64), then per thread: cosines, sines, a row */
size_t cdr__rope_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    const cdr_rope_attr *at = attr;
    (void)n_in, (void)n_out;
    return (size_t)at->ext / 2 * sizeof(double) + (size_t)((cdr_type_cols(&t[0]) + at->ext) * n_threads) * sizeof(float);
}

/* Rotates n pairs (a_i, b_i) that lie `step` apart. */
static void rotate(float *a, float *b, int64_t step, const float *cos_i, const float *sin_i, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = a[i * step], q = b[i * step];
        a[i * step] = p * cos_i[i] - q * sin_i[i];
        b[i * step] = q * cos_i[i] + p * sin_i[i];
    }
}

cdr_status cdr__rope_base(const cdr_args *a)
{
    const cdr_rope_attr *at = a->attr;
    const cdr_type *tx = &a->type[0], *ty = &a->type[3];
    const int32_t *pos_T = a->ptr[1], *start_T = a->ptr[2];
    int64_t T = tx->n[0], C = tx->n[1], n = at->ext / 2, head = at->nope + at->ext;
    int64_t step = at->interleaved ? 2 : 1, second = at->interleaved ? 1 : n;
    assert(a->work && a->ptr[3]);
    double *freq = a->work;
    cdr__rope_frequencies(at, freq);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        float *cos_i = cdr_thread_part(freq + n, C + at->ext), *sin_i = cos_i + n, *x_C = sin_i + n;
        double place = (double)(pos_T[t] - start_T[t]);
        for (int64_t i = 0; i < n; i++) {
            double s, c;
            cdr_sincos(place * freq[i], &s, &c);
            cos_i[i] = (float)c;
            sin_i[i] = (float)s;
        }
        cdr_row_load(a->ptr[0], tx, t, x_C);
        for (int64_t h = 0; h < at->heads; h++) {
            float *ext = x_C + h * head + (at->first ? 0 : at->nope);
            rotate(ext, ext + second, step, cos_i, sin_i, n);
        }
        cdr_row_store(x_C, a->ptr[3], ty, t);
    }
    return CDR_OK;
}
