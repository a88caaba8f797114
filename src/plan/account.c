/* account.c: adds up a bundle. Bytes are exact; times follow from the machine file's figures (time.c). */
#include "plan/account.h"
#include <stdlib.h>

typedef struct { int32_t start, end; } span;

/* first and last call of each value of a program, through its views, in list order */
static span *spans(const cdr_bundle *b, const cdr_program *p)
{
    span *s = cdr_alloc(sizeof *s * (size_t)CDR_MAX(p->n_vals, 1));
    for (int32_t i = 0; i < p->n_vals; i++) s[i] = (span){ INT32_MAX, -1 };
    for (int32_t c = 0; c < p->n_calls; c++) {
        const cdr_call *call = &p->calls[c];
        for (int k = 0; k <= call->n_in + call->n_out; k++) {
            cdr_val v = k < call->n_in + call->n_out ? p->operands[call->arg + (uint32_t)k] : call->work;
            if (v == CDR_NONE) continue;
            v = cdr_value_root(b, p, v, NULL);
            if (v < b->n_shared) continue;
            span *x = &s[v - b->n_shared];
            x->start = CDR_MIN(x->start, c);
            x->end = c;
        }
    }
    return s;
}

static const cdr_coll *coll_of(const cdr_program *p, const cdr_call *c)
{
    return (cdr_ops[c->op]->flags & CDR_OP_COLLECTIVE) ? (const void *)(p->attrs + c->attr) : NULL;
}

static cdr_cost call_cost(const cdr_bundle *b, const cdr_program *p, const cdr_call *c)
{
    cdr_type t[CDR_MAX_OPERANDS];
    cdr_call_types(b, p, c, t);
    return cdr_op_cost(cdr_ops[c->op], p->attrs + c->attr, c->n_in, c->n_out, t);
}

static void add_classes(const cdr_value *v, int32_t n, cdr_scope scope, cdr_account *a)
{
    for (int32_t i = 0; i < n; i++)
        if (v[i].scope == scope && v[i].alias == CDR_NONE && v[i].offset >= 0) a->by_class[v[i].cls] += v[i].stride * v[i].n_inst;
}

/* Whole parameters on their way: what a gather writes. */
static bool *gathered(const cdr_program *p, int32_t n_shared)
{
    bool *is = cdr_alloc((size_t)p->n_vals + 1);
    memset(is, 0, (size_t)p->n_vals + 1);
    for (int32_t i = 0; i < p->n_calls; i++) {
        const cdr_call *c = &p->calls[i];
        const cdr_coll *k = coll_of(p, c);
        for (int j = c->n_in; k && k->kind == CDR_COLL_GATHER && j < c->n_in + c->n_out; j++) {
            cdr_val v = p->operands[c->arg + (uint32_t)j];
            if (v >= n_shared) is[v - n_shared] = true;
        }
    }
    return is;
}

/* Turns of each segment in a step. */
static int64_t turns_of(const cdr_program *p, int segment)
{
    int64_t n = 0;
    for (int32_t t = 0; t < p->n_turns; t++) n += p->turns[t].segment == segment;
    return n;
}

