/* tensors.c: the rows of a description's `tensors` section as parameters: names with prefix and layer, shapes by
 * expression, each part of each block filled by exactly one row. Exact counts follow.
 *
 *   "gate|up": ["{}_proj.weight", [width, hidden]]     one row for two parts; {} is the alternative, {layer} the layer
 *
 * A row with {expert} in its name is one tensor an expert in a checkpoint and one parameter here, [experts, rows, columns].
 * Parameters are counted as a checkpoint stores them: `stored` shapes with their padding, rows marked `optional` where the
 * directory has them (a model from random weights goes without them). A part of a fused tensor (`split`) is a parameter NAME#i.
 */
#include "models/model_parts.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_ALTERNATIVES = 8, MAX_NAME = 400 };

typedef struct {                      /* one row, opened */
    const char *part, *name;          /* alternatives put in; {layer} still there */
    const cdr_yaml *node, *shape, *stored;
    int dtype;                        /* that it trains in */
    bool packed;                      /* its first format is MXFP4 */
    int block;                        /* of its narrowest stored format: the last axis is a multiple of it */
    bool optional, expert;            /* expert: one tensor an expert */
    double fill, absent;
    const char *format[CDR_STORED_FORMATS]; int n_formats;
    int part_of, n_parts, split_axis; /* part_of: -1, or which part of a fused tensor it is */
    cdr_place place;
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

/* What a row may be stored as; trains: the format that it trains in, -1: a format that this version does not train from;
 * memory: what it may stay in while it is frozen. */
static const struct { const char *name; int trains, block, memory; } formats[] = {
    { "F32", CDR_F32, 1, CDR_F32 }, { "BF16", CDR_BF16, 1, CDR_BF16 }, { "F16", CDR_F16, 1, CDR_F16 }, { "MXFP4", CDR_BF16, 32, CDR_MXFP4 },
    { "FP8_128", CDR_BF16, 1, CDR_BF16 }, { "F8_E4M3", -1, 1, -1 }, { "U8", -1, 1, -1 }, { "I32", -1, 1, -1 }, { "I64", -1, 1, -1 }, { "F64", -1, 1, -1 },
};

/* "BF16|MXFP4": whichever a file has; trained in the first. */
static cdr_status read_formats(const cdr_model *m, const cdr_yaml *e, row *r, cdr_err *err)
{
    const char *at = cdr__desc_at(&m->d, r->node), *text = e->kind == CDR_YAML_SCALAR ? e->text : "";
    int n = 0;
    for (const char *p = text; p; n++) {
        size_t len = strcspn(p, "|");
        int f = 0;
        while (f < CDR_COUNT(formats) && !(strlen(formats[f].name) == len && strncmp(p, formats[f].name, len) == 0)) f++;
        if (f == CDR_COUNT(formats) || n == CDR_STORED_FORMATS)
            CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: dtype \"%s\" is not F32, BF16, F16, MXFP4, FP8_128, F8_E4M3, U8, I32, I64 or F64, nor A|B of them",
                        at, text);
        if (formats[f].trains < 0)
            CDR_FAIL_ID(err, CDR_EUSER, "model.not-in-version", "%s: dtype \"%s\" is not in this version for a trained tensor; F32, BF16, F16, MXFP4 and FP8_128 are",
                        at, text);
        if (n == 0) {
            r->dtype = formats[f].trains;
            r->packed = formats[f].memory == CDR_MXFP4;
        }
        r->block = CDR_MAX(r->block, formats[f].block);
        r->format[r->n_formats++] = formats[f].name;
        p = p[len] ? p + len + 1 : NULL;
    }
    return CDR_OK;
}

static bool number(const cdr_yaml *e, double *x)
{
    char *end = NULL;
    if (e->kind != CDR_YAML_SCALAR || !*e->text) return false;
    *x = strtod(e->text, &end);
    return !*end && *x - *x == 0;
}

