/* schedule: segments, turns over micro-batches, and waits between streams. Emits the array programs.
 *
 * Within a turn the calls of a stream run in list order. A call waits for a call of another stream where both touch a
 * value and one of them writes it, unless the order follows from waits that are there already (vector clocks), so no
 * wait can be left away. All streams join at the start of a turn.
 *
 * A gather of parameters reads nothing that a call makes: nothing would keep it from starting at once, beside all other gathers, and every unit would need bytes of
 * its own. So it also waits for the compute call that is listed before it: its place in the list (`shard`: prefetch) is how far it runs ahead. */
#include "compile/pass.h"
#include "ops/gather/gather.h"

/* micro_split: the backward, with what belongs to it, becomes a segment of its own. The sum of the further losses, which lies among the
 * forward calls, belongs to it: micro-batches are counted in the order of their backwards. */
static void split_micro(cdr_graph *g)
{
    cdr_list all = *cdr__list(g, CDR_L_MICRO), part[2] = { { .name = all.name }, { .name = CDR_L_BACKWARD } };
    for (int64_t i = 0; i < all.n; i++) cdr__list_push(g, &part[g->calls[all.calls[i]].phase != CDR_P_FWD], all.calls[i]);
    *cdr__list(g, CDR_L_MICRO) = part[0];
    int back = cdr_graph_list(g, CDR_L_BACKWARD);
    g->lists[back] = part[1];
}

static int16_t list_index(cdr_graph *g, const char *name) { return (int16_t)(cdr__list(g, name) - g->lists); }

static void add_turn(cdr_graph *g, int16_t segment, int mb) { *CDR_PUSH(g->pool, g->turns, g->n_turns, g->cap_turns) = (cdr_turn){ segment, (int16_t)mb }; }

static void step_turns(cdr_pass *p, cdr_graph *g)
{
    const cdr_compile_opts *o = p->o;
    add_turn(g, list_index(g, CDR_L_BEGIN), 0);
    int16_t f = list_index(g, CDR_L_MICRO), b = o->micro_split ? list_index(g, CDR_L_BACKWARD) : -1;
    if (o->micro_split && o->turns)
        for (int i = 0; i < o->n_turns; i++) add_turn(g, o->turns[i].segment == 0 ? f : b, o->turns[i].mb);
    else
        for (int i = 0; i < o->n_micro; i++) {
            add_turn(g, f, i);
            if (b >= 0) add_turn(g, b, i);
        }
    add_turn(g, list_index(g, CDR_L_FINISH), 0);
}

/* With several micro-batches in flight each needs its own copy of what its forward hands to its backward. */
static void make_copies(cdr_pass *p, cdr_graph *g)
{
    if (!p->o->micro_split || !p->o->turns) return;
    int flight = 0, most = 1;
    for (int i = 0; i < p->o->n_turns; i++) {
        flight += p->o->turns[i].segment == 0 ? 1 : -1;
        most = CDR_MAX(most, flight);
    }
    cdr_list *f = cdr__list(g, CDR_L_MICRO), *b = cdr__list(g, CDR_L_BACKWARD);
    bool *fwd = cdr_pool_alloc(g->pool, (size_t)g->n_vals + 1);
    for (int64_t i = 0; i < f->n; i++)
        for (int k = 0; k < g->calls[f->calls[i]].n_out; k++) {
            cdr_val v = cdr__root(g, cdr_graph_out(g, &g->calls[f->calls[i]], k));
            if (v >= CDR_LOCAL0) fwd[v - CDR_LOCAL0] = true;
        }
    for (int64_t i = 0; i < b->n; i++)
        for (int k = 0; k < g->calls[b->calls[i]].n_in; k++) {
            cdr_val v = cdr__root(g, cdr_graph_in(g, &g->calls[b->calls[i]], k));
            if (v >= CDR_LOCAL0 && fwd[v - CDR_LOCAL0] && cdr_graph_at(g, v)->scope == CDR_TURN) cdr_graph_at(g, v)->n_inst = (int16_t)most;
        }
    /* views have as many copies as what they are views of */
    for (int64_t i = 0; i < g->n_vals; i++)
        if (g->vals[i].alias != CDR_NONE && cdr__root(g, CDR_LOCAL0 + (cdr_val)i) >= CDR_LOCAL0)
            g->vals[i].n_inst = cdr_graph_at(g, cdr__root(g, CDR_LOCAL0 + (cdr_val)i))->n_inst;
}

