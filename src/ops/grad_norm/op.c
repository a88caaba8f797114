/* grad_norm: |g|^2 = sum over parameters, parts p = 0..127, elements of g_e^2                                    (1)
 *   clip = min(1, max_norm / (|g| + 1e-6)), 1 where max_norm = 0                                                 (2)
 *   ok  &= isfinite(|g|^2) and isfinite(loss)                                                                    (3)
 * A parameter of R rows (all axes but the last, flattened; the elements of a 1-D one) is cut into 128 parts, part p = rows
 * [p R / 128, (p+1) R / 128); a shard of n owns the parts [s 128 / n, (s+1) 128 / n), whole parts. One F64 partial a part (16 strided
 * F64 sums in a fixed order), added in (parameter, part) order, so the norm has the same bits on every number of shards. Parts table
 * of sharded parameters: [shard][parameter][128 / n]; stacks of experts have a table of their own, whatever the layout. Source: spec/spine.md,
 * section 5; (2) as torch.nn.utils.clip_grad_norm_.
 */
#include "ops/grad_norm/grad_norm.h"
#include <assert.h>
#include <math.h>

/* Rows of a gradient: all axes but the last, flattened; the elements of a 1-D one. */
static int64_t rows_of(const cdr_type *t) { return t->n_dim == 1 ? t->n[0] : cdr_type_rows(t); }

static cdr_status parts_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_norm_parts_attr *a = attr;
    if (n_in != a->n || a->n < 1 || a->n > CDR_NORM_MAX) CDR_FAIL(e, CDR_EINVAL, "norm_parts: %d gradients, at most %d", n_in, CDR_NORM_MAX);
    if (a->n_shard < 1 || CDR_NORM_PARTS % a->n_shard != 0)
        CDR_FAIL(e, CDR_EINVAL, "norm_parts: %d shards do not divide %d parts; use a power of two up to 128", a->n_shard, CDR_NORM_PARTS);
    for (int i = 0; i < n_in; i++) {
        if (in[i].dtype != CDR_F32) CDR_FAIL(e, CDR_EINVAL, "norm_parts: gradient %d is not F32", i);
        if (in[i].pitch != 0) CDR_FAIL(e, CDR_EINVAL, "norm_parts: gradient %d has a pitch; gradients are dense", i);
        if (in[i].n_dim < 1 || rows_of(&in[i]) != cdr_ceil_div(a->rows[i], a->n_shard))
            CDR_FAIL(e, CDR_EINVAL, "norm_parts: gradient %d has %lld rows, a shard has %lld", i, (long long)rows_of(&in[i]),
                     (long long)cdr_ceil_div(a->rows[i], a->n_shard));
    }
    *n_out = 1;
    out[0] = cdr_type_1d(CDR_F64, (int64_t)a->n * (CDR_NORM_PARTS / a->n_shard));
    return CDR_OK;
}

/* rows of part p of this shard, local */
static void part_rows(const cdr_norm_parts_attr *a, int i, int p, int64_t *first, int64_t *end)
{
    int64_t R = a->rows[i], base = a->shard * R / a->n_shard;
    int64_t gp = (int64_t)a->shard * (CDR_NORM_PARTS / a->n_shard) + p;
    *first = gp * R / CDR_NORM_PARTS - base;
    *end = (gp + 1) * R / CDR_NORM_PARTS - base;
}

static double sum_squares(const float *x, int64_t n)
{
    double s[16] = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) s[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i < n; i++, j++) s[j] += (double)x[i] * (double)x[i];
    for (int w = 8; w > 0; w /= 2)
        for (int j = 0; j < w; j++) s[j] += s[j + w];
    return s[0];
}

static cdr_status parts_run(const cdr_args *a)
{
    const cdr_norm_parts_attr *t = a->attr;
    int per = CDR_NORM_PARTS / t->n_shard;
    double *parts = a->ptr[t->n];
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int ip = 0; ip < t->n * per; ip++) {
        int i = ip / per;
        int64_t first, end, cols;
        part_rows(t, i, ip % per, &first, &end);
        parts[ip] = 0;                           /* most parts of a small parameter have no row */
        if (first == end) continue;
        cols = cdr_type_elems(&a->type[i]) / rows_of(&a->type[i]);
        parts[ip] = sum_squares((const float *)a->ptr[i] + first * cols, (end - first) * cols);
    }
    return CDR_OK;
}

static void parts_ref(const cdr_ref_args *a)
{
    const cdr_norm_parts_attr *t = a->attr;
    int per = CDR_NORM_PARTS / t->n_shard;
    for (int i = 0; i < t->n; i++)
        for (int p = 0; p < per; p++) {
            int64_t first, end, cols = cdr_type_elems(&a->type[i]) / rows_of(&a->type[i]);
            part_rows(t, i, p, &first, &end);
            double s = 0;
            for (int64_t x = first * cols; x < end * cols; x++) s += a->in[i][x] * a->in[i][x];
            a->out[0][i * per + p] = s;
        }
}

