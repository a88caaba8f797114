/* attention.h: causal attention over packed documents, in the MLA form: per head a key is [own part | part that all
 * heads share], keys and values come from one operand.
 *
 *   cdr_attention_attr a = { .heads = 4, .nope = 32, .ext = 32, .v = 64, .scale = 0.125f };
 *   cdr_val o_T_HV = cdr_attention(g, q, kv, kr, start_T, pos_T, &a);
 *
 * q [T, H*(nope+ext)], kv [S, H*(nope+v)] (per head [key | value]), kr [S, ext] or CDR_NONE where ext = 0. Query t sees
 * the keys start_t .. pos_t; a row with start_t > pos_t is idle and gives zeros. Training: S = T, pos_t = t, and start_t
 * is the first row of t's document. Decoding: the keys are rows of a cache of S rows.
 *
 * Sparse (spec/operators.md, 1): sel_TB [T, ceil(S/32)] I32, bit s % 32 of word s / 32 set: t may see key s, besides
 * start_t <= s <= pos_t. A row that sees something must have a set bit there; a mask of ones is the same as none, bit for bit.
 *
 *   a.core = CDR_ATT_GATHERED;                                       // reads the selected keys alone; DENSE: all, masked
 *   cdr_val o = cdr_attention_sel(g, q, kv, kr, sel_TB, start_T, pos_T, &a), lse_TH = cdr_attention_lse(g, o);
 */
#ifndef CDR_OPS_ATTENTION_H
#define CDR_OPS_ATTENTION_H

#include "graph/op.h"
#include <assert.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CDR_ATT_DENSE, CDR_ATT_GATHERED } cdr_attention_core;      /* numbered as cdr_core of compile.h */
typedef struct {
    int32_t heads, nope, ext, v; float scale;
    int32_t core;                            /* cdr_attention_core: two ways to sum, hence two sets of bits; never chosen by shapes */
    int32_t o_f32;                           /* o is F32 whatever q is, and no o32 is made */
} cdr_attention_attr;

extern const cdr_op cdr_op_attention;        /* q, kv, kr, start, pos, sel -> o_T_HV, [o32_T_HV], [lse_TH]; o32 only where o is not F32 */
extern const cdr_op cdr_op_attention_bwd;    /* do, q, kv, kr, start, pos, o in F32, lse, sel -> [dq], [dkv], [dkr]; S = T, pos_t = t */
cdr_val cdr_attention(cdr_graph *g, cdr_val q, cdr_val kv, cdr_val kr, cdr_val start_T, cdr_val pos_T, const cdr_attention_attr *a);
cdr_val cdr_attention_sel(cdr_graph *g, cdr_val q, cdr_val kv, cdr_val kr, cdr_val sel_TB, cdr_val start_T, cdr_val pos_T, const cdr_attention_attr *a);
cdr_val cdr_attention_lse(cdr_graph *g, cdr_val o_T_HV);      /* lse_TH of the call that made o */

/* ---- inside of the folder ------------------------------------------------------------------------------------- */
enum { CDR__ATT_Q, CDR__ATT_KV, CDR__ATT_KR, CDR__ATT_START, CDR__ATT_POS, CDR__ATT_SEL, CDR__ATT_O, CDR__ATT_O32, CDR__ATT_LSE };
enum { CDR__ATB_DO, CDR__ATB_Q, CDR__ATB_KV, CDR__ATB_KR, CDR__ATB_START, CDR__ATB_POS, CDR__ATB_O, CDR__ATB_LSE, CDR__ATB_SEL,
       CDR__ATB_DQ, CDR__ATB_DKV, CDR__ATB_DKR };
enum { CDR__ATT_KEYS = 64 };    /* keys of a tile; tiles are counted from start_t, so that a row's bits know its document alone */

