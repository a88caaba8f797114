/* read.c: a parameter's elements out of the directory, in whatever format it lies there, as the format that the caller computes with.
 *
 *   MXFP4    code * 2^(s - 127), exact in BF16 for scales 2 .. 252; others are refused, but for blocks of zeros, which are zero at any scale
 *   FP8_128  y = bf16(float(e4m3) * scale_inv), as DeepSeek's own conversion rounds it (source: the release's fp8_cast_bf16.py, the formula)
 *   packed on request: the rule of tensor/mxfp4.c; sums of |x - q| and |x| tell its error
 * Ranges may be read by several threads at once. Weights that are copied come past the page cache (cdr_hf_read).
 */
#include "weights/parts.h"

#include <math.h>
#include <stdlib.h>

enum { CHUNK = 1 << 20 };              /* elements at a time: requests of 512 KiB to 4 MiB */

cdr_status cdr__check_scales(const char *tensor, const uint8_t *codes, const uint8_t *scales, int64_t n_blocks, cdr_err *err)
{
    for (int64_t b = 0; b < n_blocks; b++) {
        if (scales[b] >= CDR__SCALE_MIN && scales[b] <= CDR__SCALE_MAX) continue;
        uint8_t any = scales[b] > CDR__SCALE_MAX;
        for (int i = 0; i < CDR__MX / 2; i++) any |= codes[b * (CDR__MX / 2) + i] & 0x77;       /* -0 is a zero too */
        if (any)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.scale", "tensor %s: block %lld has the scale 2^(%d - 127), outside of 2 to 252, where values leave BF16's range. "
                        "The file is broken, or of another format", tensor, (long long)b, scales[b]);
    }
    return CDR_OK;
}

bool cdr__pack(const float *x, uint8_t *codes, uint8_t *scales, int64_t n, double *error, double *sum)
{
    cdr_mxfp4_encode(x, codes, scales, n);
    for (int64_t b = 0; b < n / CDR__MX; b++) {
        const float *v = x + b * CDR__MX;
        float q[CDR__MX];
        if (scales[b] > CDR__SCALE_MAX) return false;
        if (scales[b] < CDR__SCALE_MIN) {              /* below what BF16 holds exactly: coarser, and zeros stay zeros */
            scales[b] = CDR__SCALE_MIN;
            cdr_mxfp4_encode_as(v, scales + b, codes + b * (CDR__MX / 2), CDR__MX);
        }
        cdr_mxfp4_decode(codes + b * (CDR__MX / 2), scales + b, q, CDR__MX);
        for (int i = 0; i < CDR__MX; i++) {
            *error += fabs((double)v[i] - (double)q[i]);
            *sum += fabs((double)v[i]);
        }
    }
    return true;
}

/* Bytes of elements [at, at + n) of file f: of a fused tensor the pieces of its axis that are this part's. */
static cdr_status read_bytes(cdr_weights *w, const cdr__part *p, int64_t f, int64_t at, int64_t n, char *dst, cdr_err *err)
{
    const int64_t size = cdr_dtype_bytes(p->dtype, 1);
    if (p->row.split_n <= 1) return cdr_hf_read(w->d, p->data[f], (size_t)(at * size), (size_t)(n * size), dst, err);
    int64_t inner = p->row.n[p->row.split_axis] / p->row.split_n;         /* elements that lie together */
    for (int k = p->row.split_axis + 1; k < p->row.n_dim; k++) inner *= p->row.n[k];
    while (n > 0) {
        int64_t outer = at / inner, in = at % inner, k = CDR_MIN(n, inner - in), from = (outer * p->row.split_n + p->row.split_i) * inner + in;
        CDR_TRY(cdr_hf_read(w->d, p->data[f], (size_t)(from * size), (size_t)(k * size), dst, err));
        at += k;
        n -= k;
        dst += k * size;
    }
    return CDR_OK;
}

/* Codes and scales of elements [at, at + n), whole blocks, checked. */
static cdr_status read_packed(cdr_weights *w, const cdr__part *p, int64_t f, int64_t at, int64_t n, uint8_t *codes, uint8_t *scales, cdr_err *err)
{
    CDR_CHECK(at % CDR__MX == 0 && n % CDR__MX == 0);
    CDR_TRY(cdr_hf_read(w->d, p->data[f], (size_t)at / 2, (size_t)n / 2, codes, err));
    CDR_TRY(cdr_hf_read(w->d, p->scale[f], (size_t)(at / CDR__MX), (size_t)(n / CDR__MX), scales, err));
    return cdr__check_scales(cdr_hf_name(w->d, p->scale[f]), codes, scales, n / CDR__MX, err);
}

