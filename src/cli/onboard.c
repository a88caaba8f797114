/* onboard: parsing only; the work is cdr_onboard's. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--out", "WORK", false, "where model.yaml, recipe.yaml, plan.json and card.json go" },
    { "--verify", "REF.safetensors", false, "compare with a reference dump, layer by layer" },
    { "--machine", "FILE", false, "the recipe's machine.file" },
    { "--devices", "N", false, "the recipe's machine.devices" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_onboard_args o = { .common = a->common, .dir = a->pos[0], .out = cli_value(a, "--out"), .verify = cli_value(a, "--verify"),
                           .machine = cli_value(a, "--machine") };
    if (!o.out) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.missing", "cadre onboard: --out WORK is missing: the folder that it writes");
    CDR_TRY(cli_int(a, "--devices", 0, &o.devices, err));
    if (cli_has(a, "--devices") && (o.devices < 1 || o.devices > 1000000))
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre onboard: --devices %s: the plan needs at least 1 device, and at most 1,000,000", cli_value(a, "--devices"));
    return cdr_onboard(&o, r, err);
}

const cli_command cli_onboard = {
    .name = "onboard", .args = "DIR", .min_args = 1, .max_args = 1, .options = options, .run = run,
    .what = "a checkpoint directory in; its description, a LoRA recipe, the plan and a card of what was checked out",
    .example = "cadre onboard toy-k3 --out work",
};
