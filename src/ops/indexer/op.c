/* indexer: with the heads j of the indexer, which share one key a token, for a row t that sees the keys start_t <= s <= pos_t:
 *   I_ts = sum_j w_tj relu(qI_tj . kI_s)                                                                          (1)
 *   Omega_t = the top_k keys of largest I_ts, of equal ones the lower s first; all where there are no more, or *dense != 0  (2)
 * Its loss: how far softmax(I) over Omega_t is from what the main attention gave the keys, summed over its heads h:
 *   p_ts = sum_h exp(scale q_th . k_sh - lse_th),  s in Omega_t       (lse of the attention that ran over Omega_t)  (3)
 *   P_ts = p_ts / max(sum_s p_ts, 1e-10)                                                                          (4)
 *   Q_ts = exp(I_ts) / sum_s exp(I_ts)                                                                            (5)
 *   kl = coef sum_t sum_s P_ts (log P_ts - log Q_ts)                  (a row of one key gives 0, an idle row nothing) (6)
 * backward, P constant, with scale_1 = the gradient of kl (1 / rows of the step that are not idle):
 *   dI_ts = scale_1 coef (Q_ts - P_ts)                                                                            (7)
 *   dw_tj = sum_s dI_ts relu(x),  dqI_tj = w_tj sum_s dI_ts [x > 0] kI_s,  dkI_s = sum_t,j dI_ts w_tj [x > 0] qI_tj,
 *   x = qI_tj . kI_s                                                                                              (8)
 * Nothing flows to the main attention or to lse; Omega is an operand, made once and kept.
 * Sources: DeepSeek-V3.2; spec/operators.md, 1.1-1.4; the target over Omega, the clamp and the count of rows: spec/numerics.md, A5, A6.
 * (7) closed, not through log(Q + eps): exact where Q is small.
 * Precision: F32 (BF16 scores change 0.1 % of the selected keys); kl summed in F64.
 */
#include "ops/indexer/indexer.h"

static cdr_status matrix(const char *op, const char *what, const cdr_type *t, int64_t rows, int64_t cols, cdr_err *e)
{
    char s[64];
    cdr_type_print(s, t);
    if ((t->dtype != CDR_F32 && t->dtype != CDR_BF16) || t->layout != CDR_ROWS || t->n_dim != 2 || t->n[1] != cols || (rows > 0 && t->n[0] != rows))
        CDR_FAIL(e, CDR_EINVAL, "%s: %s is %s; it must be [%lld, %lld] in rows, f32 or bf16", op, what, s, (long long)(rows > 0 ? rows : t->n[0]), (long long)cols);
    return CDR_OK;
}
static cdr_status index_of(const char *op, const char *what, const cdr_type *t, int64_t n, cdr_err *e)
{
    if (t->dtype != CDR_I32 || cdr_type_elems(t) != n) CDR_FAIL(e, CDR_EINVAL, "%s: %s must be i32, %lld of them", op, what, (long long)n);
    return CDR_OK;
}
static cdr_status f32_of(const char *op, const char *what, const cdr_type *t, int64_t rows, int64_t cols, cdr_err *e)
{
    CDR_TRY(matrix(op, what, t, rows, cols, e));
    if (t->dtype != CDR_F32) CDR_FAIL(e, CDR_EINVAL, "%s: %s must be f32", op, what);
    return CDR_OK;
}
/* qI, kI and w, which come first in every operator of this folder */
static cdr_status indexer_rows(const char *op, int64_t H, int64_t D, const cdr_type *in, cdr_err *e)
{
    if (H < 1 || D < 1) CDR_FAIL(e, CDR_EINVAL, "%s: %lld heads of width %lld; both must be positive", op, (long long)H, (long long)D);
    CDR_TRY(matrix(op, "q of the indexer", &in[0], 0, H * D, e));
    CDR_TRY(matrix(op, "k of the indexer", &in[1], 0, D, e));
    return f32_of(op, "w", &in[2], in[0].n[0], H, e);
}

static void add_bytes(cdr_cost *c, int n_in, int n_out, const cdr_type *t)
{
    for (int i = 0; i < n_in + n_out; i++) {
        if (cdr_absent(&t[i])) continue;
        if (i < n_in) c->read += (double)cdr_type_bytes(&t[i]);
        else c->write += (double)cdr_type_bytes(&t[i]);
    }
}
/* Pairs that rows may see: shapes do not know the documents, so this is one document (training), the whole cache (else). */
static double pairs(int64_t T, int64_t S) { return T == S ? 0.5 * (double)T * ((double)T + 1) : (double)T * (double)S; }

