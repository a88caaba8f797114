/* experts_ep: equations (1) to (6) of op.c where the E experts lie on S ranks of an expert group, rank j having the experts
 * [j E / S, (j + 1) E / S), and each rank has T tokens and their routes over all E.
 *   rows(j) = { (e, s, t) : e on rank j, token t of rank s is routed to e }, in ascending order                        (7)
 *   rank j forms y_r of (2), or the dx row and dp of (4) and (3), for its rows; source s sums its tokens' rows as ever  (8)
 *   dW_e = tree over s of (one chain over e's rows from source s, ascending t),   dA_e, dB_e likewise                  (9)
 * The tree is binary over s, as comm.h has it; a source without rows takes part with +0. So (9) has the bits that S micro-batches of one
 * rank have, merged by grad_push, and (8) those of one rank: a row's chains know nothing of its neighbours (spec/spine.md, 5).
 * In any order (coll.order): dW_e, dA_e, dB_e = one chain over e's rows in the order of (7). Balanced placement keeps the tree.      (10)
 *
 * Rows travel by being read where they lie (cdr_comm_peer): x with h1 and h3, and du with dv, by the rank that works on them, y and dx rows by their source. They
 * are rounded to the activations' dtype; dp stays F32. cap bounds a round, in rows of a receiver; rounds are counted from all ranks'
 * offs, alike on all. Backward keeps what the forward was given and gathers again.
 * With balanced placement a rank works on its even share of the rows, and fetches what it needs of another rank's experts into slots
 * (ep_balance.c); bits are the same.
 * Bytes on the wire, each way, of rows at balance, T A (S - 1) / S: forward x, h1, h3, the pair and its weight, then y
 * and v; backward those, du and dv, then dx, dh1, dh3 and dp. What data really sends is more or less by as much as it is uneven; to
 * that, all slots. */
#include "ops/experts/ep.h"
#include <math.h>

/* ---- infer ---------------------------------------------------------------------------------------------------------- */
static cdr_status check(const char *op, const cdr_experts_ep_attr *a, const cdr_type *fwd, cdr_type as_local[CDR__EX_N], cdr_err *e)
{
    const cdr_type *x = &fwd[CDR__EX_X], *offs = &fwd[CDR__EX_OFFS], *w1 = &fwd[CDR__EX_W1];
    const long long S = a->size, E = a->n_experts, cap = (long long)a->cap;
    if (S < 1 || (S & (S - 1)) != 0 || E < 1 || E % S != 0)
        CDR_FAIL(e, CDR_EINVAL, "%s: %lld experts over %lld ranks; ranks must be a power of two that divides them", op, E, S);
    if (cdr_absent(offs) || offs->dtype != CDR_I32 || offs->n_dim != 2 || offs->layout != CDR_ROWS || offs->n[0] != S || offs->n[1] != E + 1)
        CDR_FAIL(e, CDR_EINVAL, "%s: offs must be i32[%lld,%lld] in rows: every rank's", op, S, E + 1);
    if (cdr_absent(w1) || w1->n_dim != 3 || w1->n[0] != E / S) CDR_FAIL(e, CDR_EINVAL, "%s: w1 must have the %lld experts of this rank", op, E / S);
    for (int i = CDR__EX_W1; i <= CDR__EX_W2 && a->balanced; i++)
        if (!cdr_absent(&fwd[i]) && fwd[i].layout != CDR_ROWS)
            CDR_FAIL(e, CDR_EINVAL, "%s: balanced placement copies experts in rows, not in %s", op, cdr_layout_row(fwd[i].layout)->name);
    memcpy(as_local, fwd, CDR__EX_N * sizeof *fwd);
    as_local[CDR__EX_OFFS] = cdr_type_1d(CDR_I32, E / S + 1);
    if (cdr_absent(x) || x->n_dim != 2 || cap < x->n[0])
        CDR_FAIL(e, CDR_EINVAL, "%s: room for %lld rows; an expert's rows from one rank may be as many as x has tokens", op, cap);
    if (a->balanced < 0 || a->balanced > 2) CDR_FAIL(e, CDR_EINVAL, "%s: balanced = %d; 0, 1 and 2 can be", op, a->balanced);
    if (a->balanced && cap < x->n[0] * (a->experts.top_k + a->balanced - 1))
        CDR_FAIL(e, CDR_EINVAL, "%s: room for %lld rows; a balanced share may be as many as there are pairs", op, cap);
    if (a->balanced && !cdr_absent(&fwd[CDR__EX_TABLE]))
        CDR_FAIL(e, CDR_EINVAL, "%s: redundant experts are copied from stacks in their order, there may be no table", op);
    for (int k = 0; k < CDR__EP_N_STACKS; k++) {
        const cdr_type *t = &fwd[cdr__ep_stack(k)];
        if (a->balanced && !cdr_absent(t) && cdr_type_pitch(t) != cdr_type_cols(t)) CDR_FAIL(e, CDR_EINVAL, "%s: redundant experts are copied from dense stacks", op);
    }
    return CDR_OK;
}

