/* unpack.h: MXFP4 weights as the panels of a product, made straight from their codes: 32 elements of a row in 16 bytes (low nibble first)
 * and the byte of their scale (tensor.h), code times 2^(s - 127). The same panels as pack_b of the matrix product would make from the
 * converted values (ops/linear/gemm_isa.h), to the bit: a code has two significant bits, so the F32 product with the scale is exact, and
 * BF16 holds it.
 *
 *   isa->unpack[k_contig](&(cdr__pack){ .src = row, .pitch = cols, .n_i = 64, .n_p = 256, .dst = piece, .ld = nr * 256 });
 *
 * k_contig: a column of B is a row of the matrix (forward); else a row of B is (backward). What is contiguous, n_p or n_i, is whole blocks. */
#ifndef CDR_OPS_EXPERTS_UNPACK_H
#define CDR_OPS_EXPERTS_UNPACK_H

#include "ops/linear/gemm_isa.h"

enum { CDR__U_BLOCK = 32, CDR__U_CODES = 16, CDR__U_BYTES = 17 };
#define CDR__U_TABLE 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6

/* 2^(s - 127), NaN for 255 */
CDR__INLINE float cdr__u_scale(uint8_t s)
{
    const uint32_t u = s == 0 ? 0x00400000u : s == 255 ? 0x7fc00000u : (uint32_t)s << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* First byte of the block that has element `at` of row i */
CDR__INLINE const uint8_t *cdr__u_block(const cdr__pack *s, int64_t i, int64_t at)
{
    return (const uint8_t *)s->src + (i * s->pitch + at) / CDR__U_BLOCK * CDR__U_BYTES;
}

CDR__INLINE float cdr__u_value(const uint8_t *block, int64_t at)
{
    static const float value[16] = { CDR__U_TABLE };
    return value[block[at % CDR__U_BLOCK / 2] >> 4 * (at & 1) & 15] * cdr__u_scale(block[CDR__U_CODES]);
}

/* One element after the other: for any CPU, and for columns that a vector does not fill. Columns i0 .. i1 - 1 of one panel */
CDR__INLINE void cdr__unpack_part(int pair, int nr, bool k_contig, const cdr__pack *s, int64_t i0, int64_t i1)
{
    for (int64_t i = i0; i < i1; i++) {
        uint32_t *d = s->dst + i / nr * s->ld + i % nr;
        for (int64_t p = 0; p < s->n_p; p += pair) {
            uint32_t unit = 0;
            for (int64_t h = 0; h < pair && p + h < s->n_p && i < s->n_i; h++) {
                const uint8_t *block = k_contig ? cdr__u_block(s, i, p + h) : cdr__u_block(s, p + h, i);
                const uint32_t u = cdr__bits(cdr__u_value(block, k_contig ? p + h : i));
                unit |= pair == 1 ? u : u >> 16 << 16 * h;
            }
            d[p / pair * nr] = unit;
        }
    }
}
#endif
