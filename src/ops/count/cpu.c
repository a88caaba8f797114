/* count on a CPU: one small integer sum over the world (src/comm). */
#include "ops/count/count.h"
#include "comm/comm.h"

#include <assert.h>

cdr_status cdr__count_base(const cdr_args *a)
{
    const cdr_count_attr *at = a->attr;
    cdr_comm *c = a->lane->comms ? a->lane->comms[at->coll.comm] : NULL;
    int64_t total[CDR_COUNT_WORDS];
    assert(c ? cdr_comm_size(c) == at->size : at->size == 1);
    memcpy(total, a->ptr[0], sizeof total);
    if (c) CDR_TRY(cdr_comm_sum_i64(c, total, CDR_COUNT_WORDS));
    memcpy(a->ptr[1], total, sizeof total);
    *(float *)a->ptr[2] = (float)(1.0 / (double)CDR_MAX((int64_t)1, total[CDR_COUNT_TRAINED]));
    *(float *)a->ptr[3] = (float)(1.0 / (double)CDR_MAX((int64_t)1, total[CDR_COUNT_ROWS]));
    return CDR_OK;
}
