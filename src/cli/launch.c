/* launch: parsing only; cdr_launch forks before any OpenMP region, each rank then runs COMMAND. */
#include "cli/cli.h"
#include "train/events.h"
#include <limits.h>

static const cli_option options[] = {
    { "-n", "N", false, "ranks" },
    { "--bind", "HOW", false, "core: an equal block of cores each; none (default none)" },
    { "--log-dir", "DIR", false, "files rank-N.log of the ranks from 1 on; train: OUTPUT_DIR/ranks" },
    { NULL, NULL, false, NULL },
};

static cdr_status read_args(const cli_args *a, cdr_launch_args *l, cdr_err *err)
{
    *l = (cdr_launch_args){ .common = a->common, .bind = cli_value(a, "--bind"), .log_dir = cli_value(a, "--log-dir"), .argc = a->rest_argc, .argv = a->rest_argv };
    int64_t n;
    if (!cli_has(a, "-n")) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre launch: -n N is missing. See cadre launch --help");
    CDR_TRY(cli_int(a, "-n", 0, &n, err));
    if (n < 1 || n > INT_MAX) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "-n: at least one rank");
    l->n_ranks = (int)n;
    return CDR_OK;
}

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_launch_args l;
    cdr_status st = read_args(a, &l, err);
    bool json = a->common.json;
    for (int i = 0; i < a->rest_argc; i++) json = json || strcmp(a->rest_argv[i], "--json") == 0;
    if (st == CDR_OK) return cdr_launch(&l, r, err);
    if (json) cdr__events_print_error(err);
    return st;
}

const cli_command cli_launch = {
    .name = "launch", .args = "-n N COMMAND...", .rest = true, .streams = true, .options = options, .run = run,
    .what = "ranks on one machine, over shared memory",
    .more = "COMMAND: train, eval, generate or plan with its arguments, or another program.",
    .example = "cadre launch -n 2 train tiny-k31 --steps 20 --out runs/two",
};
