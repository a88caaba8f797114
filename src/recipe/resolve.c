/* resolve.c: what follows from a recipe without looking at data or machine (at the end of parse), from the number of ranks,
 * and from the length of the run; then what identifies a training (hash) and what a resume changes (compare).
 *
 *   global_batch_tokens = 2^k x micro_batch_tokens            N = 2^k logical shards a step (spec/spine.md, 5)
 *   n_micro = N / (replicate x shard)                         turns of one rank a step
 * Every value that is resolved keeps why, for `config show` and the notes of the banner.
 */
#include "recipe/recipe.h"

enum { DENSE_BELOW = 16384 };          /* train.dsa_core auto: tokens of a row from which reading selected keys alone pays */

static bool given(const cdr_recipe *r, const char *key)
{
    uint8_t from = r->origin[cdr_recipe_key(key)].from;
    return from == CDR_FROM_FILE || from == CDR_FROM_SET;
}

static const char *at(const cdr_recipe *r, const char *key) { return cdr__recipe_at(r, cdr_recipe_key(key)); }

static bool power_of_two(int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

/* The largest power of two that is at most x, x > 0 */
static int64_t largest_power(int64_t x) { return (int64_t)1 << (63 - __builtin_clzll((uint64_t)x)); }

cdr_status cdr_recipe_derive(cdr_recipe *r, const char *key, const char *value, const char *why, cdr_err *err)
{
    int n, row = cdr_recipe_key(key);
    CDR_CHECK(row >= 0);
    const cdr_key *k = &cdr_recipe_schema(&n)[row];
    char *was = cdr_recipe_value(r, row, r->pool);
    const char *where = cdr__recipe_at(r, row);
    cdr_yaml scalar = { .kind = CDR_YAML_SCALAR, .text = value }, *node = &scalar;
    if (value[0] == '[' || value[0] == '{') CDR_TRY(cdr_yaml_parse(r->pool, value, strlen(value), key, &node, err));
    CDR_TRY(cdr__value_parse(r, k, node, where, err));
    cdr_origin *o = &r->origin[row];
    o->was = o->from == CDR_FROM_DERIVED && o->was ? o->was : was;
    o->from = CDR_FROM_DERIVED;
    o->why = cdr_pool_strdup(r->pool, why);
    return CDR_OK;
}

static cdr_status derive_int(cdr_recipe *r, const char *key, int64_t x, const char *why, cdr_err *err)
{
    return cdr_recipe_derive(r, key, cdr_pool_printf(r->pool, "%lld", (long long)x), why, err);
}

/* Two keys that say one thing. The stronger origin wins; the same origin is an error. a or b is set to none. */
static cdr_status one_of(cdr_recipe *r, const char *a, const char *b, bool a_none, bool b_none, cdr_err *err)
{
    if (a_none && b_none) return CDR_OK;
    int ra = cdr_recipe_key(a), rb = cdr_recipe_key(b);
    uint8_t fa = r->origin[ra].from, fb = r->origin[rb].from;
    if (a_none || b_none) return CDR_OK;
    if (fa == fb && fa != CDR_FROM_DEFAULT)
        CDR_FAIL_ID(err, CDR_EUSER, "config.one-of", "%s: %s and %s are both given; they say the same thing. Keep one", at(r, b), a, b);
    const char *lost = fa > fb ? b : a, *won = fa > fb ? a : b;
    return cdr_recipe_derive(r, lost, "none", cdr_pool_printf(r->pool, "%s is given", won), err);
}

static cdr_status resolve_batch(cdr_recipe *r, cdr_err *err)
{
    if (r->train.micro_batch_tokens == CDR_AUTO)
        CDR_TRY(derive_int(r, "train.micro_batch_tokens", r->train.sequence_length, "one row of sequence_length", err));
    int64_t seq = r->train.sequence_length, micro = r->train.micro_batch_tokens;
    if (micro % seq != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.batch", "%s: train.micro_batch_tokens is %lld, no multiple of train.sequence_length %lld. Take a multiple",
                    at(r, "train.micro_batch_tokens"), (long long)micro, (long long)seq);
    if (r->train.global_batch_tokens == CDR_AUTO && r->train.gradient_accumulation_steps == CDR_UNSET)
        CDR_TRY(derive_int(r, "train.global_batch_tokens", 16 * micro, "16 micro-batches", err));
    int64_t global = r->train.global_batch_tokens;
    if (global > 0 && (global % micro != 0 || !power_of_two(global / micro)))
        CDR_FAIL_ID(err, CDR_EUSER, "config.batch", "%s: train.global_batch_tokens is %lld, no power of two times train.micro_batch_tokens %lld; "
                    "logical shards are merged in a binary tree. The nearest smaller one is %lld", at(r, "train.global_batch_tokens"), (long long)global,
                    (long long)micro, (long long)(global < micro ? micro : micro << (63 - __builtin_clzll((uint64_t)(global / micro)))));
    if (r->data.max_docs == CDR_AUTO) {
        int64_t docs = seq / 64 > 1 ? seq / 64 : 1;
        CDR_TRY(derive_int(r, "data.max_docs", docs, "sequence_length / 64", err));
    }
    return CDR_OK;
}

static cdr_status resolve_optimizer(cdr_recipe *r, cdr_err *err)
{
    bool lora = r->lora.on, full = r->model.weights == CDR_WEIGHTS_AUTO && cdr_is_dir(r->model.path);
    const char *why = lora ? "LoRA" : full ? "full fine-tuning" : "from scratch";
    if (r->optimizer.learning_rate < 0) CDR_TRY(cdr_recipe_derive(r, "optimizer.learning_rate", lora ? "2e-4" : full ? "1e-5" : "1e-3", why, err));
    if (r->optimizer.weight_decay < 0) CDR_TRY(cdr_recipe_derive(r, "optimizer.weight_decay", lora || full ? "0" : "0.1", why, err));
    if (lora && r->optimizer.name == CDR_OPT_MUON) cdr__recipe_note(r, "optimizer.name muon: adapters are trained by AdamW");
    if (r->optimizer.beta1 >= 1 || r->optimizer.beta2 >= 1)
        CDR_FAIL_ID(err, CDR_EUSER, "config.out-of-range", "%s: optimizer.%s is 1; the moment would never change. Take less than 1",
                    at(r, r->optimizer.beta1 >= 1 ? "optimizer.beta1" : "optimizer.beta2"), r->optimizer.beta1 >= 1 ? "beta1" : "beta2");
    return CDR_OK;
}

static cdr_status less_than_one(const cdr_recipe *r, const char *key, double x, const char *why, cdr_err *err)
{
    if (x >= 1) CDR_FAIL_ID(err, CDR_EUSER, "config.out-of-range", "%s: %s is 1; %s. Take less than 1", at(r, key), key, why);
    return CDR_OK;
}

/* What sparse models ask: by sequence_length and the kind of training alone, never by a local shape. */
static cdr_status resolve_sparse(cdr_recipe *r, cdr_err *err)
{
    if (r->train.dsa_core == CDR_DSA_AUTO) {
        bool dense = r->train.sequence_length < DENSE_BELOW;
        const char *why = dense ? "sequence_length is below 16,384" : "sequence_length is 16,384 or more";
        CDR_TRY(cdr_recipe_derive(r, "train.dsa_core", dense ? "dense" : "gathered", why, err));
    }
    if (r->train.indexer == CDR_TRAIN_INDEXER_AUTO)
        CDR_TRY(cdr_recipe_derive(r, "train.indexer", r->lora.on ? "frozen" : "train", r->lora.on ? "LoRA" : "no LoRA", err));
    if (r->train.balance == CDR_BAL_AUX && !given(r, "train.aux_loss_coef")) CDR_TRY(cdr_recipe_derive(r, "train.aux_loss_coef", "0.001", "balance is aux", err));
    if (r->train.balance == CDR_BAL_AUX && r->train.aux_loss_coef == 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.no-balance", "%s: train.balance is aux, but train.aux_loss_coef is 0: nothing would balance the load. "
                    "Take train.balance=none, or a coefficient above 0", at(r, "train.aux_loss_coef"));
    if (r->train.indexer == CDR_TRAIN_INDEXER_FROZEN && r->train.indexer_warmup_steps > 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.indexer-frozen", "%s: train.indexer_warmup_steps is %lld, but train.indexer is frozen; the warm-up is for indexers "
                    "that train. Keep one", at(r, "train.indexer_warmup_steps"), (long long)r->train.indexer_warmup_steps);
    CDR_TRY(less_than_one(r, "train.balance_ema", r->train.balance_ema, "the bias would never change", err));
    return less_than_one(r, "optimizer.muon_momentum", r->optimizer.muon_momentum, "the momentum would grow without bound", err);
}

/* Under LoRA the base is frozen, and with it routers and their biases. */
static cdr_status resolve_lora(cdr_recipe *r, cdr_err *err)
{
    const cdr_strings *t = &r->train.trainable;
    if (!r->lora.on) return CDR_OK;
    if (r->lora.alpha < 0) CDR_TRY(derive_int(r, "lora.alpha", 2 * r->lora.rank, "2 * rank", err));
    if (r->lora.dropout != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "lora.dropout", "%s: lora.dropout is %g; stacked expert adapters do not allow dropout, so only 0 is taken", at(r, "lora.dropout"),
                    r->lora.dropout);
    if (!given(r, "train.trainable")) CDR_TRY(cdr_recipe_derive(r, "train.trainable", "[none]", "LoRA", err));
    else if (t->n != 1 || strcmp(t->s[0], "none") != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.not-in-version", "%s: train.trainable names base parameters beside a lora section; this version trains adapters alone. "
                    "Set it to none, or lora: none", at(r, "train.trainable"));
    if (r->train.balance == CDR_BAL_AUTO) CDR_TRY(cdr_recipe_derive(r, "train.balance", "none", "LoRA: routers and their biases are frozen", err));
    if (r->train.balance == CDR_BAL_QUANTILE || r->train.balance == CDR_BAL_SIGN)
        CDR_FAIL_ID(err, CDR_EUSER, "lora.balance", "%s: train.balance moves the routers' biases, which LoRA freezes. Use none, or aux", at(r, "train.balance"));
    return CDR_OK;
}

/* all and none stand alone; a base without trained parameters is for adapters. */
static cdr_status check_trainable(const cdr_recipe *r, cdr_err *err)
{
    const cdr_strings *t = &r->train.trainable;
    if (r->lora.on) return CDR_OK;
    if (t->n == 0 || (t->n == 1 && strcmp(t->s[0], "none") == 0))
        CDR_FAIL_ID(err, CDR_EUSER, "config.nothing-trains", "%s: train.trainable is none, so nothing would train. Name what trains, or take all",
                    at(r, "train.trainable"));
    for (int i = 0; i < t->n && t->n > 1; i++)
        if (strcmp(t->s[i], "all") == 0 || strcmp(t->s[i], "none") == 0)
            CDR_FAIL_ID(err, CDR_EUSER, "config.bad-value", "%s: train.trainable: %s stands alone, without patterns", at(r, "train.trainable"), t->s[i]);
    return CDR_OK;
}

/* The expert axis is carved out of shard x context; what is left of it is expert-FSDP. */
static cdr_status check_expert(const cdr_recipe *r, int64_t shard, cdr_err *err)
{
    int64_t ep = r->parallel.expert, ranks = shard * r->parallel.context;
    const char *where = at(r, "parallel.expert");
    if (!power_of_two(ep))
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.power-of-two", "%s: parallel.expert is %lld: widths are powers of two, since logical shards are merged in a binary "
                    "tree. Take %lld", where, (long long)ep, (long long)largest_power(ep));
    if (ranks > 0 && ranks % ep != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.expert", "%s: parallel.expert is %lld, which does not divide shard %lld x context %lld = %lld ranks: expert groups are "
                    "carved out of them. Take a power of two up to %lld, or more ranks", where, (long long)ep, (long long)shard, (long long)r->parallel.context,
                    (long long)ranks, (long long)1 << __builtin_ctzll((uint64_t)ranks));
    return CDR_OK;
}

