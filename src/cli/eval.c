/* eval: parsing only; the loss is cdr_eval. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--data", "SRC", false, "text to measure on; default: the run's held-out data" },
    { "--tokens", "N", false, "the first N tokens only" },
    { "--answers", "N", false, "answer the first N held-out samples greedily, and compare: word for word, and overlap of words" },
    { "--compare", "MODEL", false, "a second model on the same tokens" },
    { "--adapter", "ADAPTER", false, "LoRA adapter on top of MODEL (not of --compare)" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_eval_args e = { .common = a->common, .model = a->pos[0], .adapter = cli_value(a, "--adapter"), .data = cli_value(a, "--data"),
                        .compare = cli_value(a, "--compare") };
    CDR_TRY(cli_int(a, "--tokens", 0, &e.n_tokens, err));
    CDR_TRY(cli_int(a, "--answers", 0, &e.n_answers, err));
    return cdr_eval(&e, r, err);
}

const cli_command cli_eval = {
    .name = "eval", .args = "MODEL", .min_args = 1, .max_args = 1, .keys = true, .options = options, .run = run,
    .what = "loss, perplexity and bits per byte",
    .more = "MODEL: a run directory (its newest complete checkpoint), one checkpoint of it, or a directory with config.json (then with --data).",
    .example = "cadre eval runs/tiny-k31 --tokens 65536",
};
