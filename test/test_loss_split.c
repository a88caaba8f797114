/* The loss over a head whose rows are split over ranks (ops/loss, split.c), against loss over the whole head: loss, lse, dh bit by bit;
 * dw against loss_bwd's whole dw after cdr_comm_reduce_scatter. 1 to 8 ranks, every kernel of this machine, one and two threads.
 *
 *   test_loss_split            all tests
 *   test_loss_split --bench    time of pieces against gather, loss, loss_bwd and reduce_scatter, two ranks
 */
#include "ops/cpu.h"
#include "ops/gather/gather.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ranks.h"

#include <time.h>

enum { TARGETS_SOME, TARGETS_ALL, TARGETS_NONE_ON_ONE, TARGETS_NONE };
typedef struct { int64_t T, D, W; cdr_loss_attr chunks; int h, w, targets; } shape;

static const shape shapes[] = {
    { 40, 24, 64, { 0, 0 }, CDR_F32, CDR_F32, TARGETS_SOME },                   /* one chunk: all of the vocabulary */
    { 40, 24, 64, { 7, 8 }, CDR_F32, CDR_F32, TARGETS_SOME },                   /* chunks within a rank's rows */
    { 40, 24, 50, { 16, 13 }, CDR_F32, CDR_F32, TARGETS_SOME },                 /* chunks across ranks, rows that ranks do not divide */
    { 33, 17, 50, { 0, 50 }, CDR_F32, CDR_BF16, TARGETS_NONE_ON_ONE },
    { 70, 64, 300, { 32, 64 }, CDR_BF16, CDR_BF16, TARGETS_SOME },
    { 70, 40, 53, { 64, 1 }, CDR_BF16, CDR_BF16, TARGETS_NONE_ON_ONE },        /* a chunk of one row: most slices are empty */
    { 9, 16, 5, { 4, 2 }, CDR_F32, CDR_F32, TARGETS_ALL },                      /* fewer rows than ranks */
    { 12, 16, 1, { 0, 0 }, CDR_F32, CDR_F32, TARGETS_ALL },
    { 20, 16, 40, { 6, 16 }, CDR_F32, CDR_F32, TARGETS_NONE },
    { 1, 64, 96, { 0, 24 }, CDR_BF16, CDR_F32, TARGETS_ALL },
    { 24, 96, 1100, { 0, 512 }, CDR_F32, CDR_F32, TARGETS_ALL },                /* slices of several blocks */
};

/* ---- memory: bump allocation in the slab, guards around each piece -------------------------------------------------------- */
enum { GUARD = 128, MAX_AREAS = 64, SLAB = 24 << 20, BENCH_SLAB = 512 << 20 };
typedef struct { char *slab; size_t bytes, used; bool plain; struct { size_t at, bytes; } area[MAX_AREAS]; int n; } arena;

static void *get(arena *m, size_t bytes)
{
    CDR_CHECK(m->n < MAX_AREAS && m->used + bytes + 2 * GUARD < m->bytes);
    char *p = m->slab + m->used + GUARD;
    if (!m->plain) {                                 /* plain: to be timed */
        memset(p - GUARD, 0xa5, GUARD);
        memset(p, 0xff, bytes);                      /* NaN */
        memset(p + bytes, 0xa5, GUARD);
    }
    m->area[m->n].at = (size_t)(p - m->slab);
    m->area[m->n++].bytes = bytes;
    m->used = cdr_align_up(m->used + bytes + 2 * GUARD, 64);
    return p;
}
static bool guards_hold(const arena *m)
{
    for (int i = 0; i < m->n; i++)
        for (int b = 0; b < GUARD; b++) {
            const unsigned char *p = (const unsigned char *)m->slab + m->area[i].at;
            if (p[b - GUARD] != 0xa5 || p[m->area[i].bytes + (size_t)b] != 0xa5) return false;
        }
    return true;
}

/* ---- one call as the executor makes it ---------------------------------------------------------------------------------------- */
typedef struct { cdr_comm *w; arena *m; int kernel, n_threads; bool weighted; float *weights; } runner;

/* ptr[n_in + k] NULL: output k is left away; types by infer, a dh of h's dtype unless dh_f32. r's weights, if any, come behind the inputs.
 * Returns 0, or 1 after a message. */
