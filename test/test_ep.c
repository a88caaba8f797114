/* test_ep.c: experts over the ranks of an expert group against one rank that has all experts, bit for bit: u, dx and dp of each source's
 * tokens; gradients of the weights as micro-batches of one rank merge them (experts_bwd of each source, through grad_push), or, where any
 * order will do, as one micro-batch of all tokens has them. Beside it, all tokens at once in double.
 *
 *   test_ep              all tests
 *   test_ep --bench      ep 2 on two ranks of one thread against one rank of two threads; the backward of ep 8 with the tree and in any order
 */
#include "ep_rig.h"

static const scenario all[] = {
    { "ep 2 f32", 2, 37, 4, 12, 24, 20, CDR_F32, SPREAD, 0, 1, 0 },
    { "ep 2 f32, 2 threads, cap T", 2, 37, 4, 12, 24, 20, CDR_F32, SPREAD, 37, 2, 0 },
    { "ep 2 bf16, gradient f32, situ", 2, 150, 4, 8, 44, 72, CDR_BF16, SPREAD, 0, 2, F32_GRAD | SITU },
    { "ep 2 bf16, several rounds, added", 2, 150, 4, 8, 44, 72, CDR_BF16, SPREAD, 200, 1, ADD },
    { "ep 4 f32, an idle rank", 4, 60, 3, 16, 17, 33, CDR_F32, IDLE_RANK, 0, 2, 0 },
    { "ep 4 f32, an idle rank, cap T", 4, 60, 3, 16, 17, 33, CDR_F32, IDLE_RANK, 60, 1, 0 },
    { "ep 4 bf16, uneven tokens", 4, 64, 2, 8, 32, 16, CDR_BF16, UNEVEN, 80, 2, 0 },
    { "ep 4 f32, all on one expert", 4, 700, 1, 4, 100, 64, CDR_F32, HOT, 0, 2, 0 },
    { "ep 4 f32, all on one expert, cap T", 4, 100, 1, 4, 20, 12, CDR_F32, HOT, 100, 1, 0 },
    { "ep 4 f32, all on the first rank", 4, 60, 2, 8, 24, 20, CDR_F32, FIRST_RANK, 100, 2, 0 },
    { "ep 8 f32", 8, 50, 4, 16, 24, 20, CDR_F32, SPREAD, 0, 1, 0 },
    { "ep 8 bf16, uneven, several rounds", 8, 50, 4, 16, 24, 20, CDR_BF16, UNEVEN, 64, 1, 0 },
    { "ep 8 f32, one expert a rank, a row each", 8, 3, 2, 8, 16, 16, CDR_F32, SPREAD, 0, 1, 0 },
    { "ep 8 f32, nobody", 8, 5, 2, 8, 16, 16, CDR_F32, NOBODY, 0, 1, 0 },
    { "ep 2 f32, frozen", 2, 90, 4, 12, 24, 20, CDR_F32, SPREAD, 100, 2, NO_DW },
    { "ep 2 f32, no dx", 2, 40, 2, 8, 24, 20, CDR_F32, SPREAD, 48, 1, NO_DX },
    { "ep 2 f32, dw2 alone", 2, 40, 2, 8, 24, 20, CDR_F32, SPREAD, 48, 1, NO_DX | NO_DP | ONLY_DW2 },
    { "ep 4 f32, adapters, full gradients too", 4, 70, 3, 8, 40, 36, CDR_F32, SPREAD, 90, 2, ADAPTERS },
    { "ep 4 bf16, adapters, frozen base", 4, 70, 3, 8, 40, 36, CDR_BF16, UNEVEN, 0, 2, ADAPTERS | NO_DW | SITU },
    { "ep 2 f32, two groups", 2, 45, 2, 8, 24, 20, CDR_F32, SPREAD, 50, 1, TWO_GROUPS },
    { "ep 2 f32, a table", 2, 45, 2, 8, 24, 20, CDR_F32, SPREAD, 0, 1, TABLE },
    { "ep 2 f32, balanced", 2, 45, 2, 8, 24, 20, CDR_F32, FIRST_RANK, 90, 2, BALANCED | NO_DW },
    { "ep 4 bf16, balanced, uneven", 4, 70, 3, 8, 40, 36, CDR_BF16, UNEVEN, 210, 2, BALANCED | NO_DW | SITU },
    { "ep 4 f32, balanced, all on one expert", 4, 100, 1, 8, 20, 12, CDR_F32, HOT, 100, 1, BALANCED | NO_DW | ADD },
    { "ep 8 f32, balanced, an idle rank", 8, 50, 4, 16, 24, 20, CDR_F32, IDLE_RANK, 200, 1, BALANCED | NO_DW },
    { "ep 8 f32, balanced, all on the first rank", 8, 50, 2, 16, 24, 20, CDR_F32, FIRST_RANK, 112, 1, BALANCED | NO_DW },
    { "ep 8 f32, balanced, nobody", 8, 5, 2, 8, 16, 16, CDR_F32, NOBODY, 16, 1, BALANCED | NO_DW },
    { "ep 2 f32, balanced, trained", 2, 45, 2, 8, 24, 20, CDR_F32, FIRST_RANK, 135, 2, BALANCED },
    { "ep 4 f32, balanced, trained, spread", 4, 60, 3, 16, 17, 33, CDR_F32, SPREAD, 240, 1, BALANCED },
    { "ep 4 f32, balanced, trained, all on one expert", 4, 700, 1, 8, 100, 64, CDR_F32, HOT, 1400, 2, BALANCED },
    { "ep 8 f32, balanced, trained, all on the first rank", 8, 50, 2, 16, 24, 20, CDR_F32, FIRST_RANK, 150, 1, BALANCED | ADD },
    { "ep 8 f32, balanced, trained, all on one expert, uneven", 8, 40, 1, 8, 24, 20, CDR_F32, HOT, 80, 1, BALANCED },
    { "ep 8 f32, balanced, trained, an idle rank", 8, 30, 4, 16, 24, 20, CDR_F32, IDLE_RANK, 160, 1, BALANCED },
    { "ep 4 bf16, balanced, adapters, frozen base", 4, 70, 3, 8, 40, 36, CDR_BF16, UNEVEN, 280, 2, BALANCED | ADAPTERS | NO_DW | SITU },
    { "ep 8 f32, balanced, adapters and base, a row each", 8, 3, 2, 16, 16, 16, CDR_F32, SPREAD, 16, 1, BALANCED | ADAPTERS },
    { "ep 4 f32, mxfp4", 4, 40, 2, 8, 64, 32, CDR_F32, SPREAD, 50, 2, PACKED | NO_DW },
    { "ep 4 bf16, mxfp4, balanced, adapters", 4, 40, 2, 8, 64, 32, CDR_BF16, UNEVEN, 128, 2, PACKED | NO_DW | BALANCED | ADAPTERS },
    { "ep 4 f32, any order, adapters, several rounds", 4, 70, 3, 8, 40, 36, CDR_F32, SPREAD, 90, 2, ANY_ORDER | ADAPTERS },
    { "ep 4 f32, any order, all on one expert", 4, 700, 1, 4, 100, 64, CDR_F32, HOT, 0, 2, ANY_ORDER },
    { "ep 8 bf16, any order, uneven, an added dx", 8, 50, 4, 16, 24, 20, CDR_BF16, UNEVEN, 64, 1, ANY_ORDER | ADD },
    { "ep 4 f32, any order, balanced: the tree", 4, 60, 3, 16, 17, 33, CDR_F32, SPREAD, 240, 1, ANY_ORDER | BALANCED },
    { "ep 2 f32, outer, full gradients too", 2, 37, 4, 12, 24, 20, CDR_F32, SPREAD, 0, 2, OUTER },
    { "ep 4 f32, outer, several rounds, added", 4, 70, 3, 8, 40, 36, CDR_F32, SPREAD, 90, 2, OUTER | NO_DW | ADD },
    { "ep 4 bf16, outer, frozen base, uneven, gradient f32", 4, 70, 3, 8, 40, 40, CDR_BF16, UNEVEN, 0, 2, OUTER | NO_DW | SITU | F32_GRAD },
    { "ep 4 f32, outer, no dx, an idle rank", 4, 60, 3, 16, 17, 33, CDR_F32, IDLE_RANK, 60, 1, OUTER | NO_DW | NO_DX },
    { "ep 4 f32, outer, balanced, all on one expert", 4, 700, 1, 8, 100, 64, CDR_F32, HOT, 1400, 2, OUTER | NO_DW | BALANCED },
    { "ep 8 bf16, outer, balanced, all on the first rank", 8, 50, 2, 16, 24, 20, CDR_BF16, FIRST_RANK, 150, 1, OUTER | NO_DW | BALANCED },
    { "ep 4 f32, outer, any order, rank 2", 4, 50, 3, 8, 40, 36, CDR_F32, SPREAD, 80, 1, OUTER | NO_DW | ANY_ORDER | RANK_2 },
    { "ep 4 bf16, outer, mxfp4, a table", 4, 40, 2, 8, 64, 32, CDR_BF16, SPREAD, 50, 2, OUTER | NO_DW | PACKED | TABLE },
    { "ep 1 f32", 1, 45, 2, 8, 24, 20, CDR_F32, SPREAD, 45, 2, 0 },
};

