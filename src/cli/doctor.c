/* doctor: parsing only; what is here and what is lost without it is cdr_doctor. */
#include "cli/cli.h"

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_doctor_args d = { .common = a->common };
    return cdr_doctor(&d, r, err);
}

const cli_command cli_doctor = { .name = "doctor", .args = "", .run = run,
                                 .what = "hardware, libraries, switches, and what is lost without each", .example = "cadre doctor" };