static cdr_status read_split(const cdr_model *m, const cdr_yaml *o, row *r, cdr_err *err)
{
    double x[3] = { -1, -1, -1 };
    bool ok = o->kind == CDR_YAML_LIST && o->n == 3;
    for (int i = 0; i < 3 && ok; i++) ok = number(&o->items[i], &x[i]) && x[i] >= 0 && x[i] < 1024 && (double)(int)x[i] == x[i];
    if (!ok || (int)x[0] >= r->shape->n || x[2] >= x[1])
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: split is [axis, n, i]: part i of the n equal parts of an axis of the fused tensor",
                    cdr__desc_at(&m->d, r->node));
    r->split_axis = (int)x[0];
    r->n_parts = (int)x[1];
    r->part_of = (int)x[2];
    return CDR_OK;
}

static cdr_status read_options(const cdr_model *m, const cdr_yaml *options, row *r, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const char *at = cdr__desc_at(d, r->node), *place = cdr__attr_word(options, "place");
    CDR_TRY(cdr__attr_known(d, options, "a tensor row", "stored fill optional split place", err));
    const cdr_yaml *stored = cdr_yaml_get(options, "stored"), *fill = cdr_yaml_get(options, "fill"), *optional = cdr_yaml_get(options, "optional"),
                   *split = cdr_yaml_get(options, "split");
    if (stored && (stored->kind != CDR_YAML_LIST || stored->n < 1)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: stored is a shape", at);
    if (fill && (!stored || !number(fill, &r->fill))) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: fill is the number that pads a stored shape", at);
    if (optional && !number(optional, &r->absent)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: optional is the number that stands for an absent tensor", at);
    r->stored = stored;
    r->optional = optional != NULL;
    if (split) CDR_TRY(read_split(m, split, r, err));
    if (!cdr_yaml_get(options, "place")) return CDR_OK;
    bool known = place && (strcmp(place, "shard") == 0 || strcmp(place, "replicate") == 0 || strcmp(place, "expert") == 0);
    if (!known) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: place is shard, replicate or expert", at);
    if (place[0] == 'e' && !r->expert) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: place expert is for rows with {expert} in their name", at);
    r->place = place[0] == 's' ? CDR_PLACE_SHARD : place[0] == 'r' ? CDR_PLACE_REPLICATE : CDR_PLACE_EXPERT;
    return CDR_OK;
}

static cdr_status read_row(const cdr_model *m, const cdr_yaml *e, row *r, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const char *at = cdr__desc_at(d, e);
    if (e->kind != CDR_YAML_LIST || e->n < 2 || e->n > 4 || e->items[0].kind != CDR_YAML_SCALAR || e->items[1].kind != CDR_YAML_LIST)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: a tensor row is [name, [shape], dtype, {options}], the last two optional", at);
    *r = (row){ .node = e, .shape = &e->items[1], .name = e->items[0].text, .dtype = CDR_BF16, .block = 1, .part_of = -1, .format = { "BF16" }, .n_formats = 1 };
    r->expert = strstr(r->name, "{expert}") != NULL;
    r->place = r->expert ? CDR_PLACE_EXPERT : CDR_PLACE_SHARD;
    if (strlen(r->name) > MAX_NAME) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: the name is too long", at);
    if (e->n > 2) r->n_formats = 0;
    if (e->n > 2) CDR_TRY(read_formats(m, &e->items[2], r, err));
    return e->n > 3 ? read_options(m, &e->items[3], r, err) : CDR_OK;
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
    const char *s = "[";
    for (int i = 0; i < n_dim && i < 8; i++) s = cdr_pool_printf(pool, "%s%s%lld", s, i ? ", " : "", (long long)n[i]);
    return cdr_pool_printf(pool, "%s]", s);
}

static cdr_status read_shape(const cdr_model *m, const cdr__block *b, const row *r, const cdr_yaml *shape, int64_t n[CDR_STORED_DIM], cdr_err *err)
{
    const char *at = cdr__desc_at(&m->d, r->node);
    if (shape->n > CDR_STORED_DIM) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: a shape has at most 8 axes", at);
    for (int i = 0; i < shape->n; i++) {
        if (shape->items[i].kind != CDR_YAML_SCALAR) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: a shape is a list of sizes", at);
        CDR_TRY(cdr__expr(&m->d, b, shape->items[i].text, at, &n[i], err));
    }
    return CDR_OK;
}

static int64_t elems(const cdr__need *n)
{
    int64_t x = 1;
    for (int i = 0; i < n->n_dim; i++) CDR_CHECK(!__builtin_mul_overflow(x, n->n[i], &x));
    return x;
}

/* The row's shape is the part's, of one expert where the name has {expert}. stored: elements in a checkpoint; in: the tensor there. */
static cdr_status check_shape(const cdr_model *m, const cdr__block *b, const cdr__need *need, const row *r, int64_t *stored, cdr_model_row *in, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    int64_t n[CDR_STORED_DIM] = { 0 }, file[CDR_STORED_DIM] = { 0 };
    const char *at = cdr__desc_at(d, r->node);
    int one = r->expert ? 1 : 0;
    if (r->expert && need->top_k == 0)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: %s of block %s is no expert's, its name cannot hold {expert}", at, r->part, b->name);
    CDR_TRY(read_shape(m, b, r, r->shape, n, err));
    bool same = r->shape->n == need->n_dim - one;
    for (int i = 0; i < r->shape->n && same; i++) same = n[i] == need->n[i + one];
    if (!same)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-shape", "%s: %s of block %s is %s here, the block needs %s", at, r->part, b->name,
                    shape_text(d->pool, r->shape->n, n), shape_text(d->pool, need->n_dim - one, need->n + one));
    if (need->n[need->n_dim - 1] % r->block != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-shape", "%s: %s of block %s has rows of %lld; MXFP4 packs %d at a time", at, r->part, b->name,
                    (long long)need->n[need->n_dim - 1], r->block);
    *stored = elems(need);
    in->n_dim = r->stored ? r->stored->n : r->shape->n;
    memcpy(in->n, n, sizeof n);
    if (r->part_of >= 0 && __builtin_mul_overflow(n[r->split_axis], (int64_t)r->n_parts, &in->n[r->split_axis]))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-shape", "%s: %s of block %s: the fused tensor is too large", at, r->part, b->name);
    if (!r->stored) return CDR_OK;
    CDR_TRY(read_shape(m, b, r, r->stored, file, err));
    int64_t total = r->expert ? need->n[0] : 1, bare = elems(need);
    bool fits = true;
    for (int i = 0; i < r->stored->n; i++) fits = fits && file[i] > 0 && !__builtin_mul_overflow(total, file[i], &total);
    if (!fits || total < bare)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-shape", "%s: %s of block %s is stored as %s, which does not hold %s", at, r->part, b->name,
                    shape_text(d->pool, r->stored->n, file), shape_text(d->pool, need->n_dim, need->n));
    memcpy(in->n, file, sizeof file);
    in->padded = total > bare;
    *stored = total;
    return CDR_OK;
}

