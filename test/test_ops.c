/* test_ops.c: every operator against its table of cases; the harness against operators that are wrong on purpose; the
 * double references and gradients against vectors from an independent script (tools/golden_ops.py), up to a whole tiny
 * dense model with ten AdamW steps. */
#include "golden_rig.h"
#include "ops/adamw/adamw.h"
#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/copy/copy.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"
#include "run/bench.h"
#include "run/run.h"
#include "test.h"

/* ---- the operators ------------------------------------------------------------------------------------------------ */
static void operators_pass_their_cases(void)
{
    cdr_err e = { CDR_OK, "", "" };
    cdr_check_sum sum;
    cdr_text report = { 0 };
    uint32_t isa = cdr_cpu_isa(&e);
    cdr_status st = cdr_check_op("", isa, t_quick(), 2, &sum, &report, &e);
    if (report.s) fputs(report.s, stdout);
    T_CHECK(st == CDR_OK);
    T_CHECK(sum.n_failed == 0 && sum.n_cases > 100);
    int n_skipped = 0;                                     /* collectives and views, and nothing else */
    for (int i = 0; cdr_ops[i]; i++) n_skipped += (cdr_ops[i]->flags & (CDR_OP_COLLECTIVE | CDR_OP_VIEW)) ? 1 : 0;
    T_CHECK(sum.n_skipped == n_skipped);
    cdr_text_free(&report);
}

static void unknown_operator_is_refused(void)
{
    cdr_err e = { CDR_OK, "", "" };
    cdr_check_sum sum;
    cdr_text report = { 0 };
    T_CHECK(cdr_check_op("rmsnrom", 0, true, 1, &sum, &report, &e) == CDR_EUSER);
    T_STR(e.id, "check.unknown-op");
    T_HAS(e.text, "rmsnorm");
    cdr_text_free(&report);
}

/* ---- an operator that can be wrong in each way that the harness is there to see: y = 2 x ----------------------------- */
typedef enum {
    RIGHT, WRONG_VALUE, NO_ADD, NOT_WRITTEN, PAST_END, BEFORE_BEGIN, IN_GAP, IN_INPUT, PAST_SCRATCH, READS_SCRATCH, BY_THREADS, BY_CLASS,
    WRONG_GRAD, NO_GRAD, WRONG_REF, BAD_STATUS, REJECTS, INFER_FAILS, PROPERTY_FAILS
} how;
typedef struct { how fault; } twice_attr;

static cdr_status twice_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const twice_attr *at = attr;
    if (n_in != 1 || at->fault == INFER_FAILS) CDR_FAIL(e, CDR_EINVAL, "twice: refused");
    *n_out = 1;
    out[0] = in[0];
    out[0].pitch = 0;
    return CDR_OK;
}

static cdr_status twice_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    const twice_attr *at = cdr_graph_attr(g, c);
    (void)e;
    if (!want[0] || at->fault == NO_GRAD) return CDR_OK;
    din[0] = at->fault == WRONG_GRAD ? dout[0] : cdr_add(g, dout[0], dout[0]);
    return CDR_OK;
}

static void twice_ref(const cdr_ref_args *a)
{
    const twice_attr *at = a->attr;
    for (int64_t i = 0; i < cdr_type_elems(&a->type[0]); i++) a->out[0][i] = (at->fault == WRONG_REF ? 2.001 : 2.0) * a->in[0][i];
}

static size_t twice_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)attr, (void)n_in, (void)n_out, (void)t, (void)n_threads;
    return 60;
}

static const char *twice_reject(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)n_in, (void)n_out, (void)t;
    return ((const twice_attr *)attr)->fault == REJECTS ? "on purpose" : NULL;
}

