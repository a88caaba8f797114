/* config_write.c: the config.json of a model: the keys that its family's description reads (config), those that it expects, and the
 * constants of `also`, so that reading it back gives the same sizes. A directory's own file is given back as it is; where experts change
 * their format, its quantization_config goes or comes and the rest is written anew with the same keys and values.
 *
 *   also: {bos_token_id: "= vocab - 256", text_config.model_type: kimi_linear}     values: words, numbers, true, false, null, lists;
 *                                                     "= expression": an integer. A key below text_config: all of config and expect stand there
 *   unpacked: [re:.*self_attn.*]                      the modules that quantization_config excepts
 * Source: spec/model.md, 1.1, 1.2.
 */
#include "models/config_parts.h"
#include "models/model_parts.h"
#include <stdlib.h>

typedef struct node {
    const char *key, *text;           /* text: a value as JSON; NULL: an object */
    struct node *first, *last, *next;
} node;

typedef struct {
    cdr_pool *pool;
    const cdr_model *m;
    cdr__desc *d;                     /* the family's */
    node root;
    bool below;                       /* config and expect stand below text_config */
} writer;

/* ---- a tree of keys --------------------------------------------------------------------------------------------------------- */

static node *child(cdr_pool *pool, node *n, const char *key, size_t len)
{
    for (node *c = n->first; c; c = c->next) if (strlen(c->key) == len && strncmp(c->key, key, len) == 0) return c;
    node *c = cdr_pool_alloc(pool, sizeof *c);
    c->key = cdr_pool_strndup(pool, key, len);
    if (n->last) n->last->next = c;
    else n->first = c;
    n->last = c;
    return c;
}

static void put(writer *w, bool below, const char *key, const char *text)
{
    node *n = below ? child(w->pool, &w->root, "text_config", 11) : &w->root;
    for (const char *p = key;; ) {
        size_t len = strcspn(p, ".");
        n = child(w->pool, n, p, len);
        if (!p[len]) break;
        p += len + 1;
    }
    n->text = text;
}

/* Two spaces a level, as the reference libraries write it. */
static void print_tree(cdr_text *t, const node *root)
{
    struct { const node *at; } open[64];
    int depth = 0;
    open[0].at = root->first;
    cdr_text_printf(t, "{");
    while (depth >= 0) {
        const node *n = open[depth].at;
        if (!n) {
            depth--;
            cdr_text_printf(t, "\n%*s}", 2 * (depth + 1), "");
            if (depth >= 0) open[depth].at = open[depth].at->next;
            if (depth >= 0 && open[depth].at) cdr_text_printf(t, ",");
            continue;
        }
        cdr_text_printf(t, "\n%*s\"%s\": ", 2 * (depth + 1), "", n->key);
        if (!n->text && n->first && depth + 1 < CDR_COUNT(open)) {
            cdr_text_printf(t, "{");
            open[++depth].at = n->first;
            continue;
        }
        cdr_text_printf(t, "%s", n->text ? n->text : "{}");
        open[depth].at = n->next;
        if (n->next) cdr_text_printf(t, ",");
    }
    cdr_text_printf(t, "\n");
}

static const char *taken(cdr_pool *pool, cdr_text *t)
{
    const char *s = cdr_pool_strndup(pool, t->s ? t->s : "", t->n);
    cdr_text_free(t);
    return s;
}

static const char *quoted(cdr_pool *pool, const char *s)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    cdr_jw_str(&w, NULL, s);
    return taken(pool, &t);
}

/* ---- values -------------------------------------------------------------------------------------------------------------------- */

static const cdr__size *size_of(const cdr__desc *d, const char *name)
{
    for (int64_t i = 0; i < d->n_sizes; i++) if (strcmp(d->size[i].name, name) == 0) return &d->size[i];
    return NULL;
}

static int64_t base_of(const cdr__desc *d)
{
    const char *base = cdr__attr_word(d->root, "index_base");
    return base && base[0] == '1' ? 1 : 0;
}

/* The model's own size; a number that it does not name, the family's. */
static const cdr__size *written_size(const writer *w, const char *name)
{
    const cdr__size *own = size_of(&w->m->d, name), *family = size_of(w->d, name);
    return own ? own : family && !family->list ? family : NULL;
}

static const char *list_text(const writer *w, const int64_t *items, int n, int64_t shift)
{
    cdr_text t = { 0 };
    cdr_text_printf(&t, "[");
    for (int i = 0; i < n; i++) cdr_text_printf(&t, "%s%lld", i ? ", " : "", (long long)(items[i] + shift));
    cdr_text_printf(&t, "]");
    return taken(w->pool, &t);
}

