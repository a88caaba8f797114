/* st_read.c: safetensors reader. A file is
 *     u64 N, little endian | N bytes of JSON | buffer
 * and the JSON is {"__metadata__": {text: text}, NAME: {"dtype": F, "shape": [..], "data_offsets": [b, e)}}.
 * Source: the format's README and its reference implementation (Hugging Face).
 *
 * Everything but the values is checked before anything is believed: sizes without overflow, no name twice, and that the
 * tensors, sorted by b, fill the buffer without hole or overlap up to its last byte. Order of the checks: what tells most
 * first (a short file is "truncated", not "bad offsets"). O(n log n) in the entries, for the sort; look-up by
 * hash, with a seed that a file cannot know.
 * Alignment is not promised by the format: callers copy.
 */
#include "io/io.h"
#include "io/internal.h"

#include <endian.h>
#include <stdlib.h>

static const size_t HEADER_MAX = 100000000;           /* the format's own cap */

/* Rows in the reference's enum order; a writer puts the last first, so that natural alignment holds. */
static const cdr_st_format FORMATS[] = {
    { "BOOL", 8 },     { "F4", 4 },        { "F6_E2M3", 6 },     { "F6_E3M2", 6 },     { "U8", 8 },   { "I8", 8 },
    { "F8_E5M2", 8 },  { "F8_E4M3", 8 },   { "F8_E8M0", 8 },     { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 },
    { "I16", 16 },     { "U16", 16 },      { "F16", 16 },        { "BF16", 16 },       { "I32", 32 }, { "U32", 32 },
    { "F32", 32 },     { "C64", 64 },      { "F64", 64 },        { "I64", 64 },        { "U64", 64 },
};

struct cdr_st {
    cdr_pool *pool;
    cdr_map map;                       /* closed with the reader where mapped is set */
    bool mapped;
    const char *where;
    const char *buffer; size_t buffer_bytes, data_start;
    cdr_st_tensor *tensors; int64_t n;
    int64_t *slots; size_t n_slots;    /* open addressing over names, -1: free */
    const cdr_json *meta;
};

const cdr_st_format *cdr_st_format_row(int i)
{
    return i >= 0 && i < CDR_COUNT(FORMATS) ? &FORMATS[i] : NULL;
}

int cdr_st_format_by_name(const char *name)
{
    for (int i = 0; i < CDR_COUNT(FORMATS); i++)
        if (strcmp(FORMATS[i].name, name) == 0) return i;
    return -1;
}

int cdr_st_format_of(int dtype)
{
    if (dtype == CDR_MXFP4) return -1;                /* codes and scales are two U8 tensors of a checkpoint */
    const cdr_dtype_info *row = cdr_dtype_row(dtype);
    return row && row->safetensors ? cdr_st_format_by_name(row->safetensors) : -1;
}

int cdr__st_dtype(int format)
{
    for (int d = 0; d < CDR_N_DTYPES; d++)
        if (cdr_st_format_of(d) == format) return d;
    return -1;
}

bool cdr__st_bytes(int format, int n_dim, const int64_t *n, size_t *bytes)
{
    size_t elems = 1, bits;
    for (int i = 0; i < n_dim; i++) {
        if (n[i] < 0) return false;
        if (!cdr_mul_size(elems, (size_t)n[i], &elems)) return false;
    }
    if (!cdr_mul_size(elems, (size_t)FORMATS[format].bits, &bits) || bits % 8 != 0) return false;
    *bytes = bits / 8;
    return true;
}