static bool same(const char *what, const scenario *z, const char *kernel, int me, const cdr_type *t, const void *a, const void *b)
{
    if (memcmp(a, b, cdr_type_bytes(t)) == 0) return true;
    fprintf(stderr, "  %s, %s: rank %d: %s differs\n", z->name, kernel, me, what);
    return false;
}

/* Gradients of the weights are a chain for each expert, over all rows */
static bool one_chain(const scenario *z) { return (z->flags & ANY_ORDER) != 0 && !(z->flags & BALANCED); }

static int compare(const scenario *z, const char *kernel, const whole *y, const part *r, int me)
{
    static const char *const name[] = { "dx", "dp", "dw1", "dw3", "dw2", "dA1", "dB1", "dA3", "dB3", "dA2", "dB2" };
    bool ok = same("u", z, kernel, me, &r->f.t[CDR__EX_N], r->f.p[CDR__EX_N], y->u);
    const int i_v = CDR__EX_N + CDR__EP_OUT_V;
    if (z->flags & OUTER) ok = same("v", z, kernel, me, &r->f.t[i_v], r->f.p[i_v], y->v) && ok;
    for (int k = 0; k < CDR__EXB_N_OUT; k++) {
        const cdr_type *t = &r->b.t[CDR__EPB_N + k];
        if (cdr_absent(t) || (one_chain(z) && !token_gradient(z, k))) continue;
        const void *want = token_gradient(z, k) ? y->token[k] : (const char *)y->stack[k][0] + (size_t)me * cdr_type_bytes(t);
        ok = same(name[k], z, kernel, me, t, r->b.p[CDR__EPB_N + k], want) && ok;
    }
    return ok ? 0 : 1;
}

