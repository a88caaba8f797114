/* ep.c: the plan of an exchange, and rows on their way. ep.h says what each function is for.
 *
 * The plan needs every rank's counts n_se = offs_s[e + 1] - offs_s[e] and nothing else. A receiver's rows are ordered (expert, source,
 * token); a round takes whole (expert, source) groups, in that order, while they fit in cap. So every rank works out, for every receiver,
 * in which round and at which row of recv its own groups lie, and how many rounds the fullest receiver needs. */
#include "ops/experts/ep.h"

experts cdr__ep_open(const cdr__experts_isa *isa, const cdr_experts_ep_attr *at, const cdr_type *t, void *const *ptr, int n_threads)
{
    experts x = cdr__experts_open(isa, &at->experts, t, ptr, n_threads);
    x.S = at->size;
    x.cap = at->cap;
    if (at->balanced) x.E = 2 * x.E_home;
    x.moves = at->balanced == 2;
    x.n_chains = at->coll.order == CDR_ORDER_TREE || x.moves ? x.S : 1;
    return x;
}

/* An expert's rows are cut at most in three: before the own group, it, after it. */
int64_t cdr__ep_max_tiles(const experts *x) { return x->cap / x->tile + 3 * x->E + 1; }

size_t cdr__ep_lay(const experts *x, void *base, cdr__ep *ep)
{
    bump b = { base, 0 };
    const size_t S = (size_t)x->S, n_groups = (size_t)x->E * S;
    ep->groups = bump_take(&b, (n_groups + 1) * sizeof *ep->groups);
    ep->first = bump_take(&b, n_groups * sizeof *ep->first);
    ep->from = bump_take(&b, S * sizeof *ep->from);
    ep->recv = bump_take(&b, S * sizeof *ep->recv);
    ep->recv_dp = bump_take(&b, S * sizeof *ep->recv_dp);
    ep->routes = bump_take(&b, (size_t)x->cap * sizeof *ep->routes);
    ep->home = bump_take(&b, ((size_t)x->E_home + 1) * S * sizeof *ep->home);     /* one for each expert; balanced: one more for each rank that takes */
    ep->load = bump_take(&b, S * sizeof *ep->load);
    ep->share = bump_take(&b, S * sizeof *ep->share);
    ep->sources = bump_take(&b, 2 * (size_t)x->E * sizeof *ep->sources);
    ep->first_node = bump_take(&b, n_groups * sizeof *ep->first_node);
    ep->list = bump_take(&b, (size_t)cdr__ep_max_tiles(x) * sizeof *ep->list);
    return b.at;
}

/* Receiver d: its groups, in order */
static void plan_receiver(cdr__ep *ep, const experts *x, int d)
{
    const int32_t *const offs = x->ptr[CDR__EX_OFFS];       /* all ranks look at all counts, in every call */
    const int64_t pitch = cdr_type_pitch(&x->t[CDR__EX_OFFS]);
    int64_t row = 0, fill = 0;                   /* of all rounds; of this one */
    int round = 0;
    for (int64_t e = 0; e < x->E; e++) {
        const int64_t global = d * x->E_home + e;
        for (int s = 0; s < (int)x->S; s++) {
            const int64_t first = offs[s * pitch + global], n = offs[s * pitch + global + 1] - first;
            assert(n >= 0);
            CDR_CHECK(n <= x->cap);
            if (fill + n > x->cap) round++, fill = 0;
            if (s == ep->me && n > 0)
                ep->home[ep->n_home++] = (cdr__ep_piece){ .rank = d, .round = round, .first = (int32_t)first, .n = (int32_t)n, .at = fill };
            if (d == ep->me) {
                ep->groups[e * x->S + s] = row;
                ep->first[e * x->S + s] = (int32_t)first;
            }
            fill += n;
            row += n;
        }
    }
    if (d == ep->me) ep->groups[x->E * x->S] = row;
    ep->n_rounds = CDR_MAX(ep->n_rounds, round + 1);
}

