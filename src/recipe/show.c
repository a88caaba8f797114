/* show.c: a recipe as text: values with their origins, the resolved YAML of a run directory, and JSON.
 *
 * The resolved recipe reads back by the same parser; `# why` behind a value says where it comes from.
 */
#include "recipe/recipe.h"

char *cdr_recipe_value(const cdr_recipe *r, int row, cdr_pool *pool)
{
    int n;
    cdr_text t = { 0 };
    cdr__value_print(&t, r, &cdr_recipe_schema(&n)[row]);
    char *s = cdr_pool_strndup(pool, t.s ? t.s : "", t.n);
    cdr_text_free(&t);
    return s;
}

char *cdr_recipe_from(const cdr_recipe *r, int row, cdr_pool *pool)
{
    const cdr_origin *o = &r->origin[row];
    switch ((cdr_from)o->from) {
    case CDR_FROM_FILE:
        return cdr_pool_printf(pool, "recipe %s:%d%s%s%s", r->where, o->line, o->alias ? " (" : "", o->alias ? o->alias : "", o->alias ? ")" : "");
    case CDR_FROM_SET:
        return cdr_pool_printf(pool, "%s", strncmp(o->flag, "--set", 5) == 0 ? "--set" : o->flag);
    case CDR_FROM_DERIVED:                      /* "auto: 16 micro-batches", but "train.steps is given (was 1)" */
        if (cdr__word_in("auto|none", o->was, strlen(o->was), NULL)) return cdr_pool_printf(pool, "%s: %s", o->was, o->why);
        return cdr_pool_printf(pool, "%s (was %s)", o->why, o->was);
    case CDR_FROM_DEFAULT:
        break;
    }
    return cdr_pool_printf(pool, "default");
}

/* Differs from what an empty recipe would give. */
static bool is_changed(const cdr_recipe *r, int row, const char *value)
{
    int n;
    const cdr_key *k = &cdr_recipe_schema(&n)[row];
    const cdr_origin *o = &r->origin[row];
    if (o->from == CDR_FROM_DERIVED || o->from == CDR_FROM_DEFAULT) return false;
    return !k->def || strcmp(k->def, value) != 0;
}

/* What follows from keys that are given, as far as they say it: ranks may be known only when they run. */
static void derived(const cdr_recipe *r, cdr_text *t)
{
    const int64_t rep = r->parallel.replicate, devices = r->machine.devices, micro = r->train.micro_batch_tokens;
    int64_t shard = r->parallel.shard > 0 ? r->parallel.shard : devices > 0 && devices % rep == 0 ? devices / rep : 0;
    if (shard == 0) return;
    cdr_text_printf(t, "derived   %lld data ranks", (long long)(rep * shard));
    if (r->train.global_batch_tokens > 0 && r->train.global_batch_tokens / micro % (rep * shard) == 0)
        cdr_text_printf(t, ", %lld accumulation steps", (long long)(r->train.global_batch_tokens / micro / (rep * shard)));
    if (shard * r->parallel.context % r->parallel.expert == 0)
        cdr_text_printf(t, ", efsdp %lld = shard %lld x context %lld / expert %lld", (long long)(shard * r->parallel.context / r->parallel.expert), (long long)shard,
                        (long long)r->parallel.context, (long long)r->parallel.expert);
    cdr_text_printf(t, "\n");
}

char *cdr_recipe_show(const cdr_recipe *r, bool changed, cdr_pool *pool)
{
    int n, width = 0, value_width = 0;
    const cdr_key *k = cdr_recipe_schema(&n);
    cdr_text t = { 0 };
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            char *v = cdr_recipe_value(r, i, pool);
            if (changed && !is_changed(r, i, v)) continue;
            if (pass == 0) {
                int len = (int)strlen(v);
                width = CDR_MAX(width, (int)strlen(k[i].key));
                if (len <= 40) value_width = CDR_MAX(value_width, len);
            } else {
                cdr_text_printf(&t, "%-*s  %-*s  %s\n", width, k[i].key, value_width, v, cdr_recipe_from(r, i, pool));
            }
        }
    derived(r, &t);
    char *s = cdr_pool_strndup(pool, t.s ? t.s : "", t.n);
    cdr_text_free(&t);
    return s;
}

/* Opens the sections that key needs and that prev did not have; returns the key's own name. */
static const char *sections(cdr_text *t, const char *prev, const char *key, int *depth)
{
    const char *p = key, *q = prev;
    bool same = true;
    *depth = 0;
    for (const char *dot; (dot = strchr(p, '.')); p = dot + 1, (*depth)++) {
        size_t n = (size_t)(dot - p) + 1;
        same = same && strncmp(p, q, n) == 0;
        if (same) q += n;
        else cdr_text_printf(t, "%*s%.*s:\n", 2 * *depth, "", (int)n - 1, p);
    }
    return p;
}

