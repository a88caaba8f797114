/* config.c: adapter_config.json as PEFT writes and reads it.
 *
 *   rank of a module    rank_pattern, the first whose regular expression (.*\.)?(KEY)$ matches its name, else r
 *   scale               alpha / rank, use_rslora: alpha / sqrt(rank); alpha by alpha_pattern in the same way
 *   targeted            target_modules: a list of names or of their ends behind a dot, or one regular expression over the whole name
 * Strict where a key changes what the tensors mean: DoRA, biases, saved modules, dropout, inits that change the base, and whatever else makes
 * of it another thing than W + scale B A, are refused. Expressions are Python's; those without a counterpart in POSIX are refused.
 * Written: the keys of PEFT 0.20 with their defaults, as json.dumps(indent=2, sort_keys=True) lays them out.
 * Source: spec/formats.md, 1.6; PEFT 0.21.2, peft/tuners/lora/config.py, peft/utils/other.py (get_pattern_key).
 */
#include "adapter/adapter.h"
#include <math.h>
#include <regex.h>
#include <stdlib.h>

/* regcomp recurses over groups, and takes time that grows with the square of signs that choose or repeat */
enum { MAX_PATTERNS = 1024, MAX_PATTERN = 512, MAX_REGEX = 1 << 16, MAX_GROUPS = 32, MAX_SIGNS = 2000 };

struct cdr__lora_regex { regex_t *re; int n, n_rank, n_alpha; bool target; };      /* rank patterns, alpha patterns, target_modules */

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* ---- what is refused -------------------------------------------------------------------------------------------------------------- */

static bool is_off(const cdr_json *j)
{
    if (!j) return true;
    switch (cdr_json_type(j)) {
        case CDR_JSON_NULL: return true;
        case CDR_JSON_BOOL: return !cdr_json_bool(j, false);
        case CDR_JSON_INT: case CDR_JSON_REAL: return cdr_json_real(j, 0) == 0;
        case CDR_JSON_STRING: return strcmp(cdr_json_str(j, ""), "none") == 0 || !*cdr_json_str(j, "");
        default: return cdr_json_count(j) == 0;
    }
}

static cdr_status refuse_meanings(const char *where, const cdr_json *root, cdr_err *err)
{
    static const struct { const char *key, *why; } off[] = {
        { "use_dora", "DoRA scales the base's rows as well; train it without, or merge it with the tool that made it" },
        { "modules_to_save", "whole modules beside the adapter have no place in W + scale B A; merge them with the tool that made them" },
        { "bias", "biases that were trained have no place in W + scale B A" },
        { "lora_bias", "biases that were trained have no place in W + scale B A" },
        { "lora_dropout", "stacked expert adapters take no dropout. It acts in training alone: set it to 0 in the file to use the weights as they are" },
        { "fan_in_fan_out", "its matrices are transposed" },
        { "layer_replication", "it changes the model's layers" },
        { "alora_invocation_tokens", "an activated LoRA depends on tokens of the prompt" },
        { "trainable_token_indices", "rows of the embedding were trained too" },
        { "use_qalora", "QALoRA pools its input" },
        { "use_bdlora", "its factors are block diagonal" },
        { "kasa_config", "KaSA scales the base too" },
        { "monteclora_config", "its factors are drawn anew" },
        { "arrow_config", "several adapters are mixed by a router" },
    };
    const char *type = cdr_json_str(cdr_json_get(root, "peft_type"), NULL);
    if (!type || strcmp(type, "LORA") != 0)
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.config", "%s: peft_type is %s; only LORA is read", where, type ? type : "missing");
    for (int i = 0; i < CDR_COUNT(off); i++)
        if (!is_off(cdr_json_get(root, off[i].key))) CDR_FAIL_ID(err, CDR_EDATA, "adapter.unsupported", "%s: %s is set; %s", where, off[i].key, off[i].why);
    const char *init = cdr_json_str(cdr_json_get(root, "init_lora_weights"), "");
    static const char *const changes[] = { "pissa", "olora", "corda", "loftq", "lora_ga" };
    for (int i = 0; i < CDR_COUNT(changes); i++)
        if (strncmp(init, changes[i], strlen(changes[i])) == 0)
            CDR_FAIL_ID(err, CDR_EDATA, "adapter.unsupported", "%s: init_lora_weights is %s, which changed the base's weights; this adapter belongs to that base alone. "
                        "Save it as a plain LoRA (PEFT: path_initial_model_for_weight_conversion)", where, init);
    return CDR_OK;
}