static cdr_status total_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    static const char *const table[CDR_N_NORMS] = { "sharded parameters", "whole parameters", "stacks of experts" };
    const cdr_norm_total_attr *a = attr;
    if (n_in != CDR_N_NORMS + 2) CDR_FAIL(e, CDR_EINVAL, "norm_total: takes three tables, the loss and the flag");
    if (a->n_shard < 1 || a->expert < 1 || a->n_shard % a->expert != 0 || CDR_NORM_PARTS % a->n_shard != 0)
        CDR_FAIL(e, CDR_EINVAL, "norm_total: %d shards in expert groups of %d", a->n_shard, a->expert);
    for (int i = 0; i < n_in; i++)
        if (in[i].pitch != 0) CDR_FAIL(e, CDR_EINVAL, "norm_total: operand %d has a pitch; tables are dense", i);
    for (int k = 0; k < CDR_N_NORMS; k++)
        if (!cdr_absent(&in[k]) && cdr_type_elems(&in[k]) != (int64_t)a->n[k] * CDR_NORM_PARTS) CDR_FAIL(e, CDR_EINVAL, "norm_total: table of %s", table[k]);
    *n_out = 3;
    out[0] = cdr_type_1d(CDR_F64, 4);
    out[1] = cdr_type_1d(CDR_F32, 1);
    out[2] = cdr_type_1d(CDR_I32, 1);
    return CDR_OK;
}

/* Row of the table that holds part p of a parameter of this kind */
static int row_of(const cdr_norm_total_attr *t, int kind, int p)
{
    const int per = CDR_NORM_PARTS / t->n_shard, shard = p / per, efsdp = t->n_shard / t->expert;
    return kind == CDR_NORM_EXPERTS ? shard % efsdp * t->expert + shard / efsdp : shard;
}

/* (1): kinds in their order, in each (parameter, part) order */
static double total(const cdr_norm_total_attr *t, const double *const part[CDR_N_NORMS])
{
    double s = 0;
    for (int k = 0; k < CDR_N_NORMS; k++)
        for (int i = 0; part[k] && i < t->n[k]; i++)
            for (int p = 0; p < CDR_NORM_PARTS; p++) {
                const int per = k == CDR_NORM_WHOLE ? CDR_NORM_PARTS : CDR_NORM_PARTS / t->n_shard;
                const int64_t row = k == CDR_NORM_WHOLE ? 0 : row_of(t, k, p);
                s += part[k][(row * t->n[k] + i) * per + p % per];
            }
    return s;
}

static void total_out(const cdr_norm_total_attr *t, double sum, double loss, bool was_ok, double metrics[4], double *clip, bool *ok)
{
    double norm = sqrt(sum);
    *clip = t->max_norm > 0 ? CDR_MIN(1.0, t->max_norm / (norm + 1e-6)) : 1.0;
    *ok = was_ok && isfinite(sum) && isfinite(loss);
    metrics[0] = loss;
    metrics[1] = norm;
    metrics[2] = *clip;
    metrics[3] = *ok ? 1.0 : 0.0;
}

static cdr_status total_run(const cdr_args *a)
{
    double clip;
    bool ok;
    const double *part[CDR_N_NORMS];
    for (int k = 0; k < CDR_N_NORMS; k++) part[k] = a->ptr[k];
    void *const *x = a->ptr + CDR_N_NORMS;
    double sum = total(a->attr, part);
    total_out(a->attr, sum, *(const double *)x[0], *(const int32_t *)x[1] != 0, x[2], &clip, &ok);
    *(float *)x[3] = (float)clip;
    *(int32_t *)x[4] = ok;
    return CDR_OK;
}

static void total_ref(const cdr_ref_args *a)
{
    bool ok;
    const cdr_norm_total_attr *t = a->attr;
    const double *part[CDR_N_NORMS];
    for (int k = 0; k < CDR_N_NORMS; k++) part[k] = cdr_absent(&a->type[k]) ? NULL : a->in[k];
    double sum = total(t, part);
    total_out(t, sum, a->in[CDR_N_NORMS][0], a->in[CDR_N_NORMS + 1][0] != 0.0, a->out[0], a->out[1], &ok);
    a->out[2][0] = ok;
}

static const cdr_kernel parts_kernels[] = {
    { .name = "base", .bits = "ieee", .device = CDR_DEV_CPU, .run = parts_run }, { .name = NULL }
};
static const cdr_kernel total_kernels[] = {
    { .name = "base", .bits = "ieee", .device = CDR_DEV_CPU, .run = total_run }, { .name = NULL }
};

const cdr_op cdr_op_norm_parts = {
    .name = "norm_parts", .attr_bytes = sizeof(cdr_norm_parts_attr), .infer = parts_infer, .ref = parts_ref, .kernels = parts_kernels,
};
const cdr_op cdr_op_norm_total = {
    .name = "norm_total", .flags = CDR_OP_EFFECT, .attr_bytes = sizeof(cdr_norm_total_attr), .infer = total_infer,
    .ref = total_ref, .kernels = total_kernels,
};

void cdr_norm_parts(cdr_graph *g, int n, const cdr_val *grads, const int64_t *rows, int n_shard, int shard, cdr_val parts)
{
    cdr_norm_parts_attr a = { .n = n, .n_shard = n_shard, .shard = shard };
    CDR_CHECK(n <= CDR_NORM_MAX);
    for (int i = 0; i < n; i++) a.rows[i] = rows[i];
    cdr_graph_call(g, &cdr_op_norm_parts, &a, n, grads, 1, &parts);
}

void cdr_norm_total(cdr_graph *g, const cdr_norm_tables *t, cdr_val loss_1, double max_norm, cdr_val *metrics_4, cdr_val *clip_1, cdr_val ok_1)
{
    cdr_norm_total_attr a = { .n_shard = t->n_shard, .expert = t->expert, .max_norm = max_norm };
    for (int k = 0; k < CDR_N_NORMS; k++) a.n[k] = t->n[k];
    cdr_val in[] = { t->part[0], t->part[1], t->part[2], loss_1, ok_1 }, out[] = { *metrics_4, *clip_1, ok_1 };
    cdr_graph_call(g, &cdr_op_norm_total, &a, CDR_COUNT(in), in, 3, out);
    *metrics_4 = out[0];
    *clip_1 = out[1];
}
