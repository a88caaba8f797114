/* tile_simd.h: a row of attention's register tile, two vectors wide: from memory or zero, a step along k with b0 and b1, to memory. The body has c,
 * c_row and add.
 *
 *   FIRST(ca0, ca1, 0)
 *   STEP(ca0, ca1, a)
 *   LAST(ca0, ca1, 0)
 */
#ifndef CDR_OPS_ATTENTION_TILE_SIMD_H
#define CDR_OPS_ATTENTION_TILE_SIMD_H
#include "base/base.h"

/* The accumulators are named: gcc 12 moves an array of them through the stack before and after the loop. */
#define FIRST(lo, hi, row) vf lo = add ? v_load(c + (row) * c_row) : v_set(0.0f), hi = add ? v_load(c + (row) * c_row + V_LANES) : v_set(0.0f);
#define STEP(lo, hi, at) { vf x = v_set(*(at)); lo = v_fma(x, b0, lo); hi = v_fma(x, b1, hi); }
#define LAST(lo, hi, row) v_store(c + (row) * c_row, lo); v_store(c + (row) * c_row + V_LANES, hi);
#endif
