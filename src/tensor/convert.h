/* convert.h: the loops between F32 and the narrow formats, compiled once for any x86-64 (dtype.c) and once for AVX2
 * (dtype_avx2.c): the same source, the same bits. What an element becomes depends on nothing but that element.
 *
 *   const cdr__convert c = CDR__CONVERT_ROW;        // this translation unit's instruction set
 *   c.bf16_from_f32(src, dst, n);
 */
#ifndef CDR_TENSOR_CONVERT_H
#define CDR_TENSOR_CONVERT_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void cdr__widen(const void *src, float *dst, int64_t n);
typedef void cdr__narrow(const float *src, void *dst, int64_t n);
typedef struct {
    cdr__widen *bf16_to_f32, *f16_to_f32, *e4m3_to_f32, *e8m0_to_f32, *mxfp4_to_f32;
    cdr__narrow *bf16_from_f32, *f16_from_f32, *e4m3_from_f32, *e8m0_from_f32;
} cdr__convert;
extern const cdr__convert cdr__convert_base, cdr__convert_avx2;
const cdr__convert *cdr__convert_best(void);        /* avx2 where the processor has it */

#define CDR__CONVERT_ROW { bf16_to_f32, f16_to_f32, e4m3_to_f32, e8m0_to_f32, mxfp4_to_f32, bf16_from_f32, f16_from_f32, e4m3_from_f32, e8m0_from_f32 }

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* ---- 16 bits ----------------------------------------------------------------------------------------------- */
static inline void bf16_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint16_t *CDR_RESTRICT x = (const uint16_t *)src;
    for (int64_t i = 0; i < n; i++) dst[i] = cdr_bf16_to_f32(x[i]);
}

static inline void bf16_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    uint16_t *CDR_RESTRICT y = (uint16_t *)dst;
    for (int64_t i = 0; i < n; i++) y[i] = cdr_f32_to_bf16(src[i]);
}

/* The exponent and mantissa bits, moved to their place in a float, are the value times 2^-112 (bias 15 against 127);
 * the product with 2^112 is exact and makes subnormals normal. */
static inline float f16_value(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, m = (uint32_t)(x & 0x7fffu) << 13;
    uint32_t finite = bits_of(float_of(m) * 0x1p112f), special = m | 0x7f800000u;
    return float_of(sign | (m >= 0x0f800000u ? special : finite));
}

/* Below 2^-14 the result is subnormal: its units are 2^-24, which is the last place of 0.5 in a float, so adding 0.5
 * rounds there, and rounds to even. */
static inline uint16_t f16_code(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    uint32_t small = bits_of(float_of(a) + 0.5f) - 0x3f000000u;
    uint32_t y = a < 0x38800000u ? small : normal;
    y = a >= 0x477ff000u ? 0x7c00u : y;                             /* 65520 and up rounds to infinity */
    y = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x1ffu) : y;
    return (uint16_t)(sign | y);
}

static inline void f16_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint16_t *CDR_RESTRICT x = (const uint16_t *)src;
    for (int64_t i = 0; i < n; i++) dst[i] = f16_value(x[i]);
}

static inline void f16_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    uint16_t *CDR_RESTRICT y = (uint16_t *)dst;
    for (int64_t i = 0; i < n; i++) y[i] = f16_code(src[i]);
}

/* ---- 8 bits ------------------------------------------------------------------------------------------------ */
static inline float e4m3_value(uint8_t x)
{
    uint32_t sign = (uint32_t)(x & 0x80u) << 24, m = (uint32_t)(x & 0x7fu) << 20;
    uint32_t finite = bits_of(float_of(m) * 0x1p120f);
    return float_of(sign | (m == 0x07f00000u ? 0x7fc00000u : finite));
}

