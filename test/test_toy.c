/* test_toy.c: `toy` and `export --format hf` of every family, and runs on such a directory: loaded in each rank's memory, its bytes unchanged, named
 * in checkpoints, refused where it is another. */
#include "files.h"
#include "chat/chat.h"
#include "io/io.h"
#include "models/models.h"
#include "tokenizer/tokenizer.h"
#include "weights/weights.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static cdr_err err;
static cdr_result result;

static void clear(void)
{
    cdr_result_free(&result);
    result = (cdr_result){ 0 };
    err = (cdr_err){ 0 };
}

static cdr_status toy(const char *family, const char *out, const char *experts, const char *seed)
{
    const char *set[] = { seed };
    cdr_toy_args a = { .common = { .set = set, .n_set = seed ? 1 : 0, .quiet = true }, .family = family, .out = out, .experts = experts };
    clear();
    return cdr_toy(&a, &result, &err);
}

static cdr_status export(const char *source, const char *out, const char *base)
{
    cdr_export_args a = { .common = { .quiet = true }, .source = source, .format = "hf", .out = out, .base = base };
    clear();
    return cdr_export(&a, &result, &err);
}

/* Each family: complete, the same from the same seed, and export gives its bytes back. */
static void families(void)
{
    static const char *const FAMILY[] = { "kimi_k3", "kimi-k31", "kimi_linear", "deepseek_v3", "deepseek_v32", "deepseek_v2", "glm_moe_dsa" };
    for (int k = 0; k < CDR_COUNT(FAMILY); k++) {
        char one[1024], two[1040];
        (void)snprintf(one, sizeof one, "%s", in_dir(FAMILY[k]));
        (void)snprintf(two, sizeof two, "%s-export", one);
        T_CHECK(toy(FAMILY[k], one, NULL, NULL) == CDR_OK);
        T_HAS(result.text, " parameters, ");
        T_CHECK(export(one, two, NULL) == CDR_OK);
        if (err.text[0]) fprintf(stderr, "  %s\n", err.text);
        T_HAS(result.text, "of them copied byte for byte");
        T_CHECK(same_dirs(one, two) >= 5);
        cdr_pool *pool = cdr_pool_new();
        cdr_model *m;
        T_CHECK(cdr_model_load(&(cdr_model_spec){ .path = one }, pool, &m, &err) == CDR_OK);
        const cdr_model_text text = cdr_model_get_text(m);
        cdr_tokenizer *tok = NULL;                                                   /* the marks of the family's chat format are there */
        T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = text.type, .dir = one, .file = text.file, .base = text.base, .special = text.special }, &tok,
            &err) == CDR_OK);
        cdr_chat *chat = NULL;
        if (tok) T_CHECK(cdr_chat_open(&(cdr_chat_spec){ .format = text.chat, .tokenizer = tok, .dir = one }, &chat, &err) == CDR_OK);
        if (chat) cdr_chat_close(chat);
        if (tok) cdr_tokenizer_close(tok);
        cdr_pool_free(pool);
        if (k == 0) {
            T_HAS(result.text, "kimi_k3, ");
            T_CHECK(toy(FAMILY[k], in_dir("again"), NULL, "seed=1") == CDR_OK && same_dirs(one, in_dir("again")) > 0);
            T_CHECK(toy(FAMILY[k], in_dir("other"), NULL, "seed=2") == CDR_OK && files_in(in_dir("other")) == files_in(one));
            T_CHECK(cdr_exists(in_dir("other/model-00001-of-000005.safetensors")));
            T_CHECK(!same_files("kimi_k3/model-00001-of-000005.safetensors", "other/model-00001-of-000005.safetensors"));
            T_CHECK(toy(FAMILY[k], one, NULL, NULL) == CDR_EUSER);               /* there is one already */
            T_STR(err.id, "checkpoint.exists");
        }
    }
    T_CHECK(toy("kimi_k4", in_dir("none"), NULL, NULL) == CDR_EUSER);
    T_HAS(err.text, "Did you mean kimi_k3");
    T_CHECK(toy("kimi_linear", in_dir("none"), "mxfp4", NULL) == CDR_EUSER && toy("kimi_linear", in_dir("none"), "int4", NULL) == CDR_EUSAGE);
    T_CHECK(!cdr_exists(in_dir("none")));
}

