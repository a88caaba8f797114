/* test_cli.c: the command line as a user sees it: exit codes, what goes to stdout and stderr, the JSON document, help whose
 * examples parse. Runs the `cadre` program that was built beside this test.
 */
#include "program.h"
#include "recipe/recipe.h"
#include <fcntl.h>
#include <sys/file.h>

static cdr_err err;

static const cdr_json *document(void)
{
    const cdr_json *root = NULL;
    err = (cdr_err){ 0 };
    T_CHECK(cdr_json_parse(texts, out, strlen(out), "stdout", &root, &err) == CDR_OK);
    if (err.status) T_STR(err.text, out);
    return root;
}

static void usage_errors_exit_2(void)
{
    static const struct { const char *args, *text; } bad[] = {
        { "trian", "error: cadre trian: unknown command. Did you mean train?" },
        { "train", "cadre train: RECIPE is missing" },
        { "train a b", "one argument too many: b" },
        { "train tiny-test --stepz 3", "unknown flag --stepz. Did you mean --steps?" },
        { "train tiny-test --steps", "--steps needs a value" },
        { "train tiny-test --dry-run=1", "--dry-run takes no value" },
        { "train tiny-test --set train.steps", "expected section.key=value" },
        { "plan tiny-test --print memry", "Did you mean memory?" },
        { "plan tiny-test --rank two", "no integer of at least 0" },
        { "plan tiny-test --search", "reserved: not in this version" },
        { "export runs/x --out y", "--format F is missing" },
        { "merge a b --out c --min-survival 2", "no number from 0 to 1" },
        { "config shw tiny-test", "Did you mean show?" },
        { "config show", "a recipe is missing" },
        { "config list x", "takes no argument" },
        { "config migrate tiny-test --from axolotl", "reserved: not in this version" },
        { "check --device tpu", "neither cpu nor cuda" },
        { "launch train tiny-test", "-n N is missing" },
        { "launch -n 0 train tiny-test", "at least one rank" },
        { "launch -n 2", "COMMAND... is missing" },
        { "data check", "FILE or RECIPE is missing" },
        { "data chek x", "Did you mean check?" },
        { "data pack tiny-test", "--out DIR is missing" },
        { "data make dictionary x.dict --out y --line 3", "--line does not belong" },
        { "data make dictionary x.dict", "--out FILE is missing" },
        { "onboard a --out b --devices 0", "--devices 0: the plan needs at least 1 device" },
        { "version x", "one argument too many" },
    };
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        int code = run(bad[i].args);
        T_NEAR(code, 2, 0);
        T_STR(out, "");
        T_HAS(errors, bad[i].text);
        T_HAS(errors, "[usage.");
        if (strchr(errors, '\n') != errors + strlen(errors) - 1) T_STR(errors, "one line");
    }
}

static void reserved_commands_say_so(void)
{
    static const char *const names[] = { "board", "mcp", "report" };
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        T_NEAR(run(names[i]), 2, 0);
        T_HAS(errors, "reserved: not in this version");
    }
}

static void user_errors_exit_1_and_keep_their_id(void)
{
    T_NEAR(run("config show tiny-test --set optimizer.learningrate=1"), 1, 0);
    T_STR(errors, "error: --set optimizer.learningrate: unknown key optimizer.learningrate. Did you mean optimizer.learning_rate? [config.unknown-key]\n");
    T_NEAR(run("config show nosuch.yaml"), 1, 0);
    T_NEAR(run("train tiny-test --ep 2"), 1, 0);
    T_HAS(errors, "error: --ep: parallel.expert is 2, which does not divide shard 1 x context 1 = 1 ranks");
    T_NEAR(run("config schema train.stps"), 1, 0);
    T_HAS(errors, "Did you mean train.steps");
    T_NEAR(run("check nosuchop"), 1, 0);
    T_HAS(errors, "no operator is named nosuchop");
    static const char elsewhere[] = "extends: tiny-linear\nname: elsewhere\nfamily: kimi_linear\nmatch: none\n"
        "tensors:\n  moe: {expert.w2: [\"experts.{expert}.w2.weight\", [hidden, width], BF16, {place: shard}]}\n";
    T_CHECK(cdr_file_write(cdr_pool_printf(texts, "%s/elsewhere.yaml", dir), elsewhere, strlen(elsewhere), &err) == CDR_OK);
    T_NEAR(runf("plan tiny-test --set model.path=%s/elsewhere.yaml --set data.tokenizer=byte --devices 2 --ep 2", dir), 1, 0);
    T_HAS(errors, "error: parallel.expert: 2 ranks share the experts, but the description places a stack of layer 1 elsewhere: each has all 8 of its matrices. "
                  "Give its row place: expert, or take parallel.expert=1 [parallel.expert]");
}

