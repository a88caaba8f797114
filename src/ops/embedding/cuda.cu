/* embedding on CUDA: x_t = w[token_t], then x[place_f] = feat_f. Backward: dw_w = sum of dy_t over the tokens t = w whose row
 * was not replaced, t ascending; dfeat_f = dy[place_f].
 *
 * forward    a thread for eight elements; two launches, so that replaced rows are written last
 * dw         grid (W, ceil(D/1024)): a block owns a row of dw, scans all tokens 1024 at a time for its own and adds their
 *            rows in ascending order: no atomics, no sort. T integer compares a row, from L1 and L2.
 * Bound: HBM forward; the scan backward, until W T reaches 10^9.
 */
#include "device/cuda/cuda.cuh"

enum { SPAN = 4 * CU_THREADS };             /* tokens of one scan, and columns of one block */

/* dst row = src row of an index: mode gather (dst_t = src[index_t]) or scatter (dst[index_f] = src_f) */
static __global__ void __launch_bounds__(CU_THREADS) move_rows(cu_mat src, const int32_t *index, cu_mat dst, cu_walk w, bool scatter)
{
    cu_group g;
    if (!cu_next(w, &g)) return;
    int64_t other = index[g.row], rows = scatter ? dst.rows : src.rows;
    if (other < 0 || other >= rows) __trap();                  /* the data loader bounds both: a broken invariant */
    int64_t from = scatter ? g.row : other, to = scatter ? other : g.row;
    float v[8];
    cu_get8(src, from * src.pitch + g.col, g.n, v);
    cu_put8(dst, to * dst.pitch + g.col, g.n, v);
}

static void move(const cdr_args *a, cu_mat src, const int32_t *index, cu_mat dst, int64_t rows, bool scatter)
{
    cu_walk w = { rows, src.cols, (src.cols + 7) / 8 };
    if (cu_blocks(w) > 0) CU_LAUNCH(move_rows, cu_blocks(w), CU_THREADS, 0, a, src, index, dst, w, scatter);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_embedding_fwd(const cdr_args *a)
{
    CU_NO_PRED(a, "embedding");
    cu_mat w = cu_operand(a, 1), feat = cu_operand(a, 2), x = cu_operand(a, 4);
    move(a, w, (const int32_t *)a->ptr[0], x, x.rows, false);
    if (feat.p) move(a, feat, (const int32_t *)a->ptr[3], x, feat.rows, true);
    return cdr__cuda_done(a, "embedding");
}

static __global__ void __launch_bounds__(CU_THREADS) copy_tokens(const int32_t *tokens, int32_t *kept, int64_t T)
{
    int64_t t = (int64_t)blockIdx.x * CU_THREADS + threadIdx.x;
    if (t < T) kept[t] = tokens[t];
}
static __global__ void __launch_bounds__(CU_THREADS) drop_tokens(const int32_t *place, int32_t *kept, int64_t F, int64_t T)
{
    int64_t f = (int64_t)blockIdx.x * CU_THREADS + threadIdx.x;
    if (f >= F) return;
    if (place[f] < 0 || place[f] >= T) __trap();
    kept[place[f]] = -1;
}

static __global__ void __launch_bounds__(CU_THREADS) sum_rows(cu_mat dy, const int32_t *tokens, int64_t T, cu_mat dw)
{
    __shared__ __align__(16) uint8_t mine[SPAN];
    int64_t row = blockIdx.x, col = (int64_t)blockIdx.y * SPAN + threadIdx.x;
    float acc[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int64_t t0 = 0; t0 < T; t0 += SPAN) {
        int any = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = i * CU_THREADS + (int)threadIdx.x;
            bool hit = t0 + k < T && tokens[t0 + k] == row;
            mine[k] = hit;
            any |= hit;
        }
        if (__syncthreads_or(any))
            for (int q = 0; q < SPAN / 8; q++)
                for (uint64_t left = ((const uint64_t *)mine)[q]; left; left &= left - 1) {      /* one set bit a token; the same in the whole block */
                    int k = q * 8 + (__ffsll((long long)left) - 1) / 8;
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        if (col + c * CU_THREADS < dy.cols) acc[c] += cu_get(dy, (t0 + k) * dy.pitch + col + c * CU_THREADS);
                }
        __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (col + c * CU_THREADS < dw.cols) cu_put(dw, row * dw.pitch + col + c * CU_THREADS, acc[c]);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_embedding_bwd_all(const cdr_args *a)
{
    CU_NO_PRED(a, "embedding_bwd");
    cu_mat dy = cu_operand(a, 0), place = cu_operand(a, 2), dw = cu_operand(a, 3), dfeat = cu_operand(a, 4);
    const int32_t *tokens = (const int32_t *)a->ptr[1], *at = (const int32_t *)place.p;
    if (place.p && place.cols > 0) {
        int32_t *kept = (int32_t *)a->work;
        if (dy.rows > 0) CU_LAUNCH(copy_tokens, cu_ceil(dy.rows, CU_THREADS), CU_THREADS, 0, a, tokens, kept, dy.rows);
        CU_LAUNCH(drop_tokens, cu_ceil(place.cols, CU_THREADS), CU_THREADS, 0, a, at, kept, place.cols, dy.rows);
        tokens = kept;
    }
    if (dw.p && dw.rows > 0)
        CU_LAUNCH(sum_rows, dim3((unsigned)dw.rows, cu_ceil(dw.cols, SPAN)), CU_THREADS, 0, a, dy, tokens, dy.rows, dw);
    if (dfeat.p) move(a, dy, at, dfeat, dfeat.rows, false);
    return cdr__cuda_done(a, "embedding_bwd");
}
