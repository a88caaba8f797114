/* cuda_runtime_api.h: stands in for CUDA's header of that name when the plug-in's kernels are compiled for the CPU
 * (simt.h). Only what plugin.h and the launchers name. */
#ifndef SIMT_CUDA_RUNTIME_API_H
#define SIMT_CUDA_RUNTIME_API_H
#include <stddef.h>
typedef struct simt_stream *cudaStream_t;
typedef struct simt_event *cudaEvent_t;
typedef enum { cudaSuccess = 0 } cudaError_t;
typedef enum { cudaMemcpyDeviceToDevice = 3 } cudaMemcpyKind;
#endif