static int call(const runner *r, const cdr_op *op, const void *attr, int n_plain, const cdr_type *in, void *const *given, uint32_t add, bool dh_f32)
{
    cdr_comm *w = r->w;
    cdr_comm *comms[CDR_N_COMMS] = { w, w, w, w, w };
    cdr_lane lane = { .n_threads = r->n_threads, .comms = cdr_comm_size(w) == 1 ? NULL : comms };
    cdr_type type[16];
    cdr_err err = { 0 };
    int n_out = 0, n_in = n_plain + (r->weights != NULL);
    void *ptr[16] = { NULL };
    memcpy(type, in, sizeof *in * (size_t)n_plain);
    if (r->weights) type[n_plain] = cdr_type_1d(CDR_F32, in[0].n[0]);
    EXPECT_OK(op->infer(attr, n_in, type, &n_out, type + n_in, &err));
    for (int i = 0; i < n_plain; i++) ptr[i] = given[i];
    if (r->weights) ptr[n_plain] = r->weights;
    for (int k = 0; k < n_out; k++) ptr[n_in + k] = given[n_plain + k];
    for (int k = n_in; k < n_in + n_out; k++) {
        if (!ptr[k]) type[k].dtype = CDR_N_DTYPES;
        else if (dh_f32 && type[k].dtype == CDR_BF16) type[k].dtype = CDR_F32;
    }
    const cdr_kernel *k = &op->kernels[r->kernel];
    int before = r->m->n;
    size_t used = r->m->used;
    cdr_args a = { .attr = attr, .type = type, .ptr = ptr, .n_in = n_in, .n_out = n_out, .add = add, .lane = &lane,
                   .work = get(r->m, k->work_bytes(attr, n_in, n_out, type, r->n_threads)) };
    EXPECT_OK(k->run(&a));
    EXPECT(r->m->plain || guards_hold(r->m));
    r->m->n = before;
    r->m->used = used;
    return 0;
}

typedef struct { const shape *s; cdr_type h, w, shard, y, one; void *h_TD, *w_WD, *w_shard; int32_t *targets; float *scale; } inputs;

/* The head is the same on all ranks, tokens are not. The shard's tail is NaN: nobody may read it. */
static inputs make_inputs(const runner *r, const shape *s, int n_case)
{
    int n = cdr_comm_size(r->w), me = cdr_comm_rank(r->w);
    inputs x = { .s = s, .h = cdr_type_2d(s->h, s->T, s->D), .w = cdr_type_2d(s->w, s->W, s->D), .shard = cdr_type_2d(s->w, cdr_ceil_div(s->W, n), s->D),
                 .y = cdr_type_1d(CDR_I32, s->T), .one = cdr_type_1d(CDR_F32, 1) };
    x.h_TD = get(r->m, cdr_type_bytes(&x.h));
    x.w_WD = get(r->m, cdr_type_bytes(&x.w));
    x.w_shard = get(r->m, cdr_type_bytes(&x.shard));
    x.targets = get(r->m, (size_t)s->T * 4);
    x.scale = get(r->m, 4);
    *x.scale = 0.03125f;
    for (int64_t i = 0; i < s->T * s->D; i++) {
        float v = (float)((double)(int32_t)(draw((uint64_t)(100 * n_case + me), (uint64_t)i) >> 32) * 0x1p-31);
        cdr_from_f32(s->h, &v, (char *)x.h_TD + cdr_dtype_bytes(s->h, i), 1);
    }
    for (int64_t i = 0; i < s->W * s->D; i++) {
        float v = (float)((double)(int32_t)(draw((uint64_t)(5000 + n_case), (uint64_t)i) >> 32) * 0x1p-31);
        cdr_from_f32(s->w, &v, (char *)x.w_WD + cdr_dtype_bytes(s->w, i), 1);
    }
    int64_t lo = me * s->W / n, hi = (me + 1) * s->W / n;
    memcpy(x.w_shard, (char *)x.w_WD + cdr_dtype_bytes(s->w, lo * s->D), (size_t)cdr_dtype_bytes(s->w, (hi - lo) * s->D));
    for (int64_t t = 0; t < s->T; t++) {
        uint64_t u = draw((uint64_t)(9000 + 100 * n_case + me), (uint64_t)t);
        bool none = s->targets == TARGETS_NONE || (s->targets == TARGETS_NONE_ON_ONE && me == n / 2) || (s->targets != TARGETS_ALL && u % 3 == 0);
        x.targets[t] = none ? -1 : (int32_t)((u >> 8) % (uint64_t)s->W);
        if (none) memset((char *)x.h_TD + cdr_dtype_bytes(s->h, t * s->D), 0xff, (size_t)cdr_dtype_bytes(s->h, s->D));    /* never read */
    }
    return x;
}

static void *stage_of(const runner *r, const cdr_loss_pieces_attr *a, const cdr_type *shard)
{
    return get(r->m, (size_t)cdr__loss_stage_of(a, shard).bytes);
}

