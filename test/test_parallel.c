/* test_parallel.c: one training on every layout of ranks, bit for bit: layouts of replicate x shard with expert groups, times what is
 * trained (all of it with AdamW or Muon, adapters), dtype, memory policy, chunks of the loss, room of the dispatch, forms of the split head,
 * routes (balanced; one hot expert, experts without a token, all tokens on one rank's experts). In each run: packed documents with uneven
 * trained tokens, a micro-batch whose tokens are all masked and one whose rows are all idle. Compared after three steps with one rank that
 * has the same logical shards: losses, norms, clip scales, further losses, loads; all weights, masters, states and router biases; the loss
 * of each shard in evaluation. And ranks that hold the same rows must hold the same bytes.
 *
 *   test_parallel                       a covering choice: each pair of two properties' values is in a run
 *   CADRE_QUICK=1 test_parallel         each value is in a run
 *   CADRE_ALL_LAYOUTS=1 test_parallel   the whole product, thousands of runs; =N: every N-th of them
 *
 * Source: spec/spine.md, 5 and 6; spec/known-failures.md, A.
 */
#include "ops/experts/experts.h"
#include "spread_rig.h"

typedef enum { LAYOUT, KIND, POLICY, CHUNKS, ROOM, HEAD, ROUTES, N_PROPERTIES } property;
static const int layouts[][3] = {                                              /* replicate, shard, ranks of an expert group */
    { 2, 1, 1 }, { 1, 2, 1 }, { 1, 2, 2 }, { 2, 2, 1 }, { 2, 2, 2 }, { 1, 4, 1 }, { 1, 4, 2 }, { 1, 4, 4 }, { 2, 4, 4 }, { 1, 8, 4 }, { 1, 8, 8 },
};
static const struct { const char *name; bool muon, packed; int dtype; const char *lora[4]; } kinds[] = {
    { "AdamW f32", false, false, CDR_F32, { NULL } }, { "Muon f32", true, false, CDR_F32, { NULL } }, { "AdamW bf16", false, false, CDR_BF16, { NULL } },
    { "LoRA f32", false, false, CDR_F32, { "all_linear", "experts" } }, { "LoRA bf16 on packed experts", false, true, CDR_BF16, { "all_linear", "experts" } },
};
static const struct { int policy; bool keep_gate_up; } policies[] = { { CDR_POLICY_KEEP, true }, { CDR_POLICY_RECOMPUTE, false } };
static const int64_t chunks[][2] = { { 0, 0 }, { 40, 512 } };
/* rows that a rank has room for: the worst case; some rounds; as many as there can be; its even share, experts being placed twice */
static const struct { double factor; bool balanced; } room[] = { { 0, false }, { 1.25, false }, { 0.01, false }, { 1.25, true } };
static const int heads[] = { CDR_HEAD_GATHER, CDR_HEAD_PIECES };
static const int n_values[N_PROPERTIES] = { CDR_COUNT(layouts), CDR_COUNT(kinds), CDR_COUNT(policies), CDR_COUNT(chunks), CDR_COUNT(room), CDR_COUNT(heads), 2 };

typedef struct { int v[N_PROPERTIES]; } choice;

static spread run_of(const choice *c)
{
    spread r = spread_default();
    const int *l = layouts[c->v[LAYOUT]];
    r.s.replicate = l[0];
    r.s.shard = l[1];
    r.s.expert = l[2];
    r.s.muon = kinds[c->v[KIND]].muon;
    r.s.compute = kinds[c->v[KIND]].dtype;
    memcpy(r.s.lora, kinds[c->v[KIND]].lora, sizeof r.s.lora);
    r.s.indexer_frozen = r.s.lora[0] != NULL;
    r.s.policy = policies[c->v[POLICY]].policy;
    r.s.keep_gate_up = policies[c->v[POLICY]].keep_gate_up;
    r.s.chunk_tokens = chunks[c->v[CHUNKS]][0];
    r.s.chunk_vocab = chunks[c->v[CHUNKS]][1];
    r.s.factor = room[c->v[ROOM]].factor;
    r.s.balanced = room[c->v[ROOM]].balanced;
    if (kinds[c->v[KIND]].packed) r.s.experts_dtype = CDR_MXFP4;
    r.s.head = heads[c->v[HEAD]];
    r.routes = (routes)c->v[ROUTES];
    r.s.balance = r.routes == ROUTES_LEARNED ? CDR_BALANCE_QUANTILE : CDR_BALANCE_NONE;
    r.s.clip = 0.5;
    return r;
}

