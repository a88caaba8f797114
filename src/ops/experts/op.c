/* experts: with the routed row r of pair q = perm_r = t A + slot, expert e (offs_e <= r < offs_{e+1}) and round_A to the activations' dtype:
 *   g_r = round_A(W1_e x_t),  c_r = round_A(W3_e x_t),  h_r = act(g_r, c_r)                                          (1)
 *   y_r = round_A(p_q W2_e h_r),   u_t = round_A(sum of y_r over the token's rows in ascending expert id)            (2)
 *   act(g, c) = silu(g) c, or b1 tanh(g / b1) s(g) b2 tanh(c / b2) (ops/situ)
 * where A of w1 and w3, and B of w2, are one for all experts (shared-outer), with h1_t = s A1 x_t and h3_t = s A3 x_t of the caller:
 *   g_r = round_A(W1_e x_t + B1_e h1_t),  c_r = round_A(W3_e x_t + B3_e h3_t),  v_t = round_A(sum of round_A(p_q A2_e h_r))   (2a)
 * and the caller adds s B2 v_t to u_t.
 * backward, with t_r = W2_e^T du_t (so that y is never needed; SonicMoE's rewrite):
 *   dp_q = <t_r, h_r>,   (dg_r, dc_r) = act'(g_r, c_r) (p_q t_r)                                                     (3)
 *   dx_t = sum over the token's rows, ascending expert id, of round_A(W1_e^T dg_r + W3_e^T dc_r)                     (4)
 *   dW1_e = sum_r dg_r x_t^T,   dW3_e = sum_r dc_r x_t^T,   dW2_e = sum_r (p_q du_t) h_r^T                           (5)
 * with adapters, W is W_e + s B_e A_e in (1) to (4), and of each of the three, in the row that W reads and dout the gradient of what
 * it gives (x_t and dg_r; x_t and dc_r; h_r and p_q du_t):
 *   dA_e = sum_r (s B_e^T dout_r) in_r^T,   dB_e = sum_r dout_r (s A_e in_r)^T                                       (6)
 * shared-outer: t_r = W2_e^T du_t + A2_e^T dv_t in (3), and of the token's rows, ascending expert id,
 *   dh1_t = sum of round_A(B1_e^T dg_r),   dB1_e = sum_r dg_r h1_t^T,   w3 likewise;   dA2_e = sum_r (p_q dv_t) h_r^T             (6a)
 * A token without rows gives zeros and takes no part; an expert without rows has dW = dA = dB = 0.
 * Sources: (1), (2) spec/model.md, 3.5 (K3's technical report, Eq. 11-13); (3)-(5), (2a), (6a) spec/operators.md, 4.3; (6) derived here; finite
 * differences.
 * Precision: F32; a product's element is one chain over the summed index, (4) one chain over dg, then dc; (2a) goes on with the chain of
 * (1), and A2 with that of t; (5), (6) one chain over the expert's rows in ascending order. W with an adapter is formed in F32 while it is
 * packed (weights.c), never as a whole; so are packed weights (MXFP4), which are exact in F32. g and c are rounded where they are made, so
 * that keeping them, in gu, or making them again gives the same bits. Rows of (4) are rounded as those of (2) are: half the bytes, here and
 * between ranks. Nothing depends on capacity or threads.
 * Products of BF16 (classes bf16dot, amx) round du, dg and dc to BF16 and take h as a sum of two; (5), (6) are F32 in all.
 * Weights are addressed by an offset table where there is one, never by stride alone. All offsets are 64 bits. */
#include "ops/experts/kernel.h"

