/* layernorm, test cases: one row, tails that no vector divides, several blocks of the sums over rows, the last one partial,
 * no bias, a mean that is large beside the deviation, rows where eps decides, each output of the backward alone. */
#include "ops/layernorm/layernorm.h"

static const cdr_layernorm_attr eps5 = { .eps = 1e-5f }, eps_big = { .eps = 0.5f };

#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define V(dt, c) { .dtype = dt, .n_dim = 1, .n = { c } }
#define FWD(nm, dt, wt, T, D, at, mean, dev, no, gr, tl) { .name = nm, .op = &cdr_op_layernorm, .attr = &(at), .n_in = 3, .in = { M(dt, T, D), V(wt, D), V(wt, D) }, \
    .fill = { { 'u', (mean) - (dev), (mean) + (dev) }, { 'u', 0.5, 1.5 }, { 'n', 1, 0 } }, .absent = no, .grad = gr, .tol = tl }
#define BWD(nm, dt, gt, T, D, at, mean, dev, sk, tl) { .name = nm, .op = &cdr_op_layernorm_bwd, .attr = &(at), .n_in = 3, .in = { M(gt, T, D), M(dt, T, D), V(dt, D) }, \
    .fill = { { 'n', 1, 0 }, { 'u', (mean) - (dev), (mean) + (dev) }, { 'u', 0.5, 1.5 } }, .skip_out = sk, .tol = tl }

const cdr_case cdr_cases_layernorm[] = {
    FWD("T9 D17 f32", CDR_F32, CDR_F32, 9, 17, eps5, 0.0, 2.0, 0, 7, 3e-7),
    FWD("T130 D128 bf16", CDR_BF16, CDR_BF16, 130, 128, eps5, 0.5, 2.0, 0, 0, 2.5e-3),
    FWD("T130 D128 bf16, gain and bias f32", CDR_BF16, CDR_F32, 130, 128, eps5, 0.5, 2.0, 0, 0, 2.5e-3),
    FWD("T5 D128 f32 no bias", CDR_F32, CDR_F32, 5, 128, eps5, 1.0, 1.0, 4, 3, 3e-7),
    FWD("T7 D33 f32 mean 1000, deviation 1", CDR_F32, CDR_F32, 7, 33, eps5, 1000.0, 1.0, 0, 0, 3e-7),
    FWD("T7 D16 f32 eps decides", CDR_F32, CDR_F32, 7, 16, eps_big, 0.0, 0.1, 0, 7, 3e-7),
    FWD("T1 D1 f32 one number: the bias", CDR_F32, CDR_F32, 1, 1, eps5, 3.0, 1.0, 0, 0, 0),
    BWD("T9 D17 f32", CDR_F32, CDR_F32, 9, 17, eps5, 0.0, 2.0, 0, 1e-6),
    BWD("T2100 D40 f32", CDR_F32, CDR_F32, 2100, 40, eps5, 0.5, 2.0, 0, 2e-6),
    BWD("T130 D128 bf16", CDR_BF16, CDR_BF16, 130, 128, eps5, 0.5, 2.0, 0, 2.5e-3),
    BWD("T130 D128 bf16, dy f32", CDR_BF16, CDR_F32, 130, 128, eps5, 0.5, 2.0, 0, 2.5e-3),
    BWD("T33 D16 f32 dx alone", CDR_F32, CDR_F32, 33, 16, eps_big, 0.0, 0.1, 6, 1e-6),
    BWD("T33 D16 f32 dw alone", CDR_F32, CDR_F32, 33, 16, eps5, 0.0, 1.0, 5, 1e-6),
    BWD("T33 D16 f32 db alone", CDR_F32, CDR_F32, 33, 16, eps5, 0.0, 1.0, 3, 1e-6),
    { .name = NULL }
};