/* What an export to FP8 holds is the BF16 matrix as cdr_weights_round_fp8 leaves it, to the bit. */
static void fp8_is_rounded_bf16(void)
{
    const char *at[2] = { in_dir("v3-bf16"), in_dir("v3-fp8") };
    cdr_pool *pool = cdr_pool_new();
    cdr_hf *d[2] = { NULL };
    cdr_weights *w[2] = { NULL };
    int n_fp8 = 0, other = 0;
    cdr_model *m[2];
    for (int k = 0; k < 2; k++) {
        cdr_export_args a = { .common = { .quiet = true }, .source = at[0], .format = "hf", .out = at[1], .experts = "fp8" };
        T_CHECK((k == 0 ? toy("deepseek_v3", at[0], NULL, NULL) : (clear(), cdr_export(&a, &result, &err))) == CDR_OK);
        T_CHECK(cdr_model_load(&(cdr_model_spec){ .path = at[k] }, pool, &m[k], &err) == CDR_OK);
        T_CHECK(cdr_hf_open(at[k], &d[k], &err) == CDR_OK && cdr_weights_open(m[k], d[k], &w[k], &err) == CDR_OK);
    }
    for (int64_t i = 0; i < cdr_model_params(m[0]); i++) {
        cdr_model_row row = cdr_model_stored(m[0], i);
        T_CHECK(!cdr_weights_fp8(w[0], i));
        if (!cdr_weights_fp8(w[1], i)) continue;
        const int64_t N = row.n[0], K = row.n[1], n = N * K;
        float *x = cdr_alloc(sizeof *x * (size_t)n * 2), *y = x + n;
        T_CHECK(cdr_weights_read(w[0], i, 0, N, CDR_F32, x, &err) == CDR_OK && cdr_weights_read(w[1], i, 0, N, CDR_F32, y, &err) == CDR_OK);
        other += memcmp(x, y, sizeof *x * (size_t)n) != 0;
        cdr_weights_round_fp8(N, K, NULL, x);
        T_CHECK(memcmp(x, y, sizeof *x * (size_t)n) == 0);
        n_fp8++;
        cdr_free(x);
    }
    T_CHECK(n_fp8 > 0 && other > 0);
    for (int k = 0; k < 2; k++) cdr_weights_close(w[k]), cdr_hf_close(d[k]);
    cdr_pool_free(pool);
}

/* ---- runs ----------------------------------------------------------------------------------------------------------------------- */
static const char RECIPE[] =
    "version: 1\n"
    "name: t\n"
    "model: {path: %s}\n"
    "data: {train: %s/text.txt, eval_fraction: 0.1}\n"
    "train: {steps: %d, sequence_length: 64, micro_batch_tokens: 64, global_batch_tokens: 64%s}\n"
    "optimizer: {learning_rate: 3.0e-3}\n"
    "schedule: {warmup_steps: 0}\n"
    "machine: {device: cpu, threads: 1}\n"
    "output_dir: %s\n"
    "eval: {every: none, at_start: false, tokens: 64}\n"
    "generate: {every: none, prompts: []}\n"
    "%s";

static cdr_status train(const char *model, const char *out, int steps, const char *more_train, const char *more, const char *allow)
{
    char text[4000], recipe[1100];
    (void)snprintf(text, sizeof text, RECIPE, model, dir, steps, more_train, out, more);
    (void)snprintf(recipe, sizeof recipe, "%s.yaml", out);
    T_CHECK(cdr_file_write(recipe, text, strlen(text), NULL) == CDR_OK);
    const char *allowed[] = { allow };
    clear();
    cdr_train_args a = { .common = { .quiet = true }, .recipe = recipe, .allow_change = allowed, .n_allow_change = allow ? 1 : 0 };
    return cdr_train(&a, &result, &err);
}

/* Loss of the last step that the events of a run tell; -1: none. */
static double last_loss(const char *run, int *steps)
{
    char path[1100], *text = NULL;
    double loss = -1;
    (void)snprintf(path, sizeof path, "%s/events.jsonl", run);
    *steps = 0;
    if (cdr_file_read(path, 1 << 24, &text, NULL, NULL) != CDR_OK) return -1;
    for (const char *at = text; (at = strstr(at, "\"type\":\"step\"")) != NULL; at++, ++*steps) loss = atof(strstr(at, "\"loss\":") + 7);
    cdr_free(text);
    return loss;
}

