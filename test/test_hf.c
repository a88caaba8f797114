/* test_hf.c: checkpoint directories: huggingface_hub's files read and written byte for byte, index and shards that lie, what is missing,
 * reads past the cache, files that shrink under their reader. */
#include "files.h"
#include "io/hf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the disk: what file systems do that this machine may not have, in place of the C library's calls ---------------------- */
static struct { bool no_direct, refuses_direct, in_parts, no_ranges; _Atomic int n_direct; } disk;

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (disk.no_direct && flags & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    const int flags = fcntl(fd, F_GETFL);
    const bool direct = flags >= 0 && flags & O_DIRECT;
    disk.n_direct += direct;
    if (direct && disk.refuses_direct) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, disk.in_parts ? CDR_MIN(bytes, (size_t)3 * 4096) : bytes, at);
}

ssize_t copy_file_range(int from, off_t *at_from, int to, off_t *at_to, size_t bytes, unsigned flags)
{
    if (!disk.no_ranges) return syscall(SYS_copy_file_range, from, at_from, to, at_to, bytes, flags);
    errno = EXDEV;
    return -1;
}

/* ---- the golden directory: tensors of tools/peers/safetensors_files.py, in that order ------------------------------------ */
static const struct { const char *name, *format; int n_dim; int64_t n[2]; } GOLDEN[] = {
    { "model.layers.0.a.weight", "BF16", 2, { 4, 8 } }, { "model.layers.0.b", "F32", 1, { 5 } }, { "model.layers.10.a.weight", "BF16", 2, { 4, 8 } },
    { "model.large", "U8", 1, { 101 } }, { "model.layers.2.a.weight", "BF16", 1, { 3 } }, { "model.g\u00e4\u4e2d\U0001f600\"\\x", "F32", 0, { 0 } },
    { "model.exact", "U8", 1, { 100 } }, { "model.empty", "F32", 2, { 0, 3 } }, { "lm_head.weight", "BF16", 2, { 2, 2 } },
};

static size_t golden_bytes(int k)
{
    size_t n = (size_t)cdr_st_format_row(cdr_st_format_by_name(GOLDEN[k].format))->bits / 8;
    for (int i = 0; i < GOLDEN[k].n_dim; i++) n *= (size_t)GOLDEN[k].n[i];
    return n;
}

static void reads_the_hubs_files(void)
{
    cdr_err err = { 0 };
    cdr_hf *d = NULL;
    T_CHECK(cdr_hf_open("test/golden/hub/", &d, &err) == CDR_OK);
    if (!d) return;
    T_STR(cdr_hf_dir(d), "test/golden/hub");
    T_CHECK(cdr_hf_config(d) == NULL);
    T_CHECK(cdr_hf_count(d) == CDR_COUNT(GOLDEN) && cdr_hf_shards(d) == 5);
    for (int64_t i = 1; i < cdr_hf_count(d); i++) T_CHECK(strcmp(cdr_hf_name(d, i - 1), cdr_hf_name(d, i)) < 0);
    for (int k = 0; k < CDR_COUNT(GOLDEN); k++) {
        cdr_hf_tensor t;
        int64_t i = cdr_hf_find(d, GOLDEN[k].name);
        T_CHECK(i >= 0);
        if (i < 0) continue;
        T_STR(cdr_hf_name(d, i), GOLDEN[k].name);
        T_CHECK(cdr_hf_tensor_at(d, i, &t, &err) == CDR_OK);
        T_STR(err.text, "");
        if (err.status != CDR_OK) break;
        T_CHECK(t.t->n_dim == GOLDEN[k].n_dim);
        T_STR(cdr_st_format_row(t.t->format)->name, GOLDEN[k].format);
        T_STR(cdr_hf_shard_name(d, t.i_shard), t.shard);
        size_t bytes = golden_bytes(k);
        uint8_t got[128] = { 0 };
        T_CHECK(t.t->end - t.t->begin == bytes);
        T_CHECK(cdr_hf_read(d, i, 0, bytes, got, &err) == CDR_OK);
        for (size_t b = 0; b < bytes; b++) T_CHECK(got[b] == (uint8_t)(7 * b + (size_t)k) && ((const uint8_t *)t.data)[b] == got[b]);
    }
    T_CHECK(cdr_hf_find(d, "model.layers.0.a.weigh") < 0 && cdr_hf_find(d, "") < 0);
    T_CHECK(cdr_hf_check(d, &err) == CDR_OK);
    T_CHECK(cdr_hf_unchanged(d, &err) == CDR_OK);
    cdr_hf_close(d);
}

