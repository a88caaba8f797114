/* muon, CPU kernels: equations (1) to (4) of op.c; the products are ops/linear's GEMM on the path of the kernel, with
 *   A = X X^T (F32),  B = a I + b A + c A A,  X <- B X
 * A and A A are symmetric to the bit (an element is one chain over ascending k, and a b = b a), so that one triangle is formed
 * and mirrored.
 * Threads: many small blocks (stacked experts, heads) run one to a thread; otherwise all threads share each product. An element
 * of the GEMM knows its row and column alone, so neither choice changes a bit; nor does the number of blocks beside it.
 * Scratch of a block: X, its next value, A, B and the rows' sums of squares.
 *
 * Measured on one core of Zen 3 that other work shared (FMA peak 97.5 GFLOP/s), five iterations, time of a block, and GFLOP/s if all of
 * 6 n^2 k were formed. The 672 experts' matrices of 64 x 64 of the demo: 67 ms of one core, and 36 ms if 20 n^3 ran at peak.
 *   64 x 64 stacked    0.10 ms  80      128 x 128   0.58 ms 108     256 x 128   1.03 ms 102     4 heads of 32 x 128   0.21 ms  57
 * Of 18 us an iteration of 64 x 64: X X^T and A A 4.2 each, B X 6.2, mirrors and polynomial 2.7. */
#include "ops/cpu.h"
#include "ops/linear/gemm.h"
#include "ops/muon/muon.h"
#include <math.h>

enum { STRIP = 96, STRIPS_FROM = 384,            /* rows of a strip of a triangle; of a matrix that is cut into such */
       SIDE = 32,                                /* of a square that is transposed at a time */
       APART_MAX = 1 << 20 };                    /* elements of blocks that run side by side */

/* sizes of a call. A block has rows x cols; the iteration works on n x k, n <= k, turned where rows > cols. */
typedef struct { int64_t rows, cols, n, k, n_blocks; bool turned, apart; } sizes;
typedef struct { float *x, *next, *a, *b; double *ss; void *gemm; } scratch;

static sizes sizes_of(const cdr_muon_attr *at, const cdr_type *t, int n_threads)
{
    sizes z = { .rows = at->block_rows ? at->block_rows : cdr_type_rows(&t[0]), .cols = cdr_type_cols(&t[0]) };
    z.n = CDR_MIN(z.rows, z.cols);
    z.k = CDR_MAX(z.rows, z.cols);
    z.n_blocks = cdr_type_rows(&t[0]) / z.rows;
    z.turned = z.rows > z.cols;
    z.apart = n_threads > 1 && z.rows * z.cols <= APART_MAX && (z.n_blocks % n_threads == 0 || z.n_blocks >= 4 * n_threads);
    return z;
}

static size_t part(int64_t n, size_t bytes) { return cdr_align_up((size_t)n * bytes, 64); }
static size_t gemm_bytes(int path, const sizes *z, int n_threads)
{
    return CDR_MAX(cdr__gemm_work_bytes(path, z->n, z->n, z->k, n_threads), cdr__gemm_work_bytes(path, z->n, z->k, z->n, n_threads));
}
/* of one block, n_threads of which work on it */
static size_t block_bytes(int path, const sizes *z, int n_threads)
{
    return 2 * part(z->n * z->k, 4) + 2 * part(z->n * z->n, 4) + part(z->rows, 8) + cdr_align_up(gemm_bytes(path, z, n_threads), 64);
}
static scratch take(const sizes *z, char *at)
{
    scratch s = { .x = (float *)(void *)at };
    at += part(z->n * z->k, 4);
    s.next = (float *)(void *)at;
    at += part(z->n * z->k, 4);
    s.a = (float *)(void *)at;
    at += part(z->n * z->n, 4);
    s.b = (float *)(void *)at;
    at += part(z->n * z->n, 4);
    s.ss = (double *)(void *)at;
    s.gemm = at + part(z->rows, 8);
    return s;
}

/* ---- the products ------------------------------------------------------------------------------------------------- */
/* Upper triangle of c_nn = x x^T (b stored transposed) or x x, which is symmetric. In strips where threads share it, so that each
 * has as much to do; else at once, since a strip packs its columns again. */
static void triangle(int path, const float *x_nk, bool by_transpose, float *c_nn, int64_t n, int64_t k, void *work, int n_threads)
{
    const int64_t strip = n_threads > 1 && n >= STRIPS_FROM ? STRIP : n;
    for (int64_t i = 0; i < n; i += strip) {
        cdr__gemm_args g = { .m = CDR_MIN(strip, n - i), .n = n - i, .k = k, .a = cdr__rows(CDR_F32, x_nk + i * k, k),
                             .c = c_nn + i * n + i, .c_dtype = CDR_F32, .c_pitch = n, .upper = true };
        g.b = by_transpose ? cdr__cols(CDR_F32, x_nk + i * k, k) : cdr__rows(CDR_F32, x_nk + i, k);
        cdr__gemm(path, &g, work, n_threads);
    }
}

