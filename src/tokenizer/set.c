/* set.c: sets of code points as sorted ranges, and the properties by which regular expressions name them.
 * White space is the property White_Space: the categories Z, U+0009 to U+000D, U+0085 (25 characters in Unicode 16.0).
 */
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

void cdr__set_add(cdr_pool *pool, cdr__set *s, uint32_t lo, uint32_t hi)
{
    s->r = cdr_pool_grow(pool, s->r, sizeof *s->r, s->n, &s->cap);
    s->r[s->n++] = (cdr__range){ lo, hi };
}

static int by_lo(const void *pa, const void *pb)
{
    const cdr__range *a = pa, *b = pb;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

void cdr__set_sort(cdr__set *s)
{
    int n = 0;
    if (s->n > 1) qsort(s->r, (size_t)s->n, sizeof *s->r, by_lo);
    for (int i = 0; i < s->n; i++)
        if (n > 0 && s->r[i].lo <= s->r[n - 1].hi + 1) s->r[n - 1].hi = CDR_MAX(s->r[n - 1].hi, s->r[i].hi);
        else s->r[n++] = s->r[i];
    s->n = n;
}

cdr__set cdr__set_not(cdr_pool *pool, const cdr__set *s)
{
    cdr__set out = { 0 };
    uint32_t from = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->r[i].lo > from) cdr__set_add(pool, &out, from, s->r[i].lo - 1);
        from = s->r[i].hi + 1;
    }
    if (from < CDR__N_CODE) cdr__set_add(pool, &out, from, CDR__N_CODE - 1);
    return out;
}

cdr__set cdr__set_and(cdr_pool *pool, const cdr__set *a, const cdr__set *b)
{
    cdr__set out = { 0 };
    for (int i = 0, k = 0; i < a->n && k < b->n;) {
        uint32_t lo = CDR_MAX(a->r[i].lo, b->r[k].lo), hi = CDR_MIN(a->r[i].hi, b->r[k].hi);
        if (lo <= hi) cdr__set_add(pool, &out, lo, hi);
        if (a->r[i].hi < b->r[k].hi) i++;
        else k++;
    }
    return out;
}

bool cdr__set_has(const cdr__set *s, uint32_t c)
{
    int lo = 0, hi = s->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (s->r[mid].hi < c) lo = mid + 1;
        else hi = mid;
    }
    return lo < s->n && s->r[lo].lo <= c;
}

/* Runs whose category is in `want` (a bit for each of the 30), or whose script is Han. */
static void add_runs(cdr_pool *pool, cdr__set *s, uint32_t want, bool han)
{
    for (int i = 0; i < cdr__unicode_n_gc; i++) {
        uint32_t run = cdr__unicode_gc[i], end = i + 1 < cdr__unicode_n_gc ? cdr__unicode_gc[i + 1] >> 8 : CDR__N_CODE;
        if (want >> (run & 31) & 1 || (han && run & 32)) cdr__set_add(pool, s, run >> 8, end - 1);
    }
}

bool cdr__set_property(cdr_pool *pool, cdr__set *s, const char *name, size_t n)
{
    static const char categories[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
    uint32_t want = 0;
    if (n == 3 && memcmp(name, "Han", 3) == 0) {
        add_runs(pool, s, 0, true);
        return true;
    }
    if (n == 1 && name[0] == 's') {
        cdr__set_add(pool, s, 9, 13);
        cdr__set_add(pool, s, 0x85, 0x85);
        name = "Z";
    }
    for (size_t i = 0; i + 2 < sizeof categories && (n == 1 || n == 2); i += 2)
        if (memcmp(categories + i, name, n) == 0) want |= 1u << (i / 2);
    add_runs(pool, s, want, false);
    return want != 0;
}
