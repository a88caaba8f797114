/* test_lora_outer.c: adapters of routed experts of which one factor is shared by all experts of a layer (lora.experts: shared_outer), on the
 * small Kimi K3.1 of lora_rig.h, and adapters on every kind of module of every family. What must hold to the bit holds to the bit: B = 0 is
 * the base, every layout, recomputation, resuming. Forward and gradients are compared with those of folded matrices, W + s B A.
 * Source: spec/known-failures.md, C; spec/operators.md, 4.3; spec/interface.md, 3.3.
 */
#include "lora_check.h"

static lora_run outer(void)
{
    lora_run c = lora_default();
    c.outer = true;
    c.groups[0] = "attention";
    return c;
}

static lora_run experts_alone(void)
{
    lora_run c = outer();
    c.groups[0] = NULL;
    c.n_steps = 0;
    return c;
}

/* ---- the base ---- */
static void zero_b_is_the_base_to_the_bit(void)
{
    for (int k = 0; k < 3; k++) {                              /* F32, BF16, packed experts */
        lora_run base = lora_default(), c = experts_alone();
        base.none = true;
        base.n_steps = 0;
        base.compute = c.compute = k == 1 ? CDR_BF16 : CDR_F32;
        base.packed = c.packed = k == 2;
        T_CHECK(lora_go(&base, ref) == 0);
        T_CHECK(lora_go(&c, got) == 0 && got->n_params == ref->n_params + 3 * 3 * 2);
        T_CHECK(ref->eval[0] == got->eval[0] && memcmp(ref->logits, got->logits, sizeof ref->logits) == 0 && got->eval[0] > 0);
        /* frozen experts still lie in panels, where there are any: none of them is formed with its adapter */
        if (k != 2 && (cdr_cpu_isa(NULL) & (CDR_ISA_AVX2 | CDR_ISA_AVX512))) T_CHECK(got->n_panels > 0);
        c.filled = true;
        T_CHECK(lora_go(&c, got) == 0);
        T_CHECK(ref->eval[0] != got->eval[0] && memcmp(ref->logits, got->logits, sizeof ref->logits) != 0);
    }
}

/* ---- folded matrices ---- */
/* Square experts (latent 32, width 32), where a swapped gate and up would have the right shapes, and others: B of each is drawn from a stream
 * of its own, so a swap is another model. */
static void as_folded_matrices(void)
{
    cdr_pool *pool = cdr_pool_new();
    for (int square = 0; square < 2; square++) {
        lora_run c = experts_alone();
        c.n_steps = 1;
        c.no_clip = c.filled = true;
        c.scale = 1.5f;
        c.expert_rank = 3;
        c.expert_width = square ? NULL : "64";
        T_CHECK(lora_go(&c, got) == 0);
        c.filled = false;
        c.merged = true;
        T_CHECK(lora_go(&c, ref) == 0);
        T_NEAR(got->eval[0], ref->eval[0], 1e-5 * fabs(ref->eval[0]));
        T_NEAR(got->loss[0], ref->loss[0], 1e-6 * ref->loss[0]);
        int pairs = 0;
        for (int i = 0; i < ref->n_params; i++) {
            if (ref->param[i].frozen || !strstr(ref->param[i].name, "{expert}")) continue;
            pairs += check_pair(&c, pool, &ref->param[i]);
        }
        T_CHECK(pairs == 3 * 3);
    }
    cdr_pool_free(pool);
}

/* ---- what moves ---- */
static void every_b_moves_and_the_base_does_not(void)
{
    lora_run c = experts_alone();
    int shared = 0, own = 0;
    T_CHECK(lora_go(&c, ref) == 0);
    c.n_steps = 1;
    T_CHECK(lora_go(&c, got) == 0);
    for (int i = 0; i < got->n_params; i++) {
        const lora_param *p = &got->param[i];
        const bool a = strstr(p->name, ".lora_A.") != NULL, b = strstr(p->name, ".lora_B.") != NULL, down = strstr(p->name, ".w2.") != NULL;
        T_CHECK(p->adapter == (a || b) && p->frozen == !p->adapter);
        if (!b) T_NEAR(moved(p, 0, p->n), 0, 0);               /* A: its gradient is zero while B is */
        if (b && down) T_CHECK(p->n == 32 * 2 && moved(p, 0, p->n) > 0 && ++shared > 0);
        for (int64_t e = 0, one = p->n / LORA_EXPERTS; e < LORA_EXPERTS && b && !down; e++) {
            const bool busy = got->load[layer_of(p->name) * LORA_EXPERTS + e] > 0;
            T_CHECK(p->n == LORA_EXPERTS * 32 * 2 && (moved(p, e * one, one) > 0) == busy);
            own += busy;
        }
    }
    T_CHECK(shared == 3 && own > 2 * 3 * LORA_EXPERTS / 2);
    c.n_steps = 10;                                            /* the rig compares hashes of the base: norms, embeddings, experts */
    T_CHECK(lora_go(&c, got) == 0 && got->loss[9] < got->loss[0]);
    for (int i = 0; i < got->n_params; i++) if (got->param[i].adapter) T_CHECK(moved(&got->param[i], 0, got->param[i].n) > 0);
}

