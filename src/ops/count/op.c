/* count: total_8 = sum over all ranks of count_8, in int64: exact, so its order does not matter                    (1)
 *        scale_1 = 1 / max(1, total_0),   scale_rows_1 = 1 / max(1, total_4)                                      (2)
 * count_0: trained tokens of this rank in this step; count_4: its rows that are not idle, the scale of losses over rows. The loss
 * and every gradient of a step are scaled by (2), so that a step means the mean over its trained tokens on any number of ranks.
 * Other words are flags (stop, error): more than zero after (1) means that some rank raised it. The quotient is formed in F64 and
 * rounded once. */
#include "ops/count/count.h"

cdr_status cdr_count(cdr_graph *g, int size, cdr_val count_8, cdr_val *total_8, cdr_val *scale_1, cdr_val *scale_rows_1)
{
    cdr_count_attr a = { .coll = { .kind = CDR_COLL_COUNT, .order = CDR_ORDER_FREE, .comm = CDR_COMM_WORLD, .counts = CDR_NONE }, .size = size };
    cdr_val out[] = { *total_8 >= 0 ? *total_8 : CDR_NEW, *scale_1 >= 0 ? *scale_1 : CDR_NEW, *scale_rows_1 >= 0 ? *scale_rows_1 : CDR_NEW };
    if (g->failed) return CDR_EINVAL;
    a.coll.wire_bytes = (int64_t)(size - 1) * CDR_COUNT_WORDS * 8;
    if (cdr_graph_call(g, &cdr_op_count, &a, 1, &count_8, 3, out) < 0) return CDR_EINVAL;
    *total_8 = out[0];
    *scale_1 = out[1];
    *scale_rows_1 = out[2];
    return CDR_OK;
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_count_attr *a = attr;
    if (n_in != 1 || cdr_absent(&in[0])) CDR_FAIL(e, CDR_EINVAL, "count: takes one operand, got %d", n_in);
    if (a->size < 1) CDR_FAIL(e, CDR_EINVAL, "count: a world of %d ranks", a->size);
    if (in[0].dtype != CDR_I64 || in[0].n_dim != 1 || in[0].n[0] != CDR_COUNT_WORDS || cdr_type_pitch(&in[0]) != CDR_COUNT_WORDS)
        CDR_FAIL(e, CDR_EINVAL, "count: the counts must be %d words of I64", (int)CDR_COUNT_WORDS);
    out[0] = cdr_type_1d(CDR_I64, CDR_COUNT_WORDS);
    out[1] = out[2] = cdr_type_1d(CDR_F32, 1);
    *n_out = 3;
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_count_attr *a = attr;
    (void)n_in, (void)n_out, (void)t;
    return (cdr_cost){ .read = CDR_COUNT_WORDS * 8, .write = CDR_COUNT_WORDS * 8 + 8, .wire = (double)a->coll.wire_bytes };
}

static const cdr_kernel kernels[] = {
    { .name = "base", .bits = "exact", .device = CDR_DEV_CPU, .run = cdr__count_base },
    { .name = NULL }
};

const cdr_op cdr_op_count = {
    .name = "count", .flags = CDR_OP_COLLECTIVE | CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_count_attr),
    .infer = infer, .cost = cost, .kernels = kernels
};
