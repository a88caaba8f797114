/* test_recipe.c: the recipe from text to fields: provenance, messages word for word, resolution, resume classes. */
#include "recipe/recipe.h"
#include "test.h"

static cdr_pool *pool;
static cdr_err err;
static cdr_recipe r;

#define BASE "model: {path: tiny-dense}\ndata: {train: data/a.txt}\n"

static cdr_status parse_with(const char *text, const char *const *set, int n_set)
{
    cdr_common c = { .set = set, .n_set = n_set };
    cdr_recipe_text t = { .text = text, .bytes = strlen(text), .where = "tiny.yaml", .stem = "tiny" };
    err = (cdr_err){ 0 };
    return cdr_recipe_parse(&t, &c, pool, &r, &err);
}
static cdr_status parse(const char *text) { return parse_with(text, NULL, 0); }
static const char *value(const char *key) { return cdr_recipe_value(&r, cdr_recipe_key(key), pool); }
static const char *from(const char *key) { return cdr_recipe_from(&r, cdr_recipe_key(key), pool); }

static void refused(const char *text, const char *id, const char *words)
{
    cdr_status st = parse(text);
    T_CHECK(st != CDR_OK);
    T_STR(err.id, id);
    T_HAS(err.text, words);
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

static const char *const all_keys[] = {
    "version", "name", "seed", "output_dir", "model.path", "model.weights", "model.sizes", "model.layers", "model.indexer", "model.vision", "data.train",
    "data.eval", "data.eval_fraction", "data.format", "data.tokenizer", "data.chat_format", "data.chat_options.thinking", "data.chat_options.thinking_effort",
    "data.chat_options.system", "data.chat_options.tools", "data.train_on", "data.train_eos", "data.mask_think", "data.untrained", "data.long_samples",
    "data.max_docs", "data.pack", "data.pack_window", "data.shuffle", "data.threads", "data.cache", "data.image_root", "data.image_max_patches", "train.steps",
    "train.epochs", "train.max_time", "train.sequence_length", "train.micro_batch_tokens", "train.global_batch_tokens", "train.gradient_accumulation_steps",
    "train.reduce", "train.dsa_core", "train.trainable", "train.freeze", "train.balance", "train.balance_bins", "train.balance_ema", "train.balance_rate",
    "train.aux_loss_coef", "train.indexer", "train.indexer_warmup_steps", "train.indexer_loss_coef", "train.on_nonfinite", "optimizer.name",
    "optimizer.learning_rate", "optimizer.weight_decay", "optimizer.beta1", "optimizer.beta2", "optimizer.eps", "optimizer.max_grad_norm",
    "optimizer.muon_momentum", "optimizer.muon_nesterov", "optimizer.muon_iterations", "optimizer.muon_scale", "optimizer.muon_per_head", "optimizer.groups",
    "schedule.name", "schedule.horizon", "schedule.warmup_steps", "schedule.warmup_ratio", "schedule.min_lr_ratio", "schedule.decay_ratio",
    "schedule.decay_shape", "lora.rank", "lora.alpha", "lora.scaling", "lora.targets", "lora.exclude", "lora.layers", "lora.rank_pattern",
    "lora.alpha_pattern", "lora.experts", "lora.expert_rank", "lora.init", "lora.dropout", "lora.adapter", "lora.serve_with", "parallel.replicate",
    "parallel.shard", "parallel.context", "parallel.expert", "parallel.tensor", "parallel.pipeline", "parallel.transport", "parallel.reshard_after_forward",
    "parallel.prefetch", "parallel.expert_placement", "parallel.dispatch_factor", "parallel.head", "parallel.hash_every", "parallel.timeout", "memory.device_limit",
    "memory.host_limit", "memory.disk_limit", "memory.policy", "memory.rules", "memory.loss_chunk_tokens", "memory.loss_chunk_vocab",
    "memory.layer_chunk_tokens", "memory.swap_dir", "memory.swap_ring", "memory.weights", "precision.compute", "precision.params", "precision.experts",
    "precision.attention_output", "precision.gather", "precision.reduce", "precision.dispatch", "precision.saved", "precision.qat", "checkpoint.every",
    "checkpoint.at_end", "checkpoint.keep", "checkpoint.resume", "checkpoint.async", "checkpoint.final", "checkpoint.signals.save",
    "checkpoint.signals.save_exit", "log.every", "log.router_every", "log.level", "log.color", "log.profile", "log.tensorboard", "log.prometheus", "log.board",
    "eval.every", "eval.at_start", "eval.tokens", "generate.every", "generate.prompts", "generate.max_new_tokens", "generate.temperature", "generate.top_p",
    "generate.top_k", "generate.stop", "generate.seed", "machine.file", "machine.devices", "machine.device", "machine.threads",
};

static void table_has_every_key_of_the_interface(void)
{
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    T_CHECK(n == (int)(sizeof all_keys / sizeof *all_keys));
    for (int i = 0; i < (int)(sizeof all_keys / sizeof *all_keys); i++)
        if (cdr_recipe_key(all_keys[i]) < 0) { T_STR("missing", all_keys[i]); }
    for (int i = 0; i < n; i++) {
        bool sentence = k[i].help && strlen(k[i].help) > 6 && k[i].help[strlen(k[i].help) - 1] == '.';
        if (!sentence) T_STR("no sentence", k[i].key);
        T_CHECK(strchr("FRLC", k[i].resume) != NULL && k[i].resume);
        for (int j = 0; j < i; j++) T_CHECK(k[i].at != k[j].at);             /* two rows never share a field */
        if (k[i].words && (k[i].type == CDR_KEY_ENUM || k[i].type == CDR_KEY_TEXT))
            for (const char *p = k[i].later; p && *p;) {
                size_t len = strcspn(p, "|");
                T_CHECK(cdr__word_in(k[i].words, p, len, NULL));
                p += len + (p[len] == '|');
            }
    }
}

static void defaults_are_in_range_and_read_back(void)
{
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    T_CHECK(parse(BASE) == CDR_OK);
    for (int i = 0; i < n; i++) {
        if (!k[i].def || r.origin[i].from != CDR_FROM_DEFAULT) continue;
        const char *v = cdr_recipe_value(&r, i, pool);
        bool same = strcmp(v, k[i].def) == 0 || (strcmp(k[i].def, "[]") == 0 && strcmp(v, "{}") == 0) || strstr(k[i].def, "{name}") || strcmp(k[i].def, "auto") == 0 ||
                    (k[i].type == CDR_KEY_REAL && strtod(v, NULL) == strtod(k[i].def, NULL));
        if (!same) T_STR(v, k[i].def);
    }
    T_CHECK(r.optimizer.beta2 == 0.95 && r.parallel.timeout == 10 && r.checkpoint.every.seconds == 600 && r.checkpoint.keep == 2);
    T_CHECK(r.data.eval.none && r.eval.tokens == CDR_ALL && r.memory.device_limit == CDR_AUTO && r.train.max_time == (double)CDR_UNSET);
    T_CHECK(r.checkpoint.signals_save_exit.n == 2);
    T_STR(r.checkpoint.signals_save_exit.s[1], "TERM");
}

/* ---- provenance ------------------------------------------------------------------------------------------------------ */

static void origins(void)
{
    static const char *const set[] = { "train.steps=7", "--seed=3", "optimizer.lr=0.5", "--seed=4" };
    T_CHECK(parse_with(BASE "train: {steps: 5, sequence_length: 512}\noptimizer:\n  weight_decay: 0.25\n", set, 4) == CDR_OK);
    T_CHECK(r.train.steps == 7 && r.seed == 4 && r.optimizer.learning_rate == 0.5 && r.optimizer.weight_decay == 0.25);
    T_STR(from("train.steps"), "--set");
    T_STR(r.origin[cdr_recipe_key("train.steps")].flag, "--set train.steps");
    T_STR(from("seed"), "--seed");
    T_STR(from("optimizer.weight_decay"), "recipe tiny.yaml:5");
    T_CHECK(r.origin[cdr_recipe_key("optimizer.weight_decay")].col == 3);
    T_STR(from("optimizer.beta1"), "default");
    T_STR(from("data.max_docs"), "auto: sequence_length / 64");
    T_STR(value("data.max_docs"), "8");
    T_STR(r.name, "tiny");
    T_STR(r.output_dir, "runs/tiny");
    T_HAS(cdr_recipe_show(&r, true, pool), "optimizer.weight_decay");
    T_CHECK(!strstr(cdr_recipe_show(&r, true, pool), "optimizer.beta1"));
}

static void aliases(void)
{
    T_CHECK(parse("model: {base_model: tiny-dense}\ndata: {train: a.txt, val_size: 0.1}\noptimizer: {lr: 1e-3, betas: [0.8, 0.9], clip_grad: 0.5}\n"
                  "train: {max_steps: 9, seq_len: 64}\nparallel: {fsdp: 2, dp_replicate_size: 4}\nschedule: {type: wsd}\n") == CDR_OK);
    T_STR(r.model.path, "tiny-dense");
    T_CHECK(r.optimizer.learning_rate == 1e-3 && r.optimizer.beta1 == 0.8 && r.optimizer.beta2 == 0.9 && r.optimizer.max_grad_norm == 0.5);
    T_CHECK(r.train.steps == 9 && r.train.sequence_length == 64 && r.parallel.shard == 2 && r.parallel.replicate == 4 && r.schedule.name == CDR_SCHED_WSD);
    bool noted = false;
    for (int i = 0; i < r.n_notes; i++) noted = noted || strcmp(r.notes[i], "lr read as optimizer.learning_rate") == 0;
    T_CHECK(noted);
    T_STR(from("optimizer.learning_rate"), "recipe tiny.yaml:3 (lr)");
    refused(BASE "optimizer: {lr: 1e-3, learning_rate: 1e-4}\n", "config.alias-and-key", "optimizer.learning_rate is given twice");
    refused(BASE "train: {max_steps: 1, train_iters: 2}\n", "config.alias-and-key", "tiny.yaml:3:23");
    /* a flag replaces an alias of the file */
    static const char *const set[] = { "optimizer.learning_rate=0.25" };
    T_CHECK(parse_with(BASE "optimizer: {lr: 1e-3}\n", set, 1) == CDR_OK && r.optimizer.learning_rate == 0.25);
}

/* ---- messages --------------------------------------------------------------------------------------------------------- */

static void message_unknown_key(void)
{
    refused("model: {path: tiny-dense}\ndata: {train: a.txt}\noptimizer: {learningrate: 1e-3}\n", "config.unknown-key", "tiny.yaml:3:13");
    T_STR(err.text, "tiny.yaml:3:13: unknown key optimizer.learningrate. Did you mean optimizer.learning_rate?");
    T_CHECK(err.status == CDR_EUSER);
    refused(BASE "optimiser: {beta1: 0.9}\n", "config.unknown-key", "tiny.yaml:3:1: unknown key optimiser. Did you mean optimizer?");
    refused(BASE "sequence_length: 64\n", "config.unknown-key", "Did you mean train.sequence_length?");
    refused(BASE "data2: 1\n", "config.unknown-key", "unknown key data2");
    refused("extends: kimi_k3\nname: mine\n", "config.unknown-key", "unknown key extends. This looks like a model description; a recipe names one in model.path");
    static const char *const set[] = { "train.stepps=5" };
    T_CHECK(parse_with(BASE, set, 1) == CDR_EUSER);
    T_HAS(err.text, "--set train.stepps: unknown key train.stepps. Did you mean train.steps");
}

static void values_out_of_range(void)
{
    refused(BASE "data: {train: b}\n", "yaml.duplicate-key", "data");
    refused(BASE "train: {sequence_length: 100}\n", "config.out-of-range", "tiny.yaml:3:26: train.sequence_length is 100, which is no multiple of 8");
    refused(BASE "train: {steps: -1}\n", "config.out-of-range", "train.steps is -1; its range is at least 0");
    refused(BASE "train: {steps: 1k}\n", "config.bad-value", "train.steps is \"1k\", expected an integer or none");
    refused(BASE "train: {steps: 1.5}\n", "config.bad-value", "1.5");
    refused(BASE "optimizer: {learning_rate: 0}\n", "config.out-of-range", "range is more than 0");
    refused(BASE "optimizer: {learning_rate: nan}\n", "config.bad-value", "nan");
    refused(BASE "optimizer: {beta2: 1}\n", "config.out-of-range", "beta2 is 1");
    refused(BASE "data: {eval_fraction: 0.6}\n", "yaml.duplicate-key", "data");
    refused("model: {path: m}\ndata: {train: a, eval_fraction: 0.6}\n", "config.out-of-range", "its range is 0 to 0.5");
    refused(BASE "schedule: {name: cosin}\n", "config.bad-value", "expected one of: cosine wsd linear constant");
    refused(BASE "checkpoint: {at_end: yes}\n", "config.bad-value", "expected true or false");
    refused(BASE "checkpoint: {every: 0}\n", "config.out-of-range", "at least 1");
    refused(BASE "train: {max_time: 3}\n", "config.bad-value", "expected a duration");
    refused(BASE "train: [1]\n", "config.bad-value", "train is a section");
    refused(BASE "train: 5\n", "config.bad-value", "train is a section");
    refused("data: {train: a.txt}\n", "config.missing-key", "model.path is missing");
    refused("model: {path: m}\n", "config.missing-key", "data.train is missing");
    refused(BASE "version: 2\n", "config.out-of-range", "version is 2");
    refused(BASE "name: Bad Name\n", "config.bad-value", "a-z 0-9");
    refused(BASE "name: ..\n", "config.bad-value", "names a folder");
    refused("- 1\n", "config.not-a-map", "a recipe is a map");
    refused("model: {path: m}\ndata: {train: [{pth: a}]}\n", "config.unknown-key", "unknown key data.train.pth");
    refused("model: {path: m}\ndata: {train: [{path: a, weight: 0}]}\n", "config.bad-value", "weight above 0");
    refused("model: {path: m}\ndata: {train: []}\n", "config.bad-value", "at least one source");
}

static void what_is_not_here_yet_says_so(void)
{
    static const char *const later[] = {
        "parallel: {context: 2}\n", "parallel: {tensor: 2}\n",
        "parallel: {transport: mpi}\n", "parallel: {transport: nccl}\n", "optimizer: {groups: [{match: embed}]}\n", "precision: {saved: fp8}\n",
        "precision: {qat: mxfp4}\n", "model2: 1\n", "memory: {weights: stream}\n", "memory: {rules: [{match: mla.out, policy: keep}]}\n",
        "log: {tensorboard: true}\n", "log: {board: '127.0.0.1:1'}\n", "checkpoint: {final: hf}\n", "memory: {layer_chunk_tokens: 64}\n",
    };
    for (int i = 0; i < (int)(sizeof later / sizeof *later); i++) {
        char text[400];
        snprintf(text, sizeof text, "%s%s", BASE, later[i]);
        T_CHECK(parse(text) == CDR_EUSER);
        const char *want = strncmp(later[i], "model2", 6) == 0 ? "config.unknown-key" : "config.not-in-version";
        if (strcmp(err.id, want) != 0) T_STR(err.text, later[i]);
        if (want[7] == 'n') T_HAS(err.text, "this version");
    }
    T_CHECK(parse("model: {path: m}\ndata: {train: [{path: a, format: messages, train_on: last, columns: {messages: dialog, role: who}}]}\ntrain: {steps: "
        "1}\n") == CDR_OK);
    T_CHECK(r.data.train.s[0].format == CDR_FORMAT_MESSAGES && r.data.train.s[0].train_on == CDR_TRAIN_ON_LAST && r.data.train.s[0].columns.n == 2);
    T_STR(value("data.train"), "[{path: a, name: a, format: messages, train_on: last, columns: {messages: dialog, role: who}}]");
    refused("model: {path: m}\ndata: {train: [{path: a, columns: body}]}\n", "config.bad-value", "columns");
    refused("model: {path: m}\ndata: {train: [{path: a, train_on: first}]}\n", "config.bad-value", "assistant");
    T_CHECK(parse("model: {path: m}\ndata: {train: a, tokenizer: dir/tok}\ntrain: {steps: 1}\n") == CDR_OK);
    T_STR(value("data.tokenizer"), "dir/tok");
    /* what equals the default is no request */
    T_CHECK(parse(BASE "lora: none\nparallel: {context: 1, expert: 1}\nprecision: {experts: stored}\n") == CDR_OK);
}

static void lora_section(void)
{
    T_CHECK(parse(BASE "lora: {}\n") == CDR_OK && r.lora.on);
    T_CHECK(r.lora.rank == 16 && r.lora.alpha == 32 && r.lora.scaling == CDR_LORA_STANDARD && r.lora.targets.n == 3 && r.lora.experts == CDR_LORA_EXPERTS_NONE);
    T_CHECK(r.optimizer.learning_rate == 2e-4 && r.optimizer.weight_decay == 0);
    T_CHECK(r.train.trainable.n == 1 && strcmp(r.train.trainable.s[0], "none") == 0 && r.train.balance == CDR_BAL_NONE && r.train.indexer == CDR_TRAIN_INDEXER_FROZEN);
    uint64_t with = cdr_recipe_hash(&r);
    char *yaml = cdr_recipe_yaml(&r, pool);
    T_HAS(yaml, "\nlora:\n  rank: 16");
    T_CHECK(parse(yaml) == CDR_OK && r.lora.on && cdr_recipe_hash(&r) == with);        /* what a checkpoint keeps reads back the same */
    T_CHECK(parse(BASE "lora:\n") == CDR_OK && r.lora.on);
    T_CHECK(parse(BASE "lora: none\n") == CDR_OK && !r.lora.on && r.optimizer.learning_rate == 1e-3 && r.train.indexer == CDR_TRAIN_INDEXER_TRAIN);
    T_CHECK(cdr_recipe_hash(&r) != with && !strstr(cdr_recipe_yaml(&r, pool), "\nlora:"));
    T_CHECK(parse(BASE "lora: {r: 8, lora_alpha: 4, use_rslora: true, target_modules: [q_proj, o_proj], rank_pattern: {q_proj: 4}}\n") == CDR_OK);
    T_CHECK(r.lora.rank == 8 && r.lora.alpha == 4 && r.lora.scaling == CDR_LORA_RSLORA && r.lora.targets.n == 2 && r.lora.rank_pattern.n == 1);
    T_CHECK(parse(BASE "lora: {rank: 8}\noptimizer: {learning_rate: 1.0e-3, weight_decay: 0.1}\n") == CDR_OK && r.lora.alpha == 16 && r.optimizer.weight_decay == 0.1);
    refused(BASE "lora: {dropout: 0.1}\n", "lora.dropout", "do not allow dropout");
    refused(BASE "lora: {}\ntrain: {trainable: [norms]}\n", "config.not-in-version", "adapters alone");
    refused(BASE "lora: {}\ntrain: {balance: quantile}\n", "lora.balance", "LoRA freezes");
    refused(BASE "lora: {rank: 0}\n", "config.out-of-range", "lora.rank");
    refused(BASE "lora: on\n", "config.bad-value", "is a section");
    refused(BASE "lora: {targetz: [a]}\n", "config.unknown-key", "lora.targets");
    cdr_recipe without;
    T_CHECK(parse(BASE) == CDR_OK);
    without = r;
    T_CHECK(parse(BASE "lora: {}\n") == CDR_OK);
    cdr_resume_spec spec = { .run = "runs/a", .step = 3 };
    cdr_recipe_diff d;
    T_CHECK(cdr_recipe_compare(&r, &without, &spec, &d, &err) == CDR_EUSER);
    T_HAS(err.text, "has a lora section");
}

static void sparse_models_and_muon(void)
{
    T_CHECK(parse(BASE "train: {balance: quantile, balance_bins: 500, balance_ema: 0.5, freeze: [embed, 're:.*norm.*'], trainable: [attention, router], "
                  "indexer_warmup_steps: 5, indexer_loss_coef: 2}\noptimizer: {name: muon, muon_momentum: 0.9, muon_nesterov: false, muon_iterations: 3, "
                  "muon_scale: 0.3, muon_per_head: false}\nlog: {router_every: 0}\nmodel2: 1\n") != CDR_OK);
    T_CHECK(parse(BASE "train: {balance: quantile, balance_bins: 500, balance_ema: 0.5, freeze: [embed, 're:.*norm.*'], trainable: [attention, router], "
                  "indexer_warmup_steps: 5, indexer_loss_coef: 2}\noptimizer: {name: muon, muon_momentum: 0.9, muon_nesterov: false, muon_iterations: 3, "
                  "muon_scale: 0.3, muon_per_head: false}\nlog: {router_every: 0}\n") == CDR_OK);
    T_CHECK(r.train.balance == CDR_BAL_QUANTILE && r.train.balance_bins == 500 && r.train.balance_ema == 0.5 && r.train.freeze.n == 2 && r.train.trainable.n == 2);
    T_STR(r.train.freeze.s[1], "re:.*norm.*");
    T_CHECK(r.train.indexer_warmup_steps == 5 && r.train.indexer_loss_coef == 2 && r.train.indexer == CDR_TRAIN_INDEXER_TRAIN && r.log.router_every == 0);
    T_CHECK(r.optimizer.name == CDR_OPT_MUON && r.optimizer.muon_momentum == 0.9 && !r.optimizer.muon_nesterov && r.optimizer.muon_iterations == 3);
    T_CHECK(r.optimizer.muon_scale == 0.3 && r.optimizer.muon_per_head == CDR_PER_HEAD_FALSE && r.train.aux_loss_coef == 0);
    T_CHECK(parse(BASE "train: {sequence_length: 16376}\n") == CDR_OK && r.train.dsa_core == CDR_DSA_DENSE);
    T_CHECK(parse(BASE "train: {sequence_length: 16384}\n") == CDR_OK && r.train.dsa_core == CDR_DSA_GATHERED);
    T_STR(from("train.dsa_core"), "auto: sequence_length is 16,384 or more");
    T_CHECK(parse(BASE "train: {sequence_length: 16384, dsa_core: dense}\n") == CDR_OK && r.train.dsa_core == CDR_DSA_DENSE);
    T_CHECK(parse(BASE "train: {balance: aux}\n") == CDR_OK && r.train.aux_loss_coef == 0.001);
    T_CHECK(parse(BASE "train: {balance: aux, aux_loss_coef: 0.02}\n") == CDR_OK && r.train.aux_loss_coef == 0.02);
    refused(BASE "train: {balance: aux, aux_loss_coef: 0}\n", "config.no-balance", "train.balance is aux, but train.aux_loss_coef is 0");
    refused(BASE "train: {indexer: frozen, indexer_warmup_steps: 5}\n", "config.indexer-frozen", "train.indexer is frozen");
    refused(BASE "train: {trainable: none}\n", "config.nothing-trains", "nothing would train");
    refused(BASE "train: {trainable: [all, embed]}\n", "config.bad-value", "all stands alone");
    refused(BASE "train: {balance_ema: 1}\n", "config.out-of-range", "train.balance_ema is 1; the bias would never change");
    refused(BASE "train: {balance_bins: 63}\n", "config.out-of-range", "64");
    refused(BASE "train: {balance_rate: 0}\n", "config.out-of-range", "more than 0");
    refused(BASE "optimizer: {muon_momentum: 1}\n", "config.out-of-range", "optimizer.muon_momentum is 1");
    refused(BASE "optimizer: {name: lion}\n", "config.bad-value", "adamw");
}

static void flags(void)
{
    static const char *const set[] = { "data.train.0.path=b.txt", "data.train.1.path=c.txt", "data.train.1.weight=2", "generate.prompts.0=hello: [x",
                                       "model.sizes.kda.heads=4",
                                       "checkpoint.signals.save=[USR2]", "data.eval=held.txt", "generate.stop=[a, b]" };
    T_CHECK(parse_with(BASE "generate: {every: 5}\neval: {every: 3}\n", set, 8) == CDR_OK);
    T_CHECK(r.data.train.n == 2 && r.data.train.s[1].weight == 2);
    T_STR(r.data.train.s[0].path, "b.txt");
    T_STR(r.data.train.s[1].name, "c");
    T_STR(r.generate.prompts.s[0], "hello: [x");
    T_CHECK(r.model.sizes.n == 1 && r.generate.stop.n == 2 && !r.data.eval.none);
    T_STR(r.model.sizes.p[0].name, "kda.heads");
    T_STR(r.checkpoint.signals_save.s[0], "USR2");
    static const char *const scalar_source[] = { "data.train.weight=3" };
    T_CHECK(parse_with(BASE, scalar_source, 1) == CDR_OK && r.data.train.n == 1 && r.data.train.s[0].weight == 3);
    T_STR(r.data.train.s[0].path, "data/a.txt");
    static const char *const gap[] = { "data.train.5.path=x" }, *const bare[] = { "train.steps" }, *const bad_cut[] = { "--stepz=3" };
    T_CHECK(parse_with(BASE, gap, 1) == CDR_EUSER);
    T_HAS(err.text, "no entry of a list");
    T_CHECK(parse_with(BASE, bare, 1) == CDR_EUSAGE);
    T_CHECK(parse_with(BASE, bad_cut, 1) == CDR_EUSAGE);
    static const char *const cuts[] = { "--out=runs/x", "--steps=4", "--reduce=free", "--resume=never", "--machine=cpu-2core", "--devices=2", "--max-new-tokens=5",
                                        "--temperature=0", "--top-p=0.5", "--top-k=40", "-o=runs/y" };
    T_CHECK(parse_with(BASE, cuts, 11) == CDR_OK);
    T_STR(r.output_dir, "runs/y");
    T_CHECK(r.train.reduce == CDR_REDUCE_FREE && r.machine.devices == 2 && r.generate.top_k == 40 && r.generate.temperature == 0 && r.generate.max_new_tokens == 5);
}

/* ---- resolution --------------------------------------------------------------------------------------------------------- */

static void steps_and_epochs(void)
{
    T_CHECK(parse(BASE) == CDR_OK && r.train.steps == CDR_UNSET && r.train.epochs == 1);
    T_CHECK(cdr_recipe_resolve_steps(&r, 250, &err) == CDR_OK && r.train.steps == 250 && r.schedule.horizon == 250);
    T_CHECK(r.schedule.warmup_steps == 3);                   /* 0.01 x 250, rounded */
    T_HAS(from("train.steps"), "1 epochs of the data");
    T_CHECK(parse(BASE "train: {steps: 1000}\n") == CDR_OK && r.train.epochs == (double)CDR_UNSET && r.schedule.warmup_steps == 10);
    refused(BASE "train: {steps: 5, epochs: 2}\n", "config.one-of", "train.steps and train.epochs");
    static const char *const set[] = { "--steps=5" };
    T_CHECK(parse_with(BASE "train: {epochs: 2}\n", set, 1) == CDR_OK && r.train.steps == 5 && r.train.epochs == (double)CDR_UNSET);
    refused(BASE "schedule: {warmup_steps: 5, warmup_ratio: 0.1}\n", "config.one-of", "warmup");
}

static void batch_and_ranks(void)
{
    T_CHECK(parse(BASE "train: {sequence_length: 64}\n") == CDR_OK);
    T_CHECK(r.train.micro_batch_tokens == 64 && r.train.global_batch_tokens == 1024);
    T_CHECK(cdr_recipe_resolve_ranks(&r, 4, &err) == CDR_OK && r.parallel.shard == 4 && r.ranks.n_micro == 4 && r.ranks.n_data == 4);
    T_STR(from("parallel.shard"), "auto: 4 ranks / replicate 1");
    T_CHECK(parse(BASE "train: {sequence_length: 64, gradient_accumulation_steps: 2}\nparallel: {replicate: 2}\n") == CDR_OK);
    T_CHECK(cdr_recipe_resolve_ranks(&r, 4, &err) == CDR_OK && r.train.global_batch_tokens == 512 && r.ranks.n_micro == 2 && r.parallel.shard == 2);
    T_STR(value("train.gradient_accumulation_steps"), "none");
    T_CHECK(parse(BASE "train: {sequence_length: 64, gradient_accumulation_steps: 2, global_batch_tokens: 512}\n") == CDR_OK);
    T_CHECK(cdr_recipe_resolve_ranks(&r, 2, &err) == CDR_EUSER);
    T_STR(err.id, "config.one-of");
    refused(BASE "train: {sequence_length: 64, micro_batch_tokens: 96}\n", "config.batch", "no multiple of train.sequence_length");
    refused(BASE "train: {sequence_length: 64, global_batch_tokens: 192}\n", "config.batch", "The nearest smaller one is 128");
    T_CHECK(parse(BASE "train: {sequence_length: 64, global_batch_tokens: 64}\n") == CDR_OK);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_recipe_resolve_ranks(&r, 2, &err) == CDR_EUSER);
    T_HAS(err.text, "Take fewer ranks, or a larger batch");
    T_CHECK(parse(BASE "parallel: {shard: 2}\n") == CDR_OK);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_recipe_resolve_ranks(&r, 1, &err) == CDR_EUSER);
    T_HAS(err.text, "tiny.yaml:3:12: replicate 1 x shard 2 is 2 ranks, but there is 1. Start them with cadre launch -n 2");
    T_CHECK(parse(BASE) == CDR_OK);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_recipe_resolve_ranks(&r, 3, &err) == CDR_EUSER);
    T_STR(err.id, "parallel.power-of-two");
    T_HAS(err.text, "Take a shard of 2 or 4");
    T_CHECK(parse(BASE "machine: {devices: 100}\n") == CDR_OK);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_recipe_resolve_ranks(&r, 100, &err) == CDR_EUSER);
    T_HAS(err.text, "tiny.yaml:3:11: replicate 1 x shard 100");
    T_HAS(err.text, "Take a shard of 64 or 128");
}

