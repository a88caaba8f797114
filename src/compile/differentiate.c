/* differentiate: walks the forward calls of the micro-batch from last to first and appends each one's backward.
 *
 * Rules (spec/spine.md, section 6). A value's gradient has the dtype of the value where it has one writer, and is F32
 * where it has several: the first writer overwrites, the others carry the add bit (or an added `copy`, where their
 * kernel cannot add). A gradient that passes through an operator unchanged (the residual add) is shared by several
 * values; it is accumulated in place once nobody else waits for it, so the residual stream has one F32 gradient buffer
 * for the whole depth. Parameter gradients are F32 partial sums over one logical shard; where a rank has several
 * micro-batches they go to the binary counter (any order allowed: into a running sum), else straight to the step's gradient.
 */
#include "compile/pass.h"
#include "ops/copy/copy.h"
#include "ops/gather/gather.h"
#include "ops/grad_push/grad_push.h"

typedef struct { cdr_val view, same, base; int64_t at; } window;     /* a view that the model reads; same: the first of that place; at: bytes */

typedef struct { cdr_val from, to; } move;                /* a partial sum that is the step's gradient at once */

typedef struct {
    cdr_pass *p; cdr_graph *g;
    move *moves; int64_t n_moves, cap_moves;
    window *views; int64_t n_views, cap_views;
    int64_t n_fwd;                    /* values that existed before the backward */
    int32_t n_shared;
    bool *needs;                      /* by slot: a gradient flows to it */
    int32_t *uses;                    /* consumers that may contribute */
    cdr_val *grad;                    /* gradient so far, CDR_NONE */
    int32_t *pending;                 /* by gradient value (slot): forward values that hold it and are not consumed yet */
    int64_t cap_pending;
    int64_t *covered;                 /* elements of a value whose gradient came through views */
    bool *pass_through;               /* its gradient is F32, as it may be accumulated in place later */
    bool *detached;                   /* no gradient passes it on to what it is a view of */
    bool *weight;                     /* a parameter, gathered or not: its gradient is an F32 partial sum */
} diff;

/* forward values have slots: shared first, then local */
static int64_t slot(const diff *d, cdr_val v) { return v < CDR_LOCAL0 ? v : d->n_shared + (v - CDR_LOCAL0); }

static bool floating(const cdr_graph *g, cdr_val v)
{
    const cdr_dtype_info *t = cdr_dtype_row(cdr_graph_type(g, v)->dtype);
    return t->floating;
}

/* What v is a view of, through all views made by the model, not through VIEW calls; v itself where it is none. */
static cdr_val base_of(const diff *d, cdr_val v, int64_t *at_bytes)
{
    *at_bytes = 0;
    for (const cdr_value *x = cdr_graph_at(d->g, v); x->alias != CDR_NONE && !d->pass_through[slot(d, v)]; x = cdr_graph_at(d->g, v)) {
        *at_bytes += x->alias_at;
        v = x->alias;
    }
    return v;
}

static const window *find_window(const diff *d, cdr_val v)
{
    for (int64_t i = 0; i < d->n_views; i++) if (d->views[i].view == v) return &d->views[i];
    return NULL;
}

/* v, or the view that stands for it: the first one of the same place and shape. */
static cdr_val add_window(diff *d, cdr_val v)
{
    window w = { v, v, CDR_NONE, 0 };
    const window *known = find_window(d, v);
    w.base = base_of(d, v, &w.at);
    if (known || w.base == v) return known ? known->same : v;
    for (int64_t i = 0; i < d->n_views && w.same == v; i++) {
        const window *o = &d->views[i];
        const cdr_type *a = cdr_graph_type(d->g, v), *b = cdr_graph_type(d->g, o->view);
        if (o->base == w.base && o->at == w.at && memcmp(a->n, b->n, sizeof a->n) == 0 && cdr_type_pitch(a) == cdr_type_pitch(b)) w.same = o->same;
    }
    *CDR_PUSH(d->p->pool, d->views, d->n_views, d->cap_views) = w;
    return w.same;
}

