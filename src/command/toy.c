/* toy.c: `cadre toy FAMILY`: a small complete checkpoint in Hugging Face layout, with the family's true names, shapes of their kind, dtypes and side
 * files: for tests, documents, and whoever wants to hold one. Weights are the family's random ones, a pure function of the seed, or those of a
 * run. Sizes are those of the built-in tiny model of the family; --set model.sizes.NAME=N changes them.
 * Carried tensors (vision towers, layers of multi-token prediction) are not made.
 */
#include "command/export_hf.h"
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    const cdr_toy_args *a;
    cdr_pool *pool;
    cdr_recipe r;
    cdr_model *model, *family;
    cdr_bundle bundle;                    /* of random weights */
    int32_t *param;                       /* by the model's parameter: the bundle's */
    cdr_ckpt *from;
} toy;

/* ---- which model ---------------------------------------------------------------------------------------------------------- */
static char *normal(cdr_pool *pool, const char *name)
{
    char *s = cdr_pool_strdup(pool, name);
    for (char *c = s; *c; c++) if (*c == '-') *c = '_';
    return s;
}

/* The built-in tiny model of the family. */
static cdr_status find_tiny(toy *t, const char **name, cdr_err *err)
{
    int n = 0;
    const char *const *all = cdr_builtin_names("models", t->pool, &n), *want = normal(t->pool, t->a->family);
    const char **families = cdr_pool_alloc(t->pool, sizeof *families * (size_t)(n + 1));
    int n_families = 0;
    *name = NULL;
    for (int i = 0; i < n; i++) {
        cdr_model *m;
        cdr_model_spec spec = { .path = all[i] };
        if (strncmp(all[i], "tiny-", 5) != 0 || cdr_model_load(&spec, t->pool, &m, NULL) != CDR_OK) continue;
        const char *family = cdr_model_get_info(m)->family;
        if (!cdr_builtin("models", family) || strncmp(family, "tiny", 4) == 0) continue;        /* a model of nobody's family */
        families[n_families++] = family;
        if (strcmp(family, want) == 0 && !*name) *name = all[i];
    }
    if (*name) return CDR_OK;
    cdr_text list = { 0 };
    for (int i = 0; i < n_families; i++) cdr_text_printf(&list, "%s%s", i ? ", " : "", families[i]);
    cdr_status st = cdr_fail(err, CDR_EUSER, "toy.family", "cadre toy %s: no family of which a tiny model is built in.%s They are: %s", t->a->family,
                             cdr_nearest(t->pool, want, families, n_families), list.s ? list.s : "");
    cdr_text_free(&list);
    return st;
}

static cdr_status load_tiny(toy *t, cdr_err *err)
{
    const char *name;
    CDR_TRY(find_tiny(t, &name, err));
    const char *text = cdr_pool_printf(t->pool, "model: {path: %s}\ndata: {train: [none]}\n", name);
    cdr_recipe_text rt = { text, strlen(text), "cadre toy", name };
    CDR_TRY(cdr_recipe_parse(&rt, &t->a->common, t->pool, &t->r, err));
    return CDR_OK;
}

static cdr_status load_run(toy *t, cdr_err *err)
{
    CDR_TRY(cdr_ckpt_open(t->a->from, &t->from, err));
    return cdr__recipe_of_ckpt(t->from, &t->a->common, t->pool, &t->r, err);
}