/* Another model's tokenizer is refused before anything is written; and there are two ways to have none. */
static void tokenizer_of_another_model(void)
{
    const char *out_dir = cdr_pool_printf(texts, "%s/never", dir);
    T_NEAR(runf("train tiny-test --out %s --set data.tokenizer=test/golden/tokenizer", out_dir), 3, 0);
    T_STR(errors, "error: tiktoken.model: 956 tokens, the model has 512; ids would not match. Remove data.tokenizer (--set data.tokenizer) to use the model's own byte "
                  "tokenizer [tokenizer.vocab-mismatch]\n");
    T_NEAR(runf("train tiny-test --out %s --set data.tokenizer=test/golden/tokenizer/qwen2.json", out_dir), 3, 0);
    T_HAS(errors, "qwen2.json: 706 tokens, the model has 512");
    T_NEAR(runf("train tiny-test --out %s --set data.tokenizer=test/golden", out_dir), 3, 0);
    T_HAS(errors, "[tokenizer.no-file]");
    T_CHECK(!cdr_exists(out_dir));
}

static void one_json_document(void)
{
    static const char *const good[] = { "version", "doctor", "config list", "config schema", "config schema train.steps", "config show tiny-dense --changed" };
    for (int i = 0; i < (int)(sizeof good / sizeof *good); i++) {
        T_NEAR(runf("%s --json", good[i]), 0, 0);
        const cdr_json *root = document();
        T_CHECK(cdr_json_bool(cdr_json_get(root, "ok"), false) && cdr_json_type(cdr_json_get(root, "result")) == CDR_JSON_OBJECT);
        T_CHECK(cdr_json_type(cdr_json_get(root, "warnings")) == CDR_JSON_ARRAY && cdr_json_get(root, "error") == NULL);
        T_STR(cdr_json_str(cdr_json_get(root, "cadre"), ""), CDR_VERSION);
    }
    T_NEAR(run("config show tiny-test --set optimizer.lr=0.5 --json"), 0, 0);
    const cdr_json *root = document();
    T_STR(cdr_json_str(cdr_json_at(cdr_json_get(root, "warnings"), 0), ""), "lr read as optimizer.learning_rate");
    T_CHECK(cdr_json_real(cdr_json_get(cdr_json_get(cdr_json_get(root, "result"), "optimizer.learning_rate"), "value"), 0) == 0.5);
    T_NEAR(run("config show tiny-test --set optimizer.lr=x --json"), 1, 0);
    root = document();
    T_CHECK(!cdr_json_bool(cdr_json_get(root, "ok"), true));
    T_STR(cdr_json_str(cdr_json_get(cdr_json_get(root, "error"), "id"), ""), "config.bad-value");
    T_CHECK(cdr_json_int(cdr_json_get(cdr_json_get(root, "error"), "exit_code"), 0) == 1);
    T_NEAR(run("--json"), 2, 0);
}

static void json_wherever_it_stands(void)
{
    static const char *const bad[] = { "trian --json", "plan --nope --json", "eval --json", "chat --json", "--json", "version x --json",
                                       "train nosuch --dry-run --json" };
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        int code = run(bad[i]);
        const cdr_json *root = document();
        T_CHECK(!cdr_json_bool(cdr_json_get(root, "ok"), true));
        T_NEAR(cdr_json_int(cdr_json_get(cdr_json_get(root, "error"), "exit_code"), 0), code, 0);
    }
    T_NEAR(run("train tiny-test --dry-run --json --set data.train=nosuch"), 0, 0);
    T_CHECK(cdr_json_type(cdr_json_get(cdr_json_get(document(), "result"), "fits")) == CDR_JSON_BOOL);
}

/* ---- runs: a recipe and its text in `dir` ----------------------------------------------------------------------------------- */

