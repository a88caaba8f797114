/* ref.c: double references of embedding (equations in op.c). */
#include "ops/embedding/embedding.h"

void cdr__embedding_ref(const cdr_ref_args *a)
{
    const int64_t T = a->type[0].n[0], D = a->type[1].n[1];
    double *x_TD = a->out[0];
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) x_TD[t * D + d] = a->in[1][(int64_t)a->in[0][t] * D + d];
    for (int64_t f = 0; a->in[2] && f < a->type[2].n[0]; f++)
        for (int64_t d = 0; d < D; d++) x_TD[(int64_t)a->in[3][f] * D + d] = a->in[2][f * D + d];
}

void cdr__embedding_bwd_ref(const cdr_ref_args *a)
{
    const cdr_embedding_bwd_attr *attr = a->attr;
    const int64_t T = a->type[0].n[0], D = a->type[0].n[1], W = attr->table_rows, F = a->in[2] ? a->type[2].n[0] : 0;
    const double *dy_TD = a->in[0];
    if (a->out[0]) {
        for (int64_t i = 0; i < W * D; i++) a->out[0][i] = 0;
        for (int64_t t = 0; t < T; t++) {
            bool replaced = false;
            for (int64_t f = 0; f < F; f++) replaced = replaced || (int64_t)a->in[2][f] == t;
            for (int64_t d = 0; d < D && !replaced; d++) a->out[0][(int64_t)a->in[1][t] * D + d] += dy_TD[t * D + d];
        }
    }
    for (int64_t f = 0; a->out[1] && f < F; f++)
        for (int64_t d = 0; d < D; d++) a->out[1][f * D + d] = dy_TD[(int64_t)a->in[2][f] * D + d];
}
