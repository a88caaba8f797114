/* test_compile.c: the passes on hand-made models that no description would have: one value used twice by a call, tied
 * weights, gradients through adds in a row, views of views, units of 30 tensors, fewer rows than ranks. Gradients are
 * compared with central differences of the double-precision oracle; layouts and policies to the bit. */
#include "compile/pass.h"
#include "ops/add/add.h"
#include "ops/copy/copy.h"
#include "ops/embedding/embedding.h"
#include "ops/gather/gather.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/swiglu/swiglu.h"
#include "tiny.h"

enum { SMALL_T = 6, SMALL_D = 12, SMALL_W = 16 };

/* ---- parts of the models ---- */
static void declare(cdr_graph *g, int unit, int64_t rows, int64_t cols, const char *name)
{
    cdr_param p = { .name = name, .global = cols > 0 ? cdr_type_2d(CDR_F32, rows, cols) : cdr_type_1d(CDR_F32, rows), .unit = (int16_t)unit,
                    .train = CDR_FULL, .rule = CDR_RULE_ADAMW, .init = cols > 0 ? CDR_INIT_NORMAL : CDR_INIT_ONES, .init_std = 0.2f,
                    .rng = cdr_hash64(name, strlen(name), 0) };
    cdr_graph_declare(g, p);
}

static cdr_val columns(cdr_graph *g, cdr_val x, int64_t from, int64_t n)
{
    if (g->failed) return CDR_NONE;
    const cdr_type *whole = cdr_graph_type(g, x);
    cdr_type t = cdr_type_2d(whole->dtype, whole->n[0], n);
    t.pitch = cdr_type_pitch(whole);
    return cdr_graph_view(g, x, cdr_dtype_bytes(whole->dtype, from), t, "columns");
}

static cdr_val embed(cdr_graph *g, const cdr_io *io, const char *name)
{
    return cdr_embedding(g, io->tokens_T, cdr_graph_param(g, "%s", name), CDR_NONE, CDR_NONE);
}

static cdr_status head(cdr_graph *g, cdr_io *io, cdr_val h, const char *name, cdr_err *err)
{
    io->loss_1 = cdr_loss(g, h, cdr_graph_param(g, "%s", name), io->targets_T, io->weights_T, 0, 0);
    return g->failed ? err->status : CDR_OK;
}

static cdr_status declare_small(const void *model, cdr_graph *g, cdr_err *err)
{
    (void)model;
    declare(g, 0, SMALL_W, SMALL_D, "table");
    declare(g, 1, SMALL_D, SMALL_D, "a");
    declare(g, 1, SMALL_D, SMALL_D, "b");
    declare(g, 1, SMALL_D, 0, "gain");
    declare(g, 2, SMALL_W, SMALL_D, "head");
    return g->failed ? err->status : CDR_OK;
}

/* every parameter of declare_small, so that each has a gradient */
static cdr_val mixed(cdr_graph *g, cdr_val x)
{
    cdr_val n = cdr_rmsnorm(g, x, cdr_graph_param(g, "gain"), 1e-5f);
    return cdr_swiglu(g, cdr_linear(g, n, cdr_graph_param(g, "a")), cdr_linear(g, n, cdr_graph_param(g, "b")));
}

/* ---- the models ---- */
#define FORWARD(name) static cdr_status name(const void *model, cdr_graph *g, cdr_io *io, cdr_err *err)

FORWARD(used_twice_by_one_call)
{
    (void)model;
    cdr_val x = embed(g, io, "table"), y = mixed(g, x);
    cdr_val twice = cdr_add(g, y, y), self = cdr_swiglu(g, twice, twice);
    return head(g, io, cdr_add(g, self, cdr_add(g, x, x)), "head", err);
}

