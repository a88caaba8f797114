/* data: `check` makes tokens and labels visible, `pack` tokenizes once, `make dictionary` makes a corpus or conversations; parsing only. */
#include "cli/cli.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static const cli_option options[] = {
    { "--model", "DIR", false, "check: the model whose tokenizer and chat format are taken; default: the recipe's, of a file tiny-k31" },
    { "--show", "N", false, "check: the first N samples as tokens and labels; default 1" },
    { "--line", "L", false, "check: the sample that begins at this line, whole" },
    { "--out", "PATH", false, "pack: directory, make: file that is written" },
    { "--as", "FORM", false, "make: text (default) or messages: one conversation a headword" },
    { "--eval-fraction", "F", false, "make: share of entries that goes to a second file, NAME-eval, by hash" },
    { NULL, NULL, false, NULL },
};

static cdr_status only_with(const cli_args *a, const char *verb, const char *flag, bool ok, cdr_err *err)
{
    if (!ok && cli_has(a, flag)) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.flag", "cadre data %s: %s does not belong to it. See cadre data --help", verb, flag);
    return CDR_OK;
}

static cdr_status need(const char *verb, const char *what, const char *given, cdr_err *err)
{
    if (!given) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre data %s: %s is missing. See cadre data --help", verb, what);
    return CDR_OK;
}

static cdr_status run_check(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_data_check_args c = { .common = a->common, .file = a->n_pos > 1 ? a->pos[1] : NULL, .model = cli_value(a, "--model") };
    const char *no_colour = getenv("NO_COLOR");
    c.colour = isatty(STDOUT_FILENO) && !(no_colour && *no_colour);
    CDR_TRY(need("check", "FILE or RECIPE", c.file, err));
    CDR_TRY(cli_int(a, "--show", 1, &c.show, err));
    CDR_TRY(cli_int(a, "--line", 0, &c.line, err));
    return cdr_data_check(&c, r, err);
}

static cdr_status run_pack(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_data_pack_args p = { .common = a->common, .recipe = a->n_pos > 1 ? a->pos[1] : NULL, .out = cli_value(a, "--out") };
    CDR_TRY(need("pack", "RECIPE", p.recipe, err));
    CDR_TRY(need("pack", "--out DIR", p.out, err));
    return cdr_data_pack(&p, r, err);
}

static cdr_status run_make(const cli_args *a, cdr_result *r, cdr_err *err)
{
    const char *kind = a->n_pos > 1 ? a->pos[1] : "", *fraction = cli_value(a, "--eval-fraction");
    cdr_data_make_args m = { .common = a->common, .file = a->n_pos > 2 ? a->pos[2] : NULL, .out = cli_value(a, "--out"), .as = cli_value(a, "--as") };
    if (strcmp(kind, "dictionary") != 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre data make %s: only dictionary FILE can be made", kind);
    CDR_TRY(need("make dictionary", "FILE", m.file, err));
    CDR_TRY(need("make dictionary", "--out FILE", m.out, err));
    if (a->common.n_set > 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.flag", "cadre data make: takes no recipe keys. See cadre data --help");
    if (fraction) {
        char *end;
        errno = 0;
        m.eval_fraction = strtod(fraction, &end);
        if (errno || end == fraction || *end) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre data make: --eval-fraction takes a number, not %s", fraction);
    }
    return cdr_data_make(&m, r, err);
}

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    static const char *const names[] = { "check", "pack", "make" };
    const char *verb = a->pos[0];
    bool check = strcmp(verb, "check") == 0, pack = strcmp(verb, "pack") == 0, make = strcmp(verb, "make") == 0;
    if (!check && !pack && !make)
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.command", "cadre data %s: unknown.%s", verb, cdr_nearest(a->pool, verb, names, CDR_COUNT(names)));
    CDR_TRY(only_with(a, verb, "--model", check, err));
    CDR_TRY(only_with(a, verb, "--show", check, err));
    CDR_TRY(only_with(a, verb, "--line", check, err));
    CDR_TRY(only_with(a, verb, "--out", pack || make, err));
    CDR_TRY(only_with(a, verb, "--as", make, err));
    CDR_TRY(only_with(a, verb, "--eval-fraction", make, err));
    if (!make && a->n_pos > 2) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre data %s: one argument too many: %s. See cadre data --help", verb, a->pos[2]);
    return check ? run_check(a, r, err) : pack ? run_pack(a, r, err) : run_make(a, r, err);
}

const cli_command cli_data = {
    .name = "data", .args = "check FILE|RECIPE, pack RECIPE or make dictionary FILE", .min_args = 1, .max_args = 3, .keys = true, .options = options, .run = run,
    .what = "tokens, labels and drops made visible; token files; corpora and conversations from a dictionary",
    .more = "check   what a run would train on, with what carries loss in [..] (green on a terminal)\n"
            "pack    the recipe's data as DIR/NAME.tokens, read as a source of format tokens\n"
            "make    dictionary FILE: a .dict or .dict.dz file with its .index beside it",
    .example = "cadre data make dictionary /usr/share/dictd/jargon.dict.dz --out data/jargon.txt",
};
