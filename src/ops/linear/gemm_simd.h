/* gemm_simd.h: packing with vectors, for the ISA files of the matrix product; each compiles it with its own flags.
 * Same bits as the bodies of gemm_isa.h. With AVX-512 every edge is a mask; with AVX2 the edges go through those bodies. */
#ifndef CDR_OPS_GEMM_SIMD_H
#define CDR_OPS_GEMM_SIMD_H

#include "ops/linear/gemm_isa.h"
#include <immintrin.h>

/* y[l][i] = x[i][l] for 8 x 8 lanes of 32 bits */
CDR__INLINE void cdr__transpose8(const __m256 x[8], __m256 y[8])
{
    __m256 t[8], s[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        s[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        s[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        s[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        s[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        y[i] = _mm256_permute2f128_ps(s[i], s[i + 4], 0x20);
        y[i + 4] = _mm256_permute2f128_ps(s[i], s[i + 4], 0x31);
    }
}

#ifdef __AVX512BW__
/* The first n lanes, at most `of` (up to 16); none where n is not positive. */
CDR__INLINE __mmask16 cdr__first_lanes(int64_t n, int of)
{
    const uint32_t bits = n <= 0 ? 0 : n < of ? (1u << n) - 1 : (1u << of) - 1;
    return (__mmask16)bits;
}

/* BF16 in the upper half of each lane, the lower half zero; F32 is rounded as cdr_f32_to_bf16 does. */
CDR__INLINE __m512i cdr__upper_bf16(int dtype, const void *p, int64_t at, __mmask16 mask)
{
    if (dtype == CDR_BF16) return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + at)), 16);
    const __m512i u = _mm512_maskz_loadu_epi32(mask, (const float *)p + at);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i even = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmpgt_epu32_mask(_mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f800000));
    const __m512i r = _mm512_mask_or_epi32(even, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u));
}

/* 16 units side by side: elements at .. at + 15 of row 2u and, where pair is 2, of the row next behind it, if there is one. */
CDR__INLINE __m512i cdr__units_across(int dtype, int pair, const void *p, int64_t at, int64_t next, __mmask16 mask)
{
    if (pair == 1 && dtype == CDR_F32) return _mm512_maskz_loadu_epi32(mask, (const float *)p + at);
    const __m512i first = cdr__upper_bf16(dtype, p, at, mask);
    if (pair == 1) return first;
    const __m512i low = _mm512_srli_epi32(first, 16);
    return next ? _mm512_or_si512(low, cdr__upper_bf16(dtype, p, at + next, mask)) : low;
}

/* 8 units along k: elements at .. at + 8 pair - 1, of which the first n_left exist (more is the same as all). */
CDR__INLINE __m256i cdr__units_along(int dtype, int pair, const void *p, int64_t at, int64_t n_left)
{
    const __mmask16 mask = cdr__first_lanes(n_left, 8 * pair);
    if (pair == 1 && dtype == CDR_F32) return _mm256_maskz_loadu_epi32((__mmask8)mask, (const float *)p + at);
    if (pair == 2 && dtype == CDR_BF16) return _mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + at);
    const __m512i upper = cdr__upper_bf16(dtype, p, at, mask);
    return pair == 1 ? _mm512_castsi512_si256(upper) : _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16));
}

CDR__INLINE void cdr__pack_a_rows_avx512(int dtype, int pair, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t n_u = (s->n_p + pair - 1) / pair;
    for (int64_t i = 0; i < s->n_i; i++)
        for (int64_t u = 0; u < n_u; u += 8) {
            const __mmask8 mask = (__mmask8)cdr__first_lanes(n_u - u, 8);
            _mm256_mask_storeu_epi32(s->dst + i * s->ld + u, mask, cdr__units_along(dtype, pair, s->src, i * s->pitch + u * pair, s->n_p - u * pair));
        }
}

CDR__INLINE void cdr__pack_a_panels_avx512(int dtype, int pair, int mr, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t n_u = (s->n_p + pair - 1) / pair;
    for (int64_t u0 = 0; u0 < n_u; u0 += CDR__PACK_UNITS)
        for (int64_t i = 0; i < s->n_i; i += mr) {
            const __mmask16 mask = cdr__first_lanes(s->n_i - i, mr);
            for (int64_t u = u0; u < CDR_MIN(u0 + CDR__PACK_UNITS, n_u); u++) {
                const __m512i x = cdr__units_across(dtype, pair, s->src, i + pair * u * s->pitch, pair * u + 1 < s->n_p ? s->pitch : 0, mask);
                _mm512_mask_storeu_epi32(s->dst + i * s->ld + u * mr, mask, x);
            }
        }
}

