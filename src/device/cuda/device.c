/* device.c: one CUDA device behind src/device/device.h. Four non-blocking streams, events by number, device memory and
 * pinned host memory; nothing waits for the host except sync. cuBLASLt is loaded when it is there (lt.c). */
#include "device/cuda/plugin.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cdr_status fail(cdr_err *err, cdr_status st, const char *id, const char *fmt, ...) CDR_PRINTF(4, 5);
/* as cdr_fail of base/error.c, which the plug-in cannot reach: the first error wins */
static cdr_status fail(cdr_err *err, cdr_status st, const char *id, const char *fmt, ...)
{
    if (!err || err->status != CDR_OK) return st;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    snprintf(err->id, sizeof err->id, "%s", id);
    err->status = st;
    return st;
}

static cdr_cuda_device *of(cdr_device *d) { return (cdr_cuda_device *)d; }
static cdr_status step_status(cudaError_t e) { return e == cudaSuccess ? CDR_OK : CDR_ERANK; }

static void device_close(cdr_device *base)
{
    cdr_cuda_device *d = of(base);
    cudaDeviceSynchronize();
    cdr__lt_close(d->lt);
    for (int i = 0; i < d->n_events; i++) cudaEventDestroy(d->events[i]);
    for (int i = 0; i < CDR_N_STREAMS; i++)
        if (d->streams[i]) cudaStreamDestroy(d->streams[i]);
    free(d->events);
    if (d->self) dlclose(d->self);
    free(d);
}

static void *device_alloc(cdr_device *d, int tier, size_t bytes, cdr_err *err)
{
    void *p = NULL;
    size_t n = CDR_MAX(bytes, (size_t)1);
    cudaError_t e = tier == 0 ? cudaMalloc(&p, n) : cudaMallocHost(&p, n);
    if (e != cudaSuccess) {
        size_t free_bytes = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total);
        fail(err, CDR_EUSER, "machine.memory", "cuda %d: %zu bytes of %s memory cannot be allocated (%s); %zu of %zu bytes of device memory are free",
             d->index, bytes, tier == 0 ? "device" : "pinned host", cudaGetErrorString(e), free_bytes, total);
        return NULL;
    }
    if (tier != 0) {
        memset(p, 0, n);
        return p;
    }
    e = cudaMemset(p, 0, n);
    if (e == cudaSuccess) e = cudaDeviceSynchronize();      /* the streams are non-blocking: they do not wait for this fill */
    if (e == cudaSuccess) return p;
    fail(err, CDR_ERANK, "device.failed", "cuda %d: filling %zu bytes failed: %s", d->index, bytes, cudaGetErrorString(e));
    cudaFree(p);
    return NULL;
}

static void device_free(cdr_device *d, int tier, void *p)
{
    (void)d;
    if (tier == 0) cudaFree(p);
    else cudaFreeHost(p);
}

static cdr_status device_copy(cdr_device *d, int stream, void *dst, const void *src, size_t bytes)
{
    return step_status(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, of(d)->streams[stream]));
}

static cdr_status device_fill(cdr_device *d, int stream, void *dst, int byte, size_t bytes)
{
    return step_status(cudaMemsetAsync(dst, byte, bytes, of(d)->streams[stream]));
}

static cdr_status device_record(cdr_device *d, int stream, int event)
{
    return step_status(cudaEventRecord(of(d)->events[event], of(d)->streams[stream]));
}

static cdr_status device_wait(cdr_device *d, int stream, int event)
{
    return step_status(cudaStreamWaitEvent(of(d)->streams[stream], of(d)->events[event], 0));
}

static cdr_status device_sync(cdr_device *d, cdr_err *err)
{
    cudaError_t e = cudaDeviceSynchronize(), last = cudaGetLastError();
    if (e == cudaSuccess) e = last;
    const char *launch = of(d)->failed;
    if (e == cudaSuccess && !*launch) return CDR_OK;
    return fail(err, CDR_ERANK, "device.failed", "cuda %d (%s): %s%s%s", d->index, d->name,
                e == cudaSuccess ? "a launch was refused" : cudaGetErrorString(e), *launch ? "; first failed launch: " : "", launch);
}

static void *device_stream(cdr_device *d, int stream) { return of(d)->streams[stream]; }

typedef cdr_status (*launcher)(const cdr_args *);
static launcher device_kernel(cdr_device *d, const char *symbol)
{
    void *p = dlsym(of(d)->self, symbol);
    launcher f = NULL;
    memcpy(&f, &p, sizeof f);                       /* ISO C has no cast from void * to a function */
    return f;
}

