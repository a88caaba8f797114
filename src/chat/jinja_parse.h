/* jinja_parse.h: what the parser's two files share: jinja_parse.c (nodes, tokens, statements) and jinja_parse_expr.c (expressions). Internal to both.
 *
 *   cdr__jn *test = cdr__jp_tuple(p, false, false, NULL);             // of {% if TEST %}; NULL: p has failed, and p->err says why
 *   if (!cdr__jp_expect(p, CDR__T_BLOCK_END, "the end of the tag, %}")) return NULL;
 *
 * A parser fails once: whatever is called behind that returns NULL or false, so that a caller hands a NULL on and needs no other look.
 */
#ifndef CDR_CHAT_JINJA_PARSE_H
#define CDR_CHAT_JINJA_PARSE_H

#include "chat/jinja.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__JP_ARGS = 64 };                 /* arguments of a call, parameters of a macro */

typedef struct {
    cdr__jtemplate *t;
    cdr_err *err;
    const cdr__jtoken *k;                   /* the current token */
    int64_t cap_symbol, n_nodes;
    int depth, loops, macros;               /* of nesting */
    bool failed;
} cdr__jparser;

typedef struct { const cdr__jn **v; int64_t n, cap; } cdr__jnodes;

/* ---- nodes (jinja_parse.c) ----------------------------------------------------------------------------------------------- */
cdr__jn *cdr__jp_fail(cdr__jparser *p, const char *fmt, ...) CDR_PRINTF(2, 3);              /* NULL */
cdr__jn *cdr__jp_refuse(cdr__jparser *p, const char *what, const char *hint);               /* NULL; what Jinja has and the subset has not */
cdr__jn *cdr__jp_make(cdr__jparser *p, int kind);
cdr__jn *cdr__jp_make2(cdr__jparser *p, int kind, const cdr__jn *a, const cdr__jn *b);
void cdr__jp_add(cdr__jparser *p, cdr__jnodes *l, const cdr__jn *n);
cdr__jn *cdr__jp_with_list(cdr__jn *n, const cdr__jnodes *l);
cdr__jv cdr__jp_string(cdr__jparser *p, const char *s, size_t n);
int cdr__jp_symbol(cdr__jparser *p, const char *name);
bool cdr__jp_deeper(cdr__jparser *p);                               /* counts p->depth up; false: too deep */

/* ---- tokens -------------------------------------------------------------------------------------------------------------------- */
bool cdr__jp_expect(cdr__jparser *p, int kind, const char *what);
static inline bool cdr__jp_is(const cdr__jparser *p, int kind) { return p->k->kind == kind; }
static inline bool cdr__jp_is_name(const cdr__jparser *p, const char *s) { return p->k->kind == CDR__T_NAME && strcmp(p->k->s, s) == 0; }

static inline void cdr__jp_advance(cdr__jparser *p)
{
    if (p->k->kind != CDR__T_END) p->k++;
}

static inline bool cdr__jp_skip(cdr__jparser *p, int kind)
{
    if (p->failed || !cdr__jp_is(p, kind)) return false;
    cdr__jp_advance(p);
    return true;
}

static inline bool cdr__jp_skip_name(cdr__jparser *p, const char *s)
{
    if (p->failed || !cdr__jp_is_name(p, s)) return false;
    cdr__jp_advance(p);
    return true;
}

/* ---- expressions (jinja_parse_expr.c) --------------------------------------------------------------------------------------- */
cdr__jn *cdr__jp_cond(cdr__jparser *p);
/* cond: conditional expressions may occur; empty: "()" is a tuple; stop: a name that ends it. */
cdr__jn *cdr__jp_tuple(cdr__jparser *p, bool cond, bool empty, const char *stop);
bool cdr__jp_tuple_end(const cdr__jparser *p, const char *stop);
/* A filter's name and arguments, applied to `of`. */
cdr__jn *cdr__jp_filter(cdr__jparser *p, const cdr__jn *of);

#ifdef __cplusplus
}
#endif
#endif
