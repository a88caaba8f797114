/* description.c: a model description file as a tree: what it extends is merged below it, its sizes are a flat table, and
 * every section and key is known. Source of the format: spec/interface.md, 4.1. What only a directory with a config.json
 * uses (match, config, expect, also, ignore, carry, serve) is checked in form here and used by config_*.c; a default in config is
 * a size where sizes has none.
 *
 *   extends: maps merge, `none` removes an entry. A node's line holds its file: line + (file << 20).
 */
#include "models/config_parts.h"
#include <stdlib.h>

enum { FILE_SHIFT = 20, MAX_NODES = 4096 };

const char *cdr__desc_at(const cdr__desc *d, const cdr_yaml *node)
{
    int line = node->key && node->key_line ? node->key_line : node->line, col = node->key && node->key_line ? node->key_col : node->col;
    int file = line >> FILE_SHIFT;
    return cdr_pool_printf(d->pool, "%s:%d:%d", d->file[file < d->n_files ? file : 0], line & ((1 << FILE_SHIFT) - 1), col);
}

/* ---- reading and merging --------------------------------------------------------------------------------------------- */

static cdr_status stamp_file(cdr_pool *pool, cdr_yaml *root, int file, const char *where, cdr_err *err)
{
    cdr_yaml **stack = cdr_pool_alloc(pool, sizeof *stack * MAX_NODES);
    int n = 0;
    stack[n++] = root;
    while (n > 0) {
        cdr_yaml *e = stack[--n];
        e->line += file << FILE_SHIFT;
        e->key_line += file << FILE_SHIFT;
        if (n + e->n > MAX_NODES) CDR_FAIL_ID(err, CDR_EUSER, "model.too-large", "%s: more than %d nodes side by side", where, MAX_NODES);
        for (int i = 0; i < e->n; i++) stack[n++] = &e->items[i];
    }
    return CDR_OK;
}

static int member(const cdr_yaml *map, const char *key)
{
    for (int i = 0; i < map->n; i++) if (strcmp(map->items[i].key, key) == 0) return i;
    return -1;
}

static void add_member(cdr_pool *pool, cdr_yaml *map, const cdr_yaml *e)
{
    cdr_yaml *grown = cdr_pool_alloc(pool, sizeof *grown * (size_t)(map->n + 1));
    if (map->n) memcpy(grown, map->items, sizeof *grown * (size_t)map->n);
    grown[map->n] = *e;
    map->items = grown;
    map->n++;
}

static void remove_member(cdr_yaml *map, int i)
{
    memmove(map->items + i, map->items + i + 1, sizeof *map->items * (size_t)(map->n - i - 1));
    map->n--;
}

/* Lays `over` on `base`. Pairs of maps are taken one at a time from a list, so that nothing recurses. */
static cdr_status merge(cdr_pool *pool, cdr_yaml *base, const cdr_yaml *over, const char *where, cdr_err *err)
{
    struct { cdr_yaml *base; const cdr_yaml *over; } *todo = cdr_pool_alloc(pool, sizeof *todo * MAX_NODES);
    int n = 0, done = 0;
    todo[n].base = base;
    todo[n++].over = over;
    for (; done < n; done++) {
        cdr_yaml *b = todo[done].base;
        const cdr_yaml *o = todo[done].over;
        /* entries first, then maps below them: adding moves b's items */
        for (int i = 0; i < o->n; i++) {
            const cdr_yaml *e = &o->items[i];
            int at = member(b, e->key);
            bool none = e->kind == CDR_YAML_SCALAR && !e->quoted && strcmp(e->text, "none") == 0;
            if (at >= 0 && none) remove_member(b, at);
            else if (at < 0) add_member(pool, b, e);
            else if (e->kind != CDR_YAML_MAP || b->items[at].kind != CDR_YAML_MAP) b->items[at] = *e;
        }
        for (int i = 0; i < o->n; i++) {
            const cdr_yaml *e = &o->items[i];
            int at = member(b, e->key);
            if (at < 0 || e->kind != CDR_YAML_MAP || b->items[at].kind != CDR_YAML_MAP || b->items[at].items == e->items) continue;
            if (n == MAX_NODES) CDR_FAIL_ID(err, CDR_EUSER, "model.too-large", "%s: more than %d maps", where, MAX_NODES);
            todo[n].base = &b->items[at];
            todo[n++].over = e;
        }
    }
    return CDR_OK;
}

