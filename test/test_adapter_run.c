/* test_adapter_run.c: adapters of runs through the commands: a LoRA run, its base with --adapter, its final/ and its exports give the same bits where
 * nothing is rounded; lora.adapter continues, and is refused where it does not fit; lora.serve_with refuses before step 0; known-failures.md, C. */
#include "adapter/adapter.h"
#include "files.h"
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void put_recipe(const char *name, const char *model, const char *more)
{
    char text[2400], file[80];
    (void)snprintf(file, sizeof file, "%s.yaml", name);
    (void)snprintf(text, sizeof text,
                   "version: 1\nname: %s\nmodel: {path: %s}\ndata: {train: %s, eval_fraction: 0.2, tokenizer: byte}\noutput_dir: %s\neval: {tokens: 64}\n"
                   "train: {steps: 2, balance: none, indexer: frozen, sequence_length: 64, micro_batch_tokens: 64, global_batch_tokens: 64}\n"
                   "machine: {threads: 1}\nprecision: {compute: f32}\nlog: {level: error}\n%s", name, model, in_dir("text.txt"), in_dir(name), more);
    put_text(in_dir(file), text);
}

/* A command in a process of its own (the engine's threads); what it returns, and the error's text. */
typedef struct { int status; char id[48], text[1200]; double loss; /* of merge: FP8 tensors */ int64_t read; /* bytes of files */ } outcome;
typedef struct { const char *verb, *a, *b; } call;

static cdr_status run(const call *c, cdr_result *r, cdr_err *err)
{
    cdr_common q = { .quiet = true };
    if (strcmp(c->verb, "train") == 0) return cdr_train(&(cdr_train_args){ .common = q, .recipe = c->a }, r, err);
    if (strcmp(c->verb, "toy") == 0) return cdr_toy(&(cdr_toy_args){ .common = q, .family = c->a, .out = c->b, .experts = strcmp(c->a, "deepseek_v3") == 0 ? "fp8"
        : NULL }, r, err);
    if (strncmp(c->verb, "merge", 5) == 0) {
        bool bf16 = strcmp(c->verb, "merge-bf16") == 0, force = strcmp(c->verb, "merge-force") == 0;
        return cdr_merge(&(cdr_merge_args){ .common = q, .base = in_dir(strcmp(c->verb, "merge-fp8") == 0 ? "f8" : "toy"), .adapter = c->a, .out = c->b, .experts = bf16
            ? "bf16" : NULL, .min_survival = 0.9,
                                            .force = force },
                         r, err);
    }
    if (strcmp(c->verb, "export") == 0) return cdr_export(&(cdr_export_args){ .common = q, .source = c->a, .format = "hf", .out = c->b }, r, err);
    if (strcmp(c->verb, "eval") == 0) {
        char config[1300];
        (void)snprintf(config, sizeof config, "%s/config.json", c->a);      /* weights alone have no data of their own */
        return cdr_eval(&(cdr_eval_args){ .common = q, .model = c->a, .adapter = c->b, .data = cdr_exists(config) ? in_dir("text.txt") : NULL, .n_tokens = 64 }, r, err);
    }
    return cdr_verify_adapter(&(cdr_verify_adapter_args){ .common = q, .adapter = c->a, .base = c->b, .consumers = "peft" }, r, err);
}

static int64_t bytes_read(void)
{
    long long n = -1;
    FILE *f = fopen("/proc/self/io", "r");
    T_CHECK(f && fscanf(f, "rchar: %lld", &n) == 1);
    if (f) (void)fclose(f);
    return n;
}

