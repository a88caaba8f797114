/* gather: the collectives of sharded training. gather makes whole tensors out of every rank's rows; its gradient is
 * reduce_scatter, which leaves each rank the tree sum of its rows; all_reduce sums whole tensors.
 *
 *   cdr_val shard[] = { w1, w2 }, full[] = { CDR_NEW, CDR_NEW };
 *   int64_t rows[] = { 1024, 512 };
 *   cdr_gather(g, CDR_COMM_SHARD, 4, 2, shard, rows, full);       // shards have ceil(rows / 4) rows
 */
#ifndef CDR_OPS_GATHER_H
#define CDR_OPS_GATHER_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_GATHER_MAX = 24 };

typedef struct { cdr_coll coll; int32_t n, size; int64_t rows[CDR_GATHER_MAX]; } cdr_gather_attr;    /* rows: of the whole tensors */

extern const cdr_op cdr_op_gather, cdr_op_reduce_scatter, cdr_op_all_reduce;

/* full[i], out[i]: CDR_NEW, or the value that takes the result. */
cdr_status cdr_gather(cdr_graph *g, int comm, int size, int n, const cdr_val *shard, const int64_t *rows, cdr_val *full);
cdr_status cdr_reduce_scatter(cdr_graph *g, int comm, int size, int n, const cdr_val *full, cdr_val *shard);
cdr_status cdr_all_reduce(cdr_graph *g, int comm, int size, int n, const cdr_val *x, cdr_val *out /* may equal x */);

/* For a gradient: those of n whose gradient is wanted and there, as x and (new) out; which: their positions. Their number. */
int cdr__gather_wanted(int n, const cdr_val *dout, const bool *want, int *which, cdr_val *x, cdr_val *out);

cdr_status cdr__gather_base(const cdr_args *a);
cdr_status cdr__reduce_scatter_base(const cdr_args *a);
cdr_status cdr__all_reduce_base(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