/* The sources' tokens one behind the other, as one rank has them */
static int as_one_micro_batch(const scenario *z, const whole *y, const char *kernel, const part *r, int me)
{
    static const char *const name[] = { "dw1", "dw3", "dw2", "dA1", "dB1", "dA3", "dB3", "dA2", "dB2" };
    const cdr_lane lane = { .n_threads = 1 };
    const cdr_experts_attr at = attr_of(z);
    const cdr_dispatch_attr sort = { (int32_t)z->E };
    scenario big = *z;
    big.T = z->T * z->ep;
    operands b = { .t = { cdr_dense_like(&y->b.t[CDR__EXB_DU], y->b.t[CDR__EXB_DU].dtype) } };
    b.t[CDR__EXB_DU].n[0] = big.T;
    types_of(&big, z->E, b.t + CDR__EXB_X);
    b.t[CDR__EXB_X + CDR__EX_TABLE] = b.t[CDR__EXB_GU] = absent;
    b.t[CDR__EXB_DV] = y->b.t[CDR__EXB_DV];
    if (z->flags & OUTER) b.t[CDR__EXB_DV].n[0] = big.T;
    int n = 0;
    if (cdr_op_experts_bwd.infer(&at, CDR__EXB_N, b.t, &n, b.t + CDR__EXB_N, NULL) != CDR_OK) return 1;
    for (int k = 0; k < CDR__EXB_N_OUT; k++) if (!wanted(z, k) || token_gradient(z, k)) b.t[CDR__EXB_N + k] = absent;
    for (int i = 0; i < CDR__EXB_N + CDR__EXB_N_OUT; i++) {
        const bool given = i >= CDR__EXB_X + CDR__EX_W1 && i < CDR__EXB_GU && !of_tokens(z, i - CDR__EXB_X);
        b.p[i] = cdr_absent(&b.t[i]) ? NULL : given ? y->f.p[i - CDR__EXB_X] : bytes_of(&b.t[i]);
    }
    operands d = { .t = { cdr_type_2d(CDR_I32, big.T, z->A), b.t[CDR__EXB_X + CDR__EX_PERM], b.t[CDR__EXB_X + CDR__EX_OFFS], b.t[CDR__EXB_X + CDR__EX_POS] },
                   .p = { NULL, b.p[CDR__EXB_X + CDR__EX_PERM], b.p[CDR__EXB_X + CDR__EX_OFFS], b.p[CDR__EXB_X + CDR__EX_POS] } };
    int32_t *idx = d.p[0] = bytes_of(&d.t[0]);
    for (int s = 0; s < z->ep; s++) {
        fill_source(z, s, &b, CDR__EXB_DV, s * z->T);
        for (int64_t i = 0; i < z->T; i++) route_token(z, s, i, idx + (s * z->T + i) * z->A);
    }
    int bad = run(&cdr_op_dispatch, "base", &sort, 1, 3, &d, 0, &lane) || run(&cdr_op_experts_bwd, kernel, &at, CDR__EXB_N, CDR__EXB_N_OUT, &b, 0, &lane);
    for (int k = CDR__EXB_DW1; k < CDR__EXB_N_OUT && !bad; k++) {
        const cdr_type *t = &r->b.t[CDR__EPB_N + k];
        if (cdr_absent(t) || token_gradient(z, k)) continue;
        bad |= !same(name[k - CDR__EXB_DW1], z, kernel, me, t, r->b.p[CDR__EPB_N + k], (const char *)b.p[CDR__EXB_N + k] + (size_t)me * cdr_type_bytes(t));
    }
    for (int i = 0; i < CDR__EXB_N + CDR__EXB_N_OUT; i++)
        if (i < CDR__EXB_X + CDR__EX_W1 || i >= CDR__EXB_GU || of_tokens(z, i - CDR__EXB_X)) free(b.p[i]);
    free(idx);
    return bad;
}

/* ---- all tokens in double ---------------------------------------------------------------------------------------------------- */
static double *as_doubles(const cdr_type *t, const void *p)
{
    const int64_t n = cdr_type_elems(t);
    double *x = malloc((size_t)n * sizeof *x);
    if (!x) abort();
    if (p) cdr_to_f64(t->dtype, p, x, n);
    return x;
}

/* |a - b| / |b| over n elements */
static double distance(const cdr_type *t, const void *a, const double *b)
{
    double *x = as_doubles(t, a), d = 0, s = 0;
    for (int64_t i = 0; i < cdr_type_elems(t); i++) d += (x[i] - b[i]) * (x[i] - b[i]), s += b[i] * b[i];
    free(x);
    return s > 0 ? sqrt(d / s) : sqrt(d);
}

/* Operand i of the backward is rows of tokens, which fill_source makes. */
static bool own_rows(const scenario *z, int i)
{
    return i == CDR__EXB_DU || (i == CDR__EXB_DV && z->flags & OUTER) || (i >= CDR__EXB_X && i < CDR__EXB_GU && of_tokens(z, i - CDR__EXB_X));
}

/* One problem of ep T tokens, sorted with plain loops, by the reference of experts */
static int against_double(const scenario *z, const whole *y, const part *r, int me)
{
    scenario big = *z;
    big.T = z->T * z->ep;
    cdr_type t[CDR__EXB_N + CDR__EXB_N_OUT];
    double *in[CDR__EXB_N] = { NULL }, *out[CDR__EXB_N_OUT], *fwd_out[CDR__EX_N_OUT] = { NULL };
    cdr_experts_attr at = attr_of(z);
    int n = 0;
    types_of(&big, z->E, t + CDR__EXB_X);
    t[CDR__EXB_X + CDR__EX_TABLE] = t[CDR__EXB_GU] = t[CDR__EXB_DV] = absent;
    if (z->flags & OUTER) t[CDR__EXB_DV] = cdr_type_2d(CDR_F32, big.T, y->f.t[CDR__EX_A2].n[1]);
    t[CDR__EXB_DU] = cdr_dense_like(&t[CDR__EXB_X], CDR_F32);
    if (cdr_op_experts_bwd.infer(&at, CDR__EXB_N, t, &n, t + CDR__EXB_N, NULL) != CDR_OK) return 1;
    for (int i = 0; i < CDR__EXB_N; i++) {
        const bool given = i >= CDR__EXB_X + CDR__EX_W1 && i < CDR__EXB_GU && !of_tokens(z, i - CDR__EXB_X);
        if (!cdr_absent(&t[i])) in[i] = as_doubles(&t[i], given ? y->f.p[i - CDR__EXB_X] : NULL);
    }
    operands of = y->b;                                    /* one source's, in buffers of its own */
    for (int i = 0; i < CDR__EXB_N; i++) of.p[i] = own_rows(z, i) ? bytes_of(&of.t[i]) : NULL;
    double *perm = in[CDR__EXB_X + CDR__EX_PERM], *offs = in[CDR__EXB_X + CDR__EX_OFFS], *pos = in[CDR__EXB_X + CDR__EX_POS];
    int32_t *idx = malloc((size_t)(big.T * z->A) * sizeof *idx);
    if (!idx) abort();
    for (int s = 0; s < z->ep; s++) {
        fill_source(z, s, &of, CDR__EXB_DV, 0);
        for (int i = 0; i < CDR__EXB_N; i++) if (own_rows(z, i)) cdr_to_f64(of.t[i].dtype, of.p[i], in[i] + s * cdr_type_elems(&of.t[i]), cdr_type_elems(&of.t[i]));
        for (int64_t i = 0; i < z->T; i++) route_token(z, s, i, idx + (s * z->T + i) * z->A);
    }
    int64_t row = 0;
    for (int64_t q = 0; q < big.T * z->A; q++) perm[q] = pos[q] = -1;
    for (int64_t e = 0; e <= z->E; e++) {
        offs[e] = (double)row;
        for (int64_t q = 0; q < big.T * z->A && e < z->E; q++)
            if (idx[q] == e) perm[row] = (double)q, pos[q] = (double)row++;
    }
    for (int k = 0; k < CDR__EXB_N_OUT; k++) out[k] = cdr_absent(&t[CDR__EXB_N + k]) ? NULL : as_doubles(&t[CDR__EXB_N + k], NULL);
    fwd_out[0] = as_doubles(&t[CDR__EXB_X], NULL);
    if (z->flags & OUTER) fwd_out[CDR__EX_OUT_V] = as_doubles(&t[CDR__EXB_DV], NULL);
    cdr_op_experts.ref(&(cdr_ref_args){ .attr = &at, .n_in = CDR__EX_N, .n_out = CDR__EX_N_OUT, .type = t + CDR__EXB_X,
                                        .in = (const double *const *)in + CDR__EXB_X, .out = fwd_out });
    cdr_op_experts_bwd.ref(&(cdr_ref_args){ .attr = &at, .n_in = CDR__EXB_N, .n_out = CDR__EXB_N_OUT, .type = t, .in = (const double *const *)in, .out = out });
    const double tol = z->dtype == CDR_F32 ? 3e-6 : 8e-3;
    int bad = distance(&r->f.t[CDR__EX_N], r->f.p[CDR__EX_N], fwd_out[0] + me * z->T * z->L) <= tol ? 0 : 1;
    const cdr_type *tv = &r->f.t[CDR__EX_N + CDR__EP_OUT_V];
    if (z->flags & OUTER && !(distance(tv, r->f.p[CDR__EX_N + CDR__EP_OUT_V], fwd_out[CDR__EX_OUT_V] + me * cdr_type_elems(tv)) <= tol)) bad = 1;
    for (int k = 0; k < CDR__EXB_N_OUT; k++) {
        const cdr_type *tk = &r->b.t[CDR__EPB_N + k];
        if (cdr_absent(tk) || (k == CDR__EXB_DX && z->flags & ADD)) continue;
        const double d = distance(tk, r->b.p[CDR__EPB_N + k], out[k] + me * cdr_type_elems(tk));
        if (!(d <= tol)) fprintf(stderr, "  %s: rank %d: output %d is %.2e from the reference\n", z->name, me, k, d), bad = 1;
    }
    for (int i = 0; i < CDR__EXB_N; i++) free(in[i]);
    for (int k = 0; k < CDR__EXB_N_OUT; k++) free(out[k]);
    for (int i = 0; i < CDR__EXB_N; i++) free(of.p[i]);
    free(fwd_out[0]), free(fwd_out[CDR__EX_OUT_V]), free(idx);
    return bad;
}

