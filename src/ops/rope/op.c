/* rope: for each head, and i = 0 .. ext/2 - 1, with the angle  phi_ti = (pos_t - start_t) * theta^(-2i / ext):
 *   y_a = x_a cos phi - x_b sin phi,   y_b = x_b cos phi + x_a sin phi                                              (1)
 * (a, b) = (2i, 2i+1) interleaved, (i, i + ext/2) half style, counted inside the ext part; the nope part is copied.
 * inverse: -phi, which is the transpose, hence the gradient (2). first: the ext part lies before the nope part.
 * YaRN (factor f > 1, context L = original), with f_i = theta^(-2i / ext) instead of which g_i turns:
 *   d(b) = ext log(L / (2 pi b)) / (2 log theta)         the (real) index i whose pair turns b times over L tokens    (3)
 *   lo = max(floor(d(beta_fast)), 0),  hi = min(ceil(d(beta_slow)), ext - 1),  a_i = clamp((i - lo) / (hi - lo), 0, 1) (4)
 *   g_i = f_i (1 - a_i) + f_i a_i / f                    (hi <= lo: hi = lo + 0.001)                                   (5)
 * Sources: Su et al. 2021, "RoFormer"; the half style is that of the common Hugging Face code; (3)-(5) Peng et al. 2023,
 * "YaRN", the ramp over i as in DeepSeek-V3. The softmax's factor belongs to the attention's scale, not here.
 * Precision: angles, sine and cosine in F64 (a position of 10^6 in F32 is off by 0.03 rad), rotation in F32, one rounding. */
#include "ops/rope/rope.h"
#include "ops/cpu.h"

cdr_val cdr_rope(cdr_graph *g, cdr_val x_TC, cdr_val pos_T, cdr_val start_T, const cdr_rope_attr *a)
{
    cdr_val in[] = { x_TC, pos_T, start_T };
    return cdr_graph_call1(g, &cdr_op_rope, a, 3, in);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_rope_attr *at = attr;
    if (n_in != 3) CDR_FAIL(e, CDR_EINVAL, "rope: takes x, pos and start, got %d operands", n_in);
    if (!cdr_is_real(&in[0]) || in[0].layout != CDR_ROWS || in[0].n_dim != 2) CDR_FAIL(e, CDR_EINVAL, "rope: x must be a matrix of a float format");
    if (at->heads < 1 || at->nope < 0 || at->ext < 2 || at->ext % 2 != 0)
        CDR_FAIL(e, CDR_EINVAL, "rope: heads %d, nope %d, ext %d; ext must be even and at least 2", at->heads, at->nope, at->ext);
    if (!(at->theta > 0)) CDR_FAIL(e, CDR_EINVAL, "rope: theta is %g, must be positive", (double)at->theta);
    if (!(at->factor >= 0) || at->factor > 1e6f) CDR_FAIL(e, CDR_EINVAL, "rope: factor is %g; 0 or 1: none, else the context's growth", (double)at->factor);
    if (at->factor > 1 && (at->original < 1 || !(at->beta_slow > 0) || !(at->beta_fast >= at->beta_slow) || !(at->theta > 1)))
        CDR_FAIL(e, CDR_EINVAL, "rope: original %d, beta_fast %g, beta_slow %g, theta %g; a factor of %g needs original >= 1, beta_fast >= beta_slow > 0, theta > 1",
                 at->original, (double)at->beta_fast, (double)at->beta_slow, (double)at->theta, (double)at->factor);
    if (in[0].n[1] != (int64_t)at->heads * (at->nope + at->ext))
        CDR_FAIL(e, CDR_EINVAL, "rope: x has %lld columns, %d heads of %d + %d need %lld", (long long)in[0].n[1], at->heads, at->nope, at->ext,
                 (long long)at->heads * (at->nope + at->ext));
    for (int i = 1; i < 3; i++)
        if (in[i].dtype != CDR_I32 || cdr_type_elems(&in[i]) != in[0].n[0]) CDR_FAIL(e, CDR_EINVAL, "rope: pos and start must be I32, one a row");
    *n_out = 1;
    out[0] = cdr_dense_like(&in[0], in[0].dtype);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    if (!want[0] || dout[0] == CDR_NONE) return CDR_OK;
    cdr_rope_attr back = *(const cdr_rope_attr *)cdr_graph_attr(g, c);
    back.inverse = !back.inverse;
    din[0] = cdr_rope(g, dout[0], cdr_graph_in(g, c, 1), cdr_graph_in(g, c, 2), &back);
    return din[0] == CDR_NONE ? CDR_EINVAL : CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_rope_attr *at = attr;
    (void)n_in, (void)n_out;
    double T = (double)t[0].n[0];
    return (cdr_cost){ .flop = T * at->ext * (3.0 * at->heads + 20.0), .read = (double)cdr_type_bytes(&t[0]), .write = (double)cdr_type_bytes(&t[3]) };
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "rope/f64", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__rope_work, .run = cdr__rope_avx2 },
    { .name = "base", .bits = "rope/f64", .device = CDR_DEV_CPU, .work_bytes = cdr__rope_work, .run = cdr__rope_base },
    { .name = NULL }
};

const cdr_op cdr_op_rope = {
    .name = "rope", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_rope_attr),
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__rope_ref, .kernels = kernels
};
