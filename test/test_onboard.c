/* test_onboard.c: inspect and onboard on directories that this program writes, one of each family: everything is found, a card is written whose
 * claims hold, a tensor too many or too few is named; against dumps that transformers made of the same directories (tools/peers/models.py), with
 * natural and with given routes, layer by layer.
 *
 *   test_onboard write MODEL DIR        the directory alone, for making a dump
 */
#include "cadre.h"
#include "models/models.h"
#include "tokenizer/tokenizer.h"
#include "weights/weights.h"
#include "test.h"
#include <unistd.h>

static cdr_pool *pool;
static cdr_err err;
static char root[] = "test_onboard.XXXXXX";

/* Values that a trained model could have: matrices 1 / sqrt(columns), gains about one, biases small, A_log and dt_bias as initialised; representable
 * in BF16, so that a file of any format holds them exactly. */
typedef struct { cdr_rng_key key; float scale, shift; } law;

static law law_of(const cdr_model *m, int64_t i_param)
{
    const char *name = cdr_model_param(m, i_param);
    cdr_model_part p = cdr_model_param_part(m, i_param);
    law l = { .key = { 5, cdr_hash64(name, strlen(name), 0), 0 } };
    if (strstr(name, "A_log") || strstr(name, "dt_bias")) l.scale = 0.3f;
    else if (strstr(name, "norm.bias") || strstr(name, "correction_bias")) l.scale = 0.05f;
    else if (p.n_dim == 1 || strstr(name, "norm")) l.scale = 0.1f, l.shift = 1.0f;
    else l.scale = strstr(name, "gate.weight") ? 0.5f : 1.5f / sqrtf((float)p.n[p.n_dim - 1]);
    return l;
}

static float value_of(const law *l, int64_t at)
{
    float x = l->shift + l->scale * cdr_rng_normal(l->key, (uint64_t)at), y;
    uint16_t narrow;
    cdr_from_f32(CDR_BF16, &x, &narrow, 1);
    cdr_to_f32(CDR_BF16, &narrow, &y, 1);
    return y;
}

static cdr_status rows(void *ctx, int64_t i_param, int64_t first_row, int64_t n_rows, int dtype, void *dst, cdr_err *e)
{
    const cdr_model *m = ctx;
    cdr_model_part p = cdr_model_param_part(m, i_param);
    int64_t cols = p.n[p.n_dim - 1], n = n_rows * cols;
    if (p.n_dim == 1 && n_rows != 1) n = n_rows, cols = 1;
    float *x = cdr_alloc(sizeof *x * (size_t)n);
    law l = law_of(m, i_param);
    for (int64_t i = 0; i < n; i++) x[i] = value_of(&l, first_row * cols + i);
    (void)e;
    cdr_from_f32(dtype, x, dst, n);
    cdr_free(x);
    return CDR_OK;
}

static cdr_status write_dir(const char *model, const char *dir, cdr_err *e)
{
    cdr_model_spec s = { .path = model };
    cdr_model *m;
    cdr_tokenizer *tok;
    cdr_weights_out_stat stat;
    CDR_TRY(cdr_model_load(&s, pool, &m, e));
    cdr_weights_out out = { .model = m, .rows = rows, .ctx = m, .experts = CDR_BF16, .shard_bytes = 1 << 20 };
    CDR_TRY(cdr_weights_write(dir, &out, &stat, e));
    CDR_TRY(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, e));
    cdr_status st = cdr_tokenizer_write_tiktoken(tok, dir, "tiktoken.model", e);
    cdr_tokenizer_close(tok);
    return st;
}

static const char *dir_of(const char *model)
{
    const char *dir = cdr_pool_printf(pool, "%s/%s", root, model);
    err = (cdr_err){ 0 };
    if (!cdr_exists(dir) && write_dir(model, dir, &err)) T_STR(err.text, model);
    return dir;
}

/* ---- inspect ----------------------------------------------------------------------------------------------------------------------------- */

static cdr_status look(const char *path, const char *tensors, bool config, cdr_result *r)
{
    cdr_inspect_args a = { .path = path, .tensors = tensors, .config = config };
    *r = (cdr_result){ 0 };
    err = (cdr_err){ 0 };
    return cdr_inspect(&a, r, &err);
}

static const cdr_json *parsed(const char *text)
{
    const cdr_json *j = NULL;
    if (!text || cdr_json_parse(pool, text, strlen(text), "json", &j, &err)) T_STR(text, err.text);
    return j;
}

