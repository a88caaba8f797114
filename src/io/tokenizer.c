/* tokenizer.c: text to ids and back. A tokenizer is a row of a table of functions; "byte" is the one that needs no file:
 * id = byte for 0 to 255, then 256 special slots at the places that they have after Kimi K3's 163,584 ranks (K3's
 * [BOS] 163584 is 256 here), so what is trained on bytes uses the specials as the large model does. Source of names and
 * places: K3's published tokenizer_config; a slot without a name is <|reserved_token_ID|>.
 */
#include "io/io.h"

#include <stdlib.h>

enum { N_BYTES = 256, N_SPECIAL = 256 };

struct cdr_tokenizer {
    const char *type;
    int vocab;
    int (*special)(const char *name);
    bool (*special_name)(int id, char out[40]);
    int (*bytes)(int id);
    int64_t (*encode)(const char *text, size_t bytes, int32_t *ids);
    void (*put)(int id, cdr_text *out);               /* bytes of an ordinary id */
};

static const struct { int slot; const char *name; } SPECIALS[] = {
    { 0, "[BOS]" },              { 1, "[EOS]" },             { 2, "<|end_of_msg|>" },     { 3, "<|open|>" },
    { 4, "<|close|>" },          { 5, "<|sep|>" },           { 6, "[start_header_id]" },  { 7, "[end_header_id]" },
    { 9, "[EOT]" },              { 18, "<|media_begin|>" },  { 19, "<|media_content|>" }, { 20, "<|media_end|>" },
    { 21, "<|media_pad|>" },     { 65, "<osagent_mode>" },   { 254, "[UNK]" },            { 255, "[PAD]" },
};

static bool byte_special_name(int id, char out[40])
{
    if (id < N_BYTES || id >= N_BYTES + N_SPECIAL) return false;
    (void)snprintf(out, 40, "<|reserved_token_%d|>", id);
    for (int i = 0; i < CDR_COUNT(SPECIALS); i++)
        if (SPECIALS[i].slot == id - N_BYTES) (void)snprintf(out, 40, "%s", SPECIALS[i].name);
    return true;
}

static int byte_special(const char *name)
{
    for (int id = N_BYTES; id < N_BYTES + N_SPECIAL; id++) {
        char s[40];
        if (byte_special_name(id, s) && strcmp(s, name) == 0) return id;
    }
    return -1;
}

static int byte_bytes(int id)
{
    return id >= 0 && id < N_BYTES;
}

static int64_t byte_encode(const char *text, size_t bytes, int32_t *ids)
{
    for (size_t i = 0; i < bytes; i++) ids[i] = (unsigned char)text[i];
    return (int64_t)bytes;
}

static void byte_put(int id, cdr_text *out)
{
    char c = (char)(unsigned char)id;
    cdr_text_append(out, &c, 1);
}

static const cdr_tokenizer TOKENIZERS[] = {
    { "byte", N_BYTES + N_SPECIAL, byte_special, byte_special_name, byte_bytes, byte_encode, byte_put },
};

cdr_status cdr_tokenizer_open(const char *type, const cdr_tokenizer **tok, cdr_err *err)
{
    for (int i = 0; i < CDR_COUNT(TOKENIZERS); i++)
        if (strcmp(TOKENIZERS[i].type, type) == 0) {
            *tok = &TOKENIZERS[i];
            return CDR_OK;
        }
    CDR_FAIL_ID(err, CDR_EUSER, "tokenizer.unknown", "data.tokenizer: \"%s\" is not known. This version has: byte", type);
}

const char *cdr_tokenizer_type(const cdr_tokenizer *tok)
{
    return tok->type;
}

int cdr_tokenizer_vocab(const cdr_tokenizer *tok)
{
    return tok->vocab;
}

int cdr_tokenizer_special(const cdr_tokenizer *tok, const char *name)
{
    return tok->special(name);
}

bool cdr_tokenizer_special_name(const cdr_tokenizer *tok, int id, char out[40])
{
    return tok->special_name(id, out);
}

int cdr_tokenizer_bytes(const cdr_tokenizer *tok, int id)
{
    return tok->bytes(id);
}

int64_t cdr_tokenizer_encode(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    return tok->encode(text, bytes, ids);
}

bool cdr_tokenizer_decode(const cdr_tokenizer *tok, const int32_t *ids, int64_t n, bool specials, cdr_text *out)
{
    for (int64_t i = 0; i < n; i++) {
        char name[40];
        if (ids[i] < 0 || ids[i] >= tok->vocab) return false;
        if (!tok->special_name(ids[i], name)) tok->put(ids[i], out);
        else if (specials) cdr_text_append(out, name, strlen(name));
    }
    return true;
}
