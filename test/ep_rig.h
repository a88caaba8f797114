/* ep_rig.h: operands of an exchange of routed rows, for its tests and its bench: `whole`, one rank that has all experts and works on the
 * sources one by one; `part`, a rank of an expert group. Each rank works out what the others have from the same draws.
 *
 *   whole_new(&z, &y);  whole_run(&z, &y, "base", first, me);
 *   part_new(&z, &y, &r, slab, bytes, first, me);
 */
#ifndef CADRE_EP_RIG_H
#define CADRE_EP_RIG_H
#include "ops/cpu.h"
#include "ops/dispatch/dispatch.h"
#include "ops/experts/ep.h"
#include "ops/gather/gather.h"
#include "ops/grad_push/grad_push.h"
#include "ranks.h"
#include <time.h>

typedef enum { SPREAD, HOT, IDLE_RANK, UNEVEN, FIRST_RANK, NOBODY } routes;
enum { NO_DW = 1, NO_DX = 2, NO_DP = 4, ADAPTERS = 8, ADD = 16, F32_GRAD = 32, SITU = 64, TWO_GROUPS = 128, ONLY_DW2 = 256, TABLE = 512, BALANCED = 1024, PACKED = 2048,
       ANY_ORDER = 4096, RANK_2 = 8192, OUTER = 16384 };
typedef struct {
    const char *name;
    int ep; int64_t T, A, E, L, I; int dtype; routes how;
    int64_t cap;                         /* 0: the worst case */
    int threads, flags;
} scenario;

enum { RANK = 5 };                       /* of adapters, unless RANK_2; those of w3 have one more */

/* ---- operands ------------------------------------------------------------------------------------------------------------ */
typedef struct { cdr_type t[CDR__EXB_N + CDR__EPB_N_OUT]; void *p[CDR__EXB_N + CDR__EPB_N_OUT]; } operands;
static const cdr_type absent = { .dtype = CDR_N_DTYPES };

static void *bytes_of(const cdr_type *t)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, cdr_type_bytes(t) + 64) != 0) abort();
    memset(p, 0xff, cdr_type_bytes(t) + 64);               /* NaN */
    return p;
}

static void fill(void *p, const cdr_type *t, uint64_t stream, float scale)
{
    const int64_t n = cdr_type_elems(t);
    float *x = malloc((size_t)n * sizeof *x);
    if (!x) abort();
    for (int64_t i = 0; i < n; i++) x[i] = scale * cdr_rng_normal((cdr_rng_key){ 5, stream, 0 }, (uint64_t)i);
    cdr_from_f32(t->dtype, x, p, n);
    free(x);
}

static cdr_experts_attr attr_of(const scenario *z)
{
    return (cdr_experts_attr){ .top_k = (int32_t)z->A, .situ = (z->flags & SITU) != 0, .beta = 4, .linear_beta = 25, .scale = { 0.5f, 1.5f, -0.7f } };
}

static int64_t worst(const scenario *z) { return z->ep * z->T * CDR_MIN(z->A, z->E / z->ep); }
static int64_t cap_of(const scenario *z) { return z->cap ? z->cap : CDR_MAX(worst(z), z->T); }

/* Types of the forward's operands, with E experts */
static void types_of(const scenario *z, int64_t E, cdr_type *t)
{
    t[CDR__EX_X] = cdr_type_2d(z->dtype, z->T, z->L);
    t[CDR__EX_P] = cdr_type_2d(CDR_F32, z->T, z->A);
    t[CDR__EX_PERM] = cdr_type_1d(CDR_I32, z->T * z->A);
    t[CDR__EX_OFFS] = cdr_type_1d(CDR_I32, z->E + 1);
    t[CDR__EX_POS] = cdr_type_2d(CDR_I32, z->T, z->A);
    const int packed = z->flags & PACKED ? CDR_MXFP4 : z->dtype;
    t[CDR__EX_W1] = t[CDR__EX_W3] = cdr_type_3d(packed, E, z->I, z->L);
    t[CDR__EX_W2] = cdr_type_3d(packed, E, z->L, z->I);
    t[CDR__EX_TABLE] = z->flags & TABLE ? cdr_type_2d(CDR_I64, E, 3) : absent;
    for (int m = 0; m < 3; m++) {
        const int64_t k = z->flags & RANK_2 ? 2 : m == 1 ? RANK + 1 : RANK, in = m == 2 ? z->I : z->L, out = m == 2 ? z->L : z->I;
        t[CDR__EX_A1 + 2 * m] = z->flags & ADAPTERS ? cdr_type_3d(CDR_F32, E, k, in) : absent;
        t[CDR__EX_B1 + 2 * m] = z->flags & ADAPTERS ? cdr_type_3d(CDR_F32, E, out, k) : absent;
        if (!(z->flags & OUTER)) continue;
        t[CDR__EX_A1 + 2 * m] = m == 2 ? cdr_type_3d(z->dtype, E, k, in) : cdr_type_2d(z->dtype, z->T, k);
        t[CDR__EX_B1 + 2 * m] = m == 2 ? absent : cdr_type_3d(z->dtype, E, out, k);
    }
}

