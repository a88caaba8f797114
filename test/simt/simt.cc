/* simt.cc: fibers for simt.h, and the parts of the plug-in that stand on a device: a launch never fails, a product is the
 * own kernel's. It exports cdr_cuda_open too, with a device whose memory the host does not see through the executor and
 * whose streams run in the order of calls: loaded in place of the plug-in, it runs whole programs. */
#include "device/cuda/plugin.h"
#include <dlfcn.h>
#include "simt.h"
#include <cstdio>

#if !defined(__x86_64__)
#error "simt.cc switches stacks in x86-64 assembly"
#endif

enum { MAX_THREADS = 1024, STACK_BYTES = 128 << 10, LANES = 32, MAX_SHARED = 228 << 10 };
typedef enum { READY, AT_BLOCK, AT_WARP, ENDED } fiber_state;

/* Saves the callee-saved registers on this stack, leaves its pointer in *from, and goes on with `to`: some nanoseconds,
 * where swapcontext asks the kernel for the signal mask twice. */
extern "C" void simt_switch(void **from, void *to);
__asm__(".text\n.globl simt_switch\n.type simt_switch, @function\nsimt_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size simt_switch, .-simt_switch\n");

typedef struct { void *stack; fiber_state state; dim3 thread; uint64_t lane_in, lane_out; int lane_xor; } fiber;

simt_place simt_here;
static fiber fibers[MAX_THREADS];
static unsigned char *stacks, *shared_memory;
static void *scheduler;                            /* its stack, while a fiber runs */
static int n_fibers, running, or_in, or_out;
static void (*body)(void *);
static void *body_ctx;

static void enter(void)
{
    body(body_ctx);
    fibers[running].state = ENDED;
    simt_switch(&fibers[running].stack, scheduler);
}

static void wait_as(fiber_state s)
{
    fibers[running].state = s;
    simt_switch(&fibers[running].stack, scheduler);
}

void simt_block_barrier(void) { wait_as(AT_BLOCK); }
int simt_block_or(int x)
{
    or_in |= x != 0;
    wait_as(AT_BLOCK);
    return or_out;
}
void simt_warp_barrier(void) { wait_as(AT_WARP); }
uint64_t simt_exchange(uint64_t x, int lane_xor)
{
    int me = running;
    fibers[me].lane_in = x;
    fibers[me].lane_xor = lane_xor;
    wait_as(AT_WARP);
    return fibers[me].lane_out;
}

/* All live lanes of a warp wait: exchange and go on. False: some are elsewhere. */
static bool release_warp(int first)
{
    int end = first + LANES < n_fibers ? first + LANES : n_fibers, waiting = 0;
    for (int i = first; i < end; i++) {
        if (fibers[i].state == ENDED) continue;
        if (fibers[i].state != AT_WARP) return false;
        waiting++;
    }
    for (int i = first; i < end; i++) {
        int from = first + ((i - first) ^ fibers[i].lane_xor);
        fibers[i].lane_out = from < end ? fibers[from].lane_in : 0;
    }
    for (int i = first; i < end; i++)
        if (fibers[i].state == AT_WARP) fibers[i].state = READY;
    return waiting > 0;
}

static bool release_block(void)
{
    int waiting = 0;
    for (int i = 0; i < n_fibers; i++) {
        if (fibers[i].state == ENDED) continue;
        if (fibers[i].state != AT_BLOCK) return false;
        waiting++;
    }
    for (int i = 0; i < n_fibers; i++)
        if (fibers[i].state == AT_BLOCK) fibers[i].state = READY;
    or_out = or_in;
    or_in = 0;
    return waiting > 0;
}

/* Runs every fiber that can run; then lets those go that wait for each other. Threads that wait for different things for
 * ever are a fault of the kernel. */
static void run_block(void)
{
    for (;;) {
        bool ran = false;
        for (int i = 0; i < n_fibers; i++) {
            if (fibers[i].state != READY) continue;
            ran = true;
            running = i;
            simt_here.thread = fibers[i].thread;
            simt_switch(&scheduler, fibers[i].stack);
        }
        bool released = false;
        for (int w = 0; w < n_fibers; w += LANES) released |= release_warp(w);
        if (!released) released = release_block();
        if (ran || released) continue;
        for (int i = 0; i < n_fibers; i++)
            if (fibers[i].state != ENDED) {
                fprintf(stderr, "simt: thread %d of block %u,%u waits for ever\n", i, simt_here.block.x, simt_here.block.y);
                abort();
            }
        return;
    }
}

