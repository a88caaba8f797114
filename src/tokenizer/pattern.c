/* pattern.c: a regular expression becomes a program, the program becomes a table.
 *
 * Meaning: leftmost, and of what begins there the first that a backtracking matcher finds (ordered alternatives, greedy repetition), as in Rust's regex and
 * fancy-regex (tiktoken) and Oniguruma (tokenizers). Known: literals, escapes, classes with ranges, negation, nesting and &&, \s \S \d \D, \p and \P of
 * general categories and Han, groups (..), (?:..) and (?i:..) (letters of ASCII only: s also takes U+017F, k U+212A, as simple case folding has it), ? * +
 * {n} {n,} {n,m}, |, and lookahead of one class, (?!x) and (?=x). Anything else is refused: lazy and possessive repetition, anchors, \b, \w, back references.
 *
 * The program: SET c; ASSERT c (the next character, or the end of text, is in c); SPLIT d (go on here, or else d further on); JUMP d; MATCH. Distances are
 * relative, so that a stretch of code can be moved and copied. A state of the table is the ordered list of places where a backtracking matcher could be;
 * lists behind a MATCH are cut, which is what makes the order of alternatives count (the construction of Cox 2009 and of RE2). One character of lookahead
 * needs no second pass: a list keeps its ASSERTs, and the step on the next character, which may be "end of text", decides them.
 * Code points that no set tells apart share a column of the table.
 */
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CODE = 1024, MAX_SETS = 256, MAX_STATES = 1024, MAX_NEST = 16, N_PAGES = CDR__N_CODE / 256 + 1, SET_WORDS = MAX_SETS / 64 };
enum { OP_SET, OP_ASSERT, OP_SPLIT, OP_JUMP, OP_MATCH };
typedef struct { uint8_t op; bool end; int16_t set; int32_t d; } instr;        /* end: ASSERT holds at the end of text */

struct cdr__pattern {
    int n_states, n_columns;           /* the last column: end of text */
    uint32_t start;
    const uint32_t *next;              /* [state * n_columns + column]: place of the next state << 1 | a match ends before this character. State 0: no way on */
    const uint8_t *cut;                /* [column * n_columns + column of the next character]: CDR__CUT_ */
    uint8_t ascii[128];
    const uint16_t *page; const uint8_t *column;        /* column[page[c >> 8] * 256 + (c & 255)] */
};

typedef struct {
    const char *regex, *at, *where;
    cdr_pool *pool; cdr_err *err;
    instr code[MAX_CODE]; int n;
    cdr__set set[MAX_SETS]; int n_sets;
    struct { int start, alternative, jumps; bool fold; } group[MAX_NEST]; int depth;        /* jumps: last of a chain of JUMPs to the group's end, -1: none */
} compiler;

static cdr_status refuse(compiler *c, const char *from, size_t n, const char *why)
{
    CDR_FAIL_ID(c->err, CDR_EDATA, "tokenizer.pattern", "%s: the pattern %s has \"%.*s\" at character %lld: %s. This version cannot cut text as it says", c->where,
                c->regex, (int)CDR_MIN(n, (size_t)40), from, (long long)(from - c->regex + 1), why);
}

/* ---- sets ------------------------------------------------------------------------------------------------- */

static bool same_set(const cdr__set *a, const cdr__set *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->r, b->r, sizeof *a->r * (size_t)a->n) == 0);
}

static cdr_status emit(compiler *c, int op, int set, bool end, int d)
{
    if (c->n == MAX_CODE) return refuse(c, c->at, 1, "longer than patterns are here");
    c->code[c->n++] = (instr){ .op = (uint8_t)op, .end = end, .set = (int16_t)set, .d = d };
    return CDR_OK;
}

static cdr_status emit_set(compiler *c, int op, const cdr__set *s, bool end)
{
    int i = 0;
    while (i < c->n_sets && !same_set(&c->set[i], s)) i++;
    if (i == MAX_SETS) return refuse(c, c->at, 1, "more classes than a pattern may have here");
    if (i == c->n_sets) c->set[c->n_sets++] = *s;
    return emit(c, op, i, end, 0);
}

