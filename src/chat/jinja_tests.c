/* jinja_tests.c: tests (x is NAME). Each says what Jinja's test of that name says of values of chat templates. */
#include "chat/jinja.h"

#include <string.h>

#define TEST(name, cond) static bool name(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { (void)x; const cdr__jv *v = a->self; *out = cdr__jv_bool(cond); return true; }

TEST(is_defined, v->kind != CDR__J_UNDEFINED)
TEST(is_undefined, v->kind == CDR__J_UNDEFINED)
TEST(is_none, v->kind == CDR__J_NONE)
TEST(is_string, v->kind == CDR__J_STRING)
TEST(is_number, cdr__jv_is_number(v))
TEST(is_integer, v->kind == CDR__J_INT)
TEST(is_float, v->kind == CDR__J_FLOAT)
TEST(is_boolean, v->kind == CDR__J_BOOL)
TEST(is_true, v->kind == CDR__J_BOOL && v->u.b)
TEST(is_false, v->kind == CDR__J_BOOL && !v->u.b)
TEST(is_mapping, v->kind == CDR__J_DICT)
TEST(is_sequence, v->kind == CDR__J_STRING || v->kind == CDR__J_DICT || cdr__jv_is_list(v) || v->kind == CDR__J_UNDEFINED)
TEST(is_iterable, v->kind == CDR__J_STRING || v->kind == CDR__J_DICT || cdr__jv_is_list(v) || v->kind == CDR__J_UNDEFINED || v->kind == CDR__J_LOOP)
TEST(is_callable, v->kind == CDR__J_MACRO || v->kind == CDR__J_METHOD || v->kind == CDR__J_FUNCTION)

static bool modulo(cdr__jx *x, const cdr__jv *v, int64_t by, int64_t is, cdr__jv *out)
{
    cdr__jv n = cdr__jv_int(by), r;
    if (v->kind != CDR__J_INT && v->kind != CDR__J_BOOL) return cdr__jx_fail(x, "jinja.type", "%s is no whole number", cdr__jv_type(v));
    if (!cdr__jx_binary(x, CDR__T_MOD, v, &n, &r)) return false;
    *out = cdr__jv_bool(r.u.i == is);
    return true;
}

static bool is_odd(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return modulo(x, a->self, 2, 1, out); }
static bool is_even(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return modulo(x, a->self, 2, 0, out); }

static bool is_divisible(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    int64_t by;
    return cdr__jarg_int(x, a, 0, 0, &by) && modulo(x, a->self, by, 0, out);
}

static bool compare(cdr__jx *x, const cdr__jargs *a, int op, cdr__jv *out)
{
    bool yes;
    if (a->a[0].kind == CDR__J_MISSING) return cdr__jx_fail(x, "jinja.call", "a test that compares needs a value to compare with");
    if (!cdr__jx_compare(x, op, a->self, &a->a[0], &yes)) return false;
    *out = cdr__jv_bool(yes);
    return true;
}

static bool is_eq(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return compare(x, a, CDR__T_EQ, out); }
static bool is_ne(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return compare(x, a, CDR__T_NE, out); }
static bool is_lt(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return compare(x, a, CDR__T_LT, out); }
static bool is_le(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return compare(x, a, CDR__T_LE, out); }
static bool is_gt(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return compare(x, a, CDR__T_GT, out); }
static bool is_ge(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return compare(x, a, CDR__T_GE, out); }
static bool is_in(cdr__jx *x, const cdr__jargs *a, cdr__jv *out) { return compare(x, a, CDR__T_IN, out); }

/* Python's `is`: what it says of numbers and texts depends on its memory; of none and of truth values it is certain. */
static bool is_same(cdr__jx *x, const cdr__jargs *a, cdr__jv *out)
{
    const cdr__jv *v = a->self, *w = &a->a[0];
    bool certain = v->kind != w->kind || v->kind == CDR__J_NONE || v->kind == CDR__J_BOOL;
    if (w->kind == CDR__J_MISSING || !certain) return cdr__jx_fail(x, "jinja.unsupported",
        "sameas of anything but none, true and false is not supported; compare with ==");
    *out = cdr__jv_bool(v->kind == w->kind && (v->kind == CDR__J_NONE || v->u.b == w->u.b));
    return true;
}

static const cdr__jbuiltin TESTS[] = {
    { "defined", "", is_defined, NULL },     { "undefined", "", is_undefined, NULL }, { "none", "", is_none, NULL },         { "string", "", is_string, NULL },
    { "number", "", is_number, NULL },       { "integer", "", is_integer, NULL },     { "float", "", is_float, NULL },       { "boolean", "", is_boolean, NULL },
    { "true", "", is_true, NULL },           { "false", "", is_false, NULL },         { "mapping", "", is_mapping, NULL },   { "sequence", "", is_sequence, NULL },
    { "iterable", "", is_iterable, NULL },   { "callable", "", is_callable, NULL },   { "odd", "", is_odd, NULL },           { "even", "", is_even, NULL },
    { "divisibleby", "num", is_divisible, NULL }, { "eq", "b", is_eq, NULL },         { "equalto", "b", is_eq, NULL },       { "ne", "b", is_ne, NULL },
    { "lt", "b", is_lt, NULL },              { "lessthan", "b", is_lt, NULL },        { "le", "b", is_le, NULL },            { "gt", "b", is_gt, NULL },
    { "greaterthan", "b", is_gt, NULL },     { "ge", "b", is_ge, NULL },              { "in", "seq", is_in, NULL },          { "sameas", "other", is_same, NULL },
};

/* Names under which select and others take a comparison: "==" and the like. */
static const char *const SIGNS[][2] = { { "==", "eq" }, { "!=", "ne" }, { "<", "lt" }, { "<=", "le" }, { ">", "gt" }, { ">=", "ge" } };

const cdr__jbuiltin *cdr__jinja_test(const char *name)
{
    for (int i = 0; i < CDR_COUNT(SIGNS); i++)
        if (strcmp(SIGNS[i][0], name) == 0) name = SIGNS[i][1];
    for (int i = 0; i < CDR_COUNT(TESTS); i++)
        if (strcmp(TESTS[i].name, name) == 0) return &TESTS[i];
    return NULL;
}
