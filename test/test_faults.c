/* test_faults.c: faults that users of other trainers report of expert parallelism, sharding and routers, each as a test of its whole kind
 * (doc/failures.md): gradients that depend on the number of expert ranks, norms that forget experts, clipping without a sharded
 * parameter, mixed dtypes of gradients, ranks whose collectives do not meet, offsets beyond 2^31 elements, balancing losses that
 * count micro-batches or ranks, routers that train and evaluate differently.
 * Source: spec/known-failures.md, A and B.
 */
#include "ops/dispatch/dispatch.h"
#include "ops/experts/experts.h"
#include "spread_rig.h"

enum { GRADIENT = 4, MOE_LAYERS = 3 };
static spread_result *one, *got;

static spread on(int replicate, int shard, int expert)
{
    spread c = spread_default();
    c.s.replicate = replicate;
    c.s.shard = shard;
    c.s.expert = expert;
    return c;
}

static const struct { int replicate, shard, expert; } layouts[] = {
    { 2, 1, 1 }, { 1, 2, 1 }, { 1, 2, 2 }, { 2, 2, 2 }, { 1, 4, 2 }, { 1, 4, 4 }, { 2, 4, 4 }, { 1, 8, 8 },
};

/* ---- A: gradients, norms, clipping ---- */
typedef enum { OF_EXPERTS, OF_ROUTERS, OF_THE_REST, N_KINDS } kind;
static kind kind_of(const spread_param *e) { return e->stack ? OF_EXPERTS : strstr(e->name, "block_sparse_moe.gate.weight") ? OF_ROUTERS : OF_THE_REST; }

static double norm_of_gradients(const spread_result *r)
{
    double sum = 0;
    for (int i = 0; i < r->n_params; i++)
        for (int64_t k = 0; r->param[i].bytes[GRADIENT] > 0 && k < r->param[i].n; k++) {
            const double x = spread_element(r, &r->param[i], GRADIENT, k);
            sum += x * x;
        }
    return sqrt(sum);
}

/* What is read as the gradient is what the optimizer took: after one step of AdamW m = (1 - beta1) clip g. */
static void check_moments(const spread_result *r)
{
    double worst = 0, size = 0;
    for (int i = 0; i < r->n_params; i++) {
        const spread_param *e = &r->param[i];
        for (int64_t k = 0; e->bytes[GRADIENT] > 0 && k < e->n; k++) {
            const double want = 0.1 * r->clip[0] * spread_element(r, e, GRADIENT, k);
            worst = fmax(worst, fabs(spread_element(r, e, 2, k) - want));
            size = fmax(size, fabs(want));
        }
    }
    T_CHECK(size > 1e-6 && worst < 1e-6 * size);
}

static void check_norm(const spread_result *r, double limit)
{
    const double norm = norm_of_gradients(r);
    T_NEAR(r->norm[0] / norm, 1, 1e-12);
    T_CHECK(norm > 2 * limit);                                   /* so it is clipped */
    T_NEAR(r->clip[0] * norm / limit, 1, 1e-5);
}

static void gradients_do_not_depend_on_expert_ranks(void)
{
    spread base = on(1, 1, 1);
    base.steps = 1;
    base.gradients = true;
    base.s.clip = 0.05;
    T_CHECK(spread_go(&base, one));
    check_moments(one);
    check_norm(one, base.s.clip);
    int seen[N_KINDS] = { 0 };
    printf("      worst relative difference of gradients to one rank\n      layout          experts   routers   the rest   norm\n");
    for (int l = 0; l < CDR_COUNT(layouts); l++) {
        spread c = base;
        double worst[N_KINDS] = { 0 };
        c.s.replicate = layouts[l].replicate;
        c.s.shard = layouts[l].shard;
        c.s.expert = layouts[l].expert;
        c.s.factor = l % 2 ? 0.01 : 1.25;
        T_CHECK(spread_go(&c, got));
        T_CHECK(got->n_params == one->n_params);
        for (int i = 0; i < one->n_params && i < got->n_params; i++) {
            const kind k = kind_of(&one->param[i]);
            T_CHECK(strcmp(one->param[i].name, got->param[i].name) == 0);
            T_CHECK(one->param[i].bytes[GRADIENT] == got->param[i].bytes[GRADIENT]);
            worst[k] = fmax(worst[k], spread_distance(one, got, i, GRADIENT));
            seen[k] += one->param[i].bytes[GRADIENT] > 0;
        }
        printf("      %d x %d, ep %d       %-9.2g %-9.2g %-10.2g %.17g\n", c.s.replicate, c.s.shard, c.s.expert, worst[OF_EXPERTS], worst[OF_ROUTERS],
               worst[OF_THE_REST], got->norm[0]);
        for (int k = 0; k < N_KINDS; k++) T_CHECK(worst[k] == 0);
        check_norm(got, c.s.clip);
        T_CHECK(spread_equal("gradients", one, got));
    }
    for (int k = 0; k < N_KINDS; k++) T_CHECK(seen[k] >= MOE_LAYERS * CDR_COUNT(layouts));
}

