/* jinja_json.c: the filter tojson as transformers defines it for chat templates: json.dumps with ensure_ascii=False unless
 * asked for, indent, separators, sort_keys. Strings keep their tags; brackets, separators and escapes are the template's.
 * Source: transformers, utils/chat_template_utils.py (the filter's signature); the Python library reference, json.
 */
#include "chat/jinja.h"

#include <stdlib.h>
#include <string.h>

typedef struct { bool ascii, sort; const char *indent; const char *item, *key; } style;
typedef struct { cdr__jx *x; cdr__jout o; style s; int level; } writer;

static bool write(writer *w, const cdr__jv *v);

static bool room(writer *w, size_t n)
{
    if (w->o.s.n + n > w->x->bytes_max) return cdr__jx_fail(w->x, "jinja.too-much", "tojson: more than %zu MiB", w->x->bytes_max >> 20);
    return cdr__jx_burn(w->x, (int64_t)(n / 8));
}

/* Each byte of what a character became has the character's tag. */
static bool write_string(writer *w, const cdr__jstr *s)
{
    cdr_text t = { 0 };
    if (!room(w, s->n)) return false;
    cdr__jout_fill(&w->o, "\"", 0);
    for (size_t i = 0; i < s->n;) {
        uint8_t tag = s->tag ? s->tag[i] : 0;
        size_t n = i;
        while (n < s->n && (!s->tag || s->tag[n] == tag)) n++;           /* a run of one tag */
        t.n = 0;
        cdr__py_string(&t, s->s + i, n - i, w->s.ascii);
        size_t inner = t.n - 2, from = w->o.tag.n;
        cdr__jout_add(&w->o, t.s + 1, NULL, inner);
        memset(w->o.tag.s + from, tag, inner);
        i = n;
    }
    cdr__jout_fill(&w->o, "\"", 0);
    cdr_text_free(&t);
    return true;
}

static bool write_scalar(writer *w, const cdr__jv *v)
{
    cdr_text t = { 0 };
    switch (v->kind) {
        case CDR__J_NONE: cdr_text_printf(&t, "null"); break;
        case CDR__J_BOOL: cdr_text_printf(&t, "%s", v->u.b ? "true" : "false"); break;
        case CDR__J_INT: cdr_text_printf(&t, "%lld", (long long)v->u.i); break;
        case CDR__J_FLOAT: cdr__py_real(&t, v->u.f); break;
        case CDR__J_UNDEFINED: return cdr__jx_fail(w->x, "jinja.undefined", "tojson: %s is not defined", v->u.name);
        default: return cdr__jx_fail(w->x, "jinja.type", "tojson: %s has no form in JSON", cdr__jv_type(v));
    }
    cdr__jout_add(&w->o, t.s, NULL, t.n);
    cdr_text_free(&t);
    return true;
}

static void line(writer *w)
{
    if (!w->s.indent) return;
    cdr__jout_fill(&w->o, "\n", 0);
    for (int i = 0; i < w->level; i++) cdr__jout_fill(&w->o, w->s.indent, 0);
}

static int by_key(const void *a, const void *b)
{
    const cdr__jv *const *x = a, *const *y = b;
    return cdr__jstr_compare((*x)->u.s, (*y)->u.s);
}

/* Keys in the order in which they are written. */
static const cdr__jv **keys_of(writer *w, const cdr__jdict *d)
{
    const cdr__jv **keys = cdr__jx_alloc(w->x, sizeof *keys * (size_t)(d->n + 1));
    bool texts = true;
    for (int64_t i = 0; keys && i < d->n; i++) {
        keys[i] = &d->key[i];
        texts = texts && d->key[i].kind == CDR__J_STRING;
    }
    if (!keys || !w->s.sort) return keys;
    if (!texts) {
        (void)cdr__jx_fail(w->x, "jinja.type", "tojson: sort_keys of keys that are no texts is not supported");
        return NULL;
    }
    qsort(keys, (size_t)d->n, sizeof *keys, by_key);
    return keys;
}