static cdr_status check_held_out(const cdr_recipe *r, cdr_err *err)
{
    if (!r->data.eval.none && r->data.eval_fraction > 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.one-of", "%s: data.eval_fraction is for runs without data.eval. Keep one", at(r, "data.eval_fraction"));
    if (r->eval.every.steps > 0 && r->data.eval.none && r->data.eval_fraction == 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.no-held-out", "%s: eval.every is %lld, but there is no held-out data. Set data.eval_fraction or data.eval",
                    at(r, "eval.every"), (long long)r->eval.every.steps);
    if (r->eval.at_start && r->data.eval.none && r->data.eval_fraction == 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.no-held-out", "%s: eval.at_start is true, but there is no held-out data. Set data.eval_fraction or data.eval",
                    at(r, "eval.at_start"));
    if (r->generate.every.steps > 0 && r->generate.prompts.n == 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.no-prompts", "%s: generate.every is %lld, but generate.prompts is empty. Add a prompt",
                    at(r, "generate.every"), (long long)r->generate.every.steps);
    return CDR_OK;
}

cdr_status cdr__recipe_resolve(cdr_recipe *r, cdr_err *err)
{
    CDR_TRY(one_of(r, "train.steps", "train.epochs", r->train.steps == CDR_UNSET, r->train.epochs < 0, err));
    if (r->train.steps == CDR_UNSET && r->train.epochs < 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.one-of", "%s: neither train.steps nor train.epochs is given", at(r, "train.epochs"));
    CDR_TRY(one_of(r, "schedule.warmup_steps", "schedule.warmup_ratio", r->schedule.warmup_steps == CDR_UNSET, r->schedule.warmup_ratio < 0, err));
    if (r->schedule.warmup_steps == CDR_UNSET && r->schedule.warmup_ratio < 0) CDR_TRY(derive_int(r, "schedule.warmup_steps", 0, "no warm-up is given", err));
    CDR_TRY(resolve_batch(r, err));
    CDR_TRY(resolve_optimizer(r, err));
    CDR_TRY(resolve_lora(r, err));
    CDR_TRY(resolve_sparse(r, err));
    CDR_TRY(check_trainable(r, err));
    if (r->generate.seed == CDR_AUTO) CDR_TRY(derive_int(r, "generate.seed", r->seed, "seed", err));
    CDR_TRY(check_held_out(r, err));
    CDR_TRY(check_expert(r, r->parallel.shard > 0 ? r->parallel.shard : 0, err));
    if (r->train.steps != CDR_UNSET) CDR_TRY(cdr_recipe_resolve_steps(r, 0, err));
    return CDR_OK;
}

cdr_status cdr_recipe_resolve_steps(cdr_recipe *r, int64_t steps_of_epochs, cdr_err *err)
{
    cdr_pool *p = r->pool;
    if (r->train.steps == CDR_UNSET) {
        char *epochs = cdr_recipe_value(r, cdr_recipe_key("train.epochs"), p);
        CDR_TRY(derive_int(r, "train.steps", steps_of_epochs, cdr_pool_printf(p, "%s epochs of the data", epochs), err));
        CDR_TRY(cdr_recipe_derive(r, "train.epochs", "none", cdr_pool_printf(p, "%s epochs are train.steps", epochs), err));
    }
    int64_t steps = r->train.steps;
    if (r->schedule.horizon == CDR_AUTO && steps > 0) CDR_TRY(derive_int(r, "schedule.horizon", steps, "train.steps", err));
    if (r->schedule.warmup_steps == CDR_UNSET && r->schedule.horizon > 0) {
        char *ratio = cdr_recipe_value(r, cdr_recipe_key("schedule.warmup_ratio"), p);
        int64_t n = (int64_t)((double)r->schedule.horizon * r->schedule.warmup_ratio + 0.5);
        CDR_TRY(derive_int(r, "schedule.warmup_steps", n, cdr_pool_printf(p, "%s of %lld steps", ratio, (long long)r->schedule.horizon), err));
        CDR_TRY(cdr_recipe_derive(r, "schedule.warmup_ratio", "none", "said by warmup_steps", err));
    }
    if (steps > 0 && r->schedule.warmup_steps > steps)
        cdr__recipe_note(r, "schedule.warmup_steps %lld is more than train.steps %lld: the peak learning rate is not reached", (long long)r->schedule.warmup_steps,
                         (long long)steps);
    return CDR_OK;
}

/* ---- ranks ---------------------------------------------------------------------------------------------------------------- */

static cdr_status resolve_mesh(cdr_recipe *r, int n_ranks, cdr_err *err)
{
    int64_t rep = r->parallel.replicate;
    if (r->machine.devices > 0 && r->machine.devices != n_ranks)
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.ranks", "%s: machine.devices is %lld, but there are %d ranks. Start as many, or set machine.devices=auto",
                    at(r, "machine.devices"), (long long)r->machine.devices, n_ranks);
    if (r->parallel.shard == CDR_AUTO) {
        if (n_ranks % rep != 0)
            CDR_FAIL_ID(err, CDR_EUSER, "parallel.ranks", "%s: parallel.replicate is %lld, which does not divide %d ranks", at(r, "parallel.replicate"),
                        (long long)rep, n_ranks);
        CDR_TRY(derive_int(r, "parallel.shard", n_ranks / rep, cdr_pool_printf(r->pool, "%d ranks / replicate %lld", n_ranks, (long long)rep), err));
    }
    if (rep * r->parallel.shard != n_ranks)
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.ranks", "%s: replicate %lld x shard %lld is %lld ranks, but there %s %d. Start them with cadre launch -n %lld, "
                    "or set parallel.shard=auto", at(r, given(r, "parallel.shard") ? "parallel.shard" : "parallel.replicate"), (long long)rep,
                    (long long)r->parallel.shard, (long long)(rep * r->parallel.shard), n_ranks == 1 ? "is" : "are", n_ranks,
                    (long long)(rep * r->parallel.shard));
    if (!power_of_two(rep) || !power_of_two(r->parallel.shard)) {
        const bool by_devices = power_of_two(rep) && !given(r, "parallel.shard") && given(r, "machine.devices");
        const int64_t bad = power_of_two(rep) ? r->parallel.shard : rep, below = largest_power(bad);
        CDR_FAIL_ID(err, CDR_EUSER, "parallel.power-of-two", "%s: replicate %lld x shard %lld: widths are powers of two, since logical shards are merged in a "
                    "binary tree%s. Take a %s of %lld or %lld", at(r, by_devices ? "machine.devices" : power_of_two(rep) ? "parallel.shard" : "parallel.replicate"),
                    (long long)rep, (long long)r->parallel.shard, r->train.reduce == CDR_REDUCE_TREE ? "" : ": between ranks with train.reduce=free too",
                    power_of_two(rep) ? "shard" : "replicate", (long long)below, (long long)(2 * below));
    }
    if (r->parallel.expert_placement == CDR_EXPERTS_AUTO) CDR_TRY(cdr_recipe_derive(r, "parallel.expert_placement", "home", "each expert on one rank of its group", err));
    return check_expert(r, r->parallel.shard, err);
}

