/* test_tensor.c: every conversion against a formulation in double that searches the list of all values of a format:
 * exhaustively where the source has 16 bits or fewer, and for F32 sources at every value, every midpoint between two
 * values, their neighbours, and random bits.
 */
#include "test.h"
#include "tensor/convert.h"
#include <float.h>

static uint32_t bits32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float from_bits32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Sign, exponent and mantissa by the definition of such a format; exponent 0 is subnormal. */
static double value_by_definition(uint32_t code, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int e = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double m = code & ((1u << mantissa_bits) - 1), sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    return sign * (e ? ldexp(m + ldexp(1, mantissa_bits), e - bias - mantissa_bits) : ldexp(m, 1 - bias - mantissa_bits));
}

/* ---- formats with sign, exponent and mantissa --------------------------------------------------------------------- */
typedef struct {
    int dtype, bytes, exponent_bits, mantissa_bits;
    uint32_t n_finite;            /* non-negative finite codes 0 .. n_finite-1, ascending in value */
    bool has_infinity;            /* code n_finite is infinity; else overflow saturates and infinity becomes NaN */
} small_format;

static const small_format formats[] = {
    { CDR_BF16, 2, 8, 7, 0x7f80, true },
    { CDR_F16, 2, 5, 10, 0x7c00, true },
    { CDR_F8_E4M3, 1, 4, 3, 0x7f, false },
};

static uint32_t read_code(const small_format *f, const void *p)
{
    uint16_t x = 0;
    memcpy(&x, p, (size_t)f->bytes);
    return x;
}

static uint32_t sign_bit(const small_format *f) { return 1u << (f->exponent_bits + f->mantissa_bits); }
static bool code_is_nan(const small_format *f, uint32_t code) { return (code & (sign_bit(f) - 1)) > f->n_finite - (f->has_infinity ? 0 : 1); }

/* Nearest code of a finite x by bisection over the values; ties to the even code. */
static uint32_t nearest_code(const small_format *f, double x)
{
    double a = fabs(x);
    uint32_t lo = 0, hi = f->n_finite;                          /* value(lo) <= a; hi is the first code above */
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (value_by_definition(mid, f->exponent_bits, f->mantissa_bits) <= a) lo = mid;
        else hi = mid;
    }
    double below = value_by_definition(lo, f->exponent_bits, f->mantissa_bits);
    double above = value_by_definition(hi, f->exponent_bits, f->mantissa_bits);     /* of n_finite: where the next one would be */
    double to_lo = a - below, to_hi = above - a;
    uint32_t code = to_lo < to_hi || (to_lo == to_hi && lo % 2 == 0) ? lo : hi;
    if (code == f->n_finite && !f->has_infinity) code = f->n_finite - 1;
    return code | (signbit(x) ? sign_bit(f) : 0);
}

static void decode_exhaustive(void)
{
    for (int k = 0; k < CDR_COUNT(formats); k++) {
        const small_format *f = &formats[k];
        int64_t n_wrong = 0, n = 1 << (8 * f->bytes);
        unsigned char *codes = malloc((size_t)(n * f->bytes));
        float *out = malloc((size_t)n * 4);
        double *wide = malloc((size_t)n * 8);
        for (int64_t c = 0; c < n; c++) memcpy(codes + c * f->bytes, &(uint16_t){ (uint16_t)c }, (size_t)f->bytes);
        cdr_to_f32(f->dtype, codes, out, n);
        cdr_to_f64(f->dtype, codes, wide, n);
        for (uint32_t c = 0; c < (uint32_t)n; c++) {
            uint32_t a = c & (sign_bit(f) - 1);
            bool infinity = f->has_infinity && a == f->n_finite;
            double want = infinity ? (c == a ? (double)INFINITY : -(double)INFINITY) : value_by_definition(c, f->exponent_bits, f->mantissa_bits);
            bool right = code_is_nan(f, c) ? isnan(out[c]) && isnan(wide[c])
                                           : (double)out[c] == want && wide[c] == want && !signbit(out[c]) == !(c & sign_bit(f));
            n_wrong += !right;
            if (f->dtype == CDR_BF16 && !code_is_nan(f, c)) n_wrong += bits32(cdr_bf16_to_f32((uint16_t)c)) != bits32(out[c]);
        }
        T_CHECK(n_wrong == 0);
        /* and back: the same code, NaN stays NaN */
        unsigned char *again = malloc((size_t)(n * f->bytes));
        cdr_from_f32(f->dtype, out, again, n);
        n_wrong = 0;
        for (uint32_t c = 0; c < (uint32_t)n; c++) {
            uint32_t y = read_code(f, again + c * (uint32_t)f->bytes);
            n_wrong += code_is_nan(f, c) ? !code_is_nan(f, y) : y != c;
        }
        T_CHECK(n_wrong == 0);
        cdr_from_f64(f->dtype, wide, again, n);
        n_wrong = 0;
        for (uint32_t c = 0; c < (uint32_t)n; c++) {
            uint32_t y = read_code(f, again + c * (uint32_t)f->bytes);
            n_wrong += code_is_nan(f, c) ? !code_is_nan(f, y) : y != c;
        }
        T_CHECK(n_wrong == 0);
        free(codes), free(out), free(wide), free(again);
    }
}

