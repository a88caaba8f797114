/* lora_rig.h: a small Kimi K3.1 with adapters, trained for a few steps in processes of its own, for the tests of LoRA.
 *
 *   lora_run c = lora_default();
 *   c.shard = 2;
 *   c.n_micro = 2;
 *   T_CHECK(lora_go(&c, r) == 0);                  // r->loss, r->param: what trained, its states, what did not
 */
#ifndef CADRE_LORA_RIG_H
#define CADRE_LORA_RIG_H
#include "models/models.h"
#include "run/run.h"
#include "forked.h"
#include "mapped_rig.h"

enum { LORA_T = 96, LORA_STEPS = 10, LORA_VOCAB = 64, LORA_SEED = 5, LORA_PARAMS = 320, LORA_FLOATS = 12000000, LORA_EXPERTS = 8, LORA_LAYERS = 4 };

static cdr_pair lora_sizes[] = { { "hidden", "32" }, { "vocab", "64" }, { "n_layers", "4" }, { "full_layers", "[2, 4]" }, { "attn_block", "2" },
    { "kda.heads", "2" }, { "kda.dim", "16" }, { "mla.heads", "2" }, { "mla.q_lora", "16" }, { "mla.kv_lora", "16" }, { "mla.nope", "8" }, { "mla.ext", "8" },
    { "mla.v", "16" }, { "index.heads", "2" }, { "index.dim", "8" }, { "index.top_k", "12" }, { "glu.width", "48" }, { "moe.experts", "8" }, { "moe.top_k", "2" },
    { "moe.latent", "32" }, { "moe.width", "32" } };
static cdr_pair lora_wide_sizes[CDR_COUNT(lora_sizes)];       /* as the run wants them */

typedef struct {
    int replicate, shard, expert, n_micro, n_steps, n_threads, policy, compute, head;
    double dispatch_factor;
    const char *groups[8];        /* adapters on the linears of these groups; NULL ends */
    bool experts, outer, indexer_train;       /* outer: those of experts are shared-outer */
    int layer;                    /* -1: all layers */
    int rank, expert_rank, init; float scale;
    bool none;                    /* no adapters and nothing frozen: the base alone */
    bool filled;                  /* B is drawn instead of zero */
    bool merged;                  /* no adapters; W + scale B A, of the same draws, in place of W, and all trains */
    bool wide, poison, no_clip, packed;       /* packed: experts in MXFP4, frozen */
    bool balanced;                /* redundant experts */
    const char *latent, *expert_width;        /* NULL: as in lora_sizes */
    bool rows_only;               /* no weight lies in panels */
    bool map;                     /* packed experts stay in a mapped file */
} lora_run;

typedef struct { char name[112]; bool adapter, frozen; int64_t n, at; } lora_param;     /* at: weights [n], then m [n], v [n], in data */
typedef struct {
    double loss[LORA_STEPS], norm[LORA_STEPS], eval[2];       /* eval: before and after the steps */
    float logits[16 * LORA_VOCAB];                            /* before the steps */
    int32_t load[LORA_LAYERS * LORA_EXPERTS];                 /* of the last step */
    lora_param param[LORA_PARAMS]; int n_params, n_calls, n_exchanges, n_panels;       /* exchanges: calls of the step that send rows to other ranks;
                                                                                                      panels: weights that lie so */
    int64_t n_floats, slab_bytes, planned_bytes, n_mapped;     /* mapped: stacks that stay in a file */
    float data[LORA_FLOATS];
} lora_result;

static inline lora_result *lora_shared(void) { return forked_memory(sizeof(lora_result)); }

static inline lora_run lora_default(void)
{
    return (lora_run){ .replicate = 1, .shard = 1, .expert = 1, .n_micro = 4, .n_steps = 3, .n_threads = 1, .policy = CDR_POLICY_KEEP, .compute = CDR_F32,
                       .dispatch_factor = 1.25, .groups = { "all_linear" }, .experts = true, .layer = -1, .rank = 4, .expert_rank = 2, .scale = 2 };
}

