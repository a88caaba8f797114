/* test_lora.c: adapters from the recipe to the checkpoint, on a small Kimi K3.1 with every kind of layer. What must hold to the bit holds
 * to the bit: B = 0 is the base, every layout, recomputation, resuming. Gradients of A and B are compared with those of a merged
 * matrix: with W' = W + s B A and G the gradient of W', dB = s G A^T and dA = s B^T G.
 * Source: spec/known-failures.md, C; spec/interface.md, 3.3 and 8 (message 4).
 */
#include "io/io.h"
#include "lora_check.h"
#include "program.h"

/* ---- the base ---- */
static const char *const kinds[] = { "attention", "kda_gates", "dense_mlp", "shared_experts", "latent", "indexer", "experts" };

static lora_run of_kind(const char *kind)
{
    lora_run c = lora_default();
    c.experts = strcmp(kind, "experts") == 0;
    c.groups[0] = c.experts ? NULL : kind;
    c.n_steps = 0;
    return c;
}

static void zero_b_is_the_base_to_the_bit(void)
{
    static const int compute[] = { CDR_F32, CDR_BF16 };
    for (int k = 0; k < CDR_COUNT(compute); k++) {
        lora_run base = lora_default();
        base.none = true;
        base.n_steps = 0;
        base.compute = compute[k];
        T_CHECK(lora_go(&base, ref) == 0);
        for (int i = 0; i < CDR_COUNT(kinds); i++) {
            lora_run c = of_kind(kinds[i]);
            c.compute = compute[k];
            T_CHECK(lora_go(&c, got) == 0 && got->n_params > ref->n_params);
            bool same = ref->eval[0] == got->eval[0] && memcmp(ref->logits, got->logits, sizeof ref->logits) == 0;
            if (!same) fprintf(stderr, "  %s, %s: B = 0 is not the base\n", kinds[i], cdr_dtype_row(compute[k])->name);
            T_CHECK(same && got->eval[0] > 0);
            c.filled = true;                                   /* and a B that is not zero reaches the loss */
            T_CHECK(lora_go(&c, got) == 0);
            if (ref->eval[0] == got->eval[0]) fprintf(stderr, "  %s: B has no effect\n", kinds[i]);
            T_CHECK(ref->eval[0] != got->eval[0] && memcmp(ref->logits, got->logits, sizeof ref->logits) != 0);
        }
    }
}

/* Experts stay packed beside their adapters. */
static void packed_experts(void)
{
    lora_run base = lora_default(), c = of_kind("experts");
    base.none = base.packed = c.packed = true;
    base.n_steps = 0;
    T_CHECK(lora_go(&base, ref) == 0);
    T_CHECK(lora_go(&c, got) == 0);
    T_CHECK(ref->eval[0] == got->eval[0] && memcmp(ref->logits, got->logits, sizeof ref->logits) == 0);
    c.packed = false;
    T_CHECK(lora_go(&c, got) == 0);
    T_CHECK(ref->eval[0] != got->eval[0]);                     /* packing rounds */
    c = lora_default();
    c.packed = true;
    T_CHECK(lora_go(&c, ref) == 0);
    T_CHECK(lora_go(&c, got) == 0 && lora_equal(ref, got) && ref->loss[2] < ref->loss[0]);
    for (int i = 0; i < ref->n_params; i++) T_CHECK(ref->param[i].adapter != ref->param[i].frozen);
}

/* A frozen base with adapters that are zero gives the loss and the gradient norm of no other model: the step's loss is the base's. */
static void first_loss_is_the_base_s(void)
{
    lora_run c = lora_default();
    c.none = true;
    c.n_steps = 1;
    T_CHECK(lora_go(&c, ref) == 0);
    c = lora_default();
    c.n_steps = 1;
    T_CHECK(lora_go(&c, got) == 0);
    T_NEAR(got->loss[0], ref->loss[0], 1e-6);                  /* the frozen head takes another operator */
    T_CHECK(got->norm[0] < ref->norm[0] && got->norm[0] > 0);
}

