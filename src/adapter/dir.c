/* dir.c: an adapter from a PEFT directory (adapter_config.json, adapter_model.safetensors), or from a checkpoint of ours.
 *
 * A directory: rank and scale by the configuration; the base hash from the file's metadata (cadre.base_hash) or cadre.json beside it.
 * A checkpoint: tensors of class adapter; rank and scale of each module are listed in its state.json, `lora`; the base in its manifest.
 */
#include "adapter/source.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_CONFIG = 64 << 20, MAX_FORMS = 6 };
static const double MAX_FITS = 5e7;            /* patterns x keys: a second or so */

static const char *in(cdr_pool *pool, const char *dir, const char *name) { return cdr_pool_printf(pool, "%s/%s", dir, name); }

bool cdr_lora_is_dir(const char *path)
{
    char file[1200];
    return snprintf(file, sizeof file, "%s/adapter_config.json", path) < (int)sizeof file && cdr_exists(file);
}

/* Names and values in a message are a file's: it stays one line. */
static cdr_status one_line(cdr_status st, cdr_err *err)
{
    for (char *c = err && st != CDR_OK ? err->text : NULL; c && *c; c++) if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return st;
}

/* ---- a directory ------------------------------------------------------------------------------------------------------------------ */

static cdr_status read_st(void *ctx, int64_t i, float *dst, cdr_err *err)
{
    (void)err;
    const cdr_st_tensor *t = cdr_st_at(ctx, i);
    int64_t n = 1;
    for (int d = 0; d < t->n_dim; d++) n *= t->n[d];
    cdr_to_f32(t->dtype, cdr_st_data(ctx, t), dst, n);
    return CDR_OK;
}

/* Names that a configuration may call a module: canonical, the model's own with and without its prefix, transformers' Kimi-Linear's. {expert} stands for expert e; e
 * < 0: is left out. */
static int forms(cdr_pool *pool, const cdr__lora_names *names, const cdr_model *m, int64_t i_param, int64_t e, const char *form[MAX_FORMS])
{
    const char *own = cdr_model_param(m, i_param), *base[4] = { cdr__lora_module(names, i_param) }, *f = strstr(base[0], ".self_attn.f_");
    size_t n = strlen(own);
    base[1] = cdr_pool_strndup(pool, own, n > 7 && strcmp(own + n - 7, ".weight") == 0 ? n - 7 : n);
    base[2] = strncmp(base[1], "language_model.", 15) == 0 ? base[1] + 15 : base[1];
    base[3] = f ? cdr_pool_printf(pool, "%.*s.self_attn.forget_gate%s", (int)(f - base[0]), base[0], f + strlen(".self_attn")) : base[0];
    for (int i = 0; i < 4; i++) {
        const char *mark = strstr(base[i], "{expert}.");
        form[i] = !mark ? base[i] : e >= 0 ? cdr_pool_printf(pool, "%.*s%lld.%s", (int)(mark - base[i]), base[i], (long long)e, mark + 9)
                                           : cdr_pool_printf(pool, "%.*s%s", (int)(mark - base[i]), base[i], mark + 9);
    }
    return 4;
}

static cdr_status fits(const cdr__lora_source *s, const cdr_model *m, cdr_lora_pair *p, cdr__lora_fit x, bool first, cdr_err *err)
{
    if (x.rank != (double)p->rank)
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.rank", "%s: adapter_config.json says rank %.0f for %s, its tensors have %d", s->where, x.rank, cdr_model_param(m,
            p->i_param), p->rank);
    if (!first && (float)x.scale != p->scale)
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.scale", "%s: adapter_config.json gives experts of %s different scales (%g and %g), which one stack cannot have", s->where,
                    cdr_model_param(m, p->i_param), (double)p->scale, x.scale);
    p->scale = (float)x.scale;
    p->untargeted = p->untargeted || !x.targeted;
    return CDR_OK;
}

