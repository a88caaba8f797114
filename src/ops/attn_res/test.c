/* attn_res, test cases: one row to sixteen, one token, several blocks of the sum over tokens, tails that no vector divides,
 * rows near zero where eps decides, a bank in another format than the prefix, a sharp softmax. Properties: a zero query
 * gives the mean, one row is handed through bit for bit and its query gets exactly no gradient. */
#include "ops/attn_res/attn_res.h"
#include "ops/cpu.h"
#include <math.h>

static const cdr_attn_res_attr n1 = { 1, 1e-5f }, n2 = { 2, 1e-5f }, n3 = { 3, 1e-5f }, n5 = { 5, 1e-6f }, n16 = { 16, 1e-5f };

/* ---- properties -------------------------------------------------------------------------------------------------------- */
static const char *mean_holds(const cdr_args *a)
{
    const cdr_attn_res_attr *at = a->attr;
    const cdr_type *th = &a->type[a->n_in];
    for (int64_t t = 0; t < cdr_type_rows(th); t++)
        for (int64_t d = 0; d < cdr_type_cols(th); d++) {
            double mean = 0, most = 0;
            for (int i = 0; i < at->n; i++) {
                double x = (double)((const float *)cdr_row(a->ptr[i], &a->type[i], t))[d];
                mean += x / at->n;
                most = fmax(most, fabs(x));
            }
            double h = (double)((const float *)cdr_row(a->ptr[a->n_in], th, t))[d];
            if (!(fabs(h - mean) <= at->n * 1.2e-7 * most)) return "a zero query does not give the mean";
        }
    return NULL;
}

static const char *identity_holds(const cdr_args *a)
{
    return memcmp(a->ptr[0], a->ptr[a->n_in], cdr_type_bytes(&a->type[0])) == 0 ? NULL : "one row is not handed through";
}

static const char *identity_bwd_holds(const cdr_args *a)
{
    const float *dproj = a->ptr[a->n_in + CDR__ARB_DPROJ], *dnorm = a->ptr[a->n_in + CDR__ARB_DNORM];
    for (int64_t d = 0; d < cdr_type_cols(&a->type[0]); d++) if (dproj[d] != 0 || dnorm[d] != 0) return "the query of one row has a gradient";
    return memcmp(a->ptr[0], a->ptr[a->n_in + CDR__ARB_DV], cdr_type_bytes(&a->type[0])) == 0 ? NULL : "one row's gradient is not dh";
}

/* ---- the table ------------------------------------------------------------------------------------------------------------ */
#define X(dt, T, D) { .dtype = dt, .n_dim = 2, .n = { T, D } }
#define P(dt, D) X(dt, 1, D), { .dtype = dt, .n_dim = 1, .n = { D } }
#define V(sd) { 'n', sd, 0 }
#define Q(sd) { 'n', sd, 0 }, { 'u', 0.5, 1.5 }
#define X3(dt, T, D) X(dt, T, D), X(dt, T, D), X(dt, T, D)
#define V3(sd) V(sd), V(sd), V(sd)