static void warn_unknown(const char *where, const cdr_json *root)
{
    static const char known[] =
        " alora_invocation_tokens alpha_pattern arrow_config auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying eva_config"
        " exclude_modules fan_in_fan_out inference_mode init_lora_weights kasa_config layer_replication layers_pattern layers_to_transform"
        " loftq_config lora_alpha lora_bias lora_dropout lora_ga_config megatron_config megatron_core modules_to_save monteclora_config peft_type"
        " peft_version qalora_group_size r rank_pattern revision runtime_config target_modules target_parameters task_type trainable_token_indices"
        " use_bdlora use_dora use_qalora use_rslora velora_config ";
    char what[200] = "", key[64];
    int64_t n = 0;
    for (int64_t i = 0; i < cdr_json_count(root); i++) {
        if (snprintf(key, sizeof key, " %s ", cdr_json_key(root, i)) < (int)sizeof key && strstr(known, key)) continue;
        if (n++ < 4) snprintf(what + strlen(what), sizeof what - strlen(what), "%s%.40s", n > 1 ? ", " : "", cdr_json_key(root, i));
    }
    for (char *c = what; *c; c++) if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    if (n > 0) cdr_log(CDR_LOG_WARNING, "%s: %lld keys that PEFT 0.21 does not know are ignored: %s%s", where, (long long)n, what, n > 4 ? ", .." : "");
}

/* ---- expressions ------------------------------------------------------------------------------------------------------------------ */

/* A Python expression as POSIX has it; false: it uses what POSIX lacks. */
static bool translate(const char *s, cdr_text *t)
{
    bool in_class = false;
    int depth = 0, signs = 0;
    for (; *s; s++) {
        static const struct { char c; const char *posix; } class[] = { { 'd', "[0-9]" }, { 'w', "[A-Za-z0-9_]" }, { 's', "[[:space:]]" } };
        if (in_class && *s == '\\') return false;
        in_class = in_class ? *s != ']' : *s == '[';
        depth += *s == '(' ? 1 : *s == ')' ? -1 : 0;
        signs += strchr("*+?|", *s) != NULL;
        if (depth > MAX_GROUPS || signs > MAX_SIGNS) return false;
        if (*s == '{' || *s == '}') return false;                                     /* repetitions; their memory has no bound */
        if (strchr("*+?", *s) && strchr("*+?", s[1]) && s[1]) return false;           /* lazy and possessive ones */
        if (*s == '(' && s[1] == '?') {
            if (s[2] != ':') return false;
            cdr_text_printf(t, "(");
            s += 2;
        } else if (*s == '\\') {
            const char *posix = NULL;
            s++;
            for (int i = 0; i < CDR_COUNT(class); i++) if (*s == class[i].c) posix = class[i].posix;
            bool letter = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || !*s;
            if (letter && !posix) return false;
            if (posix) cdr_text_printf(t, "%s", posix);
            else cdr_text_printf(t, "\\%c", *s);
        } else {
            cdr_text_append(t, s, 1);
        }
    }
    return true;
}

static cdr_status compile(const char *where, const char *key, const char *pattern, bool behind, regex_t *re, cdr_err *err)
{
    cdr_text t = { 0 };
    size_t max = behind ? MAX_PATTERN : MAX_REGEX;
    cdr_text_printf(&t, behind ? "^(.*\\.)?(" : "^(");
    bool ok = strlen(pattern) <= max && translate(pattern, &t);
    cdr_text_printf(&t, ")$");
    ok = ok && regcomp(re, t.s, REG_EXTENDED | REG_NOSUB) == 0;
    cdr_text_free(&t);
    if (!ok) CDR_FAIL_ID(err, CDR_EDATA, "adapter.pattern", "%s: %s \"%.200s\" is no expression that is read here (letters, . * + ? | [] () \\d \\w, "
                     "up to %zu bytes, %d of * + ? | and "
                         "groups nested up to %d)", where, key, pattern, max, (int)MAX_SIGNS, (int)MAX_GROUPS);
    return CDR_OK;
}