/* Something to add to. */
static void *old_values(const runner *r, int dtype, int64_t n)
{
    char *p = get(r->m, (size_t)cdr_dtype_bytes(dtype, n));
    for (int64_t i = 0; i < n; i++) {
        float v = (float)((double)(int32_t)(draw(77, (uint64_t)i) >> 32) * 0x1p-36);
        cdr_from_f32(dtype, &v, p + cdr_dtype_bytes(dtype, i), 1);
    }
    return p;
}

/* ---- forward, backward, frozen -------------------------------------------------------------------------------------------------- */
static int one_case(const runner *of, const shape *s, int n_case)
{
    runner own_runner = *of;
    const runner *r = &own_runner;
    cdr_comm *w = r->w;
    int n = cdr_comm_size(w), me = cdr_comm_rank(w);
    inputs x = make_inputs(r, s, n_case);
    if (r->weighted) own_runner.weights = get(r->m, (size_t)s->T * 4);
    for (int64_t t = 0; t < s->T && r->weighted; t++) own_runner.weights[t] = (float)((t + me) % 4) * 0.3f;
    double *loss = get(r->m, 8), *loss2 = get(r->m, 8);
    float *lse = get(r->m, (size_t)s->T * 4), *lse2 = get(r->m, (size_t)s->T * 4);
    cdr_loss_pieces_attr fa = cdr_loss_pieces_attr_of(n, s->W, &x.shard, s->chunks, false), ba = cdr_loss_pieces_attr_of(n, s->W, &x.shard, s->chunks, true);
    cdr_type whole_in[] = { x.h, x.w, x.y, cdr_type_1d(CDR_F32, s->T), x.one }, split_in[] = { x.h, x.shard, x.y, whole_in[3], x.one };
    if (call(r, &cdr_op_loss, &s->chunks, 3, whole_in, (void *[]){ x.h_TD, x.w_WD, x.targets, loss, lse }, 0, false)) return 1;
    if (call(r, &cdr_op_loss_pieces, &fa, 3, split_in, (void *[]){ x.h_TD, x.w_shard, x.targets, loss2, lse2, stage_of(r, &fa, &x.shard) }, 0, false)) return 1;
    EXPECT(!memcmp(loss, loss2, 8) && *loss == *loss);
    EXPECT(!memcmp(lse, lse2, (size_t)s->T * 4));
    *loss2 = -1;
    if (call(r, &cdr_op_loss_pieces, &fa, 3, split_in, (void *[]){ x.h_TD, x.w_shard, x.targets, loss2, NULL, stage_of(r, &fa, &x.shard) }, 0, false)) return 1;
    EXPECT(!memcmp(loss, loss2, 8));

    /* dh in the dtype of h, and in F32; added to what is there, and not; with and without the other output */
    size_t cap = (size_t)(x.shard.n[0] * s->D), own = (size_t)(((me + 1) * s->W / n - me * s->W / n) * s->D);
    float *dw = get(r->m, (size_t)(s->W * s->D) * 4), *want_dw = get(r->m, cap * 4), *dw2 = get(r->m, cap * 4);
    cdr_piece p = { .full = dw, .local = want_dw, .rows = s->W, .row_bytes = (size_t)s->D * 4, .dtype = CDR_F32 };
    for (int form = 0; form < 4; form++) {
        bool f32 = form & 1, add = form & 2, no_dh = form == 1, no_dw = form == 2;
        int dt = f32 ? CDR_F32 : s->h;
        size_t dh_bytes = (size_t)cdr_dtype_bytes(dt, s->T * s->D);
        void *dh = no_dh ? NULL : add ? old_values(r, dt, s->T * s->D) : get(r->m, dh_bytes), *dh2 = no_dh ? NULL : get(r->m, dh_bytes);
        float *sum = no_dw ? NULL : add ? old_values(r, CDR_F32, (int64_t)cap) : dw2, *before = get(r->m, cap * 4);
        cdr_loss_pieces_attr at = no_dw ? fa : ba;
        if (dh) memcpy(dh2, dh, dh_bytes);
        if (sum) memcpy(before, sum, cap * 4);
        if (call(r, &cdr_op_loss_bwd, &s->chunks, 5, whole_in, (void *[]){ x.h_TD, x.w_WD, x.targets, lse, x.scale, dh, dw }, add ? 1u : 0u, f32)) return 1;
        EXPECT_OK(cdr_comm_reduce_scatter(w, &p, 1));
        if (call(r, &cdr_op_loss_pieces_bwd, &at, 5, split_in, (void *[]){ x.h_TD, x.w_shard, x.targets, lse, x.scale, dh2, sum, stage_of(r, &at, &x.shard) },
                 add ? 3u : 0u, f32)) return 1;
        EXPECT(!dh || !memcmp(dh, dh2, dh_bytes));
        for (size_t i = 0; i < own && sum && add && n > 1; i++) {
            float y = before[i] + want_dw[i];
            EXPECT(!memcmp(&y, &sum[i], 4));
        }
        for (size_t i = own; i < cap && sum && add; i++) EXPECT(!memcmp(&before[i], &sum[i], 4));
        EXPECT(!sum || add || !memcmp(want_dw, sum, cap * 4));                       /* own rows and the tail's zeros */
        if (n == 1 && sum && add) {                                                  /* one rank: loss_bwd's own way of adding */
            memcpy(dw, before, cap * 4);
            if (call(r, &cdr_op_loss_bwd, &s->chunks, 5, whole_in, (void *[]){ x.h_TD, x.w_WD, x.targets, lse, x.scale, NULL, dw }, 2u, f32)) return 1;
            EXPECT(!memcmp(dw, sum, cap * 4));
        }
    }

    void *dh = get(r->m, (size_t)cdr_dtype_bytes(s->h, s->T * s->D)), *dh2 = get(r->m, (size_t)cdr_dtype_bytes(s->h, s->T * s->D));
    cdr_loss_pieces_attr za = cdr_loss_pieces_attr_of(n, s->W, &x.shard, s->chunks, false);
    whole_in[3] = split_in[3] = x.one;
    if (call(r, &cdr_op_loss_frozen, &s->chunks, 4, whole_in, (void *[]){ x.h_TD, x.w_WD, x.targets, x.scale, loss2, dh }, 0, false)) return 1;
    EXPECT(!memcmp(loss, loss2, 8));
    *loss2 = -1;
    void *stage = stage_of(r, &za, &x.shard);
    if (call(r, &cdr_op_loss_frozen_pieces, &za, 4, split_in, (void *[]){ x.h_TD, x.w_shard, x.targets, x.scale, loss2, dh2, stage }, 0, false)) return 1;
    EXPECT(!memcmp(loss, loss2, 8) && !memcmp(dh, dh2, (size_t)cdr_dtype_bytes(s->h, s->T * s->D)));
    *loss2 = -1;
    if (call(r, &cdr_op_loss_frozen_pieces, &za, 4, split_in, (void *[]){ x.h_TD, x.w_shard, x.targets, x.scale, loss2, NULL, stage }, 0, false)) return 1;
    EXPECT(!memcmp(loss, loss2, 8));
    return 0;
}

