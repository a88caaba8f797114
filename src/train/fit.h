/* fit.h: changes of a recipe under which a plan that is too large fits. Internal to src/train.
 *
 *   cdr_fix fix[CDR_MAX_FIXES];
 *   int n = cdr__fixes(&s, fix);                      // after s.opts; each was compiled
 *   if (need > have) return cdr__does_not_fit(&s, err);
 */
#ifndef CDR_TRAIN_FIT_H
#define CDR_TRAIN_FIT_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_MAX_FIXES = 3 };
enum { CDR_FIX_KEYS = 6 };
typedef struct { const char *key[CDR_FIX_KEYS]; char value[CDR_FIX_KEYS][24]; int n_keys; int64_t total_bytes; double step_s; /* 0: unknown */ } cdr_fix;

int cdr__fixes(const cdr_session *s, cdr_fix fix[CDR_MAX_FIXES]);
void cdr__fix_text(cdr_text *t, const cdr_fix *f);                             /* "memory.policy=auto -> 8,253,440 bytes, 0.31 s a step" */
cdr_status cdr__does_not_fit(const cdr_session *s, cdr_err *err);              /* message 5; needs s->bundle */

#ifdef __cplusplus
}
#endif
#endif
