/* test_sparse.c: whole sparse models, compiled and run: a small Kimi K3.1 with every part. What must hold to the bit holds to
 * the bit: causality, packing, recomputation, rounds of a small dispatch capacity, training against evaluation, prefill
 * against decode, one rank against several. And an ablation: without any one block the model learns less.
 * Source: spec/spine.md, 4 to 6; spec/known-failures.md, B and D.
 */
#include "feed.h"
#include "sparse_rig.h"

/* ---- tests ---- */
static const char *const models[] = { "tiny-k31", "tiny-k3", "tiny-linear", "tiny-v32" };

static void causality_to_the_bit(void)
{
    setup s = small();
    rig r;
    must_open(&s, &r);
    slow_decay(&r);
    batch a;
    idle(&a, 0);
    put_doc(&a, 0, 90, 0);
    count(&a);
    static float was[T * D], is[T * D];
    evaluate(&r, &a, was);
    for (int cut = 1; cut < 90; cut += 11) {
        batch b = a;
        for (int t = cut; t < 90; t++) b.tokens[t] = (b.tokens[t] * 5 + 3) % 64;
        evaluate(&r, &b, is);
        T_CHECK(same_rows(was, 0, is, 0, cut));
        T_CHECK(!same_rows(was, cut, is, cut, 1));
    }
    close_rig(&r);
}

static void packed_documents_are_separate_to_the_bit(void)
{
    setup s = small();
    s.balance = CDR_BALANCE_NONE;                                /* else the first step moves the routes of the second */
    rig r;
    must_open(&s, &r);
    slow_decay(&r);
    batch a = pack(1), alone;
    static float packed[T * D], one[T * D];
    evaluate(&r, &a, packed);
    static const int first[] = { 0, 41, 42 }, n[] = { 41, 1, 47 };
    for (int d = 0; d < 3; d++) {
        idle(&alone, 0);
        put_doc(&alone, 0, n[d], (uint64_t)(3 + d));
        evaluate(&r, &alone, one);
        T_CHECK(same_rows(packed, first[d], one, 0, n[d]));
    }
    /* another first document: the last one's rows, and the gradients of symbols that it alone has, stay */
    batch b = a;
    for (int t = 0; t < 41; t++) b.tokens[t] = 32 + (b.tokens[t] * 3 + 1) % 32;
    int64_t elems;
    evaluate(&r, &b, one);
    T_CHECK(same_rows(packed, 42, one, 42, 47));
    must_step(&r, 0, &a, 0.0);
    const float *g = gradient(&r, "language_model.model.embed_tokens.weight", &elems);
    static float d_embed[64 * D];
    CDR_CHECK(elems == 64 * D);
    memcpy(d_embed, g, sizeof d_embed);
    int own = 0;
    bool upper = a.tokens[42] >= 32;
    must_step(&r, 0, &b, 0.0);
    g = gradient(&r, "language_model.model.embed_tokens.weight", NULL);
    for (int w = upper ? 32 : 0; w < (upper ? 64 : 32); w++) {
        bool in_first = false;
        for (int t = 0; t < 42; t++) in_first = in_first || a.tokens[t] == w || b.tokens[t] == w;
        if (!in_first) T_CHECK(memcmp(d_embed + w * D, g + w * D, sizeof *g * D) == 0);
        for (int t = 42; t < 89 && !in_first; t++) {
            own += a.tokens[t] == w;
            if (a.tokens[t] == w) break;
        }
    }
    T_CHECK(own > 0);
    close_rig(&r);
}

/* Weights and states after some steps, as one array of bits; counters of the routers of the last step behind them. */
typedef struct { float *x; int64_t n, cap; double loss[8]; } bits;

static void append(bits *o, const void *src, int64_t words)
{
    if (o->n + words > o->cap) o->x = realloc(o->x, sizeof *o->x * (size_t)(o->cap = 2 * (o->n + words)));
    memcpy(o->x + o->n, src, sizeof *o->x * (size_t)words);
    o->n += words;
}

static void tied_scores(rig *r)
{
    for (int32_t i = 0; i < r->b.n_params; i++) {
        const cdr_param *q = &r->b.params[i];
        if (!strstr(q->name, "block_sparse_moe.gate.weight")) continue;
        int64_t n = cdr_type_elems(&q->global);
        float *zero = calloc((size_t)n, sizeof *zero);
        cdr_exec_put_run(r->x, q->shard, zero, sizeof *zero * (size_t)n);
        free(zero);
    }
}