FORWARD(adds_in_a_row)
{
    (void)model;
    cdr_graph_enter(g, 0, "layers.0");
    cdr_val x = embed(g, io, "table"), y = mixed(g, x), z = cdr_linear(g, y, cdr_graph_param(g, "b"));
    cdr_val s = cdr_add(g, cdr_add(g, x, y), z);              /* one gradient for s, x, y and z */
    cdr_graph_enter(g, 1, "layers.1");
    cdr_val t = cdr_add(g, cdr_add(g, s, cdr_linear(g, s, cdr_graph_param(g, "a"))), y);
    cdr_val u = cdr_add(g, cdr_copy(g, t, cdr_graph_type(g, t)->dtype), cdr_add(g, z, x));
    return head(g, io, cdr_add(g, u, cdr_swiglu(g, u, t)), "head", err);
}

FORWARD(views_of_views)
{
    (void)model;
    cdr_val x = mixed(g, embed(g, io, "table"));
    cdr_val left = columns(g, x, 0, 8), right = columns(g, x, 8, 4);
    cdr_val l0 = columns(g, left, 0, 4), l1 = columns(g, left, 4, 4);
    cdr_val p = cdr_swiglu(g, cdr_swiglu(g, l0, l1), right);
    return head(g, io, cdr_linear(g, p, cdr_graph_param(g, "narrow")), "head", err);
}

FORWARD(one_slice_named_twice)
{
    (void)model;
    cdr_val x = mixed(g, embed(g, io, "table"));
    cdr_val l = columns(g, x, 0, 6), again = columns(g, x, 0, 6), r = columns(g, x, 6, 6);
    return head(g, io, cdr_linear(g, cdr_swiglu(g, cdr_add(g, l, r), again), cdr_graph_param(g, "half")), "head", err);
}

FORWARD(slices_that_leave_columns_out)
{
    (void)model;
    cdr_val x = mixed(g, embed(g, io, "table"));
    cdr_val l = columns(g, x, 0, 6), again = columns(g, x, 0, 6);
    return head(g, io, cdr_linear(g, cdr_swiglu(g, l, again), cdr_graph_param(g, "half")), "head", err);
}

FORWARD(sum_of_two_parameters)
{
    (void)model;
    cdr_val x = embed(g, io, "table"), w = cdr_add(g, cdr_graph_param(g, "a"), cdr_graph_param(g, "b"));
    return head(g, io, cdr_linear(g, cdr_rmsnorm(g, x, cdr_graph_param(g, "gain"), 1e-5f), w), "head", err);
}

FORWARD(tied)
{
    (void)model;
    cdr_val x = embed(g, io, "table"), y = mixed(g, x);
    cdr_val logits = cdr_linear(g, cdr_rmsnorm(g, y, cdr_graph_param(g, "gain"), 1e-5f), cdr_graph_param(g, "table"));
    (void)cdr_rmsnorm(g, logits, cdr_graph_param(g, "wide"), 1e-5f);                      /* nobody reads it */
    cdr_val back = cdr_embedding(g, io->pos_T, cdr_graph_param(g, "head"), CDR_NONE, CDR_NONE);
    cdr_val h = cdr_add(g, cdr_add(g, y, back), cdr_linear(g, logits, cdr_graph_param(g, "turn")));
    return head(g, io, h, "head", err);
}

static cdr_status declare_tied(const void *model, cdr_graph *g, cdr_err *err)
{
    CDR_TRY(declare_small(model, g, err));
    declare(g, 3, SMALL_D, SMALL_W, "turn");
    cdr_param wide = { .name = "wide", .global = cdr_type_1d(CDR_F32, SMALL_W), .unit = 3, .train = CDR_FROZEN, .init = CDR_INIT_ONES };
    cdr_graph_declare(g, wide);
    return g->failed ? err->status : CDR_OK;
}

static cdr_status declare_views(const void *model, cdr_graph *g, cdr_err *err)
{
    CDR_TRY(declare_small(model, g, err));
    declare(g, 3, SMALL_D, 4, "narrow");
    return g->failed ? err->status : CDR_OK;
}

static cdr_status declare_half(const void *model, cdr_graph *g, cdr_err *err)
{
    CDR_TRY(declare_small(model, g, err));
    declare(g, 3, SMALL_D, 6, "half");
    return g->failed ? err->status : CDR_OK;
}