cdr_status cdr_recipe_resolve_ranks(cdr_recipe *r, int n_ranks, cdr_err *err)
{
    CDR_TRY(resolve_mesh(r, n_ranks, err));
    int64_t n_data = r->parallel.replicate * r->parallel.shard, micro = r->train.micro_batch_tokens, ga = r->train.gradient_accumulation_steps;
    if (ga != CDR_UNSET) {
        const char *where = at(r, "train.gradient_accumulation_steps");
        int64_t global = ga * micro * n_data;
        if (!power_of_two(ga))
            CDR_FAIL_ID(err, CDR_EUSER, "config.batch", "%s: train.gradient_accumulation_steps is %lld; it is a power of two, since logical shards are merged "
                        "in a binary tree", where, (long long)ga);
        if (r->train.global_batch_tokens != CDR_AUTO && r->train.global_batch_tokens != global)
            CDR_FAIL_ID(err, CDR_EUSER, "config.one-of", "%s: %lld accumulation steps x %lld tokens x %lld data ranks are %lld tokens a step, but "
                        "train.global_batch_tokens is %lld. Keep one of the two", where, (long long)ga, (long long)micro, (long long)n_data, (long long)global,
                        (long long)r->train.global_batch_tokens);
        CDR_TRY(derive_int(r, "train.global_batch_tokens", global, cdr_pool_printf(r->pool, "%lld accumulation steps x %lld tokens x %lld data ranks",
                           (long long)ga, (long long)micro, (long long)n_data), err));
        CDR_TRY(cdr_recipe_derive(r, "train.gradient_accumulation_steps", "none", "said by global_batch_tokens", err));
    }
    int64_t n_shards = r->train.global_batch_tokens / micro;
    if (n_shards % n_data != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.batch", "%s: train.global_batch_tokens is %lld, %lld micro-batches of %lld; %lld data ranks need at least one each. "
                    "Take fewer ranks, or a larger batch", at(r, "train.global_batch_tokens"), (long long)r->train.global_batch_tokens, (long long)n_shards,
                    (long long)micro, (long long)n_data);
    r->ranks.n_ranks = n_ranks;
    r->ranks.n_data = n_data;
    r->ranks.n_micro = n_shards / n_data;
    return CDR_OK;
}

