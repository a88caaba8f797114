/* gate, test cases. A standard deviation of 8 reaches |x| = 20, where s (1 - s) in F32 is nothing but rounding; 60 reaches both
 * ends. In the case of the upper tail s(x) s(-x) is all that dlogit consists of, so a 1 - s fails it. */
#include "ops/gate/gate.h"

#define X(dt, T, P) { .dtype = dt, .n_dim = 2, .n = { T, P } }
#define FWD(nm, d_o, dx, T, P, sd, tl) { .name = nm, .op = &cdr_op_gate, .n_in = 2, .in = { X(d_o, T, P), X(dx, T, P) }, \
    .fill = { { 'n', 1, 0 }, { 'n', sd, 0 } }, .grad = 3, .tol = tl }
#define BWD(nm, dy, d_o, dx, T, P, fl, sk, tl) { .name = nm, .op = &cdr_op_gate_bwd, .n_in = 3, .in = { X(dy, T, P), X(d_o, T, P), X(dx, T, P) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 }, fl }, .skip_out = sk, .tol = tl }
#define N(sd) { 'n', sd, 0 }
#define U(a, b) { 'u', a, b }

const cdr_case cdr_cases_gate[] = {
    FWD("T37 P64 f32", CDR_F32, CDR_F32, 37, 64, 3, 5e-7),
    FWD("T37 P64 bf16", CDR_BF16, CDR_BF16, 37, 64, 3, 2.5e-3),
    FWD("T5 P259 o f32, logits bf16, tail", CDR_F32, CDR_BF16, 5, 259, 1, 2.5e-3),
    FWD("T1 P1 f32", CDR_F32, CDR_F32, 1, 1, 1, 1e-6),
    FWD("T8 P96 f32 ends", CDR_F32, CDR_F32, 8, 96, 60, 5e-7),
    BWD("T37 P64 f32", CDR_F32, CDR_F32, CDR_F32, 37, 64, N(3), 0, 1e-6),
    BWD("T37 P64 bf16", CDR_BF16, CDR_BF16, CDR_BF16, 37, 64, N(3), 0, 2.5e-3),
    BWD("T5 P259 dy bf16, o f32, logits bf16, tail", CDR_BF16, CDR_F32, CDR_BF16, 5, 259, N(1), 0, 2.5e-3),
    BWD("T5 P259 dy f32, o bf16, logits bf16, tail", CDR_F32, CDR_BF16, CDR_BF16, 5, 259, N(1), 0, 2.5e-3),
    BWD("T8 P96 f32 upper tail", CDR_F32, CDR_F32, CDR_F32, 8, 96, U(12, 30), 0, 1e-6),
    BWD("T8 P96 f32 lower tail", CDR_F32, CDR_F32, CDR_F32, 8, 96, U(-30, -12), 0, 1e-6),
    BWD("T8 P96 f32 ends", CDR_F32, CDR_F32, CDR_F32, 8, 96, N(60), 0, 1e-6),
    BWD("T9 P40 f32 do only", CDR_F32, CDR_F32, CDR_F32, 9, 40, N(1), 2, 1e-6),
    BWD("T9 P40 f32 dlogit only", CDR_F32, CDR_F32, CDR_F32, 9, 40, N(1), 1, 1e-6),
    { .name = NULL }
};
