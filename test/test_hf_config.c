/* test_hf_config.c: config.json of directories: what every family writes is read back as the same model; the keys and values are those of
 * the releases; aliases, one-based layer lists, expected values, unknown keys and quantisations; what is carried; tokenizer and serving tables. */
#include "models/model_parts.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

static cdr_pool *pool;
static cdr_err err;
static char dir[] = "test_hf_config.XXXXXX";

static const char *path(const char *name) { return cdr_pool_printf(pool, "%s/%s", dir, name); }

static cdr_status load(const char *where, const char *layers, cdr_model **m)
{
    cdr_model_spec s = { .path = where, .layers = layers };
    err = (cdr_err){ 0 };
    return cdr_model_load(&s, pool, m, &err);
}

static cdr_model *model(const char *where)
{
    cdr_model *m = NULL;
    if (load(where, NULL, &m)) T_STR(err.text, where);
    return m;
}

static void put_file(const char *name, const char *text) { T_CHECK(cdr_file_write(path(name), text, strlen(text), &err) == CDR_OK); }

static const char *config_of(const cdr_model *m, int experts)
{
    cdr_text t = { 0 };
    err = (cdr_err){ 0 };
    if (cdr_model_config(m, experts, &t, &err)) T_STR(err.text, "");
    const char *s = cdr_pool_strndup(pool, t.s ? t.s : "", t.n);
    cdr_text_free(&t);
    return s;
}

static const char *edit(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at) T_STR(text, from);
    return at ? cdr_pool_printf(pool, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) : text;
}

static void refused(const char *config, const char *id, const char *words)
{
    cdr_model *m;
    put_file("config.json", config);
    T_CHECK(load(dir, NULL, &m) != CDR_OK);
    T_STR(err.id, id);
    T_HAS(err.text, words);
}

/* Same tensors, shapes, rows and layers. */
static void same_model(const cdr_model *a, const cdr_model *b)
{
    T_CHECK(a->n_tensors == b->n_tensors && a->n_all == b->n_all && a->info.n_params == b->info.n_params && a->info.n_active == b->info.n_active);
    for (int64_t i = 0; i < CDR_MIN(a->n_tensors, b->n_tensors); i++) {
        const cdr_model_row *x = &a->tensor[i].row, *y = &b->tensor[i].row;
        bool same = strcmp(x->name, y->name) == 0 && x->n_dim == y->n_dim && memcmp(x->n, y->n, sizeof x->n) == 0 && x->padded == y->padded;
        if (!same) T_STR(x->name, y->name);
    }
    T_CHECK(a->eps == b->eps && a->attn_block == b->attn_block && a->info.vocab == b->info.vocab);
    for (int i = 0; i < a->info.n_layers; i++) {
        const cdr__block *x = &a->block[a->layer[i].mixer], *y = &b->block[b->layer[i].mixer];
        T_CHECK(x->type == y->type && x->select == y->select && x->n_locals == y->n_locals);
    }
    T_NEAR(cdr_model_pair_flop(a), cdr_model_pair_flop(b), 0);
    T_NEAR(cdr_model_token_flop(a), cdr_model_token_flop(b), 0);
}

