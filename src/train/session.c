/* session.c: from a recipe to an open executor. */
#include "train/session.h"
#include "train/adapter.h"
#include "train/fit.h"
#include "train/debug.h"
#include <stdlib.h>

cdr_status cdr__recipe_of_ckpt(const cdr_ckpt *ck, const cdr_common *c, cdr_pool *pool, cdr_recipe *r, cdr_err *err)
{
    const char *text = cdr_pool_strdup(pool, cdr_ckpt_recipe(ck));
    cdr_recipe_text t = { text, strlen(text), cdr_pool_printf(pool, "%s/recipe.yaml", cdr_ckpt_dir(ck)), "run" };
    return cdr_recipe_parse(&t, c ? c : &(cdr_common){ 0 }, pool, r, err);
}

cdr_model_spec cdr__model_spec(const cdr_recipe *r)
{
    return (cdr_model_spec){ .path = r->model.path, .sizes = &r->model.sizes, .layers = r->model.layers, .indexer = r->model.indexer,
                             .random = r->model.weights == CDR_WEIGHTS_RANDOM };
}

cdr_status cdr__session_recipe(cdr_session *s, const char *recipe, const cdr_common *c, cdr_err *err)
{
    memset(s, 0, sizeof *s);
    s->pool = cdr_pool_new();
    cdr_log_set_level(c->quiet ? CDR_LOG_ERROR : c->verbose ? CDR_LOG_DEBUG : CDR_LOG_INFO);
    CDR_TRY(cdr_recipe_load(recipe, c, s->pool, &s->r, err));
    return cdr__session_model(s, err);
}

cdr_status cdr__session_model(cdr_session *s, cdr_err *err)
{
    cdr_model_spec spec = cdr__model_spec(&s->r);
    CDR_TRY(cdr_model_load(&spec, s->pool, &s->model, err));
    s->info = cdr_model_get_info(s->model);
    s->builder = cdr_model_builder(s->model);
    return cdr_machine_load(s->r.machine.file, s->pool, &s->machine, err);
}

void cdr__session_mesh(cdr_session *s, int rank, int n_ranks)
{
    s->rank = rank;
    s->n_ranks = n_ranks;
    int shard = (int)s->r.parallel.shard;
    s->mesh = (cdr_mesh){ .size = { (int)s->r.parallel.replicate, shard, 1 }, .rank = { rank / shard, rank % shard, 0 }, .world = n_ranks,
                          .world_rank = rank, .expert = (int)s->r.parallel.expert };
}

char *cdr__mesh_text(const cdr_session *s)
{
    int ep = cdr_mesh_expert(&s->mesh);
    char experts[80] = "";
    if (ep > 1) snprintf(experts, sizeof experts, "; ep %d = %d experts a rank, efsdp %d", ep, s->info->moe.experts / ep, cdr_mesh_efsdp(&s->mesh));
    return cdr_pool_printf(s->pool, "replicate %d x shard %d x context %d%s", s->mesh.size[CDR_AXIS_REPLICATE], s->mesh.size[CDR_AXIS_SHARD],
                           s->mesh.size[CDR_AXIS_CONTEXT], experts);
}

void cdr__mesh_json(const cdr_mesh *m, cdr_jw *w)
{
    cdr_jw_int(w, "replicate", m->size[CDR_AXIS_REPLICATE]);
    cdr_jw_int(w, "shard", m->size[CDR_AXIS_SHARD]);
    cdr_jw_int(w, "context", m->size[CDR_AXIS_CONTEXT]);
    cdr_jw_int(w, "expert", cdr_mesh_expert(m));
    cdr_jw_int(w, "efsdp", cdr_mesh_efsdp(m));
}

