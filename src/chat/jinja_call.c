/* jinja_call.c: arguments bound to the parameters of what a template may call, and the functions of a template: range, namespace,
 * dict, raise_exception. strftime_now is refused: what it says differs from day to day, and a model would be trained on it.
 */
#include "chat/jinja.h"

#include <string.h>

enum { PARAMS_MAX = 8, RANGE_MAX = 100000 /* the sandbox's own limit */ };

/* ---- arguments --------------------------------------------------------------------------------------------------------- */
/* Position of a parameter in "sep,maxsplit"; -1: none. */
static int param_of(const char *params, const char *name)
{
    size_t n = strlen(name);
    int i = 0;
    for (const char *p = params; *p; i++) {
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, name, n) == 0) return i;
        p += len + (p[len] == ',');
    }
    return -1;
}

static int count_params(const char *params)
{
    int n = params[0] != 0;
    for (const char *p = params; *p; p++) n += *p == ',';
    return n;
}

bool cdr__jx_call(cdr__jx *x, const cdr__jbuiltin *b, const cdr__jv *self, const cdr__jv *a, int n, const char *const *key, const cdr__jv *value, int n_key, cdr__jv *out)
{
    static const char *const harmless[] = { "safe", "string", "default", "d", "length", "count", "tojson", "join" };
    cdr__jv slot[PARAMS_MAX];
    if (!cdr__jx_burn(x, 2)) return false;
    for (int i = 0; self && self->safe && i < CDR_COUNT(harmless) && strcmp(b->name, harmless[i]) != 0; i++)
        if (i + 1 == CDR_COUNT(harmless) && cdr__jinja_test(b->name) != b)
            return cdr__jx_fail(x, "jinja.unsupported", "%s of a text behind the filter safe is not supported", b->name);
    *out = (cdr__jv){ .kind = CDR__J_MISSING };
    if (strcmp(b->params, "*") == 0) return b->run(x, &(cdr__jargs){ .self = self, .a = a, .n = n, .key = key, .value = value, .n_key = n_key }, out);
    int n_param = count_params(b->params);
    CDR_CHECK(n_param <= PARAMS_MAX);
    if (n > n_param) return cdr__jx_fail(x, "jinja.call", "%s takes %d arguments, %d are given", b->name, n_param, n);
    for (int i = 0; i < n_param; i++) slot[i] = i < n ? a[i] : (cdr__jv){ .kind = CDR__J_MISSING };
    for (int k = 0; k < n_key; k++) {
        int i = param_of(b->params, key[k]);
        if (i < 0) return cdr__jx_fail(x, "jinja.call", "%s has no parameter %s", b->name, key[k]);
        if (slot[i].kind != CDR__J_MISSING) return cdr__jx_fail(x, "jinja.call", "argument %s of %s is given twice", key[k], b->name);
        slot[i] = value[k];
    }
    return b->run(x, &(cdr__jargs){ .self = self, .a = slot, .n = n_param }, out);
}

bool cdr__jarg_text(cdr__jx *x, const cdr__jargs *a, int i, const cdr__jstr **s)
{
    *s = NULL;
    if (a->a[i].kind == CDR__J_MISSING || a->a[i].kind == CDR__J_NONE) return true;
    if (a->a[i].kind != CDR__J_STRING) return cdr__jx_fail(x, "jinja.type", "argument %d is %s, a text is expected", i + 1, cdr__jv_type(&a->a[i]));
    *s = a->a[i].u.s;
    return true;
}

bool cdr__jarg_int(cdr__jx *x, const cdr__jargs *a, int i, int64_t otherwise, int64_t *v)
{
    *v = otherwise;
    if (a->a[i].kind == CDR__J_MISSING || a->a[i].kind == CDR__J_NONE) return true;
    if (a->a[i].kind != CDR__J_INT && a->a[i].kind != CDR__J_BOOL)
        return cdr__jx_fail(x, "jinja.type", "argument %d is %s, a whole number is expected", i + 1, cdr__jv_type(&a->a[i]));
    *v = cdr__jv_whole(&a->a[i]);
    return true;
}

