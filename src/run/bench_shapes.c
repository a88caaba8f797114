/* bench_shapes.c: what bench times: for each operator, the shape that it prints first and some that users meet. Operators
 * that are not here are timed at the largest of their test cases. Rows are cdr_case records: name is the printed shape,
 * tolerances and gradients are not used. Operators bound by memory get operands of 64 MiB and more, which no cache of two
 * cores holds; products start with the 2048 cube, by which libraries are compared. */
#include "ops/adamw/adamw.h"
#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/attn_res/attn_res.h"
#include "ops/balance/balance.h"
#include "ops/copy/copy.h"
#include "ops/dispatch/dispatch.h"
#include "ops/experts/experts.h"
#include "ops/embedding/embedding.h"
#include "ops/gate/gate.h"
#include "ops/grad_norm/grad_norm.h"
#include "ops/grad_push/grad_push.h"
#include "ops/indexer/indexer.h"
#include "ops/kda/kda.h"
#include "ops/layernorm/layernorm.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"
#include "ops/scale/scale.h"
#include "ops/short_conv/short_conv.h"
#include "ops/situ/situ.h"
#include "ops/swiglu/swiglu.h"
#include "run/bench.h"

static const cdr_linear_attr same = { .out_dtype = -1 };
static const cdr_rmsnorm_attr eps5 = { .eps = 1e-5f };
static const cdr_rope_attr rope64 = { .heads = 16, .nope = 64, .ext = 64, .theta = 10000.0f };
static const cdr_attention_attr heads4 = { .heads = 4, .nope = 64, .v = 64, .scale = 0.125f };
static const cdr_attention_attr mla8 = { .heads = 8, .nope = 128, .ext = 64, .v = 128, .scale = 0.0721687836f };
static const cdr_attention_attr demo_heads = { .heads = 4, .nope = 32, .ext = 16, .v = 32, .scale = 0.144337567f };
static const cdr_indexer_attr index8 = { .heads = 8, .dim = 128, .top_k = 512 }, demo_index = { .heads = 2, .dim = 32, .top_k = 64 };
static const cdr_indexer_loss_attr index8_loss = { .heads = 8, .dim = 128, .main_heads = 8, .nope = 128, .ext = 64, .v = 128, .scale = 0.0721687836f, .coef = 1 };
static const cdr_indexer_loss_attr demo_index_loss = { .heads = 2, .dim = 32, .main_heads = 4, .nope = 32, .ext = 16, .v = 32, .scale = 0.144337567f, .coef = 1 };
static const cdr_attn_res_attr mix5 = { .n = 5, .eps = 1e-5f };
static const cdr_kda_attr kda64 = { .heads = 2, .dim = 64, .chunk = 64, .lower_bound = -5, .norm_eps = 1e-5f };
static const cdr_kda_attr kda128 = { .heads = 4, .dim = 128, .chunk = 64, .lower_bound = -5, .norm_eps = 1e-5f };
static const cdr_experts_attr top4 = { .top_k = 4, .situ = 1, .beta = 4, .linear_beta = 25 };
static const cdr_copy_attr to_bf16 = { .dtype = CDR_BF16 };
static const cdr_loss_attr chunks = { .chunk_tokens = 1024, .chunk_vocab = 4096 };
static const cdr_grad_push_attr one_level = { .depth = 1 };
static const cdr_norm_parts_attr whole = { .n = 1, .n_shard = 1, .rows = { 8192 } };
static const cdr_adamw_attr adam = { .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .lr_scale = 1.0f };
static const cdr_router_attr top16 = { .top_k = 16, .renormalize = 1, .scale = 1.0f };
static const cdr_dispatch_attr of_896 = { .experts = 896 };
static const cdr_balance_load_attr load_896 = { .experts = 896 };
static const cdr_balance_hist_attr hist_1000 = { .bins = 1000 };
static const cdr_balance_quantile_attr quantile_1000 = { .top_k = 16, .bins = 1000, .ema = 0.5f };
static const cdr_situ_attr situ4 = { .beta = 4, .linear_beta = 25 };
static const cdr_layernorm_attr ln5 = { .eps = 1e-5f };
static const cdr_scale_attr eighth = { .factor = 0.125f };

