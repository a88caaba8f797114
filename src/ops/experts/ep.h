/* ep.h: the exchange of routed rows between the ranks of an expert group, inside of the folder: who works on which rows, where they
 * lie, and how results come home. The operators' attributes are in experts.h, their equations in ep_op.c.
 *
 *   cdr__ep_plan(&ep, &x);                                // from all ranks' offs: the same picture on every rank, without a message
 *   cdr__ep_begin(&ep, &x, ...); (work on own rows) cdr__ep_end(&ep);
 *   for each round: routes; work; cdr__ep_barrier(&ep); pull; cdr__ep_barrier(&ep);
 */
#ifndef CDR_OPS_EXPERTS_EP_H
#define CDR_OPS_EXPERTS_EP_H

#include "comm/comm.h"
#include "ops/experts/kernel.h"

/* Operands that a rank exposes */
enum { CDR__EP_X, CDR__EP_P, CDR__EP_PERM, CDR__EP_RECV, CDR__EP_DU, CDR__EP_RECV_DP, CDR__EP_H1, CDR__EP_H3, CDR__EP_DV, CDR__EP_STACK,
       CDR__EP_NODES = CDR__EP_STACK + CDR__EP_N_STACKS,
       CDR__EP_N = CDR__EP_NODES + CDR__EP_N_STACKS };

/* Rows first .. first + n - 1 of this rank's dispatch: they are worked on by `rank`, in that round, and lie there from row `at` of
 * its recv on. */
typedef struct { int32_t rank, round, first, n; int64_t at; } cdr__ep_piece;

/* Of a rank with balanced placement: it keeps the first rows of its own experts, and takes some of another rank's. giver -1: none. Where
 * groups (expert, source) move as a whole, the same in groups, of which expert e has e S .. e S + S - 1. */
typedef struct { int64_t kept, first, taken, kept_groups, first_group, end_group; int32_t giver; } cdr__ep_share;

typedef struct {
    const cdr_experts_ep_attr *at;
    cdr_comm *comm;                      /* NULL: one rank */
    int me, n_rounds;                    /* rounds of the rank that has most */
    int64_t *groups;                     /* first row of (expert that is worked on, source), [E S + 1] */
    int32_t *first;                      /* and of the source's dispatch, [E S] */
    origin *from;                        /* [S] */
    const char **recv, **recv_dp;        /* [S]: the peers' */
    int64_t *load; cdr__ep_share *share; /* [S]: balanced placement */
    int32_t *sources, *first_node;       /* [E][2]; [S][E]: of each rank's experts; -1: its rows, if any, are summed up where they are */
    route *routes;                       /* [cap] */
    cdr__ep_piece *home; int64_t n_home; /* own rows, in the order of experts */
    tile *list;
} cdr__ep;

/* Scratch; base NULL: only measures. attr, t: of either operator, t the forward's operands */
experts cdr__ep_open(const cdr__experts_isa *isa, const cdr_experts_ep_attr *at, const cdr_type *t, void *const *ptr, int n_threads);
size_t cdr__ep_lay(const experts *x, void *base, cdr__ep *ep);
int64_t cdr__ep_max_tiles(const experts *x);
void cdr__ep_plan(cdr__ep *ep, experts *x, const cdr_args *a);
/* x: whole groups move, with its counts; NULL: rows */
void cdr__ep_balance(cdr__ep_share *share, const int64_t *load, int64_t S, const experts *x);
/* Sums of subtrees that a rank may have for others, in gradients of one matrix */
int64_t cdr__ep_max_nodes(int64_t E_home, int64_t S);
void cdr__ep_plan_nodes(cdr__ep *ep, experts *x);
/* Gradients of experts that others have worked on too, from their nodes and own ones; called by every thread of a team */
void cdr__ep_merge(const cdr__ep *ep, const experts *x, void *const *dw, const cdr_type *t, void *const *own_nodes);
static inline int64_t cdr__ep_first(const experts *x, int64_t source, int64_t e)      /* of the source's rows, expert e's first */
{
    return ((const int32_t *)x->ptr[CDR__EX_OFFS])[source * cdr_type_pitch(&x->t[CDR__EX_OFFS]) + e];
}
/* The giver's matrices of redundant experts into slots, by CDR__EX_W1 ..; called by every thread of a team */
void cdr__ep_fetch(const cdr__ep *ep, const experts *x, void *const *slots);
/* What this rank reads of its peers: `in` bytes for each row of theirs that it works on, `back` for each of its own that they do. */
void cdr__ep_count(const cdr__ep *ep, const experts *x, int64_t in, int64_t back);
/* own: by CDR__EP_X ..; NULL where the operator has none */
cdr_status cdr__ep_begin(cdr__ep *ep, const experts *x, const void *own[CDR__EP_N], const cdr_type *t, int n);
cdr_status cdr__ep_end(cdr__ep *ep, const experts *x);
cdr_status cdr__ep_barrier(cdr__ep *ep);
/* End of this rank's round that begins at row r0: as many whole groups as fit */
int64_t cdr__ep_round_end(const experts *x, int64_t r0);
/* Where the round's rows come from, own ones or others. Called by every thread of a team. */
void cdr__ep_routes(const cdr__ep *ep, const experts *x, int64_t r0, int64_t r1, bool own, bool others);
/* The round's rows of `row_bytes` into back, at their place in this rank's dispatch. Called by every thread of a team. */
void cdr__ep_pull(const cdr__ep *ep, int round, size_t row_bytes, char *back);
/* Where each row of this rank's dispatch lies, with one round */
void cdr__ep_addresses(const cdr__ep *ep, size_t row_bytes, const void **address);

cdr_status cdr__ep_fwd(const cdr_args *a, const cdr__experts_isa *isa);
cdr_status cdr__ep_bwd(const cdr_args *a, const cdr__experts_isa *isa);
size_t cdr__ep_fwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads);
size_t cdr__ep_bwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads);
#endif
