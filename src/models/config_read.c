/* config_read.c: what a directory's config.json says, through a description's sections:
 *
 *   config:  size: key | alias | alias = default      a size; absent without a default: an error. default: a number, another size, or null,
 *                                                     which is the size 0 and written as null
 *   expect:  key | alias: a | b = default             the values that the description is right for: words, numbers, true, false, null,
 *                                                     the name of a size, `rest LIST` (the layers that are not in LIST). Instead of a key:
 *                                                     the name of a size of `config`
 *   ignore:  keys that say nothing about the text model; `also`: constants that are written, and harmless when read
 *
 * Keys are dotted, below text_config where there is one, else at the top. null is the same as absent. Whatever else stands in the file is
 * an error, except the boilerplate below. quantization_config is understood by itself: which packed formats this version reads.
 * Source: spec/interface.md, 4.1; spec/formats.md, 1.3, 1.4; spec/model.md, 1.
 */
#include "models/config_parts.h"
#include <dirent.h>
#include <stdlib.h>

enum { MAX_CONFIG = 16 << 20, MAX_LISTED = 8 };

/* Of every release: how a library makes, saves, generates or shards, token ids, lengths; and other towers. */
static const char *const harmless[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "add_cross_attention", "architectures", "attn_implementation", "auto_map",
    "aux_loss_alpha", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward", "cls_token_id", "cross_attention_hidden_size",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "ep_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label", "ignore_index", "image_placeholder",
    "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length", "max_position_embeddings",
    "media_placeholder_token_id", "min_length", "model_max_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores", "pad_token_id", "prefix",
    "pretraining_tp", "problem_type", "pruned_heads", "quantization_config", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "router_aux_loss_coef", "sep_token_id", "seq_aux", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p",
    "unk_token_id", "use_bfloat16", "use_cache", "video_placeholder", "vision_config",
};

static int by_text(const void *key, const void *entry) { return strcmp(key, *(const char *const *)entry); }

bool cdr__config_harmless(const char *key) { return bsearch(key, harmless, CDR_COUNT(harmless), sizeof harmless[0], by_text) != NULL; }

/* ---- the file ----------------------------------------------------------------------------------------------------------- */

static bool has_weights(const char *dir)
{
    bool found = false;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        found = (n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0) || strcmp(e->d_name, "model.safetensors.index.json") == 0;
    }
    if (d) closedir(d);
    return found;
}

cdr_status cdr__source_open(const char *dir, cdr_pool *pool, cdr__source **out, cdr_err *err)
{
    cdr__source *s = cdr_pool_alloc(pool, sizeof *s);
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    s->dir = cdr_pool_strndup(pool, dir, n);
    s->where = cdr_pool_printf(pool, "%s/config.json", s->dir);
    if (!cdr_exists(s->where))
        CDR_FAIL_ID(err, CDR_EDATA, "model.no-config", "%s: the directory has no config.json, so it is no checkpoint in Hugging Face layout", s->dir);
    char *data = NULL;
    CDR_TRY(cdr_file_read(s->where, MAX_CONFIG, &data, &s->n_bytes, err));
    s->bytes = cdr_pool_strndup(pool, data, s->n_bytes);
    cdr_free(data);
    CDR_TRY(cdr_json_parse(pool, s->bytes, s->n_bytes, s->where, &s->root, err));
    if (cdr_json_type(s->root) != CDR_JSON_OBJECT) CDR_FAIL_ID(err, CDR_EDATA, "model.no-config", "%s: this is no JSON object", s->where);
    s->text = cdr_json_get(s->root, "text_config");
    if (s->text && cdr_json_type(s->text) != CDR_JSON_OBJECT) s->text = NULL;
    s->weights = has_weights(s->dir);
    *out = s;
    return CDR_OK;
}

