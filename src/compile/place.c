/* place: offsets in one slab per tier. RUN values first, once; then each program's STEP values and, above them, its TURN
 * values at the same place; a tier's slab is RUN + the largest program.
 *
 * Two TURN values may share bytes when all uses of one happen before all uses of the other: in another turn (turns
 * join), or, inside a turn, by the vector clocks of the waits, not by list order. Offsets: the best of by-size,
 * by-lifetime and by-start first fit; the lower bound is the largest sum of bytes that are live at one call.
 * Measured on K3-shaped traces (spec/planner.md, 4.1): by-size 0.6-3.4 %, by-lifetime 0.3 % above the bound. */
#include "compile/pass.h"
#include <stdlib.h>

enum { ALIGN = 256, MANY = 2048 };
typedef struct {
    cdr_val v; int64_t bytes, offset;
    int first_turn, last_turn;                          /* in the distinct turns */
    int32_t start, end;                                 /* unrolled positions of first and last use */
    uint32_t streams;                                   /* bit s: used on stream s */
    int32_t first[CDR_N_STREAMS], last[CDR_N_STREAMS];  /* per stream: program positions, INT32_MAX / -1: none */
} life;

typedef struct {
    cdr_pass *p; const cdr_program *prog; cdr_clock *start;
    life *l; int n; int32_t *at;       /* at: by local value, index in l, -1 */
    int64_t n_pos; int64_t *live;      /* bytes live at each unrolled position */
} arena;

static int64_t inst_bytes(const cdr_value *v) { return (int64_t)cdr_align_up(cdr_type_bytes(&v->t), ALIGN); }

static void use(arena *a, cdr_val v, int turn, int32_t pos, int32_t call, int stream)
{
    if (v == CDR_NONE) return;
    v = cdr_value_root(a->p->b, a->prog, v, NULL);
    if (v < a->p->b->n_shared) return;
    const cdr_value *x = cdr_value_at(a->p->b, a->prog, v);
    if (x->scope != CDR_TURN) return;
    int32_t *at = &a->at[v - a->p->b->n_shared];
    if (*at < 0) {
        *at = a->n;
        life *l = &a->l[a->n++];
        *l = (life){ .v = v, .bytes = inst_bytes(x) * x->n_inst, .first_turn = turn, .start = pos };
        for (int s = 0; s < CDR_N_STREAMS; s++) {
            l->first[s] = INT32_MAX;
            l->last[s] = -1;
        }
    }
    life *l = &a->l[*at];
    l->last_turn = turn;
    l->end = pos;
    l->streams |= 1u << stream;
    l->first[stream] = CDR_MIN(l->first[stream], call);
    l->last[stream] = CDR_MAX(l->last[stream], call);
}

static void collect(arena *a)
{
    cdr_turn turns[2048];
    int n_turns = cdr__distinct_turns(a->prog, turns, CDR_COUNT(turns));
    int32_t pos = 0;
    for (int t = 0; t < n_turns; t++) {
        if (t > 0 && turns[t].segment == turns[t - 1].segment && turns[t].mb != turns[t - 1].mb && !a->p->o->micro_split) continue;
        const cdr_segment *s = &a->prog->segs[turns[t].segment];
        for (int32_t i = s->first; i < s->first + s->n; i++, pos++) {
            const cdr_call *c = &a->prog->calls[i];
            for (int k = 0; k < c->n_in + c->n_out; k++) use(a, a->prog->operands[c->arg + (uint32_t)k], t, pos, i, c->stream);
            use(a, c->work, t, pos, i, c->stream);
            use(a, c->pred, t, pos, i, c->stream);
        }
    }
    a->n_pos = pos;
}

/* Do all uses of x happen before all uses of y? */
static bool before(const arena *a, const life *x, const life *y)
{
    if (x->last_turn < y->first_turn) return true;
    if (x->last_turn != y->first_turn || x->first_turn != x->last_turn || y->first_turn != y->last_turn) {
        if (x->last_turn > y->first_turn) return false;
        /* they meet in one turn and one of them lives through others: list order inside that turn, all on one stream */
        if (x->end >= y->start) return false;
    }
    for (int sy = 0; sy < CDR_N_STREAMS; sy++) {
        if (y->first[sy] == INT32_MAX) continue;
        for (int sx = 0; sx < CDR_N_STREAMS; sx++)
            if (x->last[sx] >= 0 && a->start[y->first[sy]].at[sx] < x->last[sx]) return false;
    }
    return true;
}

static bool one_stream(uint32_t streams) { return (streams & (streams - 1)) == 0; }

