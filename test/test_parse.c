/* test_parse.c: the JSON reader against hand-written vectors and against cJSON, the JSON writer, the YAML reader. */
#include "test.h"
#include "base/base.h"
#include "json_copy.h"
#ifdef CADRE_HAVE_CJSON
#include <cjson/cJSON.h>
#endif

/* ---- JSON ---------------------------------------------------------------------------------------------------------- */
/* Parses text that stands at the very end of its block, so that a sanitizer sees a byte too many. */
static cdr_status parse_json(cdr_pool *p, const char *text, size_t n, const cdr_json **root, cdr_err *err)
{
    char *copy = malloc(n ? n : 1);
    if (n) memcpy(copy, text, n);
    cdr_status status = cdr_json_parse(p, copy, n, "a.json", root, err);
    free(copy);
    return status;
}

static void json_values(void)
{
    static const char text[] = " {\"model\": \"k3\", \"n\" : [0, -0, -7, 9007199254740993, 9223372036854775807, -9223372036854775808],\r\n"
        "\t\"r\":[1.5, -0.0, 1e3, 1E+2, 25e-1, 4.9e-324, 1.7976931348623157e308, 1000000000000000019884624838656, 9223372036854775808],"
        "\"s\":[\"\", \"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\", \"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"],"
        "\"b\":[true,false,null], \"\":{}, \"e\":[]}  \n";
    static const int64_t ints[] = { 0, 0, -7, 9007199254740993, INT64_MAX, INT64_MIN };
    static const double reals[] = { 1.5, -0.0, 1e3, 1e2, 2.5, 4.9e-324, 1.7976931348623157e308, 1e30, 9223372036854775808.0 };
    cdr_pool *p = cdr_pool_new();
    cdr_err err = { 0 };
    const cdr_json *j;
    T_CHECK(parse_json(p, text, sizeof text - 1, &j, &err) == CDR_OK);
    T_STR(err.text, "");
    T_CHECK(cdr_json_count(j) == 7);
    T_STR(cdr_json_str(cdr_json_get(j, "model"), NULL), "k3");
    const cdr_json *n = cdr_json_get(j, "n"), *r = cdr_json_get(j, "r"), *s = cdr_json_get(j, "s"), *b = cdr_json_get(j, "b");
    T_CHECK(cdr_json_count(n) == CDR_COUNT(ints) && cdr_json_count(r) == CDR_COUNT(reals) && cdr_json_count(s) == 4);
    for (int i = 0; i < CDR_COUNT(ints); i++)
        T_CHECK(cdr_json_type(cdr_json_at(n, i)) == CDR_JSON_INT && cdr_json_int(cdr_json_at(n, i), 99) == ints[i]);
    for (int i = 0; i < CDR_COUNT(reals); i++) {
        double x = cdr_json_real(cdr_json_at(r, i), 99);
        T_CHECK(cdr_json_type(cdr_json_at(r, i)) == CDR_JSON_REAL && memcmp(&x, &reals[i], 8) == 0);
    }
    T_STR(cdr_json_str(cdr_json_at(s, 0), NULL), "");
    T_STR(cdr_json_str(cdr_json_at(s, 1), NULL), "\"\\/\b\f\n\r\t");
    T_STR(cdr_json_str(cdr_json_at(s, 2), NULL), "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    T_STR(cdr_json_str(cdr_json_at(s, 3), NULL), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    T_CHECK(cdr_json_bool(cdr_json_at(b, 0), false) && !cdr_json_bool(cdr_json_at(b, 1), true));
    T_CHECK(cdr_json_type(cdr_json_at(b, 2)) == CDR_JSON_NULL);
    T_CHECK(cdr_json_type(cdr_json_get(j, "")) == CDR_JSON_OBJECT && cdr_json_count(cdr_json_get(j, "e")) == 0);
    T_STR(cdr_json_key(j, 1), "n");
    /* absent, of another kind, out of range */
    T_CHECK(!cdr_json_get(j, "nn") && !cdr_json_get(n, "n") && !cdr_json_at(n, 6) && !cdr_json_at(n, -1) && !cdr_json_key(n, 0) && !cdr_json_key(j, 7));
    T_CHECK(!cdr_json_get(NULL, "a") && cdr_json_count(NULL) == 0 && cdr_json_int(NULL, 5) == 5 && cdr_json_real(NULL, 5) == 5);
    T_CHECK(cdr_json_int(cdr_json_get(j, "model"), 5) == 5 && cdr_json_bool(cdr_json_at(n, 0), true) && !cdr_json_str(n, NULL));
    T_CHECK(cdr_json_int(cdr_json_at(r, 2), 5) == 1000 && cdr_json_int(cdr_json_at(r, 0), 5) == 5 && cdr_json_int(cdr_json_at(r, 8), 5) == 5);
    T_CHECK(cdr_json_real(cdr_json_at(n, 2), 5) == -7);
    cdr_pool_free(p);
}

