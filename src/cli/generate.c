/* generate: parsing, and prompts from stdin; the sampling is cdr_generate. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--prompt", "TEXT", false, "text to continue; repeatable; - reads stdin" },
    { "--raw", NULL, false, "no chat format around the prompt" },
    { "--adapter", "ADAPTER", false, "LoRA adapter on top of the model" },
    { NULL, NULL, false, NULL },
};

enum { MAX_PROMPT = 1 << 20 };

static cdr_status read_stdin(cdr_pool *pool, const char **prompt, cdr_err *err)
{
    cdr_text t = { 0 };
    char chunk[4096];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0 && t.n <= MAX_PROMPT) cdr_text_append(&t, chunk, n);
    bool failed = ferror(stdin) != 0, large = t.n > MAX_PROMPT, nul = t.n > 0 && memchr(t.s, 0, t.n) != NULL;
    *prompt = cdr_pool_strndup(pool, t.n ? t.s : "", t.n);
    cdr_text_free(&t);
    if (failed || large || nul)
        CDR_FAIL_ID(err, CDR_EUSER, "generate.stdin", "--prompt -: stdin %s",
                    failed ? "cannot be read" : large ? "is over 1 MiB" : "holds a zero byte, so it is no text");
    return CDR_OK;
}

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_generate_args g = { .common = a->common, .model = a->pos[0], .adapter = cli_value(a, "--adapter"), .raw = cli_has(a, "--raw") };
    const char **prompts = cli_values(a, "--prompt", &g.n_prompts);
    int n_stdin = 0;
    for (int i = 0; i < g.n_prompts; i++) {
        if (strcmp(prompts[i], "-") != 0) continue;
        if (n_stdin++ > 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre generate: --prompt - is given twice; stdin can be read once");
        CDR_TRY(read_stdin(a->pool, &prompts[i], err));
    }
    g.prompts = prompts;
    return cdr_generate(&g, r, err);
}

const cli_command cli_generate = {
    .name = "generate", .args = "MODEL", .min_args = 1, .max_args = 1, .keys = true, .options = options, .run = run,
    .what = "continues prompts with a trained model",
    .more = "MODEL: a run directory (its newest complete checkpoint), one checkpoint of it, or a directory with config.json.",
    .example = "cadre generate runs/tiny-k31 --prompt \"hacker: n. \" --max-new-tokens 40",
};