/* One F32 and, a hair beside it, doubles that no F32 holds. */
static int64_t encode_one(const small_format *f, float x)
{
    int64_t n_wrong = 0;
    unsigned char y[2] = { 0, 0 };
    cdr_from_f32(f->dtype, &x, y, 1);
    if (isnan(x)) return !code_is_nan(f, read_code(f, y));
    if (isinf(x) && !f->has_infinity) return !code_is_nan(f, read_code(f, y));
    uint32_t want = isinf(x) ? f->n_finite | (x < 0 ? sign_bit(f) : 0) : nearest_code(f, (double)x);
    n_wrong += read_code(f, y) != want;
    if (f->dtype == CDR_BF16) n_wrong += cdr_f32_to_bf16(x) != want;
    if (isinf(x)) return n_wrong;
    double beside[3] = { (double)x, nextafter((double)x, (double)INFINITY), nextafter((double)x, -(double)INFINITY) };
    for (int i = 0; i < 3; i++) {
        cdr_from_f64(f->dtype, &beside[i], y, 1);
        uint32_t code = beside[i] == 0 ? read_code(f, y) & (sign_bit(f) - 1) : read_code(f, y);
        n_wrong += code != (beside[i] == 0 ? 0 : nearest_code(f, beside[i]));
    }
    return n_wrong;
}

static void encode_everywhere(void)
{
    for (int k = 0; k < CDR_COUNT(formats); k++) {
        const small_format *f = &formats[k];
        int64_t n_wrong = 0;
        for (uint32_t c = 0; c < f->n_finite; c++) {
            double a = value_by_definition(c, f->exponent_bits, f->mantissa_bits), b = value_by_definition(c + 1, f->exponent_bits, f->mantissa_bits);
            float point[2] = { (float)a, (float)(a + (b - a) / 2) };        /* exact: both fit in F32 */
            for (int i = 0; i < 2; i++)
                for (int d = -1; d <= 1; d++) {
                    if (d < 0 && point[i] == 0) continue;
                    float x = from_bits32(bits32(point[i]) + (uint32_t)d);
                    n_wrong += encode_one(f, x) + encode_one(f, -x);
                }
        }
        cdr_rng_key key = { 2, (uint64_t)k, 0 };
        for (uint64_t i = 0; i < (t_quick() ? 30000u : 300000u); i++) n_wrong += encode_one(f, from_bits32((uint32_t)cdr_rng_u64(key, i)));
        static const uint32_t special[] = { 0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fffffffu, 0xffc00000u, 0xff800001u, 1, 0x80000001u,
                                            0x7f7fffffu, 0xff7fffffu, 0x00800000u, 0x007fffffu, 0, 0x80000000u };
        for (int i = 0; i < CDR_COUNT(special); i++) n_wrong += encode_one(f, from_bits32(special[i]));
        T_CHECK(n_wrong == 0);
        if (n_wrong) fprintf(stderr, "  %s: %lld wrong\n", cdr_dtype_row(f->dtype)->name, (long long)n_wrong);
    }
}

static void overflow_is_named(void)
{
    uint16_t h = 0;
    uint8_t q = 0;
    double big = 1e300;
    cdr_from_f32(CDR_F16, &(float){ 65519.996f }, &h, 1);
    T_CHECK(h == 0x7bff);
    cdr_from_f32(CDR_F16, &(float){ 65520.0f }, &h, 1);
    T_CHECK(h == 0x7c00);
    cdr_from_f64(CDR_BF16, &big, &h, 1);
    T_CHECK(h == 0x7f80);
    cdr_from_f64(CDR_F8_E4M3, &big, &q, 1);
    T_CHECK(q == 0x7e);
    cdr_from_f32(CDR_F8_E4M3, &(float){ -FLT_MAX }, &q, 1);
    T_CHECK(q == 0xfe);
    cdr_from_f32(CDR_F8_E4M3, &(float){ INFINITY }, &q, 1);
    T_CHECK(q == 0x7f);
}

