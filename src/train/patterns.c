/* patterns.c: name patterns of recipes over a model's parameters (spec/interface.md, 1.1).
 *
 *   no '.' and no '*'   a group (attention, router, ..), else a leaf name as in PEFT: o_proj
 *   with '.'            a whole name, or its end after a dot: self_attn.o_proj
 *   with '*' or '?'     glob over the whole name
 *   re:...              regular expression (POSIX, extended) over the whole name
 * Names are those of checkpoints; ".weight" and ".bias" at the end, and a leading "language_model.", may be left out.
 */
#include "train/patterns.h"
#include <fnmatch.h>
#include <regex.h>
#include <stdlib.h>

enum { N_FORMS = 4 };

/* A name as patterns may spell it: whole; without its last ".weight" or ".bias"; both without "language_model.". */
static int forms(cdr_pool *pool, const char *name, const char *out[N_FORMS])
{
    static const char prefix[] = "language_model.";
    const char *dot = strrchr(name, '.');
    int n = 0;
    out[n++] = name;
    if (dot && (strcmp(dot, ".weight") == 0 || strcmp(dot, ".bias") == 0)) out[n++] = cdr_pool_strndup(pool, name, (size_t)(dot - name));
    for (int i = 0, have = n; i < have; i++) if (strncmp(out[i], prefix, sizeof prefix - 1) == 0) out[n++] = out[i] + sizeof prefix - 1;
    return n;
}

const char *cdr__leaf(cdr_pool *pool, const char *name)
{
    const char *f[N_FORMS], *dot;
    int n = forms(pool, name, f);
    const char *shortest = f[n > 1 && strlen(f[1]) < strlen(f[0]) ? 1 : 0];
    dot = strrchr(shortest, '.');
    return dot ? dot + 1 : shortest;
}

static bool is_group(const char *pattern)
{
    int n;
    const char *const *g = cdr_model_groups(&n);
    for (int i = 0; i < n; i++) if (strcmp(g[i], pattern) == 0) return true;
    return false;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && name[n - k - 1] == '.' && strcmp(name + n - k, end) == 0;
}

static bool fits_form(const char *pattern, const regex_t *re, const char *form)
{
    if (re) return regexec(re, form, 0, NULL, 0) == 0;
    if (strpbrk(pattern, "*?")) return fnmatch(pattern, form, FNM_NOESCAPE) == 0;
    return strcmp(pattern, form) == 0 || ends_with(form, pattern);
}

cdr_status cdr__pattern_mark(const cdr_session *s, const char *pattern, const char *key, bool *in, int64_t *n, cdr_err *err)
{
    cdr_pool *pool = s->pool;
    bool regular = strncmp(pattern, "re:", 3) == 0, group = !regular && is_group(pattern);
    regex_t re;
    *n = 0;
    if (regular && regcomp(&re, cdr_pool_printf(pool, "^(%s)$", pattern + 3), REG_EXTENDED | REG_NOSUB) != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.bad-pattern", "%s: %s: \"%s\" is no regular expression", cdr__recipe_at(&s->r, cdr_recipe_key(key)), key, pattern + 3);
    for (int64_t i = 0; i < cdr_model_params(s->model); i++) {
        const char *f[N_FORMS];
        int n_forms = forms(pool, cdr_model_param(s->model, i), f);
        bool hit = group && cdr_model_in_group(s->model, i, pattern);
        for (int k = 0; !group && k < n_forms && !hit; k++) hit = fits_form(pattern, regular ? &re : NULL, f[k]);
        *n += hit;
        in[i] = in[i] || hit;
    }
    if (regular) regfree(&re);
    return CDR_OK;
}

/* " Nearest: q_proj, kv_a_proj or o_proj" among leaf names and groups. */
static const char *nearest(const cdr_session *s, const char *pattern)
{
    int n_groups, n = 0;
    const char *const *g = cdr_model_groups(&n_groups);
    int64_t n_params = cdr_model_params(s->model);
    const char **name = cdr_pool_alloc(s->pool, sizeof *name * (size_t)(n_params + n_groups));
    const char *dot = strrchr(pattern, '.');
    for (int i = 0; i < n_groups; i++) name[n++] = g[i];
    for (int64_t i = 0; i < n_params; i++) {
        const char *l = cdr__leaf(s->pool, cdr_model_param(s->model, i));
        bool known = false;
        for (int k = 0; k < n && !known; k++) known = strcmp(name[k], l) == 0;
        if (!known) name[n++] = l;
    }
    return cdr_nearest(s->pool, dot && dot[1] ? dot + 1 : pattern, name, n);
}

cdr_status cdr__patterns_mark(const cdr_session *s, const cdr_strings *patterns, const char *key, bool *in, cdr_err *err)
{
    for (int i = 0; i < patterns->n; i++) {
        int64_t n;
        CDR_TRY(cdr__pattern_mark(s, patterns->s[i], key, in, &n, err));
        if (n == 0)
            CDR_FAIL_ID(err, CDR_EUSER, "config.no-match", "%s: %s \"%s\" matches none of %lld parameters.%s", cdr__recipe_at(&s->r, cdr_recipe_key(key)), key,
                        patterns->s[i], (long long)cdr_model_params(s->model), nearest(s, patterns->s[i]));
    }
    return CDR_OK;
}