/* ---- selection ---------------------------------------------------------------------------------------------------- */
static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_indexer_attr *a = attr;
    if (n_in != 6) CDR_FAIL(e, CDR_EINVAL, "indexer: takes q, k, w, start, pos and dense, got %d operands", n_in);
    CDR_TRY(indexer_rows("indexer", a->heads, a->dim, in, e));
    if (a->top_k < 1) CDR_FAIL(e, CDR_EINVAL, "indexer: top_k is %d; a row must select a key", a->top_k);
    CDR_TRY(index_of("indexer", "start", &in[CDR__IX_START], in[0].n[0], e));
    CDR_TRY(index_of("indexer", "pos", &in[CDR__IX_POS], in[0].n[0], e));
    CDR_TRY(index_of("indexer", "dense", &in[CDR__IX_DENSE], 1, e));
    *n_out = 1;
    out[0] = cdr_type_2d(CDR_I32, in[0].n[0], cdr_ceil_div(in[1].n[0], 32));
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_indexer_attr *a = attr;
    cdr_cost c = { 2.0 * a->heads * (a->dim + 1.0) * pairs(t[0].n[0], t[1].n[0]), 0, 0, 0 };
    add_bytes(&c, n_in, n_out, t);
    return c;
}

static const cdr_kernel kernels[] = {
    { .name = "avx512", .bits = "indexer", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512, .work_bytes = cdr__indexer_work, .run = cdr__indexer_avx512 },
    { .name = "avx2", .bits = "indexer", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__indexer_work, .run = cdr__indexer_avx2 },
    { .name = "base", .bits = "indexer", .device = CDR_DEV_CPU, .work_bytes = cdr__indexer_work, .run = cdr__indexer_base },
    { .name = NULL }
};

const cdr_op cdr_op_indexer = {
    .name = "indexer", .flags = CDR_OP_KEEP, .attr_bytes = sizeof(cdr_indexer_attr), .infer = infer, .cost = cost, .ref = cdr__indexer_ref, .kernels = kernels
};

cdr_val cdr_indexer(cdr_graph *g, cdr_val qI, cdr_val kI, cdr_val w_THI, cdr_val start_T, cdr_val pos_T, cdr_val dense_1, const cdr_indexer_attr *a)
{
    cdr_val in[] = { qI, kI, w_THI, start_T, pos_T, dense_1 };
    return cdr_graph_call1(g, &cdr_op_indexer, a, 6, in);
}

/* ---- loss ----------------------------------------------------------------------------------------------------------- */
static cdr_status loss_inputs(const char *op, const cdr_indexer_loss_attr *a, const cdr_type *in, cdr_err *e)
{
    int64_t T = in[0].n[0], M = a->main_heads;
    CDR_TRY(indexer_rows(op, a->heads, a->dim, in, e));
    if (in[CDR__IL_KI].n[0] != T)
        CDR_FAIL(e, CDR_EINVAL, "%s: %lld queries, %lld keys; the loss is for training, not for a cache", op, (long long)T, (long long)in[1].n[0]);
    if (M < 1 || a->nope < 0 || a->ext < 0 || a->nope + a->ext < 1 || a->v < 1)
        CDR_FAIL(e, CDR_EINVAL, "%s: %d main heads with key parts %d + %d and value width %d", op, a->main_heads, a->nope, a->ext, a->v);
    if (!(a->scale > 0) || !(a->coef >= 0)) CDR_FAIL(e, CDR_EINVAL, "%s: scale %g must be positive, coef %g not negative", op, (double)a->scale, (double)a->coef);
    CDR_TRY(matrix(op, "q", &in[CDR__IL_Q], T, M * (a->nope + a->ext), e));
    CDR_TRY(matrix(op, "kv", &in[CDR__IL_KV], T, M * (a->nope + a->v), e));
    if (a->ext == 0 && !cdr_absent(&in[CDR__IL_KR])) CDR_FAIL(e, CDR_EINVAL, "%s: kr is given, but the shared key part has width 0; leave it away", op);
    if (a->ext > 0 && cdr_absent(&in[CDR__IL_KR])) CDR_FAIL(e, CDR_EINVAL, "%s: kr is missing; the shared key part has width %d", op, a->ext);
    if (a->ext > 0) CDR_TRY(matrix(op, "kr", &in[CDR__IL_KR], T, a->ext, e));
    CDR_TRY(f32_of(op, "lse", &in[CDR__IL_LSE], T, M, e));
    const cdr_type *sel = &in[CDR__IL_SEL];
    if (sel->dtype != CDR_I32 || sel->layout != CDR_ROWS || sel->n_dim != 2 || sel->n[0] != T || sel->n[1] != cdr_ceil_div(T, 32))
        CDR_FAIL(e, CDR_EINVAL, "%s: sel must be i32 [%lld, %lld], a bit a key", op, (long long)T, (long long)cdr_ceil_div(T, 32));
    CDR_TRY(index_of(op, "start", &in[CDR__IL_START], T, e));
    return index_of(op, "pos", &in[CDR__IL_POS], T, e);
}

static cdr_status loss_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != 10) CDR_FAIL(e, CDR_EINVAL, "indexer_loss: takes q, k, w of the indexer, q, kv, kr, lse, sel, start and pos, got %d operands", n_in);
    CDR_TRY(loss_inputs("indexer_loss", attr, in, e));
    *n_out = 1;
    out[0] = cdr_type_1d(CDR_F64, 1);
    return CDR_OK;
}

