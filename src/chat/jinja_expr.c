/* jinja_expr.c: expressions: names, subscripts, operators, calls. Meaning and refusals are Python's: and, or give an operand,
 * division gives a real number, // and % round down, a slice counts characters, an undefined value is false, prints nothing and
 * may be compared, and anything else with it is an error.
 * Whole numbers are 64 bits wide; an operation that leaves them is an error.
 */
#include "chat/jinja.h"

#include <math.h>
#include <string.h>

enum { DEPTH_MAX = 900 };

static bool undefined(cdr__jx *x, const cdr__jv *v) { return cdr__jx_fail(x, "jinja.undefined", "%s is not defined", v->u.name ? v->u.name : "a value"); }

/* ---- names and members ----------------------------------------------------------------------------------------------- */
static bool eval_name(cdr__jx *x, int sym, cdr__jv *out)
{
    const char *name = x->t->symbol[sym];
    int64_t steps = 0;
    for (cdr__jscope *s = x->scope; s; s = s->up)
        for (int i = 0; i < s->n; i++, steps++)
            if (s->var[i].sym == sym) {
                *out = s->var[i].v;
                return cdr__jx_burn(x, steps / 8);
            }
    const cdr__jbuiltin *f = cdr__jinja_function(name);
    *out = cdr__jv_undefined(name);
    if (!f) return cdr__jx_burn(x, steps / 8);
    if (!f->run) return cdr__jx_fail(x, "jinja.unsupported", "the template uses %s, which is not supported%s", name, f->why);
    out->kind = CDR__J_FUNCTION;
    out->u.function = f;
    return true;
}

static bool bound(cdr__jx *x, const cdr__jv *self, const cdr__jbuiltin *b, cdr__jv *out)
{
    cdr__jmethod *m = cdr__jx_alloc(x, sizeof *m);
    cdr__jv *copy = m ? cdr__jx_alloc(x, sizeof *copy) : NULL;
    if (!copy) return false;
    *copy = *self;
    *m = (cdr__jmethod){ .b = b, .self = copy };
    out->kind = CDR__J_METHOD;
    out->u.method = m;
    return true;
}

static bool loop_attribute(cdr__jx *x, const cdr__jv *of, const char *name, cdr__jv *out)
{
    const cdr__jloop *l = of->u.loop;
    int64_t n = l->items->n, i = l->i;
    if (strcmp(name, "index") == 0) *out = cdr__jv_int(i + 1);
    else if (strcmp(name, "index0") == 0) *out = cdr__jv_int(i);
    else if (strcmp(name, "revindex") == 0) *out = cdr__jv_int(n - i);
    else if (strcmp(name, "revindex0") == 0) *out = cdr__jv_int(n - i - 1);
    else if (strcmp(name, "first") == 0) *out = cdr__jv_bool(i == 0);
    else if (strcmp(name, "last") == 0) *out = cdr__jv_bool(i == n - 1);
    else if (strcmp(name, "length") == 0) *out = cdr__jv_int(n);
    else if (strcmp(name, "depth") == 0) *out = cdr__jv_int(1);
    else if (strcmp(name, "depth0") == 0) *out = cdr__jv_int(0);
    else if (strcmp(name, "previtem") == 0) *out = i > 0 ? l->items->v[i - 1] : cdr__jv_undefined("loop.previtem");
    else if (strcmp(name, "nextitem") == 0) *out = i + 1 < n ? l->items->v[i + 1] : cdr__jv_undefined("loop.nextitem");
    else {
        const cdr__jbuiltin *b = cdr__jinja_method(of, name);
        if (b && b->run) return bound(x, of, b, out);
        return cdr__jx_fail(x, "jinja.unsupported", "loop.%s is not supported", name);
    }
    return true;
}

/* A method of Python's type, where it has one of that name: false in *has where not. */
static bool method(cdr__jx *x, const cdr__jv *of, const char *name, bool *has, cdr__jv *out)
{
    const cdr__jbuiltin *b = cdr__jinja_method(of, name);
    *has = b != NULL;
    if (!b) return true;
    if (!b->run) return cdr__jx_fail(x, "jinja.unsupported", "the template uses .%s of %s, which is not supported%s", name, cdr__jv_type(of), b->why);
    return bound(x, of, b, out);
}

