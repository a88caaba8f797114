/* exec.h: the executor's state. Internal to src/run (exec.c, init.c, mapped.c). */
#ifndef CDR_EXEC_H
#define CDR_EXEC_H

#include "run/run.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { const char *name; cdr_val v; } named;
enum { CDR__MAPPED_VALS = 3 };        /* w1, w3, w2 of a layer */
typedef struct { char *at; size_t bytes; } cdr__range;
typedef struct { cdr_val val[CDR__MAPPED_VALS]; int n_vals; cdr__range *range; int64_t n_ranges; } cdr__mapped_set;      /* what a call reads of files */
typedef struct {                      /* of one program, made once */
    cdr_type *types;                  /* by operand */
    cdr_status (**run)(const cdr_args *);   /* by call; NULL: a view */
    int *event;                       /* by call: event that others wait for, -1 */
    int64_t *ns, *n_runs;             /* by call: profile */
    int32_t *ahead;                   /* by call: the set that the next call reads which reads mapped experts; -1 */
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
    cdr__mapped_set *sets; int64_t n_sets, cap_sets; bool mapped_ready;
};

void cdr__mapped_ready(cdr_exec *x);                                  /* once, before the first run: all addresses are there */
void cdr__mapped_ahead(cdr_exec *x, cdr_prog_id q, int32_t i);        /* before call i */

#ifdef __cplusplus
}
#endif
#endif
