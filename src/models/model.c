/* model.c: a description as layers and tensors: which block each layer has, which tensor fills each part, with shapes that
 * must agree with the block's. Strict both ways: a part without a row and a row without a part are errors.
 * Source: spec/interface.md, 4.1 to 4.3.
 */
#include "models/model_parts.h"
#include "ops/attn_res/attn_res.h"

const cdr__block_type *const cdr__block_types[] = { &cdr__block_mla, &cdr__block_glu, &cdr__block_model, &cdr__block_layer,
                                                    &cdr__block_kda, &cdr__block_moe, NULL };

const cdr__block_type cdr__block_model = { .type = "model", .label = "model", .attrs = "type norm eps tie vision", .parts = "embed head norm res.proj res.norm" };
const cdr__block_type cdr__block_layer = {
    .type = "layer", .label = "layer", .attrs = "",
    .parts = "norm.input norm.post_attention res.self_attention.proj res.self_attention.norm res.mlp.proj res.mlp.norm",
};

/* ---- small helpers ------------------------------------------------------------------------------------------------------ */

static int split_words(cdr_pool *pool, const char *words, const char *out[64])
{
    int n = 0;
    for (const char *p = words; *p && n < 64;) {
        size_t len = strcspn(p, " ");
        out[n++] = cdr_pool_strndup(pool, p, len);
        p += len + (p[len] == ' ');
    }
    return n;
}

const char *cdr__near_word(cdr_pool *pool, const char *words, const char *word)
{
    const char *all[64];
    int n = split_words(pool, words, all);
    for (int i = 0; i < n; i++) if (strcmp(all[i], word) == 0) return NULL;
    return cdr_nearest(pool, word, all, n);
}

static const cdr__block_type *find_type(const char *type)
{
    for (int i = 0; cdr__block_types[i]; i++) if (strcmp(cdr__block_types[i]->type, type) == 0) return cdr__block_types[i];
    return NULL;
}

static int find_need(const cdr__block *b, const char *part)
{
    for (int i = 0; i < b->n_needs; i++) if (strcmp(b->need[i].part, part) == 0) return i;
    return -1;
}

static cdr__need *add_need(cdr__block *b, cdr__need n)
{
    CDR_CHECK(b->n_needs < CDR__MAX_NEEDS);
    b->need[b->n_needs] = n;
    return &b->need[b->n_needs++];
}

cdr__need *cdr__block_need(cdr__block *b, const char *part, int64_t rows, int64_t cols, cdr__init_class init)
{
    return add_need(b, (cdr__need){ .part = part, .n_dim = cols > 0 ? 2 : 1, .n = { rows, cols }, .init = (uint8_t)init });
}

cdr__need *cdr__block_need_experts(cdr__block *b, const char *part, int64_t n_experts, int64_t rows, int64_t cols, cdr__init_class init)
{
    return add_need(b, (cdr__need){ .part = part, .n_dim = 3, .n = { n_experts, rows, cols }, .init = (uint8_t)init, .block_rows = (int32_t)rows, .top_k = b->top_k });
}

const char *cdr__block_param_name(const cdr__block *b, const char *const *name, const char *part)
{
    int i = find_need(b, part);
    CDR_CHECK(i >= 0 && (name[i] || b->need[i].optional));
    return name[i];
}

cdr_val cdr__block_param(cdr_graph *g, const cdr__block *b, const char *const *name, const char *part)
{
    const char *full = cdr__block_param_name(b, name, part);
    return full ? cdr_graph_param(g, "%s", full) : CDR_NONE;
}

/* ---- blocks --------------------------------------------------------------------------------------------------------------- */

static cdr_status check_attrs(const cdr__desc *d, const cdr_yaml *node, const cdr__block_type *type, cdr_err *err)
{
    for (int i = 0; i < node->n; i++) {
        const char *near = cdr__near_word(d->pool, type->attrs, node->items[i].key);
        if (near)
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-key", "%s: blocks of type %s have no attribute %s.%s", cdr__desc_at(d, &node->items[i]), type->type,
                        node->items[i].key, near);
    }
    return CDR_OK;
}