/* ---- tests --------------------------------------------------------------------------------------------------------------------- */
static int one(cdr_comm *w, int i)
{
    const scenario *z = &all[i];
    const int rank = cdr_comm_rank(w), first = rank / z->ep * z->ep, me = rank - first;
    const uint32_t isa = cdr_cpu_isa(NULL);
    const size_t bytes = (size_t)64 << 20;
    cdr_err err = { 0 };
    whole y;
    part r;
    char *slab = cdr_comm_slab(w, bytes, &err);
    cdr_comm *group = cdr_comm_split(w, first, rank, &err), *comms[CDR_N_COMMS] = { [CDR_COMM_EXPERT] = group };
    const cdr_lane lane = { .n_threads = z->threads, .comms = comms };
    EXPECT(slab && group && cdr_comm_size(group) == z->ep);
    for (const cdr_kernel *k = cdr_op_experts_ep.kernels; k->name; k++) {
        if ((k->needs & isa) != k->needs) continue;
        EXPECT(whole_new(z, &y) == 0);
        EXPECT(whole_run(z, &y, k->name, first, me) == 0);
        EXPECT(part_new(z, &y, &r, slab, bytes, first, me) == 0);
        if (z->flags & ADD && wanted(z, CDR__EXB_DX)) fill(r.b.p[CDR__EPB_N], &r.b.t[CDR__EPB_N], 700 + (uint64_t)me, 1.0f);
        EXPECT(run(&cdr_op_experts_ep, k->name, &r.at, CDR__EX_N, CDR__EP_N_OUT, &r.f, 0, &lane) == 0);
        EXPECT(run(&cdr_op_experts_ep_bwd, k->name, &r.at_bwd, CDR__EPB_N, CDR__EPB_N_OUT, &r.b, z->flags & ADD ? 1u : 0u, &lane) == 0);
        EXPECT(compare(z, k->name, &y, &r, me) == 0);
        if (one_chain(z)) EXPECT(as_one_micro_batch(z, &y, k->name, &r, me) == 0);
        const bool rounds = k->reject && k->reject(&r.at, CDR__EX_N, CDR__EP_N_OUT, r.f.t);       /* F32 as BF16: never chosen, and not near it */
        if (first == 0 && z->T <= 200 && !rounds) EXPECT(against_double(z, &y, &r, me) == 0);
        whole_free(&y);
    }
    return 0;
}

static void the_same_bits_as_one_rank(void)
{
    for (int i = 0; i < CDR_COUNT(all); i++) {
        const int code = run_quiet(all[i].ep * (all[i].flags & TWO_GROUPS ? 2 : 1), one, i);
        if (code != 0) fprintf(stderr, "  %s: exit code %d\n", all[i].name, code);
        T_CHECK(code == 0);
    }
}

/* The same with threads of one process as ranks, where each kernel works alone: what a thread sanitizer can judge. */
static void threads_as_ranks(void)
{
    for (int i = 0; i < CDR_COUNT(all); i++) {
        const scenario *z = &all[i];
        if (z->threads > 1 || z->T > 60) continue;
        const int code = run_threads(z->ep * (z->flags & TWO_GROUPS ? 2 : 1), one, i, 60);
        if (code != 0) fprintf(stderr, "  %s, threads as ranks: exit code %d\n", z->name, code);
        T_CHECK(code == 0);
    }
}

