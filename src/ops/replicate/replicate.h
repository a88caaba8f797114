/* replicate: marks parameters that every rank of an axis holds whole. Forward it is nothing (a view); backward it sums
 * their gradients over the ranks.
 *
 *   cdr_val w[] = { norm1, norm2 }, view[] = { CDR_NEW, CDR_NEW };
 *   cdr_replicate(g, CDR_COMM_SHARD, 4, 2, w, view);
 */
#ifndef CDR_OPS_REPLICATE_H
#define CDR_OPS_REPLICATE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int32_t comm, size, n; } cdr_replicate_attr;

extern const cdr_op cdr_op_replicate;
cdr_status cdr_replicate(cdr_graph *g, int comm, int size, int n, const cdr_val *x, cdr_val *view);

#ifdef __cplusplus
}
#endif
#endif
