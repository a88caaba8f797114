/* exec.h: the executor's state. Internal to src/run (exec.c, init.c). */
#ifndef CDR_EXEC_H
#define CDR_EXEC_H

#include "run/run.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { const char *name; cdr_val v; } named;
typedef struct {                      /* of one program, made once */
    cdr_type *types;                  /* by operand */
    cdr_status (**run)(const cdr_args *);   /* by call; NULL: a view */
    int *event;                       /* by call: event that others wait for, -1 */
    int64_t *ns, *n_runs;             /* by call: profile */
    named *names; int64_t n_names, cap_names;      /* STEP values */
} prepared;

struct cdr_exec {
    cdr_pool *pool; cdr_exec_opts o;
    const cdr_bundle *b; cdr_device *d;
    char *slab; size_t slab_bytes;
    cdr_comm *comms[CDR_N_COMMS]; struct cdr_comm *lane_comms[CDR_N_COMMS];
    prepared prep[CDR_N_PROGS];
    int n_events, join_event;
    int64_t step; uint64_t n_random; bool profile;
    cdr_nonfinite bad;                /* mb -1: none */
};

#ifdef __cplusplus
}
#endif
#endif
