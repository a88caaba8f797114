/* load.c: a recipe from its parts. The file's tree is read, aliases are renamed, flags are laid over it as nodes of the same
 * tree, then one walk fills the fields row by row. A node from the i-th flag has line -(i + 1), so that one walk knows the
 * origin of everything.
 *
 * Order: default < recipe < flags, left to right. Strict: an unknown key is an error with its nearest names, and so is a
 * key that is given twice, or beside its alias. Source: spec/interface.md, 1 and 3.
 */
#include "recipe/recipe.h"
#include <stdlib.h>

enum { MAX_PARTS = 8, MAX_KEYS = 512 };

typedef struct {
    cdr_recipe *r;
    const cdr_common *c;
    cdr_err *err;
    const cdr_key *keys;
    int n_keys;
    const cdr_yaml **node;       /* by row: the value's node, or NULL */
    const char **alias;          /* by row: the alias that named it in the file */
    const char **flag;           /* by flag: how messages name it */
} loader;

/* ---- where ------------------------------------------------------------------------------------------------------------ */

static const char *at_pos(const loader *l, int line, int col)
{
    if (line < 0) return l->flag[-line - 1];
    return cdr_pool_printf(l->r->pool, "%s:%d:%d", l->r->where, line, col);
}

static const char *at_key(const loader *l, const cdr_yaml *node) { return at_pos(l, node->key_line, node->key_col); }

const char *cdr__recipe_at(const cdr_recipe *r, int row)
{
    const cdr_origin *o = &r->origin[row];
    int n;
    if (o->from == CDR_FROM_FILE) return cdr_pool_printf(r->pool, "%s:%d:%d", r->where, o->line, o->col);
    if (o->from == CDR_FROM_SET) return o->flag;
    return cdr_recipe_schema(&n)[row].key;
}

void cdr__recipe_note(cdr_recipe *r, const char *fmt, ...)
{
    va_list ap;
    char line[400];
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (int i = 0; i < r->n_notes; i++) if (strcmp(r->notes[i], line) == 0) return;       /* said already */
    const char **grown = cdr_pool_alloc(r->pool, sizeof(char *) * (size_t)(r->n_notes + 1));
    for (int i = 0; i < r->n_notes; i++) grown[i] = r->notes[i];
    grown[r->n_notes++] = cdr_pool_strdup(r->pool, line);
    r->notes = grown;
}

/* ---- names ------------------------------------------------------------------------------------------------------------- */

static bool is_section(const loader *l, const char *prefix)
{
    size_t n = strlen(prefix);
    for (int i = 0; i < l->n_keys; i++)
        if (strncmp(l->keys[i].key, prefix, n) == 0 && l->keys[i].key[n] == '.') return true;
    return false;
}

static int row_of(const loader *l, const char *section, const char *name, bool *by_alias)
{
    const char *full = *section ? cdr_pool_printf(l->r->pool, "%s.%s", section, name) : name;
    int row = cdr_recipe_key(full);
    *by_alias = false;
    if (row >= 0) return row;
    row = cdr__recipe_alias(section, name);
    *by_alias = row >= 0;
    return row;
}

/* Message 1 of interface.md, 8: names that are valid at that place; else the same name in another section. */
static cdr_status unknown_key(const loader *l, const char *where, const char *section, const char *name)
{
    const char *cand[MAX_KEYS];
    cdr_pool *pool = l->r->pool;
    const char *full = *section ? cdr_pool_printf(pool, "%s.%s", section, name) : name;
    size_t ns = strlen(section);
    int n = 0;
    for (int i = 0; i < l->n_keys && n < MAX_KEYS; i++) {
        const char *k = l->keys[i].key;
        if (ns && (strncmp(k, section, ns) != 0 || k[ns] != '.')) continue;
        const char *rest = ns ? k + ns + 1 : k;
        char *here = cdr_pool_strndup(pool, k, (size_t)(rest - k) + strcspn(rest, "."));
        if (n == 0 || strcmp(cand[n - 1], here) != 0) cand[n++] = here;
    }
    const char *near = cdr_nearest(pool, full, cand, n);
    if (!*near) {
        bool by_alias;
        n = 0;
        for (int i = 0; i < l->n_keys && n < MAX_KEYS; i++) {
            const char *leaf = strrchr(l->keys[i].key, '.');
            char *sec = cdr_pool_strndup(pool, l->keys[i].key, leaf ? (size_t)(leaf - l->keys[i].key) : 0);
            if (leaf && (strcmp(leaf + 1, name) == 0 || (row_of(l, sec, name, &by_alias) == i && by_alias))) cand[n++] = l->keys[i].key;
        }
        if (n > 0) near = cdr_pool_printf(pool, " Did you mean %s%s%s?", cand[0], n > 1 ? " or " : "", n > 1 ? cand[1] : "");
    }
    bool of_model = strcmp(name, "description") == 0 || strcmp(name, "extends") == 0 || strcmp(name, "sizes") == 0 || strcmp(name, "blocks") == 0;
    if (!*section && of_model) near = " This looks like a model description; a recipe names one in model.path";
    CDR_FAIL_ID(l->err, CDR_EUSER, "config.unknown-key", "%s: unknown key %s.%s", where, full, near);
}