/* Nothing that trains lies over expert ranks; clipping must not need it to. */
static void clipping_with_adapters_on_attention_alone(void)
{
    spread c = on(1, 1, 1);
    c.steps = 2;
    c.gradients = true;
    c.s.clip = 1e-3;
    c.s.indexer_frozen = true;
    c.s.lora[0] = "attention";
    T_CHECK(spread_go(&c, one));
    T_NEAR(one->norm[1] / norm_of_gradients(one), 1, 1e-12);     /* gradients are the last step's */
    for (int t = 0; t < 2; t++) T_NEAR(one->clip[t] * one->norm[t] / c.s.clip, 1, 1e-5);
    int trained = 0, stacks = 0;
    for (int i = 0; i < one->n_params; i++) {
        trained += one->param[i].bytes[GRADIENT] > 0;
        stacks += one->param[i].stack && one->param[i].bytes[GRADIENT] > 0;
    }
    T_CHECK(trained > 20 && stacks == 0);
    for (int l = 0; l < CDR_COUNT(layouts); l++) {
        if (layouts[l].expert == 1) continue;
        c.s.replicate = layouts[l].replicate;
        c.s.shard = layouts[l].shard;
        c.s.expert = layouts[l].expert;
        T_CHECK(spread_go(&c, got) && spread_equal("adapters on attention", one, got));
    }
}

/* Parameters that no token of a micro-batch, of a rank, or of the whole step uses: an idle micro-batch, experts that nobody chooses. Their
 * gradients are there, in F32 as all others are while weights are BF16, and where nothing used them they are zero. */
static void unused_parameters_and_mixed_dtypes(void)
{
    static const char *const matrix[] = { "w1", "w3", "w2" };
    spread c = on(1, 2, 2);
    c.steps = 1;
    c.gradients = true;
    c.s.compute = CDR_BF16;
    c.routes = ROUTES_FORCED;
    c.s.balance = CDR_BALANCE_NONE;
    T_CHECK(spread_go(&c, got));
    int n_bf16 = 0, n_f32 = 0;
    for (int i = 0; i < got->n_params; i++) {
        const spread_param *e = &got->param[i];
        if (e->bytes[GRADIENT] > 0) T_CHECK(e->dtype[GRADIENT] == CDR_F32);
        n_bf16 += e->bytes[GRADIENT] > 0 && e->dtype[0] == CDR_BF16;
        n_f32 += e->bytes[GRADIENT] > 0 && e->dtype[0] == CDR_F32;
        if (strstr(e->name, "e_score_correction_bias")) T_CHECK(e->dtype[0] == CDR_F32);
    }
    T_CHECK(n_bf16 > 20 && n_f32 > 0);
    int stacks = 0;
    for (int i = 0; i < got->n_params; i++) {
        const spread_param *e = &got->param[i];
        if (!e->stack || !strstr(e->name, "layers.1.")) continue;
        int of = -1;
        for (int k = 0; k < CDR_COUNT(matrix); k++) if (strstr(e->name, matrix[k])) of = k;
        T_CHECK(of >= 0);
        stacks++;
        for (int x = 0; x < EXPERTS; x++) {
            double size = 0;
            for (int64_t k = 0; k < e->n / EXPERTS; k++) size = fmax(size, fabs(spread_element(got, e, GRADIENT, x * (e->n / EXPERTS) + k)));
            T_CHECK(isfinite(size));
            T_CHECK((size > 0) == (got->load[1][x] > 0));
            if (x / 4 == 2) T_CHECK(size == 0);
            if (x == 5) T_CHECK(size > 0);
        }
    }
    T_CHECK(stacks == 3);
}

