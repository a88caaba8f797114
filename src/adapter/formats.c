/* formats.c: what each consumer binds, as data. The description's `serve` list wins; then the first rule that fits; what neither names is unknown,
 * is taken as bound, and said so.
 *
 * Sources, read in September to November 2026:
 *   peft    PEFT 0.21.2 and transformers 5.24: modules by name; classes of kimi_linear, deepseek_v2, v3, v32 and glm_moe_dsa keep routed
 *           experts in one parameter each (gate_up_proj, down_proj), so experts need target_parameters. Of all but the first PEFT moves targets named
 *           gate_proj, up_proj and down_proj to the experts' parameters (utils/transformers_weight_conversion.py, _convert_peft_config_moe), and
 *           adapters of the dense and shared layers of those names are left without a module. K3 has no class there, its remote code has
 *           a module for each expert.
 *   sglang  sglang/srt/lora/utils.py: _KNOWN_LORA_TARGET_MODULES and the names it maps to them; q, k and v become qkv_proj, which no layer
 *           of these families has. One rank and one scale for an adapter. target_modules as one expression is refused.
 *   vllm    vllm/lora/lora_model.py and peft_helper.py: one scale; experts one by one; kv_b_proj had no effect in decode before PR 56327, f_b and
 *           g_b are excluded; K3: no evidence either way.
 *   gguf    llama.cpp src/llama-adapter.cpp, src/models/{kimi-linear,kimi-k3,deepseek2}.cpp: an adapter acts where the graph multiplies by
 *           build_lora_mm, or its form for experts: dense and shared layers (build_ffn), routed experts (build_moe_ffn), the output of MLA
 *           (build_attn). Elsewhere the graph multiplies by ggml_mul_mat: the file loads, and the adapter does nothing. kv_b is split in
 *           two by the converter, so its adapter fails to load. Kimi-K3's graph uses build_moe_ffn alone. Names: gguf-py/gguf/constants.py.
 */
#include "adapter/adapter.h"
#include <fnmatch.h>

static const char *const CONSUMERS[] = { "peft", "vllm", "sglang", "gguf" };
const char *const *cdr_lora_consumers(int *n)
{
    *n = CDR_COUNT(CONSUMERS);
    return CONSUMERS;
}

static const char *const FORMATS[] = { "peft", "peft-stacked", "sglang", "vllm", "gguf" };
const char *const *cdr_lora_formats(int *n)
{
    *n = CDR_COUNT(FORMATS);
    return FORMATS;
}

#define B CDR_SERVE_BINDS
#define U CDR_SERVE_UNKNOWN
#define I CDR_SERVE_IGNORED
#define R CDR_SERVE_REFUSED
/* family and module: globs; module canonical, {expert} for an expert's index; *.mlp.[gud]*_proj: gate, up and down of a dense layer.
 * kda: 'k' in layers with KDA alone, 'm' in others. */
typedef struct { const char *consumer, *family, *module; char kda; cdr_serve serve; const char *why; } rule;
static const rule RULES[] = {
    { "peft", "deepseek_v*", "*.mlp.[gud]*_proj", 0, I, "PEFT moves targets of this name to the experts" },
    { "peft", "deepseek_v*", "*.shared_experts.*", 0, I, "PEFT moves targets of this name to the experts" },
    { "peft", "glm_moe_dsa", "*.mlp.[gud]*_proj", 0, I, "PEFT moves targets of this name to the experts" },
    { "peft", "glm_moe_dsa", "*.shared_experts.*", 0, I, "PEFT moves targets of this name to the experts" },
    { "peft", "*", "*", 0, B, NULL },
    { "sglang", "*", "*.self_attn.[qkv]_proj", 0, R, "becomes qkv_proj, which the layer does not have" },
    { "sglang", "*", "*.self_attn.o_proj", 0, B, NULL },
    { "sglang", "*", "*.self_attn.q_[ab]_proj", 0, B, NULL },
    { "sglang", "*", "*.self_attn.kv_a_proj_with_mqa", 0, B, NULL },
    { "sglang", "*", "*.self_attn.kv_b_proj", 0, B, NULL },
    { "sglang", "*", "*.indexer.wq_b", 0, B, NULL },
    { "sglang", "*", "*.indexer.wk", 0, B, NULL },
    { "sglang", "*", "*.indexer.weights_proj", 0, B, NULL },
    { "sglang", "*", "*.experts.{expert}.*", 0, B, NULL },
    { "sglang", "*", "*.gate_proj", 0, B, NULL },
    { "sglang", "*", "*.up_proj", 0, B, NULL },
    { "sglang", "*", "*.down_proj", 0, B, NULL },
    { "sglang", "*", "lm_head", 0, B, NULL },
    { "sglang", "*", "*", 0, R, "no LoRA module of that name" },
    { "vllm", "*", "*.self_attn.kv_b_proj", 0, I, "no effect in decode before vLLM PR 56327" },
    { "vllm", "*", "*.self_attn.[fg]_b_proj", 0, R, "excluded by its kernels" },
    { "vllm", "kimi_k3*", "*", 0, U, NULL },
    { "vllm", "*", "*.indexer.*", 0, U, NULL },
    { "vllm", "*", "*", 0, B, NULL },
    { "gguf", "*", "*.experts.{expert}.*", 0, B, NULL },
    { "gguf", "*", "*.self_attn.kv_b_proj", 0, R, "llama.cpp splits this matrix in two" },
    { "gguf", "kimi_k3*", "*", 0, I, "llama.cpp's graph multiplies without adapters here" },
    { "gguf", "*", "*.shared_experts.*", 0, B, NULL },
    { "gguf", "*", "*.mlp.[gud]*_proj", 0, B, NULL },
    { "gguf", "*", "*.self_attn.o_proj", 'm', B, NULL },
    { "gguf", "*", "*", 0, I, "llama.cpp's graph multiplies without adapters here" },
};