/* ---- aliases that are more than another name ---------------------------------------------------------------------------- */

static cdr_yaml *append(cdr_pool *pool, cdr_yaml *map, const cdr_yaml *like, const char *key)
{
    cdr_yaml *grown = cdr_pool_alloc(pool, sizeof *grown * (size_t)(map->n + 1));
    if (map->n) memcpy(grown, map->items, sizeof *grown * (size_t)map->n);
    map->items = grown;
    cdr_yaml *e = &map->items[map->n++];
    *e = *like;
    e->key = key;
    e->key_line = like->key_line;
    e->key_col = like->key_col;
    return e;
}

/* betas: [a, b] -> beta1, beta2.  use_rslora: true -> scaling: rslora. Returns true where item i of map was one of them. */
static cdr_status special_alias(loader *l, const char *section, cdr_yaml *map, int i, bool *done)
{
    cdr_yaml e = map->items[i];
    *done = true;
    if (strcmp(section, "optimizer") == 0 && strcmp(e.key, "betas") == 0) {
        if (e.kind != CDR_YAML_LIST || e.n != 2 || e.items[0].kind != CDR_YAML_SCALAR || e.items[1].kind != CDR_YAML_SCALAR)
            CDR_FAIL_ID(l->err, CDR_EUSER, "config.bad-value", "%s: optimizer.betas takes a list of two numbers", at_key(l, &e));
        for (int k = 0; k < 2; k++) {
            cdr_yaml like = e.items[k];
            like.key_line = e.key_line;
            like.key_col = e.key_col;
            if (k == 0) { map->items[i] = like; map->items[i].key = "beta1"; }
            else append(l->r->pool, map, &like, "beta2");
        }
        cdr__recipe_note(l->r, "betas read as optimizer.beta1, optimizer.beta2");
        return CDR_OK;
    }
    if (strcmp(section, "lora") == 0 && strcmp(e.key, "use_rslora") == 0) {
        bool on = e.kind == CDR_YAML_SCALAR && strcmp(e.text, "true") == 0;
        if (!on && (e.kind != CDR_YAML_SCALAR || strcmp(e.text, "false") != 0))
            CDR_FAIL_ID(l->err, CDR_EUSER, "config.bad-value", "%s: lora.use_rslora takes true or false", at_key(l, &e));
        map->items[i].key = "scaling";
        map->items[i].text = on ? "rslora" : "standard";
        cdr__recipe_note(l->r, "use_rslora read as lora.scaling");
        return CDR_OK;
    }
    *done = false;
    return CDR_OK;
}

/* ---- flags ------------------------------------------------------------------------------------------------------------- */

static cdr_yaml *child(cdr_yaml *node, const char *name)
{
    if (node->kind == CDR_YAML_LIST) {
        char *end;
        long i = strtol(name, &end, 10);
        return *name && !*end && i >= 0 && i < node->n ? &node->items[i] : NULL;
    }
    for (int i = 0; node->kind == CDR_YAML_MAP && i < node->n; i++)
        if (strcmp(node->items[i].key, name) == 0) return &node->items[i];
    return NULL;
}

static bool is_index(const char *s) { return *s && strspn(s, "0123456789") == strlen(s); }

/* One step down the tree, making what is not there: a map, a list where the name is an index. A scalar source becomes
 * {path: scalar}, a single value a list of one. */
