/* avx512.h: AVX-512 (F, BW, DQ, VL), AVX-512 BF16 and AMX BF16 over AVX2, for a build with CADRE_EMULATE: forced into every file
 * *_avx512.c, *_avx512_bf16.c and *_amx.c, it replaces their intrinsics, so that a machine without these sets runs the same sources.
 *
 *   cmake -S . -B build-emulate -G Ninja -DCADRE_EMULATE=ON && ninja -C build-emulate && CADRE_ISA=amx build-emulate/cadre check
 *
 * A kernel that needs an intrinsic that is not here does not compile in that build: add it here, as the instruction is documented.
 * The types stay those of immintrin.h, vectors of 64 bytes that the compiler splits, so that casts between them and operators
 * on them work. Masked loads and stores touch no byte that the mask leaves out, so memcheck and the sanitizers see an edge that is wrong.
 * Source: Intel SDM volume 2, operation of each instruction.
 *
 * vdpbf16ps: per lane c = fma(a odd, b odd, c), then c = fma(a even, b even, c); each step rounds to nearest even, takes a
 *   subnormal input as zero and gives zero for a result that is below 2^-126 after rounding; MXCSR plays no part.          (1)
 * tdpbf16ps: per element of the tile two chains from zero over the k of the row, one of the even and one of the odd products,
 *   steps as in (1); c = c + (even + odd), both additions with the same treatment of subnormals.                           (2)
 * The order of the sums in _mm512_reduce_add_ps is that of gcc and clang: halves, quarters, .. */
#ifndef CDR_EMULATE_AVX512_H
#define CDR_EMULATE_AVX512_H
#include <immintrin.h>       /* first: below, its macros must not look as if the instructions were there */
#include <stdint.h>
#include <string.h>
#pragma GCC system_header    /* many intrinsics are macros, which are defined anew here; the compiler's warning of it cannot be had singly */

#if !defined(__AVX2__) || defined(__AVX512F__)
#error "emulation is for files that are compiled for x86-64-v3"
#endif
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#define __AVX512CD__ 1
#define __AVX512VNNI__ 1
#define __AVX512BF16__ 1
#define __AMX_TILE__ 1
#define __AMX_BF16__ 1

/* Vectors of BF16 are words here: clang's own type would be converted by way of F32 on a processor without BF16. */
#define __m512bh __m512i
#define __m256bh __m256i

#define EMU static inline __attribute__((always_inline, unused))

/* ---- halves, lanes ------------------------------------------------------------------------------------------------ */
typedef union {
    __m512 f; __m512d d; __m512i i;
    __m256 fh[2]; __m256i ih[2]; __m128 fq[4]; __m128i iq[4];
    float f32[16]; int32_t i32[16]; uint32_t u32[16]; int16_t i16[32]; uint16_t u16[32]; int8_t i8[64]; uint8_t u8[64]; uint64_t u64[8];
} emu_512;
typedef union {
    __m256 f; __m256i i;
    float f32[8]; int32_t i32[8]; uint32_t u32[8]; uint16_t u16[16]; uint8_t u8[32]; uint64_t u64[4];
} emu_256;
typedef union { __m128i i; uint8_t u8[16]; } emu_128;
EMU emu_512 emu_of_f(__m512 x) { emu_512 u; u.f = x; return u; }
EMU emu_512 emu_of_i(__m512i x) { emu_512 u; u.i = x; return u; }
EMU emu_256 emu_of_i256(__m256i x) { emu_256 u; u.i = x; return u; }

/* f of each half */
#define EMU_F1(name, half) EMU __m512 name(__m512 x) { emu_512 a = emu_of_f(x); a.fh[0] = half(a.fh[0]); a.fh[1] = half(a.fh[1]); return a.f; }
#define EMU_F2(name, half) EMU __m512 name(__m512 x, __m512 y) { emu_512 a = emu_of_f(x), b = emu_of_f(y); \
    a.fh[0] = half(a.fh[0], b.fh[0]); a.fh[1] = half(a.fh[1], b.fh[1]); return a.f; }
#define EMU_F3(name, half) EMU __m512 name(__m512 x, __m512 y, __m512 z) { emu_512 a = emu_of_f(x), b = emu_of_f(y), c = emu_of_f(z); \
    a.fh[0] = half(a.fh[0], b.fh[0], c.fh[0]); a.fh[1] = half(a.fh[1], b.fh[1], c.fh[1]); return a.f; }
#define EMU_I2(name, half) EMU __m512i name(__m512i x, __m512i y) { emu_512 a = emu_of_i(x), b = emu_of_i(y); \
    a.ih[0] = half(a.ih[0], b.ih[0]); a.ih[1] = half(a.ih[1], b.ih[1]); return a.i; }
#define EMU_IS(name, half) EMU __m512i name(__m512i x, unsigned n) { emu_512 a = emu_of_i(x); \
    a.ih[0] = half(a.ih[0], (int)n); a.ih[1] = half(a.ih[1], (int)n); return a.i; }

