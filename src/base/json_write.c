/* json_write.c: compact JSON into a text. What it writes is always valid: bytes that are no UTF-8 (a sample that ends
 * inside a character) become U+FFFD, and a number that is not finite becomes null.
 */
#include "base/base.h"
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 64 };

static void put(cdr_jw *w, const char *s) { cdr_text_append(w->t, s, strlen(s)); }

static void put_string(cdr_jw *w, const char *s)
{
    size_t n = strlen(s), from = 0;
    put(w, "\"");
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        char escape[8] = "";
        size_t bytes = 1;
        if (c == '"' || c == '\\') snprintf(escape, sizeof escape, "\\%c", c);
        else if (c == '\n') snprintf(escape, sizeof escape, "\\n");
        else if (c == '\t') snprintf(escape, sizeof escape, "\\t");
        else if (c == '\r') snprintf(escape, sizeof escape, "\\r");
        else if (c < 0x20) snprintf(escape, sizeof escape, "\\u%04x", c);
        else if (c >= 0x80) {
            bytes = (size_t)cdr_utf8_length(s + i, n - i);
            if (bytes == 0) {
                snprintf(escape, sizeof escape, "\xef\xbf\xbd");
                bytes = 1;
            }
        }
        if (escape[0]) {
            cdr_text_append(w->t, s + from, i - from);
            put(w, escape);
            from = i + bytes;
        }
        i += bytes;
    }
    cdr_text_append(w->t, s + from, n - from);
    put(w, "\"");
}

/* Comma and key before an item. At level 0 documents follow one another, one a line say: no comma there. */
static void put_head(cdr_jw *w, const char *key)
{
    uint64_t bit = 1ull << w->depth;
    if (w->depth > 0 && (w->has_item & bit)) put(w, ",");
    w->has_item |= bit;
    if (!key) return;
    put_string(w, key);
    put(w, ":");
}

void cdr_jw_begin(cdr_jw *w, const char *key, char kind)
{
    CDR_CHECK((kind == '{' || kind == '[') && w->depth < LEVELS - 1);
    put_head(w, key);
    cdr_text_append(w->t, &kind, 1);
    w->depth++;
    w->has_item &= ~(1ull << w->depth);
}

void cdr_jw_end(cdr_jw *w, char kind)
{
    CDR_CHECK((kind == '}' || kind == ']') && w->depth > 0);
    cdr_text_append(w->t, &kind, 1);
    w->depth--;
}

void cdr_jw_str(cdr_jw *w, const char *key, const char *s)
{
    put_head(w, key);
    if (s) put_string(w, s);
    else put(w, "null");
}

void cdr_jw_int(cdr_jw *w, const char *key, int64_t x)
{
    put_head(w, key);
    cdr_text_printf(w->t, "%lld", (long long)x);
}

void cdr_jw_u64hex(cdr_jw *w, const char *key, uint64_t x)
{
    put_head(w, key);
    cdr_text_printf(w->t, "\"%016llx\"", (unsigned long long)x);
}

/* Shortest %g that reads back equal. A normal double with a form of at most 15 digits has it as %.15g, without the
 * zeros; a subnormal may have a shorter one. A ".0" keeps a whole number a real one for the reader. */
static void print_real(char out[40], double x)
{
    bool small = fabs(x) < DBL_MIN;
    for (int digits = small ? 1 : 15; digits <= 17; digits++) {
        snprintf(out, 40, "%.*g", digits, x);
        if (strtod(out, NULL) == x) break;
    }
    const char *point = localeconv()->decimal_point;     /* a program that uses the library may have set a locale */
    char *at = strcmp(point, ".") != 0 ? strstr(out, point) : NULL;
    if (at) {
        *at = '.';
        memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
    }
    if (!strpbrk(out, ".e")) strcat(out, ".0");
}

void cdr_jw_real(cdr_jw *w, const char *key, double x)
{
    char text[40];
    if (!isfinite(x)) {
        cdr_jw_null(w, key);
        return;
    }
    print_real(text, x);
    put_head(w, key);
    put(w, text);
}

void cdr_jw_bool(cdr_jw *w, const char *key, bool x)
{
    put_head(w, key);
    put(w, x ? "true" : "false");
}

void cdr_jw_null(cdr_jw *w, const char *key)
{
    put_head(w, key);
    put(w, "null");
}
