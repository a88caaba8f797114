/* add, test cases. */
#include "ops/add/add.h"

#define ADD(nm, da, db, tl, ...) { .name = nm, .op = &cdr_op_add, .n_in = 2, \
    .in = { { .dtype = da, __VA_ARGS__ }, { .dtype = db, __VA_ARGS__ } }, .fill = { { 'n', 1, 0 }, { 'n', 3, 0 } }, .grad = 3, .tol = tl }

const cdr_case cdr_cases_add[] = {
    ADD("T33 D70 f32", CDR_F32, CDR_F32, 1e-7, .n_dim = 2, .n = { 33, 70 }),
    ADD("T33 D70 bf16", CDR_BF16, CDR_BF16, 2.5e-3, .n_dim = 2, .n = { 33, 70 }),
    ADD("T33 D70 f32 + bf16", CDR_F32, CDR_BF16, 1e-7, .n_dim = 2, .n = { 33, 70 }),
    ADD("T33 D70 bf16 + f32", CDR_BF16, CDR_F32, 2.5e-3, .n_dim = 2, .n = { 33, 70 }),
    ADD("1-D 1001 f32", CDR_F32, CDR_F32, 1e-7, .n_dim = 1, .n = { 1001 }),
    ADD("3-D [3,5,9] bf16", CDR_BF16, CDR_BF16, 2.5e-3, .n_dim = 3, .n = { 3, 5, 9 }),
    { .name = NULL }
};
