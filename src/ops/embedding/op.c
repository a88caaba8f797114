/* embedding: x_t = w[token_t]; then x[place_f] = feat_f                                                (1)
 * backward:  dw_w = sum of dy_t over the t ascending with token_t = w that no feature replaced         (2)
 *            dfeat_f = dy[place_f]                                                                     (3)
 * tokens, place: I32, inside the table and the rows (whoever reads the data bounds them; places are distinct).
 * x has the dtype of w. Precision: (1), (3) copy or convert; (2) sums in F32.
 * Source: (1) by definition; (2), (3) derived, checked by finite differences. */
#include "ops/embedding/embedding.h"

cdr_val cdr_embedding(cdr_graph *g, cdr_val tokens_T, cdr_val w_WD, cdr_val feat_FD, cdr_val place_F)
{
    const cdr_val in[] = { tokens_T, w_WD, feat_FD, place_F };
    return cdr_graph_call1(g, &cdr_op_embedding, NULL, 4, in);
}

static bool is_index(const cdr_type *t) { return t->dtype == CDR_I32 && t->n_dim == 1; }
static bool is_rows(const cdr_type *t)
{
    return !cdr_absent(t) && t->n_dim == 2 && t->layout == CDR_ROWS && (t->dtype == CDR_F32 || t->dtype == CDR_BF16);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    (void)attr;
    if (n_in != 4) CDR_FAIL(e, CDR_EINVAL, "embedding: takes 4 inputs (tokens, table, features, places), has %d", n_in);
    const cdr_type *tokens = &in[0], *w = &in[1], *feat = &in[2], *place = &in[3];
    if (!is_index(tokens)) CDR_FAIL(e, CDR_EINVAL, "embedding: tokens must be i32 of one dimension");
    if (!is_rows(w)) CDR_FAIL(e, CDR_EINVAL, "embedding: the table must be a matrix of f32 or bf16, in rows");
    if (cdr_absent(feat) != cdr_absent(place)) CDR_FAIL(e, CDR_EINVAL, "embedding: features and places come together; one of them is absent");
    if (!cdr_absent(feat)) {
        if (!is_rows(feat)) CDR_FAIL(e, CDR_EINVAL, "embedding: features must be a matrix of f32 or bf16, in rows");
        if (!is_index(place)) CDR_FAIL(e, CDR_EINVAL, "embedding: places must be i32 of one dimension");
        if (feat->n[0] != place->n[0])
            CDR_FAIL(e, CDR_EINVAL, "embedding: %lld rows of features, but %lld places", (long long)feat->n[0], (long long)place->n[0]);
        if (feat->n[1] != w->n[1])
            CDR_FAIL(e, CDR_EINVAL, "embedding: features have %lld columns, the table has D = %lld", (long long)feat->n[1], (long long)w->n[1]);
        if (feat->n[0] > tokens->n[0])
            CDR_FAIL(e, CDR_EINVAL, "embedding: %lld rows of features for T = %lld rows", (long long)feat->n[0], (long long)tokens->n[0]);
    }
    *n_out = 1;
    out[0] = cdr_type_2d(w->dtype, tokens->n[0], w->n[1]);
    return CDR_OK;
}

static cdr_status grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    (void)e;
    if (dout[0] == CDR_NONE) return CDR_OK;
    const cdr_val in[] = { dout[0], cdr_graph_in(g, c, 0), cdr_graph_in(g, c, 3) };
    cdr_val out[] = { want[1] ? CDR_NEW : CDR_NONE, want[2] ? CDR_NEW : CDR_NONE };
    const cdr_type *w = cdr_graph_type(g, cdr_graph_in(g, c, 1));
    const cdr_embedding_bwd_attr attr = { .table_rows = w->n[0], .feat_dtype = w->dtype };
    if (cdr_graph_call(g, &cdr_op_embedding_bwd, &attr, 3, in, 2, out) < 0) return CDR_EINVAL;
    din[1] = out[0];
    din[2] = out[1];
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out;
    const double x_bytes = (double)cdr_type_bytes(&t[4]);
    return (cdr_cost){ .read = x_bytes + (double)cdr_type_bytes(&t[0]), .write = x_bytes };      /* the rows read, not the table */
}

static cdr_status infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_embedding_bwd_attr *a = attr;
    if (n_in != 3) CDR_FAIL(e, CDR_EINVAL, "embedding_bwd: takes 3 inputs (dy, tokens, places), has %d", n_in);
    const cdr_type *dy = &in[0], *tokens = &in[1], *place = &in[2];
    if (!is_rows(dy)) CDR_FAIL(e, CDR_EINVAL, "embedding_bwd: dy must be a matrix of f32 or bf16, in rows");
    if (a->table_rows < 1) CDR_FAIL(e, CDR_EINVAL, "embedding_bwd: a table of %lld rows", (long long)a->table_rows);
    if (!is_index(tokens)) CDR_FAIL(e, CDR_EINVAL, "embedding_bwd: tokens must be i32 of one dimension");
    if (!cdr_absent(place) && !is_index(place)) CDR_FAIL(e, CDR_EINVAL, "embedding_bwd: places must be i32 of one dimension");
    if (dy->n[0] != tokens->n[0])
        CDR_FAIL(e, CDR_EINVAL, "embedding_bwd: dy has %lld rows, expected T = %lld", (long long)dy->n[0], (long long)tokens->n[0]);
    *n_out = 2;
    out[0] = cdr_type_2d(CDR_F32, a->table_rows, dy->n[1]);
    out[1] = cdr_type_2d(a->feat_dtype, cdr_absent(place) ? 0 : place->n[0], dy->n[1]);
    return CDR_OK;
}

static cdr_cost cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out;
    cdr_cost c = { .read = (double)cdr_type_bytes(&t[0]) + (double)cdr_type_bytes(&t[1]) };
    if (!cdr_absent(&t[3])) {
        c.flop = (double)cdr_type_elems(&t[0]);
        c.write += (double)cdr_type_bytes(&t[3]);
    }
    if (!cdr_absent(&t[4])) c.write += (double)cdr_type_bytes(&t[4]);
    return c;
}

static const cdr_kernel kernels[] = {
    { .name = "avx2", .bits = "copy", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .run = cdr__embedding_avx2 },
    { .name = "base", .bits = "copy", .device = CDR_DEV_CPU, .run = cdr__embedding_base },
    { .name = NULL }
};
static const cdr_kernel kernels_bwd[] = {
    { .name = "avx2", .bits = "base", .device = CDR_DEV_CPU, .needs = CDR_ISA_AVX2, .work_bytes = cdr__embedding_bwd_work, .run = cdr__embedding_bwd_avx2 },
    { .name = "base", .bits = "base", .device = CDR_DEV_CPU, .work_bytes = cdr__embedding_bwd_work, .run = cdr__embedding_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_embedding = {
    .name = "embedding", .flags = CDR_OP_ROWWISE,
    .infer = infer, .grad = grad, .cost = cost, .ref = cdr__embedding_ref, .kernels = kernels
};

const cdr_op cdr_op_embedding_bwd = {
    .name = "embedding_bwd", .flags = CDR_OP_PARAM_GRAD, .attr_bytes = sizeof(cdr_embedding_bwd_attr), .optional = 3,
    .infer = infer_bwd, .cost = cost_bwd, .ref = cdr__embedding_bwd_ref, .kernels = kernels_bwd
};
