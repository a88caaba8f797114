/* gpu_check: what a machine with a GPU has to show. Without a driver it returns 77 (skipped).
 *
 *   gpu_check [check | device | time]...       no argument: all
 *
 * device: memory, copies, streams and events, and that a fault on the device is reported. check: every operator's cases on
 * the CUDA kernels against the double reference, with canaries. time: shapes of bench and of larger models, beside the
 * floor of the machine: the larger of bytes / 4.3 TB/s and FLOPs / 790 TFLOP/s (BF16) or 60 TFLOP/s (F32). */
#include "ops/adamw/adamw.h"
#include "ops/attention/attention.h"
#include "ops/cache_write/cache_write.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "run/bench.h"
#include "run/check.h"
#include "test.h"
#include <dlfcn.h>

enum { SKIPPED = 77, N_TIMED = 20, PATTERN = 1 << 20 };
static const double HBM_BPS = 4.3e12, BF16_FLOPS = 790e12, F32_FLOPS = 60e12;

static cdr_device *open_device(void)
{
    cdr_device *d = NULL;
    cdr_err err = { CDR_OK, "", "" };
    if (cdr_device_open(CDR_DEV_CUDA, 0, 1, &d, &err) == CDR_OK) return d;
    fprintf(stderr, "  %s\n", err.text);
    T_CHECK(d != NULL);
    return NULL;
}

/* ---- device --------------------------------------------------------------------------------------------------------- */
static void memory_is_zeroed_and_copies_keep_bytes(void)
{
    enum { N = 1 << 20 };
    cdr_device *d = open_device();
    if (!d) return;
    cdr_err err = { CDR_OK, "", "" };
    unsigned char *host = malloc(N), *back = malloc(N);
    unsigned char *dev = d->ops->alloc(d, 0, N, &err), *pinned = d->ops->alloc(d, 1, N, &err);
    T_CHECK(host && back && dev && pinned && !d->host_sees && d->memory_bytes[0] > 0);
    memset(back, 1, N);
    T_CHECK(d->ops->copy(d, CDR_S_IN, back, dev, N) == CDR_OK && d->ops->sync(d, &err) == CDR_OK);
    for (int i = 0; i < N; i++)
        if (back[i] || pinned[i]) {
            T_CHECK(back[i] == 0 && pinned[i] == 0);
            break;
        }
    for (int i = 0; i < N; i++) host[i] = (unsigned char)(i * 7 + (i >> 8));
    T_CHECK(d->ops->copy(d, CDR_S_OUT, dev, host, N) == CDR_OK && d->ops->sync(d, &err) == CDR_OK);
    T_CHECK(d->ops->copy(d, CDR_S_COMM, pinned, dev, N) == CDR_OK && d->ops->sync(d, &err) == CDR_OK);
    T_CHECK(memcmp(host, pinned, N) == 0);
    T_CHECK(d->ops->fill(d, CDR_S_COMPUTE, dev, 0x5a, N) == CDR_OK && d->ops->copy(d, CDR_S_COMPUTE, back, dev, N) == CDR_OK);
    T_CHECK(d->ops->sync(d, &err) == CDR_OK && back[0] == 0x5a && back[N - 1] == 0x5a);
    T_CHECK(d->ops->kernel(d, "cdr_cuda_no_such_kernel") == NULL && d->ops->kernel(d, "cdr_cuda_add_fwd") != NULL);
    d->ops->free(d, 0, dev);
    d->ops->free(d, 1, pinned);
    d->ops->close(d);
    free(host);
    free(back);
}

/* Long fills on one stream, a copy on another that waits for them: without the event it would see the old bytes. */
static void events_order_streams(void)
{
    enum { N = 256 << 20 };
    cdr_device *d = open_device();
    if (!d) return;
    cdr_err err = { CDR_OK, "", "" };
    unsigned char *dev = d->ops->alloc(d, 0, N, &err), last = 0;
    T_CHECK(dev && d->ops->events(d, 3) == CDR_OK);
    for (int r = 1; r <= 20 && dev; r++) {
        for (int k = 0; k < 4; k++) d->ops->fill(d, CDR_S_COMPUTE, dev, k == 3 ? r : 99, N);
        T_CHECK(d->ops->record(d, CDR_S_COMPUTE, r % 3) == CDR_OK && d->ops->wait(d, CDR_S_OUT, r % 3) == CDR_OK);
        d->ops->copy(d, CDR_S_OUT, &last, dev + N - 1, 1);
        T_CHECK(d->ops->sync(d, &err) == CDR_OK && last == r);
    }
    d->ops->free(d, 0, dev);
    d->ops->close(d);
}