static void json_scalar_documents(void)
{
    cdr_pool *p = cdr_pool_new();
    cdr_err err = { 0 };
    const cdr_json *j;
    T_CHECK(parse_json(p, "12", 2, &j, &err) == CDR_OK && cdr_json_int(j, 0) == 12);
    T_CHECK(parse_json(p, "\"x\"", 3, &j, &err) == CDR_OK && strcmp(cdr_json_str(j, ""), "x") == 0);
    T_CHECK(parse_json(p, " null ", 6, &j, &err) == CDR_OK && cdr_json_type(j) == CDR_JSON_NULL);
    T_CHECK(parse_json(p, "[]", 2, &j, &err) == CDR_OK && cdr_json_type(j) == CDR_JSON_ARRAY);
    cdr_pool_free(p);
}

static void json_refused(void)
{
    static const struct { const char *text, *id, *said; } row[] = {
        { "", "json.syntax", "a.json:1:1: the text ends where a value" },
        { " \n ", "json.syntax", "a.json:2:2: the text ends" },
        { "[1,2", "json.syntax", "a.json:1:5: the text ends where ',' or ']'" },
        { "{\"a\":1", "json.syntax", "',' or '}'" },
        { "{\"a\"", "json.syntax", "':'" },
        { "{\"a\":", "json.syntax", "a value" },
        { "[1,]", "json.syntax", "a.json:1:4: ']' where a value" },
        { "{\"a\":1,}", "json.syntax", "a.json:1:8: '}' where a key in quotes" },
        { "{a:1}", "json.syntax", "a.json:1:2: 'a' where a key" },
        { "{1:1}", "json.syntax", "a key" },
        { "[1 2]", "json.syntax", "a.json:1:4: '2' where ','" },
        { "[1}", "json.syntax", "'}' where ',' or ']'" },
        { "{\"a\":1]", "json.syntax", "']' where ',' or '}'" },
        { "[1]]", "json.syntax", "a.json:1:4: ']' where the end" },
        { "1 2", "json.syntax", "the end of the text" },
        { "]", "json.syntax", "a value" },
        { "tru", "json.syntax", "a value" },
        { "nulll", "json.syntax", "the end" },
        { "True", "json.syntax", "a value" },
        { "NaN", "json.syntax", "a value" },
        { "Infinity", "json.syntax", "a value" },
        { "-Infinity", "json.syntax", "a digit" },
        { "01", "json.syntax", "a.json:1:1: a leading zero" },
        { "-01", "json.syntax", "a.json:1:2: a leading zero" },
        { "+1", "json.syntax", "a value" },
        { ".5", "json.syntax", "a value" },
        { "1.", "json.syntax", "a digit" },
        { "1.e3", "json.syntax", "a digit" },
        { "1e", "json.syntax", "a digit" },
        { "1e+", "json.syntax", "a digit" },
        { "-", "json.syntax", "a digit" },
        { "0x10", "json.syntax", "the end" },
        { "1e400", "json.number", "infinite" },
        { "-1e400", "json.number", "infinite" },
        { "9223372036854775809", "json.number", "rounded" },
        { "-9223372036854775809", "json.number", "rounded" },
        { "18446744073709551615", "json.number", "rounded" },
        { "1000000000000000000000000000000", "json.number", "rounded" },     /* 10^30 itself is no double */
        { "'a'", "json.syntax", "a value" },
        { "\"a", "json.syntax", "the end of a string" },
        { "\"a\\", "json.syntax", "an escape" },
        { "\"\\x\"", "json.syntax", "one of" },
        { "\"\\u12\"", "json.syntax", "four hexadecimal" },
        { "\"\\u12g4\"", "json.syntax", "four hexadecimal" },
        { "\"\\u0000\"", "json.nul", "zero character" },
        { "\"\\ud800\"", "json.surrogate", "a.json:1:2: half" },
        { "\"\\udc00\"", "json.surrogate", "half" },
        { "\"\\ud800\\u0041\"", "json.surrogate", "half" },
        { "\"\\ud800\\ud800\"", "json.surrogate", "half" },
        { "\"\\udc00\\udc00\"", "json.surrogate", "half" },
        { "\"a\tb\"", "json.syntax", "a.json:1:3: a control character" },
        { "\"\xff\"", "json.utf8", "a.json:1:2: invalid UTF-8" },
        { "\"\xc0\x80\"", "json.utf8", "invalid" },
        { "\"\xed\xa0\x80\"", "json.utf8", "invalid" },
        { "\"\xf4\x90\x80\x80\"", "json.utf8", "invalid" },
        { "\"\xc3\xa9\xe2\x82\"", "json.utf8", "a.json:1:3: invalid" },       /* columns count characters */
        { "\xef\xbb\xbf{}", "json.bom", "byte order mark" },
        { "{\"a\":1,\n \"b\":{},\n  \"a\":2}", "json.duplicate-key", "a.json:3:3: duplicate key \"a\"" },
        { "{\"a\":1,\"\\u0061\":2}", "json.duplicate-key", "a.json:1:8: duplicate key \"a\"" },
        { "{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,\"8\":0,\"9\":0,\"3\":0}", "json.duplicate-key", "a.json:1:56: duplicate" },
        { "[1,/* */2]", "json.syntax", "a value" },
    };
    for (int i = 0; i < CDR_COUNT(row); i++) {
        cdr_pool *p = cdr_pool_new();
        cdr_err err = { 0 };
        const cdr_json *j;
        T_CHECK(parse_json(p, row[i].text, strlen(row[i].text), &j, &err) == CDR_EDATA && !j);
        T_STR(err.id, row[i].id);
        T_HAS(err.text, row[i].said);
        cdr_pool_free(p);
    }
    cdr_pool *p = cdr_pool_new();
    cdr_err err = { 0 };
    const cdr_json *j;
    T_CHECK(parse_json(p, "[\0]", 3, &j, &err) == CDR_EDATA);           /* a zero byte does not end the text */
    T_HAS(err.text, "byte 0x00");
    char digits[500];
    memset(digits, '1', sizeof digits);
    err = (cdr_err){ 0 };
    T_CHECK(parse_json(p, digits, sizeof digits, &j, &err) == CDR_EDATA);
    T_STR(err.id, "json.number");
    cdr_pool_free(p);
}

