/* jinja_parse.c: tokens of a template as a tree, by recursive descent over the grammar of Jinja 3.1, with a bound on its depth.
 *
 *   tuple:  cond { "," cond }              cond: or [ "if" or [ "else" cond ] ]
 *   or:     and { "or" and }               and:  not { "and" not }        not: "not" not | compare
 *   compare: sum { op sum }                sum:  concat { +|- concat }    concat: product { "~" product }
 *   product: power { *|/|//|% power }      power: unary { "**" unary }    unary: -|+ unary | primary postfix filters
 *
 * Statements: if, for (with filter, else, break, continue), set (value, block, attribute of a namespace), macro, filter,
 * generation. Every other one (include, import, extends, block, call, with, autoescape, do, recursive loops) is refused with
 * its line, and so are filters and tests that the subset has not: a template is understood as a whole or not at all.
 * Source: Jinja's template designer documentation, its parser's order of rules; checked by tools/peers/chat.py.
 */
#include "chat/jinja.h"

#include <string.h>

enum { DEPTH_MAX = 100, ARGS_MAX = 64, NODES_MAX = 200000 };

typedef struct {
    cdr__jtemplate *t;
    cdr_err *err;
    const cdr__jtoken *k;                   /* the current token */
    int64_t cap_symbol, n_nodes;
    int depth, loops, macros;               /* of nesting */
    bool failed;
} parser;

typedef struct { const cdr__jn **v; int64_t n, cap; } nodes;

/* Fails once, and returns NULL for the callers to hand on. */
static cdr__jn *fail(parser *p, const char *fmt, ...) CDR_PRINTF(2, 3);
static cdr__jn *fail(parser *p, const char *fmt, ...)
{
    char what[600];
    va_list ap;
    if (p->failed) return NULL;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    (void)cdr__jinja_fail(p->t->where, p->k->line, p->err, "jinja.syntax", "%s", what);
    p->failed = true;
    return NULL;
}

static cdr__jn *refuse(parser *p, const char *what, const char *hint)
{
    if (p->failed) return NULL;
    (void)cdr__jinja_fail(p->t->where, p->k->line, p->err, "jinja.unsupported", "the template uses %s, which is not supported%s. Set data.chat_format to k3_xtml, "
        "kimi_k2 "
                          "or chatml where one of them is the model's, or rewrite the line", what, hint);
    p->failed = true;
    return NULL;
}

