/* tiny.h: a small dense model and a training run of it, for tests across modules. A run is a function of what is in
 * tiny_run; results lie in memory that forked ranks share. Embedding and head have 65,536 elements, so FSDP splits them;
 * everything else stays whole. */
#ifndef CADRE_TINY_H
#define CADRE_TINY_H
#include "models/models.h"
#include "run/run.h"
#include "forked.h"

static const char tiny_yaml[] =
    "description: 1\n"
    "name: tiny-test\n"
    "sizes: {hidden: 64, vocab: 1024, n_layers: 3, eps: 1.0e-5, mla: {heads: 2, kv_lora: 32, nope: 16, ext: 16, v: 32}, glu: {width: 96}}\n"
    "layers: {mixer: {mla: rest}, ffn: {dense: rest}, residual: prenorm}\n"
    "blocks:\n"
    "  mla: {type: mla, position: {rope: half, theta: 10000}, norm_eps: 1.0e-6}\n"
    "  dense: {type: glu, activation: silu}\n"
    "under: {layer: \"model.layers.{layer}.\", mla: self_attn., glu: mlp.}\n"
    "tensors:\n"
    "  model: {embed: [model.embed_tokens.weight, [vocab, hidden]], head: [lm_head.weight, [vocab, hidden]], norm: [model.norm.weight, [hidden]]}\n"
    "  layer: {\"norm.input|post_attention\": [\"{}_layernorm.weight\", [hidden]]}\n"
    "  mla: {q: [q_proj.weight, [heads*(nope+ext), hidden]], kv_a: [kv_a_proj_with_mqa.weight, [kv_lora+ext, hidden]],\n"
    "        kv_a_norm: [kv_a_layernorm.weight, [kv_lora]], kv_b: [kv_b_proj.weight, [heads*(nope+v), kv_lora]],\n"
    "        o: [o_proj.weight, [hidden, heads*v]]}\n"
    "  glu: {\"gate|up\": [\"{}_proj.weight\", [width, hidden]], down: [down_proj.weight, [hidden, width]]}\n"
    "tokenizer: {type: byte}\n"
    "chat: {format: none}\n";

enum { TINY_T = 48, TINY_STEPS = 3, TINY_MAX_WEIGHTS = 7500000, TINY_VOCAB = 1024 };

typedef struct {
    int replicate, shard, n_micro, n_steps;
    int compute, n_threads, policy, reshard, prefetch;
    uint64_t random_order;
    bool poison, eval_between, generate_between, split, layer_major;
    int nan_at_step;              /* 0: none; a weight becomes NaN before this step (from 1) */
    uint32_t isa;
    const cdr_builder *builder;   /* NULL: the model of tiny_yaml */
} tiny_run;

typedef struct {
    double loss[TINY_STEPS], norm[TINY_STEPS], ok[TINY_STEPS], eval[TINY_STEPS];
    float logits[16 * TINY_VOCAB];
    char nonfinite[128];
    int64_t n_weights, slab_bytes, planned_bytes;
    float weights[TINY_MAX_WEIGHTS];
} tiny_result;

static inline tiny_result *tiny_shared(void) { return forked_memory(sizeof(tiny_result)); }

/* Tokens of logical shard id of a step: three packed documents, the last rows untrained. */
static inline int64_t tiny_shard(int64_t step, int64_t id, int32_t *tokens, int32_t *targets, int32_t *start, int32_t *pos)
{
    cdr_rng_key k = { 11, (uint64_t)step, (uint64_t)id };
    int32_t cut1 = 7 + (int32_t)(cdr_rng_u64(k, 1000) % 9), cut2 = 25 + (int32_t)(cdr_rng_u64(k, 1001) % 9);
    int64_t n = 0;
    for (int32_t t = 0; t < TINY_T; t++) {
        tokens[t] = (int32_t)(cdr_rng_u64(k, (uint64_t)t) % 97);
        start[t] = t < cut1 ? 0 : t < cut2 ? cut1 : cut2;
        pos[t] = t;
    }
    for (int32_t t = 0; t < TINY_T; t++) {
        bool last = t + 1 == TINY_T || start[t + 1] != start[t] || (id % 3 == 1 && t > 40);
        targets[t] = last ? -1 : (tokens[t] * 3 + 1) % 97;
        n += !last;
    }
    return n;
}

static inline cdr_compile_opts tiny_opts(const tiny_run *c, int rank)
{
    cdr_compile_opts o = cdr_compile_defaults();
    o.T = TINY_T;
    o.gen_T = c->builder ? 0 : 16;
    o.gen_S = 64;
    o.n_micro = c->n_micro;
    o.mesh = (cdr_mesh){ .size = { c->replicate, c->shard, 1 }, .rank = { rank / c->shard, rank % c->shard, 0 }, .world = c->replicate * c->shard,
                         .world_rank = rank };
    o.compute = o.params = c->compute;
    o.loss_chunk_tokens = 32;
    o.loss_chunk_vocab = 512;
    o.policy = (cdr_policy_kind)c->policy;
    o.reshard = (cdr_reshard)c->reshard;
    o.prefetch = c->prefetch;
    o.weight_decay = 0.1;
    o.isa = c->isa;
    o.n_threads = c->n_threads;
    o.micro_split = c->split;
    return o;
}

