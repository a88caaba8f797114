/* update: the step's `finish`: merge over replicas, norm, clipping and guard, optimizer. Every update is predicated on
 * the sticky flag `ok`, so that a step with a non-finite value changes nothing. The snapshot program is built here too,
 * as it lists what a finish may change. */
#include "compile/pass.h"
#include "ops/adamw/adamw.h"
#include "ops/balance/balance.h"
#include "ops/copy/copy.h"
#include "ops/gather/gather.h"
#include "ops/grad_norm/grad_norm.h"
#include "ops/muon/muon.h"

static cdr_norm_table table_of(const cdr_param *q)
{
    return cdr__param_stack(q) ? CDR_NORM_EXPERTS : cdr__param_big(q) ? CDR_NORM_SHARDED : CDR_NORM_WHOLE;
}

/* Gradients of one table of the norm, in parameter order. */
static int table_params(const cdr_pass *p, cdr_norm_table table, int32_t *which)
{
    int n = 0;
    for (int32_t i = 0; i < p->b->n_params; i++)
        if (p->b->params[i].grad != CDR_NONE && table_of(&p->b->params[i]) == table) which[n++] = i;
    return n;
}

static cdr_status merge_replicas(cdr_pass *p, cdr_graph *g)
{
    cdr_val x[CDR_GATHER_MAX];
    int n = 0;
    cdr_val loss[2] = { p->loss_acc_1, p->extra_acc_n };
    CDR_TRY(cdr_all_reduce(g, CDR_COMM_REPLICATE, p->n_replicate, p->extra_acc_n == CDR_NONE ? 1 : 2, loss, loss));
    for (int32_t i = 0; i <= p->b->n_params; i++) {
        bool last = i == p->b->n_params;
        if (n == CDR_GATHER_MAX || (last && n > 0)) {
            CDR_TRY(cdr_all_reduce(g, CDR_COMM_REPLICATE, p->n_replicate, n, x, x));
            n = 0;
        }
        if (!last && p->b->params[i].grad != CDR_NONE) x[n++] = p->b->params[i].grad;
    }
    return CDR_OK;
}

/* Parts of one table; but for whole parameters gathered from all shards. CDR_NONE where the table is empty. */
static cdr_val norm_table(cdr_pass *p, cdr_graph *g, cdr_norm_table table, int *n_out)
{
    static const char *const name[CDR_N_NORMS] = { "norm.parts", "norm.whole", "norm.experts" };
    int32_t *which = cdr_pool_alloc(p->pool, sizeof *which * (size_t)(p->b->n_params + 1));
    int n = table_params(p, table, which), n_shard = table == CDR_NORM_WHOLE ? 1 : p->n_shard, per = CDR_NORM_PARTS / n_shard, expert = cdr_mesh_expert(&p->o->mesh);
    int shard = table == CDR_NORM_EXPERTS ? p->shard % expert * (n_shard / expert) + p->shard / expert : table == CDR_NORM_SHARDED ? p->shard : 0;
    *n_out = n;
    if (n == 0) return CDR_NONE;
    cdr_val mine = cdr_graph_value(g, cdr_type_2d(CDR_F64, 1, (int64_t)n * per), CDR_STEP, CDR_C_WORK, name[table]);
    for (int i = 0; i < n; i += CDR_NORM_MAX) {
        cdr_val grads[CDR_NORM_MAX];
        int64_t rows[CDR_NORM_MAX];
        int m = CDR_MIN(n - i, CDR_NORM_MAX);
        for (int k = 0; k < m; k++) {
            grads[k] = p->b->params[which[i + k]].grad;
            const cdr_type *t = &p->b->params[which[i + k]].global;
            rows[k] = t->n_dim == 1 ? t->n[0] : cdr_type_rows(t);
        }
        cdr_val part = cdr_graph_view(g, mine, (int64_t)i * per * 8, cdr_type_1d(CDR_F64, (int64_t)m * per), "norm.slice");
        cdr_norm_parts(g, m, grads, rows, n_shard, shard, part);
    }
    if (n_shard == 1) return mine;
    cdr_val all = CDR_NEW;
    int64_t rows = n_shard;
    if (cdr_gather(g, CDR_COMM_SHARD, n_shard, 1, &mine, &rows, &all) != CDR_OK) return CDR_NONE;
    return all;
}

static int32_t predicated(const cdr_pass *p, cdr_graph *g, int32_t call)
{
    if (call >= 0) g->calls[call].pred = p->ok_1;
    return call;
}

