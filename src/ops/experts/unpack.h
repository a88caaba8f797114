/* unpack.h: MXFP4 weights as the panels of a product, made straight from their codes: 32 elements of a row in 16 bytes (low nibble first)
 * and the byte of their scale, code times 2^(s - 127). Codes and scales are side by side, or two arrays as in a checkpoint (tensor.h):
 * where the next block and the next row of each is are figures. The same panels as pack_b of the matrix product would make from the
 * converted values (ops/linear/gemm_isa.h), to the bit: a code has two significant bits, so the F32 product with the scale is exact, and
 * BF16 holds it.
 *
 *   isa->unpack[k_contig](&(cdr__packed){ .codes = c, .scales = s, .n_i = 64, .n_p = 256, .dst = piece, .ld = nr * 256, ... });
 *
 * k_contig: a column of B is a row of the matrix (forward); else a row of B is (backward). What is contiguous, n_p or n_i, is whole blocks. */
#ifndef CDR_OPS_EXPERTS_UNPACK_H
#define CDR_OPS_EXPERTS_UNPACK_H

#include "ops/experts/kernel.h"

enum { CDR__U_BLOCK = 32 };
#define CDR__U_TABLE 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6

/* 2^(s - 127), NaN for 255 */
CDR__INLINE float cdr__u_scale(uint8_t s)
{
    const uint32_t u = s == 0 ? 0x00400000u : s == 255 ? 0x7fc00000u : (uint32_t)s << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Of the block that has element `at` of row i */
CDR__INLINE const uint8_t *cdr__u_codes(const cdr__packed *s, int64_t i, int64_t at) { return s->codes + i * s->code_row + at / CDR__U_BLOCK * s->code_step; }
CDR__INLINE const uint8_t *cdr__u_at_scale(const cdr__packed *s, int64_t i, int64_t at) { return s->scales + i * s->scale_row + at / CDR__U_BLOCK * s->scale_step; }

CDR__INLINE float cdr__u_value(const cdr__packed *s, int64_t i, int64_t at)
{
    static const float value[16] = { CDR__U_TABLE };
    return value[cdr__u_codes(s, i, at)[at % CDR__U_BLOCK / 2] >> 4 * (at & 1) & 15] * cdr__u_scale(*cdr__u_at_scale(s, i, at));
}

/* One element after the other: for any CPU, and for columns that a vector does not fill. Columns i0 .. i1 - 1 of one panel */
CDR__INLINE void cdr__unpack_part(int pair, int nr, bool k_contig, const cdr__packed *s, int64_t i0, int64_t i1)
{
    for (int64_t i = i0; i < i1; i++) {
        uint32_t *d = s->dst + i / nr * s->ld + i % nr;
        for (int64_t p = 0; p < s->n_p; p += pair) {
            uint32_t unit = 0;
            for (int64_t h = 0; h < pair && p + h < s->n_p && i < s->n_i; h++) {
                const uint32_t u = cdr__bits(k_contig ? cdr__u_value(s, i, p + h) : cdr__u_value(s, p + h, i));
                unit |= pair == 1 ? u : u >> 16 << 16 * h;
            }
            d[p / pair * nr] = unit;
        }
    }
}
#endif
