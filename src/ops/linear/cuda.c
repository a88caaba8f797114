/* linear, linear_dx, linear_dw on CUDA: descriptor rows. cuBLASLt first, the own tiled kernel behind it. Tensor cores take
 * two BF16 operands or none, so where a gradient is F32 and the other operand BF16, the gradient is rounded to BF16 in
 * scratch first. An F32 activation is not: the forward of such a pair is the own kernel's. */
#include "device/cuda/rows.h"
#include "ops/linear/linear.h"

static const char *reject_lt(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    if (t[0].dtype == CDR_F32 && t[1].dtype == CDR_F32 && t[2].dtype != CDR_F32) return "cuBLASLt gives F32 from F32 only";
    return cdr_cuda_reject_rows(attr, n_in, n_out, t);
}

static const char *reject_lt_fwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    if (t[0].dtype != t[1].dtype) return "x and w have two formats; the F32 one would be rounded";
    return reject_lt(attr, n_in, n_out, t);
}

static size_t work_lt(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out, (void)n_threads;
    if (t[0].dtype == t[1].dtype) return 0;
    const cdr_type *f = t[0].dtype == CDR_F32 ? &t[0] : &t[1];
    return cdr_cuda_piece(cdr_cuda_n_rows(f) * cdr_cuda_cols(f), sizeof(uint16_t));
}

#define LT(sym, no) { .name = "cublaslt", .bits = "cublaslt", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = no, .work_bytes = work_lt, .symbol = sym }
#define PLAIN(sym) { .name = "plain", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows, .symbol = sym }

const cdr_kernel cdr_cuda_linear[] = {
    LT("cdr_cuda_linear_fwd", reject_lt_fwd), PLAIN("cdr_cuda_linear_fwd_plain"), { .name = NULL }
};
const cdr_kernel cdr_cuda_linear_dx[] = {
    LT("cdr_cuda_linear_dx_lt", reject_lt), PLAIN("cdr_cuda_linear_dx_plain"), { .name = NULL }
};
const cdr_kernel cdr_cuda_linear_dw[] = {
    LT("cdr_cuda_linear_dw_lt", reject_lt), PLAIN("cdr_cuda_linear_dw_plain"), { .name = NULL }
};