/* Adds the other case. What has no simple rule here is refused. */
static cdr_status fold(compiler *c, cdr__set *s, const char *from)
{
    int n = s->n;
    for (int i = 0; i < n; i++) {
        if (s->r[i].hi > 0x7f) return refuse(c, from, (size_t)(c->at - from), "a class beyond ASCII without regard to case");
        for (uint32_t x = s->r[i].lo; x <= s->r[i].hi; x++) {
            uint32_t low = x | 32;
            if (low < 'a' || low > 'z') continue;
            cdr__set_add(c->pool, s, x ^ 32, x ^ 32);
            if (low == 's') cdr__set_add(c->pool, s, 0x17f, 0x17f);
            if (low == 'k') cdr__set_add(c->pool, s, 0x212a, 0x212a);
        }
    }
    cdr__set_sort(s);
    return CDR_OK;
}

static void add_set(compiler *c, cdr__set *s, const cdr__set *more)
{
    for (int i = 0; i < more->n; i++) cdr__set_add(c->pool, s, more->r[i].lo, more->r[i].hi);
}

/* \p{..}, \P{..}, \pL, with c->at behind the letter p. */
static cdr_status property(compiler *c, bool negate, cdr__set *s, const char *from)
{
    const char *name = c->at;
    size_t n = *name ? 1 : 0;
    if (*name == '{') {
        const char *end = strchr(name, '}');
        if (!end) return refuse(c, from, strlen(from), "no } follows");
        c->at = end + 1;
        if (*++name == '^') {
            negate = !negate;
            name++;
        }
        n = (size_t)(end - name);
    } else c->at += n;
    cdr__set p = { 0 };
    if (n == 0 || name[0] == 's' || !cdr__set_property(c->pool, &p, name, n))
        return refuse(c, from, (size_t)(c->at - from), "a property that is not known here (general categories and Han are)");
    cdr__set_sort(&p);
    if (negate) p = cdr__set_not(c->pool, &p);
    add_set(c, s, &p);
    return CDR_OK;
}

/* Behind a backslash. *literal: its one code point, or CDR__N_CODE where it is a class, which was added to s. */
static cdr_status escape(compiler *c, cdr__set *s, uint32_t *literal)
{
    static const char from[] = "rntf", to[] = "\r\n\t\f";
    const char *at = c->at - 1, *p;
    char x = *c->at;
    *literal = CDR__N_CODE;
    if (!x) return refuse(c, at, 1, "nothing follows");
    c->at++;
    if (x == 'p' || x == 'P') return property(c, x == 'P', s, at);
    if (strchr("sSdD", x)) {
        cdr__set p2 = { 0 };
        (void)cdr__set_property(c->pool, &p2, strchr("sS", x) ? "s" : "Nd", strchr("sS", x) ? 1 : 2);
        cdr__set_sort(&p2);
        if (x == 'S' || x == 'D') p2 = cdr__set_not(c->pool, &p2);
        add_set(c, s, &p2);
        return CDR_OK;
    }
    if ((p = strchr(from, x))) *literal = (unsigned char)to[p - from];
    else if ((unsigned char)x < 0x80 && !((x | 32) >= 'a' && (x | 32) <= 'z') && !(x >= '0' && x <= '9')) *literal = (unsigned char)x;
    else return refuse(c, at, 2, "an escape that is not known here");
    return CDR_OK;
}

static cdr_status literal(compiler *c, uint32_t *x)
{
    size_t k;
    *x = cdr__utf8(c->at, strlen(c->at), &k);
    if (*x >= CDR__N_CODE) return refuse(c, c->at, 1, "no UTF-8");
    c->at += k;
    return CDR_OK;
}

