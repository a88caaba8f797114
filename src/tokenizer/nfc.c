/* nfc.c: canonical composition. Source: Unicode Standard Annex 15, and for Hangul chapter 3.12 of the standard (decomposition and composition by arithmetic).
 *
 * A character is a border where nothing before it can compose or change places with it. Text is taken in stretches from one border to the next: decomposed,
 * marks sorted by combining class (counting sort: a hostile line of a million marks costs as much as any other), composed again. A stretch of one character
 * that has no decomposition, or composes back to itself, is copied.
 */
#include "tokenizer/unicode.h"

#include <string.h>

enum { S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, N_L = 19, N_V = 21, N_T = 28, N_S = N_L * N_V * N_T };

typedef struct { uint32_t code; uint8_t ccc; } mark;
typedef struct { mark *m, *sorted; int64_t n, cap; } run;

static const cdr__unicode_pair *pair_of(uint32_t code)
{
    int lo = 0, hi = cdr__unicode_n_pairs;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (cdr__unicode_pairs[mid].code < code) lo = mid + 1;
        else hi = mid;
    }
    return lo < cdr__unicode_n_pairs && cdr__unicode_pairs[lo].code == code ? &cdr__unicode_pairs[lo] : NULL;
}

static uint8_t class_of(uint32_t code)
{
    int lo = 0, hi = cdr__unicode_n_ccc;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (cdr__unicode_ccc[mid] >> 8 <= code) lo = mid;
        else hi = mid;
    }
    return (uint8_t)(cdr__unicode_ccc[lo] & 255);
}