static inline void tiny_collect(const cdr_bundle *b, cdr_exec *x, const cdr_mesh *m, tiny_result *r)
{
    int64_t at = 0;
    for (int32_t i = 0; i < b->n_params; i++) {
        const cdr_param *q = &b->params[i];
        cdr_val part[] = { q->master, q->m, q->v };
        int64_t cols = cdr_type_elems(&q->global) / q->global.n[0], R = q->global.n[0], first, rows;
        cdr_param_rows(q, m, &first, &rows);
        for (int k = 0; k < 3; k++) {
            const float *src = cdr_exec_ptr(x, CDR_PROG_STEP, part[k], 0);
            if (at + R * cols <= TINY_MAX_WEIGHTS && m->rank[0] == 0) memcpy(r->weights + at + first * cols, src, sizeof(float) * (size_t)(rows * cols));
            at += R * cols;
        }
    }
    r->n_weights = at;
}

static inline void tiny_put(cdr_exec *x, cdr_prog_id q, int mb, int32_t *a[4], bool targets)
{
    size_t bytes = sizeof(int32_t) * TINY_T;
    cdr_exec_put(x, q, "tokens", mb, a[0], bytes);
    if (targets) cdr_exec_put(x, q, "targets", mb, a[1], bytes);
    cdr_exec_put(x, q, "start", mb, a[2], bytes);
    cdr_exec_put(x, q, "pos", mb, a[3], bytes);
}