static outcome go(const char *verb, const char *a, const char *b)
{
    int fd[2];
    outcome o = { .status = 99 };
    fflush(stdout);
    fflush(stderr);
    if (pipe(fd) != 0) return o;
    pid_t pid = fork();
    if (pid == 0) {
        cdr_result r = { 0 };
        cdr_err err = { 0 };
        FILE *null = freopen("/dev/null", "w", stdout);
        (void)null;
        call c = { verb, a, b };
        int64_t before = bytes_read();
        o.status = (int)run(&c, &r, &err);
        o.read = bytes_read() - before;
        memcpy(o.id, err.id, sizeof o.id);
        memcpy(o.text, err.text, sizeof o.text);
        const char *key = strncmp(verb, "merge", 5) == 0 ? "\"fp8\":{\"tensors\":" : "\"loss\":", *loss = r.json ? strstr(r.json, key) : NULL;
        o.loss = loss ? strtod(loss + strlen(key), NULL) : 0;
        ssize_t n = write(fd[1], &o, sizeof o);
        _exit(n == (ssize_t)sizeof o ? 0 : 1);
    }
    (void)close(fd[1]);
    ssize_t n = read(fd[0], &o, sizeof o);
    (void)close(fd[0]);
    (void)waitpid(pid, NULL, 0);
    if (n != (ssize_t)sizeof o) o.status = 98;
    return o;
}

static void ok(outcome o)
{
    if (o.status != 0) fprintf(stderr, "  %d: %s\n", o.status, o.text);
    T_CHECK(o.status == 0);
}

static void refused(outcome o, int status, const char *id, const char *text)
{
    T_CHECK(o.status == status);
    T_STR(o.id, id);
    T_HAS(o.text, text);
}

static cdr_status export_to(const char *source, const char *format, const char *out, cdr_err *err)
{
    cdr_result r = { 0 };
    *err = (cdr_err){ 0 };
    cdr_status st = cdr_export(&(cdr_export_args){ .source = source, .format = format, .out = out, .allow_drop = true }, &r, err);
    cdr_result_free(&r);
    return st;
}

/* The run, and its base with what the run left, in three forms: one loss, to the last bit. Experts one by one, and with shared outer factors. */
static void base_and_adapter_are_the_run(void)
{
    static const char *const experts[] = { "per_expert", "shared_outer" };
    put_recipe("base", "tiny-linear", "optimizer: {learning_rate: 1.0e-60}\n");
    ok(go("train", in_dir("base.yaml"), NULL));
    double base = go("eval", in_dir("base"), NULL).loss;
    for (int i = 0; i < 2; i++) {
        char more[300], name[40];
        cdr_err err;
        (void)snprintf(name, sizeof name, "lora%d", i);
        (void)snprintf(more, sizeof more,
                       "optimizer: {learning_rate: 1.0e-2}\nlora: {rank: 4, experts: %s, targets: [attention, kda_gates, dense_mlp, shared_experts]}\n", experts[i]);
        put_recipe(name, "tiny-linear", more);
        (void)snprintf(more, sizeof more, "%s.yaml", name);
        ok(go("train", in_dir(more), NULL));
        outcome own = go("eval", in_dir(name), NULL), with = go("eval", in_dir("base"), in_dir(name));
        ok(own);
        ok(with);
        T_CHECK(own.loss > 0 && own.loss != base && own.loss == with.loss);
        (void)snprintf(more, sizeof more, "%s/final", name);
        outcome final = go("eval", in_dir("base"), in_dir(more));
        ok(final);
        T_NEAR(final.loss, own.loss, 1e-6);              /* a wrapper repeats what is shared */
        (void)snprintf(more, sizeof more, "%s-peft", name);
        T_CHECK(export_to(in_dir(name), "peft", in_dir(more), &err) == CDR_OK);
        outcome each = go("eval", in_dir("base"), in_dir(more));
        ok(each);
        T_NEAR(each.loss, own.loss, 1e-6);
        if (i == 0) T_CHECK(final.loss == own.loss && each.loss == own.loss);
        ok(go("verify", in_dir(name), "tiny-linear"));
    }
    refused(go("eval", in_dir("lora0"), in_dir("lora0")), CDR_EUSER, "adapter.has-own", "Name its base instead");
    refused(go("eval", in_dir("base"), in_dir("base")), CDR_EDATA, "adapter.no-lora", "is no LoRA run");
    refused(go("verify", in_dir("lora0"), "tiny-v3"), CDR_EDATA, "adapter.unknown-key", "bind to nothing of tiny-v3");
}

