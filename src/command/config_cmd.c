/* config_cmd.c: recipes explained: show, schema, list, migrate. */
#include "recipe/recipe.h"
#include <stdlib.h>

static char *copy(const char *s) { return strdup(s); }

static void notes_as_warnings(const cdr_recipe *r, cdr_result *out)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    cdr_jw_begin(&w, NULL, '[');
    for (int i = 0; i < r->n_notes; i++) {
        cdr_jw_str(&w, NULL, r->notes[i]);
        cdr_log(CDR_LOG_INFO, "%s", r->notes[i]);
    }
    cdr_jw_end(&w, ']');
    out->warnings = t.s;
}

static cdr_status show(const cdr_config_args *a, cdr_pool *pool, cdr_result *out, cdr_err *err)
{
    cdr_recipe r;
    CDR_TRY(cdr_recipe_load(a->arg, &a->common, pool, &r, err));
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    cdr_jw_begin(&w, NULL, '{');
    cdr_recipe_json(&r, &w, a->changed);
    cdr_jw_end(&w, '}');
    out->json = t.s;
    out->text = copy(cdr_recipe_show(&r, a->changed, pool));
    notes_as_warnings(&r, out);
    return CDR_OK;
}

static cdr_status schema(const cdr_config_args *a, cdr_pool *pool, cdr_result *out, cdr_err *err)
{
    char *json = cdr_schema_json(a->arg, pool, err);
    if (!json) return CDR_EUSER;
    out->json = copy(json);
    out->text = a->arg ? copy(cdr_schema_explain(a->arg, pool, err)) : copy(cdr_pool_printf(pool, "%s\n", json));
    return CDR_OK;
}

static cdr_status list(cdr_pool *pool, cdr_result *out)
{
    static const struct { const char *kind, *label; } kinds[] = { { "configs", "recipes" }, { "models", "models" }, { "machines", "machines" } };
    cdr_text t = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    cdr_jw_begin(&w, NULL, '{');
    for (int k = 0; k < CDR_COUNT(kinds); k++) {
        int n;
        const char *const *names = cdr_builtin_names(kinds[k].kind, pool, &n);
        cdr_jw_begin(&w, kinds[k].label, '[');
        cdr_text_printf(&t, "%-9s", kinds[k].label);
        for (int i = 0; i < n; i++) {
            cdr_text_printf(&t, " %s", names[i]);
            cdr_jw_str(&w, NULL, names[i]);
        }
        cdr_text_append(&t, "\n", 1);
        cdr_jw_end(&w, ']');
    }
    cdr_jw_end(&w, '}');
    out->text = t.s;
    out->json = json.s;
    return CDR_OK;
}

/* There is one format so far: a recipe of version 1 is checked and written back as it is. */
static cdr_status migrate(const cdr_config_args *a, cdr_pool *pool, cdr_result *out, cdr_err *err)
{
    cdr_recipe r;
    const char *from = a->from ? a->from : "cadre";
    if (strcmp(from, "axolotl") == 0 || strcmp(from, "llamafactory") == 0)
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.reserved", "cadre config migrate --from %s: reserved: not in this version", from);
    if (strcmp(from, "cadre") != 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--from: %s is none of cadre, axolotl, llamafactory", from);
    CDR_TRY(cdr_recipe_load(a->arg, &a->common, pool, &r, err));
    if (a->out) CDR_TRY(cdr_file_write(a->out, r.source, r.source_bytes, err));
    cdr_text t = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_int(&w, "version", r.version);
    cdr_jw_bool(&w, "changed", false);
    cdr_jw_str(&w, "path", a->out);
    cdr_jw_end(&w, '}');
    if (a->out) cdr_text_printf(&t, "%s is of version %lld, the newest: written to %s unchanged\n", r.where, (long long)r.version, a->out);
    else cdr_text_append(&t, r.source, r.source_bytes);
    out->json = json.s;
    out->text = t.s;
    return CDR_OK;
}

cdr_status cdr_config(const cdr_config_args *a, cdr_result *out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_status st;
    bool needs = strcmp(a->verb, "show") == 0 || strcmp(a->verb, "migrate") == 0;
    if (needs && !a->arg) st = cdr_fail(err, CDR_EUSAGE, "usage.argument", "config %s: a recipe is missing", a->verb);
    else if (strcmp(a->verb, "show") == 0) st = show(a, pool, out, err);
    else if (strcmp(a->verb, "schema") == 0) st = schema(a, pool, out, err);
    else if (strcmp(a->verb, "list") == 0) st = list(pool, out);
    else if (strcmp(a->verb, "migrate") == 0) st = migrate(a, pool, out, err);
    else st = cdr_fail(err, CDR_EUSAGE, "usage.command", "config %s: unknown; show, schema, list and migrate are there", a->verb);
    cdr_pool_free(pool);
    return st;
}
