/* shard: a forward of one device becomes that of one rank. FSDP over the shard axis: each big parameter becomes this rank's rows, a gather
 * per unit stands before the unit's first use, `prefetch` units ahead in program order; small parameters stay whole and are marked by
 * `replicate`. Expert parallelism: stacks of experts become this rank's matrices (struct cdr_mesh), gathered over the ranks with the same
 * experts alone; operators with a `shard` hook are replaced by what their hook appends. Forward only: gradients (ordered reduce-scatter,
 * all-reduce, the way back of rows) follow from `differentiate`, the second gather of the backward from `policy`. */
#include "compile/pass.h"
#include "ops/gather/gather.h"
#include "ops/replicate/replicate.h"

enum { MAX_UNITS = 1 << 15 };          /* a unit is 16 bits wide */
typedef enum { WHOLE, SHARD, EFSDP, N_FETCHES } fetch_kind;

typedef struct { int16_t unit; int16_t layer; int64_t first; } unit_use;      /* first: position in the list of the unit's first use */

typedef struct {
    cdr_pass *p; cdr_graph *g;
    int expert, efsdp; cdr_shard_opts hooks;
    int64_t early, early_end;          /* calls that hooks made of those that read shards: what they read stays a shard */
    cdr_val *stand; int64_t n_slots;   /* by slot (shared values, then local ones): what stands for the value from here on */
    bool *read;                        /* by parameter: a call of this program reads it */
    int32_t *next, *first;             /* parameters of a unit: a list by index, -1 ends it; first: by unit */
} rewrite;

/* ---- parameters ------------------------------------------------------------------------------------------------------ */
static cdr_status check_expert(const cdr_pass *p, const cdr_param *q)
{
    const int expert = cdr_mesh_expert(&p->o->mesh);
    const bool trained = q->train == CDR_FULL && !p->o->infer_only;
    const long long E = q->global.n[0];
    if (E % expert != 0)
        CDR_FAIL_ID(p->err, CDR_EUSER, "parallel.indivisible", "parallel.expert: %d ranks do not divide the %lld experts of %s. Use a power of two that divides them",
                    expert, E, q->name);
    /* Matrices of a trained stack stay whole: the norm's parts, which no number of shards may change, are cut within them (ops/grad_norm). */
    if (trained && E % p->n_shard != 0)
        CDR_FAIL_ID(p->err, CDR_EUSER, "parallel.indivisible", "parallel.shard: %d shards do not divide the %lld matrices of %s. Use fewer shards, and more "
                    "parallel.replicate", p->n_shard, E, q->name);
    return CDR_OK;
}

static cdr_status split_params(cdr_pass *p)
{
    cdr_bundle *b = p->b;
    for (int32_t i = 0; i < b->n_params; i++) {
        cdr_param *q = &b->params[i];
        const bool stack = cdr__param_stack(q);
        if (stack) CDR_TRY(check_expert(p, q));
        if (!stack && !cdr__param_big(q)) continue;
        if (q->mapped) {                       /* all matrices of the rank's part; nothing is gathered */
            const int expert = cdr_mesh_expert(&p->o->mesh);
            q->split[0] = expert > 1 ? CDR_AXIS_EXPERT : -1;
            b->shared[q->shard].t.n[0] = q->global.n[0] / expert;
            continue;
        }
        q->split[0] = stack ? CDR_AXIS_EXPERT : CDR_AXIS_SHARD;
        cdr_val part[] = { q->shard, q->master, q->m, q->v };
        for (int k = 0; k < CDR_COUNT(part); k++)
            if (part[k] != CDR_NONE) b->shared[part[k]].t.n[0] = cdr_ceil_div(q->global.n[0], p->n_shard);
    }
    return CDR_OK;
}

static const cdr_param *param_of(const cdr_pass *p, cdr_val v)
{
    return v == CDR_NONE || v >= CDR_LOCAL0 || p->b->shared[v].param < 0 ? NULL : &p->b->params[p->b->shared[v].param];
}

/* ---- hooks ------------------------------------------------------------------------------------------------------------ */
static int64_t slot(const rewrite *w, cdr_val v) { return v < CDR_LOCAL0 ? v : w->p->b->n_shared + (v - CDR_LOCAL0); }

static cdr_val stand_of(const rewrite *w, cdr_val v) { return v == CDR_NONE || slot(w, v) >= w->n_slots ? v : w->stand[slot(w, v)]; }

static bool is_early(const rewrite *w, int32_t call) { return call >= w->early && call < w->early_end; }

static void replace_inputs(const rewrite *w, int32_t call)
{
    const cdr_call *c = &w->g->calls[call];
    for (int k = 0; k < c->n_in && !is_early(w, call); k++) {
        cdr_val *v = &w->g->operands[c->arg + (uint32_t)k];
        *v = stand_of(w, *v);
    }
}

