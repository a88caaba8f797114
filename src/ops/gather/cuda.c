/* gather, reduce_scatter, all_reduce on CUDA: descriptor rows. One rank only: what crosses ranks needs a transport between
 * devices. */
#include "device/cuda/rows.h"
#include "ops/gather/gather.h"

static const char *reject(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_gather_attr *a = attr;
    if (a->size != 1) return "more than one rank needs transport nccl, which is not built";
    return cdr_cuda_reject_pitch(attr, n_in, n_out, t);
}

#define ROW(sym) { .name = "cuda", .bits = "copy", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = reject, .symbol = sym }
const cdr_kernel cdr_cuda_gather[] = {
    ROW("cdr_cuda_gather_one"), { .name = NULL }
};
const cdr_kernel cdr_cuda_reduce_scatter[] = {
    ROW("cdr_cuda_reduce_scatter_one"), { .name = NULL }
};
const cdr_kernel cdr_cuda_all_reduce[] = {
    ROW("cdr_cuda_all_reduce_one"), { .name = NULL }
};
