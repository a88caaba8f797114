/* tensors.c: the rows of a description's `tensors` section as parameters: names with prefix and layer, shapes by
 * expression, each part of each block filled by exactly one row. Exact counts follow.
 *
 *   "gate|up": ["{}_proj.weight", [width, hidden]]     one row for two parts; {} is the alternative, {layer} the layer
 */
#include "models/model_parts.h"
#include <stdlib.h>

enum { MAX_ALTERNATIVES = 8, MAX_NAME = 400 };

typedef struct {                      /* one row, opened */
    const char *part, *name;          /* alternatives put in; {layer} still there */
    const cdr_yaml *node, *shape;
    int dtype;
} row;

static const cdr_yaml *section(const cdr_model *m, const char *type) { return cdr_yaml_get(cdr_yaml_get(m->d.root, "tensors"), type); }

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; (p = strstr(p, word)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == 0 || p[n] == ' ')) return true;
    return false;
}

static const char *replace(cdr_pool *pool, const char *s, const char *what, const char *with)
{
    const char *at = strstr(s, what);
    return at ? cdr_pool_printf(pool, "%.*s%s%s", (int)(at - s), s, with, at + strlen(what)) : s;
}

static cdr_status read_row(const cdr_model *m, const cdr_yaml *e, row *r, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const char *at = cdr__desc_at(d, e);
    if (e->kind != CDR_YAML_LIST || e->n < 2 || e->n > 4 || e->items[0].kind != CDR_YAML_SCALAR || e->items[1].kind != CDR_YAML_LIST)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: a tensor row is [name, [shape], dtype, {options}], the last two optional", at);
    *r = (row){ .node = e, .shape = &e->items[1], .name = e->items[0].text, .dtype = CDR_BF16 };
    if (e->n > 2) {
        const char *t = e->items[2].kind == CDR_YAML_SCALAR ? e->items[2].text : "";
        r->dtype = strcmp(t, "F32") == 0 ? CDR_F32 : strcmp(t, "BF16") == 0 ? CDR_BF16 : strcmp(t, "F16") == 0 ? CDR_F16 : -1;
        if (r->dtype < 0)
            CDR_FAIL_ID(err, CDR_EUSER, "model.not-in-version", "%s: dtype \"%s\" is not in this version for a trained tensor; F32, BF16 and F16 are", at, t);
    }
    if (e->n > 3 && e->items[3].n > 0)
        CDR_FAIL_ID(err, CDR_EUSER, "model.not-in-version", "%s: option %s of a tensor row is not in this version", at,
                    e->items[3].kind == CDR_YAML_MAP ? e->items[3].items[0].key : "list");
    if (strlen(r->name) > MAX_NAME) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: the name is too long", at);
    return CDR_OK;
}

/* "conv.q|k|v" -> conv.q, conv.k, conv.v with their {}. */
static cdr_status alternatives(const cdr_model *m, const cdr_yaml *e, const row *r, row out[MAX_ALTERNATIVES], int *n, cdr_err *err)
{
    cdr_pool *pool = m->d.pool;
    const char *key = e->key, *bar = strchr(key, '|');
    *n = 0;
    if (!bar) {
        out[0] = *r;
        out[0].part = key;
        *n = 1;
        return CDR_OK;
    }
    const char *from = bar, *to = bar;
    while (from > key && from[-1] != '.') from--;
    while (*to && *to != '.') to++;
    for (const char *p = from; p < to;) {
        size_t len = strcspn(p, "|.");
        if (len == 0 || *n == MAX_ALTERNATIVES || !strstr(r->name, "{}"))
            CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: \"%s\": alternatives need a {} in the name, and are at most %d", cdr__desc_at(&m->d, e), key,
                        MAX_ALTERNATIVES);
        char *alt = cdr_pool_strndup(pool, p, len);
        out[*n] = *r;
        out[*n].part = cdr_pool_printf(pool, "%.*s%s%s", (int)(from - key), key, alt, to);
        out[*n].name = replace(pool, r->name, "{}", alt);
        (*n)++;
        p += len + (p + len < to);
    }
    return CDR_OK;
}

static const char *shape_text(cdr_pool *pool, int n_dim, const int64_t *n)
{
    if (n_dim == 1) return cdr_pool_printf(pool, "[%lld]", (long long)n[0]);
    if (n_dim == 2) return cdr_pool_printf(pool, "[%lld, %lld]", (long long)n[0], (long long)n[1]);
    return cdr_pool_printf(pool, "of %d axes", n_dim);
}

