/* overhead.h: what a process of a run takes beside its slab: named, with the reason for each figure. The plan states it, the banner of train
 * repeats it, a test compares it with the peak of real processes. Internal to src/train.
 *
 *   cdr__overhead_item item[CDR__OVERHEAD];
 *   int n = cdr__overhead(&session, item);
 *   int64_t all = cdr__overhead_bytes(&session);
 */
#ifndef CDR_TRAIN_OVERHEAD_H
#define CDR_TRAIN_OVERHEAD_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__OVERHEAD = 6 };
typedef struct { const char *name, *what; int64_t bytes; } cdr__overhead_item;
int cdr__overhead(const cdr_session *s, cdr__overhead_item item[CDR__OVERHEAD]);       /* after compile; items of 0 bytes are left out */
int64_t cdr__overhead_bytes(const cdr_session *s);

#ifdef __cplusplus
}
#endif
#endif