/* ---- A: collectives meet ---- */
static bool collective(const cdr_call *c) { return (cdr_ops[c->op]->flags & CDR_OP_COLLECTIVE) != 0; }

static void collectives_meet_on_every_rank(void)
{
    for (int l = 0; l < CDR_COUNT(layouts); l++)
        for (int lora = 0; lora < 2; lora++) {
            spread c = on(layouts[l].replicate, layouts[l].shard, layouts[l].expert);
            const int n = c.s.replicate * c.s.shard;
            const cdr_bundle *ptr[SHARDS];
            rig r[SHARDS];
            cdr_err err = { CDR_OK, "", "" };
            c.s.policy = lora ? CDR_POLICY_RECOMPUTE : CDR_POLICY_KEEP;
            c.s.indexer_frozen = lora;
            for (int k = 0; k < 2 * lora; k++) c.s.lora[k] = k ? "experts" : "all_linear";
            c.s.n_micro = SHARDS / n;
            for (int k = 0; k < n; k++) {
                T_CHECK(compile_rig(&c.s, k, &r[k], &err) == CDR_OK);
                ptr[k] = &r[k].b;
            }
            T_CHECK(cdr_verify_ranks(ptr, n, &err) == CDR_OK);
            if (err.status != CDR_OK) fprintf(stderr, "  %d x %d, ep %d: %s\n", c.s.replicate, c.s.shard, c.s.expert, err.text);
            for (int k = 1; k < n; k++) T_CHECK(r[k].b.run_bytes[0] == r[0].b.run_bytes[0] && r[k].b.exec_bytes[0] == r[0].b.exec_bytes[0]);
            /* each pair of neighbours that differ, exchanged on the last rank: seen by the operator, the communicator or the bytes */
            cdr_program *p = &r[n - 1].b.progs[CDR_PROG_STEP];
            int last = -1, tried = 0, caught = 0;
            for (int i = 0; i < p->n_calls; i++) {
                if (!collective(&p->calls[i])) continue;
                if (last >= 0 && p->calls[i].op != p->calls[last].op) {
                    cdr_call swap = p->calls[i];
                    p->calls[i] = p->calls[last];
                    p->calls[last] = swap;
                    cdr_err e = { CDR_OK, "", "" };
                    tried++;
                    caught += cdr_verify_ranks(ptr, n, &e) != CDR_OK;
                    p->calls[last] = p->calls[i];
                    p->calls[i] = swap;
                }
                last = i;
            }
            T_CHECK(tried > (layouts[l].shard > 1 ? 4 : 0) && caught == tried);
            for (int k = 0; k < n; k++) cdr_pool_free(r[k].pool);
        }
}

/* ---- A: stacks of more than 2^31 elements ---- */
enum { FAR_T = 24, FAR_A = 4, FAR_SIDE = 64, FAR_EACH = FAR_SIDE * FAR_SIDE, WINDOW = 1 << 20 };
static const int64_t far_experts = (1LL << 31) / FAR_EACH + 256;        /* of a rank: 256 more than 2^31 elements hold */

/* Virtual memory: only the first and the last mebibytes have pages of their own. A gradient's others, which are cleared, all lie on one. */
static void *far_stack(size_t bytes, bool written)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    int fd = written ? memfd_create("window", 0) : -1;
    if (written && (fd < 0 || ftruncate(fd, WINDOW) != 0)) return NULL;
    for (size_t at = WINDOW; written && at + 8 * (size_t)WINDOW < bytes; at += WINDOW)
        if (mmap(p + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == MAP_FAILED) return NULL;
    if (fd >= 0) close(fd);
    return p;
}

