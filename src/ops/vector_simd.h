/* vector_simd.h: loops of elementwise kernels, in vectors of the instruction set that the including file is compiled for
 * (4 floats in a portable file, 8 with AVX2, 16 with AVX-512). The same bits in all: no lane sees its neighbour, and every function
 * is the scalar one of ops/cpu.h, operation by operation. A row is walked in blocks, which are converted into buffers that stay in L1:
 *
 *   float x_buf[CDR_BLOCK], y_buf[CDR_BLOCK];
 *   CDR_BLOCKS(at, n, D) {                                          // [at, at + n) of D elements
 *       const float *x = cdr_take(tx->dtype, row, at, n, x_buf);     // F32: x is the row itself, no copy
 *       float *y = cdr_room(ty->dtype, out, at, n, stream, y_buf);
 *       for (int64_t i = 0; i < n; i += CDR_XLANES) cdr_xput(y + i, cdr_xexp(cdr_xget(x + i)));
 *       cdr_give(ty->dtype, y, out, at, n, stream);                 // rounds once
 *   }
 *   if (stream) cdr_stream_end();
 *
 * What cdr_take and cdr_room give can be read and written up to the next multiple of CDR_XLANES.
 * stream: past the caches (cdr_streams), where an operator writes one large output. Measured on Zen 3: a store brings its line in first, a
 * third of a copy's traffic; with three outputs and more the write-combining buffers do not suffice, and it is two to three times slower.
 * Tried: fetching each operand a page ahead in cdr_take: no difference beyond the noise; left away. */
#ifndef CDR_OPS_VECTOR_SIMD_H
#define CDR_OPS_VECTOR_SIMD_H

#include "ops/cpu.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__AVX512F__)
#define CDR_LANES 16
#elif defined(__AVX2__)
#define CDR_LANES 8
#else
#define CDR_LANES 4
#endif
#define CDR_VINLINE static inline __attribute__((always_inline))

typedef float cdr_vf __attribute__((vector_size(4 * CDR_LANES)));
typedef uint32_t cdr_vu __attribute__((vector_size(4 * CDR_LANES)));
typedef int32_t cdr_vi __attribute__((vector_size(4 * CDR_LANES)));
typedef uint16_t cdr_vh __attribute__((vector_size(2 * CDR_LANES)));