/* Writes the golden tensors, appended in pieces of `piece` bytes. */
static cdr_status write_golden(const char *to, const cdr_hf_layout *layout, size_t piece, cdr_hf_written *stat, cdr_err *err)
{
    cdr_hf_writer *w;
    CDR_TRY(cdr_hf_create(to, layout, &w, err));
    for (int64_t i = 0; i < cdr_hf_writer_count(w); i++) {
        int k = (int)cdr_hf_writer_order(w, i);
        uint8_t data[128];
        size_t bytes = golden_bytes(k);
        for (size_t b = 0; b < bytes; b++) data[b] = (uint8_t)(7 * b + (size_t)k);
        for (size_t b = 0; b < bytes; b += piece) T_CHECK(cdr_hf_append(w, data + b, CDR_MIN(piece, bytes - b), err) == CDR_OK);
    }
    T_CHECK(cdr_hf_side_file(w, "config.json", "{}", 2, err) == CDR_OK);
    return cdr_hf_finish(w, stat, err);
}

static void fill_golden(cdr_hf_out_tensor t[CDR_COUNT(GOLDEN)])
{
    for (int k = 0; k < CDR_COUNT(GOLDEN); k++) {
        t[k] = (cdr_hf_out_tensor){ .spec = { .name = GOLDEN[k].name, .format = cdr_st_format_by_name(GOLDEN[k].format), .n_dim = GOLDEN[k].n_dim } };
        memcpy(t[k].spec.n, GOLDEN[k].n, sizeof GOLDEN[k].n);
    }
}

static void writes_the_hubs_files(void)
{
    cdr_hf_out_tensor t[CDR_COUNT(GOLDEN)];
    fill_golden(t);
    cdr_err err = { 0 };
    cdr_hf_written stat = { 0 };
    const cdr_hf_layout layout = { .t = t, .n = CDR_COUNT(GOLDEN), .shard_bytes = 100 };
    const char *to = in_dir("hub");
    T_CHECK(mkdir(to, 0777) == 0);                     /* an empty folder may be there */
    T_CHECK(write_golden(to, &layout, 13, &stat, &err) == CDR_OK);
    T_CHECK(stat.tensors == CDR_COUNT(GOLDEN) && stat.shards == 5);
    static const char *const FILES[] = { "model-00001-of-00005.safetensors", "model-00002-of-00005.safetensors", "model-00003-of-00005.safetensors",
                                         "model-00004-of-00005.safetensors", "model-00005-of-00005.safetensors", "model.safetensors.index.json" };
    for (int i = 0; i < CDR_COUNT(FILES); i++) {
        char a[1200], b[1200];
        (void)snprintf(a, sizeof a, "test/golden/hub/%s", FILES[i]);
        (void)snprintf(b, sizeof b, "%s/%s", to, FILES[i]);
        T_CHECK(same_file(a, b));
    }
    /* a second time: refused, and what is there stays */
    T_CHECK(write_golden(to, &layout, 128, &stat, &err) == CDR_EUSER);
    T_STR(err.id, "checkpoint.exists");
    T_CHECK(same_file("test/golden/hub/model-00001-of-00005.safetensors", in_dir("hub/model-00001-of-00005.safetensors")));
}

static void writes_one_file_and_other_layouts(void)
{
    cdr_hf_out_tensor t[CDR_COUNT(GOLDEN)];
    fill_golden(t);
    cdr_err err = { 0 };
    cdr_hf_layout layout = { .t = t, .n = CDR_COUNT(GOLDEN) };
    T_CHECK(write_golden(in_dir("one"), &layout, 128, NULL, &err) == CDR_OK);
    T_CHECK(cdr_exists(in_dir("one/model.safetensors")) && !cdr_exists(in_dir("one/model.safetensors.index.json")));
    cdr_hf *d = NULL;
    T_CHECK(cdr_hf_open(in_dir("one"), &d, &err) == CDR_OK);
    if (!d) return;
    T_CHECK(cdr_hf_count(d) == CDR_COUNT(GOLDEN) && cdr_hf_config(d) != NULL && cdr_hf_check(d, &err) == CDR_OK);
    cdr_hf_close(d);
    /* shards of a release: two, in its own names, of which the second is copied */
    static const char *const NAME[] = { "model-00001-of-000002.safetensors", "rest.safetensors" };
    const char *copy[] = { NULL, "test/golden/hub/model-00001-of-00005.safetensors" };
    for (int k = 0; k < CDR_COUNT(GOLDEN); k++) t[k].shard = k < 2;
    layout.shard = NAME;
    layout.n_shards = 2;
    layout.copy = copy;
    T_CHECK(write_golden(in_dir("two"), &layout, 128, NULL, &err) == CDR_OK);
    T_CHECK(same_file(copy[1], in_dir("two/rest.safetensors")));
    T_CHECK(cdr_hf_open(in_dir("two"), &d, &err) == CDR_OK && cdr_hf_check(d, &err) == CDR_OK);
    T_STR(cdr_hf_shard_name(d, cdr_hf_shard_of(d, cdr_hf_find(d, "model.layers.0.b"))), "rest.safetensors");
    cdr_hf_close(d);
}

