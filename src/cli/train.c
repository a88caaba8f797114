/* train: parsing only; the loop is cdr_train. --dry-run is plan. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--allow-change", "KEY", false, "take another value of a fixed key when resuming; repeatable" },
    { "--dry-run", NULL, false, "compile and print the plan, do not train" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    if (cli_has(a, "--dry-run")) {
        cdr_plan_args p = { .common = a->common, .recipe = a->pos[0] };
        return cdr_plan(&p, r, err);
    }
    cdr_train_args t = { .common = a->common, .recipe = a->pos[0] };
    t.allow_change = cli_values(a, "--allow-change", &t.n_allow_change);
    return cdr_train(&t, r, err);
}

const cli_command cli_train = {
    .name = "train", .args = "RECIPE", .min_args = 1, .max_args = 1, .keys = true, .streams = true, .options = options, .run = run,
    .what = "trains what the recipe says; started again, it resumes",
    .more = "RECIPE: a .yaml file, or the bare name of a built-in recipe (cadre config list).",
    .example = "cadre train tiny-k31 --steps 20 --out runs/try",
};
