/* Cases of grad_push: every number of trailing ones up to the depth; the whole tree is checked over ranks and turns by
 * test_spine. */
#include "ops/grad_push/grad_push.h"

static const cdr_grad_push_attr d1 = { 1, 0 }, d3 = { 3, 0 }, running = { 1, 1 };

#define PUSH(label, a, dtype, n, micro) \
    { .name = label, .op = &cdr_op_grad_push, .attr = &(a), .n_in = 2, .in = { { dtype, 0, 1, { n }, 0 }, { CDR_I32, 0, 1, { 1 }, 0 } }, \
      .fill = { { 'n', 1, 0 }, { 'c', micro, 0 } }, .tol = 1e-6 }

const cdr_case cdr_cases_grad_push[] = {
    PUSH("one buffer", d1, CDR_F32, 1000, 0),
    PUSH("of two, the second", d1, CDR_F32, 1000, 1),
    PUSH("of eight, the first", d3, CDR_F32, 5000, 0),
    PUSH("of eight, 3: merges two", d3, CDR_F32, 5000, 3),
    PUSH("of eight, 6: merges none", d3, CDR_F32, 70000, 6),
    PUSH("of eight, 7: merges all", d3, CDR_F32, 70000, 7),
    PUSH("f64 loss, 5", d3, CDR_F64, 1, 5),
    PUSH("running sum, the first", running, CDR_F32, 5000, 0),
    PUSH("running sum, 1", running, CDR_F32, 5000, 1),
    PUSH("running sum, 6", running, CDR_F32, 70000, 6),
    PUSH("running sum, f64 loss, 7", running, CDR_F64, 1, 7),
    { .name = NULL }
};
