/* adapter.c: adapters of files in a session: generate and eval with --adapter, lora.adapter, lora.serve_with, final/.
 *
 * With --adapter the model is compiled with the set's ranks and scales, every parameter frozen; A and B are put as RUN values. A factor that a
 * file has once for all experts is repeated for each of them: the same products, in memory of E times its size.
 *
 * The base is read by rank 0 alone to be named (cdr__session_base_hash). An adapter is read whole by every rank, though each takes its rows only: that
 * every key binds, that all experts are there and which factors they share is known from all of it, and its files are small beside the base's; as
 * F32 they are 4 bytes for each of its parameters on each rank, until the session ends.
 */
#include "train/adapter.h"
#include <stdlib.h>

/* ---- models by path ------------------------------------------------------------------------------------------------------------------ */

static bool holds(const char *dir, const char *name)
{
    char path[1200];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && cdr_exists(path);
}

static cdr_status model_of_run(const char *path, cdr_pool *pool, cdr_model **m, cdr_err *err)
{
    cdr_ckpt *ck = NULL;
    cdr_recipe *r = cdr_pool_alloc(pool, sizeof *r);
    CDR_TRY(cdr_ckpt_open(path, &ck, err));
    cdr_status st = cdr__recipe_of_ckpt(ck, NULL, pool, r, err);
    cdr_ckpt_close(ck);
    CDR_TRY(st);
    cdr_model_spec spec = cdr__model_spec(r);
    return cdr_model_load(&spec, pool, m, err);
}

cdr_status cdr__model_at(const char *path, cdr_pool *pool, cdr_model **m, cdr_err *err)
{
    if (!cdr_exists(path) && !cdr_builtin("models", path))
        CDR_FAIL_ID(err, CDR_EDATA, "model.missing", "%s: there is no such file or directory, and no built-in model of that name. Name the base: a directory of "
                    "weights, a run, a description or a name of cadre config list", path);
    bool weights = cdr_is_dir(path) && (holds(path, "config.json") || holds(path, "model.yaml"));
    if (cdr_is_dir(path) && !weights) return model_of_run(path, pool, m, err);
    return cdr_model_load(&(cdr_model_spec){ .path = path }, pool, m, err);
}

/* base_model_name_or_path of a configuration, without its tensors. */
static cdr_status named_base(const char *path, cdr_pool *pool, const char **base, cdr_err *err)
{
    char *text = NULL;
    size_t bytes;
    const cdr_json *root;
    const char *file = cdr_pool_printf(pool, "%s/adapter_config.json", path);
    CDR_TRY(cdr_file_read(file, 64 << 20, &text, &bytes, err));
    cdr_status st = cdr_json_parse(pool, text, bytes, file, &root, err);
    cdr_free(text);
    CDR_TRY(st);
    *base = cdr_json_str(cdr_json_get(root, "base_model_name_or_path"), NULL);
    return CDR_OK;
}

cdr_status cdr__adapter_open(const char *path, const char *base, cdr_pool *pool, cdr_model **m, cdr_lora_set *set, cdr_err *err)
{
    if (!cdr_exists(path)) CDR_FAIL_ID(err, CDR_EDATA, "adapter.missing", "%s: there is no such file or directory. Name the directory of an adapter, or a LoRA "
                "run", path);
    bool file = cdr_lora_is_dir(path);
    if (!base && file) {
        CDR_TRY(named_base(path, pool, &base, err));
        if (!base || (!cdr_is_dir(base) && !cdr_builtin("models", base)))
            CDR_FAIL_ID(err, CDR_EDATA, "adapter.no-base", "%s: its base is %s, which is not here. Name it with --base DIR", path, base ? base : "not named");
    }
    CDR_TRY(base ? cdr__model_at(base, pool, m, err) : model_of_run(path, pool, m, err));
    return cdr_lora_read(path, *m, pool, set, err);
}

