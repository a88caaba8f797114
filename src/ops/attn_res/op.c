/* attn_res: rows V_i of a token, i = 0 .. n-1 (the bank, then the prefix), query q_d = norm_d proj_d:
 *   k_id = V_id r_i,   r_i = (mean_d V_id^2 + eps)^(-1/2)                                                            (1)
 *   p = softmax over i of s_i,   s_i = sum_d k_id q_d                                                                (2)
 *   h_d = round_A(sum_i p_i V_id)                          of the un-normalised rows                                 (3)
 * backward, given dh:
 *   dp_i = sum_d V_id dh_d,   ds_i = p_i (dp_i - sum_j p_j dp_j)                                                     (4)
 *   c_id = ds_i q_d                                                                                                  (5)
 *   dV_id = p_i dh_d + r_i (c_id - k_id mean_d(c_id k_id))                                                           (6)
 *   dproj_d = norm_d C_d,  dnorm_d = proj_d C_d,   C_d = sum_t sum_i ds_i k_id                                       (7)
 * Source: spec/model.md, 3.1 (K3 technical report, equations 8 to 10); backward derived, checked by finite differences.
 * No factor 1/sqrt(D), no bias. With proj = 0 h is the mean; n = 1 hands V_0 through, and then ds is exactly 0.
 * Everything is F32; h is rounded once. A bank row's gradient has many writers, so the compiler makes it F32 and adds. */
#include "ops/attn_res/attn_res.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"

cdr_val cdr_attn_res(cdr_graph *g, const cdr_val *rows, int n, cdr_val proj_1D, cdr_val norm_D, float eps)
{
    cdr_attn_res_attr attr = { .n = n, .eps = eps };
    if (n < 1 || n > CDR_ATTN_RES_MAX) {
        cdr_graph_fail(g, CDR_EINVAL, "attn_res: mixes 1 to %d rows, got %d", CDR_ATTN_RES_MAX, n);
        return CDR_NONE;
    }
    cdr_val in[CDR_ATTN_RES_MAX + 2];
    for (int i = 0; i < n; i++) in[i] = rows[i];
    in[n] = proj_1D;
    in[n + 1] = norm_D;
    return cdr_graph_call1(g, &cdr_op_attn_res, &attr, n + 2, in);
}

/* in: n row values, proj, norm */
static cdr_status infer_rows(const char *op, const cdr_attn_res_attr *at, const cdr_type *in, cdr_err *e)
{
    int64_t D = cdr_type_cols(&in[0]);
    for (int i = 0; i < at->n; i++) {
        if (!cdr_is_real(&in[i]) || in[i].layout != CDR_ROWS || in[i].n_dim < 1)
            CDR_FAIL(e, CDR_EINVAL, "%s: row value %d must be rows of a float format", op, i);
        if (!cdr_same_shape(&in[i], &in[0])) CDR_FAIL(e, CDR_EINVAL, "%s: row value %d has another shape than row value 0", op, i);
    }
    for (int i = at->n; i < at->n + 2; i++) {
        const char *what = i == at->n ? "proj" : "norm";
        if (!cdr_is_real(&in[i]) || in[i].layout != CDR_ROWS) CDR_FAIL(e, CDR_EINVAL, "%s: %s must be numbers of a float format", op, what);
        if (cdr_type_elems(&in[i]) != D || cdr_type_cols(&in[i]) != D)
            CDR_FAIL(e, CDR_EINVAL, "%s: %s has %lld elements, the rows have D = %lld", op, what, (long long)cdr_type_elems(&in[i]), (long long)D);
    }
    return CDR_OK;
}