static void layer_one_alone(void)
{
    lora_run c = outer();
    c.layer = 1;
    T_CHECK(lora_go(&c, got) == 0);
    int n = 0;
    for (int i = 0; i < got->n_params; i++) {
        if (!got->param[i].adapter) continue;
        T_CHECK(layer_of(got->param[i].name) == 1 && ++n > 0);
    }
    T_CHECK(n == 2 * (6 + 3));                                 /* DSA, experts: an expert's index is no layer's */
}

/* ---- layouts ---- */
/* Losses, norms, weights and states. Ranks that FSDP, and expert groups, spread them over; big: shared factors large enough to be split. */
static void one_curve_on_every_layout(void)
{
    static const struct { const char *what; int replicate, shard, expert, n_micro, balanced, big; } how[] = {
        { "shard 2", 1, 2, 1, 2, 0, 0 }, { "replicate 2", 2, 1, 1, 2, 0, 0 }, { "shard 2, expert 2", 1, 2, 2, 2, 0, 0 }, { "shard 4, expert 4", 1, 4, 4, 1, 0, 0 },
        { "shard 4, expert 2, balanced", 1, 4, 2, 1, 1, 0 }, { "shard 4, expert 2, split factors", 1, 4, 2, 1, 0, 1 }, { "shard 2, split factors", 1, 2, 1, 2, 0, 1 },
    };
    for (int big = 0; big < 2; big++) {
        lora_run c = outer();
        if (big) {
            c.latent = "256";
            c.expert_rank = 256;                               /* 256 x 256: as many elements as FSDP splits */
            c.scale = 0.25f;
            c.n_steps = 2;
        }
        T_CHECK(lora_go(&c, ref) == 0);
        for (int i = 0; i < CDR_COUNT(how); i++) {
            if (how[i].big != big || (t_quick() && i % 2)) continue;
            lora_run d = c;
            d.replicate = how[i].replicate;
            d.shard = how[i].shard;
            d.expert = how[i].expert;
            d.n_micro = how[i].n_micro;
            d.balanced = how[i].balanced;
            d.poison = i == 2;
            same(d, how[i].what);
            if (d.expert > 1) T_CHECK(got->n_exchanges >= 2 * 3);
        }
    }
}

static void options_of_the_base_hold(void)
{
    lora_run c = outer();
    T_CHECK(lora_go(&c, ref) == 0);
    c.policy = CDR_POLICY_RECOMPUTE;
    c.poison = true;
    same(c, "recompute");
    T_CHECK(got->planned_bytes < ref->planned_bytes);
    c.shard = c.expert = 2;
    c.n_micro = 2;
    same(c, "recompute in an expert group");
    c = outer();
    c.n_threads = 2;
    same(c, "two threads");
    c.n_threads = 1;
    c.rows_only = true;
    same(c, "weights in rows");
}

/* ---- every module of every family ---- */
static const char *leaf_of(const char *name, char *leaf, size_t bytes)
{
    const size_t n = strlen(name) - strlen(".weight");
    snprintf(leaf, bytes, "%.*s", (int)n, name);
    const char *dot = strrchr(leaf, '.');
    return dot ? dot + 1 : leaf;
}

/* The eval program alone, with adapters on every linear of this leaf name ("*": on all, NULL: on none), and, where experts, on those; form: of
 * the latter. */
