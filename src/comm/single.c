/* single: the transport of one rank. Every collective is a copy, or nothing. */
#include "comm/transport.h"

#include <sys/mman.h>

typedef struct { cdr_comm base; void *slab; size_t slab_bytes; const void *exposed[CDR_EXPOSE_MAX]; } single_comm;

static void copy(void *dst, const void *src, size_t bytes)
{
    if (dst != src && bytes) memmove(dst, src, bytes);
}

cdr_status cdr__comm_local_gather(const cdr_piece *p, int n)
{
    for (int i = 0; i < n; i++) copy(p[i].full, p[i].local, (size_t)p[i].rows * p[i].row_bytes);
    return CDR_OK;
}

cdr_status cdr__comm_local_reduce_scatter(const cdr_piece *p, int n)
{
    for (int i = 0; i < n; i++) copy(p[i].local, p[i].full, (size_t)p[i].rows * p[i].row_bytes);
    return CDR_OK;
}

cdr_status cdr__comm_local_all_reduce(const cdr_piece *p, int n)
{
    for (int i = 0; i < n; i++)
        if (p[i].local) copy(p[i].local, p[i].full, (size_t)p[i].rows * p[i].row_bytes);
    return CDR_OK;
}

static cdr_comm *make(const char *source)
{
    single_comm *c = cdr_alloc(sizeof *c);
    *c = (single_comm){ .base = { .t = &cdr_transport_single, .source = source, .rank = 0, .size = 1 } };
    c->base.peer = c->exposed;
    return &c->base;
}

static cdr_status single_open(const cdr_comm_spec *s, const cdr_ranks *r, cdr_comm **world, cdr_err *err)
{
    (void)s, (void)err;
    *world = make(r->launcher);
    return CDR_OK;
}

static cdr_comm *single_split(cdr_comm *c, int color, int key, cdr_err *err)
{
    (void)color, (void)key, (void)err;
    return make(c->source);
}

static void single_close(cdr_comm *base)
{
    single_comm *c = (single_comm *)base;
    if (c->slab) munmap(c->slab, c->slab_bytes);
    cdr_free(c);
}

static void *single_slab(cdr_comm *base, size_t bytes, cdr_err *err)
{
    single_comm *c = (single_comm *)base;
    CDR_CHECK(!c->slab);
    c->slab_bytes = cdr_align_up(CDR_MAX(bytes, (size_t)1), 4096);
    void *p = mmap(NULL, c->slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        cdr_fail(err, CDR_EUSER, "comm.slab", "slab: the machine gave no %zu bytes. Use a smaller batch, or a larger machine", bytes);
        return NULL;
    }
    madvise(p, c->slab_bytes, MADV_HUGEPAGE);    /* a hint: fewer page faults where the kernel takes it */
    return c->slab = p;
}

static cdr_status single_gather(cdr_comm *c, const cdr_piece *p, int n) { (void)c; return cdr__comm_local_gather(p, n); }
static cdr_status single_reduce_scatter(cdr_comm *c, const cdr_piece *p, int n) { (void)c; return cdr__comm_local_reduce_scatter(p, n); }
static cdr_status single_all_reduce(cdr_comm *c, const cdr_piece *p, int n) { (void)c; return cdr__comm_local_all_reduce(p, n); }
static cdr_status single_sum_i64(cdr_comm *c, int64_t *x, int n) { (void)c, (void)x, (void)n; return CDR_OK; }
static cdr_status single_broadcast(cdr_comm *c, void *x, size_t bytes, int root) { (void)c, (void)x, (void)bytes, (void)root; return CDR_OK; }
static cdr_status single_barrier(cdr_comm *c) { (void)c; return CDR_OK; }

static cdr_status single_expose_begin(cdr_comm *c, const void *const *ptr, int n, uint64_t signature)
{
    (void)signature;
    for (int k = 0; k < n; k++) c->peer[k] = ptr[k];
    return CDR_OK;
}

static cdr_status single_expose_end(cdr_comm *c) { (void)c; return CDR_OK; }
static void single_note(cdr_comm *c, int64_t step, int layer, const char *what) { (void)c, (void)step, (void)layer, (void)what; }

static cdr_status single_all_gather(cdr_comm *c, const void *src, void *dst, size_t bytes)
{
    (void)c;
    copy(dst, src, bytes);
    return CDR_OK;
}

static void single_lost(cdr_comm *c, cdr_err *err)
{
    (void)c;
    cdr_fail(err, CDR_ERANK, "comm.rank-lost", "rank 0: there is one rank, and it is here");
}

const cdr_transport cdr_transport_single = {
    .name = "single", .open = single_open, .split = single_split, .close = single_close, .slab = single_slab,
    .gather = single_gather, .reduce_scatter = single_reduce_scatter, .all_reduce = single_all_reduce,
    .sum_i64 = single_sum_i64, .all_gather = single_all_gather, .broadcast = single_broadcast, .barrier = single_barrier,
    .expose_begin = single_expose_begin, .expose_end = single_expose_end,
    .note = single_note, .lost = single_lost,
};