static cdr_status open_model_block(cdr_model *m, const cdr_yaml *node, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    cdr_yaml empty = { .kind = CDR_YAML_MAP };
    cdr__block *b = &m->self;
    const char *norm = node ? cdr__attr_word(node, "norm") : NULL, *tie = node ? cdr__attr_word(node, "tie") : NULL;
    *b = (cdr__block){ .type = &cdr__block_model, .name = "model", .hidden = m->info.hidden };
    if (norm && strcmp(norm, "rmsnorm") != 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: norm is rmsnorm", cdr__desc_at(d, node));
    if (tie && strcmp(tie, "false") != 0) return cdr__block_refuse(d, b, cdr_yaml_get(node, "tie"), "tie (one matrix for embedding and head) is", err);
    if (node && cdr_yaml_get(node, "vision")) return cdr__block_refuse(d, b, cdr_yaml_get(node, "vision"), "vision is", err);
    const cdr__size *eps = cdr__size_find(d, NULL, "eps");
    double otherwise = eps && !eps->list ? eps->d : 1e-5;
    return cdr__attr_real(d, b, node ? node : &empty, "eps", &otherwise, &m->eps, err);
}

/* The parts outside of the blocks: norms, embedding, head, and what the residual form adds. */
static void need_stack(cdr_model *m)
{
    int64_t D = m->info.hidden;
    cdr__block *b = &m->self, *l = &m->layer_block;
    *l = (cdr__block){ .type = &cdr__block_layer, .name = "layer", .hidden = D };
    cdr__block_need(b, "embed", m->info.vocab, D, CDR__INIT_EMBED)->lookup = true;
    cdr__block_need(b, "head", m->info.vocab, D, CDR__INIT_LINEAR)->plain = true;
    cdr__block_need(b, "norm", D, 0, CDR__INIT_ONES);
    cdr__block_need(l, "norm.input", D, 0, CDR__INIT_ONES);
    cdr__block_need(l, "norm.post_attention", D, 0, CDR__INIT_ONES);
    if (m->attn_block == 0) return;
    cdr__block_need(b, "res.proj", 1, D, CDR__INIT_ZEROS);           /* zero queries: the mean of the rows */
    cdr__block_need(b, "res.norm", D, 0, CDR__INIT_ONES);
    cdr__block_need(l, "res.self_attention.proj", 1, D, CDR__INIT_ZEROS);
    cdr__block_need(l, "res.self_attention.norm", D, 0, CDR__INIT_ONES);
    cdr__block_need(l, "res.mlp.proj", 1, D, CDR__INIT_ZEROS);
    cdr__block_need(l, "res.mlp.norm", D, 0, CDR__INIT_ONES);
}

static cdr_status open_blocks(cdr_model *m, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const cdr_yaml *blocks = cdr_yaml_get(d->root, "blocks"), *self = NULL;
    m->block = cdr_pool_alloc(d->pool, sizeof *m->block * (size_t)(blocks->n + 1));
    m->block_node = cdr_pool_alloc(d->pool, sizeof *m->block_node * (size_t)(blocks->n + 1));
    for (int i = 0; i < blocks->n; i++) {
        const cdr_yaml *node = &blocks->items[i];
        const char *type = node->kind == CDR_YAML_MAP ? cdr__attr_word(node, "type") : NULL;
        if (!type) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: block %s is a map with a type", cdr__desc_at(d, node), node->key);
        const cdr__block_type *t = find_type(type);
        if (!t || t == &cdr__block_layer)
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-block", "%s: block %s has the unknown type %s.%s", cdr__desc_at(d, node), node->key, type,
                        cdr__near_word(d->pool, "mla glu kda moe model", type));
        CDR_TRY(check_attrs(d, node, t, err));
        if (t == &cdr__block_model) { self = node; continue; }
        m->block_node[m->n_blocks] = node;
        m->block[m->n_blocks++] = (cdr__block){ .type = t, .name = node->key, .label = t->label, .hidden = m->info.hidden };
    }
    CDR_TRY(open_model_block(m, self, err));
    for (int i = 0; i < m->n_blocks; i++) m->block[i].eps = m->eps;
    return CDR_OK;
}

/* A block is opened when the first layer uses it, so that a description may keep blocks that no layer has. */
static cdr_status use_block(cdr_model *m, int i, cdr_err *err)
{
    cdr__block *b = &m->block[i];
    if (b->n_needs > 0) return CDR_OK;
    return b->type->open(&m->d, m->block_node[i], b, err);
}

