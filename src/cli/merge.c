/* merge: parsing; W + scale B A written as a directory of weights is cdr_merge. */
#include "cli/cli.h"
#include <stdlib.h>

static const cli_option options[] = {
    { "--out", "DIR", false, "where the merged weights are written" },
    { "--experts", "FORM", false, "stored (default): packed again with the base's scales; bf16: expanded" },
    { "--min-survival", "F", false, "least share of a matrix's delta that rounding may leave (0.9)" },
    { "--force", NULL, false, "write although less survives" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    const char *least = cli_value(a, "--min-survival");
    char *end = NULL;
    cdr_merge_args m = { .common = a->common, .base = a->pos[0], .adapter = a->pos[1], .out = cli_value(a, "--out"), .experts = cli_value(a, "--experts"),
                         .min_survival = least ? strtod(least, &end) : 0.9, .force = cli_has(a, "--force") };
    if (!m.out) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre merge: --out DIR is missing. See cadre merge --help");
    if (least && (end == least || *end || !(m.min_survival >= 0 && m.min_survival <= 1)))
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre merge: --min-survival %s is no number from 0 to 1", least);
    return cdr_merge(&m, r, err);
}

const cli_command cli_merge = {
    .name = "merge", .args = "BASE ADAPTER", .min_args = 2, .max_args = 2, .options = options, .run = run,
    .what = "adds an adapter to the weights of its base, for servers without adapters",
    .more = "BASE: a directory of weights. ADAPTER: an adapter directory, or a LoRA run. What is not adapted is copied byte for byte.\n"
            "Nothing is written where less of a delta survives rounding than --min-survival; the table names the worst.",
    .example = "cadre merge toy-k3 runs/devil --out merged --experts bf16",
};