/* One element of a class: a character, a range, an escape. */
static cdr_status element(compiler *c, cdr__set *s)
{
    const char *from = c->at;
    uint32_t lo, hi;
    if (*c->at == '\\') {
        c->at++;
        CDR_TRY(escape(c, s, &lo));
        if (lo == CDR__N_CODE) return CDR_OK;
    } else CDR_TRY(literal(c, &lo));
    hi = lo;
    if (c->at[0] == '-' && c->at[1] && c->at[1] != ']') {
        cdr__set none = { 0 };
        c->at++;
        if (*c->at == '\\') {
            c->at++;
            CDR_TRY(escape(c, &none, &hi));
        } else if (*c->at == '[') hi = CDR__N_CODE;
        else CDR_TRY(literal(c, &hi));
        if (hi == CDR__N_CODE || hi < lo) return refuse(c, from, (size_t)(c->at - from), "no range");
    }
    cdr__set_add(c->pool, s, lo, hi);
    return CDR_OK;
}

typedef struct { cdr__set all, part; bool negate, cut; } bracket;        /* part: since the last &&; cut: all holds what is before it */

static void meet(compiler *c, bracket *b)
{
    cdr__set_sort(&b->part);
    b->all = b->cut ? cdr__set_and(c->pool, &b->all, &b->part) : b->part;
    b->part = (cdr__set){ 0 };
    b->cut = true;
}

/* [..], with c->at behind the first bracket. Nested ones lie on a stack. */
static cdr_status class(compiler *c, cdr__set *out)
{
    bracket b[MAX_NEST] = { 0 };
    int d = 0;
    const char *from = c->at - 1;
    b[0].negate = *c->at == '^' && c->at++;
    if (*c->at == ']') return refuse(c, from, 2, "an empty class");
    while (d >= 0) {
        if (!*c->at) return refuse(c, from, strlen(from), "a class without an end");
        if (c->at[0] == '[') {
            if (c->at[1] == ':') return refuse(c, c->at, 2, "a class of POSIX");
            if (++d == MAX_NEST) return refuse(c, c->at, 1, "nested too deeply");
            c->at++;
            b[d] = (bracket){ .negate = *c->at == '^' && c->at++ };
            if (*c->at == ']') return refuse(c, c->at, 1, "an empty class");
        } else if (c->at[0] == ']') {
            c->at++;
            meet(c, &b[d]);
            *out = b[d].negate ? cdr__set_not(c->pool, &b[d].all) : b[d].all;
            if (--d >= 0) add_set(c, &b[d].part, out);
        } else if (c->at[0] == '&' && c->at[1] == '&') {
            c->at += 2;
            meet(c, &b[d]);
        } else if ((c->at[0] == '-' && c->at[1] == '-') || (c->at[0] == '~' && c->at[1] == '~')) return refuse(c, c->at, 2, "not the same everywhere");
        else CDR_TRY(element(c, &b[d].part));
    }
    return CDR_OK;
}

/* A character or class at c->at. */
static cdr_status one_set(compiler *c, cdr__set *s)
{
    const char *from = c->at;
    uint32_t x;
    *s = (cdr__set){ 0 };
    if (*c->at == '[') {
        c->at++;
        CDR_TRY(class(c, s));
    } else if (*c->at == '\\') {
        c->at++;
        CDR_TRY(escape(c, s, &x));
        if (x < CDR__N_CODE) cdr__set_add(c->pool, s, x, x);
    } else if (*c->at == '.') {
        c->at++;
        cdr__set_add(c->pool, s, 0, 9);
        cdr__set_add(c->pool, s, 11, CDR__N_CODE - 1);
    } else if (strchr("^$*+?{}]", *c->at)) {
        return refuse(c, c->at, 1, *c->at == '^' || *c->at == '$' ? "an anchor" : "nothing that it belongs to");
    } else {
        CDR_TRY(literal(c, &x));
        cdr__set_add(c->pool, s, x, x);
    }
    cdr__set_sort(s);
    return c->group[c->depth].fold ? fold(c, s, from) : CDR_OK;
}

