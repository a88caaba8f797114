/* muon, CPU kernels: equations (1) to (4) of op.c; the products are ops/linear's GEMM on the path of the kernel, with
 *   A = X X^T (F32),  B = a I + b A + c A A,  X <- B X
 * A and A A are symmetric to the bit (an element is one chain over ascending k, and a b = b a), so that one triangle is formed
 * and mirrored.
 * Threads: many small blocks (stacked experts, heads) run one to a thread; otherwise all threads share each product. An element
 * of the GEMM knows its row and column alone, so neither choice changes a bit; nor does the number of blocks beside it.
 * Scratch of a block: X, its next value, A, B and the rows' sums of squares.
 *
 * Matrices of at most 128 rows go through small.inc where the machine has AVX2: nothing is packed, all lies in the first levels of cache.
 *
 * Measured on one core of Zen 3 (FMA peak 97.5 GFLOP/s), five iterations, best of 400 windows: time of a block, share of the peak by the
 * halved count of op.c, and in parentheses the same where the matrix product of ops/linear forms the products. Floor of a block of 64 x 64 is 0.054 ms, so the
 * 672 experts of the demo need 36 ms of one core at the peak.
 *   64 x 64 stacked    0.075 ms 70 %   (0.104  51 %)        128 x 128   0.52 ms   81 %   (0.60   72 %)
 *   2 heads of 64x128  0.265 ms 71 %   (0.31   60 %)        64 x 128    0.133 ms  71 %   (0.154  61 %)
 * On a Xeon, one thread: 64 x 64 with AVX2 0.125 (0.151), with AVX-512 0.081 (0.111); 128 x 128 0.74 and 0.42 (0.86, 0.58). There
 * a fork costs 100 us where threads sleep, so that a block under TEAM_FROM stays on one thread.
 * Predicted for 64 x 64: 0.072. Tried: the sum not by four at a time, each tile's last branch mispredicted, 0.117.
 * The Gram matrix alone through the iterations, X once at the end: the same work where n = k, a third less where k = 2 n, but singular
 * values below 3e-4 of the norm are lost in it, and the cases hold 5e-6. */
#include "ops/cpu.h"
#include "ops/linear/gemm.h"
#include "ops/muon/muon.h"
#include "ops/muon/small.h"
#include <math.h>

enum { STRIP = 96, STRIPS_FROM = 384,            /* rows of a strip of a triangle; of a matrix that is cut into such */
       SIDE = 32,                                /* of a square that is transposed at a time */
       APART_MAX = 1 << 20,                      /* elements of blocks that run side by side */
       TEAM_FROM = 1 << 20 };                    /* n n k of a small block from which all threads share it, who meet 15 times */

/* sizes of a call. A block has rows x cols; the iteration works on x_nk, n <= k, or, where there is a kernel for small ones, on x_kn.
 * turned: that is not how the block lies. pitch: of x in scratch; a and b have side rows of side. */
typedef struct { int64_t rows, cols, n, k, pitch, side, n_blocks; bool turned, apart; float *(*small)(const cdr__mu_small *s); } sizes;
typedef struct { float *x, *next, *a, *b; double *ss; void *gemm; } scratch;

static sizes sizes_of(int path, const cdr_muon_attr *at, const cdr_type *t, int n_threads)
{
    sizes z = { .rows = at->block_rows ? at->block_rows : cdr_type_rows(&t[0]), .cols = cdr_type_cols(&t[0]) };
    z.n = CDR_MIN(z.rows, z.cols);
    z.k = CDR_MAX(z.rows, z.cols);
    z.n_blocks = cdr_type_rows(&t[0]) / z.rows;
    if (z.n <= CDR__MU_SMALL_N && z.k <= CDR__MU_SMALL_K)
        z.small = path == CDR__GEMM_AVX2 ? cdr__muon_small_avx2 : path == CDR__GEMM_AVX512 ? cdr__muon_small_avx512 : NULL;
    z.turned = z.small ? z.rows < z.cols : z.rows > z.cols;
    z.pitch = z.small ? cdr__mu_pitch(z.n) : z.k;
    z.side = z.small ? z.pitch : z.n;
    z.apart = n_threads > 1 && z.rows * z.cols <= APART_MAX && (z.n_blocks % n_threads == 0 || z.n_blocks >= 4 * n_threads);
    return z;
}