/* A stack in a file goes by several names in target_modules: its own, `experts`, or what the class calls gate, up and down. */
static bool stack_targeted(const cdr__lora_config *c, cdr_pool *pool, const char *const *form, int n, cdr__role role)
{
    static const char *const other[] = { "gate_proj", "up_proj", "down_proj" };
    bool hit = false;
    for (int i = 0; i < n && !hit; i++) {
        const char *dot = strrchr(form[i], '.');
        const char *more[] = { cdr_pool_strndup(pool, form[i], (size_t)(dot - form[i])),
                               role == CDR__ROLE_NONE ? form[i] : cdr_pool_printf(pool, "%.*s.%s", (int)(dot - form[i]), form[i], other[role]) };
        hit = cdr__lora_config_fit(c, more, 2, false).targeted;
    }
    return hit;
}

static cdr_status fit_config(const cdr__lora_source *s, const cdr__lora_names *names, const cdr_model *m, cdr_lora_pair *p, cdr_err *err)
{
    const cdr__lora_config *c = s->config;
    const char *form[MAX_FORMS];
    cdr_pool *pool = cdr_pool_new();
    cdr_status st = CDR_OK;
    int64_t n = p->layout == CDR_LORA_EXPERTS ? p->experts : 1;
    if ((double)(c->n_rank + c->n_alphas + 1) * (double)s->n > MAX_FITS)
        st = cdr_fail(err, CDR_EDATA, "adapter.config", "%s: %d patterns over %lld tensors are too many", s->where, c->n_rank + c->n_alphas, (long long)s->n);
    for (int64_t e = 0; e < n && st == CDR_OK; e++) {
        int k = forms(pool, names, m, p->i_param, p->layout == CDR_LORA_EXPERTS ? e : -1, form);
        if (p->layout == CDR_LORA_FUSED) {
            const char *leaf = cdr__lora_role(m, p->i_param) == CDR__ROLE_DOWN ? "down_proj" : "gate_up_proj";
            for (int i = 0; i < k; i++) form[i] = cdr_pool_printf(pool, "%.*s.%s", (int)(strrchr(form[i], '.') - form[i]), form[i], leaf);
        }
        cdr__lora_fit x = cdr__lora_config_fit(c, form, k, p->layout == CDR_LORA_FUSED);
        if (p->layout == CDR_LORA_STACK && !x.targeted) x.targeted = stack_targeted(c, pool, form, k, cdr__lora_role(m, p->i_param));
        st = fits(s, m, p, x, e == 0, err);
        if (e % 64 == 63) {                            /* a stack of hundreds: names of a few at a time */
            cdr_pool_free(pool);
            pool = cdr_pool_new();
        }
    }
    cdr_pool_free(pool);
    return st;
}

static bool parse_hash(const char *s, uint64_t *hash)
{
    char *end;
    if (!s || strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16) return false;
    *hash = strtoull(s, &end, 16);
    return true;
}

static cdr_status read_hash(const char *dir, const cdr_st *st, cdr_pool *pool, cdr_lora_set *set, cdr_err *err)
{
    const char *path = in(pool, dir, "cadre.json");
    char *text = NULL;
    size_t bytes;
    set->has_hash = parse_hash(cdr_st_meta(st, "cadre.base_hash"), &set->base_hash);
    if (set->has_hash || !cdr_exists(path)) return CDR_OK;
    CDR_TRY(cdr_file_read(path, 1 << 20, &text, &bytes, err));
    const cdr_json *root;
    cdr_status s = cdr_json_parse(pool, text, bytes, path, &root, err);
    cdr_free(text);
    CDR_TRY(s);
    set->has_hash = parse_hash(cdr_json_str(cdr_json_get(root, "base_hash"), NULL), &set->base_hash);
    return CDR_OK;
}

