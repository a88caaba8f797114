/* adapt: adapters (adapters.c), then the precision of training. Trained parameters get an F32 master (the stored value itself where that is F32) and
 * the states of their rule (AdamW: m and v; Muon: m); what is checkpointed is marked. Weights that kernels read are in the compute dtype. */
#include "compile/pass.h"

static cdr_val state(cdr_pass *p, cdr_graph *g, int32_t i, const char *suffix, cdr_class cls)
{
    cdr_param *q = &p->b->params[i];
    cdr_type t = p->b->shared[q->shard].t;
    t.dtype = CDR_F32;
    cdr_val v = cdr_graph_value(g, t, CDR_RUN, cls, cdr_pool_printf(p->pool, "%s.%s", q->name, suffix));
    if (v == CDR_NONE) return v;
    p->b->shared[v].param = i;
    p->b->shared[v].flags |= CDR_F_CKPT;
    return v;
}

/* Frozen parameters have no state and are not checkpointed: they are read from their source, or drawn again from the seed. */
cdr_status cdr__adapt(cdr_pass *p)
{
    cdr_graph *g = p->g[CDR_PROG_STEP];
    CDR_TRY(cdr__adapters(p));
    for (int32_t i = 0; i < p->b->n_params && !p->o->infer_only; i++) {
        cdr_param *q = &p->b->params[i];
        if (q->train == CDR_FROZEN) continue;
        p->b->shared[q->shard].flags |= CDR_F_CKPT;
        if (q->train == CDR_STATE) continue;
        if (q->rule == CDR_RULE_MUON && !p->o->muon) q->rule = CDR_RULE_ADAMW;
        bool own = p->b->shared[q->shard].t.dtype != CDR_F32, muon = q->rule == CDR_RULE_MUON;
        cdr_val master = own ? state(p, g, i, "master", CDR_C_OPTIM) : q->shard;
        p->b->params[i].master = master;
        p->b->params[i].m = state(p, g, i, "m", CDR_C_OPTIM);
        if (!muon) p->b->params[i].v = state(p, g, i, "v", CDR_C_OPTIM);
    }
    return g->failed ? p->err->status : CDR_OK;
}
