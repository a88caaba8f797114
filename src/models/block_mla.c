/* block_mla: multi-head latent attention: without positions or with rotary ones, dense or over the keys that an indexer
 * selects, with or without an output gate.
 *
 *   q_TC   = x W_q^T                 or   qr = RMSNorm(x W_qa^T), q = qr W_qb^T      C = heads (nope + ext)      (1)
 *   [c | kr] = x W_kva^T,  c <- RMSNorm(c)                                           kv_lora | ext               (2)
 *   q, kr  = rope on their ext parts, by the position within the document                                       (3)
 *   kv     = c W_kvb^T      per head [nope key | v value]                                                       (4)
 *   qI = qr' W_Iq^T per index head, kI = LayerNorm(x' W_Ik^T), wI = (x' W_Iw^T) / sqrt(n_I d_I)                  (5)
 *   sel_t  = the top_k keys s of t's document with the largest I_ts = sum_j wI_tj relu(qI_tj . kI_s)             (6)
 *   o      = softmax(scale q k^T, causal within the document, keys in sel) v,  k_h = [k_h | kr]                  (7)
 *   out    = (o * sigmoid(x W_g^T)) W_o^T      or      o W_o^T                                                   (8)
 * x', qr': detached. The indexer trains through its own loss alone, KL(p || softmax(I)) over the selected keys, p the mean
 * attention of the heads; nothing of it reaches the model, and nothing of the model's loss reaches it. Its F32 weights
 * are scaled by one multiplication (ops/scale). scale = (nope + ext)^-1/2, with YaRN times (0.1 mscale log(factor) + 1)^2; `rotary` is the
 * other mscale of a release, whose quotient with the first would multiply cos and sin: it must be 1.
 * Training: keys are the rows themselves. Generating: a layer keeps c, kr and kI as caches of S rows, STEP values, and
 * makes kv of all S rows in each turn by the same product as in training: a row of kv has the bits that training gave it.
 * The gated output is F32 until the gate, where compute is BF16 (spec/numerics.md, 4.7).
 * Source: spec/model.md, 3.4 (K3 without positions, Kimi-Linear without q_lora); spec/operators.md, 1.1, 1.8;
 * DeepSeek-V2, 2.1.2 (rotary part); DeepSeek-V3.2 (indexer; its rotary part comes first in a head, in halves).
 */
#include "models/models.h"
#include "ops/attention/attention.h"
#include "ops/cache_write/cache_write.h"
#include "ops/detach/detach.h"
#include "ops/gate/gate.h"
#include "ops/indexer/indexer.h"
#include "ops/layernorm/layernorm.h"
#include "ops/linear/linear.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"
#include <math.h>

typedef struct {
    bool on, interleaved;
    double theta, factor, beta_fast, beta_slow, mscale;      /* factor 1: no scaling; mscale: of the logits */
    int64_t original;
} position;

typedef struct {
    int64_t heads, q_lora, kv_lora, nope, ext, v;      /* q_lora 0: one q */
    position pos;
    bool gate;
    double norm_eps;
    struct { int64_t heads, dim, top_k; position pos; double eps; bool added; } index;      /* heads 0: no indexer */
} mla;

static bool is_none(const cdr_yaml *e) { return !e || (e->kind == CDR_YAML_SCALAR && (strcmp(e->text, "none") == 0 || strcmp(e->text, "false") == 0)); }

