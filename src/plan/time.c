/* time.c: what travels on which link, and how long a step takes by it.
 *
 * Ranks of a node are consecutive. A communicator of n ranks with k of them in each node, g = n / k nodes:
 *   gather, reduce-scatter, all-reduce   hierarchical: one of a node's k ranks fetches each piece from other nodes, then they share it.
 *                                        Of the W bytes that a rank receives, W (g - 1) / (n - 1) cross nodes, W (n - g) / (n - 1) do not.  (1)
 *   exchange of experts' rows            uniform routing, every peer as much: W (n - k) / (n - 1) cross nodes, W (k - 1) / (n - 1) do not.  (2)
 * The tree of a reduce-scatter is the same either way: it goes over the ranks of a node first (comm.h).
 *   time of a collective = max over links of bytes / rate, + latency of the slower one                                                     (3)
 *   time of a call       = max(FLOPs / GEMM rate, bytes / memory rate), + (3)                                                              (4)
 *   time of a turn       = calls of a stream one after the other, streams beside each other, each call after what it waits for              (5)
 * The waits of (5) are the program's own, so what a gather hides behind is what the run hides it behind. No launch cost, no contention
 * between streams. Source of (1) to (4): spec/planner.md, 2.1. */
#include "plan/account.h"
#include <math.h>

typedef struct { int n, inside; } group;              /* ranks of a communicator; those of them in one node */
typedef struct { double flop_bps, memory_bps, device_bps, node_bps; const cdr_machine_link *device, *node; int node_ranks; } rates;

int cdr_account_node_ranks(const cdr_machine *m, int world)
{
    int n = 1;
    if (!cdr_machine_link_find(m, CDR_JOINS_NODE)) return world;
    while (2 * (int64_t)n <= m->devices) n *= 2;
    return CDR_MIN(n, world);
}

static group group_of(int comm, const cdr_mesh *m, int node_ranks)
{
    int n_shard = m->size[CDR_AXIS_SHARD], ep = cdr_mesh_expert(m);
    const int size[CDR_N_COMMS] = { m->world, n_shard, m->size[CDR_AXIS_REPLICATE], ep, cdr_mesh_efsdp(m) }, stride[CDR_N_COMMS] = { 1, 1, n_shard, 1, ep };
    int inside = CDR_MAX(1, node_ranks / stride[comm]);
    return (group){ size[comm], CDR_MIN(inside, size[comm]) };
}

/* (1), (2): of w bytes that a rank receives, those from other nodes. */
static double crossing(const cdr_coll *k, group c)
{
    if (c.n <= 1) return 0;
    int g = c.n / c.inside;
    return k->kind == CDR_COLL_EXPERTS ? (double)(c.n - c.inside) / (c.n - 1) : (double)(g - 1) / (c.n - 1);
}

static const cdr_coll *coll_of(const cdr_program *p, const cdr_call *c)
{
    return (cdr_ops[c->op]->flags & CDR_OP_COLLECTIVE) ? (const void *)(p->attrs + c->attr) : NULL;
}

static int64_t turns_of(const cdr_program *p, int segment)
{
    int64_t n = 0;
    for (int32_t t = 0; t < p->n_turns; t++) n += p->turns[t].segment == segment;
    return n;
}

/* ---- traffic ---------------------------------------------------------------------------------------------------------- */

static void add(cdr_account *a, const cdr_coll *k, const char *kind, const char *link, int64_t bytes, int64_t calls)
{
    int i = 0;
    if (bytes == 0) return;
    for (; i < a->n_comms; i++) {
        cdr_account_flow *x = &a->comm[i];
        if (strcmp(x->comm, cdr_comm_name[k->comm]) == 0 && strcmp(x->kind, kind) == 0 && strcmp(x->link, link) == 0) break;
    }
    CDR_CHECK(i < CDR_ACCOUNT_COMMS);
    if (i == a->n_comms) a->comm[a->n_comms++] = (cdr_account_flow){ cdr_comm_name[k->comm], kind, link, 0, 0 };
    a->comm[i].bytes += bytes;
    a->comm[i].calls += calls;
}