FORWARD(slices_that_overlap)
{
    (void)model;
    cdr_val x = mixed(g, embed(g, io, "table"));
    cdr_val l = columns(g, x, 0, 6), r = columns(g, x, 4, 6);
    return head(g, io, cdr_linear(g, cdr_swiglu(g, l, r), cdr_graph_param(g, "half")), "head", err);
}

FORWARD(slice_of_a_parameter)
{
    (void)model;
    cdr_val x = embed(g, io, "table"), w = cdr_graph_view(g, cdr_graph_param(g, "a"), 0, cdr_type_2d(CDR_F32, 4, SMALL_D), "rows");
    return head(g, io, cdr_linear(g, cdr_linear(g, x, w), cdr_graph_param(g, "narrow")), "head", err);
}

/* ---- gradients against differences of the oracle ---- */
static cdr_compile_opts small_opts(int compute)
{
    cdr_compile_opts o = cdr_compile_defaults();
    o.T = SMALL_T;
    o.compute = o.params = compute;
    return o;
}

static cdr_status differentiated(const cdr_builder *m, const cdr_compile_opts *o, cdr_pool *pool, cdr_bundle *b, cdr_pass *p, cdr_err *err)
{
    memset(b, 0, sizeof *b);
    *p = (cdr_pass){ .o = o, .m = m, .pool = pool, .b = b, .err = err, .n_shard = 1, .n_replicate = 1 };
    CDR_TRY(cdr__build(p));
    CDR_TRY(cdr__adapt(p));
    CDR_TRY(cdr__differentiate(p));
    return p->g[CDR_PROG_STEP]->failed ? err->status : CDR_OK;
}

static double loss_at(cdr_oracle *o, cdr_pass *p, cdr_err *err)
{
    const cdr_list *l = cdr__list(p->g[CDR_PROG_STEP], CDR_L_MICRO);
    double loss = NAN;
    T_CHECK(cdr_oracle_run(o, l->calls, l->n, err) == CDR_OK);
    cdr_oracle_get(o, p->loss_acc_1, &loss);
    return loss;
}

static void put_inputs(cdr_oracle *o, const cdr_io *io)
{
    double tokens[SMALL_T], targets[SMALL_T], start[SMALL_T], pos[SMALL_T], scale = 1;
    for (int t = 0; t < SMALL_T; t++) {
        tokens[t] = (t * 5 + 1) % SMALL_W;
        targets[t] = t == 2 ? -1 : (t * 7 + 3) % SMALL_W;
        start[t] = 0;
        pos[t] = t;
    }
    cdr_oracle_put(o, io->tokens_T, tokens);
    cdr_oracle_put(o, io->targets_T, targets);
    cdr_oracle_put(o, io->start_T, start);
    cdr_oracle_put(o, io->pos_T, pos);
    cdr_oracle_put(o, io->scale_1, &scale);
}

