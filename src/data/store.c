/* store.c: words of documents, in memory or in a token file: what `data pack` writes and the cache holds.
 *
 * A token file is a safetensors file, so that anything can look into it:
 *   words  U32 [n]        id (bits 0 to 23), row of its weight (24 to 30), 31: a target that carries loss
 *   rows   I64 [docs, 4]  per document: one past its last word, line of its record, targets, hash of its record
 *   lost   I64 [m, 3]     line, reason (cdr_data_reason), tokens of each record that was left out
 * with __metadata__ {format: cadre-tokens, version, tokenizer: its hash, kind: documents | conversations, weights: the bits of
 * each row's float in hexadecimal, ..}.
 * The header has a fixed size (padded with spaces), so the words are written as they come, and the header last.
 */
#include "data/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { HEADER = 8192 };                /* bytes before the buffer; the tables behind it stay aligned for any reader that copies */

struct cdr__writer {
    cdr_pool *pool;
    const char *path, *partial;        /* NULL: in memory */
    int fd;
    cdr__words words;                  /* in memory */
    cdr__row *rows; int64_t n_rows, cap_rows;
    cdr__lost *lost; int64_t n_lost, cap_lost;
    int64_t n_words;
    cdr__weights weights;
};

static cdr_status write_at(const cdr__writer *w, const void *data, size_t bytes, off_t at, cdr_err *err)
{
    for (const char *s = data; bytes > 0;) {
        ssize_t k = pwrite(w->fd, s, CDR_MIN(bytes, (size_t)1 << 30), at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) CDR_FAIL_ID(err, CDR_EUSER, "file.io", "%s: cannot be written; %s. Free some space; a cache of tokens can be left out with data.cache=none",
            w->path, strerror(errno));
        s += k;
        bytes -= (size_t)k;
        at += k;
    }
    return CDR_OK;
}

