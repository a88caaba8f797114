/* jinja_parse_expr.c: the expressions of a template as trees. Each rule is a function, from the loosest to the tightest:
 *
 *   tuple:  cond { "," cond }              cond: or [ "if" or [ "else" cond ] ]
 *   or:     and { "or" and }               and:  not { "and" not }        not: "not" not | compare
 *   compare: sum { op sum }                sum:  concat { +|- concat }    concat: product { "~" product }
 *   product: power { *|/|//|% power }      power: unary { "**" unary }    unary: -|+ unary | primary postfix filters
 *
 * Source: the order of rules of Jinja 3.1's parser; checked by tools/peers/chat.py.
 */
#include "chat/jinja_parse.h"

static cdr__jn *parse_or(cdr__jparser *p);
static cdr__jn *parse_unary(cdr__jparser *p, bool filters);

static cdr__jn *constant(cdr__jparser *p, cdr__jv v)
{
    cdr__jn *n = cdr__jp_make(p, CDR__N_CONST);
    if (n) n->value = v;
    return n;
}

/* Strings that follow each other are one. */
static cdr__jn *parse_string(cdr__jparser *p)
{
    const char *s = p->k->s;
    size_t n = p->k->n;
    cdr__jp_advance(p);
    while (cdr__jp_is(p, CDR__T_STRING)) {
        char *more = cdr_pool_alloc(p->t->pool, n + p->k->n + 1);
        memcpy(more, s, n);
        memcpy(more + n, p->k->s, p->k->n);
        s = more;
        n += p->k->n;
        cdr__jp_advance(p);
    }
    return constant(p, cdr__jp_string(p, s, n));
}

static cdr__jn *parse_name(cdr__jparser *p)
{
    const char *s = p->k->s;
    cdr__jv v = cdr__jv_none();
    cdr__jn *n;
    if (strcmp(s, "true") == 0 || strcmp(s, "True") == 0) v = cdr__jv_bool(true);
    else if (strcmp(s, "false") == 0 || strcmp(s, "False") == 0) v = cdr__jv_bool(false);
    else if (strcmp(s, "none") != 0 && strcmp(s, "None") != 0) v.kind = CDR__J_MISSING;
    if (p->macros > 0 && (strcmp(s, "varargs") == 0 || strcmp(s, "kwargs") == 0 || strcmp(s, "caller") == 0)) return cdr__jp_refuse(p, s, " (of a macro)");
    n = v.kind == CDR__J_MISSING ? cdr__jp_make(p, CDR__N_NAME) : constant(p, v);
    if (n && v.kind == CDR__J_MISSING) n->sym = cdr__jp_symbol(p, s);
    cdr__jp_advance(p);
    return n;
}

static cdr__jn *parse_list(cdr__jparser *p)
{
    cdr__jnodes l = { 0 };
    cdr__jn *n = cdr__jp_make(p, CDR__N_LIST);
    cdr__jp_advance(p);
    while (!p->failed && !cdr__jp_is(p, CDR__T_RBRACKET)) {
        if (l.n && !cdr__jp_expect(p, CDR__T_COMMA, "',' or ']'")) break;
        if (cdr__jp_is(p, CDR__T_RBRACKET)) break;
        cdr__jp_add(p, &l, cdr__jp_cond(p));
    }
    (void)cdr__jp_expect(p, CDR__T_RBRACKET, "']'");
    return cdr__jp_with_list(n, &l);
}

static cdr__jn *parse_dict(cdr__jparser *p)
{
    cdr__jnodes l = { 0 };
    cdr__jn *n = cdr__jp_make(p, CDR__N_DICT);
    cdr__jp_advance(p);
    while (!p->failed && !cdr__jp_is(p, CDR__T_RBRACE)) {
        if (l.n && !cdr__jp_expect(p, CDR__T_COMMA, "',' or '}'")) break;
        if (cdr__jp_is(p, CDR__T_RBRACE)) break;
        cdr__jp_add(p, &l, cdr__jp_cond(p));
        (void)cdr__jp_expect(p, CDR__T_COLON, "':'");
        cdr__jp_add(p, &l, cdr__jp_cond(p));
    }
    (void)cdr__jp_expect(p, CDR__T_RBRACE, "'}'");
    return cdr__jp_with_list(n, &l);
}

bool cdr__jp_tuple_end(const cdr__jparser *p, const char *stop)
{
    return cdr__jp_is(p, CDR__T_VAR_END) || cdr__jp_is(p, CDR__T_BLOCK_END) || cdr__jp_is(p, CDR__T_RPAREN) || (stop && cdr__jp_is_name(p, stop));
}

