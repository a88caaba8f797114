/* jinja_eval.c: statements, scopes and macros.
 *
 * Scopes are Jinja's: the body of a loop has one of its own in each turn, a macro, a block that is captured and a generation
 * block have one; if has none. What set names is the scope that is current; what a name means is looked up outwards, then among
 * the variables of the template, then among functions. A macro's scope lies in the scope that it was defined in.
 * Bounds: steps (fuel), bytes of the arena and of output, depth of expressions and of calls. Recursion follows the tree and the
 * macros of the template, both bounded by DEPTH_MAX.
 */
#include "chat/jinja.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 900, MACROS_MAX = 100, FUEL = 20000000, MEMORY = 64 << 20 };
typedef enum { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED } flow;

bool cdr__jx_fail(cdr__jx *x, const char *id, const char *fmt, ...)
{
    char what[700];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    (void)cdr__jinja_fail(x->t->where, x->line, x->err, id, "%s", what);
    return false;
}

bool cdr__jx_burn(cdr__jx *x, int64_t steps)
{
    x->fuel -= steps + 1;
    if (x->fuel >= 0) return true;
    return cdr__jx_fail(x, "jinja.too-much", "the template takes more than %d million steps for this conversation; it is stopped", FUEL / 1000000);
}

/* ---- scopes ------------------------------------------------------------------------------------------------------------ */
cdr__jscope *cdr__jx_push(cdr__jx *x, cdr__jscope *up)
{
    cdr__jscope *s = cdr__jx_alloc(x, sizeof *s);
    if (!s) return NULL;
    s->up = up;
    x->scope = s;
    return s;
}

static cdr__jvar *find_var(cdr__jscope *s, int sym)
{
    for (int i = 0; i < s->n; i++)
        if (s->var[i].sym == sym) return &s->var[i];
    return NULL;
}

bool cdr__jx_define(cdr__jx *x, cdr__jscope *s, int sym, cdr__jv v)
{
    cdr__jvar *var = find_var(s, sym);
    if (!var) {
        if (s->n == s->cap) {
            int cap = CDR_MAX(4, s->cap * 2);
            cdr__jvar *more = cdr__jx_alloc(x, sizeof *more * (size_t)cap);
            if (!more) return false;
            if (s->n) memcpy(more, s->var, sizeof *more * (size_t)s->n);
            s->var = more;
            s->cap = cap;
        }
        var = &s->var[s->n++];
        var->sym = sym;
    }
    var->v = v;
    return cdr__jx_burn(x, s->n / 16);
}

void cdr__jinja_set(cdr__jx *x, const char *name, cdr__jv v)
{
    for (int i = 0; i < x->t->n_symbol; i++)
        if (strcmp(x->t->symbol[i], name) == 0) (void)cdr__jx_define(x, x->root, i, v);
}

static bool assign_attribute(cdr__jx *x, const cdr__jn *target, cdr__jv v)
{
    cdr__jv ns, key;
    cdr__jn name = *target;
    name.kind = CDR__N_NAME;
    if (!cdr__jx_eval(x, &name, &ns)) return false;
    if (ns.kind != CDR__J_NAMESPACE)
        return cdr__jx_fail(x, "jinja.type", "%s.%s is set, and %s is %s, no namespace", x->t->symbol[target->sym], target->text,
            x->t->symbol[target->sym], cdr__jv_type(&ns));
    return cdr__jv_text(x, target->text, &key) && cdr__jdict_put(x, ns.u.d, &key, &v);
}

bool cdr__jx_assign(cdr__jx *x, const cdr__jn *target, cdr__jv v)
{
    const cdr__jlist *items;
    if (target->kind == CDR__N_NAME) return cdr__jx_define(x, x->scope, target->sym, v);
    if (target->kind == CDR__N_NS_TARGET) return assign_attribute(x, target, v);
    if (v.kind == CDR__J_UNDEFINED) return cdr__jx_fail(x, "jinja.undefined", "%s is not defined, and is to be taken apart", v.u.name);
    if (!cdr__jv_items(x, &v, &items)) return false;
    if (items->n != target->n) return cdr__jx_fail(x, "jinja.type", "%lld values for %d names", (long long)items->n, target->n);
    for (int i = 0; i < target->n; i++)
        if (!cdr__jx_assign(x, target->list[i], items->v[i])) return false;
    return true;
}

