/* fill: y_i = x for every element i of y, x an attribute that y's format represents exactly.                         (1)
 * Bound: memory, one write. */
#include "ops/fill/fill.h"

void cdr_fill_value(cdr_graph *g, cdr_val y, double x)
{
    if (g->failed || y == CDR_NONE) return;
    cdr_fill_attr a;
    memset(&a, 0, sizeof a);                                 /* attributes are compared by bytes */
    a.t = *cdr_graph_type(g, y);
    a.x = x;
    cdr_graph_call(g, &cdr_op_fill, &a, 0, NULL, 1, &y);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_fill_attr *a = attr;
    (void)in;
    if (n_in != 0) CDR_FAIL(e, CDR_EINVAL, "fill: takes no operand, got %d", n_in);
    if (a->t.pitch != 0 || cdr_dtype_row(a->t.dtype)->block_elems != 1) CDR_FAIL(e, CDR_EINVAL, "fill: takes dense values of one number an element");
    out[0] = a->t;
    *n_out = 1;
    return CDR_OK;
}

static void ref(const cdr_ref_args *a)
{
    const cdr_fill_attr *at = a->attr;
    for (int64_t i = 0; i < cdr_type_elems(&at->t); i++) a->out[0][i] = at->x;
}

static cdr_status run(const cdr_args *a)
{
    const cdr_fill_attr *at = a->attr;
    const cdr_type *t = &a->type[0];
    int64_t cols = cdr_type_cols(t), bytes = cdr_dtype_bytes(t->dtype, 1), pitch = cdr_type_pitch(t) * bytes;
    char one[8];
    cdr_from_f64(t->dtype, &at->x, one, 1);
    for (int64_t r = 0; r < cdr_type_rows(t); r++) {
        char *y = (char *)a->ptr[0] + r * pitch;
        if (at->x == 0) memset(y, 0, (size_t)(cols * bytes));
        for (int64_t i = 0; i < cols && at->x != 0; i++) memcpy(y + i * bytes, one, (size_t)bytes);
    }
    return CDR_OK;
}

static const cdr_kernel kernels[] = {
    { .name = "base", .bits = "exact", .device = CDR_DEV_CPU, .run = run },
    { .name = NULL }
};

const cdr_op cdr_op_fill = {
    .name = "fill", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_fill_attr), .infer = infer, .ref = ref, .kernels = kernels
};
