/* rows.h: what the descriptor rows of CUDA kernels (src/ops/<op>/cuda.c) share. Host C, always compiled, no CUDA header.
 *
 *   const cdr_kernel cdr_cuda_swiglu[] = {
 *       { .name = "cuda", .bits = "cuda", .device = CDR_DEV_CUDA, .needs = CDR_ISA_SM90, .reject = cdr_cuda_reject_rows,
 *         .symbol = "cdr_cuda_swiglu_fwd" },
 *       { .name = NULL }
 *   };
 * The build collects every line of this form; `symbol` is looked up when the plug-in is loaded. Tables: one an operator.
 */
#ifndef CDR_CUDA_ROWS_H
#define CDR_CUDA_ROWS_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sub-buffers of a kernel's scratch begin at multiples of this; cuda.c and cuda.cu add up the same pieces. */
enum { CDR_CUDA_ALIGN = 256 };
static inline size_t cdr_cuda_piece(int64_t n, size_t elem_bytes)
{
    return cdr_align_up((size_t)n * elem_bytes, CDR_CUDA_ALIGN);
}

/* Shape without the library behind it: these run in the plug-in too. */
static inline int64_t cdr_cuda_cols(const cdr_type *t) { return t->n_dim > 0 ? t->n[t->n_dim - 1] : 1; }
static inline int64_t cdr_cuda_n_rows(const cdr_type *t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t->n_dim; i++) n *= t->n[i];
    return n;
}
static inline int64_t cdr_cuda_pitch(const cdr_type *t) { return t->pitch > 0 ? t->pitch : cdr_cuda_cols(t); }

/* What every CUDA kernel here takes: row-major operands of F32 and BF16 (F64 and integers where the operator says so),
 * with at most 2^31 - 1 columns. */
static inline const char *cdr_cuda_reject_rows(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr;
    for (int i = 0; i < n_in + n_out; i++) {
        if (cdr_absent(&t[i])) continue;
        if (t[i].layout != CDR_ROWS) return "takes row-major operands only";
        if (t[i].dtype != CDR_F32 && t[i].dtype != CDR_BF16 && t[i].dtype != CDR_F64 && t[i].dtype != CDR_I32 && t[i].dtype != CDR_I64)
            return "takes F32 and BF16 only";
        if (cdr_cuda_cols(&t[i]) > INT32_MAX) return "takes at most 2^31 - 1 columns";
    }
    return NULL;
}

/* The same, for kernels that walk an operand's elements without rows. */
static inline const char *cdr_cuda_reject_pitch(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    for (int i = 0; i < n_in + n_out; i++)
        if (!cdr_absent(&t[i]) && cdr_cuda_pitch(&t[i]) != cdr_cuda_cols(&t[i])) return "takes dense operands only";
    return cdr_cuda_reject_rows(attr, n_in, n_out, t);
}

#ifdef __cplusplus
}
#endif
#endif
