/* export: parsing; an adapter in a consumer's layout, or weights, is cdr_export. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--format", "F", false, "peft, peft-stacked, sglang, vllm, gguf (adapters), hf (weights)" },
    { "--out", "DIR", false, "where it is written; must not exist, or be empty" },
    { "--base", "DIR", false, "the model that an adapter directory belongs to; default: as it says" },
    { "--rank", "N", false, "uniform rank by zero padding; default: the largest where the consumer needs one" },
    { "--experts", "FORM", false, "hf: routed experts as bf16, mxfp4 or fp8; default: as they are" },
    { "--allow-drop", NULL, false, "write although the consumer would drop keys" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    int64_t rank;
    cdr_export_args e = { .common = a->common, .source = a->pos[0], .format = cli_value(a, "--format"), .out = cli_value(a, "--out"), .base = cli_value(a, "--base"),
                          .experts = cli_value(a, "--experts"), .allow_drop = cli_has(a, "--allow-drop") };
    if (!e.format) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre export: --format F is missing. See cadre export --help");
    if (!e.out) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre export: --out DIR is missing. See cadre export --help");
    CDR_TRY(cli_int(a, "--rank", 0, &rank, err));
    if (rank > 65536) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre export: --rank %lld is over 65,536", (long long)rank);
    e.rank = (int)rank;
    return cdr_export(&e, r, err);
}

const cli_command cli_export = {
    .name = "export", .args = "SRC", .min_args = 1, .max_args = 1, .options = options, .run = run,
    .what = "writes a LoRA adapter or a model as a consumer loads it",
    .more = "SRC: a LoRA run (its newest complete checkpoint), one checkpoint of it, or an adapter directory (then it converts).\n"
            "With --format hf: a run, one checkpoint of it, or a directory of weights.",
    .example = "cadre export runs/devil --format sglang --out adapter",
};
