/* layernorm: with m_t = mean_d x_td, r_t = (mean_d (x_td - m_t)^2 + eps)^(-1/2), n_td = (x_td - m_t) r_t:
 *   y_td = w_d n_td + b_d                            (b absent: 0; rounded once)                                  (1)
 * backward, with u_td = dy_td w_d:
 *   dx_td = r_t (u_td - mean_d(u_td) - n_td mean_d(u_td n_td))                                                    (2)
 *   dw_d = sum_t dy_td n_td,   db_d = sum_t dy_td                                                                 (3)
 * Source: (1) Ba, Kiros & Hinton 2016; (2), (3) derived from it and checked by finite differences.
 * m and r are made again in the backward from x: two sums over a row that is in cache anyway, and nothing to keep. */
#include "ops/layernorm/layernorm.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_layernorm_attr *at = attr;
    if (n_in != 3) CDR_FAIL(e, CDR_EINVAL, "layernorm: takes x, a gain and a bias (or none), got %d operands", n_in);
    CDR_TRY(cdr__rows_and_gain("layernorm", &in[CDR__LN_X], &in[CDR__LN_W], e));
    const cdr_type *b = &in[CDR__LN_B];
    if (!cdr_absent(b) && (!cdr_is_real(b) || b->layout != CDR_ROWS || b->n_dim != 1 || b->n[0] != in[CDR__LN_W].n[0]))
        CDR_FAIL(e, CDR_EINVAL, "layernorm: the bias must be of a float format with %lld elements", (long long)in[CDR__LN_W].n[0]);
    if (!(at->eps > 0)) CDR_FAIL(e, CDR_EINVAL, "layernorm: eps is %g, must be positive", (double)at->eps);
    *n_out = 1;
    out[0] = cdr_dense_like(&in[CDR__LN_X], in[CDR__LN_X].dtype);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    if (dout[0] == CDR_NONE || !(want[0] || want[1] || want[2])) return CDR_OK;
    cdr_val in[] = { dout[0], cdr_graph_in(g, c, CDR__LN_X), cdr_graph_in(g, c, CDR__LN_W) }, out[3];
    for (int i = 0; i < 3; i++) out[i] = want[i] && cdr_graph_in(g, c, i) != CDR_NONE ? CDR_NEW : CDR_NONE;
    if (cdr_graph_call(g, &cdr_op_layernorm_bwd, cdr_graph_attr(g, c), 3, in, 3, out) < 0) return CDR_EINVAL;
    for (int i = 0; i < 3; i++) din[i] = out[i];
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    return cdr__cost_of(7 * (double)cdr_type_elems(&t[CDR__LN_X]), n_in, n_out, t);
}
static cdr_cost cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    return cdr__cost_of(17 * (double)cdr_type_elems(&t[CDR__LNB_X]), n_in, n_out, t);
}

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    if (n_in != 3) CDR_FAIL(e, CDR_EINVAL, "layernorm_bwd: takes dy, x and a gain, got %d operands", n_in);
    CDR_TRY(cdr__rows_and_gain("layernorm_bwd", &in[CDR__LNB_X], &in[CDR__LNB_W], e));
    if (!cdr_is_real(&in[CDR__LNB_DY]) || in[CDR__LNB_DY].layout != CDR_ROWS || !cdr_same_shape(&in[CDR__LNB_DY], &in[CDR__LNB_X]))
        CDR_FAIL(e, CDR_EINVAL, "layernorm_bwd: dy must have the shape of x");
    *n_out = 3;
    out[0] = cdr_dense_like(&in[CDR__LNB_X], in[CDR__LNB_X].dtype);
    out[1] = out[2] = cdr_type_1d(CDR_F32, in[CDR__LNB_W].n[0]);
    return CDR_OK;
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "layernorm/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__layernorm_work, .run = cdr__layernorm_avx2 },
    { .name = "base", .bits = "layernorm/16", .device = CDR_DEV_CPU, .work_bytes = cdr__layernorm_work, .run = cdr__layernorm_base },
    { .name = NULL }
};
static const cdr_kernel kernels_bwd[] = {
    { .name = "avx2", .bits = "layernorm_bwd/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__layernorm_bwd_work, .run = cdr__layernorm_bwd_avx2 },
    { .name = "base", .bits = "layernorm_bwd/16", .device = CDR_DEV_CPU, .work_bytes = cdr__layernorm_bwd_work, .run = cdr__layernorm_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_layernorm = {
    .name = "layernorm", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_layernorm_attr),
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__layernorm_ref, .kernels = kernels
};
const cdr_op cdr_op_layernorm_bwd = {
    .name = "layernorm_bwd", .flags = CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_layernorm_attr), .optional = 7, .add_ok = 1,
    .infer = infer_bwd, .cost = cost_bwd, .ref = cdr__layernorm_bwd_ref, .kernels = kernels_bwd
};

cdr_val cdr_layernorm(cdr_graph *g, cdr_val x_TD, cdr_val w_D, cdr_val b_D, float eps)
{
    cdr_layernorm_attr at = { .eps = eps };
    cdr_val in[] = { x_TD, w_D, b_D };
    return cdr_graph_call1(g, &cdr_op_layernorm, &at, 3, in);
}
