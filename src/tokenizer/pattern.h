/* pattern.h: the regular expressions by which tokenizers cut text into pieces, made into a table that reads each character about once.
 *
 *   const cdr__pattern *p;
 *   CDR_TRY(cdr__pattern_compile("\\p{N}{1,3}|\\s+(?!\\S)|\\s+", "tokenizer.json", pool, &p, err));
 *   for (size_t i = 0; i < n; i += k) { k = cdr__pattern_piece(p, text + i, n - i); ... }       // pieces tile the text
 */
#ifndef CDR_TOKENIZER_PATTERN_H
#define CDR_TOKENIZER_PATTERN_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cdr__pattern cdr__pattern;

/* In the pool. What is not known is an error that quotes it. where: for messages. */
cdr_status cdr__pattern_compile(const char *regex, const char *where, cdr_pool *pool, const cdr__pattern **out, cdr_err *err);
/* Bytes of the match at the very beginning of text; 0: none. The end of text is the end of the world: lookahead sees nothing beyond. */
size_t cdr__pattern_match(const cdr__pattern *p, const char *text, size_t bytes);
/* Bytes of the first piece of text (bytes > 0): the match at its beginning, else what lies before the next match. */
size_t cdr__pattern_piece(const cdr__pattern *p, const char *text, size_t bytes);
/* What a cut of the text in front of text[at] does, where text[at - 1] is ASCII and 0 < at < bytes. Decided from the two characters alone, for whatever is before
 * and behind them. NONE: pieces elsewhere may change. INSIDE: every border stays, and the cut is one more. BORDER: every border stays, and the cut is one of them. */
enum { CDR__CUT_NONE, CDR__CUT_INSIDE, CDR__CUT_BORDER };
int cdr__pattern_cut(const cdr__pattern *p, const char *text, size_t at, size_t bytes);
int cdr__pattern_states(const cdr__pattern *p);

/* Sets of code points: sorted ranges that do not touch (set.c). */
typedef struct { uint32_t lo, hi; } cdr__range;        /* both belong to it */
typedef struct { cdr__range *r; int n; int64_t cap; } cdr__set;
void cdr__set_add(cdr_pool *pool, cdr__set *s, uint32_t lo, uint32_t hi);         /* unsorted; cdr__set_sort before anything else */
void cdr__set_sort(cdr__set *s);
cdr__set cdr__set_not(cdr_pool *pool, const cdr__set *s);
cdr__set cdr__set_and(cdr_pool *pool, const cdr__set *a, const cdr__set *b);
bool cdr__set_has(const cdr__set *s, uint32_t c);
/* "L", "Lu", "Han", "s" (white space): adds it; false: no such property. */
bool cdr__set_property(cdr_pool *pool, cdr__set *s, const char *name, size_t n);

#ifdef __cplusplus
}
#endif
#endif
