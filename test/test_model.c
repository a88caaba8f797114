/* test_model.c: a whole dense model, compiled and run, against an implementation that we did not derive it from
 * (tools/golden_ops.py: JAX, float64, automatic differentiation): loss, logits, every gradient's norm, ten AdamW steps
 * with and without clipping. And decoding through the caches against the forward of the training program. */
#include "feed.h"
#include "golden.h"
#include "tiny.h"

static const char golden_yaml[] =
    "description: 1\n"
    "name: golden\n"
    "sizes: {hidden: 16, vocab: 32, n_layers: 2, eps: 1.0e-5, mla: {heads: 2, kv_lora: 8, nope: 4, ext: 4, v: 6}, glu: {width: 24}}\n"
    "layers: {mixer: {mla: rest}, ffn: {dense: rest}, residual: prenorm}\n"
    "blocks:\n"
    "  mla: {type: mla, position: {rope: interleaved, theta: 10000}, norm_eps: 1.0e-6}\n"
    "  dense: {type: glu, activation: silu}\n"
    "under: {layer: \"layers.{layer}.\", mla: \"\", glu: \"\"}\n"
    "tensors:\n"
    "  model: {embed: [embed, [vocab, hidden]], head: [head, [vocab, hidden]], norm: [norm, [hidden]]}\n"
    "  layer: {\"norm.input|post_attention\": [\"{}_norm\", [hidden]]}\n"
    "  mla: {q: [q, [heads*(nope+ext), hidden]], kv_a: [kv_a, [kv_lora+ext, hidden]], kv_a_norm: [kv_norm, [kv_lora]],\n"
    "        kv_b: [kv_b, [heads*(nope+v), kv_lora]], o: [o, [hidden, heads*v]]}\n"
    "  glu: {\"gate|up\": [\"{}\", [width, hidden]], down: [down, [hidden, width]]}\n"
    "tokenizer: {type: byte}\n"
    "chat: {format: none}\n";

/* the order of model_shapes() in tools/golden_ops.py */
static const char *const order[] = { "embed", "layers.0.input_norm", "layers.0.q", "layers.0.kv_a", "layers.0.kv_norm", "layers.0.kv_b", "layers.0.o",
    "layers.0.post_attention_norm", "layers.0.gate", "layers.0.up", "layers.0.down", "layers.1.input_norm", "layers.1.q", "layers.1.kv_a",
    "layers.1.kv_norm", "layers.1.kv_b", "layers.1.o", "layers.1.post_attention_norm", "layers.1.gate", "layers.1.up", "layers.1.down", "norm", "head" };
enum { T = 20, W = 32 };
static const double LR = 0.01;

typedef struct { cdr_pool *pool; cdr_bundle b; cdr_device *d; cdr_exec *x; cdr_comm *world; cdr_mesh mesh; } machine;

