/* launch_cmd.c: ranks on one machine. Forks before any OpenMP region, then each child becomes COMMAND: this program with
 * COMMAND's words, or another program where its first word holds a '/'. Ranks find the job through CADRE_SHM.
 */
#include "comm/comm.h"
#include "device/device.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static cdr_status check(const cdr_launch_args *a, cdr_err *err)
{
    if (a->argc < 1) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "launch: COMMAND is missing");
    if (a->n_ranks < 1) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "launch: -n is %d; at least one rank", a->n_ranks);
    if (a->bind && strcmp(a->bind, "core") != 0 && strcmp(a->bind, "none") != 0)
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "launch: --bind is %s; core or none", a->bind);
    if (strcmp(a->argv[0], "launch") == 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "launch: ranks cannot launch ranks");
    return a->log_dir ? cdr_make_dirs(a->log_dir, err) : CDR_OK;
}

static void say(const cdr_launch_args *a)
{
    if (a->common.quiet || a->common.json) return;
    printf("launch    %d ranks on 1 host, transport shm (from: cadre launch), %d cores shared", a->n_ranks, cdr_cpu_cores());
    if (a->log_dir && a->n_ranks > 1) printf("; logs of ranks 1-%d in %s", a->n_ranks - 1, a->log_dir);
    printf("\n");
}

/* Does not return. */
CDR_NORETURN static void become(const cdr_launch_args *a)
{
    bool other = strchr(a->argv[0], '/') != NULL;
    char **argv = calloc((size_t)a->argc + 2, sizeof *argv);
    if (argv) {
        static char self[] = "cadre";
        int n = 0;
        if (!other) argv[n++] = self;
        for (int i = 0; i < a->argc; i++) argv[n++] = a->argv[i];
        execv(other ? a->argv[0] : "/proc/self/exe", argv);
    }
    fprintf(stderr, "error: launch: cannot start %s: %s [launch.exec]\n", a->argv[0], strerror(errno));
    _exit(CDR_EUSER);
}

cdr_status cdr_launch(const cdr_launch_args *a, cdr_result *r, cdr_err *err)
{
    int rank = -1, exit_code = 0;
    (void)r;
    CDR_TRY(check(a, err));
    say(a);
    fflush(NULL);                       /* what is buffered would be printed by every child */
    CDR_TRY(cdr_shm_launch(a->n_ranks, a->bind ? a->bind : "none", a->log_dir, &rank, &exit_code, err));
    if (rank >= 0) become(a);
    return (cdr_status)exit_code;
}
