/* gemm_isa.h: what one instruction set contributes to the matrix product (gemm.c has the blocking, gemm.h the meaning):
 * a row of cdr__gemm_isas, and the bodies of packing and finishing that every ISA's file compiles with its own flags.
 *
 *   const cdr__gemm_isa cdr__gemm_avx2 = { .mr = 6, .nr = 16, .mc = 144, .kc = 2048, .pair = 1, .kernel = ..., ... };
 *
 * Everything packed is made of 32-bit units along k: one F32 (pair = 1), or the two BF16 of k = 2u, 2u + 1 (pair = 2;
 * the last unit of an odd k is padded with zero on both sides). kc counts units. */
#ifndef CDR_OPS_GEMM_ISA_H
#define CDR_OPS_GEMM_ISA_H

#include "ops/linear/gemm.h"

#define CDR__INLINE static inline __attribute__((always_inline))

/* X(i, p): i the row of A or the column of B, p along k. k_contig: p is contiguous and i strided, else the reverse.
 * src is X(0, 0); pitch in elements. */
typedef struct {
    const void *src; int64_t pitch;
    int64_t n_i, n_p;            /* elements */
    uint32_t *dst;
    int64_t ld;                  /* units: between rows of a packed A, where it is panels between them / mr; between panels of a packed B */
} cdr__pack;
enum { CDR__PACK_UNITS = 32 };   /* where k is strided: units that all panels take before the next ones, since rows of the
                                  * source may be pages apart, and 32 pages stay in the TLB until their lines are used up */

/* c[r][j] = (first ? 0 : old[r][j]) + sum_u a[r * a_row + u * a_col] b[u * nr + j], r < rows <= mr, j < nr, u < k ascending */
typedef struct {
    const uint32_t *a; int64_t a_row, a_col;
    const uint32_t *b;
    float *c; int64_t ldc;
    const float *old;            /* [rows][nr], or NULL: old is c */
    int64_t k; int rows; bool first;
    const char *ahead;           /* one line (64 bytes) a unit is prefetched from here: what of B comes next */
    const uint16_t *narrow;      /* kernel_widen only: the same part of B as BF16 [k][nr], which it reads instead of b and ... */
    uint32_t *wide;              /* ... leaves here as F32 for the tiles of the rows that follow */
} cdr__tile;

/* C[r][j] (+)= acc[r * nr + j], r < rows, j < cols */
typedef struct { const float *acc; int rows, cols; void *c; int64_t pitch; bool add; } cdr__finish;

typedef struct {
    const char *name;
    int mr, nr;                  /* tile */
    int mc, kc;                  /* most rows and units of one packed block of A; mc % mr == 0, kc % 64 == 0 */
    int kc_min;                  /* B not packed: kc goes down to this for a block of more rows; % 64 == 0 */
    int kb;                      /* units of a piece of B that is made, so that kb nr stay in L1; a power of 2 from 32 on */
    int kb_in_place;             /* the same of B that lies in panels already: longer where the kernel gets as much from L2; 32 or more */
    int few;                     /* up to so many rows B is packed piece by piece and used at once; at most mc */
    int a_units;                 /* and its size, which bounds the rows further: what L2 holds beside a panel of B */
    double mac;                  /* multiply-adds a cycle, about */
    int pair;                    /* elements of a unit */
    int step;                    /* units that one step of the kernel takes: k is padded with zeros to whole steps; 64 % step == 0 */
    int layout;                  /* of panels that it reads as its own packed B (nr rows of W; pair 1: as BF16 too); CDR_ROWS: none */
    bool a_panels;               /* pack_a makes panels from either orientation, of zeros where rows or units are padding */
    void (*begin)(void), (*end)(void);             /* NULL, or: each thread, before its first and after its last call of kernel */
    void (*pack_a[2][2])(const cdr__pack *s);      /* [dtype][k_contig]: to rows [n_i][ld], or panels [n_i / mr][units][mr], mr ld apart;
                                                    * of step > 1: [n_i / mr][units / step][mr][step] */
    void (*pack_b[2][2])(const cdr__pack *s);      /* panels [n_i / nr][units][nr]; columns from n_i on are zeros */
    void (*pack_across)(const cdr__pack *s);       /* pair 2 with a layout: W[64][..] of VNNI64, src its word (0, j), to units (k pairs) */
    void (*kernel)(const cdr__tile *t);
    void (*kernel_widen)(const cdr__tile *t);      /* pair 1 with a layout: the same from BF16 panels */
    void (*finish[2])(const cdr__finish *f);       /* [dtype of C] */
} cdr__gemm_isa;
_Static_assert(CDR_F32 == 0 && CDR_BF16 == 1, "the tables are indexed by dtype");

extern const cdr__gemm_isa cdr__gemm_base, cdr__gemm_avx2, cdr__gemm_avx512, cdr__gemm_avx512_bf16, cdr__gemm_amx;

/* ---- bodies; dtype, pair, nr, mr are constants where they are called, so that each folds to one loop -------------- */
/* As cdr_f32_to_bf16, without a branch. */
CDR__INLINE uint32_t cdr__round_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint32_t quiet = (u >> 16) | 0x40u, even = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? quiet : even;
}

CDR__INLINE uint32_t cdr__bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

CDR__INLINE float cdr__load(int dtype, const void *p, int64_t i)
{
    return dtype == CDR_F32 ? ((const float *)p)[i] : cdr_bf16_to_f32(((const uint16_t *)p)[i]);
}

