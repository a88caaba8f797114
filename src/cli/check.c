/* check: parsing only; the cases are run by cdr_check. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--device", "D", false, "cpu or cuda" },
    { "--quick", NULL, false, "fewer cases" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_check_args c = { .common = a->common, .pattern = a->n_pos ? a->pos[0] : NULL, .device = cli_value(a, "--device"), .quick = cli_has(a, "--quick") };
    return cdr_check(&c, r, err);
}

const cli_command cli_check = {
    .name = "check", .args = "[PATTERN]", .max_args = 1, .options = options, .run = run,
    .what = "values, gradients and determinism of the operators on this machine",
    .more = "PATTERN: an operator's name or a glob; none: all.",
    .example = "cadre check rmsnorm --quick",
};