/* Blocks inside the vector loops must not mix: lengths 0..70 at odd offsets give what single elements give. */
static void lengths_and_offsets(void)
{
    enum { N = 80 };
    cdr_rng_key key = { 9, 9, 9 };
    float src[N];
    for (int i = 0; i < N; i++) src[i] = 100 * cdr_rng_normal(key, (uint64_t)i);
    for (int dtype = 0; dtype < CDR_N_DTYPES; dtype++) {
        if (cdr_dtype_row(dtype)->block_elems > 1) continue;             /* mxfp4_side_by_side */
        size_t size = (size_t)cdr_dtype_bytes(dtype, 1);
        int n_wrong = 0;
        for (int n = 0; n <= 70; n++) {
            _Alignas(8) unsigned char whole[N * 8], one[8];
            float back[N];
            memset(whole, 0xa5, sizeof whole);
            cdr_from_f32(dtype, src + n % 5, whole + size, n);
            for (size_t k = 0; k < size; k++) n_wrong += whole[k] != 0xa5 || whole[(size_t)(n + 1) * size + k] != 0xa5;
            for (int i = 0; i < N; i++) back[i] = -77;
            cdr_to_f32(dtype, whole + size, back + 1, n);
            n_wrong += back[0] != -77 || back[n + 1] != -77;
            for (int i = 0; i < n; i++) {
                float alone;
                cdr_from_f32(dtype, src + n % 5 + i, one, 1);
                n_wrong += memcmp(one, whole + size * (size_t)(i + 1), size) != 0;
                cdr_to_f32(dtype, one, &alone, 1);
                n_wrong += bits32(alone) != bits32(back[i + 1]);
            }
        }
        T_CHECK(n_wrong == 0);
    }
}

/* The two compilations of convert.h: every code, and random bits; whole arrays, so that vector loops and tails are used. */
static void avx2_equals_base(void)
{
    enum { N = 65536 + 13 };
    static uint16_t codes[N], narrow[2][N];
    static uint32_t random[N], wide[2][N];
    if (cdr__convert_best() == &cdr__convert_base) {
        printf("      no AVX2 here: the base loops are the only ones, nothing to compare\n");
        return;
    }
    const cdr__convert *c[2] = { &cdr__convert_base, &cdr__convert_avx2 };
    cdr_rng_key key = { 5, 5, 5 };
    for (int i = 0; i < N; i++) codes[i] = (uint16_t)i, random[i] = (uint32_t)cdr_rng_u64(key, (uint64_t)i);
    cdr__widen *const widen[4][2] = { { c[0]->bf16_to_f32, c[1]->bf16_to_f32 }, { c[0]->f16_to_f32, c[1]->f16_to_f32 },
                                      { c[0]->e4m3_to_f32, c[1]->e4m3_to_f32 }, { c[0]->e8m0_to_f32, c[1]->e8m0_to_f32 } };
    cdr__narrow *const narrowed[4][2] = { { c[0]->bf16_from_f32, c[1]->bf16_from_f32 }, { c[0]->f16_from_f32, c[1]->f16_from_f32 },
                                          { c[0]->e4m3_from_f32, c[1]->e4m3_from_f32 }, { c[0]->e8m0_from_f32, c[1]->e8m0_from_f32 } };
    for (int k = 0; k < 4; k++) {
        for (int v = 0; v < 2; v++) {
            float *f = malloc(sizeof wide[v]);
            widen[k][v](codes, f, N);
            memcpy(wide[v], f, sizeof wide[v]);
            memcpy(f, random, sizeof random);
            narrowed[k][v](f, narrow[v], N);
            free(f);
        }
        T_CHECK(memcmp(wide[0], wide[1], sizeof wide[0]) == 0);
        T_CHECK(memcmp(narrow[0], narrow[1], sizeof narrow[0]) == 0);
    }
}

/* ---- E8M0, integers ------------------------------------------------------------------------------------------------- */
static void e8m0_exhaustive(void)
{
    int n_wrong = 0;
    for (int s = 0; s < 256; s++) {
        uint8_t code = (uint8_t)s, back = 7;
        float x;
        cdr_to_f32(CDR_E8M0, &code, &x, 1);
        n_wrong += s == 255 ? !isnan(x) : (double)x != ldexp(1, s - 127);
        cdr_from_f32(CDR_E8M0, &x, &back, 1);
        n_wrong += back != code;
    }
    /* around the middle 1.5 * 2^e: to the even byte */
    for (int s = 0; s < 254; s++)
        for (int d = -1; d <= 1; d++) {
            float middle = (float)ldexp(1.5, s - 127), x = from_bits32(bits32(middle) + (uint32_t)d);
            uint8_t code = 7;
            int want = d < 0 ? s : d > 0 ? s + 1 : s + (s & 1);
            cdr_from_f32(CDR_E8M0, &x, &code, 1);
            n_wrong += code != want;
        }
    static const struct { float x; uint8_t code; } row[] = {
        { 0.0f, 0 }, { -0.0f, 0 }, { FLT_MAX, 254 }, { INFINITY, 255 }, { -1.0f, 255 }, { NAN, 255 }, { -INFINITY, 255 }, { 0x1p-149f, 0 }, { -0x1p-149f, 255 },
    };
    for (int i = 0; i < CDR_COUNT(row); i++) {
        uint8_t code = 7;
        cdr_from_f32(CDR_E8M0, &row[i].x, &code, 1);
        n_wrong += code != row[i].code;
    }
    T_CHECK(n_wrong == 0);
}

