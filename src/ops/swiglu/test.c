/* swiglu, test cases. Standard deviation 3 and the wide one reach both tails of the sigmoid. */
#include "ops/swiglu/swiglu.h"

#define X(dt, T, F) { .dtype = dt, .n_dim = 2, .n = { T, F } }
#define FWD(nm, dg, du, T, F, sd, tl) { .name = nm, .op = &cdr_op_swiglu, .n_in = 2, .in = { X(dg, T, F), X(du, T, F) }, \
    .fill = { { 'n', sd, 0 }, { 'n', 1, 0 } }, .grad = 3, .tol = tl }
#define BWD(nm, dy, dt, T, F, sd, sk, tl) { .name = nm, .op = &cdr_op_swiglu_bwd, .n_in = 3, .in = { X(dy, T, F), X(dt, T, F), X(dt, T, F) }, \
    .fill = { { 'n', 1, 0 }, { 'n', sd, 0 }, { 'n', 1, 0 } }, .skip_out = sk, .tol = tl }

const cdr_case cdr_cases_swiglu[] = {
    FWD("T37 F64 f32", CDR_F32, CDR_F32, 37, 64, 3, 5e-7),
    FWD("T37 F64 bf16", CDR_BF16, CDR_BF16, 37, 64, 3, 2.5e-3),
    FWD("T5 F259 bf16 tail", CDR_BF16, CDR_BF16, 5, 259, 1, 2.5e-3),
    FWD("T5 F259 gate bf16, up f32", CDR_BF16, CDR_F32, 5, 259, 1, 2.5e-3),
    FWD("T1 F1 f32", CDR_F32, CDR_F32, 1, 1, 1, 1e-6),
    FWD("T8 F96 f32 tails", CDR_F32, CDR_F32, 8, 96, 60, 5e-7),
    BWD("T37 F64 f32", CDR_F32, CDR_F32, 37, 64, 3, 0, 1e-6),
    BWD("T37 F64 bf16", CDR_BF16, CDR_BF16, 37, 64, 3, 0, 2.5e-3),
    BWD("T5 F259 bf16, dy f32", CDR_F32, CDR_BF16, 5, 259, 1, 0, 2.5e-3),
    BWD("T8 F96 f32 tails", CDR_F32, CDR_F32, 8, 96, 60, 0, 1e-6),
    BWD("T9 F40 f32 dgate only", CDR_F32, CDR_F32, 9, 40, 1, 2, 1e-6),
    BWD("T9 F40 f32 dup only", CDR_F32, CDR_F32, 9, 40, 1, 1, 1e-6),
    { .name = NULL }
};