static cdr_status twice_run(const cdr_args *a)
{
    how f = ((const twice_attr *)a->attr)->fault;
    int64_t rows = cdr_type_rows(&a->type[0]), cols = cdr_type_cols(&a->type[0]), px = cdr_type_pitch(&a->type[0]), py = cdr_type_pitch(&a->type[1]);
    float *x = a->ptr[0], *y = a->ptr[1], *work = a->work;
    bool add = (a->add & 1) != 0 && f != NO_ADD;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            if (f == NOT_WRITTEN && r == rows - 1 && i == 2) continue;
            float twice = 2.0f * x[r * px + i];
            y[r * py + i] = add ? y[r * py + i] + twice : twice;
        }
    if (f == WRONG_VALUE) y[3] += 0.01f;
    if (f == PAST_END) y[(rows - 1) * py + cols] = 0;
    if (f == BEFORE_BEGIN) y[-1] = 0;
    if (f == IN_GAP && py > cols) y[cols + 1] = 0;
    if (f == IN_INPUT) x[0] = 0;
    if (f == PAST_SCRATCH) work[15] = 0;
    if (f == READS_SCRATCH) y[0] += work[3];
    if (f == BY_THREADS && a->lane->n_threads > 1) y[1] *= 1.0000002f;
    return f == BAD_STATUS ? CDR_ENUMERIC : CDR_OK;
}

/* a second kernel, which claims the bits of the first */
static cdr_status twice_run_other(const cdr_args *a)
{
    cdr_status st = twice_run(a);
    if (((const twice_attr *)a->attr)->fault == BY_CLASS) ((float *)a->ptr[1])[1] *= 1.0000002f;
    return st;
}

static const char *twice_property(const cdr_args *a)
{
    return ((const twice_attr *)a->attr)->fault == PROPERTY_FAILS ? "on purpose" : NULL;
}

static const cdr_kernel twice_kernels[] = {
    { .name = "first", .bits = "twice", .device = CDR_DEV_CPU, .reject = twice_reject, .work_bytes = twice_work, .run = twice_run },
    { .name = "second", .bits = "twice", .device = CDR_DEV_CPU, .reject = twice_reject, .work_bytes = twice_work, .run = twice_run_other },
    { .name = NULL }
};
static const cdr_op twice_op = { .name = "twice", .attr_bytes = sizeof(twice_attr), .add_ok = 1, .infer = twice_infer, .grad = twice_grad,
                                 .ref = twice_ref, .kernels = twice_kernels };

/* Runs the harness on y = 2 x with one fault; the report must hold `words` (NULL: nothing may be found). */
static void expect_fault(how fault, const char *words)
{
    twice_attr attr = { fault };
    const cdr_case cases[] = {
        { .name = "5x7", .op = &twice_op, .attr = &attr, .n_in = 1, .in = { { .dtype = CDR_F32, .n_dim = 2, .n = { 5, 7 } } },
          .fill = { { 'n', 1, 0 } }, .grad = 1, .tol = 1e-6, .property = twice_property },
        { .name = NULL }
    };
    cdr_err e = { CDR_OK, "", "" };
    cdr_check_sum sum;
    cdr_text report = { 0 };
    cdr_status st = cdr_check_cases(cases, 0, true, 2, &sum, &report, &e);
    T_CHECK(sum.n_cases == 1);
    if (words) {
        T_CHECK(st == CDR_EUSER && sum.n_failed == 1);
        T_STR(e.id, "check.fault");
        T_HAS(report.s, words);
    } else {
        T_CHECK(st == CDR_OK && sum.n_failed == 0);
        T_HAS(report.s, "1 cases: value ok (worst ");
        T_HAS(report.s, "), gradient ok (worst ");
        T_HAS(report.s, "canaries ok, 1 = 2 threads bit-equal");
    }
    cdr_text_free(&report);
}