static const char *under(const cdr_model *m, const char *type)
{
    const cdr_yaml *map = cdr_yaml_get(m->d.root, "under");
    const char *s = map ? cdr__attr_word(map, type) : NULL;
    return s && strcmp(s, "none") != 0 ? s : "";
}

/* w1, w2, w3: other names of an expert's gate, down and up. */
static const char *part_name(const char *part)
{
    if (strcmp(part, "expert.w1") == 0) return "expert.gate";
    if (strcmp(part, "expert.w2") == 0) return "expert.down";
    return strcmp(part, "expert.w3") == 0 ? "expert.up" : part;
}

/* in: its name in a file; out: here, where a part of a fused tensor has a name of its own. */
static cdr_status full_name(const cdr_model *m, const cdr__block *b, int layer, const row *r, const char **in, const char **out, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const char *prefix = cdr__attr_word(d->root, "prefix");
    bool stack = b->type == &cdr__block_layer || b->type == &cdr__block_model;
    const char *full = cdr_pool_printf(d->pool, "%s%s%s%s", prefix && strcmp(prefix, "none") != 0 ? prefix : "", layer >= 0 ? under(m, "layer") : "",
                                       stack ? "" : under(m, b->type->type), r->name);
    if (layer >= 0) full = replace(d->pool, full, "{layer}", cdr_pool_printf(d->pool, "%d", layer));
    if (strchr(replace(d->pool, full, "{expert}", ""), '{'))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: name %s: only {layer}, {expert} and {} stand for something here", cdr__desc_at(d, r->node), full);
    *in = full;
    *out = r->part_of >= 0 ? cdr_pool_printf(d->pool, "%s#%d", full, r->part_of) : full;
    return CDR_OK;
}

