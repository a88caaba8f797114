/* detach: y = x,   dx = 0                                                                                          (1)
 * A view: y shares the bytes of x, pitch included; `differentiate` stops there (CDR_OP_DETACH). What the sparse-attention
 * indexer reads is detached: it learns from its own objective alone (spec/operators.md, 1.2). */
#include "ops/detach/detach.h"

cdr_val cdr_detach(cdr_graph *g, cdr_val x) { return cdr_graph_call1(g, &cdr_op_detach, NULL, 1, &x); }

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    if (n_in != 1 || cdr_absent(&in[0])) CDR_FAIL(e, CDR_EINVAL, "detach: takes one operand, got %d", n_in);
    out[0] = in[0];
    *n_out = 1;
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out, (void)t;
    return (cdr_cost){ .flop = 0 };                          /* moves nothing */
}

static const cdr_kernel kernels[] = { { .name = NULL } };

const cdr_op cdr_op_detach = { .name = "detach", .flags = CDR_OP_VIEW | CDR_OP_DETACH, .infer = infer, .cost = cost, .kernels = kernels };
