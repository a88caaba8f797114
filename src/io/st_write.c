/* st_write.c: safetensors writer, byte for byte as the reference implementation lays a file out:
 * tensors by format (last row of the table first), then by name; compact JSON, __metadata__ first, keys in the order
 * dtype, shape, data_offsets; header padded with spaces to a multiple of 8. Bytes are streamed after the header and
 * hashed as they go; the file has its name only when it is complete and synced.
 */
#include "io/io.h"
#include "io/internal.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct { const cdr_st_spec *spec; int64_t index; size_t bytes; } placed;

struct cdr_st_writer {
    cdr_pool *pool;
    const char *path, *partial;
    int fd;
    placed *order; int64_t n;
    size_t data_bytes, written;        /* of the buffer */
    size_t header_bytes;
    cdr_hasher *hash;
};

static int by_file_order(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    if (x->spec->format != y->spec->format) return x->spec->format > y->spec->format ? -1 : 1;
    return strcmp(x->spec->name, y->spec->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const cdr_st_pair *)a)->key, ((const cdr_st_pair *)b)->key);
}

/* As serde_json escapes: short forms where JSON has them, \u00xx for the other controls, the rest as it is. */
static void put_string(cdr_text *t, const char *s)
{
    static const char RAW[] = "\b\f\n\r\t\"\\", LETTER[] = "bfnrt\"\\";
    cdr_text_append(t, "\"", 1);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        const char *at = strchr(RAW, c);
        if (at) cdr_text_printf(t, "\\%c", LETTER[at - RAW]);
        else if (c < 0x20) cdr_text_printf(t, "\\u%04x", c);
        else cdr_text_append(t, s, 1);
    }
    cdr_text_append(t, "\"", 1);
}

static void put_header(const cdr_st_writer *w, const cdr_st_pair *meta, int n_meta, cdr_text *t)
{
    size_t begin = 0;
    cdr_text_append(t, "{", 1);
    if (n_meta > 0) {
        cdr_text_printf(t, "\"__metadata__\":{");
        for (int i = 0; i < n_meta; i++) {
            if (i > 0) cdr_text_append(t, ",", 1);
            put_string(t, meta[i].key);
            cdr_text_append(t, ":", 1);
            put_string(t, meta[i].value);
        }
        cdr_text_append(t, "}", 1);
    }
    for (int64_t i = 0; i < w->n; i++) {
        const cdr_st_spec *s = w->order[i].spec;
        if (i > 0 || n_meta > 0) cdr_text_append(t, ",", 1);
        put_string(t, s->name);
        cdr_text_printf(t, ":{\"dtype\":\"%s\",\"shape\":[", cdr_st_format_row(s->format)->name);
        for (int d = 0; d < s->n_dim; d++) cdr_text_printf(t, d ? ",%lld" : "%lld", (long long)s->n[d]);
        cdr_text_printf(t, "],\"data_offsets\":[%zu,%zu]}", begin, begin + w->order[i].bytes);
        begin += w->order[i].bytes;
    }
    cdr_text_append(t, "}", 1);
    while (t->n % 8 != 0) cdr_text_append(t, " ", 1);
}

static cdr_status check_specs(cdr_st_writer *w, const cdr_st_spec *specs, int64_t n, cdr_err *err)
{
    const char **names = cdr_pool_alloc(w->pool, ((size_t)n + 1) * sizeof *names);
    for (int64_t i = 0; i < n; i++) {
        const cdr_st_spec *s = &specs[i];
        CDR_CHECK(cdr_st_format_row(s->format) && s->n_dim >= 0 && s->n_dim <= CDR_ST_MAX_DIM);
        placed *p = &w->order[i];
        *p = (placed){ .spec = s, .index = i };
        names[i] = s->name;
        if (strcmp(s->name, "__metadata__") == 0)
            CDR_FAIL_ID(err, CDR_EUSER, "safetensors.write", "%s: no tensor can be called __metadata__", w->path);
        if (!cdr__st_bytes(s->format, s->n_dim, s->n, &p->bytes) || !cdr_add_size(w->data_bytes, p->bytes, &w->data_bytes))
            CDR_FAIL_ID(err, CDR_EUSER, "safetensors.write", "%s: tensor %s: its size overflows, or is no whole number of bytes", w->path, s->name);
    }
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int64_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            CDR_FAIL_ID(err, CDR_EUSER, "safetensors.write", "%s: two tensors are called %s", w->path, names[i]);
    qsort(w->order, (size_t)n, sizeof *w->order, by_file_order);
    w->n = n;
    return CDR_OK;
}