/* Tokens of logical shard id of a step: three packed documents, idle rows behind them; every fourth shard trains no token. */
static inline void lora_batch(int64_t step, int64_t id, int32_t a[4][LORA_T], int64_t count[8])
{
    cdr_rng_key k = { 13, (uint64_t)step, (uint64_t)id };
    int32_t cut1 = 20 + (int32_t)(cdr_rng_u64(k, 1000) % 20), cut2 = cut1 + 1, end = 70 + (int32_t)(cdr_rng_u64(k, 1001) % 26);
    for (int32_t t = 0; t < LORA_T; t++) {
        a[0][t] = t < end ? (int32_t)(cdr_rng_u64(k, (uint64_t)t) % LORA_VOCAB) : 0;
        a[2][t] = t >= end ? t + 1 : t < cut1 ? 0 : t < cut2 ? cut1 : cut2;
        a[3][t] = t;
    }
    for (int32_t t = 0; t < LORA_T; t++) {
        bool last = t + 1 >= end || a[2][t + 1] != a[2][t] || id % 4 == 3;
        a[1][t] = last ? -1 : (a[0][t] * 3 + 1) % LORA_VOCAB;
        count[0] += !last;
        count[4] += t < end;
    }
}

static inline cdr_compile_opts lora_opts(const lora_run *c, int rank)
{
    cdr_compile_opts o = cdr_compile_defaults();
    o.T = o.sequence = LORA_T;
    o.gen_T = 16;
    o.gen_S = LORA_T;
    o.n_micro = c->n_micro;
    o.mesh = (cdr_mesh){ .size = { c->replicate, c->shard, 1 }, .rank = { rank / c->shard, rank % c->shard, 0 }, .world = c->replicate * c->shard, .world_rank = rank,
                         .expert = c->expert };
    o.compute = o.params = c->compute;
    o.loss_chunk_tokens = 32;
    o.policy = (cdr_policy_kind)c->policy;
    o.isa = cdr_cpu_isa(NULL);
    o.n_threads = c->n_threads;
    o.balance = CDR_BALANCE_NONE;
    o.balance_bins = 1000;
    o.indexer_train = c->indexer_train;
    o.indexer_coef = 1;
    o.max_grad_norm = c->no_clip ? 0 : 0.02;
    o.parallel.dispatch_factor = c->dispatch_factor;
    o.parallel.head = c->head;
    o.parallel.balanced = c->balanced;
    o.adapter_init = c->init;
    if (c->packed) o.experts_dtype = CDR_MXFP4;
    o.rows_only = c->rows_only;
    o.map_experts = c->map;
    return o;
}

/* The adapters that the run asks for, and every parameter of the model in freeze. */
static inline void lora_choose(const lora_run *c, const cdr_model *m, cdr_pool *pool, cdr_compile_opts *o)
{
    int64_t n = cdr_model_params(m);
    cdr_adapter *a = cdr_pool_alloc(pool, sizeof *a * (size_t)n);
    const char **freeze = cdr_pool_alloc(pool, sizeof *freeze * (size_t)n);
    for (int64_t i = 0; i < n && !c->none; i++) {
        cdr_model_part p = cdr_model_param_part(m, i);
        bool expert = cdr_model_in_group(m, i, "experts"), indexer = cdr_model_in_group(m, i, "indexer"), in = expert && c->experts;
        for (int k = 0; k < CDR_COUNT(c->groups) && c->groups[k]; k++)
            in = in || (cdr_model_in_group(m, i, c->groups[k]) && cdr_model_in_group(m, i, "all_linear") && (!indexer || strcmp(c->groups[k], "indexer") == 0));
        freeze[o->n_freeze++] = cdr_model_param(m, i);
        if (in && (c->layer < 0 || p.layer == c->layer))
            a[o->n_adapters++] = (cdr_adapter){ cdr_model_param(m, i), expert ? c->expert_rank : c->rank, c->scale,
                                                !expert || !c->outer ? CDR_ADAPTER_EACH : strstr(p.part, "down") ? CDR_ADAPTER_SHARED_B : CDR_ADAPTER_SHARED_A };
    }
    for (int64_t i = 0; i < n && c->none && c->packed; i++)
        if (cdr_model_in_group(m, i, "experts")) freeze[o->n_freeze++] = cdr_model_param(m, i);
    if (c->merged)                                            /* an indexer that no loss trains stays frozen */
        for (int64_t i = 0, k = o->n_freeze = 0; i < n; i++)
            if (cdr_model_in_group(m, i, "indexer")) freeze[k] = cdr_model_param(m, i), o->n_freeze = (int)++k;
    o->freeze = freeze;
    o->adapters = a;
}

