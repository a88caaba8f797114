/* model_open.c: a model from a run directory, one of its checkpoints, or a directory of weights with a config.json, for commands
 * that read it. A run says by its recipe how it is opened; a directory alone is opened with the defaults of a recipe.
 */
#include "command/model_open.h"
#include "train/adapter.h"
#include <errno.h>
#include <unistd.h>

static bool is_weights_dir(const char *path, cdr_pool *pool)
{
    return cdr_is_dir(path) && cdr_exists(cdr_pool_printf(pool, "%s/config.json", path)) && !cdr_is_dir(cdr_pool_printf(pool, "%s/checkpoints", path)) &&
           !cdr_exists(cdr_pool_printf(pool, "%s/manifest.json", path));
}

/* A name of a recipe: letters, digits, '.', '_' and '-' of the directory's last part. */
static char *name_of(const char *path, cdr_pool *pool)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    char *name = cdr_pool_strndup(pool, path + from, n - from);
    for (char *c = name; *c; c++) {
        if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
        else if (!((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '.' || *c == '_' || *c == '-')) *c = '-';
    }
    return name[0] ? name : cdr_pool_strdup(pool, "model");
}

/* A recipe that names the directory and nothing else. No data is read: eval brings its own. */
static cdr_status recipe_of_dir(cdr_session *s, const char *path, const cdr_common *c, cdr_err *err)
{
    cdr_text t = { 0 }, quoted = { 0 };
    for (const char *p = path; *p; p++) cdr_text_printf(&quoted, *p == '\'' ? "''" : "%c", *p);
    cdr_text_printf(&t, "version: 1\nname: %s\nmodel: {path: '%s'}\ndata: {train: none.txt}\n", name_of(path, s->pool), quoted.s);
    const char *text = cdr_pool_strndup(s->pool, t.s, t.n);
    cdr_text_free(&t);
    cdr_text_free(&quoted);
    cdr_recipe_text rt = { text, strlen(text), cdr_pool_strdup(s->pool, path), "defaults" };
    return cdr_recipe_parse(&rt, c, s->pool, &s->r, err);
}

/* The recipe that the checkpoint holds, with this command's flags on top. */
static cdr_status recipe_of_run(cdr__opened *m, const cdr_common *c, cdr_err *err)
{
    CDR_TRY(cdr_ckpt_open(m->path, &m->ck, err));
    return cdr__recipe_of_ckpt(m->ck, c, m->s.pool, &m->s.r, err);
}

cdr_status cdr__readable(const char *path, cdr_err *err)
{
    if (access(path, cdr_is_dir(path) ? R_OK | X_OK : R_OK) == 0) return CDR_OK;
    CDR_FAIL_ID(err, CDR_EUSER, "file.io", "%s: cannot be read; %s. Check its permissions", path, strerror(errno));
}

cdr_status cdr__model_there(const char *path, cdr_err *err)
{
    if (cdr_exists(path)) return cdr__readable(path, err);
    CDR_FAIL_ID(err, CDR_EDATA, "model.missing", "%s: there is no such file or directory. Name a directory of weights in Hugging Face layout, a run directory, or one "
                "checkpoint of a run", path);
}

cdr_status cdr__model_open(cdr__opened *m, const char *path, const cdr_common *c, cdr_err *err)
{
    memset(m, 0, sizeof *m);
    m->s.pool = cdr_pool_new();
    m->path = path;
    cdr_log_set_level(c->quiet ? CDR_LOG_ERROR : c->verbose ? CDR_LOG_DEBUG : CDR_LOG_INFO);
    CDR_TRY(cdr__model_there(path, err));
    CDR_TRY(is_weights_dir(path, m->s.pool) ? recipe_of_dir(&m->s, path, c, err) : recipe_of_run(m, c, err));
    CDR_TRY(cdr__session_model(&m->s, err));
    return cdr__session_tokenizer(&m->s, err);
}

cdr_status cdr__model_layout(cdr__opened *m, cdr_err *err)
{
    cdr_session *s = &m->s;
    cdr_comm_spec spec = { "auto", s->r.parallel.timeout };
    CDR_TRY(cdr_comm_open(&spec, &s->world, err));
    s->r.parallel.replicate = 1;
    s->r.parallel.shard = cdr_comm_size(s->world);
    while (s->r.parallel.shard % s->r.parallel.expert != 0) s->r.parallel.expert /= 2;
    s->r.ranks.n_micro = 1;
    cdr__session_mesh(s, cdr_comm_rank(s->world), cdr_comm_size(s->world));
    return CDR_OK;
}

