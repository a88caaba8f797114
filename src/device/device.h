/* device.h: one device as the executor sees it: memory, streams, events, kernels. cpu is built in; cuda is a plug-in
 * (libcadre_cuda.so) that is loaded when asked for, so that one binary serves machines with and without a GPU.
 *
 *   cdr_device *d;
 *   cdr_device_open(CDR_DEV_CUDA, 0, &d, err);
 *   void *slab = d->ops->alloc(d, 0, bytes, err);
 *   d->ops->copy(d, CDR_S_IN, dst, src, bytes);       // asynchronous, ordered on that stream
 *   d->ops->sync(d);
 */
#ifndef CDR_DEVICE_H
#define CDR_DEVICE_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CDR_S_COMPUTE, CDR_S_COMM, CDR_S_OUT, CDR_S_IN, CDR_N_STREAMS } cdr_stream;
typedef enum { CDR_DEV_CPU, CDR_DEV_CUDA, CDR_N_DEVICES } cdr_device_kind;
/* bits of a kernel's `needs` and of a device's `isa` */
enum { CDR_ISA_AVX2 = 1, CDR_ISA_AVX512 = 2, CDR_ISA_AVX512_BF16 = 4, CDR_ISA_SM80 = 8, CDR_ISA_SM90 = 16, CDR_ISA_AMX = 32 };
enum { CDR_MAX_TIERS = 4 };

struct cdr_args;             /* graph/op.h: what a kernel is called with */
typedef struct cdr_device cdr_device;
typedef struct {
    void (*close)(cdr_device *d);
    /* tier 0: the device's memory; tier 1: host memory that the device reaches (pinned). Zeroed. */
    void *(*alloc)(cdr_device *d, int tier, size_t bytes, cdr_err *err);
    void (*free)(cdr_device *d, int tier, void *p);
    cdr_status (*copy)(cdr_device *d, int stream, void *dst, const void *src, size_t bytes);   /* any direction; asynchronous */
    cdr_status (*fill)(cdr_device *d, int stream, void *dst, int byte, size_t bytes);
    cdr_status (*record)(cdr_device *d, int stream, int event);      /* events are numbered by the executor: 0 .. n-1 */
    cdr_status (*wait)(cdr_device *d, int stream, int event);
    cdr_status (*sync)(cdr_device *d, cdr_err *err);                 /* all streams; reports an asynchronous failure */
    void *(*stream)(cdr_device *d, int stream);                      /* handle for cdr_lane.stream */
    cdr_status (*(*kernel)(cdr_device *d, const char *symbol))(const struct cdr_args *);   /* NULL: not in the plug-in */
    cdr_status (*events)(cdr_device *d, int n);                      /* makes n events */
} cdr_device_ops;
struct cdr_device {
    const cdr_device_ops *ops;
    int kind, index;
    bool host_sees;              /* the host may read and write the slab directly, and calls run at once */
    uint32_t isa;                /* CDR_ISA_* that it has, after the cap CADRE_ISA */
    int n_threads;
    char name[96];
    int64_t memory_bytes[CDR_MAX_TIERS];
};

cdr_status cdr_device_open(int kind, int index, int n_threads, cdr_device **d, cdr_err *err);
uint32_t cdr_cpu_isa(cdr_err *err);             /* of this machine, capped by CADRE_ISA (base avx2 avx512 avx512_bf16 amx) */
/* CDR_ISA_* that CADRE_ISA allows (one CPU level, one GPU level, comma; unset: all); an unknown value is an error.
 * cdr_device_open applies it. cdr_cpu_isa returns 0 and fills err where it fails. */
cdr_status cdr_isa_cap(uint32_t *allowed, cdr_err *err);
const char *cdr_isa_name(uint32_t isa);         /* highest one: "avx512_bf16", "avx2", "base", "sm90" */
int cdr_cpu_cores(void);                        /* cores that this process may use */
bool cdr_cuda_plugin_path(char *out, size_t n); /* where the plug-in is; false: not built */

#ifdef __cplusplus
}
#endif
#endif