EMU_F2(emu_add_ps, _mm256_add_ps)
EMU_F2(emu_sub_ps, _mm256_sub_ps)
EMU_F2(emu_mul_ps, _mm256_mul_ps)
EMU_F2(emu_div_ps, _mm256_div_ps)
EMU_F2(emu_max_ps, _mm256_max_ps)
EMU_F2(emu_min_ps, _mm256_min_ps)
EMU_F2(emu_and_ps, _mm256_and_ps)
EMU_F2(emu_or_ps, _mm256_or_ps)
EMU_F2(emu_xor_ps, _mm256_xor_ps)
EMU_F2(emu_andnot_ps, _mm256_andnot_ps)
EMU_F2(emu_unpacklo_ps, _mm256_unpacklo_ps)
EMU_F2(emu_unpackhi_ps, _mm256_unpackhi_ps)
EMU_F1(emu_sqrt_ps, _mm256_sqrt_ps)
EMU_F3(emu_fmadd_ps, _mm256_fmadd_ps)
EMU_F3(emu_fnmadd_ps, _mm256_fnmadd_ps)
EMU_F3(emu_fmsub_ps, _mm256_fmsub_ps)
EMU_F3(emu_fnmsub_ps, _mm256_fnmsub_ps)
#define _mm512_add_ps emu_add_ps
#define _mm512_sub_ps emu_sub_ps
#define _mm512_mul_ps emu_mul_ps
#define _mm512_div_ps emu_div_ps
#define _mm512_max_ps emu_max_ps
#define _mm512_min_ps emu_min_ps
#define _mm512_and_ps emu_and_ps
#define _mm512_or_ps emu_or_ps
#define _mm512_xor_ps emu_xor_ps
#define _mm512_andnot_ps emu_andnot_ps
#define _mm512_unpacklo_ps emu_unpacklo_ps
#define _mm512_unpackhi_ps emu_unpackhi_ps
#define _mm512_sqrt_ps emu_sqrt_ps
#define _mm512_fmadd_ps emu_fmadd_ps
#define _mm512_fnmadd_ps emu_fnmadd_ps
#define _mm512_fmsub_ps emu_fmsub_ps
#define _mm512_fnmsub_ps emu_fnmsub_ps

EMU_I2(emu_add_epi32, _mm256_add_epi32)
EMU_I2(emu_sub_epi32, _mm256_sub_epi32)
EMU_I2(emu_mullo_epi32, _mm256_mullo_epi32)
EMU_I2(emu_max_epi32, _mm256_max_epi32)
EMU_I2(emu_min_epi32, _mm256_min_epi32)
EMU_I2(emu_max_epu32, _mm256_max_epu32)
EMU_I2(emu_min_epu32, _mm256_min_epu32)
EMU_I2(emu_add_epi16, _mm256_add_epi16)
EMU_I2(emu_sub_epi16, _mm256_sub_epi16)
EMU_I2(emu_mullo_epi16, _mm256_mullo_epi16)
EMU_I2(emu_add_epi8, _mm256_add_epi8)
EMU_I2(emu_add_epi64, _mm256_add_epi64)
EMU_I2(emu_and_si512, _mm256_and_si256)
EMU_I2(emu_or_si512, _mm256_or_si256)
EMU_I2(emu_xor_si512, _mm256_xor_si256)
EMU_I2(emu_andnot_si512, _mm256_andnot_si256)
EMU_I2(emu_sllv_epi32, _mm256_sllv_epi32)
EMU_I2(emu_srlv_epi32, _mm256_srlv_epi32)
EMU_I2(emu_srav_epi32, _mm256_srav_epi32)
EMU_I2(emu_shuffle_epi8, _mm256_shuffle_epi8)
EMU_I2(emu_unpacklo_epi8, _mm256_unpacklo_epi8)
EMU_I2(emu_unpackhi_epi8, _mm256_unpackhi_epi8)
EMU_I2(emu_unpacklo_epi16, _mm256_unpacklo_epi16)
EMU_I2(emu_unpackhi_epi16, _mm256_unpackhi_epi16)
EMU_I2(emu_unpacklo_epi32, _mm256_unpacklo_epi32)
EMU_I2(emu_unpackhi_epi32, _mm256_unpackhi_epi32)
EMU_I2(emu_unpacklo_epi64, _mm256_unpacklo_epi64)
EMU_I2(emu_unpackhi_epi64, _mm256_unpackhi_epi64)
EMU_I2(emu_packus_epi32, _mm256_packus_epi32)
EMU_IS(emu_slli_epi32, _mm256_slli_epi32)
EMU_IS(emu_srli_epi32, _mm256_srli_epi32)
EMU_IS(emu_srai_epi32, _mm256_srai_epi32)
EMU_IS(emu_slli_epi16, _mm256_slli_epi16)
EMU_IS(emu_srli_epi16, _mm256_srli_epi16)
EMU_IS(emu_slli_epi64, _mm256_slli_epi64)
EMU_IS(emu_srli_epi64, _mm256_srli_epi64)
#define _mm512_add_epi32 emu_add_epi32
#define _mm512_sub_epi32 emu_sub_epi32
#define _mm512_mullo_epi32 emu_mullo_epi32
#define _mm512_max_epi32 emu_max_epi32
#define _mm512_min_epi32 emu_min_epi32
#define _mm512_max_epu32 emu_max_epu32
#define _mm512_min_epu32 emu_min_epu32
#define _mm512_add_epi16 emu_add_epi16
#define _mm512_sub_epi16 emu_sub_epi16
#define _mm512_mullo_epi16 emu_mullo_epi16
#define _mm512_add_epi8 emu_add_epi8
#define _mm512_add_epi64 emu_add_epi64
#define _mm512_and_si512 emu_and_si512
#define _mm512_and_epi32 emu_and_si512
#define _mm512_or_si512 emu_or_si512
#define _mm512_or_epi32 emu_or_si512
#define _mm512_xor_si512 emu_xor_si512
#define _mm512_xor_epi32 emu_xor_si512
#define _mm512_andnot_si512 emu_andnot_si512
#define _mm512_sllv_epi32 emu_sllv_epi32
#define _mm512_srlv_epi32 emu_srlv_epi32
#define _mm512_srav_epi32 emu_srav_epi32
#define _mm512_shuffle_epi8 emu_shuffle_epi8
#define _mm512_unpacklo_epi8 emu_unpacklo_epi8
#define _mm512_unpackhi_epi8 emu_unpackhi_epi8
#define _mm512_unpacklo_epi16 emu_unpacklo_epi16
#define _mm512_unpackhi_epi16 emu_unpackhi_epi16
#define _mm512_unpacklo_epi32 emu_unpacklo_epi32
#define _mm512_unpackhi_epi32 emu_unpackhi_epi32
#define _mm512_unpacklo_epi64 emu_unpacklo_epi64
#define _mm512_unpackhi_epi64 emu_unpackhi_epi64
#define _mm512_packus_epi32 emu_packus_epi32
#define _mm512_slli_epi32 emu_slli_epi32
#define _mm512_srli_epi32 emu_srli_epi32
#define _mm512_srai_epi32 emu_srai_epi32
#define _mm512_slli_epi16 emu_slli_epi16
#define _mm512_srli_epi16 emu_srli_epi16
#define _mm512_slli_epi64 emu_slli_epi64
#define _mm512_srli_epi64 emu_srli_epi64