cdr_status cdr__base_hash(const cdr_model *m, uint64_t *hash, bool *known, cdr_err *err)
{
    *known = cdr_model_dir(m) != NULL;
    if (!*known) return CDR_OK;
    cdr_hf *d = NULL;
    cdr_weights *w = NULL;
    CDR_TRY(cdr_hf_open(cdr_model_dir(m), &d, err));
    cdr_status st = CDR_OK;
    *known = cdr_hf_count(d) > 0;
    if (*known) st = cdr_weights_open(m, d, &w, err);
    char cache[1024];
    bool kept = cdr__cache_path(cache, sizeof cache, "");
    if (w && st == CDR_OK) st = cdr_weights_hash(w, kept ? cache : NULL, hash, err);
    if (w) cdr_weights_close(w);
    cdr_hf_close(d);
    return st;
}

static void say_unknown(const cdr_model *m, const cdr_lora_set *set, const char *at)
{
    if (cdr_model_dir(m)) cdr_log(CDR_LOG_WARNING, "%s: %s does not say which base it was trained on; that it fits in shape is all that is known", at, set->source);
}

static cdr_status same_hash(const cdr_model *m, uint64_t hash, const cdr_lora_set *set, const char *at, cdr_err *err)
{
    if (hash == set->base_hash) return CDR_OK;
    CDR_FAIL_ID(err, CDR_EDATA, "adapter.other-base", "%s: %s was not trained on the weights of %s as its config.json reads them (hash %016llx) but on %s (hash "
                "%016llx), and a difference of weights fits only its own base. Name that base instead", at, set->source, cdr_model_dir(m), (unsigned long long)hash,
                set->base ? set->base : "others", (unsigned long long)set->base_hash);
}

cdr_status cdr__base_agrees(const cdr_model *m, const cdr_lora_set *set, const char *at, cdr_err *err)
{
    uint64_t hash = 0;
    bool known = false;
    if (!set->has_hash) {
        say_unknown(m, set, at);
        return CDR_OK;
    }
    CDR_TRY(cdr__base_hash(m, &hash, &known, err));
    return known ? same_hash(m, hash, set, at, err) : CDR_OK;
}

/* The session's own hash, which rank 0 has read for all. */
static cdr_status session_agrees(const cdr_session *s, const cdr_lora_set *set, const char *at, cdr_err *err)
{
    if (!set->has_hash && s->rank == 0) say_unknown(s->model, set, at);
    return set->has_hash && s->base ? same_hash(s->model, s->base_hash, set, at, err) : CDR_OK;
}

/* ---- beside a model -------------------------------------------------------------------------------------------------------------------- */

cdr_status cdr__adapter_attach(cdr_session *s, const char *path, cdr_err *err)
{
    if (s->r.lora.on)
        CDR_FAIL_ID(err, CDR_EUSER, "adapter.has-own", "--adapter %s: the model is a LoRA run, which has adapters of its own. Name its base instead", path);
    cdr_lora_set *set = cdr_pool_alloc(s->pool, sizeof *set);
    CDR_TRY(cdr_lora_read(path, s->model, s->pool, set, err));
    s->adapter = set;
    return CDR_OK;
}

cdr_status cdr__adapter_base(const cdr_session *s, cdr_err *err)
{
    return s->adapter ? session_agrees(s, s->adapter, "--adapter", err) : CDR_OK;
}

/* Shared-outer, as the engine computes it: A of gate and up, B of down, once for all experts, and nothing else. */
static int32_t form_of(const cdr_session *s, const cdr_lora_pair *p)
{
    bool down = cdr__lora_role(s->model, p->i_param) == CDR__ROLE_DOWN;
    if (p->experts <= 1) return CDR_ADAPTER_EACH;
    if (down) return p->n_b == 1 && p->n_a == p->experts ? CDR_ADAPTER_SHARED_B : CDR_ADAPTER_EACH;
    return p->n_a == 1 && p->n_b == p->experts ? CDR_ADAPTER_SHARED_A : CDR_ADAPTER_EACH;
}

/* All stacks of a layer are of one kind, or each is computed by itself. */
static int32_t form_in_layer(const cdr_session *s, const cdr_lora_set *set, const cdr_lora_pair *p)
{
    int layer = cdr_model_param_part(s->model, p->i_param).layer;
    for (int i = 0; i < set->n; i++) {
        const cdr_lora_pair *q = &set->pair[i];
        if (q->experts > 0 && cdr_model_param_part(s->model, q->i_param).layer == layer && form_of(s, q) == CDR_ADAPTER_EACH) return CDR_ADAPTER_EACH;
    }
    return form_of(s, p);
}

