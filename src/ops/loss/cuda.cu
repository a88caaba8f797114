/* loss on CUDA: equations (1)-(4) of op.c, a chunk of tokens by a chunk of the vocabulary at a time: logits by one GEMM into
 * F32 scratch, then a block a row. Backward: logits again by the same product (the same algorithm of the same shape, so the
 * same bits), d = (p - onehot) scale in F32, rounded once where h and w are BF16, then two products.
 *
 * state      m, s of the online log-sum-exp and the target's logit, one F32 each a token of the chunk
 * total      one block: 256 ascending runs of F64 terms, then the runs ascending
 * Rows without a target are computed with the others and count for nothing: their term is 0, their d is 0.
 * Bound: the GEMMs; a row kernel reads its logits twice from L2.
 */
#include "device/cuda/cuda.cuh"
#include "ops/loss/cuda.h"

enum { WARPS = CU_THREADS / CU_WARP };

/* over the block, in a fixed order; all threads get it. Two barriers, so that calls may follow each other. */
static __device__ float block_max(float x)
{
    __shared__ float part[WARPS];
#pragma unroll
    for (int k = 16; k > 0; k /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, k));
    __syncthreads();
    if (threadIdx.x % CU_WARP == 0) part[threadIdx.x / CU_WARP] = x;
    __syncthreads();
    x = part[0];
    for (int i = 1; i < WARPS; i++) x = fmaxf(x, part[i]);
    return x;
}
static __device__ float block_sum(float x)
{
    __shared__ float part[WARPS];
    x = cu_warp_sum(x);
    __syncthreads();
    if (threadIdx.x % CU_WARP == 0) part[threadIdx.x / CU_WARP] = x;
    __syncthreads();
    x = part[0];
    for (int i = 1; i < WARPS; i++) x += part[i];
    return x;
}

typedef struct {                          /* a chunk: tokens t0 .. t0 + rows - 1, vocabulary v0 .. v0 + n - 1 */
    float *z; int64_t ld, t0, v0, W; int32_t n, last;
    const int32_t *target;
    float *m, *s, *y;                     /* state by row of the chunk */
    float *lse; double *term;             /* by token; lse may be NULL */
} chunk;

/* (1), (2): one step of the online log-sum-exp; the last chunk ends it */
static __global__ void __launch_bounds__(CU_THREADS) loss_row(chunk c)
{
    int64_t r = blockIdx.x, t = c.t0 + r, y = c.target[t];
    const float *z = c.z + r * c.ld;
    if (y >= c.W) __trap();                                  /* the data loader bounds targets: a broken invariant */
    float top = -INFINITY, sum = 0.0f;
    for (int v = (int)threadIdx.x; v < c.n; v += CU_THREADS) top = fmaxf(top, z[v]);
    top = block_max(top);
    float old = c.v0 == 0 ? -INFINITY : c.m[r], m = fmaxf(old, top), base = m == -INFINITY ? 0.0f : m;
    for (int v = (int)threadIdx.x; v < c.n; v += CU_THREADS) sum += expf(z[v] - base);
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    float s = (c.v0 == 0 ? 0.0f : c.s[r] * expf(old - base)) + sum;
    float zy = y >= c.v0 && y < c.v0 + c.n ? z[y - c.v0] : c.v0 == 0 ? 0.0f : c.y[r];
    c.m[r] = m;
    c.s[r] = s;
    c.y[r] = zy;
    if (!c.last) return;
    float lse = y >= 0 ? base + logf(s) : 0.0f;
    if (c.lse) c.lse[t] = lse;
    c.term[t] = y >= 0 ? (double)base + log((double)s) - (double)zy : 0.0;
}