static cdr_status read_yarn(const cdr__desc *d, const cdr_yaml *s, const cdr__block *b, position *p, cdr_err *err)
{
    double fast = 32, slow = 1, mscale = 1, original = 0, rotary = 0;
    const char *type = s->kind == CDR_YAML_MAP ? cdr__attr_word(s, "type") : NULL;
    if (!type || strcmp(type, "yarn") != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: scaling is none, or {type: yarn, factor, original, beta_fast, beta_slow, mscale, rotary}", cdr__desc_at(d,
            s));
    CDR_TRY(cdr__attr_known(d, s, "scaling", "type factor original beta_fast beta_slow mscale rotary", err));
    CDR_TRY(cdr__attr_real(d, b, s, "factor", NULL, &p->factor, err));
    CDR_TRY(cdr__attr_real(d, b, s, "original", NULL, &original, err));
    CDR_TRY(cdr__attr_real(d, b, s, "beta_fast", &fast, &p->beta_fast, err));
    CDR_TRY(cdr__attr_real(d, b, s, "beta_slow", &slow, &p->beta_slow, err));
    CDR_TRY(cdr__attr_real(d, b, s, "mscale", &mscale, &p->mscale, err));
    CDR_TRY(cdr__attr_real(d, b, s, "rotary", &p->mscale, &rotary, err));
    if (!(p->factor >= 1) || !(original >= 1 && original < 1 << 30) || !(p->beta_fast >= p->beta_slow && p->beta_slow > 0) || !(p->mscale >= 0))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: yarn: factor at least 1, original at least 1 token, beta_fast at least beta_slow above 0, mscale at least 0",
                    cdr__desc_at(d, s));
    if (p->factor > 1 && rotary != p->mscale)         /* else cos and sin would carry the quotient of the two */
        CDR_FAIL_ID(err, CDR_EUSER, "model.not-in-version", "%s: yarn with mscale %g of the rotary parts and %g of all (mscale_all_dim): this version turns without a "
            "factor, "
                    "so both must be equal", cdr__desc_at(d, s), rotary, p->mscale);
    p->original = (int64_t)original;
    return CDR_OK;
}

