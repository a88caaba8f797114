/* fill, test cases: every format that counters and flags have. */
#include "ops/fill/fill.h"

#define CASE(nm, attribute) { .name = nm, .op = &cdr_op_fill, .attr = &(attribute), .n_in = 0, .tol = 0 }
static const cdr_fill_attr zero_i32 = { .t = { .dtype = CDR_I32, .n_dim = 2, .n = { 5, 7 } } };
static const cdr_fill_attr one_i32 = { .t = { .dtype = CDR_I32, .n_dim = 1, .n = { 1 } }, .x = 1 };
static const cdr_fill_attr half_f32 = { .t = { .dtype = CDR_F32, .n_dim = 1, .n = { 33 } }, .x = 0.5 };
static const cdr_fill_attr minus_bf16 = { .t = { .dtype = CDR_BF16, .n_dim = 1, .n = { 9 } }, .x = -2 };

const cdr_case cdr_cases_fill[] = {
    CASE("zeros i32", zero_i32),
    CASE("one i32", one_i32),
    CASE("halves f32", half_f32),
    CASE("minus two bf16", minus_bf16),
    { .name = NULL }
};
