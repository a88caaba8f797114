/* adamw on CUDA: equations (1)-(3) of op.c, elementwise, in place; a thread owns eight neighbours. F32 throughout; the
 * copy that kernels read is rounded once. Returns at once where the predicate is 0. Bound: HBM, 28 to 30 bytes a parameter.
 */
#include "device/cuda/cuda.cuh"
#include "ops/adamw/adamw.h"

/* operands as op.c numbers them; in and out may be the same memory */
typedef struct { cu_mat grad, w0, m0, v0, w, m, v, copy; const float *clip, *hyper; const int32_t *pred; cdr_adamw_attr at; } update;

static __global__ void __launch_bounds__(CU_THREADS) adamw_step(update u, cu_walk walk)
{
    cu_group k;
    if (cu_off(u.pred) || !cu_next(walk, &k)) return;
    float clip = *u.clip, lr = u.hyper[0] * u.at.lr_scale, c1 = u.hyper[1], c2 = u.hyper[2];
    float b1 = u.at.beta1, b2 = u.at.beta2;
    float g[8], w[8], m[8], v[8];
    cu_get8(u.grad, k.row * u.grad.pitch + k.col, k.n, g);
    cu_get8(u.w0, k.row * u.w0.pitch + k.col, k.n, w);
    cu_get8(u.m0, k.row * u.m0.pitch + k.col, k.n, m);
    cu_get8(u.v0, k.row * u.v0.pitch + k.col, k.n, v);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float gi = g[i] * clip;
        m[i] = b1 * m[i] + (1.0f - b1) * gi;                                             /* (1) */
        v[i] = b2 * v[i] + (1.0f - b2) * gi * gi;                                        /* (2) */
        w[i] -= lr * (c1 * m[i] / (sqrtf(c2 * v[i]) + u.at.eps) + u.at.weight_decay * w[i]);    /* (3) */
    }
    cu_put8(u.w, k.row * u.w.pitch + k.col, k.n, w);
    cu_put8(u.m, k.row * u.m.pitch + k.col, k.n, m);
    cu_put8(u.v, k.row * u.v.pitch + k.col, k.n, v);
    if (u.copy.p) cu_put8(u.copy, k.row * u.copy.pitch + k.col, k.n, w);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_adamw_update(const cdr_args *a)
{
    update u = { cu_operand(a, 0), cu_operand(a, 3), cu_operand(a, 4), cu_operand(a, 5), cu_operand(a, 7), cu_operand(a, 8),
                 cu_operand(a, 9), cu_operand(a, 10), (const float *)a->ptr[1], (const float *)a->ptr[2], a->pred,
                 *(const cdr_adamw_attr *)a->attr };
    cu_mat m[] = { u.grad, u.w0, u.m0, u.v0, u.w, u.m, u.v, u.copy };
    cu_walk w = cu_walk_over(m, 8);
    if (cu_blocks(w) > 0) CU_LAUNCH(adamw_step, cu_blocks(w), CU_THREADS, 0, a, u, w);
    return cdr__cuda_done(a, "adamw");
}
