/* text.c: a growing text, UTF-8, and the nearest names for "Did you mean". */
#include "base/base.h"
#include <stdlib.h>
#include <string.h>

/* Room for n more characters and the NUL. */
static void text_reserve(cdr_text *t, size_t n)
{
    size_t need;
    CDR_CHECK(cdr_add_size(t->n, n, &need) && cdr_add_size(need, 1, &need));
    if (need <= t->cap) return;
    size_t cap = CDR_MAX(need, t->cap * 2);
    cap = CDR_MAX(cap, (size_t)256);
    char *s = cdr_alloc(cap);
    if (t->n) memcpy(s, t->s, t->n);
    s[t->n] = 0;
    cdr_free(t->s);
    t->s = s;
    t->cap = cap;
}

void cdr_text_append(cdr_text *t, const char *s, size_t n)
{
    text_reserve(t, n);
    if (n) memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

void cdr_text_printf(cdr_text *t, const char *fmt, ...)
{
    text_reserve(t, 0);
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(t->s + t->n, t->cap - t->n, fmt, ap);
    va_end(ap);
    CDR_CHECK(n >= 0);
    if ((size_t)n >= t->cap - t->n) {
        text_reserve(t, (size_t)n);
        vsnprintf(t->s + t->n, t->cap - t->n, fmt, again);
    }
    va_end(again);
    t->n += (size_t)n;
}

void cdr_text_free(cdr_text *t)
{
    cdr_free(t->s);
    *t = (cdr_text){ 0 };
}

int cdr_utf8_length(const char *text, size_t left)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return 1;
    int n = s[0] >= 0xc2 && s[0] <= 0xdf ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
    if (n == 0 || (size_t)n > left) return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
    if (s[0] == 0xed && s[1] > 0x9f) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return n;
}

/* ---- nearest names ----------------------------------------------------------------------------------------- */
enum { WORD_MAX = 96, N_NEAREST = 3 };

static char lower(char c) { return (c >= 'A' && c <= 'Z') ? (char)(c - 'A' + 'a') : c; }

/* Edit distance with insertion, deletion, substitution and swap of two neighbours (optimal string alignment), three
 * rows of the table at a time; letters of either case are equal. Lengths up to WORD_MAX. */
static int edit_distance(const char *a, int n_a, const char *b, int n_b)
{
    int row[3][WORD_MAX + 1];
    for (int j = 0; j <= n_b; j++) row[0][j] = j;
    for (int i = 1; i <= n_a; i++) {
        int *now = row[i % 3], *one = row[(i + 2) % 3], *two = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= n_b; j++) {
            char ca = lower(a[i - 1]), cb = lower(b[j - 1]);
            int d = CDR_MIN(one[j] + 1, now[j - 1] + 1);
            d = CDR_MIN(d, one[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == lower(b[j - 2]) && lower(a[i - 2]) == cb) d = CDR_MIN(d, two[j - 2] + 1);
            now[j] = d;
        }
    }
    return row[n_a % 3][n_b];
}

/* A name is near when a third of the word at most has to change, and at most one edit more than for the best name. */
int cdr_nearest_of(const char *word, const char *const *cand, int n_cand, int at_most[3])
{
    struct { int distance, index; } best[N_NEAREST];
    int n = 0, n_word = (int)strnlen(word, WORD_MAX);
    int limit = CDR_MAX(1, (n_word + 1) / 3);
    for (int i = 0; i < n_cand; i++) {
        int n_this = (int)strnlen(cand[i], WORD_MAX);
        if (abs(n_this - n_word) > limit) continue;
        int d = edit_distance(word, n_word, cand[i], n_this);
        if (d > limit) continue;
        int at = n;
        while (at > 0 && best[at - 1].distance > d) at--;
        if (at == N_NEAREST) continue;
        n = CDR_MIN(n + 1, (int)N_NEAREST);
        for (int k = n - 1; k > at; k--) best[k] = best[k - 1];
        best[at].distance = d;
        best[at].index = i;
    }
    while (n > 0 && best[n - 1].distance > best[0].distance + 1) n--;
    for (int i = 0; i < n; i++) at_most[i] = best[i].index;
    return n;
}

const char *cdr_nearest(cdr_pool *pool, const char *word, const char *const *cand, int n_cand)
{
    int best[N_NEAREST], n = cdr_nearest_of(word, cand, n_cand, best);
    if (n == 0) return "";
    const char *a = cand[best[0]];
    if (n == 1) return cdr_pool_printf(pool, " Did you mean %s?", a);
    const char *b = cand[best[1]];
    if (n == 2) return cdr_pool_printf(pool, " Did you mean %s or %s?", a, b);
    return cdr_pool_printf(pool, " Did you mean %s, %s or %s?", a, b, cand[best[2]]);
}