/* Nothing of a directory trains here: its experts stay packed and mapped, its matrices lie as products read them. */
static void hold_still(cdr_session *s)
{
    const int64_t n = cdr_model_params(s->model);
    const char **name = cdr_pool_alloc(s->pool, sizeof *name * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) name[i] = cdr_model_param(s->model, i);
    s->opts.freeze = name;
    s->opts.n_freeze = (int32_t)n;
    s->opts.indexer_train = false;
}

/* Device and program of this rank. */
static cdr_status compile_still(cdr__opened *m, const char *adapter, cdr_err *err)
{
    cdr_session *s = &m->s;
    int kind = s->r.machine.device == CDR_USE_CUDA ? CDR_DEV_CUDA : CDR_DEV_CPU;
    int n_threads = cdr__session_threads(s, cdr_cpu_cores(), true);
    CDR_TRY(cdr_device_open(kind, kind == CDR_DEV_CUDA ? s->rank : 0, n_threads, &s->device, err));
    if (adapter) CDR_TRY(cdr__adapter_attach(s, adapter, err));
    CDR_TRY(cdr__session_opts(s, kind, s->device->isa, n_threads, err));
    s->opts.infer_only = true;
    s->opts.n_micro = 1;
    if (!m->ck && !adapter) hold_still(s);
    CDR_TRY(cdr_compile(&s->opts, &s->builder, s->pool, &s->bundle, err));
    s->unasked = m->ck ? !cdr__restore_needs_base(s, m->ck) : !(s->adapter && s->adapter->has_hash);
    return CDR_OK;
}

/* A run that trained all of its model is a base of its own, which has no hash: the directory that it began with says nothing about it. */
static cdr_status adapter_fits(const cdr__opened *m, cdr_err *err)
{
    const cdr_session *s = &m->s;
    if (!m->ck || !s->adapter || cdr__restore_needs_base(s, m->ck)) return cdr__adapter_base(s, err);
    if (s->rank == 0)
        cdr_log(CDR_LOG_WARNING, "--adapter: %s trained all of its weights; whether %s was trained on them is not known, only that it fits in shape", m->path,
                s->adapter->source);
    return CDR_OK;
}

cdr_status cdr__model_load(cdr__opened *m, const char *adapter, cdr_err *err)
{
    cdr_session *s = &m->s;
    cdr_restored at = { 0 };
    CDR_TRY(cdr__agree(s, compile_still(m, adapter, err), err));
    CDR_TRY(cdr__session_device(s, err));
    CDR_TRY(adapter_fits(m, err));
    cdr_status st = m->ck ? cdr__restore(s, m->ck, (cdr_restore_opts){ .states = false }, &at, err) : cdr__session_weights(s, err);
    if (st == CDR_OK) st = cdr__adapter_put(s, err);
    return cdr__agree(s, st, err);
}

void cdr__model_close(cdr__opened *m)
{
    if (m->ck) cdr_ckpt_close(m->ck);
    cdr__session_close(&m->s);
}

/* ---- how it is prompted ------------------------------------------------------------------------------------------------ */
static bool ends_with(const char *s, size_t n, const char *tail) { return n >= strlen(tail) && memcmp(s + n - strlen(tail), tail, strlen(tail)) == 0; }

/* data.format says it, or the name of what was trained on: a .jsonl or .json holds conversations, all else is text. */
static bool trained_on_text(const cdr_recipe *r)
{
    if (r->data.format != CDR_FORMAT_AUTO) return r->data.format == CDR_FORMAT_TEXT || r->data.format == CDR_FORMAT_TOKENS;
    for (int i = 0; i < r->data.train.n; i++) {
        const cdr_source *src = &r->data.train.s[i];
        size_t n = strlen(src->path);
        if (src->format != CDR_FORMAT_AUTO && src->format != CDR_FORMAT_TEXT && src->format != CDR_FORMAT_TOKENS) return false;
        if (src->format != CDR_FORMAT_AUTO) continue;
        if (ends_with(src->path, n, ".zst")) n -= 4;
        else if (ends_with(src->path, n, ".gz")) n -= 3;
        if (ends_with(src->path, n, ".jsonl") || ends_with(src->path, n, ".json")) return false;
    }
    return true;
}

bool cdr__model_is_raw(const cdr__opened *m)
{
    cdr_chat_spec spec = cdr__session_chat(&m->s);
    return !spec.format || strcmp(spec.format, "none") == 0 || (m->ck && trained_on_text(&m->s.r));
}

cdr_status cdr__model_chat(const cdr__opened *m, cdr_chat **chat, cdr_err *err)
{
    cdr_chat_spec spec = cdr__session_chat(&m->s);
    *chat = NULL;
    if (!spec.format || strcmp(spec.format, "none") == 0) return CDR_OK;
    return cdr_chat_open(&spec, chat, err);
}