static const cdr_json *at_path(const cdr_json *obj, const char *key)
{
    char part[128];
    while (obj) {
        size_t n = strcspn(key, ".");
        if (n >= sizeof part) return NULL;
        memcpy(part, key, n);
        part[n] = 0;
        obj = cdr_json_get(obj, part);
        if (!key[n]) break;
        key += n + 1;
    }
    return obj && cdr_json_type(obj) != CDR_JSON_NULL ? obj : NULL;
}

const cdr_json *cdr__source_get(const cdr__source *s, const char *key)
{
    const cdr_json *j = s->text ? at_path(s->text, key) : NULL;
    return j ? j : at_path(s->root, key);
}

/* ---- words of a description ----------------------------------------------------------------------------------------------- */

static const char *trimmed(cdr_pool *pool, const char *s, size_t n)
{
    while (n > 0 && *s == ' ') s++, n--;
    while (n > 0 && s[n - 1] == ' ') n--;
    return cdr_pool_strndup(pool, s, n);
}

bool cdr__words_read(cdr_pool *pool, const char *text, cdr__words *w)
{
    const char *equals = strchr(text, '=');
    size_t end = equals ? (size_t)(equals - text) : strlen(text);
    *w = (cdr__words){ .otherwise = equals ? trimmed(pool, equals + 1, strlen(equals + 1)) : NULL };
    for (size_t from = 0; from <= end;) {
        size_t n = strcspn(text + from, "|");
        n = CDR_MIN(n, end - from);
        if (w->n == CDR__MAX_KEYS) return false;
        w->word[w->n] = trimmed(pool, text + from, n);
        if (!*w->word[w->n++]) return false;
        from += n + 1;
    }
    return !w->otherwise || *w->otherwise;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------- */

static bool number(const cdr_json *j, cdr__size *z)
{
    if (cdr_json_type(j) == CDR_JSON_INT) {
        z->i = cdr_json_int(j, -1);
        z->d = (double)z->i;
        return z->i >= 0;
    }
    if (cdr_json_type(j) != CDR_JSON_REAL) return false;
    z->d = cdr_json_real(j, -1);
    z->real = !(z->d < 9e15 && z->d == (double)(int64_t)z->d);
    z->i = z->real ? 0 : (int64_t)z->d;
    return z->d >= 0 && z->d - z->d == 0;
}

bool cdr__size_parse(cdr_pool *pool, const cdr_json *j, cdr__size *z)
{
    if (cdr_json_type(j) != CDR_JSON_ARRAY) return number(j, z);
    int64_t n = cdr_json_count(j);
    if (n > 65536) return false;
    int64_t *items = cdr_pool_alloc(pool, sizeof *items * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) {
        cdr__size one = { 0 };
        if (!number(cdr_json_at(j, i), &one) || one.real) return false;
        items[i] = one.i;
    }
    z->list = true;
    z->items = items;
    z->n = (int)n;
    return true;
}

static cdr__size *own_size(const cdr__desc *d, const char *name)
{
    for (int64_t i = 0; i < d->n_sizes; i++) if (strcmp(d->size[i].name, name) == 0) return &d->size[i];
    return NULL;
}

bool cdr__size_set(cdr__desc *d, const char *name, cdr__size z)
{
    cdr__size *old = own_size(d, name);
    z.name = name;
    if (old) *old = z;
    else *CDR_PUSH(d->pool, d->size, d->n_sizes, d->cap_sizes) = z;
    return old != NULL;
}

static cdr_status set_default(cdr__desc *d, const cdr__source *s, const cdr_yaml *e, const cdr__words *w, cdr_err *err)
{
    cdr__size z = { 0 };
    if (!w->otherwise)
        CDR_FAIL_ID(err, CDR_EDATA, "model.config-missing", "%s: %s is missing, size %s of %s", s->where, w->word[0], e->key, cdr__desc_at(d, e));
    if (strcmp(w->otherwise, "null") != 0 && !cdr__size_text(w->otherwise, &z)) {
        const cdr__size *other = own_size(d, w->otherwise);
        if (!other) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: config.%s: the default %s is no size", cdr__desc_at(d, e), e->key, w->otherwise);
        z = *other;
        z.node = NULL;
    }
    z.from = "default";
    cdr__size_set(d, e->key, z);
    return CDR_OK;
}

/* The first of the keys that is there; two with different values are an error. */
static cdr_status from_config(cdr__desc *d, const cdr__source *s, const cdr_yaml *e, const cdr__words *w, bool *found, cdr_err *err)
{
    cdr__size z = { 0 };
    *found = false;
    for (int i = 0; i < w->n; i++) {
        const cdr_json *j = cdr__source_get(s, w->word[i]);
        cdr__size one = { 0 };
        if (!j) continue;
        if (!cdr__size_parse(d->pool, j, &one))
            CDR_FAIL_ID(err, CDR_EDATA, "model.config-value", "%s: %s is no number of at least 0, nor a list of integers", s->where, w->word[i]);
        bool same = *found && one.list == z.list && one.n == z.n && one.d == z.d && (!z.n || memcmp(one.items, z.items, sizeof *z.items * (size_t)z.n) == 0);
        if (*found && !same) CDR_FAIL_ID(err, CDR_EDATA, "model.config-value", "%s: %s and an alias of it differ", s->where, w->word[i]);
        if (!*found && i > 0) *CDR_PUSH(d->pool, d->note, d->n_notes, d->cap_notes) = cdr_pool_printf(d->pool, "%s read as %s", w->word[i], w->word[0]);
        z = one;
        z.from = w->word[i];
        *found = true;
    }
    if (*found) cdr__size_set(d, e->key, z);
    return CDR_OK;
}

cdr_status cdr__config_apply(cdr__desc *d, const cdr__source *s, bool only_absent, cdr_err *err)
{
    const cdr_yaml *config = cdr_yaml_get(d->root, "config");
    for (int i = 0; config && i < config->n; i++) {
        const cdr_yaml *e = &config->items[i];
        const cdr__size *old = own_size(d, e->key);
        cdr__words w;
        bool found;
        if (only_absent && old && old->node && old->node->line >> 20 == 0) continue;      /* line >> 20: its file, 0 the one that was asked for */
        if (!cdr__words_read(d->pool, e->text, &w)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: config.%s is \"key | alias = default\"", cdr__desc_at(d, e),
            e->key);
        CDR_TRY(from_config(d, s, e, &w, &found, err));
        if (!found) CDR_TRY(set_default(d, s, e, &w, err));
    }
    return CDR_OK;
}

/* ---- values that are expected ------------------------------------------------------------------------------------------------- */

static int64_t layer_base(const cdr__desc *d)
{
    const char *base = cdr__attr_word(d->root, "index_base");
    return base && base[0] == '1' ? 1 : 0;
}

/* Where a list of layers differs from the complement of another: 0: nowhere; else the first such layer + 1. */
static int64_t differs_from_rest(const cdr__desc *d, const cdr__size *list, const cdr__size *other)
{
    const cdr__size *layers = own_size(d, "n_layers");
    int64_t n = layers ? CDR_MIN(layers->i, 65536) : 0, base = layer_base(d);
    uint8_t *seen = cdr_pool_alloc(d->pool, (size_t)n + 1);
    for (int which = 0; which < 2; which++) {
        const cdr__size *z = which ? other : list;
        for (int i = 0; i < z->n; i++) {
            int64_t at = z->items[i] - base;
            if (at < 0 || at >= n || seen[at]++) return z->items[i] + 1;
        }
    }
    for (int64_t i = 0; i < n; i++) if (!seen[i]) return i + base + 1;
    return 0;
}

static bool same_size(const cdr__size *a, const cdr__size *b)
{
    if (a->list != b->list) return false;
    return a->list ? a->n == b->n && (!a->n || memcmp(a->items, b->items, sizeof *a->items * (size_t)a->n) == 0) : a->d == b->d;
}

static bool number_word(const cdr__desc *d, const char *word, cdr__size *z)
{
    char *end;
    const cdr__size *named = own_size(d, word);
    z->d = strtod(word, &end);
    if (*word && !*end) return true;
    if (named) *z = *named;
    return named != NULL;
}

bool cdr__expect_met(const cdr__desc *d, const cdr_json *j, const char *word)
{
    cdr__size z = { 0 }, want = { 0 };
    switch (cdr_json_type(j)) {
    case CDR_JSON_STRING: return strcmp(cdr_json_str(j, ""), word) == 0;
    case CDR_JSON_BOOL: return strcmp(cdr_json_bool(j, false) ? "true" : "false", word) == 0;
    case CDR_JSON_INT:
    case CDR_JSON_REAL: return number_word(d, word, &want) && !want.list && want.d == cdr_json_real(j, 0);
    case CDR_JSON_ARRAY:
        if (!cdr__size_parse(d->pool, j, &z)) return false;
        if (strncmp(word, "rest ", 5) == 0) return own_size(d, word + 5) && own_size(d, word + 5)->list && differs_from_rest(d, &z, own_size(d, word + 5)) == 0;
        return own_size(d, word) && same_size(&z, own_size(d, word));
    default: return false;
    }
}

static const char *shown(cdr_pool *pool, const cdr_json *j)
{
    switch (cdr_json_type(j)) {
    case CDR_JSON_STRING: return cdr_pool_printf(pool, "\"%.60s\"", cdr_json_str(j, ""));
    case CDR_JSON_BOOL: return cdr_json_bool(j, false) ? "true" : "false";
    case CDR_JSON_INT: return cdr_pool_printf(pool, "%lld", (long long)cdr_json_int(j, 0));
    case CDR_JSON_REAL: return cdr_pool_printf(pool, "%.9g", cdr_json_real(j, 0));
    case CDR_JSON_ARRAY: return "a list";
    case CDR_JSON_OBJECT: return "an object";
    default: return "null";
    }
}

static const char *any_of(cdr_pool *pool, const cdr__words *w)
{
    const char *s = w->word[0];
    for (int i = 1; i < w->n; i++) s = cdr_pool_printf(pool, "%s or %s", s, w->word[i]);
    return s;
}

static cdr_status unmet(const cdr__desc *d, const cdr__source *s, const char *key, const cdr_json *j, const cdr__words *w, cdr_err *err)
{
    const char *name = cdr__attr_word(d->root, "name");
    for (int i = 0; i < w->n && cdr_json_type(j) == CDR_JSON_ARRAY; i++) {
        cdr__size z = { 0 };
        const cdr__size *other = strncmp(w->word[i], "rest ", 5) == 0 ? own_size(d, w->word[i] + 5) : NULL;
        if (!other || !other->list || !own_size(d, "n_layers") || !cdr__size_parse(d->pool, j, &z)) continue;
        CDR_FAIL_ID(err, CDR_EDATA, "model.config-layers", "%s: %s and %s must share out layers %lld to %lld, each once; look at layer %lld", s->where, key,
            w->word[i] + 5,
                    (long long)layer_base(d), (long long)(layer_base(d) + own_size(d, "n_layers")->i - 1), (long long)differs_from_rest(d, &z, other) - 1);
    }
    CDR_FAIL_ID(err, CDR_EDATA, "model.config-value", "%s: %s is %s; description %s is right for %s only", s->where, key, shown(d->pool, j), name ? name : "",
        any_of(d->pool, w));
}

static cdr_status expect_one(const cdr__desc *d, const cdr__source *s, const cdr_yaml *e, cdr_err *err)
{
    cdr__words key, want;
    if (e->kind != CDR_YAML_SCALAR || !cdr__words_read(d->pool, e->key, &key) || !cdr__words_read(d->pool, e->text, &want))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: expect.%s is \"value | value = what absence means\"", cdr__desc_at(d, e), e->key);
    const cdr__size *mine = key.n == 1 ? own_size(d, key.word[0]) : NULL;
    bool absent = true, met = false;
    for (int k = 0; k < want.n && mine; k++) met = met || (own_size(d, want.word[k]) && same_size(mine, own_size(d, want.word[k])));
    if (mine && !met) CDR_FAIL_ID(err, CDR_EDATA, "model.config-value", "%s: %s and %s differ", s->where, key.word[0], any_of(d->pool, &want));
    for (int i = 0; i < key.n && !mine; i++) {
        const cdr_json *at[2] = { s->text ? at_path(s->text, key.word[i]) : NULL, at_path(s->root, key.word[i]) };
        for (int k = 0; k < 2; k++) {
            if (!at[k]) continue;
            absent = met = false;
            for (int v = 0; v < want.n; v++) met = met || cdr__expect_met(d, at[k], want.word[v]);
            if (!met) return unmet(d, s, key.word[i], at[k], &want, err);
        }
    }
    if (mine || !absent) return CDR_OK;
    for (int v = 0; v < want.n; v++) met = met || (want.otherwise && strcmp(want.otherwise, want.word[v]) == 0);
    if (!met) CDR_FAIL_ID(err, CDR_EDATA, "model.config-missing", "%s: %s is missing%s%s; description %s is right for %s only", s->where, key.word[0],
                          want.otherwise ? ", which means " : "", want.otherwise ? want.otherwise : "", cdr__attr_word(d->root, "name"), any_of(d->pool, &want));
    return CDR_OK;
}