static cdr_status check_shape(const cdr_model *m, const cdr__block *b, const cdr__need *need, const row *r, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    int64_t n[2] = { 0, 0 };
    const char *at = cdr__desc_at(d, r->node);
    for (int i = 0; i < r->shape->n; i++) {
        int64_t x = 0;
        if (r->shape->items[i].kind != CDR_YAML_SCALAR) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: a shape is a list of sizes", at);
        CDR_TRY(cdr__expr(d, b, r->shape->items[i].text, at, &x, err));
        if (i < 2) n[i] = x;
    }
    bool same = r->shape->n == need->n_dim && n[0] == need->n[0] && (need->n_dim == 1 || n[1] == need->n[1]);
    if (!same)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-shape", "%s: %s of block %s is %s here, the block needs %s", at, r->part, b->name,
                    shape_text(d->pool, r->shape->n, n), shape_text(d->pool, need->n_dim, need->n));
    return CDR_OK;
}

static const char *under(const cdr_model *m, const char *type)
{
    const cdr_yaml *map = cdr_yaml_get(m->d.root, "under");
    const char *s = map ? cdr__attr_word(map, type) : NULL;
    return s && strcmp(s, "none") != 0 ? s : "";
}

/* Fills name[] of one block's parts from its type's rows. layer -1: outside of the stack. */
static cdr_status bind(cdr_model *m, const cdr__block *b, int layer, int16_t unit, const char **name, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const cdr_yaml *rows = section(m, b->type->type);
    const char *prefix = cdr__attr_word(d->root, "prefix");
    if (!rows || rows->kind != CDR_YAML_MAP) CDR_FAIL_ID(err, CDR_EUSER, "model.missing-section", "%s: tensors.%s is missing", d->file[0], b->type->type);
    for (int i = 0; i < rows->n; i++) {
        row r, alt[MAX_ALTERNATIVES];
        int n;
        const cdr_yaml *e = &rows->items[i];
        if (e->kind == CDR_YAML_SCALAR && strcmp(e->text, "none") == 0) continue;
        CDR_TRY(read_row(m, e, &r, err));
        CDR_TRY(alternatives(m, e, &r, alt, &n, err));
        for (int k = 0; k < n; k++) {
            int at = 0;
            while (at < b->n_needs && strcmp(b->need[at].part, alt[k].part) != 0) at++;
            if (at == b->n_needs) continue;                               /* a part that this block's attributes leave out */
            if (name[at]) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: part %s of %s is filled twice", cdr__desc_at(d, e), alt[k].part, b->name);
            CDR_TRY(check_shape(m, b, &b->need[at], &alt[k], err));
            const char *full = cdr_pool_printf(d->pool, "%s%s%s%s", prefix && strcmp(prefix, "none") != 0 ? prefix : "", layer >= 0 ? under(m, "layer") : "",
                                               b->type == &cdr__block_layer || b->type == &cdr__block_model ? "" : under(m, b->type->type), alt[k].name);
            if (layer >= 0) full = replace(d->pool, full, "{layer}", cdr_pool_printf(d->pool, "%d", layer));
            if (strchr(full, '{')) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: name %s: only {layer} and {} stand for something here", cdr__desc_at(d, e), full);
            name[at] = full;
            *CDR_PUSH(d->pool, m->tensor, m->n_tensors, m->cap_tensors) =
                (cdr__tensor){ .name = full, .need = &b->need[at], .dtype = alt[k].dtype, .unit = unit, .layer = layer };
        }
    }
    for (int i = 0; i < b->n_needs; i++)
        if (!name[i])
            CDR_FAIL_ID(err, CDR_EUSER, "model.missing-part", "%s: part %s of block %s has no row in tensors.%s", cdr__desc_at(d, rows), b->need[i].part, b->name,
                        b->type->type);
    return CDR_OK;
}

/* Every row names a part that its type can have. */
static cdr_status check_rows(const cdr_model *m, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const cdr_yaml *tensors = cdr_yaml_get(d->root, "tensors");
    for (int s = 0; s < tensors->n; s++) {
        const cdr_yaml *rows = &tensors->items[s];
        const cdr__block_type *t = NULL;
        for (int i = 0; cdr__block_types[i]; i++) if (strcmp(cdr__block_types[i]->type, rows->key) == 0) t = cdr__block_types[i];
        if (!t || rows->kind != CDR_YAML_MAP)
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-block", "%s: tensors.%s is no block type with rows: model, layer, mla, glu, kda, moe", cdr__desc_at(d, rows),
                        rows->key);
        for (int i = 0; i < rows->n; i++) {
            row r = { .name = "{}" }, alt[MAX_ALTERNATIVES];
            int n;
            CDR_TRY(alternatives(m, &rows->items[i], &r, alt, &n, err));
            for (int k = 0; k < n; k++) {
                if (has_word(t->parts, alt[k].part)) continue;
                const char *all[64];
                int n_all = 0;
                for (const char *p = t->parts; *p && n_all < CDR_COUNT(all); p += strcspn(p, " "), p += *p == ' ')
                    all[n_all++] = cdr_pool_strndup(d->pool, p, strcspn(p, " "));
                CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-part", "%s: %s is no part of %s.%s", cdr__desc_at(d, &rows->items[i]), alt[k].part, t->type,
                            cdr_nearest(d->pool, alt[k].part, all, n_all));
            }
        }
    }
    return CDR_OK;
}

