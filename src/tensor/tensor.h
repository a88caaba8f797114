/* tensor.h: number formats, layouts, shapes and conversions. A new number format is one row of the dtype table
 * and its conversions; nothing outside of this folder asks "which dtype" except through the table.
 *
 *   cdr_type t = cdr_type_2d(CDR_BF16, T, D);
 *   size_t bytes = cdr_type_bytes(&t);
 *   cdr_to_f32(CDR_BF16, src, dst, n);          // n elements, dense
 */
#ifndef CDR_TENSOR_H
#define CDR_TENSOR_H

#include "base/base.h"
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_MAX_DIM = 4 };

typedef enum {
    CDR_F32, CDR_BF16, CDR_F16, CDR_F64, CDR_U8, CDR_I32, CDR_I64, CDR_F8_E4M3, CDR_E8M0, CDR_MXFP4,
    CDR_N_DTYPES
} cdr_dtype;

/* A format is blocks: block_elems elements take block_bytes bytes (MXFP4: 32 elements of a row in 16 code bytes and their scale's byte:
 * a row, a matrix of a stack, a rank's part are bytes in a row of their own, as with any other format). Conversions take whole blocks. */
typedef struct {
    const char *name;                 /* "bf16" */
    const char *safetensors;          /* "BF16" */
    int block_elems, block_bytes;
    bool floating;
    void (*to_f32)(const void *src, float *dst, int64_t n);       /* NULL: not a number that converts (I64, F64 do, rounding) */
    void (*from_f32)(const float *src, void *dst, int64_t n);     /* round to nearest even */
} cdr_dtype_info;
const cdr_dtype_info *cdr_dtype_row(int dtype);
int cdr_dtype_by_name(const char *name);                          /* either name, any case; -1 */
void cdr_to_f32(int dtype, const void *src, float *dst, int64_t n);
void cdr_from_f32(int dtype, const float *src, void *dst, int64_t n);
void cdr_to_f64(int dtype, const void *src, double *dst, int64_t n);
void cdr_from_f64(int dtype, const double *src, void *dst, int64_t n);

/* MXFP4 (OCP MX 1.0): code nibbles E2M1, low nibble first; scale byte E8M0 = 2^(s-127), one for 32 elements of a row. As in a checkpoint,
 * where codes and scales are two tensors; CDR_MXFP4 has them side by side. */
void cdr_mxfp4_decode(const uint8_t *codes, const uint8_t *scales, float *dst, int64_t n);
void cdr_mxfp4_encode(const float *src, uint8_t *codes, uint8_t *scales, int64_t n);
/* With scales that are given (2 to 252): what was decoded with them gets its codes back, byte for byte. */
void cdr_mxfp4_encode_as(const float *src, const uint8_t *scales, uint8_t *codes, int64_t n);

/* How elements lie in memory. ROWS: row-major with a pitch. The others are panels of `rows` rows of a matrix [n][k], which a product
 * reads without packing: element (i, p) at [i / rows][p / pair][i % rows][p % pair]. What pads the last panel, and the last pair of an odd
 * k, is zero. A stack [e][n][k] is one such matrix after the other, each padded by itself.
 *   VNNI64   [n/64][k/2][64][2]   BF16, for products of BF16 pairs       PANEL16  [n/16][k][16]   BF16 or F32, for AVX2
 *                                                                        PANEL64  [n/64][k][64]   BF16 or F32, for AVX-512 in F32
 * MAPPED: a stack [e][n][k] of MXFP4 whose bytes lie where somebody else keeps them, a mapped file; the value itself is a table of e
 * addresses (cdr_mapped). It is only read. */
typedef enum { CDR_ROWS, CDR_VNNI64, CDR_PANEL16, CDR_PANEL64, CDR_MAPPED, CDR_N_LAYOUTS } cdr_layout;
typedef struct { const char *name; const char *what; int rows, pair; } cdr_layout_info;      /* rows 0: no panels */
const cdr_layout_info *cdr_layout_row(int layout);
/* A packed matrix as checkpoints have it, two tensors: codes [n][k / 2] and scales [n][k / 32]. Neither need be aligned. */
typedef struct { const uint8_t *codes, *scales; } cdr_mapped;

typedef struct {
    uint8_t dtype, layout, n_dim;
    int64_t n[CDR_MAX_DIM];           /* capacity, local to the rank */
    int64_t pitch;                    /* elements between rows (all but the last axis, flattened); 0: dense */
} cdr_type;

cdr_type cdr_type_1d(int dtype, int64_t n);
cdr_type cdr_type_2d(int dtype, int64_t rows, int64_t cols);
cdr_type cdr_type_3d(int dtype, int64_t a, int64_t b, int64_t c);
int64_t cdr_type_elems(const cdr_type *t);
int64_t cdr_type_cols(const cdr_type *t);          /* last axis; 1 for n_dim = 0 */
int64_t cdr_type_rows(const cdr_type *t);          /* product of the others */
int64_t cdr_type_pitch(const cdr_type *t);         /* elements between rows, never 0 */
size_t cdr_type_bytes(const cdr_type *t);          /* extent in memory, pitch included, last row without its tail; panels with their padding */
size_t cdr_mapped_bytes(const cdr_type *t);        /* of all matrices that a mapped stack has the addresses of; 0: it is not mapped */
/* Rows first .. first + n - 1 of a mapped stack as rows of CDR_MXFP4. Byte copies. */
void cdr_mapped_get(const cdr_type *t, int64_t first, int64_t n, const void *table, void *rows);
/* Panels. takes: can a type (its dtype, axes and pitch; not its layout) lie so? Rows: always. */
bool cdr_layout_takes(int layout, const cdr_type *t);
size_t cdr_matrix_bytes(const cdr_type *t);        /* of one matrix of a stack in t's layout, padding included; dense where it is rows */
/* t lies in panels: its rows first .. first + n - 1 (all but the last axis, flattened), from or to dense rows. put fills in what pads a
 * matrix with the matrix's last row, so that all bytes are written once all rows are. Byte copies: a round trip is exact. */
void cdr_panels_put(const cdr_type *t, int64_t first, int64_t n, const void *rows, void *panels);
void cdr_panels_get(const cdr_type *t, int64_t first, int64_t n, const void *panels, void *rows);
bool cdr_type_same(const cdr_type *a, const cdr_type *b);     /* dtype, layout and shape; not pitch */
void cdr_type_print(char out[64], const cdr_type *t);         /* "bf16[4096,256]" */
int64_t cdr_dtype_bytes(int dtype, int64_t n);                /* bytes of n elements, n a multiple of the block */

static inline float cdr_bf16_to_f32(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Round to nearest even; NaN stays NaN (quiet), infinities and subnormals survive. */
static inline uint16_t cdr_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#ifdef __cplusplus
}
#endif
#endif