static cdr_status read_position(const cdr__desc *d, const cdr_yaml *node, const cdr__block *b, int64_t ext, position *p, cdr_err *err)
{
    const cdr_yaml *e = cdr_yaml_get(node, "position");
    *p = (position){ .factor = 1 };
    if (is_none(e)) return CDR_OK;
    const char *style = e->kind == CDR_YAML_MAP ? cdr__attr_word(e, "rope") : NULL;
    if (e->kind == CDR_YAML_MAP) CDR_TRY(cdr__attr_known(d, e, "position", "rope theta scaling", err));
    if (!style || (strcmp(style, "half") != 0 && strcmp(style, "interleaved") != 0))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: position is none, or {rope: half|interleaved, theta, scaling}", cdr__desc_at(d, e));
    const cdr_yaml *scaling = cdr_yaml_get(e, "scaling");
    p->on = true;
    p->interleaved = strcmp(style, "interleaved") == 0;
    double theta = 10000;
    CDR_TRY(cdr__attr_real(d, b, e, "theta", &theta, &p->theta, err));
    if (!(p->theta > 1)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: theta is above 1", cdr__desc_at(d, e));
    if (ext % 2 != 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: rotary positions need an even ext, not %lld", cdr__desc_at(d, e), (long long)ext);
    return is_none(scaling) ? CDR_OK : read_yarn(d, scaling, b, p, err);
}

static cdr_status read_indexer(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, mla *a, cdr_err *err)
{
    const cdr_yaml none_given = { .kind = CDR_YAML_MAP, .key = node->key, .line = node->line, .col = node->col, .key_line = node->key_line, .key_col = node->key_col };
    const cdr_yaml *e = cdr_yaml_get(node, "indexer");
    if (d->indexer == CDR_INDEXER_OFF || (is_none(e) && d->indexer == CDR_INDEXER_AUTO)) return CDR_OK;
    a->index.added = is_none(e);
    if (is_none(e)) e = &none_given;
    if (e->kind != CDR_YAML_MAP) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: indexer is none, or {heads, dim, top_k, position, eps}", cdr__desc_at(d, e));
    const cdr_yaml *layers = cdr_yaml_get(e, "layers");
    if (layers)
        return cdr__block_refuse(d, b, layers, "indexer.layers (give the layers that have an indexer a block of their own under layers.mixer) is", err);
    CDR_TRY(cdr__attr_known(d, e, "indexer", "heads dim top_k position eps", err));
    CDR_TRY(cdr__attr_group(d, b, e, "index", "heads", &a->index.heads, err));
    CDR_TRY(cdr__attr_group(d, b, e, "index", "dim", &a->index.dim, err));
    CDR_TRY(cdr__attr_group(d, b, e, "index", "top_k", &a->index.top_k, err));
    CDR_TRY(cdr__attr_real(d, b, e, "eps", &b->eps, &a->index.eps, err));
    CDR_TRY(read_position(d, e, b, a->ext, &a->index.pos, err));
    const char *at = cdr__desc_at(d, e);
    if (a->index.heads < 1 || a->index.heads > 4096 || a->index.dim < 1 || a->index.dim > 4096 || a->index.top_k < 1 || a->index.top_k > 1 << 24)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: indexer of block %s: heads %lld, dim %lld, top_k %lld: each is at least 1, none is huge", at, b->name,
                    (long long)a->index.heads, (long long)a->index.dim, (long long)a->index.top_k);
    if (a->q_lora == 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: the indexer of block %s reads the low-rank query, and q_lora is none", at, b->name);
    if (a->index.pos.on && (a->ext < 2 || a->ext > a->index.dim))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: rotary positions of the indexer turn its first ext = %lld of %lld elements", at, (long long)a->ext,
                    (long long)a->index.dim);
    b->select = (int)a->index.top_k;
    b->label = "DSA";
    return CDR_OK;
}

static void need_parts(cdr__block *b, const mla *a)
{
    int64_t H = a->heads, qk = a->nope + a->ext, D = b->hidden;
    if (a->q_lora > 0) {
        cdr__block_need(b, "q_a", a->q_lora, D, CDR__INIT_LINEAR);
        cdr__block_need(b, "q_a_norm", a->q_lora, 0, CDR__INIT_ONES);
        cdr__block_need(b, "q_b", H * qk, a->q_lora, CDR__INIT_LINEAR)->block_rows = (int32_t)qk;
    } else {
        cdr__block_need(b, "q", H * qk, D, CDR__INIT_LINEAR)->block_rows = (int32_t)qk;
    }
    cdr__block_need(b, "kv_a", a->kv_lora + a->ext, D, CDR__INIT_LINEAR);
    cdr__block_need(b, "kv_a_norm", a->kv_lora, 0, CDR__INIT_ONES);
    cdr__block_need(b, "kv_b", H * (a->nope + a->v), a->kv_lora, CDR__INIT_LINEAR)->block_rows = (int32_t)(a->nope + a->v);
    if (a->gate) cdr__block_need(b, "g", H * a->v, D, CDR__INIT_LINEAR);
    cdr__block_need(b, "o", D, H * a->v, CDR__INIT_OUT);
    if (a->index.heads == 0) return;
    int first = b->n_needs;
    cdr__block_need(b, "index.wq_b", a->index.heads * a->index.dim, a->q_lora, CDR__INIT_LINEAR)->block_rows = (int32_t)a->index.dim;
    cdr__block_need(b, "index.wk", a->index.dim, D, CDR__INIT_LINEAR);
    cdr__block_need(b, "index.w", a->index.heads, D, CDR__INIT_LINEAR);
    cdr__block_need(b, "index.k_norm", a->index.dim, 0, CDR__INIT_ONES);
    cdr__block_need(b, "index.k_norm_bias", a->index.dim, 0, CDR__INIT_ZEROS)->optional = true;
    for (int i = first; i < b->n_needs; i++) b->need[i].may_idle = true, b->need[i].added = a->index.added;      /* only its own loss trains an indexer */
}

static cdr_status mla_open(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, cdr_err *err)
{
    mla *a = cdr_pool_alloc(d->pool, sizeof *a);
    int64_t zero = 0;
    double eps = 1e-6;
    b->attr = a;
    CDR_TRY(cdr__attr_int(d, b, node, "heads", NULL, &a->heads, err));
    CDR_TRY(cdr__attr_int(d, b, node, "q_lora", &zero, &a->q_lora, err));
    CDR_TRY(cdr__attr_int(d, b, node, "kv_lora", NULL, &a->kv_lora, err));
    CDR_TRY(cdr__attr_int(d, b, node, "nope", NULL, &a->nope, err));
    CDR_TRY(cdr__attr_int(d, b, node, "ext", &zero, &a->ext, err));
    CDR_TRY(cdr__attr_int(d, b, node, "v", NULL, &a->v, err));
    CDR_TRY(cdr__attr_real(d, b, node, "norm_eps", &eps, &a->norm_eps, err));
    CDR_TRY(cdr__attr_bool(d, b, node, "output_gate", false, &a->gate, err));
    CDR_TRY(read_position(d, node, b, a->ext, &a->pos, err));
    int64_t limit = 1 << 20, H = a->heads;
    if (H < 1 || a->kv_lora < 1 || a->nope < 1 || a->v < 1 || H > 65536 || a->q_lora > limit || a->kv_lora > limit || a->nope > 65536 || a->ext > 65536 || a->v > 65536)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: block %s: heads %lld, kv_lora %lld, nope %lld, ext %lld, v %lld: all but ext are at least 1, none is huge",
                    cdr__desc_at(d, node), b->name, (long long)H, (long long)a->kv_lora, (long long)a->nope, (long long)a->ext, (long long)a->v);
    CDR_TRY(read_indexer(d, node, b, a, err));
    need_parts(b, a);
    return CDR_OK;
}