/* ---- what moves ---- */
static void every_b_moves_and_the_base_does_not(void)
{
    lora_run c = lora_default();
    int n_b = 0, n_experts = 0;
    c.n_steps = 0;
    T_CHECK(lora_go(&c, ref) == 0);
    c.n_steps = 1;
    T_CHECK(lora_go(&c, got) == 0);
    for (int i = 0; i < got->n_params; i++) {
        const lora_param *p = &got->param[i];
        bool b = strstr(p->name, ".lora_B.") != NULL, expert = strstr(p->name, "{expert}") != NULL;
        T_CHECK(p->adapter == (b || strstr(p->name, ".lora_A.") != NULL) && p->frozen == !p->adapter);
        if (!b) T_NEAR(moved(p, 0, p->n), 0, 0);     /* A: its gradient is zero while B is */
        else if (!expert) T_CHECK(moved(p, 0, p->n) > 0);
        n_b += b && !expert;
        for (int e = 0; e < LORA_EXPERTS && b && expert; e++) {
            int64_t one = p->n / LORA_EXPERTS;
            bool busy = got->load[layer_of(p->name) * LORA_EXPERTS + e] > 0, is = moved(p, e * one, one) > 0;
            if (is != busy) fprintf(stderr, "  %s, expert %d: %d rows\n", p->name, e, got->load[layer_of(p->name) * LORA_EXPERTS + e]);
            T_CHECK(is == busy);
            n_experts += busy;
        }
    }
    /* 2 KDA x (q k v g o, f_a f_b b), 2 DSA x (q_a q_b kv_a kv_b g o), dense x 3, 3 MoE x (3 shared, 2 latent) */
    T_CHECK(n_b == 2 * 8 + 2 * 6 + 3 + 3 * 5 && n_experts > 3 * 3 * LORA_EXPERTS / 2);
    c.n_steps = 10;                                            /* the rig compares hashes of the base */
    T_CHECK(lora_go(&c, got) == 0);
    for (int i = 0; i < got->n_params; i++)
        if (strstr(got->param[i].name, ".lora_A.")) T_CHECK(moved(&got->param[i], 0, got->param[i].n) > 0);
    T_CHECK(got->loss[9] < got->loss[0] && got->slab_bytes == got->planned_bytes);
}

static void indexers_learn_where_they_train(void)
{
    lora_run c = lora_default();
    c.groups[0] = "indexer";
    c.experts = false;
    c.indexer_train = true;
    c.n_steps = 0;
    T_CHECK(lora_go(&c, ref) == 0);
    c.n_steps = 2;
    T_CHECK(lora_go(&c, got) == 0);
    int n = 0;
    for (int i = 0; i < got->n_params; i++)
        if (got->param[i].adapter) T_CHECK(moved(&got->param[i], 0, got->param[i].n) > 0 && ++n > 0);
    T_CHECK(n == 2 * 3 * 2);
}

static void layer_one_alone(void)
{
    lora_run c = lora_default();
    c.layer = 1;
    T_CHECK(lora_go(&c, got) == 0);
    int n = 0;
    for (int i = 0; i < got->n_params; i++) {
        if (!got->param[i].adapter) continue;
        T_CHECK(layer_of(got->param[i].name) == 1 && ++n > 0);
    }
    T_CHECK(n == 2 * (6 + 3 + 2 + 3));                         /* DSA, shared, latent, three stacks of experts; expert 1 of other layers is none of it */
}

/* ---- gradients ---- */
static void gradients_are_those_of_the_merged_matrix(void)
{
    cdr_pool *pool = cdr_pool_new();
    lora_run c = lora_default();
    c.n_steps = 1;
    c.no_clip = c.filled = true;
    c.scale = 1.5f;
    c.rank = 3;
    T_CHECK(lora_go(&c, got) == 0);
    c.filled = false;
    c.merged = true;
    T_CHECK(lora_go(&c, ref) == 0);
    T_NEAR(got->eval[0], ref->eval[0], 1e-5 * fabs(ref->eval[0]));
    T_NEAR(got->loss[0], ref->loss[0], 1e-6 * ref->loss[0]);
    int pairs = 0;
    for (int i = 0; i < ref->n_params; i++) {
        if (ref->param[i].frozen) continue;
        pairs += check_pair(&c, pool, &ref->param[i]);
    }
    T_CHECK(pairs == 2 * 8 + 2 * 6 + 3 + 3 * 5 + 3 * 3);
    cdr_pool_free(pool);
}

