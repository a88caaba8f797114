/* test_optim.c: what an optimizer's cases do not say about Muon: the result is orthogonal, a split into heads is separate calls bit
 * for bit, the step has the size that spec/model.md, section 5, gives, a dead block stays at rest beside a live one, and nothing
 * depends on the number of threads. And the first values of parameters: their ranges, and that no layout changes them. */
#include "graph/op.h"
#include "ops/muon/muon.h"
#include "run/exec.h"
#include "test.h"
#include <math.h>

typedef struct { int64_t rows, cols, axis0; const cdr_muon_attr *at; const float *grad; float *w, *m; uint16_t *narrow; } problem;
#define MUON_AT(rows, mu, wd) { .block_rows = rows, .momentum = mu, .nesterov = 1, .iterations = 5, .scale = 0.2f, .weight_decay = wd, .lr_scale = 1 }

static float *floats(int64_t n)
{
    float *x = malloc(sizeof *x * (size_t)n);
    memset(x, 0, sizeof *x * (size_t)n);
    return x;
}

static float *normals(int64_t n, uint64_t stream)
{
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = cdr_rng_normal((cdr_rng_key){ 9, stream, 0 }, (uint64_t)i);
    return x;
}

/* One update in place, on kernel k of the table; false where this machine cannot run it. */
static bool update(const problem *p, int k, int n_threads)
{
    const cdr_kernel *kern = &cdr_op_muon.kernels[k];
    if (kern->needs & ~cdr_cpu_isa(NULL)) return false;
    cdr_type t[9], x = p->axis0 ? cdr_type_3d(CDR_F32, p->axis0, p->rows / p->axis0, p->cols) : cdr_type_2d(CDR_F32, p->rows, p->cols);
    float clip = 1, hyper[8] = { 1 };
    cdr_err e = { CDR_OK, "", "" };
    int n_out = 0;
    for (int i = 0; i < 6; i++) t[i] = x;
    t[1] = cdr_type_1d(CDR_F32, 1);
    t[2] = cdr_type_1d(CDR_F32, 8);
    t[5].dtype = p->narrow ? CDR_BF16 : CDR_N_DTYPES;
    T_CHECK(cdr_op_muon.infer(p->at, 6, t, &n_out, t + 6, &e) == CDR_OK);
    void *ptr[9] = { (void *)(uintptr_t)p->grad, &clip, hyper, p->w, p->m, p->narrow, p->w, p->m, p->narrow };
    void *work = aligned_alloc(64, cdr_align_up(kern->work_bytes(p->at, 6, 3, t, n_threads), 64));
    cdr_lane lane = { .n_threads = n_threads };
    T_CHECK(kern->run(&(cdr_args){ .attr = p->at, .type = t, .ptr = ptr, .n_in = 6, .n_out = 3, .work = work, .lane = &lane }) == CDR_OK);
    free(work);
    return true;
}

/* -W of the step = scale sqrt(max) O, from W = 0: O of one update on kernel k; NULL where it cannot run */
static float *orthogonal_of(const float *grad, int64_t rows, int64_t cols, int k)
{
    static const cdr_muon_attr at = MUON_AT(0, 0, 0);
    float *w = floats(rows * cols), *m = floats(rows * cols);
    bool ran = update(&(problem){ .rows = rows, .cols = cols, .at = &at, .grad = grad, .w = w, .m = m }, k, 2);
    for (int64_t i = 0; i < rows * cols; i++) w[i] /= -0.2f * sqrtf((float)CDR_MAX(rows, cols));
    free(m);
    if (ran) return w;
    free(w);
    return NULL;
}

/* Eigenvalues of the n x n matrix a (destroyed): cyclic Jacobi, 30 sweeps at most. */
static void eigenvalues(double *a, int n)
{
    for (int sweep = 0; sweep < 30; sweep++) {
        double off = 0;
        for (int p = 0; p < n; p++) for (int q = 0; q < p; q++) off += a[p * n + q] * a[p * n + q];
        if (off < 1e-24) return;
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) {
                double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
                if (a[p * n + q] == 0) continue;
                double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1)), c = 1 / sqrt(t * t + 1), s = t * c;
                for (int i = 0; i < n; i++) {
                    double x = a[i * n + p], y = a[i * n + q];
                    a[i * n + p] = c * x - s * y;
                    a[i * n + q] = s * x + c * y;
                }
                for (int i = 0; i < n; i++) {
                    double x = a[p * n + i], y = a[q * n + i];
                    a[p * n + i] = c * x - s * y;
                    a[q * n + i] = s * x + c * y;
                }
            }
    }
}

