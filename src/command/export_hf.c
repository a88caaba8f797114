/* export_hf.c: `export --format hf`: a directory, or a run, as a Hugging Face directory.
 *
 *   of a directory          copied byte for byte; --experts: routed experts in another format
 *   of a run with a base    the base's layout; what trained is written anew, packed experts with the scales that they had, all else is copied
 *   of a run from scratch   as `toy --from RUN` writes it
 * The base of a run is --base, or the directory that its recipe names.
 */
#include "command/export_hf.h"
#include "command/model_open.h"
#include <stdlib.h>

typedef struct {
    const cdr_export_args *a;
    cdr_pool *pool;
    cdr_recipe r;
    cdr_model *model;
    cdr_ckpt *ck;                         /* NULL: a directory is exported */
    cdr_hf *hf; cdr_weights *w;           /* the source */
    bool *touched; int64_t n_touched;
} job;

/* ---- rows of a run ---------------------------------------------------------------------------------------------------------- */
static const cdr_ckpt_tensor *find(const cdr_ckpt *ck, const char *name)
{
    const cdr_ckpt_tensor *x = cdr_ckpt_find(ck, name, "weight");
    return x ? x : cdr_ckpt_find(ck, name, "bias");
}

static const char MARK[] = "{expert}";

static bool name_of(const char *name, int64_t expert, char *out, size_t bytes)
{
    const char *at = strstr(name, MARK);
    int n = at ? snprintf(out, bytes, "%.*s%lld%s", (int)(at - name), name, (long long)expert, at + strlen(MARK)) : snprintf(out, bytes, "%s", name);
    return n >= 0 && (size_t)n < bytes;
}

bool cdr__ckpt_has(const cdr_ckpt *ck, const cdr_model *m, int64_t i_param)
{
    char name[1000];
    return name_of(cdr_model_param(m, i_param), 0, name, sizeof name) && find(ck, name);
}

/* Rows of the first axis of one tensor there. */
static cdr_status read_tensor(cdr_ckpt *ck, const char *name, int64_t first, int64_t n, int64_t cols, float *dst, cdr_err *err)
{
    const cdr_ckpt_tensor *x = find(ck, name);
    if (!x)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.frozen", "%s: holds no %s: the run trained only a part of its model. Name its base (--base DIR), or of an adapter take "
                    "cadre merge", cdr_ckpt_dir(ck), name);
    char *raw = cdr_alloc((size_t)cdr_dtype_bytes(x->dtype, n * cols) + 8);
    cdr_status st = cdr_ckpt_read(ck, name, x->cls, x->dtype, first, n, raw, err);
    if (st == CDR_OK) cdr_to_f32(x->dtype, raw, dst, n * cols);
    cdr_free(raw);
    return st;
}

cdr_status cdr__run_rows(cdr_ckpt *ck, const cdr_model *m, int64_t i_param, int64_t first, int64_t n, float *dst, cdr_err *err)
{
    const cdr_model_part p = cdr_model_param_part(m, i_param);
    const char *param = cdr_model_param(m, i_param);
    const int64_t cols = p.n[p.n_dim - 1], per = p.n_dim == 3 ? p.n[1] : 1;
    char name[1000];
    if (!name_of(param, 0, name, sizeof name)) CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%.200s...: a name of more than 990 bytes", param);
    if (p.n_dim == 1) return read_tensor(ck, name, 0, cols, 1, dst, err);
    if (p.n_dim == 2) return read_tensor(ck, name, first, n, cols, dst, err);
    for (int64_t k; n > 0; first += k, n -= k, dst += k * cols) {         /* matrix by matrix */
        k = CDR_MIN(n, per - first % per);
        (void)name_of(param, first / per, name, sizeof name);
        if (strstr(param, MARK)) CDR_TRY(read_tensor(ck, name, first % per, k, cols, dst, err));
        else {                                                             /* one tensor of three axes, cut along its first */
            CDR_CHECK(first % per == 0 && k == per);
            CDR_TRY(read_tensor(ck, name, first / per, 1, per * cols, dst, err));
        }
    }
    return CDR_OK;
}