static const char *recipe(void)
{
    static const char yaml[] = "name: use\nmodel: {path: tiny-test}\ndata: {train: %s/t.txt, eval_fraction: 0.1, tokenizer: byte}\n"
                               "train: {steps: 3, sequence_length: 64, micro_batch_tokens: 64, global_batch_tokens: 128}\n"
                               "precision: {compute: f32, params: f32}\ncheckpoint: {every: 1}\n";
    static char text[2000];
    char *path = cdr_pool_printf(texts, "%s/use.yaml", dir), *filled = cdr_pool_printf(texts, yaml, dir);
    for (int i = 0; i < (int)sizeof text; i++) text[i] = "the cat sees the dog.\n"[i % 22];
    T_CHECK(cdr_file_write(cdr_pool_printf(texts, "%s/t.txt", dir), text, sizeof text, &err) == CDR_OK);
    T_CHECK(cdr_file_write(path, filled, strlen(filled), &err) == CDR_OK);
    return path;
}

/* Every line of stdout is a record; the last one's type. */
static const char *last_record(const cdr_json **last)
{
    const char *type = "";
    *last = NULL;
    for (const char *p = out; *p;) {
        size_t n = strcspn(p, "\n");
        err = (cdr_err){ 0 };
        if (cdr_json_parse(texts, p, n, "record", last, &err) != CDR_OK) T_STR(err.text, out);
        type = cdr_json_str(cdr_json_get(*last, "type"), "");
        p += n + (p[n] == '\n');
    }
    return type;
}

static void streams_are_records_to_the_end(void)
{
    const char *r = recipe();
    const cdr_json *last;
    static const char *const bad[] = { "train nosuch --json", "train --nope --json", "launch -n 2 train nosuch --json", "launch --json -n 2 train nosuch",
                                       "launch -n 0 train x --json", "launch -n 5000 train x --json", "train tiny-test --json --out /dev/null" };
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        int code = run(bad[i]);
        T_CHECK(code == 1 || code == 2);
        T_STR(last_record(&last), "error");
        T_NEAR(cdr_json_int(cdr_json_get(last, "exit_code"), 0), code, 0);
    }
    static const char *const good[] = { "launch -n 2 train %s --out %s/json --json", "launch --json -n 2 train %s --out %s/json", "train %s --out %s/json --json" };
    for (int i = 0; i < (int)(sizeof good / sizeof *good); i++) {          /* the second and third find a finished run */
        T_NEAR(runf(good[i], r, dir), 0, 0);
        T_STR(last_record(&last), "end");
        T_STR(cdr_json_str(cdr_json_get(last, "status"), ""), "done");
        T_NEAR(cdr_json_int(cdr_json_get(last, "step"), 0), 3, 0);
    }
    T_NEAR(runf("launch -n 2 eval %s/json --json", dir), 0, 0);
    T_CHECK(cdr_json_bool(cdr_json_get(document(), "ok"), false));
    T_NEAR(runf("launch -n 2 train %s --out %s/json -q", r, dir), 0, 0);
    T_STR(out, "");
}

static void a_non_finite_step_is_named(void)
{
    const char *r = recipe(), *flags = "-q --steps 9 --set optimizer.learning_rate=1e30 --set schedule.warmup_steps=0";
    for (int ranks = 1; ranks <= 2; ranks++) {
        T_NEAR(runf("launch -n %d train %s --out %s/nan%d %s", ranks, r, dir, ranks, flags), 4, 0);
        T_HAS(errors, "error: step 2: gradient norm is NaN; first non-finite value in ");
        T_HAS(errors, "backward, rank 0, row ");
        T_HAS(errors, "Checkpoint step 1 is intact; try a lower optimizer.learning_rate or train.on_nonfinite=skip [train.nonfinite]\n");
    }
    T_NEAR(runf("train %s --out %s/nan3 %s --set train.on_nonfinite=skip --set checkpoint.every=none", r, dir, flags), 4, 0);
    T_HAS(errors, "error: step 5: ");
    T_HAS(errors, "3 steps in a row were skipped. No checkpoint was written yet; try a lower optimizer.learning_rate [train.nonfinite]\n");
}

static void a_resume_says_what_was_changed(void)
{
    const char *r = recipe(), *base = cdr_pool_printf(texts, "train %s --out %s/resume -q", r, dir);
    T_NEAR(run(base), 0, 0);
    T_NEAR(runf("%s --steps 4 --set train.sequence_length=128 --set train.micro_batch_tokens=128", base), 1, 0);
    T_HAS(errors, "error: --set train.sequence_length: is 128, was 64 in ");          /* not data.max_docs, which follows from it */
    T_NEAR(runf("%s --steps 4 --seed 5", base), 1, 0);
    T_HAS(errors, "or --allow-change seed [resume.fixed-key]");
    T_NEAR(runf("%s --steps 4 --seed 5 --allow-change seed", base), 0, 0);      /* another order of the data */
    T_NEAR(runf("eval %s/nosuch", dir), 3, 0);
    T_HAS(errors, "there is no such file or directory. Name a directory of weights in Hugging Face layout, a run directory");
}

