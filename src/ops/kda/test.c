/* kda, test cases: every chunk size, both gates, packs whose documents end inside of chunks and tiles, one-token documents, idle
 * rows, gates at both bounds and in saturation, turns of generate with a state. Further properties: test/test_kda.c. */
#include "ops/kda/kda.h"

#define ATTR(name, H, D, C, sp) static const cdr_kda_attr name = { .heads = H, .dim = D, .chunk = C, .softplus = sp, .lower_bound = -5, .norm_eps = 1e-5f }
ATTR(h2d16c16, 2, 16, 16, 0);
ATTR(h2d32c32, 2, 32, 32, 0);
ATTR(h1d64c64, 1, 64, 0, 0);
ATTR(h3d48c32, 3, 48, 32, 0);
ATTR(h2d16c64, 2, 16, 64, 0);
ATTR(h2d16c64s, 2, 16, 64, 1);
ATTR(h2d32c32s, 2, 32, 32, 1);

/* Documents of 1, 2, 5, 3, 70, 1, 33, 140 rows, over and over; after the 3- and the 33-row ones, two idle rows. */
static void documents(double *start_T, double *pos_T, int64_t T)
{
    static const int64_t length[] = { 1, 2, 5, 3, 70, 1, 33, 140 };
    int64_t t = 0;
    for (int64_t i = 0; t < T; i++) {
        int64_t n = length[i % 8], first = t;
        for (; t < first + n && t < T; t++) start_T[t] = (double)first, pos_T[t] = (double)t;
        for (int64_t k = 0; (i % 8 == 3 || i % 8 == 6) && k < 2 && t < T; k++, t++) start_T[t] = 1, pos_T[t] = 0;
    }
}
static void one_document(double *start_T, double *pos_T, int64_t T)
{
    for (int64_t t = 0; t < T; t++) start_T[t] = 0, pos_T[t] = (double)t;
}
static void make_fwd(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; documents(in[9], in[10], t[9].n[0]); }
static void make_fwd_one(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; one_document(in[9], in[10], t[9].n[0]); }
static void make_bwd(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; documents(in[10], in[11], t[10].n[0]); }
static void make_bwd_one(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; one_document(in[10], in[11], t[10].n[0]); }
static void make_tokens(double *const *in, const cdr_type *t, cdr_rng_key key)      /* documents of one token */
{
    (void)key;
    for (int64_t i = 0; i < t[10].n[0]; i++) in[10][i] = in[11][i] = (double)i;
}
static void make_idle(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[9].n[0]; i++) in[9][i] = 1, in[10][i] = 0;
}
static void make_idle_bwd(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[10].n[0]; i++) in[10][i] = 1, in[11][i] = 0;
}
/* A document that began 7 rows before this turn; the last third of the rows is idle. */
static void make_turn(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int64_t T = t[9].n[0], n_live = T - T / 3;
    (void)key;
    for (int64_t i = 0; i < T; i++) in[9][i] = i < n_live ? 5 : 1, in[10][i] = i < n_live ? (double)(12 + i) : 0;
}
/* Decay logits that are far out on one side, the other, or anywhere, by row; some runs of equal keys. */
static void extremes(double *z, double *k, double *beta, int64_t T, int64_t P, int64_t H)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < P; c++) {
            int64_t kind = t / 20 % 4;
            z[t * P + c] = kind == 0 ? 60 : kind == 1 ? -60 : kind == 2 ? (c % 2 ? 40 : -12) : 4 * z[t * P + c];
            if (kind != 3 && t % 20 > 0) k[t * P + c] = k[(t - 1) * P + c];
        }
    for (int64_t i = 0; i < T * H; i += 3) beta[i] = 7;
}
static void make_fwd_ext(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    make_fwd_one(in, t, key);
    extremes(in[3], in[1], in[4], t[0].n[0], t[0].n[1], t[4].n[1]);
}
static void make_bwd_ext(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    make_bwd_one(in, t, key);
    extremes(in[4], in[2], in[5], t[1].n[0], t[1].n[1], t[5].n[1]);
}

#define X(dt, T, P) { .dtype = dt, .n_dim = 2, .n = { T, P } }
#define W(n_) { .dtype = CDR_F32, .n_dim = 1, .n = { n_ } }
#define I(T) { .dtype = CDR_I32, .n_dim = 1, .n = { T } }
#define N1 { 'n', 1, 0 }
#define IN(dt, T, H, D) X(dt, T, (H) * (D)), X(dt, T, (H) * (D)), X(dt, T, (H) * (D)), X(dt, T, (H) * (D)), X(dt, T, H), X(dt, T, (H) * (D)), \
    W(H), W((H) * (D)), W(D), I(T), I(T)
/* beta is drawn as it is filled; k, z and beta may be changed by `make` afterwards (all are F32 or unrounded kinds there) */
#define FILL N1, N1, N1, { 'n', 2, 0 }, N1, N1, { 'u', -0.5, 0.5 }, { 'u', -2, 0 }, { 'u', 0.5, 1.5 }, { 'f', 0, 0 }, { 'f', 0, 0 }
#define FWD(nm, at, dt, T, H, D, mk, skip, gr, tl) { .name = nm, .op = &cdr_op_kda, .attr = &(at), .n_in = 11, .in = { IN(dt, T, H, D) }, \
    .fill = { FILL }, .make = mk, .skip_out = skip, .grad = gr, .tol = tl }
