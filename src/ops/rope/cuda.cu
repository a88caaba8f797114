/* rope on CUDA: equation (1) of op.c. A block owns a token: its sines and cosines once, in F64 (places reach 10^6, so an F32
 * angle would lose the lowest frequencies' last digits), rounded to F32 in shared memory; then all heads, a thread a pair.
 * Grid T, 256 threads, 4 ext bytes of shared memory. Bound: HBM, 2 tensors.
 */
#include "device/cuda/cuda.cuh"
#include "ops/rope/rope.h"

static __global__ void __launch_bounds__(CU_THREADS) rotate(cu_mat x, const int32_t *pos_T, const int32_t *start_T, cu_mat y, cdr_rope_attr at)
{
    CU_SHARED(float, turn);                /* cosines, then sines */
    int64_t t = blockIdx.x;
    int half = at.ext / 2, head = at.nope + at.ext;
    double place = (double)pos_T[t] - (double)start_T[t];
    for (int i = (int)threadIdx.x; i < half; i += CU_THREADS) {
        double s, c;
        sincos(place * pow((double)at.theta, -2.0 * i / at.ext), &s, &c);
        turn[i] = (float)c;
        turn[half + i] = (float)(at.inverse ? -s : s);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < at.heads * half; e += CU_THREADS) {
        int h = e / half, i = e - h * half;
        int64_t p = (int64_t)h * head + at.nope + (at.interleaved ? 2 * i : i), q = at.interleaved ? p + 1 : p + half;
        float a = cu_get(x, t * x.pitch + p), b = cu_get(x, t * x.pitch + q), c = turn[i], s = turn[half + i];
        cu_put(y, t * y.pitch + p, a * c - b * s);
        cu_put(y, t * y.pitch + q, b * c + a * s);
    }
    for (int e = (int)threadIdx.x; e < at.heads * at.nope; e += CU_THREADS) {
        int64_t h = e / at.nope, at_x = h * head + e - h * at.nope;
        cu_put(y, t * y.pitch + at_x, cu_get(x, t * x.pitch + at_x));
    }
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_rope_fwd(const cdr_args *a)
{
    CU_NO_PRED(a, "rope");
    cu_mat x = cu_operand(a, 0), y = cu_operand(a, 3);
    cdr_rope_attr at = *(const cdr_rope_attr *)a->attr;
    if (x.rows == 0) return CDR_OK;
    CU_LAUNCH(rotate, (unsigned)x.rows, CU_THREADS, (size_t)at.ext * sizeof(float), a, x, (const int32_t *)a->ptr[1], (const int32_t *)a->ptr[2], y, at);
    return cdr__cuda_done(a, "rope");
}
