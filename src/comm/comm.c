/* comm: finds out who started this process and as which rank, chooses the transport, and passes each call on.
 *
 * Launchers, first match wins (formats.md, section 5). `cadre launch` is the only one that leads to a transport so far;
 * a job of several ranks started by another one is refused here, since as many independent runs that write over each
 * other's files would be the worst outcome.
 *
 *   launcher       variables
 *   cadre launch   CADRE_RANK CADRE_WORLD CADRE_LOCAL_RANK CADRE_SHM (descriptor of the control block)
 *   torchrun       RANK WORLD_SIZE
 *   Open MPI       OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
 *   PMI            PMI_RANK PMI_SIZE                 (MPICH, Intel MPI)
 *   Slurm          SLURM_PROCID SLURM_NTASKS
 */
#include "comm/shm.h"
#include "comm/transport.h"

#include <errno.h>
#include <stdlib.h>

static const cdr_transport *const transports[] = { &cdr_transport_single, &cdr_transport_shm };
static const char *const reserved[] = { "mpi", "nccl" };
static const struct { const char *launcher, *rank, *world; } launchers[] = {
    { "cadre launch", "CADRE_RANK", "CADRE_WORLD" },
    { "torchrun", "RANK", "WORLD_SIZE" },
    { "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
    { "PMI", "PMI_RANK", "PMI_SIZE" },
    { "Slurm", "SLURM_PROCID", "SLURM_NTASKS" },
};

static cdr_status read_number(const char *name, int *x, cdr_err *err)
{
    const char *s = getenv(name);
    char *end = NULL;
    errno = 0;
    long v = strtol(s, &end, 10);
    if (errno || end == s || *end || v < 0 || v > INT32_MAX)
        CDR_FAIL_ID(err, CDR_EUSER, "comm.launcher", "%s: \"%s\" is not a number of ranks. Unset it, or start with cadre launch -n N", name, s);
    *x = (int)v;
    return CDR_OK;
}

static cdr_status find_launcher(cdr_ranks *r, cdr_err *err)
{
    *r = (cdr_ranks){ .launcher = "none", .rank = 0, .world = 1 };
    for (int i = 0; i < CDR_COUNT(launchers); i++) {
        if (!getenv(launchers[i].rank) || !getenv(launchers[i].world)) continue;
        CDR_TRY(read_number(launchers[i].rank, &r->rank, err));
        CDR_TRY(read_number(launchers[i].world, &r->world, err));
        if (r->world < 1 || r->rank >= r->world)
            CDR_FAIL_ID(err, CDR_EUSER, "comm.launcher", "%s=%d, %s=%d: not a rank of a world. Start with cadre launch -n N",
                        launchers[i].rank, r->rank, launchers[i].world, r->world);
        r->launcher = launchers[i].launcher;
        return CDR_OK;
    }
    return CDR_OK;
}

cdr_status cdr_comm_open(const cdr_comm_spec *spec, cdr_comm **world, cdr_err *err)
{
    const char *name = spec->transport ? spec->transport : "auto";
    cdr_ranks r;
    *world = NULL;
    CDR_TRY(find_launcher(&r, err));
    bool ours = !strcmp(r.launcher, "cadre launch"), automatic = !strcmp(name, "auto");
    for (int i = 0; i < CDR_COUNT(reserved); i++)
        if (!strcmp(name, reserved[i]))
            CDR_FAIL_ID(err, CDR_EUSER, "comm.reserved", "parallel.transport: %s is not there yet. Use cadre launch -n N and transport shm on one machine", name);
    if (automatic && !ours && r.world > 1)
        CDR_FAIL_ID(err, CDR_EUSER, "comm.reserved",
                    "ranks: %s started %d ranks, and its transports mpi and nccl are not there yet. Start with cadre launch -n %d, "
                    "or set parallel.transport=single for a run of one rank", r.launcher, r.world, r.world);
    if (automatic) name = ours ? "shm" : "single";
    if (!strcmp(name, "shm") && !ours)
        CDR_FAIL_ID(err, CDR_EUSER, "comm.launcher", "parallel.transport: shm needs ranks that cadre started. Start with cadre launch -n N");
    if (!strcmp(name, "single")) {
        if (ours && r.world > 1)
            CDR_FAIL_ID(err, CDR_EUSER, "comm.launcher", "parallel.transport: single is for one rank, cadre launch started %d. Use auto", r.world);
        r = (cdr_ranks){ .launcher = ours ? r.launcher : "none", .rank = 0, .world = 1 };
    }
    for (int i = 0; i < CDR_COUNT(transports); i++)
        if (!strcmp(name, transports[i]->name)) return transports[i]->open(spec, &r, world, err);
    CDR_FAIL_ID(err, CDR_EUSER, "comm.transport", "parallel.transport: no transport \"%s\"; there are auto, single, shm", name);
}

cdr_comm *cdr_comm_split(cdr_comm *c, int color, int key, cdr_err *err)
{
    cdr_comm *s = c->t->split(c, color, key, err);
    if (!s) return NULL;
    s->parent = c;
    s->next = c->first;
    c->first = s;
    return s;
}

/* A split of a split is closed before its parent; splits are leaves of a tree whose depth the caller made. */
void cdr_comm_close(cdr_comm *c)
{
    if (!c) return;
    cdr_comm *at = c;
    for (;;) {
        while (at->first) at = at->first;
        cdr_comm *up = at->parent;
        if (up)
            for (cdr_comm **link = &up->first; *link; link = &(*link)->next)
                if (*link == at) {
                    *link = at->next;
                    break;
                }
        bool done = at == c;
        at->t->close(at);
        if (done) return;
        at = up;
    }
}

int64_t cdr_comm_read_bytes(const cdr_comm *c) { return c->read_bytes; }
void cdr_comm_count_read(cdr_comm *c, int64_t bytes) { c->read_bytes += bytes; }
int cdr_comm_rank(const cdr_comm *c) { return c->rank; }
int cdr_comm_size(const cdr_comm *c) { return c->size; }
const char *cdr_comm_transport(const cdr_comm *c) { return c->t->name; }
const char *cdr_comm_source(const cdr_comm *c) { return c->source; }

void *cdr_comm_slab(cdr_comm *world, size_t bytes, cdr_err *err)
{
    CDR_CHECK(!world->parent);
    return world->t->slab(world, bytes, err);
}

static void check_pieces(const cdr_piece *p, int n, bool sums)
{
    CDR_CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
        CDR_CHECK(p[i].rows >= 0);
        if (!sums) continue;
        CDR_CHECK(p[i].dtype == CDR_F32 || p[i].dtype == CDR_F64 || p[i].dtype == CDR_I32);
        CDR_CHECK(p[i].row_bytes % (size_t)cdr_dtype_row(p[i].dtype)->block_bytes == 0);
    }
}