/* B = 0 is the base, bit for bit: of each group of modules by itself (sglang 37704). */
static void zero_b_is_the_base(void)
{
    static const char *const groups[] = { "attention", "kda_gates", "dense_mlp", "shared_experts" };
    double base = go("eval", in_dir("base"), NULL).loss;
    for (int i = 0; i < CDR_COUNT(groups); i++) {
        char name[40], file[60], more[200];
        (void)snprintf(name, sizeof name, "zero%d", i);
        (void)snprintf(file, sizeof file, "%s.yaml", name);
        (void)snprintf(more, sizeof more, "optimizer: {learning_rate: 1.0e-60}\nlora: {rank: 4, targets: [%s]}\ncheckpoint: {final: none}\n", groups[i]);
        put_recipe(name, "tiny-linear", more);
        ok(go("train", in_dir(file), NULL));
        outcome o = go("eval", in_dir("base"), in_dir(name));
        ok(o);
        T_CHECK(o.loss == base && base > 0);
        refused(go("verify", in_dir(name), "tiny-linear"), CDR_EUSER, "adapter.zero", "the adapter does nothing");
        T_CHECK(!cdr_exists(in_dir(cdr_is_dir(in_dir(name)) ? "zero0/final" : "none")));
    }
}

/* lora.adapter: the first loss is the one that the run before it ended with; another rank, another place, are refused. */
static void runs_start_from_adapters(void)
{
    char more[600];
    const char *lora = "lora: {rank: %d, experts: per_expert, targets: [%s], adapter: %s, serve_with: [%s]}\noptimizer: {learning_rate: 1.0e-60}\n";
    const char *all = "attention, kda_gates, dense_mlp, shared_experts";
    (void)snprintf(more, sizeof more, lora, 4, all, in_dir("lora0"), "peft");
    put_recipe("again", "tiny-linear", more);
    ok(go("train", in_dir("again.yaml"), NULL));
    T_CHECK(go("eval", in_dir("again"), NULL).loss == go("eval", in_dir("lora0"), NULL).loss);
    (void)snprintf(more, sizeof more, lora, 8, all, in_dir("lora0"), "peft");
    put_recipe("rank", "tiny-linear", more);
    refused(go("train", in_dir("rank.yaml"), NULL), CDR_EUSER, "lora.adapter", "has rank 4 and scale 2");
    (void)snprintf(more, sizeof more, lora, 4, "attention", in_dir("lora0"), "peft");
    put_recipe("lost", "tiny-linear", more);
    refused(go("train", in_dir("lost.yaml"), NULL), CDR_EUSER, "lora.adapter", "it would be lost");
    (void)snprintf(more, sizeof more, lora, 4, all, "none", "peft, sglang");
    put_recipe("serve", "tiny-linear", more);
    refused(go("train", in_dir("serve.yaml"), NULL), CDR_EUSER, "lora.serve", "sglang would drop");
    T_CHECK(!cdr_exists(in_dir("serve/checkpoints")));
}

/* Adapters on layer 1 alone touch layer 1 alone: no expert's index is taken for a layer's (PEFT 3318). */
static void one_layer_is_one_layer(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = NULL;
    cdr_lora_set set;
    cdr_err err = { 0 };
    put_recipe("layer", "tiny-linear", "lora: {rank: 4, experts: per_expert, targets: [attention], layers: 1}\noptimizer: {learning_rate: 1.0e-2}\n");
    ok(go("train", in_dir("layer.yaml"), NULL));
    T_CHECK(cdr_model_load(&(cdr_model_spec){ .path = "tiny-linear" }, pool, &m, &err) == CDR_OK);
    static const char *const source[] = { "layer", "layer/final" };
    for (int k = 0; k < 2; k++) {
        T_CHECK(cdr_lora_read(in_dir(source[k]), m, pool, &set, &err) == CDR_OK && set.n == 9);
        for (int i = 0; i < set.n; i++) T_CHECK(cdr_model_param_part(m, set.pair[i].i_param).layer == 1 && !set.pair[i].untargeted);
    }
    cdr_pool_free(pool);
}

