/* spread_rig.h: one training run on any layout of ranks: the model of sparse_rig.h wide enough that every kind of parameter is split, eight
 * logical shards a step, and what comes out as one array of bytes that layouts must not change.
 *
 *   spread c = spread_default();
 *   c.s.shard = 4;
 *   c.s.expert = 2;
 *   T_CHECK(spread_go(&c, got) && spread_equal("1 x 4, ep 2", one, got));
 */
#ifndef CADRE_SPREAD_RIG_H
#define CADRE_SPREAD_RIG_H
#include "forked.h"
#include "sparse_rig.h"

enum { SHARDS = 8, MAX_STEPS = 3, EXPERTS = 16, TOP_K = 4, LAYERS = 4, MAX_PARAMS = 400, MAX_BYTES = 1 << 26, N_PARTS = 5 };
typedef enum { ROUTES_LEARNED, ROUTES_FORCED, ROUTES_ONE_RANK } routes;

/* routes: LEARNED: quantile balancing moves the biases. FORCED: fixed biases: in layer 1 all tokens choose expert 5 and none 8 to 11; in
 * layer 2 all choose 4 to 7, which lie on one rank or two; layer 3 is left alone. ONE_RANK: 0 to 3 in all layers. */
typedef struct {
    setup s; int steps; double lr; routes routes;
    bool gradients;                                    /* of the last step are a part of the result; AdamW only */
    bool no_main_loss;                                 /* the head is zero: the trunk gets gradients from further losses alone */
    const char *nudge; int64_t nudge_at; float nudge_by;      /* an element of a parameter that is whole on every rank, moved before the first step */
} spread;

typedef struct { char name[112]; bool stack; int64_t n; int64_t at[N_PARTS], bytes[N_PARTS]; int dtype[N_PARTS]; } spread_param;
typedef struct {
    double loss[MAX_STEPS], norm[MAX_STEPS], clip[MAX_STEPS], extra[MAX_STEPS][8], eval[SHARDS];
    int32_t load[LAYERS][EXPERTS];
    int n_params; spread_param param[MAX_PARAMS];
    int64_t n; unsigned char x[MAX_BYTES];
} spread_result;
static const char *const part_name[N_PARTS] = { "weight", "master", "m", "v", "gradient" };

static cdr_pair spread_sizes[CDR_COUNT(small_sizes)];
static spread spread_job;                              /* what ranks do, and where the result goes: set before they are forked */
static spread_result *spread_out;

static inline spread_result *spread_shared(void)
{
    return forked_memory(sizeof(spread_result));
}

static inline spread spread_default(void)
{
    static const cdr_pair wide[] = { { "vocab", "2048" }, { "glu.width", "2048" }, { "moe.experts", "16" }, { "moe.top_k", "4" } };
    memcpy(spread_sizes, small_sizes, sizeof small_sizes);
    for (int i = 0; i < CDR_COUNT(spread_sizes); i++)
        for (int k = 0; k < CDR_COUNT(wide); k++)
            if (strcmp(spread_sizes[i].name, wide[k].name) == 0) spread_sizes[i] = wide[k];
    spread c = { .s = small(), .steps = MAX_STEPS, .lr = 0.01 };
    c.s.sizes.p = spread_sizes;
    c.s.no_generate = true;
    c.s.n_threads = 1;
    return c;
}

/* Logical shard id of a step: packed documents, prompts and last rows untrained, idle rows behind; one shard of eight trains nothing,
 * and one has idle rows alone. Which one they are changes from step to step, so every rank has its turn. */
static inline batch spread_batch(int step, int id)
{
    batch b;
    cdr_rng_key k = { 23, (uint64_t)step, (uint64_t)id };
    int which = (id + 3 * step) % SHARDS, cut = 9 + (int)(cdr_rng_u64(k, 0) % 40), prompt = (int)(cdr_rng_u64(k, 2) % 9);
    int end = which == 5 ? 0 : 60 + (int)(cdr_rng_u64(k, 1) % 37);
    idle(&b, 0);
    if (end > 0) {
        put_doc(&b, 0, cut, 3 * (uint64_t)(step * SHARDS + id));
        put_doc(&b, cut, 1, 3 * (uint64_t)(step * SHARDS + id) + 1);
        put_doc(&b, cut + 1, end - cut - 1, 3 * (uint64_t)(step * SHARDS + id) + 2);
    }
    for (int t = 0; t < end; t++) {
        b.tokens[t] = b.tokens[t] * 31 + 7;            /* over all of the vocabulary, so over all ranks */
        if (b.targets[t] >= 0) b.targets[t] = which == 2 || t < prompt || (t > cut && t < cut + prompt) ? -1 : b.targets[t] * 31 + 7;
    }
    count(&b);
    return b;
}

