/* verify: proves, from the emitted program alone, that it may run in every legal order. Independent of how place and
 * schedule reached their result.
 *
 * The schedule is unrolled; the slab is cut into atoms at every value's bounds. For each atom: who wrote it last, who
 * read it last on each stream, and whose bytes it holds. An access is legal where every earlier conflicting access
 * happens before it (joins at turn starts, vector clocks of the waits inside a turn), and a read finds its own value's
 * bytes, written in its own micro-batch. Only RUN values and step inputs are there without a write. Bytes of RUN and
 * STEP values belong to them throughout. Two operands of one call share bytes only where they are views of one value (in
 * place). Collectives: every rank has the same sequence of (operator, kind, order, communicator, bytes). */
#include "compile/pass.h"
#include <stdlib.h>

typedef struct { int32_t turn, call; } stamp;              /* call -1: never */
/* owner: whose bytes; -1: nobody's. kept: for the whole program (RUN, STEP). user: owner at the last access of any kind. */
typedef struct { int64_t owner, user; bool kept; stamp write, read[CDR_N_STREAMS]; } atom;

typedef struct {
    const cdr_bundle *b; const cdr_program *p; cdr_err *err;
    cdr_clock *start; int64_t *bound; int64_t n_bounds; atom *atoms;
    int32_t turn, call, mb;
} checker;

static int by_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* A TURN value's bytes are those of one micro-batch, whichever copy it has. */
static int64_t owner_key(cdr_val root, int inst_or_mb) { return (int64_t)(root + 1) * 32768 + inst_or_mb; }

static void bounds(checker *k, cdr_pool *pool)
{
    int64_t n = 0, cap = 0, total = k->b->n_shared + k->p->n_vals;
    for (cdr_val v = 0; v < total; v++) {
        const cdr_value *x = cdr_value_at(k->b, k->p, v);
        if (x->offset < 0) continue;
        for (int i = 0; i < x->n_inst; i++) {
            *CDR_PUSH(pool, k->bound, n, cap) = x->offset + i * x->stride;
            *CDR_PUSH(pool, k->bound, n, cap) = x->offset + i * x->stride + (int64_t)cdr_type_bytes(&x->t);
        }
    }
    qsort(k->bound, (size_t)n, sizeof *k->bound, by_i64);
    int64_t u = 0;
    for (int64_t i = 0; i < n; i++) if (u == 0 || k->bound[i] != k->bound[u - 1]) k->bound[u++] = k->bound[i];
    k->n_bounds = u;
    k->atoms = cdr_pool_alloc(pool, sizeof *k->atoms * (size_t)CDR_MAX(u, 1));
    for (int64_t i = 0; i < u; i++) {
        k->atoms[i].owner = k->atoms[i].user = -1;
        k->atoms[i].write.call = -1;
        for (int s = 0; s < CDR_N_STREAMS; s++) k->atoms[i].read[s].call = -1;
    }
}

