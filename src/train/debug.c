/* debug.c: reads CADRE_DEBUG. */
#include "train/debug.h"
#include <stdlib.h>
#include <string.h>

const cdr_debug_switch cdr__debug_table[] = {
    { "poison", CDR_DEBUG_POISON, "fills a program's scratch memory with NaN before it runs: what is read unwritten shows" },
    { "sync", CDR_DEBUG_SYNC, "waits for the device after every call: a fault is reported at the call that made it" },
    { "trace", CDR_DEBUG_TRACE, "prints every call to stderr before it runs" },
    { "finite", CDR_DEBUG_FINITE, "looks at every output of every call for non-finite values, in every step" },
    { "rows", CDR_DEBUG_ROWS, "keeps every weight in rows, none in the panels that products read without packing" },
    { NULL, 0, NULL },
};

cdr_status cdr__debug_switches(uint32_t *on, cdr_err *err)
{
    *on = 0;
    for (const char *s = getenv("CADRE_DEBUG"); s && *s;) {
        size_t n = strcspn(s, ", ");
        int i = 0;
        while (cdr__debug_table[i].name && !(strlen(cdr__debug_table[i].name) == n && strncmp(cdr__debug_table[i].name, s, n) == 0)) i++;
        if (n > 0 && !cdr__debug_table[i].name)
            CDR_FAIL_ID(err, CDR_EUSER, "config.debug", "CADRE_DEBUG: unknown switch \"%.*s\". Use poison, sync, trace, finite or rows, separated by commas", (int)n, s);
        if (n > 0) *on |= cdr__debug_table[i].bit;
        s += n + (s[n] != 0);
    }
    return CDR_OK;
}
