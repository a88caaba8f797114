/* grad_push on CUDA: descriptor row. */
#include "device/cuda/rows.h"
#include "ops/grad_push/grad_push.h"

const cdr_kernel cdr_cuda_grad_push[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_pitch,
      .symbol = "cdr_cuda_grad_push_merge" },
    { .name = NULL }
};
