/* inspect_cmd.c: inspect: which kind of thing a path is, and the first lines about it. A directory is told by what lies in it, a file by its
 * name and first bytes; nothing is read but headers, manifests and first records.
 */
#include "command/inspect.h"
#include "models/models.h"
#include "recipe/recipe.h"
#include "adapter/adapter.h"
#include "train/adapter.h"
#include "command/model_open.h"
#include "train/session.h"

typedef struct { cdr_text text, json; cdr_jw w; cdr_pool *pool; cdr__inspect_opts o; } look;

static bool holds(const look *k, const char *name) { return cdr_exists(cdr_pool_printf(k->pool, "%s/%s", k->o.path, name)); }

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && strcmp(s + n - m, with) == 0;
}

/* ---- runs and their checkpoints --------------------------------------------------------------------------------------------------- */

static void count_classes(look *k, const cdr_ckpt *ck)
{
    static const char *const classes[] = { "weight", "adapter", "bias", "master", "m", "v", "momentum" };
    const char *sep = ": ";
    char n[32];
    cdr_jw_begin(&k->w, "classes", '{');
    for (int c = 0; c < CDR_COUNT(classes); c++) {
        int64_t count = 0;
        for (int64_t i = 0; i < cdr_ckpt_count(ck); i++) count += strcmp(cdr_ckpt_at(ck, i)->cls, classes[c]) == 0;
        if (count == 0) continue;
        cdr_format_count(n, count);
        cdr_text_printf(&k->text, "%s%s %s", sep, n, classes[c]);
        cdr_jw_int(&k->w, classes[c], count);
        sep = ", ";
    }
    cdr_jw_end(&k->w, '}');
}

static cdr_status list_ckpt(look *k, const cdr_ckpt *ck, cdr_err *err)
{
    int64_t n = 0;
    cdr_jw_begin(&k->w, "listed", '[');
    for (int64_t i = 0; i < cdr_ckpt_count(ck); i++) {
        const cdr_ckpt_tensor *t = cdr_ckpt_at(ck, i);
        cdr_st_tensor line = { .name = t->key, .format = cdr_st_format_of(t->dtype), .n_dim = t->n_dim };
        size_t elems = 1;
        if (line.format < 0 || !cdr__name_fits(k->o.tensors, t->key)) continue;
        for (int a = 0; a < t->n_dim; a++) elems *= (size_t)(line.n[a] = t->n[a]);
        line.end = elems * (size_t)cdr_st_format_row(line.format)->bits / 8;
        cdr__tensor_line(&line, t->cls, &k->text, &k->w);
        n++;
    }
    cdr_jw_end(&k->w, ']');
    if (n == 0) CDR_FAIL_ID(err, CDR_EUSER, "inspect.no-match", "--tensors: \"%s\" matches no tensor of %s", k->o.tensors, k->o.path);
    return CDR_OK;
}

static cdr_status inspect_run(look *k, cdr_err *err)
{
    cdr_ckpt *ck;
    char n[32];
    CDR_TRY(cdr_ckpt_open(k->o.path, &ck, err));
    cdr_recipe r;
    cdr_status st = cdr__recipe_of_ckpt(ck, NULL, k->pool, &r, err);
    if (st == CDR_OK) {
        bool run = cdr_is_dir(cdr_pool_printf(k->pool, "%s/checkpoints", k->o.path));
        cdr_format_count(n, cdr_ckpt_step(ck));
        cdr_text_printf(&k->text, "%s of %s (%s), step %s", run ? "run" : "checkpoint", r.name, r.lora.on ? "LoRA" : "full weights", n);
        cdr_jw_begin(&k->w, NULL, '{');
        cdr_jw_str(&k->w, "kind", run ? "run" : "run_checkpoint");
        cdr_jw_str(&k->w, "name", r.name);
        cdr_jw_int(&k->w, "step", cdr_ckpt_step(ck));
        cdr_jw_str(&k->w, "model", r.model.path);
        cdr_jw_bool(&k->w, "lora", r.lora.on);
        count_classes(k, ck);
        cdr_text_printf(&k->text, "\nmodel %s; newest checkpoint %s\n", r.model.path, cdr_ckpt_dir(ck));
        if (k->o.tensors) st = list_ckpt(k, ck, err);
        if (st == CDR_OK) cdr_jw_end(&k->w, '}');
    }
    cdr_ckpt_close(ck);
    return st;
}

/* ---- single files ------------------------------------------------------------------------------------------------------------------- */