/* columns [from, from + n) of a row-major x */
static cdr_val columns(cdr_graph *g, cdr_val x, int64_t from, int64_t n, const char *name)
{
    if (g->failed) return CDR_NONE;
    const cdr_type *whole = cdr_graph_type(g, x);
    cdr_type t = cdr_type_2d(whole->dtype, whole->n[0], n);
    t.pitch = cdr_type_pitch(whole);
    return cdr_graph_view(g, x, cdr_dtype_bytes(whole->dtype, from), t, name);
}

/* The rows of all turns: this turn's are written at pos_T, then the whole cache is read. */
static cdr_val cached(cdr_graph *g, const cdr_io *io, cdr_val rows_TC, const char *name)
{
    if (g->failed || rows_TC == CDR_NONE || io->mode != CDR_MODE_GENERATE) return rows_TC;
    const cdr_type *t = cdr_graph_type(g, rows_TC);
    cdr_val cache_SC = cdr_graph_value(g, cdr_type_2d(io->compute, io->S, cdr_type_cols(t)), CDR_STEP, CDR_C_STATE, name);
    cdr_cache_write(g, cache_SC, rows_TC, io->pos_T, io->n_live_1);
    return cache_SC;
}

typedef struct { int64_t heads, nope, ext; bool first; } head_shape;

static cdr_val rotated(cdr_graph *g, const cdr_io *io, const position *p, head_shape h, cdr_val x_TC)
{
    if (!p->on || h.ext == 0) return x_TC;
    cdr_rope_attr at = { .heads = (int32_t)h.heads, .nope = (int32_t)h.nope, .ext = (int32_t)h.ext, .theta = (float)p->theta, .interleaved = p->interleaved,
                         .first = h.first, .factor = (float)p->factor, .original = (int32_t)p->original, .beta_fast = (float)p->beta_fast,
                         .beta_slow = (float)p->beta_slow };
    return cdr_rope(g, x_TC, io->pos_T, io->start_T, &at);
}

typedef struct { cdr_val q, k, w, sel; } indexed;

static indexed select_keys(cdr_graph *g, const cdr__block *b, const char *const *name, const cdr_io *io, cdr_val x_TD, cdr_val qr_TC)
{
    const mla *a = b->attr;
    indexed r = { CDR_NONE, CDR_NONE, CDR_NONE, CDR_NONE };
    int64_t n = a->index.heads, dim = a->index.dim, ext = a->index.pos.on ? a->ext : 0;
    if (n == 0) return r;
    cdr_val x = cdr_detach(g, x_TD), qr = cdr_detach(g, qr_TC);
    r.q = cdr_linear(g, qr, cdr__block_param(g, b, name, "index.wq_b"));                                                /* (5) */
    r.q = rotated(g, io, &a->index.pos, (head_shape){ n, dim - ext, ext, true }, r.q);
    r.k = cdr_linear(g, x, cdr__block_param(g, b, name, "index.wk"));
    r.k = cdr_layernorm(g, r.k, cdr__block_param(g, b, name, "index.k_norm"), cdr__block_param(g, b, name, "index.k_norm_bias"), (float)a->index.eps);
    r.k = cached(g, io, rotated(g, io, &a->index.pos, (head_shape){ 1, dim - ext, ext, true }, r.k), "index_cache");
    r.w = cdr_linear_f32(g, x, cdr__block_param(g, b, name, "index.w"));
    r.w = cdr_scale(g, r.w, (float)(1.0 / sqrt((double)n * (double)dim)));
    cdr_indexer_attr at = { .heads = (int32_t)n, .dim = (int32_t)dim, .top_k = (int32_t)a->index.top_k };
    r.sel = cdr_indexer(g, r.q, r.k, r.w, io->start_T, io->pos_T, io->dense_1, &at);                                    /* (6) */
    return r;
}

