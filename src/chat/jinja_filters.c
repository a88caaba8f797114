/* jinja_filters.c: filters (x | NAME), as Jinja's of that name. What makes an iterator in Jinja (map, select, reverse, items)
 * makes a list here. A name that Jinja has and that is not here is refused with its line.
 */
#include "chat/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const cdr__jstr EMPTY = { .s = "" };

static bool text_of(cdr__jx *x, const cdr__jargs *a, const cdr__jstr **s) { return cdr__jv_str(x, a->self, s); }

static cdr__jv of_text(const cdr__jstr *s)
{
    cdr__jv v = { .kind = CDR__J_STRING };
    v.u.s = s;
    return v;
}

/* ---- of one value ------------------------------------------------------------------------------------------------------ */
static bool f_length(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jv *v = a->self;
    int64_t n = 0;
    if (v->kind == CDR__J_STRING) n = cdr__j_length(v->u.s);
    else if (cdr__jv_is_list(v)) n = v->u.l->n;
    else if (v->kind == CDR__J_DICT) n = v->u.d->n;
    else if (v->kind != CDR__J_UNDEFINED) return cdr__jx_fail(x, "jinja.type", "%s has no length", cdr__jv_type(v));
    *out = cdr__jv_int(n);
    return v->kind != CDR__J_STRING || cdr__jx_burn(x, (int64_t)(v->u.s->n / 16));
}

static bool f_default(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    (void)x;
    bool take = a->self->kind == CDR__J_UNDEFINED || (cdr__jarg_bool(a, 1, false) && !cdr__jv_truth(a->self));
    *out = !take ? *a->self : a->a[0].kind == CDR__J_MISSING ? of_text(&EMPTY) : a->a[0];
    return true;
}

static bool f_string(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s;
    if (!text_of(x, a, &s)) return false;
    *out = of_text(s);
    out->safe = a->self->safe;
    return true;
}

static bool f_trim(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s, *chars;
    return text_of(x, a, &s) && cdr__jarg_text(x, a, 0, &chars) && cdr__j_strip(x, s, chars, true, true, out);
}

static bool f_replace(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s, *old, *by;
    int64_t count;
    if (a->a[0].kind == CDR__J_MISSING || a->a[1].kind == CDR__J_MISSING) return cdr__jx_fail(x, "jinja.call", "replace needs two texts");
    return text_of(x, a, &s) && cdr__jv_str(x, &a->a[0], &old) && cdr__jv_str(x, &a->a[1], &by) && cdr__jarg_int(x, a, 2, -1, &count) && cdr__j_replace(x, s, old,
        by, count, out);
}

static bool f_upper(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s;
    return text_of(x, a, &s) && cdr__j_case(x, s, true, out);
}

static bool f_lower(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s;
    return text_of(x, a, &s) && cdr__j_case(x, s, false, out);
}

static bool one_word(cdr__jx *x, cdr__jout *o, const cdr__jstr *s, size_t from, size_t to)
{
    cdr__jv first, rest;
    if (from == to) return true;
    size_t n = cdr__j_char(s->s + from, to - from);
    cdr__jstr head = { .s = s->s + from, .tag = s->tag ? s->tag + from : NULL, .n = n }, tail = { .s = head.s + n, .tag = head.tag ? head.tag + n : NULL,
        .n = to - from - n };
    return cdr__j_case(x, &head, true, &first) && cdr__j_case(x, &tail, false, &rest) && cdr__jx_add(x, o, first.u.s) && cdr__jx_add(x, o, rest.u.s);
}

static bool f_capitalize(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s;
    cdr__jout o = { 0 };
    if (!text_of(x, a, &s)) return false;
    bool ok = one_word(x, &o, s, 0, s->n);
    return cdr__jout_done(x, &o, ok, out);
}