static inline float lora_b(const char *name, int64_t i)      /* element i of a filled B */
{
    return 0.1f * cdr_rng_normal((cdr_rng_key){ 77, cdr_hash64(name, strlen(name), 0), 0 }, (uint64_t)i);
}

static inline const char *lora_name(cdr_pool *pool, const char *base, const char *suffix)
{
    return cdr_pool_printf(pool, "%.*s.lora_%s.weight", (int)(strlen(base) - strlen(".weight")), base, suffix);
}

/* Of what all experts share: without their index */
static inline const char *lora_shared_name(cdr_pool *pool, const char *name)
{
    const char *at = strstr(name, "{expert}.");
    return cdr_pool_printf(pool, "%.*s%s", (int)(at - name), name, at + strlen("{expert}."));
}

/* This rank's rows of a parameter, as floats, in the value that kernels read and in the master. */
static inline void lora_put(cdr_exec *x, const cdr_bundle *b, const cdr_param *q, float *rows)
{
    const cdr_type *t = &b->shared[q->shard].t;
    int64_t n = cdr_type_elems(t);
    void *narrow = calloc((size_t)n, sizeof(float));
    cdr_from_f32(t->dtype, rows, narrow, n);
    cdr_exec_put_run(x, q->shard, narrow, cdr_exec_run_bytes(x, q->shard));
    if (q->master != CDR_NONE && q->master != q->shard) cdr_exec_put_run(x, q->master, rows, sizeof *rows * (size_t)n);
    free(narrow);
}

static inline void lora_fill_b(cdr_exec *x, const cdr_bundle *b, const cdr_mesh *m)
{
    for (int32_t i = 0; i < b->n_params; i++) {
        const cdr_param *q = &b->params[i];
        if (!q->adapter || !strstr(q->name, ".lora_B.")) continue;
        int64_t cols = cdr_type_elems(&q->global) / q->global.n[0], first, rows;
        float *v = calloc((size_t)cdr_type_elems(&b->shared[q->shard].t), sizeof *v);
        cdr_param_rows(q, m, &first, &rows);
        for (int64_t k = 0; k < rows * cols; k++) v[k] = lora_b(q->name, first * cols + k);
        lora_put(x, b, q, v);
        free(v);
    }
}

/* Element i of A, as PEFT draws it: U(-1 / sqrt K, 1 / sqrt K), from the stream of the name. */
static inline float lora_a(const char *name, int64_t K, int64_t i)
{
    return (float)(1 / sqrt((double)K)) * (2.0f * cdr_rng_uniform((cdr_rng_key){ LORA_SEED, cdr_hash64(name, strlen(name), 0), 0 }, (uint64_t)i) - 1.0f);
}

