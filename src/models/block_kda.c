/* block_kda: Kimi Delta Attention, a linear attention with a decay per channel and a delta rule; P = heads dim.
 *
 *   q, k, v = silu(conv(x W_q^T)), silu(conv(x W_k^T)), silu(conv(x W_v^T))          depthwise, W taps                (1)
 *   z = (x W_fa^T) W_fb^T,   beta = x W_b^T                                            logits of decay and write         (2)
 *   gate = x W_g^T   (full)    or    (x W_ga^T) W_gb^T   (low rank)                                                      (3)
 *   y = kda(q, k, v, z, beta, gate; A_log, dt_bias, o_norm)                          norms, decay, delta rule, gate    (4)
 *   out = y W_o^T                                                                                                      (5)
 * Everything restarts at a document's first row. Generating: each layer keeps the last W - 1 inputs of its convolutions
 * and the state [heads, dim, dim] in F32, STEP values that live over the program's turns.
 * Source: spec/model.md, 3.2. Initialisation: there too; A_log zero with the bounded decay, log U(1, 16) with softplus.
 */
#include "models/models.h"
#include "ops/kda/kda.h"
#include "ops/linear/linear.h"
#include "ops/short_conv/short_conv.h"
#include <stdlib.h>

enum { DECAY_SOFTPLUS, DECAY_BOUNDED, GATE_FULL = 0, GATE_LOW_RANK, CHUNK = 64 };

typedef struct {
    int64_t heads, dim, conv;
    int decay, gate;
    double lower_bound, norm_eps;
} kda;

static cdr_status read_attrs(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, kda *a, cdr_err *err)
{
    double bound = -5;
    CDR_TRY(cdr__attr_int(d, b, node, "heads", NULL, &a->heads, err));
    CDR_TRY(cdr__attr_int(d, b, node, "dim", NULL, &a->dim, err));
    CDR_TRY(cdr__attr_int(d, b, node, "conv", NULL, &a->conv, err));
    if (!cdr_yaml_get(node, "decay"))
        CDR_FAIL_ID(err, CDR_EUSER, "model.missing-attribute", "%s: block %s of type kda has no decay: bounded or softplus", cdr__desc_at(d, node), b->name);
    CDR_TRY(cdr__attr_enum(d, b, node, "decay", "softplus bounded", &a->decay, err));
    CDR_TRY(cdr__attr_enum(d, b, node, "gate", "full low_rank", &a->gate, err));
    CDR_TRY(cdr__attr_real(d, b, node, "norm_eps", &b->eps, &a->norm_eps, err));
    const cdr_yaml *lower = cdr_yaml_get(node, "lower_bound");
    if (lower) {
        char *end = NULL;
        bound = lower->kind == CDR_YAML_SCALAR && *lower->text ? strtod(lower->text, &end) : 0;
        if (!end || *end) bound = 0;
        if (a->decay != DECAY_BOUNDED) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: lower_bound goes with decay bounded", cdr__desc_at(d, lower));
    }
    if (!(bound >= -5 && bound < 0))                       /* a tile of 16 rows spans exp(16 x 5), the most that F32 holds (3.2.2) */
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: lower_bound of block %s is a number from -5 to below 0", cdr__desc_at(d, lower ? lower : node), b->name);
    a->lower_bound = bound;
    if (a->heads < 1 || a->heads > 65536 || a->dim < 16 || a->dim > 1024 || a->dim % 16 != 0 || a->conv < 2 || a->conv > CDR_SHORT_CONV_MAX)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: block %s: heads %lld, dim %lld (a multiple of 16 up to 1024), conv %lld (2 to %d)", cdr__desc_at(d, node),
                    b->name, (long long)a->heads, (long long)a->dim, (long long)a->conv, CDR_SHORT_CONV_MAX);
    return CDR_OK;
}

