/* rmsnorm on CUDA: equations (1)-(3) of op.c. A warp owns a row, so its sums need no barrier: 32 partial sums of groups of
 * eight, then a butterfly, F32. dw in two stages: a partial for each band of 64 rows, rows ascending, then bands ascending.
 *
 * forward    grid ceil(T/8), 256 threads; reads x twice (the second time from cache) and writes y: 2 tensors of HBM traffic
 * backward   dx: the same shape, 3 tensors. dw: grid (ceil(D/256), bands): dy and x once more, mostly from L2
 * Bound: HBM.
 */
#include "device/cuda/cuda.cuh"
#include "ops/rmsnorm/cuda.h"
#include "ops/rmsnorm/rmsnorm.h"

enum { ROWS = CU_THREADS / CU_WARP };

static __global__ void __launch_bounds__(CU_THREADS) norm_fwd(cu_mat x, cu_mat w, cu_mat y, float *r_T, float eps)
{
    int lane = (int)threadIdx.x % CU_WARP;
    int64_t t = (int64_t)blockIdx.x * ROWS + threadIdx.x / CU_WARP;
    int D = (int)x.cols;
    if (t >= x.rows) return;
    float v[8], g[8], sum = 0.0f;
    for (int d = lane * 8; d < D; d += CU_WARP * 8) {
        cu_get8(x, t * x.pitch + d, D - d, v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(v[i], v[i], sum);
    }
    float r = 1.0f / sqrtf(cu_warp_sum(sum) / (float)D + eps);                       /* (1) */
    if (r_T && lane == 0) r_T[t] = r;
    for (int d = lane * 8; d < D; d += CU_WARP * 8) {
        cu_get8(x, t * x.pitch + d, D - d, v);
        cu_get8(w, d, D - d, g);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = g[i] * cu_round(x, v[i] * r);
        cu_put8(y, t * y.pitch + d, D - d, v);
    }
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_rmsnorm_fwd(const cdr_args *a)
{
    CU_NO_PRED(a, "rmsnorm");
    cu_mat x = cu_operand(a, 0), w = cu_operand(a, 1), y = cu_operand(a, 2), r = cu_operand(a, 3);
    if (x.rows == 0) return CDR_OK;
    CU_LAUNCH(norm_fwd, cu_ceil(x.rows, ROWS), CU_THREADS, 0, a, x, w, y, (float *)r.p, ((const cdr_rmsnorm_attr *)a->attr)->eps);
    return cdr__cuda_done(a, "rmsnorm");
}

static __global__ void __launch_bounds__(CU_THREADS) norm_bwd_dx(cu_mat dy, cu_mat x, cu_mat w, const float *r_T, cu_mat dx)
{
    int lane = (int)threadIdx.x % CU_WARP;
    int64_t t = (int64_t)blockIdx.x * ROWS + threadIdx.x / CU_WARP;
    int D = (int)x.cols;
    if (t >= x.rows) return;
    float u[8], n[8], g[8], r = r_T[t], sum = 0.0f;
    for (int d = lane * 8; d < D; d += CU_WARP * 8) {
        cu_get8(dy, t * dy.pitch + d, D - d, u);
        cu_get8(x, t * x.pitch + d, D - d, n);
        cu_get8(w, d, D - d, g);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(u[i] * g[i], n[i] * r, sum);
    }
    float mean = cu_warp_sum(sum) / (float)D;
    for (int d = lane * 8; d < D; d += CU_WARP * 8) {
        cu_get8(dy, t * dy.pitch + d, D - d, u);
        cu_get8(x, t * x.pitch + d, D - d, n);
        cu_get8(w, d, D - d, g);
#pragma unroll
        for (int i = 0; i < 8; i++) u[i] = r * (u[i] * g[i] - n[i] * r * mean);      /* (2) */
        cu_put8(dx, t * dx.pitch + d, D - d, u);
    }
}

/* (3), rows of one band */
static __global__ void __launch_bounds__(CU_THREADS) norm_bwd_band(cu_mat dy, cu_mat x, const float *r_T, float *part)
{
    int64_t d = (int64_t)blockIdx.x * CU_THREADS + threadIdx.x, t0 = (int64_t)blockIdx.y * CDR_RMSNORM_BAND;
    int64_t end = t0 + CDR_RMSNORM_BAND < x.rows ? t0 + CDR_RMSNORM_BAND : x.rows;
    if (d >= x.cols) return;
    float sum = 0.0f;
    for (int64_t t = t0; t < end; t++) sum = fmaf(cu_get(dy, t * dy.pitch + d), cu_get(x, t * x.pitch + d) * r_T[t], sum);
    part[blockIdx.y * x.cols + d] = sum;
}

static __global__ void __launch_bounds__(CU_THREADS) norm_bwd_dw(const float *part, int64_t bands, int64_t D, cu_mat dw)
{
    int64_t d = (int64_t)blockIdx.x * CU_THREADS + threadIdx.x;
    if (d >= D) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t b = 0; b < bands; b++) sum += part[b * D + d];
    cu_put(dw, d, sum);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_rmsnorm_bwd_all(const cdr_args *a)
{
    CU_NO_PRED(a, "rmsnorm_bwd");
    cu_mat dy = cu_operand(a, 0), x = cu_operand(a, 1), w = cu_operand(a, 2), dx = cu_operand(a, 4), dw = cu_operand(a, 5);
    const float *r_T = (const float *)a->ptr[3];
    float *part = (float *)a->work;
    int64_t bands = cdr_ceil_div(x.rows, CDR_RMSNORM_BAND);
    if (dx.p && x.rows > 0) CU_LAUNCH(norm_bwd_dx, cu_ceil(x.rows, ROWS), CU_THREADS, 0, a, dy, x, w, r_T, dx);
    if (dw.p) {
        if (bands > 65535) return cdr__cuda_refuse(a, "rmsnorm_bwd", "more than 4194240 rows");
        if (bands > 0) CU_LAUNCH(norm_bwd_band, dim3(cu_ceil(x.cols, CU_THREADS), (unsigned)bands), CU_THREADS, 0, a, dy, x, r_T, part);
        CU_LAUNCH(norm_bwd_dw, cu_ceil(x.cols, CU_THREADS), CU_THREADS, 0, a, part, bands, x.cols, dw);
    }
    return cdr__cuda_done(a, "rmsnorm_bwd");
}