static inline uint8_t e4m3_code(float f)
{
    uint32_t u = bits_of(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    uint32_t normal = (a - 0x3c000000u + 0x7ffffu + (a >> 20 & 1u)) >> 20;
    uint32_t small = bits_of(float_of(a) + 0x1p14f) - 0x46800000u;  /* units of 2^-9: the last place of 2^14 */
    uint32_t y = a < 0x3c800000u ? small : normal;
    y = a >= 0x43e00000u ? 0x7eu : y;                               /* 448 */
    y = a >= 0x7f800000u ? 0x7fu : y;
    return (uint8_t)(sign | y);
}

static inline void e4m3_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint8_t *CDR_RESTRICT x = (const uint8_t *)src;
    for (int64_t i = 0; i < n; i++) dst[i] = e4m3_value(x[i]);
}

static inline void e4m3_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    uint8_t *CDR_RESTRICT y = (uint8_t *)dst;
    for (int64_t i = 0; i < n; i++) y[i] = e4m3_code(src[i]);
}

/* 2^(x - 127): byte 0 is the subnormal 2^-127, byte 255 is NaN. */
static inline float e8m0_value(uint8_t x)
{
    uint32_t u = x == 0 ? 0x00400000u : (uint32_t)x << 23;
    return float_of(x == 255 ? 0x7fc00000u : u);
}

/* Nearest power of two; halfway (1.5 * 2^e) to the even byte. Negative values have none and give NaN. */
static inline uint8_t e8m0_code(float f)
{
    uint32_t u = bits_of(f), e = u >> 23 & 0xffu, m = u & 0x7fffffu;
    uint32_t y = e + (m > 0x400000u || (m == 0x400000u && (e & 1u)));
    /* below 2^-126 the grid is 2^-127, 2^-126: halfway is 1.5 * 2^-127, which goes to the even byte 0 */
    y = e == 0 ? (m > 0x600000u) : y;
    y = CDR_MIN(y, 254u);
    bool none = e == 255 || (u >> 31 && (u & 0x7fffffffu));
    return (uint8_t)(none ? 255u : y);
}

static inline void e8m0_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint8_t *CDR_RESTRICT x = (const uint8_t *)src;
    for (int64_t i = 0; i < n; i++) dst[i] = e8m0_value(x[i]);
}

static inline void e8m0_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    uint8_t *CDR_RESTRICT y = (uint8_t *)dst;
    for (int64_t i = 0; i < n; i++) y[i] = e8m0_code(src[i]);
}

/* ---- 4 bits ------------------------------------------------------------------------------------------------ */
enum { CDR__MX_BLOCK = 32, CDR__MX_CODES = 16 };                    /* elements, code bytes; the scale's byte follows */

/* Eight codes E2M1 are the nibbles of a little-endian word, first to last. Magnitude: 0, 0.5, then a float's exponent and first mantissa bit,
 * moved to their place and up from 0.5. One Zen 3 core, AVX2, G elements/s: 5.5; loops over bytes, which compilers vectorise badly, 0.6 to 1.7. */
typedef uint32_t cdr__word8 __attribute__((vector_size(32)));
typedef float cdr__float8 __attribute__((vector_size(32)));
static inline void mxfp4_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint8_t *CDR_RESTRICT x = (const uint8_t *)src;
    const cdr__word8 zero = { 0 }, shift = { 0, 4, 8, 12, 16, 20, 24, 28 };
    for (int64_t b = 0; b < n / CDR__MX_BLOCK; b++, x += CDR__MX_CODES + 1, dst += CDR__MX_BLOCK) {
        float scale = e8m0_value(x[CDR__MX_CODES]);
        for (int i = 0; i < CDR__MX_CODES / 4; i++) {
            uint32_t w;
            memcpy(&w, x + 4 * i, 4);
            cdr__word8 code = (zero + w) >> shift, m = code & 7u;
            cdr__word8 u = ((m << 22) & (cdr__word8)(m > 1u)) + (0x3f000000u & (cdr__word8)(m > 0u));
            u |= (code & 8u) << 28;
            cdr__float8 y;
            memcpy(&y, &u, sizeof y);
            y *= scale;
            memcpy(dst + 8 * i, &y, sizeof y);
        }
    }
}

#ifdef __cplusplus
}
#endif
#endif
