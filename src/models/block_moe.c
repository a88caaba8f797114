/* block_moe: routed experts beside shared ones, in the hidden width or in a latent one; E experts, k of them a token.
 *
 *   logits = x W_r^T, in F32;   idx, p = router(logits, bias): the k largest biased scores, weights of the unbiased ones   (1)
 *   z = x W_down^T   (latent)   or   z = x                                                                                (2)
 *   u = sum over the chosen e of p_e W2_e act(W1_e z, W3_e z)                                                             (3)
 *   y = RMSNorm(u) W_up^T   (latent, the norm where latent_norm)   or   y = u                                             (4)
 *   out = y + shared(x): one gated MLP of width shared x width                                                            (5)
 * Training counts the tokens of each expert (load), and what the balancing rule of the run needs: quantile, a histogram
 * of the biases that tokens ask for; aux, one more loss. The bias has no gradient, the rule moves it after the step.
 * Source: spec/model.md, 3.5, 3.7; spec/numerics.md, A3, A4, A8; groups: DeepSeek-V3 (arXiv 2412.19437), 2.1.2.
 */
#include "models/models.h"
#include "ops/add/add.h"
#include "ops/aux_loss/aux_loss.h"
#include "ops/balance/balance.h"
#include "ops/dispatch/dispatch.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/route/route.h"
#include "ops/router/router.h"

enum { SCORE_SIGMOID, SCORE_SOFTMAX };
static const cdr_balance_kind kinds[] = { CDR_BALANCE_NONE, CDR_BALANCE_QUANTILE, CDR_BALANCE_SIGN, CDR_BALANCE_AUX };
#define AUX_COEF 0.001                  /* of balance aux, where the run gives none (spec/interface.md, 3.2) */

typedef struct {
    int64_t experts, top_k, width, latent, shared, groups, top_groups;
    int score;
    bool latent_norm, renormalize;
    double scale;
    cdr_balance_kind balance;
    cdr__activation act;
} moe;