/* One document of T rows. */
static void one_document(double *start_T, double *pos_T, int64_t T)
{
    for (int64_t t = 0; t < T; t++) {
        start_T[t] = 0;
        pos_T[t] = (double)t;
    }
}
static void attention_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    one_document(in[3], in[4], t[3].n[0]);
}
static void attention_bwd_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    one_document(in[4], in[5], t[4].n[0]);
}
/* Documents of 256 rows, as the demo packs them. */
static void demo_rows(double *start_T, double *pos_T, int64_t T)
{
    for (int64_t t = 0; t < T; t++) {
        start_T[t] = (double)(t / 256 * 256);
        pos_T[t] = (double)t;
    }
}
/* A mask: of the keys that a row sees about top_k, evenly drawn, and its own; all where there are no more. */
static void draw_mask(double *sel_TB, const double *start_T, const double *pos_T, int64_t T, int64_t top_k)
{
    const cdr_rng_key own = { 1, 99, 0 };
    for (int64_t t = 0; t < T; t++)
        for (int64_t w = 0; w < cdr_ceil_div(T, 32); w++) {
            uint32_t bits = 0;
            const int64_t first = (int64_t)start_T[t], last = (int64_t)pos_T[t], n = last - first + 1;
            for (int64_t s = CDR_MAX(first, 32 * w); s <= CDR_MIN(last, 32 * w + 31); s++)
                if (s == last || (int64_t)(cdr_rng_u64(own, (uint64_t)(t * T + s)) % (uint64_t)n) < top_k) bits |= 1u << (s % 32);
            sel_TB[t * cdr_ceil_div(T, 32) + w] = (double)(int32_t)bits;
        }
}
static void demo_attention_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    demo_rows(in[3], in[4], t[3].n[0]);
    draw_mask(in[5], in[3], in[4], t[3].n[0], demo_index.top_k);
}
static void demo_attention_bwd_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    demo_rows(in[4], in[5], t[4].n[0]);
    draw_mask(in[8], in[4], in[5], t[4].n[0], demo_index.top_k);
}
static void indexer_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    one_document(in[3], in[4], t[3].n[0]);
}
static void demo_indexer_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    demo_rows(in[3], in[4], t[3].n[0]);
}
static void indexer_loss_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    one_document(in[8], in[9], t[8].n[0]);
    draw_mask(in[7], in[8], in[9], t[8].n[0], index8.top_k);
}
static void demo_indexer_loss_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    demo_rows(in[8], in[9], t[8].n[0]);
    draw_mask(in[7], in[8], in[9], t[8].n[0], demo_index.top_k);
}
static void rope_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    one_document(in[2], in[1], t[1].n[0]);
}

/* Documents of 1024 rows. */
static void packed_rows(double *start_T, double *pos_T, int64_t T)
{
    for (int64_t t = 0; t < T; t++) {
        start_T[t] = (double)(t / 1024 * 1024);
        pos_T[t] = (double)t;
    }
}
static void kda_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    packed_rows(in[9], in[10], t[9].n[0]);
}
static void kda_bwd_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    packed_rows(in[10], in[11], t[10].n[0]);
}
static void conv_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    packed_rows(in[2], in[3], t[2].n[0]);
}
static void conv_bwd_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    packed_rows(in[3], in[4], t[3].n[0]);
}

/* A [T, A] of idx: different experts of E, ascending, evenly drawn. */
static void draw_routes(double *idx_TA, int64_t T, int64_t A, int64_t E, cdr_rng_key key)
{
    for (int64_t q = 0; q < T * A; q++) idx_TA[q] = (double)(q % A * (E / A) + (int64_t)(cdr_rng_u64(key, (uint64_t)q) % (uint64_t)(E / A)));
}
static void dispatch_rows(double *const *in, const cdr_type *t, cdr_rng_key key) { draw_routes(in[0], t[0].n[0], t[0].n[1], of_896.experts, key); }
static void router_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    one_document(in[2], in[3], t[2].n[0]);
}
static void router_bwd_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    draw_routes(in[2], t[2].n[0], t[2].n[1], t[1].n[1], key);
    one_document(in[4], in[5], t[4].n[0]);
}
static void hist_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    one_document(in[3], in[4], t[3].n[0]);
}

