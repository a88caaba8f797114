/* forward.c: a model as the compiler's builder: its parameters with their initialisation, and the forward graph.
 *
 *   Pre-norm residuals:  x = embed[token];   x += mixer(norm_in(x));   x += ffn(norm_post(x))   per layer;   h = x      (1)
 *   Block AttnRes (spec/model.md, 3.1): prefix = embed[token], the bank is empty; per layer N
 *     h = prefix if the bank is empty, else mix_self_attention(bank, prefix)
 *     at a boundary (N a multiple of the block): bank gets prefix, and prefix starts again; after the mixing
 *     prefix += mixer(norm_in(h));   h = mix_mlp(bank, prefix);   prefix += ffn(norm_post(h))                           (2)
 *   at the end h = mix_output(bank, prefix).   mix: softmax over rows by one query each, ops/attn_res. The first layer of
 *   a slice of the stack is a boundary whatever its index. Layer 0's first mixer does not exist, its two parameters do.
 *   TRAIN, EVAL: loss over norm(h) and the head, chunked.    GENERATE: logits = norm(h) head^T in F32.
 * Initialisation (from scratch): matrices normal(0, 1/sqrt(fan_in)), those that write to the residual stream (o, down, an
 * expert's down, latent.up) divided by sqrt(2 n_layers), so that its variance does not grow with depth; embedding normal(0, 1);
 * gains one; biases and the mixers' queries zero; convolutions uniform within 1/sqrt(taps); a KDA layer's A_log and dt_bias as
 * spec/model.md, 3.2. Draws are keyed by the tensor's name and the global element index. Source: spec/model.md, 3.0, 3.1.
 * Tried: normal(0, 0.02) everywhere, as large models are initialised: 2.505 against 2.304 bits a byte on the demo's text
 * (1.3 M parameters, 1.1 M tokens, learning rate 1.5e-3); doc/lab.md has the table.
 */
#include "models/model_parts.h"
#include "ops/add/add.h"
#include "ops/attn_res/attn_res.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/rmsnorm/rmsnorm.h"
#include <math.h>

static void initial(const cdr_model *m, const cdr__need *n, cdr_param *p)
{
    static const uint8_t init[] = { [CDR__INIT_EMBED] = CDR_INIT_NORMAL, [CDR__INIT_LINEAR] = CDR_INIT_NORMAL, [CDR__INIT_OUT] = CDR_INIT_NORMAL,
                                    [CDR__INIT_ONES] = CDR_INIT_ONES, [CDR__INIT_ZEROS] = CDR_INIT_ZEROS, [CDR__INIT_CONV] = CDR_INIT_UNIFORM,
                                    [CDR__INIT_LOG_UNIFORM] = CDR_INIT_LOG_UNIFORM, [CDR__INIT_DT_BIAS] = CDR_INIT_DT_BIAS };
    p->init = init[n->init];
    p->init_std = (float)(1.0 / sqrt((double)n->n[n->n_dim - 1]));
    if (n->init == CDR__INIT_OUT) p->init_std /= (float)sqrt(2.0 * m->n_all);
    if (n->init == CDR__INIT_EMBED || n->n_dim == 1) p->init_std = 1.0f;
}

/* Before the first layer the bank is empty: its first mixer has parameters that nothing reads. */
static bool idle(const cdr_model *m, const cdr__tensor *t)
{
    return t->need->may_idle || (t->layer >= 0 && t->layer == m->layer[0].index && strncmp(t->need->part, "res.self_attention.", 19) == 0);
}

/* A matrix has two axes of more than one element; the others take no weight decay, and no Muon. */
static cdr_param parameter(const cdr_model *m, const cdr__tensor *t)
{
    const cdr__need *n = t->need;
    cdr_param p = { .name = t->name, .unit = t->unit, .train = n->state ? CDR_STATE : CDR_FULL, .block_rows = n->block_rows, .lr_scale = 1.0f,
                    .f32 = n->f32 || t->dtype == CDR_F32, .may_idle = idle(m, t), .place = (uint8_t)t->place, .packed = t->packed,
                    .rng = cdr_hash64(t->name, strlen(t->name), 0) };
    p.global = n->n_dim == 1 ? cdr_type_1d(t->dtype, n->n[0]) : n->n_dim == 2 ? cdr_type_2d(t->dtype, n->n[0], n->n[1])
                                                                             : cdr_type_3d(t->dtype, n->n[0], n->n[1], n->n[2]);
    int axes = 0;
    for (int i = 0; i < n->n_dim; i++) axes += n->n[i] > 1;
    bool matrix = axes >= 2;
    p.decay = matrix && !n->state;
    p.rule = n->state ? CDR_RULE_NONE : matrix && !n->lookup && !n->plain ? CDR_RULE_MUON : CDR_RULE_ADAMW;
    initial(m, n, &p);
    return p;
}

static cdr_status declare(const void *model, cdr_graph *g, cdr_err *err)
{
    const cdr_model *m = model;
    (void)err;
    for (int64_t i = 0; i < m->n_tensors; i++)
        if (cdr_graph_declare(g, parameter(m, &m->tensor[i])) < 0) return g->err->status;
    return CDR_OK;
}

