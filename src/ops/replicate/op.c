/* replicate: view_i = x_i on every rank of the axis.                                                              (1)
 * Each rank uses x_i on its own tokens, so d x_i = sum over ranks of d view_i: an all_reduce in tree order.         (2)
 * No kernel: output k shares the bytes of input k. */
#include "ops/replicate/replicate.h"
#include "ops/gather/gather.h"

cdr_status cdr_replicate(cdr_graph *g, int comm, int size, int n, const cdr_val *x, cdr_val *view)
{
    cdr_replicate_attr a = { comm, size, n };
    if (g->failed) return CDR_EINVAL;
    if (n < 1 || n > CDR_GATHER_MAX) return cdr_graph_fail(g, CDR_EINVAL, "replicate: %d tensors; takes 1 to %d at once", n, (int)CDR_GATHER_MAX);
    return cdr_graph_call(g, &cdr_op_replicate, &a, n, x, n, view) < 0 ? CDR_EINVAL : CDR_OK;
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_replicate_attr *a = attr;
    if (a->n < 1 || a->n > CDR_GATHER_MAX || n_in != a->n)
        CDR_FAIL(e, CDR_EINVAL, "replicate: %d operands, its attribute says %d (1 to %d)", n_in, a->n, (int)CDR_GATHER_MAX);
    if (a->size < 1) CDR_FAIL(e, CDR_EINVAL, "replicate: an axis of %d ranks", a->size);
    for (int i = 0; i < n_in; i++) {
        if (cdr_absent(&in[i]) || in[i].n_dim < 1) CDR_FAIL(e, CDR_EINVAL, "replicate: tensor %d has no axis 0", i);
        out[i] = in[i];
    }
    *n_out = n_in;
    return CDR_OK;
}

/* Into fresh values: a gradient that passed through may have other readers. They are the small parameters. */
static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_replicate_attr a;
    cdr_val x[CDR_GATHER_MAX], sum[CDR_GATHER_MAX];
    int which[CDR_GATHER_MAX];
    (void)e;
    memcpy(&a, cdr_graph_attr(g, c), sizeof a);             /* the graph's attributes move when calls are appended */
    int n = cdr__gather_wanted(a.n, dout, want, which, x, sum);
    if (n == 0) return CDR_OK;
    CDR_TRY(cdr_all_reduce(g, a.comm, a.size, n, x, sum));
    for (int k = 0; k < n; k++) din[which[k]] = sum[k];
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out, (void)t;
    return (cdr_cost){ .flop = 0 };                          /* moves nothing */
}

static const cdr_kernel kernels[] = { { .name = NULL } };

const cdr_op cdr_op_replicate = {
    .name = "replicate", .flags = CDR_OP_VIEW, .attr_bytes = sizeof(cdr_replicate_attr),
    .infer = infer, .grad = grad, .cost = cost, .kernels = kernels
};