/* ---- program ---------------------------------------------------------------------------------------------- */

static cdr_status insert(compiler *c, int at, instr x)
{
    if (c->n == MAX_CODE) return refuse(c, c->at, 1, "longer than patterns are here");
    memmove(c->code + at + 1, c->code + at, sizeof *c->code * (size_t)(c->n - at));
    c->code[at] = x;
    c->n++;
    return CDR_OK;
}

static cdr_status copy(compiler *c, const instr *atom, int n)
{
    for (int i = 0; i < n; i++) CDR_TRY(emit(c, atom[i].op, atom[i].set, atom[i].end, atom[i].d));
    return CDR_OK;
}

/* {n}, {n,}, {n,m}; most -1: no bound. */
static bool braces(const char **at, int *least, int *most)
{
    char *end;
    const char *s = *at + 1;
    if (*s < '0' || *s > '9') return false;
    long lo = strtol(s, &end, 10), hi = lo;
    if (*end == ',') {
        s = end + 1;
        hi = -1;
        if (*s >= '0' && *s <= '9') hi = strtol(s, &end, 10);
        else end++;
    }
    if (*end != '}' || lo > MAX_CODE || hi > MAX_CODE || (hi >= 0 && hi < lo)) return false;
    *least = (int)lo;
    *most = (int)hi;
    *at = end + 1;
    return true;
}

/* What repeats the code from `start` on, if anything does. */
static cdr_status repeat(compiler *c, int start)
{
    const char *from = c->at;
    int n = c->n - start, least = 0, most = -1;
    if (!*c->at || !strchr("?*+{", *c->at)) return CDR_OK;
    if (*c->at == '{') {
        if (!braces(&c->at, &least, &most)) return refuse(c, from, 8, "no {n}, {n,} or {n,m} with bounds that are known here");
    } else {
        least = *from == '+';
        most = *from == '?' ? 1 : -1;
        c->at++;
    }
    if (*c->at && strchr("?+*{", *c->at)) return refuse(c, from, (size_t)(c->at - from) + 1, "lazy, possessive or doubled repetition");
    instr *atom = cdr_pool_alloc(c->pool, sizeof *atom * (size_t)CDR_MAX(n, 1));
    memcpy(atom, c->code + start, sizeof *atom * (size_t)n);
    c->n = start;
    for (int i = 0; i < least; i++) CDR_TRY(copy(c, atom, n));
    if (most < 0) {
        CDR_TRY(emit(c, OP_SPLIT, 0, false, n + 2));
        CDR_TRY(copy(c, atom, n));
        return emit(c, OP_JUMP, 0, false, -n - 1);
    }
    for (int i = least; i < most; i++) {
        CDR_TRY(emit(c, OP_SPLIT, 0, false, (most - i) * (n + 1)));
        CDR_TRY(copy(c, atom, n));
    }
    return CDR_OK;
}

/* '|': what came before since the last one may be skipped, and jumps to the group's end. */
static cdr_status alternative(compiler *c)
{
    int start = c->group[c->depth].alternative, jumps = c->group[c->depth].jumps;
    CDR_TRY(insert(c, start, (instr){ .op = OP_SPLIT, .d = c->n - start + 2 }));
    CDR_TRY(emit(c, OP_JUMP, 0, false, jumps));        /* the chain, until the end is known */
    c->group[c->depth].jumps = c->n - 1;
    c->group[c->depth].alternative = c->n;
    return CDR_OK;
}

static void close_group(compiler *c)
{
    for (int i = c->group[c->depth].jumps, before; i >= 0; i = before) {
        before = c->code[i].d;
        c->code[i].d = c->n - i;
    }
}