bool cdr__jx_attribute(cdr__jx *x, const cdr__jv *of, const char *name, cdr__jv *out)
{
    bool has = false;
    if (of->kind == CDR__J_UNDEFINED) return undefined(x, of);
    if (of->safe) return cdr__jx_fail(x, "jinja.unsupported", ".%s of a text behind the filter safe is not supported", name);
    if (of->kind == CDR__J_LOOP) return loop_attribute(x, of, name, out);
    if (of->kind != CDR__J_NAMESPACE && !method(x, of, name, &has, out)) return false;
    if (has) return true;
    const cdr__jv *v = of->kind == CDR__J_DICT || of->kind == CDR__J_NAMESPACE ? cdr__jdict_name(of->u.d, name) : NULL;
    *out = v ? *v : cdr__jv_undefined(name);
    return true;
}

static bool sequence_item(cdr__jx *x, const cdr__jv *of, int64_t i, cdr__jv *out)
{
    int64_t n = of->kind == CDR__J_STRING ? cdr__j_length(of->u.s) : of->u.l->n;
    if (i < 0) i += n;
    *out = cdr__jv_undefined("an item outside of a sequence");
    if (i < 0 || i >= n) return true;
    if (of->kind != CDR__J_STRING) {
        *out = of->u.l->v[i];
        return true;
    }
    size_t from = cdr__j_offset(of->u.s, i);
    return cdr__jx_burn(x, (int64_t)(of->u.s->n / 16)) && cdr__jv_view(x, of->u.s, from, cdr__j_char(of->u.s->s + from, of->u.s->n - from), out);
}

bool cdr__jx_item(cdr__jx *x, const cdr__jv *of, const cdr__jv *key, cdr__jv *out)
{
    if (of->kind == CDR__J_UNDEFINED) return undefined(x, of);
    if (of->kind == CDR__J_DICT) {
        const cdr__jv *v = cdr__jdict_get(of->u.d, key);
        if (v) {
            *out = *v;
            return true;
        }
    }
    if ((of->kind == CDR__J_STRING || cdr__jv_is_list(of)) && (key->kind == CDR__J_INT || key->kind == CDR__J_BOOL)) return sequence_item(x, of, cdr__jv_whole(key), out);
    if (key->kind != CDR__J_STRING) {
        *out = cdr__jv_undefined("an item");
        return true;
    }
    const char *name = key->u.s->s;                    /* NUL is behind a string that was copied; a view is copied first */
    cdr__jv copy;
    if (!cdr__jv_string(x, name, NULL, key->u.s->n, &copy)) return false;
    return cdr__jx_attribute(x, of, copy.u.s->s, out);
}

/* ---- slices ---------------------------------------------------------------------------------------------------------------- */
static bool slice_bound(cdr__jx *x, const cdr__jn *n, int64_t otherwise, bool *given, int64_t *i)
{
    cdr__jv v;
    *i = otherwise;
    *given = false;
    if (!n) return true;
    if (!cdr__jx_eval(x, n, &v)) return false;
    if (v.kind == CDR__J_NONE) return true;
    if (v.kind != CDR__J_INT && v.kind != CDR__J_BOOL) return cdr__jx_fail(x, "jinja.type", "a bound of a slice is %s, no whole number", cdr__jv_type(&v));
    *i = cdr__jv_whole(&v);
    *given = true;
    return true;
}

static int64_t clamp(int64_t i, int64_t n, bool back)
{
    if (i < 0) i = i < -n ? (back ? -1 : 0) : i + n;
    else if (i >= n) i = back ? n - 1 : n;
    return i;
}

