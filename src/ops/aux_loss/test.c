/* aux_loss, test cases: several packed rows with different numbers of idle tokens, one of them idle as a whole; one row; sigmoid and softmax. Gradients
 * are finite differences with the counts held. Splits over micro-batches are in test/test_routing.c. */
#include "ops/aux_loss/aux_loss.h"

static const cdr_aux_loss_attr rows_20 = { .top_k = 4, .row = 20, .coef = 0.01f }, soft_20 = { .softmax = 1, .top_k = 4, .row = 20, .coef = 1.0f };
static const cdr_aux_loss_attr rows_7 = { .top_k = 1, .row = 7, .coef = 1.0f }, rows_16 = { .top_k = 16, .row = 16, .coef = 0.001f };
static const cdr_aux_loss_attr all_5 = { .top_k = 5, .row = 9, .coef = 1.0f };

/* Packed row r has 3 r idle tokens at its end, row 2 nothing else. idx prefers low experts: an uneven load. */
static void make(double *idx, double *start, double *pos, int64_t T, int64_t k, int64_t E, int64_t row, cdr_rng_key key)
{
    for (int64_t t = 0; t < T; t++) {
        int64_t r = t / row, live = r == 2 ? 0 : row - 3 * r;
        pos[t] = (double)t;
        start[t] = t % row < live ? (double)(r * row) : (double)(t + 1);
        int64_t first = (int64_t)(cdr_rng_u64(key, (uint64_t)t) % (uint64_t)(E - k + 1));
        if (t % 2) first /= 2;
        for (int64_t j = 0; j < k; j++) idx[t * k + j] = start[t] > pos[t] ? -1.0 : (double)(first + j);
    }
}
static void make_fwd(double *const *in, const cdr_type *t, cdr_rng_key key, int64_t row)
{
    make(in[1], in[2], in[3], t[0].n[0], t[1].n[1], t[0].n[1], row, key);
}
static void make_bwd(double *const *in, const cdr_type *t, cdr_rng_key key, int64_t row)
{
    make(in[2], in[3], in[4], t[1].n[0], t[2].n[1], t[1].n[1], row, key);
}
static void fwd_7(double *const *in, const cdr_type *t, cdr_rng_key key) { make_fwd(in, t, key, 7); }
static void fwd_9(double *const *in, const cdr_type *t, cdr_rng_key key) { make_fwd(in, t, key, 9); }
static void fwd_16(double *const *in, const cdr_type *t, cdr_rng_key key) { make_fwd(in, t, key, 16); }
static void fwd_20(double *const *in, const cdr_type *t, cdr_rng_key key) { make_fwd(in, t, key, 20); }
static void bwd_7(double *const *in, const cdr_type *t, cdr_rng_key key) { make_bwd(in, t, key, 7); }
static void bwd_16(double *const *in, const cdr_type *t, cdr_rng_key key) { make_bwd(in, t, key, 16); }
static void bwd_20(double *const *in, const cdr_type *t, cdr_rng_key key) { make_bwd(in, t, key, 20); }

#define M(dt, T, C) { .dtype = dt, .n_dim = 2, .n = { T, C } }
#define V(dt, T) { .dtype = dt, .n_dim = 1, .n = { T } }
#define FWD(nm, at, T, E, k, sd, mk, gr) { .name = nm, .op = &cdr_op_aux_loss, .attr = &(at), .n_in = 4, \
    .in = { M(CDR_F32, T, E), M(CDR_I32, T, k), V(CDR_I32, T), V(CDR_I32, T) }, \
    .fill = { { 'n', sd, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .make = mk, .grad = gr, .tol = 2e-7 }
#define BWD(nm, at, T, E, k, sd, mk) { .name = nm, .op = &cdr_op_aux_loss_bwd, .attr = &(at), .n_in = 5, \
    .in = { V(CDR_F32, 1), M(CDR_F32, T, E), M(CDR_I32, T, k), V(CDR_I32, T), V(CDR_I32, T) }, \
    .fill = { { 'c', 0.037, 0 }, { 'n', sd, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .make = mk, .tol = 1e-6 }

const cdr_case cdr_cases_aux_loss[] = {
    FWD("T80 E32 k4, rows of 20", rows_20, 80, 32, 4, 1, fwd_20, 1),
    FWD("T60 E37 k4, softmax", soft_20, 60, 37, 4, 1, fwd_20, 1),
    FWD("T14 E5 k1, rows of 7", rows_7, 14, 5, 1, 2, fwd_7, 1),
    FWD("T16 E896 k16, one row", rows_16, 16, 896, 16, 1, fwd_16, 1),
    FWD("T9 E5 k5, all experts: a constant", all_5, 9, 5, 5, 1, fwd_9, 0),
    BWD("T80 E32 k4, rows of 20", rows_20, 80, 32, 4, 1, bwd_20),
    BWD("T60 E37 k4, softmax", soft_20, 60, 37, 4, 1, bwd_20),
    BWD("T14 E5 k1, rows of 7", rows_7, 14, 5, 1, 2, bwd_7),
    BWD("T16 E896 k16, one row", rows_16, 16, 896, 16, 1, bwd_16),
    { .name = NULL }
};
