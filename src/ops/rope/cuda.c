/* rope on CUDA: descriptor row. */
#include "device/cuda/rows.h"
#include "ops/rope/rope.h"

static const char *reject(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_rope_attr *a = attr;
    if (a->ext > 8192) return "the rotated part is wider than 8192: its sines do not fit shared memory";
    if (a->factor > 1) return "it makes plain frequencies, not those of a longer context (factor > 1)";
    if (a->first) return "it takes the rotated part behind the copied one";
    return cdr_cuda_reject_rows(attr, n_in, n_out, t);
}

const cdr_kernel cdr_cuda_rope[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = reject, .symbol = "cdr_cuda_rope_fwd" },
    { .name = NULL }
};
