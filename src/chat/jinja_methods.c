/* jinja_methods.c: methods of texts, mappings and lists, as Python's. A name that Python's type has and that is not here is
 * refused, rather than taken for an undefined value.
 */
#include "chat/jinja.h"

#include <string.h>

static const cdr__jstr *self_text(const cdr__jargs *a) { return a->self->u.s; }

/* ---- text: what filters use too -------------------------------------------------------------------------------------------- */
bool cdr__jx_add(cdr__jx *x, cdr__jout *o, const cdr__jstr *s)
{
    if (o->s.n + s->n > x->bytes_max - x->bytes) return cdr__jx_fail(x, "jinja.too-much", "a text of more than %zu MiB", x->bytes_max >> 20);
    if (!cdr__jx_burn(x, (int64_t)(s->n / 16))) return false;
    cdr__jout_str(o, s);
    return true;
}

static cdr__jstr part_of(const cdr__jstr *s, size_t from, size_t n) { return (cdr__jstr){ .s = s->s + from, .tag = s->tag ? s->tag + from : NULL, .n = n }; }

/* Offset of what in s from `from` on; SIZE_MAX: not there. */
static size_t find_from(const cdr__jstr *s, const cdr__jstr *what, size_t from)
{
    if (what->n == 0) return from;
    if (from >= s->n) return SIZE_MAX;
    const char *at = memmem(s->s + from, s->n - from, what->s, what->n);
    return at ? (size_t)(at - s->s) : SIZE_MAX;
}

/* Steps of find_last, which compares at every place: paid before. */
static bool burn_last(cdr__jx *x, const cdr__jstr *s, const cdr__jstr *what) { return cdr__jx_burn(x, (int64_t)((s->n / 16 + 1) * (CDR_MIN(what->n, s->n) / 16 + 1))); }

static size_t find_last(const cdr__jstr *s, const cdr__jstr *what, size_t before)
{
    for (size_t end = CDR_MIN(before, s->n); end >= what->n; end--) {
        if (what->n == 0 || memcmp(s->s + end - what->n, what->s, what->n) == 0) return end - what->n;
        if (end == 0) break;
    }
    return SIZE_MAX;
}

bool cdr__j_replace(cdr__jx *x, const cdr__jstr *s, const cdr__jstr *old, const cdr__jstr *by, int64_t count, cdr__jv *out)
{
    cdr__jout o = { 0 };
    size_t from = 0;
    bool ok = true;
    if (old->n == 0) return cdr__jx_fail(x, "jinja.unsupported", "replace of an empty text is not supported");
    for (int64_t k = 0; ok && (count < 0 || k < count); k++) {
        size_t at = find_from(s, old, from);
        if (at == SIZE_MAX) break;
        cdr__jstr before = part_of(s, from, at - from);
        ok = cdr__jx_add(x, &o, &before) && cdr__jx_add(x, &o, by) && cdr__jx_burn(x, 1);
        from = at + old->n;
    }
    cdr__jstr rest = part_of(s, from, s->n - from);
    ok = ok && cdr__jx_add(x, &o, &rest) && cdr__jx_burn(x, (int64_t)(s->n / 16));
    return cdr__jout_done(x, &o, ok, out);
}

static size_t strip_char(const cdr__jstr *s, size_t at, const cdr__jstr *chars)
{
    if (!chars) return cdr__j_space(s->s + at, s->n - at);
    size_t n = cdr__j_char(s->s + at, s->n - at);
    for (size_t i = 0; i < chars->n;) {
        size_t k = cdr__j_char(chars->s + i, chars->n - i);
        if (k == n && memcmp(chars->s + i, s->s + at, n) == 0) return n;
        i += k;
    }
    return 0;
}

bool cdr__j_strip(cdr__jx *x, const cdr__jstr *s, const cdr__jstr *chars, bool left, bool right, cdr__jv *out)
{
    size_t from = 0, to = s->n;
    if (!cdr__jx_burn(x, (int64_t)(s->n / 16))) return false;
    while (left && from < to) {
        size_t k = strip_char(s, from, chars);
        if (k == 0) break;
        from += k;
    }
    while (right && to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)s->s[at] & 0xc0) == 0x80 && to - at < 4) at--;
        if (at + cdr__j_char(s->s + at, s->n - at) != to) at = to - 1;       /* no UTF-8: a byte is a character */
        size_t k = strip_char(s, at, chars);
        if (k == 0 || at + k != to) break;
        to = at;
    }
    return cdr__jv_view(x, s, from, to - from, out);
}