/* Rows i0 .. i1 of the lower triangle from the upper one, in squares that lie in the first level of cache together. */
static void mirror(float *c_nn, int64_t n, int64_t i0, int64_t i1)
{
    for (int64_t j0 = 0; j0 < i1; j0 += SIDE)
        for (int64_t i = i0; i < i1; i++)
            for (int64_t j = j0; j < CDR_MIN(j0 + SIDE, i); j++) c_nn[i * n + j] = c_nn[j * n + i];
}

/* Upper triangle: B = a I + b A + c A A, where A A lies in b_nn */
static void polynomial_row(const float *a_nn, float *b_nn, int64_t n, int64_t i)
{
    const float a = (float)cdr__muon_abc[0], b = (float)cdr__muon_abc[1], c = (float)cdr__muon_abc[2];
    for (int64_t j = i; j < n; j++) b_nn[i * n + j] = b * a_nn[i * n + j] + c * b_nn[i * n + j];
    b_nn[i * n + i] += a;
}

/* (3), iterations times; the result lies in s->x */
static void orthogonalise(int path, const sizes *z, scratch *s, int iterations, int n_threads)
{
    const int64_t n = z->n;
    const bool share = n_threads > 1 && n >= STRIPS_FROM;
    const int64_t some = share ? SIDE : n;       /* rows of a matrix that are mirrored at a time */
    for (int it = 0; it < iterations; it++) {
        triangle(path, s->x, true, s->a, n, z->k, s->gemm, n_threads);
#pragma omp parallel for num_threads(n_threads) schedule(dynamic) if (share)
        for (int64_t i = 0; i < n; i += some) mirror(s->a, n, i, CDR_MIN(i + some, n));
        triangle(path, s->a, false, s->b, n, n, s->gemm, n_threads);
#pragma omp parallel for num_threads(n_threads) schedule(dynamic, SIDE) if (share)
        for (int64_t i = 0; i < n; i++) polynomial_row(s->a, s->b, n, i);
#pragma omp parallel for num_threads(n_threads) schedule(dynamic) if (share)
        for (int64_t i = 0; i < n; i += some) mirror(s->b, n, i, CDR_MIN(i + some, n));
        cdr__gemm_args g = { .m = n, .n = z->k, .k = n, .a = cdr__rows(CDR_F32, s->b, n), .b = cdr__rows(CDR_F32, s->x, z->k),
                             .c = s->next, .c_dtype = CDR_F32, .c_pitch = z->k };
        cdr__gemm(path, &g, s->gemm, n_threads);
        float *x = s->x;
        s->x = s->next;
        s->next = x;
    }
}

/* ---- row by row --------------------------------------------------------------------------------------------------- */
/* Element i in partial sum i mod 16; four vectors of four, which gcc does not make of an array of sixteen. */
typedef float quad __attribute__((vector_size(16)));
typedef double wide __attribute__((vector_size(32)));
static double sum_squares(const float *x, int64_t n)
{
    wide s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        quad q[4];
        memcpy(q, x + i, sizeof q);
        wide d0 = __builtin_convertvector(q[0], wide), d1 = __builtin_convertvector(q[1], wide);
        wide d2 = __builtin_convertvector(q[2], wide), d3 = __builtin_convertvector(q[3], wide);
        s0 += d0 * d0;
        s1 += d1 * d1;
        s2 += d2 * d2;
        s3 += d3 * d3;
    }
    double s[16];
    memcpy(s, &s0, sizeof s0);
    memcpy(s + 4, &s1, sizeof s1);
    memcpy(s + 8, &s2, sizeof s2);
    memcpy(s + 12, &s3, sizeof s3);
    for (int j = 0; i + j < n; j++) s[j] += (double)x[i + j] * (double)x[i + j];
    for (int w = 8; w > 0; w /= 2) for (int j = 0; j < w; j++) s[j] += s[j + w];
    return s[0];
}

/* (1), and G of (2), of one row of one block */
static void momentum_row(const cdr_args *a, int64_t at, int64_t cols, float *g_K)
{
    const cdr_muon_attr *attr = a->attr;
    const float *grad = (const float *)a->ptr[CDR__MU_GRAD] + at, *old = (const float *)a->ptr[CDR__MU_M] + at;
    const float clip = *(const float *)a->ptr[CDR__MU_CLIP], mu = attr->momentum;
    const bool nesterov = attr->nesterov != 0;
    float *m = (float *)a->ptr[CDR__MU_M_OUT] + at;
#pragma omp simd                       /* in place or not: element by element in any case */
    for (int64_t i = 0; i < cols; i++) {
        float g = clip * grad[i], mi = mu * old[i] + g;
        m[i] = mi;
        g_K[i] = nesterov ? g + mu * mi : mi;
    }
}

