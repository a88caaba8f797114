/* rope, CPU kernels: frequencies, scratch and the base kernel; rows.inc has the loops. */
#include "ops/rope/rows.inc"
#include <math.h>

cdr_status cdr__rope_base(const cdr_args *a) { return run(a); }

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
    return (size_t)at->ext / 2 * sizeof(double) + (size_t)((cdr_padded(cdr_type_cols(&t[0])) + at->ext) * n_threads) * sizeof(float);
}
