/* block_mla: multi-head latent attention, without positions or with rotary ones.
 *
 *   q_TC   = x W_q^T                 or   q = RMSNorm(x W_qa^T) W_qb^T               C = heads (nope + ext)      (1)
 *   [c | kr] = x W_kva^T                                                            kv_lora | ext               (2)
 *   kv     = RMSNorm(c) W_kvb^T      per head [nope key | v value]                                              (3)
 *   q, kr  = rope on their ext parts, by the position within the document                                       (4)
 *   o      = softmax(q k^T / sqrt(nope + ext), causal within the document) v,  k_h = [k_h | kr]                 (5)
 *   out    = o W_o^T                                                                                            (6)
 * The norms inside have an eps of their own. Training: keys are the rows themselves. Generating: rows of kv and kr go to
 * caches of S rows, which live for one execution of the program's turns (STEP), and attention reads these.
 * Source: spec/model.md, 3.4 (K3 without positions, Kimi-Linear without q_lora), DeepSeek-V2, section 2.1 (rotary part).
 * Not here yet: output gate, indexer, rope scaling; a description that asks for them is refused.
 */
#include "models/models.h"
#include "ops/attention/attention.h"
#include "ops/cache_write/cache_write.h"
#include "ops/linear/linear.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include <math.h>

typedef struct {
    int64_t heads, q_lora, kv_lora, nope, ext, v;      /* q_lora 0: one q */
    bool rope, interleaved;
    double theta, norm_eps;
} mla;

