/* copy on CUDA: descriptor row. */
#include "device/cuda/rows.h"
#include "ops/copy/copy.h"

const cdr_kernel cdr_cuda_copy[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows,
      .symbol = "cdr_cuda_copy_fwd" },
    { .name = NULL }
};
