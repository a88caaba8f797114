/* lora.c: the lora section of a recipe as adapters: which matrices, of what rank and scale; the table that says so.
 *
 *   scale = alpha / rank, rslora: alpha / sqrt(rank)                                                                  (1)
 *   routed experts: rank of lora.expert_rank (auto: max(1, rank // top_k)), and alpha_e = alpha / rank x their rank     (2)
 *   shared_outer: A of gate and up, B of down are one matrix for all experts of a layer                                (3)
 * rank_pattern and alpha_pattern name modules as targets do, the first match wins; a pattern's alpha or rank leaves the other as it is
 * (PEFT). Targets are linears: not embeddings, heads, norms, routers, convolutions; routed experts go by lora.experts. Every parameter
 * of the base is frozen. Source: spec/interface.md, 3.3, 4.2, 7.1; (1) arXiv 2106.09685, 4.1, and arXiv 2312.03732.
 */
#include "train/adapter.h"
#include "train/patterns.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    cdr_session *s;
    int64_t n;                    /* parameters of the model */
    bool *linear, *expert;        /* by parameter: may take an adapter; a stack of routed experts */
    bool *in;                     /* gets one */
    int64_t n_linear;
} work;

static const char *at(const cdr_session *s, const char *key) { return cdr__recipe_at(&s->r, cdr_recipe_key(key)); }

static bool given(const cdr_session *s, const char *key)
{
    uint8_t from = s->r.origin[cdr_recipe_key(key)].from;
    return from == CDR_FROM_FILE || from == CDR_FROM_SET;
}

static bool indexers_train(const cdr_session *s) { return s->r.train.indexer == CDR_TRAIN_INDEXER_TRAIN; }

static bool *flags(const work *w) { return cdr_pool_alloc(w->s->pool, (size_t)w->n + 1); }

static void find_linears(work *w)
{
    w->linear = flags(w);
    w->expert = flags(w);
    w->in = flags(w);
    for (int64_t i = 0; i < w->n; i++) {
        w->linear[i] = cdr_model_in_group(w->s->model, i, "all_linear") && (indexers_train(w->s) || !cdr_model_in_group(w->s->model, i, "indexer"));
        w->expert[i] = cdr_model_in_group(w->s->model, i, "experts");
        w->n_linear += w->linear[i];
    }
}

/* ---- messages ------------------------------------------------------------------------------------------------------------- */

/* " Nearest: q_proj (69), o_proj (93); groups: attention, dense_mlp": leaf names of linears with their numbers. */
static const char *nearest(const work *w, const char *pattern)
{
    const cdr_session *s = w->s;
    cdr_pool *pool = s->pool;
    const char **name = cdr_pool_alloc(pool, sizeof *name * (size_t)(w->n + 1)), *dot = strrchr(pattern, '.');
    int64_t *count = cdr_pool_alloc(pool, sizeof *count * (size_t)(w->n + 1));
    int n = 0, n_groups, best[3];
    for (int64_t i = 0; i < w->n; i++) {
        if (!w->linear[i]) continue;
        const char *leaf = cdr__leaf(pool, cdr_model_param(s->model, i));
        int k = 0;
        while (k < n && strcmp(name[k], leaf) != 0) k++;
        if (k == n) name[n++] = leaf;
        count[k]++;
    }
    cdr_text t = { 0 };
    int n_best = cdr_nearest_of(dot && dot[1] ? dot + 1 : pattern, name, n, best);
    for (int i = 0; i < n_best; i++) cdr_text_printf(&t, "%s%s (%lld)", i ? ", " : " Nearest: ", name[best[i]], (long long)count[best[i]]);
    const char *const *group = cdr_model_groups(&n_groups);
    bool any = false;
    for (int k = 0; k < n_groups; k++) {
        bool has = false;
        for (int64_t i = 0; i < w->n && !has; i++) has = w->linear[i] && cdr_model_in_group(s->model, i, group[k]);
        if (has) cdr_text_printf(&t, "%s%s", any ? ", " : n_best ? "; groups: " : " Groups: ", group[k]);
        any = any || has;
    }
    const char *out = cdr_pool_strndup(pool, t.s ? t.s : "", t.n);
    cdr_text_free(&t);
    return out;
}

