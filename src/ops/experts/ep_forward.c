/* ep_forward.c: equations (1), (2), (2a) of op.c over the ranks of an expert group; ep_op.c has the exchange. In each round a rank forms the y
 * rows of others' tokens in its recv; after a barrier each rank takes its own rows home, after another recv may be written again. With
 * one round the sums of (2) read the peers' recv where it lies.
 *
 * Own rows of the first round are worked on before the peers have come, where an expert has enough of them: their weights are packed once
 * more for it. */
#include "ops/experts/ep.h"

enum { EARLY_ROWS = 48 };                /* of one group, so that packing its expert's weights twice costs little */

typedef struct { cdr__ep ep; const void **address; float *sums; char *threads; } scratch;

static size_t lay(const experts *x, void *base, scratch *s)
{
    bump b = { base, cdr__ep_lay(x, base, &s->ep) };
    s->address = bump_take(&b, (size_t)x->R * sizeof *s->address);
    s->sums = bump_floats(&b, 3 * x->W_out * x->n_threads);
    s->threads = bump_take(&b, cdr__experts_fwd_thread_bytes(x) * (size_t)x->n_threads);
    return b.at;
}

size_t cdr__ep_fwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads)
{
    const experts x = cdr__ep_open(isa, attr, t, NULL, n_threads);
    scratch s;
    return lay(&x, NULL, &s);
}

static bool is_early(const cdr__ep *ep, const experts *x, int64_t e, int64_t r1)
{
    const int64_t g = e * x->S + ep->me;
    return x->S > 1 && e < x->E_home && x->groups[g + 1] - x->groups[g] >= EARLY_ROWS && x->groups[g + 1] <= r1;
}

/* Tiles of the first round, r1 its end: of early groups, or of the rest */
static int64_t first_tiles(const cdr__ep *ep, const experts *x, int64_t r1, bool early)
{
    int64_t n = 0;
    for (int64_t e = 0; e < x->E; e++) {
        const int64_t *g = &x->groups[e * x->S], end = CDR_MIN(g[x->S], r1);
        if (is_early(ep, x, e, r1)) {
            if (early) n += cdr__experts_cut(x, e, g[ep->me], g[ep->me + 1], ep->list + n);
            if (early) continue;
            n += cdr__experts_cut(x, e, g[0], g[ep->me], ep->list + n);
            n += cdr__experts_cut(x, e, g[ep->me + 1], end, ep->list + n);
        } else if (!early) {
            n += cdr__experts_cut(x, e, g[0], end, ep->list + n);
        }
    }
    assert(n <= cdr__ep_max_tiles(x));
    return n;
}

static void run_early(const scratch *s, const experts *x, const cdr__fwd_rows *y, int64_t r1)
{
    const int64_t n = first_tiles(&s->ep, x, r1, true);
#pragma omp parallel num_threads(x->n_threads) if (n > 0)
    {
        cdr__ep_routes(&s->ep, x, 0, r1, true, false);
        if (n > 0) cdr__experts_fwd_tiles(x, s->threads, s->ep.list, n, y);
    }
}

cdr_status cdr__ep_fwd(const cdr_args *a, const cdr__experts_isa *isa)
{
    experts x = cdr__ep_open(isa, a->attr, a->type, a->ptr, a->lane->n_threads);
    void *const *out = a->ptr + CDR__EX_N;
    const int dtype = x.t[CDR__EX_X].dtype;
    const size_t row_bytes = (size_t)cdr_dtype_bytes(dtype, x.W_out);
    scratch s;
    lay(&x, a->work, &s);
    cdr__ep_plan(&s.ep, &x, a);
    CDR_CHECK(s.ep.n_rounds == 1 || out[CDR__EP_OUT_BACK]);
    const void *own[CDR__EP_N] = { a->ptr[CDR__EX_X], a->ptr[CDR__EX_P], a->ptr[CDR__EX_PERM], out[CDR__EP_OUT_RECV] };
    void *slots[CDR__EX_N - CDR__EX_W1] = { NULL };
    cdr__fwd_rows y = { .rows = out[CDR__EP_OUT_RECV] };
    cdr__ep_count(&s.ep, &x, cdr_dtype_bytes(dtype, x.W_in) + 8, (int64_t)row_bytes);
    CDR_TRY(cdr__ep_begin(&s.ep, &x, own, a->type, a->n_in + a->n_out));
    for (int k = 0; k < CDR__EP_N_STACKS; k++) slots[cdr__ep_stack(k) - CDR__EX_W1] = out[CDR__EP_OUT_SLOTS + k];
    x.routes = s.ep.routes;
    x.slots = slots;
    int64_t r0 = 0, r1 = cdr__ep_round_end(&x, 0);
    run_early(&s, &x, &y, r1);
    CDR_TRY(cdr__ep_end(&s.ep, &x));
    combine c = { .rows = out[CDR__EP_OUT_BACK], .row_t = cdr_type_2d(dtype, x.R, x.W_out), .r0 = 0, .r1 = x.R, .first = true, .last = true, .scratch = s.sums,
                  .at = s.ep.n_rounds == 1 ? s.address : NULL };
    cdr__experts_parts_out(&x, out, a->type + CDR__EX_N, CDR__EP_OUT_V, c.part);
    for (int round = 0; round < s.ep.n_rounds; round++) {
        const int64_t n = round == 0 ? first_tiles(&s.ep, &x, r1, false) : cdr__experts_tiles(&x, r0, r1, s.ep.list);
        const bool last = round == s.ep.n_rounds - 1;
        x.route0 = y.r0 = r0;
#pragma omp parallel num_threads(x.n_threads)
        {
            cdr__ep_fetch(&s.ep, &x, slots);
            cdr__ep_routes(&s.ep, &x, r0, r1, round > 0, true);
            cdr__experts_fwd_tiles(&x, s.threads, s.ep.list, n, &y);
        }
        CDR_TRY(cdr__ep_barrier(&s.ep));
#pragma omp parallel num_threads(x.n_threads)
        {
            if (c.at) cdr__ep_addresses(&s.ep, row_bytes, s.address);
            else cdr__ep_pull(&s.ep, round, row_bytes, out[CDR__EP_OUT_BACK]);
            if (last) cdr__experts_combine(&x, &c);
        }
        CDR_TRY(cdr__ep_barrier(&s.ep));
        r0 = r1;
        r1 = cdr__ep_round_end(&x, r0);
    }
    return CDR_OK;
}
