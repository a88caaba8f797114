/* test_golden_models.c: whole models against an implementation that they were not derived from: tools/golden_models.py, float64 with automatic
 * differentiation, written from the specification alone, each document computed by itself. Four tiny configurations with packed documents
 * (1 to 67 rows) and idle rows, two micro-batches: K3, K3.1 (sparse attention and its warm-up), Kimi-Linear, DeepSeek-V3.2. Compared:
 *   in double, through the operators' references (graph, differentiation and references, without kernels): hidden state after each layer,
 *   logits, loss, KL, every gradient;
 *   in F32, the compiled program: the same, then ten steps of AdamW and of Muon: losses, norms, every weight.
 * Error of a tensor: max |a - b| / max |b|. A tensor that is zero there must be zero here.
 * Tolerances. Double: both sides round at 1e-16; sums of up to a few thousand terms, decays and inverse square roots make 6e-14 of that, and
 * 1e-11 is allowed; a constant rounded to F32 on one side alone (3e-8) does not pass. F32, 6e-8 an operation: forward 1e-5; gradients 1e-4
 * (they pass twice as many operators, and a small entry may be a difference of large ones). Weights after ten steps 1e-4: an update of
 * AdamW has relative error |dg| / (|g| + eps), and Newton-Schulz amplifies the noise of small singular values up to 3.4445^5 = 485 times.
 * Losses and norms of later steps: in float64, first weights moved by 6e-8 of themselves change the norms of K3's ten steps by up to 6e-5,
 * its losses by 4e-6 and its last weights by 8e-6; the forward's F32 rounding, up to 7e-6, is what moves them here.
 * Selections (experts, groups, keys) are at least 1e-4 from a tie in the first step and 1e-5 later, so both sides take the same. */
#include "compile/pass.h"
#include "io/io.h"
#include "models/models.h"
#include "ops/copy/copy.h"
#include "ops/detach/detach.h"
#include "ops/linear/linear.h"
#include "run/run.h"
#include "test.h"

enum { T = 80, N_MICRO = 2, STEPS = 10, MAX_HIDDEN = 8 };
#define COEF 0.75
#define TOL_DOUBLE 1e-11
#define TOL_FORWARD 1e-5
#define TOL_GRAD 1e-4
#define TOL_STEPS 1e-4
#define TOL_LATER_LOSS 5e-5
#define TOL_LATER_NORM 1e-3

typedef struct { const char *name, *yaml; bool softplus, indexer; } tiny_model;

#define BYTES "tokenizer: {type: byte, file: none, base: none, special: none, pattern: none}\n"
/* K3's experts are packed in rows of 32; these are narrower */
#define PLAIN "tensors: {moe: {\"expert.w1|w3\": [\"experts.{expert}.{}.weight\", [width, latent]], expert.w2: [\"experts.{expert}.w2.weight\", [latent, width]]}}\n"
static const tiny_model k3 = { "k3", "extends: kimi_k3\nname: golden-k3\n"
    "sizes: {hidden: 24, vocab: 48, n_layers: 4, full_layers: [2, 4], attn_block: 3, kda: {heads: 2, dim: 16},\n"
    "        mla: {heads: 2, q_lora: 12, kv_lora: 12, nope: 8, ext: 8, v: 8}, glu: {width: 20},\n"
    "        moe: {experts: 8, top_k: 2, latent: 12, width: 8, shared: 1}}\n" PLAIN BYTES, false, false };
static const tiny_model k31 = { "k31", "extends: kimi_k31\nname: golden-k31\n"
    "sizes: {hidden: 24, vocab: 48, n_layers: 5, full_layers: [3, 5], attn_block: 2, kda: {heads: 2, dim: 16},\n"
    "        mla: {heads: 2, q_lora: 12, kv_lora: 12, nope: 8, ext: 8, v: 8}, index: {heads: 2, dim: 8, top_k: 7}, glu: {width: 20},\n"
    "        moe: {experts: 8, top_k: 2, latent: 12, width: 8, shared: 1}}\n" PLAIN BYTES, false, true };