static void draws_of_a(void)
{
    static const struct { int init; double bound, std; } how[] = {
        { CDR_ADAPTER_KAIMING, 1, 0.57735 }, { CDR_ADAPTER_XAVIER, 1, 0.57735 }, { CDR_ADAPTER_GAUSSIAN, 99, 1 } };
    for (int k = 0; k < CDR_COUNT(how); k++) {
        lora_run c = of_kind("dense_mlp");
        c.init = how[k].init;
        c.rank = 64;
        T_CHECK(lora_go(&c, got) == 0);
        const lora_param *a = lora_find(got, "language_model.model.layers.0.mlp.down_proj.lora_A.weight");     /* [64, 48] */
        T_CHECK(a && a->n == 64 * 48);
        double unit = how[k].init == CDR_ADAPTER_KAIMING ? 1 / sqrt(48) : how[k].init == CDR_ADAPTER_XAVIER ? sqrt(6.0 / (48 + 64)) : 1.0 / 64, sum = 0, most = 0;
        for (int64_t i = 0; a && i < a->n; i++) {
            double x = (double)got->data[a->at + i] / unit;
            sum += x * x;
            most = CDR_MAX(most, fabs(x));
            if (how[k].init == CDR_ADAPTER_KAIMING) T_CHECK(got->data[a->at + i] == lora_a(a->name, 48, i));
        }
        T_CHECK(most <= how[k].bound && most > 0.99);
        T_NEAR(sqrt(sum / (64 * 48)), how[k].std, 0.03);
    }
}

/* ---- layouts ---- */
/* Adapters that FSDP splits: A and B of the dense MLP, and stacks of 8 x 256 x 32. */
static lora_run wide(void)
{
    lora_run c = lora_default();
    c.wide = true;
    c.rank = 16;
    c.expert_rank = 256;
    c.scale = 0.5f;
    return c;
}

static const int layouts[][3] = { { 1, 2, 2 }, { 2, 1, 2 }, { 1, 4, 1 }, { 2, 2, 1 }, { 4, 1, 1 } };      /* replicate, shard, micro-batches */

static void one_curve_on_every_layout(void)
{
    for (int w = 0; w < 2; w++) {
        lora_run c = w ? wide() : lora_default();
        T_CHECK(lora_go(&c, ref) == 0);
        for (int i = 0; i < CDR_COUNT(layouts); i++) {
            if (t_quick() && i % 2) continue;
            lora_run d = c;
            char what[80];
            d.replicate = layouts[i][0];
            d.shard = layouts[i][1];
            d.n_micro = layouts[i][2];
            d.poison = i == 2;
            snprintf(what, sizeof what, "%s, replicate %d, shard %d", w ? "wide" : "small", d.replicate, d.shard);
            same(d, what);
        }
    }
}

static void options_of_the_base_hold_with_adapters(void)
{
    lora_run c = lora_default();
    T_CHECK(lora_go(&c, ref) == 0);
    int calls = ref->n_calls;
    c.policy = CDR_POLICY_RECOMPUTE;
    c.poison = true;
    same(c, "recompute");
    T_CHECK(got->n_calls > calls + LORA_LAYERS && got->planned_bytes < ref->planned_bytes);
    c.shard = 2;
    c.n_micro = 2;
    same(c, "recompute on two ranks");
    c = lora_default();
    c.n_threads = 2;
    same(c, "two threads");
}