static const char *size_text(const writer *w, const cdr__size *z)
{
    cdr_text t = { 0 };
    cdr_jw j = { .t = &t };
    if (z->list) return list_text(w, z->items, z->n, base_of(w->d) - base_of(&w->m->d));
    if (z->real) cdr_jw_real(&j, NULL, z->d);
    else cdr_jw_int(&j, NULL, z->i);
    return taken(w->pool, &t);
}

/* The layers that are not in a list, counted as the list counts. */
static const char *rest_text(const writer *w, const cdr__size *list)
{
    int64_t base = base_of(&w->m->d), *items = cdr_pool_alloc(w->pool, sizeof *items * (size_t)(w->m->n_all + 1));
    int n = 0;
    for (int64_t i = 0; i < w->m->n_all; i++) {
        bool in = false;
        for (int k = 0; k < list->n; k++) in = in || list->items[k] == i + base;
        if (!in) items[n++] = i + base;
    }
    return list_text(w, items, n, base_of(w->d) - base);
}

static bool is_number(const char *s)
{
    char *end;
    if (!*s || strspn(s, "-+.eE0123456789") != strlen(s) || !strchr("-0123456789", s[0])) return false;
    strtod(s, &end);
    return !*end;
}

static cdr_status word_text(const writer *w, const cdr_yaml *at, const char *word, const char **text, cdr_err *err)
{
    const cdr__size *z = written_size(w, word), *list = strncmp(word, "rest ", 5) == 0 ? written_size(w, word + 5) : NULL;
    bool literal = is_number(word) || strcmp(word, "true") == 0 || strcmp(word, "false") == 0 || strcmp(word, "null") == 0;
    if (word[0] == '=') {
        int64_t x;
        CDR_TRY(cdr__expr(&w->m->d, NULL, word + 1, cdr__desc_at(w->d, at), &x, err));
        *text = cdr_pool_printf(w->pool, "%lld", (long long)x);
    } else {
        *text = literal ? word : z ? size_text(w, z) : list && list->list ? rest_text(w, list) : quoted(w->pool, word);
    }
    return CDR_OK;
}

static cdr_status value_text(const writer *w, const cdr_yaml *e, const char **text, cdr_err *err)
{
    if (e->kind == CDR_YAML_SCALAR) return word_text(w, e, e->text, text, err);
    const char *all = "[";
    for (int i = 0; i < e->n; i++) {
        const char *one;
        CDR_TRY(word_text(w, e, e->items[i].text, &one, err));
        all = cdr_pool_printf(w->pool, "%s%s%s", all, i ? ", " : "", one);
    }
    *text = cdr_pool_printf(w->pool, "%s]", all);
    return CDR_OK;
}

/* ---- sections ------------------------------------------------------------------------------------------------------------------ */

static cdr_status put_match(writer *w, cdr_err *err)
{
    const cdr_yaml *match = cdr_yaml_get(w->d->root, "match"), *a = match ? cdr_yaml_get(match, "architectures") : NULL,
                   *t = match ? cdr_yaml_get(match, "model_type") : NULL;
    if (a && a->n) put(w, false, "architectures", cdr_pool_printf(w->pool, "[%s]", quoted(w->pool, a->items[0].text)));
    if (t && t->n) put(w, false, "model_type", quoted(w->pool, t->items[0].text));
    if (!a && !t)
        CDR_FAIL_ID(err, CDR_EUSER, "model.no-config", "%s: the family %s has no `match`, so it has no config.json to be written", w->m->d.file[0], w->m->info.family);
    return CDR_OK;
}

static cdr_status put_config(writer *w, cdr_err *err)
{
    const cdr_yaml *config = cdr_yaml_get(w->d->root, "config");
    for (int i = 0; config && i < config->n; i++) {
        const cdr_yaml *e = &config->items[i];
        const cdr__size *z = written_size(w, e->key);
        cdr__words words;
        if (!cdr__words_read(w->pool, e->text, &words)) continue;
        bool null = words.otherwise && strcmp(words.otherwise, "null") == 0;
        if (!z && words.otherwise && !null) z = written_size(w, words.otherwise);
        if (!z && !null)
            CDR_FAIL_ID(err, CDR_EUSER, "model.no-config", "%s: family %s writes %s from size %s, which this description does not have", w->m->d.file[0],
                w->m->info.family,
                        words.word[0], e->key);
        put(w, w->below, words.word[0], null && (!z || z->i == 0) ? "null" : size_text(w, z));
    }
    return CDR_OK;
}