/* A position outside of the cache traps on the device; sync must say so. The last test: the device is lost after it. */
static void a_fault_on_the_device_is_reported(void)
{
    cdr_device *d = open_device();
    if (!d) return;
    cdr_err err = { CDR_OK, "", "" };
    char *dev = d->ops->alloc(d, 0, 4096, &err);
    int32_t pos[4] = { 0, 1, 1000, 2 }, live = 4;
    T_CHECK(dev != NULL);
    d->ops->copy(d, CDR_S_COMPUTE, dev + 1024, pos, sizeof pos);
    d->ops->copy(d, CDR_S_COMPUTE, dev + 1088, &live, sizeof live);
    cdr_type t[] = { cdr_type_2d(CDR_F32, 4, 8), cdr_type_1d(CDR_I32, 4), cdr_type_1d(CDR_I32, 1), cdr_type_2d(CDR_F32, 16, 8) };
    void *p[] = { dev, dev + 1024, dev + 1088, dev + 2048 };
    cdr_lane lane = { .n_threads = 1, .stream = d->ops->stream(d, CDR_S_COMPUTE), .device = d };
    cdr_cache_write_attr attr = { .rows = 16, .dtype = CDR_F32 };
    cdr_args a = { .attr = &attr, .type = t, .ptr = p, .n_in = 3, .n_out = 1, .lane = &lane };
    d->ops->kernel(d, "cdr_cuda_cache_write_rows")(&a);
    T_CHECK(d->ops->sync(d, &err) == CDR_ERANK);
    T_STR(err.id, "device.failed");
    printf("        reported as: %s\n", err.text);
}

/* ---- check ----------------------------------------------------------------------------------------------------------- */
static void kernels_against_the_reference(void)
{
    cdr_check_sum sum;
    cdr_text report = { 0 };
    cdr_err err = { CDR_OK, "", "" };
    cdr_status st = cdr_check_cuda(0, "", false, &sum, &report, &err);
    if (report.s) fputs(report.s, stdout);
    if (st != CDR_OK) fprintf(stderr, "  %s\n", err.text);
    T_CHECK(st == CDR_OK && sum.n_cases > 50);
    cdr_text_free(&report);
}

/* ---- time ------------------------------------------------------------------------------------------------------------ */
#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define V(dt, n_) { .dtype = dt, .n_dim = 1, .n = { n_ } }
#define N1 { 'n', 1, 0 }
#define IX { 'f', 0, 0 }
static const cdr_linear_attr same = { .out_dtype = -1 };
static const cdr_attention_attr demo = { .heads = 4, .nope = 32, .ext = 32, .v = 64, .scale = 0.125f };
static const cdr_attention_attr mla = { .heads = 32, .nope = 128, .ext = 64, .v = 128, .scale = 0.0721687836f };
static const cdr_rmsnorm_attr eps = { .eps = 1e-5f };
static const cdr_loss_attr whole = { 0, 0 }, chunks = { 4096, 16384 };
static const cdr_adamw_attr adam = { .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .lr_scale = 1 };

static void rows_fwd(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[3].n[0]; i++) in[3][i] = 0, in[4][i] = (double)i;
}
static void rows_bwd(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[4].n[0]; i++) in[4][i] = 0, in[5][i] = (double)i;
}
#define ATT(nm, T, at, H, dk, kv, ext, v) { .name = nm, .op = &cdr_op_attention, .attr = &(at), .n_in = 6, .absent = 32, .make = rows_fwd, \
    .in = { M(CDR_BF16, T, (H) * (dk)), M(CDR_BF16, T, (H) * (kv)), M(CDR_BF16, T, ext), V(CDR_I32, T), V(CDR_I32, T) }, .fill = { N1, N1, N1, IX, IX } }