static void gradient_is_right(cdr_status (*declare_it)(const void *, cdr_graph *, cdr_err *), cdr_status (*forward)(const void *, cdr_graph *, cdr_io *, cdr_err *))
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_builder m = { NULL, declare_it, forward };
    cdr_compile_opts opts = small_opts(CDR_F32);
    cdr_bundle b;
    cdr_pass p;
    cdr_status st = differentiated(&m, &opts, pool, &b, &p, &err);
    if (st != CDR_OK) fprintf(stderr, "  %s\n", err.text);
    T_CHECK(st == CDR_OK);
    if (st == CDR_OK) {
        cdr_oracle *o = cdr_oracle_new(p.g[CDR_PROG_STEP]);
        put_inputs(o, &p.io[CDR_PROG_STEP]);
        double w[400], v[400], g[400], moved[400];
        for (int32_t i = 0; i < b.n_params; i++) {
            int64_t n = cdr_type_elems(&b.params[i].global);
            for (int64_t e = 0; e < n; e++) w[e] = 0.4 * (double)cdr_rng_normal((cdr_rng_key){ 3, (uint64_t)i, 0 }, (uint64_t)e);
            cdr_oracle_put(o, b.params[i].shard, w);
        }
        T_CHECK(isfinite(loss_at(o, &p, &err)));
        for (int32_t i = 0; i < b.n_params; i++) {
            if (b.params[i].train == CDR_FROZEN) continue;
            int64_t n = cdr_type_elems(&b.params[i].global);
            double h = 1e-5, along = 0, side[2];
            loss_at(o, &p, &err);
            cdr_oracle_get(o, b.params[i].grad, g);
            cdr_oracle_get(o, b.params[i].shard, w);
            for (int64_t e = 0; e < n; e++) v[e] = (double)cdr_rng_normal((cdr_rng_key){ 4, (uint64_t)i, 0 }, (uint64_t)e);
            for (int64_t e = 0; e < n; e++) along += g[e] * v[e];
            for (int s = 0; s < 2; s++) {
                for (int64_t e = 0; e < n; e++) moved[e] = w[e] + (s ? h : -h) * v[e];
                cdr_oracle_put(o, b.params[i].shard, moved);
                side[s] = loss_at(o, &p, &err);
            }
            cdr_oracle_put(o, b.params[i].shard, w);
            double slope = (side[1] - side[0]) / (2 * h);
            if (!(fabs(slope - along) <= 1e-6 * (1 + fabs(slope)))) fprintf(stderr, "  parameter %s\n", b.params[i].name);
            T_NEAR(along, slope, 1e-6 * (1 + fabs(slope)));
            T_CHECK(fabs(slope) > 1e-9);
        }
        cdr_oracle_free(o);
    }
    cdr_pool_free(pool);
}

static void gradients_agree_with_differences(void)
{
    gradient_is_right(declare_small, used_twice_by_one_call);
    gradient_is_right(declare_small, adds_in_a_row);
    gradient_is_right(declare_views, views_of_views);
    gradient_is_right(declare_half, one_slice_named_twice);
    gradient_is_right(declare_small, sum_of_two_parameters);
    gradient_is_right(declare_tied, tied);
}

static void compile_fails(cdr_status (*declare_it)(const void *, cdr_graph *, cdr_err *), cdr_status (*forward)(const void *, cdr_graph *, cdr_io *, cdr_err *),
                          const char *text)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_builder m = { NULL, declare_it, forward };
    cdr_compile_opts o = small_opts(CDR_F32);
    cdr_bundle b;
    T_CHECK(cdr_compile(&o, &m, pool, &b, &err) != CDR_OK);
    T_HAS(err.text, text);
    cdr_pool_free(pool);
}

static void what_has_no_gradient_is_refused(void)
{
    compile_fails(declare_half, slices_that_leave_columns_out, "do not tile");
    compile_fails(declare_half, slices_that_overlap, "overlap in part");
    compile_fails(declare_views, slice_of_a_parameter, "view rows of a parameter");
    compile_fails(declare_tied, adds_in_a_row, "turn is trained but no loss depends on it");
}

/* "It is rounded once, where it is consumed": in a BF16 model what is added to an F32 gradient was not rounded before. */
static void no_part_of_a_sum_is_rounded(cdr_status (*declare_it)(const void *, cdr_graph *, cdr_err *),
                                        cdr_status (*forward)(const void *, cdr_graph *, cdr_io *, cdr_err *))
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_builder m = { NULL, declare_it, forward };
    cdr_compile_opts o = small_opts(CDR_BF16);
    cdr_bundle b;
    T_CHECK(cdr_compile(&o, &m, pool, &b, &err) == CDR_OK);
    const cdr_program *p = &b.progs[CDR_PROG_STEP];
    int n = 0;
    for (int32_t i = 0; i < p->n_calls; i++) {
        const cdr_call *c = &p->calls[i];
        if (cdr_ops[c->op] != &cdr_op_copy || c->phase != CDR_P_BWD || !c->add) continue;
        n++;
        T_CHECK(cdr_value_at(&b, p, p->operands[c->arg])->t.dtype == CDR_F32);
    }
    T_CHECK(n > 0);
    cdr_pool_free(pool);
}

