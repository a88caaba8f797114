/* tokenize.c: all records of a file, or a long text, as words: once, in parallel, kept in the cache.
 *
 * The file is cut into records by one thread (which costs a look at each byte); jobs of about JOB_BYTES of them are worked on by data.threads
 * threads, a round of jobs at a time, and joined in the file's order: neither words nor the record that an error names depend on the number
 * of threads. A text is cut into parts of PART_BYTES or more, only where its tokenizer knows that the parts' tokens are those of the whole
 * (cdr_tokenizer_cut); where it knows no such place, the text is one part.
 *
 * Cache: CACHE/tokens/KEY.tokens, KEY a hash of the file's bytes, the tokenizer, the chat format with what it reads, all options that words
 * depend on, and this program itself: another build may render otherwise. One process makes a file, others that need it wait on its lock.
 */
#include "data/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

enum { JOB_BYTES = 256 << 10, JOBS_A_THREAD = 4, MAX_THREADS = 1024, PART_BYTES = 1 << 20, CACHE_FROM = 1 << 20 };

typedef struct {
    const cdr__record *rec; int64_t n_rec;
    cdr__words words;
    cdr__row *rows; cdr__lost *lost; int64_t n_rows, n_lost;         /* room for n_rec each; row.end: words of this job */
    cdr__weights weights;
    bool chat;
    cdr_status status; cdr_err err;
} job;

typedef struct {
    const char *path;
    cdr__format format;                /* CDR__TEXT: the records are parts of one text */
    cdr__columns columns;
    cdr__masking mask;
    bool drop_untrained;
    int64_t n_text;                    /* words of the text so far */
    job *jobs; int n_jobs;
    _Atomic int next;
} work;

/* ---- one record ------------------------------------------------------------------------------------------------- */

/* A message of the readers below with file and line in front. */
static cdr_status at_line(const work *w, const cdr__record *rec, cdr_status st, const cdr_err *inner, cdr_err *err)
{
    return cdr_fail(err, st, inner->id[0] ? inner->id : NULL, "%s:%lld: %s", w->path, (long long)rec->line, inner->text);
}

static void list_roles(const cdr__sample *s, cdr_text *t)
{
    static const char *const ROLES[] = { "assistant", "system", "tool", "user" };
    for (int r = 0; r < CDR_COUNT(ROLES); r++)
        for (int i = 0; i < s->talk.n; i++)
            if (strcmp(s->talk.message[i].role, ROLES[r]) == 0) {
                cdr_text_printf(t, "%s%s", t->n ? ", " : "", ROLES[r]);
                break;
            }
}

static cdr_status fail_untrained(const work *w, const cdr__record *rec, const cdr__sample *s, int64_t n, cdr_err *err)
{
    cdr_text roles = { 0 };
    list_roles(s, &roles);
    cdr_fail(err, CDR_EDATA, "data.nothing-trained", "%s:%lld: 0 of %lld tokens are trained (data.train_on %s%s%s). Mend the sample, or data.untrained=drop", w->path,
             (long long)rec->line, (long long)n, cdr__train_on_name(w->mask.train_on, s->chat), s->chat ? "; roles here: " : "", s->chat ? roles.s : "");
    cdr_text_free(&roles);
    return CDR_EDATA;
}

static cdr_status do_record(const work *w, job *j, const cdr__record *rec, cdr_pool *pool, cdr_err *err)
{
    const cdr_json *root;
    cdr__sample s;
    cdr_err inner = { 0 };
    int64_t first = j->words.n, n_trained;
    CDR_TRY(cdr_json_parse_at(pool, rec->s, rec->n, (cdr_json_place){ w->path, rec->line, rec->col }, &root, err));
    cdr_status st = cdr__sample_read(pool, w->format, &w->columns, root, &s, &inner);
    if (st == CDR_OK) st = cdr__mask_sample(&w->mask, &s, &j->weights, &j->words, &n_trained, &inner);
    if (st != CDR_OK) return at_line(w, rec, st, &inner, err);
    int64_t n = j->words.n - first;
    j->chat |= s.chat || s.prompt;
    if (n_trained == 0) {
        bool empty = !s.chat && n < 2 && !s.prompt;
        if (!empty && !w->drop_untrained) return fail_untrained(w, rec, &s, n, err);
        j->words.n = first;
        j->lost[j->n_lost++] = (cdr__lost){ rec->line, empty ? CDR_DROP_EMPTY : CDR_DROP_UNTRAINED, n };
    } else j->rows[j->n_rows++] = (cdr__row){ j->words.n, rec->line, n_trained, cdr_hash64(rec->s, rec->n, 0) };
    return CDR_OK;
}

