/* kernel.h: what the forward and the backward kernel of experts share: sizes, tiles of rows, products with an expert's weights.
 *
 *   experts x = cdr__experts_open(isa, attr, types, ptrs, n_threads);
 *   n = cdr__experts_tiles(&x, r0, r1, list);                         // (expert, up to a tile of rows) of the routed rows r0 .. r1 - 1
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

/* Rows of MXFP4, to panels as cdr__pack makes them: unpack.h. Bytes from row to row and from block to block; the first block has X(0, 0). */
typedef struct {
    const uint8_t *codes, *scales;
    int64_t code_row, code_step, scale_row, scale_step;
    int64_t n_i, n_p;
    uint32_t *dst; int64_t ld;
} cdr__packed;

/* ---- one instruction set ---------------------------------------------------------------------------------------- */
typedef struct {
    const cdr__gemm_isa *gemm, *wide;                                                 /* products of rows with weights; F32 products: (5), (6), adapters of an expert */
    void (*unpack[2])(const cdr__packed *s);                                          /* MXFP4 to panels of gemm, [k_contig]; unpack.h */
    const cdr__situ_rows *situ;
    void (*silu)(const float *gate_F, float *up_F, int64_t F);                        /* ops/swiglu/rows.inc */
    void (*silu_bwd)(const float *dy_F, float *gate_F, float *up_F, int64_t F);
    void (*round[2])(float *x, int64_t n);                                            /* [dtype] to the nearest of it; NULL: F32 */
} cdr__experts_isa;
extern const cdr__experts_isa cdr__experts_base, cdr__experts_avx2, cdr__experts_avx512, cdr__experts_avx512_bf16, cdr__experts_amx;

enum { TILE = 144, LONG_TILE = 288 };    /* rows: multiples of 12, rounded up to mr. Long ones where weights are packed again for each tile */
enum { PACKED_UNITS = 1 << 19 };         /* a larger matrix is never packed as a whole: 2 MiB */

/* ---- where rows come from ------------------------------------------------------------------------------------------ */
/* Operands of one source of rows: the call's own, or those of a rank of the expert group. h: of w1 and w3 (2a) */
typedef struct { const void *x, *p, *perm, *du, *h[2], *dv; } origin;
typedef struct { int32_t source, pair; } route;      /* of a routed row */

/* ---- sizes ------------------------------------------------------------------------------------------------------ */
typedef struct {
    const cdr__experts_isa *isa; const cdr_experts_attr *at;
    cdr_situ_attr situ;
    const cdr_type *t; void *const *ptr;         /* the forward's operands, CDR__EX_X .. */
    int64_t T, L, I, E, A, R, cap;               /* cap: rows of a round */
    int64_t low[3];                              /* columns of h1, h3, v (2a); 0: none */
    int64_t W_in, W_out;                         /* elements of a row on its way back: dx | dh1 | dh3, and y | v */
    int64_t ld_L, ld_I, ld_low[3];               /* cdr__experts_ld */
    bool streams;                                /* matrices are packed piece by piece, for each tile */
    int64_t tile;                                /* rows of one at most */
    int n_threads;
    origin own;
    const origin *from;                          /* by source; NULL: own is the only one */
    const route *routes; int64_t route0;         /* of rows route0 ..; NULL: perm says it */
    const int64_t *groups; int64_t S;            /* first row of (expert, source), [E S + 1]; NULL: offs says it, S = 1 */
    int64_t n_chains;                            /* of an expert's gradients: S, one for each source, merged by the tree; or 1 over all rows */
    bool moves; const int32_t *sources;          /* balanced placement, with gradients of weights: of each expert, only sources [0] .. [1] - 1 */
    int64_t E_home; void *const *slots;          /* experts E_home .. E - 1 have their matrices in slots, by operand - CDR__EX_W1; dense */
} experts;

typedef struct { int64_t expert, first, end; } tile;

/* Where a thread packs a piece of a matrix, and the rows of A where products are of BF16, and makes a block of one that has adapters: its values; scale B; A, packed. */
typedef struct { uint32_t *piece, *a; float *values, *factor; uint32_t *adapter; } cdr__experts_block;
/* B of a product of isa. operand: CDR__EX_W1 .. W2, with their adapters, or CDR__EX_A1 .. B2. whole: packed for one expert at b, else piece by piece.
 * low: its adapter's two factors in the order of the product, or NULL: rows go through low_y, ld_low floats each. */
