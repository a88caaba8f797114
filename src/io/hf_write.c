/* hf_write.c: a directory in Hugging Face layout, written whole or not at all.
 *
 * Shards are cut as huggingface_hub's split_state_dict_into_shards_factory does, whose steps are the layout that everybody has: in the order
 * given, a tensor that would push the open shard over the limit closes it; one that is larger than the limit is a shard of its own, which
 * comes before the shard that is open. Names are model-00001-of-00003.safetensors, or model.safetensors where it is one. The index is
 * Python's json.dump(indent=2): metadata.total_size, then weight_map by shard and order; characters beyond ASCII as \uXXXX.
 * Files lie in DIR.partial-PID until all are synced; then the folder is renamed. A writer that was interrupted leaves its folder, perhaps of
 * hundreds of gigabytes: the next writer of DIR removes it, where no process of that number runs and nobody holds the folder's lock (flock: a
 * writer in another container, or on another host where the file system passes locks on; where it knows none, the folder stays).
 */
#include "io/hf_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t SHARD_BYTES = 5000000000;        /* huggingface_hub's default */

typedef struct { const char *name; const char *copy; int64_t *t; int64_t n, first, data_bytes; } out_shard;     /* t: its tensors in the order given */

struct cdr_hf_writer {
    cdr_pool *pool;
    const char *dir, *partial;
    int lock;                          /* descriptor of partial, locked; -1: none */
    const cdr_hf_out_tensor *t; int64_t n;
    size_t *bytes;                     /* by tensor */
    out_shard *shards; int n_shards;
    bool indexed; const char *index;   /* a file to copy, or NULL */
    int64_t *order, n_order;           /* tensors to be appended */
    cdr_st_writer *st; cdr_st_spec *specs;             /* of the shard that is being written */
    int i_shard; int64_t i_tensor; size_t left;        /* that shard; the tensor in it that is next, and its bytes that are missing */
    int64_t file_bytes;
};

/* ---- the layout ------------------------------------------------------------------------------------------------- */
/* Which shard each tensor is in, by size; returns their number. */
static int cut_by_size(const cdr_hf_writer *w, int64_t limit, int *shard_of)
{
    int n = 0;
    int64_t open_first = -1;           /* first tensor of the open shard, which has no number yet */
    size_t open_bytes = 0;
    for (int64_t i = 0; i < w->n; i++) shard_of[i] = -1;
    for (int64_t i = 0; i <= w->n; i++) {
        bool alone = i < w->n && w->bytes[i] > (size_t)limit;
        bool closes = i == w->n || (!alone && open_bytes + w->bytes[i] > (size_t)limit);
        if (alone) shard_of[i] = n++;
        if (closes && open_first >= 0) {
            for (int64_t k = open_first; k < i; k++)
                if (shard_of[k] < 0) shard_of[k] = n;
            n++;
            open_first = -1;
            open_bytes = 0;
        }
        if (i == w->n || alone) continue;
        if (open_first < 0) open_first = i;
        open_bytes += w->bytes[i];
    }
    return n;
}

static void fill_shards(cdr_hf_writer *w, const cdr_hf_layout *l, const int *shard_of)
{
    w->shards = cdr_pool_alloc(w->pool, sizeof *w->shards * ((size_t)w->n_shards + 1));
    for (int64_t i = 0; i < w->n; i++) w->shards[shard_of[i]].n++;
    for (int k = 0; k < w->n_shards; k++) {
        out_shard *s = &w->shards[k];
        s->t = cdr_pool_alloc(w->pool, sizeof *s->t * ((size_t)s->n + 1));
        s->n = 0;
        s->name = l->shard ? l->shard[k] : !w->indexed ? "model.safetensors"
                : cdr_pool_printf(w->pool, "model-%05d-of-%05d.safetensors", k + 1, w->n_shards);
        s->copy = l->shard && l->copy ? l->copy[k] : NULL;
    }
    for (int64_t i = 0; i < w->n; i++) {
        out_shard *s = &w->shards[shard_of[i]];
        s->t[s->n++] = i;
        s->data_bytes += (int64_t)w->bytes[i];
    }
}