static void integers(void)
{
    static const double x[] = { 0, 0.5, 1.5, 2.5, -0.5, -1.5, 254.5, 255.5, 256, -1, 1e10, -1e10, 1e30, -1e30, (double)INFINITY, -(double)INFINITY, (double)NAN };
    static const uint8_t u8[] = { 0, 0, 2, 2, 0, 0, 254, 255, 255, 0, 255, 0, 255, 0, 255, 0, 0 };
    static const int32_t i32[] = { 0, 0, 2, 2, 0, -2, 254, 256, 256, -1, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 0 };
    static const int64_t i64[] = { 0, 0, 2, 2, 0, -2, 254, 256, 256, -1, 10000000000, -10000000000, INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN, 0 };
    enum { N = CDR_COUNT(x) };
    uint8_t a[N];
    int32_t b[N];
    int64_t c[N];
    float f[N];
    for (int i = 0; i < N; i++) f[i] = (float)x[i];
    for (int wide = 0; wide < 2; wide++) {
        if (wide) {
            cdr_from_f64(CDR_U8, x, a, N), cdr_from_f64(CDR_I32, x, b, N), cdr_from_f64(CDR_I64, x, c, N);
        } else {
            cdr_from_f32(CDR_U8, f, a, N), cdr_from_f32(CDR_I32, f, b, N), cdr_from_f32(CDR_I64, f, c, N);
        }
        T_CHECK(memcmp(a, u8, sizeof a) == 0 && memcmp(b, i32, sizeof b) == 0 && memcmp(c, i64, sizeof c) == 0);
    }
    double back[2];
    cdr_to_f64(CDR_I64, (int64_t[]){ (1ll << 53) - 1, INT64_MIN }, back, 2);
    T_CHECK(back[0] == 9007199254740991.0 && back[1] == -0x1p63);
    cdr_to_f64(CDR_I32, (int32_t[]){ 16777217, INT32_MIN }, back, 2);       /* no float holds it */
    T_CHECK(back[0] == 16777217 && back[1] == -0x1p31);
    cdr_to_f64(CDR_U8, (uint8_t[]){ 255, 0 }, back, 2);
    T_CHECK(back[0] == 255 && back[1] == 0);
    cdr_to_f64(CDR_F64, (double[]){ 0.1, -0.0 }, back, 2);
    T_CHECK(back[0] == 0.1 && signbit(back[1]));
    cdr_from_f64(CDR_F32, (double[]){ 0.1, 1e300 }, f, 2);
    T_CHECK(f[0] == 0.1f && isinf(f[1]));
    cdr_to_f32(CDR_I32, (int32_t[]){ 16777217, -3 }, f, 2);
    T_CHECK(f[0] == 16777216.0f && f[1] == -3);
}

/* ---- MXFP4 ------------------------------------------------------------------------------------------------------------ */
static const double grid[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };

static void mxfp4_decode_exhaustive(void)
{
    int n_wrong = 0;
    for (int s = 0; s < 256; s++)
        for (int shift = 0; shift < 16; shift++) {              /* every code in every position */
            uint8_t codes[16], scale = (uint8_t)s;
            float y[32];
            for (int i = 0; i < 16; i++) codes[i] = (uint8_t)(((2 * i + shift) & 15) | ((2 * i + 1 + shift) & 15) << 4);
            cdr_mxfp4_decode(codes, &scale, y, 32);
            for (int i = 0; i < 32; i++) {
                int code = (i + shift) & 15;
                double want = ldexp(grid[code & 7], s - 127);
                if (s == 255) n_wrong += !isnan(y[i]);
                else n_wrong += (want > (double)FLT_MAX ? !isinf(y[i]) : fabs((double)y[i]) != want) || !signbit(y[i]) != !(code & 8);
            }
        }
    T_CHECK(n_wrong == 0);
}

