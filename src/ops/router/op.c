/* router: scores, the selection and the weights of a token, in F32 throughout
 *   s_te = sg(x_te),  or  exp(x_te - max_e x_te) / sum_e exp(x_te - max_e x_te)                                    (1)
 *   v_te = s_te + b_e                                       b: selection only, no gradient                          (2)
 *   group score = the sum of a group's two largest v; experts come from the top_groups best groups                  (3)
 *   R_t = the k largest v_te of these; ids ascending; alpha_t = the (k+1)-th (the k-th where there are no more)      (4)
 *   p_tj = scale s_tj / (sum_{r in R_t} s_tr + 1e-20),  or  scale s_tj where weights are not renormalised            (5)
 * backward, with S_t = sum_{r in R_t} s_tr + 1e-20:
 *   ds_tj = (scale dp_tj - sum_r dp_tr p_tr) / S_t,  or  scale dp_tj;  0 for experts that were not chosen           (6)
 *   sigmoid: dx_te = ds_te sg(x_te) sg(-x_te);   softmax: dx_te = s_te (ds_te - sum_r ds_tr s_tr), all e             (7)
 * Sources: (1), (2), (5), (6) spec/model.md, 3.5 (K3's technical report, Eq. 11-13); (3) DeepSeek-V3 (arXiv 2412.19437, 2.1.2) and its
 * reference code; (4)'s alpha: spec/model.md, 3.7. (6) and (7) derived again here, checked by finite differences.
 * Ties: the lower id, for experts and groups. A NaN counts as largest, so that it is chosen, makes its token's weights NaN, and the loss says so.
 * sg(x) sg(-x) instead of s (1 - s): 1 - s has no correct digit for x above 17.
 * Routes are kept, never made again (CDR_OP_KEEP): scores that are closer than a rounding occur (spec/numerics.md, 4.7). */
#include "ops/router/router.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"
#include <math.h>

void cdr_router(cdr_graph *g, cdr_val logits_TE, cdr_val bias_E, cdr_val start_T, cdr_val pos_T, const cdr_router_attr *a,
                cdr_val *idx_Tk, cdr_val *p_Tk, cdr_val *alpha_T)
{
    cdr_val in[] = { logits_TE, bias_E, start_T, pos_T }, out[] = { CDR_NEW, CDR_NEW, alpha_T ? *alpha_T : CDR_NONE };
    bool ok = cdr_graph_call(g, &cdr_op_router, a, 4, in, 3, out) >= 0;
    *idx_Tk = ok ? out[0] : CDR_NONE;
    *p_Tk = ok ? out[1] : CDR_NONE;
    if (alpha_T) *alpha_T = ok ? out[2] : CDR_NONE;
}

/* ---- forward --------------------------------------------------------------------------------------------------- */
static cdr_status attributes(const char *op, const cdr_router_attr *a, int64_t E, cdr_err *e)
{
    if (a->top_k < 1 || a->top_k > E) CDR_FAIL(e, CDR_EINVAL, "%s: top_k is %d; there are %lld experts", op, a->top_k, (long long)E);
    if (!isfinite(a->scale)) CDR_FAIL(e, CDR_EINVAL, "%s: the scale of the weights is not finite", op);
    if (a->groups <= 1) {
        if (a->groups < 0 || a->top_groups < 0 || a->top_groups > 1)
            CDR_FAIL(e, CDR_EINVAL, "%s: %d of %d groups; without groups both are 0 or 1", op, a->top_groups, a->groups);
        return CDR_OK;
    }
    if (a->groups > CDR_ROUTER_MAX_GROUPS || E % a->groups != 0 || E / a->groups < 2)
        CDR_FAIL(e, CDR_EINVAL, "%s: %lld experts in %d groups; there may be %d groups, of the same size and two or more experts each", op, (long long)E,
                 a->groups, (int)CDR_ROUTER_MAX_GROUPS);
    if (a->top_groups < 1 || a->top_groups > a->groups) CDR_FAIL(e, CDR_EINVAL, "%s: %d of %d groups are to be chosen", op, a->top_groups, a->groups);
    if (E / a->groups * a->top_groups < a->top_k)
        CDR_FAIL(e, CDR_EINVAL, "%s: %d groups of %lld experts cannot give top_k = %d", op, a->top_groups, (long long)(E / a->groups), a->top_k);
    return CDR_OK;
}

static cdr_status matrix(const char *op, const char *what, const cdr_type *t, int dtype, int64_t rows, int64_t cols, cdr_err *e)
{
    char s[64];
    cdr_type_print(s, t);
    if (cdr_absent(t) || t->dtype != dtype || t->layout != CDR_ROWS || t->n_dim != 2 || t->n[0] != rows || t->n[1] != cols)
        CDR_FAIL(e, CDR_EINVAL, "%s: %s is %s; it must be %s[%lld,%lld] in rows", op, what, cdr_absent(t) ? "missing" : s, cdr_dtype_row(dtype)->name,
                 (long long)rows, (long long)cols);
    return CDR_OK;
}

