/* build: the model's forward, for one device, once for each program; the step's inputs and its begin segment. */
#include "compile/pass.h"
#include "ops/count/count.h"
#include "ops/fill/fill.h"
#include "ops/gather/gather.h"
#include <fnmatch.h>

static cdr_val input(cdr_graph *g, const char *name, int dtype, int64_t n, int n_inst)
{
    cdr_val v = cdr_graph_value(g, cdr_type_1d(dtype, n), CDR_STEP, CDR_C_INPUT, name);
    if (v == CDR_NONE) return v;
    cdr_value *x = cdr_graph_at(g, v);
    x->flags |= CDR_F_INPUT;
    x->n_inst = (int16_t)n_inst;
    return v;
}

static cdr_io make_io(const cdr_pass *p, cdr_graph *g, cdr_mode mode, int64_t T, int n_inst)
{
    const cdr_compile_opts *o = p->o;
    cdr_io io = { .mode = mode, .T = T, .S = mode == CDR_MODE_GENERATE ? o->gen_S : T, .compute = o->compute,
                  .loss_chunk_tokens = o->loss_chunk_tokens, .loss_chunk_vocab = o->loss_chunk_vocab,
                  .targets_T = CDR_NONE, .weights_T = CDR_NONE, .scale_1 = CDR_NONE,
                  .scale_rows_1 = CDR_NONE, .micro_1 = CDR_NONE, .n_live_1 = CDR_NONE, .dense_1 = p->dense_1,
                  .loss_1 = CDR_NONE, .logits_TW = CDR_NONE, .sequence = o->sequence > 0 ? o->sequence : T, .core = o->core,
                  .balance = (cdr_balance_kind)o->balance, .balance_own = o->balance_own, .balance_bins = o->balance_bins,
                  .aux_coef = o->aux_coef, .indexer_coef = o->indexer_coef, .indexer_train = o->indexer_train,
                  .capacity = o->capacity, .keep_gate_up = o->keep_gate_up };
    io.tokens_T = input(g, "tokens", CDR_I32, T, n_inst);
    io.start_T = input(g, "start", CDR_I32, T, n_inst);
    io.pos_T = input(g, "pos", CDR_I32, T, n_inst);
    if (mode == CDR_MODE_GENERATE) io.n_live_1 = input(g, "n_live", CDR_I32, 1, 1);
    else io.targets_T = input(g, "targets", CDR_I32, T, n_inst);
    if (mode != CDR_MODE_GENERATE && o->loss_weights) io.weights_T = input(g, "weights", CDR_F32, T, n_inst);
    return io;
}

static cdr_status forward(cdr_pass *p, cdr_prog_id q, const char *list)
{
    cdr_graph *g = p->g[q];
    cdr_graph_list(g, list);
    g->phase = CDR_P_FWD;
    CDR_TRY(p->m->forward(p->m->model, g, &p->io[q], p->err));
    cdr_graph_enter(g, -1, "%s", "");
    return g->failed ? p->err->status : CDR_OK;
}

static void freeze_one(cdr_pass *p, int32_t i)
{
    p->b->params[i].train = CDR_FROZEN;
    p->b->shared[p->b->params[i].shard].cls = CDR_C_FROZEN;
}

/* Patterns are names most of the time, and thousands of them where an adapter trains: a name is looked up. */
static cdr_status freeze(cdr_pass *p)
{
    for (int k = 0; k < p->o->n_freeze; k++) {
        const char *pattern = p->o->freeze[k];
        int32_t one = cdr_param_find(p->b, pattern);
        int n = one >= 0;
        if (one >= 0) freeze_one(p, one);
        for (int32_t i = 0; i < p->b->n_params && one < 0; i++) {
            if (fnmatch(pattern, p->b->params[i].name, 0) != 0) continue;
            freeze_one(p, i);
            n++;
        }
        if (n == 0) CDR_FAIL_ID(p->err, CDR_EUSER, "recipe.freeze", "train.freeze: pattern \"%s\" matches no parameter", pattern);
    }
    return CDR_OK;
}

