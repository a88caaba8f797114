/* cuda.cuh: tiles of the attention kernels (cuda.cu). A tile has 64 rows in shared memory, F32, of 64 G + 4 floats each: an
 * odd number of 16-byte pieces, so that rows read side by side meet no bank twice. 256 threads = 16 x 16: thread (ty, tx)
 * owns rows 4 ty .. 4 ty + 3, and columns tx + 16 j of a product of 64 x 64, or the pieces of four (tx + 16 g) of a row of
 * results. The 16 threads of one ty are half a warp: what they write of their rows, only they read.
 */
#ifndef CDR_OPS_ATTENTION_CUDA_CUH
#define CDR_OPS_ATTENTION_CUDA_CUH

#include "device/cuda/cuda.cuh"
#include "ops/attention/cuda.h"

enum { TILE = CDR_ATT_TILE, LINE_P = TILE + 4 };

typedef struct {                    /* operands as op.c names them; forward and backward use what they need */
    cu_mat q, kv, kr, dout, o, o32, dq, dkv, dkr;
    const int32_t *start, *pos;
    const float *lse_in; float *lse, *delta, *part;
    int64_t T, S, lse_pitch;
    int32_t heads, nope, ext, v, dk;
    float scale;
} problem;

static __device__ __forceinline__ int tile_tx() { return (int)threadIdx.x & 15; }
static __device__ __forceinline__ int tile_ty() { return (int)threadIdx.x >> 4; }

template <int J> static __device__ __forceinline__ void zero(float (*acc)[J])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < J; j++) acc[i][j] = 0.0f;
}

/* acc[i][j] += sum_d a[4 ty + i][d] b[tx + 16 j][d], d < n (a multiple of 4) ascending */
static __device__ __forceinline__ void tile_dot(const float *a, const float *b, int line, int n, float acc[4][4])
{
    const float *ar = a + tile_ty() * 4 * line, *br = b + tile_tx() * line;
    for (int d = 0; d < n; d += 4) {
        float4 x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = *(const float4 *)(ar + i * line + d);
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = *(const float4 *)(br + 16 * j * line + d);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float s = fmaf(x[i].x, y[j].x, acc[i][j]);
                s = fmaf(x[i].y, y[j].y, s);
                s = fmaf(x[i].z, y[j].z, s);
                acc[i][j] = fmaf(x[i].w, y[j].w, s);
            }
    }
}

/* acc[i][4 g + e] += sum_k p[4 ty + i][k] x[k][4 (tx + 16 g) + e], k < 64 ascending */
template <int G> static __device__ __forceinline__ void tile_axpy(const float *p, const float *x, int line, float (*acc)[4 * G])
{
    const float *pr = p + tile_ty() * 4 * LINE_P, *xr = x + tile_tx() * 4;
    for (int k = 0; k < TILE; k += 4) {
        float4 w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = *(const float4 *)(pr + i * LINE_P + k);
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int g = 0; g < G; g++) {
                float4 y = *(const float4 *)(xr + (k + u) * line + 64 * g);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float c = u == 0 ? w[i].x : u == 1 ? w[i].y : u == 2 ? w[i].z : w[i].w;
                    acc[i][4 * g + 0] = fmaf(c, y.x, acc[i][4 * g + 0]);
                    acc[i][4 * g + 1] = fmaf(c, y.y, acc[i][4 * g + 1]);
                    acc[i][4 * g + 2] = fmaf(c, y.z, acc[i][4 * g + 2]);
                    acc[i][4 * g + 3] = fmaf(c, y.w, acc[i][4 * g + 3]);
                }
            }
    }
}

/* columns at .. at + cols - 1 of 64 rows from row0, to columns to .. of dst; rows from n_rows on, and dead ones, are zeros */
static __device__ __forceinline__ void tile_load(float *dst, int line, int to, const cu_mat &m, int64_t row0, int64_t n_rows, int64_t at, int cols,
                                                 const int *live)
{
    int per = (cols + 7) / 8;
    for (int e = (int)threadIdx.x; e < TILE * per; e += CU_THREADS) {
        int r = e / per, c = (e - r * per) * 8, n = cols - c < 8 ? cols - c : 8;
        bool data = row0 + r < n_rows && (!live || live[r]);
        float v[8], *d = dst + r * line + to + c;
        cu_get8(m, (row0 + r) * m.pitch + at + c, data ? n : 0, v);
        if (n == 8 && ((to + c) & 3) == 0) {
            ((float4 *)d)[0] = make_float4(v[0], v[1], v[2], v[3]);
            ((float4 *)d)[1] = make_float4(v[4], v[5], v[6], v[7]);
        } else
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < n) d[i] = v[i];
    }
}

static __device__ __forceinline__ void load_q(float *dst, int line, const problem &a, int64_t t0, int h)
{
    tile_load(dst, line, 0, a.q, t0, a.T, (int64_t)h * a.dk, a.dk, NULL);
}
static __device__ __forceinline__ void load_k(float *dst, int line, const problem &a, int64_t s0, int h, const int *live)
{
    tile_load(dst, line, 0, a.kv, s0, a.S, (int64_t)h * (a.nope + a.v), a.nope, live);
    if (a.ext > 0) tile_load(dst, line, a.nope, a.kr, s0, a.S, 0, a.ext, live);
}
static __device__ __forceinline__ void load_v(float *dst, int line, const problem &a, int64_t s0, int h, const int *live)
{
    tile_load(dst, line, 0, a.kv, s0, a.S, (int64_t)h * (a.nope + a.v) + a.nope, a.v, live);
}

/* widths are padded with zeros, once: loads never write there */
static __device__ __forceinline__ void clear_shared(float *p, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += CU_THREADS) p[i] = 0.0f;
}

/* first and last key of 64 rows from t0; rows beyond T, and idle ones, see nothing: (1, 0) */
typedef struct { int32_t start[TILE], pos[TILE]; } seen;
static __device__ __forceinline__ void load_seen(seen *w, const problem &a, int64_t t0)
{
    int r = (int)threadIdx.x;
    if (r >= TILE) return;
    bool data = t0 + r < a.T && a.start[t0 + r] <= a.pos[t0 + r];
    w->start[r] = data ? a.start[t0 + r] : 1;
    w->pos[r] = data ? a.pos[t0 + r] : 0;
}

/* sum and maximum over the 16 threads of one ty; all get the same value */
static __device__ __forceinline__ float half_sum(float x)
{
#pragma unroll
    for (int k = 8; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}
static __device__ __forceinline__ float half_max(float x)
{
#pragma unroll
    for (int k = 8; k > 0; k /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, k));
    return x;
}

/* keys that the rows of a tile see: first and last, the same in all threads; last < first: none */
typedef struct { int32_t first, last; } key_span;
static __device__ __forceinline__ key_span span_of(const seen *w)
{
    key_span s = { INT32_MAX, -1 };
    for (int r = 0; r < TILE; r++)
        if (w->start[r] <= w->pos[r]) {
            s.first = min(s.first, w->start[r]);
            s.last = max(s.last, w->pos[r]);
        }
    return s;
}

/* live[k]: some row of the tile sees key s0 + k. A cache holds bytes of anything elsewhere: 0 times NaN must not happen. */
static __device__ __forceinline__ void mark_live(int *live, const seen *w, int32_t s0)
{
    int k = (int)threadIdx.x;
    if (k >= TILE) return;
    int any = 0;
    for (int r = 0; r < TILE; r++) any |= w->start[r] <= s0 + k && s0 + k <= w->pos[r];
    live[k] = any;
}

#endif
