/* test_families.c: the built-in families: exact parameter counts by hand, tensor names and shapes against the tables of
 * spec/model.md (2.2, 2.3) and of DeepSeek-V3.2's files, initialisation and optimizer rule of every kind of parameter, and
 * the graphs: which blocks are called how often, which values live over turns, what AttnRes mixes, what training counts. */
#include "models/model_parts.h"
#include "ops/attention/attention.h"
#include "ops/attn_res/attn_res.h"
#include "ops/experts/experts.h"
#include "ops/indexer/indexer.h"
#include "ops/kda/kda.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"
#include "ops/scale/scale.h"
#include "test.h"

static cdr_pool *pool;
static cdr_err err;
static cdr_model *m;

static void load(const char *path)
{
    cdr_model_spec s = { .path = path };
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_OK);
    if (err.status) {
        T_STR(err.text, "");
        exit(1);
    }
}

static const char *text_of(const char *base, const char *blocks)        /* a description that extends a built-in one */
{
    return cdr_pool_printf(pool, "extends: %s\nname: t\n%s", base, blocks);
}

static cdr_status parse(const char *text, int indexer)
{
    cdr_model_spec s = { .path = "t.yaml", .indexer = indexer };
    err = (cdr_err){ 0 };
    return cdr_model_parse(&s, text, strlen(text), "t.yaml", pool, &m, &err);
}

static void refused(const char *base, const char *blocks, const char *id, const char *words)
{
    T_CHECK(parse(text_of(base, blocks), 0) != CDR_OK);
    T_STR(err.id, id);
    T_HAS(err.text, words);
}

/* ---- counts ------------------------------------------------------------------------------------------------------------------ */

static void kimi_k3_has_the_released_counts(void)
{
    load("kimi_k3");
    T_CHECK(m->info.n_params == 2779484478208);                              /* the release: text */
    T_CHECK(m->info.n_active == 104189614848);
    /* by the parts of spec/model.md, 1.5 */
    int64_t P = 96 * 128, D = 7168;
    int64_t kda = 5 * P * D + 3 * P * 4 + 128 * D + P * 128 + 96 * D + 128 + P + 128;
    int64_t mla = 1536 * D + 1536 + 96 * 192 * 1536 + 576 * D + 512 + 96 * 256 * 512 + 2 * P * D;
    int64_t moe = 896 * D + 896 + 2 * 3584 * D + 3584 + 3 * 6144 * D, expert = 3 * 3072 * 3584;
    T_CHECK(kda == 443740416 && mla == 232196096 && moe - 896 == 189926912 && expert == 33030144);
    int64_t all = 2 * 163840 * D + 3 * D + 93 * 6 * D + 69 * kda + 24 * mla + 3 * 33792 * D + 92 * (moe + 896 * expert);
    T_CHECK(m->info.n_params == all);
    T_CHECK(m->info.n_active == all - 163840 * D - 92 * (896 - 16) * expert);
    T_CHECK(m->info.n_layers == 93 && m->info.moe.n == 92 && m->info.moe.experts == 896 && m->info.moe.top_k == 16 && m->info.sparse.n == 0);
    T_STR(m->info.kind[0].kind, "KDA");
    T_CHECK(m->info.kind[0].n == 69 && m->info.kind[1].n == 24);
    for (int i = 0; i < 93; i++) T_CHECK((m->block[m->layer[i].mixer].type == &cdr__block_mla) == (i % 4 == 3 || i == 92));
    T_CHECK(m->block[m->layer[0].ffn].type == &cdr__block_glu && m->block[m->layer[1].ffn].type == &cdr__block_moe);
    T_CHECK(cdr_model_pair_flop(m) == 24.0 * 2 * 96 * (128 + 64 + 128));
    T_NEAR(cdr_model_token_flop(m), 69.0 * 96 * (6.0 * 128 * 128 + 5.0 * 64 * 128 + 64.0 * 64 / 3), 1);
}

/* With the formats of the rows, the routed experts packed (4 bits and a scale byte for 32 elements), the tensors add up to the release's
 * total_size, its vision tower and projector in BF16 included (spec/model.md, 1.5 and 2.1). */
static void kimi_k3_has_the_released_bytes(void)
{
    int64_t bytes = 2 * (int64_t)(401214464 + 46144512);
    load("kimi_k3");
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const cdr__tensor *t = &m->tensor[i];
        bytes += t->place == CDR_PLACE_EXPERT ? t->stored / 2 + t->stored / 32 : t->stored * (t->dtype == CDR_F32 ? 4 : 2);
    }
    T_CHECK(bytes == 1560860324864);
}

static void kimi_k31_adds_its_indexers(void)
{
    load("kimi_k3");
    int64_t k3 = m->info.n_params, active = m->info.n_active, indexer = 32 * 128 * 1536 + 128 * 7168 + 32 * 7168 + 128;
    double pair = cdr_model_pair_flop(m);
    load("kimi_k31");
    T_CHECK(m->info.n_params == k3 + 24 * indexer && m->info.n_active == active + 24 * indexer);
    T_CHECK(m->info.sparse.n == 24 && m->info.sparse.top_k == 2048);
    T_CHECK(cdr_model_pair_flop(m) == pair + 24.0 * 2 * 32 * 128);
    T_HAS(cdr_model_summary(m, pool), "93 layers (69 KDA, 24 DSA)");
    cdr_model_spec s = { .path = "kimi-k31", .indexer = CDR_INDEXER_OFF };
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_OK && m->info.n_params == k3 && m->info.sparse.n == 0);
}

static void kimi_linear_has_its_counts(void)
{
    load("kimi-linear");
    int64_t D = 2304, P = 4096;
    int64_t kda = 4 * P * D + 3 * P * 4 + 2 * 128 * D + 2 * P * 128 + 32 * D + 32 + P + 128;
    int64_t mla = 6144 * D + 576 * D + 512 + 8192 * 512 + D * P, moe = 256 * D + 256 + 3 * 1024 * D, expert = 3 * 1024 * D;
    int64_t all = 2 * 163840 * D + D + 27 * 2 * D + 20 * kda + 7 * mla + 3 * 9216 * D + 26 * (moe + 256 * expert);
    T_CHECK(m->info.n_params == all && all / 10000000 == 4912);               /* 49.12 B */
    T_CHECK(m->info.n_active == all - 163840 * D - 26 * (256 - 8) * expert);
    T_CHECK(m->info.moe.n == 26 && m->info.kind[0].n == 20 && m->info.kind[1].n == 7 && m->layer[26].mixer == m->layer[3].mixer);
}

