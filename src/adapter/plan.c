/* plan.c: which tensors an adapter has in a consumer's layout, with what ranks and scales.
 *
 *   peft          each module its rank and scale, by patterns where they differ; routed experts one by one
 *   peft-stacked  names of transformers' classes; experts by target_parameters: down_proj outside, gate_up_proj inside (base_layer)
 *   sglang, vllm  one rank R, by rows of zeros, and one scale s: B of another scale s_m is stored as (s_m / s) B. sglang: experts as 3-D stacks;
 *                 a fused module lacks no sibling (gate and up, q_a and kv_a): zeros stand in. vllm: experts one by one, R of its list
 *   gguf          each its rank; one alpha: B of another alpha_m = s_m r_m is stored as (alpha_m / alpha) B
 * Gate and up of a wrapper: with one A (bit for bit), B is stacked and the rank stays; else A = [A1; A3], B block diagonal, rank r1 + r3.
 * Source: spec/formats.md, 1.6 to 1.8; what is dropped: formats.c.
 */
#include "adapter/adapter.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    const cdr_lora_out *o; const cdr_model *m; const cdr__lora_names *names; cdr_pool *pool;
    cdr__lora_plan *p;
    bool *in;                     /* by pair: written */
    const cdr_lora_pair **of;     /* by parameter: its pair that is written; NULL: none */
    int32_t rank; float scale;    /* uniform; rank 0: not */
} work;

static bool is(const work *w, const char *format) { return strcmp(w->o->format, format) == 0; }

/* ---- what is written at all ------------------------------------------------------------------------------------------------------------ */

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static const char *consumer_of(const char *format) { return strncmp(format, "peft", 4) == 0 ? "peft" : format; }

/* How this format lays a pair out. */
static cdr_lora_layout layout_of(const work *w, const cdr_lora_pair *p)
{
    if (p->experts == 0) return CDR_LORA_MATRIX;
    return is(w, "peft") || is(w, "vllm") ? CDR_LORA_EXPERTS : is(w, "peft-stacked") ? CDR_LORA_FUSED : CDR_LORA_STACK;
}

static cdr_status choose(work *w, cdr_err *err)
{
    const cdr_lora_set *set = w->o->set;
    cdr_lora_set plain = *set;                               /* as this format would hold it */
    plain.rank = 0;
    plain.pair = cdr_pool_alloc(w->pool, sizeof *plain.pair * (size_t)(set->n + 1));
    w->in = cdr_pool_alloc(w->pool, (size_t)set->n + 1);
    w->of = cdr_pool_alloc(w->pool, sizeof *w->of * (size_t)(cdr_model_params(w->m) + 1));
    for (int i = 0; i < set->n; i++) {
        const char *why;
        plain.pair[i] = set->pair[i];
        plain.pair[i].layout = layout_of(w, &set->pair[i]);
        plain.pair[i].n_keys = set->pair[i].experts > 0 && !is(w, "sglang") && !is(w, "gguf") && !is(w, "peft-stacked") ? 2 * set->pair[i].experts : 2;
        w->in[i] = cdr_lora_serves(w->m, consumer_of(w->o->format), set->pair[i].i_param, plain.pair[i].layout, &why) != CDR_SERVE_REFUSED;
        if (w->in[i]) w->of[set->pair[i].i_param] = &set->pair[i];
    }
    cdr_lora_serve s;
    CDR_TRY(cdr_lora_serve_set(&plain, w->m, consumer_of(w->o->format), &s, err));
    w->p->rep.dropped = s.dropped;
    (void)snprintf(w->p->rep.dropped_what, sizeof w->p->rep.dropped_what, "%s", s.what);
    if (s.dropped > 0 && !w->o->allow_drop)
        CDR_FAIL_ID(err, CDR_EUSER, "adapter.drop",
                    "--format %s: %s would drop %lld of %lld keys: %s. Leave them out of lora.targets, merge the adapter, or say --allow-drop",
                    w->o->format, consumer_of(w->o->format), (long long)s.dropped, (long long)s.keys, s.what);
    return CDR_OK;
}

