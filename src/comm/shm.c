/* shm: many ranks of one machine. Ranks are processes (fork) that map one control block; each rank's slab is a memory
 * file of its own that peers map when they first need it, so that a collective reads its operands where they lie.
 *
 *   gather          publish offset of local | barrier | copy each peer's rows into own full           | barrier
 *   reduce_scatter  publish offset of full  | barrier | own rows: tree sum over the peers' full        | barrier
 *   all_reduce      publish both            | barrier | own share of the elements: tree sum into dest  | barrier
 *                                                     | copy the peers' shares out of their dest       | barrier
 * all_reduce in place needs no scratch: until the middle barrier a rank writes only its own share, which no peer reads
 * before that barrier; after it a rank writes only the others' shares, and peers read only its own.
 *
 * Sum over ranks: the binary tree of tree.c.
 *
 *   expose          publish all             | arrive, own work, wait | read the peers' where they lie, as the caller likes | barrier
 *
 * Barrier: one counter and one futex word per communicator. The last to arrive adds 2 to the word and wakes the others;
 * bit 0 of it says that the job is lost, so that no one who is about to sleep can miss that. A waiter spins for some
 * microseconds only where each rank has a core of its own.
 * Memory order: what a rank writes before a barrier (operands, offsets) is read by peers after it: arrivals are
 * acquire-release on the counter, the word is released by the last and acquired by the rest.
 *
 * A mismatch of calls (a rank that gathers while its neighbour reduces, or other shapes) is seen after the first
 * barrier, by a hash of kind and shapes, and ends the job instead of mixing bytes.
 */
#include "comm/shm.h"
#include "comm/transport.h"
#include "comm/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CTL_MAGIC 0x3152444143524443ull
enum { SPIN = 400, SHARE_ELEMS = 16 };

typedef struct shm_comm {
    cdr_comm base;
    cdr_shm_view *view;               /* the world owns it where owns_view, splits borrow it */
    bool owns_view;
    int i_slot;
    uint32_t exposed_gen;             /* the word that expose_begin arrived at, and what it will compare */
    uint64_t exposed_signature;
    struct shm_comm *world;
    cdr_shm_watcher watch;            /* world only, as what follows */
    const char **src;                 /* [n]: the peers' operands of one slice */
    char *block;                      /* partial sums of cdr__tree_block */
} shm_comm;

/* ---- the control block ------------------------------------------------------------------------------------------ */
static int n_slots(int n) { return 4 * n + 16; }

static size_t layout(int n, size_t *slot, size_t *member, size_t *mail)
{
    size_t at = sizeof(cdr_shm_ctl) + (size_t)n * sizeof(cdr_shm_rank);
    *slot = at;
    at += (size_t)n_slots(n) * sizeof(cdr_shm_slot);
    *member = at;
    at = cdr_align_up(at + (size_t)n_slots(n) * (size_t)n * sizeof(uint16_t), 4096);
    *mail = at;
    return at + (size_t)n * CDR_SHM_MAIL;
}

static cdr_shm_view *view_new(char *base, int n, int fd)
{
    size_t slot, member, mail;
    layout(n, &slot, &member, &mail);
    cdr_shm_view *v = cdr_alloc(sizeof *v);
    *v = (cdr_shm_view){ .ctl = (cdr_shm_ctl *)base, .fd = fd, .rank = (cdr_shm_rank *)(base + sizeof(cdr_shm_ctl)),
                         .slot = (cdr_shm_slot *)(base + slot), .member = (CDR_ATOMIC(uint16_t) *)(base + member), .mail = base + mail };
    v->slab = cdr_alloc((size_t)n * sizeof *v->slab);
    v->mapped = cdr_alloc((size_t)n * sizeof *v->mapped);
    for (int r = 0; r < n; r++) {
        atomic_init(&v->slab[r], NULL);
        v->mapped[r] = 0;
    }
    return v;
}