bool cdr__j_join(cdr__jx *x, const cdr__jstr *between, const cdr__jlist *items, bool any, cdr__jv *out)
{
    cdr__jout o = { 0 };
    bool ok = true;
    for (int64_t i = 0; ok && i < items->n; i++) {
        const cdr__jstr *s = NULL;
        if (!any && items->v[i].kind != CDR__J_STRING) ok = cdr__jx_fail(x, "jinja.type", "join: item %lld is %s, no text", (long long)i, cdr__jv_type(&items->v[i]));
        ok = ok && cdr__jv_str(x, &items->v[i], &s) && (i == 0 || cdr__jx_add(x, &o, between)) && cdr__jx_add(x, &o, s) && cdr__jx_burn(x, 1);
    }
    return cdr__jout_done(x, &o, ok, out);
}

/* ---- methods of texts --------------------------------------------------------------------------------------------------------- */
static bool strip_with(cdr__jx *x, const cdr__jargs *a, bool left, bool right, cdr__jv *out)
{
    const cdr__jstr *chars;
    return cdr__jarg_text(x, a, 0, &chars) && cdr__j_strip(x, self_text(a), chars, left, right, out);
}

static bool s_strip(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return strip_with(x, a, true, true, out); }
static bool s_lstrip(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return strip_with(x, a, true, false, out); }
static bool s_rstrip(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return strip_with(x, a, false, true, out); }
static bool s_upper(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return cdr__j_case(x, self_text(a), true, out); }
static bool s_lower(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return cdr__j_case(x, self_text(a), false, out); }

static bool s_capitalize(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a);
    size_t n = cdr__j_offset(s, 1);
    cdr__jstr head = part_of(s, 0, n), tail = part_of(s, n, s->n - n);
    cdr__jv first, rest;
    cdr__jout o = { 0 };
    bool ok = cdr__j_case(x, &head, true, &first) && cdr__j_case(x, &tail, false, &rest);
    ok = ok && cdr__jx_add(x, &o, first.u.s) && cdr__jx_add(x, &o, rest.u.s);
    return cdr__jout_done(x, &o, ok, out);
}

static bool need(cdr__jx *x, const cdr__jargs *a, int i, const char *of, const cdr__jstr **s)
{
    if (!cdr__jarg_text(x, a, i, s)) return false;
    return *s ? true : cdr__jx_fail(x, "jinja.call", "%s needs a text", of);
}

static bool s_replace(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *old, *by;
    int64_t count;
    return need(x, a, 0, "replace", &old) && need(x, a, 1, "replace", &by) && cdr__jarg_int(x, a, 2, -1, &count) && cdr__j_replace(x, self_text(a), old, by, count, out);
}

/* startswith and endswith: a text, or a tuple of them. */
static bool affix(cdr__jx *x, const cdr__jargs *a, bool at_end, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a);
    const cdr__jv *what = &a->a[0];
    int64_t n = what->kind == CDR__J_TUPLE ? what->u.l->n : 1;
    bool yes = false;
    for (int64_t i = 0; i < n; i++) {
        const cdr__jv *one = what->kind == CDR__J_TUPLE ? &what->u.l->v[i] : what;
        if (one->kind != CDR__J_STRING) return cdr__jx_fail(x, "jinja.type", "%s needs a text", at_end ? "endswith" : "startswith");
        size_t k = one->u.s->n;
        yes = yes || (k <= s->n && memcmp(s->s + (at_end ? s->n - k : 0), one->u.s->s, k) == 0);
    }
    *out = cdr__jv_bool(yes);
    return true;
}

static bool s_startswith(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return affix(x, a, false, out); }
static bool s_endswith(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return affix(x, a, true, out); }

static bool position(cdr__jx *x, const cdr__jargs *a, bool last, bool must, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a), *what;
    if (!need(x, a, 0, "find", &what) || !cdr__jx_burn(x, (int64_t)(s->n / 8))) return false;
    if (last && !burn_last(x, s, what)) return false;
    size_t at = last ? find_last(s, what, s->n) : find_from(s, what, 0);
    if (at == SIZE_MAX && must) return cdr__jx_fail(x, "jinja.type", "index: the text is not there");
    cdr__jstr before = part_of(s, 0, at == SIZE_MAX ? 0 : at);
    *out = cdr__jv_int(at == SIZE_MAX ? -1 : cdr__j_length(&before));
    return true;
}

