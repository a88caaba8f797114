/* adapters: LoRA beside frozen matrices, W [N, K] with A [r, K] and B [N, r]; beside a stack of E matrices A [E, r, K] and B [E, N, r].
 *
 *   y = W x + B (s A x)                                                                                              (1)
 * Each `linear` call that reads an adapted W becomes these calls; the last one, the sum, makes the value that the linear made, so that
 * its readers and views stay as they are. `experts` takes adapters as operands and s as attributes. A factor that all experts share is
 * an ordinary matrix, and its products are those of ordinary linears: h = s A x before `experts`, u + B (s v) after it, with u and v what
 * it gives (ops/experts, (2a)); so it lies, is gathered and gets its gradient as any other, on every layout with the same bits. s is
 * applied where the rows have r columns. B = 0 gives the base's bits: a chain that begins with +0 never ends in -0, but for a result that underflows, and then
 * -0 + 0 is +0, an equal number.
 * A is drawn as PEFT draws it: kaiming (a = sqrt 5) U(-1 / sqrt K, 1 / sqrt K); xavier U(-b, b), b = sqrt(6 / (K + r)); gaussian
 * N(0, 1 / r); B is zero. The stream of random numbers is that of the name, so no layout and no number of adapters changes a draw.
 * Source: (1) Hu et al. 2021 (arXiv 2106.09685), 4.1; names and draws: PEFT.
 */
#include "compile/pass.h"
#include "ops/add/add.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/scale/scale.h"
#include <math.h>

typedef struct { cdr_val a, b; float scale; int32_t form; bool on, used; const char *of; } adapter;      /* by parameter index of the matrix */

/* MODULE of MODULE.weight; the whole name where it ends otherwise. */
static const char *module_of(cdr_pool *pool, const char *name)
{
    static const char end[] = ".weight";
    size_t n = strlen(name), k = sizeof end - 1;
    return n > k && strcmp(name + n - k, end) == 0 ? cdr_pool_strndup(pool, name, n - k) : name;
}

/* Of experts.{expert}.w1, what all experts share is experts.w1's (spec/formats.md, 1.6). */
static const char *shared_module(cdr_pool *pool, const char *module)
{
    static const char mark[] = "{expert}.";
    const char *at = strstr(module, mark);
    return at ? cdr_pool_printf(pool, "%.*s%s", (int)(at - module), module, at + sizeof mark - 1) : module;
}

/* A or B of a matrix: where it lies and its unit are the matrix's, and its dtype where that is one of computing. One for all experts lies
 * as other matrices do. */
static cdr_val declare(cdr_pass *p, const cdr_param *base, const char *suffix, bool shared, int64_t rows, int64_t cols)
{
    cdr_graph *g = p->g[CDR_PROG_STEP];
    bool stack = base->global.n_dim == 3 && !shared, wide = base->global.dtype == CDR_F32 || base->global.dtype == CDR_BF16;
    int dtype = wide ? base->global.dtype : p->o->compute;
    const char *module = module_of(p->pool, base->name);
    const char *name = cdr_pool_printf(p->pool, "%s.lora_%s.weight", shared ? shared_module(p->pool, module) : module, suffix);
    cdr_param q = { .name = name, .unit = base->unit, .place = shared ? CDR_PLACE_SHARD : base->place, .train = CDR_FULL, .rule = CDR_RULE_ADAMW, .decay = true,
                    .lr_scale = 1.0f, .f32 = base->f32, .may_idle = base->may_idle, .adapter = true, .init = CDR_INIT_ZEROS, .rng = cdr_hash64(name, strlen(name), 0) };
    q.global = stack ? cdr_type_3d(dtype, base->global.n[0], rows, cols) : cdr_type_2d(dtype, rows, cols);
    int32_t i = cdr_graph_declare(g, q);
    if (i < 0) return CDR_NONE;
    cdr_val v = p->b->params[i].shard;
    p->b->shared[v].t.dtype = q.f32 ? CDR_F32 : (uint8_t)p->o->compute;
    return v;
}