/* rows [r[0], r[1]) and columns [r[2], r[3]) of the base */
static void rectangle(const diff *d, const window *w, int64_t r[4])
{
    const cdr_type *t = cdr_graph_type(d->g, w->view), *base = cdr_graph_type(d->g, w->base);
    int64_t pitch = cdr_type_pitch(base), at = w->at / cdr_dtype_bytes(base->dtype, 1), rows = cdr_type_rows(t), cols = cdr_type_cols(t);
    bool whole_rows = rows > 1 && cdr_type_pitch(t) != pitch;
    r[0] = at / pitch;
    r[1] = whole_rows ? (at + (rows - 1) * cdr_type_pitch(t) + cols - 1) / pitch + 1 : r[0] + rows;
    r[2] = whole_rows ? 0 : at % pitch;
    r[3] = whole_rows ? pitch : r[2] + cols;
}

static bool overlap(const diff *d, const window *a, const window *b)
{
    int64_t x[4], y[4];
    rectangle(d, a, x);
    rectangle(d, b, y);
    return a->base == b->base && x[0] < y[1] && y[0] < x[1] && x[2] < y[3] && y[2] < x[3];
}

static int32_t *pending(diff *d, cdr_val v)
{
    int64_t s = d->n_shared + (v - CDR_LOCAL0);
    while (s >= d->cap_pending) {
        int64_t cap = d->cap_pending * 2 + 1024;
        int32_t *more = cdr_pool_alloc(d->p->pool, sizeof *more * (size_t)cap);
        if (d->cap_pending) memcpy(more, d->pending, sizeof *more * (size_t)d->cap_pending);
        d->pending = more;
        d->cap_pending = cap;
    }
    return &d->pending[s];
}

/* What v is a view of, up to the first value that is detached. */
static cdr_val view_root(const diff *d, cdr_val v)
{
    while (cdr_graph_at(d->g, v)->alias != CDR_NONE && !d->detached[slot(d, v)]) v = cdr_graph_at(d->g, v)->alias;
    return v;
}

/* ---- forward analysis ---- */
static void analyse(diff *d, const cdr_list *l)
{
    cdr_graph *g = d->g;
    cdr_bundle *b = d->p->b;
    for (int32_t i = 0; i < b->n_params; i++) {
        d->needs[b->params[i].shard] = b->params[i].train == CDR_FULL;
        d->weight[b->params[i].shard] = true;
    }
    for (int64_t i = 0; i < l->n; i++) {
        const cdr_call *c = &g->calls[l->calls[i]];
        bool any = false;
        for (int k = 0; k < c->n_in; k++) {
            cdr_val v = cdr_graph_in(g, c, k);
            if (v == CDR_NONE) continue;
            if (d->needs[slot(d, view_root(d, v))]) d->needs[slot(d, v)] = true;
            any = any || d->needs[slot(d, v)];
        }
        for (int k = 0; k < c->n_out && (cdr__op(c)->flags & CDR_OP_DETACH); k++) d->detached[slot(d, cdr_graph_out(g, c, k))] = true;
        if (!any || !cdr__op(c)->grad) continue;
        for (int k = 0; k < c->n_in; k++) {
            cdr_val v = cdr_graph_in(g, c, k);
            if (v == CDR_NONE || !d->needs[slot(d, v)]) continue;
            int64_t at;
            int32_t uses = ++d->uses[slot(d, add_window(d, v))], *of_base = &d->uses[slot(d, base_of(d, v, &at))];
            *of_base = CDR_MAX(*of_base, uses);              /* one gradient buffer for all views: F32 where one of them needs it */
        }
        for (int k = 0; k < c->n_out; k++) {
            cdr_val v = cdr_graph_out(g, c, k);
            if (v == CDR_NONE || !floating(g, v)) continue;
            cdr_val same = k < c->n_in && (cdr__op(c)->flags & (CDR_OP_PIECES | CDR_OP_VIEW)) ? cdr_graph_in(g, c, k) : CDR_NONE;
            d->needs[slot(d, v)] = same == CDR_NONE || d->needs[slot(d, same)];      /* a state or frozen parameter beside trained ones */
            if (same != CDR_NONE) d->weight[slot(d, v)] = d->weight[slot(d, same)];
            if (cdr__op(c)->flags & (CDR_OP_F32_GRAD | CDR_OP_VIEW)) d->pass_through[slot(d, v)] = true;
        }
    }
}