static cdr_status read_position(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, mla *a, cdr_err *err)
{
    const cdr_yaml *p = cdr_yaml_get(node, "position");
    if (!p || (p->kind == CDR_YAML_SCALAR && strcmp(p->text, "none") == 0)) return CDR_OK;
    const char *style = cdr__attr_word(p, "rope");
    static const char *const known[] = { "rope", "theta", "scaling" };
    for (int i = 0; i < p->n; i++) {
        bool ok = false;
        for (int k = 0; k < CDR_COUNT(known) && p->kind == CDR_YAML_MAP; k++) ok = ok || strcmp(known[k], p->items[i].key) == 0;
        if (!ok) CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-key", "%s: unknown key of position", cdr__desc_at(d, p));
    }
    if (p->kind != CDR_YAML_MAP || !style || (strcmp(style, "half") != 0 && strcmp(style, "interleaved") != 0))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: position is none, or {rope: half|interleaved, theta}", cdr__desc_at(d, p));
    const cdr_yaml *scaling = cdr_yaml_get(p, "scaling");
    if (scaling && !(scaling->kind == CDR_YAML_SCALAR && strcmp(scaling->text, "none") == 0))
        return cdr__block_refuse(d, b, scaling, "rope scaling is", err);
    a->rope = true;
    a->interleaved = strcmp(style, "interleaved") == 0;
    double theta = 10000;
    CDR_TRY(cdr__attr_real(d, b, p, "theta", &theta, &a->theta, err));
    if (!(a->theta > 1)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: theta is above 1", cdr__desc_at(d, p));
    if (a->ext % 2 != 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: rotary positions need an even ext, not %lld", cdr__desc_at(d, p), (long long)a->ext);
    return CDR_OK;
}

static cdr_status mla_open(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, cdr_err *err)
{
    const cdr_yaml *gate = cdr_yaml_get(node, "output_gate"), *indexer = cdr_yaml_get(node, "indexer");
    mla *a = cdr_pool_alloc(d->pool, sizeof *a);
    int64_t zero = 0;
    double eps = 1e-6;
    b->attr = a;
    if (gate && !(gate->kind == CDR_YAML_SCALAR && strcmp(gate->text, "false") == 0)) return cdr__block_refuse(d, b, gate, "output_gate is", err);
    if (indexer && !(indexer->kind == CDR_YAML_SCALAR && strcmp(indexer->text, "none") == 0)) return cdr__block_refuse(d, b, indexer, "indexer is", err);
    CDR_TRY(cdr__attr_int(d, b, node, "heads", NULL, &a->heads, err));
    CDR_TRY(cdr__attr_int(d, b, node, "q_lora", &zero, &a->q_lora, err));
    CDR_TRY(cdr__attr_int(d, b, node, "kv_lora", NULL, &a->kv_lora, err));
    CDR_TRY(cdr__attr_int(d, b, node, "nope", NULL, &a->nope, err));
    CDR_TRY(cdr__attr_int(d, b, node, "ext", &zero, &a->ext, err));
    CDR_TRY(cdr__attr_int(d, b, node, "v", NULL, &a->v, err));
    CDR_TRY(cdr__attr_real(d, b, node, "norm_eps", &eps, &a->norm_eps, err));
    CDR_TRY(read_position(d, node, b, a, err));
    int64_t limit = 1 << 20, H = a->heads, qk = a->nope + a->ext;
    if (H < 1 || a->kv_lora < 1 || a->nope < 1 || a->v < 1 || H > 65536 || a->q_lora > limit || a->kv_lora > limit || a->nope > 65536 || a->ext > 65536 || a->v > 65536)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: block %s: heads %lld, kv_lora %lld, nope %lld, ext %lld, v %lld: all but ext are at least 1, none is huge",
                    cdr__desc_at(d, node), b->name, (long long)H, (long long)a->kv_lora, (long long)a->nope, (long long)a->ext, (long long)a->v);
    if (a->q_lora > 0) {
        cdr__block_need(b, "q_a", a->q_lora, b->hidden, CDR__INIT_LINEAR);
        cdr__block_need(b, "q_a_norm", a->q_lora, 0, CDR__INIT_NORM);
        cdr__block_need(b, "q_b", H * qk, a->q_lora, CDR__INIT_LINEAR);
    } else {
        cdr__block_need(b, "q", H * qk, b->hidden, CDR__INIT_LINEAR);
    }
    b->need[b->n_needs - 1].block_rows = (int32_t)qk;
    cdr__block_need(b, "kv_a", a->kv_lora + a->ext, b->hidden, CDR__INIT_LINEAR);
    cdr__block_need(b, "kv_a_norm", a->kv_lora, 0, CDR__INIT_NORM);
    cdr__block_need(b, "kv_b", H * (a->nope + a->v), a->kv_lora, CDR__INIT_LINEAR);
    b->need[b->n_needs - 1].block_rows = (int32_t)(a->nope + a->v);
    cdr__block_need(b, "o", b->hidden, H * a->v, CDR__INIT_OUT);
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

/* The keys of all turns: rows are written at pos_T, then the whole cache is read. */
static cdr_val cached(cdr_graph *g, const cdr_io *io, cdr_val rows_TC, const char *name)
{
    if (g->failed || rows_TC == CDR_NONE || io->mode != CDR_MODE_GENERATE) return rows_TC;
    const cdr_type *t = cdr_graph_type(g, rows_TC);
    cdr_val cache_SC = cdr_graph_value(g, cdr_type_2d(io->compute, io->S, cdr_type_cols(t)), CDR_STEP, CDR_C_STATE, name);
    cdr_cache_write(g, cache_SC, rows_TC, io->pos_T, io->n_live_1);
    return cache_SC;
}

static cdr_val mla_forward(cdr_graph *g, const cdr__block *b, const char *const *name, cdr_io *io, cdr_val x_TD)
{
    const mla *a = b->attr;
    float eps = (float)a->norm_eps;
    cdr_val q, kr = CDR_NONE;
    if (a->q_lora > 0) {
        cdr_val low = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "q_a"));
        low = cdr_rmsnorm(g, low, cdr__block_param(g, b, name, "q_a_norm"), eps);
        q = cdr_linear(g, low, cdr__block_param(g, b, name, "q_b"));                                                    /* (1) */
    } else {
        q = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "q"));
    }
    cdr_val kv_a = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "kv_a"));                                           /* (2) */
    cdr_val c = columns(g, kv_a, 0, a->kv_lora, "c");
    if (a->ext > 0) kr = columns(g, kv_a, a->kv_lora, a->ext, "kr");
    c = cdr_rmsnorm(g, c, cdr__block_param(g, b, name, "kv_a_norm"), eps);
    cdr_val kv = cdr_linear(g, c, cdr__block_param(g, b, name, "kv_b"));                                                /* (3) */
    if (a->rope && a->ext > 0) {                                                                                        /* (4) */
        cdr_rope_attr of_q = { .heads = (int32_t)a->heads, .nope = (int32_t)a->nope, .ext = (int32_t)a->ext, .theta = (float)a->theta,
                               .interleaved = a->interleaved };
        cdr_rope_attr of_k = of_q;
        of_k.heads = 1;
        of_k.nope = 0;
        q = cdr_rope(g, q, io->pos_T, io->start_T, &of_q);
        kr = cdr_rope(g, kr, io->pos_T, io->start_T, &of_k);
    }
    kv = cached(g, io, kv, "kv_cache");
    kr = cached(g, io, kr, "kr_cache");
    cdr_attention_attr at = { .heads = (int32_t)a->heads, .nope = (int32_t)a->nope, .ext = (int32_t)a->ext, .v = (int32_t)a->v,
                              .scale = (float)(1.0 / sqrt((double)(a->nope + a->ext))) };
    cdr_val o = cdr_attention(g, q, kv, kr, io->start_T, io->pos_T, &at);                                               /* (5) */
    return cdr_linear(g, o, cdr__block_param(g, b, name, "o"));                                                         /* (6) */
}

static double mla_pair_flop(const cdr__block *b)
{
    const mla *a = b->attr;
    return 2.0 * (double)a->heads * (double)(a->nope + a->ext + a->v);
}

const cdr__block_type cdr__block_mla = {
    .type = "mla", .label = "MLA", .mixer = true,
    .attrs = "type heads q_lora kv_lora nope ext v position output_gate norm_eps indexer",
    .parts = "q q_a q_a_norm q_b kv_a kv_a_norm kv_b g o index.wq_b index.wk index.w index.k_norm index.k_norm_bias",
    .open = mla_open, .forward = mla_forward, .pair_flop = mla_pair_flop,
};
