/* cuda.h: what the descriptor rows and the CUDA kernels of attention agree on. */
#ifndef CDR_OPS_ATTENTION_CUDA_H
#define CDR_OPS_ATTENTION_CUDA_H
#include "device/cuda/rows.h"
#include "ops/attention/attention.h"

enum { CDR_ATT_TILE = 64, CDR_ATT_KEY_MAX = 192, CDR_ATT_VALUE_MAX = 128 };     /* rows of a tile; widths that fit shared memory */

/* Scratch of the backward: delta_TH, then the heads' parts of dkr, [H][S][ext]; both F32. */
static inline size_t cdr_att_delta_bytes(const cdr_attention_attr *a, const cdr_type *t)
{
    return cdr_cuda_piece(t[CDR__ATB_Q].n[0] * a->heads, sizeof(float));
}
static inline size_t cdr_att_bwd_bytes(const cdr_attention_attr *a, const cdr_type *t)
{
    bool shared = a->ext > 0 && !cdr_absent(&t[CDR__ATB_DKR]);
    return cdr_att_delta_bytes(a, t) + (shared ? cdr_cuda_piece(t[CDR__ATB_KV].n[0] * a->ext * a->heads, sizeof(float)) : 0);
}
#endif