static bool s_find(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return position(x, a, false, false, out); }
static bool s_rfind(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return position(x, a, true, false, out); }
static bool s_index(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return position(x, a, false, true, out); }
static bool s_rindex(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return position(x, a, true, true, out); }

static bool s_count(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a), *what;
    if (!need(x, a, 0, "count", &what) || !cdr__jx_burn(x, (int64_t)(s->n / 8))) return false;
    int64_t n = 0;
    if (what->n == 0) n = cdr__j_length(s) + 1;
    for (size_t at = 0; what->n > 0 && (at = find_from(s, what, at)) != SIZE_MAX; at += what->n) n++;
    *out = cdr__jv_int(n);
    return true;
}

static bool s_join(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *items;
    if (a->a[0].kind == CDR__J_UNDEFINED || a->a[0].kind == CDR__J_MISSING) return cdr__jx_fail(x, "jinja.type", "join needs a list");
    return cdr__jv_items(x, &a->a[0], &items) && cdr__j_join(x, self_text(a), items, false, out);
}

static bool s_remove(cdr__jx *x, const cdr__jargs *a, bool suffix, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a), *what;
    if (!need(x, a, 0, "removeprefix", &what)) return false;
    bool has = what->n > 0 && what->n <= s->n && memcmp(s->s + (suffix ? s->n - what->n : 0), what->s, what->n) == 0;
    return cdr__jv_view(x, s, has && !suffix ? what->n : 0, s->n - (has ? what->n : 0), out);
}

static bool s_removeprefix(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return s_remove(x, a, false, out); }
static bool s_removesuffix(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return s_remove(x, a, true, out); }

/* ---- splitting ---------------------------------------------------------------------------------------------------------------------- */
typedef struct { size_t from, n; } cut;
typedef struct { cdr__jx *x; cut *v; int64_t n, cap; } cuts;

static bool add_cut(cuts *c, size_t from, size_t n)
{
    if (c->n == c->cap) {
        int64_t cap = CDR_MAX((int64_t)8, c->cap * 2);
        cut *more = cdr__jx_alloc(c->x, sizeof *more * (size_t)cap);
        if (!more) return false;
        if (c->n) memcpy(more, c->v, sizeof *more * (size_t)c->n);
        c->v = more;
        c->cap = cap;
    }
    c->v[c->n++] = (cut){ .from = from, .n = n };
    return true;
}

static bool cuts_done(cuts *c, const cdr__jstr *s, bool reverse, cdr__jv *out)
{
    cdr__jlist *l;
    if (!cdr__jv_list(c->x, c->n, CDR__J_LIST, &l, out)) return false;
    for (int64_t i = 0; i < c->n; i++) {
        const cut *one = &c->v[reverse ? c->n - 1 - i : i];
        if (!cdr__jv_view(c->x, s, one->from, one->n, &l->v[i])) return false;
    }
    return true;
}

static size_t space_at(const cdr__jstr *s, size_t at) { return at < s->n ? cdr__j_space(s->s + at, s->n - at) : 0; }

/* Words between white space; behind the last cut the rest, with the white space at its end. */
static bool split_words(cdr__jx *x, const cdr__jstr *s, int64_t max, cdr__jv *out)
{
    cuts c = { .x = x };
    size_t at = 0;
    while (at < s->n) {
        while (space_at(s, at)) at += space_at(s, at);
        if (at >= s->n) break;
        size_t end = max >= 0 && c.n >= max ? s->n : at;
        while (end < s->n && !space_at(s, end)) end += cdr__j_char(s->s + end, s->n - end);
        if (!add_cut(&c, at, end - at)) return false;
        at = end;
    }
    return cuts_done(&c, s, false, out);
}

static bool s_split(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a), *sep;
    int64_t max;
    cuts c = { .x = x };
    if (!cdr__jarg_text(x, a, 0, &sep) || !cdr__jarg_int(x, a, 1, -1, &max) || !cdr__jx_burn(x, (int64_t)(s->n / 8))) return false;
    if (!sep) return split_words(x, s, max, out);
    if (sep->n == 0) return cdr__jx_fail(x, "jinja.type", "split with an empty separator");
    size_t from = 0, at;
    while ((max < 0 || c.n < max) && (at = find_from(s, sep, from)) != SIZE_MAX) {
        if (!add_cut(&c, from, at - from)) return false;
        from = at + sep->n;
    }
    return add_cut(&c, from, s->n - from) && cuts_done(&c, s, false, out);
}

