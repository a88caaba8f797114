/* indexer.h: DeepSeek sparse attention's lightning indexer: which keys a query reads, and the loss that trains the choice.
 *
 *   cdr_indexer_attr ia = { .heads = 32, .dim = 128, .top_k = 2048 };
 *   cdr_val sel_TB = cdr_indexer(g, qI, kI, w, start_T, pos_T, dense_1, &ia);       // bit s: t reads key s
 *   cdr_val kl_1 = cdr_indexer_loss(g, qI, kI, w, q, kv, kr, lse_TH, sel_TB, start_T, pos_T, &la);
 *
 * qI [T, HI*dim], kI [S, dim] (one key for all heads), w [T, HI] F32, scaled already. Rows as in attention.h: t sees
 * start_t .. pos_t; start_t > pos_t: an idle row, which selects nothing and adds nothing. Training: S = T, pos_t = t.
 */
#ifndef CDR_OPS_INDEXER_H
#define CDR_OPS_INDEXER_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int32_t heads, dim, top_k; } cdr_indexer_attr;
typedef struct {
    int32_t heads, dim;                      /* of the indexer */
    int32_t main_heads, nope, ext, v;        /* of the attention whose weights are the target */
    float scale, coef;                       /* scale: of that attention's scores; coef: weight of this loss */
} cdr_indexer_loss_attr;

extern const cdr_op cdr_op_indexer;              /* qI, kI, w, start, pos, dense_1 I32 -> sel_TB I32 [T, ceil(S/32)] */
extern const cdr_op cdr_op_indexer_loss;         /* qI, kI, w, q, kv, kr, lse_TH, sel, start, pos -> kl_1 F64; its gradient is scale_1 F32 */
extern const cdr_op cdr_op_indexer_loss_bwd;     /* the same, then scale_1 -> [dqI], [dkI], [dw] (each add ok) */

cdr_val cdr_indexer(cdr_graph *g, cdr_val qI, cdr_val kI, cdr_val w_THI, cdr_val start_T, cdr_val pos_T, cdr_val dense_1, const cdr_indexer_attr *a);
cdr_val cdr_indexer_loss(cdr_graph *g, cdr_val qI, cdr_val kI, cdr_val w_THI, cdr_val q, cdr_val kv, cdr_val kr, cdr_val lse_TH, cdr_val sel_TB,
                         cdr_val start_T, cdr_val pos_T, const cdr_indexer_loss_attr *a);      /* kr: CDR_NONE where ext = 0 */

/* ---- inside of the folder ------------------------------------------------------------------------------------- */
enum { CDR__IX_Q, CDR__IX_K, CDR__IX_W, CDR__IX_START, CDR__IX_POS, CDR__IX_DENSE, CDR__IX_SEL };
enum { CDR__IL_QI, CDR__IL_KI, CDR__IL_W, CDR__IL_Q, CDR__IL_KV, CDR__IL_KR, CDR__IL_LSE, CDR__IL_SEL, CDR__IL_START, CDR__IL_POS,
       CDR__IL_KL, CDR__IL_SCALE = CDR__IL_KL, CDR__IL_DQI, CDR__IL_DKI, CDR__IL_DW };
enum { CDR__IX_KEYS = 64 };              /* keys of a tile */

/* What the loops of rows.c and loss.c are made of; one table per instruction set, the same bits in all (math.inc). */
typedef struct {
    /* C[m][n] (+)= sum over i < k of A[r * a_row + i * a_k] B[i * b_row + j], each a chain in ascending i; n is a multiple of 16 */
    void (*product)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_k, const float *b, int64_t b_row, float *c, int64_t c_row, bool add);
    void (*relu_sum)(const float *x_HS, const float *w_H, int64_t n_heads, float *i_S);         /* i_s = sum_h w_h relu(x_hs), a tile of keys */
    void (*add_exp)(const float *s, int64_t n, float scale, float lse, float *p);               /* p += exp(s scale - lse) */
    void (*exp_of)(float *x, int64_t n, float max);                                             /* x = exp(x - max) */
    int64_t (*count_from)(const uint32_t *key, int64_t n, uint32_t least);                      /* how many are as large as least */
    uint64_t (*signs)(const float *x);                                                          /* bit c: x[c] > 0, a tile of keys */
    void (*take_signs)(const float *x, float w, uint64_t bits, float *g);                       /* g[c] = bit c ? x[c] w : 0, a tile of keys */
    void (*transpose)(const float *rows, int64_t pitch, int64_t n, float *panel);               /* panel[i][s] = rows[s][i], i < n, a tile of keys s */
    void (*widen[CDR_N_DTYPES])(const void *src, int64_t n, float *dst);                        /* of F32 and BF16 */
} cdr__indexer_math;
extern const cdr__indexer_math cdr__indexer_math_base, cdr__indexer_math_avx2, cdr__indexer_math_avx512;

cdr_status cdr__indexer_run(const cdr_args *a, const cdr__indexer_math *m);
cdr_status cdr__indexer_loss_run(const cdr_args *a, const cdr__indexer_math *m);
cdr_status cdr__indexer_loss_bwd_run(const cdr_args *a, const cdr__indexer_math *m);
cdr_status cdr__indexer_base(const cdr_args *a);
cdr_status cdr__indexer_avx2(const cdr_args *a);
cdr_status cdr__indexer_avx512(const cdr_args *a);
cdr_status cdr__indexer_loss_base(const cdr_args *a);
cdr_status cdr__indexer_loss_avx2(const cdr_args *a);
cdr_status cdr__indexer_loss_avx512(const cdr_args *a);
cdr_status cdr__indexer_loss_bwd_base(const cdr_args *a);
cdr_status cdr__indexer_loss_bwd_avx2(const cdr_args *a);
cdr_status cdr__indexer_loss_bwd_avx512(const cdr_args *a);
size_t cdr__indexer_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__indexer_loss_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__indexer_loss_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
void cdr__indexer_ref(const cdr_ref_args *a);
void cdr__indexer_loss_ref(const cdr_ref_args *a);
void cdr__indexer_loss_bwd_ref(const cdr_ref_args *a);

#ifdef __cplusplus
}
#endif
#endif