static void json_depth(void)
{
    char text[140];
    const cdr_json *j;
    for (int depth = 63; depth <= 65; depth++) {
        cdr_pool *p = cdr_pool_new();
        cdr_err err = { 0 };
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        cdr_status status = parse_json(p, text, (size_t)(2 * depth), &j, &err);
        T_CHECK(status == (depth <= 64 ? CDR_OK : CDR_EDATA));
        if (depth > 64) {
            T_STR(err.id, "json.depth");
        }
        cdr_pool_free(p);
    }
}

static void json_written(void)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "a\"b", "x\\\n\x01\x7f\xc3\xa9");
    cdr_jw_str(&w, "cut", "ok\xe2\x82");                                 /* a character cut off: U+FFFD a byte */
    cdr_jw_str(&w, "none", NULL);
    cdr_jw_begin(&w, "list", '[');
    cdr_jw_int(&w, NULL, INT64_MIN);
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_end(&w, '}');
    cdr_jw_begin(&w, NULL, '[');
    cdr_jw_end(&w, ']');
    cdr_jw_bool(&w, NULL, true);
    cdr_jw_null(&w, NULL);
    cdr_jw_end(&w, ']');
    cdr_jw_u64hex(&w, "hash", 0xabcu);
    cdr_jw_real(&w, "nan", (double)NAN);
    cdr_jw_real(&w, "inf", -(double)INFINITY);
    cdr_jw_bool(&w, "no", false);
    cdr_jw_end(&w, '}');
    cdr_text_append(&t, "\n", 1);
    cdr_jw_begin(&w, NULL, '[');
    cdr_jw_end(&w, ']');
    T_STR(t.s, "{\"a\\\"b\":\"x\\\\\\n\\u0001\x7f\xc3\xa9\",\"cut\":\"ok\xef\xbf\xbd\xef\xbf\xbd\",\"none\":null,\"list\":[-9223372036854775808,{},[],true,null],"
                "\"hash\":\"0000000000000abc\",\"nan\":null,\"inf\":null,\"no\":false}\n[]");
    cdr_text_free(&t);
}

