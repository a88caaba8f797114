/* expr.c: the small integer expressions of model descriptions, and layer sets.
 *
 *   sum  := term { (+ | -) term }        term := unit { (* | //) unit }
 *   unit := integer | name | round_up ( sum , sum ) | ( sum )
 * Names are the block's integer attributes, then its own sizes ("heads" in block mla: mla.heads), then all. Evaluated by operator precedence with
 * two explicit stacks; overflow and division by zero are errors.
 */
#include "models/models.h"

enum { MAX_STACK = 64 };

typedef struct { int64_t val[MAX_STACK]; char op[MAX_STACK]; int n_val, n_op; const char *why; } stacks;

static int precedence(char op) { return op == '+' || op == '-' ? 1 : op == '*' || op == '/' ? 2 : 0; }

static bool apply(stacks *s)
{
    if (s->n_val < 2 || s->n_op < 1) return s->why = "an operand is missing", false;
    int64_t b = s->val[--s->n_val], a = s->val[--s->n_val], r = 0;
    bool over = false;
    switch (s->op[--s->n_op]) {
    case '+': over = __builtin_add_overflow(a, b, &r); break;
    case '-': over = __builtin_sub_overflow(a, b, &r); break;
    case '*': over = __builtin_mul_overflow(a, b, &r); break;
    case '/':
        if (b <= 0 || a < 0) return s->why = "a division needs a positive divisor and no negative dividend", false;
        r = a / b;
        break;
    case ',':                                              /* round_up(a, b) */
        if (b <= 0 || a < 0) return s->why = "round_up needs positive numbers", false;
        over = __builtin_add_overflow(a, b - 1, &r);
        r = r / b * b;
        break;
    default: return s->why = "parentheses do not match", false;
    }
    if (over) return s->why = "the result does not fit 64 bits", false;
    s->val[s->n_val++] = r;
    return true;
}

static bool push_op(stacks *s, char op)
{
    while (s->n_op > 0 && precedence(s->op[s->n_op - 1]) >= precedence(op) && precedence(op) > 0)
        if (!apply(s)) return false;
    if (s->n_op == MAX_STACK) return s->why = "too deep", false;
    s->op[s->n_op++] = op;
    return true;
}

/* Closes at ')' or, for round_up, at ','. '(' a parenthesis, 'r' that of round_up, ',' its comma. */
static bool close_to(stacks *s, char end)
{
    while (s->n_op > 0 && precedence(s->op[s->n_op - 1]) > 0)
        if (!apply(s)) return false;
    char top = s->n_op > 0 ? s->op[s->n_op - 1] : 0;
    if (end == ',' && top == 'r') {
        s->op[s->n_op - 1] = ',';
        return true;
    }
    if (end == ')' && top == ',') return apply(s);
    if (end == ')' && top == '(') {
        s->n_op--;
        return true;
    }
    return s->why = "parentheses do not match", false;
}

static bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; }

static cdr_status push_name(const cdr__desc *d, const cdr__block *b, const char *name, const char *at, stacks *s, cdr_err *err)
{
    int64_t x = 0;
    if (strspn(name, "0123456789") == strlen(name)) {
        for (const char *p = name; *p; p++)
            if (__builtin_mul_overflow(x, (int64_t)10, &x) || __builtin_add_overflow(x, (int64_t)(*p - '0'), &x)) {
                s->why = "a number does not fit 64 bits";
                return CDR_OK;
            }
    } else {
        int local = -1;
        for (int i = 0; b && i < b->n_locals; i++) if (strcmp(b->local[i].name, name) == 0) local = i;
        const cdr__size *z = local >= 0 ? NULL : cdr__size_find(d, b, name);
        if (local < 0 && (!z || z->list || z->real)) {
            const char **names = cdr_pool_alloc(d->pool, sizeof *names * (size_t)(d->n_sizes + 1));
            size_t own = b ? strlen(b->type->type) : 0;
            for (int64_t i = 0; i < d->n_sizes; i++) {
                names[i] = d->size[i].name;
                if (own && strncmp(names[i], b->type->type, own) == 0 && names[i][own] == '.') names[i] += own + 1;
            }
            CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-size", "%s: %s %s.%s", at, name, z ? "is no integer size" : "is no size of this description",
                        z ? "" : cdr_nearest(d->pool, name, names, (int)d->n_sizes));
        }
        x = local >= 0 ? b->local[local].x : z->i;
    }
    if (s->n_val == MAX_STACK) s->why = "too deep";
    else s->val[s->n_val++] = x;
    return CDR_OK;
}