static cdr_status inspect_file(look *k, cdr_err *err)
{
    cdr_st *st;
    CDR_TRY(cdr_st_open(k->o.path, &st, err));
    cdr__format_count count[CDR__NAMES_FORMATS] = { { 0 } };
    int64_t n = cdr_st_count(st), bytes = 0, lora = 0, listed = 0;
    char s[32], b[32];
    for (int64_t i = 0; i < n; i++) {
        const cdr_st_tensor *t = cdr_st_at(st, i);
        count[t->format].tensors++;
        bytes += (int64_t)(t->end - t->begin);
        lora += strstr(t->name, ".lora_A.") != NULL;
    }
    cdr_format_count(s, n);
    cdr_format_bytes(b, bytes);
    cdr_text_printf(&k->text, "safetensors file%s: %s tensors, %s", lora ? " of an adapter" : "", s, b);
    cdr_jw_begin(&k->w, NULL, '{');
    cdr_jw_str(&k->w, "kind", "safetensors");
    cdr_jw_int(&k->w, "tensors", n);
    cdr_jw_int(&k->w, "size_bytes", bytes);
    cdr_jw_begin(&k->w, "dtypes", '{');
    const char *sep = ": ";
    for (int i = 0; i < CDR__NAMES_FORMATS; i++) {
        if (count[i].tensors == 0) continue;
        cdr_format_count(s, count[i].tensors);
        cdr_text_printf(&k->text, "%s%s %s", sep, s, cdr_st_format_row(i)->name);
        cdr_jw_int(&k->w, cdr_st_format_row(i)->name, count[i].tensors);
        sep = ", ";
    }
    cdr_jw_end(&k->w, '}');
    cdr_text_printf(&k->text, "\n");
    cdr_jw_begin(&k->w, "metadata", '{');
    for (int64_t i = 0; i < cdr_st_meta_count(st); i++) {
        const char *key = cdr_st_meta_key(st, i);
        cdr_jw_str(&k->w, key, cdr_st_meta(st, key));
        if (i < 16) cdr_text_printf(&k->text, "%.60s: %.200s\n", key, cdr_st_meta(st, key));
    }
    cdr_jw_end(&k->w, '}');
    cdr_jw_begin(&k->w, "listed", '[');
    for (int64_t i = 0; k->o.tensors && i < n; i++) {
        if (!cdr__name_fits(k->o.tensors, cdr_st_at(st, i)->name)) continue;
        cdr__tensor_line(cdr_st_at(st, i), NULL, &k->text, &k->w);
        listed++;
    }
    cdr_jw_end(&k->w, ']');
    cdr_jw_end(&k->w, '}');
    cdr_st_close(st);
    if (k->o.tensors && listed == 0) CDR_FAIL_ID(err, CDR_EUSER, "inspect.no-match", "--tensors: \"%s\" matches none of the %lld tensors of %s", k->o.tensors,
        (long long)n, k->o.path);
    return CDR_OK;
}

static cdr_status inspect_description(look *k, cdr_err *err)
{
    cdr_model_spec spec = { .path = k->o.path };
    cdr_model *m;
    CDR_TRY(cdr_model_load(&spec, k->pool, &m, err));
    const cdr_model_info *f = cdr_model_get_info(m);
    cdr_jw_begin(&k->w, NULL, '{');
    cdr_jw_str(&k->w, "kind", "description");
    cdr_jw_str(&k->w, "name", f->name);
    cdr_jw_str(&k->w, "family", f->family);
    cdr_jw_int(&k->w, "parameters", f->n_params);
    cdr_jw_int(&k->w, "active_parameters", f->n_active);
    cdr_text config = { 0 };
    cdr_status st = k->o.config ? cdr_model_config(m, -1, &config, err) : CDR_OK;
    if (k->o.config && st == CDR_OK) cdr_jw_str(&k->w, "config_json", cdr_pool_strndup(k->pool, config.s, config.n));
    if (k->o.config && st == CDR_OK) cdr_text_append(&k->text, config.s, config.n);
    else cdr_text_printf(&k->text, "model description, family %s\n%s\n", f->family, cdr_model_summary(m, k->pool));
    cdr_text_free(&config);
    cdr_jw_end(&k->w, '}');
    return st;
}

