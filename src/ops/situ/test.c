/* situ, test cases. Standard deviation 60 reaches both tails of the sigmoid and of both tanh; b1 = 0.3 makes tanh matter near 0,
 * 1e-3 keeps only the leading term of each, where a difference of near equals would show. */
#include "ops/situ/situ.h"

static const cdr_situ_attr k3 = { 4.0f, 25.0f }, tight = { 0.3f, 0.7f };

#define X(dt, T, F) { .dtype = dt, .n_dim = 2, .n = { T, F } }
#define FWD(nm, at, dg, du, T, F, sg, su, tl) { .name = nm, .op = &cdr_op_situ, .attr = &at, .n_in = 2, .in = { X(dg, T, F), X(du, T, F) }, \
    .fill = { { 'n', sg, 0 }, { 'n', su, 0 } }, .grad = 3, .tol = tl }
#define BWD(nm, at, dy, dt, T, F, sg, su, sk, tl) { .name = nm, .op = &cdr_op_situ_bwd, .attr = &at, .n_in = 3, .in = { X(dy, T, F), X(dt, T, F), \
    X(dt, T, F) }, .fill = { { 'n', 1, 0 }, { 'n', sg, 0 }, { 'n', su, 0 } }, .skip_out = sk, .tol = tl }

const cdr_case cdr_cases_situ[] = {
    FWD("T37 F64 f32", k3, CDR_F32, CDR_F32, 37, 64, 3, 20, 5e-7),
    FWD("T37 F64 bf16", k3, CDR_BF16, CDR_BF16, 37, 64, 3, 20, 2.5e-3),
    FWD("T5 F259 bf16 tail", k3, CDR_BF16, CDR_BF16, 5, 259, 1, 1, 2.5e-3),
    FWD("T5 F259 gate bf16, up f32", k3, CDR_BF16, CDR_F32, 5, 259, 1, 1, 2.5e-3),
    FWD("T1 F1 f32", k3, CDR_F32, CDR_F32, 1, 1, 1, 1, 1e-6),
    FWD("T8 F96 f32 tails", k3, CDR_F32, CDR_F32, 8, 96, 60, 60, 5e-7),
    FWD("T8 F96 f32 tight", tight, CDR_F32, CDR_F32, 8, 96, 1, 1, 5e-7),
    FWD("T8 F96 f32 tiny", k3, CDR_F32, CDR_F32, 8, 96, 1e-3, 1e-3, 5e-7),
    BWD("T37 F64 f32", k3, CDR_F32, CDR_F32, 37, 64, 3, 20, 0, 1e-6),
    BWD("T37 F64 bf16", k3, CDR_BF16, CDR_BF16, 37, 64, 3, 20, 0, 2.5e-3),
    BWD("T5 F259 bf16, dy f32", k3, CDR_F32, CDR_BF16, 5, 259, 1, 1, 0, 2.5e-3),
    BWD("T8 F96 f32 tails", k3, CDR_F32, CDR_F32, 8, 96, 60, 60, 0, 1e-6),
    BWD("T8 F96 f32 tight", tight, CDR_F32, CDR_F32, 8, 96, 1, 1, 0, 1e-6),
    BWD("T9 F40 f32 dgate only", k3, CDR_F32, CDR_F32, 9, 40, 1, 1, 2, 1e-6),
    BWD("T9 F40 f32 dup only", k3, CDR_F32, CDR_F32, 9, 40, 1, 1, 1, 1e-6),
    { .name = NULL }
};