static void harness_passes_a_right_operator(void) { expect_fault(RIGHT, NULL); }
static void harness_sees_a_wrong_value(void) { expect_fault(WRONG_VALUE, "output 0 differs by"); }
static void harness_sees_a_wrong_reference(void) { expect_fault(WRONG_REF, "output 0 differs by"); }
static void harness_sees_an_ignored_add_bit(void) { expect_fault(NO_ADD, "dense, added: output 0 differs by"); }
static void harness_sees_a_missing_write(void) { expect_fault(NOT_WRITTEN, "output 0 has 1 elements of 35 that are NaN"); }
static void harness_sees_written_canaries(void)
{
    expect_fault(PAST_END, "wrote outside of output 0, at byte 140 of 140");
    expect_fault(BEFORE_BEGIN, "wrote outside of output 0, at byte -");
    expect_fault(IN_GAP, "wrote between the columns and the pitch of output 0");
    expect_fault(IN_INPUT, "wrote into input 0");
    expect_fault(PAST_SCRATCH, "wrote outside of its scratch, at byte 60 of 60");
}
static void harness_sees_scratch_that_is_read_first(void) { expect_fault(READS_SCRATCH, "output 0 has 1 elements of 35 that are NaN"); }
static void harness_sees_bits_that_depend_on_threads(void) { expect_fault(BY_THREADS, "output 0 has other bits with 2 threads than with 1"); }
static void harness_sees_kernels_of_a_class_that_differ(void) { expect_fault(BY_CLASS, "other bits than kernel first of the same class twice"); }
static void harness_sees_wrong_gradients(void)
{
    expect_fault(WRONG_GRAD, "finite differences give");
    expect_fault(NO_GRAD, "grad leaves input 0 without a gradient");
}
static void harness_sees_other_faults(void)
{
    expect_fault(BAD_STATUS, "returned status 4");
    expect_fault(REJECTS, "no kernel takes it");
    expect_fault(INFER_FAILS, "infer refuses the case: twice: refused");
    expect_fault(PROPERTY_FAILS, "property does not hold: on purpose");
}

static void harness_refuses_what_it_cannot_check(void)
{
    cdr_op no_ref = twice_op, no_grad_case = twice_op;
    no_ref.ref = NULL;
    twice_attr attr = { RIGHT };
    cdr_case cases[] = { { .name = "5x7", .attr = &attr, .n_in = 1, .in = { { .dtype = CDR_F32, .n_dim = 2, .n = { 5, 7 } } },
                           .fill = { { 'n', 1, 0 } }, .tol = 1e-6 }, { .name = NULL } };
    const cdr_op *op[] = { &no_ref, &no_grad_case };
    static const char *const words[] = { "has no double reference", "has a gradient, but no case checks it" };
    for (int i = 0; i < 2; i++) {
        cdr_err e = { CDR_OK, "", "" };
        cdr_check_sum sum;
        cdr_text report = { 0 };
        cases[0].op = op[i];
        T_CHECK(cdr_check_cases(cases, 0, true, 2, &sum, &report, &e) == CDR_EUSER);
        T_CHECK(sum.n_failed == 1);
        T_HAS(report.s, words[i]);
        cdr_text_free(&report);
    }
}

/* ---- goldens ------------------------------------------------------------------------------------------------------------ */
static void golden_embedding(void)
{
    rig r;
    golden_rig_open(&r, "embedding");
    cdr_val y = cdr_embedding(r.g, i32(&r, "tokens"), f32(&r, "w"), f32(&r, "feat"), i32(&r, "place"));
    expect_op(&r, y, "y", "dy", GRADS(NULL, "dw", "dfeat"));
    golden_rig_close(&r);
}

static void golden_linear(void)
{
    rig r;
    golden_rig_open(&r, "linear");
    cdr_val y = cdr_linear(r.g, f32(&r, "x"), f32(&r, "w"));
    expect_op(&r, y, "y", "dy", GRADS("dx", "dw"));
    golden_rig_close(&r);
}

static void golden_rmsnorm(void)
{
    rig r;
    golden_rig_open(&r, "rmsnorm");
    cdr_val y = cdr_rmsnorm(r.g, f32(&r, "x"), f32(&r, "w"), 1e-5f), rt = out_of_last(&r, 1);
    expect_op(&r, y, "y", "dy", GRADS("dx", "dw"));
    has(&r, rt, "r");
    golden_rig_close(&r);
}

static void golden_rope(void)
{
    for (int inter = 0; inter < 2; inter++) {
        rig r;
        golden_rig_open(&r, "rope");
        cdr_rope_attr at = { .heads = 3, .nope = 3, .ext = 6, .theta = 10000.0f, .interleaved = inter };
        cdr_val y = cdr_rope(r.g, f32(&r, "x"), i32(&r, "pos"), i32(&r, "start"), &at);
        expect_op(&r, y, inter ? "y_interleaved" : "y_half", "dy", GRADS(inter ? "dx_interleaved" : "dx_half"));
        golden_rig_close(&r);
    }
}