void cdr__extra_loss(cdr_graph *g, cdr_io *io, cdr_val loss_1)
{
    if (g->failed) return;
    *CDR_PUSH(g->pool, io->extra, io->n_extra, io->cap_extra) = loss_1;
}

static cdr_val sublayer(cdr_graph *g, const cdr_model *m, const cdr__layer *l, bool mixer, cdr_io *io, cdr_val h_TD)
{
    const cdr__block *b = &m->block[mixer ? l->mixer : l->ffn];
    cdr_graph_enter(g, l->index, "layers.%d", l->index);
    cdr_val gain = cdr__block_param(g, &m->layer_block, l->own_name, mixer ? "norm.input" : "norm.post_attention");
    cdr_val x_TD = cdr_rmsnorm(g, h_TD, gain, (float)m->eps);
    cdr_graph_enter(g, l->index, "layers.%d.%s", l->index, b->type->type);
    return b->type->forward(g, b, mixer ? l->mixer_name : l->ffn_name, io, x_TD);
}

/* A name for a value that a check reads; nothing else sees it. */
static void tap(cdr_graph *g, const cdr_model *m, const cdr_io *io, cdr_val v, const char *name)
{
    if (m->probe != CDR_PROBE_OFF && io->mode == CDR_MODE_EVAL && !g->failed) cdr_graph_view(g, v, 0, *cdr_graph_type(g, v), name);
}

static void tap_layer(cdr_graph *g, const cdr_model *m, const cdr_io *io, int layer, cdr_val x_TD)
{
    cdr_graph_enter(g, layer, "layers.%d", layer);
    tap(g, m, io, x_TD, "hidden");
}

static cdr_val prenorm_stack(cdr_graph *g, const cdr_model *m, cdr_io *io, cdr_val x_TD)                                /* (1) */
{
    for (int i = 0; i < m->info.n_layers; i++) {
        x_TD = cdr_add(g, x_TD, sublayer(g, m, &m->layer[i], true, io, x_TD));
        x_TD = cdr_add(g, x_TD, sublayer(g, m, &m->layer[i], false, io, x_TD));
        tap_layer(g, m, io, m->layer[i].index, x_TD);
    }
    return x_TD;
}

typedef struct { cdr_val row[CDR_ATTN_RES_MAX]; int n; } bank;        /* completed sources; one place is the running sum's */

static cdr_val mix(cdr_graph *g, const cdr_model *m, bank *k, cdr_val prefix_TD, cdr_val proj_1D, cdr_val norm_D)
{
    k->row[k->n] = prefix_TD;
    return cdr_attn_res(g, k->row, k->n + 1, proj_1D, norm_D, (float)m->eps);
}

static cdr_val mix_layer(cdr_graph *g, const cdr_model *m, const cdr__layer *l, bool mixer, bank *k, cdr_val prefix_TD)
{
    const cdr__block *b = &m->layer_block;
    cdr_graph_enter(g, l->index, "layers.%d.%s_res", l->index, mixer ? "self_attention" : "mlp");
    return mix(g, m, k, prefix_TD, cdr__block_param(g, b, l->own_name, mixer ? "res.self_attention.proj" : "res.mlp.proj"),
               cdr__block_param(g, b, l->own_name, mixer ? "res.self_attention.norm" : "res.mlp.norm"));
}

static cdr_val attn_res_stack(cdr_graph *g, const cdr_model *m, cdr_io *io, cdr_val prefix_TD)                          /* (2) */
{
    bank k = { .n = 0 };
    for (int i = 0; i < m->info.n_layers; i++) {
        const cdr__layer *l = &m->layer[i];
        cdr_val h_TD = k.n == 0 ? prefix_TD : mix_layer(g, m, l, true, &k, prefix_TD);
        bool boundary = i == 0 || l->index % m->attn_block == 0;
        if (boundary) {
            CDR_CHECK(k.n + 1 < CDR_ATTN_RES_MAX);
            k.row[k.n++] = prefix_TD;
        }
        cdr_val a_TD = sublayer(g, m, l, true, io, h_TD);
        prefix_TD = boundary ? a_TD : cdr_add(g, prefix_TD, a_TD);
        h_TD = mix_layer(g, m, l, false, &k, prefix_TD);
        prefix_TD = cdr_add(g, prefix_TD, sublayer(g, m, l, false, io, h_TD));
        tap_layer(g, m, io, l->index, prefix_TD);
    }
    cdr_graph_enter(g, -1, "output_res");
    return mix(g, m, &k, prefix_TD, cdr__block_param(g, &m->self, m->self_name, "res.proj"), cdr__block_param(g, &m->self, m->self_name, "res.norm"));
}