static bool s_rsplit(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a), *sep;
    int64_t max;
    cuts c = { .x = x };
    if (!cdr__jarg_text(x, a, 0, &sep) || !cdr__jarg_int(x, a, 1, -1, &max) || (sep && !burn_last(x, s, sep))) return false;
    if (!sep && max < 0) return split_words(x, s, max, out);
    if (!sep) return cdr__jx_fail(x, "jinja.unsupported", "rsplit at white space a number of times is not supported");
    if (sep->n == 0) return cdr__jx_fail(x, "jinja.type", "rsplit with an empty separator");
    size_t end = s->n, at;
    while ((max < 0 || c.n < max) && (at = find_last(s, sep, end)) != SIZE_MAX) {
        if (!add_cut(&c, at + sep->n, end - at - sep->n)) return false;
        end = at;
    }
    return add_cut(&c, 0, end) && cuts_done(&c, s, true, out);
}

static size_t line_end(const cdr__jstr *s, size_t at)
{
    unsigned char c = (unsigned char)s->s[at];
    if (c == '\r' && at + 1 < s->n && s->s[at + 1] == '\n') return 2;
    if ((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e)) return 1;
    if (s->n - at >= 2 && memcmp(s->s + at, "\xc2\x85", 2) == 0) return 2;
    return s->n - at >= 3 && (memcmp(s->s + at, "\xe2\x80\xa8", 3) == 0 || memcmp(s->s + at, "\xe2\x80\xa9", 3) == 0) ? 3 : 0;
}

static bool s_splitlines(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a);
    cuts c = { .x = x };
    bool keep = cdr__jarg_bool(a, 0, false);
    size_t from = 0;
    if (!cdr__jx_burn(x, (int64_t)(s->n / 8))) return false;
    for (size_t i = 0; i < s->n;) {
        size_t k = line_end(s, i);
        if (k && !add_cut(&c, from, i - from + (keep ? k : 0))) return false;
        i += k ? k : 1;
        if (k) from = i;
    }
    if (from < s->n && !add_cut(&c, from, s->n - from)) return false;
    return cuts_done(&c, s, false, out);
}

static bool cut_in_three(cdr__jx *x, const cdr__jargs *a, bool last, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a), *sep;
    cdr__jlist *l;
    if (!need(x, a, 0, "partition", &sep) || !cdr__jx_burn(x, (int64_t)s->n / 8) || (last && !burn_last(x, s, sep))) return false;
    if (sep->n == 0) return cdr__jx_fail(x, "jinja.type", "partition with an empty separator");
    size_t at = last ? find_last(s, sep, s->n) : find_from(s, sep, 0);
    bool has = at != SIZE_MAX;
    if (!has) at = last ? 0 : s->n;
    if (!cdr__jv_list(x, 3, CDR__J_TUPLE, &l, out)) return false;
    size_t behind = has ? at + sep->n : at;
    return cdr__jv_view(x, s, 0, at, &l->v[0]) && cdr__jv_view(x, s, at, behind - at, &l->v[1]) && cdr__jv_view(x, s, behind, s->n - behind, &l->v[2]);
}

static bool s_partition(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return cut_in_three(x, a, false, out); }
static bool s_rpartition(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return cut_in_three(x, a, true, out); }

/* ---- kinds of characters: of ASCII only ------------------------------------------------------------------------------------------------ */
static bool all_of(cdr__jx *x, const cdr__jargs *a, const char *what, cdr__jv *out)
{
    const cdr__jstr *s = self_text(a);
    bool yes = s->n > 0;
    if (!cdr__jx_burn(x, (int64_t)(s->n / 16))) return false;
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->s[i];
        bool digit = c >= '0' && c <= '9', letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (c >= 0x80) return cdr__jx_fail(x, "jinja.unsupported", "%s of text beyond ASCII is not supported", what);
        yes = yes && (strcmp(what, "isdigit") == 0 ? digit : strcmp(what, "isalpha") == 0 ? letter : strcmp(what, "isalnum") == 0 ? digit || letter
            : cdr__j_space(s->s + i, 1) > 0);
    }
    *out = cdr__jv_bool(yes);
    return true;
}

