/* aux_loss: for each packed row with n > 0 tokens that are not idle, s_te the router's scores and c_e = #{(t, j): idx_tj = e} in the row
 *   h_te = s_te / (sum_r s_tr + 1e-20)   (softmax: h = s)                                                          (1)
 *   f_e  = coef E c_e / (k n)                               a constant: no gradient flows through counts            (2)
 *   aux  = sum over rows of n sum_e f_e (1/n sum_t h_te) = sum_t sum_e f_e h_te                                     (3)
 * backward, with g the gradient of aux:
 *   sigmoid: dx_te = g (f_e - sum_r f_r h_tr) / (sum_r s_tr + 1e-20) sg(x_te) sg(-x_te)                            (4)
 *   softmax: dx_te = g (f_e - sum_r f_r h_tr) s_te                                                                 (5)
 * Source: spec/numerics.md, A8, after Switch Transformer (arXiv 2101.03961) and DeepSeek-V3 (2412.19437, 2.1.2); (4), (5) derived here and
 * checked by finite differences. A term belongs to a packed row, never to a micro-batch: the same rows give the same bits of dx however they
 * are spread over micro-batches and ranks. Precision: F32 a token, (3)'s sum over tokens in F64, ascending. */
#include "ops/aux_loss/aux_loss.h"
#include "ops/cpu.h"
#include <math.h>

cdr_val cdr_aux_loss(cdr_graph *g, cdr_val logits_TE, cdr_val idx_Tk, cdr_val start_T, cdr_val pos_T, const cdr_aux_loss_attr *a)
{
    cdr_val in[] = { logits_TE, idx_Tk, start_T, pos_T };
    return cdr_graph_call1(g, &cdr_op_aux_loss, a, 4, in);
}

static cdr_status expect(const char *op, const char *what, const cdr_type *t, int dtype, int n_dim, int64_t rows, int64_t cols, cdr_err *e)
{
    char s[64] = "missing", want[64];
    cdr_type w = n_dim == 2 ? cdr_type_2d(dtype, rows, cols) : cdr_type_1d(dtype, rows);
    if (!cdr_absent(t)) cdr_type_print(s, t);
    cdr_type_print(want, &w);
    bool fits = !cdr_absent(t) && t->dtype == dtype && t->layout == CDR_ROWS && t->n_dim == n_dim && t->n[0] == rows;
    if (!fits || (n_dim == 2 && t->n[1] != cols)) CDR_FAIL(e, CDR_EINVAL, "%s: %s is %s; it must be %s in rows", op, what, s, want);
    return CDR_OK;
}

/* logits, idx, start, pos */
static cdr_status inputs(const char *op, const cdr_aux_loss_attr *a, const cdr_type *in, cdr_err *e)
{
    const cdr_type *x = &in[CDR__AUX_LOGITS];
    if (cdr_absent(x) || x->n_dim != 2 || x->n[1] < 1) CDR_FAIL(e, CDR_EINVAL, "%s: the logits must be a matrix, a column an expert", op);
    int64_t T = x->n[0], E = x->n[1];
    CDR_TRY(expect(op, "the logits", x, CDR_F32, 2, T, E, e));
    if (a->top_k < 1 || a->top_k > E) CDR_FAIL(e, CDR_EINVAL, "%s: top_k is %d; there are %lld experts", op, a->top_k, (long long)E);
    if (a->row < 1 || T % a->row != 0)
        CDR_FAIL(e, CDR_EINVAL, "%s: packed rows of %lld tokens; %lld tokens are no whole number of them", op, (long long)a->row, (long long)T);
    if (!isfinite(a->coef)) CDR_FAIL(e, CDR_EINVAL, "%s: the coefficient is not finite", op);
    CDR_TRY(expect(op, "idx", &in[CDR__AUX_IDX], CDR_I32, 2, T, a->top_k, e));
    CDR_TRY(expect(op, "start", &in[CDR__AUX_START], CDR_I32, 1, T, 0, e));
    return expect(op, "pos", &in[CDR__AUX_POS], CDR_I32, 1, T, 0, e);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != CDR__AUX_N_IN) CDR_FAIL(e, CDR_EINVAL, "aux_loss: takes logits, idx, start and pos, got %d operands", n_in);
    CDR_TRY(inputs("aux_loss", attr, in, e));
    out[0] = cdr_type_1d(CDR_F64, 1);
    *n_out = 1;
    return CDR_OK;
}

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != 1 + CDR__AUX_N_IN) CDR_FAIL(e, CDR_EINVAL, "aux_loss_bwd: takes a scale, logits, idx, start and pos, got %d operands", n_in);
    CDR_TRY(expect("aux_loss_bwd", "the scale", &in[0], CDR_F32, 1, 1, 0, e));
    CDR_TRY(inputs("aux_loss_bwd", attr, in + 1, e));
    out[0] = cdr_type_2d(CDR_F32, in[1].n[0], in[1].n[1]);
    *n_out = 1;
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_aux_loss_attr a = *(const cdr_aux_loss_attr *)cdr_graph_attr(g, c);
    (void)e;
    if (dout[0] == CDR_NONE || !want[0]) return CDR_OK;
    cdr_val in[1 + CDR__AUX_N_IN] = { dout[0] }, out[] = { CDR_NEW };
    for (int i = 0; i < CDR__AUX_N_IN; i++) in[1 + i] = cdr_graph_in(g, c, i);
    if (cdr_graph_call(g, &cdr_op_aux_loss_bwd, &a, 1 + CDR__AUX_N_IN, in, 1, out) < 0) return CDR_EINVAL;
    din[0] = out[0];
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    cdr_cost c = { .flop = 25.0 * (double)cdr_type_elems(&t[n_in == CDR__AUX_N_IN ? 0 : 1]) };
    for (int i = 0; i < n_in; i++) c.read += (double)cdr_type_bytes(&t[i]);
    for (int i = n_in; i < n_in + n_out; i++) c.write += (double)cdr_type_bytes(&t[i]);
    return c;
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "aux_loss/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__aux_loss_work, .run = cdr__aux_loss_fwd_avx2 },
    { .name = "base", .bits = "aux_loss/16", .device = CDR_DEV_CPU, .work_bytes = cdr__aux_loss_work, .run = cdr__aux_loss_fwd_base },
    { .name = NULL }
};
static const cdr_kernel kernels_bwd[] = {
    { .name = "avx2", .bits = "aux_loss_bwd/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__aux_loss_bwd_work,
      .run = cdr__aux_loss_bwd_avx2 },
    { .name = "base", .bits = "aux_loss_bwd/16", .device = CDR_DEV_CPU, .work_bytes = cdr__aux_loss_bwd_work, .run = cdr__aux_loss_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_aux_loss = {
    .name = "aux_loss", .attr_bytes = sizeof(cdr_aux_loss_attr),
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__aux_loss_ref, .kernels = kernels
};

const cdr_op cdr_op_aux_loss_bwd = {
    .name = "aux_loss_bwd", .attr_bytes = sizeof(cdr_aux_loss_attr), .add_ok = 1,
    .infer = infer_bwd, .cost = cost, .ref = cdr__aux_loss_bwd_ref, .kernels = kernels_bwd
};