/* ---- schedule ---------------------------------------------------------------------------------------------------------------- */

static cdr_status index_base(const cdr_model *m, int64_t *base, cdr_err *err)
{
    const cdr_yaml *e = cdr_yaml_get(m->d.root, "index_base");
    *base = 0;
    if (!e) return CDR_OK;
    if (e->kind != CDR_YAML_SCALAR || (strcmp(e->text, "0") != 0 && strcmp(e->text, "1") != 0))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: index_base is 0 or 1", cdr__desc_at(&m->d, e));
    *base = e->text[0] - '0';
    return CDR_OK;
}

static cdr_status mark_list(const cdr_model *m, const cdr_yaml *rule, const int64_t *items, int n, bool *in, cdr_err *err)
{
    int64_t base;
    CDR_TRY(index_base(m, &base, err));
    for (int i = 0; i < n; i++) {
        int64_t layer = items[i] - base;
        if (layer < 0 || layer >= m->n_all) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-layer", "%s: layer %lld of the list is not among %d layers (index_base %lld)",
                                                        cdr__desc_at(&m->d, rule), (long long)items[i], m->n_all, (long long)base);
        in[layer] = true;
    }
    return CDR_OK;
}

/* `first N`, `every N from K` (from 0), a list, the name of a list size. `rest` is the caller's. */
static cdr_status mark_rule(const cdr_model *m, const cdr_yaml *rule, bool *in, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const char *at = cdr__desc_at(d, rule);
    memset(in, 0, sizeof *in * (size_t)m->n_all);
    if (rule->kind == CDR_YAML_LIST) {
        int64_t *items = cdr_pool_alloc(d->pool, sizeof *items * (size_t)(rule->n + 1));
        for (int i = 0; i < rule->n; i++) {
            if (rule->items[i].kind != CDR_YAML_SCALAR) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: a layer list holds integers", at);
            CDR_TRY(cdr__expr(d, NULL, rule->items[i].text, at, &items[i], err));
        }
        return mark_list(m, rule, items, rule->n, in, err);
    }
    if (rule->kind != CDR_YAML_SCALAR) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: layers are a list, first N, every N from K, or rest", at);
    const char *text = rule->text, *from = strstr(text, " from ");
    if (strcmp(text, "none") == 0) return CDR_OK;
    if (strncmp(text, "first ", 6) == 0) {
        int64_t n;
        CDR_TRY(cdr__expr(d, NULL, text + 6, at, &n, err));
        if (n < 0 || n > m->n_all) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-layer", "%s: first %lld of %d layers", at, (long long)n, m->n_all);
        for (int64_t i = 0; i < n; i++) in[i] = true;
        return CDR_OK;
    }
    if (strncmp(text, "every ", 6) == 0 && from) {
        int64_t step, first;
        CDR_TRY(cdr__expr(d, NULL, cdr_pool_strndup(d->pool, text + 6, (size_t)(from - text - 6)), at, &step, err));
        CDR_TRY(cdr__expr(d, NULL, from + 6, at, &first, err));
        if (step < 1 || first < 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-layer", "%s: every %lld from %lld; the step is at least 1, the first layer at least 0", at,
                                               (long long)step, (long long)first);
        for (int64_t i = first; i < m->n_all; i += step) in[i] = true;
        return CDR_OK;
    }
    const cdr__size *z = cdr__size_find(d, NULL, text);
    if (!z || !z->list)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: \"%s\" is no layer rule: a list, the name of a list, first N, every N from K, or rest", at, text);
    return mark_list(m, rule, z->items, z->n, in, err);
}

