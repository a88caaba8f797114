/* test_ep.c: experts over the ranks of an expert group against one rank that has all experts, bit for bit: u, dx and dp of each source's
 * tokens; gradients of the weights as micro-batches of one rank merge them (experts_bwd of each source, through grad_push). Beside it,
 * all tokens at once in double. Each rank works out what the others do from the same draws.
 *
 *   test_ep              all tests
 *   test_ep --bench      ep 2 on two ranks of one thread against one rank of two threads
 */
#include "ops/cpu.h"
#include "ops/dispatch/dispatch.h"
#include "ops/experts/ep.h"
#include "ops/gather/gather.h"
#include "ops/grad_push/grad_push.h"
#include "ranks.h"
#include <time.h>

typedef enum { SPREAD, HOT, IDLE_RANK, UNEVEN, FIRST_RANK, NOBODY } routes;
enum { NO_DW = 1, NO_DX = 2, NO_DP = 4, ADAPTERS = 8, ADD = 16, F32_GRAD = 32, SITU = 64, TWO_GROUPS = 128, ONLY_DW2 = 256, TABLE = 512, BALANCED = 1024, PACKED = 2048 };
typedef struct {
    const char *name;
    int ep; int64_t T, A, E, L, I; int dtype; routes how;
    int64_t cap;                         /* 0: the worst case */
    int threads, flags;
} scenario;

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
    { "ep 1 f32", 1, 45, 2, 8, 24, 20, CDR_F32, SPREAD, 45, 2, 0 },
};

enum { RANK = 5 };                       /* of adapters; those of w3 have one more */

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
        const int64_t k = m == 1 ? RANK + 1 : RANK, in = m == 2 ? z->I : z->L, out = m == 2 ? z->L : z->I;
        t[CDR__EX_A1 + 2 * m] = z->flags & ADAPTERS ? cdr_type_3d(CDR_F32, E, k, in) : absent;
        t[CDR__EX_B1 + 2 * m] = z->flags & ADAPTERS ? cdr_type_3d(CDR_F32, E, out, k) : absent;
    }
}

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

/* What a source has: x, p, du by its number */
static void fill_source(const scenario *z, int source, const cdr_type *t, void *x, void *p, const cdr_type *tdu, void *du)
{
    (void)z;
    fill(x, &t[CDR__EX_X], 100 + (uint64_t)source, 1.0f);
    fill(p, &t[CDR__EX_P], 300 + (uint64_t)source, 0.5f);
    fill(du, tdu, 500 + (uint64_t)source, 1.0f);
}

static bool wanted(const scenario *z, int out)
{
    if (out == CDR__EXB_DX) return !(z->flags & NO_DX);
    if (out == CDR__EXB_DP) return !(z->flags & NO_DP);
    if (out >= CDR__EXB_DA1) return (z->flags & ADAPTERS) != 0;
    return out == CDR__EXB_DW2 ? !(z->flags & NO_DW) : !(z->flags & (NO_DW | ONLY_DW2));
}

/* ---- one rank: all experts, source by source ------------------------------------------------------------------------------- */
typedef struct {
    operands f, b;                       /* of the last source that was run */
    void *u, *dx, *dp;                   /* of source `me` */
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
    y->f.t[CDR__EX_N + 1] = absent;
    for (int i = 0; i < CDR__EX_N + 2; i++) y->f.p[i] = cdr_absent(&y->f.t[i]) ? NULL : bytes_of(&y->f.t[i]);
    for (int i = CDR__EX_W1; i < CDR__EX_N; i++) if (y->f.p[i]) fill(y->f.p[i], &y->f.t[i], (uint64_t)(3 + i), 0.2f);
    y->b.t[CDR__EXB_DU] = cdr_dense_like(&y->f.t[CDR__EX_X], z->flags & F32_GRAD ? CDR_F32 : z->dtype);
    y->b.p[CDR__EXB_DU] = bytes_of(&y->b.t[CDR__EXB_DU]);
    memcpy(y->b.t + CDR__EXB_X, y->f.t, CDR__EX_N * sizeof *y->f.t);
    memcpy(y->b.p + CDR__EXB_X, y->f.p, CDR__EX_N * sizeof *y->f.p);
    y->b.t[CDR__EXB_GU] = absent;
    if (cdr_op_experts_bwd.infer(&at, CDR__EXB_N, y->b.t, &n, y->b.t + CDR__EXB_N, NULL) != CDR_OK) return 1;
    for (int k = 0; k < CDR__EXB_N_OUT; k++) {
        cdr_type *t = &y->b.t[CDR__EXB_N + k];
        if (!wanted(z, k)) *t = absent;
        if (cdr_absent(t)) continue;
        y->b.p[CDR__EXB_N + k] = bytes_of(t);
        for (int j = 0; j < cdr_grad_push_depth(z->ep) && k >= CDR__EXB_DW1; j++) y->stack[k][j] = bytes_of(t);
    }
    return 0;
}