static bool slice_of(cdr__jx *x, const cdr__jv *of, const cdr__jlist *items, const int64_t at[3], cdr__jv *out)
{
    cdr__jout o = { 0 };
    cdr__jlist *l;
    int64_t count = 0, k = 0;
    if (at[2] > 0 && at[1] > at[0]) count = (at[1] - at[0] - 1) / at[2] + 1;
    if (at[2] < 0 && at[1] < at[0]) count = (at[0] - at[1] - 1) / -at[2] + 1;
    if (of->kind == CDR__J_STRING) {
        for (int64_t i = at[0]; k < count; i += at[2], k++) cdr__jout_str(&o, items->v[i].u.s);
        return cdr__jout_done(x, &o, true, out);
    }
    if (!cdr__jv_list(x, count, of->kind, &l, out)) return false;
    for (int64_t i = at[0]; k < count; i += at[2]) l->v[k++] = items->v[i];
    return true;
}

static bool eval_slice(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv of;
    const cdr__jlist *items = NULL;
    bool given[3];
    int64_t at[3];
    if (!cdr__jx_eval(x, n->a, &of)) return false;
    if (of.kind == CDR__J_UNDEFINED) return undefined(x, &of);
    if (of.safe) return cdr__jx_fail(x, "jinja.unsupported", "a slice of a text behind the filter safe is not supported");
    if (of.kind != CDR__J_STRING && !cdr__jv_is_list(&of)) return cdr__jx_fail(x, "jinja.type", "%s cannot be sliced", cdr__jv_type(&of));
    if (!slice_bound(x, n->d, 1, &given[2], &at[2]) || !slice_bound(x, n->b, 0, &given[0], &at[0]) || !slice_bound(x, n->c, 0, &given[1], &at[1])) return false;
    if (at[2] == 0) return cdr__jx_fail(x, "jinja.type", "a slice with step 0");
    if (of.kind == CDR__J_STRING && at[2] == 1 && (!given[0] || at[0] >= 0) && (!given[1] || at[1] >= 0)) {
        size_t from = cdr__j_offset(of.u.s, at[0]), to = given[1] ? cdr__j_offset(of.u.s, at[1]) : of.u.s->n;
        return cdr__jx_burn(x, (int64_t)(of.u.s->n / 16)) && cdr__jv_view(x, of.u.s, CDR_MIN(from, to), to > from ? to - from : 0, out);
    }
    if (!cdr__jv_items(x, &of, &items)) return false;
    int64_t len = items->n;
    bool back = at[2] < 0;
    at[2] = CDR_MAX(-INT64_MAX, at[2]);
    at[0] = given[0] ? clamp(at[0], len, back) : back ? len - 1 : 0;
    at[1] = given[1] ? clamp(at[1], len, back) : back ? -1 : len;
    return slice_of(x, &of, items, at, out);
}

/* ---- operators ----------------------------------------------------------------------------------------------------------------- */
static bool whole_binary(cdr__jx *x, int op, int64_t a, int64_t b, cdr__jv *out)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
        case CDR__T_ADD: over = __builtin_add_overflow(a, b, &r); break;
        case CDR__T_SUB: over = __builtin_sub_overflow(a, b, &r); break;
        case CDR__T_MUL: over = __builtin_mul_overflow(a, b, &r); break;
        case CDR__T_FLOORDIV: case CDR__T_MOD:
            if (b == 0) return cdr__jx_fail(x, "jinja.type", "division by zero");
            over = a == INT64_MIN && b == -1;
            if (over) break;
            r = a / b - (a % b != 0 && (a < 0) != (b < 0));
            if (op == CDR__T_MOD) r = a - r * b;
            break;
        default:                                       /* POW: an exponent of 63 at most changes anything but 0, 1, -1 */
            r = 1;
            for (int64_t i = 0; i < CDR_MIN(b, (int64_t)64 + (b & 1)) && !over; i++) over = __builtin_mul_overflow(r, a, &r);
    }
    if (over) return cdr__jx_fail(x, "jinja.type", "a whole number beyond 64 bits");
    *out = cdr__jv_int(r);
    return true;
}