static const tiny_model linear = { "linear", "extends: kimi_linear\nname: golden-linear\n"
    "sizes: {hidden: 24, vocab: 48, n_layers: 4, full_layers: [3, 4], kda: {heads: 2, dim: 16}, mla: {heads: 2, kv_lora: 12, nope: 8, ext: 8, v: 8},\n"
    "        glu: {width: 20}, moe: {experts: 8, top_k: 3, width: 8, shared: 1}}\n" BYTES, true, false };
static const tiny_model v32 = { "v32", "extends: deepseek_v32\nname: golden-v32\n"
    "sizes: {hidden: 24, vocab: 48, n_layers: 3, first_dense: 1, rope_theta: 100, yarn: {factor: 4, original: 64, beta_fast: 4, beta_slow: 1},\n"
    "        mla: {heads: 2, q_lora: 12, kv_lora: 12, nope: 8, ext: 8, v: 8}, index: {heads: 2, dim: 8, top_k: 6}, glu: {width: 20},\n"
    "        moe: {experts: 16, top_k: 3, width: 8, shared: 1, groups: 4, top_groups: 2}}\n"
    "tokenizer: {type: byte, file: none}\n", false, true };

/* ---- the golden file --------------------------------------------------------------------------------------------------------- */
static double *numbers(const cdr_st *st, const char *name, int64_t *n)
{
    const cdr_st_tensor *t = cdr_st_find(st, name);
    if (!t) {
        fprintf(stderr, "the golden file has no tensor %s\n", name);
        exit(1);
    }
    const char *format = cdr_st_format_row(t->format)->name, *data = cdr_st_data(st, t);
    *n = 1;
    for (int i = 0; i < t->n_dim; i++) *n *= t->n[i];
    double *x = malloc(sizeof *x * (size_t)*n);
    for (int64_t i = 0; i < *n; i++) {
        float f;
        int32_t k;
        int64_t l;
        if (strcmp(format, "F64") == 0) {
            memcpy(&x[i], data + 8 * i, 8);
        } else if (strcmp(format, "F32") == 0) {
            memcpy(&f, data + 4 * i, 4);
            x[i] = (double)f;
        } else if (strcmp(format, "I32") == 0) {
            memcpy(&k, data + 4 * i, 4);
            x[i] = k;
        } else {
            CDR_CHECK(strcmp(format, "I64") == 0);
            memcpy(&l, data + 8 * i, 8);
            x[i] = (double)l;
        }
    }
    return x;
}

typedef struct { double error; char name[160]; int n, n_bad; } worst;        /* of the tensors compared; n: how many */

/* Rows of width n / rows; skip: rows that do not count (NULL: none). */
static void compare(worst *w, const char *name, const double *got, const double *want, int64_t n, const bool *skip_T, double tol)
{
    double top = 0, off = 0;
    int64_t width = skip_T ? n / T : n;
    for (int64_t i = 0; i < n; i++) {
        if (skip_T && skip_T[i / width]) continue;
        top = fmax(top, fabs(want[i]));
        double d = fabs(got[i] - want[i]);
        off = isfinite(d) ? fmax(off, d) : INFINITY;
    }
    double error = top > 0 ? off / top : off > 0 ? INFINITY : 0;
    w->n++;
    if (error >= w->error) {
        w->error = error;
        snprintf(w->name, sizeof w->name, "%s", name);
    }
    if (error <= tol) return;
    t_this_failed = true;
    if (w->n_bad++ < 6) fprintf(stderr, "  %s: error %.3g, allowed %.1g\n", name, error, tol);
}

static void report(const tiny_model *m, const char *what, const worst *w)
{
    printf("      %-7s %-32s %3d tensors, worst %.2e  %s\n", m->name, what, w->n, w->error, w->name);
    if (w->n_bad > 0) fprintf(stderr, "  %s, %s: %d of %d tensors are wrong\n", m->name, what, w->n_bad, w->n);
}

