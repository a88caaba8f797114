/* jinja_value.c: values of a run, in an arena that is freed at once. Strings, lists and mappings do not change once they are
 * made (a template is sandboxed: it cannot append), so that they are shared freely; a namespace is the one thing that changes.
 * Comparison and truth are Python's. A mapping keeps the order of insertion, and has a hash index above 8 members.
 */
#include "chat/jinja.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 16, SMALL = 8, NEST_MAX = 200 };

typedef struct cdr__jchunk { struct cdr__jchunk *next; size_t n, cap; _Alignas(16) char data[]; } chunk;

/* ---- memory ------------------------------------------------------------------------------------------------------------ */
static bool take(cdr__jx *x, size_t bytes)
{
    if (bytes <= x->bytes_max - x->bytes) {
        x->bytes += bytes;
        return true;
    }
    return cdr__jx_fail(x, "jinja.too-much", "the template needs more than %zu MiB for this conversation; it is stopped", x->bytes_max >> 20);
}

void *cdr__jx_alloc(cdr__jx *x, size_t bytes)
{
    size_t need;
    if (!cdr_add_size(bytes, 15, &need)) need = SIZE_MAX - 15;
    need &= ~(size_t)15;
    if (!cdr__jx_burn(x, (int64_t)(need / 64)) || !take(x, need)) return NULL;
    chunk *c = x->chunk;
    if (!c || c->cap - c->n < need) {
        size_t cap = CDR_MAX(need, (size_t)CHUNK);
        c = cdr_alloc(sizeof *c + cap);
        c->next = x->chunk;
        c->n = 0;
        c->cap = cap;
        x->chunk = c;
    }
    void *p = c->data + c->n;
    c->n += need;
    return memset(p, 0, need);
}

/* ---- strings -------------------------------------------------------------------------------------------------------------- */
static cdr__jv of_string(const cdr__jstr *s)
{
    cdr__jv v = { .kind = CDR__J_STRING };
    v.u.s = s;
    return v;
}

bool cdr__jv_string(cdr__jx *x, const char *s, const uint8_t *tag, size_t n, cdr__jv *out)
{
    cdr__jstr *str = cdr__jx_alloc(x, sizeof *str);
    char *text = str ? cdr__jx_alloc(x, n + 1) : NULL;
    uint8_t *tags = NULL;
    if (!text) return false;
    if (n) memcpy(text, s, n);
    if (tag && n) {
        tags = cdr__jx_alloc(x, n);
        if (!tags) return false;
        memcpy(tags, tag, n);
    }
    *str = (cdr__jstr){ .s = text, .tag = tags, .n = n };
    *out = of_string(str);
    return true;
}

bool cdr__jv_view(cdr__jx *x, const cdr__jstr *of, size_t from, size_t n, cdr__jv *out)
{
    if (from == 0 && n == of->n) {
        *out = of_string(of);
        return true;
    }
    cdr__jstr *str = cdr__jx_alloc(x, sizeof *str);
    if (!str) return false;
    *str = (cdr__jstr){ .s = of->s + from, .tag = of->tag ? of->tag + from : NULL, .n = n };
    *out = of_string(str);
    return true;
}

bool cdr__jv_text(cdr__jx *x, const char *s, cdr__jv *out) { return cdr__jv_string(x, s, NULL, strlen(s), out); }

int cdr__jstr_compare(const cdr__jstr *a, const cdr__jstr *b)
{
    size_t n = CDR_MIN(a->n, b->n);
    int order = n ? memcmp(a->s, b->s, n) : 0;             /* UTF-8 sorts as its code points do */
    return order ? (order > 0) - (order < 0) : (a->n > b->n) - (a->n < b->n);
}

bool cdr__jv_is_text(const cdr__jv *v, const char *s)
{
    return v->kind == CDR__J_STRING && v->u.s->n == strlen(s) && memcmp(v->u.s->s, s, v->u.s->n) == 0;
}

/* ---- lists and mappings ------------------------------------------------------------------------------------------------------ */
bool cdr__jv_list(cdr__jx *x, int64_t n, int kind, cdr__jlist **l, cdr__jv *out)
{
    size_t bytes;
    *l = cdr__jx_alloc(x, sizeof **l);
    if (!*l) return false;
    if (!cdr_mul_size((size_t)n, sizeof *(*l)->v, &bytes)) bytes = SIZE_MAX;
    (*l)->v = cdr__jx_alloc(x, bytes);
    if (!(*l)->v) return false;
    (*l)->n = n;
    *out = (cdr__jv){ .kind = (uint8_t)kind, .u.l = *l };
    return true;
}

