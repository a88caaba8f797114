/* block_glu: the gated feed-forward part, and the gated activation that experts share with it.
 *
 *   y_TD = (act(x W_gate^T, x W_up^T)) W_down^T              W_gate, W_up [width, hidden], W_down [hidden, width]     (1)
 *   act(a, b) = silu(a) b,  or SiTU: b1 tanh(a / b1) sigmoid(a) b2 tanh(b / b2)                                     (2)
 * Source: Shazeer 2020 (SwiGLU); spec/model.md, 3.6 (SiTU).
 */
#include "models/models.h"
#include "ops/linear/linear.h"
#include "ops/situ/situ.h"
#include "ops/swiglu/swiglu.h"

typedef struct { cdr__activation act; } glu;

cdr_status cdr__activation_read(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node, cdr__activation *a, cdr_err *err)
{
    const cdr_yaml *act = cdr_yaml_get(node, "activation");
    const char *type = !act ? "silu" : act->kind == CDR_YAML_SCALAR ? act->text : cdr__attr_word(act, "type");
    double beta = 4, linear_beta = 25;
    *a = (cdr__activation){ .situ = type && strcmp(type, "situ") == 0 };
    if (!type || (strcmp(type, "silu") != 0 && !a->situ))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: activation of block %s is silu, or {type: situ, beta, linear_beta}", cdr__desc_at(d, act), b->name);
    if (act && act->kind == CDR_YAML_MAP) {
        CDR_TRY(cdr__attr_known(d, act, "activation", a->situ ? "type beta linear_beta" : "type", err));
        if (a->situ) CDR_TRY(cdr__attr_real(d, b, act, "beta", &beta, &beta, err));
        if (a->situ) CDR_TRY(cdr__attr_real(d, b, act, "linear_beta", &linear_beta, &linear_beta, err));
    }
    if (!(beta > 0 && linear_beta > 0)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: beta and linear_beta of situ are above 0", cdr__desc_at(d, act));
    a->beta = (float)beta;
    a->linear_beta = (float)linear_beta;
    return CDR_OK;
}

cdr_val cdr__glu(cdr_graph *g, const cdr__activation *a, cdr_val x_TD, cdr_val gate_FD, cdr_val up_FD, cdr_val down_DF)
{
    cdr_val gate_TF = cdr_linear(g, x_TD, gate_FD);
    cdr_val up_TF = cdr_linear(g, x_TD, up_FD);
    cdr_val act_TF = a->situ ? cdr_situ(g, gate_TF, up_TF, a->beta, a->linear_beta) : cdr_swiglu(g, gate_TF, up_TF);       /* (2) */
    return cdr_linear(g, act_TF, down_DF);                                                                                  /* (1) */
}

static cdr_status glu_open(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, cdr_err *err)
{
    glu *a = cdr_pool_alloc(d->pool, sizeof *a);
    int64_t width;
    b->attr = a;
    CDR_TRY(cdr__activation_read(d, b, node, &a->act, err));
    CDR_TRY(cdr__attr_int(d, b, node, "width", NULL, &width, err));
    if (width < 1 || width > 1 << 24) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: block %s: width is %lld", cdr__desc_at(d, node), b->name, (long long)width);
    cdr__block_need(b, "gate", width, b->hidden, CDR__INIT_LINEAR);
    cdr__block_need(b, "up", width, b->hidden, CDR__INIT_LINEAR);
    cdr__block_need(b, "down", b->hidden, width, CDR__INIT_OUT);
    return CDR_OK;
}

static cdr_val glu_forward(cdr_graph *g, const cdr__block *b, const char *const *name, cdr_io *io, cdr_val x_TD)
{
    const glu *a = b->attr;
    (void)io;
    return cdr__glu(g, &a->act, x_TD, cdr__block_param(g, b, name, "gate"), cdr__block_param(g, b, name, "up"), cdr__block_param(g, b, name, "down"));
}

const cdr__block_type cdr__block_glu = {
    .type = "glu", .label = "dense", .mixer = false, .attrs = "type width activation", .parts = "gate up down", .open = glu_open, .forward = glu_forward,
};
