/* cpu_amx.c: AMX BF16 kernel of the matrix product. Numeric class "amx": acc = acc + (even + odd) for each 32 of k, where even and odd are
 * chains from zero over the products of even and of odd k, ascending (tdpbf16ps; Intel SDM volume 2); subnormal inputs and results of
 * each operation are zero. k that does not fill a step is padded with zeros, so a chain depends on k alone.
 *
 * A tile register is 16 rows of 64 bytes. Tile 32 x 64, as two blocks of 2 x 2 registers over all of its k: 4 accumulators, 2 of A, 2 of B;
 * 16 rows or fewer: 1 x 4. B packed [n/64][k/2][64][2] (VNNI64): a register of B is 16 lines, 256 bytes apart. A packed in registers,
 * [m/32][k/32][32][32]: two of them side by side.
 * Floor: a step of 2 x 2 is 4 tdpbf16ps of 16 cycles; its 4 loads take 36 cycles from L1, 84 from L2 (48 bytes a cycle). Measured on an
 * Emerald Rapids core: 2,900 GFLOP/s in registers and with loads from L1, 2,100 with loads from L2, 1,810 this kernel over 8 tiles of A
 * and a panel of B in L2 (86 % of what the loads allow). The core's other thread halves all of these where it uses the tiles.
 * 2048 x 2048 x 2048: 930 a core, 1,800 on two; 1,910 from VNNI64; 256 x 3072 x 3584 from VNNI64 900, 1,730. What is lost there: B and A come from L3.
 * Tried: prefetching the next panel of B (5 to 10 % slower); pieces of 64 and 128 units, so that B stays in L1 (20, 15 % slower: each
 * piece loads and stores C, 89 cycles for 4 registers); blocks of 512 rows of A (23 % slower: L2 overflows). */
#include "ops/linear/gemm_simd.h"
#include <assert.h>

enum { MR = 32, NR = 64, PAIR = 2, STEP = 16, SIDE = 16 };

typedef struct { uint8_t palette, start, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } tile_config;
_Static_assert(sizeof(tile_config) == 64, "as the instruction reads it");

static const tile_config all_full = { .palette = 1, .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };

/* Through a pointer that the compiler cannot follow: gcc 12 would copy the 8 bytes that it believes are read to the stack. */
static void begin(void)
{
    const void *at = &all_full;
    __asm__("" : "+r"(at));
    _tile_loadconfig(at);
}

/* Without it every switch of threads would save 8 KiB of tiles. */
static void end(void) { _tile_release(); }

/* Registers are named by constants. rows: those of C that exist; a part of 16 goes through a buffer. */
#define LOAD_C(reg, at, rows) \
    do { \
        if (t->first) _tile_zero(reg); \
        else if ((rows) >= SIDE) _tile_loadd(reg, at, ldo * 4); \
        else { \
            part_in(part, at, ldo, rows); \
            _tile_loadd(reg, part, 64); \
        } \
    } while (0)
#define STORE_C(reg, at, rows) \
    do { \
        if ((rows) >= SIDE) _tile_stored(reg, at, t->ldc * 4); \
        else { \
            _tile_stored(reg, part, 64); \
            part_out(part, at, t->ldc, rows); \
        } \
    } while (0)

static void part_in(float *part, const float *c, int64_t ldc, int rows)
{
    __asm__ volatile("" ::: "memory");       /* gcc 12 does not know that a tile load reads memory: the one before stays before, */
    memset(part, 0, SIDE * SIDE * sizeof *part);
    for (int r = 0; r < rows; r++) memcpy(part + r * SIDE, c + r * ldc, SIDE * sizeof *part);
    __asm__ volatile("" ::: "memory");       /* and the next one after */
}

static void part_out(const float *part, float *c, int64_t ldc, int rows)
{
    for (int r = 0; r < rows; r++) memcpy(c + r * ldc, part + r * SIDE, SIDE * sizeof *part);
}

