/* gpu_model.c: the dense demo's model on a CUDA device: the first step's loss and every gradient agree with the CPU's
 * within BF16 rounding, ten steps keep agreeing, runs repeat to the bit, decoding works. Ends with 77 where there is no
 * device. Plans need no plug-in, so the planned bytes are those of the CPU-only build: they are printed for comparison. */
#include "models/models.h"
#include "run/run.h"
#include "test.h"

enum { T = 2048, STEPS = 10, VOCAB = 512 };

typedef struct { cdr_pool *pool; cdr_bundle b; cdr_device *d; cdr_exec *x; cdr_comm *world; cdr_mesh mesh; } machine;

static cdr_status open_machine(machine *m, int device, int compute, cdr_err *err)
{
    cdr_model *model;
    cdr_model_spec spec = { .path = "tiny-dense" };
    m->pool = cdr_pool_new();
    CDR_TRY(cdr_model_load(&spec, m->pool, &model, err));
    cdr_builder builder = cdr_model_builder(model);
    CDR_TRY(cdr_device_open(device, 0, 4, &m->d, err));
    cdr_compile_opts o = cdr_compile_defaults();
    o.T = T;
    o.n_micro = 2;
    o.gen_T = 16;
    o.gen_S = 256;
    o.compute = o.params = compute;
    o.loss_chunk_tokens = 1024;
    o.loss_chunk_vocab = 8192;
    o.weight_decay = 0.1;
    o.device = device;
    o.isa = m->d->isa;
    o.n_threads = m->d->n_threads;
    m->mesh = o.mesh;
    CDR_TRY(cdr_compile(&o, &builder, m->pool, &m->b, err));
    CDR_TRY(cdr_comm_open(&(cdr_comm_spec){ "single", 10 }, &m->world, err));
    cdr_exec_opts eo = { .bundle = &m->b, .device = m->d, .world = m->world, .mesh = &m->mesh };
    CDR_TRY(cdr_exec_open(&eo, &m->x, err));
    return cdr_exec_init(m->x, 3, err);
}

static void close_machine(machine *m)
{
    cdr_exec_close(m->x);
    m->d->ops->close(m->d);
    cdr_comm_close(m->world);
    cdr_pool_free(m->pool);
}