enum { SEPARATE, FUSED, EITHER };
/* Layouts that a consumer takes of routed experts, which its class has as modules, fused in one parameter, or either. RUN: as the exporter for it
 * writes them. */
static const struct { const char *consumer; cdr_lora_layout layout; int experts; cdr_serve serve; const char *why; } LAYOUTS[] = {
    { "peft", CDR_LORA_STACK, EITHER, R, "3-D expert stacks are no PEFT layout" },
    { "peft", CDR_LORA_EXPERTS, FUSED, I, "transformers' class keeps experts in one parameter: export as peft-stacked" },
    { "peft", CDR_LORA_FUSED, SEPARATE, R, "its class has a module for each expert: export as peft" },
    { "vllm", CDR_LORA_STACK, EITHER, R, "3-D expert stacks need enable_moe_shared_loras" },
    { "vllm", CDR_LORA_FUSED, EITHER, R, "target_parameters are not read for this model" },
    { "sglang", CDR_LORA_FUSED, EITHER, R, "target_parameters are not read" },
};
#undef B
#undef U
#undef I
#undef R

bool cdr__lora_is_fused(const cdr_model *m)
{
    static const char *const family[] = { "kimi_linear", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa" };
    for (int i = 0; i < CDR_COUNT(family); i++) if (strcmp(cdr_model_get_info(m)->family, family[i]) == 0) return true;
    return false;
}

/* Canonical module of a parameter, without a pool: at most `bytes` of it. */
static void module_of(const cdr_model *m, int64_t i_param, char *out, size_t bytes)
{
    const char *s = cdr_model_param(m, i_param), *at;
    if (strncmp(s, "language_model.", 15) == 0) s += 15;
    at = strstr(s, ".block_sparse_moe.");
    if (at) (void)snprintf(out, bytes, "%.*s.mlp.%s", (int)(at - s), s, at + 18);
    else (void)snprintf(out, bytes, "%.390s", s);
    size_t n = strlen(out);
    if (n > 7 && strcmp(out + n - 7, ".weight") == 0) out[n - 7] = 0;
}

/* {expert} and . are no signs of a glob, but the [ ] of the rules are. */
static cdr_serve by_rule(const cdr_model *m, const char *consumer, int64_t i_param, const char **why)
{
    char module[400];
    const char *family = cdr_model_get_info(m)->family;
    module_of(m, i_param, module, sizeof module);
    for (int i = 0; i < CDR_COUNT(RULES); i++) {
        const rule *r = &RULES[i];
        if (strcmp(r->consumer, consumer) != 0 || fnmatch(r->family, family, 0) != 0 || fnmatch(r->module, module, 0) != 0) continue;
        if (r->kda && (r->kda == 'k') != cdr__lora_has_kda(m, cdr_model_param_part(m, i_param).layer)) continue;
        *why = r->why;
        return r->serve;
    }
    return CDR_SERVE_UNKNOWN;
}

cdr_serve cdr_lora_serves(const cdr_model *m, const char *consumer, int64_t i_param, cdr_lora_layout layout, const char **why)
{
    char module[400];
    const char *none, **reason = why ? why : &none;
    bool experts = cdr_model_param_part(m, i_param).top_k > 0;
    const int other = cdr__lora_is_fused(m) ? SEPARATE : FUSED;
    *reason = NULL;
    for (int i = 0; i < CDR_COUNT(LAYOUTS) && experts && layout != CDR_LORA_RUN; i++) {
        if (LAYOUTS[i].layout != layout || strcmp(LAYOUTS[i].consumer, consumer) != 0 || LAYOUTS[i].experts == other) continue;
        *reason = LAYOUTS[i].why;
        return LAYOUTS[i].serve;
    }
    if (strcmp(consumer, "gguf") == 0 && !cdr__lora_gguf_arch(m)) {
        *reason = "llama.cpp has no architecture for this family";
        return CDR_SERVE_REFUSED;
    }
    module_of(m, i_param, module, sizeof module);
    const char *dot = strrchr(module, '.'), *leaf = experts ? "experts" : dot ? dot + 1 : module;
    int said = cdr_model_serves(m, consumer, leaf);
    if (said == 1 && strcmp(consumer, "gguf") != 0) return CDR_SERVE_BINDS;
    if (said == 0) {
        *reason = "not in the description's serve list";
        return CDR_SERVE_REFUSED;
    }
    return by_rule(m, consumer, i_param, reason);
}

/* ---- of a whole adapter ----------------------------------------------------------------------------------------------------------- */

static bool one_scale(const char *consumer) { return strcmp(consumer, "sglang") == 0 || strcmp(consumer, "vllm") == 0; }

/* Dropped keys by kind: "self_attn.g_proj (16): why, .." */
typedef struct { char name[80]; const char *why; int64_t n; } group;
enum { GROUPS = 32 };

static void add_group(group *g, int *n, char *module, const char *why, int64_t keys)
{
    char *mark = strstr(module, "{expert}.");
    if (mark) memmove(mark, mark + 9, strlen(mark + 9) + 1);
    const char *dot = strrchr(module, '.'), *s = dot ? dot : module;
    while (s > module && s[-1] != '.') s--;                 /* the last two parts */
    int k = 0;
    while (k < *n && (strcmp(g[k].name, s) != 0 || g[k].why != why)) k++;
    if (k == GROUPS) k--;
    if (k == *n) {
        (void)snprintf(g[k].name, sizeof g[k].name, "%.79s", s);
        g[k].why = why;
        g[(*n)++].n = 0;
    }
    g[k].n += keys;
}

static void print_groups(const group *g, int n, char *out, size_t bytes)
{
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        size_t at = strlen(out);
        bool last = i + 1 == n || g[i + 1].why != g[i].why;
        (void)snprintf(out + at, bytes - at, "%s%s (%lld)%s%s", i == 0 ? "" : g[i - 1].why == g[i].why ? ", " : "; ", g[i].name, (long long)g[i].n, last ? ": " : "",
                       last && g[i].why ? g[i].why : "");
    }
}

