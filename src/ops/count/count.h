/* count: the one integer sum over all ranks at the beginning of a step, and the scale of the loss that follows from it.
 *
 *   cdr_val total_8 = CDR_NEW, scale_1 = CDR_NEW, rows_1 = CDR_NEW;
 *   cdr_count(g, world, count_8, &total_8, &scale_1, &rows_1);     // count_8: I64 {trained tokens, stop, save, time, rows, 0, 0, 0} of this rank
 */
#ifndef CDR_OPS_COUNT_H
#define CDR_OPS_COUNT_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_COUNT_WORDS = 8, CDR_COUNT_TRAINED = 0, CDR_COUNT_ROWS = 4 };
typedef struct { cdr_coll coll; int32_t size; } cdr_count_attr;

extern const cdr_op cdr_op_count;
/* total_8, scale_1, scale_rows_1: the value that takes the result (total_8 may be count_8); CDR_NEW or CDR_NONE makes one. */
cdr_status cdr_count(cdr_graph *g, int size, cdr_val count_8, cdr_val *total_8, cdr_val *scale_1, cdr_val *scale_rows_1);
cdr_status cdr__count_base(const cdr_args *a);

#ifdef __cplusplus
}
#endif
#endif
