/* kernels.c: linear's CPU kernels: three products, each as one call of the matrix product (gemm.h) on each of its paths.
 * linear:     m = T, n = N, k = K     A = x,    B = w^T
 * linear_dx:  m = T, n = K, k = N     A = dy,   B = w
 * linear_dw:  m = N, n = K, k = T     A = dy^T, B = x
 * Numeric classes: "base"; "fma" for AVX2 and AVX-512 F32, which agree to the bit; "bf16dot"; "amx" (gemm.h). */
#include "ops/linear/gemm.h"
#include "ops/linear/linear.h"
#include <assert.h>

static void run_linear(int path, const cdr_args *a)
{
    const cdr_type *x = &a->type[0], *w = &a->type[1], *y = &a->type[2];
    assert(x->n[1] == w->n[1]);
    const cdr__gemm_args g = {
        .m = x->n[0], .n = w->n[0], .k = x->n[1],
        .a = cdr__rows(x->dtype, a->ptr[0], cdr_type_pitch(x)), .b = cdr__cols(w->dtype, a->ptr[1], cdr_type_pitch(w)),
        .b_layout = w->layout,
        .c = a->ptr[2], .c_dtype = y->dtype, .c_pitch = cdr_type_pitch(y), .add = (a->add & 1u) != 0
    };
    cdr__gemm(path, &g, a->work, a->lane->n_threads);
}

static void run_dx(int path, const cdr_args *a)
{
    const cdr_type *dy = &a->type[0], *w = &a->type[1], *dx = &a->type[2];
    assert(dy->n[1] == w->n[0]);
    const cdr__gemm_args g = {
        .m = dy->n[0], .n = w->n[1], .k = dy->n[1],
        .a = cdr__rows(dy->dtype, a->ptr[0], cdr_type_pitch(dy)), .b = cdr__rows(w->dtype, a->ptr[1], cdr_type_pitch(w)),
        .b_layout = w->layout, .b_across = true,
        .c = a->ptr[2], .c_dtype = dx->dtype, .c_pitch = cdr_type_pitch(dx), .add = (a->add & 1u) != 0
    };
    cdr__gemm(path, &g, a->work, a->lane->n_threads);
}

static void run_dw(int path, const cdr_args *a)
{
    const cdr_type *dy = &a->type[0], *x = &a->type[1], *dw = &a->type[2];
    assert(dy->n[0] == x->n[0]);
    const cdr__gemm_args g = {
        .m = dy->n[1], .n = x->n[1], .k = dy->n[0],
        .a = cdr__cols(dy->dtype, a->ptr[0], cdr_type_pitch(dy)), .b = cdr__rows(x->dtype, a->ptr[1], cdr_type_pitch(x)),
        .c = a->ptr[2], .c_dtype = dw->dtype, .c_pitch = cdr_type_pitch(dw), .add = (a->add & 1u) != 0
    };
    cdr__gemm(path, &g, a->work, a->lane->n_threads);
}

static size_t work_rows(int path, const cdr_type *t, int n_threads)
{
    return cdr__gemm_work_bytes(path, t[2].n[0], t[2].n[1], t[0].n[1], n_threads);
}

static size_t work_dw(int path, const cdr_type *t, int n_threads)
{
    return cdr__gemm_work_bytes(path, t[2].n[0], t[2].n[1], t[0].n[0], n_threads);
}

#define WORK_ARGS const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads
#define UNUSED (void)attr, (void)n_in, (void)n_out

static size_t work_rows_base(WORK_ARGS) { UNUSED; return work_rows(CDR__GEMM_BASE, t, n_threads); }
static size_t work_rows_avx2(WORK_ARGS) { UNUSED; return work_rows(CDR__GEMM_AVX2, t, n_threads); }
static size_t work_rows_avx512(WORK_ARGS) { UNUSED; return work_rows(CDR__GEMM_AVX512, t, n_threads); }
static size_t work_rows_bf16(WORK_ARGS) { UNUSED; return work_rows(CDR__GEMM_AVX512_BF16, t, n_threads); }
static size_t work_rows_amx(WORK_ARGS) { UNUSED; return work_rows(CDR__GEMM_AMX, t, n_threads); }
static size_t work_dw_base(WORK_ARGS) { UNUSED; return work_dw(CDR__GEMM_BASE, t, n_threads); }
static size_t work_dw_avx2(WORK_ARGS) { UNUSED; return work_dw(CDR__GEMM_AVX2, t, n_threads); }
static size_t work_dw_avx512(WORK_ARGS) { UNUSED; return work_dw(CDR__GEMM_AVX512, t, n_threads); }
static size_t work_dw_bf16(WORK_ARGS) { UNUSED; return work_dw(CDR__GEMM_AVX512_BF16, t, n_threads); }
static size_t work_dw_amx(WORK_ARGS) { UNUSED; return work_dw(CDR__GEMM_AMX, t, n_threads); }

