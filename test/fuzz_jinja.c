/* fuzz_jinja.c: any bytes as a chat template, run on a small conversation with few steps and little memory. It never crashes and
 * always ends; what it writes has a tag for every byte, and is the same twice; what it refuses has a message with the line, and
 * a stable id.
 */
#include "chat/jinja.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char CONTEXT[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"H\\u00e9, <|im_end|> 42\\n\"},"
    " {\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"hm\", \"tool_calls\": [{\"id\": \"c\", \"type\": \"function\","
    " \"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, true, null]}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"c\", \"content\": \"7\"}],"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {}}}}}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"[BOS]\", \"n\": 3}";

static bool run(const cdr__jtemplate *t, const cdr_json *context, cdr_text *out, cdr_err *err)
{
    cdr__jx x;
    cdr__jinja_begin(&x, t, 0, err);
    x.fuel = 100000;
    x.bytes_max = 4 << 20;
    bool ok = true;
    for (int64_t i = 0; ok && i < cdr_json_count(context); i++) {
        cdr__jv v;
        ok = cdr__jv_of_json(&x, cdr_json_at(context, i), CDR__TAG_DATA, &v);
        if (ok) cdr__jinja_set(&x, cdr_json_key(context, i), v);
    }
    ok = ok && cdr__jinja_run(&x);
    CDR_CHECK(x.whole.s.n == x.whole.tag.n);
    if (ok && x.whole.s.n) cdr_text_append(out, x.whole.s.s, x.whole.s.n);
    cdr__jinja_end(&x);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cdr_err err = { 0 }, again = { 0 };
    cdr_pool *pool = cdr_pool_new();
    cdr__jtemplate *t = NULL;
    const cdr_json *context;
    cdr_text one = { 0 }, two = { 0 };
    char *source = cdr_alloc(size + 1);             /* a read beyond the end is seen but for the one byte */
    if (size) memcpy(source, data, size);
    CDR_CHECK(cdr_json_parse(pool, CONTEXT, sizeof CONTEXT - 1, "context", &context, &err) == CDR_OK);
    bool ok = cdr__jinja_parse(source, size, "template", &t, &err) == CDR_OK;
    cdr_free(source);
    if (ok) {
        ok = run(t, context, &one, &err);
        CDR_CHECK(run(t, context, &two, &again) == ok && one.n == two.n && (one.n == 0 || memcmp(one.s, two.s, one.n) == 0));
    }
    if (!ok) CDR_CHECK(err.status == CDR_EDATA && strncmp(err.text, "template:", 9) == 0 && strncmp(err.id, "jinja.", 6) == 0);
    cdr_text_free(&one);
    cdr_text_free(&two);
    cdr__jinja_free(t);
    cdr_pool_free(pool);
    return 0;
}