static void do_text(const work *w, job *j, const cdr__record *rec)
{
    uint32_t *words = cdr__words_room(&j->words, cdr_tokenizer_room(w->mask.tok, rec->n));
    int64_t n = cdr_tokenizer_encode(w->mask.tok, rec->s, rec->n, (int32_t *)(void *)words);
    for (int64_t i = 0; i < n; i++) words[i] |= CDR__TRAINED;
    j->words.n += n;
}

static void do_job(const work *w, job *j)
{
    j->words.n = j->n_rows = j->n_lost = 0;
    j->weights = (cdr__weights){ { 1 }, 1 };
    j->status = CDR_OK;
    j->err = (cdr_err){ 0 };
    for (int64_t i = 0; i < j->n_rec && j->status == CDR_OK; i++) {
        if (w->format == CDR__TEXT) {
            do_text(w, j, &j->rec[i]);
            continue;
        }
        cdr_pool *pool = cdr_pool_new();
        j->status = do_record(w, j, &j->rec[i], pool, &j->err);
        cdr_pool_free(pool);
    }
}

/* ---- rounds ------------------------------------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
    work *w = arg;
    for (int i; (i = atomic_fetch_add(&w->next, 1)) < w->n_jobs;) do_job(w, &w->jobs[i]);
    return NULL;
}

static void run_jobs(work *w, int n_threads)
{
    pthread_t threads[MAX_THREADS];
    int n = 0;
    atomic_store(&w->next, 0);
    n_threads = CDR_MIN(n_threads, w->n_jobs);
    while (n < n_threads - 1 && pthread_create(&threads[n], NULL, thread_main, w) == 0) n++;
    thread_main(w);
    for (int i = 0; i < n; i++) (void)pthread_join(threads[i], NULL);
}

/* Reads records of one round; jobs get stretches of them. */
typedef struct {
    cdr__record *rec; int64_t n, cap;
    int64_t *ends;                     /* of jobs, in rec */
    int n_ends;
} round_of;

typedef cdr_status (*next_record)(void *from, cdr__record *rec, bool *more, cdr_err *err);

static cdr_status fill_round(cdr_pool *pool, next_record next, void *from, int max_jobs, int64_t *left, round_of *r, bool *more, cdr_err *err)
{
    size_t bytes = 0;
    r->n = 0;
    r->n_ends = 0;
    *more = true;
    while (r->n_ends < max_jobs) {
        cdr__record rec;
        if (*left <= 0) *more = false;
        else CDR_TRY(next(from, &rec, more, err));
        if (!*more) break;
        (*left)--;
        *CDR_PUSH(pool, r->rec, r->n, r->cap) = rec;
        bytes += rec.n;
        if (bytes < JOB_BYTES) continue;
        r->ends[r->n_ends++] = r->n;
        bytes = 0;
    }
    if (r->n_ends < max_jobs && (r->n_ends ? r->ends[r->n_ends - 1] : 0) < r->n) r->ends[r->n_ends++] = r->n;
    return CDR_OK;
}

