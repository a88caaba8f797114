/* grad_push on CUDA: equations (1) and (2) of op.c. The counter is a device value: every thread reads it, so no host sees which
 * slot is written. Same additions in the same order as on a CPU: the same bits. Bound: HBM, z + 2 tensors.
 */
#include "device/cuda/cuda.cuh"
#include "ops/grad_push/grad_push.h"

typedef struct { void *slot[CDR_PUSH_MAX]; } stack;

template <typename real>
static __global__ void __launch_bounds__(CU_THREADS) push(const real *x, stack s, const int32_t *micro, cdr_grad_push_attr at, int64_t n, const int32_t *pred)
{
    int64_t e = (int64_t)blockIdx.x * CU_THREADS + threadIdx.x;
    if (cu_off(pred) || e >= n) return;
    uint32_t i = at.running && *micro > 1 ? 1u : (uint32_t)*micro;
    int p = __popc(i), z = __ffs((int)~i) - 1;
    if (p - z >= at.depth) __trap();                 /* more partials than the stack was made for */
    real carry = x[e];
    for (int j = p - 1; j >= p - z; j--) carry = ((const real *)s.slot[j])[e] + carry;
    ((real *)s.slot[p - z])[e] = carry;
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_grad_push_merge(const cdr_args *a)
{
    cu_mat x = cu_operand(a, 0);
    int64_t n = x.rows * x.cols;
    stack s = { { NULL } };
    for (int k = 0; k < a->n_out; k++) s.slot[k] = a->ptr[2 + k];
    if (n == 0) return CDR_OK;
    const cdr_grad_push_attr at = *(const cdr_grad_push_attr *)a->attr;
    const int32_t *micro = (const int32_t *)a->ptr[1];
    if (a->type[0].dtype == CDR_F64)
        CU_LAUNCH(push<double>, cu_ceil(n, CU_THREADS), CU_THREADS, 0, a, (const double *)a->ptr[0], s, micro, at, n, a->pred);
    else
        CU_LAUNCH(push<float>, cu_ceil(n, CU_THREADS), CU_THREADS, 0, a, (const float *)a->ptr[0], s, micro, at, n, a->pred);
    return cdr__cuda_done(a, "grad_push");
}
