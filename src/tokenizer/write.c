/* write.c: a byte or tiktoken tokenizer as the two files that tiktoken.c reads: ranks, and tokenizer_config.json with the names of special ids. */
#include "tokenizer/internal.h"

#include <string.h>

static void base64(const char *s, size_t n, cdr_text *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t x = 0;
        for (size_t k = 0; k < 3; k++) x = x << 8 | (i + k < n ? (unsigned char)s[i + k] : 0u);
        char four[4] = { digit[x >> 18], digit[x >> 12 & 63], i + 1 < n ? digit[x >> 6 & 63] : '=', i + 2 < n ? digit[x & 63] : '=' };
        cdr_text_append(out, four, 4);
    }
}

static void put_special(cdr_jw *w, const cdr__special *s)
{
    char key[16];
    snprintf(key, sizeof key, "%d", s->id);
    cdr_jw_begin(w, key, '{');
    cdr_jw_str(w, "content", s->name);
    cdr_jw_bool(w, "lstrip", false);
    cdr_jw_bool(w, "normalized", false);
    cdr_jw_bool(w, "rstrip", false);
    cdr_jw_bool(w, "single_word", false);
    /* as in K3's own file: what a chat format opens and closes with is no "special" token to those who leave special ones out of text */
    cdr_jw_bool(w, "special", strcmp(s->name, "<|open|>") != 0 && strcmp(s->name, "<|close|>") != 0 && strcmp(s->name, "<|sep|>") != 0);
    cdr_jw_end(w, '}');
}

static void put_config(const cdr_tokenizer *tok, cdr_text *out)
{
    static const struct { const char *key, *name; } roles[] = { { "bos_token", "[BOS]" }, { "eos_token", "[EOS]" }, { "pad_token", "[PAD]" }, { "unk_token", "[UNK]" } };
    cdr_jw w = { .t = out };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_begin(&w, "added_tokens_decoder", '{');
    for (int i = 0; i < tok->n_special; i++) {
        char reserved[40];
        snprintf(reserved, sizeof reserved, "<|reserved_token_%d|>", tok->by_id[i].id);
        if (strcmp(reserved, tok->by_id[i].name) != 0) put_special(&w, &tok->by_id[i]);
    }
    cdr_jw_end(&w, '}');
    for (int i = 0; i < CDR_COUNT(roles); i++)
        if (cdr_tokenizer_special(tok, roles[i].name) >= 0) cdr_jw_str(&w, roles[i].key, roles[i].name);
    cdr_jw_str(&w, "tokenizer_class", "TikTokenTokenizer");
    cdr_jw_end(&w, '}');
    cdr_text_append(out, "\n", 1);
}

cdr_status cdr_tokenizer_write_tiktoken(const cdr_tokenizer *tok, const char *dir, const char *file, cdr_err *err)
{
    cdr_text ranks = { 0 }, config = { 0 };
    size_t n;
    if (tok->kind != &cdr__tokenizer_byte && tok->kind != &cdr__tokenizer_tiktoken)
        CDR_FAIL_ID(err, CDR_EUSER, "tokenizer.not-ranks", "%s: a tokenizer of type %s is no list of ranks, and cannot be written as one. Copy its own files", dir,
                    tok->kind->name);
    for (int id = 0; id < tok->vocab; id++) {
        const char *s = cdr_tokenizer_bytes(tok, id, &n);
        if (n == 0) continue;
        base64(s, n, &ranks);
        cdr_text_printf(&ranks, " %d\n", id);
    }
    put_config(tok, &config);
    cdr_pool *pool = cdr_pool_new();
    const char *path = cdr_pool_printf(pool, "%s/%s", dir, file), *names = cdr_pool_printf(pool, "%s/tokenizer_config.json", dir);
    cdr_status st = cdr_file_write(path, ranks.s, ranks.n, err);
    if (st == CDR_OK) st = cdr_file_write(names, config.s, config.n, err);
    cdr_text_free(&ranks);
    cdr_text_free(&config);
    cdr_pool_free(pool);
    return st;
}