/* Slots for redundant experts, as many as a rank has at home */
static void slot_types(const cdr_type *fwd, cdr_type *out)
{
    for (int k = 0; k < CDR__EP_N_STACKS; k++) {
        out[k] = cdr__ex_is_stack(fwd, cdr__ep_stack(k)) ? fwd[cdr__ep_stack(k)] : (cdr_type){ .dtype = CDR_N_DTYPES };
        out[k].pitch = 0;
    }
}

static int64_t slot_bytes(const cdr_type *fwd)
{
    int64_t bytes = 0;
    for (int k = 0; k < CDR__EP_N_STACKS; k++) if (cdr__ex_is_stack(fwd, cdr__ep_stack(k))) bytes += (int64_t)cdr_type_bytes(&fwd[cdr__ep_stack(k)]);
    return bytes;
}

static void want_slots(const cdr_experts_ep_attr *a, const cdr_type *fwd, cdr_val *out)
{
    for (int k = 0; k < CDR__EP_N_STACKS; k++) out[k] = a->balanced && cdr__ex_is_stack(fwd, cdr__ep_stack(k)) ? CDR_NEW : CDR_NONE;
}

static void types_of(cdr_graph *g, const cdr_val *in, cdr_type *t)
{
    for (int i = 0; i < CDR__EX_N; i++) {
        if (in[i] == CDR_NONE) t[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
        else t[i] = *cdr_graph_type(g, in[i]);
    }
}

/* Rows that may have to be worked on by one rank */
static int64_t worst_rows(const cdr_experts_ep_attr *a, int64_t T)
{
    return a->size * T * CDR_MIN(a->experts.top_k, a->n_experts / a->size);
}

/* width: elements of a row */
static cdr_type back_type(const cdr_experts_ep_attr *a, const cdr_type *x, int64_t width) { return cdr_type_2d(x->dtype, x->n[0] * a->experts.top_k, width); }

cdr_status cdr__experts_ep_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_experts_ep_attr *a = attr;
    const cdr_type *x = &in[CDR__EX_X];
    cdr_type local[CDR__EX_N], of_experts[CDR__EX_N_OUT];
    int n = 0;
    if (n_in != CDR__EX_N) CDR_FAIL(e, CDR_EINVAL, "experts_ep: takes the %d operands of experts, got %d", (int)CDR__EX_N, n_in);
    CDR_TRY(check("experts_ep", a, in, local, e));
    CDR_TRY(cdr_op_experts.infer(&a->experts, n_in, local, &n, of_experts, e));
    *n_out = CDR__EP_N_OUT;
    out[CDR__EP_OUT_U] = of_experts[CDR__EX_OUT_U];
    out[CDR__EP_OUT_V] = of_experts[CDR__EX_OUT_V];
    out[CDR__EP_OUT_RECV] = cdr_type_2d(x->dtype, a->cap, cdr__ex_row_out(in));
    out[CDR__EP_OUT_BACK] = back_type(a, x, cdr__ex_row_out(in));
    slot_types(in, out + CDR__EP_OUT_SLOTS);
    return CDR_OK;
}