static void draw_as(cdr_param *a, int kind, int64_t rank, int64_t cols)
{
    a->init = kind == CDR_ADAPTER_GAUSSIAN ? CDR_INIT_NORMAL : CDR_INIT_UNIFORM;
    a->init_std = (float)(kind == CDR_ADAPTER_GAUSSIAN ? 1.0 / (double)rank : sqrt(kind == CDR_ADAPTER_XAVIER ? 6.0 / (double)(cols + rank) : 1.0 / (double)cols));
}

static cdr_status declare_pair(cdr_pass *p, const cdr_adapter *w, adapter *of)
{
    cdr_bundle *b = p->b;
    int32_t i = cdr_param_find(b, w->param);
    if (i < 0) CDR_FAIL_ID(p->err, CDR_EUSER, "lora.target", "lora.targets: the model has no parameter %s", w->param);
    cdr_param base = b->params[i];                       /* declaring moves the array */
    int n_dim = base.global.n_dim;
    if (of[i].on) CDR_FAIL_ID(p->err, CDR_EUSER, "lora.target", "lora.targets: %s has two adapters", w->param);
    if (base.train != CDR_FROZEN) CDR_FAIL_ID(p->err, CDR_EUSER, "lora.target", "lora.targets: %s trains itself; adapters stand beside frozen matrices", w->param);
    if (n_dim < 2 || w->rank < 1 || !(w->scale > 0) || !isfinite(w->scale))
        CDR_FAIL_ID(p->err, CDR_EUSER, "lora.target", "lora.targets: %s, %d axes, rank %d, scale %g: adapters are of matrices, rank and scale are above 0", w->param,
                    n_dim, w->rank, (double)w->scale);
    if (w->form != CDR_ADAPTER_EACH && n_dim != 3)
        CDR_FAIL_ID(p->err, CDR_EUSER, "lora.target", "lora.targets: %s is one matrix, nothing can be shared among experts", w->param);
    int64_t N = base.global.n[n_dim - 2], K = base.global.n[n_dim - 1];
    of[i] = (adapter){ .on = true, .scale = w->scale, .form = w->form, .of = base.name };
    of[i].a = declare(p, &base, "A", w->form == CDR_ADAPTER_SHARED_A, w->rank, K);
    of[i].b = declare(p, &base, "B", w->form == CDR_ADAPTER_SHARED_B, N, w->rank);
    if (p->g[CDR_PROG_STEP]->failed) return p->err->status;
    draw_as(&b->params[b->n_params - 2], p->o->adapter_init, w->rank, K);
    return CDR_OK;
}

/* The adapter of the parameter that operand k of a call is; NULL: none. */
static adapter *adapter_of(const cdr_pass *p, const cdr_graph *g, const cdr_call *c, int k, adapter *of, int32_t n)
{
    cdr_val v = cdr_graph_in(g, c, k);
    int32_t i = v == CDR_NONE || v >= CDR_LOCAL0 ? -1 : p->b->shared[v].param;
    return i >= 0 && i < n && of[i].on ? &of[i] : NULL;
}

/* Names of what follows: those of the call, and "lora". */
static void enter(cdr_graph *g, const cdr_call *c)
{
    char prefix[300];
    snprintf(prefix, sizeof prefix, "%s", g->strings + c->origin);
    char *dot = strrchr(prefix, '.');
    *(dot ? dot : prefix) = 0;
    cdr_graph_enter(g, c->layer, "%s%slora", prefix, *prefix ? "." : "");
}

/* s A x */
static cdr_val down(cdr_graph *g, const adapter *w, cdr_val x_TK)
{
    cdr_val h_TR = cdr_linear(g, x_TK, w->a);
    return w->scale != 1.0f ? cdr_scale(g, h_TR, w->scale) : h_TR;
}

