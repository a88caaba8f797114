/* comm_speed.c: what the collectives of shm cost with n ranks on this machine (no test): comm_speed [n].
 *
 *   start      from the launch until all have met            all_reduce   1 MB, in place, F32, tree
 *   barrier    world, and of pairs of ranks                  expose       two operands, one look at each peer, barrier
 *   gather     1 MB whole, an n-th from each rank            sum_i64      8 numbers, as a step's counts
 * The first call of a kind maps the peers' memory; it is shown apart. Medians over the calls, of rank 0.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { BYTES = 1 << 20, MAX_CALLS = 400 };
static int64_t t_launch;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct { cdr_comm *world, *pair; char *slab; } rig;

static cdr_status barrier_world(rig *r) { return cdr_comm_barrier(r->world); }
static cdr_status barrier_pair(rig *r) { return cdr_comm_barrier(r->pair); }

static cdr_status gather(rig *r)
{
    cdr_piece p = { .local = r->slab, .full = r->slab + BYTES, .rows = BYTES / 256, .row_bytes = 256, .dtype = CDR_F32 };
    return cdr_comm_gather(r->world, &p, 1);
}

static cdr_status all_reduce(rig *r)
{
    cdr_piece p = { .full = r->slab + BYTES, .rows = BYTES / 256, .row_bytes = 256, .dtype = CDR_F32 };
    return cdr_comm_all_reduce(r->world, &p, 1);
}

static cdr_status expose(rig *r)
{
    const void *ptr[2] = { r->slab, r->slab + BYTES };
    int sum = 0, n = cdr_comm_size(r->world);
    cdr_status st = cdr_comm_expose(r->world, ptr, 2, 7);
    for (int k = 1; k < n && st == CDR_OK; k++) sum += *(const char *)cdr_comm_peer(r->world, (cdr_comm_rank(r->world) + k) % n, 1);
    if (sum) abort();                                /* what all of them hold is zero */
    return st == CDR_OK ? cdr_comm_barrier(r->world) : st;
}

static cdr_status sum_i64(rig *r)
{
    int64_t x[8] = { 1 };
    return cdr_comm_sum_i64(r->world, x, 8);
}

static const struct { const char *name; cdr_status (*f)(rig *); int calls; } what[] = {
    { "barrier", barrier_world, 400 }, { "barrier of pairs", barrier_pair, 400 }, { "sum_i64", sum_i64, 200 }, { "gather 1 MB", gather, 30 },
    { "all_reduce 1 MB", all_reduce, 30 }, { "expose + barrier", expose, 200 },
};

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int as_rank(void)
{
    rig r = { 0 };
    double ms[MAX_CALLS];
    cdr_err err = { 0 };
    if (cdr_comm_open(&(cdr_comm_spec){ .transport = "auto", .timeout_s = 60 }, &r.world, &err) != CDR_OK) return 1;
    int me = cdr_comm_rank(r.world), n = cdr_comm_size(r.world);
    if (me == 0) printf("%d ranks met %.1f ms after the launch began\n", n, (double)(cdr_now_ns() - t_launch) * 1e-6);
    r.pair = cdr_comm_split(r.world, me / 2, me, &err);
    r.slab = cdr_comm_slab(r.world, 3 * BYTES, &err);
    if (!r.pair || !r.slab) return 1;
    for (int i = 0; i < CDR_COUNT(what); i++) {
        double cpu = 0;
        for (int k = 0; k < what[i].calls; k++) {
            if (k == 1) cpu = cpu_s();
            int64_t t0 = cdr_now_ns();
            if (what[i].f(&r) != CDR_OK) return 1;
            ms[k] = (double)(cdr_now_ns() - t0) * 1e-6;
        }
        cpu = (cpu_s() - cpu) * 1e3 / (what[i].calls - 1);
        double first = ms[0];
        qsort(ms + 1, (size_t)what[i].calls - 1, sizeof *ms, by_value);
        if (me == 0)
            printf("%-18s %9.3f ms   first %9.3f ms   processor time of all, about %.3f ms\n", what[i].name, ms[1 + (what[i].calls - 1) / 2], first, cpu * n);
        if (cdr_comm_barrier(r.world) != CDR_OK) return 1;
    }
    cdr_comm_close(r.world);
    return 0;
}

int main(int argc, char **argv)
{
    int rank, code, n = argc > 1 ? atoi(argv[1]) : 128;
    cdr_err err = { 0 };
    t_launch = cdr_now_ns();
    cdr_status st = cdr_shm_launch(n, "none", NULL, &rank, &code, &err);
    if (rank >= 0) exit(as_rank());
    if (st == CDR_OK) printf("all have ended after %.1f ms\n", (double)(cdr_now_ns() - t_launch) * 1e-6);
    else fprintf(stderr, "error: %s\n", err.text);
    return st == CDR_OK ? code : (int)st;
}