#define ATB(nm, T, at, H, dk, kv, ext, v) { .name = nm, .op = &cdr_op_attention_bwd, .attr = &(at), .n_in = 9, .absent = 256, .make = rows_bwd, \
    .in = { M(CDR_BF16, T, (H) * (v)), M(CDR_BF16, T, (H) * (dk)), M(CDR_BF16, T, (H) * (kv)), M(CDR_BF16, T, ext), V(CDR_I32, T), V(CDR_I32, T), \
            M(CDR_F32, T, (H) * (v)), M(CDR_F32, T, H) }, .fill = { N1, N1, N1, N1, IX, IX, N1, { 'c', 12, 0 } } }
#define LOSS(nm, T, W, D, at) { .name = nm, .op = &cdr_op_loss, .attr = &(at), .n_in = 3, \
    .in = { M(CDR_BF16, T, D), M(CDR_BF16, W, D), V(CDR_I32, T) }, .fill = { N1, { 'n', 0.05, 0 }, { 'i', 0, (W) - 1 } } }
#define LOSB(nm, T, W, D, at) { .name = nm, .op = &cdr_op_loss_bwd, .attr = &(at), .n_in = 5, \
    .in = { M(CDR_BF16, T, D), M(CDR_BF16, W, D), V(CDR_I32, T), V(CDR_F32, T), V(CDR_F32, 1) }, \
    .fill = { N1, { 'n', 0.05, 0 }, { 'i', 0, (W) - 1 }, { 'c', 9.5, 0 }, { 'c', 1, 0 } } }
static const cdr_case shapes[] = {
    { .name = "8192x4096x2304 bf16", .op = &cdr_op_linear, .attr = &same, .n_in = 2, .in = { M(CDR_BF16, 8192, 2304), M(CDR_BF16, 4096, 2304) }, .fill = { N1, N1 } },
    { .name = "8192x8192x8192 bf16", .op = &cdr_op_linear, .attr = &same, .n_in = 2, .in = { M(CDR_BF16, 8192, 8192), M(CDR_BF16, 8192, 8192) }, .fill = { N1, N1 } },
    { .name = "8192x2304x4096, dy f32", .op = &cdr_op_linear_dx, .n_in = 2, .in = { M(CDR_F32, 8192, 4096), M(CDR_BF16, 4096, 2304) }, .fill = { N1, N1 } },
    { .name = "4096x2304x8192, dy bf16", .op = &cdr_op_linear_dw, .n_in = 2, .in = { M(CDR_BF16, 8192, 4096), M(CDR_BF16, 8192, 2304) }, .fill = { N1, N1 } },
    ATT("T4096 4 heads 64/64 (demo)", 4096, demo, 4, 64, 96, 32, 64),
    ATB("T4096 4 heads 64/64 (demo)", 4096, demo, 4, 64, 96, 32, 64),
    ATT("T8192 32 heads 192/128", 8192, mla, 32, 192, 256, 64, 128),
    ATB("T8192 32 heads 192/128", 8192, mla, 32, 192, 256, 64, 128),
    { .name = "T8192 D7168 bf16", .op = &cdr_op_rmsnorm, .attr = &eps, .n_in = 2, .in = { M(CDR_BF16, 8192, 7168), V(CDR_BF16, 7168) }, .fill = { N1, N1 } },
    { .name = "T8192 D7168 bf16", .op = &cdr_op_rmsnorm_bwd, .attr = &eps, .n_in = 4,
      .in = { M(CDR_BF16, 8192, 7168), M(CDR_BF16, 8192, 7168), V(CDR_BF16, 7168), V(CDR_F32, 8192) }, .fill = { N1, N1, N1, { 'c', 1, 0 } } },
    LOSS("T4096 W512 D256 (demo)", 4096, 512, 256, whole),
    LOSB("T4096 W512 D256 (demo)", 4096, 512, 256, whole),
    LOSS("T8192 W163840 D2304", 8192, 163840, 2304, chunks),
    LOSB("T8192 W163840 D2304", 8192, 163840, 2304, chunks),
    { .name = "T8192 W163840 D2304", .op = &cdr_op_embedding_bwd, .n_in = 3, .absent = 4, .skip_out = 2,
      .attr = &(const cdr_embedding_bwd_attr){ .table_rows = 163840, .feat_dtype = CDR_BF16 },
      .in = { M(CDR_BF16, 8192, 2304), V(CDR_I32, 8192), V(CDR_I32, 0) }, .fill = { N1, { 'i', 0, 163839 } } },
    { .name = "64 Mi parameters", .op = &cdr_op_adamw, .attr = &adam, .n_in = 7,
      .in = { V(CDR_F32, 1 << 26), V(CDR_F32, 1), V(CDR_F32, 8), V(CDR_F32, 1 << 26), V(CDR_F32, 1 << 26), V(CDR_F32, 1 << 26), V(CDR_BF16, 1 << 26) },
      .fill = { N1, { 'c', 1, 0 }, { 'c', 1e-3, 0 }, N1, { 'c', 1, 0 }, { 'c', 1, 0 }, N1 } },
    { .name = NULL }
};

