/* cpu_avx2.c: experts' rows compiled for AVX2, the same bits as base, products of AVX2, and packed weights as their panels. */
#include "ops/experts/rows.inc"
#include "ops/experts/unpack.h"
#include <immintrin.h>

enum { NR = 16 };

/* ---- MXFP4 to panels of 16 columns -------------------------------------------------------------------------------------- */
/* The 16 codes' values as BF16, first all low bytes, then all high bytes. */
#define LOW_BYTES 0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64
#define HIGH_BYTES 0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64

/* 16 nibbles as F32, times their scales */
CDR__INLINE void store16(float *d, __m128i nibbles, __m256 scale0, __m256 scale1)
{
    const __m128i low = _mm_shuffle_epi8(_mm_setr_epi8(LOW_BYTES), nibbles), high = _mm_shuffle_epi8(_mm_setr_epi8(HIGH_BYTES), nibbles);
    const __m256i v0 = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpacklo_epi8(low, high)), 16);
    const __m256i v1 = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpackhi_epi8(low, high)), 16);
    _mm256_store_ps(d, _mm256_mul_ps(_mm256_castsi256_ps(v0), scale0));
    _mm256_store_ps(d + 8, _mm256_mul_ps(_mm256_castsi256_ps(v1), scale1));
}

/* y[b] byte i = x[i] byte b */
CDR__INLINE void transpose16(__m128i x[16], __m128i y[16])
{
    for (int i = 0; i < 8; i++) {
        y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
        y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
    }
    for (int i = 0; i < 8; i++) {
        x[2 * i] = _mm_unpacklo_epi8(y[i], y[i + 8]);
        x[2 * i + 1] = _mm_unpackhi_epi8(y[i], y[i + 8]);
    }
    for (int i = 0; i < 8; i++) {
        y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
        y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
    }
    for (int i = 0; i < 8; i++) {
        x[2 * i] = _mm_unpacklo_epi8(y[i], y[i + 8]);
        x[2 * i + 1] = _mm_unpackhi_epi8(y[i], y[i + 8]);
    }
    for (int i = 0; i < 16; i++) y[i] = x[i];
}

/* 16 columns of B, which are rows of the matrix: their code bytes are transposed, so that a vector has two elements of each column. */
CDR__INLINE void unpack_rows16(const cdr__packed *s, int64_t i, float *d)
{
    const __m128i low4 = _mm_set1_epi8(15);
    const uint8_t *x = cdr__u_codes(s, i, 0), *y = cdr__u_at_scale(s, i, 0);
    for (int64_t p = 0; p < s->n_p; p += CDR__U_BLOCK, x += s->code_step, y += s->scale_step) {
        __m128i row[16], byte[16];
        _Alignas(32) float scale[16];
        for (int l = 0; l < 16; l++) {
            row[l] = _mm_loadu_si128((const __m128i *)(const void *)(x + l * s->code_row));
            scale[l] = cdr__u_scale(y[l * s->scale_row]);
        }
        transpose16(row, byte);
        const __m256 scale0 = _mm256_load_ps(scale), scale1 = _mm256_load_ps(scale + 8);
        for (int b = 0; b < 16; b++, d += 2 * NR) {
            store16(d, _mm_and_si128(byte[b], low4), scale0, scale1);
            store16(d + NR, _mm_and_si128(_mm_srli_epi16(byte[b], 4), low4), scale0, scale1);
        }
    }
}

static void unpack_k(const cdr__packed *s)
{
    for (int64_t i = 0; i < s->n_i; i += NR) {
        if (s->n_i - i >= NR) unpack_rows16(s, i, (float *)(void *)(s->dst + i / NR * s->ld));
        else cdr__unpack_part(1, NR, true, s, i, i + NR);
    }
}

/* A block is 32 columns of one row of B: two panels */
static void unpack_cols(const cdr__packed *s)
{
    const __m128i low4 = _mm_set1_epi8(15);
    for (int64_t p = 0; p < s->n_p; p++)
        for (int64_t i = 0; i < s->n_i; i += CDR__U_BLOCK) {
            const __m256 scale = _mm256_set1_ps(cdr__u_scale(*cdr__u_at_scale(s, p, i)));
            const __m128i byte = _mm_loadu_si128((const __m128i *)(const void *)cdr__u_codes(s, p, i));
            const __m128i even = _mm_and_si128(byte, low4), odd = _mm_and_si128(_mm_srli_epi16(byte, 4), low4);
            float *d = (float *)(void *)(s->dst + i / NR * s->ld + p * NR);
            store16(d, _mm_unpacklo_epi8(even, odd), scale, scale);
            store16(d + s->ld, _mm_unpackhi_epi8(even, odd), scale, scale);
        }
}

const cdr__experts_isa cdr__experts_avx2 = {
    .gemm = &cdr__gemm_avx2, .wide = &cdr__gemm_avx2, .unpack = { unpack_cols, unpack_k },
    .situ = &cdr__situ_rows_avx2, .silu = forward, .silu_bwd = backward, .round = { NULL, round_bf16 }
};
