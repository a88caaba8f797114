/* test_memory.c: the memory that processes of `cadre train` really take, at their peak, is what the plan says: the slab, mapped experts and the
 * overhead that it names, give or take 3 %.
 */
#include "files.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static char program[4096];

/* Runs cadre in the folder; peak resident bytes, or -1. out: file for stdout, NULL: none. */
static int64_t run(const char *out, char *const *argv)
{
    const pid_t pid = fork();
    int status;
    struct rusage use;
    if (pid == 0) {
        const int to = open(out ? out : "/dev/null", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (chdir(dir) != 0 || to < 0 || dup2(to, STDOUT_FILENO) < 0) _exit(126);
        setenv("OMP_NUM_THREADS", "2", 1);
        execv(program, argv);
        _exit(127);
    }
    if (pid < 0 || wait4(pid, &status, 0, &use) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return -1;
    return (int64_t)use.ru_maxrss * 1024;
}

static int64_t figure(const char *json, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(json, quoted);
    return at ? strtoll(at + strlen(quoted), NULL, 10) : -1;
}

static void stays_within_its_plan(const char *what, const char *recipe, int64_t in_files)
{
    char name[64];
    snprintf(name, sizeof name, "%s.yaml", what);
    put(name, recipe);
    const char *out = in_dir("plan.json");
    char *plan[] = { program, "plan", name, "--json", NULL }, *train[] = { program, "train", name, NULL };
    T_CHECK(run(out, plan) > 0);
    char *json = NULL;
    size_t bytes;
    cdr_err e = { CDR_OK, "", "" };
    T_CHECK(cdr_file_read(out, 1 << 24, &json, &bytes, &e) == CDR_OK);
    if (!json) return;
    const int64_t total = figure(json, "total_bytes"), mapped = figure(json, "mapped_bytes"), overhead = figure(json, "overhead_bytes");
    const int64_t peak = run(NULL, train);
    free(json);
    T_CHECK(total > 0 && mapped == in_files && overhead > 0 && peak > 0);
    /* not more than what is stated, and what is planned is really used */
    T_CHECK((double)peak <= 1.03 * (double)(total + mapped) + (double)overhead);
    T_CHECK((double)peak >= 0.97 * (double)total);
    T_CHECK(overhead < 32 << 20);
    fprintf(stderr, "  %s: plan %.1f MB, mapped %.1f, overhead %.1f: peak %.1f\n", what, (double)total * 1e-6, (double)mapped * 1e-6, (double)overhead * 1e-6,
            (double)peak * 1e-6);
}

static void a_model_from_scratch(void)
{
    stays_within_its_plan("scratch", "version: 1\nmodel: {path: tiny-k31, sizes: {n_layers: 4, full_layers: [4], attn_block: 2, moe: {experts: 16}}}\n"
        "data: {train: text.txt, eval_fraction: 0.1, tokenizer: byte}\n"
        "train: {steps: 2, sequence_length: 256, micro_batch_tokens: 1024, global_batch_tokens: 1024}\noptimizer: {learning_rate: 1.0e-3}\n"
        "checkpoint: {every: 1}\neval: {every: 2, tokens: 1024}\ngenerate: {every: 2, prompts: [\"a \"], max_new_tokens: 4}\n", 0);
}

static void adapters(void)
{
    stays_within_its_plan("lora", "version: 1\nmodel: {path: tiny-k31}\ndata: {train: text.txt, eval_fraction: 0.1, tokenizer: byte}\n"
        "train: {steps: 1, sequence_length: 256, micro_batch_tokens: 512, global_batch_tokens: 1024}\n"
        "lora: {rank: 16, targets: [attention, shared_experts], experts: none}\nprecision: {experts: mxfp4}\noptimizer: {learning_rate: 2.0e-3}\n"
        "checkpoint: {every: 1}\neval: {every: 1, tokens: 1024}\n", 0);
}

/* A packed base in a directory: its experts stay in their files. */
static void mapped_experts(void)
{
    char *toy[] = { program, "toy", "kimi_k3", "--out", "base", "--set", "model.sizes.moe.experts=32", "--set", "model.sizes.moe.latent=256",
                    "--set", "model.sizes.moe.width=256", NULL };
    T_CHECK(run(NULL, toy) > 0);
    stays_within_its_plan("base", "version: 1\nmodel: {path: ./base}\ndata: {train: text.txt, eval_fraction: 0.1}\n"
        "train: {steps: 1, sequence_length: 256, micro_batch_tokens: 1024, global_batch_tokens: 1024}\nlora: {rank: 8, targets: [attention]}\n"
        "optimizer: {learning_rate: 2.0e-3}\ncheckpoint: {every: 1}\neval: {every: none}\n", 3 * 32 * 3 * 256 * 256 * 17 / 32);
}

/* Weights and their states are most of it, 300 MB: what is drawn, read and written of them passes through small buffers. */
static void wide_matrices(void)
{
    stays_within_its_plan("wide", "version: 1\nmodel: {path: tiny-dense, sizes: {hidden: 256, glu: {width: 6144}}}\ndata: {train: text.txt, tokenizer: byte}\n"
        "train: {steps: 1, sequence_length: 64, micro_batch_tokens: 64, global_batch_tokens: 64}\noptimizer: {learning_rate: 1.0e-3}\n"
        "checkpoint: {every: 1}\neval: {every: none}\n", 0);
}

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

int main(int argc, char **argv)
{
    if (SANITIZED) {                                 /* whose shadow is no memory of ours */
        printf("a sanitizer's own memory is in no plan\n");
        return 77;
    }
    cdr_text t = { 0 };
    const char *slash = strrchr(argv[0], '/');
    (void)argc;
    snprintf(program, sizeof program, "%.*s/cadre", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
    char *real = realpath(program, NULL);
    snprintf(program, sizeof program, "%s", real ? real : "");
    free(real);
    if (!files_open("memory")) return 1;
    for (int i = 0; i < 1500; i++) cdr_text_printf(&t, "a line of text, number %d, as any other\n", i * 7919 % 1501);
    put("text.txt", t.s);
    cdr_text_free(&t);
    T_RUN(a_model_from_scratch);
    T_RUN(adapters);
    T_RUN(wide_matrices);
    T_RUN(mapped_experts);
    files_close();
    return t_end();
}
