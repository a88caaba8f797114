/* schema_text.c: the schema table as JSON Schema 2020-12 (for editors) and as lines for a person.
 *
 * A resume class and a status have no word in JSON Schema: they are `x-resume` and `x-status`.
 */
#include "recipe/recipe.h"

static const char *type_name(const cdr_key *k)
{
    static const char *const names[] = { "int", "number", "bool", "one of", "text", "duration", "size", "steps", "list", "sources", "map" };
    return names[k->type];
}

static void words_of(cdr_jw *w, const char *words, bool lists)
{
    static const char *const free_words[] = { "PATH", "TEXT", "SET", "duration" };
    for (const char *p = words; p && *p;) {
        size_t n = strcspn(p, "|");
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)CDR_MIN(n, sizeof word - 1), p);
        bool is_free = false;
        for (int i = 0; i < CDR_COUNT(free_words); i++) is_free = is_free || strcmp(word, free_words[i]) == 0;
        if (!is_free || lists) cdr_jw_str(w, NULL, word);
        p += n + (p[n] == '|');
    }
}

static bool has_word(const char *words, const char *word) { return cdr__word_in(words, word, strlen(word), NULL); }

/* {"anyOf": [{...}, {"enum": words}]} or the bare form where there are no words. */
static void number_schema(cdr_jw *w, const cdr_key *k, const char *type, bool any)
{
    if (any) {
        cdr_jw_begin(w, "anyOf", '[');
        cdr_jw_begin(w, NULL, '{');
    }
    cdr_jw_str(w, "type", type);
    if (!(k->min == 0 && k->max == 0)) {
        if (k->above) cdr_jw_real(w, "exclusiveMinimum", k->min);
        else cdr_jw_real(w, "minimum", k->min);
        if (k->max < 1e18) cdr_jw_real(w, "maximum", k->max);
    }
    if (k->multiple) cdr_jw_int(w, "multipleOf", k->multiple);
    if (any) {
        cdr_jw_end(w, '}');
        if (k->words) {
            cdr_jw_begin(w, NULL, '{');
            cdr_jw_begin(w, "enum", '[');
            words_of(w, k->words, false);
            cdr_jw_end(w, ']');
            cdr_jw_end(w, '}');
        }
        if (k->type == CDR_KEY_BYTES || k->type == CDR_KEY_DURATION || has_word(k->words, "duration")) {
            cdr_jw_begin(w, NULL, '{');
            cdr_jw_str(w, "type", "string");
            cdr_jw_str(w, "pattern", k->type == CDR_KEY_BYTES ? "^[0-9.]+([KMGT]i?B)?$" : "^[0-9.]+(ms|s|min|h)$");
            cdr_jw_end(w, '}');
        }
        cdr_jw_end(w, ']');
    }
}

static void text_schema(cdr_jw *w, const cdr_key *k)
{
    bool open = has_word(k->words, "PATH") || has_word(k->words, "TEXT") || has_word(k->words, "SET");
    if (open) {
        cdr_jw_str(w, "type", "string");
        return;
    }
    cdr_jw_begin(w, "enum", '[');
    words_of(w, k->words, false);
    cdr_jw_end(w, ']');
}

static void source_schema(cdr_jw *w, const cdr_key *k)
{
    cdr_jw_begin(w, "anyOf", '[');
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "type", "string");
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "type", "object");
    cdr_jw_begin(w, "propertyNames", '{');
    cdr_jw_begin(w, "enum", '[');
    words_of(w, k->words, true);
    cdr_jw_end(w, ']');
    cdr_jw_end(w, '}');
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "type", "array");
    cdr_jw_end(w, '}');
    cdr_jw_end(w, ']');
}

static void key_schema(cdr_jw *w, const cdr_key *k, const char *name)
{
    cdr_jw_begin(w, name, '{');
    cdr_jw_str(w, "description", k->help);
    switch ((cdr_key_type)k->type) {
    case CDR_KEY_INT: number_schema(w, k, "integer", k->words != NULL); break;
    case CDR_KEY_REAL: number_schema(w, k, "number", k->words != NULL); break;
    case CDR_KEY_BYTES: case CDR_KEY_EVERY: case CDR_KEY_DURATION: number_schema(w, k, "integer", true); break;
    case CDR_KEY_BOOL: cdr_jw_str(w, "type", "boolean"); break;
    case CDR_KEY_ENUM: case CDR_KEY_TEXT: text_schema(w, k); break;
    case CDR_KEY_SOURCES: source_schema(w, k); break;
    case CDR_KEY_TEXTS:
        cdr_jw_begin(w, "anyOf", '[');
        for (int i = 0; i < 2; i++) {
            cdr_jw_begin(w, NULL, '{');
            cdr_jw_str(w, "type", i ? "array" : "string");
            cdr_jw_end(w, '}');
        }
        cdr_jw_end(w, ']');
        break;
    case CDR_KEY_PAIRS: {
        cdr_jw_begin(w, "type", '[');
        cdr_jw_str(w, NULL, "object");
        cdr_jw_str(w, NULL, "array");
        cdr_jw_end(w, ']');
        break;
    }
    }
    if (k->def) cdr_jw_str(w, "x-default", k->def_help ? k->def_help : k->def);
    cdr_jw_str(w, "x-resume", (char[]){ k->resume, 0 });
    cdr_jw_str(w, "x-status", k->status == CDR_KEY_LATER ? "later" : "now");
    if (k->aliases) cdr_jw_str(w, "x-aliases", k->aliases);
    if (k->shortcut) cdr_jw_str(w, "x-flag", k->shortcut);
    cdr_jw_end(w, '}');
}

