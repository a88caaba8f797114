/* value.c: one value of a recipe, from a YAML node into its field of cdr_recipe and back to text. Scalars are typed by the
 * schema row alone, so that `no`, 1e-4 and 0755 hold no surprise. Free maps are flattened to pairs ("kda.heads" = "2").
 * What is printed here reads back equal.
 */
#include "recipe/recipe.h"
#include <errno.h>
#include <stdlib.h>

enum { MAX_DEPTH = 16 };

typedef struct { cdr_recipe *r; const cdr_key *k; const char *at; cdr_err *err; } ctx;

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static cdr_status bad(const ctx *c, const char *got, const char *want)
{
    CDR_FAIL_ID(c->err, CDR_EUSER, "config.bad-value", "%s: %s is \"%s\", expected %s", c->at, c->k->key, got, want);
}

static cdr_status not_yet(const ctx *c, const char *got)
{
    CDR_FAIL_ID(c->err, CDR_EUSER, "config.not-in-version", "%s: %s is %s; this version does not have that yet, only the default%s%s. Remove it",
                c->at, c->k->key, got, c->k->def ? " " : "", c->k->def ? c->k->def : "");
}

static const char *type_words(const ctx *c)
{
    static const char *const name[] = { "an integer", "a number", "true or false", "one of", "text", "a duration (250ms 90s 3min 2h)",
                                        "a size (bytes, 40GiB, 64GB)", "steps", "a list", "a path or a list of sources", "a map" };
    const cdr_key *k = c->k;
    char *s = cdr_pool_printf(c->r->pool, "%s", name[k->type]);
    if (k->type == CDR_KEY_EVERY && cdr__word_in(k->words, "duration", 8, NULL)) s = cdr_pool_printf(c->r->pool, "steps, a duration (10min)");
    if (k->words && k->type != CDR_KEY_PAIRS && k->type != CDR_KEY_SOURCES) {
        char *w = cdr_pool_strdup(c->r->pool, k->words);
        for (char *p = w; *p; p++) if (*p == '|') *p = ' ';
        s = cdr_pool_printf(c->r->pool, "%s%s%s", s, k->type == CDR_KEY_ENUM ? ": " : " or ", w);
    }
    return s;
}

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

/* 1_000_000: underscores between digits are dropped. */
static bool clean_number(const char *s, char out[64])
{
    size_t n = 0;
    for (size_t i = 0; s[i]; i++) {
        if (s[i] == '_') {
            bool inside = i > 0 && s[i - 1] >= '0' && s[i - 1] <= '9' && s[i + 1] >= '0' && s[i + 1] <= '9';
            if (!inside) return false;
            continue;
        }
        if (!strchr("+-.eE0123456789", s[i]) || n + 1 >= 64) return false;
        out[n++] = s[i];
    }
    out[n] = 0;
    return n > 0;
}

static bool parse_int(const char *s, int64_t *x)
{
    char t[64], *end;
    if (!clean_number(s, t) || strpbrk(t, ".eE")) return false;
    errno = 0;
    long long v = strtoll(t, &end, 10);
    if (errno || *end) return false;
    *x = v;
    return true;
}

static bool parse_real(const char *s, double *x)
{
    char t[64], *end;
    if (!clean_number(s, t)) return false;
    *x = strtod(t, &end);
    return *end == 0 && *x - *x == 0;
}

static bool number_word(const cdr_key *k, const char *s, int64_t *x)
{
    if (!cdr__word_in(k->words, s, strlen(s), NULL)) return false;
    if (strcmp(s, "auto") == 0) *x = CDR_AUTO;
    else if (strcmp(s, "none") == 0) *x = CDR_UNSET;
    else if (strcmp(s, "all") == 0) *x = CDR_ALL;
    else return false;
    return true;
}

static cdr_status in_range(const ctx *c, double x, const char *got)
{
    const cdr_key *k = c->k;
    if (!(k->min == 0 && k->max == 0) && (x < k->min || x > k->max || (k->above && x <= k->min))) {
        char range[96];
        if (k->max >= 1e18) snprintf(range, sizeof range, "%s %.10g", k->above ? "more than" : "at least", k->min);
        else snprintf(range, sizeof range, "%s%.10g to %.10g", k->above ? "above " : "", k->min, k->max);
        CDR_FAIL_ID(c->err, CDR_EUSER, "config.out-of-range", "%s: %s is %s; its range is %s", c->at, k->key, got, range);
    }
    if (k->multiple && (int64_t)x % k->multiple != 0)
        CDR_FAIL_ID(c->err, CDR_EUSER, "config.out-of-range", "%s: %s is %s, which is no multiple of %d", c->at, k->key, got, k->multiple);
    return CDR_OK;
}

