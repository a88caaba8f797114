/* adamw: with g = clip * grad, hyper = { lr, c1 = 1 / (1 - beta1^t), c2 = 1 / (1 - beta2^t) }:
 *   m <- beta1 m + (1 - beta1) g                                                          (1)
 *   v <- beta2 v + (1 - beta2) g^2                                                        (2)
 *   w <- w - lr (c1 m / (sqrt(c2 v) + eps) + weight_decay w)                              (3)
 * Source: Loshchilov & Hutter 2019; eps outside of the root after the bias correction, as PyTorch (spec/numerics.md, A9).
 * Precision: F32 throughout; the copy that kernels read is rounded once from the F32 master.
 * Bound: memory, 28 bytes a parameter (30 with a BF16 copy).
 */
#include "ops/adamw/adamw.h"
#include <assert.h>
#include <math.h>

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    if (n_in != 7) CDR_FAIL(e, CDR_EINVAL, "adamw: takes gradient, clip, hyper, master, m, v, weight");
    for (int i = 0; i < 6; i++)
        if (in[i].dtype != CDR_F32) CDR_FAIL(e, CDR_EINVAL, "adamw: operand %d is not F32", i);
    for (int i = 0; i < 7; i++)
        if (in[i].pitch != 0) CDR_FAIL(e, CDR_EINVAL, "adamw: operand %d has a pitch; states are dense", i);
    int64_t n = cdr_type_elems(&in[0]);
    for (int i = 3; i < 7; i++)
        if (!cdr_absent(&in[i]) && cdr_type_elems(&in[i]) != n)
            CDR_FAIL(e, CDR_EINVAL, "adamw: operand %d has %lld elements, the gradient %lld", i, (long long)cdr_type_elems(&in[i]), (long long)n);
    *n_out = 4;
    for (int k = 0; k < 4; k++) out[k] = in[3 + k];
    return CDR_OK;
}

static void ref(const cdr_ref_args *a)
{
    const cdr_adamw_attr *t = a->attr;
    double clip = a->in[1][0], lr = a->in[2][0] * t->lr_scale, c1 = a->in[2][1], c2 = a->in[2][2];
    int64_t n = cdr_type_elems(&a->type[0]);
    for (int64_t i = 0; i < n; i++) {
        double g = a->in[0][i] * clip, w = a->in[3][i];
        double m = (double)t->beta1 * a->in[4][i] + (1 - (double)t->beta1) * g;
        double v = (double)t->beta2 * a->in[5][i] + (1 - (double)t->beta2) * g * g;
        w -= lr * (c1 * m / (sqrt(c2 * v) + t->eps) + t->weight_decay * w);
        a->out[0][i] = w;
        a->out[1][i] = m;
        a->out[2][i] = v;
        if (!cdr_absent(&a->type[6])) a->out[3][i] = w;
    }
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr; (void)n_in; (void)n_out;
    double n = (double)cdr_type_elems(&t[0]);
    return (cdr_cost){ .flop = 14 * n, .read = 16 * n, .write = 12 * n + (cdr_absent(&t[6]) ? 0 : 2 * n) };
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "ieee", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__adamw_avx2 },
    { .name = "base", .bits = "ieee", .device = CDR_DEV_CPU, .run = cdr__adamw_base },
    { .name = NULL }
};

const cdr_op cdr_op_adamw = {
    .name = "adamw", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_adamw_attr), .optional = 8,
    .infer = infer, .cost = cost, .ref = ref, .kernels = kernels,
};

int32_t cdr_adamw(cdr_graph *g, cdr_val grad, cdr_val clip_1, cdr_val hyper_8, cdr_val master, cdr_val m, cdr_val v, cdr_val weight,
                  const cdr_adamw_attr *a)
{
    cdr_val in[] = { grad, clip_1, hyper_8, master, m, v, weight }, out[] = { master, m, v, weight };
    return cdr_graph_call(g, &cdr_op_adamw, a, 7, in, 4, out);
}
