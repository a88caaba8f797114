/* bench.h: what this machine can do, and how near the operators come to it.
 *
 *   cdr_ceilings c;
 *   cdr_bench_ceilings(cdr_cpu_isa(NULL), 2, false, &c);
 *   cdr_bench_run("gemm", false, isa, 2, &report, NULL, err);       // operator names or a glob; gemm: linear and its gradients
 *
 * Ceilings are measured in this process: arithmetic by a loop over registers alone, memory by reading and copying what no
 * cache holds. A shape's floor is the larger of (FLOPs / arithmetic ceiling) and (bytes that must move / memory ceiling):
 * no kernel can be faster, unless its operands were in a cache already. */
#ifndef CDR_BENCH_H
#define CDR_BENCH_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double bf16, f32;      /* FLOP/s of products with BF16 and with F32 inputs, all threads; equal where the ISA has no BF16 */
    double read, copy;     /* bytes/s; a copy counts what it reads and what it writes */
} cdr_ceilings;
void cdr_bench_ceilings(uint32_t isa, int n_threads, bool quick, cdr_ceilings *c);      /* quick: about 0.1 s, else 1 s */
/* The arithmetic ceiling alone, FLOP/s, of products with inputs of this dtype; takes about 10 ms. */
double cdr_bench_quick_gemm(int dtype, uint32_t isa, int n_threads);

/* Ceilings, then each operator whose name matches the pattern ("": all), at its shapes, on the CPU kernels that isa allows.
 * quick: first shape and best kernel only. report and json: NULL where not wanted; json gets the members "ceilings" and
 * "rows" in the object that the caller has open. */
cdr_status cdr_bench_run(const char *pattern, bool quick, uint32_t isa, int n_threads, cdr_text *report, cdr_jw *json, cdr_err *err);

/* inside the folder */
extern const cdr_case cdr__bench_shapes[];     /* bench_shapes.c: ends with name NULL */
/* Peak loops of an instruction set: rounds of flop_a_round FLOPs in registers; the sum keeps the compiler from dropping them. */
typedef struct { const char *name; double flop_a_round; float (*run)(int64_t rounds); } cdr__peak;
extern const cdr__peak cdr__peak_base, cdr__peak_avx2, cdr__peak_avx512, cdr__peak_avx512_bf16;

#ifdef __cplusplus
}
#endif
#endif