static const char *key(const char *tag, const char *prefix, const char *name)
{
    static char text[2][256];
    static int i;
    i ^= 1;
    snprintf(text[i], sizeof text[i], "%s%s%s", tag, prefix, name);
    return text[i];
}

/* ---- weights: the formula of tools/golden_models.py -------------------------------------------------------------------------- */
static uint64_t splitmix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void kind_of(const tiny_model *m, const cdr_param *q, double *centre, double *scale)
{
    const char *s = q->name;
    double fan_in = sqrt(3.0 / (double)q->global.n[q->global.n_dim - 1]);
    *centre = 0;
    *scale = fan_in;
    if (strstr(s, "A_log")) *centre = m->softplus ? 1.4 : 0.1, *scale = m->softplus ? 1.0 : 0.5;
    else if (strstr(s, "dt_bias")) *centre = -3.5, *scale = 2.5;
    else if (strstr(s, "e_score_correction_bias")) *scale = 0.15;
    else if (strstr(s, "k_norm.bias")) *scale = 0.3;
    else if (strstr(s, "conv1d")) *scale = 0.5;
    else if (strstr(s, "embed_tokens")) *scale = 1.0;
    else if (q->global.n_dim == 1) *centre = 1.0, *scale = 0.25;
    else if (strstr(s, "gate.weight") || strstr(s, "indexer.wq_b") || strstr(s, "indexer.wk")) *scale = 2.0 * fan_in;
}

static float *weights(const tiny_model *m, const cdr_param *q, int64_t salt)
{
    int64_t n = cdr_type_elems(&q->global);
    float *w = malloc(sizeof *w * (size_t)n);
    uint64_t h = 0xCBF29CE484222325u;
    for (const char *c = q->name; *c; c++) h = (h ^ (uint8_t)*c) * 0x100000001B3u;
    h += (uint64_t)salt * 0x9E3779B97F4A7C15u;
    double centre, scale;
    kind_of(m, q, &centre, &scale);
    for (int64_t i = 0; i < n; i++) {
        float u = (float)((int64_t)(splitmix64(h + (uint64_t)i) >> 40) - (1 << 23)) * 0x1p-23f;
        w[i] = (float)centre + (float)scale * u;
    }
    return w;
}

/* ---- the model, with its hidden states kept ----------------------------------------------------------------------------------- */
typedef struct { cdr_builder inner; int n_layers; cdr_val hidden[MAX_HIDDEN], final, logits; } watched;

/* The residual stream after layer i: what its last addition makes. */
static cdr_val after_layer(const cdr_graph *g, int layer)
{
    cdr_val v = CDR_NONE;
    for (int64_t i = 0; i < g->n_calls; i++)
        if (g->calls[i].layer == layer && strcmp(cdr_ops[g->calls[i].op]->name, "add") == 0) v = cdr_graph_out(g, &g->calls[i], 0);
    CDR_CHECK(v != CDR_NONE);
    return v;
}

/* A copy that outlives the turn, one for each micro-batch; no gradient passes. */
static cdr_val kept(cdr_graph *g, cdr_val x, const char *name)
{
    cdr_val seen = cdr_detach(g, x), v = cdr_graph_value(g, *cdr_graph_type(g, x), CDR_STEP, CDR_C_INPUT, name);
    cdr_graph_at(g, v)->n_inst = N_MICRO;
    cdr_copy_attr a = { CDR_F32 };
    cdr_graph_call(g, &cdr_op_copy, &a, 1, &seen, 1, &v);
    return v;
}