/* One entry: its own fields only; how entries fit together is checked afterwards. */
static cdr_status read_entry(const cdr_st *st, const char *name, const cdr_json *j, cdr_st_tensor *t, cdr_err *err)
{
    const char *where = st->where;
    const cdr_json *shape = cdr_json_get(j, "shape"), *offsets = cdr_json_get(j, "data_offsets");
    const char *dtype = cdr_json_str(cdr_json_get(j, "dtype"), NULL);
    t->name = name;
    if (!dtype || !shape || cdr_json_type(shape) != CDR_JSON_ARRAY || !offsets || cdr_json_type(offsets) != CDR_JSON_ARRAY)
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.header", "%s: tensor %s: needs dtype, shape and data_offsets", where, name);
    t->format = cdr_st_format_by_name(dtype);
    if (t->format < 0) CDR_FAIL_ID(err, CDR_EDATA, "safetensors.dtype", "%s: tensor %s: unknown dtype \"%s\"", where, name, dtype);
    t->dtype = cdr__st_dtype(t->format);
    int64_t n_dim = cdr_json_count(shape);
    if (n_dim > CDR_ST_MAX_DIM)
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.shape", "%s: tensor %s: %lld axes; at most %d are read", where, name,
                    (long long)n_dim, CDR_ST_MAX_DIM);
    t->n_dim = (int)n_dim;
    for (int i = 0; i < t->n_dim; i++) {
        const cdr_json *d = cdr_json_at(shape, i);
        t->n[i] = cdr_json_type(d) == CDR_JSON_INT ? cdr_json_int(d, -1) : -1;
        if (t->n[i] < 0) CDR_FAIL_ID(err, CDR_EDATA, "safetensors.shape", "%s: tensor %s: axis %d of its shape is no size", where, name, i);
    }
    const cdr_json *b = cdr_json_at(offsets, 0), *e = cdr_json_at(offsets, 1);
    if (cdr_json_count(offsets) != 2 || cdr_json_type(b) != CDR_JSON_INT || cdr_json_type(e) != CDR_JSON_INT ||
        cdr_json_int(b, -1) < 0 || cdr_json_int(e, -1) < cdr_json_int(b, -1))
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.offsets", "%s: tensor %s: data_offsets are no range", where, name);
    t->begin = (size_t)cdr_json_int(b, 0);
    t->end = (size_t)cdr_json_int(e, 0);
    size_t bytes;
    if (!cdr__st_bytes(t->format, t->n_dim, t->n, &bytes))
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.shape", "%s: tensor %s: its shape overflows, or is no whole number of bytes", where, name);
    if (bytes != t->end - t->begin)
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.offsets", "%s: tensor %s: data_offsets span %zu bytes, dtype and shape need %zu",
                    where, name, t->end - t->begin, bytes);
    return CDR_OK;
}

static int by_begin(const void *a, const void *b)
{
    const cdr_st_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);                  /* zero-size tensors at one place: any fixed order */
}

static cdr_status fail_truncated(const cdr_st *st, size_t file_bytes, size_t need_bytes, const char *first_cut, cdr_err *err)
{
    char have[32], need[32];
    cdr_format_count(have, (int64_t)file_bytes);
    cdr_format_count(need, (int64_t)need_bytes);
    CDR_FAIL_ID(err, CDR_EDATA, "safetensors.truncated",
                "%s: %s bytes, its header describes %s (%d %%); first tensor cut: %s. Copy the file again", st->where, have, need,
                (int)((double)file_bytes / (double)need_bytes * 100), first_cut);
}

/* The tensors tile the buffer: first begin 0, each begin the previous end, last end the file's end. */
static cdr_status check_tiling(const cdr_st *st, size_t data_start, size_t file_bytes, cdr_err *err)
{
    size_t end = 0, need = 0;
    for (int64_t i = 0; i < st->n; i++) {
        const cdr_st_tensor *t = &st->tensors[i];
        if (t->begin != end)
            CDR_FAIL_ID(err, CDR_EDATA, "safetensors.offsets", "%s: tensor %s: begins at byte %zu, the tensors before it end at %zu (%s)",
                        st->where, t->name, t->begin, end, t->begin > end ? "a hole" : "an overlap");
        end = t->end;
    }
    if (!cdr_add_size(data_start, end, &need))
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.offsets", "%s: offsets overflow", st->where);
    if (file_bytes < need) {
        int64_t i = 0;
        while (st->tensors[i].end <= file_bytes - data_start) i++;
        return fail_truncated(st, file_bytes, need, st->tensors[i].name, err);
    }
    if (file_bytes > need)
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.trailing", "%s: %zu bytes follow after the last tensor; the header describes %zu",
                    st->where, file_bytes - need, need);
    return CDR_OK;
}

static void index_names(cdr_st *st)
{
    st->n_slots = 16;
    while (st->n_slots < (size_t)st->n * 2) st->n_slots *= 2;
    st->slots = cdr_pool_alloc(st->pool, st->n_slots * sizeof *st->slots);
    memset(st->slots, 0xff, st->n_slots * sizeof *st->slots);
    for (int64_t i = 0; i < st->n; i++) {
        size_t s = cdr_hash64(st->tensors[i].name, strlen(st->tensors[i].name), cdr_hash_secret()) & (st->n_slots - 1);
        while (st->slots[s] >= 0) s = (s + 1) & (st->n_slots - 1);
        st->slots[s] = i;
    }
}

static cdr_status read_meta(cdr_st *st, const cdr_json *meta, cdr_err *err)
{
    if (cdr_json_type(meta) != CDR_JSON_OBJECT)
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.header", "%s: __metadata__ is no object", st->where);
    for (int64_t i = 0; i < cdr_json_count(meta); i++)
        if (cdr_json_type(cdr_json_at(meta, i)) != CDR_JSON_STRING)
            CDR_FAIL_ID(err, CDR_EDATA, "safetensors.header", "%s: __metadata__.%s is no text", st->where, cdr_json_key(meta, i));
    st->meta = meta;
    return CDR_OK;
}