/* A head that is not trained needs no gradient of its own: dh is made in the forward, two products for each token instead of three. */
static cdr_val loss(cdr_graph *g, const cdr_io *io, cdr_val h_TD, cdr_val head_WD)
{
    if (g->failed) return CDR_NONE;
    int32_t param = cdr_graph_at(g, head_WD)->param;
    bool frozen = io->mode == CDR_MODE_TRAIN && param >= 0 && g->b->params[param].train == CDR_FROZEN;
    const cdr_val in[5] = { h_TD, head_WD, io->targets_T, io->scale_1, io->weights_T };
    if (frozen) return cdr_loss_frozen(g, in, io->loss_chunk_tokens, io->loss_chunk_vocab);
    return cdr_loss(g, h_TD, head_WD, io->targets_T, io->weights_T, io->loss_chunk_tokens, io->loss_chunk_vocab);
}

static cdr_status forward(const void *model, cdr_graph *g, cdr_io *io, cdr_err *err)
{
    const cdr_model *m = model;
    const uint8_t scope = g->scope;
    const bool probe = m->probe != CDR_PROBE_OFF && io->mode == CDR_MODE_EVAL;
    (void)err;
    if (probe) g->scope = CDR_STEP;                        /* nothing shares its bytes */
    cdr_graph_enter(g, -1, "embed");
    cdr_val x_TD = cdr_embedding(g, io->tokens_T, cdr__block_param(g, &m->self, m->self_name, "embed"), CDR_NONE, CDR_NONE);
    tap(g, m, io, x_TD, "hidden");
    x_TD = m->attn_block > 0 ? attn_res_stack(g, m, io, x_TD) : prenorm_stack(g, m, io, x_TD);
    cdr_graph_enter(g, -1, "head");
    cdr_val h_TD = cdr_rmsnorm(g, x_TD, cdr__block_param(g, &m->self, m->self_name, "norm"), (float)m->eps);
    cdr_val head_WD = cdr__block_param(g, &m->self, m->self_name, "head");
    tap(g, m, io, h_TD, "hidden");
    if (probe) tap(g, m, io, cdr_linear_f32(g, h_TD, head_WD), "logits");
    if (io->mode == CDR_MODE_GENERATE) io->logits_TW = cdr_linear_f32(g, h_TD, head_WD);
    else io->loss_1 = loss(g, io, h_TD, head_WD);
    g->scope = scope;
    return g->failed ? g->err->status : CDR_OK;
}

void cdr_model_set_probe(cdr_model *m, cdr_probe probe)
{
    m->probe = probe;
    for (int i = 0; i < m->n_blocks; i++) m->block[i].probe = probe;
}

cdr_builder cdr_model_builder(const cdr_model *m) { return (cdr_builder){ .model = m, .declare = declare, .forward = forward }; }

const cdr_model_info *cdr_model_get_info(const cdr_model *m) { return &m->info; }

double cdr_model_pair_flop(const cdr_model *m)
{
    double sum = 0;
    for (int i = 0; i < m->info.n_layers; i++) {
        const cdr__block *b = &m->block[m->layer[i].mixer];
        if (b->type->pair_flop) sum += b->type->pair_flop(b);
    }
    return sum;
}

double cdr_model_token_flop(const cdr_model *m)
{
    double sum = 0;
    for (int i = 0; i < m->info.n_layers; i++) {
        const cdr__block *b = &m->block[m->layer[i].mixer];
        if (b->type->token_flop) sum += b->type->token_flop(b);
    }
    return sum;
}

static void print_amount(char out[32], int64_t n)
{
    if (n >= 1000000000) snprintf(out, 32, "%.2f B", (double)n / 1e9);
    else if (n >= 1000000) snprintf(out, 32, "%.2f M", (double)n / 1e6);
    else cdr_format_count(out, n);
}

char *cdr_model_summary(const cdr_model *m, cdr_pool *pool)
{
    const cdr_model_info *f = &m->info;
    char all[32], active[32];
    cdr_text t = { 0 };
    cdr_text_printf(&t, "%s: %d layers (", f->name, f->n_layers);
    for (int i = 0; i < f->n_kinds; i++) cdr_text_printf(&t, "%s%d %s", i ? ", " : "", f->kind[i].n, f->kind[i].kind);
    print_amount(all, f->n_params);
    print_amount(active, f->n_active);
    cdr_text_printf(&t, ")");
    if (f->moe.n > 0) cdr_text_printf(&t, ", %d experts top-%d", f->moe.experts, f->moe.top_k);
    cdr_text_printf(&t, ", %s parameters (%s active), all trained", all, active);
    char *s = cdr_pool_strndup(pool, t.s, t.n);
    cdr_text_free(&t);
    return s;
}

char *cdr_model_print(const cdr_model *m, cdr_pool *pool)
{
    cdr_text t = { 0 };
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const cdr__need *n = m->tensor[i].need;
        char shape[96];
        int at = 0;
        for (int k = 0; k < n->n_dim; k++) at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", k ? ", " : "[", (long long)n->n[k]);
        snprintf(shape + at, sizeof shape - (size_t)at, "]");
        cdr_text_printf(&t, "%-72s %-24s unit %d\n", m->tensor[i].name, shape, m->tensor[i].unit);
    }
    char *s = cdr_pool_strndup(pool, t.s ? t.s : "", t.n);
    cdr_text_free(&t);
    return s;
}
