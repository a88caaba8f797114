/* cpu.c: the CPU as a device. Its memory is the host's, calls and copies are over when they return, so that streams
 * and events have nothing to do. Its kernels are function pointers in the operators' tables, none is looked up by name.
 */
#include "device/cpu/cpu.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, HUGE = 2 << 20 };

/* In the page before a piece: what munmap needs. */
typedef struct { void *base; size_t bytes; } piece_head;

static void cpu_close(cdr_device *d) { cdr_free(d); }

/* Large pieces begin at a huge page and ask for them: a GEMM walks its operands with few TLB misses. Pages that are
 * not touched take no memory, the slack before the piece neither. */
static void *cpu_alloc(cdr_device *d, int tier, size_t bytes, cdr_err *err)
{
    size_t align = bytes >= 16 * (size_t)HUGE ? HUGE : PAGE, whole;
    char size[32];
    if (!cdr_add_size(bytes, align + PAGE, &whole)) whole = SIZE_MAX / 2;
    char *base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        cdr_format_bytes(size, (int64_t)CDR_MIN(bytes, (size_t)INT64_MAX));
        cdr_fail(err, CDR_EUSER, "machine.memory", "%s: %s of tier %d cannot be mapped; %s. Lower train.micro_batch_tokens or free some memory",
                 d->name, size, tier, strerror(errno));
        return NULL;
    }
    char *p = (char *)cdr_align_up((uintptr_t)base + PAGE, align);
    if (align == HUGE) madvise(p, bytes, MADV_HUGEPAGE);        /* advice: works without it too */
    piece_head *head = (piece_head *)(void *)(p - PAGE);
    *head = (piece_head){ .base = base, .bytes = whole };
    return p;
}

static void cpu_free(cdr_device *d, int tier, void *p)
{
    (void)d, (void)tier;
    if (!p) return;
    piece_head head = *(const piece_head *)(const void *)((const char *)p - PAGE);
    munmap(head.base, head.bytes);
}

static cdr_status cpu_copy(cdr_device *d, int stream, void *dst, const void *src, size_t bytes)
{
    (void)d, (void)stream;
    if (bytes > 0) memcpy(dst, src, bytes);
    return CDR_OK;
}

static cdr_status cpu_fill(cdr_device *d, int stream, void *dst, int byte, size_t bytes)
{
    (void)d, (void)stream;
    if (bytes > 0) memset(dst, byte, bytes);
    return CDR_OK;
}

static cdr_status cpu_event(cdr_device *d, int stream, int event)
{
    (void)d, (void)stream, (void)event;
    return CDR_OK;
}

static cdr_status cpu_sync(cdr_device *d, cdr_err *err)
{
    (void)d, (void)err;
    return CDR_OK;
}

static void *cpu_stream(cdr_device *d, int stream)
{
    (void)d, (void)stream;
    return NULL;
}

static cdr_status (*cpu_kernel(cdr_device *d, const char *symbol))(const struct cdr_args *)
{
    (void)d, (void)symbol;
    return NULL;
}

static cdr_status cpu_events(cdr_device *d, int n)
{
    (void)d, (void)n;
    return CDR_OK;
}

static const cdr_device_ops cpu_ops = {
    .close = cpu_close, .alloc = cpu_alloc, .free = cpu_free, .copy = cpu_copy, .fill = cpu_fill, .record = cpu_event,
    .wait = cpu_event,  .sync = cpu_sync,   .stream = cpu_stream, .kernel = cpu_kernel, .events = cpu_events,
};

cdr_status cdr__cpu_open(int index, int n_threads, cdr_device **d, cdr_err *err)
{
    if (index != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "machine.no-device", "machine.device=cpu: there is no CPU device %d; the cores of a host are one device. "
                    "Use index 0", index);
    uint32_t allowed;
    CDR_TRY(cdr_isa_cap(&allowed, err));
    cdr_device *cpu = cdr_alloc(sizeof *cpu);
    *cpu = (cdr_device){ .ops = &cpu_ops, .kind = CDR_DEV_CPU, .host_sees = true, .isa = cdr__cpu_has() & allowed, .n_threads = n_threads };
    cdr__cpu_name(cpu->name, sizeof cpu->name);
    cpu->memory_bytes[0] = cdr__cpu_memory_bytes();
    *d = cpu;
    return CDR_OK;
}