static cdr_status linear_base(const cdr_args *a) { run_linear(CDR__GEMM_BASE, a); return CDR_OK; }
static cdr_status linear_avx2(const cdr_args *a) { run_linear(CDR__GEMM_AVX2, a); return CDR_OK; }
static cdr_status linear_avx512(const cdr_args *a) { run_linear(CDR__GEMM_AVX512, a); return CDR_OK; }
static cdr_status linear_bf16(const cdr_args *a) { run_linear(CDR__GEMM_AVX512_BF16, a); return CDR_OK; }
static cdr_status linear_amx(const cdr_args *a) { run_linear(CDR__GEMM_AMX, a); return CDR_OK; }
static cdr_status dx_base(const cdr_args *a) { run_dx(CDR__GEMM_BASE, a); return CDR_OK; }
static cdr_status dx_avx2(const cdr_args *a) { run_dx(CDR__GEMM_AVX2, a); return CDR_OK; }
static cdr_status dx_avx512(const cdr_args *a) { run_dx(CDR__GEMM_AVX512, a); return CDR_OK; }
static cdr_status dx_bf16(const cdr_args *a) { run_dx(CDR__GEMM_AVX512_BF16, a); return CDR_OK; }
static cdr_status dx_amx(const cdr_args *a) { run_dx(CDR__GEMM_AMX, a); return CDR_OK; }
static cdr_status dw_base(const cdr_args *a) { run_dw(CDR__GEMM_BASE, a); return CDR_OK; }
static cdr_status dw_avx2(const cdr_args *a) { run_dw(CDR__GEMM_AVX2, a); return CDR_OK; }
static cdr_status dw_avx512(const cdr_args *a) { run_dw(CDR__GEMM_AVX512, a); return CDR_OK; }
static cdr_status dw_bf16(const cdr_args *a) { run_dw(CDR__GEMM_AVX512_BF16, a); return CDR_OK; }
static cdr_status dw_amx(const cdr_args *a) { run_dw(CDR__GEMM_AMX, a); return CDR_OK; }

/* Activations and weights must be BF16 already; a gradient dy may be F32, and is rounded as the next operator would. */
static const char *reject_f32(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    UNUSED;
    return t[0].dtype == CDR_BF16 && t[1].dtype == CDR_BF16 ? NULL : "an operand is F32: the kernel would round it";
}

static const char *reject_f32_second(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    UNUSED;
    return t[1].dtype == CDR_BF16 ? NULL : "activations or weights are F32: the kernel would round them";
}

const cdr_kernel cdr__linear_kernels[] = {
    { .name = "amx", .bits = "amx", .needs = CDR_ISA_AMX, .reject = reject_f32, .work_bytes = work_rows_amx, .run = linear_amx },
    { .name = "avx512_bf16", .bits = "bf16dot", .needs = CDR_ISA_AVX512_BF16, .reject = reject_f32, .work_bytes = work_rows_bf16, .run = linear_bf16 },
    { .name = "avx512", .bits = "fma", .needs = CDR_ISA_AVX512, .work_bytes = work_rows_avx512, .run = linear_avx512 },
    { .name = "avx2", .bits = "fma", .needs = CDR_ISA_AVX2, .work_bytes = work_rows_avx2, .run = linear_avx2 },
    { .name = "base", .bits = "base", .work_bytes = work_rows_base, .run = linear_base },
    { .name = NULL }
};

const cdr_kernel cdr__linear_dx_kernels[] = {
    { .name = "amx", .bits = "amx", .needs = CDR_ISA_AMX, .reject = reject_f32_second, .work_bytes = work_rows_amx, .run = dx_amx },
    { .name = "avx512_bf16", .bits = "bf16dot", .needs = CDR_ISA_AVX512_BF16, .reject = reject_f32_second, .work_bytes = work_rows_bf16, .run = dx_bf16 },
    { .name = "avx512", .bits = "fma", .needs = CDR_ISA_AVX512, .work_bytes = work_rows_avx512, .run = dx_avx512 },
    { .name = "avx2", .bits = "fma", .needs = CDR_ISA_AVX2, .work_bytes = work_rows_avx2, .run = dx_avx2 },
    { .name = "base", .bits = "base", .work_bytes = work_rows_base, .run = dx_base },
    { .name = NULL }
};

/* The paths of the two tables above, row for row: what each of them reads of a weight without packing. */
static const int paths[] = { CDR__GEMM_AMX, CDR__GEMM_AVX512_BF16, CDR__GEMM_AVX512, CDR__GEMM_AVX2, CDR__GEMM_BASE };
_Static_assert(CDR_COUNT(paths) + 1 == CDR_COUNT(cdr__linear_kernels) && CDR_COUNT(paths) + 1 == CDR_COUNT(cdr__linear_dx_kernels), "a path for each row");

int cdr__linear_layout(const cdr_kernel *k, int i, const cdr_type *t)
{
    (void)t;
    if (i != 1 || k->device != CDR_DEV_CPU) return CDR_ROWS;
    for (int r = 0; r < CDR_COUNT(paths); r++)
        if (k == &cdr__linear_kernels[r] || k == &cdr__linear_dx_kernels[r]) return cdr__gemm_layout(paths[r]);
    return CDR_ROWS;
}

const cdr_kernel cdr__linear_dw_kernels[] = {
    { .name = "amx", .bits = "amx", .needs = CDR_ISA_AMX, .reject = reject_f32_second, .work_bytes = work_dw_amx, .run = dw_amx },
    { .name = "avx512_bf16", .bits = "bf16dot", .needs = CDR_ISA_AVX512_BF16, .reject = reject_f32_second, .work_bytes = work_dw_bf16, .run = dw_bf16 },
    { .name = "avx512", .bits = "fma", .needs = CDR_ISA_AVX512, .work_bytes = work_dw_avx512, .run = dw_avx512 },
    { .name = "avx2", .bits = "fma", .needs = CDR_ISA_AVX2, .work_bytes = work_dw_avx2, .run = dw_avx2 },
    { .name = "base", .bits = "base", .work_bytes = work_dw_base, .run = dw_base },
    { .name = NULL }
};
