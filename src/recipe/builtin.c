/* builtin.c: recipes, models and machines that are embedded in the binary, by bare name, in which - and _ are the same. The
 * table is generated from the folders configs/, models/ and machines/.
 */
#include "recipe/recipe.h"
#include "builtin.h"

enum { MAX_FILE = 1 << 20 };

/* '-' and '_' are the same where folded. */
static bool same_name(const char *file, const char *name, bool folded)
{
    size_t i = 0;
    for (; name[i]; i++) {
        char a = file[i], b = name[i];
        if (folded && a == '_') a = '-';
        if (folded && b == '_') b = '-';
        if (a != b) return false;
    }
    return strcmp(file + i, ".yaml") == 0;
}

const char *cdr_builtin(const char *kind, const char *name)
{
    size_t nk = strlen(kind);
    for (int folded = 0; folded < 2; folded++)
        for (int i = 0; cdr_builtin_files[i].path; i++) {
            const char *p = cdr_builtin_files[i].path;
            if (strncmp(p, kind, nk) == 0 && p[nk] == '/' && same_name(p + nk + 1, name, folded == 1)) return cdr_builtin_files[i].text;
        }
    return NULL;
}

const char *const *cdr_builtin_names(const char *kind, cdr_pool *pool, int *n)
{
    size_t nk = strlen(kind);
    const char **names = cdr_pool_alloc(pool, sizeof(char *) * (size_t)CDR_COUNT(cdr_builtin_files));
    *n = 0;
    for (int i = 0; cdr_builtin_files[i].path; i++) {
        const char *p = cdr_builtin_files[i].path;
        if (strncmp(p, kind, nk) == 0 && p[nk] == '/') names[(*n)++] = cdr_pool_strndup(pool, p + nk + 1, strlen(p + nk + 1) - 5);
    }
    return names;
}

static bool is_path(const char *name)
{
    size_t n = strlen(name);
    return strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".yaml") == 0);
}

cdr_status cdr_builtin_or_file(const char *kind, const char *name, cdr_pool *pool, const char **text, size_t *bytes, const char **where, cdr_err *err)
{
    *where = cdr_pool_strdup(pool, name);
    if (is_path(name)) {
        char *data = NULL;
        CDR_TRY(cdr_file_read(name, MAX_FILE, &data, bytes, err));
        *text = cdr_pool_strndup(pool, data, *bytes);
        cdr_free(data);
        return CDR_OK;
    }
    *text = cdr_builtin(kind, name);
    if (*text) {
        *bytes = strlen(*text);
        return CDR_OK;
    }
    int n;
    const char *const *names = cdr_builtin_names(kind, pool, &n);
    CDR_FAIL_ID(err, CDR_EUSER, "config.no-such-builtin", "%s: %sno built-in file of %s/ has that name, and a path holds a / or ends in .yaml.%s "
                "`cadre config list` prints all", name, strcmp(kind, "models") == 0 ? "no such directory, and " : "", kind, cdr_nearest(pool, name, names, n));
}
