/* copy: y = round_dtype(x) (1), or y = round_dtype(y + x) with the add bit (2); float formats of one element a block.
 * The gradient of x is that of y, as it is (rounding has the derivative 1: straight through). */
#include "ops/copy/copy.h"
#include "ops/cpu.h"

cdr_val cdr_copy(cdr_graph *g, cdr_val x, int dtype)
{
    cdr_copy_attr attr = { .dtype = dtype };
    return cdr_graph_call1(g, &cdr_op_copy, &attr, 1, &x);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_copy_attr *at = attr;
    if (n_in != 1) CDR_FAIL(e, CDR_EINVAL, "copy: takes one operand, got %d", n_in);
    if (at->dtype < 0 || at->dtype >= CDR_N_DTYPES) CDR_FAIL(e, CDR_EINVAL, "copy: %d is no number format", at->dtype);
    out[0] = cdr_dense_like(&in[0], at->dtype);
    if (!cdr_is_real(&in[0]) || in[0].layout != CDR_ROWS || !cdr_is_real(&out[0]))
        CDR_FAIL(e, CDR_EINVAL, "copy: takes and gives rows of a float format; %s to %s is none",
                 cdr_absent(&in[0]) ? "nothing" : cdr_dtype_row(in[0].dtype)->name, cdr_dtype_row(at->dtype)->name);
    *n_out = 1;
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)g, (void)c, (void)e;
    if (want[0]) din[0] = dout[0];
    return CDR_OK;
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "copy", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__copy_avx2 },
    { .name = "base", .bits = "copy", .device = CDR_DEV_CPU, .run = cdr__copy_base },
    { .name = NULL }
};

const cdr_op cdr_op_copy = {
    .name = "copy", .flags = CDR_OP_ROWWISE | CDR_OP_F32_GRAD, .attr_bytes = sizeof(cdr_copy_attr), .add_ok = 1,
    .infer = infer, .grad = grad, .ref = cdr__copy_ref, .kernels = kernels
};