static cdr_status forward(const void *model, cdr_graph *g, cdr_io *io, cdr_err *err)
{
    watched *w = (watched *)(uintptr_t)model;
    CDR_TRY(w->inner.forward(w->inner.model, g, io, err));
    if (io->mode != CDR_MODE_TRAIN) return CDR_OK;
    cdr_val h = CDR_NONE, head = CDR_NONE;
    for (int64_t i = 0; i < g->n_calls; i++) {
        if (strcmp(cdr_ops[g->calls[i].op]->name, "loss") != 0) continue;
        h = cdr_graph_in(g, &g->calls[i], 0);
        head = cdr_graph_in(g, &g->calls[i], 1);
    }
    cdr_graph_enter(g, -1, "%s", "");
    cdr_val logits = cdr_linear_f32(g, cdr_detach(g, h), cdr_detach(g, head));
    for (int i = 0; i < w->n_layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "seen.hidden.%d", i);
        w->hidden[i] = kept(g, after_layer(g, i), name);
    }
    w->final = kept(g, h, "seen.hidden.final");
    w->logits = kept(g, logits, "seen.logits");
    return g->failed ? err->status : CDR_OK;
}

static cdr_status declare(const void *model, cdr_graph *g, cdr_err *err)
{
    const watched *w = model;
    return w->inner.declare(w->inner.model, g, err);
}

typedef struct {
    const tiny_model *m;
    cdr_pool *pool; cdr_st *st; watched w; cdr_builder builder; cdr_err err;
    int64_t salt, trained, rows; double lr;
    int32_t data[4][N_MICRO][T];                            /* tokens targets start pos */
    bool idle[T];                                           /* of micro-batch 0 */
} rig;
static const char *const data_name[] = { "tokens", "targets", "start", "pos" };

static void stop_on(const rig *r, cdr_status st)
{
    if (st == CDR_OK) return;
    fprintf(stderr, "%s: %s\n", r->m->name, r->err.text);
    exit(1);
}

static void open_rig(rig *r, const tiny_model *m)
{
    memset(r, 0, sizeof *r);
    r->m = m;
    r->pool = cdr_pool_new();
    stop_on(r, cdr_st_open(key("test/golden/models/", m->name, ".safetensors"), &r->st, &r->err));
    cdr_model *model = NULL;
    cdr_model_spec spec = { .path = m->name };
    stop_on(r, cdr_model_parse(&spec, m->yaml, strlen(m->yaml), "test_golden_models.c", r->pool, &model, &r->err));
    r->w.inner = cdr_model_builder(model);
    r->w.n_layers = cdr_model_get_info(model)->n_layers;
    CDR_CHECK(r->w.n_layers <= MAX_HIDDEN);
    r->builder = (cdr_builder){ .model = &r->w, .declare = declare, .forward = forward };
    int64_t n;
    for (int k = 0; k < 4; k++) {
        double *x = numbers(r->st, data_name[k], &n);
        CDR_CHECK(n == N_MICRO * T);
        for (int i = 0; i < n; i++) r->data[k][i / T][i % T] = (int32_t)x[i];
        free(x);
    }
    double *salt = numbers(r->st, "salt", &n), *lr = numbers(r->st, "lr", &n);
    r->salt = (int64_t)salt[0];
    r->lr = lr[0];
    free(salt);
    free(lr);
    for (int i = 0; i < N_MICRO * T; i++) {
        bool idle = r->data[2][i / T][i % T] > r->data[3][i / T][i % T];
        r->trained += r->data[1][i / T][i % T] >= 0;
        r->rows += !idle;
        if (i < T) r->idle[i] = idle;
    }
    T_CHECK(r->rows < N_MICRO * T && r->trained < r->rows && r->idle[T - 1]);
}

static void close_rig(rig *r)
{
    cdr_st_close(r->st);
    cdr_pool_free(r->pool);
}