/* A writer that fails or is given up leaves nothing behind. */
static void leaves_nothing(void)
{
    cdr_hf_out_tensor t[CDR_COUNT(GOLDEN)];
    fill_golden(t);
    cdr_err err = { 0 };
    cdr_hf_writer *w = NULL;
    const cdr_hf_layout layout = { .t = t, .n = CDR_COUNT(GOLDEN), .shard_bytes = 100 };
    char partial[1100];
    (void)snprintf(partial, sizeof partial, "%s.partial-%ld", in_dir("gone"), (long)getpid());
    T_CHECK(cdr_hf_create(in_dir("gone"), &layout, &w, &err) == CDR_OK && cdr_exists(partial));
    cdr_hf_abort(w);
    T_CHECK(!cdr_exists(partial) && !cdr_exists(in_dir("gone")));
    static const char twin[] = "model.layers.0.a.weight";
    t[3].spec.name = twin;                             /* twice the same, in two shards */
    T_CHECK(cdr_hf_create(in_dir("gone"), &layout, &w, &err) == CDR_EUSER && !cdr_exists(partial));
    T_HAS(err.text, "model.layers.0.a.weight");
    err = (cdr_err){ 0 };
    fill_golden(t);
    T_CHECK(cdr_hf_create(in_dir("gone"), &layout, &w, &err) == CDR_OK);
    T_CHECK(cdr_hf_side_file(w, "../x", "", 0, &err) == CDR_EUSER);
    T_STR(err.id, "checkpoint.side-file");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_hf_side_copy(w, "x.py", in_dir("nowhere.py"), &err) == CDR_EDATA);
    cdr_hf_abort(w);
}

/* What a writer left that was killed is removed by the next one of the same directory; what another one is writing stays, and so do other names. */
static void removes_what_the_dead_left(void)
{
    const cdr_hf_layout layout = { .n = 0 };
    cdr_hf_writer *w = NULL;
    cdr_err err = { 0 };
    char gone[100], other[100], longer[100];
    pid_t dead = fork();
    if (dead == 0) _exit(0);
    T_CHECK(waitpid(dead, NULL, 0) == dead);
    (void)snprintf(gone, sizeof gone, "killed.partial-%ld/folder", (long)dead);
    (void)snprintf(other, sizeof other, "killed2.partial-%ld", (long)dead);
    (void)snprintf(longer, sizeof longer, "killed.partial-%ldx", (long)dead);
    const char *const stays[] = { "killed.partial-1", "killed.partial-", other, longer };
    for (int i = 0; i < CDR_COUNT(stays); i++) T_CHECK(cdr_make_dirs(in_dir(stays[i]), &err) == CDR_OK);
    T_CHECK(cdr_make_dirs(in_dir(gone), &err) == CDR_OK);
    int held;                                                          /* who writes there, in a container where numbers of processes are others */
    *strrchr(gone, '/') = 0;
    held = open(in_dir(gone), O_RDONLY | O_DIRECTORY);
    T_CHECK(held >= 0 && flock(held, LOCK_EX) == 0);
    T_CHECK(cdr_hf_create(in_dir("killed"), &layout, &w, &err) == CDR_OK && cdr_exists(in_dir(gone)));
    cdr_hf_abort(w);
    (void)close(held);
    T_CHECK(cdr_hf_create(in_dir("killed"), &layout, &w, &err) == CDR_OK);
    T_CHECK(!cdr_exists(in_dir(gone)));
    for (int i = 0; i < CDR_COUNT(stays); i++) T_CHECK(cdr_exists(in_dir(stays[i])));
    cdr_hf_abort(w);
}

/* ---- what must be refused ------------------------------------------------------------------------------------------ */
static void put_index(const char *text)
{
    (void)mkdir(in_dir("bad"), 0777);
    put_file(in_dir("bad/model.safetensors.index.json"), text, strlen(text));
}

