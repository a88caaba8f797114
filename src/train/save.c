/* save.c: a session's parameters and optimizer states to and from layout-free checkpoints. Each row is handed over by
 * exactly one rank: split parameters (rows over the shard axis, matrices of a stack over expert groups) by the shards of
 * replica 0, whole ones by the shard (index mod n). Writers are numbered by shard; the order of their rows may be another.
 *
 *   trained by AdamW: weight, master (unless it is the weight), m, v      by Muon: weight, master, momentum
 *   changed by a rule of its own (selection bias): bias                   frozen: nothing; the base's, or drawn again
 *
 * Names are those of the released checkpoints: the experts' matrices of a layer, one parameter here, are a tensor each there.
 */
#include "train/adapter.h"

int cdr__kept_values(const cdr_param *q, cdr_kept x[CDR_MAX_KEPT])
{
    int n = 0;
    x[n++] = (cdr_kept){ q->shard, q->train == CDR_STATE ? "bias" : q->adapter ? "adapter" : "weight" };
    if (q->master != CDR_NONE && q->master != q->shard) x[n++] = (cdr_kept){ q->master, "master" };
    if (q->m != CDR_NONE) x[n++] = (cdr_kept){ q->m, q->v == CDR_NONE ? "momentum" : "m" };
    if (q->v != CDR_NONE) x[n++] = (cdr_kept){ q->v, "v" };
    return n;
}

/* A parameter as checkpoints name it: whole, or one matrix for each expert that this rank holds. */
typedef struct { const char *name; int n_dim; int64_t n[CDR_MAX_DIM], first, rows; size_t at_bytes, bytes; } slice;

static bool stacked(const cdr_param *q) { return strstr(q->name, "{expert}") != NULL; }

static int64_t n_slices(const cdr_session *s, const cdr_param *q)
{
    int64_t first, rows;
    cdr_param_rows(q, &s->mesh, &first, &rows);
    return stacked(q) ? rows : 1;
}

/* dtype: of the value in memory. */
static slice slice_of(const cdr_session *s, const cdr_param *q, int64_t i, int dtype, cdr_pool *pool)
{
    slice x = { .name = q->name, .n_dim = q->global.n_dim };
    int64_t row_elems = cdr_type_elems(&q->global) / q->global.n[0];
    cdr_param_rows(q, &s->mesh, &x.first, &x.rows);
    memcpy(x.n, q->global.n, sizeof x.n);
    x.bytes = (size_t)cdr_dtype_bytes(dtype, row_elems * x.rows);
    if (!stacked(q)) return x;
    const char *mark = strstr(q->name, "{expert}");
    x.name = cdr_pool_printf(pool, "%.*s%lld%s", (int)(mark - q->name), q->name, (long long)(x.first + i), mark + strlen("{expert}"));
    x.n_dim--;
    memmove(x.n, x.n + 1, sizeof x.n - sizeof *x.n);
    x.first = 0;
    x.rows = x.n[0];
    x.bytes = (size_t)cdr_dtype_bytes(dtype, row_elems);
    x.at_bytes = (size_t)i * x.bytes;
    return x;
}

static int64_t n_pieces(const cdr_session *s)
{
    int64_t n = 0;
    for (int32_t i = 0; i < s->bundle.n_params; i++) n += CDR_MAX_KEPT * n_slices(s, &s->bundle.params[i]);
    return n;
}

