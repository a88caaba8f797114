/* forked.h: a run in processes of its own, for tests: ranks fork before any OpenMP region, and results lie in memory that they share.
 *
 *   big *r = forked_memory(sizeof *r);
 *   T_CHECK(forked_go(2, step, &job) == 0);                   // step(&job, rank, &err) on ranks 0 and 1
 */
#ifndef CADRE_TEST_FORKED_H
#define CADRE_TEST_FORKED_H
#include "comm/shm.h"
#include "test.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef cdr_status (*forked_body)(void *job, int rank, cdr_err *err);

/* Zeros; pages that nobody writes take no memory. */
static inline void *forked_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

static inline void forked_clear(void *p, size_t bytes)
{
    if (madvise(p, bytes, MADV_REMOVE) != 0) memset(p, 0, bytes);
}

/* The exit code, 0 on success; what a rank finds wrong it prints. */
static inline int forked_go(int n_ranks, forked_body f, void *job)
{
    fflush(stdout);
    fflush(stderr);
    pid_t pid = fork();
    if (pid == 0) {
        cdr_err err = { CDR_OK, "", "" };
        int rank = 0, code = 0;
        if (n_ranks > 1 && cdr_shm_launch(n_ranks, "none", NULL, &rank, &code, &err) != CDR_OK) _exit(99);
        if (rank < 0) _exit(code);
        cdr_status st = f(job, rank, &err);
        if (st != CDR_OK) fprintf(stderr, "  rank %d: %s\n", rank, err.text);
        _exit((int)st);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
#endif