/* The results of the hook's calls, from call `from` on, take the place of old: the same value where the type is the same. */
static void take_place(rewrite *w, int64_t from, cdr_val old, cdr_val result)
{
    cdr_graph *g = w->g;
    if (old == CDR_NONE || result == CDR_NONE || old == result) return;
    if (memcmp(cdr_graph_type(g, old), cdr_graph_type(g, result), sizeof(cdr_type)) != 0) {
        w->stand[slot(w, old)] = result;
        return;
    }
    for (int64_t i = from; i < g->n_calls; i++)
        for (int k = 0; k < g->calls[i].n_in + g->calls[i].n_out; k++) {
            cdr_val *v = &g->operands[g->calls[i].arg + (uint32_t)k];
            if (*v == result) *v = old;
        }
}

/* Appends call, or what its hook makes of it. */
static cdr_status append(rewrite *w, int32_t call)
{
    cdr_graph *g = w->g;
    const cdr_call c = g->calls[call];
    const cdr_op *op = cdr__op(&c);
    cdr_val out[CDR_MAX_OPERANDS], old[CDR_MAX_OPERANDS];
    int64_t from = g->n_calls;
    if (op->shard) {
        for (int k = 0; k < c.n_out; k++) {
            old[k] = cdr_graph_out(g, &c, k);
            out[k] = CDR_NONE;
        }
        CDR_TRY(cdr__enter_call(g, &c));
        CDR_TRY(op->shard(g, &c, &w->p->o->mesh, &w->hooks, out, w->p->err));
        if (g->failed) return w->p->err->status;
        cdr_graph_enter(g, -1, "%s", "");
        for (int k = 0; k < c.n_out && out[0] != CDR_NONE; k++) take_place(w, from, old[k], out[k]);
        if (out[0] != CDR_NONE) return CDR_OK;
    }
    cdr__list_push(g, &g->lists[g->cur], call);
    return CDR_OK;
}

/* A call that reads rows of FSDP itself (a loss over a split head) may take the shard instead of a gathered parameter: its hook comes first. */
static bool reads_shards(const rewrite *w, const cdr_call *c)
{
    for (int k = 0; k < c->n_in; k++) {
        const cdr_param *q = param_of(w->p, cdr_graph_in(w->g, c, k));
        if (q && q->split[0] == CDR_AXIS_SHARD) return true;
    }
    return false;
}

static cdr_status early_hooks(rewrite *w, cdr_list *l)
{
    const cdr_list old = *l;
    *l = (cdr_list){ .name = old.name };
    w->early = w->early_end = w->g->n_calls;
    for (int64_t i = 0; i < old.n; i++) {
        const cdr_call *c = &w->g->calls[old.calls[i]];
        if (cdr__op(c)->shard && reads_shards(w, c)) CDR_TRY(append(w, old.calls[i]));
        else cdr__list_push(w->g, &w->g->lists[w->g->cur], old.calls[i]);
    }
    w->early_end = w->g->n_calls;
    return CDR_OK;
}

/* ---- units ------------------------------------------------------------------------------------------------------------ */
static fetch_kind fetch_of(const rewrite *w, const cdr_param *q)
{
    if (q->split[0] == CDR_AXIS_SHARD || (q->split[0] == CDR_AXIS_EXPERT && w->expert == 1)) return SHARD;
    return q->split[0] == CDR_AXIS_EXPERT ? EFSDP : WHOLE;
}

/* The units in the order of their first use; marks the parameters that are read. */
static int unit_uses(rewrite *w, const cdr_list *l, unit_use *use)
{
    bool *seen = cdr_pool_alloc(w->p->pool, MAX_UNITS);
    int n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        const cdr_call *c = &w->g->calls[l->calls[i]];
        for (int k = 0; k < c->n_in && !is_early(w, l->calls[i]); k++) {
            const cdr_param *q = param_of(w->p, cdr_graph_in(w->g, c, k));
            if (!q) continue;
            w->read[q - w->p->b->params] = true;
            if (!seen[q->unit]) use[n++] = (unit_use){ q->unit, c->layer, i };
            seen[q->unit] = true;
        }
    }
    return n;
}

static void list_units(rewrite *w)
{
    const cdr_bundle *b = w->p->b;
    for (int u = 0; u < MAX_UNITS; u++) w->first[u] = -1;
    for (int32_t i = b->n_params - 1; i >= 0; i--) {
        w->next[i] = w->first[b->params[i].unit];
        w->first[b->params[i].unit] = i;
    }
}