static cdr_status infer_attr(const char *op, const cdr_attn_res_attr *at, int n_in, int more, cdr_err *e)
{
    if (at->n < 1 || at->n > CDR_ATTN_RES_MAX) CDR_FAIL(e, CDR_EINVAL, "%s: mixes 1 to %d rows, got %d", op, CDR_ATTN_RES_MAX, at->n);
    if (!(at->eps > 0)) CDR_FAIL(e, CDR_EINVAL, "%s: eps is %g, must be positive", op, (double)at->eps);
    if (n_in != at->n + more) CDR_FAIL(e, CDR_EINVAL, "%s: takes %d operands for %d rows, got %d", op, at->n + more, at->n, n_in);
    return CDR_OK;
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_attn_res_attr *at = attr;
    CDR_TRY(infer_attr("attn_res", at, n_in, 2, e));
    CDR_TRY(infer_rows("attn_res", at, in, e));
    *n_out = 1;
    out[0] = cdr_dense_like(&in[0], in[at->n - 1].dtype);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    if (dout[0] == CDR_NONE) return CDR_OK;
    const cdr_attn_res_attr at = *(const cdr_attn_res_attr *)cdr_graph_attr(g, c);
    cdr_val in[CDR_ATTN_RES_MAX + 3], out[CDR_ATTN_RES_MAX + 2];
    in[0] = dout[0];
    for (int i = 0; i < at.n + 2; i++) {                       /* proj and norm lead the outputs */
        in[1 + i] = cdr_graph_in(g, c, i);
        out[i < at.n ? CDR__ARB_DV + i : i - at.n] = want[i] ? CDR_NEW : CDR_NONE;
    }
    if (cdr_graph_call(g, &cdr_op_attn_res_bwd, &at, at.n + 3, in, at.n + 2, out) < 0) return CDR_EINVAL;
    for (int i = 0; i < at.n + 2; i++) din[i] = out[i < at.n ? CDR__ARB_DV + i : i - at.n];
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    return cdr__cost_of(6.0 * ((const cdr_attn_res_attr *)attr)->n * (double)cdr_type_elems(&t[0]), n_in, n_out, t);
}

static const cdr_kernel kernels[] = {
    { .name = "avx512", .bits = "attn_res/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512,
      .work_bytes = cdr__attn_res_work, .run = cdr__attn_res_fwd_avx512 },
    { .name = "avx2", .bits = "attn_res/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2,
      .work_bytes = cdr__attn_res_work, .run = cdr__attn_res_fwd_avx2 },
    { .name = "base", .bits = "attn_res/16", .device = CDR_DEV_CPU, .work_bytes = cdr__attn_res_work, .run = cdr__attn_res_fwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_attn_res = {
    .name = "attn_res", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_attn_res_attr),
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__attn_res_ref, .kernels = kernels
};

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_attn_res_attr *at = attr;
    CDR_TRY(infer_attr("attn_res_bwd", at, n_in, 3, e));
    CDR_TRY(infer_rows("attn_res_bwd", at, in + 1, e));
    if (!cdr_is_real(&in[0]) || in[0].layout != CDR_ROWS || !cdr_same_shape(&in[0], &in[1]))
        CDR_FAIL(e, CDR_EINVAL, "attn_res_bwd: dh must have the shape of the rows");
    *n_out = at->n + 2;
    out[CDR__ARB_DPROJ] = cdr_dense_like(&in[at->n + 1], CDR_F32);
    out[CDR__ARB_DNORM] = cdr_dense_like(&in[at->n + 2], CDR_F32);
    for (int i = 0; i < at->n; i++) out[CDR__ARB_DV + i] = cdr_dense_like(&in[1 + i], in[1 + i].dtype);
    return CDR_OK;
}

static cdr_cost cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    return cdr__cost_of(13.0 * ((const cdr_attn_res_attr *)attr)->n * (double)cdr_type_elems(&t[0]), n_in, n_out, t);
}

static const cdr_kernel kernels_bwd[] = {
    { .name = "avx512", .bits = "attn_res_bwd/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512,
      .work_bytes = cdr__attn_res_bwd_work, .run = cdr__attn_res_bwd_avx512 },
    { .name = "avx2", .bits = "attn_res_bwd/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2,
      .work_bytes = cdr__attn_res_bwd_work, .run = cdr__attn_res_bwd_avx2 },
    { .name = "base", .bits = "attn_res_bwd/16", .device = CDR_DEV_CPU, .work_bytes = cdr__attn_res_bwd_work, .run = cdr__attn_res_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_attn_res_bwd = {
    .name = "attn_res_bwd", .flags = CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_attn_res_attr),
    .optional = (1u << (CDR_ATTN_RES_MAX + 2)) - 1, .add_ok = ((1u << CDR_ATTN_RES_MAX) - 1) << CDR__ARB_DV,
    .infer = infer_bwd, .cost = cost_bwd, .ref = cdr__attn_res_bwd_ref, .kernels = kernels_bwd
};