/* What (2) of mxfp4.c says, in double: the scale from the rounded maximum, the code by search, ties to the even code. */
static void encode_by_definition(const float *x, uint8_t *nibble, int *scale)
{
    double top = 0;
    for (int i = 0; i < 32; i++) top = fmax(top, fabs((double)x[i]));
    int e = -200;
    if (top > 0) {
        double mantissa = frexp(top, &e);                       /* [0.5, 1): top = mantissa * 2^e */
        e -= 1;
        if (mantissa * 2 >= 1.75) e += 1;
    }
    e = e - 2 < -127 ? -127 : e - 2 > 125 ? 125 : e - 2;
    *scale = e + 127;
    for (int i = 0; i < 32; i++) {
        double a = fabs((double)x[i]) / ldexp(1, e), best = 1e300;
        int code = 0;
        for (int c = 0; c < 8; c++) {
            double d = fabs(a - grid[c]);
            if (d < best || (d == best && c % 2 == 0)) best = d, code = c;
        }
        nibble[i] = (uint8_t)(code | (signbit(x[i]) ? 8 : 0));
    }
}

static void mxfp4_encode_against_search(void)
{
    cdr_rng_key key = { 4, 4, 4 };
    int n_wrong = 0;
    for (uint64_t b = 0; b < 20000; b++) {
        float x[32];
        uint8_t codes[16], scale, want[32];
        int want_scale;
        double unit = ldexp(1, (int)(b % 270) - 140);           /* from subnormals to the largest */
        for (uint64_t i = 0; i < 32; i++) {
            uint64_t r = cdr_rng_u64(key, b * 64 + i);
            double value = (double)cdr_rng_normal(key, b * 64 + 32 + i);
            if (r % 3 == 0) value = (double)(r >> 8 & 63) / 8 * (r >> 20 & 1 ? 1 : -1);    /* on the grid, on its midpoints, and -0 */
            x[i] = (float)fmax(fmin(value * unit, (double)FLT_MAX), -(double)FLT_MAX);
        }
        if (b % 1000 == 0) memset(x, 0, sizeof x);
        cdr_mxfp4_encode(x, codes, &scale, 32);
        encode_by_definition(x, want, &want_scale);
        n_wrong += scale != want_scale;
        for (int i = 0; i < 32; i++) n_wrong += (codes[i / 2] >> (i % 2 * 4) & 15) != want[i];
    }
    T_CHECK(n_wrong == 0);
}

/* Decoded, encoded, decoded: no value changes; and no byte, where the largest code is 4 or 6 as in released weights.
 * The same holds when the largest element has moved down by a hair. */
static void mxfp4_round_trip(void)
{
    enum { BLOCKS = 8000, N = BLOCKS * 32 };
    static uint8_t codes[N / 2], again[N / 2], scales[BLOCKS], scales_again[BLOCKS];
    static float x[N], y[N];
    cdr_rng_key key = { 6, 6, 6 };
    int n_wrong = 0, n_with_four = 0;
    for (int i = 0; i < N / 2; i++) codes[i] = (uint8_t)cdr_rng_u64(key, (uint64_t)i);
    for (int b = 0; b < BLOCKS; b++) {
        scales[b] = (uint8_t)(2 + cdr_rng_u64(key, (uint64_t)(N + b)) % 251);       /* 2 .. 252 */
        if (b % 4 < 2)                                         /* no 6 */
            for (int i = 0; i < 16; i++) {
                uint8_t c = codes[b * 16 + i];
                if ((c & 7) == 7) c &= 0xfe;
                if ((c & 0x70) == 0x70) c &= 0xef;
                codes[b * 16 + i] = c;
            }
        if (b % 4 == 0)                                        /* at most 1.5 */
            for (int i = 0; i < 16; i++) codes[b * 16 + i] &= 0xbb;
    }
    cdr_mxfp4_decode(codes, scales, x, N);
    cdr_mxfp4_encode(x, again, scales_again, N);
    cdr_mxfp4_decode(again, scales_again, y, N);
    n_wrong += memcmp(x, y, sizeof x) != 0;
    for (int b = 0; b < BLOCKS; b++) {
        int top = 0, at = 0;
        for (int i = 0; i < 32; i++) {
            int c = codes[b * 16 + i / 2] >> (i % 2 * 4) & 7;
            if (c > top) top = c, at = i;
        }
        if (top < 6) continue;
        n_with_four += top == 6;
        n_wrong += scales[b] != scales_again[b] || memcmp(codes + b * 16, again + b * 16, 16) != 0;
        float moved[32];
        uint8_t moved_codes[16], moved_scale;
        memcpy(moved, x + b * 32, sizeof moved);
        for (int i = 0; i < 32; i++) moved[i] *= i == at || fabsf(moved[i]) == fabsf(x[b * 32 + at]) ? 0.9995f : 1.0f;
        cdr_mxfp4_encode(moved, moved_codes, &moved_scale, 32);
        n_wrong += moved_scale != scales[b] || memcmp(moved_codes, codes + b * 16, 16) != 0;
    }
    T_CHECK(n_wrong == 0 && n_with_four > 1000);
}