static int all_cases(cdr_comm *w, int arg)
{
    (void)arg;
    arena m = { .slab = cdr_comm_slab(w, SLAB, NULL), .bytes = SLAB };
    uint32_t isa = cdr_cpu_isa(NULL);
    int ran = 0;
    EXPECT(m.slab);
    for (int i = 0; i < CDR_COUNT(shapes); i++)
        for (int k = 0; cdr_op_loss.kernels[k].name; k++) {
            const cdr_kernel *kern = &cdr_op_loss.kernels[k];
            const cdr_op *const split[] = { &cdr_op_loss_pieces, &cdr_op_loss_pieces_bwd, &cdr_op_loss_frozen_pieces };
            for (int o = 0; o < 3; o++) {
                const cdr_kernel *own = &split[o]->kernels[k];
                EXPECT(own->name && !strcmp(own->name, kern->name) && !strcmp(own->bits, kern->bits) && own->needs == kern->needs);
            }
            cdr_type t[] = { cdr_type_2d(shapes[i].h, 1, 1), cdr_type_2d(shapes[i].w, 1, 1) };
            if ((kern->needs & ~isa) != 0 || (kern->reject && kern->reject(NULL, 2, 0, t))) continue;
            for (int run = 0; run < (cdr_comm_size(w) <= 4 ? 3 : 1); run++, ran++) {       /* the last one with weights */
                const int threads = run == 1 ? 2 : 1;
                m.used = 0;
                m.n = 0;
                if (one_case(&(runner){ w, &m, k, threads, run == 2, NULL }, &shapes[i], i)) {
                    fprintf(stderr, "  in case %d, kernel %s, %d threads, %d ranks\n", i, kern->name, threads, cdr_comm_size(w));
                    return 1;
                }
            }
        }
    EXPECT(ran >= CDR_COUNT(shapes));
    return 0;
}

