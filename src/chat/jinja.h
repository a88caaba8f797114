/* jinja.h: a subset of Jinja that runs chat templates (doc/formats.md lists it): source to tree (jinja_lex.c, jinja_parse*.c), values
 * (jinja_value.c, jinja_text.c), evaluation (jinja_eval.c, jinja_expr.c), what a template may call (jinja_call.c, jinja_filters.c,
 * jinja_tests.c, jinja_methods.c, jinja_json.c).
 *
 *   cdr__jtemplate *t;
 *   CDR_TRY(cdr__jinja_parse(source, bytes, "chat_template.jinja", &t, err));
 *   cdr__jx x;
 *   cdr__jinja_begin(&x, t, input_bytes, err);
 *   cdr__jinja_set(&x, "messages", cdr__jv_of_json(&x, json, CDR__TAG_DATA));
 *   bool ok = cdr__jinja_run(&x);                        // x.out: bytes and their tags
 *   cdr__jinja_end(&x);
 *   cdr__jinja_free(t);
 *
 * Every byte of a string has a tag: what the template wrote, and what came in as data. It survives every operation, so that
 * data never becomes a special id, and so that a mask knows reasoning and calls from text.
 * A template is untrusted: steps, memory, depth and output are bounded, and nothing outside of x can be reached.
 */
#ifndef CDR_CHAT_JINJA_H
#define CDR_CHAT_JINJA_H

#include "chat/internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- values ---------------------------------------------------------------------------------------------------------- */
enum { CDR__TAG_TEMPLATE = 0, CDR__TAG_DATA = 1, CDR__TAG_THINK = 2, CDR__TAG_CALLS = 3, CDR__TAG_KIND = 0x7f, CDR__TAG_GENERATED = 0x80 };
typedef enum {
    CDR__J_MISSING,                    /* an argument that was not given; never a value of a template */
    CDR__J_UNDEFINED, CDR__J_NONE, CDR__J_BOOL, CDR__J_INT, CDR__J_FLOAT, CDR__J_STRING, CDR__J_LIST, CDR__J_TUPLE, CDR__J_DICT,
    CDR__J_NAMESPACE, CDR__J_LOOP, CDR__J_MACRO, CDR__J_METHOD, CDR__J_FUNCTION
} cdr__jkind;
typedef struct cdr__jv cdr__jv;
typedef struct { const char *s; const uint8_t *tag; size_t n; } cdr__jstr;                /* tag NULL: all of the template */
typedef struct { cdr__jv *v; int64_t n; } cdr__jlist;
typedef struct { cdr__jv *key, *value; int64_t n, cap; int32_t *slot; int64_t n_slot; } cdr__jdict;     /* slot: hash index, once it is large */
typedef struct cdr__jloop cdr__jloop;
typedef struct cdr__jmacro cdr__jmacro;
typedef struct { const struct cdr__jbuiltin *b; cdr__jv *self; } cdr__jmethod;
struct cdr__jv {
    uint8_t kind;
    bool safe;                         /* a STRING that went through the filter safe: Jinja's Markup, which escapes what + joins it with */
    union {
        bool b; int64_t i; double f;
        const cdr__jstr *s; const cdr__jlist *l; cdr__jdict *d;
        cdr__jloop *loop; const cdr__jmacro *macro; const cdr__jmethod *method; const struct cdr__jbuiltin *function;
        const char *name;              /* UNDEFINED: what was not found, for messages */
    } u;
};
struct cdr__jloop { const cdr__jlist *items; int64_t i; int depth; bool changed_before; cdr__jv changed; };