static void inspect_says_what_it_is(void)
{
    cdr_result r;
    const char *dir = dir_of("tiny-k31");
    if (look(dir, NULL, false, &r)) T_STR(err.text, "");
    const cdr_json *j = parsed(r.json);
    T_HAS(r.text, "checkpoint, Hugging Face layout, kimi_k31: ");
    T_HAS(r.text, "8 layers (6 KDA, 2 DSA), 32 experts top-4; tiktoken 256 + 256; k3_xtml; one-based layer lists, A_log stored 128 (2 live); unknown 0, missing 0");
    T_STR(cdr_json_str(cdr_json_get(j, "family"), ""), "kimi_k31");
    T_CHECK(cdr_json_int(cdr_json_get(j, "unknown"), -1) == 0 && cdr_json_int(cdr_json_get(j, "missing"), -1) == 0 && cdr_json_int(cdr_json_get(j, "parameters"),
        0) == 4059296);
    T_CHECK(cdr_json_int(cdr_json_get(j, "tensors"), 0) == cdr_json_int(cdr_json_get(j, "used"), 0));
    cdr_result_free(&r);
    T_CHECK(look(dir, "*layers.3.*k_norm*", true, &r) == CDR_OK);
    T_HAS(r.text, "BF16     [32]");
    T_HAS(r.text, "moe.top_k          4                        num_experts_per_token");
    cdr_result_free(&r);
    T_CHECK(look(dir, "nothing", false, &r) == CDR_EUSER);
    T_STR(err.id, "inspect.no-match");
    cdr_result_free(&r);
    T_CHECK(look("kimi-k3", NULL, true, &r) == CDR_OK);
    T_HAS(r.text, "\"num_experts\": 896");
    cdr_result_free(&r);
    T_CHECK(look(root, NULL, false, &r) == CDR_EUSER);
    T_STR(err.id, "inspect.unknown");
    T_CHECK(look("no-such-thing", NULL, false, &r) == CDR_EUSER);
    T_STR(err.id, "inspect.missing");
}

static void write_text(const char *path, const char *text) { T_CHECK(cdr_file_write(path, text, strlen(text), &err) == CDR_OK); }

/* Files of a checkpoint, an adapter or a run by their keys, under any name; a .json of something else is unknown, a broken one an error with its place. */
static void inspect_of_single_json_files(void)
{
    static const struct { const char *text, *kind, *has; } FILES[] = {
        { "{\"architectures\": [\"KimiK3ForConditionalGeneration\"]}", "config", "configuration of a model: kimi_k3 by architectures\n" },
        { "{\"model_type\": \"no-such\"}", "config", "configuration of a model: config.json: architectures [], model_type no-such: no description matches" },
        { "{\"metadata\": {}, \"weight_map\": {\"a\": \"x\", \"b\": \"x\"}}", "index", "index of the tensors of a checkpoint: 2 tensors\n" },
        { "{\"peft_type\": \"LORA\", \"r\": 8, \"base_model_name_or_path\": \"k3\"}", "adapter_config", "configuration of an adapter: LORA, rank 8, of the base k3\n" },
        { "{\"format\": \"cadre-card\", \"summary\": {\"verified\": 3, \"failed\": 1}}", "card", ": 3 verified, 0 unverified, 1 failed\n" },
        { "{\"eos_token_id\": 2}", "generation_config", "generation stops\n" },
    };
    cdr_result r;
    const char *path = cdr_pool_printf(pool, "%s/any.json", root);
    for (int i = 0; i < CDR_COUNT(FILES); i++) {
        write_text(path, FILES[i].text);
        if (look(path, NULL, false, &r)) T_STR(err.text, "");
        T_HAS(r.text, FILES[i].has);
        T_HAS(r.text, cdr_pool_printf(pool, "says more: cadre inspect %s\n", root));
        T_STR(cdr_json_str(cdr_json_get(parsed(r.json), "kind"), ""), FILES[i].kind);
        cdr_result_free(&r);
    }
    const char *toy = cdr_pool_printf(pool, "%s/toy", root);
    cdr_toy_args a = { .common = { .quiet = true }, .family = "deepseek_v2", .out = toy };
    T_CHECK(cdr_toy(&a, &r, &err) == CDR_OK && rename(cdr_pool_printf(pool, "%s/tokenizer.json", toy), path) == 0);
    cdr_result_free(&r);
    if (look(path, NULL, false, &r)) T_STR(err.text, "");
    T_HAS(r.text, "tokenizer, hf_bpe: 256 tokens");
    cdr_result_free(&r);
    write_text(path, "{\"eos_token\": 2}");
    T_CHECK(look(path, NULL, false, &r) == CDR_EUSER);
    T_STR(err.id, "inspect.unknown");
    write_text(path, "{\"architectures\": [}");
    T_CHECK(look(path, NULL, false, &r) == CDR_EDATA);
    T_HAS(err.text, "any.json:1:20");
}