/* Expert groups: adapters of experts lie where the experts do, and an expert's gradient is formed per source shard. */
static void one_curve_with_expert_groups(void)
{
    static const struct { int replicate, shard, expert, n_micro; double factor; } ep[] = {
        { 1, 2, 2, 2, 1 }, { 1, 4, 4, 1, 1.25 }, { 1, 4, 2, 1, 4 }, { 2, 2, 2, 1, 1 },
    };
    for (int w = 0; w < 2; w++) {
        lora_run c = w ? wide() : lora_default();
        T_CHECK(lora_go(&c, ref) == 0);
        for (int i = 0; i < CDR_COUNT(ep); i++) {
            if (t_quick() && i % 2) continue;
            lora_run d = c;
            char what[80];
            d.replicate = ep[i].replicate;
            d.shard = ep[i].shard;
            d.expert = ep[i].expert;
            d.n_micro = ep[i].n_micro;
            d.dispatch_factor = ep[i].factor;
            d.policy = i == 2 ? CDR_POLICY_RECOMPUTE : CDR_POLICY_KEEP;
            snprintf(what, sizeof what, "%s, replicate %d, shard %d, expert %d", w ? "wide" : "small", d.replicate, d.shard, d.expert);
            same(d, what);
            T_CHECK(got->n_exchanges >= 2 * 3);                /* forward and backward of three layers */
        }
    }
    lora_run c = lora_default();
    c.packed = true;
    T_CHECK(lora_go(&c, ref) == 0);
    c.shard = c.expert = 2;
    c.n_micro = 2;
    same(c, "packed experts in an expert group of two");
}

/* The norm and clipping where no adapter lies on the experts, which are split over ranks. */
static void clipping_without_adapters_on_experts(void)
{
    lora_run c = wide();
    c.experts = false;
    c.n_steps = 2;
    c.groups[0] = "attention";
    T_CHECK(lora_go(&c, ref) == 0);
    T_CHECK(ref->norm[0] > 0.03);                              /* clipped, at 0.02 */
    c.shard = 2;
    c.n_micro = 2;
    same(c, "attention alone on two shards");
    c.expert = 2;
    same(c, "attention alone on an expert group of two");
}

/* ---- recipes ---- */
static void targets_of_recipes(void)
{
    T_CHECK(adapters_of("lora: {}\n") == 6 * 5 + 2 * 6 + 3 + 7 * 3);                      /* 6 KDA, 2 DSA, dense, 7 shared */
    T_CHECK(s.opts.adapters[0].rank == 16 && s.opts.adapters[0].scale == 2.0f && !s.opts.indexer_train && !s.opts.balance_own);
    close_session();
    T_CHECK(adapters_of("lora: {targets: [o_proj]}\n") == 8);
    close_session();
    T_CHECK(adapters_of("lora: {targets: ['*.layers.3.self_attn.*', 're:.*mlp\\.(up|down)_proj']}\n") == 6 + 2);     /* linears alone, of what a glob hits */
    close_session();
    T_CHECK(adapters_of("lora: {targets: [all_linear]}\n") == 6 * 8 + 2 * 6 + 3 + 7 * 5);  /* indexers are frozen */
    close_session();
    T_CHECK(resolve("model: {path: tiny-k31}\ndata: {train: data/none.txt}\ntrain: {steps: 1, indexer: train}\nlora: {targets: [all_linear]}\n") == CDR_OK);
    T_CHECK(s.opts.n_adapters == 6 * 8 + 2 * 9 + 3 + 7 * 5 && s.opts.indexer_train);
    close_session();
    T_CHECK(resolve("model: {path: tiny-k31}\ndata: {train: data/none.txt}\ntrain: {steps: 1, indexer: train}\nlora: {}\n") == CDR_EUSER);
    T_STR(err.id, "lora.indexer");
    close_session();
    T_CHECK(adapters_of("lora: {targets: [attention], exclude: [o_proj, kv_b_proj], layers: '1,3'}\n") == 4 + 4);       /* KDA q k v g, DSA q_a q_b kv_a g */
    T_CHECK(!find_adapter("layers.1.self_attn.o_proj.weight") && find_adapter("layers.1.self_attn.q_proj.weight") && !find_adapter("layers.2.self_attn.q_proj.weight"));
    close_session();
    T_CHECK(adapters_of("lora: {rank: 8, alpha: 8, targets: [q_proj, k_proj], rank_pattern: {q_proj: 2, '*proj': 4}, alpha_pattern: {k_proj: 6}}\n") == 12);
    const cdr_adapter *q = find_adapter("layers.0.self_attn.q_proj.weight"), *k = find_adapter("layers.0.self_attn.k_proj.weight");
    T_CHECK(q && q->rank == 2 && q->scale == 4.0f && k && k->rank == 4 && k->scale == 1.5f);
    close_session();
    T_CHECK(adapters_of("lora: {rank: 16, scaling: rslora, targets: [o_proj], experts: per_expert}\n") == 8 + 7 * 3);
    const cdr_adapter *w = find_adapter("layers.5.block_sparse_moe.experts.{expert}.w2.weight"), *o = find_adapter("layers.5.self_attn.o_proj.weight");
    T_CHECK(w && w->rank == 4 && w->scale == 4.0f && o && o->scale == 8.0f);         /* 2 x 4 / sqrt 4;  32 / sqrt 16 */
    T_CHECK(s.r.lora.expert_rank == 4);
    close_session();
    T_CHECK(adapters_of("lora: {targets: [], experts: per_expert, expert_rank: 3, exclude: [w1]}\n") == 7 * 2);
    close_session();
}