cdr_status cdr__shm_create(int n, cdr_shm_view **out, cdr_err *err)
{
    size_t slot, member, mail, bytes = layout(n, &slot, &member, &mail);
    CDR_CHECK(n >= 1 && n <= CDR_SHM_MAX_RANKS);
    int fd = memfd_create("cadre-ranks", 0);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        int e = errno;
        if (fd >= 0) close(fd);
        CDR_FAIL_ID(err, CDR_EUSER, "comm.shm", "launch: no shared memory for %d ranks: %s", n, strerror(e));
    }
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        close(fd);
        CDR_FAIL_ID(err, CDR_EUSER, "comm.shm", "launch: cannot map %zu bytes of shared memory: %s", bytes, strerror(errno));
    }
    cdr_shm_view *v = view_new(base, n, fd);
    v->ctl->magic = CTL_MAGIC;
    v->ctl->bytes = (int64_t)bytes;
    v->ctl->n = n;
    v->ctl->n_slots = n_slots(n);
    v->ctl->start_ns = cdr_now_ns();
    gethostname(v->ctl->host, sizeof v->ctl->host - 1);
    for (int r = 0; r < n; r++) v->rank[r].slab_fd = -1;
    cdr_status st = CDR_OK;
    for (int r = 0; r < n && st == CDR_OK; r++) {
        v->rank[r].slab_fd = memfd_create("cadre-slab", 0);
        if (v->rank[r].slab_fd < 0)
            st = cdr_fail(err, CDR_EUSER, "comm.shm", "launch: memory file %d of %d: %s. Raise the limit of open files (ulimit -n)", r, n, strerror(errno));
        atomic_store_explicit(&v->rank[r].beat_ns, v->ctl->start_ns, memory_order_relaxed);
        atomic_store_explicit(&v->rank[r].step, -1, memory_order_relaxed);
        atomic_store_explicit(&v->rank[r].layer, -1, memory_order_relaxed);
    }
    atomic_store(&v->slot[0].refs, n);         /* slot 0: the world */
    atomic_store(&v->slot[0].size, n);
    for (int r = 0; r < n; r++) atomic_store_explicit(&v->member[r], (uint16_t)r, memory_order_relaxed);
    if (st != CDR_OK) cdr__shm_view_free(v);
    else *out = v;
    return st;
}

void cdr__shm_view_free(cdr_shm_view *v)
{
    int n = v->ctl->n;
    for (int r = 0; r < n; r++) {
        char *p = atomic_load(&v->slab[r]);
        if (p) munmap(p, v->mapped[r]);
        if (!v->inherited && v->rank[r].slab_fd >= 0) close(v->rank[r].slab_fd);
    }
    cdr_free((void *)v->slab);
    cdr_free(v->mapped);
    munmap(v->ctl, (size_t)v->ctl->bytes);
    if (!v->inherited) close(v->fd);
    cdr_free(v);
}

/* Maps the control block that CADRE_SHM names. */
static cdr_status view_inherit(cdr_shm_view **out, cdr_err *err)
{
    const char *s = getenv("CADRE_SHM");
    char *end = NULL;
    long fd = s ? strtol(s, &end, 10) : -1;
    struct stat st;
    if (!s || end == s || *end || fd < 0 || fd > INT32_MAX || fstat((int)fd, &st) || st.st_size < (off_t)sizeof(cdr_shm_ctl))
        CDR_FAIL_ID(err, CDR_EUSER, "comm.launcher", "CADRE_SHM: \"%s\" is no control block of a running cadre launch. Unset CADRE_RANK, or start with cadre launch -n N",
                    s ? s : "");
    char *base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    if (base == MAP_FAILED) CDR_FAIL_ID(err, CDR_EUSER, "comm.shm", "CADRE_SHM: cannot map the control block: %s", strerror(errno));
    const cdr_shm_ctl *ctl = (const cdr_shm_ctl *)base;
    size_t slot, member, mail;
    if (ctl->magic != CTL_MAGIC || ctl->n < 1 || ctl->n > CDR_SHM_MAX_RANKS || ctl->bytes != st.st_size ||
        layout(ctl->n, &slot, &member, &mail) != (size_t)st.st_size) {
        munmap(base, (size_t)st.st_size);
        CDR_FAIL_ID(err, CDR_EUSER, "comm.launcher", "CADRE_SHM: descriptor %ld is not a control block of this cadre. Start with cadre launch -n N", fd);
    }
    *out = view_new(base, ctl->n, (int)fd);
    (*out)->inherited = true;
    return CDR_OK;
}