static int64_t elems(const cdr__need *n) { return n->n_dim == 2 ? n->n[0] * n->n[1] : n->n[0]; }

static void count_kind(cdr_model *m, const cdr__block *b)
{
    cdr_model_info *f = &m->info;
    int i = 0;
    while (i < f->n_kinds && strcmp(f->kind[i].kind, b->type->label) != 0) i++;
    if (i == CDR_COUNT(f->kind)) return;
    if (i == f->n_kinds) f->kind[f->n_kinds++] = (cdr_layer_count){ b->type->label, 0 };
    f->kind[i].n++;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static cdr_status check_distinct(const cdr_model *m, cdr_err *err)
{
    const char **names = cdr_pool_alloc(m->d.pool, sizeof *names * (size_t)m->n_tensors);
    for (int64_t i = 0; i < m->n_tensors; i++) names[i] = m->tensor[i].name;
    qsort(names, (size_t)m->n_tensors, sizeof *names, by_name);
    for (int64_t i = 1; i < m->n_tensors; i++)
        if (strcmp(names[i - 1], names[i]) == 0) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: two parts have the tensor name %s", m->d.file[0], names[i]);
    return CDR_OK;
}

static void count_all(cdr_model *m)
{
    cdr_model_info *f = &m->info;
    cdr_text t = { 0 };
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const cdr__tensor *x = &m->tensor[i];
        int64_t n = elems(x->need);
        f->n_params += n;
        if (!x->need->lookup) f->n_active += n;
        if (!x->need->lookup && x->need->n_dim == 2) f->matmul_params += (double)n;
        cdr_text_printf(&t, "%s %lld %lld\n", x->name, (long long)x->need->n[0], (long long)(x->need->n_dim == 2 ? x->need->n[1] : 0));
    }
    f->n_tensors = (int)m->n_tensors;
    for (int i = 0; i < f->n_layers; i++) count_kind(m, &m->block[m->layer[i].mixer]);
    for (int i = 0; i < m->n_blocks; i++)
        for (int k = 0; k < m->block[i].n_locals; k++)
            cdr_text_printf(&t, "%s.%s %lld\n", m->block[i].name, m->block[i].local[k].name, (long long)m->block[i].local[k].x);
    f->hash = cdr_hash64(t.s, t.n, 0);
    cdr_text_free(&t);
}

cdr_status cdr__model_tensors(cdr_model *m, cdr_err *err)
{
    cdr_pool *pool = m->d.pool;
    const char *tail[CDR__MAX_NEEDS] = { NULL };
    CDR_TRY(check_rows(m, err));
    m->self_name = cdr_pool_alloc(pool, sizeof tail);
    CDR_TRY(bind(m, &m->self, -1, 0, m->self_name, err));
    for (int i = 0; i < m->info.n_layers; i++) {
        cdr__layer *l = &m->layer[i];
        int16_t unit = (int16_t)(i + 1);
        l->own_name = cdr_pool_alloc(pool, sizeof tail);
        l->mixer_name = cdr_pool_alloc(pool, sizeof tail);
        l->ffn_name = cdr_pool_alloc(pool, sizeof tail);
        CDR_TRY(bind(m, &m->layer_block, l->index, unit, l->own_name, err));
        CDR_TRY(bind(m, &m->block[l->mixer], l->index, unit, l->mixer_name, err));
        CDR_TRY(bind(m, &m->block[l->ffn], l->index, unit, l->ffn_name, err));
    }
    for (int64_t i = 0; i < m->n_tensors; i++)          /* the last norm and the head are a unit of their own */
        if (m->tensor[i].layer < 0 && !m->tensor[i].need->lookup) m->tensor[i].unit = (int16_t)(m->info.n_layers + 1);
    count_all(m);
    return check_distinct(m, err);
}
