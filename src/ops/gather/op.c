/* gather, reduce_scatter, all_reduce: n tensors at once over one communicator of `size` ranks, axis 0.
 *   gather          full_i = rows of rank 0, rows of rank 1, ...                                                   (1)
 *   reduce_scatter  shard_i = own rows of sum_r full_i(r)       the sum is a binary tree over ranks, elementwise     (2)
 *   all_reduce      out_i   = sum_r x_i(r)                      the same tree; out_i may be x_i                      (3)
 * Rank r owns rows [r rows / size, (r + 1) rows / size). A shard's buffer has ceil(rows / size) rows; the tail is zero.
 * (2) is the gradient of (1): each rank read every row, and used it on other tokens.
 * The tree makes the sum independent of how ranks are laid out on machines, and costs no bytes (comm.h).
 * Precision: gradients are summed in F32, losses and norms in F64; counts in I32, exactly, so that their order does not matter (modulo 2^32). gather
 * copies bytes of any format. */
#include "ops/gather/gather.h"

/* ---- builders ---------------------------------------------------------------------------------------------------- */
/* Bytes of one whole tensor, from a value with that many rows or from a shard of it. */
static int64_t whole_bytes(const cdr_type *t, int64_t rows)
{
    return t->n[0] ? (int64_t)cdr_type_bytes(t) / t->n[0] * rows : 0;
}

static cdr_status check_count(cdr_graph *g, const char *op, int n, int size)
{
    if (n < 1 || n > CDR_GATHER_MAX) return cdr_graph_fail(g, CDR_EINVAL, "%s: %d tensors; takes 1 to %d at once", op, n, (int)CDR_GATHER_MAX);
    if (size < 1) return cdr_graph_fail(g, CDR_EINVAL, "%s: a communicator of %d ranks", op, size);
    return CDR_OK;
}

static cdr_status append(cdr_graph *g, const cdr_op *op, const cdr_gather_attr *a, const cdr_val *in, cdr_val *out)
{
    if (g->failed) return CDR_EINVAL;
    return cdr_graph_call(g, op, a, a->n, in, a->n, out) < 0 ? CDR_EINVAL : CDR_OK;
}

cdr_status cdr_gather(cdr_graph *g, int comm, int size, int n, const cdr_val *shard, const int64_t *rows, cdr_val *full)
{
    cdr_gather_attr a = { .coll = { .kind = CDR_COLL_GATHER, .order = CDR_ORDER_FREE, .comm = (int16_t)comm, .counts = CDR_NONE }, .n = n, .size = size };
    if (g->failed) return CDR_EINVAL;
    CDR_TRY(check_count(g, "gather", n, size));
    for (int i = 0; i < n; i++) {
        a.rows[i] = rows[i];
        /* all but the fewest rows that a rank has itself */
        a.coll.wire_bytes += whole_bytes(cdr_graph_type(g, shard[i]), rows[i] - rows[i] / size);
    }
    return append(g, &cdr_op_gather, &a, shard, full);
}

cdr_status cdr_reduce_scatter(cdr_graph *g, int comm, int size, int n, const cdr_val *full, cdr_val *shard)
{
    cdr_gather_attr a = { .coll = { .kind = CDR_COLL_REDUCE_SCATTER, .order = CDR_ORDER_TREE, .comm = (int16_t)comm, .counts = CDR_NONE }, .n = n, .size = size };
    if (g->failed) return CDR_EINVAL;
    CDR_TRY(check_count(g, "reduce_scatter", n, size));
    for (int i = 0; i < n; i++) {
        const cdr_type *t = cdr_graph_type(g, full[i]);
        a.rows[i] = t->n[0];
        a.coll.wire_bytes += whole_bytes(t, cdr_ceil_div(t->n[0], size)) * (size - 1);     /* own rows, from every peer */
    }
    return append(g, &cdr_op_reduce_scatter, &a, full, shard);
}