static size_t part(int64_t n, size_t bytes) { return cdr_align_up((size_t)n * bytes, 64); }
static size_t x_bytes(const sizes *z) { return part((z->small ? z->k : z->n) * z->pitch, 4); }
static size_t gemm_bytes(int path, const sizes *z, int n_threads)
{
    return z->small ? 0 : CDR_MAX(cdr__gemm_work_bytes(path, z->n, z->n, z->k, n_threads), cdr__gemm_work_bytes(path, z->n, z->k, z->n, n_threads));
}
/* of one block, n_threads of which work on it */
static size_t block_bytes(int path, const sizes *z, int n_threads)
{
    return 2 * x_bytes(z) + 2 * part(z->side * z->side, 4) + part(z->rows, 8) + cdr_align_up(gemm_bytes(path, z, n_threads), 64);
}
static scratch take(const sizes *z, char *at)
{
    scratch s = { .x = (float *)(void *)at };
    at += x_bytes(z);
    s.next = (float *)(void *)at;
    at += x_bytes(z);
    s.a = (float *)(void *)at;
    at += part(z->side * z->side, 4);
    s.b = (float *)(void *)at;
    at += part(z->side * z->side, 4);
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
    if (z->small) {
        const bool team = n_threads > 1;
        const cdr__mu_small one = { .x = s->x, .next = s->next, .a = s->a, .b = s->b, .n = n, .k = z->k, .iterations = iterations, .n_team = 1 };
        float *last = NULL;
        if (!team) {
            last = z->small(&one);
        } else {
#pragma omp parallel num_threads(n_threads)
            {
                cdr__mu_small part = one;
                part.i_team = omp_get_thread_num();
                part.n_team = omp_get_num_threads();
                float *x = z->small(&part);
                if (part.i_team == 0) last = x;
            }
        }
        s->next = last == s->x ? s->next : s->x;
        s->x = last;
        return;
    }
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

/* x has rows rows; row j of y is column j of x */
typedef struct { const float *x; float *y; int64_t x_pitch, y_pitch, rows; } turning;
/* y = factor x transposed, rows r0 .. r1 of y; in squares that lie in the first level of cache together */
static void turn(turning t, float factor, int64_t r0, int64_t r1)
{
    for (int64_t c = r0; c < r1; c += SIDE)
        for (int64_t r = 0; r < t.rows; r += SIDE)
            for (int64_t j = c; j < CDR_MIN(c + SIDE, r1); j++)
                for (int64_t i = r; i < CDR_MIN(r + SIDE, t.rows); i++) t.y[j * t.y_pitch + i] = factor * t.x[i * t.x_pitch + j];
}

/* One block by n_threads threads: (1) to (4). g: G as the block lies, where it can be that is x already; o the same of the result. */
static void block(const cdr_args *a, int path, const sizes *z, int64_t i_block, scratch *s, int n_threads)
{
    if (z->small && z->n * z->n * z->k < TEAM_FROM) n_threads = 1;
    const int64_t at = i_block * z->rows * z->cols, g_pitch = z->turned ? z->cols : z->pitch, x_rows = z->small ? z->k : z->n, x_cols = z->small ? z->n : z->k;
    float *g = z->turned ? s->next : s->x;
    double ss = 0;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int64_t r = 0; r < z->rows; r++) {
        momentum_row(a, at + r * z->cols, z->cols, g + r * g_pitch);
        s->ss[r] = sum_squares(g + r * g_pitch, z->cols);
    }
    for (int64_t r = 0; r < z->rows; r++) ss += s->ss[r];
    const float inverse = (float)(1.0 / (sqrt(ss) + 1e-7));
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int64_t r = 0; r < x_rows; r += SIDE) {
        const int64_t end = CDR_MIN(r + SIDE, x_rows);
        if (z->turned) turn((turning){ .x = g, .x_pitch = g_pitch, .y = s->x, .y_pitch = z->pitch, .rows = z->rows }, inverse, r, end);
        for (int64_t i = r; i < end; i++) {
            float *x = s->x + i * z->pitch;
            if (!z->turned) for (int64_t j = 0; j < x_cols; j++) x[j] *= inverse;
            for (int64_t j = x_cols; j < z->pitch; j++) x[j] = 0;
        }
    }
    orthogonalise(path, z, s, ((const cdr_muon_attr *)a->attr)->iterations, n_threads);
    float *o = z->turned ? s->next : s->x;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int64_t r = 0; r < z->rows; r += SIDE) {
        const int64_t end = CDR_MIN(r + SIDE, z->rows);
        if (z->turned) turn((turning){ .x = s->x, .x_pitch = z->pitch, .y = o, .y_pitch = g_pitch, .rows = x_rows }, 1.0f, r, end);
        for (int64_t i = r; i < end; i++) update_row(a, z, at + i * z->cols, o + i * g_pitch);
    }
}

static cdr_status run(const cdr_args *a, int path)
{
    const int n_threads = a->lane->n_threads;
    const sizes z = sizes_of(path, a->attr, a->type, n_threads);
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
    const sizes z = sizes_of(path, attr, t, n_threads);
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
