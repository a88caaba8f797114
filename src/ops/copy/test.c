/* copy, test cases. A widening copy is exact (tolerance 0: bit-equal to the reference rounded to the output's dtype), a
 * narrowing one rounds exactly once, so it is bit-equal too. */
#include "ops/copy/copy.h"

static const cdr_copy_attr to_f32 = { .dtype = CDR_F32 }, to_bf16 = { .dtype = CDR_BF16 }, to_f16 = { .dtype = CDR_F16 };

#define COPY(nm, at, dt, tl, ...) { .name = nm, .op = &cdr_op_copy, .attr = &(at), .n_in = 1, .in = { { .dtype = dt, __VA_ARGS__ } }, \
    .fill = { { 'n', 2, 0 } }, .grad = 1, .tol = tl }

const cdr_case cdr_cases_copy[] = {
    COPY("f32 to f32", to_f32, CDR_F32, 0, .n_dim = 2, .n = { 21, 67 }),
    COPY("bf16 to f32", to_f32, CDR_BF16, 0, .n_dim = 2, .n = { 21, 67 }),
    COPY("f32 to bf16", to_bf16, CDR_F32, 0, .n_dim = 2, .n = { 21, 67 }),
    COPY("bf16 to bf16", to_bf16, CDR_BF16, 0, .n_dim = 2, .n = { 21, 67 }),
    COPY("f16 to f32", to_f32, CDR_F16, 0, .n_dim = 2, .n = { 21, 67 }),
    COPY("f32 to f16, 3-D", to_f16, CDR_F32, 0, .n_dim = 3, .n = { 2, 3, 130 }),
    COPY("f32 to bf16, 1-D", to_bf16, CDR_F32, 0, .n_dim = 1, .n = { 513 }),
    { .name = NULL }
};