cdr_val cdr_experts(cdr_graph *g, cdr_val x, cdr_val p, cdr_val perm, cdr_val offs, cdr_val pos, cdr_val w1, cdr_val w3, cdr_val w2,
                    cdr_val table, const cdr_experts_adapter adapters[3], const cdr_experts_attr *a, bool keep_gate_up)
{
    cdr_val in[CDR__EX_N] = { x, p, perm, offs, pos, w1, w3, w2, table };
    for (int m = 0; m < 3; m++) {
        in[CDR__EX_A1 + 2 * m] = adapters ? adapters[m].a : CDR_NONE;
        in[CDR__EX_B1 + 2 * m] = adapters ? adapters[m].b : CDR_NONE;
    }
    const bool low = in[CDR__EX_A2] != CDR_NONE && in[CDR__EX_B2] == CDR_NONE;
    cdr_val out[] = { CDR_NEW, keep_gate_up ? CDR_NEW : CDR_NONE, low ? CDR_NEW : CDR_NONE };
    return cdr_graph_call(g, &cdr_op_experts, a, CDR__EX_N, in, CDR__EX_N_OUT, out) < 0 ? CDR_NONE : out[0];
}

/* Operand i is dtype (or, -1: F32 or BF16) of these sizes, in rows. */
static cdr_status shaped(const char *op, const char *what, const cdr_type *t, int dtype, cdr_type want, cdr_err *e)
{
    char has[64], asked[64];
    if (cdr_absent(t)) CDR_FAIL(e, CDR_EINVAL, "%s: %s is missing", op, what);
    want.dtype = dtype < 0 ? t->dtype : (uint8_t)dtype;
    cdr_type_print(has, t);
    cdr_type_print(asked, &want);
    if (dtype < 0 && t->dtype != CDR_F32 && t->dtype != CDR_BF16) CDR_FAIL(e, CDR_EINVAL, "%s: %s is %s; it must be f32 or bf16", op, what, has);
    if (t->dtype != want.dtype || t->layout != CDR_ROWS || !cdr_same_shape(t, &want))
        CDR_FAIL(e, CDR_EINVAL, "%s: %s is %s; it must be %s in rows", op, what, has, asked);
    return CDR_OK;
}

/* A stack of matrices: F32 or BF16, in rows or in panels, or MXFP4, whose rows are whole blocks, in rows or mapped */
static cdr_status stack(const char *op, const char *what, const cdr_type *t, cdr_type want, cdr_err *e)
{
    if (!cdr_absent(t) && t->layout != CDR_ROWS && t->layout < CDR_N_LAYOUTS) {
        cdr_type rows = *t;
        rows.layout = CDR_ROWS;
        if (!cdr_layout_takes(t->layout, &rows)) CDR_FAIL(e, CDR_EINVAL, "%s: %s cannot lie in %s", op, what, cdr_layout_row(t->layout)->name);
        return shaped(op, what, &rows, t->layout == CDR_MAPPED ? CDR_MXFP4 : -1, want, e);
    }
    if (t->dtype != CDR_MXFP4) return shaped(op, what, t, -1, want, e);
    const int block = cdr_dtype_row(CDR_MXFP4)->block_elems;
    if (cdr_type_cols(t) % block != 0 || cdr_type_pitch(t) % block != 0)
        CDR_FAIL(e, CDR_EINVAL, "%s: %s has rows of %lld, %lld apart; MXFP4 packs %d at a time", op, what, (long long)cdr_type_cols(t),
                 (long long)cdr_type_pitch(t), block);
    return shaped(op, what, t, CDR_MXFP4, want, e);
}

static cdr_status check_attr(const char *op, const cdr_experts_attr *a, cdr_err *e)
{
    if (a->top_k < 1 || a->top_k > 64) CDR_FAIL(e, CDR_EINVAL, "%s: %d experts a token; 1 to 64 can be", op, a->top_k);
    if (a->capacity < 0) CDR_FAIL(e, CDR_EINVAL, "%s: capacity %lld; 0 takes all rows at a time", op, (long long)a->capacity);
    if (a->situ && (!(a->beta > 0) || !(a->linear_beta > 0)))
        CDR_FAIL(e, CDR_EINVAL, "%s: beta = %g and linear_beta = %g must be above 0", op, (double)a->beta, (double)a->linear_beta);
    return CDR_OK;
}

