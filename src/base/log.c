/* log.c: lines for a person, on stderr. A line is formatted on the stack and written with one call, so that lines
 * of several ranks and threads do not mix.
 */
#include "base/base.h"
#include <stdatomic.h>
#include <unistd.h>

static _Atomic int log_level = CDR_LOG_INFO;

void cdr_log_set_level(cdr_log_level level) { atomic_store(&log_level, (int)level); }
cdr_log_level cdr_log_get_level(void) { return (cdr_log_level)atomic_load(&log_level); }

void cdr_log(cdr_log_level level, const char *fmt, ...)
{
    static const char *const head[] = { "error: ", "warning: ", "note: ", "debug: " };
    if ((int)level > atomic_load(&log_level)) return;
    char line[4096];
    int n = snprintf(line, sizeof line, "%s", head[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) return;
    n = CDR_MIN(n + m, (int)sizeof line - 2);
    line[n++] = '\n';
    fflush(stderr);
    for (int done = 0; done < n;) {
        ssize_t k = write(STDERR_FILENO, line + done, (size_t)(n - done));
        if (k <= 0) return;                     /* nobody reads: there is nowhere left to say so */
        done += (int)k;
    }
}
