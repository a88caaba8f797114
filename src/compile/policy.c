/* policy: keep or recompute. A layer that is recomputed keeps only what other layers made (its inputs); its forward
 * calls are cloned, phase AGAIN, in front of its backward. A gathered weight is gathered again in the same way (FSDP's
 * reshard_after_forward), except what the last forward call reads (the head), whose backward comes next. Calls with
 * EFFECT exist once: they are never cloned; what reads them reads the one result. Routes and selections (KEEP) are kept.
 *
 * The backward is cut into groups, maximal runs of calls with the same layer; each group has its own clones, so a clone
 * lives no longer than its group. */
#include "compile/pass.h"

typedef struct {
    cdr_pass *p; cdr_graph *g;
    const cdr_list *old;              /* the list as differentiate left it */
    int32_t *made_by;                 /* by local value: forward call that writes it, -1 */
    cdr_val *clone;                   /* by local value: its clone in the current group, CDR_NONE */
    cdr_val *touched; int64_t n_touched, cap_touched;
    bool *needed;                     /* by call id: to be cloned for the current group */
    bool *last;                       /* by call id: makes an operand of the last forward call */
} policy;

/* Of parameters; what else is gathered (counts of routes) is kept. */
static bool is_gather(const cdr_graph *g, const cdr_call *c)
{
    return strcmp(cdr__op(c)->name, "gather") == 0 && cdr_graph_in(g, c, 0) < CDR_LOCAL0;
}

static bool reshard(const cdr_pass *p) { return p->o->reshard != CDR_RESHARD_NEVER; }

/* May this forward call be run again for a backward group of the given layer? */
static bool again(const policy *s, int32_t id, int layer)
{
    const cdr_call *c = &s->g->calls[id];
    if (c->phase != CDR_P_FWD || (c->flags & CDR_K_EFFECT)) return false;
    if (is_gather(s->g, c)) return reshard(s->p) && !s->last[id];
    if (cdr__op(c)->flags & (CDR_OP_COLLECTIVE | CDR_OP_VIEW | CDR_OP_KEEP)) return false;
    return c->layer >= 0 && c->layer == layer && c->layer < s->p->recompute_layers;
}

/* Marks the maker of v where it can be run again. */
static void mark(policy *s, cdr_val v, int layer)
{
    v = v == CDR_NONE ? v : cdr__root(s->g, v);
    if (v == CDR_NONE || v < CDR_LOCAL0) return;
    int32_t c = s->made_by[v - CDR_LOCAL0];
    if (c >= 0 && again(s, c, layer)) s->needed[c] = true;
}

/* v as the current group sees it: its clone, or a view of the clone of what it is a view of, through any number of views. */
static cdr_val seen(policy *s, cdr_val v)
{
    if (v == CDR_NONE || v < CDR_LOCAL0) return v;
    if (s->clone[v - CDR_LOCAL0] != CDR_NONE) return s->clone[v - CDR_LOCAL0];
    cdr_value x = *cdr_graph_at(s->g, v);
    int64_t at = x.alias_at;
    cdr_val of = x.alias;
    for (; of >= CDR_LOCAL0 && s->clone[of - CDR_LOCAL0] == CDR_NONE; of = cdr_graph_at(s->g, of)->alias) at += cdr_graph_at(s->g, of)->alias_at;
    if (of < CDR_LOCAL0) return v;
    cdr_val w = cdr_graph_view(s->g, s->clone[of - CDR_LOCAL0], at, x.t, "again");
    s->clone[v - CDR_LOCAL0] = w;
    *CDR_PUSH(s->p->pool, s->touched, s->n_touched, s->cap_touched) = v;
    return w;
}

static void clone_call(policy *s, cdr_list *l, int32_t id)
{
    cdr_graph *g = s->g;
    cdr_call c = g->calls[id];
    uint32_t from = c.arg;
    c.phase = CDR_P_AGAIN;
    c.arg = (uint32_t)g->n_operands;
    for (int k = 0; k < c.n_in; k++) {
        cdr_val v = seen(s, g->operands[from + (uint32_t)k]);
        *CDR_PUSH(g->pool, g->operands, g->n_operands, g->cap_operands) = v;
    }
    for (int k = 0; k < c.n_out; k++) {
        cdr_val v = g->operands[from + c.n_in + (uint32_t)k], w = CDR_NONE;
        if (v != CDR_NONE) {
            cdr_value x = *cdr_graph_at(g, v);
            w = cdr_graph_value(g, x.t, CDR_TURN, (cdr_class)x.cls, cdr_pool_printf(g->pool, "%s.again", g->strings + x.name));
            s->clone[v - CDR_LOCAL0] = w;
            *CDR_PUSH(s->p->pool, s->touched, s->n_touched, s->cap_touched) = v;
        }
        *CDR_PUSH(g->pool, g->operands, g->n_operands, g->cap_operands) = w;
    }
    *CDR_PUSH(g->pool, g->calls, g->n_calls, g->cap_calls) = c;
    cdr__list_push(g, l, (int32_t)(g->n_calls - 1));
}