/* Every rank has its share, each row has one place, and who takes takes from one rank. */
static void shares_are_even(void)
{
    enum { S = 16 };
    for (int trial = 0; trial < 2000; trial++) {
        int64_t load[S], n = 0, size = (int64_t)1 << (trial % 5);
        cdr__ep_share share[S];
        for (int64_t d = 0; d < size; d++) {
            const uint64_t u = draw(40, (uint64_t)(trial * S + d));
            load[d] = u % 3 == 0 ? 0 : u % 3 == 1 ? (int64_t)(u >> 8) % 50 : (int64_t)(u >> 8) % 5000;
            n += load[d];
        }
        cdr__ep_balance(share, load, size, NULL);
        for (int64_t d = 0; d < size; d++) {
            T_CHECK(share[d].kept + share[d].taken == n * (d + 1) / size - n * d / size);
            T_CHECK((share[d].giver < 0) == (share[d].taken == 0) && share[d].giver != d);
            int64_t end = share[d].kept;                   /* what others take of d's follows what it keeps, without a gap */
            for (bool more = true; more;) {
                more = false;
                for (int64_t u = 0; u < size && !more; u++)
                    if (share[u].giver == d && share[u].first == end) end += share[u].taken, more = true;
            }
            T_CHECK(end == load[d]);
        }
    }
}

/* ---- what the shard hooks append ------------------------------------------------------------------------------------------------ */
typedef struct { cdr_pool *pool; cdr_err err; cdr_graph *g; int32_t call; cdr_val u, v; } program;

static cdr_val value(cdr_graph *g, cdr_type t, const char *name) { return cdr_graph_value(g, t, CDR_TURN, CDR_C_WEIGHT, name); }

/* dispatch and experts of local stacks, through their hooks: experts_ep is the last call then */
typedef enum { PLAIN, EACH, SHARED } form;                 /* of the adapters: none, per expert, shared-outer */
static void program_new(program *q, int ep, form adapters, const cdr_shard_opts *o)
{
    enum { T = 40, A = 4, E = 32, L = 8, I = 12, K = 2 };
    const cdr_mesh mesh = { .size = { 1, 8, 1 }, .world = 8, .expert = ep };
    const cdr_experts_attr at = { .top_k = A, .capacity = 64, .scale = { 1, 1, 1 } };
    q->pool = cdr_pool_new();
    q->err = (cdr_err){ 0 };
    cdr_graph *g = q->g = cdr_graph_new(q->pool, cdr_pool_alloc(q->pool, sizeof(cdr_bundle)), "test", &q->err);
    cdr_graph_list(g, "micro");
    cdr_val perm, offs, pos, out[3] = { CDR_NEW, CDR_NEW, CDR_NEW }, idx = value(g, cdr_type_2d(CDR_I32, T, A), "idx");
    cdr_dispatch(g, idx, E, &perm, &offs, &pos);
    T_CHECK(cdr_op_dispatch.shard(g, &g->calls[0], &mesh, o, out, &q->err) == CDR_OK);
    if (ep > 1) perm = out[0], offs = out[1], pos = out[2];
    else T_CHECK(out[0] == CDR_NONE && g->n_calls == 1);
    cdr_val in[CDR__EX_N] = { value(g, cdr_type_2d(CDR_BF16, T, L), "x"), value(g, cdr_type_2d(CDR_F32, T, A), "p"), perm, offs, pos,
                              value(g, cdr_type_3d(CDR_BF16, E / ep, I, L), "w1"), value(g, cdr_type_3d(CDR_BF16, E / ep, I, L), "w3"),
                              value(g, cdr_type_3d(CDR_BF16, E / ep, L, I), "w2"), CDR_NONE };
    for (int i = 0; i < 6; i++) {
        const int64_t width = i < 4 ? (i % 2 ? I : L) : (i % 2 ? L : I);
        const cdr_type each = i % 2 ? cdr_type_3d(CDR_F32, E / ep, width, K) : cdr_type_3d(CDR_F32, E / ep, K, width);
        in[CDR__EX_A1 + i] = adapters == PLAIN || (adapters == SHARED && i == 5) ? CDR_NONE :
                             value(g, adapters == SHARED && (i == 0 || i == 2) ? cdr_type_2d(CDR_BF16, T, K) : each, "adapter");
    }
    /* the call as it stands when its operands have been replaced: no infer has seen the local stacks */
    const uint32_t arg = (uint32_t)g->n_operands;
    for (int i = 0; i < CDR__EX_N; i++) *CDR_PUSH(q->pool, g->operands, g->n_operands, g->cap_operands) = in[i];
    for (int k = 0; k < CDR__EX_N_OUT; k++) *CDR_PUSH(q->pool, g->operands, g->n_operands, g->cap_operands) = CDR_NONE;
    while (g->n_attrs % 16 != 0) *CDR_PUSH(q->pool, g->attrs, g->n_attrs, g->cap_attrs) = 0;
    const uint32_t attr = (uint32_t)g->n_attrs;
    for (size_t i = 0; i < sizeof at; i++) *CDR_PUSH(q->pool, g->attrs, g->n_attrs, g->cap_attrs) = ((const unsigned char *)&at)[i];
    const cdr_call c = { .op = (uint16_t)cdr_op_index(&cdr_op_experts), .n_in = CDR__EX_N, .n_out = CDR__EX_N_OUT, .arg = arg, .attr = attr };
    const int64_t before = g->n_calls;
    out[0] = out[1] = CDR_NEW;
    T_CHECK(cdr_op_experts.shard(g, &c, &mesh, o, out, &q->err) == CDR_OK);
    T_CHECK(g->n_calls == before + (ep > 1) && (out[0] == CDR_NONE) == (ep == 1) && (ep == 1 || out[1] == CDR_NONE));
    q->u = out[0];
    q->v = out[CDR__EX_OUT_V];
    T_CHECK(ep == 1 || (q->v != CDR_NONE) == (adapters == SHARED));
    q->call = (int32_t)g->n_calls - 1;
}

static const cdr_experts_ep_attr *attr_in(const program *q, int32_t call) { return cdr_graph_attr(q->g, &q->g->calls[call]); }
static int64_t rows_in(const program *q, int32_t call, int out) { return cdr_graph_type(q->g, cdr_graph_out(q->g, &q->g->calls[call], out))->n[0]; }

