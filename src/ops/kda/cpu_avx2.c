/* kda with AVX2: the vector of gemm.inc. Tile 4 x 24: 12 accumulators and 7 loads for 12 FMA (4 x 16: 8 and 6 for 8; latency 4 at two a
 * cycle takes 8). Floor, one head of 128, 1,024 rows: 7.1 M vector FMA forward (op.c's FLOPs with C = 16), 23 M backward; at two a cycle
 * 1.2 and 3.8 ms on Zen 3. Instructions (callgrind): 20.5 M forward, 67.8 M backward.
 * One thread of Zen 3, best of many, forward and backward: T = 4096, H = 4, d = 128: 47 and 177 to 190 ms; T = 512, H = 2, d = 64, documents of
 * 256: 0.78 and 2.7 ms; T = 1024, H = 4, d = 32: 1.6 and 6.9 ms. Emerald Rapids, one core, H = 4, d = 128: 49 and 164 ms, with AVX-512 31.6 and 111 ms.
 * Tried: chunks of 64 rows as the unit of work, tiles of 4 x 16 and three exponentials a factor: 26.0 and 83.6 M instructions, matrices of
 * 36 KiB, of which the first cache holds none; on Emerald Rapids equal with AVX2, 39.6 and 137 ms with AVX-512. A state kept every 16 or 32
 * rows (24 and 15 MiB) instead of every 64 (11 MiB): backward with AVX-512 120 and 119 ms. restrict in a block instead of functions of
 * restrict parameters: gcc 12 leaves the loop over pairs scalar. */
#include "ops/vf_avx2_simd.h"

#define MAX_NV 3
#include "ops/kda/sweep.inc"

cdr_status cdr__kda_fwd_avx2(const cdr_args *a) { return fwd(a); }
cdr_status cdr__kda_bwd_avx2(const cdr_args *a) { return bwd(a); }