/* ---- accumulation ---- */
static int find_output(const cdr_graph *g, const cdr_call *c, cdr_val v)
{
    for (int k = 0; k < c->n_out; k++) if (cdr_graph_out(g, c, k) == v) return k;
    return -1;
}

/* The call among [from, n_calls) that makes v as a fresh output; -1: v passed through. */
static int32_t maker(const cdr_graph *g, int64_t from, cdr_val v)
{
    for (int64_t i = from; i < g->n_calls; i++) if (find_output(g, &g->calls[i], v) >= 0) return (int32_t)i;
    return -1;
}

/* Writes v's content to target, overwriting or adding: by changing its maker's output, or through a copy of its own
 * precision. A call never writes one value through two outputs: their order would be its kernel's. */
static void redirect(diff *d, int64_t from, cdr_val v, cdr_val target, bool add)
{
    cdr_graph *g = d->g;
    int32_t i = maker(g, from, v);
    if (i >= 0) {
        cdr_call *c = &g->calls[i];
        int k = find_output(g, c, v);
        if (find_output(g, c, target) < 0 && (!add || ((cdr__op(c)->add_ok >> k) & 1u))) {
            g->operands[c->arg + c->n_in + (uint32_t)k] = target;
            if (add) c->add |= 1u << k;
            return;
        }
        cdr_graph_at(g, v)->t.dtype = cdr_graph_type(g, target)->dtype;
    }
    cdr_copy_attr a = { (int32_t)cdr_graph_type(g, target)->dtype };
    cdr_val out = target;
    int32_t call = cdr_graph_call(g, &cdr_op_copy, &a, 1, &v, 1, &out);
    if (call >= 0 && add) g->calls[call].add = 1;
}

static int grad_dtype(const diff *d, cdr_val x)
{
    int64_t s = slot(d, x);
    const cdr_value *v = cdr_graph_at(d->g, x);
    return d->weight[s] || d->uses[s] > 1 || d->pass_through[s] ? CDR_F32 : v->t.dtype;
}

/* A gradient buffer for x, which nobody has written yet. */
static cdr_val new_grad(diff *d, cdr_val x, int dtype)
{
    cdr_type t = *cdr_graph_type(d->g, x);
    t.dtype = (uint8_t)dtype;
    t.pitch = 0;
    char name[300];
    snprintf(name, sizeof name, "d_%s", x < CDR_LOCAL0 ? d->p->b->shared_strings + d->p->b->shared[x].name
                                                       : d->g->strings + cdr_graph_at(d->g, x)->name);
    return cdr_graph_value(d->g, t, CDR_TURN, CDR_C_ACT, name);
}

/* The gradient of a view is the same view of its base's gradient. */
static cdr_status add_view(diff *d, int64_t from, const window *w, cdr_val v)
{
    cdr_graph *g = d->g;
    cdr_val x = w->same, base = w->base;
    int64_t sb = slot(d, base), sx = slot(d, x);
    const char *name = g->strings + cdr_graph_at(g, base)->name;
    if (d->grad[sx] != CDR_NONE) {
        redirect(d, from, v, d->grad[sx], true);
        return CDR_OK;
    }
    if (d->grad[sb] == CDR_NONE) {
        d->grad[sb] = new_grad(d, base, grad_dtype(d, base));
        (*pending(d, d->grad[sb]))++;
    } else if (d->covered[sb] == 0) {
        return cdr_graph_fail(g, CDR_EINVAL, "differentiate: %s is used whole and through views", name);
    }
    for (int64_t i = 0; i < d->n_views; i++)
        if (d->views[i].same != x && d->grad[slot(d, d->views[i].same)] != CDR_NONE && overlap(d, w, &d->views[i]))
            return cdr_graph_fail(g, CDR_EINVAL, "differentiate: two used views of %s overlap in part", name);
    cdr_type t = *cdr_graph_type(g, x);
    int dtype = cdr_graph_type(g, d->grad[sb])->dtype;
    int64_t at = w->at / cdr_dtype_bytes(cdr_graph_type(g, base)->dtype, 1) * cdr_dtype_bytes(dtype, 1);
    t.dtype = (uint8_t)dtype;
    if (t.pitch == 0 && t.n_dim > 1) t.pitch = cdr_type_cols(&t);
    d->grad[sx] = cdr_graph_view(g, d->grad[sb], at, t, "d_view");
    d->covered[sb] += cdr_type_elems(&t);
    redirect(d, from, v, d->grad[sx], false);
    return CDR_OK;
}