/* How a tile walks A: panels, or rows (then all 16 or 32 of them can be read). */
typedef struct { const uint32_t *p; int64_t stride, second, step; } walk;

static walk walk_of(const cdr__tile *t)
{
    const bool along = t->a_col == 1;
    const walk w = { t->a, along ? t->a_row * 4 : 64, along ? SIDE * t->a_row : SIDE * STEP, along ? STEP : MR * STEP };
    return w;
}

/* Columns 32 half .. + 31 of more than 16 rows. */
static void block_2x2(const cdr__tile *t, int half)
{
    _Alignas(64) float part[SIDE * SIDE];
    float *c = t->c + half * 32, *c1 = c + SIDE * t->ldc;
    const int64_t ldo = t->old ? NR : t->ldc;
    const float *old = (t->old ? t->old : t->c) + half * 32, *old1 = old + SIDE * ldo;
    const uint32_t *b = t->b + half * 32;
    const int rows1 = t->rows - SIDE;
    walk a = walk_of(t);
    LOAD_C(0, old, SIDE);
    LOAD_C(1, old + SIDE, SIDE);
    LOAD_C(2, old1, rows1);
    LOAD_C(3, old1 + SIDE, rows1);
    for (int64_t u = 0; u < t->k; u += STEP) {
        _tile_loadd(4, a.p, a.stride);
        _tile_loadd(6, b, NR * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + SIDE, NR * 4);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a.p + a.second, a.stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a.p += a.step;
        b += STEP * NR;
    }
    STORE_C(0, c, SIDE);
    STORE_C(1, c + SIDE, SIDE);
    STORE_C(2, c1, rows1);
    STORE_C(3, c1 + SIDE, rows1);
}

/* All columns of up to 16 rows. */
static void block_1x4(const cdr__tile *t)
{
    _Alignas(64) float part[SIDE * SIDE];
    const uint32_t *b = t->b;
    const int64_t ldo = t->old ? NR : t->ldc;
    const float *old = t->old ? t->old : t->c;
    walk a = walk_of(t);
    LOAD_C(0, old, t->rows);
    LOAD_C(1, old + SIDE, t->rows);
    LOAD_C(2, old + 2 * SIDE, t->rows);
    LOAD_C(3, old + 3 * SIDE, t->rows);
    for (int64_t u = 0; u < t->k; u += STEP) {
        _tile_loadd(4, a.p, a.stride);
        _tile_loadd(5, b, NR * 4);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, b + SIDE, NR * 4);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, b + 2 * SIDE, NR * 4);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, b + 3 * SIDE, NR * 4);
        _tile_dpbf16ps(3, 4, 5);
        a.p += a.step;
        b += STEP * NR;
    }
    STORE_C(0, t->c, t->rows);
    STORE_C(1, t->c + SIDE, t->rows);
    STORE_C(2, t->c + 2 * SIDE, t->rows);
    STORE_C(3, t->c + 3 * SIDE, t->rows);
}

static void gemm_bf16_amx(const cdr__tile *t)
{
    assert(t->k % STEP == 0);
    if (t->rows <= SIDE) {
        block_1x4(t);
        return;
    }
    block_2x2(t, 0);
    block_2x2(t, 1);
}

/* ---- packing: A to registers of 16 rows, rows and units that are not there are zeros; B as for vdpbf16ps --------------- */
CDR__INLINE int64_t whole_units(const cdr__pack *s) { return cdr_ceil_div((s->n_p + 1) / 2, STEP) * STEP; }

CDR__INLINE void pack_a_along(int dtype, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t n_u = whole_units(s), rows = cdr_ceil_div(s->n_i, MR) * MR;
    for (int64_t i = 0; i < rows; i++) {
        uint32_t *d = s->dst + i / MR * MR * s->ld + i % MR * STEP;
        for (int64_t u = 0; u < n_u; u += STEP, d += MR * STEP)
            for (int64_t h = 0; h < STEP; h += 8) {
                const int64_t left = i < s->n_i ? s->n_p - 2 * (u + h) : 0;
                _mm256_storeu_si256((__m256i *)(void *)(d + h), cdr__units_along(dtype, PAIR, s->src, i * s->pitch + 2 * (u + h), left));
            }
    }
}