static void hooks_append_the_exchange(void)
{
    program q;
    program_new(&q, 1, PLAIN, &(cdr_shard_opts){ .dispatch_factor = 1.25 });
    cdr_pool_free(q.pool);

    program_new(&q, 4, PLAIN, &(cdr_shard_opts){ .dispatch_factor = 1.25 });
    const cdr_call *c = &q.g->calls[q.call], *gather = &q.g->calls[q.call - 1];
    T_CHECK(q.g->n_calls == 4 && gather->op == cdr_op_index(&cdr_op_gather) && c->op == cdr_op_index(&cdr_op_experts_ep) && c->stream == CDR_S_COMPUTE);
    const cdr_type *offs = cdr_graph_type(q.g, cdr_graph_in(q.g, c, CDR__EX_OFFS));
    T_CHECK(offs->n_dim == 2 && offs->n[0] == 4 && offs->n[1] == 33);
    const cdr_gather_attr *ga = cdr_graph_attr(q.g, gather);
    T_CHECK(ga->coll.comm == CDR_COMM_EXPERT && ga->size == 4 && ga->coll.wire_bytes == 3 * 33 * 4);
    const cdr_experts_ep_attr *a = attr_in(&q, q.call);
    T_CHECK(a->size == 4 && a->n_experts == 32 && a->cap == 208 && a->experts.top_k == 4 && a->coll.kind == CDR_COLL_EXPERTS && a->coll.comm == CDR_COMM_EXPERT);
    T_CHECK(a->coll.wire_bytes == 40 * 4 * 3 / 4 * (16 + 8 + 16));
    T_CHECK(rows_in(&q, q.call, CDR__EP_OUT_RECV) == 208 && rows_in(&q, q.call, CDR__EP_OUT_BACK) == 160);
    T_CHECK(cdr_graph_at(q.g, cdr_graph_out(q.g, c, CDR__EP_OUT_RECV))->cls == CDR_C_COMM);
    T_CHECK(cdr_graph_out(q.g, c, CDR__EP_OUT_SLOTS) == CDR_NONE && cdr_graph_type(q.g, q.u)->n[0] == 40);

    cdr_val dout[CDR__EP_N_OUT], din[CDR__EX_N];
    bool want[CDR__EX_N] = { [CDR__EX_X] = true, [CDR__EX_P] = true, [CDR__EX_W2] = true };
    for (int k = 0; k < CDR__EP_N_OUT; k++) dout[k] = CDR_NONE;
    for (int i = 0; i < CDR__EX_N; i++) din[i] = CDR_NONE;
    dout[0] = value(q.g, cdr_type_2d(CDR_F32, 40, 8), "du");
    T_CHECK(cdr_op_experts_ep.grad(q.g, c, dout, want, din, &q.err) == CDR_OK && q.g->n_calls == 5);
    T_CHECK(din[CDR__EX_X] >= 0 && din[CDR__EX_P] >= 0 && din[CDR__EX_W2] >= 0 && din[CDR__EX_W1] == CDR_NONE);
    T_CHECK(cdr_graph_type(q.g, din[CDR__EX_W2])->n[0] == 8 && cdr_graph_type(q.g, din[CDR__EX_W2])->dtype == CDR_F32);
    T_CHECK(attr_in(&q, 4)->coll.wire_bytes == 40 * 4 * 3 / 4 * (16 + 32 + 8 + 16 + 4) && rows_in(&q, 4, CDR__EPB_OUT_DP) == 208);
    cdr_pool_free(q.pool);

    program_new(&q, 4, PLAIN, &(cdr_shard_opts){ .dispatch_factor = 0 });      /* the worst case: one round, nothing to wait in */
    T_CHECK(attr_in(&q, q.call)->cap == 640 && cdr_graph_out(q.g, &q.g->calls[q.call], CDR__EP_OUT_BACK) == CDR_NONE);
    cdr_pool_free(q.pool);
    program_new(&q, 4, PLAIN, &(cdr_shard_opts){ .dispatch_factor = 0.01 });   /* at least an expert's rows from one rank */
    T_CHECK(attr_in(&q, q.call)->cap == 48);
    cdr_pool_free(q.pool);
}

/* h1 and h3 of rank 2 travel with x, v comes home with y; dv goes out, dh1 and dh3 come home. */
static void shared_factors_make_rows_wider(void)
{
    program q;
    program_new(&q, 4, SHARED, &(cdr_shard_opts){ .dispatch_factor = 1.25 });
    const cdr_call c = q.g->calls[q.call];
    T_CHECK(cdr_graph_type(q.g, q.v)->n[0] == 40 && cdr_graph_type(q.g, q.v)->n[1] == 2 && cdr_graph_at(q.g, q.v)->cls == CDR_C_ACT);
    T_CHECK(cdr_graph_type(q.g, cdr_graph_out(q.g, &c, CDR__EP_OUT_RECV))->n[1] == 8 + 2);
    T_CHECK(attr_in(&q, q.call)->coll.wire_bytes == 40 * 4 * 3 / 4 * (2 * (8 + 2 + 2) + 8 + 2 * (8 + 2)));
    for (int dx = 0; dx < 2; dx++) {
        cdr_val dout[CDR__EP_N_OUT], din[CDR__EX_N];
        bool want[CDR__EX_N] = { [CDR__EX_X] = dx == 1, [CDR__EX_A1] = true, [CDR__EX_B1] = true, [CDR__EX_A2] = true };
        for (int k = 0; k < CDR__EP_N_OUT; k++) dout[k] = CDR_NONE;
        dout[0] = value(q.g, cdr_type_2d(CDR_F32, 40, 8), "du");
        dout[CDR__EP_OUT_V] = value(q.g, cdr_type_2d(CDR_BF16, 40, 2), "dv");
        T_CHECK(cdr_op_experts_ep.grad(q.g, &c, dout, want, din, &q.err) == CDR_OK);
        const cdr_call *b = &q.g->calls[q.g->n_calls - 1];
        T_CHECK(cdr_graph_type(q.g, din[CDR__EX_A1])->n[0] == 40 && cdr_graph_type(q.g, din[CDR__EX_A1])->dtype == CDR_BF16);
        T_CHECK(cdr_graph_type(q.g, din[CDR__EX_B1])->n[0] == 8 && cdr_graph_type(q.g, din[CDR__EX_A2])->dtype == CDR_F32);
        T_CHECK(cdr_graph_type(q.g, cdr_graph_out(q.g, b, CDR__EPB_OUT_RECV))->n[1] == 8 + 2 + 2);
        const cdr_experts_ep_attr *a = cdr_graph_attr(q.g, b);
        T_CHECK(a->coll.wire_bytes == 40 * 4 * 3 / 4 * (2 * 12 + 4 * 8 + 2 * 2 + 8 + 2 * 12));
    }
    cdr_pool_free(q.pool);
}