cdr_status cdr__experts_ep_infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_experts_ep_attr *a = attr;
    const cdr_type *x = &in[CDR__EXB_X + CDR__EX_X];
    cdr_type local[CDR__EXB_N];
    if (n_in != CDR__EPB_N) CDR_FAIL(e, CDR_EINVAL, "experts_ep_bwd: takes du, the %d operands of experts and dv, got %d", (int)CDR__EX_N, n_in);
    local[CDR__EXB_DU] = in[CDR__EXB_DU];
    local[CDR__EXB_DV] = in[CDR__EPB_DV];
    local[CDR__EXB_GU] = (cdr_type){ .dtype = CDR_N_DTYPES };
    CDR_TRY(check("experts_ep_bwd", a, in + CDR__EXB_X, local + CDR__EXB_X, e));
    CDR_TRY(cdr_op_experts_bwd.infer(&a->experts, CDR__EXB_N, local, n_out, out, e));
    *n_out = CDR__EPB_N_OUT;
    out[CDR__EPB_OUT_RECV] = cdr_type_2d(x->dtype, a->cap, cdr__ex_row_in(in + CDR__EXB_X));
    out[CDR__EPB_OUT_DP] = cdr_type_1d(CDR_F32, a->cap);
    out[CDR__EPB_OUT_BACK] = back_type(a, x, cdr__ex_row_in(in + CDR__EXB_X));
    slot_types(in + CDR__EXB_X, out + CDR__EPB_OUT_SLOTS);
    for (int k = 0; k < CDR__EP_N_STACKS; k++) {
        cdr_type *t = &out[CDR__EPB_OUT_NODES + k];
        *t = cdr__ex_is_stack(in + CDR__EXB_X, cdr__ep_stack(k)) ? out[CDR__EXB_DW1 + k] : (cdr_type){ .dtype = CDR_N_DTYPES };
        if (!cdr_absent(t)) t->n[0] = cdr__ep_max_nodes(t->n[0], a->size);
    }
    return CDR_OK;
}

/* ---- graph ---------------------------------------------------------------------------------------------------------- */
/* Bytes to and from a rank at balance; in, back: bytes of a row each way */
static int64_t wire(const cdr_experts_ep_attr *a, int64_t T, int64_t in, int64_t back)
{
    return cdr_ceil_div(T * a->experts.top_k * (a->size - 1), a->size) * (in + back);
}

static void of_class_comm(cdr_graph *g, cdr_val v) { if (v >= 0) cdr_graph_at(g, v)->cls = CDR_C_COMM; }

cdr_status cdr__experts_ep_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    static const int of[CDR__EXB_N_OUT] = { CDR__EX_X, CDR__EX_P, CDR__EX_W1, CDR__EX_W3, CDR__EX_W2,
        CDR__EX_A1, CDR__EX_B1, CDR__EX_A3, CDR__EX_B3, CDR__EX_A2, CDR__EX_B2 };
    if (dout[0] == CDR_NONE) return CDR_OK;
    CDR_TRY(cdr__experts_may_train(g, c, want, e));
    cdr_experts_ep_attr a;
    memcpy(&a, cdr_graph_attr(g, c), sizeof a);             /* the graph's array may move */
    bool trains = false;
    cdr_type fwd[CDR__EX_N];
    const cdr_val back = cdr_graph_out(g, c, CDR__EP_OUT_BACK);
    cdr_val in[CDR__EPB_N] = { dout[0] }, out[CDR__EPB_N_OUT];
    for (int i = 0; i < CDR__EX_N; i++) in[CDR__EXB_X + i] = cdr_graph_in(g, c, i);
    in[CDR__EPB_DV] = dout[CDR__EP_OUT_V];
    types_of(g, in + CDR__EXB_X, fwd);
    for (int i = CDR__EXB_DW1; i < CDR__EXB_N_OUT; i++) trains = trains || (want[of[i]] && cdr__ex_is_stack(fwd, of[i]));
    for (int i = 0; i < CDR__EXB_N_OUT; i++) out[i] = want[of[i]] ? CDR_NEW : CDR_NONE;
    bool rows = want[CDR__EX_X];                            /* what comes home */
    for (int m = 0; m < 2; m++) rows = rows || (cdr__ex_low_in(fwd, m) > 0 && want[CDR__EX_A1 + 2 * m]);
    out[CDR__EPB_OUT_RECV] = rows ? CDR_NEW : CDR_NONE;
    out[CDR__EPB_OUT_DP] = out[CDR__EXB_DP];
    out[CDR__EPB_OUT_BACK] = back == CDR_NONE || !rows ? CDR_NONE : CDR_NEW;
    want_slots(&a, fwd, out + CDR__EPB_OUT_SLOTS);
    if (a.balanced && trains) {                             /* whole groups move, one more than the share at most */
        a.balanced = 2;
        a.cap = (int64_t)cdr_align_up((size_t)(fwd[CDR__EX_X].n[0] * (a.experts.top_k + 1)), 16);
    }
    int64_t sums = 0;                                       /* bytes: a rank's redundant experts once */
    for (int k = 0; k < CDR__EP_N_STACKS; k++) {
        out[CDR__EPB_OUT_NODES + k] = a.balanced == 2 && cdr__ex_is_stack(fwd, cdr__ep_stack(k)) ? out[CDR__EXB_DW1 + k] : CDR_NONE;
        if (out[CDR__EPB_OUT_NODES + k] != CDR_NONE) sums += 4 * cdr_type_elems(&fwd[cdr__ep_stack(k)]);
    }
    const cdr_type *x = &fwd[CDR__EX_X];
    const int64_t row = cdr_dtype_bytes(x->dtype, cdr__ex_row_in(fwd)), du = cdr_dtype_bytes(cdr_graph_type(g, dout[0])->dtype, x->n[1]);
    const int64_t dv = in[CDR__EPB_DV] == CDR_NONE ? 0 : cdr_dtype_bytes(cdr_graph_type(g, in[CDR__EPB_DV])->dtype, cdr__ex_low_out(fwd));
    a.coll.wire_bytes = wire(&a, x->n[0], row + du + dv + 8, (rows ? row : 0) + (want[CDR__EX_P] ? 4 : 0)) + (a.balanced ? slot_bytes(fwd) + sums : 0);
    if (cdr_graph_call(g, &cdr_op_experts_ep_bwd, &a, CDR__EPB_N, in, CDR__EPB_N_OUT, out) < 0) return CDR_EINVAL;
    for (int i = 0; i < CDR__EXB_N_OUT; i++) if (out[i] != CDR_NONE) din[of[i]] = out[i];
    for (int i = CDR__EPB_OUT_RECV; i < CDR__EPB_N_OUT; i++) of_class_comm(g, out[i]);
    return CDR_OK;
}