/* Top-4 routes, even: token t goes to experts 4 g .. 4 g + 3 of group g = t mod (E / 4). in: from perm on. */
static void even_routes(double *const *in, int64_t T, int64_t E)
{
    int64_t groups = E / 4, rows = T / groups;
    for (int64_t e = 0; e <= E; e++) in[1][e] = (double)(e * rows);
    for (int64_t q = 0; q < 4 * T; q++) {
        int64_t t = q / 4, row = (4 * (t % groups) + q % 4) * rows + t / groups;
        in[2][q] = (double)row;
        in[0][row] = (double)q;
    }
}
static void experts_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    even_routes(in + 2, t[0].n[0], t[5].n[0]);
}
static void experts_bwd_rows(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    even_routes(in + 3, t[0].n[0], t[6].n[0]);
}

#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define V(dt, n_) { .dtype = dt, .n_dim = 1, .n = { n_ } }
#define NORMAL { 'n', 1, 0 }
#define LINEAR(nm, dt, T, N, K) { .name = nm, .op = &cdr_op_linear, .attr = &same, .n_in = 2, .in = { M(dt, T, K), M(dt, N, K) }, .fill = { NORMAL, NORMAL } }
#define DX(nm, dt, T, N, K) { .name = nm, .op = &cdr_op_linear_dx, .n_in = 2, .in = { M(dt, T, N), M(dt, N, K) }, .fill = { NORMAL, NORMAL } }
#define DW(nm, dt, T, N, K) { .name = nm, .op = &cdr_op_linear_dw, .n_in = 2, .in = { M(dt, T, N), M(dt, T, K) }, .fill = { NORMAL, NORMAL } }
#define KDA_IN(dt, T, H, D) M(dt, T, (H) * (D)), M(dt, T, (H) * (D)), M(dt, T, (H) * (D)), M(dt, T, (H) * (D)), M(dt, T, H), M(dt, T, (H) * (D)), \
    V(CDR_F32, H), V(CDR_F32, (H) * (D)), V(CDR_F32, D), V(CDR_I32, T), V(CDR_I32, T)
#define KDA_FILL NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, { 'c', 0, 0 }, { 'c', -4, 0 }, { 'c', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }
#define KDA(nm, at, dt, T, H, D) { .name = nm, .op = &cdr_op_kda, .attr = &(at), .n_in = 11, .in = { KDA_IN(dt, T, H, D) }, .fill = { KDA_FILL }, \
    .make = kda_rows, .skip_out = 2 }, { .name = nm, .op = &cdr_op_kda_bwd, .attr = &(at), .n_in = 12, .in = { M(dt, T, (H) * (D)), KDA_IN(dt, T, H, D) }, \
    .fill = { NORMAL, KDA_FILL }, .make = kda_bwd_rows }

#define C3(dt, a, b, c) { .dtype = dt, .n_dim = 3, .n = { a, b, c } }
#define EXPERTS_IN(dt, T, E, L, I) M(dt, T, L), M(CDR_F32, T, 4), V(CDR_I32, 4 * (T)), V(CDR_I32, (E) + 1), M(CDR_I32, T, 4), \
    C3(dt, E, I, L), C3(dt, E, I, L), C3(dt, E, L, I), M(CDR_I64, 0, 3)
#define EXPERTS_FILL NORMAL, { 'c', 0.25, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'n', 0.1, 0 }, { 'n', 0.1, 0 }, { 'n', 0.1, 0 }, { 0 }
enum { NO_ADAPTERS = 0x3f };           /* of the six operands, and gradients, of adapters */
#define EXPERTS(nm, dt, T, E, L, I) { .name = nm, .op = &cdr_op_experts, .attr = &top4, .n_in = CDR__EX_N, .in = { EXPERTS_IN(dt, T, E, L, I) }, \
    .absent = 1u << CDR__EX_TABLE | NO_ADAPTERS << CDR__EX_A1, .fill = { EXPERTS_FILL }, .make = experts_rows, .skip_out = 2 }, \
    { .name = nm, .op = &cdr_op_experts_bwd, .attr = &top4, .n_in = CDR__EXB_N, .in = { M(dt, T, L), EXPERTS_IN(dt, T, E, L, I) }, \
    .absent = 1u << (CDR__EXB_X + CDR__EX_TABLE) | NO_ADAPTERS << (CDR__EXB_X + CDR__EX_A1) | 1u << CDR__EXB_GU | 1u << CDR__EXB_DV, .fill = { NORMAL, EXPERTS_FILL }, \
    .make = experts_bwd_rows, .skip_out = NO_ADAPTERS << CDR__EXB_DA1 }