static cdr_status lookahead(compiler *c)
{
    const char *from = c->at;
    bool negate = from[2] == '!';
    cdr__set s;
    c->at += 3;
    if (!*c->at || strchr("()|", *c->at)) return refuse(c, from, 4, "lookahead of something else than one character");
    CDR_TRY(one_set(c, &s));
    if (*c->at != ')') return refuse(c, from, (size_t)(c->at - from) + 1, "lookahead of something else than one character");
    c->at++;
    if (*c->at && strchr("?*+{", *c->at)) return refuse(c, from, (size_t)(c->at - from) + 1, "repeated lookahead");
    if (negate) s = cdr__set_not(c->pool, &s);
    return emit_set(c, OP_ASSERT, &s, negate);
}

static cdr_status open_group(compiler *c)
{
    const char *from = c->at++;
    bool fold_case = c->group[c->depth].fold;
    if (*c->at == '?') {
        if (strncmp(c->at, "?:", 2) == 0) c->at += 2;
        else if (strncmp(c->at, "?i:", 3) == 0) {
            fold_case = true;
            c->at += 3;
        } else return refuse(c, from, 4, "a group that is not known here");
    }
    if (c->depth + 1 == MAX_NEST) return refuse(c, from, 1, "nested too deeply");
    c->depth++;
    c->group[c->depth].start = c->group[c->depth].alternative = c->n;
    c->group[c->depth].jumps = -1;
    c->group[c->depth].fold = fold_case;
    return CDR_OK;
}

static cdr_status parse(compiler *c)
{
    c->group[0].jumps = -1;
    while (*c->at) {
        int start = c->n;
        if (c->at[0] == '(' && c->at[1] == '?' && (c->at[2] == '!' || c->at[2] == '=')) CDR_TRY(lookahead(c));
        else if (*c->at == '(') CDR_TRY(open_group(c));
        else if (*c->at == ')') {
            if (c->depth == 0) return refuse(c, c->at, 1, "no ( before it");
            close_group(c);
            start = c->group[c->depth--].start;
            c->at++;
            CDR_TRY(repeat(c, start));
        } else if (*c->at == '|') {
            c->at++;
            CDR_TRY(alternative(c));
        } else {
            cdr__set s;
            CDR_TRY(one_set(c, &s));
            CDR_TRY(emit_set(c, OP_SET, &s, false));
            CDR_TRY(repeat(c, start));
        }
    }
    if (c->depth > 0) return refuse(c, c->at, 0, "a ( has no )");
    close_group(c);
    return emit(c, OP_MATCH, 0, false, 0);
}

/* ---- columns ---------------------------------------------------------------------------------------------- */

typedef struct { uint64_t in[256][SET_WORDS]; int n; } columns;        /* in[column]: the sets that its code points belong to */

