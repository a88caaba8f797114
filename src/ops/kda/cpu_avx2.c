/* kda with AVX2: the vector of gemm.inc. Tile 4 x 16: 8 accumulators, as many as two FMA a cycle of latency 4 need.
 * Speed: bound by instructions, not by FMA alone: T = 1024, one head of 64, C = 64 takes 10 M instructions forward and 34 M backward
 * (callgrind), where op.c's FLOPs are 2.6 and 7.9 M FMA. CPU time of one Zen 3 thread beside other work, T = 4096 in documents of
 * 1024, H = 2, d = 64, C = 64: 10.3 ms forward, 37 ms backward (floor of op.c's FLOPs at 97 GFLOP/s of FMA: 3.5 and 10.4); C = 32:
 * 9.4 and 37 ms. T = 1024, H = 4, d = 128, C = 64: 14 and 42 ms (floor 5.5 and 16.6).
 * What paid: triangles in registers and one e^x less a row (backward 48 to 37 ms); explicit pairs as functions of restrict
 * parameters, since gcc 12 left the loop scalar with restrict in a block (backward with softplus 90 to 47 ms). */
#include "base/base.h"
#include <immintrin.h>

#define V_LANES 8
#define MAX_NV 3
typedef __m256 vf;
static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }

#include "ops/kda/sweep.inc"

cdr_status cdr__kda_fwd_avx2(const cdr_args *a) { return fwd(a); }
cdr_status cdr__kda_bwd_avx2(const cdr_args *a) { return bwd(a); }
