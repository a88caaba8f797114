/* loss over a head whose rows are split over ranks: types, builders, gradients, bytes on the wire, and the choice between a whole
 * gather and pieces. Equations (1)-(4) are op.c's; loss.h says what the operators take; split_cpu.c computes.
 *
 * A chunk [v0, v0 + n) of the vocabulary has rows of one owner or of several. Every rank reads the rows that it does not own. Of the
 * chunk's dw, which every rank has over its own tokens, rank r sums slice r, rows [r n / size, (r + 1) n / size) of the chunk, over all
 * ranks as the tree, and the owners then read their rows out of the slices: the work of a sum is spread evenly, whoever owns the rows.
 */
#include "ops/loss/loss.h"
#include "ops/rowwise.h"

/* ---- sizes ----------------------------------------------------------------------------------------------------------- */
static int64_t chunk_rows(const cdr_loss_attr *a, int64_t W) { return a->chunk_vocab > 0 ? CDR_MIN(a->chunk_vocab, W) : W; }
static int64_t padded(int64_t bytes) { return (int64_t)cdr_align_up((size_t)bytes, 64); }
static int64_t common(int64_t lo, int64_t hi, int64_t lo2, int64_t hi2) { return CDR_MAX(0, CDR_MIN(hi, hi2) - CDR_MAX(lo, lo2)); }

cdr__loss_stage cdr__loss_stage_of(const cdr_loss_pieces_attr *a, const cdr_type *w_shard)
{
    int64_t n = chunk_rows(&a->chunks, a->rows), D = w_shard->n[1];
    cdr__loss_stage s = { .bytes = 64 };
    if (a->size == 1) return s;
    s.bytes = padded(cdr_dtype_bytes(w_shard->dtype, n * D));
    for (int k = 0; k < 2 && a->dw; k++) {
        s.dw[k] = s.bytes;
        s.slice[k] = s.dw[k] + padded(n * D * 4);
        s.bytes = s.slice[k] + padded(cdr_ceil_div(n, a->size) * D * 4);
    }
    return s;
}

/* Rows that rank r reads of dw: partial sums of its slices from its peers; sums of its own rows out of their slices. */
static int64_t dw_rows(const cdr_loss_pieces_attr *a, int r)
{
    int64_t n = chunk_rows(&a->chunks, a->rows), W = a->rows, size = a->size, lo = r * W / size, hi = (r + 1) * W / size, rows = 0;
    for (int64_t v0 = 0; v0 < W; v0 += n) {
        int64_t k = CDR_MIN(n, W - v0), from = v0 + r * k / size, to = v0 + (r + 1) * k / size;
        rows += (to - from) * (size - 1) + common(lo, hi, v0, v0 + k) - common(lo, hi, from, to);
    }
    return rows;
}

/* What the rank reads that reads most. */
static int64_t wire_bytes(const cdr_loss_pieces_attr *a, const cdr_type *w_shard)
{
    int64_t most = 0, D = w_shard->n[1], W = a->rows;
    for (int r = 0; r < a->size && a->size > 1; r++) {
        int64_t own = (r + 1) * W / a->size - r * W / a->size;
        int64_t bytes = cdr_dtype_bytes(w_shard->dtype, (W - own) * D) + (a->dw ? dw_rows(a, r) * D * 4 : 0);
        most = CDR_MAX(most, bytes);
    }
    return most;
}

cdr_loss_pieces_attr cdr_loss_pieces_attr_of(int size, int64_t W, const cdr_type *w_shard, cdr_loss_attr chunks, bool dw)
{
    cdr_loss_pieces_attr a = { .coll = { .kind = CDR_COLL_LOSS, .order = dw ? CDR_ORDER_TREE : CDR_ORDER_FREE, .comm = CDR_COMM_SHARD, .counts = CDR_NONE },
                               .size = size, .dw = dw, .rows = W, .chunks = chunks };
    a.coll.wire_bytes = wire_bytes(&a, w_shard);
    return a;
}