static cdr_status put_expected(writer *w, cdr_err *err)
{
    const cdr_yaml *expect = cdr_yaml_get(w->d->root, "expect");
    for (int i = 0; expect && i < expect->n; i++) {
        const cdr_yaml *e = &expect->items[i];
        cdr__words key, want;
        const char *text;
        if (!cdr__words_read(w->pool, e->key, &key) || !cdr__words_read(w->pool, e->text, &want)) continue;
        bool absent = want.otherwise && strcmp(want.otherwise, "null") == 0;
        if (absent || size_of(w->d, e->key)) continue;
        CDR_TRY(word_text(w, e, want.word[0], &text, err));
        put(w, w->below, key.word[0], text);
    }
    return CDR_OK;
}

static cdr_status put_also(writer *w, cdr_err *err)
{
    const cdr_yaml *own = cdr_yaml_get(w->m->d.root, "also"), *family = cdr_yaml_get(w->d->root, "also");
    for (int which = 0; which < 2; which++) {              /* the model's own values win */
        const cdr_yaml *also = which ? own : family;
        for (int i = 0; also && i < also->n; i++) {
            const char *text;
            CDR_TRY(value_text(w, &also->items[i], &text, err));
            put(w, false, also->items[i].key, text);
        }
    }
    return CDR_OK;
}

static void put_packed(writer *w)
{
    static const struct { const char *key, *text; } fixed[] = {
        { "config_groups.group_0.input_activations", "null" }, { "config_groups.group_0.output_activations", "null" },
        { "config_groups.group_0.targets", "[\"Linear\"]" }, { "config_groups.group_0.weights.actorder", "null" },
        { "config_groups.group_0.weights.dynamic", "false" }, { "config_groups.group_0.weights.group_size", "32" },
        { "config_groups.group_0.weights.num_bits", "4" }, { "config_groups.group_0.weights.observer", "\"minmax\"" },
        { "config_groups.group_0.weights.scale_dtype", "\"torch.uint8\"" }, { "config_groups.group_0.weights.strategy", "\"group\"" },
        { "config_groups.group_0.weights.symmetric", "true" }, { "config_groups.group_0.weights.type", "\"float\"" },
        { "format", "\"mxfp4-pack-quantized\"" }, { "quant_method", "\"compressed-tensors\"" }, { "quantization_status", "\"compressed\"" },
    };
    const cdr_yaml *ignore = cdr_yaml_get(w->d->root, "unpacked");
    const char *list = "[";
    for (int i = 0; i < CDR_COUNT(fixed); i++) put(w, w->below, cdr_pool_printf(w->pool, "quantization_config.%s", fixed[i].key), fixed[i].text);
    for (int i = 0; ignore && i < ignore->n; i++) list = cdr_pool_printf(w->pool, "%s%s%s", list, i ? ", " : "", quoted(w->pool, ignore->items[i].text));
    put(w, w->below, "quantization_config.ignore", cdr_pool_printf(w->pool, "%s]", list));
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------------ */

static void put_fp8(writer *w)
{
    put(w, w->below, "quantization_config.activation_scheme", "\"dynamic\"");
    put(w, w->below, "quantization_config.fmt", "\"e4m3\"");
    put(w, w->below, "quantization_config.quant_method", "\"fp8\"");
    put(w, w->below, "quantization_config.weight_block_size", "[128, 128]");
}

static const char *json_text(cdr_pool *pool, const cdr_json *j)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    switch (cdr_json_type(j)) {
    case CDR_JSON_STRING: return quoted(pool, cdr_json_str(j, ""));
    case CDR_JSON_BOOL: return cdr_json_bool(j, false) ? "true" : "false";
    case CDR_JSON_INT: cdr_jw_int(&w, NULL, cdr_json_int(j, 0)); return taken(pool, &t);
    case CDR_JSON_REAL: cdr_jw_real(&w, NULL, cdr_json_real(j, 0)); return taken(pool, &t);
    default: return "null";
    }
}

/* A parsed file as a tree. Arrays are written on one line, and so is what is inside them. */
static const char *array_text(cdr_pool *pool, const cdr_json *array)
{
    struct { const cdr_json *j; int64_t i; } open[64] = { { array, 0 } };
    cdr_text t = { 0 };
    int depth = 0;
    cdr_text_printf(&t, "[");
    while (depth >= 0) {
        const cdr_json *j = open[depth].j;
        bool object = cdr_json_type(j) == CDR_JSON_OBJECT;
        if (open[depth].i == cdr_json_count(j)) {
            cdr_text_printf(&t, "%s", object ? "}" : "]");
            depth--;
            continue;
        }
        int64_t i = open[depth].i++;
        const cdr_json *item = cdr_json_at(j, i);
        cdr_json_kind kind = cdr_json_type(item);
        cdr_text_printf(&t, "%s", i ? ", " : "");
        if (object) cdr_text_printf(&t, "%s: ", quoted(pool, cdr_json_key(j, i)));
        if ((kind == CDR_JSON_ARRAY || kind == CDR_JSON_OBJECT) && depth + 1 < CDR_COUNT(open)) {
            cdr_text_printf(&t, "%s", kind == CDR_JSON_ARRAY ? "[" : "{");
            depth++;
            open[depth].j = item;
            open[depth].i = 0;
        } else {
            cdr_text_printf(&t, "%s", json_text(pool, item));
        }
    }
    return taken(pool, &t);
}

