/* test_cli.c: the command line as a user sees it: exit codes, what goes to stdout and stderr, the JSON document, help whose
 * examples parse. Runs the `cadre` program that was built beside this test.
 */
#include "base/base.h"
#include "recipe/recipe.h"
#include "test.h"
#include <sys/wait.h>
#include <unistd.h>

static cdr_pool *pool;
static cdr_err err;
static char program[600], dir[64];
static char *out, *errors;

/* Runs `cadre ARGS`; the exit code, and what it wrote, in out and errors. */
static int run(const char *args)
{
    char command[2000], path[100];
    size_t n;
    char *text;
    snprintf(command, sizeof command, "%s %s >%s/out 2>%s/err </dev/null", program, args, dir, dir);
    int st = system(command);
    out = errors = "";
    snprintf(path, sizeof path, "%s/out", dir);
    if (cdr_file_read(path, 1 << 24, &text, &n, &err) == CDR_OK) { out = cdr_pool_strndup(pool, text, n); cdr_free(text); }
    snprintf(path, sizeof path, "%s/err", dir);
    if (cdr_file_read(path, 1 << 24, &text, &n, &err) == CDR_OK) { errors = cdr_pool_strndup(pool, text, n); cdr_free(text); }
    return WIFEXITED(st) ? WEXITSTATUS(st) : 1000 + WTERMSIG(st);
}

static const cdr_json *document(void)
{
    const cdr_json *root = NULL;
    err = (cdr_err){ 0 };
    T_CHECK(cdr_json_parse(pool, out, strlen(out), "stdout", &root, &err) == CDR_OK);
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
        { "eval runs/x --adapter y", "reserved: not in this version" },
        { "config shw tiny-test", "Did you mean show?" },
        { "config show", "a recipe is missing" },
        { "config list x", "takes no argument" },
        { "config migrate tiny-test --from axolotl", "reserved: not in this version" },
        { "check --device tpu", "neither cpu nor cuda" },
        { "launch train tiny-test", "-n N is missing" },
        { "launch -n 0 train tiny-test", "at least one rank" },
        { "launch -n 2", "COMMAND... is missing" },
        { "data check x", "reserved: not in this version" },
        { "data make dictionary x.dict", "--out FILE is missing" },
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
    static const char *const names[] = { "chat", "inspect", "onboard", "toy", "export", "verify-adapter", "merge", "board", "mcp", "report" };
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
    T_HAS(errors, "error: --ep: parallel.expert is 2; this version does not have that yet");
    T_NEAR(run("config schema train.stps"), 1, 0);
    T_HAS(errors, "Did you mean train.steps");
    T_NEAR(run("check nosuchop"), 1, 0);
    T_HAS(errors, "no operator is named nosuchop");
}

static void one_json_document(void)
{
    static const char *const good[] = { "version", "doctor", "config list", "config schema", "config schema train.steps", "config show tiny-dense --changed" };
    for (int i = 0; i < (int)(sizeof good / sizeof *good); i++) {
        T_NEAR(run(cdr_pool_printf(pool, "%s --json", good[i])), 0, 0);
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
        T_NEAR(run(cdr_pool_printf(pool, "%s --help", names[i])), 0, 0);
        T_STR(errors, "");
        const char *example = strstr(out, "Example:\n  cadre ");
        T_CHECK(example != NULL);
        if (!example) continue;
        /* with --help behind it the example is parsed and nothing is done; `launch` parses only its own part */
        char *words = cdr_pool_strndup(pool, example + 17, strcspn(example + 17, "\n"));
        if (strcmp(names[i], "launch") != 0) T_NEAR(run(cdr_pool_printf(pool, "%s --help", words)), 0, 0);
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
    char path[100];
    /* a dictd index: headword, offset, size in base 64; the text is the whole file */
    static const char dict[] = "alpha\n  The first letter.\nbeta\n  The second letter.\n", index[] = "alpha\tA\ta\nbeta\ta\ta\n";
    snprintf(path, sizeof path, "%s/g.dict", dir);
    T_CHECK(cdr_file_write(path, dict, sizeof dict - 1, &err) == CDR_OK);
    snprintf(path, sizeof path, "%s/g.index", dir);
    T_CHECK(cdr_file_write(path, index, sizeof index - 1, &err) == CDR_OK);
    T_NEAR(run(cdr_pool_printf(pool, "data make dictionary %s/g.dict --out %s/g.txt --json", dir, dir)), 0, 0);
    const cdr_json *result = cdr_json_get(document(), "result");
    T_NEAR(cdr_json_int(cdr_json_get(result, "entries"), 0), 2, 0);
    char *text;
    size_t n;
    snprintf(path, sizeof path, "%s/g.txt", dir);
    T_CHECK(cdr_file_read(path, 1 << 20, &text, &n, &err) == CDR_OK);
    T_HAS(text, "The first letter.");
    T_CHECK((int64_t)n == cdr_json_int(cdr_json_get(result, "size_bytes"), 0));
    cdr_free(text);
    T_NEAR(run(cdr_pool_printf(pool, "data make dictionary %s/no.dict --out %s/g.txt", dir, dir)), 1, 0);
    T_HAS(errors, "no.dict");
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    pool = cdr_pool_new();
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    snprintf(slash ? slash : program, 16, "/cadre");
    if (access(program, X_OK) != 0) {
        fprintf(stderr, "%s is not built; build the target cadre first\n", program);
        return 1;
    }
    snprintf(dir, sizeof dir, "/tmp/cadre-test-cli-XXXXXX");
    if (!mkdtemp(dir)) return 1;
    T_RUN(usage_errors_exit_2);
    T_RUN(reserved_commands_say_so);
    T_RUN(user_errors_exit_1_and_keep_their_id);
    T_RUN(one_json_document);
    T_RUN(show_prints_origins);
    T_RUN(help_lists_every_flag_and_an_example_that_parses);
    T_RUN(a_dictionary_becomes_text);
    cdr_remove_tree(dir, NULL);
    cdr_pool_free(pool);
    return t_end();
}
