/* golden_rig.h: runs an operator's double reference, and the gradient that its record builds, on golden vectors.
 *
 *   rig r;
 *   golden_rig_open(&r, "gate");                             // of that file
 *   cdr_val y = cdr_gate(r.g, f32(&r, "o"), f32(&r, "logit"));
 *   expect_op(&r, y, "y", "dy", GRADS("do", "dlogit"));       // values, then gradients of the operands
 *   golden_rig_close(&r);
 */
#ifndef CADRE_GOLDEN_RIG_H
#define CADRE_GOLDEN_RIG_H
#include "golden.h"
#include "run/run.h"
#include "test.h"

enum { MAX_VALS = 1024 };
typedef struct {
    cdr_pool *pool; cdr_bundle bundle; cdr_err err; cdr_graph *g; cdr_oracle *o;
    cdr_val root_grad[MAX_VALS];         /* gradient of each local value that owns its bytes; CDR_NONE: none */
    golden gd;                           /* between golden_rig_open and golden_rig_close */
} rig;

static inline void rig_open(rig *r)
{
    memset(r, 0, sizeof *r);
    r->pool = cdr_pool_new();
    r->g = cdr_graph_new(r->pool, &r->bundle, "golden", &r->err);
    cdr_graph_list(r->g, "all");
    r->o = cdr_oracle_new(r->g);
    for (int i = 0; i < MAX_VALS; i++) r->root_grad[i] = CDR_NONE;
}

static inline void rig_close(rig *r)
{
    T_STR(r->err.text, "");
    cdr_oracle_free(r->o);
    cdr_pool_free(r->pool);
}

/* A value with the golden tensor in it. */
static inline cdr_val put(rig *r, const golden *gd, const char *name, int dtype)
{
    const golden_tensor *t = golden_get(gd, name);
    cdr_type ty = { .dtype = (uint8_t)dtype, .layout = CDR_ROWS, .n_dim = (uint8_t)t->n_dim };
    memcpy(ty.n, t->n, sizeof ty.n);
    cdr_val v = cdr_graph_value(r->g, ty, CDR_TURN, CDR_C_ACT, name);
    cdr_oracle_put(r->o, v, t->x);
    return v;
}

static inline void expect(rig *r, cdr_val v, const golden *gd, const char *name, double tol)
{
    const golden_tensor *t = golden_get(gd, name);
    if (r->g->failed || v < 0) {
        fprintf(stderr, "  %s: no value (%s)\n", name, r->err.text);
        t_this_failed = true;
        return;
    }
    T_CHECK(cdr_type_elems(cdr_graph_type(r->g, v)) == t->elems);
    double *x = malloc((size_t)t->elems * sizeof *x), worst = 0, scale = 0;
    cdr_oracle_get(r->o, v, x);
    for (int64_t i = 0; i < t->elems; i++) {
        double d = fabs(x[i] - t->x[i]);
        if (!(d <= worst)) worst = d;
        scale = fmax(scale, fabs(t->x[i]));
    }
    if (!(worst <= tol * scale)) {
        fprintf(stderr, "  %s of %s is off by %.3g of %.3g\n", name, gd->path, worst, scale);
        t_this_failed = true;
    }
    free(x);
}

static inline void run_all(rig *r) { T_CHECK(cdr_oracle_run(r->o, r->g->lists[0].calls, r->g->lists[0].n, &r->err) == CDR_OK); }

/* Gradient of call i, seeded at output k; all floating inputs are wanted, but for those of `not`. */
static inline void grad_of(rig *r, int64_t i, int k, cdr_val dout, uint32_t not, cdr_val *din)
{
    if (r->g->failed) return;
    cdr_call c = r->g->calls[i];
    cdr_val d[CDR_MAX_OPERANDS];
    bool want[CDR_MAX_OPERANDS];
    for (int o = 0; o < c.n_out; o++) d[o] = o == k ? dout : CDR_NONE;
    for (int j = 0; j < c.n_in; j++) {
        cdr_val v = cdr_graph_in(r->g, &c, j);
        want[j] = v != CDR_NONE && cdr_dtype_row(cdr_graph_type(r->g, v)->dtype)->floating && !((not >> j) & 1u);
        din[j] = CDR_NONE;
    }
    T_CHECK(cdr_ops[c.op]->grad(r->g, &c, d, want, din, &r->err) == CDR_OK);
}

/* Of the last call, seeded at output 0. din: CDR_MAX_OPERANDS long; operators gain operands. */
static inline void grad_of_last(rig *r, cdr_val dout, cdr_val *din) { grad_of(r, r->g->n_calls - 1, 0, dout, 0, din); }

static inline int64_t call_of(const rig *r, const cdr_op *op)
{
    int64_t i = 0;
    while (i < r->g->n_calls && cdr_ops[r->g->calls[i].op] != op) i++;
    CDR_CHECK(i < r->g->n_calls);
    return i;
}

static inline cdr_val out_of_last(rig *r, int k) { return cdr_graph_out(r->g, &r->g->calls[r->g->n_calls - 1], k); }

static const double TOL = 1e-12;

/* ---- one operator and one golden file ---- */
static inline void golden_rig_open(rig *r, const char *file)
{
    rig_open(r);
    r->gd = golden_open(file);
}

static inline void golden_rig_close(rig *r)
{
    golden_close(&r->gd);
    rig_close(r);
}

static inline cdr_val f32(rig *r, const char *name) { return put(r, &r->gd, name, CDR_F32); }
static inline cdr_val i32(rig *r, const char *name) { return put(r, &r->gd, name, CDR_I32); }
static inline void has(rig *r, cdr_val v, const char *name) { expect(r, v, &r->gd, name, TOL); }

#define GRADS(...) (const char *const[CDR_MAX_OPERANDS]){ __VA_ARGS__ }
/* The last call made y from its operands: the value, and the operands' gradients from dy; NULL: not compared. */
static inline void expect_op(rig *r, cdr_val y, const char *y_name, const char *dy, const char *const d[CDR_MAX_OPERANDS])
{
    cdr_val din[CDR_MAX_OPERANDS];
    grad_of_last(r, f32(r, dy), din);
    run_all(r);
    has(r, y, y_name);
    for (int i = 0; i < CDR_MAX_OPERANDS; i++) if (d[i]) has(r, din[i], d[i]);
}
#endif