/* One operand on the device: a repeated pattern of PATTERN drawn numbers, or what `make` left. */
static void *operand(cdr_device *d, const cdr_type *t, const cdr_fill *f, const double *made, uint64_t stream)
{
    cdr_err err = { CDR_OK, "", "" };
    size_t bytes = cdr_type_bytes(t);
    int64_t n = cdr_type_elems(t), k = CDR_MIN(n, (int64_t)PATTERN);
    char *dev = d->ops->alloc(d, 0, bytes, &err);
    double *x = malloc(sizeof *x * (size_t)CDR_MAX(k, 1));
    void *host = malloc(CDR_MAX((size_t)cdr_dtype_bytes(t->dtype, k), (size_t)1));
    if (!dev || !x || !host) {
        fprintf(stderr, "  %s\n", err.text);
        exit(1);
    }
    for (int64_t i = 0; i < k; i++) {
        cdr_rng_key key = { 7, stream, 0 };
        x[i] = made ? made[i] : !f || f->kind == 'c' ? (f ? f->a : 0) : f->kind == 'i'
             ? f->a + (double)(cdr_rng_u64(key, (uint64_t)i) % (uint64_t)(f->b - f->a + 1)) : f->a * (double)cdr_rng_normal(key, (uint64_t)i);
    }
    cdr_from_f64(t->dtype, x, host, k);
    for (int64_t at = 0; at < n; at += k)
        d->ops->copy(d, CDR_S_COMPUTE, dev + cdr_dtype_bytes(t->dtype, at), host, (size_t)cdr_dtype_bytes(t->dtype, CDR_MIN(k, n - at)));
    d->ops->sync(d, &err);
    free(x);
    free(host);
    return dev;
}

static void print_time(const cdr_case *c, const cdr_kernel *k, const cdr_cost *cost, bool bf16, double s)
{
    double floor_s = CDR_MAX((cost->read + cost->write) / HBM_BPS, cost->flop / (bf16 ? BF16_FLOPS : F32_FLOPS));
    printf("%-14s %-30s %-9s %9.4f ms  %7.1f GB/s  %7.2f TFLOP/s  %5.1f %% of the floor\n", c->op->name, c->name, k->name, s * 1e3,
           (cost->read + cost->write) / s / 1e9, cost->flop / s / 1e12, 100 * floor_s / s);
    fflush(stdout);
}

/* Best of five windows of N_TIMED calls, without a wait inside of a window. */
static double seconds_of(cdr_device *d, cdr_status (*launch)(const cdr_args *), const cdr_args *a)
{
    cdr_err err = { CDR_OK, "", "" };
    double best = 1e9;
    for (int w = 0; w < 6; w++) {
        int n = w == 0 ? 2 : N_TIMED;                         /* the first warms up */
        int64_t t0 = cdr_now_ns();
        for (int i = 0; i < n; i++) T_CHECK(launch(a) == CDR_OK);
        T_CHECK(d->ops->sync(d, &err) == CDR_OK);
        if (w > 0) best = CDR_MIN(best, (double)(cdr_now_ns() - t0) / 1e9 / n);
        if (t_this_failed) fprintf(stderr, "  %s\n", err.text);
    }
    return best;
}

