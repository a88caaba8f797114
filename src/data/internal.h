/* internal.h: documents and packed epochs, shared by the files of this folder.
 *
 *   corpus.c    sources -> files -> documents          pack.c   documents -> rows of an epoch    data.c  rows -> arrays of a shard
 *   records.c   a file of JSON -> records, their form  sample.c, messages.c  a record -> a sample: text, or a conversation
 *   mask.c      a sample -> words                      tokenize.c  all records of a file, on several threads
 *   store.c     words in memory or in a token file     shards.c  token files, also of others          look.c  what a file is
 */
#ifndef CDR_DATA_INTERNAL_H
#define CDR_DATA_INTERNAL_H

#include "data/data.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DEFAULT_WINDOW = 1024 };        /* samples */

/* A word: an id (24 bits), the row of its weight in the table of its store (7 bits, row 0: weight 1), and whether it is a target that carries loss. */
#define CDR__TRAINED 0x80000000u
enum { CDR__ID_BITS = 24, CDR__WEIGHTS = 128 };
static inline int32_t cdr__word_id(uint32_t w) { return (int32_t)(w & ((1u << CDR__ID_BITS) - 1)); }
static inline int cdr__word_weight(uint32_t w) { return (int)(w >> CDR__ID_BITS & (CDR__WEIGHTS - 1)); }
typedef struct { float w[CDR__WEIGHTS]; int n; } cdr__weights;                   /* w[0] = 1 */
int cdr__weight_row(cdr__weights *t, float w);                                   /* made where it is new; -1: the table is full */

/* ---- records ------------------------------------------------------------------------------------------------------- */
/* RECORDS: {"text": ...}. */
typedef enum { CDR__AUTO, CDR__TEXT, CDR__RECORDS, CDR__MESSAGES, CDR__SHAREGPT, CDR__ALPACA, CDR__COMPLETION, CDR__TOKENS } cdr__format;
const char *cdr__format_name(cdr__format f);

typedef struct { const char *s; size_t n; int64_t line, col; } cdr__record;      /* one JSON value; where it begins in its file */
typedef enum { CDR__LINES, CDR__ARRAY, CDR__STREAM } cdr__layout;                /* one a line; a JSON array; values one after another */
typedef struct {
    const char *path, *line_start, *at, *end;
    int64_t line;
    cdr__layout layout;
    bool first;
} cdr__reader;
void cdr__reader_open(const char *path, const char *text, size_t bytes, cdr__reader *r);
/* *more false: no further record. */
cdr_status cdr__reader_next(cdr__reader *r, cdr__record *rec, bool *more, cdr_err *err);

typedef struct { const cdr_data_column *c; int n; } cdr__columns;
const char *cdr__column(const cdr__columns *c, const char *ours);                /* theirs; ours where it is not mapped */
cdr_status cdr__columns_check(const char *where, const cdr__columns *c, cdr_err *err);
const cdr_json *cdr__field(const cdr__columns *c, const cdr_json *record, const char *ours);     /* NULL: not there, or null */
/* The form of a record; CDR__AUTO: none that is known. */
cdr__format cdr__detect(const cdr__columns *c, const cdr_json *record);

/* ---- samples ------------------------------------------------------------------------------------------------------- */
/* A message's own word about loss. */
typedef struct { bool set; double weight; } cdr__own;
typedef struct {
    bool chat;                         /* a conversation; else prompt (or NULL) and text, as they stand */
    cdr_conversation talk; cdr__own *own;
    const char *prompt, *text;
} cdr__sample;
/* Messages name the field ("messages[2].content: ..."); the caller puts file and line in front. */
cdr_status cdr__sample_read(cdr_pool *pool, cdr__format f, const cdr__columns *c, const cdr_json *record, cdr__sample *s, cdr_err *err);
/* Of sample.c and messages.c alone. */
typedef struct { cdr_pool *pool; const cdr__columns *columns; cdr_err *err; cdr_chat_message *m; cdr__own *own; int64_t n, cap, cap_own; } cdr__talk;
cdr_status cdr__read_messages(cdr__talk *t, const cdr_json *list, const char *name);
cdr_status cdr__read_sharegpt(cdr__talk *t, const cdr_json *record);
cdr_status cdr__read_tools(cdr__talk *t, const cdr_json *record, const cdr_json **tools);
cdr_status cdr__want_text(cdr__talk *t, const cdr_json *j, const char *name, const char **out);  /* a string; NULL j: *out stays */
cdr_chat_message *cdr__say(cdr__talk *t, const char *role, const char *content);

/* ---- words --------------------------------------------------------------------------------------------------------- */
typedef struct { uint32_t *w; int64_t n, cap; } cdr__words;
uint32_t *cdr__words_room(cdr__words *w, int64_t n);                             /* for n more, behind the last */
typedef struct {
    const cdr_tokenizer *tok;
    const cdr_chat *chat;              /* NULL: conversations are refused */
    int train_on, train_eos, mask_think;
    int32_t eos;                       /* -1: none */
} cdr__masking;
/* Appends a sample's words. The first of them is no target. */
cdr_status cdr__mask_sample(const cdr__masking *m, const cdr__sample *s, cdr__weights *weights, cdr__words *out, int64_t *n_trained, cdr_err *err);
const char *cdr__train_on_name(int train_on, bool chat);