static void expert_groups(void)
{
    T_CHECK(parse(BASE "train: {sequence_length: 64, global_batch_tokens: 2048}\n"
                  "parallel: {replicate: 2, ep: 4, expert_placement: auto, hash_every: 7, dispatch_factor: 2}\n") == CDR_OK);
    T_CHECK(r.parallel.expert == 4 && r.parallel.hash_every == 7 && r.parallel.dispatch_factor == 2);
    T_CHECK(cdr_recipe_resolve_ranks(&r, 16, &err) == CDR_OK && r.parallel.shard == 8 && r.ranks.n_micro == 2 && r.parallel.expert_placement == CDR_EXPERTS_HOME);
    T_HAS(cdr_recipe_show(&r, false, pool), "derived   16 data ranks, 2 accumulation steps, efsdp 2 = shard 8 x context 1 / expert 4\n");
    T_CHECK(cdr_recipe_resolve_ranks(&r, 16, &err) == CDR_OK);
    T_CHECK(parse(BASE "parallel: {expert: 4}\n") == CDR_OK && !strstr(cdr_recipe_show(&r, false, pool), "derived "));
    err = (cdr_err){ 0 };
    T_CHECK(cdr_recipe_resolve_ranks(&r, 2, &err) == CDR_EUSER);
    T_STR(err.id, "parallel.expert");
    T_HAS(err.text, "parallel.expert is 4, which does not divide shard 2 x context 1 = 2 ranks");
    refused(BASE "parallel: {shard: 4, expert: 8}\n", "parallel.expert", "Take a power of two up to 4, or more ranks");
    refused(BASE "parallel: {expert: 6}\n", "parallel.power-of-two", "parallel.expert is 6");
    refused(BASE "parallel: {expert: 0}\n", "config.out-of-range", "expert is 0");
    refused(BASE "parallel: {dispatch_factor: 0.5}\n", "config.out-of-range", "dispatch_factor is 0.5");
    static const char *const set[] = { "--ep=2" };
    T_CHECK(parse_with(BASE, set, 1) == CDR_OK && r.parallel.expert == 2);
}