/* bit i of m of what i: a b c is 4 2 1 */
EMU __m512i emu_ternary(__m512i x, __m512i y, __m512i z, int m)
{
    emu_512 a = emu_of_i(x), b = emu_of_i(y), c = emu_of_i(z), r = emu_of_i(x);
    for (int l = 0; l < 8; l++) {
        uint64_t s = 0;
        for (int i = 0; i < 8; i++) if (m >> i & 1) s |= (i & 4 ? a.u64[l] : ~a.u64[l]) & (i & 2 ? b.u64[l] : ~b.u64[l]) & (i & 1 ? c.u64[l] : ~c.u64[l]);
        r.u64[l] = s;
    }
    return r.i;
}
#define _mm512_ternarylogic_epi32(a, b, c, m) emu_ternary(a, b, c, m)

/* ---- constants, casts, memory ------------------------------------------------------------------------------------- */
EMU __m512 emu_set1_ps(float x) { emu_512 u; u.fh[0] = u.fh[1] = _mm256_set1_ps(x); return u.f; }
EMU __m512i emu_set1_epi32(int32_t x) { emu_512 u; u.ih[0] = u.ih[1] = _mm256_set1_epi32(x); return u.i; }
EMU __m512i emu_set1_epi16(int16_t x) { emu_512 u; u.ih[0] = u.ih[1] = _mm256_set1_epi16(x); return u.i; }
EMU __m512i emu_set1_epi8(int8_t x) { emu_512 u; u.ih[0] = u.ih[1] = _mm256_set1_epi8(x); return u.i; }
EMU __m512i emu_set1_epi64(int64_t x) { emu_512 u; u.ih[0] = u.ih[1] = _mm256_set1_epi64x(x); return u.i; }
EMU void emu_aligned(const void *p) { if ((uintptr_t)p % 64 != 0) __builtin_trap(); }     /* the instruction faults */
EMU __m512 emu_load_ps(const void *p) { emu_aligned(p); emu_512 u; memcpy(&u, p, 64); return u.f; }
EMU __m512i emu_load_i(const void *p) { emu_aligned(p); emu_512 u; memcpy(&u, p, 64); return u.i; }
EMU __m512 emu_loadu_ps(const void *p) { emu_512 u; memcpy(&u, p, 64); return u.f; }
EMU __m512i emu_loadu_i(const void *p) { emu_512 u; memcpy(&u, p, 64); return u.i; }
EMU void emu_store_ps(void *p, __m512 x) { emu_aligned(p); memcpy(p, &x, 64); }
EMU void emu_store_i(void *p, __m512i x) { emu_aligned(p); memcpy(p, &x, 64); }
EMU void emu_storeu_ps(void *p, __m512 x) { memcpy(p, &x, 64); }
EMU void emu_storeu_i(void *p, __m512i x) { memcpy(p, &x, 64); }
#define _mm512_set1_ps emu_set1_ps
#define _mm512_set1_epi32 emu_set1_epi32
#define _mm512_set1_epi16 emu_set1_epi16
#define _mm512_set1_epi8 emu_set1_epi8
#define _mm512_set1_epi64 emu_set1_epi64
#define _mm512_setzero_ps() emu_set1_ps(0.0f)
#define _mm512_setzero_si512() emu_set1_epi32(0)
#define _mm512_load_ps emu_load_ps
#define _mm512_load_si512 emu_load_i
#define _mm512_load_epi32 emu_load_i
#define _mm512_loadu_ps emu_loadu_ps
#define _mm512_loadu_si512 emu_loadu_i
#define _mm512_loadu_epi32 emu_loadu_i
#define _mm512_loadu_epi16 emu_loadu_i
#define _mm512_loadu_epi8 emu_loadu_i
#define _mm512_store_ps emu_store_ps
#define _mm512_store_si512 emu_store_i
#define _mm512_store_epi32 emu_store_i
#define _mm512_stream_ps emu_store_ps
#define _mm512_stream_si512 emu_store_i
#define _mm512_storeu_ps emu_storeu_ps
#define _mm512_storeu_si512 emu_storeu_i
#define _mm512_storeu_epi32 emu_storeu_i
#define _mm512_storeu_epi16 emu_storeu_i
#define _mm512_storeu_epi8 emu_storeu_i
#define _mm512_castps_si512(x) ((__m512i)(x))
#define _mm512_castsi512_ps(x) ((__m512)(x))