static cdr_status parse(cdr_st *st, const char *data, size_t bytes, cdr_err *err)
{
    if (bytes < 8) CDR_FAIL_ID(err, CDR_EDATA, "safetensors.truncated", "%s: %zu bytes; a safetensors file has at least 8. Copy the file again", st->where, bytes);
    uint64_t header;
    memcpy(&header, data, 8);
    header = le64toh(header);
    if (header > HEADER_MAX)
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.header", "%s: a header of %llu bytes, at most %zu are allowed; this is no safetensors file",
                    st->where, (unsigned long long)header, HEADER_MAX);
    size_t data_start = 8 + (size_t)header, json_bytes = (size_t)header;
    if (bytes < data_start) return fail_truncated(st, bytes, data_start, "all (it ends inside its header)", err);
    const char *text = data + 8;
    while (json_bytes > 0 && text[json_bytes - 1] == ' ') json_bytes--;         /* padding */
    if (json_bytes < 2 || text[0] != '{' || text[json_bytes - 1] != '}')
        CDR_FAIL_ID(err, CDR_EDATA, "safetensors.header", "%s: the header is no JSON object; this is no safetensors file", st->where);
    const cdr_json *root;
    CDR_TRY(cdr_json_parse(st->pool, text, json_bytes, st->where, &root, err));
    int64_t n = cdr_json_count(root);
    st->tensors = cdr_pool_alloc(st->pool, ((size_t)n + 1) * sizeof *st->tensors);
    for (int64_t i = 0; i < n; i++) {
        const char *key = cdr_json_key(root, i);
        const cdr_json *j = cdr_json_at(root, i);
        if (strcmp(key, "__metadata__") == 0) CDR_TRY(read_meta(st, j, err));
        else {
            CDR_TRY(read_entry(st, key, j, &st->tensors[st->n], err));
            st->n++;
        }
    }
    qsort(st->tensors, (size_t)st->n, sizeof *st->tensors, by_begin);
    CDR_TRY(check_tiling(st, data_start, bytes, err));
    index_names(st);
    st->data_start = data_start;
    st->buffer = data + data_start;
    st->buffer_bytes = bytes - data_start;
    return CDR_OK;
}

cdr_status cdr_st_open_memory(const char *where, const void *data, size_t bytes, cdr_st **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_st *st = cdr_pool_alloc(pool, sizeof *st);
    st->pool = pool;
    st->where = cdr_pool_strdup(pool, where);
    cdr_status status = parse(st, data, bytes, err);
    if (status != CDR_OK) cdr_pool_free(pool);
    else *out = st;
    return status;
}

cdr_status cdr_st_open(const char *path, cdr_st **out, cdr_err *err)
{
    cdr_map map;
    CDR_TRY(cdr_map_open(path, &map, err));
    cdr_status status = cdr_st_open_memory(path, map.data, map.bytes, out, err);
    if (status != CDR_OK) {
        cdr_map_close(&map);
        return status;
    }
    (*out)->map = map;
    (*out)->mapped = true;
    return CDR_OK;
}

void cdr_st_close(cdr_st *st)
{
    if (!st) return;
    if (st->mapped) cdr_map_close(&st->map);
    cdr_pool_free(st->pool);
}

int64_t cdr_st_count(const cdr_st *st)
{
    return st->n;
}

const cdr_st_tensor *cdr_st_at(const cdr_st *st, int64_t i)
{
    return i >= 0 && i < st->n ? &st->tensors[i] : NULL;
}

const cdr_st_tensor *cdr_st_find(const cdr_st *st, const char *name)
{
    size_t s = cdr_hash64(name, strlen(name), cdr_hash_secret()) & (st->n_slots - 1);
    for (; st->slots[s] >= 0; s = (s + 1) & (st->n_slots - 1))
        if (strcmp(st->tensors[st->slots[s]].name, name) == 0) return &st->tensors[st->slots[s]];
    return NULL;
}

const void *cdr_st_data(const cdr_st *st, const cdr_st_tensor *t)
{
    CDR_CHECK(t->end <= st->buffer_bytes);
    return st->buffer + t->begin;
}

size_t cdr_st_data_start(const cdr_st *st)
{
    return st->data_start;
}

bool cdr__st_is(const cdr_st *st, int fd)
{
    return st->mapped && cdr_map_is(&st->map, fd);
}

cdr_status cdr_st_check(const cdr_st *st, cdr_err *err)
{
    return st->mapped ? cdr_map_check(st->where, &st->map, err) : CDR_OK;
}

int64_t cdr_st_meta_count(const cdr_st *st)
{
    return st->meta ? cdr_json_count(st->meta) : 0;
}

const char *cdr_st_meta_key(const cdr_st *st, int64_t i)
{
    return cdr_json_key(st->meta, i);
}

const char *cdr_st_meta(const cdr_st *st, const char *key)
{
    return st->meta ? cdr_json_str(cdr_json_get(st->meta, key), NULL) : NULL;
}