cdr__jn *cdr__jp_tuple(cdr__jparser *p, bool cond, bool empty, const char *stop)
{
    cdr__jnodes l = { 0 };
    bool tuple = false;
    int line = p->k->line;
    while (!p->failed) {
        if (l.n && !cdr__jp_expect(p, CDR__T_COMMA, "','")) break;
        if (cdr__jp_tuple_end(p, stop)) break;
        cdr__jp_add(p, &l, cond ? cdr__jp_cond(p) : parse_or(p));
        if (!cdr__jp_is(p, CDR__T_COMMA)) break;
        tuple = true;
    }
    if (p->failed) return NULL;
    if (!tuple && l.n) return (cdr__jn *)(uintptr_t)l.v[0];
    if (!tuple && !empty) return cdr__jp_fail(p, "an expression is expected");
    cdr__jn *n = cdr__jp_with_list(cdr__jp_make(p, CDR__N_TUPLE), &l);
    if (n) n->line = line;
    return n;
}

static cdr__jn *parse_primary(cdr__jparser *p)
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
            cdr__jp_advance(p);
            n = cdr__jp_tuple(p, true, true, NULL);
            (void)cdr__jp_expect(p, CDR__T_RPAREN, "')'");
            return p->failed ? NULL : n;
        default: return cdr__jp_fail(p, "an expression is expected");
    }
    cdr__jp_advance(p);
    return n;
}

/* One subscript between brackets: an expression, or a slice whose parts may be left out. */
static cdr__jn *parse_subscript(cdr__jparser *p, cdr__jn *of)
{
    const cdr__jn *part[3] = { NULL, NULL, NULL };
    int n_colon = 0;
    if (!cdr__jp_is(p, CDR__T_COLON)) part[0] = cdr__jp_cond(p);
    while (!p->failed && cdr__jp_is(p, CDR__T_COLON) && n_colon < 2) {
        cdr__jp_advance(p);
        n_colon++;
        if (!cdr__jp_is(p, CDR__T_COLON) && !cdr__jp_is(p, CDR__T_RBRACKET) && !cdr__jp_is(p, CDR__T_COMMA)) part[n_colon] = cdr__jp_cond(p);
    }
    if (cdr__jp_is(p, CDR__T_COMMA)) return cdr__jp_refuse(p, "a subscript of several values", "");
    if (!cdr__jp_expect(p, CDR__T_RBRACKET, "']'")) return NULL;
    if (n_colon == 0) return cdr__jp_make2(p, CDR__N_ITEM, of, part[0]);
    cdr__jn *n = cdr__jp_make(p, CDR__N_SLICE);
    if (!n) return NULL;
    n->a = of;
    n->b = part[0];
    n->c = part[1];
    n->d = part[2];
    return n;
}

/* "(" is the current token. */
static bool parse_args(cdr__jparser *p, cdr__jnodes *l)
{
    bool keyword = false;
    cdr__jp_advance(p);
    while (!p->failed && !cdr__jp_is(p, CDR__T_RPAREN)) {
        if (l->n && !cdr__jp_expect(p, CDR__T_COMMA, "',' or ')'")) break;
        if (cdr__jp_is(p, CDR__T_RPAREN)) break;
        if (cdr__jp_is(p, CDR__T_MUL) || cdr__jp_is(p, CDR__T_POW)) (void)cdr__jp_refuse(p, "arguments from a list or mapping (* or **)", "");
        else if (cdr__jp_is(p, CDR__T_NAME) && p->k[1].kind == CDR__T_ASSIGN) {
            cdr__jn *n = cdr__jp_make(p, CDR__N_KEYWORD);
            if (!n) break;
            n->text = p->k->s;
            p->k += 2;
            n->a = cdr__jp_cond(p);
            keyword = true;
            for (int64_t i = 0; i < l->n; i++)
                if (l->v[i]->kind == CDR__N_KEYWORD && strcmp(l->v[i]->text, n->text) == 0) (void)cdr__jp_fail(p, "argument %s is given twice", n->text);
            cdr__jp_add(p, l, n);
        } else if (keyword) {
            (void)cdr__jp_fail(p, "an argument without a name behind one with a name");
        } else {
            cdr__jp_add(p, l, cdr__jp_cond(p));
        }
        if (l->n > CDR__JP_ARGS) (void)cdr__jp_fail(p, "more than %d arguments", (int)CDR__JP_ARGS);
    }
    return cdr__jp_expect(p, CDR__T_RPAREN, "')'");
}

