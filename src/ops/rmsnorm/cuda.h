/* cuda.h: what the descriptor rows and the CUDA kernels of rmsnorm agree on. */
#ifndef CDR_OPS_RMSNORM_CUDA_H
#define CDR_OPS_RMSNORM_CUDA_H
#include "device/cuda/rows.h"
enum { CDR_RMSNORM_BAND = 64 };      /* rows that one partial sum of dw covers */
#endif