void cdr_account_traffic(const cdr_bundle *b, const cdr_mesh *mesh, const cdr_machine *m, cdr_account *a)
{
    const cdr_program *p = &b->progs[CDR_PROG_STEP];
    const cdr_machine_link *device = cdr_machine_link_find(m, CDR_JOINS_DEVICE), *node = cdr_machine_link_find(m, CDR_JOINS_NODE);
    const char *near = device ? device->name : "unknown", *far = device && device->within_all ? device->name : node ? node->name : near;
    int node_ranks = cdr_account_node_ranks(m, mesh->world);
    a->n_comms = 0;
    for (int32_t g = 0; g < p->n_segs; g++) {
        int64_t n = turns_of(p, g);
        for (int32_t i = p->segs[g].first; n > 0 && i < p->segs[g].first + p->segs[g].n; i++) {
            const cdr_coll *k = coll_of(p, &p->calls[i]);
            if (!k) continue;
            int64_t far_bytes = (int64_t)(crossing(k, group_of(k->comm, mesh, node_ranks)) * (double)k->wire_bytes + 0.5);
            const char *kind = cdr_ops[p->calls[i].op]->name;
            if (near == far) add(a, k, kind, near, k->wire_bytes * n, n);
            else {
                add(a, k, kind, near, (k->wire_bytes - far_bytes) * n, n);
                add(a, k, kind, far, far_bytes * n, n);
            }
        }
    }
}

/* ---- time ------------------------------------------------------------------------------------------------------------- */

static double link_rate(const cdr_machine_link *l, int node_ranks, cdr_basis *basis)
{
    double bps = l ? cdr_quantity_value(&l->bandwidth, basis) : 0;
    return l && l->per_node ? bps / node_ranks : bps;
}

static rates rates_of(const cdr_machine *m, int world, int dtype, cdr_account_times *t)
{
    rates r = { .node_ranks = cdr_account_node_ranks(m, world) };
    r.flop_bps = cdr_quantity_value(dtype == CDR_BF16 ? &m->bf16 : &m->f32, &t->basis);
    if (m->n_tiers > 0) r.memory_bps = cdr_quantity_value(&m->tier[0].copy, NULL);
    if (m->n_tiers > 0 && r.memory_bps <= 0) r.memory_bps = cdr_quantity_value(&m->tier[0].read, NULL);
    if (m->n_tiers > 0 && m->tier[0].per_node) r.memory_bps /= r.node_ranks;
    r.device = cdr_machine_link_find(m, CDR_JOINS_DEVICE);
    r.node = r.device && r.device->within_all ? r.device : cdr_machine_link_find(m, CDR_JOINS_NODE);
    r.device_bps = link_rate(r.device, r.node_ranks, &t->link_basis);
    r.node_bps = link_rate(r.node, r.node_ranks, NULL);
    return r;
}

/* The measured rate of an exchange, linear in the logarithm of bytes between the sizes that were measured. */
static double exchange_rate(const cdr_machine_link *l, double bytes, double otherwise)
{
    if (!l || l->n_sizes == 0) return otherwise;
    int i = 0;
    while (i < l->n_sizes && (double)l->all_to_all[i].bytes < bytes) i++;
    if (i == 0) return l->all_to_all[0].bps;
    if (i == l->n_sizes) return l->all_to_all[i - 1].bps;
    double x0 = log2((double)l->all_to_all[i - 1].bytes), x1 = log2((double)l->all_to_all[i].bytes), y0 = l->all_to_all[i - 1].bps, y1 = l->all_to_all[i].bps;
    return y0 + (y1 - y0) * (log2(bytes) - x0) / (x1 - x0);
}

/* (3) */
static double wire_s(const rates *r, const cdr_mesh *mesh, const cdr_coll *k, cdr_account_times *t)
{
    double far = crossing(k, group_of(k->comm, mesh, r->node_ranks)) * (double)k->wire_bytes, near = (double)k->wire_bytes - far, s = 0;
    double rate = k->kind == CDR_COLL_EXPERTS ? exchange_rate(r->device, near, r->device_bps) : r->device_bps;
    if (r->device == r->node) near += far, far = 0;
    if (near >= 1) {
        if (rate > 0) s = near / rate + r->device->latency_s;
        else t->no_link = true;
    }
    if (far >= 1) {
        if (r->node_bps > 0) s = CDR_MAX(s, far / r->node_bps + r->node->latency_s);
        else t->no_link = true;
    }
    return s;
}

