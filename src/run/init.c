/* init.c: first values of parameters: a pure function of (seed, the parameter's stream, global element index), so that
 * no layout and no number of ranks changes them. */
#include "run/exec.h"
#include <math.h>

/* Element i of the whole parameter. The elementary functions are in double, so that rounding to F32 hides their last bit. */
static float drawn(const cdr_param *q, cdr_rng_key key, uint64_t i)
{
    switch (q->init) {
    case CDR_INIT_ONES: return 1.0f;
    case CDR_INIT_NORMAL: return q->init_std * cdr_rng_normal(key, i);
    case CDR_INIT_UNIFORM: return q->init_std * (2.0f * cdr_rng_uniform(key, i) - 1.0f);
    case CDR_INIT_LOG_UNIFORM: return (float)log(1.0 + 15.0 * (double)cdr_rng_uniform(key, i));
    case CDR_INIT_DT_BIAS: {                               /* the inverse of softplus, without cancellation for small dt */
        double dt = fmax(1e-4, exp(log(1e-3) + (log(1e-1) - log(1e-3)) * (double)cdr_rng_uniform(key, i)));
        return (float)(dt + log(-expm1(-dt)));
    }
    default:
        CDR_CHECK(q->init == CDR_INIT_ZEROS);
        return 0.0f;
    }
}

void cdr_param_draw(const cdr_param *q, uint64_t seed, int64_t first, int64_t n, float *dst, int n_threads)
{
    cdr_rng_key key = { seed, q->rng, 0 };
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t i = 0; i < n; i++) dst[i] = drawn(q, key, (uint64_t)(first + i));
}

/* Rows of a part's memory, of which the first `rows` rows of axis 0 hold data from row `first` of the whole on; the others are zero. */
static void init_value(cdr_exec *x, const cdr_param *q, uint64_t seed)
{
    enum { CHUNK = 1 << 20 };                            /* elements: the whole may be as large as all else */
    const cdr_type *t = &x->b->shared[q->shard].t;
    const int64_t cols = cdr_type_cols(t), n_rows = cdr_type_rows(t), step = CDR_MAX((int64_t)64, CHUNK / CDR_MAX(cols, (int64_t)1) / 64 * 64);
    int64_t first, rows;
    cdr_param_rows(q, x->o.mesh, &first, &rows);
    const int64_t in_row = cdr_type_elems(&q->global) / q->global.n[0], held = rows * in_row, most = CDR_MIN(step, n_rows) * cols;
    float *wide = cdr_alloc(sizeof *wide * (size_t)CDR_MAX(most, (int64_t)1));
    char *narrow = cdr_alloc((size_t)cdr_dtype_bytes(t->dtype, most) + 1);
    for (int64_t r = 0; r < n_rows; r += step) {
        const int64_t m = CDR_MIN(step, n_rows - r), at = r * cols, n = m * cols, drawn_n = CDR_MAX(CDR_MIN(held - at, n), (int64_t)0);
        cdr_param_draw(q, seed, first * in_row + at, drawn_n, wide, x->d->n_threads);
        memset(wide + drawn_n, 0, sizeof *wide * (size_t)(n - drawn_n));
        cdr_from_f32(t->dtype, wide, narrow, n);
        cdr_exec_put_rows(x, q->shard, r, m, narrow);
        if (q->master != CDR_NONE && q->master != q->shard) cdr_exec_put_rows(x, q->master, r, m, wide);
    }
    cdr_free(wide);
    cdr_free(narrow);
}

void cdr_exec_init_param(cdr_exec *x, int32_t i_param, uint64_t seed)
{
    if (!x->b->params[i_param].mapped) init_value(x, &x->b->params[i_param], seed);      /* what a file holds: cdr_exec_map */
}

cdr_status cdr_exec_init(cdr_exec *x, uint64_t seed, cdr_err *err)
{
    (void)err;
    for (int32_t i = 0; i < x->b->n_params; i++) cdr_exec_init_param(x, i, seed);
    return CDR_OK;
}
