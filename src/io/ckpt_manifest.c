/* ckpt_manifest.c: the tables of a checkpoint: files {name, bytes, xxh3} and tensors {KEY: {dtype, shape, class, pieces}},
 * as they stand in manifest.json and, for one rank, in its part.
 *
 * KEY is the tensor's name for class weight, adapter and bias, NAME.CLASS for optimizer state. A piece is rows
 * [start0, start0 + shape0) of its tensor; in its file it is called KEY where it is the whole tensor, else
 * KEY#start0,0,.. with one number per axis (and no name holds a '#', so that no two pieces can be called alike).
 * The rule that makes a checkpoint independent of ranks: sorted by start0, a tensor's pieces begin at row 0, each where
 * the one before it ends, and end at the last row.
 */
#include "io/io.h"
#include "io/internal.h"

#include <stdlib.h>

static const struct { const char *name; bool suffix; } CLASSES[] = {
    { "weight", false }, { "adapter", false }, { "bias", false },
    { "master", true },  { "m", true },        { "v", true },       { "momentum", true },
};

static int class_row(const char *cls)
{
    for (int i = 0; i < CDR_COUNT(CLASSES); i++)
        if (strcmp(CLASSES[i].name, cls) == 0) return i;
    return -1;
}

bool cdr__ckpt_class_known(const char *cls)
{
    return class_row(cls) >= 0;
}

char *cdr__ckpt_key(cdr_pool *pool, const char *name, const char *cls)
{
    int row = class_row(cls);
    CDR_CHECK(row >= 0);
    return CLASSES[row].suffix ? cdr_pool_printf(pool, "%s.%s", name, cls) : cdr_pool_strdup(pool, name);
}

int64_t cdr__ckpt_rows(int n_dim, const int64_t *n)
{
    return n_dim > 0 ? n[0] : 1;
}

bool cdr__ckpt_row_bytes(int dtype, int n_dim, const int64_t *n, size_t *bytes)
{
    int format = cdr_st_format_of(dtype);
    return format >= 0 && cdr__st_bytes(format, CDR_MAX(n_dim - 1, 0), n + 1, bytes);
}

char *cdr__ckpt_piece_key(cdr_pool *pool, const cdr_ckpt_tensor *t, int64_t first_row, int64_t n_rows)
{
    if (first_row == 0 && n_rows == cdr__ckpt_rows(t->n_dim, t->n)) return cdr_pool_strdup(pool, t->key);
    char zeros[2 * CDR_MAX_DIM + 1] = "";
    for (int i = 1; i < t->n_dim; i++) strcat(zeros, ",0");
    return cdr_pool_printf(pool, "%s#%lld%s", t->key, (long long)first_row, zeros);
}

static bool parse_hex(const char *s, uint64_t *x)
{
    if (!s || strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16) return false;
    *x = strtoull(s, NULL, 16);
    return true;
}

static int by_file_name(const void *a, const void *b)
{
    return strcmp(((const cdr__ckpt_file *)a)->name, ((const cdr__ckpt_file *)b)->name);
}

static cdr_status parse_files(cdr_pool *pool, const char *where, const cdr_json *files, cdr__manifest *m, cdr_err *err)
{
    int64_t n = cdr_json_count(files);
    if (cdr_json_type(files) != CDR_JSON_ARRAY || n > 1000000)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: files is no list, or too long", where);
    m->files = cdr_pool_alloc(pool, ((size_t)n + 1) * sizeof *m->files);
    for (int64_t i = 0; i < n; i++) {
        const cdr_json *j = cdr_json_at(files, i);
        cdr__ckpt_file *f = &m->files[i];
        f->name = cdr_json_str(cdr_json_get(j, "name"), "");
        f->bytes = cdr_json_int(cdr_json_get(j, "bytes"), -1);
        if (!cdr_plain_name(f->name))
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: files[%lld]: its name is no plain file name", where, (long long)i);
        if (f->bytes < 0 || !parse_hex(cdr_json_str(cdr_json_get(j, "xxh3"), NULL), &f->xxh3))
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: file %s: needs bytes and a hash of 16 hexadecimal digits", where, f->name);
    }
    m->n_files = (int)n;
    qsort(m->files, (size_t)n, sizeof *m->files, by_file_name);
    for (int64_t i = 1; i < n; i++)
        if (strcmp(m->files[i - 1].name, m->files[i].name) == 0)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: file %s is listed twice", where, m->files[i].name);
    return CDR_OK;
}