static void label(const choice *c, char s[160])
{
    const int *l = layouts[c->v[LAYOUT]];
    snprintf(s, 160, "%d x %d, ep %d, %s, %s, chunks %lld %lld, factor %g%s, head %s, routes %s", l[0], l[1], l[2],
             kinds[c->v[KIND]].name, c->v[POLICY] ? "recompute" : "keep", (long long)chunks[c->v[CHUNKS]][0], (long long)chunks[c->v[CHUNKS]][1], room[c->v[ROOM]].factor,
             room[c->v[ROOM]].balanced ? " balanced" : "", c->v[HEAD] ? "in pieces" : "gathered", c->v[ROUTES] == ROUTES_LEARNED ? "learned" : "forced");
}

/* One rank, nothing recomputed, for what decides the bits: what is trained, chunks of the vocabulary, routes. Made once. */
static spread_result *reference(const choice *c)
{
    static spread_result *made[CDR_COUNT(kinds)][CDR_COUNT(chunks)][2];
    spread_result **r = &made[c->v[KIND]][c->v[CHUNKS]][c->v[ROUTES]];
    if (*r) return *r;
    spread one = run_of(c);
    one.s.replicate = one.s.shard = one.s.expert = 1;
    one.s.policy = CDR_POLICY_KEEP;
    one.s.keep_gate_up = false;
    one.s.factor = 1.25;
    one.s.balanced = false;
    one.s.head = CDR_HEAD_AUTO;
    *r = spread_shared();
    T_CHECK(spread_go(&one, *r));
    return *r;
}

/* ---- which runs ---- */
enum { MAX_VALUES = 16, MAX_CHOICES = 4096 };
static bool covered[N_PROPERTIES][MAX_VALUES][N_PROPERTIES][MAX_VALUES];

static int new_pairs(const choice *c, bool mark)
{
    int n = 0;
    for (int a = 0; a < N_PROPERTIES; a++)
        for (int b = a + 1; b < N_PROPERTIES; b++) {
            bool *at = &covered[a][c->v[a]][b][c->v[b]];
            n += !*at;
            *at = *at || mark;
        }
    return n;
}

static int all_choices(choice *c)
{
    int n = 1;
    for (int p = 0; p < N_PROPERTIES; p++) n *= n_values[p];
    CDR_CHECK(n <= MAX_CHOICES);
    for (int i = 0; i < n; i++)
        for (int p = 0, rest = i; p < N_PROPERTIES; p++) {
            c[i].v[p] = rest % n_values[p];
            rest /= n_values[p];
        }
    return n;
}

/* Again and again the choice with the most pairs that no run has yet; among equals the first behind the last one taken. */
static int covering(const choice *all, int n_all, choice *take)
{
    int n = 0, last = 0;
    for (;;) {
        int best = -1, most = 0;
        for (int i = 0; i < n_all; i++) {
            int at = (last + i) % n_all, pairs = new_pairs(&all[at], false);
            if (pairs > most) best = at, most = pairs;
        }
        if (best < 0) return n;
        new_pairs(&all[best], true);
        take[n++] = all[best];
        last = best;
    }
}

static int compare(const choice *c)
{
    static spread_result *got;
    char what[160];
    if (!got) got = spread_shared();
    spread_result *one = reference(c);
    spread r = run_of(c);
    label(c, what);
    bool ran = spread_go(&r, got), same = ran && spread_equal(what, one, got);
    if (!ran) fprintf(stderr, "  %s\n", what);
    T_CHECK(ran);
    T_CHECK(same);
    return ran && same;
}

static void one_curve_on_every_layout(void)
{
    static choice all[MAX_CHOICES], take[MAX_CHOICES];
    const char *whole = getenv("CADRE_ALL_LAYOUTS");
    int by = whole ? atoi(whole) : 0, n_all = all_choices(all), n = 0, same = 0;
    for (int i = 0; by > 0 && i < n_all; i += by) take[n++] = all[i];
    if (by <= 0 && !t_quick()) n = covering(all, n_all, take);
    for (int i = 0; by <= 0 && t_quick() && i < CDR_COUNT(layouts); i++, n++)          /* each value once */
        for (int p = 0; p < N_PROPERTIES; p++) take[n].v[p] = i % n_values[p];
    for (int i = 0; i < n; i++) same += compare(&take[i]);
    printf("      %d of %d choices run, %d with the bits of one rank\n", n, n_all, same);
}