static void time_case(cdr_device *d, const cdr_case *c)
{
    cdr_type t[CDR_MAX_OPERANDS];
    void *p[CDR_MAX_OPERANDS] = { NULL }, *work;
    double *made[CDR_MAX_OPERANDS] = { NULL };
    int n_out = 0;
    cdr_err err = { CDR_OK, "", "" };
    for (int i = 0; i < c->n_in; i++) t[i] = (c->absent >> i) & 1u ? (cdr_type){ .dtype = CDR_N_DTYPES } : c->in[i];
    T_CHECK(c->op->infer(c->attr, c->n_in, t, &n_out, t + c->n_in, &err) == CDR_OK);
    for (int k = 0; k < n_out; k++)
        if ((c->skip_out >> k) & 1u) t[c->n_in + k].dtype = CDR_N_DTYPES;
    int n = c->n_in + n_out;
    for (int i = 0; i < c->n_in; i++)
        if (!cdr_absent(&t[i]) && c->fill[i].kind == 'f') made[i] = calloc((size_t)cdr_type_elems(&t[i]), sizeof(double));
    if (c->make) c->make(made, t, (cdr_rng_key){ 1, 2, 3 });
    for (int i = 0; i < n; i++)
        if (!cdr_absent(&t[i])) p[i] = operand(d, &t[i], i < c->n_in ? &c->fill[i] : NULL, made[i], (uint64_t)i);
    cdr_cost cost = cdr_op_cost(c->op, c->attr, c->n_in, n_out, t);
    for (const cdr_kernel *k = cdr_op_kernels(c->op, CDR_DEV_CUDA); k->name; k++) {
        if (k->reject && k->reject(c->attr, c->n_in, n_out, t)) continue;
        size_t bytes = k->work_bytes ? k->work_bytes(c->attr, c->n_in, n_out, t, 1) : 0;
        work = bytes ? d->ops->alloc(d, 0, bytes, &err) : NULL;
        cdr_lane lane = { .n_threads = 1, .stream = d->ops->stream(d, CDR_S_COMPUTE), .device = d };
        cdr_args a = { .attr = c->attr, .type = t, .ptr = p, .n_in = c->n_in, .n_out = n_out, .work = work, .lane = &lane };
        print_time(c, k, &cost, t[0].dtype == CDR_BF16 || t[1].dtype == CDR_BF16, seconds_of(d, d->ops->kernel(d, k->symbol), &a));
        if (work) d->ops->free(d, 0, work);
    }
    for (int i = 0; i < n; i++) {
        if (p[i]) d->ops->free(d, 0, p[i]);
        free(made[i]);
    }
}

static void time_of_operators(void)
{
    cdr_device *d = open_device();
    if (!d) return;
    printf("%s\n", d->name);
    for (const cdr_case *c = shapes; c->name; c++) time_case(d, c);
    for (const cdr_case *c = cdr__bench_shapes; c->name; c++) time_case(d, c);
    d->ops->close(d);
}

int main(int argc, char **argv)
{
    if (!dlopen("libcuda.so.1", RTLD_LAZY)) {
        printf("skipped: no CUDA driver (libcuda.so.1)\n");
        return SKIPPED;
    }
    for (int i = 1; i < CDR_MAX(argc, 2); i++) {
        const char *what = argc > 1 ? argv[i] : "";
        if (!*what || strcmp(what, "device") == 0) {
            T_RUN(memory_is_zeroed_and_copies_keep_bytes);
            T_RUN(events_order_streams);
        }
        if (!*what || strcmp(what, "check") == 0) T_RUN(kernels_against_the_reference);
        if (!*what || strcmp(what, "time") == 0) T_RUN(time_of_operators);
        if (!*what || strcmp(what, "device") == 0) T_RUN(a_fault_on_the_device_is_reported);
    }
    return t_end();
}