static void copy_tree(writer *w, const cdr_json *root, const cdr_json *skip)
{
    struct { const cdr_json *j; node *n; } *todo = NULL;
    int64_t n = 0, cap = 0, done = 0;
    CDR_PUSH(w->pool, todo, n, cap)->j = root;
    todo[0].n = &w->root;
    for (; done < n; done++) {
        const cdr_json *j = todo[done].j;
        node *to = todo[done].n;
        for (int64_t i = 0; i < cdr_json_count(j); i++) {
            const cdr_json *item = cdr_json_at(j, i);
            if (item == skip) continue;
            node *c = cdr_pool_alloc(w->pool, sizeof *c);
            const char *key = quoted(w->pool, cdr_json_key(j, i));
            c->key = cdr_pool_strndup(w->pool, key + 1, strlen(key) - 2);       /* escaped as it is printed */
            if (to->last) to->last->next = c;
            else to->first = c;
            to->last = c;
            if (cdr_json_type(item) != CDR_JSON_OBJECT) {
                c->text = cdr_json_type(item) == CDR_JSON_ARRAY ? array_text(w->pool, item) : json_text(w->pool, item);
                continue;
            }
            CDR_PUSH(w->pool, todo, n, cap)->j = item;
            todo[n - 1].n = c;
        }
    }
}

static bool packs(const cdr_model *m)                     /* the description's first format of experts is MXFP4 */
{
    for (int64_t i = 0; i < m->n_tensors; i++) if (m->tensor[i].packed) return true;
    return false;
}

/* quantised: CDR_MXFP4, CDR_F8_E4M3, else not */
static void put_quantisation(writer *w, int quantised)
{
    if (quantised == CDR_MXFP4) put_packed(w);
    if (quantised == CDR_F8_E4M3) put_fp8(w);
}

static void rewrite(writer *w, int quantised)
{
    const cdr__source *s = w->m->source;
    copy_tree(w, s->root, cdr__source_get(s, "quantization_config"));
    w->below = s->text != NULL;
    put_quantisation(w, quantised);
}

static cdr_status make(writer *w, int quantised, cdr_err *err)
{
    const cdr_yaml *also = cdr_yaml_get(w->d->root, "also");
    for (int i = 0; also && i < also->n; i++) w->below = w->below || strncmp(also->items[i].key, "text_config.", 12) == 0;
    CDR_TRY(put_match(w, err));
    CDR_TRY(put_config(w, err));
    CDR_TRY(put_expected(w, err));
    CDR_TRY(put_also(w, err));
    put_quantisation(w, quantised);
    return CDR_OK;
}

cdr_status cdr_model_config(const cdr_model *m, int experts, cdr_text *json, cdr_err *err)
{
    cdr_pool *pool = m->d.pool;
    cdr__desc own = m->d, family;
    writer w = { .pool = pool, .m = m, .d = &own };
    const cdr_json *q = m->source ? cdr__source_get(m->source, "quantization_config") : NULL;
    int has = !q ? CDR_BF16 : strcmp(cdr_json_str(cdr_json_get(q, "quant_method"), ""), "fp8") == 0 ? CDR_F8_E4M3 : CDR_MXFP4;
    int asked = experts >= 0 ? experts : m->source ? has : packs(m) ? CDR_MXFP4 : CDR_BF16;
    if (m->source && asked == has) {
        cdr_text_append(json, m->source->bytes, m->source->n_bytes);
        return CDR_OK;
    }
    if (m->source) {
        rewrite(&w, asked);
        print_tree(json, &w.root);
        return CDR_OK;
    }
    const char *text = cdr_builtin("models", m->info.family);
    cdr_model_spec spec = { .path = m->info.family };
    if (text) {
        cdr__input in = { .text = text, .bytes = strlen(text), .where = m->info.family };
        CDR_TRY(cdr__desc_read(&spec, &in, pool, &family, err));
        w.d = &family;
    }
    CDR_TRY(make(&w, asked, err));
    print_tree(json, &w.root);
    return CDR_OK;
}