static void json_reals_shortest(void)
{
    static const struct { double x; const char *text; } row[] = {
        { 0.1, "0.1" }, { 1, "1.0" }, { -0.0, "-0.0" }, { 1e22, "1e+22" }, { 5e-324, "5e-324" }, { 0.30000000000000004, "0.30000000000000004" },
        { 123456789012345680.0, "1.2345678901234568e+17" }, { 2e-3, "0.002" }, { 1.7976931348623157e308, "1.7976931348623157e+308" },
    };
    for (int i = 0; i < CDR_COUNT(row); i++) {
        cdr_text t = { 0 };
        cdr_jw w = { .t = &t };
        cdr_jw_real(&w, NULL, row[i].x);
        T_STR(t.s, row[i].text);
        cdr_text_free(&t);
    }
    cdr_rng_key key = { 1, 1, 1 };
    int n_wrong = 0;
    for (uint64_t i = 0; i < 20000; i++) {                              /* any bits */
        uint64_t bits = cdr_rng_u64(key, i);
        double x, y;
        memcpy(&x, &bits, 8);
        if (!isfinite(x)) continue;
        cdr_pool *p = cdr_pool_new();
        cdr_err err = { 0 };
        cdr_text t = { 0 };
        cdr_jw w = { .t = &t };
        const cdr_json *j;
        cdr_jw_real(&w, NULL, x);
        n_wrong += cdr_json_parse(p, t.s, t.n, "w", &j, &err) != CDR_OK;
        y = cdr_json_real(j, 0);
        n_wrong += memcmp(&x, &y, 8) != 0;
        cdr_text_free(&t);
        cdr_pool_free(p);
    }
    T_CHECK(n_wrong == 0);
}

