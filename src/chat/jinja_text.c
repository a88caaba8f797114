/* jinja_text.c: text in the making with its tags, characters, and values as text: str() and repr() as Python writes them. */
#include "chat/jinja.h"

#include <string.h>

/* ---- bytes and tags --------------------------------------------------------------------------------------------------- */
void cdr__jout_add(cdr__jout *o, const char *s, const uint8_t *tag, size_t n)
{
    static const uint8_t none[64];
    cdr_text_append(&o->s, s, n);
    if (tag) cdr_text_append(&o->tag, (const char *)tag, n);
    else
        for (size_t i = 0; i < n; i += sizeof none) cdr_text_append(&o->tag, (const char *)none, CDR_MIN(sizeof none, n - i));
}

void cdr__jout_str(cdr__jout *o, const cdr__jstr *s) { cdr__jout_add(o, s->s, s->tag, s->n); }

void cdr__jout_fill(cdr__jout *o, const char *s, uint8_t tag)
{
    for (; *s; s++) cdr__jout_add(o, s, &tag, 1);
}

void cdr__jout_free(cdr__jout *o)
{
    cdr_text_free(&o->s);
    cdr_text_free(&o->tag);
}

bool cdr__jout_done(cdr__jx *x, cdr__jout *o, bool ok, cdr__jv *out)
{
    bool tagged = false;
    for (size_t i = 0; i < o->tag.n && !tagged; i++) tagged = o->tag.s[i] != 0;
    if (ok) ok = cdr__jv_string(x, o->s.n ? o->s.s : "", tagged ? (const uint8_t *)o->tag.s : NULL, o->s.n, out);
    cdr__jout_free(o);
    return ok;
}

/* ---- characters -------------------------------------------------------------------------------------------------------------- */
size_t cdr__j_char(const char *s, size_t n)
{
    int k = cdr_utf8_length(s, n);
    return k > 0 ? (size_t)k : 1;
}

static uint32_t code_at(const char *s, size_t n)
{
    const unsigned char *c = (const unsigned char *)s;
    if (n == 1) return c[0];
    uint32_t code = c[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) code = code << 6 | (c[i] & 0x3fu);
    return code;
}

/* White space as str.isspace of Python has it. */
size_t cdr__j_space(const char *s, size_t n)
{
    unsigned char c = (unsigned char)s[0];
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    int k = cdr_utf8_length(s, n);
    if (k < 2) return 0;
    uint32_t code = code_at(s, (size_t)k);
    bool space = code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
                 code == 0x205f || code == 0x3000;
    return space ? (size_t)k : 0;
}

int64_t cdr__j_length(const cdr__jstr *s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->n; n++) i += cdr__j_char(s->s + i, s->n - i);
    return n;
}

size_t cdr__j_offset(const cdr__jstr *s, int64_t chars)
{
    size_t i = 0;
    for (int64_t k = 0; k < chars && i < s->n; k++) i += cdr__j_char(s->s + i, s->n - i);
    return i;
}

/* ---- repr -------------------------------------------------------------------------------------------------------------------------- */
/* Letters of whole blocks that Python prints as they are. What lies elsewhere beyond Latin-1 may be printed or escaped; the
 * tables of Unicode that decide it are not here, so it is refused. */
static bool is_printable(uint32_t c)
{
    return (c >= 0xa1 && c <= 0x24f && c != 0xad) || (c >= 0x391 && c <= 0x3a1) || (c >= 0x3a3 && c <= 0x3e1) || (c >= 0x400 && c <= 0x52f) ||
           (c >= 0x5d0 && c <= 0x5ea) ||
           (c >= 0x621 && c <= 0x64a) || (c >= 0x2010 && c <= 0x2027) || (c >= 0x2030 && c <= 0x205e) || (c >= 0x20a0 && c <= 0x20bd) || (c >= 0x2190 && c <= 0x23ff) ||
           (c >= 0x2500 && c <= 0x27ff) || (c >= 0x3001 && c <= 0x303f) || (c >= 0x3041 && c <= 0x3096) || (c >= 0x30a0 && c <= 0x30ff) || (c >= 0x4e00 && c <= 0x9fa5) ||
           (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xff01 && c <= 0xff5e) || (c >= 0x1f300 && c <= 0x1f64f);
}