/* ---- output --------------------------------------------------------------------------------------------------------------- */
bool cdr__jx_output(cdr__jx *x, const cdr__jstr *s)
{
    if (!cdr__jx_burn(x, (int64_t)(s->n / 16))) return false;
    if (x->out->s.n + s->n > x->bytes_max)
        return cdr__jx_fail(x, "jinja.too-much", "the template writes more than %zu MiB for this conversation; it is stopped", x->bytes_max >> 20);
    size_t from = x->out->tag.n;
    cdr__jout_str(x->out, s);
    for (size_t i = from; x->generating && i < x->out->tag.n; i++) x->out->tag.s[i] = (char)((uint8_t)x->out->tag.s[i] | CDR__TAG_GENERATED);
    return true;
}

void cdr__jx_capture(cdr__jx *x, cdr__jout *o, cdr__jout **before)
{
    *o = (cdr__jout){ 0 };
    *before = x->out;
    x->out = o;
}

bool cdr__jx_captured(cdr__jx *x, cdr__jout *o, cdr__jout *before, bool ok, cdr__jv *out)
{
    x->out = before;
    return cdr__jout_done(x, o, ok, out);
}

/* ---- statements --------------------------------------------------------------------------------------------------------------- */
static flow run_list(cdr__jx *x, const cdr__jn *const *list, int n);

bool cdr__jx_statements(cdr__jx *x, const cdr__jn *const *list, int n) { return run_list(x, list, n) != FLOW_FAILED; }

static flow run_output(cdr__jx *x, const cdr__jn *n)
{
    cdr__jv v;
    const cdr__jstr *s;
    if (!cdr__jx_eval(x, n->a, &v) || !cdr__jv_str(x, &v, &s)) return FLOW_FAILED;
    return cdr__jx_output(x, s) ? FLOW_NEXT : FLOW_FAILED;
}

static flow run_if(cdr__jx *x, const cdr__jn *n)
{
    while (n && n->kind == CDR__N_IF) {
        cdr__jv test;
        x->line = n->line;
        if (!cdr__jx_eval(x, n->a, &test)) return FLOW_FAILED;
        if (cdr__jv_truth(&test)) return run_list(x, n->list, n->n);
        n = n->c;
    }
    return n ? run_list(x, n->list, n->n) : FLOW_NEXT;
}

/* The items for which the loop's filter holds, each judged in a scope of its own. */
static bool filter_items(cdr__jx *x, const cdr__jn *n, cdr__jscope *up, const cdr__jlist **items)
{
    cdr__jlist *kept;
    cdr__jv v, yes;
    if (!cdr__jv_list(x, (*items)->n, CDR__J_LIST, &kept, &v)) return false;
    kept->n = 0;
    for (int64_t i = 0; i < (*items)->n; i++) {
        if (!cdr__jx_push(x, up) || !cdr__jx_assign(x, n->a, (*items)->v[i]) || !cdr__jx_eval(x, n->c, &yes)) return false;
        if (cdr__jv_truth(&yes)) kept->v[kept->n++] = (*items)->v[i];
    }
    *items = kept;
    return true;
}

static int loop_symbol(const cdr__jx *x)
{
    for (int i = 0; i < x->t->n_symbol; i++)
        if (strcmp(x->t->symbol[i], "loop") == 0) return i;
    return -1;
}

static flow run_turns(cdr__jx *x, const cdr__jn *n, cdr__jscope *up, const cdr__jlist *items)
{
    int sym = loop_symbol(x);
    cdr__jloop *loop = cdr__jx_alloc(x, sizeof *loop);
    cdr__jv v = { .kind = CDR__J_LOOP };
    if (!loop) return FLOW_FAILED;
    *loop = (cdr__jloop){ .items = items, .depth = 1 };
    v.u.loop = loop;
    for (int64_t i = 0; i < items->n; i++) {
        cdr__jscope *s = cdr__jx_push(x, up);
        loop->i = i;
        if (!s || (sym >= 0 && !cdr__jx_define(x, s, sym, v)) || !cdr__jx_assign(x, n->a, items->v[i])) return FLOW_FAILED;
        flow f = run_list(x, n->list, n->n);
        if (f == FLOW_FAILED) return f;
        if (f == FLOW_BREAK) break;
    }
    return FLOW_NEXT;
}