static void golden_attention_packed(void)
{
    for (int ext = 0; ext <= 2; ext += 2) {
        rig r;
        golden_rig_open(&r, "attention");
        cdr_attention_attr at = { .heads = 2, .nope = 4, .ext = ext, .v = 3, .scale = (float)pow(4 + ext, -0.5) };
        cdr_val q = f32(&r, ext ? "q_ext2" : "q_ext0"), kv = f32(&r, ext ? "kv_ext2" : "kv_ext0");
        cdr_val kr = ext ? f32(&r, "kr_ext2") : CDR_NONE;
        cdr_val o = cdr_attention(r.g, q, kv, kr, i32(&r, "start"), i32(&r, "pos"), &at), lse = out_of_last(&r, 2);
        if (ext) expect_op(&r, o, "o_ext2", "do_ext2", GRADS("dq_ext2", "dkv_ext2", "dkr_ext2"));
        else expect_op(&r, o, "o_ext0", "do_ext0", GRADS("dq_ext0", "dkv_ext0"));
        has(&r, lse, ext ? "lse_ext2" : "lse_ext0");
        golden_rig_close(&r);
    }
}

static void golden_attention_cache(void)
{
    rig r;
    golden_rig_open(&r, "attention");
    cdr_attention_attr at = { .heads = 2, .nope = 4, .ext = 2, .v = 3, .scale = (float)pow(6, -0.5) };
    cdr_val o = cdr_attention(r.g, f32(&r, "q_gen"), f32(&r, "kv_gen"), f32(&r, "kr_gen"), i32(&r, "start_gen"),
                              i32(&r, "pos_gen"), &at);
    run_all(&r);
    has(&r, o, "o_gen");
    golden_rig_close(&r);
}

static void golden_swiglu(void)
{
    rig r;
    golden_rig_open(&r, "swiglu");
    cdr_val y = cdr_swiglu(r.g, f32(&r, "gate"), f32(&r, "up"));
    expect_op(&r, y, "y", "dy", GRADS("dgate", "dup"));
    golden_rig_close(&r);
}

static void golden_loss(void)
{
    static const int64_t chunk[][2] = { { 0, 0 }, { 3, 4 } };      /* chunks change no equation */
    for (int i = 0; i < 2; i++) {
        rig r;
        golden_rig_open(&r, "loss");
        cdr_val y = cdr_loss(r.g, f32(&r, "h"), f32(&r, "w"), i32(&r, "targets"), CDR_NONE, chunk[i][0], chunk[i][1]);
        cdr_val lse = out_of_last(&r, 1);
        expect_op(&r, y, "loss", "scale", GRADS("dh", "dw"));
        has(&r, lse, "lse");
        golden_rig_close(&r);
    }
}

/* hyper = { learning rate, 1 / (1 - beta1^t), 1 / (1 - beta2^t), 0 ... } of step t */
static void put_hyper(rig *r, cdr_val hyper, double lr, double beta1, double beta2, int t)
{
    double h[8] = { lr, 1 / (1 - pow(beta1, t)), 1 / (1 - pow(beta2, t)) };
    cdr_oracle_put(r->o, hyper, h);
}