static void sections_that_need_each_other(void)
{
    refused(BASE "eval: {every: 5}\n", "config.no-held-out", "Set data.eval_fraction or data.eval");
    refused("model: {path: m}\ndata: {train: a, eval: b, eval_fraction: 0.1}\n", "config.one-of", "data.eval_fraction is for runs without data.eval");
    refused(BASE "generate: {every: 5}\n", "config.no-prompts", "generate.prompts is empty");
    T_CHECK(parse(BASE "seed: 9\n") == CDR_OK && r.generate.seed == 9);
    T_CHECK(r.optimizer.learning_rate == 1e-3 && r.optimizer.weight_decay == 0.1);
    T_STR(from("optimizer.learning_rate"), "auto: from scratch");
}

static void typed_by_the_schema(void)
{
    T_CHECK(parse("name: no\nmodel: {path: 0755}\ndata: {train: 1e-4, eval_fraction: 1e-1}\ntrain: {steps: 1_000_000, max_time: 90s}\n"
                  "memory: {device_limit: 40GiB}\ncheckpoint: {every: 250ms}\n") == CDR_OK);
    T_STR(r.name, "no");
    T_STR(r.model.path, "0755");
    T_STR(r.data.train.s[0].path, "1e-4");
    T_CHECK(r.train.steps == 1000000 && r.train.max_time == 90 && r.memory.device_limit == 40LL << 30 && r.checkpoint.every.seconds == 0.25);
    T_STR(r.output_dir, "runs/no");
}

