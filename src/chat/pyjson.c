/* pyjson.c: JSON text as Python's json.dumps writes it, which is what the renderers of released checkpoints use, so that
 * the bytes, and with them the ids, are those that a model was trained on. Differences from cdr_jw: separators, \b and \f,
 * reals as repr (1e+16, 1e-05, 100000.0), optional \uXXXX for everything outside of ASCII.
 * Source: the Python library reference, json and float.__repr__.
 */
#include "chat/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const cdr__py_style cdr__py_default = { .item = ", ", .key = ": " };

static uint32_t code_point(const unsigned char *s, int n)
{
    if (n == 1) return s[0];
    uint32_t c = s[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) c = c << 6 | (s[i] & 0x3fu);
    return c;
}

static void put_escaped(cdr_text *t, uint32_t c)
{
    if (c > 0xffff) {
        cdr_text_printf(t, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
        return;
    }
    cdr_text_printf(t, "\\u%04x", c);
}

void cdr__py_string(cdr_text *t, const char *s, size_t n, bool ascii)
{
    static const char from[] = "\"\\\b\f\n\r\t", into[] = "\"\\bfnrt";
    size_t done = 0;
    cdr_text_append(t, "\"", 1);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        int bytes = c < 0x80 ? 1 : CDR_MAX(1, cdr_utf8_length(s + i, n - i));
        const char *simple = c ? strchr(from, c) : NULL;
        bool escape = simple || c < 0x20 || (ascii && (c >= 0x7f + 1));
        if (escape) {
            cdr_text_append(t, s + done, i - done);
            if (simple) cdr_text_printf(t, "\\%c", into[simple - from]);
            else put_escaped(t, code_point((const unsigned char *)s + i, bytes));
            done = i + (size_t)bytes;
        }
        i += (size_t)bytes;
    }
    cdr_text_append(t, s + done, n - done);
    cdr_text_append(t, "\"", 1);
}

/* The fewest digits that read back equal; an exponent below 10^-4 and from 10^16 on, else a point. */
void cdr__py_real(cdr_text *t, double x)
{
    if (isnan(x) || isinf(x)) {
        cdr_text_printf(t, "%s", isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
        return;
    }
    char form[40], digits[24];
    int n = 0;
    for (int p = 0; p <= 16; p++) {
        snprintf(form, sizeof form, "%.*e", p, x);
        if (strtod(form, NULL) == x) break;
    }
    const char *e = strchr(form, 'e');
    for (const char *c = form; c < e; c++)
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    int exponent = atoi(e + 1);
    if (signbit(x)) cdr_text_append(t, "-", 1);
    if (exponent < -4 || exponent >= 16) {
        cdr_text_printf(t, "%c%s%.*se%c%02d", digits[0], n > 1 ? "." : "", n - 1, digits + 1, exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        cdr_text_printf(t, "0.%.*s%.*s", -exponent - 1, "000", n, digits);
    } else {
        int whole = exponent + 1;
        cdr_text_printf(t, "%.*s", CDR_MIN(n, whole), digits);
        for (int i = n; i < whole; i++) cdr_text_append(t, "0", 1);
        cdr_text_printf(t, ".%.*s", n > whole ? n - whole : 1, n > whole ? digits + whole : "0");
    }
}

static bool put_scalar(cdr_text *t, const cdr_json *j)
{
    const char *s;
    switch (cdr_json_type(j)) {
        case CDR_JSON_NULL: cdr_text_append(t, "null", 4); return true;
        case CDR_JSON_BOOL: cdr_text_printf(t, "%s", cdr_json_bool(j, false) ? "true" : "false"); return true;
        case CDR_JSON_INT: cdr_text_printf(t, "%lld", (long long)cdr_json_int(j, 0)); return true;
        case CDR_JSON_REAL: {
            double x = cdr_json_real(j, 0);
            if (fabs(x) >= 9223372036854775808.0 && fabs(x) < 1e40) return false;       /* may have been written as digits */
            cdr__py_real(t, x);
            return true;
        }
        default:
            s = cdr_json_str(j, "");
            cdr__py_string(t, s, strlen(s), false);
            return true;
    }
}

typedef struct { const cdr_json *j; int64_t i; const int64_t *order; } level;
typedef struct { const char *key; int64_t i; } member;

static int by_key(const void *a, const void *b) { return strcmp(((const member *)a)->key, ((const member *)b)->key); }

/* Members in order of their keys; NULL: as they stand. */
static const int64_t *order_of(cdr_pool *pool, const cdr_json *j, const cdr__py_style *style)
{
    int64_t n = cdr_json_count(j);
    if (!style->sort || cdr_json_type(j) != CDR_JSON_OBJECT || n < 2) return NULL;
    member *m = cdr_pool_alloc(pool, sizeof *m * (size_t)n);
    int64_t *order = cdr_pool_alloc(pool, sizeof *order * (size_t)n);
    for (int64_t i = 0; i < n; i++) m[i] = (member){ .key = cdr_json_key(j, i), .i = i };
    qsort(m, (size_t)n, sizeof *m, by_key);
    for (int64_t i = 0; i < n; i++) order[i] = m[i].i;
    return order;
}

enum { LEVELS = 66 };                        /* the reader's limit, and one more */

bool cdr__py_json(cdr_text *t, const cdr_json *root, const cdr__py_style *style)
{
    level stack[LEVELS];
    int n = 0;
    bool ok = true;
    cdr_pool *pool = cdr_pool_new();
    const cdr_json *j = root;
    while (ok) {
        cdr_json_kind kind = cdr_json_type(j);
        if (kind == CDR_JSON_ARRAY || kind == CDR_JSON_OBJECT) {
            CDR_CHECK(n < LEVELS);
            cdr_text_append(t, kind == CDR_JSON_ARRAY ? "[" : "{", 1);
            stack[n++] = (level){ .j = j, .order = order_of(pool, j, style) };
        } else {
            ok = put_scalar(t, j);
        }
        while (n > 0 && stack[n - 1].i == cdr_json_count(stack[n - 1].j)) {
            n--;
            cdr_text_append(t, cdr_json_type(stack[n].j) == CDR_JSON_ARRAY ? "]" : "}", 1);
        }
        if (n == 0) break;
        level *top = &stack[n - 1];
        int64_t i = top->order ? top->order[top->i] : top->i;
        if (top->i++ > 0) cdr_text_printf(t, "%s", style->item);
        if (cdr_json_type(top->j) == CDR_JSON_OBJECT) {
            const char *key = cdr_json_key(top->j, i);
            cdr__py_string(t, key, strlen(key), false);
            cdr_text_printf(t, "%s", style->key);
        }
        j = cdr_json_at(top->j, i);
    }
    cdr_pool_free(pool);
    return ok;
}

bool cdr_chat_json(cdr_text *out, const cdr_json *j) { return cdr__py_json(out, j, &cdr__py_default); }