/* The rest of the row as others see it; name and shape are there. */
static void open_row(const row *r, cdr_model_row *in)
{
    memcpy(in->format, r->format, sizeof in->format);
    in->n_formats = r->n_formats;
    in->fill = r->fill;
    in->optional = r->optional;
    in->absent = r->absent;
    if (r->part_of < 0) return;
    in->split_axis = r->split_axis;
    in->split_n = r->n_parts;
    in->split_i = r->part_of;
}

static cdr_status bind_part(cdr_model *m, const cdr__block *b, cdr__tensor t, const row *r, const char **name, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    int at = 0;
    while (at < b->n_needs && strcmp(b->need[at].part, part_name(r->part)) != 0) at++;
    if (at == b->n_needs) return CDR_OK;                              /* a part that this block's attributes leave out */
    const cdr__need *need = &b->need[at];
    if (name[at]) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: part %s of %s is filled twice", cdr__desc_at(d, r->node), r->part, b->name);
    CDR_TRY(check_shape(m, b, need, r, &t.stored, &t.row, err));
    if (r->optional && !need->optional)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%s: part %s of %s cannot be absent, so it cannot be optional", cdr__desc_at(d, r->node), r->part, b->name);
    const char *full = NULL;
    CDR_TRY(full_name(m, b, t.layer, r, &t.row.name, &full, err));
    bool has = true;
    if (r->optional) CDR_TRY(cdr__source_has(m->random ? NULL : m->source, t.row.name, &has, err));
    if (!has) return CDR_OK;
    t.name = name[at] = full;
    open_row(r, &t.row);
    if (need->added && !r->optional) {
        t.row.optional = true;
        t.row.absent = NAN;
    }
    t.need = need;
    t.dtype = r->dtype;
    t.packed = r->packed;
    t.place = r->place;
    *CDR_PUSH(d->pool, m->tensor, m->n_tensors, m->cap_tensors) = t;
    return CDR_OK;
}

/* Fills name[] of one block's parts from its type's rows. layer -1: outside of the stack. */
static cdr_status bind(cdr_model *m, const cdr__block *b, int layer, int16_t unit, const char **name, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const cdr_yaml *rows = section(m, b->type->type);
    if (!rows || rows->kind != CDR_YAML_MAP) CDR_FAIL_ID(err, CDR_EUSER, "model.missing-section", "%s: tensors.%s is missing", d->file[0], b->type->type);
    for (int i = 0; i < rows->n; i++) {
        row r, alt[MAX_ALTERNATIVES];
        int n;
        const cdr_yaml *e = &rows->items[i];
        if (e->kind == CDR_YAML_SCALAR && strcmp(e->text, "none") == 0) continue;
        CDR_TRY(read_row(m, e, &r, err));
        CDR_TRY(alternatives(m, e, &r, alt, &n, err));
        for (int k = 0; k < n; k++) CDR_TRY(bind_part(m, b, (cdr__tensor){ .unit = unit, .layer = layer }, &alt[k], name, err));
    }
    for (int i = 0; i < b->n_needs; i++)
        if (!name[i] && !b->need[i].optional)
            CDR_FAIL_ID(err, CDR_EUSER, "model.missing-part", "%s: part %s of block %s has no row in tensors.%s", cdr__desc_at(d, rows), b->need[i].part, b->name,
                        b->type->type);
    return CDR_OK;
}