static void mxfp4_special_blocks(void)
{
    float x[64] = { 0 }, y[64];
    uint8_t codes[32], scales[2];
    x[3] = (float)NAN, x[40] = -(float)INFINITY;
    cdr_mxfp4_encode(x, codes, scales, 64);
    cdr_mxfp4_decode(codes, scales, y, 64);
    T_CHECK(scales[0] == 255 && scales[1] == 255 && isnan(y[0]) && isnan(y[63]));
    for (int i = 0; i < 64; i++) x[i] = i % 2 ? FLT_MAX : -0.0f;
    cdr_mxfp4_encode(x, codes, scales, 64);
    cdr_mxfp4_decode(codes, scales, y, 64);
    T_CHECK(scales[0] == 252 && y[1] == (float)ldexp(6, 125) && y[0] == 0 && signbit(y[0]));
    memset(x, 0, sizeof x);
    cdr_mxfp4_encode(x, codes, scales, 64);
    T_CHECK(scales[0] == 0 && codes[0] == 0);
}

/* Side by side: every code under every scale, bit for bit what the checkpoint's two tensors give; and back, as encode does. */
static void mxfp4_side_by_side(void)
{
    enum { N = 256 * 32 };
    static uint8_t codes[N / 2], scales[N / 32], packed[N / 32 * 17], again[N / 32 * 17];
    static float x[N], y[N];
    static double z[N];
    for (int b = 0; b < N / 32; b++) {
        scales[b] = (uint8_t)b;
        for (int i = 0; i < 16; i++) codes[b * 16 + i] = (uint8_t)(i << 4 | ((i * 7 + b) & 15));
        memcpy(packed + b * 17, codes + b * 16, 16);
        packed[b * 17 + 16] = scales[b];
    }
    cdr_mxfp4_decode(codes, scales, x, N);
    cdr_to_f32(CDR_MXFP4, packed, y, N);
    for (int i = 0; i < N; i++) T_CHECK(memcmp(&x[i], &y[i], 4) == 0 || (x[i] != x[i] && y[i] != y[i]));
    cdr__convert_base.mxfp4_to_f32(packed, y, N);
    for (int i = 0; i < N; i++) T_CHECK(memcmp(&x[i], &y[i], 4) == 0 || (x[i] != x[i] && y[i] != y[i]));
    cdr_to_f64(CDR_MXFP4, packed, z, N);
    for (int i = 0; i < N; i++) T_CHECK(z[i] == (double)x[i] || (z[i] != z[i] && x[i] != x[i]));
    for (int i = 0; i < N; i++) z[i] = (double)(x[i] = cdr_rng_normal((cdr_rng_key){ 3, 1, 0 }, (uint64_t)i));
    cdr_mxfp4_encode(x, codes, scales, N);
    cdr_from_f32(CDR_MXFP4, x, packed, N);
    cdr_from_f64(CDR_MXFP4, z, again, N);
    for (int b = 0; b < N / 32; b++) T_CHECK(memcmp(packed + b * 17, codes + b * 16, 16) == 0 && packed[b * 17 + 16] == scales[b]);
    T_CHECK(memcmp(packed, again, sizeof packed) == 0);
}

/* The figure that mxfp4.c states. */
static void mxfp4_error_on_gaussian(void)
{
    enum { N = 1 << 18 };
    static float x[N], y[N];
    static uint8_t codes[N / 2], scales[N / 32];
    double sum = 0, norm = 0;
    cdr_rng_key key = { 8, 8, 8 };
    for (int i = 0; i < N; i++) x[i] = cdr_rng_normal(key, (uint64_t)i);
    cdr_mxfp4_encode(x, codes, scales, N);
    cdr_mxfp4_decode(codes, scales, y, N);
    for (int i = 0; i < N; i++) sum += pow((double)y[i] - (double)x[i], 2), norm += (double)x[i] * (double)x[i];
    T_NEAR(sqrt(sum / norm), 0.1119, 0.001);
}

