/* ckpt_dir.c: names, listing, cleaning and pruning of the checkpoints of a run directory.
 *
 *   checkpoints/step-000000600/             complete: it has its final name and a manifest
 *   checkpoints/.partial-step-000000600/    being written, or left by an interrupted writer
 *   checkpoints/.removed-step-000000600/    being removed
 *
 * A directory gets its final name by one rename after everything in it is synced, and loses it by one rename before
 * anything in it is removed: whatever moment a process dies at, what has the name is whole.
 */
#include "io/io.h"
#include "io/internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

static const char PARTIAL[] = ".partial-", REMOVED[] = ".removed-";
enum { PATH_BYTES = 4096 };

int64_t cdr__ckpt_parse_dir(const char *name)
{
    if (strncmp(name, "step-", 5) != 0) return -1;
    const char *digits = name + 5;
    size_t n = strlen(digits);
    if (n < 9 || n > 18 || strspn(digits, "0123456789") != n || (n > 9 && digits[0] == '0')) return -1;
    return (int64_t)strtoll(digits, NULL, 10);
}

void cdr_ckpt_path(char *out, size_t bytes, const char *run_dir, int64_t step)
{
    (void)snprintf(out, bytes, "%s/checkpoints/step-%09lld", run_dir, (long long)step);
}

void cdr__ckpt_partial_path(char *out, size_t bytes, const char *run_dir, int64_t step)
{
    (void)snprintf(out, bytes, "%s/checkpoints/%sstep-%09lld", run_dir, PARTIAL, (long long)step);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* All complete steps, ascending; malloc. */
static int64_t *all_steps(const char *run_dir, int *n_out)
{
    char dir[PATH_BYTES], manifest[PATH_BYTES + 64];
    int64_t *steps = NULL;
    int n = 0, cap = 0;
    (void)snprintf(dir, sizeof dir, "%s/checkpoints", run_dir);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        int64_t step = cdr__ckpt_parse_dir(e->d_name);
        if (step < 0) continue;
        (void)snprintf(manifest, sizeof manifest, "%s/step-%09lld/manifest.json", dir, (long long)step);
        if (!cdr_exists(manifest)) continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 16;
            steps = realloc(steps, (size_t)cap * sizeof *steps);
            CDR_CHECK(steps);
        }
        steps[n++] = step;
    }
    if (d) (void)closedir(d);
    if (n > 1) qsort(steps, (size_t)n, sizeof *steps, by_value);
    *n_out = n;
    return steps;
}

int cdr_ckpt_list(const char *run_dir, int64_t *steps, int max)
{
    int n;
    int64_t *all = all_steps(run_dir, &n);
    for (int i = 0; i < n && i < max; i++) steps[i] = all[i];
    free(all);
    return n;
}

cdr_status cdr_ckpt_clean(const char *run_dir, cdr_err *err)
{
    char dir[PATH_BYTES], path[2 * PATH_BYTES];
    (void)snprintf(dir, sizeof dir, "%s/checkpoints", run_dir);
    DIR *d = opendir(dir);
    if (!d) {
        if (errno == ENOENT) return CDR_OK;
        CDR_FAIL_ID(err, CDR_EUSER, "io.read", "%s: cannot read the directory: %s", dir, strerror(errno));
    }
    cdr_status status = CDR_OK;
    for (struct dirent *e; status == CDR_OK && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, PARTIAL, sizeof PARTIAL - 1) != 0 && strncmp(e->d_name, REMOVED, sizeof REMOVED - 1) != 0) continue;
        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        status = cdr_remove_tree(path, err);
    }
    (void)closedir(d);
    return status;
}

static cdr_status remove_step(const char *run_dir, int64_t step, cdr_err *err)
{
    char path[PATH_BYTES], removed[PATH_BYTES];
    cdr_ckpt_path(path, sizeof path, run_dir, step);
    (void)snprintf(removed, sizeof removed, "%s/checkpoints/%sstep-%09lld", run_dir, REMOVED, (long long)step);
    if (cdr_exists(removed)) CDR_TRY(cdr_remove_tree(removed, err));
    if (rename(path, removed) != 0)
        CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot rename: %s", path, strerror(errno));
    return cdr_remove_tree(removed, err);
}

cdr_status cdr_ckpt_prune(const char *run_dir, int keep, cdr_err *err)
{
    int n;
    int64_t *steps = all_steps(run_dir, &n);
    cdr_status status = CDR_OK;
    for (int i = 0; keep > 0 && i < n - keep && status == CDR_OK; i++) status = remove_step(run_dir, steps[i], err);
    free(steps);
    return status;
}