typedef struct { cdr_type t[CDR__EXB_DU + CDR__EPB_N + CDR__EPB_N_OUT]; void *p[CDR__EXB_DU + CDR__EPB_N + CDR__EPB_N_OUT]; } operands;
typedef struct { float *u, *dx, *dp, *dw[2][2]; } far_result;           /* dw1 and dw2 of this rank's first and last expert */

static int far_run(const cdr_op *op, const void *attr, int n_in, int n_out, const operands *o, const cdr_lane *lane, const char *kernel)
{
    const cdr_kernel *k = op->kernels;
    while (k->name && strcmp(k->name, kernel) != 0) k++;
    const size_t n = k->work_bytes ? k->work_bytes(attr, n_in, n_out, o->t, lane->n_threads) : 0;
    void *work = mmap(NULL, n + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!k->name || work == MAP_FAILED) return 1;
    const cdr_status st = k->run(&(cdr_args){ .attr = attr, .type = o->t, .ptr = o->p, .n_in = n_in, .n_out = n_out, .work = work, .lane = lane });
    munmap(work, n + 4096);
    return (int)st;
}

static void far_fill(void *p, const cdr_type *t, uint64_t stream)
{
    float *x = p;
    for (int64_t i = 0; i < cdr_type_elems(t); i++) x[i] = 0.3f * cdr_rng_normal((cdr_rng_key){ 5, stream, 0 }, (uint64_t)i);
}

static void far_weights(void *p, int64_t at, uint64_t stream)
{
    uint16_t *w = (uint16_t *)p + at * FAR_EACH;
    for (int64_t i = 0; i < FAR_EACH; i++) w[i] = cdr_f32_to_bf16(0.2f * cdr_rng_normal((cdr_rng_key){ 6, stream, 0 }, (uint64_t)i));
}

static char *far_take(char **slab, const cdr_type *t)
{
    char *p = *slab;
    *slab += cdr_align_up(cdr_type_bytes(t), 64);
    return p;
}

