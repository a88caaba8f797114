/* data.h: which token a logical shard of which step holds. A pure function of (recipe, corpus, step, shard id): ranks,
 * restarts and the order of calls change nothing.
 *
 *   cdr_data *d;
 *   CDR_TRY(cdr_data_open(&o, &d, err));
 *   cdr_data_shard(d, step, id, n_shards, tokens_T, targets_T, start_T, pos_T, NULL, &n_trained, &n_rows);     // step from 0
 *   cdr_data_close(d);
 *
 * A corpus is documents. A file of text is one: its tokens are those of the tokenizer, and nothing is put in front. Where it
 * ends in the corpus, [EOS] is the last target; where its tail is held out, the last token has no target. A file of records
 * (conversations, {"text": ...}) is one document a record. Token i + 1 of a document is the target of token i where it
 * carries loss: all tokens of text, of a conversation what train_on, train_eos, mask_think and the messages say.
 *
 * Documents longer than sequence_length are cut into samples at its multiples (long_samples); the last token of a sample
 * still has its successor as target, so no target is lost. An epoch's samples are put in an order keyed by (seed, epoch),
 * packed first-fit into rows of sequence_length, within windows of pack_window samples. Epochs follow each other without a
 * gap; a micro-batch is micro_batch_tokens / sequence_length rows.
 */
#ifndef CDR_DATA_H
#define CDR_DATA_H

#include "chat/chat.h"
#include "io/io.h"
#include "tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CDR_LONG_AUTO, CDR_LONG_SPLIT, CDR_LONG_DROP, CDR_LONG_TRUNCATE, CDR_LONG_ERROR } cdr_long_samples;

/* In the order of the recipe's words. */
typedef enum { CDR_LOSS_AUTO /* conversations: assistant, text: all */, CDR_LOSS_ASSISTANT, CDR_LOSS_LAST, CDR_LOSS_ALL } cdr_data_train_on;
typedef enum { CDR_EOS_TURN, CDR_EOS_LAST, CDR_EOS_NONE } cdr_data_train_eos;
typedef enum { CDR_THINK_NONE, CDR_THINK_EMPTY, CDR_THINK_ALL } cdr_data_mask_think;

typedef struct { const char *ours, *theirs; } cdr_data_column;

typedef struct {
    const char *path;                  /* file, or directory of files (not of directories) */
    const char *format;                /* NULL, auto, text, messages, sharegpt, alpaca, completion, tokens */
    double weight;                     /* 0: 1.0. Copies of each sample in an epoch; the fraction by permutation */
    int64_t max_samples;               /* documents taken, in file order; 0: all */
    int train_on;                      /* cdr_data_train_on; AUTO: the options' */
    const cdr_data_column *columns; int n_columns;     /* names of the records' fields that differ from ours */
} cdr_data_source;

typedef struct {
    const cdr_data_source *train; int n_train;
    const cdr_data_source *eval; int n_eval;           /* 0: the tails by eval_fraction */
    double eval_fraction;                              /* 0 to 0.5: tail of each source's text, in bytes; of records, by hash */
    const cdr_tokenizer *tokenizer;                    /* borrowed */
    const cdr_chat_spec *chat;                         /* borrowed for the call; NULL or format none: conversations are refused */
    int train_on, train_eos, mask_think;               /* enums above */
    bool drop_untrained;                               /* a sample without a trained token: dropped instead of refused */
    int threads;                                       /* that read and tokenize; 0: 1 */
    const char *cache;                                 /* directory for what was tokenized; NULL: none */
    uint64_t seed;
    int64_t sequence_length, micro_batch_tokens;
    int64_t max_docs;                                  /* documents in a row; 0: sequence_length / 64, at least 1 */
    int64_t pack_window;                               /* samples; 0: 1024 */
    bool no_pack, no_shuffle;
    cdr_long_samples long_samples;
    int64_t eval_tokens;                               /* held-out tokens used; 0: all */
} cdr_data_opts;

typedef struct {
    int64_t n_documents, n_dropped;                    /* of training; dropped: see cdr_data_drops */
    int64_t n_conversations, n_eval_documents;         /* of the training documents; held-out documents */
    int64_t train_tokens, eval_tokens;                 /* of all documents, as tokenized; of text by bytes: bytes */
    int64_t train_bytes, eval_bytes;
    int64_t epoch_tokens, epoch_samples, epoch_trained;      /* row places, samples, targets of one epoch */
    int64_t epoch_places;                                    /* of the row places, those that hold a token */
    int64_t rows_epoch0;                               /* rows of the first epoch */
    int64_t eval_rows, eval_shards, eval_trained, eval_predicted_bytes;
    int64_t max_docs;                                  /* as resolved */
} cdr_data_stat;

typedef struct cdr_data cdr_data;
cdr_status cdr_data_open(const cdr_data_opts *o, cdr_data **d, cdr_err *err);
void cdr_data_close(cdr_data *d);
const cdr_data_stat *cdr_data_stats(const cdr_data *d);

