/* groups.c: which group of parameters one belongs to, for patterns of recipes: by block type and part, never by name.
 *
 *   kda: q k v g g_a g_b o attention, f_a f_b b kda_gates      mla: q q_a q_b kv_a kv_b g o attention, index.* indexer
 *   glu: dense_mlp      moe: shared.* shared_experts, latent.down latent.up latent, router bias router, expert.* experts
 *   model: embed, head      any block: norms and their biases norms
 * Parts that are in no group: conv.*, A_log, dt_bias, res.*.proj. Source: spec/interface.md, 4.2.
 */
#include "models/model_parts.h"

static const char *const group_name[] = { "attention", "kda_gates", "dense_mlp", "shared_experts", "latent", "router", "experts", "indexer", "embed", "head",
                                          "norms", "all_linear" };

const char *const *cdr_model_groups(int *n)
{
    *n = CDR_COUNT(group_name);
    return group_name;
}

static bool among(const char *words, const char *part)
{
    size_t n = strlen(part);
    for (const char *p = words; *p; p += strcspn(p, " "), p += *p == ' ') if (strcspn(p, " ") == n && strncmp(p, part, n) == 0) return true;
    return false;
}

static bool begins(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

static bool is_norm(const char *part)
{
    return among("norm norm.input norm.post_attention o_norm q_a_norm kv_a_norm latent.norm res.norm res.self_attention.norm res.mlp.norm", part);
}

static const char *group_of(const char *type, const char *part)
{
    if (begins(part, "index.")) return "indexer";
    if (is_norm(part)) return "norms";
    if (strcmp(type, "kda") == 0) return among("q k v g g_a g_b o", part) ? "attention" : among("f_a f_b b", part) ? "kda_gates" : NULL;
    if (strcmp(type, "mla") == 0) return "attention";
    if (strcmp(type, "glu") == 0) return "dense_mlp";
    if (strcmp(type, "moe") == 0)
        return begins(part, "shared.") ? "shared_experts" : begins(part, "latent.") ? "latent" : begins(part, "expert.") ? "experts" : "router";
    return among("embed head", part) ? part : NULL;
}

/* The block that a part stands in. */
static const cdr__block *block_of(const cdr_model *m, const cdr__need *need)
{
    if (need >= m->self.need && need < m->self.need + CDR__MAX_NEEDS) return &m->self;
    if (need >= m->layer_block.need && need < m->layer_block.need + CDR__MAX_NEEDS) return &m->layer_block;
    for (int i = 0; i < m->n_blocks; i++)
        if (need >= m->block[i].need && need < m->block[i].need + CDR__MAX_NEEDS) return &m->block[i];
    return NULL;
}

cdr_model_part cdr_model_param_part(const cdr_model *m, int64_t i_param)
{
    CDR_CHECK(i_param >= 0 && i_param < m->n_tensors);
    const cdr__need *need = m->tensor[i_param].need;
    const cdr__block *b = block_of(m, need);
    CDR_CHECK(b != NULL);
    cdr_model_part p = { .group = group_of(b->type->type, need->part), .layer = m->tensor[i_param].layer, .top_k = need->top_k, .n_dim = need->n_dim,
        .part = need->part };
    memcpy(p.n, need->n, sizeof p.n);
    return p;
}

int cdr_model_stack(const cdr_model *m) { return m->n_all; }

bool cdr_model_in_group(const cdr_model *m, int64_t i_param, const char *group)
{
    CDR_CHECK(i_param >= 0 && i_param < m->n_tensors);
    const cdr_model_part p = cdr_model_param_part(m, i_param);
    const char *own = p.group;
    if (strcmp(group, "all_linear") == 0) return own && p.n_dim == 2 && !among("experts router head embed norms", own);
    return own && strcmp(own, group) == 0;
}

int64_t cdr_model_params(const cdr_model *m) { return m->n_tensors; }

const char *cdr_model_param(const cdr_model *m, int64_t i_param)
{
    CDR_CHECK(i_param >= 0 && i_param < m->n_tensors);
    return m->tensor[i_param].name;
}

int64_t cdr_model_param_stored(const cdr_model *m, int64_t i_param)
{
    CDR_CHECK(i_param >= 0 && i_param < m->n_tensors);
    return m->tensor[i_param].stored;
}