static uint64_t hash_of(const cdr__jv *key)
{
    if (key->kind == CDR__J_STRING) return cdr_hash64(key->u.s->s, key->u.s->n, 0x9e3779b97f4a7c15u);
    double d = key->kind == CDR__J_NONE ? 0 : cdr__jv_number(key);
    return cdr_hash64(&d, sizeof d, 1);
}

static bool same_key(const cdr__jv *a, const cdr__jv *b)
{
    if (a->kind == CDR__J_STRING || b->kind == CDR__J_STRING) return a->kind == b->kind && cdr__jstr_compare(a->u.s, b->u.s) == 0;
    if (a->kind == CDR__J_NONE || b->kind == CDR__J_NONE) return a->kind == b->kind;
    if (a->kind != CDR__J_FLOAT && b->kind != CDR__J_FLOAT) return cdr__jv_whole(a) == cdr__jv_whole(b);
    return cdr__jv_number(a) == cdr__jv_number(b);
}

/* Slot of a key in a table of n_slot (a power of two): where it is, or the free one where it belongs. */
static int64_t slot_of(const cdr__jdict *d, const cdr__jv *key)
{
    int64_t at = (int64_t)(hash_of(key) & (uint64_t)(d->n_slot - 1));
    while (d->slot[at] >= 0 && !same_key(&d->key[d->slot[at]], key)) at = (at + 1) & (d->n_slot - 1);
    return at;
}

static int64_t find(const cdr__jdict *d, const cdr__jv *key)
{
    if (d->n_slot) return d->slot[slot_of(d, key)];
    for (int64_t i = 0; i < d->n; i++)
        if (same_key(&d->key[i], key)) return i;
    return -1;
}

static bool grow(cdr__jx *x, cdr__jdict *d, int64_t cap)
{
    cdr__jv *key = cdr__jx_alloc(x, (size_t)cap * sizeof *key), *value = key ? cdr__jx_alloc(x, (size_t)cap * sizeof *value) : NULL;
    if (!value) return false;
    if (d->n) {
        memcpy(key, d->key, (size_t)d->n * sizeof *key);
        memcpy(value, d->value, (size_t)d->n * sizeof *value);
    }
    d->key = key;
    d->value = value;
    d->cap = cap;
    d->n_slot = 0;
    if (cap <= SMALL) return true;
    int64_t n_slot = 16;
    while (n_slot < cap * 2) n_slot *= 2;
    d->slot = cdr__jx_alloc(x, (size_t)n_slot * sizeof *d->slot);
    if (!d->slot) return false;
    memset(d->slot, 0xff, (size_t)n_slot * sizeof *d->slot);
    d->n_slot = n_slot;
    for (int64_t i = 0; i < d->n; i++) d->slot[slot_of(d, &d->key[i])] = (int32_t)i;
    return true;
}

bool cdr__jv_dict(cdr__jx *x, int64_t room, cdr__jv *out)
{
    cdr__jdict *d = cdr__jx_alloc(x, sizeof *d);
    if (!d || (room > 0 && !grow(x, d, room))) return false;
    *out = (cdr__jv){ .kind = CDR__J_DICT, .u.d = d };
    return true;
}

bool cdr__jdict_put(cdr__jx *x, cdr__jdict *d, const cdr__jv *key, const cdr__jv *value)
{
    if (key->kind != CDR__J_STRING && key->kind != CDR__J_NONE && !cdr__jv_is_number(key))
        return cdr__jx_fail(x, "jinja.type", "%s as key of a mapping is not supported", cdr__jv_type(key));
    int64_t at = find(d, key);
    if (at >= 0) {
        d->value[at] = *value;
        return true;
    }
    if (d->n >= INT32_MAX / 2) return cdr__jx_fail(x, "jinja.too-much", "a mapping of %lld members", (long long)d->n);
    if (d->n == d->cap && !grow(x, d, CDR_MAX((int64_t)4, d->cap * 2))) return false;
    d->key[d->n] = *key;
    d->value[d->n] = *value;
    if (d->n_slot) d->slot[slot_of(d, key)] = (int32_t)d->n;
    d->n++;
    return true;
}

const cdr__jv *cdr__jdict_get(const cdr__jdict *d, const cdr__jv *key)
{
    if (key->kind != CDR__J_STRING && key->kind != CDR__J_NONE && !cdr__jv_is_number(key)) return NULL;
    int64_t at = find(d, key);
    return at < 0 ? NULL : &d->value[at];
}

