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
    (void)n_out, (void)n_threads;
    cdr_loss_plan p = cdr_loss_plan_of(attr, t, &t[n_in + CDR__LSB_DH]);
    return p.logits + p.d + p.dh;
}

static const char *unweighted(bool weighted, const void *attr, int n_in, int n_out, const cdr_type *t)
{
    return weighted ? "tokens have weights, which this kernel does not read" : cdr_cuda_reject_rows(attr, n_in, n_out, t);
}

static const char *reject_fwd(const void *attr, int n_in, int n_out, const cdr_type *t) { return unweighted(n_in > CDR__LOSS_WEIGHTS, attr, n_in, n_out, t); }
static const char *reject_bwd(const void *attr, int n_in, int n_out, const cdr_type *t) { return unweighted(n_in > CDR__LSB_WEIGHTS, attr, n_in, n_out, t); }

const cdr_kernel cdr_cuda_loss[] = {
    { .name = "cublaslt", .bits = "cublaslt", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = reject_fwd, .work_bytes = fwd_work,
      .symbol = "cdr_cuda_loss_fwd" },
    { .name = NULL }
};
const cdr_kernel cdr_cuda_loss_bwd[] = {
    { .name = "cublaslt", .bits = "cublaslt", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = reject_bwd, .work_bytes = bwd_work,
      .symbol = "cdr_cuda_loss_bwd_all" },
    { .name = NULL }
};
