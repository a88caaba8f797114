/* shards.c: files of tokens: ours (store.c), Megatron's X.idx with X.bin, llm.c's .bin.
 *
 * Megatron: X.idx is "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 sequences, u64 documents + 1, i32 lengths[], i64 pointers[], i64 document_indices[];
 * X.bin the tokens of the documents one after another. Token types u16 (8) and i32 (4) are read.
 * llm.c: 256 i32 header {magic, version, tokens}, then tokens: magic 20240520 version 1 u16, 20240801 version 7 u32. The whole file is one document.
 * All tokens of such files carry loss, and are read where they lie; the last one of a document is a target only.
 * Source: Megatron-LM, core/datasets/indexed_dataset.py; llm.c, dataloader.h; spec/formats.md, 3.
 */
#include "data/internal.h"

static const char MEGATRON[] = "MMIDIDX\0";           /* and the closing zero: 9 bytes */
enum { LLMC_U16 = 20240520, LLMC_U32 = 20240801, LLMC_HEADER = 1024, IDX_HEADER = 34, TYPE_I32 = 4, TYPE_U16 = 8 };

static bool named(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

static int32_t le32(const char *s)
{
    int32_t x;
    memcpy(&x, s, sizeof x);
    return x;
}

static int64_t le64(const char *s)
{
    int64_t x;
    memcpy(&x, s, sizeof x);
    return x;
}

/* X.bin of X.idx and the other way round; in pool. */
static const char *beside(cdr_pool *pool, const char *path, const char *end)
{
    return cdr_pool_printf(pool, "%.*s%s", (int)(strlen(path) - 4), path, end);
}

static bool is_llmc(const char *data, size_t bytes)
{
    return bytes >= LLMC_HEADER && (le32(data) == LLMC_U16 || le32(data) == LLMC_U32);
}

bool cdr__is_shard(const char *path, const char *data, size_t bytes, bool *other)
{
    *other = false;
    if (bytes >= sizeof MEGATRON && memcmp(data, MEGATRON, sizeof MEGATRON) == 0) {
        *other = true;                                /* its .bin is the one that is read */
        return true;
    }
    if (named(path, ".tokens")) return true;
    if (!named(path, ".bin")) return false;
    if (is_llmc(data, bytes)) return true;
    cdr_pool *pool = cdr_pool_new();
    bool has_index = cdr_exists(beside(pool, path, ".idx"));
    cdr_pool_free(pool);
    return has_index;
}

/* ---- documents of others ------------------------------------------------------------------------------------------ */

static cdr_status add_tokens(const cdr__intake *in, int64_t file, const char *data, int64_t n, int64_t line, cdr__kind kind, cdr_err *err)
{
    const char *path = in->c->files[file].path;
    int vocab = cdr_tokenizer_vocab(in->c->o->tokenizer);
    cdr__doc d = { .file = file, .line = line, .bytes = (const uint8_t *)data, .n = n, .n_trained = n - 1, .kind = (uint8_t)kind };
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = cdr__doc_word(&d, i, -1) & ~CDR__TRAINED;
        bool negative = kind == CDR__I32 && le32(data + 4 * i) < 0;
        if (negative || id >= (uint32_t)vocab)
            CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.vocab-mismatch", "%s: document %lld holds id %lld; the tokenizer has %d. It was made with another one: tokenize "
                "the text again",
                        path, (long long)line, negative ? (long long)le32(data + 4 * i) : (long long)id, vocab);
    }
    double at = in->held ? (double)(cdr_hash64(data, (size_t)n * (kind == CDR__U16 ? 2 : 4), 0) >> 11) * 0x1p-53 : 1;
    cdr__docs *to = in->held && at < in->c->o->eval_fraction ? in->held : in->to;
    *CDR_PUSH(in->c->pool, to->docs, to->n, to->cap) = d;
    return CDR_OK;
}

static cdr_status add_llmc(const cdr__intake *in, int64_t file, cdr_err *err)
{
    const cdr__file *f = &in->c->files[file];
    bool wide = le32(f->text.data) == LLMC_U32;
    int64_t n = le32(f->text.data + 8), size = wide ? 4 : 2;
    if (le32(f->text.data + 4) != (wide ? 7 : 1))
        CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: an llm.c token file of version %d; version %d is read", f->path, le32(f->text.data + 4), wide ? 7 : 1);
    if (n < 0 || f->text.bytes != LLMC_HEADER + (size_t)n * (size_t)size)
        CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: %zu bytes, its header describes %lld tokens of %lld bytes. Copy the file again", f->path, f->text.bytes,
                    (long long)n, (long long)size);
    if (n < 2) {
        cdr__drop(in->c, (cdr_data_drop){ f->path, 0, CDR_DROP_EMPTY, n, in->to == &in->c->eval });
        return CDR_OK;
    }
    return add_tokens(in, file, f->text.data + LLMC_HEADER, n, 0, wide ? CDR__I32 : CDR__U16, err);
}

/* Tables of an .idx, inside of it. */
typedef struct { const char *lengths, *pointers, *documents; int64_t n, n_documents; int size; } index_of;