static void every_family_is_read_back(void)
{
    static const struct { const char *model, *family, *by; } all[] = {
        { "kimi_k3", "kimi_k3", "architectures" }, { "kimi_k31", "kimi_k31", "architectures" }, { "kimi_linear", "kimi_linear", "architectures" },
        { "deepseek_v3", "deepseek_v3", "architectures" }, { "deepseek_v32", "deepseek_v32", "architectures" }, { "deepseek_v2", "deepseek_v2", "architectures" },
        { "glm_moe_dsa", "glm_moe_dsa", "architectures" }, { "tiny-k3", "kimi_k3", "architectures" }, { "tiny-k31", "kimi_k31", "architectures" },
        { "tiny-linear", "kimi_linear", "architectures" }, { "tiny-v3", "deepseek_v3", "architectures" }, { "tiny-v32", "deepseek_v32", "architectures" },
        { "tiny-v2", "deepseek_v2", "architectures" }, { "tiny-glm", "glm_moe_dsa", "architectures" },
    };
    for (int i = 0; i < CDR_COUNT(all); i++) {
        cdr_model *m = model(all[i].model), *back;
        if (!m) continue;
        T_STR(cdr_model_get_info(m)->family, all[i].family);
        const char *text = config_of(m, -1);
        put_file("config.json", text);
        const cdr_json *root;
        cdr_model_match match;
        T_CHECK(cdr_json_parse(pool, text, strlen(text), "config.json", &root, &err) == CDR_OK && cdr_model_match_config(root, pool, &match, &err) == CDR_OK);
        T_STR(match.name, all[i].family);
        T_STR(match.by, all[i].by);
        back = model(dir);
        if (!back) continue;
        same_model(m, back);
        T_STR(config_of(back, -1), text);
        T_CHECK(cdr_model_dir(back) == NULL);                            /* no weights there */
        const char *const *note;
        T_CHECK(cdr_model_notes(back, &note) == 0);
    }
}

static const cdr_json *parsed(const char *text)
{
    const cdr_json *root = NULL;
    T_CHECK(cdr_json_parse(pool, text, strlen(text), "config.json", &root, &err) == CDR_OK);
    return root;
}

static void is(const cdr__source *s, const char *key, const char *value)
{
    const cdr_json *j = cdr__source_get(s, key);
    cdr_text t = { 0 };
    switch (j ? cdr_json_type(j) : CDR_JSON_NULL) {
    case CDR_JSON_STRING: cdr_text_printf(&t, "%s", cdr_json_str(j, "")); break;
    case CDR_JSON_BOOL: cdr_text_printf(&t, "%s", cdr_json_bool(j, false) ? "true" : "false"); break;
    case CDR_JSON_INT: cdr_text_printf(&t, "%lld", (long long)cdr_json_int(j, 0)); break;
    case CDR_JSON_REAL: cdr_text_printf(&t, "%g", cdr_json_real(j, 0)); break;
    default: cdr_text_printf(&t, "null");
    }
    if (strcmp(t.s, value) != 0) T_STR(cdr_pool_printf(pool, "%s: %s", key, t.s), value);
    cdr_text_free(&t);
}

