/* parity_rig.h: a checkpoint directory of an HF family run through the engine in F32, for what compares it with transformers: the program
 * parity_dump (for tools/peers/parity.py) and test_parity (with what that script has stored).
 *
 *   parity_toy("kimi_linear", path, "bf16");                   // a toy whose weights are those of a formula, as a toy's own leave norms at one and biases at zero
 *   parity p;
 *   parity_open(&p, path, T);
 *   parity_eval(&p);                                          // what the probes show: parity_get, before anything else runs
 *   parity_step(&p);                                          // p.loss; gradients in the step program's memory
 *   parity_close(&p);
 *
 * One document of T ids, each the target of the one before; the last row trains nothing. Whatever fails ends the program.
 */
#ifndef CADRE_PARITY_RIG_H
#define CADRE_PARITY_RIG_H
#include "compile/compile.h"
#include "io/hf.h"
#include "io/io.h"
#include "models/models.h"
#include "run/run.h"
#include "weights/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cdr_pool *pool; cdr_model *model; const cdr_model_info *info; cdr_builder builder; cdr_weights *weights; cdr_hf *hf;
    cdr_bundle b; cdr_comm *world; cdr_device *d; cdr_exec *x; cdr_mesh mesh;
    int64_t T; int32_t *ids; double loss;                     /* loss: the mean over T - 1 rows */
    cdr_err err;
} parity;

static void parity_stop(cdr_status st, const cdr_err *err)
{
    if (st == CDR_OK) return;
    fprintf(stderr, "error: %s\n", err->text);
    exit(1);
}

/* ---- weights --------------------------------------------------------------------------------------------------------------------------- */
static uint64_t parity_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Around centre, at most scale away: wide enough that norms, biases, decays and routers matter; narrow before a norm, so that its epsilon does. */
static void parity_range(const char *name, const cdr_st_tensor *t, double *centre, double *scale)
{
    double fan_in = sqrt(3.0 / (double)t->n[t->n_dim - 1]);
    *centre = 0;
    *scale = fan_in;
    if (strstr(name, "A_log")) *centre = 1.4, *scale = 1.0;
    else if (strstr(name, "dt_bias")) *centre = -3.5, *scale = 2.5;
    else if (strstr(name, "e_score_correction_bias")) *scale = 0.15;
    else if (strstr(name, "k_norm.bias")) *scale = 0.3;
    else if (strstr(name, "q_conv1d") || strstr(name, "k_conv1d")) *scale = 0.05;
    else if (strstr(name, "conv1d")) *scale = 0.5;
    else if (strstr(name, "embed_tokens")) *scale = 0.05;
    else if (strstr(name, "q_a_proj") || strstr(name, "kv_a_proj")) *scale = 0.1 * fan_in;
    else if (t->n_dim == 1) *centre = 1.0, *scale = 0.25;
    else if (strstr(name, "gate.weight") || strstr(name, "indexer.w")) *scale = 2.0 * fan_in;
}

/* F32 and BF16 (cut off) elements of one tensor, where they lie; FP8 codes and their scales stay. */
static void parity_fill(const char *name, const cdr_st_tensor *t, char *data)
{
    if ((t->dtype != CDR_F32 && t->dtype != CDR_BF16) || strstr(name, "scale_inv")) return;
    uint64_t h = 0xCBF29CE484222325u;
    for (const char *c = name; *c; c++) h = (h ^ (uint8_t)*c) * 0x100000001B3u;
    double centre, scale;
    parity_range(name, t, &centre, &scale);
    size_t width = t->dtype == CDR_F32 ? 4 : 2, n = (t->end - t->begin) / width;
    for (size_t i = 0; i < n; i++) {
        float u = (float)((int64_t)(parity_mix(h + i) >> 40) - (1 << 23)) * 0x1p-23f, w = (float)centre + (float)scale * u;
        memcpy(data + i * width, (const char *)&w + (4 - width), width);
    }
}

static void parity_toy(const char *family, const char *to, const char *experts)
{
    cdr_err err = { 0 };
    cdr_result result = { 0 };
    cdr_toy_args a = { .common = { .quiet = true }, .family = family, .out = to, .experts = experts };
    parity_stop(cdr_toy(&a, &result, &err), &err);
    cdr_result_free(&result);
    char path[1200], *bytes = NULL;
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", to);
    parity_stop(cdr_file_read(path, 1 << 26, &bytes, &n, &err), &err);
    cdr_st *st = NULL;
    parity_stop(cdr_st_open_memory(path, bytes, n, &st, &err), &err);
    for (int64_t i = 0; i < cdr_st_count(st); i++) {
        const cdr_st_tensor *t = cdr_st_at(st, i);
        parity_fill(t->name, t, bytes + cdr_st_data_start(st) + t->begin);
    }
    cdr_st_close(st);
    parity_stop(cdr_file_write(path, bytes, n, &err), &err);
    cdr_free(bytes);
}

/* ---- the model ---------------------------------------------------------------------------------------------------------------------------- */
static int32_t parity_id(int64_t t) { return (int32_t)(parity_mix(0x1D5u + (uint64_t)t) % 500); }