/* An index that names one tensor too many, one too few, and one of an expert that is not there. */
static void inspect_finds_what_is_wrong(void)
{
    cdr_result r;
    const char *dir = dir_of("tiny-v3"), *bad = cdr_pool_printf(pool, "%s/bad", root);
    char *text;
    size_t n;
    T_CHECK(cdr_make_dirs(bad, &err) == CDR_OK);
    T_CHECK(cdr_file_read(cdr_pool_printf(pool, "%s/config.json", dir), 1 << 20, &text, &n, &err) == CDR_OK);
    T_CHECK(cdr_file_write(cdr_pool_printf(pool, "%s/config.json", bad), text, n, &err) == CDR_OK);
    cdr_free(text);
    static const char index[] =
                           "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\",\"model.norm.wait\":\"a.safetensors\","
                           "\"model.layers.1.mlp.experts.15.up_proj.weight\":\"a.safetensors\",\"model.layers.1.mlp.experts.16.up_proj.weight\":\"a.safetensors\"}}";
    T_CHECK(cdr_file_write(cdr_pool_printf(pool, "%s/model.safetensors.index.json", bad), index, strlen(index), &err) == CDR_OK);
    if (look(bad, NULL, false, &r)) T_STR(err.text, "");
    const cdr_json *j = parsed(r.json);
    T_HAS(r.text, "(0 present)");
    T_HAS(r.text, "unknown: model.layers.1.mlp.experts.16.up_proj.weight, model.norm.wait");
    T_CHECK(cdr_json_int(cdr_json_get(j, "unknown"), 0) == 2 && cdr_json_int(cdr_json_get(j, "used"), 0) == 2 && cdr_json_int(cdr_json_get(j, "missing"), 0) > 20);
    cdr_result_free(&r);
}

/* ---- onboard ----------------------------------------------------------------------------------------------------------------------------- */

static const cdr_json *card(const char *work)
{
    char *text;
    size_t n;
    if (cdr_file_read(cdr_pool_printf(pool, "%s/card.json", work), 1 << 20, &text, &n, &err)) {
        T_STR(err.text, "");
        return NULL;
    }
    const cdr_json *j = parsed(cdr_pool_strndup(pool, text, n));
    cdr_free(text);
    return j;
}

static const cdr_json *item(const cdr_json *j, const char *id)
{
    const cdr_json *all = cdr_json_get(j, "items");
    for (int64_t i = 0; i < cdr_json_count(all); i++) if (strcmp(cdr_json_str(cdr_json_get(cdr_json_at(all, i), "id"), ""), id) == 0) return cdr_json_at(all, i);
    return NULL;
}

static void status_is(const cdr_json *j, const char *id, const char *status)
{
    const cdr_json *it = item(j, id);
    const char *is = cdr_json_str(cdr_json_get(it, "status"), "absent");
    if (strcmp(is, status) != 0) T_STR(cdr_pool_printf(pool, "%s: %s (%s)", id, is, cdr_json_str(cdr_json_get(it, "detail"), "")), status);
}

static cdr_status onboard(const char *dir, const char *work, const char *ref)
{
    cdr_onboard_args a = { .dir = dir, .out = work, .verify = ref, .common = { .quiet = true } };
    cdr_result r = { 0 };
    err = (cdr_err){ 0 };
    cdr_status st = cdr_onboard(&a, &r, &err);
    cdr_result_free(&r);
    return st;
}