static cdr_status bind_st(const char *dir, cdr_st *st, const cdr__lora_config *c, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err)
{
    cdr__lora_source s = { .where = dir, .n = cdr_st_count(st), .read = read_st, .fit = fit_config, .ctx = st, .config = c };
    cdr__lora_raw *t = cdr_pool_alloc(pool, sizeof *t * (size_t)(s.n + 1));
    for (int64_t i = 0; i < s.n; i++) {
        const cdr_st_tensor *x = cdr_st_at(st, i);
        t[i] = (cdr__lora_raw){ .name = cdr_pool_strdup(pool, x->name), .dtype = x->dtype, .n_dim = x->n_dim };
        memcpy(t[i].n, x->n, sizeof t[i].n);
    }
    s.tensor = t;
    CDR_TRY(read_hash(dir, st, pool, set, err));
    return cdr__lora_bind(&s, m, pool, set, err);
}

cdr_status cdr__lora_read_dir(const char *path, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err)
{
    const char *config = in(pool, path, "adapter_config.json"), *file = in(pool, path, "adapter_model.safetensors");
    char *text = NULL;
    size_t bytes;
    cdr__lora_config c;
    cdr_st *st = NULL;
    if (!cdr_exists(file))
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.file", "%s: there is no adapter_model.safetensors%s", path, cdr_exists(in(pool, path, "adapter_model.bin")) ?
                    ", but an adapter_model.bin, which is a pickle and not read. Save it with safetensors" : ". Copy it there, or name the directory that has it");
    CDR_TRY(cdr_file_read(config, MAX_CONFIG, &text, &bytes, err));
    cdr_status s = cdr__lora_config_parse(config, text, bytes, pool, &c, err);
    cdr_free(text);
    CDR_TRY(s);
    set->base = c.base ? cdr_pool_strdup(pool, c.base) : NULL;
    set->rank = (int32_t)c.r;
    set->alpha = c.alpha;
    set->rslora = c.rslora;
    set->target_regex = c.target_regex ? cdr_pool_strdup(pool, c.target_regex) : NULL;
    set->step = -1;
    s = cdr_st_open(file, &st, err);
    if (s == CDR_OK) s = bind_st(path, st, &c, m, pool, set, err);
    cdr_st_close(st);
    cdr__lora_config_close(&c);
    return s;
}

cdr_status cdr__lora_read_bytes(const cdr__lora_bytes *b, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err)
{
    cdr__lora_config c;
    cdr_st *st = NULL;
    memset(set, 0, sizeof *set);
    CDR_TRY(one_line(cdr__lora_config_parse(b->where, b->config, b->config_bytes, pool, &c, err), err));
    cdr_status s = cdr_st_open_memory(b->where, b->tensors, b->tensors_bytes, &st, err);
    if (s == CDR_OK) s = bind_st(b->where, st, &c, m, pool, set, err);
    cdr_st_close(st);
    cdr__lora_config_close(&c);
    return one_line(s, err);
}

/* ---- a checkpoint ------------------------------------------------------------------------------------------------------------------ */

typedef struct { cdr_ckpt *ck; const cdr_ckpt_tensor **t; const cdr_json *lora; cdr_pool *pool; } run;

static cdr_status read_ckpt(void *ctx, int64_t i, float *dst, cdr_err *err)
{
    const run *r = ctx;
    const cdr_ckpt_tensor *t = r->t[i];
    int64_t n = 1, rows = t->n_dim > 0 ? t->n[0] : 1;
    for (int d = 0; d < t->n_dim; d++) n *= t->n[d];
    char *raw = cdr_alloc((size_t)cdr_dtype_bytes(t->dtype, n) + 1);
    cdr_status st = cdr_ckpt_read(r->ck, t->name, t->cls, t->dtype, 0, rows, raw, err);
    if (st == CDR_OK) cdr_to_f32(t->dtype, raw, dst, n);
    cdr_free(raw);
    return st;
}