cdr_status cdr_lora_serve_set(const cdr_lora_set *set, const cdr_model *m, const char *consumer, cdr_lora_serve *s, cdr_err *err)
{
    static const char scale[] = "rank_pattern and alpha_pattern are not read: another scale would be applied", target[] = "not among target_modules",
                      regex[] = "target_modules as one expression is refused";
    group g[GROUPS];
    int n = 0;
    bool known = false;
    for (int i = 0; i < CDR_COUNT(CONSUMERS); i++) known = known || strcmp(CONSUMERS[i], consumer) == 0;
    if (!known) CDR_FAIL_ID(err, CDR_EUSAGE, "adapter.consumer", "--for: \"%s\" is no consumer: they are peft, vllm, sglang, gguf", consumer);
    *s = (cdr_lora_serve){ .consumer = consumer };
    float whole = set->rank > 0 ? (float)(set->alpha / set->rank) : 0;
    for (int i = 0; i < set->n; i++) {
        const cdr_lora_pair *p = &set->pair[i];
        const char *why;
        char module[400];
        bool file = p->layout != CDR_LORA_RUN && set->rank > 0;           /* rank 0: of no file yet */
        cdr_serve v = cdr_lora_serves(m, consumer, p->i_param, p->layout, &why);
        if (v <= CDR_SERVE_UNKNOWN && file && one_scale(consumer) && (p->scale != whole || set->rslora || p->rank > set->rank)) v = CDR_SERVE_IGNORED, why = scale;
        if (v <= CDR_SERVE_UNKNOWN && file && p->untargeted && strcmp(consumer, "peft") == 0) v = CDR_SERVE_IGNORED, why = target;
        if (v <= CDR_SERVE_UNKNOWN && file && set->target_regex && strcmp(consumer, "sglang") == 0 && strncmp(set->target_regex, "all", 3) != 0)
            v = CDR_SERVE_REFUSED, why = regex;
        s->keys += p->n_keys;
        if (v <= CDR_SERVE_UNKNOWN) s->bound += p->n_keys;
        else s->dropped += p->n_keys;
        if (v == CDR_SERVE_UNKNOWN) s->unknown += p->n_keys;
        module_of(m, p->i_param, module, sizeof module);
        if (v > CDR_SERVE_UNKNOWN) add_group(g, &n, module, why, p->n_keys);
    }
    print_groups(g, n, s->what, sizeof s->what);
    return CDR_OK;
}