/* Operand i of the forward has a row for each token: x and p, and with shared-outer adapters h1 and h3; so has output k of the backward. */
static bool of_tokens(const scenario *z, int i) { return i <= CDR__EX_P || (z->flags & OUTER && (i == CDR__EX_A1 || i == CDR__EX_A3)); }
static bool token_gradient(const scenario *z, int k) { return k <= CDR__EXB_DP || (z->flags & OUTER && (k == CDR__EXB_DA1 || k == CDR__EXB_DA3)); }

/* Experts of token i of a source: ascending and distinct, or -1 */
static void route_token(const scenario *z, int source, int64_t i, int32_t *idx)
{
    for (int64_t s = 0; s < z->A; s++) idx[s] = -1;
    if (z->how == NOBODY || (z->how == IDLE_RANK && source == 1) || (z->how == UNEVEN && i >= z->T * (source + 1) / z->ep) || i % 9 == 5) return;
    if (z->how == HOT) {
        idx[0] = (int32_t)z->E - 1;
        return;
    }
    int64_t left = z->A, slot = 0;
    const int64_t E = z->how == FIRST_RANK ? z->E / z->ep : z->E;
    for (int64_t e = 0; e < E; e++) {                      /* expert 1 gets nobody where there are enough others */
        const int64_t candidates = E - e - (E > z->A && e <= 1 ? 1 : 0);
        if (E > z->A && e == 1) continue;
        if ((int64_t)(draw(600 + (uint64_t)source, (uint64_t)(i * z->E + e)) % (uint64_t)candidates) >= left) continue;
        idx[slot++] = (int32_t)e;
        left--;
    }
}

static int run(const cdr_op *op, const char *kernel, const void *attr, int n_in, int n_out, const operands *o, uint32_t add, const cdr_lane *lane)
{
    enum { GUARD = 256 };
    const cdr_kernel *k = op->kernels;
    while (k->name && strcmp(k->name, kernel) != 0) k++;
    if (!k->name) return 1;
    const size_t n = k->work_bytes ? k->work_bytes(attr, n_in, n_out, o->t, lane->n_threads) : 0;
    char *work = NULL;
    if (posix_memalign((void **)&work, 64, n + GUARD) != 0) abort();
    memset(work, 0xff, n + GUARD);
    const cdr_status st = k->run(&(cdr_args){ .attr = attr, .type = o->t, .ptr = o->p, .n_in = n_in, .n_out = n_out, .add = add, .work = work, .lane = lane });
    for (int i = 0; i < GUARD; i++)
        if ((unsigned char)work[n + (size_t)i] != 0xff) return 2;
    free(work);
    return st == CDR_OK ? 0 : 3;
}

static int dispatch(const scenario *z, int source, void *perm, void *offs, void *pos)
{
    const cdr_dispatch_attr at = { (int32_t)z->E };
    operands o = { .t = { cdr_type_2d(CDR_I32, z->T, z->A), cdr_type_1d(CDR_I32, z->T * z->A), cdr_type_1d(CDR_I32, z->E + 1), cdr_type_2d(CDR_I32, z->T, z->A) } };
    int32_t *idx = malloc((size_t)(z->T * z->A) * sizeof *idx);
    if (!idx) abort();
    for (int64_t i = 0; i < z->T; i++) route_token(z, source, i, idx + i * z->A);
    o.p[0] = idx, o.p[1] = perm, o.p[2] = offs, o.p[3] = pos;
    const int code = run(&cdr_op_dispatch, "base", &at, 1, 3, &o, 0, &(cdr_lane){ .n_threads = 1 });
    free(idx);
    return code;
}

/* What a source has, by its number: x, p, du, and h1, h3, dv. b: operands of the backward, dv at i_dv; its types are those of one source, and
 * rows go from row `first` on. */
static void fill_rows(const cdr_type *t, int64_t rows, void *to, int64_t first, uint64_t stream, float scale)
{
    cdr_type one = *t;
    one.n[0] = rows;
    fill((char *)to + cdr_dtype_bytes(t->dtype, first * t->n[1]), &one, stream, scale);
}

