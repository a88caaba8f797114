/* compile.c: the table of passes, in order, and the loop around `policy` and `place` that keeps the byte budget. */
#include "compile/pass.h"

static const struct { const char *name; cdr_status (*run)(cdr_pass *p); } passes[] = {
    { "build", cdr__build },                   /* forward, one device, from the model */
    { "adapt", cdr__adapt },                   /* precision of training: masters and optimizer states */
    { "shard", cdr__shard },                   /* gathers; forward only */
    { "differentiate", cdr__differentiate },   /* backward */
    { "update", cdr__update },                 /* norm, clipping, optimizer */
    { "policy", cdr__policy },                 /* keep or recompute */
    { "select", cdr__select },                 /* kernels and scratch */
    { "schedule", cdr__schedule },             /* turns, waits */
    { "place", cdr__place },                   /* offsets */
};

enum { MAX_MICRO = 16384 };           /* a turn's micro-batch is 16 bits wide */

cdr_compile_opts cdr_compile_defaults(void)
{
    cdr_compile_opts o = { .T = 1024, .n_micro = 1, .compute = CDR_F32, .params = CDR_F32, .prefetch = 1, .order = CDR_ORDER_TREE,
                           .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .max_grad_norm = 1.0, .device = CDR_DEV_CPU, .n_threads = 1, .experts_dtype = -1,
                           .parallel = { .dispatch_factor = 1.25 } };
    for (int a = 0; a < CDR_N_AXES; a++) o.mesh.size[a] = 1;
    o.mesh.world = 1;
    return o;
}

static cdr_status check_opts(const cdr_compile_opts *o, cdr_err *err)
{
    if (o->n_micro < 1 || (o->n_micro & (o->n_micro - 1)) != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "recipe.micro-batches", "train.global_batch_tokens: %d micro-batches a rank; a step is a power of two of "
                    "logical shards. Change train.global_batch_tokens or the number of ranks", o->n_micro);
    if (o->n_micro > MAX_MICRO)
        CDR_FAIL_ID(err, CDR_EUSER, "recipe.micro-batches", "train.global_batch_tokens: %d micro-batches a rank, at most %d. Raise train.micro_batch_tokens, "
                    "lower train.global_batch_tokens, or take more ranks", o->n_micro, MAX_MICRO);
    if (o->mesh.size[CDR_AXIS_CONTEXT] != 1) CDR_FAIL(err, CDR_EUSER, "parallel.context: context parallelism is not in this version. Use 1");
    int n = o->mesh.size[CDR_AXIS_REPLICATE] * o->mesh.size[CDR_AXIS_SHARD];
    if (n != o->mesh.world)
        CDR_FAIL(err, CDR_EUSER, "parallel: replicate %d x shard %d is not the number of ranks, %d", o->mesh.size[CDR_AXIS_REPLICATE],
                 o->mesh.size[CDR_AXIS_SHARD], o->mesh.world);
    const int expert = cdr_mesh_expert(&o->mesh);
    if (o->mesh.size[CDR_AXIS_SHARD] % expert != 0 || (expert & (expert - 1)) != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.expert", "parallel.expert: %d; it is a power of two that divides the %d ranks of parallel.shard", expert,
                    o->mesh.size[CDR_AXIS_SHARD]);
    if ((n & (n - 1)) != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.power-of-two", "parallel: %d ranks; widths are powers of two, since logical shards are merged in a binary tree", n);
    return CDR_OK;
}

static cdr_status compile_once(const cdr_compile_opts *o, const cdr_builder *m, int recompute_layers, cdr_pool *pool, cdr_bundle *b, cdr_err *err)
{
    memset(b, 0, sizeof *b);
    cdr_pass p = { .o = o, .m = m, .pool = pool, .b = b, .err = err, .recompute_layers = recompute_layers };
    p.n_shard = o->mesh.size[CDR_AXIS_SHARD];
    p.shard = o->mesh.rank[CDR_AXIS_SHARD];
    p.n_replicate = o->mesh.size[CDR_AXIS_REPLICATE];
    for (int i = 0; i < CDR_COUNT(passes); i++) {
        if (o->unplaced && passes[i].run == cdr__place) continue;
        CDR_TRY(passes[i].run(&p));
        for (int q = 0; q < CDR_N_PROGS; q++) if (p.g[q] && p.g[q]->failed) return err->status;
    }
    return CDR_OK;
}

static int n_layers(const cdr_bundle *b)
{
    int n = 0;
    const cdr_program *p = &b->progs[CDR_PROG_STEP];
    for (int32_t i = 0; i < p->n_calls; i++) n = CDR_MAX(n, p->calls[i].layer + 1);
    return n;
}

static bool fits(const cdr_compile_opts *o, const cdr_bundle *b)
{
    return o->budget_bytes <= 0 || b->run_bytes[0] + b->exec_bytes[0] <= o->budget_bytes;
}

cdr_status cdr_compile(const cdr_compile_opts *o, const cdr_builder *m, cdr_pool *pool, cdr_bundle *b, cdr_err *err)
{
    CDR_TRY(check_opts(o, err));
    CDR_CHECK(!o->unplaced || o->policy != CDR_POLICY_AUTO);
    if (o->unplaced) return compile_once(o, m, o->policy == CDR_POLICY_RECOMPUTE ? INT16_MAX : 0, pool, b, err);
    CDR_TRY(compile_once(o, m, o->policy == CDR_POLICY_RECOMPUTE ? INT16_MAX : 0, pool, b, err));
    if (o->policy != CDR_POLICY_AUTO || fits(o, b)) return cdr_verify(b, err);
    /* fewest recomputed layers that fit; none fits: the leanest program is left for the plan to report */
    int lo = 1, hi = n_layers(b);
    CDR_TRY(compile_once(o, m, hi, pool, b, err));
    if (!fits(o, b)) return cdr_verify(b, err);
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        CDR_TRY(compile_once(o, m, mid, pool, b, err));
        if (fits(o, b)) hi = mid;
        else lo = mid + 1;
    }
    CDR_TRY(compile_once(o, m, hi, pool, b, err));
    return cdr_verify(b, err);
}