static cdr_status assign(cdr_model *m, const cdr_yaml *rules, bool mixer, int *block_of, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    int rest = -1;
    bool *in = cdr_pool_alloc(d->pool, sizeof *in * (size_t)m->n_all);
    for (int i = 0; i < m->n_all; i++) block_of[i] = -1;
    for (int r = 0; r < rules->n; r++) {
        const cdr_yaml *rule = &rules->items[r];
        int b = 0;
        while (b < m->n_blocks && strcmp(m->block[b].name, rule->key) != 0) b++;
        if (b == m->n_blocks || m->block[b].type->mixer != mixer)
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-block", "%s: %s is no %s block of this description", cdr__desc_at(d, rule), rule->key, mixer ? "mixer" : "ffn");
        if (rule->kind == CDR_YAML_SCALAR && strcmp(rule->text, "rest") == 0) {
            if (rest >= 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: two blocks take the rest", cdr__desc_at(d, rule));
            rest = b;
            continue;
        }
        CDR_TRY(mark_rule(m, rule, in, err));
        for (int i = 0; i < m->n_all; i++) {
            if (!in[i]) continue;
            if (block_of[i] >= 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-layer", "%s: layer %d has two blocks, %s and %s", cdr__desc_at(d, rule), i,
                                              m->block[block_of[i]].name, m->block[b].name);
            block_of[i] = b;
        }
    }
    for (int i = 0; i < m->n_all; i++) {
        if (block_of[i] < 0) block_of[i] = rest;
        if (block_of[i] < 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-layer", "%s: layer %d has no %s", cdr__desc_at(d, rules), i, mixer ? "mixer" : "ffn");
    }
    return CDR_OK;
}

static cdr_status read_residual(cdr_model *m, const cdr_yaml *layers, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const cdr_yaml *r = cdr_yaml_get(layers, "residual");
    const char *type = !r ? "prenorm" : r->kind == CDR_YAML_SCALAR ? r->text : cdr__attr_word(r, "type");
    if (type && strcmp(type, "prenorm") == 0) return CDR_OK;
    if (!type || strcmp(type, "attn_res") != 0 || r->kind != CDR_YAML_MAP)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: residual is prenorm or {type: attn_res, block}", cdr__desc_at(d, r));
    CDR_TRY(cdr__attr_known(d, r, "residual attn_res", "type block", err));
    const char *text = cdr__attr_word(r, "block");
    int64_t block = 0;
    if (!text) CDR_FAIL_ID(err, CDR_EUSER, "model.missing-attribute", "%s: residual attn_res needs block, the layers of a block", cdr__desc_at(d, r));
    CDR_TRY(cdr__expr(d, NULL, text, cdr__desc_at(d, cdr_yaml_get(r, "block")), &block, err));
    if (block < 1 || cdr_ceil_div(m->n_all, block) + 1 > CDR_ATTN_RES_MAX)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: attn_res blocks of %lld layers: from 1 layer, and at most %d blocks of the %d layers", cdr__desc_at(d, r),
                    (long long)block, CDR_ATTN_RES_MAX - 1, m->n_all);
    m->attn_block = (int)block;
    return CDR_OK;
}

static cdr_status make_layers(cdr_model *m, const char *set, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const cdr_yaml *layers = cdr_yaml_get(d->root, "layers"), *mixer = cdr_yaml_get(layers, "mixer"), *ffn = cdr_yaml_get(layers, "ffn");
    for (int i = 0; i < layers->n; i++) {
        const char *near = cdr__near_word(d->pool, "mixer ffn residual", layers->items[i].key);
        if (near) CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-key", "%s: unknown key layers.%s.%s", cdr__desc_at(d, &layers->items[i]), layers->items[i].key, near);
    }
    if (!mixer || mixer->kind != CDR_YAML_MAP || !ffn || ffn->kind != CDR_YAML_MAP)
        CDR_FAIL_ID(err, CDR_EUSER, "model.missing-section", "%s: layers needs mixer and ffn, maps of block: layers", cdr__desc_at(d, layers));
    CDR_TRY(read_residual(m, layers, err));
    need_stack(m);
    int *of_mixer = cdr_pool_alloc(d->pool, sizeof *of_mixer * (size_t)m->n_all), *of_ffn = cdr_pool_alloc(d->pool, sizeof *of_ffn * (size_t)m->n_all);
    bool *in = cdr_pool_alloc(d->pool, sizeof *in * (size_t)m->n_all);
    CDR_TRY(assign(m, mixer, true, of_mixer, err));
    CDR_TRY(assign(m, ffn, false, of_ffn, err));
    if (!cdr__layer_set(set ? set : "all", m->n_all, in))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-layer", "model.layers: \"%s\" is no layer set of %d layers: all, 3, 0-7, 0-3,8,last or every 4 from 3", set, m->n_all);
    m->layer = cdr_pool_alloc(d->pool, sizeof *m->layer * (size_t)m->n_all);
    for (int i = 0; i < m->n_all; i++) {
        if (!in[i]) continue;
        CDR_TRY(use_block(m, of_mixer[i], err));
        CDR_TRY(use_block(m, of_ffn[i], err));
        m->layer[m->info.n_layers++] = (cdr__layer){ .index = i, .mixer = of_mixer[i], .ffn = of_ffn[i] };
    }
    bool any = m->d.indexer != CDR_INDEXER_ON;
    for (int i = 0; i < m->info.n_layers; i++) any = any || m->block[m->layer[i].mixer].select > 0;
    if (!any) CDR_FAIL_ID(err, CDR_EUSER, "model.no-indexer", "model.indexer: on, but %s has no mla layer that could have one", m->info.name);
    return CDR_OK;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------------ */

static cdr_status base_size(const cdr_model *m, const char *name, int64_t max, int64_t *x, cdr_err *err)
{
    const cdr__size *z = cdr__size_find(&m->d, NULL, name);
    if (!z || z->list || z->real || z->i < 1 || z->i > max)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: size %s %s; it is an integer from 1 to %lld", m->d.file[0], name, z ? "is out of range" : "is missing",
                    (long long)max);
    *x = z->i;
    return CDR_OK;
}