static bits some_steps(setup s, bool tied)
{
    rig r;
    bits o = { 0 };
    s.no_generate = true;
    must_open(&s, &r);
    if (tied) tied_scores(&r);
    for (int t = 0; t < 3; t++) {
        batch b[4];
        for (int m = 0; m < s.n_micro; m++) b[m] = pack((uint64_t)(4 * t + m));
        o.loss[t] = must_step(&r, t, b, 0.01);
    }
    for (int32_t i = 0; i < r.b.n_shared; i++)
        if (r.b.shared[i].flags & CDR_F_CKPT) append(&o, cdr_exec_ptr(r.x, CDR_PROG_STEP, i, 0), cdr_type_elems(&r.b.shared[i].t));
    const cdr_program *p = &r.b.progs[CDR_PROG_STEP];
    for (int l = 0; l < 8; l++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.moe.load", l);
        cdr_val v = cdr_program_find(&r.b, p, name);
        if (v != CDR_NONE) append(&o, cdr_exec_ptr(r.x, CDR_PROG_STEP, v, 0), cdr_type_elems(&cdr_value_at(&r.b, p, v)->t));
        snprintf(name, sizeof name, "layers.%d.moe.hist", l);
        v = cdr_program_find(&r.b, p, name);
        if (v != CDR_NONE) append(&o, cdr_exec_ptr(r.x, CDR_PROG_STEP, v, 0), cdr_type_elems(&cdr_value_at(&r.b, p, v)->t));
    }
    close_rig(&r);
    return o;
}

static void same_bits(const char *what, bits a, bits b)
{
    int64_t differ = 0;
    T_CHECK(a.n == b.n && a.n > 1000);
    for (int64_t i = 0; i < CDR_MIN(a.n, b.n); i++) differ += memcmp(&a.x[i], &b.x[i], 4) != 0;
    if (differ || memcmp(a.loss, b.loss, sizeof a.loss) != 0)
        fprintf(stderr, "  %s: %lld of %lld words differ; losses %.9g %.9g %.9g against %.9g %.9g %.9g\n", what, (long long)differ, (long long)a.n, a.loss[0], a.loss[1],
                a.loss[2], b.loss[0], b.loss[1], b.loss[2]);
    T_CHECK(differ == 0 && memcmp(a.loss, b.loss, sizeof a.loss) == 0);
    free(b.x);
}

/* Tied scores are where a second run of the router could choose other experts; the counters of balancing must not count twice. */
static void recompute_changes_no_bit(void)
{
    for (int tied = 0; tied < 2; tied++) {
        setup s = small();
        s.n_micro = 2;
        bits keep = some_steps(s, tied);
        s.policy = CDR_POLICY_RECOMPUTE;
        same_bits("recompute", keep, some_steps(s, tied));
        s.policy = CDR_POLICY_KEEP;
        s.keep_gate_up = true;
        same_bits("gate and up kept", keep, some_steps(s, tied));
        free(keep.x);
    }
}

static void rounds_change_no_bit(void)
{
    setup s = small();
    bits all = some_steps(s, false);
    static const int64_t rows[] = { 2 * T, 64, 2 * T / 16, 1 };
    for (int i = 0; i < CDR_COUNT(rows); i++) {
        s.capacity = rows[i];
        same_bits("rounds", all, some_steps(s, false));
    }
    free(all.x);
}

static void training_and_evaluation_agree_to_the_bit(void)
{
    for (int m = 0; m < CDR_COUNT(models); m++) {
        setup s = small();
        if (m > 0) s.sizes.n = 0;
        s.path = models[m];
        rig r;
        must_open(&s, &r);
        batch b = pack(9);
        double sum = evaluate(&r, &b, NULL), loss = must_step(&r, 0, &b, 0.0);
        T_NEAR(loss * (double)b.trained, sum, 1e-12 * fabs(sum));
        T_CHECK(isfinite(sum) && sum > 0);
        close_rig(&r);
    }
}

/* Prefill in pieces and token by token, against the rows of the training forward times the head. Chunks of KDA restart with a
 * turn, so rows agree to rounding, not to the bit. */