/* The value that most pairs have; ties: the first. */
static double most_common(const work *w, double (*value)(const cdr_lora_pair *))
{
    double best = 0;
    int most = 0;
    for (int i = 0; i < w->o->set->n; i++) {
        int n = 0;
        double x = value(&w->o->set->pair[i]);
        if (!w->in[i] || x == best) continue;
        for (int k = i; k < w->o->set->n; k++) n += w->in[k] && value(&w->o->set->pair[k]) == x;
        if (n > most) most = n, best = x;
    }
    return best;
}
static double scale_of(const cdr_lora_pair *p) { return (double)p->scale; }
static double alpha_of(const cdr_lora_pair *p) { return cdr__lora_alpha(p->scale, p->rank); }

static cdr_status choose_rank(work *w, cdr_err *err)
{
    static const int32_t vllm[] = { 1, 8, 16, 32, 64, 128, 256, 320, 512 };
    bool uniform = is(w, "sglang") || is(w, "vllm");
    int32_t top = 0;
    for (int i = 0; i < w->o->set->n; i++) if (w->in[i]) top = CDR_MAX(top, w->o->set->pair[i].rank);
    if (w->o->rank > 0 && w->o->rank < top)
        CDR_FAIL_ID(err, CDR_EUSER, "adapter.rank", "--rank %d: a module has rank %d; ranks are padded, never cut", w->o->rank, top);
    if (is(w, "gguf") && w->o->rank > 0) top = w->o->rank;
    w->rank = w->o->rank > 0 ? w->o->rank : uniform ? top : 0;
    if (!is(w, "vllm")) return CDR_OK;
    int k = 0;
    while (k < CDR_COUNT(vllm) && vllm[k] < w->rank) k++;
    if (k == CDR_COUNT(vllm) || (w->o->rank > 0 && vllm[k] != w->rank))
        CDR_FAIL_ID(err, CDR_EUSER, "adapter.rank", "--format vllm: rank %d is none that vLLM takes: 1, 8, 16, 32, 64, 128, 256, 320, 512", w->rank);
    w->rank = vllm[k];
    return CDR_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------------------------------- */

/* Without .weight, of expert e; e < 0: without the index. */
static const char *module_name(const work *w, const char *name, int64_t e)
{
    size_t n = strlen(name);
    const char *s = n > 7 && strcmp(name + n - 7, ".weight") == 0 ? cdr_pool_strndup(w->pool, name, n - 7) : name, *mark = strstr(s, "{expert}.");
    if (!mark) return s;
    return e >= 0 ? cdr_pool_printf(w->pool, "%.*s%lld.%s", (int)(mark - s), s, (long long)e, mark + 9) : cdr_pool_printf(w->pool, "%.*s%s", (int)(mark - s), s,
        mark + 9);
}

/* The module in transformers' class. */
static const char *class_name(const work *w, int64_t i_param)
{
    const char *s = cdr__lora_module(w->names, i_param), *at = strstr(s, ".self_attn.f_");
    if (!at || strcmp(cdr_model_get_info(w->m)->family, "kimi_linear") != 0) return s;
    return cdr_pool_printf(w->pool, "%.*s.self_attn.forget_gate%s", (int)(at - s), s, at + strlen(".self_attn"));
}

static cdr__lora_tensor *add(work *w, const char *module, char half, cdr_lora_layout layout, const cdr_lora_pair *p)
{
    cdr__lora_tensor *t = CDR_PUSH(w->pool, w->p->t, w->p->n, w->p->cap);
    *t = (cdr__lora_tensor){ .name = cdr_pool_printf(w->pool, "base_model.model.%s.lora_%c.weight", module, half), .layout = layout, .half = half, .p = p, .fold = 1,
                             .fold2 = 1,
                             .rank = w->rank > 0 ? w->rank : p ? p->rank : 0, .experts = p ? p->experts : 0, .N = p ? p->N : 0 };
    if (p && half == 'B' && w->scale > 0) t->fold = p->scale / w->scale;
    return t;
}

static void add_matrix(work *w, const char *module, const cdr_lora_pair *p, cdr_lora_layout layout, int64_t e)
{
    for (int k = 0; k < 2; k++) {
        cdr__lora_tensor *t = add(w, module, k == 0 ? 'A' : 'B', layout, p);
        t->n_dim = 2;
        t->n[0] = k == 0 ? t->rank : p->N;
        t->n[1] = k == 0 ? p->K : t->rank;
        t->expert = e;
    }
}

/* [n, r, K] and [n, N, r]; n: 1 where the factor is shared and stays so. zero_of: the shapes of a pair that is not there. */
static void add_stack(work *w, const char *module, const cdr_lora_pair *p, const cdr_lora_pair *zero_of, bool one_a, bool one_b)
{
    const cdr_lora_pair *like = p ? p : zero_of;
    for (int k = 0; k < 2; k++) {
        cdr__lora_tensor *t = add(w, module, k == 0 ? 'A' : 'B', CDR_LORA_STACK, p);
        t->n_dim = 3;
        t->n[0] = (k == 0 ? one_a : one_b) ? 1 : like->experts;
        t->n[1] = k == 0 ? t->rank : like->N;
        t->n[2] = k == 0 ? like->K : t->rank;
    }
}

static const cdr_lora_pair *pair_of(const work *w, int64_t i_param) { return i_param >= 0 ? w->of[i_param] : NULL; }

static void note_padding(work *w, const cdr_lora_pair *p)
{
    w->p->rep.padded += w->rank > p->rank;
    w->p->rep.folded += w->scale > 0 && p->scale != w->scale;
}

/* ---- sglang ---------------------------------------------------------------------------------------------------------------------------- */

/* Every stack of the set has its outer factors shared: gate and up A, down B. */
static bool shared_outer(const work *w)
{
    bool any = false;
    for (int i = 0; i < w->o->set->n; i++) {
        const cdr_lora_pair *p = &w->o->set->pair[i];
        if (!w->in[i] || p->experts == 0) continue;
        bool down = cdr__lora_role(w->m, p->i_param) == CDR__ROLE_DOWN;
        if ((down ? p->n_b : p->n_a) != 1) return false;
        any = true;
    }
    return any;
}

static void sglang_stack(work *w, int64_t i_param, const cdr_lora_pair *p, const cdr_lora_pair *zero_of, bool shared)
{
    static const char *const leaf[] = { "w1", "w3", "w2" };
    cdr__role role = cdr__lora_role(w->m, i_param);
    const char *s = module_name(w, cdr_model_param(w->m, i_param), -1);
    const char *module = role == CDR__ROLE_NONE ? s : cdr_pool_printf(w->pool, "%.*s.%s", (int)(strrchr(s, '.') - s), s, leaf[role]);
    add_stack(w, module, p, zero_of, shared && role != CDR__ROLE_DOWN, shared && role == CDR__ROLE_DOWN);
}

static void sglang_sibling(work *w, const cdr_lora_pair *p)
{
    static const char *const fused[][2] = { { "gate_proj", "up_proj" }, { "q_a_proj", "kv_a_proj_with_mqa" } };
    const char *dot = strrchr(cdr__lora_module(w->names, p->i_param), '.');
    for (int i = 0; i < CDR_COUNT(fused) && dot; i++)
        for (int k = 0; k < 2; k++) {
            if (strcmp(dot + 1, fused[i][k]) != 0) continue;
            int64_t other = cdr__lora_linear(w->names, p->i_param, fused[i][1 - k]), E, N, K;
            if (other < 0 || pair_of(w, other) || !cdr__lora_shape(w->m, other, &E, &N, &K) || E > 0) continue;
            cdr_lora_pair *zero = cdr_pool_alloc(w->pool, sizeof *zero);
            *zero = (cdr_lora_pair){ .i_param = other, .rank = p->rank, .scale = w->scale, .N = N, .K = K, .n_a = 1, .n_b = 1 };
            add_matrix(w, module_name(w, cdr_model_param(w->m, other), -1), zero, CDR_LORA_MATRIX, 0);
            w->p->rep.filled += 2;
        }
}

static void plan_sglang(work *w)
{
    bool shared = shared_outer(w);
    for (int i = 0; i < w->o->set->n; i++) {
        const cdr_lora_pair *p = &w->o->set->pair[i];
        if (!w->in[i]) continue;
        note_padding(w, p);
        if (p->experts == 0) {
            add_matrix(w, module_name(w, cdr_model_param(w->m, p->i_param), -1), p, CDR_LORA_MATRIX, 0);
            sglang_sibling(w, p);
            continue;
        }
        sglang_stack(w, p->i_param, p, NULL, shared);
        cdr__role role = cdr__lora_role(w->m, p->i_param), other = role == CDR__ROLE_GATE ? CDR__ROLE_UP : CDR__ROLE_GATE;
        int64_t sibling = role == CDR__ROLE_DOWN || role == CDR__ROLE_NONE ? -1 : cdr__lora_sibling(w->names, p->i_param, other);
        if (sibling < 0 || pair_of(w, sibling)) continue;
        sglang_stack(w, sibling, NULL, p, shared);
        w->p->rep.filled += 2;
    }
}

/* ---- peft, vllm, gguf ------------------------------------------------------------------------------------------------------------------- */

static void plan_plain(work *w)
{
    for (int i = 0; i < w->o->set->n; i++) {
        const cdr_lora_pair *p = &w->o->set->pair[i];
        if (!w->in[i]) continue;
        note_padding(w, p);
        for (int64_t e = 0; e < CDR_MAX(p->experts, (int64_t)1); e++)
            add_matrix(w, module_name(w, cdr_model_param(w->m, p->i_param), e), p, p->experts > 0 ? CDR_LORA_EXPERTS : CDR_LORA_MATRIX, e);
    }
}

static cdr_status plan_gguf(work *w, cdr_err *err)
{
    double alpha = most_common(w, alpha_of);
    w->p->alpha = alpha;
    for (int i = 0; i < w->o->set->n; i++) {
        const cdr_lora_pair *p = &w->o->set->pair[i];
        if (!w->in[i]) continue;
        const char *base = cdr__lora_gguf_name(w->m, w->names, p->i_param, w->pool);
        if (!base) CDR_FAIL_ID(err, CDR_EUSER, "adapter.gguf-name", "--format gguf: llama.cpp has no name that is known for %s", cdr_model_param(w->m, p->i_param));
        int64_t from = w->p->n;
        if (p->experts > 0) add_stack(w, base, p, NULL, false, false);
        else add_matrix(w, base, p, CDR_LORA_MATRIX, 0);
        int32_t r = w->p->t[from].rank;
        float fold = (float)((double)p->scale * r / alpha);
        for (int k = 0; k < 2; k++) w->p->t[from + k].name = cdr_pool_printf(w->pool, "%s.lora_%c", base, k == 0 ? 'a' : 'b');
        w->p->t[from + 1].fold = fold;
        w->p->rep.folded += fold != 1;
        w->p->rep.padded += r > p->rank;
    }
    return CDR_OK;
}

/* ---- peft-stacked ------------------------------------------------------------------------------------------------------------------------ */

static bool same_a(const cdr_lora_pair *x, const cdr_lora_pair *y)
{
    if (x->rank != y->rank || x->K != y->K || x->n_a != y->n_a) return false;
    return x->a == y->a || memcmp(x->a, y->a, sizeof *x->a * (size_t)(x->n_a * x->rank * x->K)) == 0;
}

/* One wrapper: of down alone, or of gate and up. scale: of the whole wrapper. */
static void add_wrapper(work *w, const char *module, const cdr_lora_pair *p, const cdr_lora_pair *p2, bool wide)
{
    const cdr_lora_pair *like = p ? p : p2;
    bool share = p && p2 && same_a(p, p2);
    int32_t from = share || !p ? 0 : p->rank, rank = share || !p2 ? (p ? p->rank : p2->rank) : from + p2->rank;
    float scale = like->scale;
    rank = CDR_MAX(rank, w->rank);
    for (int k = 0; k < 2; k++) {
        cdr__lora_tensor *t = add(w, module, k == 0 ? 'A' : 'B', CDR_LORA_FUSED, p);
        t->p2 = p2;
        t->wide = wide;
        t->experts = like->experts;
        t->N = like->N;
        t->rank = rank;
        t->from = from;
        t->n_dim = 2;
        t->n[0] = k == 0 ? rank * like->experts : (wide ? 2 : 1) * like->N;
        t->n[1] = k == 0 ? like->K : rank * like->experts;
        t->fold = p ? p->scale / scale : 1;
        t->fold2 = p2 ? p2->scale / scale : 1;
    }
    w->p->rep.folded += p && p2 && p->scale != p2->scale;
}

/* The wrappers of a layer, once: at its first stack in the set. */
static void stacked_layer(work *w, const cdr_lora_pair *first)
{
    const cdr_lora_pair *of[3];
    for (int r = 0; r < 3; r++) of[r] = pair_of(w, cdr__lora_sibling(w->names, first->i_param, (cdr__role)r));
    for (int r = 0; r < 3; r++) if (of[r] && of[r] < first) return;
    const char *s = class_name(w, first->i_param), *experts = cdr_pool_strndup(w->pool, s, (size_t)(strstr(s, ".{expert}") - s));
    if (of[CDR__ROLE_GATE] || of[CDR__ROLE_UP])
        add_wrapper(w, of[CDR__ROLE_DOWN] ? cdr_pool_printf(w->pool, "%s.base_layer", experts) : experts, of[CDR__ROLE_GATE], of[CDR__ROLE_UP], true);
    if (of[CDR__ROLE_DOWN]) add_wrapper(w, experts, of[CDR__ROLE_DOWN], NULL, false);
}

/* target_parameters: by their ends where every layer with routed experts has them, else by their whole names: a wrapper that PEFT makes and the
 * file does not fill is a missing key. */
static void stacked_parameters(work *w, bool down, bool wide)
{
    cdr__lora_config *c = &w->p->config;
    bool all[2] = { true, true };                               /* gate and up, down */
    int64_t n = cdr_model_params(w->m);
    c->parameter = cdr_pool_alloc(w->pool, sizeof *c->parameter * (size_t)(w->p->n + 2));
    for (int64_t i = 0; i < n; i++) {
        cdr__role role = cdr_model_param_part(w->m, i).top_k > 0 ? cdr__lora_role(w->m, i) : CDR__ROLE_NONE;
        if (role == CDR__ROLE_DOWN) all[1] = all[1] && pair_of(w, i);
        if (role == CDR__ROLE_GATE) all[0] = all[0] && (pair_of(w, i) || pair_of(w, cdr__lora_sibling(w->names, i, CDR__ROLE_UP)));
    }
    if (down && all[1]) c->parameter[c->n_parameter++] = "mlp.experts.down_proj";
    if (wide && all[0]) c->parameter[c->n_parameter++] = "mlp.experts.gate_up_proj";
    for (int64_t i = 0; i < w->p->n; i += 2) {
        const cdr__lora_tensor *t = &w->p->t[i];
        if (t->layout != CDR_LORA_FUSED || all[t->wide ? 0 : 1]) continue;
        const char *s = class_name(w, t->p ? t->p->i_param : t->p2->i_param);
        c->parameter[c->n_parameter++] = cdr_pool_printf(w->pool, "%.*s.%s", (int)(strstr(s, ".{expert}") - s), s, t->wide ? "gate_up_proj" : "down_proj");
    }
    qsort(c->parameter, (size_t)c->n_parameter, sizeof *c->parameter, by_text);
}

static cdr_status plan_stacked(work *w, cdr_err *err)
{
    bool down = false, wide = false;
    if (!cdr__lora_is_fused(w->m))
        CDR_FAIL_ID(err, CDR_EUSER, "adapter.not-fused",
                    "--format peft-stacked: no class of transformers keeps the routed experts of %s in one parameter, so target_parameters "
                    "would name nothing. Take --format peft", cdr_model_get_info(w->m)->family);
    for (int i = 0; i < w->o->set->n; i++) {
        const cdr_lora_pair *p = &w->o->set->pair[i];
        if (!w->in[i] || p->experts == 0) continue;
        if (cdr__lora_role(w->m, p->i_param) == CDR__ROLE_DOWN) down = true;
        else wide = true;
    }
    for (int i = 0; i < w->o->set->n; i++) {
        const cdr_lora_pair *p = &w->o->set->pair[i];
        if (!w->in[i]) continue;
        note_padding(w, p);
        if (p->experts == 0) add_matrix(w, class_name(w, p->i_param), p, CDR_LORA_MATRIX, 0);
        else stacked_layer(w, p);
    }
    stacked_parameters(w, down, wide);
    return CDR_OK;
}

/* ---- configuration ------------------------------------------------------------------------------------------------------------------------ */

/* Behind the last dot but parts - 1. */
static const char *tail_of(const char *s, int parts)
{
    const char *at = s + strlen(s);
    while (at > s && (at[-1] != '.' || --parts > 0)) at--;
    return at;
}

/* Does the adapter have every linear and stack of the model whose name ends so? */
static bool covers(const work *w, const char *tail, int parts)
{
    for (int64_t i = 0; i < cdr_model_params(w->m); i++) {
        const char *module = cdr__lora_module(w->names, i);
        if (module && strcmp(tail_of(module, parts), tail) == 0 && !pair_of(w, i)) return false;
    }
    return true;
}

static bool listed(const cdr__lora_config *c, const char *s)
{
    for (int64_t i = 0; i < c->n_target; i++) if (strcmp(c->target[i], s) == 0) return true;
    return false;
}

/* The shortest names that mean these modules and no other: a leaf, two parts, the whole name. sglang and vllm go by leaf. */
static void plan_targets(work *w)
{
    cdr__lora_config *c = &w->p->config;
    c->target = cdr_pool_alloc(w->pool, sizeof *c->target * (size_t)(2 * w->o->set->n + 4));
    for (int i = 0; i < w->o->set->n; i++) {
        const cdr_lora_pair *p = &w->o->set->pair[i];
        const char *module = cdr__lora_module(w->names, p->i_param), *leaf = tail_of(module, 1), *two = tail_of(module, 2);
        if (!w->in[i] || (p->experts > 0 && is(w, "peft-stacked"))) continue;
        static const char *const stack[] = { "gate_proj", "up_proj", "down_proj" };
        cdr__role role = cdr__lora_role(w->m, p->i_param);
        const char *s = covers(w, leaf, 1) || is(w, "sglang") || is(w, "vllm") || p->experts > 0 ? leaf
                        : covers(w, two, 2) ? two : is(w, "peft-stacked") ? class_name(w, p->i_param) : module_name(w, cdr_model_param(w->m, p->i_param), -1);
        if (p->experts > 0 && is(w, "sglang") && role != CDR__ROLE_NONE) s = stack[role];
        if (!listed(c, s)) c->target[c->n_target++] = s;
    }
    for (int64_t i = 0; is(w, "sglang") && i < w->p->n; i++) {      /* siblings of zeros */
        const char *s = w->p->t[i].name, *end = strstr(s, ".lora_"), *leaf = end;
        while (leaf > s && leaf[-1] != '.') leaf--;
        leaf = cdr_pool_strndup(w->pool, leaf, (size_t)(end - leaf));
        if (w->p->t[i].layout == CDR_LORA_MATRIX && !listed(c, leaf) && c->n_target < 2 * w->o->set->n + 3) c->target[c->n_target++] = leaf;
    }
    qsort(c->target, (size_t)c->n_target, sizeof *c->target, by_text);
}

/* A pattern for module names: from behind the layer's number on where `kind`, dots escaped, any index for an expert's. */
static const char *pattern_of(const work *w, const char *module, bool kind)
{
    const char *at = strstr(module, "layers."), *s = module;
    if (kind && at) s = strchr(at + 7, '.') ? strchr(at + 7, '.') + 1 : module;
    cdr_text t = { 0 };
    for (; *s; s++) {
        if (strncmp(s, "{expert}", 8) == 0) {
            cdr_text_printf(&t, "\\d+");
            s += 7;
        } else if (*s == '.') cdr_text_printf(&t, "\\.");
        else cdr_text_append(&t, s, 1);
    }
    const char *out = cdr_pool_strndup(w->pool, t.s ? t.s : "", t.n);
    cdr_text_free(&t);
    return out;
}

typedef struct { const char *kind, *whole; double rank, alpha; } module_fit;

static void push_pattern(work *w, cdr__lora_pattern **p, int *n, const char *pattern, double value)
{
    for (int i = 0; i < *n; i++) if (strcmp((*p)[i].pattern, pattern) == 0) return;
    if (!*p) *p = cdr_pool_alloc(w->pool, sizeof **p * (size_t)(w->o->set->n + 2));
    (*p)[(*n)++] = (cdr__lora_pattern){ pattern, value };
}

/* rank_pattern and alpha_pattern for modules that differ from r and lora_alpha: one for a kind whose modules agree, else one each. */
static void plan_patterns(work *w, const module_fit *f, int n)
{
    cdr__lora_config *c = &w->p->config;
    for (int i = 0; i < n; i++) {
        bool agree = true;
        for (int k = 0; k < n && agree; k++) agree = strcmp(f[k].kind, f[i].kind) != 0 || (f[k].rank == f[i].rank && f[k].alpha == f[i].alpha);
        const char *pattern = agree ? f[i].kind : f[i].whole;
        if (f[i].rank != c->r) push_pattern(w, &c->rank, &c->n_rank, pattern, f[i].rank);
        if (f[i].alpha != c->alpha) push_pattern(w, &c->alphas, &c->n_alphas, pattern, f[i].alpha);
    }
}

/* Modules of the file with the rank and alpha that each needs. */
static int module_fits(work *w, module_fit *f)
{
    int n = 0;
    for (int64_t i = 0; i + 1 < w->p->n; i += 2) {                 /* A and B of a module follow each other */
        const cdr__lora_tensor *t = &w->p->t[i];
        const cdr_lora_pair *p = t->p ? t->p : t->p2;
        if (t->layout == CDR_LORA_EXPERTS && t->expert > 0) continue;
        const char *module = t->layout == CDR_LORA_MATRIX || t->layout == CDR_LORA_EXPERTS ? is(w, "peft-stacked") ? class_name(w, p->i_param)
                                                                                                                  : cdr__lora_module(w->names, p->i_param) : NULL;
        if (!module) {
            const char *s = class_name(w, p->i_param);
            module = cdr_pool_printf(w->pool, "%.*s.%s", (int)(strstr(s, ".{expert}") - s), s, t->wide ? "gate_up_proj" : "down_proj");
        } else if (is(w, "peft")) {
            const char *own = cdr_model_param(w->m, p->i_param);
            module = cdr_pool_strndup(w->pool, own, strlen(own) - strlen(".weight"));
        }
        f[n++] = (module_fit){ pattern_of(w, module, true), pattern_of(w, module, false), t->rank, cdr__lora_alpha(p->scale, t->rank) };
    }
    return n;
}

static void plan_config(work *w)
{
    cdr__lora_config *c = &w->p->config;
    c->base = w->o->base_name ? w->o->base_name : w->o->set->base;
    plan_targets(w);
    if (is(w, "sglang") || is(w, "vllm")) {
        c->r = w->rank;
        c->alpha = cdr__lora_alpha(w->scale, w->rank);
        return;
    }
    module_fit *f = cdr_pool_alloc(w->pool, sizeof *f * (size_t)(w->p->n + 1));
    int n = module_fits(w, f);
    int most_r = 0, most_a = 0;
    for (int i = 0; i < n; i++) {
        int same_r = 0, same_alpha = 0;
        for (int k = 0; k < n; k++) {
            same_r += f[k].rank == f[i].rank;
            same_alpha += f[k].alpha == f[i].alpha;
        }
        if (same_r > most_r) most_r = same_r, c->r = f[i].rank;
        if (same_alpha > most_a) most_a = same_alpha, c->alpha = f[i].alpha;
    }
    plan_patterns(w, f, n);
}

cdr_status cdr__lora_plan_make(const cdr_lora_out *o, cdr_pool *pool, cdr__lora_plan *p, cdr_err *err)
{
    work w = { .o = o, .m = o->model, .pool = pool, .p = p };
    int n;
    const char *const *formats = cdr_lora_formats(&n);
    bool known = false;
    memset(p, 0, sizeof *p);
    for (int i = 0; i < n; i++) known = known || strcmp(formats[i], o->format) == 0;
    if (!known) CDR_FAIL_ID(err, CDR_EUSAGE, "adapter.format", "--format %s: is none of peft, peft-stacked, sglang, vllm, gguf; of weights: hf", o->format);
    CDR_TRY(cdr__lora_names_make(o->model, pool, &w.names, err));
    if (strcmp(o->format, "gguf") == 0 && !cdr__lora_gguf_arch(o->model))
        CDR_FAIL_ID(err, CDR_EUSER, "adapter.gguf-arch", "--format gguf: llama.cpp has no architecture for %s", cdr_model_get_info(o->model)->family);
    CDR_TRY(choose(&w, err));
    CDR_TRY(choose_rank(&w, err));
    if (is(&w, "sglang") || is(&w, "vllm")) w.scale = (float)most_common(&w, scale_of);
    if (is(&w, "sglang")) plan_sglang(&w);
    else if (is(&w, "gguf")) CDR_TRY(plan_gguf(&w, err));
    else if (is(&w, "peft-stacked")) CDR_TRY(plan_stacked(&w, err));
    else plan_plain(&w);
    if (p->n == 0) CDR_FAIL_ID(err, CDR_EUSER, "adapter.empty", "--format %s: no key is left that %s would take", o->format, consumer_of(o->format));
    p->rep.tensors = p->n;
    p->rep.rank = is(&w, "sglang") || is(&w, "vllm") ? w.rank : w.o->rank > 0 ? w.o->rank : 0;
    if (!is(&w, "gguf")) plan_config(&w);
    return CDR_OK;
}