/* [a, b, ..] of n_dim sizes; false where it is anything else. */
static bool parse_sizes(const cdr_json *j, int n_dim, int64_t *n)
{
    if (!j || cdr_json_type(j) != CDR_JSON_ARRAY || cdr_json_count(j) != n_dim) return false;
    for (int i = 0; i < n_dim; i++) {
        const cdr_json *x = cdr_json_at(j, i);
        if (cdr_json_type(x) != CDR_JSON_INT || cdr_json_int(x, -1) < 0) return false;
        n[i] = cdr_json_int(x, -1);
    }
    return true;
}

static cdr_status parse_piece(cdr_pool *pool, const char *where, const cdr_json *j, const cdr__manifest *m,
                              const cdr_ckpt_tensor *t, cdr__ckpt_piece *p, cdr_err *err)
{
    int64_t start[CDR_MAX_DIM] = { 0 }, shape[CDR_MAX_DIM] = { 0 };
    const char *file = cdr_json_str(cdr_json_get(j, "file"), "");
    const cdr__ckpt_file probe = { .name = file };
    const cdr__ckpt_file *f = bsearch(&probe, m->files, (size_t)m->n_files, sizeof probe, by_file_name);
    if (!f) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: a piece lies in \"%.80s\", which is not among the files", where, t->key, file);
    p->file = (int)(f - m->files);
    if (!parse_sizes(cdr_json_get(j, "start"), t->n_dim, start) || !parse_sizes(cdr_json_get(j, "shape"), t->n_dim, shape))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: a piece's start or shape has not %d sizes", where, t->key, t->n_dim);
    for (int i = 1; i < t->n_dim; i++)
        if (start[i] != 0 || shape[i] != t->n[i])
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: a piece is no block of whole rows", where, t->key);
    p->first_row = start[0];
    p->n_rows = cdr__ckpt_rows(t->n_dim, shape);
    if (p->n_rows > cdr__ckpt_rows(t->n_dim, t->n) || p->first_row > cdr__ckpt_rows(t->n_dim, t->n) - p->n_rows)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: a piece of %lld rows at row %lld lies outside of it", where, t->key,
                    (long long)p->n_rows, (long long)p->first_row);
    if (!parse_hex(cdr_json_str(cdr_json_get(j, "xxh3"), NULL), &p->xxh3))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: a piece has no hash of 16 hexadecimal digits", where, t->key);
    p->key = cdr__ckpt_piece_key(pool, t, p->first_row, p->n_rows);
    if (strcmp(p->key, cdr_json_str(cdr_json_get(j, "key"), "")) != 0)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: the piece at row %lld has a foreign name, expected %s", where, t->key,
                    (long long)p->first_row, p->key);
    return CDR_OK;
}

/* Name, class, dtype and shape; the key must be what name and class make. */
static cdr_status parse_tensor(cdr_pool *pool, const char *where, const char *key, const cdr_json *j, cdr_ckpt_tensor *t, cdr_err *err)
{
    const char *cls = cdr_json_str(cdr_json_get(j, "class"), "");
    int row = class_row(cls), format = cdr_st_format_by_name(cdr_json_str(cdr_json_get(j, "dtype"), ""));
    size_t n_key = strlen(key), n_cls = strlen(cls), row_bytes, bytes;
    if (row < 0) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: unknown class \"%.40s\"", where, key, cls);
    *t = (cdr_ckpt_tensor){ .name = key, .cls = CLASSES[row].name, .key = key, .dtype = format >= 0 ? cdr__st_dtype(format) : -1 };
    if (strchr(key, '#')) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: a name cannot hold a #", where, key);
    if (CLASSES[row].suffix) {
        if (n_key <= n_cls + 1 || key[n_key - n_cls - 1] != '.' || strcmp(key + n_key - n_cls, cls) != 0)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: of class %s, so its name must end in .%s", where, key, cls, cls);
        t->name = cdr_pool_strndup(pool, key, n_key - n_cls - 1);
    }
    if (t->dtype < 0) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: a dtype that the engine does not know", where, key);
    const cdr_json *shape = cdr_json_get(j, "shape");
    int64_t n_dim = shape ? cdr_json_count(shape) : -1;
    if (n_dim < 0 || n_dim > CDR_MAX_DIM || !parse_sizes(shape, (int)n_dim, t->n))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: its shape is not at most %d sizes", where, key, CDR_MAX_DIM);
    t->n_dim = (int)n_dim;
    if (!cdr__ckpt_row_bytes(t->dtype, t->n_dim, t->n, &row_bytes) || !cdr__st_bytes(format, t->n_dim, t->n, &bytes))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: its shape overflows", where, key);
    return CDR_OK;
}