/* Each rank of an expert group holds as many experts. */
static cdr_status check_experts(const cdr_session *s, cdr_err *err)
{
    const char *where = cdr__recipe_at(&s->r, cdr_recipe_key("parallel.expert"));
    int ep = cdr_mesh_expert(&s->mesh), experts = s->info->moe.experts;
    if (ep > 1 && s->info->moe.n == 0)
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.expert", "%s: parallel.expert is %d, but %s has no layer with routed experts. Take parallel.expert=1", where, ep,
                    s->info->name);
    if (experts % ep != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.expert", "%s: parallel.expert is %d, which does not divide the %d experts of %s: each rank of a group holds as many. "
                    "Take a power of two up to %d", where, ep, experts, s->info->name, experts & -experts);
    return CDR_OK;
}

cdr_status cdr__session_ranks(cdr_session *s, cdr_err *err)
{
    static const char *const transport[] = { "auto", "single", "shm", "mpi", "nccl" };
    cdr_comm_spec spec = { transport[s->r.parallel.transport], s->r.parallel.timeout };
    CDR_TRY(cdr_comm_open(&spec, &s->world, err));
    int n = cdr_comm_size(s->world);
    if (s->r.machine.devices != CDR_AUTO && s->r.machine.devices != n)
        CDR_FAIL_ID(err, CDR_EUSER, "machine.devices", "machine.devices: %lld, but %d ranks are running. Start with cadre launch -n %lld, or leave "
                    "machine.devices away", (long long)s->r.machine.devices, n, (long long)s->r.machine.devices);
    CDR_TRY(cdr_recipe_resolve_ranks(&s->r, n, err));
    cdr__session_mesh(s, cdr_comm_rank(s->world), n);
    return CDR_OK;
}

cdr_status cdr__share_error(cdr_session *s, int root, cdr_status st, cdr_err *err)
{
    cdr_err e = { .status = CDR_OK };
    if (s->rank == root && st != CDR_OK) {
        e = *err;
        e.status = st;
    }
    if (cdr_comm_broadcast(s->world, &e, sizeof e, root) != CDR_OK) {
        cdr_comm_lost(s->world, err);
        return CDR_ERANK;
    }
    if (e.status != CDR_OK && s->rank != root) *err = e;
    return e.status;
}

cdr_status cdr__agree(cdr_session *s, cdr_status st, cdr_err *err)
{
    if (!s->world || s->n_ranks <= 1) return st;
    int64_t mine = st, *all = cdr_pool_alloc(s->pool, sizeof mine * (size_t)s->n_ranks);
    if (cdr_comm_all_gather(s->world, &mine, all, sizeof mine) != CDR_OK) {
        cdr_comm_lost(s->world, err);
        return CDR_ERANK;
    }
    for (int r = 0; r < s->n_ranks; r++) if (all[r] != CDR_OK) return cdr__share_error(s, r, st, err);
    return CDR_OK;
}

/* `auto` becomes part of the training's identity once the machine is known: a resume elsewhere must not change it. */
static cdr_status derive_precision(cdr_session *s, const char *key, int device, bool bf16, cdr_err *err)
{
    const char *why = device == CDR_DEV_CUDA ? "a CUDA device" : bf16 ? "this machine has BF16 products" : "no BF16 products here";
    return cdr_recipe_derive(&s->r, key, bf16 ? "bf16" : "f32", why, err);
}

/* What sparse models read through cdr_io. capacity 0: all routed rows at a time. */
static void sparse_opts(const cdr_recipe *r, cdr_compile_opts *o)
{
    static const int kind[] = { CDR_BALANCE_NONE, CDR_BALANCE_QUANTILE, CDR_BALANCE_SIGN, CDR_BALANCE_AUX, CDR_BALANCE_NONE };
    o->sequence = r->train.sequence_length;
    o->core = r->train.dsa_core == CDR_DSA_GATHERED ? CDR_CORE_GATHERED : CDR_CORE_DENSE;
    o->balance = kind[r->train.balance];
    o->balance_own = r->train.balance == CDR_BAL_AUTO;
    o->balance_bins = r->train.balance_bins;
    o->balance_ema = r->train.balance_ema;
    o->balance_rate = r->train.balance_rate;
    o->aux_coef = r->train.aux_loss_coef;
    o->indexer_train = r->train.indexer == CDR_TRAIN_INDEXER_TRAIN;
    o->indexer_coef = r->train.indexer_loss_coef;
    o->keep_gate_up = r->memory.policy == CDR_POLICY_KEEP;
}

