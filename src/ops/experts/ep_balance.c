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
 * A row's bits do not depend on where it is worked on. Gradients of weights would have to go home: the operators refuse them.
 * Source: MoonEP (K3's technical report, App. E): redundant experts, at most E / S a rank always suffice. */
#include "ops/experts/ep.h"

static int64_t fair(int64_t n, int64_t d, int64_t S) { return n * (d + 1) / S - n * d / S; }

/* The rank that has most rows above its share; of equals the first */
static int64_t fullest(const cdr__ep_share *share, int64_t n, int64_t S)
{
    int64_t best = 0;
    for (int64_t d = 1; d < S; d++) if (share[d].kept - fair(n, d, S) > share[best].kept - fair(n, best, S)) best = d;
    return best;
}

void cdr__ep_balance(cdr__ep_share *share, const int64_t *load, int64_t S)
{
    int64_t n = 0;
    for (int64_t d = 0; d < S; d++) {
        share[d] = (cdr__ep_share){ .kept = load[d], .giver = -1 };
        n += load[d];
    }
    for (int64_t step = 0; step < S; step++) {
        int64_t u = 0;
        while (u < S && (share[u].giver >= 0 || share[u].kept >= fair(n, u, S))) u++;
        if (u == S) return;
        const int64_t o = fullest(share, n, S), lack = fair(n, u, S) - share[u].kept;
        CDR_CHECK(o != u && share[o].giver < 0 && share[o].kept >= lack);
        share[o].kept -= lack;
        share[u].giver = (int32_t)o;
        share[u].first = share[o].kept;
        share[u].taken = lack;
    }
}
