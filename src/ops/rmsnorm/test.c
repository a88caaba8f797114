/* rmsnorm, test cases: the harness (run/check.c) derives the checks from this table. Widths: one lane, a tail, many
 * rows (several blocks of the sum over rows, the last one partial), one row, and rows near zero where eps decides. */
#include "ops/rmsnorm/rmsnorm.h"
#include <math.h>

static const cdr_rmsnorm_attr eps5 = { .eps = 1e-5f }, eps6 = { .eps = 1e-6f };

/* r_T as the forward would have left it */
static void make_r(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    int64_t T = cdr_type_rows(&t[1]), D = cdr_type_cols(&t[1]);
    for (int64_t i = 0; i < T; i++) {
        double ss = 0;
        for (int64_t d = 0; d < D; d++) ss += in[1][i * D + d] * in[1][i * D + d];
        in[3][i] = 1 / sqrt(ss / (double)D + 1e-5);
    }
}

#define X(dt, T, D) { .dtype = dt, .n_dim = 2, .n = { T, D } }
#define W(dt, D) { .dtype = dt, .n_dim = 1, .n = { D } }
#define FWD(nm, dt, T, D, at, sd, tl) { .name = nm, .op = &cdr_op_rmsnorm, .attr = &(at), .n_in = 2, \
    .in = { X(dt, T, D), W(dt, D) }, .fill = { { 'n', sd, 0 }, { 'u', 0.5, 1.5 } }, .grad = 3, .tol = tl }
#define BWD(nm, dt, gt, T, D, tl) { .name = nm, .op = &cdr_op_rmsnorm_bwd, .attr = &eps5, .n_in = 4, \
    .in = { X(gt, T, D), X(dt, T, D), W(dt, D), W(CDR_F32, T) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 2, 0 }, { 'u', 0.5, 1.5 }, { 'f', 0, 0 } }, .tol = tl, .make = make_r }

/* BF16: one rounding is off by up to 2^-9 of a value, 1.7e-3 in the Frobenius norm; the forward rounds twice */
const cdr_case cdr_cases_rmsnorm[] = {
    FWD("T130 D64 f32", CDR_F32, 130, 64, eps5, 1, 5e-7),
    FWD("T130 D64 bf16", CDR_BF16, 130, 64, eps5, 1, 3.5e-3),
    FWD("T7 D257 f32 tail", CDR_F32, 7, 257, eps6, 3, 5e-7),
    FWD("T7 D257 bf16 tail", CDR_BF16, 7, 257, eps6, 3, 3.5e-3),
    FWD("T1 D5 f32", CDR_F32, 1, 5, eps5, 1, 5e-7),
    FWD("T33 D1024 f32 near zero", CDR_F32, 33, 1024, eps5, 1e-3, 5e-7),
    FWD("T9 D7168 bf16", CDR_BF16, 9, 7168, eps5, 1, 3.5e-3),
    { .name = "T130 D64 bf16 without r", .op = &cdr_op_rmsnorm, .attr = &eps5, .n_in = 2, .in = { X(CDR_BF16, 130, 64), W(CDR_BF16, 64) },
      .fill = { { 'n', 1, 0 }, { 'u', 0.5, 1.5 } }, .skip_out = 2, .tol = 3.5e-3 },
    { .name = "x 3-D [5,4,48], gain f32", .op = &cdr_op_rmsnorm, .attr = &eps5, .n_in = 2,
      .in = { { .dtype = CDR_BF16, .n_dim = 3, .n = { 5, 4, 48 } }, W(CDR_F32, 48) }, .fill = { { 'n', 1, 0 }, { 'u', 0.5, 1.5 } },
      .grad = 3, .tol = 3.5e-3 },
    BWD("T130 D64 f32", CDR_F32, CDR_F32, 130, 64, 2e-6),
    BWD("T130 D64 bf16", CDR_BF16, CDR_BF16, 130, 64, 2.5e-3),
    BWD("T130 D64 bf16, dy f32", CDR_BF16, CDR_F32, 130, 64, 2.5e-3),
    BWD("T2500 D33 f32 many blocks", CDR_F32, CDR_F32, 2500, 33, 2e-6),
    BWD("T3 D257 bf16 tail", CDR_BF16, CDR_BF16, 3, 257, 2.5e-3),
    { .name = "T65 D40 f32 dx only", .op = &cdr_op_rmsnorm_bwd, .attr = &eps5, .n_in = 4,
      .in = { X(CDR_F32, 65, 40), X(CDR_F32, 65, 40), W(CDR_F32, 40), W(CDR_F32, 65) },
      .fill = { { 'n', 1, 0 }, { 'n', 2, 0 }, { 'u', 0.5, 1.5 }, { 'f', 0, 0 } }, .skip_out = 2, .tol = 2e-6, .make = make_r },
    { .name = "T65 D40 f32 dw only", .op = &cdr_op_rmsnorm_bwd, .attr = &eps5, .n_in = 4,
      .in = { X(CDR_F32, 65, 40), X(CDR_F32, 65, 40), W(CDR_F32, 40), W(CDR_F32, 65) },
      .fill = { { 'n', 1, 0 }, { 'n', 2, 0 }, { 'u', 0.5, 1.5 }, { 'f', 0, 0 } }, .skip_out = 1, .tol = 2e-6, .make = make_r },
    { .name = NULL }
};