static cdr_status join_job(work *w, const job *j, cdr__writer *out, cdr_err *err)
{
    if (j->status != CDR_OK) {
        *err = j->err;
        return j->status;
    }
    if (w->format == CDR__TEXT) {
        if (w->n_text == 0 && j->words.n > 0) j->words.w[0] &= ~CDR__TRAINED;
        w->n_text += j->words.n;
        return cdr__writer_words(out, j->words.w, j->words.n, err);
    }
    uint8_t map[CDR__WEIGHTS];
    if (j->weights.n > 1) {
        CDR_TRY(cdr__writer_weights(out, &j->weights, map, err));
        cdr__remap(j->words.w, j->words.n, map);
    }
    int64_t at = 0, lost = 0;
    for (int64_t i = 0; i < j->n_rows; i++) {
        for (; lost < j->n_lost && j->lost[lost].line < j->rows[i].line; lost++) cdr__writer_lost(out, j->lost[lost]);
        CDR_TRY(cdr__writer_words(out, j->words.w + at, j->rows[i].end - at, err));
        at = j->rows[i].end;
        cdr__writer_row(out, j->rows[i]);
    }
    for (; lost < j->n_lost; lost++) cdr__writer_lost(out, j->lost[lost]);
    return CDR_OK;
}

/* chat: any record was a conversation. */
static cdr_status run_rounds(work *w, int n_threads, next_record next, void *from, int64_t left, cdr__writer *out, bool *chat, cdr_err *err)
{
    n_threads = CDR_MAX(CDR_MIN(n_threads, (int)MAX_THREADS), 1);
    int max_jobs = n_threads * JOBS_A_THREAD;
    job *jobs = calloc((size_t)max_jobs, sizeof *jobs);
    CDR_CHECK(jobs);
    cdr_status st = CDR_OK;
    bool more = true;
    w->jobs = jobs;
    *chat = false;
    while (st == CDR_OK && more) {
        cdr_pool *pool = cdr_pool_new();
        cdr_err reading = { 0 };
        round_of r = { .ends = cdr_pool_alloc(pool, (size_t)max_jobs * sizeof(int64_t)) };
        cdr_status read = fill_round(pool, next, from, max_jobs, &left, &r, &more, &reading);
        if (read != CDR_OK && (r.n_ends ? r.ends[r.n_ends - 1] : 0) < r.n && r.n_ends < max_jobs) r.ends[r.n_ends++] = r.n;
        w->n_jobs = r.n_ends;
        for (int i = 0; i < r.n_ends; i++) {
            int64_t first = i ? r.ends[i - 1] : 0, n = r.ends[i] - first;
            jobs[i].rec = r.rec + first;
            jobs[i].n_rec = n;
            jobs[i].rows = cdr_pool_alloc(pool, (size_t)n * sizeof(cdr__row));
            jobs[i].lost = cdr_pool_alloc(pool, (size_t)n * sizeof(cdr__lost));
        }
        run_jobs(w, n_threads);
        for (int i = 0; i < r.n_ends && st == CDR_OK; i++) {
            st = join_job(w, &jobs[i], out, err);
            *chat |= jobs[i].chat;
        }
        if (st == CDR_OK && read != CDR_OK) {         /* records before the broken place come first */
            *err = reading;
            st = read;
        }
        cdr_pool_free(pool);
    }
    for (int i = 0; i < max_jobs; i++) free(jobs[i].words.w);
    free(jobs);
    return st;
}

/* ---- sources of records ---------------------------------------------------------------------------------------------- */

static cdr_status next_of_reader(void *from, cdr__record *rec, bool *more, cdr_err *err)
{
    return cdr__reader_next(from, rec, more, err);
}

typedef struct { const cdr_tokenizer *tok; const char *at, *end; } parts;

static cdr_status next_part(void *from, cdr__record *rec, bool *more, cdr_err *err)
{
    parts *p = from;
    (void)err;
    *more = p->at < p->end;
    size_t n = cdr_tokenizer_cut(p->tok, p->at, (size_t)(p->end - p->at), PART_BYTES);
    *rec = (cdr__record){ p->at, n, 1, 1 };
    p->at += n;
    return CDR_OK;
}

/* ---- the cache ----------------------------------------------------------------------------------------------------------- */

typedef struct { char path[PATH_MAX]; int lock; } cache_entry;       /* path "": none; lock -1: not held */