/* MLA heads: H of N + E wide keys and V wide values */
#define MLA_IN(dt, T, H, N, E, vd) M(dt, T, (H) * ((N) + (E))), M(dt, T, (H) * ((N) + (vd))), M(dt, T, E), V(CDR_I32, T), V(CDR_I32, T)
#define MLA_FILL NORMAL, NORMAL, NORMAL, { 'f', 0, 0 }, { 'f', 0, 0 }
#define INDEXER(nm, dt, at, T, H, D, mk) { .name = nm, .op = &cdr_op_indexer, .attr = &(at), .n_in = 6, .make = mk, \
    .in = { M(dt, T, (H) * (D)), M(dt, T, D), M(CDR_F32, T, H), V(CDR_I32, T), V(CDR_I32, T), V(CDR_I32, 1) }, \
    .fill = { NORMAL, NORMAL, NORMAL, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'c', 0, 0 } } }
#define INDEXER_LOSS_IN(dt, T, HI, D, H, N, E, vd) M(dt, T, (HI) * (D)), M(dt, T, D), M(CDR_F32, T, HI), M(dt, T, (H) * ((N) + (E))), M(dt, T, (H) * ((N) + (vd))), \
    M(dt, T, E), M(CDR_F32, T, H), M(CDR_I32, T, ((T) + 31) / 32), V(CDR_I32, T), V(CDR_I32, T)
#define INDEXER_LOSS_FILL { 'n', 0.3, 0 }, { 'n', 0.3, 0 }, NORMAL, NORMAL, NORMAL, NORMAL, { 'c', 6, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }
#define INDEXER_LOSS(nm, dt, at, T, HI, D, H, N, E, vd, mk) { .name = nm, .op = &cdr_op_indexer_loss, .attr = &(at), .n_in = 10, .make = mk, \
    .in = { INDEXER_LOSS_IN(dt, T, HI, D, H, N, E, vd) }, .fill = { INDEXER_LOSS_FILL } }, \
    { .name = nm, .op = &cdr_op_indexer_loss_bwd, .attr = &(at), .n_in = 11, .make = mk, \
    .in = { INDEXER_LOSS_IN(dt, T, HI, D, H, N, E, vd), V(CDR_F32, 1) }, .fill = { INDEXER_LOSS_FILL, { 'c', 0.001, 0 } } }
#define ATTN_RES5(nm, dt, T, D) { .name = nm, .op = &cdr_op_attn_res, .attr = &mix5, .n_in = 7, \
    .in = { M(dt, T, D), M(dt, T, D), M(dt, T, D), M(dt, T, D), M(dt, T, D), V(dt, D), V(dt, D) }, \
    .fill = { NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, { 'n', 0.05, 0 }, NORMAL } }, \
    { .name = nm, .op = &cdr_op_attn_res_bwd, .attr = &mix5, .n_in = 8, \
    .in = { M(dt, T, D), M(dt, T, D), M(dt, T, D), M(dt, T, D), M(dt, T, D), M(dt, T, D), V(dt, D), V(dt, D) }, \
    .fill = { NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, { 'n', 0.05, 0 }, NORMAL } }
#define LOSS_FROZEN(nm, dt, T, W, D) { .name = nm, .op = &cdr_op_loss_frozen, .attr = &chunks, .n_in = 4, \
    .in = { M(dt, T, D), M(dt, W, D), V(CDR_I32, T), V(CDR_F32, 1) }, .fill = { NORMAL, { 'n', 0.03, 0 }, { 'i', 0, (W) - 1 }, { 'c', 0.001, 0 } } }
#define LOSS(nm, dt, T, W, D) { .name = nm, .op = &cdr_op_loss, .attr = &chunks, .n_in = 3, \
    .in = { M(dt, T, D), M(dt, W, D), V(CDR_I32, T) }, .fill = { NORMAL, { 'n', 0.05, 0 }, { 'i', 0, (W) - 1 } } }, \
    { .name = nm, .op = &cdr_op_loss_bwd, .attr = &chunks, .n_in = 5, \
    .in = { M(dt, T, D), M(dt, W, D), V(CDR_I32, T), V(CDR_F32, T), V(CDR_F32, 1) }, \
    .fill = { NORMAL, { 'n', 0.05, 0 }, { 'i', 0, (W) - 1 }, { 'c', 7, 0 }, { 'c', 1, 0 } } }

