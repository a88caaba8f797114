/* add on CUDA: y = a + b, a thread for eight neighbours; y may be a or b. Bound: HBM, 3 tensors. */
#include "device/cuda/cuda.cuh"
#include "ops/add/add.h"

static __global__ void __launch_bounds__(CU_THREADS) sum_fwd(cu_mat a, cu_mat b, cu_mat y, cu_walk w, const int32_t *pred)
{
    cu_group g;
    if (cu_off(pred) || !cu_next(w, &g)) return;
    float u[8], v[8];
    cu_get8(a, g.row * a.pitch + g.col, g.n, u);
    cu_get8(b, g.row * b.pitch + g.col, g.n, v);
#pragma unroll
    for (int i = 0; i < 8; i++) u[i] += v[i];
    cu_put8(y, g.row * y.pitch + g.col, g.n, u);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_add_fwd(const cdr_args *a)
{
    cu_mat m[] = { cu_operand(a, 0), cu_operand(a, 1), cu_operand(a, 2) };
    cu_walk w = cu_walk_over(m, 3);
    if (cu_blocks(w) > 0) CU_LAUNCH(sum_fwd, cu_blocks(w), CU_THREADS, 0, a, m[0], m[1], m[2], w, a->pred);
    return cdr__cuda_done(a, "add");
}