/* Adapters of matrix m, [E][rows][cols]: A [E][K][cols], B [E][rows][K]; of w1 and w3, h [T][K] in place of A; of w2, A alone */
static cdr_status check_adapter(const char *op, const cdr_type *in, int m, cdr_err *e)
{
    static const char *const name[3][2] = { { "A1", "B1" }, { "A3", "B3" }, { "A2", "B2" } };
    const cdr_type *a = &in[CDR__EX_A1 + 2 * m], *b = &in[CDR__EX_B1 + 2 * m], *w = &in[CDR__EX_W1 + m];
    if (cdr_absent(a) && cdr_absent(b)) return CDR_OK;
    if (m == 2 && !cdr_absent(a) && cdr_absent(b) && a->n_dim == 3 && a->n[1] > 0)
        return shaped(op, name[m][0], a, -1, cdr_type_3d(0, w->n[0], a->n[1], w->n[2]), e);
    if (m < 2 && !cdr_absent(a) && !cdr_absent(b) && a->n_dim == 2 && a->n[1] > 0) {
        CDR_TRY(shaped(op, name[m][0], a, in[CDR__EX_X].dtype, cdr_type_2d(0, in[CDR__EX_X].n[0], a->n[1]), e));
        return shaped(op, name[m][1], b, -1, cdr_type_3d(0, w->n[0], w->n[1], a->n[1]), e);
    }
    if (cdr_absent(a) || cdr_absent(b)) CDR_FAIL(e, CDR_EINVAL, "%s: %s without %s: adapters come in pairs", op, name[m][cdr_absent(a)], name[m][cdr_absent(b)]);
    if (w->layout != CDR_ROWS && w->layout != CDR_MAPPED)
        CDR_FAIL(e, CDR_EINVAL, "%s: a matrix with an adapter (%s) lies in rows, not in %s", op, name[m][0], cdr_layout_row(w->layout)->name);
    if (a->n_dim != 3 || a->n[1] < 1) CDR_FAIL(e, CDR_EINVAL, "%s: %s must be [experts, rank, width], rank 1 or more", op, name[m][0]);
    CDR_TRY(shaped(op, name[m][0], a, -1, cdr_type_3d(0, w->n[0], a->n[1], w->n[2]), e));
    return shaped(op, name[m][1], b, -1, cdr_type_3d(0, w->n[0], w->n[1], a->n[1]), e);
}

/* The forward's inputs */
static cdr_status check_inputs(const char *op, const cdr_experts_attr *a, const cdr_type *in, cdr_err *e)
{
    const cdr_type *x = &in[CDR__EX_X], *w1 = &in[CDR__EX_W1], *table = &in[CDR__EX_TABLE];
    CDR_TRY(check_attr(op, a, e));
    if (cdr_absent(x) || x->n_dim != 2) CDR_FAIL(e, CDR_EINVAL, "%s: x must be a matrix [tokens, width]", op);
    if (cdr_absent(w1) || w1->n_dim != 3) CDR_FAIL(e, CDR_EINVAL, "%s: w1 must be [experts, inner width, width]", op);
    const int64_t T = x->n[0], L = x->n[1], E = w1->n[0], I = w1->n[1], A = a->top_k;
    if (T < 1 || L < 1 || E < 1 || I < 1 || T > INT32_MAX / A)
        CDR_FAIL(e, CDR_EINVAL, "%s: %lld tokens of %lld experts each, width %lld, %lld experts of inner width %lld: each must be positive, pairs below 2^31",
                 op, (long long)T, (long long)A, (long long)L, (long long)E, (long long)I);
    CDR_TRY(shaped(op, "x", x, -1, cdr_type_2d(0, T, L), e));
    CDR_TRY(shaped(op, "p", &in[CDR__EX_P], CDR_F32, cdr_type_2d(0, T, A), e));
    CDR_TRY(shaped(op, "perm", &in[CDR__EX_PERM], CDR_I32, cdr_type_1d(0, T * A), e));
    CDR_TRY(shaped(op, "offs", &in[CDR__EX_OFFS], CDR_I32, cdr_type_1d(0, E + 1), e));
    CDR_TRY(shaped(op, "pos", &in[CDR__EX_POS], CDR_I32, cdr_type_2d(0, T, A), e));
    CDR_TRY(stack(op, "w1", w1, cdr_type_3d(0, E, I, L), e));
    CDR_TRY(stack(op, "w3", &in[CDR__EX_W3], cdr_type_3d(0, E, I, L), e));
    CDR_TRY(stack(op, "w2", &in[CDR__EX_W2], cdr_type_3d(0, E, L, I), e));
    for (int m = 0; m < 3; m++) CDR_TRY(check_adapter(op, in, m, e));
    if (cdr_absent(table)) return CDR_OK;
    CDR_TRY(shaped(op, "table", table, CDR_I64, cdr_type_2d(0, E, 3), e));
    for (int i = CDR__EX_W1; i <= CDR__EX_W2; i++)
        if (in[i].layout == CDR_MAPPED) CDR_FAIL(e, CDR_EINVAL, "%s: mapped weights are addresses already, there may be no table", op);
    for (int i = CDR__EX_W1; i <= CDR__EX_W2; i++)
        if (cdr_type_pitch(&in[i]) != cdr_type_cols(&in[i])) CDR_FAIL(e, CDR_EINVAL, "%s: with a table, rows of weights must be dense", op);
    return CDR_OK;
}

