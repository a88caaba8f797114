/* ref.c: double references of linear (equations in op.c), as they are written. */
#include "ops/linear/linear.h"

void cdr__linear_ref(const cdr_ref_args *a)
{
    const int64_t T = a->type[0].n[0], K = a->type[0].n[1], N = a->type[1].n[0];
    const double *x_TK = a->in[0], *w_NK = a->in[1];
    for (int64_t t = 0; t < T; t++)
        for (int64_t n = 0; n < N; n++) {
            double s = 0;
            for (int64_t k = 0; k < K; k++) s += x_TK[t * K + k] * w_NK[n * K + k];
            a->out[0][t * N + n] = s;
        }
}

void cdr__linear_dx_ref(const cdr_ref_args *a)
{
    const int64_t T = a->type[0].n[0], N = a->type[0].n[1], K = a->type[1].n[1];
    const double *dy_TN = a->in[0], *w_NK = a->in[1];
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < K; k++) {
            double s = 0;
            for (int64_t n = 0; n < N; n++) s += dy_TN[t * N + n] * w_NK[n * K + k];
            a->out[0][t * K + k] = s;
        }
}

void cdr__linear_dw_ref(const cdr_ref_args *a)
{
    const int64_t T = a->type[0].n[0], N = a->type[0].n[1], K = a->type[1].n[1];
    const double *dy_TN = a->in[0], *x_TK = a->in[1];
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            double s = 0;
            for (int64_t t = 0; t < T; t++) s += dy_TN[t * N + n] * x_TK[t * K + k];
            a->out[0][n * K + k] = s;
        }
}