static uint64_t base_hash(const char *path)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = NULL;
    cdr_hf *d = NULL;
    cdr_weights *w = NULL;
    uint64_t h = 0;
    cdr_model_spec spec = { .path = path };
    T_CHECK(cdr_model_load(&spec, pool, &m, NULL) == CDR_OK && cdr_hf_open(path, &d, NULL) == CDR_OK && cdr_weights_open(m, d, &w, NULL) == CDR_OK &&
            cdr_weights_hash(w, NULL, &h, NULL) == CDR_OK);
    cdr_weights_close(w);
    cdr_hf_close(d);
    cdr_pool_free(pool);
    return h;
}

static const char LORA[] = "lora: {rank: 4, alpha: 8, targets: [attention, shared_experts]}\n";

/* A slow disk, when it is asked for: each read of a file takes so many microseconds more. In place of the C library's. */
static int slow_us;

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    if (slow_us > 0) (void)usleep((useconds_t)slow_us);
    return syscall(SYS_pread64, fd, to, bytes, at);
}

/* What the events say of a load: records, in ascending order from 0 to the whole; -1: they do not. last: of the run before. */
static int load_records(const char *run, int64_t *total)
{
    char *text = NULL, path[1100];
    int n = 0;
    int64_t before = -1;
    (void)snprintf(path, sizeof path, "%s/events.jsonl", run);
    if (cdr_file_read(path, 1 << 24, &text, NULL, NULL) != CDR_OK) return -1;
    bool ok = strstr(text, "\"type\":\"run\"") < strstr(text, "\"type\":\"load\"");
    for (const char *at = text; (at = strstr(at, "\"type\":\"load\"")) != NULL; at++, n++) {
        const char *done = strstr(at, "\"bytes_done\":"), *all = strstr(at, "\"bytes_total\":"), *rate = strstr(at, "\"bytes_per_s\":");
        int64_t x = done ? atoll(done + 13) : -1;
        *total = all ? atoll(all + 14) : 0;
        ok = ok && rate && x >= before && x <= *total && (n == 0) == (x == 0) && (x > 0) == (atof(rate + 14) > 0);
        before = x;
    }
    cdr_free(text);
    return ok && before == *total ? n : -1;
}

/* While weights load there is a record at once, each second, and at the end, all behind the run's own; a start that is refused has none. */
static void loading_is_told(void)
{
    char base[1024], run[1024], copy[1024];
    int64_t total = 0, all = 0;
    int steps;
    (void)snprintf(base, sizeof base, "%s", in_dir("told"));
    (void)snprintf(run, sizeof run, "%s", in_dir("told-run"));
    (void)snprintf(copy, sizeof copy, "%s", in_dir("told-run/events.jsonl"));
    T_CHECK(toy("kimi_k3", base, NULL, NULL) == CDR_OK);
    T_CHECK(train(base, run, 1, "", LORA, NULL) == CDR_OK && load_records(run, &total) == 2 && total > 300000);
    T_CHECK(train(base, run, 1, "", LORA, NULL) == CDR_OK && cdr_remove_tree(run, NULL) == CDR_OK);
    slow_us = 110000;
    int64_t t0 = cdr_now_ns();
    T_CHECK(train(base, run, 1, "", LORA, NULL) == CDR_OK);
    int seconds = (int)((cdr_now_ns() - t0) / 1000000000), n = load_records(run, &all);
    slow_us = 0;
    T_CHECK(n >= 4 && n <= 2 + seconds && all == total);
    char *text = NULL, *after = NULL;
    size_t bytes, more;
    T_CHECK(cdr_file_read(copy, 1 << 24, &text, &bytes, NULL) == CDR_OK);
    T_CHECK(train(base, run, 2, "", "lora: {rank: 2, alpha: 8, targets: [attention, shared_experts]}\n", NULL) == CDR_EUSER);
    T_CHECK(cdr_file_read(copy, 1 << 24, &after, &more, NULL) == CDR_OK && more == bytes && last_loss(run, &steps) > 0 && steps == 1);
    cdr_free(text);
    cdr_free(after);
}