static cdr_status accumulate(diff *d, int64_t from, cdr_val x, cdr_val v)
{
    cdr_graph *g = d->g;
    const window *view = find_window(d, x);
    if (view) return add_view(d, from, view, v);
    int64_t s = slot(d, x);
    bool fresh = maker(g, from, v) >= 0;
    if (d->covered[s] != 0)
        return cdr_graph_fail(g, CDR_EINVAL, "differentiate: %s is used whole and through views", g->strings + cdr_graph_at(g, x)->name);
    if (d->grad[s] == CDR_NONE) {
        if (fresh) {
            cdr_value *o = cdr_graph_at(g, v);
            o->t.dtype = (uint8_t)grad_dtype(d, x);
        }
        d->grad[s] = v;
        (*pending(d, v))++;
        return CDR_OK;
    }
    cdr_val have = d->grad[s];
    if (*pending(d, have) > 1 || cdr_graph_type(g, have)->dtype != CDR_F32) {       /* somebody else still needs it as it is */
        cdr_val own = new_grad(d, x, CDR_F32);
        cdr_copy_attr a = { CDR_F32 };
        cdr_graph_call(g, &cdr_op_copy, &a, 1, &have, 1, &own);
        (*pending(d, have))--;
        (*pending(d, own))++;
        d->grad[s] = have = own;
        /* the contribution must follow the copy in program order: move its maker's call behind */
        cdr_list *l = &g->lists[g->cur];
        int32_t mk = maker(g, from, v);
        if (mk >= 0 && mk != l->calls[l->n - 1]) {
            int32_t copy_call = l->calls[--l->n];
            int64_t at = l->n;
            while (at > 0 && l->calls[at - 1] != mk) at--;
            CDR_CHECK(at > 0);
            cdr__list_push(g, l, 0);
            for (int64_t i = l->n - 1; i >= at; i--) l->calls[i] = l->calls[i - 1];
            l->calls[at - 1] = copy_call;
        }
    }
    redirect(d, from, v, have, true);
    return CDR_OK;
}

/* ---- one call's backward ---- */
static cdr_status backward_of(diff *d, int32_t call)
{
    cdr_graph *g = d->g;
    cdr_call c = g->calls[call];
    const cdr_op *op = cdr__op(&c);
    if (!op->grad) return CDR_OK;
    cdr_val dout[32], din[CDR_MAX_OPERANDS];
    bool want[CDR_MAX_OPERANDS], any_out = false, any_in = false;
    for (int k = 0; k < c.n_out; k++) {
        cdr_val v = cdr_graph_out(g, &c, k);
        dout[k] = v == CDR_NONE ? CDR_NONE : d->grad[slot(d, v)];
        any_out = any_out || dout[k] != CDR_NONE;
        if (dout[k] != CDR_NONE && d->covered[slot(d, v)] != 0 && d->covered[slot(d, v)] != cdr_type_elems(cdr_graph_type(g, v)))
            return cdr_graph_fail(g, CDR_EINVAL, "differentiate: the used views of %s do not tile it", g->strings + cdr_graph_at(g, v)->name);
    }
    for (int i = 0; i < c.n_in; i++) {
        cdr_val v = cdr_graph_in(g, &c, i);
        want[i] = v != CDR_NONE && d->needs[slot(d, v)];
        any_in = any_in || want[i];
        din[i] = CDR_NONE;
    }
    if (!any_out || !any_in) return CDR_OK;
    CDR_TRY(cdr__enter_call(g, &c));
    int64_t from = g->n_calls;
    CDR_TRY(op->grad(g, &c, dout, want, din, d->p->err));
    if (g->failed) return d->p->err->status;
    for (int i = 0; i < c.n_in; i++)
        for (int j = 0; j < i && din[i] != CDR_NONE; j++) CDR_CHECK(din[i] != din[j] || maker(g, from, din[i]) < 0);
    for (int i = 0; i < c.n_in; i++)
        if (want[i] && din[i] != CDR_NONE) CDR_TRY(accumulate(d, from, cdr_graph_in(g, &c, i), din[i]));
    for (int k = 0; k < c.n_out; k++)
        if (dout[k] != CDR_NONE && dout[k] >= CDR_LOCAL0) (*pending(d, dout[k]))--;
    return CDR_OK;
}