static void deepseek_has_its_counts(void)
{
    load("deepseek-v32");
    int64_t D = 7168, q = 1536;
    int64_t mla = q * D + q + 128 * 192 * q + 576 * D + 512 + 128 * 256 * 512 + D * 128 * 128, indexer = 64 * 128 * q + 128 * D + 64 * D + 2 * 128;
    int64_t expert = 3 * 2048 * D, moe = 256 * D + 256 + expert, dense = 3 * 18432 * D;
    int64_t all = 2 * 129280 * D + D + 61 * (2 * D + mla + indexer) + 3 * dense + 58 * (moe + 256 * expert);
    T_CHECK(m->info.n_params == all);
    T_CHECK(m->info.n_active == all - 129280 * D - 58 * (256 - 8) * expert);
    T_CHECK(all - 61 * indexer == 671026419200);              /* DeepSeek-V3 without its MTP layer: 671.03 B */
    T_CHECK(m->info.moe.n == 58 && m->info.sparse.n == 61 && m->info.n_layers == 61);
}

static void tiny_k31_has_its_counts(void)
{
    load("tiny-k31");
    T_CHECK(m->info.n_params == 4059296 && m->info.n_active == 1585312);      /* spec/interface.md, 4.3 */
    T_CHECK(m->info.moe.n == 7 && m->info.moe.experts == 32 && m->info.moe.top_k == 4 && m->info.sparse.n == 2 && m->info.sparse.top_k == 64);
    T_STR(m->info.family, "kimi_k31");
    T_CHECK(m->attn_block == 4);
}

/* ---- names and shapes ------------------------------------------------------------------------------------------------------------ */

typedef struct { const char *name, *shape; } want;      /* shape: "163840 7168", with f where it is F32, s4 where 4 are stored */

/* The layer has these tensors and no others. layer -1: what lies outside of the stack. */
static void layer_is(int layer, const char *prefix, const want *w, int n)
{
    int have = 0;
    for (int64_t i = 0; i < m->n_tensors; i++) have += m->tensor[i].layer == layer;
    T_NEAR(have, n, 0);
    for (int k = 0; k < n; k++) {
        const char *full = cdr_pool_printf(pool, "%s%s", prefix, w[k].name), *got = "absent";
        for (int64_t i = 0; i < m->n_tensors; i++) {
            const cdr__tensor *t = &m->tensor[i];
            if (strcmp(t->name, full) != 0 || t->layer != layer) continue;
            got = "";
            int64_t elems = 1;
            for (int d = 0; d < t->need->n_dim; d++) {
                got = cdr_pool_printf(pool, "%s%s%lld", got, d ? " " : "", (long long)t->need->n[d]);
                elems *= t->need->n[d];
            }
            if (t->dtype == CDR_F32) got = cdr_pool_printf(pool, "%s f", got);
            if (t->stored != elems) got = cdr_pool_printf(pool, "%s s%lld", got, (long long)t->stored);
        }
        if (strcmp(got, w[k].shape) != 0) fprintf(stderr, "  %s:\n", full);
        T_STR(got, w[k].shape);
    }
}
#define LAYER_IS(l, p, w) layer_is(l, p, w, (int)(sizeof(w) / sizeof *(w)))

#define K3_LAYER { "input_layernorm.weight", "7168" }, { "post_attention_layernorm.weight", "7168" }, { "self_attention_res_norm.weight", "7168" }, \
    { "mlp_res_norm.weight", "7168" }, { "self_attention_res_proj.weight", "1 7168" }, { "mlp_res_proj.weight", "1 7168" }
#define K3_KDA { "self_attn.q_proj.weight", "12288 7168" }, { "self_attn.k_proj.weight", "12288 7168" }, { "self_attn.v_proj.weight", "12288 7168" }, \
    { "self_attn.q_conv1d.weight", "12288 1 4 f" }, { "self_attn.k_conv1d.weight", "12288 1 4 f" }, { "self_attn.v_conv1d.weight", "12288 1 4 f" }, \
    { "self_attn.f_a_proj.weight", "128 7168" }, { "self_attn.f_b_proj.weight", "12288 128" }, { "self_attn.b_proj.weight", "96 7168" }, \
    { "self_attn.g_proj.weight", "12288 7168" }, { "self_attn.A_log", "96 f s128" }, { "self_attn.dt_bias", "12288 f" }, { "self_attn.o_norm.weight", "128 f" }, \
    { "self_attn.o_proj.weight", "7168 12288" }
#define K3_MLA { "self_attn.q_a_proj.weight", "1536 7168" }, { "self_attn.q_a_layernorm.weight", "1536" }, { "self_attn.q_b_proj.weight", "18432 1536" }, \
    { "self_attn.kv_a_proj_with_mqa.weight", "576 7168" }, { "self_attn.kv_a_layernorm.weight", "512" }, { "self_attn.kv_b_proj.weight", "24576 512" }, \
    { "self_attn.g_proj.weight", "12288 7168" }, { "self_attn.o_proj.weight", "7168 12288" }
#define K3_MOE { "block_sparse_moe.gate.weight", "896 7168" }, { "block_sparse_moe.gate.e_score_correction_bias", "896 f" }, \
    { "block_sparse_moe.routed_expert_down_proj.weight", "3584 7168" }, { "block_sparse_moe.routed_expert_up_proj.weight", "7168 3584" }, \
    { "block_sparse_moe.routed_expert_norm.weight", "3584" }, { "block_sparse_moe.shared_experts.gate_proj.weight", "6144 7168" }, \
    { "block_sparse_moe.shared_experts.up_proj.weight", "6144 7168" }, { "block_sparse_moe.shared_experts.down_proj.weight", "7168 6144" }, \
    { "block_sparse_moe.experts.{expert}.w1.weight", "896 3072 3584" }, { "block_sparse_moe.experts.{expert}.w3.weight", "896 3072 3584" }, \
    { "block_sparse_moe.experts.{expert}.w2.weight", "896 3584 3072" }

