/* bench.h: what this machine can do, and how near the operators come to it.
 *
 *   cdr_ceilings c;
 *   cdr_bench_ceilings(cdr_cpu_isa(NULL), 2, false, &c);
 *   cdr_bench_run("gemm", false, isa, 2, &report, NULL, err);       // operator names or a glob; gemm: linear and its gradients
 *
 *   cdr_bench_table(false, isa, 2, &report, NULL, err);             // the targets, each beside what this machine does
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

enum { CDR_PEAK_BASE, CDR_PEAK_AVX2, CDR_PEAK_AVX512, CDR_PEAK_AVX512_BF16, CDR_PEAK_AMX, CDR_N_PEAKS };
typedef struct {
    double bf16, f32;      /* FLOP/s of products with BF16 and with F32 inputs, all threads; equal where the ISA has no BF16 */
    double peak[CDR_N_PEAKS];      /* FLOP/s of each class of instructions, in registers; 0: not this machine's */
    double read, copy;     /* bytes/s; a copy counts what it reads and what it writes */
} cdr_ceilings;
void cdr_bench_ceilings(uint32_t isa, int n_threads, bool quick, cdr_ceilings *c);      /* quick: about 0.1 s, else 1 s */
/* The arithmetic ceiling alone, FLOP/s, of products with inputs of this dtype; takes about 10 ms. */
double cdr_bench_quick_gemm(int dtype, uint32_t isa, int n_threads);

/* Ceilings, then each operator whose name matches the pattern ("": all), at its shapes, on the CPU kernels that isa allows.
 * quick: first shape and best kernel only. report and json: NULL where not wanted; json gets the members "ceilings" and
 * "rows" in the object that the caller has open. */
cdr_status cdr_bench_run(const char *pattern, bool quick, uint32_t isa, int n_threads, cdr_text *report, cdr_jw *json, cdr_err *err);

/* One line of the table of targets: a measured value beside what it should be. */
typedef struct {
    const char *name, *measure;            /* measure: what value is a share or a multiple of */
    const char *kernel;
    double value, least, goal;             /* least, goal: 0: none */
    double seconds;
    bool multiple;                         /* value is "times as fast", not a share */
} cdr_bench_line;
void cdr_bench_print_line(const cdr_bench_line *l, cdr_text *report, cdr_jw *json);
/* Ceilings, then the table of targets for operators (bench_table.c has its rows). json gets "ceilings" in the open object; the
 * rows go into the array "table", which the caller closes, after what it adds itself. */
cdr_status cdr_bench_table(bool quick, uint32_t isa, int n_threads, cdr_text *report, cdr_jw *json, cdr_err *err);

/* inside the folder */
/* The first kernel that isa allows and that takes the case, timed. kind: which kernels count. panels: weights lie in the layout
 * that this kernel reads without packing, as the compiler would lay frozen ones. kernel is NULL where none takes it. */
enum { CDR__BENCH_BEST, CDR__BENCH_BASE, CDR__BENCH_AVX2 };
typedef struct { const cdr_kernel *kernel; double best, median; int n; cdr_cost cost; bool panels; } cdr__bench_time;
cdr_status cdr__bench_one(const cdr_case *c, int kind, bool panels, double window_s, uint32_t isa, int n_threads, cdr__bench_time *t, cdr_err *err);
/* The class of instructions that a kernel's arithmetic is made of. */
int cdr__bench_class(const cdr_kernel *k);
const char *cdr__bench_class_name(int cls);
double cdr__bench_quick_peak(int cls, int n_threads);      /* FLOP/s in registers; takes about 10 ms */
void cdr__bench_print_ceilings(const cdr_ceilings *c, uint32_t isa, int n_threads, int width, cdr_text *report, cdr_jw *json);
extern const cdr_case cdr__bench_shapes[];     /* bench_shapes.c: ends with name NULL */
/* Peak loops of an instruction set: rounds of flop_a_round FLOPs in registers; the sum keeps the compiler from dropping them. */
typedef struct { const char *name; double flop_a_round; float (*run)(int64_t rounds); } cdr__peak;
extern const cdr__peak cdr__peak_base, cdr__peak_avx2, cdr__peak_avx512, cdr__peak_avx512_bf16, cdr__peak_amx;

#ifdef __cplusplus
}
#endif
#endif
