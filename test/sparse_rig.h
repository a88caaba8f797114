/* sparse_rig.h: a small Kimi K3.1 with every part, compiled and run, for the tests of whole sparse models: on one rank of this process,
 * or on ranks of ranks.h.
 *
 *   setup s = small();
 *   rig r;
 *   must_open(&s, &r);
 *   batch b = pack(3);
 *   double loss = must_step(&r, 0, &b, 0.01);
 *   close_rig(&r);
 */
#ifndef CADRE_SPARSE_RIG_H
#define CADRE_SPARSE_RIG_H
#include "models/models.h"
#include "mapped_rig.h"
#include "ranks.h"
#include "run/run.h"
#include <sys/mman.h>

enum { T = 96 };

/* The recipe of a run. zero-filled fields are what a recipe leaves away; small() has the defaults. */
typedef struct {
    const char *path; cdr_pairs sizes;
    int policy, n_micro, balance, replicate, shard; int64_t capacity; bool muon, keep_gate_up, warm, no_generate, no_balance_rule, indexer_frozen;
    const char *freeze[4]; int n_freeze; uint32_t isa; int compute; double aux; bool layer_major;
    int expert, head, n_threads, reshard; double factor, clip;     /* ranks of an expert group; cdr_head; 0 threads: by ranks; dispatch_factor; clip 0: never */
    bool balanced, any_order;                                       /* redundant experts; train.reduce: free */
    int64_t chunk_tokens, chunk_vocab;                              /* of the loss; 0: all */
    int experts_dtype;                                              /* of frozen experts; 0 (F32) reads as -1, as compute */
    bool map;                                                       /* packed experts stay in a mapped file */
    const char *lora[4];                                            /* adapters on the matrices of these groups, and nothing else trains; NULL first: none */
} setup;

typedef struct {
    cdr_pool *pool; cdr_model *model; cdr_bundle b; cdr_compile_opts o; cdr_comm *world; cdr_device *d; cdr_exec *x;
} rig;

/* K3.1 with every kind of layer: KDA, DSA whose top-k is shorter than the documents, dense first, 8 experts top-2 in a latent,
 * two blocks of AttnRes. */
static cdr_pair small_sizes[] = { { "hidden", "32" }, { "vocab", "64" }, { "n_layers", "4" }, { "full_layers", "[2, 4]" }, { "attn_block", "2" },
    { "kda.heads", "2" }, { "kda.dim", "16" }, { "mla.heads", "2" }, { "mla.q_lora", "16" }, { "mla.kv_lora", "16" }, { "mla.nope", "8" }, { "mla.ext", "8" },
    { "mla.v", "16" }, { "index.heads", "2" }, { "index.dim", "8" }, { "index.top_k", "12" }, { "glu.width", "48" }, { "moe.experts", "8" }, { "moe.top_k", "2" },
    { "moe.latent", "32" }, { "moe.width", "32" } };

static inline setup small(void)
{
    return (setup){ .path = "tiny-k31", .sizes = { small_sizes, CDR_COUNT(small_sizes) }, .policy = CDR_POLICY_KEEP, .n_micro = 1, .balance = CDR_BALANCE_QUANTILE,
                    .replicate = 1, .shard = 1, .isa = cdr_cpu_isa(NULL), .compute = CDR_F32, .expert = 1, .factor = 1.25, .clip = 1 };
}