static void sums_are_rounded_once(void)
{
    no_part_of_a_sum_is_rounded(declare_small, used_twice_by_one_call);
    no_part_of_a_sum_is_rounded(declare_half, one_slice_named_twice);
}

/* ---- recompute ---- */
static double loss_and_gradients(const cdr_builder *m, cdr_compile_opts o, double *sum, int *n_again)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_bundle b;
    cdr_device *d = NULL;
    cdr_exec *x = NULL;
    double metrics[CDR_N_METRIC] = { NAN };
    T_CHECK(cdr_compile(&o, m, pool, &b, &err) == CDR_OK);
    T_CHECK(cdr_device_open(CDR_DEV_CPU, 0, 1, &d, &err) == CDR_OK);
    cdr_exec_opts eo = { .bundle = &b, .device = d, .mesh = &o.mesh, .poison = true };
    T_CHECK(cdr_exec_open(&eo, &x, &err) == CDR_OK);
    T_CHECK(cdr_exec_init(x, 5, &err) == CDR_OK);
    int32_t a[4][SMALL_T], micro = 0;
    int64_t count[8] = { SMALL_T };
    for (int32_t t = 0; t < SMALL_T; t++) {
        a[0][t] = (t * 5 + 1) % SMALL_W;
        a[1][t] = (t * 7 + 3) % SMALL_W;
        a[2][t] = 0;
        a[3][t] = t;
    }
    static const char *const name[] = { "tokens", "targets", "start", "pos" };
    for (int k = 0; k < 4; k++) cdr_exec_put(x, CDR_PROG_STEP, name[k], 0, a[k], sizeof a[k]);
    cdr_exec_put(x, CDR_PROG_STEP, "micro", 0, &micro, sizeof micro);
    cdr_exec_put(x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    T_CHECK(cdr_exec_run(x, CDR_PROG_STEP, &err) == CDR_OK);
    cdr_exec_get(x, CDR_PROG_STEP, "metrics", 0, metrics, sizeof metrics);
    *sum = metrics[CDR_METRIC_NORM];
    *n_again = 0;
    for (int32_t i = 0; i < b.progs[CDR_PROG_STEP].n_calls; i++) *n_again += b.progs[CDR_PROG_STEP].calls[i].phase == CDR_P_AGAIN;
    cdr_exec_close(x);
    d->ops->close(d);
    cdr_pool_free(pool);
    return metrics[CDR_METRIC_LOSS];
}

/* The views and what they are views of lie in one layer, so the backward reads views of views of clones. */
FORWARD(layer_with_views)
{
    cdr_graph_enter(g, 0, "layers.0");
    return views_of_views(model, g, io, err);
}

static void recompute_sees_through_views(void)
{
    cdr_builder m = { NULL, declare_views, layer_with_views };
    cdr_compile_opts o = small_opts(CDR_F32);
    double norm[2];
    int n_again[2];
    double keep = loss_and_gradients(&m, o, &norm[0], &n_again[0]);
    o.policy = CDR_POLICY_RECOMPUTE;
    double again = loss_and_gradients(&m, o, &norm[1], &n_again[1]);
    T_CHECK(isfinite(keep) && keep == again && norm[0] > 0 && norm[0] == norm[1]);
    T_CHECK(n_again[0] == 0 && n_again[1] > 4);
}

/* Nothing but the inputs of a recomputed layer is kept, whatever views it is read through. */
static void recompute_keeps_nothing_alive_through_views(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_builder m = { NULL, declare_views, layer_with_views };
    cdr_compile_opts o = small_opts(CDR_F32);
    cdr_bundle b;
    o.policy = CDR_POLICY_RECOMPUTE;
    T_CHECK(cdr_compile(&o, &m, pool, &b, &err) == CDR_OK);
    const cdr_program *p = &b.progs[CDR_PROG_STEP];
    bool *made = cdr_pool_alloc(pool, (size_t)(b.n_shared + p->n_vals));
    int n = 0;
    for (int32_t i = 0; i < p->n_calls; i++) {
        const cdr_call *c = &p->calls[i];
        for (int k = 0; k < c->n_in && c->phase == CDR_P_BWD && c->layer == 0; k++) {
            cdr_val v = p->operands[c->arg + (uint32_t)k];
            bool kept = v != CDR_NONE && made[cdr_value_root(&b, p, v, NULL)];
            if (kept) fprintf(stderr, "  %s reads %s\n", p->strings + c->origin, cdr_value_name(&b, p, v));
            n += kept;
        }
        for (int k = c->n_in; k < c->n_in + c->n_out && c->phase == CDR_P_FWD && c->layer == 0; k++) {
            cdr_val v = p->operands[c->arg + (uint32_t)k];
            if (v != CDR_NONE) made[cdr_value_root(&b, p, v, NULL)] = true;
        }
    }
    T_CHECK(n == 0);
    cdr_pool_free(pool);
}

