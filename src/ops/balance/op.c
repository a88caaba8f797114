/* balance: load_e += #{(t, j): idx_tj = e}                                                                         (1)
 * Quantile balancing, with s_te the router's scores, alpha_t the (k+1)-th biased score and b the bias in use, over rows that are not idle:
 *   r_te = alpha_t - s_te                                   the bias with which expert e just enters token t's top k (2)
 *   hist_e[floor((r_te - lo) / w)] += 1,  lo = min b - 1,  w = (max b - min b + 2) / B,  clipped to [0, B - 1]       (3)
 * and once per step, with m = tokens counted, q = m k / E, n the first bin of e whose cumulative count is >= q:
 *   b^_e = lo + (n + clip((q - count before n) / count of n, 0, 1)) w                                               (4)
 *   b^ <- ema b + (1 - ema) b^;   b <- b^ - mean(b^);   m = 0: b stays                                              (5)
 * The sign rule:  b_e += rate sign(mean load - load_e)                                                              (6)
 * Sources: (2)-(5) K3's technical report, 2.3.3, App. C and D (spec/model.md, 3.7; numerics.md, A4); (6) DeepSeek-V3 (arXiv 2412.19437).
 * Counts are I32 and exact: any order, any number of ranks. (4) and (5) in F64, rounded once. What an interpolated quantile reaches on fixed
 * scores: max over mean load 1.09 to 1.15 with B = 1000, as every token whose (k+1)-th expert is e puts r_te at b_e exactly: an atom that
 * no bin resolves. Both biases keep their mean, or have none, since only differences choose. */
#include "ops/balance/balance.h"
#include "ops/cpu.h"

/* ---- builders ---------------------------------------------------------------------------------------------------- */
void cdr_balance_load(cdr_graph *g, cdr_val idx_Tk, cdr_val micro_1, cdr_val load_E, int experts)
{
    cdr_balance_load_attr a = { .experts = experts };
    cdr_val in[] = { idx_Tk, micro_1 };
    cdr_graph_call(g, &cdr_op_balance_load, &a, 2, in, 1, &load_E);
}

void cdr_balance_hist(cdr_graph *g, cdr_val logits_TE, cdr_val alpha_T, cdr_val bias_E, cdr_val start_T, cdr_val pos_T, cdr_val micro_1, cdr_val hist_EB,
                      const cdr_balance_hist_attr *a)
{
    cdr_val in[] = { logits_TE, alpha_T, bias_E, start_T, pos_T, micro_1 };
    cdr_graph_call(g, &cdr_op_balance_hist, a, 6, in, 1, &hist_EB);
}

int32_t cdr_balance_quantile(cdr_graph *g, cdr_val hist_EB, cdr_val bias_E, cdr_val load_E, const cdr_balance_quantile_attr *a)
{
    cdr_val in[] = { hist_EB, load_E };
    return cdr_graph_call(g, &cdr_op_balance_quantile, a, 2, in, 1, &bias_E);
}