/* Any turn has a weight other than 0 and 1: then weights_T below is not all ones. */
bool cdr_data_weighted(const cdr_data *d);

/* Logical shard shard_id of n_shards of optimizer step `step` (from 0). Arrays of micro_batch_tokens; weights_T may be NULL.
 * targets: the next id, -1: no loss. weights: of the loss on each target (1 where it has none). start: index in the
 * micro-batch of the first token of the piece. pos[t] = t.
 * The rest of a row behind its last piece is idle: [PAD], no target, start[t] = t + 1, above pos[t] (it sees nothing, is
 * seen by nothing and is counted nowhere). n_rows: rows that are not idle.
 * Allocates nothing. Not thread-safe: it keeps the packing of the last epochs asked for. */
void cdr_data_shard(cdr_data *d, int64_t step, int64_t shard_id, int64_t n_shards,
                    int32_t *tokens_T, int32_t *targets_T, int32_t *start_T, int32_t *pos_T, float *weights_T, int64_t *n_trained, int64_t *n_rows);
/* Held-out text in file order, the same for every call; i from 0 to eval_shards - 1. n_bytes: text bytes that the
 * targets stand for ([EOS] stands for none). */
void cdr_data_eval_shard(cdr_data *d, int64_t i, int32_t *tokens_T, int32_t *targets_T, int32_t *start_T, int32_t *pos_T,
                         int64_t *n_trained, int64_t *n_bytes);
/* What the two above met since this was asked last: a token that is none of the vocabulary, in a file that was changed since it was opened. They give
 * token 0 in its place, so that a step that all ranks are in can be ended. */
cdr_status cdr_data_fault(cdr_data *d, cdr_err *err);
/* "path:line" of token t of a training shard; "padding" where it is none. */
void cdr_data_locate(cdr_data *d, int64_t step, int64_t shard_id, int64_t n_shards, int64_t t, char *out, size_t bytes);

/* ---- documents, for those who show them ---------------------------------------------------------------------------- */
typedef struct {
    const char *path; int64_t line;                    /* line 0: the whole file */
    int64_t n, n_in, n_trained;                        /* tokens; places in a row; targets */
    bool conversation;
} cdr_data_doc;
int64_t cdr_data_docs(const cdr_data *d, bool held_out);
cdr_data_doc cdr_data_doc_at(const cdr_data *d, bool held_out, int64_t i);
/* Tokens first .. first + n - 1 of a document; trained[k]: token first + k is a target that carries loss. */
void cdr_data_doc_tokens(const cdr_data *d, bool held_out, int64_t i, int64_t first, int64_t n, int32_t *ids, bool *trained);

typedef enum { CDR_DROP_EMPTY, CDR_DROP_TWICE, CDR_DROP_UNTRAINED, CDR_DROP_LONG, CDR_N_DROPS } cdr_data_reason;
typedef struct { const char *path; int64_t line; cdr_data_reason reason; int64_t n; /* tokens, 0: not known */ bool held_out; } cdr_data_drop;
int64_t cdr_data_drops(const cdr_data *d, const cdr_data_drop **list);
const char *cdr_data_reason_text(cdr_data_reason r);
/* Forms of the files: "messages", "text and alpaca". */
const char *cdr_data_form(const cdr_data *d);

/* Writes what is trained on as token files, DIR/NAME.tokens for each training source (names: one a source) and DIR/eval.tokens where anything is
 * held out. out: n_train + 1 rows. Returns their number. */
typedef struct { const char *path; int64_t n_documents, n_tokens, n_trained, bytes; } cdr_data_packed;
cdr_status cdr_data_write(const cdr_data *d, const char *dir, const char *const *names, cdr_pool *pool, cdr_data_packed *out, int *n, cdr_err *err);

/* What a file is, from its first record and its size: "messages, JSON Lines in zstd", records where they are few enough to be counted at once.
 * false: no data that is read here. */
typedef struct { const char *form, *layout; int64_t bytes, n_records; /* -1: not counted */ int64_t n_tokens, n_trained; /* of token files; -1 */ } cdr_data_look;
bool cdr_data_sniff(const char *path, cdr_pool *pool, cdr_data_look *look);

/* ---- epochs, state -------------------------------------------------------------------------------------------------- */
/* Fraction of epochs done after n_steps steps: epoch number and part. */
double cdr_data_epoch(cdr_data *d, int64_t n_steps, int64_t n_shards);
/* Steps that cover `epochs` epochs (the last one may begin the next epoch). */
int64_t cdr_data_steps(cdr_data *d, double epochs, int64_t n_shards);

/* Hash of corpus and settings that the order depends on. */
uint64_t cdr_data_fingerprint(const cdr_data *d);
/* Member "data" of state.json: {fingerprint, cursor: rows used, packer: null}. */
void cdr_data_state(const cdr_data *d, cdr_jw *w, int64_t n_steps, int64_t n_shards);
/* The same member read back; another corpus or other settings: an error that says so. */
cdr_status cdr_data_check_state(const cdr_data *d, const cdr_json *state, int64_t n_steps, int64_t n_shards, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
