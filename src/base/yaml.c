/* yaml.c: the strict subset of YAML that recipes, models and machines are written in, over libyaml's events: maps
 * with scalar keys, lists and scalars, in block or flow style. What could mean something else to another reader, or
 * to another part of the file, is refused: tags, anchors, aliases, merge keys, duplicate keys, several documents.
 *
 * One pass without recursion. Finished nodes wait on a stack; when a list or map closes, its members are copied to
 * one array in the pool.
 */
#include "base/base.h"
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { BYTES_MAX = 1 << 20, YAML_DEPTH_MAX = 16 };

typedef struct {
    cdr_yaml node;
    bool has_key;                        /* MAP: node.key of the next member is known */
    int64_t first;                       /* first member on the stack */
    const char *next_key;
    int next_line, next_col;
} frame;

typedef struct {
    cdr_pool *pool;
    const char *where;
    cdr_err *err;
    yaml_parser_t lib;
    cdr_yaml *stack;
    int64_t n_stack, cap_stack;
    frame frames[YAML_DEPTH_MAX];
    int depth;
    cdr_yaml root;
    bool has_root;
} reader;

/* ---- messages ------------------------------------------------------------------------------------------------ */
static cdr_status fail_at(reader *r, yaml_mark_t at, const char *id, const char *what)
{
    return cdr_fail(r->err, CDR_EUSER, id, "%s:%zu:%zu: %s", r->where, at.line + 1, at.column + 1, what);
}

/* libyaml says "did not find expected key" (problem), "while parsing a block mapping" (context). */
static cdr_status fail_library(reader *r, const char *text, size_t bytes)
{
    yaml_parser_t *lib = &r->lib;
    char what[300];
    const char *problem = lib->problem ? lib->problem : "cannot be read";
    if (lib->error == YAML_READER_ERROR) {
        yaml_mark_t at = { .index = 0, .line = 0, .column = 0 };
        for (size_t i = 0; i < lib->problem_offset && i < bytes; i++) {
            at.column += ((unsigned char)text[i] & 0xc0) != 0x80;
            if (text[i] == '\n') {
                at.line++;
                at.column = 0;
            }
        }
        snprintf(what, sizeof what, "%.150s; YAML is UTF-8 without control characters. Convert the file", problem);
        return fail_at(r, at, "yaml.utf8", what);
    }
    bool same = lib->context && lib->context_mark.line == lib->problem_mark.line;
    if (lib->context && !same)
        snprintf(what, sizeof what, "%.120s; %.100s that begins in line %zu. Check indentation, quotes and colons there", problem,
                 lib->context, lib->context_mark.line + 1);
    else
        snprintf(what, sizeof what, "%.120s; %.100s. Check indentation, quotes and colons there", problem,
                 lib->context ? lib->context : "this is not YAML");
    return fail_at(r, lib->problem_mark, "yaml.syntax", what);
}

static cdr_status fail_duplicate(reader *r, const cdr_yaml *node)
{
    char what[200];
    yaml_mark_t at = { .index = 0, .line = (size_t)node->key_line - 1, .column = (size_t)node->key_col - 1 };
    snprintf(what, sizeof what, "duplicate key \"%.80s\"; each key stands once in a map. Remove one of them", node->key);
    return fail_at(r, at, "yaml.duplicate-key", what);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */
/* By key, then by position: of two equal keys the later one is second. */
static int by_key(const void *a, const void *b)
{
    const cdr_yaml *x = *(const cdr_yaml *const *)a, *y = *(const cdr_yaml *const *)b;
    int c = strcmp(x->key, y->key);
    return c ? c : (x > y) - (x < y);
}

static cdr_status check_duplicates(reader *r, const cdr_yaml *map)
{
    if (map->kind != CDR_YAML_MAP || map->n < 2) return CDR_OK;
    const cdr_yaml **sorted = cdr_alloc((size_t)map->n * sizeof(const cdr_yaml *));
    for (int i = 0; i < map->n; i++) sorted[i] = &map->items[i];
    qsort(sorted, (size_t)map->n, sizeof(const cdr_yaml *), by_key);
    const cdr_yaml *twin = NULL;
    for (int i = 1; i < map->n; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0 && (!twin || sorted[i] < twin)) twin = sorted[i];
    cdr_free(sorted);
    if (!twin) return CDR_OK;
    return fail_duplicate(r, twin);
}

/* A finished node goes under the innermost open one, or is the document. */
static void file_node(reader *r, cdr_yaml node)
{
    if (r->depth == 0) {
        r->root = node;
        r->has_root = true;
        return;
    }
    frame *f = &r->frames[r->depth - 1];
    if (f->node.kind == CDR_YAML_MAP) {
        node.key = f->next_key;
        node.key_line = f->next_line;
        node.key_col = f->next_col;
        f->has_key = false;
    }
    if (r->n_stack == r->cap_stack) {
        int64_t cap = CDR_MAX(r->cap_stack * 2, (int64_t)64);
        cdr_yaml *grown = cdr_alloc((size_t)cap * sizeof *grown);
        if (r->n_stack) memcpy(grown, r->stack, (size_t)r->n_stack * sizeof *grown);
        cdr_free(r->stack);
        r->stack = grown;
        r->cap_stack = cap;
    }
    r->stack[r->n_stack++] = node;
}

static bool key_expected(const reader *r)
{
    return r->depth > 0 && r->frames[r->depth - 1].node.kind == CDR_YAML_MAP && !r->frames[r->depth - 1].has_key;
}

static cdr_status check_plain(reader *r, yaml_mark_t at, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor) return fail_at(r, at, "yaml.anchor", "an anchor (&); every value is written where it is used. Remove it and repeat the value");
    if (tag) return fail_at(r, at, "yaml.tag", "a tag (!); the type of a value follows from its key. Remove it");
    return CDR_OK;
}

