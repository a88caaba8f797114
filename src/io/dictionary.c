/* dictionary.c: a dictd database as plain text. X.dict or X.dict.dz holds the entries one after another, X.index says where
 * each headword's entry lies: HEADWORD \t OFFSET \t BYTES, the numbers in base 64 (A-Z a-z 0-9 + /, most significant digit
 * first, no padding). Source: dictd's manual, dictfmt(1).
 *
 * The text is the entries in the order of the file, each without the blank lines around it, one blank line between two.
 * Entries whose headword begins with 00-database (00database in old files) describe the database and are left out, as a
 * client does when it lists words. Several headwords of one entry give it once.
 */
#include "io/io.h"

#include <stdlib.h>

static const size_t DICT_MAX = (size_t)4 << 30, INDEX_MAX = (size_t)1 << 30;

typedef struct { size_t offset, bytes; const char *word; size_t word_bytes; bool about; } entry;

struct cdr_dictionary { cdr_pool *pool; cdr_textfile dict, index; entry *list; int64_t n; const char *index_path; };

static bool parse_base64(const char *s, size_t n, size_t *x)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (n == 0 || n > 8) return false;                /* 48 bits */
    *x = 0;
    for (size_t i = 0; i < n; i++) {
        const char *d = s[i] ? strchr(DIGITS, s[i]) : NULL;
        if (!d) return false;
        *x = *x * 64 + (size_t)(d - DIGITS);
    }
    return true;
}

static bool begins(const char *s, size_t n, const char *with)
{
    return n >= strlen(with) && memcmp(s, with, strlen(with)) == 0;
}

static cdr_status parse_index(cdr_pool *pool, const char *where, const char *text, size_t bytes, size_t dict_bytes,
                              entry **out, int64_t *n_out, cdr_err *err)
{
    entry *list = NULL;
    int64_t n = 0, cap = 0, line = 0;
    for (const char *s = text, *end = text + bytes; s < end;) {
        const char *eol = memchr(s, '\n', (size_t)(end - s));
        if (!eol) eol = end;
        line++;
        const char *t1 = memchr(s, '\t', (size_t)(eol - s));
        const char *t2 = t1 ? memchr(t1 + 1, '\t', (size_t)(eol - t1 - 1)) : NULL;
        const char *t3 = t2 ? memchr(t2 + 1, '\t', (size_t)(eol - t2 - 1)) : NULL;         /* a fourth column is legal */
        entry e;
        if (!t2 || !parse_base64(t1 + 1, (size_t)(t2 - t1 - 1), &e.offset) ||
            !parse_base64(t2 + 1, (size_t)((t3 ? t3 : eol) - t2 - 1), &e.bytes))
            CDR_FAIL_ID(err, CDR_EDATA, "dictionary.index", "%s:%lld: no line of a dictd index", where, (long long)line);
        if (e.offset > dict_bytes || e.bytes > dict_bytes - e.offset)
            CDR_FAIL_ID(err, CDR_EDATA, "dictionary.index", "%s:%lld: the entry lies outside of the dictionary's %zu bytes; the two files do not "
                        "belong together", where, (long long)line, dict_bytes);
        e.word = s;
        e.word_bytes = (size_t)(t1 - s);
        e.about = begins(s, (size_t)(t1 - s), "00-database") || begins(s, (size_t)(t1 - s), "00database");
        *CDR_PUSH(pool, list, n, cap) = e;
        s = eol + 1;
    }
    *out = list;
    *n_out = n;
    return CDR_OK;
}

/* Where one place has an about-entry and another, the about-entry comes first and hides it. */
static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return (int)y->about - (int)x->about;
}

static void put_entry(cdr_text *out, const char *s, size_t n)
{
    while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == '\r' || s[n - 1] == ' ')) n--;
    while (n > 0 && (s[0] == '\n' || s[0] == '\r')) s++, n--;
    if (n == 0) return;
    if (out->n > 0) cdr_text_append(out, "\n", 1);
    cdr_text_append(out, s, n);
    cdr_text_append(out, "\n", 1);
}

static cdr_status open_files(cdr_dictionary *d, const char *path, cdr_err *err)
{
    size_t n = strlen(path);
    if (n > 3 && strcmp(path + n - 3, ".dz") == 0) n -= 3;
    if (n <= 5 || strncmp(path + n - 5, ".dict", 5) != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "dictionary.name", "%s: a dictionary is called NAME.dict or NAME.dict.dz", path);
    d->index_path = cdr_pool_printf(d->pool, "%.*s.index", (int)(n - 5), path);
    CDR_TRY(cdr_textfile_open(path, DICT_MAX, &d->dict, err));
    if (!cdr_exists(d->index_path))
        CDR_FAIL_ID(err, CDR_EDATA, "dictionary.index", "%s: not there; a dictionary needs its index beside it", d->index_path);
    CDR_TRY(cdr_textfile_open(d->index_path, INDEX_MAX, &d->index, err));
    CDR_TRY(parse_index(d->pool, d->index_path, d->index.data, d->index.bytes, d->dict.bytes, &d->list, &d->n, err));
    if (d->n > 1) qsort(d->list, (size_t)d->n, sizeof *d->list, by_offset);
    return CDR_OK;
}

cdr_status cdr_dictionary_open(const char *path, cdr_dictionary **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_dictionary *d = cdr_pool_alloc(pool, sizeof *d);
    d->pool = pool;
    cdr_status status = open_files(d, path, err);
    if (status == CDR_OK) *out = d;
    else cdr_dictionary_close(d);
    return status;
}

void cdr_dictionary_close(cdr_dictionary *d)
{
    if (!d) return;
    cdr_textfile_close(&d->dict);
    cdr_textfile_close(&d->index);
    cdr_pool_free(d->pool);
}

int64_t cdr_dictionary_count(const cdr_dictionary *d)
{
    return d->n;
}

cdr_dictionary_entry cdr_dictionary_at(const cdr_dictionary *d, int64_t i)
{
    const entry *e = &d->list[i];
    return (cdr_dictionary_entry){ e->word, e->word_bytes, d->dict.data + e->offset, e->bytes, e->about };
}

static cdr_status to_text(const cdr_dictionary *d, cdr_text *out, cdr_dictionary_stat *stat, cdr_err *err)
{
    size_t done = 0;                                  /* end of the entries so far: an entry inside of another is no second text */
    for (int64_t i = 0; i < d->n; i++) {
        const entry *e = &d->list[i];
        if (e->offset + e->bytes <= done) continue;
        size_t from = CDR_MAX(e->offset, done);
        if (e->about) stat->n_dropped++;
        else {
            put_entry(out, d->dict.data + from, e->offset + e->bytes - from);
            stat->n_entries++;
        }
        done = e->offset + e->bytes;
    }
    if (stat->n_entries == 0) CDR_FAIL_ID(err, CDR_EDATA, "dictionary.index", "%s: names no entry", d->index_path);
    return CDR_OK;
}

cdr_status cdr_dictionary_to_text(const char *path, cdr_text *out, cdr_dictionary_stat *stat, cdr_err *err)
{
    cdr_dictionary_stat ignored;
    cdr_dictionary *d = NULL;
    if (!stat) stat = &ignored;
    *stat = (cdr_dictionary_stat){ 0 };
    CDR_TRY(cdr_dictionary_open(path, &d, err));
    cdr_status status = to_text(d, out, stat, err);
    cdr_dictionary_close(d);
    return status;
}