int32_t cdr_balance_sign(cdr_graph *g, cdr_val load_E, cdr_val bias_E, float rate)
{
    cdr_balance_sign_attr a = { .rate = rate };
    return cdr_graph_call(g, &cdr_op_balance_sign, &a, 1, &load_E, 1, &bias_E);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */
/* n_dim 1: [rows]; 2: [rows, cols]; rows, cols below 0: any number */
static cdr_status expect(const char *op, const char *what, const cdr_type *t, int dtype, int n_dim, int64_t rows, int64_t cols, cdr_err *e)
{
    char s[64] = "missing", want[64];
    cdr_type w = n_dim == 2 ? cdr_type_2d(dtype, CDR_MAX(rows, 0), CDR_MAX(cols, 0)) : cdr_type_1d(dtype, CDR_MAX(rows, 0));
    if (!cdr_absent(t)) cdr_type_print(s, t);
    cdr_type_print(want, &w);
    bool fits = !cdr_absent(t) && t->dtype == dtype && t->layout == CDR_ROWS && t->n_dim == n_dim;
    if (!fits || (rows >= 0 && t->n[0] != rows) || (n_dim == 2 && cols >= 0 && t->n[1] != cols))
        CDR_FAIL(e, CDR_EINVAL, "%s: %s is %s; it must be like %s in rows", op, what, s, want);
    return CDR_OK;
}

static cdr_status experts_and_bins(const char *op, int64_t E, int bins, cdr_err *e)
{
    if (E < 1 || E > INT32_MAX) CDR_FAIL(e, CDR_EINVAL, "%s: %lld experts", op, (long long)E);
    if (bins < CDR_BALANCE_MIN_BINS || bins > CDR_BALANCE_MAX_BINS)
        CDR_FAIL(e, CDR_EINVAL, "%s: %d bins; takes %d to %d", op, bins, (int)CDR_BALANCE_MIN_BINS, (int)CDR_BALANCE_MAX_BINS);
    return CDR_OK;
}

static cdr_status infer_load(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_balance_load_attr *a = attr;
    if (n_in != 2) CDR_FAIL(e, CDR_EINVAL, "balance_load: takes idx and the micro-batch, got %d operands", n_in);
    CDR_TRY(experts_and_bins("balance_load", a->experts, CDR_BALANCE_MIN_BINS, e));
    CDR_TRY(expect("balance_load", "idx", &in[0], CDR_I32, 2, -1, -1, e));
    CDR_TRY(expect("balance_load", "the micro-batch", &in[1], CDR_I32, 1, 1, 0, e));
    out[0] = cdr_type_1d(CDR_I32, a->experts);
    *n_out = 1;
    return CDR_OK;
}

static cdr_status infer_hist(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_balance_hist_attr *a = attr;
    if (n_in != 6) CDR_FAIL(e, CDR_EINVAL, "balance_hist: takes logits, alpha, bias, start, pos and the micro-batch, got %d operands", n_in);
    CDR_TRY(expect("balance_hist", "the logits", &in[CDR__BAH_LOGITS], CDR_F32, 2, -1, -1, e));
    int64_t T = in[0].n[0], E = in[0].n[1];
    CDR_TRY(experts_and_bins("balance_hist", E, a->bins, e));
    CDR_TRY(expect("balance_hist", "alpha", &in[CDR__BAH_ALPHA], CDR_F32, 1, T, 0, e));
    CDR_TRY(expect("balance_hist", "the bias", &in[CDR__BAH_BIAS], CDR_F32, 1, E, 0, e));
    CDR_TRY(expect("balance_hist", "start", &in[CDR__BAH_START], CDR_I32, 1, T, 0, e));
    CDR_TRY(expect("balance_hist", "pos", &in[CDR__BAH_POS], CDR_I32, 1, T, 0, e));
    CDR_TRY(expect("balance_hist", "the micro-batch", &in[CDR__BAH_MICRO], CDR_I32, 1, 1, 0, e));
    out[0] = cdr_type_2d(CDR_I32, E, a->bins);
    *n_out = 1;
    return CDR_OK;
}

static cdr_status infer_quantile(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_balance_quantile_attr *a = attr;
    if (n_in != 2) CDR_FAIL(e, CDR_EINVAL, "balance_quantile: takes the histogram and the load, got %d operands", n_in);
    CDR_TRY(expect("balance_quantile", "the histogram", &in[0], CDR_I32, 2, -1, a->bins, e));
    int64_t E = in[0].n[0];
    CDR_TRY(experts_and_bins("balance_quantile", E, a->bins, e));
    CDR_TRY(expect("balance_quantile", "the load", &in[1], CDR_I32, 1, E, 0, e));
    if (a->top_k < 1 || a->top_k > E) CDR_FAIL(e, CDR_EINVAL, "balance_quantile: top_k is %d; there are %lld experts", a->top_k, (long long)E);
    if (!(a->ema >= 0.0f && a->ema < 1.0f)) CDR_FAIL(e, CDR_EINVAL, "balance_quantile: ema is %g; it must lie in [0, 1)", (double)a->ema);
    out[0] = cdr_type_1d(CDR_F32, E);
    *n_out = 1;
    return CDR_OK;
}

static cdr_status infer_sign(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_balance_sign_attr *a = attr;
    if (n_in != 1) CDR_FAIL(e, CDR_EINVAL, "balance_sign: takes the load, got %d operands", n_in);
    CDR_TRY(expect("balance_sign", "the load", &in[0], CDR_I32, 1, -1, 0, e));
    CDR_TRY(experts_and_bins("balance_sign", in[0].n[0], CDR_BALANCE_MIN_BINS, e));
    if (!(a->rate >= 0.0f && a->rate <= 1.0f)) CDR_FAIL(e, CDR_EINVAL, "balance_sign: the rate is %g; it must lie in [0, 1]", (double)a->rate);
    out[0] = cdr_type_1d(CDR_F32, in[0].n[0]);
    *n_out = 1;
    return CDR_OK;
}

static cdr_cost cost_hist(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_out;
    cdr_cost c = { .flop = 20.0 * (double)cdr_type_elems(&t[CDR__BAH_LOGITS]), .write = (double)cdr_type_bytes(&t[CDR__BAH_HIST]) };
    for (int i = 0; i < n_in; i++) c.read += (double)cdr_type_bytes(&t[i]);
    return c;
}

static const cdr_kernel kernels_load[] = {
    { .name = "base", .bits = "exact", .device = CDR_DEV_CPU, .run = cdr__balance_load_base },
    { .name = NULL }
};
static const cdr_kernel kernels_hist[] = {
    { .name = "avx2", .bits = "balance_hist/16", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__balance_hist_work, .run = cdr__balance_hist_avx2 },
    { .name = "base", .bits = "balance_hist/16", .device = CDR_DEV_CPU, .work_bytes = cdr__balance_hist_work, .run = cdr__balance_hist_base },
    { .name = NULL }
};
static const cdr_kernel kernels_quantile[] = {
    { .name = "base", .bits = "balance_quantile", .device = CDR_DEV_CPU, .work_bytes = cdr__balance_quantile_work, .run = cdr__balance_quantile_base },
    { .name = NULL }
};
static const cdr_kernel kernels_sign[] = {
    { .name = "base", .bits = "balance_sign", .device = CDR_DEV_CPU, .run = cdr__balance_sign_base },
    { .name = NULL }
};

const cdr_op cdr_op_balance_load = {
    .name = "balance_load", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_balance_load_attr), .rmw = 1,
    .infer = infer_load, .ref = cdr__balance_load_ref, .kernels = kernels_load
};

const cdr_op cdr_op_balance_hist = {
    .name = "balance_hist", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_balance_hist_attr), .rmw = 1,
    .infer = infer_hist, .cost = cost_hist, .ref = cdr__balance_hist_ref, .kernels = kernels_hist
};

const cdr_op cdr_op_balance_quantile = {
    .name = "balance_quantile", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_balance_quantile_attr), .rmw = 1,
    .infer = infer_quantile, .ref = cdr__balance_quantile_ref, .kernels = kernels_quantile
};

const cdr_op cdr_op_balance_sign = {
    .name = "balance_sign", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_balance_sign_attr), .rmw = 1,
    .infer = infer_sign, .ref = cdr__balance_sign_ref, .kernels = kernels_sign
};