static cdr_status device_events(cdr_device *base, int n)
{
    cdr_cuda_device *d = of(base);
    if (n <= d->n_events) return CDR_OK;
    cudaEvent_t *grown = realloc(d->events, (size_t)n * sizeof *grown);
    if (!grown) return CDR_EUSER;
    d->events = grown;
    while (d->n_events < n) {
        if (cudaEventCreateWithFlags(&d->events[d->n_events], cudaEventDisableTiming) != cudaSuccess) return CDR_EUSER;
        d->n_events++;
    }
    return CDR_OK;
}

static const cdr_device_ops ops = {
    .close = device_close, .alloc = device_alloc, .free = device_free, .copy = device_copy, .fill = device_fill,
    .record = device_record, .wait = device_wait, .sync = device_sync, .stream = device_stream, .kernel = device_kernel,
    .events = device_events,
};

/* The plug-in is found through the address of one of its own objects: it may lie anywhere. */
static void *open_self(void)
{
    Dl_info info;
    return dladdr((const void *)&ops, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
}

static cdr_status check_device(int index, struct cudaDeviceProp *prop, cdr_err *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0)
        return fail(err, CDR_EUSER, "device.none", "cuda: no device (%s); install a driver of CUDA 13 or use device: cpu",
                    e == cudaSuccess ? "none is visible" : cudaGetErrorString(e));
    if (index < 0 || index >= n) return fail(err, CDR_EUSER, "device.none", "cuda: device %d was asked for, %d are visible", index, n);
    e = cudaGetDeviceProperties(prop, index);
    if (e == cudaSuccess) e = cudaSetDevice(index);
    if (e != cudaSuccess) return fail(err, CDR_EUSER, "device.none", "cuda %d: %s", index, cudaGetErrorString(e));
    if (prop->major != 9 || prop->minor != 0)
        return fail(err, CDR_EUSER, "device.unsupported", "cuda %d (%s) has compute capability %d.%d; the kernels are built for 9.0 (H100, H200)",
                    index, prop->name, prop->major, prop->minor);
    return CDR_OK;
}

cdr_status cdr_cuda_open(int index, cdr_device **out, cdr_err *err)
{
    struct cudaDeviceProp prop;
    cdr_status st = check_device(index, &prop, err);
    if (st != CDR_OK) return st;
    cdr_cuda_device *d = calloc(1, sizeof *d);
    if (!d) return fail(err, CDR_EUSER, "machine.memory", "cuda %d: out of host memory", index);
    d->base = (cdr_device){ .ops = &ops, .kind = CDR_DEV_CUDA, .index = index, .host_sees = false,
                            .isa = CDR_ISA_SM80 | CDR_ISA_SM90, .n_threads = 1 };
    snprintf(d->base.name, sizeof d->base.name, "%.95s", prop.name);
    d->base.memory_bytes[0] = (int64_t)prop.totalGlobalMem;
    d->base.memory_bytes[1] = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < CDR_N_STREAMS; i++) {
        cudaError_t e = cudaStreamCreateWithFlags(&d->streams[i], cudaStreamNonBlocking);
        if (e != cudaSuccess) {
            device_close(&d->base);
            return fail(err, CDR_EUSER, "device.none", "cuda %d: %s", index, cudaGetErrorString(e));
        }
    }
    d->self = open_self();
    if (!d->self) {
        device_close(&d->base);
        return fail(err, CDR_EBUG, "device.plugin", "cuda %d: the plug-in cannot find itself (%s)", index, dlerror());
    }
    char why[256];
    d->lt = cdr__lt_open(why, sizeof why);
    if (!d->lt) fprintf(stderr, "warning: cuda %d: %s; products run on the own kernel, which is several times slower\n", index, why);
    *out = &d->base;
    return CDR_OK;
}

cdr_status cdr__cuda_refuse(const cdr_args *a, const char *what, const char *why)
{
    cdr_cuda_device *d = of(a->lane->device);
    if (!*d->failed) snprintf(d->failed, sizeof d->failed, "%s: %s", what, why);
    return CDR_ERANK;
}

cdr_status cdr__cuda_done(const cdr_args *a, const char *what)
{
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? CDR_OK : cdr__cuda_refuse(a, what, cudaGetErrorString(e));
}

cdr_status cdr__cuda_gemm(const cdr_args *a, const cdr_cuda_gemm *g)
{
    cdr_cuda_device *d = of(a->lane->device);
    cdr_status st = CDR_OK;
    bool compute = a->lane->stream == (void *)d->streams[CDR_S_COMPUTE];
    if (g->m == 0 || g->n == 0) return CDR_OK;
    if (d->lt && g->k > 0 && cdr__lt_run(d->lt, a->lane->stream, compute, g, &st))
        return st == CDR_OK ? CDR_OK : cdr__cuda_refuse(a, "gemm", "cuBLASLt returned an error");
    return cdr__cuda_gemm_plain(a, g);
}