const cdr__jv *cdr__jdict_name(const cdr__jdict *d, const char *name)
{
    cdr__jstr s = { .s = name, .n = strlen(name) };
    cdr__jv key = of_string(&s);
    return cdr__jdict_get(d, &key);
}

/* ---- what values are ------------------------------------------------------------------------------------------------------------- */
const char *cdr__jv_type(const cdr__jv *v)
{
    static const char *const names[] = { "nothing", "undefined", "none", "bool", "int", "float", "str", "list", "tuple", "dict", "namespace", "loop", "macro",
        "method", "function" };
    return names[v->kind];
}

double cdr__jv_number(const cdr__jv *v) { return v->kind == CDR__J_FLOAT ? v->u.f : (double)cdr__jv_whole(v); }

bool cdr__jv_truth(const cdr__jv *v)
{
    switch (v->kind) {
        case CDR__J_MISSING: case CDR__J_UNDEFINED: case CDR__J_NONE: return false;
        case CDR__J_BOOL: return v->u.b;
        case CDR__J_INT: return v->u.i != 0;
        case CDR__J_FLOAT: return v->u.f != 0;
        case CDR__J_STRING: return v->u.s->n > 0;
        case CDR__J_LIST: case CDR__J_TUPLE: return v->u.l->n > 0;
        case CDR__J_DICT: return v->u.d->n > 0;
        default: return true;
    }
}

static bool equal_number(const cdr__jv *a, const cdr__jv *b)
{
    if (a->kind == CDR__J_FLOAT && b->kind == CDR__J_FLOAT) return a->u.f == b->u.f;
    if (a->kind != CDR__J_FLOAT && b->kind != CDR__J_FLOAT) return cdr__jv_whole(a) == cdr__jv_whole(b);
    double f = a->kind == CDR__J_FLOAT ? a->u.f : b->u.f;
    int64_t i = a->kind == CDR__J_FLOAT ? cdr__jv_whole(b) : cdr__jv_whole(a);
    return f >= -9223372036854775808.0 && f < 9223372036854775808.0 && (int64_t)f == i && (double)(int64_t)f == f;
}

/* Depth is that of the values, which a template or a file bounds; the run's counter bounds it here. */
static bool equal_inside(cdr__jx *x, const cdr__jv *a, const cdr__jv *b, bool *equal)
{
    bool ok = true;
    if (a->kind == CDR__J_DICT) {
        *equal = a->u.d->n == b->u.d->n;
        for (int64_t i = 0; ok && *equal && i < a->u.d->n; i++) {
            const cdr__jv *other = cdr__jdict_get(b->u.d, &a->u.d->key[i]);
            *equal = other != NULL;
            if (other) ok = cdr__jv_equal(x, &a->u.d->value[i], other, equal);
        }
        return ok;
    }
    *equal = a->u.l->n == b->u.l->n;
    for (int64_t i = 0; ok && *equal && i < a->u.l->n; i++) ok = cdr__jv_equal(x, &a->u.l->v[i], &b->u.l->v[i], equal);
    return ok;
}

bool cdr__jv_equal(cdr__jx *x, const cdr__jv *a, const cdr__jv *b, bool *equal)
{
    if (!cdr__jx_burn(x, 1)) return false;
    if (cdr__jv_is_number(a) && cdr__jv_is_number(b)) {
        *equal = equal_number(a, b);
        return true;
    }
    *equal = false;
    if (a->kind != b->kind) return true;
    if (a->kind == CDR__J_STRING) {
        *equal = cdr__jstr_compare(a->u.s, b->u.s) == 0;
        return cdr__jx_burn(x, (int64_t)(a->u.s->n / 64));
    }
    if (a->kind == CDR__J_DICT || cdr__jv_is_list(a)) {
        if (x->depth > NEST_MAX * 4) return cdr__jx_fail(x, "jinja.too-much", "values nested too deep to compare");
        x->depth++;
        bool ok = equal_inside(x, a, b, equal);
        x->depth--;
        return ok;
    }
    *equal = a->kind == CDR__J_NONE || a->kind == CDR__J_UNDEFINED || a->u.d == b->u.d;
    return true;
}