cdr_status cdr__tables_parse(cdr_pool *pool, const char *where, const cdr_json *root, cdr__manifest *m, cdr_err *err)
{
    const cdr_json *files = cdr_json_get(root, "files"), *tensors = cdr_json_get(root, "tensors");
    if (!files || !tensors || cdr_json_type(tensors) != CDR_JSON_OBJECT)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: needs files and tensors", where);
    CDR_TRY(parse_files(pool, where, files, m, err));
    m->n_entries = cdr_json_count(tensors);
    m->entries = cdr_pool_alloc(pool, ((size_t)m->n_entries + 1) * sizeof *m->entries);
    for (int64_t i = 0; i < m->n_entries; i++) {
        cdr__ckpt_entry *e = &m->entries[i];
        const cdr_json *j = cdr_json_at(tensors, i), *pieces = cdr_json_get(j, "pieces");
        CDR_TRY(parse_tensor(pool, where, cdr_json_key(tensors, i), j, &e->t, err));
        if (!pieces || cdr_json_type(pieces) != CDR_JSON_ARRAY)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: tensor %s: no list of pieces", where, e->t.key);
        e->n_pieces = cdr_json_count(pieces);
        e->pieces = cdr_pool_alloc(pool, ((size_t)e->n_pieces + 1) * sizeof *e->pieces);
        for (int64_t k = 0; k < e->n_pieces; k++)
            CDR_TRY(parse_piece(pool, where, cdr_json_at(pieces, k), m, &e->t, &e->pieces[k], err));
        m->n_pieces += e->n_pieces;
    }
    return CDR_OK;
}

static int by_first_row(const void *a, const void *b)
{
    const cdr__ckpt_piece *x = a, *y = b;
    if (x->first_row != y->first_row) return x->first_row < y->first_row ? -1 : 1;
    return x->n_rows < y->n_rows ? -1 : x->n_rows > y->n_rows;
}

cdr_status cdr__tables_check_tiling(const char *where, cdr__manifest *m, cdr_err *err)
{
    for (int64_t i = 0; i < m->n_entries; i++) {
        cdr__ckpt_entry *e = &m->entries[i];
        int64_t row = 0, n_rows = cdr__ckpt_rows(e->t.n_dim, e->t.n);
        qsort(e->pieces, (size_t)e->n_pieces, sizeof *e->pieces, by_first_row);
        for (int64_t k = 0; k < e->n_pieces; k++) {
            const cdr__ckpt_piece *p = &e->pieces[k];
            if (p->first_row > row)
                CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.hole", "%s: tensor %s: rows %lld to %lld are in no piece", where, e->t.key,
                            (long long)row, (long long)p->first_row - 1);
            if (p->first_row < row || (p->n_rows == 0 && n_rows > 0))
                CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.overlap", "%s: tensor %s: row %lld is in two pieces, or a piece is empty", where, e->t.key,
                            (long long)p->first_row);
            row += p->n_rows;
        }
        if (row != n_rows || e->n_pieces == 0 || (n_rows == 0 && e->n_pieces != 1))
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.hole", "%s: tensor %s: its pieces hold %lld of %lld rows", where, e->t.key,
                        (long long)row, (long long)n_rows);
    }
    return CDR_OK;
}

cdr_status cdr__manifest_parse(cdr_pool *pool, const char *where, const char *text, size_t bytes, cdr__manifest *m, cdr_err *err)
{
    const cdr_json *root;
    *m = (cdr__manifest){ 0 };
    CDR_TRY(cdr_json_parse(pool, text, bytes, where, &root, err));
    m->root = root;
    if (cdr_json_type(root) != CDR_JSON_OBJECT || strcmp(cdr_json_str(cdr_json_get(root, "format"), ""), "cadre-checkpoint") != 0)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: its format is not cadre-checkpoint", where);
    int64_t version = cdr_json_int(cdr_json_get(root, "version"), -1), ranks = cdr_json_int(cdr_json_get(root, "ranks"), -1);
    if (version != 1)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.version", "%s: version %lld; this program reads version 1. Use the program that wrote it", where, (long long)version);
    m->step = cdr_json_int(cdr_json_get(root, "step"), -1);
    if (m->step < 0 || ranks < 1 || ranks > 1000000)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: needs step and ranks", where);
    m->n_ranks = (int)ranks;
    if (!parse_hex(cdr_json_str(cdr_json_get(root, "recipe_hash"), NULL), &m->recipe_hash) ||
        !parse_hex(cdr_json_str(cdr_json_get(root, "description_hash"), NULL), &m->description_hash))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.manifest", "%s: needs recipe_hash and description_hash", where);
    CDR_TRY(cdr__tables_parse(pool, where, root, m, err));
    return cdr__tables_check_tiling(where, m, err);
}

cdr_status cdr_ckpt_check_manifest(const char *where, const char *text, size_t bytes, cdr_err *err)
{
    cdr__manifest m;
    cdr_pool *pool = cdr_pool_new();
    cdr_status status = cdr__manifest_parse(pool, where, text, bytes, &m, err);
    cdr_pool_free(pool);
    return status;
}
