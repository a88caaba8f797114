/* cuda.cuh: what the kernels of src/ops/<op>/cuda.cu share: operands of either dtype, groups of eight elements, sums in a
 * fixed order, launches.
 *
 *   static __global__ void scale(cu_mat x, cu_mat y, cu_walk w) { cu_group g; if (!cu_next(w, &g)) return; float v[8]; ... }
 *   CU_LAUNCH(scale, cu_blocks(w), CU_THREADS, 0, a, x, y, w);
 *   return cdr__cuda_done(a, "scale");
 *
 * The number format of an operand is known at run time and the same for a whole launch, so reading it is a uniform
 * branch; kernels see F32 values only. Rows are 16-byte accesses where address and pitch allow, single elements elsewhere,
 * with the same result.
 */
#ifndef CDR_CUDA_CUH
#define CDR_CUDA_CUH

#include "device/cuda/plugin.h"
#include <cuda_bf16.h>
#include <cuda_runtime.h>

enum { CU_THREADS = 256, CU_WARP = 32 };

/* ---- operands ------------------------------------------------------------------------------------------------- */
typedef struct { void *p; int64_t rows, cols, pitch; int32_t f32, add; } cu_mat;    /* p NULL: absent */

static inline cu_mat cu_operand(const cdr_args *a, int i)
{
    const cdr_type *t = &a->type[i];
    cu_mat m = { a->ptr[i], 0, 0, 0, 0, 0 };
    if (cdr_absent(t)) {
        m.p = NULL;
        return m;
    }
    m.rows = cdr_cuda_n_rows(t);
    m.cols = cdr_cuda_cols(t);
    m.pitch = cdr_cuda_pitch(t);
    m.f32 = t->dtype == CDR_F32;
    m.add = i >= a->n_in && (a->add >> (i - a->n_in) & 1u) != 0;
    return m;
}

/* dense scratch as an operand; dtype F32 or BF16 */
static inline cu_mat cu_scratch(int dtype, void *p, int64_t rows, int64_t cols)
{
    cu_mat m = { p, rows, cols, cols, dtype == CDR_F32, 0 };
    return m;
}
/* rows from r on */
static inline cu_mat cu_rows_from(cu_mat m, int64_t r, int64_t n)
{
    m.p = (char *)m.p + r * m.pitch * (m.f32 ? 4 : 2);
    m.rows = n;
    return m;
}
/* C = or += A B as a product for the GEMM: a_t, b_t as in plugin.h */
static inline cdr_cuda_gemm cu_product(cu_mat a, bool a_t, cu_mat b, bool b_t, cu_mat c, int64_t k)
{
    cdr_cuda_gemm g = { a.p, b.p, c.p, c.rows, c.cols, k, a.pitch, b.pitch, c.pitch, a_t, b_t, c.add != 0,
                        (uint8_t)(a.f32 ? CDR_F32 : CDR_BF16), (uint8_t)(b.f32 ? CDR_F32 : CDR_BF16), (uint8_t)(c.f32 ? CDR_F32 : CDR_BF16) };
    return g;
}

static __device__ __forceinline__ float cu_get(const cu_mat &m, int64_t at)
{
    return m.f32 ? ((const float *)m.p)[at] : __bfloat162float(((const __nv_bfloat16 *)m.p)[at]);
}

static __device__ __forceinline__ void cu_put(const cu_mat &m, int64_t at, float v)
{
    if (m.add) v += cu_get(m, at);
    if (m.f32) ((float *)m.p)[at] = v;
    else ((__nv_bfloat16 *)m.p)[at] = __float2bfloat16_rn(v);
}

static __device__ __forceinline__ float cu_low(uint32_t u) { return __uint_as_float(u << 16); }
static __device__ __forceinline__ float cu_high(uint32_t u) { return __uint_as_float(u & 0xffff0000u); }
static __device__ __forceinline__ uint32_t cu_pack(float low, float high)
{
    __nv_bfloat162 b = __floats2bfloat162_rn(low, high);
    return (uint32_t)__bfloat16_as_ushort(b.x) | (uint32_t)__bfloat16_as_ushort(b.y) << 16;
}

