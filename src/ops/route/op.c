/* route: p_tj = scale s_tj / (sum_{r in R_t} s_tr + 1e-20),  or  scale s_tj where weights are not renormalised                  (1)
 * with s as ops/router scores, and R_t the given experts of the token, put in ascending order. An id that is no expert is clamped: the host
 * checks what it gives. */
#include "ops/route/route.h"
#include "ops/cpu.h"

void cdr_route(cdr_graph *g, cdr_val logits_TE, cdr_val given_Tk, cdr_val start_T, cdr_val pos_T, const cdr_router_attr *a, cdr_val *idx_Tk, cdr_val *p_Tk)
{
    cdr_val in[] = { logits_TE, given_Tk, start_T, pos_T }, out[] = { CDR_NEW, CDR_NEW };
    bool ok = cdr_graph_call(g, &cdr_op_route, a, 4, in, 2, out) >= 0;
    *idx_Tk = ok ? out[0] : CDR_NONE;
    *p_Tk = ok ? out[1] : CDR_NONE;
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_router_attr *a = attr;
    if (n_in != 4 || in[0].dtype != CDR_F32 || in[0].n_dim != 2 || in[0].layout != CDR_ROWS) CDR_FAIL(e, CDR_EINVAL, "route: takes F32 logits, ids, start and pos");
    int64_t T = in[0].n[0];
    if (a->top_k < 1 || a->top_k > in[0].n[1]) CDR_FAIL(e, CDR_EINVAL, "route: top_k is %d of %lld experts", a->top_k, (long long)in[0].n[1]);
    if (in[1].dtype != CDR_I32 || in[1].n_dim != 2 || in[1].n[0] != T || in[1].n[1] != a->top_k) CDR_FAIL(e, CDR_EINVAL, "route: the ids must be i32[T, top_k]");
    for (int i = 2; i < 4; i++)
        if (in[i].dtype != CDR_I32 || in[i].n_dim != 1 || in[i].n[0] != T) CDR_FAIL(e, CDR_EINVAL, "route: start and pos must be i32[T]");
    *n_out = 2;
    out[0] = cdr_type_2d(CDR_I32, T, a->top_k);
    out[1] = cdr_type_2d(CDR_F32, T, a->top_k);
    return CDR_OK;
}

static const cdr_kernel kernels[] = {
    { .name = "base", .bits = "route", .device = CDR_DEV_CPU, .run = cdr__route_base },
    { .name = NULL }
};

const cdr_op cdr_op_route = { .name = "route", .flags = CDR_OP_ROWWISE | CDR_OP_KEEP, .attr_bytes = sizeof(cdr_router_attr), .infer = infer, .ref = cdr__route_ref,
    .kernels = kernels };