static void fill_source(const scenario *z, int source, const operands *b, int i_dv, int64_t first)
{
    const uint64_t s = (uint64_t)source;
    fill_rows(&b->t[CDR__EXB_X], z->T, b->p[CDR__EXB_X], first, 100 + s, 1.0f);
    fill_rows(&b->t[CDR__EXB_X + CDR__EX_P], z->T, b->p[CDR__EXB_X + CDR__EX_P], first, 300 + s, 0.5f);
    fill_rows(&b->t[CDR__EXB_DU], z->T, b->p[CDR__EXB_DU], first, 500 + s, 1.0f);
    if (!(z->flags & OUTER)) return;
    for (int m = 0; m < 2; m++) {
        const int i = CDR__EXB_X + CDR__EX_A1 + 2 * m;
        fill_rows(&b->t[i], z->T, b->p[i], first, 1100 + 200 * (uint64_t)m + s, 1.0f);
    }
    fill_rows(&b->t[i_dv], z->T, b->p[i_dv], first, 1500 + s, 1.0f);
}

static bool wanted(const scenario *z, int out)
{
    if (out == CDR__EXB_DX) return !(z->flags & NO_DX);
    if (out == CDR__EXB_DP) return !(z->flags & NO_DP);
    if (out >= CDR__EXB_DA1) return (z->flags & (ADAPTERS | OUTER)) != 0;
    return out == CDR__EXB_DW2 ? !(z->flags & NO_DW) : !(z->flags & (NO_DW | ONLY_DW2));
}

/* ---- one rank: all experts, source by source ------------------------------------------------------------------------------- */
typedef struct {
    operands f, b;                       /* of the last source that was run */
    void *u, *v, *token[CDR__EXB_N_OUT]; /* of source `me`; token: dx, dp, dh1, dh3 */
    float *stack[CDR__EXB_N_OUT][8];     /* grad_push, by gradient */
} whole;

static int whole_new(const scenario *z, whole *y)
{
    cdr_experts_attr at = attr_of(z);
    int n = 0;
    *y = (whole){ 0 };
    types_of(z, z->E, y->f.t);
    y->f.t[CDR__EX_TABLE] = absent;
    if (cdr_op_experts.infer(&at, CDR__EX_N, y->f.t, &n, y->f.t + CDR__EX_N, NULL) != CDR_OK) return 1;
    y->f.t[CDR__EX_N + CDR__EX_OUT_GU] = absent;
    for (int i = 0; i < CDR__EX_N + CDR__EX_N_OUT; i++) y->f.p[i] = cdr_absent(&y->f.t[i]) ? NULL : bytes_of(&y->f.t[i]);
    for (int i = CDR__EX_W1; i < CDR__EX_N; i++) if (y->f.p[i]) fill(y->f.p[i], &y->f.t[i], (uint64_t)(3 + i), 0.2f);
    y->b.t[CDR__EXB_DU] = cdr_dense_like(&y->f.t[CDR__EX_X], z->flags & F32_GRAD ? CDR_F32 : z->dtype);
    y->b.p[CDR__EXB_DU] = bytes_of(&y->b.t[CDR__EXB_DU]);
    memcpy(y->b.t + CDR__EXB_X, y->f.t, CDR__EX_N * sizeof *y->f.t);
    memcpy(y->b.p + CDR__EXB_X, y->f.p, CDR__EX_N * sizeof *y->f.p);
    y->b.t[CDR__EXB_GU] = y->b.t[CDR__EXB_DV] = absent;
    if (z->flags & OUTER) {
        y->b.t[CDR__EXB_DV] = cdr_type_2d(y->b.t[CDR__EXB_DU].dtype, z->T, y->f.t[CDR__EX_A2].n[1]);
        y->b.p[CDR__EXB_DV] = bytes_of(&y->b.t[CDR__EXB_DV]);
    }
    if (cdr_op_experts_bwd.infer(&at, CDR__EXB_N, y->b.t, &n, y->b.t + CDR__EXB_N, NULL) != CDR_OK) return 1;
    for (int k = 0; k < CDR__EXB_N_OUT; k++) {
        cdr_type *t = &y->b.t[CDR__EXB_N + k];
        if (!wanted(z, k)) *t = absent;
        if (cdr_absent(t)) continue;
        y->b.p[CDR__EXB_N + k] = bytes_of(t);
        for (int j = 0; j < cdr_grad_push_depth(z->ep) && !token_gradient(z, k); j++) y->stack[k][j] = bytes_of(t);
    }
    return 0;
}