static cdr_type gu_type(const cdr_experts_attr *a, const cdr_type *x, const cdr_type *w1)
{
    return cdr_type_2d(x->dtype, x->n[0] * a->top_k, 2 * w1->n[1]);
}

/* v, or its gradient */
static cdr_type low_type(const cdr_type *fwd, int dtype)
{
    const int64_t K = cdr__ex_low_out(fwd);
    return K > 0 ? cdr_type_2d(dtype, fwd[CDR__EX_X].n[0], K) : (cdr_type){ .dtype = CDR_N_DTYPES };
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != CDR__EX_N) CDR_FAIL(e, CDR_EINVAL, "experts: takes x, p, perm, offs, pos, w1, w3, w2, table and three pairs of adapters, got %d operands", n_in);
    CDR_TRY(check_inputs("experts", attr, in, e));
    *n_out = CDR__EX_N_OUT;
    out[CDR__EX_OUT_U] = cdr_dense_like(&in[CDR__EX_X], in[CDR__EX_X].dtype);
    out[CDR__EX_OUT_GU] = gu_type(attr, &in[CDR__EX_X], &in[CDR__EX_W1]);
    out[CDR__EX_OUT_V] = low_type(in, in[CDR__EX_X].dtype);
    return CDR_OK;
}

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_type *fwd = in + CDR__EXB_X, *gu = &in[CDR__EXB_GU];
    if (n_in != CDR__EXB_N) CDR_FAIL(e, CDR_EINVAL, "experts_bwd: takes du, the forward's %d operands, gu and dv, got %d", (int)CDR__EX_N, n_in);
    CDR_TRY(check_inputs("experts_bwd", attr, fwd, e));
    CDR_TRY(shaped("experts_bwd", "du", &in[CDR__EXB_DU], -1, cdr_dense_like(&fwd[CDR__EX_X], CDR_F32), e));
    if (!cdr_absent(gu)) CDR_TRY(shaped("experts_bwd", "gu", gu, fwd[CDR__EX_X].dtype, gu_type(attr, &fwd[CDR__EX_X], &fwd[CDR__EX_W1]), e));
    if (cdr_absent(&in[CDR__EXB_DV]) != (cdr__ex_low_out(fwd) == 0)) CDR_FAIL(e, CDR_EINVAL, "experts_bwd: dv belongs to A2 without B2");
    if (!cdr_absent(&in[CDR__EXB_DV])) CDR_TRY(shaped("experts_bwd", "dv", &in[CDR__EXB_DV], -1, low_type(fwd, CDR_F32), e));
    *n_out = CDR__EXB_N_OUT;
    out[CDR__EXB_DX] = cdr_dense_like(&fwd[CDR__EX_X], fwd[CDR__EX_X].dtype);
    out[CDR__EXB_DP] = cdr_dense_like(&fwd[CDR__EX_P], CDR_F32);
    for (int i = 0; i < 3; i++) out[CDR__EXB_DW1 + i] = cdr_dense_like(&fwd[CDR__EX_W1 + i], CDR_F32);
    for (int i = 0; i < 6; i++) {
        const cdr_type *w = &fwd[CDR__EX_A1 + i];
        out[CDR__EXB_DA1 + i] = cdr_absent(w) ? *w : cdr_dense_like(w, w->n_dim == 2 ? w->dtype : CDR_F32);
    }
    return CDR_OK;
}

