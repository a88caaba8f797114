/* onboard_run.c: what onboard checks by running the model: LoRA with B = 0 against the base, the loss before the first step, and the family at
 * toy size: the compiled F32 program against the same graph in the interpreter that computes in double precision (run/oracle.c), value by value.
 */
#include "command/onboard.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { EVAL_TOKENS = 256, TINY_TOKENS = 48 };

/* ---- an open model that evaluates ------------------------------------------------------------------------------------------------ */

/* A base without adapters is only read here: what the directory packs stays packed. */
static void hold_still(cdr_session *s)
{
    int64_t n = cdr_model_params(s->model);
    const char **name = cdr_pool_alloc(s->pool, sizeof *name * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) name[i] = cdr_model_param(s->model, i);
    s->opts.freeze = name;
    s->opts.n_freeze = (int)n;
    s->opts.indexer_train = false;
}

cdr_status cdr__eval_open(const cdr__eval_spec *e, const cdr_common *c, cdr_session *s, cdr_err *err)
{
    cdr_common with = { .quiet = c->quiet, .verbose = c->verbose };
    const char *set[24];
    int n = 0;
    for (int i = 0; i < c->n_set && n < 12; i++) set[n++] = c->set[i];
    for (int i = 0; i < e->n_set && n < CDR_COUNT(set) - 3; i++) set[n++] = e->set[i];
    char seq[64], micro[64];
    snprintf(seq, sizeof seq, "train.sequence_length=%lld", (long long)e->T);
    snprintf(micro, sizeof micro, "train.micro_batch_tokens=%lld", (long long)e->T);
    set[n++] = seq;
    set[n++] = micro;
    with.set = set;
    with.n_set = n;
    CDR_TRY(cdr__session_recipe(s, e->recipe, &with, err));
    cdr_model_set_probe(s->model, e->probe);
    CDR_TRY(cdr__session_ranks(s, err));
    int kind = s->r.machine.device == CDR_USE_CUDA ? CDR_DEV_CUDA : CDR_DEV_CPU, threads = cdr__session_threads(s, cdr_cpu_cores(), true);
    CDR_TRY(cdr_device_open(kind, 0, threads, &s->device, err));
    CDR_TRY(cdr__session_opts(s, kind, s->device->isa, threads, err));
    s->opts.infer_only = true;
    s->opts.n_micro = 1;
    s->opts.gen_T = 0;
    if (cdr_model_dir(s->model) && !s->r.lora.on) hold_still(s);
    CDR_TRY(cdr_compile(&s->opts, &s->builder, s->pool, &s->bundle, err));
    int64_t need = s->bundle.run_bytes[0] + s->bundle.exec_bytes[0];
    if (s->opts.budget_bytes > 0 && need > s->opts.budget_bytes)
        CDR_FAIL_ID(err, CDR_EUSER, "onboard.does-not-fit", "%.1f GB are needed to run it, %.1f GB are there; a slice (model.layers) may fit",
                    (double)need * 1e-9, (double)s->opts.budget_bytes * 1e-9);
    CDR_TRY(cdr__session_device(s, err));
    return cdr__session_weights(s, err);
}

static void put_ids(cdr_session *s, const int32_t *ids, int64_t n)
{
    size_t bytes = sizeof *ids * (size_t)s->T;
    for (int64_t t = 0; t < s->T; t++) {
        bool live = t < n;
        s->tokens[t] = live ? ids[t] : 0;
        s->targets[t] = t + 1 < n ? ids[t + 1] : -1;
        s->start[t] = live ? 0 : (int32_t)t + 1;
        s->pos[t] = (int32_t)t;
    }
    cdr_exec_put(s->exec, CDR_PROG_EVAL, "tokens", 0, s->tokens, bytes);
    cdr_exec_put(s->exec, CDR_PROG_EVAL, "targets", 0, s->targets, bytes);
    cdr_exec_put(s->exec, CDR_PROG_EVAL, "start", 0, s->start, bytes);
    cdr_exec_put(s->exec, CDR_PROG_EVAL, "pos", 0, s->pos, bytes);
}

