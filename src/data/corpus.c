/* corpus.c: from the sources of a recipe to documents. One document a file of text, one a record of JSON, what the tables of a token file say; a
 * directory's files in byte order of their names, hidden ones and those that are one more name of a file left out.
 *
 * What a file is, is told by its content: a token file by its mark, records by their first one; .json and .jsonl without a known record are refused
 * (format text reads them as they are). Held-out text is the tail of each source's bytes, taken as its documents one after another; the cut is moved
 * on to the next UTF-8 character. A text that is cut loses its last place as an input (its successor is held out). Of records and token files, a
 * document is held out by the hash of its record, so that it stays on its side whatever else is in the file, and twins stay together.
 */
#include "data/internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static const size_t FILE_MAX = (size_t)1 << 40;

static bool ends_with(const char *s, size_t n, const char *with)
{
    return n >= strlen(with) && strncasecmp(s + n - strlen(with), with, strlen(with)) == 0;
}

void cdr__drop(cdr__corpus *c, cdr_data_drop drop)
{
    *CDR_PUSH(c->pool, c->drops, c->n_drops, c->cap_drops) = drop;
    c->n_dropped += !drop.held_out;
}

int64_t cdr__intake_left(const cdr__intake *in)
{
    int64_t have = in->to->n - in->first + (in->held ? in->held->n - in->first_held : 0);
    return in->source->max_samples > 0 ? CDR_MAX(in->source->max_samples - have, (int64_t)0) : INT64_MAX;
}

/* ---- what a file is ------------------------------------------------------------------------------------------------- */

static bool is_json_name(const char *path)
{
    size_t n = strlen(path);
    if (ends_with(path, n, ".gz")) n -= 3;
    else if (ends_with(path, n, ".zst")) n -= 4;
    return ends_with(path, n, ".json") || ends_with(path, n, ".jsonl") || ends_with(path, n, ".ndjson");
}

static cdr__format said_format(const cdr_data_source *s)
{
    static const struct { const char *word; cdr__format f; } WORDS[] = { { "text", CDR__TEXT }, { "messages", CDR__MESSAGES }, { "sharegpt", CDR__SHAREGPT },
        { "alpaca", CDR__ALPACA }, { "completion", CDR__COMPLETION }, { "tokens", CDR__TOKENS } };
    for (int i = 0; s->format && i < CDR_COUNT(WORDS); i++)
        if (strcmp(s->format, WORDS[i].word) == 0) return WORDS[i].f;
    return CDR__AUTO;
}

static cdr_status fail_unknown(cdr_pool *pool, const cdr__record *rec, const cdr_json *root, const char *path, cdr_err *err)
{
    cdr_text keys = { 0 };
    for (int64_t i = 0; i < cdr_json_count(root) && keys.n < 200 && cdr_json_type(root) == CDR_JSON_OBJECT; i++)
        cdr_text_printf(&keys, "%s%.40s", i ? ", " : "", cdr_json_key(root, i));
    const char *has = cdr_pool_strndup(pool, keys.s ? keys.s : "", keys.n);
    cdr_text_free(&keys);
    CDR_FAIL_ID(err, CDR_EDATA, "data.format", "%s:%lld: no known form of record (%s%s); known are messages, conversations, instruction and output, prompt and "
        "completion, query and "
                "response, text. Name the fields in columns, or set data.format=text to train on the file as it is", path, (long long)rec->line,
                *has ? "it has " : "it is no object with fields", has);
}

/* The form of the first record. *none: there is no record. */
static cdr_status form_of_records(cdr_pool *pool, const cdr__columns *c, const cdr__file *f, cdr__format *format, bool *none, cdr_err *err)
{
    cdr__reader r;
    cdr__record rec;
    bool more;
    const cdr_json *root;
    cdr__reader_open(f->path, f->text.data, f->text.bytes, &r);
    CDR_TRY(cdr__reader_next(&r, &rec, &more, err));
    *none = !more;
    if (!more) return CDR_OK;
    CDR_TRY(cdr_json_parse_at(pool, rec.s, rec.n, (cdr_json_place){ f->path, rec.line, rec.col }, &root, err));
    *format = cdr__detect(c, root);
    return *format == CDR__AUTO ? fail_unknown(pool, &rec, root, f->path, err) : CDR_OK;
}

