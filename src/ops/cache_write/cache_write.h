/* cache_write.h: rows of this turn into a cache that lives over turns (keys and values of generation).
 *
 *   cdr_cache_write(g, kv_cache_SC, kv_TC, pos_T, n_live_1);     // cache[pos_t] = kv_t for t < n_live
 */
#ifndef CDR_OP_CACHE_WRITE_H
#define CDR_OP_CACHE_WRITE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int64_t rows; int32_t dtype, unused; } cdr_cache_write_attr;      /* S and dtype of the cache */

/* in: rows_TC, pos_T I32, n_live_1 I32.  out: cache_SC (read and written in place). No gradient. */
extern const cdr_op cdr_op_cache_write;

void cdr_cache_write(cdr_graph *g, cdr_val cache_SC, cdr_val rows_TC, cdr_val pos_T, cdr_val n_live_1);

void cdr__cache_write_ref(const cdr_ref_args *a);
size_t cdr__cache_write_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__cache_write_base(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