cdr_status cdr__eval_ids(cdr_session *s, const int32_t *ids, int64_t n, double *loss, cdr_err *err)
{
    put_ids(s, ids, n);
    CDR_TRY(cdr_exec_run(s->exec, CDR_PROG_EVAL, err));
    cdr_exec_get(s->exec, CDR_PROG_EVAL, "sums", 0, loss, sizeof *loss);
    return CDR_OK;
}

/* ---- LoRA with B = 0, and the first loss ------------------------------------------------------------------------------------------- */

static const char sample[] =
    "The post arrived late in the afternoon, and with it came a letter that nobody had expected. Anna read it twice by the window before she said anything. "
    "\"They have found the old maps,\" she said at last, \"and they want us to come and see them before the end of the month.\" Her brother put down his cup. "
    "It had been eleven years since the river changed its course, and in all that time no one had been able to say where the northern boundary of the farm had run. "
    "If the maps were what the letter claimed, the question could be settled in an afternoon; if they were copies, as so many had been, it would only begin the "
    "quarrel again. They agreed to write back in the morning, and went out to look at the sky.";

/* English text as ids; without a tokenizer, ids of no meaning. */
static int64_t sample_ids(const cdr__onboard *o, int32_t ids[EVAL_TOKENS])
{
    int64_t n = EVAL_TOKENS, vocab = cdr_model_get_info(o->m)->vocab;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(cdr_rng_u64((cdr_rng_key){ 1, 2, 3 }, (uint64_t)i) % (uint64_t)vocab);
    if (!o->tok) return n;
    int32_t *all = cdr_alloc(sizeof *all * (size_t)(cdr_tokenizer_room(o->tok, sizeof sample) + 1));
    n = CDR_MIN(cdr_tokenizer_encode(o->tok, sample, sizeof sample - 1, all), (int64_t)EVAL_TOKENS);
    memcpy(ids, all, sizeof *ids * (size_t)n);
    cdr_free(all);
    return n;
}

static cdr_status loss_with(cdr__onboard *o, const char *const *set, int n_set, const int32_t *ids, int64_t n, double *loss, cdr_err *err)
{
    cdr_session s;
    memset(&s, 0, sizeof s);
    cdr__eval_spec e = { .recipe = o->recipe, .set = set, .n_set = n_set, .T = EVAL_TOKENS };
    cdr_status st = cdr__eval_open(&e, o->common, &s, err);
    if (st == CDR_OK) st = cdr__eval_ids(&s, ids, n, loss, err);
    cdr__session_close(&s);
    return st;
}

void cdr__onboard_lora(cdr__onboard *o)
{
    static const char *const base[] = { "lora=none" }, *const all[] = { "lora.targets=[all_linear]", "lora.experts=none" };
    int32_t ids[EVAL_TOKENS];
    int64_t n = sample_ids(o, ids), vocab = cdr_model_get_info(o->m)->vocab;
    double with = 0, without = 0;
    cdr_err err = { 0 };
    cdr_status st = loss_with(o, base, CDR_COUNT(base), ids, n, &without, &err);
    if (st == CDR_OK) st = loss_with(o, all, CDR_COUNT(all), ids, n, &with, &err);
    if (st != CDR_OK) {
        bool fits = strcmp(err.id, "onboard.does-not-fit") != 0;
        cdr_err again = err;
        cdr__card_error(o, CDR__ITEM_LORA_ZERO, fits ? CDR__FAILED : CDR__UNVERIFIED, &err);
        cdr__card_error(o, CDR__ITEM_FIRST_LOSS, CDR__UNVERIFIED, &again);
        return;
    }
    bool equal = memcmp(&with, &without, sizeof with) == 0;
    double first = without / (double)CDR_MAX(n - 1, (int64_t)1), even = log((double)vocab);
    cdr__card_put(o, CDR__ITEM_LORA_ZERO, equal ? CDR__VERIFIED : CDR__FAILED,
                  (cdr__finding){ .figure = with - without, .unit = "nats", .expected = "0",
                                  .detail = cdr_pool_printf(o->pool, "adapters on all_linear, %lld tokens", (long long)n) });
    bool sane = first > 0 && first < 3 * even;
    const char *expected = cdr_pool_printf(o->pool, "from random weights about ln(vocab) = %.3f or more, from trained ones less", even);
    cdr__card_put(o, CDR__ITEM_FIRST_LOSS, sane && o->tok ? CDR__VERIFIED : sane ? CDR__UNVERIFIED : CDR__FAILED,
                  (cdr__finding){ .figure = first, .unit = "nats/token", .expected = expected,
                                  .detail = cdr_pool_printf(o->pool, "%lld tokens of English", (long long)n) });
}

