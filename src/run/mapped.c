/* mapped.c: packed stacks that stay in the mapped files they come from (cdr_param.mapped): their tables of addresses, and read-ahead.
 *
 *   cdr_exec_map(x, shared, local, codes, scales);        // whoever opened the file, for each expert
 *   cdr__mapped_ready(x);                                 // before the first run: all are there
 *   cdr__mapped_ahead(x, q, i);                           // before call i: what the next call that reads mapped experts will
 *
 * Pages are read when a kernel first touches them; a file larger than memory is read once for every pass over a layer. So before a call
 * that reads mapped experts the kernel of the operating system is told (MADV_WILLNEED) what the next such call of the segment reads, and
 * reads it beside the work; the last one looks at the segment's first, as the next micro-batch begins there. Where all pages are there this
 * costs 3 to 20 ms a GiB, where they are not 0.4 s a GiB, which page faults would cost too. Generating is left to page faults:
 * a token wants few experts of a layer. Experts that are neighbours in the file are one range. */
#include "run/exec.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NEAR = 1 << 18 };              /* bytes between two ranges that are told as one */

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const cdr__range *)a)->at, y = (uintptr_t)((const cdr__range *)b)->at;
    return (x > y) - (x < y);
}

void cdr_exec_map(cdr_exec *x, cdr_val v, int64_t local, const uint8_t *codes, const uint8_t *scales)
{
    CDR_CHECK(v >= 0 && v < x->b->n_shared && codes && scales);
    const cdr_value *val = &x->b->shared[v];
    CDR_CHECK(val->t.layout == CDR_MAPPED && local >= 0 && local < val->t.n[0]);
    ((cdr_mapped *)(void *)(x->slab + val->offset))[local] = (cdr_mapped){ codes, scales };
}

int64_t cdr_exec_mapped_bytes(const cdr_exec *x)
{
    int64_t n = 0;
    for (int32_t v = 0; v < x->b->n_shared; v++) n += (int64_t)cdr_mapped_bytes(&x->b->shared[v].t);
    return n;
}

/* ---- ranges of a set of values ------------------------------------------------------------------------------------------------ */
static int64_t merge(cdr__range *r, int64_t n)
{
    int64_t n_out = 0;
    qsort(r, (size_t)n, sizeof *r, by_address);
    for (int64_t i = 0; i < n; i++) {
        cdr__range *last = n_out > 0 ? &r[n_out - 1] : NULL;
        if (!last || (uintptr_t)r[i].at > (uintptr_t)last->at + last->bytes + NEAR) r[n_out++] = r[i];
        else last->bytes = CDR_MAX(last->bytes, (size_t)((uintptr_t)r[i].at - (uintptr_t)last->at) + r[i].bytes);
    }
    return n_out;
}

static cdr__range whole_pages(const void *at, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)at / page * page;
    return (cdr__range){ (char *)first, (uintptr_t)at + bytes - first };
}

static void fill(cdr_exec *x, cdr__mapped_set *s)
{
    int64_t n = 0;
    for (int k = 0; k < s->n_vals; k++) n += 2 * x->b->shared[s->val[k]].t.n[0];
    s->range = cdr_pool_alloc(x->pool, sizeof *s->range * (size_t)n);
    n = 0;
    for (int k = 0; k < s->n_vals; k++) {
        const cdr_value *val = &x->b->shared[s->val[k]];
        const cdr_mapped *m = (const cdr_mapped *)(const void *)(x->slab + val->offset);
        const size_t blocks = (size_t)(val->t.n[1] * val->t.n[2]) / 32;
        for (int64_t e = 0; e < val->t.n[0]; e++) {
            CDR_CHECK(m[e].codes && m[e].scales);                /* cdr_exec_map was called for all */
            s->range[n++] = whole_pages(m[e].codes, 16 * blocks);
            s->range[n++] = whole_pages(m[e].scales, blocks);
        }
    }
    s->n_ranges = merge(s->range, n);
}

/* ---- which call reads which set -------------------------------------------------------------------------------------------------- */
/* Mapped values that call i reads */
static int read_by(const cdr_exec *x, const cdr_program *p, int32_t i, cdr_val v[CDR__MAPPED_VALS])
{
    int n = 0;
    for (int k = 0; k < p->calls[i].n_in; k++) {
        const cdr_val root = p->operands[p->calls[i].arg + (uint32_t)k] == CDR_NONE ? CDR_NONE
                             : cdr_value_root(x->b, p, p->operands[p->calls[i].arg + (uint32_t)k], NULL);
        if (root == CDR_NONE || root >= x->b->n_shared || x->b->shared[root].t.layout != CDR_MAPPED) continue;
        CDR_CHECK(n < CDR__MAPPED_VALS);
        v[n++] = root;
    }
    return n;
}

static int32_t set_of(cdr_exec *x, const cdr_program *p, int32_t i)
{
    cdr_val v[CDR__MAPPED_VALS];
    const int n = read_by(x, p, i, v);
    if (n == 0) return -1;
    for (int64_t s = 0; s < x->n_sets; s++)
        if (x->sets[s].n_vals == n && memcmp(x->sets[s].val, v, sizeof *v * (size_t)n) == 0) return (int32_t)s;
    cdr__mapped_set *s = CDR_PUSH(x->pool, x->sets, x->n_sets, x->cap_sets);
    s->n_vals = n;
    memcpy(s->val, v, sizeof *v * (size_t)n);
    fill(x, s);
    return (int32_t)(x->n_sets - 1);
}

/* next[i]: the set that is told before call i; -1: none */
static void find_next(cdr_exec *x, const cdr_program *p, const cdr_segment *seg, int32_t *next)
{
    int32_t ahead = -1, last = -1;
    for (int32_t i = seg->first + seg->n - 1; i >= seg->first; i--) {
        const int32_t own = set_of(x, p, i);
        next[i] = -1;
        if (own < 0) continue;
        if (last < 0) last = i;
        next[i] = ahead == own ? -1 : ahead;
        ahead = own;
    }
    if (last >= 0 && ahead != set_of(x, p, last)) next[last] = ahead;        /* the segment's first */
}

void cdr__mapped_ready(cdr_exec *x)
{
    if (x->mapped_ready) return;
    x->mapped_ready = true;
    for (int q = 0; q < x->b->n_progs; q++) {
        const cdr_program *p = &x->b->progs[q];
        x->prep[q].ahead = cdr_pool_alloc(x->pool, sizeof *x->prep[q].ahead * (size_t)CDR_MAX(p->n_calls, 1));
        for (int32_t i = 0; i < p->n_calls; i++) x->prep[q].ahead[i] = -1;
        for (int32_t s = 0; s < p->n_segs; s++) find_next(x, p, &p->segs[s], x->prep[q].ahead);
    }
}

void cdr__mapped_ahead(cdr_exec *x, cdr_prog_id q, int32_t i)
{
    const int32_t s = x->prep[q].ahead[i];
    if (s < 0 || q == CDR_PROG_GENERATE) return;
    for (int64_t r = 0; r < x->sets[s].n_ranges; r++) (void)madvise(x->sets[s].range[r].at, x->sets[s].range[r].bytes, MADV_WILLNEED);
}