static int64_t collect(cdr_session *s, cdr_ckpt_piece *piece, cdr_pool *pool)
{
    int64_t n = 0;
    for (int32_t i = 0; i < s->bundle.n_params; i++) {
        const cdr_param *q = &s->bundle.params[i];
        bool split = q->split[0] >= 0;
        if (q->train == CDR_FROZEN || (!split && i % s->mesh.size[CDR_AXIS_SHARD] != s->mesh.rank[CDR_AXIS_SHARD])) continue;
        cdr_kept x[CDR_MAX_KEPT];
        for (int k = 0, n_values = cdr__kept_values(q, x); k < n_values; k++) {
            const cdr_type *t = &s->bundle.shared[x[k].v].t;
            const char *data;
            if (s->device->host_sees && t->layout == CDR_ROWS) data = cdr_exec_ptr(s->exec, CDR_PROG_STEP, x[k].v, 0);
            else {
                size_t bytes = cdr_exec_run_bytes(s->exec, x[k].v);
                char *copy = cdr_pool_alloc(pool, bytes);
                cdr_exec_get_run(s->exec, x[k].v, copy, bytes);
                data = copy;
            }
            for (int64_t j = 0; j < n_slices(s, q); j++) {
                slice at = slice_of(s, q, j, t->dtype, pool);
                cdr_ckpt_piece p = { .name = at.name, .cls = x[k].cls, .dtype = t->dtype, .n_dim = at.n_dim, .first_row = at.first, .n_rows = at.rows,
                                     .data = data + at.at_bytes };
                memcpy(p.n, at.n, sizeof p.n);
                if (at.rows > 0) piece[n++] = p;
            }
        }
    }
    return n;
}

static cdr_status lost(cdr_session *s, cdr_status st, cdr_err *err)
{
    if (st == CDR_ERANK && err->status == CDR_OK) cdr_comm_lost(s->world, err);
    return st;
}

/* Every writer's table to every rank (rank 0 needs them): lengths, then bytes; before them, whether it could be written. */
static cdr_status share_parts(cdr_session *s, int n_writers, const cdr_text *mine, cdr_status written, const char **parts, cdr_pool *pool, cdr_err *err)
{
    for (int w = 0; w < n_writers; w++) {
        CDR_TRY(cdr__share_error(s, w, s->rank == w ? written : CDR_OK, err));
        int64_t n = s->rank == w ? (int64_t)mine->n : 0;
        CDR_TRY(lost(s, cdr_comm_broadcast(s->world, &n, sizeof n, w), err));
        char *text = cdr_pool_alloc(pool, (size_t)n + 1);
        if (s->rank == w) memcpy(text, mine->s, (size_t)n);
        CDR_TRY(lost(s, cdr_comm_broadcast(s->world, text, (size_t)n, w), err));
        parts[w] = text;
    }
    return CDR_OK;
}

static char *state_text(cdr_session *s, int64_t step, int64_t tokens, int64_t trained, double best_eval, cdr_pool *pool)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    int64_t n_shards = s->r.train.global_batch_tokens / s->r.train.micro_batch_tokens;
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_int(&w, "step", step);
    cdr_jw_int(&w, "tokens", tokens);
    cdr_jw_int(&w, "trained_tokens", trained);
    cdr_jw_real(&w, "epoch", cdr_data_epoch(s->data, step, n_shards));
    cdr_jw_int(&w, "seed", s->r.seed);
    cdr_data_state(s->data, &w, step, n_shards);
    cdr_jw_real(&w, "best_eval", best_eval);
    cdr__adapter_state(s, &w);
    cdr_jw_end(&w, '}');
    char *out = cdr_pool_strdup(pool, t.s);
    cdr_text_free(&t);
    return out;
}