/* (1), behind the linear call, which is the last of the current list. */
static void adapt_linear(cdr_graph *g, int32_t id, adapter *w)
{
    cdr_call c = g->calls[id];
    const cdr_linear_attr out = *(const cdr_linear_attr *)cdr_graph_attr(g, &c);
    cdr_val x_TK = cdr_graph_in(g, &c, 0), y_TN = cdr_graph_out(g, &c, 0);
    cdr_value y = *cdr_graph_at(g, y_TN);
    enter(g, &c);
    cdr_val base_TN = cdr_graph_value(g, y.t, (cdr_scope)y.scope, CDR_C_ACT, "base");
    g->operands[c.arg + c.n_in] = base_TN;
    cdr_val h_TR = down(g, w, x_TK);
    cdr_val up[] = { h_TR, w->b }, sum[] = { base_TN, cdr_graph_call1(g, &cdr_op_linear, &out, 2, up) };
    cdr_graph_call(g, &cdr_op_add, NULL, 2, sum, 1, &y_TN);
    w->used = true;
}

/* h = s A x of w1 and w3 whose A is shared, in front of the experts call. */
static cdr_status adapt_before(cdr_pass *p, cdr_graph *g, int32_t id, adapter *of, int32_t n, cdr_val h[2])
{
    const cdr_call c = g->calls[id];                      /* the graph's calls move when others are appended */
    for (int m = 0; m < 3; m++) {
        adapter *w = adapter_of(p, g, &c, CDR__EX_W1 + m, of, n);
        if (!w || w->form == CDR_ADAPTER_EACH) continue;
        if (w->form != (m == 2 ? CDR_ADAPTER_SHARED_B : CDR_ADAPTER_SHARED_A))
            CDR_FAIL_ID(p->err, CDR_EUSER, "lora.target", "lora.experts: %s cannot share its %s among experts; gate and up share A, down shares B", w->of,
                        m == 2 ? "A" : "B");
        if (m == 2) continue;
        enter(g, &c);
        h[m] = down(g, w, cdr_graph_in(g, &c, CDR__EX_X));
    }
    return g->failed ? p->err->status : CDR_OK;
}

/* Fills the operands that the call has for adapters; what they are is checked as the call's own operands are. */
static cdr_status adapt_experts(cdr_pass *p, cdr_graph *g, int32_t id, adapter *of, int32_t n, const cdr_val h[2])
{
    const cdr_call *c = &g->calls[id];
    cdr_experts_attr *at = (cdr_experts_attr *)(void *)(g->attrs + c->attr);
    for (int m = 0; m < 3; m++) {
        adapter *w = adapter_of(p, g, c, CDR__EX_W1 + m, of, n);
        if (!w) continue;
        g->operands[c->arg + CDR__EX_A1 + 2 * (uint32_t)m] = w->form == CDR_ADAPTER_SHARED_A ? h[m] : w->a;
        if (w->form != CDR_ADAPTER_SHARED_B) g->operands[c->arg + CDR__EX_B1 + 2 * (uint32_t)m] = w->b;
        if (w->form == CDR_ADAPTER_EACH) at->scale[m] = w->scale;
        w->used = true;
    }
    cdr_type in[CDR__EX_N], out[CDR__EX_N_OUT];
    int n_out;
    for (int k = 0; k < CDR__EX_N; k++) {
        cdr_val v = cdr_graph_in(g, c, k);
        if (v == CDR_NONE) in[k].dtype = CDR_N_DTYPES;
        else in[k] = *cdr_graph_type(g, v);
    }
    return cdr_op_experts.infer(at, CDR__EX_N, in, &n_out, out, p->err);
}