/* ---- quantisation ------------------------------------------------------------------------------------------------------------- */

bool cdr__desc_has_format(const cdr__desc *d, const char *format)
{
    const cdr_yaml *tensors = cdr_yaml_get(d->root, "tensors");
    for (int s = 0; tensors && s < tensors->n; s++)
        for (int i = 0; i < tensors->items[s].n; i++) {
            const cdr_yaml *row = &tensors->items[s].items[i];
            if (row->kind == CDR_YAML_LIST && row->n > 2 && row->items[2].kind == CDR_YAML_SCALAR && strstr(row->items[2].text, format)) return true;
        }
    return false;
}

#define NOT_READ "; this version reads BF16, F32, compressed-tensors mxfp4-pack-quantized (groups of 32) and fp8 with weight_block_size [128, 128]. " \
                 "INT4 packs and other " \
                 "quantisations are not read: convert the checkpoint first"

static cdr_status check_mxfp4(const cdr__source *s, const cdr_json *q, cdr_err *err)
{
    const cdr_json *groups = cdr_json_get(q, "config_groups");
    const char *format = cdr_json_str(cdr_json_get(q, "format"), "");
    for (int64_t i = 0; groups && i < cdr_json_count(groups); i++) {
        const cdr_json *g = cdr_json_at(groups, i), *w = cdr_json_get(g, "weights"), *in = cdr_json_get(g, "input_activations");
        int64_t bits = cdr_json_int(cdr_json_get(w, "num_bits"), 4), size = cdr_json_int(cdr_json_get(w, "group_size"), 32);
        const char *type = cdr_json_str(cdr_json_get(w, "type"), "float");
        bool ok = strcmp(format, "mxfp4-pack-quantized") == 0 && bits == 4 && size == 32 && strcmp(type, "float") == 0 &&
                  cdr_json_bool(cdr_json_get(w, "symmetric"), true) && (!in || cdr_json_type(in) == CDR_JSON_NULL);
        if (!ok)
            CDR_FAIL_ID(err, CDR_EDATA, "model.quantization", "%s: quantization_config: %s, weights of %lld bits, type %s, groups of %lld%s" NOT_READ, s->where, format,
                        (long long)bits, type, (long long)size, in && cdr_json_type(in) != CDR_JSON_NULL ? ", quantised activations" : "");
    }
    if (strcmp(format, "mxfp4-pack-quantized") != 0)
        CDR_FAIL_ID(err, CDR_EDATA, "model.quantization", "%s: quantization_config: compressed-tensors, format %s" NOT_READ, s->where, *format ? format : "absent");
    return CDR_OK;
}