static void decode_agrees_with_the_forward(void)
{
    enum { N = 60, W = 64 };
    setup s = small();
    rig r;
    must_open(&s, &r);
    batch b;
    idle(&b, 0);
    put_doc(&b, 0, N, 4);
    count(&b);
    static float hidden[T * D], pieces[N * W], single[N * W];
    evaluate(&r, &b, hidden);
    for (int32_t at = 0; at < N; at += 13) feed(r.x, b.tokens, at, CDR_MIN(13, N - at), pieces, W);
    for (int32_t at = 0; at < N; at++) feed(r.x, b.tokens, at, 1, single, W);
    const float *head = cdr_exec_ptr(r.x, CDR_PROG_STEP, r.b.params[cdr_param_find(&r.b, "language_model.lm_head.weight")].shard, 0);
    double worst_p = 0, worst_s = 0, size = 0;
    for (int t = 0; t < N; t++)
        for (int w = 0; w < W; w++) {
            double want = 0;
            for (int k = 0; k < D; k++) want += (double)hidden[t * D + k] * (double)head[w * D + k];
            worst_p = fmax(worst_p, fabs(want - (double)pieces[t * W + w]));
            worst_s = fmax(worst_s, fabs(want - (double)single[t * W + w]));
            size = fmax(size, fabs(want));
        }
    if (worst_p > 2e-5 * size || worst_s > 2e-5 * size) fprintf(stderr, "  pieces %.2e, single %.2e of %.2e\n", worst_p, worst_s, size);
    T_CHECK(size > 0.1 && worst_p <= 2e-5 * size && worst_s <= 2e-5 * size);
    close_rig(&r);
}

static void first_attn_res_has_no_gradient(void)
{
    setup s = small();
    rig r;
    must_open(&s, &r);
    batch b = pack(2);
    must_step(&r, 0, &b, 0.01);
    T_CHECK(gradient(&r, "language_model.model.layers.0.self_attention_res_proj.weight", NULL) == NULL);      /* no value: exactly zero */
    T_CHECK(gradient(&r, "language_model.model.layers.0.self_attention_res_norm.weight", NULL) == NULL);
    T_CHECK(gradient(&r, "language_model.model.layers.1.self_attention_res_proj.weight", NULL) != NULL);
    const cdr_param *q = &r.b.params[cdr_param_find(&r.b, "language_model.model.layers.0.self_attention_res_norm.weight")];
    const float *w = cdr_exec_ptr(r.x, CDR_PROG_STEP, q->shard, 0);
    for (int i = 0; i < D; i++) T_CHECK(w[i] == 1.0f);
    close_rig(&r);
}

/* A short document is all selected: dense attention, the same bits. */
static void short_documents_are_dense(void)
{
    setup s = small();
    static cdr_pair wide[CDR_COUNT(small_sizes)];
    memcpy(wide, small_sizes, sizeof wide);
    for (int i = 0; i < CDR_COUNT(wide); i++) if (strcmp(wide[i].name, "index.top_k") == 0) wide[i].text = "96";
    static float sparse[T * D], dense[T * D], narrow[T * D];
    batch b = pack(7);
    rig r;
    s.warm = true;
    must_open(&s, &r);
    evaluate(&r, &b, dense);
    close_rig(&r);
    s.warm = false;
    must_open(&s, &r);
    evaluate(&r, &b, narrow);
    close_rig(&r);
    s.sizes.p = wide;
    must_open(&s, &r);
    evaluate(&r, &b, sparse);
    close_rig(&r);
    T_CHECK(same_rows(dense, 0, sparse, 0, 89));                /* top-k at and above the length */
    T_CHECK(same_rows(dense, 0, narrow, 0, 12));                /* rows with at most top_k keys */
    T_CHECK(!same_rows(dense, 30, narrow, 30, 1));              /* and the selection does something */
}

/* Near-equal scores send every token to the first experts; balancing undoes it within some steps (known-failures, B). */
static void quantile_balancing_undoes_a_collapse(void)
{
    setup s = small();
    rig r;
    must_open(&s, &r);
    tied_scores(&r);
    double first = 0, last = 0;
    for (int t = 0; t < 20; t++) {
        batch b = pack((uint64_t)(t % 4));
        must_step(&r, t, &b, 0.003);
        int32_t load[8], most = 0, all = 0;
        cdr_exec_get(r.x, CDR_PROG_STEP, "layers.2.moe.load", 0, load, sizeof load);
        for (int e = 0; e < 8; e++) {
            most = CDR_MAX(most, load[e]);
            all += load[e];
        }
        T_CHECK(all == 2 * b.rows);                               /* idle rows are never counted, no row twice */
        last = 8.0 * most / all;
        if (t == 0) first = last;
    }
    if (!(last < 1.7)) fprintf(stderr, "  max over mean %.2f at first, %.2f after 20 steps\n", first, last);
    T_CHECK(first == 4.0);                                      /* top-2 of 8: two experts have it all */
    T_CHECK(last < 1.7);                                        /* 22 tokens an expert on average, other ones each step */
    close_rig(&r);
}