/* format text on a file of JSON: its records' text where they have one, else the file as it is. */
static cdr__format text_or_records(const cdr__columns *c, const cdr__file *f)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err ignored = { 0 };
    cdr__format format = CDR__TEXT;
    bool none = true;
    bool records = form_of_records(pool, c, f, &format, &none, &ignored) == CDR_OK && !none && format == CDR__RECORDS;
    cdr_pool_free(pool);
    return records ? CDR__RECORDS : CDR__TEXT;
}

cdr_status cdr__find_format(const cdr_data_source *source, cdr__file *f, cdr_err *err)
{
    const cdr__columns columns = { source ? source->columns : NULL, source ? source->n_columns : 0 };
    cdr__format said = source ? said_format(source) : CDR__AUTO;
    bool other, none = false, json = is_json_name(f->path);
    size_t n = strlen(f->path);
    if (said == CDR__TEXT) f->format = json ? text_or_records(&columns, f) : CDR__TEXT;
    else if (said != CDR__AUTO) f->format = said;
    else if (cdr__is_shard(f->path, f->text.data, f->text.bytes, &other)) f->format = CDR__TOKENS;
    else if (json) {
        cdr_pool *pool = cdr_pool_new();
        cdr_status st = form_of_records(pool, &columns, f, &f->format, &none, err);
        cdr_pool_free(pool);
        if (none) f->format = f->text.bytes ? CDR__RECORDS : CDR__TEXT;      /* nothing but blank lines, or empty */
        return st;
    } else if (ends_with(f->path, n, ".parquet") || ends_with(f->path, n, ".arrow"))
        CDR_FAIL_ID(err, CDR_EUSER, "data.format", "%s: Parquet and Arrow tables are not read. Write them as JSON Lines first (in Python: "
                    "pandas.read_parquet(FILE).to_json(OUT, orient='records', lines=True))", f->path);
    else f->format = CDR__TEXT;
    return CDR_OK;
}

/* ---- documents of a file ---------------------------------------------------------------------------------------------- */

static cdr_status add_text(const cdr__intake *in, int64_t file)
{
    cdr__corpus *c = in->c;
    const cdr__file *f = &c->files[file];
    if (f->text.bytes == 0) {
        cdr__drop(c, (cdr_data_drop){ f->path, 0, CDR_DROP_EMPTY, 0, in->to == &c->eval });
        return CDR_OK;
    }
    bool said_text = in->source->format && strcmp(in->source->format, "text") == 0;
    if (!said_text && memchr(f->text.data, 0, CDR_MIN(f->text.bytes, (size_t)1 << 16)))
        cdr_log(CDR_LOG_WARNING, "%s: holds zero bytes, so it is hardly text; it is read byte for byte. Leave it out, or set data.format=text", f->path);
    *CDR_PUSH(c->pool, in->to->docs, in->to->n, in->to->cap) =
        (cdr__doc){ .file = file, .bytes = (const uint8_t *)f->text.data, .n = (int64_t)f->text.bytes, .ends = true };
    return CDR_OK;
}

cdr_status cdr__add_store(const cdr__intake *in, int64_t file, cdr_err *err)
{
    cdr__corpus *c = in->c;
    const cdr__file *f = &c->files[file];
    const cdr__store *s = &f->store;
    int64_t at = 0, n = CDR_MIN(s->n_rows, f->format == CDR__TOKENS ? cdr__intake_left(in) : INT64_MAX);
    bool eval = in->to == &c->eval;
    (void)err;
    for (int64_t i = 0; i < s->n_lost; i++)
        cdr__drop(c, (cdr_data_drop){ f->path, s->lost[i].line, (cdr_data_reason)s->lost[i].reason, s->lost[i].n, eval });
    for (int64_t i = 0; i < n; i++) {
        const cdr__row *r = &s->rows[i];
        cdr__docs *to = in->held && (double)(r->hash >> 11) * 0x1p-53 < c->o->eval_fraction ? in->held : in->to;
        *CDR_PUSH(c->pool, to->docs, to->n, to->cap) =
            (cdr__doc){ .file = file, .line = f->format == CDR__TOKENS ? i + 1 : r->line, .bytes = (const uint8_t *)(s->words + at), .n = r->end - at,
                        .n_trained = r->n_trained, .kind = CDR__WORDS, .conversation = s->conversations };
        at = r->end;
    }
    return CDR_OK;
}