bool cdr__shm_first_error(const cdr_err *err)
{
    cdr_shm_view *v = NULL;
    const char *s = getenv("CADRE_RANK");
    int32_t none = 0;
    if (!s || view_inherit(&v, NULL) != CDR_OK) return true;
    bool first = atomic_compare_exchange_strong(&v->ctl->claimed, &none, 1 + (int32_t)strtol(s, NULL, 10));
    if (first && err) {
        v->ctl->error = *err;
        atomic_store_explicit(&v->ctl->error_set, 1, memory_order_release);
    }
    cdr__shm_view_free(v);
    return first;
}

/* ---- barrier ------------------------------------------------------------------------------------------------------ */
static inline cdr_shm_slot *slot_of(const shm_comm *c) { return &c->view->slot[c->i_slot]; }
static inline int world_rank(const shm_comm *c, int r)
{
    return atomic_load_explicit(&c->view->member[(size_t)c->i_slot * (size_t)c->view->ctl->n + (size_t)r], memory_order_relaxed);
}
static inline cdr_shm_rank *record(const shm_comm *c, int r) { return &c->view->rank[world_rank(c, r)]; }
static inline cdr_shm_rank *own(const shm_comm *c) { return &c->view->rank[c->world->base.rank]; }

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* gen: the word before this rank arrived. Lost without a new generation is the only way to fail: a barrier that all
 * have reached is over, whatever happened to a rank since. */
static cdr_status wait_gen(shm_comm *c, uint32_t gen)
{
    cdr_shm_slot *s = slot_of(c);
    cdr_shm_wait wait = { 0, 0 };
    if (c->view->ctl->spin)
        for (int i = 0; i < SPIN && atomic_load_explicit(&s->gen, memory_order_relaxed) == gen; i++) relax();
    for (;;) {
        uint32_t now = atomic_load_explicit(&s->gen, memory_order_acquire);
        if (now != gen) return (now ^ gen) == 1u ? CDR_ERANK : CDR_OK;
        if (!wait.start_ns) wait.start_ns = wait.last_ns = cdr_now_ns();
        atomic_fetch_add(&s->sleepers, 1);
        cdr__futex_wait(&s->gen, gen, cdr__shm_slice_ns(c->world->watch.timeout_s));
        atomic_fetch_sub(&s->sleepers, 1);
        if (atomic_load_explicit(&s->gen, memory_order_acquire) == gen)
            CDR_TRY(cdr__shm_watch(c->view, &c->world->watch, c->i_slot, gen, &wait));
    }
}

/* First half of a barrier; gen: what leave takes. */
static cdr_status arrive(shm_comm *c, uint32_t *gen)
{
    cdr_shm_slot *s = slot_of(c);
    cdr_shm_rank *me = own(c);
    *gen = atomic_load_explicit(&s->gen, memory_order_acquire);
    if (*gen & 1u) return CDR_ERANK;
    atomic_store_explicit(&me->beat_ns, cdr_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&me->at, (uint64_t)(c->i_slot + 1) << 32 | *gen, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&s->count, 1, memory_order_acq_rel) + 1 == (uint32_t)c->base.size) {
        atomic_store_explicit(&s->count, 0, memory_order_relaxed);
        atomic_fetch_add(&s->gen, 2);
        if (atomic_load(&s->sleepers)) cdr__futex_wake(&s->gen);
    }
    return CDR_OK;
}

static cdr_status leave(shm_comm *c, uint32_t gen)
{
    cdr_status st = wait_gen(c, gen);
    atomic_store_explicit(&own(c)->at, 0, memory_order_relaxed);
    return st;
}