/* ---- what verify must see: each fault is planted into a right program ---- */
static cdr_status compiled(cdr_compile_opts o, cdr_pool *pool, cdr_bundle *b)
{
    cdr_err err = { CDR_OK, "", "" };
    cdr_builder m = { NULL, declare_small, adds_in_a_row };
    cdr_status st = cdr_compile(&o, &m, pool, b, &err);
    if (st != CDR_OK) fprintf(stderr, "  %s\n", err.text);
    return st;
}

static bool refused(const cdr_bundle *b)
{
    cdr_err e = { CDR_OK, "", "" };
    return cdr_verify(b, &e) == CDR_EBUG;
}

/* Every own value of program q of a scope, one after the other, on the bytes of `at`: is each one seen? */
static void moved_is_seen(cdr_bundle *b, cdr_prog_id q, cdr_scope scope, int64_t at)
{
    cdr_program *p = &b->progs[q];
    int tried = 0, caught = 0;
    for (int32_t i = 0; i < p->n_vals; i++) {
        cdr_value *v = &p->vals[i];
        if (v->scope != scope || v->alias != CDR_NONE || v->offset < 0 || v->offset == at) continue;
        int64_t keep = v->offset;
        v->offset = at;
        tried++;
        caught += refused(b);
        v->offset = keep;
    }
    T_CHECK(tried > 0 && caught == tried);
}

static void verify_sees_bytes_that_are_taken(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_bundle b;
    T_CHECK(compiled(small_opts(CDR_F32), pool, &b) == CDR_OK);
    int32_t a = cdr_param_find(&b, "a");
    moved_is_seen(&b, CDR_PROG_EVAL, CDR_TURN, b.shared[b.params[a].m].offset);           /* a state that evaluation never touches */
    moved_is_seen(&b, CDR_PROG_STEP, CDR_TURN, b.shared[b.params[a].v].offset);
    moved_is_seen(&b, CDR_PROG_STEP, CDR_STEP, b.shared[b.params[a].v].offset);
    moved_is_seen(&b, CDR_PROG_STEP, CDR_TURN, cdr_value_at(&b, &b.progs[CDR_PROG_STEP], b.params[a].grad)->offset);
    T_CHECK(!refused(&b));
    cdr_pool_free(pool);
}

/* scratch and outputs on an input of the same call that nobody reads later */
static void verify_sees_operands_of_one_call_overlap(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_bundle b;
    T_CHECK(compiled(small_opts(CDR_F32), pool, &b) == CDR_OK);
    cdr_program *p = &b.progs[CDR_PROG_STEP];
    int tried = 0, caught = 0;
    for (int32_t i = 0; i < p->n_calls; i++) {
        const cdr_call *c = &p->calls[i];
        cdr_val in = c->n_in ? p->operands[c->arg] : CDR_NONE, on[2] = { c->work, c->n_out ? p->operands[c->arg + c->n_in] : CDR_NONE };
        if (in == CDR_NONE || in < b.n_shared || cdr_value_at(&b, p, in)->scope != CDR_TURN) continue;
        for (int k = 0; k < 2; k++) {
            if (on[k] == CDR_NONE || on[k] < b.n_shared || on[k] == in) continue;
            cdr_value *v = cdr_value_at(&b, p, on[k]);
            if (v->scope != CDR_TURN || v->alias != CDR_NONE) continue;
            int64_t keep = v->offset;
            v->offset = cdr_value_at(&b, p, in)->offset;
            tried++;
            caught += refused(&b);
            v->offset = keep;
        }
    }
    T_CHECK(tried > 10 && caught == tried);
    cdr_pool_free(pool);
}