static void balanced_moves_whole_groups_where_it_trains(void)
{
    program q;
    for (int frozen = 0; frozen < 2; frozen++) {
        program_new(&q, 4, EACH, &(cdr_shard_opts){ .dispatch_factor = 1.25, .balanced = true });
        cdr_call c = q.g->calls[q.call];
        cdr_val dout[CDR__EP_N_OUT], din[CDR__EX_N];
        bool want[CDR__EX_N] = { [CDR__EX_X] = true, [CDR__EX_B3] = !frozen };
        T_CHECK(attr_in(&q, q.call)->cap == 160 && attr_in(&q, q.call)->balanced);
        T_CHECK(cdr_graph_out(q.g, &c, CDR__EP_OUT_BACK) == CDR_NONE && rows_in(&q, q.call, CDR__EP_OUT_SLOTS + 8) == 8);
        for (int k = 0; k < CDR__EP_N_OUT; k++) dout[k] = CDR_NONE;
        dout[0] = value(q.g, cdr_type_2d(CDR_F32, 40, 8), "du");
        T_CHECK(cdr_op_experts_ep.grad(q.g, &c, dout, want, din, &q.err) == CDR_OK);
        const cdr_experts_ep_attr *a = attr_in(&q, q.call + 1);
        const cdr_val node = cdr_graph_out(q.g, &q.g->calls[q.call + 1], CDR__EPB_OUT_NODES + 6);
        T_CHECK(a->balanced == (frozen ? 1 : 2) && a->cap == (frozen ? 160 : 208) && (node == CDR_NONE) == (frozen == 1));
        if (!frozen) T_CHECK(cdr_graph_type(q.g, node)->n[0] == 8 + 3 * 2 && cdr_graph_type(q.g, node)->n[1] == 12);
        cdr_pool_free(q.pool);
    }
}

static void wrong_operands_are_refused(void)
{
    const scenario z = { "", 4, 10, 2, 8, 6, 5, CDR_F32, SPREAD, 0, 1, 0 };
    const cdr_experts_ep_attr good = { .experts = attr_of(&z), .size = 4, .n_experts = 8, .cap = 10 };
    cdr_type t[CDR__EX_N], out[CDR__EP_N_OUT];
    int n;
    for (int bad = 0; bad < 9; bad++) {
        cdr_experts_ep_attr a = good;
        cdr_err err = { 0 };
        types_of(&z, 2, t);
        t[CDR__EX_OFFS] = cdr_type_2d(CDR_I32, 4, 9);
        if (bad == 1) a.cap = 9;
        if (bad == 2) a.size = 3;
        if (bad == 3) a.n_experts = 10;
        if (bad == 4) t[CDR__EX_OFFS] = cdr_type_1d(CDR_I32, 9);
        if (bad == 5) t[CDR__EX_W1].n[0] = 8;
        if (bad == 6) t[CDR__EX_W2].n[0] = 4;
        if (bad == 7) a.balanced = 1;
        if (bad == 8) t[CDR__EX_X].dtype = CDR_I32;
        T_CHECK((cdr_op_experts_ep.infer(&a, CDR__EX_N, t, &n, out, &err) == CDR_OK) == (bad == 0));
        if (bad) T_CHECK(err.text[0] != 0);
    }
}

/* ---- bench ------------------------------------------------------------------------------------------------------------------------ */
static const scenario timed[] = {
    { "T 1024 A 4 E 32 L 64 I 64 f32", 2, 1024, 4, 32, 64, 64, CDR_F32, SPREAD, 0, 1, 0 },
    { "T 1024 A 8 E 64 L 256 I 256 f32", 2, 1024, 8, 64, 256, 256, CDR_F32, SPREAD, 0, 1, 0 },
    { "T 1024 A 8 E 64 L 256 I 256 bf16", 2, 1024, 8, 64, 256, 256, CDR_BF16, SPREAD, 0, 1, 0 },
    { "T 1024 A 8 E 64 L 256 I 256 bf16, cap 1.25", 2, 1024, 8, 64, 256, 256, CDR_BF16, SPREAD, 10240, 1, 0 },
};
typedef struct { const cdr_kernel *k; const void *attr; int n_in, n_out; const operands *o; void *work; } call;

static call prepare(const cdr_op *op, const void *attr, int n_in, int n_out, const operands *o, int n_threads)
{
    call c = { .k = op->kernels, .attr = attr, .n_in = n_in, .n_out = n_out, .o = o };
    while ((c.k->needs & cdr_cpu_isa(NULL)) != c.k->needs) c.k++;
    if (posix_memalign(&c.work, 64, (c.k->work_bytes ? c.k->work_bytes(attr, n_in, n_out, o->t, n_threads) : 0) + 64) != 0) abort();
    return c;
}

static void again(const call *c, const cdr_lane *lane)
{
    c->k->run(&(cdr_args){ .attr = c->attr, .type = c->o->t, .ptr = c->o->p, .n_in = c->n_in, .n_out = c->n_out, .work = c->work, .lane = lane });
}

/* Ranks of a group: one forward and backward each. One rank: as many micro-batches as the group has ranks, merged. The best of
 * each half, and processor time of all ranks together, which other work on the machine disturbs less. */