static cdr_status add_file(const cdr__intake *in, const char *path, cdr_err *err)
{
    cdr__corpus *c = in->c;
    cdr_textfile text;
    CDR_TRY(cdr_textfile_open(path, FILE_MAX, &text, err));
    *CDR_PUSH(c->pool, c->files, c->n_files, c->cap_files) = (cdr__file){ .path = path, .text = text };
    int64_t file = c->n_files - 1;
    CDR_TRY(cdr__find_format(in->source, &c->files[file], err));
    cdr__format format = c->files[file].format;
    if (format == CDR__TOKENS) return cdr__add_shard(in, file, err);
    if (format == CDR__TEXT) return add_text(in, file);
    int64_t bytes = (int64_t)text.bytes;
    CDR_TRY(cdr__add_records(in, file, format, err));
    if (in->to == &c->eval) c->eval_bytes += bytes;
    else c->train_bytes += bytes;
    return CDR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

typedef struct { dev_t dev; ino_t ino; } file_id;

static int by_id(const void *a, const void *b)
{
    const file_id *x = a, *y = b;
    if (x->dev != y->dev) return x->dev < y->dev ? -1 : 1;
    return x->ino < y->ino ? -1 : x->ino > y->ino;
}

/* Names of the regular files of a directory, sorted. */
static cdr_status list_files(cdr_pool *pool, const char *dir, const char ***out, int64_t *n_out, cdr_err *err)
{
    const char **names = NULL;
    int64_t n = 0, cap = 0, n_dirs = 0;
    DIR *d = opendir(dir);
    if (!d) CDR_FAIL_ID(err, CDR_EDATA, "data.missing", "%s: cannot read the directory: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat st;
        if (e->d_name[0] == '.') continue;
        const char *path = cdr_pool_printf(pool, "%s/%s", dir, e->d_name);
        if (stat(path, &st) != 0) continue;           /* a dangling link */
        if (S_ISDIR(st.st_mode)) n_dirs++;
        else if (S_ISREG(st.st_mode)) *CDR_PUSH(pool, names, n, cap) = path;
    }
    (void)closedir(d);
    if (n_dirs > 0) cdr_log(CDR_LOG_WARNING, "%s: %lld directories in it are not read; name each as a source", dir, (long long)n_dirs);
    if (n > 1) qsort(names, (size_t)n, sizeof *names, by_name);
    *out = names;
    *n_out = n;
    return CDR_OK;
}

/* An index that lies beside its tokens is read with them. */
static bool is_index_of_other(cdr_pool *pool, const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".idx") == 0 && cdr_exists(cdr_pool_printf(pool, "%.*s.bin", (int)(n - 4), path));
}

static cdr_status add_directory(const cdr__intake *in, cdr_err *err)
{
    cdr_pool *pool = in->c->pool;
    const char **paths = NULL;
    int64_t n = 0;
    CDR_TRY(list_files(pool, in->source->path, &paths, &n, err));
    file_id *ids = cdr_pool_alloc(pool, ((size_t)n + 1) * sizeof *ids);
    bool *twice = cdr_pool_alloc(pool, (size_t)n + 1);
    for (int64_t i = 0; i < n; i++) {
        struct stat st;
        ids[i] = stat(paths[i], &st) == 0 ? (file_id){ st.st_dev, st.st_ino } : (file_id){ 0, (ino_t)i };
    }
    file_id *sorted = cdr_pool_alloc(pool, ((size_t)n + 1) * sizeof *sorted);
    bool *seen = cdr_pool_alloc(pool, (size_t)n + 1);
    memcpy(sorted, ids, (size_t)n * sizeof *ids);
    if (n > 1) qsort(sorted, (size_t)n, sizeof *sorted, by_id);
    for (int64_t i = 0; i < n; i++) {                 /* the first name of a file stays */
        const file_id *at = bsearch(&ids[i], sorted, (size_t)n, sizeof *sorted, by_id);
        while (at > sorted && by_id(at - 1, at) == 0) at--;
        twice[i] = seen[at - sorted];
        seen[at - sorted] = true;
    }
    for (int64_t i = 0; i < n; i++) {
        if (cdr__intake_left(in) == 0) break;
        if (is_index_of_other(pool, paths[i])) continue;
        if (twice[i]) cdr__drop(in->c, (cdr_data_drop){ paths[i], 0, CDR_DROP_TWICE, 0, in->to == &in->c->eval });
        else CDR_TRY(add_file(in, paths[i], err));
    }
    return CDR_OK;
}

