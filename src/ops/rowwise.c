/* rowwise.c: see rowwise.h. */
#include "ops/rowwise.h"
#include "ops/cpu.h"
#include "ops/vector_simd.h"

cdr_status cdr__rows_alike(const char *op, int n_in, int want_in, const cdr_type *in, cdr_err *e)
{
    if (n_in != want_in) CDR_FAIL(e, CDR_EINVAL, "%s: takes %d operands, got %d", op, want_in, n_in);
    for (int i = 0; i < n_in; i++) {
        if (!cdr_is_real(&in[i]) || in[i].layout != CDR_ROWS)
            CDR_FAIL(e, CDR_EINVAL, "%s: operand %d must be rows of a float format", op, i);
        if (!cdr_same_shape(&in[i], &in[0])) CDR_FAIL(e, CDR_EINVAL, "%s: operand %d has another shape than operand 0", op, i);
    }
    return CDR_OK;
}

cdr_status cdr__rows_alike_bwd(const char *op, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    CDR_TRY(cdr__rows_alike(op, n_in, 3, in, e));
    *n_out = 2;
    out[0] = cdr_dense_like(&in[1], in[1].dtype);
    out[1] = cdr_dense_like(&in[2], in[2].dtype);
    return CDR_OK;
}

cdr_status cdr__rows_and_gain(const char *op, const cdr_type *x, const cdr_type *w, cdr_err *e)
{
    if (!cdr_is_real(x) || !cdr_is_real(w)) CDR_FAIL(e, CDR_EINVAL, "%s: x and the gain must be numbers of a float format", op);
    if (x->layout != CDR_ROWS || w->layout != CDR_ROWS) CDR_FAIL(e, CDR_EINVAL, "%s: x and the gain must lie in rows", op);
    if (x->n_dim < 1 || cdr_type_cols(x) < 1) CDR_FAIL(e, CDR_EINVAL, "%s: x has no axis to normalise", op);
    if (w->n_dim != 1 || w->n[0] != cdr_type_cols(x))
        CDR_FAIL(e, CDR_EINVAL, "%s: gain has %lld elements, x has D = %lld", op, (long long)cdr_type_elems(w), (long long)cdr_type_cols(x));
    return CDR_OK;
}

cdr_status cdr__grad_of_two(cdr_graph *g, const cdr_call *c, const cdr_op *bwd, const cdr_val *dout, const bool *want, cdr_val *din)
{
    if (dout[0] == CDR_NONE) return CDR_OK;
    cdr_val in[] = { dout[0], cdr_graph_in(g, c, 0), cdr_graph_in(g, c, 1) };
    cdr_val out[] = { want[0] ? CDR_NEW : CDR_NONE, want[1] ? CDR_NEW : CDR_NONE };
    /* the graph's bytes of attributes may move while they are copied; the pool keeps the old ones */
    if (cdr_graph_call(g, bwd, bwd->attr_bytes ? cdr_graph_attr(g, c) : NULL, 3, in, 2, out) < 0) return CDR_EINVAL;
    din[0] = out[0];
    din[1] = out[1];
    return CDR_OK;
}

cdr_cost cdr__cost_of(double flop, int n_in, int n_out, const cdr_type *t)
{
    cdr_cost c = { .flop = flop };
    for (int i = 0; i < n_in; i++) if (!cdr_absent(&t[i])) c.read += (double)cdr_type_bytes(&t[i]);
    for (int i = n_in; i < n_in + n_out; i++) if (!cdr_absent(&t[i])) c.write += (double)cdr_type_bytes(&t[i]);
    return c;
}

cdr_status cdr__rows_forward(const cdr_args *a, int i_out, cdr__row_forward f)
{
    const int64_t T = cdr_type_rows(&a->type[0]);
    const bool stream = cdr_streams(&a->type[i_out]);
    assert(a->ptr[i_out]);
#pragma omp parallel num_threads(a->lane->n_threads)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) f(a, t, stream);
        if (stream) cdr_stream_end();
    }
    return CDR_OK;
}

cdr_status cdr__rows_backward(const cdr_args *a, cdr__row_backward f)
{
    const int64_t T = cdr_type_rows(&a->type[0]);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < T; t++) f(a, t);
    return CDR_OK;
}
