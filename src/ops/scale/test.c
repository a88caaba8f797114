/* scale, test cases. A power of two is exact in every format. */
#include "ops/scale/scale.h"

static const cdr_scale_attr eighth = { 0.125f }, third = { 1.0f / 3 }, minus = { -2.0f };

#define SCALE(nm, dt, at, tl, ...) { .name = nm, .op = &cdr_op_scale, .attr = &(at), .n_in = 1, .in = { { .dtype = dt, __VA_ARGS__ } }, \
    .fill = { { 'n', 2, 0 } }, .grad = 1, .tol = tl }

const cdr_case cdr_cases_scale[] = {
    SCALE("T33 D70 f32, 1/8", CDR_F32, eighth, 0, .n_dim = 2, .n = { 33, 70 }),
    SCALE("T33 D70 bf16, 1/8", CDR_BF16, eighth, 0, .n_dim = 2, .n = { 33, 70 }),
    SCALE("T33 D70 f32, 1/3", CDR_F32, third, 1e-7, .n_dim = 2, .n = { 33, 70 }),
    SCALE("T33 D70 bf16, 1/3", CDR_BF16, third, 2.5e-3, .n_dim = 2, .n = { 33, 70 }),
    SCALE("T7 D5 pitch 9 f32", CDR_F32, minus, 0, .n_dim = 2, .n = { 7, 5 }, .pitch = 9),
    SCALE("1-D 1001 f32", CDR_F32, third, 1e-7, .n_dim = 1, .n = { 1001 }),
    { .name = NULL }
};
