/* cuda_bf16.h: stands in for CUDA's header of that name: the conversions that the kernels use, as tensor.h defines them. */
#ifndef SIMT_CUDA_BF16_H
#define SIMT_CUDA_BF16_H
#include "tensor/tensor.h"
struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
static inline float __bfloat162float(__nv_bfloat16 b) { return cdr_bf16_to_f32(b.bits); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return { cdr_f32_to_bf16(f) }; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return { __float2bfloat16_rn(x), __float2bfloat16_rn(y) }; }
static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
#endif