static cdr_status read_index(const char *path, const cdr_textfile *t, index_of *x, cdr_err *err)
{
    size_t tables, documents, whole;
    if (t->bytes < IDX_HEADER || memcmp(t->data, MEGATRON, sizeof MEGATRON) != 0 || le64(t->data + 9) != 1)
        CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: is no index of version 1 of a Megatron data set", path);
    int type = t->data[17];
    if (type != TYPE_I32 && type != TYPE_U16)
        CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: tokens of type %d; read are 4 (i32) and 8 (u16)", path, type);
    *x = (index_of){ .n = le64(t->data + 18), .n_documents = le64(t->data + 26), .size = type == TYPE_I32 ? 4 : 2 };
    bool fits = x->n >= 0 && x->n_documents >= 1 && cdr_mul_size((size_t)x->n, 12, &tables) && cdr_mul_size((size_t)x->n_documents, 8, &documents) &&
                cdr_add_size(tables, documents, &whole) && cdr_add_size(whole, IDX_HEADER, &whole);
    if (!fits || whole > t->bytes)
        CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: %zu bytes, its header describes more. Copy the file again", path, t->bytes);
    if (whole != t->bytes)
        CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: %zu bytes behind its tables; indices with modes (of several media) are not read", path, t->bytes - whole);
    x->lengths = t->data + IDX_HEADER;
    x->pointers = x->lengths + 4 * x->n;
    x->documents = x->pointers + 8 * x->n;
    return CDR_OK;
}

/* Document k: sequences from documents[k] to documents[k + 1], which lie one after another in the .bin. */
static cdr_status add_document(const cdr__intake *in, int64_t file, const char *where, const index_of *x, int64_t k, cdr_err *err)
{
    const cdr__file *f = &in->c->files[file];
    int64_t first = le64(x->documents + 8 * k), end = le64(x->documents + 8 * (k + 1)), n = 0;
    if (first < 0 || end < first || end > x->n) CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: document %lld lies outside of its sequences", where, (long long)k);
    int64_t from = first < end ? le64(x->pointers + 8 * first) : 0;
    for (int64_t i = first; i < end; i++) {
        int64_t length = le32(x->lengths + 4 * i), at = le64(x->pointers + 8 * i);
        if (length < 0 || at < 0 || (size_t)at > f->text.bytes || from < 0 || (size_t)from > f->text.bytes || at != from + n * x->size)
            CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: sequence %lld of document %lld does not follow the one before it, or lies outside of the tokens", where,
                (long long)i, (long long)k);
        n += length;
        if (at % x->size != 0 || n > (int64_t)f->text.bytes || (size_t)at + (size_t)length * (size_t)x->size > f->text.bytes)
            CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: sequence %lld lies outside of %s, which has %zu bytes. Copy the files again", where, (long long)i, f->path,
                        f->text.bytes);
    }
    if (n < 2) {
        cdr__drop(in->c, (cdr_data_drop){ f->path, k + 1, CDR_DROP_EMPTY, n, in->to == &in->c->eval });
        return CDR_OK;
    }
    return add_tokens(in, file, f->text.data + from, n, k + 1, x->size == 4 ? CDR__I32 : CDR__U16, err);
}

static cdr_status add_megatron(const cdr__intake *in, int64_t file, cdr_err *err)
{
    const char *where = beside(in->c->pool, in->c->files[file].path, ".idx");
    cdr_textfile index;
    index_of x = { .size = 2 };
    CDR_TRY(cdr_textfile_open(where, (size_t)1 << 40, &index, err));
    cdr_status st = read_index(where, &index, &x, err);
    int64_t n = st == CDR_OK ? CDR_MIN(x.n_documents - 1, cdr__intake_left(in)) : 0;
    for (int64_t k = 0; k < n && st == CDR_OK; k++) st = add_document(in, file, where, &x, k, err);
    cdr_textfile_close(&index);
    return st;
}

cdr_status cdr__add_shard(const cdr__intake *in, int64_t file, cdr_err *err)
{
    cdr__file *f = &in->c->files[file];
    f->format = CDR__TOKENS;
    if (named(f->path, ".tokens")) {
        cdr_textfile_close(&f->text);
        CDR_TRY(cdr__store_open(in->c->pool, f->path, in->c->o->tokenizer, &f->store, err));
        return cdr__add_store(in, file, err);
    }
    if (named(f->path, ".bin") && is_llmc(f->text.data, f->text.bytes)) return add_llmc(in, file, err);
    bool index = named(f->path, ".idx");
    const char *bin = index ? beside(in->c->pool, f->path, ".bin") : f->path;
    if (index) {
        cdr_textfile_close(&f->text);
        f->path = bin;
        CDR_TRY(cdr_textfile_open(bin, (size_t)1 << 40, &f->text, err));
    }
    if (!named(bin, ".bin") || !cdr_exists(beside(in->c->pool, bin, ".idx")))
        CDR_FAIL_ID(err, CDR_EDATA, "data.tokens", "%s: is no file of tokens: neither of cadre data pack (NAME.tokens), nor Megatron's (NAME.bin beside NAME.idx), "
            "nor llm.c's "
                    "(NAME.bin)", bin);
    return add_megatron(in, file, err);
}
