/* add on CUDA: descriptor row. */
#include "device/cuda/rows.h"
#include "ops/add/add.h"

const cdr_kernel cdr_cuda_add[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows,
      .symbol = "cdr_cuda_add_fwd" },
    { .name = NULL }
};