cdr_status cdr__session_opts(cdr_session *s, int device, uint32_t isa, int n_threads, cdr_err *err)
{
    const cdr_recipe *r = &s->r;
    cdr_compile_opts o = cdr_compile_defaults();
    CDR_TRY(check_experts(s, err));
    bool bf16 = device == CDR_DEV_CUDA || (isa & CDR_ISA_AVX512_BF16);
    if (r->precision.compute == CDR_PREC_AUTO) CDR_TRY(derive_precision(s, "precision.compute", device, bf16, err));
    if (r->precision.params == CDR_PREC_AUTO) CDR_TRY(derive_precision(s, "precision.params", device, r->precision.compute == CDR_PREC_BF16, err));
    o.T = r->train.micro_batch_tokens;
    o.gen_T = 16;
    o.gen_S = CDR_MAX((int64_t)64, r->train.sequence_length);
    o.n_micro = (int)r->ranks.n_micro;
    o.loss_weights = s->data && cdr_data_weighted(s->data);
    o.mesh = s->mesh;
    o.compute = r->precision.compute == CDR_PREC_BF16 ? CDR_BF16 : CDR_F32;
    o.params = o.compute;
    o.experts_dtype = (const int[]){ [CDR_EXPERTS_STORED] = -1, [CDR_EXPERTS_BF16] = CDR_BF16, [CDR_EXPERTS_MXFP4] = CDR_MXFP4 }[r->precision.experts];
    s->opts.compute = o.compute;
    int stored = cdr__session_experts(s, err);
    if (stored == -2) return err->status;
    if (r->precision.experts == CDR_EXPERTS_STORED) o.experts_dtype = stored;
    o.map_experts = device == CDR_DEV_CPU && stored == CDR_MXFP4;
    if ((r->precision.params == CDR_PREC_BF16) != (o.compute == CDR_BF16))
        CDR_FAIL_ID(err, CDR_EUSER, "precision.params", "precision.params: differs from precision.compute, which this version does not do. Set both alike, "
                    "or leave precision.params=auto");
    o.loss_chunk_tokens = r->memory.loss_chunk_tokens == CDR_ALL ? 0 : r->memory.loss_chunk_tokens < 0 ? 1024 : r->memory.loss_chunk_tokens;
    o.loss_chunk_vocab = r->memory.loss_chunk_vocab == CDR_ALL ? 0 : r->memory.loss_chunk_vocab < 0 ? 8192 : r->memory.loss_chunk_vocab;
    o.policy = (cdr_policy_kind)r->memory.policy;
    o.reshard = (cdr_reshard)r->parallel.reshard_after_forward;
    o.prefetch = (int)r->parallel.prefetch;
    o.order = r->train.reduce == CDR_REDUCE_TREE ? CDR_ORDER_TREE : CDR_ORDER_FREE;
    o.parallel.dispatch_factor = r->parallel.dispatch_factor;
    o.parallel.head = r->parallel.head;
    o.parallel.balanced = r->parallel.expert_placement == CDR_EXPERTS_BALANCED;
    o.weight_decay = r->optimizer.weight_decay;
    o.beta1 = r->optimizer.beta1;
    o.beta2 = r->optimizer.beta2;
    o.eps = r->optimizer.eps;
    o.max_grad_norm = r->optimizer.max_grad_norm;
    o.muon = r->optimizer.name == CDR_OPT_MUON;
    o.muon_momentum = r->optimizer.muon_momentum;
    o.muon_nesterov = r->optimizer.muon_nesterov;
    o.muon_iterations = (int)r->optimizer.muon_iterations;
    o.muon_scale = r->optimizer.muon_scale;
    o.muon_per_head = r->optimizer.muon_per_head != CDR_PER_HEAD_FALSE;
    sparse_opts(r, &o);
    CDR_TRY(s->adapter ? cdr__adapter_opts(s, &o, err) : r->lora.on ? cdr__session_lora(s, &o, err) : cdr__session_freeze(s, &o, err));
    CDR_TRY(cdr__serve_check(s, &o, err));
    uint32_t on;
    CDR_TRY(cdr__debug_switches(&on, err));
    o.rows_only = (on & CDR_DEBUG_ROWS) != 0;
    o.device = device;
    o.isa = isa;
    o.n_threads = n_threads;
    if (r->memory.device_limit > 0) o.budget_bytes = r->memory.device_limit;
    else if (s->machine.n_tiers > 0 && s->machine.tier[0].bytes > 0)
        o.budget_bytes = (s->machine.tier[0].bytes - s->machine.tier[0].reserve) / (s->machine.tier[0].per_node ? CDR_MAX(s->n_ranks, 1) : 1);
    s->opts = o;
    return CDR_OK;
}