static bool real_binary(cdr__jx *x, int op, double a, double b, cdr__jv *out)
{
    double r = 0;
    if (b == 0 && (op == CDR__T_DIV || op == CDR__T_FLOORDIV || op == CDR__T_MOD)) return cdr__jx_fail(x, "jinja.type", "division by zero");
    switch (op) {
        case CDR__T_ADD: r = a + b; break;
        case CDR__T_SUB: r = a - b; break;
        case CDR__T_MUL: r = a * b; break;
        case CDR__T_DIV: r = a / b; break;
        case CDR__T_FLOORDIV: case CDR__T_MOD: {
            double m = fmod(a, b);
            if (m != 0 && (b < 0) != (m < 0)) m += b;
            double d = (a - m) / b, whole = floor(d);
            if (d - whole > 0.5) whole += 1;
            r = op == CDR__T_MOD ? (m == 0 ? copysign(0, b) : m) : d == 0 ? copysign(0, a / b) : whole;
            break;
        }
        default:
            r = pow(a, b);
            if (isnan(r) || (isinf(r) && !isinf(a) && !isinf(b))) return cdr__jx_fail(x, "jinja.type", "a power that is no number");
    }
    *out = cdr__jv_float(r);
    return true;
}

static bool join_lists(cdr__jx *x, const cdr__jv *a, const cdr__jv *b, cdr__jv *out)
{
    cdr__jlist *l;
    if (!cdr__jv_list(x, a->u.l->n + b->u.l->n, a->kind, &l, out)) return false;
    if (a->u.l->n) memcpy(l->v, a->u.l->v, sizeof *l->v * (size_t)a->u.l->n);
    if (b->u.l->n) memcpy(l->v + a->u.l->n, b->u.l->v, sizeof *l->v * (size_t)b->u.l->n);
    return true;
}

static bool join_strings(cdr__jx *x, const cdr__jstr *const *s, int n, cdr__jv *out)
{
    cdr__jout o = { 0 };
    size_t sum = 0;
    for (int i = 0; i < n; i++) sum += s[i]->n;
    if (sum > x->bytes_max - x->bytes || !cdr__jx_burn(x, (int64_t)(sum / 16)))
        return cdr__jx_fail(x, "jinja.too-much", "a text of more than %zu MiB", x->bytes_max >> 20);
    for (int i = 0; i < n; i++) cdr__jout_str(&o, s[i]);
    return cdr__jout_done(x, &o, true, out);
}

static bool repeat(cdr__jx *x, const cdr__jv *what, int64_t times, cdr__jv *out)
{
    cdr__jout o = { 0 };
    cdr__jlist *l;
    times = CDR_MAX(times, (int64_t)0);
    size_t unit = what->kind == CDR__J_STRING ? what->u.s->n : (size_t)what->u.l->n * sizeof(cdr__jv), sum;
    if (!cdr_mul_size(unit, (size_t)times, &sum) || sum > x->bytes_max - x->bytes || !cdr__jx_burn(x, (int64_t)(sum / 16)))
        return cdr__jx_fail(x, "jinja.too-much", "a repetition of more than %zu MiB", x->bytes_max >> 20);
    if (what->kind == CDR__J_STRING) {
        for (int64_t i = 0; unit > 0 && i < times; i++) cdr__jout_str(&o, what->u.s);
        return cdr__jout_done(x, &o, true, out);
    }
    if (!cdr__jv_list(x, unit > 0 ? what->u.l->n * times : 0, what->kind, &l, out)) return false;
    for (int64_t i = 0; unit > 0 && i < times; i++) memcpy(l->v + i * what->u.l->n, what->u.l->v, unit);
    return true;
}

/* Text behind the filter safe escapes & < > ' " of what + joins it with; where there is none of these, nothing changes. */
static bool add_safe(cdr__jx *x, const cdr__jv *a, const cdr__jv *b, cdr__jv *out)
{
    const cdr__jstr *plain = a->safe ? b->u.s : a->u.s;
    for (size_t i = 0; a->safe != b->safe && i < plain->n; i++)
        if (strchr("&<>'\"", plain->s[i] ? plain->s[i] : ' '))
            return cdr__jx_fail(x, "jinja.unsupported", "+ joins a text behind the filter safe with one that Jinja would escape; join them with ~");
    if (!join_strings(x, (const cdr__jstr *[]){ a->u.s, b->u.s }, 2, out)) return false;
    out->safe = true;
    return true;
}