/* in order; the last first */
EMU __m512i emu_backwards(const void *p, size_t bytes)
{
    emu_512 u;
    for (size_t i = 0; i < 64; i += bytes) memcpy(u.u8 + i, (const char *)p + 64 - bytes - i, bytes);
    return u.i;
}
#define _mm512_setr_epi32(...) emu_loadu_i((const int32_t[16]){ __VA_ARGS__ })
#define _mm512_setr_ps(...) emu_loadu_ps((const float[16]){ __VA_ARGS__ })
#define _mm512_set_epi64(...) emu_backwards((const int64_t[8]){ __VA_ARGS__ }, 8)
#define _mm512_set_epi32(...) emu_backwards((const int32_t[16]){ __VA_ARGS__ }, 4)
#define _mm512_set_epi16(...) emu_backwards((const int16_t[32]){ __VA_ARGS__ }, 2)
#define _mm512_set_epi8(...) emu_backwards((const int8_t[64]){ __VA_ARGS__ }, 1)
#define _mm512_set_ps(...) ((__m512)emu_backwards((const float[16]){ __VA_ARGS__ }, 4))

/* ---- parts ------------------------------------------------------------------------------------------------------------ */
EMU __m256 emu_half_ps(__m512 x, int i) { return emu_of_f(x).fh[i & 1]; }
EMU __m256i emu_half_i(__m512i x, int i) { return emu_of_i(x).ih[i & 1]; }
EMU __m128 emu_quarter_ps(__m512 x, int i) { return emu_of_f(x).fq[i & 3]; }
EMU __m128i emu_quarter_i(__m512i x, int i) { return emu_of_i(x).iq[i & 3]; }
EMU __m512 emu_join_ps(__m256 lo, __m256 hi) { emu_512 u; u.fh[0] = lo; u.fh[1] = hi; return u.f; }
EMU __m512i emu_join_i(__m256i lo, __m256i hi) { emu_512 u; u.ih[0] = lo; u.ih[1] = hi; return u.i; }
EMU __m512 emu_insert_half_ps(__m512 x, __m256 y, int i) { emu_512 u = emu_of_f(x); u.fh[i & 1] = y; return u.f; }
EMU __m512i emu_insert_half_i(__m512i x, __m256i y, int i) { emu_512 u = emu_of_i(x); u.ih[i & 1] = y; return u.i; }
EMU __m512i emu_insert_quarter_i(__m512i x, __m128i y, int i) { emu_512 u = emu_of_i(x); u.iq[i & 3] = y; return u.i; }
EMU __m512 emu_4_quarters_ps(__m128 x) { emu_512 u; u.fq[0] = u.fq[1] = u.fq[2] = u.fq[3] = x; return u.f; }
EMU __m512i emu_4_quarters_i(__m128i x) { emu_512 u; u.iq[0] = u.iq[1] = u.iq[2] = u.iq[3] = x; return u.i; }
EMU __m512 emu_quarters_ps(__m512 x, __m512 y, int m)
{
    emu_512 a = emu_of_f(x), b = emu_of_f(y), r = a;
    r.fq[0] = a.fq[m & 3];
    r.fq[1] = a.fq[m >> 2 & 3];
    r.fq[2] = b.fq[m >> 4 & 3];
    r.fq[3] = b.fq[m >> 6 & 3];
    return r.f;
}
#define _mm512_castps512_ps256(x) emu_half_ps(x, 0)
#define _mm512_castsi512_si256(x) emu_half_i(x, 0)
#define _mm512_castps512_ps128(x) emu_quarter_ps(x, 0)
#define _mm512_castsi512_si128(x) emu_quarter_i(x, 0)
#define _mm512_castps256_ps512(x) emu_join_ps(x, _mm256_setzero_ps())
#define _mm512_castsi256_si512(x) emu_join_i(x, _mm256_setzero_si256())
#define _mm512_zextps256_ps512(x) emu_join_ps(x, _mm256_setzero_ps())
#define _mm512_zextsi256_si512(x) emu_join_i(x, _mm256_setzero_si256())
#define _mm512_castsi128_si512(x) emu_join_i(_mm256_castsi128_si256(x), _mm256_setzero_si256())
#define _mm512_extractf32x8_ps emu_half_ps
#define _mm512_extracti32x8_epi32 emu_half_i
#define _mm512_extracti64x4_epi64 emu_half_i
#define _mm512_extractf32x4_ps emu_quarter_ps
#define _mm512_extracti32x4_epi32 emu_quarter_i
#define _mm512_insertf32x8 emu_insert_half_ps
#define _mm512_inserti32x8 emu_insert_half_i
#define _mm512_inserti32x4 emu_insert_quarter_i
#define _mm512_inserti64x4 emu_insert_half_i
#define _mm512_broadcast_f32x4 emu_4_quarters_ps
#define _mm512_broadcast_i32x4 emu_4_quarters_i
#define _mm512_broadcast_f32x8(x) emu_join_ps(x, x)
#define _mm512_broadcast_i64x4(x) emu_join_i(x, x)
#define _mm512_broadcastss_ps(x) emu_set1_ps(_mm_cvtss_f32(x))
#define _mm512_broadcastd_epi32(x) emu_set1_epi32(_mm_cvtsi128_si32(x))
#define _mm512_shuffle_f32x4(x, y, m) emu_quarters_ps(x, y, m)
#define _mm512_shuffle_i32x4(x, y, m) ((__m512i)emu_quarters_ps((__m512)(x), (__m512)(y), m))
#define _mm512_shuffle_i64x2(x, y, m) ((__m512i)emu_quarters_ps((__m512)(x), (__m512)(y), m))

