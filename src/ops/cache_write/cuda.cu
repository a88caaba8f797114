/* cache_write on CUDA: cache[pos_t] = rows_t for t < n_live. The count stays on the device, so the grid covers all T rows
 * and idle ones return. Live positions differ, so threads never meet. A position outside of the cache stops the device
 * (trap: reported by sync), as it aborts the CPU kernel. Bound: latency at decoding sizes, else HBM.
 */
#include "device/cuda/cuda.cuh"
#include "ops/cache_write/cache_write.h"

static __global__ void __launch_bounds__(CU_THREADS) write_rows(cu_mat rows, const int32_t *pos_T, const int32_t *n_live, cu_mat cache, cu_walk w)
{
    cu_group g;
    if (!cu_next(w, &g) || g.row >= *n_live) return;
    int64_t s = pos_T[g.row];
    if (s < 0 || s >= cache.rows) __trap();
    float v[8];
    cu_get8(rows, g.row * rows.pitch + g.col, g.n, v);
    cu_put8(cache, s * cache.pitch + g.col, g.n, v);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_cache_write_rows(const cdr_args *a)
{
    CU_NO_PRED(a, "cache_write");
    cu_mat rows = cu_operand(a, 0), cache = cu_operand(a, 3);
    cu_walk w = { rows.rows, rows.cols, (rows.cols + 7) / 8 };      /* rows keep their identity: never flattened */
    if (cu_blocks(w) > 0)
        CU_LAUNCH(write_rows, cu_blocks(w), CU_THREADS, 0, a, rows, (const int32_t *)a->ptr[1], (const int32_t *)a->ptr[2], cache, w);
    return cdr__cuda_done(a, "cache_write");
}