static void names_of_kimi_k3(void)
{
    static const want root[] = { { "model.embed_tokens.weight", "163840 7168" }, { "lm_head.weight", "163840 7168" }, { "model.norm.weight", "7168" },
                                 { "model.output_attn_res_norm.weight", "7168" }, { "model.output_attn_res_proj.weight", "1 7168" } };
    static const want first[] = { K3_LAYER, K3_KDA,
                                  { "mlp.gate_proj.weight", "33792 7168" }, { "mlp.up_proj.weight", "33792 7168" }, { "mlp.down_proj.weight", "7168 33792" } };
    static const want kda[] = { K3_LAYER, K3_KDA, K3_MOE }, mla[] = { K3_LAYER, K3_MLA, K3_MOE };
    load("kimi_k3");
    LAYER_IS(-1, "language_model.", root);
    LAYER_IS(0, "language_model.model.layers.0.", first);
    LAYER_IS(1, "language_model.model.layers.1.", kda);
    LAYER_IS(91, "language_model.model.layers.91.", mla);
    LAYER_IS(92, "language_model.model.layers.92.", mla);
    static const want dsa[] = { K3_LAYER, K3_MLA, K3_MOE, { "self_attn.indexer.wq_b.weight", "4096 1536" }, { "self_attn.indexer.wk.weight", "128 7168" },
                                { "self_attn.indexer.weights_proj.weight", "32 7168" }, { "self_attn.indexer.k_norm.weight", "128" } };
    load("kimi_k31");
    LAYER_IS(1, "language_model.model.layers.1.", kda);
    LAYER_IS(3, "language_model.model.layers.3.", dsa);
    LAYER_IS(92, "language_model.model.layers.92.", dsa);
}

#define KL_LAYER { "input_layernorm.weight", "2304" }, { "post_attention_layernorm.weight", "2304" }
#define KL_KDA { "self_attn.q_proj.weight", "4096 2304" }, { "self_attn.k_proj.weight", "4096 2304" }, { "self_attn.v_proj.weight", "4096 2304" }, \
    { "self_attn.q_conv1d.weight", "4096 1 4 f" }, { "self_attn.k_conv1d.weight", "4096 1 4 f" }, { "self_attn.v_conv1d.weight", "4096 1 4 f" }, \
    { "self_attn.A_log", "32 f" }, { "self_attn.dt_bias", "4096 f" }, { "self_attn.f_a_proj.weight", "128 2304" }, { "self_attn.f_b_proj.weight", "4096 128" }, \
    { "self_attn.b_proj.weight", "32 2304" }, { "self_attn.g_a_proj.weight", "128 2304" }, { "self_attn.g_b_proj.weight", "4096 128" }, \
    { "self_attn.o_norm.weight", "128 f" }, { "self_attn.o_proj.weight", "2304 4096" }
#define KL_MOE { "block_sparse_moe.gate.weight", "256 2304" }, { "block_sparse_moe.gate.e_score_correction_bias", "256 f" }, \
    { "block_sparse_moe.experts.{expert}.w1.weight", "256 1024 2304" }, { "block_sparse_moe.experts.{expert}.w3.weight", "256 1024 2304" }, \
    { "block_sparse_moe.experts.{expert}.w2.weight", "256 2304 1024" }, { "block_sparse_moe.shared_experts.gate_proj.weight", "1024 2304" }, \
    { "block_sparse_moe.shared_experts.up_proj.weight", "1024 2304" }, { "block_sparse_moe.shared_experts.down_proj.weight", "2304 1024" }

static void names_of_kimi_linear(void)
{
    static const want root[] = { { "model.embed_tokens.weight", "163840 2304" }, { "lm_head.weight", "163840 2304" }, { "model.norm.weight", "2304" } };
    static const want first[] = { KL_LAYER, KL_KDA,
                                  { "mlp.gate_proj.weight", "9216 2304" }, { "mlp.up_proj.weight", "9216 2304" }, { "mlp.down_proj.weight", "2304 9216" } };
    static const want kda[] = { KL_LAYER, KL_KDA, KL_MOE };
    static const want mla[] = { KL_LAYER, KL_MOE, { "self_attn.q_proj.weight", "6144 2304" }, { "self_attn.kv_a_proj_with_mqa.weight", "576 2304" },
                                { "self_attn.kv_a_layernorm.weight", "512" }, { "self_attn.kv_b_proj.weight", "8192 512" }, { "self_attn.o_proj.weight", "2304 4096" } };
    load("kimi-linear");
    LAYER_IS(-1, "", root);
    LAYER_IS(0, "model.layers.0.", first);
    LAYER_IS(25, "model.layers.25.", kda);
    LAYER_IS(3, "model.layers.3.", mla);
    LAYER_IS(26, "model.layers.26.", mla);
}

#define V32_LAYER { "input_layernorm.weight", "7168" }, { "post_attention_layernorm.weight", "7168" }, { "self_attn.q_a_proj.weight", "1536 7168" }, \
    { "self_attn.q_a_layernorm.weight", "1536" }, { "self_attn.q_b_proj.weight", "24576 1536" }, { "self_attn.kv_a_proj_with_mqa.weight", "576 7168" }, \
    { "self_attn.kv_a_layernorm.weight", "512" }, { "self_attn.kv_b_proj.weight", "32768 512" }, { "self_attn.o_proj.weight", "7168 16384" }, \
    { "self_attn.indexer.wq_b.weight", "8192 1536" }, { "self_attn.indexer.wk.weight", "128 7168" }, { "self_attn.indexer.weights_proj.weight", "64 7168" }, \
    { "self_attn.indexer.k_norm.weight", "128 f" }, { "self_attn.indexer.k_norm.bias", "128 f" }

static void names_of_deepseek(void)
{
    static const want dense[] = { V32_LAYER, { "mlp.gate_proj.weight", "18432 7168" }, { "mlp.up_proj.weight", "18432 7168" }, { "mlp.down_proj.weight", "7168 18432" } };
    static const want moe[] = { V32_LAYER, { "mlp.gate.weight", "256 7168" }, { "mlp.gate.e_score_correction_bias", "256 f" },
                                { "mlp.experts.{expert}.gate_proj.weight", "256 2048 7168" }, { "mlp.experts.{expert}.up_proj.weight", "256 2048 7168" },
                                { "mlp.experts.{expert}.down_proj.weight", "256 7168 2048" }, { "mlp.shared_experts.gate_proj.weight", "2048 7168" },
                                { "mlp.shared_experts.up_proj.weight", "2048 7168" }, { "mlp.shared_experts.down_proj.weight", "7168 2048" } };
    load("deepseek-v32");
    LAYER_IS(2, "model.layers.2.", dense);
    LAYER_IS(3, "model.layers.3.", moe);
    LAYER_IS(60, "model.layers.60.", moe);
}

