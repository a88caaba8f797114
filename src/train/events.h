/* events.h: what a run says: the banner, step lines on stdout, and events.jsonl, which everything else reads.
 * Rank 0 speaks; on other ranks the functions do nothing. Internal to src/train.
 *
 *   cdr_events e;
 *   cdr__events_open(&e, s, json, err);
 *   cdr__events_step(&e, &rec);
 *   cdr__events_close(&e);
 */
#ifndef CDR_EVENTS_H
#define CDR_EVENTS_H

#include "train/router.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const cdr_session *s;
    FILE *log;                   /* events.jsonl; NULL on ranks other than 0 */
    FILE *out;                   /* stdout lines; NULL: quiet */
    bool json;                   /* stdout gets the records instead of lines */
    char run[16];                /* id of this start */
    double gemm_peak;            /* FLOP/s of this rank's threads, measured; 0: unknown */
    bool full;                   /* a record could not be written, and that was said */
} cdr_events;

typedef struct {
    int64_t step, steps, tokens, trained, step_trained;
    double loss, grad_norm, lr, epoch, step_s, data_s, eta_s;
    int skipped;
    const cdr_router *router; const cdr_extra *extra;      /* of this step */
} cdr_step_record;

cdr_status cdr__events_open(cdr_events *e, const cdr_session *s, bool json, bool quiet, cdr_err *err);
void cdr__events_close(cdr_events *e);
void cdr__events_run(cdr_events *e);                                           /* the first record */
void cdr__events_load(cdr_events *e, const cdr_load *load);                    /* weights of a directory, while they are read */
void cdr__events_banner(cdr_events *e, const char *how);                       /* "new", "resumed from step 100" */
void cdr__events_lora(cdr_events *e);                                          /* after the banner; nothing without LoRA */
void cdr__events_resume(cdr_events *e, const cdr_restored *r, const cdr_recipe_diff *d);
void cdr__events_step(cdr_events *e, const cdr_step_record *r);
void cdr__events_router(cdr_events *e, int64_t step, const cdr_router *r);     /* one record; nothing where no layer has experts */
void cdr__events_map(cdr_events *e, const cdr_router *r);                       /* layers x experts, in the terminal */
void cdr__events_uneven(cdr_events *e, int layer, double ratio, int dead);      /* warning: the router's load */
void cdr__events_eval(cdr_events *e, int64_t step, int64_t steps, const cdr_eval_sum *sum);
void cdr__events_sample(cdr_events *e, int64_t step, const char *prompt, const char *text, int64_t n, uint64_t seed);
void cdr__events_saved(cdr_events *e, int64_t step, int64_t bytes, double seconds, const char *reason);
void cdr__events_hash(cdr_events *e, int64_t step, int64_t tensors, bool equal);
void cdr__events_signal(cdr_events *e, const char *name, const char *action);
void cdr__events_error(cdr_events *e, const cdr_err *err);
void cdr__events_end(cdr_events *e, const char *status, int code, int64_t step, int64_t tokens, double wall_s, double best_eval);
/* The `error` record on stdout alone, of what fails before there is an event log. */
void cdr__events_print_error(const cdr_err *err);
int64_t cdr__resident_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