/* Words begin behind white space and any of - ( { [ <, which is how Jinja's filter of that name cuts. */
static bool f_title(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s;
    cdr__jout o = { 0 };
    bool ok = true;
    if (!text_of(x, a, &s)) return false;
    size_t from = 0;
    for (size_t i = 0; ok && i < s->n;) {
        size_t space = cdr__j_space(s->s + i, s->n - i), n = cdr__j_char(s->s + i, s->n - i);
        if (space || strchr("-({[<", s->s[i] ? s->s[i] : 'x')) {
            cdr__jstr cut = { .s = s->s + i, .tag = s->tag ? s->tag + i : NULL, .n = n };
            ok = one_word(x, &o, s, from, i) && cdr__jx_add(x, &o, &cut);
            from = i + n;
        }
        i += n;
    }
    ok = ok && one_word(x, &o, s, from, s->n);
    return cdr__jout_done(x, &o, ok, out);
}

/* A text as a number, the way int() and float() of Python read it: blanks around, a sign, digits; *ok: it is one. */
static double read_number(const cdr__jstr *s, bool whole, bool *ok, int64_t *i)
{
    char text[64], *end;
    size_t from = 0, to = s->n;
    while (from < to && cdr__j_space(s->s + from, to - from)) from += cdr__j_space(s->s + from, to - from);
    while (to > from && cdr__j_space(s->s + to - 1, 1)) to--;
    *ok = to > from && to - from < sizeof text && !memchr(s->s + from, 0, to - from);
    if (!*ok) return 0;
    memcpy(text, s->s + from, to - from);
    text[to - from] = 0;
    if (strspn(text, whole ? "+-0123456789" : "+-0123456789.eE") != strlen(text)) {
        *ok = false;
        return 0;
    }
    double d = strtod(text, &end);
    *i = whole ? strtoll(text, &end, 10) : 0;
    *ok = *end == 0 && end > text && strspn(text, "+-") < 2;
    return d;
}

static bool f_int(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jv *v = a->self;
    bool ok = false;
    int64_t i = 0, base;
    double d = 0;
    if (!cdr__jarg_int(x, a, 1, 10, &base)) return false;
    if (base != 10) return cdr__jx_fail(x, "jinja.unsupported", "int with a base other than 10 is not supported");
    if (v->kind == CDR__J_INT || v->kind == CDR__J_BOOL) {
        *out = cdr__jv_int(cdr__jv_whole(v));
        return true;
    }
    if (v->kind == CDR__J_STRING) {
        d = read_number(v->u.s, true, &ok, &i);
        if (ok && fabs(d) >= 9e18) return cdr__jx_fail(x, "jinja.type", "a whole number beyond 64 bits");
        if (ok) *out = cdr__jv_int(i);
        if (ok) return true;
        d = read_number(v->u.s, false, &ok, &i);
    } else if (v->kind == CDR__J_FLOAT) {
        d = v->u.f;
        ok = !isnan(d) && !isinf(d);
    }
    if (ok && fabs(d) >= 9e18) return cdr__jx_fail(x, "jinja.type", "a whole number beyond 64 bits");
    *out = ok ? cdr__jv_int((int64_t)d) : a->a[0].kind == CDR__J_MISSING ? cdr__jv_int(0) : a->a[0];
    return true;
}

static bool f_float(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jv *v = a->self;
    bool ok = cdr__jv_is_number(v);
    int64_t i;
    (void)x;
    double d = ok ? cdr__jv_number(v) : v->kind == CDR__J_STRING ? read_number(v->u.s, false, &ok, &i) : 0;
    *out = ok ? cdr__jv_float(d) : a->a[0].kind == CDR__J_MISSING ? cdr__jv_float(0) : a->a[0];
    return true;
}

static bool f_abs(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jv *v = a->self;
    if (!cdr__jv_is_number(v)) return cdr__jx_fail(x, "jinja.type", "abs of %s", cdr__jv_type(v));
    if (v->kind != CDR__J_FLOAT && cdr__jv_whole(v) == INT64_MIN) return cdr__jx_fail(x, "jinja.type", "a whole number beyond 64 bits");
    *out = v->kind == CDR__J_FLOAT ? cdr__jv_float(fabs(v->u.f)) : cdr__jv_int(llabs(cdr__jv_whole(v)));
    return true;
}