/* A pattern that names something, but no linear: what it names, and why not. */
static cdr_status refuse(const work *w, const char *key, const char *pattern, const bool *hit, cdr_err *err)
{
    const cdr_session *s = w->s;
    bool experts = true, indexers = true;
    int64_t first = -1;
    for (int64_t i = 0; i < w->n; i++) {
        if (!hit[i]) continue;
        if (first < 0) first = i;
        experts = experts && w->expert[i];
        indexers = indexers && cdr_model_in_group(s->model, i, "indexer");
    }
    if (experts)
        CDR_FAIL_ID(err, CDR_EUSER, "lora.bad-target", "%s: %s \"%s\" names routed experts, which have a key of their own. Set lora.experts=per_expert or shared_outer",
                    at(s, key), key, pattern);
    if (indexers)
        CDR_FAIL_ID(err, CDR_EUSER, "lora.bad-target", "%s: %s \"%s\" names indexers, which train.indexer=frozen holds still: no loss would train them. Set "
                    "train.indexer=train, or leave them out", at(s, key), key, pattern);
    CDR_FAIL_ID(err, CDR_EUSER, "lora.bad-target", "%s: %s \"%s\" names %s; adapters are of linears, not of embeddings, heads, norms, routers or convolutions.%s",
                at(s, key), key, pattern, cdr_model_param(s->model, first), nearest(w, ""));
}

static cdr_status no_match(const work *w, const char *key, const char *pattern, cdr_err *err)
{
    char n[32];
    cdr_format_count(n, w->n_linear);
    CDR_FAIL_ID(err, CDR_EUSER, "lora.no-match", "%s: %s \"%s\" matches none of %s linears.%s", at(w->s, key), key, pattern, n, nearest(w, pattern));
}

/* ---- which -------------------------------------------------------------------------------------------------------------------- */

/* hit: parameters that the pattern names; an error where none of them is among `of`. */
static cdr_status match(const work *w, const char *key, const char *pattern, const bool *of, const bool *or_of, bool *hit, cdr_err *err)
{
    int64_t n, usable = 0;
    memset(hit, 0, (size_t)w->n);
    CDR_TRY(cdr__pattern_mark(w->s, pattern, key, hit, &n, err));
    for (int64_t i = 0; i < w->n; i++) usable += hit[i] && (of[i] || (or_of && or_of[i]));
    if (n == 0) return no_match(w, key, pattern, err);
    return usable == 0 ? refuse(w, key, pattern, hit, err) : CDR_OK;
}

/* The default's groups are those that the model has; what a recipe names must be there. */
static cdr_status resolve_targets(work *w, cdr_err *err)
{
    cdr_session *s = w->s;
    const cdr_strings *t = &s->r.lora.targets;
    if (given(s, "lora.targets")) return CDR_OK;
    cdr_text left = { 0 }, gone = { 0 };
    int n_left = 0, n_gone = 0;
    for (int k = 0; k < t->n; k++) {
        bool has = false;
        for (int64_t i = 0; i < w->n && !has; i++) has = w->linear[i] && cdr_model_in_group(s->model, i, t->s[k]);
        if (has) cdr_text_printf(&left, "%s%s", n_left++ ? ", " : "", t->s[k]);
        else cdr_text_printf(&gone, "%s%s", n_gone++ ? ", " : "", t->s[k]);
    }
    cdr_status st = CDR_OK;
    if (n_gone > 0)
        st = cdr_recipe_derive(&s->r, "lora.targets", cdr_pool_printf(s->pool, "[%s]", left.s ? left.s : ""),
                               cdr_pool_printf(s->pool, "%s has no %s", s->info->name, gone.s), err);
    cdr_text_free(&left);
    cdr_text_free(&gone);
    return st;
}

