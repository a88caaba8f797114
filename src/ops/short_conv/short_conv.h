/* short_conv.h: causal depthwise convolution over a few tokens, with SiLU: what KDA does to its queries, keys and values.
 *
 *   cdr_val y_TP = cdr_short_conv(g, x_TP, w_P1W, start_T, pos_T, CDR_NONE);        // training: documents begin in this pack
 *   cdr_val y_TP = cdr_short_conv(g, x_TP, w_P1W, start_T, pos_T, hist_WP);         // generate: hist is read, then rewritten
 *
 * start_T, pos_T: row t is the (pos - start)-th of its document; start > pos: an idle row, whose output is zero.
 */
#ifndef CDR_OP_SHORT_CONV_H
#define CDR_OP_SHORT_CONV_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* in: x_TP, w_P1W, start_T I32, pos_T I32.  out: y_TP (dtype of x); hist [W-1, P] (dtype of x, optional, read and rewritten):
 * the W-1 inputs before row 0. No attribute. W: 2 to CDR_SHORT_CONV_MAX. */
extern const cdr_op cdr_op_short_conv;
/* in: dy_TP, x_TP, w_P1W, start_T, pos_T.  out: dx_TP (add ok), dw_P1W F32 */
extern const cdr_op cdr_op_short_conv_bwd;
enum { CDR_SHORT_CONV_MAX = 8 };

/* hist: an existing value, or CDR_NONE */
cdr_val cdr_short_conv(cdr_graph *g, cdr_val x_TP, cdr_val w_P1W, cdr_val start_T, cdr_val pos_T, cdr_val hist);

/* ---- inside of the folder: references and kernels, for the tables in op.c -------------------------------------- */
void cdr__short_conv_ref(const cdr_ref_args *a);
void cdr__short_conv_bwd_ref(const cdr_ref_args *a);
size_t cdr__short_conv_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__short_conv_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
enum { CDR_CONV_BLOCK = 512 };         /* channels that are worked on at a time */
typedef struct {                     /* what is summed for one row: w_k x_k, k ascending; x_k in dtype, both from a block's first channel on */
    int n, dtype;
    const float *w[CDR_SHORT_CONV_MAX]; const void *x[CDR_SHORT_CONV_MAX];
} cdr__conv_taps;
typedef struct {                     /* what is done to channels at .. at + n of a row; one table per instruction set, the same bits in all (rows.inc) */
    void (*forward)(cdr__conv_taps *x, int dtype, void *y_P, int64_t at, int64_t n, bool stream);
    void (*backward)(cdr__conv_taps *x, int dtype, const void *dy_P, float *dp, float *const *sum, int64_t at, int64_t n);    /* sum NULL: not wanted */
    void (*gradient)(const cdr__conv_taps *dp, int dtype, void *dx_P, int64_t at, int64_t n, bool add);
} cdr__short_conv_rows;
cdr_status cdr__short_conv_fwd(const cdr_args *a, const cdr__short_conv_rows *rows);
cdr_status cdr__short_conv_bwd(const cdr_args *a, const cdr__short_conv_rows *rows);
cdr_status cdr__short_conv_fwd_base(const cdr_args *a);
cdr_status cdr__short_conv_bwd_base(const cdr_args *a);
cdr_status cdr__short_conv_fwd_avx2(const cdr_args *a);
cdr_status cdr__short_conv_bwd_avx2(const cdr_args *a);
cdr_status cdr__short_conv_fwd_avx512(const cdr_args *a);
cdr_status cdr__short_conv_bwd_avx512(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
