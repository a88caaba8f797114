/* cpu.c: base kernels of embedding (equations in op.c). Bound by memory: each row is moved once.
 * dw: threads split the columns, in blocks of 64; each walks all tokens in ascending order and adds dy_t to its part of
 * the token's row, so that an element's order is that of t, whatever the threads, and no token makes a thread wait. */
#include "ops/embedding/embedding.h"
#include "ops/cpu.h"

enum { COLS = 64 };

static void convert_row(void *src, const cdr_type *ts, int64_t i, void *dst, const cdr_type *td, int64_t j)
{
    const int64_t D = cdr_type_cols(ts);
    const char *s = cdr_row(src, ts, i);
    char *d = cdr_row(dst, td, j);
    if (ts->dtype == td->dtype) {
        memcpy(d, s, (size_t)cdr_dtype_bytes(ts->dtype, D));
        return;
    }
    float part[COLS];
    for (int64_t c = 0; c < D; c += COLS) {
        const int64_t n = CDR_MIN(D - c, COLS);
        cdr_to_f32(ts->dtype, s + cdr_dtype_bytes(ts->dtype, c), part, n);
        cdr_from_f32(td->dtype, part, d + cdr_dtype_bytes(td->dtype, c), n);
    }
}

cdr_status cdr__embedding_base(const cdr_args *a)
{
    const int32_t *tokens_T = a->ptr[0], *place_F = a->ptr[3];
    const cdr_type *w = &a->type[1], *feat = &a->type[2], *x = &a->type[4];
    const int64_t T = x->n[0], W = w->n[0], F = place_F ? feat->n[0] : 0;
    #pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        assert(tokens_T[t] >= 0 && tokens_T[t] < W);
        convert_row(a->ptr[1], w, tokens_T[t], a->ptr[4], x, t);
    }
    #pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t f = 0; f < F; f++) {
        assert(place_F[f] >= 0 && place_F[f] < T);
        convert_row(a->ptr[2], feat, f, a->ptr[4], x, place_F[f]);
    }
    return CDR_OK;
}

/* A byte a token: replaced by a feature. */
size_t cdr__embedding_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out, (void)n_threads;
    return (size_t)t[1].n[0];
}

cdr_status cdr__embedding_bwd_base(const cdr_args *a)
{
    const cdr_type *dy = &a->type[0], *dw = &a->type[3], *dfeat = &a->type[4];
    const int32_t *tokens_T = a->ptr[1], *place_F = a->ptr[2];
    const int64_t T = dy->n[0], D = dy->n[1], F = place_F ? a->type[2].n[0] : 0;
    if (a->ptr[3]) {
        unsigned char *replaced_T = a->work;
        if (T > 0) memset(replaced_T, 0, (size_t)T);
        for (int64_t f = 0; f < F; f++) {
            assert(place_F[f] >= 0 && place_F[f] < T);
            replaced_T[place_F[f]] = 1;
        }
        #pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
        for (int64_t c = 0; c < D; c += COLS) {
            const int64_t n = CDR_MIN(D - c, COLS);
            for (int64_t w = 0; w < dw->n[0]; w++) memset((float *)cdr_row(a->ptr[3], dw, w) + c, 0, (size_t)n * sizeof(float));
            for (int64_t t = 0; t < T; t++) {
                if (replaced_T[t]) continue;
                assert(tokens_T[t] >= 0 && tokens_T[t] < dw->n[0]);
                float part[COLS], *sum = (float *)cdr_row(a->ptr[3], dw, tokens_T[t]) + c;
                cdr_to_f32(dy->dtype, (char *)cdr_row(a->ptr[0], dy, t) + cdr_dtype_bytes(dy->dtype, c), part, n);
                for (int64_t i = 0; i < n; i++) sum[i] += part[i];
            }
        }
    }
    if (a->ptr[4]) {
        #pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
        for (int64_t f = 0; f < F; f++) convert_row(a->ptr[0], dy, place_F[f], a->ptr[4], dfeat, f);
    }
    return CDR_OK;
}