static void whole_free(whole *y)
{
    for (int i = 0; i < CDR__EX_N + CDR__EX_N_OUT; i++) free(y->f.p[i]);
    free(y->b.p[CDR__EXB_DU]), free(y->b.p[CDR__EXB_DV]);
    for (int k = 0; k < CDR__EXB_N_OUT; k++) {
        free(y->b.p[CDR__EXB_N + k]);
        for (int j = 0; j < 8; j++) free(y->stack[k][j]);
        free(y->token[k]);
    }
    free(y->u), free(y->v);
}

static void *copy_of(const cdr_type *t, const void *p)
{
    void *q = bytes_of(t);
    memcpy(q, p, cdr_type_bytes(t));
    return q;
}

/* first: world rank of the group's first rank */
static int whole_run(const scenario *z, whole *y, const char *kernel, int first, int me)
{
    const cdr_experts_attr at = attr_of(z);
    const cdr_lane lane = { .n_threads = 1 };
    for (int s = 0; s < z->ep; s++) {
        fill_source(z, first + s, &y->b, CDR__EXB_DV, 0);
        if (dispatch(z, s, y->f.p[CDR__EX_PERM], y->f.p[CDR__EX_OFFS], y->f.p[CDR__EX_POS])) return 1;
        void *dx = y->b.p[CDR__EXB_N + CDR__EXB_DX];
        if (dx && z->flags & ADD) fill(dx, &y->b.t[CDR__EXB_N], 700 + (uint64_t)s, 1.0f);
        if (run(&cdr_op_experts_bwd, kernel, &at, CDR__EXB_N, CDR__EXB_N_OUT, &y->b, z->flags & ADD ? 1u : 0u, &lane)) return 1;
        for (int k = CDR__EXB_DW1; k < CDR__EXB_N_OUT; k++) {
            const cdr_type *t = &y->b.t[CDR__EXB_N + k];
            if (token_gradient(z, k)) continue;
            const int depth = cdr_grad_push_depth(z->ep);
            const cdr_grad_push_attr push = { .depth = depth };
            int32_t micro = s;
            operands o = { .t = { *t, cdr_type_1d(CDR_I32, 1) }, .p = { y->b.p[CDR__EXB_N + k], &micro } };
            if (cdr_absent(t)) continue;
            for (int j = 0; j < depth; j++) o.t[2 + j] = *t, o.p[2 + j] = y->stack[k][j];
            if (run(&cdr_op_grad_push, "base", &push, 2, depth, &o, 0, &lane)) return 1;
        }
        if (s != me) continue;
        if (run(&cdr_op_experts, kernel, &at, CDR__EX_N, CDR__EX_N_OUT, &y->f, 0, &lane)) return 1;
        y->u = copy_of(&y->f.t[CDR__EX_N], y->f.p[CDR__EX_N]);
        if (z->flags & OUTER) y->v = copy_of(&y->f.t[CDR__EX_N + CDR__EX_OUT_V], y->f.p[CDR__EX_N + CDR__EX_OUT_V]);
        for (int k = 0; k < CDR__EXB_N_OUT; k++)
            if (token_gradient(z, k) && y->b.p[CDR__EXB_N + k]) y->token[k] = copy_of(&y->b.t[CDR__EXB_N + k], y->b.p[CDR__EXB_N + k]);
    }
    return 0;
}

/* ---- this rank of the group ------------------------------------------------------------------------------------------------- */
typedef struct { operands f, b; cdr_experts_ep_attr at, at_bwd; char *slab; size_t used, bytes; } part;

static void *take(part *r, const cdr_type *t)
{
    char *p = r->slab + r->used;
    r->used = cdr_align_up(r->used + cdr_type_bytes(t) + 64, 64);
    if (r->used > r->bytes) abort();
    memset(p, 0xff, cdr_type_bytes(t));
    return p;
}

