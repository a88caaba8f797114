/* json.c: a strict JSON reader (RFC 8259) with exact integers.
 * A parser of our own: cJSON keeps numbers as doubles, objects as lists and strings without their length, so that
 * 2^53 + 1, 500,000 members or an embedded NUL would each need a second parser beside it. It is the oracle of
 * test_parse.c instead. Safetensors headers: 50,000 entries in 47 ms, 500,000 in 640 ms, looked up too (Zen 3).
 *
 * One pass without recursion. Finished values wait on a stack; when a container closes, its members are copied to one
 * array in the pool, so that the i-th member costs one step. Behind the array of an object of more than SMALL members
 * lies a table of slots (open addressing, load at most a half): member i is in the first free slot from hash(key) on, beside the
 * hash's upper half, so that a key is read only where it is the one looked for.
 * The hash has a secret seed, so that a file cannot be made to collide.
 * Refused beyond the grammar: duplicate keys, invalid UTF-8, lone surrogates, \u0000 (strings are C strings), a byte
 * order mark, a depth over 64, a number that is no finite double, an integer that neither int64 nor a double holds
 * exactly (tokenizer files do hold 10^30 as an integer: the double is exact, it is read as a real number).
 */
#include "base/base.h"
#include <locale.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64, SMALL = 8, NUMBER_MAX = 400 };

struct cdr_json {
    const char *key;                     /* where it is an object's member */
    union { int64_t i; double real; bool yes; const char *s; const cdr_json *items; } u;
    uint32_t n;                          /* members; bytes of a string */
    uint8_t kind;
};

typedef struct { cdr_json node; size_t key_at; } waiting;
typedef struct { char open; int64_t first; const char *key; size_t key_at; } frame;
typedef struct {
    const char *s, *where;
    int64_t line, col;                   /* of the text's first character in its file, for messages */
    size_t n, at;
    char *strings;                       /* next free byte for decoded strings: never longer than their source */
    cdr_pool *pool;
    cdr_err *err;
    waiting *stack;
    int64_t n_stack, cap_stack;
    frame frames[DEPTH_MAX];
    int depth;
} parser;

/* ---- messages ------------------------------------------------------------------------------------------------ */
/* Lines end at '\n'; columns count characters, not bytes. */
static cdr_status fail_at(parser *p, size_t at, const char *id, const char *what)
{
    int64_t line = p->line, col = p->col;
    for (size_t i = 0; i < at && i < p->n; i++) {
        if (p->s[i] == '\n') {
            line++;
            col = 1;
        } else if (((unsigned char)p->s[i] & 0xc0) != 0x80) {
            col++;
        }
    }
    return cdr_fail(p->err, CDR_EDATA, id, "%s:%lld:%lld: %s", p->where, (long long)line, (long long)col, what);
}

static cdr_status fail_syntax(parser *p, const char *expected)
{
    char what[300];
    if (p->at >= p->n) {
        snprintf(what, sizeof what, "the text ends where %s is expected; it is cut off. Copy the file again", expected);
    } else {
        unsigned char c = (unsigned char)p->s[p->at];
        char seen[16];
        snprintf(seen, sizeof seen, c >= 0x20 && c < 0x7f ? "'%c'" : "byte 0x%02x", c);
        snprintf(what, sizeof what, "%s where %s is expected; this is not JSON. Correct it there", seen, expected);
    }
    return fail_at(p, p->at, "json.syntax", what);
}

/* ---- scalars --------------------------------------------------------------------------------------------------- */
static void skip_space(parser *p)
{
    while (p->at < p->n && (p->s[p->at] == ' ' || p->s[p->at] == '\n' || p->s[p->at] == '\t' || p->s[p->at] == '\r')) p->at++;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Four hexadecimal digits at `at`; -1 where they are not there. */
static int32_t hex4(const parser *p, size_t at)
{
    int32_t x = 0;
    if (p->n - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        int d = hex_digit(p->s[i]);
        if (d < 0) return -1;
        x = x * 16 + d;
    }
    return x;
}

static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        *to++ = (char)(0xe0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
        *to++ = (char)(0x80 | (c & 0x3f));
    } else {
        *to++ = (char)(0xf0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 0x3f));
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
        *to++ = (char)(0x80 | (c & 0x3f));
    }
    return to;
}