static cdr_status add_source(const cdr__intake *in, cdr_err *err)
{
    const cdr_data_source *s = in->source;
    int64_t before = in->to->n + (in->held ? in->held->n : 0);
    if (!cdr_exists(s->path)) CDR_FAIL_ID(err, CDR_EDATA, "data.missing", "%s: not there. %s", s->path,
                                           strcmp(s->path, "data/jargon.txt") == 0 ? "`make demo` makes this file, the text of the built-in recipes"
                                                                                   : "Mend the path in data.train, data.eval or --data");
    CDR_TRY(cdr__columns_check(s->path, &(cdr__columns){ s->columns, s->n_columns }, err));
    CDR_TRY(cdr_is_dir(s->path) ? add_directory(in, err) : add_file(in, cdr_pool_strdup(in->c->pool, s->path), err));
    if (in->to->n + (in->held ? in->held->n : 0) == before)
        CDR_FAIL_ID(err, CDR_EDATA, "data.empty", "%s: holds no text and no sample with a trained token", s->path);
    return CDR_OK;
}

/* ---- held-out text, lengths ----------------------------------------------------------------------------------------- */

/* Moves the tail of the texts from `first` on to the held-out part. */
static void hold_out(cdr__corpus *c, int64_t first, double fraction)
{
    int64_t total = 0, kept = 0, n = first;
    for (int64_t i = first; i < c->train.n; i++) total += c->train.docs[i].kind == CDR__BYTES ? c->train.docs[i].n : 0;
    int64_t cut = total - (int64_t)((double)total * fraction);
    for (int64_t i = first; i < c->train.n; i++) {
        cdr__doc d = c->train.docs[i];
        if (d.kind != CDR__BYTES) {
            c->train.docs[n++] = d;
            continue;
        }
        int64_t at = CDR_MAX(CDR_MIN(cut - kept, d.n), 0);
        while (at > 0 && at < d.n && (d.bytes[at] & 0xc0) == 0x80) at++;
        kept += d.n;
        if (at > 0) {
            c->train.docs[n] = d;
            c->train.docs[n].n = at;
            c->train.docs[n++].ends = at == d.n;
        }
        if (at < d.n) {
            d.bytes += at;
            d.n -= at;
            *CDR_PUSH(c->pool, c->eval.docs, c->eval.n, c->eval.cap) = d;
        }
    }
    c->train.n = n;
}

static int64_t count_bytes(const cdr__docs *docs, int64_t first)
{
    int64_t n = 0;
    for (int64_t i = first; i < docs->n; i++) n += docs->docs[i].kind == CDR__BYTES ? docs->docs[i].n : 0;
    return n;
}

/* Texts become words where a token is not a byte. */
static cdr_status encode_texts(cdr__corpus *c, cdr__docs *docs, int64_t first, cdr_err *err)
{
    if (strcmp(cdr_tokenizer_type(c->o->tokenizer), "byte") == 0) return CDR_OK;
    for (int64_t i = first; i < docs->n; i++)
        if (docs->docs[i].kind == CDR__BYTES) CDR_TRY(cdr__encode_text(c, &docs->docs[i], err));
    return CDR_OK;
}

static int64_t count_trained(const cdr__doc *d, int64_t n_in)
{
    int64_t n = 0;
    if (d->kind != CDR__WORDS) return n_in;
    for (int64_t i = 1; i <= n_in; i++) n += ((const uint32_t *)(const void *)d->bytes)[i] >= CDR__TRAINED;
    return n;
}

