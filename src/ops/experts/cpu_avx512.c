/* cpu_avx512.c: experts with AVX-512: rows as in the others, products in F32 and of BF16 pairs, and packed weights as their panels. */
#include "ops/experts/rows.inc"
#include "ops/experts/unpack.h"
#include <immintrin.h>

/* ---- MXFP4 to panels ------------------------------------------------------------------------------------------------------ */
CDR__INLINE __m512 values(void)
{
    static const float table[16] = { CDR__U_TABLE };
    return _mm512_loadu_ps(table);
}

/* Where an element has two halves, BF16 of the first below that of the second; both are exact. */
CDR__INLINE __m512i pair_of(__m512 first, __m512 second)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(first), 16), _mm512_castps_si512(second));
}

/* word[w] lane i: word w of x[i]'s 16 bytes, x step apart */
CDR__INLINE void words16(const uint8_t *x, int64_t step, __m512i word[4])
{
    __m512i row[4], half[4];
    for (int r = 0; r < 4; r++) {        /* rows r, r + 4, r + 8, r + 12 */
        const uint8_t *y = x + r * step;
        row[r] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)y));
        row[r] = _mm512_inserti32x4(row[r], _mm_loadu_si128((const __m128i *)(const void *)(y + 4 * step)), 1);
        row[r] = _mm512_inserti32x4(row[r], _mm_loadu_si128((const __m128i *)(const void *)(y + 8 * step)), 2);
        row[r] = _mm512_inserti32x4(row[r], _mm_loadu_si128((const __m128i *)(const void *)(y + 12 * step)), 3);
    }
    half[0] = _mm512_unpacklo_epi32(row[0], row[1]);
    half[1] = _mm512_unpackhi_epi32(row[0], row[1]);
    half[2] = _mm512_unpacklo_epi32(row[2], row[3]);
    half[3] = _mm512_unpackhi_epi32(row[2], row[3]);
    word[0] = _mm512_unpacklo_epi64(half[0], half[2]);
    word[1] = _mm512_unpackhi_epi64(half[0], half[2]);
    word[2] = _mm512_unpacklo_epi64(half[1], half[3]);
    word[3] = _mm512_unpackhi_epi64(half[1], half[3]);
}

CDR__INLINE __m512 scales16(const uint8_t *x, int64_t step)
{
    _Alignas(64) float scale[16];
    for (int l = 0; l < 16; l++) scale[l] = cdr__u_scale(x[l * step]);
    return _mm512_load_ps(scale);
}

/* 16 columns of B, which are rows of the matrix; d: their place in the panel's first unit */
CDR__INLINE void unpack_rows16(int pair, int nr, const cdr__packed *s, int64_t i, uint32_t *d)
{
    const __m512 table = values();
    const uint8_t *x = cdr__u_codes(s, i, 0), *y = cdr__u_at_scale(s, i, 0);
    for (int64_t p = 0; p < s->n_p; p += CDR__U_BLOCK, x += s->code_step, y += s->scale_step) {
        const __m512 scale = scales16(y, s->scale_row);
        __m512i word[4];
        words16(x, s->code_row, word);
        for (int w = 0; w < 4; w++)
            for (int n = 0; n < 8; n += 2, word[w] = _mm512_srli_epi32(word[w], 8)) {
                const __m512 first = _mm512_mul_ps(_mm512_permutexvar_ps(word[w], table), scale);
                const __m512 second = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(word[w], 4), table), scale);
                if (pair == 2) _mm512_store_si512(d, pair_of(first, second));
                else {
                    _mm512_store_ps(d, first);
                    _mm512_store_ps(d + nr, second);
                }
                d += 2 / pair * nr;
            }
    }
}

CDR__INLINE void unpack_k(int pair, int nr, const cdr__packed *s)
{
    for (int64_t i = 0; i < s->n_i; i += 16) {
        if (s->n_i - i >= 16) unpack_rows16(pair, nr, s, i, s->dst + i / nr * s->ld + i % nr);
        else cdr__unpack_part(pair, nr, true, s, i, i + 16);
    }
    for (int64_t i = (s->n_i + 15) / 16 * 16; i % nr != 0; i += 16) cdr__unpack_part(pair, nr, true, s, i, i + 16);
}

/* 16 columns of row p of B: half a block */
CDR__INLINE __m512 row16(const cdr__packed *s, int64_t p, int64_t i, __m512i words)
{
    const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i codes = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)cdr__u_codes(s, p, i)));
    const __m512i nibble = _mm512_srlv_epi32(_mm512_permutexvar_epi32(words, codes), shift);
    return _mm512_mul_ps(_mm512_permutexvar_ps(nibble, values()), _mm512_set1_ps(cdr__u_scale(*cdr__u_at_scale(s, p, i))));
}

CDR__INLINE void unpack_cols(int pair, int nr, const cdr__packed *s)
{
    const __m512i words = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    for (int64_t p = 0; p < s->n_p; p += pair)
        for (int64_t i = 0; i < cdr_ceil_div(s->n_i, nr) * nr; i += 16) {
            const __m512i half = _mm512_add_epi32(words, _mm512_set1_epi32(i % CDR__U_BLOCK == 0 ? 0 : 2));
            __m512 first = _mm512_setzero_ps(), second = first;
            if (i < s->n_i) first = row16(s, p, i, half);
            if (i < s->n_i && pair == 2 && p + 1 < s->n_p) second = row16(s, p + 1, i, half);
            uint32_t *d = s->dst + i / nr * s->ld + p / pair * nr + i % nr;
            if (pair == 2) _mm512_store_si512(d, pair_of(first, second));
            else _mm512_store_ps(d, first);
        }
}

enum { NR = 64 };
static void unpack_k_f32(const cdr__packed *s) { unpack_k(1, NR, s); }
static void unpack_cols_f32(const cdr__packed *s) { unpack_cols(1, NR, s); }
static void unpack_k_pairs(const cdr__packed *s) { unpack_k(2, NR, s); }
static void unpack_cols_pairs(const cdr__packed *s) { unpack_cols(2, NR, s); }

#define ROWS .situ = &cdr__situ_rows_avx2, .silu = forward, .silu_bwd = backward, .round = { NULL, round_bf16 }
const cdr__experts_isa cdr__experts_avx512 = {
    .gemm = &cdr__gemm_avx512, .wide = &cdr__gemm_avx512, .unpack = { unpack_cols_f32, unpack_k_f32 }, ROWS
};
const cdr__experts_isa cdr__experts_avx512_bf16 = {
    .gemm = &cdr__gemm_avx512_bf16, .wide = &cdr__gemm_avx512, .unpack = { unpack_cols_pairs, unpack_k_pairs }, ROWS
};
const cdr__experts_isa cdr__experts_amx = {
    .gemm = &cdr__gemm_amx, .wide = &cdr__gemm_avx512, .unpack = { unpack_cols_pairs, unpack_k_pairs }, ROWS
};