static void targets_that_are_refused(void)
{
    refused("lora: {targets: [qproj]}\n", "lora.no-match", "r.yaml:4:8: lora.targets \"qproj\" matches none of 98 linears. Nearest: q_proj (6)");
    T_HAS(err.text, "; groups: attention, kda_gates, dense_mlp, shared_experts, latent, all_linear");
    refused("lora: {targets: [self_attn.o_prj]}\n", "lora.no-match", "Nearest: o_proj (8)");
    refused("lora: {exclude: [o_prj]}\n", "lora.no-match", "lora.exclude \"o_prj\"");
    refused("lora: {rank_pattern: {o_prj: 4}}\n", "lora.no-match", "lora.rank_pattern \"o_prj\"");
    refused("lora: {rank_pattern: {o_proj: 0}}\n", "config.bad-value", "an integer from 1 to 512");
    refused("lora: {alpha_pattern: {o_proj: x}}\n", "config.bad-value", "a number above 0");
    static const char *const never[] = { "embed", "head", "norms", "router", "q_conv1d", "'*.A_log'" };
    for (int i = 0; i < CDR_COUNT(never); i++) {
        char text[100];
        snprintf(text, sizeof text, "lora: {targets: [attention, %s]}\n", never[i]);
        refused(text, "lora.bad-target", "adapters are of linears, not of embeddings, heads, norms, routers or convolutions");
    }
    refused("lora: {targets: [experts]}\n", "lora.bad-target", "Set lora.experts=per_expert");
    refused("lora: {targets: [w1]}\n", "lora.bad-target", "names routed experts");
    refused("lora: {targets: [indexer]}\n", "lora.bad-target", "train.indexer=frozen");
    refused("lora: {layers: '9'}\n", "lora.layers", "no layer set of 8 layers");
    refused("lora: {targets: [dense_mlp], layers: '1'}\n", "config.nothing-trains", "no adapter is left");
    refused("lora: {targets: []}\n", "config.nothing-trains", "no adapter is left");
    char dense[700];
    snprintf(dense, sizeof dense, "model: {path: tiny-dense}\ndata: {train: data/none.txt}\ntrain: {steps: 1}\nlora: {experts: per_expert}\n");
    T_CHECK(resolve(dense) == CDR_EUSER);
    T_HAS(err.text, "has no routed experts");
    close_session();
    snprintf(dense, sizeof dense, "model: {path: tiny-dense}\ndata: {train: data/none.txt}\ntrain: {steps: 1}\nlora: {}\n");
    T_CHECK(resolve(dense) == CDR_OK);                         /* a default's group that the model lacks is left out, and said */
    T_HAS(cdr_recipe_from(&s.r, cdr_recipe_key("lora.targets"), s.pool), "has no shared_experts");
    close_session();
}