static int calls_of(const rig *r, const char *op, int phase)
{
    const cdr_program *p = &r->b.progs[CDR_PROG_STEP];
    int n = 0;
    for (int i = 0; i < p->n_calls; i++) {
        if (strcmp(cdr_ops[p->calls[i].op]->name, op) != 0 || (phase >= 0 && p->calls[i].phase != phase)) continue;
        cdr_experts_ep_attr a;
        if (strcmp(op, "experts_ep") == 0) {
            memcpy(&a, p->attrs + p->calls[i].attr, sizeof a);
            T_CHECK((a.balanced != 0) == r->o.parallel.balanced);
            T_CHECK(a.cap >= (r->o.parallel.dispatch_factor == 0 ? 4 * T * TOP_K : T));
        }
        n++;
    }
    return n;
}

/* Each property is in the program that is compiled, and not where it was not asked for. */
static void properties_are_in_the_program(void)
{
    int layout = 0;
    while (memcmp(layouts[layout], (int[]){ 1, 4, 4 }, sizeof layouts[0]) != 0) layout++;
    for (int on = 0; on < 2; on++) {
        choice c = { .v = { [LAYOUT] = layout, [KIND] = on ? 4 : 0, [POLICY] = on, [ROOM] = on ? 3 : 0, [HEAD] = on, [CHUNKS] = on } };
        spread s = run_of(&c);
        cdr_err err = { CDR_OK, "", "" };
        rig r;
        s.s.n_micro = 2;
        T_CHECK(compile_rig(&s.s, 3, &r, &err) == CDR_OK);
        T_CHECK(calls_of(&r, "experts", -1) == 0);
        T_CHECK(calls_of(&r, "experts_ep", CDR_P_FWD) == 3);
        T_CHECK((calls_of(&r, "rmsnorm", CDR_P_AGAIN) > 0) == on);
        T_CHECK(calls_of(&r, "experts_ep", CDR_P_AGAIN) == 0);      /* what ranks exchange is never exchanged again */
        T_CHECK(calls_of(&r, "experts_ep_bwd", -1) == 3);
        T_CHECK(calls_of(&r, on ? "loss_frozen_pieces" : "loss", -1) == 1);
        int packed = 0, split = 0;
        for (int32_t i = 0; i < r.b.n_params; i++) {
            packed += r.b.shared[r.b.params[i].shard].t.dtype == CDR_MXFP4;
            split += r.b.params[i].split[0] == CDR_AXIS_SHARD;
        }
        T_CHECK(packed == (on ? 9 : 0));
        T_CHECK(split >= 5);                                     /* embedding, head, the dense MLP */
        cdr_pool_free(r.pool);
    }
}

/* What the runs above rest on: each step has a shard without a trained token and one without a live row, the others are uneven; forced
 * routes send all tokens where they say, learned ones move every bias; and another learning rate is seen in the bits. */
static void the_runs_have_what_they_claim(void)
{
    int64_t rows = 0;
    for (int step = 0; step < MAX_STEPS; step++) {
        int masked = 0, empty = 0, even = 0;
        rows = 0;
        for (int id = 0; id < SHARDS; id++) {
            batch a = spread_batch(step, id), b = spread_batch(step, (id + 1) % SHARDS);
            masked += a.trained == 0 && a.rows > 0;
            empty += a.rows == 0;
            even += a.trained == b.trained;
            rows += a.rows;
        }
        T_CHECK(masked == 1 && empty == 1 && even <= 2);
    }
    const choice forced = { .v = { [ROUTES] = ROUTES_FORCED } }, learned = { .v = { [ROUTES] = ROUTES_LEARNED } };
    const spread_result *f = reference(&forced), *l = reference(&learned);
    for (int e = 0; e < EXPERTS; e++) {
        T_CHECK(e != 5 || f->load[1][e] == rows);
        T_CHECK(e / 4 != 2 || f->load[1][e] == 0);
        T_CHECK(f->load[2][e] == (e / 4 == 1 ? rows : 0));
    }
    const spread_param *bias = spread_find(l, "language_model.model.layers.2.block_sparse_moe.gate.e_score_correction_bias");
    T_CHECK(bias != NULL);
    for (int64_t e = 0; bias && e < EXPERTS; e++) T_CHECK(spread_element(l, bias, 0, e) != 0);
    for (int t = 0; t < MAX_STEPS; t++) T_CHECK(f->clip[t] < 1 && f->norm[t] > 0.5 && f->extra[t][0] > 0);
    spread_result *other = spread_shared();
    spread r = run_of(&learned);
    r.lr *= 1 + 1e-6;
    T_CHECK(spread_go(&r, other));
    T_CHECK(memcmp(l->loss, other->loss, sizeof l->loss) != 0 && memcmp(l->x, other->x, (size_t)l->n) != 0);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(properties_are_in_the_program);
    T_RUN(the_runs_have_what_they_claim);
    T_RUN(one_curve_on_every_layout);
    return t_end();
}