/* ---- balanced placement ------------------------------------------------------------------------------------------------- */
/* What of rows [p, p + n) lies in [first, first + many): how many, and how many of the former come before */
static int64_t overlap(int64_t p, int64_t n, int64_t first, int64_t many, int64_t *skip)
{
    const int64_t lo = CDR_MAX(p, first), hi = CDR_MIN(p + n, first + many);
    *skip = lo - p;
    return CDR_MAX(hi - lo, 0);
}

/* Own rows for giver d's experts: those that d keeps, then those that others take. p: the group's first row there */
static void pieces_of(cdr__ep *ep, const experts *x, int d, int64_t p, int64_t first, int64_t n)
{
    int64_t skip;
    int64_t many = overlap(p, n, 0, ep->share[d].kept, &skip);
    if (many > 0) ep->home[ep->n_home++] = (cdr__ep_piece){ .rank = d, .first = (int32_t)(first + skip), .n = (int32_t)many, .at = p + skip };
    if (many == n) return;
    for (int u = 0; u < (int)x->S; u++) {
        const cdr__ep_share *t = &ep->share[u];
        if (t->giver != d) continue;
        many = overlap(p, n, t->first, t->taken, &skip);
        if (many > 0)
            ep->home[ep->n_home++] = (cdr__ep_piece){ .rank = u, .first = (int32_t)(first + skip), .n = (int32_t)many, .at = t->kept + p + skip - t->first };
    }
}

/* This rank's groups from expert slot `slot` on: rows [first, first + many) of home d's experts */
static void groups_of(cdr__ep *ep, const experts *x, int d, int64_t slot, int64_t first, int64_t many, int64_t row)
{
    int64_t p = 0;
    for (int64_t e = 0; e < x->E_home; e++)
        for (int64_t s = 0; s < x->S; s++) {
            const int64_t at = cdr__ep_first(x, s, d * x->E_home + e), n = cdr__ep_first(x, s, d * x->E_home + e + 1) - at, g = (slot + e) * x->S + s;
            int64_t skip;
            const int64_t part = overlap(p, n, first, many, &skip);
            ep->groups[g] = row;
            ep->first[g] = (int32_t)(at + (part > 0 ? skip : 0));
            row += part;
            p += n;
        }
    ep->groups[(slot + x->E_home) * x->S] = row;
}

static void plan_balanced(cdr__ep *ep, const experts *x)
{
    for (int64_t d = 0; d < x->S; d++) {
        ep->load[d] = 0;
        for (int64_t s = 0; s < x->S; s++) ep->load[d] += cdr__ep_first(x, s, (d + 1) * x->E_home) - cdr__ep_first(x, s, d * x->E_home);
    }
    cdr__ep_balance(ep->share, ep->load, x->S, x->moves ? x : NULL);
    for (int d = 0; d < (int)x->S; d++) {
        int64_t p = 0;
        for (int64_t e = 0; e < x->E_home; e++)
            for (int64_t s = 0; s < x->S; s++) {
                const int64_t at = cdr__ep_first(x, s, d * x->E_home + e), n = cdr__ep_first(x, s, d * x->E_home + e + 1) - at;
                if (s == ep->me && n > 0) pieces_of(ep, x, d, p, at, n);
                p += n;
            }
    }
    const cdr__ep_share *mine = &ep->share[ep->me];
    groups_of(ep, x, ep->me, 0, 0, mine->kept, 0);
    groups_of(ep, x, mine->giver < 0 ? ep->me : mine->giver, x->E_home, mine->first, mine->taken, mine->kept);
    CDR_CHECK(mine->kept + mine->taken <= x->cap);
    ep->n_rounds = 1;
}