void cdr_account_bundle(const cdr_bundle *b, cdr_account *a)
{
    memset(a, 0, sizeof *a);
    a->run_bytes = b->run_bytes[0];
    a->exec_bytes = b->exec_bytes[0];
    a->total_bytes = a->run_bytes + a->exec_bytes;
    a->lower_bound_bytes = b->lower_bound[0];
    for (int32_t v = 0; v < b->n_shared; v++) a->mapped_bytes += (int64_t)cdr_mapped_bytes(&b->shared[v].t);
    const cdr_program *peak = &b->progs[b->peak_prog];
    a->peak_prog = peak->name;
    int32_t at = (int32_t)CDR_MIN(b->peak_call, (int64_t)peak->n_calls - 1);
    a->peak_at = peak->n_calls > 0 ? peak->strings + peak->calls[at].origin : "";
    add_classes(b->shared, b->n_shared, CDR_RUN, a);
    add_classes(peak->vals, peak->n_vals, CDR_STEP, a);
    span *s = spans(b, peak);
    bool *whole = gathered(peak, b->n_shared);
    for (int32_t i = 0; i < peak->n_vals; i++) {
        const cdr_value *v = &peak->vals[i];
        bool live = v->scope == CDR_TURN && v->alias == CDR_NONE && s[i].start <= at && at <= s[i].end;
        if (live) a->by_class[whole[i] ? CDR_C_COMM : v->cls] += v->stride * v->n_inst;
    }
    cdr_free(whole);
    cdr_free(s);
    a->unused_bytes = a->total_bytes;
    for (int c = 0; c < CDR_N_CLASSES; c++) a->unused_bytes -= a->by_class[c];
    const cdr_program *p = &b->progs[CDR_PROG_STEP];
    for (int32_t g = 0; g < p->n_segs; g++) {
        const cdr_segment *seg = &p->segs[g];
        int64_t n = turns_of(p, g);
        for (int32_t i = seg->first; n > 0 && i < seg->first + seg->n; i++) {
            cdr_cost c = call_cost(b, p, &p->calls[i]);
            a->flop += c.flop * (double)n;
            a->memory_bytes += (c.read + c.write) * (double)n;
            const cdr_coll *k = coll_of(p, &p->calls[i]);
            if (k) a->wire_bytes += k->wire_bytes * n;
        }
    }
}

static int by_place(const void *x, const void *y)
{
    const cdr_value *a = *(const cdr_value *const *)x, *b = *(const cdr_value *const *)y;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return (a->name > b->name) - (a->name < b->name);
}

void cdr_account_memory(cdr_text *out, const cdr_bundle *b, int program)
{
    static const char *const scope[] = { "run", "step", "turn" };
    const cdr_program *p = &b->progs[program];
    span *s = spans(b, p);
    const cdr_value **v = cdr_alloc(sizeof *v * (size_t)(b->n_shared + p->n_vals + 1));
    int32_t n = 0;
    for (cdr_val i = 0; i < b->n_shared + p->n_vals; i++) {
        const cdr_value *x = cdr_value_at(b, p, i);
        if (x->alias == CDR_NONE && x->offset >= 0) v[n++] = x;
    }
    qsort(v, (size_t)n, sizeof *v, by_place);
    cdr_text_printf(out, "%14s %14s %4s %-11s %-6s %11s  value\n", "offset", "bytes", "inst", "class", "scope", "calls");
    for (int32_t i = 0; i < n; i++) {
        bool shared = v[i] >= b->shared && v[i] < b->shared + b->n_shared;
        char t[64], life[32] = "", padding[64] = "";
        cdr_type_print(t, &v[i]->t);
        if (v[i]->t.layout == CDR_MAPPED) snprintf(padding, sizeof padding, ", %zu bytes of a mapped file", cdr_mapped_bytes(&v[i]->t));
        else if (v[i]->t.layout != CDR_ROWS) {
            cdr_type rows = v[i]->t;
            rows.layout = CDR_ROWS;
            snprintf(padding, sizeof padding, ", %lld bytes of padding", (long long)(cdr_type_bytes(&v[i]->t) - cdr_type_bytes(&rows)));
        }
        if (!shared && v[i]->scope == CDR_TURN) snprintf(life, sizeof life, "%d-%d", s[v[i] - p->vals].start, s[v[i] - p->vals].end);
        cdr_text_printf(out, "%14lld %14lld %4d %-11s %-6s %11s  %s %s%s\n", (long long)v[i]->offset, (long long)(v[i]->stride * v[i]->n_inst), v[i]->n_inst,
                        cdr_class_name[v[i]->cls], scope[v[i]->scope], life, (shared ? b->shared_strings : p->strings) + v[i]->name, t, padding);
    }
    cdr_free(v);
    cdr_free(s);
}

void cdr_account_comm(cdr_text *out, const cdr_bundle *b)
{
    const cdr_program *p = &b->progs[CDR_PROG_STEP];
    for (int32_t i = 0; i < p->n_calls; i++) {
        const cdr_coll *k = coll_of(p, &p->calls[i]);
        if (k) cdr_text_printf(out, "%5d %-16s %-9s %12lld bytes  %s\n", i, cdr_ops[p->calls[i].op]->name, cdr_comm_name[k->comm], (long long)k->wire_bytes,
                               p->strings + p->calls[i].origin);
    }
}