/* ---- the tree ----------------------------------------------------------------------------------------------------------- */
typedef enum {
    /* expressions: a, b, c, list as the comment says */
    CDR__N_CONST, CDR__N_NAME /* sym */, CDR__N_LIST, CDR__N_TUPLE, CDR__N_DICT /* list: key, value, ... */,
    CDR__N_ATTR /* a . text */, CDR__N_ITEM /* a [b] */, CDR__N_SLICE /* a [b:c:d] */, CDR__N_CALL /* a (list) */, CDR__N_FILTER /* a | builtin (list) */,
    CDR__N_TEST /* a is builtin (list) */, CDR__N_NOT, CDR__N_AND, CDR__N_OR, CDR__N_COND /* b if a else c */, CDR__N_NEG, CDR__N_POS, CDR__N_CONCAT /* list */,
    CDR__N_BINARY /* a op b */, CDR__N_COMPARE /* a, then list: op in .op, operand in .a */, CDR__N_KEYWORD /* text = a, in the list of a call */, CDR__N_OPERAND,
    /* statements */
    CDR__N_OUTPUT /* a */, CDR__N_DATA /* value */, CDR__N_IF /* a, body list, c: else as a BODY */, CDR__N_FOR /* a target, b iterable, c filter, d else, list */,
    CDR__N_SET /* a target, b value */, CDR__N_SET_BLOCK /* a target, b filter chain, list */, CDR__N_MACRO /* sym, params, list */, CDR__N_BODY /* list */,
    CDR__N_BREAK, CDR__N_CONTINUE, CDR__N_GENERATION /* list */, CDR__N_FILTER_BLOCK /* b chain, list */, CDR__N_NS_TARGET /* sym . text */,
        CDR__N_HOLE /* what a filter chain applies to */
} cdr__jnode_kind;
typedef struct cdr__jn cdr__jn;
typedef struct { int sym; const char *name; const cdr__jn *otherwise; } cdr__jparam;
struct cdr__jn {
    uint8_t kind, op;                  /* op: a token of an operator */
    int line, sym, n, n_param;
    const char *text;
    const struct cdr__jbuiltin *builtin;
    cdr__jv value;
    const cdr__jn *a, *b, *c, *d, *const *list;
    const cdr__jparam *param;
};
typedef struct {
    cdr_pool *pool;
    const char *where;                 /* name for messages */
    const cdr__jn *body;
    const char *const *symbol; int n_symbol;
    bool has_generation;
} cdr__jtemplate;

cdr_status cdr__jinja_parse(const char *source, size_t bytes, const char *where, cdr__jtemplate **t, cdr_err *err);
void cdr__jinja_free(cdr__jtemplate *t);

/* ---- tokens (jinja_lex.c, for the parser) ---------------------------------------------------------------------------------- */
typedef enum {
    CDR__T_END, CDR__T_DATA, CDR__T_VAR_BEGIN, CDR__T_VAR_END, CDR__T_BLOCK_BEGIN, CDR__T_BLOCK_END, CDR__T_NAME, CDR__T_STRING, CDR__T_INT, CDR__T_FLOAT,
    CDR__T_ADD, CDR__T_SUB, CDR__T_MUL, CDR__T_DIV, CDR__T_FLOORDIV, CDR__T_MOD, CDR__T_POW, CDR__T_TILDE, CDR__T_EQ, CDR__T_NE, CDR__T_LT, CDR__T_LE, CDR__T_GT,
        CDR__T_GE,
    CDR__T_ASSIGN, CDR__T_DOT, CDR__T_COLON, CDR__T_COMMA, CDR__T_PIPE, CDR__T_LPAREN, CDR__T_RPAREN, CDR__T_LBRACKET, CDR__T_RBRACKET, CDR__T_LBRACE, CDR__T_RBRACE,
    CDR__T_IN, CDR__T_NOT_IN           /* operators of the parser */
} cdr__jtoken_kind;
typedef struct { uint8_t kind; int line; const char *s; size_t n; int64_t i; double f; } cdr__jtoken;      /* text is in the pool, NUL behind it */
typedef struct { cdr_pool *pool; const char *where; cdr_err *err; cdr__jtoken *token; int64_t n, cap; } cdr__jtokens;
cdr_status cdr__jinja_lex(cdr__jtokens *t, const char *source, size_t bytes);
cdr_status cdr__jinja_fail(const char *where, int line, cdr_err *err, const char *id, const char *fmt, ...) CDR_PRINTF(5, 6);

/* ---- evaluation ---------------------------------------------------------------------------------------------------------------- */
typedef struct { int sym; cdr__jv v; } cdr__jvar;
typedef struct cdr__jscope { struct cdr__jscope *up; cdr__jvar *var; int n, cap; } cdr__jscope;
struct cdr__jmacro { const cdr__jn *node; cdr__jscope *scope; };
typedef struct { cdr_text s, tag; } cdr__jout;                     /* as many tags as bytes */
typedef struct cdr__jx {
    const cdr__jtemplate *t;
    cdr_err *err;
    struct cdr__jchunk *chunk;         /* arena: everything that a run makes */
    size_t bytes, bytes_max;           /* of the arena and of outputs */
    int64_t fuel;
    int depth, macros, line;           /* nested evaluations and calls; line of the statement that runs */
    cdr__jscope *scope, *root;
    cdr__jout *out;                    /* where output goes: the run's, or that of a block that is captured */
    cdr__jout whole;
    bool generating;                   /* inside of {% generation %} */
} cdr__jx;
void cdr__jinja_begin(cdr__jx *x, const cdr__jtemplate *t, size_t input_bytes, cdr_err *err);
void cdr__jinja_set(cdr__jx *x, const char *name, cdr__jv v);      /* a variable of the template; names that it does not use cost nothing */
bool cdr__jinja_run(cdr__jx *x);
void cdr__jinja_end(cdr__jx *x);

