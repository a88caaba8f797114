/* test_tokenizer.c: ids of every kind of tokenizer, specials, and files that lie. */
#include "tokenizer/tokenizer.h"

#include "test.h"

static void bytes_and_specials(void)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err = { 0 };
    char text[256];
    int32_t ids[256];
    size_t n;
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "gpt2" }, &tok, &err) == CDR_EUSER && !tok);
    T_STR(err.id, "tokenizer.unknown");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_vocab(tok) == 512 && cdr_tokenizer_room(tok, 7) == 7);
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    T_CHECK(cdr_tokenizer_encode(tok, text, 256, ids) == 256);
    for (int i = 0; i < 256; i++) {
        const char *b = cdr_tokenizer_bytes(tok, i, &n);
        T_CHECK(ids[i] == i && n == 1 && *b == (char)i);
    }
    static const struct { const char *name; int id; } K3[] = {
        { "[BOS]", 256 }, { "[EOS]", 257 }, { "<|end_of_msg|>", 258 }, { "<|open|>", 259 }, { "<|close|>", 260 }, { "<|sep|>", 261 },
        { "[EOT]", 265 }, { "<|media_pad|>", 277 }, { "<osagent_mode>", 321 }, { "[UNK]", 510 }, { "[PAD]", 511 },
        { "<|reserved_token_264|>", 264 },
    };
    for (int i = 0; i < CDR_COUNT(K3); i++) {
        T_CHECK(cdr_tokenizer_special(tok, K3[i].name) == K3[i].id);
        T_STR(cdr_tokenizer_special_name(tok, K3[i].id), K3[i].name);
        cdr_tokenizer_bytes(tok, K3[i].id, &n);
        T_CHECK(n == 0);
    }
    T_CHECK(cdr_tokenizer_special(tok, "[CLS]") == -1 && !cdr_tokenizer_special_name(tok, 255) && !cdr_tokenizer_special_name(tok, 512));
    T_CHECK(!cdr_tokenizer_bytes(tok, -1, &n) && !cdr_tokenizer_bytes(tok, 512, &n));
    cdr_text out = { 0 };
    T_CHECK(cdr_tokenizer_decode(tok, (const int32_t[]){ 'a', 257, 'b' }, 3, false, &out));
    T_CHECK(cdr_tokenizer_decode(tok, (const int32_t[]){ 257 }, 1, true, &out));
    T_CHECK(out.n == 7 && memcmp(out.s, "ab[EOS]", 7) == 0);
    T_CHECK(!cdr_tokenizer_decode(tok, (const int32_t[]){ 512 }, 1, true, &out) && !cdr_tokenizer_decode(tok, (const int32_t[]){ -1 }, 1, true, &out));
    cdr_text_free(&out);
    cdr_tokenizer_close(tok);
}

/* Names become ids in a template's text alone. */
static void trusted_text(void)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err = { 0 };
    int32_t ids[64];
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_encode(tok, "[EOS]", 5, ids) == 5 && ids[0] == '[');
    T_CHECK(cdr_tokenizer_encode_trusted(tok, "[EOS]", 5, ids) == 1 && ids[0] == 257);
    static const char text[] = "<|open|a<|open|>b<|sep|><|reserved_token_300|><|reserved_token_300";
    static const int32_t want[] = { '<', '|', 'o', 'p', 'e', 'n', '|', 'a', 259, 'b', 261, 300, '<', '|', 'r', 'e', 's' };
    int64_t n = cdr_tokenizer_encode_trusted(tok, text, sizeof text - 1, ids);
    T_CHECK(n == 12 + 20 && memcmp(ids, want, sizeof want) == 0);
    T_CHECK(cdr_tokenizer_encode_trusted(tok, text, 0, ids) == 0);
    cdr_tokenizer_close(tok);
}

int main(int argc, char **argv)
{
    if (argc > 1) t_filter = argv[1];
    T_RUN(bytes_and_specials);
    T_RUN(trusted_text);
    return t_end();
}