cdr_status cdr__save(cdr_session *s, int64_t step, int64_t tokens, int64_t trained, double best_eval, int64_t *bytes, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    int n_writers = s->mesh.size[CDR_AXIS_SHARD];
    cdr_text part = { 0 };
    cdr_status st = CDR_OK;
    if (s->mesh.rank[CDR_AXIS_REPLICATE] == 0) {
        cdr_ckpt_piece *piece = cdr_pool_alloc(pool, sizeof *piece * (size_t)(n_pieces(s) + 1));
        int64_t n = collect(s, piece, pool);
        st = cdr_ckpt_write_part(s->r.output_dir, step, s->mesh.rank[CDR_AXIS_SHARD], n_writers, piece, n, &part, err);
    }
    const char **parts = cdr_pool_alloc(pool, sizeof *parts * (size_t)n_writers);
    st = share_parts(s, n_writers, &part, st, parts, pool, err);
    cdr_text_free(&part);
    if (st != CDR_OK) {                          /* on every rank */
        cdr_pool_free(pool);
        return st;
    }
    int64_t written = 0;
    const char *base_path;
    uint64_t base_hash;
    if (s->rank == 0) st = cdr__session_base_meta(s, &base_path, &base_hash, err);
    if (s->rank == 0 && st == CDR_OK) {
        cdr_text mesh = { 0 };
        cdr_jw w = { .t = &mesh };
        cdr_jw_begin(&w, NULL, '{');
        cdr__mesh_json(&s->mesh, &w);
        cdr_jw_end(&w, '}');
        cdr_ckpt_meta meta = { .step = step, .n_ranks = n_writers, .recipe_hash = cdr_recipe_hash(&s->r), .description_hash = s->info->hash,
                               .base_path = base_path, .base_hash = base_hash, .mesh_json = mesh.s,
                               .state_json = state_text(s, step, tokens, trained, best_eval, pool), .recipe_yaml = cdr_recipe_yaml(&s->r, pool) };
        st = cdr_ckpt_finish(s->r.output_dir, &meta, parts, n_writers, &written, err);
        cdr_text_free(&mesh);
        if (st == CDR_OK) st = cdr_ckpt_prune(s->r.output_dir, s->r.checkpoint.keep == CDR_ALL ? 0 : (int)s->r.checkpoint.keep, err);
    }
    cdr_pool_free(pool);
    *bytes = written;                            /* rank 0's; the others do not speak */
    return cdr__share_error(s, 0, st, err);
}

static cdr_status check_data(cdr_session *s, const cdr_json *state, const cdr_restore_opts *o, int64_t step, cdr_err *err)
{
    int64_t n_shards = s->r.train.global_batch_tokens / s->r.train.micro_batch_tokens;
    cdr_err other = { .status = CDR_OK };
    cdr_status st = cdr_data_check_state(s->data, cdr_json_get(state, "data"), step, n_shards, &other);
    if (st == CDR_OK) return st;
    if (!o->other_data) {
        *err = other;
        return st;
    }
    if (s->rank == 0) cdr_log(CDR_LOG_WARNING, "data.train: another corpus or another order than the run began with, as --allow-change asks; goes on at step %lld of it",
                              (long long)step);
    return CDR_OK;
}

/* One value of a parameter from a checkpoint; o.states false: whatever dtype it has there. */
static cdr_status restore_value(cdr_session *s, cdr_ckpt *ck, bool states, const cdr_param *q, const cdr_kept *x, cdr_err *err)
{
    const cdr_type *t = &s->bundle.shared[x->v].t;
    size_t bytes = cdr_exec_run_bytes(s->exec, x->v);
    int64_t n_all = n_slices(s, q);
    cdr_pool *pool = cdr_pool_new();
    const cdr_ckpt_tensor *have = n_all > 0 ? cdr_ckpt_find(ck, slice_of(s, q, 0, t->dtype, pool).name, x->cls) : NULL;
    int dtype = !states && have ? have->dtype : t->dtype;
    size_t raw_bytes = CDR_MAX(bytes, (size_t)cdr_dtype_bytes(dtype, cdr_type_elems(t)));
    char *raw = cdr_alloc(raw_bytes), *cast = NULL;
    cdr_status st = CDR_OK;
    memset(raw, 0, raw_bytes);
    for (int64_t i = 0; i < n_all && st == CDR_OK; i++) {
        slice at = slice_of(s, q, i, dtype, pool);
        if (at.rows > 0) st = cdr_ckpt_read(ck, at.name, x->cls, dtype, at.first, at.rows, raw + at.at_bytes, err);
    }
    cdr_pool_free(pool);
    if (st == CDR_OK && dtype != t->dtype) {      /* weights for another precision than they were trained in */
        int64_t n = cdr_type_elems(t);
        float *wide = cdr_alloc(sizeof *wide * (size_t)n);
        cast = cdr_alloc(bytes);
        cdr_to_f32(dtype, raw, wide, n);
        cdr_from_f32(t->dtype, wide, cast, n);
        cdr_free(wide);
    }
    if (st == CDR_OK) cdr_exec_put_run(s->exec, x->v, cast ? cast : raw, bytes);
    cdr_free(raw);
    cdr_free(cast);
    return st;
}