/* spec/model.md, 1.2 and 1.4: the meaningful keys of the two releases */
static void keys_of_the_releases(void)
{
    static const char *const k3[][2] = {
        { "model_type", "kimi_linear" }, { "vocab_size", "163840" }, { "hidden_size", "7168" }, { "num_hidden_layers", "93" }, { "intermediate_size", "33792" },
        { "num_attention_heads", "96" }, { "num_key_value_heads", "96" }, { "q_lora_rank", "1536" }, { "kv_lora_rank", "512" }, { "qk_nope_head_dim", "128" },
        { "qk_rope_head_dim", "64" }, { "v_head_dim", "128" }, { "mla_use_nope", "true" }, { "mla_use_output_gate", "true" }, { "hidden_act", "situ" },
        { "activation_situ_beta", "4" }, { "activation_situ_linear_beta", "25" }, { "rms_norm_eps", "1e-05" }, { "attn_res_block_size", "12" },
        { "latent_moe_use_norm", "true" }, { "num_experts", "896" }, { "num_experts_per_token", "16" }, { "num_shared_experts", "2" },
        { "moe_intermediate_size", "3072" }, { "routed_expert_hidden_size", "3584" }, { "moe_layer_freq", "1" }, { "first_k_dense_replace", "1" },
        { "moe_router_activation_func", "sigmoid" }, { "moe_renormalize", "true" }, { "routed_scaling_factor", "1" }, { "topk_method", "noaux_tc" },
        { "use_grouped_topk", "true" }, { "num_expert_group", "1" }, { "topk_group", "1" }, { "num_nextn_predict_layers", "0" },
        { "tie_word_embeddings", "false" }, { "linear_attn_config.num_heads", "96" }, { "linear_attn_config.head_dim", "128" },
        { "linear_attn_config.short_conv_kernel_size", "4" }, { "linear_attn_config.use_full_rank_gate", "true" }, { "linear_attn_config.gate_lower_bound", "-5" },
        { "quantization_config.format", "mxfp4-pack-quantized" }, { "quantization_config.config_groups.group_0.weights.num_bits", "4" },
        { "bos_token_id", "163584" }, { "eos_token_id", "163586" }, { "pad_token_id", "163839" }, { "media_placeholder_token_id", "163605" },
    };
    cdr__source s = { .where = "" };
    s.root = parsed(config_of(model("kimi_k3"), -1));
    s.text = cdr_json_get(s.root, "text_config");
    T_CHECK(s.text != NULL);
    for (int i = 0; i < CDR_COUNT(k3); i++) is(&s, k3[i][0], k3[i][1]);
    const cdr_json *kda = cdr__source_get(&s, "linear_attn_config.kda_layers"), *full = cdr__source_get(&s, "linear_attn_config.full_attn_layers");
    T_CHECK(cdr_json_count(kda) == 69 && cdr_json_count(full) == 24 && cdr_json_int(cdr_json_at(kda, 0), 0) == 1 && cdr_json_int(cdr_json_at(full, 23), 0) == 93);
    T_STR(cdr_json_str(cdr_json_at(cdr_json_get(s.root, "architectures"), 0), ""), "KimiK3ForConditionalGeneration");
    T_STR(cdr_json_str(cdr_json_get(s.root, "model_type"), ""), "kimi_k3");
    T_CHECK(cdr_json_count(cdr__source_get(&s, "quantization_config.ignore")) == 6 &&
            strcmp(cdr_json_str(cdr_json_at(cdr__source_get(&s, "quantization_config.ignore"), 2), ""), "re:.*mlp\\.(gate|up|gate_up|down)_proj.*") == 0);
    s.root = parsed(config_of(model("kimi_linear"), -1));
    s.text = NULL;
    is(&s, "model_type", "kimi_linear");
    is(&s, "q_lora_rank", "null");
    is(&s, "num_experts", "256");
    is(&s, "routed_scaling_factor", "2.446");
    is(&s, "linear_attn_config.num_heads", "32");
    T_CHECK(!cdr__source_get(&s, "quantization_config") && !cdr__source_get(&s, "linear_attn_config.gate_lower_bound"));
    s.root = parsed(config_of(model("deepseek_v3"), -1));
    is(&s, "rope_scaling.type", "yarn");
    is(&s, "rope_scaling.mscale_all_dim", "1");
    is(&s, "num_nextn_predict_layers", "1");
    is(&s, "n_group", "8");
}

static void aliases_are_read_and_noted(void)
{
    const char *text = config_of(model("tiny-k31"), CDR_BF16);
    const char *const *note;
    T_CHECK(!strstr(text, "quantization_config"));
    text = edit(text, "\"num_experts_per_token\"", "\"num_experts_per_tok\"");
    text = edit(text, "\"layers\": [4, 8]", "\"full_attn_layers\": [4, 8]");
    text = edit(text, "\"topk\"", "\"index_topk\"");
    put_file("config.json", text);
    cdr_model *m = model(dir);
    if (!m) return;
    int n = cdr_model_notes(m, &note);
    T_CHECK(n == 3);
    T_STR(note[0], "num_experts_per_tok read as num_experts_per_token");
    T_CHECK(m->info.moe.top_k == 4 && m->info.sparse.top_k == 64 && m->info.sparse.n == 2);
    put_file("config.json", edit(text, "\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 4, \"num_experts_per_token\": 4"));
    T_CHECK(model(dir) != NULL);
    refused(edit(text, "\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 4, \"num_experts_per_token\": 2"), "model.config-value", "an alias of it differ");
    refused(edit(text, "\"full_attn_layers\": [4, 8]\n", "\"full_attn_layers\": [4]\n"), "model.config-value", "index.layers and full_layers differ");
}

