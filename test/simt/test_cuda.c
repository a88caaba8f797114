/* test_cuda: the CUDA kernels of all operators, compiled for the CPU (simt.h), through the operators' case tables: values,
 * canaries, exact scratch, rows with a pitch, added outputs, repeated bits. On a GPU: gpu_check. */
#include "ops/adamw/adamw.h"
#include "ops/count/count.h"
#include "ops/gather/gather.h"
#include "ops/grad_push/grad_push.h"
#include "run/check.h"
#include "test.h"
#include <dlfcn.h>

static void *library;

typedef cdr_status (*launcher)(const cdr_args *);
static launcher find(const char *symbol)
{
    void *p = dlsym(library, symbol);
    launcher f = NULL;
    memcpy(&f, &p, sizeof f);
    return f;
}

static cdr_status run(const cdr_check_target *t, const cdr_kernel *k, const cdr_args *a, size_t work_bytes)
{
    (void)t, (void)work_bytes;
    launcher f = find(k->symbol);
    return f ? f(a) : CDR_EBUG;
}

/* Operators of sparse models, for which no kernel is written yet: a plan for a GPU refuses them by name. */
static const char *const cpu_only[] = {
    "attn_res", "attn_res_bwd", "aux_loss", "aux_loss_bwd", "balance_hist", "balance_load", "balance_quantile", "balance_sign", "dispatch",
    "experts", "experts_bwd", "experts_ep", "experts_ep_bwd", "fill", "gate", "gate_bwd", "indexer", "indexer_loss", "indexer_loss_bwd", "kda", "kda_bwd", "layernorm",
    "layernorm_bwd", "loss_frozen", "loss_frozen_pieces", "loss_pieces", "loss_pieces_bwd", "muon", "route", "router", "router_bwd", "scale", "short_conv",
    "short_conv_bwd", "situ", "situ_bwd",
};

static void every_operator_has_rows_and_launchers(void)
{
    int n_cpu_only = 0;
    for (int i = 0; cdr_ops[i]; i++) {
        const cdr_kernel *k = cdr_op_kernels(cdr_ops[i], CDR_DEV_CUDA);
        bool listed = false;
        for (size_t j = 0; j < sizeof cpu_only / sizeof *cpu_only; j++) listed = listed || strcmp(cpu_only[j], cdr_ops[i]->name) == 0;
        n_cpu_only += listed;
        if (!(cdr_ops[i]->flags & CDR_OP_VIEW) && !k->name == !listed) {
            fprintf(stderr, "  %s has %s\n", cdr_ops[i]->name, listed ? "a CUDA kernel, though the list says that it has none" : "no CUDA kernel");
            T_CHECK(false);
        }
        for (; k->name; k++) {
            if (!find(k->symbol)) fprintf(stderr, "  %s: no launcher %s\n", cdr_ops[i]->name, k->symbol);
            T_CHECK(find(k->symbol) != NULL);
            T_CHECK(k->device == CDR_DEV_CUDA && k->bits != NULL);
        }
    }
    T_CHECK(n_cpu_only == (int)(sizeof cpu_only / sizeof *cpu_only));
}

static void tables_of_cases(void)
{
    const cdr_check_target t = { .device = CDR_DEV_CUDA, .isa = CDR_ISA_SM80 | CDR_ISA_SM90, .run = run };
    cdr_check_sum sum;
    cdr_text report = { 0 };
    cdr_err err = { CDR_OK, "", "" };
    cdr_status st = cdr_check_on(&t, "", true, &sum, &report, &err);
    fputs(report.s, stdout);
    T_CHECK(st == CDR_OK && sum.n_cases > 0);
    cdr_text_free(&report);
}

/* One call on operands made by hand. */
static cdr_status call(const cdr_op *op, const void *attr, int n_in, int n_out, const cdr_type *t, void *const *p, const int32_t *pred)
{
    const cdr_kernel *k = cdr_op_kernels(op, CDR_DEV_CUDA);
    cdr_lane lane = { .n_threads = 1 };
    cdr_args a = { .attr = attr, .type = t, .ptr = p, .n_in = n_in, .n_out = n_out, .pred = pred, .lane = &lane };
    T_CHECK(k->name && (!k->reject || !k->reject(attr, n_in, n_out, t)));
    return find(k->symbol)(&a);
}

static void predicate_switches_an_update_off(void)
{
    enum { N = 19 };
    const cdr_adamw_attr attr = { .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .lr_scale = 1 };
    float g[N], w[N], m[N], v[N], w0[N], clip = 1, hyper[8] = { 1e-2f, 1.5f, 2.5f };
    int32_t on = 1, off = 0;
    for (int i = 0; i < N; i++) g[i] = (float)i - 9, w0[i] = w[i] = 0.5f * (float)i, m[i] = v[i] = 0.25f;
    cdr_type f = cdr_type_1d(CDR_F32, N), one = cdr_type_1d(CDR_F32, 1), eight = cdr_type_1d(CDR_F32, 8), none = { .dtype = CDR_N_DTYPES };
    cdr_type t[] = { f, one, eight, f, f, f, none, f, f, f, none };
    void *p[] = { g, &clip, hyper, w, m, v, NULL, w, m, v, NULL };
    T_CHECK(call(&cdr_op_adamw, &attr, 7, 4, t, p, &off) == CDR_OK);
    T_CHECK(memcmp(w, w0, sizeof w) == 0 && m[3] == 0.25f);
    T_CHECK(call(&cdr_op_adamw, &attr, 7, 4, t, p, &on) == CDR_OK);
    for (int i = 0; i < N; i++) T_CHECK(w[i] != w0[i] || i == 0);
}

