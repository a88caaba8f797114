/* chat_dump.c: renders conversations for tools/peers/chat.py. Lines of standard input are cases (chat_rig.h) with a
 * "tokenizer" ({"type", "dir", "file", "base", "special"}); each gives a line: {"tokens": [[id, message, part], ...]}
 * or {"error": id, "text": message}.
 */
#include "chat_rig.h"
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

static void answer(const char *line, size_t n, held *h)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_chat_tokens out = { 0 };
    cdr_err err = { 0 };
    const cdr_json *j = NULL;
    cdr_status st = cdr_json_parse(pool, line, n, "stdin", &j, &err);
    if (st == CDR_OK) st = tokenizer_of(j, h, &err);
    if (st == CDR_OK) st = rig_render(pool, j, h->tok, &out, &err);
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    cdr_jw_begin(&w, NULL, '{');
    if (st != CDR_OK) {
        cdr_jw_str(&w, "error", err.id);
        cdr_jw_str(&w, "text", err.text);
    } else {
        cdr_jw_begin(&w, "tokens", '[');
        for (int64_t i = 0; i < out.n; i++) {
            cdr_jw_begin(&w, NULL, '[');
            cdr_jw_int(&w, NULL, out.t[i].id);
            cdr_jw_int(&w, NULL, out.t[i].message);
            cdr_jw_int(&w, NULL, out.t[i].part);
            cdr_jw_end(&w, ']');
        }
        cdr_jw_end(&w, ']');
    }
    cdr_jw_end(&w, '}');
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
