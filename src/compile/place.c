/* place: offsets in one slab per tier. RUN values first, once; then each program's STEP values and, above them, its TURN
 * values at the same place; a tier's slab is RUN + the largest program.
 *
 * Two TURN values may share bytes when all uses of one happen before all uses of the other: in another turn (turns
 * join), or, inside a turn, by the vector clocks of the waits, not by list order (widen). Offsets: the best of by-size,
 * by-lifetime and by-start first fit; the lower bound is the largest sum of bytes that are live at one call.
 * Measured on K3-shaped traces (spec/planner.md, 4.1): by-size 0.6-3.4 %, by-lifetime 0.3 % above the bound. */
#include "compile/pass.h"
#include <stdlib.h>

enum { ALIGN = 256, MANY = 2048 };
typedef struct {
    cdr_val v; int64_t bytes, offset;
    int first_turn, last_turn;                          /* in the distinct turns */
    int32_t start, end;                                 /* unrolled positions of first and last use */
    int32_t from, to;                                   /* positions during which nobody else may have its bytes */
    uint32_t streams;                                   /* bit s: used on stream s */
    int32_t first[CDR_N_STREAMS], last[CDR_N_STREAMS];  /* per stream: program positions, INT32_MAX / -1: none */
} life;

typedef struct { int32_t *call, n; } stream_calls;      /* the positions of the calls of one stream, in order */

typedef struct {
    cdr_pass *p; const cdr_program *prog; cdr_clock *start;
    stream_calls on[CDR_N_STREAMS];
    bool in_order; int32_t *turn_pos;  /* positions are the program's; first position of each distinct turn, and the end */
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
    const int most = CDR_MAX(a->prog->n_turns, 1);
    cdr_turn *turns = cdr_pool_alloc(a->p->pool, sizeof *turns * (size_t)most);
    int n_turns = cdr__distinct_turns(a->prog, turns, most);
    int32_t pos = 0;
    a->in_order = true;
    a->turn_pos = cdr_pool_alloc(a->p->pool, sizeof *a->turn_pos * (size_t)(n_turns + 2));
    for (int t = 0; t < n_turns; t++) {
        a->turn_pos[t] = a->turn_pos[t + 1] = pos;
        if (t > 0 && turns[t].segment == turns[t - 1].segment && turns[t].mb != turns[t - 1].mb && !a->p->o->micro_split) continue;
        const cdr_segment *s = &a->prog->segs[turns[t].segment];
        for (int32_t i = s->first; i < s->first + s->n; i++, pos++) {
            const cdr_call *c = &a->prog->calls[i];
            a->in_order = a->in_order && pos == i;
            for (int k = 0; k < c->n_in + c->n_out; k++) use(a, a->prog->operands[c->arg + (uint32_t)k], t, pos, i, c->stream);
            use(a, c->work, t, pos, i, c->stream);
            use(a, c->pred, t, pos, i, c->stream);
        }
    }
    a->turn_pos[n_turns] = pos;
    a->n_pos = pos;
}

static void list_streams(arena *a)
{
    for (int s = 0; s < CDR_N_STREAMS; s++) a->on[s].call = cdr_pool_alloc(a->p->pool, sizeof(int32_t) * (size_t)CDR_MAX(a->prog->n_calls, 1));
    for (int32_t i = 0; i < a->prog->n_calls; i++) {
        stream_calls *on = &a->on[a->prog->calls[i].stream];
        on->call[on->n++] = i;
    }
}

/* Are all uses of x over before call c starts? */
static bool over(const arena *a, const life *x, int32_t c)
{
    for (int s = 0; s < CDR_N_STREAMS; s++) if (x->last[s] >= 0 && a->start[c].at[s] < x->last[s]) return false;
    return true;
}

/* The last of stream s's calls that is over before each first use of x, as an index in the stream's list; -1: none */
static int32_t over_before(const arena *a, const life *x, int s)
{
    int32_t call = INT32_MAX;
    for (int k = 0; k < CDR_N_STREAMS; k++) if (x->first[k] != INT32_MAX) call = CDR_MIN(call, a->start[x->first[k]].at[s]);
    int32_t lo = 0, hi = a->on[s].n;
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (a->on[s].call[mid] <= call) lo = mid + 1;
        else hi = mid;
    }
    return lo - 1;
}

/* The positions of calls that are not ordered with all uses of x: a value that lives outside of them may have x's bytes. A value of one
 * stream is ordered with the calls of the list but for its own; what several streams touch, by the vector clocks, which only grow along a
 * stream. Where positions are not those of the program (turns of several micro-batches), the turns that it lives in. */
static void widen(const arena *a, life *x)
{
    x->from = x->start;
    x->to = x->end;
    if ((x->streams & ~(1u << CDR_S_COMPUTE)) == 0) return;
    if (!a->in_order) {
        x->from = a->turn_pos[x->first_turn];
        x->to = a->turn_pos[x->last_turn + 1] - 1;
        return;
    }
    for (int s = 0; s < CDR_N_STREAMS; s++) {
        const stream_calls *on = &a->on[s];
        int32_t lo = over_before(a, x, s) + 1, hi = on->n;
        if (lo < on->n) x->from = CDR_MIN(x->from, on->call[lo]);
        for (int32_t from = lo; from < hi;) {
            const int32_t mid = from + (hi - from) / 2;
            if (over(a, x, on->call[mid])) hi = mid;
            else from = mid + 1;
        }
        if (hi > lo) x->to = CDR_MAX(x->to, on->call[hi - 1]);
    }
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
/* First fit in the given order; returns the height. */
static int64_t first_fit(arena *a, int (*order)(const void *, const void *), life **ptr)
{
    int64_t height = 0;
    cdr__shelf *s = cdr__shelf_new(a->n_pos);
    for (int i = 0; i < a->n; i++) ptr[i] = &a->l[i];
    qsort(ptr, (size_t)a->n, sizeof *ptr, order);
    for (int i = 0; i < a->n; i++) {
        ptr[i]->offset = cdr__shelf_put(s, ptr[i]->from, ptr[i]->to, ptr[i]->bytes);
        height = CDR_MAX(height, ptr[i]->offset + ptr[i]->bytes);
    }
    cdr__shelf_free(s);
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
    int64_t near_enough = a.n > MANY ? 100 : 1000;                /* 0.1 % above the bound; 1 % where a pass takes long */
    life **ptr = cdr_pool_alloc(p->pool, sizeof *ptr * (size_t)(a.n + 1));
    list_streams(&a);
    for (int i = 0; i < a.n; i++) widen(&a, &a.l[i]);
    int64_t *best = cdr_pool_alloc(p->pool, sizeof *best * (size_t)CDR_MAX(a.n, 1));
    *bound = lower_bound(&a, peak);
    *height = INT64_MAX;
    for (int o = 0; o < CDR_COUNT(order) && *height - *bound > *bound / near_enough; o++) {
        int64_t h = first_fit(&a, order[o], ptr);
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
