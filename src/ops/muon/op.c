/* muon: for each block W_RK of block_rows rows (a head, an expert, or the whole matrix), with g = clip * grad:
 *   M <- mu M + g                                                                                                  (1)
 *   G = g + mu M (nesterov), else M;   X <- G / (|G|_F + 1e-7), transposed where R > K                             (2)
 *   iterations times:  A = X X^T;  X <- a X + (b A + c A A) X,   (a, b, c) = (3.4445, -4.7750, 2.0315)             (3)
 *   W <- W - lr (scale sqrt(max(R, K)) X + weight_decay W),   lr = hyper[0] lr_scale                               (4)
 * Sources: Jordan et al. 2024 (1) to (3); Moonlight, arXiv 2502.16982 (4); spec/model.md, section 5. Heads are orthogonalised
 * separately as in K3's Per-Head Muon, with the block's own sides in (4) (spec/numerics.md, A10).
 * Singular values of X end in [0.68, 1.20] where they begin above 1.5e-3 of |G|_F. A zero block stays zero: 0 / 1e-7.
 * The 1e-7 is the papers': it shrinks the step by 1 % where |G|_F = 1e-5.
 * Precision: F32; |G|_F^2 in F64. A BF16 iteration changes the step's RMS by less than 0.6 %. */
#include "ops/muon/muon.h"
#include "ops/cpu.h"

const double cdr__muon_abc[3] = { 3.4445, -4.7750, 2.0315 };

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    static const char *const what[] = { "the gradient", "clip", "hyper", "master", "m", "weight" };
    const cdr_muon_attr *at = attr;
    if (n_in != CDR__MU_IN) CDR_FAIL(e, CDR_EINVAL, "muon: takes gradient, clip, hyper, master, m, weight; got %d operands", n_in);
    for (int i = 0; i < n_in; i++) {
        if (i == CDR__MU_WEIGHT && cdr_absent(&in[i])) continue;
        if (i < CDR__MU_WEIGHT ? in[i].dtype != CDR_F32 : !cdr_is_real(&in[i]))
            CDR_FAIL(e, CDR_EINVAL, "muon: %s must be %s", what[i], i < CDR__MU_WEIGHT ? "F32" : "of a float format");
        if (in[i].pitch != 0 || in[i].layout != CDR_ROWS) CDR_FAIL(e, CDR_EINVAL, "muon: %s has a pitch; states are dense", what[i]);
        if (i >= CDR__MU_MASTER && !cdr_same_shape(&in[i], &in[0])) CDR_FAIL(e, CDR_EINVAL, "muon: %s has another shape than the gradient", what[i]);
    }
    if (cdr_type_elems(&in[CDR__MU_CLIP]) != 1 || cdr_type_elems(&in[CDR__MU_HYPER]) < 1) CDR_FAIL(e, CDR_EINVAL, "muon: clip is one number, hyper at least one");
    if (in[0].n_dim < 2 || cdr_type_elems(&in[0]) < 1) CDR_FAIL(e, CDR_EINVAL, "muon: a parameter of %d axes is no matrix; use adamw", in[0].n_dim);
    if (at->block_rows < 0 || (at->block_rows > 0 && cdr_type_rows(&in[0]) % at->block_rows != 0))
        CDR_FAIL(e, CDR_EINVAL, "muon: %lld rows are not whole blocks of %d", (long long)cdr_type_rows(&in[0]), at->block_rows);
    if (at->iterations < 1 || at->iterations > 100) CDR_FAIL(e, CDR_EINVAL, "muon: %d iterations, must be 1 to 100", at->iterations);
    if (!(at->momentum >= 0 && at->momentum < 1)) CDR_FAIL(e, CDR_EINVAL, "muon: momentum is %g, must be in [0, 1)", (double)at->momentum);
    *n_out = 3;
    for (int k = 0; k < 3; k++) out[k] = in[CDR__MU_MASTER + k];
    return CDR_OK;
}

/* As executed: of the two symmetric products only one triangle is formed. */
static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)n_in, (void)n_out;
    const cdr_muon_attr *at = attr;
    double rows = at->block_rows ? at->block_rows : (double)cdr_type_rows(&t[0]), cols = (double)cdr_type_cols(&t[0]);
    double n = CDR_MIN(rows, cols), k = CDR_MAX(rows, cols), elems = (double)cdr_type_elems(&t[0]);
    double blocks = elems / (rows * cols), narrow = cdr_absent(&t[CDR__MU_WEIGHT]) ? 0 : (double)cdr_type_bytes(&t[CDR__MU_WEIGHT]);
    return (cdr_cost){ .flop = at->iterations * blocks * (3 * n * n * k + n * n * n) + 10 * elems, .read = 12 * elems, .write = 8 * elems + narrow };
}

static const cdr_kernel kernels[] = {
    { .name = "avx512", .bits = "muon/fma", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX512, .work_bytes = cdr__muon_avx512_work, .run = cdr__muon_avx512 },
    { .name = "avx2", .bits = "muon/fma", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__muon_avx2_work, .run = cdr__muon_avx2 },
    { .name = "base", .bits = "muon/base", .device = CDR_DEV_CPU, .work_bytes = cdr__muon_base_work, .run = cdr__muon_base },
    { .name = NULL }
};

const cdr_op cdr_op_muon = {
    .name = "muon", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_muon_attr), .optional = 4,
    .infer = infer, .cost = cost, .ref = cdr__muon_ref, .kernels = kernels
};

int32_t cdr_muon(cdr_graph *g, cdr_val grad, cdr_val clip_1, cdr_val hyper_8, cdr_val master, cdr_val m, cdr_val weight, const cdr_muon_attr *a)
{
    cdr_val in[] = { grad, clip_1, hyper_8, master, m, weight }, out[] = { master, m, weight };
    return cdr_graph_call(g, &cdr_op_muon, a, CDR__MU_IN, in, 3, out);
}