static cdr_status choose(work *w, cdr_err *err)
{
    cdr_session *s = w->s;
    bool *hit = flags(w), *layer = cdr_pool_alloc(s->pool, (size_t)cdr_model_stack(s->model) + 1), experts = s->r.lora.experts != CDR_LORA_EXPERTS_NONE;
    int64_t n = 0, before = 0;
    CDR_TRY(resolve_targets(w, err));
    for (int k = 0; k < s->r.lora.targets.n; k++) {
        CDR_TRY(match(w, "lora.targets", s->r.lora.targets.s[k], w->linear, NULL, hit, err));
        for (int64_t i = 0; i < w->n; i++) w->in[i] = w->in[i] || (hit[i] && w->linear[i]);
    }
    for (int64_t i = 0; i < w->n; i++) {
        w->in[i] = w->in[i] || (experts && w->expert[i]);
        before += w->in[i];
        n += w->expert[i];
    }
    if (experts && n == 0) CDR_FAIL_ID(err, CDR_EUSER, "lora.bad-target", "%s: lora.experts is %s, but %s has no routed experts. Set it to none", at(s, "lora.experts"),
                                       s->r.lora.experts == CDR_LORA_PER_EXPERT ? "per_expert" : "shared_outer", s->info->name);
    for (int k = 0; k < s->r.lora.exclude.n; k++) {
        CDR_TRY(match(w, "lora.exclude", s->r.lora.exclude.s[k], w->linear, w->expert, hit, err));
        for (int64_t i = 0; i < w->n; i++) w->in[i] = w->in[i] && !hit[i];
    }
    if (!cdr__layer_set(s->r.lora.layers, cdr_model_stack(s->model), layer))
        CDR_FAIL_ID(err, CDR_EUSER, "lora.layers", "%s: lora.layers \"%s\" is no layer set of %d layers: all, 3, 0-7, 0-3,8,last or every 4 from 3", at(s, "lora.layers"),
                    s->r.lora.layers, cdr_model_stack(s->model));
    n = 0;
    for (int64_t i = 0; i < w->n; i++) {
        int l = cdr_model_param_part(s->model, i).layer;
        w->in[i] = w->in[i] && l >= 0 && layer[l];
        n += w->in[i];
    }
    if (n == 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.nothing-trains", "%s: no adapter is left: lora.targets and lora.experts name %lld matrices, and lora.exclude and "
                    "lora.layers \"%s\" leave none of them", at(s, "lora.targets"), (long long)before, s->r.lora.layers);
    return CDR_OK;
}

/* ---- how large ---------------------------------------------------------------------------------------------------------------- */

/* value[i]: of the first pattern that matches parameter i; NAN: none does. */
static cdr_status by_pattern(const work *w, const char *key, const cdr_pairs *p, double *value, cdr_err *err)
{
    bool *hit = flags(w);
    for (int64_t i = 0; i < w->n; i++) value[i] = NAN;
    for (int k = 0; k < p->n; k++) {
        char *end;
        double x = strtod(p->p[k].text, &end);
        bool rank = strcmp(key, "lora.rank_pattern") == 0, ok = *p->p[k].text && !*end && isfinite(x) && x > 0 && (!rank || (x == floor(x) && x <= 512));
        if (!ok) CDR_FAIL_ID(err, CDR_EUSER, "config.bad-value", "%s: %s of \"%s\" is \"%s\"; it takes %s", at(w->s, key), key, p->p[k].name, p->p[k].text,
                             rank ? "an integer from 1 to 512" : "a number above 0");
        CDR_TRY(match(w, key, p->p[k].name, w->linear, w->expert, hit, err));
        for (int64_t i = 0; i < w->n; i++) if (hit[i] && isnan(value[i])) value[i] = x;
    }
    return CDR_OK;
}

static cdr_status resolve_expert_rank(cdr_session *s, cdr_err *err)
{
    int64_t k = CDR_MAX(s->info->moe.top_k, 1), r = CDR_MAX((int64_t)1, s->r.lora.rank / k);
    if (s->r.lora.experts == CDR_LORA_EXPERTS_NONE || s->r.lora.expert_rank != CDR_AUTO) return CDR_OK;
    return cdr_recipe_derive(&s->r, "lora.expert_rank", cdr_pool_printf(s->pool, "%lld", (long long)r),
                             cdr_pool_printf(s->pool, "max(1, rank %lld // top_k %lld)", (long long)s->r.lora.rank, (long long)k), err);
}