static cdr_status check_quantization(const cdr__desc *d, const cdr__source *s, cdr_err *err)
{
    const cdr_json *q = cdr__source_get(s, "quantization_config");
    if (!q) return CDR_OK;
    const char *method = cdr_json_str(cdr_json_get(q, "quant_method"), "");
    bool fp8 = strcmp(method, "fp8") == 0;
    if (fp8) {
        const cdr_json *block = cdr_json_get(q, "weight_block_size");
        const char *fmt = cdr_json_str(cdr_json_get(q, "fmt"), "e4m3");
        if (cdr_json_count(block) != 2 || cdr_json_int(cdr_json_at(block, 0), 0) != 128 || cdr_json_int(cdr_json_at(block, 1), 0) != 128 || strcmp(fmt, "e4m3") != 0)
            CDR_FAIL_ID(err, CDR_EDATA, "model.quantization", "%s: quantization_config: fp8 %s without weight_block_size [128, 128]" NOT_READ, s->where, fmt);
    } else if (strcmp(method, "compressed-tensors") == 0) {
        CDR_TRY(check_mxfp4(s, q, err));
    } else {
        CDR_FAIL_ID(err, CDR_EDATA, "model.quantization", "%s: quantization_config: method %s" NOT_READ, s->where, *method ? method : "absent");
    }
    if (!cdr__desc_has_format(d, fp8 ? "FP8_128" : "MXFP4"))
        CDR_FAIL_ID(err, CDR_EDATA, "model.quantization", "%s: quantization_config says %s, and no tensor row of description %s has the dtype %s", s->where, fp8 ? "fp8"
            : "MXFP4",
                    cdr__attr_word(d->root, "name"), fp8 ? "FP8_128" : "MXFP4");
    return CDR_OK;
}