int cdr__session_threads(const cdr_session *s, int cores, bool this_machine)
{
    const char *omp = this_machine ? getenv("OMP_NUM_THREADS") : NULL;
    if (s->r.machine.threads > 0) return (int)s->r.machine.threads;
    return omp && atoi(omp) > 0 ? atoi(omp) : CDR_MAX(1, cores / CDR_MAX(1, s->n_ranks));
}

/* Which device the recipe means, what it can do, threads of a rank. */
static cdr_status choose_device(cdr_session *s, int *kind, cdr_err *err)
{
    *kind = s->r.machine.device == CDR_USE_CUDA ? CDR_DEV_CUDA : CDR_DEV_CPU;
    return cdr_device_open(*kind, *kind == CDR_DEV_CUDA ? s->rank : 0, cdr__session_threads(s, cdr_cpu_cores(), true), &s->device, err);
}

cdr_status cdr__session_compile(cdr_session *s, cdr_err *err)
{
    int kind;
    if (!s->machine.runnable)
        CDR_FAIL_ID(err, CDR_EUSER, "machine.no-backend", "machine.file: %s is of kind %s, which this version has no backend for: it can be planned for (cadre plan), "
                    "not run on", s->machine.name, s->machine.kind);
    CDR_TRY(choose_device(s, &kind, err));
    CDR_TRY(cdr__session_opts(s, kind, s->device->isa, s->device->n_threads, err));
    if (kind == CDR_DEV_CUDA && s->r.memory.device_limit <= 0) s->opts.budget_bytes = 0;
    int64_t t0 = cdr_now_ns();
    CDR_TRY(cdr_compile(&s->opts, &s->builder, s->pool, &s->bundle, err));
    s->compile_s = (double)(cdr_now_ns() - t0) * 1e-9;
    s->compile_bytes = (int64_t)cdr_pool_bytes(s->pool);
    int64_t need = s->bundle.run_bytes[0] + s->bundle.exec_bytes[0];
    if (s->opts.budget_bytes > 0 && need > s->opts.budget_bytes) return cdr__does_not_fit(s, err);
    return CDR_OK;
}