static cdr_status read_attrs(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, moe *a, cdr_err *err)
{
    int64_t zero = 0, one = 1;
    double unit = 1;
    int balance;
    CDR_TRY(cdr__attr_int(d, b, node, "experts", NULL, &a->experts, err));
    CDR_TRY(cdr__attr_int(d, b, node, "top_k", NULL, &a->top_k, err));
    CDR_TRY(cdr__attr_int(d, b, node, "width", NULL, &a->width, err));
    CDR_TRY(cdr__attr_int(d, b, node, "latent", &zero, &a->latent, err));
    CDR_TRY(cdr__attr_int(d, b, node, "shared", &zero, &a->shared, err));
    CDR_TRY(cdr__attr_int(d, b, node, "groups", &one, &a->groups, err));
    CDR_TRY(cdr__attr_int(d, b, node, "top_groups", &one, &a->top_groups, err));
    CDR_TRY(cdr__attr_enum(d, b, node, "score", "sigmoid softmax", &a->score, err));
    CDR_TRY(cdr__attr_bool(d, b, node, "latent_norm", false, &a->latent_norm, err));
    CDR_TRY(cdr__attr_bool(d, b, node, "renormalize", false, &a->renormalize, err));
    CDR_TRY(cdr__attr_real(d, b, node, "scale", &unit, &a->scale, err));
    CDR_TRY(cdr__attr_enum(d, b, node, "balance", "none quantile sign aux", &balance, err));
    a->balance = kinds[balance];
    CDR_TRY(cdr__activation_read(d, b, node, &a->act, err));
    const char *at = cdr__desc_at(d, node);
    if (a->experts < 1 || a->experts > 65536 || a->top_k < 1 || a->top_k > a->experts || a->width < 1 || a->width > 1 << 24 || a->latent < 0 || a->latent > 1 << 20 ||
        a->shared < 0 || a->shared > 1024)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: block %s: experts %lld, top_k %lld, width %lld, latent %lld, shared %lld: top_k is from 1 to experts, none is "
                    "huge", at, b->name, (long long)a->experts, (long long)a->top_k, (long long)a->width, (long long)a->latent, (long long)a->shared);
    if (a->groups < 1 || a->groups > CDR_ROUTER_MAX_GROUPS || a->experts % a->groups != 0 || a->top_groups < 1 || a->top_groups > a->groups ||
        a->experts / a->groups * a->top_groups < a->top_k)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: block %s: groups %lld divide the %lld experts, and top_groups %lld of them hold at least top_k %lld", at,
                    b->name, (long long)a->groups, (long long)a->experts, (long long)a->top_groups, (long long)a->top_k);
    if (a->latent_norm && a->latent == 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: block %s: latent_norm without latent", at, b->name);
    if (!(a->scale > 0)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: block %s: scale is above 0", at, b->name);
    return CDR_OK;
}

static cdr_status moe_open(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, cdr_err *err)
{
    moe *a = cdr_pool_alloc(d->pool, sizeof *a);
    b->attr = a;
    CDR_TRY(read_attrs(d, node, b, a, err));
    int64_t D = b->hidden, L = a->latent > 0 ? a->latent : D, E = a->experts;
    b->experts = (int)E;
    b->top_k = (int)a->top_k;
    cdr__block_need(b, "router", E, D, CDR__INIT_LINEAR);
    cdr__need *bias = cdr__block_need(b, "bias", E, 0, CDR__INIT_ZEROS);
    bias->f32 = bias->state = true;
    bias->optional = a->balance == CDR_BALANCE_NONE || a->balance == CDR_BALANCE_AUX;
    if (a->latent > 0) {
        cdr__block_need(b, "latent.down", a->latent, D, CDR__INIT_LINEAR);
        if (a->latent_norm) cdr__block_need(b, "latent.norm", a->latent, 0, CDR__INIT_ONES);
        cdr__block_need(b, "latent.up", D, a->latent, CDR__INIT_OUT);
    }
    if (a->shared > 0) {
        cdr__block_need(b, "shared.gate", a->shared * a->width, D, CDR__INIT_LINEAR);
        cdr__block_need(b, "shared.up", a->shared * a->width, D, CDR__INIT_LINEAR);
        cdr__block_need(b, "shared.down", D, a->shared * a->width, CDR__INIT_OUT);
    }
    cdr__block_need_experts(b, "expert.gate", E, a->width, L, CDR__INIT_LINEAR);
    cdr__block_need_experts(b, "expert.up", E, a->width, L, CDR__INIT_LINEAR);
    cdr__block_need_experts(b, "expert.down", E, L, a->width, CDR__INIT_OUT);
    return CDR_OK;
}

typedef struct { cdr_val logits_TE, bias_E, idx_Tk, p_Tk, alpha_T; } routes;

static cdr_balance_kind rule(const moe *a, const cdr_io *io) { return io->balance_own ? a->balance : io->balance; }

/* What training keeps of a layer's routes: the load, always; what its rule needs. */
static void observe(cdr_graph *g, const cdr__block *b, const char *const *name, cdr_io *io, const routes *r)
{
    const moe *a = b->attr;
    cdr_balance_kind kind = rule(a, io);
    const char *bias_name = cdr__block_param_name(b, name, "bias");
    cdr_balance w = { .layer = g->layer, .experts = (int)a->experts, .top_k = (int)a->top_k, .kind = kind, .hist_EB = CDR_NONE,
                      .bias_param = bias_name ? cdr_param_find(g->b, bias_name) : -1 };
    if ((kind == CDR_BALANCE_QUANTILE || kind == CDR_BALANCE_SIGN) && w.bias_param < 0) {
        cdr_graph_fail(g, CDR_EUSER, "train.balance %s moves a selection bias, and this description has no row for moe.bias; use aux or none",
                       kind == CDR_BALANCE_SIGN ? "sign" : "quantile");
        return;
    }
    w.load_E = cdr_graph_value(g, cdr_type_1d(CDR_I32, a->experts), CDR_STEP, CDR_C_STATE, "load");
    cdr_balance_load(g, r->idx_Tk, io->micro_1, w.load_E, (int)a->experts);
    if (kind == CDR_BALANCE_QUANTILE) {
        cdr_balance_hist_attr at = { .softmax = a->score == SCORE_SOFTMAX, .bins = (int32_t)io->balance_bins };
        w.hist_EB = cdr_graph_value(g, cdr_type_2d(CDR_I32, a->experts, io->balance_bins), CDR_STEP, CDR_C_STATE, "hist");
        cdr_balance_hist(g, r->logits_TE, r->alpha_T, r->bias_E, io->start_T, io->pos_T, io->micro_1, w.hist_EB, &at);
    }
    double coef = io->aux_coef > 0 ? io->aux_coef : kind == CDR_BALANCE_AUX ? AUX_COEF : 0;
    if (coef > 0) {
        cdr_aux_loss_attr at = { .softmax = a->score == SCORE_SOFTMAX, .top_k = (int32_t)a->top_k, .row = io->sequence > 0 ? io->sequence : io->T, .coef = (float)coef };
        cdr__extra_loss(g, io, cdr_aux_loss(g, r->logits_TE, r->idx_Tk, io->start_T, io->pos_T, &at));
    }
    if (!g->failed) *CDR_PUSH(g->pool, io->routers, io->n_routers, io->cap_routers) = w;
}

static cdr_val routed(cdr_graph *g, const cdr__block *b, const char *const *name, const cdr_io *io, const routes *r, cdr_val z_TL)
{
    const moe *a = b->attr;
    cdr_val perm_R = CDR_NONE, offs_E1 = CDR_NONE, pos_Tk = CDR_NONE;
    cdr_dispatch(g, r->idx_Tk, (int)a->experts, &perm_R, &offs_E1, &pos_Tk);
    cdr_experts_attr at = { .top_k = (int32_t)a->top_k, .situ = a->act.situ, .beta = a->act.beta, .linear_beta = a->act.linear_beta, .capacity = io->capacity };
    return cdr_experts(g, z_TL, r->p_Tk, perm_R, offs_E1, pos_Tk, cdr__block_param(g, b, name, "expert.gate"), cdr__block_param(g, b, name, "expert.up"),
                       cdr__block_param(g, b, name, "expert.down"), CDR_NONE, NULL, &at, io->keep_gate_up && io->mode == CDR_MODE_TRAIN);
}

/* Routes that the host gives, and names for those that were taken. */
static cdr_val given(cdr_graph *g, const moe *a, const cdr_io *io)
{
    cdr_val v = cdr_graph_value(g, cdr_type_2d(CDR_I32, io->T, a->top_k), CDR_STEP, CDR_C_INPUT, "given");
    if (v != CDR_NONE) cdr_graph_at(g, v)->flags |= CDR_F_INPUT;
    return v;
}

static void show_routes(cdr_graph *g, const routes *r)
{
    cdr_graph_view(g, r->logits_TE, 0, *cdr_graph_type(g, r->logits_TE), "logits");
    cdr_graph_view(g, r->idx_Tk, 0, *cdr_graph_type(g, r->idx_Tk), "idx");
    cdr_graph_view(g, r->p_Tk, 0, *cdr_graph_type(g, r->p_Tk), "p");
}

static cdr_val moe_forward(cdr_graph *g, const cdr__block *b, const char *const *name, cdr_io *io, cdr_val x_TD)
{
    const moe *a = b->attr;
    bool alpha = io->mode == CDR_MODE_TRAIN && rule(a, io) == CDR_BALANCE_QUANTILE;
    routes r = { .idx_Tk = CDR_NONE, .p_Tk = CDR_NONE, .alpha_T = alpha ? CDR_NEW : CDR_NONE };
    cdr_router_attr ra = { .top_k = (int32_t)a->top_k, .softmax = a->score == SCORE_SOFTMAX, .groups = (int32_t)a->groups, .top_groups = (int32_t)a->top_groups,
                           .renormalize = a->renormalize, .scale = (float)a->scale };
    r.logits_TE = cdr_linear_f32(g, x_TD, cdr__block_param(g, b, name, "router"));                                      /* (1) */
    r.bias_E = cdr__block_param(g, b, name, "bias");
    bool probe = b->probe != CDR_PROBE_OFF && io->mode == CDR_MODE_EVAL;
    if (probe && b->probe == CDR_PROBE_FORCED) cdr_route(g, r.logits_TE, given(g, a, io), io->start_T, io->pos_T, &ra, &r.idx_Tk, &r.p_Tk);
    else cdr_router(g, r.logits_TE, r.bias_E, io->start_T, io->pos_T, &ra, &r.idx_Tk, &r.p_Tk, &r.alpha_T);
    if (probe && !g->failed) show_routes(g, &r);
    if (io->mode == CDR_MODE_TRAIN && !g->failed) observe(g, b, name, io, &r);
    cdr_val z_TL = a->latent > 0 ? cdr_linear(g, x_TD, cdr__block_param(g, b, name, "latent.down")) : x_TD;             /* (2) */
    cdr_val y_TD = routed(g, b, name, io, &r, z_TL);                                                                    /* (3) */
    if (a->latent_norm) y_TD = cdr_rmsnorm(g, y_TD, cdr__block_param(g, b, name, "latent.norm"), (float)b->eps);        /* (4) */
    if (a->latent > 0) y_TD = cdr_linear(g, y_TD, cdr__block_param(g, b, name, "latent.up"));
    if (a->shared == 0) return y_TD;
    cdr_val s_TD = cdr__glu(g, &a->act, x_TD, cdr__block_param(g, b, name, "shared.gate"), cdr__block_param(g, b, name, "shared.up"),
                            cdr__block_param(g, b, name, "shared.down"));
    return cdr_add(g, y_TD, s_TD);                                                                                      /* (5) */
}

const cdr__block_type cdr__block_moe = {
    .type = "moe", .label = "MoE", .mixer = false,
    .attrs = "type experts top_k width latent latent_norm shared score groups top_groups renormalize scale balance activation",
    .parts = "router bias latent.down latent.norm latent.up shared.gate shared.up shared.down expert.w1 expert.w2 expert.w3 expert.gate expert.up expert.down",
    .open = moe_open, .forward = moe_forward,
};