/* Tensors of two directories: of those that the adapter does not touch the bytes are the same; what it touches in BF16 is W + scale B A rounded once,
 * and packed experts keep their scales. */
static void check_merged(const char *merged, const cdr_lora_set *set, cdr_model *m, bool bf16, const char *edge)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_hf *a = NULL, *b = NULL;
    cdr_weights *wa = NULL, *wb = NULL;
    cdr_model *mb = NULL;
    cdr_err err = { 0 };
    int64_t copied = 0, scales = 0;
    T_CHECK(cdr_hf_open(in_dir("toy"), &a, &err) == CDR_OK && cdr_hf_open(merged, &b, &err) == CDR_OK);
    T_CHECK(cdr_model_load(&(cdr_model_spec){ .path = merged }, pool, &mb, &err) == CDR_OK);
    if (!a || !b || !mb) return;
    T_CHECK(cdr_weights_open(m, a, &wa, &err) == CDR_OK && cdr_weights_open(mb, b, &wb, &err) == CDR_OK);
    for (int64_t i = 0; wa && wb && i < cdr_model_params(m); i++) {
        const cdr_lora_pair *p = NULL;
        for (int k = 0; k < set->n; k++) if (set->pair[k].i_param == i) p = &set->pair[k];
        if (!p) continue;
        int64_t n = CDR_MAX(p->experts, (int64_t)1) * p->N;
        float *x = cdr_pool_alloc(pool, sizeof *x * (size_t)(n * p->K)), *y = cdr_pool_alloc(pool, sizeof *y * (size_t)(n * p->K));
        T_CHECK(cdr_weights_read(wa, i, 0, n, CDR_F32, x, &err) == CDR_OK && cdr_weights_read(wb, i, 0, n, CDR_F32, y, &err) == CDR_OK);
        if (p->experts > 0 && !bf16) continue;
        cdr_lora_add(p, 0, n, x);
        for (int64_t k = 0; k < n * p->K; k++) {
            uint16_t h;
            float r;
            cdr_from_f32(CDR_BF16, &x[k], &h, 1);
            cdr_to_f32(CDR_BF16, &h, &r, 1);
            T_CHECK(r == y[k]);
        }
    }
    for (int64_t i = 0; i < cdr_hf_count(a); i++) {
        const char *name = cdr_hf_name(a, i);
        int64_t k = cdr_hf_find(b, name);
        cdr_hf_tensor x, y;
        bool touched = (strstr(name, "_proj.weight") || strstr(name, "kv_a_proj")) && !strstr(name, "res_proj") && !strstr(name, "routed_expert"),
            expert = strstr(name, ".experts.") != NULL;
        if (touched || (expert && !strstr(name, "_scale")) || (expert && bf16)) continue;
        T_CHECK(k >= 0 && cdr_hf_tensor_at(a, i, &x, &err) == CDR_OK && cdr_hf_tensor_at(b, k, &y, &err) == CDR_OK);
        if (k < 0) continue;
        size_t bytes = x.t->end - x.t->begin, skip = edge && strcmp(name, edge) == 0;
        T_CHECK(y.t->end - y.t->begin == bytes && memcmp((const char *)x.data + skip, (const char *)y.data + skip, bytes - skip) == 0);
        copied++;
        scales += expert;
    }
    T_CHECK(copied > 20 && (scales > 20) == !bf16);
    if (wa) cdr_weights_close(wa);
    if (wb) cdr_weights_close(wb);
    cdr_hf_close(a);
    cdr_hf_close(b);
    cdr_pool_free(pool);
}

/* The first scale of a tensor of packed scales. */
static int scale_of(const char *model, const char *name)
{
    cdr_hf *d = NULL;
    cdr_hf_tensor t = { 0 };
    cdr_err err = { 0 };
    int scale = -1;
    if (cdr_hf_open(model, &d, &err) == CDR_OK && cdr_hf_find(d, name) >= 0 && cdr_hf_tensor_at(d, cdr_hf_find(d, name), &t, &err) == CDR_OK)
        scale = *(const uint8_t *)t.data;
    cdr_hf_close(d);
    return scale;
}

