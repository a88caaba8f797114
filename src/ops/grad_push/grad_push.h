/* grad_push.h: merges the partial sums of a rank's micro-batches, as a binary counter (spec/spine.md, section 5) or as a running sum.
 *
 *   cdr_grad_push(g, partial, micro_1, &(cdr_grad_push_attr){ .depth = depth }, stack);     // stack[0..depth): STEP values like partial
 */
#ifndef CDR_OP_GRAD_PUSH_H
#define CDR_OP_GRAD_PUSH_H
#include "graph/op.h"
#ifdef __cplusplus
extern "C" {
#endif
enum { CDR_PUSH_MAX = 20 };
typedef struct { int32_t depth, running; } cdr_grad_push_attr;      /* running: one buffer, a sum in the order of the micro-batches (train.reduce: free) */
extern const cdr_op cdr_op_grad_push;
/* Buffers that a counter over n_micro (a power of two) partials needs: max(1, log2 n_micro). */
int cdr_grad_push_depth(int n_micro);
void cdr_grad_push(cdr_graph *g, cdr_val partial, cdr_val micro_1, const cdr_grad_push_attr *a, cdr_val *stack);
#ifdef __cplusplus
}
#endif
#endif
