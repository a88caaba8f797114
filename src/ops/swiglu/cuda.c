/* swiglu on CUDA: descriptor rows. */
#include "device/cuda/rows.h"
#include "ops/swiglu/swiglu.h"

const cdr_kernel cdr_cuda_swiglu[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows,
      .symbol = "cdr_cuda_swiglu_fwd" },
    { .name = NULL }
};
const cdr_kernel cdr_cuda_swiglu_bwd[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows,
      .symbol = "cdr_cuda_swiglu_bwd_all" },
    { .name = NULL }
};