bool cdr__jx_binary(cdr__jx *x, int op, const cdr__jv *a, const cdr__jv *b, cdr__jv *out)
{
    if (a->kind == CDR__J_UNDEFINED) return undefined(x, a);
    if (b->kind == CDR__J_UNDEFINED) return undefined(x, b);
    if (cdr__jv_is_number(a) && cdr__jv_is_number(b)) {
        bool whole = a->kind != CDR__J_FLOAT && b->kind != CDR__J_FLOAT;
        if (whole && op != CDR__T_DIV && !(op == CDR__T_POW && cdr__jv_whole(b) < 0)) return whole_binary(x, op, cdr__jv_whole(a), cdr__jv_whole(b), out);
        return real_binary(x, op, cdr__jv_number(a), cdr__jv_number(b), out);
    }
    if (op == CDR__T_ADD && a->kind == CDR__J_STRING && b->kind == CDR__J_STRING && (a->safe || b->safe)) return add_safe(x, a, b, out);
    if (op == CDR__T_ADD && a->kind == CDR__J_STRING && b->kind == CDR__J_STRING) return join_strings(x, (const cdr__jstr *[]){ a->u.s, b->u.s }, 2, out);
    if (op == CDR__T_ADD && cdr__jv_is_list(a) && a->kind == b->kind) return join_lists(x, a, b, out);
    if (op == CDR__T_MUL && (a->kind == CDR__J_STRING || cdr__jv_is_list(a)) && (b->kind == CDR__J_INT || b->kind == CDR__J_BOOL))
        return repeat(x, a, cdr__jv_whole(b), out);
    if (op == CDR__T_MUL && (b->kind == CDR__J_STRING || cdr__jv_is_list(b)) && (a->kind == CDR__J_INT || a->kind == CDR__J_BOOL))
        return repeat(x, b, cdr__jv_whole(a), out);
    static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**" };
    if (op == CDR__T_MOD && a->kind == CDR__J_STRING) return cdr__jx_fail(x, "jinja.unsupported", "text %% values is not supported; join the texts with ~");
    return cdr__jx_fail(x, "jinja.type", "%s %s %s has no meaning", cdr__jv_type(a), names[op - CDR__T_ADD], cdr__jv_type(b));
}

static bool is_in(cdr__jx *x, const cdr__jv *what, const cdr__jv *of, bool *yes)
{
    *yes = false;
    if (of->kind == CDR__J_STRING) {
        if (what->kind != CDR__J_STRING) return cdr__jx_fail(x, "jinja.type", "%s in a text has no meaning", cdr__jv_type(what));
        *yes = what->u.s->n == 0 || (of->u.s->n > 0 && memmem(of->u.s->s, of->u.s->n, what->u.s->s, what->u.s->n) != NULL);
        return cdr__jx_burn(x, (int64_t)(of->u.s->n / 16));
    }
    if (of->kind == CDR__J_DICT) {
        *yes = cdr__jdict_get(of->u.d, what) != NULL;
        return true;
    }
    if (of->kind == CDR__J_UNDEFINED) return true;
    if (!cdr__jv_is_list(of)) return cdr__jx_fail(x, "jinja.type", "something in %s has no meaning", cdr__jv_type(of));
    for (int64_t i = 0; i < of->u.l->n && !*yes; i++)
        if (!cdr__jv_equal(x, what, &of->u.l->v[i], yes)) return false;
    return true;
}

bool cdr__jx_compare(cdr__jx *x, int op, const cdr__jv *a, const cdr__jv *b, bool *yes)
{
    int order;
    if (op == CDR__T_IN || op == CDR__T_NOT_IN) {
        if (!is_in(x, a, b, yes)) return false;
        *yes = *yes == (op == CDR__T_IN);
        return true;
    }
    if (op == CDR__T_EQ || op == CDR__T_NE) {
        if (!cdr__jv_equal(x, a, b, yes)) return false;
        *yes = *yes == (op == CDR__T_EQ);
        return true;
    }
    if (a->kind == CDR__J_UNDEFINED) return undefined(x, a);
    if (b->kind == CDR__J_UNDEFINED) return undefined(x, b);
    if (!cdr__jv_order(x, a, b, &order)) return false;
    *yes = order == 2 ? false : op == CDR__T_LT ? order < 0 : op == CDR__T_LE ? order <= 0 : op == CDR__T_GT ? order > 0 : order >= 0;
    return true;
}

