/* rmsnorm on CUDA: descriptor rows. The backward keeps partial sums of dw, one for each BAND rows (cuda.cu). */
#include "ops/rmsnorm/cuda.h"
#include "ops/rmsnorm/rmsnorm.h"

static size_t bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out, (void)n_threads;
    if (cdr_absent(&t[5])) return 0;
    int64_t bands = cdr_ceil_div(cdr_cuda_n_rows(&t[1]), CDR_RMSNORM_BAND);
    return cdr_cuda_piece(bands * cdr_cuda_cols(&t[1]), sizeof(float));
}

const cdr_kernel cdr_cuda_rmsnorm[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows, .symbol = "cdr_cuda_rmsnorm_fwd" },
    { .name = NULL }
};
const cdr_kernel cdr_cuda_rmsnorm_bwd[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows, .work_bytes = bwd_work,
      .symbol = "cdr_cuda_rmsnorm_bwd_all" },
    { .name = NULL }
};
