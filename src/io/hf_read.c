/* hf_read.c: bytes of a tensor into memory that is not the page cache. Weights that are copied into a slab are read once: through the cache
 * they would push out what is used again (mapped experts), and cost a second copy of the model in memory while they load.
 *
 * O_DIRECT wants offsets, lengths and addresses in whole blocks; tensors lie anywhere. So a read goes through an aligned buffer of BLOCK bytes
 * and is copied out of it, which costs less than the disk takes. One request is in flight a call: whoever loads uses several
 * threads, as many as the disk has depth for (test/hf_speed.c measures it beside fio). A block is one request wherever it lies: cut at multiples
 * of 4096, each would have a second one for its last bytes. The buffer lies in huge pages: in small ones, scattered in memory, a block has more
 * pieces than a request may have (often 254), and is split into several: 0.6 instead of 2.3 GB/s on a virtual disk.
 * A block that the cache holds already (mincore on the file's mapping, which tells owners the truth) is taken from there: a second load of a
 * warm file does not touch the disk. preadv2 with RWF_NOWAIT would ask the same, but starts read-ahead where pages are missing, so that
 * bytes are read twice.
 * File systems without O_DIRECT are read through the cache. A file that ends early is an error, with its sizes.
 */
#include "io/hf_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4 << 20, ALIGN = 4096, HUGE_PAGE = 2 << 20 };

static void *take_bounce(cdr_hf *d)
{
    void *p = NULL;
    pthread_mutex_lock(&d->lock);
    if (d->n_bounce > 0) p = d->bounce[--d->n_bounce];
    pthread_mutex_unlock(&d->lock);
    if (!p && posix_memalign(&p, HUGE_PAGE, BLOCK + 2 * ALIGN) != 0) p = NULL;
    CDR_CHECK(p != NULL);
    (void)madvise(p, BLOCK, MADV_HUGEPAGE);
    return p;
}

static void give_bounce(cdr_hf *d, void *p)
{
    pthread_mutex_lock(&d->lock);
    bool kept = d->n_bounce < CDR_COUNT(d->bounce);
    if (kept) d->bounce[d->n_bounce++] = p;
    pthread_mutex_unlock(&d->lock);
    if (!kept) free(p);
}

void cdr__hf_close_reads(cdr_hf *d)
{
    while (d->n_bounce > 0) free(d->bounce[--d->n_bounce]);
    for (int i = 0; i < d->n_shards; i++)
        if (d->shards[i].fd >= 0) close(d->shards[i].fd);
}

