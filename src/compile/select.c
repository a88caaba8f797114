/* select: one kernel per call, the first of its operator's table that the device has and that does not refuse the
 * types; then the layouts of weights (layout.c); then scratch. The choice looks at types only, never at a rank's place, so every rank
 * chooses alike.
 * A plan (plan_kernels) may be for a device that has no kernel of an operator yet: the scratch of the CPU's base kernel with one thread
 * stands in, which no instruction set of the planning machine changes. */
#include "compile/pass.h"

void cdr__call_types(const cdr_graph *g, const cdr_call *c, cdr_type t[CDR_MAX_OPERANDS])
{
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        cdr_val v = g->operands[c->arg + (uint32_t)i];
        t[i] = v == CDR_NONE ? (cdr_type){ .dtype = CDR_N_DTYPES } : *cdr_graph_type(g, v);
    }
}

static const char *refusal(const cdr_kernel *k, const cdr_compile_opts *o, const void *attr, const cdr_call *c, const cdr_type *t)
{
    if ((k->needs & ~o->isa) != 0) return "the device lacks an instruction set that it needs";
    return k->reject ? k->reject(attr, c->n_in, c->n_out, t) : NULL;
}

/* The last row of the CPU's table that needs no instruction set and takes the types; NULL: none. */
static const cdr_kernel *stand_in(const void *attr, const cdr_call *c, const cdr_type *t)
{
    const cdr_kernel *found = NULL;
    for (const cdr_kernel *k = cdr_op_kernels(cdr__op(c), CDR_DEV_CPU); k->name; k++)
        if (k->needs == 0 && !(k->reject && k->reject(attr, c->n_in, c->n_out, t))) found = k;
    return found;
}

static cdr_status no_kernel(cdr_graph *g, const cdr_call *c, const cdr_text *why)
{
    const char *origin = g->strings + c->origin, *name = cdr__op(c)->name;
    if (why->n == 0 && !g->failed) {
        g->failed = true;
        return cdr_fail(g->err, CDR_EUSER, "compile.no-kernel", "%s%sthis version has no kernel of %s for this device; the operators of sparse models run on CPUs. Take "
                        "machine.device=cpu", strcmp(origin, name) ? origin : "", strcmp(origin, name) ? ": " : "", name);
    }
    return cdr_graph_fail(g, CDR_EUSER, "%s: no kernel of %s for this device (%s)", origin, name, why->s);
}

static cdr_status choose(cdr_pass *p, cdr_graph *g, cdr_call *c)
{
    const cdr_op *op = cdr__op(c);
    cdr_type t[CDR_MAX_OPERANDS];
    cdr__call_types(g, c, t);
    const void *attr = cdr_graph_attr(g, c);
    const cdr_kernel *table = cdr_op_kernels(op, p->o->device);
    cdr_text why = { 0 };
    for (int k = 0; table && table[k].name; k++) {
        const char *no = refusal(&table[k], p->o, attr, c, t);
        if (no) {
            cdr_text_printf(&why, "%s%s: %s", why.n ? "; " : "", table[k].name, no);
            continue;
        }
        cdr_text_free(&why);
        c->kernel = (uint16_t)k;
        return CDR_OK;
    }
    cdr_status st = CDR_OK;
    if (p->o->plan_kernels && stand_in(attr, c, t)) c->kernel = CDR_KERNEL_STAND_IN;
    else st = no_kernel(g, c, &why);
    cdr_text_free(&why);
    return st;
}

/* A kernel that reads a weight in panels was chosen while it lay in rows: it must take the one as the other. */
static cdr_status set_work(cdr_pass *p, cdr_graph *g, cdr_call *c)
{
    cdr_type t[CDR_MAX_OPERANDS];
    cdr__call_types(g, c, t);
    const void *attr = cdr_graph_attr(g, c);
    const bool other = c->kernel == CDR_KERNEL_STAND_IN;
    const cdr_kernel *k = other ? stand_in(attr, c, t) : &cdr_op_kernels(cdr__op(c), p->o->device)[c->kernel];
    CDR_CHECK(k && !(k->reject && k->reject(attr, c->n_in, c->n_out, t)));
    size_t bytes = k->work_bytes ? k->work_bytes(attr, c->n_in, c->n_out, t, other ? 1 : p->o->n_threads) : 0;
    if (bytes == 0) return CDR_OK;
    g->prefix = "";
    c->work = cdr_graph_value(g, cdr_type_1d(CDR_U8, (int64_t)bytes), CDR_TURN, CDR_C_WORK, "work");
    return g->failed ? g->err->status : CDR_OK;
}

static cdr_status each_call(cdr_pass *p, cdr_status (*f)(cdr_pass *p, cdr_graph *g, cdr_call *c))
{
    for (int q = 0; q < CDR_N_PROGS; q++) {
        cdr_graph *g = p->g[q];
        for (int l = 0; g && l < g->n_lists; l++)
            for (int64_t i = 0; i < g->lists[l].n; i++) {
                cdr_call *c = &g->calls[g->lists[l].calls[i]];
                if (!(cdr__op(c)->flags & CDR_OP_VIEW)) CDR_TRY(f(p, g, c));
            }
    }
    return CDR_OK;
}

cdr_status cdr__select(cdr_pass *p)
{
    CDR_TRY(each_call(p, choose));
    cdr__layouts(p);
    return each_call(p, set_work);
}

cdr_kernel_count cdr_compile_stand_ins(const cdr_bundle *b)
{
    cdr_kernel_count n = { 0, 0 };
    for (int q = 0; q < b->n_progs; q++)
        for (int32_t i = 0; q != CDR_PROG_PROBE && i < b->progs[q].n_calls; i++) {
            const cdr_call *c = &b->progs[q].calls[i];
            if (cdr__op(c)->flags & CDR_OP_VIEW) continue;
            n.calls++;
            n.stand_in += c->kernel == CDR_KERNEL_STAND_IN;
        }
    return n;
}

static void layouts_why(cdr_text *out, const cdr_bundle *b)
{
    char t[64];
    for (int32_t i = 0; i < b->n_params; i++) {
        const cdr_param *q = &b->params[i];
        if (q->global.n_dim < 2) continue;
        cdr_type_print(t, &b->shared[q->shard].t);
        cdr_text_printf(out, "layout %s %s%s: %s\n", q->name, t, q->layout == CDR_ROWS ? " rows" : "", q->layout_why);
    }
}

void cdr_compile_why(cdr_text *out, const cdr_compile_opts *o, const cdr_bundle *b)
{
    for (int q = 0; q < b->n_progs; q++) {
        const cdr_program *p = &b->progs[q];
        if (q == CDR_PROG_PROBE) continue;
        for (int32_t i = 0; i < p->n_calls; i++) {
            const cdr_call *c = &p->calls[i];
            const cdr_op *op = cdr__op(c);
            if (op->flags & CDR_OP_VIEW) continue;
            cdr_type t[CDR_MAX_OPERANDS];
            cdr_call_types(b, p, c, t);
            const cdr_kernel *table = cdr_op_kernels(op, o->device);
            bool none = c->kernel == CDR_KERNEL_STAND_IN;
            cdr_text_printf(out, "%s %s %s: %s", p->name, p->strings + c->origin, op->name, none ? "no kernel yet, scratch of the CPU's" : table[c->kernel].name);
            for (int k = 0; (none || k < c->kernel) && table[k].name; k++)
                cdr_text_printf(out, "; not %s: %s", table[k].name, refusal(&table[k], o, p->attrs + c->attr, c, t));
            cdr_text_printf(out, "\n");
        }
    }
    layouts_why(out, b);
}