static int by_code(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Where any set begins or ends, sorted, each once. */
static uint32_t *borders(compiler *c, int *n)
{
    int64_t most = 2;
    for (int i = 0; i < c->n_sets; i++) most += 2 * c->set[i].n;
    uint32_t *b = cdr_alloc(sizeof *b * (size_t)most);
    int k = 0, m = 0;
    b[k++] = 0;
    b[k++] = CDR__N_CODE;
    for (int i = 0; i < c->n_sets; i++)
        for (int r = 0; r < c->set[i].n; r++) {
            b[k++] = c->set[i].r[r].lo;
            b[k++] = c->set[i].r[r].hi + 1;
        }
    qsort(b, (size_t)k, sizeof *b, by_code);
    for (int i = 0; i < k; i++)
        if (m == 0 || b[i] != b[m - 1]) b[m++] = b[i];
    *n = m;
    return b;
}

/* Column of the code points from a border on; at[set]: the first range that does not end before it. 255: all columns are in use. */
static int column_of(const compiler *c, columns *col, uint32_t code, int at[MAX_SETS])
{
    uint64_t in[SET_WORDS] = { 0 };
    for (int i = 0; i < c->n_sets; i++) {
        const cdr__set *s = &c->set[i];
        while (at[i] < s->n && s->r[at[i]].hi < code) at[i]++;
        if (at[i] < s->n && s->r[at[i]].lo <= code) in[i / 64] |= (uint64_t)1 << (i % 64);
    }
    for (int k = 0; k < col->n; k++)
        if (memcmp(col->in[k], in, sizeof in) == 0) return k;
    if (col->n == 255) return 255;
    memcpy(col->in[col->n], in, sizeof in);
    return col->n++;
}

/* Pages of 256 columns, of which equal ones exist once: *kept, in the pool, and which of them each page is. */
static void fold_pages(compiler *c, cdr__pattern *p, const uint8_t *all)
{
    uint64_t *hash = cdr_alloc(sizeof *hash * N_PAGES);
    uint8_t *one = cdr_alloc((size_t)N_PAGES * 256);
    uint16_t *page = cdr_pool_alloc(c->pool, sizeof *page * N_PAGES);
    int n = 0;
    for (int i = 0; i < N_PAGES; i++) {
        uint64_t h = cdr_hash64(all + 256 * i, 256, 0);
        int k = n - 1;
        while (k >= 0 && (hash[k] != h || memcmp(one + 256 * k, all + 256 * i, 256) != 0)) k--;
        if (k < 0) {
            k = n++;
            hash[k] = h;
            memcpy(one + 256 * k, all + 256 * i, 256);
        }
        page[i] = (uint16_t)k;
    }
    uint8_t *kept = cdr_pool_alloc(c->pool, (size_t)n * 256);
    memcpy(kept, one, (size_t)n * 256);
    memcpy(p->ascii, kept + 256 * page[0], 128);
    p->page = page;
    p->column = kept;
    cdr_free(hash);
    cdr_free(one);
}

/* The column of every code point; bytes that are no UTF-8 behave as U+FFFD. */
static cdr_status make_columns(compiler *c, cdr__pattern *p, columns *col)
{
    int n_border, at[MAX_SETS] = { 0 };
    uint32_t *border = borders(c, &n_border);
    uint8_t *all = cdr_alloc((size_t)N_PAGES * 256);
    bool full = false;
    for (int i = 0; i + 1 < n_border && !full; i++) {
        int k = column_of(c, col, border[i], at);
        full = k == 255;
        memset(all + border[i], k, border[i + 1] - border[i]);
    }
    if (!full) {
        memset(all + CDR__N_CODE, all[0xfffd], 256);
        fold_pages(c, p, all);
    }
    cdr_free(border);
    cdr_free(all);
    p->n_columns = col->n + 1;
    return full ? refuse(c, c->regex, 8, "classes cut the characters into more than 255 kinds") : CDR_OK;
}

/* ---- table ------------------------------------------------------------------------------------------------ */

typedef struct { int16_t *at; int n; } list;        /* places in the code */
typedef struct {
    const compiler *c; const columns *col;
    list *state; int n_states;
    uint32_t seen[MAX_CODE], done[MAX_CODE], inner[MAX_CODE], turn;        /* places that were met in this turn */
    int16_t stack[2 * MAX_CODE + 2], work[2 * MAX_CODE + 2], to[MAX_CODE], here[MAX_CODE];
    bool full;                          /* lookaheads in a loop: more places wait than work has room for */
} builder;

/* Appends where one gets from `at` without a character, in order of preference, but for places with seen[place] == turn. False: the list ends in a MATCH,
 * what would follow counts for nothing. */
static bool reach(builder *b, int at, uint32_t *seen, uint32_t turn, list *out)
{
    int n = 0;
    b->stack[n++] = (int16_t)at;
    while (n > 0) {
        int i = b->stack[--n];
        const instr *x = &b->c->code[i];
        if (seen[i] == turn) continue;
        seen[i] = turn;
        if (x->op == OP_JUMP) b->stack[n++] = (int16_t)(i + x->d);
        else if (x->op == OP_SPLIT) {
            b->stack[n++] = (int16_t)(i + x->d);
            b->stack[n++] = (int16_t)(i + 1);
        } else {
            out->at[out->n++] = (int16_t)i;
            if (x->op == OP_MATCH) return false;
        }
    }
    return true;
}

static bool in_column(const builder *b, const instr *x, int column)
{
    if (column == b->col->n) return x->op == OP_ASSERT && x->end;
    return b->col->in[column][x->set / 64] >> (x->set % 64) & 1;
}

/* The list after a character of this column; *match: a match ends before it. */
static void step(builder *b, const list *from, int column, list *to, bool *match)
{
    int n = 0;
    bool more = true;
    uint32_t turn = ++b->turn;
    to->n = 0;
    *match = false;
    for (int i = from->n - 1; i >= 0; i--) b->work[n++] = from->at[i];
    while (n > 0 && !*match) {
        int i = b->work[--n];
        const instr *x = &b->c->code[i];
        if (b->done[i] == turn) continue;
        b->done[i] = turn;
        if (x->op == OP_MATCH) *match = true;
        else if (!in_column(b, x, column)) continue;
        else if (x->op == OP_SET) more = more && reach(b, i + 1, b->seen, turn, to);
        else {                          /* an ASSERT that holds: what follows it takes its place */
            list here = { b->here, 0 };
            (void)reach(b, i + 1, b->inner, ++b->turn, &here);
            b->full = b->full || n + here.n > CDR_COUNT(b->work);
            if (b->full) return;
            for (int k = here.n - 1; k >= 0; k--) b->work[n++] = here.at[k];
        }
    }
}

/* -1: too many. */
static int state_of(builder *b, const list *l)
{
    for (int i = 0; i < b->n_states; i++)
        if (b->state[i].n == l->n && (l->n == 0 || memcmp(b->state[i].at, l->at, sizeof *l->at * (size_t)l->n) == 0)) return i;
    if (b->n_states == MAX_STATES) return -1;
    list *s = &b->state[b->n_states];
    s->n = l->n;
    s->at = cdr_pool_alloc(b->c->pool, sizeof *s->at * (size_t)CDR_MAX(l->n, 1));
    memcpy(s->at, l->at, sizeof *s->at * (size_t)l->n);
    return b->n_states++;
}

static cdr_status make_table(compiler *c, cdr__pattern *p, builder *b)
{
    int n = p->n_columns;
    uint32_t *next = cdr_alloc(sizeof *next * (size_t)(MAX_STATES * n));
    list to = { b->to, 0 };
    bool empty = false, full = false;
    b->state = cdr_pool_alloc(c->pool, sizeof *b->state * MAX_STATES);
    b->turn = 1;
    (void)state_of(b, &to);                     /* 0: nothing left */
    (void)reach(b, 0, b->seen, b->turn, &to);
    p->start = (uint32_t)(state_of(b, &to) * n);
    for (int s = 0; s < b->n_states && !full; s++)
        for (int k = 0; k < n && !full; k++) {
            bool match;
            step(b, &b->state[s], k, &to, &match);
            int t = k == n - 1 ? 0 : state_of(b, &to);
            full = t < 0 || b->full;
            empty = empty || (match && (uint32_t)(s * n) == p->start);
            next[s * n + k] = (uint32_t)(t * n) << 1 | match;
        }
    uint32_t *kept = cdr_pool_alloc(c->pool, sizeof *kept * (size_t)(b->n_states * n));
    memcpy(kept, next, sizeof *kept * (size_t)(b->n_states * n));
    cdr_free(next);
    p->next = kept;
    p->n_states = b->n_states;
    if (full) return refuse(c, c->regex, 8, "needs more than 1,024 states, or repeats too many lookaheads");
    if (empty) return refuse(c, c->regex, 8, "can match nothing at all");
    return CDR_OK;
}

/* Does a match begin with this column, whatever follows? */
static bool begins(const cdr__pattern *p, int column)
{
    uint32_t s = p->next[p->start + (uint32_t)column] >> 1;
    bool always = s != 0;
    for (int k = 0; k < p->n_columns; k++) always = always && p->next[s + (uint32_t)k] & 1;
    return always;
}

/* Between columns a and b no match goes on, from whatever state; and each that reaches b ends where it would at the end of text: so the matches that begin
 * before b are the same with and without what follows. What lies between matches may still be one piece across a and b, unless a match begins with b. */
static void find_cuts(compiler *c, cdr__pattern *p)
{
    int n = p->n_columns;
    uint8_t *cut = cdr_pool_alloc(c->pool, (size_t)(n * n));
    bool met[MAX_STATES];              /* states behind a */
    for (int a = 0; a < n - 1; a++) {
        memset(met, 0, sizeof met);
        for (int s = 1; s < p->n_states; s++) met[(p->next[s * n + a] >> 1) / (uint32_t)n] = true;
        for (int b = 0; b < n - 1; b++) {
            bool ends = true;
            for (int s = 1; s < p->n_states && ends; s++)
                if (met[s]) ends = p->next[s * n + b] >> 1 == 0 && (p->next[s * n + b] & 1) == (p->next[s * n + n - 1] & 1);
            cut[a * n + b] = (uint8_t)(!ends ? CDR__CUT_NONE : begins(p, b) ? CDR__CUT_BORDER : CDR__CUT_INSIDE);
        }
    }
    p->cut = cut;
}

cdr_status cdr__pattern_compile(const char *regex, const char *where, cdr_pool *pool, const cdr__pattern **out, cdr_err *err)
{
    cdr_pool *own = cdr_pool_new();
    compiler *c = cdr_pool_alloc(own, sizeof *c);
    columns *col = cdr_pool_alloc(own, sizeof *col);
    builder *b = cdr_pool_alloc(own, sizeof *b);
    cdr__pattern *p = cdr_pool_alloc(pool, sizeof *p);
    c->regex = c->at = regex;
    c->where = where;
    c->pool = own;
    c->err = err;
    b->c = c;
    b->col = col;
    cdr_status st = parse(c);
    c->pool = pool;
    if (st == CDR_OK) st = make_columns(c, p, col);
    if (st == CDR_OK) st = make_table(c, p, b);
    if (st == CDR_OK) find_cuts(c, p);
    cdr_pool_free(own);
    *out = p;
    return st;
}

int cdr__pattern_states(const cdr__pattern *p)
{
    return p->n_states;
}

/* ---- matching --------------------------------------------------------------------------------------------- */

static inline uint32_t column(const cdr__pattern *p, const char *s, size_t left, size_t *k)
{
    if ((signed char)*s >= 0) {
        *k = 1;
        return p->ascii[(unsigned char)*s];
    }
    uint32_t c = cdr__utf8(s, left, k);
    return p->column[(size_t)p->page[c >> 8] << 8 | (c & 255)];
}

size_t cdr__pattern_match(const cdr__pattern *p, const char *text, size_t bytes)
{
    size_t end = 0, i = 0, k = 0;
    uint32_t state = p->start, eot = (uint32_t)p->n_columns - 1;
    for (;;) {
        uint32_t t = p->next[state + (i < bytes ? column(p, text + i, bytes - i, &k) : eot)];
        if (t & 1) end = i;
        state = t >> 1;
        if (state == 0) return end;
        i += k;
    }
}

size_t cdr__pattern_piece(const cdr__pattern *p, const char *text, size_t bytes)
{
    size_t i = cdr__pattern_match(p, text, bytes), k;
    if (i > 0) return i;
    do {
        uint32_t c = column(p, text + i, bytes - i, &k);
        if (i > 0 && p->next[p->start + c] >> 1 != 0 && cdr__pattern_match(p, text + i, bytes - i) > 0) break;
        i += k;
    } while (i < bytes);
    return i;
}

int cdr__pattern_cut(const cdr__pattern *p, const char *text, size_t at, size_t bytes)
{
    size_t k;
    return p->cut[p->ascii[(unsigned char)text[at - 1]] * (uint32_t)p->n_columns + column(p, text + at, bytes - at, &k)];
}
