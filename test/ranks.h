/* ranks.h: runs a function on n ranks, for tests. What a rank finds wrong it prints, and ends with exit code 1; the parent
 * checks the exit code of the launch.
 *
 *   static int meet(cdr_comm *w, int arg) { EXPECT(cdr_comm_size(w) == arg); EXPECT_OK(cdr_comm_barrier(w)); return 0; }
 *   T_CHECK(run_quiet(4, meet, 4) == 0);
 */
#ifndef CADRE_TEST_RANKS_H
#define CADRE_TEST_RANKS_H
#include "comm/comm.h"
#include "comm/shm.h"
#include "test.h"

#include <pthread.h>
#include <unistd.h>

#define EXPECT(x) do { if (!(x)) { fprintf(stderr, "  %s:%d: rank %d: %s\n", __FILE__, __LINE__, cdr_comm_rank(w), #x); return 1; } } while (0)
#define EXPECT_OK(x) EXPECT((x) == CDR_OK)

typedef int (*body)(cdr_comm *w, int arg);
static int to_parent[2];               /* a pipe from ranks to the test */

static inline void say(const char *fmt, ...) CDR_PRINTF(1, 2);
static inline void say(const char *fmt, ...)
{
    char s[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(s, sizeof s, fmt, ap);
    va_end(ap);
    if (write(to_parent[1], s, (size_t)n) != n) _exit(99);
}

/* What one rank does: a lost job is told to the parent, the first rank to ask says so. */
static inline int as_rank(body f, int arg, double timeout_s)
{
    cdr_comm *w;
    cdr_err err = { 0 };
    cdr_status st = cdr_comm_open(&(cdr_comm_spec){ .transport = "auto", .timeout_s = timeout_s }, &w, &err);
    int code = (int)st;
    if (st == CDR_OK) {
        code = f(w, arg);
        if (code == CDR_ERANK) cdr_comm_lost(w, &err);
        cdr_comm_close(w);
    }
    if (code == CDR_ERANK) say("%s|%s\n", cdr_comm_first_error(&err) ? "first" : "also", err.text);
    return code;
}

/* Runs f on n processes; the exit code of the launch. said: what ranks told the parent; ms: how long it took. */
static inline int run_ranks(int n, body f, int arg, double timeout_s, char *said, size_t bytes, double *ms)
{
    int rank, code = -1;
    cdr_err err = { 0 };
    if (pipe(to_parent)) return -1;
    int64_t t0 = cdr_now_ns();
    cdr_status st = cdr_shm_launch(n, "none", NULL, &rank, &code, &err);
    if (rank >= 0) {
        code = as_rank(f, arg, timeout_s);
        exit(code);
    }
    if (ms) *ms = (double)(cdr_now_ns() - t0) / 1e6;
    close(to_parent[1]);
    size_t have = 0;
    ssize_t got;
    char drop[256];
    while ((got = said && have + 1 < bytes ? read(to_parent[0], said + have, bytes - 1 - have) : read(to_parent[0], drop, sizeof drop)) > 0)
        if (said) have += (size_t)got;
    if (said) said[have] = 0;
    close(to_parent[0]);
    if (st != CDR_OK) fprintf(stderr, "  launch of %d: %s\n", n, err.text);
    return st == CDR_OK ? code : -1;
}

/* Runs f on n threads of this process as ranks, which a thread sanitizer sees into: 0, or the code of a rank that failed. */
typedef struct { cdr_shm_view *v; int rank, code; body f; int arg; double timeout_s; } thread_rank;

static inline void *thread_main(void *p)
{
    thread_rank *t = p;
    cdr_comm *w;
    t->code = 99;
    if (cdr__shm_attach(t->v, t->rank, t->timeout_s, &w, NULL) != CDR_OK) return NULL;
    t->code = t->f(w, t->arg);
    cdr_comm_close(w);
    return NULL;
}

static inline int run_threads(int n, body f, int arg, double timeout_s)
{
    enum { MOST = 16 };
    pthread_t thread[MOST];
    thread_rank t[MOST];
    cdr_shm_view *v = NULL;
    if (n > MOST || cdr__shm_create(n, &v, NULL) != CDR_OK) return -1;
    int code = 0;
    for (int r = 0; r < n; r++) {
        t[r] = (thread_rank){ .v = v, .rank = r, .f = f, .arg = arg, .timeout_s = timeout_s };
        if (pthread_create(&thread[r], NULL, thread_main, &t[r]) != 0) abort();
    }
    for (int r = 0; r < n; r++) {
        pthread_join(thread[r], NULL);
        if (t[r].code != 0) code = t[r].code;
    }
    cdr__shm_view_free(v);
    return code;
}

static inline int run_quiet(int n, body f, int arg) { return run_ranks(n, f, arg, 10, NULL, 0, NULL); }
static inline uint64_t draw(uint64_t stream, uint64_t i) { return cdr_rng_u64((cdr_rng_key){ .seed = 7, .stream = stream, .step = 0 }, i); }
#endif