/* The first block of the first packed expert: zeros, at a scale that no value could have. Its tensor of scales. */
static const char *zero_a_block(const char *model, cdr_pool *pool)
{
    cdr_hf *d = NULL;
    cdr_err err = { 0 };
    const char *name = NULL;
    T_CHECK(cdr_hf_open(model, &d, &err) == CDR_OK);
    for (int64_t i = 0; i < cdr_hf_count(d) && !name; i++) {
        const char *end = strstr(cdr_hf_name(d, i), "weight_packed");
        if (!end) continue;
        name = cdr_pool_printf(pool, "%.*sweight_scale", (int)(end - cdr_hf_name(d, i)), cdr_hf_name(d, i));
        for (int k = 0; k < 2; k++) {
            static const uint8_t zeros[16];
            cdr_hf_tensor t = { 0 };
            T_CHECK(cdr_hf_tensor_at(d, k == 0 ? i : cdr_hf_find(d, name), &t, &err) == CDR_OK);
            FILE *f = fopen(cdr_pool_printf(pool, "%s/%s", model, t.shard), "r+b");
            uint64_t header = 0;
            T_CHECK(f && fread(&header, sizeof header, 1, f) == 1 && fseek(f, (long)(8 + header + t.t->begin), SEEK_SET) == 0);
            T_CHECK(f && fwrite(zeros, k == 0 ? 16 : 1, 1, f) == 1 && fclose(f) == 0);
        }
    }
    cdr_hf_close(d);
    return name;
}

/* base + adapter and the merged weights agree to rounding; a delta that packing would swallow is refused; another base is refused. */
static void merged_is_base_and_adapter(void)
{
    char model[1200], file[60];
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = NULL;
    cdr_lora_set set;
    cdr_err err = { 0 };
    (void)snprintf(model, sizeof model, "%s", in_dir("toy"));
    ok(go("toy", "kimi_k3", model));
    const char *edge = zero_a_block(model, pool);
    put_recipe("k3", model, "lora: {rank: 4, experts: per_expert, targets: [attention, dense_mlp, shared_experts]}\noptimizer: {learning_rate: 3.0e-2}\n");
    ok(go("train", in_dir("k3.yaml"), NULL));
    ok(go("verify", in_dir("k3"), model));
    refused(go("merge", in_dir("k3"), in_dir("m0")), CDR_EUSER, "merge.survival", "would survive, below --min-survival 0.90");
    T_CHECK(!cdr_exists(in_dir("m0")));
    ok(go("merge-bf16", in_dir("k3"), in_dir("m1")));
    ok(go("merge-force", in_dir("k3/final"), in_dir("m2")));
    T_CHECK(cdr_model_load(&(cdr_model_spec){ .path = model }, pool, &m, &err) == CDR_OK);
    T_CHECK(cdr_lora_read(in_dir("k3"), m, pool, &set, &err) == CDR_OK && set.has_hash);
    check_merged(in_dir("m1"), &set, m, true, edge);
    check_merged(in_dir("m2"), &set, m, false, edge);
    T_CHECK(edge && scale_of(model, edge) == 0 && scale_of(in_dir("m2"), edge) == 2);      /* a block of zeros may have any; what a delta comes to may not */
    double own = go("eval", in_dir("k3"), NULL).loss, base = 0, merged = 0;
    for (int i = 0; i < 2; i++) {                        /* a run that changes nothing, of the base and of the merged weights */
        (void)snprintf(file, sizeof file, "still%d", i);
        put_recipe(file, i == 0 ? model : in_dir("m1"), "optimizer: {learning_rate: 1.0e-60}\nlora: {rank: 1, targets: [o_proj]}\ncheckpoint: {final: none}\n");
        (void)snprintf(file, sizeof file, "still%d.yaml", i);
        ok(go("train", in_dir(file), NULL));
        (void)snprintf(file, sizeof file, "still%d", i);
        *(i == 0 ? &base : &merged) = go("eval", in_dir(file), NULL).loss;
    }
    T_CHECK(own > 0 && fabs(base - own) > 0.05);
    T_NEAR(merged, own, 0.004);
    refused(go("verify", in_dir("k3"), in_dir("not-here")), CDR_EDATA, "model.missing", "there is no such file or directory");
    refused(go("verify", in_dir("k3"), in_dir("m2")), CDR_EUSER, "adapter.other-base", "was not trained on the weights of");
    cdr_pool_free(pool);
}