static void refuses_a_hostile_index(void)
{
    static const struct { const char *text, *id; } BAD[] = {
        { "{", "json.syntax" },
        { "[]", "checkpoint.index" },
        { "{\"weight_map\":[]}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":1}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\"sub/x.safetensors\"}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\"..\"}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\"\"}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\".safetensors\"}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\"x\\n.safetensors\"}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\"config.json\"}}", "checkpoint.index" },
        { "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", "json.duplicate-key" },
        { "{\"weight_map\":{\"a\":\"x.safetensors\"},\"weight_map\":{}}", "json.duplicate-key" },
    };
    for (int i = 0; i < CDR_COUNT(BAD); i++) {
        cdr_err err = { 0 };
        cdr_hf *d = NULL;
        put_index(BAD[i].text);
        T_CHECK(cdr_hf_open(in_dir("bad"), &d, &err) == CDR_EDATA);
        T_STR(err.id, BAD[i].id);
        T_HAS(err.text, "bad/model.safetensors.index.json");
    }
    /* a link that leads to itself, a folder, a pipe under a shard's name: an error of that shard, and no waiting */
    cdr_hf *d = NULL;
    cdr_hf_tensor t;
    put_index("{\"weight_map\":{\"a\":\"loop.safetensors\",\"b\":\"folder.safetensors\",\"c\":\"pipe.safetensors\"}}");
    T_CHECK(symlink("loop.safetensors", in_dir("bad/loop.safetensors")) == 0 && mkdir(in_dir("bad/folder.safetensors"), 0777) == 0 &&
            mkfifo(in_dir("bad/pipe.safetensors"), 0666) == 0);
    cdr_err err = { 0 };
    T_CHECK(cdr_hf_open(in_dir("bad"), &d, &err) == CDR_OK && cdr_hf_count(d) == 3);
    for (int i = 0; i < 3; i++) {
        err = (cdr_err){ 0 };
        T_CHECK(cdr_hf_tensor_at(d, i, &t, &err) == CDR_EDATA && err.status == CDR_EDATA);
    }
    cdr_hf_close(d);
}

/* Shard k of a toy: tensors of layers k and so on, 8 bytes each. */
static void put_shard(const char *path, const char *const *names, int n)
{
    cdr_st_spec s[8] = { { 0 } };
    cdr_st_writer *w = NULL;
    for (int i = 0; i < n; i++) s[i] = (cdr_st_spec){ names[i], cdr_st_format_by_name("F32"), 1, { 2 } };
    T_CHECK(cdr_st_create(path, s, n, NULL, 0, &w, NULL) == CDR_OK);
    for (int i = 0; i < n; i++) T_CHECK(cdr_st_append(w, "abcdefgh", 8, NULL) == CDR_OK);
    T_CHECK(cdr_st_finish(w, NULL, NULL, NULL) == CDR_OK);
}