static void lora_on_a_packed_base(void)
{
    char base[1024], copy[1024], wide[1024], run[1024], other[1024];
    int steps;
    (void)snprintf(base, sizeof base, "%s", in_dir("base"));
    (void)snprintf(copy, sizeof copy, "%s", in_dir("base-copy"));
    (void)snprintf(wide, sizeof wide, "%s", in_dir("base-wide"));
    (void)snprintf(other, sizeof other, "%s", in_dir("base-other"));
    (void)snprintf(run, sizeof run, "%s", in_dir("lora"));
    T_CHECK(toy("kimi_k3", base, NULL, NULL) == CDR_OK && toy("kimi_k3", other, NULL, "seed=9") == CDR_OK);
    T_CHECK(export(base, copy, NULL) == CDR_OK);
    cdr_export_args x = { .common = { .quiet = true }, .source = base, .format = "hf", .out = wide, .experts = "bf16" };
    clear();
    T_CHECK(cdr_export(&x, &result, &err) == CDR_OK);
    uint64_t before = base_hash(base);
    T_CHECK(train(base, run, 2, "", LORA, NULL) == CDR_OK);
    T_STR(err.text, "");
    double packed = last_loss(run, &steps);
    T_CHECK(steps == 2 && packed > 0);
    char *events = NULL;
    T_CHECK(cdr_file_read(in_dir("lora/events.jsonl"), 1 << 20, &events, NULL, NULL) == CDR_OK);
    T_HAS(events, "\"type\":\"load\"");
    cdr_free(events);
    T_CHECK(base_hash(base) == before && same_dirs(base, copy) > 0);               /* nothing was written there */
    cdr_ckpt *ck = NULL;
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_OK);
    char hex[32];
    (void)snprintf(hex, sizeof hex, "%016llx", (unsigned long long)before);
    if (ck) T_STR(cdr_json_str(cdr_json_get(cdr_json_get(cdr_ckpt_manifest(ck), "base"), "hash"), NULL), hex);
    if (ck) cdr_ckpt_close(ck);
    /* the same base unpacked: the same products, to rounding */
    T_CHECK(train(wide, in_dir("lora-wide"), 2, "", LORA, NULL) == CDR_OK);
    T_NEAR(last_loss(in_dir("lora-wide"), &steps), packed, 2e-3);
    /* goes on, also on a copy elsewhere; not on another base */
    T_CHECK(train(base, run, 3, "", LORA, NULL) == CDR_OK && last_loss(run, &steps) > 0 && steps == 3);
    T_CHECK(train(copy, run, 4, "", LORA, "model.path") == CDR_OK && last_loss(run, &steps) > 0 && steps == 4);
    T_CHECK(train(other, run, 5, "", LORA, "model.path") == CDR_EDATA);
    T_STR(err.id, "checkpoint.other-base");
    T_HAS(err.text, hex);
}

/* A full training from a directory, exported again: what trained is written anew, in the base's layout, and loads. */
static void full_run_and_export(void)
{
    char base[1024], run[1024], out[1024], again[1024];
    int steps;
    (void)snprintf(base, sizeof base, "%s", in_dir("linear"));
    (void)snprintf(run, sizeof run, "%s", in_dir("full"));
    (void)snprintf(out, sizeof out, "%s", in_dir("full-hf"));
    (void)snprintf(again, sizeof again, "%s", in_dir("full-again"));
    T_CHECK(toy("kimi_linear", base, NULL, NULL) == CDR_OK);
    T_CHECK(train(base, run, 2, ", freeze: [embed]", "", NULL) == CDR_OK);
    T_STR(err.text, "");
    double loss = last_loss(run, &steps);
    T_CHECK(steps == 2 && loss > 0);
    T_CHECK(export(run, out, NULL) == CDR_OK);
    T_STR(err.text, "");
    T_HAS(result.text, " 1 of them copied byte for byte");                      /* the embedding */
    T_CHECK(base_hash(out) != base_hash(base));
    T_CHECK(export(run, again, base) == CDR_OK && same_dirs(out, again) > 0);
    /* eval of the directory's weights = of the run's: the exported model continues where it was */
    T_CHECK(train(out, in_dir("full-next"), 1, ", freeze: [embed]", "", NULL) == CDR_OK);
    double next = last_loss(in_dir("full-next"), &steps);
    T_CHECK(next > 0 && fabs(next - loss) < 1.0);
    T_CHECK(export(in_dir("lora"), in_dir("none"), NULL) == CDR_EUSER);
    T_STR(err.id, "export.adapter");
    /* the embedding is the base's: another base's would be a model that nobody trained, and another family's has none to give */
    T_CHECK(toy("kimi_linear", in_dir("linear-other"), NULL, "seed=9") == CDR_OK);
    T_CHECK(export(run, in_dir("none"), in_dir("linear-other")) == CDR_EDATA);
    T_STR(err.id, "checkpoint.other-base");
    T_HAS(err.text, "full: was not trained on the weights of ");
    T_HAS(err.text, "Name its own base (--base DIR)");
    T_CHECK(export(run, in_dir("none"), in_dir("base")) == CDR_EDATA);
    T_STR(err.id, "checkpoint.other-model");
    T_CHECK(!cdr_exists(in_dir("none")));
}

