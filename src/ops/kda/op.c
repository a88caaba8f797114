/* kda: Kimi delta attention. Per head, d channels, s(x) = 1 / (1 + e^-x), row t of a document that begins with S = 0:
 *   q = q' / sqrt(sum q'^2 + 1e-6),  k likewise;  b = s(beta logit);  u = z + dt_bias;  a = e^A_log                     (1)
 *   g = lower_bound s(a u),  or with softplus  g = -a softplus(u),  softplus(u) = max(u, 0) + log(1 + e^-|u|)          (2)
 *   S_t = D_t + b_t k_t (v_t - D_t^T k_t)^T,  D_t = Diag(e^g_t) S_(t-1);   o_t = d^(-1/2) S_t^T q_t                     (3)
 *   y = o r w s(gate),   r = (mean o^2 + eps)^(-1/2),  w = o_norm                                                     (4)
 * Chunkwise: C rows from the document's first row on, S the state before them, G_i the sum of g over rows 0..i of the chunk:
 *   L_ij = b_i sum_d k_i e^(G_i - G_j) k_j  (j < i),     A_ij = sum_d q_i e^(G_i - G_j) k_j  (j <= i)                   (5)
 *   (I + L) N = b (V - (K e^G) S)                        N: the pseudo values; forward substitution                   (6)
 *   O = d^(-1/2) ((Q e^G) S + A N)                                                                                    (7)
 *   S' = Diag(e^G_C) S + (K e^(G_C - G))^T N                                                                          (8)
 * (6) is spec/model.md 3.2.1 with W and U put together: N = T (b V) - T (b e^G K) S, T = (I + L)^-1, needs no T, no W and no U.
 *
 * backward, chunks last to first, dO from (4), H = d^(-1/2) dO, dS the gradient of the state that leaves the chunk:
 *   gate: x = o r, m = dy w s(gate):  dO = r (m - x mean(m x)),  dgate = dy x w s(gate) s(-gate),  dw = sum dy x s(gate)     (9)
 *   dA = tril(H N^T),   dN = A^T H + (K e^(G_C - G)) dS,   (I + L)^T Y = dN                                            (10)
 *   dL = -stricttril(Y N^T),   dv = b Y                                                                               (11)
 *   dQ = e^G (H S^T),   dK1 = e^(G_C - G) (N dS^T),   M = -Y S^T (gradient of b e^G K)                                 (12)
 *   db = rowsum(Y V) + rowsum(M e^G K);   dK = dK1 + b e^G M;   dG = Q dQ + b e^G K M                                  (13)
 *   within the chunk, E_ij = e^(G_i - G_j), j < i:
 *     X_i = sum_j dA_ij E_ij k_j,  W_i = sum_j dL_ij E_ij k_j,  Z_j = sum_i E_ij (dA_ij q_i + dL_ij b_i k_i)            (14)
 *     dQ += X + dA_ii k_i;  dK += b W + Z + dA_ii q_i;  db += rowsum(W K);  dG += Q X + b K W - K Z                      (15)
 *   dg_t = sum_(r>=t) dG_r + sum_(r<t) (K dK1)_r + e^G_C rowsum(S dS)                                                 (16)
 *   dS <- Diag(e^G_C) dS + (Q e^G)^T H - (b e^G K)^T Y                                                                 (17)
 *   norm: dq' = r_q (dQ - q (q . dQ)),  dk' likewise;   dbeta = db s(beta) s(-beta)                                    (18)
 *   decay: dz = dg lower_bound s(au) s(-au) a,  dA_log = sum dz u;   softplus: dz = -a s(u) dg,  dA_log = sum dg g;
 *          ddt_bias = sum dz                                                                                          (19)
 * (10) to (12), (17) follow from 3.2.3 by T^T dVn = Y, Kb = M and T^T dT T^T = Y U^T + M W^T = Y N^T. In (15) the pairs j = i,
 * which cancel in dG, are left out of it: a document of one row has a decay gradient of exactly 0. (16) writes the part
 * of K dK1 as a prefix sum, which is kinder than the difference of a total and a suffix (spec/numerics.md, 4.4).
 *
 * Source: KL-TR 2510.26692 eq. 6 to 9, K3-TR; spec/model.md 3.2 to 3.2.3; checked by finite differences of the recurrence (3).
 * Nothing but the inputs is kept: the backward makes states every `chunk` rows again, one document and head at a time, and between them
 * once more. What is F32, and how e^(G_i - G_j) is evaluated: chunk.inc. */
