/* plan_cmd.h: a plan under way: what plan_cmd.c compiles and plan_text.c prints. Internal to src/command.
 *
 *   cdr__plan_text(&p, &text);
 *   cdr__plan_json(&p, &jw);
 */
#ifndef CDR_TRAIN_PLAN_CMD_H
#define CDR_TRAIN_PLAN_CMD_H

#include "plan/account.h"
#include "train/fit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { const cdr_bundle *bundle; int ranks; cdr_account a; } plan_class;
typedef struct {
    cdr_session s;                                  /* its bundle and mesh: of --rank */
    int kind, n_threads; uint32_t isa;              /* as compile options have them */
    plan_class *classes; int n_classes, worst;      /* worst: most bytes */
    int64_t limit; bool fits;
    cdr_kernel_count stand_ins;
    cdr_fix fix[CDR_MAX_FIXES]; int n_fixes;        /* where it does not fit */
    bool *layer;                                    /* --layers: those that are printed; NULL: all */
} plan;

void cdr__plan_text(const plan *p, cdr_text *t);
void cdr__plan_json(const plan *p, cdr_jw *w);

#ifdef __cplusplus
}
#endif
#endif