static void parity_load(parity *p)
{
    for (int32_t i = 0; i < p->b.n_params; i++) {
        const cdr_param *q = &p->b.params[i];
        int64_t n = cdr_type_elems(&q->global);
        if (strcmp(q->name, cdr_model_param(p->model, i)) != 0 || (q->train != CDR_STATE && q->master != q->shard)) {
            fprintf(stderr, "error: %s: not the model's parameter %d in F32\n", q->name, i);
            exit(1);
        }
        float *w = cdr_alloc(sizeof *w * (size_t)n);
        parity_stop(cdr_weights_read_elems(p->weights, i, 0, n, CDR_F32, w, &p->err), &p->err);
        cdr_exec_put_run(p->x, q->shard, w, sizeof *w * (size_t)n);
        cdr_free(w);
    }
}

static void parity_open(parity *p, const char *from, int64_t T)
{
    memset(p, 0, sizeof *p);
    p->pool = cdr_pool_new();
    p->T = T;
    p->ids = cdr_pool_alloc(p->pool, sizeof *p->ids * (size_t)T);
    for (int64_t t = 0; t < T; t++) p->ids[t] = parity_id(t);
    cdr_model_spec spec = { .path = from };
    parity_stop(cdr_model_load(&spec, p->pool, &p->model, &p->err), &p->err);
    p->info = cdr_model_get_info(p->model);
    cdr_model_set_probe(p->model, CDR_PROBE_NATURAL);
    p->builder = cdr_model_builder(p->model);
    parity_stop(cdr_hf_open(from, &p->hf, &p->err), &p->err);
    parity_stop(cdr_weights_open(p->model, p->hf, &p->weights, &p->err), &p->err);
    cdr_compile_opts o = cdr_compile_defaults();
    o.T = T;
    o.policy = CDR_POLICY_KEEP;
    o.balance = CDR_BALANCE_NONE;
    o.indexer_train = false;
    o.isa = cdr_cpu_isa(NULL);
    p->mesh = o.mesh;
    parity_stop(cdr_compile(&o, &p->builder, p->pool, &p->b, &p->err), &p->err);
    parity_stop(cdr_comm_open(&(cdr_comm_spec){ "single", 10 }, &p->world, &p->err), &p->err);
    parity_stop(cdr_device_open(CDR_DEV_CPU, 0, 1, &p->d, &p->err), &p->err);
    cdr_exec_opts eo = { .bundle = &p->b, .device = p->d, .world = p->world, .mesh = &p->mesh, .poison = true };
    parity_stop(cdr_exec_open(&eo, &p->x, &p->err), &p->err);
    parity_stop(cdr_exec_init(p->x, 1, &p->err), &p->err);
    parity_load(p);
}

static void parity_close(parity *p)
{
    cdr_exec_close(p->x);
    p->d->ops->close(p->d);
    cdr_comm_close(p->world);
    cdr_weights_close(p->weights);
    cdr_hf_close(p->hf);
    cdr_pool_free(p->pool);
}

static void parity_put_rows(parity *p, cdr_prog_id prog)
{
    static const char *const name[] = { "tokens", "targets", "start", "pos" };
    int32_t *x = cdr_alloc(sizeof *x * (size_t)p->T);
    for (int k = 0; k < 4; k++) {
        for (int64_t t = 0; t < p->T; t++) x[t] = k == 0 ? p->ids[t] : k == 1 ? (t + 1 < p->T ? p->ids[t + 1] : -1) : k == 2 ? 0 : (int32_t)t;
        cdr_exec_put(p->x, prog, name[k], 0, x, sizeof *x * (size_t)p->T);
    }
    cdr_free(x);
}

/* The eval program and its probes lie where the step's values will. */
static void parity_eval(parity *p)
{
    parity_put_rows(p, CDR_PROG_EVAL);
    parity_stop(cdr_exec_run(p->x, CDR_PROG_EVAL, &p->err), &p->err);
}

/* One step, which changes the weights. */
static void parity_step(parity *p)
{
    parity_put_rows(p, CDR_PROG_STEP);
    int32_t micro = 0;
    int64_t count[8] = { p->T - 1, 0, 0, 0, p->T };
    float hyper[CDR_N_HYPER] = { 1e-6f, 10, 20 };
    cdr_exec_put(p->x, CDR_PROG_STEP, "micro", 0, &micro, sizeof micro);
    cdr_exec_put(p->x, CDR_PROG_STEP, "count", 0, count, sizeof count);
    cdr_exec_put(p->x, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    cdr_exec_set_step(p->x, 1);
    parity_stop(cdr_exec_run(p->x, CDR_PROG_STEP, &p->err), &p->err);
    double met[CDR_N_METRIC];
    cdr_exec_get(p->x, CDR_PROG_STEP, "metrics", 0, met, sizeof met);
    p->loss = met[CDR_METRIC_LOSS] / (double)(p->T - 1);
}

/* A probe of the eval program: NULL: the model has none of that name. Columns in *cols; F32 or I32. Freed by the caller. */
static void *parity_get(parity *p, const char *name, int64_t *cols)
{
    const cdr_program *g = &p->b.progs[CDR_PROG_EVAL];
    cdr_val v = cdr_program_find(&p->b, g, name);
    if (v == CDR_NONE) return NULL;
    *cols = cdr_type_cols(&cdr_value_at(&p->b, g, v)->t);
    size_t bytes = 4 * (size_t)(p->T * *cols);
    void *x = cdr_alloc(bytes);
    cdr_exec_get(p->x, CDR_PROG_EVAL, name, 0, x, bytes);
    return x;
}
#endif
