/* gemm.cu: C[m][n] = or += sum_k A(m,k) B(k,n), the own kernel: any mix of F32 and BF16, any transposition, F32 sums in
 * ascending k. It stands in where cuBLASLt is missing or takes no such product, and is its check.
 *
 * Grid (ceil(n/64), ceil(m/64)), 256 threads; a block owns a tile of 64 x 64, a thread 4 x 4 of it; k in steps of 16
 * through shared memory (8.5 KiB). Bound: FMA and shared memory, not tensor cores.
 */
#include "device/cuda/cuda.cuh"

enum { TILE = 64, STEP = 16, LINE = TILE + 4 };

typedef struct { cu_mat a, b, c; int64_t m, n, k; int32_t a_t, b_t; } product;

/* dst[k][i] = X(i0 + i, k0 + k): stored [rows][k] or, transposed, [k][rows]; zero outside of the matrix */
static __device__ __forceinline__ void load(float (*dst)[LINE], const cu_mat &x, bool k_is_row, int64_t i0, int64_t k0, int64_t n_i, int64_t n_k)
{
    for (int e = (int)threadIdx.x; e < TILE * STEP; e += CU_THREADS) {
        int i = k_is_row ? e % TILE : e / STEP, k = k_is_row ? e / TILE : e % STEP;
        int64_t gi = i0 + i, gk = k0 + k;
        float v = 0.0f;
        if (gi < n_i && gk < n_k) v = cu_get(x, k_is_row ? gk * x.pitch + gi : gi * x.pitch + gk);
        dst[k][i] = v;
    }
}

static __global__ void __launch_bounds__(CU_THREADS) gemm_plain(product g)
{
    __shared__ __align__(16) float as[STEP][LINE], bs[STEP][LINE];
    int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    int64_t m0 = (int64_t)blockIdx.y * TILE, n0 = (int64_t)blockIdx.x * TILE;
    float acc[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = 0.0f;
    for (int64_t k0 = 0; k0 < g.k; k0 += STEP) {
        load(as, g.a, g.a_t != 0, m0, k0, g.m, g.k);
        load(bs, g.b, g.b_t == 0, n0, k0, g.n, g.k);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            float4 a = *(const float4 *)&as[k][ty * 4], b = *(const float4 *)&bs[k][tx * 4];
            float av[4] = { a.x, a.y, a.z, a.w }, bv[4] = { b.x, b.y, b.z, b.w };
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] = fmaf(av[i], bv[j], acc[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t m = m0 + ty * 4 + i, n = n0 + tx * 4 + j;
            if (m < g.m && n < g.n) cu_put(g.c, m * g.c.pitch + n, acc[i][j]);
        }
}

static __global__ void __launch_bounds__(CU_THREADS) cast(cu_mat x, cu_mat y, cu_walk w)
{
    cu_group g;
    if (!cu_next(w, &g)) return;
    float v[8];
    cu_get8(x, g.row * x.pitch + g.col, g.n, v);
    cu_put8(y, g.row * y.pitch + g.col, g.n, v);
}

void cdr__cuda_cast(const cdr_args *a, cu_mat x, cu_mat y)
{
    cu_mat m[] = { x, y };
    cu_walk w = cu_walk_over(m, 2);
    if (cu_blocks(w) > 0) CU_LAUNCH(cast, cu_blocks(w), CU_THREADS, 0, a, x, y, w);
}

static cu_mat stored(const void *p, int64_t ld, int dtype, bool add)
{
    cu_mat m = { (void *)p, 0, 0, ld, dtype == CDR_F32, add };
    return m;
}

extern "C" cdr_status cdr__cuda_gemm_plain(const cdr_args *a, const cdr_cuda_gemm *g)
{
    product p = { stored(g->a, g->lda, g->a_dtype, false), stored(g->b, g->ldb, g->b_dtype, false), stored(g->c, g->ldc, g->c_dtype, g->add),
                  g->m, g->n, g->k, g->a_t, g->b_t };
    if (g->m == 0 || g->n == 0) return CDR_OK;
    /* rows go through grid.y, 65535 at most: taller products are cut into bands */
    for (int64_t m0 = 0; m0 < g->m; m0 += (int64_t)65535 * TILE) {
        product band = p;
        int64_t rows = CDR_MIN(g->m - m0, (int64_t)65535 * TILE);
        band.m = rows;
        band.a.p = (char *)p.a.p + (g->a_t ? m0 : m0 * g->lda) * (g->a_dtype == CDR_F32 ? 4 : 2);
        band.c.p = (char *)p.c.p + m0 * g->ldc * (g->c_dtype == CDR_F32 ? 4 : 2);
        CU_LAUNCH(gemm_plain, dim3(cu_ceil(g->n, TILE), cu_ceil(rows, TILE)), CU_THREADS, 0, a, band);
    }
    return cdr__cuda_done(a, "gemm_plain");
}