bool cdr__jarg_bool(const cdr__jargs *a, int i, bool otherwise) { return a->a[i].kind == CDR__J_MISSING ? otherwise : cdr__jv_truth(&a->a[i]); }

/* ---- functions ------------------------------------------------------------------------------------------------------------- */
static bool range(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    int64_t at[3] = { 0, 0, 1 };
    cdr__jlist *l;
    if (a->n_key || a->n < 1 || a->n > 3) return cdr__jx_fail(x, "jinja.call", "range takes one to three numbers");
    for (int i = 0; i < a->n; i++)
        if (!cdr__jarg_int(x, a, i, 0, &at[a->n == 1 ? 1 : i])) return false;
    if (at[2] == 0) return cdr__jx_fail(x, "jinja.call", "range with step 0");
    int64_t n = 0;
    for (int64_t v = at[0]; at[2] > 0 ? v < at[1] : v > at[1]; n++) {
        if (n == RANGE_MAX) return cdr__jx_fail(x, "jinja.too-much", "a range of more than %d numbers", (int)RANGE_MAX);
        if (__builtin_add_overflow(v, at[2], &v)) v = at[1];
    }
    if (!cdr__jv_list(x, n, CDR__J_LIST, &l, out)) return false;
    for (int64_t i = 0; i < n; i++) l->v[i] = cdr__jv_int(at[0] + i * at[2]);
    return true;
}

static bool put_pairs(cdr__jx *x, cdr__jdict *d, const cdr__jargs *a)
{
    for (int i = 0; i < a->n_key; i++) {
        cdr__jv key;
        if (!cdr__jv_text(x, a->key[i], &key) || !cdr__jdict_put(x, d, &key, &a->value[i])) return false;
    }
    return true;
}

static bool dict(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jlist *pairs, *pair;
    if (!cdr__jv_dict(x, 0, out)) return false;
    if (a->n > 1) return cdr__jx_fail(x, "jinja.call", "dict takes one mapping, and names");
    if (a->n == 1 && a->a[0].kind == CDR__J_DICT) {
        for (int64_t i = 0; i < a->a[0].u.d->n; i++)
            if (!cdr__jdict_put(x, out->u.d, &a->a[0].u.d->key[i], &a->a[0].u.d->value[i])) return false;
    } else if (a->n == 1) {
        if (!cdr__jv_items(x, &a->a[0], &pairs)) return false;
        for (int64_t i = 0; i < pairs->n; i++) {
            if (!cdr__jv_items(x, &pairs->v[i], &pair)) return false;
            if (pair->n != 2) return cdr__jx_fail(x, "jinja.type", "dict of a list whose items are no pairs");
            if (!cdr__jdict_put(x, out->u.d, &pair->v[0], &pair->v[1])) return false;
        }
    }
    return put_pairs(x, out->u.d, a);
}

static bool namespace_(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    for (int i = 0; i < a->n_key; i++)
        if (a->key[i][0] == '_') return cdr__jx_fail(x, "jinja.call", "namespace: names that begin with _ are refused (%s)", a->key[i]);
    if (!dict(x, a, out)) return false;
    out->kind = CDR__J_NAMESPACE;
    return true;
}

static bool raise(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jstr *s;
    (void)out;
    if (!cdr__jv_str(x, &a->a[0], &s)) return false;
    return cdr__jx_fail(x, "jinja.raised", "the template refuses this conversation: %.*s", (int)CDR_MIN(s->n, (size_t)400), s->s);
}

static const cdr__jbuiltin FUNCTIONS[] = {
    { "range", "*", range, NULL },
    { "dict", "*", dict, NULL },
    { "namespace", "*", namespace_, NULL },
    { "raise_exception", "message", raise, NULL },
    { "strftime_now", NULL, NULL, ": it writes today's date, so that the same conversation is other tokens tomorrow" },
    { "cycler", NULL, NULL, "" },
    { "joiner", NULL, NULL, "" },
    { "lipsum", NULL, NULL, "" },
};

const cdr__jbuiltin *cdr__jinja_function(const char *name)
{
    for (int i = 0; i < CDR_COUNT(FUNCTIONS); i++)
        if (strcmp(FUNCTIONS[i].name, name) == 0) return &FUNCTIONS[i];
    return NULL;
}