/* ---- vectors --------------------------------------------------------------------------------------------------------- */
CDR_VINLINE cdr_vf cdr_vget(const float *p)
{
    cdr_vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
CDR_VINLINE void cdr_vput(float *p, cdr_vf x) { memcpy(p, &x, sizeof x); }
CDR_VINLINE cdr_vf cdr_vset(float x) { return x - (cdr_vf){ 0 }; }         /* -0 stays -0 */
CDR_VINLINE cdr_vf cdr_vpick(cdr_vi mask, cdr_vf a, cdr_vf b) { return (cdr_vf)(((cdr_vi)a & mask) | ((cdr_vi)b & ~mask)); }

/* a > b ? a : b and a < b ? a : b: where one is NaN the result is b */
CDR_VINLINE cdr_vf cdr_vmax(cdr_vf a, cdr_vf b)
{
#if defined(__AVX512F__)
    return (cdr_vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (cdr_vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (cdr_vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return cdr_vpick(a > b, a, b);
#endif
}
CDR_VINLINE cdr_vf cdr_vmin(cdr_vf a, cdr_vf b)
{
#if defined(__AVX512F__)
    return (cdr_vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (cdr_vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (cdr_vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return cdr_vpick(a < b, a, b);
#endif
}

CDR_VINLINE bool cdr_vany_nan(cdr_vf a, cdr_vf b)
{
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b)) != 0;
#else
    for (int j = 0; j < CDR_LANES; j++) if (!(a[j] == a[j] && b[j] == b[j])) return true;
    return false;
#endif
}

/* A bit for each lane of a comparison's result */
CDR_VINLINE uint32_t cdr_vbits(cdr_vi mask)
{
#if defined(__AVX512F__)
    return (uint32_t)_mm512_cmplt_epi32_mask((__m512i)mask, _mm512_setzero_si512());
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(__SSE2__)
    return (uint32_t)_mm_movemask_ps((__m128)mask);
#else
    uint32_t bits = 0;
    for (int j = 0; j < CDR_LANES; j++) bits |= (uint32_t)(mask[j] != 0) << j;
    return bits;
#endif
}
CDR_VINLINE cdr_vi cdr_vget_i32(const int32_t *p)
{
    cdr_vi x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Two vectors rounded to BF16 as cdr_f32_to_bf16 does, in the upper halves of the words; the lower halves are not cleared. NaN, which would
 * overflow into its sign, is set apart by a branch that is never taken: a blend for each vector made the conversion half as fast again. */
CDR_VINLINE void cdr_vround2(cdr_vf *x0, cdr_vf *x1)
{
    const cdr_vu u0 = (cdr_vu)*x0, u1 = (cdr_vu)*x1;
    cdr_vu r0 = u0 + 0x7fffu + ((u0 >> 16) & 1u), r1 = u1 + 0x7fffu + ((u1 >> 16) & 1u);
    if (__builtin_expect(cdr_vany_nan(*x0, *x1), 0)) {
        r0 = (cdr_vu)cdr_vpick(*x0 == *x0, (cdr_vf)r0, (cdr_vf)(u0 | 0x400000u));
        r1 = (cdr_vu)cdr_vpick(*x1 == *x1, (cdr_vf)r1, (cdr_vf)(u1 | 0x400000u));
    }
    *x0 = (cdr_vf)r0;
    *x1 = (cdr_vf)r1;
}
/* The rounded values as F32 */
CDR_VINLINE void cdr_vround2_bf16(cdr_vf *x0, cdr_vf *x1)
{
    cdr_vround2(x0, x1);
    *x0 = (cdr_vf)((cdr_vu)*x0 & 0xffff0000u);
    *x1 = (cdr_vf)((cdr_vu)*x1 & 0xffff0000u);
}
CDR_VINLINE cdr_vf cdr_vget_bf16(const uint16_t *p)
{
#if defined(__SSE2__) && CDR_LANES == 4
    return (cdr_vf)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)(const void *)p));
#elif defined(__AVX2__) && CDR_LANES == 8                  /* gcc 12 makes five instructions of what lies below */
    return (cdr_vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16);
#else
    cdr_vh h;
    memcpy(&h, p, sizeof h);
    return (cdr_vf)(__builtin_convertvector(h, cdr_vu) << 16);
#endif
}
/* 2 CDR_LANES elements as BF16, the bits of one vector. Rounded words are signed 16-bit numbers when shifted down, so that packing with
 * saturation changes none. */
CDR_VINLINE cdr_vf cdr_vnarrow(cdr_vf x0, cdr_vf x1)
{
    cdr_vround2(&x0, &x1);
    cdr_vi a = (cdr_vi)x0 >> 16, b = (cdr_vi)x1 >> 16;
#if defined(__AVX2__) && CDR_LANES == 8
    return (cdr_vf)_mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)a, (__m256i)b), 0xd8);
#elif defined(__SSE2__) && CDR_LANES == 4
    return (cdr_vf)_mm_packs_epi32((__m128i)a, (__m128i)b);
#else
    cdr_vh h[2] = { __builtin_convertvector(a, cdr_vh), __builtin_convertvector(b, cdr_vh) };
    cdr_vf both;
    memcpy(&both, h, sizeof both);
    return both;
#endif
}

/* ---- e^x and tanh, as cdr_exp and cdr_tanh, of CDR_CHAINS vectors at once: each is one chain of some 25 operations, of which a
 * processor's schedulers hold one or two. Clamps are written out, because compilers turn the scalar ones into a second copy of what follows
 * them: two divisions for each x. Measured on Zen 3, swiglu in F32, in cache, ns an element: scalar clamps 1.43, one chain 0.79. */
enum { CDR_CHAINS = 2, CDR_XLANES = CDR_CHAINS * CDR_LANES };
#define CDR_EACH(j) for (int j = 0; j < CDR_CHAINS; j++)
typedef struct { cdr_vf v[CDR_CHAINS]; } cdr_vx;

CDR_VINLINE cdr_vx cdr_xget(const float *p)
{
    cdr_vx x;
    CDR_EACH(j) x.v[j] = cdr_vget(p + j * CDR_LANES);
    return x;
}
CDR_VINLINE void cdr_xput(float *p, cdr_vx x)
{
    CDR_EACH(j) cdr_vput(p + j * CDR_LANES, x.v[j]);
}