static bool repr_string(cdr__jx *x, cdr__jout *o, const cdr__jstr *s)
{
    bool single = s->n && memchr(s->s, '\'', s->n), twice = s->n && memchr(s->s, '"', s->n);
    char quote = single && !twice ? '"' : '\'';
    cdr__jout_add(o, &quote, NULL, 1);
    for (size_t i = 0; i < s->n;) {
        size_t n = cdr__j_char(s->s + i, s->n - i);
        uint32_t c = code_at(s->s + i, n);
        char text[12] = "";
        if (c == '\\' || c == (uint32_t)quote) (void)snprintf(text, sizeof text, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t') (void)snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad) (void)snprintf(text, sizeof text, "\\x%02x", c);
        else if (c > 0x7f && !is_printable(c))
            return cdr__jx_fail(x, "jinja.repr", "a list or mapping is printed that holds the character U+%04X; how Python prints it is not known here", c);
        if (text[0]) cdr__jout_fill(o, text, s->tag ? s->tag[i] : 0);
        else cdr__jout_add(o, s->s + i, s->tag ? s->tag + i : NULL, n);
        i += n;
    }
    cdr__jout_add(o, &quote, NULL, 1);
    return true;
}

static bool repr_scalar(cdr__jx *x, cdr__jout *o, const cdr__jv *v)
{
    cdr_text t = { 0 };
    switch (v->kind) {
        case CDR__J_NONE: cdr__jout_fill(o, "None", 0); return true;
        case CDR__J_BOOL: cdr__jout_fill(o, v->u.b ? "True" : "False", 0); return true;
        case CDR__J_INT: cdr_text_printf(&t, "%lld", (long long)v->u.i); break;
        case CDR__J_FLOAT:
            cdr__py_real(&t, v->u.f);
            if (strcmp(t.s, "NaN") == 0 || strstr(t.s, "Inf")) {
                bool minus = t.s[0] == '-', nan = t.s[0] == 'N';
                t.n = 0;
                cdr_text_printf(&t, "%s", nan ? "nan" : minus ? "-inf" : "inf");
            }
            break;
        default: return cdr__jx_fail(x, "jinja.type", "%s cannot be printed", cdr__jv_type(v));
    }
    cdr__jout_add(o, t.s, NULL, t.n);
    cdr_text_free(&t);
    return true;
}

static bool repr(cdr__jx *x, cdr__jout *o, const cdr__jv *v);

static bool repr_members(cdr__jx *x, cdr__jout *o, const cdr__jv *v)
{
    bool dict = v->kind == CDR__J_DICT, tuple = v->kind == CDR__J_TUPLE;
    int64_t n = dict ? v->u.d->n : v->u.l->n;
    cdr__jout_fill(o, dict ? "{" : tuple ? "(" : "[", 0);
    for (int64_t i = 0; i < n; i++) {
        if (i) cdr__jout_fill(o, ", ", 0);
        if (dict) {
            if (!repr(x, o, &v->u.d->key[i])) return false;
            cdr__jout_fill(o, ": ", 0);
        }
        if (!repr(x, o, dict ? &v->u.d->value[i] : &v->u.l->v[i])) return false;
    }
    cdr__jout_fill(o, dict ? "}" : tuple ? (n == 1 ? ",)" : ")") : "]", 0);
    return true;
}

static bool repr(cdr__jx *x, cdr__jout *o, const cdr__jv *v)
{
    if (!cdr__jx_burn(x, 4)) return false;
    if (o->s.n > x->bytes_max) return cdr__jx_fail(x, "jinja.too-much", "a printed value of more than %zu MiB", x->bytes_max >> 20);
    if (v->kind == CDR__J_STRING) return cdr__jx_burn(x, (int64_t)v->u.s->n / 8) && repr_string(x, o, v->u.s);
    if (v->kind == CDR__J_UNDEFINED) {
        cdr__jout_fill(o, "Undefined", 0);
        return true;
    }
    if (v->kind != CDR__J_DICT && !cdr__jv_is_list(v)) return repr_scalar(x, o, v);
    if (x->depth > 800) return cdr__jx_fail(x, "jinja.too-much", "a value nested too deep to be printed");
    x->depth++;
    bool ok = repr_members(x, o, v);
    x->depth--;
    return ok;
}

bool cdr__jv_str(cdr__jx *x, const cdr__jv *v, const cdr__jstr **s)
{
    static const cdr__jstr empty = { .s = "" };
    cdr__jv out;
    if (v->kind == CDR__J_STRING) {
        *s = v->u.s;
        return true;
    }
    if (v->kind == CDR__J_UNDEFINED) {
        *s = &empty;
        return true;
    }
    cdr__jout o = { 0 };
    bool ok = repr(x, &o, v);
    if (!cdr__jout_done(x, &o, ok, &out)) return false;
    *s = out.u.s;
    return true;
}
