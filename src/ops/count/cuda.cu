/* count on CUDA over one rank: equations (1), (2) of op.c; one thread. Bound: latency. */
#include "device/cuda/cuda.cuh"
#include "ops/count/count.h"

static __global__ void count_one(const int64_t *count, int64_t *total, float *scale, float *scale_rows)
{
    int64_t n = count[CDR_COUNT_TRAINED], rows = count[CDR_COUNT_ROWS];
    for (int i = 0; i < CDR_COUNT_WORDS; i++) total[i] = count[i];
    *scale = (float)(1.0 / (double)(n > 1 ? n : 1));
    *scale_rows = (float)(1.0 / (double)(rows > 1 ? rows : 1));
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_count_one(const cdr_args *a)
{
    CU_NO_PRED(a, "count");
    CU_LAUNCH(count_one, 1, 1, 0, a, (const int64_t *)a->ptr[0], (int64_t *)a->ptr[1], (float *)a->ptr[2], (float *)a->ptr[3]);
    return cdr__cuda_done(a, "count");
}
