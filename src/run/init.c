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

/* values [first, first + n) of parameter q, global element indices */
static void draw(const cdr_param *q, uint64_t seed, int64_t first, int64_t n, float *dst, int n_threads)
{
    cdr_rng_key key = { seed, q->rng, 0 };
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t i = 0; i < n; i++) dst[i] = drawn(q, key, (uint64_t)(first + i));
}

cdr_status cdr_exec_init(cdr_exec *x, uint64_t seed, cdr_err *err)
{
    (void)err;
    for (int32_t i = 0; i < x->b->n_params; i++) {
        const cdr_param *q = &x->b->params[i];
        const cdr_value *shard = &x->b->shared[q->shard];
        int64_t n = cdr_type_elems(&shard->t), cols = cdr_type_elems(&q->global) / q->global.n[0], first, rows;
        cdr_param_rows(q, x->o.mesh, &first, &rows);
        float *wide = cdr_alloc(sizeof *wide * (size_t)n);
        char *narrow = cdr_alloc((size_t)cdr_dtype_bytes(shard->t.dtype, n));
        memset(wide, 0, sizeof *wide * (size_t)n);
        draw(q, seed, first * cols, rows * cols, wide, x->d->n_threads);
        cdr_from_f32(shard->t.dtype, wide, narrow, n);
        cdr_exec_put_run(x, q->shard, narrow, (size_t)cdr_dtype_bytes(shard->t.dtype, n));
        if (q->master != CDR_NONE && q->master != q->shard) cdr_exec_put_run(x, q->master, wide, sizeof *wide * (size_t)n);
        cdr_free(wide);
        cdr_free(narrow);
    }
    return CDR_OK;
}