static cdr__jn *make(parser *p, int kind)
{
    if (p->failed) return NULL;
    if (++p->n_nodes > NODES_MAX) return fail(p, "more than %d parts of expressions and statements", (int)NODES_MAX);
    cdr__jn *n = cdr_pool_alloc(p->t->pool, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = p->k->line;
    return n;
}

static cdr__jn *make2(parser *p, int kind, const cdr__jn *a, const cdr__jn *b)
{
    cdr__jn *n = a && b ? make(p, kind) : NULL;
    if (!n) return NULL;
    n->a = a;
    n->b = b;
    return n;
}

static void add(parser *p, nodes *l, const cdr__jn *n)
{
    if (!n) return;
    *CDR_PUSH(p->t->pool, l->v, l->n, l->cap) = n;
}

static cdr__jn *with_list(cdr__jn *n, const nodes *l)
{
    if (!n) return NULL;
    n->list = l->v;
    n->n = (int)l->n;
    return n;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------- */
static bool is(const parser *p, int kind) { return p->k->kind == kind; }
static bool is_name(const parser *p, const char *s) { return p->k->kind == CDR__T_NAME && strcmp(p->k->s, s) == 0; }
static bool next_is_name(const parser *p, const char *s) { return p->k->kind != CDR__T_END && p->k[1].kind == CDR__T_NAME && strcmp(p->k[1].s, s) == 0; }

static void advance(parser *p)
{
    if (p->k->kind != CDR__T_END) p->k++;
}

static bool skip(parser *p, int kind)
{
    if (p->failed || !is(p, kind)) return false;
    advance(p);
    return true;
}

static bool skip_name(parser *p, const char *s)
{
    if (p->failed || !is_name(p, s)) return false;
    advance(p);
    return true;
}

static bool expect(parser *p, int kind, const char *what)
{
    if (p->failed) return false;
    if (skip(p, kind)) return true;
    (void)fail(p, "%s is expected", what);
    return false;
}

static int symbol(parser *p, const char *name)
{
    for (int i = 0; i < p->t->n_symbol; i++)
        if (strcmp(p->t->symbol[i], name) == 0) return i;
    int64_t n = p->t->n_symbol;
    if (n >= 4000) {
        (void)fail(p, "more than 4000 names");
        return 0;
    }
    const char **s = (const char **)(uintptr_t)p->t->symbol;
    *CDR_PUSH(p->t->pool, s, n, p->cap_symbol) = name;
    p->t->symbol = s;
    p->t->n_symbol = (int)n;
    return (int)n - 1;
}

static bool deeper(parser *p)
{
    if (p->failed) return false;
    if (++p->depth > DEPTH_MAX) (void)fail(p, "nested deeper than %d", (int)DEPTH_MAX);
    return !p->failed;
}

/* ---- expressions -------------------------------------------------------------------------------------------------------- */
static cdr__jn *parse_cond(parser *p);
static cdr__jn *parse_or(parser *p);
static cdr__jn *parse_unary(parser *p, bool filters);

static cdr__jn *constant(parser *p, cdr__jv v)
{
    cdr__jn *n = make(p, CDR__N_CONST);
    if (n) n->value = v;
    return n;
}

static cdr__jv string_value(parser *p, const char *s, size_t n)
{
    cdr__jstr *str = cdr_pool_alloc(p->t->pool, sizeof *str);
    *str = (cdr__jstr){ .s = s, .n = n };
    cdr__jv v = { .kind = CDR__J_STRING };
    v.u.s = str;
    return v;
}

/* Strings that follow each other are one. */
static cdr__jn *parse_string(parser *p)
{
    const char *s = p->k->s;
    size_t n = p->k->n;
    advance(p);
    while (is(p, CDR__T_STRING)) {
        char *more = cdr_pool_alloc(p->t->pool, n + p->k->n + 1);
        memcpy(more, s, n);
        memcpy(more + n, p->k->s, p->k->n);
        s = more;
        n += p->k->n;
        advance(p);
    }
    return constant(p, string_value(p, s, n));
}

static cdr__jn *parse_name(parser *p)
{
    const char *s = p->k->s;
    cdr__jv v = cdr__jv_none();
    cdr__jn *n;
    if (strcmp(s, "true") == 0 || strcmp(s, "True") == 0) v = cdr__jv_bool(true);
    else if (strcmp(s, "false") == 0 || strcmp(s, "False") == 0) v = cdr__jv_bool(false);
    else if (strcmp(s, "none") != 0 && strcmp(s, "None") != 0) v.kind = CDR__J_MISSING;
    if (p->macros > 0 && (strcmp(s, "varargs") == 0 || strcmp(s, "kwargs") == 0 || strcmp(s, "caller") == 0)) return refuse(p, s, " (of a macro)");
    n = v.kind == CDR__J_MISSING ? make(p, CDR__N_NAME) : constant(p, v);
    if (n && v.kind == CDR__J_MISSING) n->sym = symbol(p, s);
    advance(p);
    return n;
}

static cdr__jn *parse_list(parser *p)
{
    nodes l = { 0 };
    cdr__jn *n = make(p, CDR__N_LIST);
    advance(p);
    while (!p->failed && !is(p, CDR__T_RBRACKET)) {
        if (l.n && !expect(p, CDR__T_COMMA, "',' or ']'")) break;
        if (is(p, CDR__T_RBRACKET)) break;
        add(p, &l, parse_cond(p));
    }
    (void)expect(p, CDR__T_RBRACKET, "']'");
    return with_list(n, &l);
}

static cdr__jn *parse_dict(parser *p)
{
    nodes l = { 0 };
    cdr__jn *n = make(p, CDR__N_DICT);
    advance(p);
    while (!p->failed && !is(p, CDR__T_RBRACE)) {
        if (l.n && !expect(p, CDR__T_COMMA, "',' or '}'")) break;
        if (is(p, CDR__T_RBRACE)) break;
        add(p, &l, parse_cond(p));
        (void)expect(p, CDR__T_COLON, "':'");
        add(p, &l, parse_cond(p));
    }
    (void)expect(p, CDR__T_RBRACE, "'}'");
    return with_list(n, &l);
}

static bool tuple_end(const parser *p, const char *stop)
{
    return is(p, CDR__T_VAR_END) || is(p, CDR__T_BLOCK_END) || is(p, CDR__T_RPAREN) || (stop && is_name(p, stop));
}

/* cond: conditional expressions may occur; empty: "()" is a tuple; stop: a name that ends it. */
static cdr__jn *parse_tuple(parser *p, bool cond, bool empty, const char *stop)
{
    nodes l = { 0 };
    bool tuple = false;
    int line = p->k->line;
    while (!p->failed) {
        if (l.n && !expect(p, CDR__T_COMMA, "','")) break;
        if (tuple_end(p, stop)) break;
        add(p, &l, cond ? parse_cond(p) : parse_or(p));
        if (!is(p, CDR__T_COMMA)) break;
        tuple = true;
    }
    if (p->failed) return NULL;
    if (!tuple && l.n) return (cdr__jn *)(uintptr_t)l.v[0];
    if (!tuple && !empty) return fail(p, "an expression is expected");
    cdr__jn *n = with_list(make(p, CDR__N_TUPLE), &l);
    if (n) n->line = line;
    return n;
}

static cdr__jn *parse_primary(parser *p)
{
    cdr__jn *n;
    if (p->failed) return NULL;
    switch (p->k->kind) {
        case CDR__T_NAME: return parse_name(p);
        case CDR__T_STRING: return parse_string(p);
        case CDR__T_INT: n = constant(p, cdr__jv_int(p->k->i)); break;
        case CDR__T_FLOAT: n = constant(p, cdr__jv_float(p->k->f)); break;
        case CDR__T_LBRACKET: return parse_list(p);
        case CDR__T_LBRACE: return parse_dict(p);
        case CDR__T_LPAREN:
            advance(p);
            n = parse_tuple(p, true, true, NULL);
            (void)expect(p, CDR__T_RPAREN, "')'");
            return p->failed ? NULL : n;
        default: return fail(p, "an expression is expected");
    }
    advance(p);
    return n;
}

/* One subscript between brackets: an expression, or a slice whose parts may be left out. */
static cdr__jn *parse_subscript(parser *p, cdr__jn *of)
{
    const cdr__jn *part[3] = { NULL, NULL, NULL };
    int n_colon = 0;
    if (!is(p, CDR__T_COLON)) part[0] = parse_cond(p);
    while (!p->failed && is(p, CDR__T_COLON) && n_colon < 2) {
        advance(p);
        n_colon++;
        if (!is(p, CDR__T_COLON) && !is(p, CDR__T_RBRACKET) && !is(p, CDR__T_COMMA)) part[n_colon] = parse_cond(p);
    }
    if (is(p, CDR__T_COMMA)) return refuse(p, "a subscript of several values", "");
    if (!expect(p, CDR__T_RBRACKET, "']'")) return NULL;
    if (n_colon == 0) return make2(p, CDR__N_ITEM, of, part[0]);
    cdr__jn *n = make(p, CDR__N_SLICE);
    if (!n) return NULL;
    n->a = of;
    n->b = part[0];
    n->c = part[1];
    n->d = part[2];
    return n;
}

/* "(" is the current token. */
static bool parse_args(parser *p, nodes *l)
{
    bool keyword = false;
    advance(p);
    while (!p->failed && !is(p, CDR__T_RPAREN)) {
        if (l->n && !expect(p, CDR__T_COMMA, "',' or ')'")) break;
        if (is(p, CDR__T_RPAREN)) break;
        if (is(p, CDR__T_MUL) || is(p, CDR__T_POW)) (void)refuse(p, "arguments from a list or mapping (* or **)", "");
        else if (is(p, CDR__T_NAME) && p->k[1].kind == CDR__T_ASSIGN) {
            cdr__jn *n = make(p, CDR__N_KEYWORD);
            if (!n) break;
            n->text = p->k->s;
            p->k += 2;
            n->a = parse_cond(p);
            keyword = true;
            for (int64_t i = 0; i < l->n; i++)
                if (l->v[i]->kind == CDR__N_KEYWORD && strcmp(l->v[i]->text, n->text) == 0) (void)fail(p, "argument %s is given twice", n->text);
            add(p, l, n);
        } else if (keyword) {
            (void)fail(p, "an argument without a name behind one with a name");
        } else {
            add(p, l, parse_cond(p));
        }
        if (l->n > ARGS_MAX) (void)fail(p, "more than %d arguments", (int)ARGS_MAX);
    }
    return expect(p, CDR__T_RPAREN, "')'");
}

static cdr__jn *parse_call(parser *p, cdr__jn *of)
{
    nodes l = { 0 };
    cdr__jn *n = make(p, CDR__N_CALL);
    if (!n || !parse_args(p, &l)) return NULL;
    n->a = of;
    return with_list(n, &l);
}

static cdr__jn *parse_postfix(parser *p, cdr__jn *n)
{
    while (n && !p->failed) {
        if (is(p, CDR__T_LPAREN)) {
            n = parse_call(p, n);
        } else if (skip(p, CDR__T_LBRACKET)) {
            n = parse_subscript(p, n);
        } else if (skip(p, CDR__T_DOT)) {
            cdr__jn *up = n;
            if (is(p, CDR__T_INT)) {
                n = make2(p, CDR__N_ITEM, up, constant(p, cdr__jv_int(p->k->i)));
            } else {
                if (!is(p, CDR__T_NAME)) return fail(p, "a name or a number is expected behind '.'");
                n = make(p, CDR__N_ATTR);
                if (!n) return NULL;
                n->a = up;
                n->text = p->k->s;
            }
            advance(p);
        } else {
            break;
        }
    }
    return p->failed ? NULL : n;
}

/* A name of a filter or test, with its arguments; n->builtin says what it is. */
static cdr__jn *parse_applied(parser *p, cdr__jn *n, const cdr__jbuiltin *(*find)(const char *), const char *what)
{
    if (!n) return NULL;
    if (!is(p, CDR__T_NAME)) return fail(p, "the name of a %s is expected", what);
    char said[120];
    n->text = p->k->s;
    n->builtin = find(n->text);
    if (!n->builtin || !n->builtin->run) {
        (void)snprintf(said, sizeof said, "the %s %.60s", what, n->text);
        return refuse(p, said, n->builtin ? n->builtin->why : "");
    }
    advance(p);
    return n;
}

static cdr__jn *parse_filter(parser *p, const cdr__jn *of)
{
    nodes l = { 0 };
    cdr__jn *n = parse_applied(p, make(p, CDR__N_FILTER), cdr__jinja_filter, "filter");
    if (!n) return NULL;
    n->a = of;
    if (is(p, CDR__T_LPAREN) && !parse_args(p, &l)) return NULL;
    return with_list(n, &l);
}

static bool begins_argument(const parser *p)
{
    if (is(p, CDR__T_NAME)) return !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and");
    return is(p, CDR__T_STRING) || is(p, CDR__T_INT) || is(p, CDR__T_FLOAT) || is(p, CDR__T_LBRACKET) || is(p, CDR__T_LBRACE);
}

/* "is" is the current token. */
static cdr__jn *parse_test(parser *p, cdr__jn *of)
{
    nodes l = { 0 };
    advance(p);
    bool negated = skip_name(p, "not");
    cdr__jn *n = parse_applied(p, make(p, CDR__N_TEST), cdr__jinja_test, "test");
    if (!n) return NULL;
    n->a = of;
    if (is(p, CDR__T_LPAREN)) {
        if (!parse_args(p, &l)) return NULL;
    } else if (begins_argument(p)) {
        if (is_name(p, "is")) return fail(p, "tests cannot follow each other");
        add(p, &l, parse_postfix(p, parse_primary(p)));
    }
    n = with_list(n, &l);
    return negated ? make2(p, CDR__N_NOT, n, n) : n;
}

static cdr__jn *parse_filters(parser *p, cdr__jn *n)
{
    while (n && !p->failed) {
        if (skip(p, CDR__T_PIPE)) n = parse_filter(p, n);
        else if (is_name(p, "is")) n = parse_test(p, n);
        else if (is(p, CDR__T_LPAREN)) n = parse_call(p, n);
        else break;
    }
    return p->failed ? NULL : n;
}

static cdr__jn *parse_unary(parser *p, bool filters)
{
    cdr__jn *n;
    if (!deeper(p)) return NULL;
    if (is(p, CDR__T_SUB) || is(p, CDR__T_ADD)) {
        int kind = is(p, CDR__T_SUB) ? CDR__N_NEG : CDR__N_POS;
        advance(p);
        cdr__jn *a = parse_unary(p, false);
        n = make2(p, kind, a, a);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    if (filters) n = parse_filters(p, n);
    p->depth--;
    return p->failed ? NULL : n;
}

static int binary_level(int kind)
{
    switch (kind) {
        case CDR__T_POW: return 0;
        case CDR__T_MUL: case CDR__T_DIV: case CDR__T_FLOORDIV: case CDR__T_MOD: return 1;
        case CDR__T_TILDE: return 2;
        case CDR__T_ADD: case CDR__T_SUB: return 3;
        default: return -1;
    }
}

/* Levels from power up to sum; each is left-associative, as it is in Jinja (power too). */
static cdr__jn *parse_level(parser *p, int level)
{
    cdr__jn *left = level < 0 ? parse_unary(p, true) : parse_level(p, level - 1);
    if (level < 0) return left;
    nodes all = { 0 };
    while (left && !p->failed && binary_level(p->k->kind) == level) {
        int op = p->k->kind;
        advance(p);
        cdr__jn *right = parse_level(p, level - 1);
        if (level == 2) {                    /* a ~ b ~ c is one node, so that a long chain is copied once */
            if (!all.n) add(p, &all, left);
            add(p, &all, right);
            continue;
        }
        left = make2(p, CDR__N_BINARY, left, right);
        if (left) left->op = (uint8_t)op;
    }
    return all.n && !p->failed ? with_list(make(p, CDR__N_CONCAT), &all) : p->failed ? NULL : left;
}

static int compare_op(const parser *p)
{
    int k = p->k->kind;
    if (k == CDR__T_EQ || k == CDR__T_NE || k == CDR__T_LT || k == CDR__T_LE || k == CDR__T_GT || k == CDR__T_GE) return k;
    if (is_name(p, "in")) return CDR__T_IN;
    return is_name(p, "not") && next_is_name(p, "in") ? CDR__T_NOT_IN : -1;
}

static cdr__jn *parse_compare(parser *p)
{
    cdr__jn *left = parse_level(p, 3);
    nodes l = { 0 };
    for (int op; left && !p->failed && (op = compare_op(p)) >= 0;) {
        advance(p);
        if (op == CDR__T_NOT_IN) advance(p);
        cdr__jn *n = make(p, CDR__N_OPERAND);
        if (!n) return NULL;
        n->op = (uint8_t)op;
        n->a = parse_level(p, 3);
        add(p, &l, n);
    }
    if (p->failed || !l.n) return p->failed ? NULL : left;
    cdr__jn *n = make(p, CDR__N_COMPARE);
    if (n) n->a = left;
    return with_list(n, &l);
}

static cdr__jn *parse_not(parser *p)
{
    if (!is_name(p, "not")) return parse_compare(p);
    if (!deeper(p)) return NULL;
    advance(p);
    cdr__jn *a = parse_not(p), *n = make2(p, CDR__N_NOT, a, a);
    p->depth--;
    return n;
}

static cdr__jn *parse_and(parser *p)
{
    cdr__jn *left = parse_not(p);
    while (left && skip_name(p, "and")) left = make2(p, CDR__N_AND, left, parse_not(p));
    return p->failed ? NULL : left;
}

static cdr__jn *parse_or(parser *p)
{
    cdr__jn *left = parse_and(p);
    while (left && skip_name(p, "or")) left = make2(p, CDR__N_OR, left, parse_and(p));
    return p->failed ? NULL : left;
}

static cdr__jn *parse_cond(parser *p)
{
    if (!deeper(p)) return NULL;
    cdr__jn *value = parse_or(p);
    while (value && skip_name(p, "if")) {
        cdr__jn *test = parse_or(p), *n = make2(p, CDR__N_COND, test, value);
        if (n && skip_name(p, "else")) n->c = parse_cond(p);
        value = n;
    }
    p->depth--;
    return p->failed ? NULL : value;
}

/* ---- statements ---------------------------------------------------------------------------------------------------------------- */
static cdr__jn *parse_body(parser *p, const char *const *stops);

/* A target of set or for: a name, several with commas, or an attribute of a namespace. */
static cdr__jn *parse_target(parser *p, bool attribute, const char *stop)
{
    nodes l = { 0 };
    bool tuple = false, bracket = skip(p, CDR__T_LPAREN);
    while (!p->failed) {
        if (l.n && (bracket ? is(p, CDR__T_RPAREN) : tuple_end(p, stop) || is(p, CDR__T_ASSIGN))) break;
        if (!is(p, CDR__T_NAME)) return fail(p, "a name is expected");
        const char *s = p->k->s;
        if (strcmp(s, "true") == 0 || strcmp(s, "false") == 0 || strcmp(s, "none") == 0 || strcmp(s, "True") == 0 || strcmp(s, "False") == 0 || strcmp(s, "None") == 0)
            return fail(p, "%s cannot be assigned", s);
        cdr__jn *n = make(p, CDR__N_NAME);
        if (!n) return NULL;
        n->sym = symbol(p, s);
        advance(p);
        if (attribute && skip(p, CDR__T_DOT)) {
            if (!is(p, CDR__T_NAME)) return fail(p, "a name is expected behind '.'");
            n->kind = CDR__N_NS_TARGET;
            n->text = p->k->s;
            advance(p);
        }
        add(p, &l, n);
        if (!is(p, CDR__T_COMMA)) break;
        advance(p);
        tuple = true;
    }
    if (bracket) (void)expect(p, CDR__T_RPAREN, "')'");
    if (p->failed) return NULL;
    return tuple ? with_list(make(p, CDR__N_TUPLE), &l) : (cdr__jn *)(uintptr_t)l.v[0];
}

/* What a block stands in, up to one of the stops, which becomes the current token. */
static bool block_body(parser *p, nodes *l, const char *const *stops)
{
    (void)skip(p, CDR__T_COLON);
    if (!expect(p, CDR__T_BLOCK_END, "the end of the tag, %}")) return false;
    cdr__jn *body = parse_body(p, stops);
    if (!body) return false;
    for (int i = 0; i < body->n; i++) add(p, l, body->list[i]);
    return !p->failed;
}

static cdr__jn *parse_if(parser *p)
{
    static const char *const stops[] = { "elif", "else", "endif", NULL }, *const last[] = { "endif", NULL };
    nodes l = { 0 };
    cdr__jn *n = make(p, CDR__N_IF);
    if (!n) return NULL;
    n->a = parse_tuple(p, false, false, NULL);
    if (!block_body(p, &l, stops)) return NULL;
    n = with_list(n, &l);
    cdr__jn *end = n;
    while (skip_name(p, "elif")) {           /* else: one IF in a body; a chain of any length without recursion */
        nodes more = { 0 };
        cdr__jn *inner = make(p, CDR__N_IF);
        if (!inner) return NULL;
        inner->a = parse_tuple(p, false, false, NULL);
        if (!block_body(p, &more, stops)) return NULL;
        end->c = with_list(inner, &more);
        end = inner;
    }
    if (skip_name(p, "else")) {
        nodes more = { 0 };
        if (!block_body(p, &more, last)) return NULL;
        end->c = with_list(make(p, CDR__N_BODY), &more);
    }
    advance(p);
    return p->failed ? NULL : n;
}

static cdr__jn *parse_for(parser *p)
{
    static const char *const stops[] = { "endfor", "else", NULL }, *const last[] = { "endfor", NULL };
    nodes l = { 0 };
    cdr__jn *n = make(p, CDR__N_FOR);
    if (!n) return NULL;
    n->a = parse_target(p, false, "in");
    if (!skip_name(p, "in")) return fail(p, "'in' is expected");
    n->b = parse_tuple(p, false, false, "recursive");
    if (skip_name(p, "if")) n->c = parse_cond(p);
    if (is_name(p, "recursive")) return refuse(p, "a recursive loop", "");
    p->loops++;
    bool ok = block_body(p, &l, stops);
    p->loops--;
    if (!ok) return NULL;
    n = with_list(n, &l);
    if (skip_name(p, "else")) {
        nodes more = { 0 };
        if (!block_body(p, &more, last)) return NULL;
        n->d = with_list(make(p, CDR__N_BODY), &more);
    }
    advance(p);
    return p->failed ? NULL : n;
}

static cdr__jn *parse_chain(parser *p)
{
    cdr__jn *n = make(p, CDR__N_HOLE);
    do n = parse_filter(p, n);
    while (n && skip(p, CDR__T_PIPE));
    return n;
}

static cdr__jn *parse_set(parser *p)
{
    static const char *const stops[] = { "endset", NULL };
    nodes l = { 0 };
    cdr__jn *target = parse_target(p, true, NULL);
    if (skip(p, CDR__T_ASSIGN)) return make2(p, CDR__N_SET, target, parse_tuple(p, true, false, NULL));
    cdr__jn *n = make(p, CDR__N_SET_BLOCK);
    if (!n) return NULL;
    n->a = target;
    if (skip(p, CDR__T_PIPE)) n->b = parse_chain(p);
    int loops = p->loops;
    p->loops = 0;
    bool ok = block_body(p, &l, stops);
    p->loops = loops;
    advance(p);
    return ok ? with_list(n, &l) : NULL;
}

static cdr__jn *parse_macro(parser *p)
{
    static const char *const stops[] = { "endmacro", NULL };
    nodes l = { 0 };
    cdr__jparam *param = NULL;
    int64_t n_param = 0, cap = 0;
    cdr__jn *n = make(p, CDR__N_MACRO);
    if (!n || !is(p, CDR__T_NAME)) return fail(p, "the name of the macro is expected");
    n->sym = symbol(p, p->k->s);
    advance(p);
    if (!expect(p, CDR__T_LPAREN, "'('")) return NULL;
    while (!p->failed && !is(p, CDR__T_RPAREN)) {
        if (n_param && !expect(p, CDR__T_COMMA, "',' or ')'")) break;
        if (!is(p, CDR__T_NAME)) return fail(p, "the name of a parameter is expected");
        const char *s = p->k->s;
        int sym = symbol(p, s);
        advance(p);
        const cdr__jn *otherwise = skip(p, CDR__T_ASSIGN) ? parse_cond(p) : NULL;
        if (!otherwise && n_param && param[n_param - 1].otherwise) return fail(p, "a parameter without a default behind one that has one");
        *CDR_PUSH(p->t->pool, param, n_param, cap) = (cdr__jparam){ .sym = sym, .name = s, .otherwise = otherwise };
        if (n_param > ARGS_MAX) return fail(p, "more than %d parameters", (int)ARGS_MAX);
    }
    if (!expect(p, CDR__T_RPAREN, "')'")) return NULL;
    int loops = p->loops;
    p->loops = 0;
    p->macros++;
    bool ok = block_body(p, &l, stops);
    p->macros--;
    p->loops = loops;
    if (!ok) return NULL;
    advance(p);
    n->param = param;
    n->n_param = (int)n_param;
    return with_list(n, &l);
}

/* {% generation %} and {% filter %}: a body of its own scope, which a loop's break cannot leave. */
static cdr__jn *parse_enclosed(parser *p, int kind)
{
    static const char *const generation[] = { "endgeneration", NULL }, *const filter[] = { "endfilter", NULL };
    nodes l = { 0 };
    cdr__jn *n = make(p, kind);
    if (n && kind == CDR__N_FILTER_BLOCK) n->b = parse_chain(p);
    if (kind == CDR__N_GENERATION) p->t->has_generation = true;
    int loops = p->loops;
    p->loops = 0;
    bool ok = n && block_body(p, &l, kind == CDR__N_GENERATION ? generation : filter);
    p->loops = loops;
    if (!ok) return NULL;
    advance(p);
    return with_list(n, &l);
}

static cdr__jn *parse_statement(parser *p)
{
    if (!is(p, CDR__T_NAME)) return fail(p, "a statement is expected behind {%%");
    const char *s = p->k->s;
    char said[80];
    if (skip_name(p, "if")) return parse_if(p);
    if (skip_name(p, "for")) return parse_for(p);
    if (skip_name(p, "set")) return parse_set(p);
    if (skip_name(p, "macro")) return parse_macro(p);
    if (skip_name(p, "generation")) return parse_enclosed(p, CDR__N_GENERATION);
    if (skip_name(p, "filter")) return parse_enclosed(p, CDR__N_FILTER_BLOCK);
    if (is_name(p, "break") || is_name(p, "continue")) {
        if (p->loops == 0) return fail(p, "%s outside of a loop", s);
        advance(p);
        return make(p, strcmp(s, "break") == 0 ? CDR__N_BREAK : CDR__N_CONTINUE);
    }
    if (strncmp(s, "end", 3) == 0 || strcmp(s, "else") == 0 || strcmp(s, "elif") == 0) return fail(p, "%s without its beginning", s);
    (void)snprintf(said, sizeof said, "the statement %.60s", s);
    return refuse(p, said, "");
}

static cdr__jn *parse_output(parser *p)
{
    cdr__jn *n = make(p, CDR__N_OUTPUT), *a = parse_tuple(p, true, false, NULL);
    if (!n || !a || !expect(p, CDR__T_VAR_END, "the end of the tag, }}")) return NULL;
    n->a = a;
    return n;
}

static cdr__jn *parse_data(parser *p)
{
    cdr__jn *n = make(p, CDR__N_DATA);
    if (n) n->value = string_value(p, p->k->s, p->k->n);
    advance(p);
    return n;
}

static bool is_stop(const parser *p, const char *const *stops)
{
    for (; stops && *stops; stops++)
        if (is_name(p, *stops)) return true;
    return false;
}

static cdr__jn *parse_body(parser *p, const char *const *stops)
{
    nodes l = { 0 };
    if (!deeper(p)) return NULL;
    while (!p->failed && !is(p, CDR__T_END)) {
        if (is(p, CDR__T_DATA)) {
            add(p, &l, parse_data(p));
        } else if (skip(p, CDR__T_VAR_BEGIN)) {
            add(p, &l, parse_output(p));
        } else {
            if (!expect(p, CDR__T_BLOCK_BEGIN, "text or a tag")) break;
            if (is_stop(p, stops)) break;
            add(p, &l, parse_statement(p));
            (void)expect(p, CDR__T_BLOCK_END, "the end of the tag, %}");
        }
    }
    p->depth--;
    if (!p->failed && stops && is(p, CDR__T_END)) return fail(p, "the template ends where {%% %s %%} is expected", stops[0]);
    return p->failed ? NULL : with_list(make(p, CDR__N_BODY), &l);
}

cdr_status cdr__jinja_parse(const char *source, size_t bytes, const char *where, cdr__jtemplate **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr__jtemplate *t = cdr_pool_alloc(pool, sizeof *t);
    cdr__jtokens tokens = { .pool = pool, .where = where, .err = err };
    t->pool = pool;
    t->where = cdr_pool_strdup(pool, where);
    if (cdr__jinja_lex(&tokens, source, bytes) != CDR_OK) {
        cdr_pool_free(pool);
        return CDR_EDATA;
    }
    parser p = { .t = t, .err = err, .k = tokens.token };
    t->body = parse_body(&p, NULL);
    if (p.failed) {
        cdr_pool_free(pool);
        return CDR_EDATA;
    }
    *out = t;
    return CDR_OK;
}

void cdr__jinja_free(cdr__jtemplate *t)
{
    if (t) cdr_pool_free(t->pool);
}