static inline cdr_status tiny_one_step(const tiny_run *c, cdr_exec *x, const cdr_mesh *m, int step, tiny_result *r, cdr_err *err)
{
    int32_t buf[4][TINY_T], *a[4] = { buf[0], buf[1], buf[2], buf[3] };
    int64_t count[8] = { 0 };
    for (int32_t mb = 0; mb < c->n_micro; mb++) {
        int64_t id = (m->rank[0] * c->n_micro + mb) * m->size[1] + m->rank[1];
        count[0] += tiny_shard(step, id, a[0], a[1], a[2], a[3]);
        tiny_put(x, CDR_PROG_STEP, mb, a, true);
        int32_t arrival = c->layer_major ? c->n_micro - 1 - mb : mb;
        cdr_exec_put(x, CDR_PROG_STEP, "micro", mb, &arrival, sizeof arrival);
    }
    float hyper[CDR_N_HYPER] = { 0.01f, (float)(1 / (1 - pow(0.9, step + 1))), (float)(1 / (1 - pow(0.95, step + 1))) };
    cdr_exec_put(x, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    cdr_exec_put(x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    cdr_exec_set_step(x, step + 1);
    CDR_TRY(cdr_exec_run(x, CDR_PROG_STEP, err));
    double met[CDR_N_METRIC];
    cdr_exec_get(x, CDR_PROG_STEP, "metrics", 0, met, sizeof met);
    cdr_exec_get(x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    if (m->world_rank != 0) return CDR_OK;
    r->loss[step] = met[CDR_METRIC_LOSS] / (double)count[0];
    r->norm[step] = met[CDR_METRIC_NORM];
    r->ok[step] = met[CDR_METRIC_OK];
    return CDR_OK;
}

static inline cdr_status tiny_eval(const tiny_run *c, cdr_exec *x, const cdr_mesh *m, int step, tiny_result *r, cdr_err *err)
{
    (void)c;
    int32_t buf[4][TINY_T], *a[4] = { buf[0], buf[1], buf[2], buf[3] };
    double sums[64], total = 0;
    tiny_shard(1000, m->world_rank, a[0], a[1], a[2], a[3]);
    tiny_put(x, CDR_PROG_EVAL, 0, a, true);
    CDR_TRY(cdr_exec_run(x, CDR_PROG_EVAL, err));
    cdr_exec_get(x, CDR_PROG_EVAL, "sums", 0, sums, sizeof *sums * (size_t)m->world);
    for (int i = 0; i < m->world; i++) total += sums[i];
    if (m->world_rank == 0) r->eval[step] = total;
    return CDR_OK;
}

static inline cdr_status tiny_generate(cdr_exec *x, tiny_result *r, cdr_err *err)
{
    int32_t tokens[16], start[16], pos[16], n = 16;
    for (int32_t at = 0; at < 48; at += 16) {
        for (int32_t t = 0; t < 16; t++) {
            tokens[t] = (at + t) * 7 % 97;
            start[t] = 0;
            pos[t] = at + t;
        }
        cdr_exec_put(x, CDR_PROG_GENERATE, "tokens", 0, tokens, sizeof tokens);
        cdr_exec_put(x, CDR_PROG_GENERATE, "start", 0, start, sizeof start);
        cdr_exec_put(x, CDR_PROG_GENERATE, "pos", 0, pos, sizeof pos);
        cdr_exec_put(x, CDR_PROG_GENERATE, "n_live", 0, &n, sizeof n);
        CDR_TRY(cdr_exec_run(x, CDR_PROG_GENERATE, err));
    }
    cdr_exec_get(x, CDR_PROG_GENERATE, "logits", 0, r->logits, sizeof r->logits);
    return CDR_OK;
}

static inline cdr_status tiny_body(const tiny_run *c, int rank, tiny_result *r, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *model;
    cdr_bundle b;
    cdr_comm *world;
    cdr_device *d;
    cdr_exec *x;
    cdr_model_spec spec = { .path = "tiny-test" };
    CDR_TRY(cdr_model_parse(&spec, tiny_yaml, strlen(tiny_yaml), "tiny.h", pool, &model, err));
    cdr_builder builder = c->builder ? *c->builder : cdr_model_builder(model);
    cdr_compile_opts o = tiny_opts(c, rank);
    cdr_turn major[32];
    if (c->layer_major) {
        for (int i = 0; i < c->n_micro; i++) major[i] = (cdr_turn){ 0, (int16_t)i };
        for (int i = 0; i < c->n_micro; i++) major[c->n_micro + i] = (cdr_turn){ 1, (int16_t)(c->n_micro - 1 - i) };
        o.turns = major;
        o.n_turns = 2 * c->n_micro;
    }
    CDR_TRY(cdr_comm_open(&(cdr_comm_spec){ "auto", 10 }, &world, err));
    CDR_TRY(cdr_compile(&o, &builder, pool, &b, err));
    CDR_TRY(cdr_device_open(CDR_DEV_CPU, 0, c->n_threads, &d, err));
    cdr_exec_opts eo = { .bundle = &b, .device = d, .world = world, .mesh = &o.mesh, .poison = c->poison,
                         .random_order = c->random_order ? c->random_order + (uint64_t)rank : 0 };
    CDR_TRY(cdr_exec_open(&eo, &x, err));
    CDR_TRY(cdr_exec_init(x, 5, err));
    for (int s = 0; s < c->n_steps; s++) {
        if (c->nan_at_step == s + 1 && rank == 0) {
            float *w = cdr_exec_ptr(x, CDR_PROG_STEP, b.params[cdr_param_find(&b, "model.layers.1.mlp.up_proj.weight")].shard, 0);
            w[3] = NAN;
        }
        CDR_TRY(tiny_one_step(c, x, &o.mesh, s, r, err));
        if (c->nan_at_step == s + 1) {
            cdr_nonfinite at;
            cdr_exec_check_finite(x, true);
            CDR_TRY(cdr_exec_run(x, CDR_PROG_PROBE, err));
            cdr_exec_check_finite(x, false);
            if (cdr_exec_nonfinite(x, &at)) snprintf(r->nonfinite, sizeof r->nonfinite, "%s layer %d", at.value, at.layer);
        }
        if (c->eval_between) CDR_TRY(tiny_eval(c, x, &o.mesh, s, r, err));
        if (c->generate_between) CDR_TRY(tiny_generate(x, r, err));
    }
    tiny_collect(&b, x, &o.mesh, r);
    r->slab_bytes = (int64_t)cdr_exec_slab_bytes(x, 0);
    r->planned_bytes = b.run_bytes[0] + b.exec_bytes[0];
    cdr_exec_close(x);
    d->ops->close(d);
    cdr_comm_close(world);
    cdr_pool_free(pool);
    return CDR_OK;
}

typedef struct { const tiny_run *c; tiny_result *r; } tiny_job;
static inline cdr_status tiny_rank(void *job, int rank, cdr_err *err) { return tiny_body(((tiny_job *)job)->c, rank, ((tiny_job *)job)->r, err); }

/* 0 on success */
static inline int tiny_go(const tiny_run *c, tiny_result *r)
{
    forked_clear(r, sizeof *r);
    return forked_go(c->replicate * c->shard, tiny_rank, &(tiny_job){ c, r });
}

static inline tiny_run tiny_default(void)
{
    return (tiny_run){ .replicate = 1, .shard = 1, .n_micro = 8, .n_steps = TINY_STEPS, .compute = CDR_F32, .n_threads = 1, .policy = CDR_POLICY_KEEP,
                       .reshard = CDR_RESHARD_ALWAYS, .prefetch = 1 };
}

static inline bool tiny_equal(const tiny_result *a, const tiny_result *b)
{
    return a->n_weights == b->n_weights && a->n_weights > 0 && a->n_weights <= TINY_MAX_WEIGHTS && memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->norm, b->norm, sizeof a->norm) == 0 && memcmp(a->weights, b->weights, sizeof(float) * (size_t)a->n_weights) == 0;
}
#endif
