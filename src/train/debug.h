/* debug.h: the diagnostic switches of CADRE_DEBUG, in one table: a run is slower with them, its bits are the same.
 *
 *   uint32_t on;
 *   CDR_TRY(cdr__debug_switches(&on, err));          // CADRE_DEBUG=poison,trace
 *   if (on & CDR_DEBUG_TRACE) ...
 */
#ifndef CDR_DEBUG_H
#define CDR_DEBUG_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_DEBUG_POISON = 1, CDR_DEBUG_SYNC = 2, CDR_DEBUG_TRACE = 4, CDR_DEBUG_FINITE = 8, CDR_DEBUG_ROWS = 16 };
typedef struct { const char *name; uint32_t bit; const char *what; } cdr_debug_switch;
extern const cdr_debug_switch cdr__debug_table[];        /* ends with name NULL */
cdr_status cdr__debug_switches(uint32_t *on, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
