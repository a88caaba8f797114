/* test_api.c: what the command line does is reachable from C, through cadre.h alone: plan, train, eval, generate; errors
 * come back as values. */
#include "cadre.h"
#include "test.h"
#include <unistd.h>

static char dir[64], text_path[128], out_set[160], data_set[160];

static const char *const model_set = "model.sizes={hidden: 32, n_layers: 1, mla.heads: 1, mla.kv_lora: 16, mla.nope: 8, mla.ext: 8, mla.v: 16, glu.width: 32}";

static void version_and_errors(void)
{
    cdr_err err = { CDR_OK, "", "" };
    cdr_result r = { 0 };
    T_CHECK(cdr_version(&r, &err) == CDR_OK);
    T_HAS(r.text, CDR_VERSION);
    cdr_result_free(&r);
    cdr_plan_args a = { .recipe = "no-such-recipe" };
    T_CHECK(cdr_plan(&a, &r, &err) == CDR_EUSER && err.status == CDR_EUSER);
    T_STR(err.id, "config.no-such-builtin");
    T_CHECK(r.text == NULL && r.json == NULL);
}

static void train_plan_eval_generate(void)
{
    const char *set[] = { model_set, "model.weights=random", out_set, data_set, "train.steps=3", "train.sequence_length=64", "train.micro_batch_tokens=64",
                          "train.global_batch_tokens=128", "eval.every=none", "generate.every=none", "generate.max_new_tokens=5", "checkpoint.every=2" };
    cdr_common common = { .set = set, .n_set = (int)(sizeof set / sizeof *set), .quiet = true };
    cdr_err err = { CDR_OK, "", "" };
    cdr_result r = { 0 };
    cdr_plan_args plan = { .common = common, .recipe = "tiny-dense" };
    T_CHECK(cdr_plan(&plan, &r, &err) == CDR_OK);
    if (err.status) fprintf(stderr, "  %s\n", err.text);
    T_HAS(r.json, "\"total_bytes\":");
    cdr_result_free(&r);
    cdr_train_args train = { .common = common, .recipe = "tiny-dense" };
    T_CHECK(cdr_train(&train, &r, &err) == CDR_OK);
    if (err.status) fprintf(stderr, "  %s\n", err.text);
    cdr_result_free(&r);
    char run[128];
    snprintf(run, sizeof run, "%s/run", dir);
    cdr_eval_args eval = { .common = { .quiet = true }, .model = run };
    T_CHECK(cdr_eval(&eval, &r, &err) == CDR_OK);
    T_HAS(r.json, "\"bits_per_byte\":");
    cdr_result_free(&r);
    static const char *const prompts[] = { "the " };
    cdr_generate_args gen = { .common = { .quiet = true }, .model = run, .prompts = prompts, .n_prompts = 1 };
    T_CHECK(cdr_generate(&gen, &r, &err) == CDR_OK);
    T_HAS(r.text, "the ");
    cdr_result_free(&r);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    snprintf(dir, sizeof dir, "/tmp/cadre-api-%d", (int)getpid());
    snprintf(text_path, sizeof text_path, "%s.txt", dir);
    snprintf(out_set, sizeof out_set, "output_dir=%s/run", dir);
    snprintf(data_set, sizeof data_set, "data.train=%s", text_path);
    FILE *f = fopen(text_path, "w");
    for (int i = 0; f && i < 400; i++) fprintf(f, "line %d: the cat sees it\n", i);
    if (!f || fclose(f) != 0) return 1;
    T_RUN(version_and_errors);
    T_RUN(train_plan_eval_generate);
    unlink(text_path);
    char command[160];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) return 1;
    return t_end();
}