/* W + scale B A in double, one rank. */
static inline void lora_merge(const lora_run *c, cdr_exec *x, const cdr_bundle *b, const cdr_adapter *a, int n_adapters, cdr_pool *pool)
{
    for (int k = 0; k < n_adapters; k++) {
        const cdr_param *q = &b->params[cdr_param_find(b, a[k].param)];
        int d = q->global.n_dim;
        int64_t N = q->global.n[d - 2], K = q->global.n[d - 1], r = a[k].rank, E = d == 3 ? q->global.n[0] : 1;
        const char *na = lora_name(pool, q->name, "A"), *nb = lora_name(pool, q->name, "B");
        if (a[k].form == CDR_ADAPTER_SHARED_A) na = lora_shared_name(pool, na);
        if (a[k].form == CDR_ADAPTER_SHARED_B) nb = lora_shared_name(pool, nb);
        const int64_t for_a = a[k].form != CDR_ADAPTER_SHARED_A, for_b = a[k].form != CDR_ADAPTER_SHARED_B;     /* 0: the same one for each expert */
        float *w = calloc((size_t)(E * N * K), sizeof *w);
        cdr_exec_get_run(x, q->shard, w, sizeof *w * (size_t)(E * N * K));
        for (int64_t e = 0; e < E; e++)
            for (int64_t i = 0; i < N; i++)
                for (int64_t j = 0; j < K; j++) {
                    double s = 0;
                    for (int64_t h = 0; h < r; h++) s += (double)lora_b(nb, (for_b * e * N + i) * r + h) * (double)lora_a(na, K, (for_a * e * r + h) * K + j);
                    w[(e * N + i) * K + j] = (float)((double)w[(e * N + i) * K + j] + (double)c->scale * s);
                }
        lora_put(x, b, q, w);
        free(w);
    }
}

/* Whole parameters and states, from the rows that this rank holds. */
static inline void lora_collect(const cdr_bundle *b, cdr_exec *x, const cdr_mesh *m, lora_result *r)
{
    int64_t at = 0;
    r->n_params = b->n_params;
    for (int32_t i = 0; i < b->n_params && i < LORA_PARAMS; i++) {
        const cdr_param *q = &b->params[i];
        cdr_val part[] = { q->master != CDR_NONE ? q->master : q->shard, q->m, q->v };
        int64_t n = cdr_type_elems(&q->global), cols = n / q->global.n[0], first, rows;
        lora_param *p = &r->param[i];
        cdr_param_rows(q, m, &first, &rows);
        snprintf(p->name, sizeof p->name, "%s", q->name);
        p->adapter = q->adapter;
        p->frozen = q->train == CDR_FROZEN;
        p->n = n;
        p->at = at;
        for (int k = 0; k < 3; k++, at += n) {
            if (part[k] == CDR_NONE || at + n > LORA_FLOATS || m->rank[CDR_AXIS_REPLICATE] != 0) continue;
            const cdr_type *t = &b->shared[part[k]].t;
            char *dense = malloc(cdr_exec_run_bytes(x, part[k]));
            cdr_exec_get_rows(x, part[k], 0, cdr_type_rows(t), dense);
            cdr_to_f32(t->dtype, dense, r->data + at + first * cols, rows * cols);
            free(dense);
        }
    }
    r->n_floats = at;
}