/* Tensors of a, but the routed experts of a layer, which come from b; the rest of a directory is a's. */
static void mix(const char *a, const char *b, const char *layer, const char *to)
{
    cdr_hf *d[2] = { 0 };
    cdr_pool *pool = cdr_pool_new();
    cdr_hf_writer *w = NULL;
    int64_t n = 0, cap = 0;
    bool there = cdr_hf_open(a, &d[0], &err) == CDR_OK && cdr_hf_open(b, &d[1], &err) == CDR_OK;
    T_CHECK(there);
    if (!there) return;
    cdr_hf_out_tensor *t = cdr_pool_alloc(pool, sizeof *t * (size_t)(cap = cdr_hf_count(d[0]) + cdr_hf_count(d[1])));
    const void **data = cdr_pool_alloc(pool, sizeof *data * (size_t)cap);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < cdr_hf_count(d[k]); i++) {
            const char *name = cdr_hf_name(d[k], i);
            cdr_hf_tensor x = { 0 };
            if ((strstr(name, layer) && strstr(name, ".experts.")) != (k == 1)) continue;
            T_CHECK(cdr_hf_tensor_at(d[k], i, &x, &err) == CDR_OK);
            t[n].spec = (cdr_st_spec){ .name = name, .format = x.t->format, .n_dim = x.t->n_dim };
            memcpy(t[n].spec.n, x.t->n, sizeof t[n].spec.n);
            data[n++] = x.data;
        }
    T_CHECK(n > 100 && cdr_hf_create(to, &(cdr_hf_layout){ .t = t, .n = n }, &w, &err) == CDR_OK);
    for (int64_t i = 0; w && i < n; i++) {
        const cdr_st_spec *x = &t[cdr_hf_writer_order(w, i)].spec;
        size_t bytes = (size_t)cdr_st_format_row(x->format)->bits / 8;
        for (int k = 0; k < x->n_dim; k++) bytes *= (size_t)x->n[k];
        T_CHECK(cdr_hf_append(w, data[cdr_hf_writer_order(w, i)], bytes, &err) == CDR_OK);
    }
    static const char *const SIDE[] = { "config.json", "tokenizer_config.json", "tiktoken.model" };
    for (int i = 0; w && i < CDR_COUNT(SIDE); i++) T_CHECK(cdr_hf_side_copy(w, SIDE[i], cdr_pool_printf(pool, "%s/%s", a, SIDE[i]), &err) == CDR_OK);
    T_CHECK(w && cdr_hf_finish(w, NULL, &err) == CDR_OK);
    cdr_hf_close(d[0]);
    cdr_hf_close(d[1]);
    cdr_pool_free(pool);
}

/* Experts packed in one layer and not in another: what stays packed in its file cannot hold the others, which is said; expanded, or with the packed ones
 * behind, they are read, all alike. */