/* ---- parameters -------------------------------------------------------------------------------------------------------------------- */

static cdr_bundle bundle;
static const cdr_param *param(const char *name)
{
    int32_t i = cdr_param_find(&bundle, name);
    T_CHECK(i >= 0);
    if (i < 0) T_STR("absent", name);
    return &bundle.params[i < 0 ? 0 : i];
}

/* A graph with the model's parameters as kernels read them. */
static cdr_graph *declared(int compute)
{
    bundle = (cdr_bundle){ 0 };
    cdr_builder b = cdr_model_builder(m);
    cdr_graph *g = cdr_graph_new(pool, &bundle, "step", &err);
    T_CHECK(b.declare(b.model, g, &err) == CDR_OK && bundle.n_params == m->info.n_tensors);
    for (int32_t i = 0; i < bundle.n_params; i++)
        bundle.shared[bundle.params[i].shard].t.dtype = bundle.params[i].f32 ? CDR_F32 : (uint8_t)compute;
    return g;
}

static void check_param(const char *name, int init, double std, int rule, int block_rows, bool f32)
{
    const cdr_param *p = param(name);
    if (p->init != init || p->rule != rule || p->block_rows != block_rows || p->f32 != f32 || fabs((double)p->init_std - std) > 1e-6)
        fprintf(stderr, "  %s: init %d std %g rule %d block %d f32 %d\n", name, p->init, (double)p->init_std, p->rule, p->block_rows, p->f32);
    T_CHECK(p->init == init && p->rule == rule && p->block_rows == block_rows && p->f32 == f32);
    T_NEAR(p->init_std, std, 1e-6);
    T_CHECK(p->decay == (rule == CDR_RULE_MUON || strstr(name, "embed") || strstr(name, "lm_head") || strstr(name, "conv1d")));
    T_CHECK(p->train == (rule == CDR_RULE_NONE ? CDR_STATE : CDR_FULL) && p->may_idle == (strstr(name, ".indexer.") != NULL));
}

static void parameters_of_tiny_k31(void)
{
#define L "language_model.model.layers."
    load("tiny-k31");
    declared(CDR_BF16);
    double d = 1 / sqrt(128.0), out = sqrt(16.0);                               /* hidden 128; sqrt(2 x 8 layers) */
    const int normal = CDR_INIT_NORMAL, adamw = CDR_RULE_ADAMW, muon = CDR_RULE_MUON;
    check_param("language_model.model.embed_tokens.weight", normal, 1, adamw, 0, false);
    check_param("language_model.lm_head.weight", normal, d, adamw, 0, false);
    check_param("language_model.model.norm.weight", CDR_INIT_ONES, 1, adamw, 0, false);
    check_param("language_model.model.output_attn_res_proj.weight", CDR_INIT_ZEROS, d, adamw, 0, false);
    check_param(L "3.self_attention_res_proj.weight", CDR_INIT_ZEROS, d, adamw, 0, false);
    check_param(L "3.mlp_res_norm.weight", CDR_INIT_ONES, 1, adamw, 0, false);
    check_param(L "1.self_attn.q_proj.weight", normal, d, muon, 64, false);
    check_param(L "1.self_attn.v_proj.weight", normal, d, muon, 64, false);
    check_param(L "1.self_attn.g_proj.weight", normal, d, muon, 0, false);
    check_param(L "1.self_attn.f_b_proj.weight", normal, 1 / 8.0, muon, 0, false);
    check_param(L "1.self_attn.k_conv1d.weight", CDR_INIT_UNIFORM, 0.5, adamw, 0, true);
    check_param(L "1.self_attn.A_log", CDR_INIT_ZEROS, 1, adamw, 0, true);
    check_param(L "1.self_attn.dt_bias", CDR_INIT_DT_BIAS, 1, adamw, 0, true);
    check_param(L "1.self_attn.o_norm.weight", CDR_INIT_ONES, 1, adamw, 0, true);
    check_param(L "1.self_attn.o_proj.weight", normal, d / out, muon, 0, false);
    check_param(L "3.self_attn.q_b_proj.weight", normal, 1 / 8.0, muon, 48, false);
    check_param(L "3.self_attn.kv_b_proj.weight", normal, 1 / sqrt(32.0), muon, 64, false);
    check_param(L "3.self_attn.indexer.wq_b.weight", normal, 1 / 8.0, muon, 32, false);
    check_param(L "3.self_attn.indexer.weights_proj.weight", normal, d, muon, 0, false);
    check_param(L "3.self_attn.indexer.k_norm.weight", CDR_INIT_ONES, 1, adamw, 0, false);
    check_param(L "0.mlp.down_proj.weight", normal, 1 / 16.0 / out, muon, 0, false);
    check_param(L "1.block_sparse_moe.gate.weight", normal, d, muon, 0, false);
    check_param(L "1.block_sparse_moe.gate.e_score_correction_bias", CDR_INIT_ZEROS, 1, CDR_RULE_NONE, 0, true);
    check_param(L "1.block_sparse_moe.experts.{expert}.w1.weight", normal, 1 / 8.0, muon, 64, false);
    check_param(L "1.block_sparse_moe.experts.{expert}.w2.weight", normal, 1 / 8.0 / out, muon, 64, false);
    check_param(L "1.block_sparse_moe.routed_expert_up_proj.weight", normal, 1 / 8.0 / out, muon, 0, false);
    check_param(L "1.block_sparse_moe.shared_experts.down_proj.weight", normal, 1 / 8.0 / out, muon, 0, false);
    const cdr_type *t = &param(L "1.block_sparse_moe.experts.{expert}.w1.weight")->global;
    T_CHECK(t->n_dim == 3 && t->n[0] == 32 && t->n[1] == 64 && t->n[2] == 64);
    t = &param(L "1.self_attn.k_conv1d.weight")->global;
    T_CHECK(t->n_dim == 3 && t->n[0] == 128 && t->n[1] == 1 && t->n[2] == 4);
    T_CHECK(param(L "1.self_attn.A_log")->global.n[0] == 2);                     /* two heads live of 128 stored */
    T_CHECK(param(L "0.self_attention_res_proj.weight")->may_idle && param(L "0.self_attention_res_norm.weight")->may_idle);
    T_CHECK(!param(L "0.mlp_res_norm.weight")->may_idle && !param(L "1.self_attention_res_proj.weight")->may_idle);
    T_CHECK(param(L "5.mlp_res_proj.weight")->unit == 6 && param(L "5.block_sparse_moe.gate.weight")->unit == 6);
    load("tiny-linear");
    declared(CDR_F32);
    check_param("model.layers.1.self_attn.A_log", CDR_INIT_LOG_UNIFORM, 1, adamw, 0, true);
#undef L
}

