/* short_conv, test cases: packs of long, short and one-token documents, idle rows at the end and in the middle, blocks that
 * end inside of a document; a turn of generate that begins inside of a document, with fewer rows than the history too. */
#include "ops/short_conv/short_conv.h"

/* Documents of 1, 2, .. 7 rows and then one of 61, over and over; every 19th row group begins with two idle rows. */
static void documents(double *start_T, double *pos_T, int64_t T)
{
    int64_t t = 0;
    for (int64_t i = 0; t < T; i++) {
        int64_t n = i % 8 == 7 ? 61 : i % 8 + 1, first = t;
        for (; t < first + n && t < T; t++) {
            start_T[t] = (double)first;
            pos_T[t] = (double)t;
        }
        for (int64_t k = 0; i % 5 == 3 && k < 2 && t < T; k++, t++) {
            start_T[t] = 1;
            pos_T[t] = 0;
        }
    }
}
static void make_fwd(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; documents(in[2], in[3], t[2].n[0]); }
static void make_bwd(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; documents(in[3], in[4], t[3].n[0]); }
/* A document that began 2 rows before this turn; the last third of the rows is idle. */
static void make_turn(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int64_t T = t[2].n[0], n_live = T - T / 3;
    (void)key;
    for (int64_t i = 0; i < T; i++) {
        in[2][i] = i < n_live ? 5 : 1;
        in[3][i] = i < n_live ? (double)(7 + i) : 0;
    }
}
static void make_idle(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[2].n[0]; i++) in[2][i] = 1, in[3][i] = 0;
}

#define X(dt, T, P) { .dtype = dt, .n_dim = 2, .n = { T, P } }
#define K(P, W) { .dtype = CDR_F32, .n_dim = 3, .n = { P, 1, W } }
#define I(T) { .dtype = CDR_I32, .n_dim = 1, .n = { T } }
#define FWD(nm, dt, T, P, W, mk, skip, gr, tl) { .name = nm, .op = &cdr_op_short_conv, .n_in = 4, .in = { X(dt, T, P), K(P, W), I(T), I(T) }, \
    .fill = { { 'n', 1, 0 }, { 'u', -0.5, 0.5 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .make = mk, .skip_out = skip, .grad = gr, .tol = tl }
#define BWD(nm, dy, dt, T, P, W, sk, tl) { .name = nm, .op = &cdr_op_short_conv_bwd, .n_in = 5, .in = { X(dy, T, P), X(dt, T, P), K(P, W), I(T), I(T) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 }, { 'u', -0.5, 0.5 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .make = make_bwd, .skip_out = sk, .tol = tl }

const cdr_case cdr_cases_short_conv[] = {
    FWD("T130 P64 W4 f32", CDR_F32, 130, 64, 4, make_fwd, 2, 3, 5e-7),
    FWD("T130 P40 W4 bf16", CDR_BF16, 130, 40, 4, make_fwd, 2, 3, 2.5e-3),
    FWD("T37 P9 W8 f32", CDR_F32, 37, 9, 8, make_fwd, 2, 3, 5e-7),
    FWD("T5 P3 W2 f32", CDR_F32, 5, 3, 2, make_fwd, 2, 3, 5e-7),
    FWD("T1 P1 W4 f32", CDR_F32, 1, 1, 4, make_fwd, 2, 3, 5e-7),
    FWD("T12 P20 W4 f32 turn with history", CDR_F32, 12, 20, 4, make_turn, 0, 0, 5e-7),
    FWD("T2 P20 W4 bf16 turn shorter than the history", CDR_BF16, 2, 20, 4, make_turn, 0, 0, 2.5e-3),
    FWD("T1 P20 W4 f32 turn of one row", CDR_F32, 1, 20, 4, make_turn, 0, 0, 5e-7),
    FWD("T4 P20 W4 f32 fresh document, history rewritten", CDR_F32, 4, 20, 4, make_fwd, 0, 0, 5e-7),
    FWD("T6 P20 W4 f32 all idle, history stays", CDR_F32, 6, 20, 4, make_idle, 0, 0, 5e-7),
    BWD("T130 P64 W4 f32", CDR_F32, CDR_F32, 130, 64, 4, 0, 1e-6),
    BWD("T130 P40 W4 bf16", CDR_BF16, CDR_BF16, 130, 40, 4, 0, 2.5e-3),
    BWD("T70 P9 W8 dy f32", CDR_F32, CDR_BF16, 70, 9, 8, 0, 2.5e-3),
    BWD("T5 P3 W2 f32 dx alone", CDR_F32, CDR_F32, 5, 3, 2, 2, 1e-6),
    BWD("T40 P3 W2 f32 dw alone", CDR_F32, CDR_F32, 40, 3, 2, 1, 1e-6),
    BWD("T2100 P4 W4 f32 long blocks", CDR_F32, CDR_F32, 2100, 4, 4, 0, 1e-6),
    { .name = NULL }
};