static void verify_sees_a_gradient_that_nobody_writes(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_bundle b;
    T_CHECK(compiled(small_opts(CDR_F32), pool, &b) == CDR_OK);
    cdr_program *p = &b.progs[CDR_PROG_STEP];
    cdr_val from = b.params[cdr_param_find(&b, "a")].grad, to = b.params[cdr_param_find(&b, "b")].grad;
    int n = 0;
    for (int32_t i = 0; i < p->n_calls; i++)
        for (uint32_t k = p->calls[i].n_in; p->calls[i].phase == CDR_P_BWD && k < (uint32_t)p->calls[i].n_in + p->calls[i].n_out; k++)
            if (p->operands[p->calls[i].arg + k] == from) {
                p->operands[p->calls[i].arg + k] = to;
                n++;
            }
    T_CHECK(n > 0 && refused(&b));
    cdr_pool_free(pool);
}

static void verify_sees_two_micro_batches_in_one_copy(void)
{
    static const cdr_turn major[] = { { 0, 0 }, { 0, 1 }, { 1, 1 }, { 1, 0 } };
    cdr_pool *pool = cdr_pool_new();
    cdr_bundle b;
    cdr_compile_opts o = small_opts(CDR_F32);
    o.n_micro = 2;
    o.micro_split = 1;
    o.turns = major;
    o.n_turns = CDR_COUNT(major);
    T_CHECK(compiled(o, pool, &b) == CDR_OK);
    cdr_program *p = &b.progs[CDR_PROG_STEP];
    int tried = 0, caught = 0;
    for (int32_t i = 0; i < p->n_vals; i++) {
        cdr_value *v = &p->vals[i];
        if (v->scope != CDR_TURN || v->alias != CDR_NONE || v->n_inst != 2) continue;
        v->n_inst = 1;
        tried++;
        caught += refused(&b);
        v->n_inst = 2;
    }
    T_CHECK(tried > 5 && caught == tried);
    cdr_pool_free(pool);
}

/* ---- layouts: what a unit may hold ---- */
enum { ODD_BIG = CDR_GATHER_MAX + 1, ODD_SMALL = 30, ODD_WIDE = 1366, ODD_LONG = 10923, ODD_FEW = 6, ODD_D = 64 };

/* Two units hold more tensors than a collective takes; `few` has fewer rows than 8 ranks, whose shares are uneven;
 * `table` is read by the first and by the last unit; three parameters are added before they are used. */
static cdr_status declare_odd(const void *model, cdr_graph *g, cdr_err *err)
{
    char name[32];
    (void)model;
    declare(g, 0, TINY_VOCAB, ODD_D, "table");
    for (int i = 0; i < ODD_SMALL; i++) {
        snprintf(name, sizeof name, "gain%d", i);
        declare(g, 1, ODD_D, 0, name);
    }
    for (int i = 0; i < ODD_BIG; i++) {
        snprintf(name, sizeof name, "big%d", i);
        declare(g, 2, TINY_T, ODD_WIDE, name);
    }
    declare(g, 2, ODD_D, ODD_WIDE, "narrow");
    declare(g, 3, TINY_T, ODD_LONG, "long");
    declare(g, 3, ODD_FEW, ODD_LONG, "few");
    declare(g, 3, ODD_D, ODD_FEW, "many");
    declare(g, 3, ODD_D, ODD_FEW, "more");
    declare(g, 3, ODD_D, ODD_FEW, "most");
    return g->failed ? err->status : CDR_OK;
}

