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

enum { BLOCK = 2048 };

/* elementwise on one block; out may be in */
static void block(const cdr_adamw_attr *t, int64_t n, const float *grad, const float hyper[3], float clip, const float *w0, const float *m0,
                  const float *v0, float *w, float *m, float *v)
{
    float lr = hyper[0] * t->lr_scale, c1 = hyper[1], c2 = hyper[2];
    float b1 = t->beta1, b2 = t->beta2, d1 = 1.0f - b1, d2 = 1.0f - b2, eps = t->eps, wd = t->weight_decay;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * clip;
        float mi = b1 * m0[i] + d1 * g, vi = b2 * v0[i] + d2 * g * g;
        m[i] = mi;
        v[i] = vi;
        w[i] = w0[i] - lr * (c1 * mi / (sqrtf(c2 * vi) + eps) + wd * w0[i]);
    }
}

static cdr_status run(const cdr_args *a)
{
    int64_t n = cdr_type_elems(&a->type[0]);
    const float *grad = a->ptr[0], *clip = a->ptr[1], *hyper = a->ptr[2], *w0 = a->ptr[3], *m0 = a->ptr[4], *v0 = a->ptr[5];
    float *w = a->ptr[7], *m = a->ptr[8], *v = a->ptr[9];
    char *weight = a->ptr[10];
    int dtype = a->type[10].dtype;
    size_t elem = weight ? (size_t)cdr_dtype_bytes(dtype, 1) : 0;
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (n > 16384)
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t k = CDR_MIN(n - b, (int64_t)BLOCK);
        block(a->attr, k, grad + b, hyper, *clip, w0 + b, m0 + b, v0 + b, w + b, m + b, v + b);
        if (weight) cdr_from_f32(dtype, w + b, weight + (size_t)b * elem, k);
    }
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr; (void)n_in; (void)n_out;
    double n = (double)cdr_type_elems(&t[0]);
    return (cdr_cost){ .flop = 14 * n, .read = 16 * n, .write = 12 * n + (cdr_absent(&t[6]) ? 0 : 2 * n) };
}

static const cdr_kernel kernels[] = {
    { .name = "base", .bits = "ieee", .device = CDR_DEV_CPU, .run = run },
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