static cdr_status barrier(shm_comm *c)
{
    uint32_t gen;
    CDR_TRY(arrive(c, &gen));
    return leave(c, gen);
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

static void sign(shm_comm *c, uint64_t signature)
{
    cdr_shm_rank *me = own(c);
    uint64_t begun = atomic_load_explicit(&me->n_coll, memory_order_relaxed);
    atomic_store_explicit(&me->n_coll, begun + 1, memory_order_relaxed);
    atomic_store_explicit(&me->signature, signature, memory_order_relaxed);
}

static cdr_status compare(shm_comm *c, uint64_t signature)
{
    int neighbour = (c->base.rank + 1) % c->base.size;
    if (atomic_load_explicit(&record(c, neighbour)->signature, memory_order_relaxed) == signature) return CDR_OK;
    cdr__shm_blame(c->view, world_rank(c, neighbour), CDR_SHM_MISMATCH, 0);
    return CDR_ERANK;
}

/* First barrier of a collective: all have published, and all call the same. signature: of kind and shapes. Another
 * barrier must follow, so that no neighbour overwrites its signature before it was read here. */
static cdr_status meet(shm_comm *c, uint64_t signature)
{
    sign(c, signature);
    CDR_TRY(barrier(c));
    return compare(c, signature);
}

enum { SIG_GATHER = 1, SIG_REDUCE_SCATTER, SIG_ALL_REDUCE, SIG_SUM, SIG_ALL_GATHER, SIG_BROADCAST, SIG_EXPOSE };

static uint64_t piece_signature(int kind, const cdr_piece *p, int n)
{
    uint64_t h = mix((uint64_t)kind, (uint64_t)n);
    for (int i = 0; i < n; i++) h = mix(mix(mix(h, (uint64_t)p[i].rows), p[i].row_bytes), (uint64_t)p[i].dtype);
    return h;
}

/* ---- operands ------------------------------------------------------------------------------------------------------ */
static void publish(shm_comm *c, int k, const void *ptr)
{
    int me = c->world->base.rank;
    const char *slab = atomic_load_explicit(&c->view->slab[me], memory_order_relaxed);
    CDR_CHECK(slab && (const char *)ptr >= slab && (const char *)ptr < slab + c->view->mapped[me]);    /* operands lie in the slab */
    atomic_store_explicit(&c->view->rank[me].operand[k], (uint64_t)((const char *)ptr - slab), memory_order_relaxed);
}

static const char *map_slab(shm_comm *c, int world_r)
{
    cdr_shm_view *v = c->view;
    const char *slab = atomic_load_explicit(&v->slab[world_r], memory_order_acquire);
    if (slab) return slab;
    size_t bytes = atomic_load_explicit(&v->rank[world_r].slab_bytes, memory_order_acquire);
    char *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, v->rank[world_r].slab_fd, 0);
    CDR_CHECK(p != MAP_FAILED);
    v->mapped[world_r] = bytes;
    atomic_store_explicit(&v->slab[world_r], p, memory_order_release);
    return p;
}

/* Operand k of rank r of c, after the barrier. */
static const char *operand(shm_comm *c, int r, int k)
{
    int w = world_rank(c, r);
    return map_slab(c, w) + atomic_load_explicit(&c->view->rank[w].operand[k], memory_order_relaxed);
}

/* ---- tree sum -------------------------------------------------------------------------------------------------------- */
/* dst = tree sum of bytes [at, at + bytes) of operand k of all ranks */
static void tree_sum(shm_comm *c, int k, size_t at, void *dst, size_t bytes, int dtype)
{
    shm_comm *w = c->world;
    int n = c->base.size;
    c->base.read_bytes += (int64_t)bytes * (n - 1);
    for (size_t b = 0; b < bytes; b += CDR__TREE_BLOCK) {
        size_t part = CDR_MIN(bytes - b, (size_t)CDR__TREE_BLOCK);
        for (int r = 0; r < n; r++) w->src[r] = operand(c, r, k) + at + b;
        cdr__tree_block(w->block, dtype, (const void *const *)w->src, n, (char *)dst + b, part);
    }
}

/* ---- collectives --------------------------------------------------------------------------------------------------- */
static cdr_status gather_some(shm_comm *c, const cdr_piece *p, int n)
{
    int size = c->base.size, me = c->base.rank;
    for (int i = 0; i < n; i++)
        if (p[i].rows) publish(c, i, p[i].local);
    CDR_TRY(meet(c, piece_signature(SIG_GATHER, p, n)));
    for (int i = 0; i < n; i++)
        for (int q = 0; q < size; q++) {
            int r = (me + q) % size;                        /* each begins with its own, so that readers spread over the slabs */
            int64_t lo = cdr__comm_lo(p[i].rows, r, size), hi = cdr__comm_lo(p[i].rows, r + 1, size);
            if (lo == hi) continue;
            char *to = (char *)p[i].full + (size_t)lo * p[i].row_bytes;
            const char *from = r == me ? p[i].local : operand(c, r, i);
            if (r != me) c->base.read_bytes += (hi - lo) * (int64_t)p[i].row_bytes;
            if (to != from) memmove(to, from, (size_t)(hi - lo) * p[i].row_bytes);
        }
    return barrier(c);
}