static cdr_status expand_fp8(cdr_weights *w, const cdr__part *p, int64_t f, int64_t at, int64_t n, const uint8_t *raw, float *dst, cdr_err *err)
{
    cdr_hf_tensor s = { 0 };
    CDR_TRY(cdr_hf_tensor_at(w->d, p->scale[f], &s, err));
    const int64_t K = p->row.n[1], blocks = cdr_ceil_div(K, CDR__FP8_BLOCK);
    cdr_to_f32(CDR_F8_E4M3, raw, dst, n);
    for (int64_t i = 0; i < n;) {                       /* a run within one block of columns */
        int64_t row = (at + i) / K, col = (at + i) % K, k = CDR_MIN(n - i, CDR_MIN(K, (col / CDR__FP8_BLOCK + 1) * CDR__FP8_BLOCK) - col);
        float scale;
        memcpy(&scale, (const char *)s.data + 4 * (row / CDR__FP8_BLOCK * blocks + col / CDR__FP8_BLOCK), 4);
        if (!isfinite(scale)) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.scale", "tensor %s: a scale is not finite. The file is broken", s.t->name);
        for (int64_t j = i; j < i + k; j++) dst[j] = cdr_bf16_to_f32(cdr_f32_to_bf16(dst[j] * scale));
        i += k;
    }
    return CDR_OK;
}

cdr_status cdr__part_f32(cdr_weights *w, const cdr__part *p, int64_t f, int64_t at, int64_t n, float *dst, cdr_err *err)
{
    CDR_CHECK(n <= CHUNK);
    uint8_t *raw = cdr_alloc((size_t)n * 4 + (size_t)n / CDR__MX + 1), *scales = raw + n;
    cdr_status st;
    if (p->kind == CDR__MXFP4) {
        st = read_packed(w, p, f, at, n, raw, scales, err);
        if (st == CDR_OK) cdr_mxfp4_decode(raw, scales, dst, n);
    } else if (p->kind == CDR__FP8_128) {
        st = cdr_hf_read(w->d, p->data[f], (size_t)at, (size_t)n, raw, err);
        if (st == CDR_OK) st = expand_fp8(w, p, f, at, n, raw, dst, err);
    } else {
        st = read_bytes(w, p, f, at, n, (char *)raw, err);
        if (st == CDR_OK) cdr_to_f32(p->dtype, raw, dst, n);
    }
    cdr_free(raw);
    return st;
}

/* Blocks of 16 bytes of codes and their scale, as the engine keeps them. */
static void put_blocks(const uint8_t *codes, const uint8_t *scales, int64_t n, uint8_t *dst)
{
    for (int64_t b = 0; b < n / CDR__MX; b++) {
        memcpy(dst + b * CDR__MX_BYTES, codes + b * (CDR__MX / 2), CDR__MX / 2);
        dst[b * CDR__MX_BYTES + CDR__MX / 2] = scales[b];
    }
}

static cdr_status pack_chunk(cdr_weights *w, const cdr__part *p, const float *x, int64_t n, uint8_t *codes, uint8_t *dst, cdr_err *err)
{
    uint8_t *scales = codes + n / 2;
    double error = 0, sum = 0;
    CDR_CHECK(n % CDR__MX == 0);
    if (!cdr__pack(x, codes, scales, n, &error, &sum))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.nonfinite", "%s: %s holds a value that is not finite; it cannot be packed to MXFP4. The file is broken", cdr_hf_dir(w->d),
                    p->row.name);
    put_blocks(codes, scales, n, dst);
    pthread_mutex_lock(&w->lock);
    w->pack_error += error;
    w->pack_sum += sum;
    pthread_mutex_unlock(&w->lock);
    return CDR_OK;
}

/* One chunk of one file, with another dtype than it has there. */
static cdr_status convert_chunk(cdr_weights *w, const cdr__part *p, int64_t f, int64_t at, int64_t n, int dtype, char *dst, cdr_err *err)
{
    float *wide = cdr_alloc(sizeof *wide * (size_t)n + (size_t)n);
    uint8_t *codes = (uint8_t *)(wide + n);
    cdr_status st;
    if (p->kind == CDR__MXFP4 && dtype == CDR_MXFP4) {
        st = read_packed(w, p, f, at, n, codes, codes + n / 2, err);
        if (st == CDR_OK) put_blocks(codes, codes + n / 2, n, (uint8_t *)dst);
    } else {
        st = cdr__part_f32(w, p, f, at, n, wide, err);
        if (st == CDR_OK && dtype == CDR_MXFP4) st = pack_chunk(w, p, wide, n, codes, (uint8_t *)dst, err);
        else if (st == CDR_OK) cdr_from_f32(dtype, wide, dst, n);
    }
    cdr_free(wide);
    return st;
}

