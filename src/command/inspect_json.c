/* inspect_json.c: what inspect says of a single .json file that lies in a checkpoint, an adapter or a run, and of a tokenizer.json under another name: told
 * by its keys, not by its name. The directory around such a file says more, and the line says so.
 */
#include "command/inspect.h"
#include "train/session.h"

enum { MAX_BYTES = 256 << 20 };                   /* a tokenizer.json of 160,000 tokens has about 10 MB */

/* The first row whose keys are all there, of these values where it names one. */
static const struct { const char *key, *also, *value, *kind, *text; } KINDS[] = {
    { "format", NULL, "cadre-card", "card", "card of an onboarded checkpoint" },
    { "format", NULL, "cadre-checkpoint", "manifest", "manifest of a checkpoint of a run" },
    { "program_hash", "rank_classes", NULL, "plan", "plan of a run" },
    { "weight_map", NULL, NULL, "index", "index of the tensors of a checkpoint" },
    { "peft_type", NULL, NULL, "adapter_config", "configuration of an adapter" },
    { "architectures", NULL, NULL, "config", "configuration of a model" },
    { "model_type", NULL, NULL, "config", "configuration of a model" },
    { "tokenizer_class", NULL, NULL, "tokenizer_config", "names of special ids, beside a tokenizer" },
    { "added_tokens_decoder", NULL, NULL, "tokenizer_config", "names of special ids, beside a tokenizer" },
    { "eos_token_id", NULL, NULL, "generation_config", "where and how generation stops" },
};

static int kind_of(const cdr_json *root)
{
    for (int i = 0; i < CDR_COUNT(KINDS); i++) {
        const cdr_json *x = cdr_json_get(root, KINDS[i].key);
        if (!x || (KINDS[i].also && !cdr_json_get(root, KINDS[i].also))) continue;
        if (!KINDS[i].value || strcmp(cdr_json_str(x, ""), KINDS[i].value) == 0) return i;
    }
    return -1;
}

static bool is_tokenizer(const cdr_json *root)
{
    const cdr_json *model = cdr_json_get(root, "model");
    return cdr_json_get(model, "type") && cdr_json_get(model, "vocab");
}

static void say_config(cdr_pool *pool, const cdr_json *root, cdr_text *text, cdr_jw *w)
{
    cdr_model_match match;
    cdr_err err = { 0 };
    bool known = cdr_model_match_config(root, pool, &match, &err) == CDR_OK;
    if (known) cdr_text_printf(text, ": %s by %s", match.name, match.by);
    else cdr_text_printf(text, ": %s", err.text);
    cdr_jw_str(w, "family", known ? match.name : NULL);
}

static void say_index(const cdr_json *root, cdr_text *text, cdr_jw *w)
{
    const cdr_json *map = cdr_json_get(root, "weight_map");
    char n[32];
    cdr_format_count(n, cdr_json_count(map));
    cdr_text_printf(text, ": %s tensors", n);
    cdr_jw_int(w, "tensors", cdr_json_count(map));
}

static void say_adapter(const cdr_json *root, cdr_text *text, cdr_jw *w)
{
    const char *base = cdr_json_str(cdr_json_get(root, "base_model_name_or_path"), NULL), *type = cdr_json_str(cdr_json_get(root, "peft_type"), "?");
    cdr_text_printf(text, ": %.40s, rank %lld", type, (long long)cdr_json_int(cdr_json_get(root, "r"), 0));
    if (base) cdr_text_printf(text, ", of the base %.200s", base);
    cdr_jw_str(w, "base", base);
}

static void say_card(const cdr_json *root, cdr_text *text, cdr_jw *w)
{
    static const char *const WORDS[] = { "verified", "unverified", "failed" };
    const cdr_json *summary = cdr_json_get(root, "summary");
    for (int i = 0; i < CDR_COUNT(WORDS); i++) {
        int64_t n = cdr_json_int(cdr_json_get(summary, WORDS[i]), 0);
        cdr_text_printf(text, "%s%lld %s", i ? ", " : ": ", (long long)n, WORDS[i]);
        cdr_jw_int(w, WORDS[i], n);
    }
}

static void say(cdr_pool *pool, const cdr__inspect_opts *o, const cdr_json *root, int i, cdr_text *text, cdr_jw *w)
{
    const char *slash = strrchr(o->path, '/');
    const char *dir = !slash ? "." : slash == o->path ? "/" : cdr_pool_strndup(pool, o->path, (size_t)(slash - o->path)), *kind = KINDS[i].kind;
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "kind", kind);
    cdr_text_printf(text, "%s", KINDS[i].text);
    if (strcmp(kind, "config") == 0) say_config(pool, root, text, w);
    else if (strcmp(kind, "index") == 0) say_index(root, text, w);
    else if (strcmp(kind, "adapter_config") == 0) say_adapter(root, text, w);
    else if (strcmp(kind, "card") == 0) say_card(root, text, w);
    cdr_text_printf(text, "\nthe directory around it says more: cadre inspect %s\n", dir);
    cdr_jw_str(w, "directory", dir);
    cdr_jw_end(w, '}');
}

cdr_status cdr__inspect_json(const cdr__inspect_opts *o, bool *is, bool *tokenizer, cdr_text *text, cdr_jw *w, cdr_err *err)
{
    char *data = NULL;
    size_t bytes;
    const cdr_json *root;
    cdr_pool *pool = cdr_pool_new();
    *is = *tokenizer = false;
    cdr_status st = cdr_file_read(o->path, MAX_BYTES, &data, &bytes, err);
    if (st == CDR_OK) st = cdr_json_parse(pool, data, bytes, o->path, &root, err);
    if (st == CDR_OK) {
        int i = kind_of(root);
        *tokenizer = is_tokenizer(root);
        *is = i >= 0 && !*tokenizer;
        if (*is) say(pool, o, root, i, text, w);
    }
    cdr_free(data);
    cdr_pool_free(pool);
    return st;
}
