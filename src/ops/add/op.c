/* add: y = a + b (1), one shape, each of a float format; y has the dtype of a. In place is fine: y may be a or b.
 * The gradient of both operands is that of y, as it is: no call, no bytes; it is F32 because it has several readers
 * and writers (spec/spine.md, section 6). */
#include "ops/add/add.h"
#include "ops/cpu.h"

cdr_val cdr_add(cdr_graph *g, cdr_val a, cdr_val b)
{
    cdr_val in[] = { a, b };
    return cdr_graph_call1(g, &cdr_op_add, NULL, 2, in);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    if (n_in != 2) CDR_FAIL(e, CDR_EINVAL, "add: takes two operands, got %d", n_in);
    for (int i = 0; i < 2; i++)
        if (!cdr_is_real(&in[i]) || in[i].layout != CDR_ROWS) CDR_FAIL(e, CDR_EINVAL, "add: operand %d must be rows of a float format", i);
    if (!cdr_same_shape(&in[0], &in[1])) {
        char sa[64], sb[64];
        cdr_type_print(sa, &in[0]);
        cdr_type_print(sb, &in[1]);
        CDR_FAIL(e, CDR_EINVAL, "add: shapes differ, %s and %s", sa, sb);
    }
    *n_out = 1;
    out[0] = cdr_dense_like(&in[0], in[0].dtype);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)g, (void)c, (void)e;
    for (int i = 0; i < 2; i++) if (want[i]) din[i] = dout[0];
    return CDR_OK;
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "add", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__add_avx2 },
    { .name = "base", .bits = "add", .device = CDR_DEV_CPU, .run = cdr__add_base },
    { .name = NULL }
};

const cdr_op cdr_op_add = {
    .name = "add", .flags = CDR_OP_ROWWISE | CDR_OP_F32_GRAD, .infer = infer, .grad = grad, .ref = cdr__add_ref, .kernels = kernels
};