static cdr_status on_open(reader *r, const yaml_event_t *e, cdr_yaml_kind kind)
{
    bool map = kind == CDR_YAML_MAP;
    CDR_TRY(check_plain(r, e->start_mark, map ? e->data.mapping_start.anchor : e->data.sequence_start.anchor,
                        map ? e->data.mapping_start.tag : e->data.sequence_start.tag));
    if (key_expected(r)) return fail_at(r, e->start_mark, "yaml.key", "a list or map as a key; keys are names. Write a plain name");
    if (r->depth == YAML_DEPTH_MAX) return fail_at(r, e->start_mark, "yaml.depth", "nested deeper than 16 levels; that is the limit. Flatten it");
    frame *f = &r->frames[r->depth++];
    *f = (frame){ .first = r->n_stack,
                  .node = { .kind = kind, .line = (int)e->start_mark.line + 1, .col = (int)e->start_mark.column + 1 } };
    return CDR_OK;
}

static cdr_status on_close(reader *r)
{
    frame *f = &r->frames[--r->depth];
    cdr_yaml node = f->node;
    node.n = (int)(r->n_stack - f->first);
    node.items = cdr_pool_alloc(r->pool, (size_t)node.n * sizeof *node.items);
    if (node.n) memcpy(node.items, r->stack + f->first, (size_t)node.n * sizeof *node.items);
    r->n_stack = f->first;
    CDR_TRY(check_duplicates(r, &node));
    file_node(r, node);
    return CDR_OK;
}

static cdr_status on_scalar(reader *r, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    size_t n = e->data.scalar.length;
    bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    CDR_TRY(check_plain(r, e->start_mark, e->data.scalar.anchor, e->data.scalar.tag));
    if (memchr(text, 0, n)) return fail_at(r, e->start_mark, "yaml.nul", "a zero character in a text; it is not supported. Remove it");
    if (!key_expected(r)) {
        file_node(r, (cdr_yaml){ .kind = CDR_YAML_SCALAR, .line = (int)e->start_mark.line + 1, .col = (int)e->start_mark.column + 1,
                                 .quoted = !plain, .text = cdr_pool_strndup(r->pool, text, n) });
        return CDR_OK;
    }
    if (n == 0) return fail_at(r, e->start_mark, "yaml.key", "an empty key; every value has a name. Write one before the colon");
    if (plain && strcmp(text, "<<") == 0) return fail_at(r, e->start_mark, "yaml.merge", "a merge key (<<); it is not supported. Write the keys out");
    frame *f = &r->frames[r->depth - 1];
    f->has_key = true;
    f->next_key = cdr_pool_strndup(r->pool, text, n);
    f->next_line = (int)e->start_mark.line + 1;
    f->next_col = (int)e->start_mark.column + 1;
    return CDR_OK;
}

static cdr_status on_event(reader *r, const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (r->has_root) return fail_at(r, e->start_mark, "yaml.documents", "a second document; a file holds one. Split the file");
        if (e->data.document_start.tag_directives.start != e->data.document_start.tag_directives.end)
            return fail_at(r, e->start_mark, "yaml.tag", "a %TAG directive; tags are not supported. Remove it");
        return CDR_OK;
    case YAML_ALIAS_EVENT:
        return fail_at(r, e->start_mark, "yaml.alias", "an alias (*); every value is written where it is used. Repeat the value, or quote the text");
    case YAML_SCALAR_EVENT:         return on_scalar(r, e);
    case YAML_SEQUENCE_START_EVENT: return on_open(r, e, CDR_YAML_LIST);
    case YAML_MAPPING_START_EVENT:  return on_open(r, e, CDR_YAML_MAP);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:    return on_close(r);
    default:                        return CDR_OK;
    }
}

static cdr_status read_events(reader *r, const char *text, size_t bytes)
{
    bool end = false;
    while (!end) {                              /* libyaml gives at most a few events a byte */
        yaml_event_t e;
        if (!yaml_parser_parse(&r->lib, &e)) return fail_library(r, text, bytes);
        cdr_status status = on_event(r, &e);
        end = e.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&e);
        if (status != CDR_OK) return status;
    }
    if (!r->has_root)
        CDR_FAIL_ID(r->err, CDR_EUSER, "yaml.empty", "%s:1:1: holds no document; it is empty or has comments only. Write at least one key", r->where);
    return CDR_OK;
}

cdr_status cdr_yaml_parse(cdr_pool *pool, const char *text, size_t bytes, const char *where, cdr_yaml **root, cdr_err *err)
{
    reader r = { .pool = pool, .where = where ? where : "yaml", .err = err };
    *root = NULL;
    if (bytes > BYTES_MAX) CDR_FAIL_ID(err, CDR_EUSER, "yaml.size", "%s: %zu bytes; the limit is 1 MiB. Check that it is the file you mean", r.where, bytes);
    CDR_CHECK(yaml_parser_initialize(&r.lib));
    yaml_parser_set_encoding(&r.lib, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.lib, (const unsigned char *)text, bytes);
    cdr_status status = read_events(&r, text, bytes);
    yaml_parser_delete(&r.lib);
    cdr_free(r.stack);
    if (status != CDR_OK) return status;
    *root = cdr_pool_alloc(pool, sizeof **root);
    **root = r.root;
    return CDR_OK;
}

const cdr_yaml *cdr_yaml_get(const cdr_yaml *map, const char *key)
{
    if (!map || map->kind != CDR_YAML_MAP) return NULL;
    for (int i = 0; i < map->n; i++)
        if (strcmp(map->items[i].key, key) == 0) return &map->items[i];
    return NULL;
}
