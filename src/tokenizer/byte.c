/* byte.c: the tokenizer that needs no file. Id = byte for 0 to 255, then 256 special slots at the places that they have after Kimi K3's
 * 163,584 ranks (K3's [BOS] 163584 is 256 here), so what is trained on bytes uses the specials as the large model does.
 * Source of names and places: K3's published tokenizer_config; a slot without a name is <|reserved_token_ID|>.
 */
#include "tokenizer/internal.h"

#include <string.h>

enum { N_BYTES = 256, N_SPECIAL = 256 };

static const struct { int slot; const char *name; } SPECIALS[] = {
    { 0, "[BOS]" },              { 1, "[EOS]" },             { 2, "<|end_of_msg|>" },     { 3, "<|open|>" },
    { 4, "<|close|>" },          { 5, "<|sep|>" },           { 6, "[start_header_id]" },  { 7, "[end_header_id]" },
    { 9, "[EOT]" },              { 18, "<|media_begin|>" },  { 19, "<|media_content|>" }, { 20, "<|media_end|>" },
    { 21, "<|media_pad|>" },     { 65, "<osagent_mode>" },   { 254, "[UNK]" },            { 255, "[PAD]" },
};

static cdr_status byte_open(const cdr_tokenizer_spec *s, cdr_tokenizer *tok, cdr_err *err)
{
    (void)s;
    cdr__special special[N_SPECIAL];
    uint32_t *at = cdr_pool_alloc(tok->pool, sizeof *at * (N_BYTES + N_SPECIAL + 1));
    char *text = cdr_pool_alloc(tok->pool, N_BYTES);
    for (int i = 0; i < N_BYTES; i++) text[i] = (char)(unsigned char)i;
    for (int i = 0; i <= N_BYTES + N_SPECIAL; i++) at[i] = (uint32_t)CDR_MIN(i, N_BYTES);
    for (int i = 0; i < N_SPECIAL; i++) {
        const char *name = cdr_pool_printf(tok->pool, "<|reserved_token_%d|>", N_BYTES + i);
        for (int k = 0; k < CDR_COUNT(SPECIALS); k++)
            if (SPECIALS[k].slot == i) name = SPECIALS[k].name;
        special[i] = (cdr__special){ .name = name, .n = (uint32_t)strlen(name), .id = N_BYTES + i };
    }
    tok->vocab = N_BYTES + N_SPECIAL;
    tok->growth = 1;
    tok->at = at;
    tok->text = text;
    CDR_TRY(cdr__tokenizer_finish(tok, special, N_SPECIAL, NULL, 0, "byte", err));
    cdr__tokenizer_roles(tok, NULL);
    return CDR_OK;
}

static int64_t byte_encode(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    (void)tok;
    for (size_t i = 0; i < bytes; i++) ids[i] = (unsigned char)text[i];
    return (int64_t)bytes;
}

static size_t byte_cut(const cdr_tokenizer *tok, const char *text, size_t bytes, size_t from)
{
    (void)tok;
    (void)text;
    return CDR_MIN(from, bytes);
}

const cdr__tokenizer_kind cdr__tokenizer_byte = { "byte", byte_open, byte_encode, NULL, byte_cut };
