/* tree.h: the sum over ranks, in an order that only their number decides. Internal to src/comm.
 *
 *   char *stack = cdr_alloc(CDR__TREE_BYTES);
 *   cdr__tree_block(stack, CDR_F32, src, n, dst, bytes);       // dst = tree sum over src[0 .. n)
 */
#ifndef CDR_COMM_TREE_H
#define CDR_COMM_TREE_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__TREE_BLOCK = 4096, CDR__TREE_LEVELS = 12, CDR__TREE_BYTES = 2 * CDR__TREE_LEVELS * CDR__TREE_BLOCK };

/* bytes: of one source, at most CDR__TREE_BLOCK; F32, F64 or I32. dst may be one of the sources. */
void cdr__tree_block(char *stack, int dtype, const void *const *src, int n, void *dst, size_t bytes);
size_t cdr__tree_elem_bytes(int dtype);

#ifdef __cplusplus
}
#endif
#endif