cdr_status cdr__writer_open(const char *path, cdr__writer **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr__writer *w = cdr_pool_alloc(pool, sizeof *w);
    *w = (cdr__writer){ .pool = pool, .fd = -1, .weights = { { 1 }, 1 } };
    *out = NULL;
    if (path) {
        w->path = cdr_pool_strdup(pool, path);
        w->partial = cdr_pool_printf(pool, "%s.part%ld", path, (long)getpid());
        w->fd = open(w->partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (w->fd < 0) {
            cdr_fail(err, CDR_EUSER, "file.io", "%s: cannot be created; %s", path, strerror(errno));
            cdr_pool_free(pool);
            return CDR_EUSER;
        }
    }
    *out = w;
    return CDR_OK;
}

cdr_status cdr__writer_words(cdr__writer *w, const uint32_t *words, int64_t n, cdr_err *err)
{
    if (n == 0) return CDR_OK;
    if (w->path) CDR_TRY(write_at(w, words, (size_t)n * sizeof *words, HEADER + (off_t)w->n_words * 4, err));
    else {
        memcpy(cdr__words_room(&w->words, n), words, (size_t)n * sizeof *words);
        w->words.n += n;
    }
    w->n_words += n;
    return CDR_OK;
}

cdr_status cdr__writer_weights(cdr__writer *w, const cdr__weights *from, uint8_t map[CDR__WEIGHTS], cdr_err *err)
{
    map[0] = 0;
    for (int i = 1; i < from->n; i++) {
        int row = cdr__weight_row(&w->weights, from->w[i]);
        if (row < 0) CDR_FAIL_ID(err, CDR_EDATA, "data.weight", "more than %d different weights of turns. Round them", CDR__WEIGHTS - 1);
        map[i] = (uint8_t)row;
    }
    return CDR_OK;
}

void cdr__remap(uint32_t *words, int64_t n, const uint8_t map[CDR__WEIGHTS])
{
    for (int64_t i = 0; i < n; i++)
        words[i] = (words[i] & (CDR__TRAINED | ((1u << CDR__ID_BITS) - 1))) | (uint32_t)map[cdr__word_weight(words[i])] << CDR__ID_BITS;
}

void cdr__writer_row(cdr__writer *w, cdr__row row)
{
    row.end = w->n_words;
    *CDR_PUSH(w->pool, w->rows, w->n_rows, w->cap_rows) = row;
}

void cdr__writer_lost(cdr__writer *w, cdr__lost lost)
{
    *CDR_PUSH(w->pool, w->lost, w->n_lost, w->cap_lost) = lost;
}

void cdr__writer_abort(cdr__writer *w)
{
    if (!w) return;
    if (w->fd >= 0) (void)close(w->fd);
    if (w->path) (void)unlink(w->partial);
    free(w->words.w);
    cdr_pool_free(w->pool);
}

static void put_tensor(cdr_jw *j, const char *name, const char *dtype, const int64_t *shape, int n_dim, size_t *at, size_t bytes)
{
    cdr_jw_begin(j, name, '{');
    cdr_jw_str(j, "dtype", dtype);
    cdr_jw_begin(j, "shape", '[');
    for (int i = 0; i < n_dim; i++) cdr_jw_int(j, NULL, shape[i]);
    cdr_jw_end(j, ']');
    cdr_jw_begin(j, "data_offsets", '[');
    cdr_jw_int(j, NULL, (int64_t)*at);
    cdr_jw_int(j, NULL, (int64_t)(*at += bytes));
    cdr_jw_end(j, ']');
    cdr_jw_end(j, '}');
}

static void make_header(const cdr__writer *w, const cdr_st_pair *meta, int n_meta, cdr_text *t)
{
    cdr_jw j = { .t = t };
    size_t at = 0;
    cdr_jw_begin(&j, NULL, '{');
    cdr_jw_begin(&j, "__metadata__", '{');
    cdr_jw_str(&j, "format", "cadre-tokens");
    cdr_jw_str(&j, "version", "1");
    for (int i = 0; i < n_meta; i++) cdr_jw_str(&j, meta[i].key, meta[i].value);
    char weights[CDR__WEIGHTS * 9 + 1] = "";
    for (int i = 0; i < w->weights.n; i++) {
        uint32_t bits;
        memcpy(&bits, &w->weights.w[i], sizeof bits);
        (void)snprintf(weights + 9 * i, 10, "%08x ", bits);
    }
    cdr_jw_str(&j, "weights", weights);
    cdr_jw_end(&j, '}');
    put_tensor(&j, "words", "U32", &w->n_words, 1, &at, (size_t)w->n_words * 4);
    put_tensor(&j, "rows", "I64", (const int64_t[]){ w->n_rows, 4 }, 2, &at, (size_t)w->n_rows * sizeof(cdr__row));
    put_tensor(&j, "lost", "I64", (const int64_t[]){ w->n_lost, 3 }, 2, &at, (size_t)w->n_lost * sizeof(cdr__lost));
    cdr_jw_end(&j, '}');
}

static cdr_status end_file(cdr__writer *w, const cdr_st_pair *meta, int n_meta, cdr_err *err)
{
    cdr_text t = { 0 };
    uint64_t n = HEADER - 8;
    make_header(w, meta, n_meta, &t);
    if (t.n > n) {
        cdr_text_free(&t);
        CDR_FAIL_ID(err, CDR_EUSER, "data.tokens", "%s: names of its sources take more than %d bytes. Use shorter paths", w->path, HEADER);
    }
    while (t.n < n) cdr_text_append(&t, "                ", CDR_MIN((size_t)16, n - t.n));
    off_t at = HEADER + (off_t)w->n_words * 4;
    cdr_status st = write_at(w, w->rows, (size_t)w->n_rows * sizeof *w->rows, at, err);
    if (st == CDR_OK) st = write_at(w, w->lost, (size_t)w->n_lost * sizeof *w->lost, at + (off_t)w->n_rows * (off_t)sizeof *w->rows, err);
    if (st == CDR_OK) st = write_at(w, &n, 8, 0, err);
    if (st == CDR_OK) st = write_at(w, t.s, t.n, 8, err);
    cdr_text_free(&t);
    if (st == CDR_OK && (fsync(w->fd) != 0 || rename(w->partial, w->path) != 0))
        st = cdr_fail(err, CDR_EUSER, "file.io", "%s: cannot be completed; %s. Free some space, or check the disk", w->path, strerror(errno));
    return st;
}

cdr_status cdr__writer_end(cdr_pool *pool, cdr__writer *w, const cdr_st_pair *meta, int n_meta, cdr__store *s, cdr_err *err)
{
    *s = (cdr__store){ 0 };
    if (w->path) {
        cdr_status st = end_file(w, meta, n_meta, err);
        const char *path = cdr_pool_strdup(pool, w->path);
        cdr__writer_abort(w);                         /* the partial name is gone where all went well */
        return st != CDR_OK ? st : cdr__store_open(pool, path, NULL, s, err);
    }
    cdr__row *rows = cdr_pool_alloc(pool, (size_t)(w->n_rows + 1) * sizeof *rows);
    cdr__lost *lost = cdr_pool_alloc(pool, (size_t)(w->n_lost + 1) * sizeof *lost);
    if (w->n_rows) memcpy(rows, w->rows, (size_t)w->n_rows * sizeof *rows);
    if (w->n_lost) memcpy(lost, w->lost, (size_t)w->n_lost * sizeof *lost);
    *s = (cdr__store){ .words = w->words.w, .n_words = w->n_words, .rows = rows, .n_rows = w->n_rows, .lost = lost, .n_lost = w->n_lost, .weights = w->weights,
                        .own = w->words };
    w->words = (cdr__words){ 0 };
    cdr__writer_abort(w);
    return CDR_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static const cdr_st_tensor *table_of(const cdr_st *st, const char *name, int format, int columns)
{
    const cdr_st_tensor *t = cdr_st_find(st, name);
    if (!t || t->format != format || t->n_dim != (columns ? 2 : 1) || (columns && t->n[1] != columns)) return NULL;
    return t;
}

/* Rows in order and inside, ids inside of the vocabulary, each document's targets as counted. */
static cdr_status check_rows(const char *path, const cdr__store *s, int64_t vocab, cdr_err *err)
{
    int64_t at = 0;
    for (int64_t i = 0; i < s->n_rows; i++) {
        const cdr__row *r = &s->rows[i];
        if (r->end < at || r->end > s->n_words) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: document %lld lies outside of its words", path, (long long)i);
        int64_t n_trained = 0;
        if (r->end > at && s->words[at] >= CDR__TRAINED) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: document %lld begins with a target", path, (long long)i);
        for (; at < r->end; at++) {
            n_trained += s->words[at] >= CDR__TRAINED;
            if (cdr__word_weight(s->words[at]) >= s->weights.n)
                CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: document %lld has a weight that is not in its table", path, (long long)i);
            if (cdr__word_id(s->words[at]) >= vocab)
                CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: document %lld holds id %d; the vocabulary has %lld", path, (long long)i,
                            cdr__word_id(s->words[at]), (long long)vocab);
        }
        if (n_trained != r->n_trained) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: document %lld has other targets than its row says", path, (long long)i);
    }
    if (at != s->n_words) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: words behind the last document", path);
    return CDR_OK;
}

static cdr_status check_meta(const char *path, const cdr_st *st, const cdr_tokenizer *tok, cdr_err *err)
{
    const char *format = cdr_st_meta(st, "format"), *hash = cdr_st_meta(st, "tokenizer"), *version = cdr_st_meta(st, "version");
    char ours[24];
    if (!format || strcmp(format, "cadre-tokens") != 0)
        CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: a safetensors file, but no token file of cadre data pack", path);
    if (!version || strcmp(version, "1") != 0) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: version %s of token files; this version reads 1", path,
        version ? version : "none");
    if (!tok) return CDR_OK;
    (void)snprintf(ours, sizeof ours, "%016llx", (unsigned long long)cdr_tokenizer_hash(tok));
    if (!hash || strcmp(hash, ours) != 0)
        CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.vocab-mismatch", "%s: was tokenized with another tokenizer (hash %s, ours is %s); ids would not match. Pack it again",
                    path, hash ? hash : "unknown", ours);
    return CDR_OK;
}