static void whole_free(whole *y)
{
    for (int i = 0; i < CDR__EX_N + 2; i++) free(y->f.p[i]);
    free(y->b.p[CDR__EXB_DU]);
    for (int k = 0; k < CDR__EXB_N_OUT; k++) {
        free(y->b.p[CDR__EXB_N + k]);
        for (int j = 0; j < 8; j++) free(y->stack[k][j]);
    }
    free(y->u), free(y->dx), free(y->dp);
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
        fill_source(z, first + s, y->f.t, y->f.p[CDR__EX_X], y->f.p[CDR__EX_P], &y->b.t[CDR__EXB_DU], y->b.p[CDR__EXB_DU]);
        if (dispatch(z, s, y->f.p[CDR__EX_PERM], y->f.p[CDR__EX_OFFS], y->f.p[CDR__EX_POS])) return 1;
        void *dx = y->b.p[CDR__EXB_N + CDR__EXB_DX];
        if (dx && z->flags & ADD) fill(dx, &y->b.t[CDR__EXB_N], 700 + (uint64_t)s, 1.0f);
        if (run(&cdr_op_experts_bwd, kernel, &at, CDR__EXB_N, CDR__EXB_N_OUT, &y->b, z->flags & ADD ? 1u : 0u, &lane)) return 1;
        for (int k = CDR__EXB_DW1; k < CDR__EXB_N_OUT; k++) {
            const cdr_type *t = &y->b.t[CDR__EXB_N + k];
            const int depth = cdr_grad_push_depth(z->ep);
            const cdr_grad_push_attr push = { depth };
            int32_t micro = s;
            operands o = { .t = { *t, cdr_type_1d(CDR_I32, 1) }, .p = { y->b.p[CDR__EXB_N + k], &micro } };
            if (cdr_absent(t)) continue;
            for (int j = 0; j < depth; j++) o.t[2 + j] = *t, o.p[2 + j] = y->stack[k][j];
            if (run(&cdr_op_grad_push, "base", &push, 2, depth, &o, 0, &lane)) return 1;
        }
        if (s != me) continue;
        if (run(&cdr_op_experts, kernel, &at, CDR__EX_N, 2, &y->f, 0, &lane)) return 1;
        y->u = copy_of(&y->f.t[CDR__EX_N], y->f.p[CDR__EX_N]);
        if (dx) y->dx = copy_of(&y->b.t[CDR__EXB_N], dx);
        if (y->b.p[CDR__EXB_N + CDR__EXB_DP]) y->dp = copy_of(&y->b.t[CDR__EXB_N + CDR__EXB_DP], y->b.p[CDR__EXB_N + CDR__EXB_DP]);
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
    r->at = (cdr_experts_ep_attr){ .coll = { .kind = CDR_COLL_EXPERTS, .comm = CDR_COMM_EXPERT, .counts = CDR_NONE }, .experts = attr_of(z),
                                   .size = z->ep, .n_experts = (int32_t)z->E, .cap = cap_of(z), .balanced = (z->flags & BALANCED) != 0 };
    r->at_bwd = r->at;
    for (int k = CDR__EXB_DW1; k < CDR__EXB_N_OUT && r->at.balanced; k++) if (wanted(z, k)) r->at_bwd.balanced = 2;
    types_of(z, E_local, r->f.t);
    r->f.t[CDR__EX_OFFS] = cdr_type_2d(CDR_I32, z->ep, z->E + 1);
    if (cdr_op_experts_ep.infer(&r->at, CDR__EX_N, r->f.t, &n, r->f.t + CDR__EX_N, NULL) != CDR_OK || n != CDR__EP_N_OUT) return 1;
    if (!z->cap || z->flags & BALANCED) r->f.t[CDR__EX_N + CDR__EP_OUT_BACK] = absent;
    for (int k = 0; k < CDR__EP_N_STACKS && !(z->flags & BALANCED); k++) r->f.t[CDR__EX_N + CDR__EP_OUT_SLOTS + k] = absent;
    for (int i = 0; i < CDR__EX_N + CDR__EP_N_OUT; i++) r->f.p[i] = cdr_absent(&r->f.t[i]) ? NULL : take(r, &r->f.t[i]);
    for (int i = CDR__EX_W1; i < CDR__EX_N; i++) {
        if (i == CDR__EX_TABLE || !r->f.p[i]) continue;
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
    if (cdr_op_experts_ep_bwd.infer(&r->at_bwd, CDR__EPB_N, r->b.t, &n, r->b.t + CDR__EPB_N, NULL) != CDR_OK || n != CDR__EPB_N_OUT) return 1;
    for (int k = 0; k < CDR__EPB_N_OUT; k++) {
        cdr_type *t = &r->b.t[CDR__EPB_N + k];
        const bool has = k < CDR__EXB_N_OUT ? wanted(z, k) : k == CDR__EPB_OUT_DP ? wanted(z, CDR__EXB_DP) :
                         k >= CDR__EPB_OUT_NODES ? r->at_bwd.balanced == 2 && wanted(z, CDR__EXB_DW1 + k - CDR__EPB_OUT_NODES) :
                         k >= CDR__EPB_OUT_SLOTS ? (z->flags & BALANCED) != 0 :
                         wanted(z, CDR__EXB_DX) && (k == CDR__EPB_OUT_RECV || (z->cap && !(z->flags & BALANCED)));
        if (!has) *t = absent;
        if (!cdr_absent(t)) r->b.p[CDR__EPB_N + k] = take(r, t);
    }
    fill_source(z, first + me, r->f.t, r->f.p[CDR__EX_X], r->f.p[CDR__EX_P], &r->b.t[CDR__EXB_DU], r->b.p[CDR__EXB_DU]);
    int32_t *offs = r->f.p[CDR__EX_OFFS], *drop = malloc((size_t)(2 * z->T * z->A) * sizeof *drop);
    if (!drop) abort();
    for (int s = 0; s < z->ep; s++)
        if (dispatch(z, s, s == me ? r->f.p[CDR__EX_PERM] : drop, offs + s * (z->E + 1), s == me ? r->f.p[CDR__EX_POS] : drop + z->T * z->A)) return 1;
    free(drop);
    return 0;
}

static bool same(const char *what, const scenario *z, const char *kernel, int me, const cdr_type *t, const void *a, const void *b)
{
    if (memcmp(a, b, cdr_type_bytes(t)) == 0) return true;
    fprintf(stderr, "  %s, %s: rank %d: %s differs\n", z->name, kernel, me, what);
    return false;
}

static int compare(const scenario *z, const char *kernel, const whole *y, const part *r, int me)
{
    static const char *const name[] = { "dx", "dp", "dw1", "dw3", "dw2", "dA1", "dB1", "dA3", "dB3", "dA2", "dB2" };
    bool ok = same("u", z, kernel, me, &r->f.t[CDR__EX_N], r->f.p[CDR__EX_N], y->u);
    for (int k = 0; k < CDR__EXB_N_OUT; k++) {
        const cdr_type *t = &r->b.t[CDR__EPB_N + k];
        if (cdr_absent(t)) continue;
        const void *want = k == CDR__EXB_DX ? y->dx : k == CDR__EXB_DP ? y->dp : (const char *)y->stack[k][0] + (size_t)me * cdr_type_bytes(t);
        ok = same(name[k], z, kernel, me, t, r->b.p[CDR__EPB_N + k], want) && ok;
    }
    return ok ? 0 : 1;
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

/* One problem of ep T tokens, sorted with plain loops, by the reference of experts */
static int against_double(const scenario *z, const whole *y, const part *r, int me)
{
    scenario big = *z;
    big.T = z->T * z->ep;
    cdr_type t[CDR__EXB_N + CDR__EXB_N_OUT];
    double *in[CDR__EXB_N] = { NULL }, *out[CDR__EXB_N_OUT], *fwd_out[2] = { NULL, NULL };
    cdr_experts_attr at = attr_of(z);
    int n = 0;
    types_of(&big, z->E, t + CDR__EXB_X);
    t[CDR__EXB_X + CDR__EX_TABLE] = t[CDR__EXB_GU] = absent;
    t[CDR__EXB_DU] = cdr_dense_like(&t[CDR__EXB_X], CDR_F32);
    if (cdr_op_experts_bwd.infer(&at, CDR__EXB_N, t, &n, t + CDR__EXB_N, NULL) != CDR_OK) return 1;
    for (int i = 0; i < CDR__EXB_N; i++) if (!cdr_absent(&t[i])) in[i] = as_doubles(&t[i], i >= CDR__EXB_X + CDR__EX_W1 ? y->f.p[i - CDR__EXB_X] : NULL);
    void *x = bytes_of(&y->f.t[CDR__EX_X]), *p = bytes_of(&y->f.t[CDR__EX_P]), *du = bytes_of(&y->b.t[CDR__EXB_DU]);
    double *perm = in[CDR__EXB_X + CDR__EX_PERM], *offs = in[CDR__EXB_X + CDR__EX_OFFS], *pos = in[CDR__EXB_X + CDR__EX_POS];
    int32_t *idx = malloc((size_t)(big.T * z->A) * sizeof *idx);
    if (!idx) abort();
    for (int s = 0; s < z->ep; s++) {
        fill_source(z, s, y->f.t, x, p, &y->b.t[CDR__EXB_DU], du);
        cdr_to_f64(z->dtype, x, in[CDR__EXB_X] + s * z->T * z->L, z->T * z->L);
        cdr_to_f64(CDR_F32, p, in[CDR__EXB_X + CDR__EX_P] + s * z->T * z->A, z->T * z->A);
        cdr_to_f64(y->b.t[CDR__EXB_DU].dtype, du, in[CDR__EXB_DU] + s * z->T * z->L, z->T * z->L);
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
    cdr_op_experts.ref(&(cdr_ref_args){ .attr = &at, .n_in = CDR__EX_N, .n_out = 2, .type = t + CDR__EXB_X,
                                        .in = (const double *const *)in + CDR__EXB_X, .out = fwd_out });
    cdr_op_experts_bwd.ref(&(cdr_ref_args){ .attr = &at, .n_in = CDR__EXB_N, .n_out = CDR__EXB_N_OUT, .type = t, .in = (const double *const *)in, .out = out });
    const double tol = z->dtype == CDR_F32 ? 3e-6 : 8e-3;
    int bad = distance(&r->f.t[CDR__EX_N], r->f.p[CDR__EX_N], fwd_out[0] + me * z->T * z->L) <= tol ? 0 : 1;
    for (int k = 0; k < CDR__EXB_N_OUT; k++) {
        const cdr_type *tk = &r->b.t[CDR__EPB_N + k];
        if (cdr_absent(tk) || (k == CDR__EXB_DX && z->flags & ADD)) continue;
        const double d = distance(tk, r->b.p[CDR__EPB_N + k], out[k] + me * cdr_type_elems(tk));
        if (!(d <= tol)) fprintf(stderr, "  %s: rank %d: output %d is %.2e from the reference\n", z->name, me, k, d), bad = 1;
    }
    for (int i = 0; i < CDR__EXB_N; i++) free(in[i]);
    for (int k = 0; k < CDR__EXB_N_OUT; k++) free(out[k]);
    free(fwd_out[0]), free(x), free(p), free(du), free(idx);
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
        if (first == 0 && z->T <= 200) EXPECT(against_double(z, &y, &r, me) == 0);
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
typedef struct { cdr_pool *pool; cdr_err err; cdr_graph *g; int32_t call; cdr_val u; } program;

static cdr_val value(cdr_graph *g, cdr_type t, const char *name) { return cdr_graph_value(g, t, CDR_TURN, CDR_C_WEIGHT, name); }

/* dispatch and experts of local stacks, through their hooks: experts_ep is the last call then */
static void program_new(program *q, int ep, bool adapters, const cdr_shard_opts *o)
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
        in[CDR__EX_A1 + i] = adapters ? value(g, i % 2 ? cdr_type_3d(CDR_F32, E / ep, width, K) : cdr_type_3d(CDR_F32, E / ep, K, width), "adapter") : CDR_NONE;
    }
    /* the call as it stands when its operands have been replaced: no infer has seen the local stacks */
    const uint32_t arg = (uint32_t)g->n_operands;
    for (int i = 0; i < CDR__EX_N; i++) *CDR_PUSH(q->pool, g->operands, g->n_operands, g->cap_operands) = in[i];
    for (int k = 0; k < 2; k++) *CDR_PUSH(q->pool, g->operands, g->n_operands, g->cap_operands) = CDR_NONE;
    while (g->n_attrs % 16 != 0) *CDR_PUSH(q->pool, g->attrs, g->n_attrs, g->cap_attrs) = 0;
    const uint32_t attr = (uint32_t)g->n_attrs;
    for (size_t i = 0; i < sizeof at; i++) *CDR_PUSH(q->pool, g->attrs, g->n_attrs, g->cap_attrs) = ((const unsigned char *)&at)[i];
    const cdr_call c = { .op = (uint16_t)cdr_op_index(&cdr_op_experts), .n_in = CDR__EX_N, .n_out = 2, .arg = arg, .attr = attr };
    const int64_t before = g->n_calls;
    out[0] = out[1] = CDR_NEW;
    T_CHECK(cdr_op_experts.shard(g, &c, &mesh, o, out, &q->err) == CDR_OK);
    T_CHECK(g->n_calls == before + (ep > 1) && (out[0] == CDR_NONE) == (ep == 1) && (ep == 1 || out[1] == CDR_NONE));
    q->u = out[0];
    q->call = (int32_t)g->n_calls - 1;
}

static const cdr_experts_ep_attr *attr_in(const program *q, int32_t call) { return cdr_graph_attr(q->g, &q->g->calls[call]); }
static int64_t rows_in(const program *q, int32_t call, int out) { return cdr_graph_type(q->g, cdr_graph_out(q->g, &q->g->calls[call], out))->n[0]; }

static void hooks_append_the_exchange(void)
{
    program q;
    program_new(&q, 1, false, &(cdr_shard_opts){ .dispatch_factor = 1.25 });
    cdr_pool_free(q.pool);

    program_new(&q, 4, false, &(cdr_shard_opts){ .dispatch_factor = 1.25 });
    const cdr_call *c = &q.g->calls[q.call], *gather = &q.g->calls[q.call - 1];
    T_CHECK(q.g->n_calls == 4 && gather->op == cdr_op_index(&cdr_op_gather) && c->op == cdr_op_index(&cdr_op_experts_ep) && c->stream == CDR_S_COMM);
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

    program_new(&q, 4, false, &(cdr_shard_opts){ .dispatch_factor = 0 });      /* the worst case: one round, nothing to wait in */
    T_CHECK(attr_in(&q, q.call)->cap == 640 && cdr_graph_out(q.g, &q.g->calls[q.call], CDR__EP_OUT_BACK) == CDR_NONE);
    cdr_pool_free(q.pool);
    program_new(&q, 4, false, &(cdr_shard_opts){ .dispatch_factor = 0.01 });   /* at least an expert's rows from one rank */
    T_CHECK(attr_in(&q, q.call)->cap == 48);
    cdr_pool_free(q.pool);
}

static void balanced_moves_whole_groups_where_it_trains(void)
{
    program q;
    for (int frozen = 0; frozen < 2; frozen++) {
        program_new(&q, 4, true, &(cdr_shard_opts){ .dispatch_factor = 1.25, .balanced = true });
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
    fill_source(z, me, y.f.t, y.f.p[CDR__EX_X], y.f.p[CDR__EX_P], &y.b.t[CDR__EXB_DU], y.b.p[CDR__EXB_DU]);
    EXPECT(dispatch(z, me, y.f.p[CDR__EX_PERM], y.f.p[CDR__EX_OFFS], y.f.p[CDR__EX_POS]) == 0);
    const cdr_experts_attr at = attr_of(z);
    const cdr_grad_push_attr push = { depth };
    int32_t micro = 0;
    operands o[3];
    call c[5];
    double best[2] = { 1e9, 1e9 }, cpu[2] = { 1e9, 1e9 };
    if (alone) {
        c[0] = prepare(&cdr_op_experts, &at, CDR__EX_N, 2, &y.f, 2);
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

static int bench(void)
{
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
    T_RUN(balanced_moves_whole_groups_where_it_trains);
    T_RUN(wrong_operands_are_refused);
    T_RUN(shares_are_even);
    T_RUN(the_same_bits_as_one_rank);
    return t_end();
}
