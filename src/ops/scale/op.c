/* scale: y = factor x (1), in F32, rounded once to the dtype of x. A factor that is a power of two is exact.
 * backward: dx = factor dy (2), the same operator. */
#include "ops/scale/scale.h"
#include "ops/cpu.h"

cdr_val cdr_scale(cdr_graph *g, cdr_val x, float factor)
{
    cdr_scale_attr attr = { factor };
    return cdr_graph_call1(g, &cdr_op_scale, &attr, 1, &x);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_scale_attr *at = attr;
    if (n_in != 1) CDR_FAIL(e, CDR_EINVAL, "scale: takes one operand, got %d", n_in);
    if (!cdr_is_real(&in[0]) || in[0].layout != CDR_ROWS) CDR_FAIL(e, CDR_EINVAL, "scale: x must be rows of a float format");
    if (at->factor - at->factor != 0.0f) CDR_FAIL(e, CDR_EINVAL, "scale: the factor is not finite");
    *n_out = 1;
    out[0] = cdr_dense_like(&in[0], in[0].dtype);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    if (dout[0] == CDR_NONE || !want[0]) return CDR_OK;
    din[0] = cdr_graph_call1(g, &cdr_op_scale, cdr_graph_attr(g, c), 1, &dout[0]);
    return din[0] == CDR_NONE ? CDR_EINVAL : CDR_OK;
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "scale", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__scale_avx2 },
    { .name = "base", .bits = "scale", .device = CDR_DEV_CPU, .run = cdr__scale_base },
    { .name = NULL }
};

const cdr_op cdr_op_scale = {
    .name = "scale", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_scale_attr), .add_ok = 1, .infer = infer, .grad = grad, .ref = cdr__scale_ref,
    .kernels = kernels
};