static cdr_status compile_all(const char *where, cdr_pool *pool, cdr__lora_config *c, cdr_err *err)
{
    cdr__lora_regex *x = cdr_pool_alloc(pool, sizeof *x);
    x->re = cdr_pool_alloc(pool, sizeof *x->re * (size_t)(c->n_rank + c->n_alphas + 1));
    c->re = x;
    for (int i = 0; i < c->n_rank; i++, x->n++, x->n_rank++) CDR_TRY(compile(where, "rank_pattern", c->rank[i].pattern, true, &x->re[x->n], err));
    for (int i = 0; i < c->n_alphas; i++, x->n++, x->n_alpha++) CDR_TRY(compile(where, "alpha_pattern", c->alphas[i].pattern, true, &x->re[x->n], err));
    if (c->target_regex && strcmp(c->target_regex, "all-linear") != 0) {
        CDR_TRY(compile(where, "target_modules", c->target_regex, false, &x->re[x->n], err));
        x->n++;
        x->target = true;
    }
    return CDR_OK;
}

void cdr__lora_config_close(cdr__lora_config *c)
{
    for (int i = 0; c->re && i < c->re->n; i++) regfree(&c->re->re[i]);
    c->re = NULL;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------------- */

static cdr_status read_patterns(const char *where, const char *key, const cdr_json *j, cdr_pool *pool, cdr__lora_pattern **out, int *n, cdr_err *err)
{
    *n = 0;
    if (!j || cdr_json_type(j) == CDR_JSON_NULL) return CDR_OK;
    int64_t count = cdr_json_count(j);
    if (cdr_json_type(j) != CDR_JSON_OBJECT || count > MAX_PATTERNS)
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.config", "%s: %s is no map of at most %d patterns", where, key, MAX_PATTERNS);
    *out = cdr_pool_alloc(pool, sizeof **out * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++) {
        double x = cdr_json_real(cdr_json_at(j, i), NAN);
        if (!((float)x > 0) || !isfinite((float)x) || (strcmp(key, "rank_pattern") == 0 && (x != floor(x) || x > INT32_MAX)))
            CDR_FAIL_ID(err, CDR_EDATA, "adapter.config", "%s: %s of \"%.100s\" is no %s above 0", where, key, cdr_json_key(j, i), strcmp(key, "rank_pattern") == 0 ?
                        "whole number" : "number");
        (*out)[(*n)++] = (cdr__lora_pattern){ cdr_json_key(j, i), x };
    }
    return CDR_OK;
}

static cdr_status read_names(const char *where, const char *key, const cdr_json *j, cdr_pool *pool, const char ***out, int64_t *n, cdr_err *err)
{
    *n = 0;
    if (!j || cdr_json_type(j) == CDR_JSON_NULL) return CDR_OK;
    if (cdr_json_type(j) != CDR_JSON_ARRAY) CDR_FAIL_ID(err, CDR_EDATA, "adapter.config", "%s: %s is no list of names", where, key);
    *out = cdr_pool_alloc(pool, sizeof **out * (size_t)(cdr_json_count(j) + 1));
    for (int64_t i = 0; i < cdr_json_count(j); i++) {
        const char *s = cdr_json_str(cdr_json_at(j, i), NULL);
        if (!s) CDR_FAIL_ID(err, CDR_EDATA, "adapter.config", "%s: %s[%lld] is no text", where, key, (long long)i);
        (*out)[(*n)++] = s;
    }
    qsort(*out, (size_t)*n, sizeof **out, by_text);
    return CDR_OK;
}

cdr_status cdr__lora_config_parse(const char *where, const char *text, size_t bytes, cdr_pool *pool, cdr__lora_config *c, cdr_err *err)
{
    const cdr_json *root;
    memset(c, 0, sizeof *c);
    CDR_TRY(cdr_json_parse(pool, text, bytes, where, &root, err));
    if (cdr_json_type(root) != CDR_JSON_OBJECT) CDR_FAIL_ID(err, CDR_EDATA, "adapter.config", "%s: is no object", where);
    CDR_TRY(refuse_meanings(where, root, err));
    warn_unknown(where, root);
    c->r = cdr_json_real(cdr_json_get(root, "r"), NAN);
    c->alpha = cdr_json_real(cdr_json_get(root, "lora_alpha"), NAN);
    c->rslora = cdr_json_bool(cdr_json_get(root, "use_rslora"), false);
    c->base = cdr_json_str(cdr_json_get(root, "base_model_name_or_path"), NULL);
    if (!(c->r >= 1) || c->r != floor(c->r) || c->r > 65536) CDR_FAIL_ID(err, CDR_EDATA, "adapter.config", "%s: r is missing, or no whole number from 1 on", where);
    if (!((float)(c->alpha / c->r) > 0) || !isfinite((float)c->alpha))
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.config", "%s: lora_alpha is missing, not above 0, or beyond the range of F32", where);
    const cdr_json *target = cdr_json_get(root, "target_modules");
    c->target_regex = cdr_json_str(target, NULL);
    if (!c->target_regex) CDR_TRY(read_names(where, "target_modules", target, pool, &c->target, &c->n_target, err));
    CDR_TRY(read_names(where, "target_parameters", cdr_json_get(root, "target_parameters"), pool, &c->parameter, &c->n_parameter, err));
    CDR_TRY(read_patterns(where, "rank_pattern", cdr_json_get(root, "rank_pattern"), pool, &c->rank, &c->n_rank, err));
    CDR_TRY(read_patterns(where, "alpha_pattern", cdr_json_get(root, "alpha_pattern"), pool, &c->alphas, &c->n_alphas, err));
    cdr_status st = compile_all(where, pool, c, err);
    if (st != CDR_OK) cdr__lora_config_close(c);
    return st;
}

static double by_pattern(const cdr__lora_pattern *p, const regex_t *re, int n, const char *const *form, int n_forms, double otherwise)
{
    for (int i = 0; i < n; i++)
        for (int f = 0; f < n_forms; f++) if (regexec(&re[i], form[f], 0, NULL, 0) == 0) return p[i].value;
    return otherwise;
}

/* The name, or its end behind a dot, is in the sorted list. */
static bool in_list(const char *const *list, int64_t n, const char *name)
{
    for (const char *s = name; s; s = strchr(s, '.') ? strchr(s, '.') + 1 : NULL)
        if (n > 0 && bsearch(&s, list, (size_t)n, sizeof *list, by_text)) return true;
    return false;
}

cdr__lora_fit cdr__lora_config_fit(const cdr__lora_config *c, const char *const *form, int n_forms, bool parameter)
{
    cdr__lora_fit x = { .targeted = false };
    const cdr__lora_regex *re = c->re;
    x.rank = by_pattern(c->rank, re->re, c->n_rank, form, n_forms, c->r);
    double alpha = by_pattern(c->alphas, re->re + c->n_rank, c->n_alphas, form, n_forms, c->alpha);
    x.scale = c->rslora ? alpha / sqrt(x.rank) : alpha / x.rank;
    for (int f = 0; f < n_forms && !x.targeted; f++) {
        if (parameter) x.targeted = in_list(c->parameter, c->n_parameter, form[f]);
        else if (re->target) x.targeted = regexec(&re->re[re->n - 1], form[f], 0, NULL, 0) == 0;
        else x.targeted = c->target_regex ? true : in_list(c->target, c->n_target, form[f]);
    }
    return x;
}

double cdr__lora_alpha(float scale, int32_t rank)
{
    double exact = (double)scale * rank;
    for (int digits = 0; digits <= 9; digits++) {
        double unit = pow(10, digits), x = round(exact * unit) / unit;
        if (x > 0 && (float)(x / rank) == scale) return x;
    }
    return exact;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------- */

static void put_text(cdr_text *t, const char *s)
{
    size_t n = strlen(s);
    cdr_text_printf(t, "\"");
    for (size_t i = 0; i < n;) {
        int k = cdr_utf8_length(s + i, n - i);
        unsigned char c = (unsigned char)s[i];
        if (k <= 1) {
            if (k == 0) cdr_text_printf(t, "\\ufffd");
            else if (c == '"' || c == '\\') cdr_text_printf(t, "\\%c", c);
            else if (c == '\n' || c == '\t' || c == '\r') cdr_text_printf(t, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
            else if (c < 0x20) cdr_text_printf(t, "\\u%04x", c);
            else cdr_text_append(t, s + i, 1);
            i++;
            continue;
        }
        uint32_t u = c & (0xffu >> (k + 1));
        for (int j = 1; j < k; j++) u = u << 6 | ((unsigned char)s[i + (size_t)j] & 0x3f);
        if (u >= 0x10000) cdr_text_printf(t, "\\u%04x\\u%04x", 0xd800 + ((u - 0x10000) >> 10), 0xdc00 + ((u - 0x10000) & 0x3ff));
        else cdr_text_printf(t, "\\u%04x", u);
        i += (size_t)k;
    }
    cdr_text_printf(t, "\"");
}

/* Python's form: a whole number without a point where it is one. */
static void put_number(cdr_text *t, double x)
{
    cdr_jw w = { .t = t };
    if (x == floor(x) && fabs(x) < 1e15) cdr_text_printf(t, "%.0f", x);
    else cdr_jw_real(&w, NULL, x);
}

static void put_list(cdr_text *t, const char *const *s, int64_t n)
{
    if (n == 0) {
        cdr_text_printf(t, "[]");
        return;
    }
    cdr_text_printf(t, "[");
    for (int64_t i = 0; i < n; i++) {
        cdr_text_printf(t, "%s\n    ", i ? "," : "");
        put_text(t, s[i]);
    }
    cdr_text_printf(t, "\n  ]");
}

static int by_pattern_text(const void *a, const void *b)
{
    return strcmp(((const cdr__lora_pattern *)a)->pattern, ((const cdr__lora_pattern *)b)->pattern);
}

static void put_patterns(cdr_text *t, cdr__lora_pattern *p, int n)
{
    if (n == 0) {
        cdr_text_printf(t, "{}");
        return;
    }
    qsort(p, (size_t)n, sizeof *p, by_pattern_text);
    cdr_text_printf(t, "{");
    for (int i = 0; i < n; i++) {
        cdr_text_printf(t, "%s\n    ", i ? "," : "");
        put_text(t, p[i].pattern);
        cdr_text_printf(t, ": ");
        put_number(t, p[i].value);
    }
    cdr_text_printf(t, "\n  }");
}

void cdr__lora_config_write(const cdr__lora_config *c, cdr_text *t)
{
    static const struct { const char *key, *value; } rows[] = {      /* value NULL: of c */
        { "alora_invocation_tokens", "null" }, { "alpha_pattern", NULL }, { "arrow_config", "null" }, { "auto_mapping", "null" }, { "base_model_name_or_path", NULL },
        { "bias", "\"none\"" }, { "corda_config", "null" }, { "ensure_weight_tying", "false" }, { "eva_config", "null" }, { "exclude_modules", "null" },
        { "fan_in_fan_out", "false" }, { "inference_mode", "true" }, { "init_lora_weights", "true" }, { "layer_replication", "null" }, { "layers_pattern", "null" },
        { "layers_to_transform", "null" }, { "loftq_config", "{}" }, { "lora_alpha", NULL }, { "lora_bias", "false" }, { "lora_dropout", "0.0" },
        { "lora_ga_config", "null" }, { "megatron_config", "null" }, { "megatron_core", "\"megatron.core\"" }, { "modules_to_save", "null" }, { "peft_type", "\"LORA\"" },
        { "peft_version", "\"0.20.0\"" }, { "qalora_group_size", "16" }, { "r", NULL }, { "rank_pattern", NULL }, { "revision", "null" }, { "target_modules", NULL },
        { "target_parameters", NULL }, { "task_type", "\"CAUSAL_LM\"" }, { "trainable_token_indices", "null" }, { "use_dora", "false" }, { "use_qalora", "false" },
        { "use_rslora", NULL },
    };
    for (int i = 0; i < CDR_COUNT(rows); i++) {
        const char *k = rows[i].key;
        cdr_text_printf(t, "%s\n  \"%s\": %s", i ? "," : "{", k, rows[i].value ? rows[i].value : "");
        if (rows[i].value) continue;
        if (strcmp(k, "alpha_pattern") == 0) put_patterns(t, c->alphas, c->n_alphas);
        else if (strcmp(k, "rank_pattern") == 0) put_patterns(t, c->rank, c->n_rank);
        else if (strcmp(k, "base_model_name_or_path") == 0 && c->base) put_text(t, c->base);
        else if (strcmp(k, "base_model_name_or_path") == 0) cdr_text_printf(t, "null");
        else if (strcmp(k, "lora_alpha") == 0) put_number(t, c->alpha);
        else if (strcmp(k, "r") == 0) put_number(t, c->r);
        else if (strcmp(k, "target_modules") == 0 && c->target_regex) put_text(t, c->target_regex);
        else if (strcmp(k, "target_modules") == 0) put_list(t, c->target, c->n_target);
        else if (strcmp(k, "target_parameters") == 0 && c->n_parameter > 0) put_list(t, c->parameter, c->n_parameter);
        else if (strcmp(k, "target_parameters") == 0) cdr_text_printf(t, "null");
        else cdr_text_printf(t, c->rslora ? "true" : "false");
    }
    cdr_text_printf(t, "\n}");
}