/* ---- shared by the passes ---- */
bool cdr__param_stack(const cdr_param *p) { return p->place == CDR_PLACE_EXPERT && p->global.n_dim == 3; }

bool cdr__param_big(const cdr_param *p)
{
    return !cdr__param_stack(p) && p->place != CDR_PLACE_REPLICATE && p->global.n_dim >= 2 && cdr_type_elems(&p->global) >= CDR_BIG_ELEMS;
}

cdr_status cdr__enter_call(cdr_graph *g, const cdr_call *c)
{
    char prefix[300];
    snprintf(prefix, sizeof prefix, "%s", g->strings + c->origin);
    char *dot = strrchr(prefix, '.');
    if (dot) *dot = 0;
    else prefix[0] = 0;
    cdr_graph_enter(g, c->layer, "%s", prefix);
    return g->failed ? g->err->status : CDR_OK;
}

cdr_list *cdr__list(cdr_graph *g, const char *name)
{
    for (int i = 0; i < g->n_lists; i++) if (strcmp(g->lists[i].name, name) == 0) return &g->lists[i];
    return NULL;
}

void cdr__list_set_current(cdr_graph *g, const char *name)
{
    cdr_list *l = cdr__list(g, name);
    CDR_CHECK(l != NULL);
    g->cur = (int)(l - g->lists);
}

void cdr__list_push(cdr_graph *g, cdr_list *l, int32_t call) { *CDR_PUSH(g->pool, l->calls, l->n, l->cap) = call; }

void cdr__replace_operand(cdr_graph *g, cdr_list *l, cdr_val from, cdr_val to)
{
    for (int64_t i = 0; i < l->n; i++) {
        const cdr_call *c = &g->calls[l->calls[i]];
        for (uint32_t k = 0; k < (uint32_t)c->n_in + c->n_out; k++)
            if (g->operands[c->arg + k] == from) g->operands[c->arg + k] = to;
    }
}

const cdr_op *cdr__op(const cdr_call *c) { return cdr_ops[c->op]; }

cdr_val cdr__root(const cdr_graph *g, cdr_val v)
{
    for (int hop = 0; hop < 16 && v != CDR_NONE && cdr_graph_at(g, v)->alias != CDR_NONE; hop++) v = cdr_graph_at(g, v)->alias;
    return v;
}

void cdr__drop_unread(cdr_graph *g)
{
    bool *read = cdr_pool_alloc(g->pool, (size_t)g->n_vals + 1);
    for (int l = 0; l < g->n_lists; l++)
        for (int64_t i = 0; i < g->lists[l].n; i++) {
            const cdr_call *c = &g->calls[g->lists[l].calls[i]];
            for (int k = 0; k < c->n_in; k++) {
                cdr_val v = cdr__root(g, cdr_graph_in(g, c, k));
                if (v >= CDR_LOCAL0) read[v - CDR_LOCAL0] = true;
            }
        }
    for (int l = 0; l < g->n_lists; l++)
        for (int64_t i = 0; i < g->lists[l].n; i++) {
            const cdr_call *c = &g->calls[g->lists[l].calls[i]];
            for (int k = 0; k < c->n_out; k++) {
                cdr_val v = cdr__root(g, cdr_graph_out(g, c, k));
                if (v < CDR_LOCAL0 || !((cdr__op(c)->optional >> k) & 1u) || read[v - CDR_LOCAL0]) continue;
                /* what rows are exchanged through is read by peers, or by the call itself */
                if (cdr_graph_at(g, v)->scope == CDR_TURN && cdr_graph_at(g, v)->cls != CDR_C_COMM)
                    g->operands[c->arg + c->n_in + (uint32_t)k] = CDR_NONE;
            }
        }
}
