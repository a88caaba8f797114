/* args.c: the parser of all commands, and their help. `--flag value` and `--flag=value` are the same; a short-cut of a recipe
 * key goes to the recipe as it was typed ("--steps=10"), so that `config show` can name it.
 */
#include "cli/cli.h"
#include <errno.h>
#include <stdlib.h>

static const struct { const char *flag, *arg, *help; } common_flags[] = {
    { "--json", NULL, "one JSON document on stdout" },
    { "-q", NULL, "errors only" },
    { "-v", NULL, "more on stderr" },
    { "-h", NULL, "this text" },
};

typedef struct {
    const cli_command *c;
    cli_args *a;
    cdr_err *err;
    const char **set; cli_given *given;
} parser;

static const cli_option *find_option(const cli_command *c, const char *flag)
{
    for (const cli_option *o = c->options; o && o->flag; o++) if (strcmp(o->flag, flag) == 0) return o;
    return NULL;
}

static cdr_status unknown_flag(const parser *p, const char *flag)
{
    const char *names[64];
    int n = 0, n_keys;
    const cdr_key *k = cdr_recipe_schema(&n_keys);
    for (const cli_option *o = p->c->options; o && o->flag && n < 32; o++) names[n++] = o->flag;
    names[n++] = "--json";
    names[n++] = "--help";
    if (p->c->keys) names[n++] = "--set";
    for (int i = 0; p->c->keys && i < n_keys && n < CDR_COUNT(names); i++) if (k[i].shortcut) names[n++] = k[i].shortcut;
    CDR_FAIL_ID(p->err, CDR_EUSAGE, "usage.flag", "cadre %s: unknown flag %s.%s See cadre %s --help", p->c->name, flag,
                cdr_nearest(p->a->pool, flag, names, n), p->c->name);
}

/* The value of a flag: behind '=', else the next argument. */
static cdr_status take_value(const parser *p, const char *flag, const char *joined, int argc, char **argv, int *i, const char **value)
{
    if (joined) {
        *value = joined;
        return CDR_OK;
    }
    if (*i + 1 >= argc) CDR_FAIL_ID(p->err, CDR_EUSAGE, "usage.value", "cadre %s: %s needs a value. See cadre %s --help", p->c->name, flag, p->c->name);
    *value = argv[++*i];
    return CDR_OK;
}

static bool common_switch(cli_args *a, const char *flag)
{
    if (strcmp(flag, "--json") == 0) a->common.json = true;
    else if (strcmp(flag, "-q") == 0 || strcmp(flag, "--quiet") == 0) a->common.quiet = true;
    else if (strcmp(flag, "-v") == 0 || strcmp(flag, "--verbose") == 0) a->common.verbose = true;
    else if (strcmp(flag, "-h") == 0 || strcmp(flag, "--help") == 0) a->help = true;
    else return false;
    return true;
}

static cdr_status take_flag(parser *p, int argc, char **argv, int *i)
{
    cli_args *a = p->a;
    const char *eq = strncmp(argv[*i], "--", 2) == 0 ? strchr(argv[*i], '=') : NULL, *joined = eq ? eq + 1 : NULL, *value = NULL;
    char *flag = cdr_pool_strndup(a->pool, argv[*i], eq ? (size_t)(eq - argv[*i]) : strlen(argv[*i]));
    const cli_option *o = find_option(p->c, flag);
    if (o && o->reserved) CDR_FAIL_ID(p->err, CDR_EUSAGE, "usage.reserved", "cadre %s %s: reserved: not in this version", p->c->name, flag);
    if (o) {
        value = "";
        if (o->arg) CDR_TRY(take_value(p, flag, joined, argc, argv, i, &value));
        else if (joined) CDR_FAIL_ID(p->err, CDR_EUSAGE, "usage.value", "cadre %s: %s takes no value", p->c->name, flag);
        p->given[a->n_given++] = (cli_given){ flag, value };
        return CDR_OK;
    }
    if (common_switch(a, flag)) return joined ? unknown_flag(p, argv[*i]) : CDR_OK;
    bool is_set = strcmp(flag, "--set") == 0;
    if (!p->c->keys || (!is_set && cdr__recipe_shortcut(flag, strlen(flag)) < 0)) return unknown_flag(p, flag);
    CDR_TRY(take_value(p, flag, joined, argc, argv, i, &value));
    p->set[a->common.n_set++] = is_set ? value : cdr_pool_printf(a->pool, "%s=%s", flag, value);
    return CDR_OK;
}

cdr_status cli_parse(const cli_command *c, int argc, char **argv, cli_args *a, cdr_err *err)
{
    cdr_pool *pool = a->pool;
    *a = (cli_args){ .pool = pool };
    parser p = { c, a, err, cdr_pool_alloc(pool, sizeof(char *) * (size_t)(argc + 1)), cdr_pool_alloc(pool, sizeof(cli_given) * (size_t)(argc + 1)) };
    a->common.set = p.set;
    a->given = p.given;
    bool only_args = false;
    for (int i = 0; i < argc; i++) {
        if (!only_args && strcmp(argv[i], "--") == 0) {
            only_args = true;
            continue;
        }
        if (!only_args && argv[i][0] == '-' && argv[i][1]) {
            CDR_TRY(take_flag(&p, argc, argv, &i));
            continue;
        }
        if (c->rest) {
            a->rest_argc = argc - i;
            a->rest_argv = argv + i;
            break;
        }
        if (a->n_pos == c->max_args || a->n_pos == CLI_MAX_ARGS)
            CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre %s: one argument too many: %s. See cadre %s --help", c->name, argv[i], c->name);
        a->pos[a->n_pos++] = argv[i];
    }
    if (!a->help && (a->n_pos < c->min_args || (c->rest && a->rest_argc == 0)))
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre %s: %s is missing. See cadre %s --help", c->name, c->args, c->name);
    return CDR_OK;
}

