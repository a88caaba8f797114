/* error.c: the one way in which a fault travels up to the user (cdr_fail), and the one way in which a broken
 * invariant ends the process (CDR_CHECK).
 */
#include "base/base.h"
#include <stdlib.h>
#include <string.h>

static const char *status_id(cdr_status status)
{
    switch ((int)status) {
    case CDR_EUSER:      return "general.invalid";
    case CDR_EUSAGE:     return "general.usage";
    case CDR_EDATA:      return "general.data";
    case CDR_ENUMERIC:   return "general.numeric";
    case CDR_EINTERRUPT: return "general.interrupted";
    case CDR_EBUG:       return "general.bug";
    case CDR_ESAVED:     return "general.saved";
    case CDR_ERANK:      return "general.rank";
    default:             return "general.error";
    }
}

/* The first error wins: a caller that reports a consequence must not hide the cause. The status that is returned
 * is then the first one too, so that exit code and message agree. */
cdr_status cdr_fail(cdr_err *err, cdr_status status, const char *id, const char *fmt, ...)
{
    if (!err) return status;
    if (err->status != CDR_OK) return err->status;
    err->status = status;
    snprintf(err->id, sizeof err->id, "%s", id ? id : status_id(status));
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    for (char *c = err->text; *c; c++)          /* a message is one line, whatever a file name holds */
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = ' ';
    return status;
}

cdr_where *cdr_here(void)
{
    static cdr_where here = { .rank = -1, .step = -1, .call = -1 };
    return &here;
}

void cdr_check_failed(const char *expr, const char *file, int line)
{
    const cdr_where *w = cdr_here();
    char place[256] = "";
    int n = 0;
    if (w->rank >= 0) n += snprintf(place + n, sizeof place - (size_t)n, " rank %d", w->rank);
    if (w->step >= 0) n += snprintf(place + n, sizeof place - (size_t)n, " step %lld", (long long)w->step);
    if (w->call >= 0)
        snprintf(place + n, sizeof place - (size_t)n, " call %d (%.60s, %.100s)", w->call, w->op ? w->op : "?",
                 w->origin ? w->origin : "?");
    fprintf(stderr, "error:%s%s %s:%d: broken invariant: %s; this is a bug in cadre. Please report it [bug.check]\n",
            place, place[0] ? ":" : "", file, line, expr);
    fflush(stderr);
    abort();
}