/* A random document, by choices r[0], r[1], ...: as text, in strange spacing. */
static void random_json(cdr_text *t, cdr_rng_key key)
{
    static const char *const space[] = { "", "", "", " ", "\n", "\t ", "\r\n" };
    static const char *const scalars[] = { "0", "-1", "1.25", "1e3", "-2.5E-7", "true", "false", "null", "\"\"", "\"a b\"", "\"\\u00e9\\n\\\"\"",
                                           "\"\\ud83d\\ude00z\"", "123456789012", "\"\xe2\x82\xac\"" };
    char close[16];
    int depth = 0;
    uint64_t i = 0;
    do {
        uint64_t r = cdr_rng_u64(key, i++);
        bool object = depth > 0 && close[depth - 1] == '}', again = depth > 0 && r % 4 == 0;
        if (again) {
            cdr_text_printf(t, "%s%c", space[r / 16 % 7], close[--depth]);
        } else {
            if (depth > 0 && t->s[t->n - 1] != '[' && t->s[t->n - 1] != '{') cdr_text_printf(t, "%s,%s", space[r / 8 % 7], space[r / 64 % 7]);
            if (object) cdr_text_printf(t, "\"k%llu\"%s:", (unsigned long long)i, space[r / 512 % 7]);
            if (depth < 12 && r / 4096 % 3 == 0 && i < 300) {
                bool map = r / 16384 % 2;
                cdr_text_printf(t, "%s", map ? "{" : "[");
                close[depth++] = map ? '}' : ']';
            } else {
                cdr_text_printf(t, "%s", scalars[r / 65536 % 14]);
            }
        }
    } while (depth > 0);
}

#ifdef CADRE_HAVE_CJSON
/* The same value as cJSON has: one level at a time. */
static bool same_as_cjson(const cdr_json *root, const cJSON *other_root)
{
    struct { const cdr_json *j; const cJSON *c; int64_t next; } level[16];
    int depth = 0;
    level[depth].j = root, level[depth].c = other_root, level[depth++].next = -1;
    while (depth > 0) {
        const cdr_json *j = level[depth - 1].j;
        const cJSON *c = level[depth - 1].c;
        if (level[depth - 1].next < 0) {
            level[depth - 1].next = 0;
            bool number = cdr_json_type(j) == CDR_JSON_INT || cdr_json_type(j) == CDR_JSON_REAL;
            if (number != (bool)cJSON_IsNumber(c) || (number && cdr_json_real(j, 0) != c->valuedouble)) return false;
            if ((cdr_json_type(j) == CDR_JSON_STRING) != (bool)cJSON_IsString(c)) return false;
            if (cJSON_IsString(c) && strcmp(c->valuestring, cdr_json_str(j, "?")) != 0) return false;
            if ((cdr_json_type(j) == CDR_JSON_NULL) != (bool)cJSON_IsNull(c)) return false;
            if ((cdr_json_type(j) == CDR_JSON_BOOL) != (bool)cJSON_IsBool(c) || (cJSON_IsBool(c) && cdr_json_bool(j, false) != (bool)cJSON_IsTrue(c))) return false;
            if ((cdr_json_type(j) == CDR_JSON_OBJECT) != (bool)cJSON_IsObject(c) || (cdr_json_type(j) == CDR_JSON_ARRAY) != (bool)cJSON_IsArray(c)) return false;
            if (cdr_json_count(j) != cJSON_GetArraySize(c)) return false;
        }
        int64_t i = level[depth - 1].next++;
        if (i >= cdr_json_count(j)) {
            depth--;
            continue;
        }
        const cJSON *member = cJSON_GetArrayItem(c, (int)i);
        if (cJSON_IsObject(c) && (strcmp(member->string, cdr_json_key(j, i)) != 0 || cdr_json_get(j, member->string) != cdr_json_at(j, i))) return false;
        level[depth].j = cdr_json_at(j, i), level[depth].c = member, level[depth++].next = -1;
    }
    return true;
}
#endif