static void open_golden(machine *m, double max_norm, int compute, uint32_t isa, cdr_policy_kind policy)
{
    cdr_err err = { CDR_OK, "", "" };
    cdr_model *model;
    cdr_model_spec spec = { .path = "golden" };
    m->pool = cdr_pool_new();
    cdr_status st = cdr_model_parse(&spec, golden_yaml, strlen(golden_yaml), "test_model.c", m->pool, &model, &err);
    cdr_builder builder = cdr_model_builder(model);
    cdr_compile_opts o = cdr_compile_defaults();
    o.T = T;
    o.gen_T = 16;
    o.gen_S = 64;
    o.compute = o.params = compute;
    o.weight_decay = 0.1;
    o.max_grad_norm = max_norm;
    o.isa = isa;
    o.policy = policy;
    m->mesh = o.mesh;
    if (st == CDR_OK) st = cdr_compile(&o, &builder, m->pool, &m->b, &err);
    if (st == CDR_OK) st = cdr_comm_open(&(cdr_comm_spec){ "single", 10 }, &m->world, &err);
    if (st == CDR_OK) st = cdr_device_open(CDR_DEV_CPU, 0, 1, &m->d, &err);
    cdr_exec_opts eo = { .bundle = &m->b, .device = m->d, .world = m->world, .mesh = &m->mesh, .poison = true };
    if (st == CDR_OK) st = cdr_exec_open(&eo, &m->x, &err);
    if (st != CDR_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    for (int k = 0; k < CDR_COUNT(order); k++) {
        int32_t i = cdr_param_find(&m->b, order[k]);
        CDR_CHECK(i >= 0);
        const cdr_param *q = &m->b.params[i];
        int64_t n = cdr_type_elems(&q->global);
        float *w = malloc(sizeof *w * (size_t)n);
        uint16_t *half = malloc(sizeof *half * (size_t)n);
        for (int64_t e = 0; e < n; e++) {
            double s = sin(0.61803398875 * (double)(e * e) + 0.9 * k);
            w[e] = (float)(q->global.n_dim == 1 ? 1 + 0.1 * s : sqrt(2.0 / (double)q->global.n[1]) * s);
            half[e] = cdr_f32_to_bf16(w[e]);
        }
        cdr_exec_put_run(m->x, q->shard, compute == CDR_BF16 ? (void *)half : (void *)w, (size_t)cdr_dtype_bytes(compute, n));
        cdr_exec_put_run(m->x, q->master, w, sizeof *w * (size_t)n);
        free(w);
        free(half);
    }
}

static void close_golden(machine *m)
{
    cdr_exec_close(m->x);
    m->d->ops->close(m->d);
    cdr_comm_close(m->world);
    cdr_pool_free(m->pool);
}

static void data(int32_t *tokens, int32_t *targets, int32_t *start, int32_t *pos)
{
    for (int32_t t = 0; t < T; t++) {
        tokens[t] = (7 * t * t + 3 * t + 1) % W;
        start[t] = t < 12 ? 0 : 12;
        pos[t] = t;
    }
    for (int32_t t = 0; t < T; t++) targets[t] = t == 11 || t == 19 ? -1 : tokens[t + 1];
}

static void step(machine *m, int t, double lr, double *loss, double *norm)
{
    int32_t tok[T], tgt[T], start[T], pos[T], micro = 0;
    int64_t count[8] = { 18, 0, 0, 0, 18 };
    cdr_err err = { CDR_OK, "", "" };
    data(tok, tgt, start, pos);
    cdr_exec_put(m->x, CDR_PROG_STEP, "tokens", 0, tok, sizeof tok);
    cdr_exec_put(m->x, CDR_PROG_STEP, "targets", 0, tgt, sizeof tgt);
    cdr_exec_put(m->x, CDR_PROG_STEP, "start", 0, start, sizeof start);
    cdr_exec_put(m->x, CDR_PROG_STEP, "pos", 0, pos, sizeof pos);
    cdr_exec_put(m->x, CDR_PROG_STEP, "micro", 0, &micro, sizeof micro);
    cdr_exec_put(m->x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    float hyper[CDR_N_HYPER] = { (float)lr, (float)(1 / (1 - pow(0.9, t + 1))), (float)(1 / (1 - pow(0.95, t + 1))) };
    cdr_exec_put(m->x, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    T_CHECK(cdr_exec_run(m->x, CDR_PROG_STEP, &err) == CDR_OK);
    double met[CDR_N_METRIC];
    cdr_exec_get(m->x, CDR_PROG_STEP, "metrics", 0, met, sizeof met);
    *loss = met[CDR_METRIC_LOSS] / 18;
    *norm = met[CDR_METRIC_NORM];
}

/* relative Frobenius distance */
static double distance(const float *g, const golden_tensor *want)
{
    double d = 0, n = 0;
    for (int64_t e = 0; e < want->elems; e++) {
        d += (g[e] - want->x[e]) * (g[e] - want->x[e]);
        n += want->x[e] * want->x[e];
    }
    return sqrt(d / n);
}

/* The gradients of the last step, which the update leaves where they are. */
static void check_gradients(machine *m, const golden *gd, double tol)
{
    const golden_tensor *norms = golden_get(gd, "grad_norms"), *row3 = golden_get(gd, "d_head_row3"), *de = golden_get(gd, "d_embed");
    for (int k = 0; k < CDR_COUNT(order); k++) {
        const cdr_param *q = &m->b.params[cdr_param_find(&m->b, order[k])];
        const float *g = cdr_exec_ptr(m->x, CDR_PROG_STEP, q->grad, 0);
        double s = 0;
        for (int64_t e = 0; e < cdr_type_elems(&q->global); e++) s += (double)g[e] * (double)g[e];
        T_NEAR(sqrt(s), norms->x[k], tol * norms->x[k] + 1e-9);
        if (k == 22) T_CHECK(distance(g + 3 * 16, row3) < tol);
        if (k == 0) T_CHECK(distance(g, de) < tol);
    }
}

static void ten_steps(double max_norm, const char *losses, const char *norms, uint32_t isa)
{
    golden gd = golden_open("tiny_dense");
    machine m;
    open_golden(&m, max_norm, CDR_F32, isa, CDR_POLICY_KEEP);
    for (int t = 0; t < 10; t++) {
        double loss, norm;
        step(&m, t, LR, &loss, &norm);
        T_NEAR(loss, golden_get(&gd, losses)->x[t], 2e-5);
        T_NEAR(norm, golden_get(&gd, norms)->x[t], 2e-4 * golden_get(&gd, norms)->x[t]);
        if (t == 0) check_gradients(&m, &gd, 2e-5);
    }
    close_golden(&m);
    golden_close(&gd);
}

static void ten_steps_agree_with_float64(void) { ten_steps(0.0, "losses", "norms", 0); }
static void ten_clipped_steps_agree_with_float64(void) { ten_steps(1.0, "losses_clip", "norms_clip", 0); }
static void this_machines_kernels_agree_with_float64(void) { ten_steps(0.0, "losses", "norms", cdr_cpu_isa(NULL)); }

static void bf16_agrees_within_its_rounding(void)
{
    golden gd = golden_open("tiny_dense");
    machine m;
    double loss, norm;
    open_golden(&m, 0.0, CDR_BF16, cdr_cpu_isa(NULL), CDR_POLICY_KEEP);
    step(&m, 0, LR, &loss, &norm);
    T_NEAR(loss, golden_get(&gd, "losses")->x[0], 2e-2);
    check_gradients(&m, &gd, 4e-2);
    close_golden(&m);
    golden_close(&gd);
}

static void decode_agrees_with_the_forward(void)
{
    golden gd = golden_open("tiny_dense");
    const golden_tensor *want = golden_get(&gd, "logits");
    int32_t tok[T], tgt[T], start[T], pos[T];
    float whole[12 * W], single[12 * W], pieces[12 * W];
    machine m;
    data(tok, tgt, start, pos);
    open_golden(&m, 0.0, CDR_F32, cdr_cpu_isa(NULL), CDR_POLICY_KEEP);
    feed(m.x, tok, 0, 12, whole, W);
    for (int32_t t = 0; t < 12; t++) feed(m.x, tok, t, 1, single, W);
    feed(m.x, tok, 0, 5, pieces, W);
    feed(m.x, tok, 5, 7, pieces, W);
    for (int64_t i = 0; i < want->elems; i++) T_NEAR(whole[i], want->x[i], 2e-5);
    T_CHECK(memcmp(whole, single, sizeof whole) == 0);        /* prefill and decode: the same bits */
    T_CHECK(memcmp(whole, pieces, sizeof whole) == 0);
    close_golden(&m);
    golden_close(&gd);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(ten_steps_agree_with_float64);
    T_RUN(ten_clipped_steps_agree_with_float64);
    T_RUN(this_machines_kernels_agree_with_float64);
    T_RUN(bf16_agrees_within_its_rounding);
    T_RUN(decode_agrees_with_the_forward);
    return t_end();
}