static cdr_status plan(cdr_hf_writer *w, const cdr_hf_layout *l, cdr_err *err)
{
    int *shard_of = cdr_pool_alloc(w->pool, sizeof *shard_of * ((size_t)w->n + 1));
    w->bytes = cdr_pool_alloc(w->pool, sizeof *w->bytes * ((size_t)w->n + 1));
    size_t total = 0;
    for (int64_t i = 0; i < w->n; i++) {
        const cdr_st_spec *s = &w->t[i].spec;
        if (!cdr__st_bytes(s->format, s->n_dim, s->n, &w->bytes[i]) || !cdr_add_size(total, w->bytes[i], &total) || total > INT64_MAX / 2)
            CDR_FAIL_ID(err, CDR_EUSER, "safetensors.write", "%s: tensor %s: its size overflows, or is no whole number of bytes", w->dir, s->name);
        if (!l->shard) continue;
        CDR_CHECK(w->t[i].shard >= 0 && w->t[i].shard < l->n_shards);
        shard_of[i] = w->t[i].shard;
    }
    w->n_shards = l->shard ? l->n_shards : CDR_MAX(1, cut_by_size(w, l->shard_bytes > 0 ? l->shard_bytes : SHARD_BYTES, shard_of));
    w->indexed = l->shard ? w->n_shards != 1 || strcmp(l->shard[0], "model.safetensors") != 0 : w->n_shards > 1;
    w->index = l->index;
    fill_shards(w, l, shard_of);
    return CDR_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static char *path_in(const cdr_hf_writer *w, const char *name)
{
    return cdr_pool_printf(w->pool, "%s/%s", w->partial, name);
}

static bool is_empty_dir(const char *path)
{
    DIR *d = opendir(path);
    if (!d) return false;
    bool empty = true;
    for (const struct dirent *e; empty && (e = readdir(d));) empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(d);
    return empty;
}

static cdr_status make_dir(cdr_hf_writer *w, cdr_err *err)
{
    if (cdr_exists(w->dir) && !is_empty_dir(w->dir))
        CDR_FAIL_ID(err, CDR_EUSER, "checkpoint.exists", "%s: is there already and not empty; a checkpoint is written into a folder of its own. Take another --out, or "
                    "remove it", w->dir);
    CDR_TRY(cdr_make_dirs(w->partial, err));
    w->lock = open(w->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lock >= 0) (void)flock(w->lock, LOCK_EX | LOCK_NB);
    return CDR_OK;
}

static cdr_status copy_bytes(int from, int to, int64_t bytes, const char *path, cdr_err *err)
{
    bool ranges = true;                /* the kernel copies, or shares the blocks; else through memory */
    char *buffer = NULL;
    cdr_status status = CDR_OK;
    for (int64_t done = 0; done < bytes && status == CDR_OK;) {
        ssize_t k = ranges ? copy_file_range(from, NULL, to, NULL, (size_t)CDR_MIN(bytes - done, (int64_t)1 << 30), 0) : -1;
        if (k < 0 && ranges) {
            ranges = false;
            buffer = cdr_alloc(1 << 20);
        }
        if (!ranges) {
            k = read(from, buffer, (size_t)CDR_MIN(bytes - done, (int64_t)1 << 20));
            for (ssize_t out = 0; k > 0 && out < k;) {
                ssize_t j = write(to, buffer + out, (size_t)(k - out));
                if (j < 0 && errno != EINTR) status = cdr_fail(err, CDR_ERANK, "io.write", "a copy of %s: cannot write: %s. Free some space, or check the disk", path,
                                                               strerror(errno));
                if (status != CDR_OK) break;
                out += CDR_MAX(j, 0);
            }
        }
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0 && status == CDR_OK)
            status = cdr_fail(err, CDR_EDATA, "file.shrank", "%s: cannot be copied: %s. Leave the file alone, and start again", path,
                              k < 0 ? strerror(errno) : "it became shorter while it was read");
        done += CDR_MAX(k, 0);
    }
    cdr_free(buffer);
    return status;
}

