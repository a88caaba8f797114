/* rmsnorm: y_TD = w_D * round_A(x_TD * r_T),   r_t = (mean_d x_td^2 + eps)^(-1/2)                                  (1)
 * The normalised value is rounded to the activation dtype A before the gain, as the models do (spec/model.md, 3.0).
 * backward, with u_td = dy_td * w_d and n_td = x_td * r_t (not rounded):
 *   dx_td = r_t * (u_td - n_td * mean_d(u_td n_td))                                                                (2)
 *   dw_d  = sum_t dy_td * n_td                                                                                     (3)
 * Source: (1) Zhang & Sennrich 2019; (2), (3) derived from it and checked by finite differences.
 * r_T is kept for the backward: 4 bytes a token. This folder is the model for all others: doc/adding-an-operator.md. */
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"

cdr_val cdr_rmsnorm(cdr_graph *g, cdr_val x_TD, cdr_val w_D, float eps)
{
    cdr_rmsnorm_attr attr = { .eps = eps };
    cdr_val in[] = { x_TD, w_D }, out[] = { CDR_NEW, CDR_NEW };
    return cdr_graph_call(g, &cdr_op_rmsnorm, &attr, 2, in, 2, out) < 0 ? CDR_NONE : out[0];
}

/* ---- forward --------------------------------------------------------------------------------------------------- */
static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_rmsnorm_attr *at = attr;
    if (n_in != 2) CDR_FAIL(e, CDR_EINVAL, "rmsnorm: takes x and a gain, got %d operands", n_in);
    CDR_TRY(cdr__rows_and_gain("rmsnorm", &in[0], &in[1], e));
    if (!(at->eps >= 0)) CDR_FAIL(e, CDR_EINVAL, "rmsnorm: eps is %g, must not be negative", (double)at->eps);
    *n_out = 2;
    out[0] = cdr_dense_like(&in[0], in[0].dtype);
    out[1] = cdr_type_1d(CDR_F32, cdr_type_rows(&in[0]));
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_val r_T = cdr_graph_out(g, c, 1);
    if (r_T == CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "rmsnorm: the gradient needs the output r_T, which this call left away");
    if (dout[0] == CDR_NONE) return CDR_OK;
    cdr_val in[] = { dout[0], cdr_graph_in(g, c, 0), cdr_graph_in(g, c, 1), r_T };
    cdr_val out[] = { want[0] ? CDR_NEW : CDR_NONE, want[1] ? CDR_NEW : CDR_NONE };
    if (cdr_graph_call(g, &cdr_op_rmsnorm_bwd, cdr_graph_attr(g, c), 4, in, 2, out) < 0) return CDR_EINVAL;
    din[0] = out[0];
    din[1] = out[1];
    return CDR_OK;
}

static int saves(const void *attr, int n_in, const cdr_type *in, cdr_save *alt, int max)
{
    (void)attr, (void)n_in, (void)in;
    if (max < 1) return 0;
    alt[0] = (cdr_save){ .keep = 2, .again_flop = 0 };     /* r_T always: the backward cannot do without */
    return 1;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    return cdr__cost_of(4.0 * (double)cdr_type_elems(&t[0]), n_in, n_out, t);
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "rmsnorm/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2,
      .work_bytes = cdr__rmsnorm_work, .run = cdr__rmsnorm_fwd_avx2 },
    { .name = "base", .bits = "rmsnorm/16", .device = CDR_DEV_CPU, .work_bytes = cdr__rmsnorm_work, .run = cdr__rmsnorm_fwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_rmsnorm = {
    .name = "rmsnorm", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_rmsnorm_attr), .optional = 2,
    .infer = infer, .grad = grad, .saves = saves, .cost = cost, .ref = cdr__rmsnorm_ref, .kernels = kernels
};

/* ---- backward -------------------------------------------------------------------------------------------------- */
static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    if (n_in != 4) CDR_FAIL(e, CDR_EINVAL, "rmsnorm_bwd: takes dy, x, a gain and r, got %d operands", n_in);
    CDR_TRY(cdr__rows_and_gain("rmsnorm_bwd", &in[1], &in[2], e));
    if (!cdr_is_real(&in[0]) || !cdr_same_shape(&in[0], &in[1])) CDR_FAIL(e, CDR_EINVAL, "rmsnorm_bwd: dy must have the shape of x");
    if (in[3].dtype != CDR_F32 || cdr_type_elems(&in[3]) != cdr_type_rows(&in[1]))
        CDR_FAIL(e, CDR_EINVAL, "rmsnorm_bwd: r must be F32 with one element a row of x");
    *n_out = 2;
    out[0] = cdr_dense_like(&in[1], in[1].dtype);
    out[1] = cdr_type_1d(CDR_F32, in[2].n[0]);
    return CDR_OK;
}

static cdr_cost cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    cdr_cost c = cost(attr, n_in, n_out, t);
    c.flop = 10.0 * (double)cdr_type_elems(&t[1]);
    return c;
}

static const cdr_kernel kernels_bwd[] = {
    { .name = "avx2", .bits = "rmsnorm_bwd/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2,
      .work_bytes = cdr__rmsnorm_bwd_work, .run = cdr__rmsnorm_bwd_avx2 },
    { .name = "base", .bits = "rmsnorm_bwd/16", .device = CDR_DEV_CPU, .work_bytes = cdr__rmsnorm_bwd_work, .run = cdr__rmsnorm_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_rmsnorm_bwd = {
    .name = "rmsnorm_bwd", .flags = CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_rmsnorm_attr), .optional = 3, .add_ok = 1,
    .infer = infer_bwd, .cost = cost_bwd, .ref = cdr__rmsnorm_bwd_ref, .kernels = kernels_bwd
};
