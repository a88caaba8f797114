/* internal.h: what the kinds of tokenizers share. A kind fills token bytes and special ids, cdr__tokenizer_finish sorts and hashes them,
 * tokenizer.c answers every question from them; only encode is the kind's own.
 *
 *   const cdr__tokenizer_kind cdr__tokenizer_byte = { "byte", byte_open, byte_encode, NULL, byte_cut };     // a row of the table in tokenizer.c
 */
#ifndef CDR_TOKENIZER_INTERNAL_H
#define CDR_TOKENIZER_INTERNAL_H

#include "tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CDR__SPECIAL_TEXT = 1,              /* stands for text, found in user text too: an added run of spaces */
    CDR__SPECIAL_WORD = 2,              /* only between what are no word characters */
    CDR__SPECIAL_LEFT = 4, CDR__SPECIAL_RIGHT = 8,          /* takes the white space on its left, right with it */
    CDR__SPECIAL_NORMALIZED = 16,       /* looked for in the normalized text */
};
typedef struct { const char *name; uint32_t n; int32_t id; uint32_t flags; } cdr__special;

typedef struct {
    const char *name;
    cdr_status (*open)(const cdr_tokenizer_spec *s, cdr_tokenizer *tok, cdr_err *err);        /* a failure needs no clean-up beyond the pool */
    int64_t (*encode)(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids);
    int64_t (*encode_trusted)(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids);        /* NULL: names cut the text, between them encode */
    size_t (*cut)(const cdr_tokenizer *tok, const char *text, size_t bytes, size_t from);
} cdr__tokenizer_kind;
extern const cdr__tokenizer_kind cdr__tokenizer_byte, cdr__tokenizer_tiktoken, cdr__tokenizer_hf_bpe;

struct cdr_tokenizer {
    const cdr__tokenizer_kind *kind;
    cdr_pool *pool;
    int vocab, growth;                                /* growth: ids for one byte of text, at most */
    const uint32_t *at; const char *text;             /* id stands for text[at[id]] up to text[at[id + 1]]; nothing: a special, or a number without a token */
    int n_special;
    const cdr__special *by_id, *by_name;              /* the same ones, sorted */
    int32_t first[257];                               /* by_name[first[b]] .. by_name[first[b + 1]] begin with byte b */
    int32_t bos, eos, pad;                            /* -1: none */
    uint64_t hash;
    const void *own;                                  /* the kind's */
};

/* From token bytes (vocab + 1 places) and specials in any order. rules: what else decides ids, for the hash. A name or id that is there twice is an error. */
cdr_status cdr__tokenizer_finish(cdr_tokenizer *tok, const cdr__special *special, int n, const void *rules, size_t rules_bytes, const char *where, cdr_err *err);
/* The longest name that text begins with, of those with (flags & mask) == value; NULL: none. */
const cdr__special *cdr__special_at(const cdr_tokenizer *tok, const char *text, size_t bytes, uint32_t mask, uint32_t value);
/* Names cut the text and become their ids; encode is for what lies between. */
int64_t cdr__encode_names(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids,
                          int64_t (*encode)(const cdr_tokenizer *, const char *, size_t, int32_t *));
/* dir/file, with a name where the spec has none. */
const char *cdr__tokenizer_path(cdr_pool *pool, const cdr_tokenizer_spec *s, const char *file);

/* tokenizer_config.json beside the file at path, into the pool; *root NULL: not there. *config: its path. */
cdr_status cdr__tokenizer_config(cdr_pool *pool, const char *path, const cdr_json **root, const char **config, cdr_err *err);
/* After finish: which ids begin, end and fill texts, as the config says, else [BOS], [EOS], [PAD]. */
void cdr__tokenizer_roles(cdr_tokenizer *tok, const cdr_json *config);

#ifdef __cplusplus
}
#endif
#endif