static cdr_compile_opts options(int n_micro)
{
    cdr_compile_opts o = cdr_compile_defaults();
    o.T = T;
    o.n_micro = n_micro;
    o.loss_chunk_tokens = 32;
    o.loss_chunk_vocab = 32;
    o.policy = CDR_POLICY_KEEP;
    o.weight_decay = 0.1;
    o.eps = 1e-3;
    o.max_grad_norm = 0.5;
    o.muon_nesterov = o.muon_per_head = true;
    o.muon_iterations = 5;
    o.muon_momentum = 0.95;
    o.muon_scale = 0.2;
    o.balance = CDR_BALANCE_NONE;
    o.indexer_train = true;
    o.indexer_coef = COEF;
    return o;
}

/* ---- the graph, through the double references ---------------------------------------------------------------------------------- */
static void get_added(cdr_oracle *o, cdr_val v, double *sum, int64_t n)
{
    double *x = malloc(sizeof *x * (size_t)n);
    cdr_oracle_get(o, v, x);
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
    free(x);
}

static void compare_value(const rig *r, cdr_oracle *o, worst *w, cdr_val v, const char *tag, const char *name)
{
    int64_t n;
    double *want = numbers(r->st, key(tag, name, ""), &n), *got = malloc(sizeof *got * (size_t)n);
    cdr_oracle_get(o, v, got);
    compare(w, key(tag, name, ""), got, want, n, r->idle, TOL_DOUBLE);
    free(want);
    free(got);
}

/* The first layer's mixer before attention does not exist; its two parameters do, and are never moved. */
static bool has_gradient(const cdr_param *q)
{
    bool dead = strstr(q->name, ".layers.0.self_attention_res_") != NULL;
    T_CHECK(q->train == CDR_STATE || (q->grad == CDR_NONE) == dead);
    return q->train == CDR_FULL && !dead;
}

