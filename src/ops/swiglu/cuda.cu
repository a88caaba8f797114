/* swiglu on CUDA: equations (1)-(3) of op.c, a thread for eight neighbours. expf with F32 operands; nothing is kept.
 * Bound: HBM; forward 3 tensors, backward 5.
 */
#include "device/cuda/cuda.cuh"
#include "ops/swiglu/swiglu.h"

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static __global__ void __launch_bounds__(CU_THREADS) glu_fwd(cu_mat gate, cu_mat up, cu_mat y, cu_walk w)
{
    cu_group g;
    if (!cu_next(w, &g)) return;
    float a[8], b[8];
    cu_get8(gate, g.row * gate.pitch + g.col, g.n, a);
    cu_get8(up, g.row * up.pitch + g.col, g.n, b);
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] = a[i] * sigmoid(a[i]) * b[i];
    cu_put8(y, g.row * y.pitch + g.col, g.n, a);
}

static __global__ void __launch_bounds__(CU_THREADS) glu_bwd(cu_mat dy, cu_mat gate, cu_mat up, cu_mat dgate, cu_mat dup, cu_walk w)
{
    cu_group g;
    if (!cu_next(w, &g)) return;
    float d[8], a[8], b[8], da[8];
    cu_get8(dy, g.row * dy.pitch + g.col, g.n, d);
    cu_get8(gate, g.row * gate.pitch + g.col, g.n, a);
    cu_get8(up, g.row * up.pitch + g.col, g.n, b);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float s = sigmoid(a[i]);
        da[i] = d[i] * b[i] * s * (1.0f + a[i] * (1.0f - s));
        b[i] = d[i] * a[i] * s;
    }
    if (dgate.p) cu_put8(dgate, g.row * dgate.pitch + g.col, g.n, da);
    if (dup.p) cu_put8(dup, g.row * dup.pitch + g.col, g.n, b);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_swiglu_fwd(const cdr_args *a)
{
    CU_NO_PRED(a, "swiglu");
    cu_mat m[] = { cu_operand(a, 0), cu_operand(a, 1), cu_operand(a, 2) };
    cu_walk w = cu_walk_over(m, 3);
    if (cu_blocks(w) > 0) CU_LAUNCH(glu_fwd, cu_blocks(w), CU_THREADS, 0, a, m[0], m[1], m[2], w);
    return cdr__cuda_done(a, "swiglu");
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_swiglu_bwd_all(const cdr_args *a)
{
    CU_NO_PRED(a, "swiglu_bwd");
    cu_mat m[] = { cu_operand(a, 0), cu_operand(a, 1), cu_operand(a, 2), cu_operand(a, 3), cu_operand(a, 4) };
    cu_walk w = cu_walk_over(m, 5);
    if (cu_blocks(w) > 0) CU_LAUNCH(glu_bwd, cu_blocks(w), CU_THREADS, 0, a, m[0], m[1], m[2], m[3], m[4], w);
    return cdr__cuda_done(a, "swiglu_bwd");
}