/* 8 partials: slot 0 holds the full binary tree over them, in F32, whatever the counter's path was */
static void push_makes_the_tree(void)
{
    enum { N = 300, MICRO = 8 };
    const cdr_grad_push_attr attr = { .depth = cdr_grad_push_depth(MICRO) };
    static float x[MICRO][N], slot[3][N], tree[MICRO][N];
    int32_t micro;
    cdr_type f = cdr_type_1d(CDR_F32, N), t[] = { f, cdr_type_1d(CDR_I32, 1), f, f, f };
    T_CHECK(attr.depth == 3);
    for (int i = 0; i < MICRO; i++)
        for (int e = 0; e < N; e++) x[i][e] = tree[i][e] = cdr_rng_normal((cdr_rng_key){ 1, (uint64_t)i, 0 }, (uint64_t)e);
    for (micro = 0; micro < MICRO; micro++) {
        void *p[] = { x[micro], &micro, slot[0], slot[1], slot[2] };
        T_CHECK(call(&cdr_op_grad_push, &attr, 2, 3, t, p, NULL) == CDR_OK);
    }
    for (int w = 1; w < MICRO; w *= 2)
        for (int i = 0; i < MICRO; i += 2 * w)
            for (int e = 0; e < N; e++) tree[i][e] += tree[i + w][e];
    T_CHECK(memcmp(slot[0], tree[0], sizeof tree[0]) == 0);
}

/* One slot takes them all, in their order */
static void push_keeps_a_running_sum(void)
{
    enum { N = 300, MICRO = 5 };
    const cdr_grad_push_attr attr = { 1, 1 };
    float x[N], slot[N], sum[N];
    cdr_type f = cdr_type_1d(CDR_F32, N), t[] = { f, cdr_type_1d(CDR_I32, 1), f };
    for (int e = 0; e < N; e++) slot[e] = NAN;
    for (int32_t micro = 0; micro < MICRO; micro++) {
        void *p[] = { x, &micro, slot };
        for (int e = 0; e < N; e++) {
            x[e] = cdr_rng_normal((cdr_rng_key){ 1, (uint64_t)micro, 0 }, (uint64_t)e);
            sum[e] = micro == 0 ? x[e] : sum[e] + x[e];
        }
        T_CHECK(call(&cdr_op_grad_push, &attr, 2, 1, t, p, NULL) == CDR_OK);
    }
    T_CHECK(memcmp(slot, sum, sizeof sum) == 0);
}

static void collectives_of_one_rank_copy(void)
{
    float a[12], b[12] = { 0 }, c[5], d[5] = { 0 };
    for (int i = 0; i < 12; i++) a[i] = (float)i;
    for (int i = 0; i < 5; i++) c[i] = -(float)i;
    cdr_gather_attr attr = { .n = 2, .size = 1, .rows = { 3, 5 } };
    cdr_type t[] = { cdr_type_2d(CDR_F32, 3, 4), cdr_type_1d(CDR_F32, 5), cdr_type_2d(CDR_F32, 3, 4), cdr_type_1d(CDR_F32, 5) };
    const cdr_op *const ops[] = { &cdr_op_gather, &cdr_op_reduce_scatter, &cdr_op_all_reduce };
    for (int i = 0; i < 3; i++) {
        void *p[] = { a, c, b, d };
        memset(b, 0, sizeof b);
        memset(d, 0, sizeof d);
        T_CHECK(call(ops[i], &attr, 2, 2, t, p, NULL) == CDR_OK);
        T_CHECK(memcmp(a, b, sizeof a) == 0 && memcmp(c, d, sizeof c) == 0);
        attr.size = 2;
        T_HAS(cdr_op_kernels(ops[i], CDR_DEV_CUDA)->reject(&attr, 2, 2, t), "nccl");
        attr.size = 1;
    }
    int64_t count[CDR_COUNT_WORDS] = { 40, 1, 0, 0, 64 }, total[CDR_COUNT_WORDS] = { 0 };
    float scale = 0, scale_rows = 0;
    cdr_count_attr ca = { .size = 1 };
    cdr_type words = cdr_type_1d(CDR_I64, CDR_COUNT_WORDS), one = cdr_type_1d(CDR_F32, 1), u[] = { words, words, one, one };
    void *p[] = { count, total, &scale, &scale_rows };
    T_CHECK(call(&cdr_op_count, &ca, 1, 3, u, p, NULL) == CDR_OK);
    T_CHECK(memcmp(count, total, sizeof count) == 0 && scale == (float)(1.0 / 40) && scale_rows == (float)(1.0 / 64));
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    library = dlopen(SIMT_LIBRARY, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    T_RUN(every_operator_has_rows_and_launchers);
    T_RUN(predicate_switches_an_update_off);
    T_RUN(push_makes_the_tree);
    T_RUN(push_keeps_a_running_sum);
    T_RUN(collectives_of_one_rank_copy);
    T_RUN(tables_of_cases);
    return t_end();
}
