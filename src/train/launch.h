/* launch.h: `cadre launch -n N COMMAND...`: N ranks on this machine, each of which runs COMMAND.
 *
 *   cdr_launch_set_main(run_command);                 // cli/main.c, once: how a rank runs train, eval, generate, plan
 *   cdr_status code = cdr_launch(&args, &res, &err);  // the job's exit code; err.text is empty where a rank has said it
 *
 * In a rank, cdr_launch does not return. Every process that is about to print an error line asks cdr_comm_first_error
 * (comm.h) first, so that a job says one.
 */
#ifndef CDR_TRAIN_LAUNCH_H
#define CDR_TRAIN_LAUNCH_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* run(argc, argv): argv[0] is the command's name ("train"), argv[argc] is NULL; returns the exit code. */
void cdr_launch_set_main(int (*run)(int argc, char **argv));

#ifdef __cplusplus
}
#endif
#endif
