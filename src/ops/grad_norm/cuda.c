/* norm_parts and norm_total on CUDA: descriptor rows. */
#include "device/cuda/rows.h"
#include "ops/grad_norm/grad_norm.h"

const cdr_kernel cdr_cuda_norm_parts[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_pitch,
      .symbol = "cdr_cuda_norm_parts_sum" },
    { .name = NULL }
};
const cdr_kernel cdr_cuda_norm_total[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_pitch,
      .symbol = "cdr_cuda_norm_total_sum" },
    { .name = NULL }
};