void simt_run(dim3 grid, dim3 block, size_t shared_bytes, void (*f)(void *), void *ctx)
{
    if (!stacks) {
        stacks = (unsigned char *)aligned_alloc(4096, (size_t)MAX_THREADS * STACK_BYTES);
        shared_memory = (unsigned char *)aligned_alloc(256, MAX_SHARED);
    }
    n_fibers = (int)(block.x * block.y * block.z);
    if (!stacks || !shared_memory || n_fibers > MAX_THREADS || shared_bytes > MAX_SHARED) {
        fprintf(stderr, "simt: a launch of %d threads and %zu bytes of shared memory\n", n_fibers, shared_bytes);
        abort();
    }
    body = f;
    body_ctx = ctx;
    simt_here.grid = grid;
    simt_here.shared = shared_memory;
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++) {
            simt_here.block = dim3(x, y, 0);
            memset(shared_memory, 0xff, shared_bytes);           /* nobody counts on zeros */
            for (int i = 0; i < n_fibers; i++) {
                fibers[i].state = READY;
                fibers[i].lane_xor = 0;
                fibers[i].thread = dim3((unsigned)i % block.x, (unsigned)i / block.x, 0);
                void **top = (void **)(stacks + (size_t)(i + 1) * STACK_BYTES) - 2;     /* as if enter had been called: 16 n + 8 */
                top[0] = (void *)enter;
                fibers[i].stack = top - 6;                        /* six registers to pop, of any content */
            }
            run_block();
        }
}

extern "C" cdr_status cdr__cuda_done(const cdr_args *, const char *) { return CDR_OK; }
extern "C" cdr_status cdr__cuda_refuse(const cdr_args *, const char *what, const char *why)
{
    fprintf(stderr, "simt: %s: %s\n", what, why);
    return CDR_ERANK;
}
extern "C" cdr_status cdr__cuda_gemm(const cdr_args *a, const cdr_cuda_gemm *g) { return cdr__cuda_gemm_plain(a, g); }

/* ---- device ---------------------------------------------------------------------------------------------------------- */
static void device_close(cdr_device *d) { free(d); }
static void *device_alloc(cdr_device *, int, size_t bytes, cdr_err *)
{
    size_t n = cdr_align_up(bytes + 1, 256);
    void *p = aligned_alloc(256, n);
    if (p) memset(p, 0, n);
    return p;
}
static void device_free(cdr_device *, int, void *p) { free(p); }
static cdr_status device_copy(cdr_device *, int, void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
    return CDR_OK;
}
static cdr_status device_fill(cdr_device *, int, void *dst, int byte, size_t bytes)
{
    memset(dst, byte, bytes);
    return CDR_OK;
}
static cdr_status device_event(cdr_device *, int, int) { return CDR_OK; }
static cdr_status device_sync(cdr_device *, cdr_err *) { return CDR_OK; }
static void *device_stream(cdr_device *, int) { return NULL; }
static cdr_status device_events(cdr_device *, int) { return CDR_OK; }
static cdr_status (*device_kernel(cdr_device *, const char *symbol))(const cdr_args *)
{
    Dl_info info;
    void *self = dladdr((const void *)&simt_here, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    return self ? (cdr_status (*)(const cdr_args *))dlsym(self, symbol) : NULL;
}

extern "C" CDR_CUDA_EXPORT cdr_status cdr_cuda_open(int index, cdr_device **d, cdr_err *)
{
    static const cdr_device_ops ops = { device_close, device_alloc, device_free, device_copy, device_fill, device_event,
                                        device_event, device_sync, device_stream, device_kernel, device_events };
    *d = (cdr_device *)calloc(1, sizeof **d);
    if (!*d) return CDR_EUSER;
    (*d)->ops = &ops;
    (*d)->kind = CDR_DEV_CUDA;
    (*d)->index = index;
    (*d)->isa = CDR_ISA_SM80 | CDR_ISA_SM90;
    (*d)->n_threads = 1;
    (*d)->memory_bytes[0] = (*d)->memory_bytes[1] = (int64_t)1 << 36;
    snprintf((*d)->name, sizeof (*d)->name, "CUDA kernels on the CPU");
    return CDR_OK;
}
