/* gather, reduce_scatter, all_reduce on a CPU: the operands lie in the rank's slab, the transport reads the peers' where
 * they lie (src/comm). What runs here is only the list of pieces. */
#include "ops/gather/gather.h"
#include "comm/comm.h"

#include <assert.h>

enum { WHOLE, INPUT_IS_SHARD, OUTPUT_IS_SHARD };

/* Pieces of a call: which operand is the shard. */
static int pieces_of(const cdr_args *a, int shard, cdr_piece *p)
{
    const cdr_gather_attr *at = a->attr;
    assert(a->n_in == at->n);
    assert(a->n_out == at->n);
    for (int i = 0; i < at->n; i++) {
        const cdr_type *t = &a->type[shard == OUTPUT_IS_SHARD ? at->n + i : i];       /* every operand has rows of the same bytes */
        void *in = a->ptr[i], *out = a->ptr[at->n + i];
        p[i] = (cdr_piece){ .rows = at->rows[i], .row_bytes = cdr_type_bytes(t) / (size_t)t->n[0], .dtype = t->dtype };
        p[i].full = shard == INPUT_IS_SHARD ? out : in;
        p[i].local = shard == INPUT_IS_SHARD ? in : shard == OUTPUT_IS_SHARD || out != in ? out : NULL;
    }
    return at->n;
}

static cdr_comm *comm_of(const cdr_args *a)
{
    const cdr_gather_attr *at = a->attr;
    cdr_comm *c = a->lane->comms ? a->lane->comms[at->coll.comm] : NULL;
    assert(c ? cdr_comm_size(c) == at->size : at->size == 1);
    return c;
}

/* Without a communicator there is one rank, and every collective is a copy. */
static cdr_status copy_all(const cdr_args *a)
{
    const cdr_gather_attr *at = a->attr;
    for (int i = 0; i < at->n; i++)
        if (a->ptr[at->n + i] != a->ptr[i]) memcpy(a->ptr[at->n + i], a->ptr[i], cdr_type_bytes(&a->type[i]));
    return CDR_OK;
}

cdr_status cdr__gather_base(const cdr_args *a)
{
    cdr_piece p[CDR_GATHER_MAX];
    cdr_comm *c = comm_of(a);
    return c ? cdr_comm_gather(c, p, pieces_of(a, INPUT_IS_SHARD, p)) : copy_all(a);
}

cdr_status cdr__reduce_scatter_base(const cdr_args *a)
{
    cdr_piece p[CDR_GATHER_MAX];
    cdr_comm *c = comm_of(a);
    return c ? cdr_comm_reduce_scatter(c, p, pieces_of(a, OUTPUT_IS_SHARD, p)) : copy_all(a);
}

cdr_status cdr__all_reduce_base(const cdr_args *a)
{
    cdr_piece p[CDR_GATHER_MAX];
    cdr_comm *c = comm_of(a);
    return c ? cdr_comm_all_reduce(c, p, pieces_of(a, WHOLE, p)) : copy_all(a);
}
