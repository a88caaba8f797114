/* loss_list.c: the losses of runs as their bits: loss_list STEPS RUN... (no test; used by test/rehearse.sh). Prints step, bits and value of
 * the loss and the gradient norm of the first run, and the hash of each run's list; ends with 1 where one differs from the first,
 * or has not STEPS steps. Read from RUN/events.jsonl, whose numbers are written so that they read back to the same bits.
 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 10000 };
typedef struct { double loss, norm; } step_figures;

static uint64_t bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Steps 1..n of a run; a step that was run again after a resume counts as it came last. n: the last step, or -1. */
static int read_run(const char *run, step_figures *f)
{
    char path[2048], *text;
    size_t bytes;
    cdr_err err = { .status = CDR_OK };
    int n = 0;
    snprintf(path, sizeof path, "%s/events.jsonl", run);
    if (cdr_file_read(path, (size_t)1 << 30, &text, &bytes, &err) != CDR_OK) {
        fprintf(stderr, "error: %s\n", err.text);
        return -1;
    }
    cdr_pool *pool = cdr_pool_new();
    for (char *line = text; *line && n >= 0;) {
        size_t len = strcspn(line, "\n");
        const cdr_json *root = NULL;
        if (cdr_json_parse(pool, line, len, path, &root, &err) != CDR_OK) n = -1;
        else if (strcmp(cdr_json_str(cdr_json_get(root, "type"), ""), "step") == 0) {
            int64_t step = cdr_json_int(cdr_json_get(root, "step"), 0);
            if (step < 1 || step > MAX_STEPS) break;
            f[step - 1] = (step_figures){ cdr_json_real(cdr_json_get(root, "loss"), -1), cdr_json_real(cdr_json_get(root, "grad_norm"), -1) };
            n = CDR_MAX(n, (int)step);
        }
        line += len + (line[len] == '\n');
    }
    cdr_pool_free(pool);
    free(text);
    if (n < 0) fprintf(stderr, "error: %s\n", err.text);
    return n;
}

int main(int argc, char **argv)
{
    static step_figures first[MAX_STEPS], other[MAX_STEPS];
    int want = argc > 2 ? atoi(argv[1]) : 0, n = want > 0 ? read_run(argv[2], first) : -1, failed = n != want;
    if (want <= 0) fprintf(stderr, "usage: loss_list STEPS RUN...\n");
    if (n < 0) return 1;
    for (int i = 0; i < n; i++)
        printf("step %3d  loss %016llx  %.17g  gnorm %016llx  %.6g\n", i + 1, (unsigned long long)bits(first[i].loss), first[i].loss,
               (unsigned long long)bits(first[i].norm), first[i].norm);
    for (int r = 2; r < argc; r++) {
        int n_other = read_run(argv[r], other), at = 0;
        size_t bytes = sizeof *other * (size_t)CDR_MAX(n_other, 0);
        while (at < n && at < n_other && memcmp(&first[at], &other[at], sizeof *other) == 0) at++;
        bool equal = n_other == want && at == want;
        printf("list of %-24s %016llx  %d steps%s\n", argv[r], (unsigned long long)cdr_hash64(other, bytes, 0), n_other, equal ? "" : "  DIFFERS");
        if (!equal && at < n && at < n_other)
            printf("  from step %d on: loss %.17g, gnorm %.17g\n", at + 1, other[at].loss, other[at].norm);
        failed |= !equal;
    }
    return failed;
}
