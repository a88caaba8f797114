/* freeze.c: what train.trainable, train.freeze and train.indexer hold still, and how much is left to train. */
#include "train/patterns.h"

cdr_status cdr__session_freeze(const cdr_session *s, cdr_compile_opts *o, cdr_err *err)
{
    const cdr_recipe *r = &s->r;
    int64_t n = cdr_model_params(s->model), kept = 0, indexers = 0;
    bool *train = cdr_pool_alloc(s->pool, (size_t)n), *still = cdr_pool_alloc(s->pool, (size_t)n);
    bool all = r->train.trainable.n == 1 && strcmp(r->train.trainable.s[0], "all") == 0;
    for (int64_t i = 0; i < n; i++) train[i] = all;
    if (!all) CDR_TRY(cdr__patterns_mark(s, &r->train.trainable, "train.trainable", train, err));
    CDR_TRY(cdr__patterns_mark(s, &r->train.freeze, "train.freeze", still, err));
    for (int64_t i = 0; i < n; i++) {
        if (r->train.indexer == CDR_TRAIN_INDEXER_FROZEN) still[i] = still[i] || cdr_model_in_group(s->model, i, "indexer");
        kept += train[i] && !still[i];
        indexers += train[i] && !still[i] && cdr_model_in_group(s->model, i, "indexer");
    }
    if (kept == 0) CDR_FAIL_ID(err, CDR_EUSER, "config.nothing-trains", "train.freeze: nothing is left to train of %lld parameters. Freeze less", (long long)n);
    const char **name = cdr_pool_alloc(s->pool, sizeof *name * (size_t)(n + 1));
    o->n_freeze = 0;
    o->indexer_train = indexers > 0;                  /* their loss is for nothing where none of them trains */
    for (int64_t i = 0; i < n; i++) if (!train[i] || still[i]) name[o->n_freeze++] = cdr_model_param(s->model, i);
    o->freeze = name;
    return CDR_OK;
}

/* Parameters of the bundle are the model's, in its order, then those of adapters. */
int64_t cdr__trained_params(const cdr_session *s)
{
    int64_t n = s->info->n_params, own = cdr_model_params(s->model);
    for (int32_t i = 0; i < s->bundle.n_params; i++) {
        const cdr_param *q = &s->bundle.params[i];
        if (i >= own) n += cdr_type_elems(&q->global);
        else if (q->train == CDR_FROZEN) n -= cdr_model_param_stored(s->model, i);
    }
    return n;
}

char *cdr__summary(const cdr_session *s)
{
    static const char all[] = ", all trained";
    char *text = cdr_model_summary(s->model, s->pool), n[32];
    size_t len = strlen(text), k = sizeof all - 1;
    int64_t trained = cdr__trained_params(s);
    if (trained == s->info->n_params || len < k || strcmp(text + len - k, all) != 0) return text;
    cdr_format_count(n, trained);
    return cdr_pool_printf(s->pool, "%.*s, %s trained", (int)(len - k), text, n);
}