bool cdr__jv_order(cdr__jx *x, const cdr__jv *a, const cdr__jv *b, int *order)
{
    if (!cdr__jx_burn(x, 1)) return false;
    if (a->kind == CDR__J_STRING && b->kind == CDR__J_STRING) {
        *order = cdr__jstr_compare(a->u.s, b->u.s);
        return true;
    }
    if (!cdr__jv_is_number(a) || !cdr__jv_is_number(b))
        return cdr__jx_fail(x, "jinja.type", "%s and %s have no order here; numbers and strings have", cdr__jv_type(a), cdr__jv_type(b));
    if (a->kind != CDR__J_FLOAT && b->kind != CDR__J_FLOAT) {
        int64_t i = cdr__jv_whole(a), k = cdr__jv_whole(b);
        *order = (i > k) - (i < k);
        return true;
    }
    double f = cdr__jv_number(a), g = cdr__jv_number(b);
    *order = isnan(f) || isnan(g) ? 2 : (f > g) - (f < g);
    return true;
}

/* ---- iteration ------------------------------------------------------------------------------------------------------------------------ */
static bool characters(cdr__jx *x, const cdr__jstr *s, const cdr__jlist **items)
{
    cdr__jlist *l;
    cdr__jv v;
    if (!cdr__jv_list(x, cdr__j_length(s), CDR__J_LIST, &l, &v)) return false;
    int64_t k = 0;
    for (size_t i = 0; i < s->n;) {
        size_t n = cdr__j_char(s->s + i, s->n - i);
        if (!cdr__jv_view(x, s, i, n, &l->v[k++])) return false;
        i += n;
    }
    *items = l;
    return true;
}

bool cdr__jv_items(cdr__jx *x, const cdr__jv *v, const cdr__jlist **items)
{
    cdr__jlist *l;
    cdr__jv list;
    if (cdr__jv_is_list(v)) {
        *items = v->u.l;
        return true;
    }
    if (v->kind == CDR__J_STRING) return characters(x, v->u.s, items);
    if (v->kind != CDR__J_DICT && v->kind != CDR__J_UNDEFINED) return cdr__jx_fail(x, "jinja.type", "%s cannot be iterated over", cdr__jv_type(v));
    int64_t n = v->kind == CDR__J_DICT ? v->u.d->n : 0;
    if (!cdr__jv_list(x, n, CDR__J_LIST, &l, &list)) return false;
    if (n) memcpy(l->v, v->u.d->key, (size_t)n * sizeof *l->v);
    *items = l;
    return true;
}

/* ---- from JSON -------------------------------------------------------------------------------------------------------------------------- */
static bool json_string(cdr__jx *x, const char *s, uint8_t tag, cdr__jv *out)
{
    if (!cdr__jv_string(x, s, NULL, strlen(s), out)) return false;
    if (tag == CDR__TAG_TEMPLATE || out->u.s->n == 0) return true;
    cdr__jstr *str = cdr__jx_alloc(x, sizeof *str);
    uint8_t *tags = str ? cdr__jx_alloc(x, out->u.s->n) : NULL;
    if (!tags) return false;
    memset(tags, tag, out->u.s->n);
    *str = (cdr__jstr){ .s = out->u.s->s, .tag = tags, .n = out->u.s->n };
    *out = of_string(str);
    return true;
}

/* The reader bounds the depth of a document (64). */
bool cdr__jv_of_json(cdr__jx *x, const cdr_json *j, uint8_t tag, cdr__jv *out)
{
    int64_t n = cdr_json_count(j);
    cdr__jlist *l;
    switch (cdr_json_type(j)) {
        case CDR_JSON_NULL: *out = cdr__jv_none(); return true;
        case CDR_JSON_BOOL: *out = cdr__jv_bool(cdr_json_bool(j, false)); return true;
        case CDR_JSON_INT: *out = cdr__jv_int(cdr_json_int(j, 0)); return true;
        case CDR_JSON_REAL: *out = cdr__jv_float(cdr_json_real(j, 0)); return true;
        case CDR_JSON_STRING: return json_string(x, cdr_json_str(j, ""), tag, out);
        case CDR_JSON_ARRAY:
            if (!cdr__jv_list(x, n, CDR__J_LIST, &l, out)) return false;
            for (int64_t i = 0; i < n; i++)
                if (!cdr__jv_of_json(x, cdr_json_at(j, i), tag, &l->v[i])) return false;
            return true;
        default:
            if (!cdr__jv_dict(x, n, out)) return false;
            for (int64_t i = 0; i < n; i++) {
                cdr__jv key, value;
                if (!json_string(x, cdr_json_key(j, i), tag, &key) || !cdr__jv_of_json(x, cdr_json_at(j, i), tag, &value)) return false;
                if (!cdr__jdict_put(x, out->u.d, &key, &value)) return false;
            }
            return true;
    }
}