static bool eval_compare(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv left, right;
    bool yes = true;
    if (!cdr__jx_eval(x, n->a, &left)) return false;
    for (int i = 0; i < n->n && yes; i++) {
        if (!cdr__jx_eval(x, n->list[i]->a, &right) || !cdr__jx_compare(x, n->list[i]->op, &left, &right, &yes)) return false;
        left = right;
    }
    *out = cdr__jv_bool(yes);
    return true;
}

static bool eval_concat(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    const cdr__jstr **s = cdr__jx_alloc(x, sizeof *s * (size_t)n->n);
    cdr__jv v;
    if (!s) return false;
    for (int i = 0; i < n->n; i++)
        if (!cdr__jx_eval(x, n->list[i], &v) || !cdr__jv_str(x, &v, &s[i])) return false;
    return join_strings(x, s, n->n, out);
}

static bool eval_sign(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv v, zero = cdr__jv_int(0);
    if (!cdr__jx_eval(x, n->a, &v)) return false;
    if (v.kind == CDR__J_UNDEFINED) return undefined(x, &v);
    if (!cdr__jv_is_number(&v)) return cdr__jx_fail(x, "jinja.type", "%s has no sign", cdr__jv_type(&v));
    if (v.kind == CDR__J_FLOAT) {
        *out = cdr__jv_float(n->kind == CDR__N_NEG ? -v.u.f : v.u.f);
        return true;
    }
    return cdr__jx_binary(x, n->kind == CDR__N_NEG ? CDR__T_SUB : CDR__T_ADD, &zero, &v, out);
}

/* ---- literals and calls ----------------------------------------------------------------------------------------------------------- */
static bool eval_sequence(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jlist *l;
    if (!cdr__jv_list(x, n->n, n->kind == CDR__N_LIST ? CDR__J_LIST : CDR__J_TUPLE, &l, out)) return false;
    for (int i = 0; i < n->n; i++)
        if (!cdr__jx_eval(x, n->list[i], &l->v[i])) return false;
    return true;
}

static bool eval_dict(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    if (!cdr__jv_dict(x, n->n / 2, out)) return false;
    cdr__jdict *d = out->u.d;
    for (int i = 0; i + 1 < n->n; i += 2) {
        cdr__jv key, value;
        if (!cdr__jx_eval(x, n->list[i], &key) || !cdr__jx_eval(x, n->list[i + 1], &value) || !cdr__jdict_put(x, d, &key, &value)) return false;
    }
    return true;
}

typedef struct { cdr__jv *a, *value; const char **key; int n, n_key; } call_args;

static bool eval_args(cdr__jx *x, const cdr__jn *n, call_args *c)
{
    *c = (call_args){ 0 };
    if (n->n == 0) return true;
    c->a = cdr__jx_alloc(x, sizeof *c->a * (size_t)n->n);
    c->value = c->a ? cdr__jx_alloc(x, sizeof *c->value * (size_t)n->n) : NULL;
    c->key = c->value ? cdr__jx_alloc(x, sizeof *c->key * (size_t)n->n) : NULL;
    if (!c->key) return false;
    for (int i = 0; i < n->n; i++) {
        const cdr__jn *one = n->list[i];
        bool keyword = one->kind == CDR__N_KEYWORD;
        if (!cdr__jx_eval(x, keyword ? one->a : one, keyword ? &c->value[c->n_key] : &c->a[c->n])) return false;
        if (keyword) c->key[c->n_key++] = one->text;
        else c->n++;
    }
    return true;
}

