/* layout: how weights lie in memory. The second part of `select`, after kernels and before scratch.
 *
 * A product packs a weight into panels before it reads it, at each call; a weight that no program writes (it is frozen, or nothing is
 * trained) can lie in panels from the load on. A parameter gets a layout where
 *   - no call of any program writes it, and it is a matrix or a stack of a format whose elements are bytes of their own (MXFP4: see below);
 *   - calls read it where it lies: not through a gather (FSDP's rows), nor a view of a part of it;
 *   - every call that reads it, in all programs, wishes for that layout (cdr_op.layout of the kernel that was chosen).
 * Else it lies in rows, and layout_why says what is against it. Kernels were chosen for rows and stay: a layout changes where elements
 * lie and no bit of a result. Types, kernels and whole programs alone decide, never a rank's place: all ranks
 * choose alike on machines of one instruction set; the host sees rows, so others agree too.
 *
 * A packed stack stays in the mapped file that it comes from (CDR_MAPPED) where the run can map files (map_experts), and experts alone read
 * it; in the slab lie addresses. That is decided before `shard`, whose gathers it does not need. Balanced placement copies matrices between
 * ranks, so there it is copied into the slab. */
#include "compile/pass.h"
#include "ops/experts/experts.h"

enum { UNREAD = -1 };
typedef struct { int layout; const char *no, *reader; bool written; } wish;        /* of a parameter: no: why rows */

/* The parameter that v is, whole; part: v is some other view of one. NULL: v is of no parameter. */
static cdr_param *param_of(cdr_pass *p, const cdr_graph *g, cdr_val v, bool *part)
{
    *part = false;
    if (v == CDR_NONE) return NULL;
    const cdr_type t = *cdr_graph_type(g, v);
    const cdr_val root = cdr__root(g, v);
    if (root >= CDR_LOCAL0 || p->b->shared[root].param < 0) return NULL;
    cdr_param *q = &p->b->params[p->b->shared[root].param];
    if (q->shard != root) return NULL;
    for (int hop = 0; hop < 16 && cdr_graph_at(g, v)->alias != CDR_NONE; hop++) {
        *part = *part || cdr_graph_at(g, v)->alias_at != 0;
        v = cdr_graph_at(g, v)->alias;
    }
    CDR_CHECK(cdr_graph_at(g, v)->alias == CDR_NONE);
    const cdr_type *whole = &p->b->shared[root].t;
    *part = *part || !cdr_type_same(&t, whole) || cdr_type_pitch(&t) != cdr_type_pitch(whole);
    return q;
}

/* ---- mapped stacks ---------------------------------------------------------------------------------------------------------- */
/* The first call that reads or writes v as something else than a matrix of experts; NULL: none */
static const char *other_reader(cdr_pass *p, cdr_val v)
{
    for (int q = 0; q < CDR_N_PROGS; q++)
        for (int l = 0; p->g[q] && l < p->g[q]->n_lists; l++)
            for (int64_t i = 0; i < p->g[q]->lists[l].n; i++) {
                const cdr_call *c = &p->g[q]->calls[p->g[q]->lists[l].calls[i]];
                for (int k = 0; k < c->n_in + c->n_out; k++) {
                    const bool experts = cdr__op(c) == &cdr_op_experts && k >= CDR__EX_W1 && k <= CDR__EX_W2;
                    if (p->g[q]->operands[c->arg + (uint32_t)k] == v && !experts) return cdr__op(c)->name;
                }
            }
    return NULL;
}

void cdr__mapped(cdr_pass *p)
{
    static const char where[] = "experts alone read it, where its file has it";
    const cdr_compile_opts *o = p->o;
    const bool moves = o->parallel.balanced && cdr_mesh_expert(&o->mesh) > 1;
    for (int32_t i = 0; i < p->b->n_params; i++) {
        cdr_param *q = &p->b->params[i];
        if (!cdr__param_stack(q) || p->b->shared[q->shard].t.dtype != CDR_MXFP4) continue;
        const char *other = other_reader(p, q->shard);
        q->layout_why = !o->map_experts ? NULL : o->device != CDR_DEV_CPU ? "copied: the device does not see the file" : o->rows_only ? "copied: mapping is switched off"
                        : moves ? "copied: balanced placement moves experts between ranks" : other ? cdr_pool_printf(p->pool, "copied: %s reads it", other) : where;
        q->mapped = q->layout_why == where;
    }
}

/* ---- panels ------------------------------------------------------------------------------------------------------------------ */
static void against(cdr_pass *p, wish *w, const char *op, const char *what)
{
    if (!w->no) w->no = cdr_pool_printf(p->pool, "%s %s", op, what);
}

