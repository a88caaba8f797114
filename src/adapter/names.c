/* names.c: module names of a model, and the keys of adapter files that mean them.
 *
 *   base_model.model.language_model.model.layers.3.block_sparse_moe.experts.17.w1.lora_A.weight
 *   prefix           (left out or there)              module                     half
 * Names are compared in one canonical form: without base_model.model. and language_model., with mlp. where a layer has
 * block_sparse_moe. or self_attn. where transformers' Kimi-Linear has self_attn.forget_gate. (its class renames both when it loads,
 * transformers 5.24, conversion_mapping.py). Of routed experts:
 *   experts.17.w1    one matrix          experts.w1    the stack, 3-D          experts, experts.base_layer    PEFT's wrapper of a fused one
 * Source: spec/formats.md, 1.6.
 */
#include "adapter/adapter.h"
#include <stdlib.h>

typedef struct { const char *module; int64_t i_param; } entry;
struct cdr__lora_names { const cdr_model *m; entry *e; int64_t n; const char **module; };       /* e: by module; module: by parameter, NULL: no matrix */

static const struct { const char *from, *to; } RENAMES[] = { { ".block_sparse_moe.", ".mlp." }, { ".self_attn.forget_gate.", ".self_attn." } };

static bool strip(const char **s, const char *prefix)
{
    size_t n = strlen(prefix);
    bool has = strncmp(*s, prefix, n) == 0;
    if (has) *s += n;
    return has;
}

static bool strip_end(char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    bool has = n > k && strcmp(s + n - k, end) == 0;
    if (has) s[n - k] = 0;
    return has;
}

static char *canonical(cdr_pool *pool, const char *name)
{
    strip(&name, "base_model.model.");
    strip(&name, "language_model.");
    char *s = cdr_pool_strdup(pool, name);
    for (int i = 0; i < CDR_COUNT(RENAMES); i++) {
        char *at = strstr(s, RENAMES[i].from);
        if (!at) continue;
        size_t a = strlen(RENAMES[i].from), b = strlen(RENAMES[i].to);      /* b <= a */
        memcpy(at, RENAMES[i].to, b);
        memmove(at + b, at + a, strlen(at + a) + 1);
    }
    return s;
}

static int by_module(const void *a, const void *b) { return strcmp(((const entry *)a)->module, ((const entry *)b)->module); }

bool cdr__lora_shape(const cdr_model *m, int64_t i_param, int64_t *experts, int64_t *N, int64_t *K)
{
    cdr_model_part p = cdr_model_param_part(m, i_param);
    bool stack = p.top_k > 0 && p.n_dim == 3;
    if (!stack && (p.n_dim != 2 || !cdr_model_in_group(m, i_param, "all_linear"))) return false;
    *experts = stack ? p.n[0] : 0;
    *N = p.n[p.n_dim - 2];
    *K = p.n[p.n_dim - 1];
    return true;
}

cdr_status cdr__lora_names_make(const cdr_model *m, cdr_pool *pool, const cdr__lora_names **names, cdr_err *err)
{
    cdr__lora_names *x = cdr_pool_alloc(pool, sizeof *x);
    int64_t n = cdr_model_params(m), E, N, K;
    x->m = m;
    x->e = cdr_pool_alloc(pool, sizeof *x->e * (size_t)(n + 1));
    x->module = cdr_pool_alloc(pool, sizeof *x->module * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) {
        if (!cdr__lora_shape(m, i, &E, &N, &K)) continue;
        char *s = canonical(pool, cdr_model_param(m, i));
        strip_end(s, ".weight");
        x->module[i] = s;
        x->e[x->n++] = (entry){ s, i };
    }
    qsort(x->e, (size_t)x->n, sizeof *x->e, by_module);
    for (int64_t i = 1; i < x->n; i++)
        if (strcmp(x->e[i].module, x->e[i - 1].module) == 0)
            CDR_FAIL_ID(err, CDR_EUSER, "adapter.names", "%s: %s and %s are one module to an adapter; which one a key means cannot be told",
                        cdr_model_get_info(m)->name, cdr_model_param(m, x->e[i].i_param), cdr_model_param(m, x->e[i - 1].i_param));
    *names = x;
    return CDR_OK;
}

static int64_t find(const cdr__lora_names *x, const char *module)
{
    entry key = { module, 0 }, *e = bsearch(&key, x->e, (size_t)x->n, sizeof key, by_module);
    return e ? e->i_param : -1;
}

const char *cdr__lora_module(const cdr__lora_names *x, int64_t i_param) { return x->module[i_param]; }

