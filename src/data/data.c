/* data.c: the arrays of a logical shard. Row g of the endless sequence of rows (epoch 0, epoch 1, ..) is row r of shard
 * `id` of step `step` for g = (step * n_shards + id) * R + r, R = micro_batch_tokens / sequence_length; nothing else enters.
 *
 * Where epoch e begins in that sequence depends on how many rows the epochs before it have, so they are packed one after
 * another; two packed epochs are kept (a shard can lie across a border). Where every packing has the same number of rows
 * (no two samples fit into one row), the epoch follows by division.
 */
#include "data/internal.h"

#include <math.h>
#include <unistd.h>

struct cdr_data {
    cdr_pool *pool;
    cdr_data_opts o;                   /* scalars only; sources are not kept */
    cdr__corpus corpus;
    cdr__packer packer;
    cdr__epoch cache[2];
    bool constant_rows;
    int64_t rows_per_shard;
    int32_t eos, pad;                  /* eos -1: the tokenizer has none */
    const char *form;
    cdr__piece *eval_pieces;
    int64_t *eval_row_first; int64_t n_eval_rows;
    uint64_t fingerprint;
    cdr_data_stat stat;
    const cdr__doc *broken; int64_t broken_id;         /* where cdr_data_fault has something to say: the first of them */
};

typedef struct { int32_t *tokens, *targets, *start, *pos; float *weights; } arrays;       /* weights NULL: not wanted */

/* ---- epochs ------------------------------------------------------------------------------------------------ */

static void pack(cdr_data *d, cdr__epoch *e, int64_t epoch, int64_t first_row)
{
    cdr__epoch_pack(&d->packer, epoch, e);
    e->first_row = first_row;
}

static bool holds(const cdr__epoch *e, int64_t row)
{
    return e->epoch >= 0 && row >= e->first_row && row < e->first_row + e->n_rows;
}