static void same_bits_as_a_whole_head(void)
{
    static const int sizes[] = { 1, 2, 3, 4, 7, 8 };
    for (int i = 0; i < CDR_COUNT(sizes); i++)
        if (!t_quick() || sizes[i] <= 4) T_CHECK(run_quiet(sizes[i], all_cases, 0) == 0);
}

/* ---- bytes on the wire --------------------------------------------------------------------------------------------------------- */
static int holder(int64_t row, int64_t rows, int n)
{
    int r = 0;
    while (row >= (r + 1) * rows / n) r++;
    return r;
}

/* Row by row: who reads it, from whom. */
static int64_t counted(const shape *s, int n, bool dw)
{
    int64_t read[64] = { 0 }, most = 0, chunk = s->chunks.chunk_vocab > 0 ? CDR_MIN(s->chunks.chunk_vocab, s->W) : s->W;
    for (int64_t v = 0; v < s->W; v++) {
        int64_t v0 = v / chunk * chunk;
        int owner = holder(v, s->W, n), sums = holder(v - v0, CDR_MIN(chunk, s->W - v0), n);
        for (int r = 0; r < n; r++) {
            if (r != owner) read[r] += s->D * cdr_dtype_bytes(s->w, 1);
            if (dw && r == sums) read[r] += (n - 1) * s->D * 4;
            if (dw && r == owner && r != sums) read[r] += s->D * 4;
        }
    }
    for (int r = 0; r < n; r++) most = CDR_MAX(most, read[r]);
    return most;
}

static void bytes_on_the_wire(void)
{
    static const int sizes[] = { 1, 2, 3, 4, 7, 8, 64 };
    for (int i = 0; i < CDR_COUNT(shapes); i++)
        for (int k = 0; k < CDR_COUNT(sizes); k++)
            for (int dw = 0; dw < 2; dw++) {
                const shape *s = &shapes[i];
                int n = sizes[k];
                cdr_type shard = cdr_type_2d(s->w, cdr_ceil_div(s->W, n), s->D);
                cdr_loss_pieces_attr a = cdr_loss_pieces_attr_of(n, s->W, &shard, s->chunks, dw);
                T_CHECK(a.coll.wire_bytes == counted(s, n, dw));
                T_CHECK(a.coll.kind == CDR_COLL_LOSS && a.coll.comm == CDR_COMM_SHARD && a.coll.order == (dw ? CDR_ORDER_TREE : CDR_ORDER_FREE));
            }
}

/* ---- what the shard pass gets ------------------------------------------------------------------------------------------------------ */
typedef struct { cdr_pool *pool; cdr_bundle *b; cdr_graph *g; cdr_err err; cdr_val h, w, y, scale; cdr_mesh mesh; } program;

/* A head of W rows whose shard over n ranks is already there. */
static program program_of(int n, int64_t T, int64_t D, int64_t W, int train)
{
    program p = { .pool = cdr_pool_new(), .mesh = { .size = { 1, n, 1 }, .world = n } };
    p.b = cdr_pool_alloc(p.pool, sizeof *p.b);
    p.g = cdr_graph_new(p.pool, p.b, "test", &p.err);
    cdr_graph_list(p.g, "micro");
    int32_t i = cdr_graph_declare(p.g, (cdr_param){ .name = "lm_head.weight", .global = cdr_type_2d(CDR_BF16, W, D), .train = (uint8_t)train });
    p.w = p.b->params[i].shard;
    p.b->params[i].split[0] = CDR_AXIS_SHARD;
    p.b->shared[p.w].t.n[0] = cdr_ceil_div(W, n);
    p.h = cdr_graph_value(p.g, cdr_type_2d(CDR_BF16, T, D), CDR_TURN, CDR_C_ACT, "h");
    p.y = cdr_graph_value(p.g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "targets");
    p.scale = cdr_graph_value(p.g, cdr_type_1d(CDR_F32, 1), CDR_STEP, CDR_C_INPUT, "scale");
    return p;
}

/* A call on the shard, as it stands while the pass is at it: its types would not pass infer. */
static cdr_call call_on_shard(program *p, const cdr_op *op, int n_in, int n_out, cdr_loss_attr at)
{
    cdr_val in[] = { p->h, p->w, p->y, p->scale }, out[] = { CDR_NEW, n_out > 1 ? CDR_NEW : CDR_NONE };
    int64_t *rows = &p->b->shared[p->w].t.n[0], shard = *rows;
    *rows = p->b->params[0].global.n[0];
    int32_t id = cdr_graph_call(p->g, op, &at, n_in, in, 2, out);
    *rows = shard;
    CDR_CHECK(id >= 0);
    return p->g->calls[id];
}

