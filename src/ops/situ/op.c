/* situ: y_TF = b1 tanh(a_TF / b1) s(a_TF) * b2 tanh(c_TF / b2),   a = gate, c = up, s(x) = 1 / (1 + e^-x)         (1)
 * backward, with t1 = tanh(a / b1), t2 = tanh(c / b2), s = s(a):
 *   dgate = dy * ((1 - t1^2) s + b1 t1 s (1 - s)) * b2 t2                                                            (2)
 *   dup   = dy * b1 t1 s (1 - t2^2)                                                                                  (3)
 * |y| <= b1 b2. Kimi K3: b1 = 4, b2 = 25. F32 inside, rounded once. Source: (1) Kimi K3 technical report and reference code
 * (spec/model.md, 3.6); (2), (3) derived from it, checked by finite differences. Nothing is kept, as in swiglu. */
#include "ops/situ/situ.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"

cdr_val cdr_situ(cdr_graph *g, cdr_val gate_TF, cdr_val up_TF, float beta, float linear_beta)
{
    const cdr_situ_attr attr = { beta, linear_beta };
    cdr_val in[] = { gate_TF, up_TF };
    return cdr_graph_call1(g, &cdr_op_situ, &attr, 2, in);
}

static cdr_status check_betas(const char *op, const cdr_situ_attr *b, cdr_err *e)
{
    if (!(b->beta > 0) || !(b->linear_beta > 0))
        CDR_FAIL(e, CDR_EINVAL, "%s: beta = %g and linear_beta = %g must be above 0", op, (double)b->beta, (double)b->linear_beta);
    return CDR_OK;
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    CDR_TRY(cdr__rows_alike("situ", n_in, 2, in, e));
    CDR_TRY(check_betas("situ", attr, e));
    *n_out = 1;
    out[0] = cdr_dense_like(&in[0], in[0].dtype);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    return cdr__grad_of_two(g, c, &cdr_op_situ_bwd, dout, want, din);
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    return cdr__cost_of((n_in == 2 ? 70.0 : 80.0) * (double)cdr_type_elems(&t[0]), n_in, n_out, t);      /* most of it is e^x and tanh twice */
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "situ/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__situ_fwd_avx2 },
    { .name = "base", .bits = "situ/exp7", .device = CDR_DEV_CPU, .run = cdr__situ_fwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_situ = {
    .name = "situ", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_situ_attr),
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__situ_ref, .kernels = kernels
};

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    CDR_TRY(check_betas("situ_bwd", attr, e));
    return cdr__rows_alike_bwd("situ_bwd", n_in, in, n_out, out, e);
}

static const cdr_kernel kernels_bwd[] = {
    { .name = "avx2", .bits = "situ_bwd/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__situ_bwd_avx2 },
    { .name = "base", .bits = "situ_bwd/exp7", .device = CDR_DEV_CPU, .run = cdr__situ_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_situ_bwd = {
    .name = "situ_bwd", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_situ_attr), .optional = 3,
    .infer = infer_bwd, .cost = cost, .ref = cdr__situ_bwd_ref, .kernels = kernels_bwd
};
