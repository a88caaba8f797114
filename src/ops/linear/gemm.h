/* gemm.h: the one matrix product of the CPU operators, C[m][n] (+)= sum_k A[m][k] B[k][n], F32 accumulation.
 * Used by linear, and by attention and loss for their tiles (internal to ops/: not part of the operator interface).
 *
 *   size_t bytes = cdr__gemm_work_bytes(CDR__GEMM_AVX2, m, n, k, 1);
 *   cdr__gemm(CDR__GEMM_AVX2, &(cdr__gemm_args){ .m = T, .n = N, .k = K,
 *             .a = cdr__rows(CDR_BF16, x, K), .b = cdr__cols(CDR_BF16, w, K),      // y_TN = x_TK w_NK^T
 *             .c = y, .c_dtype = CDR_BF16, .c_pitch = N }, work, n_threads);
 *
 * Bits: an element of C is one chain over ascending k in an F32 accumulator, rounded once at the end; it depends on its
 * row of A, its column of B and the path alone, never on m, n, threads or block sizes. add: C_old + chain, one more
 * F32 addition, after the chain. Per path, a chain step is
 *   BASE          acc = acc + a b          product rounded, then sum rounded                             class "base"
 *   AVX2, AVX512  acc = fma(a, b, acc)                                                                   class "fma"
 *   AVX512_BF16   acc = vdpbf16ps over the pair (2i, 2i + 1); F32 sources are rounded to BF16 when packed class "bf16dot"
 *   AMX           acc = acc + (even + odd) over 32 of k: even and odd are chains from zero, fma over the even and the odd k of the
 *                 32; k is padded with zeros to whole steps; subnormals are zero; F32 sources as above        class "amx"
 * Panels: weights may lie in the path's own layout, AVX2 PANEL16, AVX-512 PANEL64, both BF16 VNNI64, and are then read where they are,
 * but with b_across, which packs from them; the bits are those of rows.
 * n_threads 1 enters no parallel region: it may be called by each thread of one, with its own work. */
#ifndef CDR_OPS_GEMM_H
#define CDR_OPS_GEMM_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__GEMM_BASE, CDR__GEMM_AVX2, CDR__GEMM_AVX512, CDR__GEMM_AVX512_BF16, CDR__GEMM_AMX, CDR__N_GEMM };

/* Element (i, j) is p[i * row + j * col], in elements; row or col is 1. dtype: CDR_F32 or CDR_BF16. */
typedef struct { const void *p; int dtype; int64_t row, col; } cdr__mat;
static inline cdr__mat cdr__rows(int dtype, const void *p, int64_t pitch)      /* stored as it is used, row-major */
{
    cdr__mat m = { p, dtype, pitch, 1 };
    return m;
}
static inline cdr__mat cdr__cols(int dtype, const void *p, int64_t pitch)      /* stored transposed: (i, j) is p[j * pitch + i] */
{
    cdr__mat m = { p, dtype, 1, pitch };
    return m;
}

typedef struct {
    int64_t m, n, k;             /* any of them may be 0; k = 0 gives zeros */
    cdr__mat a, b;               /* A[m][k], B[k][n] */
    void *c; int c_dtype; int64_t c_pitch;       /* C[m][n] row-major, CDR_F32 or CDR_BF16; overlaps neither A nor B */
    bool add;                    /* C += product */
    int b_layout;                /* CDR_ROWS: b as it says. A panel layout (tensor.h): b.p is the panels of a matrix W, b.row and b.col are not
                                  * read; W is [n][k] and B = W^T. Every path reads every layout; the one made for it without packing */
    bool b_across;               /* with panels: W is [k][n] and B = W (the product of the backward, dx = dy W) */
    bool upper;                  /* only C[m][n] with n >= m is wanted: tiles below the diagonal are left out (they keep what was there) */
} cdr__gemm_args;

/* The panels of a weight that the path reads where they are in the product along its rows; with b_across it packs from them. CDR_ROWS: none. */
int cdr__gemm_layout(int path);
/* Scratch that a call of these sizes with at most n_threads threads may use. Monotone: enough for any smaller m, n and k. */
size_t cdr__gemm_work_bytes(int path, int64_t m, int64_t n, int64_t k, int n_threads);
/* work: 64-byte aligned. The machine must have the path's instructions. */
void cdr__gemm(int path, const cdr__gemm_args *g, void *work, int n_threads);

#ifdef __cplusplus
}
#endif
#endif