static void says_what_is_missing(void)
{
    T_CHECK(mkdir(in_dir("part"), 0777) == 0);
    static const char INDEX[] = "{\"metadata\":{\"total_size\":48,\"more\":true},\"weight_map\":{"
        "\"model.layers.0.a\":\"s0.safetensors\",\"model.layers.1.a\":\"s1.safetensors\",\"model.layers.2.a\":\"s2.safetensors\","
        "\"model.layers.2.b\":\"s2.safetensors\",\"model.layers.3.a\":\"s2.safetensors\",\"model.norm\":\"s3.safetensors\"}}";
    put_file(in_dir("part/model.safetensors.index.json"), INDEX, sizeof INDEX - 1);
    put_shard(in_dir("part/s0.safetensors"), (const char *const[]){ "model.layers.0.a" }, 1);
    put_shard(in_dir("part/s1.safetensors"), (const char *const[]){ "model.layers.1.a" }, 1);
    put_shard(in_dir("part/s3.safetensors"), (const char *const[]){ "model.norm" }, 1);
    cdr_hf *d = NULL;
    cdr_hf_tensor t;
    cdr_err err = { 0 };
    T_CHECK(cdr_hf_open(in_dir("part"), &d, &err) == CDR_OK);
    T_CHECK(cdr_hf_tensor_at(d, cdr_hf_find(d, "model.layers.1.a"), &t, &err) == CDR_OK);
    T_CHECK(!cdr_hf_shard_there(d, 2) && cdr_hf_shard_there(d, 3));
    T_CHECK(cdr_hf_tensor_at(d, cdr_hf_find(d, "model.layers.2.b"), &t, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.missing-shard");
    char want[1400];
    (void)snprintf(want, sizeof want, "s2.safetensors: not in %s, but the index puts 3 tensors (layers 2 to 3) there; 3 of 4 shards are present. Fetch it, or take a "
                   "slice: --set model.layers=0-1", in_dir("part"));
    T_STR(err.text, want);
    cdr_hf_close(d);
    /* without the shard of the norm no slice helps */
    T_CHECK(unlink(in_dir("part/s3.safetensors")) == 0 && cdr_hf_open(in_dir("part"), &d, &err) == CDR_OK);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_hf_tensor_at(d, cdr_hf_find(d, "model.norm"), &t, &err) == CDR_EDATA);
    T_HAS(err.text, "puts 1 tensor there; 2 of 4 shards are present. Fetch it");
    T_CHECK(!strstr(err.text, "slice"));
    cdr_hf_close(d);
    /* index and headers against each other */
    static const struct { const char *names[4]; int n; const char *says; } LIE[] = {
        { { "model.layers.2.a", "model.layers.2.b" }, 2, "its header has no such tensor" },
        { { "model.layers.2.a", "model.layers.2.b", "model.layers.3.a", "model.extra" }, 4, "does not name" },
        { { "model.layers.2.a", "model.layers.2.b", "model.layers.3.a", "model.norm" }, 4, "puts elsewhere" },
        { { "model.layers.2.a", "model.layers.2.b", "model.layers.3.a" }, 3, NULL },
    };
    put_shard(in_dir("part/s3.safetensors"), (const char *const[]){ "model.norm" }, 1);
    for (int i = 0; i < CDR_COUNT(LIE); i++) {
        err = (cdr_err){ 0 };
        put_shard(in_dir("part/s2.safetensors"), LIE[i].names, LIE[i].n);
        T_CHECK(cdr_hf_open(in_dir("part"), &d, &err) == CDR_OK);
        T_CHECK((cdr_hf_check(d, &err) == CDR_OK) == !LIE[i].says);
        if (LIE[i].says) T_HAS(err.text, LIE[i].says);
        cdr_hf_close(d);
    }
    for (int total = 47; total <= 49; total++) {
        char *index = strdup(INDEX);
        strstr(index, "48")[1] = (char)('0' + total % 10);
        put_text(in_dir("part/model.safetensors.index.json"), index);
        free(index);
        err = (cdr_err){ 0 };
        T_CHECK(cdr_hf_open(in_dir("part"), &d, &err) == CDR_OK && (cdr_hf_check(d, &err) == CDR_OK) == (total == 48));
        if (total != 48) T_HAS(err.text, "its shards hold 48 bytes");
        cdr_hf_close(d);
    }
    put_file(in_dir("part/model.safetensors"), "", 0);
    T_CHECK(cdr_hf_open(in_dir("part"), &d, &err) == CDR_EDATA);
}

static void says_what_it_cannot_read(void)
{
    cdr_hf *d = NULL;
    cdr_err err = { 0 };
    T_CHECK(cdr_hf_open(in_dir("no-such-folder"), &d, &err) == CDR_EUSER);
    T_CHECK(mkdir(in_dir("dcp"), 0777) == 0 && cdr_hf_open(in_dir("dcp"), &d, &err) == CDR_OK && cdr_hf_count(d) == 0);      /* no weights: no error yet */
    cdr_hf_close(d);
    put_file(in_dir("dcp/.metadata"), "", 0);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_hf_open(in_dir("dcp"), &d, &err) == CDR_EDATA);
    T_HAS(err.text, "torch.distributed");
    put_file(in_dir("dcp/config.json"), "[]", 2);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_hf_open(in_dir("dcp"), &d, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.config");
}

/* Names that share eight bytes again and again, in the worst order, come out in byte order with their shards. */
static void sorts_names(void)
{
    enum { N = 5000 };
    cdr_text t = { 0 };
    cdr_text_printf(&t, "{\"weight_map\":{");
    for (int i = 0; i < N; i++) {
        int k = (i * 2311) % N;
        cdr_text_printf(&t, "%s\"language_model.model.layers.%d.block_sparse_moe.experts.%d.w%d.weight%s\":\"s%d.safetensors\"", i ? "," : "", k % 31, k / 31, k % 3,
                        k % 7 ? "" : "_packed", k % 11);
    }
    cdr_text_printf(&t, "}}");
    put_index(t.s);
    cdr_text_free(&t);
    cdr_hf *d = NULL;
    T_CHECK(cdr_hf_open(in_dir("bad"), &d, NULL) == CDR_OK && cdr_hf_count(d) == N);
    if (!d) return;
    for (int64_t i = 1; i < N; i++) T_CHECK(strcmp(cdr_hf_name(d, i - 1), cdr_hf_name(d, i)) < 0);
    for (int k = 0; k < N; k++) {
        char name[200], shard[32];
        (void)snprintf(name, sizeof name, "language_model.model.layers.%d.block_sparse_moe.experts.%d.w%d.weight%s", k % 31, k / 31, k % 3, k % 7 ? "" : "_packed");
        (void)snprintf(shard, sizeof shard, "s%d.safetensors", k % 11);
        int64_t i = cdr_hf_find(d, name);
        T_CHECK(i >= 0 && strcmp(cdr_hf_shard_name(d, cdr_hf_shard_of(d, i)), shard) == 0);
    }
    cdr_hf_close(d);
}

/* Short names of few letters, of which many begin others, and bytes beyond ASCII; tables that are as full as they get: all are found, no other is. */
static void finds_names(void)
{
    static const char *const LETTER[] = { "a", "b", "\xc3\xa4", "~", "aaaaaaa" };
    for (int turn = 0; turn < 64; turn++) {
        cdr_text t = { 0 };
        const int n = turn == 0 ? 4000 : 8 + turn / 8;
        char (*name)[80] = calloc((size_t)n, sizeof *name);
        cdr_text_printf(&t, "{\"weight_map\":{");
        for (int i = 0; i < n; i++) {
            int at = 0;
            for (int k = i + 1; k > 0; k /= 5) at += snprintf(name[i] + at, sizeof name[i] - (size_t)at, "%s", LETTER[(k * 3 + turn) % 5]);
            for (int k = 0; k < i && turn > 0; k++) if (strcmp(name[i], name[k]) == 0) at += snprintf(name[i] + at, sizeof name[i] - (size_t)at, ".%d", i);
            if (turn == 0) (void)snprintf(name[i] + at, sizeof name[i] - (size_t)at, "%s", i % 2 ? "" : "b");
        }
        int used = 0;
        cdr_pool *pool = cdr_pool_new();
        const char **seen = cdr_pool_alloc(pool, sizeof *seen * (size_t)n);
        for (int i = 0; i < n; i++) {
            bool twice = false;
            for (int k = 0; k < used && !twice; k++) twice = strcmp(seen[k], name[i]) == 0;
            if (twice) continue;
            cdr_text_printf(&t, "%s\"%s\":\"s%d.safetensors\"", used ? "," : "", name[i], i % 3);
            seen[used++] = name[i];
        }
        cdr_text_printf(&t, "}}");
        put_index(t.s);
        cdr_text_free(&t);
        cdr_hf *d = NULL;
        T_CHECK(cdr_hf_open(in_dir("bad"), &d, NULL) == CDR_OK && cdr_hf_count(d) == used);
        for (int64_t i = 1; d && i < used; i++) T_CHECK(strcmp(cdr_hf_name(d, i - 1), cdr_hf_name(d, i)) < 0);
        for (int i = 0; d && i < used; i++) {
            int64_t at = cdr_hf_find(d, seen[i]);
            T_CHECK(at >= 0 && strcmp(cdr_hf_name(d, at), seen[i]) == 0);
        }
        T_CHECK(d && cdr_hf_find(d, "c") < 0 && cdr_hf_find(d, "") < 0);
        cdr_hf_close(d);
        cdr_pool_free(pool);
        free(name);
    }
}

/* ---- reads ---------------------------------------------------------------------------------------------------------- */
enum { BIG = (9 << 20) + 12345 };      /* two blocks and a part; its offset in the file is no multiple of 4096 */

static void put_big(const char *folder)
{
    char path[1200];
    (void)mkdir(folder, 0777);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    cdr_st_spec s[2] = { { "big", cdr_st_format_by_name("U8"), 1, { BIG } }, { "a", cdr_st_format_by_name("F32"), 1, { 3 } } };
    cdr_st_writer *w = NULL;
    uint8_t *data = malloc(BIG);
    T_CHECK(data && cdr_st_create(path, s, 2, NULL, 0, &w, NULL) == CDR_OK);
    if (!data) return;
    for (size_t i = 0; i < BIG; i++) data[i] = (uint8_t)(i * 131 + i / 4096);
    T_CHECK(cdr_st_append(w, "abcdefghijkl", 12, NULL) == CDR_OK && cdr_st_append(w, data, BIG, NULL) == CDR_OK && cdr_st_finish(w, NULL, NULL, NULL) == CDR_OK);
    free(data);
}

static void drop_cache(const char *path)
{
    int fd = open(path, O_RDONLY);
    T_CHECK(fd >= 0 && fsync(fd) == 0);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(fd);
}

typedef struct { cdr_hf *d; uint8_t *dst; int first, step; bool ok; } reader;

static void *read_parts(void *ctx)
{
    reader *r = ctx;
    r->ok = true;
    for (size_t at = (size_t)r->first * 700001; at < BIG; at += (size_t)r->step * 700001)
        r->ok = r->ok && cdr_hf_read(r->d, cdr_hf_find(r->d, "big"), at, CDR_MIN((size_t)700001, BIG - at), r->dst + at, NULL) == CDR_OK;
    return NULL;
}

static void reads_past_the_cache(void)
{
    put_big(in_dir("big"));
    cdr_hf *d = NULL;
    uint8_t *dst = malloc(BIG + 1);
    T_CHECK(dst && cdr_hf_open(in_dir("big"), &d, NULL) == CDR_OK);
    if (!d || !dst) return;
    for (int turn = 0; turn < 4; turn++) {             /* cold and warm, one call and threads */
        if (turn % 2 == 0) drop_cache(in_dir("big/model.safetensors"));
        memset(dst, 0xee, BIG + 1);
        if (turn < 2) T_CHECK(cdr_hf_read(d, cdr_hf_find(d, "big"), 0, BIG, dst, NULL) == CDR_OK);
        else {
            reader r[4];
            pthread_t thread[4];
            for (int i = 0; i < 4; i++) {
                r[i] = (reader){ d, dst, i, 4, false };
                T_CHECK(pthread_create(&thread[i], NULL, read_parts, &r[i]) == 0);
            }
            for (int i = 0; i < 4; i++) T_CHECK(pthread_join(thread[i], NULL) == 0 && r[i].ok);
        }
        int64_t wrong = 0;
        for (size_t i = 0; i < BIG; i++) wrong += dst[i] != (uint8_t)(i * 131 + i / 4096);
        T_CHECK(wrong == 0 && dst[BIG] == 0xee);
    }
    T_CHECK(cdr_hf_read(d, cdr_hf_find(d, "big"), BIG, 0, dst, NULL) == CDR_OK);
    cdr_hf_close(d);
    free(dst);
}

/* A file that shrinks while it is open: reads are an error, mapped bytes end the process with the line and code 3. */
static void shrinking_file(void)
{
    const char *path = in_dir("shrink/model.safetensors");
    put_big(in_dir("shrink"));
    cdr_hf *d = NULL;
    cdr_hf_tensor t;
    cdr_err err = { 0 };
    uint8_t *dst = malloc(BIG);
    T_CHECK(dst && cdr_hf_open(in_dir("shrink"), &d, &err) == CDR_OK && cdr_hf_tensor_at(d, cdr_hf_find(d, "big"), &t, &err) == CDR_OK);
    if (!d || !dst) return;
    T_CHECK(truncate(path, (5 << 20) + 77) == 0);
    T_CHECK(cdr_hf_read(d, cdr_hf_find(d, "big"), 0, 1 << 20, dst, &err) == CDR_OK);
    T_CHECK(cdr_hf_read(d, cdr_hf_find(d, "big"), 0, BIG, dst, &err) == CDR_EDATA);
    T_STR(err.id, "file.shrank");
    T_HAS(err.text, "shrink/model.safetensors");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_hf_unchanged(d, &err) == CDR_EDATA);
    T_STR(err.id, "file.shrank");
    int end[2];
    T_CHECK(pipe(end) == 0);
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(end[1], STDERR_FILENO);
        const volatile uint8_t *p = t.data;
        _exit(p[BIG - 1] == 0 ? 17 : 18);              /* not reached */
    }
    (void)close(end[1]);
    char said[1000] = "";
    ssize_t n = read(end[0], said, sizeof said - 1);
    int status = 0;
    T_CHECK(n > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    T_CHECK(strncmp(said, "error: ", 7) == 0 && strchr(said, '\n') == said + strlen(said) - 1);
    T_HAS(said, "shrink/model.safetensors: became shorter");
    T_HAS(said, "[file.shrank]");
    (void)close(end[0]);
    cdr_hf_close(d);
    /* cut before it is opened */
    err = (cdr_err){ 0 };
    T_CHECK(cdr_hf_open(in_dir("shrink"), &d, &err) == CDR_EDATA);
    T_STR(err.id, "safetensors.truncated");
    T_HAS(err.text, "first tensor cut: big. Copy the file again");
    /* written to while it is open */
    put_big(in_dir("shrink"));
    T_CHECK(cdr_hf_open(in_dir("shrink"), &d, &err) == CDR_OK);
    int fd = open(path, O_WRONLY);
    const struct timespec when[2] = { { 1, 0 }, { 1, 0 } };
    T_CHECK(fd >= 0 && pwrite(fd, "x", 1, BIG / 2) == 1 && futimens(fd, when) == 0 && close(fd) == 0);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_hf_unchanged(d, &err) == CDR_EDATA);
    T_STR(err.id, "file.changed");
    cdr_hf_close(d);
    free(dst);
}