#include "ops/kda/kda.h"
#include "ops/cpu.h"
#include "ops/rowwise.h"

cdr_val cdr_kda(cdr_graph *g, const cdr_val in[11], cdr_val state, const cdr_kda_attr *a)
{
    cdr_val out[] = { CDR_NEW, state };
    return cdr_graph_call(g, &cdr_op_kda, a, CDR__KDA_N_IN, in, 2, out) < 0 ? CDR_NONE : out[0];
}

/* ---- forward --------------------------------------------------------------------------------------------------- */
static cdr_status infer_attr(const char *op, const cdr_kda_attr *at, cdr_err *e)
{
    if (at->heads < 1) CDR_FAIL(e, CDR_EINVAL, "%s: has %d heads", op, (int)at->heads);
    if (at->dim < 16 || at->dim % 16 != 0 || at->dim > 1024) CDR_FAIL(e, CDR_EINVAL, "%s: heads of %d channels, must be a multiple of 16 up to 1024", op, (int)at->dim);
    if (at->chunk != 0 && at->chunk != 16 && at->chunk != 32 && at->chunk != 64)
        CDR_FAIL(e, CDR_EINVAL, "%s: chunks of %d rows, must be 16, 32 or 64", op, (int)at->chunk);
    /* below -5, e^(15 g) leaves the range in which a tile of 16 rows can be rescaled (spec/model.md, 3.2.2) */
    if (!at->softplus && !(at->lower_bound >= -5 && at->lower_bound < 0))
        CDR_FAIL(e, CDR_EINVAL, "%s: the decay's lower bound is %g, must lie in [-5, 0)", op, (double)at->lower_bound);
    if (!(at->norm_eps >= 0)) CDR_FAIL(e, CDR_EINVAL, "%s: eps is %g, must not be negative", op, (double)at->norm_eps);
    return CDR_OK;
}

static cdr_status infer_inputs(const char *op, const cdr_kda_attr *at, const cdr_type *in, cdr_err *e)
{
    static const char *const name[CDR__KDA_N_IN] = { "q", "k", "v", "z", "beta", "gate", "A_log", "dt_bias", "o_norm", "start", "pos" };
    CDR_TRY(infer_attr(op, at, e));
    int64_t H = at->heads, d = at->dim, T = in[CDR__KDA_Q].n[0];
    for (int i = CDR__KDA_Q; i <= CDR__KDA_GATE; i++) {
        int64_t cols = i == CDR__KDA_BETA ? H : H * d;
        if (!cdr_is_real(&in[i]) || in[i].layout != CDR_ROWS || in[i].n_dim != 2 || in[i].n[0] != T || in[i].n[1] != cols || T < 1)
            CDR_FAIL(e, CDR_EINVAL, "%s: %s must be a matrix of a float format, [T, %lld]", op, name[i], (long long)cols);
    }
    for (int i = CDR__KDA_A_LOG; i <= CDR__KDA_O_NORM; i++) {
        int64_t n = i == CDR__KDA_A_LOG ? H : i == CDR__KDA_DT_BIAS ? H * d : d;
        if (!cdr_is_real(&in[i]) || in[i].layout != CDR_ROWS || in[i].n_dim != 1 || in[i].n[0] != n)
            CDR_FAIL(e, CDR_EINVAL, "%s: %s must be of a float format with %lld elements", op, name[i], (long long)n);
    }
    for (int i = CDR__KDA_START; i <= CDR__KDA_POS; i++)
        if (in[i].dtype != CDR_I32 || cdr_type_elems(&in[i]) != T) CDR_FAIL(e, CDR_EINVAL, "%s: %s must be I32 with one element a row", op, name[i]);
    return CDR_OK;
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_kda_attr *at = attr;
    if (n_in != CDR__KDA_N_IN) CDR_FAIL(e, CDR_EINVAL, "kda: takes %d operands, got %d", (int)CDR__KDA_N_IN, n_in);
    CDR_TRY(infer_inputs("kda", at, in, e));
    *n_out = 2;
    out[0] = cdr_dense_like(&in[CDR__KDA_Q], in[CDR__KDA_Q].dtype);
    out[1] = cdr_type_3d(CDR_F32, at->heads, at->dim, at->dim);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    if (cdr_graph_out(g, c, 1) != CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "kda: no gradient through a call that carries a state (generate)");
    if (dout[0] == CDR_NONE) return CDR_OK;
    cdr_val in[1 + CDR__KDA_N_IN] = { dout[0] }, out[CDR__KDA_START];
    for (int i = 0; i < CDR__KDA_N_IN; i++) in[1 + i] = cdr_graph_in(g, c, i);
    for (int i = 0; i < CDR__KDA_START; i++) out[i] = want[i] ? CDR_NEW : CDR_NONE;
    if (cdr_graph_call(g, &cdr_op_kda_bwd, cdr_graph_attr(g, c), 1 + CDR__KDA_N_IN, in, CDR__KDA_START, out) < 0) return CDR_EINVAL;
    for (int i = 0; i < CDR__KDA_START; i++) din[i] = out[i];
    return CDR_OK;
}

