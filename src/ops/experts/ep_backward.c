/* ep_backward.c: equations (3) to (6a) of op.c over the ranks of an expert group. Rounds are those of the forward. Rows of dx come home as
 * rows of y do; dp_q goes straight to its pair. The gradients of the weights stay here: a chain for each (expert, source), merged by the
 * binary tree over sources (backward.c). */
#include "ops/experts/backward.h"
#include "ops/experts/ep.h"

typedef struct { cdr__ep ep; const void **address; float *sums; } scratch;

static size_t lay(const experts *x, const cdr_type *out_t, void *base, scratch *s, cdr__bwd_scratch *work)
{
    bump b = { base, cdr__ep_lay(x, base, &s->ep) };
    s->address = bump_take(&b, (size_t)x->R * sizeof *s->address);
    s->sums = bump_floats(&b, 3 * x->W_in * x->n_threads);
    return b.at + cdr__experts_bwd_lay(x, out_t, base ? b.base + b.at : NULL, work);
}

size_t cdr__ep_bwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads)
{
    const experts x = cdr__ep_open(isa, attr, t + CDR__EXB_X, NULL, n_threads);
    scratch s;
    cdr__bwd_scratch work;
    return lay(&x, t + CDR__EPB_N, NULL, &s, &work);
}

/* dp of the pairs whose rows were in this round */
static void pull_dp(const cdr__ep *ep, const experts *x, int round, float *dp, int64_t pitch)
{
#pragma omp for schedule(dynamic, 4)
    for (int64_t i = 0; i < ep->n_home; i++) {
        const cdr__ep_piece *h = &ep->home[i];
        if (h->round != round) continue;
        for (int64_t k = 0; k < h->n; k++) {
            const int32_t q = ((const int32_t *)x->own.perm)[h->first + k];
            memcpy(&dp[q / x->A * pitch + q % x->A], ep->recv_dp[h->rank] + (size_t)(h->at + k) * sizeof(float), sizeof(float));
        }
    }
}

static cdr_status run_rounds(cdr__bwd *b, scratch *s, const cdr_args *a)
{
    experts *x = &b->x;
    cdr__ep *ep = &s->ep;
    void *const *out = b->out;
    const bool rows = cdr__bwd_wants_rows(b);
    const size_t row_bytes = (size_t)cdr_dtype_bytes(x->t[CDR__EX_X].dtype, x->W_in);
    combine c = { .rows = out[CDR__EPB_OUT_BACK], .row_t = cdr_type_2d(x->t[CDR__EX_X].dtype, x->R, x->W_in), .r0 = 0, .r1 = x->R, .first = true, .last = true,
                  .scratch = s->sums, .at = ep->n_rounds == 1 ? s->address : NULL };
    cdr__experts_parts_in(b, (a->add & 1u) != 0, c.part);
    int64_t r0 = 0;
    for (int round = 0; round < ep->n_rounds; round++) {
        const int64_t r1 = cdr__ep_round_end(x, r0);
        const bool last = round == ep->n_rounds - 1;
        x->route0 = r0;
#pragma omp parallel num_threads(x->n_threads)
        cdr__ep_routes(ep, x, r0, r1, true, true);
        cdr__experts_bwd_round(b, r0, r1);
        CDR_TRY(cdr__ep_barrier(ep));
#pragma omp parallel num_threads(x->n_threads)
        {
            if (x->moves) cdr__ep_merge(ep, x, out + CDR__EXB_DW1, b->out_t + CDR__EXB_DW1, out + CDR__EPB_OUT_NODES);
            if (b->wants_dp) pull_dp(ep, x, round, out[CDR__EXB_DP], cdr_type_pitch(&b->out_t[CDR__EXB_DP]));
            if (rows && c.at) cdr__ep_addresses(ep, row_bytes, s->address);
            if (rows && !c.at) cdr__ep_pull(ep, round, row_bytes, out[CDR__EPB_OUT_BACK]);
            if (rows && last) cdr__experts_combine(x, &c);
        }
        CDR_TRY(cdr__ep_barrier(ep));
        r0 = r1;
    }
    return CDR_OK;
}

cdr_status cdr__ep_bwd(const cdr_args *a, const cdr__experts_isa *isa)
{
    cdr__bwd b = { .x = cdr__ep_open(isa, a->attr, a->type + CDR__EXB_X, a->ptr + CDR__EXB_X, a->lane->n_threads),
                   .out = a->ptr + CDR__EPB_N, .out_t = a->type + CDR__EPB_N, .du_t = &a->type[CDR__EXB_DU], .dv_t = &a->type[CDR__EPB_DV] };
    void *const *out = b.out;
    scratch s;
    lay(&b.x, b.out_t, a->work, &s, &b.s);
    cdr__experts_bwd_wants(&b);
    const bool rows = cdr__bwd_wants_rows(&b);
    b.dx_rows = out[CDR__EPB_OUT_RECV];
    b.dp_rows = out[CDR__EPB_OUT_DP];
    cdr__ep_plan(&s.ep, &b.x, a);
    CDR_CHECK(s.ep.n_rounds == 1 || !rows || out[CDR__EPB_OUT_BACK]);
    CDR_CHECK(!b.wants_dw || s.ep.at->balanced != 1);
    CDR_CHECK(!rows || b.dx_rows);
    CDR_CHECK(!b.wants_dp || b.dp_rows);
    const void *own[CDR__EP_N] = { b.x.ptr[CDR__EX_X], b.x.ptr[CDR__EX_P], b.x.ptr[CDR__EX_PERM], b.dx_rows, a->ptr[CDR__EXB_DU], b.dp_rows };
    own[CDR__EP_DV] = a->ptr[CDR__EPB_DV];
    float *nodes[CDR__EP_N_STACKS];
    for (int k = 0; k < CDR__EP_N_STACKS; k++) own[CDR__EP_NODES + k] = nodes[k] = out[CDR__EPB_OUT_NODES + k];
    b.nodes = nodes;
    b.first_node = s.ep.first_node + s.ep.me * b.x.E;
    const int64_t row = cdr_dtype_bytes(b.x.t[CDR__EX_X].dtype, b.x.W_in), du = cdr_dtype_bytes(a->type[CDR__EXB_DU].dtype, b.x.L);
    const int64_t dv = b.x.low[2] > 0 ? cdr_dtype_bytes(b.dv_t->dtype, b.x.low[2]) : 0;
    cdr__ep_count(&s.ep, &b.x, row + du + dv + 8, (rows ? row : 0) + (b.wants_dp ? 4 : 0));
    CDR_TRY(cdr__ep_begin(&s.ep, &b.x, own, a->type, a->n_in + a->n_out));
    cdr__experts_bwd_clear(&b);
    CDR_TRY(cdr__ep_end(&s.ep, &b.x));
    void *slots[CDR__EX_N - CDR__EX_W1] = { NULL };
    for (int k = 0; k < CDR__EP_N_STACKS; k++) slots[cdr__ep_stack(k) - CDR__EX_W1] = out[CDR__EPB_OUT_SLOTS + k];
    b.x.routes = s.ep.routes;
    b.x.slots = slots;
#pragma omp parallel num_threads(b.x.n_threads)
    cdr__ep_fetch(&s.ep, &b.x, slots);
    return run_rounds(&b, &s, a);
}