/* x = n ln 2 + r: scale = 2^n, p = e^r - 1 + last */
CDR_VINLINE void cdr_xexp_parts(const cdr_vx *x, cdr_vx *scale, cdr_vx *p, float last)
{
    cdr_vx r;
    CDR_EACH(j) scale->v[j] = x->v[j] * 1.44269504f + 12582912.0f;
    CDR_EACH(j) r.v[j] = (x->v[j] - (scale->v[j] - 12582912.0f) * 0.693359375f) - (scale->v[j] - 12582912.0f) * -2.12194440e-4f;
    CDR_EACH(j) p->v[j] = cdr_vset(1.0f / 5040.0f) * r.v[j] + 1.0f / 720.0f;
    CDR_EACH(j) p->v[j] = p->v[j] * r.v[j] + 1.0f / 120.0f;
    CDR_EACH(j) p->v[j] = p->v[j] * r.v[j] + 1.0f / 24.0f;
    CDR_EACH(j) p->v[j] = p->v[j] * r.v[j] + 1.0f / 6.0f;
    CDR_EACH(j) p->v[j] = p->v[j] * r.v[j] + 0.5f;
    CDR_EACH(j) p->v[j] = p->v[j] * (r.v[j] * r.v[j]) + r.v[j];
    if (last != 0.0f) CDR_EACH(j) p->v[j] = p->v[j] + last;
    CDR_EACH(j) scale->v[j] = (cdr_vf)(((cdr_vu)scale->v[j] - 0x4b400000u + 127u) << 23);
}
CDR_VINLINE cdr_vx cdr_xexp(cdr_vx x)
{
    cdr_vx scale, p;
    CDR_EACH(j) x.v[j] = cdr_vmin(cdr_vset(88.8f), cdr_vmax(cdr_vset(-87.3f), x.v[j]));
    cdr_xexp_parts(&x, &scale, &p, 1.0f);
    CDR_EACH(j) p.v[j] = p.v[j] * scale.v[j];
    return p;
}
CDR_VINLINE cdr_vx cdr_xtanh(cdr_vx x)
{
    cdr_vx y, scale, p;
    CDR_EACH(j) y.v[j] = cdr_vmax(cdr_vset(-40.0f), -2.0f * (cdr_vf)((cdr_vu)x.v[j] & 0x7fffffffu));
    cdr_xexp_parts(&y, &scale, &p, 0.0f);
    CDR_EACH(j) p.v[j] = scale.v[j] * p.v[j] + (scale.v[j] - 1.0f);                        /* t */
    CDR_EACH(j) y.v[j] = -p.v[j] / (2.0f + p.v[j]);
    CDR_EACH(j) y.v[j] = (cdr_vf)(((cdr_vu)y.v[j] & 0x7fffffffu) | ((cdr_vu)x.v[j] & 0x80000000u));
    return y;
}
CDR_VINLINE cdr_vx cdr_xsigmoid(cdr_vx x)
{
    CDR_EACH(j) x.v[j] = -x.v[j];
    x = cdr_xexp(x);
    CDR_EACH(j) x.v[j] = 1.0f / (1.0f + x.v[j]);
    return x;
}

/* ---- cdr_dot's sum, formed while something else is done: element i goes to partial sum i mod 16 ------------------- */
enum { CDR_SUM_VECS = 16 / CDR_LANES };
typedef struct { cdr_vf v[CDR_SUM_VECS]; } cdr_sum16;
CDR_VINLINE void cdr_sum16_parts(const cdr_sum16 *s, float part[16]) { memcpy(part, s->v, 16 * sizeof(float)); }
CDR_VINLINE float cdr_sum16_merge(float part[16])
{
    for (int w = 8; w > 0; w /= 2) for (int j = 0; j < w; j++) part[j] += part[j + w];
    return part[0];
}
CDR_VINLINE float cdr_vdot(const float *a, const float *b, int64_t n)      /* cdr_dot */
{
    cdr_sum16 s = { 0 };
    float part[16];
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < CDR_SUM_VECS; j++) s.v[j] += cdr_vget(a + i + j * CDR_LANES) * cdr_vget(b + i + j * CDR_LANES);
    cdr_sum16_parts(&s, part);
    for (int j = 0; i + j < n; j++) part[j] += a[i + j] * b[i + j];
    return cdr_sum16_merge(part);
}

/* ---- blocks of a row ------------------------------------------------------------------------------------------------ */
enum { CDR_BLOCK = 512 };
#define CDR_BLOCKS(at, n, all) for (int64_t at = 0, n; at < (all) && (n = CDR_MIN((all) - at, (int64_t)CDR_BLOCK), 1); at += n)

