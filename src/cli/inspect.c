/* inspect: parsing only; what a path is, is cdr_inspect's. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--tensors", "PATTERN", false, "list tensors: * is any text; without one, any name that holds it" },
    { "--config", NULL, false, "the sizes, and which key of config.json gave each; of a description, the config.json that it writes" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_inspect_args i = { .common = a->common, .path = a->pos[0], .tensors = cli_value(a, "--tensors"), .config = cli_has(a, "--config") };
    return cdr_inspect(&i, r, err);
}

const cli_command cli_inspect = {
    .name = "inspect", .args = "PATH", .min_args = 1, .max_args = 1, .options = options, .run = run,
    .what = "what is this? a checkpoint, run, adapter, tokenizer, description or data set, from headers alone",
    .example = "cadre inspect kimi-k3 --config",
};