/* ---- resolved recipe, hash, resume ------------------------------------------------------------------------------------------ */

static void resolved_yaml_reads_back(void)
{
    T_CHECK(parse(BASE "train: {max_time: 3min}\ngenerate: {every: 5, prompts: [\"a: \\\"b\\\"\\n\", 'c']}\noptimizer: {lr: 3.3e-4}\nmodel2: none\n") != CDR_OK);
    T_CHECK(parse("name: x.y\nmodel: {path: tiny-dense, sizes: {mla: {heads: 2}, list: [1, 2]}}\n"
                  "data: {train: [{path: 'a b.txt', weight: 0.3}, b.txt], eval_fraction: 0.1}\n"
                  "train: {max_time: 3min}\ngenerate: {every: 5, prompts: [\"a: \\\"b\\\"\\n\", 'c']}\noptimizer: {lr: 3.3e-4}\n") == CDR_OK);
    T_CHECK(cdr_recipe_resolve_ranks(&r, 2, &err) == CDR_OK && cdr_recipe_resolve_steps(&r, 77, &err) == CDR_OK);
    cdr_recipe first = r;
    char *yaml = cdr_recipe_yaml(&r, pool);
    T_HAS(yaml, "# auto: 2 ranks / replicate 1");
    T_CHECK(parse(yaml) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    for (int i = 0; i < n; i++) T_STR(cdr_recipe_value(&r, i, pool), cdr_recipe_value(&first, i, pool));
    T_CHECK(k != NULL && cdr_recipe_hash(&r) == cdr_recipe_hash(&first));
    T_STR(r.generate.prompts.s[0], "a: \"b\"\n");
    T_STR(r.data.train.s[0].path, "a b.txt");
}

static void hash_covers_the_fixed_keys_alone(void)
{
    T_CHECK(parse(BASE) == CDR_OK);
    uint64_t h = cdr_recipe_hash(&r);
    T_CHECK(parse(BASE "train: {max_time: 1h}\nmemory: {policy: keep}\nlog: {every: 5}\noutput_dir: x\n") == CDR_OK && cdr_recipe_hash(&r) == h);
    T_CHECK(parse(BASE "seed: 2\n") == CDR_OK && cdr_recipe_hash(&r) != h);
    T_CHECK(parse(BASE "optimizer: {beta2: 0.99}\n") == CDR_OK && cdr_recipe_hash(&r) != h);
}

static void resume_classes(void)
{
    cdr_recipe old;
    cdr_recipe_diff d;
    cdr_resume_spec s = { .run = "runs/a", .step = 300 };
    T_CHECK(parse(BASE "train: {sequence_length: 1024, global_batch_tokens: 4096, micro_batch_tokens: 4096}\n") == CDR_OK);
    old = r;
    T_CHECK(parse(BASE "train: {sequence_length: 2048, global_batch_tokens: 4096, micro_batch_tokens: 4096}\ndata2: none\n") != CDR_OK);
    T_CHECK(parse(BASE "train: {sequence_length: 2048, global_batch_tokens: 4096, micro_batch_tokens: 4096}\n") == CDR_OK);
    err = (cdr_err){ 0 };
    r.data.max_docs = old.data.max_docs;
    T_CHECK(cdr_recipe_compare(&r, &old, &s, &d, &err) == CDR_EUSER);
    T_STR(err.id, "resume.fixed-key");
    T_STR(err.text, "tiny.yaml:3:9: train.sequence_length is 2048, was 1024 in runs/a (step 300), and is fixed for a run. Set it back, take another --out, or "
                    "--allow-change train.sequence_length");
    const char *allow[] = { "train.sequence_length" }, *unknown[] = { "train.sequence_lenth" };
    s.allow = allow;
    s.n_allow = 1;
    err = (cdr_err){ 0 };
    T_CHECK(cdr_recipe_compare(&r, &old, &s, &d, &err) == CDR_OK && d.n == 1 && d.c[0].allowed && !d.bit_equal);
    s.allow = unknown;
    T_CHECK(cdr_recipe_compare(&r, &old, &s, &d, &err) == CDR_EUSAGE);
    s.n_allow = 0;
    T_CHECK(parse(BASE) == CDR_OK);
    old = r;
    T_CHECK(parse(BASE "memory: {policy: recompute}\noptimizer: {learning_rate: 5e-4}\nparallel: {replicate: 2}\n") == CDR_OK);
    T_CHECK(cdr_recipe_compare(&r, &old, &s, &d, &err) == CDR_OK && d.n == 3 && d.bit_equal);
    T_CHECK(parse(BASE "train: {reduce: free}\n") == CDR_OK);
    T_CHECK(cdr_recipe_compare(&r, &old, &s, &d, &err) == CDR_OK && d.n == 1 && !d.bit_equal);
    T_STR(d.c[0].old_value, "tree");
    static const char *const set[] = { "seed=5" };
    T_CHECK(parse_with(BASE, set, 1) == CDR_OK);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_recipe_compare(&r, &old, &s, &d, &err) == CDR_EUSER);
    T_HAS(err.text, "--set seed: is 5, was 1 in runs/a");
}