cdr_status cdr_all_reduce(cdr_graph *g, int comm, int size, int n, const cdr_val *x, cdr_val *out)
{
    cdr_gather_attr a = { .coll = { .kind = CDR_COLL_ALL_REDUCE, .order = CDR_ORDER_TREE, .comm = (int16_t)comm, .counts = CDR_NONE }, .n = n, .size = size };
    if (g->failed) return CDR_EINVAL;
    CDR_TRY(check_count(g, "all_reduce", n, size));
    for (int i = 0; i < n; i++) {
        const cdr_type *t = cdr_graph_type(g, x[i]);
        int64_t elems = cdr_type_elems(t), share = cdr_ceil_div(elems, size);
        a.rows[i] = t->n[0];
        a.coll.wire_bytes += cdr_dtype_bytes(t->dtype, share * (size - 1) + elems - elems / size);   /* its share, then the others' */
    }
    return append(g, &cdr_op_all_reduce, &a, x, out);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */
static cdr_status infer_common(const char *op, const cdr_gather_attr *a, int n_in, const cdr_type *in, bool sums, cdr_err *e)
{
    if (a->n < 1 || a->n > CDR_GATHER_MAX || n_in != a->n)
        CDR_FAIL(e, CDR_EINVAL, "%s: %d operands, its attribute says %d (1 to %d)", op, n_in, a->n, (int)CDR_GATHER_MAX);
    if (a->size < 1) CDR_FAIL(e, CDR_EINVAL, "%s: a communicator of %d ranks", op, a->size);
    for (int i = 0; i < n_in; i++) {
        const cdr_type *t = &in[i];
        if (cdr_absent(t) || t->n_dim < 1) CDR_FAIL(e, CDR_EINVAL, "%s: tensor %d has no axis 0", op, i);
        if (t->layout != CDR_ROWS || cdr_type_pitch(t) != cdr_type_cols(t)) CDR_FAIL(e, CDR_EINVAL, "%s: tensor %d must lie in dense rows", op, i);
        if (t->n[0] < 1 || a->rows[i] < 1) CDR_FAIL(e, CDR_EINVAL, "%s: tensor %d has %lld rows", op, i, (long long)a->rows[i]);
        if (sums && t->dtype != CDR_F32 && t->dtype != CDR_F64 && t->dtype != CDR_I32)
            CDR_FAIL(e, CDR_EINVAL, "%s: tensor %d is %s; sums across ranks are F32, F64 or I32", op, i, cdr_dtype_row(t->dtype)->name);
        if (t->n_dim == 1 && cdr_dtype_row(t->dtype)->block_elems != 1)
            CDR_FAIL(e, CDR_EINVAL, "%s: tensor %d of %s has no whole rows", op, i, cdr_dtype_row(t->dtype)->name);
    }
    return CDR_OK;
}

static cdr_status infer_gather(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_gather_attr *a = attr;
    CDR_TRY(infer_common("gather", a, n_in, in, false, e));
    for (int i = 0; i < n_in; i++) {
        if (in[i].n[0] != cdr_ceil_div(a->rows[i], a->size))
            CDR_FAIL(e, CDR_EINVAL, "gather: shard %d has %lld rows; %lld rows over %d ranks are %lld each", i, (long long)in[i].n[0], (long long)a->rows[i],
                     a->size, (long long)cdr_ceil_div(a->rows[i], a->size));
        out[i] = in[i];
        out[i].pitch = 0;
        out[i].n[0] = a->rows[i];
    }
    *n_out = n_in;
    return CDR_OK;
}

static cdr_status infer_whole(const char *op, const cdr_gather_attr *a, int n_in, const cdr_type *in, cdr_type *out, cdr_err *e)
{
    CDR_TRY(infer_common(op, a, n_in, in, true, e));
    for (int i = 0; i < n_in; i++) {
        if (in[i].n[0] != a->rows[i])
            CDR_FAIL(e, CDR_EINVAL, "%s: tensor %d has %lld rows, its attribute says %lld", op, i, (long long)in[i].n[0], (long long)a->rows[i]);
        out[i] = in[i];
        out[i].pitch = 0;
    }
    return CDR_OK;
}

static cdr_status infer_reduce_scatter(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_gather_attr *a = attr;
    CDR_TRY(infer_whole("reduce_scatter", a, n_in, in, out, e));
    for (int i = 0; i < n_in; i++) out[i].n[0] = cdr_ceil_div(in[i].n[0], a->size);
    *n_out = n_in;
    return CDR_OK;
}

static cdr_status infer_all_reduce(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    *n_out = n_in;
    return infer_whole("all_reduce", attr, n_in, in, out, e);
}

int cdr__gather_wanted(int n, const cdr_val *dout, const bool *want, int *which, cdr_val *x, cdr_val *out)
{
    int m = 0;
    for (int i = 0; i < n; i++) {
        if (!want[i] || dout[i] == CDR_NONE) continue;
        which[m] = i;
        x[m] = dout[i];
        out[m++] = CDR_NEW;
    }
    return m;
}

/* One reduce_scatter of the tensors whose gradient is wanted and there. */
static cdr_status grad_gather(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_gather_attr a;
    cdr_val full[CDR_GATHER_MAX], shard[CDR_GATHER_MAX];
    int which[CDR_GATHER_MAX];
    (void)e;
    memcpy(&a, cdr_graph_attr(g, c), sizeof a);             /* the graph's attributes move when calls are appended */
    int n = cdr__gather_wanted(a.n, dout, want, which, full, shard);
    if (n == 0) return CDR_OK;
    CDR_TRY(cdr_reduce_scatter(g, a.coll.comm, a.size, n, full, shard));
    for (int k = 0; k < n; k++) din[which[k]] = shard[k];
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_gather_attr *a = attr;
    cdr_cost c = { .wire = (double)a->coll.wire_bytes };
    for (int i = 0; i < n_in; i++) c.read += (double)cdr_type_bytes(&t[i]);
    for (int i = n_in; i < n_in + n_out; i++) c.write += (double)cdr_type_bytes(&t[i]);
    if (a->coll.kind != CDR_COLL_GATHER)
        for (int i = 0; i < n_in; i++) c.flop += (double)cdr_type_elems(&t[i]) * (a->size - 1) / a->size;
    return c;
}

static const cdr_kernel kernels_gather[] = {
    { .name = "base", .bits = "copy", .device = CDR_DEV_CPU, .run = cdr__gather_base },
    { .name = NULL }
};
static const cdr_kernel kernels_reduce_scatter[] = {
    { .name = "base", .bits = "tree", .device = CDR_DEV_CPU, .run = cdr__reduce_scatter_base },
    { .name = NULL }
};
static const cdr_kernel kernels_all_reduce[] = {
    { .name = "base", .bits = "tree", .device = CDR_DEV_CPU, .run = cdr__all_reduce_base },
    { .name = NULL }
};

const cdr_op cdr_op_gather = {
    .name = "gather", .flags = CDR_OP_COLLECTIVE | CDR_OP_PIECES, .attr_bytes = sizeof(cdr_gather_attr),
    .infer = infer_gather, .grad = grad_gather, .cost = cost, .kernels = kernels_gather
};

const cdr_op cdr_op_reduce_scatter = {
    .name = "reduce_scatter", .flags = CDR_OP_COLLECTIVE | CDR_OP_PIECES, .attr_bytes = sizeof(cdr_gather_attr),
    .infer = infer_reduce_scatter, .cost = cost, .kernels = kernels_reduce_scatter
};

const cdr_op cdr_op_all_reduce = {
    .name = "all_reduce", .flags = CDR_OP_COLLECTIVE | CDR_OP_PIECES, .attr_bytes = sizeof(cdr_gather_attr),
    .infer = infer_all_reduce, .cost = cost, .kernels = kernels_all_reduce
};
