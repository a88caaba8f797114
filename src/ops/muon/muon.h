/* muon.h: one Muon update of one parameter: momentum, orthogonalised by Newton-Schulz, in place.
 *
 *   cdr_muon_attr at = { .block_rows = 32, .momentum = 0.95f, .nesterov = 1, .iterations = 5, .scale = 0.2f, .weight_decay = 0.1f, .lr_scale = 1 };
 *   cdr_muon(g, grad, clip_1, hyper_8, master, m, weight, &at);          // a matrix whose heads have 32 rows
 *
 * Rows are all axes but the last, flattened: experts stacked as [E, I, L] are E matrices with block_rows = I.
 */
#ifndef CDR_OP_MUON_H
#define CDR_OP_MUON_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* block_rows: rows of one matrix (a head, an expert); 0: all rows are one. nesterov: 0 or 1. iterations: 5 in the papers. */
typedef struct { int32_t block_rows; float momentum; int32_t nesterov, iterations; float scale, weight_decay, lr_scale; } cdr_muon_attr;

/* in: grad F32, clip_1 F32, hyper_8 F32 (the first is the learning rate), master F32, m F32, weight (any float format) or absent
 * out: master, m, weight, the values of before where they are updated in place */
extern const cdr_op cdr_op_muon;
/* weight: the parameter as kernels read it, CDR_NONE where that is the master. Returns the call's id, so that it can be predicated. */
int32_t cdr_muon(cdr_graph *g, cdr_val grad, cdr_val clip_1, cdr_val hyper_8, cdr_val master, cdr_val m, cdr_val weight, const cdr_muon_attr *a);

/* ---- inside of the folder ------------------------------------------------------------------------------------- */
enum { CDR__MU_GRAD, CDR__MU_CLIP, CDR__MU_HYPER, CDR__MU_MASTER, CDR__MU_M, CDR__MU_WEIGHT, CDR__MU_IN,
       CDR__MU_MASTER_OUT = CDR__MU_IN, CDR__MU_M_OUT, CDR__MU_WEIGHT_OUT };
extern const double cdr__muon_abc[3];        /* coefficients of the iteration */
void cdr__muon_ref(const cdr_ref_args *a);
cdr_status cdr__muon_base(const cdr_args *a);
cdr_status cdr__muon_avx2(const cdr_args *a);
cdr_status cdr__muon_avx512(const cdr_args *a);
size_t cdr__muon_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__muon_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__muon_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);

#ifdef __cplusplus
}
#endif
#endif
