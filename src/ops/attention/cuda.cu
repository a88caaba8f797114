/* attention on CUDA: equations (1)-(5) of op.c, tiles of 64 rows by 64 keys, F32 throughout (products by FMA, so p and ds
 * are never rounded). Tiles are read as F32 into shared memory from either format.
 *
 * forward    grid (ceil(T/64), H), 256 threads: keys from the tile's first visible one in steps of 64, online softmax
 * delta      a warp a (row, head)
 * dq         as the forward: sum over key tiles ascending
 * dkv        grid (ceil(S/64), H): sum over query tiles ascending; the shared part of a key goes to a plane of its head
 * dkr        the planes added in ascending h
 * No sum crosses blocks otherwise: the bits depend on shapes and documents alone.
 * Shared memory at 192/128: 151 KiB forward, 187 KiB dq, 204 KiB dkv; one block an SM. Bound: FMA and shared memory, about
 * a tenth of what tensor cores give; the wgmma kernels are another row of the table.
 */
#include "ops/attention/cuda.cuh"

/* ---- forward: (1), (2) ----------------------------------------------------------------------------------------------- */
static __device__ __forceinline__ int forward_floats(int lk, int lv) { return TILE * (2 * lk + lv + LINE_P); }

/* (1) masked, then one step of the online softmax; p goes to shared memory */
static __device__ __forceinline__ void soften(float s[4][4], const problem &a, const seen *w, int32_t s0, float m[4], float l[4], float keep[4], float *ps)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = tile_ty() * 4 + i;
        int32_t first = w->start[row], last = w->pos[row];
        float top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int32_t key = s0 + tile_tx() + 16 * j;
            s[i][j] = first <= key && key <= last ? s[i][j] * a.scale : -INFINITY;
            top = fmaxf(top, s[i][j]);
        }
        top = fmaxf(m[i], half_max(top));
        float base = top == -INFINITY ? 0.0f : top;        /* a row that has seen no key yet */
        keep[i] = expf(m[i] - base);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float p = expf(s[i][j] - base);
            sum += p;
            ps[row * LINE_P + tile_tx() + 16 * j] = p;
        }
        l[i] = l[i] * keep[i] + half_sum(sum);
        m[i] = top;
    }
}