EMU __m512 emu_shuffle_ps(__m512 x, __m512 y, int m)
{
    emu_512 a = emu_of_f(x), b = emu_of_f(y), r = a;
    for (int q = 0; q < 16; q += 4) {
        r.f32[q] = a.f32[q + (m & 3)];
        r.f32[q + 1] = a.f32[q + (m >> 2 & 3)];
        r.f32[q + 2] = b.f32[q + (m >> 4 & 3)];
        r.f32[q + 3] = b.f32[q + (m >> 6 & 3)];
    }
    return r.f;
}
#define _mm512_shuffle_ps(x, y, m) emu_shuffle_ps(x, y, m)
#define _mm512_permute_ps(x, m) emu_shuffle_ps(x, x, m)
#define _mm512_shuffle_epi32(x, m) ((__m512i)emu_shuffle_ps((__m512)(x), (__m512)(x), m))

/* lane i is lane index[i] of (x, y), 32 bits or 16 bits */
EMU __m512i emu_pick32(__m512i x, __m512i index, __m512i y, uint32_t of)
{
    emu_512 a = emu_of_i(x), b = emu_of_i(y), k = emu_of_i(index), r = a;
    for (int i = 0; i < 16; i++) {
        const uint32_t at = k.u32[i] & (of - 1);
        r.u32[i] = at < 16 ? a.u32[at] : b.u32[at - 16];
    }
    return r.i;
}
EMU __m512i emu_pick16(__m512i x, __m512i index, __m512i y, uint32_t of)
{
    emu_512 a = emu_of_i(x), b = emu_of_i(y), k = emu_of_i(index), r = a;
    for (int i = 0; i < 32; i++) {
        const uint32_t at = k.u16[i] & (of - 1);
        r.u16[i] = at < 32 ? a.u16[at] : b.u16[at - 32];
    }
    return r.i;
}
#define _mm512_permutexvar_epi32(k, x) emu_pick32(x, k, x, 16)
#define _mm512_permutexvar_ps(k, x) ((__m512)emu_pick32((__m512i)(x), k, (__m512i)(x), 16))
#define _mm512_permutex2var_epi32(x, k, y) emu_pick32(x, k, y, 32)
#define _mm512_permutex2var_ps(x, k, y) ((__m512)emu_pick32((__m512i)(x), k, (__m512i)(y), 32))
#define _mm512_permutexvar_epi16(k, x) emu_pick16(x, k, x, 32)
#define _mm512_permutex2var_epi16(x, k, y) emu_pick16(x, k, y, 64)

/* ---- masks ------------------------------------------------------------------------------------------------------------ */
EMU __m512i emu_blend32(__mmask16 k, __m512i no, __m512i yes)
{
    emu_512 a = emu_of_i(no), b = emu_of_i(yes);
    for (int i = 0; i < 16; i++) if (k >> i & 1) a.u32[i] = b.u32[i];
    return a.i;
}
EMU __m512i emu_blend16(__mmask32 k, __m512i no, __m512i yes)
{
    emu_512 a = emu_of_i(no), b = emu_of_i(yes);
    for (int i = 0; i < 32; i++) if (k >> i & 1) a.u16[i] = b.u16[i];
    return a.i;
}
EMU __m512 emu_blend_ps(__mmask16 k, __m512 no, __m512 yes) { return (__m512)emu_blend32(k, (__m512i)no, (__m512i)yes); }
/* n lanes of `bytes` bytes; what the mask leaves out is neither read nor written, and is as it was in *lanes */
EMU void emu_load_lanes(void *lanes, const void *p, uint64_t k, int n, size_t bytes)
{
    for (int i = 0; i < n; i++) if (k >> i & 1) memcpy((char *)lanes + (size_t)i * bytes, (const char *)p + (size_t)i * bytes, bytes);
}
EMU void emu_store_lanes(void *p, const void *lanes, uint64_t k, int n, size_t bytes)
{
    for (int i = 0; i < n; i++) if (k >> i & 1) memcpy((char *)p + (size_t)i * bytes, (const char *)lanes + (size_t)i * bytes, bytes);
}
EMU __m512i emu_mask_load(__m512i from, uint64_t k, const void *p, int n, size_t bytes) { emu_load_lanes(&from, p, k, n, bytes); return from; }
EMU __m256i emu_mask_load256(__m256i from, uint64_t k, const void *p, int n, size_t bytes) { emu_load_lanes(&from, p, k, n, bytes); return from; }
EMU void emu_mask_store(void *p, uint64_t k, __m512i x, int n, size_t bytes) { emu_store_lanes(p, &x, k, n, bytes); }
EMU void emu_mask_store256(void *p, uint64_t k, __m256i x, int n, size_t bytes) { emu_store_lanes(p, &x, k, n, bytes); }
EMU void emu_mask_store_ps(void *p, uint64_t k, __m512 x) { emu_store_lanes(p, &x, k, 16, 4); }
EMU void emu_mask_store_ps256(void *p, uint64_t k, __m256 x) { emu_store_lanes(p, &x, k, 8, 4); }
#define _mm512_mask_mov_ps(no, k, yes) emu_blend_ps(k, no, yes)
#define _mm512_mask_blend_ps(k, no, yes) emu_blend_ps(k, no, yes)
#define _mm512_maskz_mov_ps(k, yes) emu_blend_ps(k, emu_set1_ps(0.0f), yes)
#define _mm512_mask_mov_epi32(no, k, yes) emu_blend32(k, no, yes)
#define _mm512_mask_blend_epi32(k, no, yes) emu_blend32(k, no, yes)
#define _mm512_maskz_mov_epi32(k, yes) emu_blend32(k, emu_set1_epi32(0), yes)
#define _mm512_mask_mov_epi16(no, k, yes) emu_blend16(k, no, yes)
#define _mm512_mask_blend_epi16(k, no, yes) emu_blend16(k, no, yes)
#define _mm512_mask_or_epi32(no, k, x, y) emu_blend32(k, no, emu_or_si512(x, y))
#define _mm512_mask_and_epi32(no, k, x, y) emu_blend32(k, no, emu_and_si512(x, y))
#define _mm512_mask_add_epi32(no, k, x, y) emu_blend32(k, no, emu_add_epi32(x, y))
#define _mm512_mask_add_ps(no, k, x, y) emu_blend_ps(k, no, emu_add_ps(x, y))
#define _mm512_mask_mul_ps(no, k, x, y) emu_blend_ps(k, no, emu_mul_ps(x, y))
#define _mm512_mask_fmadd_ps(x, k, y, z) emu_blend_ps(k, x, emu_fmadd_ps(x, y, z))
#define _mm512_maskz_loadu_ps(k, p) ((__m512)emu_mask_load(emu_set1_epi32(0), k, p, 16, 4))
#define _mm512_mask_loadu_ps(from, k, p) ((__m512)emu_mask_load((__m512i)(from), k, p, 16, 4))
#define _mm512_maskz_loadu_epi32(k, p) emu_mask_load(emu_set1_epi32(0), k, p, 16, 4)
#define _mm512_maskz_loadu_epi16(k, p) emu_mask_load(emu_set1_epi32(0), k, p, 32, 2)
#define _mm512_maskz_loadu_epi8(k, p) emu_mask_load(emu_set1_epi32(0), k, p, 64, 1)
#define _mm512_mask_storeu_ps(p, k, x) emu_mask_store_ps(p, k, x)
#define _mm512_mask_storeu_epi32(p, k, x) emu_mask_store(p, k, x, 16, 4)
#define _mm512_mask_storeu_epi16(p, k, x) emu_mask_store(p, k, x, 32, 2)
#define _mm512_mask_storeu_epi8(p, k, x) emu_mask_store(p, k, x, 64, 1)
#define _mm256_maskz_loadu_ps(k, p) ((__m256)emu_mask_load256(_mm256_setzero_si256(), k, p, 8, 4))
#define _mm256_maskz_loadu_epi32(k, p) emu_mask_load256(_mm256_setzero_si256(), k, p, 8, 4)
#define _mm256_maskz_loadu_epi16(k, p) emu_mask_load256(_mm256_setzero_si256(), k, p, 16, 2)
#define _mm256_maskz_loadu_epi8(k, p) emu_mask_load256(_mm256_setzero_si256(), k, p, 32, 1)
#define _mm256_mask_storeu_ps(p, k, x) emu_mask_store_ps256(p, k, x)
#define _mm256_mask_storeu_epi32(p, k, x) emu_mask_store256(p, k, x, 8, 4)
#define _mm256_mask_storeu_epi16(p, k, x) emu_mask_store256(p, k, x, 16, 2)
#define _mm256_mask_storeu_epi8(p, k, x) emu_mask_store256(p, k, x, 32, 1)

