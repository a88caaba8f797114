/* jinja_parse.c: tokens of a template as a tree, by recursive descent over the grammar of Jinja 3.1, with a bound on its depth: nodes, tokens, statements
 * (expressions: jinja_parse_expr.c).
 *
 * Statements: if, for (with filter, else, break, continue), set (value, block, attribute of a namespace), macro, filter,
 * generation. Every other one (include, import, extends, block, call, with, autoescape, do, recursive loops) is refused with
 * its line, and so are filters and tests that the subset has not: a template is understood as a whole or not at all.
 * Source: Jinja's template designer documentation, its parser's order of rules; checked by tools/peers/chat.py.
 */
#include "chat/jinja_parse.h"

enum { DEPTH_MAX = 100, NODES_MAX = 200000 };

/* ---- nodes -------------------------------------------------------------------------------------------------------------- */
/* Fails once, and returns NULL for the callers to hand on. */
cdr__jn *cdr__jp_fail(cdr__jparser *p, const char *fmt, ...)
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

cdr__jn *cdr__jp_refuse(cdr__jparser *p, const char *what, const char *hint)
{
    if (p->failed) return NULL;
    (void)cdr__jinja_fail(p->t->where, p->k->line, p->err, "jinja.unsupported", "the template uses %s, which is not supported%s. Set data.chat_format to "
                          "k3_xtml, kimi_k2 or chatml where one of them is the model's, or rewrite the line", what, hint);
    p->failed = true;
    return NULL;
}