/* (4), of one row; x_K: its row of X */
static void update_row(const cdr_args *a, const sizes *z, int64_t at, const float *x_K)
{
    const cdr_muon_attr *attr = a->attr;
    const float *old = (const float *)a->ptr[CDR__MU_MASTER] + at, lr = *(const float *)a->ptr[CDR__MU_HYPER] * attr->lr_scale;
    const float rms = attr->scale * sqrtf((float)z->k), wd = attr->weight_decay;
    float *w = (float *)a->ptr[CDR__MU_MASTER_OUT] + at;
#pragma omp simd
    for (int64_t i = 0; i < z->cols; i++) w[i] = old[i] - lr * (rms * x_K[i] + wd * old[i]);
    if (!a->ptr[CDR__MU_WEIGHT_OUT]) return;
    int dtype = a->type[CDR__MU_WEIGHT_OUT].dtype;
    cdr_from_f32(dtype, w, (char *)a->ptr[CDR__MU_WEIGHT_OUT] + cdr_dtype_bytes(dtype, at), z->cols);
}

/* y_CR = factor x_RC transposed, rows r0 .. r1 of y; in squares that lie in the first level of cache together */
static void turn(const float *x, float *y, int64_t R, int64_t C, float factor, int64_t r0, int64_t r1)
{
    for (int64_t c = r0; c < r1; c += SIDE)
        for (int64_t r = 0; r < R; r += SIDE)
            for (int64_t j = c; j < CDR_MIN(c + SIDE, r1); j++)
                for (int64_t i = r; i < CDR_MIN(r + SIDE, R); i++) y[j * R + i] = factor * x[i * C + j];
}

/* One block by n_threads threads: (1) to (4). */
static void block(const cdr_args *a, int path, const sizes *z, int64_t i_block, scratch *s, int n_threads)
{
    const int64_t at = i_block * z->rows * z->cols;
    float *g_RK = z->turned ? s->next : s->x;
    double ss = 0;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int64_t r = 0; r < z->rows; r++) {
        momentum_row(a, at + r * z->cols, z->cols, g_RK + r * z->cols);
        s->ss[r] = sum_squares(g_RK + r * z->cols, z->cols);
    }
    for (int64_t r = 0; r < z->rows; r++) ss += s->ss[r];
    const float inverse = (float)(1.0 / (sqrt(ss) + 1e-7));
    if (z->turned) {
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
        for (int64_t c = 0; c < z->n; c += SIDE) turn(g_RK, s->x, z->rows, z->cols, inverse, c, CDR_MIN(c + SIDE, z->n));
    } else {
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
        for (int64_t r = 0; r < z->rows; r++) for (int64_t i = 0; i < z->cols; i++) s->x[r * z->cols + i] *= inverse;
    }
    orthogonalise(path, z, s, ((const cdr_muon_attr *)a->attr)->iterations, n_threads);
    float *o_RK = z->turned ? s->next : s->x;
    if (z->turned) {
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
        for (int64_t r = 0; r < z->rows; r += SIDE) turn(s->x, o_RK, z->n, z->k, 1.0f, r, CDR_MIN(r + SIDE, z->rows));
    }
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int64_t r = 0; r < z->rows; r++) update_row(a, z, at + r * z->cols, o_RK + r * z->cols);
}

static cdr_status run(const cdr_args *a, int path)
{
    const int n_threads = a->lane->n_threads;
    const sizes z = sizes_of(a->attr, a->type, n_threads);
    assert(a->work);
    if (!z.apart) {
        scratch s = take(&z, a->work);
        for (int64_t b = 0; b < z.n_blocks; b++) block(a, path, &z, b, &s, n_threads);
        return CDR_OK;
    }
    const size_t bytes = block_bytes(path, &z, 1);
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t b = 0; b < z.n_blocks; b++) {
        scratch s = take(&z, (char *)a->work + (size_t)omp_get_thread_num() * bytes);
        block(a, path, &z, b, &s, 1);
    }
    return CDR_OK;
}

static size_t work(int path, const void *attr, const cdr_type *t, int n_threads)
{
    const sizes z = sizes_of(attr, t, n_threads);
    return z.apart ? (size_t)n_threads * block_bytes(path, &z, 1) : block_bytes(path, &z, n_threads);
}

/* ---- one entry per path ------------------------------------------------------------------------------------------ */
cdr_status cdr__muon_base(const cdr_args *a) { return run(a, CDR__GEMM_BASE); }
cdr_status cdr__muon_avx2(const cdr_args *a) { return run(a, CDR__GEMM_AVX2); }
cdr_status cdr__muon_avx512(const cdr_args *a) { return run(a, CDR__GEMM_AVX512); }

#define WORK(NAME, PATH) size_t NAME(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads) \
    { (void)n_in, (void)n_out; return work(PATH, attr, t, n_threads); }
WORK(cdr__muon_base_work, CDR__GEMM_BASE)
WORK(cdr__muon_avx2_work, CDR__GEMM_AVX2)
WORK(cdr__muon_avx512_work, CDR__GEMM_AVX512)