/* ---- keys that nothing reads ------------------------------------------------------------------------------------------------------ */

static const char *below_text(const char *key) { return strncmp(key, "text_config.", 12) == 0 ? key + 12 : key; }

/* All keys that the description names, aliases too. */
static const char **named_keys(cdr__desc *d, int *n)
{
    static const char *const sections[] = { "config", "expect", "also" };
    const char **name = NULL;
    int64_t count = 0, cap = 0;
    for (int s = 0; s < CDR_COUNT(sections); s++) {
        const cdr_yaml *map = cdr_yaml_get(d->root, sections[s]);
        for (int i = 0; map && i < map->n; i++) {
            cdr__words w = { .n = 0 };
            const char *text = s == 0 ? map->items[i].text : map->items[i].key;
            if (!text || !cdr__words_read(d->pool, text, &w)) continue;
            for (int k = 0; k < w.n; k++) *CDR_PUSH(d->pool, name, count, cap) = below_text(w.word[k]);
        }
    }
    const cdr_yaml *ignore = cdr_yaml_get(d->root, "ignore");
    for (int i = 0; ignore && i < ignore->n; i++) *CDR_PUSH(d->pool, name, count, cap) = below_text(ignore->items[i].text);
    *n = (int)count;
    return name;
}

static bool is_named(const char *const *name, int n, const char *key, bool *inside)
{
    size_t len = strlen(key);
    *inside = false;
    for (int i = 0; i < n; i++) {
        if (strcmp(name[i], key) == 0) return true;
        *inside = *inside || (strncmp(name[i], key, len) == 0 && name[i][len] == '.');
    }
    return false;
}

