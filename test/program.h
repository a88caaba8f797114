/* program.h: the `cadre` program that was built beside a test, as a user runs it.
 *
 *   if (!program_open("cli")) return 1;                        // opens files.h's directory too
 *   T_NEAR(run("version"), 0, 0);                              // out, errors: what it wrote
 *   T_NEAR(runf("eval %s/run --json", dir), 0, 0);
 *   program_close();
 */
#ifndef CADRE_TEST_PROGRAM_H
#define CADRE_TEST_PROGRAM_H
#include "files.h"
#include <sys/wait.h>

static char program[600];
static cdr_pool *texts;                        /* holds what was read */
static const char *out, *errors;

static inline bool program_open(const char *name)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    (void)snprintf(slash ? slash : program, 16, "/cadre");
    if (access(program, X_OK) != 0) {
        fprintf(stderr, "%s is not built; build the target cadre first\n", program);
        return false;
    }
    texts = cdr_pool_new();
    out = errors = "";
    return files_open(name);
}

static inline void program_close(void)
{
    files_close();
    cdr_pool_free(texts);
}

/* A file of dir, "" where there is none; n, where not NULL: its bytes. */
static inline const char *slurp(const char *name, size_t *n)
{
    char *text = NULL;
    size_t bytes = 0;
    const char *copy = "";
    if (cdr_file_read(in_dir(name), 1 << 26, &text, &bytes, NULL) == CDR_OK) copy = cdr_pool_strndup(texts, text, bytes);
    cdr_free(text);
    if (n) *n = bytes;
    return copy;
}

/* `cadre ARGS` with this input; the exit code */
static inline int run_with(const char *args, const char *input)
{
    put("in", input);
    int st = system(cdr_pool_printf(texts, "{ %s %s; } >%s/out 2>%s/err <%s/in", program, args, dir, dir, dir));
    out = slurp("out", NULL);
    errors = slurp("err", NULL);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 1000 + WTERMSIG(st);
}

static inline int run(const char *args) { return run_with(args, ""); }

static inline int runf(const char *fmt, ...) CDR_PRINTF(1, 2);
static inline int runf(const char *fmt, ...)
{
    char args[2400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(args, sizeof args, fmt, ap);
    va_end(ap);
    return run(args);
}
#endif