static void the_hook_appends_pieces(void)
{
    for (int frozen = 0; frozen < 2; frozen++) {
        program p = program_of(4, 64, 128, 1001, frozen ? CDR_FROZEN : CDR_FULL);
        const cdr_op *op = frozen ? &cdr_op_loss_frozen : &cdr_op_loss, *split = frozen ? &cdr_op_loss_frozen_pieces : &cdr_op_loss_pieces;
        cdr_call c = call_on_shard(&p, op, frozen ? 4 : 3, 2, (cdr_loss_attr){ 32, 100 });
        cdr_val out[2], din[4], dout[3] = { p.scale, CDR_NONE, CDR_NONE };
        bool want[5] = { true, !frozen };
        T_CHECK(op->shard(p.g, &c, &p.mesh, &(cdr_shard_opts){ .head = CDR_HEAD_PIECES }, out, &p.err) == CDR_OK);
        cdr_call d = p.g->calls[p.g->n_calls - 1];
        T_CHECK(p.g->n_calls == 2 && d.op == cdr_op_index(split) && d.n_out == 3 && cdr_graph_in(p.g, &d, 1) == p.w);
        T_CHECK(out[0] == cdr_graph_out(p.g, &d, 0) && out[1] == cdr_graph_out(p.g, &d, 1) && out[1] != CDR_NONE);
        T_CHECK(cdr_graph_type(p.g, out[0])->dtype == CDR_F64 && cdr_type_elems(cdr_graph_type(p.g, out[1])) == (frozen ? 64 * 128 : 64));
        const cdr_value *stage = cdr_graph_at(p.g, cdr_graph_out(p.g, &d, 2));
        T_CHECK(stage->cls == CDR_C_COMM && stage->t.n[0] == 100 * 128 * 2);
        const cdr_loss_pieces_attr *a = cdr_graph_attr(p.g, &d);
        T_CHECK(a->rows == 1001 && a->size == 4 && a->chunks.chunk_tokens == 32 && a->chunks.chunk_vocab == 100);

        T_CHECK(split->grad(p.g, &d, dout, want, din, &p.err) == CDR_OK);
        if (frozen) {
            T_CHECK(p.g->n_calls == 2 && din[0] == out[1]);                     /* the scale that dh was made with */
            cdr_val other = cdr_graph_value(p.g, cdr_type_1d(CDR_F32, 1), CDR_STEP, CDR_C_INPUT, "another");
            dout[0] = other;
            T_CHECK(split->grad(p.g, &d, dout, want, din, &p.err) == CDR_OK && p.g->n_calls == 4 && din[1] == CDR_NONE);
            T_CHECK(p.g->calls[2].op == cdr_op_index(&cdr_op_loss_pieces) && cdr_graph_type(p.g, din[0])->n[0] == 64);
            want[1] = true;
            T_CHECK(split->grad(p.g, &d, dout, want, din, &p.err) == CDR_EINVAL);
            T_HAS(p.err.text, "use loss_pieces");
        } else {
            T_CHECK(p.g->n_calls == 3 && cdr_graph_type(p.g, din[1])->dtype == CDR_F32 && cdr_graph_type(p.g, din[1])->n[0] == 251);
            a = cdr_graph_attr(p.g, &p.g->calls[2]);
            T_CHECK(a->dw && a->coll.order == CDR_ORDER_TREE && din[0] != CDR_NONE);
            want[1] = false;
            T_CHECK(split->grad(p.g, &d, dout, want, din, &p.err) == CDR_OK && din[1] == CDR_NONE);
            a = cdr_graph_attr(p.g, &p.g->calls[3]);
            T_CHECK(!a->dw && a->coll.order == CDR_ORDER_FREE);
        }
        cdr_pool_free(p.pool);
    }
}