/* ---- types ------------------------------------------------------------------------------------------------------------ */
/* h, the shard, targets: checked as those of loss over a head of as many rows as the attribute says. */
static cdr_status split_infer(const char *op, const cdr_op *whole, const cdr_loss_pieces_attr *a, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    cdr_type full[8];
    if (n_in < 3 || n_in > 8) CDR_FAIL(e, CDR_EINVAL, "%s: got %d operands", op, n_in);
    if (a->size < 1) CDR_FAIL(e, CDR_EINVAL, "%s: a communicator of %d ranks", op, a->size);
    if (a->rows < 1 || in[CDR__LOSS_W].n_dim != 2 || in[CDR__LOSS_W].n[0] != cdr_ceil_div(a->rows, a->size))
        CDR_FAIL(e, CDR_EINVAL, "%s: the shard has %lld rows; %lld rows over %d ranks are %lld each", op, (long long)in[CDR__LOSS_W].n[0],
                 (long long)a->rows, a->size, (long long)(a->rows > 0 ? cdr_ceil_div(a->rows, a->size) : 0));
    memcpy(full, in, sizeof *in * (size_t)n_in);
    full[CDR__LOSS_W].n[0] = a->rows;
    CDR_TRY(whole->infer(&a->chunks, n_in, full, n_out, out, e));
    if (a->size > 1 && cdr_type_pitch(&in[CDR__LOSS_W]) != cdr_type_cols(&in[CDR__LOSS_W])) CDR_FAIL(e, CDR_EINVAL, "%s: the shard must lie in dense rows", op);
    out[(*n_out)++] = cdr_type_1d(CDR_U8, cdr__loss_stage_of(a, &in[CDR__LOSS_W]).bytes);
    return CDR_OK;
}

cdr_status cdr__loss_pieces_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    return split_infer("loss_pieces", &cdr_op_loss, attr, n_in, in, n_out, out, e);
}

cdr_status cdr__loss_pieces_bwd_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    CDR_TRY(split_infer("loss_pieces_bwd", &cdr_op_loss_bwd, attr, n_in, in, n_out, out, e));
    out[1].n[0] = in[CDR__LSB_W].n[0];
    return CDR_OK;
}

cdr_status cdr__loss_frozen_pieces_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    return split_infer("loss_frozen_pieces", &cdr_op_loss_frozen, attr, n_in, in, n_out, out, e);
}

/* ---- builders and gradients --------------------------------------------------------------------------------------------- */
/* out[n_out - 1] is the stage. */
static cdr_status append(cdr_graph *g, const cdr_op *op, const cdr_loss_pieces_attr *a, int n_in, const cdr_val *in, int n_out, cdr_val *out)
{
    out[n_out - 1] = CDR_NEW;
    if (cdr_graph_call(g, op, a, n_in, in, n_out, out) < 0) return g->err->status;
    cdr_graph_at(g, out[n_out - 1])->cls = CDR_C_COMM;
    return CDR_OK;
}

cdr_status cdr_loss_pieces(cdr_graph *g, int size, int64_t W, cdr_loss_attr chunks, const cdr_val in[4], cdr_val out[2])
{
    if (g->failed) return g->err->status;
    cdr_loss_pieces_attr a = cdr_loss_pieces_attr_of(size, W, cdr_graph_type(g, in[CDR__LOSS_W]), chunks, false);
    cdr_val all[3] = { CDR_NEW, out[1] == CDR_NONE ? CDR_NONE : CDR_NEW, CDR_NEW };
    CDR_TRY(append(g, &cdr_op_loss_pieces, &a, in[CDR__LOSS_WEIGHTS] == CDR_NONE ? 3 : 4, in, 3, all));
    memcpy(out, all, 2 * sizeof *out);
    return CDR_OK;
}