static void a_card_whose_claims_hold(void)
{
    static const char *const verified[] = { "config_keys", "tensors_matched", "parameters", "dtypes", "quirks", "tokenizer_roundtrip", "chat_render", "tiny_parity",
        "lora_zero",
                                            "first_step_loss", "roundtrip_export", "plan" };
    const char *work = cdr_pool_printf(pool, "%s/work", root);
    if (onboard(dir_of("tiny-k31"), work, NULL)) T_STR(err.text, "");
    const cdr_json *j = card(work);
    if (!j) return;
    T_STR(cdr_json_str(cdr_json_get(j, "format"), ""), "cadre-card");
    for (int i = 0; i < CDR_COUNT(verified); i++) status_is(j, verified[i], "verified");
    status_is(j, "reference_parity", "unverified");
    double tiny = cdr_json_real(cdr_json_get(item(j, "tiny_parity"), "figure"), 0);
    T_CHECK(tiny > 1e-9 && tiny < 2e-4);                                /* F32 against double: near, and never equal */
    T_CHECK(cdr_json_int(cdr_json_get(cdr_json_get(j, "summary"), "verified"), 0) == 12 && cdr_json_count(cdr_json_get(j, "items")) == 15);
    T_CHECK(cdr_json_int(cdr_json_get(cdr_json_get(j, "model"), "parameters"), 0) == 4059296);
    T_CHECK(cdr_exists(cdr_pool_printf(pool, "%s/plan.json", work)) && !cdr_exists(cdr_pool_printf(pool, "%s/export", work)));
    cdr_model_spec s = { .path = cdr_pool_printf(pool, "%s/model.yaml", work) };       /* what it wrote is read again */
    cdr_model *m;
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_OK && cdr_model_get_info(m)->n_params == 4059296 && cdr_model_dir(m));
    cdr_model *of_dir;                                                              /* and is the same base */
    s = (cdr_model_spec){ .path = dir_of("tiny-k31") };
    T_CHECK(cdr_model_load(&s, pool, &of_dir, &err) == CDR_OK && cdr_model_get_info(m)->function == cdr_model_get_info(of_dir)->function);
}

/* Dumps of transformers in F32. Routes given, logits and every layer agree to F32 rounding; so do they with routes of our own, where no two scores are
 * a rounding apart. */
static void agrees_with_transformers(void)
{
    static const char *const models[] = { "tiny-glm", "tiny-linear", "tiny-v2" };
    for (int i = 0; i < CDR_COUNT(models); i++) {
        const char *ref = cdr_pool_printf(pool, "test/golden/onboard-%s.safetensors", models[i]), *work = cdr_pool_printf(pool, "%s/work-%s", root, models[i]);
        if (t_quick() && i > 1) break;
        if (onboard(dir_of(models[i]), work, ref)) T_STR(err.text, models[i]);
        const cdr_json *j = card(work);
        status_is(j, "reference_parity", "verified");
        status_is(j, "reference_parity_forced", "verified");
        status_is(j, "layer_parity", "verified");
        T_STR(cdr_json_str(cdr_json_get(item(j, "reference_parity_forced"), "expected"), ""), "below 0.0005");
        T_STR(cdr_json_str(cdr_json_get(item(j, "reference_parity"), "expected"), ""), "below 0.0005; where routes differ, at least 98 % of them equal and below 0.2");
        T_CHECK(cdr_json_real(cdr_json_get(item(j, "layer_parity"), "figure"), 1) < 5e-5 && cdr_json_real(cdr_json_get(item(j, "reference_parity_forced"), "figure"),
            1) < 5e-5);
    }
}

/* The dump of another model: every comparison fails, and the exit code says so. */
static void another_model_does_not_agree(void)
{
    const char *work = cdr_pool_printf(pool, "%s/work-other", root), *quote = cdr_pool_printf(pool, "%s/it's: {a \"name\"}", root);
    T_CHECK(rename(dir_of("tiny-v2"), quote) == 0);
    T_CHECK(onboard(quote, work, "test/golden/onboard-tiny-glm.safetensors") == CDR_EUSER);
    T_STR(err.id, "onboard.failed");
    const cdr_json *j = card(work);
    status_is(j, "layer_parity", "failed");
    status_is(j, "reference_parity_forced", "failed");
    status_is(j, "reference_parity", "failed");
    status_is(j, "plan", "verified");                                  /* so the recipe names the directory, whatever is in its name */
    T_CHECK(onboard(cdr_pool_printf(pool, "%s/no", root), work, NULL) == CDR_EDATA);
    T_HAS(err.text, "there is no such directory. Name the directory of a checkpoint");
    const char *fresh = cdr_pool_printf(pool, "%s/work-fresh", root);
    T_CHECK(onboard(quote, fresh, "no-such-dump.safetensors") == CDR_EDATA && !cdr_exists(fresh));
    T_HAS(err.text, "--verify no-such-dump.safetensors: there is no such file");
}