/* In place of experts, whose stacks are local ones and whose offs are all ranks' (dispatch's hook). gate and up are not kept. */
cdr_status cdr__experts_shard(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, cdr_val *out, cdr_err *e)
{
    cdr_val in[CDR__EX_N], made[CDR__EP_N_OUT] = { CDR_NEW, CDR_NEW, CDR_NEW };
    cdr_type fwd[CDR__EX_N];
    out[0] = CDR_NONE;
    if (cdr_mesh_expert(m) == 1) return CDR_OK;
    for (int i = 0; i < CDR__EX_N; i++) in[i] = cdr_graph_in(g, c, i);
    types_of(g, in, fwd);
    const cdr_type *x = &fwd[CDR__EX_X], *offs = &fwd[CDR__EX_OFFS];
    cdr_experts_ep_attr a = { .coll = { .kind = CDR_COLL_EXPERTS, .order = o->any_order ? CDR_ORDER_FREE : CDR_ORDER_TREE, .comm = CDR_COMM_EXPERT, .counts = CDR_NONE },
                              .size = cdr_mesh_expert(m) };
    memcpy(&a.experts, cdr_graph_attr(g, c), sizeof a.experts);
    a.experts.capacity = 0;
    if (offs->n_dim != 2) CDR_FAIL(e, CDR_EINVAL, "experts: over %d ranks, offs must be all ranks'", a.size);
    a.balanced = o->balanced ? 1 : 0;
    a.n_experts = (int32_t)(offs->n[1] - 1);
    for (int i = CDR__EX_W1; i <= CDR__EX_W2; i++)
        if (fwd[i].n[0] != a.n_experts / a.size)
            CDR_FAIL_ID(e, CDR_EUSER, "parallel.expert", "parallel.expert: %d ranks share the experts, but the description places a stack of layer %d elsewhere: "
                        "each has all %d of its matrices. Give its row place: expert, or take parallel.expert=1", a.size, c->layer, a.n_experts);
    const int64_t T = x->n[0], pairs = T * a.experts.top_k, worst = worst_rows(&a, T);
    const double room = o->dispatch_factor > 0 ? CDR_MIN((double)worst, CDR_MAX((double)T, ceil(o->dispatch_factor * (double)pairs))) : (double)worst;
    a.cap = (int64_t)cdr_align_up(a.balanced ? (size_t)pairs : (size_t)room, 16);
    if (a.balanced || a.cap >= worst) made[CDR__EP_OUT_BACK] = CDR_NONE;
    a.coll.wire_bytes = wire(&a, T, cdr_dtype_bytes(x->dtype, cdr__ex_row_in(fwd)) + 8, cdr_dtype_bytes(x->dtype, cdr__ex_row_out(fwd))) +
                        (a.balanced ? slot_bytes(fwd) : 0);
    want_slots(&a, fwd, made + CDR__EP_OUT_SLOTS);
    made[CDR__EP_OUT_V] = cdr__ex_low_out(fwd) > 0 ? CDR_NEW : CDR_NONE;
    if (cdr_graph_call(g, &cdr_op_experts_ep, &a, CDR__EX_N, in, CDR__EP_N_OUT, made) < 0) return CDR_EINVAL;
    for (int i = CDR__EP_OUT_RECV; i < CDR__EP_OUT_V; i++) of_class_comm(g, made[i]);
    out[CDR__EX_OUT_U] = made[CDR__EP_OUT_U];
    out[CDR__EX_OUT_GU] = CDR_NONE;
    out[CDR__EX_OUT_V] = made[CDR__EP_OUT_V];
    return CDR_OK;
}