static void golden_adamw(void)
{
    rig r;
    golden_rig_open(&r, "adamw");
    const double *at = golden_get(&r.gd, "attr")->x, *grads = golden_get(&r.gd, "grads")->x, *clips = golden_get(&r.gd, "clip")->x;
    const golden_tensor *trace = golden_get(&r.gd, "trace");
    double lr = golden_get(&r.gd, "lr")->x[0], zeros[6] = { 0 };
    cdr_adamw_attr attr = { .beta1 = (float)at[0], .beta2 = (float)at[1], .eps = (float)at[2], .weight_decay = (float)at[3], .lr_scale = 1 };
    cdr_type t6 = cdr_type_1d(CDR_F32, 6);
    cdr_val w = f32(&r, "w"), m = cdr_graph_value(r.g, t6, CDR_TURN, CDR_C_OPTIM, "m"), v = cdr_graph_value(r.g, t6, CDR_TURN, CDR_C_OPTIM, "v");
    cdr_val grad = cdr_graph_value(r.g, t6, CDR_TURN, CDR_C_GRAD, "grad"), clip = cdr_graph_value(r.g, cdr_type_1d(CDR_F32, 1), CDR_TURN, CDR_C_ACT, "clip");
    cdr_val hyper = cdr_graph_value(r.g, cdr_type_1d(CDR_F32, 8), CDR_TURN, CDR_C_INPUT, "hyper");
    T_CHECK(cdr_adamw(r.g, grad, clip, hyper, w, m, v, CDR_NONE, &attr) >= 0);
    cdr_oracle_put(r.o, m, zeros);
    cdr_oracle_put(r.o, v, zeros);
    for (int t = 0; t < 10; t++) {
        double got[3][6];
        cdr_oracle_put(r.o, grad, grads + 6 * t);
        cdr_oracle_put(r.o, clip, clips + t);
        put_hyper(&r, hyper, lr, at[0], at[1], t + 1);
        run_all(&r);
        cdr_oracle_get(r.o, w, got[0]);
        cdr_oracle_get(r.o, m, got[1]);
        cdr_oracle_get(r.o, v, got[2]);
        for (int i = 0; i < 18; i++) T_NEAR(got[i / 6][i % 6], trace->x[18 * t + i], 1e-13);
    }
    golden_rig_close(&r);
}

/* ---- the tiny dense model of tools/golden_ops.py ----------------------------------------------------------------------- */
enum { W = 32, D = 16, F = 24, LAYERS = 2, HEADS = 2, NOPE = 4, EXT = 4, V = 6, KV = 8, T = 20, MAX_PARAMS = 32 };
typedef struct { rig r; int n_params; cdr_val param[MAX_PARAMS]; cdr_val tokens, start, pos, targets, scale, hidden, loss; } tiny;

/* Parameter k: s_i = sin(0.61803398875 i i + 0.9 k); gains 1 + 0.1 s, matrices sqrt(2 / columns) s. */
static cdr_val tiny_param(tiny *m, int64_t rows, int64_t cols)
{
    int k = m->n_params++;
    int64_t n = cols ? rows * cols : rows;
    cdr_type t = cols ? cdr_type_2d(CDR_F32, rows, cols) : cdr_type_1d(CDR_F32, rows);
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        double s = sin(0.61803398875 * (double)(i * i) + 0.9 * k);
        x[i] = cols ? sqrt(2.0 / (double)cols) * s : 1 + 0.1 * s;
    }
    m->param[k] = cdr_graph_value(m->r.g, t, CDR_TURN, CDR_C_WEIGHT, "param");
    cdr_oracle_put(m->r.o, m->param[k], x);
    free(x);
    return m->param[k];
}

static cdr_val tiny_attention(tiny *m, cdr_val h_TD)
{
    cdr_graph *g = m->r.g;
    cdr_val wq = tiny_param(m, HEADS * (NOPE + EXT), D), wa = tiny_param(m, KV + EXT, D), wn = tiny_param(m, KV, 0);
    cdr_val wb = tiny_param(m, HEADS * (NOPE + V), KV), wo = tiny_param(m, D, HEADS * V);
    cdr_rope_attr rq = { .heads = HEADS, .nope = NOPE, .ext = EXT, .theta = 10000.0f, .interleaved = 1 }, rk = rq;
    rk.heads = 1;
    rk.nope = 0;
    cdr_val q = cdr_rope(g, cdr_linear(g, h_TD, wq), m->pos, m->start, &rq), a = cdr_linear(g, h_TD, wa);
    cdr_type tc = cdr_type_2d(CDR_F32, T, KV), tr = cdr_type_2d(CDR_F32, T, EXT);      /* columns of one value: views with its pitch */
    tc.pitch = tr.pitch = KV + EXT;
    cdr_val c = cdr_graph_view(g, a, 0, tc, "c"), kr = cdr_graph_view(g, a, KV * (int64_t)sizeof(float), tr, "kr");
    kr = cdr_rope(g, kr, m->pos, m->start, &rk);
    cdr_val kv = cdr_linear(g, cdr_rmsnorm(g, c, wn, 1e-6f), wb);
    cdr_attention_attr at = { .heads = HEADS, .nope = NOPE, .ext = EXT, .v = V, .scale = (float)pow(NOPE + EXT, -0.5) };
    return cdr_linear(g, cdr_attention(g, q, kv, kr, m->start, m->pos, &at), wo);
}