static cdr_status write_all(cdr_st_writer *w, const void *data, size_t bytes, cdr_err *err)
{
    const char *p = data;
    cdr_hasher_add(w->hash, data, bytes);
    while (bytes > 0) {
        ssize_t k = write(w->fd, p, CDR_MIN(bytes, (size_t)1 << 30));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot write: %s. Free some space, or check the disk", w->partial,
                        k < 0 ? strerror(errno) : "nothing was taken");
        p += k;
        bytes -= (size_t)k;
    }
    return CDR_OK;
}

static cdr_status create(cdr_st_writer *w, const cdr_st_spec *specs, int64_t n, const cdr_st_pair *meta, int n_meta, cdr_err *err)
{
    cdr_text header = { 0 };
    w->order = cdr_pool_alloc(w->pool, ((size_t)n + 1) * sizeof *w->order);
    CDR_TRY(check_specs(w, specs, n, err));
    cdr_st_pair *pairs = cdr_pool_alloc(w->pool, ((size_t)n_meta + 1) * sizeof *pairs);
    if (n_meta > 0) memcpy(pairs, meta, (size_t)n_meta * sizeof *pairs);
    qsort(pairs, (size_t)n_meta, sizeof *pairs, by_key);
    put_header(w, pairs, n_meta, &header);
    cdr_status status = CDR_OK;
    if (header.n > 100000000)
        status = cdr_fail(err, CDR_EUSER, "safetensors.write", "%s: %lld tensors need a header of %zu bytes; the format allows 100,000,000. "
                          "Write several files", w->path, (long long)n, header.n);
    else if ((w->fd = open(w->partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        status = cdr_fail(err, CDR_ERANK, "io.write", "%s: cannot create: %s", w->partial, strerror(errno));
    else {
        uint64_t length = htole64((uint64_t)header.n);
        w->header_bytes = 8 + header.n;
        status = write_all(w, &length, 8, err);
        if (status == CDR_OK) status = write_all(w, header.s, header.n, err);
    }
    cdr_text_free(&header);
    return status;
}

cdr_status cdr_st_create(const char *path, const cdr_st_spec *specs, int64_t n, const cdr_st_pair *meta, int n_meta,
                         cdr_st_writer **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_st_writer *w = cdr_pool_alloc(pool, sizeof *w);
    w->pool = pool;
    w->path = cdr_pool_strdup(pool, path);
    w->partial = cdr_pool_printf(pool, "%s.partial", path);
    w->fd = -1;
    w->hash = cdr_hasher_new();
    cdr_status status = create(w, specs, n, meta, n_meta, err);
    if (status != CDR_OK) cdr_st_abort(w);
    else *out = w;
    return status;
}

int64_t cdr_st_writer_order(const cdr_st_writer *w, int64_t i)
{
    CDR_CHECK(i >= 0 && i < w->n);
    return w->order[i].index;
}

cdr_status cdr_st_append(cdr_st_writer *w, const void *data, size_t bytes, cdr_err *err)
{
    CDR_CHECK(bytes <= w->data_bytes - w->written);
    w->written += bytes;
    return write_all(w, data, bytes, err);
}

static void free_writer(cdr_st_writer *w)
{
    if (w->hash) (void)cdr_hasher_end(w->hash);
    if (w->fd >= 0) (void)close(w->fd);
    cdr_pool_free(w->pool);
}

static cdr_status finish(cdr_st_writer *w, cdr_err *err)
{
    if (fsync(w->fd) != 0) CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot sync: %s", w->partial, strerror(errno));
    int closed = close(w->fd);
    w->fd = -1;
    if (closed != 0) CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot close: %s", w->partial, strerror(errno));
    if (rename(w->partial, w->path) != 0)
        CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot rename: %s", w->partial, strerror(errno));
    const char *slash = strrchr(w->path, '/');
    return cdr_sync_dir(slash ? cdr_pool_strndup(w->pool, w->path, (size_t)CDR_MAX(slash - w->path, 1)) : ".", err);
}

cdr_status cdr_st_finish(cdr_st_writer *w, int64_t *bytes, uint64_t *xxh3, cdr_err *err)
{
    CDR_CHECK(w->written == w->data_bytes);           /* each tensor was appended whole */
    cdr_status status = finish(w, err);
    if (status != CDR_OK) {
        cdr_st_abort(w);
        return status;
    }
    uint64_t h = cdr_hasher_end(w->hash);
    w->hash = NULL;
    if (bytes) *bytes = (int64_t)(w->header_bytes + w->data_bytes);
    if (xxh3) *xxh3 = h;
    free_writer(w);
    return CDR_OK;
}

void cdr_st_abort(cdr_st_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) (void)unlink(w->partial);
    free_writer(w);
}