static cdr_status parse_file(cdr__desc *d, const char *text, size_t bytes, const char *where, cdr_yaml **root, cdr_err *err)
{
    if (d->n_files == CDR__MAX_FILES) CDR_FAIL_ID(err, CDR_EUSER, "model.extends", "%s: extends goes over more than %d files", where, CDR__MAX_FILES);
    CDR_TRY(cdr_yaml_parse(d->pool, text, bytes, where, root, err));
    if ((*root)->kind != CDR_YAML_MAP) CDR_FAIL_ID(err, CDR_EUSER, "model.not-a-map", "%s: a model description is a map of sections", where);
    CDR_TRY(stamp_file(d->pool, *root, d->n_files, where, err));
    d->file[d->n_files++] = where;
    return CDR_OK;
}

/* The chain of files, from the one asked for to the one that extends nothing; then merged from the base up. */
static cdr_status read_chain(cdr__desc *d, const char *text, size_t bytes, const char *where, cdr_err *err)
{
    cdr_yaml *chain[CDR__MAX_FILES];
    int n = 0;
    CDR_TRY(parse_file(d, text, bytes, where, &chain[n++], err));
    for (const cdr_yaml *ext; (ext = cdr_yaml_get(chain[n - 1], "extends"));) {
        if (ext->kind != CDR_YAML_SCALAR) CDR_FAIL_ID(err, CDR_EUSER, "model.extends", "%s: extends names one description", cdr__desc_at(d, ext));
        const char *t, *w;
        size_t len;
        CDR_TRY(cdr_builtin_or_file("models", ext->text, d->pool, &t, &len, &w, err));
        if (n == CDR__MAX_FILES) CDR_FAIL_ID(err, CDR_EUSER, "model.extends", "%s: extends goes over more than %d files", where, CDR__MAX_FILES);
        CDR_TRY(parse_file(d, t, len, w, &chain[n++], err));
    }
    for (int i = 0; i < n && !d->family; i++) {           /* a file that neither matches nor says so is of the family of what it extends */
        const cdr_yaml *match = cdr_yaml_get(chain[i], "match");
        d->family = cdr__attr_word(chain[i], "family");
        if (!d->family && match && match->kind == CDR_YAML_MAP) d->family = cdr__attr_word(chain[i], "name");
    }
    d->root = chain[n - 1];
    for (int i = n - 2; i >= 0; i--) CDR_TRY(merge(d->pool, d->root, chain[i], where, err));
    return CDR_OK;
}

/* ---- sizes ---------------------------------------------------------------------------------------------------------------- */

bool cdr__size_text(const char *s, cdr__size *z)
{
    char *end, digits[64];
    size_t n = 0;
    for (; *s && n + 1 < sizeof digits; s++) if (*s != '_') digits[n++] = *s;
    digits[n] = 0;
    if (n == 0 || strspn(digits, "+-.eE0123456789") != n) return false;
    z->real = strpbrk(digits, ".eE") != NULL;
    z->d = strtod(digits, &end);
    if (*end || z->d - z->d != 0) return false;
    z->i = z->real ? 0 : strtoll(digits, &end, 10);
    return z->real || (!*end && z->i >= 0 && z->i < INT64_MAX);
}

