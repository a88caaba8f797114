/* kernel.h: what the forward and the backward kernel of experts share: sizes, tiles of rows, products with an expert's weights.
 *
 *   experts x = cdr__experts_open(isa, attr, types, ptrs, n_threads);
 *   n = cdr__experts_tiles(&x, r0, r1, list);                         // (expert, up to TILE rows) of the routed rows r0 .. r1 - 1
 *   cdr__experts_mul(&x, &th->w[0], e, &(cdr__product){ .m = rows, .a = x_mL, .a_row = x.ld_L, .c = gate_mI, .ldc = x.ld_I, .first = true });
 *
 * Tiles belong to threads, so that a thread packs an expert's weights once for its run of tiles. A row's chains depend neither
 * on its tile nor on who computes it. */
#ifndef CDR_OPS_EXPERTS_KERNEL_H
#define CDR_OPS_EXPERTS_KERNEL_H

#include "ops/cpu.h"
#include "ops/experts/experts.h"
#include "ops/linear/gemm_isa.h"
#include "ops/situ/situ.h"

/* ---- one instruction set ---------------------------------------------------------------------------------------- */
typedef struct {
    const cdr__gemm_isa *gemm;
    const cdr__situ_rows *situ;
    void (*silu)(const float *gate_F, float *up_F, int64_t F);                        /* ops/swiglu/rows.inc */
    void (*silu_bwd)(const float *dy_F, float *gate_F, float *up_F, int64_t F);
    void (*round[2])(float *x, int64_t n);                                            /* [dtype] to the nearest of it; NULL: F32 */
} cdr__experts_isa;
extern const cdr__experts_isa cdr__experts_base, cdr__experts_avx2, cdr__experts_avx512;

enum { TILE = 144 };                     /* rows: a multiple of 12, so of every mr */
enum { PANEL_UNITS = 1 << 20 };          /* of an expert's matrix packed at a time: 4 MiB, or one panel where that is more */

/* ---- sizes ------------------------------------------------------------------------------------------------------ */
typedef struct {
    const cdr__experts_isa *isa; const cdr_experts_attr *at;
    cdr_situ_attr situ;
    const cdr_type *t; void *const *ptr;         /* the forward's operands, CDR__EX_X .. */
    int64_t T, L, I, E, A, R, cap;               /* cap: rows of a round */
    int64_t ld_L, ld_I;                          /* floats between rows of scratch: whole panels, and a line more, so that rows do not
                                                  * fall into one set of L1 */
    int64_t row_L;                               /* whole panels only: rows of a round */
    int n_threads;
} experts;

typedef struct { int64_t expert, first, end; } tile;

/* B of a product, packed for one expert by blocks of columns. Which matrix: 0 w1, 1 w3, 2 w2. */
typedef struct { int matrix; bool transposed; int64_t k, n, cols, expert; uint32_t *b; } panels;

/* C[m][n] = (first ? 0 : C) + A[m][k] B[k][n]. Row i of A, u along k: a[i * a_row + u * a_col]; groups of mr rows a_group apart.
 * padded: C has room for whole panels. */
typedef struct { int64_t m, k, n; const float *a; int64_t a_row, a_col, a_group; const uint32_t *b; float *c; int64_t ldc; bool first, padded; } cdr__product;

experts cdr__experts_open(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, void *const *ptr, int n_threads);

/* ---- scratch: a bump allocator that only measures where base is NULL --------------------------------------------- */
typedef struct { char *base; size_t at; } bump;
static inline void *bump_take(bump *b, size_t bytes)
{
    void *p = b->base ? b->base + b->at : NULL;
    b->at = cdr_align_up(b->at + bytes, 64);
    return p;
}
static inline float *bump_floats(bump *b, int64_t n) { return (float *)bump_take(b, (size_t)n * sizeof(float)); }
panels cdr__experts_panels(const experts *x, int matrix, bool transposed, bump *b);

/* ---- rows --------------------------------------------------------------------------------------------------------- */
int64_t cdr__experts_max_tiles(const experts *x, int64_t rows);
int64_t cdr__experts_tiles(const experts *x, int64_t r0, int64_t r1, tile *list);
/* Tiles of thread `me`: a run of the list, so that all runs cost about the same. */
void cdr__experts_share(const tile *list, int64_t n, int me, int n_threads, int64_t *first, int64_t *last);
void cdr__experts_product(const cdr__gemm_isa *isa, const cdr__product *p);
/* Expert e's matrix as B. The product's k, n, b, a_col, a_group and padded are filled in. */
void cdr__experts_mul(const experts *x, panels *w, int64_t e, cdr__product p);
/* Pair of routed row r */
static inline int64_t pair_of(const experts *x, int64_t r)
{
    const int32_t q = ((const int32_t *)x->ptr[CDR__EX_PERM])[r];
    assert(q >= 0 && q < x->R);
    return q;
}
static inline float weight_of(const experts *x, int64_t q)
{
    return ((const float *)x->ptr[CDR__EX_P])[q / x->A * cdr_type_pitch(&x->t[CDR__EX_P]) + q % x->A];
}
static inline int64_t row_offset(const experts *x, int64_t e) { return ((const int32_t *)x->ptr[CDR__EX_OFFS])[e]; }
/* Rows of p, of type t, of the tile's tokens, as F32, ld apart. */
void cdr__experts_gather(const experts *x, void *p, const cdr_type *t, const tile *k, float *dst, int64_t ld);
/* gate | up of row r into gu, where there is one, and rounded to the activations' dtype in place (1) */
void cdr__experts_round_gu(const experts *x, void *gu, const cdr_type *t, int64_t r, float *gate_I, float *up_I);

/* Sums of each token's rows (2), (4). acc: F32 [T][L], needed where a round is not the only one. */
typedef struct {
    void *rows; cdr_type row_t; int64_t r0, r1;          /* the round's rows; row r lies at r - r0 */
    bool first, last, add; float *acc;
    void *out; const cdr_type *out_t;
    float *scratch; int64_t per_thread;                   /* 3 L floats and more for each thread */
} combine;
void cdr__experts_combine(const experts *x, const combine *c);      /* called by every thread of a team */

cdr_status cdr__experts_fwd(const cdr_args *a, const cdr__experts_isa *isa);
cdr_status cdr__experts_bwd(const cdr_args *a, const cdr__experts_isa *isa);
size_t cdr__experts_fwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads);
#endif
