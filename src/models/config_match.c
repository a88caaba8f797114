/* config_match.c: which description a directory means, and the model of it. A description of the folder models/ says by its own `match`
 * (not one that it inherits) which architectures and model_type of a config.json it reads: an architecture that is named wins over a
 * model_type; both over one. A model.yaml in the directory comes before all of them. Source: spec/interface.md, 3.6, 4.1.
 */
#include "models/config_parts.h"
#include "models/model_parts.h"

static bool among(const cdr_yaml *list, const char *word)
{
    for (int i = 0; list && word && i < list->n; i++)
        if (list->items[i].kind == CDR_YAML_SCALAR && strcmp(list->items[i].text, word) == 0) return true;
    return false;
}

/* 2: an architecture is named, 1: the model type. What text_config says of itself is another model's. */
static int score_of(const cdr_yaml *match, const cdr_json *config)
{
    const cdr_json *arch = cdr_json_get(config, "architectures");
    const cdr_yaml *a = cdr_yaml_get(match, "architectures"), *t = cdr_yaml_get(match, "model_type");
    int score = among(t, cdr_json_str(cdr_json_get(config, "model_type"), NULL)) ? 1 : 0;
    for (int64_t i = 0; i < cdr_json_count(arch); i++)
        if (among(a, cdr_json_str(cdr_json_at(arch, i), NULL))) return score + 2;
    return score;
}

/* The file's own match; NULL: none, or it does not parse. */
static const cdr_yaml *own_match(cdr_pool *pool, const char *name, const char *text)
{
    cdr_yaml *root;
    cdr_err err = { 0 };
    if (cdr_yaml_parse(pool, text, strlen(text), name, &root, &err) || root->kind != CDR_YAML_MAP) return NULL;
    const cdr_yaml *m = cdr_yaml_get(root, "match");
    return m && m->kind == CDR_YAML_MAP ? m : NULL;
}

static const char *words_of(cdr_pool *pool, const cdr_json *config)
{
    const cdr_json *arch = cdr_json_get(config, "architectures");
    const char *s = "";
    for (int64_t i = 0; i < CDR_MIN(cdr_json_count(arch), 4); i++)
        s = cdr_pool_printf(pool, "%s%s%.80s", s, i ? ", " : "", cdr_json_str(cdr_json_at(arch, i), "?"));
    return cdr_pool_printf(pool, "architectures [%s], model_type %.80s", s, cdr_json_str(cdr_json_get(config, "model_type"), "absent"));
}

/* The built-in description most of whose keys the file has. */
static const char *nearest(const cdr__source *s, const char *const *names, int n, cdr_pool *pool, cdr__fit *best)
{
    const char *name = NULL;
    double most = -1;
    for (int i = 0; i < n; i++) {
        const char *text = cdr_builtin("models", names[i]);
        cdr_model_spec spec = { .path = names[i] };
        cdr__input in = { .text = text, .where = names[i] };
        cdr__desc d;
        cdr_err err = { 0 };
        in.bytes = text ? strlen(text) : 0;
        if (!own_match(pool, names[i], text) || cdr__desc_read(&spec, &in, pool, &d, &err)) continue;
        cdr__fit f = cdr__config_fit(&d, s);
        int unknown;
        cdr__config_unknown(&d, s, 0, &unknown);
        double score = (f.there - 0.5 * unknown) / CDR_MAX(f.needed, 1);
        if (score > most) {
            most = score;
            name = names[i];
            *best = f;
        }
    }
    return name;
}

cdr_status cdr_model_match_config(const cdr_json *config, cdr_pool *pool, cdr_model_match *match, cdr_err *err)
{
    int n, best = 0, ties = 0;
    const char *const *names = cdr_builtin_names("models", pool, &n);
    *match = (cdr_model_match){ 0 };
    for (int i = 0; i < n; i++) {
        const cdr_yaml *m = own_match(pool, names[i], cdr_builtin("models", names[i]));
        int score = m ? score_of(m, config) : 0;
        if (score == 0 || score < best) continue;
        ties = score == best ? ties + 1 : 0;
        best = score;
        match->nearest = ties ? match->name : NULL;
        match->name = names[i];
        match->by = score >= 2 ? "architectures" : "model_type";
    }
    if (match->name && ties == 0) return CDR_OK;
    if (ties) CDR_FAIL_ID(err, CDR_EUSER, "model.ambiguous", "config.json: %s: both %s and %s match", words_of(pool, config), match->nearest, match->name);
    cdr__source s = { .root = config, .text = cdr_json_get(config, "text_config") };
    cdr__fit f = { .lacks = "" };
    if (s.text && cdr_json_type(s.text) != CDR_JSON_OBJECT) s.text = NULL;
    match->nearest = nearest(&s, names, n, pool, &f);
    CDR_FAIL_ID(err, CDR_EUSER, "model.unknown-family", "config.json: %s: no description matches. Nearest: %s, %d of whose %d keys are there%s%s. Write a model.yaml "
        "(extends: %s) "
                "into the directory; cadre onboard lists what differs", words_of(pool, config), match->nearest, f.there, f.needed, *f.lacks ? "; it lacks " : "", f.lacks,
                match->nearest);
}

static cdr_status load_dir(const cdr_model_spec *spec, cdr_pool *pool, cdr_model **m, cdr_err *err)
{
    cdr__input in = { 0 };
    cdr_model_match match = { 0 };
    CDR_TRY(cdr__source_open(spec->path, pool, &in.src, err));
    const char *own = cdr_pool_printf(pool, "%s/model.yaml", in.src->dir);
    bool has_own = cdr_exists(own);
    if (!has_own) CDR_TRY(cdr_model_match_config(in.src->root, pool, &match, err));
    CDR_TRY(cdr_builtin_or_file("models", has_own ? own : match.name, pool, &in.text, &in.bytes, &in.where, err));
    return cdr__model_build(spec, &in, pool, m, err);
}

cdr_status cdr_model_load(const cdr_model_spec *s, cdr_pool *pool, cdr_model **m, cdr_err *err)
{
    cdr__input in = { 0 };
    if (cdr_is_dir(s->path)) return load_dir(s, pool, m, err);
    CDR_TRY(cdr_builtin_or_file("models", s->path, pool, &in.text, &in.bytes, &in.where, err));
    return cdr__model_build(s, &in, pool, m, err);
}

cdr_status cdr_model_parse(const cdr_model_spec *s, const char *text, size_t bytes, const char *where, cdr_pool *pool, cdr_model **m, cdr_err *err)
{
    cdr__input in = { .text = text, .bytes = bytes, .where = where };
    return cdr__model_build(s, &in, pool, m, err);
}