static cdr_status descend(loader *l, cdr_yaml **node, const char *name, const char *flag, int line)
{
    cdr_yaml *at = *node;
    cdr_pool *pool = l->r->pool;
    if (at->kind != CDR_YAML_LIST && is_index(name)) {
        cdr_yaml only = *at;
        bool had = at->kind == CDR_YAML_SCALAR || at->n > 0;
        at->kind = CDR_YAML_LIST;
        at->n = 0;
        at->items = NULL;
        if (had) append(pool, at, &only, NULL);
    }
    if (at->kind == CDR_YAML_SCALAR) {
        cdr_yaml scalar = *at;
        at->kind = CDR_YAML_MAP;
        at->n = 0;
        at->items = NULL;
        if (strcmp(name, "path") != 0 && at->text && strcmp(at->text, "none") != 0) append(pool, at, &scalar, "path");
    }
    cdr_yaml *next = child(at, name);
    if (!next) {
        if (at->kind == CDR_YAML_LIST && (!is_index(name) || atol(name) != at->n))
            CDR_FAIL_ID(l->err, CDR_EUSER, "config.bad-index", "%s: \"%s\" is no entry of a list of %d; the next one is %d", flag, name, at->n, at->n);
        cdr_yaml fresh = { .kind = CDR_YAML_MAP, .line = line, .col = 0, .key_line = line };
        next = append(pool, at, &fresh, at->kind == CDR_YAML_LIST ? NULL : cdr_pool_strdup(pool, name));
    }
    *node = next;
    return CDR_OK;
}

static cdr_status flag_value(loader *l, int row, const char *text, const char *flag, cdr_yaml *out)
{
    bool collection = row < 0 || l->keys[row].type == CDR_KEY_TEXTS || l->keys[row].type == CDR_KEY_SOURCES || l->keys[row].type == CDR_KEY_PAIRS;
    *out = (cdr_yaml){ .kind = CDR_YAML_SCALAR, .text = cdr_pool_strdup(l->r->pool, text) };
    if (collection && (text[0] == '[' || text[0] == '{')) {
        cdr_yaml *root;
        CDR_TRY(cdr_yaml_parse(l->r->pool, text, strlen(text), flag, &root, l->err));
        *out = *root;
    }
    return CDR_OK;
}

/* Every node below takes the flag's line, so that messages name the flag. */
static void stamp(cdr_yaml *node, int line)
{
    cdr_yaml *stack[256];
    int n = 0;
    stack[n++] = node;
    while (n > 0) {
        cdr_yaml *e = stack[--n];
        e->line = e->key_line = line;
        for (int i = 0; i < e->n && n < CDR_COUNT(stack); i++) stack[n++] = &e->items[i];
    }
}