/* calls [first, end) of the old list are one backward group */
static void group(policy *s, cdr_list *l, int64_t first, int64_t end, int64_t n_fwd)
{
    cdr_graph *g = s->g;
    int layer = g->calls[s->old->calls[first]].layer;
    memset(s->needed, 0, (size_t)g->n_calls);
    s->n_touched = 0;
    for (int64_t i = first; i < end; i++) {
        const cdr_call *c = &g->calls[s->old->calls[i]];
        for (int k = 0; k < c->n_in; k++) mark(s, cdr_graph_in(g, c, k), layer);
    }
    for (int64_t i = n_fwd - 1; i >= 0; i--) {
        int32_t id = s->old->calls[i];
        if (!s->needed[id]) continue;
        for (int k = 0; k < g->calls[id].n_in; k++) mark(s, cdr_graph_in(g, &g->calls[id], k), layer);
    }
    g->prefix = "";
    for (int64_t i = 0; i < n_fwd; i++) if (s->needed[s->old->calls[i]]) clone_call(s, l, s->old->calls[i]);
    for (int64_t i = first; i < end; i++) {
        int32_t id = s->old->calls[i];
        for (int k = 0; k < g->calls[id].n_in; k++) {
            cdr_val v = seen(s, g->operands[g->calls[id].arg + (uint32_t)k]);
            g->operands[g->calls[id].arg + (uint32_t)k] = v;
        }
        cdr__list_push(g, l, id);
    }
    for (int64_t i = 0; i < s->n_touched; i++) s->clone[s->touched[i] - CDR_LOCAL0] = CDR_NONE;
}

static cdr_status run_policy(cdr_pass *p, cdr_graph *g)
{
    cdr_list *l = cdr__list(g, CDR_L_MICRO);
    cdr_list old = *l;
    policy s = { .p = p, .g = g, .old = &old };
    size_t n_vals = (size_t)g->n_vals, n_calls = (size_t)g->n_calls;
    s.made_by = cdr_pool_alloc(p->pool, sizeof *s.made_by * (n_vals + 1));
    s.clone = cdr_pool_alloc(p->pool, sizeof *s.clone * (4 * n_vals + 64));      /* clones of clones do not exist; views add a few */
    s.needed = cdr_pool_alloc(p->pool, 4 * n_calls + 64);
    s.last = cdr_pool_alloc(p->pool, 4 * n_calls + 64);
    for (size_t i = 0; i < n_vals; i++) s.made_by[i] = -1;
    for (size_t i = 0; i < 4 * n_vals + 64; i++) s.clone[i] = CDR_NONE;
    int64_t n_fwd = 0;
    for (int64_t i = 0; i < old.n; i++) {
        const cdr_call *c = &g->calls[old.calls[i]];
        if (c->phase != CDR_P_FWD) continue;
        n_fwd = i + 1;
        for (int k = 0; k < c->n_out; k++) {
            cdr_val v = cdr_graph_out(g, c, k);
            if (v >= CDR_LOCAL0 && cdr_graph_at(g, v)->alias == CDR_NONE) s.made_by[v - CDR_LOCAL0] = old.calls[i];
        }
    }
    const cdr_call *end_of_forward = &g->calls[old.calls[n_fwd - 1]];
    for (int k = 0; k < end_of_forward->n_in; k++) {
        cdr_val v = cdr__root(g, cdr_graph_in(g, end_of_forward, k));
        if (v >= CDR_LOCAL0 && s.made_by[v - CDR_LOCAL0] >= 0) s.last[s.made_by[v - CDR_LOCAL0]] = true;
    }
    /* calls of other phases between forward ones (pushes of the loss) stay where they are */
    *l = (cdr_list){ .name = old.name };
    g->cur = (int)(l - g->lists);
    for (int64_t i = 0; i < n_fwd; i++) cdr__list_push(g, l, old.calls[i]);
    for (int64_t i = n_fwd; i < old.n;) {
        int64_t end = i;
        while (end < old.n && g->calls[old.calls[end]].layer == g->calls[old.calls[i]].layer) end++;
        group(&s, l, i, end, n_fwd);
        CDR_CHECK(g->n_vals <= (int64_t)(4 * n_vals) && g->n_calls <= (int64_t)(4 * n_calls));
        i = end;
    }
    return g->failed ? p->err->status : CDR_OK;
}

/* What the backward reads of the forward is `saved`. */
static void classify(cdr_graph *g)
{
    cdr_list *l = cdr__list(g, CDR_L_MICRO);
    bool *fwd = cdr_pool_alloc(g->pool, (size_t)g->n_vals + 1);
    for (int64_t i = 0; i < l->n; i++) {
        const cdr_call *c = &g->calls[l->calls[i]];
        for (int k = 0; k < c->n_out && c->phase == CDR_P_FWD; k++) {
            cdr_val v = cdr_graph_out(g, c, k);
            if (v >= CDR_LOCAL0) fwd[v - CDR_LOCAL0] = true;
        }
        for (int k = 0; k < c->n_in && c->phase != CDR_P_FWD; k++) {
            cdr_val v = cdr__root(g, cdr_graph_in(g, c, k));
            if (v >= CDR_LOCAL0 && fwd[v - CDR_LOCAL0] && cdr_graph_at(g, v)->cls == CDR_C_ACT) cdr_graph_at(g, v)->cls = CDR_C_SAVED;
        }
    }
}

cdr_status cdr__policy(cdr_pass *p)
{
    cdr_graph *g = p->g[CDR_PROG_STEP];
    if (p->o->infer_only) return CDR_OK;
    if (p->recompute_layers > 0 || (p->n_shard > 1 && reshard(p))) CDR_TRY(run_policy(p, g));
    cdr__drop_unread(g);
    classify(g);
    return CDR_OK;
}