/* p->at is behind the backslash; *to advances. A sequence of 2, 6 or 12 source bytes gives at most 1, 3 or 4. */
static cdr_status read_escape(parser *p, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (p->at >= p->n) return fail_syntax(p, "an escape");
    char c = p->s[p->at];
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *(*to)++ = into[simple - from];
        p->at++;
        return CDR_OK;
    }
    if (c != 'u') return fail_syntax(p, "one of \" \\ / b f n r t u");
    int32_t code = hex4(p, p->at + 1);
    if (code < 0) return fail_at(p, p->at, "json.syntax", "\\u needs four hexadecimal digits; they are not there. Correct it there");
    if (code == 0)
        return fail_at(p, p->at, "json.nul", "\\u0000 in a string; strings with a zero character are not supported. Remove it");
    p->at += 5;
    if (code >= 0xd800 && code <= 0xdfff) {
        int32_t low = code <= 0xdbff && p->n - p->at >= 6 && p->s[p->at] == '\\' && p->s[p->at + 1] == 'u' ? hex4(p, p->at + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return fail_at(p, p->at - 6, "json.surrogate", "half of a surrogate pair; it is no character. Write both halves, or the character itself");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        p->at += 6;
    }
    *to = put_utf8(*to, (uint32_t)code);
    return CDR_OK;
}

/* All eight bytes are plain: ASCII from 0x20 on, no quote, no backslash (a byte is zero, or below n, where its borrow sets bit 7). */
static bool plain8(const char *s)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t x, quote, slash;
    memcpy(&x, s, 8);
    quote = x ^ (ones * '"');
    slash = x ^ (ones * '\\');
    return ((x | ((x - ones * 0x20) & ~x) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & high) == 0;
}

static cdr_status read_string(parser *p, const char **out, uint32_t *bytes)
{
    char *first = p->strings, *to = first;
    p->at++;                                                    /* the opening quote */
    for (;;) {
        size_t plain = p->at;
        while (p->n - plain >= 8 && plain8(p->s + plain)) plain += 8;
        while (plain < p->n && p->s[plain] != '"' && p->s[plain] != '\\' && (unsigned char)p->s[plain] >= 0x20 &&
               (unsigned char)p->s[plain] < 0x80)
            plain++;
        memcpy(to, p->s + p->at, plain - p->at);
        to += plain - p->at;
        p->at = plain;
        if (p->at >= p->n) return fail_syntax(p, "the end of a string");
        unsigned char c = (unsigned char)p->s[p->at];
        if (c == '"') break;
        if (c < 0x20) return fail_at(p, p->at, "json.syntax", "a control character in a string; it must be escaped. Write \\n, \\t or \\u00XX");
        if (c == '\\') {
            p->at++;
            CDR_TRY(read_escape(p, &to));
            continue;
        }
        int n = cdr_utf8_length(p->s + p->at, p->n - p->at);
        if (n == 0) return fail_at(p, p->at, "json.utf8", "invalid UTF-8 in a string; JSON is UTF-8 only. Convert the file");
        memcpy(to, p->s + p->at, (size_t)n);
        to += n;
        p->at += (size_t)n;
    }
    p->at++;
    *bytes = (uint32_t)(to - first);
    *to++ = 0;
    p->strings = to;
    *out = first;
    return CDR_OK;
}

/* The C locale, whatever the program that uses the library has set: its decimal point may be a comma. */
static locale_t c_locale(void)
{
    static _Atomic(locale_t) kept;
    locale_t l = kept, none = (locale_t)0;
    if (l) return l;
    l = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    CDR_CHECK(l != (locale_t)0);
    if (atomic_compare_exchange_strong(&kept, &none, l)) return l;
    freelocale(l);
    return none;
}

/* From p->at on: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?  Returns its end; p->at moves to a fault. */
static bool number_end(parser *p, size_t *end, bool *integer)
{
    size_t at = p->at + (p->s[p->at] == '-'), first = at;
    while (at < p->n && p->s[at] >= '0' && p->s[at] <= '9') at++;
    if (at == first || (p->s[first] == '0' && at > first + 1)) {
        p->at = at == first ? at : first;
        return false;
    }
    *integer = true;
    if (at < p->n && p->s[at] == '.') {
        size_t dot = at++;
        while (at < p->n && p->s[at] >= '0' && p->s[at] <= '9') at++;
        *integer = false;
        if (at == dot + 1) {
            p->at = at;
            return false;
        }
    }
    if (at < p->n && (p->s[at] == 'e' || p->s[at] == 'E')) {
        at++;
        if (at < p->n && (p->s[at] == '+' || p->s[at] == '-')) at++;
        size_t digits = at;
        while (at < p->n && p->s[at] >= '0' && p->s[at] <= '9') at++;
        *integer = false;
        if (at == digits) {
            p->at = at;
            return false;
        }
    }
    *end = at;
    return true;
}

