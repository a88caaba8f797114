/* norm_parts, norm_total on CUDA: equations (1)-(3) of op.c. A part is one block: 256 strided F64 sums, then a butterfly in
 * each warp, then the eight warps in order. The total: 256 runs of the (parameter, part) table, each ascending, then the
 * runs ascending; the order knows the table alone, not the number of shards.
 * Bound: HBM for the parts (F64 FMA at half rate keeps up), latency for the total.
 */
#include "device/cuda/cuda.cuh"
#include "ops/grad_norm/grad_norm.h"

typedef struct { const float *grad[CDR_NORM_MAX]; int64_t cols[CDR_NORM_MAX]; cdr_norm_parts_attr at; } table;

/* sum over the block, in thread 0 */
static __device__ double block_sum(double x)
{
    __shared__ double warps[CU_THREADS / CU_WARP];
    x = cu_warp_sum(x);
    if (threadIdx.x % CU_WARP == 0) warps[threadIdx.x / CU_WARP] = x;
    __syncthreads();
    double s = 0.0;
    if (threadIdx.x == 0)
        for (int i = 0; i < CU_THREADS / CU_WARP; i++) s += warps[i];
    return s;
}

static __global__ void __launch_bounds__(CU_THREADS) parts_sum(const __grid_constant__ table t, double *parts, const int32_t *pred)
{
    if (cu_off(pred)) return;
    int per = CDR_NORM_PARTS / t.at.n_shard, i = (int)blockIdx.x / per, p = (int)blockIdx.x % per;
    int64_t R = t.at.rows[i], base = t.at.shard * R / t.at.n_shard, part = (int64_t)t.at.shard * per + p;
    int64_t first = (part * R / CDR_NORM_PARTS - base) * t.cols[i], end = ((part + 1) * R / CDR_NORM_PARTS - base) * t.cols[i];
    const float *x = t.grad[i];
    double s = 0.0;
    for (int64_t e = first + threadIdx.x; e < end; e += CU_THREADS) s = fma((double)x[e], (double)x[e], s);
    s = block_sum(s);
    if (threadIdx.x == 0) parts[blockIdx.x] = s;
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_norm_parts_sum(const cdr_args *a)
{
    table t;
    t.at = *(const cdr_norm_parts_attr *)a->attr;
    for (int i = 0; i < t.at.n; i++) {
        const cdr_type *g = &a->type[i];
        t.grad[i] = (const float *)a->ptr[i];
        t.cols[i] = g->n_dim == 1 ? 1 : cdr_cuda_cols(g);      /* rows are flattened, as in op.c */
    }
    unsigned blocks = (unsigned)(t.at.n * (CDR_NORM_PARTS / t.at.n_shard));
    CU_LAUNCH(parts_sum, blocks, CU_THREADS, 0, a, t, (double *)a->ptr[t.at.n], a->pred);
    return cdr__cuda_done(a, "norm_parts");
}

typedef struct {
    const double *part[CDR_N_NORMS], *loss; const int32_t *was_ok; double *metrics; float *clip; int32_t *ok; cdr_norm_total_attr at;
} total;

static __device__ __forceinline__ int64_t elements(const total &t, int kind) { return t.part[kind] ? (int64_t)t.at.n[kind] * CDR_NORM_PARTS : 0; }

/* element k of the tables: kinds in their order, in each (parameter, part) order */
static __device__ __forceinline__ double part_at(const total &t, int64_t k)
{
    int kind = 0;
    for (; k >= elements(t, kind); kind++) k -= elements(t, kind);
    if (kind == CDR_NORM_WHOLE) return t.part[kind][k];
    int64_t per = CDR_NORM_PARTS / t.at.n_shard, i = k / CDR_NORM_PARTS, p = k % CDR_NORM_PARTS, efsdp = t.at.n_shard / t.at.expert, row = p / per;
    if (kind == CDR_NORM_EXPERTS) row = row % efsdp * t.at.expert + row / efsdp;
    return t.part[kind][(row * t.at.n[kind] + i) * per + p % per];
}

static __global__ void __launch_bounds__(CU_THREADS) total_sum(total t, const int32_t *pred)
{
    __shared__ double runs[CU_THREADS];
    if (cu_off(pred)) return;
    int64_t n = elements(t, CDR_NORM_SHARDED) + elements(t, CDR_NORM_WHOLE) + elements(t, CDR_NORM_EXPERTS);
    int64_t run = (n + CU_THREADS - 1) / CU_THREADS, first = run * threadIdx.x, end = first + run < n ? first + run : n;
    double s = 0.0;
    for (int64_t k = first; k < end; k++) s += part_at(t, k);
    runs[threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.x != 0) return;
    s = 0.0;
    for (int i = 0; i < CU_THREADS; i++) s += runs[i];
    double norm = sqrt(s), clip = t.at.max_norm > 0.0 ? fmin(1.0, t.at.max_norm / (norm + 1e-6)) : 1.0;      /* (2) */
    int32_t ok = *t.was_ok != 0 && isfinite(s) && isfinite(*t.loss);                                        /* (3) */
    t.metrics[0] = *t.loss;
    t.metrics[1] = norm;
    t.metrics[2] = clip;
    t.metrics[3] = ok ? 1.0 : 0.0;
    *t.clip = (float)clip;
    *t.ok = ok;
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_norm_total_sum(const cdr_args *a)
{
    void *const *x = a->ptr + CDR_N_NORMS;
    total t = { { nullptr, nullptr, nullptr }, (const double *)x[0], (const int32_t *)x[1], (double *)x[2], (float *)x[3], (int32_t *)x[4],
                *(const cdr_norm_total_attr *)a->attr };
    for (int k = 0; k < CDR_N_NORMS; k++) t.part[k] = cdr_absent(&a->type[k]) ? nullptr : (const double *)a->ptr[k];
    CU_LAUNCH(total_sum, 1, CU_THREADS, 0, a, t, a->pred);
    return cdr__cuda_done(a, "norm_total");
}