char *cdr_recipe_yaml(const cdr_recipe *r, cdr_pool *pool)
{
    int n, depth;
    const cdr_key *k = cdr_recipe_schema(&n);
    const char *prev = "";
    cdr_text t = { 0 };
    cdr_text_printf(&t, "# resolved from %s by cadre %s; behind each value: where it comes from\n", r->where, CDR_VERSION);
    for (int i = 0; i < n; i++) {
        if (!r->lora.on && strncmp(k[i].key, "lora.", 5) == 0) continue;  /* a lora section would mean LoRA */
        char *v = cdr_recipe_value(r, i, pool), *from = cdr_recipe_from(r, i, pool);
        for (char *p = from; *p; p++) if (*p == '\n') *p = ' ';
        const char *leaf = sections(&t, prev, k[i].key, &depth);
        cdr_text_printf(&t, "%*s%s: %s%*s  # %s\n", 2 * depth, "", leaf, v, CDR_MAX(0, 34 - 2 * depth - (int)strlen(leaf) - (int)strlen(v)), "", from);
        prev = k[i].key;
    }
    char *s = cdr_pool_strndup(pool, t.s, t.n);
    cdr_text_free(&t);
    return s;
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------- */

/* A word of a source that differs from auto. */
static void source_word(cdr_jw *w, const char *name, const char *key, int i)
{
    const char *word = cdr_recipe_schema(&(int){ 0 })[cdr_recipe_key(key)].words;
    char text[32];
    if (i == 0) return;
    for (; i > 0; i--) word += strcspn(word, "|") + 1;
    (void)snprintf(text, sizeof text, "%.*s", (int)strcspn(word, "|"), word);
    cdr_jw_str(w, name, text);
}

static void json_value(cdr_jw *w, const cdr_recipe *r, const cdr_key *k, const char *text)
{
    const void *at = (const char *)r + k->at;
    switch ((cdr_key_type)k->type) {
    case CDR_KEY_INT: case CDR_KEY_BYTES:
        if (*(const int64_t *)at < 0) break;
        cdr_jw_int(w, "value", *(const int64_t *)at);
        return;
    case CDR_KEY_REAL: case CDR_KEY_DURATION:
        if (*(const double *)at < 0) break;
        cdr_jw_real(w, "value", *(const double *)at);
        return;
    case CDR_KEY_BOOL:
        cdr_jw_bool(w, "value", *(const bool *)at);
        return;
    case CDR_KEY_TEXT:
        cdr_jw_str(w, "value", *(const char *const *)at);
        return;
    case CDR_KEY_EVERY:
        if (((const cdr_every *)at)->steps <= 0) break;
        cdr_jw_int(w, "value", ((const cdr_every *)at)->steps);
        return;
    case CDR_KEY_TEXTS: {
        const cdr_strings *s = at;
        cdr_jw_begin(w, "value", '[');
        for (int i = 0; i < s->n; i++) cdr_jw_str(w, NULL, s->s[i]);
        cdr_jw_end(w, ']');
        return;
    }
    case CDR_KEY_SOURCES: {
        const cdr_sources *s = at;
        if (s->none) break;
        cdr_jw_begin(w, "value", '[');
        for (int i = 0; i < s->n; i++) {
            cdr_jw_begin(w, NULL, '{');
            cdr_jw_str(w, "path", s->s[i].path);
            cdr_jw_str(w, "name", s->s[i].name);
            cdr_jw_real(w, "weight", s->s[i].weight);
            if (s->s[i].max_samples > 0) cdr_jw_int(w, "max_samples", s->s[i].max_samples);
            source_word(w, "format", "data.format", s->s[i].format);
            source_word(w, "train_on", "data.train_on", s->s[i].train_on);
            if (s->s[i].columns.n > 0) {
                cdr_jw_begin(w, "columns", '{');
                for (int m = 0; m < s->s[i].columns.n; m++) cdr_jw_str(w, s->s[i].columns.p[m].name, s->s[i].columns.p[m].text);
                cdr_jw_end(w, '}');
            }
            cdr_jw_end(w, '}');
        }
        cdr_jw_end(w, ']');
        return;
    }
    case CDR_KEY_PAIRS: {
        const cdr_pairs *p = at;
        cdr_jw_begin(w, "value", '{');
        for (int i = 0; i < p->n; i++) cdr_jw_str(w, p->p[i].name, p->p[i].text);
        cdr_jw_end(w, '}');
        return;
    }
    case CDR_KEY_ENUM:
        break;
    }
    cdr_jw_str(w, "value", text);
}

void cdr_recipe_json(const cdr_recipe *r, cdr_jw *w, bool changed)
{
    static const char *const from[] = { "default", "recipe", "flag", "derived" };
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    for (int i = 0; i < n; i++) {
        char *v = cdr_recipe_value(r, i, r->pool);
        const cdr_origin *o = &r->origin[i];
        if (changed && !is_changed(r, i, v)) continue;
        cdr_jw_begin(w, k[i].key, '{');
        json_value(w, r, &k[i], v);
        cdr_jw_str(w, "from", from[o->from]);
        if (o->from == CDR_FROM_FILE) {
            cdr_jw_str(w, "file", r->where);
            cdr_jw_int(w, "line", o->line);
            cdr_jw_int(w, "col", o->col);
            if (o->alias) cdr_jw_str(w, "alias", o->alias);
        }
        if (o->from == CDR_FROM_SET) cdr_jw_str(w, "flag", o->flag);
        if (o->from == CDR_FROM_DERIVED) {
            cdr_jw_str(w, "was", o->was);
            cdr_jw_str(w, "why", o->why);
        }
        cdr_jw_str(w, "resume", (char[]){ k[i].resume, 0 });
        cdr_jw_end(w, '}');
    }
}