static cdr_status read_number(parser *p, cdr_json *j)
{
    size_t from = p->at, end;
    bool integer;
    if (!number_end(p, &end, &integer)) {
        if (p->at < p->n && p->s[p->at] == '0') return fail_at(p, p->at, "json.syntax", "a leading zero; JSON numbers have none. Remove it");
        return fail_syntax(p, "a digit");
    }
    if (end - from > NUMBER_MAX)
        return fail_at(p, from, "json.number", "a number of more than 400 characters; no format holds it. Round it");
    char text[NUMBER_MAX + 1];
    memcpy(text, p->s + from, end - from);
    text[end - from] = 0;
    p->at = end;
    if (integer) {
        bool negative = text[0] == '-', fits = true;
        int64_t x = 0;
        for (const char *c = text + negative; *c && fits; c++) {
            int digit = negative ? '0' - *c : *c - '0';         /* towards the sign: INT64_MIN has no positive twin */
            fits = !__builtin_mul_overflow(x, 10, &x) && !__builtin_add_overflow(x, digit, &x);
        }
        if (fits) {
            j->kind = CDR_JSON_INT;
            j->u.i = x;
            return CDR_OK;
        }
    }
    double x = strtod_l(text, NULL, c_locale());
    char exact[NUMBER_MAX + 1];
    if (!isfinite(x)) return fail_at(p, from, "json.number", "a number beyond the range of a double; it would become infinite. Correct it");
    if (integer && (snprintf(exact, sizeof exact, "%.0f", x) < 0 || strcmp(exact, text) != 0))
        return fail_at(p, from, "json.number", "an integer that is neither a 64-bit integer nor exact as a double; it would be rounded. Correct it");
    j->kind = CDR_JSON_REAL;
    j->u.real = x;
    return CDR_OK;
}

static bool word_at(const parser *p, const char *word)
{
    size_t n = strlen(word);
    return p->n - p->at >= n && memcmp(p->s + p->at, word, n) == 0;
}