/* Hash of the running program. */
static uint64_t program_hash(void)
{
    cdr_map m;
    cdr_err ignored = { 0 };
    if (cdr_map_open("/proc/self/exe", &m, &ignored) != CDR_OK) return 0;
    uint64_t h = cdr_hash64(m.data, m.bytes, 0);
    cdr_map_close(&m);
    return h;
}

static uint64_t key_of(const work *w, const void *data, size_t bytes, int64_t max_samples, bool ends)
{
    cdr_hasher *h = cdr_hasher_new();
    const uint64_t parts_of_key[] = { program_hash(), cdr_tokenizer_hash(w->mask.tok), w->mask.chat ? cdr_chat_hash(w->mask.chat) : 0, (uint64_t)w->format,
        (uint64_t)w->mask.train_on,
                                      (uint64_t)w->mask.train_eos, (uint64_t)w->mask.mask_think, w->drop_untrained, (uint64_t)max_samples, ends,
                                      (uint64_t)(int64_t)w->mask.eos };
    cdr_hasher_add(h, parts_of_key, sizeof parts_of_key);
    for (int i = 0; i < w->columns.n; i++) {
        cdr_hasher_add(h, w->columns.c[i].ours, strlen(w->columns.c[i].ours) + 1);
        cdr_hasher_add(h, w->columns.c[i].theirs, strlen(w->columns.c[i].theirs) + 1);
    }
    cdr_hasher_add(h, data, bytes);
    return cdr_hasher_end(h);
}

/* Finds the entry, waiting for whoever makes it now. A cache that cannot be used is a note, no error. */
static void cache_find(const cdr__corpus *c, uint64_t key, cache_entry *e)
{
    char dir[PATH_MAX - 64], lock[PATH_MAX + 8];
    cdr_err err = { 0 };
    e->path[0] = 0;
    e->lock = -1;
    if (!c->o->cache || snprintf(dir, sizeof dir, "%s/tokens", c->o->cache) >= (int)sizeof dir) return;
    if (cdr_make_dirs(dir, &err) != CDR_OK) {
        cdr_log(CDR_LOG_INFO, "tokens are not kept: %s", err.text);
        return;
    }
    (void)snprintf(e->path, sizeof e->path, "%s/%016llx.tokens", dir, (unsigned long long)key);
    (void)snprintf(lock, sizeof lock, "%s.lock", e->path);
    e->lock = open(lock, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (e->lock < 0) {
        cdr_log(CDR_LOG_INFO, "tokens are not kept: %s: %s", lock, strerror(errno));
        e->path[0] = 0;
        return;
    }
    while (flock(e->lock, LOCK_EX) != 0 && errno == EINTR) continue;
}

static void cache_leave(cache_entry *e)
{
    char lock[PATH_MAX + 8];
    if (e->lock < 0) return;
    (void)snprintf(lock, sizeof lock, "%s.lock", e->path);
    (void)unlink(lock);
    (void)close(e->lock);
    e->lock = -1;
}

/* What is made, and of which bytes. */
typedef struct { const char *data; size_t bytes; next_record next; void *from; int64_t left; bool text, ends; const char *form; } stuff;

static cdr_status make_store(cdr__corpus *c, work *w, const stuff *s, const char *path, cdr__store *store, cdr_err *err)
{
    cdr__writer *out;
    bool chat;
    char hash[24];
    CDR_TRY(cdr__writer_open(path, &out, err));
    cdr_status st = run_rounds(w, c->o->threads, s->next, s->from, s->left, out, &chat, err);
    if (st == CDR_OK && s->ends) st = cdr__writer_words(out, &(uint32_t){ (uint32_t)w->mask.eos | CDR__TRAINED }, 1, err);
    if (st != CDR_OK) {
        cdr__writer_abort(out);
        return st;
    }
    if (s->text) cdr__writer_row(out, (cdr__row){ .n_trained = CDR_MAX(w->n_text + s->ends - 1, (int64_t)0) });
    (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)cdr_tokenizer_hash(w->mask.tok));
    const cdr_st_pair meta[] = { { "tokenizer", hash }, { "kind", chat ? "conversations" : "documents" }, { "form", s->form } };
    st = cdr__writer_end(c->pool, out, meta, CDR_COUNT(meta), store, err);
    if (st == CDR_OK) store->conversations = chat;
    return st;
}

