/* loss: with logits z_tv = h_t . w_v and the tokens t whose target y_t >= 0,
 *   lse_t = log sum_v exp(z_tv)                                                                                  (1)
 *   loss = sum_t w_t (lse_t - z_t,y_t),   w_t = 1 without weights                                                (2)
 * backward, with scale = the gradient of loss (1 / trained tokens of the step) and p_tv = exp(z_tv - lse_t):
 *   d_tv = (p_tv - [v = y_t]) scale w_t                                                                          (3)
 *   dh_t = sum_v d_tv w_v,  dw_v = sum_t d_tv h_t                                                                (4)
 * Sources: Milakov & Gimelshein 2018 (online normalizer); spec/operators.md, 2 (chunk and CCE losses of other engines).
 * Precision: logits F32, never rounded: BF16 logits cost 4e-2 in dh where p_y is near 1, and BF16(p) - 1 all of it
 * (spec/numerics.md, 4.7). Sum of the loss in F64, ascending t. No term is dropped: a filter of small p costs up to 2e-2.
 * loss_frozen is (1), (2) and dh in one operator and one sweep: for a head that is not trained, with the scale known beforehand. With the
 * largest logit m_t of the pieces so far and e_tv = exp(z_tv - m_t),
 *   a_t = sum_{v != y_t} e_tv w_v,  r_t = sum_{v != y_t} e_tv,  s_t = r_t + e_t,y   (all times exp(m_t - m_t') where m_t grows)   (5)
 *   dh_t = (a_t - r_t w_y) scale w_t / s_t                                                                         (6)
 * which is (3) and (4), as p_ty - 1 = -r_t / s_t: nothing cancels, however near p_y is to 1 (a case with 1 - p_y about 3e-3 is held to
 * 2e-6; by way of an lse that is rounded to F32 it needs 1e-3). It holds dh until the backward reaches it, so a
 * trained head, which would need dw (W x D, F32) as well, does not take this way.
 */
#include "ops/loss/loss.h"

static cdr_status matrix(const char *op, const char *what, const cdr_type *t, cdr_err *e)
{
    char s[64];
    cdr_type_print(s, t);
    if (t->layout != CDR_ROWS || t->n_dim != 2 || (t->dtype != CDR_F32 && t->dtype != CDR_BF16))
        CDR_FAIL(e, CDR_EINVAL, "%s: %s is %s; it must be a matrix in rows, f32 or bf16", op, what, s);
    return CDR_OK;
}

/* n_in: with weights one more than n_plain, and the last one is they */
static cdr_status inputs(const char *op, const cdr_loss_attr *a, int n_in, int n_plain, const cdr_type *in, cdr_err *e)
{
    if (a->chunk_tokens < 0 || a->chunk_vocab < 0) CDR_FAIL(e, CDR_EINVAL, "%s: a chunk size is negative; 0 means all", op);
    CDR_TRY(matrix(op, "h", &in[0], e));
    CDR_TRY(matrix(op, "w", &in[1], e));
    if (in[0].n[1] != in[1].n[1])
        CDR_FAIL(e, CDR_EINVAL, "%s: h is %lld wide, w %lld", op, (long long)in[0].n[1], (long long)in[1].n[1]);
    if (in[1].n[0] < 1 || in[1].n[1] < 1) CDR_FAIL(e, CDR_EINVAL, "%s: w is empty", op);
    if (in[2].dtype != CDR_I32 || cdr_type_elems(&in[2]) != in[0].n[0])
        CDR_FAIL(e, CDR_EINVAL, "%s: targets must be i32 with one entry for each of %lld rows", op, (long long)in[0].n[0]);
    if (n_in > n_plain && (in[n_plain].dtype != CDR_F32 || cdr_type_elems(&in[n_plain]) != in[0].n[0]))
        CDR_FAIL(e, CDR_EINVAL, "%s: weights must be f32 with one entry for each of %lld rows", op, (long long)in[0].n[0]);
    return CDR_OK;
}

static cdr_status loss_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != 3 && n_in != 4) CDR_FAIL(e, CDR_EINVAL, "loss: takes h, w, targets and perhaps weights, got %d operands", n_in);
    CDR_TRY(inputs("loss", attr, n_in, CDR__LOSS_WEIGHTS, in, e));
    *n_out = 2;
    out[0] = cdr_type_1d(CDR_F64, 1);
    out[1] = cdr_type_1d(CDR_F32, in[0].n[0]);
    return CDR_OK;
}