static bool reads_big(cdr_hf *d, size_t from, size_t bytes)
{
    uint8_t *dst = malloc(bytes + 1);
    size_t i = 0;
    if (!dst) return false;
    dst[bytes] = 0xee;
    bool ok = cdr_hf_read(d, cdr_hf_find(d, "big"), from, bytes, dst, NULL) == CDR_OK && dst[bytes] == 0xee;
    while (ok && i < bytes && dst[i] == (uint8_t)((from + i) * 131 + (from + i) / 4096)) i++;
    free(dst);
    return i == bytes;
}

/* File systems without O_DIRECT, and that say so late; reads that give less than asked for; what is in the cache is taken from there. */
static void other_file_systems(void)
{
    char path[1100];
    (void)snprintf(path, sizeof path, "%s", in_dir("odd/model.safetensors"));
    put_big(in_dir("odd"));
    for (int k = 0; k < 5; k++) {
        cdr_hf *d = NULL;
        cdr_err err = { 0 };
        char *text = NULL;
        disk.no_direct = k == 1;
        disk.refuses_direct = k == 2;
        disk.in_parts = k == 3;
        disk.n_direct = 0;
        drop_cache(path);
        T_CHECK(cdr_hf_open(in_dir("odd"), &d, &err) == CDR_OK);
        if (k == 4) T_CHECK(cdr_file_read(path, BIG + 4096, &text, NULL, &err) == CDR_OK);
        T_CHECK(reads_big(d, 0, BIG) && reads_big(d, 4097, 5 << 20) && reads_big(d, BIG - 1, 1));
        T_CHECK((disk.n_direct > 0) == (k != 1 && k != 4));
        cdr_free(text);
        uint8_t *dst = malloc(BIG);
        T_CHECK(dst && truncate(path, (5 << 20) + 77) == 0);
        if (dst) T_CHECK(cdr_hf_read(d, cdr_hf_find(d, "big"), 0, BIG, dst, &err) == CDR_EDATA);
        T_STR(err.id, "file.shrank");
        free(dst);
        cdr_hf_close(d);
        put_big(in_dir("odd"));
    }
    disk.in_parts = false;
    /* a copy between file systems that share nothing goes through memory */
    for (int k = 0; k < 2; k++) {
        cdr_hf_out_tensor t[CDR_COUNT(GOLDEN)];
        cdr_hf_writer *w = NULL;
        char to[40];
        fill_golden(t);
        disk.no_ranges = k == 1;
        (void)snprintf(to, sizeof to, "copied%d/big.bin", k);
        T_CHECK(cdr_hf_create(in_dir(k == 0 ? "copied0" : "copied1"), &(cdr_hf_layout){ .t = t, .n = CDR_COUNT(GOLDEN) }, &w, NULL) == CDR_OK);
        for (int64_t i = 0; w && i < cdr_hf_writer_count(w); i++) {
            static const char zeros[256];
            T_CHECK(cdr_hf_append(w, zeros, golden_bytes((int)cdr_hf_writer_order(w, i)), NULL) == CDR_OK);
        }
        T_CHECK(w && cdr_hf_side_copy(w, "big.bin", path, NULL) == CDR_OK && cdr_hf_finish(w, NULL, NULL) == CDR_OK && same_file(path, in_dir(to)));
    }
    disk.no_ranges = false;
}