/* Matrices that something else reads, and names that are wrong, are refused where programs are made too. */
static void compile_refuses(void)
{
    static const struct { const char *param, *text; } bad[] = {
        { "language_model.model.embed_tokens.weight", "is read by the operator embedding" }, { "language_model.lm_head.weight", "is read by the operator loss" },
        { "language_model.model.layers.0.self_attn.q_conv1d.weight", "is read by the operator short_conv" },
        { "language_model.model.norm.weight", "adapters are of matrices" },
        { "nothing", "the model has no parameter nothing" } };
    for (int i = 0; i < CDR_COUNT(bad); i++) {
        cdr_pool *pool = cdr_pool_new();
        cdr_model *m;
        cdr_bundle b;
        cdr_pairs sizes = { lora_sizes, CDR_COUNT(lora_sizes) };
        cdr_model_spec spec = { .path = "tiny-k31", .sizes = &sizes };
        lora_run c = lora_default();
        err = (cdr_err){ 0 };
        T_CHECK(cdr_model_load(&spec, pool, &m, &err) == CDR_OK);
        cdr_builder builder = cdr_model_builder(m);
        cdr_compile_opts o = lora_opts(&c, 0);
        lora_choose(&c, m, pool, &o);
        cdr_adapter one = { bad[i].param, 4, 1, CDR_ADAPTER_EACH };
        o.adapters = &one;
        o.n_adapters = 1;
        T_CHECK(cdr_compile(&o, &builder, pool, &b, &err) == CDR_EUSER);
        T_STR(err.id, "lora.target");
        T_HAS(err.text, bad[i].text);
        cdr_pool_free(pool);
    }
}

/* ---- runs ---- */
static const char recipe[] =
    "model: {path: tiny-k31, weights: random, sizes: {hidden: 32, n_layers: 4, full_layers: '[2, 4]', attn_block: 2, kda.heads: 2, kda.dim: 16, mla.heads: 2,\n"
    "  mla.q_lora: 16, mla.kv_lora: 16, mla.nope: 8, mla.ext: 8, mla.v: 16, index.heads: 2, index.dim: 8, index.top_k: 12, glu.width: 48, moe.experts: 8,\n"
    "  moe.top_k: 2, moe.latent: 32, moe.width: 32}}\n"
    "data: {train: %s/text.txt, eval_fraction: 0.1}\n"
    "train: {sequence_length: 64, micro_batch_tokens: 64, global_batch_tokens: 256}\n"
    "schedule: {horizon: 4}\ncheckpoint: {every: none}\neval: {every: none}\nmachine: {threads: 1}\n"
    "lora: {rank: 4, experts: per_expert}\n";