static bool eval_call(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv of;
    call_args c;
    if (!cdr__jx_eval(x, n->a, &of) || !eval_args(x, n, &c)) return false;
    switch (of.kind) {
        case CDR__J_MACRO: return cdr__jx_call_macro(x, of.u.macro, c.a, c.n, c.key, c.value, c.n_key, out);
        case CDR__J_METHOD: return cdr__jx_call(x, of.u.method->b, of.u.method->self, c.a, c.n, c.key, c.value, c.n_key, out);
        case CDR__J_FUNCTION: return cdr__jx_call(x, of.u.function, NULL, c.a, c.n, c.key, c.value, c.n_key, out);
        case CDR__J_UNDEFINED: return cdr__jx_fail(x, "jinja.undefined", "%s is called, and is no function that is known here", of.u.name ? of.u.name : "a value");
        default: return cdr__jx_fail(x, "jinja.type", "%s is called, and is no function", cdr__jv_type(&of));
    }
}

static bool eval_applied(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv self;
    call_args c;
    if (!cdr__jx_eval(x, n->a, &self) || !eval_args(x, n, &c)) return false;
    return cdr__jx_call(x, n->builtin, &self, c.a, c.n, c.key, c.value, c.n_key, out);
}

static bool eval_binary(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv a, b;
    return cdr__jx_eval(x, n->a, &a) && cdr__jx_eval(x, n->b, &b) && cdr__jx_binary(x, n->op, &a, &b, out);
}

static bool eval_member(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv of, key;
    if (!cdr__jx_eval(x, n->a, &of)) return false;
    if (n->kind == CDR__N_ATTR) return cdr__jx_attribute(x, &of, n->text, out);
    return cdr__jx_eval(x, n->b, &key) && cdr__jx_item(x, &of, &key, out);
}

static bool eval_cond(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv test;
    if (!cdr__jx_eval(x, n->a, &test)) return false;
    if (cdr__jv_truth(&test)) return cdr__jx_eval(x, n->b, out);
    *out = cdr__jv_undefined("an if without else");
    return n->c ? cdr__jx_eval(x, n->c, out) : true;
}

static bool eval(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    cdr__jv a;
    switch (n->kind) {
        case CDR__N_CONST: *out = n->value; return true;
        case CDR__N_NAME: return eval_name(x, n->sym, out);
        case CDR__N_LIST: case CDR__N_TUPLE: return eval_sequence(x, n, out);
        case CDR__N_DICT: return eval_dict(x, n, out);
        case CDR__N_ATTR: case CDR__N_ITEM: return eval_member(x, n, out);
        case CDR__N_SLICE: return eval_slice(x, n, out);
        case CDR__N_CALL: return eval_call(x, n, out);
        case CDR__N_FILTER: case CDR__N_TEST: return eval_applied(x, n, out);
        case CDR__N_NOT:
            if (!cdr__jx_eval(x, n->a, &a)) return false;
            *out = cdr__jv_bool(!cdr__jv_truth(&a));
            return true;
        case CDR__N_AND: case CDR__N_OR:
            if (!cdr__jx_eval(x, n->a, out)) return false;
            return cdr__jv_truth(out) == (n->kind == CDR__N_AND) ? cdr__jx_eval(x, n->b, out) : true;
        case CDR__N_COND: return eval_cond(x, n, out);
        case CDR__N_NEG: case CDR__N_POS: return eval_sign(x, n, out);
        case CDR__N_CONCAT: return eval_concat(x, n, out);
        case CDR__N_COMPARE: return eval_compare(x, n, out);
        default: CDR_CHECK(n->kind == CDR__N_BINARY); return eval_binary(x, n, out);
    }
}

bool cdr__jx_eval(cdr__jx *x, const cdr__jn *n, cdr__jv *out)
{
    if (!cdr__jx_burn(x, 1)) return false;
    if (++x->depth > DEPTH_MAX) return cdr__jx_fail(x, "jinja.too-much", "expressions and calls nested deeper than %d", (int)DEPTH_MAX);
    *out = (cdr__jv){ .kind = CDR__J_MISSING };
    bool ok = eval(x, n, out);
    x->depth--;
    return ok;
}