/* An adapter beside its base, or continued on it: the base is read to be hashed and to be loaded, and not once more to be compared; beside no adapter it
 * is not hashed. Another base is refused. There is no cache here that would spare a reading. */
static void the_base_is_hashed_once(void)
{
    const char *lora = "lora: {rank: 4, experts: per_expert, targets: [attention, dense_mlp, shared_experts], adapter: %s}\n"
                       "optimizer: {learning_rate: 1.0e-60}\ncheckpoint: {final: none}\n";
    char model[1200], more[1800], *cache = getenv("CADRE_CACHE") ? strdup(getenv("CADRE_CACHE")) : NULL;
    int64_t got[2], own = 0, size = 0;
    (void)snprintf(model, sizeof model, "%s", in_dir("toy"));
    for (int i = 1; i <= 5; i++) {
        struct stat file;
        (void)snprintf(more, sizeof more, "%s/model-0000%d-of-000005.safetensors", model, i);
        T_CHECK(stat(more, &file) == 0);
        size += file.st_size;
    }
    T_CHECK(setenv("CADRE_CACHE", "/dev/null/none", 1) == 0);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(more, sizeof more, lora, i == 0 ? "none" : in_dir("k3"));
        put_recipe(i == 0 ? "fresh" : "continued", model, more);
        outcome o = go("train", in_dir(i == 0 ? "fresh.yaml" : "continued.yaml"), NULL);
        ok(o);
        got[i] = o.read;
    }
    own = got[1] - got[0];
    T_CHECK(got[0] > size && own > 0 && own < size / 2);
    outcome with = go("eval", model, in_dir("k3")), without = go("eval", model, NULL);
    ok(with);
    ok(without);
    T_CHECK(without.read < size + size / 2 && with.read - own - without.read < size);        /* alone it is loaded only */
    (void)snprintf(more, sizeof more, lora, in_dir("k3"));
    put_recipe("strange", in_dir("m2"), more);
    refused(go("train", in_dir("strange.yaml"), NULL), CDR_EDATA, "adapter.other-base", "was not trained on the weights of");
    refused(go("eval", in_dir("m2"), in_dir("k3")), CDR_EDATA, "adapter.other-base", "was not trained on the weights of");
    T_CHECK((cache ? setenv("CADRE_CACHE", cache, 1) : unsetenv("CADRE_CACHE")) == 0);
    free(cache);
}

/* Experts stored in FP8 are measured as they are written, not as the BF16 that they are read as: a small delta is lost. */
static void merged_into_fp8_is_measured(void)
{
    char model[1200];
    (void)snprintf(model, sizeof model, "%s", in_dir("f8"));
    ok(go("toy", "deepseek_v3", model));
    put_recipe("small", model, "lora: {rank: 4, experts: per_expert, targets: [q_a_proj]}\noptimizer: {learning_rate: 1.0e-4}\ncheckpoint: {final: none}\n");
    ok(go("train", in_dir("small.yaml"), NULL));
    outcome o = go("merge-fp8", in_dir("small"), in_dir("m3"));
    refused(o, CDR_EUSER, "merge.survival", ".experts.");
    T_CHECK(o.loss == 96 && !cdr_exists(in_dir("m3")));
}

/* A run that trained all of a directory's model leaves nothing to its base, so an adapter beside it is not refused as another base's: with weights that did not
 * move it is the adapter's own run, with weights that did it is something else. One that trained a part still needs that very base. */