static void save_resume_and_go_on_to_the_bit(void)
{
    T_CHECK(runf("train %s/r.yaml --out %s/a --steps 4", dir, dir) == 0);
    if (*errors) fprintf(stderr, "  %s", errors);
    T_HAS(out, "lora      module ");
    T_HAS(out, "attention q_proj");
    T_HAS(out, "24 / 24 ");                                    /* three layers of eight experts */
    T_HAS(out, "106 / 106 ");
    T_CHECK(runf("train %s/r.yaml --out %s/b --steps 2", dir, dir) == 0);
    T_CHECK(runf("train %s/r.yaml --out %s/b --steps 4", dir, dir) == 0);
    T_HAS(out, "resumed at step 2");
    T_CHECK(same_files("a/checkpoints/step-000000004/adapter-00000-of-00001.safetensors", "b/checkpoints/step-000000004/adapter-00000-of-00001.safetensors"));
    T_CHECK(same_files("a/checkpoints/step-000000004/optimizer-00000-of-00001.safetensors", "b/checkpoints/step-000000004/optimizer-00000-of-00001.safetensors"));
    T_CHECK(!same_files("b/checkpoints/step-000000002/adapter-00000-of-00001.safetensors", "b/checkpoints/step-000000004/adapter-00000-of-00001.safetensors"));
    const char *manifest = slurp("a/checkpoints/step-000000004/manifest.json", NULL);
    T_HAS(manifest, "language_model.model.layers.1.block_sparse_moe.experts.7.w2.lora_B.weight");
    T_HAS(manifest, "\"adapter\"");
    T_CHECK(!strstr(manifest, "\"weight\"") && !strstr(manifest, "\"bias\""));         /* the base is not saved */
    T_HAS(slurp("a/events.jsonl", NULL), "\"type\":\"lora\"");
    T_HAS(slurp("a/events.jsonl", NULL), "{\"kind\":\"experts w2\",\"matched\":24,\"expected\":24,\"rank\":2,\"parameters\":");
    /* two ranks read what one wrote */
    T_CHECK(runf("train %s/r.yaml --out %s/c --steps 2", dir, dir) == 0);
    T_CHECK(runf("launch -n 2 train %s/r.yaml --out %s/c --steps 3 --ep 2", dir, dir) == 0);
    T_HAS(out, "resumed at step 2");
    T_CHECK(runf("launch -n 2 train %s/r.yaml --out %s/c --steps 4", dir, dir) == 0);
    T_HAS(out, "resumed at step 3");
    T_CHECK(runf("train %s/r.yaml --out %s/c --steps 4", dir, dir) == 0);
    const char *a = strstr(slurp("a/events.jsonl", NULL), "\"step\":4,\"loss\":"), *c = strstr(slurp("c/events.jsonl", NULL), "\"step\":4,\"loss\":");
    T_CHECK(a && c && strncmp(a, c, strcspn(a + 16, ",") + 16) == 0);
}

/* One factor for all experts of a layer: one tensor in a checkpoint; two ranks go on with what one began, and one with that. */
static void shared_factors_are_saved_and_resumed(void)
{
    static const char *const how = "--set lora.experts=shared_outer";
    T_CHECK(runf("train %s/r.yaml --out %s/s --steps 3 %s", dir, dir, how) == 0);
    if (*errors) fprintf(stderr, "  %s", errors);
    T_HAS(out, "24 / 24 ");
    T_HAS(slurp("s/events.jsonl", NULL), "{\"kind\":\"experts w2\",\"matched\":24,\"expected\":24,\"rank\":2,\"parameters\":1728}");     /* 3 x (8 x 2 x 32 + 32 x 2) */
    T_CHECK(runf("train %s/r.yaml --out %s/t --steps 1 %s", dir, dir, how) == 0);
    T_CHECK(runf("launch -n 2 train %s/r.yaml --out %s/t --steps 2 --ep 2 %s", dir, dir, how) == 0);
    T_HAS(out, "resumed at step 1");
    T_CHECK(runf("train %s/r.yaml --out %s/t --steps 3 %s", dir, dir, how) == 0);
    T_CHECK(same_files("s/checkpoints/step-000000003/adapter-00000-of-00001.safetensors", "t/checkpoints/step-000000003/adapter-00000-of-00001.safetensors"));
    T_CHECK(same_files("s/checkpoints/step-000000003/optimizer-00000-of-00001.safetensors", "t/checkpoints/step-000000003/optimizer-00000-of-00001.safetensors"));
    const char *manifest = slurp("s/checkpoints/step-000000003/manifest.json", NULL);
    T_HAS(manifest, "language_model.model.layers.1.block_sparse_moe.experts.w1.lora_A.weight");
    T_HAS(manifest, "language_model.model.layers.1.block_sparse_moe.experts.w2.lora_B.weight");
    T_HAS(manifest, "language_model.model.layers.1.block_sparse_moe.experts.7.w1.lora_B.weight");
    T_CHECK(!strstr(manifest, "experts.7.w1.lora_A") && !strstr(manifest, "experts.7.w2.lora_B") && !strstr(manifest, "{expert}"));
    T_CHECK(runf("generate %s/s --prompt abc --max-new-tokens 4 --temperature 0", dir) == 0);
    T_HAS(out, "abc");
    /* other commands read it so, and what others write goes on */
    T_CHECK(runf("export %s/s --format sglang --allow-drop --out %s/sg", dir, dir) == 0);
    if (*errors) fprintf(stderr, "  %s", errors);
    static const char *const once = "--steps 1 --set optimizer.learning_rate=1e-30 --set precision.compute=f32";
    T_CHECK(runf("train %s/r.yaml --out %s/u %s %s --set lora.adapter=%s/s", dir, dir, once, how, dir) == 0);
    if (*errors) fprintf(stderr, "  %s", errors);
    /* one copy for each expert */
    T_CHECK(runf("train %s/r.yaml --out %s/v %s --set lora.adapter=%s/s", dir, dir, once, dir) == 0);
    T_CHECK(runf("train %s/r.yaml --out %s/w --steps 1 %s --set lora.adapter=%s/a", dir, dir, how, dir) == 1);
    T_HAS(errors, "has a factor for each expert of");
    const char *u = strstr(slurp("u/events.jsonl", NULL), "\"step\":1,\"loss\":"), *v = strstr(slurp("v/events.jsonl", NULL), "\"step\":1,\"loss\":");
    T_CHECK(u && v && fabs(atof(u + 16) - atof(v + 16)) < 1e-5 && atof(u + 16) > 1);
}