/* comparisons of lanes: the bits of those where it holds */
#define EMU_CMP(name, lane, op) EMU __mmask16 name(__m512i x, __m512i y) { emu_512 a = emu_of_i(x), b = emu_of_i(y); \
    unsigned k = 0; for (int i = 0; i < 16; i++) k |= (unsigned)(a.lane[i] op b.lane[i]) << i; return (__mmask16)k; }
EMU_CMP(emu_cmpeq_epi32, i32, ==)
EMU_CMP(emu_cmpneq_epi32, i32, !=)
EMU_CMP(emu_cmpgt_epi32, i32, >)
EMU_CMP(emu_cmpge_epi32, i32, >=)
EMU_CMP(emu_cmplt_epi32, i32, <)
EMU_CMP(emu_cmple_epi32, i32, <=)
EMU_CMP(emu_cmpgt_epu32, u32, >)
EMU_CMP(emu_cmpge_epu32, u32, >=)
EMU_CMP(emu_cmplt_epu32, u32, <)
EMU_CMP(emu_cmple_epu32, u32, <=)
#define _mm512_cmpeq_epi32_mask emu_cmpeq_epi32
#define _mm512_cmpneq_epi32_mask emu_cmpneq_epi32
#define _mm512_cmpgt_epi32_mask emu_cmpgt_epi32
#define _mm512_cmpge_epi32_mask emu_cmpge_epi32
#define _mm512_cmplt_epi32_mask emu_cmplt_epi32
#define _mm512_cmple_epi32_mask emu_cmple_epi32
#define _mm512_cmpgt_epu32_mask emu_cmpgt_epu32
#define _mm512_cmpge_epu32_mask emu_cmpge_epu32
#define _mm512_cmplt_epu32_mask emu_cmplt_epu32
#define _mm512_cmple_epu32_mask emu_cmple_epu32
#define _mm512_test_epi32_mask(x, y) emu_cmpneq_epi32(emu_and_si512(x, y), emu_set1_epi32(0))
EMU unsigned emu_signs(__m512 x) { return (unsigned)_mm256_movemask_ps(emu_half_ps(x, 0)) | (unsigned)_mm256_movemask_ps(emu_half_ps(x, 1)) << 8; }
#define _mm512_cmp_ps_mask(x, y, op) ((__mmask16)emu_signs(emu_join_ps(_mm256_cmp_ps(emu_half_ps(x, 0), emu_half_ps(y, 0), op), \
                                                                      _mm256_cmp_ps(emu_half_ps(x, 1), emu_half_ps(y, 1), op))))
#define _mm512_movepi32_mask(x) ((__mmask16)emu_signs((__m512)(x)))

