/* select: one kernel per call, the first of its operator's table that the device has and that does not refuse the
 * types; and its scratch. The choice looks at types only, never at a rank's place, so every rank chooses alike. */
#include "compile/pass.h"

static void types_of(const cdr_graph *g, const cdr_call *c, cdr_type t[CDR_MAX_OPERANDS])
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

static cdr_status choose(cdr_pass *p, cdr_graph *g, cdr_call *c)
{
    const cdr_op *op = cdr__op(c);
    if (op->flags & CDR_OP_VIEW) return CDR_OK;
    cdr_type t[CDR_MAX_OPERANDS];
    types_of(g, c, t);
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
        size_t bytes = table[k].work_bytes ? table[k].work_bytes(attr, c->n_in, c->n_out, t, p->o->n_threads) : 0;
        if (bytes > 0) {
            g->prefix = "";
            c->work = cdr_graph_value(g, cdr_type_1d(CDR_U8, (int64_t)bytes), CDR_TURN, CDR_C_WORK, "work");
        }
        return CDR_OK;
    }
    const char *origin = g->strings + c->origin;
    if (why.n == 0 && !g->failed) {
        g->failed = true;
        return cdr_fail(g->err, CDR_EUSER, "compile.no-kernel", "%s%sthis version has no kernel of %s for this device; the operators of sparse models run on CPUs. Take "
                        "machine.device=cpu", strcmp(origin, op->name) ? origin : "", strcmp(origin, op->name) ? ": " : "", op->name);
    }
    cdr_status st = cdr_graph_fail(g, CDR_EUSER, "%s: no kernel of %s for this device (%s)", origin, op->name, why.s);
    cdr_text_free(&why);
    return st;
}

cdr_status cdr__select(cdr_pass *p)
{
    for (int q = 0; q < CDR_N_PROGS; q++) {
        cdr_graph *g = p->g[q];
        for (int l = 0; g && l < g->n_lists; l++)
            for (int64_t i = 0; i < g->lists[l].n; i++) {
                cdr_call c = g->calls[g->lists[l].calls[i]];        /* values may grow while choosing */
                CDR_TRY(choose(p, g, &c));
                g->calls[g->lists[l].calls[i]] = c;
            }
    }
    return CDR_OK;
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
            cdr_text_printf(out, "%s %s %s: %s", p->name, p->strings + c->origin, op->name, table[c->kernel].name);
            for (int k = 0; k < c->kernel; k++)
                cdr_text_printf(out, "; not %s: %s", table[k].name, refusal(&table[k], o, p->attrs + c->attr, c, t));
            cdr_text_printf(out, "\n");
        }
    }
}