cdr_status cdr__session_device(cdr_session *s, cdr_err *err)
{
    CDR_TRY(cdr__same_program(s, err));
    CDR_TRY(cdr__session_base_hash(s, err));
    uint32_t on;
    CDR_TRY(cdr__debug_switches(&on, err));
    cdr_exec_opts o = { .bundle = &s->bundle, .device = s->device, .world = s->world, .mesh = &s->mesh, .poison = (on & CDR_DEBUG_POISON) != 0,
                        .sync = (on & CDR_DEBUG_SYNC) != 0, .trace = (on & CDR_DEBUG_TRACE) != 0, .check_finite = (on & CDR_DEBUG_FINITE) != 0 };
    CDR_TRY(cdr__agree(s, cdr_exec_open(&o, &s->exec, err), err));
    s->T = s->opts.T;
    cdr__put_dense(s, 0);
    size_t n = sizeof *s->tokens * (size_t)CDR_MAX(s->T, s->opts.gen_T);
    s->tokens = cdr_pool_alloc(s->pool, n);
    s->targets = cdr_pool_alloc(s->pool, n);
    s->start = cdr_pool_alloc(s->pool, n);
    s->pos = cdr_pool_alloc(s->pool, n);
    s->weights = cdr_pool_alloc(s->pool, n);
    return CDR_OK;
}

int64_t cdr__shard_id(const cdr_session *s, int mb)
{
    return (s->mesh.rank[CDR_AXIS_REPLICATE] * s->r.ranks.n_micro + mb) * s->mesh.size[CDR_AXIS_SHARD] + s->mesh.rank[CDR_AXIS_SHARD];
}

cdr_status cdr__put_batch(cdr_session *s, int64_t step, int64_t *trained, int64_t *rows, cdr_err *err)
{
    int64_t N = s->r.ranks.n_micro * s->n_ranks;
    size_t bytes = sizeof *s->tokens * (size_t)s->T;
    *trained = *rows = 0;
    for (int32_t mb = 0; mb < s->r.ranks.n_micro; mb++) {
        int64_t n_trained, n_rows;
        cdr_data_shard(s->data, step, cdr__shard_id(s, mb), N, s->tokens, s->targets, s->start, s->pos, s->weights, &n_trained, &n_rows);
        *trained += n_trained;
        *rows += n_rows;
        cdr_exec_put(s->exec, CDR_PROG_STEP, "tokens", mb, s->tokens, bytes);
        cdr_exec_put(s->exec, CDR_PROG_STEP, "targets", mb, s->targets, bytes);
        cdr_exec_put(s->exec, CDR_PROG_STEP, "start", mb, s->start, bytes);
        cdr_exec_put(s->exec, CDR_PROG_STEP, "pos", mb, s->pos, bytes);
        if (s->opts.loss_weights) cdr_exec_put(s->exec, CDR_PROG_STEP, "weights", mb, s->weights, bytes);
        cdr_exec_put(s->exec, CDR_PROG_STEP, "micro", mb, &mb, sizeof mb);
    }
    return cdr_data_fault(s->data, err);
}

void cdr__put_dense(cdr_session *s, int64_t step)
{
    cdr_val v = cdr_program_find(&s->bundle, &s->bundle.progs[CDR_PROG_EVAL], "dsa_dense");
    int32_t dense = step < s->r.train.indexer_warmup_steps;
    if (v == CDR_NONE || s->dense == dense + 1) return;
    cdr_exec_put_run(s->exec, v, &dense, sizeof dense);
    s->dense = dense + 1;
}

void cdr__session_close(cdr_session *s)
{
    cdr_exec_close(s->exec);
    if (s->device) s->device->ops->close(s->device);
    if (s->data) cdr_data_close(s->data);
    cdr_weights_close(s->base);
    cdr_hf_close(s->hf);
    if (s->world) cdr_comm_close(s->world);
    cdr_tokenizer_close(s->tok);
    if (s->pool) cdr_pool_free(s->pool);
    memset(s, 0, sizeof *s);
}

double cdr__flops_per_token(const cdr_session *s)
{
    /* a row of n tokens has n (n + 1) / 2 pairs; backward of attention costs 2.5 forwards, of a product 2 */
    double mean_keys = 0.5 * (double)(s->r.train.sequence_length + 1);
    double products = s->r.lora.on ? 4.0 * s->info->matmul_params + 6.0 * cdr__lora_active(s) : 6.0 * s->info->matmul_params;
    return products + 3.5 * mean_keys * cdr_model_pair_flop(s->model);
}
