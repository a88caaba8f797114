/* grad_push: the binary counter over micro-batches, or their running sum.
 *
 * Partial i (i = 0, 1, ..) of a rank arrives when the counter stands at i. Let z be the number of trailing one bits of
 * i and p its number of one bits. The stack then holds p partial sums, of 2^level partials each, the largest at slot 0.
 * The z topmost have the levels 0 .. z-1 and are merged with the new one, smallest first:
 *   carry = x;  for j = p-1 down to p-z:  carry = stack[j] + carry;   stack[p-z] = carry                     (1)
 * so that after 2^L partials slot 0 holds the sum of the full binary tree over them. The sum is elementwise and never
 * leaves registers, therefore slot p-z is written only: max(1, L) buffers suffice.
 * A running sum is (1) with min(i, 1) for i: slot 0 is overwritten by the first partial, and every other one is added to it.    (2)
 * Source: spec/spine.md, section 5. Precision: F32 (F64 for the loss); one rounding per tree node.
 * Bound: memory. A slot is added to where it lies, so that no line is brought in only to be written.
 */
#include "ops/grad_push/grad_push.h"
#include <assert.h>

int cdr_grad_push_depth(int n_micro)
{
    int depth = 0;
    while ((1 << depth) < n_micro) depth++;
    return CDR_MAX(depth, 1);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_grad_push_attr *a = attr;
    if (n_in != 2) CDR_FAIL(e, CDR_EINVAL, "grad_push: takes a partial and a counter");
    if (in[0].dtype != CDR_F32 && in[0].dtype != CDR_F64) CDR_FAIL(e, CDR_EINVAL, "grad_push: partials are F32 or F64");
    if (in[0].pitch != 0) CDR_FAIL(e, CDR_EINVAL, "grad_push: the partial has a pitch; gradients are dense");
    if (in[1].dtype != CDR_I32) CDR_FAIL(e, CDR_EINVAL, "grad_push: the counter is I32");
    if (a->depth < 1 || a->depth > CDR_PUSH_MAX) CDR_FAIL(e, CDR_EINVAL, "grad_push: depth %d, at most %d", a->depth, CDR_PUSH_MAX);
    if (a->running < 0 || a->running > 1 || (a->running && a->depth != 1)) CDR_FAIL(e, CDR_EINVAL, "grad_push: a running sum has one buffer, not %d", a->depth);
    *n_out = a->depth;
    for (int k = 0; k < a->depth; k++) out[k] = in[0];
    return CDR_OK;
}

/* The counter as (1) takes it */
static unsigned counter_of(const void *attr, unsigned micro) { return ((const cdr_grad_push_attr *)attr)->running ? CDR_MIN(micro, 1u) : micro; }

static void ref(const cdr_ref_args *a)
{
    unsigned i = counter_of(a->attr, (unsigned)a->in[1][0]);
    int p = __builtin_popcount(i), z = __builtin_ctz(~i);
    int64_t n = cdr_type_elems(&a->type[0]);
    for (int64_t x = 0; x < n; x++) {
        double carry = a->in[0][x];
        for (int j = p - 1; j >= p - z; j--) carry = a->out[j][x] + carry;
        a->out[p - z][x] = carry;
    }
}

enum { BLOCK = 1024 };

static cdr_status run(const cdr_args *a)
{
    unsigned i = counter_of(a->attr, (unsigned)*(const int32_t *)a->ptr[1]);
    int p = __builtin_popcount(i), z = __builtin_ctz(~i);
    assert(p - z < a->n_out);
    int64_t n = cdr_type_elems(&a->type[0]);
    if (a->type[0].dtype == CDR_F64) {
        const double *x = a->ptr[0];
        for (int64_t e = 0; e < n; e++) {
            double carry = x[e];
            for (int j = p - 1; j >= p - z; j--) carry = ((const double *)a->ptr[2 + j])[e] + carry;
            ((double *)a->ptr[2 + p - z])[e] = carry;
        }
        return CDR_OK;
    }
    const float *x = a->ptr[0];
    float *dst = a->ptr[2 + p - z];
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (n > 65536)
    for (int64_t b = 0; b < n; b += BLOCK) {
        float carry[BLOCK];
        int64_t m = CDR_MIN(n - b, (int64_t)BLOCK);
        const float *c = x + b;
        if (z == 0) memcpy(dst + b, c, (size_t)m * sizeof *x);
        for (int j = p - 1; j >= p - z; j--) {                                                                      /* (1) */
            const float *s = (const float *)a->ptr[2 + j] + b;
            float *to = j == p - z ? dst + b : carry;      /* dst is slot p - z itself: element by element in place */
#pragma omp simd
            for (int64_t e = 0; e < m; e++) to[e] = s[e] + c[e];
            c = to;
        }
    }
    return CDR_OK;
}

/* Of the counter's values, half merge with no slot, a quarter with one, and so on: one on average. */
static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out;
    const double bytes = (double)cdr_type_bytes(&t[0]);
    return (cdr_cost){ .flop = (double)cdr_type_elems(&t[0]), .read = 2 * bytes, .write = bytes };
}

static const cdr_kernel kernels[] = {
    { .name = "base", .bits = "ieee", .device = CDR_DEV_CPU, .run = run },
    { .name = NULL }
};

const cdr_op cdr_op_grad_push = {
    .name = "grad_push", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_grad_push_attr), .rmw = 0xfffff,
    .infer = infer, .cost = cost, .ref = ref, .kernels = kernels,
};

void cdr_grad_push(cdr_graph *g, cdr_val partial, cdr_val micro_1, const cdr_grad_push_attr *a, cdr_val *stack)
{
    cdr_val in[] = { partial, micro_1 };
    cdr_graph_call(g, &cdr_op_grad_push, a, 2, in, a->depth, stack);
}