static inline void spread_prepare(const spread *c, rig *r)
{
    for (int32_t i = 0; i < r->b.n_params; i++) {
        const cdr_param *q = &r->b.params[i];
        if (c->no_main_loss && strcmp(q->name, "language_model.lm_head.weight") == 0) {
            const size_t bytes = cdr_exec_run_bytes(r->x, q->shard);
            void *zero = calloc(1, bytes);
            cdr_exec_put_run(r->x, q->shard, zero, bytes);
            free(zero);
        }
        if (c->nudge && strcmp(q->name, c->nudge) == 0) {
            float x[4096];
            CDR_CHECK(cdr_type_elems(&q->global) <= CDR_COUNT(x) && q->split[0] < 0 && c->s.compute == CDR_F32);
            cdr_exec_get_run(r->x, q->shard, x, sizeof *x * (size_t)cdr_type_elems(&q->global));
            x[c->nudge_at] += c->nudge_by;
            cdr_exec_put_run(r->x, q->shard, x, sizeof *x * (size_t)cdr_type_elems(&q->global));
        }
        const char *layer = strstr(q->name, "layers.");
        if (c->routes == ROUTES_LEARNED || !layer || !strstr(q->name, "e_score_correction_bias")) continue;
        int l = atoi(layer + strlen("layers."));
        float bias[EXPERTS] = { 0 };
        for (int e = 0; e < EXPERTS; e++) {
            if (c->routes == ROUTES_ONE_RANK) bias[e] = e < TOP_K ? 10.0f : 0.0f;
            else if (l == 1) bias[e] = e == 5 ? 10.0f : e / 4 == 2 ? -10.0f : 0.0f;
            else if (l == 2) bias[e] = e / 4 == 1 ? 10.0f : 0.0f;
        }
        cdr_exec_put_run(r->x, q->shard, bias, sizeof bias);
    }
}

/* Before the first step, on its batches: the loss sum of each logical shard. */
static inline cdr_status spread_eval(rig *r, cdr_err *err)
{
    const cdr_mesh *m = &r->o.mesh;
    for (int k = 0; k < r->o.n_micro; k++) {
        double sums[SHARDS];
        batch b = spread_batch(0, (m->rank[0] * r->o.n_micro + k) * m->size[1] + m->rank[1]);
        put(r, CDR_PROG_EVAL, 0, &b);
        CDR_TRY(cdr_exec_run(r->x, CDR_PROG_EVAL, err));
        cdr_exec_get(r->x, CDR_PROG_EVAL, "sums", 0, sums, sizeof *sums * (size_t)m->world);
        for (int w = 0; w < m->world && m->world_rank == 0; w++)
            spread_out->eval[(w / m->size[1] * r->o.n_micro + k) * m->size[1] + w % m->size[1]] = sums[w];
    }
    return CDR_OK;
}

static inline cdr_status spread_steps(const spread *c, rig *r, cdr_err *err)
{
    const cdr_mesh *m = &r->o.mesh;
    spread_result *o = spread_out;
    for (int t = 0; t < c->steps; t++) {
        batch b[SHARDS];
        double met[CDR_N_METRIC], loss = NAN;
        for (int k = 0; k < r->o.n_micro; k++) b[k] = spread_batch(t, (m->rank[0] * r->o.n_micro + k) * m->size[1] + m->rank[1]);
        CDR_TRY(run_step(r, t, b, c->lr, &loss, err));
        if (m->world_rank != 0) continue;
        cdr_exec_get(r->x, CDR_PROG_STEP, "metrics", 0, met, sizeof met);
        o->loss[t] = loss;
        o->norm[t] = met[CDR_METRIC_NORM];
        o->clip[t] = met[CDR_METRIC_CLIP];
        cdr_val extra = cdr_program_find(&r->b, &r->b.progs[CDR_PROG_STEP], "extra");
        if (extra == CDR_NONE) continue;
        size_t bytes = cdr_type_bytes(&cdr_value_at(&r->b, &r->b.progs[CDR_PROG_STEP], extra)->t);
        CDR_CHECK(bytes <= sizeof o->extra[t]);
        cdr_exec_get(r->x, CDR_PROG_STEP, "extra", 0, o->extra[t], bytes);
    }
    for (int l = 1; l < LAYERS && m->world_rank == 0; l++) {
        char name[40];
        snprintf(name, sizeof name, "layers.%d.moe.load", l);
        cdr_exec_get(r->x, CDR_PROG_STEP, name, 0, o->load[l], sizeof o->load[l]);
    }
    return CDR_OK;
}