/* ---- leaves: a micro-batch's partial sums become the step's gradients ---- */
/* Position in the list of the last call that writes each local value or a view of it; -1: none. */
static int64_t *last_writers(const cdr_graph *g, const cdr_list *l)
{
    int64_t *last = cdr_pool_alloc(g->pool, sizeof *last * (size_t)(g->n_vals + 1));
    for (int64_t v = 0; v < g->n_vals; v++) last[v] = -1;
    for (int64_t i = 0; i < l->n; i++) {
        const cdr_call *c = &g->calls[l->calls[i]];
        for (int k = 0; k < c->n_out; k++) {
            cdr_val v = cdr__root(g, cdr_graph_out(g, c, k));
            if (v >= CDR_LOCAL0) last[v - CDR_LOCAL0] = i;
        }
    }
    return last;
}

/* The pushes, which were appended, each right behind the last call that writes its partial sum. */
static void move_pushes(diff *d, cdr_list *l)
{
    cdr_graph *g = d->g;
    cdr_list old = *l;
    const int64_t *last = last_writers(g, l);
    int32_t *next = cdr_pool_alloc(g->pool, sizeof *next * (size_t)(old.n + 1)), *first = cdr_pool_alloc(g->pool, sizeof *first * (size_t)(old.n + 1));
    for (int64_t i = 0; i < old.n; i++) first[i] = -1;
    for (int64_t i = old.n - 1; i >= 0; i--) {
        const cdr_call *c = &g->calls[old.calls[i]];
        if (cdr__op(c) != &cdr_op_grad_push) continue;
        int64_t at = last[cdr__root(g, cdr_graph_in(g, c, 0)) - CDR_LOCAL0];
        CDR_CHECK(at >= 0 && at < i);
        g->calls[old.calls[i]].layer = g->calls[old.calls[at]].layer;
        next[i] = first[at];
        first[at] = (int32_t)i;
    }
    *l = (cdr_list){ .name = old.name };
    for (int64_t i = 0; i < old.n; i++) {
        if (cdr__op(&g->calls[old.calls[i]]) == &cdr_op_grad_push) continue;
        cdr__list_push(g, l, old.calls[i]);
        for (int32_t k = first[i]; k >= 0; k = next[k]) cdr__list_push(g, l, old.calls[k]);
    }
}

/* partial (made in list l) goes to slot 0 of a STEP stack named name; returns that slot */
static cdr_val collect(diff *d, cdr_val partial, const char *name, cdr_class cls)
{
    cdr_graph *g = d->g;
    int n_micro = d->p->o->n_micro;
    cdr_type t = *cdr_graph_type(g, partial);
    cdr_val stack[CDR_PUSH_MAX];
    const bool running = d->p->o->order == CDR_ORDER_FREE;
    const cdr_grad_push_attr push = { running ? 1 : cdr_grad_push_depth(n_micro), running };
    for (int k = 0; k < push.depth; k++) {
        char slot_name[320];
        if (k == 0) snprintf(slot_name, sizeof slot_name, "%s", name);
        else snprintf(slot_name, sizeof slot_name, "%s.stack%d", name, k);
        stack[k] = cdr_graph_value(g, t, CDR_STEP, cls, slot_name);
    }
    if (n_micro == 1) {
        move m = { partial, stack[0] };
        *CDR_PUSH(d->p->pool, d->moves, d->n_moves, d->cap_moves) = m;
        return stack[0];
    }
    cdr_graph_enter(g, -1, "%s", name);
    cdr_grad_push(g, partial, d->p->micro_1, &push, stack);
    cdr_graph_enter(g, -1, "%s", "");
    if (g->failed) return CDR_NONE;
    return stack[0];
}

