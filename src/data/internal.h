/* internal.h: documents and packed epochs, shared by the files of this folder.
 *
 *   corpus.c  sources -> documents        pack.c  documents -> rows of an epoch        data.c  rows -> arrays of a shard
 */
#ifndef CDR_DATA_INTERNAL_H
#define CDR_DATA_INTERNAL_H

#include "data/data.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DEFAULT_WINDOW = 1024 };        /* samples */

typedef struct { const char *path; cdr_textfile text; } cdr__file;

/* A stretch of a file's text. Token i is byte i (a tokenizer with longer tokens would bring its ids here).
 * Inputs are tokens 0 to n_in - 1, and each has a target: token i + 1, or [EOS] at the end of the text. */
typedef struct {
    int64_t file;
    const uint8_t *bytes;
    int64_t n, n_in;
    bool ends;                         /* the text ends here: the last target is [EOS] */
} cdr__doc;

typedef struct { cdr__doc *docs; int64_t n, cap; } cdr__docs;

typedef struct {
    cdr__file *files; int64_t n_files, cap_files;
    cdr__docs train, eval;
    int64_t *source_end;               /* per training source: one past its last document */
    int64_t n_dropped;
    int64_t train_bytes, eval_bytes;
} cdr__corpus;

/* Opens every source, cuts off the held-out tails, applies long_samples. */
cdr_status cdr__corpus_open(cdr_pool *pool, const cdr_data_opts *o, bool has_eos, cdr__corpus *c, cdr_err *err);
void cdr__corpus_close(cdr__corpus *c);

/* Bijection of [0, n), keyed: a Feistel network on the smallest even number of bits that holds n, walked until it is inside. */
typedef struct { uint64_t key[8], n; int half_bits; } cdr__perm;
cdr__perm cdr__perm_make(cdr_rng_key key, uint64_t n);
uint64_t cdr__perm_at(const cdr__perm *p, uint64_t i);

typedef struct { int64_t doc, first, n; } cdr__piece;      /* n inputs of a document from `first` on */

/* Samples of all documents: sample s of document d for first_sample[d] <= s < first_sample[d + 1]. */
typedef struct {
    const cdr__doc *docs; int64_t n_docs;
    int64_t *first_sample;
    int64_t *doc_hint;                 /* document of sample 8 i */
    int64_t n_samples, sequence_length;
    int64_t n_sources, *source_first;  /* first sample of each source; n_sources + 1 */
    int64_t *copies, *extra;           /* per source: whole copies of its samples in an epoch, and how many once more */
    int64_t n_slots;                   /* samples of an epoch, copies included; the same for every epoch */
    int64_t n_short;                   /* slots shorter than sequence_length, at most */
    int64_t max_docs, window;
    uint64_t seed;
    bool shuffle;
    /* work space of the packer, for one window */
    int32_t *tree, *used, *count, *row_of;
    uint32_t *in;
    cdr__perm *extra_perm;             /* per source, of the epoch being packed */
    int64_t n_leaves;
} cdr__packer;

typedef struct {
    int64_t epoch, first_row, n_rows;  /* epoch -1: empty */
    uint32_t *row_first, *item;        /* row r holds samples item[row_first[r]] .. item[row_first[r + 1] - 1] */
} cdr__epoch;

cdr_status cdr__packer_open(cdr_pool *pool, const cdr_data_opts *o, const cdr__corpus *c, int64_t max_docs, cdr__packer *p, cdr_err *err);
void cdr__epoch_alloc(cdr_pool *pool, const cdr__packer *p, cdr__epoch *e);
/* Packs e->epoch; first_row stays the caller's. */
void cdr__epoch_pack(cdr__packer *p, int64_t epoch, cdr__epoch *e);
cdr__piece cdr__packer_piece(const cdr__packer *p, uint32_t sample);

#ifdef __cplusplus
}
#endif
#endif