static cdr_status reduce_scatter_some(shm_comm *c, const cdr_piece *p, int n)
{
    int size = c->base.size, me = c->base.rank;
    for (int i = 0; i < n; i++)
        if (p[i].rows) publish(c, i, p[i].full);
    CDR_TRY(meet(c, piece_signature(SIG_REDUCE_SCATTER, p, n)));
    for (int i = 0; i < n; i++) {
        int64_t lo = cdr__comm_lo(p[i].rows, me, size), rows = cdr__comm_lo(p[i].rows, me + 1, size) - lo;
        int64_t capacity = cdr_ceil_div(p[i].rows, size);
        tree_sum(c, i, (size_t)lo * p[i].row_bytes, p[i].local, (size_t)rows * p[i].row_bytes, p[i].dtype);
        memset((char *)p[i].local + (size_t)rows * p[i].row_bytes, 0, (size_t)(capacity - rows) * p[i].row_bytes);
    }
    return barrier(c);
}

/* all_reduce shares out the pieces laid one behind the other, in lines of SHARE_ELEMS elements (whole cache lines, so that ranks do
 * not write into the same one): with many small pieces and many ranks a rank has a part of few of them, not of each. */
static int64_t lines_of(const cdr_piece *p)
{
    return cdr_ceil_div((int64_t)((size_t)p->rows * p->row_bytes / cdr__tree_elem_bytes(p->dtype)), SHARE_ELEMS);
}

/* Calls f for each part [at, at + bytes) of a piece that is in rank r's share, given all lines of n pieces. */
static void each_part(shm_comm *c, const cdr_piece *p, int n, int64_t lines, int r, void (*f)(shm_comm *c, const cdr_piece *p, int i, int r, size_t at, size_t bytes))
{
    int64_t lo = cdr__comm_lo(lines, r, c->base.size), hi = cdr__comm_lo(lines, r + 1, c->base.size), first = 0;
    for (int i = 0; i < n && first < hi; i++) {
        int64_t own = lines_of(&p[i]), a = CDR_MAX(lo, first) - first, b = CDR_MIN(hi, first + own) - first;
        size_t whole = (size_t)p[i].rows * p[i].row_bytes, line = cdr__tree_elem_bytes(p[i].dtype) * SHARE_ELEMS;
        if (a < b) f(c, p, i, r, (size_t)a * line, CDR_MIN(whole, (size_t)b * line) - (size_t)a * line);
        first += own;
    }
}

static char *destination(const cdr_piece *p) { return p->local ? p->local : p->full; }

static void sum_part(shm_comm *c, const cdr_piece *p, int i, int r, size_t at, size_t bytes)
{
    (void)r;
    tree_sum(c, i, at, destination(&p[i]) + at, bytes, p[i].dtype);
}

static void fetch_part(shm_comm *c, const cdr_piece *p, int i, int r, size_t at, size_t bytes)
{
    c->base.read_bytes += (int64_t)bytes;
    memcpy(destination(&p[i]) + at, operand(c, r, CDR_SHM_PIECES + i) + at, bytes);
}

static cdr_status all_reduce_some(shm_comm *c, const cdr_piece *p, int n)
{
    int size = c->base.size, me = c->base.rank;
    int64_t lines = 0;
    for (int i = 0; i < n; i++) {
        lines += lines_of(&p[i]);
        if (!p[i].rows) continue;
        publish(c, i, p[i].full);
        publish(c, CDR_SHM_PIECES + i, destination(&p[i]));
    }
    CDR_TRY(meet(c, piece_signature(SIG_ALL_REDUCE, p, n)));
    each_part(c, p, n, lines, me, sum_part);
    CDR_TRY(barrier(c));
    for (int q = 1; q < size; q++) each_part(c, p, n, lines, (me + q) % size, fetch_part);
    return barrier(c);
}

/* Any number of pieces, in batches of what the control block has room for. */
static cdr_status in_batches(cdr_comm *base, const cdr_piece *p, int n, cdr_status (*some)(shm_comm *, const cdr_piece *, int))
{
    for (int i = 0; i < n; i += CDR_SHM_PIECES) CDR_TRY(some((shm_comm *)base, p + i, CDR_MIN(n - i, (int)CDR_SHM_PIECES)));
    return CDR_OK;
}