cdr_status cdr_comm_gather(cdr_comm *c, const cdr_piece *p, int n)
{
    check_pieces(p, n, false);
    return c->t->gather(c, p, n);
}

cdr_status cdr_comm_reduce_scatter(cdr_comm *c, const cdr_piece *p, int n)
{
    check_pieces(p, n, true);
    return c->t->reduce_scatter(c, p, n);
}

cdr_status cdr_comm_all_reduce(cdr_comm *c, const cdr_piece *p, int n)
{
    check_pieces(p, n, true);
    return c->t->all_reduce(c, p, n);
}

cdr_status cdr_comm_sum_i64(cdr_comm *c, int64_t *x, int n)
{
    CDR_CHECK(n >= 0 && n <= 64);
    return c->t->sum_i64(c, x, n);
}

cdr_status cdr_comm_all_gather(cdr_comm *c, const void *src, void *dst, size_t bytes)
{
    CDR_CHECK(bytes <= 65536);
    return c->t->all_gather(c, src, dst, bytes);
}

cdr_status cdr_comm_broadcast(cdr_comm *c, void *x, size_t bytes, int root)
{
    CDR_CHECK(root >= 0 && root < c->size);
    return c->t->broadcast(c, x, bytes, root);
}

cdr_status cdr_comm_barrier(cdr_comm *c) { return c->t->barrier(c); }

cdr_status cdr_comm_expose_begin(cdr_comm *c, const void *const *ptr, int n, uint64_t signature)
{
    CDR_CHECK(n >= 0 && n <= CDR_EXPOSE_MAX);
    CDR_CHECK(!c->exposing);
    c->n_exposed = n;
    c->exposing = true;
    return c->t->expose_begin(c, ptr, n, signature);
}

cdr_status cdr_comm_expose_end(cdr_comm *c)
{
    CDR_CHECK(c->exposing);
    c->exposing = false;
    return c->t->expose_end(c);
}

cdr_status cdr_comm_expose(cdr_comm *c, const void *const *ptr, int n, uint64_t signature)
{
    cdr_status st = cdr_comm_expose_begin(c, ptr, n, signature), end = cdr_comm_expose_end(c);
    return st != CDR_OK ? st : end;
}

const void *cdr_comm_peer(cdr_comm *c, int rank, int k)
{
    CDR_CHECK(!c->exposing && rank >= 0 && rank < c->size && k >= 0 && k < c->n_exposed);
    return c->peer[rank * CDR_EXPOSE_MAX + k];
}

void cdr_comm_note(cdr_comm *c, int64_t step, int layer, const char *what) { c->t->note(c, step, layer, what); }
void cdr_comm_lost(cdr_comm *c, cdr_err *err) { c->t->lost(c, err); }

bool cdr_comm_first_error(const cdr_err *err)
{
    return getenv("CADRE_SHM") ? cdr__shm_first_error(err) : true;
}
