/* fuzz_yaml.c: any bytes. The reader never crashes; what it accepts can be written in flow style, and reads back
 * equal; what it refuses has a message and a stable id.
 */
#include "base/base.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LEVELS = 17 };
typedef struct { const cdr_yaml *a, *b; int next; } level;

/* In double quotes, with every byte that has a meaning escaped, as YAML 1.1 writes it. */
static void put_quoted(cdr_text *t, const char *s)
{
    cdr_text_printf(t, "\"");
    for (const char *c = s; *c;) {
        int n = cdr_utf8_length(c, strlen(c));
        CDR_CHECK(n > 0);
        if (n == 1 && ((unsigned char)*c < 0x20 || *c == '"' || *c == '\\' || *c == 0x7f)) cdr_text_printf(t, "\\x%02x", (unsigned char)*c);
        else if (n == 2 && (unsigned char)c[0] == 0xc2 && (unsigned char)c[1] < 0xa0) cdr_text_printf(t, "\\x%02x", (unsigned char)c[1]);
        else if (n == 3 && memcmp(c, "\xe2\x80\xa8", 3) == 0) cdr_text_printf(t, "\\L");
        else if (n == 3 && memcmp(c, "\xe2\x80\xa9", 3) == 0) cdr_text_printf(t, "\\P");
        else if (n == 3 && memcmp(c, "\xef\xbb\xbf", 3) == 0) cdr_text_printf(t, "\\ufeff");
        else if (n == 3 && memcmp(c, "\xef\xbf", 2) == 0 && (unsigned char)c[2] >= 0xbe) cdr_text_printf(t, "\\uff%02x", (unsigned char)c[2]);
        else cdr_text_append(t, c, (size_t)n);
        c += n;
    }
    cdr_text_printf(t, "\"");
}

/* One node as far as it goes before its members; a member is followed by a comma, which flow style allows at the end. */
static void put_begin(cdr_text *t, const cdr_yaml *y)
{
    if (y->key) {
        cdr_text_printf(t, "? ");               /* an explicit key may be longer than 1024 characters */
        put_quoted(t, y->key);
        cdr_text_printf(t, " : ");
    }
    if (y->kind == CDR_YAML_SCALAR) put_quoted(t, y->text);
    else cdr_text_printf(t, y->kind == CDR_YAML_LIST ? "[" : "{");
}

static void put_document(cdr_text *t, const cdr_yaml *root)
{
    level at[LEVELS];
    int depth = 0;
    put_begin(t, root);
    if (root->kind != CDR_YAML_SCALAR) at[depth++] = (level){ .a = root };
    while (depth > 0) {
        level *l = &at[depth - 1];
        if (l->next == l->a->n) {
            cdr_text_printf(t, l->a->kind == CDR_YAML_LIST ? "]" : "}");
            if (--depth > 0) cdr_text_printf(t, ",\n");
            continue;
        }
        const cdr_yaml *y = &l->a->items[l->next++];
        put_begin(t, y);
        if (y->kind == CDR_YAML_SCALAR) cdr_text_printf(t, ",\n");
        else at[depth++] = (level){ .a = y };
    }
}

static void check_one(const cdr_yaml *a, const cdr_yaml *b, bool member)
{
    CDR_CHECK(a->kind == b->kind && a->n == b->n && a->line >= 1 && a->col >= 1);
    CDR_CHECK(member == (a->key != NULL) && member == (b->key != NULL));
    if (member) CDR_CHECK(strcmp(a->key, b->key) == 0 && a->key_line >= 1 && a->key_col >= 1);
    if (a->kind == CDR_YAML_SCALAR) CDR_CHECK(strcmp(a->text, b->text) == 0);
}

static void check_equal(const cdr_yaml *a, const cdr_yaml *b)
{
    level at[LEVELS];
    int depth = 0;
    check_one(a, b, false);
    at[depth++] = (level){ .a = a, .b = b };
    while (depth > 0) {
        level *l = &at[depth - 1];
        if (l->next == l->a->n) {
            depth--;
            continue;
        }
        const cdr_yaml *x = &l->a->items[l->next], *y = &l->b->items[l->next];
        l->next++;
        check_one(x, y, l->a->kind == CDR_YAML_MAP);
        if (l->a->kind == CDR_YAML_MAP) CDR_CHECK(cdr_yaml_get(l->a, x->key) == x);
        if (x->kind != CDR_YAML_SCALAR) at[depth++] = (level){ .a = x, .b = y };
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cdr_err err = { 0 };
    cdr_pool *pool = cdr_pool_new();
    cdr_yaml *root, *again;
    char *text = cdr_alloc(size);               /* exactly as long: a read beyond its end is seen */
    if (size) memcpy(text, data, size);
    cdr_status status = cdr_yaml_parse(pool, text, size, "fuzz", &root, &err);
    cdr_free(text);
    if (status == CDR_OK) {
        cdr_text t = { 0 };
        put_document(&t, root);
        if (cdr_yaml_parse(pool, t.s, t.n, "written", &again, &err) != CDR_OK) fprintf(stderr, "%s\n%s\n", err.text, t.s);
        CDR_CHECK(err.status == CDR_OK);
        check_equal(root, again);
        cdr_text_free(&t);
    } else {
        CDR_CHECK(err.status == status && err.id[0] && err.text[0] && !root);
    }
    cdr_pool_free(pool);
    return 0;
}