static cdr_status load_models(toy *t, cdr_err *err)
{
    CDR_TRY(t->a->from ? load_run(t, err) : load_tiny(t, err));
    cdr_model_spec spec = cdr__model_spec(&t->r);
    CDR_TRY(cdr_model_load(&spec, t->pool, &t->model, err));
    const cdr_model_info *info = cdr_model_get_info(t->model);
    if (t->a->family && strcmp(info->family, normal(t->pool, t->a->family)) != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "toy.family", "cadre toy %s: %s trained %s, which is of the family %s. Write: cadre toy %s", t->a->family, t->a->from, info->name,
                    info->family, info->family);
    if (t->from && cdr_ckpt_description_hash(t->from) != info->hash)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.other-model", "%s: was written by another model description than %s", cdr_ckpt_dir(t->from), info->name);
    cdr_model_spec whole = { .path = info->family };
    if (cdr_builtin("models", info->family)) return cdr_model_load(&whole, t->pool, &t->family, err);
    t->family = t->model;                 /* a description of its own */
    return CDR_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */
/* The parameters with their init rules: what a compile declares. */
static cdr_status declare(toy *t, cdr_err *err)
{
    cdr_compile_opts o = cdr_compile_defaults();
    cdr_builder b = cdr_model_builder(t->model);
    o.T = o.gen_T = 16;
    o.gen_S = o.sequence = 16;
    o.compute = o.params = CDR_F32;
    o.infer_only = o.unplaced = true;
    o.policy = CDR_POLICY_KEEP;
    o.experts_dtype = CDR_F32;
    CDR_TRY(cdr_compile(&o, &b, t->pool, &t->bundle, err));
    const int64_t n = cdr_model_params(t->model);
    t->param = cdr_pool_alloc(t->pool, sizeof *t->param * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) {
        int32_t k = 0;
        while (k < t->bundle.n_params && strcmp(t->bundle.params[k].name, cdr_model_param(t->model, i)) != 0) k++;
        CDR_CHECK(k < t->bundle.n_params);
        t->param[i] = k;
    }
    return CDR_OK;
}

static cdr_status rows(void *ctx, int64_t i, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    toy *t = ctx;
    cdr_model_part p = cdr_model_param_part(t->model, i);
    const int64_t cols = p.n[p.n_dim - 1];
    float *x = cdr_alloc(sizeof *x * (size_t)(n * cols + 1));
    cdr_status st = CDR_OK;
    if (t->from) st = cdr__run_rows(t->from, t->model, i, first, n, x, err);
    else cdr_param_draw(&t->bundle.params[t->param[i]], (uint64_t)t->r.seed, first * cols, n * cols, x, 1);
    if (st == CDR_OK) cdr_from_f32(dtype, x, dst, n * cols);
    cdr_free(x);
    return st;
}

/* ---- side files ---------------------------------------------------------------------------------------------------------------- */
enum { N_BYTES = 256 };
static const char *const HF_SPECIAL[] = { "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5c\u2581pad\u2581\uff5c>",
                                          "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<think>", "</think>" };

/* Byte-level BPE writes a byte as a character that is visible: itself where it is one, else the next from U+0100 on. */
static void put_byte_char(cdr_text *t, int byte)
{
    int next = 256, code = 0;
    for (int b = 0; b <= byte; b++) {
        bool own = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
        code = own ? b : next++;
    }
    if (code == '"' || code == '\\') cdr_text_printf(t, "\\%c", code);
    else if (code < 0x80) cdr_text_printf(t, "%c", code);
    else cdr_text_printf(t, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 0x3f));
}

