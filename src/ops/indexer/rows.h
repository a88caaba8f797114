/* rows.h: what the selection and its loss share inside of this folder: scratch in pieces, operands, tiles of keys. */
#ifndef CDR_OPS_INDEXER_ROWS_H
#define CDR_OPS_INDEXER_ROWS_H

#include "ops/cpu.h"
#include "ops/indexer/indexer.h"

enum { CDR__IX_ROWS = 8 };               /* query rows of a block: one thread's work on a tile of keys that it widened once */

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
static inline void cdr__ix_load(const cdr_args *a, int i, int64_t row, int64_t col, int64_t n, float *dst)
{
    const cdr_type *t = &a->type[i];
    cdr_to_f32(t->dtype, (const char *)a->ptr[i] + cdr_dtype_bytes(t->dtype, row * cdr_type_pitch(t) + col), dst, n);
}

/* Element (s, i) of KEYS rows of n numbers to (i, s): the panel that a product reads. */
static inline void cdr__ix_transpose(const float *rows, int64_t pitch, int64_t n, float *panel)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t s = 0; s < CDR__IX_KEYS; s++) panel[i * CDR__IX_KEYS + s] = rows[s * pitch + i];
}
#endif