/* A frozen head: the gradients of everything else are those of a trained one, to rounding; the head stays as it is. */
static void a_frozen_head_changes_no_other_gradient(void)
{
    static const char embed[] = "language_model.model.embed_tokens.weight", head[] = "language_model.lm_head.weight";
    static float d_embed[64 * D], before[64 * D];
    setup s = small();
    rig r;
    batch b = pack(5);
    must_open(&s, &r);
    double loss = must_step(&r, 0, &b, 0.01);
    memcpy(d_embed, gradient(&r, embed, NULL), sizeof d_embed);
    close_rig(&r);
    s.freeze[s.n_freeze++] = head;
    must_open(&s, &r);
    cdr_val w = r.b.params[cdr_param_find(&r.b, head)].shard;
    memcpy(before, cdr_exec_ptr(r.x, CDR_PROG_STEP, w, 0), sizeof before);
    T_NEAR(must_step(&r, 0, &b, 0.01), loss, 1e-6);
    const float *g = gradient(&r, embed, NULL);
    double worst = 0, size = 0;
    for (int i = 0; i < 64 * D; i++) {
        worst = fmax(worst, fabs((double)g[i] - (double)d_embed[i]));
        size = fmax(size, fabs((double)d_embed[i]));
    }
    T_CHECK(size > 1e-4 && worst < 1e-5 * size);
    T_CHECK(gradient(&r, head, NULL) == NULL);
    T_CHECK(memcmp(before, cdr_exec_ptr(r.x, CDR_PROG_STEP, w, 0), sizeof before) == 0);
    close_rig(&r);
}

/* Every micro-batch's further losses are in the step's sums, also where all forwards come first and the last one's backward is next. */
static void further_losses_count_each_micro_batch_once(void)
{
    double sum[2][5] = { { 0 } }, loss[2];
    for (int major = 0; major < 2; major++) {
        setup s = small();
        s.n_micro = 2;
        s.aux = 0.1;
        s.layer_major = major;
        rig r;
        must_open(&s, &r);
        batch b[] = { pack(4), pack(5) };
        loss[major] = must_step(&r, 0, b, 0.0);
        cdr_exec_get(r.x, CDR_PROG_STEP, "extra", 0, sum[major], sizeof sum[major]);      /* two indexers, three routers */
        close_rig(&r);
    }
    T_NEAR(loss[1], loss[0], 1e-12);
    for (int i = 0; i < 5; i++) {
        T_CHECK(sum[0][i] > 0);
        T_NEAR(sum[1][i], sum[0][i], 1e-12 * sum[0][i]);
    }
}

/* Experts that shards do not divide: refused by name while they are trained, cut unevenly where they are frozen. */
static void shards_divide_the_experts(void)
{
    static cdr_pair six[CDR_COUNT(small_sizes)];
    memcpy(six, small_sizes, sizeof six);
    for (int i = 0; i < CDR_COUNT(six); i++) {
        if (strcmp(six[i].name, "moe.experts") == 0) six[i].text = "6";
        if (strcmp(six[i].name, "moe.latent") == 0) six[i].text = "96";
        if (strcmp(six[i].name, "moe.width") == 0) six[i].text = "128";
    }
    for (int shard = 2; shard <= 4; shard *= 2)
        for (int frozen = 0; frozen < 2; frozen++) {
            setup s = small();
            s.sizes.p = six;
            s.shard = shard;
            if (frozen) s.freeze[s.n_freeze++] = "*experts.*";
            cdr_err err = { CDR_OK, "", "" };
            rig r;
            bool fits = shard == 2 || frozen;
            T_CHECK(compile_rig(&s, 0, &r, &err) == (fits ? CDR_OK : CDR_EUSER));
            if (!fits) T_HAS(err.text, "4 shards do not divide the 6 matrices of language_model.model.layers.1.block_sparse_moe.experts.");
            cdr_pool_free(r.pool);
        }
}