/* Where a rank has one micro-batch: partial sums go straight to the step's gradients, all in one pass over the calls. */
static void move_partials(diff *d, const cdr_list *l)
{
    cdr_graph *g = d->g;
    cdr_val *to = cdr_pool_alloc(d->p->pool, sizeof *to * (size_t)(g->n_vals + 1));
    for (int64_t i = 0; i < g->n_vals; i++) to[i] = CDR_LOCAL0 + (cdr_val)i;
    for (int64_t i = 0; i < d->n_moves; i++) to[d->moves[i].from - CDR_LOCAL0] = d->moves[i].to;
    for (int64_t i = 0; i < l->n; i++) {
        const cdr_call *c = &g->calls[l->calls[i]];
        for (uint32_t k = 0; k < (uint32_t)c->n_in + c->n_out; k++) {
            cdr_val *v = &g->operands[c->arg + k];
            if (*v >= CDR_LOCAL0) *v = to[*v - CDR_LOCAL0];
        }
    }
}

/* A loss of this rank's micro-batches, summed over the shard axis and the micro-batches. */
static cdr_val over_shards(diff *d, cdr_val loss, const char *name)
{
    cdr_pass *p = d->p;
    cdr_graph *g = d->g;
    if (p->n_shard > 1) {
        cdr_val sum = CDR_NEW;
        cdr_graph_enter(g, -1, "loss");
        if (cdr_all_reduce(g, CDR_COMM_SHARD, p->n_shard, 1, &loss, &sum) != CDR_OK) return CDR_NONE;
        cdr_graph_enter(g, -1, "%s", "");
        loss = sum;
    }
    return collect(d, loss, name, CDR_C_INPUT);
}

/* The further losses side by side in one value, so that they are summed by one call each. CDR_NONE where there are none. */
static cdr_val further_losses(diff *d, cdr_list *l)
{
    cdr_graph *g = d->g;
    const cdr_io *io = &d->p->io[CDR_PROG_STEP];
    if (io->n_extra == 0) return CDR_NONE;
    bool once = d->p->n_shard == 1 && d->p->o->n_micro == 1;
    cdr_type t = cdr_type_1d(CDR_F64, io->n_extra);
    cdr_val all_n = cdr_graph_value(g, t, once ? CDR_STEP : CDR_TURN, once ? CDR_C_INPUT : CDR_C_ACT, once ? "extra" : "further_losses");
    for (int i = 0; i < io->n_extra; i++)
        cdr__replace_operand(g, l, io->extra[i], cdr_graph_view(g, all_n, 8 * i, cdr_type_1d(CDR_F64, 1), "further_loss"));
    return once ? all_n : over_shards(d, all_n, "extra");
}