static bool f_round(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jv *v = a->self;
    const cdr__jstr *method;
    int64_t places;
    char text[400];
    if (!cdr__jarg_int(x, a, 0, 0, &places) || !cdr__jarg_text(x, a, 1, &method)) return false;
    if (!cdr__jv_is_number(v)) return cdr__jx_fail(x, "jinja.type", "round of %s", cdr__jv_type(v));
    cdr__jv m = of_text(method ? method : &EMPTY);
    bool up = cdr__jv_is_text(&m, "ceil"), down = cdr__jv_is_text(&m, "floor");
    if (places < 0 || places > 15 || (places > 0 && (up || down)) || (v->kind == CDR__J_FLOAT && (isnan(v->u.f) || isinf(v->u.f))))
        return cdr__jx_fail(x, "jinja.unsupported", "round to %lld places this way is not supported", (long long)places);
    if (up || down) {
        *out = cdr__jv_float(up ? ceil(cdr__jv_number(v)) : floor(cdr__jv_number(v)));
        return true;
    }
    if (v->kind != CDR__J_FLOAT) {
        *out = cdr__jv_int(cdr__jv_whole(v));
        return true;
    }
    (void)snprintf(text, sizeof text, "%.*f", (int)places, v->u.f);          /* exact, halves to even: as Python rounds */
    *out = cdr__jv_float(strtod(text, NULL));
    return true;
}

/* Lines as splitlines cuts them, joined by \n: blank lines get the indentation only where asked for. */
static bool indent_lines(cdr__jx *x, const cdr__jstr *s, const cdr__jstr *by, bool first, bool blank, cdr__jv *out)
{
    static const cdr__jstr newline = { .s = "\n", .n = 1 };
    cdr__jout o = { 0 };
    cdr__jv whole, lines;
    bool ok = cdr__jx_add(x, &o, s) && cdr__jx_add(x, &o, &newline);
    if (!cdr__jout_done(x, &o, ok, &whole)) return false;
    if (!cdr__jx_call(x, cdr__jinja_method(&whole, "splitlines"), &whole, NULL, 0, NULL, NULL, 0, &lines)) return false;
    ok = !first || cdr__jx_add(x, &o, by);
    for (int64_t i = 0; ok && i < lines.u.l->n; i++) {
        const cdr__jstr *line = lines.u.l->v[i].u.s;
        ok = i == 0 || (cdr__jx_add(x, &o, &newline) && ((line->n == 0 && !blank) || cdr__jx_add(x, &o, by)));
        ok = ok && cdr__jx_add(x, &o, line);
    }
    return cdr__jout_done(x, &o, ok, out);
}

static bool f_indent(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s;
    char spaces[65];
    cdr__jstr by = { .s = spaces };
    int64_t width = 4;
    if (!text_of(x, a, &s)) return false;
    if (a->a[0].kind == CDR__J_STRING) by = *a->a[0].u.s;
    else if (!cdr__jarg_int(x, a, 0, 4, &width)) return false;
    if (width < 0 || width > 64) return cdr__jx_fail(x, "jinja.too-much", "an indentation of more than 64");
    if (by.s == spaces) {
        memset(spaces, ' ', sizeof spaces);
        by.n = (size_t)width;
    }
    return indent_lines(x, s, &by, cdr__jarg_bool(a, 1, false), cdr__jarg_bool(a, 2, false), out);
}

/* Written, or joined by ~, such text is text; + with it is jinja_expr.c's to judge, and other filters refuse it (jinja_call.c). */
static bool f_safe(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    if (!f_string(x, a, out)) return false;
    out->safe = true;
    return true;
}

/* ---- of many values -------------------------------------------------------------------------------------------------------- */
static bool f_list(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *items;
    if (!cdr__jv_items(x, a->self, &items)) return false;
    out->kind = CDR__J_LIST;
    out->u.l = items;
    return true;
}