/* ---- conversions, rounding, sums --------------------------------------------------------------------------------------- */
#define _mm512_cvtepu16_epi32(x) emu_join_i(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)))
#define _mm512_cvtepi16_epi32(x) emu_join_i(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(x)), _mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, 1)))
#define _mm512_cvtepu8_epi16(x) emu_join_i(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(x)), _mm256_cvtepu8_epi16(_mm256_extracti128_si256(x, 1)))
#define _mm512_cvtepi8_epi16(x) emu_join_i(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(x)), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(x, 1)))
#define _mm512_cvtepu8_epi32(x) emu_join_i(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))
#define _mm512_cvtepi8_epi32(x) emu_join_i(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))
EMU __m256i emu_low16(__m512i x)
{
    emu_512 a = emu_of_i(x);
    emu_256 r;
    for (int i = 0; i < 16; i++) r.u16[i] = (uint16_t)a.u32[i];
    return r.i;
}
EMU __m128i emu_low8(__m512i x)
{
    emu_512 a = emu_of_i(x);
    emu_128 r;
    for (int i = 0; i < 16; i++) r.u8[i] = (uint8_t)a.u32[i];
    return r.i;
}
#define _mm512_cvtepi32_epi16 emu_low16
#define _mm512_cvtepi32_epi8 emu_low8
#define _mm512_cvtps_epi32(x) emu_join_i(_mm256_cvtps_epi32(emu_half_ps(x, 0)), _mm256_cvtps_epi32(emu_half_ps(x, 1)))
#define _mm512_cvttps_epi32(x) emu_join_i(_mm256_cvttps_epi32(emu_half_ps(x, 0)), _mm256_cvttps_epi32(emu_half_ps(x, 1)))
#define _mm512_cvtepi32_ps(x) emu_join_ps(_mm256_cvtepi32_ps(emu_half_i(x, 0)), _mm256_cvtepi32_ps(emu_half_i(x, 1)))
/* to integers only: the upper four bits of how are 0 */
#define _mm512_roundscale_ps(x, how) emu_join_ps(_mm256_round_ps(emu_half_ps(x, 0), (how) + 0 / !((how) >> 4)), _mm256_round_ps(emu_half_ps(x, 1), how))

#define EMU_REDUCE(name, half, quarter, last) EMU float name(__m512 x) { \
    const __m256 h = half(emu_half_ps(x, 0), emu_half_ps(x, 1)); \
    const __m128 q = quarter(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)), d = quarter(q, _mm_movehl_ps(q, q)); \
    return _mm_cvtss_f32(last(d, _mm_movehdup_ps(d))); }
EMU_REDUCE(emu_reduce_add_ps, _mm256_add_ps, _mm_add_ps, _mm_add_ss)
EMU_REDUCE(emu_reduce_max_ps, _mm256_max_ps, _mm_max_ps, _mm_max_ss)
EMU_REDUCE(emu_reduce_min_ps, _mm256_min_ps, _mm_min_ps, _mm_min_ss)
#define _mm512_reduce_add_ps emu_reduce_add_ps
#define _mm512_reduce_max_ps emu_reduce_max_ps
#define _mm512_reduce_min_ps emu_reduce_min_ps

/* ---- BF16 -------------------------------------------------------------------------------------------------------------- */
/* zero of the same sign where the exponent is zero */
EMU __m256 emu_no_subnormal(__m256 x)
{
    const __m256i u = (__m256i)x, e = _mm256_and_si256(u, _mm256_set1_epi32(0x7f800000));
    return (__m256)_mm256_andnot_si256(_mm256_and_si256(_mm256_cmpeq_epi32(e, _mm256_setzero_si256()), _mm256_set1_epi32(0x7fffffff)), u);
}
/* A step of (1). A result of 2^-126 may be one that is below it when it is rounded with an unbounded exponent, that is below
 * (1 - 2^-25) 2^-126; the product of two BF16 is exact in double, and a sum in double does not cross that border. */