static cdr_status fit_run(const cdr__lora_source *s, const cdr__lora_names *names, const cdr_model *m, cdr_lora_pair *p, cdr_err *err)
{
    (void)names;
    const run *r = s->ctx;
    const char *name = cdr_model_param(m, p->i_param);
    const cdr_json *x = cdr_json_get(r->lora, name);
    double scale = cdr_json_real(cdr_json_get(x, "scale"), NAN);
    if (!(scale > 0) || cdr_json_int(cdr_json_get(x, "rank"), -1) != p->rank)
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.rank", "%s: its state.json has no scale for %s of rank %d", s->where, name, p->rank);
    p->scale = (float)scale;
    p->layout = CDR_LORA_RUN;
    return CDR_OK;
}

static cdr_status bind_ckpt(const char *path, cdr_ckpt *ck, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err)
{
    run r = { .ck = ck, .pool = pool };
    const cdr_json *state;
    const char *text = cdr_ckpt_state(ck);
    CDR_TRY(cdr_json_parse(pool, text, strlen(text), "state.json", &state, err));
    r.lora = cdr_json_get(state, "lora");
    int64_t all = cdr_ckpt_count(ck);
    r.t = cdr_pool_alloc(pool, sizeof *r.t * (size_t)(all + 1));
    cdr__lora_raw *t = cdr_pool_alloc(pool, sizeof *t * (size_t)(all + 1));
    cdr__lora_source s = { .where = path, .tensor = t, .read = read_ckpt, .fit = fit_run, .ctx = &r };
    for (int64_t i = 0; i < all; i++) {
        const cdr_ckpt_tensor *x = cdr_ckpt_at(ck, i);
        if (strcmp(x->cls, "adapter") != 0) continue;
        t[s.n] = (cdr__lora_raw){ .name = cdr_pool_strdup(pool, x->name), .dtype = x->dtype, .n_dim = x->n_dim };
        for (int d = 0; d < x->n_dim; d++) t[s.n].n[d] = x->n[d];
        r.t[s.n++] = x;
    }
    if (s.n == 0) CDR_FAIL_ID(err, CDR_EDATA, "adapter.no-lora", "%s: is no LoRA run: its checkpoint holds no adapters", path);
    if (!r.lora) CDR_FAIL_ID(err, CDR_EDATA, "adapter.no-scale",
                             "%s: its state.json lists no scales (lora); it was written by an older version. Continue the run for a step", path);
    const cdr_json *base = cdr_json_get(cdr_ckpt_manifest(ck), "base");
    const char *name = cdr_json_str(cdr_json_get(base, "path"), NULL);
    set->base = name ? cdr_pool_strdup(pool, name) : NULL;
    set->has_hash = parse_hash(cdr_json_str(cdr_json_get(base, "hash"), NULL), &set->base_hash);
    set->step = cdr_ckpt_step(ck);
    CDR_TRY(cdr__lora_bind(&s, m, pool, set, err));
    for (int i = 0; i < set->n; i++) set->rank = CDR_MAX(set->rank, set->pair[i].rank);
    return CDR_OK;
}

cdr_status cdr__lora_read_run(const char *path, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err)
{
    cdr_ckpt *ck = NULL;
    CDR_TRY(cdr_ckpt_open(path, &ck, err));
    cdr_status st = bind_ckpt(path, ck, m, pool, set, err);
    cdr_ckpt_close(ck);
    return st;
}

cdr_status cdr_lora_read(const char *path, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err)
{
    memset(set, 0, sizeof *set);
    set->source = cdr_pool_strdup(pool, path);
    if (!cdr_exists(path)) CDR_FAIL_ID(err, CDR_EDATA, "adapter.missing", "%s: there is no such file or directory. Name the directory of an adapter, or a LoRA "
                "run", path);
    return one_line(cdr_lora_is_dir(path) ? cdr__lora_read_dir(path, m, pool, set, err) : cdr__lora_read_run(path, m, pool, set, err), err);
}