cdr_status cdr__experts_may_train(const cdr_graph *g, const cdr_call *c, const bool *want, cdr_err *e)
{
    for (int i = CDR__EX_W1; i <= CDR__EX_W2; i++)
        if (want[i] && !cdr_is_real(cdr_graph_type(g, cdr_graph_in(g, c, i))))
            CDR_FAIL_ID(e, CDR_EUSER, "precision.experts", "precision.experts: experts that train cannot be packed as %s, which has no room for an update. "
                        "Freeze them (train.freeze=[experts]) or set precision.experts=bf16", cdr_dtype_row(cdr_graph_type(g, cdr_graph_in(g, c, i))->dtype)->name);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    static const int of[CDR__EXB_N_OUT] = { CDR__EX_X, CDR__EX_P, CDR__EX_W1, CDR__EX_W3, CDR__EX_W2,
        CDR__EX_A1, CDR__EX_B1, CDR__EX_A3, CDR__EX_B3, CDR__EX_A2, CDR__EX_B2 };
    if (dout[0] == CDR_NONE) return CDR_OK;
    CDR_TRY(cdr__experts_may_train(g, c, want, e));
    const cdr_experts_attr attr = *(const cdr_experts_attr *)cdr_graph_attr(g, c);       /* the graph's array may move */
    cdr_val in[CDR__EXB_N] = { dout[0] }, out[CDR__EXB_N_OUT];
    for (int i = 0; i < CDR__EX_N; i++) in[CDR__EXB_X + i] = cdr_graph_in(g, c, i);
    in[CDR__EXB_GU] = cdr_graph_out(g, c, CDR__EX_OUT_GU);
    in[CDR__EXB_DV] = dout[CDR__EX_OUT_V];
    for (int i = 0; i < CDR__EXB_N_OUT; i++) out[i] = want[of[i]] ? CDR_NEW : CDR_NONE;
    if (cdr_graph_call(g, &cdr_op_experts_bwd, &attr, CDR__EXB_N, in, CDR__EXB_N_OUT, out) < 0) return CDR_EINVAL;
    for (int i = 0; i < CDR__EXB_N_OUT; i++) if (out[i] != CDR_NONE) din[of[i]] = out[i];
    return CDR_OK;
}

/* FLOPs of one product of all rows with one matrix, were all R rows there */
static double product_flop(const cdr_experts_attr *a, const cdr_type *x, const cdr_type *w1)
{
    return 2.0 * (double)x->n[0] * a->top_k * (double)x->n[1] * (double)w1->n[1];
}

/* FLOPs of forming w1, w3 and w2 (n[0], n[1], n[2] times) with their adapters, for each expert that may have rows, and of (6) where `out`
 * (the backward's outputs) is given */
static double adapter_flop(const cdr_experts_attr *at, const cdr_type *fwd, const int n[3], const cdr_type *out)
{
    const cdr_type *w1 = &fwd[CDR__EX_W1];
    const double rows = (double)fwd[CDR__EX_X].n[0] * at->top_k, L = (double)w1->n[2], I = (double)w1->n[1];
    double flop = 0;
    for (int m = 0; m < 3; m++) {
        const cdr_type *a = &fwd[CDR__EX_A1 + 2 * m];
        const int64_t low = m < 2 ? cdr__ex_low_in(fwd, m) : cdr__ex_low_out(fwd);
        if (low > 0) flop += 2.0 * rows * (double)low * I * (n[m] + (out != NULL));        /* as often as W is read, and (6a) */
        if (cdr_absent(a) || low > 0) continue;
        flop += n[m] * 2.0 * CDR_MIN((double)w1->n[0], rows) * (double)a->n[1] * L * I;
        for (int i = 0; i < 2 && out; i++) if (!cdr_absent(&out[CDR__EXB_DA1 + 2 * m + i])) flop += 2.0 * rows * (double)a->n[1] * (L + I);
    }
    return flop;
}

