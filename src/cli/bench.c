/* bench: parsing only; the measurements are cdr_bench. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--device", "D", false, "cpu or cuda" },
    { "--quick", NULL, false, "shorter windows, smaller shapes" },
    { "--table", NULL, false, "the table of targets, each beside what this machine reaches" },
    { "--step", "RECIPE", false, "a training step against its floor" },
    { "--write-machine", "FILE", false, "write this machine's file with the measured ceilings" },
    { "--tune", "FILE", true, "offline kernel table" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_bench_args b = { .common = a->common, .pattern = a->n_pos ? a->pos[0] : NULL, .device = cli_value(a, "--device"), .step_recipe = cli_value(a, "--step"),
                         .write_machine = cli_value(a, "--write-machine"), .quick = cli_has(a, "--quick"), .table = cli_has(a, "--table") };
    return cdr_bench(&b, r, err);
}

const cli_command cli_bench = {
    .name = "bench", .args = "[PATTERN]", .max_args = 1, .keys = true, .options = options, .run = run,
    .what = "ceilings of this machine first, then operators or a step against their floors",
    .more = "PATTERN: an operator's name or a glob; none: all.",
    .example = "cadre bench rmsnorm --quick",
};
