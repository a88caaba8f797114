/* embedding on CUDA: descriptor rows. The backward's scratch is the tokens, with those whose row was replaced marked. */
#include "device/cuda/rows.h"
#include "ops/embedding/embedding.h"

static size_t bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out, (void)n_threads;
    return cdr_absent(&t[2]) ? 0 : cdr_cuda_piece(cdr_cuda_cols(&t[1]), sizeof(int32_t));
}

const cdr_kernel cdr_cuda_embedding[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows, .symbol = "cdr_cuda_embedding_fwd" },
    { .name = NULL }
};
const cdr_kernel cdr_cuda_embedding_bwd[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows, .work_bytes = bwd_work,
      .symbol = "cdr_cuda_embedding_bwd_all" },
    { .name = NULL }
};