static cdr_status read_scalar(parser *p, cdr_json *j)
{
    static const char expected[] = "a value ({ [ \" true false null or a number)";
    if (p->at >= p->n) return fail_syntax(p, expected);
    char c = p->s[p->at];
    if (c == '"') {
        j->kind = CDR_JSON_STRING;
        return read_string(p, &j->u.s, &j->n);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(p, j);
    if (word_at(p, "null")) {
        j->kind = CDR_JSON_NULL;
        p->at += 4;
    } else if (word_at(p, "true")) {
        j->kind = CDR_JSON_BOOL;
        j->u.yes = true;
        p->at += 4;
    } else if (word_at(p, "false")) {
        j->kind = CDR_JSON_BOOL;
        p->at += 5;
    } else {
        return fail_syntax(p, expected);
    }
    return CDR_OK;
}

/* ---- objects --------------------------------------------------------------------------------------------------- */
static uint64_t key_hash(const char *key) { return cdr_hash64(key, strlen(key), cdr_hash_secret()); }

static uint64_t slot_count(uint64_t n)
{
    uint64_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    return slots;
}

/* Position of the member with this key among items[0..n), -1 where absent. */
static int64_t find(const cdr_json *items, uint32_t n, const char *key)
{
    if (n <= SMALL) {
        for (uint32_t i = 0; i < n; i++)
            if (strcmp(items[i].key, key) == 0) return i;
        return -1;
    }
    const uint64_t *slots = (const uint64_t *)(const void *)(items + n);
    uint64_t mask = slot_count(n) - 1, h = key_hash(key);
    for (uint64_t s = h & mask; slots[s]; s = (s + 1) & mask)               /* ends: half of the slots are free */
        if (((slots[s] ^ h) >> 32) == 0 && strcmp(items[(uint32_t)slots[s] - 1].key, key) == 0) return (uint32_t)slots[s] - 1;
    return -1;
}

static cdr_status fail_duplicate(parser *p, const waiting *w)
{
    char what[200];
    snprintf(what, sizeof what, "duplicate key \"%.80s\"; an object has each key once. Remove one of them", w->node.key);
    return fail_at(p, w->key_at, "json.duplicate-key", what);
}

/* Copies the members above frame f->first to the pool, indexes them and takes them from the stack. */
static cdr_status close_container(parser *p, const frame *f, cdr_json *j)
{
    int64_t n = p->n_stack - f->first;
    bool object = f->open == '{', indexed = object && n > SMALL;
    uint64_t slots = indexed ? slot_count((uint64_t)n) : 0;
    j->kind = object ? CDR_JSON_OBJECT : CDR_JSON_ARRAY;
    j->n = (uint32_t)n;
    j->u.items = NULL;
    if (n == 0) return CDR_OK;
    const waiting *w = p->stack + f->first;
    cdr_json *items = cdr_pool_alloc(p->pool, (size_t)n * sizeof *items + slots * sizeof(uint64_t));
    for (int64_t i = 0; i < n; i++) items[i] = w[i].node;
    if (object && !indexed) {
        for (int64_t i = 1; i < n; i++)
            if (find(items, (uint32_t)i, items[i].key) >= 0) return fail_duplicate(p, &w[i]);
    }
    if (indexed) {
        uint64_t *slot = (uint64_t *)(void *)(items + n);
        for (int64_t i = 0; i < n; i++) {
            uint64_t h = key_hash(items[i].key), s = h & (slots - 1);
            for (; slot[s]; s = (s + 1) & (slots - 1))
                if (((slot[s] ^ h) >> 32) == 0 && strcmp(items[(uint32_t)slot[s] - 1].key, items[i].key) == 0) return fail_duplicate(p, &w[i]);
            slot[s] = h >> 32 << 32 | (uint32_t)(i + 1);
        }
    }
    j->u.items = items;
    p->n_stack = f->first;
    return CDR_OK;
}

/* ---- the document ---------------------------------------------------------------------------------------------- */
static cdr_status read_key(parser *p, const char **key, size_t *key_at)
{
    uint32_t bytes;
    skip_space(p);
    if (p->at >= p->n || p->s[p->at] != '"') return fail_syntax(p, "a key in quotes");
    *key_at = p->at;
    CDR_TRY(read_string(p, key, &bytes));
    skip_space(p);
    if (p->at >= p->n || p->s[p->at] != ':') return fail_syntax(p, "':'");
    p->at++;
    return CDR_OK;
}

static void push(parser *p, waiting w)
{
    if (p->n_stack == p->cap_stack) {
        int64_t cap = CDR_MAX(p->cap_stack * 2, (int64_t)64);
        waiting *grown = cdr_alloc((size_t)cap * sizeof *grown);
        if (p->n_stack) memcpy(grown, p->stack, (size_t)p->n_stack * sizeof *grown);
        cdr_free(p->stack);
        p->stack = grown;
        p->cap_stack = cap;
    }
    p->stack[p->n_stack++] = w;
}

/* Reads up to the first finished value or into the next container. *done: w holds a finished value. */
static cdr_status begin_value(parser *p, waiting *w, bool *done)
{
    skip_space(p);
    *done = true;
    char c = p->at < p->n ? p->s[p->at] : 0;
    if (c != '{' && c != '[') return read_scalar(p, &w->node);
    if (p->depth == DEPTH_MAX) return fail_at(p, p->at, "json.depth", "nested deeper than 64 levels; that is the limit. Flatten it");
    frame *f = &p->frames[p->depth++];
    *f = (frame){ .open = c, .first = p->n_stack, .key = w->node.key, .key_at = w->key_at };
    p->at++;
    skip_space(p);
    if (p->at < p->n && p->s[p->at] == (c == '{' ? '}' : ']')) {
        p->at++;
        p->depth--;
        return close_container(p, f, &w->node);
    }
    *done = false;
    *w = (waiting){ 0 };
    return c == '{' ? read_key(p, &w->node.key, &w->key_at) : CDR_OK;
}

/* w is finished: files it under its container, and closes what closes here. *done: the whole document is w. */
static cdr_status end_value(parser *p, waiting *w, bool *done)
{
    while (p->depth > 0) {
        frame *f = &p->frames[p->depth - 1];
        bool object = f->open == '{';
        push(p, *w);
        skip_space(p);
        char c = p->at < p->n ? p->s[p->at] : 0;
        if (c == ',') {
            p->at++;
            *w = (waiting){ 0 };
            *done = false;
            return object ? read_key(p, &w->node.key, &w->key_at) : CDR_OK;
        }
        if (c != (object ? '}' : ']')) return fail_syntax(p, object ? "',' or '}'" : "',' or ']'");
        p->at++;
        p->depth--;
        *w = (waiting){ .node = { .key = f->key }, .key_at = f->key_at };
        CDR_TRY(close_container(p, f, &w->node));
    }
    *done = true;
    return CDR_OK;
}

static cdr_status read_document(parser *p, cdr_json *root)
{
    waiting w = { 0 };
    bool done = false;
    while (!done) {                             /* each turn consumes at least one byte */
        CDR_TRY(begin_value(p, &w, &done));
        if (done) CDR_TRY(end_value(p, &w, &done));
    }
    skip_space(p);
    if (p->at < p->n) return fail_syntax(p, "the end of the text");
    *root = w.node;
    return CDR_OK;
}

cdr_status cdr_json_parse(cdr_pool *pool, const char *text, size_t bytes, const char *where, const cdr_json **root, cdr_err *err)
{
    return cdr_json_parse_at(pool, text, bytes, (cdr_json_place){ where, 1, 1 }, root, err);
}

cdr_status cdr_json_parse_at(cdr_pool *pool, const char *text, size_t bytes, cdr_json_place at, const cdr_json **root, cdr_err *err)
{
    parser p = { .s = text, .n = bytes, .where = at.where ? at.where : "json", .line = at.line, .col = at.col, .pool = pool, .err = err };
    *root = NULL;
    if (bytes >= UINT32_MAX) CDR_FAIL_ID(err, CDR_EDATA, "json.size", "%s: %zu bytes; the limit is 4 GiB. Split it", p.where, bytes);
    if (word_at(&p, "\xef\xbb\xbf")) return fail_at(&p, 0, "json.bom", "begins with a byte order mark; JSON has none. Remove the first three bytes");
    p.strings = cdr_pool_alloc(pool, bytes + 1);
    cdr_json *j = cdr_pool_alloc(pool, sizeof *j);
    cdr_status status = read_document(&p, j);
    cdr_free(p.stack);
    if (status == CDR_OK) *root = j;
    return status;
}

/* ---- access ------------------------------------------------------------------------------------------------------ */
cdr_json_kind cdr_json_type(const cdr_json *j) { return j ? (cdr_json_kind)j->kind : CDR_JSON_NULL; }

static bool is_kind(const cdr_json *j, cdr_json_kind kind) { return j && j->kind == kind; }

const cdr_json *cdr_json_get(const cdr_json *obj, const char *key)
{
    if (!is_kind(obj, CDR_JSON_OBJECT)) return NULL;
    int64_t i = find(obj->u.items, obj->n, key);
    return i < 0 ? NULL : &obj->u.items[i];
}

int64_t cdr_json_count(const cdr_json *j)
{
    return is_kind(j, CDR_JSON_ARRAY) || is_kind(j, CDR_JSON_OBJECT) ? j->n : 0;
}

const cdr_json *cdr_json_at(const cdr_json *j, int64_t i)
{
    return i >= 0 && i < cdr_json_count(j) ? &j->u.items[i] : NULL;
}

const char *cdr_json_key(const cdr_json *obj, int64_t i)
{
    return is_kind(obj, CDR_JSON_OBJECT) && i >= 0 && i < obj->n ? obj->u.items[i].key : NULL;
}

const char *cdr_json_str(const cdr_json *j, const char *otherwise) { return is_kind(j, CDR_JSON_STRING) ? j->u.s : otherwise; }

/* 1e3 and 4096.0 are whole numbers too */
int64_t cdr_json_int(const cdr_json *j, int64_t otherwise)
{
    if (is_kind(j, CDR_JSON_INT)) return j->u.i;
    if (!is_kind(j, CDR_JSON_REAL)) return otherwise;
    double x = j->u.real;
    return x >= -0x1p63 && x < 0x1p63 && x == rint(x) ? (int64_t)x : otherwise;
}

double cdr_json_real(const cdr_json *j, double otherwise)
{
    if (is_kind(j, CDR_JSON_INT)) return (double)j->u.i;
    return is_kind(j, CDR_JSON_REAL) ? j->u.real : otherwise;
}

bool cdr_json_bool(const cdr_json *j, bool otherwise) { return is_kind(j, CDR_JSON_BOOL) ? j->u.yes : otherwise; }
