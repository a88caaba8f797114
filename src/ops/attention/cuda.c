/* attention on CUDA: descriptor rows. */
#include "ops/attention/cuda.h"

static const char *reject(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_attention_attr *a = attr;
    if (a->core == CDR_ATT_GATHERED) return "it goes over all keys; the core is gathered";
    if (a->o_f32) return "it keeps an F32 o beside o, not in its place";
    if (!cdr_absent(&t[n_in - 1])) return "it takes no selection of keys";
    if (a->nope + a->ext > CDR_ATT_KEY_MAX) return "a key is wider than 192: its tiles do not fit shared memory";
    if (a->v > CDR_ATT_VALUE_MAX) return "a value is wider than 128: its tiles do not fit shared memory";
    return cdr_cuda_reject_rows(attr, n_in, n_out, t);
}

static size_t bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)n_threads;
    return cdr_att_bwd_bytes(attr, t);
}

const cdr_kernel cdr_cuda_attention[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = reject, .symbol = "cdr_cuda_attention_fwd" },
    { .name = NULL }
};
const cdr_kernel cdr_cuda_attention_bwd[] = {
    { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = reject, .work_bytes = bwd_work,
      .symbol = "cdr_cuda_attention_bwd_all" },
    { .name = NULL }
};
