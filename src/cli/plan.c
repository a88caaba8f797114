/* plan: parsing only; the compile without a device is cdr_plan. */
#include "cli/cli.h"
#include <limits.h>

static const cli_option options[] = {
    { "--print", "WHAT", false, "program, memory, why, comm or timeline; repeatable" },
    { "--why", NULL, false, "the same as --print why" },
    { "--rank", "R", false, "the rank that is printed" },
    { "--layers", "SET", false, "only these layers: 3, 0-7, 0-3,8,last" },
    { "--require-fit", NULL, false, "exit 1 where the plan does not fit" },
    { "--search", NULL, true, "the best strategy" },
    { "--html", "FILE", true, "pictures of memory and timeline" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    static const char *const known[] = { "program", "memory", "why", "comm", "timeline" };
    cdr_plan_args p = { .common = a->common, .recipe = a->pos[0], .layers = cli_value(a, "--layers"), .require_fit = cli_has(a, "--require-fit") };
    int64_t rank;
    CDR_TRY(cli_int(a, "--rank", 0, &rank, err));
    if (rank > INT_MAX) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--rank: there are not that many");
    const char **print = cli_values(a, "--print", &p.n_print);
    for (int i = 0; i < p.n_print; i++) {
        bool ok = false;
        for (int k = 0; k < CDR_COUNT(known); k++) ok = ok || strcmp(print[i], known[k]) == 0;
        if (!ok)
            CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--print: %s is none of program, memory, why, comm, timeline.%s", print[i],
                        cdr_nearest(a->pool, print[i], known, CDR_COUNT(known)));
    }
    if (cli_has(a, "--why")) {
        const char **more = cdr_pool_alloc(a->pool, sizeof *more * (size_t)(p.n_print + 1));
        for (int i = 0; i < p.n_print; i++) more[i] = print[i];
        more[p.n_print++] = "why";
        print = more;
    }
    p.print = print;
    p.rank = (int)rank;
    return cdr_plan(&p, r, err);
}

const cli_command cli_plan = {
    .name = "plan", .args = "RECIPE", .min_args = 1, .max_args = 1, .keys = true, .options = options, .run = run,
    .what = "the real compile of every rank, without a device: bytes, traffic, time",
    .example = "cadre plan tiny-k31 --devices 2 --print memory",
};
