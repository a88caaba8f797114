/* look.c: what a file is, without reading it to its end; and what is trained on, written as token files. */
#include "data/internal.h"

#include <stdlib.h>
#include <sys/stat.h>

static const size_t COUNT_MAX = (size_t)64 << 20;      /* a file up to this size is counted: well under a second */

static int64_t count_records(const cdr__file *f)
{
    cdr__reader r;
    cdr__record rec;
    bool more = true;
    cdr_err ignored = { 0 };
    int64_t n = 0;
    cdr__reader_open(f->path, f->text.data, f->text.bytes, &r);
    while (cdr__reader_next(&r, &rec, &more, &ignored) == CDR_OK && more) n++;
    return more ? -1 : n;
}

static const char *layout_of(const cdr__file *f)
{
    static const char *const LAYOUTS[] = { "JSON Lines", "JSON array", "JSON records" };
    cdr__reader r;
    if (f->format == CDR__TEXT) return "plain text";
    cdr__reader_open(f->path, f->text.data, f->text.bytes, &r);
    return LAYOUTS[r.layout];
}

static bool look_at_store(const char *path, cdr_data_look *look)
{
    cdr_st *st;
    cdr_err ignored = { 0 };
    if (cdr_st_open(path, &st, &ignored) != CDR_OK) return false;
    const cdr_st_tensor *words = cdr_st_find(st, "words"), *rows = cdr_st_find(st, "rows");
    const char *format = cdr_st_meta(st, "format");
    bool ours = format && strcmp(format, "cadre-tokens") == 0 && words && words->n_dim == 1 && rows && rows->n_dim == 2 && rows->n[1] == 4 &&
                rows->dtype == CDR_I64;
    if (ours) {
        look->layout = "cadre";
        look->n_records = rows->n[0];
        look->n_tokens = words->n[0];
        look->n_trained = 0;
        for (int64_t i = 0; i < rows->n[0]; i++) {
            cdr__row row;
            memcpy(&row, (const char *)cdr_st_data(st, rows) + (size_t)i * sizeof row, sizeof row);
            look->n_trained += CDR_MIN(CDR_MAX(row.n_trained, (int64_t)0), words->n[0]);
        }
    }
    cdr_st_close(st);
    return ours;
}

bool cdr_data_sniff(const char *path, cdr_pool *pool, cdr_data_look *look)
{
    struct stat sb;
    cdr_err ignored = { 0 };
    cdr__file f = { .path = path };
    bool other;
    *look = (cdr_data_look){ .n_records = -1, .n_tokens = -1, .n_trained = -1 };
    if (stat(path, &sb) != 0 || !S_ISREG(sb.st_mode)) return false;
    look->bytes = (int64_t)sb.st_size;
    if (cdr_textfile_open(path, (size_t)1 << 30, &f.text, &ignored) != CDR_OK) return false;
    const char *packed = f.text.owned ? " (packed)" : "";
    bool ok = cdr__find_format(NULL, &f, &ignored) == CDR_OK;
    if (ok && f.format == CDR__TOKENS) {
        look->form = "tokens";
        bool store = look_at_store(path, look);
        if (!store) look->layout = cdr__is_shard(path, f.text.data, f.text.bytes, &other) && other ? "Megatron index" : "Megatron or llm.c";
    } else if (ok) {
        size_t head = CDR_MIN(f.text.bytes, (size_t)1 << 16);
        ok = f.format != CDR__TEXT || !memchr(f.text.data ? f.text.data : "", 0, head);
        look->form = cdr__format_name(f.format);
        look->layout = cdr_pool_printf(pool, "%s%s", layout_of(&f), packed);
        if (f.format != CDR__TEXT && f.text.bytes <= COUNT_MAX) look->n_records = count_records(&f);
    }
    cdr_textfile_close(&f.text);
    return ok;
}

/* ---- token files ------------------------------------------------------------------------------------------------------- */

typedef struct { const cdr__doc *docs; int64_t n; const cdr__corpus *c; } portion;

static cdr_status write_docs(const portion *p, cdr__writer *w, cdr_data_packed *out, cdr_err *err)
{
    cdr__words words = { 0 };
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < p->n && st == CDR_OK; i++) {
        const cdr__doc *d = &p->docs[i];
        int64_t n = CDR_MIN(d->n_in + 1, d->n + d->ends);         /* the last input's target too */
        uint32_t *to = cdr__words_room(&words, n);
        const cdr__weights *weights = &p->c->files[d->file].store.weights;
        uint8_t map[CDR__WEIGHTS];
        for (int64_t k = 0; k < n; k++) to[k] = cdr__doc_word(d, k, p->c->eos);
        if (n > 0) to[0] = (uint32_t)cdr__word_id(to[0]);
        if (weights->n > 1) {
            st = cdr__writer_weights(w, weights, map, err);
            if (st != CDR_OK) break;
            cdr__remap(to, n, map);
        }
        st = cdr__writer_words(w, to, n, err);
        cdr__writer_row(w, (cdr__row){ .line = d->line, .n_trained = d->n_trained, .hash = cdr_hash64(to, (size_t)n * sizeof *to, 0) });
        out->n_documents++;
        out->n_tokens += n;
        out->n_trained += d->n_trained;
    }
    free(words.w);
    return st;
}

cdr_status cdr__write_portion(const cdr__doc *docs, int64_t n, const cdr__corpus *c, const cdr_tokenizer *tok, const char *form, cdr_data_packed *out, cdr_err *err)
{
    portion p = { docs, n, c };
    cdr__writer *w;
    cdr__store store;
    struct stat sb;
    char hash[24];
    bool talk = false;
    cdr_pool *pool = cdr_pool_new();
    for (int64_t i = 0; i < n; i++) talk |= docs[i].conversation;
    (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)cdr_tokenizer_hash(tok));
    const cdr_st_pair meta[] = { { "tokenizer", hash }, { "kind", talk ? "conversations" : "documents" }, { "form", form } };
    cdr_status st = cdr__writer_open(out->path, &w, err);
    if (st == CDR_OK) {
        st = write_docs(&p, w, out, err);
        if (st != CDR_OK) cdr__writer_abort(w);
        else st = cdr__writer_end(pool, w, meta, CDR_COUNT(meta), &store, err);
        if (st == CDR_OK) cdr__store_close(&store);
    }
    cdr_pool_free(pool);
    if (st == CDR_OK && stat(out->path, &sb) == 0) out->bytes = (int64_t)sb.st_size;
    return st;
}
