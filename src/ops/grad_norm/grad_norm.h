/* grad_norm.h: global gradient norm, clipping scale and the guard against non-finite steps.
 *
 *   cdr_norm_parts(g, n, grads, rows, n_shard, shard, parts);      // F64 [n * 128 / n_shard]
 *   cdr_norm_tables t = { .n_shard = 4, .expert = 2, .part = { sharded, whole, experts }, .n = { 120, 64, 12 } };
 *   cdr_norm_total(g, &t, loss_1, max_norm, &metrics, &clip_1, ok_1);
 */
#ifndef CDR_OP_GRAD_NORM_H
#define CDR_OP_GRAD_NORM_H
#include "graph/op.h"
#ifdef __cplusplus
extern "C" {
#endif
enum { CDR_NORM_PARTS = 128, CDR_NORM_MAX = 32 };
typedef struct { int32_t n, n_shard, shard, pad; int64_t rows[CDR_NORM_MAX]; } cdr_norm_parts_attr;
typedef enum { CDR_NORM_SHARDED, CDR_NORM_WHOLE, CDR_NORM_EXPERTS, CDR_N_NORMS } cdr_norm_table;
typedef struct { int32_t n_shard, expert, n[CDR_N_NORMS], pad; double max_norm; } cdr_norm_total_attr;
extern const cdr_op cdr_op_norm_parts, cdr_op_norm_total;
/* grads: n at most CDR_NORM_MAX gradients F32; rows: their global rows (all axes but the last, flattened; elements for 1-D). parts: existing value or view. */
void cdr_norm_parts(cdr_graph *g, int n, const cdr_val *grads, const int64_t *rows, int n_shard, int shard, cdr_val parts);
/* Parts of n[k] parameters of each kind; CDR_NONE where there are none. Sharded ones are gathered from all shards, [n_shard][n * 128 / n_shard];
 * whole ones are [n * 128]; stacks of experts are gathered too, and row f * expert + j of them is shard j * n_shard / expert + f of the
 * stack (struct cdr_mesh). */
typedef struct { int n_shard, expert; cdr_val part[CDR_N_NORMS]; int n[CDR_N_NORMS]; } cdr_norm_tables;
/* metrics F64[4] {loss, norm, clip scale, ok}; clip F32[1]; ok I32[1], RUN, sticky. */
void cdr_norm_total(cdr_graph *g, const cdr_norm_tables *t, cdr_val loss_1, double max_norm, cdr_val *metrics_4, cdr_val *clip_1, cdr_val ok_1);
#ifdef __cplusplus
}
#endif
#endif