static cdr__jn *parse_call(cdr__jparser *p, cdr__jn *of)
{
    cdr__jnodes l = { 0 };
    cdr__jn *n = cdr__jp_make(p, CDR__N_CALL);
    if (!n || !parse_args(p, &l)) return NULL;
    n->a = of;
    return cdr__jp_with_list(n, &l);
}

static cdr__jn *parse_postfix(cdr__jparser *p, cdr__jn *n)
{
    while (n && !p->failed) {
        if (cdr__jp_is(p, CDR__T_LPAREN)) {
            n = parse_call(p, n);
        } else if (cdr__jp_skip(p, CDR__T_LBRACKET)) {
            n = parse_subscript(p, n);
        } else if (cdr__jp_skip(p, CDR__T_DOT)) {
            cdr__jn *up = n;
            if (cdr__jp_is(p, CDR__T_INT)) {
                n = cdr__jp_make2(p, CDR__N_ITEM, up, constant(p, cdr__jv_int(p->k->i)));
            } else {
                if (!cdr__jp_is(p, CDR__T_NAME)) return cdr__jp_fail(p, "a name or a number is expected behind '.'");
                n = cdr__jp_make(p, CDR__N_ATTR);
                if (!n) return NULL;
                n->a = up;
                n->text = p->k->s;
            }
            cdr__jp_advance(p);
        } else {
            break;
        }
    }
    return p->failed ? NULL : n;
}

/* A name of a filter or test, with its arguments; n->builtin says what it is. */
static cdr__jn *parse_applied(cdr__jparser *p, cdr__jn *n, const cdr__jbuiltin *(*find)(const char *), const char *what)
{
    if (!n) return NULL;
    if (!cdr__jp_is(p, CDR__T_NAME)) return cdr__jp_fail(p, "the name of a %s is expected", what);
    char said[120];
    n->text = p->k->s;
    n->builtin = find(n->text);
    if (!n->builtin || !n->builtin->run) {
        (void)snprintf(said, sizeof said, "the %s %.60s", what, n->text);
        return cdr__jp_refuse(p, said, n->builtin ? n->builtin->why : "");
    }
    cdr__jp_advance(p);
    return n;
}

cdr__jn *cdr__jp_filter(cdr__jparser *p, const cdr__jn *of)
{
    cdr__jnodes l = { 0 };
    cdr__jn *n = parse_applied(p, cdr__jp_make(p, CDR__N_FILTER), cdr__jinja_filter, "filter");
    if (!n) return NULL;
    n->a = of;
    if (cdr__jp_is(p, CDR__T_LPAREN) && !parse_args(p, &l)) return NULL;
    return cdr__jp_with_list(n, &l);
}

static bool begins_argument(const cdr__jparser *p)
{
    if (cdr__jp_is(p, CDR__T_NAME)) return !cdr__jp_is_name(p, "else") && !cdr__jp_is_name(p, "or") && !cdr__jp_is_name(p, "and");
    return cdr__jp_is(p, CDR__T_STRING) || cdr__jp_is(p, CDR__T_INT) || cdr__jp_is(p, CDR__T_FLOAT) || cdr__jp_is(p, CDR__T_LBRACKET) || cdr__jp_is(p, CDR__T_LBRACE);
}

/* "is" is the current token. */
static cdr__jn *parse_test(cdr__jparser *p, cdr__jn *of)
{
    cdr__jnodes l = { 0 };
    cdr__jp_advance(p);
    bool negated = cdr__jp_skip_name(p, "not");
    cdr__jn *n = parse_applied(p, cdr__jp_make(p, CDR__N_TEST), cdr__jinja_test, "test");
    if (!n) return NULL;
    n->a = of;
    if (cdr__jp_is(p, CDR__T_LPAREN)) {
        if (!parse_args(p, &l)) return NULL;
    } else if (begins_argument(p)) {
        if (cdr__jp_is_name(p, "is")) return cdr__jp_fail(p, "tests cannot follow each other");
        cdr__jp_add(p, &l, parse_postfix(p, parse_primary(p)));
    }
    n = cdr__jp_with_list(n, &l);
    return negated ? cdr__jp_make2(p, CDR__N_NOT, n, n) : n;
}

static cdr__jn *parse_filters(cdr__jparser *p, cdr__jn *n)
{
    while (n && !p->failed) {
        if (cdr__jp_skip(p, CDR__T_PIPE)) n = cdr__jp_filter(p, n);
        else if (cdr__jp_is_name(p, "is")) n = parse_test(p, n);
        else if (cdr__jp_is(p, CDR__T_LPAREN)) n = parse_call(p, n);
        else break;
    }
    return p->failed ? NULL : n;
}