static int64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int bench_rank(cdr_comm *w, int i)
{
    const scenario *z = &timed[i];
    const bool alone = cdr_comm_size(w) == 1;
    const int me = cdr_comm_rank(w), depth = 1;
    cdr_err err = { 0 };
    whole y;
    part r;
    const size_t bytes = (size_t)256 << 20;
    char *slab = cdr_comm_slab(w, bytes, &err);
    cdr_comm *comms[CDR_N_COMMS] = { [CDR_COMM_EXPERT] = w };
    const cdr_lane lane = { .n_threads = alone ? 2 : 1, .comms = comms };
    EXPECT(slab && whole_new(z, &y) == 0);
    fill_source(z, me, &y.b, CDR__EXB_DV, 0);
    EXPECT(dispatch(z, me, y.f.p[CDR__EX_PERM], y.f.p[CDR__EX_OFFS], y.f.p[CDR__EX_POS]) == 0);
    const cdr_experts_attr at = attr_of(z);
    const cdr_grad_push_attr push = { .depth = depth };
    int32_t micro = 0;
    operands o[3];
    call c[5];
    double best[2] = { 1e9, 1e9 }, cpu[2] = { 1e9, 1e9 };
    if (alone) {
        c[0] = prepare(&cdr_op_experts, &at, CDR__EX_N, CDR__EX_N_OUT, &y.f, 2);
        c[1] = prepare(&cdr_op_experts_bwd, &at, CDR__EXB_N, CDR__EXB_N_OUT, &y.b, 2);
        for (int k = 0; k < 3; k++) {
            const cdr_type t = y.b.t[CDR__EXB_N + CDR__EXB_DW1 + k];
            o[k] = (operands){ .t = { t, cdr_type_1d(CDR_I32, 1), t }, .p = { y.b.p[CDR__EXB_N + CDR__EXB_DW1 + k], &micro, y.stack[CDR__EXB_DW1 + k][0] } };
            c[2 + k] = prepare(&cdr_op_grad_push, &push, 2, depth, &o[k], 2);
        }
    } else {
        EXPECT(part_new(z, &y, &r, slab, bytes, 0, me) == 0);
        c[0] = prepare(&cdr_op_experts_ep, &r.at, CDR__EX_N, CDR__EP_N_OUT, &r.f, 1);
        c[1] = prepare(&cdr_op_experts_ep_bwd, &r.at_bwd, CDR__EPB_N, CDR__EPB_N_OUT, &r.b, 1);
    }
    for (int rep = 0; rep < 20; rep++)
        for (int half = 0; half < 2; half++) {
            EXPECT_OK(cdr_comm_barrier(w));
            const int64_t t0 = cdr_now_ns(), c0 = cpu_us();
            for (int m = 0; m < (alone ? z->ep : 1); m++) {
                micro = m;
                again(&c[half], &lane);
                for (int k = 0; k < 3 && alone && half == 1; k++) again(&c[2 + k], &lane);
            }
            int64_t us = cpu_us() - c0;
            EXPECT_OK(cdr_comm_sum_i64(w, &us, 1));
            cpu[half] = fmin(cpu[half], (double)us / 1e3);
            best[half] = fmin(best[half], (double)(cdr_now_ns() - t0) / 1e6);
        }
    if (me == 0) printf("  %-46s %s: forward %7.2f ms, backward %7.2f ms, both %7.2f ms; processor %7.2f + %7.2f = %7.2f ms\n", z->name,
                        alone ? "1 rank, 2 threads" : "2 ranks, 1 thread", best[0], best[1], best[0] + best[1],
                        cpu[0], cpu[1], cpu[0] + cpu[1]);
    fflush(stdout);
    return 0;
}

/* The backward alone, by turns with the tree over sources and as one chain: processor time of all ranks, the best and the middle of many */
static const scenario ordered[] = {
    { "T 1024 A 8 E 64 L 256 I 256 f32, trained", 8, 1024, 8, 64, 256, 256, CDR_F32, SPREAD, 10240, 1, 0 },
    { "T 1024 A 8 E 64 L 256 I 256 f32, adapters of rank 2", 8, 1024, 8, 64, 256, 256, CDR_F32, SPREAD, 10240, 1, NO_DW | ADAPTERS | RANK_2 },
    { "T 256 A 8 E 64 L 256 I 256 f32, trained", 8, 256, 8, 64, 256, 256, CDR_F32, SPREAD, 2560, 1, 0 },
    { "T 256 A 8 E 64 L 256 I 256 f32, adapters of rank 2", 8, 256, 8, 64, 256, 256, CDR_F32, SPREAD, 2560, 1, NO_DW | ADAPTERS | RANK_2 },
};

static int ascending(const void *a, const void *b) { return *(const int64_t *)a < *(const int64_t *)b ? -1 : *(const int64_t *)a > *(const int64_t *)b; }

static int bench_order(cdr_comm *w, int i)
{
    enum { REPS = 10 };
    const scenario *z = &ordered[i];
    const int me = cdr_comm_rank(w);
    cdr_err err = { 0 };
    whole y;
    part r;
    const size_t bytes = (size_t)512 << 20;
    char *slab = cdr_comm_slab(w, bytes, &err);
    cdr_comm *comms[CDR_N_COMMS] = { [CDR_COMM_EXPERT] = w };
    const cdr_lane lane = { .n_threads = 1, .comms = comms };
    EXPECT(slab && whole_new(z, &y) == 0 && part_new(z, &y, &r, slab, bytes, 0, me) == 0);
    cdr_experts_ep_attr at[2] = { r.at_bwd, r.at_bwd };
    call c[2];
    int64_t us[2][REPS];
    for (int k = 0; k < 2; k++) {
        at[k].coll.order = k ? CDR_ORDER_FREE : CDR_ORDER_TREE;
        c[k] = prepare(&cdr_op_experts_ep_bwd, &at[k], CDR__EPB_N, CDR__EPB_N_OUT, &r.b, 1);
    }
    for (int rep = 0; rep < REPS; rep++)
        for (int k = 0; k < 2; k++) {
            EXPECT_OK(cdr_comm_barrier(w));
            const int64_t c0 = cpu_us();
            again(&c[k], &lane);
            us[k][rep] = cpu_us() - c0;
            EXPECT_OK(cdr_comm_sum_i64(w, &us[k][rep], 1));
        }
    for (int k = 0; k < 2; k++) qsort(us[k], REPS, sizeof us[k][0], ascending);
    const double best[2] = { (double)us[0][0] / 1e3, (double)us[1][0] / 1e3 }, mid[2] = { (double)us[0][REPS / 2] / 1e3, (double)us[1][REPS / 2] / 1e3 };
    if (me == 0) printf("  ep 8, %-52s tree %7.1f ms (middle %7.1f), any order %7.1f (%7.1f): %+.1f %% (%+.1f %%)\n", z->name, best[0], mid[0], best[1], mid[1],
                        100 * (best[0] / best[1] - 1), 100 * (mid[0] / mid[1] - 1));
    fflush(stdout);
    return 0;
}

static int bench(void)
{
    for (int i = 0; i < CDR_COUNT(ordered); i++) if (run_quiet(8, bench_order, i)) return 1;
    for (int i = 0; i < CDR_COUNT(timed); i++)
        for (int n = 1; n <= 2; n++)
            if (run_quiet(n, bench_rank, i)) return 1;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--bench")) return bench();
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(hooks_append_the_exchange);
    T_RUN(shared_factors_make_rows_wider);
    T_RUN(balanced_moves_whole_groups_where_it_trains);
    T_RUN(wrong_operands_are_refused);
    T_RUN(shares_are_even);
    T_RUN(the_same_bits_as_one_rank);
    T_RUN(threads_as_ranks);
    return t_end();
}