/* ---- table and shapes --------------------------------------------------------------------------------------------------- */
static void table(void)
{
    static const int64_t bytes[CDR_N_DTYPES] = { 4, 2, 2, 8, 1, 4, 8, 1, 1, -1 };
    for (int i = 0; i < CDR_N_DTYPES; i++) {
        const cdr_dtype_info *d = cdr_dtype_row(i);
        T_CHECK(cdr_dtype_by_name(d->name) == i && cdr_dtype_by_name(d->safetensors) == i);
        if (bytes[i] > 0) T_CHECK(cdr_dtype_bytes(i, 3) == 3 * bytes[i]);
    }
    T_CHECK(cdr_dtype_bytes(CDR_MXFP4, 64) == 34);
    T_CHECK(cdr_dtype_by_name("Bf16") == CDR_BF16 && cdr_dtype_by_name("F8_E8M0") == CDR_E8M0);
    T_CHECK(cdr_dtype_by_name("f8_e5m2") == -1 && cdr_dtype_by_name("") == -1);
    T_CHECK(cdr_dtype_row(CDR_MXFP4)->floating && cdr_dtype_row(CDR_BF16)->floating && !cdr_dtype_row(CDR_I32)->floating);
}

static void shapes(void)
{
    char out[64];
    cdr_type t = cdr_type_2d(CDR_BF16, 4096, 256);
    T_CHECK(cdr_type_rows(&t) == 4096 && cdr_type_cols(&t) == 256 && cdr_type_elems(&t) == 4096 * 256);
    T_CHECK(cdr_type_pitch(&t) == 256 && cdr_type_bytes(&t) == 4096 * 256 * 2);
    cdr_type_print(out, &t);
    T_STR(out, "bf16[4096,256]");
    cdr_type wide = t;
    wide.pitch = 320;
    T_CHECK(cdr_type_pitch(&wide) == 320 && cdr_type_bytes(&wide) == (4095 * 320 + 256) * 2 && cdr_type_same(&t, &wide));
    cdr_type_print(out, &wide);
    T_STR(out, "bf16[4096,256 pitch 320]");
    cdr_type three = cdr_type_3d(CDR_F32, 2, 3, 5), one = cdr_type_1d(CDR_I32, 7), scalar = { .dtype = CDR_F64 };
    T_CHECK(cdr_type_rows(&three) == 6 && cdr_type_cols(&three) == 5 && cdr_type_bytes(&three) == 120);
    T_CHECK(cdr_type_rows(&one) == 1 && cdr_type_cols(&one) == 7 && cdr_type_bytes(&one) == 28);
    T_CHECK(cdr_type_rows(&scalar) == 1 && cdr_type_cols(&scalar) == 1 && cdr_type_bytes(&scalar) == 8);
    cdr_type_print(out, &scalar);
    T_STR(out, "f64[]");
    cdr_type none = cdr_type_2d(CDR_F32, 0, 5), no_cols = cdr_type_2d(CDR_F32, 5, 0);
    T_CHECK(cdr_type_bytes(&none) == 0 && cdr_type_bytes(&no_cols) == 0 && cdr_type_pitch(&no_cols) == 1);
    cdr_type panels = cdr_type_2d(CDR_BF16, 65, 7);
    panels.layout = CDR_VNNI64;
    T_CHECK(cdr_type_bytes(&panels) == 128 * 8 * 2 && !cdr_type_same(&panels, &(cdr_type){ .dtype = CDR_BF16, .n_dim = 2, .n = { 65, 7 } }));
    cdr_type_print(out, &panels);
    T_STR(out, "bf16[65,7] vnni64");
    cdr_type stack = cdr_type_3d(CDR_F32, 3, 17, 5);                /* each matrix of a stack is padded by itself */
    stack.layout = CDR_PANEL16;
    T_CHECK(cdr_matrix_bytes(&stack) == 32 * 5 * 4 && cdr_type_bytes(&stack) == 3 * 32 * 5 * 4);
    stack.layout = CDR_PANEL64;
    T_CHECK(cdr_type_bytes(&stack) == 3 * 64 * 5 * 4 && !cdr_layout_takes(CDR_VNNI64, &stack) && cdr_layout_takes(CDR_ROWS, &stack));
    cdr_type packed = cdr_type_2d(CDR_MXFP4, 3, 64);
    T_CHECK(packed.layout == CDR_ROWS && cdr_type_bytes(&packed) == 102);
    cdr_type large = cdr_type_3d(CDR_BF16, 896, 7168, 7168);       /* beyond 2^31 elements */
    T_CHECK(cdr_type_bytes(&large) == 2ull * 896 * 7168 * 7168);
    T_CHECK(!cdr_type_same(&t, &three) && !cdr_type_same(&t, &(cdr_type){ .dtype = CDR_BF16, .n_dim = 2, .n = { 4096, 257 } }));
    cdr_type longest = cdr_type_3d(CDR_F8_E4M3, INT64_MAX, INT64_MAX, INT64_MAX);
    longest.pitch = INT64_MAX - 1;
    cdr_type_print(out, &longest);                                  /* cut, not overrun */
    T_CHECK(strlen(out) == 63);
}