static cdr__jn *parse_unary(cdr__jparser *p, bool filters)
{
    cdr__jn *n;
    if (!cdr__jp_deeper(p)) return NULL;
    if (cdr__jp_is(p, CDR__T_SUB) || cdr__jp_is(p, CDR__T_ADD)) {
        int kind = cdr__jp_is(p, CDR__T_SUB) ? CDR__N_NEG : CDR__N_POS;
        cdr__jp_advance(p);
        cdr__jn *a = parse_unary(p, false);
        n = cdr__jp_make2(p, kind, a, a);
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
static cdr__jn *parse_level(cdr__jparser *p, int level)
{
    cdr__jn *left = level < 0 ? parse_unary(p, true) : parse_level(p, level - 1);
    if (level < 0) return left;
    cdr__jnodes all = { 0 };
    while (left && !p->failed && binary_level(p->k->kind) == level) {
        int op = p->k->kind;
        cdr__jp_advance(p);
        cdr__jn *right = parse_level(p, level - 1);
        if (level == 2) {                    /* a ~ b ~ c is one node, so that a long chain is copied once */
            if (!all.n) cdr__jp_add(p, &all, left);
            cdr__jp_add(p, &all, right);
            continue;
        }
        left = cdr__jp_make2(p, CDR__N_BINARY, left, right);
        if (left) left->op = (uint8_t)op;
    }
    return all.n && !p->failed ? cdr__jp_with_list(cdr__jp_make(p, CDR__N_CONCAT), &all) : p->failed ? NULL : left;
}

static bool next_is_name(const cdr__jparser *p, const char *s) { return p->k->kind != CDR__T_END && p->k[1].kind == CDR__T_NAME && strcmp(p->k[1].s, s) == 0; }

static int compare_op(const cdr__jparser *p)
{
    int k = p->k->kind;
    if (k == CDR__T_EQ || k == CDR__T_NE || k == CDR__T_LT || k == CDR__T_LE || k == CDR__T_GT || k == CDR__T_GE) return k;
    if (cdr__jp_is_name(p, "in")) return CDR__T_IN;
    return cdr__jp_is_name(p, "not") && next_is_name(p, "in") ? CDR__T_NOT_IN : -1;
}

static cdr__jn *parse_compare(cdr__jparser *p)
{
    cdr__jn *left = parse_level(p, 3);
    cdr__jnodes l = { 0 };
    for (int op; left && !p->failed && (op = compare_op(p)) >= 0;) {
        cdr__jp_advance(p);
        if (op == CDR__T_NOT_IN) cdr__jp_advance(p);
        cdr__jn *n = cdr__jp_make(p, CDR__N_OPERAND);
        if (!n) return NULL;
        n->op = (uint8_t)op;
        n->a = parse_level(p, 3);
        cdr__jp_add(p, &l, n);
    }
    if (p->failed || !l.n) return p->failed ? NULL : left;
    cdr__jn *n = cdr__jp_make(p, CDR__N_COMPARE);
    if (n) n->a = left;
    return cdr__jp_with_list(n, &l);
}

static cdr__jn *parse_not(cdr__jparser *p)
{
    if (!cdr__jp_is_name(p, "not")) return parse_compare(p);
    if (!cdr__jp_deeper(p)) return NULL;
    cdr__jp_advance(p);
    cdr__jn *a = parse_not(p), *n = cdr__jp_make2(p, CDR__N_NOT, a, a);
    p->depth--;
    return n;
}

static cdr__jn *parse_and(cdr__jparser *p)
{
    cdr__jn *left = parse_not(p);
    while (left && cdr__jp_skip_name(p, "and")) left = cdr__jp_make2(p, CDR__N_AND, left, parse_not(p));
    return p->failed ? NULL : left;
}

static cdr__jn *parse_or(cdr__jparser *p)
{
    cdr__jn *left = parse_and(p);
    while (left && cdr__jp_skip_name(p, "or")) left = cdr__jp_make2(p, CDR__N_OR, left, parse_and(p));
    return p->failed ? NULL : left;
}

cdr__jn *cdr__jp_cond(cdr__jparser *p)
{
    if (!cdr__jp_deeper(p)) return NULL;
    cdr__jn *value = parse_or(p);
    while (value && cdr__jp_skip_name(p, "if")) {
        cdr__jn *test = parse_or(p), *n = cdr__jp_make2(p, CDR__N_COND, test, value);
        if (n && cdr__jp_skip_name(p, "else")) n->c = cdr__jp_cond(p);
        value = n;
    }
    p->depth--;
    return p->failed ? NULL : value;
}