/* Random documents: read alike by cJSON, written and read again, and refused where they are cut off. */
static void json_random_documents(void)
{
#ifndef CADRE_HAVE_CJSON
    printf("      cJSON is not installed: not compared with it\n");
#endif
    int64_t n_members = 0;
    for (uint64_t k = 0; k < 3000; k++) {
        cdr_pool *p = cdr_pool_new();
        cdr_err err = { 0 };
        cdr_text t = { 0 }, written = { 0 };
        const cdr_json *j, *again;
        random_json(&t, (cdr_rng_key){ 3, k, 0 });
        bool taken = parse_json(p, t.s, t.n, &j, &err) == CDR_OK;
        T_CHECK(taken);
#ifdef CADRE_HAVE_CJSON
        cJSON *c = cJSON_ParseWithLength(t.s, t.n);
        T_CHECK(c && same_as_cjson(j, c));
        cJSON_Delete(c);
#endif
        if (taken) {
            n_members += cdr_json_count(j);
            json_write(&written, j);
            T_CHECK(parse_json(p, written.s, written.n, &again, &err) == CDR_OK && json_equal(j, again));
        }
        /* every proper part of a text that is one container is refused */
        for (size_t n = 0; taken && json_is_tree(j) && k < 100 && n + 1 < t.n; n++) {
            cdr_err cut = { 0 };
            T_CHECK(parse_json(p, t.s, n, &again, &cut) == CDR_EDATA);
        }
        cdr_text_free(&t);
        cdr_text_free(&written);
        cdr_pool_free(p);
    }
    T_CHECK(n_members > 3000);
}

/* Seconds to parse and look up n entries as a safetensors header has them, best of three. */
static double seconds_for(int n)
{
    cdr_text t = { 0 };
    cdr_text_printf(&t, "{");
    for (int i = 0; i < n; i++)
        cdr_text_printf(&t, "%s\"model.layers.%d.mlp.experts.%d.w1.weight\":{\"dtype\":\"BF16\",\"shape\":[%d,2],\"data_offsets\":[%lld,%lld]}", i ? "," : "",
                        i / 900, i % 900, i, 4ll * i, 4ll * i + 4);
    cdr_text_printf(&t, "}");
    double best = 1e9;
    for (int turn = 0; turn < 3; turn++) {
        cdr_pool *p = cdr_pool_new();
        cdr_err err = { 0 };
        const cdr_json *j;
        char key[80];
        int n_wrong = 0;
        int64_t from = cdr_now_ns();
        T_CHECK(cdr_json_parse(p, t.s, t.n, "header", &j, &err) == CDR_OK && cdr_json_count(j) == n);
        for (int i = 0; i < n; i++) {
            snprintf(key, sizeof key, "model.layers.%d.mlp.experts.%d.w1.weight", i / 900, i % 900);
            n_wrong += cdr_json_int(cdr_json_at(cdr_json_get(cdr_json_get(j, key), "shape"), 0), -1) != i;
        }
        best = CDR_MIN(best, 1e-9 * (double)(cdr_now_ns() - from));
        T_CHECK(n_wrong == 0);
        cdr_pool_free(p);
    }
    cdr_text_free(&t);
    return best;
}

/* Ten times the entries: ten times the time, and some for the caches. Quadratic time would be a hundred times. */
static void json_linear_time(void)
{
    int n = t_quick() ? 10000 : 50000;
    double small = seconds_for(n), large = seconds_for(10 * n);
    for (int i = 0; i < 4 && !(large < 40 * small); i++) large = CDR_MIN(large, seconds_for(10 * n));   /* something else ran meanwhile */
    printf("      %d entries %.0f ms, %d entries %.0f ms\n", n, small * 1e3, 10 * n, large * 1e3);
    T_CHECK(large < 40 * small);
}

/* ---- YAML ----------------------------------------------------------------------------------------------------------- */
static cdr_status parse_yaml(cdr_pool *p, const char *text, cdr_yaml **root, cdr_err *err)
{
    return cdr_yaml_parse(p, text, strlen(text), "r.yaml", root, err);
}