static cdr_status read_texts(cdr_model *m, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    static const char *const kinds[] = { "byte", "tiktoken", "hf_bpe" };
    const cdr_yaml *tok = cdr_yaml_get(d->root, "tokenizer"), *chat = cdr_yaml_get(d->root, "chat");
    const char *name = cdr__attr_word(d->root, "name");
    const char *type = tok ? cdr__attr_word(tok, "type") : NULL, *format = chat ? cdr__attr_word(chat, "format") : NULL;
    if (!name || !*name) CDR_FAIL_ID(err, CDR_EUSER, "model.missing-section", "%s: name is missing", d->file[0]);
    m->info.name = name;
    m->info.family = d->family ? d->family : name;
    m->info.tokenizer = type ? type : "byte";
    m->info.chat = format ? format : "none";
    const char *near = cdr__near_word(d->pool, "none k3_xtml kimi_k2 chatml jinja", m->info.chat);
    if (near) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: chat format %s is not among none, k3_xtml, kimi_k2, chatml, jinja.%s",
                          cdr__desc_at(d, cdr_yaml_get(chat, "format")), m->info.chat, near);
    bool known = false;
    for (int i = 0; i < CDR_COUNT(kinds); i++) known = known || strcmp(kinds[i], m->info.tokenizer) == 0;
    if (!known) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: tokenizer type is byte, tiktoken or hf_bpe",
                            cdr__desc_at(d, cdr_yaml_get(tok, "type")));
    return CDR_OK;
}

static cdr_status build(const cdr_model_spec *s, const cdr__input *in, cdr_pool *pool, cdr_model *m, cdr_err *err)
{
    int64_t n_layers = 0;
    CDR_TRY(cdr__desc_read(s, in, pool, &m->d, err));
    m->source = m->d.source;
    m->random = s->random;
    if (m->source) m->source->hf = s->hf;
    CDR_TRY(read_texts(m, err));
    CDR_TRY(base_size(m, "hidden", 1 << 20, &m->info.hidden, err));
    CDR_TRY(base_size(m, "vocab", 1 << 24, &m->info.vocab, err));
    CDR_TRY(base_size(m, "n_layers", 4096, &n_layers, err));
    m->n_all = (int)n_layers;
    CDR_TRY(open_blocks(m, err));
    CDR_TRY(make_layers(m, s->layers, err));
    CDR_TRY(cdr__model_tensors(m, err));
    bool whole = m->info.n_layers == m->n_all && s->indexer != CDR_INDEXER_OFF;      /* else some sizes are rightly unread */
    if (whole) CDR_TRY(cdr__sizes_read(&m->d, err));
    return CDR_OK;
}

cdr_status cdr__model_build(const cdr_model_spec *s, const cdr__input *in, cdr_pool *pool, cdr_model **out, cdr_err *err)
{
    cdr_model *m = cdr_pool_alloc(pool, sizeof *m);
    cdr_status st = build(s, in, pool, m, err);
    cdr__source_release(m->source);
    if (st == CDR_OK) *out = m;
    return st;
}