cdr_status cdr_loss_frozen_pieces(cdr_graph *g, int size, int64_t W, cdr_loss_attr chunks, const cdr_val in[5], cdr_val out[2])
{
    if (g->failed) return g->err->status;
    bool dh = out[1] != CDR_NONE;
    cdr_loss_pieces_attr a = cdr_loss_pieces_attr_of(size, W, cdr_graph_type(g, in[CDR__LOSS_W]), chunks, false);
    cdr_val all[3] = { CDR_NEW, dh ? CDR_NEW : CDR_NONE, CDR_NEW };
    CDR_TRY(append(g, &cdr_op_loss_frozen_pieces, &a, in[CDR__LSF_WEIGHTS] == CDR_NONE ? 4 : 5, in, 3, all));
    memcpy(out, all, 2 * sizeof *out);
    return CDR_OK;
}

static cdr_val weights_of(const cdr_graph *g, const cdr_call *c, int i) { return c->n_in > i ? cdr_graph_in(g, c, i) : CDR_NONE; }

/* in: those of loss_pieces_bwd */
static cdr_status append_bwd(cdr_graph *g, const cdr_loss_pieces_attr *fwd, const cdr_val in[6], const bool want[2], cdr_val *din)
{
    cdr_loss_pieces_attr a = cdr_loss_pieces_attr_of(fwd->size, fwd->rows, cdr_graph_type(g, in[CDR__LSB_W]), fwd->chunks, want[1]);
    cdr_val out[3] = { want[0] ? CDR_NEW : CDR_NONE, want[1] ? CDR_NEW : CDR_NONE, CDR_NEW };
    CDR_TRY(append(g, &cdr_op_loss_pieces_bwd, &a, in[CDR__LSB_WEIGHTS] == CDR_NONE ? 5 : 6, in, 3, out));
    din[0] = out[0];
    din[1] = out[1];
    return CDR_OK;
}

cdr_status cdr__loss_pieces_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_loss_pieces_attr a;
    cdr_val in[6] = { cdr_graph_in(g, c, 0), cdr_graph_in(g, c, 1), cdr_graph_in(g, c, 2), cdr_graph_out(g, c, 1), dout[0], weights_of(g, c, CDR__LOSS_WEIGHTS) };
    memcpy(&a, cdr_graph_attr(g, c), sizeof a);
    din[0] = din[1] = din[2] = CDR_NONE;
    if (dout[1] != CDR_NONE || dout[2] != CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "loss_pieces: only its first output has a gradient");
    if (in[CDR__LSB_WEIGHTS] != CDR_NONE && want[CDR__LOSS_WEIGHTS]) CDR_FAIL(e, CDR_EINVAL, "loss_pieces: weights have no gradient");
    if (dout[0] == CDR_NONE || !(want[0] || want[1])) return CDR_OK;
    if (in[CDR__LSB_LSE] == CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "loss_pieces: its backward needs lse, and this call makes none; ask for output 1");
    return append_bwd(g, &a, in, want, din);
}

