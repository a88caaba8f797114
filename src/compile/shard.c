/* shard: FSDP over the shard axis, forward only. Each big parameter becomes this rank's rows; a gather per unit stands
 * before the unit's first use, `prefetch` units ahead in program order; small parameters stay whole and are marked by
 * `replicate`. Gradients (ordered reduce-scatter, all-reduce) follow from `differentiate`, the second gather of the
 * backward from `policy`. */
#include "compile/pass.h"
#include "ops/gather/gather.h"
#include "ops/replicate/replicate.h"

enum { MAX_UNITS = 4096 };

/* Matrices of a trained stack stay whole: the norm's parts, which no number of shards may change, are cut within them (ops/grad_norm). */
static cdr_status split_params(cdr_pass *p)
{
    cdr_bundle *b = p->b;
    for (int32_t i = 0; i < b->n_params; i++) {
        cdr_param *q = &b->params[i];
        if (!cdr__param_big(q)) continue;
        bool stack = q->global.n_dim == 3 && q->global.n[1] > 1, trained = q->train == CDR_FULL && !p->o->infer_only;
        if (stack && trained && q->global.n[0] % p->n_shard != 0)
            CDR_FAIL_ID(p->err, CDR_EUSER, "parallel.indivisible", "parallel.shard: %d shards do not divide the %lld matrices of %s. Use fewer shards, and more "
                        "parallel.replicate", p->n_shard, (long long)q->global.n[0], q->name);
        q->split[0] = CDR_AXIS_SHARD;
        cdr_val part[] = { q->shard, q->master, q->m, q->v };
        for (int k = 0; k < CDR_COUNT(part); k++)
            if (part[k] != CDR_NONE) b->shared[part[k]].t.n[0] = cdr_ceil_div(q->global.n[0], p->n_shard);
    }
    return CDR_OK;
}

typedef struct { int16_t unit; int64_t first; } unit_use;      /* first: position in the list of the unit's first use */

/* The units in the order of their first use; their number, MAX_UNITS + 1 where there are more. */
static int unit_uses(cdr_pass *p, const cdr_graph *g, const cdr_list *l, unit_use *use)
{
    int n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        const cdr_call *c = &g->calls[l->calls[i]];
        for (int k = 0; k < c->n_in; k++) {
            cdr_val v = cdr_graph_in(g, c, k);
            if (v == CDR_NONE || v >= CDR_LOCAL0 || p->b->shared[v].param < 0) continue;
            int16_t unit = p->b->params[p->b->shared[v].param].unit;
            bool seen = false;
            for (int u = 0; u < n; u++) seen = seen || use[u].unit == unit;
            if (!seen && n == MAX_UNITS) return n + 1;
            if (!seen) use[n++] = (unit_use){ unit, i };
        }
    }
    return n;
}

/* The gathers and replicates of one unit, appended to the current list; the rest of the program reads their results. */
static cdr_status fetch_unit(cdr_pass *p, cdr_graph *g, cdr_list *users, int unit)
{
    cdr_val in[2][CDR_GATHER_MAX], out[2][CDR_GATHER_MAX];
    int64_t rows[CDR_GATHER_MAX];
    int n[2] = { 0, 0 };
    g->layer = -1;
    for (int64_t i = 0; i < users->n && g->layer < 0; i++) {
        const cdr_call *c = &g->calls[users->calls[i]];
        for (int k = 0; k < c->n_in; k++) {
            cdr_val v = cdr_graph_in(g, c, k);
            if (v != CDR_NONE && v < CDR_LOCAL0 && p->b->shared[v].param >= 0 && p->b->params[p->b->shared[v].param].unit == unit) g->layer = c->layer;
        }
    }
    for (int32_t i = 0; i <= p->b->n_params; i++) {
        bool last = i == p->b->n_params;
        const cdr_param *q = last ? NULL : &p->b->params[i];
        if (q && q->unit != unit) continue;
        for (int kind = 0; kind < 2; kind++) {
            bool full = n[kind] == CDR_GATHER_MAX || (last && n[kind] > 0);
            if (!full) continue;
            if (kind == 0) CDR_TRY(cdr_gather(g, CDR_COMM_SHARD, p->n_shard, n[0], in[0], rows, out[0]));
            else CDR_TRY(cdr_replicate(g, CDR_COMM_SHARD, p->n_shard, n[1], in[1], out[1]));
            for (int k = 0; k < n[kind]; k++) cdr__replace_operand(g, users, in[kind][k], out[kind][k]);
            n[kind] = 0;
        }
        if (last) break;
        int kind = q->split[0] == CDR_AXIS_SHARD ? 0 : 1;
        if (kind == 0) rows[n[0]] = q->global.n[0];
        in[kind][n[kind]] = q->shard;
        out[kind][n[kind]++] = CDR_NEW;
    }
    return g->failed ? p->err->status : CDR_OK;
}

static cdr_status shard_list(cdr_pass *p, cdr_graph *g)
{
    cdr_list *l = cdr__list(g, CDR_L_MICRO);
    unit_use *use = cdr_pool_alloc(p->pool, sizeof *use * MAX_UNITS);
    int n_units = unit_uses(p, g, l, use);
    if (n_units > MAX_UNITS) return cdr_graph_fail(g, CDR_EINVAL, "shard: more than %d gather units", MAX_UNITS);
    cdr_list old = *l;
    *l = (cdr_list){ .name = old.name };
    g->cur = (int)(l - g->lists);
    int next = 0;
    for (int64_t i = 0; i <= old.n; i++) {
        /* unit r is fetched where unit r - prefetch is first used */
        while (next < n_units) {
            int at = CDR_MAX(0, next - p->o->prefetch);
            if (i < use[at].first) break;
            cdr_graph_enter(g, -1, "unit%d", use[next].unit);
            CDR_TRY(fetch_unit(p, g, &old, use[next].unit));
            cdr_graph_enter(g, -1, "%s", "");
            next++;
        }
        if (i < old.n) cdr__list_push(g, &g->lists[g->cur], old.calls[i]);
    }
    return CDR_OK;
}

cdr_status cdr__shard(cdr_pass *p)
{
    if (p->n_shard == 1) return CDR_OK;
    CDR_TRY(split_params(p));
    for (int q = 0; q < CDR_N_PROGS; q++) {
        cdr_graph *g = p->g[q];
        if (!g || !cdr__list(g, CDR_L_MICRO)) continue;
        g->phase = CDR_P_FWD;
        g->scope = CDR_TURN;
        CDR_TRY(shard_list(p, g));
    }
    return CDR_OK;
}
