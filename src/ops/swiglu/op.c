/* swiglu: y_TF = silu(gate_TF) * up_TF,   silu(x) = x s(x),   s(x) = 1 / (1 + e^-x)                                (1)
 * backward, with s = s(gate):
 *   dgate = dy * up * s * (1 + gate * (1 - s))                                                                     (2)
 *   dup   = dy * gate * s                                                                                          (3)
 * Source: (1) Shazeer 2020, "GLU variants improve transformer"; (2), (3) derived from it, checked by finite
 * differences. Nothing is kept: gate and up are there already, and s costs less than the bytes it would take. */
#include "ops/swiglu/swiglu.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"

cdr_val cdr_swiglu(cdr_graph *g, cdr_val gate_TF, cdr_val up_TF)
{
    cdr_val in[] = { gate_TF, up_TF };
    return cdr_graph_call1(g, &cdr_op_swiglu, NULL, 2, in);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    CDR_TRY(cdr__rows_alike("swiglu", n_in, 2, in, e));
    *n_out = 1;
    out[0] = cdr_dense_like(&in[0], in[0].dtype);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    return cdr__grad_of_two(g, c, &cdr_op_swiglu_bwd, dout, want, din);
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    return cdr__cost_of((n_in == 2 ? 20.0 : 28.0) * (double)cdr_type_elems(&t[0]), n_in, n_out, t);      /* most of it is e^x */
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "swiglu/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__swiglu_fwd_avx2 },
    { .name = "base", .bits = "swiglu/exp7", .device = CDR_DEV_CPU, .run = cdr__swiglu_fwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_swiglu = {
    .name = "swiglu", .flags = CDR_OP_ROWWISE, .infer = infer, .grad = grad, .cost = cost, .ref = cdr__swiglu_ref, .kernels = kernels
};

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    return cdr__rows_alike_bwd("swiglu_bwd", n_in, in, n_out, out, e);
}

static const cdr_kernel kernels_bwd[] = {
    { .name = "avx2", .bits = "swiglu_bwd/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__swiglu_bwd_avx2 },
    { .name = "base", .bits = "swiglu_bwd/exp7", .device = CDR_DEV_CPU, .run = cdr__swiglu_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_swiglu_bwd = {
    .name = "swiglu_bwd", .flags = CDR_OP_ROWWISE, .optional = 3,
    .infer = infer_bwd, .cost = cost, .ref = cdr__swiglu_bwd_ref, .kernels = kernels_bwd
};