static cdr_status vector(const char *op, const char *what, const cdr_type *t, int dtype, int64_t n, cdr_err *e)
{
    char s[64];
    cdr_type_print(s, t);
    if (cdr_absent(t) || t->dtype != dtype || t->n_dim != 1 || t->n[0] != n)
        CDR_FAIL(e, CDR_EINVAL, "%s: %s is %s; it must be %s[%lld]", op, what, cdr_absent(t) ? "missing" : s, cdr_dtype_row(dtype)->name, (long long)n);
    return CDR_OK;
}

static cdr_status logits(const char *op, const cdr_type *t, cdr_err *e)
{
    if (cdr_absent(t) || t->n_dim != 2 || t->n[1] < 1 || t->n[1] > INT32_MAX) CDR_FAIL(e, CDR_EINVAL, "%s: the logits must be a matrix, a column an expert", op);
    return matrix(op, "the logits (BF16 ones change 2 % of the routes)", t, CDR_F32, t->n[0], t->n[1], e);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_router_attr *a = attr;
    if (n_in != 4) CDR_FAIL(e, CDR_EINVAL, "router: takes logits, bias, start and pos, got %d operands", n_in);
    CDR_TRY(logits("router", &in[0], e));
    int64_t T = in[0].n[0], E = in[0].n[1];
    CDR_TRY(attributes("router", a, E, e));
    if (!cdr_absent(&in[1])) CDR_TRY(vector("router", "the bias (a narrower one chooses other experts)", &in[1], CDR_F32, E, e));
    CDR_TRY(vector("router", "start", &in[2], CDR_I32, T, e));
    CDR_TRY(vector("router", "pos", &in[3], CDR_I32, T, e));
    *n_out = 3;
    out[0] = cdr_type_2d(CDR_I32, T, a->top_k);
    out[1] = cdr_type_2d(CDR_F32, T, a->top_k);
    out[2] = cdr_type_1d(CDR_F32, T);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_router_attr a = *(const cdr_router_attr *)cdr_graph_attr(g, c);
    if (dout[2] != CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "router: only its weights have a gradient, alpha has none");
    if (want[1]) CDR_FAIL(e, CDR_EINVAL, "router: the bias has no gradient; it changes the selection alone");
    if (dout[1] == CDR_NONE || !want[0]) return CDR_OK;
    cdr_val in[] = { dout[1], cdr_graph_in(g, c, 0), cdr_graph_out(g, c, 0), cdr_graph_out(g, c, 1), cdr_graph_in(g, c, 2), cdr_graph_in(g, c, 3) };
    cdr_val out[] = { CDR_NEW };
    if (cdr_graph_call(g, &cdr_op_router_bwd, &a, 6, in, 1, out) < 0) return CDR_EINVAL;
    din[0] = out[0];
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    const cdr_type *x = n_in == 4 ? &t[CDR__ROUTER_LOGITS] : &t[CDR__ROB_LOGITS];
    return cdr__cost_of(20.0 * (double)cdr_type_elems(x), n_in, n_out, t);
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "router/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__router_work, .run = cdr__router_fwd_avx2 },
    { .name = "base", .bits = "router/16", .device = CDR_DEV_CPU, .work_bytes = cdr__router_work, .run = cdr__router_fwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_router = {
    .name = "router", .flags = CDR_OP_ROWWISE | CDR_OP_KEEP, .attr_bytes = sizeof(cdr_router_attr), .optional = 4,
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__router_ref, .kernels = kernels
};

/* ---- backward -------------------------------------------------------------------------------------------------- */
static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_router_attr *a = attr;
    if (n_in != 6) CDR_FAIL(e, CDR_EINVAL, "router_bwd: takes dp, logits, idx, p, start and pos, got %d operands", n_in);
    CDR_TRY(logits("router_bwd", &in[CDR__ROB_LOGITS], e));
    int64_t T = in[CDR__ROB_LOGITS].n[0], E = in[CDR__ROB_LOGITS].n[1];
    CDR_TRY(attributes("router_bwd", a, E, e));
    CDR_TRY(matrix("router_bwd", "dp", &in[CDR__ROB_DP], CDR_F32, T, a->top_k, e));
    CDR_TRY(matrix("router_bwd", "idx", &in[CDR__ROB_IDX], CDR_I32, T, a->top_k, e));
    CDR_TRY(matrix("router_bwd", "p", &in[CDR__ROB_P], CDR_F32, T, a->top_k, e));
    CDR_TRY(vector("router_bwd", "start", &in[CDR__ROB_START], CDR_I32, T, e));
    CDR_TRY(vector("router_bwd", "pos", &in[CDR__ROB_POS], CDR_I32, T, e));
    *n_out = 1;
    out[0] = cdr_type_2d(CDR_F32, T, E);
    return CDR_OK;
}

static const cdr_kernel kernels_bwd[] = {
    { .name = "avx2", .bits = "router_bwd/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__router_bwd_work, .run = cdr__router_bwd_avx2 },
    { .name = "base", .bits = "router_bwd/16", .device = CDR_DEV_CPU, .work_bytes = cdr__router_bwd_work, .run = cdr__router_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_router_bwd = {
    .name = "router_bwd", .flags = CDR_OP_ROWWISE, .attr_bytes = sizeof(cdr_router_attr), .add_ok = 1,
    .infer = infer_bwd, .cost = cost, .ref = cdr__router_bwd_ref, .kernels = kernels_bwd
};