/* As loss_frozen's: dh is there already, where the gradient of the loss is the scale that it was made with. */
cdr_status cdr__loss_frozen_pieces_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_loss_pieces_attr a;
    cdr_val in[6] = { cdr_graph_in(g, c, 0), cdr_graph_in(g, c, 1), cdr_graph_in(g, c, 2), CDR_NEW, dout[0], weights_of(g, c, CDR__LSF_WEIGHTS) };
    cdr_val dh = cdr_graph_out(g, c, 1), scale = cdr_graph_in(g, c, CDR__LSF_SCALE), sum[2] = { CDR_NEW, CDR_NEW };
    const cdr_val fwd[4] = { in[0], in[1], in[2], in[CDR__LSB_WEIGHTS] };
    memcpy(&a, cdr_graph_attr(g, c), sizeof a);
    if (want[1]) CDR_FAIL(e, CDR_EINVAL, "loss_frozen_pieces: the head needs a gradient; use loss_pieces, which makes one");
    if (want[CDR__LSF_SCALE] || (in[CDR__LSB_WEIGHTS] != CDR_NONE && want[CDR__LSF_WEIGHTS]))
        CDR_FAIL(e, CDR_EINVAL, "loss_frozen_pieces: scale and weights have no gradient");
    if (dout[1] != CDR_NONE || dout[2] != CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "loss_frozen_pieces: only its first output has a gradient");
    if (dout[0] == CDR_NONE || !want[0]) return CDR_OK;
    if (dout[0] == scale && dh != CDR_NONE) {
        din[0] = dh;
        return CDR_OK;
    }
    CDR_TRY(cdr_loss_pieces(g, a.size, a.rows, a.chunks, fwd, sum));
    in[CDR__LSB_LSE] = sum[1];
    return append_bwd(g, &a, in, want, din);
}

/* ---- cost ------------------------------------------------------------------------------------------------------------- */
/* products: of all tokens with the whole head */
static cdr_cost cost(const cdr_loss_pieces_attr *a, int products, int n_in, int n_out, const cdr_type *t)
{
    cdr_cost c = cdr__cost_of(products * 2.0 * (double)t[0].n[0] * (double)t[0].n[1] * (double)a->rows, n_in, n_out, t);
    c.wire = (double)a->coll.wire_bytes;
    return c;
}

cdr_cost cdr__loss_pieces_cost(const void *attr, int n_in, int n_out, const cdr_type *t) { return cost(attr, 1, n_in, n_out, t); }
cdr_cost cdr__loss_pieces_bwd_cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    return cost(attr, 1 + !cdr_absent(&t[n_in + CDR__LSB_DH]) + !cdr_absent(&t[n_in + CDR__LSB_DW]), n_in, n_out, t);
}
cdr_cost cdr__loss_frozen_pieces_cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    return cost(attr, cdr_absent(&t[n_in + CDR__LSF_DH]) ? 1 : 2, n_in, n_out, t);
}

/* ---- the choice ---------------------------------------------------------------------------------------------------------- */
enum { WORTH = 256 << 20 };           /* bytes of memory that AUTO gives twice the wire for */

/* AUTO goes by memory, which a step has to fit in, as the peak of a step lies where the head is. Per rank, in bytes:
 *
 *              memory                                       wire (n ranks, about)
 *   gather     W D w  (+ W D 4, where it is trained)        W D w  (+ W D 4)
 *   pieces     n_v D w  (+ 2 n_v D 4 (1 + 1/n)), + T D 4    2 W D w  (+ 2 W D 4);  forward alone, frozen: W D w      n_v: chunk_vocab
 *
 * So pieces of a trained head send more: the backward reads the head again, where a gathered head is still there, and a sum of gradients
 * goes over slices; a frozen head is read once either way. K3's head (W 163840, D 7168, BF16, n_v 8192, T 4096, 64 ranks): gather 2.35 GB,
 * trained 7.05 GB, wire 2.31 and 6.94 GB;  pieces 0.23 GB, trained 0.71 GB, wire 2.31 and 13.9 GB. A small head (W 512, D 128) is gathered: 0.1 MB.
 * Chunks as large as the vocabulary save nothing, and are gathered by the same rule. */
int cdr_loss_head(const cdr_loss_split *s, int asked)
{
    int64_t n_v = chunk_rows(&s->chunks, s->W), row = s->D * (s->w_bytes + (s->trained ? 4 : 0));
    int64_t whole = s->W * row, pieces = s->D * n_v * (s->w_bytes + (s->trained ? 8 + cdr_ceil_div(8, s->n) : 0)) + s->T * s->D * 4;
    if (s->n == 1) return CDR_HEAD_GATHER;
    if (asked != CDR_HEAD_AUTO) return asked;
    return whole - pieces >= WORTH ? CDR_HEAD_PIECES : CDR_HEAD_GATHER;
}