/* ---- waits ---- */
typedef struct { int32_t write; int32_t read[CDR_N_STREAMS]; } last_use;     /* positions in the program; -1: none */

static void require(const cdr_program *p, cdr_clock *need, int32_t pos, int stream)
{
    if (pos >= 0 && p->calls[pos].stream != stream) need->at[p->calls[pos].stream] = CDR_MAX(need->at[p->calls[pos].stream], pos);
}

static cdr_val operand_or_pred(const cdr_program *p, const cdr_call *c, int k)
{
    return k < c->n_in + c->n_out ? p->operands[c->arg + (uint32_t)k] : c->pred;
}

static void join(cdr_clock *a, const cdr_clock *b)
{
    for (int s = 0; s < CDR_N_STREAMS; s++) a->at[s] = CDR_MAX(a->at[s], b->at[s]);
}

/* known[s]: what stream s knows to be over. done[pos]: what is over once call pos is over. */
static void add_waits(cdr_pass *pass, cdr_program *p)
{
    cdr_bundle *b = pass->b;
    int64_t n_waits = 0, cap_waits = 0, n_vals = b->n_shared + p->n_vals;
    last_use *use = cdr_pool_alloc(pass->pool, sizeof *use * (size_t)n_vals);
    cdr_clock *done = cdr_pool_alloc(pass->pool, sizeof *done * (size_t)CDR_MAX(p->n_calls, 1));
    for (int sg = 0; sg < p->n_segs; sg++) {
        cdr_clock known[CDR_N_STREAMS];
        int32_t first = p->segs[sg].first;
        for (int s = 0; s < CDR_N_STREAMS; s++) for (int r = 0; r < CDR_N_STREAMS; r++) known[s].at[r] = first - 1;
        for (int64_t v = 0; v < n_vals; v++) use[v] = (last_use){ -1, { -1, -1, -1, -1 } };
        int32_t compute = -1;                                              /* the last call of the compute stream */
        for (int32_t i = first; i < first + p->segs[sg].n; i++) {
            cdr_call *c = &p->calls[i];
            cdr_clock need = { { -1, -1, -1, -1 } };
            bool view = (cdr__op(c)->flags & CDR_OP_VIEW) != 0;            /* does nothing: no use of its operands */
            int n_ops = view ? 0 : c->n_in + c->n_out + 1;
            for (int k = 0; k < n_ops; k++) {
                cdr_val v = operand_or_pred(p, c, k);
                if (v == CDR_NONE) continue;
                bool writes = k >= c->n_in && k < c->n_in + c->n_out;
                last_use *u = &use[cdr_value_root(b, p, v, NULL)];
                require(p, &need, u->write, c->stream);
                for (int s = 0; writes && s < CDR_N_STREAMS; s++) require(p, &need, u->read[s], c->stream);
            }
            if (cdr__op(c) == &cdr_op_gather) require(p, &need, compute, c->stream);
            if (!view && c->stream == CDR_S_COMPUTE) compute = i;
            for (int s = 0; s < CDR_N_STREAMS; s++) if (need.at[s] <= known[c->stream].at[s]) need.at[s] = -1;
            for (int s = 0; s < CDR_N_STREAMS; s++)          /* implied by another one of the new waits */
                for (int r = 0; r < CDR_N_STREAMS; r++)
                    if (r != s && need.at[r] >= 0 && need.at[s] >= 0 && done[need.at[r]].at[s] >= need.at[s]) need.at[s] = -1;
            c->wait = (uint32_t)n_waits;
            for (int s = 0; s < CDR_N_STREAMS; s++) {
                if (need.at[s] < 0) continue;
                *CDR_PUSH(pass->pool, p->waits, n_waits, cap_waits) = need.at[s];
                c->n_wait++;
                join(&known[c->stream], &done[need.at[s]]);
            }
            known[c->stream].at[c->stream] = i;
            done[i] = known[c->stream];
            for (int k = 0; k < n_ops; k++) {
                cdr_val v = operand_or_pred(p, c, k);
                if (v == CDR_NONE) continue;
                last_use *u = &use[cdr_value_root(b, p, v, NULL)];
                if (k < c->n_in || k == c->n_in + c->n_out) u->read[c->stream] = i;
                else {
                    u->write = i;
                    for (int s = 0; s < CDR_N_STREAMS; s++) u->read[s] = -1;
                }
            }
        }
    }
    p->n_waits = (int32_t)n_waits;
}

