/* ep_balance.c: balanced placement: every rank works on its even share of all rows, whatever the routes are.
 *
 * Rank d's rows, were all experts worked on at home, are 0 .. load_d - 1 in the order (expert, source, token). share_d = its part of the
 * sum N of all loads: floor(N (d + 1) / S) - floor(N d / S). While a rank u has less than its share, the rank o that has most above its
 * own gives u the last rows that it still has, as many as u lacks:                                                     (1)
 *   u takes rows [kept_o - lack_u, kept_o) of o;  kept_o -= lack_u
 * o may fall below its share by that, and is filled later. Every step fills one rank for good, so there are at most S - 1 of them; u was
 * filled once, from one rank, so its redundant experts are some of that rank's E / S, and as many slots are enough. o keeps at least one
 * row: it had more than its share, u lacked at most a share, and shares differ by at most one row. Every rank works this out from the
 * same counts and gets the same plan.
 * A row's bits do not depend on where it is worked on. Where gradients of the experts are wanted, groups (expert, source) move as a whole,
 * so that each has one chain: u takes the last groups of o until it has its share, at most T - 1 rows more. The sums that the tree over
 * sources has within what a rank worked on, of whole subtrees, lie in its `nodes`; the home merges them: the same tree, the same bits. A
 * part without rows is +0 there, and nobody writes it.
 * Source: MoonEP (K3's technical report, App. E): redundant experts, at most E / S a rank always suffice. */
#include "ops/experts/backward.h"
#include "ops/experts/ep.h"

static int64_t fair(int64_t n, int64_t d, int64_t S) { return n * (d + 1) / S - n * d / S; }

/* The rank that has most rows above its share; of equals the first */
static int64_t fullest(const cdr__ep_share *share, int64_t n, int64_t S)
{
    int64_t best = 0;
    for (int64_t d = 1; d < S; d++) if (share[d].kept - fair(n, d, S) > share[best].kept - fair(n, best, S)) best = d;
    return best;
}

static int64_t rows_in_group(const experts *x, int64_t d, int64_t g)
{
    const int64_t e = d * x->E_home + g / x->S;
    return cdr__ep_first(x, g % x->S, e + 1) - cdr__ep_first(x, g % x->S, e);
}

void cdr__ep_balance(cdr__ep_share *share, const int64_t *load, int64_t S, const experts *x)
{
    int64_t n = 0;
    for (int64_t d = 0; d < S; d++) {
        share[d] = (cdr__ep_share){ .kept = load[d], .giver = -1, .kept_groups = x ? x->E_home * S : 0 };
        n += load[d];
    }
    for (int64_t step = 0; step < S; step++) {
        int64_t u = 0;
        while (u < S && (share[u].giver >= 0 || share[u].kept >= fair(n, u, S))) u++;
        const int64_t o = fullest(share, n, S);
        if (u == S || share[o].kept <= fair(n, o, S)) return;
        const int64_t lack = fair(n, u, S) - share[u].kept;
        int64_t taken = x ? 0 : lack, g = share[o].kept_groups;
        CDR_CHECK(o != u && share[o].giver < 0 && share[o].kept >= lack);
        while (taken < lack) taken += rows_in_group(x, o, --g);
        share[u].giver = (int32_t)o;
        share[u].first = share[o].kept - taken;
        share[u].taken = taken;
        share[u].first_group = g;
        share[u].end_group = share[o].kept_groups;
        share[o].kept -= taken;
        share[o].kept_groups = g;
    }
}

/* ---- gradients of experts that several ranks have worked on ------------------------------------------------------------------- */
/* A rank's whole experts take one sum each; the first and the last of what it takes, and the last that it keeps, may be cut. */
int64_t cdr__ep_max_nodes(int64_t E_home, int64_t S)
{
    int64_t levels = 0;
    while (((int64_t)1 << levels) < S) levels++;
    return E_home + 3 * levels;
}

/* Sources of rank d's expert slot (own ones, then its giver's) that it works on, and how many rows they have */
static int64_t sources_of(const cdr__ep *ep, const experts *x, int64_t d, int64_t slot, int64_t *first, int64_t *end)
{
    const cdr__ep_share *s = &ep->share[d];
    const bool own = slot < x->E_home;
    const int64_t e = own ? slot : slot - x->E_home, lo = own ? 0 : s->first_group, hi = own ? s->kept_groups : s->end_group, home = own ? d : s->giver;
    int64_t rows = 0;
    *first = CDR_MIN(CDR_MAX(lo - e * x->S, 0), x->S);
    *end = CDR_MIN(CDR_MAX(hi - e * x->S, 0), x->S);
    for (int64_t i = *first; i < *end; i++) rows += rows_in_group(x, home, e * x->S + i);
    return rows;
}

