/* linear: y_TN = x_TK w_NK^T             (1)
 * linear_dx: dx_TK (+)= dy_TN w_NK       (2)
 * linear_dw: dw_NK (+)= dy_TN^T x_TK     (3)
 * x, w: F32 or BF16, w of (1), (2) in rows or panels; y: dtype of x, or F32 on demand; dy: F32 or BF16; dw: F32.
 * Precision: F32 accumulation, one chain per element over the summed index ascending (gemm.h), one rounding at the end.
 * The AVX-512 BF16 kernels take F32 gradients too and round them to BF16 first; F32 activations they refuse.
 * dw sums over all T rows given: one logical shard.
 * Source: (1) by definition; (2), (3) derived, checked by finite differences. */
#include "ops/linear/linear.h"

static cdr_val build(cdr_graph *g, cdr_val x_TK, cdr_val w_NK, int32_t out_dtype)
{
    const cdr_linear_attr attr = { .out_dtype = out_dtype };
    const cdr_val in[] = { x_TK, w_NK };
    return cdr_graph_call1(g, &cdr_op_linear, &attr, 2, in);
}

cdr_val cdr_linear(cdr_graph *g, cdr_val x_TK, cdr_val w_NK) { return build(g, x_TK, w_NK, -1); }
cdr_val cdr_linear_f32(cdr_graph *g, cdr_val x_TK, cdr_val w_NK) { return build(g, x_TK, w_NK, CDR_F32); }

/* Both inputs are matrices of a computed dtype; axes i of the first and j of the second are equal. panels: the second may lie in them. */
static cdr_status check_pair(const char *op, int n_in, const cdr_type *in, int i, int j, bool panels, cdr_err *e)
{
    if (n_in != 2) CDR_FAIL(e, CDR_EINVAL, "%s: takes 2 inputs, has %d", op, n_in);
    for (int k = 0; k < 2; k++) {
        if (cdr_absent(&in[k])) CDR_FAIL(e, CDR_EINVAL, "%s: input %d is absent", op, k);
        if (in[k].n_dim != 2) CDR_FAIL(e, CDR_EINVAL, "%s: input %d has %d dimensions, takes matrices", op, k, in[k].n_dim);
        if (in[k].layout != CDR_ROWS && !(panels && k == 1 && cdr_layout_takes(in[k].layout, &in[k])))
            CDR_FAIL(e, CDR_EINVAL, "%s: input %d lies in layout %s, takes %s", op, k, cdr_layout_row(in[k].layout)->name,
                     panels && k == 1 ? "rows, or dense panels of its format" : "rows");
        if (in[k].dtype != CDR_F32 && in[k].dtype != CDR_BF16)
            CDR_FAIL(e, CDR_EINVAL, "%s: input %d is %s; products are of f32 and bf16: copy it to one of them first", op, k, cdr_dtype_row(in[k].dtype)->name);
    }
    if (in[0].n[i] != in[1].n[j]) {
        char a[64], b[64];
        cdr_type_print(a, &in[0]);
        cdr_type_print(b, &in[1]);
        CDR_FAIL(e, CDR_EINVAL, "%s: %s against %s: axis %d of the first and axis %d of the second differ", op, a, b, i, j);
    }
    return CDR_OK;
}

static cdr_status infer_linear(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_linear_attr *at = attr;
    CDR_TRY(check_pair("linear", n_in, in, 1, 1, true, e));
    if (at->out_dtype != -1 && at->out_dtype != CDR_F32 && at->out_dtype != CDR_BF16)
        CDR_FAIL(e, CDR_EINVAL, "linear: out_dtype %d is neither f32, bf16 nor -1 (that of x)", at->out_dtype);
    *n_out = 1;
    out[0] = cdr_type_2d(at->out_dtype == -1 ? in[0].dtype : at->out_dtype, in[0].n[0], in[1].n[0]);
    return CDR_OK;
}

static cdr_status infer_dx(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    CDR_TRY(check_pair("linear_dx", n_in, in, 1, 0, true, e));
    *n_out = 1;
    out[0] = cdr_type_2d(in[1].dtype, in[0].n[0], in[1].n[1]);
    return CDR_OK;
}

static cdr_status infer_dw(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    CDR_TRY(check_pair("linear_dw", n_in, in, 0, 0, false, e));
    *n_out = 1;
    out[0] = cdr_type_2d(CDR_F32, in[0].n[1], in[1].n[1]);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    const cdr_val dx_in[] = { dout[0], cdr_graph_in(g, c, 1) }, dw_in[] = { dout[0], cdr_graph_in(g, c, 0) };
    if (dout[0] == CDR_NONE) return CDR_OK;
    if (want[0]) din[0] = cdr_graph_call1(g, &cdr_op_linear_dx, NULL, 2, dx_in);
    if (want[1]) din[1] = cdr_graph_call1(g, &cdr_op_linear_dw, NULL, 2, dw_in);
    return g->failed ? CDR_EINVAL : CDR_OK;
}

/* 2 m n k: a product for each element of the output and of the summed axis; every operand moves once. */
static cdr_cost cost_of(const cdr_type *t, int64_t k)
{
    const cdr_cost c = { .flop = 2.0 * (double)cdr_type_elems(&t[2]) * (double)k,
                         .read = (double)cdr_type_bytes(&t[0]) + (double)cdr_type_bytes(&t[1]), .write = (double)cdr_type_bytes(&t[2]) };
    return c;
}

static cdr_cost cost_rows(const void *attr, int n_in, int n_out, const cdr_type *t)      /* (1), (2): over the columns of x, dy */
{
    (void)attr, (void)n_in, (void)n_out;
    return cost_of(t, t[0].n[1]);
}

static cdr_cost cost_dw(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out;
    return cost_of(t, t[0].n[0]);
}

const cdr_op cdr_op_linear = {
    .name = "linear", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_linear_attr), .add_ok = 1,
    .infer = infer_linear, .grad = grad, .cost = cost_rows, .ref = cdr__linear_ref, .kernels = cdr__linear_kernels, .layout = cdr__linear_layout
};

const cdr_op cdr_op_linear_dx = {
    .name = "linear_dx", .flags = CDR_OP_ROWWISE, .add_ok = 1,
    .infer = infer_dx, .cost = cost_rows, .ref = cdr__linear_dx_ref, .kernels = cdr__linear_dx_kernels, .layout = cdr__linear_layout
};

const cdr_op cdr_op_linear_dw = {
    .name = "linear_dw", .flags = CDR_OP_PARAM_GRAD, .add_ok = 1,
    .infer = infer_dw, .cost = cost_dw, .ref = cdr__linear_dw_ref, .kernels = cdr__linear_dw_kernels
};