cdr_clock *cdr__clocks(cdr_pool *pool, const cdr_program *p)
{
    cdr_clock *start = cdr_pool_alloc(pool, sizeof *start * (size_t)CDR_MAX(p->n_calls, 1));
    cdr_clock *done = cdr_pool_alloc(pool, sizeof *done * (size_t)CDR_MAX(p->n_calls, 1));
    for (int sg = 0; sg < p->n_segs; sg++) {
        cdr_clock known[CDR_N_STREAMS];
        int32_t first = p->segs[sg].first;
        for (int s = 0; s < CDR_N_STREAMS; s++) for (int r = 0; r < CDR_N_STREAMS; r++) known[s].at[r] = first - 1;
        for (int32_t i = first; i < first + p->segs[sg].n; i++) {
            const cdr_call *c = &p->calls[i];
            for (int w = 0; w < c->n_wait; w++) join(&known[c->stream], &done[p->waits[c->wait + (uint32_t)w]]);
            start[i] = known[c->stream];
            known[c->stream].at[c->stream] = i;
            done[i] = known[c->stream];
        }
    }
    return start;
}

int cdr__distinct_turns(const cdr_program *p, cdr_turn *out, int max)
{
    int n = 0;
    bool split = false;                       /* values live from one turn into another: every turn counts */
    for (int s = 0; s < p->n_segs; s++) split = split || strcmp(p->segs[s].name, CDR_L_BACKWARD) == 0;
    for (int32_t i = 0; i < p->n_turns; i++) {
        bool third = !split && i >= 2 && p->turns[i].segment == p->turns[i - 1].segment && p->turns[i].segment == p->turns[i - 2].segment;
        if (third) continue;
        CDR_CHECK(n < max);
        out[n++] = p->turns[i];
    }
    return n;
}

static uint64_t hash_bundle(const cdr_bundle *b)
{
    cdr_hasher *h = cdr_hasher_new();
    for (int32_t i = 0; i < b->n_params; i++) {
        const cdr_param *q = &b->params[i];
        cdr_hasher_add(h, q->name, strlen(q->name) + 1);
        cdr_hasher_add(h, q->global.n, sizeof q->global.n);
        uint8_t row[] = { q->train, q->rule, q->init, q->decay };
        cdr_hasher_add(h, row, sizeof row);
    }
    for (int32_t q = 0; q < b->n_progs; q++) {
        const cdr_program *p = &b->progs[q];
        for (int32_t i = 0; i < p->n_calls; i++) {
            const cdr_op *op = cdr_ops[p->calls[i].op];
            cdr_hasher_add(h, op->name, strlen(op->name) + 1);
            if (!(op->flags & CDR_OP_COLLECTIVE)) continue;
            const cdr_coll *c = (const void *)(p->attrs + p->calls[i].attr);
            int64_t row[] = { c->kind, c->order, c->comm, c->wire_bytes };
            cdr_hasher_add(h, row, sizeof row);
        }
    }
    return cdr_hasher_end(h);
}

cdr_status cdr__schedule(cdr_pass *p)
{
    cdr_bundle *b = p->b;
    cdr_graph *g = p->g[CDR_PROG_STEP];
    if (!p->o->infer_only) {
        if (p->o->micro_split) split_micro(g);
        make_copies(p, g);
        step_turns(p, g);
    }
    for (int q = CDR_PROG_EVAL; q < CDR_N_PROGS; q++) if (p->g[q] && p->g[q]->n_lists > 0) add_turn(p->g[q], 0, 0);
    b->n_progs = CDR_N_PROGS;
    b->progs = cdr_pool_alloc(p->pool, sizeof *b->progs * CDR_N_PROGS);
    for (int q = 0; q < CDR_N_PROGS; q++) {
        if (!p->g[q]) continue;
        CDR_TRY(cdr_graph_emit(p->g[q], &b->progs[q]));
        add_waits(p, &b->progs[q]);
    }
    for (int32_t i = 0; i < b->n_params; i++)                     /* gradients are values of the step program */
        if (b->params[i].grad != CDR_NONE) b->params[i].grad += b->n_shared - CDR_LOCAL0;
    b->progs[CDR_PROG_PROBE] = b->progs[CDR_PROG_STEP];           /* the step, one turn less: what made the value is still there */
    b->progs[CDR_PROG_PROBE].name = "probe";
    if (!p->o->infer_only) b->progs[CDR_PROG_PROBE].n_turns--;
    if (!p->g[CDR_PROG_GENERATE]) b->progs[CDR_PROG_GENERATE].name = "generate";
    b->hash = hash_bundle(b);
    return CDR_OK;
}