/* ---- token stores --------------------------------------------------------------------------------------------------- */
/* A row of a store: a document. `end`: one past its last word. hash: of the record as it stands in its file. */
typedef struct { int64_t end, line, n_trained; uint64_t hash; } cdr__row;
typedef struct { int64_t line, reason, n; } cdr__lost;
typedef struct {
    const uint32_t *words; int64_t n_words;
    const cdr__row *rows; int64_t n_rows;
    const cdr__lost *lost; int64_t n_lost;
    bool conversations;
    cdr__weights weights;
    cdr_st *file; cdr__words own;      /* words: mapped, or own memory; rows and lost: in the pool */
} cdr__store;
void cdr__store_close(cdr__store *s);

typedef struct cdr__writer cdr__writer;
/* path NULL: in memory. Else the words go to PATH.partPID as they come; the file has its name when it is whole. */
cdr_status cdr__writer_open(const char *path, cdr__writer **w, cdr_err *err);
cdr_status cdr__writer_words(cdr__writer *w, const uint32_t *words, int64_t n, cdr_err *err);
/* Weights of the words that follow are those of `from`: gives the row of the file's table for each, in map. */
cdr_status cdr__writer_weights(cdr__writer *w, const cdr__weights *from, uint8_t map[CDR__WEIGHTS], cdr_err *err);
void cdr__remap(uint32_t *words, int64_t n, const uint8_t map[CDR__WEIGHTS]);
void cdr__writer_row(cdr__writer *w, cdr__row row);                              /* row.end: counted by the writer, not read */
void cdr__writer_lost(cdr__writer *w, cdr__lost lost);
/* Frees w, also on failure. Of a file: opens it again. */
cdr_status cdr__writer_end(cdr_pool *pool, cdr__writer *w, const cdr_st_pair *meta, int n_meta, cdr__store *s, cdr_err *err);
void cdr__writer_abort(cdr__writer *w);
cdr_status cdr__store_open(cdr_pool *pool, const char *path, const cdr_tokenizer *tok, cdr__store *s, cdr_err *err);

/* ---- corpus --------------------------------------------------------------------------------------------------------- */
typedef struct { const char *path; cdr_textfile text; cdr__format format; cdr__store store; cdr_map map; } cdr__file;

/* A document: tokens of one kind, one after another.
 * BYTES: token i is byte i; inputs are tokens 0 to n_in - 1, each has a target: token i + 1, or [EOS] behind the last where `ends`.
 * U16, I32: ids of a token file of others, all trained. WORDS: see above. Of these n_in = n - 1 at most. */
typedef enum { CDR__BYTES, CDR__U16, CDR__I32, CDR__WORDS } cdr__kind;
typedef struct {
    int64_t file, line;                /* line 0: text, or the whole file */
    const uint8_t *bytes;              /* of its kind */
    int64_t n, n_in, n_trained;
    uint8_t kind;
    bool ends, conversation;
} cdr__doc;
/* Token i, with CDR__TRAINED where it is a target; i == n: only of BYTES that end, eos. */
uint32_t cdr__doc_word(const cdr__doc *d, int64_t i, int32_t eos);

typedef struct { cdr__doc *docs; int64_t n, cap; } cdr__docs;

typedef struct {
    cdr_pool *pool;
    const cdr_data_opts *o;
    cdr__file *files; int64_t n_files, cap_files;
    cdr__docs train, eval;
    int64_t *source_end;               /* per training source: one past its last document */
    cdr_data_drop *drops; int64_t n_drops, cap_drops, n_dropped;     /* n_dropped: of training */
    int64_t train_bytes, eval_bytes;   /* of text: what is trained and held out; of records: of their files */
    int32_t eos;
    cdr_chat *chat;                    /* NULL until a file of conversations comes */
} cdr__corpus;

/* Opens every source, cuts off the held-out part, applies long_samples. */
/* How a file is read: its token mark, the form of its first record, text. source NULL: no columns, format auto. */
cdr_status cdr__find_format(const cdr_data_source *source, cdr__file *f, cdr_err *err);
cdr_status cdr__corpus_open(cdr_pool *pool, const cdr_data_opts *o, int32_t eos, cdr__corpus *c, cdr_err *err);
void cdr__corpus_close(cdr__corpus *c);
/* Where documents of a file go, and how it is read. */
typedef struct {
    cdr__corpus *c;
    const cdr_data_source *source;
    cdr__docs *to, *held;              /* held NULL: none is held out here */
    int64_t first, first_held;         /* of the source in `to`, in `held` */
} cdr__intake;
void cdr__drop(cdr__corpus *c, cdr_data_drop drop);
/* Records still wanted of a source by max_samples; INT64_MAX: all. */
int64_t cdr__intake_left(const cdr__intake *in);
/* A file of records; format: as found. */
cdr_status cdr__add_records(const cdr__intake *in, int64_t file, cdr__format format, cdr_err *err);
/* A text document that a tokenizer of longer tokens reads: its words. */
cdr_status cdr__encode_text(cdr__corpus *c, cdr__doc *d, cdr_err *err);
cdr_status cdr__add_store(const cdr__intake *in, int64_t file, cdr_err *err);
/* Token files. is_shard: by name or content; *other: it belongs to another file (an .idx beside its .bin). */
bool cdr__is_shard(const char *path, const char *data, size_t bytes, bool *other);
cdr_status cdr__add_shard(const cdr__intake *in, int64_t file, cdr_err *err);

/* Documents as a token file at out->path; fills the rest of out. */
cdr_status cdr__write_portion(const cdr__doc *docs, int64_t n, const cdr__corpus *c, const cdr_tokenizer *tok, const char *form, cdr_data_packed *out, cdr_err *err);

/* ---- order ---------------------------------------------------------------------------------------------------------- */
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
