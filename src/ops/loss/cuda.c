/* loss on CUDA: descriptor rows. */
#include "ops/loss/cuda.h"

static size_t fwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)n_threads;
    cdr_loss_plan p = cdr_loss_plan_of(attr, t, NULL);
    return p.logits + 3 * p.row + p.sum;
}

static size_t bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)n_threads;
    cdr_loss_plan p = cdr_loss_plan_of(attr, t, &t[CDR__LSB_DH]);
    return p.logits + p.d + p.dh;
}

const cdr_kernel cdr_cuda_loss[] = {
    { .name = "cublaslt", .bits = "cublaslt", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows, .work_bytes = fwd_work,
      .symbol = "cdr_cuda_loss_fwd" },
    { .name = NULL }
};
const cdr_kernel cdr_cuda_loss_bwd[] = {
    { .name = "cublaslt", .bits = "cublaslt", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows, .work_bytes = bwd_work,
      .symbol = "cdr_cuda_loss_bwd_all" },
    { .name = NULL }
};