/* ---- cost ----------------------------------------------------------------------------------------------------------- */
cdr_cost cdr__experts_ep_cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_experts_ep_attr *a = attr;
    cdr_cost c = cdr_op_experts.cost(&a->experts, n_in, n_out, t);
    c.wire = (double)a->coll.wire_bytes;
    return c;
}

/* As experts_bwd without gate and up, whose place is behind the forward's operands */
cdr_cost cdr__experts_ep_cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_experts_ep_attr *a = attr;
    cdr_type all[CDR__EXB_N + CDR__EPB_N_OUT];
    memcpy(all, t, (size_t)n_in * sizeof *t);
    all[CDR__EXB_DV] = t[CDR__EPB_DV];
    all[CDR__EXB_GU] = (cdr_type){ .dtype = CDR_N_DTYPES };
    memcpy(all + CDR__EXB_N, t + n_in, (size_t)n_out * sizeof *t);
    cdr_cost c = cdr_op_experts_bwd.cost(&a->experts, CDR__EXB_N, n_out, all);
    c.wire = (double)a->coll.wire_bytes;
    return c;
}

/* ---- kernels --------------------------------------------------------------------------------------------------------- */
typedef const void *attr_p;
#define WORK_ARGS attr_p at, int n_in, int n_out, const cdr_type *t, int n
#define UNUSED (void)n_in, (void)n_out
#define ENTRIES(isa) \
    static size_t work_##isa(WORK_ARGS) { UNUSED; return cdr__ep_fwd_bytes(&cdr__experts_##isa, at, t, n); } \
    static size_t bwd_work_##isa(WORK_ARGS) { UNUSED; return cdr__ep_bwd_bytes(&cdr__experts_##isa, at, t, n); } \
    static cdr_status fwd_##isa(const cdr_args *a) { return cdr__ep_fwd(a, &cdr__experts_##isa); } \
    static cdr_status bwd_##isa(const cdr_args *a) { return cdr__ep_bwd(a, &cdr__experts_##isa); }
ENTRIES(base)
ENTRIES(avx2)
ENTRIES(avx512)
ENTRIES(avx512_bf16)
ENTRIES(amx)

/* The same bits as experts and experts_bwd have in the same class, so the classes are theirs. */
#define FWD(isa) .work_bytes = work_##isa, .run = fwd_##isa
#define BWD(isa) .work_bytes = bwd_work_##isa, .run = bwd_##isa
const cdr_kernel cdr__experts_ep_kernels[] = { CDR__EXPERTS_ROWS("experts", cdr__experts_reject, FWD) };
const cdr_kernel cdr__experts_ep_bwd_kernels[] = { CDR__EXPERTS_ROWS("experts_bwd", cdr__experts_bwd_reject, BWD) };

/* Local stacks that are packed may be mapped, but not where matrices move between ranks: where there are slots. */
int cdr__experts_ep_layout(const cdr_kernel *k, int i, const cdr_type *t)
{
    const bool bwd = k >= cdr__experts_ep_bwd_kernels && k < cdr__experts_ep_bwd_kernels + CDR_COUNT(cdr__experts_ep_bwd_kernels);
    const int m = i - CDR__EX_W1 - (bwd ? CDR__EXB_X : 0), slots = bwd ? CDR__EPB_N + CDR__EPB_OUT_SLOTS : CDR__EX_N + CDR__EP_OUT_SLOTS;
    if (m < 0 || m > 2 || !cdr_absent(&t[slots + m])) return CDR_ROWS;
    return cdr__experts_maps(t + (bwd ? CDR__EXB_X : 0), m);
}