/* ---- ranks ---- */
static setup rank_setup;
typedef struct { double loss[3]; int64_t n; float x[1 << 22]; } shared_result;
static shared_result *rank_result;

static int rank_body(cdr_comm *w, int n_micro)
{
    rig r;
    cdr_err err = { CDR_OK, "", "" };
    setup s = rank_setup;
    s.n_micro = n_micro;
    s.no_generate = true;
    int rank = cdr_comm_rank(w);
    if (open_on(&s, w, &r, &err) != CDR_OK) fprintf(stderr, "%s\n", err.text);
    EXPECT_OK(err.status);
    const cdr_mesh mesh = r.o.mesh;
    for (int t = 0; t < 3; t++) {
        batch b[4];
        double loss = NAN;
        for (int m = 0; m < n_micro; m++)
            b[m] = pack((uint64_t)(4 * t + (mesh.rank[0] * n_micro + m) * mesh.size[1] + mesh.rank[1]));
        if (run_step(&r, t, b, 0.01, &loss, &err) != CDR_OK) fprintf(stderr, "%s\n", err.text);
        EXPECT_OK(err.status);
        if (rank == 0) rank_result->loss[t] = loss;
    }
    int64_t at = 0;
    for (int32_t i = 0; i < r.b.n_params; i++) {
        const cdr_param *q = &r.b.params[i];
        int64_t cols = cdr_type_elems(&q->global) / q->global.n[0], first, rows;
        cdr_param_rows(q, &mesh, &first, &rows);
        cdr_val part[] = { q->shard, q->m, q->v };
        for (int k = 0; k < 3; k++) {
            if (part[k] == CDR_NONE) continue;
            EXPECT(at + q->global.n[0] * cols <= (int64_t)CDR_COUNT(rank_result->x));
            if (mesh.rank[0] == 0) cdr_exec_get_rows(r.x, part[k], 0, rows * cols / cdr_type_cols(&r.b.shared[part[k]].t), rank_result->x + at + first * cols);
            at += q->global.n[0] * cols;
        }
    }
    if (rank == 0) rank_result->n = at;
    EXPECT_OK(cdr_comm_barrier(w));
    close_rig(&r);
    return 0;
}

static void one_curve_on_one_and_four_ranks(void)
{
    static shared_result one;
    rank_result = mmap(NULL, sizeof *rank_result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int muon = 0; muon < 2; muon++)
        for (int i = 0; i < 5; i++) {
            static const int layout[][3] = { { 1, 1, 4 }, { 1, 2, 2 }, { 2, 1, 2 }, { 1, 4, 1 }, { 2, 2, 1 } };
            static cdr_pair big[CDR_COUNT(small_sizes)];          /* wide enough that experts and some matrices are cut */
            memcpy(big, small_sizes, sizeof big);
            for (int k = 0; k < CDR_COUNT(big); k++) {
                if (strcmp(big[k].name, "moe.latent") == 0) big[k].text = "96";
                if (strcmp(big[k].name, "moe.width") == 0) big[k].text = "96";
            }
            rank_setup = small();
            rank_setup.sizes.p = big;
            rank_setup.replicate = layout[i][0];
            rank_setup.shard = layout[i][1];
            rank_setup.muon = muon;
            memset(rank_result, 0, sizeof *rank_result);
            T_CHECK(run_quiet(layout[i][0] * layout[i][1], rank_body, layout[i][2]) == 0);
            if (i == 0) one = *rank_result;
            T_CHECK(rank_result->n == one.n && one.n > 65536);
            bool same = memcmp(&one, rank_result, sizeof one) == 0;
            if (!same) fprintf(stderr, "  replicate %d shard %d, muon %d: losses %.9g against %.9g\n", layout[i][0], layout[i][1], muon,
                               rank_result->loss[2], one.loss[2]);
            T_CHECK(same);
        }
}

/* Documents of a task that needs every part: the next symbol is a random function of the last two (a table of 12 x 12 to learn by
 * heart), every third is drawn anew, three times of four the document's favourite, which is to be counted out. */