static void moved(cdr_cost *c, int n_in, int n_out, const cdr_type *t)
{
    for (int i = 0; i < n_in; i++) if (!cdr_absent(&t[i])) c->read += (double)(cdr_type_bytes(&t[i]) + cdr_mapped_bytes(&t[i]));
    for (int i = n_in; i < n_in + n_out; i++) if (!cdr_absent(&t[i])) c->write += (double)cdr_type_bytes(&t[i]);
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    cdr_cost c = { .flop = 3 * product_flop(attr, &t[CDR__EX_X], &t[CDR__EX_W1]) + adapter_flop(attr, t, (const int[3]){ 1, 1, 1 }, NULL) };
    moved(&c, n_in, n_out, t);
    return c;
}

/* t; dx two; a dW each; gate and up again */
static cdr_cost cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_type *fwd = t + CDR__EXB_X, *out = t + CDR__EXB_N;
    const int again = cdr_absent(&t[CDR__EXB_GU]), dx = !cdr_absent(&out[CDR__EXB_DX]);
    int n = 1 + 2 * again + 2 * dx;
    for (int i = CDR__EXB_DW1; i <= CDR__EXB_DW2; i++) if (!cdr_absent(&out[i])) n++;
    cdr_cost c = { .flop = n * product_flop(attr, &fwd[CDR__EX_X], &fwd[CDR__EX_W1]) +
                   adapter_flop(attr, fwd, (const int[3]){ again + dx, again + dx, 1 }, out) };
    moved(&c, n_in, n_out, t);
    return c;
}

static int saves(const void *attr, int n_in, const cdr_type *in, cdr_save *alt, int max)
{
    (void)n_in;
    int n = 0;
    if (n < max) alt[n++] = (cdr_save){ .keep = 2u, .again_flop = 0 };
    if (n < max) alt[n++] = (cdr_save){ .keep = 0, .again_flop = 2 * product_flop(attr, &in[CDR__EX_X], &in[CDR__EX_W1]) };
    return n;
}

/* Products of BF16: of activations and weights that are BF16, or packed weights, which BF16 holds. An expert's own adapter is a product of
 * F32 beside the base's (weights.c). F32 operands that are made on the way (dg, dc, an F32 gradient) are rounded, as between two linears; h is not (forward.c). */
static const char *reject(const cdr_type *fwd)
{
    if (fwd[CDR__EX_X].dtype != CDR_BF16) return "activations are F32: the kernel would round them";
    for (int m = 0; m < 3; m++) {
        if (fwd[CDR__EX_W1 + m].dtype == CDR_F32) return "weights are F32: the kernel would round them";
        const cdr_type *a = &fwd[CDR__EX_A1 + 2 * m], *b = &fwd[CDR__EX_B1 + 2 * m];
        if (cdr__ex_fused(fwd, m)) continue;
        if ((!cdr_absent(a) && a->dtype == CDR_F32) || (!cdr_absent(b) && b->dtype == CDR_F32)) return "adapters are F32: the kernel would round them";
    }
    return NULL;
}

const char *cdr__experts_reject(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out;
    return reject(t);
}

const char *cdr__experts_bwd_reject(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out;
    return reject(t + CDR__EXB_X);
}

/* The AVX-512 kernel is the AVX2 kernel with wider products: the same chains, the same bits. Gradients of weights, (5), are F32 products
 * in all: pairs of rows would depend on where an expert's rows are cut. */
