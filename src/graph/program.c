/* program.c: emitting a graph as an array program, reading one, printing one. */
#include "graph/op.h"
#include <stdio.h>

static cdr_val renumber(const cdr_bundle *b, cdr_val v) { return v >= CDR_LOCAL0 ? v - CDR_LOCAL0 + b->n_shared : v; }

cdr_status cdr_graph_emit(cdr_graph *g, cdr_program *p)
{
    if (g->failed) return g->err->status;
    cdr_bundle *b = g->b;
    memset(p, 0, sizeof *p);
    p->name = g->prog_name;
    p->n_vals = (int32_t)g->n_vals;
    p->vals = g->vals;
    for (int32_t i = 0; i < p->n_vals; i++) {
        p->vals[i].alias = renumber(b, p->vals[i].alias);
        p->vals[i].live = renumber(b, p->vals[i].live);
    }
    int64_t n_calls = 0;
    for (int l = 0; l < g->n_lists; l++) n_calls += g->lists[l].n;
    p->calls = cdr_pool_alloc(g->pool, sizeof *p->calls * (size_t)CDR_MAX(n_calls, 1));
    p->segs = cdr_pool_alloc(g->pool, sizeof *p->segs * (size_t)CDR_MAX(g->n_lists, 1));
    for (int l = 0; l < g->n_lists; l++) {
        p->segs[l] = (cdr_segment){ .first = p->n_calls, .n = (int32_t)g->lists[l].n, .repeat = CDR_NONE, .name = g->lists[l].name };
        for (int64_t i = 0; i < g->lists[l].n; i++) p->calls[p->n_calls++] = g->calls[g->lists[l].calls[i]];
    }
    p->n_segs = g->n_lists;
    p->operands = g->operands;
    p->n_operands = (int32_t)g->n_operands;
    for (int32_t i = 0; i < p->n_operands; i++) p->operands[i] = renumber(b, p->operands[i]);
    for (int32_t i = 0; i < p->n_calls; i++) {
        p->calls[i].pred = renumber(b, p->calls[i].pred);
        p->calls[i].work = renumber(b, p->calls[i].work);
    }
    p->attrs = g->attrs;
    p->n_attrs = (int32_t)g->n_attrs;
    p->strings = g->strings;
    p->n_strings = (int32_t)g->n_strings;
    p->turns = g->turns;
    p->n_turns = (int32_t)g->n_turns;
    p->metrics = g->metrics;
    p->n_metrics = (int32_t)g->n_metrics;
    for (int32_t i = 0; i < p->n_metrics; i++) p->metrics[i].v = renumber(b, p->metrics[i].v);
    return CDR_OK;
}

cdr_val cdr_value_root(const cdr_bundle *b, const cdr_program *p, cdr_val v, int64_t *at_bytes)
{
    int64_t at = 0;
    for (int hops = 0; hops < 16; hops++) {
        const cdr_value *x = cdr_value_at(b, p, v);
        if (x->alias == CDR_NONE) {
            if (at_bytes) *at_bytes = at;
            return v;
        }
        at += x->alias_at;
        v = x->alias;
    }
    bool alias_chain_ends = false;
    CDR_CHECK(alias_chain_ends);
    return CDR_NONE;
}

const char *cdr_value_name(const cdr_bundle *b, const cdr_program *p, cdr_val v)
{
    return v < b->n_shared ? b->shared_strings + b->shared[v].name : p->strings + p->vals[v - b->n_shared].name;
}

cdr_val cdr_program_find(const cdr_bundle *b, const cdr_program *p, const char *name)
{
    for (cdr_val v = 0; v < b->n_shared + p->n_vals; v++) if (strcmp(cdr_value_name(b, p, v), name) == 0) return v;
    return CDR_NONE;
}

bool cdr_call_writes(const cdr_program *p, const cdr_call *c, int i)
{
    return i >= c->n_in && p->operands[c->arg + (uint32_t)i] != CDR_NONE;
}

bool cdr_call_reads(const cdr_program *p, const cdr_call *c, int i)
{
    if (p->operands[c->arg + (uint32_t)i] == CDR_NONE) return false;
    if (i < c->n_in) return true;
    int k = i - c->n_in;
    return (((c->add | cdr_ops[c->op]->rmw) >> k) & 1u) != 0;
}

void cdr_call_types(const cdr_bundle *b, const cdr_program *p, const cdr_call *c, cdr_type t[CDR_MAX_OPERANDS])
{
    for (int k = 0; k < c->n_in + c->n_out; k++) {
        cdr_val v = p->operands[c->arg + (uint32_t)k];
        t[k] = v == CDR_NONE ? (cdr_type){ .dtype = CDR_N_DTYPES } : cdr_value_at(b, p, v)->t;
    }
}

static void print_value(cdr_text *out, const cdr_bundle *b, const cdr_program *p, cdr_val v)
{
    if (v == CDR_NONE) {
        cdr_text_printf(out, "-");
        return;
    }
    char t[64];
    cdr_type_print(t, &cdr_value_at(b, p, v)->t);
    cdr_text_printf(out, "%s:%s", cdr_value_name(b, p, v), t);
}

void cdr_program_print(cdr_text *out, const cdr_bundle *b, const cdr_program *p)
{
    static const char *const stream[] = { "", " @comm", " @out", " @in" };
    static const char *const phase[] = { "fwd", "bwd", "again", "upd" };
    cdr_text_printf(out, "program %s: %d segments, %d calls, %d values, %d turns\n", p->name, p->n_segs, p->n_calls, p->n_vals, p->n_turns);
    for (int s = 0; s < p->n_segs; s++) {
        cdr_text_printf(out, "segment %s\n", p->segs[s].name);
        for (int32_t i = p->segs[s].first; i < p->segs[s].first + p->segs[s].n; i++) {
            const cdr_call *c = &p->calls[i];
            cdr_text_printf(out, "%5d %-5s %-32s", i, phase[c->phase], p->strings + c->origin);
            for (int k = 0; k < c->n_out; k++) {
                cdr_text_printf(out, k ? ", " : " ");
                print_value(out, b, p, p->operands[c->arg + c->n_in + (uint32_t)k]);
                if ((c->add >> k) & 1u) cdr_text_printf(out, " +=");
            }
            cdr_text_printf(out, " <- %s(", cdr_ops[c->op]->name);
            for (int k = 0; k < c->n_in; k++) {
                if (k) cdr_text_printf(out, ", ");
                print_value(out, b, p, p->operands[c->arg + (uint32_t)k]);
            }
            cdr_text_printf(out, ")%s", stream[c->stream]);
            if (c->work != CDR_NONE) cdr_text_printf(out, " work %lld", (long long)cdr_type_bytes(&cdr_value_at(b, p, c->work)->t));
            for (int w = 0; w < c->n_wait; w++) cdr_text_printf(out, "%s%d", w ? "," : " wait ", p->waits[c->wait + (uint32_t)w]);
            if (c->pred != CDR_NONE) cdr_text_printf(out, " if %s", cdr_value_name(b, p, c->pred));
            cdr_text_printf(out, "\n");
        }
    }
}
