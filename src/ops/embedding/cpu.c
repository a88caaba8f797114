/* embedding, CPU kernels: scratch and the base kernels; rows.inc has the loops. */
#include "ops/embedding/rows.inc"

cdr_status cdr__embedding_base(const cdr_args *a) { return forward(a); }
cdr_status cdr__embedding_bwd_base(const cdr_args *a) { return backward(a); }

/* the first token of each row of the table, the next token of each token */
size_t cdr__embedding_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out, (void)n_threads;
    return (size_t)(((const cdr_embedding_bwd_attr *)attr)->table_rows + t[1].n[0]) * sizeof(int32_t);
}