static const char *first_unknown(cdr__desc *d, const cdr__source *s, const char *const *name, int n_names, int max, int *n)
{
    struct { const cdr_json *obj; const char *prefix; } todo[64] = { { s->root, "" }, { s->text, "" } };
    const char *list = "";
    int n_todo = s->text ? 2 : 1;
    *n = 0;
    for (int t = 0; t < n_todo; t++)
        for (int64_t i = 0; i < cdr_json_count(todo[t].obj); i++) {
            const cdr_json *j = cdr_json_at(todo[t].obj, i);
            const char *own = cdr_json_key(todo[t].obj, i), *key = *todo[t].prefix ? cdr_pool_printf(d->pool, "%s.%s", todo[t].prefix, own) : own;
            bool inside, object = cdr_json_type(j) == CDR_JSON_OBJECT;
            if ((t == 0 && j == s->text) || is_named(name, n_names, key, &inside) || (!*todo[t].prefix && cdr__config_harmless(own))) continue;
            if (inside && (object || cdr_json_type(j) == CDR_JSON_NULL) && n_todo < CDR_COUNT(todo)) {
                if (object) todo[n_todo].obj = j, todo[n_todo++].prefix = key;
                continue;
            }
            if ((*n)++ < max) list = cdr_pool_printf(d->pool, "%s%s%s", list, *list ? ", " : "", key);
        }
    return list;
}