static cdr_status shm_gather(cdr_comm *c, const cdr_piece *p, int n)
{
    return c->size == 1 ? cdr__comm_local_gather(p, n) : in_batches(c, p, n, gather_some);
}

static cdr_status shm_reduce_scatter(cdr_comm *c, const cdr_piece *p, int n)
{
    return c->size == 1 ? cdr__comm_local_reduce_scatter(p, n) : in_batches(c, p, n, reduce_scatter_some);
}

static cdr_status shm_all_reduce(cdr_comm *c, const cdr_piece *p, int n)
{
    return c->size == 1 ? cdr__comm_local_all_reduce(p, n) : in_batches(c, p, n, all_reduce_some);
}

static char *mail(const shm_comm *c, int r) { return c->view->mail + (size_t)world_rank(c, r) * CDR_SHM_MAIL; }

static cdr_status shm_all_gather(cdr_comm *base, const void *src, void *dst, size_t bytes)
{
    shm_comm *c = (shm_comm *)base;
    memcpy(mail(c, base->rank), src, bytes);
    CDR_TRY(meet(c, mix(SIG_ALL_GATHER, bytes)));
    for (int r = 0; r < base->size; r++) memcpy((char *)dst + (size_t)r * bytes, mail(c, r), bytes);
    return barrier(c);
}

static cdr_status shm_sum_i64(cdr_comm *base, int64_t *x, int n)
{
    shm_comm *c = (shm_comm *)base;
    size_t bytes = (size_t)n * sizeof *x;
    memcpy(mail(c, base->rank), x, bytes);
    CDR_TRY(meet(c, mix(SIG_SUM, bytes)));
    for (int i = 0; i < n; i++) {
        uint64_t sum = 0;                                   /* wraps as int64 would, without being undefined */
        for (int r = 0; r < base->size; r++) sum += ((const uint64_t *)(const void *)mail(c, r))[i];
        x[i] = (int64_t)sum;
    }
    return barrier(c);
}

/* Two halves of root's mail in turn: when all have come to chunk k + 1, all have copied chunk k. */
static cdr_status shm_broadcast(cdr_comm *base, void *x, size_t bytes, int root)
{
    shm_comm *c = (shm_comm *)base;
    const size_t half = CDR_SHM_MAIL / 2;
    for (size_t at = 0, k = 0; at < bytes; at += half, k++) {
        size_t part = CDR_MIN(bytes - at, half);
        char *chunk = mail(c, root) + (k & 1) * half;
        if (base->rank == root) memcpy(chunk, (char *)x + at, part);
        CDR_TRY(meet(c, mix(mix(SIG_BROADCAST, bytes), (uint64_t)root)));
        if (base->rank != root) memcpy((char *)x + at, chunk, part);
    }
    return barrier(c);
}

static cdr_status shm_barrier(cdr_comm *base) { return barrier((shm_comm *)base); }

static const uint64_t NOTHING = UINT64_MAX;                 /* published in place of an offset: no operand */

static cdr_status shm_expose_begin(cdr_comm *base, const void *const *ptr, int n, uint64_t signature)
{
    shm_comm *c = (shm_comm *)base;
    for (int k = 0; k < n; k++) {
        if (ptr[k]) publish(c, k, ptr[k]);
        else atomic_store_explicit(&own(c)->operand[k], NOTHING, memory_order_relaxed);
    }
    c->exposed_signature = mix(mix(SIG_EXPOSE, (uint64_t)n), signature);
    sign(c, c->exposed_signature);
    return arrive(c, &c->exposed_gen);
}

/* All offsets become pointers here, so that threads may read them. */
static cdr_status shm_expose_end(cdr_comm *base)
{
    shm_comm *c = (shm_comm *)base;
    if (c->exposed_gen & 1u) return CDR_ERANK;              /* it could not arrive */
    CDR_TRY(leave(c, c->exposed_gen));
    CDR_TRY(compare(c, c->exposed_signature));
    for (int r = 0; r < base->size; r++)
        for (int k = 0; k < base->n_exposed; k++) {
            bool none = atomic_load_explicit(&record(c, r)->operand[k], memory_order_relaxed) == NOTHING;
            base->peer[r * CDR_EXPOSE_MAX + k] = none ? NULL : operand(c, r, k);
        }
    return CDR_OK;
}