/* "train.steps=10", or a short-cut "--steps=10". */
static cdr_status apply_flag(loader *l, cdr_yaml *root, int i_flag)
{
    const char *s = l->c->set[i_flag], *eq = strchr(s, '=');
    cdr_pool *pool = l->r->pool;
    int row = -1, line = -(i_flag + 1);
    const char *parts[MAX_PARTS];
    int n_parts = 0;
    if (!eq || eq == s) CDR_FAIL_ID(l->err, CDR_EUSAGE, "usage.set", "--set %s: expected section.key=value", s);
    char *path = cdr_pool_strndup(pool, s, (size_t)(eq - s));
    if (s[0] == '-') {
        row = cdr__recipe_shortcut(path, strlen(path));
        if (row < 0) CDR_FAIL_ID(l->err, CDR_EUSAGE, "usage.flag", "%s: no such short-cut of a recipe key", path);
        l->flag[i_flag] = path;
        path = cdr_pool_strdup(pool, l->keys[row].key);
    } else {
        l->flag[i_flag] = cdr_pool_printf(pool, "--set %s", path);
    }
    for (char *p = path, *dot; p; p = dot) {
        dot = strchr(p, '.');
        if (dot) *dot++ = 0;
        if (n_parts == MAX_PARTS || !*p) CDR_FAIL_ID(l->err, CDR_EUSAGE, "usage.set", "%s: no such key", l->flag[i_flag]);
        parts[n_parts++] = p;
    }
    const char *section = "";
    cdr_yaml *at = root;
    row = -1;
    for (int i = 0; i < n_parts; i++) {
        const char *name = parts[i];
        if (row < 0) {
            bool by_alias;
            const char *full = *section ? cdr_pool_printf(pool, "%s.%s", section, name) : name;
            row = row_of(l, section, name, &by_alias);
            if (by_alias) {
                name = strrchr(l->keys[row].key, '.') + 1;
                cdr__recipe_note(l->r, "%s read as %s", parts[i], l->keys[row].key);
            }
            if (row < 0 && !is_section(l, full)) return unknown_key(l, l->flag[i_flag], section, name);
            section = full;
        }
        CDR_TRY(descend(l, &at, name, l->flag[i_flag], line));
    }
    cdr_yaml value;
    CDR_TRY(flag_value(l, row, eq + 1, l->flag[i_flag], &value));
    value.key = at->key;
    *at = value;
    stamp(at, line);
    return CDR_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------------------------- */

typedef struct { cdr_yaml *map; const char *prefix; } pending;

static cdr_status section_scalar(const loader *l, const cdr_yaml *e, const char *prefix)
{
    if (strcmp(prefix, "lora") == 0) {
        l->r->lora.on = strcmp(e->text, "none") != 0;
        if (!l->r->lora.on) return CDR_OK;
    }
    if (!*e->text || (strcmp(e->text, "~") == 0)) return CDR_OK;                 /* an empty section */
    CDR_FAIL_ID(l->err, CDR_EUSER, "config.bad-value", "%s: %s is a section and takes keys, not \"%s\"", at_key(l, e), prefix, e->text);
}

/* Renames aliases in place (first pass), or collects each key's node (second pass). */
static cdr_status walk(loader *l, cdr_yaml *root, bool collect)
{
    pending stack[64];
    int n = 0;
    stack[n++] = (pending){ root, "" };
    while (n > 0) {
        pending p = stack[--n];
        for (int i = 0; i < p.map->n; i++) {
            bool by_alias, special = false;
            if (!collect) CDR_TRY(special_alias(l, p.prefix, p.map, i, &special));
            cdr_yaml *e = &p.map->items[i];
            const char *full = *p.prefix ? cdr_pool_printf(l->r->pool, "%s.%s", p.prefix, e->key) : e->key;
            int row = row_of(l, p.prefix, e->key, &by_alias);
            if (row < 0 && is_section(l, full)) {
                if (e->kind == CDR_YAML_SCALAR) CDR_TRY(section_scalar(l, e, full));
                else if (e->kind == CDR_YAML_LIST)
                    CDR_FAIL_ID(l->err, CDR_EUSER, "config.bad-value", "%s: %s is a section and takes keys, not a list", at_key(l, e), full);
                else if (n < CDR_COUNT(stack)) stack[n++] = (pending){ e, full };
                if (strcmp(full, "lora") == 0 && e->kind == CDR_YAML_MAP) l->r->lora.on = true;
                continue;
            }
            if (row < 0) return unknown_key(l, at_key(l, e), p.prefix, e->key);
            if (by_alias) {
                l->alias[row] = e->key;
                cdr__recipe_note(l->r, "%s read as %s", e->key, l->keys[row].key);
                e->key = strrchr(l->keys[row].key, '.') + 1;
            }
            if (!collect) {
                for (int j = 0; j < i; j++)
                    if (strcmp(p.map->items[j].key, e->key) == 0)
                        CDR_FAIL_ID(l->err, CDR_EUSER, "config.alias-and-key", "%s: %s is given twice, by an alias and by its key or another alias. Keep one",
                                    at_key(l, e), l->keys[row].key);
            } else {
                l->node[row] = e;
            }
        }
    }
    return CDR_OK;
}

static cdr_status fill_row(loader *l, int row)
{
    const cdr_key *k = &l->keys[row];
    const cdr_yaml *node = l->node[row];
    cdr_origin *o = &l->r->origin[row];
    cdr_yaml def = { .kind = CDR_YAML_SCALAR, .text = k->def };
    if (!node) {
        *o = (cdr_origin){ .from = CDR_FROM_DEFAULT };
        if (!k->def)
            CDR_FAIL_ID(l->err, CDR_EUSER, "config.missing-key", "%s: %s is missing and has no default. Add %.*s: {%s: ...}", l->r->where, k->key,
                        (int)strcspn(k->key, "."), k->key, strchr(k->key, '.') + 1);
        if (k->def[0] == '[' || k->def[0] == '{') {
            cdr_yaml *root;
            CDR_TRY(cdr_yaml_parse(l->r->pool, k->def, strlen(k->def), k->key, &root, l->err));
            def = *root;
        }
        cdr_key plain = *k;                                /* a default is taken even where the word is refused from a recipe */
        plain.later = NULL;
        if (plain.type == CDR_KEY_TEXT && !strchr(k->def, '{')) {
            *(const char **)(void *)((char *)l->r + k->at) = k->def;
            return CDR_OK;
        }
        return cdr__value_parse(l->r, &plain, &def, k->key, l->err);
    }
    *o = (cdr_origin){ .from = node->key_line < 0 ? CDR_FROM_SET : CDR_FROM_FILE, .line = node->key_line, .col = node->key_col };
    if (o->from == CDR_FROM_SET) o->flag = l->flag[-node->key_line - 1];
    else o->alias = l->alias[row];
    const char *where = node->line < 0 ? at_pos(l, node->line, 0) : at_pos(l, node->line, node->col);
    CDR_TRY(cdr__value_parse(l->r, k, node, where, l->err));
    if (k->status == CDR_KEY_LATER) {
        cdr_text t = { 0 };
        char def_text[128];
        snprintf(def_text, sizeof def_text, "%s", strcmp(k->def, "[]") == 0 && k->type == CDR_KEY_PAIRS ? "{}" : k->def);
        cdr__value_print(&t, l->r, k);
        bool same = strcmp(t.s, def_text) == 0;
        char got[200];
        snprintf(got, sizeof got, "%s", t.s);
        cdr_text_free(&t);
        if (!same)
            CDR_FAIL_ID(l->err, CDR_EUSER, "config.not-in-version", "%s: %s is %s; this version does not have that yet, only the default %s. Remove it", where,
                        k->key, got, k->def);
    }
    return CDR_OK;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------- */

static cdr_status check_name(const cdr_recipe *r, cdr_err *err)
{
    bool ok = *r->name != 0;
    for (const char *p = r->name; *p; p++)
        ok = ok && ((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '.' || *p == '_' || (*p == '-' && p > r->name));
    if (!ok || !cdr_plain_name(r->name))
        CDR_FAIL_ID(err, CDR_EUSER, "config.bad-value", "%s: name is \"%s\"; it is made of a-z 0-9 . _ - and names a folder. Add name: ... to the recipe",
                    r->where, r->name);
    return CDR_OK;
}

cdr_status cdr_recipe_parse(const cdr_recipe_text *t, const cdr_common *c, cdr_pool *pool, cdr_recipe *out, cdr_err *err)
{
    static const cdr_common none = { 0 };
    cdr_yaml *root;
    *out = (cdr_recipe){ .where = t->where, .source = t->text, .source_bytes = t->bytes, .pool = pool };
    loader l = { .r = out, .c = c ? c : &none, .err = err };
    l.keys = cdr_recipe_schema(&l.n_keys);
    size_t rows = (size_t)l.n_keys;
    out->origin = cdr_pool_alloc(pool, sizeof *out->origin * rows);
    l.node = cdr_pool_alloc(pool, sizeof *l.node * rows);
    l.alias = cdr_pool_alloc(pool, sizeof *l.alias * rows);
    l.flag = cdr_pool_alloc(pool, sizeof *l.flag * (size_t)(l.c->n_set + 1));
    CDR_TRY(cdr_yaml_parse(pool, t->text, t->bytes, t->where, &root, err));
    if (root->kind != CDR_YAML_MAP) CDR_FAIL_ID(err, CDR_EUSER, "config.not-a-map", "%s: a recipe is a map of keys", t->where);
    CDR_TRY(walk(&l, root, false));
    for (int i = 0; i < l.c->n_set; i++) CDR_TRY(apply_flag(&l, root, i));
    CDR_TRY(walk(&l, root, true));
    int version = cdr_recipe_key("version"), name = cdr_recipe_key("name");
    CDR_TRY(fill_row(&l, version));
    CDR_TRY(fill_row(&l, name));
    if (out->origin[name].from == CDR_FROM_DEFAULT) out->name = t->stem;
    CDR_TRY(check_name(out, err));
    for (int i = 0; i < l.n_keys; i++)
        if (i != version && i != name) CDR_TRY(fill_row(&l, i));
    return cdr__recipe_resolve(out, err);
}

cdr_status cdr_recipe_load(const char *path_or_builtin, const cdr_common *c, cdr_pool *pool, cdr_recipe *out, cdr_err *err)
{
    cdr_recipe_text t = { 0 };
    CDR_TRY(cdr_builtin_or_file("configs", path_or_builtin, pool, &t.text, &t.bytes, &t.where, err));
    const char *slash = strrchr(t.where, '/'), *base = slash ? slash + 1 : t.where;
    size_t n = strlen(base);
    t.stem = cdr_pool_strndup(pool, base, n > 5 && strcmp(base + n - 5, ".yaml") == 0 ? n - 5 : n);
    return cdr_recipe_parse(&t, c, pool, out, err);
}