/* Functions below return false where x->err says why; they need no clean-up. */
bool cdr__jx_fail(cdr__jx *x, const char *id, const char *fmt, ...) CDR_PRINTF(3, 4);
bool cdr__jx_burn(cdr__jx *x, int64_t steps);                       /* false: the template does too much */
void *cdr__jx_alloc(cdr__jx *x, size_t bytes);                      /* zeroed; NULL: too much */
bool cdr__jx_statements(cdr__jx *x, const cdr__jn *const *list, int n);
bool cdr__jx_eval(cdr__jx *x, const cdr__jn *n, cdr__jv *out);
bool cdr__jx_output(cdr__jx *x, const cdr__jstr *s);
bool cdr__jx_assign(cdr__jx *x, const cdr__jn *target, cdr__jv v);
void cdr__jx_capture(cdr__jx *x, cdr__jout *o, cdr__jout **before);              /* output goes to o, until ... */
bool cdr__jx_captured(cdr__jx *x, cdr__jout *o, cdr__jout *before, bool ok, cdr__jv *out);      /* ... o becomes a string, and is freed */
bool cdr__jx_define(cdr__jx *x, cdr__jscope *s, int sym, cdr__jv v);
cdr__jscope *cdr__jx_push(cdr__jx *x, cdr__jscope *up);              /* a scope under up becomes the current one; NULL: too much */

/* ---- values (jinja_value.c, jinja_text.c) ------------------------------------------------------------------------------------------ */
static inline cdr__jv cdr__jv_bool(bool b) { cdr__jv v = { .kind = CDR__J_BOOL, .safe = false, .u = { 0 } }; v.u.b = b; return v; }
static inline cdr__jv cdr__jv_int(int64_t i) { cdr__jv v = { .kind = CDR__J_INT, .safe = false, .u = { 0 } }; v.u.i = i; return v; }
static inline cdr__jv cdr__jv_float(double f) { cdr__jv v = { .kind = CDR__J_FLOAT, .safe = false, .u = { 0 } }; v.u.f = f; return v; }
static inline cdr__jv cdr__jv_none(void) { cdr__jv v = { .kind = CDR__J_NONE, .safe = false, .u = { 0 } }; v.u.i = 0; return v; }
static inline cdr__jv cdr__jv_undefined(const char *name) { cdr__jv v = { .kind = CDR__J_UNDEFINED, .safe = false, .u = { 0 } }; v.u.name = name; return v; }
static inline bool cdr__jv_is_number(const cdr__jv *v) { return v->kind == CDR__J_INT || v->kind == CDR__J_FLOAT || v->kind == CDR__J_BOOL; }
static inline bool cdr__jv_is_list(const cdr__jv *v) { return v->kind == CDR__J_LIST || v->kind == CDR__J_TUPLE; }
static inline int64_t cdr__jv_whole(const cdr__jv *v) { return v->kind == CDR__J_BOOL ? (int64_t)v->u.b : v->u.i; }
double cdr__jv_number(const cdr__jv *v);
const char *cdr__jv_type(const cdr__jv *v);                                       /* for messages: as Python names it */
bool cdr__jv_truth(const cdr__jv *v);
bool cdr__jv_string(cdr__jx *x, const char *s, const uint8_t *tag, size_t n, cdr__jv *out);        /* copies */
bool cdr__jv_view(cdr__jx *x, const cdr__jstr *of, size_t from, size_t n, cdr__jv *out);           /* shares */
bool cdr__jv_text(cdr__jx *x, const char *s, cdr__jv *out);                                        /* of the template */
bool cdr__jv_list(cdr__jx *x, int64_t n, int kind, cdr__jlist **l, cdr__jv *out);                  /* n values to be filled */
bool cdr__jv_dict(cdr__jx *x, int64_t room, cdr__jv *out);
bool cdr__jdict_put(cdr__jx *x, cdr__jdict *d, const cdr__jv *key, const cdr__jv *value);
const cdr__jv *cdr__jdict_get(const cdr__jdict *d, const cdr__jv *key);                            /* NULL: absent */
const cdr__jv *cdr__jdict_name(const cdr__jdict *d, const char *name);
bool cdr__jv_equal(cdr__jx *x, const cdr__jv *a, const cdr__jv *b, bool *equal);
bool cdr__jv_order(cdr__jx *x, const cdr__jv *a, const cdr__jv *b, int *order);                    /* -1, 0, 1; 2: a NaN */
bool cdr__jv_items(cdr__jx *x, const cdr__jv *v, const cdr__jlist **items);                        /* what a loop goes over */
bool cdr__jv_str(cdr__jx *x, const cdr__jv *v, const cdr__jstr **s);                               /* str(v) */
bool cdr__jv_of_json(cdr__jx *x, const cdr_json *j, uint8_t tag, cdr__jv *out);
int cdr__jstr_compare(const cdr__jstr *a, const cdr__jstr *b);
bool cdr__jv_is_text(const cdr__jv *v, const char *s);

