/* gather, reduce_scatter, all_reduce on CUDA over one rank: each output is a copy of its input, or is it already. Bound: HBM. */
#include "device/cuda/cuda.cuh"
#include "ops/gather/gather.h"

static size_t elem_bytes(int dtype) { return dtype == CDR_BF16 ? 2 : dtype == CDR_F64 || dtype == CDR_I64 ? 8 : 4; }

static cdr_status copies(const cdr_args *a, const char *what)
{
    CU_NO_PRED(a, what);
    for (int i = 0; i < a->n_in; i++) {
        const cdr_type *t = &a->type[i];
        size_t bytes = (size_t)(cdr_cuda_n_rows(t) * cdr_cuda_cols(t)) * elem_bytes(t->dtype);
        void *dst = a->ptr[a->n_in + i];
        if (dst == a->ptr[i] || bytes == 0) continue;
        cudaError_t e = cudaMemcpyAsync(dst, a->ptr[i], bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)a->lane->stream);
        if (e != cudaSuccess) return cdr__cuda_refuse(a, what, cudaGetErrorString(e));
    }
    return cdr__cuda_done(a, what);
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_gather_one(const cdr_args *a) { return copies(a, "gather"); }
extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_reduce_scatter_one(const cdr_args *a) { return copies(a, "reduce_scatter"); }
extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_all_reduce_one(const cdr_args *a) { return copies(a, "all_reduce"); }
