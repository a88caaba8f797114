/* tokenizer.h: text to ids and back. A kind is one file: byte.c, tiktoken.c (rank BPE of a tiktoken.model), hf_bpe.c (BPE of a tokenizer.json).
 *
 *   cdr_tokenizer *tok;
 *   CDR_TRY(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "tiktoken", .dir = "k3", .file = "tiktoken.model", .base = 163584, .special = 256 }, &tok, err));
 *   int32_t *ids = cdr_alloc(sizeof *ids * (size_t)cdr_tokenizer_room(tok, n));
 *   int64_t k = cdr_tokenizer_encode(tok, text, n, ids);           // user text: never makes a special id
 *   cdr_tokenizer_close(tok);
 *
 * Files are untrusted. An open tokenizer is read-only: encode and decode may run on several threads at once.
 * Source of formats: spec/formats.md, 2.1 to 2.3; spec/model.md, 6.1.
 */
#ifndef CDR_TOKENIZER_H
#define CDR_TOKENIZER_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cdr_tokenizer cdr_tokenizer;

typedef struct {
    const char *type;             /* byte, tiktoken, hf_bpe */
    const char *dir, *file;       /* of the files; tokenizer_config.json, where names of special ids stand, is beside file. byte: not read */
    int base, special;            /* tiktoken: ranks and special slots that the model has; 0: as the files say */
    const char *pattern;          /* tiktoken: name of the pre-tokenizer: kimi (default), o200k, cl100k */
} cdr_tokenizer_spec;

/* Fills type, dir and file by what lies at path: a file (.json: hf_bpe, else tiktoken), or a directory with tiktoken.model or tokenizer.json (of both the one of
 * type `prefer`, else the first). Borrows path. False: neither is there. */
bool cdr_tokenizer_find(const char *path, const char *prefer, cdr_pool *pool, cdr_tokenizer_spec *s);
cdr_status cdr_tokenizer_open(const cdr_tokenizer_spec *s, cdr_tokenizer **tok, cdr_err *err);
void cdr_tokenizer_close(cdr_tokenizer *tok);                       /* NULL: nothing */
const char *cdr_tokenizer_type(const cdr_tokenizer *tok);
int cdr_tokenizer_vocab(const cdr_tokenizer *tok);                  /* ids 0 .. vocab - 1, special slots included */
uint64_t cdr_tokenizer_hash(const cdr_tokenizer *tok);              /* of everything that decides ids: the same text gets the same ids */

/* Special ids (control tokens) have names: "<|end_of_msg|>". A slot without a name is <|reserved_token_ID|>. */
int cdr_tokenizer_special(const cdr_tokenizer *tok, const char *name);                          /* -1: none */
const char *cdr_tokenizer_special_name(const cdr_tokenizer *tok, int id);                       /* NULL: id is no special */

/* The ids that begin, end and fill texts: bos_token, eos_token and pad_token of tokenizer_config.json, else [BOS], [EOS] and [PAD]; -1: none. */
int cdr_tokenizer_bos(const cdr_tokenizer *tok);
int cdr_tokenizer_eos(const cdr_tokenizer *tok);
int cdr_tokenizer_pad(const cdr_tokenizer *tok);

/* Elements of ids that `bytes` of text may need. */
int64_t cdr_tokenizer_room(const cdr_tokenizer *tok, size_t bytes);
/* Returns how many ids were written. Text is any bytes: what is no UTF-8 is encoded as the type's own files say (tiktoken, byte: byte by byte). */
int64_t cdr_tokenizer_encode(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids);
/* The same for text of a chat template that we or a checkpoint wrote: names of special ids in it become those ids. Never for user text. */
int64_t cdr_tokenizer_encode_trusted(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids);
/* The first place from `from` (more than 0) on where text can be cut and its two parts have the ids of the whole; bytes: none is known. */
size_t cdr_tokenizer_cut(const cdr_tokenizer *tok, const char *text, size_t bytes, size_t from);
/* Bytes that id stands for in text: pointer into the tokenizer, *n their number; 0 for a special id, and outside the vocabulary. */
const char *cdr_tokenizer_bytes(const cdr_tokenizer *tok, int id, size_t *n);
/* Appends to out. specials: write special ids by name, else leave them out. Ids outside the vocabulary: false. */
bool cdr_tokenizer_decode(const cdr_tokenizer *tok, const int32_t *ids, int64_t n, bool specials, cdr_text *out);

/* Writes what cdr_tokenizer_open of type tiktoken reads: FILE and tokenizer_config.json in dir. Of a byte tokenizer: its 256 bytes as ranks;
 * of one that was read as tiktoken: what it read; of hf_bpe: an error. */
cdr_status cdr_tokenizer_write_tiktoken(const cdr_tokenizer *tok, const char *dir, const char *file, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
