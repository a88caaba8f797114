/* cpu.h: what the CPU kernels of all operators share: rows of an operand (any dtype, any pitch) as F32, sums whose
 * order is fixed, and exp and sin/cos that vectorise in plain C.
 *
 *   cdr_row_load(a->ptr[0], &a->type[0], t, x_D);                      // row t, converted
 *   float ss = cdr_dot(x_D, x_D, D);                                   // the same bits from every compiler and ISA
 *   cdr_row_store(y_D, a->ptr[2], &a->type[2], t);
 *
 * Everything here gives the same bits wherever it is compiled with -ffp-contract=off: only + - * / and comparisons
 * in a written order, no libm.
 */
#ifndef CDR_OPS_CPU_H
#define CDR_OPS_CPU_H

#include "graph/op.h"
#include <assert.h>
#include <omp.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline bool cdr_is_real(const cdr_type *t)      /* converts to and from F32, one element a block */
{
    if (cdr_absent(t)) return false;
    const cdr_dtype_info *d = cdr_dtype_row(t->dtype);
    return d->floating && d->block_elems == 1 && d->to_f32 && d->from_f32;
}
/* Same number of axes and same sizes; dtype and pitch may differ. */
static inline bool cdr_same_shape(const cdr_type *a, const cdr_type *b)
{
    if (a->n_dim != b->n_dim) return false;
    for (int i = 0; i < a->n_dim; i++) if (a->n[i] != b->n[i]) return false;
    return true;
}
static inline cdr_type cdr_dense_like(const cdr_type *t, int dtype)    /* shape of t, dense rows of dtype */
{
    cdr_type y = *t;
    y.dtype = (uint8_t)dtype;
    y.layout = CDR_ROWS;
    y.pitch = 0;
    return y;
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */
static inline void *cdr_row(void *p, const cdr_type *t, int64_t row)
{
    return (char *)p + cdr_dtype_bytes(t->dtype, row * cdr_type_pitch(t));
}
static inline void cdr_row_load(void *p, const cdr_type *t, int64_t row, float *dst)
{
    cdr_to_f32(t->dtype, cdr_row(p, t, row), dst, cdr_type_cols(t));
}
static inline void cdr_row_store(const float *src, void *p, const cdr_type *t, int64_t row)
{
    cdr_from_f32(t->dtype, src, cdr_row(p, t, row), cdr_type_cols(t));
}
/* Row += src: the old row is widened into `old`, added, rounded once. */
static inline void cdr_row_add(const float *src, void *p, const cdr_type *t, int64_t row, float *old)
{
    int64_t n = cdr_type_cols(t);
    cdr_row_load(p, t, row, old);
    for (int64_t i = 0; i < n; i++) old[i] += src[i];
    cdr_row_store(old, p, t, row);
}
/* This thread's part of a scratch area that has `per_thread` floats for each. */
static inline float *cdr_thread_part(void *work, int64_t per_thread)
{
    return (float *)work + (int64_t)omp_get_thread_num() * per_thread;
}

/* BF16 as F32, exact, in vectors of the instruction set that the including file is compiled for: the dtype table's conversion is
 * compiled for any x86 and costs three times as much. dst does not overlap src. */
static inline void cdr_widen_bf16(const void *src, int64_t n, float *dst)
{
    typedef uint16_t half8 __attribute__((vector_size(16)));
    typedef uint32_t word8 __attribute__((vector_size(32)));
    const char *from = (const char *)src;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        half8 h;
        memcpy(&h, from + 2 * i, sizeof h);
        word8 w = __builtin_convertvector(h, word8) << 16;
        memcpy(dst + i, &w, sizeof w);
    }
    for (; i < n; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, 2);
        uint32_t w = (uint32_t)h << 16;
        memcpy(dst + i, &w, 4);
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */
/* sum a_i b_i in F32: element i goes to partial sum i mod 16, partial sums are merged as a tree. 16: four SSE2, two
 * AVX2 or one AVX-512 register, so that every ISA can form the same sums. */
static inline float cdr_dot(const float *a, const float *b, int64_t n)
{
    float s[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) for (int j = 0; j < 16; j++) s[j] += a[i + j] * b[i + j];
    for (int j = 0; i + j < n; j++) s[j] += a[i + j] * b[i + j];
    for (int w = 8; w > 0; w /= 2) for (int j = 0; j < w; j++) s[j] += s[j + w];
    return s[0];
}

/* ---- elementary functions ------------------------------------------------------------------------------------ */
/* e^x, relative error below 9e-8 for x in [-87, 88.3]. Smaller x give 1.2e-38 (not 0), larger ones inf: made for
 * sigmoids. NaN stays NaN. e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2, e^r by Taylor to r^7. */
static inline float cdr_exp(float x)
{
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.8f ? 88.8f : x;
    float k = x * 1.44269504f + 12582912.0f;               /* 1.5 * 2^23: rounds to an integer, kept in the low bits */
    uint32_t u;
    memcpy(&u, &k, 4);
    float n = k - 12582912.0f;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;    /* ln 2 in two parts; n * the first is exact */
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    uint32_t e = (u - 0x4b400000u + 127u) << 23;           /* 2^n; n = 128 is infinity */
    float scale;
    memcpy(&scale, &e, 4);
    return p * scale;
}

/* log(1 + x) for x in [0, 1], relative error below 2e-7: 2 artanh(s) with s = x / (2 + x) <= 1/3, by its series to s^15. */
static inline float cdr_log1p(float x)
{
    float s = x / (2.0f + x), z = s * s;
    float p = 1.0f / 15.0f;
    p = p * z + 1.0f / 13.0f;
    p = p * z + 1.0f / 11.0f;
    p = p * z + 1.0f / 9.0f;
    p = p * z + 1.0f / 7.0f;
    p = p * z + 1.0f / 5.0f;
    p = p * z + 1.0f / 3.0f;
    p = p * z;
    return 2.0f * s + 2.0f * s * p;
}

/* tanh x, relative error below 3e-7 everywhere, odd to the bit; NaN stays NaN. tanh |x| = -t / (2 + t) with t = e^y - 1, y = -2 |x|:
 * y = n ln 2 + r as in cdr_exp, t = 2^n (e^r - 1) + (2^n - 1), of which the last is exact, so that a small x loses nothing. */
static inline float cdr_tanh(float x)
{
    uint32_t bits, u;
    memcpy(&bits, &x, 4);
    const uint32_t sign = bits & 0x80000000u;
    float y = -2.0f * (x < 0.0f ? -x : x);
    y = y < -40.0f ? -40.0f : y;
    float k = y * 1.44269504f + 12582912.0f;
    memcpy(&u, &k, 4);
    float n = k - 12582912.0f;
    float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    uint32_t e = (u - 0x4b400000u + 127u) << 23;
    float scale;
    memcpy(&scale, &e, 4);
    float t = scale * p + (scale - 1.0f), z = -t / (2.0f + t);
    memcpy(&bits, &z, 4);
    bits = (bits & 0x7fffffffu) | sign;
    memcpy(&z, &bits, 4);
    return z;
}

/* sin and cos of x, absolute error below 5e-16 for |x| < 3e6 (positions reach 2^20), 6e-8 at 2^30. With n = round(x / pi) and
 * r = x - n pi in [-pi/2, pi/2]: sin x = (-1)^n sin r, cos x = (-1)^n cos r; only a sign depends on n, so that the loop
 * around this vectorises without integer comparisons. pi in three parts (Cody & Waite; the first two have 33 bits, so
 * that their products with n < 2^20 are exact); Taylor to r^21 and r^22. */
static inline void cdr_sincos(double x, double *sin_x, double *cos_x)
{
    double k = x * 0.31830988618379067154 + 6755399441055744.0;        /* 1.5 * 2^52: rounds to an integer in the low bits */
    uint64_t u;
    memcpy(&u, &k, 8);
    double n = k - 6755399441055744.0;
    double r = ((x - n * 3.14159265346825122833e+00) - n * 1.21542010126079319732e-10) - n * 4.04453249759190126308e-21, z = r * r;
    double s = z * (1.0 / 51090942171709440000.0);
    s = z * (-1.0 / 121645100408832000.0 + s);
    s = z * (1.0 / 355687428096000.0 + s);
    s = z * (-1.0 / 1307674368000.0 + s);
    s = z * (1.0 / 6227020800.0 + s);
    s = z * (-1.0 / 39916800 + s);
    s = z * (1.0 / 362880 + s);
    s = z * (-1.0 / 5040 + s);
    s = z * (1.0 / 120 + s);
    s = r + r * (z * (-1.0 / 6 + s));
    double c = z * (-1.0 / 1124000727777607680000.0);
    c = z * (1.0 / 2432902008176640000.0 + c);
    c = z * (-1.0 / 6402373705728000.0 + c);
    c = z * (1.0 / 20922789888000.0 + c);
    c = z * (-1.0 / 87178291200.0 + c);
    c = z * (1.0 / 479001600 + c);
    c = z * (-1.0 / 3628800 + c);
    c = z * (1.0 / 40320 + c);
    c = z * (-1.0 / 720 + c);
    c = z * (1.0 / 24 + c);
    c = 1.0 + z * (-0.5 + c);
    uint64_t sign = u << 63, sb, cb;
    memcpy(&sb, &s, 8);
    memcpy(&cb, &c, 8);
    sb ^= sign;
    cb ^= sign;
    memcpy(sin_x, &sb, 8);
    memcpy(cos_x, &cb, 8);
}

#ifdef __cplusplus
}
#endif
#endif