cdr_status cdr__adapter_opts(const cdr_session *s, cdr_compile_opts *o, cdr_err *err)
{
    (void)err;
    int64_t n = cdr_model_params(s->model);
    const char **name = cdr_pool_alloc(s->pool, sizeof *name * (size_t)(n + 1));
    cdr_adapter *a = cdr_pool_alloc(s->pool, sizeof *a * (size_t)(s->adapter->n + 1));
    for (int64_t i = 0; i < n; i++) name[i] = cdr_model_param(s->model, i);
    for (int i = 0; i < s->adapter->n; i++) {
        const cdr_lora_pair *p = &s->adapter->pair[i];
        a[i] = (cdr_adapter){ .param = cdr_model_param(s->model, p->i_param), .rank = p->rank, .scale = p->scale, .form = form_in_layer(s, s->adapter, p) };
    }
    o->freeze = name;
    o->n_freeze = (int)n;
    o->adapters = a;
    o->n_adapters = s->adapter->n;
    o->indexer_train = false;
    return CDR_OK;
}

/* Values of a parameter A or B, whose first rows and number this rank holds, into the value and its master. */
static void put_rows(cdr_session *s, const cdr_param *q, const float *rows)
{
    cdr_kept x[CDR_MAX_KEPT];
    int n = cdr__kept_values(q, x);
    for (int k = 0; k < n; k++) {
        if (k > 0 && strcmp(x[k].cls, "master") != 0) continue;
        const cdr_type *t = &s->bundle.shared[x[k].v].t;
        size_t bytes = cdr_exec_run_bytes(s->exec, x[k].v);
        char *raw = cdr_alloc(bytes + 1);
        cdr_from_f32(t->dtype, rows, raw, cdr_type_elems(t));
        cdr_exec_put_run(s->exec, x[k].v, raw, bytes);
        cdr_free(raw);
    }
}

/* The half of a pair as the engine's parameter has it: [r, K] or [N, r]; of a stack [E, ..], whatever the file shares. */
static void put_half(cdr_session *s, const cdr_param *q, const cdr_lora_pair *p, bool a)
{
    int64_t first, rows, n = a ? p->n_a : p->n_b, each = a ? p->rank * p->K : p->N * p->rank, per_row = cdr_type_elems(&q->global) / q->global.n[0];
    cdr_param_rows(q, &s->mesh, &first, &rows);
    if (rows == 0) return;
    float *x = cdr_alloc(sizeof *x * (size_t)(rows * per_row));
    const float *src = a ? p->a : p->b;
    if (q->global.n_dim == 2) memcpy(x, src + first * per_row, sizeof *x * (size_t)(rows * per_row));
    for (int64_t i = 0; i < rows && q->global.n_dim == 3; i++) memcpy(x + i * each, src + (n == 1 ? 0 : first + i) * each, sizeof *x * (size_t)each);
    put_rows(s, q, x);
    cdr_free(x);
}

/* The parameter that holds a half: of a factor of all experts, experts.w1's, else the matrix's own (compile/adapters.c). */
static int32_t half_param(cdr_session *s, const char *param, char half)
{
    size_t n = strlen(param), k = strlen(".weight");
    char *own = cdr_pool_printf(s->pool, "%.*s.lora_%c.weight", (int)(n > k && strcmp(param + n - k, ".weight") == 0 ? n - k : n), param, half);
    int32_t i = cdr_param_find(&s->bundle, own);
    const char *mark = strstr(own, "{expert}.");
    return i >= 0 || !mark ? i : cdr_param_find(&s->bundle, cdr_pool_printf(s->pool, "%.*s%s", (int)(mark - own), own, mark + 9));
}