/* u + B (s v) behind the experts call, the last of the current list, where B of w2 is shared; the sum is the value that the call made. */
static void adapt_after(cdr_pass *p, cdr_graph *g, int32_t id, adapter *of, int32_t n)
{
    const cdr_call c = g->calls[id];
    const adapter *w = adapter_of(p, g, &c, CDR__EX_W2, of, n);
    if (!w || w->form != CDR_ADAPTER_SHARED_B || g->failed) return;
    cdr_val u_TL = cdr_graph_out(g, &c, CDR__EX_OUT_U);
    const cdr_value u = *cdr_graph_at(g, u_TL);
    const int64_t rank = cdr_graph_type(g, w->a)->n[1];
    enter(g, &c);
    cdr_val base_TL = cdr_graph_value(g, u.t, (cdr_scope)u.scope, CDR_C_ACT, "base");
    cdr_val v_TR = cdr_graph_value(g, cdr_type_2d(u.t.dtype, u.t.n[0], rank), (cdr_scope)u.scope, CDR_C_ACT, "low");
    g->operands[c.arg + c.n_in + CDR__EX_OUT_U] = base_TL;
    g->operands[c.arg + c.n_in + CDR__EX_OUT_V] = v_TR;
    if (w->scale != 1.0f) v_TR = cdr_scale(g, v_TR, w->scale);
    cdr_val sum[] = { base_TL, cdr_linear(g, v_TR, w->b) };
    cdr_graph_call(g, &cdr_op_add, NULL, 2, sum, 1, &u_TL);
}

/* A matrix that another operator reads too would be read there without its adapter. */
static cdr_status refuse_other_readers(cdr_pass *p, const cdr_graph *g, const cdr_call *c, adapter *of, int32_t n)
{
    bool linear = cdr__op(c) == &cdr_op_linear, experts = cdr__op(c) == &cdr_op_experts;
    for (int k = 0; k < c->n_in; k++) {
        if ((linear && k == 1) || (experts && k >= CDR__EX_W1 && k <= CDR__EX_W2)) continue;
        const adapter *w = adapter_of(p, g, c, k, of, n);
        if (w) CDR_FAIL_ID(p->err, CDR_EUSER, "lora.target", "lora.targets: %s is read by the operator %s, which takes no adapter", w->of, cdr__op(c)->name);
    }
    return CDR_OK;
}

static cdr_status rewrite(cdr_pass *p, cdr_graph *g, adapter *of, int32_t n)
{
    cdr_list *l = cdr__list(g, CDR_L_MICRO), old = *l;
    *l = (cdr_list){ .name = old.name };
    g->cur = (int)(l - g->lists);
    g->phase = CDR_P_FWD;
    g->scope = CDR_TURN;
    for (int32_t i = 0; i < n; i++) of[i].used = false;
    for (int64_t i = 0; i < old.n; i++) {
        int32_t id = old.calls[i];
        const cdr_call *c = &g->calls[id];
        const cdr_op *op = cdr__op(c);
        CDR_TRY(refuse_other_readers(p, g, c, of, n));
        cdr_val h[2] = { CDR_NONE, CDR_NONE };
        if (op == &cdr_op_experts) CDR_TRY(adapt_before(p, g, id, of, n, h));
        cdr__list_push(g, l, id);
        if (op == &cdr_op_experts) {
            CDR_TRY(adapt_experts(p, g, id, of, n, h));
            adapt_after(p, g, id, of, n);
        }
        adapter *w = op == &cdr_op_linear ? adapter_of(p, g, c, 1, of, n) : NULL;
        if (w) adapt_linear(g, id, w);
    }
    cdr_graph_enter(g, -1, "%s", "");
    for (int32_t i = 0; i < n && !g->failed; i++)
        if (of[i].on && !of[i].used)
            CDR_FAIL_ID(p->err, CDR_EUSER, "lora.target", "lora.targets: no product of the %s program reads %s, so its adapter would do nothing", g->prog_name, of[i].of);
    return g->failed ? p->err->status : CDR_OK;
}

cdr_status cdr__adapters(cdr_pass *p)
{
    int32_t n = p->b->n_params;
    if (p->o->n_adapters == 0) return CDR_OK;
    adapter *of = cdr_pool_alloc(p->pool, sizeof *of * (size_t)(n + 1));
    for (int k = 0; k < p->o->n_adapters; k++) CDR_TRY(declare_pair(p, &p->o->adapters[k], of));
    for (int q = 0; q < CDR_N_PROGS; q++)
        if (p->g[q] && cdr__list(p->g[q], CDR_L_MICRO)) CDR_TRY(rewrite(p, p->g[q], of, n));
    return CDR_OK;
}