static inline cdr_compile_opts options(const setup *s, int rank)
{
    cdr_compile_opts o = cdr_compile_defaults();
    o.T = o.sequence = T;
    o.gen_T = s->no_generate ? 0 : 16;
    o.gen_S = T;
    o.n_micro = s->n_micro;
    o.mesh = (cdr_mesh){ .size = { s->replicate, s->shard, 1 }, .rank = { rank / s->shard, rank % s->shard, 0 }, .world = s->replicate * s->shard, .world_rank = rank,
                         .expert = s->expert };
    o.compute = o.params = s->compute;
    o.policy = (cdr_policy_kind)s->policy;
    o.weight_decay = 0.1;
    o.isa = s->isa;
    o.n_threads = s->n_threads > 0 ? s->n_threads : o.mesh.world == 1 ? 2 : 1;
    o.muon = s->muon;
    o.muon_nesterov = o.muon_per_head = true;
    o.muon_iterations = 5;
    o.muon_momentum = 0.95;
    o.muon_scale = 0.2;
    o.balance = s->balance;
    o.balance_bins = 1000;
    o.balance_rate = 0.01;
    o.indexer_train = !s->indexer_frozen;
    o.indexer_coef = 1;
    static const cdr_turn major[] = { { 0, 0 }, { 0, 1 }, { 1, 1 }, { 1, 0 } };
    o.aux_coef = s->aux;
    o.micro_split = s->layer_major;
    o.turns = s->layer_major ? major : NULL;
    o.n_turns = s->layer_major ? CDR_COUNT(major) : 0;
    o.capacity = s->capacity;
    o.keep_gate_up = s->keep_gate_up;
    o.parallel.dispatch_factor = s->factor;
    o.parallel.head = s->head;
    o.parallel.balanced = s->balanced;
    o.order = s->any_order ? CDR_ORDER_FREE : CDR_ORDER_TREE;
    o.reshard = (cdr_reshard)s->reshard;
    o.max_grad_norm = s->clip;
    o.loss_chunk_tokens = s->chunk_tokens;
    o.loss_chunk_vocab = s->chunk_vocab;
    o.freeze = s->freeze;
    o.n_freeze = s->n_freeze;
    o.map_experts = s->map;
    o.experts_dtype = s->experts_dtype == 0 ? -1 : s->experts_dtype;
    return o;
}

/* Adapters on every matrix of the groups that the setup names; all parameters of the model are frozen. */
static inline void adapt(const setup *s, const cdr_model *m, cdr_pool *pool, cdr_compile_opts *o)
{
    const int64_t n = cdr_model_params(m);
    cdr_adapter *a = cdr_pool_alloc(pool, sizeof *a * (size_t)n);
    const char **freeze = cdr_pool_alloc(pool, sizeof *freeze * (size_t)n);
    o->n_freeze = (int)n;
    for (int64_t i = 0; i < n; i++) {
        const bool linear = cdr_model_in_group(m, i, "all_linear"), expert = cdr_model_in_group(m, i, "experts");
        bool in = false;
        for (int k = 0; k < CDR_COUNT(s->lora) && s->lora[k]; k++) in = in || ((linear || expert) && cdr_model_in_group(m, i, s->lora[k]));
        freeze[i] = cdr_model_param(m, i);
        if (in && !cdr_model_in_group(m, i, "indexer")) a[o->n_adapters++] = (cdr_adapter){ freeze[i], expert ? 2 : 4, 2, CDR_ADAPTER_EACH };
    }
    o->freeze = freeze;
    o->adapters = a;
}

static inline cdr_status compile_rig(const setup *s, int rank, rig *r, cdr_err *err)
{
    cdr_model_spec spec = { .path = s->path, .sizes = &s->sizes };
    *r = (rig){ .pool = cdr_pool_new(), .o = options(s, rank) };
    CDR_TRY(cdr_model_load(&spec, r->pool, &r->model, err));
    if (s->lora[0]) adapt(s, r->model, r->pool, &r->o);
    cdr_builder builder = cdr_model_builder(r->model);
    return cdr_compile(&r->o, &builder, r->pool, &r->b, err);
}

