/* description.c: a model description file as a tree: what it extends is merged below it, its sizes are a flat table, and
 * every section and key is known. Source of the format: spec/interface.md, 4.1.
 *
 *   extends: maps merge, `none` removes an entry. A node's line holds its file: line + (file << 20).
 */
#include "models/models.h"
#include <stdlib.h>

enum { FILE_SHIFT = 20, MAX_NODES = 4096 };

const char *cdr__desc_at(const cdr__desc *d, const cdr_yaml *node)
{
    int line = node->key && node->key_line ? node->key_line : node->line, col = node->key && node->key_line ? node->key_col : node->col;
    int file = line >> FILE_SHIFT;
    return cdr_pool_printf(d->pool, "%s:%d:%d", d->file[file < d->n_files ? file : 0], line & ((1 << FILE_SHIFT) - 1), col);
}

/* ---- reading and merging --------------------------------------------------------------------------------------------- */

static void stamp_file(cdr_yaml *root, int file)
{
    cdr_yaml *stack[512];
    int n = 0;
    stack[n++] = root;
    while (n > 0) {
        cdr_yaml *e = stack[--n];
        e->line += file << FILE_SHIFT;
        e->key_line += file << FILE_SHIFT;
        for (int i = 0; i < e->n && n < CDR_COUNT(stack); i++) stack[n++] = &e->items[i];
    }
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
    stamp_file(*root, d->n_files);
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
    d->root = chain[n - 1];
    for (int i = n - 2; i >= 0; i--) CDR_TRY(merge(d->pool, d->root, chain[i], where, err));
    return CDR_OK;
}

/* ---- sizes ---------------------------------------------------------------------------------------------------------------- */

static bool size_number(const char *s, cdr__size *z)
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
    if (e->kind == CDR_YAML_SCALAR) return size_number(e->text, z);
    if (e->kind != CDR_YAML_LIST) return false;
    int64_t *items = cdr_pool_alloc(d->pool, sizeof *items * (size_t)(e->n + 1));
    for (int i = 0; i < e->n; i++) {
        cdr__size one = { 0 };
        if (e->items[i].kind != CDR_YAML_SCALAR || !size_number(e->items[i].text, &one) || one.real) return false;
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
            cdr__size z = { .name = name };
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
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-size", "model.sizes: %s has no size %s.%s", d->file[0], p->p[i].name,
                        cdr_nearest(d->pool, p->p[i].name, names, (int)d->n_sizes));
        }
        cdr_yaml *node, scalar = { .kind = CDR_YAML_SCALAR, .text = p->p[i].text };
        node = &scalar;
        if (p->p[i].text[0] == '[') CDR_TRY(cdr_yaml_parse(d->pool, p->p[i].text, strlen(p->p[i].text), "model.sizes", &node, err));
        cdr__size fresh = { .name = z->name };
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
    const cdr__size *plain = NULL;
    for (int64_t i = 0; i < d->n_sizes; i++) {
        const char *s = d->size[i].name;
        if (nb && strncmp(s, block, nb) == 0 && s[nb] == '.' && strcmp(s + nb + 1, name) == 0) return &d->size[i];
        if (strcmp(s, name) == 0) plain = &d->size[i];
    }
    return plain;
}

/* ---- sections ----------------------------------------------------------------------------------------------------------------- */

static cdr_status check_sections(const cdr__desc *d, cdr_err *err)
{
    static const char *const known[] = { "description", "name", "extends", "match", "family", "config", "sizes", "layers", "blocks", "prefix", "under",
                                         "index_base", "tensors", "carry", "tokenizer", "chat", "serve", "weights_from" };
    static const char *const maps[] = { "sizes", "layers", "blocks", "under", "tensors", "tokenizer", "chat" };
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
    const cdr_yaml *version = cdr_yaml_get(d->root, "description"), *weights = cdr_yaml_get(d->root, "weights_from");
    if (version && (version->kind != CDR_YAML_SCALAR || strcmp(version->text, "1") != 0))
        CDR_FAIL_ID(err, CDR_EUSER, "model.version", "%s: this version reads descriptions of format 1", cdr__desc_at(d, version));
    if (weights)
        CDR_FAIL_ID(err, CDR_EUSER, "model.not-in-version", "%s: weights_from: this version trains descriptions from random weights only; it reads no foreign "
                    "checkpoints yet. Remove it", cdr__desc_at(d, weights));
    return CDR_OK;
}

cdr_status cdr__desc_read(const cdr_model_spec *s, const char *text, size_t bytes, const char *where, cdr_pool *pool, cdr__desc *d, cdr_err *err)
{
    *d = (cdr__desc){ .pool = pool };
    CDR_TRY(read_chain(d, text, bytes, where, err));
    CDR_TRY(check_sections(d, err));
    CDR_TRY(add_sizes(d, cdr_yaml_get(d->root, "sizes"), err));
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
    if (e && e->kind == CDR_YAML_SCALAR && size_number(e->text, &literal)) z = &literal;
    else if (e && e->kind == CDR_YAML_SCALAR) z = cdr__size_find(d, b, e->text);
    else if (!e) z = cdr__size_find(d, NULL, full);
    if (e && (!z || z->list)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: %s of block %s is a number or the name of a size", cdr__desc_at(d, e), name, b->name);
    if (z && z->list) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: size %s is no number", d->file[0], full);
    if (!z && !otherwise) return attr_missing(d, b, node, name, err);
    *x = z ? z->d : *otherwise;
    return CDR_OK;
}

cdr_status cdr__block_refuse(const cdr__desc *d, const cdr__block *b, const cdr_yaml *at, const char *what, cdr_err *err)
{
    CDR_FAIL_ID(err, CDR_EUSER, "model.not-in-version", "%s: block %s: %s not in this version", cdr__desc_at(d, at), b->name, what);
}