static void tiny_forward(tiny *m)
{
    cdr_graph *g = m->r.g;
    cdr_val x = cdr_embedding(g, m->tokens, tiny_param(m, W, D), CDR_NONE, CDR_NONE);
    for (int L = 0; L < LAYERS; L++) {
        cdr_val h = cdr_rmsnorm(g, x, tiny_param(m, D, 0), 1e-5f);
        x = cdr_add(g, x, tiny_attention(m, h));
        h = cdr_rmsnorm(g, x, tiny_param(m, D, 0), 1e-5f);
        cdr_val gate = cdr_linear(g, h, tiny_param(m, F, D)), up = cdr_linear(g, h, tiny_param(m, F, D));
        x = cdr_add(g, x, cdr_linear(g, cdr_swiglu(g, gate, up), tiny_param(m, D, F)));
    }
    m->hidden = cdr_rmsnorm(g, x, tiny_param(m, D, 0), 1e-5f);
    m->loss = cdr_loss(g, m->hidden, tiny_param(m, W, D), m->targets, CDR_NONE, 0, 0);
}

/* The gradient of v: a value of its own, or a window into that of the value whose bytes v shares. */
static cdr_val grad_value(rig *r, cdr_val v)
{
    cdr_val alias = cdr_graph_at(r->g, v)->alias;
    cdr_type t = *cdr_graph_type(r->g, v);
    if (alias != CDR_NONE) return cdr_graph_view(r->g, grad_value(r, alias), cdr_graph_at(r->g, v)->alias_at, t, "d");
    cdr_val *d = &r->root_grad[v - CDR_LOCAL0];
    if (*d == CDR_NONE) *d = cdr_graph_value(r->g, t, CDR_TURN, CDR_C_GRAD, "d");
    return *d;
}

/* Appends the backward: every gradient is a sum that begins at zero (zero_grads), so that order does not matter. */
static void tiny_backward(tiny *m)
{
    cdr_graph *g = m->r.g;
    for (int64_t i = g->n_calls - 1; i >= 0 && !g->failed; i--) {
        cdr_call c = g->calls[i];
        cdr_val dout[CDR_MAX_OPERANDS], din[CDR_MAX_OPERANDS];
        bool want[CDR_MAX_OPERANDS];
        for (int k = 0; k < c.n_out; k++) dout[k] = CDR_NONE;
        dout[0] = cdr_graph_out(g, &c, 0) == m->loss ? m->scale : grad_value(&m->r, cdr_graph_out(g, &c, 0));
        for (int k = 0; k < c.n_in; k++) {
            cdr_val v = cdr_graph_in(g, &c, k);
            want[k] = v != CDR_NONE && cdr_dtype_row(cdr_graph_type(g, v)->dtype)->floating;
            din[k] = CDR_NONE;
        }
        T_CHECK(cdr_ops[c.op]->grad(g, &c, dout, want, din, &m->r.err) == CDR_OK);
        for (int k = 0; k < c.n_in; k++) {
            if (!want[k] || din[k] == CDR_NONE) continue;
            cdr_copy_attr at = { .dtype = CDR_F32 };
            cdr_val sum = grad_value(&m->r, cdr_graph_in(g, &c, k));
            int32_t id = cdr_graph_call(g, &cdr_op_copy, &at, 1, &din[k], 1, &sum);
            if (id >= 0) g->calls[id].add = 1;
        }
    }
}

static void zero_grads(rig *r)
{
    double zeros[W * D + F * D] = { 0 };
    for (int i = 0; i < MAX_VALS; i++) {
        if (r->root_grad[i] == CDR_NONE) continue;
        T_CHECK(cdr_type_elems(cdr_graph_type(r->g, r->root_grad[i])) <= CDR_COUNT(zeros));
        cdr_oracle_put(r->o, r->root_grad[i], zeros);
    }
}