/* The packed epoch that row g of the sequence lies in. */
static const cdr__epoch *epoch_of_row(cdr_data *d, int64_t g)
{
    cdr__epoch *a = &d->cache[0], *b = &d->cache[1];
    if (holds(a, g)) return a;
    if (holds(b, g)) return b;
    if (d->constant_rows) {
        int64_t n = d->packer.n_slots;
        cdr__epoch *old = a->epoch <= b->epoch ? a : b;
        pack(d, old, g / n, g / n * n);
        return old;
    }
    /* walk on from the last epoch before g, else from the start */
    cdr__epoch *at = NULL;
    for (int i = 0; i < 2; i++)
        if (d->cache[i].epoch >= 0 && d->cache[i].first_row <= g && (!at || d->cache[i].first_row > at->first_row)) at = &d->cache[i];
    if (!at) pack(d, at = a, 0, 0);
    while (!holds(at, g)) {                           /* each epoch has a row at least: ends */
        cdr__epoch *next = at == a ? b : a;
        pack(d, next, at->epoch + 1, at->first_row + at->n_rows);
        at = next;
    }
    return at;
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

uint32_t cdr__doc_word(const cdr__doc *d, int64_t i, int32_t eos)
{
    uint16_t half;
    uint32_t word;
    if (i == d->n) return (uint32_t)eos | CDR__TRAINED;
    switch ((cdr__kind)d->kind) {
    case CDR__BYTES: return d->bytes[i] | CDR__TRAINED;
    case CDR__U16: memcpy(&half, d->bytes + 2 * i, sizeof half); return half | CDR__TRAINED;
    case CDR__I32: memcpy(&word, d->bytes + 4 * i, sizeof word); return word | CDR__TRAINED;
    case CDR__WORDS: break;
    }
    memcpy(&word, d->bytes + 4 * i, sizeof word);
    return word;
}

/* Token i as cdr__doc_word has it, inside of the tables that it is looked up in. Files of tokens are checked when they are opened, and then read where they
 * lie: one that was changed since is seen here. */
static uint32_t checked_word(cdr_data *d, const cdr__doc *doc, int64_t i)
{
    const cdr__weights *weights = &d->corpus.files[doc->file].store.weights;
    uint32_t word = cdr__doc_word(doc, i, d->eos), vocab = (uint32_t)cdr_tokenizer_vocab(d->o.tokenizer);
    if (doc->kind == CDR__BYTES || i == doc->n) return word;
    bool ours = doc->kind == CDR__WORDS;
    uint32_t id = ours ? (uint32_t)cdr__word_id(word) : word & ~CDR__TRAINED;
    if (id < vocab && (!ours || cdr__word_weight(word) < CDR_MAX(weights->n, 1))) return word;
    if (!d->broken) d->broken = doc, d->broken_id = id;
    return word & CDR__TRAINED;
}

/* Returns how many of the piece's tokens have a target. */
static int64_t put_piece(cdr_data *d, const cdr__doc *doc, const cdr__piece *p, int64_t t0, arrays a)
{
    int64_t n_trained = 0;
    const cdr__weights *weights = &d->corpus.files[doc->file].store.weights;
    uint32_t word = checked_word(d, doc, p->first);
    for (int64_t i = 0; i < p->n; i++) {
        uint32_t next = checked_word(d, doc, p->first + i + 1);
        bool trained = next >= CDR__TRAINED;
        a.tokens[t0 + i] = cdr__word_id(word);
        a.targets[t0 + i] = trained ? cdr__word_id(next) : -1;
        a.start[t0 + i] = (int32_t)t0;
        if (a.weights) a.weights[t0 + i] = trained && weights->n > 1 ? weights->w[cdr__word_weight(next)] : 1;
        n_trained += trained;
        word = next;
    }
    return n_trained;
}

/* The rest of a row is idle: start above pos. */
static void put_padding(const cdr_data *d, int64_t t, int64_t end, arrays a)
{
    for (; t < end; t++) {
        a.tokens[t] = d->pad;
        a.targets[t] = -1;
        if (a.weights) a.weights[t] = 1;
        a.start[t] = (int32_t)t + 1;
    }
}

static void put_positions(const cdr_data *d, arrays a)
{
    for (int64_t t = 0; t < d->o.micro_batch_tokens; t++) a.pos[t] = (int32_t)t;
}

void cdr_data_shard(cdr_data *d, int64_t step, int64_t shard_id, int64_t n_shards,
                    int32_t *tokens_T, int32_t *targets_T, int32_t *start_T, int32_t *pos_T, float *weights_T, int64_t *n_trained, int64_t *n_rows)
{
    arrays a = { tokens_T, targets_T, start_T, pos_T, weights_T };
    int64_t S = d->o.sequence_length, g = (step * n_shards + shard_id) * d->rows_per_shard;
    CDR_CHECK(step >= 0 && shard_id >= 0 && shard_id < n_shards);
    *n_trained = *n_rows = 0;
    for (int64_t r = 0; r < d->rows_per_shard; r++) {
        const cdr__epoch *e = epoch_of_row(d, g + r);
        int64_t row = g + r - e->first_row, t = r * S;
        for (uint32_t i = e->row_first[row]; i < e->row_first[row + 1]; i++) {
            cdr__piece p = cdr__packer_piece(&d->packer, e->item[i]);
            *n_trained += put_piece(d, &d->packer.docs[p.doc], &p, t, a);
            t += p.n;
        }
        *n_rows += t - r * S;
        put_padding(d, t, (r + 1) * S, a);
    }
    put_positions(d, a);
}

/* Bytes of text that a piece's targets stand for. */
static int64_t piece_bytes(const cdr_data *d, const cdr__doc *doc, const cdr__piece *p)
{
    int64_t bytes = 0;
    if (doc->kind == CDR__BYTES) return p->n - (p->first + p->n == doc->n);
    for (int64_t i = p->first + 1; i <= p->first + p->n; i++) {
        uint32_t word = cdr__doc_word(doc, i, d->eos);
        size_t n = 0;
        if (word >= CDR__TRAINED) (void)cdr_tokenizer_bytes(d->o.tokenizer, cdr__word_id(word), &n);
        bytes += (int64_t)n;
    }
    return bytes;
}

static int64_t piece_trained(const cdr_data *d, const cdr__doc *doc, const cdr__piece *p)
{
    int64_t n = 0;
    if (doc->kind != CDR__WORDS) return p->n;
    for (int64_t i = p->first + 1; i <= p->first + p->n; i++) n += cdr__doc_word(doc, i, d->eos) >= CDR__TRAINED;
    return n;
}

void cdr_data_eval_shard(cdr_data *d, int64_t i, int32_t *tokens_T, int32_t *targets_T, int32_t *start_T, int32_t *pos_T,
                         int64_t *n_trained, int64_t *n_bytes)
{
    arrays a = { tokens_T, targets_T, start_T, pos_T, NULL };
    int64_t S = d->o.sequence_length;
    CDR_CHECK(i >= 0 && i < d->stat.eval_shards);
    *n_trained = *n_bytes = 0;
    for (int64_t r = 0; r < d->rows_per_shard; r++) {
        int64_t row = i * d->rows_per_shard + r, t = r * S;
        for (int64_t k = row < d->n_eval_rows ? d->eval_row_first[row] : 0; row < d->n_eval_rows && k < d->eval_row_first[row + 1]; k++) {
            const cdr__piece *p = &d->eval_pieces[k];
            const cdr__doc *doc = &d->corpus.eval.docs[p->doc];
            *n_trained += put_piece(d, doc, p, t, a);
            *n_bytes += piece_bytes(d, doc, p);
            t += p->n;
        }
        put_padding(d, t, (r + 1) * S, a);
    }
    put_positions(d, a);
}

cdr_status cdr_data_fault(cdr_data *d, cdr_err *err)
{
    const cdr__doc *doc = d->broken;
    char line[40] = "", what[80] = "a weight that its table has not";
    d->broken = NULL;
    if (!doc) return CDR_OK;
    int vocab = cdr_tokenizer_vocab(d->o.tokenizer);
    if (doc->line > 0) (void)snprintf(line, sizeof line, " (document of line %lld)", (long long)doc->line);
    if (d->broken_id >= vocab) (void)snprintf(what, sizeof what, "id %lld, of a vocabulary of %d", (long long)d->broken_id, vocab);
    CDR_FAIL_ID(err, CDR_EDATA, "data.changed", "%s%s: now holds %s; it was whole when it was opened, so the file was changed since. Put it back, and start again",
                d->corpus.files[doc->file].path, line, what);
}

void cdr_data_locate(cdr_data *d, int64_t step, int64_t shard_id, int64_t n_shards, int64_t t, char *out, size_t bytes)
{
    int64_t S = d->o.sequence_length, g = (step * n_shards + shard_id) * d->rows_per_shard + t / S;
    const cdr__epoch *e = epoch_of_row(d, g);
    int64_t row = g - e->first_row, at = 0;
    CDR_CHECK(t >= 0 && t < d->o.micro_batch_tokens);
    (void)snprintf(out, bytes, "padding");
    for (uint32_t i = e->row_first[row]; i < e->row_first[row + 1]; i++) {
        cdr__piece p = cdr__packer_piece(&d->packer, e->item[i]);
        if (t % S < at + p.n) {
            const cdr__doc *doc = &d->packer.docs[p.doc];
            const cdr__file *f = &d->corpus.files[doc->file];
            if (doc->kind != CDR__BYTES) {
                if (doc->line > 0) (void)snprintf(out, bytes, "%s:%lld", f->path, (long long)doc->line);
                else (void)snprintf(out, bytes, "%s, token %lld", f->path, (long long)(p.first + t % S - at));
                return;
            }
            const char *s = f->text.data, *end = (const char *)doc->bytes + p.first + t % S - at;
            int64_t line = 1;
            while ((s = memchr(s, '\n', (size_t)(end - s))) != NULL) s++, line++;
            (void)snprintf(out, bytes, "%s:%lld", f->path, (long long)line);
            return;
        }
        at += p.n;
    }
}

/* ---- held-out rows ------------------------------------------------------------------------------------------- */

/* The held-out documents one after another, cut at row borders; a row that has max_docs pieces is closed. A conversation that would be cut, and fits
 * into a row, begins the next one: its answers keep what they answer. */
static void plan_eval(cdr_data *d)
{
    const cdr__docs *docs = &d->corpus.eval;
    int64_t S = d->o.sequence_length, left = d->o.eval_tokens > 0 ? d->o.eval_tokens : INT64_MAX;
    int64_t n_pieces = 0, cap_pieces = 0, cap_rows = 0, used = 0, count = 0;
    for (int64_t i = 0; i < docs->n && left > 0; i++) {
        const cdr__doc *doc = &docs->docs[i];
        for (int64_t first = 0; first < doc->n_in && left > 0;) {
            bool whole = doc->conversation && first == 0 && doc->n_in <= S && used + doc->n_in > S;
            if (d->n_eval_rows == 0 || used == S || count == d->stat.max_docs || whole) {
                *CDR_PUSH(d->pool, d->eval_row_first, d->n_eval_rows, cap_rows) = n_pieces;
                used = count = 0;
            }
            int64_t n = CDR_MIN(CDR_MIN(S - used, doc->n_in - first), left);
            cdr__piece *piece = CDR_PUSH(d->pool, d->eval_pieces, n_pieces, cap_pieces);
            *piece = (cdr__piece){ i, first, n };
            d->stat.eval_trained += piece_trained(d, doc, piece);
            d->stat.eval_predicted_bytes += piece_bytes(d, doc, piece);
            first += n;
            used += n;
            left -= n;
            count++;
        }
    }
    int64_t n_rows = d->n_eval_rows;
    *CDR_PUSH(d->pool, d->eval_row_first, n_rows, cap_rows) = n_pieces;
    d->stat.eval_rows = d->n_eval_rows;
    d->stat.eval_shards = cdr_ceil_div(d->n_eval_rows, d->rows_per_shard);
}

/* ---- open -------------------------------------------------------------------------------------------------- */

/* Everything that the order and content of training shards depends on. Not the paths: a corpus may move. */
static uint64_t make_fingerprint(const cdr_data *d, const cdr_data_opts *o)
{
    cdr_hasher *h = cdr_hasher_new();
    const int64_t settings[] = { 1, (int64_t)o->seed, o->sequence_length, o->micro_batch_tokens, d->stat.max_docs,
                                 o->pack_window > 0 ? o->pack_window : DEFAULT_WINDOW, o->no_shuffle,
                                 o->long_samples == CDR_LONG_AUTO ? CDR_LONG_SPLIT : o->long_samples, o->n_train };
    cdr_hasher_add(h, settings, sizeof settings);
    uint64_t ids = cdr_tokenizer_hash(o->tokenizer);
    cdr_hasher_add(h, &ids, sizeof ids);
    cdr_hasher_add(h, d->corpus.source_end, (size_t)o->n_train * sizeof *d->corpus.source_end);
    cdr_hasher_add(h, d->packer.copies, (size_t)o->n_train * sizeof *d->packer.copies);
    cdr_hasher_add(h, d->packer.extra, (size_t)o->n_train * sizeof *d->packer.extra);
    for (int64_t i = 0; i < d->corpus.train.n; i++) {
        const cdr__doc *doc = &d->corpus.train.docs[i];
        static const size_t SIZE[] = { [CDR__BYTES] = 1, [CDR__U16] = 2, [CDR__I32] = 4, [CDR__WORDS] = 4 };
        const int64_t lengths[] = { doc->n, doc->n_in };
        cdr_hasher_add(h, lengths, sizeof lengths);
        if (doc->kind != CDR__BYTES) cdr_hasher_add(h, &doc->kind, 1);
        cdr_hasher_add(h, doc->bytes, (size_t)doc->n * SIZE[doc->kind]);
        const cdr__weights *weights = &d->corpus.files[doc->file].store.weights;
        if (weights->n > 1) cdr_hasher_add(h, weights->w, (size_t)weights->n * sizeof *weights->w);
    }
    return cdr_hasher_end(h);
}

static void fill_stat(cdr_data *d)
{
    cdr_data_stat *s = &d->stat;
    const cdr__packer *p = &d->packer;
    const cdr__epoch *e = epoch_of_row(d, 0);
    s->n_documents = d->corpus.train.n;
    s->n_dropped = d->corpus.n_dropped;
    s->train_bytes = d->corpus.train_bytes;
    s->eval_bytes = d->corpus.eval_bytes;
    s->epoch_samples = p->n_slots;
    s->rows_epoch0 = e->n_rows;
    s->epoch_tokens = e->n_rows * d->o.sequence_length;
    for (int64_t i = 0; i < p->n_slots; i++) {
        cdr__piece piece = cdr__packer_piece(p, e->item[i]);
        s->epoch_trained += piece_trained(d, &p->docs[piece.doc], &piece);
        s->epoch_places += piece.n;
    }
    for (int64_t i = 0; i < d->corpus.train.n; i++) {
        s->train_tokens += d->corpus.train.docs[i].n;
        s->n_conversations += d->corpus.train.docs[i].conversation;
    }
    s->n_eval_documents = d->corpus.eval.n;
    for (int64_t i = 0; i < d->corpus.eval.n; i++) s->eval_tokens += d->corpus.eval.docs[i].n;
}

static const char *form_of(const cdr_data *d)
{
    bool seen[CDR__TOKENS + 1] = { false };
    const char *form = "";
    for (int64_t i = 0; i < d->corpus.n_files; i++) seen[d->corpus.files[i].format] = true;
    for (int f = CDR__TEXT; f <= CDR__TOKENS; f++)
        if (seen[f]) form = cdr_pool_printf(d->pool, "%s%s%s", form, *form ? " and " : "", cdr__format_name((cdr__format)f));
    return form;
}

static cdr_status check_opts(const cdr_data_opts *o, cdr_err *err)
{
    CDR_CHECK(o->tokenizer && o->n_train > 0);
    if (o->sequence_length < 2 || o->sequence_length > INT32_MAX / 2)
        CDR_FAIL_ID(err, CDR_EUSER, "config.range", "train.sequence_length: %lld is out of range", (long long)o->sequence_length);
    if (o->micro_batch_tokens < 1 || o->micro_batch_tokens > INT32_MAX / 2 || o->micro_batch_tokens % o->sequence_length != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.range", "train.micro_batch_tokens: %lld is no multiple of train.sequence_length, %lld. Set it to one",
                    (long long)o->micro_batch_tokens, (long long)o->sequence_length);
    if (!(o->eval_fraction >= 0 && o->eval_fraction <= 0.5))
        CDR_FAIL_ID(err, CDR_EUSER, "config.range", "data.eval_fraction: %g is not from 0 to 0.5", o->eval_fraction);
    if (cdr_tokenizer_vocab(o->tokenizer) > 1 << CDR__ID_BITS)
        CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.vocab", "data.tokenizer: %d ids; at most %d are read", cdr_tokenizer_vocab(o->tokenizer), 1 << CDR__ID_BITS);
    if (o->max_docs < 0 || o->pack_window < 0 || o->eval_tokens < 0)
        CDR_FAIL_ID(err, CDR_EUSER, "config.range", "data.max_docs, data.pack_window, eval.tokens: cannot be negative");
    return CDR_OK;
}

static cdr_status open_data(cdr_data *d, const cdr_data_opts *o, cdr_err *err)
{
    CDR_TRY(check_opts(o, err));
    d->o = *o;
    d->o.train = d->o.eval = NULL;
    d->o.chat = NULL;
    d->o.cache = NULL;
    d->eos = cdr_tokenizer_eos(o->tokenizer);
    d->pad = CDR_MAX(cdr_tokenizer_pad(o->tokenizer), 0);
    d->rows_per_shard = o->micro_batch_tokens / o->sequence_length;
    d->stat.max_docs = o->no_pack ? 1 : o->max_docs > 0 ? o->max_docs : CDR_MAX(o->sequence_length / 64, 1);
    CDR_TRY(cdr__corpus_open(d->pool, o, d->eos, &d->corpus, err));
    CDR_TRY(cdr__packer_open(d->pool, o, &d->corpus, d->stat.max_docs, &d->packer, err));
    d->constant_rows = d->stat.max_docs == 1 || d->packer.n_short <= 1;        /* then no row holds two samples */
    for (int i = 0; i < 2; i++) cdr__epoch_alloc(d->pool, &d->packer, &d->cache[i]);
    plan_eval(d);
    fill_stat(d);
    d->form = form_of(d);
    d->fingerprint = make_fingerprint(d, o);
    return CDR_OK;
}

cdr_status cdr_data_open(const cdr_data_opts *o, cdr_data **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_data *d = cdr_pool_alloc(pool, sizeof *d);
    d->pool = pool;
    cdr_status status = open_data(d, o, err);
    if (status != CDR_OK) cdr_data_close(d);
    else *out = d;
    return status;
}

void cdr_data_close(cdr_data *d)
{
    if (!d) return;
    cdr__corpus_close(&d->corpus);
    cdr_pool_free(d->pool);
}

bool cdr_data_weighted(const cdr_data *d)
{
    bool weighted = false;
    for (int64_t i = 0; i < d->corpus.n_files; i++) weighted |= d->corpus.files[i].store.weights.n > 1;
    return weighted;
}

const cdr_data_stat *cdr_data_stats(const cdr_data *d)
{
    return &d->stat;
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

static const cdr__doc *doc_of(const cdr_data *d, bool held_out, int64_t i)
{
    const cdr__docs *docs = held_out ? &d->corpus.eval : &d->corpus.train;
    CDR_CHECK(i >= 0 && i < docs->n);
    return &docs->docs[i];
}

int64_t cdr_data_docs(const cdr_data *d, bool held_out)
{
    return held_out ? d->corpus.eval.n : d->corpus.train.n;
}

cdr_data_doc cdr_data_doc_at(const cdr_data *d, bool held_out, int64_t i)
{
    const cdr__doc *doc = doc_of(d, held_out, i);
    return (cdr_data_doc){ d->corpus.files[doc->file].path, doc->line, doc->n + doc->ends, doc->n_in, doc->n_trained, doc->conversation };
}

void cdr_data_doc_tokens(const cdr_data *d, bool held_out, int64_t i, int64_t first, int64_t n, int32_t *ids, bool *trained)
{
    const cdr__doc *doc = doc_of(d, held_out, i);
    CDR_CHECK(first >= 0 && n >= 0 && first + n <= doc->n + doc->ends);
    for (int64_t k = 0; k < n; k++) {
        uint32_t word = cdr__doc_word(doc, first + k, d->eos);
        ids[k] = cdr__word_id(word);
        trained[k] = first + k > 0 && first + k <= doc->n_in && word >= CDR__TRAINED;
    }
}

int64_t cdr_data_drops(const cdr_data *d, const cdr_data_drop **list)
{
    *list = d->corpus.drops;
    return d->corpus.n_drops;
}

const char *cdr_data_reason_text(cdr_data_reason r)
{
    static const char *const TEXT[] = { "empty", "another name of the same file", "no trained token", "too long" };
    return TEXT[r];
}

const char *cdr_data_form(const cdr_data *d)
{
    return d->form;
}

static cdr_status write_portions(const cdr_data *d, const char *dir, const char *const *names, cdr_pool *pool, cdr_data_packed *out, int *n, cdr_err *err)
{
    const cdr__corpus *c = &d->corpus;
    int64_t first = 0;
    for (int i = 0; i < d->o.n_train; i++) {
        cdr_data_packed *p = &out[*n];
        *p = (cdr_data_packed){ .path = cdr_pool_printf(pool, "%s/%s.tokens", dir, names[i]) };
        CDR_TRY(cdr__write_portion(c->train.docs + first, c->source_end[i] - first, c, d->o.tokenizer, d->form, p, err));
        first = c->source_end[i];
        ++*n;
    }
    if (c->eval.n == 0) return CDR_OK;
    out[*n] = (cdr_data_packed){ .path = cdr_pool_printf(pool, "%s/eval.tokens", dir) };
    CDR_TRY(cdr__write_portion(c->eval.docs, c->eval.n, c, d->o.tokenizer, d->form, &out[*n], err));
    ++*n;
    return CDR_OK;
}

cdr_status cdr_data_write(const cdr_data *d, const char *dir, const char *const *names, cdr_pool *pool, cdr_data_packed *out, int *n, cdr_err *err)
{
    bool there = cdr_exists(dir);
    CDR_TRY(cdr_make_dirs(dir, err));
    *n = 0;
    cdr_status st = write_portions(d, dir, names, pool, out, n, err);
    if (st == CDR_OK) return CDR_OK;
    while (*n > 0) (void)unlink(out[--*n].path);      /* half of a set would be trained on as if it were all */
    if (!there) (void)rmdir(dir);
    return st;
}

/* ---- epochs, state ------------------------------------------------------------------------------------------- */

double cdr_data_epoch(cdr_data *d, int64_t n_steps, int64_t n_shards)
{
    int64_t g = n_steps * n_shards * d->rows_per_shard;
    const cdr__epoch *e = epoch_of_row(d, g);
    return (double)e->epoch + (double)(g - e->first_row) / (double)e->n_rows;
}

int64_t cdr_data_steps(cdr_data *d, double epochs, int64_t n_shards)
{
    int64_t whole = (int64_t)floor(epochs), row = 0;
    const cdr__epoch *e = epoch_of_row(d, 0);
    if (d->constant_rows) row = whole * d->packer.n_slots;
    else
        while (e->epoch < whole) {
            row = e->first_row + e->n_rows;
            e = epoch_of_row(d, row);
        }
    if (!d->constant_rows) row = e->first_row;
    e = epoch_of_row(d, row);
    row += (int64_t)ceil((epochs - (double)whole) * (double)e->n_rows);
    return cdr_ceil_div(row, n_shards * d->rows_per_shard);
}

uint64_t cdr_data_fingerprint(const cdr_data *d)
{
    return d->fingerprint;
}

void cdr_data_state(const cdr_data *d, cdr_jw *w, int64_t n_steps, int64_t n_shards)
{
    cdr_jw_begin(w, "data", '{');
    cdr_jw_u64hex(w, "fingerprint", d->fingerprint);
    cdr_jw_int(w, "cursor", n_steps * n_shards * d->rows_per_shard);
    cdr_jw_null(w, "packer");                         /* nothing is carried over: rows follow from the cursor */
    cdr_jw_end(w, '}');
}

cdr_status cdr_data_check_state(const cdr_data *d, const cdr_json *state, int64_t n_steps, int64_t n_shards, cdr_err *err)
{
    char ours[24];
    const char *theirs = cdr_json_str(cdr_json_get(state, "fingerprint"), "none");
    int64_t cursor = cdr_json_int(cdr_json_get(state, "cursor"), -1), want = n_steps * n_shards * d->rows_per_shard;
    (void)snprintf(ours, sizeof ours, "%016llx", (unsigned long long)d->fingerprint);
    if (strcmp(ours, theirs) != 0)
        CDR_FAIL_ID(err, CDR_EDATA, "resume.data-changed", "data.train: another corpus or another order than the run began with (fingerprint %s, was %s). "
                    "Put the files and the data settings back, or start a new run with another --out", ours, theirs);
    if (cursor != want)
        CDR_FAIL_ID(err, CDR_EDATA, "resume.cursor", "state.json: its data cursor is %lld, step %lld of %lld shards is at %lld", (long long)cursor,
                    (long long)n_steps, (long long)n_shards, (long long)want);
    return CDR_OK;
}
