/* toy: parsing only; the checkpoint is written by cdr_toy. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--out", "DIR", false, "the directory that is made" },
    { "--from", "RUN", false, "weights of this run (default: random ones of the seed)" },
    { "--experts", "FORM", false, "routed experts as bf16, mxfp4 or fp8 (default: as the family's release)" },
    { "--shard-size", "SIZE", false, "bytes of a file, at most (default: as the release cuts: by layer, or 5GB)" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_toy_args t = { .common = a->common, .family = a->pos[0], .out = cli_value(a, "--out"), .from = cli_value(a, "--from"),
                       .experts = cli_value(a, "--experts"), .shard_size = cli_value(a, "--shard-size") };
    if (!t.out) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre toy: --out DIR is missing. See cadre toy --help");
    return cdr_toy(&t, r, err);
}

const cli_command cli_toy = {
    .name = "toy", .args = "FAMILY", .min_args = 1, .max_args = 1, .keys = true, .options = options, .run = run,
    .what = "a small complete checkpoint with a family's true names",
    .more = "FAMILY: kimi_k3, kimi_k31, kimi_linear, deepseek_v3, deepseek_v32, ... Sizes: --set model.sizes.NAME=N.",
    .example = "cadre toy kimi_k31 --out toy-k31",
};