/* products of (5) to (8), C = 16, triangles at half cost: per row and head 6 d^2 + 4 C d; elementwise 100 d, most of it e^x */
static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_kda_attr *at = attr;
    double d = at->dim, C = CDR__KDA_ROWS, rows = (double)t[CDR__KDA_Q].n[0] * at->heads;
    return cdr__cost_of(rows * (6 * d * d + 4 * C * d + 100 * d), n_in, n_out, t);
}

static const cdr_kernel kernels[] = {
    { .name = "avx512", .bits = "kda/fma", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512, .work_bytes = cdr__kda_work, .run = cdr__kda_fwd_avx512 },
    { .name = "avx2", .bits = "kda/fma", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__kda_work, .run = cdr__kda_fwd_avx2 },
    { .name = "base", .bits = "kda/mul", .device = CDR_DEV_CPU, .work_bytes = cdr__kda_work, .run = cdr__kda_fwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_kda = {
    .name = "kda", .attr_bytes = sizeof(cdr_kda_attr), .rmw = 2, .optional = 2,
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__kda_ref, .kernels = kernels
};

/* ---- backward -------------------------------------------------------------------------------------------------- */
static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    if (n_in != 1 + CDR__KDA_N_IN) CDR_FAIL(e, CDR_EINVAL, "kda_bwd: takes %d operands, got %d", 1 + (int)CDR__KDA_N_IN, n_in);
    CDR_TRY(infer_inputs("kda_bwd", attr, in + 1, e));
    if (!cdr_is_real(&in[0]) || in[0].layout != CDR_ROWS || !cdr_same_shape(&in[0], &in[1])) CDR_FAIL(e, CDR_EINVAL, "kda_bwd: dy must have the shape of q");
    *n_out = CDR__KDA_START;
    for (int i = 0; i < CDR__KDA_START; i++) out[i] = cdr_dense_like(&in[1 + i], i < CDR__KDA_A_LOG ? in[1 + i].dtype : CDR_F32);
    return CDR_OK;
}

/* (5), (6), (8) again: 4 d^2 + 3 C d, and (8) once more; (7): 2 d^2 + C d; (10) to (17): 12 d^2 + 8 C d */
static cdr_cost cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_kda_attr *at = attr;
    double d = at->dim;
    cdr_cost c = cost(attr, n_in, n_out, t);
    c.flop = 3 * c.flop + 2 * d * d * (double)t[0].n[0] * at->heads;
    return c;
}

static const cdr_kernel kernels_bwd[] = {
    { .name = "avx512", .bits = "kda_bwd/fma", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512, .work_bytes = cdr__kda_bwd_work, .run = cdr__kda_bwd_avx512 },
    { .name = "avx2", .bits = "kda_bwd/fma", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__kda_bwd_work, .run = cdr__kda_bwd_avx2 },
    { .name = "base", .bits = "kda_bwd/mul", .device = CDR_DEV_CPU, .work_bytes = cdr__kda_bwd_work, .run = cdr__kda_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_kda_bwd = {
    .name = "kda_bwd", .flags = CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_kda_attr), .optional = 0x1ff, .add_ok = 0x3f,
    .infer = infer_bwd, .cost = cost_bwd, .ref = cdr__kda_bwd_ref, .kernels = kernels_bwd
};