/* tokenizer.json: the 256 bytes without a merge, special names behind them. */
static char *hf_tokenizer(toy *t, int64_t vocab)
{
    cdr_text x = { 0 };
    cdr_text_printf(&x, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int64_t id = N_BYTES; id < vocab; id++) {
        int64_t k = id - N_BYTES;
        const char *name = k < CDR_COUNT(HF_SPECIAL) ? HF_SPECIAL[k] : cdr_pool_printf(t->pool, "<\uff5cplace\u2581holder\u2581no\u2581%lld\uff5c>", (long long)k);
        cdr_text_printf(&x, "%s{\"id\":%lld,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}",
                        k ? "," : "", (long long)id, name);
    }
    cdr_text_printf(&x, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                    "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
    for (int b = 0; b < N_BYTES; b++) {
        cdr_text_printf(&x, b ? ",\"" : "\"");
        put_byte_char(&x, b);
        cdr_text_printf(&x, "\":%d", b);
    }
    cdr_text_printf(&x, "},\"merges\":[]}}\n");
    char *out = cdr_pool_strndup(t->pool, x.s, x.n);
    cdr_text_free(&x);
    return out;
}

typedef struct { cdr_side_file f[8]; int n; } sides;

static void add_side(sides *s, const char *name, const char *text)
{
    CDR_CHECK(s->n < CDR_COUNT(s->f));
    s->f[s->n++] = (cdr_side_file){ name, text, strlen(text) };
}

static void hf_sides(toy *t, int64_t vocab, sides *s)
{
    add_side(s, "tokenizer.json", hf_tokenizer(t, vocab));
    add_side(s, "tokenizer_config.json", cdr_pool_printf(t->pool, "{\n  \"add_bos_token\": false,\n  \"add_eos_token\": false,\n  \"bos_token\": \"%s\",\n"
             "  \"eos_token\": \"%s\",\n  \"pad_token\": \"%s\",\n"
             "  \"clean_up_tokenization_spaces\": false,\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n", HF_SPECIAL[0],
             HF_SPECIAL[1], HF_SPECIAL[2]));
    add_side(s, "chat_template.jinja", cdr_pool_printf(t->pool,
             "{{ bos_token }}{%% for message in messages %%}{%% if message['role'] == 'user' %%}%s{{ message['content'] }}"
             "{%% elif message['role'] == 'assistant' %%}%s{{ message['content'] }}{{ eos_token }}"
             "{%% else %%}{{ message['content'] }}{%% endif %%}{%% endfor %%}{%% if add_generation_prompt %%}%s{%% endif %%}", HF_SPECIAL[3], HF_SPECIAL[4],
             HF_SPECIAL[4]));
}

/* tokenizer_config.json of a family that speaks in Kimi-K2's marks: names and places of that release behind the 256 bytes. */
static char *k2_config(toy *t)
{
    static const struct { int slot; const char *name; } mark[] = {
        { 0, "[BOS]" }, { 1, "[EOS]" }, { 2, "<|im_end|>" }, { 3, "<|im_user|>" }, { 4, "<|im_assistant|>" }, { 6, "<|start_header_id|>" }, { 7, "<|end_header_id|>" },
        { 9, "[EOT]" }, { 10, "<|im_system|>" }, { 11, "<|tool_calls_section_begin|>" }, { 12, "<|tool_calls_section_end|>" }, { 13, "<|tool_call_begin|>" },
        { 14, "<|tool_call_argument_begin|>" }, { 15, "<|tool_call_end|>" }, { 17, "<|im_middle|>" }, { 254, "[UNK]" }, { 255, "[PAD]" },
    };
    cdr_text x = { 0 };
    cdr_text_printf(&x, "{\"added_tokens_decoder\":{");
    for (int i = 0; i < CDR_COUNT(mark); i++)
        cdr_text_printf(&x, "%s\"%d\":{\"content\":\"%s\",\"lstrip\":false,\"normalized\":false,\"rstrip\":false,\"single_word\":false,\"special\":true}", i ? "," : "",
                        N_BYTES + mark[i].slot, mark[i].name);
    cdr_text_printf(&x, "},\"bos_token\":\"[BOS]\",\"eos_token\":\"[EOS]\",\"pad_token\":\"[PAD]\",\"unk_token\":\"[UNK]\",\"tokenizer_class\":\"TikTokenTokenizer\"}\n");
    char *out = cdr_pool_strndup(t->pool, x.s, x.n);
    cdr_text_free(&x);
    return out;
}

/* The files that the tokenizer writes, by way of a folder of their own. */
static cdr_status tiktoken_sides(toy *t, const char *file, const char *chat, sides *s, cdr_err *err)
{
    static const char CONFIG[] = "tokenizer_config.json";
    cdr_tokenizer *tok;
    const char *dir = cdr_pool_printf(t->pool, "%s.tokenizer-%ld", t->a->out, (long)getpid());
    CDR_TRY(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, err));
    cdr_status st = cdr_make_dirs(dir, err);
    if (st == CDR_OK) st = cdr_tokenizer_write_tiktoken(tok, dir, file, err);
    cdr_tokenizer_close(tok);
    const char *const names[] = { file, CONFIG };
    for (int i = 0; i < 2 && st == CDR_OK; i++) {
        char *text;
        size_t bytes;
        st = cdr_file_read(cdr_pool_printf(t->pool, "%s/%s", dir, names[i]), 1 << 20, &text, &bytes, err);
        if (st != CDR_OK) break;
        add_side(s, names[i], i == 1 && chat && strcmp(chat, "kimi_k2") == 0 ? k2_config(t) : cdr_pool_strndup(t->pool, text, bytes));
        cdr_free(text);
    }
    (void)cdr_remove_tree(dir, NULL);
    return st;
}

