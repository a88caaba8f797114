/* rope.h: rotary positions on the last (or the first) `ext` elements of each head, with YaRN's longer wavelengths on request.
 *
 *   cdr_rope_attr at = { .heads = H, .nope = 32, .ext = 16, .theta = 10000, .interleaved = 1 };
 *   cdr_val q_TC = cdr_rope(g, q_TC, pos_T, start_T, &at);         // C = H (32 + 16)
 */
#ifndef CDR_OP_ROPE_H
#define CDR_OP_ROPE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t heads, nope, ext;     /* a head is nope elements that are copied, then ext that are rotated; ext is even */
    float theta;
    int32_t interleaved;          /* 1: pairs (2i, 2i+1); 0: pairs (i, i + ext/2) */
    int32_t inverse;              /* 1: rotates back: the gradient */
    int32_t first;                /* 1: a head is the ext rotated elements, then the nope copied ones */
    float factor;                 /* YaRN: the context is `factor` times as long as `original`; at most 1: plain frequencies */
    int32_t original;             /* tokens of the context that the model was first trained with */
    float beta_fast, beta_slow;   /* turns over `original`: more than beta_fast keep their frequency, fewer than beta_slow are divided by factor */
} cdr_rope_attr;

/* in: x_TC, pos_T I32, start_T I32.  out: y_TC (dtype of x). */
extern const cdr_op cdr_op_rope;

cdr_val cdr_rope(cdr_graph *g, cdr_val x_TC, cdr_val pos_T, cdr_val start_T, const cdr_rope_attr *a);

void cdr__rope_ref(const cdr_ref_args *a);
size_t cdr__rope_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__rope_base(const cdr_args *a);
cdr_status cdr__rope_avx2(const cdr_args *a);
void cdr__rope_frequencies(const cdr_rope_attr *a, double *freq);       /* ext / 2 of them, radians a token; negative where inverse */

#ifdef __cplusplus
}
#endif
#endif
