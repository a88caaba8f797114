/* dtype.c: the table of number formats and their conversions. Every conversion to a narrower format rounds to nearest
 * even, once; NaN stays NaN, subnormals survive.
 *
 *   format   sign exponent mantissa   overflow of a finite value    infinity
 *   bf16     1    8        7          infinity                      infinity
 *   f16      1    5        10         infinity                      infinity
 *   f8_e4m3  1    4        3          +-448 (saturates)             NaN: the format has none
 *   e8m0     -    8        -          2^127                         NaN; powers of two only: 0 gives the least one
 *   integers                          the nearest end of the range  the same; NaN gives 0
 * Sources: f8_e4m3, e8m0, MXFP4: OCP Microscaling Formats (MX) 1.0, sections 5.3 and 5.4.
 * The loops are branch-free, so that the compiler vectorises them; an element never depends on another.
 */
#include "tensor/tensor.h"
#include <math.h>
#include <strings.h>

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
static void f32_copy(const void *src, float *dst, int64_t n) { memcpy(dst, src, (size_t)n * 4); }
static void f32_copy_out(const float *src, void *dst, int64_t n) { memcpy(dst, src, (size_t)n * 4); }

static void bf16_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint16_t *CDR_RESTRICT x = src;
    for (int64_t i = 0; i < n; i++) dst[i] = cdr_bf16_to_f32(x[i]);
}

static void bf16_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    uint16_t *CDR_RESTRICT y = dst;
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

static void f16_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint16_t *CDR_RESTRICT x = src;
    for (int64_t i = 0; i < n; i++) dst[i] = f16_value(x[i]);
}

static void f16_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    uint16_t *CDR_RESTRICT y = dst;
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

static void e4m3_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint8_t *CDR_RESTRICT x = src;
    for (int64_t i = 0; i < n; i++) dst[i] = e4m3_value(x[i]);
}

static void e4m3_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    uint8_t *CDR_RESTRICT y = dst;
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

static void e8m0_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const uint8_t *CDR_RESTRICT x = src;
    for (int64_t i = 0; i < n; i++) dst[i] = e8m0_value(x[i]);
}

static void e8m0_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    uint8_t *CDR_RESTRICT y = dst;
    for (int64_t i = 0; i < n; i++) y[i] = e8m0_code(src[i]);
}

/* ---- integers and f64 ---------------------------------------------------------------------------------------- */
/* The ends of the int64 range, where a cast from double would be undefined, are cut off first. */
static inline int64_t i64_nearest(double x)
{
    if (!(x == x)) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    if (x <= -0x1p63) return INT64_MIN;
    return (int64_t)rint(x);
}

static inline int64_t clamp_i64(int64_t x, int64_t lo, int64_t hi) { return x < lo ? lo : x > hi ? hi : x; }

/* from_f32 and from_f64 of an integer format, and their inverses. One macro body instead of three times four loops;
 * the functions are NAME_to_f32, NAME_from_f32, NAME_to_f64, NAME_from_f64. */
#define INTEGER(name, type, lo, hi)                                                                                   \
    static void name##_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)                                    \
    {                                                                                                                 \
        const type *CDR_RESTRICT x = src;                                                                             \
        for (int64_t i = 0; i < n; i++) dst[i] = (float)x[i];                                                         \
    }                                                                                                                 \
    static void name##_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)                                  \
    {                                                                                                                 \
        type *CDR_RESTRICT y = dst;                                                                                   \
        for (int64_t i = 0; i < n; i++) y[i] = (type)clamp_i64(i64_nearest((double)src[i]), lo, hi);                  \
    }                                                                                                                 \
    static void name##_to_f64(const void *src, double *CDR_RESTRICT dst, int64_t n)                                   \
    {                                                                                                                 \
        const type *CDR_RESTRICT x = src;                                                                             \
        for (int64_t i = 0; i < n; i++) dst[i] = (double)x[i];                                                        \
    }                                                                                                                 \
    static void name##_from_f64(const double *CDR_RESTRICT src, void *dst, int64_t n)                                 \
    {                                                                                                                 \
        type *CDR_RESTRICT y = dst;                                                                                   \
        for (int64_t i = 0; i < n; i++) y[i] = (type)clamp_i64(i64_nearest(src[i]), lo, hi);                          \
    }
INTEGER(u8, uint8_t, 0, 255)
INTEGER(i32, int32_t, INT32_MIN, INT32_MAX)
INTEGER(i64, int64_t, INT64_MIN, INT64_MAX)

static void f64_to_f32(const void *src, float *CDR_RESTRICT dst, int64_t n)
{
    const double *CDR_RESTRICT x = src;
    for (int64_t i = 0; i < n; i++) dst[i] = (float)x[i];
}

static void f64_from_f32(const float *CDR_RESTRICT src, void *dst, int64_t n)
{
    double *CDR_RESTRICT y = dst;
    for (int64_t i = 0; i < n; i++) y[i] = (double)src[i];
}