typedef struct { double work, wire; } call_time;

static call_time time_of(const cdr_bundle *b, const cdr_program *p, const cdr_call *c, const rates *r, const cdr_mesh *mesh, cdr_account_times *t)
{
    cdr_type type[CDR_MAX_OPERANDS];
    if (cdr_ops[c->op]->flags & CDR_OP_VIEW) return (call_time){ 0, 0 };
    cdr_call_types(b, p, c, type);
    cdr_cost x = cdr_op_cost(cdr_ops[c->op], p->attrs + c->attr, c->n_in, c->n_out, type);
    call_time s = { r->flop_bps > 0 ? x.flop / r->flop_bps : 0, 0 };
    const cdr_coll *k = coll_of(p, c);
    if (r->memory_bps > 0) s.work = CDR_MAX(s.work, (x.read + x.write) / r->memory_bps);
    if (k) s.wire = wire_s(r, mesh, k, t);
    if (k && x.flop == 0) s = (call_time){ 0, CDR_MAX(s.wire, s.work) };        /* bytes are written as they come */
    return s;
}

/* (5): one turn of a segment; start and length of each call go to out where it is given. */
static double turn_s(const cdr_bundle *b, const cdr_program *p, int g, const rates *r, const cdr_mesh *mesh, double *over, cdr_account_times *t, cdr_text *out, double at)
{
    double stream[CDR_N_STREAMS] = { 0 }, end = 0;
    const cdr_segment *seg = &p->segs[g];
    int64_t n = turns_of(p, g);
    for (int32_t i = seg->first; i < seg->first + seg->n; i++) {
        const cdr_call *c = &p->calls[i];
        call_time s = time_of(b, p, c, r, mesh, t);
        double start = stream[c->stream];
        for (int w = 0; w < c->n_wait; w++) start = CDR_MAX(start, over[p->waits[c->wait + (uint32_t)w]]);
        if (out) cdr_text_printf(out, "%12.3f %10.3f  %s\n", (at + start) * 1e3, (s.work + s.wire) * 1e3, p->strings + c->origin);
        over[i] = stream[c->stream] = start + s.work + s.wire;
        end = CDR_MAX(end, over[i]);
        t->compute_s += s.work * (double)n;
        t->comm_s += s.wire * (double)n;
    }
    return end;
}

static double walk(const cdr_bundle *b, const cdr_mesh *mesh, const cdr_machine *m, int dtype, cdr_account_times *t, cdr_text *out)
{
    const cdr_program *p = &b->progs[CDR_PROG_STEP];
    rates r = rates_of(m, mesh->world, dtype, t);
    double *over = cdr_alloc(sizeof *over * (size_t)CDR_MAX(p->n_calls, 1)), at = 0, step_s = 0;
    for (int g = 0; g < p->n_segs; g++) {
        double s = turn_s(b, p, g, &r, mesh, over, t, out, at);
        at += s;
        step_s += s * (double)turns_of(p, g);
    }
    cdr_free(over);
    return r.flop_bps > 0 ? step_s : 0;
}

void cdr_account_time(const cdr_bundle *b, const cdr_mesh *mesh, const cdr_machine *m, int dtype, cdr_account *a)
{
    a->time = (cdr_account_times){ 0 };
    a->time.step_s = walk(b, mesh, m, dtype, &a->time, NULL);
}

void cdr_account_timeline(cdr_text *out, const cdr_bundle *b, const cdr_mesh *mesh, const cdr_machine *m, int dtype)
{
    cdr_account_times t = { 0 };
    cdr_text_printf(out, "%12s %10s  call (one turn of each segment; streams run beside each other)\n", "start ms", "ms");
    walk(b, mesh, m, dtype, &t, out);
}
