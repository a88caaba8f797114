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
 * The loops (convert.h) are branch-free, so that the compiler vectorises them. They run with AVX2 where the processor
 * has it, whatever CADRE_ISA says: that changes no bit. One Zen 3 core, in cache, G elements/s, base and AVX2:
 * bf16 to f32 7.7, 12.1; f32 to bf16 1.7, 4.2; f16 to f32 2.4, 5.4; f32 to f16 0.8, 1.6; mxfp4 to f32 0.3, 5.5.
 */
#include "tensor/convert.h"
#include <math.h>
#include <strings.h>

/* ---- the narrow formats: loops in convert.h -------------------------------------------------------------------- */
const cdr__convert cdr__convert_base = CDR__CONVERT_ROW;

const cdr__convert *cdr__convert_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return &cdr__convert_avx2;
#endif
    return &cdr__convert_base;
}

static void f32_copy(const void *src, float *dst, int64_t n) { memcpy(dst, src, (size_t)n * 4); }
static void f32_copy_out(const float *src, void *dst, int64_t n) { memcpy(dst, src, (size_t)n * 4); }
static void any_bf16_to_f32(const void *src, float *dst, int64_t n) { cdr__convert_best()->bf16_to_f32(src, dst, n); }
static void any_bf16_from_f32(const float *src, void *dst, int64_t n) { cdr__convert_best()->bf16_from_f32(src, dst, n); }
static void any_f16_to_f32(const void *src, float *dst, int64_t n) { cdr__convert_best()->f16_to_f32(src, dst, n); }
static void any_f16_from_f32(const float *src, void *dst, int64_t n) { cdr__convert_best()->f16_from_f32(src, dst, n); }
static void any_e4m3_to_f32(const void *src, float *dst, int64_t n) { cdr__convert_best()->e4m3_to_f32(src, dst, n); }
static void any_e4m3_from_f32(const float *src, void *dst, int64_t n) { cdr__convert_best()->e4m3_from_f32(src, dst, n); }
static void any_e8m0_to_f32(const void *src, float *dst, int64_t n) { cdr__convert_best()->e8m0_to_f32(src, dst, n); }
static void any_e8m0_from_f32(const float *src, void *dst, int64_t n) { cdr__convert_best()->e8m0_from_f32(src, dst, n); }

static void any_mxfp4_to_f32(const void *src, float *dst, int64_t n)
{
    CDR_CHECK(n % CDR__MX_BLOCK == 0);
    cdr__convert_best()->mxfp4_to_f32(src, dst, n);
}

static void mxfp4_from_f32(const float *src, void *dst, int64_t n)
{
    uint8_t *y = dst;
    CDR_CHECK(n % CDR__MX_BLOCK == 0);
    for (int64_t i = 0; i < n; i += CDR__MX_BLOCK, y += CDR__MX_CODES + 1) cdr_mxfp4_encode(src + i, y, y + CDR__MX_CODES, CDR__MX_BLOCK);
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
    [CDR_BF16]    = { "bf16", "BF16", 1, 2, true, any_bf16_to_f32, any_bf16_from_f32 },
    [CDR_F16]     = { "f16", "F16", 1, 2, true, any_f16_to_f32, any_f16_from_f32 },
    [CDR_F64]     = { "f64", "F64", 1, 8, true, f64_to_f32, f64_from_f32 },
    [CDR_U8]      = { "u8", "U8", 1, 1, false, u8_to_f32, u8_from_f32 },
    [CDR_I32]     = { "i32", "I32", 1, 4, false, i32_to_f32, i32_from_f32 },
    [CDR_I64]     = { "i64", "I64", 1, 8, false, i64_to_f32, i64_from_f32 },
    [CDR_F8_E4M3] = { "f8_e4m3", "F8_E4M3", 1, 1, true, any_e4m3_to_f32, any_e4m3_from_f32 },
    [CDR_E8M0]    = { "e8m0", "F8_E8M0", 1, 1, true, any_e8m0_to_f32, any_e8m0_from_f32 },
    [CDR_MXFP4]   = { "mxfp4", "F4", CDR__MX_BLOCK, CDR__MX_CODES + 1, true, any_mxfp4_to_f32, mxfp4_from_f32 },
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
    for (int64_t i = 0; i < n; i += F64_BLOCK) {
        int64_t m = CDR_MIN(n - i, (int64_t)F64_BLOCK);
        cdr_to_f32(dtype, from + cdr_dtype_bytes(dtype, i), block, m);
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
    for (int64_t i = 0; i < n; i += F64_BLOCK) {
        int64_t m = CDR_MIN(n - i, (int64_t)F64_BLOCK);
        for (int64_t k = 0; k < m; k++) block[k] = f32_odd(src[i + k]);
        cdr_from_f32(dtype, block, to + cdr_dtype_bytes(dtype, i), m);
    }
}