/* Text in the making: bytes and tags, which become a string of the arena. */
void cdr__jout_add(cdr__jout *o, const char *s, const uint8_t *tag, size_t n);
void cdr__jout_str(cdr__jout *o, const cdr__jstr *s);
void cdr__jout_fill(cdr__jout *o, const char *s, uint8_t tag);
void cdr__jout_free(cdr__jout *o);
bool cdr__jout_done(cdr__jx *x, cdr__jout *o, bool ok, cdr__jv *out);                              /* frees o */
size_t cdr__j_space(const char *s, size_t n);                       /* bytes of the white space character at s; 0: none */
size_t cdr__j_char(const char *s, size_t n);                        /* bytes of the character at s, 1 where it is no UTF-8 */
bool cdr__j_case(cdr__jx *x, const cdr__jstr *s, bool upper, cdr__jv *out);   /* of whole text */
bool cdr__jx_add(cdr__jx *x, cdr__jout *o, const cdr__jstr *s);     /* to text in the making, within the bounds of the run */
bool cdr__j_replace(cdr__jx *x, const cdr__jstr *s, const cdr__jstr *old, const cdr__jstr *by, int64_t count, cdr__jv *out);
bool cdr__j_strip(cdr__jx *x, const cdr__jstr *s, const cdr__jstr *chars, bool left, bool right, cdr__jv *out);
bool cdr__j_join(cdr__jx *x, const cdr__jstr *between, const cdr__jlist *items, bool any, cdr__jv *out);      /* any: values of any kind */
int64_t cdr__j_length(const cdr__jstr *s);                          /* characters */
size_t cdr__j_offset(const cdr__jstr *s, int64_t chars);            /* byte offset of a character, at most s->n */

/* ---- what a template may call -------------------------------------------------------------------------------------------------------- */
typedef struct {
    const cdr__jv *self;               /* of a method, a filter, a test */
    const cdr__jv *a; int n;           /* positions: one for each parameter, MISSING where not given; of a variadic builtin what was given */
    const char *const *key; const cdr__jv *value; int n_key;           /* keywords, of a variadic builtin only */
} cdr__jargs;
typedef struct cdr__jbuiltin {
    const char *name, *params;         /* "sep,maxsplit"; "*": variadic; NULL: known to Jinja, refused here (why) */
    bool (*run)(cdr__jx *x, const cdr__jargs *a, cdr__jv *out);
    const char *why;
} cdr__jbuiltin;
const cdr__jbuiltin *cdr__jinja_function(const char *name);
const cdr__jbuiltin *cdr__jinja_filter(const char *name);
const cdr__jbuiltin *cdr__jinja_test(const char *name);
/* A method or attribute that Python gives to values of this kind; NULL: it has none of that name. */
const cdr__jbuiltin *cdr__jinja_method(const cdr__jv *self, const char *name);
bool cdr__jx_call(cdr__jx *x, const cdr__jbuiltin *b, const cdr__jv *self, const cdr__jv *a, int n, const char *const *key, const cdr__jv *value, int n_key,
    cdr__jv *out);
bool cdr__jx_call_macro(cdr__jx *x, const cdr__jmacro *m, const cdr__jv *a, int n, const char *const *key, const cdr__jv *value, int n_key, cdr__jv *out);
bool cdr__jx_attribute(cdr__jx *x, const cdr__jv *of, const char *name, cdr__jv *out);             /* of.name */
bool cdr__jx_item(cdr__jx *x, const cdr__jv *of, const cdr__jv *key, cdr__jv *out);                /* of[key] */
bool cdr__jx_path(cdr__jx *x, const cdr__jv *of, const cdr__jv *path, cdr__jv *out);               /* attribute="a.b.0" of map, sort, ... */
bool cdr__jx_binary(cdr__jx *x, int op, const cdr__jv *a, const cdr__jv *b, cdr__jv *out);
bool cdr__jx_compare(cdr__jx *x, int op, const cdr__jv *a, const cdr__jv *b, bool *yes);
bool cdr__jx_tojson(cdr__jx *x, const cdr__jargs *a, cdr__jv *out);

/* Arguments of builtins, with messages that name the parameter. */
bool cdr__jarg_text(cdr__jx *x, const cdr__jargs *a, int i, const cdr__jstr **s);                  /* missing or none: *s NULL */
bool cdr__jarg_int(cdr__jx *x, const cdr__jargs *a, int i, int64_t otherwise, int64_t *v);
bool cdr__jarg_bool(const cdr__jargs *a, int i, bool otherwise);

#ifdef __cplusplus
}
#endif
#endif