static bool s_isdigit(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return all_of(x, a, "isdigit", out); }
static bool s_isalpha(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return all_of(x, a, "isalpha", out); }
static bool s_isalnum(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return all_of(x, a, "isalnum", out); }
static bool s_isspace(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return all_of(x, a, "isspace", out); }

/* ---- mappings, lists, loops ---------------------------------------------------------------------------------------------------------------- */
static bool d_get(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    if (a->a[0].kind == CDR__J_MISSING) return cdr__jx_fail(x, "jinja.call", "get needs a key");
    const cdr__jv *v = cdr__jdict_get(a->self->u.d, &a->a[0]);
    *out = v ? *v : a->a[1].kind == CDR__J_MISSING ? cdr__jv_none() : a->a[1];
    return true;
}

static bool members(cdr__jx *x, const cdr__jdict *d, bool keys, bool values, cdr__jv *out)
{
    cdr__jlist *l, *pair;
    if (!cdr__jv_list(x, d->n, CDR__J_LIST, &l, out)) return false;
    for (int64_t i = 0; i < d->n; i++) {
        if (keys != values) {
            l->v[i] = keys ? d->key[i] : d->value[i];
            continue;
        }
        if (!cdr__jv_list(x, 2, CDR__J_TUPLE, &pair, &l->v[i])) return false;
        pair->v[0] = d->key[i];
        pair->v[1] = d->value[i];
    }
    return true;
}

static bool d_items(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return members(x, a->self->u.d, true, true, out); }
static bool d_keys(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return members(x, a->self->u.d, true, false, out); }
static bool d_values(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return members(x, a->self->u.d, false, true, out); }
static bool d_copy(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { (void)x; *out = *a->self; return true; }

static bool l_index(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *l = a->self->u.l;
    for (int64_t i = 0; i < l->n; i++) {
        bool equal;
        if (!cdr__jv_equal(x, &l->v[i], &a->a[0], &equal)) return false;
        if (!equal) continue;
        *out = cdr__jv_int(i);
        return true;
    }
    return cdr__jx_fail(x, "jinja.type", "index: the value is not in the list");
}

static bool l_count(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *l = a->self->u.l;
    int64_t n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        bool equal;
        if (!cdr__jv_equal(x, &l->v[i], &a->a[0], &equal)) return false;
        n += equal;
    }
    *out = cdr__jv_int(n);
    return true;
}

static bool loop_cycle(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    if (a->n == 0 || a->n_key) return cdr__jx_fail(x, "jinja.call", "loop.cycle needs values");
    *out = a->a[a->self->u.loop->i % a->n];
    return true;
}

static bool loop_changed(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    cdr__jloop *l = a->self->u.loop;
    cdr__jlist *now;
    cdr__jv v;
    bool same = false;
    if (!cdr__jv_list(x, a->n, CDR__J_TUPLE, &now, &v)) return false;
    for (int i = 0; i < a->n; i++) now->v[i] = a->a[i];
    if (l->changed_before && !cdr__jv_equal(x, &l->changed, &v, &same)) return false;
    l->changed_before = true;
    l->changed = v;
    *out = cdr__jv_bool(!same);
    return true;
}

