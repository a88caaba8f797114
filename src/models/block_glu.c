/* block_glu: the gated feed-forward part.
 *
 *   y_TD = (silu(x W_gate^T) * (x W_up^T)) W_down^T          W_gate, W_up [width, hidden], W_down [hidden, width]
 * Source: Shazeer 2020 (SwiGLU). Not here yet: the situ activation; a description that asks for it is refused.
 */
#include "models/models.h"
#include "ops/linear/linear.h"
#include "ops/swiglu/swiglu.h"

static cdr_status glu_open(const cdr__desc *d, const cdr_yaml *node, cdr__block *b, cdr_err *err)
{
    const cdr_yaml *act = cdr_yaml_get(node, "activation");
    const char *type = !act ? "silu" : act->kind == CDR_YAML_SCALAR ? act->text : cdr__attr_word(act, "type");
    int64_t width;
    if (type && strcmp(type, "situ") == 0) return cdr__block_refuse(d, b, act, "activation situ is", err);
    if (!type || strcmp(type, "silu") != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-value", "%s: activation of block %s is silu, or {type: situ, ...}", cdr__desc_at(d, act), b->name);
    CDR_TRY(cdr__attr_int(d, b, node, "width", NULL, &width, err));
    if (width < 1 || width > 1 << 24) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-size", "%s: block %s: width is %lld", cdr__desc_at(d, node), b->name, (long long)width);
    cdr__block_need(b, "gate", width, b->hidden, CDR__INIT_LINEAR);
    cdr__block_need(b, "up", width, b->hidden, CDR__INIT_LINEAR);
    cdr__block_need(b, "down", b->hidden, width, CDR__INIT_OUT);
    return CDR_OK;
}

static cdr_val glu_forward(cdr_graph *g, const cdr__block *b, const char *const *name, cdr_io *io, cdr_val x_TD)
{
    (void)io;
    cdr_val gate_TF = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "gate"));
    cdr_val up_TF = cdr_linear(g, x_TD, cdr__block_param(g, b, name, "up"));
    cdr_val act_TF = cdr_swiglu(g, gate_TF, up_TF);
    return cdr_linear(g, act_TF, cdr__block_param(g, b, name, "down"));
}

const cdr__block_type cdr__block_glu = {
    .type = "glu", .label = "dense", .mixer = false, .attrs = "type width activation", .parts = "gate up down", .open = glu_open, .forward = glu_forward,
};