/* Units u0 .. u1 - 1 of the panel of columns i0 .. */
CDR__INLINE void cdr__pack_b_part_avx512(int dtype, int pair, int nr, bool k_contig, const cdr__pack *s, int64_t i0, int64_t u0, int64_t u1)
{
    uint32_t *d = s->dst + i0 / nr * s->ld;
    if (!k_contig) {
        for (int64_t u = u0; u < u1; u++)
            for (int64_t i = 0; i < nr; i += 16) {
                const int64_t left = s->n_i - i0 - i;
                const __mmask16 mask = cdr__first_lanes(left, 16);
                const int64_t next = pair * u + 1 < s->n_p ? s->pitch : 0;
                _mm512_store_si512(d + u * nr + i, cdr__units_across(dtype, pair, s->src, i0 + i + pair * u * s->pitch, next, mask));
            }
        return;
    }
    for (int64_t u = u0; u < u1; u += 8)
        for (int64_t i = 0; i < nr; i += 8) {
            __m256 x[8], y[8];
            for (int64_t l = 0; l < 8; l++) {
                const bool there = i0 + i + l < s->n_i;
                x[l] = there ? _mm256_castsi256_ps(cdr__units_along(dtype, pair, s->src, (i0 + i + l) * s->pitch + u * pair, s->n_p - u * pair))
                             : _mm256_setzero_ps();
            }
            cdr__transpose8(x, y);
            for (int64_t l = 0; l < CDR_MIN(u1 - u, 8); l++) _mm256_store_ps((float *)(void *)(d + (u + l) * nr + i), y[l]);
        }
}

CDR__INLINE void cdr__pack_b_avx512(int dtype, int pair, int nr, bool k_contig, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t n_u = (s->n_p + pair - 1) / pair;
    const int64_t block = k_contig ? CDR_MAX(n_u, 1) : CDR__PACK_UNITS;
    for (int64_t u = 0; u < n_u; u += block)
        for (int64_t i = 0; i < s->n_i; i += nr) cdr__pack_b_part_avx512(dtype, pair, nr, k_contig, s, i, u, CDR_MIN(u + block, n_u));
}

/* From VNNI64 panels across: src is word (0, j) of a panel of 64 rows of W, whose rows are k here: words [j / 2][64] of W(k, j even | odd).
 * 8 units (k pairs) of 16 columns at a time: each word's halves are sorted by column, then transposed. */
CDR__INLINE void cdr__pack_across_avx512(const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t n_u = (s->n_p + 1) / 2, nr = s->pitch;
    const uint32_t *src = (const uint32_t *)s->src;
    const __m512i by_column = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i alternate = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t i = 0; i < nr; i += 16)
        for (int64_t u = 0; u < n_u; u += 8) {
            __m256 even[8], odd[8], x[8], y[8];
            for (int64_t l = 0; l < 8; l++) {
                const int64_t c = i + 2 * l;             /* a column that is not there is padding, or behind the matrix */
                const __m512i w = c < s->n_i ? _mm512_permutexvar_epi16(by_column, _mm512_loadu_si512(src + c / 2 * nr + 2 * u)) : _mm512_setzero_si512();
                even[l] = _mm256_castsi256_ps(_mm512_castsi512_si256(w));
                odd[l] = _mm256_castsi256_ps(_mm512_extracti64x4_epi64(w, 1));
            }
            cdr__transpose8(even, x);
            cdr__transpose8(odd, y);
            for (int64_t l = 0; l < CDR_MIN(n_u - u, 8); l++) {
                const __m512i a = _mm512_castsi256_si512(_mm256_castps_si256(x[l])), b = _mm512_castsi256_si512(_mm256_castps_si256(y[l]));
                _mm512_store_si512(s->dst + (u + l) * nr + i, _mm512_permutex2var_epi32(a, alternate, b));
            }
        }
}
#endif
#endif
