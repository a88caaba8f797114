/* corpus.c: from the sources of a recipe to documents. One document a file; a directory's files in byte order of their
 * names, hidden ones and those that are one more name of a file left out. Text only so far; what is a conversation format
 * or a table is refused with what to do.
 *
 * Held-out text is the tail of each source's bytes, taken as its documents one after another; the cut is moved on to the
 * next UTF-8 character. A document that is cut loses its last place as an input (its successor is held out).
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

static cdr_status check_format(const cdr_data_source *s, const char *path, cdr_err *err)
{
    const char *format = s->format ? s->format : "auto";
    size_t n = strlen(path);
    if (strcmp(format, "text") == 0) return CDR_OK;
    if (strcmp(format, "auto") != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "data.format", "%s: data.format %s is not read by this version; it reads text. Set data.format=text, or convert the "
                    "data to plain text", path, format);
    if (ends_with(path, n, ".gz")) n -= 3;
    else if (ends_with(path, n, ".zst")) n -= 4;
    if (ends_with(path, n, ".json") || ends_with(path, n, ".jsonl"))
        CDR_FAIL_ID(err, CDR_EUSER, "data.format", "%s: JSON records are not read by this version; it reads text. Convert them to plain text, or set "
                    "data.format=text to train on the file as it is", path);
    if (ends_with(path, n, ".parquet") || ends_with(path, n, ".arrow"))
        CDR_FAIL_ID(err, CDR_EUSER, "data.format", "%s: Parquet and Arrow tables are not read. Convert the column to a text file first", path);
    return CDR_OK;
}

static cdr_status add_document(cdr_pool *pool, const cdr_data_source *s, const char *path, cdr__corpus *c, cdr__docs *to, cdr_err *err)
{
    cdr_textfile text;
    CDR_TRY(check_format(s, path, err));
    CDR_TRY(cdr_textfile_open(path, FILE_MAX, &text, err));
    *CDR_PUSH(pool, c->files, c->n_files, c->cap_files) = (cdr__file){ .path = path, .text = text };
    if (text.bytes == 0) {
        c->n_dropped++;
        return CDR_OK;
    }
    bool said_text = s->format && strcmp(s->format, "text") == 0;
    if (!said_text && memchr(text.data, 0, CDR_MIN(text.bytes, (size_t)1 << 16)))
        cdr_log(CDR_LOG_WARNING, "%s: holds zero bytes, so it is hardly text; it is read byte for byte. Leave it out, or set data.format=text", path);
    *CDR_PUSH(pool, to->docs, to->n, to->cap) =
        (cdr__doc){ .file = c->n_files - 1, .bytes = (const uint8_t *)text.data, .n = (int64_t)text.bytes, .ends = true };
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

static cdr_status add_directory(cdr_pool *pool, const cdr_data_source *s, cdr__corpus *c, cdr__docs *to, cdr_err *err)
{
    const char **paths = NULL;
    int64_t n = 0, first = to->n;
    CDR_TRY(list_files(pool, s->path, &paths, &n, err));
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
        if (s->max_samples > 0 && to->n - first >= s->max_samples) break;
        if (twice[i]) c->n_dropped++;
        else CDR_TRY(add_document(pool, s, paths[i], c, to, err));
    }
    return CDR_OK;
}

static cdr_status add_source(cdr_pool *pool, const cdr_data_source *s, cdr__corpus *c, cdr__docs *to, cdr_err *err)
{
    int64_t before = to->n;
    if (!cdr_exists(s->path)) CDR_FAIL_ID(err, CDR_EDATA, "data.missing", "%s: not there. %s", s->path,
                                           strcmp(s->path, "data/jargon.txt") == 0 ? "`make demo` makes this file, the text of the built-in recipes"
                                                                                   : "Mend the path in data.train, data.eval or --data");
    CDR_TRY(cdr_is_dir(s->path) ? add_directory(pool, s, c, to, err) : add_document(pool, s, cdr_pool_strdup(pool, s->path), c, to, err));
    if (to->n == before) CDR_FAIL_ID(err, CDR_EDATA, "data.empty", "%s: holds no text", s->path);
    return CDR_OK;
}

/* Moves the tail of the documents from `first` on to the held-out part. */
static void hold_out(cdr_pool *pool, cdr__corpus *c, int64_t first, double fraction)
{
    int64_t total = 0, kept = 0, n = first;
    for (int64_t i = first; i < c->train.n; i++) total += c->train.docs[i].n;
    int64_t cut = total - (int64_t)((double)total * fraction);
    for (int64_t i = first; i < c->train.n; i++) {
        cdr__doc d = c->train.docs[i];
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
            *CDR_PUSH(pool, c->eval.docs, c->eval.n, c->eval.cap) = d;
        }
    }
    c->train.n = n;
}

/* Inputs of each document from `first` on; documents without one, or too long where that drops them, go. */
static cdr_status set_inputs(const cdr_data_opts *o, cdr__corpus *c, cdr__docs *docs, int64_t first, bool has_eos, bool train, cdr_err *err)
{
    int64_t n = first, S = o->sequence_length;
    for (int64_t i = first; i < docs->n; i++) {
        cdr__doc d = docs->docs[i];
        d.ends = d.ends && has_eos;
        d.n_in = d.ends ? d.n : d.n - 1;
        if (train && d.n_in > S && o->long_samples == CDR_LONG_ERROR)
            CDR_FAIL_ID(err, CDR_EDATA, "data.too-long", "%s: %lld tokens, train.sequence_length is %lld. Set data.long_samples=split",
                        c->files[d.file].path, (long long)d.n_in, (long long)S);
        if (train && d.n_in > S && o->long_samples == CDR_LONG_TRUNCATE) d.n_in = S;
        if (d.n_in < 1 || (train && d.n_in > S && o->long_samples == CDR_LONG_DROP)) c->n_dropped += train;
        else docs->docs[n++] = d;
    }
    docs->n = n;
    return CDR_OK;
}

cdr_status cdr__corpus_open(cdr_pool *pool, const cdr_data_opts *o, bool has_eos, cdr__corpus *c, cdr_err *err)
{
    c->source_end = cdr_pool_alloc(pool, ((size_t)o->n_train + 1) * sizeof *c->source_end);
    if (o->n_eval > 0 && o->eval_fraction > 0)
        CDR_FAIL_ID(err, CDR_EUSER, "data.eval", "data.eval and data.eval_fraction are both set. Give one");
    for (int i = 0; i < o->n_train; i++) {
        int64_t first = c->train.n;
        CDR_TRY(add_source(pool, &o->train[i], c, &c->train, err));
        if (o->eval_fraction > 0) hold_out(pool, c, first, o->eval_fraction);
        CDR_TRY(set_inputs(o, c, &c->train, first, has_eos, true, err));
        for (int64_t k = first; k < c->train.n; k++) c->train_bytes += c->train.docs[k].n;
        if (c->train.n == first)
            CDR_FAIL_ID(err, CDR_EDATA, "data.empty", "%s: no document of it is left to train on (data.long_samples, data.eval_fraction)", o->train[i].path);
        c->source_end[i] = c->train.n;
    }
    for (int i = 0; i < o->n_eval; i++) CDR_TRY(add_source(pool, &o->eval[i], c, &c->eval, err));
    for (int64_t k = 0; k < c->eval.n; k++) c->eval_bytes += c->eval.docs[k].n;
    return set_inputs(o, c, &c->eval, 0, has_eos, false, err);
}

void cdr__corpus_close(cdr__corpus *c)
{
    for (int64_t i = 0; i < c->n_files; i++) cdr_textfile_close(&c->files[i].text);
}