static double eval_loss(const char *model_name, const char *leaf, bool experts, int form, bool filled, int *n_adapters)
{
    cdr_pool *pool = cdr_pool_new();
    err = (cdr_err){ 0 };
    cdr_model_spec spec = { .path = model_name };
    cdr_model *model;
    double sums[1] = { NAN };
    lora_run c = lora_default();
    c.n_micro = 1;
    lora_result *r = lora_shared();
    cdr_comm *world;
    if (cdr_model_load(&spec, pool, &model, &err) != CDR_OK) goto out;
    const int64_t n = cdr_model_params(model);
    cdr_builder builder = cdr_model_builder(model);
    cdr_compile_opts o = lora_opts(&c, 0);
    cdr_adapter *a = cdr_pool_alloc(pool, sizeof *a * (size_t)n);
    o.gen_T = 0;
    o.infer_only = true;
    for (int64_t i = 0; i < n; i++) {
        const cdr_model_part p = cdr_model_param_part(model, i);
        char text[200];
        const bool expert = cdr_model_in_group(model, i, "experts"), linear = cdr_model_in_group(model, i, "all_linear") && !cdr_model_in_group(model, i, "indexer");
        const bool named = linear && leaf && (*leaf == '*' || strcmp(leaf_of(cdr_model_param(model, i), text, sizeof text), leaf) == 0);
        if (!named && !(experts && expert)) continue;
        const int own = form == CDR_ADAPTER_EACH ? form : strstr(p.part, "down") ? CDR_ADAPTER_SHARED_B : CDR_ADAPTER_SHARED_A;
        a[o.n_adapters++] = (cdr_adapter){ cdr_model_param(model, i), 2, 2, expert ? own : CDR_ADAPTER_EACH };
    }
    o.adapters = a;
    *n_adapters = o.n_adapters;
    const char **freeze = cdr_pool_alloc(pool, sizeof *freeze * (size_t)n);
    for (int64_t i = 0; i < n; i++) freeze[o.n_freeze++] = cdr_model_param(model, i);
    o.freeze = freeze;
    cdr_bundle b;
    cdr_device *d;
    cdr_exec *x;
    if (cdr_comm_open(&(cdr_comm_spec){ "auto", 20 }, &world, &err) != CDR_OK || cdr_compile(&o, &builder, pool, &b, &err) != CDR_OK) goto out;
    if (cdr_device_open(CDR_DEV_CPU, 0, 1, &d, &err) != CDR_OK) goto out;
    cdr_exec_opts eo = { .bundle = &b, .device = d, .world = world, .mesh = &o.mesh };
    if (cdr_exec_open(&eo, &x, &err) != CDR_OK || cdr_exec_init(x, LORA_SEED, &err) != CDR_OK) goto out;
    if (filled) lora_fill_b(x, &b, &o.mesh);
    if (lora_eval(x, &o.mesh, 0, r, &err) == CDR_OK) sums[0] = r->eval[0];
    cdr_exec_close(x);
    d->ops->close(d);
    cdr_comm_close(world);
out:
    if (err.status != CDR_OK) fprintf(stderr, "  %s, %s: %s\n", model_name, leaf ? leaf : "experts", err.text);
    munmap(r, sizeof *r);
    cdr_pool_free(pool);
    return sums[0];
}

static int kinds_of(const char *model_name, char kind[][200], int max, bool *experts)
{
    cdr_pool *pool = cdr_pool_new();
    err = (cdr_err){ 0 };
    cdr_model_spec spec = { .path = model_name };
    cdr_model *model;
    int n = 0;
    *experts = false;
    T_CHECK(cdr_model_load(&spec, pool, &model, &err) == CDR_OK);
    for (int64_t i = 0; err.status == CDR_OK && i < cdr_model_params(model); i++) {
        char text[200];
        const char *leaf = leaf_of(cdr_model_param(model, i), text, sizeof text);
        int k = 0;
        *experts = *experts || cdr_model_in_group(model, i, "experts");
        if (!cdr_model_in_group(model, i, "all_linear") || cdr_model_in_group(model, i, "indexer")) continue;
        while (k < n && strcmp(kind[k], leaf) != 0) k++;
        if (k == n && n < max) snprintf(kind[n++], sizeof kind[0], "%s", leaf);
    }
    cdr_pool_free(pool);
    return n;
}

static void every_module_of_every_family(void)
{
    static const char *const models[] = { "tiny-k3", "tiny-k31", "tiny-linear", "tiny-v32", "tiny-v3" };
    for (int m = 0; m < CDR_COUNT(models); m++) {
        char kind[40][200];
        bool experts;
        int n = kinds_of(models[m], kind, 40, &experts), n_adapters = 0;
        const double base = eval_loss(models[m], NULL, false, 0, false, &n_adapters);
        T_CHECK(n >= 8 && n < 40 && experts && base > 0 && n_adapters == 0);
        for (int form = CDR_ADAPTER_EACH; form <= CDR_ADAPTER_SHARED_A; form++) {           /* on all of them at once; then which one it was */
            const double zero = eval_loss(models[m], "*", true, form, false, &n_adapters);
            T_CHECK(zero == base && n_adapters > n);
            for (int k = 0; k < n && zero != base; k++)
                if (eval_loss(models[m], kind[k], false, form, false, &n_adapters) != base) fprintf(stderr, "  %s, %s: B = 0 is not the base\n", models[m], kind[k]);
            T_CHECK(eval_loss(models[m], NULL, true, form, true, &n_adapters) != base && n_adapters >= 3);
        }
        for (int k = m % 3; k < n; k += 3) T_CHECK(eval_loss(models[m], kind[k], false, 0, true, &n_adapters) != base && n_adapters > 0);
    }
}