/* 16 units of 16 rows at a time, transposed by quarters. */
CDR__INLINE void pack_a_across(int dtype, const cdr__pack *call)
{
    const cdr__pack here = *call, *const s = &here;          /* which no store can change */
    const int64_t n_u = whole_units(s), rows = cdr_ceil_div(s->n_i, MR) * MR;
    for (int64_t u = 0; u < n_u; u += STEP)
        for (int64_t i = 0; i < rows; i += SIDE) {
            const __mmask16 mask = cdr__first_lanes(s->n_i - i, 16);
            uint32_t *d = s->dst + i / MR * MR * s->ld + u * MR + i % MR * STEP;
            for (int64_t h = 0; h < STEP; h += 8) {
                __m256 low[8], high[8], x[8], y[8];
                for (int64_t l = 0; l < 8; l++) {
                    const int64_t p = 2 * (u + h + l);
                    const __m512i w = p < s->n_p ? cdr__units_across(dtype, PAIR, s->src, i + p * s->pitch, p + 1 < s->n_p ? s->pitch : 0, mask)
                                                 : _mm512_setzero_si512();
                    low[l] = _mm256_castsi256_ps(_mm512_castsi512_si256(w));
                    high[l] = _mm256_castsi256_ps(_mm512_extracti64x4_epi64(w, 1));
                }
                cdr__transpose8(low, x);
                cdr__transpose8(high, y);
                for (int64_t l = 0; l < 8; l++) {
                    _mm256_storeu_ps((float *)(void *)(d + l * STEP + h), x[l]);
                    _mm256_storeu_ps((float *)(void *)(d + (l + 8) * STEP + h), y[l]);
                }
            }
        }
}

static void a_f32_across(const cdr__pack *s) { pack_a_across(CDR_F32, s); }
static void a_f32_along(const cdr__pack *s) { pack_a_along(CDR_F32, s); }
static void a_bf16_across(const cdr__pack *s) { pack_a_across(CDR_BF16, s); }
static void a_bf16_along(const cdr__pack *s) { pack_a_along(CDR_BF16, s); }
static void b_f32_cols(const cdr__pack *s) { cdr__pack_b_avx512(CDR_F32, PAIR, NR, false, s); }
static void b_f32_k(const cdr__pack *s) { cdr__pack_b_avx512(CDR_F32, PAIR, NR, true, s); }
static void b_bf16_cols(const cdr__pack *s) { cdr__pack_b_avx512(CDR_BF16, PAIR, NR, false, s); }
static void b_bf16_k(const cdr__pack *s) { cdr__pack_b_avx512(CDR_BF16, PAIR, NR, true, s); }
static void b_across(const cdr__pack *s) { cdr__pack_across_avx512(s); }
static void finish_f32(const cdr__finish *f) { cdr__finish_body(CDR_F32, NR, f); }
static void finish_bf16(const cdr__finish *f) { cdr__finish_body(CDR_BF16, NR, f); }

const cdr__gemm_isa cdr__gemm_amx = {
    .name = "amx", .mr = MR, .nr = NR, .mc = 256, .kc = 2048, .kc_min = 1024, .kb = 256, .kb_in_place = 2048, .few = 256, .a_units = 256 * 1024,
    .pair = PAIR, .mac = 512, .step = STEP, .layout = CDR_VNNI64, .a_panels = true, .begin = begin, .end = end,
    .pack_a = { { a_f32_across, a_f32_along }, { a_bf16_across, a_bf16_along } },
    .pack_b = { { b_f32_cols, b_f32_k }, { b_bf16_cols, b_bf16_k } }, .pack_across = b_across,
    .kernel = gemm_bf16_amx, .finish = { finish_f32, finish_bf16 },
};