static void fill(int dtype, float value, int64_t n, char *dst)
{
    float x[CDR__MX];
    for (int i = 0; i < CDR__MX; i++) x[i] = value;
    for (int64_t i = 0; i < n; i += CDR__MX) cdr_from_f32(dtype, x, dst + cdr_dtype_bytes(dtype, i), CDR_MIN(n - i, (int64_t)CDR__MX));
}

cdr_status cdr_weights_read_elems(cdr_weights *w, int64_t i_param, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    CDR_CHECK(i_param >= 0 && i_param < w->n_parts);
    const cdr__part *p = &w->part[i_param];
    CDR_CHECK(first >= 0 && n >= 0 && first <= p->elems && n <= p->elems - first);
    char *to = dst;
    if (p->kind == CDR__ABSENT) {
        fill(dtype, (float)p->row.absent, n, to);
        return CDR_OK;
    }
    bool same = p->kind == CDR__PLAIN && dtype == p->dtype;
    while (n > 0) {
        int64_t f = first / p->file_elems, at = first % p->file_elems, k = CDR_MIN(n, p->file_elems - at);
        if (!same) k = CDR_MIN(k, (int64_t)CHUNK);
        CDR_TRY(same ? read_bytes(w, p, f, at, k, to, err) : convert_chunk(w, p, f, at, k, dtype, to, err));
        to += cdr_dtype_bytes(dtype, k);
        first += k;
        n -= k;
    }
    return CDR_OK;
}

cdr_status cdr_weights_read(cdr_weights *w, int64_t i_param, int64_t first_row, int64_t n_rows, int dtype, void *dst, cdr_err *err)
{
    CDR_CHECK(i_param >= 0 && i_param < w->n_parts);
    int64_t cols = w->part[i_param].cols;
    return cdr_weights_read_elems(w, i_param, first_row * cols, n_rows * cols, dtype, dst, err);
}

cdr_status cdr_weights_repack(cdr_weights *w, int64_t i_param, int64_t first_row, int64_t n_rows, const float *rows, void *dst, cdr_err *err)
{
    CDR_CHECK(i_param >= 0 && i_param < w->n_parts);
    const cdr__part *p = &w->part[i_param];
    CDR_CHECK(p->kind == CDR__MXFP4);
    uint8_t *to = dst;
    for (int64_t r = first_row; r < first_row + n_rows; r++, rows += p->cols, to += p->cols / CDR__MX * CDR__MX_BYTES) {
        const int64_t at = r * p->cols % p->file_elems;
        cdr_hf_tensor s = { 0 };
        CDR_TRY(cdr_hf_tensor_at(w->d, p->scale[r * p->cols / p->file_elems], &s, err));
        for (int64_t b = 0; b < p->cols / CDR__MX; b++) {
            uint8_t *block = to + b * CDR__MX_BYTES, scale = CDR_MIN(CDR_MAX(((const uint8_t *)s.data)[at / CDR__MX + b], CDR__SCALE_MIN), CDR__SCALE_MAX);
            cdr_mxfp4_encode_as(rows + b * CDR__MX, &scale, block, CDR__MX);
            block[CDR__MX / 2] = scale;
        }
    }
    return CDR_OK;
}

double cdr_weights_pack_error(const cdr_weights *w)
{
    return w->pack_sum > 0 ? w->pack_error / w->pack_sum : 0;
}

cdr_status cdr_weights_packed(cdr_weights *w, int64_t i_param, int64_t expert, const uint8_t **codes, const uint8_t **scales, cdr_err *err)
{
    CDR_CHECK(i_param >= 0 && i_param < w->n_parts);
    const cdr__part *p = &w->part[i_param];
    CDR_CHECK(p->kind == CDR__MXFP4 && expert >= 0 && expert < p->n_files);
    cdr_hf_tensor c = { 0 }, s = { 0 };
    CDR_TRY(cdr_hf_tensor_at(w->d, p->data[expert], &c, err));
    CDR_TRY(cdr_hf_tensor_at(w->d, p->scale[expert], &s, err));
    CDR_TRY(cdr__check_scales(s.t->name, c.data, s.data, p->file_elems / CDR__MX, err));
    *codes = c.data;
    *scales = s.data;
    return CDR_OK;
}