static bool end_of(cdr__jx *x, const cdr__jargs *a, bool last, cdr__jv *out)
{
    const cdr__jlist *items;
    if (!cdr__jv_items(x, a->self, &items)) return false;
    *out = items->n ? items->v[last ? items->n - 1 : 0] : cdr__jv_undefined("an item of an empty sequence");
    return true;
}

static bool f_first(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return end_of(x, a, false, out); }
static bool f_last(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return end_of(x, a, true, out); }

static bool f_items(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    cdr__jlist *l;
    if (a->self->kind == CDR__J_UNDEFINED) return cdr__jv_list(x, 0, CDR__J_LIST, &l, out);
    if (a->self->kind != CDR__J_DICT) return cdr__jx_fail(x, "jinja.type", "items of %s; a mapping is expected", cdr__jv_type(a->self));
    return cdr__jx_call(x, cdr__jinja_method(a->self, "items"), a->self, NULL, 0, NULL, NULL, 0, out);
}

/* The items, or an attribute of each of them. */
static bool with_attribute(cdr__jx *x, const cdr__jv *of, const cdr__jv *attribute, const cdr__jlist **items)
{
    cdr__jlist *l;
    cdr__jv v;
    if (!cdr__jv_items(x, of, items)) return false;
    if (attribute->kind == CDR__J_MISSING || attribute->kind == CDR__J_NONE) return true;
    if (!cdr__jv_list(x, (*items)->n, CDR__J_LIST, &l, &v)) return false;
    for (int64_t i = 0; i < l->n; i++)
        if (!cdr__jx_path(x, &(*items)->v[i], attribute, &l->v[i])) return false;
    *items = l;
    return true;
}

static bool f_join(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *items;
    const cdr__jstr *between = &EMPTY;
    if (a->a[0].kind != CDR__J_MISSING && !cdr__jv_str(x, &a->a[0], &between)) return false;
    return with_attribute(x, a->self, &a->a[1], &items) && cdr__j_join(x, between, items, true, out);
}

static bool f_reverse(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *items;
    cdr__jlist *l;
    cdr__jv v;
    if (!cdr__jv_items(x, a->self, &items) || !cdr__jv_list(x, items->n, CDR__J_LIST, &l, &v)) return false;
    for (int64_t i = 0; i < l->n; i++) l->v[i] = items->v[l->n - 1 - i];
    if (a->self->kind == CDR__J_STRING) return cdr__j_join(x, &EMPTY, l, true, out);
    *out = v;
    return true;
}

/* "a.b.0": members one after another; a number is a place. */
bool cdr__jx_path(cdr__jx *x, const cdr__jv *of, const cdr__jv *path, cdr__jv *out)
{
    *out = *of;
    if (path->kind == CDR__J_INT) return cdr__jx_item(x, of, path, out);
    if (path->kind != CDR__J_STRING) return cdr__jx_fail(x, "jinja.type", "an attribute is named by %s, a text is expected", cdr__jv_type(path));
    const cdr__jstr *s = path->u.s;
    for (size_t i = 0; i <= s->n;) {
        size_t end = i;
        cdr__jv key, of_this = *out;
        while (end < s->n && s->s[end] != '.') end++;
        if (!cdr__jv_string(x, s->s + i, NULL, end - i, &key)) return false;
        if (end > i && strspn(key.u.s->s, "0123456789") == end - i && end - i < 10) key = cdr__jv_int(atoll(key.u.s->s));
        if (!cdr__jx_item(x, &of_this, &key, out)) return false;
        i = end + 1;
    }
    return true;
}

static bool keyword(const cdr__jargs *a, const char *name, cdr__jv *v)
{
    for (int i = 0; i < a->n_key; i++)
        if (strcmp(a->key[i], name) == 0) {
            *v = a->value[i];
            return true;
        }
    return false;
}

static bool name_of(cdr__jx *x, const cdr__jv *v, char out[64])
{
    if (v->kind != CDR__J_STRING || v->u.s->n >= 64) return cdr__jx_fail(x, "jinja.type", "the name of a filter or test is expected");
    memcpy(out, v->u.s->s, v->u.s->n);
    out[v->u.s->n] = 0;
    return true;
}