/* Experts over two ranks with E_local each; every token goes to the first and to the last expert of both. Forward and backward. */
static int far_case(cdr_comm *w, char *slab, int64_t E_local, const char *kernel, bool trained, far_result *out)
{
    enum { SIZE = 2, SIDE = FAR_SIDE };
    const int64_t E = SIZE * E_local;
    const int me = cdr_comm_rank(w);
    cdr_comm *comms[CDR_N_COMMS] = { [CDR_COMM_EXPERT] = w };
    const cdr_lane lane = { .n_threads = 1, .comms = comms }, one_thread = { .n_threads = 1 };
    cdr_experts_ep_attr at = { .coll = { .kind = CDR_COLL_EXPERTS, .order = CDR_ORDER_TREE, .comm = CDR_COMM_EXPERT, .counts = CDR_NONE },
                               .experts = { .top_k = FAR_A }, .size = SIZE, .n_experts = (int32_t)E, .cap = (int64_t)cdr_align_up(SIZE * FAR_T * 2, 16) };
    static operands f, b;
    int n = 0;
    f = b = (operands){ 0 };
    f.t[CDR__EX_X] = cdr_type_2d(CDR_F32, FAR_T, SIDE);
    f.t[CDR__EX_P] = cdr_type_2d(CDR_F32, FAR_T, FAR_A);
    f.t[CDR__EX_PERM] = cdr_type_1d(CDR_I32, FAR_T * FAR_A);
    f.t[CDR__EX_OFFS] = cdr_type_2d(CDR_I32, SIZE, E + 1);
    f.t[CDR__EX_POS] = cdr_type_2d(CDR_I32, FAR_T, FAR_A);
    for (int i = CDR__EX_W1; i <= CDR__EX_W2; i++) f.t[i] = cdr_type_3d(CDR_BF16, E_local, SIDE, SIDE);
    for (int i = CDR__EX_TABLE; i < CDR__EX_N; i++) f.t[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
    EXPECT_OK(cdr_op_experts_ep.infer(&at, CDR__EX_N, f.t, &n, f.t + CDR__EX_N, NULL));
    for (int i = CDR__EX_N + CDR__EP_OUT_BACK; i < CDR__EX_N + CDR__EP_N_OUT; i++) f.t[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
    for (int i = 0; i < CDR__EX_N + CDR__EP_N_OUT; i++) {
        const bool weight = i >= CDR__EX_W1 && i <= CDR__EX_W2;
        if (!cdr_absent(&f.t[i])) f.p[i] = weight ? far_stack(cdr_type_bytes(&f.t[i]), false) : far_take(&slab, &f.t[i]);
        EXPECT(cdr_absent(&f.t[i]) || f.p[i]);
    }
    far_fill(f.p[CDR__EX_X], &f.t[CDR__EX_X], 100 + (uint64_t)me);
    far_fill(f.p[CDR__EX_P], &f.t[CDR__EX_P], 200 + (uint64_t)me);
    for (int i = CDR__EX_W1; i <= CDR__EX_W2; i++)
        for (int last = 0; last < 2; last++) far_weights(f.p[i], last ? E_local - 1 : 0, (uint64_t)(1000 * i + 10 * me + last));
    int32_t idx[FAR_T * FAR_A], drop[FAR_T * FAR_A];
    for (int i = 0; i < FAR_T; i++)
        for (int k = 0; k < FAR_A; k++) idx[i * FAR_A + k] = (int32_t)(k / 2 * E_local + (k % 2 ? E_local - 1 : 0));
    const cdr_dispatch_attr d = { (int32_t)E };
    for (int s = 0; s < SIZE; s++) {
        operands o = { .t = { f.t[CDR__EX_POS], f.t[CDR__EX_PERM], cdr_type_1d(CDR_I32, E + 1), f.t[CDR__EX_POS] },
                       .p = { idx, s == me ? f.p[CDR__EX_PERM] : drop, (int32_t *)f.p[CDR__EX_OFFS] + s * (E + 1), s == me ? f.p[CDR__EX_POS] : drop } };
        EXPECT(far_run(&cdr_op_dispatch, &d, 1, 3, &o, &one_thread, "base") == 0);
    }
    b.t[CDR__EXB_DU] = f.t[CDR__EX_X];
    b.p[CDR__EXB_DU] = far_take(&slab, &b.t[CDR__EXB_DU]);
    far_fill(b.p[CDR__EXB_DU], &b.t[CDR__EXB_DU], 300 + (uint64_t)me);
    memcpy(b.t + CDR__EXB_X, f.t, CDR__EX_N * sizeof *f.t);
    memcpy(b.p + CDR__EXB_X, f.p, CDR__EX_N * sizeof *f.p);
    b.t[CDR__EPB_DV] = (cdr_type){ .dtype = CDR_N_DTYPES };
    EXPECT_OK(cdr_op_experts_ep_bwd.infer(&at, CDR__EPB_N, b.t, &n, b.t + CDR__EPB_N, NULL));
    for (int k = 0; k < CDR__EPB_N_OUT; k++) {
        const bool dw = trained && (k == CDR__EXB_DW1 || k == CDR__EXB_DW2);
        const bool has = dw || k == CDR__EXB_DX || k == CDR__EXB_DP || k == CDR__EPB_OUT_RECV || k == CDR__EPB_OUT_DP;
        cdr_type *t = &b.t[CDR__EPB_N + k];
        if (!has) *t = (cdr_type){ .dtype = CDR_N_DTYPES };
        else b.p[CDR__EPB_N + k] = dw ? far_stack(cdr_type_bytes(t), true) : far_take(&slab, t);
        EXPECT(!has || b.p[CDR__EPB_N + k]);
        if (dw) for (int last = 0; last < 2; last++) memset((float *)b.p[CDR__EPB_N + k] + (last ? E_local - 1 : 0) * FAR_EACH, 0xff, sizeof(float) * FAR_EACH);
    }
    EXPECT(far_run(&cdr_op_experts_ep, &at, CDR__EX_N, CDR__EP_N_OUT, &f, &lane, kernel) == 0);
    EXPECT(far_run(&cdr_op_experts_ep_bwd, &at, CDR__EPB_N, CDR__EPB_N_OUT, &b, &lane, kernel) == 0);
    memcpy(out->u, f.p[CDR__EX_N], sizeof(float) * FAR_T * SIDE);
    memcpy(out->dx, b.p[CDR__EPB_N + CDR__EXB_DX], sizeof(float) * FAR_T * SIDE);
    memcpy(out->dp, b.p[CDR__EPB_N + CDR__EXB_DP], sizeof(float) * FAR_T * FAR_A);
    for (int k = 0; k < 2 && trained; k++) {
        const int i = CDR__EPB_N + (k ? CDR__EXB_DW2 : CDR__EXB_DW1);
        for (int last = 0; last < 2; last++) memcpy(out->dw[k][last], (float *)b.p[i] + (last ? E_local - 1 : 0) * FAR_EACH, sizeof(float) * FAR_EACH);
        munmap(b.p[i], cdr_type_bytes(&b.t[i]));
    }
    for (int i = CDR__EX_W1; i <= CDR__EX_W2; i++) munmap(f.p[i], cdr_type_bytes(&f.t[i]));
    return 0;
}

static int far_rank(cdr_comm *w, int arg)
{
    (void)arg;
    enum { FLOATS = 2 * FAR_T * FAR_SIDE + FAR_T * FAR_A + 4 * FAR_EACH };
    cdr_err err = { CDR_OK, "", "" };
    const uint32_t isa = cdr_cpu_isa(NULL);
    char *slab = cdr_comm_slab(w, (size_t)64 << 20, &err);
    EXPECT(slab != NULL);
    bool trained = !t_quick();                                   /* with the best kernel: clearing 17 GB takes a while */
    for (const cdr_kernel *k = cdr_op_experts_ep.kernels; k->name; k++) {
        if ((k->needs & isa) != k->needs) continue;
        static float x[2][FLOATS];
        memset(x, 0, sizeof x);
        for (int large = 0; large < 2; large++) {
            float *at = x[large];
            far_result r = { .u = at, .dx = at + FAR_T * FAR_SIDE, .dp = at + 2 * FAR_T * FAR_SIDE };
            at += 2 * FAR_T * FAR_SIDE + FAR_T * FAR_A;
            for (int i = 0; i < 4; i++) r.dw[i / 2][i % 2] = at + i * FAR_EACH;
            EXPECT(far_case(w, slab, large ? far_experts : 2, k->name, trained, &r) == 0);
            EXPECT_OK(cdr_comm_barrier(w));
        }
        double size = 0;
        for (int i = 0; i < FLOATS; i++) size = fmax(size, fabs((double)x[0][i]));
        EXPECT(isfinite(size) && size > 0.01);
        EXPECT(memcmp(x[0], x[1], sizeof x[0]) == 0);
        trained = false;
        if (t_quick()) break;
    }
    return 0;
}

/* Stacks of weights and gradients with more than 2^31 elements on each rank: the first and the last expert of each give the bits that
 * they give in a stack of two. */
static void stacks_beyond_two_to_the_31(void)
{
    T_CHECK(far_experts * FAR_EACH > 1LL << 31);
    T_CHECK(run_ranks(2, far_rank, 0, 120, NULL, 0, NULL) == 0);
}

/* ---- B: routers ---- */
static const char gate[] = "language_model.model.layers.3.block_sparse_moe.gate.weight", head[] = "language_model.lm_head.weight";

static spread aux_alone(int replicate, int shard, int expert)
{
    spread c = on(replicate, shard, expert);
    c.steps = 1;
    c.lr = 0;
    c.gradients = c.no_main_loss = true;
    c.s.freeze[c.s.n_freeze++] = head;
    c.s.balance = CDR_BALANCE_AUX;
    c.s.aux = 0.1;
    c.s.indexer_frozen = true;
    return c;
}

static double aux_sum(const spread_result *r)
{
    double s = 0;
    for (int i = 0; i < 8; i++) s += r->extra[0][i];
    return s;
}

/* A head of zeros sends no gradient back, so routers have that of the balancing loss alone: the same bits however the uneven rows are spread
 * over micro-batches, ranks and experts; and it is the derivative of what is reported, by finite differences over two expert ranks. */
static void the_balancing_loss_knows_no_layout(void)
{
    spread c = aux_alone(1, 1, 1);
    T_CHECK(spread_go(&c, one));
    int64_t rows = 0;
    int routers = 0, zero = 0;
    for (int id = 0; id < SHARDS; id++) rows += spread_batch(0, id).rows;
    for (int i = 0; i < one->n_params; i++) {
        double size = 0;
        for (int64_t k = 0; one->param[i].bytes[GRADIENT] > 0 && k < one->param[i].n; k++) size = fmax(size, fabs(spread_element(one, &one->param[i], GRADIENT, k)));
        if (kind_of(&one->param[i]) == OF_ROUTERS) routers += size > 1e-6;
        if (one->param[i].stack && strstr(one->param[i].name, "layers.3.")) zero += size == 0;      /* behind the last router: no other loss is in it */
    }
    T_CHECK(routers == MOE_LAYERS && zero == 3);
    T_NEAR(one->loss[0], log(2048.0), 1e-6);
    for (int l = 0; l < CDR_COUNT(layouts); l++) {
        c = aux_alone(layouts[l].replicate, layouts[l].shard, layouts[l].expert);
        T_CHECK(spread_go(&c, got) && spread_equal("balancing loss", one, got));
    }
    const spread_param *e = spread_find(one, gate);
    T_CHECK(e != NULL);
    double big = 0;
    int64_t at = 0;
    for (int64_t k = 0; e && k < e->n; k++) {
        const double g = fabs(spread_element(one, e, GRADIENT, k));
        if (g > big) big = g, at = k;
    }
    double sum[2];
    for (int up = 0; up < 2; up++) {
        c = aux_alone(1, 2, 2);
        c.nudge = gate;
        c.nudge_at = at;
        c.nudge_by = up ? 1e-3f : -1e-3f;
        T_CHECK(spread_go(&c, got));
        T_CHECK(memcmp(got->load, one->load, sizeof got->load) == 0);        /* counts are constants of the loss: they must not move */
        sum[up] = aux_sum(got);
    }
    if (e) T_NEAR((sum[1] - sum[0]) / 2e-3 / (double)rows / spread_element(one, e, GRADIENT, at), 1, 1e-2);
}

/* Evaluation of a step's shards before the step gives the loss that the step then reports: the same routers, the same experts, the same
 * rounding, on every layout. Shards are added as the step adds them, in the binary tree. */
static void training_and_evaluation_route_alike(void)
{
    int64_t trained = 0;
    for (int id = 0; id < SHARDS; id++) trained += spread_batch(0, id).trained;
    for (int l = -1; l < CDR_COUNT(layouts); l++) {
        spread c = l < 0 ? on(1, 1, 1) : on(layouts[l].replicate, layouts[l].shard, layouts[l].expert);
        double x[SHARDS];
        c.steps = 1;
        T_CHECK(spread_go(&c, got));
        memcpy(x, got->eval, sizeof x);
        int masked = 0;
        for (int id = 0; id < SHARDS; id++) masked += x[id] == 0;
        T_CHECK(masked == 2);
        for (int n = SHARDS; n > 1; n /= 2)
            for (int i = 0; i < n / 2; i++) x[i] = x[2 * i] + x[2 * i + 1];
        T_CHECK(x[0] / (double)trained == got->loss[0]);
    }
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    one = spread_shared();
    got = spread_shared();
    T_RUN(gradients_do_not_depend_on_expert_ranks);
    T_RUN(clipping_with_adapters_on_attention_alone);
    T_RUN(unused_parameters_and_mixed_dtypes);
    T_RUN(stacks_beyond_two_to_the_31);
    T_RUN(the_balancing_loss_knows_no_layout);
    T_RUN(training_and_evaluation_route_alike);
    T_RUN(collectives_meet_on_every_rank);
    return t_end();
}