/* generation_config.json: the ids that config.json names. */
static cdr_status generation_side(toy *t, const char *config, sides *s, cdr_err *err)
{
    static const char *const KEY[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
    const cdr_json *root;
    CDR_TRY(cdr_json_parse(t->pool, config, strlen(config), "config.json", &root, err));
    cdr_text x = { 0 };
    cdr_text_printf(&x, "{\n  \"_from_model_config\": true");
    for (int i = 0; i < CDR_COUNT(KEY); i++) {
        int64_t id = cdr_json_int(cdr_json_get(root, KEY[i]), -1);
        if (id >= 0) cdr_text_printf(&x, ",\n  \"%s\": %lld", KEY[i], (long long)id);
    }
    cdr_text_printf(&x, "\n}\n");
    add_side(s, "generation_config.json", cdr_pool_strndup(t->pool, x.s, x.n));
    cdr_text_free(&x);
    return CDR_OK;
}

static cdr_status make_sides(toy *t, int experts, sides *s, cdr_err *err)
{
    const cdr_model_text text = cdr_model_get_text(t->family);
    const int64_t vocab = cdr_model_get_info(t->model)->vocab;
    cdr_text config = { 0 };
    CDR_TRY(cdr_model_config(t->model, experts, &config, err));
    const char *json = cdr_pool_strndup(t->pool, config.s, config.n);
    cdr_text_free(&config);
    add_side(s, "config.json", json);
    CDR_TRY(generation_side(t, json, s, err));
    if (strcmp(text.type, "tiktoken") == 0) {
        if (vocab != N_BYTES + text.special)
            CDR_FAIL_ID(err, CDR_EUSER, "toy.vocab", "%s: the tokenizer that is written has %d bytes and %d special ids, the model %lld. Set model.sizes.vocab=%d",
                        cdr_model_get_info(t->model)->name, N_BYTES, text.special, (long long)vocab, N_BYTES + text.special);
        return tiktoken_sides(t, text.file ? text.file : "tiktoken.model", text.chat, s, err);
    }
    if (vocab < N_BYTES + CDR_COUNT(HF_SPECIAL))
        CDR_FAIL_ID(err, CDR_EUSER, "toy.vocab", "%s: a vocabulary of %lld; the tokenizer that is written needs %d. Set model.sizes.vocab=512",
                    cdr_model_get_info(t->model)->name, (long long)vocab,
                    N_BYTES + CDR_COUNT(HF_SPECIAL));
    hf_sides(t, vocab, s);
    return CDR_OK;
}

/* ---- the command ---------------------------------------------------------------------------------------------------------------- */
/* Releases whose experts are packed first of all have one layer a shard. */
static bool packed_release(const cdr_model *m)
{
    for (int64_t i = 0; i < cdr_model_params(m); i++) {
        cdr_model_row row = cdr_model_stored(m, i);
        if (row.n_formats > 0 && strcmp(row.format[0], "MXFP4") == 0) return true;
    }
    return false;
}

static void say(const toy *t, int experts, const cdr_weights_out_stat *stat, cdr_result *r)
{
    const cdr_model_info *info = cdr_model_get_info(t->model);
    cdr_text text = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    char n[32], packed[120] = "";
    cdr_format_count(n, info->n_params);
    if (stat->pack_error > 0) (void)snprintf(packed, sizeof packed, " experts packed to MXFP4 (mean relative error %.3f),", stat->pack_error);
    else if (experts == CDR_F8_E4M3) (void)snprintf(packed, sizeof packed, " experts in FP8 with scales of 128 x 128,");
    cdr_text_printf(&text, "%-9s %s, %d layers, %s parameters, %lld shard%s;%s tokenizer, config; no carried tensors (vision, MTP)\n", t->a->out, info->family,
                    info->n_layers, n, (long long)stat->shards, stat->shards == 1 ? "" : "s", packed);
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "path", t->a->out);
    cdr_jw_str(&w, "family", info->family);
    cdr_jw_int(&w, "layers", info->n_layers);
    cdr_jw_int(&w, "parameters", info->n_params);
    cdr_jw_int(&w, "shards", stat->shards);
    cdr_jw_int(&w, "tensors", stat->tensors);
    cdr_jw_int(&w, "size_bytes", stat->bytes);
    cdr_jw_real(&w, "pack_error", stat->pack_error);
    cdr_jw_end(&w, '}');
    r->text = text.s;
    r->json = json.s;
}

static cdr_status make(toy *t, cdr_result *r, cdr_err *err)
{
    int experts;
    sides s = { .n = 0 };
    int64_t shard_bytes = 0;
    CDR_TRY(cdr__experts_word(t->a->experts, &experts, err));
    CDR_TRY(cdr__shard_size(t->a->shard_size, &shard_bytes, err));
    CDR_TRY(load_models(t, err));
    if (experts < 0 && packed_release(t->family)) experts = CDR_MXFP4;
    if (!t->from) CDR_TRY(declare(t, err));
    CDR_TRY(make_sides(t, experts, &s, err));
    cdr_weights_out o = { .model = t->model, .rows = rows, .ctx = t, .experts = experts, .shard_bytes = shard_bytes,
                          .layer_shards = shard_bytes == 0 && packed_release(t->family), .side = s.f, .n_side = s.n };
    cdr_weights_out_stat stat = { 0 };
    CDR_TRY(cdr_weights_write(t->a->out, &o, &stat, err));
    say(t, experts, &stat, r);
    return CDR_OK;
}

cdr_status cdr__export_run(const cdr_toy_args *a, cdr_result *r, cdr_err *err) { return cdr_toy(a, r, err); }

cdr_status cdr_toy(const cdr_toy_args *a, cdr_result *r, cdr_err *err)
{
    toy t = { .a = a, .pool = cdr_pool_new() };
    cdr_status st = make(&t, r, err);
    if (t.from) cdr_ckpt_close(t.from);
    cdr_pool_free(t.pool);
    return st;
}