/* First composition at or behind (b, a), in the order by b. */
static int join_at(uint32_t a, uint32_t b)
{
    int lo = 0, hi = cdr__unicode_n_joins;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const cdr__unicode_join *j = &cdr__unicode_joins[mid];
        if (j->b < b || (j->b == b && j->a < a)) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* What a and b compose to; 0: nothing. */
static uint32_t composed(uint32_t a, uint32_t b)
{
    if (a - L_BASE < N_L && b - V_BASE < N_V) return S_BASE + ((a - L_BASE) * N_V + (b - V_BASE)) * N_T;
    if (a - S_BASE < N_S && (a - S_BASE) % N_T == 0 && b - T_BASE - 1 < N_T - 1) return a + (b - T_BASE);
    int i = join_at(a, b);
    const cdr__unicode_join *j = &cdr__unicode_joins[i];
    return i < cdr__unicode_n_joins && j->a == a && j->b == b ? j->code : 0;
}

/* Could it be the second of a composition? */
static bool joins(uint32_t b)
{
    int i = join_at(0, b);
    return b - V_BASE < N_V || b - T_BASE - 1 < N_T - 1 || (i < cdr__unicode_n_joins && cdr__unicode_joins[i].b == b);
}

/* Blocks that need no look: Latin, CJK, syllables of Hangul. */
static inline bool plain_block(uint32_t c)
{
    return c < 0x300 || (c >= 0x3400 && c < 0xa000) || (c >= S_BASE && c < S_BASE + N_S) || c == CDR__NO_UTF8;
}

static bool border(uint32_t c)
{
    if (plain_block(c)) return true;
    for (const cdr__unicode_pair *p; (p = pair_of(c));) c = p->a;            /* the first of what it decomposes to */
    return class_of(c) == 0 && !joins(c);
}

/* A border that normalization leaves as it is, where a border follows. */
static bool plain(uint32_t c)
{
    if (plain_block(c)) return true;
    const cdr__unicode_pair *p = pair_of(c);
    return (!p || p->composes) && border(c);
}

bool cdr__nfc_is(const char *text, size_t bytes)
{
    size_t k;
    for (size_t i = 0; i < bytes; i += k) {
        if ((signed char)text[i] >= 0) k = 1;
        else if (!plain(cdr__utf8(text + i, bytes - i, &k))) return false;
    }
    return true;
}

static void put(run *r, uint32_t code)
{
    if (r->n == r->cap) {
        int64_t cap = r->cap ? 2 * r->cap : 64;
        mark *m = cdr_alloc(sizeof *m * (size_t)cap);
        if (r->n) memcpy(m, r->m, sizeof *m * (size_t)r->n);
        cdr_free(r->m);
        cdr_free(r->sorted);
        r->m = m;
        r->sorted = cdr_alloc(sizeof *m * (size_t)cap);
        r->cap = cap;
    }
    r->m[r->n++] = (mark){ code, class_of(code) };
}

static void decompose(run *r, uint32_t code)
{
    uint32_t stack[16];
    int n = 0;
    stack[n++] = code;
    while (n > 0) {
        uint32_t c = stack[--n], s = c - S_BASE;
        const cdr__unicode_pair *p = pair_of(c);
        if (s < N_S) {
            put(r, L_BASE + s / (N_V * N_T));
            put(r, V_BASE + s / N_T % N_V);
            if (s % N_T) put(r, T_BASE + s % N_T);
        } else if (p) {
            if (p->b) stack[n++] = p->b;
            stack[n++] = p->a;
        } else put(r, c);
    }
}

/* m[from .. to) have classes other than 0: sorts them, equal ones in the order that they have. */
static void sort_marks(run *r, int64_t from, int64_t to)
{
    int64_t place[257] = { 0 };
    for (int64_t i = from; i < to; i++) place[r->m[i].ccc + 1]++;
    for (int k = 0; k < 256; k++) place[k + 1] += place[k];
    for (int64_t i = from; i < to; i++) r->sorted[place[r->m[i].ccc]++] = r->m[i];
    memcpy(r->m + from, r->sorted, sizeof *r->m * (size_t)(to - from));
}

static void put_utf8(uint32_t c, cdr_text *out)
{
    char s[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) s[i] = (char)(0x80 | (c & 63));
    s[0] = (char)(n == 1 ? c : c | (0xf00u >> n & 0xff));
    cdr_text_append(out, s, n);
}

static void compose(run *r, cdr_text *out)
{
    int64_t n = 0, starter = -1;
    int last = -1;                         /* class of the last one kept behind the starter; -1: none */
    for (int64_t i = 0, end; i < r->n; i = end) {
        for (end = i + 1; r->m[i].ccc && end < r->n && r->m[end].ccc;) end++;
        if (end > i + 1) sort_marks(r, i, end);
    }
    for (int64_t i = 0; i < r->n; i++) {
        mark x = r->m[i];
        uint32_t both = starter >= 0 && last < x.ccc ? composed(r->m[starter].code, x.code) : 0;
        if (both) {
            r->m[starter].code = both;
            continue;
        }
        if (x.ccc == 0) starter = n;
        last = x.ccc == 0 ? -1 : x.ccc;
        r->m[n++] = x;
    }
    for (int64_t i = 0; i < n; i++) put_utf8(r->m[i].code, out);
    r->n = 0;
}

void cdr__nfc(const char *text, size_t bytes, cdr_text *out)
{
    run r = { 0 };
    size_t k, copied = 0;
    for (size_t i = 0, first; i < bytes;) {
        uint32_t c = cdr__utf8(text + i, bytes - i, &first);
        size_t end = i + first;
        while (c != CDR__NO_UTF8 && end < bytes && !border(cdr__utf8(text + end, bytes - end, &k))) end += k;
        if (end > i + first || !plain(c)) {
            cdr_text_append(out, text + copied, i - copied);
            for (size_t at = i; at < end; at += k) decompose(&r, cdr__utf8(text + at, end - at, &k));
            compose(&r, out);
            copied = end;
        }
        i = end;
    }
    cdr_text_append(out, text + copied, bytes - copied);
    cdr_free(r.m);
    cdr_free(r.sorted);
}