cdr__role cdr__lora_role(const cdr_model *m, int64_t i_param)
{
    static const char *const leaf[][2] = { { ".w1.weight", ".gate_proj.weight" }, { ".w3.weight", ".up_proj.weight" }, { ".w2.weight", ".down_proj.weight" } };
    const char *name = cdr_model_param(m, i_param);
    size_t n = strlen(name);
    for (int r = 0; r < CDR__ROLE_NONE; r++)
        for (int k = 0; k < 2; k++) {
            size_t l = strlen(leaf[r][k]);
            if (n > l && strcmp(name + n - l, leaf[r][k]) == 0) return (cdr__role)r;
        }
    return CDR__ROLE_NONE;
}

int64_t cdr__lora_sibling(const cdr__lora_names *x, int64_t i_param, cdr__role role)
{
    int layer = cdr_model_param_part(x->m, i_param).layer;
    for (int64_t i = 0, n = cdr_model_params(x->m); i < n; i++) {
        cdr_model_part p = cdr_model_param_part(x->m, i);
        if (p.top_k > 0 && p.layer == layer && cdr__lora_role(x->m, i) == role) return i;
    }
    return -1;
}

int64_t cdr__lora_linear(const cdr__lora_names *x, int64_t i_param, const char *leaf)
{
    char name[512];
    const char *module = x->module[i_param], *dot = module ? strrchr(module, '.') : NULL;
    if (!dot || snprintf(name, sizeof name, "%.*s.%s", (int)(dot - module), module, leaf) >= (int)sizeof name) return -1;
    return find(x, name);
}

bool cdr__lora_has_kda(const cdr_model *m, int layer)
{
    for (int64_t i = 0, n = cdr_model_params(m); i < n; i++) {
        const char *name = cdr_model_param(m, i), *dot = strrchr(name, '.');
        if (cdr_model_param_part(m, i).layer == layer && dot && strcmp(dot, ".A_log") == 0) return true;
    }
    return false;
}

/* experts.17.w1 and experts.w1 as the model has them, experts.{expert}.w1. */
static bool parse_expert(const cdr__lora_names *x, char *s, cdr_pool *pool, cdr__lora_key *k)
{
    char *at = strstr(s, ".experts.");
    if (!at) return false;
    char *rest = at + strlen(".experts."), *end = rest;
    k->layout = CDR_LORA_STACK;
    k->expert = -1;
    if (*rest >= '0' && *rest <= '9') {
        long long e = strtoll(rest, &end, 10);
        if (*end != '.' || end - rest > 6 || (*rest == '0' && end - rest > 1)) return false;
        k->expert = (int64_t)e;
        k->layout = CDR_LORA_EXPERTS;
        rest = end + 1;
    }
    k->i_param = find(x, cdr_pool_printf(pool, "%.*s.experts.{expert}.%s", (int)(at - s), s, rest));
    static const char *const stack[][2] = { { "w1", "gate_proj" }, { "w3", "up_proj" }, { "w2", "down_proj" } };      /* of any family, as SGLang spells them */
    for (int i = 0; i < CDR_COUNT(stack) && k->i_param < 0 && k->layout == CDR_LORA_STACK; i++)
        if (strcmp(rest, stack[i][0]) == 0) k->i_param = find(x, cdr_pool_printf(pool, "%.*s.experts.{expert}.%s", (int)(at - s), s, stack[i][1]));
    return k->i_param >= 0;
}

/* PEFT's wrapper: the module is `experts` itself; which parameter it wraps, the configuration says. i_param: the stack that is its gate. */
static bool parse_fused(const cdr__lora_names *x, char *s, cdr_pool *pool, cdr__lora_key *k)
{
    k->depth = 0;
    while (k->depth < 2 && strip_end(s, ".base_layer")) k->depth++;
    size_t n = strlen(s), e = strlen(".experts");
    if (n <= e || strcmp(s + n - e, ".experts") != 0) return false;
    k->layout = CDR_LORA_FUSED;
    k->expert = -1;
    static const char *const gate[] = { "w1", "gate_proj" };
    for (int i = 0; i < 2 && k->i_param < 0; i++) k->i_param = find(x, cdr_pool_printf(pool, "%s.{expert}.%s", s, gate[i]));
    return k->i_param >= 0;
}

bool cdr__lora_key_parse(const cdr__lora_names *x, const char *key, cdr_pool *scratch, cdr__lora_key *k)
{
    *k = (cdr__lora_key){ .i_param = -1, .expert = -1, .layout = CDR_LORA_MATRIX };
    if (strlen(key) > 400) return false;
    char *s = canonical(scratch, key);
    if (strip_end(s, ".lora_A.weight") || strip_end(s, ".lora_A.default.weight")) k->half = 'A';
    else if (strip_end(s, ".lora_B.weight") || strip_end(s, ".lora_B.default.weight")) k->half = 'B';
    else return false;
    k->i_param = find(x, s);
    if (k->i_param >= 0) return strstr(s, "{expert}") == NULL;
    return parse_expert(x, s, scratch, k) || parse_fused(x, s, scratch, k);
}