static cdr_status loss_bwd_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != 11) CDR_FAIL(e, CDR_EINVAL, "indexer_loss_bwd: takes the operands of indexer_loss and its scale, got %d operands", n_in);
    CDR_TRY(loss_inputs("indexer_loss_bwd", attr, in, e));
    if (in[CDR__IL_SCALE].dtype != CDR_F32 || cdr_type_elems(&in[CDR__IL_SCALE]) != 1) CDR_FAIL(e, CDR_EINVAL, "indexer_loss_bwd: scale must be one f32");
    *n_out = 3;
    for (int k = 0; k < 3; k++) out[k] = cdr_type_2d(in[k].dtype, in[k].n[0], in[k].n[1]);
    return CDR_OK;
}

/* dout[0] is the scale itself, as for the model's loss. The main attention's operands are wanted in vain: nothing flows to them. */
static cdr_status loss_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_indexer_loss_attr a = *(const cdr_indexer_loss_attr *)cdr_graph_attr(g, c);
    cdr_val in[11], out[3];
    (void)e;
    for (int i = 0; i < 10; i++) {
        in[i] = cdr_graph_in(g, c, i);
        din[i] = CDR_NONE;
    }
    in[CDR__IL_SCALE] = dout[0];
    if (dout[0] == CDR_NONE || !(want[0] || want[1] || want[2])) return CDR_OK;
    for (int i = 0; i < 3; i++) out[i] = want[i] ? CDR_NEW : CDR_NONE;
    if (cdr_graph_call(g, &cdr_op_indexer_loss_bwd, &a, 11, in, 3, out) < 0) return CDR_EINVAL;
    for (int i = 0; i < 3; i++) din[i] = out[i];
    return CDR_OK;
}

/* the attention's scores, and n products of the indexer's */
static cdr_cost loss_flop(const cdr_indexer_loss_attr *a, double n, int n_in, int n_out, const cdr_type *t)
{
    cdr_cost c = { 2.0 * ((double)a->main_heads * (a->nope + a->ext) + n * a->heads * a->dim) * pairs(t[0].n[0], t[0].n[0]), 0, 0, 0 };
    add_bytes(&c, n_in, n_out, t);
    return c;
}
static cdr_cost loss_cost(const void *attr, int n_in, int n_out, const cdr_type *t) { return loss_flop(attr, 1, n_in, n_out, t); }
static cdr_cost loss_bwd_cost(const void *attr, int n_in, int n_out, const cdr_type *t) { return loss_flop(attr, 5, n_in, n_out, t); }

static const cdr_kernel loss_kernels[] = {
    { "avx512", "indexer_loss", CDR_DEV_CPU, CDR_ISA_AVX512, NULL, cdr__indexer_loss_work, NULL, cdr__indexer_loss_avx512 },
    { "avx2", "indexer_loss", CDR_DEV_CPU, CDR_ISA_AVX2, NULL, cdr__indexer_loss_work, NULL, cdr__indexer_loss_avx2 },
    { "base", "indexer_loss", CDR_DEV_CPU, 0, NULL, cdr__indexer_loss_work, NULL, cdr__indexer_loss_base },
    { .name = NULL }
};
static const cdr_kernel loss_bwd_kernels[] = {
    { "avx512", "indexer_loss", CDR_DEV_CPU, CDR_ISA_AVX512, NULL, cdr__indexer_loss_bwd_work, NULL, cdr__indexer_loss_bwd_avx512 },
    { "avx2", "indexer_loss", CDR_DEV_CPU, CDR_ISA_AVX2, NULL, cdr__indexer_loss_bwd_work, NULL, cdr__indexer_loss_bwd_avx2 },
    { "base", "indexer_loss", CDR_DEV_CPU, 0, NULL, cdr__indexer_loss_bwd_work, NULL, cdr__indexer_loss_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_indexer_loss = {
    .name = "indexer_loss", .attr_bytes = sizeof(cdr_indexer_loss_attr), .infer = loss_infer, .grad = loss_grad, .cost = loss_cost,
    .ref = cdr__indexer_loss_ref, .kernels = loss_kernels
};
const cdr_op cdr_op_indexer_loss_bwd = {
    .name = "indexer_loss_bwd", .attr_bytes = sizeof(cdr_indexer_loss_attr), .optional = 7u, .add_ok = 7u, .infer = loss_bwd_infer,
    .cost = loss_bwd_cost, .ref = cdr__indexer_loss_bwd_ref, .kernels = loss_bwd_kernels
};

cdr_val cdr_indexer_loss(cdr_graph *g, cdr_val qI, cdr_val kI, cdr_val w_THI, cdr_val q, cdr_val kv, cdr_val kr, cdr_val lse_TH, cdr_val sel_TB,
                         cdr_val start_T, cdr_val pos_T, const cdr_indexer_loss_attr *a)
{
    cdr_val in[] = { qI, kI, w_THI, q, kv, kr, lse_TH, sel_TB, start_T, pos_T };
    return cdr_graph_call1(g, &cdr_op_indexer_loss, a, 10, in);
}