static cdr_status put_pair(cdr_session *s, const cdr_lora_pair *p, cdr_err *err)
{
    const char *name = cdr_model_param(s->model, p->i_param);
    for (int k = 0; k < 2; k++) {
        int32_t i = half_param(s, name, k == 0 ? 'A' : 'B');
        if (i < 0) CDR_FAIL_ID(err, CDR_EBUG, "adapter.put", "%s: the program has no adapter there", name);
        put_half(s, &s->bundle.params[i], p, k == 0);
    }
    return CDR_OK;
}

cdr_status cdr__adapter_put(cdr_session *s, cdr_err *err)
{
    for (int i = 0; s->adapter && i < s->adapter->n; i++) CDR_TRY(put_pair(s, &s->adapter->pair[i], err));
    return CDR_OK;
}

/* ---- lora.adapter ------------------------------------------------------------------------------------------------------------------------ */

static const cdr_lora_pair *pair_of(const cdr_lora_set *set, int64_t i_param)
{
    for (int i = 0; i < set->n; i++) if (set->pair[i].i_param == i_param) return &set->pair[i];
    return NULL;
}

static cdr_status check_start(const cdr_session *s, const cdr_lora_set *set, int *fresh, cdr_err *err)
{
    const char *where = cdr__recipe_at(&s->r, cdr_recipe_key("lora.adapter"));
    int found = 0;
    *fresh = 0;
    for (int i = 0; i < s->opts.n_adapters; i++) {
        const cdr_adapter *a = &s->opts.adapters[i];
        int64_t k = 0, n = cdr_model_params(s->model);
        while (k < n && strcmp(cdr_model_param(s->model, k), a->param) != 0) k++;
        const cdr_lora_pair *p = pair_of(set, k);
        bool shared = a->form == CDR_ADAPTER_SHARED_A ? p && p->n_a != 1 : a->form == CDR_ADAPTER_SHARED_B ? p && p->n_b != 1 : false;
        if (shared)
            CDR_FAIL_ID(err, CDR_EUSER, "lora.adapter", "%s: lora.adapter %s has a factor for each expert of %s, the recipe one for all. Set lora.experts=per_expert",
                        where,
                        set->source, a->param);
        *fresh += !p;
        found += p != NULL;
        if (p && (p->rank != a->rank || p->scale != a->scale))
            CDR_FAIL_ID(err, CDR_EUSER, "lora.adapter", "%s: lora.adapter %s has rank %d and scale %g for %s, the recipe rank %d and scale %g. Set lora.rank, alpha and "
                        "expert_rank as they were", where, set->source, p->rank, (double)p->scale, a->param, a->rank, (double)a->scale);
    }
    for (int i = 0; i < set->n && found < set->n; i++) {
        const char *name = cdr_model_param(s->model, set->pair[i].i_param);
        bool in = false;
        for (int k = 0; k < s->opts.n_adapters && !in; k++) in = strcmp(s->opts.adapters[k].param, name) == 0;
        if (!in) CDR_FAIL_ID(err, CDR_EUSER, "lora.adapter", "%s: lora.adapter %s adapts %s, which lora.targets and lora.experts leave out: it would be lost. Name it",
                             where,
                             set->source, name);
    }
    return CDR_OK;
}

cdr_status cdr__adapter_start(cdr_session *s, cdr_err *err)
{
    cdr_lora_set set;
    int fresh;
    if (!s->r.lora.on || strcmp(s->r.lora.adapter, "none") == 0) return CDR_OK;
    CDR_TRY(cdr_lora_read(s->r.lora.adapter, s->model, s->pool, &set, err));
    CDR_TRY(session_agrees(s, &set, "lora.adapter", err));
    CDR_TRY(check_start(s, &set, &fresh, err));
    for (int i = 0; i < set.n; i++) CDR_TRY(put_pair(s, &set.pair[i], err));
    if (fresh > 0 && s->rank == 0) cdr_log(CDR_LOG_INFO, "lora.adapter: %d of %d matrices are not in %s and begin anew", fresh, s->opts.n_adapters, set.source);
    return CDR_OK;
}

/* ---- lora.serve_with ------------------------------------------------------------------------------------------------------------------------ */