static bool map_attribute(cdr__jx *x, const cdr__jargs *a, const cdr__jv *attribute, cdr__jv *out)
{
    const cdr__jlist *items;
    cdr__jv otherwise;
    bool has = keyword(a, "default", &otherwise);
    if (a->n > 0 || a->n_key != 1 + has || (attribute->kind != CDR__J_STRING && attribute->kind != CDR__J_INT))
        return cdr__jx_fail(x, "jinja.call", "map takes attribute and default, or a filter and its arguments");
    if (!with_attribute(x, a->self, attribute, &items)) return false;
    for (int64_t i = 0; has && i < items->n; i++)
        if (items->v[i].kind == CDR__J_UNDEFINED) items->v[i] = otherwise;
    out->kind = CDR__J_LIST;
    out->u.l = items;
    return true;
}

static bool f_map(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *items;
    cdr__jlist *l;
    cdr__jv attribute;
    char name[64];
    if (keyword(a, "attribute", &attribute)) return map_attribute(x, a, &attribute, out);
    if (a->n < 1 || !name_of(x, &a->a[0], name)) return cdr__jx_fail(x, "jinja.call", "map needs an attribute or a filter");
    const cdr__jbuiltin *f = cdr__jinja_filter(name);
    if (!f || !f->run || strcmp(name, "safe") == 0) return cdr__jx_fail(x, "jinja.unsupported", "the template uses the filter %s, which is not supported", name);
    if (!cdr__jv_items(x, a->self, &items) || !cdr__jv_list(x, items->n, CDR__J_LIST, &l, out)) return false;
    for (int64_t i = 0; i < l->n; i++)
        if (!cdr__jx_call(x, f, &items->v[i], a->a + 1, a->n - 1, a->key, a->value, a->n_key, &l->v[i])) return false;
    return true;
}

/* select, reject, selectattr, rejectattr: the items for which a test (or truth) is as wanted. */
static bool choose(cdr__jx *x, const cdr__jargs *a, bool attribute, bool wanted, cdr__jv *out)
{
    const cdr__jlist *items;
    const cdr__jbuiltin *test = NULL;
    cdr__jlist *l;
    int at = attribute ? 1 : 0;
    char name[64];
    if (a->n < at) return cdr__jx_fail(x, "jinja.call", "selectattr needs the name of an attribute");
    if (a->n > at) {
        if (!name_of(x, &a->a[at], name)) return false;
        test = cdr__jinja_test(name);
        if (!test) return cdr__jx_fail(x, "jinja.unsupported", "the template uses the test %s, which is not supported", name);
    }
    if (!cdr__jv_items(x, a->self, &items) || !cdr__jv_list(x, items->n, CDR__J_LIST, &l, out)) return false;
    l->n = 0;
    for (int64_t i = 0; i < items->n; i++) {
        cdr__jv v = items->v[i], yes;
        if (attribute && !cdr__jx_path(x, &items->v[i], &a->a[0], &v)) return false;
        yes = cdr__jv_bool(cdr__jv_truth(&v));
        if (test && !cdr__jx_call(x, test, &v, a->a + at + 1, a->n - at - 1, a->key, a->value, a->n_key, &yes)) return false;
        if (cdr__jv_truth(&yes) == wanted) l->v[l->n++] = items->v[i];
    }
    return true;
}

static bool f_select(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return choose(x, a, false, true, out); }
static bool f_reject(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return choose(x, a, false, false, out); }
static bool f_selectattr(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return choose(x, a, true, true, out); }
static bool f_rejectattr(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return choose(x, a, true, false, out); }

/* ---- order ------------------------------------------------------------------------------------------------------------------------ */
/* What an item is ordered by: texts in small letters unless case counts. */
static bool order_key(cdr__jx *x, const cdr__jv *v, bool with_case, cdr__jv *out)
{
    *out = *v;
    return with_case || v->kind != CDR__J_STRING || cdr__j_case(x, v->u.s, false, out);
}

/* A stable merge sort of places by keys; an order that does not exist is an error. reverse: equal items keep their order, as in
 * Python. */