static void tiny_open(tiny *m, const golden *gd)
{
    memset(m, 0, sizeof *m);
    rig_open(&m->r);
    double pos[T];
    for (int t = 0; t < T; t++) pos[t] = t;
    m->tokens = put(&m->r, gd, "tokens", CDR_I32);
    m->start = put(&m->r, gd, "start", CDR_I32);
    m->targets = put(&m->r, gd, "targets", CDR_I32);
    m->pos = cdr_graph_value(m->r.g, cdr_type_1d(CDR_I32, T), CDR_TURN, CDR_C_INPUT, "pos");
    m->scale = cdr_graph_value(m->r.g, cdr_type_1d(CDR_F32, 1), CDR_TURN, CDR_C_INPUT, "scale");
    cdr_oracle_put(m->r.o, m->pos, pos);
    const double scale = 1.0 / 18;                         /* 20 rows, two of them end a document */
    cdr_oracle_put(m->r.o, m->scale, &scale);
    tiny_forward(m);
    tiny_backward(m);
    T_CHECK(m->r.g->n_vals <= MAX_VALS);
}

static double tiny_step(tiny *m, double *norm)
{
    double loss = 0, ss = 0, d[W * D + F * D];
    zero_grads(&m->r);
    run_all(&m->r);
    cdr_oracle_get(m->r.o, m->loss, &loss);
    for (int k = 0; k < m->n_params; k++) {
        cdr_oracle_get(m->r.o, grad_value(&m->r, m->param[k]), d);
        for (int64_t i = 0; i < cdr_type_elems(cdr_graph_type(m->r.g, m->param[k])); i++) ss += d[i] * d[i];
    }
    *norm = sqrt(ss);
    return loss / 18;
}

static void golden_tiny_dense_gradients(void)
{
    golden gd = golden_open("tiny_dense");
    tiny m;
    double norm, d[W * D + F * D], hidden[T * D], head[W * D];
    tiny_open(&m, &gd);
    T_NEAR(tiny_step(&m, &norm), golden_get(&gd, "loss")->x[0], 1e-11);
    cdr_oracle_get(m.r.o, m.hidden, hidden);
    cdr_oracle_get(m.r.o, m.param[m.n_params - 1], head);
    for (int i = 0; i < 4 * W; i++) {
        double logit = 0;
        for (int j = 0; j < D; j++) logit += hidden[i / W * D + j] * head[i % W * D + j];
        T_NEAR(logit, golden_get(&gd, "logits")->x[i], 1e-11);
    }
    const golden_tensor *norms = golden_get(&gd, "grad_norms");
    T_CHECK(norms->elems == m.n_params);
    for (int k = 0; k < m.n_params && k < norms->elems; k++) {
        double ss = 0;
        cdr_oracle_get(m.r.o, grad_value(&m.r, m.param[k]), d);
        for (int64_t i = 0; i < cdr_type_elems(cdr_graph_type(m.r.g, m.param[k])); i++) ss += d[i] * d[i];
        T_NEAR(sqrt(ss), norms->x[k], 1e-11);
    }
    expect(&m.r, grad_value(&m.r, m.param[0]), &gd, "d_embed", 1e-10);
    rig_close(&m.r);
    golden_close(&gd);
}