void cdr__ep_fetch(const cdr__ep *ep, const experts *x, void *const *slots)
{
    const int giver = ep->at->balanced ? ep->share[ep->me].giver : -1;
    if (giver < 0) return;
#pragma omp for schedule(dynamic, 1) collapse(2)
    for (int64_t e = 0; e < x->E_home; e++)
        for (int k = 0; k < CDR__EP_N_STACKS; k++) {
            const int operand = cdr__ep_stack(k);
            if (!cdr__ex_is_stack(x->t, operand) || row_offset(x, x->E_home + e) == row_offset(x, x->E_home + e + 1)) continue;
            const size_t each = cdr_type_bytes(&x->t[operand]) / (size_t)x->E_home;
            memcpy((char *)slots[operand - CDR__EX_W1] + (size_t)e * each, (const char *)cdr_comm_peer(ep->comm, giver, CDR__EP_STACK + k) + (size_t)e * each, each);
        }
}

void cdr__ep_plan(cdr__ep *ep, experts *x, const cdr_args *a)
{
    ep->at = a->attr;
    ep->comm = a->lane->comms ? a->lane->comms[ep->at->coll.comm] : NULL;
    CDR_CHECK(ep->comm ? cdr_comm_size(ep->comm) == ep->at->size : ep->at->size == 1);
    ep->me = ep->comm ? cdr_comm_rank(ep->comm) : 0;
    ep->n_home = 0;
    ep->n_rounds = 0;
    for (int d = 0; d < (int)x->S && !ep->at->balanced; d++) plan_receiver(ep, x, d);
    if (ep->at->balanced) plan_balanced(ep, x);
    if (x->moves) cdr__ep_plan_nodes(ep, x);
    x->groups = ep->groups;
    x->from = ep->from;
}

/* ---- peers ------------------------------------------------------------------------------------------------------------- */
static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 31);
}

static uint64_t signature(const cdr__ep *ep, const cdr_type *t, int n)
{
    uint64_t h = mix((uint64_t)ep->at->cap, (uint64_t)ep->at->n_experts);
    for (int i = 0; i < n; i++) {
        h = mix(h, t[i].dtype);
        for (int k = 0; k < t[i].n_dim && !cdr_absent(&t[i]); k++) h = mix(h, (uint64_t)t[i].n[k]);
        if (!cdr_absent(&t[i])) h = mix(h, (uint64_t)cdr_type_pitch(&t[i]));
    }
    return h;
}

/* Of an own operand, the address itself: the transport may know another one of the same memory. */
static void set_origin(cdr__ep *ep, int r, const void *const *p)
{
    ep->from[r] = (origin){ .x = p[CDR__EP_X], .p = p[CDR__EP_P], .perm = p[CDR__EP_PERM], .du = p[CDR__EP_DU], .h = { p[CDR__EP_H1], p[CDR__EP_H3] },
                            .dv = p[CDR__EP_DV] };
    ep->recv[r] = p[CDR__EP_RECV];
    ep->recv_dp[r] = p[CDR__EP_RECV_DP];
}

void cdr__ep_count(const cdr__ep *ep, const experts *x, int64_t in, int64_t back)
{
    int64_t theirs = 0, away = 0, slots = 0;
    if (!ep->comm) return;
    for (int64_t e = 0; e < x->E; e++)
        for (int64_t s = 0; s < x->S; s++) theirs += s == ep->me ? 0 : x->groups[e * x->S + s + 1] - x->groups[e * x->S + s];
    for (int64_t i = 0; i < ep->n_home; i++) away += ep->home[i].rank == ep->me ? 0 : ep->home[i].n;
    for (int64_t e = x->E_home; e < x->E; e++) {
        if (row_offset(x, e) == row_offset(x, e + 1)) continue;
        for (int k = 0; k < CDR__EP_N_STACKS; k++)
            if (cdr__ex_is_stack(x->t, cdr__ep_stack(k))) slots += (int64_t)cdr_type_bytes(&x->t[cdr__ep_stack(k)]) / x->E_home;
    }
    cdr_comm_count_read(ep->comm, theirs * in + away * back + slots);
}