static bool write_dict(writer *w, const cdr__jdict *d)
{
    const cdr__jv **keys = keys_of(w, d);
    if (!keys) return false;
    cdr__jout_fill(&w->o, "{", 0);
    w->level++;
    for (int64_t i = 0; i < d->n; i++) {
        if (i) cdr__jout_fill(&w->o, w->s.item, 0);
        line(w);
        if (keys[i]->kind != CDR__J_STRING) {
            cdr__jout_fill(&w->o, "\"", 0);
            if (!write_scalar(w, keys[i])) return false;
            cdr__jout_fill(&w->o, "\"", 0);
        } else if (!write_string(w, keys[i]->u.s)) {
            return false;
        }
        cdr__jout_fill(&w->o, w->s.key, 0);
        if (!write(w, cdr__jdict_get(d, keys[i]))) return false;
    }
    w->level--;
    if (d->n) line(w);
    cdr__jout_fill(&w->o, "}", 0);
    return true;
}

static bool write_list(writer *w, const cdr__jlist *l)
{
    cdr__jout_fill(&w->o, "[", 0);
    w->level++;
    for (int64_t i = 0; i < l->n; i++) {
        if (i) cdr__jout_fill(&w->o, w->s.item, 0);
        line(w);
        if (!write(w, &l->v[i])) return false;
    }
    w->level--;
    if (l->n) line(w);
    cdr__jout_fill(&w->o, "]", 0);
    return true;
}

static bool write(writer *w, const cdr__jv *v)
{
    if (!room(w, 8)) return false;
    if (v->kind == CDR__J_STRING) return write_string(w, v->u.s);
    if (v->kind != CDR__J_DICT && !cdr__jv_is_list(v)) return write_scalar(w, v);
    if (w->level > 100) return cdr__jx_fail(w->x, "jinja.too-much", "tojson: values nested deeper than 100");
    return v->kind == CDR__J_DICT ? write_dict(w, v->u.d) : write_list(w, v->u.l);
}

/* A separator or an indentation as text of the run. Tags of it are not kept: it is a literal of the template in every use known. */
static bool text_of(cdr__jx *x, const cdr__jv *v, const char *what, const char **out)
{
    cdr__jv copy;
    if (v->kind != CDR__J_STRING) return cdr__jx_fail(x, "jinja.type", "tojson: %s is %s, a text is expected", what, cdr__jv_type(v));
    if (v->u.s->tag || memchr(v->u.s->s, 0, v->u.s->n))
        return cdr__jx_fail(x, "jinja.type", "tojson: %s comes from the conversation; only the template's own is supported", what);
    if (!cdr__jv_string(x, v->u.s->s, NULL, v->u.s->n, &copy)) return false;
    *out = copy.u.s->s;
    return true;
}

static bool read_style(cdr__jx *x, const cdr__jargs *a, style *s)
{
    *s = (style){ .ascii = cdr__jarg_bool(a, 0, false), .sort = cdr__jarg_bool(a, 3, false), .item = ", ", .key = ": " };
    const cdr__jv *indent = &a->a[1], *separators = &a->a[2];
    if (indent->kind == CDR__J_INT || indent->kind == CDR__J_BOOL) {
        int64_t n = cdr__jv_whole(indent);
        char *spaces = cdr__jx_alloc(x, 33);
        if (!spaces) return false;
        if (n > 32) return cdr__jx_fail(x, "jinja.too-much", "tojson: an indentation of more than 32");
        memset(spaces, ' ', (size_t)CDR_MAX(n, (int64_t)0));
        s->indent = spaces;
    } else if (indent->kind != CDR__J_MISSING && indent->kind != CDR__J_NONE && !text_of(x, indent, "indent", &s->indent)) {
        return false;
    }
    if (s->indent) s->item = ",";
    if (separators->kind == CDR__J_MISSING || separators->kind == CDR__J_NONE) return true;
    if (!cdr__jv_is_list(separators) || separators->u.l->n != 2) return cdr__jx_fail(x, "jinja.type", "tojson: separators is no pair");
    return text_of(x, &separators->u.l->v[0], "a separator", &s->item) && text_of(x, &separators->u.l->v[1], "a separator", &s->key);
}

bool cdr__jx_tojson(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    writer w = { .x = x };
    if (!read_style(x, a, &w.s)) return false;
    bool ok = write(&w, a->self);
    return cdr__jout_done(x, &w.o, ok, out);
}