CDR__INLINE uint32_t cdr__load_bf16(int dtype, const void *p, int64_t i)
{
    return dtype == CDR_F32 ? cdr__round_bf16(((const float *)p)[i]) : ((const uint16_t *)p)[i];
}

/* Unit u of X(i, .), whose elements are step apart from at on; the element past n_p is zero. */
CDR__INLINE uint32_t cdr__unit(int dtype, int pair, const cdr__pack *s, int64_t at, int64_t step, int64_t u)
{
    if (pair == 1) return cdr__bits(cdr__load(dtype, s->src, at + u * step));
    const uint32_t lo = cdr__load_bf16(dtype, s->src, at + 2 * u * step);
    return 2 * u + 1 < s->n_p ? lo | cdr__load_bf16(dtype, s->src, at + (2 * u + 1) * step) << 16 : lo;
}

CDR__INLINE void cdr__pack_a_rows(int dtype, int pair, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t full = s->n_p / pair, n_u = (s->n_p + pair - 1) / pair;
    for (int64_t i = 0; i < s->n_i; i++) {
        uint32_t *CDR_RESTRICT d = s->dst + i * s->ld;
        if (pair == 2 && dtype == CDR_BF16) memcpy(d, (const uint16_t *)s->src + i * s->pitch, (size_t)full * 4);
        else for (int64_t u = 0; u < full; u++) d[u] = cdr__unit(dtype, pair, s, i * s->pitch, 1, u);
        if (full < n_u) d[full] = cdr__unit(dtype, pair, s, i * s->pitch, 1, full);
    }
}

/* Units u0 .. u1 - 1 of the panel of rows i0 .. */
CDR__INLINE void cdr__pack_a_part(int dtype, int pair, int mr, const cdr__pack *s, int64_t i0, int64_t u0, int64_t u1)
{
    const int64_t rows = CDR_MIN(s->n_i - i0, mr);
    uint32_t *d = s->dst + i0 * s->ld;
    for (int64_t u = u0; u < u1; u++)
        for (int64_t i = 0; i < rows; i++) d[u * mr + i] = cdr__unit(dtype, pair, s, i0 + i, s->pitch, u);
}

CDR__INLINE void cdr__pack_a_panels(int dtype, int pair, int mr, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t n_u = (s->n_p + pair - 1) / pair;
    for (int64_t u = 0; u < n_u; u += CDR__PACK_UNITS)
        for (int64_t i = 0; i < s->n_i; i += mr) cdr__pack_a_part(dtype, pair, mr, s, i, u, CDR_MIN(u + CDR__PACK_UNITS, n_u));
}

/* Units u0 .. u1 - 1 of the panel of columns i0 .. */
CDR__INLINE void cdr__pack_b_part(int dtype, int pair, int nr, bool k_contig, const cdr__pack *s, int64_t i0, int64_t u0, int64_t u1)
{
    const int64_t cols = CDR_MIN(s->n_i - i0, nr);
    uint32_t *d = s->dst + i0 / nr * s->ld;
    for (int64_t u = u0; u < u1; u++) {
        for (int64_t i = 0; i < cols; i++)
            d[u * nr + i] = k_contig ? cdr__unit(dtype, pair, s, (i0 + i) * s->pitch, 1, u) : cdr__unit(dtype, pair, s, i0 + i, s->pitch, u);
        for (int64_t i = cols; i < nr; i++) d[u * nr + i] = 0;
    }
}

CDR__INLINE void cdr__pack_b_panels(int dtype, int pair, int nr, bool k_contig, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t n_u = (s->n_p + pair - 1) / pair;
    const int64_t block = k_contig ? CDR_MAX(n_u, 1) : CDR__PACK_UNITS;
    for (int64_t u = 0; u < n_u; u += block)
        for (int64_t i = 0; i < s->n_i; i += nr) cdr__pack_b_part(dtype, pair, nr, k_contig, s, i, u, CDR_MIN(u + block, n_u));
}

/* Element (i, j) of a matrix of so many columns that lies in panels (tensor.h), in elements from the first */
static inline int64_t cdr__panel_elem(int layout, int64_t cols, int64_t i, int64_t j)
{
    const cdr_layout_info *l = cdr_layout_row(layout);
    const int64_t R = l->rows, P = l->pair;
    return i / R * R * (cdr_ceil_div(cols, P) * P) + j / P * R * P + i % R * P + j % P;
}

CDR__INLINE void cdr__finish_body(int dtype, int nr, const cdr__finish *f)
{
    for (int r = 0; r < f->rows; r++) {
        const float *acc = f->acc + r * nr;
        if (dtype == CDR_F32) {
            float *c = (float *)f->c + r * f->pitch;
            if (f->add) for (int j = 0; j < f->cols; j++) c[j] += acc[j];
            else for (int j = 0; j < f->cols; j++) c[j] = acc[j];
        } else {
            uint16_t *c = (uint16_t *)f->c + r * f->pitch;
            if (f->add) for (int j = 0; j < f->cols; j++) c[j] = (uint16_t)cdr__round_bf16(cdr_bf16_to_f32(c[j]) + acc[j]);
            else for (int j = 0; j < f->cols; j++) c[j] = (uint16_t)cdr__round_bf16(acc[j]);
        }
    }
}
#endif