static int32_t update_adamw(cdr_pass *p, cdr_graph *g, const cdr_param *q, cdr_val clip_1)
{
    const cdr_compile_opts *o = p->o;
    cdr_adamw_attr a = { (float)o->beta1, (float)o->beta2, (float)o->eps, q->decay ? (float)o->weight_decay : 0.0f, q->lr_scale };
    return predicated(p, g, cdr_adamw(g, q->grad, clip_1, p->hyper_8, q->master, q->m, q->v, q->master == q->shard ? CDR_NONE : q->shard, &a));
}

static int32_t update_gathered(cdr_pass *p, cdr_graph *g, const cdr_param *q, cdr_val clip_1, cdr_val weight, const cdr_muon_attr *a)
{
    const cdr_val shard[] = { q->grad, q->master, q->m };
    cdr_val full[] = { CDR_NEW, CDR_NEW, CDR_NEW };
    int64_t n0 = q->global.n[0], part = n0 / p->n_shard, rows[] = { n0, n0, n0 };
    if (n0 % p->n_shard != 0) {
        cdr_graph_fail(g, CDR_EUSER, "optimizer.name: muon over %d shards needs parameters whose rows they divide; %s has %lld. Use parallel.replicate, or adamw",
                       p->n_shard, q->name, (long long)n0);
        return -1;
    }
    g->scope = CDR_TURN;
    cdr_status st = cdr_gather(g, CDR_COMM_SHARD, p->n_shard, 3, shard, rows, full);
    g->scope = CDR_STEP;
    if (st != CDR_OK || predicated(p, g, cdr_muon(g, full[0], clip_1, p->hyper_8, full[1], full[2], CDR_NONE, a)) < 0) return -1;
    cdr_type own = q->global;
    own.dtype = CDR_F32;
    own.n[0] = part;
    int64_t at = p->shard * (int64_t)cdr_type_bytes(&own);
    const cdr_val from[] = { full[1], full[2], full[1] };
    cdr_val to[] = { q->master, q->m, weight };
    int32_t call = 0;
    for (int k = 0; k < 3 && call >= 0; k++) {
        if (to[k] == CDR_NONE) continue;
        cdr_val mine = cdr_graph_view(g, from[k], at, own, "own_rows");
        cdr_copy_attr c = { cdr_graph_type(g, to[k])->dtype };
        call = predicated(p, g, cdr_graph_call(g, &cdr_op_copy, &c, 1, &mine, 1, &to[k]));
    }
    return call;
}

/* A stack of matrices or heads that FSDP cuts between them is updated where it lies. Another matrix is gathered with its states,
 * updated on every rank alike, and each rank keeps its rows. */
static int32_t update_muon(cdr_pass *p, cdr_graph *g, const cdr_param *q, cdr_val clip_1)
{
    const cdr_compile_opts *o = p->o;
    int64_t rows = cdr_type_rows(&p->b->shared[q->shard].t), all = cdr_type_rows(&q->global), block = o->muon_per_head ? q->block_rows : 0;
    if (q->global.n_dim == 3) block = q->global.n[1];
    cdr_muon_attr a = { .block_rows = (int32_t)block, .momentum = (float)o->muon_momentum, .nesterov = o->muon_nesterov, .iterations = o->muon_iterations,
                        .scale = (float)o->muon_scale, .weight_decay = q->decay ? (float)o->weight_decay : 0.0f, .lr_scale = q->lr_scale };
    cdr_val weight = q->master == q->shard ? CDR_NONE : q->shard;
    if (rows == all || (block > 0 && rows % block == 0 && q->global.n[0] % p->n_shard == 0))
        return predicated(p, g, cdr_muon(g, q->grad, clip_1, p->hyper_8, q->master, q->m, weight, &a));
    return update_gathered(p, g, q, clip_1, weight, &a);
}

static void optimizer(cdr_pass *p, cdr_graph *g, cdr_val clip_1)
{
    for (int32_t i = 0; i < p->b->n_params; i++) {
        const cdr_param *q = &p->b->params[i];
        if (q->grad == CDR_NONE) continue;
        cdr_graph_enter(g, -1, "%s", q->name);
        if ((q->rule == CDR_RULE_MUON ? update_muon(p, g, q, clip_1) : update_adamw(p, g, q, clip_1)) < 0) return;
    }
    cdr_graph_enter(g, -1, "%s", "");
}