/* ---- the family at toy size ---------------------------------------------------------------------------------------------------------- */

static const char *tiny_of(const char *family, cdr_pool *pool)
{
    int n;
    const char *const *names = cdr_builtin_names("models", pool, &n);
    for (int i = 0; i < n; i++) {
        cdr_model_spec spec = { .path = names[i] };
        cdr_model *m;
        cdr_err err = { 0 };
        if (strncmp(names[i], "tiny-", 5) != 0 || cdr_model_load(&spec, pool, &m, &err)) continue;
        if (strcmp(cdr_model_get_info(m)->family, family) == 0) return names[i];
    }
    return NULL;
}

typedef struct { cdr_bundle b; cdr_graph *g; cdr_io io; cdr_oracle *o; } interpreter;

static cdr_val input(cdr_graph *g, const char *name, int64_t n) { return cdr_graph_value(g, cdr_type_1d(CDR_I32, n), CDR_STEP, CDR_C_INPUT, name); }

/* The forward graph once more, uncompiled. */
static cdr_status build(interpreter *x, const cdr_session *s, cdr_err *err)
{
    x->g = cdr_graph_new(s->pool, &x->b, "eval", err);
    cdr_graph_list(x->g, "micro");
    CDR_TRY(s->builder.declare(s->builder.model, x->g, err));
    x->g->scope = CDR_TURN;
    x->io = (cdr_io){ .mode = CDR_MODE_EVAL, .T = s->T, .S = s->T, .compute = CDR_F32, .sequence = s->T, .balance_own = true,
                      .targets_T = CDR_NONE, .weights_T = CDR_NONE, .scale_1 = CDR_NONE, .scale_rows_1 = CDR_NONE, .micro_1 = CDR_NONE, .n_live_1 = CDR_NONE,
                      .loss_1 = CDR_NONE, .logits_TW = CDR_NONE };
    x->io.tokens_T = input(x->g, "tokens", s->T);
    x->io.targets_T = input(x->g, "targets", s->T);
    x->io.start_T = input(x->g, "start", s->T);
    x->io.pos_T = input(x->g, "pos", s->T);
    x->io.dense_1 = input(x->g, "dense", 1);
    CDR_TRY(s->builder.forward(s->builder.model, x->g, &x->io, err));
    x->o = cdr_oracle_new(x->g);
    return CDR_OK;
}

static void give_ints(interpreter *x, cdr_val v, const int32_t *from, int64_t n)
{
    double *d = cdr_alloc(sizeof *d * (size_t)n);
    for (int64_t i = 0; i < n; i++) d[i] = from[i];
    cdr_oracle_put(x->o, v, d);
    cdr_free(d);
}

/* The session's weights, widened. All are F32 there: one rank, precision.compute=f32, nothing packed. */
static void give_weights(interpreter *x, cdr_session *s)
{
    for (int32_t i = 0; i < x->b.n_params; i++) {
        int32_t at = cdr_param_find(&s->bundle, x->b.params[i].name);
        CDR_CHECK(at >= 0);
        int64_t n = cdr_type_elems(&x->b.params[i].global);
        CDR_CHECK(cdr_exec_run_bytes(s->exec, s->bundle.params[at].shard) == sizeof(float) * (size_t)n);
        float *f = cdr_alloc(sizeof *f * (size_t)n);
        double *d = cdr_alloc(sizeof *d * (size_t)n);
        cdr_exec_get_run(s->exec, s->bundle.params[at].shard, f, sizeof *f * (size_t)n);
        for (int64_t k = 0; k < n; k++) d[k] = (double)f[k];
        cdr_oracle_put(x->o, x->b.params[i].shard, d);
        cdr_free(f);
        cdr_free(d);
    }
}

static cdr_val named(const interpreter *x, const char *name)
{
    for (int64_t i = 0; i < x->g->n_vals; i++) if (strcmp(x->g->strings + x->g->vals[i].name, name) == 0) return CDR_LOCAL0 + (cdr_val)i;
    return CDR_NONE;
}

