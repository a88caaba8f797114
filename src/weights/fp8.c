/* fp8.c: a matrix as FP8_128: E4M3 codes, a scale in F32 for 128 x 128 of them (the last ones of a row or column are smaller).
 *
 *   code = e4m3(x / scale), nearest even, at most 448 in size;  x is read as bf16(code * scale)                           (1)
 *   scale = max |x| / 448; where the old one was a power of two: the next power of two                                   (2)
 * A block keeps the scale that it had where its values still fit, and lie in the upper half of the format's normal range or come back exactly: what did
 * not change then has its old code, so that a merge touches only what an adapter touches. Old scales that are powers of two are a format of
 * their own (UE8M0), which a loader may rely on. Source of (1): weights/read.c; of the layout: DeepSeek-V3's release.
 */
#include "weights/parts.h"
#include <math.h>

static const float E4M3_MAX = 448, E4M3_LOW = 16;

typedef struct { const float *x; int64_t n, K, c0, width; uint8_t *codes; } block;         /* n rows, width columns from c0 on */

static float largest(const block *b)
{
    float top = 0;
    for (int64_t r = 0; r < b->n; r++)
        for (int64_t c = b->c0; c < b->c0 + b->width; c++) top = fmaxf(top, fabsf(b->x[r * b->K + c]));
    return top;
}

/* Writes the codes; true: every value comes back exactly. */
static bool encode(const block *b, float scale)
{
    bool exact = true;
    for (int64_t r = 0; r < b->n; r++)
        for (int64_t c = b->c0; c < b->c0 + b->width; c++) {
            const float x = b->x[r * b->K + c], v = fminf(fmaxf(x / scale, -E4M3_MAX), E4M3_MAX);
            float back;
            cdr_from_f32(CDR_F8_E4M3, &v, b->codes + r * b->K + c, 1);
            cdr_to_f32(CDR_F8_E4M3, b->codes + r * b->K + c, &back, 1);
            exact = exact && cdr_bf16_to_f32(cdr_f32_to_bf16(back * scale)) == x;
        }
    return exact;
}

static bool power_of_two(float x)
{
    int e;
    return frexpf(x, &e) == 0.5f;
}

static float new_scale(float top, float had)
{
    if (!(top > 0)) return had > 0 ? had : 1.0f;
    return had > 0 && power_of_two(had) ? exp2f(ceilf(log2f(top / E4M3_MAX))) : top / E4M3_MAX;
}

void cdr__fp8_encode(const float *x, int64_t n, int64_t K, uint8_t *codes, float *scales)
{
    for (int64_t c0 = 0; c0 < K; c0 += CDR__FP8_BLOCK) {
        block b = { x, n, K, c0, CDR_MIN(K - c0, (int64_t)CDR__FP8_BLOCK), codes };
        float *scale = &scales[c0 / CDR__FP8_BLOCK];
        const float top = largest(&b), room = *scale * E4M3_MAX * (1 + 0x1p-8f);         /* a largest value that was rounded up to BF16 still fits */
        const bool fits = isfinite(*scale) && *scale > 0 && top <= room;
        if (fits && (encode(&b, *scale) || top >= *scale * E4M3_LOW)) continue;
        *scale = new_scale(top, *scale);
        (void)encode(&b, *scale);
    }
}

void cdr_weights_round_fp8(int64_t N, int64_t K, const float *had, float *x)
{
    const int64_t blocks = cdr_ceil_div(K, CDR__FP8_BLOCK);
    uint8_t *codes = cdr_alloc((size_t)(CDR__FP8_BLOCK * K));
    float *scales = cdr_alloc(sizeof *scales * (size_t)blocks);
    for (int64_t r0 = 0; r0 < N; r0 += CDR__FP8_BLOCK) {
        const int64_t n = CDR_MIN(N - r0, (int64_t)CDR__FP8_BLOCK);
        float *at = x + r0 * K;
        if (had) memcpy(scales, had + r0 / CDR__FP8_BLOCK * blocks, sizeof *scales * (size_t)blocks);
        else memset(scales, 0, sizeof *scales * (size_t)blocks);
        cdr__fp8_encode(at, n, K, codes, scales);
        cdr_to_f32(CDR_F8_E4M3, codes, at, n * K);
        for (int64_t i = 0; i < n * K; i++) at[i] = cdr_bf16_to_f32(cdr_f32_to_bf16(at[i] * scales[i % K / CDR__FP8_BLOCK]));
    }
    cdr_free(codes);
    cdr_free(scales);
}

int64_t cdr_weights_fp8_blocks(int64_t N, int64_t K) { return cdr_ceil_div(N, CDR__FP8_BLOCK) * cdr_ceil_div(K, CDR__FP8_BLOCK); }

cdr_status cdr_weights_fp8_scales(cdr_weights *w, int64_t i_param, int64_t expert, float *scales, cdr_err *err)
{
    const cdr__part *p = &w->part[i_param];
    CDR_CHECK(p->kind == CDR__FP8_128 && expert >= 0 && expert < p->n_files);
    return cdr_hf_read(w->d, p->scale[expert], 0, sizeof *scales * (size_t)cdr_weights_fp8_blocks(p->row.n[0], p->row.n[1]), scales, err);
}
