/* forward.c: a model as the compiler's builder: its parameters with their initialisation, and the forward graph.
 *
 *   x = embed[token];   x += mixer(norm_in(x));   x += ffn(norm_post(x))   per layer;   h = norm(x)
 *   TRAIN, EVAL: loss over h and the head, chunked.    GENERATE: logits = h head^T in F32.
 * Initialisation (from scratch): matrices normal(0, 1/sqrt(fan_in)), those that write to the residual stream (o, down)
 * divided by sqrt(2 n_layers), so that its variance does not grow with depth; embedding normal(0, 1); gains one. Draws are
 * keyed by the tensor's name and the global element index. Source: spec/model.md, 3.0, 3.1 (pre-norm form).
 * Tried: normal(0, 0.02) everywhere, as large models are initialised: 2.505 against 2.304 bits a byte on the demo's text
 * (1.3 M parameters, 1.1 M tokens, learning rate 1.5e-3); doc/lab.md has the table.
 */
#include "models/model_parts.h"
#include "ops/add/add.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/rmsnorm/rmsnorm.h"
#include <math.h>

static cdr_param parameter(const cdr_model *m, const cdr__tensor *t)
{
    const cdr__need *n = t->need;
    cdr_param p = { .name = t->name, .unit = t->unit, .train = CDR_FULL, .rule = CDR_RULE_ADAMW, .block_rows = n->block_rows, .lr_scale = 1.0f,
                    .rng = cdr_hash64(t->name, strlen(t->name), 0) };
    p.global = n->n_dim == 2 ? cdr_type_2d(t->dtype, n->n[0], n->n[1]) : cdr_type_1d(t->dtype, n->n[0]);
    p.decay = n->n_dim > 1;
    p.init = n->init == CDR__INIT_NORM ? CDR_INIT_ONES : CDR_INIT_NORMAL;
    p.init_std = p.global.n_dim == 2 ? (float)(1.0 / sqrt((double)p.global.n[1])) : 1.0f;
    if (n->init == CDR__INIT_OUT) p.init_std /= (float)sqrt(2.0 * m->n_all);
    if (n->init == CDR__INIT_EMBED) p.init_std = 1.0f;
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

static cdr_val sublayer(cdr_graph *g, const cdr_model *m, const cdr__layer *l, bool mixer, cdr_io *io, cdr_val x_TD)
{
    const cdr__block *b = &m->block[mixer ? l->mixer : l->ffn];
    cdr_graph_enter(g, l->index, "layers.%d", l->index);
    cdr_val gain = cdr__block_param(g, &m->layer_block, l->own_name, mixer ? "norm.input" : "norm.post_attention");
    cdr_val h_TD = cdr_rmsnorm(g, x_TD, gain, (float)m->eps);
    cdr_graph_enter(g, l->index, "layers.%d.%s", l->index, b->type->type);
    cdr_val y_TD = b->type->forward(g, b, mixer ? l->mixer_name : l->ffn_name, io, h_TD);
    return cdr_add(g, x_TD, y_TD);
}

static cdr_status forward(const void *model, cdr_graph *g, cdr_io *io, cdr_err *err)
{
    const cdr_model *m = model;
    (void)err;
    cdr_graph_enter(g, -1, "embed");
    cdr_val x_TD = cdr_embedding(g, io->tokens_T, cdr__block_param(g, &m->self, m->self_name, "embed"), CDR_NONE, CDR_NONE);
    for (int i = 0; i < m->info.n_layers; i++) {
        x_TD = sublayer(g, m, &m->layer[i], true, io, x_TD);
        x_TD = sublayer(g, m, &m->layer[i], false, io, x_TD);
    }
    cdr_graph_enter(g, -1, "head");
    cdr_val h_TD = cdr_rmsnorm(g, x_TD, cdr__block_param(g, &m->self, m->self_name, "norm"), (float)m->eps);
    cdr_val head_WD = cdr__block_param(g, &m->self, m->self_name, "head");
    if (io->mode == CDR_MODE_GENERATE) io->logits_TW = cdr_linear_f32(g, h_TD, head_WD);
    else io->loss_1 = cdr_loss(g, h_TD, head_WD, io->targets_T, io->loss_chunk_tokens, io->loss_chunk_vocab);
    return g->failed ? g->err->status : CDR_OK;
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
    cdr_text_printf(&t, "), %s parameters (%s active), all trained", all, active);
    char *s = cdr_pool_strndup(pool, t.s, t.n);
    cdr_text_free(&t);
    return s;
}

char *cdr_model_print(const cdr_model *m, cdr_pool *pool)
{
    cdr_text t = { 0 };
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const cdr__need *n = m->tensor[i].need;
        char shape[64];
        if (n->n_dim == 2) snprintf(shape, sizeof shape, "[%lld, %lld]", (long long)n->n[0], (long long)n->n[1]);
        else snprintf(shape, sizeof shape, "[%lld]", (long long)n->n[0]);
        cdr_text_printf(&t, "%-56s %-20s unit %d\n", m->tensor[i].name, shape, m->tensor[i].unit);
    }
    char *s = cdr_pool_strndup(pool, t.s ? t.s : "", t.n);
    cdr_text_free(&t);
    return s;
}