/* Local stacks are those of y. slab: operands lie there, as the executor has them */
static int part_new(const scenario *z, const whole *y, part *r, char *slab, size_t bytes, int first, int me)
{
    const int64_t E_local = z->E / z->ep;
    int n = 0;
    *r = (part){ .slab = slab, .bytes = bytes };
    r->at = (cdr_experts_ep_attr){ .coll = { .kind = CDR_COLL_EXPERTS, .comm = CDR_COMM_EXPERT, .counts = CDR_NONE },
                                   .experts = attr_of(z), .size = z->ep, .n_experts = (int32_t)z->E, .cap = cap_of(z), .balanced = (z->flags & BALANCED) != 0 };
    r->at.coll.order = z->flags & ANY_ORDER ? CDR_ORDER_FREE : CDR_ORDER_TREE;
    r->at_bwd = r->at;
    for (int k = CDR__EXB_DW1; k < CDR__EXB_N_OUT && r->at.balanced; k++) if (wanted(z, k) && !token_gradient(z, k)) r->at_bwd.balanced = 2;
    types_of(z, E_local, r->f.t);
    r->f.t[CDR__EX_OFFS] = cdr_type_2d(CDR_I32, z->ep, z->E + 1);
    if (cdr_op_experts_ep.infer(&r->at, CDR__EX_N, r->f.t, &n, r->f.t + CDR__EX_N, NULL) != CDR_OK || n != CDR__EP_N_OUT) return 1;
    if (!z->cap || z->flags & BALANCED) r->f.t[CDR__EX_N + CDR__EP_OUT_BACK] = absent;
    for (int k = 0; k < CDR__EP_N_STACKS && !(z->flags & BALANCED); k++) r->f.t[CDR__EX_N + CDR__EP_OUT_SLOTS + k] = absent;
    for (int i = 0; i < CDR__EX_N + CDR__EP_N_OUT; i++) r->f.p[i] = cdr_absent(&r->f.t[i]) ? NULL : take(r, &r->f.t[i]);
    for (int i = CDR__EX_W1; i < CDR__EX_N; i++) {
        if (i == CDR__EX_TABLE || !r->f.p[i] || of_tokens(z, i)) continue;
        const size_t each = cdr_type_bytes(&r->f.t[i]) / (size_t)E_local;
        for (int64_t e = 0; e < E_local; e++) {            /* with a table the matrices lie in reverse */
            const int64_t at = z->flags & TABLE && i <= CDR__EX_W2 ? E_local - 1 - e : e;
            memcpy((char *)r->f.p[i] + (size_t)at * each, (const char *)y->f.p[i] + (size_t)(me * E_local + e) * each, each);
            if (z->flags & TABLE && i <= CDR__EX_W2) ((int64_t *)r->f.p[CDR__EX_TABLE])[e * 3 + i - CDR__EX_W1] = at * (int64_t)each;
        }
    }
    r->b.t[CDR__EXB_DU] = y->b.t[CDR__EXB_DU];
    r->b.p[CDR__EXB_DU] = take(r, &r->b.t[CDR__EXB_DU]);
    memcpy(r->b.t + CDR__EXB_X, r->f.t, CDR__EX_N * sizeof *r->f.t);
    memcpy(r->b.p + CDR__EXB_X, r->f.p, CDR__EX_N * sizeof *r->f.p);
    r->b.t[CDR__EPB_DV] = y->b.t[CDR__EXB_DV];
    r->b.p[CDR__EPB_DV] = z->flags & OUTER ? take(r, &r->b.t[CDR__EPB_DV]) : NULL;
    if (cdr_op_experts_ep_bwd.infer(&r->at_bwd, CDR__EPB_N, r->b.t, &n, r->b.t + CDR__EPB_N, NULL) != CDR_OK || n != CDR__EPB_N_OUT) return 1;
    for (int k = 0; k < CDR__EPB_N_OUT; k++) {
        cdr_type *t = &r->b.t[CDR__EPB_N + k];
        const bool has = k < CDR__EXB_N_OUT ? wanted(z, k) : k == CDR__EPB_OUT_DP ? wanted(z, CDR__EXB_DP) :
                         k >= CDR__EPB_OUT_NODES ? r->at_bwd.balanced == 2 && wanted(z, CDR__EXB_DW1 + k - CDR__EPB_OUT_NODES) :
                         k >= CDR__EPB_OUT_SLOTS ? (z->flags & BALANCED) != 0 :
                         (wanted(z, CDR__EXB_DX) || z->flags & OUTER) && (k == CDR__EPB_OUT_RECV || (z->cap && !(z->flags & BALANCED)));
        if (!has) *t = absent;
        if (!cdr_absent(t)) r->b.p[CDR__EPB_N + k] = take(r, t);
    }
    fill_source(z, first + me, &r->b, CDR__EPB_DV, 0);
    int32_t *offs = r->f.p[CDR__EX_OFFS], *drop = malloc((size_t)(2 * z->T * z->A) * sizeof *drop);
    if (!drop) abort();
    for (int s = 0; s < z->ep; s++)
        if (dispatch(z, s, s == me ? r->f.p[CDR__EX_PERM] : drop, offs + s * (z->E + 1), s == me ? r->f.p[CDR__EX_POS] : drop + z->T * z->A)) return 1;
    free(drop);
    return 0;
}
#endif