/* One document: false where it goes, by `reason`. */
static cdr_status fit(const cdr__corpus *c, cdr__doc *d, bool train, bool *keep, cdr_data_reason *reason, cdr_err *err)
{
    const cdr_data_opts *o = c->o;
    int64_t S = o->sequence_length;
    d->ends = d->ends && c->eos >= 0 && d->kind == CDR__BYTES;
    d->n_in = d->ends ? d->n : d->n - 1;
    *keep = d->n_in >= 1;
    *reason = CDR_DROP_EMPTY;
    bool drops = o->long_samples == CDR_LONG_DROP || (o->long_samples == CDR_LONG_AUTO && d->conversation);
    if (d->n_in > S && (train || d->conversation)) {
        if (o->long_samples == CDR_LONG_ERROR) {
            char line[32] = "";
            if (d->line > 0) (void)snprintf(line, sizeof line, ":%lld", (long long)d->line);
            CDR_FAIL_ID(err, CDR_EDATA, "data.too-long", "%s%s: %lld tokens, train.sequence_length is %lld. Set data.long_samples=%s", c->files[d->file].path, line,
                        (long long)d->n_in, (long long)S, d->conversation ? "drop or truncate" : "split");
        }
        if (drops) *keep = false, *reason = CDR_DROP_LONG;
        else if (o->long_samples == CDR_LONG_TRUNCATE) d->n_in = S;
    }
    if (!*keep) return CDR_OK;
    d->n_trained = d->n_in < d->n - 1 || d->kind != CDR__WORDS ? count_trained(d, d->n_in) : d->n_trained;
    if (d->n_trained > 0) return CDR_OK;
    if (!o->drop_untrained)
        CDR_FAIL_ID(err, CDR_EDATA, "data.nothing-trained", "%s:%lld: 0 of its first %lld tokens are trained, where data.long_samples=truncate cuts it. Take a longer "
                    "train.sequence_length, or data.untrained=drop", c->files[d->file].path, (long long)d->line, (long long)d->n_in);
    *keep = false;
    *reason = CDR_DROP_UNTRAINED;
    return CDR_OK;
}

/* Inputs of each document from `first` on; documents without one, or too long where that drops them, go. */
static cdr_status set_inputs(cdr__corpus *c, cdr__docs *docs, int64_t first, bool train, cdr_err *err)
{
    int64_t n = first;
    for (int64_t i = first; i < docs->n; i++) {
        cdr__doc d = docs->docs[i];
        bool keep;
        cdr_data_reason reason;
        CDR_TRY(fit(c, &d, train, &keep, &reason, err));
        if (keep) docs->docs[n++] = d;
        else cdr__drop(c, (cdr_data_drop){ c->files[d.file].path, d.line, reason, d.n, !train });
    }
    docs->n = n;
    return CDR_OK;
}

/* ---- open ----------------------------------------------------------------------------------------------------------- */

static cdr_status open_source(cdr__corpus *c, const cdr_data_source *s, cdr__docs *to, bool train, cdr_err *err)
{
    bool held = train && c->o->eval_fraction > 0;
    int64_t first = to->n, first_held = c->eval.n;
    cdr__intake in = { .c = c, .source = s, .to = to, .held = held ? &c->eval : NULL, .first = first, .first_held = first_held };
    CDR_TRY(add_source(&in, err));
    if (held) hold_out(c, first, c->o->eval_fraction);
    if (train) c->train_bytes += count_bytes(to, first);
    c->eval_bytes += count_bytes(&c->eval, train ? first_held : first);
    CDR_TRY(encode_texts(c, to, first, err));
    if (train) CDR_TRY(encode_texts(c, &c->eval, first_held, err));
    CDR_TRY(set_inputs(c, to, first, train, err));
    if (train) CDR_TRY(set_inputs(c, &c->eval, first_held, false, err));
    return CDR_OK;
}

cdr_status cdr__corpus_open(cdr_pool *pool, const cdr_data_opts *o, int32_t eos, cdr__corpus *c, cdr_err *err)
{
    c->pool = pool;
    c->o = o;
    c->eos = eos;
    c->source_end = cdr_pool_alloc(pool, ((size_t)o->n_train + 1) * sizeof *c->source_end);
    if (o->n_eval > 0 && o->eval_fraction > 0)
        CDR_FAIL_ID(err, CDR_EUSER, "data.eval", "data.eval and data.eval_fraction are both set. Give one");
    for (int i = 0; i < o->n_train; i++) {
        int64_t first = c->train.n;
        CDR_TRY(open_source(c, &o->train[i], &c->train, true, err));
        if (c->train.n == first)
            CDR_FAIL_ID(err, CDR_EDATA, "data.empty", "%s: no document of it is left to train on (data.long_samples, data.eval_fraction)", o->train[i].path);
        c->source_end[i] = c->train.n;
    }
    for (int i = 0; i < o->n_eval; i++) CDR_TRY(open_source(c, &o->eval[i], &c->eval, false, err));
    return CDR_OK;
}

void cdr__corpus_close(cdr__corpus *c)
{
    for (int64_t i = 0; i < c->n_files; i++) {
        cdr_textfile_close(&c->files[i].text);
        cdr__store_close(&c->files[i].store);
    }
    cdr_chat_close(c->chat);
}