static void layer_lists_share_out_the_stack(void)
{
    const char *text = config_of(model("tiny-k3"), -1);               /* layers 1 to 4, the last is MLA */
    T_HAS(text, "\"kda_layers\": [1, 2, 3]");
    refused(edit(text, "\"kda_layers\": [1, 2, 3]", "\"kda_layers\": [1, 2]"), "model.config-layers", "look at layer 3");
    refused(edit(text, "\"kda_layers\": [1, 2, 3]", "\"kda_layers\": [1, 2, 3, 4]"), "model.config-layers", "look at layer 4");
    refused(edit(text, "\"kda_layers\": [1, 2, 3]", "\"kda_layers\": [0, 1, 2, 3]"), "model.config-layers", "share out layers 1 to 4, each once; look at layer 0");
    refused(edit(text, "\"kda_layers\": [1, 2, 3]", "\"kda_layers\": [1, 1, 3]"), "model.config-layers", "look at layer 1");
    refused(edit(text, "\"kda_layers\": [1, 2, 3]", "\"more\": 1"), "model.config-missing", "linear_attn_config.kda_layers is missing");
    refused(edit(text, "\"full_attn_layers\": [4]", "\"full_attn_layers\": [5]"), "model.config-layers", "look at layer 5");
}

/* An unknown kind of gate, activation, router or position is refused: nothing of it is guessed (spec/known-failures.md, D). */
static void meaningful_values_are_checked(void)
{
    static const struct { const char *model, *from, *to, *id, *words; } cases[] = {
        { "tiny-k3", "\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": -3.0", "model.config-value", "gate_lower_bound is -3; description kimi_k3 is right for -5.0 "
            "only" },
        { "tiny-k3", "\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": null", "model.config-missing", "gate_lower_bound is missing" },
        { "tiny-k3", "\"use_full_rank_gate\": true,", "", "model.config-missing", "use_full_rank_gate is missing, which means false" },
        { "tiny-k3", "\"hidden_act\": \"situ\"", "\"hidden_act\": \"gelu\"", "model.config-value", "hidden_act is \"gelu\"" },
        { "tiny-k3", "\"moe_router_activation_func\": \"sigmoid\"", "\"moe_router_activation_func\": \"softmax\"", "model.config-value", "moe_router_activation_func" },
        { "tiny-k3", "\"moe_renormalize\": true", "\"moe_renormalize\": false", "model.config-value", "moe_renormalize is false" },
        { "tiny-k3", "\"mla_use_nope\": true", "\"mla_use_nope\": false", "model.config-value", "mla_use_nope" },
        { "tiny-k3", "\"topk_method\": \"noaux_tc\"", "\"topk_method\": \"greedy\"", "model.config-value", "topk_method" },
        { "tiny-k3", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1", "model.config-value", "num_key_value_heads is 1" },
        { "tiny-k3", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "model.config-value", "tie_word_embeddings is true" },
        { "tiny-k3", "\"hidden_size\": 64", "\"hidden_size\": \"64\"", "model.config-value", "hidden_size is no number" },
        { "tiny-k3", "\"hidden_size\": 64", "\"hidden_size\": -64", "model.config-value", "hidden_size is no number of at least 0" },
        { "tiny-k3", "\"hidden_size\": 64,", "", "model.config-missing", "hidden_size is missing" },
        { "tiny-linear", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"silu\", \"q_lora_rank\": 32", "model.config-value",
            "q_lora_rank is 32; description kimi_linear is right for null only" },
        { "tiny-linear", "\"use_full_rank_gate\": false", "\"use_full_rank_gate\": true", "model.config-value", "use_full_rank_gate is true" },
        { "tiny-linear", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"silu\", \"attn_res_block_size\": 2", "model.config-value", "attn_res_block_size is 2" },
        { "tiny-v3", "\"type\": \"yarn\"", "\"type\": \"linear\"", "model.config-value", "rope_scaling.type is \"linear\"; description deepseek_v3 is right for yarn "
            "or default" },
        { "tiny-v3", "\"mscale\": 1.0", "\"mscale\": 0.5", "model.not-in-version", "both must be equal" },
        { "tiny-v3", "\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"softmax\"", "model.config-value", "scoring_func" },
        { "tiny-v3", "\"scoring_func\": \"sigmoid\"", "\"scoring_fnc\": \"sigmoid\"", "model.unknown-config-key",
            "scoring_fnc, and it is not known to be harmless. Did you mean scoring_func?" },
        { "tiny-v3", "\"type\": \"yarn\"", "\"type\": \"yarn\", \"attention_factor\": 2", "model.unknown-config-key", "rope_scaling.attention_factor" },
        { "tiny-v3", "\"scoring_func\": \"sigmoid\"", "\"alpha\": 1, \"beta\": {\"gamma\": 2}", "model.unknown-config-key", "reads no alpha, beta" },
    };
    for (int i = 0; i < CDR_COUNT(cases); i++) {
        const char *text = config_of(model(cases[i].model), CDR_BF16);
        refused(edit(text, cases[i].from, cases[i].to), cases[i].id, cases[i].words);
    }
    put_file("config.json", edit(config_of(model("tiny-v3"), -1), "\"scoring_func\": \"sigmoid\"",
        "\"temperature\": 1.0, \"auto_map\": {\"a\": 1}, \"pretraining_tp\": 1"));
    T_CHECK(model(dir) != NULL);
}

static void quantisations(void)
{
    const char *text = config_of(model("tiny-k3"), CDR_MXFP4), *v3 = config_of(model("tiny-v3"), -1);
    put_file("config.json", text);
    T_CHECK(model(dir) != NULL);
    refused(edit(text, "\"num_bits\": 4", "\"num_bits\": 8"), "model.quantization", "weights of 8 bits");
    refused(edit(text, "\"type\": \"float\"", "\"type\": \"int\""), "model.quantization", "type int, groups of 32; this version reads BF16");
    refused(edit(text, "\"group_size\": 32", "\"group_size\": 16"), "model.quantization", "groups of 16");
    refused(edit(text, "\"mxfp4-pack-quantized\"", "\"pack-quantized\""), "model.quantization", "INT4 packs and other quantisations are not read");
    refused(edit(text, "\"input_activations\": null", "\"input_activations\": {\"num_bits\": 8}"), "model.quantization", "quantised activations");
    refused(edit(text, "\"compressed-tensors\"", "\"gptq\""), "model.quantization", "method gptq");
    const char *fp8 = "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, "
        "128]}, \"hidden_act\"";
    put_file("config.json", edit(v3, "\"hidden_act\"", fp8));
    cdr_model *m = model(dir);
    T_HAS(config_of(model("tiny-v3"), CDR_F8_E4M3), "\"weight_block_size\": [128, 128]");
    T_HAS(v3, "\"eos_token_id\": 257");
    if (m) T_CHECK(!strstr(config_of(m, CDR_BF16), "quantization_config") && strstr(config_of(m, -1), "weight_block_size"));
    refused(edit(edit(v3, "\"hidden_act\"", fp8), "[128, 128]", "[1, 128]"), "model.quantization", "without weight_block_size [128, 128]");
    refused(edit(edit(v3, "\"hidden_act\"", fp8), "e4m3", "e5m2"), "model.quantization", "fp8 e5m2");
    refused(edit(config_of(model("tiny-linear"), -1), "\"hidden_act\"", fp8), "model.quantization", "no tensor row of description kimi_linear has the dtype FP8_128");
    /* the file's own keys stay, in order, when experts change their format */
    put_file("config.json", edit(text, "\"hidden_act\"", "\"label2id\": {\"b\": [1, {\"c\": null}]}, \"hidden_act\""));
    m = model(dir);
    const char *wide = m ? config_of(m, CDR_BF16) : "";
    T_CHECK(!strstr(wide, "quantization_config"));
    T_HAS(wide, "\"b\": [1, {\"c\": null}]");
    put_file("config.json", wide);
    m = model(dir);
    T_HAS(m ? config_of(m, CDR_MXFP4) : "", "\"format\": \"mxfp4-pack-quantized\"");
}

static void unknown_families_have_a_nearest(void)
{
    const char *text = config_of(model("tiny-linear"), -1);
    text = edit(text, "KimiLinearForCausalLM", "AcmeForCausalLM");
    cdr_model *m;
    put_file("config.json", text);                                       /* the model type alone decides */
    T_CHECK(load(dir, NULL, &m) == CDR_OK);
    text = edit(text, "\"model_type\": \"kimi_linear\"", "\"model_type\": \"acme\"");
    refused(text, "model.unknown-family", "Nearest: kimi_linear, 22 of whose 22 keys are there");
    refused(edit(text, "\"kv_lora_rank\": 32,", ""), "model.unknown-family", "it lacks kv_lora_rank");
    /* of two whose keys are all there, the one that knows more of the file */
    refused(edit(config_of(model("tiny-k31"), -1), "KimiK31ForConditionalGeneration", "AcmeForCausalLM"), "model.unknown-family", "Nearest: kimi_k31, ");
    /* two that are named alike are no choice; one that is named and has its type as well is */
    const char *two = edit(config_of(model("tiny-linear"), -1), "[\"KimiLinearForCausalLM\"]", "[\"KimiLinearForCausalLM\", \"KimiK3ForConditionalGeneration\"]");
    put_file("config.json", two);
    if (load(dir, NULL, &m)) T_STR(err.text, "");
    refused(edit(two, "\"model_type\": \"kimi_linear\"", "\"model_type\": \"acme\""), "model.ambiguous", "both kimi_k3 and kimi_linear match");
    put_file("model.yaml", "extends: kimi_linear\nname: acme\nignore: [rope_theta, alpha]\n");
    put_file("config.json", edit(text, "\"hidden_act\"", "\"alpha\": 1, \"hidden_act\""));
    T_CHECK(load(dir, NULL, &m) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    else T_STR(m->info.name, "acme");
    T_CHECK(unlink(path("model.yaml")) == 0);
    refused("[1]", "model.no-config", "no JSON object");
    refused("{", "json.syntax", "");
}

static void rows_as_a_file_has_them(void)
{
    cdr_model *m = model("kimi_k3");
    int64_t n = cdr_model_params(m), seen = 0;
    for (int64_t i = 0; i < n; i++) {
        cdr_model_row r = cdr_model_stored(m, i);
        if (strcmp(r.name, "language_model.model.layers.0.self_attn.A_log") == 0)
            T_CHECK(++seen && r.n_dim == 1 && r.n[0] == 128 && r.padded && r.fill == 0 && r.n_formats == 1 && strcmp(r.format[0], "F32") == 0);
        if (strcmp(r.name, "language_model.model.layers.1.block_sparse_moe.experts.{expert}.w2.weight") == 0)
            T_CHECK(++seen && r.n_dim == 2 && r.n[0] == 3584 && r.n[1] == 3072 && !r.padded && r.n_formats == 2 && strcmp(r.format[0], "MXFP4") == 0);
        if (strcmp(r.name, "language_model.model.layers.0.self_attn.q_conv1d.weight") == 0) T_CHECK(++seen && r.n_dim == 3 && r.n[1] == 1 && r.n[2] == 4);
    }
    T_CHECK(seen == 3);
    m = model("kimi_linear");
    for (int64_t i = 0; i < cdr_model_params(m); i++) {
        cdr_model_row r = cdr_model_stored(m, i);
        if (strcmp(r.name, "model.layers.0.self_attn.A_log") == 0) T_CHECK(++seen && r.n_dim == 4 && r.n[2] == 32 && !r.padded);
    }
    T_CHECK(seen == 4);
}

static void what_is_carried(void)
{
    cdr_model *k3 = model("kimi_k3"), *v3 = model("deepseek_v3"), *slice;
    T_CHECK(cdr_model_carries(k3, "vision_tower.patch_embed.proj.weight") && cdr_model_carries(k3, "mm_projector.proj.0.weight"));
    T_CHECK(!cdr_model_carries(k3, "language_model.model.layers.93.x") && !cdr_model_carries(k3, "xvision_tower.a") && !cdr_model_carries(k3, "vision_tower"));
    T_CHECK(cdr_model_carries(v3, "model.layers.61.eh_proj.weight") && !cdr_model_carries(v3, "model.layers.62.eh_proj.weight") &&
            !cdr_model_carries(v3, "model.layers.60.mlp.x") && !cdr_model_carries(v3, "model.layers.061.x") && !cdr_model_carries(v3, "model.layers.61x"));
    put_file("config.json", edit(config_of(model("tiny-v3"), -1), "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 2"));
    cdr_model *tiny = model(dir);
    T_CHECK(tiny && cdr_model_carries(tiny, "model.layers.3.a.b") && cdr_model_carries(tiny, "model.layers.4.a") && !cdr_model_carries(tiny, "model.layers.5.a") &&
            !cdr_model_carries(tiny, "model.layers.2.a"));
    T_CHECK(load(dir, "0-1", &slice) == CDR_OK && cdr_model_carries(slice, "model.layers.2.mlp.gate.weight") && !cdr_model_carries(slice,
        "model.layers.1.mlp.gate.weight") &&
            cdr_model_carries(slice, "model.layers.3.a") && !cdr_model_carries(slice, "model.embed_tokens.weight"));
    T_CHECK(slice->info.n_layers == 2 && slice->info.n_params < tiny->info.n_params);
}

static void tokenizer_and_consumers(void)
{
    put_file("config.json", config_of(model("tiny-k31"), -1));
    cdr_model *m = model(dir);
    cdr_model_text t = cdr_model_get_text(m), full = cdr_model_get_text(model("kimi_k3")), byte = cdr_model_get_text(model("tiny-k3"));
    T_STR(t.type, "tiktoken");
    T_STR(t.file, "tiktoken.model");
    T_STR(t.dir, dir);
    T_STR(t.pattern, "kimi");
    T_STR(t.chat, "k3_xtml");
    T_CHECK(t.base == 256 && t.special == 256 && full.base == 163584 && full.dir == NULL && byte.file == NULL);
    T_STR(byte.type, "byte");
    T_CHECK(cdr_model_serves(m, "sglang", "o_proj") == 1 && cdr_model_serves(m, "sglang", "g_proj") == 0 && cdr_model_serves(m, "vllm", "o_proj") == -1);
}

/* A row that may be absent is bound where the index has its tensor: the bias of K3.1's key norms, here in the second of two layers. */
static void optional_rows_follow_the_index(void)
{
    const char *bias = "language_model.model.layers.7.self_attn.indexer.k_norm.bias";
    put_file("config.json", config_of(model("tiny-k31"), CDR_BF16));
    cdr_model *bare = model(dir);
    put_file("model.safetensors.index.json", cdr_pool_printf(pool, "{\"metadata\": {\"total_size\": 64}, \"weight_map\": {\"%s\": "
        "\"model-00001-of-00001.safetensors\"}}", bias));
    cdr_model *m = model(dir);
    T_CHECK(m && bare && m->n_tensors == bare->n_tensors + 1 && m->info.n_params == bare->info.n_params + 32 && m->info.hash != bare->info.hash);
    for (int64_t i = 0, seen = 0; m && i < m->n_tensors; i++) {
        cdr_model_row r = cdr_model_stored(m, i);
        if (r.optional) T_CHECK(++seen == 1 && strcmp(r.name, bias) == 0 && r.absent == 0);
    }
    cdr_model_spec s = { .path = dir, .random = true };
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_OK && m->n_tensors == bare->n_tensors);
    put_file("model.safetensors.index.json", "{");
    T_CHECK(load(dir, NULL, &m) == CDR_EDATA);
    T_CHECK(unlink(path("model.safetensors.index.json")) == 0);
}

/* The hash is of the model, not of where it lies; sizes of a directory with weights are fixed. */
static void hash_and_sizes(void)
{
    cdr_model *a, *b;
    const char *text = config_of(model("tiny-v32"), -1), *other = cdr_pool_printf(pool, "%s.two", dir);
    put_file("config.json", text);
    T_CHECK(mkdir(other, 0777) == 0 && cdr_file_write(cdr_pool_printf(pool, "%s/config.json", other), text, strlen(text), &err) == CDR_OK);
    T_CHECK((a = model(dir)) && (b = model(other)) && a->info.hash == b->info.hash);
    put_file("config.json", edit(text, "\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": 2.4"));
    T_CHECK((b = model(dir)) && a && a->info.hash != b->info.hash);
    put_file("config.json", text);
    cdr_pair p[1] = { { 0 } };
    p[0].name = "glu.width";
    p[0].text = "64";
    cdr_pairs sizes = { .p = p, .n = 1 };
    cdr_model_spec s = { .path = dir, .sizes = &sizes };
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &b, &err) == CDR_OK);
    put_file("model.safetensors", "x");
    T_CHECK((b = model(dir)) && cdr_model_dir(b) && strcmp(cdr_model_dir(b), dir) == 0);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &b, &err) == CDR_EUSER);
    T_STR(err.id, "model.fixed-sizes");
    s.random = true;
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &b, &err) == CDR_OK && cdr_model_dir(b) == NULL && cdr_model_get_text(b).dir != NULL);
    put_file("model.yaml", cdr_pool_printf(pool, "extends: tiny-v32\nname: away\nweights_from: %s\n", other));
    T_CHECK((b = model(path("model.yaml"))) && b->source && strcmp(b->source->dir, other) == 0 && cdr_model_dir(b) == NULL);
    /* sizes that such a file says itself are not config.json's */
    put_file("model.yaml", cdr_pool_printf(pool, "extends: tiny-v32\nname: away\nweights_from: %s\nsizes: {index: {top_k: 8}}\n", other));
    int own = 0;
    T_CHECK((b = model(path("model.yaml"))) != NULL);
    for (int64_t i = 0; b && i < cdr_model_sizes(b); i++) {
        const char *value, *from;
        if (strcmp(cdr_model_size(b, i, &value, &from), "index.top_k") == 0) own += strcmp(value, "8") == 0;
    }
    T_CHECK(own == 1);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    pool = cdr_pool_new();
    T_CHECK(mkdtemp(dir) != NULL);
    T_RUN(every_family_is_read_back);
    T_RUN(keys_of_the_releases);
    T_RUN(aliases_are_read_and_noted);
    T_RUN(layer_lists_share_out_the_stack);
    T_RUN(meaningful_values_are_checked);
    T_RUN(quantisations);
    T_RUN(unknown_families_have_a_nearest);
    T_RUN(rows_as_a_file_has_them);
    T_RUN(what_is_carried);
    T_RUN(tokenizer_and_consumers);
    T_RUN(optional_rows_follow_the_index);
    T_RUN(hash_and_sizes);
    cdr_remove_tree(cdr_pool_printf(pool, "%s.two", dir), &err);
    cdr_remove_tree(dir, &err);
    cdr_pool_free(pool);
    return t_end();
}