static void orthogonal_up_to_the_iteration(void)
{
    static const int64_t size[][2] = { { 24, 100 }, { 100, 24 }, { 40, 160 }, { 130, 300 } };
    for (int i = 0; i < 4; i++)
        for (int k = 0; cdr_op_muon.kernels[k].name; k++) {
            int64_t R = size[i][0], K = size[i][1];
            int n = (int)CDR_MIN(R, K);
            float *grad = normals(R * K, (uint64_t)i), *o = orthogonal_of(grad, R, K, k);
            free(grad);
            if (!o) continue;
            double *oo = malloc(sizeof *oo * (size_t)(n * n)), least = 1e9, most = 0;
            for (int p = 0; p < n; p++)
                for (int q = 0; q < n; q++) {
                    double s = 0;
                    for (int64_t l = 0; l < CDR_MAX(R, K); l++) s += R <= K ? (double)o[p * K + l] * (double)o[q * K + l] : (double)o[l * K + p] * (double)o[l * K + q];
                    oo[p * n + q] = s;
                }
            eigenvalues(oo, n);
            for (int p = 0; p < n; p++) {
                least = fmin(least, sqrt(oo[p * n + p]));
                most = fmax(most, sqrt(oo[p * n + p]));
            }
            T_CHECK(least >= 0.68 && most <= 1.20);
            free(oo);
            free(o);
        }
}

/* RMS of 0.2 sqrt(max) O: 0.157 for a head of [128, 7168], 0.188 for 512 x 512 */
static double step_rms(const float *w, int64_t n)
{
    double ss = 0;
    for (int64_t i = 0; i < n; i++) ss += (double)w[i] * (double)w[i];
    return sqrt(ss / (double)n);
}

static void step_has_its_size(void)
{
    static const int64_t size[][2] = { { 128, 7168 }, { 512, 512 } };
    static const double want[] = { 0.157, 0.188 };
    static const cdr_muon_attr at = MUON_AT(0, 0, 0);
    for (int i = 0; i < 2; i++) {
        int64_t n = size[i][0] * size[i][1];
        float *grad = normals(n, 20 + (uint64_t)i), *w = floats(n), *m = floats(n);
        for (int k = 0; cdr_op_muon.kernels[k].name; k++) {
            memset(w, 0, sizeof *w * (size_t)n);
            memset(m, 0, sizeof *m * (size_t)n);
            if (!update(&(problem){ .rows = size[i][0], .cols = size[i][1], .at = &at, .grad = grad, .w = w, .m = m }, k, 2)) continue;
            double rms = step_rms(w, n);
            if (fabs(rms - want[i]) > 0.01 * want[i]) fprintf(stderr, "  %s: RMS %.4f, expected %.3f\n", cdr_op_muon.kernels[k].name, rms, want[i]);
            T_CHECK(fabs(rms - want[i]) <= 0.01 * want[i]);
            break;                                         /* the best kernel: the base one takes seconds here */
        }
        free(grad);
        free(w);
        free(m);
    }
}

/* Two heads, one with gradients 200 times as large: split, both move alike; as one matrix, the small one's singular values begin
 * below 1.5e-3 of the norm and end too small. */
static void heads_of_different_size_move_alike(void)
{
    enum { R = 64, K = 512 };
    static const cdr_muon_attr split = MUON_AT(R, 0, 0), whole = MUON_AT(0, 0, 0);
    float *grad = normals(2 * R * K, 40);
    for (int i = 0; i < R * K; i++) grad[i] *= 200;
    for (int one = 0; one < 2; one++) {
        float *w = floats(2 * R * K), *m = floats(2 * R * K);
        T_CHECK(update(&(problem){ .rows = 2 * R, .cols = K, .at = one ? &whole : &split, .grad = grad, .w = w, .m = m }, 2, 1));
        double large = step_rms(w, R * K), small = step_rms(w + R * K, R * K);
        if (one) T_CHECK(large / small > 1.5);
        else T_CHECK(fabs(large / small - 1) < 0.02);
        free(w);
        free(m);
    }
    free(grad);
}

