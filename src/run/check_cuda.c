/* check_cuda.c: runs an operator's case table on the kernels of a CUDA device. Every buffer of a call is copied to the
 * device with its canaries, at the same offset from a 256-byte boundary as on the host, so writes outside of it are seen
 * and unaligned rows stay unaligned; then all of it is copied back and judged by check.c. */
#include "run/check.h"

enum { MAX_BUFFERS = CDR_MAX_OPERANDS + 1, EDGE = 2 * CDR_CHECK_MARGIN + 512 };
#define ARENA_BYTES ((size_t)1 << 30)

typedef struct { cdr_device *d; char *arena; cdr_err *err; } state;
typedef struct { char *host, *device; size_t bytes; } region;         /* margins included */

/* Places a host buffer in the arena; NULL: no room. */
static void *place(state *s, size_t *used, region *r, void *p, size_t bytes)
{
    size_t at = cdr_align_up(*used, 256);
    if (at + bytes + EDGE > ARENA_BYTES) return NULL;
    char *dev = s->arena + at + CDR_CHECK_MARGIN + (uintptr_t)p % 64;
    *r = (region){ .host = (char *)p - CDR_CHECK_MARGIN, .device = dev - CDR_CHECK_MARGIN, .bytes = bytes + 2 * CDR_CHECK_MARGIN };
    *used = at + bytes + EDGE;
    return dev;
}

static cdr_status move(state *s, const region *r, int n, bool to_device)
{
    for (int i = 0; i < n; i++)
        CDR_TRY(s->d->ops->copy(s->d, CDR_S_COMPUTE, to_device ? r[i].device : r[i].host, to_device ? r[i].host : r[i].device, r[i].bytes));
    return s->d->ops->sync(s->d, s->err);
}

static cdr_status run(const cdr_check_target *t, const cdr_kernel *k, const cdr_args *a, size_t work_bytes)
{
    state *s = t->ctx;
    region r[MAX_BUFFERS];
    void *ptr[CDR_MAX_OPERANDS] = { NULL }, *work = NULL;
    int n = 0;
    size_t used = 0;
    cdr_status (*launch)(const cdr_args *) = s->d->ops->kernel(s->d, k->symbol);
    if (!launch) CDR_FAIL(s->err, CDR_EBUG, "check: the plug-in has no %s", k->symbol);
    for (int i = 0; i < a->n_in + a->n_out; i++) {
        if (!a->ptr[i]) continue;
        ptr[i] = place(s, &used, &r[n++], a->ptr[i], cdr_type_bytes(&a->type[i]));
        if (!ptr[i]) CDR_FAIL(s->err, CDR_EUSER, "check: a case of %s needs more than %zu bytes", k->symbol, ARENA_BYTES);
    }
    if (work_bytes > 0) {
        work = place(s, &used, &r[n++], a->work, work_bytes);
        if (!work) CDR_FAIL(s->err, CDR_EUSER, "check: the scratch of %s needs more than %zu bytes", k->symbol, ARENA_BYTES);
    }
    CDR_TRY(move(s, r, n, true));
    cdr_lane lane = { .n_threads = 1, .stream = s->d->ops->stream(s->d, CDR_S_COMPUTE), .device = s->d };
    cdr_args b = *a;
    b.ptr = ptr;
    b.work = work;
    b.lane = &lane;
    CDR_TRY(launch(&b));
    CDR_TRY(s->d->ops->sync(s->d, s->err));
    return move(s, r, n, false);
}

cdr_status cdr_check_cuda(int index, const char *op, bool quick, cdr_check_sum *sum, cdr_text *report, cdr_err *err)
{
    cdr_err failed = { CDR_OK, "", "" };
    state s = { .err = &failed };
    *sum = (cdr_check_sum){ 0 };
    CDR_TRY(cdr_device_open(CDR_DEV_CUDA, index, 1, &s.d, err));
    s.arena = s.d->ops->alloc(s.d, 0, ARENA_BYTES, err);
    cdr_status st = s.arena ? CDR_OK : CDR_EUSER;
    if (st == CDR_OK) {
        cdr_check_target t = { .device = CDR_DEV_CUDA, .isa = s.d->isa, .run = run, .ctx = &s };
        st = cdr_check_on(&t, op, quick, sum, report, err);
        if (failed.status != CDR_OK) cdr_text_printf(report, "          device: %s\n", failed.text);
        s.d->ops->free(s.d, 0, s.arena);
    }
    s.d->ops->close(s.d);
    return st;
}