static cdr_status rows(void *ctx, int64_t i, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    job *j = ctx;
    const cdr_model_part p = cdr_model_param_part(j->model, i);
    const int64_t cols = p.n[p.n_dim - 1];
    float *x = cdr_alloc(sizeof *x * (size_t)(n * cols + 1));
    cdr_status st = cdr__run_rows(j->ck, j->model, i, first, n, x, err);
    if (st == CDR_OK && dtype == CDR_MXFP4) st = cdr_weights_repack(j->w, i, first, n, x, dst, err);
    else if (st == CDR_OK) cdr_from_f32(dtype, x, dst, n * cols);
    cdr_free(x);
    return st;
}

/* ---- the command ---------------------------------------------------------------------------------------------------------------- */
cdr_status cdr__experts_word(const char *word, int *experts, cdr_err *err)
{
    static const struct { const char *word; int experts; } FORMS[] = { { "bf16", CDR_BF16 }, { "mxfp4", CDR_MXFP4 }, { "fp8", CDR_F8_E4M3 } };
    *experts = -1;
    if (!word) return CDR_OK;
    for (int i = 0; i < CDR_COUNT(FORMS); i++) if (strcmp(word, FORMS[i].word) == 0) *experts = FORMS[i].experts;
    if (*experts < 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--experts %s: one of bf16, mxfp4, fp8", word);
    return CDR_OK;
}

cdr_status cdr__shard_size(const char *word, int64_t *bytes, cdr_err *err)
{
    *bytes = 0;
    if (word && (!cdr_parse_bytes(word, bytes) || *bytes <= 0)) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--shard-size %s: a size, as 100MB or 4GiB", word);
    return CDR_OK;
}

static bool is_directory_of_weights(cdr_pool *pool, const char *path)
{
    return cdr_exists(cdr_pool_printf(pool, "%s/config.json", path)) && !cdr_exists(cdr_pool_printf(pool, "%s/checkpoints", path));
}

static cdr_status load_model(job *j, const char *path, cdr_err *err)
{
    cdr_model_spec spec = { .path = path };
    CDR_TRY(cdr_model_load(&spec, j->pool, &j->model, err));
    if (!cdr_model_dir(j->model)) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.no-weights", "%s: holds no safetensors weights. Name a directory that does", path);
    CDR_TRY(cdr_hf_open(cdr_model_dir(j->model), &j->hf, err));
    return cdr_weights_open(j->model, j->hf, &j->w, err);
}

static cdr_status open_run(job *j, cdr_err *err)
{
    CDR_TRY(cdr__model_there(j->a->source, err));
    CDR_TRY(cdr_ckpt_open(j->a->source, &j->ck, err));
    CDR_TRY(cdr__recipe_of_ckpt(j->ck, &j->a->common, j->pool, &j->r, err));
    if (j->r.lora.on)
        CDR_FAIL_ID(err, CDR_EUSER, "export.adapter", "%s: trained an adapter, not its model. Export the adapter (--format peft, sglang, ...), or fold it in: "
                    "cadre merge BASE %s --out DIR", j->a->source, j->a->source);
    return CDR_OK;
}

/* A run that trained a part belongs to the base that it names by hash: what it left alone is taken from there. */
static cdr_status same_base(job *j, const char *base, cdr_err *err)
{
    char folder[1200], is[32];
    uint64_t hash;
    const char *was = cdr_json_str(cdr_json_get(cdr_json_get(cdr_ckpt_manifest(j->ck), "base"), "hash"), NULL);
    if (!was) return CDR_OK;
    CDR_TRY(cdr_weights_hash(j->w, cdr__cache_path(folder, sizeof folder, "") ? folder : NULL, &hash, err));
    (void)snprintf(is, sizeof is, "%016llx", (unsigned long long)hash);
    if (strcmp(was, is) == 0) return CDR_OK;
    CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.other-base", "%s: was not trained on the weights of %s (hash %s) but on others (hash %s), and what it left "
                "untrained would be another's. Name its own base (--base DIR)", j->a->source, base, is, was);
}

/* What the checkpoint holds was trained. */
static void find_touched(job *j)
{
    const int64_t n = cdr_model_params(j->model);
    j->touched = cdr_pool_alloc(j->pool, (size_t)n + 1);
    for (int64_t i = 0; i < n && j->ck; i++) {
        j->touched[i] = cdr__ckpt_has(j->ck, j->model, i);
        j->n_touched += j->touched[i];
    }
}