/* Largest difference over the largest value, of the logits. */
static double compare(interpreter *x, cdr_session *s)
{
    int64_t n = s->T * s->info->vocab;
    float *f = cdr_alloc(sizeof *f * (size_t)n);
    double *d = cdr_alloc(sizeof *d * (size_t)n), worst = 0, largest = 0;
    cdr_exec_get(s->exec, CDR_PROG_EVAL, "head.logits", 0, f, sizeof *f * (size_t)n);
    cdr_oracle_get(x->o, named(x, "head.logits"), d);
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)f[i] - d[i]);
        worst = e > worst || e != e ? e : worst;
        largest = CDR_MAX(largest, fabs(d[i]));
    }
    cdr_free(f);
    cdr_free(d);
    return worst / largest;
}

/* By a file of its own: a folder of that name may lie where the command runs. */
static cdr_status run_tiny(cdr__onboard *o, const char *tiny, double *worst, cdr_err *err)
{
    const char *path = cdr_pool_printf(o->pool, "%s/tiny.yaml", o->out), *text = cdr_builtin("models", tiny);
    CDR_TRY(cdr_file_write(path, text, strlen(text), err));
    const char *set[] = { cdr_pool_printf(o->pool, "model.path=%s", path), "lora=none", "precision.compute=f32", "precision.params=f32", "precision.experts=bf16",
                          "data.tokenizer=byte", "data.chat_format=none", "machine.file=auto", "machine.devices=1", "machine.device=cpu" };
    cdr__eval_spec e = { .recipe = o->recipe, .set = set, .n_set = CDR_COUNT(set), .probe = CDR_PROBE_NATURAL, .T = TINY_TOKENS };
    cdr_session s;
    interpreter x = { .g = NULL };
    int32_t ids[TINY_TOKENS], zero = 0;
    double loss;
    memset(&s, 0, sizeof s);
    cdr_status st = cdr__eval_open(&e, o->common, &s, err);
    for (int i = 0; i < TINY_TOKENS; i++) ids[i] = (int32_t)(cdr_rng_u64((cdr_rng_key){ 7, 8, 9 }, (uint64_t)i) % 256);
    if (st == CDR_OK) st = cdr__eval_ids(&s, ids, TINY_TOKENS, &loss, err);
    if (st == CDR_OK) st = build(&x, &s, err);
    if (st == CDR_OK) {
        give_ints(&x, x.io.tokens_T, s.tokens, s.T);
        give_ints(&x, x.io.targets_T, s.targets, s.T);
        give_ints(&x, x.io.start_T, s.start, s.T);
        give_ints(&x, x.io.pos_T, s.pos, s.T);
        give_ints(&x, x.io.dense_1, &zero, 1);
        give_weights(&x, &s);
        st = cdr_oracle_run(x.o, x.g->lists[0].calls, x.g->lists[0].n, err);
    }
    if (st == CDR_OK) *worst = compare(&x, &s);
    cdr_oracle_free(x.o);
    cdr__session_close(&s);
    unlink(path);
    return st;
}

void cdr__onboard_tiny(cdr__onboard *o)
{
    const double limit = 2e-4;
    const char *family = cdr_model_get_info(o->m)->family, *tiny = tiny_of(family, o->pool);
    double worst = 0;
    cdr_err err = { 0 };
    if (!tiny) {
        cdr__card_put(o, CDR__ITEM_TINY_PARITY, CDR__UNVERIFIED, (cdr__finding){ .detail = cdr_pool_printf(o->pool, "no built-in tiny model of family %s", family) });
        return;
    }
    if (run_tiny(o, tiny, &worst, &err)) {
        cdr__card_error(o, CDR__ITEM_TINY_PARITY, CDR__FAILED, &err);
        return;
    }
    cdr__card_put(o, CDR__ITEM_TINY_PARITY, worst < limit ? CDR__VERIFIED : CDR__FAILED,
                  (cdr__finding){ .figure = worst, .unit = "of the largest logit", .expected = cdr_pool_printf(o->pool, "below %g", limit),
                                  .detail = cdr_pool_printf(o->pool, "%s, %d tokens, F32 program against double", tiny, TINY_TOKENS) });
}