typedef struct panels {
    const cdr__gemm_isa *isa; int operand; bool transposed, whole; int64_t k, n, units, expert; uint32_t *b; cdr__experts_block block;
    struct panels *low; float *low_y; int64_t ld_low;
} panels;

/* Bytes that are prefetched, line by line: rows of `lines` lines, `pitch` apart. at: lines that were, of n. then: what follows them, or NULL */
typedef struct cdr__fetch { const char *p; int64_t pitch, lines, line, n, at; const struct cdr__fetch *then; } cdr__fetch;
/* C[m][n] = (first ? 0 : C) + A[m][k] B[k][n], k in units. Row i of A, u along k: a[i * a_row + u * a_col]; groups of mr rows a_group apart,
 * panels of B b_ld. padded: C has room for whole panels. fetch: some lines of it after each tile.
 * base_only: without the expert's own adapter, where that is a product beside the base's (low).
 * narrow: B's panels as BF16, widened in wide, kb units of one panel at a time (0: the ISA's for panels that were made) */
typedef struct { int64_t m, k, n; const uint32_t *a; int64_t a_row, a_col, a_group; const uint32_t *b; int64_t b_ld; float *c; int64_t ldc;
                 bool first, padded, a_packed; cdr__fetch *fetch; int64_t some;
                 const uint16_t *narrow; uint32_t *wide; int64_t kb; bool base_only; } cdr__product;
/* Floats between rows of n of scratch: whole panels of any product, and a line more, so that rows do not fall into one set of L1 */
static inline int64_t cdr__experts_ld(const cdr__experts_isa *isa, int64_t n)
{
    const int64_t nr = CDR_MAX(isa->gemm->nr, isa->wide->nr);
    return cdr_ceil_div(n, nr) * nr + 16;
}
static inline int64_t cdr__experts_tile_unit(const cdr__experts_isa *isa) { return isa->gemm->mr <= 12 ? 12 : isa->gemm->mr; }
static inline const uint32_t *cdr__units(const float *x) { return (const uint32_t *)(const void *)x; }

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
cdr__experts_block cdr__experts_block_take(const experts *x, bump *b);       /* one for all panels of a thread */
panels cdr__experts_panels(const experts *x, int operand, bool transposed, const cdr__experts_block *block, bump *b);
/* Rank of the adapters that w1, w3 or w2 (m: 0, 1, 2) is formed with; 0: none */
static inline int64_t cdr__experts_rank(const experts *x, int m) { return cdr__ex_fused(x->t, m) ? x->t[CDR__EX_A1 + 2 * m].n[1] : 0; }

/* ---- rows --------------------------------------------------------------------------------------------------------- */
int64_t cdr__experts_max_tiles(const experts *x, int64_t rows);
int64_t cdr__experts_tile_rows(const experts *x, int64_t rows);                    /* of each tile, where so many are cut evenly; a multiple of mr */
int64_t cdr__experts_cut(const experts *x, int64_t e, int64_t first, int64_t end, tile *list);       /* rows of one expert, evenly; at most rows / tile + 1 */
int64_t cdr__experts_tiles(const experts *x, int64_t r0, int64_t r1, tile *list);
/* Tiles of thread `me`: a run of the list, so that all runs cost about the same. */
void cdr__experts_share(const tile *list, int64_t n, int me, int n_threads, int64_t *first, int64_t *last);
/* Units of k, of units, that go before the next ones, so that m rows of A stay in L2 for all columns: a multiple of kb, or all */
int64_t cdr__experts_block_k(const cdr__gemm_isa *isa, int64_t m, int64_t units);
void cdr__experts_product(const cdr__gemm_isa *isa, const cdr__product *p);
/* Expert e's matrix as B, A in rows of F32, a_row apart. The product's k, n, b, a_col, a_group and padded are filled in.
 * a_packed: A is that of the call before, by a panels of the same k and block. */