/* ---- open, split, slab, close ----------------------------------------------------------------------------------------- */
static void shm_note(cdr_comm *base, int64_t step, int layer, const char *what)
{
    shm_comm *c = (shm_comm *)base;
    cdr_shm_rank *me = own(c);
    char text[CDR_SHM_WHAT] = { 0 };
    uint64_t word[CDR_SHM_WHAT / 8];
    if (what) strncpy(text, what, sizeof text - 1);
    memcpy(word, text, sizeof word);
    atomic_store_explicit(&me->step, step, memory_order_relaxed);
    atomic_store_explicit(&me->layer, layer, memory_order_relaxed);
    for (int i = 0; i < CDR_COUNT(word); i++) atomic_store_explicit(&me->what[i], word[i], memory_order_relaxed);
    atomic_store_explicit(&me->beat_ns, cdr_now_ns(), memory_order_relaxed);
}

static void shm_lost(cdr_comm *base, cdr_err *err) { cdr__shm_lost(((shm_comm *)base)->view, err); }

static shm_comm *comm_new(cdr_shm_view *v, int i_slot, int rank, int size, const char *source)
{
    shm_comm *c = cdr_alloc(sizeof *c);
    memset(c, 0, sizeof *c);
    c->base = (cdr_comm){ .t = &cdr_transport_shm, .source = source, .rank = rank, .size = size };
    c->base.peer = cdr_alloc((size_t)size * CDR_EXPOSE_MAX * sizeof *c->base.peer);
    c->view = v;
    c->i_slot = i_slot;
    return c;
}

cdr_status cdr__shm_attach(cdr_shm_view *v, int rank, double timeout_s, cdr_comm **world, cdr_err *err)
{
    size_t n = (size_t)v->ctl->n;
    shm_comm *c = comm_new(v, 0, rank, v->ctl->n, "cadre launch");
    c->world = c;
    c->watch = (cdr_shm_watcher){ .timeout_s = timeout_s > 0 ? timeout_s : 10.0, .alive_ns = cdr_alloc(n * 8), .cpu = cdr_alloc(n * 8),
                                  .seen = cdr_alloc(n), .queue = cdr_alloc(n * 2) };
    memset(c->watch.alive_ns, 0, n * 8);
    memset(c->watch.cpu, 0, n * 8);
    c->src = cdr_alloc(n * sizeof *c->src);
    c->block = cdr_alloc(CDR__TREE_BYTES);
    atomic_store_explicit(&v->rank[rank].pid, (int32_t)getpid(), memory_order_relaxed);
    atomic_store(&v->rank[rank].state, CDR_SHM_OPEN);
    *world = &c->base;
    cdr_status st = shm_barrier(*world);
    if (st == CDR_OK) return CDR_OK;
    cdr__shm_lost(v, err);
    cdr_comm_close(*world);
    *world = NULL;
    return st;
}

static cdr_status shm_open_world(const cdr_comm_spec *s, const cdr_ranks *r, cdr_comm **world, cdr_err *err)
{
    cdr_shm_view *v = NULL;
    CDR_TRY(view_inherit(&v, err));
    if (v->ctl->n != r->world || r->rank >= v->ctl->n) {
        int n = v->ctl->n;
        cdr__shm_view_free(v);
        CDR_FAIL_ID(err, CDR_EUSER, "comm.launcher", "CADRE_RANK=%d, CADRE_WORLD=%d: the control block has %d ranks", r->rank, r->world, n);
    }
    cdr_status st = cdr__shm_attach(v, r->rank, s->timeout_s, world, err);
    if (st != CDR_OK) cdr__shm_view_free(v);
    else ((shm_comm *)*world)->owns_view = true;
    return st;
}

static void shm_close(cdr_comm *base)
{
    shm_comm *c = (shm_comm *)base;
    cdr_shm_view *v = c->view;
    if (c->world == c) {
        atomic_store(&own(c)->state, CDR_SHM_CLOSED);
        cdr__shm_wake_all(v);                               /* who waits for this rank shall look at once */
        cdr_free(c->watch.alive_ns);
        cdr_free(c->watch.cpu);
        cdr_free(c->watch.seen);
        cdr_free(c->watch.queue);
        cdr_free((void *)c->src);
        cdr_free(c->block);
        if (c->owns_view) cdr__shm_view_free(v);
    } else {
        atomic_fetch_sub(&slot_of(c)->refs, 1);
    }
    cdr_free((void *)base->peer);
    cdr_free(c);
}