/* BF16: one rounding, 1.7e-3 in the Frobenius norm. F32: |s| reaches 30 in the sharp cases, whose rounding is p's error. */
const cdr_case cdr_cases_attn_res[] = {
    { .name = "n1 T9 D33 f32 identity", .op = &cdr_op_attn_res, .attr = &n1, .n_in = 3, .in = { X(CDR_F32, 9, 33), P(CDR_F32, 33) },
      .fill = { V(1), Q(0.3) }, .grad = 7, .tol = 0, .property = identity_holds },
    { .name = "n2 T130 D64 bf16", .op = &cdr_op_attn_res, .attr = &n2, .n_in = 4, .in = { X(CDR_BF16, 130, 64), X(CDR_BF16, 130, 64), P(CDR_BF16, 64) },
      .fill = { V(1), V(2), Q(0.2) }, .grad = 15, .tol = 2.2e-3 },
    { .name = "n3 T37 D128 f32", .op = &cdr_op_attn_res, .attr = &n3, .n_in = 5, .in = { X3(CDR_F32, 37, 128), P(CDR_F32, 128) },
      .fill = { V3(1), Q(0.2) }, .grad = 31, .tol = 2e-6 },
    { .name = "n3 T7 D257 f32 tail, zero query", .op = &cdr_op_attn_res, .attr = &n3, .n_in = 5, .in = { X3(CDR_F32, 7, 257), P(CDR_F32, 257) },
      .fill = { V(1), V(3), V(0.1), { 'c', 0, 0 }, { 'u', 0.5, 1.5 } }, .grad = 31, .tol = 5e-7, .property = mean_holds },
    { .name = "n3 T33 D48 f32 near zero", .op = &cdr_op_attn_res, .attr = &n3, .n_in = 5, .in = { X3(CDR_F32, 33, 48), P(CDR_F32, 48) },
      .fill = { V(2e-3), V(1e-3), V(5e-3), Q(0.5) }, .grad = 31, .tol = 2e-6 },
    { .name = "n3 T20 D128 f32 sharp", .op = &cdr_op_attn_res, .attr = &n3, .n_in = 5, .in = { X3(CDR_F32, 20, 128), P(CDR_F32, 128) },
      .fill = { V3(1), Q(2) }, .grad = 31, .tol = 5e-6 },
    { .name = "n3 T1 D5 bf16 prefix, f32 bank", .op = &cdr_op_attn_res, .attr = &n3, .n_in = 5,
      .in = { X(CDR_F32, 1, 5), X(CDR_F32, 1, 5), X(CDR_BF16, 1, 5), P(CDR_F32, 5) }, .fill = { V3(1), Q(0.5) }, .grad = 31, .tol = 4e-3 },
    { .name = "n5 T70 D96 bf16, query f32", .op = &cdr_op_attn_res, .attr = &n5, .n_in = 7,
      .in = { X(CDR_BF16, 70, 96), X(CDR_BF16, 70, 96), X3(CDR_BF16, 70, 96), P(CDR_F32, 96) },
      .fill = { V(1), V(2), V3(1), Q(0.2) }, .grad = 127, .tol = 2.2e-3 },
    { .name = "n16 T11 D40 f32", .op = &cdr_op_attn_res, .attr = &n16, .n_in = 18,
      .in = { X3(CDR_F32, 11, 40), X3(CDR_F32, 11, 40), X3(CDR_F32, 11, 40), X3(CDR_F32, 11, 40), X3(CDR_F32, 11, 40), X(CDR_F32, 11, 40), P(CDR_F32, 40) },
      .fill = { V3(1), V3(1), V3(2), V3(1), V3(1), V(4), Q(0.3) }, .grad = 0x3ffff, .tol = 2e-6 },

    { .name = "n1 T9 D33 f32 identity", .op = &cdr_op_attn_res_bwd, .attr = &n1, .n_in = 4, .in = { X(CDR_F32, 9, 33), X(CDR_F32, 9, 33), P(CDR_F32, 33) },
      .fill = { V(1), V(1), Q(0.3) }, .tol = 1e-7, .property = identity_bwd_holds },
    { .name = "n2 T130 D64 bf16", .op = &cdr_op_attn_res_bwd, .attr = &n2, .n_in = 5,
      .in = { X3(CDR_BF16, 130, 64), P(CDR_BF16, 64) }, .fill = { V(1), V(1), V(2), Q(0.2) }, .tol = 2.5e-3 },
    { .name = "n3 T37 D128 bf16, dh f32", .op = &cdr_op_attn_res_bwd, .attr = &n3, .n_in = 6,
      .in = { X(CDR_F32, 37, 128), X3(CDR_BF16, 37, 128), P(CDR_F32, 128) }, .fill = { V(1), V3(1), Q(0.2) }, .tol = 2.5e-3 },
    { .name = "n3 T2500 D33 f32 many blocks", .op = &cdr_op_attn_res_bwd, .attr = &n3, .n_in = 6,
      .in = { X(CDR_F32, 2500, 33), X3(CDR_F32, 2500, 33), P(CDR_F32, 33) }, .fill = { V(1), V3(1), Q(0.3) }, .tol = 3e-6 },
    { .name = "n3 T33 D48 f32 near zero", .op = &cdr_op_attn_res_bwd, .attr = &n3, .n_in = 6,
      .in = { X(CDR_F32, 33, 48), X3(CDR_F32, 33, 48), P(CDR_F32, 48) }, .fill = { V(1), V(2e-3), V(1e-3), V(5e-3), Q(0.5) }, .tol = 3e-6 },
    { .name = "n3 T20 D128 f32 sharp", .op = &cdr_op_attn_res_bwd, .attr = &n3, .n_in = 6,
      .in = { X(CDR_F32, 20, 128), X3(CDR_F32, 20, 128), P(CDR_F32, 128) }, .fill = { V(1), V3(1), Q(2) }, .tol = 2e-5 },
    { .name = "n3 T40 D64 f32 rows 0 and 2 alone", .op = &cdr_op_attn_res_bwd, .attr = &n3, .n_in = 6, .skip_out = 1u | 2u | (2u << CDR__ARB_DV),
      .in = { X(CDR_F32, 40, 64), X3(CDR_F32, 40, 64), P(CDR_F32, 64) }, .fill = { V(1), V3(1), Q(0.3) }, .tol = 3e-6 },
    { .name = "n3 T40 D64 f32 dnorm alone", .op = &cdr_op_attn_res_bwd, .attr = &n3, .n_in = 6, .skip_out = 1u | (7u << CDR__ARB_DV),
      .in = { X(CDR_F32, 40, 64), X3(CDR_F32, 40, 64), P(CDR_F32, 64) }, .fill = { V(1), V3(1), Q(0.3) }, .tol = 3e-6 },
    { .name = "n16 T11 D40 f32", .op = &cdr_op_attn_res_bwd, .attr = &n16, .n_in = 19,
      .in = { X(CDR_F32, 11, 40), X3(CDR_F32, 11, 40), X3(CDR_F32, 11, 40), X3(CDR_F32, 11, 40), X3(CDR_F32, 11, 40), X3(CDR_F32, 11, 40),
              X(CDR_F32, 11, 40), P(CDR_F32, 40) },
      .fill = { V(1), V3(1), V3(1), V3(2), V3(1), V3(1), V(4), Q(0.3) }, .tol = 4e-6 },
    { .name = NULL }
};