static void close_object(cdr_jw *w)
{
    cdr_jw_end(w, '}');
    cdr_jw_bool(w, "additionalProperties", false);
    cdr_jw_end(w, '}');
}

/* The rows are in the order of their sections, so that one pass opens and closes each. */
static void all_schema(cdr_jw *w, const cdr_key *k, int n)
{
    char open[3][64] = { "", "", "" };
    int depth = 0;
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "$schema", "https://json-schema.org/draft/2020-12/schema");
    cdr_jw_str(w, "title", "cadre recipe");
    cdr_jw_str(w, "type", "object");
    cdr_jw_begin(w, "required", '[');
    cdr_jw_str(w, NULL, "model");
    cdr_jw_str(w, NULL, "data");
    cdr_jw_end(w, ']');
    cdr_jw_begin(w, "properties", '{');
    for (int i = 0; i < n; i++) {
        char part[3][64];
        int parts = 0;
        const char *p = k[i].key;
        for (const char *dot; (dot = strchr(p, '.')) && parts < 2; p = dot + 1)
            snprintf(part[parts++], sizeof part[0], "%.*s", (int)(dot - p), p);
        int same = 0;
        while (same < depth && same < parts && strcmp(open[same], part[same]) == 0) same++;
        for (; depth > same; depth--) close_object(w);
        for (; depth < parts; depth++) {
            snprintf(open[depth], sizeof open[0], "%s", part[depth]);
            cdr_jw_begin(w, part[depth], '{');
            cdr_jw_str(w, "type", "object");
            cdr_jw_begin(w, "properties", '{');
        }
        key_schema(w, &k[i], p);
    }
    for (; depth > 0; depth--) close_object(w);
    cdr_jw_end(w, '}');
    cdr_jw_bool(w, "additionalProperties", false);
    cdr_jw_end(w, '}');
}

static int find(const char *key, cdr_pool *pool, cdr_err *err)
{
    int n, row = cdr_recipe_key(key);
    const cdr_key *k = cdr_recipe_schema(&n);
    if (row >= 0) return row;
    const char **names = cdr_pool_alloc(pool, sizeof *names * (size_t)n);
    for (int i = 0; i < n; i++) names[i] = k[i].key;
    cdr_fail(err, CDR_EUSER, "config.unknown-key", "%s: no such key.%s", key, cdr_nearest(pool, key, names, n));
    return -1;
}

char *cdr_schema_json(const char *key, cdr_pool *pool, cdr_err *err)
{
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    if (key) {
        int row = find(key, pool, err);
        if (row < 0) return NULL;
        key_schema(&w, &k[row], NULL);
    } else {
        all_schema(&w, k, n);
    }
    char *s = cdr_pool_strndup(pool, t.s, t.n);
    cdr_text_free(&t);
    return s;
}

char *cdr_schema_explain(const char *key, cdr_pool *pool, cdr_err *err)
{
    static const struct { char c; const char *what; } classes[] = {
        { 'F', "fixed: a resume with another value is refused" }, { 'R', "a resume may change it; results then differ by rounding" },
        { 'L', "a resume may change it; layout or speed, the bits stay while train.reduce is tree" }, { 'C', "a resume may change it" } };
    int n, row = find(key, pool, err);
    if (row < 0) return NULL;
    const cdr_key *k = &cdr_recipe_schema(&n)[row];
    cdr_text t = { 0 };
    cdr_text_printf(&t, "%s\n  %s\n  type      %s%s%s", k->key, k->help, type_name(k), k->words ? " " : "", k->words ? k->words : "");
    if (!(k->min == 0 && k->max == 0)) {
        if (k->max >= 1e18) cdr_text_printf(&t, "  %s %.10g", k->above ? "above" : "from", k->min);
        else cdr_text_printf(&t, "  %s %.10g to %.10g", k->above ? "above" : "from", k->min, k->max);
    }
    if (k->multiple) cdr_text_printf(&t, ", a multiple of %d", k->multiple);
    cdr_text_printf(&t, "\n  default   %s%s%s%s\n", k->def ? k->def : "none: required", k->def_help ? " (" : "", k->def_help ? k->def_help : "", k->def_help ? ")" : "");
    for (int i = 0; i < CDR_COUNT(classes); i++)
        if (classes[i].c == k->resume) cdr_text_printf(&t, "  resume    %c, %s\n", k->resume, classes[i].what);
    if (k->shortcut) cdr_text_printf(&t, "  flag      %s\n", k->shortcut);
    if (k->aliases) cdr_text_printf(&t, "  also      %s\n", k->aliases);
    if (k->later) cdr_text_printf(&t, "  later     %s\n", k->later);
    if (k->status == CDR_KEY_LATER) cdr_text_printf(&t, "  later     reserved: this version takes only the default\n");
    char *s = cdr_pool_strndup(pool, t.s, t.n);
    cdr_text_free(&t);
    return s;
}