const char *cli_value(const cli_args *a, const char *flag)
{
    const char *value = NULL;
    for (int i = 0; i < a->n_given; i++) if (strcmp(a->given[i].flag, flag) == 0) value = a->given[i].value;
    return value;
}

bool cli_has(const cli_args *a, const char *flag) { return cli_value(a, flag) != NULL; }

const char **cli_values(const cli_args *a, const char *flag, int *n)
{
    const char **out = cdr_pool_alloc(a->pool, sizeof *out * (size_t)(a->n_given + 1));
    *n = 0;
    for (int i = 0; i < a->n_given; i++) if (strcmp(a->given[i].flag, flag) == 0) out[(*n)++] = a->given[i].value;
    return out;
}

cdr_status cli_int(const cli_args *a, const char *flag, int64_t otherwise, int64_t *x, cdr_err *err)
{
    const char *s = cli_value(a, flag);
    char *end;
    *x = otherwise;
    if (!s) return CDR_OK;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || end == s || *end || v < 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "%s: \"%s\" is no integer of at least 0", flag, s);
    *x = v;
    return CDR_OK;
}

/* ---- help ----------------------------------------------------------------------------------------------------------------- */

static void help_line(cdr_text *t, const char *flag, const char *arg, const char *help)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", flag, arg ? " " : "", arg ? arg : "");
    cdr_text_printf(t, "  %-24s %s\n", left, help);
}

/* Keys by section, wrapped; those of later versions in brackets. */
static void help_keys(cdr_text *t)
{
    int n;
    size_t width = 0;
    const cdr_key *k = cdr_recipe_schema(&n);
    const char *section = NULL;
    size_t section_n = 0;
    cdr_text_printf(t, "\nKeys of a recipe, for --set section.key=value ([later]: reserved; `cadre config schema KEY` explains one):\n");
    for (int i = 0; i < n; i++) {
        size_t len = strcspn(k[i].key, ".");
        bool top = k[i].key[len] == 0, fresh = !section || section_n != (top ? 0 : len) || strncmp(section, k[i].key, section_n) != 0;
        if (fresh) {
            section = k[i].key;
            section_n = top ? 0 : len;
            if (i > 0) cdr_text_append(t, "\n", 1);
            cdr_text_printf(t, "  %-12.*s", (int)section_n, section);
            width = 14;
        }
        const char *leaf = top ? k[i].key : k[i].key + len + 1;
        bool later = k[i].status == CDR_KEY_LATER;
        if (width + strlen(leaf) + 3 > 110) {
            cdr_text_printf(t, "\n  %-12s", "");
            width = 14;
        }
        cdr_text_printf(t, later ? " [%s]" : " %s", leaf);
        width += strlen(leaf) + (later ? 3 : 1);
    }
    cdr_text_append(t, "\n", 1);
}

void cli_help(const cli_command *c, cdr_pool *pool, cdr_text *t)
{
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    (void)pool;
    cdr_text_printf(t, "cadre %s%s%s%s\n\n%s\n", c->name, *c->args ? " " : "", c->args, c->options || c->keys ? " [flags]" : "", c->what);
    if (c->more) cdr_text_printf(t, "%s\n", c->more);
    cdr_text_append(t, "\n", 1);
    for (const cli_option *o = c->options; o && o->flag; o++) {
        char help[200];
        snprintf(help, sizeof help, "%s%s", o->help, o->reserved ? " (later: reserved)" : "");
        help_line(t, o->flag, o->arg, help);
    }
    if (c->keys) {
        help_line(t, "--set", "KEY=VALUE", "any key of a recipe; repeatable, left to right");
        for (int i = 0; i < n; i++) {
            if (!k[i].shortcut || find_option(c, k[i].shortcut)) continue;
            bool out = strcmp(k[i].shortcut, "--out") == 0;
            help_line(t, out ? "-o, --out" : k[i].shortcut, "VALUE", k[i].key);
        }
    }
    for (int i = 0; i < CDR_COUNT(common_flags); i++) help_line(t, common_flags[i].flag, common_flags[i].arg, common_flags[i].help);
    if (c == &cli_train) help_keys(t);
    cdr_text_printf(t, "\nExample:\n  %s\n", c->example);
}

void cli_overview(cdr_text *t)
{
    cdr_text_printf(t, "cadre %s: trains sparse mixture-of-experts models; a step is a program that is compiled before it runs\n\n", CDR_VERSION);
    for (int i = 0; cli_commands[i]; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", cli_commands[i]->name, cli_commands[i]->args);
        cdr_text_printf(t, "  %-26s %s\n", left, cli_commands[i]->what);
    }
    cdr_text_printf(t, "\n  later: board mcp report\n\n"
                       "Start:  cadre train tiny-k31        cadre COMMAND --help\n");
}