/* Blocks in one call against a call for each, with momentum, decay and a BF16 copy, on one, two and three threads. */
static void split_is_separate_calls(void)
{
    /* blocks, rows, cols, axis 0; the last one is cut into strips where threads share it */
    static const int64_t size[][4] = { { 12, 8, 40, 0 }, { 4, 48, 20, 0 }, { 9, 16, 24, 9 }, { 3, 70, 70, 3 }, { 1, 410, 400, 0 } };
    for (int i = 0; i < 5; i++)
        for (int k = 0; cdr_op_muon.kernels[k].name; k++) {
            int64_t blocks = size[i][0], R = size[i][1], K = size[i][2], n = blocks * R * K;
            cdr_muon_attr all = MUON_AT(0, 0.95f, 0.1f), each = all;
            all.block_rows = (int32_t)R;
            float *grad = normals(n, 60), *w0 = normals(n, 61), *m0 = normals(n, 62), *w1 = floats(n), *m1 = floats(n), *w2 = floats(n), *m2 = floats(n);
            uint16_t *b1 = malloc((size_t)n * 2), *b2 = malloc((size_t)n * 2);
            memcpy(w2, w0, sizeof *w2 * (size_t)n);
            memcpy(m2, m0, sizeof *m2 * (size_t)n);
            bool ran = true;
            for (int64_t b = 0; b < blocks && ran; b++)
                ran = update(&(problem){ .rows = R, .cols = K, .at = &each, .grad = grad + b * R * K, .w = w2 + b * R * K, .m = m2 + b * R * K,
                                         .narrow = b2 + b * R * K }, k, 1);
            for (int threads = 1; threads <= 3 && ran; threads++) {
                memcpy(w1, w0, sizeof *w1 * (size_t)n);
                memcpy(m1, m0, sizeof *m1 * (size_t)n);
                update(&(problem){ .rows = blocks * R, .cols = K, .axis0 = size[i][3], .at = &all, .grad = grad, .w = w1, .m = m1, .narrow = b1 }, k, threads);
                T_CHECK(memcmp(w1, w2, sizeof *w1 * (size_t)n) == 0);
                T_CHECK(memcmp(m1, m2, sizeof *m1 * (size_t)n) == 0);
                T_CHECK(memcmp(b1, b2, (size_t)n * 2) == 0);
            }
            void *all_of[] = { grad, w0, m0, w1, m1, w2, m2, b1, b2 };
            for (int j = 0; j < 9; j++) free(all_of[j]);
        }
}

/* An expert that no token reached: it only decays; its neighbours do not notice. */
static void dead_block_rests(void)
{
    enum { E = 4, R = 16, K = 24, N = E * R * K };
    static const cdr_muon_attr at = MUON_AT(R, 0.95f, 0.1f);
    for (int k = 0; cdr_op_muon.kernels[k].name; k++) {
        float *grad = normals(N, 70), *w = normals(N, 71), *before = normals(N, 71), *m = floats(N);
        for (int i = 0; i < R * K; i++) grad[2 * R * K + i] = 0;
        if (update(&(problem){ .rows = E * R, .cols = K, .axis0 = E, .at = &at, .grad = grad, .w = w, .m = m }, k, 2))
            for (int i = 0; i < N; i++) {
                bool dead = i / (R * K) == 2;
                T_CHECK(isfinite(w[i]));
                if (dead) T_CHECK(w[i] == before[i] - 0.1f * before[i]);
                else if (w[i] == before[i] - 0.1f * before[i]) T_CHECK(grad[i] == 0);
            }
        free(grad);
        free(w);
        free(before);
        free(m);
    }
}

static void refusals(void)
{
    cdr_type m = cdr_type_2d(CDR_F32, 30, 8), v = cdr_type_1d(CDR_F32, 30), one = cdr_type_1d(CDR_F32, 1), hyper = cdr_type_1d(CDR_F32, 8), out[3];
    static const cdr_muon_attr of_7 = MUON_AT(7, 0.95f, 0), whole = MUON_AT(0, 0.95f, 0);
    int n = 0;
    cdr_err e = { CDR_OK, "", "" };
    T_CHECK(cdr_op_muon.infer(&of_7, 6, (cdr_type[]){ m, one, hyper, m, m, m }, &n, out, &e) == CDR_EINVAL);
    T_HAS(e.text, "30 rows are not whole blocks of 7");
    e = (cdr_err){ CDR_OK, "", "" };
    T_CHECK(cdr_op_muon.infer(&whole, 6, (cdr_type[]){ v, one, hyper, v, v, v }, &n, out, &e) == CDR_EINVAL);
    T_HAS(e.text, "no matrix");
}

