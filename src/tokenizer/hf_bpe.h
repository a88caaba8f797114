/* hf_bpe.h: what a tokenizer.json says, between hf_read.c, which reads it, and hf_bpe.c, which does it. Internal to both.
 *
 *   cdr__hf *hf = cdr_pool_alloc(pool, sizeof *hf);
 *   CDR_TRY(cdr__hf_read(root, path, tok, hf, err));
 */
#ifndef CDR_TOKENIZER_HF_BPE_H
#define CDR_TOKENIZER_HF_BPE_H

#include "tokenizer/bpe.h"
#include "tokenizer/internal.h"
#include "tokenizer/pattern.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__HF_LEVELS = 16 };
typedef struct {
    bool nfc;
    int n_levels;                         /* pre-tokenizers, each cuts the pieces of the one before */
    const char *regex[CDR__HF_LEVELS];
    const cdr__pattern *level[CDR__HF_LEVELS];
    bool ignore_merges;                   /* a piece that is a token is that token, whatever merging gives */
    const cdr__bpe *bpe;
    bool has_text, has_normalized;        /* added tokens of that sort */
    bool has_text_words;                  /* of those in text, one that looks at what is beside it */
    cdr__set space, word;                 /* white space; characters of words, where an added token asks for them */
    int n_special; cdr__special *special;
    uint64_t merges;                      /* hash: pairs and their order */
} cdr__hf;

/* Fills hf, and at, text, vocab of tok. What cannot be done exactly is an error that names it. */
cdr_status cdr__hf_read(const cdr_json *root, const char *path, cdr_tokenizer *tok, cdr__hf *hf, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