/* Stacks of routed experts that do not train lie in memory as the run says, or as they are stored; shapes stay. */
static cdr_status experts_dtype(cdr_pass *p)
{
    const int asked = p->o->experts_dtype, block = cdr_dtype_row(CDR_MXFP4)->block_elems;
    int n = 0;
    for (int32_t i = 0; i < p->b->n_params; i++) {
        const cdr_param *q = &p->b->params[i];
        if (q->place != CDR_PLACE_EXPERT || q->global.n_dim != 3) continue;
        n++;
        if (q->train != CDR_FROZEN && asked == CDR_MXFP4)
            CDR_FAIL_ID(p->err, CDR_EUSER, "precision.experts", "precision.experts: mxfp4, but %s trains, and a packed weight has no room for an update. Freeze the "
                        "experts (train.freeze=[experts]) or set precision.experts=bf16", q->name);
        if (q->train != CDR_FROZEN || (asked < 0 && !q->packed)) continue;
        const int dtype = asked < 0 ? CDR_MXFP4 : asked;
        if (dtype == CDR_MXFP4 && cdr_type_cols(&q->global) % block != 0)
            CDR_FAIL_ID(p->err, CDR_EUSER, "precision.experts", "precision.experts: mxfp4, but %s has rows of %lld, and MXFP4 packs %d at a time. Set "
                        "precision.experts=bf16", q->name, (long long)cdr_type_cols(&q->global), block);
        p->b->shared[q->shard].t.dtype = (uint8_t)dtype;
    }
    if (n == 0 && asked == CDR_MXFP4)
        CDR_FAIL_ID(p->err, CDR_EUSER, "precision.experts", "precision.experts: mxfp4, but the model has no routed experts. Leave precision.experts=stored");
    return CDR_OK;
}

/* RUN values are declared by the step graph alone; the other graphs see them through the bundle. */
static cdr_status declare(cdr_pass *p, cdr_graph *g)
{
    CDR_TRY(p->m->declare(p->m->model, g, p->err));
    if (g->failed) return p->err->status;
    cdr_graph_enter(g, -1, "%s", "");
    for (int32_t i = 0; i < p->b->n_params; i++)
        p->b->shared[p->b->params[i].shard].t.dtype = p->b->params[i].f32 ? CDR_F32 : (uint8_t)p->o->compute;
    CDR_TRY(freeze(p));
    CDR_TRY(experts_dtype(p));
    p->dense_1 = cdr_graph_value(g, cdr_type_1d(CDR_I32, 1), CDR_RUN, CDR_C_STATE, "dsa_dense");
    p->ok_1 = cdr_graph_value(g, cdr_type_1d(CDR_I32, 1), CDR_RUN, CDR_C_STATE, "ok");
    return CDR_OK;
}

/* Counters of the routers are zero at the beginning of a step, and what tells their operators to add is one. */
static cdr_status clear_counters(cdr_pass *p, cdr_graph *g, const cdr_io *io)
{
    if (io->n_routers == 0) return g->failed ? p->err->status : CDR_OK;
    cdr__list_set_current(g, CDR_L_BEGIN);
    cdr_fill_value(g, io->micro_1, 1);
    for (int64_t i = 0; i < io->n_routers; i++) {
        cdr_graph_enter(g, -1, "layers.%d.moe", io->routers[i].layer);
        cdr_fill_value(g, io->routers[i].load_E, 0);
        cdr_fill_value(g, io->routers[i].hist_EB, 0);
    }
    cdr_graph_enter(g, -1, "%s", "");
    cdr__list_set_current(g, CDR_L_MICRO);
    return g->failed ? p->err->status : CDR_OK;
}