static void yaml_values(void)
{
    static const char text[] = "# a recipe\n"
        "train: {steps: 600, micro_batch_tokens: 4_096}\n"
        "model:\n"
        "  path: \"tiny \\u00e9\"   # quoted\n"
        "  layers:\n"
        "  - no\n"
        "  - '0755'\n"
        "  - [a, {b: c}, ]\n"
        "note: |\n"
        "  two\n"
        "  lines\n"
        "none:\n"
        "\"quoted key\": x\n";
    cdr_pool *p = cdr_pool_new();
    cdr_err err = { 0 };
    cdr_yaml *y;
    T_CHECK(parse_yaml(p, text, &y, &err) == CDR_OK);
    T_STR(err.text, "");
    T_CHECK(y->kind == CDR_YAML_MAP && y->n == 5 && y->line == 2 && y->col == 1 && !y->key);
    const cdr_yaml *train = cdr_yaml_get(y, "train"), *tokens = cdr_yaml_get(train, "micro_batch_tokens");
    T_CHECK(train->line == 2 && train->col == 8 && train->key_line == 2 && train->key_col == 1);
    T_STR(tokens->text, "4_096");
    T_CHECK(tokens->col == 41 && tokens->key_col == 21 && !tokens->quoted);
    const cdr_yaml *model = cdr_yaml_get(y, "model"), *layers = cdr_yaml_get(model, "layers"), *path = cdr_yaml_get(model, "path");
    T_STR(path->text, "tiny \xc3\xa9");
    T_CHECK(path->quoted && path->line == 4 && path->col == 9);
    T_CHECK(layers->kind == CDR_YAML_LIST && layers->n == 3);
    T_STR(layers->items[0].text, "no");                                 /* no boolean */
    T_CHECK(!layers->items[0].quoted && layers->items[1].quoted && !layers->items[0].key);
    T_STR(layers->items[1].text, "0755");
    T_CHECK(layers->items[2].kind == CDR_YAML_LIST && layers->items[2].n == 2);
    T_STR(cdr_yaml_get(&layers->items[2].items[1], "b")->text, "c");
    T_STR(cdr_yaml_get(y, "note")->text, "two\nlines\n");
    T_CHECK(cdr_yaml_get(y, "note")->quoted);
    T_STR(cdr_yaml_get(y, "none")->text, "");
    T_STR(cdr_yaml_get(y, "quoted key")->text, "x");
    T_STR(y->items[3].key, "none");                                     /* file order */
    T_CHECK(!cdr_yaml_get(y, "absent") && !cdr_yaml_get(layers, "a") && !cdr_yaml_get(NULL, "a"));
    T_CHECK(parse_yaml(p, "{}", &y, &err) == CDR_OK && y->kind == CDR_YAML_MAP && y->n == 0);
    T_CHECK(parse_yaml(p, "--- a: 1\n", &y, &err) != CDR_OK);
    err = (cdr_err){ 0 };
    T_CHECK(parse_yaml(p, "---\na: 1\n...\n", &y, &err) == CDR_OK && y->n == 1);
    T_CHECK(parse_yaml(p, "x", &y, &err) == CDR_OK && y->kind == CDR_YAML_SCALAR);
    cdr_pool_free(p);
}