/* ---- graphs ----------------------------------------------------------------------------------------------------------------------- */

static cdr_io make_io(cdr_graph *g, cdr_mode mode, int64_t T, int64_t S, int compute)
{
    cdr_io io = { .mode = mode, .T = T, .S = S, .compute = compute, .sequence = T,
                  .weights_T = CDR_NONE, .balance_own = true, .balance_bins = 100, .indexer_coef = 1, .indexer_train = true,
                  .targets_T = CDR_NONE, .scale_1 = CDR_NONE, .scale_rows_1 = CDR_NONE, .micro_1 = CDR_NONE, .n_live_1 = CDR_NONE, .loss_1 = CDR_NONE,
                  .logits_TW = CDR_NONE };
    io.tokens_T = cdr_graph_value(g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "tokens");
    io.start_T = cdr_graph_value(g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "start");
    io.pos_T = cdr_graph_value(g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "pos");
    io.dense_1 = cdr_graph_value(g, cdr_type_1d(CDR_I32, 1), CDR_STEP, CDR_C_INPUT, "dense");
    if (mode == CDR_MODE_GENERATE) io.n_live_1 = cdr_graph_value(g, cdr_type_1d(CDR_I32, 1), CDR_STEP, CDR_C_INPUT, "n_live");
    else io.targets_T = cdr_graph_value(g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "targets");
    if (mode == CDR_MODE_TRAIN) io.micro_1 = cdr_graph_value(g, cdr_type_1d(CDR_I32, 1), CDR_STEP, CDR_C_INPUT, "micro");
    return io;
}

static cdr_graph *forward(const char *path, cdr_mode mode, int compute, cdr_io *io)
{
    load(path);
    cdr_graph *g = declared(compute);
    cdr_graph_list(g, "micro");
    cdr_io fresh = make_io(g, mode, 32, mode == CDR_MODE_GENERATE ? 80 : 32, compute);
    if (io->aux_coef > 0 || !io->balance_own) fresh.balance = io->balance, fresh.balance_own = io->balance_own, fresh.aux_coef = io->aux_coef;
    fresh.core = io->core;
    *io = fresh;
    cdr_builder b = cdr_model_builder(m);
    T_CHECK(b.forward(b.model, g, io, &err) == CDR_OK);
    if (err.status) T_STR(err.text, path);
    return g;
}

static const cdr_call *nth(const cdr_graph *g, const char *op, int n)      /* NULL: fewer */
{
    for (int64_t i = 0; i < g->n_calls; i++)
        if (strcmp(cdr_ops[g->calls[i].op]->name, op) == 0 && n-- == 0) return &g->calls[i];
    return NULL;
}
static int count(const cdr_graph *g, const char *op)
{
    int n = 0;
    while (nth(g, op, n)) n++;
    return n;
}
static bool used(const cdr_graph *g, const char *name)
{
    for (int64_t i = 0; i < g->n_operands; i++) if (g->operands[i] == param(name)->shard) return true;
    return false;
}
static int states(const cdr_graph *g)
{
    int n = 0;
    for (int64_t i = 0; i < g->n_vals; i++) n += g->vals[i].cls == CDR_C_STATE && g->vals[i].scope == CDR_STEP;
    return n;
}

static const cdr_io own = { .balance_own = true };

static void graph_of_tiny_k31(void)
{
    for (int mode = CDR_MODE_TRAIN; mode <= CDR_MODE_GENERATE; mode++) {
        cdr_io io = own;
        cdr_graph *g = forward("tiny-k31", (cdr_mode)mode, CDR_BF16, &io);
        bool train = mode == CDR_MODE_TRAIN, gen = mode == CDR_MODE_GENERATE;
        T_CHECK(count(g, "kda") == 6 && count(g, "short_conv") == 18 && count(g, "attention") == 2 && count(g, "indexer") == 2 && count(g, "gate") == 2);
        T_CHECK(count(g, "router") == 7 && count(g, "dispatch") == 7 && count(g, "experts") == 7 && count(g, "situ") == 8 && count(g, "attn_res") == 16);
        T_CHECK(count(g, "scale") == 2 && count(g, "layernorm") == 2 && count(g, "detach") == 4 && count(g, "rope") == 0 && count(g, "swiglu") == 0);
        T_CHECK(count(g, "balance_load") == (train ? 7 : 0) && count(g, "balance_hist") == (train ? 7 : 0) && count(g, "aux_loss") == 0);
        T_CHECK(count(g, "indexer_loss") == (train ? 2 : 0) && io.n_extra == (train ? 2 : 0) && io.n_routers == (train ? 7 : 0));
        /* each KDA layer: a state and three histories; each DSA layer: c, kr and index keys */
        T_CHECK(count(g, "cache_write") == (gen ? 6 : 0) && states(g) == (gen ? 6 * 4 + 2 * 3 : train ? 14 : 0));
        for (int32_t i = 0; i < bundle.n_params; i++) {
            bool dead = strstr(bundle.params[i].name, "layers.0.self_attention_res_") != NULL;
            if (used(g, bundle.params[i].name) == dead) T_STR(dead ? "used" : "unused", bundle.params[i].name);
        }
        const cdr_call *att = nth(g, "attention", 0);
        const cdr_attention_attr *aa = cdr_graph_attr(g, att);
        T_CHECK(aa->o_f32 == 1 && aa->core == CDR_CORE_DENSE && fabs((double)aa->scale - 1 / sqrt(48.0)) < 1e-7);
        T_CHECK(cdr_graph_type(g, cdr_graph_out(g, att, 0))->dtype == CDR_F32);
        T_CHECK(cdr_graph_in(g, att, 5) == cdr_graph_out(g, nth(g, "indexer", 0), 0));
        const cdr_scale_attr *sa = cdr_graph_attr(g, nth(g, "scale", 0));
        T_CHECK(sa->factor == 0.125f);                                                  /* (2 x 32)^-1/2 */
        const cdr_kda_attr *ka = cdr_graph_attr(g, nth(g, "kda", 0));
        T_CHECK(ka->heads == 2 && ka->dim == 64 && ka->softplus == 0 && ka->lower_bound == -5.0f && ka->norm_eps == 1e-5f);
        const cdr_experts_attr *ea = cdr_graph_attr(g, nth(g, "experts", 0));
        T_CHECK(ea->top_k == 4 && ea->situ == 1 && ea->beta == 4.0f && ea->linear_beta == 25.0f);
        if (gen) T_CHECK(cdr_graph_type(g, io.logits_TW)->dtype == CDR_F32 && cdr_graph_type(g, cdr_graph_out(g, nth(g, "indexer", 0), 0))->n[1] == 3);
        else T_CHECK(cdr_graph_type(g, io.loss_1)->dtype == CDR_F64);
    }
    cdr_io io = { .balance_own = true, .core = CDR_CORE_GATHERED };
    cdr_graph *g = forward("tiny-k31", CDR_MODE_TRAIN, CDR_F32, &io);
    const cdr_attention_attr *aa = cdr_graph_attr(g, nth(g, "attention", 1));
    T_CHECK(aa->core == CDR_CORE_GATHERED && aa->o_f32 == 0);
}