static void a_trained_run_takes_an_adapter(void)
{
    static const char *const rate[] = { "1.0e-60", "1.0e-2" };
    double own = go("eval", in_dir("small"), NULL).loss, loss[2] = { 0 };
    char text[8000], model[1200], file[60];
    (void)snprintf(model, sizeof model, "%s", in_dir("f8"));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(text, sizeof text,
                       "version: 1\nname: full%d\nmodel: {path: %s}\ndata: {train: %s, eval_fraction: 0.2, tokenizer: byte}\noutput_dir: %s%d\neval: {tokens: 64}\n"
                       "train: {steps: 1, balance_rate: 1.0e-30, sequence_length: 64, micro_batch_tokens: 64, global_batch_tokens: 64}\n"
                       "machine: {threads: 1}\nprecision: {compute: f32}\nlog: {level: error}\n"
                       "optimizer: {learning_rate: %s}\n", i, model, in_dir("text.txt"), in_dir("full"), i, rate[i]);
        (void)snprintf(file, sizeof file, "full%d.yaml", i);
        put_text(in_dir(file), text);
        ok(go("train", in_dir(file), NULL));
        (void)snprintf(file, sizeof file, "full%d", i);
        outcome with = go("eval", in_dir(file), in_dir("small"));
        ok(with);
        loss[i] = with.loss;
    }
    T_CHECK(own > 0 && loss[0] == own && loss[1] != own && loss[1] != go("eval", in_dir("full1"), NULL).loss);
    ok(go("export", in_dir("full1"), in_dir("full1-hf")));              /* what was trained after that run, on its weights as a directory */
    put_recipe("after", in_dir("full1-hf"), "lora: {rank: 4, targets: [q_a_proj]}\noptimizer: {learning_rate: 1.0e-2}\ncheckpoint: {final: none}\n");
    ok(go("train", in_dir("after.yaml"), NULL));
    ok(go("eval", in_dir("full1"), in_dir("after")));
    put_recipe("part", model, "optimizer: {learning_rate: 1.0e-2}\n");
    (void)snprintf(text, sizeof text, "sed -e 's/indexer: frozen/trainable: [o_proj]/' %s > %s.yaml", in_dir("part.yaml"), in_dir("part1"));
    T_CHECK(system(text) == 0);
    ok(go("train", in_dir("part1.yaml"), NULL));
    ok(go("eval", in_dir("part"), in_dir("small")));
    (void)snprintf(text, sizeof text, "%s/model.safetensors", model);
    FILE *f = fopen(text, "r+b");
    int last = f && fseek(f, -4, SEEK_END) == 0 ? fgetc(f) : EOF;
    T_CHECK(last != EOF && fseek(f, -4, SEEK_END) == 0 && fputc(last ^ 1, f) != EOF);
    if (f) (void)fclose(f);
    refused(go("eval", in_dir("part"), in_dir("small")), CDR_EDATA, "adapter.other-base", "was not trained on the weights of");
    refused(go("eval", in_dir("part"), NULL), CDR_EDATA, "checkpoint.other-base", "frozen weights would be others");
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    char text[6000] = "";
    if (!files_open("adapter-run")) return 99;
    cdr_log_set_level(CDR_LOG_ERROR);
    for (int i = 0; i < 90; i++) (void)snprintf(text + strlen(text), sizeof text - strlen(text), "line %d of %d: hacker, kludge, cruft %d.\n", i, i * i, i * 7);
    put_text(in_dir("text.txt"), text);
    T_RUN(base_and_adapter_are_the_run);
    T_RUN(zero_b_is_the_base);
    T_RUN(runs_start_from_adapters);
    T_RUN(one_layer_is_one_layer);
    T_RUN(merged_is_base_and_adapter);
    T_RUN(the_base_is_hashed_once);
    T_RUN(merged_into_fp8_is_measured);
    T_RUN(a_trained_run_takes_an_adapter);
    files_close();
    return t_end();
}
