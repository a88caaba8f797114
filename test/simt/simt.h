/* simt.h: runs CUDA kernels on a CPU, so that their indices, barriers and sums are tested where there is no GPU. The .cu
 * files are compiled as C++ with this folder before CUDA's. A block's threads are fibers of one thread: each runs until it
 * waits at a barrier or at a warp exchange, or ends; who is next is fixed. What cannot be seen here: memory models, caches,
 * alignment faults, tensor cores, speed.
 *
 *   CU_LAUNCH(kernel, grid, block, bytes, args, a, b);      // runs all blocks in ascending order before it returns
 */
#ifndef SIMT_H
#define SIMT_H

#include "cuda_runtime_api.h"
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

using std::isfinite;

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return { x, y, z, w }; }

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)

/* ---- where a thread is (simt.cc) --------------------------------------------------------------------------------- */
typedef struct { dim3 thread, block, grid; unsigned char *shared; } simt_place;
extern simt_place simt_here;                       /* of the fiber that runs */
#define threadIdx (simt_here.thread)
#define blockIdx (simt_here.block)
#define gridDim (simt_here.grid)

void simt_run(dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void *), void *ctx);
void simt_block_barrier(void);
int simt_block_or(int x);
uint64_t simt_exchange(uint64_t x, int lane_xor);  /* over the 32 lanes of the warp */
void simt_warp_barrier(void);

template <typename F> static inline void simt_launch(dim3 grid, dim3 block, size_t bytes, F f)
{
    simt_run(grid, block, bytes, [](void *p) { (*(F *)p)(); }, &f);
}
#define CU_LAUNCH(kernel, grid, block, smem, a, ...) \
    do { (void)(a); simt_launch((grid), dim3(block), (smem), [&]() { kernel(__VA_ARGS__); }); } while (0)
#define CU_SHARED(type, name) type *name = (type *)simt_here.shared

/* ---- what kernels call --------------------------------------------------------------------------------------------- */
static inline void __syncthreads(void) { simt_block_barrier(); }
static inline int __syncthreads_or(int x) { return simt_block_or(x); }
static inline void __syncwarp(void) { simt_warp_barrier(); }
template <typename T> static inline T __shfl_xor_sync(unsigned, T x, int k)
{
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = simt_exchange(bits, k);
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline void __trap(void) { abort(); }
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

/* ---- what launchers call -------------------------------------------------------------------------------------------- */
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <typename F> static inline cudaError_t cudaFuncSetAttribute(F, int, int) { return cudaSuccess; }
static inline const char *cudaGetErrorString(cudaError_t) { return "no error"; }
static inline cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind, cudaStream_t)
{
    memcpy(dst, src, n);
    return cudaSuccess;
}
static inline cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int byte, size_t width, size_t height, cudaStream_t)
{
    for (size_t r = 0; r < height; r++) memset((char *)p + r * pitch, byte, width);
    return cudaSuccess;
}

#endif