#define FWD(isa) .work_bytes = cdr__experts_work_##isa, .run = cdr__experts_fwd_##isa
#define BWD(isa) .work_bytes = cdr__experts_bwd_work_##isa, .run = cdr__experts_bwd_##isa
static const cdr_kernel kernels[] = { CDR__EXPERTS_ROWS("experts", cdr__experts_reject, FWD) };

static const cdr_kernel kernels_bwd[] = { CDR__EXPERTS_ROWS("experts_bwd", cdr__experts_bwd_reject, BWD) };

/* Of weights without a table of their own: packed ones where a file has them */
int cdr__experts_maps(const cdr_type *fwd, int m)
{
    return fwd[CDR__EX_W1 + m].dtype == CDR_MXFP4 && cdr_absent(&fwd[CDR__EX_TABLE]) ? CDR_MAPPED : CDR_ROWS;
}

/* Frozen weights of F32 or BF16 that no adapter is added into: the panels of the kernel's product. */
static int layout(const cdr_kernel *k, int i, const cdr_type *t)
{
    static const cdr__gemm_isa *const isas[] = { &cdr__gemm_amx, &cdr__gemm_avx512_bf16, &cdr__gemm_avx512, &cdr__gemm_avx2, &cdr__gemm_base };
    _Static_assert(CDR_COUNT(isas) + 1 == CDR_COUNT(kernels) && CDR_COUNT(isas) + 1 == CDR_COUNT(kernels_bwd), "a product for each row");
    for (int r = 0; r < CDR_COUNT(isas); r++) {
        const bool bwd = k == &kernels_bwd[r];
        const int m = i - CDR__EX_W1 - (bwd ? CDR__EXB_X : 0);
        if ((!bwd && k != &kernels[r]) || m < 0 || m > 2) continue;
        const cdr_type *fwd = t + (bwd ? CDR__EXB_X : 0), *w = &fwd[CDR__EX_W1 + m];
        if (w->dtype == CDR_MXFP4) return cdr__experts_maps(fwd, m);
        if (!cdr_is_real(w) || (isas[r]->pair == 1 && cdr__ex_fused(fwd, m)) || !cdr_layout_takes(isas[r]->layout, w)) return CDR_ROWS;
        return isas[r]->layout;
    }
    return CDR_ROWS;
}

const cdr_op cdr_op_experts = {
    .name = "experts", .attr_bytes = sizeof(cdr_experts_attr), .optional = 2u,
    .infer = infer, .grad = grad, .shard = cdr__experts_shard, .saves = saves, .cost = cost, .ref = cdr__experts_ref, .kernels = kernels, .layout = layout
};

const cdr_op cdr_op_experts_bwd = {
    .name = "experts_bwd", .flags = CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_experts_attr), .optional = (1u << CDR__EXB_N_OUT) - 1, .add_ok = 1u,
    .infer = infer_bwd, .cost = cost_bwd, .ref = cdr__experts_bwd_ref, .kernels = kernels_bwd, .layout = layout
};

/* ep_op.c */
const cdr_op cdr_op_experts_ep = {
    .name = "experts_ep", .flags = CDR_OP_COLLECTIVE | CDR_OP_COMPUTES, .attr_bytes = sizeof(cdr_experts_ep_attr),
    .optional = ((1u << CDR__EP_N_OUT) - 1) & ~((1u << CDR__EP_OUT_U) | (1u << CDR__EP_OUT_RECV) | (1u << CDR__EP_OUT_V)),
    .infer = cdr__experts_ep_infer, .grad = cdr__experts_ep_grad, .cost = cdr__experts_ep_cost, .kernels = cdr__experts_ep_kernels,
    .layout = cdr__experts_ep_layout
};

const cdr_op cdr_op_experts_ep_bwd = {
    .name = "experts_ep_bwd", .flags = CDR_OP_COLLECTIVE | CDR_OP_COMPUTES | CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_experts_ep_attr),
    .optional = UINT32_MAX, .add_ok = 1u,
    .infer = cdr__experts_ep_infer_bwd, .cost = cdr__experts_ep_cost_bwd, .kernels = cdr__experts_ep_bwd_kernels, .layout = cdr__experts_ep_layout
};