static bool sort_places(cdr__jx *x, const cdr__jv *key, int64_t *place, int64_t n, bool reverse)
{
    int64_t *to = cdr__jx_alloc(x, sizeof *to * (size_t)(n + 1)), *from = place;
    if (!to) return false;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t at = 0; at < n; at += 2 * width) {
            int64_t i = at, middle = CDR_MIN(at + width, n), k = middle, end = CDR_MIN(at + 2 * width, n), o = at;
            while (i < middle && k < end) {
                int order;
                if (!cdr__jv_order(x, &key[from[i]], &key[from[k]], &order)) return false;
                if (order == 2) return cdr__jx_fail(x, "jinja.type", "a NaN has no order");
                to[o++] = (reverse ? order >= 0 : order <= 0) ? from[i++] : from[k++];
            }
            while (i < middle) to[o++] = from[i++];
            while (k < end) to[o++] = from[k++];
        }
        int64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != place) memcpy(place, from, sizeof *place * (size_t)n);
    return true;
}

static bool sorted(cdr__jx *x, const cdr__jlist *items, const cdr__jlist *by, bool with_case, bool reverse, cdr__jv *out)
{
    cdr__jv *key = cdr__jx_alloc(x, sizeof *key * (size_t)(items->n + 1));
    int64_t *place = key ? cdr__jx_alloc(x, sizeof *place * (size_t)(items->n + 1)) : NULL;
    cdr__jlist *l;
    if (!place || !cdr__jv_list(x, items->n, CDR__J_LIST, &l, out)) return false;
    for (int64_t i = 0; i < items->n; i++) {
        place[i] = i;
        if (!order_key(x, &by->v[i], with_case, &key[i])) return false;
    }
    if (!sort_places(x, key, place, items->n, reverse)) return false;
    for (int64_t i = 0; i < items->n; i++) l->v[i] = items->v[place[i]];
    return true;
}

static bool f_sort(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *items, *by;
    if (a->a[2].kind == CDR__J_STRING && memchr(a->a[2].u.s->s, ',', a->a[2].u.s->n))
        return cdr__jx_fail(x, "jinja.unsupported", "sort by several attributes is not supported");
    if (!cdr__jv_items(x, a->self, &items) || !with_attribute(x, a->self, &a->a[2], &by)) return false;
    return sorted(x, items, by, cdr__jarg_bool(a, 1, false), cdr__jarg_bool(a, 0, false), out);
}

static bool f_dictsort(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *by;
    cdr__jv items, which = of_text(&EMPTY);
    cdr__jlist *keys;
    if (!cdr__jarg_text(x, a, 1, &by)) return false;
    if (by) which = of_text(by);
    bool value = cdr__jv_is_text(&which, "value");
    if (by && !value && !cdr__jv_is_text(&which, "key")) return cdr__jx_fail(x, "jinja.call", "dictsort by \"key\" or \"value\"");
    if (a->self->kind != CDR__J_DICT) return cdr__jx_fail(x, "jinja.type", "dictsort of %s; a mapping is expected", cdr__jv_type(a->self));
    if (!f_items(x, a, &items) || !cdr__jv_list(x, items.u.l->n, CDR__J_LIST, &keys, out)) return false;
    for (int64_t i = 0; i < keys->n; i++) keys->v[i] = items.u.l->v[i].u.l->v[value];
    return sorted(x, items.u.l, keys, cdr__jarg_bool(a, 0, false), cdr__jarg_bool(a, 2, false), out);
}

static bool f_unique(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *items, *by;
    cdr__jlist *l;
    cdr__jv seen, key, yes = cdr__jv_bool(true);
    bool with_case = cdr__jarg_bool(a, 0, false);
    if (!cdr__jv_items(x, a->self, &items) || !with_attribute(x, a->self, &a->a[1], &by) || !cdr__jv_dict(x, 0, &seen)) return false;
    if (!cdr__jv_list(x, items->n, CDR__J_LIST, &l, out)) return false;
    l->n = 0;
    for (int64_t i = 0; i < items->n; i++) {
        if (!order_key(x, &by->v[i], with_case, &key)) return false;
        if (cdr__jdict_get(seen.u.d, &key)) continue;
        if (!cdr__jdict_put(x, seen.u.d, &key, &yes)) return false;
        l->v[l->n++] = items->v[i];
    }
    return true;
}

