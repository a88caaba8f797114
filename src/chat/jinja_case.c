/* jinja_case.c: upper and lower case of text, for the letters whose case is one letter (ASCII, Latin-1, Greek, Cyrillic), and for
 * scripts that have none. Other characters are refused: Python's tables of Unicode are not here, and a guess would train a model
 * on other text than it is served with.
 * Source: Unicode 15 blocks; str.upper and str.lower of Python.
 */
#include "chat/jinja.h"

#include <string.h>

static uint32_t code_at(const char *s, size_t n)
{
    const unsigned char *c = (const unsigned char *)s;
    if (n == 1) return c[0];
    uint32_t code = c[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) code = code << 6 | (c[i] & 0x3fu);
    return code;
}

static bool has_no_case(uint32_t c)
{
    return (c >= 0x80 && c <= 0xa9) || (c >= 0xab && c <= 0xb4) || (c >= 0xb6 && c <= 0xb9) || (c >= 0xbb && c <= 0xbf) || c == 0xd7 || c == 0xf7 ||
           (c >= 0x590 && c <= 0x109f) ||
           (c >= 0x2000 && c <= 0x2070) || (c >= 0x20a0 && c <= 0x20bf) || (c >= 0x2190 && c <= 0x24b5) || (c >= 0x2500 && c <= 0x2bff) || (c >= 0x2e80 && c <= 0xa48f) ||
           (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xf900 && c <= 0xfaff) || (c >= 0xfe00 && c <= 0xfe6f) || (c >= 0x1f000 && c <= 0x1f12f) ||
           (c >= 0x1f190 && c <= 0x1ffff) ||
           (c >= 0x20000 && c <= 0x3134f);
}

/* The other case of a letter, itself where it has none; 0: not known. */
static uint32_t turn(uint32_t c, bool upper)
{
    if (c < 0x80) {
        if (upper) return c >= 'a' && c <= 'z' ? c - 32 : c;
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    }
    if (has_no_case(c)) return c;
    bool big = (c >= 0xc0 && c <= 0xde) || (c >= 0x391 && c <= 0x3a9 && c != 0x3a2) || (c >= 0x400 && c <= 0x42f);
    bool small = (c >= 0xe0 && c <= 0xfe) || (c >= 0x3b1 && c <= 0x3c9 && c != 0x3c2) || (c >= 0x430 && c <= 0x45f);
    if (c == 0x3a3 || (!big && !small)) return 0;                    /* a capital sigma is lowered by its place in a word */
    if (big == upper) return c;
    uint32_t distance = c >= 0x400 && (c <= 0x40f || c >= 0x450) ? 80 : 32;
    return upper ? c - distance : c + distance;
}

static size_t put_utf8(char to[4], uint32_t c)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)((n == 2 ? 0xc0u : n == 3 ? 0xe0u : 0xf0u) | c);
    return n;
}

bool cdr__j_case(cdr__jx *x, const cdr__jstr *s, bool upper, cdr__jv *out)
{
    cdr__jout o = { 0 };
    bool ok = cdr__jx_burn(x, (int64_t)(s->n / 4));
    for (size_t i = 0; ok && i < s->n;) {
        size_t n = cdr__j_char(s->s + i, s->n - i), m;
        uint32_t c = code_at(s->s + i, n), other = turn(c, upper);
        char text[4];
        uint8_t tag[4];
        if (other == 0 && c != 0) ok = cdr__jx_fail(x, "jinja.case", "the case of U+%04X is not known here; the template changes it", c);
        m = put_utf8(text, other);
        memset(tag, s->tag ? s->tag[i] : 0, sizeof tag);
        if (n == 1 && (unsigned char)s->s[i] >= 0x80) {              /* no UTF-8: kept */
            text[0] = s->s[i];
            m = 1;
        }
        cdr__jout_add(&o, text, tag, m);
        i += n;
    }
    return cdr__jout_done(x, &o, ok, out);
}