/* One rank of the world; the caller closes the world. */
static inline cdr_status open_on(const setup *s, cdr_comm *world, rig *r, cdr_err *err)
{
    CDR_TRY(compile_rig(s, cdr_comm_rank(world), r, err));
    CDR_TRY(cdr_device_open(CDR_DEV_CPU, 0, r->o.n_threads, &r->d, err));
    cdr_exec_opts eo = { .bundle = &r->b, .device = r->d, .world = world, .mesh = &r->o.mesh, .poison = true };
    CDR_TRY(cdr_exec_open(&eo, &r->x, err));
    CDR_TRY(cdr_exec_init(r->x, 5, err));
    mapped_fill(r->x, &r->b, &r->o.mesh, 5);
    int32_t warm = s->warm;
    cdr_exec_put_run(r->x, cdr_program_find(&r->b, &r->b.progs[CDR_PROG_STEP], "dsa_dense"), &warm, sizeof warm);
    return CDR_OK;
}

static inline cdr_status open_rig(const setup *s, rig *r, cdr_err *err)
{
    cdr_comm *world;
    CDR_TRY(cdr_comm_open(&(cdr_comm_spec){ "auto", 10 }, &world, err));
    CDR_TRY(open_on(s, world, r, err));
    r->world = world;
    return CDR_OK;
}