/* Ten AdamW steps on the same batch, without and with clipping to 1: losses and gradient norms. */
static void golden_tiny_dense_ten_steps(void)
{
    golden gd = golden_open("tiny_dense");
    for (int clipped = 0; clipped < 2; clipped++) {
        const double *losses = golden_get(&gd, clipped ? "losses_clip" : "losses")->x, *norms = golden_get(&gd, clipped ? "norms_clip" : "norms")->x;
        tiny m;
        tiny_open(&m, &gd);
        cdr_graph *g = m.r.g;
        cdr_val clip = cdr_graph_value(g, cdr_type_1d(CDR_F32, 1), CDR_TURN, CDR_C_ACT, "clip"),
                hyper = cdr_graph_value(g, cdr_type_1d(CDR_F32, 8), CDR_TURN, CDR_C_INPUT, "hyper");
        int update = cdr_graph_list(g, "update");
        for (int k = 0; k < m.n_params; k++) {
            cdr_type t = *cdr_graph_type(g, m.param[k]);
            cdr_adamw_attr at = { .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = t.n_dim > 1 ? 0.1f : 0.0f, .lr_scale = 1 };
            cdr_val mk = cdr_graph_value(g, t, CDR_TURN, CDR_C_OPTIM, "m"), vk = cdr_graph_value(g, t, CDR_TURN, CDR_C_OPTIM, "v");
            double zeros[W * D + F * D] = { 0 };
            cdr_oracle_put(m.r.o, mk, zeros);
            cdr_oracle_put(m.r.o, vk, zeros);
            T_CHECK(cdr_adamw(g, grad_value(&m.r, m.param[k]), clip, hyper, m.param[k], mk, vk, CDR_NONE, &at) >= 0);
        }
        for (int t = 0; t < 10; t++) {
            double norm, c, loss = tiny_step(&m, &norm);
            T_NEAR(loss, losses[t], 1e-9);
            T_NEAR(norm, norms[t], 1e-8);
            c = clipped ? fmin(1.0, 1.0 / (norm + 1e-6)) : 1.0;
            cdr_oracle_put(m.r.o, clip, &c);
            put_hyper(&m.r, hyper, 0.01, (double)0.9f, (double)0.95f, t + 1);
            T_CHECK(cdr_oracle_run(m.r.o, g->lists[update].calls, g->lists[update].n, &m.r.err) == CDR_OK);
        }
        double norm;
        T_NEAR(tiny_step(&m, &norm), losses[10], 1e-9);
        rig_close(&m.r);
    }
    golden_close(&gd);
}

static void operators_take_the_shapes_of_bench(void)
{
    int n_cases = 0;
    for (const cdr_case *c = cdr__bench_shapes; c->name; c++, n_cases++) {
        cdr_type t[CDR_MAX_OPERANDS], *out = t + c->n_in;
        cdr_err e = { CDR_OK, "", "" };
        int n_out = 0;
        for (int i = 0; i < c->n_in; i++) t[i] = (c->absent >> i) & 1u ? (cdr_type){ .dtype = CDR_N_DTYPES } : c->in[i];
        if (c->op->infer(c->attr, c->n_in, t, &n_out, out, &e) != CDR_OK) fprintf(stderr, "  %s %s: %s\n", c->op->name, c->name, e.text);
        T_CHECK(e.status == CDR_OK);
        for (int k = 0; k < 32; k++) T_CHECK(!((c->skip_out >> k) & 1u) || (k < n_out && (c->op->optional >> k) & 1u));
    }
    T_CHECK(n_cases > 40);
}

int main(int argc, char **argv)
{
    if (argc > 1) t_filter = argv[1];
    T_RUN(harness_passes_a_right_operator);
    T_RUN(harness_sees_a_wrong_value);
    T_RUN(harness_sees_a_wrong_reference);
    T_RUN(harness_sees_an_ignored_add_bit);
    T_RUN(harness_sees_a_missing_write);
    T_RUN(harness_sees_written_canaries);
    T_RUN(harness_sees_scratch_that_is_read_first);
    T_RUN(harness_sees_bits_that_depend_on_threads);
    T_RUN(harness_sees_kernels_of_a_class_that_differ);
    T_RUN(harness_sees_wrong_gradients);
    T_RUN(harness_sees_other_faults);
    T_RUN(harness_refuses_what_it_cannot_check);
    T_RUN(unknown_operator_is_refused);
    T_RUN(golden_embedding);
    T_RUN(golden_linear);
    T_RUN(golden_rmsnorm);
    T_RUN(golden_rope);
    T_RUN(golden_attention_packed);
    T_RUN(golden_attention_cache);
    T_RUN(golden_swiglu);
    T_RUN(golden_loss);
    T_RUN(golden_adamw);
    T_RUN(golden_tiny_dense_gradients);
    T_RUN(golden_tiny_dense_ten_steps);
    T_RUN(operators_take_the_shapes_of_bench);
    T_RUN(operators_pass_their_cases);
    return t_end();
}
