/* plugin.h: what the files of the CUDA plug-in share. The plug-in links nothing from the program that loads it: it sees
 * its contract headers (device/device.h, graph/op.h) and exports cdr_cuda_open and the launchers.
 *
 *   cdr_status cdr_cuda_open(int index, cdr_device **d, cdr_err *err);
 *   d->ops->kernel(d, "cdr_cuda_rmsnorm_fwd")(&args);         // asynchronous, on args.lane->stream
 *
 * One process drives one device. A launcher checks its launch (cdr__cuda_done); what fails later on the device is
 * reported by sync, with the first failed launch by name where there was one.
 */
#ifndef CDR_CUDA_PLUGIN_H
#define CDR_CUDA_PLUGIN_H

#include "device/cuda/rows.h"
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CDR_CUDA_EXPORT __attribute__((visibility("default")))

typedef struct cdr__lt cdr__lt;
typedef struct {
    cdr_device base;                       /* first: a cdr_device * is one of these */
    cudaStream_t streams[CDR_N_STREAMS];
    cudaEvent_t *events; int n_events;
    cdr__lt *lt;                           /* NULL: cuBLASLt was not found; the own GEMM kernel takes its place */
    void *self;                            /* handle of the plug-in, for symbols */
    char failed[160];                      /* first failed launch, "" if none */
} cdr_cuda_device;

CDR_CUDA_EXPORT cdr_status cdr_cuda_open(int index, cdr_device **d, cdr_err *err);

/* After the launches of one call: CDR_OK, or CDR_ERANK with the failure kept for sync. */
cdr_status cdr__cuda_done(const cdr_args *a, const char *what);
/* A launcher met what its descriptor row should have refused. */
cdr_status cdr__cuda_refuse(const cdr_args *a, const char *what, const char *why);

/* C[m][n] = or += sum over k of A(m,k) B(k,n), row-major with pitches. a_t: A is stored [k][m]; b_t: B is stored [n][k].
 * BF16 x BF16 -> BF16 or F32, F32 x F32 -> F32, accumulated in F32 (no TF32). Any other mix only in the plain kernel. */
typedef struct {
    const void *a, *b; void *c;
    int64_t m, n, k, lda, ldb, ldc;
    bool a_t, b_t, add;
    uint8_t a_dtype, b_dtype, c_dtype;
} cdr_cuda_gemm;
cdr_status cdr__cuda_gemm(const cdr_args *a, const cdr_cuda_gemm *g);         /* cuBLASLt; the plain kernel where it has none */
cdr_status cdr__cuda_gemm_plain(const cdr_args *a, const cdr_cuda_gemm *g);   /* the own kernel */

/* The table of algorithms (lt.c). open: NULL where the library is missing, with the reason in why. run: false where
 * cuBLASLt takes no such product (then the caller runs the plain kernel); *st: what the call returned. */
cdr__lt *cdr__lt_open(char *why, size_t n);
void cdr__lt_close(cdr__lt *lt);
bool cdr__lt_run(cdr__lt *lt, void *stream, bool with_workspace, const cdr_cuda_gemm *g, cdr_status *st);

#ifdef __cplusplus
}
#endif
#endif