FORWARD(odd)
{
    (void)model;
    cdr_val h = embed(g, io, "table"), sum = CDR_NONE;
    cdr_graph_enter(g, 0, "layers.0");
    for (int i = 0; i < ODD_SMALL; i++) h = cdr_rmsnorm(g, h, cdr_graph_param(g, "gain%d", i), 1e-5f);
    cdr_graph_enter(g, 1, "layers.1");
    for (int i = 0; i < ODD_BIG; i++) {
        cdr_val row = cdr_embedding(g, io->pos_T, cdr_graph_param(g, "big%d", i), CDR_NONE, CDR_NONE);
        sum = i == 0 ? row : cdr_add(g, sum, row);
    }
    h = cdr_add(g, h, cdr_linear(g, sum, cdr_graph_param(g, "narrow")));
    cdr_graph_enter(g, 2, "layers.2");
    cdr_val w = cdr_add(g, cdr_add(g, cdr_graph_param(g, "many"), cdr_graph_param(g, "more")), cdr_graph_param(g, "most"));
    cdr_val rows = cdr_embedding(g, io->pos_T, cdr_graph_param(g, "long"), CDR_NONE, CDR_NONE);
    h = cdr_add(g, h, cdr_linear(g, cdr_linear(g, rows, cdr_graph_param(g, "few")), w));
    cdr_graph_enter(g, -1, "%s", "");
    return head(g, io, h, "table", err);
}

static void odd_units_have_the_same_bits_on_every_layout(void)
{
    static const cdr_builder builder = { NULL, declare_odd, odd };
    static const struct { int replicate, shard, prefetch, policy; } layout[] = {
        { 1, 8, 1, CDR_POLICY_KEEP }, { 2, 4, 0, CDR_POLICY_RECOMPUTE }, { 1, 2, 2, CDR_POLICY_KEEP }, { 1, 1, 1, CDR_POLICY_RECOMPUTE },
        { 4, 2, 3, CDR_POLICY_KEEP } };
    tiny_result *ref = tiny_shared(), *got = tiny_shared();
    tiny_run c = tiny_default();
    c.builder = &builder;
    T_CHECK(tiny_go(&c, ref) == 0);
    T_CHECK(ref->n_weights > 7000000);
    for (int s = 0; s < TINY_STEPS; s++) T_CHECK(isfinite(ref->loss[s]) && ref->norm[s] > 0 && ref->ok[s] == 1);
    for (int i = 0; i < (t_quick() ? 2 : CDR_COUNT(layout)); i++) {
        c.replicate = layout[i].replicate;
        c.shard = layout[i].shard;
        c.n_micro = 8 / (c.replicate * c.shard);
        c.prefetch = layout[i].prefetch;
        c.policy = layout[i].policy;
        c.poison = true;
        c.random_order = i % 2 ? 77 : 0;
        T_CHECK(tiny_go(&c, got) == 0);
        T_CHECK(tiny_equal(ref, got));
    }
    munmap(ref, sizeof *ref);
    munmap(got, sizeof *got);
}

static void micro_batches_have_a_limit(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_builder m = { NULL, declare_small, adds_in_a_row };
    cdr_compile_opts o = small_opts(CDR_F32);
    cdr_bundle b;
    o.n_micro = 16384;
    T_CHECK(cdr_compile(&o, &m, pool, &b, &err) == CDR_OK);
    o.n_micro = 32768;
    T_CHECK(cdr_compile(&o, &m, pool, &b, &err) == CDR_EUSER);
    T_HAS(err.text, "32768 micro-batches a rank, at most 16384");
    cdr_pool_free(pool);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(gradients_agree_with_differences);
    T_RUN(sums_are_rounded_once);
    T_RUN(what_has_no_gradient_is_refused);
    T_RUN(micro_batches_have_a_limit);
    T_RUN(odd_units_have_the_same_bits_on_every_layout);
    T_RUN(recompute_sees_through_views);
    T_RUN(recompute_keeps_nothing_alive_through_views);
    T_RUN(verify_sees_bytes_that_are_taken);
    T_RUN(verify_sees_operands_of_one_call_overlap);
    T_RUN(verify_sees_a_gradient_that_nobody_writes);
    T_RUN(verify_sees_two_micro_batches_in_one_copy);
    return t_end();
}