static void references(const tiny_model *m, bool dense)
{
    rig r;
    open_rig(&r, m);
    const char *tag = dense ? "dense." : "";
    cdr_compile_opts opts = options(1);
    cdr_bundle b;
    memset(&b, 0, sizeof b);
    cdr_pass p = { .o = &opts, .m = &r.builder, .pool = r.pool, .b = &b, .err = &r.err, .n_shard = 1, .n_replicate = 1 };
    stop_on(&r, cdr__build(&p));
    stop_on(&r, cdr__adapt(&p));
    stop_on(&r, cdr__differentiate(&p));
    cdr_graph *g = p.g[CDR_PROG_STEP];
    const cdr_list *l = cdr__list(g, CDR_L_MICRO);
    cdr_io *io = &p.io[CDR_PROG_STEP];
    cdr_oracle *o = cdr_oracle_new(g);
    double **grad = calloc((size_t)b.n_params, sizeof *grad), loss = 0, kl[64] = { 0 }, kl_sum = 0;
    for (int32_t i = 0; i < b.n_params; i++) {
        int64_t n = cdr_type_elems(&b.params[i].global);
        float *w = weights(m, &b.params[i], r.salt);
        double *x = malloc(sizeof *x * (size_t)n);
        for (int64_t e = 0; e < n; e++) x[e] = (double)w[e];
        cdr_oracle_put(o, b.params[i].shard, x);
        grad[i] = calloc((size_t)n, sizeof **grad);
        free(w);
        free(x);
    }
    double one = dense, scale = 1.0 / (double)r.trained, scale_rows = 1.0 / (double)r.rows;
    cdr_oracle_put(o, p.dense_1, &one);
    cdr_oracle_put(o, io->scale_1, &scale);
    cdr_oracle_put(o, io->scale_rows_1, &scale_rows);
    worst fwd = { 0 }, bwd = { 0 };
    for (int mb = 0; mb < N_MICRO; mb++) {
        const cdr_val in[] = { io->tokens_T, io->targets_T, io->start_T, io->pos_T };
        for (int k = 0; k < 4; k++) {
            double x[T];
            for (int t = 0; t < T; t++) x[t] = r.data[k][mb][t];
            cdr_oracle_put(o, in[k], x);
        }
        double index = 0;                                   /* each run overwrites what is counted */
        cdr_oracle_put(o, io->micro_1, &index);
        stop_on(&r, cdr_oracle_run(o, l->calls, l->n, &r.err));
        get_added(o, p.loss_acc_1, &loss, 1);
        if (p.extra_acc_n != CDR_NONE) get_added(o, p.extra_acc_n, kl, io->n_extra);
        for (int32_t i = 0; i < b.n_params; i++)
            if (has_gradient(&b.params[i])) get_added(o, b.params[i].grad, grad[i], cdr_type_elems(&b.params[i].global));
        if (mb > 0) continue;
        for (int i = 0; i < r.w.n_layers; i++) {
            char name[32];
            snprintf(name, sizeof name, "hidden.%d", i);
            compare_value(&r, o, &fwd, r.w.hidden[i], tag, name);
        }
        compare_value(&r, o, &fwd, r.w.final, tag, "hidden.final");
        compare_value(&r, o, &fwd, r.w.logits, tag, "logits");
    }
    T_CHECK((io->n_extra > 0) == m->indexer);
    for (int i = 0; i < io->n_extra; i++) kl_sum += kl[i];
    int64_t n;
    double *want = numbers(r.st, key(tag, "loss", ""), &n), *want_kl = numbers(r.st, key(tag, "kl", ""), &n);
    want_kl[0] *= COEF;
    compare(&fwd, "loss", &loss, want, 1, NULL, TOL_DOUBLE);
    compare(&fwd, "kl", &kl_sum, want_kl, 1, NULL, TOL_DOUBLE);
    report(m, dense ? "double, warm-up: forward" : "double: forward", &fwd);
    for (int32_t i = 0; i < b.n_params; i++) {
        if (b.params[i].train != CDR_FULL) continue;
        double *x = numbers(r.st, key(tag, "grad/", b.params[i].name), &n);
        T_CHECK(n == cdr_type_elems(&b.params[i].global));
        bool rounded = dense && !strstr(b.params[i].name, "indexer");      /* kept as F32 in the file */
        compare(&bwd, key(tag, "grad/", b.params[i].name), grad[i], x, n, NULL, rounded ? 1e-7 : TOL_DOUBLE);
        free(x);
    }
    report(m, dense ? "double, warm-up: gradients" : "double: gradients", &bwd);
    T_CHECK(fwd.n == r.w.n_layers + 4 && bwd.n > 40);
    for (int32_t i = 0; i < b.n_params; i++) free(grad[i]);
    free(grad);
    free(want);
    free(want_kl);
    cdr_oracle_free(o);
    close_rig(&r);
}

/* ---- the compiled program, in F32 ----------------------------------------------------------------------------------------------- */
typedef struct { rig r; cdr_bundle b; cdr_comm *world; cdr_device *d; cdr_exec *x; cdr_mesh mesh; int n_extra; } machine;
typedef struct { bool muon, dense, lean; uint32_t isa; } run_kind;      /* lean: gathered core, few routed rows at a time, gate and up kept */

static void open_machine(machine *k, const tiny_model *m, const run_kind *c)
{
    rig *r = &k->r;
    memset(k, 0, sizeof *k);
    open_rig(r, m);
    cdr_compile_opts o = options(N_MICRO);
    o.muon = c->muon;
    o.isa = c->isa;
    if (c->lean) {
        o.core = CDR_CORE_GATHERED;
        o.capacity = 24;
        o.keep_gate_up = true;
    }
    k->mesh = o.mesh;
    stop_on(r, cdr_compile(&o, &r->builder, r->pool, &k->b, &r->err));
    stop_on(r, cdr_comm_open(&(cdr_comm_spec){ "single", 10 }, &k->world, &r->err));
    stop_on(r, cdr_device_open(CDR_DEV_CPU, 0, 1, &k->d, &r->err));
    cdr_exec_opts eo = { .bundle = &k->b, .device = k->d, .world = k->world, .mesh = &k->mesh, .poison = true };
    stop_on(r, cdr_exec_open(&eo, &k->x, &r->err));
    stop_on(r, cdr_exec_init(k->x, 1, &r->err));
    for (int32_t i = 0; i < k->b.n_params; i++) {
        const cdr_param *q = &k->b.params[i];
        float *w = weights(m, q, r->salt);
        size_t bytes = sizeof *w * (size_t)cdr_type_elems(&q->global);
        cdr_exec_put_run(k->x, q->shard, w, bytes);
        T_CHECK(q->train == CDR_STATE || q->master == q->shard);
        free(w);
    }
    int32_t dense = c->dense;
    cdr_exec_put_run(k->x, cdr_program_find(&k->b, &k->b.progs[CDR_PROG_STEP], "dsa_dense"), &dense, sizeof dense);
}