/* Element (e, i, p) where the layout's definition puts it; padding zero; every split of the rows into blocks gives the same bytes. */
static void panels(void)
{
    static const struct { int layout, dtype; int64_t e, n, k; } cases[] = {
        { CDR_VNNI64, CDR_BF16, 1, 65, 7 }, { CDR_VNNI64, CDR_BF16, 3, 70, 130 }, { CDR_VNNI64, CDR_BF16, 2, 64, 64 }, { CDR_VNNI64, CDR_BF16, 1, 1, 1 },
        { CDR_PANEL16, CDR_BF16, 2, 17, 131 }, { CDR_PANEL16, CDR_F32, 3, 16, 5 }, { CDR_PANEL64, CDR_F32, 2, 100, 66 }, { CDR_PANEL64, CDR_BF16, 1, 63, 3 },
    };
    for (int c = 0; c < CDR_COUNT(cases); c++) {
        cdr_type t = cdr_type_3d(cases[c].dtype, cases[c].e, cases[c].n, cases[c].k);
        const size_t elem = cases[c].dtype == CDR_F32 ? 4 : 2, row = elem * (size_t)cases[c].k, dense = cdr_type_bytes(&t);
        const int64_t n_rows = cdr_type_rows(&t), R = cases[c].layout == CDR_PANEL16 ? 16 : 64, P = cases[c].layout == CDR_VNNI64 ? 2 : 1;
        t.layout = (uint8_t)cases[c].layout;
        const size_t bytes = cdr_type_bytes(&t), matrix = bytes / (size_t)cases[c].e;
        T_CHECK(bytes == (size_t)cases[c].e * (size_t)(cdr_ceil_div(cases[c].n, R) * R * cdr_ceil_div(cases[c].k, P) * P) * elem);
        unsigned char *rows = malloc(dense), *got = malloc(bytes + 64), *want = calloc(1, bytes), *back = malloc(dense + 64);
        T_CHECK(rows && got && want && back);
        for (size_t b = 0; b < dense; b++) rows[b] = (unsigned char)(1 + b * 2654435761u % 255);       /* no zero: padding is told from data */
        for (int64_t e = 0; e < cases[c].e; e++)
            for (int64_t i = 0; i < cases[c].n; i++)
                for (int64_t p = 0; p < cases[c].k; p++) {
                    const int64_t at = ((i / R * cdr_ceil_div(cases[c].k, P) + p / P) * R + i % R) * P + p % P;
                    memcpy(want + (size_t)e * matrix + (size_t)at * elem, rows + (size_t)(e * cases[c].n + i) * row + (size_t)p * elem, elem);
                }
        static const int64_t steps[] = { 1, 5, 16, 64, 1 << 20 };
        for (int s = 0; s < CDR_COUNT(steps); s++) {
            memset(got, 0xa5, bytes + 64);
            memset(back, 0xa5, dense + 64);
            for (int64_t i = 0; i < n_rows; i += steps[s]) cdr_panels_put(&t, i, CDR_MIN(steps[s], n_rows - i), rows + (size_t)i * row, got);
            for (int64_t i = 0; i < n_rows; i += steps[s]) cdr_panels_get(&t, i, CDR_MIN(steps[s], n_rows - i), got, back + (size_t)i * row);
            T_CHECK(memcmp(got, want, bytes) == 0 && memcmp(back, rows, dense) == 0);
            for (int b = 0; b < 64; b++) T_CHECK(got[bytes + (size_t)b] == 0xa5 && back[dense + (size_t)b] == 0xa5);
        }
        free(rows), free(got), free(want), free(back);
    }
    cdr_type packed = cdr_type_2d(CDR_MXFP4, 64, 64), line = cdr_type_1d(CDR_BF16, 64), pitched = cdr_type_2d(CDR_BF16, 64, 64);
    pitched.pitch = 65;
    for (int l = CDR_VNNI64; l < CDR_N_LAYOUTS; l++)
        T_CHECK(!cdr_layout_takes(l, &packed) && !cdr_layout_takes(l, &line) && !cdr_layout_takes(l, &pitched));
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(decode_exhaustive);
    T_RUN(encode_everywhere);
    T_RUN(overflow_is_named);
    T_RUN(lengths_and_offsets);
    T_RUN(avx2_equals_base);
    T_RUN(e8m0_exhaustive);
    T_RUN(integers);
    T_RUN(mxfp4_decode_exhaustive);
    T_RUN(mxfp4_encode_against_search);
    T_RUN(mxfp4_round_trip);
    T_RUN(mxfp4_special_blocks);
    T_RUN(mxfp4_side_by_side);
    T_RUN(mxfp4_error_on_gaussian);
    T_RUN(table);
    T_RUN(shapes);
    T_RUN(panels);
    return t_end();
}