/* ---- schema and built-in files ------------------------------------------------------------------------------------------------ */

static void schema_is_json_schema(void)
{
    const cdr_json *root;
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    err = (cdr_err){ 0 };
    char *s = cdr_schema_json(NULL, pool, &err);
    T_CHECK(s && cdr_json_parse(pool, s, strlen(s), "schema", &root, &err) == CDR_OK);
    T_STR(cdr_json_str(cdr_json_get(root, "$schema"), ""), "https://json-schema.org/draft/2020-12/schema");
    for (int i = 0; i < n; i++) {
        const cdr_json *at = root;
        char key[128], *save = NULL;
        snprintf(key, sizeof key, "%s", k[i].key);
        for (char *p = strtok_r(key, ".", &save); p; p = strtok_r(NULL, ".", &save)) at = cdr_json_get(cdr_json_get(at, "properties"), p);
        if (!at) T_STR("not in the schema", k[i].key);
        T_STR(cdr_json_str(cdr_json_get(at, "description"), ""), k[i].help);
        T_HAS(cdr_schema_explain(k[i].key, pool, &err), k[i].help);
    }
    T_CHECK(cdr_schema_json("train.stps", pool, &err) == NULL);
    T_HAS(err.text, "Did you mean train.steps");
}

static void recipe_json_parses(void)
{
    const cdr_json *root;
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    T_CHECK(parse(BASE "optimizer: {lr: 1e-4}\n") == CDR_OK);
    cdr_jw_begin(&w, NULL, '{');
    cdr_recipe_json(&r, &w, false);
    cdr_jw_end(&w, '}');
    T_CHECK(cdr_json_parse(pool, t.s, t.n, "show", &root, &err) == CDR_OK);
    const cdr_json *lr = cdr_json_get(root, "optimizer.learning_rate");
    T_CHECK(cdr_json_real(cdr_json_get(lr, "value"), 0) == 1e-4 && cdr_json_int(cdr_json_get(lr, "line"), 0) == 3);
    T_STR(cdr_json_str(cdr_json_get(lr, "alias"), ""), "lr");
    cdr_text_free(&t);
}