/* Where everything lies; the same on all ranks. */
static inline void spread_table(const spread *c, const rig *r, spread_result *o)
{
    const cdr_program *p = &r->b.progs[CDR_PROG_STEP];
    int64_t at = 0;
    CDR_CHECK(r->b.n_params <= MAX_PARAMS);
    for (int32_t i = 0; i < r->b.n_params; i++) {
        const cdr_param *q = &r->b.params[i];
        spread_param *e = &o->param[i];
        cdr_val part[N_PARTS] = { q->shard, q->master == q->shard ? CDR_NONE : q->master, q->m, q->v, c->gradients ? q->grad : CDR_NONE };
        snprintf(e->name, sizeof e->name, "%s", q->name);
        e->stack = q->place == CDR_PLACE_EXPERT;
        e->n = cdr_type_elems(&q->global);
        for (int k = 0; k < N_PARTS; k++) {
            e->at[k] = at;
            e->bytes[k] = 0;
            if (part[k] == CDR_NONE) continue;
            e->dtype[k] = cdr_value_at(&r->b, p, part[k])->t.dtype;
            e->bytes[k] = cdr_dtype_bytes(e->dtype[k], e->n);
            at += e->bytes[k];
        }
    }
    CDR_CHECK(at <= MAX_BYTES);
    o->n_params = r->b.n_params;
    o->n = at;
}

/* This rank's rows of everything. The first rank that has them writes, and once all have, the others compare: what ranks hold twice
 * must be equal. */
static inline int spread_collect(cdr_comm *w, const spread *c, rig *r)
{
    const cdr_mesh *m = &r->o.mesh;
    spread_result *o = spread_out;
    if (m->world_rank == 0) spread_table(c, r, o);
    EXPECT_OK(cdr_comm_barrier(w));
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < r->b.n_params; i++) {
            const cdr_param *q = &r->b.params[i];
            const spread_param *e = &o->param[i];
            cdr_val part[N_PARTS] = { q->shard, q->master == q->shard ? CDR_NONE : q->master, q->m, q->v, c->gradients ? q->grad : CDR_NONE };
            int64_t first, rows, cols = e->n / q->global.n[0];
            cdr_param_rows(q, m, &first, &rows);
            bool writes = m->rank[0] == 0 && (q->split[0] >= 0 || m->rank[1] == 0);
            for (int k = 0; k < N_PARTS; k++) {
                if (part[k] == CDR_NONE) continue;
                unsigned char *to = o->x + e->at[k] + cdr_dtype_bytes(e->dtype[k], first * cols);
                const void *from = cdr_exec_ptr(r->x, CDR_PROG_STEP, part[k], 0);
                size_t bytes = (size_t)cdr_dtype_bytes(e->dtype[k], rows * cols);
                void *dense = NULL;
                if (part[k] < r->b.n_shared) {                      /* a weight may lie in panels */
                    from = dense = malloc(cdr_exec_run_bytes(r->x, part[k]));
                    cdr_exec_get_rows(r->x, part[k], 0, cdr_type_rows(&r->b.shared[part[k]].t), dense);
                }
                if (writes && pass == 0) memcpy(to, from, bytes);
                const bool same = pass == 0 || memcmp(to, from, bytes) == 0;
                free(dense);
                if (same) continue;
                fprintf(stderr, "  rank %d holds another %s of %s\n", m->world_rank, part_name[k], q->name);
                return 1;
            }
        }
        EXPECT_OK(cdr_comm_barrier(w));
    }
    return 0;
}