static int64_t find_bound(const checker *k, int64_t at)
{
    int64_t lo = 0, hi = k->n_bounds - 1;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (k->bound[mid] < at) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* RUN and STEP values: each byte has one of them at most. */
static cdr_status claim(checker *k)
{
    for (cdr_val v = 0; v < k->b->n_shared + k->p->n_vals; v++) {
        const cdr_value *x = cdr_value_at(k->b, k->p, v);
        for (int i = 0; x->scope != CDR_TURN && x->alias == CDR_NONE && x->offset >= 0 && i < x->n_inst; i++) {
            int64_t lo = x->offset + i * x->stride, hi = lo + (int64_t)cdr_type_bytes(&x->t);
            for (int64_t at = find_bound(k, lo); at < k->n_bounds && k->bound[at] < hi; at++) {
                if (k->atoms[at].kept)
                    CDR_FAIL_ID(k->err, CDR_EBUG, "verify", "program %s: %s has bytes of another value that lives as long", k->p->name,
                                cdr_value_name(k->b, k->p, v));
                k->atoms[at].owner = owner_key(v, i);
                k->atoms[at].kept = true;
            }
        }
    }
    return CDR_OK;
}

static bool ordered(const checker *k, stamp s)
{
    if (s.call < 0 || s.turn < k->turn || s.call == k->call) return true;       /* in place: the call itself */
    const cdr_call *c = &k->p->calls[s.call];
    return k->start[k->call].at[c->stream] >= s.call;
}

static cdr_status fault(const checker *k, const char *what, cdr_val v, int32_t other)
{
    CDR_FAIL_ID(k->err, CDR_EBUG, "verify", "program %s: call %d (%s): %s %s%s%s", k->p->name, k->call, k->p->strings + k->p->calls[k->call].origin,
                what, cdr_value_name(k->b, k->p, v), other >= 0 ? "; the other call is " : "",
                other >= 0 ? k->p->strings + k->p->calls[other].origin : "");
}


/* Did the call itself use these bytes already, as another operand? */
static bool touched_now(const checker *k, const atom *a)
{
    const stamp *r = &a->read[k->p->calls[k->call].stream];
    return (a->write.turn == k->turn && a->write.call == k->call) || (r->turn == k->turn && r->call == k->call);
}

static cdr_status access(checker *k, cdr_val v, bool read, bool write, bool must_hold)
{
    const cdr_value *x = cdr_value_at(k->b, k->p, v);
    if (x->offset < 0) return fault(k, "uses a value without a place:", v, -1);
    int inst = k->mb % x->n_inst, stream = k->p->calls[k->call].stream;
    int64_t lo = x->offset + inst * x->stride, hi = lo + (int64_t)cdr_type_bytes(&x->t);
    cdr_val root = cdr_value_root(k->b, k->p, v, NULL);
    const cdr_value *whole = cdr_value_at(k->b, k->p, root);
    bool turn_scope = whole->scope == CDR_TURN, from_host = whole->scope == CDR_RUN || (whole->flags & CDR_F_INPUT);
    int64_t me = owner_key(root, turn_scope ? k->mb : inst);
    for (int64_t i = find_bound(k, lo); i < k->n_bounds && k->bound[i] < hi; i++) {
        atom *a = &k->atoms[i];
        if (touched_now(k, a) && a->user != me) return fault(k, "has two operands on the same bytes, one of them", v, -1);
        if ((write && a->kept && a->owner != me) || (!turn_scope && a->owner != me)) return fault(k, "finds bytes of another value at", v, a->write.call);
        if (read && must_hold && !from_host && a->write.call < 0) return fault(k, "reads bytes that nobody wrote:", v, -1);
        if (read && must_hold && a->owner != me) return fault(k, "reads bytes that are not (any more) those of", v, a->write.call);
        if (!ordered(k, a->write)) return fault(k, "is not ordered after the write of", v, a->write.call);
        for (int s = 0; write && s < CDR_N_STREAMS; s++)
            if (!ordered(k, a->read[s])) return fault(k, "writes while a read is not over:", v, a->read[s].call);
        if (read) a->read[stream] = (stamp){ k->turn, k->call };
        if (write) {
            a->owner = me;
            a->write = (stamp){ k->turn, k->call };
            for (int s = 0; s < CDR_N_STREAMS; s++) a->read[s].call = -1;
        }
        a->user = me;
    }
    return CDR_OK;
}

static cdr_status check_call(checker *k)
{
    const cdr_call *c = &k->p->calls[k->call];
    for (int w = 0; w < c->n_wait; w++)
        if (k->p->waits[c->wait + (uint32_t)w] >= k->call) return fault(k, "waits for a later call; operand", k->p->operands[c->arg], -1);
    if (cdr_ops[c->op]->flags & CDR_OP_VIEW) return CDR_OK;
    for (int i = 0; i < c->n_in; i++) {
        cdr_val v = k->p->operands[c->arg + (uint32_t)i];
        if (v != CDR_NONE) CDR_TRY(access(k, v, true, false, true));
    }
    if (c->pred != CDR_NONE) CDR_TRY(access(k, c->pred, true, false, true));
    if (c->work != CDR_NONE) CDR_TRY(access(k, c->work, false, true, false));
    for (int i = c->n_in; i < c->n_in + c->n_out; i++) {
        cdr_val v = k->p->operands[c->arg + (uint32_t)i];
        if (v == CDR_NONE) continue;
        bool add = (c->add >> (i - c->n_in)) & 1u;
        CDR_TRY(access(k, v, cdr_call_reads(k->p, c, i), true, add));
    }
    return CDR_OK;
}

static cdr_status verify_program(const cdr_bundle *b, const cdr_program *p, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    checker k = { .b = b, .p = p, .err = err, .start = cdr__clocks(pool, p) };
    bounds(&k, pool);
    cdr_turn *turns = cdr_pool_alloc(pool, sizeof *turns * (size_t)CDR_MAX(p->n_turns, 1));
    int n = cdr__distinct_turns(p, turns, CDR_MAX(p->n_turns, 1));
    cdr_status st = claim(&k);
    for (int t = 0; t < n && st == CDR_OK; t++) {
        const cdr_segment *s = &p->segs[turns[t].segment];
        k.turn = t;
        k.mb = turns[t].mb;
        for (int32_t i = s->first; i < s->first + s->n && st == CDR_OK; i++) {
            k.call = i;
            st = check_call(&k);
        }
    }
    cdr_pool_free(pool);
    return st;
}

cdr_status cdr_verify(const cdr_bundle *b, cdr_err *err)
{
    for (int32_t q = 0; q < b->n_progs; q++)
        if (b->progs[q].n_calls > 0) CDR_TRY(verify_program(b, &b->progs[q], err));
    return CDR_OK;
}

/* next collective at or after *i; NULL at the end */
static const cdr_call *next_coll(const cdr_program *p, int32_t *i)
{
    for (; *i < p->n_calls; (*i)++)
        if (cdr_ops[p->calls[*i].op]->flags & CDR_OP_COLLECTIVE) return &p->calls[(*i)++];
    return NULL;
}

static cdr_status same_collectives(const cdr_program *p, const cdr_program *q, int rank, cdr_err *err)
{
    int32_t i = 0, j = 0;
    for (;;) {
        const cdr_call *c = next_coll(p, &i), *d = next_coll(q, &j);
        if (!c && !d) break;
        bool same = c && d && c->op == d->op;
        if (same) {
            const cdr_coll *x = (const void *)(p->attrs + c->attr), *y = (const void *)(q->attrs + d->attr);
            same = x->kind == y->kind && x->order == y->order && x->comm == y->comm && x->wire_bytes == y->wire_bytes;
        }
        if (!same)
            CDR_FAIL_ID(err, CDR_EBUG, "verify.collectives", "program %s: rank 0 and rank %d differ at %s / %s: the collectives would not meet",
                        p->name, rank, c ? p->strings + c->origin : "the end", d ? q->strings + d->origin : "the end");
    }
    bool turns = p->n_turns == q->n_turns && (p->n_turns == 0 || memcmp(p->turns, q->turns, sizeof *p->turns * (size_t)p->n_turns) == 0);
    if (!turns) CDR_FAIL_ID(err, CDR_EBUG, "verify.collectives", "program %s: rank 0 and rank %d have different schedules", p->name, rank);
    return CDR_OK;
}

cdr_status cdr_verify_ranks(const cdr_bundle *const *b, int n, cdr_err *err)
{
    for (int r = 1; r < n; r++) {
        if (b[r] == b[0]) continue;                       /* ranks of one class share a bundle */
        if (b[r]->hash != b[0]->hash) CDR_FAIL_ID(err, CDR_EBUG, "verify.hash", "rank %d compiled another program than rank 0", r);
        for (int32_t q = 0; q < b[0]->n_progs; q++) CDR_TRY(same_collectives(&b[0]->progs[q], &b[r]->progs[q], r, err));
    }
    return CDR_OK;
}
