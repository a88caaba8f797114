/* oracle.c: the double-precision interpreter of a graph: what every kernel, every gradient and the whole program are
 * compared with. One array of doubles for each value that owns its bytes; a view is a strided window into its root's.
 * A reference sees dense operands, so windows are copied in and out. Slow and plain on purpose. */
#include "run/run.h"

struct cdr_oracle {
    const cdr_graph *g;
    double **local, **shared;            /* by value id; NULL: not touched yet */
    int64_t n_local, n_shared;
};

/* Where a value's elements lie: row r begins at at + r * pitch in base. */
typedef struct { double *base; int64_t at, pitch, rows, cols; } window;

cdr_oracle *cdr_oracle_new(const cdr_graph *g)
{
    cdr_oracle *o = cdr_alloc(sizeof *o);
    *o = (cdr_oracle){ .g = g };
    return o;
}

static void free_all(double **p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) cdr_free(p[i]);
    cdr_free(p);
}

void cdr_oracle_free(cdr_oracle *o)
{
    if (!o) return;
    free_all(o->local, o->n_local);
    free_all(o->shared, o->n_shared);
    cdr_free(o);
}

/* Makes room for ids up to i; returns the slot of i. */
static double **slot(double ***arr, int64_t *n, int64_t i)
{
    if (i >= *n) {
        int64_t cap = CDR_MAX(i + 1, 2 * *n);
        double **more = cdr_alloc((size_t)cap * sizeof *more);
        if (*n > 0) memcpy(more, *arr, (size_t)*n * sizeof *more);
        for (int64_t k = *n; k < cap; k++) more[k] = NULL;
        cdr_free(*arr);
        *arr = more;
        *n = cap;
    }
    return &(*arr)[i];
}

static double *storage(cdr_oracle *o, cdr_val root)
{
    double **p = root < CDR_LOCAL0 ? slot(&o->shared, &o->n_shared, root) : slot(&o->local, &o->n_local, root - CDR_LOCAL0);
    if (!*p) {
        const cdr_type *t = cdr_graph_type(o->g, root);
        int64_t n = CDR_MAX(1, cdr_type_rows(t)) * cdr_type_pitch(t);
        *p = cdr_alloc((size_t)CDR_MAX(n, 1) * sizeof(double));
        memset(*p, 0xff, (size_t)CDR_MAX(n, 1) * sizeof(double));      /* NaN */
    }
    return *p;
}

static window window_of(cdr_oracle *o, cdr_val v)
{
    const cdr_type *t = cdr_graph_type(o->g, v);
    window w = { .pitch = cdr_type_pitch(t), .rows = cdr_type_rows(t), .cols = cdr_type_cols(t) };
    const cdr_dtype_info *format = cdr_dtype_row(t->dtype);
    int64_t at_bytes = 0;
    while (cdr_graph_at(o->g, v)->alias != CDR_NONE) {
        at_bytes += cdr_graph_at(o->g, v)->alias_at;
        v = cdr_graph_at(o->g, v)->alias;
        const cdr_dtype_info *of = cdr_dtype_row(cdr_graph_type(o->g, v)->dtype);
        CDR_CHECK(of->block_bytes == format->block_bytes && of->block_elems == format->block_elems);     /* no view changes the element's size */
    }
    CDR_CHECK(at_bytes % format->block_bytes == 0);
    w.at = at_bytes / format->block_bytes * format->block_elems;
    w.base = storage(o, v);
    return w;
}

void cdr_oracle_put(cdr_oracle *o, cdr_val v, const double *dense)
{
    window w = window_of(o, v);
    for (int64_t r = 0; r < w.rows; r++) memcpy(w.base + w.at + r * w.pitch, dense + r * w.cols, (size_t)w.cols * sizeof(double));
}

void cdr_oracle_get(cdr_oracle *o, cdr_val v, double *dense)
{
    window w = window_of(o, v);
    for (int64_t r = 0; r < w.rows; r++) memcpy(dense + r * w.cols, w.base + w.at + r * w.pitch, (size_t)w.cols * sizeof(double));
}

cdr_status cdr_oracle_call(cdr_oracle *o, const cdr_op *op, const cdr_call *c, cdr_err *err)
{
    if (op->flags & CDR_OP_VIEW) return CDR_OK;            /* the output's bytes are the input's */
    if (!op->ref) CDR_FAIL(err, CDR_EINVAL, "%s: has no double reference", op->name);
    int n = c->n_in + c->n_out;
    cdr_type type[CDR_MAX_OPERANDS];
    double *dense[CDR_MAX_OPERANDS] = { NULL };
    for (int i = 0; i < n; i++) {
        cdr_val v = o->g->operands[c->arg + (uint32_t)i];
        if (v == CDR_NONE) {
            type[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
            continue;
        }
        type[i] = *cdr_graph_type(o->g, v);
        type[i].pitch = 0;
        dense[i] = cdr_alloc((size_t)CDR_MAX(cdr_type_elems(&type[i]), 1) * sizeof(double));
        int k = i - c->n_in;
        if (k < 0 || ((op->rmw >> k) & 1u)) cdr_oracle_get(o, v, dense[i]);
    }
    cdr_ref_args a = { .attr = cdr_graph_attr(o->g, c), .n_in = c->n_in, .n_out = c->n_out, .type = type,
                       .in = (const double *const *)dense, .out = dense + c->n_in };
    op->ref(&a);
    for (int k = 0; k < c->n_out; k++) {
        cdr_val v = cdr_graph_out(o->g, c, k);
        double *d = dense[c->n_in + k];
        if (v == CDR_NONE) continue;
        if ((c->add >> k) & 1u) {
            int64_t m = cdr_type_elems(&type[c->n_in + k]);
            double *old = cdr_alloc((size_t)CDR_MAX(m, 1) * sizeof(double));
            cdr_oracle_get(o, v, old);
            for (int64_t i = 0; i < m; i++) d[i] += old[i];
            cdr_free(old);
        }
        cdr_oracle_put(o, v, d);
    }
    for (int i = 0; i < n; i++) cdr_free(dense[i]);
    return CDR_OK;
}

cdr_status cdr_oracle_run(cdr_oracle *o, const int32_t *calls, int64_t n, cdr_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        const cdr_call *c = &o->g->calls[calls[i]];
        CDR_TRY(cdr_oracle_call(o, cdr_ops[c->op], c, err));
    }
    return CDR_OK;
}