/* Mix, then push, then the sublayer (spec/model.md, 3.1): layers 0 and 4 are boundaries, the first mixer of layer 0 is left out. */
static void attn_res_mixes_then_pushes(void)
{
    static const int rows[] = { 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3 };      /* mlp of 0; att and mlp of 1 to 3; att of 4; mlp of 4; ... */
    cdr_io io = own;
    cdr_graph *g = forward("tiny-k31", CDR_MODE_EVAL, CDR_BF16, &io);
    cdr_val embed = cdr_graph_out(g, nth(g, "embedding", 0), 0);
    for (int i = 0; i < 16; i++) {
        const cdr_call *c = nth(g, "attn_res", i);
        const cdr_attn_res_attr *a = cdr_graph_attr(g, c);
        T_CHECK(a->n == rows[i] && c->n_in == rows[i] + 2 && cdr_graph_in(g, c, 0) == embed && a->eps == 1e-5f);
        int layer = (i + 1) / 2;
        const char *part = i % 2 ? "self_attention" : "mlp";
        const char *name = i == 15 ? "language_model.model.output_attn_res_proj.weight"
                                   : cdr_pool_printf(pool, "language_model.model.layers.%d.%s_res_proj.weight", layer, part);
        T_CHECK(cdr_graph_in(g, c, a->n) == param(name)->shard);
    }
    /* At the boundary, layer 4, the running sum becomes a row of the bank and starts again with the mixer's output. */
    const cdr_call *att4 = nth(g, "attn_res", 7), *mlp4 = nth(g, "attn_res", 8), *last = nth(g, "attn_res", 15);
    T_CHECK(cdr_graph_in(g, mlp4, 1) == cdr_graph_in(g, att4, 1));
    T_CHECK(cdr_graph_in(g, mlp4, 2) != cdr_graph_in(g, att4, 1));
    bool added = false;
    for (int i = 0; nth(g, "add", i); i++) added = added || cdr_graph_out(g, nth(g, "add", i), 0) == cdr_graph_in(g, mlp4, 2);
    T_CHECK(!added);                                                                   /* the sum restarted: no addition made it */
    T_CHECK(cdr_graph_in(g, last, 1) == cdr_graph_in(g, mlp4, 1) && cdr_graph_in(g, last, 2) != cdr_graph_in(g, mlp4, 2));
}

static void graphs_of_the_other_families(void)
{
    cdr_io io = own;
    cdr_graph *g = forward("tiny-k3", CDR_MODE_TRAIN, CDR_BF16, &io);
    T_CHECK(count(g, "kda") == 3 && count(g, "attention") == 1 && count(g, "indexer") == 0 && count(g, "gate") == 1 && count(g, "attn_res") == 8 && io.n_extra == 0);
    T_CHECK(cdr_graph_in(g, nth(g, "attention", 0), 5) == CDR_NONE);
    io = own;
    g = forward("tiny-linear", CDR_MODE_TRAIN, CDR_BF16, &io);
    T_CHECK(count(g, "kda") == 3 && count(g, "attention") == 1 && count(g, "gate") == 0 && count(g, "attn_res") == 0 && count(g, "situ") == 0 && count(g, "swiglu") == 4);
    T_CHECK(((const cdr_kda_attr *)cdr_graph_attr(g, nth(g, "kda", 0)))->softplus == 1 && count(g, "balance_hist") == 0 && count(g, "balance_load") == 3);
    T_NEAR(((const cdr_router_attr *)cdr_graph_attr(g, nth(g, "router", 0)))->scale, 2.446, 1e-6);
    T_CHECK(io.routers[0].kind == CDR_BALANCE_SIGN && io.routers[0].hist_EB == CDR_NONE && io.routers[0].layer == 1 && io.routers[0].experts == 8);
    T_STR(bundle.params[io.routers[0].bias_param].name, "model.layers.1.block_sparse_moe.gate.e_score_correction_bias");
    io = own;
    g = forward("tiny-v32", CDR_MODE_TRAIN, CDR_BF16, &io);
    T_CHECK(count(g, "attention") == 3 && count(g, "indexer") == 3 && count(g, "rope") == 12 && count(g, "gate") == 0 && count(g, "experts") == 2 && io.n_extra == 3);
    const cdr_router_attr *ra = cdr_graph_attr(g, nth(g, "router", 0));
    T_CHECK(ra->groups == 4 && ra->top_groups == 2 && ra->renormalize == 1 && ra->scale == 2.5f && ra->softmax == 0);
    const cdr_attention_attr *aa = cdr_graph_attr(g, nth(g, "attention", 0));
    double mscale = 0.1 * log(40) + 1;
    T_NEAR(aa->scale, mscale * mscale / sqrt(32.0), 1e-7);
    T_CHECK(aa->o_f32 == 0);
    const cdr_rope_attr *main_q = cdr_graph_attr(g, nth(g, "rope", 0)), *index_q = cdr_graph_attr(g, nth(g, "rope", 2));
    T_CHECK(main_q->interleaved == 1 && main_q->first == 0 && main_q->nope == 16 && main_q->ext == 16 && main_q->factor == 40.0f && main_q->original == 64);
    T_CHECK(index_q->interleaved == 0 && index_q->first == 1 && index_q->heads == 4 && index_q->nope == 16 && index_q->ext == 16 && index_q->beta_fast == 32.0f);
    T_CHECK(cdr_graph_in(g, nth(g, "layernorm", 0), 2) == param("model.layers.0.self_attn.indexer.k_norm.bias")->shard);
}

