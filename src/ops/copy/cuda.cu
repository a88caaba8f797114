/* copy on CUDA: y = round(x), or round(y + x) with the add bit, a thread for eight neighbours. Bound: HBM, 2 or 3 tensors. */
#include "device/cuda/cuda.cuh"
#include "ops/copy/copy.h"

static __global__ void __launch_bounds__(CU_THREADS) cast_fwd(cu_mat x, cu_mat y, cu_walk w, const int32_t *pred)
{
    cu_group g;
    if (cu_off(pred) || !cu_next(w, &g)) return;
    float v[8];
    cu_get8(x, g.row * x.pitch + g.col, g.n, v);
    cu_put8(y, g.row * y.pitch + g.col, g.n, v);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_copy_fwd(const cdr_args *a)
{
    cu_mat m[] = { cu_operand(a, 0), cu_operand(a, 1) };
    cu_walk w = cu_walk_over(m, 2);
    if (cu_blocks(w) > 0) CU_LAUNCH(cast_fwd, cu_blocks(w), CU_THREADS, 0, a, m[0], m[1], w, a->pred);
    return cdr__cuda_done(a, "copy");
}