static void experts_of_two_formats(void)
{
    char some[1024], rest[1024];
    static const char WIDE[] = "precision: {experts: bf16}\n";
    char lora[200];
    int steps;
    (void)snprintf(some, sizeof some, "%s", in_dir("mixed"));
    (void)snprintf(rest, sizeof rest, "%s", in_dir("mixed-first"));
    (void)snprintf(lora, sizeof lora, "%s%s", LORA, WIDE);
    mix(in_dir("base"), in_dir("base-wide"), "layers.2.", some);
    mix(in_dir("base"), in_dir("base-wide"), "layers.1.", rest);
    T_CHECK(train(some, in_dir("mixed-run"), 1, "", LORA, NULL) == CDR_EDATA);
    T_STR(err.id, "checkpoint.mixed-experts");
    T_HAS(err.text, "/mixed: ");
    T_HAS(err.text, "layers.2.");
    T_HAS(err.text, "is not packed, other routed experts of the model are. Set precision.experts=bf16");
    T_CHECK(train(some, in_dir("mixed-wide"), 1, "", lora, NULL) == CDR_OK);
    T_CHECK(train(rest, in_dir("mixed-rest"), 1, "", LORA, NULL) == CDR_OK);
    T_CHECK(train(in_dir("base-wide"), in_dir("mixed-all"), 1, "", lora, NULL) == CDR_OK);
    double loss = last_loss(in_dir("mixed-all"), &steps);
    T_CHECK(loss > 0 && last_loss(in_dir("mixed-wide"), &steps) == loss && last_loss(in_dir("mixed-rest"), &steps) == loss);
}

static double eval_loss(const char *model)
{
    static const char *const set[] = { "train.sequence_length=64", "precision.compute=bf16" };
    cdr_eval_args a = { .common = { .set = set, .n_set = CDR_COUNT(set), .quiet = true }, .model = model, .data = in_dir("text.txt"), .n_tokens = 256 };
    clear();
    T_CHECK(cdr_eval(&a, &result, &err) == CDR_OK);
    const char *at = result.json ? strstr(result.json, "\"loss\":") : NULL;
    return at ? atof(at + 7) : -1;
}

/* A run from scratch in BF16: its model as a release has the run's very loss, as long as nothing is packed; packed it is near. */
static void scratch_run_and_export(void)
{
    char run[1024], wide[1024], packed[1024];
    int steps;
    (void)snprintf(run, sizeof run, "%s", in_dir("scratch"));
    (void)snprintf(wide, sizeof wide, "%s", in_dir("scratch-wide"));
    (void)snprintf(packed, sizeof packed, "%s", in_dir("scratch-packed"));
    T_CHECK(train("tiny-k31", run, 1, "", "precision: {compute: bf16}\n", NULL) == CDR_OK);
    T_STR(err.text, "");
    T_CHECK(last_loss(run, &steps) > 0 && steps == 1);
    cdr_toy_args a = { .common = { .quiet = true }, .family = "kimi_k31", .from = run, .out = packed };
    clear();
    T_CHECK(cdr_toy(&a, &result, &err) == CDR_OK);
    T_HAS(result.text, "kimi_k31, 8 layers, 4,059,296 parameters, 9 shards; experts packed to MXFP4");          /* as the family's release */
    T_CHECK(export(run, in_dir("scratch-hf"), NULL) == CDR_OK && same_dirs(packed, in_dir("scratch-hf")) >= 12);
    a.experts = "bf16";
    a.out = wide;
    clear();
    T_CHECK(cdr_toy(&a, &result, &err) == CDR_OK);
    double loss = eval_loss(run), near = eval_loss(packed);
    T_CHECK(loss > 1 && eval_loss(wide) == loss && near != loss);
    T_NEAR(near, loss, 0.1);
    a.family = "kimi_k3";
    a.out = in_dir("none");
    clear();
    T_CHECK(cdr_toy(&a, &result, &err) == CDR_EUSER);
    T_HAS(err.text, "Write: cadre toy kimi_k31");
    T_CHECK(!cdr_exists(a.out));
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!files_open("toy") || setenv("CADRE_CACHE", in_dir("cache"), 1) != 0) return 1;
    cdr_log_set_level(CDR_LOG_ERROR);
    cdr_text t = { 0 };
    for (int i = 0; i < 600; i++) cdr_text_printf(&t, "The %dth line of a text, of which there are many. ", i);
    T_CHECK(cdr_file_write(in_dir("text.txt"), t.s, t.n, NULL) == CDR_OK);
    cdr_text_free(&t);
    T_RUN(families);
    T_RUN(fp8_is_rounded_bf16);
    T_RUN(loading_is_told);
    T_RUN(lora_on_a_packed_base);
    T_RUN(experts_of_two_formats);
    T_RUN(full_run_and_export);
    T_RUN(scratch_run_and_export);
    clear();
    files_close();
    return t_end();
}