static void *shm_slab(cdr_comm *base, size_t bytes, cdr_err *err)
{
    shm_comm *c = (shm_comm *)base;
    cdr_shm_view *v = c->view;
    int me = base->rank, fd = v->rank[me].slab_fd;
    CDR_CHECK(!atomic_load(&v->slab[me]));
    bytes = cdr_align_up(CDR_MAX(bytes, (size_t)1), 4096);
    char *p = MAP_FAILED;
    if (!ftruncate(fd, 0) && !ftruncate(fd, (off_t)bytes)) p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
        cdr_fail(err, CDR_EUSER, "comm.slab", "slab: rank %d got no %zu bytes of shared memory: %s. Use fewer ranks or a smaller batch", me, bytes, strerror(errno));
        return NULL;
    }
    madvise(p, bytes, MADV_HUGEPAGE);                       /* a hint: taken where shmem_enabled is advise */
    v->mapped[me] = bytes;
    atomic_store_explicit(&v->rank[me].slab_bytes, bytes, memory_order_release);
    atomic_store_explicit(&v->slab[me], p, memory_order_release);
    return p;
}

/* A free barrier slot for the ranks `member` (of the world): index, or -1. */
static int slot_take(cdr_shm_view *v, const uint16_t *member, int size)
{
    for (int i = 1; i < v->ctl->n_slots; i++) {
        int32_t free_slot = 0;
        if (!atomic_compare_exchange_strong(&v->slot[i].refs, &free_slot, size)) continue;
        atomic_store(&v->slot[i].size, size);
        for (int r = 0; r < size; r++)
            atomic_store_explicit(&v->member[(size_t)i * (size_t)v->ctl->n + (size_t)r], member[r], memory_order_relaxed);
        return i;
    }
    return -1;
}

typedef struct { int32_t color, key; } split_ask;

/* Every rank works out its group from all (color, key); the group's first rank takes a slot and tells the others. */
static cdr_comm *shm_split(cdr_comm *base, int color, int key, cdr_err *err)
{
    shm_comm *c = (shm_comm *)base, *s = NULL;
    int n = base->size, size = 0, rank = -1;
    split_ask ask = { color, key }, *all = cdr_alloc((size_t)n * sizeof *all);
    int *group = cdr_alloc((size_t)n * sizeof *group);
    uint16_t *member = cdr_alloc((size_t)n * sizeof *member);
    int32_t slot = -1, *slots = cdr_alloc((size_t)n * sizeof *slots);
    cdr_status st = shm_all_gather(base, &ask, all, sizeof ask);
    for (int r = 0; r < n && st == CDR_OK; r++) {           /* insertion sort by key; equal keys keep their order */
        if (all[r].color != color) continue;
        int at = size++;
        for (; at > 0 && all[group[at - 1]].key > all[r].key; at--) group[at] = group[at - 1];
        group[at] = r;
    }
    for (int i = 0; i < size; i++) {
        member[i] = (uint16_t)world_rank(c, group[i]);
        if (group[i] == base->rank) rank = i;
    }
    if (st == CDR_OK && rank == 0) slot = slot_take(c->view, member, size);
    if (st == CDR_OK) st = shm_all_gather(base, &slot, slots, sizeof slot);
    if (st == CDR_ERANK) {
        cdr__shm_lost(c->view, err);
    } else if (slots[group[0]] < 0) {
        cdr_fail(err, CDR_EUSER, "comm.splits", "ranks: more than %d communicators are open", c->view->ctl->n_slots);
    } else {
        s = comm_new(c->view, slots[group[0]], rank, size, base->source);
        s->world = c->world;
    }
    cdr_free(all), cdr_free(group), cdr_free(member), cdr_free(slots);
    return s ? &s->base : NULL;
}

const cdr_transport cdr_transport_shm = {
    .name = "shm", .open = shm_open_world, .split = shm_split, .close = shm_close, .slab = shm_slab,
    .gather = shm_gather, .reduce_scatter = shm_reduce_scatter, .all_reduce = shm_all_reduce,
    .sum_i64 = shm_sum_i64, .all_gather = shm_all_gather, .broadcast = shm_broadcast, .barrier = shm_barrier,
    .expose_begin = shm_expose_begin, .expose_end = shm_expose_end,
    .note = shm_note, .lost = shm_lost,
};