static void yaml_refused(void)
{
    static const struct { const char *text, *id, *said; } row[] = {
        { "", "yaml.empty", "r.yaml:1:1: holds no document" },
        { "# only this\n", "yaml.empty", "no document" },
        { "a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\n", "yaml.duplicate-key", "r.yaml:5:3: duplicate key \"c\"" },
        { "{a: 1, b: 2, 'a': 3}", "yaml.duplicate-key", "r.yaml:1:14: duplicate key \"a\"" },
        { "a: &x 1", "yaml.anchor", "r.yaml:1:4: an anchor" },
        { "a: &x [1]", "yaml.anchor", "r.yaml:1:4" },
        { "a: &x {b: 1}", "yaml.anchor", "r.yaml:1:4" },
        { "&x a: 1", "yaml.anchor", "anchor" },
        { "a: *x", "yaml.alias", "r.yaml:1:4: an alias" },
        { "a: !!int 1", "yaml.tag", "r.yaml:1:4: a tag" },
        { "a: !mine [1]", "yaml.tag", "a tag" },
        { "!!map {a: 1}", "yaml.tag", "a tag" },
        { "%TAG ! tag:x:\n---\na: 1", "yaml.tag", "%TAG" },
        { "<<: {a: 1}", "yaml.merge", "r.yaml:1:1: a merge key" },
        { "b:\n  <<: [1]", "yaml.merge", "r.yaml:2:3" },
        { "? [a, b]\n: 1", "yaml.key", "r.yaml:1:3: a list or map as a key" },
        { "{{a: b}: c}", "yaml.key", "a list or map" },
        { "\"\": 1", "yaml.key", "r.yaml:1:1: an empty key" },
        { "a:\n  ? \n  : 1", "yaml.key", "an empty key" },
        { "a: \"x\\0y\"", "yaml.nul", "r.yaml:1:4: a zero character" },
        { "a: 1\n---\nb: 2\n", "yaml.documents", "r.yaml:2:1: a second document" },
        { "a: b: c", "yaml.syntax", "r.yaml:1:5" },
        { "a: [1, 2", "yaml.syntax", "that begins in line 1" },
        { "a:\n\t- b", "yaml.syntax", "r.yaml:2:1" },
        { "a: 'x", "yaml.syntax", "r.yaml:1:" },
        { "a: 1\n b: 2", "yaml.syntax", "r.yaml:2:3" },
        { "a: @x", "yaml.syntax", "r.yaml:1:4" },
        { "a: 1\nb: \xff", "yaml.utf8", "r.yaml:2:4: " },
        { "a: \x01", "yaml.utf8", "r.yaml:1:4" },
    };
    for (int i = 0; i < CDR_COUNT(row); i++) {
        cdr_pool *p = cdr_pool_new();
        cdr_err err = { 0 };
        cdr_yaml *y;
        T_CHECK(parse_yaml(p, row[i].text, &y, &err) == CDR_EUSER && !y);
        T_STR(err.id, row[i].id);
        T_HAS(err.text, row[i].said);
        cdr_pool_free(p);
    }
}

static void yaml_limits(void)
{
    cdr_pool *p = cdr_pool_new();
    cdr_yaml *y;
    for (int depth = 15; depth <= 17; depth++) {
        cdr_err err = { 0 };
        char text[64] = "";
        for (int i = 0; i < depth; i++) strcat(text, "[");
        for (int i = 0; i < depth; i++) strcat(text, "]");
        T_CHECK(parse_yaml(p, text, &y, &err) == (depth <= 16 ? CDR_OK : CDR_EUSER));
        if (depth > 16) {
            T_STR(err.id, "yaml.depth");
        }
    }
    cdr_text t = { 0 };
    for (int i = 0; t.n < (1 << 20) - 16; i++) cdr_text_printf(&t, "%06x:\n", i);      /* 130,000 keys of one map */
    cdr_err err = { 0 };
    int64_t from = cdr_now_ns();
    T_CHECK(parse_yaml(p, t.s, &y, &err) == CDR_OK && y->n > 100000);
    printf("      %d keys %.0f ms\n", y ? y->n : 0, 1e-6 * (double)(cdr_now_ns() - from));
    while (t.n <= 1 << 20) cdr_text_append(&t, "\n", 1);
    T_CHECK(parse_yaml(p, t.s, &y, &err) == CDR_EUSER);
    T_STR(err.id, "yaml.size");
    cdr_text_free(&t);
    cdr_pool_free(p);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(json_values);
    T_RUN(json_scalar_documents);
    T_RUN(json_refused);
    T_RUN(json_depth);
    T_RUN(json_written);
    T_RUN(json_reals_shortest);
    T_RUN(json_random_documents);
    T_RUN(json_linear_time);
    T_RUN(yaml_values);
    T_RUN(yaml_refused);
    T_RUN(yaml_limits);
    return t_end();
}