/* ---- first values ------------------------------------------------------------------------------------------------------- */
/* Parameter q's values on one rank of n_shard, by the executor's own way. */
static void first_values(const cdr_param *like, int n_shard, int rank, int n_threads, float *out, int64_t n)
{
    cdr_param q = *like;
    cdr_mesh mesh = { .size = { 1, n_shard, 1 }, .rank = { 0, rank, 0 }, .world = n_shard, .world_rank = rank };
    cdr_value shard = { .t = q.global, .n_inst = 1 };
    for (int d = 0; d < CDR_MAX_DIM; d++) q.split[d] = -1;
    if (n_shard > 1) q.split[0] = CDR_AXIS_SHARD;
    shard.t.n[0] = q.global.n[0] / n_shard;
    q.shard = 0;
    q.master = CDR_NONE;
    cdr_bundle b = { .params = &q, .n_params = 1, .shared = &shard, .n_shared = 1 };
    cdr_err e = { CDR_OK, "", "" };
    cdr_device *d = NULL;
    T_CHECK(cdr_device_open(CDR_DEV_CPU, 0, n_threads, &d, &e) == CDR_OK);
    if (!d) return;
    cdr_exec x = { .b = &b, .d = d, .slab = (char *)out, .slab_bytes = sizeof(float) * (size_t)n, .o = { .mesh = &mesh } };
    T_CHECK(cdr_exec_init(&x, 77, &e) == CDR_OK);
    d->ops->close(d);
}

typedef struct { int init; double lo, hi, mean; } range;

/* ranges and means of each distribution; two shards hold the halves of the whole, on three axes as on two */
static void first_values_by_distribution(void)
{
    enum { N = 8 * 60 * 50 };
    static const range want[] = {
        { CDR_INIT_ZEROS, 0, 0, 0 }, { CDR_INIT_ONES, 1, 1, 1 }, { CDR_INIT_NORMAL, -3, 3, 0 }, { CDR_INIT_UNIFORM, -0.5, 0.5, 0 },
        { CDR_INIT_LOG_UNIFORM, 0, 2.7725888, (16 * 2.7725887 - 15) / 15 },        /* mean of log U(1, 16) */
        { CDR_INIT_DT_BIAS, -6.9073, -2.2521, 0 },
    };
    float *whole = floats(N), *other = floats(N);
    for (int i = 0; i < 6; i++) {
        cdr_param q = { .name = "p", .global = cdr_type_3d(CDR_F32, 8, 60, 50), .init = (uint8_t)want[i].init, .init_std = 0.5f, .rng = 1234 };
        first_values(&q, 1, 0, 2, whole, N);
        double mean = 0, dt = 0;
        for (int j = 0; j < N; j++) {
            T_CHECK((double)whole[j] >= want[i].lo && (double)whole[j] <= want[i].hi);
            mean += (double)whole[j] / (double)N;
            dt += log(log1p(exp((double)whole[j]))) / (double)N;
        }
        if (want[i].init == CDR_INIT_DT_BIAS) T_NEAR(dt, 0.5 * (log(1e-3) + log(1e-1)), 0.03);     /* log softplus(b) is uniform */
        else T_NEAR(mean, want[i].mean, 0.02);
        first_values(&q, 1, 0, 1, other, N);
        T_CHECK(memcmp(whole, other, sizeof *whole * N) == 0);
        for (int rank = 0; rank < 2; rank++) first_values(&q, 2, rank, 2, other + rank * N / 2, N / 2);
        T_CHECK(memcmp(whole, other, sizeof *whole * N) == 0);
        q.global = cdr_type_2d(CDR_F32, 8 * 60, 50);
        first_values(&q, 1, 0, 2, other, N);
        T_CHECK(memcmp(whole, other, sizeof *whole * N) == 0);
    }
    free(whole);
    free(other);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(orthogonal_up_to_the_iteration);
    T_RUN(step_has_its_size);
    T_RUN(heads_of_different_size_move_alike);
    T_RUN(split_is_separate_calls);
    T_RUN(dead_block_rests);
    T_RUN(refusals);
    T_RUN(first_values_by_distribution);
    return t_end();
}
