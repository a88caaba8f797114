/* linear on CUDA: y_TN = x_TK w_NK^T, dx_TK = dy_TN w_NK, dw_NK = dy_TN^T x_TK, each one GEMM (device/cuda/plugin.h), added
 * to the output where the call says so. F32 accumulation.
 */
#include "device/cuda/cuda.cuh"

/* Operands 0 and 1 as the tensor cores take them: of two formats, the F32 one is rounded to BF16 in scratch. */
static void same_format(const cdr_args *a, cu_mat m[2])
{
    if (m[0].f32 == m[1].f32) return;
    int i = m[0].f32 ? 0 : 1;
    cu_mat b = cu_scratch(CDR_BF16, a->work, m[i].rows, m[i].cols);
    cdr__cuda_cast(a, m[i], b);
    m[i] = b;
}

/* a_t, b_t as in the GEMM's record; k: the axis that is summed */
static cdr_status product(const cdr_args *a, bool a_t, bool b_t, int64_t k, bool plain)
{
    if (a->pred) return cdr__cuda_refuse(a, "linear", "is not made to be predicated");
    cu_mat m[2] = { cu_operand(a, 0), cu_operand(a, 1) };
    if (!plain) same_format(a, m);
    cdr_cuda_gemm g = cu_product(m[0], a_t, m[1], b_t, cu_operand(a, 2), k);
    cdr_status st = plain ? cdr__cuda_gemm_plain(a, &g) : cdr__cuda_gemm(a, &g);
    return st == CDR_OK ? cdr__cuda_done(a, "linear") : st;
}

static cdr_status fwd(const cdr_args *a, bool plain) { return product(a, false, true, cdr_cuda_cols(&a->type[0]), plain); }
static cdr_status dx(const cdr_args *a, bool plain) { return product(a, false, false, cdr_cuda_cols(&a->type[0]), plain); }
static cdr_status dw(const cdr_args *a, bool plain) { return product(a, true, false, cdr_cuda_n_rows(&a->type[0]), plain); }

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_linear_fwd(const cdr_args *a) { return fwd(a, false); }
extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_linear_fwd_plain(const cdr_args *a) { return fwd(a, true); }
extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_linear_dx_lt(const cdr_args *a) { return dx(a, false); }
extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_linear_dx_plain(const cdr_args *a) { return dx(a, true); }
extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_linear_dw_lt(const cdr_args *a) { return dw(a, false); }
extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_linear_dw_plain(const cdr_args *a) { return dw(a, true); }