template <int GV> static __global__ void __launch_bounds__(CU_THREADS) att_fwd(const __grid_constant__ problem a, int lk, int lv)
{
    CU_SHARED(float4, shared);
    __shared__ seen w;
    __shared__ int live[TILE];
    float *qs = (float *)shared, *ks = qs + TILE * lk, *vs = ks + TILE * lk, *ps = vs + TILE * lv;
    int64_t t0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE;      /* the longest rows first */
    int h = (int)blockIdx.y, n = (a.dk + 3) & ~3;
    float o[4][4 * GV], m[4], l[4], keep[4];
    zero<4 * GV>(o);
#pragma unroll
    for (int i = 0; i < 4; i++) m[i] = -INFINITY, l[i] = 0.0f;
    clear_shared(qs, forward_floats(lk, lv));
    load_seen(&w, a, t0);
    __syncthreads();
    load_q(qs, lk, a, t0, h);
    key_span span = span_of(&w);
    for (int32_t s0 = span.first; s0 <= span.last; s0 += TILE) {
        mark_live(live, &w, s0);
        __syncthreads();
        load_k(ks, lk, a, s0, h, live);
        load_v(vs, lv, a, s0, h, live);
        __syncthreads();
        float s[4][4];
        zero<4>(s);
        tile_dot(qs, ks, lk, n, s);
        soften(s, a, &w, s0, m, l, keep, ps);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4 * GV; c++) o[i][c] *= keep[i];
        __syncwarp();
        tile_axpy<GV>(ps, vs, lv, o);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t t = t0 + tile_ty() * 4 + i;
        if (t >= a.T) continue;
        float inv = l[i] > 0.0f ? 1.0f / l[i] : 0.0f;
        if (l[i] != l[i]) inv = l[i];                                /* NaN stays NaN: the guard must see it */
        if (a.lse && tile_tx() == 0) a.lse[t * a.lse_pitch + h] = l[i] == 0.0f ? 0.0f : m[i] + logf(l[i]);
#pragma unroll
        for (int c = 0; c < 4 * GV; c++) {
            int col = (tile_tx() + 16 * (c / 4)) * 4 + c % 4;
            if (col >= a.v) continue;
            float y = o[i][c] * inv;
            cu_put(a.o, t * a.o.pitch + (int64_t)h * a.v + col, y);
            if (a.o32.p) cu_put(a.o32, t * a.o32.pitch + (int64_t)h * a.v + col, y);
        }
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------------- */
static __global__ void __launch_bounds__(CU_THREADS) att_delta(const __grid_constant__ problem a)
{
    int64_t i = (int64_t)blockIdx.x * (CU_THREADS / CU_WARP) + threadIdx.x / CU_WARP;
    int lane = (int)threadIdx.x % CU_WARP;
    if (i >= a.T * a.heads) return;
    int64_t t = i / a.heads, at = (i - t * a.heads) * a.v;
    float sum = 0.0f;
    for (int c = lane; c < a.v; c += CU_WARP) sum = fmaf(cu_get(a.dout, t * a.dout.pitch + at + c), cu_get(a.o, t * a.o.pitch + at + c), sum);
    sum = cu_warp_sum(sum);
    if (lane == 0) a.delta[i] = sum;
}

/* lse and delta of 64 rows from t0, one head */
typedef struct { float lse[TILE], delta[TILE]; } stats;
static __device__ __forceinline__ void load_stats(stats *w, const problem &a, int64_t t0, int h)
{
    int r = (int)threadIdx.x;
    if (r >= TILE) return;
    bool data = t0 + r < a.T;
    w->lse[r] = data ? a.lse_in[(t0 + r) * a.lse_pitch + h] : 0.0f;
    w->delta[r] = data ? a.delta[(t0 + r) * a.heads + h] : 0.0f;
}

/* (4): dq_th = scale sum_s ds_ts k_sh */
template <int GK> static __global__ void __launch_bounds__(CU_THREADS) att_dq(const __grid_constant__ problem a, int lk, int lv)
{
    CU_SHARED(float4, shared);
    __shared__ seen w;
    __shared__ stats st;
    __shared__ int live[TILE];
    float *qs = (float *)shared, *ks = qs + TILE * lk, *vs = ks + TILE * lk, *gs = vs + TILE * lv, *ds = gs + TILE * lv;
    int64_t t0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE;
    int h = (int)blockIdx.y, nk = (a.dk + 3) & ~3, nv = (a.v + 3) & ~3;
    float acc[4][4 * GK];
    zero<4 * GK>(acc);
    clear_shared(qs, TILE * (2 * lk + 2 * lv + LINE_P));
    load_seen(&w, a, t0);
    load_stats(&st, a, t0, h);
    __syncthreads();
    load_q(qs, lk, a, t0, h);
    tile_load(gs, lv, 0, a.dout, t0, a.T, (int64_t)h * a.v, a.v, NULL);
    key_span span = span_of(&w);
    for (int32_t s0 = span.first; s0 <= span.last; s0 += TILE) {
        mark_live(live, &w, s0);
        __syncthreads();
        load_k(ks, lk, a, s0, h, live);
        load_v(vs, lv, a, s0, h, live);
        __syncthreads();
        float s[4][4], dp[4][4];
        zero<4>(s);
        zero<4>(dp);
        tile_dot(qs, ks, lk, nk, s);
        tile_dot(gs, vs, lv, nv, dp);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int row = tile_ty() * 4 + i, key = s0 + tile_tx() + 16 * j;
                bool sees = w.start[row] <= key && key <= w.pos[row];
                float p = sees ? expf(s[i][j] * a.scale - st.lse[row]) : 0.0f;
                ds[row * LINE_P + tile_tx() + 16 * j] = sees ? p * (dp[i][j] - st.delta[row]) * a.scale : 0.0f;
            }
        __syncwarp();
        tile_axpy<GK>(ds, ks, lk, acc);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t t = t0 + tile_ty() * 4 + i;
        if (t >= a.T) continue;
#pragma unroll
        for (int c = 0; c < 4 * GK; c++) {
            int col = (tile_tx() + 16 * (c / 4)) * 4 + c % 4;
            if (col < a.dk) cu_put(a.dq, t * a.dq.pitch + (int64_t)h * a.dk + col, acc[i][c]);
        }
    }
}

/* Results of one key row: [own part | value] to dkv, the shared part to the head's plane. */
template <int GK, int GV> static __device__ __forceinline__ void put_keys(const problem &a, int64_t s0, int h, float (*dk)[4 * GK], float (*dv)[4 * GV])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t s = s0 + tile_ty() * 4 + i, at = s * a.dkv.pitch + (int64_t)h * (a.nope + a.v);
        if (s >= a.S) continue;
