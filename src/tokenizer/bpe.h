/* bpe.h: byte-pair merges of one piece of text, for every kind of file: a pair of neighbours has a rank and the id that it becomes; the pair with the lowest
 * rank is merged first, of equal ones the left one, until none is left.
 *
 *   cdr__bpe *b = cdr__bpe_new(pool, at, text, vocab, n_ranks);
 *   if (!cdr__bpe_pair(b, left, right, rank, id)) ...;                // the pair is there already
 *   cdr__bpe_finish(b, false);
 *   n = cdr__bpe_encode(b, piece, bytes, ids);
 */
#ifndef CDR_TOKENIZER_BPE_H
#define CDR_TOKENIZER_BPE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__MAX_VOCAB = 1 << 21, CDR__MAX_RANKS = (1 << 22) - 1, CDR__MAX_TOKEN = 1024 };          /* ids, ranks, bytes of a token that a file may have */

typedef struct cdr__bpe cdr__bpe;
/* Borrows the tokens: id stands for text[at[id]] .. text[at[id + 1]]; no bytes: never made. */
cdr__bpe *cdr__bpe_new(cdr_pool *pool, const uint32_t *at, const char *text, int vocab, int64_t n_ranks);
/* Makes a token one that text can become. Its id, or that of the token with the same bytes that came before it. */
int cdr__bpe_token(cdr__bpe *b, int id);
int cdr__bpe_find(const cdr__bpe *b, const char *s, size_t n);         /* id; -1: none */
/* Every byte has a token: -1; else the first that has none. Before pairs. */
int cdr__bpe_bytes(cdr__bpe *b);
/* One rank may be that of several pairs that become the same id. */
bool cdr__bpe_pair(cdr__bpe *b, int left, int right, uint32_t rank, int id);        /* false: this pair is there already */
/* A piece that is a token as a whole is that token: always (whole), or where merging gives it too. */
void cdr__bpe_finish(cdr__bpe *b, bool whole);
/* ids: room for `bytes`; returns how many were written. O(n log n). Thread-safe. */
int64_t cdr__bpe_encode(const cdr__bpe *b, const char *piece, size_t bytes, int32_t *ids);

#ifdef __cplusplus
}
#endif
#endif