static inline void must_open(const setup *s, rig *r)
{
    cdr_err err = { CDR_OK, "", "" };
    if (open_rig(s, r, &err) == CDR_OK) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static inline void close_rig(rig *r)
{
    cdr_exec_close(r->x);
    r->d->ops->close(r->d);
    if (r->world) cdr_comm_close(r->world);
    cdr_pool_free(r->pool);
}

/* ---- rows ---- */
typedef struct { int32_t tokens[T], targets[T], start[T], pos[T]; int64_t trained, rows; } batch;

static inline void idle(batch *b, int from)
{
    for (int32_t t = from; t < T; t++) {
        b->tokens[t] = 0;
        b->targets[t] = -1;
        b->start[t] = t + 1;
        b->pos[t] = t;
    }
}

/* document d at rows [first, first + n): a walk over half of the vocabulary that a model can learn; odd d use the upper half */
static inline void put_doc(batch *b, int first, int n, uint64_t d)
{
    cdr_rng_key k = { 3, d, 0 };
    int32_t low = d % 2 ? 32 : 0, at = (int32_t)(cdr_rng_u64(k, 0) % 32), by = 1 + (int32_t)(cdr_rng_u64(k, 1) % 3);
    for (int32_t i = 0; i < n; i++) {
        int32_t t = first + i;
        b->tokens[t] = low + at;
        b->start[t] = first;
        b->pos[t] = t;
        at = i % 7 == 6 ? (at + 11) % 32 : (at + by) % 32;
        b->targets[t] = i + 1 < n ? low + at : -1;
    }
}

static inline void count(batch *b)
{
    b->trained = b->rows = 0;
    for (int t = 0; t < T; t++) {
        b->trained += b->targets[t] >= 0;
        b->rows += b->start[t] <= b->pos[t];
    }
}

/* three documents, the last rows idle */
static inline batch pack(uint64_t seed)
{
    batch b;
    idle(&b, 0);
    put_doc(&b, 0, 41, 3 * seed);
    put_doc(&b, 41, 1, 3 * seed + 1);
    put_doc(&b, 42, 47, 3 * seed + 2);
    count(&b);
    return b;
}

static inline void put(rig *r, cdr_prog_id q, int mb, const batch *b)
{
    cdr_exec_put(r->x, q, "tokens", mb, b->tokens, sizeof b->tokens);
    cdr_exec_put(r->x, q, "targets", mb, b->targets, sizeof b->targets);
    cdr_exec_put(r->x, q, "start", mb, b->start, sizeof b->start);
    cdr_exec_put(r->x, q, "pos", mb, b->pos, sizeof b->pos);
}

static inline cdr_status run_step(rig *r, int step, const batch *b, double lr, double *loss, cdr_err *err)
{
    int64_t n[8] = { 0 };
    for (int32_t mb = 0; mb < r->o.n_micro; mb++) {
        int32_t arrival = r->o.n_turns > 0 ? r->o.n_micro - 1 - mb : mb;
        put(r, CDR_PROG_STEP, mb, &b[mb]);
        cdr_exec_put(r->x, CDR_PROG_STEP, "micro", mb, &arrival, sizeof arrival);
        n[0] += b[mb].trained;
        n[4] += b[mb].rows;
    }
    float hyper[CDR_N_HYPER] = { (float)lr, (float)(1 / (1 - pow(0.9, step + 1))), (float)(1 / (1 - pow(0.95, step + 1))) };
    cdr_exec_put(r->x, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    cdr_exec_put(r->x, CDR_PROG_STEP, "count", 0, n, sizeof n);
    CDR_TRY(cdr_exec_run(r->x, CDR_PROG_STEP, err));
    double met[CDR_N_METRIC];
    cdr_exec_get(r->x, CDR_PROG_STEP, "metrics", 0, met, sizeof met);
    cdr_exec_get(r->x, CDR_PROG_STEP, "count", 0, n, sizeof n);
    *loss = met[CDR_METRIC_LOSS] / (double)n[0];
    if (met[CDR_METRIC_OK] == 0) return cdr_fail(err, CDR_ENUMERIC, "test", "step %d is not finite", step);
    return CDR_OK;
}

static inline double must_step(rig *r, int step, const batch *b, double lr)
{
    double loss = NAN;
    cdr_err err = { CDR_OK, "", "" };
    cdr_status st = run_step(r, step, b, lr, &loss, &err);
    if (st != CDR_OK) fprintf(stderr, "  %s\n", err.text);
    T_CHECK(st == CDR_OK);
    return loss;
}

/* The rows that the head reads: nothing of the evaluation writes after it. */
static inline double evaluate(rig *r, const batch *b, float *hidden_TD)
{
    cdr_err err = { CDR_OK, "", "" };
    double sum = NAN;
    const cdr_program *p = &r->b.progs[CDR_PROG_EVAL];
    cdr_val h = cdr_program_find(&r->b, p, "head.rmsnorm");
    CDR_CHECK(h != CDR_NONE);
    put(r, CDR_PROG_EVAL, 0, b);
    T_CHECK(cdr_exec_run(r->x, CDR_PROG_EVAL, &err) == CDR_OK);
    cdr_exec_get(r->x, CDR_PROG_EVAL, "sums", 0, &sum, sizeof sum);
    const cdr_value *v = cdr_value_at(&r->b, p, h);
    if (hidden_TD) memcpy(hidden_TD, cdr_exec_ptr(r->x, CDR_PROG_EVAL, h, 0), cdr_type_bytes(&v->t));
    return sum;
}

enum { D = 32 };
static inline bool same_rows(const float *a, int at, const float *b, int bt, int n) { return memcmp(a + at * D, b + bt * D, sizeof *a * (size_t)(n * D)) == 0; }

static inline const float *gradient(rig *r, const char *name, int64_t *n)
{
    int32_t i = cdr_param_find(&r->b, name);
    CDR_CHECK(i >= 0);
    if (n) *n = cdr_type_elems(&r->b.params[i].global);
    return r->b.params[i].grad == CDR_NONE ? NULL : cdr_exec_ptr(r->x, CDR_PROG_STEP, r->b.params[i].grad, 0);
}

/* Slow decay, so that a state that leaks over a boundary would be seen far away (known-failures, D). */
static inline void slow_decay(rig *r)
{
    for (int32_t i = 0; i < r->b.n_params; i++) {
        const cdr_param *q = &r->b.params[i];
        if (!strstr(q->name, "dt_bias")) continue;
        float x[64];
        int64_t n = cdr_type_elems(&q->global);
        CDR_CHECK(n <= 64);
        for (int64_t k = 0; k < n; k++) x[k] = -6.0f;           /* g = -5 sigmoid(z - 6): about -0.012 a token */
        cdr_exec_put_run(r->x, q->shard, x, sizeof *x * (size_t)n);
    }
}
#endif
