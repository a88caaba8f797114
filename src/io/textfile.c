/* textfile.c: the bytes of a text file, which may be packed. What a file is is told by its first bytes, not by its name:
 * 1f 8b gzip (also dictd's .dz, which is gzip with an extra field), 28 b5 2f fd zstd, else plain and mapped.
 * Concatenated members and frames are read on; what is not one more of them is an error, as is a cut file.
 */
#include "io/io.h"

#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

typedef struct { char *data; size_t n, cap, max; } grown;

/* Room for more output; false where the file unpacks to more than its bound. */
static bool make_room(grown *g)
{
    if (g->n < g->cap) return true;
    if (g->cap >= g->max) return false;
    g->cap = CDR_MIN(g->cap ? g->cap * 2 : (size_t)1 << 20, g->max);
    g->data = realloc(g->data, g->cap);
    CDR_CHECK(g->data);
    return true;
}

static cdr_status fail_size(const char *path, const grown *g, cdr_err *err)
{
    CDR_FAIL_ID(err, CDR_EDATA, "text.size", "%s: unpacks to more than %zu bytes", path, g->max);
}

static cdr_status unpack_gzip(const char *path, const char *data, size_t bytes, grown *g, cdr_err *err)
{
    z_stream z = { 0 };
    if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) CDR_FAIL_ID(err, CDR_EBUG, "text.gzip", "%s: zlib does not start", path);
    size_t done = 0;
    int code = Z_OK;
    bool full = false;
    while (code == Z_OK && !full) {
        if (!make_room(g)) {
            full = true;
            break;
        }
        size_t in = CDR_MIN(bytes - done, (size_t)1 << 30), room = CDR_MIN(g->cap - g->n, (size_t)1 << 30);
        z.next_in = (z_const Bytef *)(uintptr_t)(data + done);
        z.avail_in = (uInt)in;
        z.next_out = (Bytef *)g->data + g->n;
        z.avail_out = (uInt)room;
        code = inflate(&z, Z_NO_FLUSH);
        done += in - z.avail_in;
        g->n += room - z.avail_out;
        if (code == Z_STREAM_END && done < bytes) code = inflateReset(&z);            /* one more member */
    }
    (void)inflateEnd(&z);
    if (full) return fail_size(path, g, err);
    if (code != Z_STREAM_END)
        CDR_FAIL_ID(err, CDR_EDATA, "text.gzip", "%s: damaged or cut gzip data at byte %zu of %zu. Copy the file again", path, done, bytes);
    return CDR_OK;
}

static cdr_status unpack_zstd(const char *path, const char *data, size_t bytes, grown *g, cdr_err *err)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    CDR_CHECK(z);
    ZSTD_inBuffer in = { data, bytes, 0 };
    size_t left = 1;                                  /* 0: at the end of a frame */
    cdr_status status = CDR_OK;
    while (status == CDR_OK && (in.pos < in.size || left != 0)) {
        if (!make_room(g)) {
            status = fail_size(path, g, err);
            break;
        }
        ZSTD_outBuffer out = { g->data + g->n, g->cap - g->n, 0 };
        size_t in_before = in.pos;
        left = ZSTD_decompressStream(z, &out, &in);
        g->n += out.pos;
        if (ZSTD_isError(left))
            status = cdr_fail(err, CDR_EDATA, "text.zstd", "%s: damaged zstd data at byte %zu: %s. Copy the file again", path, in.pos, ZSTD_getErrorName(left));
        else if (left != 0 && in.pos == in.size && in.pos == in_before && out.pos == 0)
            status = cdr_fail(err, CDR_EDATA, "text.zstd", "%s: cut zstd data. Copy the file again", path);
    }
    (void)ZSTD_freeDStream(z);
    return status;
}

cdr_status cdr_textfile_open(const char *path, size_t max_bytes, cdr_textfile *t, cdr_err *err)
{
    cdr_map map;
    *t = (cdr_textfile){ 0 };
    CDR_TRY(cdr_map_open(path, &map, err));
    const char *d = map.data;
    bool gzip = map.bytes >= 2 && memcmp(d, "\x1f\x8b", 2) == 0, zstd = map.bytes >= 4 && memcmp(d, "\x28\xb5\x2f\xfd", 4) == 0;
    if (!gzip && !zstd) {
        if (map.bytes > max_bytes) {
            cdr_map_close(&map);
            CDR_FAIL_ID(err, CDR_EDATA, "text.size", "%s: larger than %zu bytes", path, max_bytes);
        }
        *t = (cdr_textfile){ .data = map.data, .bytes = map.bytes, .map = map };
        return CDR_OK;
    }
    grown g = { .max = max_bytes };
    cdr_status status = gzip ? unpack_gzip(path, d, map.bytes, &g, err) : unpack_zstd(path, d, map.bytes, &g, err);
    cdr_map_close(&map);
    if (status != CDR_OK) free(g.data);
    else *t = (cdr_textfile){ .data = g.data, .bytes = g.n, .owned = g.data };
    return status;
}

void cdr_textfile_close(cdr_textfile *t)
{
    if (t->owned) free(t->owned);
    else if (t->data) cdr_map_close(&t->map);
    *t = (cdr_textfile){ 0 };
}