cdr__jn *cdr__jp_make(cdr__jparser *p, int kind)
{
    if (p->failed) return NULL;
    if (++p->n_nodes > NODES_MAX) return cdr__jp_fail(p, "more than %d parts of expressions and statements", (int)NODES_MAX);
    cdr__jn *n = cdr_pool_alloc(p->t->pool, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = p->k->line;
    return n;
}

cdr__jn *cdr__jp_make2(cdr__jparser *p, int kind, const cdr__jn *a, const cdr__jn *b)
{
    cdr__jn *n = a && b ? cdr__jp_make(p, kind) : NULL;
    if (!n) return NULL;
    n->a = a;
    n->b = b;
    return n;
}

void cdr__jp_add(cdr__jparser *p, cdr__jnodes *l, const cdr__jn *n)
{
    if (!n) return;
    *CDR_PUSH(p->t->pool, l->v, l->n, l->cap) = n;
}

cdr__jn *cdr__jp_with_list(cdr__jn *n, const cdr__jnodes *l)
{
    if (!n) return NULL;
    n->list = l->v;
    n->n = (int)l->n;
    return n;
}

cdr__jv cdr__jp_string(cdr__jparser *p, const char *s, size_t n)
{
    cdr__jstr *str = cdr_pool_alloc(p->t->pool, sizeof *str);
    *str = (cdr__jstr){ .s = s, .n = n };
    cdr__jv v = { .kind = CDR__J_STRING };
    v.u.s = str;
    return v;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------- */
bool cdr__jp_expect(cdr__jparser *p, int kind, const char *what)
{
    if (p->failed) return false;
    if (cdr__jp_skip(p, kind)) return true;
    (void)cdr__jp_fail(p, "%s is expected", what);
    return false;
}

int cdr__jp_symbol(cdr__jparser *p, const char *name)
{
    for (int i = 0; i < p->t->n_symbol; i++)
        if (strcmp(p->t->symbol[i], name) == 0) return i;
    int64_t n = p->t->n_symbol;
    if (n >= 4000) {
        (void)cdr__jp_fail(p, "more than 4000 names");
        return 0;
    }
    const char **s = (const char **)(uintptr_t)p->t->symbol;
    *CDR_PUSH(p->t->pool, s, n, p->cap_symbol) = name;
    p->t->symbol = s;
    p->t->n_symbol = (int)n;
    return (int)n - 1;
}

bool cdr__jp_deeper(cdr__jparser *p)
{
    if (p->failed) return false;
    if (++p->depth > DEPTH_MAX) (void)cdr__jp_fail(p, "nested deeper than %d", (int)DEPTH_MAX);
    return !p->failed;
}

/* ---- statements ---------------------------------------------------------------------------------------------------------------- */
static cdr__jn *parse_body(cdr__jparser *p, const char *const *stops);

/* A target of set or for: a name, several with commas, or an attribute of a namespace. */
static cdr__jn *parse_target(cdr__jparser *p, bool attribute, const char *stop)
{
    cdr__jnodes l = { 0 };
    bool tuple = false, bracket = cdr__jp_skip(p, CDR__T_LPAREN);
    while (!p->failed) {
        if (l.n && (bracket ? cdr__jp_is(p, CDR__T_RPAREN) : cdr__jp_tuple_end(p, stop) || cdr__jp_is(p, CDR__T_ASSIGN))) break;
        if (!cdr__jp_is(p, CDR__T_NAME)) return cdr__jp_fail(p, "a name is expected");
        const char *s = p->k->s;
        if (strcmp(s, "true") == 0 || strcmp(s, "false") == 0 || strcmp(s, "none") == 0 || strcmp(s, "True") == 0 || strcmp(s, "False") == 0 || strcmp(s, "None") == 0)
            return cdr__jp_fail(p, "%s cannot be assigned", s);
        cdr__jn *n = cdr__jp_make(p, CDR__N_NAME);
        if (!n) return NULL;
        n->sym = cdr__jp_symbol(p, s);
        cdr__jp_advance(p);
        if (attribute && cdr__jp_skip(p, CDR__T_DOT)) {
            if (!cdr__jp_is(p, CDR__T_NAME)) return cdr__jp_fail(p, "a name is expected behind '.'");
            n->kind = CDR__N_NS_TARGET;
            n->text = p->k->s;
            cdr__jp_advance(p);
        }
        cdr__jp_add(p, &l, n);
        if (!cdr__jp_is(p, CDR__T_COMMA)) break;
        cdr__jp_advance(p);
        tuple = true;
    }
    if (bracket) (void)cdr__jp_expect(p, CDR__T_RPAREN, "')'");
    if (p->failed) return NULL;
    return tuple ? cdr__jp_with_list(cdr__jp_make(p, CDR__N_TUPLE), &l) : (cdr__jn *)(uintptr_t)l.v[0];
}

/* What a block stands in, up to one of the stops, which becomes the current token. */
static bool block_body(cdr__jparser *p, cdr__jnodes *l, const char *const *stops)
{
    (void)cdr__jp_skip(p, CDR__T_COLON);
    if (!cdr__jp_expect(p, CDR__T_BLOCK_END, "the end of the tag, %}")) return false;
    cdr__jn *body = parse_body(p, stops);
    if (!body) return false;
    for (int i = 0; i < body->n; i++) cdr__jp_add(p, l, body->list[i]);
    return !p->failed;
}

static cdr__jn *parse_if(cdr__jparser *p)
{
    static const char *const stops[] = { "elif", "else", "endif", NULL }, *const last[] = { "endif", NULL };
    cdr__jnodes l = { 0 };
    cdr__jn *n = cdr__jp_make(p, CDR__N_IF);
    if (!n) return NULL;
    n->a = cdr__jp_tuple(p, false, false, NULL);
    if (!block_body(p, &l, stops)) return NULL;
    n = cdr__jp_with_list(n, &l);
    cdr__jn *end = n;
    while (cdr__jp_skip_name(p, "elif")) {           /* else: one IF in a body; a chain of any length without recursion */
        cdr__jnodes more = { 0 };
        cdr__jn *inner = cdr__jp_make(p, CDR__N_IF);
        if (!inner) return NULL;
        inner->a = cdr__jp_tuple(p, false, false, NULL);
        if (!block_body(p, &more, stops)) return NULL;
        end->c = cdr__jp_with_list(inner, &more);
        end = inner;
    }
    if (cdr__jp_skip_name(p, "else")) {
        cdr__jnodes more = { 0 };
        if (!block_body(p, &more, last)) return NULL;
        end->c = cdr__jp_with_list(cdr__jp_make(p, CDR__N_BODY), &more);
    }
    cdr__jp_advance(p);
    return p->failed ? NULL : n;
}

static cdr__jn *parse_for(cdr__jparser *p)
{
    static const char *const stops[] = { "endfor", "else", NULL }, *const last[] = { "endfor", NULL };
    cdr__jnodes l = { 0 };
    cdr__jn *n = cdr__jp_make(p, CDR__N_FOR);
    if (!n) return NULL;
    n->a = parse_target(p, false, "in");
    if (!cdr__jp_skip_name(p, "in")) return cdr__jp_fail(p, "'in' is expected");
    n->b = cdr__jp_tuple(p, false, false, "recursive");
    if (cdr__jp_skip_name(p, "if")) n->c = cdr__jp_cond(p);
    if (cdr__jp_is_name(p, "recursive")) return cdr__jp_refuse(p, "a recursive loop", "");
    p->loops++;
    bool ok = block_body(p, &l, stops);
    p->loops--;
    if (!ok) return NULL;
    n = cdr__jp_with_list(n, &l);
    if (cdr__jp_skip_name(p, "else")) {
        cdr__jnodes more = { 0 };
        if (!block_body(p, &more, last)) return NULL;
        n->d = cdr__jp_with_list(cdr__jp_make(p, CDR__N_BODY), &more);
    }
    cdr__jp_advance(p);
    return p->failed ? NULL : n;
}

static cdr__jn *parse_chain(cdr__jparser *p)
{
    cdr__jn *n = cdr__jp_make(p, CDR__N_HOLE);
    do n = cdr__jp_filter(p, n);
    while (n && cdr__jp_skip(p, CDR__T_PIPE));
    return n;
}

static cdr__jn *parse_set(cdr__jparser *p)
{
    static const char *const stops[] = { "endset", NULL };
    cdr__jnodes l = { 0 };
    cdr__jn *target = parse_target(p, true, NULL);
    if (cdr__jp_skip(p, CDR__T_ASSIGN)) return cdr__jp_make2(p, CDR__N_SET, target, cdr__jp_tuple(p, true, false, NULL));
    cdr__jn *n = cdr__jp_make(p, CDR__N_SET_BLOCK);
    if (!n) return NULL;
    n->a = target;
    if (cdr__jp_skip(p, CDR__T_PIPE)) n->b = parse_chain(p);
    int loops = p->loops;
    p->loops = 0;
    bool ok = block_body(p, &l, stops);
    p->loops = loops;
    cdr__jp_advance(p);
    return ok ? cdr__jp_with_list(n, &l) : NULL;
}

static cdr__jn *parse_macro(cdr__jparser *p)
{
    static const char *const stops[] = { "endmacro", NULL };
    cdr__jnodes l = { 0 };
    cdr__jparam *param = NULL;
    int64_t n_param = 0, cap = 0;
    cdr__jn *n = cdr__jp_make(p, CDR__N_MACRO);
    if (!n || !cdr__jp_is(p, CDR__T_NAME)) return cdr__jp_fail(p, "the name of the macro is expected");
    n->sym = cdr__jp_symbol(p, p->k->s);
    cdr__jp_advance(p);
    if (!cdr__jp_expect(p, CDR__T_LPAREN, "'('")) return NULL;
    while (!p->failed && !cdr__jp_is(p, CDR__T_RPAREN)) {
        if (n_param && !cdr__jp_expect(p, CDR__T_COMMA, "',' or ')'")) break;
        if (!cdr__jp_is(p, CDR__T_NAME)) return cdr__jp_fail(p, "the name of a parameter is expected");
        const char *s = p->k->s;
        int sym = cdr__jp_symbol(p, s);
        cdr__jp_advance(p);
        const cdr__jn *otherwise = cdr__jp_skip(p, CDR__T_ASSIGN) ? cdr__jp_cond(p) : NULL;
        if (!otherwise && n_param && param[n_param - 1].otherwise) return cdr__jp_fail(p, "a parameter without a default behind one that has one");
        *CDR_PUSH(p->t->pool, param, n_param, cap) = (cdr__jparam){ .sym = sym, .name = s, .otherwise = otherwise };
        if (n_param > CDR__JP_ARGS) return cdr__jp_fail(p, "more than %d parameters", (int)CDR__JP_ARGS);
    }
    if (!cdr__jp_expect(p, CDR__T_RPAREN, "')'")) return NULL;
    int loops = p->loops;
    p->loops = 0;
    p->macros++;
    bool ok = block_body(p, &l, stops);
    p->macros--;
    p->loops = loops;
    if (!ok) return NULL;
    cdr__jp_advance(p);
    n->param = param;
    n->n_param = (int)n_param;
    return cdr__jp_with_list(n, &l);
}

/* {% generation %} and {% filter %}: a body of its own scope, which a loop's break cannot leave. */
static cdr__jn *parse_enclosed(cdr__jparser *p, int kind)
{
    static const char *const generation[] = { "endgeneration", NULL }, *const filter[] = { "endfilter", NULL };
    cdr__jnodes l = { 0 };
    cdr__jn *n = cdr__jp_make(p, kind);
    if (n && kind == CDR__N_FILTER_BLOCK) n->b = parse_chain(p);
    if (kind == CDR__N_GENERATION) p->t->has_generation = true;
    int loops = p->loops;
    p->loops = 0;
    bool ok = n && block_body(p, &l, kind == CDR__N_GENERATION ? generation : filter);
    p->loops = loops;
    if (!ok) return NULL;
    cdr__jp_advance(p);
    return cdr__jp_with_list(n, &l);
}

static cdr__jn *parse_statement(cdr__jparser *p)
{
    if (!cdr__jp_is(p, CDR__T_NAME)) return cdr__jp_fail(p, "a statement is expected behind {%%");
    const char *s = p->k->s;
    char said[80];
    if (cdr__jp_skip_name(p, "if")) return parse_if(p);
    if (cdr__jp_skip_name(p, "for")) return parse_for(p);
    if (cdr__jp_skip_name(p, "set")) return parse_set(p);
    if (cdr__jp_skip_name(p, "macro")) return parse_macro(p);
    if (cdr__jp_skip_name(p, "generation")) return parse_enclosed(p, CDR__N_GENERATION);
    if (cdr__jp_skip_name(p, "filter")) return parse_enclosed(p, CDR__N_FILTER_BLOCK);
    if (cdr__jp_is_name(p, "break") || cdr__jp_is_name(p, "continue")) {
        if (p->loops == 0) return cdr__jp_fail(p, "%s outside of a loop", s);
        cdr__jp_advance(p);
        return cdr__jp_make(p, strcmp(s, "break") == 0 ? CDR__N_BREAK : CDR__N_CONTINUE);
    }
    if (strncmp(s, "end", 3) == 0 || strcmp(s, "else") == 0 || strcmp(s, "elif") == 0) return cdr__jp_fail(p, "%s without its beginning", s);
    (void)snprintf(said, sizeof said, "the statement %.60s", s);
    return cdr__jp_refuse(p, said, "");
}

static cdr__jn *parse_output(cdr__jparser *p)
{
    cdr__jn *n = cdr__jp_make(p, CDR__N_OUTPUT), *a = cdr__jp_tuple(p, true, false, NULL);
    if (!n || !a || !cdr__jp_expect(p, CDR__T_VAR_END, "the end of the tag, }}")) return NULL;
    n->a = a;
    return n;
}

static cdr__jn *parse_data(cdr__jparser *p)
{
    cdr__jn *n = cdr__jp_make(p, CDR__N_DATA);
    if (n) n->value = cdr__jp_string(p, p->k->s, p->k->n);
    cdr__jp_advance(p);
    return n;
}

static bool is_stop(const cdr__jparser *p, const char *const *stops)
{
    for (; stops && *stops; stops++)
        if (cdr__jp_is_name(p, *stops)) return true;
    return false;
}

static cdr__jn *parse_body(cdr__jparser *p, const char *const *stops)
{
    cdr__jnodes l = { 0 };
    if (!cdr__jp_deeper(p)) return NULL;
    while (!p->failed && !cdr__jp_is(p, CDR__T_END)) {
        if (cdr__jp_is(p, CDR__T_DATA)) {
            cdr__jp_add(p, &l, parse_data(p));
        } else if (cdr__jp_skip(p, CDR__T_VAR_BEGIN)) {
            cdr__jp_add(p, &l, parse_output(p));
        } else {
            if (!cdr__jp_expect(p, CDR__T_BLOCK_BEGIN, "text or a tag")) break;
            if (is_stop(p, stops)) break;
            cdr__jp_add(p, &l, parse_statement(p));
            (void)cdr__jp_expect(p, CDR__T_BLOCK_END, "the end of the tag, %}");
        }
    }
    p->depth--;
    if (!p->failed && stops && cdr__jp_is(p, CDR__T_END)) return cdr__jp_fail(p, "the template ends where {%% %s %%} is expected", stops[0]);
    return p->failed ? NULL : cdr__jp_with_list(cdr__jp_make(p, CDR__N_BODY), &l);
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
    cdr__jparser p = { .t = t, .err = err, .k = tokens.token };
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