static inline int spread_rank(cdr_comm *w, int arg)
{
    rig r;
    cdr_err err = { CDR_OK, "", "" };
    const spread *c = &spread_job;
    (void)arg;
    cdr_status st = open_on(&c->s, w, &r, &err);
    if (st == CDR_OK) spread_prepare(c, &r);
    if (st == CDR_OK) st = spread_eval(&r, &err);
    if (st == CDR_OK) st = spread_steps(c, &r, &err);
    if (st == CDR_ERANK) return CDR_ERANK;
    if (st != CDR_OK) fprintf(stderr, "  rank %d: %s\n", cdr_comm_rank(w), err.text);
    EXPECT_OK(st);
    int code = spread_collect(w, c, &r);
    close_rig(&r);
    return code;
}

/* Runs c on its ranks, each a process of its own; true: all of them have ended well. */
static inline bool spread_go(const spread *c, spread_result *r)
{
    char said[4096];
    fflush(stdout);
    fflush(stderr);
    forked_clear(r, sizeof *r);
    spread_job = *c;
    spread_job.s.n_micro = SHARDS / (c->s.replicate * c->s.shard);
    spread_out = r;
    int code = run_ranks(c->s.replicate * c->s.shard, spread_rank, 0, 60, said, sizeof said, NULL);
    if (code != 0) fprintf(stderr, "  exit code %d %s\n", code, said);
    return code == 0;
}

static inline double spread_element(const spread_result *r, const spread_param *e, int part, int64_t i)
{
    float x;
    cdr_to_f32(e->dtype[part], r->x + e->at[part] + cdr_dtype_bytes(e->dtype[part], i), &x, 1);
    return (double)x;
}

/* The largest difference over the largest number, of one part of a parameter. */
static inline double spread_distance(const spread_result *a, const spread_result *b, int i, int part)
{
    const spread_param *e = &a->param[i];
    double worst = 0, size = 0;
    for (int64_t k = 0; e->bytes[part] > 0 && k < e->n; k++) {
        double x = spread_element(a, e, part, k), y = spread_element(b, e, part, k);
        worst = fmax(worst, x == y ? 0 : fabs(x - y));
        size = fmax(size, fabs(x));
        if (isnan(x) || isnan(y)) return INFINITY;
    }
    return worst == 0 ? 0 : worst / size;
}

/* Bit for bit; else says what differs first. */
static inline bool spread_equal(const char *what, const spread_result *a, const spread_result *b)
{
    const size_t head = offsetof(spread_result, n_params);
    if (a->n > 0 && a->n == b->n && memcmp(a, b, head) == 0 && a->n_params == b->n_params && memcmp(a->x, b->x, (size_t)a->n) == 0) return true;
    fprintf(stderr, "  %s: losses %.17g %.17g %.17g against %.17g %.17g %.17g\n", what, b->loss[0], b->loss[1], b->loss[2], a->loss[0], a->loss[1], a->loss[2]);
    fprintf(stderr, "  norms %.17g %.17g against %.17g %.17g; evaluation %s, further losses %s, loads %s\n", b->norm[0], b->norm[1], a->norm[0], a->norm[1],
            memcmp(a->eval, b->eval, sizeof a->eval) ? "differs" : "equal", memcmp(a->extra, b->extra, sizeof a->extra) ? "differ" : "equal",
            memcmp(a->load, b->load, sizeof a->load) ? "differ" : "equal");
    int said = 0;
    for (int i = 0; i < a->n_params && i < b->n_params && said < 12; i++)
        for (int k = 0; k < N_PARTS; k++) {
            const spread_param *p = &a->param[i], *q = &b->param[i];
            if (strcmp(p->name, q->name) != 0 || p->bytes[k] != q->bytes[k] || p->at[k] != q->at[k]) {
                fprintf(stderr, "  parameter %d is %s in one, %s in the other\n", i, p->name, q->name);
                return false;
            }
            if (memcmp(a->x + p->at[k], b->x + q->at[k], (size_t)p->bytes[k]) == 0) continue;
            fprintf(stderr, "  %s of %s: relative difference %.2e\n", part_name[k], p->name, spread_distance(a, b, i, k));
            said++;
        }
    return false;
}

static inline const spread_param *spread_find(const spread_result *r, const char *name)
{
    for (int i = 0; i < r->n_params; i++) if (strcmp(r->param[i].name, name) == 0) return &r->param[i];
    return NULL;
}
#endif