void cdr__left_text(const cdr_weights_out_stat *stat, const char *source, cdr_text *t)
{
    enum { SHOWN = 8 };
    char bytes[32];
    if (stat->n_left == 0) return;
    cdr_format_bytes(bytes, stat->left_bytes);
    cdr_text_printf(t, "left out  %lld file%s of %s that no loader asks for, %s:", (long long)stat->n_left, stat->n_left == 1 ? "" : "s", source, bytes);
    for (int64_t i = 0; i < stat->n_left && i < SHOWN; i++) cdr_text_printf(t, "%s %s", i ? "," : "", stat->left[i]);
    if (stat->n_left > SHOWN) cdr_text_printf(t, " and %lld more", (long long)(stat->n_left - SHOWN));
    cdr_text_printf(t, "\n");
}

void cdr__left_json(const cdr_weights_out_stat *stat, cdr_jw *w)
{
    cdr_jw_begin(w, "left_out", '[');
    for (int64_t i = 0; i < stat->n_left; i++) cdr_jw_str(w, NULL, stat->left[i]);
    cdr_jw_end(w, ']');
}

static void say(const job *j, const cdr_weights_out_stat *stat, cdr_result *r)
{
    cdr_text text = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    char n[32], c[32], bytes[32], packed[100] = "";
    cdr_format_count(n, stat->tensors);
    cdr_format_count(c, stat->copied);
    cdr_format_bytes(bytes, stat->bytes);
    if (stat->pack_error > 0) (void)snprintf(packed, sizeof packed, "; experts packed to MXFP4 (mean relative error %.3f)", stat->pack_error);
    cdr_text_printf(&text, "weights   %s, %s tensors, %s of them copied byte for byte, %lld shard%s, %s%s -> %s\n", cdr_model_get_info(j->model)->family, n, c,
                    (long long)stat->shards, stat->shards == 1 ? "" : "s", bytes, packed, j->a->out);
    cdr__left_text(stat, cdr_hf_dir(j->hf), &text);
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "path", j->a->out);
    cdr_jw_str(&w, "format", "hf");
    cdr_jw_str(&w, "family", cdr_model_get_info(j->model)->family);
    cdr_jw_int(&w, "tensors", stat->tensors);
    cdr_jw_int(&w, "copied", stat->copied);
    cdr_jw_int(&w, "shards", stat->shards);
    cdr_jw_int(&w, "size_bytes", stat->bytes);
    cdr_jw_real(&w, "pack_error", stat->pack_error);
    cdr__left_json(stat, &w);
    cdr_jw_end(&w, '}');
    r->text = text.s;
    r->json = json.s;
}

static cdr_status export_in(job *j, cdr_result *r, cdr_err *err)
{
    int experts;
    CDR_TRY(cdr__experts_word(j->a->experts, &experts, err));
    if (is_directory_of_weights(j->pool, j->a->source)) {
        if (j->a->base) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--base: %s is a directory of weights, which has no base", j->a->source);
        CDR_TRY(load_model(j, j->a->source, err));
    } else {
        CDR_TRY(open_run(j, err));
        cdr_model_spec spec = cdr__model_spec(&j->r);
        CDR_TRY(cdr_model_load(&spec, j->pool, &j->model, err));
        uint64_t trained = cdr_model_get_info(j->model)->hash;
        const char *base = j->a->base ? j->a->base : cdr_model_dir(j->model);
        if (!base) {
            cdr_toy_args t = { .common = j->a->common, .from = j->a->source, .out = j->a->out, .experts = j->a->experts };
            return cdr__export_run(&t, r, err);
        }
        CDR_TRY(load_model(j, base, err));
        if (cdr_model_get_info(j->model)->hash != trained || cdr_ckpt_description_hash(j->ck) != trained)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.other-model", "%s: was trained from another model than %s holds. Name its own base", j->a->source, base);
        CDR_TRY(same_base(j, base, err));
    }
    find_touched(j);
    cdr_weights_out o = { .model = j->model, .source = j->hf, .touched = j->touched, .rows = rows, .ctx = j, .experts = experts, .pool = j->pool };
    cdr_weights_out_stat stat = { 0 };
    CDR_TRY(cdr_weights_write(j->a->out, &o, &stat, err));
    say(j, &stat, r);
    return CDR_OK;
}

cdr_status cdr__export_hf(const cdr_export_args *a, cdr_result *r, cdr_err *err)
{
    job j = { .a = a, .pool = cdr_pool_new() };
    cdr_status st = export_in(&j, r, err);
    cdr_weights_close(j.w);
    cdr_hf_close(j.hf);
    if (j.ck) cdr_ckpt_close(j.ck);
    cdr_pool_free(j.pool);
    return st;
}
