/* gate: y_TP = round(o_TP s(x_TP)),   s(x) = 1 / (1 + e^-x), x the logits                                          (1)
 * backward:
 *   do = dy s(x)                                                                                                   (2)
 *   dx = dy o s(x) s(-x)                                   of the ungated o                                        (3)
 * Source: spec/model.md, 3.4 (the output gate of gated MLA). s(x) s(-x), never s (1 - s), which is off by 1e-2 at |x| = 12
 * in F32 (spec/model.md, 3.2). o may be F32 beside BF16 logits: attention's output before any rounding. Nothing is kept. */
#include "ops/gate/gate.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"

cdr_val cdr_gate(cdr_graph *g, cdr_val o_TP, cdr_val logit_TP)
{
    cdr_val in[] = { o_TP, logit_TP };
    return cdr_graph_call1(g, &cdr_op_gate, NULL, 2, in);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    CDR_TRY(cdr__rows_alike("gate", n_in, 2, in, e));
    *n_out = 1;
    out[0] = cdr_dense_like(&in[0], in[1].dtype);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    return cdr__grad_of_two(g, c, &cdr_op_gate_bwd, dout, want, din);
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    return cdr__cost_of((n_in == 2 ? 19.0 : 40.0) * (double)cdr_type_elems(&t[0]), n_in, n_out, t);      /* most of it is e^x */
}

static const cdr_kernel kernels[] = {
    { .name = "avx512", .bits = "gate/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512, .run = cdr__gate_fwd_avx512 },
    { .name = "avx2", .bits = "gate/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__gate_fwd_avx2 },
    { .name = "base", .bits = "gate/exp7", .device = CDR_DEV_CPU, .run = cdr__gate_fwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_gate = {
    .name = "gate", .flags = CDR_OP_ROWWISE, .infer = infer, .grad = grad, .cost = cost, .ref = cdr__gate_ref, .kernels = kernels
};

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    return cdr__rows_alike_bwd("gate_bwd", n_in, in, n_out, out, e);
}

static const cdr_kernel kernels_bwd[] = {
    { .name = "avx512", .bits = "gate_bwd/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512, .run = cdr__gate_bwd_avx512 },
    { .name = "avx2", .bits = "gate_bwd/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__gate_bwd_avx2 },
    { .name = "base", .bits = "gate_bwd/exp7", .device = CDR_DEV_CPU, .run = cdr__gate_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_gate_bwd = {
    .name = "gate_bwd", .flags = CDR_OP_ROWWISE, .optional = 3, .add_ok = 3,
    .infer = infer_bwd, .cost = cost, .ref = cdr__gate_bwd_ref, .kernels = kernels_bwd
};