static double softmax_scale(const mla *a)
{
    double m = a->pos.factor > 1 ? 0.1 * a->pos.mscale * log(a->pos.factor) + 1 : 1;
    return m * m / sqrt((double)(a->nope + a->ext));
}

static cdr_val mla_forward(cdr_graph *g, const cdr__block *b, const char *const *name, cdr_io *io, cdr_val x_TD)
{
    const mla *a = b->attr;
    float eps = (float)a->norm_eps;
    cdr_val q, qr = CDR_NONE, kr = CDR_NONE;
    if (a->q_lora > 0) {                                                                                                /* (1) */
        qr = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "q_a"));
        qr = cdr_rmsnorm(g, qr, cdr__block_param(g, b, name, "q_a_norm"), eps);
        q = cdr_linear(g, qr, cdr__block_param(g, b, name, "q_b"));
    } else {
        q = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "q"));
    }
    cdr_val kv_a = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "kv_a"));                                           /* (2) */
    cdr_val c = columns(g, kv_a, 0, a->kv_lora, "c");
    if (a->ext > 0) kr = columns(g, kv_a, a->kv_lora, a->ext, "kr");
    c = cdr_rmsnorm(g, c, cdr__block_param(g, b, name, "kv_a_norm"), eps);
    q = rotated(g, io, &a->pos, (head_shape){ a->heads, a->nope, a->ext, false }, q);                                   /* (3) */
    kr = rotated(g, io, &a->pos, (head_shape){ 1, 0, a->ext, false }, kr);
    c = cached(g, io, c, "c_cache");
    kr = cached(g, io, kr, "kr_cache");
    cdr_val kv = cdr_linear(g, c, cdr__block_param(g, b, name, "kv_b"));                                                /* (4) */
    indexed r = select_keys(g, b, name, io, x_TD, qr);
    cdr_attention_attr at = { .heads = (int32_t)a->heads, .nope = (int32_t)a->nope, .ext = (int32_t)a->ext, .v = (int32_t)a->v, .scale = (float)softmax_scale(a),
                              .core = r.sel == CDR_NONE ? CDR_CORE_DENSE : io->core, .o_f32 = a->gate && io->compute != CDR_F32 };
    cdr_val o = cdr_attention_sel(g, q, kv, kr, r.sel, io->start_T, io->pos_T, &at);                                    /* (7) */
    if (r.sel != CDR_NONE && io->mode == CDR_MODE_TRAIN && io->indexer_train) {
        cdr_indexer_loss_attr la = { .heads = (int32_t)a->index.heads, .dim = (int32_t)a->index.dim, .main_heads = (int32_t)a->heads, .nope = at.nope, .ext = at.ext,
                                     .v = at.v, .scale = at.scale, .coef = (float)io->indexer_coef };
        cdr_val lse_TH = cdr_attention_lse(g, o);
        cdr__extra_loss(g, io, cdr_indexer_loss(g, r.q, r.k, r.w, q, kv, kr, lse_TH, r.sel, io->start_T, io->pos_T, &la));
    }
    if (a->gate) o = cdr_gate(g, o, cdr_linear(g, x_TD, cdr__block_param(g, b, name, "g")));                            /* (8) */
    return cdr_linear(g, o, cdr__block_param(g, b, name, "o"));
}

static double mla_pair_flop(const cdr__block *b)
{
    const mla *a = b->attr;
    return 2.0 * (double)a->heads * (double)(a->nope + a->ext + a->v) + 2.0 * (double)a->index.heads * (double)a->index.dim;
}

const cdr__block_type cdr__block_mla = {
    .type = "mla", .label = "MLA", .mixer = true,
    .attrs = "type heads q_lora kv_lora nope ext v position output_gate norm_eps indexer",
    .parts = "q q_a q_a_norm q_b kv_a kv_a_norm kv_b g o index.wq_b index.wk index.w index.k_norm index.k_norm_bias",
    .open = mla_open, .forward = mla_forward, .pair_flop = mla_pair_flop,
};
