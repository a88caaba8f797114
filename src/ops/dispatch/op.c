/* dispatch: a stable counting sort of the pairs q = t A + slot by expert idx_q; pairs of idle tokens (idx = -1) have no row.
 *   n_e = |{q : idx_q = e}|,   offs_e = sum_{d < e} n_d,   offs_E = rows                                             (1)
 *   row(q) = offs_{idx_q} + |{q' < q : idx_q' = idx_q}|,   pos_q = row(q),   perm_row(q) = q                          (2)
 * perm_r = -1 for r >= offs_E, pos_q = -1 where idx_q = -1. Counts are data, shapes are capacities: R = T A rows always fit.
 * No gradient: the routes are kept for the backward, never made again. */
#include "ops/dispatch/dispatch.h"
#include "ops/gather/gather.h"

void cdr_dispatch(cdr_graph *g, cdr_val idx_TA, int experts, cdr_val *perm_R, cdr_val *offs_E1, cdr_val *pos_TA)
{
    const cdr_dispatch_attr attr = { experts };
    const cdr_val in[] = { idx_TA };
    cdr_val out[] = { CDR_NEW, CDR_NEW, CDR_NEW };
    const bool ok = cdr_graph_call(g, &cdr_op_dispatch, &attr, 1, in, 3, out) >= 0;
    *perm_R = ok ? out[0] : CDR_NONE;
    *offs_E1 = ok ? out[1] : CDR_NONE;
    *pos_TA = ok ? out[2] : CDR_NONE;
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_dispatch_attr *a = attr;
    if (n_in != 1) CDR_FAIL(e, CDR_EINVAL, "dispatch: takes 1 operand, got %d", n_in);
    if (in[0].dtype != CDR_I32 || in[0].n_dim != 2 || in[0].layout != CDR_ROWS)
        CDR_FAIL(e, CDR_EINVAL, "dispatch: idx must be i32 [tokens, experts a token]");
    if (a->experts < 1) CDR_FAIL(e, CDR_EINVAL, "dispatch: %d experts", a->experts);
    if (in[0].n[0] < 1 || in[0].n[1] < 1 || in[0].n[0] > INT32_MAX / in[0].n[1])
        CDR_FAIL(e, CDR_EINVAL, "dispatch: %lld tokens of %lld pairs each; between 1 and 2^31 - 1 pairs can be numbered",
                 (long long)in[0].n[0], (long long)in[0].n[1]);
    *n_out = 3;
    out[0] = cdr_type_1d(CDR_I32, in[0].n[0] * in[0].n[1]);
    out[1] = cdr_type_1d(CDR_I32, (int64_t)a->experts + 1);
    out[2] = cdr_type_2d(CDR_I32, in[0].n[0], in[0].n[1]);
    return CDR_OK;
}

/* Over the ranks of an expert group each sorts its own pairs, by all E experts; what the others need are its counts: offs becomes
 * [ranks, E + 1], every rank's (ops/experts/ep_op.c). */
static cdr_status shard(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, cdr_val *out, cdr_err *e)
{
    (void)o, (void)e;
    out[0] = CDR_NONE;
    if (cdr_mesh_expert(m) == 1) return CDR_OK;
    const cdr_dispatch_attr attr = *(const cdr_dispatch_attr *)cdr_graph_attr(g, c);      /* the graph's array may move */
    const int64_t S = cdr_mesh_expert(m);
    cdr_val perm, offs, pos, all = CDR_NEW;
    cdr_dispatch(g, cdr_graph_in(g, c, 0), attr.experts, &perm, &offs, &pos);
    if (g->failed) return CDR_EINVAL;
    const cdr_val row = cdr_graph_view(g, offs, 0, cdr_type_2d(CDR_I32, 1, (int64_t)attr.experts + 1), "offs");
    CDR_TRY(cdr_gather(g, CDR_COMM_EXPERT, (int)S, 1, &row, &S, &all));
    out[0] = perm;
    out[1] = all;
    out[2] = pos;
    return CDR_OK;
}

static const cdr_kernel kernels[] = {
    { .name = "base", .bits = "exact", .device = CDR_DEV_CPU, .work_bytes = cdr__dispatch_work, .run = cdr__dispatch_base },
    { .name = NULL }
};

const cdr_op cdr_op_dispatch = {
    .name = "dispatch", .flags = CDR_OP_KEEP, .attr_bytes = sizeof(cdr_dispatch_attr), .infer = infer, .shard = shard, .ref = cdr__dispatch_ref, .kernels = kernels
};