CDR_VINLINE void cdr_widen_block(const void *src, int64_t n, float *dst)
{
    const uint16_t *x = (const uint16_t *)src;
    int64_t i = 0;
    for (; i + 2 * CDR_LANES <= n; i += 2 * CDR_LANES) {
        cdr_vput(dst + i, cdr_vget_bf16(x + i));
        cdr_vput(dst + i + CDR_LANES, cdr_vget_bf16(x + i + CDR_LANES));
    }
    for (; i < n; i++) dst[i] = cdr_bf16_to_f32(x[i]);
}
static inline int64_t cdr_padded(int64_t n) { return (n + 31) / 32 * 32; }      /* room for n elements and what is read beyond them, in any file */
/* Elements at .. at + n of a row as F32: the row's own bytes or buf. Beyond n: zeros in buf. */
CDR_VINLINE const float *cdr_take(int dtype, const void *row, int64_t at, int64_t n, float *buf)
{
    if (dtype == CDR_F32 && n % CDR_XLANES == 0) return (const float *)row + at;
    if (dtype == CDR_BF16) cdr_widen_block((const uint16_t *)row + at, n, buf);
    else if (dtype == CDR_F32) memcpy(buf, (const float *)row + at, (size_t)n * sizeof(float));
    else cdr_to_f32(dtype, (const char *)row + cdr_dtype_bytes(dtype, at), buf, n);
    for (int64_t i = n; i % CDR_XLANES != 0; i++) buf[i] = 0.0f;
    return buf;
}
CDR_VINLINE float *cdr_room(int dtype, void *row, int64_t at, int64_t n, bool stream, float *buf)
{
    return dtype == CDR_F32 && n % CDR_XLANES == 0 && !stream ? (float *)row + at : buf;
}

/* Are outputs of so many bytes written past the caches? Not what the next operator may still find in one. */
enum { CDR_STREAM_BYTES = 24 << 20 };
static inline bool cdr_streams(const cdr_type *t) { return cdr_type_bytes(t) >= CDR_STREAM_BYTES; }
CDR_VINLINE void cdr_stream_end(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
#if defined(__SSE2__)
CDR_VINLINE bool cdr_can_stream(const void *dst) { return ((uintptr_t)dst & (4 * CDR_LANES - 1)) == 0; }
CDR_VINLINE void cdr_vstream(float *p, cdr_vf x)
{
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)x);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, (__m256)x);
#else
    _mm_stream_ps(p, (__m128)x);
#endif
}
#else
CDR_VINLINE bool cdr_can_stream(const void *dst) { return dst == NULL; }
CDR_VINLINE void cdr_vstream(float *p, cdr_vf x) { cdr_vput(p, x); }
#endif

/* The bytes as they are */
CDR_VINLINE void cdr_stream_copy(void *dst, const void *src, size_t bytes)
{
    size_t i = 0;
    if (cdr_can_stream(dst))
        for (; i + 4 * CDR_LANES <= bytes; i += 4 * CDR_LANES) {
            cdr_vf x;
            memcpy(&x, (const char *)src + i, sizeof x);
            cdr_vstream((float *)(void *)((char *)dst + i), x);
        }
    memcpy((char *)dst + i, (const char *)src + i, bytes - i);
}
CDR_VINLINE void cdr_narrow_block(const float *src, void *dst, int64_t n, bool stream)
{
    uint16_t *y = (uint16_t *)dst;
    int64_t i = 0;
    if (stream && cdr_can_stream(y))
        for (; i + 2 * CDR_LANES <= n; i += 2 * CDR_LANES) cdr_vstream((float *)dst + i / 2, cdr_vnarrow(cdr_vget(src + i), cdr_vget(src + i + CDR_LANES)));
    for (; i + 2 * CDR_LANES <= n; i += 2 * CDR_LANES) cdr_vput((float *)dst + i / 2, cdr_vnarrow(cdr_vget(src + i), cdr_vget(src + i + CDR_LANES)));
    for (; i < n; i++) y[i] = cdr_f32_to_bf16(src[i]);
}
/* Elements at .. at + n of a row become src, rounded once; src from cdr_room. */
CDR_VINLINE void cdr_give(int dtype, const float *src, void *row, int64_t at, int64_t n, bool stream)
{
    float *to = (float *)row + at;
    if (dtype == CDR_F32 && src == to) return;
    if (dtype == CDR_BF16) {
        cdr_narrow_block(src, (uint16_t *)row + at, n, stream);
    } else if (dtype == CDR_F32) {
        int64_t i = 0;
        if (stream && cdr_can_stream(to)) for (; i + CDR_LANES <= n; i += CDR_LANES) cdr_vstream(to + i, cdr_vget(src + i));
        memcpy(to + i, src + i, (size_t)(n - i) * sizeof(float));
    } else {
        cdr_from_f32(dtype, src, (char *)row + cdr_dtype_bytes(dtype, at), n);
    }
}
/* The same, added to what is there; src may be buf. old: CDR_BLOCK floats. */
CDR_VINLINE void cdr_give_sum(int dtype, const float *src, void *row, int64_t at, int64_t n, float *old, float *sum)
{
    const float *o = cdr_take(dtype, row, at, n, old);
    float *s = cdr_room(dtype, row, at, n, false, sum);
    for (int64_t i = 0; i < n; i += CDR_LANES) cdr_vput(s + i, cdr_vget(o + i) + cdr_vget(src + i));
    cdr_give(dtype, s, row, at, n, false);
}

#ifdef __cplusplus
}
#endif
#endif