static void a_directory_in_use_is_left_alone(void)
{
    const char *r = recipe(), *lock = cdr_pool_printf(texts, "%s/used/.lock", dir), *failure = cdr_pool_printf(texts, "%s/used/failure.json", dir);
    T_NEAR(runf("train %s --out %s/used -q", r, dir), 0, 0);
    int fd = open(lock, O_RDWR | O_CLOEXEC);
    T_CHECK(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    for (int i = 0; i < 8; i++) {            /* whichever of two ranks speaks first, it says why */
        T_NEAR(runf("launch -n %d train %s --out %s/used -q", 1 + (i > 0), r, dir), 1, 0);
        T_HAS(errors, "is in use by another run. Wait for it, or take another --out [run.locked]");
    }
    T_CHECK(access(failure, F_OK) != 0);
    close(fd);
}

/* A rank dies: the message names the step to go on from, which is none here. */
static void a_lost_rank_names_the_checkpoint(void)
{
    T_NEAR(runf("launch -n 2 train %s --out %s/lost --steps 1000000 --set checkpoint.every=none --set log.every=1000 & "
                                     "until grep -q '\"step\":1,' %s/lost/events.jsonl; do sleep 0.05; done 2>/dev/null; sleep 0.2; "
                                     "kill -9 $(pgrep -P $! | tail -n 1); wait $!", recipe(), dir, dir), 200, 0);
    T_HAS(errors, "killed by signal 9 in step ");
    T_HAS(errors, "Start again from the beginning, as no checkpoint was written yet [comm.rank-lost]");
    T_CHECK(strchr(errors, '\n') == errors + strlen(errors) - 1);
}

/* A token file is checked when it is opened and then read where it lies. Ids beyond the vocabulary that come into it later end the run, on all ranks, with the
 * file's name; so do they in evaluation. */
static void a_token_file_is_changed_under_a_run(void)
{
    const char *r = recipe(), *file = cdr_pool_printf(texts, "%s/pack/t.tokens", dir), *from = cdr_pool_printf(texts, "data: {train: %s/t.txt, eval_fraction: 0.1", dir);
    char *yaml = NULL, *at = NULL;
    size_t n;
    T_NEAR(runf("data pack %s --out %s/pack", r, dir), 0, 0);
    T_CHECK(access(file, F_OK) == 0 && cdr_file_read(r, 1 << 16, &yaml, &n, &err) == CDR_OK && (at = strstr(yaml, from)) != NULL);
    if (!at) return;
    const char *text = cdr_pool_printf(texts, "%.*sdata: {train: [{path: %s, format: tokens}], eval: [{path: %s, format: tokens}]%s", (int)(at - yaml), yaml, file, file,
                                       at + strlen(from)), *tokens = cdr_pool_printf(texts, "%s/tokens.yaml", dir);
    cdr_free(yaml);
    T_CHECK(cdr_file_write(tokens, text, strlen(text), &err) == CDR_OK);
    for (int ranks = 1; ranks <= 2; ranks++) {
        T_NEAR(runf("launch -n %d train %s --out %s/changed%d --steps 1000000 --set checkpoint.every=none --set log.every=1000 & "
                                         "until grep -q '\"step\":1,' %s/changed%d/events.jsonl; do sleep 0.05; done 2>/dev/null; cp %s %s/kept; "
                                         "printf '\\377\\377\\177\\0' | dd of=%s bs=4 seek=%d conv=notrunc 2>/dev/null; wait $!; code=$?; cat %s/kept >%s; exit $code",
                                   ranks, tokens, dir, ranks, dir, ranks, file, dir, file, 8192 / 4 + 40, dir, file), 3, 0);
        T_HAS(errors, cdr_pool_printf(texts, "error: %s", file));
        T_HAS(errors, "now holds id 8388607, of a vocabulary of ");
        T_HAS(errors, "Put it back, and start again [data.changed]\n");
        T_CHECK(strchr(errors, '\n') == errors + strlen(errors) - 1);
    }
}

static void data_that_is_hardly_text(void)
{
    const char *r = recipe(), *folder = cdr_pool_printf(texts, "%s/mixed", dir);
    static const char binary[64] = "ELF";
    T_CHECK(cdr_make_dirs(folder, &err) == CDR_OK);
    T_CHECK(cdr_file_write(cdr_pool_printf(texts, "%s/a.txt", folder), "some text, and a little more of it\n", 35, &err) == CDR_OK);
    T_NEAR(runf("train %s --out %s/mixed-run --steps 1 --set data.train=%s", r, dir, folder), 0, 0);
    T_STR(errors, "");
    T_CHECK(cdr_file_write(cdr_pool_printf(texts, "%s/b.bin", folder), binary, sizeof binary, &err) == CDR_OK);
    T_NEAR(runf("train %s --out %s/mixed-run2 --steps 1 --set data.train=%s", r, dir, folder), 0, 0);
    T_HAS(errors, "b.bin: holds zero bytes, so it is hardly text");
    T_CHECK(cdr_file_write(cdr_pool_printf(texts, "%s/one", dir), "a", 1, &err) == CDR_OK);
    T_NEAR(runf("eval %s/mixed-run --data %s/one --json", dir, dir), 0, 0);
    const cdr_json *bits = cdr_json_get(cdr_json_get(document(), "result"), "bits_per_byte");
    T_CHECK(bits && cdr_json_type(bits) == CDR_JSON_NULL);
}

static void control_files(void)
{
    const char *r = recipe(), *run_dir = cdr_pool_printf(texts, "%s/files", dir);
    char *text;
    size_t n;
    T_CHECK(cdr_make_dirs(run_dir, &err) == CDR_OK && cdr_file_write(cdr_pool_printf(texts, "%s/stop", run_dir), "", 0, &err) == CDR_OK);
    T_NEAR(runf("train %s --out %s", r, run_dir), 143, 0);
    T_HAS(errors, "error: stop: saved step 1. Start again to continue [train.signal]\n");
    T_CHECK(cdr_file_read(cdr_pool_printf(texts, "%s/events.jsonl", run_dir), 1 << 20, &text, &n, &err) == CDR_OK);
    T_HAS(text, "\"name\":\"file\",\"action\":\"save_exit\"");
    T_HAS(text, "\"reason\":\"file\"");
    cdr_free(text);
    T_NEAR(runf("train %s --out %s -q", r, run_dir), 0, 0);
}

static void plans_that_do_not_fit(void)
{
    T_NEAR(run("plan tiny-test --set memory.device_limit=15MB --require-fit"), 0, 0);          /* with some layers recomputed */
    T_HAS(out, "bytes of 15,000,000: fits, ");
    T_NEAR(run("plan tiny-test --set memory.device_limit=15MB --set memory.policy=keep --require-fit"), 1, 0);
    T_HAS(errors, "memory.policy=auto -> ");
    T_NEAR(run("plan tiny-test --set memory.device_limit=13MB --require-fit"), 1, 0);
    T_HAS(errors, "error: ddr: the rank needs ");
    T_HAS(errors, " bytes, has 13,000,000: short by ");
    T_HAS(errors, ", with every layer recomputed. Changes that fit, each compiled: ");
    T_NEAR(run("plan tiny-test --json --set memory.device_limit=13MB"), 0, 0);
    const cdr_json *result = cdr_json_get(document(), "result"), *fixes = cdr_json_get(result, "fixes");
    T_CHECK(!cdr_json_bool(cdr_json_get(result, "fits"), true) && cdr_json_count(fixes) >= 1);
    for (int64_t i = 0; i < cdr_json_count(fixes); i++) {      /* each, taken by name, fits with the bytes that it says */
        const cdr_json *set = cdr_json_get(cdr_json_at(fixes, i), "set");
        const char *args = "plan tiny-test --json --set memory.device_limit=13MB";
        for (int64_t k = 0; k < cdr_json_count(set); k++)
            args = cdr_pool_printf(texts, "%s --set %s=%s", args, cdr_json_key(set, k), cdr_json_str(cdr_json_at(set, k), ""));
        T_NEAR(run(args), 0, 0);
        result = cdr_json_get(document(), "result");
        T_CHECK(cdr_json_bool(cdr_json_get(result, "fits"), false) && cdr_json_count(cdr_json_get(result, "fixes")) == 0);
        const cdr_json *tier = cdr_json_get(cdr_json_get(cdr_json_at(cdr_json_get(result, "rank_classes"), 0), "tiers"), "ddr");
        T_CHECK(cdr_json_int(cdr_json_get(tier, "total_bytes"), 0) == cdr_json_int(cdr_json_get(cdr_json_at(fixes, i), "total_bytes"), -1));
    }
    T_NEAR(run("plan tiny-test --set memory.device_limit=1KiB --require-fit"), 1, 0);
    T_HAS(errors, "take a smaller model");
}

/* Patterns: a group, a leaf, a glob, a regular expression, the end of a name; what is frozen is in no checkpoint, and a resume has
 * the bits of a run that was never stopped. */
static void freezing(void)
{
    static const struct { const char *set, *trained; } one[] = {
        { "'train.freeze=[embed]'", "501,488 trained" }, { "'train.freeze=[embed_tokens]'", "501,488 trained" },
        { "'train.freeze=[\"model.embed*\"]'", "501,488 trained" }, { "'train.freeze=[\"re:model[.]embed_tokens[.]weight\"]'", "501,488 trained" },
        { "'train.freeze=[model.embed_tokens]'", "501,488 trained" }, { "'train.trainable=[lm_head]'", "65,536 trained" },
        { "'train.trainable=[head, norms]' --set 'train.freeze=[model.norm]'", "66,160 trained" },
    };
    char *text;
    size_t n;
    for (int i = 0; i < CDR_COUNT(one); i++) {
        T_NEAR(runf("plan tiny-test --set %s", one[i].set), 0, 0);
        T_HAS(out, one[i].trained);
    }
    T_NEAR(run("plan tiny-k31 --set 'train.trainable=[embed]'"), 0, 0);
    T_HAS(out, ", 65,536 trained");                              /* not the padding of frozen ones as well */
    T_NEAR(run("plan tiny-test --set 'train.freeze=[embed]'"), 0, 0);
    T_HAS(out, "| frozen 0.26 |");
    T_NEAR(run("plan tiny-test --set 'train.freeze=[o_prj]'"), 1, 0);
    T_HAS(errors, "error: --set train.freeze: train.freeze \"o_prj\" matches none of ");
    T_HAS(errors, "Did you mean o_proj");
    T_HAS(errors, "[config.no-match]");
    T_NEAR(run("plan tiny-test --set 'train.freeze=[\"re:(\"]'"), 1, 0);
    T_HAS(errors, "error: --set train.freeze: train.freeze: \"(\" is no regular expression [config.bad-pattern]");
    T_NEAR(run("plan tiny-test --set 'train.freeze=[\"*\"]'"), 1, 0);
    T_HAS(errors, "[config.nothing-trains]");
    const char *r = recipe(), *flags = "--set 'train.freeze=[embed, norms]' --set schedule.horizon=6 -q";
    T_NEAR(runf("train %s --out %s/frozen --steps 6 %s", r, dir, flags), 0, 0);
    T_NEAR(runf("train %s --out %s/frozen2 --steps 3 %s", r, dir, flags), 0, 0);
    T_NEAR(runf("train %s --out %s/frozen2 --steps 6 %s", r, dir, flags), 0, 0);
    T_CHECK(cdr_file_read(cdr_pool_printf(texts, "%s/frozen/checkpoints/step-000000006/manifest.json", dir), 1 << 20, &text, &n, &err) == CDR_OK);
    T_CHECK(strstr(text, "embed_tokens") == NULL && strstr(text, "layernorm") == NULL && strstr(text, "lm_head.weight.master") == NULL);
    T_HAS(text, "lm_head.weight.m\"");
    cdr_free(text);
    T_NEAR(runf("eval %s/frozen --json | sed 's/\"seconds\":[0-9.e+-]*//'", dir), 0, 0);
    const char *whole = out;
    T_NEAR(runf("eval %s/frozen2 --json | sed 's/\"seconds\":[0-9.e+-]*//'", dir), 0, 0);
    T_STR(out, whole);
    T_NEAR(runf("train %s --out %s/frozen2 --steps 8 -q", r, dir), 1, 0);
    T_HAS(errors, "train.freeze: is [], was [embed, norms] in ");
}

/* Losses of a run's steps, one a line. */
static const char *losses(const char *run_dir)
{
    T_NEAR(runf("version >/dev/null; grep -h '\"type\":\"step\"' %s/events.jsonl | "
                               "sed 's/.*\"step\":\\([0-9]*\\),\"loss\":\\([-0-9.e+]*\\),.*/\\1 \\2/'",
                               run_dir), 0, 0);
    return out;
}

/* Every part of K3.1 in small, Muon, quantile balancing, and the indexers' warm-up ending between two steps after the resume: the
 * momentum, the selection bias and the warm-up's flag come back to the bit, also on two ranks. */
static void sparse_states_survive_a_resume(void)
{
    const char *r = recipe(), *flags = "--set model.path=tiny-k31 --set optimizer.name=muon --set train.indexer_warmup_steps=3 --set schedule.horizon=4 "
                                       "--set log.router_every=2";
    char *text;
    size_t n;
    T_NEAR(runf("train %s --out %s/k31 --steps 4 %s", r, dir, flags), 0, 0);
    T_STR(errors, "");
    T_HAS(out, "model     tiny-k31: 8 layers (6 KDA, 2 DSA), 32 experts top-4, 4.06 M parameters (1.59 M active), all trained, random weights\n");
    T_HAS(strstr(strstr(out, "  mem "), "  load "), "  eta ");
    T_HAS(out, "\nload      layers x experts over the last 4 steps; after a line: max / mean\nlayer   1  ");
    T_HAS(out, "\nlayer   7  ");
    const char *whole = losses(cdr_pool_printf(texts, "%s/k31", dir));
    T_HAS(whole, "\n4 ");
    T_NEAR(runf("train %s --out %s/k31b --steps 2 %s", r, dir, flags), 0, 0);
    T_NEAR(runf("launch -n 2 train %s --out %s/k31b --steps 4 %s", r, dir, flags), 0, 0);
    T_STR(losses(cdr_pool_printf(texts, "%s/k31b", dir)), whole);
    T_NEAR(runf("eval %s/k31 --json | sed 's/\"seconds\":[0-9.e+-]*//'", dir), 0, 0);
    const char *evaluated = out;
    T_NEAR(runf("eval %s/k31b --json | sed 's/\"seconds\":[0-9.e+-]*//'", dir), 0, 0);
    T_STR(out, evaluated);
    const char *generate = cdr_pool_printf(texts, "generate %s/k31 -q --prompt 'the cat sees' --temperature 0.5 --max-new-tokens 20", dir);
    T_NEAR(run(generate), 0, 0);
    const char *sample = out;
    T_CHECK(strlen(sample) > strlen("the cat sees"));
    T_NEAR(runf("launch -n 2 %s", generate), 0, 0);
    T_STR(out, sample);
    T_CHECK(cdr_file_read(cdr_pool_printf(texts, "%s/k31/checkpoints/step-000000004/manifest.json", dir), 1 << 24, &text, &n, &err) == CDR_OK);
    T_HAS(text, "block_sparse_moe.gate.e_score_correction_bias\":{\"dtype\":\"F32\",\"shape\":[32],\"class\":\"bias\"");
    T_HAS(text, "q_proj.weight.momentum\"");
    T_HAS(text, "\"language_model.model.layers.1.block_sparse_moe.experts.31.w2.weight\":{\"dtype\":\"F32\",\"shape\":[64,64],\"class\":\"weight\"");
    T_HAS(text, "\"language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight.momentum\"");
    T_CHECK(strstr(text, "{expert}") == NULL);
    T_HAS(text, "embed_tokens.weight.v\"");
    T_CHECK(strstr(text, "q_proj.weight.m\"") == NULL && strstr(text, "q_proj.weight.v\"") == NULL && strstr(text, "correction_bias.m\"") == NULL);
    cdr_free(text);
    T_CHECK(cdr_file_read(cdr_pool_printf(texts, "%s/k31/events.jsonl", dir), 1 << 24, &text, &n, &err) == CDR_OK);
    T_HAS(text, "\"type\":\"router\"");
    T_HAS(text, "\"load_max_mean\":");
    T_HAS(text, "\"indexer_kl\":");
    T_HAS(text, "\"dead_experts\":");
    cdr_free(text);
}

static void plan_prints_the_layers_asked_for(void)
{
    T_NEAR(run("plan tiny-test --print why --layers 1"), 0, 0);
    T_HAS(out, "layers.1.");
    T_HAS(out, "head.");
    T_CHECK(strstr(out, "layers.0.") == NULL);
    T_NEAR(run("plan tiny-test --print why --layers 2"), 2, 0);
    T_HAS(errors, "--layers: \"2\" is no layer set of 2 layers");
}

static void generation_stops(void)
{
    T_NEAR(runf("train %s --out %s/gen -q --steps 40 --set optimizer.learning_rate=1e-2", recipe(), dir), 0, 0);
    T_NEAR(runf("generate %s/gen -q --prompt 'the c' --temperature 0 --max-new-tokens 12", dir), 0, 0);
    T_CHECK(strlen(out) > 12);
    char stop = out[8];                       /* the fourth new character, or an earlier one like it */
    size_t want = (size_t)(strchr(out + 5, stop) - out);
    T_NEAR(runf("generate %s/gen -q --prompt 'the c' --temperature 0 --max-new-tokens 12 --set 'generate.stop=[\"%c\"]'", dir, stop), 0, 0);
    T_NEAR(strlen(out), want + 1, 0);
}

static void show_prints_origins(void)
{
    T_NEAR(run("config show tiny-dense --steps 7 --set optimizer.lr=1e-3"), 0, 0);
    T_HAS(out, "--steps\n");
    T_HAS(errors, "note: lr read as optimizer.learning_rate\n");
    T_HAS(out, "auto: sequence_length / 64");
    T_HAS(out, "train.steps is given (was 1)");
    T_NEAR(run("config show tiny-dense -q --set optimizer.lr=1e-3"), 0, 0);
    T_STR(errors, "");
    T_NEAR(run("config migrate tiny-dense"), 0, 0);
    T_STR(out, cdr_builtin("configs", "tiny-dense"));
}

static void help_lists_every_flag_and_an_example_that_parses(void)
{
    static const char *const names[] = { "train", "generate", "eval", "plan", "bench", "check", "config", "data", "launch", "doctor", "version" };
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    T_NEAR(run("--help"), 0, 0);
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) T_HAS(out, names[i]);
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        T_NEAR(runf("%s --help", names[i]), 0, 0);
        T_STR(errors, "");
        const char *example = strstr(out, "Example:\n  cadre ");
        T_CHECK(example != NULL);
        if (!example) continue;
        /* with --help behind it the example is parsed and nothing is done; `launch` parses only its own part */
        char *words = cdr_pool_strndup(texts, example + 17, strcspn(example + 17, "\n"));
        if (strcmp(names[i], "launch") != 0) T_NEAR(runf("%s --help", words), 0, 0);
    }
    T_NEAR(run("train --help"), 0, 0);
    for (int i = 0; i < n; i++) {
        const char *dot = strchr(k[i].key, '.');
        T_HAS(out, dot ? dot + 1 : k[i].key);
        if (k[i].shortcut) T_HAS(out, k[i].shortcut);
    }
    T_NEAR(run(""), 2, 0);
    T_STR(out, "");
}