static void evaluate_and_generate_with_adapters(void)
{
    const char *events = slurp("a/events.jsonl", NULL), *at = strstr(events, "\"type\":\"eval\"");
    T_CHECK(at != NULL);
    const char *loss = at ? strstr(at, "\"loss\":") : NULL;
    T_CHECK(runf("eval %s/a --json", dir) == 0);
    T_CHECK(loss && strstr(out, cdr_pool_strndup(texts, loss, strcspn(loss, ","))) != NULL);
    T_CHECK(runf("generate %s/a --prompt abc --max-new-tokens 8 --temperature 0", dir) == 0);
    const char *with = out;
    T_HAS(with, "abc");
}

static void what_a_user_gets_wrong(void)
{
    T_CHECK(runf("train %s/r.yaml --out %s/d --steps 1 --set 'lora.targets=[qproj]'", dir, dir) == 1);
    T_HAS(errors, "error: --set lora.targets: lora.targets \"qproj\" matches none of 46 linears. Nearest: q_proj (2)");
    T_HAS(errors, "[lora.no-match]");
    T_CHECK(runf("train %s/r.yaml --out %s/a --steps 5 --set lora=none", dir, dir) == 1);
    T_HAS(errors, "the recipe has no lora section");
    T_CHECK(runf("train %s/r.yaml --out %s/a --steps 5 --set lora.rank=8", dir, dir) == 1);
    T_HAS(errors, "[resume.fixed-key]");
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    open_results();
    T_RUN(one_curve_on_every_layout);                          /* ranks are forked before this process has threads */
    T_RUN(one_curve_with_expert_groups);
    T_RUN(options_of_the_base_hold_with_adapters);
    T_RUN(clipping_without_adapters_on_experts);
    T_RUN(zero_b_is_the_base_to_the_bit);
    T_RUN(packed_experts);
    T_RUN(first_loss_is_the_base_s);
    T_RUN(every_b_moves_and_the_base_does_not);
    T_RUN(indexers_learn_where_they_train);
    T_RUN(layer_one_alone);
    T_RUN(gradients_are_those_of_the_merged_matrix);
    T_RUN(draws_of_a);
    T_RUN(targets_of_recipes);
    T_RUN(targets_that_are_refused);
    T_RUN(compile_refuses);
    char text[sizeof recipe + 600];
    if (!program_open("lora")) return 1;
    FILE *f = fopen(in_dir("text.txt"), "w");
    for (int i = 0; f && i < 2000; i++) fprintf(f, "line %d: the cat sees it, and number %d sees the cat\n", i, i * 7 % 61);
    if (!f || fclose(f) != 0) return 1;
    (void)snprintf(text, sizeof text, recipe, dir);
    put("r.yaml", text);
    T_RUN(save_resume_and_go_on_to_the_bit);
    T_RUN(shared_factors_are_saved_and_resumed);
    T_RUN(evaluate_and_generate_with_adapters);
    T_RUN(what_a_user_gets_wrong);
    program_close();
    return t_end();
}
