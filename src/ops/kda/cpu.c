/* kda, base kernel: the tiles of gemm.inc with vectors of four, multiply then add; and the scratch that all kernels take. */
#include "base/base.h"

#define V_LANES 4
#define MAX_NV 2
typedef float vf __attribute__((vector_size(16)));
static inline vf v_set(float x) { return (vf){ x, x, x, x }; }
static inline vf v_load(const float *p) { vf x; __builtin_memcpy(&x, p, sizeof x); return x; }
static inline void v_store(float *p, vf x) { __builtin_memcpy(p, &x, sizeof x); }
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf v_fnma(vf a, vf b, vf c) { return c - a * b; }

#include "ops/kda/sweep.inc"

cdr_status cdr__kda_fwd_base(const cdr_args *a) { return fwd(a); }
cdr_status cdr__kda_bwd_base(const cdr_args *a) { return bwd(a); }

size_t cdr__kda_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)t;
    return (size_t)n_param_floats(attr) * sizeof(float) + forward_bytes(attr) * (size_t)n_threads;
}

size_t cdr__kda_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    const cdr_kda_attr *at = attr;
    int64_t T = t[0].n[0], n_parts = at->heads * cdr_ceil_div(T, block_rows(T));
    return (size_t)(2 * n_param_floats(at) + n_parts * n_part_floats(at)) * sizeof(float) + backward_bytes(at, T) * (size_t)n_threads;
}