void cdr__experts_mul(const experts *x, panels *w, int64_t e, cdr__product p);
static inline route route_of(const experts *x, int64_t r)
{
    const route q = x->routes ? x->routes[r - x->route0] : (route){ 0, ((const int32_t *)x->own.perm)[r] };
    assert(q.source >= 0 && q.source < x->S && q.pair >= 0 && q.pair < x->R);
    return q;
}
static inline const origin *origin_of(const experts *x, int64_t source) { return x->from ? &x->from[source] : &x->own; }
static inline float weight_of(const experts *x, route q)
{
    return ((const float *)origin_of(x, q.source)->p)[q.pair / x->A * cdr_type_pitch(&x->t[CDR__EX_P]) + q.pair % x->A];
}
/* First row of expert e, of its rows from a source; s = S: of the next expert */
static inline int64_t group_offset(const experts *x, int64_t e, int64_t s)
{
    return x->groups ? x->groups[e * x->S + s] : ((const int32_t *)x->ptr[CDR__EX_OFFS])[e + s];
}
static inline int64_t row_offset(const experts *x, int64_t e) { return group_offset(x, e, 0); }
/* Rows of one of a source's operands, of type t, of the tile's tokens, as F32, ld apart. */
typedef enum { CDR__ROWS_X, CDR__ROWS_DU, CDR__ROWS_H1, CDR__ROWS_H3, CDR__ROWS_DV } cdr__rows_of;
void cdr__experts_gather(const experts *x, cdr__rows_of what, const cdr_type *t, const tile *k, float *dst, int64_t ld);
/* gate | up of row r into gu, where there is one, and rounded to the activations' dtype in place (1) */
void cdr__experts_round_gu(const experts *x, void *gu, const cdr_type *t, int64_t r, float *gate_I, float *up_I);

/* Sums of each token's rows (2), (2a), (4), (6a). A row has parts, n columns from column `at` on, each of which is summed to its output;
 * out NULL: it is left. acc: F32 [T][columns of a row], needed where a round is not the only one. */
enum { CDR__EX_PARTS = 3 };
typedef struct { int64_t at, n; void *out; const cdr_type *out_t; bool add; } cdr__part;
typedef struct {
    void *rows; cdr_type row_t; int64_t r0, r1;          /* the round's rows; row r lies at r - r0 */
    bool first, last; float *acc;
    cdr__part part[CDR__EX_PARTS];
    float *scratch;                                       /* 3 floats a column for each thread */
    const void *const *at;                                /* where each row lies; NULL: in rows */
} combine;
void cdr__experts_parts_out(const experts *x, void *const *out, const cdr_type *out_t, int i_v, cdr__part *part);    /* u and, at output i_v, v */
void cdr__experts_combine(const experts *x, const combine *c);      /* called by every thread of a team */

/* ---- forward.c: (1), (2a) and y_r of (2), for the exchange too -------------------------------------------------------- */
typedef struct { char *rows; int64_t r0; void *gu; const cdr_type *gu_t; } cdr__fwd_rows;     /* y_r | v_r at rows, W_out elements each, from row r0 on */
size_t cdr__experts_fwd_thread_bytes(const experts *x);
/* Called by every thread of a team; each takes its share of the tiles. */
void cdr__experts_fwd_tiles(const experts *x, char *threads, const tile *list, int64_t n, const cdr__fwd_rows *y);

cdr_status cdr__experts_fwd(const cdr_args *a, const cdr__experts_isa *isa);
cdr_status cdr__experts_bwd(const cdr_args *a, const cdr__experts_isa *isa);
size_t cdr__experts_fwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads);
/* Rows of a kernel table, best first: of the numeric classes CLASS "/amx" and so on; RUN(isa): .work_bytes and .run; REJECT: of products of BF16. */
#define CDR__EXPERTS_ROWS(CLASS, REJECT, RUN) \
    { .name = "amx", .bits = CLASS "/amx", .needs = CDR_ISA_AMX | CDR_ISA_AVX512 | CDR_ISA_AVX2, .reject = REJECT, RUN(amx) }, \
    { .name = "avx512_bf16", .bits = CLASS "/bf16dot", .needs = CDR_ISA_AVX512_BF16 | CDR_ISA_AVX512 | CDR_ISA_AVX2, .reject = REJECT, RUN(avx512_bf16) }, \
    { .name = "avx512", .bits = CLASS "/fma", .needs = CDR_ISA_AVX512 | CDR_ISA_AVX2, RUN(avx512) }, \
    { .name = "avx2", .bits = CLASS "/fma", .needs = CDR_ISA_AVX2, RUN(avx2) }, \
    { .name = "base", .bits = CLASS "/base", RUN(base) }, \
    { .name = NULL }

#endif