const cdr_case cdr__bench_shapes[] = {
    LINEAR("2048x2048x2048 bf16", CDR_BF16, 2048, 2048, 2048),         /* rows x columns x k */
    LINEAR("2048x2048x2048 f32", CDR_F32, 2048, 2048, 2048),
    LINEAR("4096x1024x256 bf16", CDR_BF16, 4096, 1024, 256),
    LINEAR("4096x256x1024 bf16", CDR_BF16, 4096, 256, 1024),
    LINEAR("4096x256x1024 f32", CDR_F32, 4096, 256, 1024),
    LINEAR("256x3072x3584 bf16", CDR_BF16, 256, 3072, 3584),
    LINEAR("64x3072x3584 bf16", CDR_BF16, 64, 3072, 3584),
    LINEAR("16x3072x3584 bf16", CDR_BF16, 16, 3072, 3584),
    LINEAR("1x3072x3584 bf16", CDR_BF16, 1, 3072, 3584),
    DX("2048x2048x2048 bf16", CDR_BF16, 2048, 2048, 2048),
    DX("4096x1024x256 f32", CDR_F32, 4096, 256, 1024),
    DW("2048x2048x2048 bf16", CDR_BF16, 2048, 2048, 2048),
    DW("1024x256x4096 f32", CDR_F32, 4096, 1024, 256),
    { .name = "T1024 4 heads of 64 f32", .op = &cdr_op_attention, .attr = &heads4, .n_in = 6, .absent = 4 | 32, .make = attention_rows,
      .in = { M(CDR_F32, 1024, 256), M(CDR_F32, 1024, 512), V(CDR_F32, 0), V(CDR_I32, 1024), V(CDR_I32, 1024) },
      .fill = { NORMAL, NORMAL, { 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .skip_out = 2 },
    { .name = "T2048 8 heads of 192 bf16", .op = &cdr_op_attention, .attr = &mla8, .n_in = 6, .absent = 32, .make = attention_rows,
      .in = { M(CDR_BF16, 2048, 1536), M(CDR_BF16, 2048, 2048), M(CDR_BF16, 2048, 64), V(CDR_I32, 2048), V(CDR_I32, 2048) },
      .fill = { NORMAL, NORMAL, NORMAL, { 'f', 0, 0 }, { 'f', 0, 0 } } },
    { .name = "T1024 4 heads of 64 f32", .op = &cdr_op_attention_bwd, .attr = &heads4, .n_in = 9, .absent = 8 | 256, .skip_out = 4, .make = attention_bwd_rows,
      .in = { M(CDR_F32, 1024, 256), M(CDR_F32, 1024, 256), M(CDR_F32, 1024, 512), V(CDR_F32, 0), V(CDR_I32, 1024), V(CDR_I32, 1024),
              M(CDR_F32, 1024, 256), M(CDR_F32, 1024, 4) },
      .fill = { NORMAL, NORMAL, NORMAL, { 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, NORMAL, { 'c', 12, 0 } } },
    { .name = "T2048 8 heads of 192 bf16", .op = &cdr_op_attention_bwd, .attr = &mla8, .n_in = 9, .absent = 256, .make = attention_bwd_rows,
      .in = { M(CDR_BF16, 2048, 1024), MLA_IN(CDR_BF16, 2048, 8, 128, 64, 128), M(CDR_F32, 2048, 1024), M(CDR_F32, 2048, 8) },
      .fill = { NORMAL, MLA_FILL, NORMAL, { 'c', 12, 0 } } },
    { .name = "T512 of 256, 4 of 48, mask f32", .op = &cdr_op_attention, .attr = &demo_heads, .n_in = 6, .make = demo_attention_rows, .skip_out = 2,
      .in = { MLA_IN(CDR_F32, 512, 4, 32, 16, 32), M(CDR_I32, 512, 16) }, .fill = { MLA_FILL, { 'f', 0, 0 } } },
    { .name = "T512 of 256, 4 of 48, mask f32", .op = &cdr_op_attention_bwd, .attr = &demo_heads, .n_in = 9, .make = demo_attention_bwd_rows,
      .in = { M(CDR_F32, 512, 128), MLA_IN(CDR_F32, 512, 4, 32, 16, 32), M(CDR_F32, 512, 128), M(CDR_F32, 512, 4), M(CDR_I32, 512, 16) },
      .fill = { NORMAL, MLA_FILL, NORMAL, { 'c', 5, 0 }, { 'f', 0, 0 } } },
    INDEXER("T2048 8 of 128, top 512 bf16", CDR_BF16, index8, 2048, 8, 128, indexer_rows),
    INDEXER("T512 of 256, 2 of 32 f32", CDR_F32, demo_index, 512, 2, 32, demo_indexer_rows),
    INDEXER_LOSS("T2048 8 of 128, 8 of 192 bf16", CDR_BF16, index8_loss, 2048, 8, 128, 8, 128, 64, 128, indexer_loss_rows),
    INDEXER_LOSS("T512 of 256, 2 of 32 f32", CDR_F32, demo_index_loss, 512, 2, 32, 4, 32, 16, 32, demo_indexer_loss_rows),
    ATTN_RES5("n5 T4096 D2048 bf16", CDR_BF16, 4096, 2048),
    ATTN_RES5("n5 T4096 D2048 f32", CDR_F32, 4096, 2048),
    ATTN_RES5("n5 T512 D128 f32", CDR_F32, 512, 128),
    KDA("T4096 4 heads of 128 f32", kda128, CDR_F32, 4096, 4, 128),      /* by which the CPU table compares */
    KDA("T4096 4 heads of 128 bf16", kda128, CDR_BF16, 4096, 4, 128),
    KDA("T4096 2 heads of 64 f32", kda64, CDR_F32, 4096, 2, 64),
    KDA("T1024 4 heads of 128 f32", kda128, CDR_F32, 1024, 4, 128),
    KDA("T1024 4 heads of 128 bf16", kda128, CDR_BF16, 1024, 4, 128),
    EXPERTS("T4096 top-4 of 32 experts 64x64 f32", CDR_F32, 4096, 32, 64, 64),
    EXPERTS("T4096 top-4 of 16 experts 512x512 f32", CDR_F32, 4096, 16, 512, 512),
    { .name = "T8192 P2048 W4 bf16", .op = &cdr_op_short_conv, .n_in = 4, .make = conv_rows, .skip_out = 2,
      .in = { M(CDR_BF16, 8192, 2048), { .dtype = CDR_F32, .n_dim = 3, .n = { 2048, 1, 4 } }, V(CDR_I32, 8192), V(CDR_I32, 8192) },
      .fill = { NORMAL, { 'u', -0.5, 0.5 }, { 'f', 0, 0 }, { 'f', 0, 0 } } },
    { .name = "T8192 P2048 W4 bf16", .op = &cdr_op_short_conv_bwd, .n_in = 5, .make = conv_bwd_rows,
      .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048), { .dtype = CDR_F32, .n_dim = 3, .n = { 2048, 1, 4 } }, V(CDR_I32, 8192), V(CDR_I32, 8192) },
      .fill = { NORMAL, NORMAL, { 'u', -0.5, 0.5 }, { 'f', 0, 0 }, { 'f', 0, 0 } } },
    { .name = "T8192 D2048 bf16", .op = &cdr_op_rmsnorm, .attr = &eps5, .n_in = 2, .in = { M(CDR_BF16, 8192, 2048), V(CDR_BF16, 2048) }, .fill = { NORMAL, NORMAL } },
    { .name = "T8192 D2048 f32", .op = &cdr_op_rmsnorm, .attr = &eps5, .n_in = 2, .in = { M(CDR_F32, 8192, 2048), V(CDR_F32, 2048) }, .fill = { NORMAL, NORMAL } },
    { .name = "T8192 D2048 bf16", .op = &cdr_op_rmsnorm_bwd, .attr = &eps5, .n_in = 4,
      .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048), V(CDR_BF16, 2048), V(CDR_F32, 8192) }, .fill = { NORMAL, NORMAL, NORMAL, { 'c', 1, 0 } } },
    { .name = "T8192 16 heads of 128 bf16", .op = &cdr_op_rope, .attr = &rope64, .n_in = 3, .make = rope_rows,
      .in = { M(CDR_BF16, 8192, 2048), V(CDR_I32, 8192), V(CDR_I32, 8192) }, .fill = { NORMAL, { 'f', 0, 0 }, { 'f', 0, 0 } } },
    { .name = "T8192 F2048 bf16", .op = &cdr_op_swiglu, .n_in = 2, .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048) }, .fill = { NORMAL, NORMAL } },
    { .name = "T8192 F2048 f32", .op = &cdr_op_swiglu, .n_in = 2, .in = { M(CDR_F32, 8192, 2048), M(CDR_F32, 8192, 2048) }, .fill = { NORMAL, NORMAL } },
    { .name = "T8192 F2048 bf16", .op = &cdr_op_swiglu_bwd, .n_in = 3,
      .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048) }, .fill = { NORMAL, NORMAL, NORMAL } },
    { .name = "T8192 F2048 bf16", .op = &cdr_op_situ, .attr = &situ4, .n_in = 2, .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048) }, .fill = { NORMAL, NORMAL } },
    { .name = "T8192 F2048 bf16", .op = &cdr_op_situ_bwd, .attr = &situ4, .n_in = 3,
      .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048) }, .fill = { NORMAL, NORMAL, NORMAL } },
    { .name = "T8192 P2048 bf16", .op = &cdr_op_gate, .n_in = 2, .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048) }, .fill = { NORMAL, NORMAL } },
    { .name = "T8192 P2048 bf16", .op = &cdr_op_gate_bwd, .n_in = 3,
      .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048) }, .fill = { NORMAL, NORMAL, NORMAL } },
    { .name = "T8192 D2048 bf16", .op = &cdr_op_layernorm, .attr = &ln5, .n_in = 3,
      .in = { M(CDR_BF16, 8192, 2048), V(CDR_BF16, 2048), V(CDR_BF16, 2048) }, .fill = { NORMAL, NORMAL, NORMAL } },
    { .name = "T8192 D2048 bf16", .op = &cdr_op_layernorm_bwd, .attr = &ln5, .n_in = 3,
      .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048), V(CDR_BF16, 2048) }, .fill = { NORMAL, NORMAL, NORMAL } },
    { .name = "T8192 D2048 bf16", .op = &cdr_op_scale, .attr = &eighth, .n_in = 1, .in = { M(CDR_BF16, 8192, 2048) }, .fill = { NORMAL } },
    { .name = "T4096 16 of 896", .op = &cdr_op_router, .attr = &top16, .n_in = 4, .make = router_rows, .skip_out = 4,
      .in = { M(CDR_F32, 4096, 896), V(CDR_F32, 896), V(CDR_I32, 4096), V(CDR_I32, 4096) }, .fill = { NORMAL, { 'n', 0.1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } } },
    { .name = "T4096 16 of 896", .op = &cdr_op_router_bwd, .attr = &top16, .n_in = 6, .make = router_bwd_rows,
      .in = { M(CDR_F32, 4096, 16), M(CDR_F32, 4096, 896), M(CDR_I32, 4096, 16), M(CDR_F32, 4096, 16), V(CDR_I32, 4096), V(CDR_I32, 4096) },
      .fill = { NORMAL, NORMAL, { 'f', 0, 0 }, { 'u', 0, 0.1 }, { 'f', 0, 0 }, { 'f', 0, 0 } } },
    { .name = "T4096 16 of 896", .op = &cdr_op_dispatch, .attr = &of_896, .n_in = 1, .make = dispatch_rows, .in = { M(CDR_I32, 4096, 16) }, .fill = { { 'f', 0, 0 } } },
    { .name = "T4096 16 of 896", .op = &cdr_op_balance_load, .attr = &load_896, .n_in = 2, .make = dispatch_rows, .in = { M(CDR_I32, 4096, 16), V(CDR_I32, 1) },
      .fill = { { 'f', 0, 0 }, { 'c', 0, 0 } } },
    { .name = "T4096 E896 1000 bins", .op = &cdr_op_balance_hist, .attr = &hist_1000, .n_in = 6, .make = hist_rows,
      .in = { M(CDR_F32, 4096, 896), V(CDR_F32, 4096), V(CDR_F32, 896), V(CDR_I32, 4096), V(CDR_I32, 4096), V(CDR_I32, 1) },
      .fill = { NORMAL, { 'u', 0.7, 0.9 }, { 'n', 0.1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'c', 0, 0 } } },
    { .name = "E896 1000 bins", .op = &cdr_op_balance_quantile, .attr = &quantile_1000, .n_in = 2, .in = { M(CDR_I32, 896, 1000), V(CDR_I32, 896) },
      .fill = { { 'c', 7, 0 }, { 'c', 125, 0 } } },           /* 7,000 tokens: both counters agree */
    { .name = "T8192 D2048 bf16", .op = &cdr_op_add, .n_in = 2, .in = { M(CDR_BF16, 8192, 2048), M(CDR_BF16, 8192, 2048) }, .fill = { NORMAL, NORMAL } },
    { .name = "T8192 D2048 f32 to bf16", .op = &cdr_op_copy, .attr = &to_bf16, .n_in = 1, .in = { M(CDR_F32, 8192, 2048) }, .fill = { NORMAL } },
    { .name = "T16384 W32768 D1024 bf16", .op = &cdr_op_embedding, .n_in = 4, .absent = 12, .in = { V(CDR_I32, 16384), M(CDR_BF16, 32768, 1024) },
      .fill = { { 'i', 0, 32767 }, NORMAL } },
    { .name = "T16384 W32768 D1024 bf16", .op = &cdr_op_embedding_bwd, .n_in = 3, .absent = 4, .skip_out = 2,
      .attr = &(const cdr_embedding_bwd_attr){ .table_rows = 32768, .feat_dtype = CDR_BF16 },
      .in = { M(CDR_BF16, 16384, 1024), V(CDR_I32, 16384), V(CDR_I32, 0) }, .fill = { NORMAL, { 'i', 0, 32767 } } },
    { .name = "T2048 W8192 D512 bf16", .op = &cdr_op_loss, .attr = &chunks, .n_in = 3,
      .in = { M(CDR_BF16, 2048, 512), M(CDR_BF16, 8192, 512), V(CDR_I32, 2048) }, .fill = { NORMAL, { 'n', 0.05, 0 }, { 'i', 0, 8191 } } },
    { .name = "T2048 W8192 D512 bf16", .op = &cdr_op_loss_bwd, .attr = &chunks, .n_in = 5,
      .in = { M(CDR_BF16, 2048, 512), M(CDR_BF16, 8192, 512), V(CDR_I32, 2048), V(CDR_F32, 2048), V(CDR_F32, 1) },
      .fill = { NORMAL, { 'n', 0.05, 0 }, { 'i', 0, 8191 }, { 'c', 9.5, 0 }, { 'c', 1, 0 } } },
    LOSS("T512 W512 D128 f32", CDR_F32, 512, 512, 128),
    LOSS_FROZEN("T1024 W8192 D512 bf16", CDR_BF16, 1024, 8192, 512),
    LOSS_FROZEN("T256 W163840 D2304 bf16", CDR_BF16, 256, 163840, 2304),
    { .name = "8192x2048 f32, bf16 weight", .op = &cdr_op_adamw, .attr = &adam, .n_in = 7,
      .in = { M(CDR_F32, 8192, 2048), V(CDR_F32, 1), V(CDR_F32, 8), M(CDR_F32, 8192, 2048), M(CDR_F32, 8192, 2048), M(CDR_F32, 8192, 2048),
              M(CDR_BF16, 8192, 2048) },
      .fill = { NORMAL, { 'c', 1, 0 }, { 'c', 0.001, 0 }, NORMAL, NORMAL, { 'u', 0, 1 }, NORMAL } },
    { .name = "8192x2048 f32, merging", .op = &cdr_op_grad_push, .attr = &one_level, .n_in = 2, .in = { M(CDR_F32, 8192, 2048), V(CDR_I32, 1) },
      .fill = { NORMAL, { 'c', 1, 0 } } },
    { .name = "8192x2048 f32", .op = &cdr_op_norm_parts, .attr = &whole, .n_in = 1, .in = { M(CDR_F32, 8192, 2048) }, .fill = { NORMAL } },
    { .name = NULL }
};