static cdr_status value_number(const ctx *c, const char *s, void *to)
{
    int64_t i = 0;
    double d = 0;
    bool real = c->k->type == CDR_KEY_REAL || c->k->type == CDR_KEY_DURATION;
    if (number_word(c->k, s, &i)) {
        if (real) *(double *)to = (double)i;
        else *(int64_t *)to = i;
        return CDR_OK;
    }
    bool ok = c->k->type == CDR_KEY_INT ? parse_int(s, &i)
            : c->k->type == CDR_KEY_BYTES ? cdr_parse_bytes(s, &i)
            : c->k->type == CDR_KEY_DURATION ? cdr_parse_duration(s, &d)
            : parse_real(s, &d);
    if (!ok) return bad(c, s, type_words(c));
    CDR_TRY(in_range(c, real ? d : (double)i, s));
    if (real) *(double *)to = d;
    else *(int64_t *)to = i;
    return CDR_OK;
}

static cdr_status value_every(const ctx *c, const char *s, cdr_every *to)
{
    int64_t steps;
    double seconds;
    *to = (cdr_every){ 0 };
    if (strcmp(s, "none") == 0) return CDR_OK;
    if (parse_int(s, &steps)) {
        if (steps < 1) CDR_FAIL_ID(c->err, CDR_EUSER, "config.out-of-range", "%s: %s is %s; its range is at least 1, or none", c->at, c->k->key, s);
        to->steps = steps;
        return CDR_OK;
    }
    if (cdr__word_in(c->k->words, "duration", 8, NULL) && cdr_parse_duration(s, &seconds) && seconds > 0) {
        to->seconds = seconds;
        return CDR_OK;
    }
    return bad(c, s, type_words(c));
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

/* `~/` and {name} in paths. */
static const char *expand(cdr_recipe *r, const char *s)
{
    const char *home = getenv("HOME"), *p = s, *at;
    cdr_text t = { 0 };
    if (s[0] == '~' && s[1] == '/' && home) {
        cdr_text_append(&t, home, strlen(home));
        p++;
    }
    while ((at = strstr(p, "{name}")) && r->name) {
        cdr_text_append(&t, p, (size_t)(at - p));
        cdr_text_append(&t, r->name, strlen(r->name));
        p = at + 6;
    }
    cdr_text_append(&t, p, strlen(p));
    const char *out = cdr_pool_strndup(r->pool, t.s, t.n);
    cdr_text_free(&t);
    return out;
}

static const char *free_word(const cdr_key *k)
{
    static const char *const free_words[] = { "PATH", "TEXT", "SET" };
    for (int i = 0; i < CDR_COUNT(free_words); i++)
        if (cdr__word_in(k->words, free_words[i], strlen(free_words[i]), NULL)) return free_words[i];
    return NULL;
}

static cdr_status value_word(const ctx *c, const char *s, const char **to)
{
    const cdr_key *k = c->k;
    const char *any = free_word(k);
    if (cdr__word_in(k->words, s, strlen(s), NULL) && !(any && strcmp(s, any) == 0)) {
        if (cdr__word_in(k->later, s, strlen(s), NULL)) return not_yet(c, s);
        *to = cdr_pool_strdup(c->r->pool, s);
        return CDR_OK;
    }
    if (!any || (!*s && strcmp(any, "TEXT") != 0)) return bad(c, s, type_words(c));
    if (cdr__word_in(k->later, any, strlen(any), NULL)) return not_yet(c, s);
    *to = strcmp(any, "PATH") == 0 ? expand(c->r, s) : cdr_pool_strdup(c->r->pool, s);
    return CDR_OK;
}

static cdr_status value_texts(const ctx *c, const cdr_yaml *node, cdr_strings *to)
{
    int n = node->kind == CDR_YAML_LIST ? node->n : 1;
    *to = (cdr_strings){ .s = cdr_pool_alloc(c->r->pool, sizeof(char *) * (size_t)(n + 1)) };
    for (int i = 0; i < n; i++) {
        const cdr_yaml *e = node->kind == CDR_YAML_LIST ? &node->items[i] : node;
        if (e->kind != CDR_YAML_SCALAR)
            CDR_FAIL_ID(c->err, CDR_EUSER, "config.not-in-version", "%s: entry %d of %s is no text; only plain text is taken in this version", c->at, i, c->k->key);
        CDR_TRY(value_word(c, e->text, &to->s[i]));
        to->n++;
    }
    return CDR_OK;
}

/* ---- free maps, flattened ------------------------------------------------------------------------------------------ */

void cdr__yaml_quote(cdr_text *t, const char *s)
{
    bool plain = *s != 0 && strspn(s, "-.0123456789") != strlen(s);
    for (const char *p = s; *p && plain; p++) {
        bool word = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' || *p == '/' || *p == '.';
        plain = word || (p > s && (*p == '-' || *p == '+'));
    }
    if (plain) {
        cdr_text_append(t, s, strlen(s));
        return;
    }
    cdr_text_append(t, "\"", 1);
    for (const char *p = s; *p; p++) {
        unsigned char u = (unsigned char)*p;
        if (u == '"' || u == '\\') cdr_text_printf(t, "\\%c", u);
        else if (u == '\n') cdr_text_append(t, "\\n", 2);
        else if (u == '\t') cdr_text_append(t, "\\t", 2);
        else if (u < 32 || u == 127) cdr_text_printf(t, "\\x%02x", u);
        else cdr_text_append(t, p, 1);
    }
    cdr_text_append(t, "\"", 1);
}

static bool all_scalars(const cdr_yaml *list)
{
    for (int i = 0; i < list->n; i++) if (list->items[i].kind != CDR_YAML_SCALAR) return false;
    return true;
}

static const char *flow_list(cdr_pool *pool, const cdr_yaml *list)
{
    cdr_text t = { 0 };
    cdr_text_append(&t, "[", 1);
    for (int i = 0; i < list->n; i++) {
        if (i) cdr_text_append(&t, ", ", 2);
        const char *s = list->items[i].text;
        if (!list->items[i].quoted && *s && strspn(s, "-+.eE_0123456789") == strlen(s)) cdr_text_append(&t, s, strlen(s));
        else cdr__yaml_quote(&t, s);
    }
    cdr_text_append(&t, "]", 1);
    const char *out = cdr_pool_strndup(pool, t.s, t.n);
    cdr_text_free(&t);
    return out;
}

static cdr_status value_pairs(const ctx *c, const cdr_yaml *node, cdr_pairs *to)
{
    struct { const cdr_yaml *node; int i; const char *prefix; } stack[MAX_DEPTH + 1];
    int depth = 0;
    int64_t cap = 0, n = 0;
    *to = (cdr_pairs){ 0 };
    if (node->kind == CDR_YAML_SCALAR) return bad(c, node->text, type_words(c));
    stack[0].node = node; stack[0].i = 0; stack[0].prefix = "";
    while (depth >= 0) {
        const cdr_yaml *top = stack[depth].node;
        int i = stack[depth].i++;
        if (i >= top->n) { depth--; continue; }
        const cdr_yaml *e = &top->items[i];
        const char *key = top->kind == CDR_YAML_MAP ? e->key : cdr_pool_printf(c->r->pool, "%d", i);
        const char *name = *stack[depth].prefix ? cdr_pool_printf(c->r->pool, "%s.%s", stack[depth].prefix, key) : key;
        if (c->k->words && top->kind == CDR_YAML_MAP && !cdr__word_in(c->k->words, key, strlen(key), NULL))
            CDR_FAIL_ID(c->err, CDR_EUSER, "config.unknown-key", "%s: unknown key %s.%s", c->at, c->k->key, name);
        bool leaf = e->kind == CDR_YAML_SCALAR || (e->kind == CDR_YAML_LIST && all_scalars(e));
        if (leaf) {
            cdr_pair *p = CDR_PUSH(c->r->pool, to->p, n, cap);
            p->name = cdr_pool_strdup(c->r->pool, name);
            p->text = e->kind == CDR_YAML_SCALAR ? cdr_pool_strdup(c->r->pool, e->text) : flow_list(c->r->pool, e);
        } else if (depth < MAX_DEPTH) {
            depth++;
            stack[depth].node = e; stack[depth].i = 0; stack[depth].prefix = name;
        }
    }
    to->n = (int)n;
    return CDR_OK;
}

/* ---- sources --------------------------------------------------------------------------------------------------------- */

static const char *stem(cdr_pool *pool, const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash && slash[1] ? slash + 1 : path;
    return cdr_pool_strndup(pool, base, base[0] == '.' ? strlen(base) : strcspn(base, "."));
}

static cdr_status source_columns(const ctx *c, const cdr_yaml *e, cdr_source *s)
{
    if (e->kind != CDR_YAML_MAP) return bad(c, e->kind == CDR_YAML_SCALAR ? e->text : "[...]", "columns as a map {ours: theirs}");
    s->columns = (cdr_pairs){ .p = cdr_pool_alloc(c->r->pool, sizeof(cdr_pair) * (size_t)(e->n + 1)) };
    for (int i = 0; i < e->n; i++) {
        if (e->items[i].kind != CDR_YAML_SCALAR || !*e->items[i].text) return bad(c, e->items[i].key, "columns as a map {ours: theirs} of names");
        s->columns.p[s->columns.n++] = (cdr_pair){ cdr_pool_strdup(c->r->pool, e->items[i].key), cdr_pool_strdup(c->r->pool, e->items[i].text) };
    }
    return CDR_OK;
}

static cdr_status source_member(const ctx *c, const cdr_yaml *e, cdr_source *s)
{
    if (strcmp(e->key, "columns") == 0) return source_columns(c, e, s);
    if (e->kind != CDR_YAML_SCALAR)
        CDR_FAIL_ID(c->err, CDR_EUSER, "config.bad-value", "%s: %s.%s takes one value", c->at, c->k->key, e->key);
    cdr_pool *pool = c->r->pool;
    if (strcmp(e->key, "path") == 0) s->path = expand(c->r, e->text);
    else if (strcmp(e->key, "name") == 0) s->name = cdr_pool_strdup(pool, e->text);
    else if (strcmp(e->key, "format") == 0) {
        const cdr_key *f = &cdr_recipe_schema(&(int){ 0 })[cdr_recipe_key("data.format")];
        if (!cdr__word_in(f->words, e->text, strlen(e->text), &s->format)) return bad(c, e->text, "one of the formats of data.format");
    } else if (strcmp(e->key, "weight") == 0) {
        if (!parse_real(e->text, &s->weight) || s->weight <= 0) return bad(c, e->text, "a weight above 0");
    } else if (strcmp(e->key, "max_samples") == 0) {
        if (!parse_int(e->text, &s->max_samples) || s->max_samples < 1) return bad(c, e->text, "max_samples of at least 1");
    } else if (strcmp(e->key, "train_on") == 0) {
        const cdr_key *f = &cdr_recipe_schema(&(int){ 0 })[cdr_recipe_key("data.train_on")];
        if (!cdr__word_in(f->words, e->text, strlen(e->text), &s->train_on)) return bad(c, e->text, "one of auto, assistant, last, all");
    } else {
        static const char *const names[] = { "path", "format", "weight", "name", "train_on", "columns", "max_samples" };
        CDR_FAIL_ID(c->err, CDR_EUSER, "config.unknown-key", "%s: unknown key %s.%s.%s", c->at, c->k->key, e->key,
                    cdr_nearest(pool, e->key, names, CDR_COUNT(names)));
    }
    return CDR_OK;
}

static cdr_status value_sources(const ctx *c, const cdr_yaml *node, cdr_sources *to)
{
    int n = node->kind == CDR_YAML_LIST ? node->n : 1;
    *to = (cdr_sources){ .s = cdr_pool_alloc(c->r->pool, sizeof(cdr_source) * (size_t)(n + 1)) };
    if (node->kind == CDR_YAML_SCALAR && strcmp(node->text, "none") == 0 && cdr__word_in(c->k->words, "none", 4, NULL)) {
        to->none = true;
        return CDR_OK;
    }
    if (n == 0) return bad(c, "[]", "at least one source");
    for (int i = 0; i < n; i++) {
        const cdr_yaml *e = node->kind == CDR_YAML_LIST ? &node->items[i] : node;
        cdr_source *s = &to->s[to->n++];
        *s = (cdr_source){ .weight = 1, .max_samples = CDR_UNSET };
        if (e->kind == CDR_YAML_LIST) return bad(c, "[...]", "a path, or a map with path");
        if (e->kind == CDR_YAML_SCALAR) s->path = expand(c->r, e->text);
        for (int j = 0; e->kind == CDR_YAML_MAP && j < e->n; j++) CDR_TRY(source_member(c, &e->items[j], s));
        if (!s->path || !*s->path) CDR_FAIL_ID(c->err, CDR_EUSER, "config.missing-key", "%s: %s entry %d has no path", c->at, c->k->key, i);
        if (!s->name) s->name = stem(c->r->pool, s->path);
    }
    return CDR_OK;
}

/* ---- the value --------------------------------------------------------------------------------------------------------- */

static cdr_status scalar_value(const ctx *c, const char *s, void *to)
{
    switch ((cdr_key_type)c->k->type) {
    case CDR_KEY_INT: case CDR_KEY_REAL: case CDR_KEY_DURATION: case CDR_KEY_BYTES:
        return value_number(c, s, to);
    case CDR_KEY_EVERY:
        return value_every(c, s, to);
    case CDR_KEY_BOOL:
        if (strcmp(s, "true") != 0 && strcmp(s, "false") != 0) return bad(c, s, "true or false");
        *(bool *)to = strcmp(s, "true") == 0;
        return CDR_OK;
    case CDR_KEY_ENUM: {
        int i;
        if (!cdr__word_in(c->k->words, s, strlen(s), &i)) return bad(c, s, type_words(c));
        if (cdr__word_in(c->k->later, s, strlen(s), NULL)) return not_yet(c, s);
        *(int *)to = i;
        return CDR_OK;
    }
    case CDR_KEY_TEXT:
        return value_word(c, s, to);
    case CDR_KEY_TEXTS: case CDR_KEY_SOURCES: case CDR_KEY_PAIRS:
        break;
    }
    return bad(c, s, type_words(c));
}

cdr_status cdr__value_parse(cdr_recipe *r, const cdr_key *k, const cdr_yaml *node, const char *at, cdr_err *err)
{
    ctx c = { r, k, at, err };
    void *to = (char *)r + k->at;
    if (k->type == CDR_KEY_TEXTS) CDR_TRY(value_texts(&c, node, to));
    else if (k->type == CDR_KEY_SOURCES) CDR_TRY(value_sources(&c, node, to));
    else if (k->type == CDR_KEY_PAIRS) CDR_TRY(value_pairs(&c, node, to));
    else if (node->kind != CDR_YAML_SCALAR) return bad(&c, node->kind == CDR_YAML_LIST ? "a list" : "a map", type_words(&c));
    else CDR_TRY(scalar_value(&c, node->text, to));
    return CDR_OK;
}

/* ---- printing ------------------------------------------------------------------------------------------------------------ */

static void print_real(cdr_text *t, double x)
{
    char s[40];
    int prec = 1;
    do snprintf(s, sizeof s, "%.*g", prec, x);
    while (strtod(s, NULL) != x && ++prec <= 17);
    cdr_text_append(t, s, strlen(s));
}

static bool print_word(cdr_text *t, int64_t x)
{
    const char *w = x == CDR_AUTO ? "auto" : x == CDR_UNSET ? "none" : x == CDR_ALL ? "all" : NULL;
    if (w) cdr_text_append(t, w, strlen(w));
    return w != NULL;
}

static void print_duration(cdr_text *t, double s)
{
    static const struct { double unit; const char *name; } units[] = { { 3600, "h" }, { 60, "min" }, { 1, "s" }, { 0.001, "ms" } };
    for (int i = 0; i < CDR_COUNT(units); i++) {
        int64_t n = (int64_t)(s / units[i].unit + 0.5);
        double back = 0;
        char text[48];
        snprintf(text, sizeof text, "%lld%s", (long long)n, units[i].name);
        if (n > 0 && cdr_parse_duration(text, &back) && back == s) {
            cdr_text_append(t, text, strlen(text));
            return;
        }
    }
    print_real(t, s);
    cdr_text_append(t, "s", 1);
}

static void print_pairs(cdr_text *t, const cdr_pairs *p)
{
    cdr_text_append(t, "{", 1);
    for (int i = 0; i < p->n; i++) {
        if (i) cdr_text_append(t, ", ", 2);
        cdr__yaml_quote(t, p->p[i].name);
        cdr_text_append(t, ": ", 2);
        if (p->p[i].text[0] == '[') cdr_text_append(t, p->p[i].text, strlen(p->p[i].text));
        else cdr__yaml_quote(t, p->p[i].text);
    }
    cdr_text_append(t, "}", 1);
}

static void print_enum(cdr_text *t, const char *words, int i)
{
    const char *p = words;
    for (; i > 0 && *p; i--) p += strcspn(p, "|") + (p[strcspn(p, "|")] == '|');
    cdr_text_append(t, p, strcspn(p, "|"));
}

/* A word of a source that differs from auto, in the spelling of the key that has the words. */
static void source_word(cdr_text *t, const char *label, const char *key, int i)
{
    if (i == 0) return;
    cdr_text_append(t, label, strlen(label));
    print_enum(t, cdr_recipe_schema(&(int){ 0 })[cdr_recipe_key(key)].words, i);
}

static void print_sources(cdr_text *t, const cdr_sources *s)
{
    if (s->none) { cdr_text_append(t, "none", 4); return; }
    cdr_text_append(t, "[", 1);
    for (int i = 0; i < s->n; i++) {
        const cdr_source *e = &s->s[i];
        cdr_text_append(t, i ? ", {path: " : "{path: ", i ? 9 : 7);
        cdr__yaml_quote(t, e->path);
        cdr_text_append(t, ", name: ", 8);
        cdr__yaml_quote(t, e->name);
        if (e->weight != 1) { cdr_text_append(t, ", weight: ", 10); print_real(t, e->weight); }
        source_word(t, ", format: ", "data.format", e->format);
        source_word(t, ", train_on: ", "data.train_on", e->train_on);
        for (int k = 0; k < e->columns.n; k++) {
            cdr_text_printf(t, k ? ", " : ", columns: {");
            cdr__yaml_quote(t, e->columns.p[k].name);
            cdr_text_append(t, ": ", 2);
            cdr__yaml_quote(t, e->columns.p[k].text);
        }
        if (e->columns.n > 0) cdr_text_append(t, "}", 1);
        if (e->max_samples > 0) cdr_text_printf(t, ", max_samples: %lld", (long long)e->max_samples);
        cdr_text_append(t, "}", 1);
    }
    cdr_text_append(t, "]", 1);
}

void cdr__value_print(cdr_text *t, const cdr_recipe *r, const cdr_key *k)
{
    const void *at = (const char *)r + k->at;
    switch ((cdr_key_type)k->type) {
    case CDR_KEY_INT: case CDR_KEY_BYTES:
        if (!print_word(t, *(const int64_t *)at)) cdr_text_printf(t, "%lld", (long long)*(const int64_t *)at);
        return;
    case CDR_KEY_REAL: case CDR_KEY_DURATION: {
        double x = *(const double *)at;
        if (x < 0 && print_word(t, (int64_t)x)) return;
        if (k->type == CDR_KEY_REAL) print_real(t, x);
        else print_duration(t, x);
        return;
    }
    case CDR_KEY_BOOL:
        cdr_text_printf(t, "%s", *(const bool *)at ? "true" : "false");
        return;
    case CDR_KEY_ENUM:
        print_enum(t, k->words, *(const int *)at);
        return;
    case CDR_KEY_TEXT:
        cdr__yaml_quote(t, *(const char *const *)at ? *(const char *const *)at : "");
        return;
    case CDR_KEY_EVERY: {
        const cdr_every *e = at;
        if (e->steps > 0) cdr_text_printf(t, "%lld", (long long)e->steps);
        else if (e->seconds > 0) print_duration(t, e->seconds);
        else cdr_text_append(t, "none", 4);
        return;
    }
    case CDR_KEY_TEXTS: {
        const cdr_strings *s = at;
        cdr_text_append(t, "[", 1);
        for (int i = 0; i < s->n; i++) {
            if (i) cdr_text_append(t, ", ", 2);
            cdr__yaml_quote(t, s->s[i]);
        }
        cdr_text_append(t, "]", 1);
        return;
    }
    case CDR_KEY_SOURCES:
        print_sources(t, at);
        return;
    case CDR_KEY_PAIRS:
        print_pairs(t, at);
        return;
    }
}