static flow run_for(cdr__jx *x, const cdr__jn *n)
{
    cdr__jscope *up = x->scope;
    cdr__jv over;
    const cdr__jlist *items;
    if (!cdr__jx_eval(x, n->b, &over) || !cdr__jv_items(x, &over, &items)) return FLOW_FAILED;
    if (n->c && !filter_items(x, n, up, &items)) return FLOW_FAILED;
    flow f = FLOW_NEXT;
    if (items->n) f = run_turns(x, n, up, items);
    else if (n->d && cdr__jx_push(x, up)) f = run_list(x, n->d->list, n->d->n);
    x->scope = up;
    return f;
}

/* The output of a block as a string, in a scope of its own. */
static bool capture_block(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jscope *up = x->scope;
    cdr__jout o, *before;
    if (!cdr__jx_push(x, up)) return false;
    cdr__jx_capture(x, &o, &before);
    bool ok = run_list(x, n->list, n->n) == FLOW_NEXT;
    x->scope = up;
    return cdr__jx_captured(x, &o, before, ok, out);
}

/* A chain of filters applied to a value: the innermost one applies to a HOLE. */
static bool apply_chain(cdr__jx *x, const cdr__jn *chain, cdr__jv *v)
{
    const cdr__jn *order[32];
    int n = 0;
    for (const cdr__jn *f = chain; f && f->kind == CDR__N_FILTER; f = f->a) {
        if (n == CDR_COUNT(order)) return cdr__jx_fail(x, "jinja.too-much", "more than %d filters of one block", CDR_COUNT(order));
        order[n++] = f;
    }
    while (n > 0) {
        cdr__jn hole = { .kind = CDR__N_CONST, .value = *v }, f = *order[--n];
        f.a = &hole;
        if (!cdr__jx_eval(x, &f, v)) return false;
    }
    return true;
}

static flow run_capture(cdr__jx *x, const cdr__jn *n)
{
    cdr__jv v;
    const cdr__jstr *s;
    if (!capture_block(x, n, &v) || !apply_chain(x, n->b, &v)) return FLOW_FAILED;
    if (n->kind == CDR__N_SET_BLOCK) return cdr__jx_assign(x, n->a, v) ? FLOW_NEXT : FLOW_FAILED;
    return cdr__jv_str(x, &v, &s) && cdr__jx_output(x, s) ? FLOW_NEXT : FLOW_FAILED;
}

static flow run_generation(cdr__jx *x, const cdr__jn *n)
{
    cdr__jscope *up = x->scope;
    bool before = x->generating;
    if (!cdr__jx_push(x, up)) return FLOW_FAILED;
    x->generating = true;
    flow f = run_list(x, n->list, n->n);
    x->generating = before;
    x->scope = up;
    return f;
}

static flow define_macro(cdr__jx *x, const cdr__jn *n)
{
    cdr__jmacro *m = cdr__jx_alloc(x, sizeof *m);
    cdr__jv v = { .kind = CDR__J_MACRO };
    if (!m) return FLOW_FAILED;
    *m = (cdr__jmacro){ .node = n, .scope = x->scope };
    v.u.macro = m;
    return cdr__jx_define(x, x->scope, n->sym, v) ? FLOW_NEXT : FLOW_FAILED;
}

static flow run_one(cdr__jx *x, const cdr__jn *n)
{
    cdr__jv v;
    switch (n->kind) {
        case CDR__N_DATA: return cdr__jx_output(x, n->value.u.s) ? FLOW_NEXT : FLOW_FAILED;
        case CDR__N_OUTPUT: return run_output(x, n);
        case CDR__N_IF: return run_if(x, n);
        case CDR__N_FOR: return run_for(x, n);
        case CDR__N_SET: return cdr__jx_eval(x, n->b, &v) && cdr__jx_assign(x, n->a, v) ? FLOW_NEXT : FLOW_FAILED;
        case CDR__N_SET_BLOCK: case CDR__N_FILTER_BLOCK: return run_capture(x, n);
        case CDR__N_MACRO: return define_macro(x, n);
        case CDR__N_GENERATION: return run_generation(x, n);
        case CDR__N_BREAK: return FLOW_BREAK;
        case CDR__N_CONTINUE: return FLOW_CONTINUE;
        default: CDR_CHECK(n->kind == CDR__N_BODY); return run_list(x, n->list, n->n);
    }
}