/* A recipe has a section that no description has. */
static cdr_status inspect_yaml(look *k, cdr_err *err)
{
    char *data;
    size_t bytes;
    cdr_yaml *root;
    CDR_TRY(cdr_file_read(k->o.path, 1 << 20, &data, &bytes, err));
    cdr_status st = cdr_yaml_parse(k->pool, data, bytes, k->o.path, &root, err);
    cdr_free(data);
    CDR_TRY(st);
    if (cdr_yaml_get(root, "machine") && cdr_yaml_get(root, "tiers"))
        CDR_FAIL_ID(err, CDR_EUSER, "inspect.unknown", "%s: a machine file; cadre plan RECIPE --machine %s reads it", k->o.path, k->o.path);
    if (!cdr_yaml_get(root, "data") && (cdr_yaml_get(root, "extends") || cdr_yaml_get(root, "blocks"))) return inspect_description(k, err);
    CDR_FAIL_ID(err, CDR_EUSER, "inspect.unknown", "%s: a recipe, or no file of ours; cadre config show %s says what it resolves to", k->o.path, k->o.path);
}

/* A directory with a tokenizer alone, tokenizer.json, tiktoken.model. */
static cdr_status inspect_tokenizer(look *k, bool *is, cdr_err *err)
{
    cdr_text line = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "kind", "tokenizer");
    cdr_status st = cdr__inspect_tokenizer(k->o.path, is, &line, &w, err);
    cdr_jw_end(&w, '}');
    if (st == CDR_OK && *is) {
        cdr_text_printf(&k->text, "%s\n", line.s);
        cdr_text_append(&k->json, json.s, json.n);
    }
    cdr_text_free(&line);
    cdr_text_free(&json);
    return st;
}

static cdr_status dispatch(look *k, cdr_err *err)
{
    const char *p = k->o.path;
    bool is = false;
    if (!cdr_exists(p)) {
        if (cdr_builtin("models", p)) return inspect_description(k, err);
        CDR_FAIL_ID(err, CDR_EUSER, "inspect.missing", "%s: there is no such file or directory, and no built-in model of that name. Check the path; cadre "
                    "config list prints the built-in names", p);
    }
    CDR_TRY(cdr__readable(p, err));
    if (cdr_is_dir(p)) {
        if (cdr_lora_is_dir(p)) return cdr__inspect_adapter(p, &k->text, &k->w, err);
        if (holds(k, "manifest.json") || holds(k, "checkpoints")) return inspect_run(k, err);
        if (holds(k, "config.json") || holds(k, "model.safetensors.index.json") || holds(k, "model.safetensors"))
            return cdr__inspect_checkpoint(&k->o, &k->text, &k->w, err);
        CDR_TRY(inspect_tokenizer(k, &is, err));
        if (is || cdr__inspect_data(p, &k->text, &k->w)) return CDR_OK;
        CDR_FAIL_ID(err, CDR_EUSER, "inspect.unknown", "%s: a directory without config.json, *.safetensors, manifest.json, checkpoints/, a tokenizer or token shards: "
                    "nothing that cadre knows. Name a checkpoint, a run, an adapter or a data file", p);
    }
    if (ends(p, ".safetensors")) return inspect_file(k, err);
    if (ends(p, ".yaml")) return inspect_yaml(k, err);
    if (ends(p, "tokenizer.json") || ends(p, ".model") || ends(p, ".tiktoken")) CDR_TRY(inspect_tokenizer(k, &is, err));
    if (is || cdr__inspect_data(p, &k->text, &k->w)) return CDR_OK;
    if (ends(p, ".json")) {
        bool tokenizer;
        CDR_TRY(cdr__inspect_json(&k->o, &is, &tokenizer, &k->text, &k->w, err));
        if (tokenizer) CDR_TRY(inspect_tokenizer(k, &is, err));
        if (is) return CDR_OK;
    }
    CDR_FAIL_ID(err, CDR_EUSER, "inspect.unknown", "%s: nothing that cadre knows: neither a directory, .safetensors, .yaml, a tokenizer, a data file nor a .json of "
                "a checkpoint. Name the directory that it belongs to", p);
}

cdr_status cdr_inspect(const cdr_inspect_args *a, cdr_result *r, cdr_err *err)
{
    look k = { .pool = cdr_pool_new(), .o = { a->path, a->tensors, a->config } };
    k.w.t = &k.json;
    cdr_status st = dispatch(&k, err);
    if (st == CDR_OK) {
        r->text = k.text.s;
        r->json = k.json.s;
    } else {
        cdr_text_free(&k.text);
        cdr_text_free(&k.json);
    }
    cdr_pool_free(k.pool);
    return st;
}