cdr_status cdr__attention_fwd_base(const cdr_args *a);
cdr_status cdr__attention_bwd_base(const cdr_args *a);
cdr_status cdr__attention_fwd_avx2(const cdr_args *a);
cdr_status cdr__attention_bwd_avx2(const cdr_args *a);
cdr_status cdr__attention_fwd_avx512(const cdr_args *a);
cdr_status cdr__attention_bwd_avx512(const cdr_args *a);
cdr_status cdr__attention_fwd_avx512_bf16(const cdr_args *a);
cdr_status cdr__attention_fwd_amx(const cdr_args *a);
cdr_status cdr__attention_fwd_gathered(const cdr_args *a);
cdr_status cdr__attention_bwd_gathered(const cdr_args *a);
cdr_status cdr__attention_fwd_gathered_avx2(const cdr_args *a);
cdr_status cdr__attention_bwd_gathered_avx2(const cdr_args *a);
cdr_status cdr__attention_fwd_gathered_avx512(const cdr_args *a);
cdr_status cdr__attention_bwd_gathered_avx512(const cdr_args *a);
size_t cdr__attention_fwd_gathered_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_bwd_gathered_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_fwd_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_bwd_base_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_fwd_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_bwd_avx2_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_fwd_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_bwd_avx512_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_fwd_avx512_bf16_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__attention_fwd_amx_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
/* Documents of a training pack: doc[i] .. doc[i+1] are the rows of one; returns their number. doc has T + 1 places.
 * Asserts that start_t is the first row of t's run, or past pos_t (idle rows: a document of their own each). */
int64_t cdr__attention_docs(const int32_t *start, const int32_t *pos, int64_t T, int32_t *doc);
/* dkr_SR (+)= sum over heads of part_HSR, ascending h: the only sum that crosses heads */
void cdr__attention_dkr(const cdr_args *a, const float *part_HSR);

/* An operand as rows of numbers: element (i, j) is at p + (i * pitch + j) * bytes. p NULL: absent. */
typedef struct { char *p; int dtype; int64_t pitch, bytes; } cdr__att_mat;
static inline cdr__att_mat cdr__att_operand(const cdr_args *a, int i)
{
    const cdr_type *t = &a->type[i];
    cdr__att_mat m = { (char *)a->ptr[i], t->dtype, 0, 0 };
    if (m.p) {
        m.pitch = cdr_type_pitch(t);
        m.bytes = cdr_dtype_bytes(t->dtype, 1);
    }
    return m;
}
static inline void cdr__att_load(const cdr__att_mat *m, int64_t row, int64_t col, int64_t n, float *dst)
{
    cdr_to_f32(m->dtype, m->p + (row * m->pitch + col) * m->bytes, dst, n);
}
/* Writes n numbers; with add, their sum with what is there. old: room for n numbers. */
static inline void cdr__att_store(const cdr__att_mat *m, int64_t row, int64_t col, int64_t n, float *src, float *old)
{
    if (old) {
        cdr__att_load(m, row, col, n, old);
        for (int64_t j = 0; j < n; j++) src[j] += old[j];
    }
    cdr_from_f32(m->dtype, src, m->p + (row * m->pitch + col) * m->bytes, n);
}
/* The mask of a call; row NULL (no mask): everything is selected. */
typedef struct { const char *p; int64_t row_bytes, n_words; } cdr__att_sel;
static inline cdr__att_sel cdr__att_mask(const cdr_args *a, int i)
{
    cdr__att_sel m = { (const char *)a->ptr[i], 0, 0 };
    if (m.p) {
        m.row_bytes = cdr_type_pitch(&a->type[i]) * (int64_t)sizeof(uint32_t);
        m.n_words = cdr_type_cols(&a->type[i]);
    }
    return m;
}
static inline const uint32_t *cdr__att_mask_row(const cdr__att_sel *m, int64_t t)
{
    return m->p ? (const uint32_t *)(const void *)(m->p + t * m->row_bytes) : NULL;
}
/* Bits of the keys s .. s + n - 1, n <= 64: bit i is key s + i. */
static inline uint64_t cdr__att_bits(const cdr__att_sel *m, const uint32_t *row, int64_t s, int64_t n)
{
    uint64_t all = n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1, bits = 0;
    if (!row) return all;
    int64_t w = s / 32, at = s % 32;
    for (int i = 0; i < 3 && w + i < m->n_words; i++) {
        uint64_t word = row[w + i];
        int64_t shift = 32 * i - at;
        bits |= shift < 0 ? word >> -shift : shift < 64 ? word << shift : 0;
    }
    return bits & all;
}
/* First row after t, before end, that does not continue t's run: same start, next pos. */
static inline int64_t cdr__att_run_end(const int32_t *start, const int32_t *pos, int64_t t, int64_t end)
{
    int64_t b = t + 1;
    while (b < end && start[b] == start[t] && pos[b] == pos[b - 1] + 1) b++;
    return b;
}

#ifdef __cplusplus
}
#endif
#endif
