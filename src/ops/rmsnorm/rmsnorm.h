/* rmsnorm.h: root-mean-square normalisation with a gain, over the last axis.
 *
 *   cdr_val y_TD = cdr_rmsnorm(g, x_TD, w_D, 1e-5f);       // y = w * x / sqrt(mean x^2 + eps)
 */
#ifndef CDR_OP_RMSNORM_H
#define CDR_OP_RMSNORM_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { float eps; } cdr_rmsnorm_attr;

/* in: x_TD, w_D.  out: y_TD (dtype of x); r_T F32, optional, what the backward needs */
extern const cdr_op cdr_op_rmsnorm;
/* in: dy_TD, x_TD, w_D, r_T.  out: dx_TD (add ok), dw_D F32 */
extern const cdr_op cdr_op_rmsnorm_bwd;

cdr_val cdr_rmsnorm(cdr_graph *g, cdr_val x_TD, cdr_val w_D, float eps);

/* ---- inside of the folder: references and kernels, for the tables in op.c -------------------------------------- */
void cdr__rmsnorm_ref(const cdr_ref_args *a);
void cdr__rmsnorm_bwd_ref(const cdr_ref_args *a);
size_t cdr__rmsnorm_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__rmsnorm_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
typedef struct {                     /* what is done to a row; one table per instruction set, the same bits in all (rows.inc) */
    float (*forward)(const cdr_args *a, int64_t t, const float *w_D, float *x_D, bool stream);                  /* returns r */
    void (*backward)(const cdr_args *a, int64_t t, const float *w_D, float *dw_D, float *scratch_2D, bool stream);
} cdr__rmsnorm_rows;
cdr_status cdr__rmsnorm_fwd(const cdr_args *a, const cdr__rmsnorm_rows *rows);
cdr_status cdr__rmsnorm_bwd(const cdr_args *a, const cdr__rmsnorm_rows *rows);
cdr_status cdr__rmsnorm_fwd_base(const cdr_args *a);
cdr_status cdr__rmsnorm_bwd_base(const cdr_args *a);
cdr_status cdr__rmsnorm_fwd_avx2(const cdr_args *a);
cdr_status cdr__rmsnorm_bwd_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