static const char no_change[] = ": a template cannot change values (Jinja's sandbox forbids it too); build a new list with +";
static const cdr__jbuiltin TEXT[] = {
    { "strip", "chars", s_strip, NULL }, { "lstrip", "chars", s_lstrip, NULL }, { "rstrip", "chars", s_rstrip, NULL }, { "split", "sep,maxsplit", s_split, NULL },
    { "rsplit", "sep,maxsplit", s_rsplit, NULL }, { "splitlines", "keepends", s_splitlines, NULL }, { "startswith", "prefix", s_startswith, NULL },
    { "endswith", "suffix", s_endswith, NULL }, { "upper", "", s_upper, NULL }, { "lower", "", s_lower, NULL }, { "capitalize", "", s_capitalize, NULL },
    { "replace", "old,new,count", s_replace, NULL }, { "find", "sub", s_find, NULL }, { "rfind", "sub", s_rfind, NULL }, { "index", "sub", s_index, NULL },
    { "rindex", "sub", s_rindex, NULL }, { "count", "sub", s_count, NULL }, { "join", "iterable", s_join, NULL }, { "partition", "sep", s_partition, NULL },
    { "rpartition", "sep", s_rpartition, NULL }, { "removeprefix", "prefix", s_removeprefix, NULL }, { "removesuffix", "suffix", s_removesuffix, NULL },
    { "isdigit", "", s_isdigit, NULL }, { "isalpha", "", s_isalpha, NULL }, { "isalnum", "", s_isalnum, NULL }, { "isspace", "", s_isspace, NULL },
    { "casefold", NULL, NULL, "" }, { "center", NULL, NULL, "" }, { "encode", NULL, NULL, "" }, { "expandtabs", NULL, NULL, "" },
    { "format", NULL, NULL, "; join the texts with ~" },
    { "format_map", NULL, NULL, "" }, { "isascii", NULL, NULL, "" }, { "isdecimal", NULL, NULL, "" }, { "isidentifier", NULL, NULL, "" }, { "islower", NULL, NULL, "" },
    { "isnumeric", NULL, NULL, "" }, { "isprintable", NULL, NULL, "" }, { "istitle", NULL, NULL, "" }, { "isupper", NULL, NULL, "" }, { "ljust", NULL, NULL, "" },
    { "maketrans", NULL, NULL, "" }, { "rjust", NULL, NULL, "" }, { "swapcase", NULL, NULL, "" }, { "title", NULL, NULL, "; the filter title is" },
    { "translate", NULL, NULL, "" },
    { "zfill", NULL, NULL, "" }, { NULL, NULL, NULL, NULL },
};
static const cdr__jbuiltin DICT[] = {
    { "get", "key,default", d_get, NULL }, { "items", "", d_items, NULL }, { "keys", "", d_keys, NULL }, { "values", "", d_values, NULL }, { "copy", "", d_copy, NULL },
    { "clear", NULL, NULL, no_change }, { "fromkeys", NULL, NULL, "" }, { "pop", NULL, NULL, no_change }, { "popitem", NULL, NULL, no_change },
    { "setdefault", NULL, NULL, no_change }, { "update", NULL, NULL, no_change }, { NULL, NULL, NULL, NULL },
};
static const cdr__jbuiltin LIST[] = {
    { "index", "value", l_index, NULL }, { "count", "value", l_count, NULL }, { "copy", "", d_copy, NULL }, { "append", NULL, NULL, no_change },
    { "clear", NULL, NULL, no_change },
    { "extend", NULL, NULL, no_change }, { "insert", NULL, NULL, no_change }, { "pop", NULL, NULL, no_change }, { "remove", NULL, NULL, no_change },
    { "reverse", NULL, NULL, no_change }, { "sort", NULL, NULL, no_change }, { NULL, NULL, NULL, NULL },
};
static const cdr__jbuiltin NUMBER[] = {
    { "real", NULL, NULL, "" }, { "imag", NULL, NULL, "" }, { "numerator", NULL, NULL, "" }, { "denominator", NULL, NULL, "" }, { "conjugate", NULL, NULL, "" },
    { "bit_length", NULL, NULL, "" }, { "bit_count", NULL, NULL, "" }, { "to_bytes", NULL, NULL, "" }, { "from_bytes", NULL, NULL, "" },
    { "as_integer_ratio", NULL, NULL, "" },
    { "is_integer", NULL, NULL, "" }, { "hex", NULL, NULL, "" }, { "fromhex", NULL, NULL, "" }, { NULL, NULL, NULL, NULL },
};
static const cdr__jbuiltin LOOP[] = { { "cycle", "*", loop_cycle, NULL }, { "changed", "*", loop_changed, NULL }, { NULL, NULL, NULL, NULL } };

const cdr__jbuiltin *cdr__jinja_method(const cdr__jv *self, const char *name)
{
    static const cdr__jbuiltin hidden = { "__", NULL, NULL, ": names that begin with __ are refused" }, inner = { "macro", NULL, NULL, "" };
    const cdr__jbuiltin *t = NULL;
    if (name[0] == '_' && name[1] == '_') return &hidden;
    if (self->kind == CDR__J_STRING) t = TEXT;
    else if (self->kind == CDR__J_DICT) t = DICT;
    else if (cdr__jv_is_list(self)) t = LIST;
    else if (cdr__jv_is_number(self)) t = NUMBER;
    else if (self->kind == CDR__J_LOOP) t = LOOP;
    else if (self->kind == CDR__J_MACRO || self->kind == CDR__J_METHOD || self->kind == CDR__J_FUNCTION) return &inner;
    for (; t && t->name; t++)
        if (strcmp(t->name, name) == 0) return t;
    return NULL;
}