/* A set without values, of the adapters that are compiled: keys are counted as our checkpoints hold them. */
static cdr_lora_set planned(const cdr_session *s, const cdr_adapter *a, int n)
{
    cdr_lora_set set = { .n = 0, .step = -1 };
    set.pair = cdr_pool_alloc(s->pool, sizeof *set.pair * (size_t)(n + 1));
    for (int64_t i = 0; i < cdr_model_params(s->model); i++) {
        cdr_model_part part = cdr_model_param_part(s->model, i);
        for (int k = 0; k < n; k++) {
            if (strcmp(a[k].param, cdr_model_param(s->model, i)) != 0) continue;
            int64_t E = part.top_k > 0 && part.n_dim == 3 ? part.n[0] : 0;
            set.pair[set.n++] = (cdr_lora_pair){ .i_param = i, .rank = a[k].rank, .scale = a[k].scale, .experts = E, .layout = CDR_LORA_RUN,
                                                 .n_keys = a[k].form == CDR_ADAPTER_EACH ? 2 * CDR_MAX(E, (int64_t)1) : E + 1 };
        }
    }
    return set;
}

cdr_status cdr__serve_count(const cdr_session *s, const char *consumer, cdr_lora_serve *serve, cdr_err *err)
{
    cdr_lora_set set = planned(s, s->opts.adapters, s->opts.n_adapters);
    return cdr_lora_serve_set(&set, s->model, consumer, serve, err);
}

cdr_status cdr__serve_check(const cdr_session *s, const cdr_compile_opts *o, cdr_err *err)
{
    const cdr_strings *with = &s->r.lora.serve_with;
    if (with->n == 0 || !s->r.lora.on) return CDR_OK;
    cdr_lora_set set = planned(s, o->adapters, o->n_adapters);
    for (int i = 0; i < with->n; i++) {
        cdr_lora_serve x;
        CDR_TRY(cdr_lora_serve_set(&set, s->model, with->s[i], &x, err));
        if (x.dropped > 0)
            CDR_FAIL_ID(err, CDR_EUSER, "lora.serve", "%s: lora.serve_with: %s would drop %lld of %lld adapter tensors: %s. Leave them out (lora.exclude), or serve the "
                        "merged model", cdr__recipe_at(&s->r, cdr_recipe_key("lora.serve_with")), with->s[i], (long long)x.dropped, (long long)x.keys, x.what);
    }
    return CDR_OK;
}

/* ---- what a run leaves ------------------------------------------------------------------------------------------------------------------------ */

void cdr__adapter_state(const cdr_session *s, cdr_jw *w)
{
    if (s->opts.n_adapters == 0) return;
    cdr_jw_begin(w, "lora", '{');
    for (int i = 0; i < s->opts.n_adapters; i++) {
        cdr_jw_begin(w, s->opts.adapters[i].param, '{');
        cdr_jw_int(w, "rank", s->opts.adapters[i].rank);
        cdr_jw_real(w, "scale", (double)s->opts.adapters[i].scale);
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, '}');
}

static const char *final_format(const cdr_session *s, const cdr_lora_set *set)
{
    bool experts = false;
    for (int i = 0; i < set->n; i++) experts = experts || set->pair[i].experts > 0;
    return experts && cdr__lora_is_fused(s->model) ? "peft-stacked" : "peft";
}

cdr_status cdr__adapter_final(cdr_session *s, cdr_lora_report *rep, const char **format, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_lora_set set;
    const char *dir = cdr_pool_printf(pool, "%s/final", s->r.output_dir);
    cdr_status st = cdr_lora_read(s->r.output_dir, s->model, pool, &set, err);
    if (st == CDR_OK && cdr_exists(dir)) st = cdr_remove_tree(dir, err);             /* of an earlier end of this run */
    if (st == CDR_OK) {
        *format = final_format(s, &set);
        cdr_lora_out o = { .format = *format, .set = &set, .model = s->model, .allow_drop = true, .base_name = set.base ? set.base : s->r.model.path,
                           .base_hash = set.base_hash, .has_hash = set.has_hash };
        st = cdr_lora_write(dir, &o, rep, err);
    }
    cdr_pool_free(pool);
    return st;
}
