/* embedding.h: rows of a table by token, with rows of features at given places (images, later).
 *
 *   cdr_val x_TD = cdr_embedding(g, tokens_T, w_WD, CDR_NONE, CDR_NONE);
 */
#ifndef CDR_OPS_EMBEDDING_H
#define CDR_OPS_EMBEDDING_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const cdr_op cdr_op_embedding;          /* (tokens_T, w_WD, feat_FD | none, place_F | none) -> x_TD */
extern const cdr_op cdr_op_embedding_bwd;      /* (dy_TD, tokens_T, place_F | none) -> dw_WD F32, dfeat_FD; each optional */
/* The table itself is no operand of its backward: a sharded one would be gathered again for nothing. */
typedef struct { int64_t table_rows; int32_t feat_dtype, pad; } cdr_embedding_bwd_attr;

/* feat_FD and place_F: both, or CDR_NONE both. Places are distinct. */
cdr_val cdr_embedding(cdr_graph *g, cdr_val tokens_T, cdr_val w_WD, cdr_val feat_FD, cdr_val place_F);

/* inside the folder */
void cdr__embedding_ref(const cdr_ref_args *a);
void cdr__embedding_bwd_ref(const cdr_ref_args *a);
size_t cdr__embedding_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__embedding_base(const cdr_args *a);
cdr_status cdr__embedding_bwd_base(const cdr_args *a);
cdr_status cdr__embedding_avx2(const cdr_args *a);
cdr_status cdr__embedding_bwd_avx2(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