static __global__ void __launch_bounds__(CU_THREADS) loss_total(const double *term, int64_t T, double *loss)
{
    __shared__ double runs[CU_THREADS];
    int64_t run = (T + CU_THREADS - 1) / CU_THREADS, first = run * threadIdx.x, end = first + run < T ? first + run : T;
    double s = 0.0;
    for (int64_t t = first; t < end; t++) s += term[t];
    runs[threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.x != 0) return;
    s = 0.0;
    for (int i = 0; i < CU_THREADS; i++) s += runs[i];
    *loss = s;
}

/* logits of a chunk into scratch, F32 */
static cdr_status logits(const cdr_args *a, cu_mat h, cu_mat w, float *z, int64_t ld)
{
    cu_mat out = cu_scratch(CDR_F32, z, h.rows, w.rows);
    out.pitch = ld;
    cdr_cuda_gemm g = cu_product(h, false, w, true, out, h.cols);
    return cdr__cuda_gemm(a, &g);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_loss_fwd(const cdr_args *a)
{
    CU_NO_PRED(a, "loss");
    cdr_loss_plan p = cdr_loss_plan_of((const cdr_loss_attr *)a->attr, a->type, NULL);
    cu_mat h = cu_operand(a, CDR__LOSS_H), w = cu_operand(a, CDR__LOSS_W), lse = cu_operand(a, a->n_in + CDR__LOSS_LSE);
    char *at = (char *)a->work;
    chunk c = { (float *)at, p.ld, 0, 0, w.rows, 0, 0, (const int32_t *)a->ptr[CDR__LOSS_TARGETS], (float *)(at + p.logits),
                (float *)(at + p.logits + p.row), (float *)(at + p.logits + 2 * p.row), (float *)lse.p, (double *)(at + p.logits + 3 * p.row) };
    for (c.t0 = 0; c.t0 < h.rows; c.t0 += p.tokens) {
        cu_mat rows = cu_rows_from(h, c.t0, CDR_MIN(p.tokens, h.rows - c.t0));
        for (c.v0 = 0; c.v0 < w.rows; c.v0 += p.vocab) {
            cu_mat words = cu_rows_from(w, c.v0, CDR_MIN(p.vocab, w.rows - c.v0));
            cdr_status st = logits(a, rows, words, c.z, p.ld);
            if (st != CDR_OK) return st;
            c.n = (int32_t)words.rows;
            c.last = c.v0 + words.rows == w.rows;
            CU_LAUNCH(loss_row, (unsigned)rows.rows, CU_THREADS, 0, a, c);
        }
    }
    CU_LAUNCH(loss_total, 1, CU_THREADS, 0, a, c.term, h.rows, (double *)a->ptr[a->n_in + CDR__LOSS_SUM]);
    return cdr__cuda_done(a, "loss");
}

/* (3): z becomes d, in place where d is F32 */
static __global__ void __launch_bounds__(CU_THREADS) loss_d(chunk c, const float *lse_T, const float *scale_1, cu_mat d, cu_walk w)
{
    cu_group g;
    if (!cu_next(w, &g)) return;
    int64_t t = c.t0 + g.row, y = c.target[t];
    float lse = lse_T[t], scale = *scale_1, v[8];
    cu_mat z = d;
    z.p = c.z;
    z.f32 = 1;
    cu_get8(z, g.row * c.ld + g.col, g.n, v);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = y < 0 ? 0.0f : (expf(v[i] - lse) - (c.v0 + g.col + i == y ? 1.0f : 0.0f)) * scale;
    cu_put8(d, g.row * c.ld + g.col, g.n, v);
}

/* (4) for one chunk: dh gets its part of the sum over the vocabulary, dw its part of the sum over tokens */
static cdr_status products(const cdr_args *a, cu_mat d, cu_mat h, cu_mat w, cu_mat dh, cu_mat dw)
{
    cdr_status st = CDR_OK;
    if (dh.p) {
        cdr_cuda_gemm g = cu_product(d, false, w, false, dh, w.rows);
        st = cdr__cuda_gemm(a, &g);
    }
    if (dw.p && st == CDR_OK) {
        cdr_cuda_gemm g = cu_product(d, true, h, false, dw, h.rows);
        st = cdr__cuda_gemm(a, &g);
    }
    return st;
}

typedef struct { cdr_loss_plan p; cu_mat h, w, dh, dw; chunk c; void *d, *sum; } backward;

/* all of the vocabulary for one chunk of tokens */
static cdr_status tokens_bwd(const cdr_args *a, backward *b)
{
    int64_t n = CDR_MIN(b->p.tokens, b->h.rows - b->c.t0);
    cu_mat h = cu_rows_from(b->h, b->c.t0, n), dh = b->dh.p ? cu_rows_from(b->dh, b->c.t0, n) : b->dh;
    cu_mat sum = b->p.wide ? cu_scratch(CDR_F32, b->sum, n, h.cols) : dh;
    for (b->c.v0 = 0; b->c.v0 < b->w.rows; b->c.v0 += b->p.vocab) {
        cu_mat w = cu_rows_from(b->w, b->c.v0, CDR_MIN(b->p.vocab, b->w.rows - b->c.v0));
        cu_mat dw = b->dw.p ? cu_rows_from(b->dw, b->c.v0, w.rows) : b->dw;
        cdr_status st = logits(a, h, w, b->c.z, b->p.ld);
        if (st != CDR_OK) return st;
        cu_mat d = cu_scratch(b->p.bf16 ? CDR_BF16 : CDR_F32, b->d, n, w.rows);
        d.pitch = b->p.ld;
        cu_walk walk = { n, w.rows, (w.rows + 7) / 8 };
        CU_LAUNCH(loss_d, cu_blocks(walk), CU_THREADS, 0, a, b->c, (const float *)a->ptr[CDR__LSB_LSE], (const float *)a->ptr[CDR__LSB_SCALE], d, walk);
        sum.add = b->c.v0 > 0 || (!b->p.wide && b->dh.add);
        dw.add = b->c.t0 > 0 || b->dw.add;
        st = products(a, d, h, w, sum, dw);
        if (st != CDR_OK) return st;
    }
    if (b->p.wide) {
        sum.add = 0;
        cdr__cuda_cast(a, sum, dh);
    }
    return CDR_OK;
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_loss_bwd_all(const cdr_args *a)
{
    CU_NO_PRED(a, "loss_bwd");
    backward b;
    memset(&b, 0, sizeof b);
    b.p = cdr_loss_plan_of((const cdr_loss_attr *)a->attr, a->type, &a->type[a->n_in + CDR__LSB_DH]);
    b.h = cu_operand(a, CDR__LSB_H);
    b.w = cu_operand(a, CDR__LSB_W);
    b.dh = cu_operand(a, a->n_in + CDR__LSB_DH);
    b.dw = cu_operand(a, a->n_in + CDR__LSB_DW);
    b.c.z = (float *)a->work;
    b.c.ld = b.p.ld;
    b.c.W = b.w.rows;
    b.c.target = (const int32_t *)a->ptr[CDR__LSB_TARGETS];
    b.d = b.p.bf16 ? (char *)a->work + b.p.logits : (char *)a->work;
    b.sum = (char *)a->work + b.p.logits + b.p.d;
    for (; b.c.t0 < b.h.rows; b.c.t0 += b.p.tokens) {
        cdr_status st = tokens_bwd(a, &b);
        if (st != CDR_OK) return st;
    }
    if (b.dw.p && b.h.rows == 0 && !b.dw.add) {          /* no token: a sum of nothing */
        cudaError_t e = cudaMemset2DAsync(b.dw.p, (size_t)b.dw.pitch * sizeof(float), 0, (size_t)b.dw.cols * sizeof(float), (size_t)b.dw.rows,
                                          (cudaStream_t)a->lane->stream);
        if (e != cudaSuccess) return cdr__cuda_refuse(a, "loss_bwd", cudaGetErrorString(e));
    }
    return cdr__cuda_done(a, "loss_bwd");
}