static inline cdr_status lora_step(const lora_run *c, cdr_exec *x, const cdr_mesh *m, int step, lora_result *r, cdr_err *err)
{
    static const char *const name[] = { "tokens", "targets", "start", "pos" };
    int32_t a[4][LORA_T];
    int64_t count[8] = { 0 };
    for (int32_t mb = 0; mb < c->n_micro; mb++) {
        lora_batch(step, (m->rank[0] * c->n_micro + mb) * m->size[1] + m->rank[1], a, count);
        for (int k = 0; k < 4; k++) cdr_exec_put(x, CDR_PROG_STEP, name[k], mb, a[k], sizeof a[k]);
        cdr_exec_put(x, CDR_PROG_STEP, "micro", mb, &mb, sizeof mb);
    }
    float hyper[CDR_N_HYPER] = { 0.01f, (float)(1 / (1 - pow(0.9, step + 1))), (float)(1 / (1 - pow(0.95, step + 1))) };
    cdr_exec_put(x, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    cdr_exec_put(x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    CDR_TRY(cdr_exec_run(x, CDR_PROG_STEP, err));
    double met[CDR_N_METRIC];
    cdr_exec_get(x, CDR_PROG_STEP, "metrics", 0, met, sizeof met);
    cdr_exec_get(x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    if (met[CDR_METRIC_OK] == 0) return cdr_fail(err, CDR_ENUMERIC, "test", "step %d is not finite", step);
    if (m->world_rank != 0) return CDR_OK;
    r->loss[step] = met[CDR_METRIC_LOSS] / (double)count[0];
    r->norm[step] = met[CDR_METRIC_NORM];
    for (int l = 1; l < LORA_LAYERS; l++) {
        char load[40];
        snprintf(load, sizeof load, "layers.%d.moe.load", l);
        cdr_exec_get(x, CDR_PROG_STEP, load, 0, r->load + l * LORA_EXPERTS, sizeof(int32_t) * LORA_EXPERTS);
    }
    return CDR_OK;
}

static inline cdr_status lora_eval(cdr_exec *x, const cdr_mesh *m, int when, lora_result *r, cdr_err *err)
{
    static const char *const name[] = { "tokens", "targets", "start", "pos" };
    int32_t a[4][LORA_T];
    int64_t count[8] = { 0 };
    double sums[64];
    lora_batch(1000, 0, a, count);
    for (int k = 0; k < 4; k++) cdr_exec_put(x, CDR_PROG_EVAL, name[k], 0, a[k], sizeof a[k]);
    CDR_TRY(cdr_exec_run(x, CDR_PROG_EVAL, err));
    cdr_exec_get(x, CDR_PROG_EVAL, "sums", 0, sums, sizeof *sums * (size_t)m->world);
    if (m->world_rank == 0) r->eval[when] = sums[0];
    return CDR_OK;
}

static inline cdr_status lora_logits(cdr_exec *x, const cdr_mesh *m, lora_result *r, cdr_err *err)
{
    int32_t tokens[16], start[16] = { 0 }, pos[16], n = 16;
    for (int32_t t = 0; t < 16; t++) {
        tokens[t] = t * 7 % LORA_VOCAB;
        pos[t] = t;
    }
    cdr_exec_put(x, CDR_PROG_GENERATE, "tokens", 0, tokens, sizeof tokens);
    cdr_exec_put(x, CDR_PROG_GENERATE, "start", 0, start, sizeof start);
    cdr_exec_put(x, CDR_PROG_GENERATE, "pos", 0, pos, sizeof pos);
    cdr_exec_put(x, CDR_PROG_GENERATE, "n_live", 0, &n, sizeof n);
    CDR_TRY(cdr_exec_run(x, CDR_PROG_GENERATE, err));
    if (m->world_rank == 0) cdr_exec_get(x, CDR_PROG_GENERATE, "logits", 0, r->logits, sizeof r->logits);
    return CDR_OK;
}

/* Of what does not train: this rank's bytes where they lie, what pads them too. */
static inline uint64_t lora_base_hash(const cdr_bundle *b, cdr_exec *x)
{
    uint64_t h = 1;
    for (int32_t i = 0; i < b->n_params; i++)
        if (b->params[i].train == CDR_FROZEN)
            h = cdr_hash64(cdr_exec_ptr(x, CDR_PROG_EVAL, b->params[i].shard, 0), cdr_type_bytes(&b->shared[b->params[i].shard].t), h);
    return h;
}

static inline cdr_status lora_body(const lora_run *c, int rank, lora_result *r, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *model;
    cdr_bundle b;
    cdr_comm *world;
    cdr_device *d;
    cdr_exec *x;
    memcpy(lora_wide_sizes, lora_sizes, sizeof lora_sizes);
    for (int i = 0; i < CDR_COUNT(lora_wide_sizes); i++) {
        cdr_pair *z = &lora_wide_sizes[i];
        if (c->wide && strcmp(z->name, "glu.width") == 0) z->text = "4096";
        if (c->latent && strcmp(z->name, "moe.latent") == 0) z->text = c->latent;
        if (c->expert_width && strcmp(z->name, "moe.width") == 0) z->text = c->expert_width;
    }
    cdr_pairs sizes = { lora_wide_sizes, CDR_COUNT(lora_sizes) };
    cdr_model_spec spec = { .path = "tiny-k31", .sizes = &sizes };
    CDR_TRY(cdr_model_load(&spec, pool, &model, err));
    cdr_builder builder = cdr_model_builder(model);
    cdr_compile_opts o = lora_opts(c, rank);
    lora_choose(c, model, pool, &o);
    int n_adapters = o.n_adapters;
    if (c->merged) o.n_adapters = 0;
    CDR_TRY(cdr_comm_open(&(cdr_comm_spec){ "auto", 20 }, &world, err));
    CDR_TRY(cdr_compile(&o, &builder, pool, &b, err));
    CDR_TRY(cdr_device_open(CDR_DEV_CPU, 0, c->n_threads, &d, err));
    cdr_exec_opts eo = { .bundle = &b, .device = d, .world = world, .mesh = &o.mesh, .poison = c->poison };
    CDR_TRY(cdr_exec_open(&eo, &x, err));
    CDR_TRY(cdr_exec_init(x, LORA_SEED, err));
    r->n_mapped = mapped_fill(x, &b, &o.mesh, LORA_SEED);
    if (c->filled) lora_fill_b(x, &b, &o.mesh);
    if (c->merged) lora_merge(c, x, &b, o.adapters, n_adapters, pool);
    CDR_TRY(lora_eval(x, &o.mesh, 0, r, err));
    CDR_TRY(lora_logits(x, &o.mesh, r, err));
    uint64_t before = lora_base_hash(&b, x);
    for (int s = 0; s < c->n_steps; s++) CDR_TRY(lora_step(c, x, &o.mesh, s, r, err));
    if (lora_base_hash(&b, x) != before) return cdr_fail(err, CDR_ENUMERIC, "test", "the base has changed");
    CDR_TRY(lora_eval(x, &o.mesh, 1, r, err));
    lora_collect(&b, x, &o.mesh, r);
    const cdr_program *p = &b.progs[CDR_PROG_STEP];
    r->n_calls = p->n_calls;
    for (int32_t i = 0; i < b.n_params && rank == 0; i++) r->n_panels += b.params[i].layout != CDR_ROWS;
    for (int32_t i = 0; i < p->n_calls && rank == 0; i++) r->n_exchanges += strncmp(cdr_ops[p->calls[i].op]->name, "experts_ep", 10) == 0;
    r->slab_bytes = (int64_t)cdr_exec_slab_bytes(x, 0);
    r->planned_bytes = b.run_bytes[0] + b.exec_bytes[0];
    cdr_exec_close(x);
    d->ops->close(d);
    cdr_comm_close(world);
    cdr_pool_free(pool);
    return CDR_OK;
}

typedef struct { const lora_run *c; lora_result *r; } lora_job;
static inline cdr_status lora_rank(void *job, int rank, cdr_err *err) { return lora_body(((lora_job *)job)->c, rank, ((lora_job *)job)->r, err); }

/* 0 on success */
static inline int lora_go(const lora_run *c, lora_result *r)
{
    forked_clear(r, sizeof *r);
    return forked_go(c->replicate * c->shard, lora_rank, &(lora_job){ c, r });
}

static inline bool lora_equal(const lora_result *a, const lora_result *b)
{
    return a->n_floats == b->n_floats && a->n_floats > 0 && a->n_floats <= LORA_FLOATS && a->n_params <= LORA_PARAMS &&
           memcmp(a->loss, b->loss, sizeof a->loss) == 0 && memcmp(a->norm, b->norm, sizeof a->norm) == 0 && memcmp(a->eval, b->eval, sizeof a->eval) == 0 &&
           memcmp(a->logits, b->logits, sizeof a->logits) == 0 && memcmp(a->data, b->data, sizeof *a->data * (size_t)a->n_floats) == 0;
}

static inline const lora_param *lora_find(const lora_result *r, const char *name)
{
    for (int i = 0; i < r->n_params; i++) if (strcmp(r->param[i].name, name) == 0) return &r->param[i];
    return NULL;
}
#endif
