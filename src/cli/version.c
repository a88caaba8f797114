/* version: commit, compiler, instruction sets, plug-ins. */
#include "cli/cli.h"

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    (void)a;
    return cdr_version(r, err);
}

const cli_command cli_version = { .name = "version", .args = "", .run = run, .what = "version, compiler, instruction sets, plug-ins", .example = "cadre version" };