static flow run_list(cdr__jx *x, const cdr__jn *const *list, int n)
{
    if (++x->depth > DEPTH_MAX) {
        (void)cdr__jx_fail(x, "jinja.too-much", "statements and calls nested deeper than %d", (int)DEPTH_MAX);
        return FLOW_FAILED;
    }
    flow f = FLOW_NEXT;
    for (int i = 0; i < n && f == FLOW_NEXT; i++) {
        x->line = list[i]->line;
        f = cdr__jx_burn(x, 1) ? run_one(x, list[i]) : FLOW_FAILED;
    }
    x->depth--;
    return f;
}

/* ---- macros -------------------------------------------------------------------------------------------------------------------------- */
static bool bind_macro(cdr__jx *x, const cdr__jn *n, const cdr__jv *a, int n_a, const char *const *key, const cdr__jv *value, int n_key)
{
    const char *name = x->t->symbol[n->sym];
    if (n_a > n->n_param) return cdr__jx_fail(x, "jinja.call", "macro %s takes %d arguments, %d are given", name, n->n_param, n_a);
    for (int i = 0; i < n->n_param; i++) {
        cdr__jv v = { .kind = CDR__J_MISSING };
        if (i < n_a) v = a[i];
        for (int k = 0; k < n_key; k++) {
            if (strcmp(key[k], n->param[i].name) != 0) continue;
            if (i < n_a) return cdr__jx_fail(x, "jinja.call", "argument %s of macro %s is given twice", key[k], name);
            v = value[k];
        }
        if (v.kind == CDR__J_MISSING) {
            v = cdr__jv_undefined(n->param[i].name);
            if (n->param[i].otherwise && !cdr__jx_eval(x, n->param[i].otherwise, &v)) return false;
        }
        if (!cdr__jx_define(x, x->scope, n->param[i].sym, v)) return false;
    }
    for (int k = 0; k < n_key; k++) {
        int i = 0;
        while (i < n->n_param && strcmp(key[k], n->param[i].name) != 0) i++;
        if (i == n->n_param) return cdr__jx_fail(x, "jinja.call", "macro %s has no parameter %s", name, key[k]);
    }
    return true;
}

bool cdr__jx_call_macro(cdr__jx *x, const cdr__jmacro *m, const cdr__jv *a, int n, const char *const *key, const cdr__jv *value, int n_key, cdr__jv *out)
{
    cdr__jscope *before = x->scope;
    cdr__jout o, *out_before;
    int line = x->line;
    if (++x->macros > MACROS_MAX) return cdr__jx_fail(x, "jinja.too-much", "macros call each other deeper than %d", (int)MACROS_MAX);
    bool ok = cdr__jx_push(x, m->scope) && bind_macro(x, m->node, a, n, key, value, n_key);
    cdr__jx_capture(x, &o, &out_before);
    ok = ok && cdr__jx_statements(x, m->node->list, m->node->n);
    x->scope = before;
    x->macros--;
    if (ok) x->line = line;
    return cdr__jx_captured(x, &o, out_before, ok, out);
}

/* ---- a run ------------------------------------------------------------------------------------------------------------------------------ */
void cdr__jinja_begin(cdr__jx *x, const cdr__jtemplate *t, size_t input_bytes, cdr_err *err)
{
    *x = (cdr__jx){ .t = t, .err = err, .fuel = FUEL + (int64_t)input_bytes * 100, .bytes_max = (size_t)MEMORY + input_bytes * 64, .line = 1 };
    x->out = &x->whole;
    x->root = cdr__jx_push(x, NULL);
}

bool cdr__jinja_run(cdr__jx *x)
{
    if (!x->root || x->fuel < 0) return false;
    return cdr__jx_statements(x, x->t->body->list, x->t->body->n);
}

struct cdr__jchunk { struct cdr__jchunk *next; };                 /* the head of what jinja_value.c allocates */

void cdr__jinja_end(cdr__jx *x)
{
    for (struct cdr__jchunk *c = x->chunk, *next; c; c = next) {
        next = c->next;
        cdr_free(c);
    }
    x->chunk = NULL;
    cdr__jout_free(&x->whole);
}