/* Logits as integers: the comparison fails with the tensor's name, whatever else is there. */
static void integers_are_no_logits(void)
{
    static const char is[] = "\"logits\":{\"dtype\":\"F32\"";
    const char *work = cdr_pool_printf(pool, "%s/work-integers", root), *dump = cdr_pool_printf(pool, "%s/integers.safetensors", root);
    char *bytes, *at;
    size_t n;
    T_CHECK(cdr_file_read("test/golden/onboard-tiny-linear.safetensors", 1 << 20, &bytes, &n, &err) == CDR_OK);
    at = memmem(bytes, n, is, sizeof is - 1);
    T_CHECK(at != NULL);
    if (at) at[sizeof is - 5] = 'I';
    T_CHECK(cdr_file_write(dump, bytes, n, &err) == CDR_OK);
    cdr_free(bytes);
    T_CHECK(onboard(dir_of("tiny-linear"), work, dump) == CDR_EUSER);
    const cdr_json *j = card(work);
    static const char *const items[] = { "reference_parity", "reference_parity_forced", "layer_parity" };
    for (int i = 0; i < CDR_COUNT(items); i++) {
        status_is(j, items[i], "failed");
        T_HAS(cdr_json_str(cdr_json_get(item(j, items[i]), "detail"), ""), "logits must be a tensor of floats, [.., 512] with 24 rows");
    }
}

/* Experts that are packed: two elements a byte are counted, and the directory comes back byte for byte. */
static void packed_experts_are_counted(void)
{
    const char *toy = cdr_pool_printf(pool, "%s/packed", root), *work = cdr_pool_printf(pool, "%s/work-packed", root);
    cdr_toy_args a = { .common = { .quiet = true }, .family = "kimi_k3", .out = toy };
    cdr_result r = { 0 };
    T_CHECK(cdr_toy(&a, &r, &err) == CDR_OK);
    cdr_result_free(&r);
    if (onboard(toy, work, NULL)) T_STR(err.text, "");
    const cdr_json *j = card(work);
    status_is(j, "parameters", "verified");
    status_is(j, "roundtrip_export", "verified");
    T_HAS(cdr_json_str(cdr_json_get(item(j, "dtypes"), "detail"), ""), " MXFP4");
}

/* One expert of one token in the dump is another one: so many routes are counted as equal, less one. */
static void one_route_is_another(void)
{
    const char *ref = "test/golden/onboard-tiny-glm.safetensors", *bent = cdr_pool_printf(pool, "%s/bent.safetensors", root);
    const char *work = cdr_pool_printf(pool, "%s/work-bent", root);
    char *data;
    size_t n, at = 0;
    cdr_st *st;
    T_CHECK(cdr_file_read(ref, 1 << 24, &data, &n, &err) == CDR_OK && cdr_st_open(ref, &st, &err) == CDR_OK);
    const cdr_st_tensor *t = NULL;
    for (int64_t i = 0; i < cdr_st_count(st) && !t; i++) if (strstr(cdr_st_at(st, i)->name, ".indices")) t = cdr_st_at(st, i);
    T_CHECK(t && t->n_dim >= 2);
    at = cdr_st_data_start(st) + t->begin;
    int64_t k = t->n[t->n_dim - 1], width = t->dtype == CDR_I64 ? 8 : 4;
    bool used[256] = { false };
    for (int64_t i = 0; i < k; i++) used[(uint8_t)data[at + (size_t)(i * width)]] = true;
    uint8_t other = 0;
    while (used[other]) other++;
    data[at] = (char)other;
    T_CHECK(cdr_file_write(bent, data, n, &err) == CDR_OK);
    cdr_st_close(st);
    cdr_free(data);
    (void)onboard(dir_of("tiny-glm"), work, bent);
    const char *detail = cdr_json_str(cdr_json_get(item(card(work), "reference_parity"), "detail"), ""), *equal = strstr(detail, "routes equal in ");
    const char *of = equal ? strstr(equal, " of ") : NULL;
    T_CHECK(of && atoi(of + 4) > 1 && atoi(equal + 16) == atoi(of + 4) - 1);
    if (t_this_failed) T_STR(detail, "");
}

int main(int argc, char **argv)
{
    pool = cdr_pool_new();
    if (argc == 4 && strcmp(argv[1], "write") == 0) {
        if (write_dir(argv[2], argv[3], &err)) return fprintf(stderr, "%s\n", err.text), 1;
        return 0;
    }
    t_filter = argc > 1 ? argv[1] : NULL;
    T_CHECK(mkdtemp(root) != NULL);
    T_RUN(inspect_says_what_it_is);
    T_RUN(inspect_finds_what_is_wrong);
    T_RUN(inspect_of_single_json_files);
    T_RUN(a_card_whose_claims_hold);
    T_RUN(agrees_with_transformers);
    T_RUN(integers_are_no_logits);
    T_RUN(one_route_is_another);
    T_RUN(another_model_does_not_agree);
    T_RUN(packed_experts_are_counted);
    cdr_remove_tree(root, &err);
    cdr_pool_free(pool);
    return t_end();
}