static bool size_value(cdr__desc *d, const cdr_yaml *e, cdr__size *z)
{
    if (e->kind == CDR_YAML_SCALAR) return cdr__size_text(e->text, z);
    if (e->kind != CDR_YAML_LIST) return false;
    int64_t *items = cdr_pool_alloc(d->pool, sizeof *items * (size_t)(e->n + 1));
    for (int i = 0; i < e->n; i++) {
        cdr__size one = { 0 };
        if (e->items[i].kind != CDR_YAML_SCALAR || !cdr__size_text(e->items[i].text, &one) || one.real) return false;
        items[i] = one.i;
    }
    z->list = true;
    z->items = items;
    z->n = e->n;
    return true;
}

static cdr_status add_sizes(cdr__desc *d, const cdr_yaml *map, cdr_err *err)
{
    struct { const cdr_yaml *map; const char *prefix; } stack[64];
    int n = 0;
    stack[n].map = map;
    stack[n++].prefix = "";
    while (n > 0) {
        const cdr_yaml *m = stack[--n].map;
        const char *prefix = stack[n].prefix;
        for (int i = 0; i < m->n; i++) {
            const cdr_yaml *e = &m->items[i];
            const char *name = *prefix ? cdr_pool_printf(d->pool, "%s.%s", prefix, e->key) : e->key;
            if (e->kind == CDR_YAML_MAP) {
                if (n == CDR_COUNT(stack)) CDR_FAIL_ID(err, CDR_EUSER, "model.too-large", "%s: sizes are nested too deep", cdr__desc_at(d, e));
                stack[n].map = e;
                stack[n++].prefix = name;
                continue;
            }
            cdr__size z = { .name = name, .node = e };
            if (e->kind == CDR_YAML_SCALAR && strcmp(e->text, "none") == 0) continue;
            if (!size_value(d, e, &z))
                CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: size %s is a number of at least 0 or a list of integers", cdr__desc_at(d, e), name);
            *CDR_PUSH(d->pool, d->size, d->n_sizes, d->cap_sizes) = z;
        }
    }
    return CDR_OK;
}

static cdr_status override_sizes(cdr__desc *d, const cdr_pairs *p, cdr_err *err)
{
    for (int i = 0; p && i < p->n; i++) {
        cdr__size *z = NULL;
        for (int64_t k = 0; k < d->n_sizes; k++) if (strcmp(d->size[k].name, p->p[i].name) == 0) z = &d->size[k];
        if (!z) {
            const char **names = cdr_pool_alloc(d->pool, sizeof *names * (size_t)(d->n_sizes + 1));
            for (int64_t k = 0; k < d->n_sizes; k++) names[k] = d->size[k].name;
            const char *like = cdr_nearest(d->pool, p->p[i].name, names, (int)d->n_sizes), *all = "";
            for (int64_t k = 0; !*like && k < d->n_sizes; k++) all = cdr_pool_printf(d->pool, "%s%s%s", all, k ? ", " : " Its sizes: ", names[k]);
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-size", "model.sizes: %s has no size %s.%s%.600s", d->file[0], p->p[i].name, like, all);
        }
        cdr_yaml *node, scalar = { .kind = CDR_YAML_SCALAR, .text = p->p[i].text };
        node = &scalar;
        if (p->p[i].text[0] == '[') CDR_TRY(cdr_yaml_parse(d->pool, p->p[i].text, strlen(p->p[i].text), "model.sizes", &node, err));
        cdr__size fresh = { .name = z->name, .node = z->node };
        if (!size_value(d, node, &fresh) || fresh.list != z->list)
            CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "model.sizes: %s is \"%s\", expected %s", z->name, p->p[i].text,
                        z->list ? "a list of integers" : "a number of at least 0");
        *z = fresh;
    }
    return CDR_OK;
}