static void close_machine(machine *k)
{
    cdr_exec_close(k->x);
    k->d->ops->close(k->d);
    cdr_comm_close(k->world);
    close_rig(&k->r);
}

static void one_step(machine *k, int t, double *loss, double *norm)
{
    rig *r = &k->r;
    for (int32_t mb = 0; mb < N_MICRO; mb++) {
        for (int i = 0; i < 4; i++) cdr_exec_put(k->x, CDR_PROG_STEP, data_name[i], mb, r->data[i][mb], sizeof r->data[i][mb]);
        cdr_exec_put(k->x, CDR_PROG_STEP, "micro", mb, &mb, sizeof mb);
    }
    int64_t count[8] = { r->trained, 0, 0, 0, r->rows };
    float hyper[CDR_N_HYPER] = { (float)r->lr, (float)(1 / (1 - pow(0.9, t + 1))), (float)(1 / (1 - pow(0.95, t + 1))) };
    cdr_exec_put(k->x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    cdr_exec_put(k->x, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    cdr_exec_set_step(k->x, t + 1);
    stop_on(r, cdr_exec_run(k->x, CDR_PROG_STEP, &r->err));
    double met[CDR_N_METRIC];
    cdr_exec_get(k->x, CDR_PROG_STEP, "metrics", 0, met, sizeof met);
    T_CHECK(met[CDR_METRIC_OK] == 1);
    *loss = met[CDR_METRIC_LOSS];
    *norm = met[CDR_METRIC_NORM];
}

static void compare_floats(const rig *r, worst *w, const float *x, const char *name, const bool *skip_T, double tol)
{
    int64_t n;
    double *want = numbers(r->st, name, &n), *got = malloc(sizeof *got * (size_t)n);
    for (int64_t i = 0; i < n; i++) got[i] = (double)x[i];
    compare(w, name, got, want, n, skip_T, tol);
    free(got);
    free(want);
}

static void compare_seen(machine *k, worst *w, const char *tag, const char *name)
{
    int64_t n;
    free(numbers(k->r.st, key(tag, name, ""), &n));
    float *x = malloc(sizeof *x * (size_t)n);
    cdr_exec_get(k->x, CDR_PROG_STEP, key("seen.", name, ""), 0, x, sizeof *x * (size_t)n);
    compare_floats(&k->r, w, x, key(tag, name, ""), k->r.idle, TOL_FORWARD);
    free(x);
}

/* After the first step: forward values and the gradients that the update leaves where they are. */
static void first_step(machine *k, const run_kind *c, double loss, const char *what)
{
    worst fwd = { 0 }, bwd = { 0 };
    const char *tag = c->dense ? "dense." : "";
    rig *r = &k->r;
    int64_t n;
    for (int i = 0; i < r->w.n_layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%d", i);
        compare_seen(k, &fwd, tag, name);
    }
    compare_seen(k, &fwd, tag, "hidden.final");
    compare_seen(k, &fwd, tag, "logits");
    double *want = numbers(r->st, key(tag, "loss", ""), &n), *want_kl = numbers(r->st, key(tag, "kl", ""), &n), extra[64], kl = 0;
    compare(&fwd, "loss", &loss, want, 1, NULL, TOL_FORWARD);
    cdr_val at = cdr_program_find(&k->b, &k->b.progs[CDR_PROG_STEP], "extra");
    T_CHECK((at != CDR_NONE) == r->m->indexer);
    if (at != CDR_NONE) {
        n = cdr_type_elems(&cdr_value_at(&k->b, &k->b.progs[CDR_PROG_STEP], at)->t);
        CDR_CHECK(n <= CDR_COUNT(extra));
        cdr_exec_get(k->x, CDR_PROG_STEP, "extra", 0, extra, sizeof *extra * (size_t)n);
        for (int64_t i = 0; i < n; i++) kl += extra[i] / COEF;
        compare(&fwd, "kl", &kl, want_kl, 1, NULL, TOL_FORWARD);
    }
    for (int32_t i = 0; i < k->b.n_params; i++) {
        const cdr_param *q = &k->b.params[i];
        if (!has_gradient(q)) continue;
        compare_floats(r, &bwd, cdr_exec_ptr(k->x, CDR_PROG_STEP, q->grad, 0), key(tag, "grad/", q->name), NULL, TOL_GRAD);
    }
    report(r->m, key(what, ": forward", ""), &fwd);
    report(r->m, key(what, ": gradients", ""), &bwd);
    T_CHECK(bwd.n > 40);
    free(want);
    free(want_kl);
}

static void program(const tiny_model *m, run_kind c, const char *what)
{
    machine k;
    open_machine(&k, m, &c);
    const char *rule = c.muon ? "muon" : "adamw";
    int64_t n;
    double *losses = numbers(k.r.st, key(rule, ".loss", ""), &n), *norms = numbers(k.r.st, key(rule, ".norm", ""), &n);
    for (int t = 0; t < (c.dense ? 1 : STEPS); t++) {
        double loss, norm;
        one_step(&k, t, &loss, &norm);
        if (t == 0) first_step(&k, &c, loss, what);
        if (c.dense) continue;
        T_NEAR(loss / (double)k.r.trained, losses[t], (t == 0 ? TOL_FORWARD : TOL_LATER_LOSS) * losses[t]);
        T_NEAR(norm, norms[t], (t == 0 ? TOL_GRAD : TOL_LATER_NORM) * norms[t]);
    }
    worst end = { 0 };
    for (int32_t i = 0; i < k.b.n_params && !c.dense; i++) {
        const cdr_param *q = &k.b.params[i];
        compare_floats(&k.r, &end, cdr_exec_ptr(k.x, CDR_PROG_STEP, q->shard, 0), key(rule, "/", q->name), NULL, TOL_STEPS);
    }
    if (!c.dense) report(m, key(what, c.muon ? ": ten of Muon" : ": ten of AdamW", ""), &end);
    free(losses);
    free(norms);
    close_machine(&k);
}

static void model(const tiny_model *m)
{
    references(m, false);
    program(m, (run_kind){ .muon = false }, "F32");
    program(m, (run_kind){ .muon = true, .lean = true }, "F32, lean");
    uint32_t isa = cdr_cpu_isa(NULL);
    if (isa != 0) program(m, (run_kind){ .muon = true, .isa = isa }, "F32, this machine");
    if (!m->indexer) return;
    references(m, true);
    program(m, (run_kind){ .dense = true }, "F32, warm-up");
    program(m, (run_kind){ .dense = true, .lean = true }, "F32, lean warm-up");
}

static void kimi_k3(void) { model(&k3); }
static void kimi_k31(void) { model(&k31); }
static void kimi_linear(void) { model(&linear); }
static void deepseek_v32(void) { model(&v32); }

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(kimi_k3);
    T_RUN(kimi_k31);
    T_RUN(kimi_linear);
    T_RUN(deepseek_v32);
    return t_end();
}