/* Once a shard: a descriptor that reads past the page cache, or one that does not where there is no such thing. */
static cdr_status open_reads(cdr_hf *d, cdr__hf_shard *s, cdr_err *err)
{
    cdr_status status = CDR_OK;
    pthread_mutex_lock(&d->lock);
    if (s->fd < 0) {
        s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        s->direct = s->fd >= 0;
        if (s->fd < 0 && errno == EINVAL) s->fd = open(s->path, O_RDONLY | O_CLOEXEC);
        if (s->fd < 0) status = cdr_fail(err, CDR_EDATA, "file.io", "%s: cannot be opened; %s. Check that it is still there", s->path, strerror(errno));
        else if (!cdr__st_is(s->st, s->fd)) {
            (void)close(s->fd);
            s->fd = -1;
            status = cdr_fail(err, CDR_EDATA, "file.changed", "%s: another file has taken its name while it was read. Leave the directory alone, and start again",
                              s->path);
        } else s->owned = access(s->path, W_OK) == 0;
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

static cdr_status fail_read(const cdr__hf_shard *s, size_t end, ssize_t k, cdr_err *err)
{
    struct stat st;
    char need[32], have[32];
    if (k < 0) CDR_FAIL_ID(err, CDR_EDATA, "file.io", "%s: cannot be read; %s. Check the disk", s->path, strerror(errno));
    cdr_format_count(need, (int64_t)end);
    cdr_format_count(have, fstat(s->fd, &st) == 0 ? st.st_size : 0);
    CDR_FAIL_ID(err, CDR_EDATA, "file.shrank", "%s: became shorter while it was read: %s bytes are needed, it has %s now. Leave the file alone, and start again", s->path,
                need, have);
}

/* [at, at + bytes) through the cache. */
static cdr_status read_plain(const cdr__hf_shard *s, size_t at, size_t bytes, char *to, cdr_err *err)
{
    size_t end = at + bytes;
    while (bytes > 0) {
        ssize_t k = pread(s->fd, to, CDR_MIN(bytes, (size_t)1 << 30), (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return fail_read(s, end, k, err);
        at += (size_t)k;
        to += k;
        bytes -= (size_t)k;
    }
    return CDR_OK;
}

/* One aligned window past the cache, of which [at, at + bytes) is wanted. *unable: the file system takes no such reads after all. */
static cdr_status read_window(const cdr__hf_shard *s, size_t at, size_t bytes, void *bounce, char *to, bool *unable, cdr_err *err)
{
    size_t first = at / ALIGN * ALIGN, window = cdr_align_up(at + bytes, ALIGN) - first, got = 0;
    while (first + got < at + bytes) {
        ssize_t k = pread(s->fd, (char *)bounce + got, window - got, (off_t)(first + got));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EINVAL && got % ALIGN == 0) {
            *unable = true;
            return CDR_OK;
        }
        if (k <= 0) return fail_read(s, at + bytes, errno == EINVAL ? 0 : k, err);       /* a part of a block: the file ends in it */
        got += (size_t)k;
    }
    memcpy(to, (char *)bounce + (at - first), bytes);
    return CDR_OK;
}

/* Are all pages of [at, at + bytes) in the cache? file: its mapping. bytes: at most a block. */
static bool is_cached(const char *file, size_t at, size_t bytes)
{
    unsigned char page[BLOCK / ALIGN + 2];
    const size_t first = at / ALIGN * ALIGN, n = (at + bytes - first + ALIGN - 1) / ALIGN;
    if (mincore((void *)(uintptr_t)(file + first), at + bytes - first, page) != 0) return false;
    for (size_t i = 0; i < n; i++) if (!(page[i] & 1)) return false;
    return true;
}

/* The shard through the cache, opened where it is first wanted: one descriptor a shard is kept, not two. False: no longer that file. */
static bool open_through(const cdr__hf_shard *s, cdr__hf_shard *through)
{
    if (through->fd < 0) through->fd = open(s->path, O_RDONLY | O_CLOEXEC);
    return through->fd >= 0 && cdr__st_is(s->st, through->fd);
}

static cdr_status read_direct(cdr_hf *d, const cdr__hf_shard *s, const char *file, size_t at, size_t bytes, char *to, cdr_err *err)
{
    void *bounce = take_bounce(d);
    cdr__hf_shard through = *s;
    through.fd = -1;
    cdr_status status = CDR_OK;
    bool unable = false;
    while (bytes > 0 && status == CDR_OK && !unable) {
        size_t k = CDR_MIN(bytes, (size_t)BLOCK);        /* wherever it lies: one request */
        const bool cached = s->owned && is_cached(file, at, k) && open_through(s, &through);
        status = cached ? read_plain(&through, at, k, to, err) : read_window(s, at, k, bounce, to, &unable, err);
        if (unable) break;
        at += k;
        to += k;
        bytes -= k;
    }
    give_bounce(d, bounce);
    if (unable && !open_through(s, &through))
        status = cdr_fail(err, CDR_EDATA, "file.io", "%s: cannot be opened again; %s. Check that it is still there", s->path, strerror(errno));
    else if (unable) status = read_plain(&through, at, bytes, to, err);
    if (through.fd >= 0) (void)close(through.fd);
    return status;
}

cdr_status cdr_hf_read(cdr_hf *d, int64_t i, size_t first, size_t bytes, void *dst, cdr_err *err)
{
    cdr_hf_tensor t = { 0 };
    CDR_TRY(cdr_hf_tensor_at(d, i, &t, err));
    CDR_CHECK(first <= t.t->end - t.t->begin && bytes <= t.t->end - t.t->begin - first);
    cdr__hf_shard *s = &d->shards[t.i_shard];
    CDR_TRY(open_reads(d, s, err));
    size_t at = cdr_st_data_start(s->st) + t.t->begin + first;
    const char *file = (const char *)t.data - t.t->begin - cdr_st_data_start(s->st);
    return s->direct ? read_direct(d, s, file, at, bytes, dst, err) : read_plain(s, at, bytes, dst, err);
}
