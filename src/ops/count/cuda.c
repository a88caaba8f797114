/* count on CUDA: descriptor row. One rank only. */
#include "device/cuda/rows.h"
#include "ops/count/count.h"

static const char *reject(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)n_in, (void)n_out, (void)t;
    return ((const cdr_count_attr *)attr)->size != 1 ? "more than one rank needs transport nccl, which is not built" : NULL;
}

const cdr_kernel cdr_cuda_count[] = {
    { .name = "cuda", .bits = "exact", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = reject, .symbol = "cdr_cuda_count_one" },
    { .name = NULL }
};