/* Class under which a checkpoint holds the parameter itself; NULL: it does not. Of a stack the first expert stands for all, on ranks that hold none, too. */
static const char *held_as(const cdr_session *s, const cdr_ckpt *ck, const cdr_param *q)
{
    static const char *const cls[] = { "weight", "bias" };
    const char *mark = strstr(q->name, "{expert}"), *name = q->name;
    if (mark) name = cdr_pool_printf(s->pool, "%.*s0%s", (int)(mark - q->name), q->name, mark + strlen("{expert}"));
    for (int i = 0; i < CDR_COUNT(cls); i++) if (cdr_ckpt_find(ck, name, cls[i])) return cls[i];
    return NULL;
}

/* Parameters that are frozen here and that the checkpoint does not hold are those of the base, or what the seed draws, as they were in the run that
 * wrote it. A run that trained all of them and is held still now (an adapter beside it, generation) needs no base. */
bool cdr__restore_needs_base(const cdr_session *s, const cdr_ckpt *ck)
{
    bool of_base = false;
    for (int32_t i = 0; i < s->bundle.n_params && !of_base; i++) {
        const cdr_param *q = &s->bundle.params[i];
        of_base = q->train == CDR_FROZEN && !q->adapter && !held_as(s, ck, q);
    }
    return of_base;
}

static cdr_status restore_params(cdr_session *s, cdr_ckpt *ck, bool states, cdr_err *err)
{
    if (cdr__restore_needs_base(s, ck)) {
        CDR_TRY(cdr__session_same_base(s, ck, err));
        CDR_TRY(cdr__session_weights(s, err));
    }
    for (int32_t i = 0; i < s->bundle.n_params; i++) {
        const cdr_param *q = &s->bundle.params[i];
        cdr_kept x[CDR_MAX_KEPT];
        int n = cdr__kept_values(q, x);
        const char *held = q->train == CDR_FROZEN ? held_as(s, ck, q) : NULL;
        if (q->adapter && s->adapter) continue;              /* a file's, not this checkpoint's */
        if (q->train == CDR_FROZEN && !held) continue;
        if (held) x[0].cls = held;
        if (q->mapped)
            CDR_FAIL_ID(err, CDR_EUSER, "precision.experts", "precision.experts: %s holds %s, which this run reads from the packed base where it lies. Copy the base "
                        "into memory (precision.experts=mxfp4 or bf16)", cdr_ckpt_dir(ck), q->name);
        for (int k = 0; k < (states ? n : 1); k++) CDR_TRY(restore_value(s, ck, states, q, &x[k], err));
    }
    return CDR_OK;
}

cdr_status cdr__restore(cdr_session *s, cdr_ckpt *ck, cdr_restore_opts o, cdr_restored *out, cdr_err *err)
{
    if (cdr_ckpt_description_hash(ck) != s->info->hash)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.other-model", "%s: was written by another model description (%016llx) than %s (%016llx). Take its own recipe, "
                    "or another output_dir", cdr_ckpt_dir(ck), (unsigned long long)cdr_ckpt_description_hash(ck), s->info->name,
                    (unsigned long long)s->info->hash);
    CDR_TRY(restore_params(s, ck, o.states, err));
    const cdr_json *state;
    const char *text = cdr_ckpt_state(ck);
    CDR_TRY(cdr_json_parse(s->pool, text, strlen(text), "state.json", &state, err));
    out->step = cdr_ckpt_step(ck);
    out->tokens = cdr_json_int(cdr_json_get(state, "tokens"), 0);
    out->trained = cdr_json_int(cdr_json_get(state, "trained_tokens"), 0);
    out->best_eval = cdr_json_real(cdr_json_get(state, "best_eval"), 0);
    out->from_ranks = cdr_ckpt_ranks(ck);
    cdr__put_dense(s, out->step);
    snprintf(out->path, sizeof out->path, "%s", cdr_ckpt_dir(ck));
    return o.states && s->data ? check_data(s, state, &o, out->step, err) : CDR_OK;
}