static void a_dictionary_becomes_text(void)
{
    /* a dictd index: headword, offset, size in base 64; the text is the whole file */
    static const char dict[] = "alpha\n  The first letter.\nbeta\n  The second letter.\n", index[] = "alpha\tA\ta\nbeta\ta\ta\n";
    put("g.dict", dict);
    put("g.index", index);
    T_NEAR(runf("data make dictionary %s/g.dict --out %s/g.txt --json", dir, dir), 0, 0);
    const cdr_json *result = cdr_json_get(document(), "result");
    T_NEAR(cdr_json_int(cdr_json_get(result, "entries"), 0), 2, 0);
    size_t n;
    T_HAS(slurp("g.txt", &n), "The first letter.");
    T_CHECK((int64_t)n == cdr_json_int(cdr_json_get(result, "size_bytes"), 0));
    T_NEAR(runf("data make dictionary %s/no.dict --out %s/g.txt", dir, dir), 1, 0);
    T_HAS(errors, "no.dict");
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!program_open("cli")) return 1;
    T_RUN(usage_errors_exit_2);
    T_RUN(reserved_commands_say_so);
    T_RUN(user_errors_exit_1_and_keep_their_id);
    T_RUN(tokenizer_of_another_model);
    T_RUN(one_json_document);
    T_RUN(json_wherever_it_stands);
    T_RUN(streams_are_records_to_the_end);
    T_RUN(a_non_finite_step_is_named);
    T_RUN(a_resume_says_what_was_changed);
    T_RUN(a_directory_in_use_is_left_alone);
    T_RUN(a_lost_rank_names_the_checkpoint);
    T_RUN(a_token_file_is_changed_under_a_run);
    T_RUN(data_that_is_hardly_text);
    T_RUN(control_files);
    T_RUN(generation_stops);
    T_RUN(plans_that_do_not_fit);
    T_RUN(freezing);
    T_RUN(sparse_states_survive_a_resume);
    T_RUN(plan_prints_the_layers_asked_for);
    T_RUN(show_prints_origins);
    T_RUN(help_lists_every_flag_and_an_example_that_parses);
    T_RUN(a_dictionary_becomes_text);
    program_close();
    return t_end();
}