/* (3) */
static int32_t form_of(const work *w, int64_t i)
{
    if (!w->expert[i] || w->s->r.lora.experts != CDR_LORA_SHARED_OUTER) return CDR_ADAPTER_EACH;
    return strcmp(cdr_model_param_part(w->s->model, i).part, "expert.down") == 0 ? CDR_ADAPTER_SHARED_B : CDR_ADAPTER_SHARED_A;
}

cdr_status cdr__session_lora(cdr_session *s, cdr_compile_opts *o, cdr_err *err)
{
    work w = { .s = s, .n = cdr_model_params(s->model) };
    size_t n = (size_t)w.n + 1;
    bool *still = flags(&w);
    find_linears(&w);
    CDR_TRY(cdr__patterns_mark(s, &s->r.train.freeze, "train.freeze", still, err));       /* all is frozen; a pattern is no typing error all the same */
    CDR_TRY(choose(&w, err));
    CDR_TRY(resolve_expert_rank(s, err));
    double *rank = cdr_pool_alloc(s->pool, sizeof *rank * n), *alpha = cdr_pool_alloc(s->pool, sizeof *alpha * n);
    CDR_TRY(by_pattern(&w, "lora.rank_pattern", &s->r.lora.rank_pattern, rank, err));
    CDR_TRY(by_pattern(&w, "lora.alpha_pattern", &s->r.lora.alpha_pattern, alpha, err));
    cdr_adapter *a = cdr_pool_alloc(s->pool, sizeof *a * n);
    const char **name = cdr_pool_alloc(s->pool, sizeof *name * n);
    o->adapter_init = s->r.lora.init;
    o->indexer_train = false;
    o->n_freeze = o->n_adapters = 0;
    for (int64_t i = 0; i < w.n; i++) {
        name[o->n_freeze++] = cdr_model_param(s->model, i);
        if (!w.in[i]) continue;
        double r = !isnan(rank[i]) ? rank[i] : (double)(w.expert[i] ? s->r.lora.expert_rank : s->r.lora.rank);
        double al = !isnan(alpha[i]) ? alpha[i] : w.expert[i] ? s->r.lora.alpha / (double)s->r.lora.rank * r : s->r.lora.alpha;             /* (2) */
        double scale = s->r.lora.scaling == CDR_LORA_RSLORA ? al / sqrt(r) : al / r;                                                       /* (1) */
        a[o->n_adapters++] = (cdr_adapter){ .param = cdr_model_param(s->model, i), .rank = (int32_t)r, .scale = (float)scale, .form = form_of(&w, i) };
        if (cdr_model_in_group(s->model, i, "indexer")) o->indexer_train = true;
    }
    if (indexers_train(s) && !o->indexer_train)
        CDR_FAIL_ID(err, CDR_EUSER, "lora.indexer", "%s: train.indexer is train, but no adapter is on an indexer, and the base is frozen. Name them in "
                    "lora.targets, or set train.indexer=frozen", at(s, "train.indexer"));
    o->freeze = name;
    o->adapters = a;
    return CDR_OK;
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------ */

/* Modules of one leaf name and group are a kind. matched: with an adapter in the compiled program; expected: in the model. Experts
 * count one by one. */
int cdr__lora_kinds(const cdr_session *s, cdr_lora_kind *kind, int max)
{
    cdr_pool *pool = s->pool;
    const cdr_bundle *b = &s->bundle;
    int n = 0;
    int64_t own = cdr_model_params(s->model);
    int *of = cdr_pool_alloc(pool, sizeof *of * (size_t)(own + 1));
    for (int64_t i = 0; i < own; i++) {
        cdr_model_part part = cdr_model_param_part(s->model, i);
        of[i] = -1;
        if (!cdr_model_in_group(s->model, i, "all_linear") && part.top_k == 0) continue;
        const char *label = cdr_pool_printf(pool, "%s %s", part.group, cdr__leaf(pool, cdr_model_param(s->model, i)));
        int k = 0;
        while (k < n && strcmp(kind[k].kind, label) != 0) k++;
        if (k == max) continue;
        if (k == n) kind[n++] = (cdr_lora_kind){ .kind = label };
        of[i] = k;
        kind[k].expected += part.top_k > 0 ? part.n[0] : 1;
    }
    for (int a = 0; a < s->opts.n_adapters; a++) {
        int64_t i = cdr_param_find(b, s->opts.adapters[a].param), pair = own + 2 * a;         /* A and B, in the order of the adapters */
        if (i < 0 || i >= own || of[i] < 0 || pair + 1 >= b->n_params || !b->params[pair].adapter) continue;
        cdr_lora_kind *k = &kind[of[i]];
        int64_t r = s->opts.adapters[a].rank;
        k->matched += b->params[i].global.n_dim == 3 ? b->params[i].global.n[0] : 1;
        k->rank_min = k->rank == 0 ? r : CDR_MIN(k->rank_min, r);
        k->rank = CDR_MAX(k->rank, r);
        for (int j = 0; j < 2; j++) k->parameters += cdr_type_elems(&b->params[pair + j].global);
    }
    int kept = 0;
    for (int k = 0; k < n; k++) {                        /* behind the last one of its group */
        if (kind[k].matched == 0) continue;
        cdr_lora_kind x = kind[k];
        int at_place = kept++;
        size_t group = strcspn(x.kind, " ") + 1;
        bool seen = false;
        for (int j = 0; j < at_place; j++) seen = seen || strncmp(kind[j].kind, x.kind, group) == 0;
        for (; seen && strncmp(kind[at_place - 1].kind, x.kind, group) != 0; at_place--) kind[at_place] = kind[at_place - 1];
        kind[at_place] = x;
    }
    return kept;
}

void cdr__lora_table(const cdr_session *s, cdr_text *t)
{
    cdr_lora_kind kind[CDR_LORA_KINDS], all = { .kind = "all" };
    int n = cdr__lora_kinds(s, kind, CDR_LORA_KINDS), width = 6;
    for (int k = 0; k < n; k++) width = CDR_MAX(width, (int)strlen(kind[k].kind));
    cdr_text_printf(t, "lora      %-*s  matched / expected   rank   parameters\n", width, "module");
    for (int k = 0; k <= n; k++) {
        const cdr_lora_kind *x = k < n ? &kind[k] : &all;
        char matched[32], expected[32], count[32], rank[32] = "";
        cdr_format_count(matched, x->matched);
        cdr_format_count(expected, x->expected);
        cdr_format_count(count, x->parameters);
        if (k < n && x->rank_min == x->rank) snprintf(rank, sizeof rank, "%lld", (long long)x->rank);
        else if (k < n) snprintf(rank, sizeof rank, "%lld-%lld", (long long)x->rank_min, (long long)x->rank);
        cdr_text_printf(t, "          %-*s  %7s / %-8s  %5s   %10s\n", width, x->kind, matched, expected, rank, count);
        all.matched += x->matched;
        all.expected += x->expected;
        all.parameters += x->parameters;
    }
    for (int i = 0; i < s->r.lora.serve_with.n; i++) {
        cdr_lora_serve x;
        if (cdr__serve_count(s, s->r.lora.serve_with.s[i], &x, NULL) != CDR_OK) continue;               /* checked before the compile */
        cdr_text_printf(t, "          %-*s  binds %lld of %lld tensors%s\n", width, x.consumer, (long long)x.bound, (long long)x.keys,
                        x.unknown > 0 ? ", some unconfirmed" : "");
    }
}

/* Elements of adapters that a token multiplies with. */
double cdr__lora_active(const cdr_session *s)
{
    double n = 0;
    for (int32_t i = 0; i < s->bundle.n_params; i++) {
        const cdr_param *q = &s->bundle.params[i];
        if (!q->adapter) continue;
        double all = (double)cdr_type_elems(&q->global);
        n += q->global.n_dim == 3 ? all / (double)q->global.n[0] * s->info->moe.top_k : all;
    }
    return n;
}