#define BWD(nm, at, dy, dt, T, H, D, mk, sk, tl) { .name = nm, .op = &cdr_op_kda_bwd, .attr = &(at), .n_in = 12, .in = { X(dy, T, (H) * (D)), IN(dt, T, H, D) }, \
    .fill = { N1, FILL }, .make = mk, .skip_out = sk, .tol = tl }

const cdr_case cdr_cases_kda[] = {
    FWD("T130 H2 D16 C16 f32", h2d16c16, CDR_F32, 130, 2, 16, make_fwd, 2, 0x1ff, 2e-6),
    FWD("T70 H2 D32 C32 one document f32", h2d32c32, CDR_F32, 70, 2, 32, make_fwd_one, 2, 0, 2e-6),
    FWD("T200 H1 D64 C64 f32", h1d64c64, CDR_F32, 200, 1, 64, make_fwd, 2, 0, 2e-6),
    FWD("T67 H3 D48 C32 bf16", h3d48c32, CDR_BF16, 67, 3, 48, make_fwd_one, 2, 0, 3e-3),
    FWD("T40 H2 D16 C64 one document f32", h2d16c64, CDR_F32, 40, 2, 16, make_fwd_one, 2, 0x1ff, 2e-6),
    FWD("T100 H2 D16 C64 extreme gates f32", h2d16c64, CDR_F32, 100, 2, 16, make_fwd_ext, 2, 0, 5e-6),
    FWD("T100 H2 D16 C64 softplus f32", h2d16c64s, CDR_F32, 100, 2, 16, make_fwd, 2, 0x1ff, 2e-6),
    FWD("T70 H2 D32 C32 softplus one document f32", h2d32c32s, CDR_F32, 70, 2, 32, make_fwd_one, 2, 0, 2e-6),
    FWD("T100 H2 D16 C64 softplus extreme gates f32", h2d16c64s, CDR_F32, 100, 2, 16, make_fwd_ext, 2, 0, 5e-6),
    FWD("T1 H2 D16 C16 f32", h2d16c16, CDR_F32, 1, 2, 16, make_fwd, 2, 0, 2e-6),
    FWD("T30 H2 D16 C16 turn with a state f32", h2d16c16, CDR_F32, 30, 2, 16, make_turn, 0, 0, 2e-6),
    FWD("T1 H2 D32 C32 turn of one row f32", h2d32c32, CDR_F32, 1, 2, 32, make_turn, 0, 0, 2e-6),
    FWD("T20 H2 D16 C16 fresh documents leave a state f32", h2d16c16, CDR_F32, 20, 2, 16, make_fwd, 0, 0, 2e-6),
    FWD("T9 H2 D16 C16 all idle, state stays f32", h2d16c16, CDR_F32, 9, 2, 16, make_idle, 0, 0, 2e-6),
    FWD("T9 H2 D16 C16 all idle f32", h2d16c16, CDR_F32, 9, 2, 16, make_idle, 2, 0, 2e-6),
    BWD("T130 H2 D16 C16 f32", h2d16c16, CDR_F32, CDR_F32, 130, 2, 16, make_bwd, 0, 5e-6),
    BWD("T70 H2 D32 C32 one document f32", h2d32c32, CDR_F32, CDR_F32, 70, 2, 32, make_bwd_one, 0, 5e-6),
    BWD("T200 H1 D64 C64 f32", h1d64c64, CDR_F32, CDR_F32, 200, 1, 64, make_bwd, 0, 5e-6),
    BWD("T67 H3 D48 C32 bf16", h3d48c32, CDR_BF16, CDR_BF16, 67, 3, 48, make_bwd_one, 0, 4e-3),
    BWD("T67 H3 D48 C32 bf16, dy f32", h3d48c32, CDR_F32, CDR_BF16, 67, 3, 48, make_bwd_one, 0, 4e-3),
    BWD("T100 H2 D16 C64 extreme gates f32", h2d16c64, CDR_F32, CDR_F32, 100, 2, 16, make_bwd_ext, 0, 2e-5),
    BWD("T100 H2 D16 C64 softplus f32", h2d16c64s, CDR_F32, CDR_F32, 100, 2, 16, make_bwd, 0, 5e-6),
    BWD("T70 H2 D32 C32 softplus one document f32", h2d32c32s, CDR_F32, CDR_F32, 70, 2, 32, make_bwd_one, 0, 2e-5),
    BWD("T100 H2 D16 C64 softplus extreme gates f32", h2d16c64s, CDR_F32, CDR_F32, 100, 2, 16, make_bwd_ext, 0, 2e-5),
    BWD("T37 H2 D16 C16 one-token documents f32", h2d16c16, CDR_F32, CDR_F32, 37, 2, 16, make_tokens, 0x1c8, 5e-6),
    BWD("T40 H2 D16 C64 dv and dbeta alone f32", h2d16c64, CDR_F32, CDR_F32, 40, 2, 16, make_bwd_one, 0x1eb, 5e-6),
    BWD("T9 H2 D16 C16 all idle f32", h2d16c16, CDR_F32, CDR_F32, 9, 2, 16, make_idle_bwd, 0, 5e-6),
    { .name = NULL }
};