/* A whole file, byte for byte, synced. */
static cdr_status copy_file(const char *from, const char *to, int64_t *bytes, cdr_err *err)
{
    struct stat st;
    int in = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK), out = -1;
    cdr_status status = CDR_OK;
    if (in < 0 || fstat(in, &st) != 0 || !S_ISREG(st.st_mode))
        status = cdr_fail(err, CDR_EDATA, "file.io", "%s: cannot be copied: %s. Check the path", from, in < 0 ? strerror(errno) : "it is no file");
    else if ((out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0)
        status = cdr_fail(err, CDR_ERANK, "io.write", "%s: cannot create: %s", to, strerror(errno));
    else status = copy_bytes(in, out, st.st_size, from, err);
    if (status == CDR_OK && fsync(out) != 0) status = cdr_fail(err, CDR_ERANK, "io.write", "%s: cannot sync: %s", to, strerror(errno));
    if (out >= 0 && close(out) != 0 && status == CDR_OK) status = cdr_fail(err, CDR_ERANK, "io.write", "%s: cannot close: %s", to, strerror(errno));
    if (in >= 0) close(in);
    if (status == CDR_OK && bytes) *bytes = st.st_size;
    return status;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------ */
/* Opens the next shard that is not copied, and copies those before it. */
static cdr_status next_shard(cdr_hf_writer *w, cdr_err *err)
{
    for (; w->i_shard < w->n_shards; w->i_shard++) {
        const out_shard *s = &w->shards[w->i_shard];
        if (!s->copy) break;
        int64_t bytes;
        CDR_TRY(copy_file(s->copy, path_in(w, s->name), &bytes, err));
        w->file_bytes += bytes;
    }
    if (w->i_shard == w->n_shards) return CDR_OK;
    const out_shard *s = &w->shards[w->i_shard];
    static const cdr_st_pair FORMAT = { "format", "pt" };
    w->specs = cdr_alloc(((size_t)s->n + 1) * sizeof *w->specs);
    for (int64_t i = 0; i < s->n; i++) w->specs[i] = w->t[s->t[i]].spec;
    CDR_TRY(cdr_st_create(path_in(w, s->name), w->specs, s->n, &FORMAT, 1, &w->st, err));
    w->i_tensor = 0;
    w->left = s->n > 0 ? w->bytes[s->t[cdr_st_writer_order(w->st, 0)]] : 0;
    return CDR_OK;
}

/* While the next tensor has no bytes missing: the one after it, and after a shard's last the next shard. */
static cdr_status advance(cdr_hf_writer *w, cdr_err *err)
{
    while (w->i_shard < w->n_shards && w->left == 0) {
        const out_shard *s = &w->shards[w->i_shard];
        if (++w->i_tensor < s->n) {
            w->left = w->bytes[s->t[cdr_st_writer_order(w->st, w->i_tensor)]];
            continue;
        }
        int64_t bytes;
        cdr_st_writer *st = w->st;
        w->st = NULL;
        CDR_TRY(cdr_st_finish(st, &bytes, NULL, err));
        cdr_free(w->specs);
        w->specs = NULL;
        w->file_bytes += bytes;
        w->i_shard++;
        CDR_TRY(next_shard(w, err));
    }
    return CDR_OK;
}

cdr_status cdr_hf_append(cdr_hf_writer *w, const void *data, size_t bytes, cdr_err *err)
{
    const char *from = data;
    while (bytes > 0) {
        CDR_CHECK(w->i_shard < w->n_shards);
        size_t k = CDR_MIN(bytes, w->left);
        CDR_TRY(cdr_st_append(w->st, from, k, err));
        from += k;
        bytes -= k;
        w->left -= k;
        CDR_TRY(advance(w, err));
    }
    return CDR_OK;
}

static int by_file_order(const void *a, const void *b)
{
    const cdr_hf_out_tensor *x = *(const cdr_hf_out_tensor *const *)a, *y = *(const cdr_hf_out_tensor *const *)b;
    if (x->spec.format != y->spec.format) return x->spec.format > y->spec.format ? -1 : 1;
    return strcmp(x->spec.name, y->spec.name);
}

/* All tensors that will be asked for, shard by shard in the order in which a file holds them. */
static void make_order(cdr_hf_writer *w)
{
    w->order = cdr_pool_alloc(w->pool, sizeof *w->order * ((size_t)w->n + 1));
    const cdr_hf_out_tensor **x = cdr_alloc(((size_t)w->n + 1) * sizeof *x);
    for (int k = 0; k < w->n_shards; k++) {
        const out_shard *s = &w->shards[k];
        if (s->copy) continue;
        for (int64_t i = 0; i < s->n; i++) x[i] = &w->t[s->t[i]];
        qsort(x, (size_t)s->n, sizeof *x, by_file_order);
        for (int64_t i = 0; i < s->n; i++) w->order[w->n_order++] = x[i] - w->t;
    }
    cdr_free(x);
}

static cdr_status check_names(const cdr_hf_writer *w, cdr_err *err)
{
    const char **names = cdr_pool_alloc(w->pool, sizeof *names * ((size_t)w->n + 1));
    int32_t *no_shards = cdr_pool_alloc(w->pool, sizeof *no_shards * ((size_t)w->n + 1));
    for (int64_t i = 0; i < w->n; i++) names[i] = w->t[i].spec.name;
    cdr__hf_sort(names, no_shards, w->n);
    for (int64_t i = 1; i < w->n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            CDR_FAIL_ID(err, CDR_EUSER, "safetensors.write", "%s: two tensors are called %s", w->dir, names[i]);
    return CDR_OK;
}

static cdr_status create(cdr_hf_writer *w, const cdr_hf_layout *l, cdr_err *err)
{
    CDR_TRY(check_names(w, err));
    CDR_TRY(plan(w, l, err));
    make_order(w);
    CDR_TRY(make_dir(w, err));
    CDR_TRY(next_shard(w, err));
    return advance(w, err);
}

/* Is name the folder of a writer of base that runs no more? */
static bool is_stale(const char *name, const char *base)
{
    static const char MARK[] = ".partial-";
    const size_t n = strlen(base), m = sizeof MARK - 1;
    if (strncmp(name, base, n) != 0 || strncmp(name + n, MARK, m) != 0) return false;
    char *end;
    errno = 0;
    const long pid = strtol(name + n + m, &end, 10);
    return errno == 0 && *end == 0 && end != name + n + m && pid > 0 && pid <= INT_MAX && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static bool is_locked(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool mine = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0) close(fd);
    return !mine;
}

static void remove_stale(const cdr_hf_writer *w)
{
    const char *slash = strrchr(w->dir, '/'), *base = slash ? slash + 1 : w->dir;
    const char *parent = !slash ? "." : slash == w->dir ? "/" : cdr_pool_strndup(w->pool, w->dir, (size_t)(slash - w->dir));
    DIR *d = opendir(parent);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const char *path = cdr_pool_printf(w->pool, "%s/%s", parent, e->d_name);
        if (is_stale(e->d_name, base) && !is_locked(path)) (void)cdr_remove_tree(path, NULL);
    }
    if (d) closedir(d);
}

cdr_status cdr_hf_create(const char *dir, const cdr_hf_layout *l, cdr_hf_writer **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_hf_writer *w = cdr_pool_alloc(pool, sizeof *w);
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    *w = (cdr_hf_writer){ .pool = pool, .dir = cdr_pool_strndup(pool, dir, n), .lock = -1, .t = l->t, .n = l->n };
    w->partial = cdr_pool_printf(pool, "%s.partial-%ld", w->dir, (long)getpid());
    remove_stale(w);
    cdr_status status = create(w, l, err);
    if (status != CDR_OK) cdr_hf_abort(w);
    else *out = w;
    return status;
}

int64_t cdr_hf_writer_count(const cdr_hf_writer *w) { return w->n_order; }

int64_t cdr_hf_writer_order(const cdr_hf_writer *w, int64_t i)
{
    CDR_CHECK(i >= 0 && i < w->n_order);
    return w->order[i];
}

/* ---- index, side files, end ------------------------------------------------------------------------------------------ */
/* As Python's json writes a string: ASCII, short forms where JSON has them. */
static void put_ascii(cdr_text *t, const char *s)
{
    static const char RAW[] = "\b\f\n\r\t\"\\", LETTER[] = "bfnrt\"\\";
    cdr_text_append(t, "\"", 1);
    for (size_t left = strlen(s); left > 0;) {
        unsigned char c = (unsigned char)*s;
        const char *at = strchr(RAW, c);
        int n = CDR_MAX(1, cdr_utf8_length(s, left));
        if (at) cdr_text_printf(t, "\\%c", LETTER[at - RAW]);
        else if (c < 0x20) cdr_text_printf(t, "\\u%04x", c);
        else if (c < 0x80) cdr_text_append(t, s, 1);
        else {
            uint32_t code = n == 2 ? c & 0x1f : n == 3 ? c & 0x0f : c & 0x07;
            for (int i = 1; i < n; i++) code = code << 6 | ((unsigned char)s[i] & 0x3f);
            if (code < 0x10000) cdr_text_printf(t, "\\u%04x", code);
            else cdr_text_printf(t, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + ((code - 0x10000) & 0x3ff));
        }
        s += n;
        left -= (size_t)n;
    }
    cdr_text_append(t, "\"", 1);
}

static cdr_status write_index(cdr_hf_writer *w, cdr_err *err)
{
    cdr_text t = { 0 };
    int64_t total = 0, k = 0;
    for (int i = 0; i < w->n_shards; i++) total += w->shards[i].data_bytes;
    cdr_text_printf(&t, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {", (long long)total);
    for (int i = 0; i < w->n_shards; i++)
        for (int64_t j = 0; j < w->shards[i].n; j++, k++) {
            cdr_text_printf(&t, k ? ",\n    " : "\n    ");
            put_ascii(&t, w->t[w->shards[i].t[j]].spec.name);
            cdr_text_append(&t, ": ", 2);
            put_ascii(&t, w->shards[i].name);
        }
    cdr_text_printf(&t, k ? "\n  }\n}" : "}\n}");
    cdr_status status = cdr_file_write(path_in(w, "model.safetensors.index.json"), t.s, t.n, err);
    cdr_text_free(&t);
    return status;
}

static cdr_status check_side(const cdr_hf_writer *w, const char *name, cdr_err *err)
{
    size_t n = strlen(name);
    bool weights = strcmp(name, "model.safetensors.index.json") == 0 || (n > 12 && strcmp(name + n - 12, ".safetensors") == 0);
    if (!cdr_plain_name(name) || weights)
        CDR_FAIL_ID(err, CDR_EUSER, "checkpoint.side-file", "%s: \"%s\" cannot lie beside its weights under that name. Take a plain file name", w->dir, name);
    return CDR_OK;
}

cdr_status cdr_hf_side_file(cdr_hf_writer *w, const char *name, const void *data, size_t bytes, cdr_err *err)
{
    CDR_TRY(check_side(w, name, err));
    return cdr_file_write(path_in(w, name), data, bytes, err);
}

cdr_status cdr_hf_side_copy(cdr_hf_writer *w, const char *name, const char *from, cdr_err *err)
{
    CDR_TRY(check_side(w, name, err));
    return copy_file(from, path_in(w, name), NULL, err);
}

static cdr_status finish(cdr_hf_writer *w, cdr_err *err)
{
    char parent[PATH_MAX];
    CDR_CHECK(w->i_shard == w->n_shards);             /* every tensor was appended whole */
    if (w->index) CDR_TRY(copy_file(w->index, path_in(w, "model.safetensors.index.json"), NULL, err));
    else if (w->indexed) CDR_TRY(write_index(w, err));
    CDR_TRY(cdr_sync_dir(w->partial, err));
    if (rename(w->partial, w->dir) != 0)              /* an empty folder of that name is replaced */
        CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot take its name: %s. Take another --out", w->dir, strerror(errno));
    (void)snprintf(parent, sizeof parent, "%s", w->dir);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = 0;
    return cdr_sync_dir(slash ? parent : ".", err);
}

static void free_writer(cdr_hf_writer *w)
{
    if (w->lock >= 0) close(w->lock);
    cdr_free(w->specs);
    cdr_pool_free(w->pool);
}

cdr_status cdr_hf_finish(cdr_hf_writer *w, cdr_hf_written *stat, cdr_err *err)
{
    cdr_status status = finish(w, err);
    if (status != CDR_OK) {
        cdr_hf_abort(w);
        return status;
    }
    if (stat) *stat = (cdr_hf_written){ .tensors = w->n, .shards = w->n_shards, .bytes = w->file_bytes };
    free_writer(w);
    return CDR_OK;
}

void cdr_hf_abort(cdr_hf_writer *w)
{
    if (!w) return;
    cdr_st_abort(w->st);
    (void)cdr_remove_tree(w->partial, NULL);
    free_writer(w);
}
