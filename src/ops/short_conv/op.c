/* short_conv: with n_t = pos_t - start_t, the number of earlier rows of t's document, and s(x) = 1 / (1 + e^-x):
 *   p_tc = sum_j w_cj x_(t-m)c,  m = W-1-j, over the j with m <= n_t       (zero history before the document)          (1)
 *   y_tc = p_tc s(p_tc)                                                                                               (2)
 *   hist': the last W-1 inputs up to the last row that is not idle                                                    (3)
 * In (1), an input before row 0 (a document that began before this turn) is hist[W-1 + t-m].
 * backward, with dp_tc = dy_tc s(p)(1 + p s(-p)):                                                                       (4)
 *   dx_tc = sum_m w_c(W-1-m) dp_(t+m)c   over the rows t+m of the same document                                         (5)
 *   dw_cj = sum_t dp_tc x_(t-m)c         over the j with m <= n_t                                                       (6)
 * Idle rows (start > pos): y = 0, dx = 0, no part in any sum.
 * Source: spec/model.md, 3.2 and 3.2.3; (4) with s(-p) for 1 - s(p), which keeps its digits where s is near 1.
 * Nothing is kept: p is four products. Precision: F32, rounded once at the store. */
#include "ops/short_conv/short_conv.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"

cdr_val cdr_short_conv(cdr_graph *g, cdr_val x_TP, cdr_val w_P1W, cdr_val start_T, cdr_val pos_T, cdr_val hist)
{
    cdr_val in[] = { x_TP, w_P1W, start_T, pos_T }, out[] = { CDR_NEW, hist };
    return cdr_graph_call(g, &cdr_op_short_conv, NULL, 4, in, 2, out) < 0 ? CDR_NONE : out[0];
}

static cdr_status infer_x_w(const char *op, const cdr_type *x, const cdr_type *w, const cdr_type *start, const cdr_type *pos, cdr_err *e)
{
    if (!cdr_is_real(x) || x->layout != CDR_ROWS || x->n_dim != 2 || x->n[0] < 1 || x->n[1] < 1)
        CDR_FAIL(e, CDR_EINVAL, "%s: x must be a matrix [T, P] of a float format", op);
    if (!cdr_is_real(w) || w->layout != CDR_ROWS || w->n_dim != 3 || w->n[0] != x->n[1] || w->n[1] != 1)
        CDR_FAIL(e, CDR_EINVAL, "%s: the weight must be [P, 1, W] of a float format with P = %lld as x has columns", op, (long long)x->n[1]);
    if (w->n[2] < 2 || w->n[2] > CDR_SHORT_CONV_MAX)
        CDR_FAIL(e, CDR_EINVAL, "%s: a kernel of %lld tokens, takes 2 to %d", op, (long long)w->n[2], CDR_SHORT_CONV_MAX);
    if (start->dtype != CDR_I32 || pos->dtype != CDR_I32 || cdr_type_elems(start) != x->n[0] || cdr_type_elems(pos) != x->n[0])
        CDR_FAIL(e, CDR_EINVAL, "%s: start and pos must be I32 with one element a row of x", op);
    return CDR_OK;
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    if (n_in != 4) CDR_FAIL(e, CDR_EINVAL, "short_conv: takes x, a weight, start and pos, got %d operands", n_in);
    CDR_TRY(infer_x_w("short_conv", &in[0], &in[1], &in[2], &in[3], e));
    *n_out = 2;
    out[0] = cdr_dense_like(&in[0], in[0].dtype);
    out[1] = cdr_type_2d(in[0].dtype, in[1].n[2] - 1, in[0].n[1]);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    if (cdr_graph_out(g, c, 1) != CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "short_conv: no gradient through a call that carries a history (generate)");
    if (dout[0] == CDR_NONE) return CDR_OK;
    cdr_val in[] = { dout[0], cdr_graph_in(g, c, 0), cdr_graph_in(g, c, 1), cdr_graph_in(g, c, 2), cdr_graph_in(g, c, 3) };
    cdr_val out[] = { want[0] ? CDR_NEW : CDR_NONE, want[1] ? CDR_NEW : CDR_NONE };
    if (cdr_graph_call(g, &cdr_op_short_conv_bwd, NULL, 5, in, 2, out) < 0) return CDR_EINVAL;
    din[0] = out[0];
    din[1] = out[1];
    return CDR_OK;
}

static cdr_cost cost_of(double flop_each, int n_in, int n_out, const cdr_type *t, const cdr_type *x, const cdr_type *w)
{
    return cdr__cost_of((flop_each + 2.0 * (double)w->n[2]) * (double)cdr_type_elems(x), n_in, n_out, t);
}
static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    return cost_of(20, n_in, n_out, t, &t[0], &t[1]);      /* 20: the sigmoid */
}
static cdr_cost cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    cdr_cost c = cost_of(28, n_in, n_out, t, &t[1], &t[2]);
    c.flop += 4.0 * (double)t[2].n[2] * (double)cdr_type_elems(&t[1]);
    return c;
}

static const cdr_kernel kernels[] = {
    { .name = "avx512", .bits = "short_conv/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512,
      .work_bytes = cdr__short_conv_work, .run = cdr__short_conv_fwd_avx512 },
    { .name = "avx2", .bits = "short_conv/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2,
      .work_bytes = cdr__short_conv_work, .run = cdr__short_conv_fwd_avx2 },
    { .name = "base", .bits = "short_conv/exp7", .device = CDR_DEV_CPU, .work_bytes = cdr__short_conv_work, .run = cdr__short_conv_fwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_short_conv = {
    .name = "short_conv", .rmw = 2, .optional = 2,
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__short_conv_ref, .kernels = kernels
};

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    if (n_in != 5) CDR_FAIL(e, CDR_EINVAL, "short_conv_bwd: takes dy, x, a weight, start and pos, got %d operands", n_in);
    CDR_TRY(infer_x_w("short_conv_bwd", &in[1], &in[2], &in[3], &in[4], e));
    if (!cdr_is_real(&in[0]) || in[0].layout != CDR_ROWS || !cdr_same_shape(&in[0], &in[1]))
        CDR_FAIL(e, CDR_EINVAL, "short_conv_bwd: dy must have the shape of x");
    *n_out = 2;
    out[0] = cdr_dense_like(&in[1], in[1].dtype);
    out[1] = cdr_dense_like(&in[2], CDR_F32);
    return CDR_OK;
}

static const cdr_kernel kernels_bwd[] = {
    { .name = "avx512", .bits = "short_conv_bwd/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512,
      .work_bytes = cdr__short_conv_bwd_work, .run = cdr__short_conv_bwd_avx512 },
    { .name = "avx2", .bits = "short_conv_bwd/exp7", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2,
      .work_bytes = cdr__short_conv_bwd_work, .run = cdr__short_conv_bwd_avx2 },
    { .name = "base", .bits = "short_conv_bwd/exp7", .device = CDR_DEV_CPU, .work_bytes = cdr__short_conv_bwd_work, .run = cdr__short_conv_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_short_conv_bwd = {
    .name = "short_conv_bwd", .flags = CDR_OP_PARAM_GRAD, .optional = 3, .add_ok = 1,
    .infer = infer_bwd, .cost = cost_bwd, .ref = cdr__short_conv_bwd_ref, .kernels = kernels_bwd
};