static void first_nodes(const cdr__ep *ep, const experts *x, int64_t d)
{
    int64_t n = 0, a, b;
    for (int64_t slot = 0; slot < x->E; slot++) {
        const int64_t rows = sources_of(ep, x, d, slot, &a, &b);
        const bool whole_at_home = slot < x->E_home && a == 0 && b == x->S;
        ep->first_node[d * x->E + slot] = rows == 0 || whole_at_home ? -1 : (int32_t)n;
        if (rows > 0 && !whole_at_home) n += cdr__experts_subtrees(a, b);
    }
    CDR_CHECK(n <= cdr__ep_max_nodes(x->E_home, x->S));
}

void cdr__ep_plan_nodes(cdr__ep *ep, experts *x)
{
    int64_t a, b;
    for (int64_t d = 0; d < x->S; d++)
        if (d == ep->me || ep->share[d].giver == ep->me) first_nodes(ep, x, d);
    for (int64_t slot = 0; slot < x->E; slot++) {
        sources_of(ep, x, ep->me, slot, &a, &b);
        ep->sources[2 * slot] = (int32_t)a;
        ep->sources[2 * slot + 1] = (int32_t)b;
    }
    x->sources = ep->sources;
}

/* Sums over sources [a, b) of an own expert, one after the other from `nodes` on; NULL: +0, no source had a row. */
typedef struct { int64_t a, b; const float *nodes; } provider;
static provider provider_at(const cdr__ep *ep, const experts *x, int64_t e, int64_t source, int k, const float *own_nodes)
{
    provider p = { 0, 0, NULL };
    for (int64_t d = -1; d < x->S; d++) {                  /* this rank, then those that took from it */
        const int64_t rank = d < 0 ? ep->me : d, slot = d < 0 ? e : x->E_home + e;
        if (d >= 0 && ep->share[d].giver != ep->me) continue;
        sources_of(ep, x, rank, slot, &p.a, &p.b);
        if (source < p.a || source >= p.b) continue;
        const int32_t node = ep->first_node[rank * x->E + slot];
        const float *base = d < 0 ? own_nodes : cdr_comm_peer(ep->comm, (int)d, CDR__EP_NODES + k);
        p.nodes = node < 0 ? NULL : base + node * x->t[cdr__ep_stack(k)].n[1] * x->t[cdr__ep_stack(k)].n[2];
        return p;
    }
    CDR_CHECK(source < 0);                                 /* every group is someone's */
    return p;
}

enum { BLOCK = 512, MAX_LEVELS = 11 };
/* Elements at .. at + n - 1 of expert e's gradient: its sums as they come, each merged with its left neighbour when both have as many leaves */
static void merge_block(const cdr__ep *ep, const experts *x, int64_t e, int k, const float *own_nodes, int64_t at, int64_t n, float *out)
{
    float sum[MAX_LEVELS + 1][BLOCK];
    int64_t leaves[MAX_LEVELS + 1];
    int depth = 0;
    for (int64_t s = 0; s < x->S;) {
        const provider p = provider_at(ep, x, e, s, k, own_nodes);
        const int64_t size = x->t[cdr__ep_stack(k)].n[1] * x->t[cdr__ep_stack(k)].n[2];
        for (int64_t j = 0; s < p.b; j++) {
            CDR_CHECK(depth <= MAX_LEVELS);
            if (p.nodes) memcpy(sum[depth], p.nodes + j * size + at, (size_t)n * sizeof(float));
            else memset(sum[depth], 0, (size_t)n * sizeof(float));
            leaves[depth] = cdr__experts_subtree(s, p.b);
            s += leaves[depth++];
            for (; depth > 1 && leaves[depth - 2] == leaves[depth - 1]; depth--) {
                for (int64_t i = 0; i < n; i++) sum[depth - 2][i] += sum[depth - 1][i];
                leaves[depth - 2] *= 2;
            }
        }
    }
    CDR_CHECK(depth == 1);
    memcpy(out, sum[0], (size_t)n * sizeof(float));
}

static int64_t rows_of_expert(const cdr__ep *ep, const experts *x, int64_t e)
{
    int64_t rows = 0;
    for (int64_t s = 0; s < x->S; s++) rows += rows_in_group(x, ep->me, e * x->S + s);
    return rows;
}

void cdr__ep_merge(const cdr__ep *ep, const experts *x, void *const *dw, const cdr_type *t, void *const *own_nodes)
{
#pragma omp for schedule(dynamic, 1) collapse(2)
    for (int64_t e = 0; e < x->E_home; e++)
        for (int k = 0; k < CDR__EP_N_STACKS; k++) {
            const bool nobody = rows_of_expert(ep, x, e) == 0;
            if (!dw[k] || !cdr__ex_is_stack(x->t, cdr__ep_stack(k)) || nobody || ep->sources[2 * e + 1] == x->S) continue;
            const int64_t n = t[k].n[1] * t[k].n[2];
            for (int64_t at = 0; at < n; at += BLOCK)
                merge_block(ep, x, e, k, own_nodes[k], at, CDR_MIN(n - at, BLOCK), (float *)dw[k] + e * n + at);
        }
}