static cdr_status load_or_make(cdr__corpus *c, work *w, const stuff *s, cdr__store *store, cdr_err *err)
{
    cache_entry e = { .lock = -1 };
    if (s->bytes >= CACHE_FROM) cache_find(c, key_of(w, s->data, s->bytes, s->left, s->ends), &e);
    cdr_err ignored = { 0 };
    cdr_status st = CDR_OK;
    if (e.path[0] && cdr_exists(e.path) && cdr__store_open(c->pool, e.path, w->mask.tok, store, &ignored) == CDR_OK)
        cdr_log(CDR_LOG_DEBUG, "%s: tokens from %s", w->path, e.path);
    else st = make_store(c, w, s, e.path[0] ? e.path : NULL, store, err);
    cache_leave(&e);
    return st;
}

/* ---- the chat format ------------------------------------------------------------------------------------------------ */

/* Opened by the first file of conversations: text needs none. */
static cdr_status want_chat(cdr__corpus *c, cdr_err *err)
{
    const cdr_chat_spec *s = c->o->chat;
    if (c->chat || !s || !s->format || strcmp(s->format, "none") == 0) return CDR_OK;
    return cdr_chat_open(s, &c->chat, err);
}

/* ---- a file of records; a text ----------------------------------------------------------------------------------------------- */

static work work_of(const cdr__corpus *c, const cdr_data_source *s, const char *path, cdr__format format)
{
    const cdr_data_opts *o = c->o;
    int train_on = s && s->train_on != CDR_LOSS_AUTO ? s->train_on : o->train_on;
    return (work){ .path = path, .format = format, .columns = s ? (cdr__columns){ s->columns, s->n_columns } : (cdr__columns){ NULL, 0 },
                   .mask = { o->tokenizer, c->chat, train_on, o->train_eos, o->mask_think, c->eos }, .drop_untrained = o->drop_untrained };
}

cdr_status cdr__add_records(const cdr__intake *in, int64_t file, cdr__format format, cdr_err *err)
{
    cdr__file *f = &in->c->files[file];
    if (format != CDR__RECORDS) CDR_TRY(want_chat(in->c, err));
    work w = work_of(in->c, in->source, f->path, format);
    cdr__reader r;
    cdr__reader_open(f->path, f->text.data, f->text.bytes, &r);
    stuff s = { .data = f->text.data, .bytes = f->text.bytes, .next = next_of_reader, .from = &r, .left = cdr__intake_left(in), .form = cdr__format_name(format) };
    CDR_TRY(load_or_make(in->c, &w, &s, &f->store, err));
    cdr_textfile_close(&f->text);
    return cdr__add_store(in, file, err);
}

cdr_status cdr__encode_text(cdr__corpus *c, cdr__doc *d, cdr_err *err)
{
    const cdr__file *from = &c->files[d->file];
    work w = work_of(c, NULL, from->path, CDR__TEXT);
    parts p = { c->o->tokenizer, (const char *)d->bytes, (const char *)d->bytes + d->n };
    w.mask.chat = NULL;
    stuff s = { .data = p.at, .bytes = (size_t)d->n, .next = next_part, .from = &p, .left = INT64_MAX, .text = true, .ends = d->ends && c->eos >= 0, .form = "text" };
    cdr__store store;
    CDR_TRY(load_or_make(c, &w, &s, &store, err));
    *CDR_PUSH(c->pool, c->files, c->n_files, c->cap_files) = (cdr__file){ .path = from->path, .format = CDR__TEXT, .store = store };
    *d = (cdr__doc){ .file = c->n_files - 1, .bytes = (const uint8_t *)store.words, .n = store.n_words, .kind = CDR__WORDS,
                     .n_trained = CDR_MAX(store.n_words - 1, (int64_t)0) };
    return CDR_OK;
}