const char *cdr__config_unknown(cdr__desc *d, const cdr__source *s, int max, int *n)
{
    int n_names;
    const char **name = named_keys(d, &n_names);
    return first_unknown(d, s, name, n_names, max, n);
}

static cdr_status check_unknown(cdr__desc *d, const cdr__source *s, cdr_err *err)
{
    int n, n_names;
    const char **name = named_keys(d, &n_names), *list = first_unknown(d, s, name, n_names, MAX_LISTED, &n);
    if (n == 0) return CDR_OK;
    CDR_FAIL_ID(err, CDR_EDATA, "model.unknown-config-key", "%s: description %s reads no %s%s, and %s not known to be harmless.%s If %s nothing of the text model's "
        "mathematics, "
                "name %s under `ignore` of a model.yaml that extends %s", s->where, cdr__attr_word(d->root, "name"), list, n > MAX_LISTED ? ", and more" : "",
                n > 1 ? "they are" : "it is", n == 1 ? cdr_nearest(d->pool, list, name, n_names) : "", n > 1 ? "they change" : "it changes", n > 1 ? "them" : "it",
                cdr__attr_word(d->root, "name"));
}

cdr_status cdr__config_check(cdr__desc *d, const cdr__source *s, cdr_err *err)
{
    const cdr_yaml *expect = cdr_yaml_get(d->root, "expect");
    for (int i = 0; expect && i < expect->n; i++) CDR_TRY(expect_one(d, s, &expect->items[i], err));
    CDR_TRY(check_quantization(d, s, err));
    return check_unknown(d, s, err);
}

cdr__fit cdr__config_fit(cdr__desc *d, const cdr__source *s)
{
    const cdr_yaml *config = cdr_yaml_get(d->root, "config");
    cdr__fit f = { .lacks = "" };
    int listed = 0;
    for (int i = 0; config && i < config->n; i++) {
        cdr__words w;
        bool there = false;
        if (!config->items[i].text || !cdr__words_read(d->pool, config->items[i].text, &w) || w.otherwise) continue;
        for (int k = 0; k < w.n; k++) there = there || cdr__source_get(s, w.word[k]);
        f.needed++;
        f.there += there;
        if (!there && listed++ < MAX_LISTED) f.lacks = cdr_pool_printf(d->pool, "%s%s%s", f.lacks, *f.lacks ? ", " : "", w.word[0]);
    }
    return f;
}

cdr_status cdr__source_has(cdr__source *s, const char *tensor, bool *has, cdr_err *err)
{
    *has = false;
    if (!s || !s->weights) return CDR_OK;
    if (!s->hf) {
        CDR_TRY(cdr_hf_open(s->dir, &s->hf, err));
        s->own_hf = true;
    }
    *has = cdr_hf_find(s->hf, tensor) >= 0;
    return CDR_OK;
}

void cdr__source_release(cdr__source *s)
{
    if (s && s->own_hf) cdr_hf_close(s->hf);
    if (!s) return;
    s->hf = NULL;
    s->own_hf = false;
}
