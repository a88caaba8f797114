/* small.h: the iteration (3) of op.c for one matrix of at most CDR__MU_SMALL_N rows, without packing (internal to ops/muon).
 *
 *   float *xt = ...;                                         // [k][ld], ld = cdr__mu_pitch(n): X transposed, zeros from column n on
 *   float *o = cdr__muon_small_avx2(&(cdr__mu_small){ .x = xt, .next = ..., .a = ..., .b = ..., .n = n, .k = k, .iterations = 5,
 *                                                             .i_team = 0, .n_team = 1 });
 *
 * small.inc has the code, which cpu_avx2.c and cpu_avx512.c compile with their own vectors: the same bits in both. */
#ifndef CDR_OP_MUON_SMALL_H
#define CDR_OP_MUON_SMALL_H

#include "ops/cpu.h"

enum { CDR__MU_SMALL_N = 128, CDR__MU_SMALL_K = 512, CDR__MU_BLOCK = 16 };

/* n <= k <= CDR__MU_SMALL_K. x, next [k][ld]; a, b [ld][ld]; all 64-byte aligned, ld = cdr__mu_pitch(n).
 * n_team: threads of one parallel region that all make this call, as i_team of them; they meet at barriers. */
typedef struct { float *x, *next, *a, *b; int64_t n, k; int iterations, i_team, n_team; } cdr__mu_small;

/* Columns that are computed: whole blocks of 16. */
static inline int64_t cdr__mu_width(int64_t n) { return cdr_ceil_div(n, CDR__MU_BLOCK) * CDR__MU_BLOCK; }
/* An odd number of lines of cache, so that a column of blocks is spread over all sets of L1. */
static inline int64_t cdr__mu_pitch(int64_t n)
{
    int64_t lines = cdr__mu_width(n) / CDR__MU_BLOCK;
    return (lines + (lines % 2 == 0)) * CDR__MU_BLOCK;
}

/* Returns X transposed after the iterations: s->x or s->next. */
float *cdr__muon_small_avx2(const cdr__mu_small *s);
float *cdr__muon_small_avx512(const cdr__mu_small *s);
#endif