cdr_status cdr__ep_begin(cdr__ep *ep, const experts *x, const void *own[CDR__EP_N], const cdr_type *t, int n)
{
    for (int m = 0; m < 2; m++) own[CDR__EP_H1 + m] = x->own.h[m];
    set_origin(ep, ep->me, own);
    for (int k = 0; k < CDR__EP_N_STACKS; k++) own[CDR__EP_STACK + k] = ep->at->balanced && cdr__ex_is_stack(x->t, cdr__ep_stack(k)) ? x->ptr[cdr__ep_stack(k)] : NULL;
    return ep->comm ? cdr_comm_expose_begin(ep->comm, own, CDR__EP_N, signature(ep, t, n)) : CDR_OK;
}

cdr_status cdr__ep_end(cdr__ep *ep, const experts *x)
{
    if (!ep->comm) return CDR_OK;
    CDR_TRY(cdr_comm_expose_end(ep->comm));
    for (int r = 0; r < ep->at->size; r++) {
        const void *p[CDR__EP_STACK];
        if (r == ep->me) continue;
        for (int k = 0; k < CDR__EP_STACK; k++) p[k] = cdr_comm_peer(ep->comm, r, k);
        CDR_CHECK(p[CDR__EP_X] && p[CDR__EP_P] && p[CDR__EP_PERM]);
        for (int m = 0; m < 2; m++) CDR_CHECK(x->low[m] == 0 || p[CDR__EP_H1 + m]);
        set_origin(ep, r, p);
    }
    return CDR_OK;
}

cdr_status cdr__ep_barrier(cdr__ep *ep) { return ep->comm ? cdr_comm_barrier(ep->comm) : CDR_OK; }

/* ---- rounds ------------------------------------------------------------------------------------------------------------- */
int64_t cdr__ep_round_end(const experts *x, int64_t r0)
{
    int64_t lo = 0, hi = x->E * x->S;            /* the last group boundary that is at most r0 + cap */
    while (lo < hi) {
        const int64_t mid = (lo + hi + 1) / 2;
        if (x->groups[mid] <= r0 + x->cap) lo = mid;
        else hi = mid - 1;
    }
    return x->groups[lo];
}

void cdr__ep_routes(const cdr__ep *ep, const experts *x, int64_t r0, int64_t r1, bool own, bool others)
{
    const int64_t n = x->E * x->S;
#pragma omp for schedule(dynamic, 16)
    for (int64_t g = 0; g < n; g++) {
        const int64_t g0 = x->groups[g], g1 = x->groups[g + 1], s = g % x->S;
        if (g0 == g1 || g0 < r0 || g1 > r1 || !(s == ep->me ? own : others)) continue;
        const int32_t *perm = (const int32_t *)x->from[s].perm + ep->first[g];
        for (int64_t r = g0; r < g1; r++) ep->routes[r - r0] = (route){ (int32_t)s, perm[r - g0] };
    }
}

void cdr__ep_pull(const cdr__ep *ep, int round, size_t row_bytes, char *back)
{
#pragma omp for schedule(dynamic, 4)
    for (int64_t i = 0; i < ep->n_home; i++) {
        const cdr__ep_piece *h = &ep->home[i];
        if (h->round == round) memcpy(back + (size_t)h->first * row_bytes, ep->recv[h->rank] + (size_t)h->at * row_bytes, (size_t)h->n * row_bytes);
    }
}

void cdr__ep_addresses(const cdr__ep *ep, size_t row_bytes, const void **address)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < ep->n_home; i++) {
        const cdr__ep_piece *h = &ep->home[i];
        for (int64_t k = 0; k < h->n; k++) address[h->first + k] = ep->recv[h->rank] + (size_t)(h->at + k) * row_bytes;
    }
}