static bool conflict(const arena *a, const life *x, const life *y)
{
    if (one_stream(x->streams | y->streams)) return x->start <= y->end && y->start <= x->end;      /* one stream: list order is the order */
    return !before(a, x, y) && !before(a, y, x);
}

static int by_size(const void *x, const void *y)
{
    const life *a = *(life *const *)x, *b = *(life *const *)y;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    return (a->start > b->start) - (a->start < b->start);
}
static int by_lifetime(const void *x, const void *y)
{
    const life *a = *(life *const *)x, *b = *(life *const *)y;
    int32_t la = a->end - a->start, lb = b->end - b->start;
    if (la != lb) return la < lb ? 1 : -1;
    return by_size(x, y);
}
static int by_start(const void *x, const void *y)
{
    const life *a = *(life *const *)x, *b = *(life *const *)y;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    return by_size(x, y);
}
/* What is placed, by offset: the scan for a gap reads this and nothing else. */
typedef struct { int64_t offset, past; int32_t start, end; uint32_t streams; const life *l; } placed;     /* past: offset + bytes */

/* Do the two need different bytes? The common case, one stream, needs no look at the clocks. */
static bool in_the_way(const arena *a, const life *x, const placed *y)
{
    if (one_stream(x->streams | y->streams)) return x->start <= y->end && y->start <= x->end;
    return conflict(a, x, y->l);
}

/* The same, once more as two columns: most of what is placed lives at other times, and 64 are passed over at a time. */
typedef struct { placed *p; int32_t *start, *end; } shelf;

static void insert(shelf s, int n, life *l)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s.p[mid].offset <= l->offset) lo = mid + 1;
        else hi = mid;
    }
    memmove(s.p + lo + 1, s.p + lo, sizeof *s.p * (size_t)(n - lo));
    memmove(s.start + lo + 1, s.start + lo, sizeof *s.start * (size_t)(n - lo));
    memmove(s.end + lo + 1, s.end + lo, sizeof *s.end * (size_t)(n - lo));
    s.p[lo] = (placed){ l->offset, l->offset + l->bytes, l->start, l->end, l->streams, l };
    bool plain = l->streams == 1u << CDR_S_COMPUTE;            /* what other streams touch is always looked at */
    s.start[lo] = plain ? l->start : INT32_MIN;
    s.end[lo] = plain ? l->end : INT32_MAX;
}

static bool all_at_other_times(shelf s, int j, int32_t start, int32_t end)
{
    int hit = 0;
    for (int k = j; k < j + 64; k++) hit |= (s.start[k] <= end) & (s.end[k] >= start);
    return !hit;
}

/* The lowest offset where x fits beside the n that are placed. */
static int64_t gap(const arena *a, const life *x, shelf s, int n)
{
    int64_t at = 0;
    bool skip = x->streams == 1u << CDR_S_COMPUTE;
    for (int j = 0; j < n;) {
        if (skip && j + 64 <= n && all_at_other_times(s, j, x->start, x->end)) {
            j += 64;
            continue;
        }
        for (int last = CDR_MIN(j + 64, n); j < last; j++) {
            if (s.p[j].past <= at || !in_the_way(a, x, &s.p[j])) continue;
            if (s.p[j].offset - at >= x->bytes) return at;
            at = s.p[j].past;
        }
    }
    return at;
}

/* First fit in the given order; returns the height. */
static int64_t first_fit(arena *a, int (*order)(const void *, const void *), life **ptr, shelf s)
{
    int64_t height = 0;
    for (int i = 0; i < a->n; i++) ptr[i] = &a->l[i];
    qsort(ptr, (size_t)a->n, sizeof *ptr, order);
    for (int i = 0; i < a->n; i++) {
        ptr[i]->offset = gap(a, ptr[i], s, i);
        height = CDR_MAX(height, ptr[i]->offset + ptr[i]->bytes);
        insert(s, i, ptr[i]);
    }
    return height;
}

static int64_t lower_bound(arena *a, int64_t *peak)
{
    a->live = cdr_pool_alloc(a->p->pool, sizeof *a->live * (size_t)(a->n_pos + 2));
    for (int i = 0; i < a->n; i++) {
        a->live[a->l[i].start] += a->l[i].bytes;
        a->live[a->l[i].end + 1] -= a->l[i].bytes;
    }
    int64_t sum = 0, most = 0;
    *peak = 0;
    for (int64_t i = 0; i < a->n_pos; i++) {
        sum += a->live[i];
        if (sum > most) {
            most = sum;
            *peak = i;
        }
    }
    return most;
}