static void built_in_recipes_load(void)
{
    int n;
    const char *const *names = cdr_builtin_names("configs", pool, &n);
    T_CHECK(n >= 2);
    for (int i = 0; i < n; i++) {
        err = (cdr_err){ 0 };
        T_CHECK(cdr_recipe_load(names[i], NULL, pool, &r, &err) == CDR_OK);
        if (err.status) T_STR(err.text, names[i]);
        T_CHECK(strchr(r.model.path, '/') || cdr_builtin("models", r.model.path));      /* devil: a directory that cadre toy makes */
    }
    T_CHECK(cdr_recipe_load("tiny-dens", NULL, pool, &r, &err) == CDR_EUSER);
    T_HAS(err.text, "Did you mean tiny-dense");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_recipe_load("./no/such.yaml", NULL, pool, &r, &err) == CDR_EUSER || err.status == CDR_EDATA);
    T_HAS(err.text, "./no/such.yaml");
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    pool = cdr_pool_new();
    T_RUN(table_has_every_key_of_the_interface);
    T_RUN(defaults_are_in_range_and_read_back);
    T_RUN(origins);
    T_RUN(aliases);
    T_RUN(message_unknown_key);
    T_RUN(values_out_of_range);
    T_RUN(what_is_not_here_yet_says_so);
    T_RUN(lora_section);
    T_RUN(sparse_models_and_muon);
    T_RUN(flags);
    T_RUN(steps_and_epochs);
    T_RUN(batch_and_ranks);
    T_RUN(expert_groups);
    T_RUN(sections_that_need_each_other);
    T_RUN(typed_by_the_schema);
    T_RUN(resolved_yaml_reads_back);
    T_RUN(hash_covers_the_fixed_keys_alone);
    T_RUN(resume_classes);
    T_RUN(schema_is_json_schema);
    T_RUN(recipe_json_parses);
    T_RUN(built_in_recipes_load);
    cdr_pool_free(pool);
    return t_end();
}