static void read_by(cdr_pass *p, const cdr_graph *g, const cdr_call *c, int i, bool part, wish *w)
{
    const cdr_op *op = cdr__op(c);
    if (part) {
        against(p, w, op->name, "reads a part of it");
        return;
    }
    if (!op->layout || c->kernel == CDR_KERNEL_STAND_IN) {
        against(p, w, op->name, "reads rows");
        return;
    }
    cdr_type t[CDR_MAX_OPERANDS];
    cdr__call_types(g, c, t);
    const cdr_kernel *k = &cdr_op_kernels(op, p->o->device)[c->kernel];
    const int layout = op->layout(k, i, t);
    if (layout == CDR_ROWS) against(p, w, op->name, "reads rows");
    else if (layout == CDR_MAPPED) w->layout = CDR_MAPPED;
    else if (!cdr_layout_takes(layout, &t[i])) against(p, w, op->name, "wishes for panels, which this format or shape has none of");
    else if (w->layout == UNREAD) {
        w->layout = layout;
        w->reader = cdr_pool_printf(p->pool, "%s (%s)", op->name, k->name);
    } else if (w->layout != layout && !w->no)
        w->no = cdr_pool_printf(p->pool, "%s wishes for %s, %s (%s) for %s", w->reader, cdr_layout_row(w->layout)->name, op->name, k->name, cdr_layout_row(layout)->name);
}

static void read_call(cdr_pass *p, const cdr_graph *g, const cdr_call *c, wish *w)
{
    const cdr_op *op = cdr__op(c);
    bool part;
    if (op->flags & CDR_OP_VIEW) return;                   /* its readers are looked at */
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const cdr_param *q = param_of(p, g, g->operands[c->arg + (uint32_t)i], &part);
        if (!q) continue;
        wish *x = &w[q - p->b->params];
        if (i < c->n_in) read_by(p, g, c, i, part, x);
        else if (!x->written) x->no = cdr_pool_printf(p->pool, "%s writes it", op->name);       /* whatever else is against it */
        x->written = x->written || i >= c->n_in;
    }
}

/* Values that are the parameter, whole: itself, and views of it (a replicated parameter is one). */
static void set_views(cdr_pass *p, cdr_graph *g)
{
    bool part;
    for (int64_t i = 0; i < g->n_vals; i++) {
        if (g->vals[i].alias == CDR_NONE) continue;
        const cdr_param *q = param_of(p, g, CDR_LOCAL0 + (cdr_val)i, &part);
        if (q && !part) g->vals[i].t.layout = (uint8_t)q->layout;
    }
}

void cdr__layouts(cdr_pass *p)
{
    cdr_bundle *b = p->b;
    wish *w = cdr_pool_alloc(p->pool, sizeof *w * (size_t)CDR_MAX(b->n_params, 1));
    for (int32_t i = 0; i < b->n_params; i++) w[i] = (wish){ .layout = UNREAD, .no = p->o->rows_only ? "panels are switched off" : NULL };
    for (int q = 0; q < CDR_N_PROGS; q++)
        for (int l = 0; p->g[q] && l < p->g[q]->n_lists; l++)
            for (int64_t i = 0; i < p->g[q]->lists[l].n; i++) read_call(p, p->g[q], &p->g[q]->calls[p->g[q]->lists[l].calls[i]], w);
    for (int32_t i = 0; i < b->n_params; i++) {
        cdr_param *q = &b->params[i];
        const bool panels = !w[i].no && w[i].layout != UNREAD;
        if (q->layout_why || w[i].layout == CDR_MAPPED) {
            CDR_CHECK(!q->mapped || (panels && w[i].layout == CDR_MAPPED && cdr_layout_takes(CDR_MAPPED, &b->shared[q->shard].t)));
            q->layout = q->mapped ? CDR_MAPPED : CDR_ROWS;
            if (!q->layout_why) q->layout_why = "packed";
            continue;
        }
        q->layout = panels ? (uint8_t)w[i].layout : CDR_ROWS;
        q->layout_why = panels ? cdr_pool_printf(p->pool, "%s and all others that read it take it without packing", w[i].reader) : w[i].no ? w[i].no : "nothing reads it";
    }
    for (int q = 0; q < CDR_N_PROGS; q++) if (p->g[q]) set_views(p, p->g[q]);      /* while parameters have the type in rows */
    for (int32_t i = 0; i < b->n_params; i++) b->shared[b->params[i].shard].t.layout = b->params[i].layout;
}
