/* cache_write: cache[pos_t] = round_dtype(rows_t) for t < n_live (1); every other row of the cache keeps its bytes.
 * The cache is an output that is read before it is written: a row that is not named survives. Positions of live rows
 * differ from each other (one sequence), so threads never meet on a row. A position outside of the cache is a broken
 * invariant: the host that drives generation stops at the cache's end. */
#include "ops/cache_write/cache_write.h"
#include "ops/cpu.h"

void cdr_cache_write(cdr_graph *g, cdr_val cache_SC, cdr_val rows_TC, cdr_val pos_T, cdr_val n_live_1)
{
    if (g->failed) return;
    const cdr_type *t = cdr_graph_type(g, cache_SC);
    cdr_cache_write_attr attr = { .rows = cdr_type_rows(t), .dtype = t->dtype };
    cdr_val in[] = { rows_TC, pos_T, n_live_1 };
    cdr_graph_call(g, &cdr_op_cache_write, &attr, 3, in, 1, &cache_SC);
}

static cdr_status infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_cache_write_attr *at = attr;
    if (n_in != 3) CDR_FAIL(e, CDR_EINVAL, "cache_write: takes rows, positions and a live count, got %d operands", n_in);
    if (!cdr_is_real(&in[0]) || in[0].layout != CDR_ROWS || in[0].n_dim != 2)
        CDR_FAIL(e, CDR_EINVAL, "cache_write: rows must be a matrix of a float format");
    if (in[1].dtype != CDR_I32 || cdr_type_elems(&in[1]) != in[0].n[0])
        CDR_FAIL(e, CDR_EINVAL, "cache_write: positions must be I32, one a row");
    if (in[2].dtype != CDR_I32 || cdr_type_elems(&in[2]) != 1) CDR_FAIL(e, CDR_EINVAL, "cache_write: the live count must be one I32");
    if (at->rows < 1 || at->dtype < 0 || at->dtype >= CDR_N_DTYPES) CDR_FAIL(e, CDR_EINVAL, "cache_write: the cache has no rows or no number format");
    out[0] = cdr_type_2d(at->dtype, at->rows, in[0].n[1]);
    if (!cdr_is_real(&out[0])) CDR_FAIL(e, CDR_EINVAL, "cache_write: the cache must be of a float format");
    *n_out = 1;
    return CDR_OK;
}

static cdr_cost cost(const void *attr, int n_in, int n_out, const cdr_type *t)     /* only T rows of the cache are written */
{
    (void)attr, (void)n_in, (void)n_out;
    double bytes = (double)cdr_dtype_bytes(t[3].dtype, t[0].n[0] * t[0].n[1]);
    return (cdr_cost){ .read = (double)cdr_type_bytes(&t[0]), .write = bytes };
}

static const cdr_kernel kernels[] = {
    { .name = "base", .bits = "copy", .device = CDR_DEV_CPU, .work_bytes = cdr__cache_write_work, .run = cdr__cache_write_base },
    { .name = NULL }
};

const cdr_op cdr_op_cache_write = {
    .name = "cache_write", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_cache_write_attr), .rmw = 1,
    .infer = infer, .cost = cost, .ref = cdr__cache_write_ref, .kernels = kernels
};