const cdr__size *cdr__size_find(const cdr__desc *d, const cdr__block *b, const char *name)
{
    const char *block = b ? b->type->type : "";
    size_t nb = strlen(block);
    cdr__size *found = NULL;
    for (int64_t i = 0; i < d->n_sizes; i++) {
        const char *s = d->size[i].name;
        bool own = nb && strncmp(s, block, nb) == 0 && s[nb] == '.' && strcmp(s + nb + 1, name) == 0;
        if (own || strcmp(s, name) == 0) found = &d->size[i];
        if (own) break;
    }
    if (found) found->read = true;
    return found;
}

/* A size that the file itself gives, that nothing read and whose name is close to one that was read: a typing error. Sizes of
 * blocks without a layer stay unread, and so do those that only a config.json fills. */
cdr_status cdr__sizes_read(const cdr__desc *d, cdr_err *err)
{
    const cdr_yaml *config = cdr_yaml_get(d->root, "config");
    const char **names = cdr_pool_alloc(d->pool, sizeof *names * (size_t)(d->n_sizes + 1));
    int n = 0;
    for (int64_t i = 0; i < d->n_sizes; i++) if (d->size[i].read) names[n++] = d->size[i].name;
    for (int64_t i = 0; i < d->n_sizes; i++) {
        const cdr__size *z = &d->size[i];
        if (z->read || !z->node || z->node->line >> FILE_SHIFT || (config && member(config, z->name) >= 0)) continue;
        const char *near = cdr_nearest(d->pool, z->name, names, n);
        if (*near) CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-size", "%s: nothing reads size %s.%s", cdr__desc_at(d, z->node), z->name, near);
    }
    return CDR_OK;
}

/* ---- sections ----------------------------------------------------------------------------------------------------------------- */

static bool is_words(const cdr_yaml *e)                   /* a list of non-empty scalars */
{
    bool ok = e->kind == CDR_YAML_LIST;
    for (int i = 0; i < e->n && ok; i++) ok = e->items[i].kind == CDR_YAML_SCALAR && *e->items[i].text;
    return ok;
}

static bool is_key(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '_' || s[i] == '.')) return false;
    return n > 0;
}

/* "key | alias | alias = default": names of a config.json, the default a number, another size, or none at all. */
static cdr_status config_entry(cdr__desc *d, const cdr_yaml *e, cdr_err *err)
{
    const char *at = cdr__desc_at(d, e);
    if (e->kind != CDR_YAML_SCALAR) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: config.%s is \"key | alias = default\"", at, e->key);
    const char *equals = strchr(e->text, '=');
    for (const char *p = e->text; p;) {
        size_t n = strcspn(p, "|="), from = strspn(p, " "), to = n;
        while (to > from && p[to - 1] == ' ') to--;
        if (from >= to || !is_key(p + from, to - from))
            CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: config.%s: \"%s\" is not \"key | alias = default\"", at, e->key, e->text);
        p = p[n] == '|' ? p + n + 1 : NULL;
    }
    cdr__size z = { .name = e->key };
    const char *otherwise = equals ? equals + 1 + strspn(equals + 1, " ") : NULL;
    if (!otherwise) return CDR_OK;
    if (strcmp(otherwise, "null") != 0 && !cdr__size_text(otherwise, &z)) {
        const cdr__size *other = NULL;
        for (int64_t i = 0; i < d->n_sizes; i++) if (strcmp(d->size[i].name, otherwise) == 0) other = &d->size[i];
        if (!other)
            CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: config.%s: the default \"%s\" is no number of at least 0 and no size", at, e->key, otherwise);
        z = *other;
        z.name = e->key;
        z.node = NULL;
    }
    for (int64_t i = 0; i < d->n_sizes; i++) if (strcmp(d->size[i].name, e->key) == 0) return CDR_OK;
    *CDR_PUSH(d->pool, d->size, d->n_sizes, d->cap_sizes) = z;
    return CDR_OK;
}