static void place_turn(cdr_pass *p, cdr_program *prog, int64_t base, int64_t *height, int64_t *bound, int64_t *peak)
{
    arena a = { .p = p, .prog = prog, .start = cdr__clocks(p->pool, prog) };
    a.l = cdr_pool_alloc(p->pool, sizeof *a.l * (size_t)CDR_MAX(prog->n_vals, 1));
    a.at = cdr_pool_alloc(p->pool, sizeof *a.at * (size_t)CDR_MAX(prog->n_vals, 1));
    for (int32_t i = 0; i < prog->n_vals; i++) a.at[i] = -1;
    collect(&a);
    int (*const order[])(const void *, const void *) = { by_lifetime, by_size, by_start };
    int64_t near_enough = a.n > MANY ? 200 : 1000;                /* 0.1 % above the bound; 0.5 % where a pass takes long */
    life **ptr = cdr_pool_alloc(p->pool, sizeof *ptr * (size_t)(a.n + 1));
    shelf sorted = { cdr_pool_alloc(p->pool, sizeof *sorted.p * (size_t)(a.n + 1)), cdr_pool_alloc(p->pool, sizeof *sorted.start * (size_t)(a.n + 1)),
                     cdr_pool_alloc(p->pool, sizeof *sorted.end * (size_t)(a.n + 1)) };
    int64_t *best = cdr_pool_alloc(p->pool, sizeof *best * (size_t)CDR_MAX(a.n, 1));
    *bound = lower_bound(&a, peak);
    *height = INT64_MAX;
    for (int o = 0; o < CDR_COUNT(order) && *height - *bound > *bound / near_enough; o++) {
        int64_t h = first_fit(&a, order[o], ptr, sorted);
        for (int i = 0; h < *height && i < a.n; i++) best[i] = a.l[i].offset;
        *height = CDR_MIN(*height, h);
    }
    for (int i = 0; i < a.n; i++) a.l[i].offset = best[i];
    for (int i = 0; i < a.n; i++) {
        cdr_value *v = cdr_value_at(p->b, prog, a.l[i].v);
        v->offset = base + a.l[i].offset;
        v->stride = inst_bytes(v);
    }
}

/* one value after the other; returns the end */
static int64_t stack(cdr_value *v, int32_t n, cdr_scope scope, int64_t at)
{
    for (int32_t i = 0; i < n; i++) {
        if (v[i].scope != scope || v[i].alias != CDR_NONE) continue;
        v[i].offset = at;
        v[i].stride = inst_bytes(&v[i]);
        at += v[i].stride * v[i].n_inst;
    }
    return at;
}

static void resolve_aliases(const cdr_bundle *b, cdr_program *p)
{
    for (int32_t i = 0; i < p->n_vals; i++) {
        if (p->vals[i].alias == CDR_NONE) continue;
        int64_t at;
        const cdr_value *root = cdr_value_at(b, p, cdr_value_root(b, p, b->n_shared + i, &at));
        p->vals[i].offset = root->offset + at;
        p->vals[i].stride = root->stride;
        p->vals[i].n_inst = root->n_inst;
        p->vals[i].tier = root->tier;
    }
}

cdr_status cdr__place(cdr_pass *p)
{
    cdr_bundle *b = p->b;
    b->n_tiers = 1;
    b->tiers = cdr_pool_alloc(p->pool, sizeof *b->tiers);
    b->tiers[0] = (cdr_tier){ .name = p->o->device == CDR_DEV_CPU ? "ddr" : "hbm", .align = ALIGN, .bytes = p->o->budget_bytes };
    b->run_bytes[0] = stack(b->shared, b->n_shared, CDR_RUN, 0);
    for (int q = 0; q < b->n_progs; q++) {
        cdr_program *prog = &b->progs[q];
        if (prog->n_calls == 0 || q == CDR_PROG_PROBE) continue;
        int64_t step_end = stack(prog->vals, prog->n_vals, CDR_STEP, b->run_bytes[0]), height, bound, peak;
        place_turn(p, prog, step_end, &height, &bound, &peak);
        resolve_aliases(b, prog);
        b->lower_bound[0] = CDR_MAX(b->lower_bound[0], step_end + bound);
        if (step_end - b->run_bytes[0] + height > b->exec_bytes[0]) {
            b->exec_bytes[0] = step_end - b->run_bytes[0] + height;
            b->peak_prog = q;
            b->peak_call = peak;
        }
    }
    return CDR_OK;
}