/* ---- identity -------------------------------------------------------------------------------------------------------------- */

uint64_t cdr_recipe_hash(const cdr_recipe *r)
{
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    cdr_text t = { 0 };
    if (r->lora.on) cdr_text_printf(&t, "lora\n");
    for (int i = 0; i < n; i++) {
        if (k[i].resume != 'F') continue;
        cdr_text_printf(&t, "%s=", k[i].key);
        cdr__value_print(&t, r, &k[i]);
        cdr_text_append(&t, "\n", 1);
    }
    uint64_t h = cdr_hash64(t.s, t.n, 0);
    cdr_text_free(&t);
    return h;
}

static cdr_status check_allowed(const cdr_resume_spec *s, cdr_pool *pool, cdr_err *err)
{
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    const char **names = cdr_pool_alloc(pool, sizeof *names * (size_t)n);
    for (int i = 0; i < n; i++) names[i] = k[i].key;
    for (int i = 0; i < s->n_allow; i++)
        if (cdr_recipe_key(s->allow[i]) < 0)
            CDR_FAIL_ID(err, CDR_EUSAGE, "config.unknown-key", "--allow-change: unknown key %s.%s", s->allow[i], cdr_nearest(pool, s->allow[i], names, n));
    return CDR_OK;
}

cdr_status cdr_recipe_compare(const cdr_recipe *now, const cdr_recipe *old, const cdr_resume_spec *s, cdr_recipe_diff *d, cdr_err *err)
{
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    int64_t cap = 0, count = 0;
    *d = (cdr_recipe_diff){ .bit_equal = true };
    CDR_TRY(check_allowed(s, now->pool, err));
    if (now->lora.on != old->lora.on)
        CDR_FAIL_ID(err, CDR_EUSER, "resume.fixed-key", "%s: the recipe has %s lora section, %s (step %lld) had %s: another training. Take another --out", now->where,
                    now->lora.on ? "a" : "no", s->run, (long long)s->step, now->lora.on ? "none" : "one");
    /* What the recipe says before what follows from it, so that the message names what was changed (sequence_length, not max_docs). */
    for (int turn = 0; turn < 2 * n; turn++) {
        int i = turn % n;
        if ((now->origin[i].from == CDR_FROM_DERIVED) != (turn >= n)) continue;
        char *a = cdr_recipe_value(old, i, now->pool), *b = cdr_recipe_value(now, i, now->pool);
        if (strcmp(a, b) == 0) continue;
        bool allowed = false;
        for (int j = 0; j < s->n_allow; j++) allowed = allowed || strcmp(s->allow[j], k[i].key) == 0;
        if (k[i].resume == 'F' && !allowed) {
            const char *where = cdr__recipe_at(now, i);
            bool named = strstr(where, k[i].key) != NULL && now->origin[i].from != CDR_FROM_FILE;
            CDR_FAIL_ID(err, CDR_EUSER, "resume.fixed-key", "%s: %s%sis %s, was %s in %s (step %lld), and is fixed for a run. Set it back, take another --out, "
                        "or --allow-change %s", where, named ? "" : k[i].key, named ? "" : " ", b, a, s->run, (long long)s->step, k[i].key);
        }
        if (k[i].resume == 'F' || k[i].resume == 'R') d->bit_equal = false;
        cdr_recipe_change *c = CDR_PUSH(now->pool, d->c, count, cap);
        *c = (cdr_recipe_change){ .row = i, .old_value = a, .new_value = b, .allowed = allowed };
    }
    d->n = (int)count;
    return CDR_OK;
}