static cdr_status loss_bwd_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != 5 && n_in != 6) CDR_FAIL(e, CDR_EINVAL, "loss_bwd: takes h, w, targets, lse, scale and perhaps weights, got %d operands", n_in);
    CDR_TRY(inputs("loss_bwd", attr, n_in, CDR__LSB_WEIGHTS, in, e));
    if (in[CDR__LSB_LSE].dtype != CDR_F32 || cdr_type_elems(&in[CDR__LSB_LSE]) != in[0].n[0])
        CDR_FAIL(e, CDR_EINVAL, "loss_bwd: lse must be f32 with one entry for each of %lld rows", (long long)in[0].n[0]);
    if (in[CDR__LSB_SCALE].dtype != CDR_F32 || cdr_type_elems(&in[CDR__LSB_SCALE]) != 1) CDR_FAIL(e, CDR_EINVAL, "loss_bwd: scale must be one f32");
    *n_out = 2;
    out[0] = cdr_type_2d(in[0].dtype, in[0].n[0], in[0].n[1]);
    out[1] = cdr_type_2d(CDR_F32, in[1].n[0], in[1].n[1]);
    return CDR_OK;
}

static cdr_status loss_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_loss_attr a = *(const cdr_loss_attr *)cdr_graph_attr(g, c);
    const int weighted = c->n_in > CDR__LOSS_WEIGHTS;
    cdr_val in[6] = { cdr_graph_in(g, c, 0), cdr_graph_in(g, c, 1), cdr_graph_in(g, c, 2), cdr_graph_out(g, c, 1), dout[0] };
    if (weighted) in[CDR__LSB_WEIGHTS] = cdr_graph_in(g, c, CDR__LOSS_WEIGHTS);
    din[0] = din[1] = din[2] = CDR_NONE;
    if (dout[1] != CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "loss: only its first output has a gradient");
    if (weighted && want[CDR__LOSS_WEIGHTS]) CDR_FAIL(e, CDR_EINVAL, "loss: weights have no gradient");
    if (dout[0] == CDR_NONE || !(want[0] || want[1])) return CDR_OK;
    if (in[CDR__LSB_LSE] == CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "loss: its backward needs lse, and this call makes none; ask for output 1");
    cdr_val out[2] = { want[0] ? CDR_NEW : CDR_NONE, want[1] ? CDR_NEW : CDR_NONE };
    if (cdr_graph_call(g, &cdr_op_loss_bwd, &a, 5 + weighted, in, 2, out) < 0) return CDR_EINVAL;
    din[0] = out[0];
    din[1] = out[1];
    return CDR_OK;
}

static double product_flop(const cdr_type *t) { return 2.0 * (double)t[0].n[0] * (double)t[0].n[1] * (double)t[1].n[0]; }

static void add_bytes(cdr_cost *c, int n_in, int n_out, const cdr_type *t)
{
    for (int i = 0; i < n_in + n_out; i++) {
        if (cdr_absent(&t[i])) continue;
        if (i < n_in) c->read += (double)cdr_type_bytes(&t[i]);
        else c->write += (double)cdr_type_bytes(&t[i]);
    }
}

static cdr_cost loss_cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    cdr_cost c = { product_flop(t), 0, 0, 0 };
    add_bytes(&c, n_in, n_out, t);
    return c;
}

/* the logits again, and a product for each gradient that is wanted */
static cdr_cost loss_bwd_cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    int n = 1;
    for (int k = 0; k < n_out; k++) n += !cdr_absent(&t[n_in + k]);
    cdr_cost c = { n * product_flop(t), 0, 0, 0 };
    add_bytes(&c, n_in, n_out, t);
    return c;
}

/* Keep lse (4 bytes a token), or run the forward again. */
static int loss_saves(const void *attr, int n_in, const cdr_type *in, cdr_save *alt, int max)
{
    (void)attr, (void)n_in;
    int n = 0;
    if (n < max) alt[n++] = (cdr_save){ .keep = 2u, .again_flop = 0 };
    if (n < max) alt[n++] = (cdr_save){ .keep = 0, .again_flop = product_flop(in) };
    return n;
}

/* Products of BF16 round F32 sources: taken only where h and w are BF16 anyway. */
static const char *reject_f32(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out;
    return t[0].dtype != CDR_BF16 || t[1].dtype != CDR_BF16 ? "h or w is not bf16; it would be rounded" : NULL;
}

