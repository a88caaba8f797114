/* rows.h: what the selection and its loss share inside of this folder: scratch in pieces, operands, tiles of keys. */
#ifndef CDR_OPS_INDEXER_ROWS_H
#define CDR_OPS_INDEXER_ROWS_H

#include "ops/attention/attention.h"
#include "ops/cpu.h"
#include "ops/indexer/indexer.h"

enum { CDR__IX_ROWS = 16 };              /* query rows of a block: one thread's work on a tile of keys that it widened once */

static inline int64_t cdr__ix_up(int64_t n) { return (n + 15) / 16 * 16; }

/* Scratch, cut into pieces of 64 bytes; with base NULL it is only measured. */
typedef struct { char *base; size_t used; } cdr__ix_scratch;
static inline void *cdr__ix_take(cdr__ix_scratch *m, int64_t n)      /* n elements of 4 bytes */
{
    void *p = m->base ? m->base + m->used : NULL;
    m->used += cdr_align_up((size_t)n * 4, 64);
    return p;
}

/* Columns [col, col + n) of a row as F32. */
static inline void cdr__ix_load(const cdr__indexer_math *m, const cdr__att_mat *x, int64_t row, int64_t col, int64_t n, float *dst)
{
    m->widen[x->dtype](x->p + (row * x->pitch + col) * x->bytes, n, dst);
}
#endif