/* Eight elements from `at`; those from n on are 0. */
static __device__ __forceinline__ void cu_get8(const cu_mat &m, int64_t at, int n, float v[8])
{
    if (m.f32) {
        const float *p = (const float *)m.p + at;
        if (n >= 8 && ((uintptr_t)p & 15u) == 0) {
            float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
            v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
            v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
            return;
        }
    } else {
        const __nv_bfloat16 *p = (const __nv_bfloat16 *)m.p + at;
        if (n >= 8 && ((uintptr_t)p & 15u) == 0) {
            uint4 a = *(const uint4 *)p;
            v[0] = cu_low(a.x); v[1] = cu_high(a.x); v[2] = cu_low(a.y); v[3] = cu_high(a.y);
            v[4] = cu_low(a.z); v[5] = cu_high(a.z); v[6] = cu_low(a.w); v[7] = cu_high(a.w);
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = i < n ? cu_get(m, at + i) : 0.0f;
}

/* The first n of eight elements to `at`, honouring the add bit. */
static __device__ __forceinline__ void cu_put8(const cu_mat &m, int64_t at, int n, const float v[8])
{
    uintptr_t p = (uintptr_t)m.p + (uintptr_t)at * (m.f32 ? 4u : 2u);
    if (n >= 8 && (p & 15u) == 0) {
        float s[8];
#pragma unroll
        for (int i = 0; i < 8; i++) s[i] = 0.0f;
        if (m.add) cu_get8(m, at, 8, s);
#pragma unroll
        for (int i = 0; i < 8; i++) s[i] = m.add ? s[i] + v[i] : v[i];
        if (m.f32) {
            ((float4 *)p)[0] = make_float4(s[0], s[1], s[2], s[3]);
            ((float4 *)p)[1] = make_float4(s[4], s[5], s[6], s[7]);
        } else {
            *(uint4 *)p = make_uint4(cu_pack(s[0], s[1]), cu_pack(s[2], s[3]), cu_pack(s[4], s[5]), cu_pack(s[6], s[7]));
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n) cu_put(m, at + i, v[i]);
}

/* rounds to the format of m */
static __device__ __forceinline__ float cu_round(const cu_mat &m, float v)
{
    return m.f32 ? v : __bfloat162float(__float2bfloat16_rn(v));
}

/* ---- elementwise walks: one thread, eight neighbours of one row ------------------------------------------------ */
typedef struct { int64_t rows, cols, per_row; } cu_walk;
typedef struct { int64_t row; int32_t col, n; } cu_group;      /* elements col .. col + n - 1, n at most 8 */

/* Rows that lie without gaps in every operand become one row. */
static inline cu_walk cu_walk_over(const cu_mat *m, int n)
{
    cu_walk w = { m[0].rows, m[0].cols, 0 };
    bool dense = true;
    for (int i = 0; i < n; i++)
        if (m[i].p && m[i].pitch != m[i].cols) dense = false;
    if (dense && w.rows * w.cols <= INT32_MAX) {
        w.cols *= w.rows;
        w.rows = w.cols > 0 ? 1 : 0;
    }
    w.per_row = (w.cols + 7) / 8;
    return w;
}
static inline unsigned cu_blocks(cu_walk w) { return (unsigned)((w.rows * w.per_row + CU_THREADS - 1) / CU_THREADS); }

static __device__ __forceinline__ bool cu_next(const cu_walk &w, cu_group *g)
{
    int64_t i = (int64_t)blockIdx.x * CU_THREADS + threadIdx.x;
    if (i >= w.rows * w.per_row) return false;
    g->row = w.rows == 1 ? 0 : i / w.per_row;
    g->col = (int32_t)((i - g->row * w.per_row) * 8);
    g->n = w.cols - g->col < 8 ? (int32_t)(w.cols - g->col) : 8;
    return true;
}

/* ---- sums in a fixed order --------------------------------------------------------------------------------------- */
/* over the 32 lanes of a warp; every lane gets the same value */
static __device__ __forceinline__ float cu_warp_sum(float x)
{
#pragma unroll
    for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}
static __device__ __forceinline__ double cu_warp_sum(double x)
{
#pragma unroll
    for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}

/* ---- predicates and launches ------------------------------------------------------------------------------------- */
/* true: the call is switched off by its predicate */
static __device__ __forceinline__ bool cu_off(const int32_t *pred) { return pred && *pred == 0; }
/* for operators that are never predicated */
#define CU_NO_PRED(a, what) do { if ((a)->pred) return cdr__cuda_refuse((a), what, "is not made to be predicated"); } while (0)

/* CU_LAUNCH and CU_SHARED are the only two places where a kernel's syntax is CUDA's alone: test/simt defines its own. */
#ifndef CU_LAUNCH
#define CU_LAUNCH(kernel, grid, block, smem, a, ...) \
    do { kernel<<<(grid), (block), (smem), (cudaStream_t)(a)->lane->stream>>>(__VA_ARGS__); } while (0)
#define CU_SHARED(type, name) extern __shared__ type name[]      /* the launch's shared memory */
#endif
/* y = round(x), one format to another (gemm.cu): operands of tensor-core products are BF16 */
void cdr__cuda_cast(const cdr_args *a, cu_mat x, cu_mat y);
static inline unsigned cu_ceil(int64_t n, int64_t d) { return (unsigned)((n + d - 1) / d); }

#endif