/* Where the call stays as it is, and the unit is gathered. */
static void the_hook_leaves_a_call_alone(void)
{
    cdr_val out[2] = { 5, 5 };
    cdr_shard_opts pieces = { .head = CDR_HEAD_PIECES }, whole = { .head = CDR_HEAD_GATHER }, best = { .head = CDR_HEAD_AUTO }, vocab = { .head = CDR_HEAD_VOCAB };
    program p = program_of(2, 64, 128, 1000, CDR_FULL);
    cdr_call c = call_on_shard(&p, &cdr_op_loss, 3, 2, (cdr_loss_attr){ 32, 100 });
    T_CHECK(cdr_op_loss.shard(p.g, &c, &p.mesh, &whole, out, &p.err) == CDR_OK && out[0] == CDR_NONE);
    T_CHECK(cdr_op_loss.shard(p.g, &c, &p.mesh, &best, out, &p.err) == CDR_OK && out[0] == CDR_NONE);           /* small */
    T_CHECK(cdr_op_loss.shard(p.g, &c, &p.mesh, &vocab, out, &p.err) == CDR_EUSER);
    T_HAS(p.err.text, "vocab");
    p.err = (cdr_err){ 0 };
    p.b->params[0].split[0] = -1;
    T_CHECK(cdr_op_loss.shard(p.g, &c, &p.mesh, &pieces, out, &p.err) == CDR_OK && out[0] == CDR_NONE);         /* it is whole everywhere */
    p.b->params[0].split[0] = CDR_AXIS_SHARD;
    p.mesh.size[CDR_AXIS_SHARD] = 1;
    T_CHECK(cdr_op_loss.shard(p.g, &c, &p.mesh, &pieces, out, &p.err) == CDR_OK && out[0] == CDR_NONE);
    p.mesh.size[CDR_AXIS_SHARD] = 2;
    T_CHECK(p.g->n_calls == 1);
    cdr_val two[2] = { p.h, p.w };                                          /* the head is read elsewhere: logits of the same graph */
    T_CHECK(cdr_graph_call1(p.g, &cdr_op_linear, &(cdr_linear_attr){ CDR_F32 }, 2, two) != CDR_NONE);
    T_CHECK(cdr_op_loss.shard(p.g, &c, &p.mesh, &pieces, out, &p.err) == CDR_EUSER);
    T_HAS(p.err.text, "lm_head.weight");
    cdr_pool_free(p.pool);
}

/* The figures of cdr_loss_head's comment. */
static void auto_goes_by_memory(void)
{
    cdr_loss_split k3 = { .n = 64, .T = 4096, .D = 7168, .W = 163840, .w_bytes = 2, .trained = true, .chunks = { 1024, 8192 } }, s;
    T_CHECK(cdr_loss_head(&k3, CDR_HEAD_AUTO) == CDR_HEAD_PIECES);
    s = k3, s.trained = false;
    T_CHECK(cdr_loss_head(&s, CDR_HEAD_AUTO) == CDR_HEAD_PIECES && cdr_loss_head(&s, CDR_HEAD_GATHER) == CDR_HEAD_GATHER);
    s = k3, s.chunks.chunk_vocab = 0;
    T_CHECK(cdr_loss_head(&s, CDR_HEAD_AUTO) == CDR_HEAD_GATHER);
    s = k3, s.n = 1;
    T_CHECK(cdr_loss_head(&s, CDR_HEAD_PIECES) == CDR_HEAD_GATHER);
    s = k3, s.D = 128, s.W = 512;
    T_CHECK(cdr_loss_head(&s, CDR_HEAD_AUTO) == CDR_HEAD_GATHER && cdr_loss_head(&s, CDR_HEAD_PIECES) == CDR_HEAD_PIECES);
}

/* ---- bench ------------------------------------------------------------------------------------------------------------------------------ */
static const shape bench_shapes[] = {
    { 1024, 128, 512, { 1024, 8192 }, CDR_F32, CDR_F32, TARGETS_ALL }, { 1024, 128, 512, { 1024, 128 }, CDR_F32, CDR_F32, TARGETS_ALL },
    { 512, 512, 32768, { 1024, 8192 }, CDR_BF16, CDR_BF16, TARGETS_ALL }, { 512, 512, 32768, { 1024, 2048 }, CDR_BF16, CDR_BF16, TARGETS_ALL },
    { 8, 512, 32768, { 1024, 8192 }, CDR_BF16, CDR_BF16, TARGETS_ALL },
};

typedef struct { const runner *r; inputs *x; cdr_type in[2][5]; void *full, *dw, *shard_dw, *lse, *dh, *stage; double *loss; } timed;