static cdr_status read_weights(const char *path, const cdr_st *st, cdr__weights *t, cdr_err *err)
{
    const char *s = cdr_st_meta(st, "weights");
    for (t->n = 0; s && *s && t->n < CDR__WEIGHTS; t->n++) {
        uint32_t bits;
        int used = 0;
        if (sscanf(s, "%8x%n", &bits, &used) != 1 || used != 8 || s[8] != ' ') break;
        memcpy(&t->w[t->n], &bits, sizeof bits);
        if (!(t->w[t->n] > 0 && t->w[t->n] <= 1e6f)) break;
        s += 9;
    }
    if (t->n < 1 || *s || t->w[0] != 1) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: its table of weights is broken. Pack it again", path);
    return CDR_OK;
}

static cdr_status read_store(cdr_pool *pool, const char *path, const cdr_tokenizer *tok, cdr__store *s, cdr_err *err)
{
    const cdr_st *st = s->file;
    CDR_TRY(check_meta(path, st, tok, err));
    const cdr_st_tensor *words = table_of(st, "words", cdr_st_format_by_name("U32"), 0), *rows = table_of(st, "rows", cdr_st_format_by_name("I64"), 4),
                        *lost = table_of(st, "lost", cdr_st_format_by_name("I64"), 3);
    if (!words || !rows || !lost) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: has not the tables words, rows and lost of a token file", path);
    s->words = cdr_st_data(st, words);
    if ((uintptr_t)s->words % 4 != 0) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: its words are not aligned. Pack it again", path);
    s->n_words = words->n[0];
    s->n_rows = rows->n[0];
    s->n_lost = lost->n[0];
    cdr__row *r = cdr_pool_alloc(pool, (size_t)(s->n_rows + 1) * sizeof *r);
    cdr__lost *l = cdr_pool_alloc(pool, (size_t)(s->n_lost + 1) * sizeof *l);
    memcpy(r, cdr_st_data(st, rows), (size_t)s->n_rows * sizeof *r);
    memcpy(l, cdr_st_data(st, lost), (size_t)s->n_lost * sizeof *l);
    s->rows = r;
    s->lost = l;
    for (int64_t i = 0; i < s->n_lost; i++)
        if (l[i].reason < 0 || l[i].reason >= CDR_N_DROPS) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: a reason that is not known", path);
    CDR_TRY(read_weights(path, st, &s->weights, err));
    const char *kind = cdr_st_meta(st, "kind");
    s->conversations = kind && strcmp(kind, "conversations") == 0;
    return check_rows(path, s, tok ? cdr_tokenizer_vocab(tok) : INT32_MAX, err);
}

cdr_status cdr__store_open(cdr_pool *pool, const char *path, const cdr_tokenizer *tok, cdr__store *s, cdr_err *err)
{
    *s = (cdr__store){ 0 };
    CDR_TRY(cdr_st_open(path, &s->file, err));
    cdr_status status = read_store(pool, path, tok, s, err);
    if (status != CDR_OK) cdr__store_close(s);
    return status;
}

void cdr__store_close(cdr__store *s)
{
    if (s->file) cdr_st_close(s->file);
    free(s->own.w);
    *s = (cdr__store){ 0 };
}