static cdr_status step(machine *m, int t, double *loss, double *norm, cdr_err *err)
{
    static int32_t tok[T], tgt[T], start[T], pos[T];
    int64_t count[8] = { 0 };
    for (int32_t mb = 0; mb < 2; mb++) {
        cdr_rng_key k = { 9, (uint64_t)t, (uint64_t)mb };
        for (int32_t i = 0; i < T; i++) {
            tok[i] = (int32_t)(cdr_rng_u64(k, (uint64_t)(i / 3)) % 200);
            start[i] = i < 700 ? 0 : i < 701 ? 700 : i < 1400 ? 701 : 1400;
            pos[i] = i;
        }
        for (int32_t i = 0; i < T; i++) {
            bool last = i + 1 == T || start[i + 1] != start[i];
            tgt[i] = last ? -1 : tok[i + 1];
            count[0] += !last;
        }
        cdr_exec_put(m->x, CDR_PROG_STEP, "tokens", mb, tok, sizeof tok);
        cdr_exec_put(m->x, CDR_PROG_STEP, "targets", mb, tgt, sizeof tgt);
        cdr_exec_put(m->x, CDR_PROG_STEP, "start", mb, start, sizeof start);
        cdr_exec_put(m->x, CDR_PROG_STEP, "pos", mb, pos, sizeof pos);
        cdr_exec_put(m->x, CDR_PROG_STEP, "micro", mb, &mb, sizeof mb);
    }
    float hyper[CDR_N_HYPER] = { 1e-3f, (float)(1 / (1 - pow(0.9, t + 1))), (float)(1 / (1 - pow(0.95, t + 1))) };
    cdr_exec_put(m->x, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    cdr_exec_put(m->x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    CDR_TRY(cdr_exec_run(m->x, CDR_PROG_STEP, err));
    double met[CDR_N_METRIC];
    cdr_exec_get(m->x, CDR_PROG_STEP, "metrics", 0, met, sizeof met);
    cdr_exec_get(m->x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    *loss = met[CDR_METRIC_LOSS] / (double)count[0];
    *norm = met[CDR_METRIC_NORM];
    return CDR_OK;
}

static float *gradient(machine *m, int32_t i, int64_t *n)
{
    const cdr_param *q = &m->b.params[i];
    *n = cdr_type_elems(&q->global);
    float *g = malloc(sizeof *g * (size_t)*n);
    cdr_exec_get(m->x, CDR_PROG_STEP, cdr_pool_printf(m->pool, "d_%s", q->name), 0, g, sizeof *g * (size_t)*n);
    return g;
}

static void compare_first_step(machine *cpu, machine *gpu, double tol)
{
    double worst = 0;
    for (int32_t i = 0; i < cpu->b.n_params; i++) {
        int64_t n;
        float *a = gradient(cpu, i, &n), *b = gradient(gpu, i, &n);
        double d = 0, s = 0;
        for (int64_t e = 0; e < n; e++) {
            d += ((double)a[e] - b[e]) * ((double)a[e] - b[e]);
            s += (double)a[e] * a[e];
        }
        double rel = sqrt(d / s);
        if (!(rel < tol)) fprintf(stderr, "  %s: relative distance %.3g\n", cpu->b.params[i].name, rel);
        T_CHECK(rel < tol);
        worst = fmax(worst, rel);
        free(a);
        free(b);
    }
    printf("worst relative distance of a gradient: %.3g over %d parameters\n", worst, cpu->b.n_params);
}

static int compute_dtype;
static void steps_agree_and_repeat(void)
{
    machine cpu, gpu, again;
    cdr_err err = { CDR_OK, "", "" };
    cdr_status st = open_machine(&cpu, CDR_DEV_CPU, compute_dtype, &err);
    if (st == CDR_OK) st = open_machine(&gpu, CDR_DEV_CUDA, compute_dtype, &err);
    if (st == CDR_OK) st = open_machine(&again, CDR_DEV_CUDA, compute_dtype, &err);
    T_CHECK(st == CDR_OK);
    if (st != CDR_OK) {
        fprintf(stderr, "  %s\n", err.text);
        return;
    }
    printf("%s: planned bytes cpu %lld, cuda %lld\n", cdr_dtype_row(compute_dtype)->name, (long long)(cpu.b.run_bytes[0] + cpu.b.exec_bytes[0]),
           (long long)(gpu.b.run_bytes[0] + gpu.b.exec_bytes[0]));
    for (int t = 0; t < STEPS; t++) {
        double lc, nc, lg, ng, la, na;
        st = step(&cpu, t, &lc, &nc, &err);
        if (st == CDR_OK) st = step(&gpu, t, &lg, &ng, &err);
        if (st == CDR_OK) st = step(&again, t, &la, &na, &err);
        T_CHECK(st == CDR_OK);
        if (st != CDR_OK) {
            fprintf(stderr, "  step %d: %s\n", t, err.text);
            return;
        }
        if (t == 0 || t == STEPS - 1) printf("step %d: loss cpu %.6f cuda %.6f, norm %.5f %.5f\n", t + 1, lc, lg, nc, ng);
        double tol = compute_dtype == CDR_F32 ? 2e-4 : 2e-2;
        T_NEAR(lg, lc, tol);
        T_CHECK(lg == la && ng == na);                          /* to the bit */
        if (t == 0) compare_first_step(&cpu, &gpu, compute_dtype == CDR_F32 ? 1e-4 : 3e-2);
    }
    int64_t t0 = cdr_now_ns();
    double l, n;
    for (int t = 0; t < 20; t++) step(&gpu, t, &l, &n, &err);
    printf("cuda: %.2f ms a step of %d tokens, host work and copies included\n", (double)(cdr_now_ns() - t0) * 1e-6 / 20, 2 * T);
    close_machine(&again);
    close_machine(&gpu);
    close_machine(&cpu);
}

static void decode_agrees(void)
{
    machine m[2];
    cdr_err err = { CDR_OK, "", "" };
    static float logits[2][16 * VOCAB];
    for (int i = 0; i < 2; i++) {
        T_CHECK(open_machine(&m[i], i ? CDR_DEV_CUDA : CDR_DEV_CPU, CDR_BF16, &err) == CDR_OK);
        if (err.status != CDR_OK) return;
        for (int32_t at = 0; at < 48; at += 16) {
            int32_t tok[16], start[16] = { 0 }, pos[16], n = 16;
            for (int32_t t = 0; t < 16; t++) {
                tok[t] = (at + t) * 7 % 200;
                pos[t] = at + t;
            }
            cdr_exec_put(m[i].x, CDR_PROG_GENERATE, "tokens", 0, tok, sizeof tok);
            cdr_exec_put(m[i].x, CDR_PROG_GENERATE, "start", 0, start, sizeof start);
            cdr_exec_put(m[i].x, CDR_PROG_GENERATE, "pos", 0, pos, sizeof pos);
            cdr_exec_put(m[i].x, CDR_PROG_GENERATE, "n_live", 0, &n, sizeof n);
            T_CHECK(cdr_exec_run(m[i].x, CDR_PROG_GENERATE, &err) == CDR_OK);
        }
        cdr_exec_get(m[i].x, CDR_PROG_GENERATE, "logits", 0, logits[i], sizeof logits[i]);
        close_machine(&m[i]);
    }
    double d = 0, s = 0;
    for (int i = 0; i < 16 * VOCAB; i++) {
        d += ((double)logits[0][i] - logits[1][i]) * ((double)logits[0][i] - logits[1][i]);
        s += (double)logits[0][i] * logits[0][i];
    }
    printf("logits after three cached turns: relative distance %.3g\n", sqrt(d / s));
    T_CHECK(sqrt(d / s) < 3e-2);
}

int main(void)
{
    cdr_err err = { CDR_OK, "", "" };
    cdr_device *d;
    if (cdr_device_open(CDR_DEV_CUDA, 0, 1, &d, &err) != CDR_OK) {
        printf("%s\n", err.text);
        return 77;
    }
    printf("%s\n", d->name);
    d->ops->close(d);
    compute_dtype = CDR_F32;
    T_RUN(steps_agree_and_repeat);
    compute_dtype = CDR_BF16;
    T_RUN(steps_agree_and_repeat);
    T_RUN(decode_agrees);
    return t_end();
}