/* ---- the table ------------------------------------------------------------------------------------------------ */
static const cdr_dtype_info dtype_rows[CDR_N_DTYPES] = {
    [CDR_F32]     = { "f32", "F32", 1, 4, true, f32_copy, f32_copy_out },
    [CDR_BF16]    = { "bf16", "BF16", 1, 2, true, bf16_to_f32, bf16_from_f32 },
    [CDR_F16]     = { "f16", "F16", 1, 2, true, f16_to_f32, f16_from_f32 },
    [CDR_F64]     = { "f64", "F64", 1, 8, true, f64_to_f32, f64_from_f32 },
    [CDR_U8]      = { "u8", "U8", 1, 1, false, u8_to_f32, u8_from_f32 },
    [CDR_I32]     = { "i32", "I32", 1, 4, false, i32_to_f32, i32_from_f32 },
    [CDR_I64]     = { "i64", "I64", 1, 8, false, i64_to_f32, i64_from_f32 },
    [CDR_F8_E4M3] = { "f8_e4m3", "F8_E4M3", 1, 1, true, e4m3_to_f32, e4m3_from_f32 },
    [CDR_E8M0]    = { "e8m0", "F8_E8M0", 1, 1, true, e8m0_to_f32, e8m0_from_f32 },
    /* converts only together with its scales: cdr_mxfp4_decode */
    [CDR_MXFP4]   = { "mxfp4", "F4", 32, 16, true, NULL, NULL },
};

const cdr_dtype_info *cdr_dtype_row(int dtype)
{
    CDR_CHECK(dtype >= 0 && dtype < CDR_N_DTYPES);
    return &dtype_rows[dtype];
}

int cdr_dtype_by_name(const char *name)
{
    for (int i = 0; i < CDR_N_DTYPES; i++)
        if (strcasecmp(name, dtype_rows[i].name) == 0 || strcasecmp(name, dtype_rows[i].safetensors) == 0) return i;
    return -1;
}

void cdr_to_f32(int dtype, const void *src, float *dst, int64_t n)
{
    const cdr_dtype_info *d = cdr_dtype_row(dtype);
    CDR_CHECK(d->to_f32 != NULL);
    if (n > 0) d->to_f32(src, dst, n);
}

void cdr_from_f32(int dtype, const float *src, void *dst, int64_t n)
{
    const cdr_dtype_info *d = cdr_dtype_row(dtype);
    CDR_CHECK(d->from_f32 != NULL);
    if (n > 0) d->from_f32(src, dst, n);
}

/* ---- f64 on the other side -------------------------------------------------------------------------------------- */
/* Rounded to odd: towards zero, with the last bit set where anything was lost. 24 such bits are enough for a second
 * rounding, to nearest even and to 22 bits or fewer, to give what one rounding of x would give. */
static inline float f32_odd(double x)
{
    float f = (float)x;
    uint32_t u = bits_of(f);
    if (x != x) return f;
    if (fabs((double)f) > fabs(x)) u--;
    return float_of((double)float_of(u) != x ? u | 1u : u);
}

enum { F64_BLOCK = 256 };

void cdr_to_f64(int dtype, const void *src, double *dst, int64_t n)
{
    if (n <= 0) return;
    switch (dtype) {
    case CDR_F64: memcpy(dst, src, (size_t)n * 8); return;
    case CDR_U8:  u8_to_f64(src, dst, n); return;
    case CDR_I32: i32_to_f64(src, dst, n); return;
    case CDR_I64: i64_to_f64(src, dst, n); return;
    default: break;
    }
    float block[F64_BLOCK];                     /* all others are exact in f32 */
    const char *from = src;
    int64_t elem_bytes = cdr_dtype_bytes(dtype, 1);
    for (int64_t i = 0; i < n; i += F64_BLOCK) {
        int64_t m = CDR_MIN(n - i, (int64_t)F64_BLOCK);
        cdr_to_f32(dtype, from + i * elem_bytes, block, m);
        for (int64_t k = 0; k < m; k++) dst[i + k] = (double)block[k];
    }
}

void cdr_from_f64(int dtype, const double *src, void *dst, int64_t n)
{
    if (n <= 0) return;
    switch (dtype) {
    case CDR_F32: f64_to_f32(src, dst, n); return;
    case CDR_F64: memcpy(dst, src, (size_t)n * 8); return;
    case CDR_U8:  u8_from_f64(src, dst, n); return;
    case CDR_I32: i32_from_f64(src, dst, n); return;
    case CDR_I64: i64_from_f64(src, dst, n); return;
    default: break;
    }
    float block[F64_BLOCK];
    char *to = dst;
    int64_t elem_bytes = cdr_dtype_bytes(dtype, 1);
    for (int64_t i = 0; i < n; i += F64_BLOCK) {
        int64_t m = CDR_MIN(n - i, (int64_t)F64_BLOCK);
        for (int64_t k = 0; k < m; k++) block[k] = f32_odd(src[i + k]);
        cdr_from_f32(dtype, block, to + i * elem_bytes, m);
    }
}