EMU __m256 emu_bf16_step(__m256 a, __m256 b, __m256 c)
{
    a = emu_no_subnormal(a);
    b = emu_no_subnormal(b);
    c = emu_no_subnormal(c);
    emu_256 r = { .f = _mm256_fmadd_ps(a, b, c) };
    const __m256i size = _mm256_and_si256(r.i, _mm256_set1_epi32(0x7fffffff));
    if (__builtin_expect(_mm256_movemask_epi8(_mm256_cmpeq_epi32(size, _mm256_set1_epi32(0x00800000))), 0)) {
        const emu_256 x = { .f = a }, y = { .f = b }, z = { .f = c };
        for (int i = 0; i < 8; i++) {
            const double s = (double)x.f32[i] * (double)y.f32[i] + (double)z.f32[i];
            if ((r.u32[i] & 0x7fffffff) == 0x00800000 && s < 0x1.ffffffp-127 && s > -0x1.ffffffp-127) r.u32[i] &= 0x80000000u;
        }
    }
    return emu_no_subnormal(r.f);
}
EMU __m256 emu_even(__m256i pairs) { return (__m256)_mm256_slli_epi32(pairs, 16); }
EMU __m256 emu_odd(__m256i pairs) { return (__m256)_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)); }
EMU __m256 emu_dp256(__m256 c, __m256i a, __m256i b)                                                                    /* (1) */
{
    return emu_bf16_step(emu_even(a), emu_even(b), emu_bf16_step(emu_odd(a), emu_odd(b), c));
}
EMU __m512 emu_dpbf16_ps(__m512 c, __m512bh a, __m512bh b)
{
    emu_512 x = { .i = a }, y = { .i = b }, z = { .f = c };
    return emu_join_ps(emu_dp256(z.fh[0], x.ih[0], y.ih[0]), emu_dp256(z.fh[1], x.ih[1], y.ih[1]));
}
EMU __m256 emu_dpbf16_ps256(__m256 c, __m256bh a, __m256bh b) { return emu_dp256(c, (__m256i)a, (__m256i)b); }
/* to nearest even; subnormal: zero; NaN: quiet */
EMU uint16_t emu_round_bf16(uint32_t u)
{
    if ((u & 0x7f800000u) == 0) return (uint16_t)(u >> 16 & 0x8000u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
EMU __m256bh emu_cvtneps_pbh(__m512 x)
{
    const emu_512 a = emu_of_f(x);
    emu_256 r;
    for (int i = 0; i < 16; i++) r.u16[i] = emu_round_bf16(a.u32[i]);
    return r.i;
}
EMU __m512bh emu_cvtne2ps_pbh(__m512 upper, __m512 lower)
{
    emu_512 r;
    r.ih[0] = (__m256i)emu_cvtneps_pbh(lower);
    r.ih[1] = (__m256i)emu_cvtneps_pbh(upper);
    return r.i;
}
#define _mm512_dpbf16_ps emu_dpbf16_ps
#define _mm256_dpbf16_ps emu_dpbf16_ps256
#define _mm512_cvtneps_pbh emu_cvtneps_pbh
#define _mm512_cvtne2ps_pbh emu_cvtne2ps_pbh

/* ---- AMX: eight tiles of a thread ------------------------------------------------------------------------------------------ */
typedef struct { uint8_t palette, start_row, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } emu_tile_config;
_Static_assert(sizeof(emu_tile_config) == 64, "as ldtilecfg reads it");
typedef struct { _Alignas(64) uint8_t row[16][64]; } emu_tile;
/* one for all files of the program */
__attribute__((weak)) _Thread_local struct { emu_tile_config config; emu_tile tile[8]; } emu_tiles;

EMU void emu_tile_loadconfig(const void *p)
{
    emu_tile_config c;
    memcpy(&c, p, sizeof c);
    if (c.palette > 1) __builtin_trap();                               /* the instruction faults, here and below */
    for (int i = 0; i < 16; i++)
        if (c.palette == 1 && (i >= 8 ? c.row_bytes[i] || c.rows[i] : c.row_bytes[i] > 64 || c.rows[i] > 16 || !c.row_bytes[i] != !c.rows[i])) __builtin_trap();
    memset(&emu_tiles, 0, sizeof emu_tiles);
    if (c.palette == 1) emu_tiles.config = c;
}
EMU void emu_tile_there(int t) { if (t < 0 || t > 7 || emu_tiles.config.palette != 1 || !emu_tiles.config.rows[t]) __builtin_trap(); }
EMU void emu_tile_release(void) { memset(&emu_tiles, 0, sizeof emu_tiles); }
EMU void emu_tile_zero(int t) { emu_tile_there(t); memset(&emu_tiles.tile[t], 0, sizeof(emu_tile)); }
EMU void emu_tile_loadd(int t, const void *p, int64_t stride)
{
    emu_tile_zero(t);
    for (int i = 0; i < emu_tiles.config.rows[t]; i++) memcpy(emu_tiles.tile[t].row[i], (const char *)p + i * stride, emu_tiles.config.row_bytes[t]);
}
EMU void emu_tile_stored(int t, void *p, int64_t stride)
{
    emu_tile_there(t);
    for (int i = 0; i < emu_tiles.config.rows[t]; i++) memcpy((char *)p + i * stride, emu_tiles.tile[t].row[i], emu_tiles.config.row_bytes[t]);
}
EMU void emu_tile_dpbf16ps(int c, int a, int b)                                                                          /* (2) */
{
    emu_tile_there(c);
    emu_tile_there(a);
    emu_tile_there(b);
    const emu_tile_config *k = &emu_tiles.config;
    if (c == a || c == b || a == b || k->row_bytes[c] % 4 || k->row_bytes[a] % 4 || k->row_bytes[b] != k->row_bytes[c] || k->rows[a] != k->rows[c]
        || k->rows[b] != k->row_bytes[a] / 4) __builtin_trap();
    for (int i = 0; i < k->rows[c]; i++)
        for (int h = 0; h < 2; h++) {
            __m256 even = _mm256_setzero_ps(), odd = even, *sum = (__m256 *)(void *)emu_tiles.tile[c].row[i] + h;
            for (int l = 0; l < k->rows[b]; l++) {
                uint32_t pair;
                memcpy(&pair, emu_tiles.tile[a].row[i] + 4 * l, 4);
                const __m256i x = _mm256_set1_epi32((int)pair), y = ((const __m256i *)(const void *)emu_tiles.tile[b].row[l])[h];
                even = emu_bf16_step(emu_even(x), emu_even(y), even);
                odd = emu_bf16_step(emu_odd(x), emu_odd(y), odd);
            }
            *sum = emu_no_subnormal(_mm256_add_ps(emu_no_subnormal(*sum), emu_no_subnormal(_mm256_add_ps(even, odd))));
        }
}
#define _tile_loadconfig emu_tile_loadconfig
#define _tile_release emu_tile_release
#define _tile_zero(t) emu_tile_zero(t)
#define _tile_loadd(t, p, stride) emu_tile_loadd(t, p, stride)
#define _tile_stream_loadd(t, p, stride) emu_tile_loadd(t, p, stride)
#define _tile_stored(t, p, stride) emu_tile_stored(t, p, stride)
#define _tile_dpbf16ps(c, a, b) emu_tile_dpbf16ps(c, a, b)
#endif
