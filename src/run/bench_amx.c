/* bench_amx.c: tdpbf16ps peak of AMX BF16. Four chains on two registers of each side, as in the matrix product: one takes 16
 * cycles and its result is there after 52. */
#include "run/bench.h"
#include <immintrin.h>

typedef struct { uint8_t palette, start, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } tile_config;
_Static_assert(sizeof(tile_config) == 64, "as the instruction reads it");
static const tile_config all_full = { .palette = 1, .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };

static float dot_bf16_amx(int64_t rounds)
{
    static const float zeros[16 * 16];
    float sum[16 * 16];
    const void *at = &all_full;
    __asm__("" : "+r"(at));                      /* gcc 12 would copy the 8 bytes that it believes are read to the stack */
    _tile_loadconfig(at);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sum, 64);
    _tile_release();
    __asm__ volatile("" ::: "memory");           /* gcc 12 does not know that the store writes sum */
    return sum[0];
}

const cdr__peak cdr__peak_amx = { "amx", 4 * 16 * 16 * 32 * 2, dot_bf16_amx };