/* ---- recipes ---- */
static void recipes(void)
{
    T_CHECK(adapters_of("lora: {rank: 16, targets: [o_proj], experts: shared_outer}\n") == 8 + 7 * 3);
    const cdr_adapter *gate = find_adapter("layers.5.block_sparse_moe.experts.{expert}.w1.weight"),
                      *up = find_adapter("layers.5.block_sparse_moe.experts.{expert}.w3.weight"),
                      *down = find_adapter("layers.5.block_sparse_moe.experts.{expert}.w2.weight"), *o = find_adapter("layers.5.self_attn.o_proj.weight");
    T_CHECK(gate && up && down && o);
    if (!gate || !up || !down || !o) return;
    T_CHECK(gate->form == CDR_ADAPTER_SHARED_A && up->form == CDR_ADAPTER_SHARED_A && down->form == CDR_ADAPTER_SHARED_B && o->form == CDR_ADAPTER_EACH);
    T_CHECK(s.r.lora.expert_rank == 4 && gate->rank == 4 && gate->scale == 2.0f);      /* 16 // top-4; alpha / rank stays */
    close_session();
    T_CHECK(adapters_of("lora: {rank: 16, targets: [], scaling: rslora, experts: shared_outer, expert_rank: 9, exclude: [w3], layers: '1-2'}\n") == 4);
    T_CHECK(s.opts.adapters[0].rank == 9 && s.opts.adapters[0].scale == 6.0f);       /* 2 x 9 / sqrt 9 */
    close_session();
    T_CHECK(adapters_of("lora: {targets: [], experts: shared_outer, rank_pattern: {'re:.*layers\\.1\\..*w1': 5, w1: 3, '*.w2': 7}, alpha_pattern: {w2: 14}}\n") == 7 * 3);
    gate = find_adapter("layers.1.block_sparse_moe.experts.{expert}.w1.weight"), up = find_adapter("layers.2.block_sparse_moe.experts.{expert}.w1.weight");
    down = find_adapter("layers.2.block_sparse_moe.experts.{expert}.w2.weight");
    T_CHECK(gate && gate->rank == 5 && gate->scale == 2.0f && up && up->rank == 3 && down && down->rank == 7 && down->scale == 2.0f);
    close_session();
    refused("lora: {targets: [w2]}\n", "lora.bad-target", "Set lora.experts=per_expert or shared_outer");
    T_CHECK(resolve_section("lora: {dropout: 0.1}\n") == CDR_EUSER);
    T_HAS(err.text, "dropout");
    close_session();
}

/* What is not there is refused: a factor that no product could share, of one matrix, of two operators. */
static void forms_that_are_refused(void)
{
    static const struct { const char *param; int form; const char *text; } bad[] = {
        { "language_model.model.layers.1.block_sparse_moe.experts.{expert}.w2.weight", CDR_ADAPTER_SHARED_A, "cannot share its A" },
        { "language_model.model.layers.1.block_sparse_moe.experts.{expert}.w1.weight", CDR_ADAPTER_SHARED_B, "cannot share its B" },
        { "language_model.model.layers.1.self_attn.o_proj.weight", CDR_ADAPTER_SHARED_A, "nothing can be shared" },
    };
    for (int i = 0; i < CDR_COUNT(bad); i++) {
        cdr_pool *pool = cdr_pool_new();
        cdr_model_spec spec = { .path = "tiny-k31" };
        cdr_model *model;
        cdr_bundle b;
        lora_run c = lora_default();
        cdr_compile_opts o = lora_opts(&c, 0);
        err = (cdr_err){ 0 };
        T_CHECK(cdr_model_load(&spec, pool, &model, &err) == CDR_OK);
        cdr_builder builder = cdr_model_builder(model);
        c.none = true;
        lora_choose(&c, model, pool, &o);
        const cdr_adapter one = { bad[i].param, 2, 1, bad[i].form };
        const char *all = "*";
        o.freeze = &all;
        o.n_freeze = 1;
        o.adapters = &one;
        o.n_adapters = 1;
        o.infer_only = true;
        o.unplaced = true;
        T_CHECK(cdr_compile(&o, &builder, pool, &b, &err) == CDR_EUSER);
        T_STR(err.id, "lora.target");
        T_HAS(err.text, bad[i].text);
        cdr_pool_free(pool);
    }
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    open_results();
    T_RUN(one_curve_on_every_layout);                          /* ranks are forked before this process has threads */
    T_RUN(options_of_the_base_hold);
    T_RUN(zero_b_is_the_base_to_the_bit);
    T_RUN(as_folded_matrices);
    T_RUN(every_b_moves_and_the_base_does_not);
    T_RUN(layer_one_alone);
    T_RUN(recipes);
    T_RUN(forms_that_are_refused);
    T_RUN(every_module_of_every_family);
    return t_end();
}
