/* cache_write on CUDA: descriptor row. */
#include "device/cuda/rows.h"
#include "ops/cache_write/cache_write.h"

const cdr_kernel cdr_cuda_cache_write[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows,
      .symbol = "cdr_cuda_cache_write_rows" },
    { .name = NULL }
};
