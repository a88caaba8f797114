/* backward.h: the backward of routed rows without where they come from and where their results go: backward.c has the work,
 * for one rank and for the exchange between ranks (ep_backward.c).
 *
 *   lay scratch; x.routes ...; cdr__experts_bwd_clear(&b);  for each round: cdr__experts_bwd_round(&b, r0, r1);
 */
#ifndef CDR_OPS_EXPERTS_BACKWARD_H
#define CDR_OPS_EXPERTS_BACKWARD_H

#include "ops/experts/kernel.h"

enum { CDR__EXB_N_OUTER = 9 };                   /* gradients that are outer products: DW1 .. DB2 */
_Static_assert(CDR__EXB_DW1 + CDR__EXB_N_OUTER == CDR__EXB_N_OUT && CDR__EXB_DA1 == CDR__EXB_DW1 + 3, "the outputs' order");

typedef struct {
    int64_t chunk;                               /* rows */
    float *x, *du, *h, *gate, *up;               /* [chunk]; gate and up become dg and dc, du becomes p du */
    float *low_a[3], *low_b[3]; int64_t ld_k[3]; /* (6): s A in, s B^T dout of w1, w3, w2; [chunk]. (6a): h1 and h3 in low_a, p dv in low_b */
    float *open[CDR__EXB_N_OUTER];               /* several sources: partial sums of the expert that a chunk has cut */
    tile *list, *segments; char *threads; size_t thread_bytes;
} cdr__bwd_scratch;

/* The forward's operands in x, the rest here. */
typedef struct {
    experts x;
    void *const *out; const cdr_type *out_t;     /* outputs CDR__EXB_DX .. CDR__EXB_N_OUT - 1 */
    const cdr_type *du_t, *dv_t;
    void *gu; const cdr_type *gu_t;              /* NULL: gate and up are made again */
    char *dx_rows;                               /* [cap] rows of (4) and (6a), dx | dh1 | dh3 of the activations' dtype, from row r0 of the round on */
    float *dp_rows;                              /* [cap]; NULL: dp goes to its pair in out */
    bool wants_dx, wants_dh[2], wants_dp, wants_dw;
    float *const *nodes; const int32_t *first_node;      /* x.moves: partial sums that another rank merges, by gradient; of each expert */
    cdr__bwd_scratch s;
} cdr__bwd;

/* Output CDR__EXB_DW1 + k of a backward is the gradient of a stack, and an outer product: it is there, and not that of h1 or h3 */
static inline bool cdr__bwd_is_outer(const experts *x, const cdr_type *out_t, int k)
{
    return !cdr_absent(&out_t[CDR__EXB_DW1 + k]) && cdr__ex_is_stack(x->t, cdr__ep_stack(k));
}
/* What the call wants; out, out_t are there */
void cdr__experts_bwd_wants(cdr__bwd *b);
static inline bool cdr__bwd_wants_rows(const cdr__bwd *b) { return b->wants_dx || b->wants_dh[0] || b->wants_dh[1]; }
void cdr__experts_parts_in(const cdr__bwd *b, bool add, cdr__part *part);    /* dx, dh1, dh3 */
/* base NULL: only measures. out_t: which gradients are wanted */
size_t cdr__experts_bwd_lay(const experts *x, const cdr_type *out_t, void *base, cdr__bwd_scratch *s);
/* The sum over sources [a, b) as the fewest sums of whole subtrees: how many leaves the first has; how many there are */
int64_t cdr__experts_subtree(int64_t a, int64_t b);
int cdr__experts_subtrees(int64_t a, int64_t b);
void cdr__experts_bwd_clear(const cdr__bwd *b);                              /* what no row reaches */
void cdr__experts_bwd_round(const cdr__bwd *b, int64_t r0, int64_t r1);
#endif