/* What stands before names is given for layers and for types of blocks. */
static cdr_status check_under(const cdr_model *m, cdr_err *err)
{
    const cdr__desc *d = &m->d;
    const cdr_yaml *map = cdr_yaml_get(d->root, "under");
    for (int s = 0; s < map->n; s++) {
        const cdr_yaml *e = &map->items[s];
        bool known = false;
        for (int i = 0; cdr__block_types[i]; i++) known = known || (cdr__block_types[i] != &cdr__block_model && strcmp(cdr__block_types[i]->type, e->key) == 0);
        if (!known || e->kind != CDR_YAML_SCALAR)
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-block", "%s: under.%s: a text for layer, mla, glu, kda or moe", cdr__desc_at(d, e), e->key);
    }
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

static void count_kind(cdr_model *m, const cdr__block *b)
{
    cdr_model_info *f = &m->info;
    int i = 0;
    while (i < f->n_kinds && strcmp(f->kind[i].kind, b->label) != 0) i++;
    if (i == CDR_COUNT(f->kind)) return;
    if (i == f->n_kinds) f->kind[f->n_kinds++] = (cdr_layer_count){ b->label, 0 };
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

/* What a resume compares: every tensor, every size, every attribute of a block. */
static uint64_t description_hash(const cdr_model *m)
{
    const cdr__desc *d = &m->d;
    cdr_text t = { 0 };
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const cdr__need *n = m->tensor[i].need;
        cdr_text_printf(&t, "%s %lld %lld %lld\n", m->tensor[i].name, (long long)n->n[0], (long long)n->n[1], (long long)n->n[2]);
    }
    for (int64_t i = 0; i < d->n_sizes; i++) {
        const cdr__size *z = &d->size[i];
        cdr_text_printf(&t, "%s %lld %.17g", z->name, (long long)z->i, z->d);
        for (int k = 0; z->list && k < z->n; k++) cdr_text_printf(&t, " %lld", (long long)z->items[k]);
        cdr_text_printf(&t, "\n");
    }
    for (int i = 0; i < m->info.n_layers; i++)
        cdr_text_printf(&t, "%d %s %s\n", m->layer[i].index, m->block[m->layer[i].mixer].name, m->block[m->layer[i].ffn].name);
    const cdr_yaml **stack = cdr_pool_alloc(d->pool, sizeof *stack * 4096);
    int n = 0;
    for (int i = 0; i < m->n_blocks; i++) {
        stack[n++] = m->block_node[i];
        while (n > 0) {
            const cdr_yaml *e = stack[--n];
            cdr_text_printf(&t, "%s %s\n", e->key ? e->key : "", e->kind == CDR_YAML_SCALAR ? e->text : "");
            for (int k = 0; k < e->n && n < 4096; k++) stack[n++] = &e->items[k];
        }
    }
    cdr_text_printf(&t, "attn_res %d eps %.17g\n", m->attn_block, m->eps);
    uint64_t h = cdr_hash64(t.s, t.n, 0);
    cdr_text_free(&t);
    return h;
}

/* A matrix that a token is multiplied with; not the short convolutions, nor the one row of a residual mixer's query. */
static double product_elems(const cdr__need *n)
{
    if (n->lookup || n->n_dim < 2 || n->init == CDR__INIT_CONV || (n->n_dim == 2 && n->n[0] == 1)) return 0;
    int64_t all = elems(n);
    return (double)(n->top_k > 0 ? all / n->n[0] * n->top_k : all);
}

static void count_all(cdr_model *m)
{
    cdr_model_info *f = &m->info;
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const cdr__tensor *x = &m->tensor[i];
        f->n_params += x->stored;
        if (!x->need->lookup) f->n_active += x->need->top_k > 0 ? x->stored / x->need->n[0] * x->need->top_k : x->stored;
        f->matmul_params += product_elems(x->need);
    }
    f->n_tensors = (int)m->n_tensors;
    for (int i = 0; i < f->n_layers; i++) {
        const cdr__block *mixer = &m->block[m->layer[i].mixer], *ffn = &m->block[m->layer[i].ffn];
        count_kind(m, mixer);
        if (ffn->experts > 0) {
            f->moe.n++;
            f->moe.experts = CDR_MAX(f->moe.experts, ffn->experts);
            f->moe.top_k = CDR_MAX(f->moe.top_k, ffn->top_k);
        }
        if (mixer->select > 0) {
            f->sparse.n++;
            f->sparse.top_k = CDR_MAX(f->sparse.top_k, mixer->select);
        }
    }
    f->hash = description_hash(m);
    f->function = cdr__model_function(m);
}

cdr_status cdr__model_tensors(cdr_model *m, cdr_err *err)
{
    cdr_pool *pool = m->d.pool;
    const char *tail[CDR__MAX_NEEDS] = { NULL };
    CDR_TRY(check_under(m, err));
    CDR_TRY(check_rows(m, err));
    const char *prefix = cdr__attr_word(m->d.root, "prefix");
    m->layer_prefix = cdr_pool_printf(pool, "%s%s", prefix && strcmp(prefix, "none") != 0 ? prefix : "", under(m, "layer"));
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