cdr_status cdr__expr(const cdr__desc *d, const cdr__block *b, const char *text, const char *at, int64_t *x, cdr_err *err)
{
    stacks s = { .n_val = 0 };
    bool operand = true;                                   /* an operand comes next */
    const char *p = text;
    while (*p && !s.why) {
        if (*p == ' ') { p++; continue; }
        if (operand && is_name(*p)) {
            size_t n = 0;
            while (is_name(p[n])) n++;
            char *name = cdr_pool_strndup(d->pool, p, n);
            p += n;
            if (strcmp(name, "round_up") == 0) {
                if (*p != '(') { s.why = "round_up takes (n, m)"; break; }
                p++;
                push_op(&s, 'r');
                continue;
            }
            CDR_TRY(push_name(d, b, name, at, &s, err));
            operand = false;
        } else if (operand && *p == '(') {
            p++;
            push_op(&s, '(');
        } else if (!operand && (*p == '+' || *p == '-' || *p == '*')) {
            push_op(&s, *p++);
            operand = true;
        } else if (!operand && p[0] == '/' && p[1] == '/') {
            push_op(&s, '/');
            p += 2;
            operand = true;
        } else if (!operand && (*p == ',' || *p == ')')) {
            operand = *p == ',';
            close_to(&s, *p++);
        } else {
            s.why = operand ? "an operand is missing" : "an operator is missing";
        }
    }
    while (!s.why && s.n_op > 0)
        if (precedence(s.op[s.n_op - 1]) == 0) s.why = "parentheses do not match";
        else apply(&s);
    if (!s.why && s.n_val != 1) s.why = "it is empty";
    if (s.why) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-expression", "%s: \"%s\": %s", at, text, s.why);
    *x = s.val[0];
    return CDR_OK;
}

/* ---- layer sets ----------------------------------------------------------------------------------------------------- */

static bool set_number(const char *s, size_t len, int n, int *x)
{
    if (len == 4 && strncmp(s, "last", 4) == 0) {
        *x = n - 1;
        return true;
    }
    if (len == 0 || len > 6 || strspn(s, "0123456789") < len) return false;
    *x = 0;
    for (size_t i = 0; i < len; i++) *x = *x * 10 + (s[i] - '0');
    return *x < n;
}

bool cdr__layer_set(const char *text, int n, bool *in)
{
    int step, from, end = 0;
    for (int i = 0; i < n; i++) in[i] = strcmp(text, "all") == 0;
    if (strcmp(text, "all") == 0) return true;
    if (sscanf(text, "every %6d from %6d%n", &step, &from, &end) == 2 && !text[end]) {
        if (step < 1 || from < 0 || from >= n) return false;
        for (int i = from; i < n; i += step) in[i] = true;
        return true;
    }
    for (const char *p = text;;) {
        size_t len = strcspn(p, ","), dash = 0;
        int a, b;
        while (dash < len && p[dash] != '-') dash++;
        if (!set_number(p, dash, n, &a)) return false;
        b = a;
        if (dash < len && !set_number(p + dash + 1, len - dash - 1, n, &b)) return false;
        if (b < a) return false;
        for (int i = a; i <= b; i++) in[i] = true;
        if (!p[len]) return true;
        p += len + 1;
        while (*p == ' ') p++;
    }
}