/* Forward and backward: gather, loss, loss_bwd, reduce_scatter; or pieces. */
static int step(const timed *t, bool pieces)
{
    cdr_comm *w = t->r->w;
    const inputs *x = t->x;
    int n = cdr_comm_size(w);
    cdr_loss_pieces_attr fa = cdr_loss_pieces_attr_of(n, x->s->W, &x->shard, x->s->chunks, false), ba = fa;
    if (pieces) {
        void *fwd[] = { x->h_TD, x->w_shard, x->targets, t->loss, t->lse, t->stage };
        void *bwd[] = { x->h_TD, x->w_shard, x->targets, t->lse, x->scale, t->dh, t->shard_dw, t->stage };
        ba = cdr_loss_pieces_attr_of(n, x->s->W, &x->shard, x->s->chunks, true);
        return call(t->r, &cdr_op_loss_pieces, &fa, 3, t->in[1], fwd, 0, false) || call(t->r, &cdr_op_loss_pieces_bwd, &ba, 5, t->in[1], bwd, 0, false);
    }
    cdr_piece g = { .local = x->w_shard, .full = t->full, .rows = x->s->W, .row_bytes = (size_t)cdr_dtype_bytes(x->s->w, x->s->D), .dtype = x->s->w };
    cdr_piece d = { .local = t->shard_dw, .full = t->dw, .rows = x->s->W, .row_bytes = (size_t)x->s->D * 4, .dtype = CDR_F32 };
    EXPECT_OK(cdr_comm_gather(w, &g, 1));
    if (call(t->r, &cdr_op_loss, &x->s->chunks, 3, t->in[0], (void *[]){ x->h_TD, t->full, x->targets, t->loss, t->lse }, 0, false)) return 1;
    if (call(t->r, &cdr_op_loss_bwd, &x->s->chunks, 5, t->in[0], (void *[]){ x->h_TD, t->full, x->targets, t->lse, x->scale, t->dh, t->dw }, 0, false)) return 1;
    EXPECT_OK(cdr_comm_reduce_scatter(w, &d, 1));
    return 0;
}

/* The rank's own processor time: on a busy machine it says more than the clock. */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int bench_rank(cdr_comm *w, int arg)
{
    (void)arg;
    arena m = { .slab = cdr_comm_slab(w, BENCH_SLAB, NULL), .bytes = BENCH_SLAB, .plain = true };
    uint32_t isa = cdr_cpu_isa(NULL);
    int k = 0;
    EXPECT(m.slab);
    for (; (cdr_op_loss.kernels[k].needs & ~isa) != 0 || !strcmp(cdr_op_loss.kernels[k].name, "avx512_bf16");) k++;
    for (int i = 0; i < CDR_COUNT(bench_shapes); i++) {
        const shape *s = &bench_shapes[i];
        m.used = 0, m.n = 0;
        runner r = { .w = w, .m = &m, .kernel = k, .n_threads = 1 };
        inputs x = make_inputs(&r, s, i);
        timed t = { .r = &r, .x = &x, .in = { { x.h, x.w, x.y, cdr_type_1d(CDR_F32, s->T), x.one }, { x.h, x.shard, x.y, cdr_type_1d(CDR_F32, s->T), x.one } } };
        cdr_loss_pieces_attr ba = cdr_loss_pieces_attr_of(cdr_comm_size(w), s->W, &x.shard, s->chunks, true);
        t.full = get(&m, cdr_type_bytes(&x.w)), t.dw = get(&m, (size_t)(s->W * s->D) * 4), t.shard_dw = get(&m, (size_t)(x.shard.n[0] * s->D) * 4);
        t.lse = get(&m, (size_t)s->T * 4), t.dh = get(&m, cdr_type_bytes(&x.h)), t.loss = get(&m, 8), t.stage = stage_of(&r, &ba, &x.shard);
        double ms[2] = { 1e9, 1e9 }, cpu[2] = { 1e9, 1e9 };
        int reps = s->W > 1000 ? 1 : 20, windows = s->W > 1000 ? 3 : 9;
        for (int j = 0; j < windows; j++)
            for (int pieces = 0; pieces < 2; pieces++) {
                EXPECT_OK(cdr_comm_barrier(w));
                int64_t t0 = cdr_now_ns(), c0 = cpu_ns();
                for (int q = 0; q < reps; q++) if (step(&t, pieces)) return 1;
                cpu[pieces] = fmin(cpu[pieces], (double)(cpu_ns() - c0) / 1e6 / reps);
                EXPECT_OK(cdr_comm_barrier(w));
                ms[pieces] = fmin(ms[pieces], (double)(cdr_now_ns() - t0) / 1e6 / reps);
            }
        if (cdr_comm_rank(w) == 0)
            printf("T %lld D %lld W %lld, chunks of %lld: gather + loss %.2f ms (processor %.2f)   pieces %.2f ms (processor %.2f), least of %d\n", (long long)s->T,
                   (long long)s->D, (long long)s->W, (long long)s->chunks.chunk_vocab, ms[0], cpu[0], ms[1], cpu[1], windows);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--bench")) return run_ranks(2, bench_rank, 0, 60, NULL, 0, NULL);
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(same_bits_as_a_whole_head);
    T_RUN(bytes_on_the_wire);
    T_RUN(the_hook_appends_pieces);
    T_RUN(the_hook_leaves_a_call_alone);
    T_RUN(auto_goes_by_memory);
    return t_end();
}
