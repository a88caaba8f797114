/* ceiling.c: this machine's GEMM ceiling, for the share that a step line prints. A probe of some milliseconds reads too low
 * on a busy machine, so the best figure ever measured is kept in the cache folder, one line a configuration. */
#include "run/bench.h"
#include "train/session.h"
#include <stdlib.h>

enum { MAX_CACHE_BYTES = 65536 };

bool cdr__cache_path(char *out, size_t n, const char *name)
{
    const char *own = getenv("CADRE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int used = own && *own ? snprintf(out, n, "%s", own) : xdg && *xdg ? snprintf(out, n, "%s/cadre", xdg) : home && *home ? snprintf(out, n, "%s/.cache/cadre", home)
        : -1;
    if (used < 0 || (size_t)used + strlen(name) + 2 > n) return false;
    if (*name) snprintf(out + used, n - (size_t)used, "/%s", name);
    return true;
}

/* FLOP/s of lines "KEY FLOPS"; 0: not there */
static double cached(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, n) == 0 && line[n] == ' ') return strtod(line + n, NULL);
    return 0;
}

/* The other lines, and this one. A cache that cannot be written is no error. */
static void store(const char *path, const char *text, const char *key, double flops)
{
    cdr_text out = { 0 };
    size_t n = strlen(key);
    for (const char *line = text; line && *line;) {
        const char *end = strchr(line, '\n');
        size_t len = end ? (size_t)(end - line) + 1 : strlen(line);
        if (!(strncmp(line, key, n) == 0 && line[n] == ' ')) cdr_text_append(&out, line, len);
        line += len;
    }
    cdr_text_printf(&out, "%s %.6g\n", key, flops);
    char *dir = strdup(path), *slash = dir ? strrchr(dir, '/') : NULL;
    cdr_err ignored = { CDR_OK, "", "" };
    if (slash) {
        *slash = 0;
        if (cdr_make_dirs(dir, &ignored) == CDR_OK) cdr_file_write(path, out.s, out.n, &ignored);
    }
    free(dir);
    cdr_text_free(&out);
}

double cdr__gemm_ceiling(const cdr_device *d, int dtype)
{
    if (d->kind != CDR_DEV_CPU) return 0;
    double now = cdr_bench_quick_gemm(dtype, d->isa, d->n_threads), best = now;
    char path[1100], key[64];
    uint64_t machine = cdr_hash64(d->name, strlen(d->name), (uint64_t)cdr_cpu_cores());
    snprintf(key, sizeof key, "%016llx-%s-%s-%d", (unsigned long long)machine, cdr_isa_name(d->isa), cdr_dtype_row(dtype)->name, d->n_threads);
    if (!cdr__cache_path(path, sizeof path, "ceilings")) return now;
    char *text = NULL;
    size_t bytes = 0;
    cdr_err ignored = { CDR_OK, "", "" };
    if (cdr_file_read(path, MAX_CACHE_BYTES, &text, &bytes, &ignored) == CDR_OK) best = CDR_MAX(now, cached(text, key));
    if (best <= now * 1.0001) store(path, text, key, now);
    free(text);
    return best;
}
