/* grad_norm.h: global gradient norm, clipping scale and the guard against non-finite steps.
 *
 *   cdr_norm_parts(g, n, grads, rows, n_shard, shard, parts);      // F64 [n * 128 / n_shard]
 *   cdr_norm_total(g, parts_sharded, n_a, parts_whole, n_b, loss_1, n_shard, max_norm, &metrics, &clip_1, ok_1);
 */
#ifndef CDR_OP_GRAD_NORM_H
#define CDR_OP_GRAD_NORM_H
#include "graph/op.h"
#ifdef __cplusplus
extern "C" {
#endif
enum { CDR_NORM_PARTS = 128, CDR_NORM_MAX = 32 };
typedef struct { int32_t n, n_shard, shard, pad; int64_t rows[CDR_NORM_MAX]; } cdr_norm_parts_attr;
typedef struct { int32_t n_shard, n_a, n_b, pad; double max_norm; } cdr_norm_total_attr;
extern const cdr_op cdr_op_norm_parts, cdr_op_norm_total;
/* grads: n at most CDR_NORM_MAX gradients F32; rows: their global rows (all axes but the last, flattened; elements for 1-D). parts: existing value or view. */
void cdr_norm_parts(cdr_graph *g, int n, const cdr_val *grads, const int64_t *rows, int n_shard, int shard, cdr_val parts);
/* a: gathered parts of sharded parameters, [n_shard][n_a * 128 / n_shard]; b: parts of whole ones, [n_b * 128]; either
 * may be CDR_NONE. metrics F64[4] {loss, norm, clip scale, ok}; clip F32[1]; ok I32[1], RUN, sticky. */
void cdr_norm_total(cdr_graph *g, cdr_val a, int n_a, cdr_val b, int n_b, cdr_val loss_1, int n_shard, double max_norm,
                    cdr_val *metrics_4, cdr_val *clip_1, cdr_val ok_1);
#ifdef __cplusplus
}
#endif
#endif