static cdr_status leaves(diff *d, cdr_list *l)
{
    cdr_pass *p = d->p;
    cdr_graph *g = d->g;
    for (int32_t i = 0; i < p->b->n_params; i++) {
        cdr_param *q = &p->b->params[i];
        if (q->train != CDR_FULL) continue;
        cdr_val partial = d->grad[q->shard];
        if (partial == CDR_NONE && q->may_idle) continue;
        if (partial == CDR_NONE) return cdr_graph_fail(g, CDR_EINVAL, "differentiate: parameter %s is trained but no loss depends on it", q->name);
        char name[320];
        snprintf(name, sizeof name, "d_%s", q->name);
        if (*pending(d, partial) > 1) {                      /* of two parameters that were added: each keeps its own sum */
            cdr_val own = new_grad(d, q->shard, CDR_F32);
            cdr_copy_attr a = { CDR_F32 };
            cdr_graph_call(g, &cdr_op_copy, &a, 1, &partial, 1, &own);
            (*pending(d, partial))--;
            partial = own;
        }
        cdr_val stack = collect(d, partial, name, CDR_C_GRAD);
        p->b->params[i].grad = stack;
    }
    p->loss_acc_1 = over_shards(d, p->io[CDR_PROG_STEP].loss_1, "loss_sum");
    p->extra_acc_n = further_losses(d, l);
    if (!g->failed && p->o->n_micro > 1) move_pushes(d, l);
    else if (!g->failed) move_partials(d, l);
    return g->failed ? p->err->status : CDR_OK;
}

/* Gradients of TURN scope are activations of the backward; name their class for the plan. */
static void classify(diff *d)
{
    for (int64_t i = d->n_fwd; i < d->g->n_vals; i++) {
        cdr_value *v = &d->g->vals[i];
        if (v->scope == CDR_TURN && v->cls == CDR_C_ACT) v->cls = CDR_C_GRAD;
    }
}

cdr_status cdr__differentiate(cdr_pass *p)
{
    cdr_graph *g = p->g[CDR_PROG_STEP];
    for (int q = 0; q < CDR_N_PROGS && p->o->infer_only; q++) if (p->g[q]) cdr__drop_unread(p->g[q]);
    if (p->o->infer_only) return CDR_OK;
    diff d = { .p = p, .g = g, .n_fwd = g->n_vals, .n_shared = p->b->n_shared };
    size_t n = (size_t)(d.n_shared + d.n_fwd);
    d.needs = cdr_pool_alloc(p->pool, n * sizeof *d.needs);
    d.uses = cdr_pool_alloc(p->pool, n * sizeof *d.uses);
    d.grad = cdr_pool_alloc(p->pool, n * sizeof *d.grad);
    d.covered = cdr_pool_alloc(p->pool, n * sizeof *d.covered);
    d.pass_through = cdr_pool_alloc(p->pool, n * sizeof *d.pass_through);
    d.weight = cdr_pool_alloc(p->pool, n * sizeof *d.weight);
    d.detached = cdr_pool_alloc(p->pool, n * sizeof *d.detached);
    for (size_t i = 0; i < n; i++) d.grad[i] = CDR_NONE;

    cdr__list_set_current(g, CDR_L_MICRO);
    g->phase = CDR_P_BWD;
    cdr_list forward = *cdr__list(g, CDR_L_MICRO);
    int32_t *calls = cdr_pool_alloc(p->pool, sizeof *calls * (size_t)forward.n);
    memcpy(calls, forward.calls, sizeof *calls * (size_t)forward.n);
    analyse(&d, &forward);
    cdr_val loss = p->io[CDR_PROG_STEP].loss_1;
    if (loss == CDR_NONE) CDR_FAIL(p->err, CDR_EINVAL, "differentiate: the model gave no loss");
    d.grad[slot(&d, loss)] = p->io[CDR_PROG_STEP].scale_1;
    (*pending(&d, p->io[CDR_PROG_STEP].scale_1))++;
    for (int i = 0; i < p->io[CDR_PROG_STEP].n_extra; i++) {
        d.grad[slot(&d, p->io[CDR_PROG_STEP].extra[i])] = p->io[CDR_PROG_STEP].scale_rows_1;
        (*pending(&d, p->io[CDR_PROG_STEP].scale_rows_1))++;
    }
    for (int64_t i = forward.n - 1; i >= 0; i--) CDR_TRY(backward_of(&d, calls[i]));
    cdr_graph_enter(g, -1, "%s", "");
    CDR_TRY(leaves(&d, cdr__list(g, CDR_L_MICRO)));
    classify(&d);
    for (int q = 0; q < CDR_N_PROGS; q++) if (p->g[q]) cdr__drop_unread(p->g[q]);
    return CDR_OK;
}