/* Is the parameter of value w read by another call than c? */
static bool shared_head(const cdr_graph *g, const cdr_call *c, cdr_val w)
{
    for (int64_t i = 0; i < g->n_calls; i++) {
        const cdr_call *o = &g->calls[i];
        for (int k = 0; k < o->n_in; k++)
            if (cdr_graph_in(g, o, k) == w && o->arg != c->arg) return true;
    }
    return false;
}

/* The form of call c; *rows: of the whole head. */
static cdr_status choose(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, int *head, cdr_err *e)
{
    cdr_val w = cdr_graph_in(g, c, CDR__LOSS_W);
    const cdr_type *h = cdr_graph_type(g, cdr_graph_in(g, c, CDR__LOSS_H)), *wt = cdr_graph_type(g, w);
    int32_t param = cdr_graph_at(g, w)->param;
    const cdr_param *q = param >= 0 ? &g->b->params[param] : NULL;
    *head = CDR_HEAD_GATHER;
    if (o->head == CDR_HEAD_GATHER || !q || q->split[0] != CDR_AXIS_SHARD) return CDR_OK;         /* whole on every rank already */
    if (o->head == CDR_HEAD_VOCAB)
        CDR_FAIL_ID(e, CDR_EUSER, "parallel.head", "parallel.head: vocab (each rank multiplies all tokens with its own rows of the head) is not there. Take "
                    "pieces, gather or auto");
    cdr_loss_split s = { .n = m->size[CDR_AXIS_SHARD], .T = h->n[0], .D = h->n[1], .W = q->global.n[0], .w_bytes = cdr_dtype_bytes(wt->dtype, 1),
                         .trained = q->train == CDR_FULL };
    memcpy(&s.chunks, cdr_graph_attr(g, c), sizeof s.chunks);
    *head = cdr_loss_head(&s, o->head);
    if (*head == CDR_HEAD_GATHER || !shared_head(g, c, w)) return CDR_OK;
    if (o->head == CDR_HEAD_PIECES)
        CDR_FAIL_ID(e, CDR_EUSER, "parallel.head", "parallel.head=pieces: %s is read by other calls than the loss, which need it whole. Take gather or auto", q->name);
    *head = CDR_HEAD_GATHER;
    return CDR_OK;
}

static cdr_status shard(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, bool frozen, cdr_val *out, cdr_err *e)
{
    const cdr_call call = *c;               /* the graph's calls move when others are appended */
    int head;
    cdr_val in[5] = { CDR_NONE, CDR_NONE, CDR_NONE, CDR_NONE, CDR_NONE };
    cdr_loss_attr chunks;
    out[0] = out[1] = CDR_NONE;
    CDR_TRY(choose(g, &call, m, o, &head, e));
    if (head == CDR_HEAD_GATHER) return CDR_OK;
    memcpy(&chunks, cdr_graph_attr(g, &call), sizeof chunks);
    for (int i = 0; i < call.n_in; i++) in[i] = cdr_graph_in(g, &call, i);
    int64_t W = g->b->params[cdr_graph_at(g, in[CDR__LOSS_W])->param].global.n[0];
    out[1] = cdr_graph_out(g, &call, 1) == CDR_NONE ? CDR_NONE : CDR_NEW;
    if (frozen) return cdr_loss_frozen_pieces(g, m->size[CDR_AXIS_SHARD], W, chunks, in, out);
    return cdr_loss_pieces(g, m->size[CDR_AXIS_SHARD], W, chunks, in, out);
}

cdr_status cdr__loss_shard(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, cdr_val *out, cdr_err *e)
{
    return shard(g, c, m, o, false, out, e);
}

cdr_status cdr__loss_frozen_shard(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, cdr_val *out, cdr_err *e)
{
    return shard(g, c, m, o, true, out, e);
}
