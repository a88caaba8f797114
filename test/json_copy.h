/* json_copy.h: writes a parsed document again, and compares two, for the tests and the fuzzer of the JSON module.
 *
 *   cdr_text t = { 0 };
 *   json_write(&t, root);                 // then parse t.s, and:
 *   T_CHECK(json_equal(root, again));
 */
#ifndef CADRE_TEST_JSON_COPY_H
#define CADRE_TEST_JSON_COPY_H

#include "base/base.h"
#include <string.h>

enum { JSON_LEVELS = 64 };
typedef struct { const cdr_json *a, *b; int64_t next; } json_level;

static inline bool json_is_tree(const cdr_json *j)
{
    return cdr_json_type(j) == CDR_JSON_ARRAY || cdr_json_type(j) == CDR_JSON_OBJECT;
}

static inline void json_write_scalar(cdr_jw *w, const char *key, const cdr_json *j)
{
    switch (cdr_json_type(j)) {
    case CDR_JSON_BOOL:   cdr_jw_bool(w, key, cdr_json_bool(j, false)); break;
    case CDR_JSON_INT:    cdr_jw_int(w, key, cdr_json_int(j, 0)); break;
    case CDR_JSON_REAL:   cdr_jw_real(w, key, cdr_json_real(j, 0)); break;
    case CDR_JSON_STRING: cdr_jw_str(w, key, cdr_json_str(j, NULL)); break;
    default:              cdr_jw_null(w, key); break;
    }
}

static inline char json_open(const cdr_json *j) { return cdr_json_type(j) == CDR_JSON_OBJECT ? '{' : '['; }

static inline void json_write(cdr_text *t, const cdr_json *root)
{
    cdr_jw w = { .t = t };
    json_level level[JSON_LEVELS];
    int depth = 0;
    if (!json_is_tree(root)) {
        json_write_scalar(&w, NULL, root);
        return;
    }
    cdr_jw_begin(&w, NULL, json_open(root));
    level[depth++] = (json_level){ .a = root };
    while (depth > 0) {
        json_level *l = &level[depth - 1];
        if (l->next == cdr_json_count(l->a)) {
            cdr_jw_end(&w, json_open(l->a) == '{' ? '}' : ']');
            depth--;
            continue;
        }
        const char *key = cdr_json_key(l->a, l->next);
        const cdr_json *j = cdr_json_at(l->a, l->next++);
        if (!json_is_tree(j)) {
            json_write_scalar(&w, key, j);
            continue;
        }
        cdr_jw_begin(&w, key, json_open(j));
        level[depth++] = (json_level){ .a = j };
    }
}

static inline bool json_equal_one(const cdr_json *a, const cdr_json *b)
{
    if (cdr_json_type(a) != cdr_json_type(b) || cdr_json_count(a) != cdr_json_count(b)) return false;
    double x = cdr_json_real(a, 0), y = cdr_json_real(b, 0);
    return cdr_json_bool(a, false) == cdr_json_bool(b, false) && cdr_json_int(a, 0) == cdr_json_int(b, 0) &&
           memcmp(&x, &y, sizeof x) == 0 && strcmp(cdr_json_str(a, ""), cdr_json_str(b, "")) == 0;
}

/* Also that each member of an object is found by its key. */
static inline bool json_equal(const cdr_json *a, const cdr_json *b)
{
    json_level level[JSON_LEVELS + 1];
    int depth = 0;
    if (!json_equal_one(a, b)) return false;
    level[depth++] = (json_level){ .a = a, .b = b };
    while (depth > 0) {
        json_level *l = &level[depth - 1];
        if (l->next == cdr_json_count(l->a)) {
            depth--;
            continue;
        }
        const char *key = cdr_json_key(l->a, l->next), *other = cdr_json_key(l->b, l->next);
        const cdr_json *x = cdr_json_at(l->a, l->next), *y = cdr_json_at(l->b, l->next);
        l->next++;
        if (!key != !other || (key && strcmp(key, other) != 0)) return false;
        if (key && (cdr_json_get(l->a, key) != x || cdr_json_get(l->b, key) != y)) return false;
        if (!json_equal_one(x, y)) return false;
        if (json_is_tree(x)) level[depth++] = (json_level){ .a = x, .b = y };
    }
    return true;
}
#endif