static cdr_status kda_open(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, cdr_err *err)
{
    static const char *const qkv[] = { "q", "k", "v" }, *const conv[] = { "conv.q", "conv.k", "conv.v" };
    kda *a = cdr_pool_alloc(d->pool, sizeof *a);
    b->attr = a;
    CDR_TRY(read_attrs(d, node, b, a, err));
    int64_t P = a->heads * a->dim, D = b->hidden;
    for (int i = 0; i < 3; i++) {
        cdr__block_need(b, qkv[i], P, D, CDR__INIT_LINEAR)->block_rows = (int32_t)a->dim;
        cdr__need *w = cdr__block_need(b, conv[i], P, 1, CDR__INIT_CONV);
        w->n_dim = 3;
        w->n[2] = a->conv;
        w->f32 = w->plain = true;
    }
    cdr__block_need(b, "f_a", a->dim, D, CDR__INIT_LINEAR);
    cdr__block_need(b, "f_b", P, a->dim, CDR__INIT_LINEAR);
    cdr__block_need(b, "b", a->heads, D, CDR__INIT_LINEAR);
    if (a->gate == GATE_FULL) {
        cdr__block_need(b, "g", P, D, CDR__INIT_LINEAR);
    } else {
        cdr__block_need(b, "g_a", a->dim, D, CDR__INIT_LINEAR);
        cdr__block_need(b, "g_b", P, a->dim, CDR__INIT_LINEAR);
    }
    cdr__block_need(b, "A_log", a->heads, 0, a->decay == DECAY_BOUNDED ? CDR__INIT_ZEROS : CDR__INIT_LOG_UNIFORM)->f32 = true;
    cdr__block_need(b, "dt_bias", P, 0, CDR__INIT_DT_BIAS)->f32 = true;
    cdr__block_need(b, "o_norm", a->dim, 0, CDR__INIT_ONES)->f32 = true;
    cdr__block_need(b, "o", D, P, CDR__INIT_OUT);
    return CDR_OK;
}

static cdr_val state(cdr_graph *g, const cdr_io *io, cdr_type t, const char *name)
{
    return io->mode == CDR_MODE_GENERATE ? cdr_graph_value(g, t, CDR_STEP, CDR_C_STATE, name) : CDR_NONE;
}

static cdr_val kda_forward(cdr_graph *g, const cdr__block *b, const char *const *name, cdr_io *io, cdr_val x_TD)
{
    static const char *const qkv[] = { "q", "k", "v" }, *const conv[] = { "conv.q", "conv.k", "conv.v" }, *const hist[] = { "hist_q", "hist_k", "hist_v" };
    const kda *a = b->attr;
    int64_t P = a->heads * a->dim;
    cdr_val in[11];
    for (int i = 0; i < 3; i++) {                                                                                       /* (1) */
        cdr_val p_TP = cdr_linear(g, x_TD, cdr__block_param(g, b, name, qkv[i]));
        cdr_val h_WP = state(g, io, cdr_type_2d(io->compute, a->conv - 1, P), hist[i]);
        in[i] = cdr_short_conv(g, p_TP, cdr__block_param(g, b, name, conv[i]), io->start_T, io->pos_T, h_WP);
    }
    in[3] = cdr_linear(g, cdr_linear(g, x_TD, cdr__block_param(g, b, name, "f_a")), cdr__block_param(g, b, name, "f_b"));        /* (2) */
    in[4] = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "b"));
    cdr_val low = a->gate == GATE_FULL ? x_TD : cdr_linear(g, x_TD, cdr__block_param(g, b, name, "g_a"));               /* (3) */
    in[5] = cdr_linear(g, low, cdr__block_param(g, b, name, a->gate == GATE_FULL ? "g" : "g_b"));
    in[6] = cdr__block_param(g, b, name, "A_log");
    in[7] = cdr__block_param(g, b, name, "dt_bias");
    in[8] = cdr__block_param(g, b, name, "o_norm");
    in[9] = io->start_T;
    in[10] = io->pos_T;
    cdr_kda_attr at = { .heads = (int32_t)a->heads, .dim = (int32_t)a->dim, .chunk = CHUNK, .softplus = a->decay == DECAY_SOFTPLUS,
                        .lower_bound = (float)a->lower_bound, .norm_eps = (float)a->norm_eps };
    cdr_val s = state(g, io, cdr_type_3d(CDR_F32, a->heads, a->dim, a->dim), "state");
    cdr_val y_TP = cdr_kda(g, in, s, &at);                                                                              /* (4) */
    return cdr_linear(g, y_TP, cdr__block_param(g, b, name, "o"));                                                      /* (5) */
}

/* 6 d^2 + 5 C d + C^2 / 3 a head, triangles at half (spec/model.md, 3.2.3) */
static double kda_token_flop(const cdr__block *b)
{
    const kda *a = b->attr;
    double d = (double)a->dim, C = CHUNK;
    return (double)a->heads * (6 * d * d + 5 * C * d + C * C / 3);
}

const cdr__block_type cdr__block_kda = {
    .type = "kda", .label = "KDA", .mixer = true, .attrs = "type heads dim conv decay lower_bound gate norm_eps",
    .parts = "q k v g g_a g_b o conv.q conv.k conv.v f_a f_b b A_log dt_bias o_norm", .open = kda_open, .forward = kda_forward, .token_flop = kda_token_flop,
};