#pragma unroll
        for (int c = 0; c < 4 * GK; c++) {
            int col = (tile_tx() + 16 * (c / 4)) * 4 + c % 4;
            if (col < a.nope && a.dkv.p) cu_put(a.dkv, at + col, dk[i][c]);
            if (col >= a.nope && col < a.dk && a.part) a.part[((int64_t)h * a.S + s) * a.ext + col - a.nope] = dk[i][c];
        }
#pragma unroll
        for (int c = 0; c < 4 * GV; c++) {
            int col = (tile_tx() + 16 * (c / 4)) * 4 + c % 4;
            if (col < a.v && a.dkv.p) cu_put(a.dkv, at + a.nope + col, dv[i][c]);
        }
    }
}

/* (3), (5) for 64 keys of one head: rows of the tiles are keys, columns are queries */
template <int GK, int GV> static __global__ void __launch_bounds__(CU_THREADS) att_dkv(const __grid_constant__ problem a, int lk, int lv)
{
    CU_SHARED(float4, shared);
    __shared__ seen w;
    __shared__ stats st;
    float *ks = (float *)shared, *qs = ks + TILE * lk, *vs = qs + TILE * lk, *gs = vs + TILE * lv, *ps = gs + TILE * lv, *ds = ps + TILE * LINE_P;
    int64_t s0 = (int64_t)blockIdx.x * TILE;
    int h = (int)blockIdx.y, nk = (a.dk + 3) & ~3, nv = (a.v + 3) & ~3;
    float dk[4][4 * GK], dv[4][4 * GV];
    zero<4 * GK>(dk);
    zero<4 * GV>(dv);
    clear_shared(ks, TILE * (2 * lk + 2 * lv + 2 * LINE_P));
    __syncthreads();
    load_k(ks, lk, a, s0, h, NULL);
    load_v(vs, lv, a, s0, h, NULL);
    for (int64_t t0 = s0; t0 < a.T; t0 += TILE) {                     /* pos_t = t: earlier rows do not see these keys */
        __syncthreads();
        load_seen(&w, a, t0);
        load_stats(&st, a, t0, h);
        __syncthreads();
        int r = (int)threadIdx.x;
        bool meets = r < TILE && w.start[r] <= w.pos[r] && w.start[r] < s0 + TILE && w.pos[r] >= s0;
        if (!__syncthreads_or(meets)) continue;                        /* documents that begin after these keys */
        load_q(qs, lk, a, t0, h);
        tile_load(gs, lv, 0, a.dout, t0, a.T, (int64_t)h * a.v, a.v, NULL);
        __syncthreads();
        float s[4][4], dp[4][4];
        zero<4>(s);
        zero<4>(dp);
        tile_dot(ks, qs, lk, nk, s);
        tile_dot(vs, gs, lv, nv, dp);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int row = tile_ty() * 4 + i, q = tile_tx() + 16 * j;
                bool sees = w.start[q] <= s0 + row && s0 + row <= w.pos[q];
                float p = sees ? expf(s[i][j] * a.scale - st.lse[q]) : 0.0f;
                ps[row * LINE_P + q] = p;
                ds[row * LINE_P + q] = sees ? p * (dp[i][j] - st.delta[q]) * a.scale : 0.0f;
            }
        __syncwarp();
        tile_axpy<GV>(ps, gs, lv, dv);
        tile_axpy<GK>(ds, qs, lk, dk);
    }
    put_keys<GK, GV>(a, s0, h, dk, dv);
}

static __global__ void __launch_bounds__(CU_THREADS) att_dkr(const __grid_constant__ problem a)
{
    int64_t i = (int64_t)blockIdx.x * CU_THREADS + threadIdx.x;
    if (i >= a.S * a.ext) return;
    float sum = 0.0f;
    for (int h = 0; h < a.heads; h++) sum += a.part[(int64_t)h * a.S * a.ext + i];
    int64_t s = i / a.ext;
    cu_put(a.dkr, s * a.dkr.pitch + i - s * a.ext, sum);
}

/* ---- launchers --------------------------------------------------------------------------------------------------------- */
static int groups(int width) { return (width + 63) / 64; }

static problem dims_of(const cdr_attention_attr *at)
{
    problem p;
    memset(&p, 0, sizeof p);
    p.heads = at->heads; p.nope = at->nope; p.ext = at->ext; p.v = at->v; p.dk = at->nope + at->ext;
    p.scale = at->scale;
    return p;
}

