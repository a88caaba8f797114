/* shelf: first fit of byte ranges that are taken for an interval of time each.
 *
 * A segment tree over positions in time. An interval is cut into at most 2 log2 n canonical nodes. A node keeps two sorted lists of disjoint
 * byte ranges, in which neighbours are joined: what is taken for the whole of its time, and what is taken at any of its time. The ranges in
 * the way of a new one are the second lists of its own canonical nodes and the first lists of the nodes above them: some thirty lists
 * of few ranges each, as a stack of a thousand saved activations is one range. */
#include "compile/pass.h"
#include <stdlib.h>

typedef struct { int64_t at, past; } range;
typedef struct { range *r; int32_t n, cap; } ranges;
typedef struct { ranges whole, any; } node;

enum { MAX_LISTS = 4 * 32 };          /* of one query: two nodes a level, and those above */
struct cdr__shelf { int32_t width; node *node; const ranges *list[MAX_LISTS]; int32_t head[MAX_LISTS]; int n_lists; };

cdr__shelf *cdr__shelf_new(int64_t n_pos)
{
    cdr__shelf *s = cdr_alloc(sizeof *s);
    *s = (cdr__shelf){ .width = 1 };
    while (s->width < n_pos) s->width *= 2;
    s->node = cdr_alloc(sizeof *s->node * 2 * (size_t)s->width);
    memset(s->node, 0, sizeof *s->node * 2 * (size_t)s->width);
    return s;
}

void cdr__shelf_free(cdr__shelf *s)
{
    for (int32_t i = 0; i < 2 * s->width; i++) {
        cdr_free(s->node[i].whole.r);
        cdr_free(s->node[i].any.r);
    }
    cdr_free(s->node);
    cdr_free(s);
}

static void *grown(void *old, size_t old_bytes, size_t bytes)
{
    void *more = cdr_alloc(bytes);
    if (old) memcpy(more, old, old_bytes);
    cdr_free(old);
    return more;
}

static void add_list(cdr__shelf *s, const ranges *x)
{
    if (x->n == 0) return;
    CDR_CHECK(s->n_lists < MAX_LISTS);
    s->head[s->n_lists] = 0;
    s->list[s->n_lists++] = x;
}

/* Ranges that are taken at some time of [from, to], under node i, whose time is [lo, hi] */
static void find(cdr__shelf *s, int32_t i, int32_t lo, int32_t hi, int32_t from, int32_t to)
{
    if (s->node[i].any.n == 0 || hi < from || to < lo) return;
    if (from <= lo && hi <= to) {
        add_list(s, &s->node[i].any);
        return;
    }
    add_list(s, &s->node[i].whole);
    const int32_t mid = lo + (hi - lo) / 2;
    find(s, 2 * i, lo, mid, from, to);
    find(s, 2 * i + 1, mid + 1, hi, from, to);
}

/* The list and r, joined where they overlap or touch */
static void join(ranges *x, range r)
{
    int32_t lo = 0, hi = x->n;
    while (lo < hi) {                    /* lo: the first that ends at or behind r.at */
        const int32_t mid = lo + (hi - lo) / 2;
        if (x->r[mid].past < r.at) lo = mid + 1;
        else hi = mid;
    }
    for (hi = lo; hi < x->n && x->r[hi].at <= r.past; hi++) {
        r.at = CDR_MIN(r.at, x->r[hi].at);
        r.past = CDR_MAX(r.past, x->r[hi].past);
    }
    if (lo == hi && x->n == x->cap) {
        const int32_t cap = 2 * x->cap + 4;
        x->r = grown(x->r, sizeof *x->r * (size_t)x->n, sizeof *x->r * (size_t)cap);
        x->cap = cap;
    }
    if (hi != lo + 1) memmove(x->r + lo + 1, x->r + hi, sizeof *x->r * (size_t)(x->n - hi));
    x->n += lo + 1 - hi;
    x->r[lo] = r;
}

static void insert(cdr__shelf *s, int32_t i, int32_t lo, int32_t hi, int32_t from, int32_t to, range r)
{
    if (hi < from || to < lo) return;
    join(&s->node[i].any, r);
    if (from <= lo && hi <= to) {
        join(&s->node[i].whole, r);
        return;
    }
    const int32_t mid = lo + (hi - lo) / 2;
    insert(s, 2 * i, lo, mid, from, to, r);
    insert(s, 2 * i + 1, mid + 1, hi, from, to, r);
}

/* Moves list k's head past what ends below at; where its next range leaves no room for bytes, the end of that, else at. */
static int64_t pass_over(cdr__shelf *s, int k, int64_t at, int64_t bytes)
{
    const ranges *x = s->list[k];
    int32_t lo = s->head[k], hi = x->n;
    if (lo == hi || x->r[hi - 1].past <= at) {          /* most lists end below what others leave free */
        s->head[k] = hi;
        return at;
    }
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (x->r[mid].past <= at) lo = mid + 1;
        else hi = mid;
    }
    s->head[k] = lo;
    return lo < x->n && x->r[lo].at < at + bytes ? x->r[lo].past : at;
}

int64_t cdr__shelf_put(cdr__shelf *s, int32_t from, int32_t to, int64_t bytes)
{
    int64_t at = 0;
    s->n_lists = 0;
    find(s, 1, 0, s->width - 1, from, to);
    for (int k = 0, quiet = 0; quiet < s->n_lists; k = (k + 1) % s->n_lists) {
        const int64_t next = pass_over(s, k, at, bytes);
        quiet = next == at ? quiet + 1 : 0;
        at = next;
    }
    insert(s, 1, 0, s->width - 1, from, to, (range){ at, at + bytes });
    return at;
}
