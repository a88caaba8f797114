/* config: parsing only; show, schema, list and migrate are cdr_config. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--changed", NULL, false, "show: only what differs from the defaults" },
    { "--from", "KIND", false, "migrate: cadre" },
    { "-o", "FILE", false, "migrate: where the new recipe is written; default: stdout" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    static const struct { const char *verb; bool needs; bool takes; } verbs[] = { { "show", true, true }, { "schema", false, true }, { "migrate", true, true },
                                                                                  { "list", false, false } };
    static const char *const names[] = { "show", "schema", "migrate", "list" };
    const char *verb = a->pos[0];
    for (int i = 0; i < CDR_COUNT(verbs); i++) {
        if (strcmp(verbs[i].verb, verb) != 0) continue;
        if (verbs[i].needs && a->n_pos < 2) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre config %s: a recipe is missing", verb);
        if (!verbs[i].takes && a->n_pos > 1) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre config %s takes no argument", verb);
        cdr_config_args c = { .common = a->common, .verb = verb, .arg = a->n_pos > 1 ? a->pos[1] : NULL, .changed = cli_has(a, "--changed"),
                              .from = cli_value(a, "--from"), .out = cli_value(a, "-o") };
        return cdr_config(&c, r, err);
    }
    CDR_FAIL_ID(err, CDR_EUSAGE, "usage.command", "cadre config %s: unknown.%s", verb, cdr_nearest(a->pool, verb, names, CDR_COUNT(names)));
}

const cli_command cli_config = {
    .name = "config", .args = "VERB [ARG]", .min_args = 1, .max_args = 2, .keys = true, .options = options, .run = run,
    .what = "recipes explained: show RECIPE, schema [KEY], migrate FILE, list",
    .more = "show: every value with its origin. schema: JSON Schema of the recipe; with KEY, that key explained. list: built-in names.",
    .example = "cadre config show tiny-k31 --changed",
};