static void put_puzzle(batch *b, int first, int n, uint64_t d)
{
    cdr_rng_key k = { 17, d, 0 };
    int32_t seq[T + 1];
    for (int32_t i = 0; i <= n; i++) {
        uint64_t pair = i < 2 ? 0 : (uint64_t)(12 * seq[i - 2] + seq[i - 1]);
        bool fresh = i < 2 || i % 3 == 2, favourite = cdr_rng_u64(k, 1000 + (uint64_t)i) % 4 != 0;
        seq[i] = (int32_t)(fresh ? cdr_rng_u64(k, favourite ? 2000 : (uint64_t)i) % 12 : cdr_rng_u64((cdr_rng_key){ 19, 0, 0 }, pair) % 12);
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t t = first + i;
        b->tokens[t] = seq[i];
        b->targets[t] = seq[i + 1];
        b->start[t] = first;
        b->pos[t] = t;
    }
}

static batch puzzle(uint64_t seed)
{
    batch b;
    idle(&b, 0);
    put_puzzle(&b, 0, 48, 2 * seed);
    put_puzzle(&b, 48, 48, 2 * seed + 1);
    count(&b);
    return b;
}

/* ---- ablation: beside the goldens, never instead; a wrong but trainable block still learns ---- */
static double learn(const char *const *zero, int n_zero, int steps)
{
    setup s = small();
    rig r;
    double loss = 0;
    s.no_generate = true;
    s.n_micro = 4;
    s.isa &= CDR_ISA_AVX2;                                        /* one numeric class wherever the test runs */
    for (int i = 0; i < n_zero; i++) s.freeze[s.n_freeze++] = zero[i];
    must_open(&s, &r);
    for (int32_t i = 0; i < r.b.n_params; i++) {
        const cdr_param *q = &r.b.params[i];
        if (q->train != CDR_FROZEN) continue;
        int64_t n = cdr_type_elems(&q->global);
        float *x = calloc((size_t)n, sizeof *x);
        cdr_exec_put_run(r.x, q->shard, x, sizeof *x * (size_t)n);
        free(x);
    }
    for (int t = 0; t < steps; t++) {
        batch b[4];
        for (int m = 0; m < 4; m++) b[m] = puzzle((uint64_t)(4 * t + m));
        must_step(&r, t, b, 0.01 * fmin(1.0, 2.0 * (steps - t) / steps));
    }
    for (int i = 0; i < 16; i++) {
        batch b = puzzle((uint64_t)(100000 + i));
        loss += evaluate(&r, &b, NULL) / (16.0 * (double)b.trained);
    }
    close_rig(&r);
    return loss;
}

static void every_block_helps(void)
{
    static const struct { const char *what, *zero[2]; int n; } off[] = {
        { "KDA layers", { "*layers.[02].self_attn.o_proj.weight" }, 1 },
        { "DSA layers", { "*layers.[13].self_attn.o_proj.weight" }, 1 },
        { "the dense layer", { "*mlp.down_proj.weight" }, 1 },
        { "routed experts", { "*routed_expert_up_proj.weight" }, 1 },
        { "shared experts", { "*shared_experts.down_proj.weight" }, 1 },
        { "queries of AttnRes (a plain mean)", { "*res_proj.weight" }, 1 },
        { "output gates", { "*self_attn.g_proj.weight" }, 1 },
    };
    int steps = 50;
    double whole = learn(NULL, 0, steps);
    T_CHECK(whole < 3.0);                                        /* ln 64 = 4.16; ln 32 = 3.47 with the half of the vocabulary known */
    for (int i = 0; i < CDR_COUNT(off); i++) {
        double without = learn(off[i].zero, off[i].n, steps);
        printf("      without %s: %.4f, with all %.4f\n", off[i].what, without, whole);
        T_CHECK(without > whole);
    }
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(one_curve_on_one_and_four_ranks);                       /* first: ranks are forked before threads are made */
    T_RUN(causality_to_the_bit);
    T_RUN(packed_documents_are_separate_to_the_bit);
    T_RUN(recompute_changes_no_bit);
    T_RUN(rounds_change_no_bit);
    T_RUN(training_and_evaluation_agree_to_the_bit);
    T_RUN(decode_agrees_with_the_forward);
    T_RUN(first_attn_res_has_no_gradient);
    T_RUN(short_documents_are_dense);
    T_RUN(quantile_balancing_undoes_a_collapse);
    T_RUN(a_frozen_head_changes_no_other_gradient);
    T_RUN(further_losses_count_each_micro_batch_once);
    T_RUN(shards_divide_the_experts);
    T_RUN(every_block_helps);
    return t_end();
}