static cdr_status fetch_some(rewrite *w, fetch_kind kind, int n, const cdr_val *in, const int64_t *rows)
{
    cdr_val out[CDR_GATHER_MAX];
    for (int k = 0; k < n; k++) out[k] = CDR_NEW;
    if (n == 0) return CDR_OK;
    if (kind == WHOLE) CDR_TRY(cdr_replicate(w->g, CDR_COMM_SHARD, w->p->n_shard, n, in, out));
    else CDR_TRY(cdr_gather(w->g, kind == SHARD ? CDR_COMM_SHARD : CDR_COMM_EFSDP, kind == SHARD ? w->p->n_shard : w->efsdp, n, in, rows, out));
    for (int k = 0; k < n; k++) w->stand[in[k]] = out[k];
    return CDR_OK;
}

/* The gathers and replicates of one unit's parameters that this program reads; the rest of the program reads their results. */
static cdr_status fetch_unit(rewrite *w, const unit_use *u)
{
    cdr_val in[N_FETCHES][CDR_GATHER_MAX];
    int64_t rows[N_FETCHES][CDR_GATHER_MAX];
    int n[N_FETCHES] = { 0 };
    cdr_graph_enter(w->g, u->layer, "unit%d", u->unit);
    for (int32_t i = w->first[u->unit]; i >= 0; i = w->next[i]) {
        const cdr_param *q = &w->p->b->params[i];
        const fetch_kind kind = fetch_of(w, q);
        if (!w->read[i] || q->mapped || (kind == EFSDP && w->efsdp == 1)) continue;
        in[kind][n[kind]] = q->shard;
        rows[kind][n[kind]++] = kind == EFSDP ? q->global.n[0] / w->expert : q->global.n[0];
        if (n[kind] < CDR_GATHER_MAX) continue;
        CDR_TRY(fetch_some(w, kind, n[kind], in[kind], rows[kind]));
        n[kind] = 0;
    }
    for (int k = 0; k < N_FETCHES; k++) CDR_TRY(fetch_some(w, (fetch_kind)k, n[k], in[k], rows[k]));
    cdr_graph_enter(w->g, -1, "%s", "");
    return w->g->failed ? w->p->err->status : CDR_OK;
}

static cdr_status shard_list(rewrite *w, const char *name)
{
    cdr_graph *g = w->g;
    cdr__list_set_current(g, name);
    CDR_TRY(early_hooks(w, cdr__list(g, name)));
    const cdr_list old = *cdr__list(g, name);
    unit_use *use = cdr_pool_alloc(w->p->pool, sizeof *use * MAX_UNITS);
    const int n_units = unit_uses(w, &old, use);
    *cdr__list(g, name) = (cdr_list){ .name = old.name };
    int next = 0;
    for (int64_t i = 0; i < old.n; i++) {
        /* unit r is fetched where unit r - prefetch is first used */
        while (next < n_units && i >= use[CDR_MAX(0, next - w->p->o->prefetch)].first) CDR_TRY(fetch_unit(w, &use[next++]));
        replace_inputs(w, old.calls[i]);
        CDR_TRY(append(w, old.calls[i]));
    }
    for (int64_t v = 0; v < w->n_slots - w->p->b->n_shared; v++) g->vals[v].alias = stand_of(w, g->vals[v].alias);      /* the model's views */
    return CDR_OK;
}

cdr_status cdr__shard(cdr_pass *p)
{
    cdr__mapped(p);
    if (p->n_shard == 1) return CDR_OK;
    CDR_TRY(split_params(p));
    rewrite w = { .p = p, .expert = cdr_mesh_expert(&p->o->mesh), .efsdp = cdr_mesh_efsdp(&p->o->mesh), .hooks = p->o->parallel };
    w.hooks.any_order = p->o->order == CDR_ORDER_FREE;
    w.next = cdr_pool_alloc(p->pool, sizeof *w.next * (size_t)(p->b->n_params + 1));
    w.first = cdr_pool_alloc(p->pool, sizeof *w.first * MAX_UNITS);
    list_units(&w);
    for (int q = 0; q < CDR_N_PROGS; q++) {
        cdr_graph *g = p->g[q];
        if (!g || !cdr__list(g, CDR_L_MICRO)) continue;
        w.g = g;
        w.n_slots = p->b->n_shared + g->n_vals;
        w.stand = cdr_pool_alloc(p->pool, sizeof *w.stand * (size_t)(w.n_slots + 1));
        w.read = cdr_pool_alloc(p->pool, (size_t)p->b->n_params + 1);
        for (int64_t s = 0; s < w.n_slots; s++) w.stand[s] = s < p->b->n_shared ? (cdr_val)s : CDR_LOCAL0 + (cdr_val)(s - p->b->n_shared);
        g->phase = CDR_P_FWD;
        g->scope = CDR_TURN;
        CDR_TRY(shard_list(&w, CDR_L_MICRO));
    }
    return CDR_OK;
}
