/* mxfp4.c: MXFP4, blocks of 32 elements: 4-bit codes E2M1 (sign, then 0 0.5 1 1.5 2 3 4 6), low nibble first, and one
 * scale byte s = 2^(s-127).
 *
 *   decode  w_i = code_i * 2^(s-127)                                                                            (1)
 *   encode  s - 127 = floor(log2(round_1.75(max |w|))) - 2,  code_i = nearest even of w_i / 2^(s-127), at most 6     (2)
 * round_1.75 lifts a mantissa of 1.75 and more to the next power of two: that is max |w| rounded to the one mantissa
 * bit that a code has. A block that was decoded is then encoded to the same values, also where its largest code is 4
 * and an adapter moved that element down by a hair; the plain floor(log2 max |w|) - 2 halves the scale there and cuts
 * 4 to 3. On Gaussian weights the relative RMS error is 0.112 against 0.115.
 * Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3 and 6.3; the rounded maximum as in compressed-tensors.
 * A block with a NaN or an infinity gets the scale 255, NaN: the fault must be seen. -0 keeps its sign. Scales are at
 * most 252, so that a code times a scale is finite in BF16 and F32.
 */
#include "tensor/tensor.h"
#include <math.h>

enum { BLOCK = 32, SCALE_MAX = 252, SCALE_NAN = 255 };

static const float code_value[16] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };

/* A code has two significant bits, so code times scale is exact, or infinite for scales above 252. */
static float scale_value(uint8_t s)
{
    float f;
    cdr_to_f32(CDR_E8M0, &s, &f, 1);
    return f;
}

void cdr_mxfp4_decode(const uint8_t *codes, const uint8_t *scales, float *dst, int64_t n)
{
    CDR_CHECK(n >= 0 && n % BLOCK == 0);
    for (int64_t b = 0; b < n / BLOCK; b++) {
        float scale = scale_value(scales[b]);
        const uint8_t *code = codes + b * (BLOCK / 2);
        float *y = dst + b * BLOCK;
        for (int i = 0; i < BLOCK / 2; i++) {
            y[2 * i] = code_value[code[i] & 15] * scale;
            y[2 * i + 1] = code_value[code[i] >> 4] * scale;
        }
    }
}

/* x: magnitude in units of the scale. Thresholds are midpoints; a tie goes to the code with an even last bit. */
static inline uint8_t e2m1_code(float x)
{
    int code = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) + (x >= 3.5f) + (x > 5.0f);
    return (uint8_t)code;
}

static uint8_t block_scale(const float *x)
{
    uint32_t top = 0;                           /* magnitudes compare like their bits; NaN is above infinity */
    for (int i = 0; i < BLOCK; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        top = CDR_MAX(top, u & 0x7fffffffu);
    }
    if (top >= 0x7f800000u) return SCALE_NAN;
    int exponent = (int)((top + 0x00200000u) >> 23);        /* carries from a mantissa of 1.75 and more */
    return (uint8_t)CDR_MIN(CDR_MAX(exponent - 2, 0), (int)SCALE_MAX);
}

static void block_codes(const float *x, uint8_t scale, uint8_t *code)
{
    float inverse = ldexpf(1.0f, 127 - scale);              /* 2^127 .. 2^-125: exact */
    uint8_t nibble[BLOCK];
    for (int i = 0; i < BLOCK; i++) nibble[i] = (uint8_t)(e2m1_code(fabsf(x[i]) * inverse) | (signbit(x[i]) ? 8 : 0));
    for (int i = 0; i < BLOCK / 2; i++) code[i] = (uint8_t)(nibble[2 * i] | nibble[2 * i + 1] << 4);
}

void cdr_mxfp4_encode(const float *src, uint8_t *codes, uint8_t *scales, int64_t n)
{
    CDR_CHECK(n >= 0 && n % BLOCK == 0);
    for (int64_t b = 0; b < n / BLOCK; b++) {
        const float *x = src + b * BLOCK;
        uint8_t *code = codes + b * (BLOCK / 2);
        scales[b] = block_scale(x);
        if (scales[b] == SCALE_NAN) {
            memset(code, 0, BLOCK / 2);
            continue;
        }
        block_codes(x, scales[b], code);
    }
}

void cdr_mxfp4_encode_as(const float *src, const uint8_t *scales, uint8_t *codes, int64_t n)
{
    CDR_CHECK(n >= 0 && n % BLOCK == 0);
    for (int64_t b = 0; b < n / BLOCK; b++) block_codes(src + b * BLOCK, scales[b], codes + b * (BLOCK / 2));
}

/* In memory a block's codes and its scale are neighbours (tensor.h). */
void cdr_mapped_get(const cdr_type *t, int64_t first, int64_t n, const void *table, void *rows)
{
    const cdr_mapped *m = table;
    const int64_t n_blocks = cdr_type_cols(t) / BLOCK;
    uint8_t *y = rows;
    CDR_CHECK(t->layout == CDR_MAPPED && t->dtype == CDR_MXFP4 && first >= 0 && n >= 0 && first + n <= cdr_type_rows(t));
    for (int64_t r = first; r < first + n; r++) {
        const cdr_mapped *of = &m[r / t->n[1]];
        for (int64_t b = r % t->n[1] * n_blocks, end = b + n_blocks; b < end; b++, y += BLOCK / 2 + 1) {
            memcpy(y, of->codes + b * (BLOCK / 2), BLOCK / 2);
            y[BLOCK / 2] = of->scales[b];
        }
    }
}