static cdr_status build_step(cdr_pass *p, cdr_graph *g)
{
    CDR_TRY(declare(p, g));
    if (p->o->infer_only) return CDR_OK;
    g->scope = CDR_STEP;
    cdr_graph_list(g, CDR_L_BEGIN);
    p->hyper_8 = input(g, "hyper", CDR_F32, CDR_N_HYPER, 1);
    p->count_8 = input(g, "count", CDR_I64, CDR_COUNT_WORDS, 1);
    p->micro_1 = input(g, "micro", CDR_I32, 1, p->o->n_micro);
    p->io[CDR_PROG_STEP] = make_io(p, g, CDR_MODE_TRAIN, p->o->T, p->o->n_micro);
    cdr_io *io = &p->io[CDR_PROG_STEP];
    p->total_8 = p->count_8;
    io->micro_1 = cdr_graph_value(g, cdr_type_1d(CDR_I32, 1), CDR_STEP, CDR_C_INPUT, "one");
    CDR_TRY(cdr_count(g, p->o->mesh.world, p->count_8, &p->total_8, &io->scale_1, &io->scale_rows_1));
    g->scope = CDR_TURN;
    CDR_TRY(forward(p, CDR_PROG_STEP, CDR_L_MICRO));
    return clear_counters(p, g, io);
}

/* The loss sum of each rank, by rank: the host adds them in shard order. */
static cdr_status build_eval(cdr_pass *p, cdr_graph *g)
{
    g->scope = CDR_TURN;
    p->io[CDR_PROG_EVAL] = make_io(p, g, CDR_MODE_EVAL, p->o->T, 1);
    CDR_TRY(forward(p, CDR_PROG_EVAL, CDR_L_MICRO));
    int64_t world = p->o->mesh.world;
    cdr_val sums = cdr_graph_value(g, cdr_type_2d(CDR_F64, world, 1), CDR_STEP, CDR_C_INPUT, "sums");
    cdr_val mine = world > 1 ? cdr_graph_value(g, cdr_type_2d(CDR_F64, 1, 1), CDR_TURN, CDR_C_ACT, "mine") : sums;
    cdr__replace_operand(g, cdr__list(g, CDR_L_MICRO), p->io[CDR_PROG_EVAL].loss_1, mine);
    return world > 1 ? cdr_gather(g, CDR_COMM_WORLD, (int)world, 1, &mine, &world, &sums) : CDR_OK;
}

static cdr_status build_generate(cdr_pass *p, cdr_graph *g)
{
    g->scope = CDR_TURN;
    p->io[CDR_PROG_GENERATE] = make_io(p, g, CDR_MODE_GENERATE, p->o->gen_T, 1);
    CDR_TRY(forward(p, CDR_PROG_GENERATE, CDR_L_MICRO));
    cdr_val turn = p->io[CDR_PROG_GENERATE].logits_TW;
    cdr_val logits = cdr_graph_value(g, *cdr_graph_type(g, turn), CDR_STEP, CDR_C_INPUT, "logits");
    cdr__replace_operand(g, cdr__list(g, CDR_L_MICRO), turn, logits);
    return CDR_OK;
}

cdr_status cdr__build(cdr_pass *p)
{
    static const char *const name[CDR_N_PROGS] = { "step", "eval", "generate", "probe", "snapshot" };
    for (int q = 0; q < CDR_N_PROGS; q++)
        if (q != CDR_PROG_PROBE && (q != CDR_PROG_GENERATE || p->o->gen_T > 0)) p->g[q] = cdr_graph_new(p->pool, p->b, name[q], p->err);
    CDR_TRY(build_step(p, p->g[CDR_PROG_STEP]));
    CDR_TRY(build_eval(p, p->g[CDR_PROG_EVAL]));
    if (p->g[CDR_PROG_GENERATE]) CDR_TRY(build_generate(p, p->g[CDR_PROG_GENERATE]));
    return CDR_OK;
}
