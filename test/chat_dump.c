/* chat_dump.c: renders conversations for tools/peers/chat.py. Lines of standard input are cases (chat_rig.h) with a
 * "tokenizer" ({"type", "dir", "file", "base", "special"}); each gives a line: {"tokens": [[id, message, part], ...]}
 * or {"error": id, "text": message}. A line {"jinja": SOURCE, "context": {NAME: VALUE}} gives {"text": TEXT}.
 */
#include "chat_rig.h"
#include "chat/jinja.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct { char *key; cdr_tokenizer *tok; } held;

/* The tokenizer of a case; the last one stays open, as most lines name the same. */
static cdr_status tokenizer_of(const cdr_json *j, held *h, cdr_err *err)
{
    const cdr_json *t = cdr_json_get(j, "tokenizer");
    cdr_text key = { 0 };
    if (t) (void)cdr_chat_json(&key, t);
    else cdr_text_printf(&key, "byte");
    if (h->tok && strcmp(h->key, key.s) == 0) {
        cdr_text_free(&key);
        return CDR_OK;
    }
    cdr_tokenizer_close(h->tok);
    cdr_free(h->key);
    *h = (held){ .key = key.s };
    cdr_tokenizer_spec s = { .type = cdr_json_str(cdr_json_get(t, "type"), "byte"), .dir = cdr_json_str(cdr_json_get(t, "dir"), NULL),
                             .file = cdr_json_str(cdr_json_get(t, "file"), NULL), .base = (int)cdr_json_int(cdr_json_get(t, "base"), 0),
                             .special = (int)cdr_json_int(cdr_json_get(t, "special"), 0) };
    return cdr_tokenizer_open(&s, &h->tok, err);
}

/* A template alone, with the values of the context as data. */
static cdr_status run_template(const cdr_json *j, cdr_jw *w, cdr_err *err)
{
    const char *source = cdr_json_str(cdr_json_get(j, "jinja"), "");
    const cdr_json *context = cdr_json_get(j, "context");
    cdr__jtemplate *t;
    cdr__jx x;
    CDR_TRY(cdr__jinja_parse(source, strlen(source), "template", &t, err));
    cdr__jinja_begin(&x, t, 4096, err);
    bool ok = true;
    for (int64_t i = 0; context && ok && i < cdr_json_count(context); i++) {
        cdr__jv v;
        ok = cdr__jv_of_json(&x, cdr_json_at(context, i), CDR__TAG_DATA, &v);
        if (ok) cdr__jinja_set(&x, cdr_json_key(context, i), v);
    }
    ok = ok && cdr__jinja_run(&x);
    if (ok) {
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "text", x.whole.s.n ? x.whole.s.s : "");
        cdr_jw_end(w, '}');
    }
    cdr__jinja_end(&x);
    cdr__jinja_free(t);
    return ok ? CDR_OK : CDR_EDATA;
}

static void answer(const char *line, size_t n, held *h)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_chat_tokens out = { 0 };
    cdr_err err = { 0 };
    const cdr_json *j = NULL;
    cdr_status st = cdr_json_parse(pool, line, n, "stdin", &j, &err);
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    bool alone = st == CDR_OK && cdr_json_get(j, "jinja");
    if (alone) st = run_template(j, &w, &err);
    else if (st == CDR_OK) st = tokenizer_of(j, h, &err);
    if (st == CDR_OK && !alone) st = rig_render(pool, j, h->tok, NULL, &out, &err);
    if (st != CDR_OK) {
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_str(&w, "error", err.id);
        cdr_jw_str(&w, "text", err.text);
        cdr_jw_end(&w, '}');
    } else if (!alone) {
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_begin(&w, "tokens", '[');
        for (int64_t i = 0; i < out.n; i++) {
            cdr_jw_begin(&w, NULL, '[');
            cdr_jw_int(&w, NULL, out.t[i].id);
            cdr_jw_int(&w, NULL, out.t[i].message);
            cdr_jw_int(&w, NULL, out.t[i].part);
            cdr_jw_end(&w, ']');
        }
        cdr_jw_end(&w, ']');
        cdr_jw_end(&w, '}');
    }
    puts(t.s);
    fflush(stdout);
    cdr_text_free(&t);
    cdr_chat_tokens_free(&out);
    cdr_pool_free(pool);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    held h = { 0 };
    while ((n = getline(&line, &cap, stdin)) > 0) answer(line, (size_t)n, &h);
    cdr_tokenizer_close(h.tok);
    cdr_free(h.key);
    free(line);
    return 0;
}