static bool extreme(cdr__jx *x, const cdr__jargs *a, bool max, cdr__jv *out)
{
    const cdr__jlist *items, *by;
    bool with_case = cdr__jarg_bool(a, 0, false);
    cdr__jv best, key;
    int64_t at = 0;
    if (!cdr__jv_items(x, a->self, &items) || !with_attribute(x, a->self, &a->a[1], &by)) return false;
    for (int64_t i = 0; i < items->n; i++) {
        int order = 0;
        if (!order_key(x, &by->v[i], with_case, &key)) return false;
        if (i > 0 && !cdr__jv_order(x, &key, &best, &order)) return false;
        if (i > 0 && (max ? order <= 0 : order >= 0)) continue;
        best = key;
        at = i;
    }
    *out = items->n ? items->v[at] : cdr__jv_undefined("the extreme of an empty sequence");
    return true;
}

static bool f_min(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return extreme(x, a, false, out); }
static bool f_max(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return extreme(x, a, true, out); }

static bool f_sum(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *items;
    if (!with_attribute(x, a->self, &a->a[0], &items)) return false;
    *out = a->a[1].kind == CDR__J_MISSING ? cdr__jv_int(0) : a->a[1];
    if (out->kind == CDR__J_STRING) return cdr__jx_fail(x, "jinja.type", "sum of texts; join them");
    for (int64_t i = 0; i < items->n; i++) {
        cdr__jv sum = *out;
        if (!cdr__jx_binary(x, CDR__T_ADD, &sum, &items->v[i], out)) return false;
    }
    return true;
}

static const cdr__jbuiltin FILTERS[] = {
    { "length", "", f_length, NULL },          { "count", "", f_length, NULL },           { "default", "default_value,boolean", f_default, NULL },
    { "d", "default_value,boolean", f_default, NULL }, { "string", "", f_string, NULL },  { "trim", "chars", f_trim, NULL },
    { "replace", "old,new,count", f_replace, NULL }, { "upper", "", f_upper, NULL },      { "lower", "", f_lower, NULL },
    { "capitalize", "", f_capitalize, NULL },  { "title", "", f_title, NULL },            { "int", "default,base", f_int, NULL },
    { "float", "default", f_float, NULL },     { "abs", "", f_abs, NULL },                { "round", "precision,method", f_round, NULL },
    { "indent", "width,first,blank", f_indent, NULL }, { "safe", "", f_safe, NULL },      { "list", "", f_list, NULL },
    { "first", "", f_first, NULL },            { "last", "", f_last, NULL },              { "items", "", f_items, NULL },
    { "join", "d,attribute", f_join, NULL },   { "reverse", "", f_reverse, NULL },        { "map", "*", f_map, NULL },
    { "select", "*", f_select, NULL },         { "reject", "*", f_reject, NULL },         { "selectattr", "*", f_selectattr, NULL },
    { "rejectattr", "*", f_rejectattr, NULL }, { "sort", "reverse,case_sensitive,attribute", f_sort, NULL },
    { "dictsort", "case_sensitive,by,reverse", f_dictsort, NULL }, { "unique", "case_sensitive,attribute", f_unique, NULL },
    { "min", "case_sensitive,attribute", f_min, NULL }, { "max", "case_sensitive,attribute", f_max, NULL }, { "sum", "attribute,start", f_sum, NULL },
    { "tojson", "ensure_ascii,indent,separators,sort_keys", cdr__jx_tojson, NULL },
};

const cdr__jbuiltin *cdr__jinja_filter(const char *name)
{
    for (int i = 0; i < CDR_COUNT(FILTERS); i++)
        if (strcmp(FILTERS[i].name, name) == 0) return &FILTERS[i];
    return NULL;
}