static void balancing_follows_the_run(void)
{
    cdr_io io = { .balance = CDR_BALANCE_AUX };
    cdr_graph *g = forward("tiny-k3", CDR_MODE_TRAIN, CDR_F32, &io);
    T_CHECK(count(g, "aux_loss") == 3 && count(g, "balance_hist") == 0 && count(g, "balance_load") == 3 && io.n_extra == 3);
    io = (cdr_io){ .balance = CDR_BALANCE_NONE };
    g = forward("tiny-k3", CDR_MODE_TRAIN, CDR_F32, &io);
    T_CHECK(count(g, "aux_loss") == 0 && count(g, "balance_hist") == 0 && io.n_routers == 3 && io.routers[0].kind == CDR_BALANCE_NONE);
    io = (cdr_io){ .balance_own = true, .aux_coef = 0.01 };
    g = forward("tiny-k3", CDR_MODE_TRAIN, CDR_F32, &io);
    T_CHECK(count(g, "aux_loss") == 3 && count(g, "balance_hist") == 3 && cdr_graph_type(g, io.routers[2].hist_EB)->n[1] == 100);
    /* a rule that moves a bias needs one */
    T_CHECK(parse(text_of("tiny-linear", "blocks: {moe: {balance: none}}\ntensors: {moe: {bias: none}}\n"), 0) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    g = declared(CDR_F32);
    cdr_graph_list(g, "micro");
    io = make_io(g, CDR_MODE_TRAIN, 16, 16, CDR_F32);
    io.balance_own = false;
    io.balance = CDR_BALANCE_SIGN;
    cdr_builder b = cdr_model_builder(m);
    T_CHECK(b.forward(b.model, g, &io, &err) != CDR_OK);
    T_HAS(err.text, "train.balance sign moves a selection bias");
}

static void indexers_on_and_off(void)
{
    T_CHECK(parse(text_of("tiny-k31", ""), CDR_INDEXER_OFF) == CDR_OK && m->info.sparse.n == 0);
    T_HAS(cdr_model_summary(m, pool), "2 MLA");
    const char *without = "blocks: {dsa: {indexer: none}}\n";
    T_CHECK(parse(text_of("tiny-k31", without), CDR_INDEXER_AUTO) == CDR_OK && m->info.sparse.n == 0);
    T_CHECK(parse(text_of("tiny-k31", without), CDR_INDEXER_ON) == CDR_OK && m->info.sparse.n == 2 && m->info.n_params == 4059296);
    T_CHECK(parse(text_of("tiny-k3", ""), CDR_INDEXER_ON) == CDR_EUSER);
    T_HAS(err.text, "has no index.heads");
    T_CHECK(parse(text_of("tiny-dense", "layers: {mixer: {kda: rest, mla: none}}\nblocks: {kda: {type: kda, decay: bounded}}\n"
                          "sizes: {kda: {heads: 2, dim: 16, conv: 4}}\n"
                          "tensors: {kda: {\"q|k|v|g|o|f_a|f_b|b\": [\"{}\", [1, 1]]}}\n"), CDR_INDEXER_ON) == CDR_EUSER);
    T_STR(err.id, "model.no-indexer");
}

static void wrong_blocks_are_refused(void)
{
    refused("tiny-k31", "blocks: {kda: {decay: none}}\n", "model.missing-attribute", "has no decay: bounded or softplus");
    refused("tiny-k31", "blocks: {kda: {decay: fast}}\n", "model.bad-value", "decay of block kda is one of: softplus bounded");
    refused("tiny-k31", "blocks: {kda: {lower_bound: -9}}\n", "model.bad-value", "lower_bound of block kda is a number from -5 to below 0");
    refused("tiny-linear", "blocks: {kda: {lower_bound: -5}}\n", "model.bad-value", "lower_bound goes with decay bounded");
    refused("tiny-k31", "blocks: {kda: {dim: 40}}\n", "model.bad-size", "a multiple of 16");
    refused("tiny-k31", "blocks: {kda: {conv: 9}}\n", "model.bad-size", "conv 9 (2 to 8)");
    refused("tiny-k31", "blocks: {kda: {gate: low_rank}}\n", "model.missing-part", "part g_a of block kda has no row");
    refused("tiny-k31", "blocks: {moe: {top_k: 33}}\n", "model.bad-size", "top_k is from 1 to experts");
    refused("tiny-k31", "blocks: {moe: {groups: 5}}\n", "model.bad-size", "groups 5 divide the 32 experts");
    refused("tiny-k31", "blocks: {moe: {groups: 16, top_groups: 1}}\n", "model.bad-size", "hold at least top_k 4");
    refused("tiny-k31", "blocks: {moe: {score: tanh}}\n", "model.bad-value", "score of block moe is one of: sigmoid softmax");
    refused("tiny-k31", "blocks: {moe: {balance: even}}\n", "model.bad-value", "balance of block moe is one of: none quantile sign aux");
    refused("tiny-linear", "blocks: {moe: {latent_norm: true}}\n", "model.bad-value", "latent_norm without latent");
    refused("tiny-k31", "blocks: {moe: {scale: 0}}\n", "model.bad-value", "scale is above 0");
    refused("tiny-k31", "tensors: {moe: {bias: none}}\n", "model.missing-part", "part bias of block moe has no row");
    refused("tiny-k31", "tensors: {moe: {expert.down: [x, [1]]}}\n", "model.bad-row", "of moe is filled twice");
    refused("tiny-k31", "tensors: {moe: {expert.w2: [w2, [latent, width]]}}\n", "model.bad-shape", "is [64, 64] here, the block needs [32, 64, 64]");
    refused("tiny-k31", "sizes: {attn_block: 1, n_layers: 20, full_layers: [4]}\n", "model.bad-size", "at most 15 blocks of the 20 layers");
    refused("tiny-v32", "blocks: {mla: {indexer: {dim: 8}}}\n", "model.bad-size", "turn its first ext = 16 of 8 elements");
    refused("tiny-v32", "blocks: {mla: {indexer: {top_k: 0}}}\n", "model.bad-size", "top_k 0: each is at least 1");
    /* one tensor for all experts, as it lies, is taken too */
    T_CHECK(parse(text_of("tiny-k31", "tensors: {moe: {expert.w2: [w2, [experts, latent, width]]}}\n"), 0) == CDR_OK && m->info.n_params == 4059296);
    if (err.status) T_STR(err.text, "");
}

/* Known blocks in another order with other names: a new family without C (spec/interface.md, 4.4). */
static void a_new_family_is_a_description(void)
{
    const char *acme = "extends: tiny-linear\nname: acme\nindex_base: 0\nconfig: {rope_theta: rope_theta = 10000}\n"
                       "layers: {mixer: {mla: every 2 from 1, kda: rest}, ffn: {dense: none, moe: rest}, residual: prenorm}\n"
                       "blocks: {mla: {position: {rope: half, theta: rope_theta}}, moe: {score: softmax, balance: aux}}\nunder: {moe: mlp.}\n"
                       "tensors: {moe: {\"expert.w1|w3\": none, expert.w2: none, \"expert.gate|up\": [\"experts.{expert}.{}_proj.weight\", [width, hidden]],\n"
                       "                expert.down: [\"experts.{expert}.down_proj.weight\", [hidden, width]]}}\n";
    T_CHECK(parse(acme, 0) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    T_CHECK(m->info.moe.n == 4 && m->info.kind[0].n == 2 && m->info.kind[1].n == 2);
    declared(CDR_F32);
    T_CHECK(param("model.layers.0.mlp.experts.{expert}.down_proj.weight")->global.n[1] == 64);
}

/* ---- whole compiles ------------------------------------------------------------------------------------------------------------------ */

static void tiny_models_compile(void)
{
    static const char *const path[] = { "tiny-k31", "tiny-k3", "tiny-linear", "tiny-v32" };
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            load(path[i]);
            cdr_builder b = cdr_model_builder(m);
            cdr_compile_opts o = cdr_compile_defaults();
            o.T = o.sequence = 64;
            o.gen_T = 16;
            o.gen_S = 80;
            o.n_micro = 2;
            o.mesh = (cdr_mesh){ .size = { 1, k == 3 ? 2 : 1, 1 }, .world = k == 3 ? 2 : 1 };
            o.compute = o.params = k == 1 ? CDR_BF16 : CDR_F32;
            o.loss_chunk_tokens = 32;
            o.loss_chunk_vocab = 256;
            o.policy = k == 2 ? CDR_POLICY_RECOMPUTE : CDR_POLICY_KEEP;
            o.n_threads = 1;
            o.balance_own = true;
            o.balance_bins = 100;
            o.indexer_coef = 1;
            o.indexer_train = k != 1;
            o.muon = k % 2 == 0;
            o.muon_iterations = 5;
            o.muon_momentum = 0.95;
            o.muon_scale = 0.2;
            o.muon_per_head = true;
            cdr_bundle whole;
            err = (cdr_err){ 0 };
            T_CHECK(cdr_compile(&o, &b, pool, &whole, &err) == CDR_OK);
            if (err.status) T_STR(err.text, path[i]);
            else T_CHECK(cdr_verify(&whole, &err) == CDR_OK && whole.n_params == m->info.n_tensors);
        }
}

/* Kernels of sparse models exist for CPUs: another device is refused with the operator's name, a dense model is not. */
static void no_kernel_for_the_device_is_said(void)
{
    static const struct { const char *path; cdr_status st; } model[] = { { "tiny-k31", CDR_EUSER }, { "tiny-dense", CDR_OK } };
    for (int i = 0; i < 2; i++) {
        load(model[i].path);
        cdr_builder b = cdr_model_builder(m);
        cdr_compile_opts o = cdr_compile_defaults();
        o.T = o.sequence = 64;
        o.n_micro = 2;
        o.loss_chunk_tokens = 32;
        o.loss_chunk_vocab = 256;
        o.compute = o.params = CDR_BF16;
        o.device = CDR_DEV_CUDA;
        o.isa = CDR_ISA_SM80 | CDR_ISA_SM90;
        cdr_bundle whole;
        err = (cdr_err){ 0 };
        T_CHECK(cdr_compile(&o, &b, pool, &whole, &err) == model[i].st);
        if (model[i].st != CDR_OK) T_STR(err.id, "compile.no-kernel");
        if (model[i].st != CDR_OK) T_HAS(err.text, "no kernel of ");
    }
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    pool = cdr_pool_new();
    T_RUN(kimi_k3_has_the_released_counts);
    T_RUN(kimi_k3_has_the_released_bytes);
    T_RUN(kimi_k31_adds_its_indexers);
    T_RUN(kimi_linear_has_its_counts);
    T_RUN(deepseek_has_its_counts);
    T_RUN(tiny_k31_has_its_counts);
    T_RUN(names_of_kimi_k3);
    T_RUN(names_of_kimi_linear);
    T_RUN(names_of_deepseek);
    T_RUN(parameters_of_tiny_k31);
    T_RUN(graph_of_tiny_k31);
    T_RUN(attn_res_mixes_then_pushes);
    T_RUN(graphs_of_the_other_families);
    T_RUN(balancing_follows_the_run);
    T_RUN(indexers_on_and_off);
    T_RUN(wrong_blocks_are_refused);
    T_RUN(a_new_family_is_a_description);
    T_RUN(tiny_models_compile);
    T_RUN(no_kernel_for_the_device_is_said);
    cdr_pool_free(pool);
    return t_end();
}
