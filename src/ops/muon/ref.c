/* muon, reference: equations (1) to (4) of op.c in double, one matrix after another, never transposed: where R > K the iteration
 * X <- a X + X (b A + c A A) with A = X^T X is the same thing. */
#include "ops/muon/muon.h"
#include <math.h>

/* y_nk = x_nm w_mk */
static void product(const double *x, const double *w, double *y, int64_t n, int64_t m, int64_t k)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++) {
            double s = 0;
            for (int64_t l = 0; l < m; l++) s += x[i * m + l] * w[l * k + j];
            y[i * k + j] = s;
        }
}

/* (3) on x_RK */
static void orthogonalise(double *x, int64_t R, int64_t K, int iterations)
{
    int64_t n = CDR_MIN(R, K);
    double *next = cdr_alloc(sizeof(double) * (size_t)(R * K)), *a = cdr_alloc(sizeof(double) * (size_t)(n * n)), *aa = cdr_alloc(sizeof(double) * (size_t)(n * n));
    for (int it = 0; it < iterations; it++) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                double s = 0;
                for (int64_t l = 0; l < CDR_MAX(R, K); l++) s += R <= K ? x[i * K + l] * x[j * K + l] : x[l * K + i] * x[l * K + j];
                a[i * n + j] = s;
            }
        product(a, a, aa, n, n, n);
        for (int64_t i = 0; i < n * n; i++) aa[i] = cdr__muon_abc[1] * a[i] + cdr__muon_abc[2] * aa[i];
        if (R <= K) product(aa, x, next, R, R, K);
        else product(x, aa, next, R, K, K);
        for (int64_t i = 0; i < R * K; i++) x[i] = cdr__muon_abc[0] * x[i] + next[i];
    }
    cdr_free(next);
    cdr_free(a);
    cdr_free(aa);
}

void cdr__muon_ref(const cdr_ref_args *a)
{
    const cdr_muon_attr *at = a->attr;
    int64_t rows = cdr_type_rows(&a->type[0]), K = cdr_type_cols(&a->type[0]), R = at->block_rows ? at->block_rows : rows, n = R * K;
    double clip = a->in[CDR__MU_CLIP][0], lr = a->in[CDR__MU_HYPER][0] * (double)at->lr_scale, mu = (double)at->momentum;
    double rms = (double)at->scale * sqrt((double)CDR_MAX(R, K)), *x = cdr_alloc(sizeof(double) * (size_t)n);
    for (int64_t b = 0; b < rows / R; b++) {
        double ss = 0;
        for (int64_t i = 0; i < n; i++) {
            double g = clip * a->in[CDR__MU_GRAD][b * n + i], m = mu * a->in[CDR__MU_M][b * n + i] + g;
            a->out[1][b * n + i] = m;
            x[i] = at->nesterov ? g + mu * m : m;
            ss += x[i] * x[i];
        }
        for (int64_t i = 0; i < n; i++) x[i] /= sqrt(ss) + 1e-7;
        orthogonalise(x, R, K, at->iterations);
        for (int64_t i = 0; i < n; i++) {
            double w = a->in[CDR__MU_MASTER][b * n + i];
            w -= lr * (rms * x[i] + (double)at->weight_decay * w);
            a->out[0][b * n + i] = w;
            if (a->out[2]) a->out[2][b * n + i] = w;
        }
    }
    cdr_free(x);
}