#define TILED(kernel, rows, smem) do { \
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(smem)); \
        CU_LAUNCH(kernel, dim3(cu_ceil((rows), TILE), (unsigned)p.heads), CU_THREADS, (smem), a, p, lk, lv); \
    } while (0)

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_attention_fwd(const cdr_args *a)
{
    CU_NO_PRED(a, "attention");
    problem p = dims_of((const cdr_attention_attr *)a->attr);
    p.q = cu_operand(a, CDR__ATT_Q); p.kv = cu_operand(a, CDR__ATT_KV); p.kr = cu_operand(a, CDR__ATT_KR);
    p.start = (const int32_t *)a->ptr[CDR__ATT_START]; p.pos = (const int32_t *)a->ptr[CDR__ATT_POS];
    p.o = cu_operand(a, CDR__ATT_O); p.o32 = cu_operand(a, CDR__ATT_O32);
    cu_mat lse = cu_operand(a, CDR__ATT_LSE);
    p.lse = (float *)lse.p; p.lse_pitch = lse.pitch;
    p.T = p.q.rows; p.S = p.kv.rows;
    if (p.T == 0) return CDR_OK;
    int lk = groups(p.dk) * 64 + 4, lv = groups(p.v) * 64 + 4;
    size_t smem = sizeof(float) * TILE * (size_t)(2 * lk + lv + LINE_P);
    if (groups(p.v) == 1) TILED(att_fwd<1>, p.T, smem);
    else TILED(att_fwd<2>, p.T, smem);
    return cdr__cuda_done(a, "attention");
}

static void launch_dq(const cdr_args *a, const problem &p, int lk, int lv)
{
    size_t smem = sizeof(float) * TILE * (size_t)(2 * lk + 2 * lv + LINE_P);
    switch (groups(p.dk)) {
    case 1: TILED(att_dq<1>, p.T, smem); break;
    case 2: TILED(att_dq<2>, p.T, smem); break;
    default: TILED(att_dq<3>, p.T, smem); break;
    }
}

static void launch_dkv(const cdr_args *a, const problem &p, int lk, int lv)
{
    size_t smem = sizeof(float) * TILE * (size_t)(2 * lk + 2 * lv + 2 * LINE_P);
    switch (groups(p.dk) * 2 + groups(p.v) - 3) {
    case 0: TILED((att_dkv<1, 1>), p.S, smem); break;
    case 1: TILED((att_dkv<1, 2>), p.S, smem); break;
    case 2: TILED((att_dkv<2, 1>), p.S, smem); break;
    case 3: TILED((att_dkv<2, 2>), p.S, smem); break;
    case 4: TILED((att_dkv<3, 1>), p.S, smem); break;
    default: TILED((att_dkv<3, 2>), p.S, smem); break;
    }
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_attention_bwd_all(const cdr_args *a)
{
    CU_NO_PRED(a, "attention_bwd");
    const cdr_attention_attr *at = (const cdr_attention_attr *)a->attr;
    problem p = dims_of(at);
    p.dout = cu_operand(a, CDR__ATB_DO); p.q = cu_operand(a, CDR__ATB_Q); p.kv = cu_operand(a, CDR__ATB_KV); p.kr = cu_operand(a, CDR__ATB_KR);
    p.start = (const int32_t *)a->ptr[CDR__ATB_START]; p.pos = (const int32_t *)a->ptr[CDR__ATB_POS];
    p.o = cu_operand(a, CDR__ATB_O);
    cu_mat lse = cu_operand(a, CDR__ATB_LSE);
    p.lse_in = (const float *)lse.p; p.lse_pitch = lse.pitch;
    p.dq = cu_operand(a, CDR__ATB_DQ); p.dkv = cu_operand(a, CDR__ATB_DKV); p.dkr = cu_operand(a, CDR__ATB_DKR);
    p.T = p.q.rows; p.S = p.kv.rows;
    p.delta = (float *)a->work;
    if (p.dkr.p && p.ext > 0) p.part = (float *)((char *)a->work + cdr_att_delta_bytes(at, a->type));
    if (p.T == 0) return CDR_OK;
    int lk = groups(p.dk) * 64 + 4, lv = groups(p.v) * 64 + 4;
    CU_LAUNCH(att_delta, cu_ceil(p.T * p.heads, CU_THREADS / CU_WARP), CU_THREADS, 0, a, p);
    if (p.dq.p) launch_dq(a, p, lk, lv);
    if (p.dkv.p || p.part) launch_dkv(a, p, lk, lv);
    if (p.part) CU_LAUNCH(att_dkr, cu_ceil(p.S * p.ext, CU_THREADS), CU_THREADS, 0, a, p);
    return cdr__cuda_done(a, "attention_bwd");
}