static const cdr_kernel loss_kernels[] = {
    { "amx", "amx", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AMX, reject_f32, cdr__loss_fwd_amx_work, NULL, cdr__loss_fwd_amx },
    { "avx512_bf16", "bf16dot", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16, reject_f32, cdr__loss_fwd_avx512_bf16_work, NULL, cdr__loss_fwd_avx512_bf16 },
    { "avx512", "fma", CDR_DEV_CPU, CDR_ISA_AVX512, NULL, cdr__loss_fwd_avx512_work, NULL, cdr__loss_fwd_avx512 },
    { "avx2", "fma", CDR_DEV_CPU, CDR_ISA_AVX2, NULL, cdr__loss_fwd_avx2_work, NULL, cdr__loss_fwd_avx2 },
    { "base", "base", CDR_DEV_CPU, 0, NULL, cdr__loss_fwd_base_work, NULL, cdr__loss_fwd_base },
    { .name = NULL }
};
static const cdr_kernel loss_bwd_kernels[] = {
    { "amx", "amx", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AMX, reject_f32, cdr__loss_bwd_amx_work, NULL, cdr__loss_bwd_amx },
    { "avx512_bf16", "bf16dot", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16, reject_f32, cdr__loss_bwd_avx512_bf16_work, NULL, cdr__loss_bwd_avx512_bf16 },
    { "avx512", "fma", CDR_DEV_CPU, CDR_ISA_AVX512, NULL, cdr__loss_bwd_avx512_work, NULL, cdr__loss_bwd_avx512 },
    { "avx2", "fma", CDR_DEV_CPU, CDR_ISA_AVX2, NULL, cdr__loss_bwd_avx2_work, NULL, cdr__loss_bwd_avx2 },
    { "base", "base", CDR_DEV_CPU, 0, NULL, cdr__loss_bwd_base_work, NULL, cdr__loss_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_loss = {
    .name = "loss", .attr_bytes = sizeof(cdr_loss_attr), .optional = 2u, .infer = loss_infer, .grad = loss_grad, .shard = cdr__loss_shard,
    .saves = loss_saves, .cost = loss_cost, .ref = cdr__loss_ref, .kernels = loss_kernels
};
const cdr_op cdr_op_loss_bwd = {
    .name = "loss_bwd", .flags = CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_loss_attr), .optional = 3u, .add_ok = 3u,
    .infer = loss_bwd_infer, .cost = loss_bwd_cost, .ref = cdr__loss_bwd_ref, .kernels = loss_bwd_kernels
};

/* ---- a head that is not trained ------------------------------------------------------------------------------------ */
static cdr_status frozen_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != 4 && n_in != 5) CDR_FAIL(e, CDR_EINVAL, "loss_frozen: takes h, w, targets, scale and perhaps weights, got %d operands", n_in);
    CDR_TRY(inputs("loss_frozen", attr, n_in, CDR__LSF_WEIGHTS, in, e));
    if (in[CDR__LSF_SCALE].dtype != CDR_F32 || cdr_type_elems(&in[CDR__LSF_SCALE]) != 1) CDR_FAIL(e, CDR_EINVAL, "loss_frozen: scale must be one f32");
    *n_out = 2;
    out[0] = cdr_type_1d(CDR_F64, 1);
    out[1] = cdr_type_2d(in[0].dtype, in[0].n[0], in[0].n[1]);
    return CDR_OK;
}

/* dh is there already, where the gradient of the loss is the scale that it was made with; else by the long way. */
static cdr_status frozen_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_loss_attr a = *(const cdr_loss_attr *)cdr_graph_attr(g, c);
    const int weighted = c->n_in > CDR__LSF_WEIGHTS;
    cdr_val in[6] = { cdr_graph_in(g, c, 0), cdr_graph_in(g, c, 1), cdr_graph_in(g, c, 2), CDR_NEW, dout[0] };
    cdr_val dh = cdr_graph_out(g, c, 1), scale = cdr_graph_in(g, c, CDR__LSF_SCALE), fwd[4] = { in[0], in[1], in[2] };
    if (weighted) fwd[CDR__LOSS_WEIGHTS] = in[CDR__LSB_WEIGHTS] = cdr_graph_in(g, c, CDR__LSF_WEIGHTS);
    if (want[1]) CDR_FAIL(e, CDR_EINVAL, "loss_frozen: the head needs a gradient; use loss, which makes one");
    if (want[CDR__LSF_SCALE] || (weighted && want[CDR__LSF_WEIGHTS])) CDR_FAIL(e, CDR_EINVAL, "loss_frozen: scale and weights have no gradient");
    if (dout[1] != CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "loss_frozen: only its first output has a gradient");
    if (dout[0] == CDR_NONE || !want[0]) return CDR_OK;
    if (dout[0] == scale && dh != CDR_NONE) {
        din[0] = dh;
        return CDR_OK;
    }
    cdr_val sum[2] = { CDR_NEW, CDR_NEW }, out[2] = { CDR_NEW, CDR_NONE };
    if (cdr_graph_call(g, &cdr_op_loss, &a, 3 + weighted, fwd, 2, sum) < 0) return CDR_EINVAL;
    in[CDR__LSB_LSE] = sum[1];
    if (cdr_graph_call(g, &cdr_op_loss_bwd, &a, 5 + weighted, in, 2, out) < 0) return CDR_EINVAL;
    din[0] = out[0];
    return CDR_OK;
}