/* Values are scalars, or lists of them. */
static cdr_status check_constants(const cdr__desc *d, const cdr_yaml *map, cdr_err *err)
{
    for (int i = 0; map && i < map->n; i++)
        if (map->items[i].kind != CDR_YAML_SCALAR && !is_words(&map->items[i]))
            CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s is a text, a number, true, false, null or a list of them", cdr__desc_at(d, &map->items[i]),
                map->items[i].key);
    return CDR_OK;
}

static cdr_status check_outside(cdr__desc *d, cdr_err *err)
{
    const cdr_yaml *match = cdr_yaml_get(d->root, "match"), *config = cdr_yaml_get(d->root, "config"), *carry = cdr_yaml_get(d->root, "carry"),
                   *serve = cdr_yaml_get(d->root, "serve");
    if (match) {
        CDR_TRY(cdr__attr_known(d, match, "match", "architectures model_type", err));
        for (int i = 0; i < match->n; i++)
            if (!is_words(&match->items[i]))
                CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: match.%s is a list of names", cdr__desc_at(d, &match->items[i]), match->items[i].key);
    }
    if (carry && !is_words(carry)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: carry is a list of tensor name patterns", cdr__desc_at(d, carry));
    for (int i = 0; serve && i < serve->n; i++)
        if (!is_words(&serve->items[i]))
            CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: serve.%s is a list of leaf names", cdr__desc_at(d, &serve->items[i]), serve->items[i].key);
    for (int i = 0; config && i < config->n; i++) CDR_TRY(config_entry(d, &config->items[i], err));
    CDR_TRY(check_constants(d, cdr_yaml_get(d->root, "expect"), err));
    CDR_TRY(check_constants(d, cdr_yaml_get(d->root, "also"), err));
    const cdr_yaml *ignore = cdr_yaml_get(d->root, "ignore"), *packed = cdr_yaml_get(d->root, "unpacked");
    if (ignore && !is_words(ignore)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: ignore is a list of keys of config.json", cdr__desc_at(d, ignore));
    if (packed && !is_words(packed)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: unpacked is a list of module patterns", cdr__desc_at(d, packed));
    const cdr_yaml *tok = cdr_yaml_get(d->root, "tokenizer"), *chat = cdr_yaml_get(d->root, "chat");
    if (tok) CDR_TRY(cdr__attr_known(d, tok, "tokenizer", "type file base special pattern", err));
    return chat ? cdr__attr_known(d, chat, "chat", "format options", err) : CDR_OK;
}

static cdr_status check_sections(const cdr__desc *d, cdr_err *err)
{
    static const char *const known[] = { "description", "name", "extends", "match", "family", "config", "sizes", "layers", "blocks", "prefix", "under",
                                         "index_base", "tensors", "carry", "tokenizer", "chat", "serve", "weights_from", "expect", "also", "ignore",
                                         "unpacked" };
    static const char *const maps[] = { "sizes", "layers", "blocks", "under", "tensors", "tokenizer", "chat", "match", "config", "serve", "expect", "also" };
    for (int i = 0; i < d->root->n; i++) {
        const cdr_yaml *e = &d->root->items[i];
        bool ok = false;
        for (int k = 0; k < CDR_COUNT(known); k++) ok = ok || strcmp(known[k], e->key) == 0;
        if (!ok)
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-key", "%s: unknown section %s.%s", cdr__desc_at(d, e), e->key,
                        cdr_nearest(d->pool, e->key, known, CDR_COUNT(known)));
        for (int k = 0; k < CDR_COUNT(maps); k++)
            if (strcmp(maps[k], e->key) == 0 && e->kind != CDR_YAML_MAP)
                CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s is a map", cdr__desc_at(d, e), e->key);
    }
    for (int k = 0; k < 5; k++)
        if (!cdr_yaml_get(d->root, maps[k])) CDR_FAIL_ID(err, CDR_EUSER, "model.missing-section", "%s: section %s is missing", d->file[0], maps[k]);
    const cdr_yaml *prefix = cdr_yaml_get(d->root, "prefix");
    if (prefix && prefix->kind != CDR_YAML_SCALAR) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: prefix is a text", cdr__desc_at(d, prefix));
    const cdr_yaml *version = cdr_yaml_get(d->root, "description"), *weights = cdr_yaml_get(d->root, "weights_from");
    if (version && (version->kind != CDR_YAML_SCALAR || strcmp(version->text, "1") != 0))
        CDR_FAIL_ID(err, CDR_EUSER, "model.version", "%s: this version reads descriptions of format 1", cdr__desc_at(d, version));
    if (weights && (weights->kind != CDR_YAML_SCALAR || !*weights->text))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: weights_from is a directory", cdr__desc_at(d, weights));
    return CDR_OK;
}

cdr_status cdr__desc_read(const cdr_model_spec *s, const cdr__input *in, cdr_pool *pool, cdr__desc *d, cdr_err *err)
{
    *d = (cdr__desc){ .pool = pool, .indexer = s->indexer, .source = in->src };
    CDR_TRY(read_chain(d, in->text, in->bytes, in->where, err));
    CDR_TRY(check_sections(d, err));
    CDR_TRY(add_sizes(d, cdr_yaml_get(d->root, "sizes"), err));
    const char *from = cdr__attr_word(d->root, "weights_from");
    if (from && !in->src) CDR_TRY(cdr__source_open(from, pool, &d->source, err));
    if (d->source) CDR_TRY(cdr__config_apply(d, d->source, in->src == NULL, err));
    CDR_TRY(check_outside(d, err));
    if (d->source) CDR_TRY(cdr__config_check(d, d->source, err));
    bool given = s->sizes && s->sizes->n > 0;
    if (given && d->source && d->source->weights && !s->random)
        CDR_FAIL_ID(err, CDR_EUSER, "model.fixed-sizes", "model.sizes: sizes of %s are those of its weights. Set model.weights=random to start without them",
            d->source->dir);
    return override_sizes(d, s->sizes, err);
}

/* ---- attributes ----------------------------------------------------------------------------------------------------------------- */

const char *cdr__attr_word(const cdr_yaml *node, const char *name)
{
    const cdr_yaml *e = cdr_yaml_get(node, name);
    return e && e->kind == CDR_YAML_SCALAR ? e->text : NULL;
}

static cdr_status attr_missing(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *name, cdr_err *err)
{
    CDR_FAIL_ID(err, CDR_EUSER, "model.missing-attribute", "%s: block %s of type %s has no %s. Give it here, or as size %s.%s", cdr__desc_at(d, node), b->name,
                b->type->type, name, b->type->type, name);
}

cdr_status cdr__attr_int(const cdr__desc *d, cdr__block *b, const cdr_yaml *node, const char *name, const int64_t *otherwise, int64_t *x, cdr_err *err)
{
    const cdr_yaml *e = cdr_yaml_get(node, name);
    const char *full = cdr_pool_printf(d->pool, "%s.%s", b->type->type, name);
    if (e && (e->kind != CDR_YAML_SCALAR || !*e->text))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s of block %s is an integer", cdr__desc_at(d, e), name, b->name);
    bool given = e && strcmp(e->text, "none") != 0;
    if (given) CDR_TRY(cdr__expr(d, b, e->text, cdr__desc_at(d, e), x, err));
    const cdr__size *z = e ? NULL : cdr__size_find(d, NULL, full);
    if (z && (z->list || z->real)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: size %s is no integer", d->file[0], full);
    if (!given && !z && !otherwise) return attr_missing(d, b, node, name, err);
    if (!given) *x = z ? z->i : *otherwise;
    CDR_CHECK(b->n_locals < CDR__MAX_LOCALS);
    b->local[b->n_locals].name = name;
    b->local[b->n_locals++].x = *x;
    return CDR_OK;
}

cdr_status cdr__attr_real(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *name, const double *otherwise, double *x, cdr_err *err)
{
    const cdr_yaml *e = cdr_yaml_get(node, name);
    const char *full = cdr_pool_printf(d->pool, "%s.%s", b->type->type, name);
    const cdr__size *z = NULL;
    cdr__size literal = { 0 };
    if (e && e->kind == CDR_YAML_SCALAR && cdr__size_text(e->text, &literal)) z = &literal;
    else if (e && e->kind == CDR_YAML_SCALAR) z = cdr__size_find(d, b, e->text);
    else if (!e) z = cdr__size_find(d, NULL, full);
    if (e && (!z || z->list)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s of block %s is a number or the name of a size", cdr__desc_at(d, e), name, b->name);
    if (z && z->list) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: size %s is no number", d->file[0], full);
    if (!z && !otherwise) return attr_missing(d, b, node, name, err);
    *x = z ? z->d : *otherwise;
    return CDR_OK;
}

cdr_status cdr__attr_group(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *group, const char *name, int64_t *x, cdr_err *err)
{
    const cdr_yaml *e = cdr_yaml_get(node, name);
    const char *full = cdr_pool_printf(d->pool, "%s.%s", group, name);
    if (e && (e->kind != CDR_YAML_SCALAR || !*e->text))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s of block %s is an integer", cdr__desc_at(d, e), full, b->name);
    if (e) return cdr__expr(d, b, e->text, cdr__desc_at(d, e), x, err);
    const cdr__size *z = cdr__size_find(d, NULL, full);
    if (!z || z->list || z->real)
        CDR_FAIL_ID(err, CDR_EUSER, "model.missing-attribute", "%s: block %s has no %s. Give it there, or as size %s", cdr__desc_at(d, node), b->name, full, full);
    *x = z->i;
    return CDR_OK;
}

cdr_status cdr__attr_bool(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *name, bool otherwise, bool *x, cdr_err *err)
{
    const cdr_yaml *e = cdr_yaml_get(node, name);
    *x = otherwise;
    if (!e) return CDR_OK;
    bool yes = e->kind == CDR_YAML_SCALAR && strcmp(e->text, "true") == 0, no = e->kind == CDR_YAML_SCALAR && strcmp(e->text, "false") == 0;
    if (!yes && !no) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s of block %s is true or false", cdr__desc_at(d, e), name, b->name);
    *x = yes;
    return CDR_OK;
}

cdr_status cdr__attr_enum(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, const char *name, const char *words, int *x, cdr_err *err)
{
    const cdr_yaml *e = cdr_yaml_get(node, name);
    *x = 0;
    if (!e) return CDR_OK;
    const char *word = e->kind == CDR_YAML_SCALAR ? e->text : "";
    int i = 0;
    for (const char *p = words; *p; i++) {
        size_t n = strcspn(p, " ");
        if (strlen(word) == n && strncmp(p, word, n) == 0) {
            *x = i;
            return CDR_OK;
        }
        p += n + (p[n] == ' ');
    }
    CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s of block %s is one of: %s", cdr__desc_at(d, e), name, b->name, words);
}

cdr_status cdr__attr_known(const cdr__desc *d, const cdr_yaml *node, const char *what, const char *words, cdr_err *err)
{
    if (node->kind != CDR_YAML_MAP) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s is a map", cdr__desc_at(d, node), what);
    for (int i = 0; i < node->n; i++) {
        const char *near = cdr__near_word(d->pool, words, node->items[i].key);
        if (near) CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-key", "%s: %s has no %s.%s", cdr__desc_at(d, &node->items[i]), what, node->items[i].key, near);
    }
    return CDR_OK;
}

cdr_status cdr__block_refuse(const cdr__desc *d, const cdr__block *b, const cdr_yaml *at, const char *what, cdr_err *err)
{
    CDR_FAIL_ID(err, CDR_EUSER, "model.not-in-version", "%s: block %s: %s not in this version", cdr__desc_at(d, at), b->name, what);
}