static int n_descriptors(void)
{
    int n = 0;
    DIR *dir_of = opendir("/proc/self/fd");
    for (; dir_of && readdir(dir_of); n++);
    if (dir_of) (void)closedir(dir_of);
    return n;
}

/* A mapped header keeps no descriptor, a shard that was read one. What another file that takes the shard's name holds is never read as the shard's. */
static void another_file_takes_the_name(void)
{
    char path[1100];
    cdr_hf *d = NULL;
    cdr_hf_tensor t;
    cdr_err err = { 0 };
    uint8_t *dst = malloc(BIG);
    (void)snprintf(path, sizeof path, "%s", in_dir("name/model.safetensors"));
    int before = n_descriptors();
    for (int read = 0; read < 2 && dst; read++) {
        err = (cdr_err){ 0 };
        put_big(in_dir("name"));
        T_CHECK(cdr_hf_open(in_dir("name"), &d, &err) == CDR_OK && cdr_hf_tensor_at(d, cdr_hf_find(d, "big"), &t, &err) == CDR_OK);
        if (!d) return;
        T_CHECK(n_descriptors() == before);
        if (read) T_CHECK(cdr_hf_read(d, cdr_hf_find(d, "big"), 0, 100, dst, &err) == CDR_OK && n_descriptors() == before + 1);
        T_CHECK(rename(path, in_dir("name/old")) == 0);
        put_big(in_dir("name"));
        FILE *f = fopen(path, "r+b");
        T_CHECK(f && fseek(f, -(long)BIG, SEEK_END) == 0 && fputc(0xaa, f) == 0xaa && fclose(f) == 0);
        cdr_status st = cdr_hf_read(d, cdr_hf_find(d, "big"), 0, 100, dst, &err);
        if (read) T_CHECK(st == CDR_OK && dst[0] == 0 && dst[1] == 131);
        else T_CHECK(st == CDR_EDATA && strcmp(err.id, "file.changed") == 0 && n_descriptors() == before);
        T_CHECK(((const uint8_t *)t.data)[0] == 0 && cdr_hf_unchanged(d, &err) == CDR_OK);
        T_CHECK(remove(path) == 0 && cdr_hf_unchanged(d, &err) == CDR_OK);
        cdr_hf_close(d);
        T_CHECK(n_descriptors() == before);
    }
    free(dst);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!files_open("hf")) return 1;
    T_RUN(reads_the_hubs_files);
    T_RUN(writes_the_hubs_files);
    T_RUN(writes_one_file_and_other_layouts);
    T_RUN(leaves_nothing);
    T_RUN(removes_what_the_dead_left);
    T_RUN(refuses_a_hostile_index);
    T_RUN(says_what_is_missing);
    T_RUN(says_what_it_cannot_read);
    T_RUN(sorts_names);
    T_RUN(finds_names);
    T_RUN(reads_past_the_cache);
    T_RUN(other_file_systems);
    T_RUN(another_file_takes_the_name);
    T_RUN(shrinking_file);
    files_close();
    return t_end();
}