/* Counts of all ranks, exact; then each router's bias for the next step (spec/model.md, 3.7). */
static cdr_status balance(cdr_pass *p, cdr_graph *g)
{
    const cdr_compile_opts *o = p->o;
    const cdr_io *io = &p->io[CDR_PROG_STEP];
    cdr_val x[CDR_GATHER_MAX];
    int n = 0;
    for (int64_t i = 0; i < 2 * io->n_routers && o->mesh.world > 1; i++) {
        cdr_val v = i % 2 ? io->routers[i / 2].hist_EB : io->routers[i / 2].load_E;
        if (v != CDR_NONE) x[n++] = v;
        bool full = n == CDR_GATHER_MAX || (n > 0 && i == 2 * io->n_routers - 1);
        if (full) CDR_TRY(cdr_all_reduce(g, CDR_COMM_WORLD, o->mesh.world, n, x, x));
        if (full) n = 0;
    }
    for (int64_t i = 0; i < io->n_routers; i++) {
        const cdr_balance *r = &io->routers[i];
        if (r->bias_param < 0 || (r->kind != CDR_BALANCE_QUANTILE && r->kind != CDR_BALANCE_SIGN)) continue;
        cdr_val bias = p->b->params[r->bias_param].shard;
        if (p->b->params[r->bias_param].train != CDR_STATE) continue;             /* frozen by the recipe */
        cdr_graph_enter(g, -1, "layers.%d.moe", r->layer);
        cdr_balance_quantile_attr a = { .top_k = r->top_k, .bins = (int32_t)o->balance_bins, .ema = (float)o->balance_ema };
        int32_t call = r->kind == CDR_BALANCE_QUANTILE ? cdr_balance_quantile(g, r->hist_EB, bias, r->load_E, &a)
                                                       : cdr_balance_sign(g, r->load_E, bias, (float)o->balance_rate);
        if (call < 0) return g->err->status;
        g->calls[call].pred = p->ok_1;
    }
    cdr_graph_enter(g, -1, "%s", "");
    return CDR_OK;
}

/* One call a value, each into staging of its own lifetime: whoever drains the staging drives the calls one by one, so the
 * slab holds the largest value once, not all of them. */
static cdr_status snapshot(cdr_pass *p, cdr_graph *g)
{
    g->scope = CDR_TURN;
    g->phase = CDR_P_UPDATE;
    g->stream = CDR_S_OUT;
    cdr_graph_list(g, "copy");
    for (int32_t v = 0; v < p->b->n_shared; v++) {
        if (!(p->b->shared[v].flags & CDR_F_CKPT)) continue;
        cdr_type t = p->b->shared[v].t;
        const char *name = cdr_pool_printf(p->pool, "snapshot.%s", p->b->shared_strings + p->b->shared[v].name);
        cdr_val out = cdr_graph_value(g, t, CDR_TURN, CDR_C_COMM, name);
        cdr_copy_attr a = { t.dtype };
        cdr_graph_call(g, &cdr_op_copy, &a, 1, &v, 1, &out);
    }
    return g->failed ? p->err->status : CDR_OK;
}

cdr_status cdr__update(cdr_pass *p)
{
    cdr_graph *g = p->g[CDR_PROG_STEP];
    if (p->o->infer_only) return CDR_OK;
    g->scope = CDR_STEP;
    g->phase = CDR_P_UPDATE;
    cdr_graph_list(g, CDR_L_FINISH);
    if (p->n_replicate > 1) CDR_TRY(merge_replicas(p, g));
    cdr_norm_tables t = { .n_shard = p->n_shard, .expert = cdr_mesh_expert(&p->o->mesh) };
    for (int k = 0; k < CDR_N_NORMS; k++) t.part[k] = norm_table(p, g, (cdr_norm_table)k, &t.n[k]);
    if (g->failed) return p->err->status;
    cdr_val metrics = cdr_graph_value(g, cdr_type_1d(CDR_F64, CDR_N_METRIC), CDR_STEP, CDR_C_INPUT, "metrics"), clip = CDR_NEW;
    cdr_norm_total(g, &t, p->loss_acc_1, p->o->max_grad_norm, &metrics, &clip, p->ok_1);
    if (g->failed) return p->err->status;
    optimizer(p, g, clip);
    CDR_TRY(balance(p, g));
    CDR_TRY(snapshot(p, p->g[CDR_PROG_SNAPSHOT]));
    return g->failed ? p->err->status : CDR_OK;
}