static cdr_cost frozen_cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    cdr_cost c = { (cdr_absent(&t[n_in + CDR__LSF_DH]) ? 1 : 2) * product_flop(t), 0, 0, 0 };
    add_bytes(&c, n_in, n_out, t);
    return c;
}

static int frozen_saves(const void *attr, int n_in, const cdr_type *in, cdr_save *alt, int max)
{
    (void)attr, (void)n_in, (void)in;
    if (max < 1) return 0;
    alt[0] = (cdr_save){ .keep = 2u, .again_flop = 0 };
    return 1;
}

static const cdr_kernel frozen_kernels[] = {
    { "amx", "amx", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AMX, reject_f32, cdr__loss_frozen_amx_work, NULL, cdr__loss_frozen_amx },
    { "avx512_bf16", "bf16dot", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16, reject_f32, cdr__loss_frozen_avx512_bf16_work, NULL, cdr__loss_frozen_avx512_bf16 },
    { "avx512", "fma", CDR_DEV_CPU, CDR_ISA_AVX512, NULL, cdr__loss_frozen_avx512_work, NULL, cdr__loss_frozen_avx512 },
    { "avx2", "fma", CDR_DEV_CPU, CDR_ISA_AVX2, NULL, cdr__loss_frozen_avx2_work, NULL, cdr__loss_frozen_avx2 },
    { "base", "base", CDR_DEV_CPU, 0, NULL, cdr__loss_frozen_base_work, NULL, cdr__loss_frozen_base },
    { .name = NULL }
};

const cdr_op cdr_op_loss_frozen = {
    .name = "loss_frozen", .attr_bytes = sizeof(cdr_loss_attr), .optional = 2u, .infer = frozen_infer, .grad = frozen_grad,
    .shard = cdr__loss_frozen_shard, .saves = frozen_saves, .cost = frozen_cost, .ref = cdr__loss_frozen_ref, .kernels = frozen_kernels
};

/* ---- a head that is split over ranks: split.c ---------------------------------------------------------------------------- */
const cdr_op cdr_op_loss_pieces = {
    .name = "loss_pieces", .flags = CDR_OP_COLLECTIVE | CDR_OP_COMPUTES, .attr_bytes = sizeof(cdr_loss_pieces_attr), .optional = 2u,
    .infer = cdr__loss_pieces_infer,
    .grad = cdr__loss_pieces_grad, .cost = cdr__loss_pieces_cost, .kernels = cdr__loss_pieces_kernels
};
const cdr_op cdr_op_loss_pieces_bwd = {
    .name = "loss_pieces_bwd", .flags = CDR_OP_COLLECTIVE | CDR_OP_COMPUTES | CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_loss_pieces_attr),
    .optional = 3u, .add_ok = 3u,
    .infer = cdr__loss_pieces_bwd_infer, .cost = cdr__loss_pieces_bwd_cost, .kernels = cdr__loss_pieces_bwd_kernels
};
const cdr_op cdr_op_loss_frozen_pieces = {
    .name = "loss_frozen_pieces", .flags = CDR_OP_COLLECTIVE | CDR_OP_COMPUTES, .attr_bytes = sizeof(cdr_loss_pieces_attr), .optional = 2u,
    .infer = cdr__loss_frozen_pieces_infer, .grad = cdr__loss_frozen_pieces_grad, .cost = cdr__loss_frozen_pieces_cost,
    .kernels = cdr__loss_frozen_pieces_kernels
};

cdr_val cdr_loss_frozen(cdr_graph *g, const cdr_val in[5], int64_t chunk_tokens, int64_t chunk_vocab)
{
    cdr_loss_attr a = { chunk_tokens, chunk_vocab };
    cdr_val out[] = { CDR_NEW, CDR_NEW };
    return cdr_graph_call(g, &cdr_op_loss_frozen, &a, in[CDR__LSF_WEIGHTS] == CDR_NONE ? 4 : 5, in, 2, out) < 0 ? CDR_NONE : out[0];
}

cdr_val cdr_loss(cdr_graph *g, cdr_val h_TD, cdr_val w_WD, cdr_val targets_T, cdr_val weights_T, int64_t chunk_tokens, int64_t chunk_vocab)
{
    cdr_loss_attr a = { chunk_tokens, chunk_vocab };
    cdr_val in[] = { h_TD, w_WD, targets_T, weights_T }, out[] = { CDR_NEW, CDR_NEW };
    return cdr_graph_call(g, &cdr_op_loss, &a, weights_T == CDR_NONE ? 3 : 4, in, 2, out) < 0 ? CDR_NONE : out[0];
}
