/* test_base.c: errors, memory, hash, random numbers, files, formats, names, and the CPU device. */
#include "test.h"
#include "base/base.h"
#include "device/device.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- errors ------------------------------------------------------------------------------------------------------ */
static cdr_status fails(cdr_err *err, int x) { CDR_FAIL_ID(err, CDR_EDATA, "a.b", "f.json:%d: bad\nline", x); }

static cdr_status fails_too(cdr_err *err)
{
    CDR_TRY(fails(err, 7));
    return CDR_OK;
}

static void first_error_wins(void)
{
    cdr_err err = { 0 };
    T_CHECK(fails_too(&err) == CDR_EDATA);
    T_CHECK(cdr_fail(&err, CDR_EUSAGE, NULL, "later") == CDR_EDATA);
    T_STR(err.id, "a.b");
    T_STR(err.text, "f.json:7: bad line");                  /* one line */
    T_CHECK(cdr_fail(NULL, CDR_ENUMERIC, NULL, "nobody listens") == CDR_ENUMERIC);
    cdr_err other = { 0 };
    cdr_fail(&other, CDR_EINVAL, NULL, "%2000s", "x");      /* longer than the buffer */
    T_CHECK(strlen(other.text) == sizeof other.text - 1);
    T_STR(other.id, "general.invalid");
}

/* Runs f in a child; returns its wait status, and what it wrote to stderr. */
static int in_child(void (*f)(void), char *said, size_t n)
{
    int ends[2], status = 0;
    size_t got = 0;
    fflush(NULL);
    if (pipe(ends) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 2);
        f();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t k; got < n - 1 && (k = read(ends[0], said + got, n - 1 - got)) > 0;) got += (size_t)k;
    said[got] = 0;
    close(ends[0]);
    waitpid(pid, &status, 0);
    return status;
}

static void break_invariant(void)
{
    *cdr_here() = (cdr_where){ .rank = 3, .step = 214, .call = 17, .op = "linear", .origin = "layers.41.mlp" };
    CDR_CHECK(1 + 1 == 3);
}

static void allocate_while_frozen(void)
{
    cdr_alloc_freeze(true);
    cdr_free(cdr_alloc(16));
}

static void grow_pool_while_frozen(void)
{
    cdr_pool *p = cdr_pool_new();
    cdr_alloc_freeze(true);
    cdr_pool_alloc(p, 1);
}

static void broken_invariants_abort(void)
{
    char said[2000];
    int status = in_child(break_invariant, said, sizeof said);
    T_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    T_HAS(said, "rank 3 step 214 call 17 (linear, layers.41.mlp)");
    T_HAS(said, "1 + 1 == 3");
    status = in_child(allocate_while_frozen, said, sizeof said);
    T_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    status = in_child(grow_pool_while_frozen, said, sizeof said);
    T_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void write_log_lines(void)
{
    char longer[6000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    cdr_log(CDR_LOG_WARNING, "low %d", 1);
    cdr_log(CDR_LOG_INFO, "read");
    cdr_log(CDR_LOG_DEBUG, "hidden");
    cdr_log_set_level(CDR_LOG_ERROR);
    cdr_log(CDR_LOG_WARNING, "hidden too");
    cdr_log(CDR_LOG_ERROR, "%s", longer);
}

static void log_lines(void)
{
    char said[8000];
    T_CHECK(in_child(write_log_lines, said, sizeof said) == 0);
    T_HAS(said, "warning: low 1\nnote: read\nerror: xxx");
    T_CHECK(!strstr(said, "hidden"));
    T_CHECK(said[strlen(said) - 1] == '\n');                /* also where the line was cut */
    T_CHECK(cdr_log_get_level() == CDR_LOG_INFO);           /* the child's level is its own */
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static void pool_pieces(void)
{
    enum { N = 3000 };
    static unsigned char *piece[N];
    static size_t bytes[N];
    cdr_pool *p = cdr_pool_new();
    cdr_rng_key key = { 1, 2, 3 };
    bool zero = true, aligned = true, kept = true;
    for (int i = 0; i < N; i++) {
        bytes[i] = (size_t)(cdr_rng_u64(key, (uint64_t)i) % (i % 100 == 0 ? 3000000 : 300));
        piece[i] = cdr_pool_alloc(p, bytes[i]);
        aligned = aligned && (uintptr_t)piece[i] % 64 == 0;
        for (size_t k = 0; k < bytes[i]; k++) zero = zero && piece[i][k] == 0;
        memset(piece[i], i & 255, bytes[i]);
    }
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < bytes[i]; k++) kept = kept && piece[i][k] == (i & 255);
    T_CHECK(zero && aligned && kept);
    T_STR(cdr_pool_printf(p, "%s-%d", "layers", 3), "layers-3");
    T_STR(cdr_pool_strdup(p, ""), "");
    T_STR(cdr_pool_strndup(p, "abcdef", 3), "abc");
    int64_t *list = NULL, n = 0, cap = 0;
    for (int64_t i = 0; i < 1000; i++) *CDR_PUSH(p, list, n, cap) = i * i;
    bool right = n == 1000;
    for (int64_t i = 0; i < n; i++) right = right && list[i] == i * i;
    T_CHECK(right);
    cdr_pool_free(p);
    cdr_pool_free(NULL);
}

static void *allocate(void *out)
{
    *(bool *)out = true;
    cdr_free(cdr_alloc(8));
    return out;
}

static void freeze_is_per_thread(void)
{
    pthread_t t;
    bool ran = false;
    cdr_alloc_freeze(true);
    T_CHECK(pthread_create(&t, NULL, allocate, &ran) == 0);
    pthread_join(t, NULL);
    cdr_alloc_freeze(false);
    T_CHECK(ran);
    cdr_free(cdr_alloc(0));
}

static void checked_sizes(void)
{
    size_t x = 0;
    T_CHECK(cdr_mul_size(SIZE_MAX / 2, 2, &x) && x == SIZE_MAX - 1);
    T_CHECK(!cdr_mul_size(SIZE_MAX / 2 + 1, 2, &x));
    T_CHECK(cdr_add_size(SIZE_MAX - 1, 1, &x) && x == SIZE_MAX);
    T_CHECK(!cdr_add_size(SIZE_MAX, 1, &x));
    T_CHECK(cdr_align_up(65, 64) == 128 && cdr_align_up(64, 64) == 64 && cdr_ceil_div(7, 2) == 4);
}

static void texts(void)
{
    cdr_text t = { 0 };
    cdr_text_append(&t, "ab", 2);
    for (int i = 0; i < 2000; i++) cdr_text_printf(&t, "%d,", i % 10);
    cdr_text_printf(&t, "%05000d", 7);
    T_CHECK(t.n == 2 + 4000 + 5000 && strlen(t.s) == t.n && t.s[t.n - 1] == '7' && t.s[2 + 4000] == '0');
    T_CHECK(memcmp(t.s, "ab0,1,2,", 8) == 0);
    cdr_text_free(&t);
    T_CHECK(t.s == NULL && t.n == 0);
}

/* All sequences of up to three bytes, against decode and encode by the definition; four bytes at their borders. */
static int utf8_by_definition(const unsigned char *s, int n)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    int want = s[0] < 0x80 ? 1 : (s[0] >> 5) == 6 ? 2 : (s[0] >> 4) == 14 ? 3 : (s[0] >> 3) == 30 ? 4 : 0;
    if (want == 0 || want > n) return 0;
    if (want == 1) return 1;
    uint32_t c = s[0] & (0x7fu >> want);
    for (int i = 1; i < want; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    return c >= least[want] && c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff) ? want : 0;
}

static void utf8_exhaustive(void)
{
    int64_t n_wrong = 0;
    unsigned char s[4];
    for (uint32_t x = 0; x < 1u << 24; x++) {
        s[0] = (unsigned char)(x >> 16), s[1] = (unsigned char)(x >> 8), s[2] = (unsigned char)x;
        n_wrong += cdr_utf8_length((char *)s, 3) != utf8_by_definition(s, 3);
    }
    for (uint32_t x = 0; x < 1u << 16; x++)
        for (int k = 0; k < 8; k++) {
            s[0] = (unsigned char)(0xf0 + k), s[1] = (unsigned char)(x >> 8), s[2] = (unsigned char)x, s[3] = 0xbf;
            n_wrong += cdr_utf8_length((char *)s, 4) != utf8_by_definition(s, 4);
            n_wrong += cdr_utf8_length((char *)s, 3) != utf8_by_definition(s, 3);
        }
    T_CHECK(n_wrong == 0);
}

/* ---- hash, random numbers, clock ---------------------------------------------------------------------------------- */
static void hash_streamed_equals_whole(void)
{
    enum { N = 5000 };
    unsigned char data[N];
    cdr_rng_key key = { 5, 6, 7 };
    for (int i = 0; i < N; i++) data[i] = (unsigned char)cdr_rng_u64(key, (uint64_t)i);
    T_CHECK(cdr_hash64("", 0, 0) == 0x2d06800538d394c2u);       /* published for XXH3-64, seed 0 */
    T_CHECK(cdr_hash64(data, N, 0) != cdr_hash64(data, N, 1));
    for (int split = 0; split < N; split += 271) {
        cdr_hasher *h = cdr_hasher_new();
        cdr_hasher_add(h, data, (size_t)split);
        cdr_hasher_add(h, data + split, 0);
        cdr_hasher_add(h, data + split, (size_t)(N - split));
        T_CHECK(cdr_hasher_end(h) == cdr_hash64(data, N, 0));
    }
}

static void philox_known_answers(void)
{
    /* Random123, kat_vectors: "philox4x32 10" */
    static const uint32_t row[3][10] = {
        { 0, 0, 0, 0, 0, 0, 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u },
        { 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu },
        { 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u, 0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u },
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        cdr_philox(row[i] + 4, row[i], out);
        T_CHECK(memcmp(out, row[i] + 6, sizeof out) == 0);
    }
}

/* From an independent Python script: a change here changes every run. */
static void draws_are_fixed(void)
{
    static const struct { cdr_rng_key key; uint64_t i, bits; float uniform; double normal; } row[] = {
        { { 1, 2, 3 }, 4, 0x9a83cbf504af770cu, 0x1.3507960000000p-1f, -0.9991747932908166 },
        { { 0, 0, 0 }, 0, 0xf1b644d8f8dc1230u, 0x1.e36c880000000p-1f, 0.009836873701624966 },
        { { UINT64_MAX, UINT64_MAX, UINT64_MAX }, UINT64_MAX, 0x8e53f02205d0b904u, 0x1.1ca7e00000000p-1f, 1.036858079540196 },
        { { 7, 1ull << 40, 5 }, (1ull << 33) + 1, 0xa83cbae86d88151bu, 0x1.5079740000000p-1f, 0.01596359095490399 },
    };
    for (int i = 0; i < CDR_COUNT(row); i++) {
        T_CHECK(cdr_rng_u64(row[i].key, row[i].i) == row[i].bits);
        T_CHECK(cdr_rng_uniform(row[i].key, row[i].i) == row[i].uniform);
        T_NEAR(cdr_rng_normal(row[i].key, row[i].i), row[i].normal, 1e-7);
    }
}

/* Moments and shares within five standard errors. */
static void draws_are_distributed(void)
{
    enum { N = 200000 };
    const double n = N;
    cdr_rng_key k = { 11, 12, 13 };
    double u1 = 0, u2 = 0, z1 = 0, z2 = 0, z4 = 0, within = 0, both = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = (double)cdr_rng_uniform(k, i), z = (double)cdr_rng_normal(k, i), next = (double)cdr_rng_normal(k, i + 1);
        T_CHECK(u >= 0 && u < 1);
        u1 += u, u2 += u * u, z1 += z, z2 += z * z, z4 += z * z * z * z;
        within += fabs(z) < 1, both += z * next;
    }
    T_NEAR(u1 / n, 0.5, 5 * 0.2887 / sqrt(n));
    T_NEAR(u2 / n, 1.0 / 3, 5 * 0.2981 / sqrt(n));
    T_NEAR(z1 / n, 0, 5 / sqrt(n));
    T_NEAR(z2 / n, 1, 5 * sqrt(2) / sqrt(n));
    T_NEAR(z4 / n, 3, 5 * sqrt(96) / sqrt(n));
    T_NEAR(within / n, 0.682689, 5 * 0.4655 / sqrt(n));
    T_NEAR(both / n, 0, 5 / sqrt(n));
    cdr_rng_key other[3] = { { 12, 12, 13 }, { 11, 13, 13 }, { 11, 12, 14 } };
    for (int j = 0; j < 3; j++) {
        int equal = 0;
        for (uint64_t i = 0; i < 1000; i++) equal += cdr_rng_u64(k, i) == cdr_rng_u64(other[j], i);
        T_CHECK(equal == 0);
    }
}

static void clocks(void)
{
    char now[32];
    int64_t a = cdr_now_ns(), b = cdr_now_ns();
    T_CHECK(b >= a && a > 0);
    cdr_time_rfc3339(now);
    T_CHECK(strlen(now) == 24 && now[4] == '-' && now[10] == 'T' && now[19] == '.' && now[23] == 'Z');
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static char *scratch_dir(cdr_pool *p)
{
    const char *base = getenv("TMPDIR");
    char *dir = cdr_pool_printf(p, "%s/cadre-test-%ld-%lld", base && *base ? base : "/tmp", (long)getpid(), (long long)cdr_now_ns());
    return mkdir(dir, 0700) == 0 ? dir : NULL;
}

static void files(void)
{
    cdr_pool *p = cdr_pool_new();
    cdr_err err = { 0 };
    char *dir = scratch_dir(p), *data = NULL;
    size_t n = 0;
    T_CHECK(dir != NULL);
    char *deep = cdr_pool_printf(p, "%s/a//b/c/", dir), *file = cdr_pool_printf(p, "%s/a/b/c/f.bin", dir);
    T_CHECK(cdr_make_dirs(deep, &err) == CDR_OK && cdr_make_dirs(deep, &err) == CDR_OK && cdr_is_dir(deep));
    T_CHECK(!cdr_exists(file));
    T_CHECK(cdr_file_write(file, "old", 3, &err) == CDR_OK);
    T_CHECK(cdr_file_write(file, "a\0bc", 4, &err) == CDR_OK);
    T_CHECK(cdr_exists(file) && !cdr_is_dir(file));
    T_CHECK(cdr_file_read(file, 4, &data, &n, &err) == CDR_OK && n == 4 && memcmp(data, "a\0bc", 5) == 0);
    cdr_free(data);
    T_STR(err.text, "");
    T_CHECK(cdr_file_read(file, 3, &data, &n, &err) == CDR_EDATA);
    T_STR(err.id, "file.too-large");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_file_read(cdr_pool_printf(p, "%s/none", dir), 10, &data, &n, &err) == CDR_EUSER);
    T_STR(err.id, "file.missing");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_file_read(dir, 10, &data, &n, &err) != CDR_OK);
    T_STR(err.id, "file.directory");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_make_dirs(cdr_pool_printf(p, "%s/x", file), &err) != CDR_OK);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_make_dirs(file, &err) != CDR_OK);
    err = (cdr_err){ 0 };

    cdr_map m;
    T_CHECK(cdr_map_open(file, &m, &err) == CDR_OK && m.bytes == 4 && memcmp(m.data, "a\0bc", 4) == 0);
    cdr_map_close(&m);
    cdr_map_close(&m);
    char *empty = cdr_pool_printf(p, "%s/empty", dir);
    T_CHECK(cdr_file_write(empty, NULL, 0, &err) == CDR_OK && cdr_map_open(empty, &m, &err) == CDR_OK && m.bytes == 0);
    cdr_map_close(&m);
    T_CHECK(cdr_file_read(empty, 0, &data, &n, &err) == CDR_OK && n == 0 && data[0] == 0);
    cdr_free(data);
    T_CHECK(cdr_map_open(dir, &m, &err) != CDR_OK);
    err = (cdr_err){ 0 };

    /* nothing but the files is left: no temporary names */
    char *outside = cdr_pool_printf(p, "%s/outside", dir), *tree = cdr_pool_printf(p, "%s/a", dir);
    T_CHECK(cdr_file_write(outside, "x", 1, &err) == CDR_OK);
    T_CHECK(symlink(outside, cdr_pool_printf(p, "%s/a/b/link", dir)) == 0);
    T_CHECK(cdr_remove_tree(tree, &err) == CDR_OK && !cdr_exists(tree) && cdr_exists(outside));
    T_CHECK(cdr_remove_tree(tree, &err) == CDR_OK);             /* nothing there */
    T_CHECK(unlink(outside) == 0 && unlink(empty) == 0 && rmdir(dir) == 0);
    cdr_pool_free(p);
}

/* A pipe has no size beforehand. */
static void file_from_pipe(void)
{
    int ends[2];
    char path[64], *data = NULL;
    size_t n = 0;
    cdr_err err = { 0 };
    T_CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        char block[1000];
        memset(block, 'q', sizeof block);
        for (int i = 0; i < 50; i++)
            if (write(ends[1], block, sizeof block) < 0) _exit(1);
        _exit(0);
    }
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    T_CHECK(cdr_file_read(path, 1 << 20, &data, &n, &err) == CDR_OK && n == 50000 && data[49999] == 'q' && data[50000] == 0);
    cdr_free(data);
    close(ends[0]);
    waitpid(pid, NULL, 0);
}

static void plain_names(void)
{
    static const char *const good[] = { "a", "model-00001-of-00002.safetensors", "...", ".hidden", "ä b" };
    static const char *const bad[] = { "", ".", "..", "a/b", "/a", "../a", "a\nb", "a\x7f" };
    for (int i = 0; i < CDR_COUNT(good); i++) T_CHECK(cdr_plain_name(good[i]));
    for (int i = 0; i < CDR_COUNT(bad); i++) T_CHECK(!cdr_plain_name(bad[i]));
    T_CHECK(!cdr_plain_name(NULL));
}

/* ---- formats ------------------------------------------------------------------------------------------------------ */
static void sizes_rates_durations(void)
{
    static const struct { const char *s; int64_t x; } size[] = {
        { "1048576", 1048576 }, { "1_000_000", 1000000 }, { "40GiB", 40ll << 30 }, { "64GB", 64000000000 }, { "1.5KiB", 1536 },
        { "43.7GB", 43700000000 }, { "0", 0 }, { "9223372036854775807", INT64_MAX }, { "25.0MB", 25000000 }, { "2TiB", 2ll << 40 },
    };
    static const char *const bad[] = { "", "1k", "1K", "-1", "+1", "1 GB", "GB", "1.GB", ".5GB", "1__0", "_1", "1_", "1_GB", "1.5", "1e3", "64GBs",
                                       "9223372036854775808", "8388608TiB", "1gib", "0x10", "1.0" };
    int64_t x = 0;
    double v = 0;
    for (int i = 0; i < CDR_COUNT(size); i++) {
        T_CHECK(cdr_parse_bytes(size[i].s, &x) && x == size[i].x);
        if (x != size[i].x) fprintf(stderr, "  %s\n", size[i].s);
    }
    for (int i = 0; i < CDR_COUNT(bad); i++) {
        bool taken = cdr_parse_bytes(bad[i], &x);
        T_CHECK(!taken);
        if (taken) fprintf(stderr, "  %s\n", bad[i]);
    }
    T_CHECK(cdr_parse_rate("50GB/s", &v) && v == 50e9);
    T_CHECK(cdr_parse_rate("989TFLOP/s", &v) && v == 989e12);
    T_CHECK(cdr_parse_rate("1.5GiB/s", &v) && v == 1.5 * 0x1p30);
    T_CHECK(cdr_parse_rate("452_000", &v) && v == 452000);
    T_CHECK(!cdr_parse_rate("50GB", &v) && !cdr_parse_rate("TFLOP/s", &v) && !cdr_parse_rate("1 GB/s", &v) && !cdr_parse_rate("-1B/s", &v));
    T_CHECK(cdr_parse_duration("250ms", &v) && fabs(v - 0.25) < 1e-15);
    T_CHECK(cdr_parse_duration("90s", &v) && v == 90);
    T_CHECK(cdr_parse_duration("3min", &v) && v == 180);
    T_CHECK(cdr_parse_duration("1.5h", &v) && v == 5400);
    T_CHECK(!cdr_parse_duration("90", &v) && !cdr_parse_duration("3m", &v) && !cdr_parse_duration("s", &v) && !cdr_parse_duration("1h30min", &v));
}

static void printed_numbers(void)
{
    char out[32];
    static const struct { int64_t x; const char *count, *bytes; } row[] = {
        { 0, "0", "0 B" }, { 999, "999", "999 B" }, { 1000, "1,000", "1000 B" }, { 1276515, "1,276,515", "1.2 MiB" },
        { -1276515, "-1,276,515", "-1.2 MiB" }, { 1023, "1,023", "1023 B" }, { 1024, "1,024", "1.0 KiB" },
        { (1 << 20) - 1, "1,048,575", "1.0 MiB" }, { 186017382, "186,017,382", "177.4 MiB" },
        { INT64_MAX, "9,223,372,036,854,775,807", "8.0 EiB" }, { INT64_MIN, "-9,223,372,036,854,775,808", "-8.0 EiB" },
    };
    for (int i = 0; i < CDR_COUNT(row); i++) {
        cdr_format_count(out, row[i].x);
        T_STR(out, row[i].count);
        cdr_format_bytes(out, row[i].x);
        T_STR(out, row[i].bytes);
    }
}

static void nearest_names(void)
{
    static const char *const keys[] = { "steps", "sequence_length", "micro_batch_tokens", "learning_rate", "seed", "epochs", "speed" };
    cdr_pool *p = cdr_pool_new();
    T_STR(cdr_nearest(p, "learningrate", keys, CDR_COUNT(keys)), " Did you mean learning_rate?");
    T_STR(cdr_nearest(p, "stpes", keys, CDR_COUNT(keys)), " Did you mean steps?");       /* two letters swapped: one edit */
    T_STR(cdr_nearest(p, "STEPS", keys, CDR_COUNT(keys)), " Did you mean steps?");
    T_STR(cdr_nearest(p, "sped", keys, CDR_COUNT(keys)), " Did you mean seed or speed?");
    T_STR(cdr_nearest(p, "quite_another", keys, CDR_COUNT(keys)), "");
    T_STR(cdr_nearest(p, "", keys, CDR_COUNT(keys)), "");
    static const char *const proj[] = { "down_proj", "q_proj", "k_proj", "v_proj", "o_proj" };
    T_STR(cdr_nearest(p, "qproj", proj, CDR_COUNT(proj)), " Did you mean q_proj, k_proj or v_proj?");
    char longer[300];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const char *const one[] = { longer };
    T_HAS(cdr_nearest(p, longer, one, 1), " Did you mean aaa");
    T_STR(cdr_nearest(p, "x", NULL, 0), "");
    cdr_pool_free(p);
}

/* ---- the CPU device ------------------------------------------------------------------------------------------------ */
static void isa_cap(void)
{
    cdr_err err = { 0 };
    uint32_t m = 0, all = CDR_ISA_AVX2 | CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16 | CDR_ISA_AMX, gpu = CDR_ISA_SM80 | CDR_ISA_SM90;
    const char *before = getenv("CADRE_ISA");
    char *kept = before ? strdup(before) : NULL;
    unsetenv("CADRE_ISA");
    uint32_t has = cdr_cpu_isa(&err);
    T_CHECK(cdr_isa_cap(&m, &err) == CDR_OK && m == (all | gpu));
    setenv("CADRE_ISA", "base", 1);
    T_CHECK(cdr_isa_cap(&m, &err) == CDR_OK && m == gpu && cdr_cpu_isa(&err) == 0);
    setenv("CADRE_ISA", "sm80,avx2", 1);
    T_CHECK(cdr_isa_cap(&m, &err) == CDR_OK && m == (CDR_ISA_AVX2 | CDR_ISA_SM80) && cdr_cpu_isa(&err) == (has & CDR_ISA_AVX2));
    setenv("CADRE_ISA", "avx512", 1);
    T_CHECK(cdr_isa_cap(&m, &err) == CDR_OK && m == (CDR_ISA_AVX2 | CDR_ISA_AVX512 | gpu));
    setenv("CADRE_ISA", "avx512_bf16", 1);
    T_CHECK(cdr_isa_cap(&m, &err) == CDR_OK && m == ((all & ~(uint32_t)CDR_ISA_AMX) | gpu));
    setenv("CADRE_ISA", "amx", 1);
    T_CHECK(cdr_cpu_isa(&err) == has && err.status == CDR_OK);
    static const char *const bad[] = { "avx", "AVX2", "avx2,base", "avx2,,sm80", "avx2 sm80", ",", "sm70" };
    for (int i = 0; i < CDR_COUNT(bad); i++) {
        cdr_err e = { 0 };
        setenv("CADRE_ISA", bad[i], 1);
        T_CHECK(cdr_isa_cap(&m, &e) == CDR_EUSER && cdr_cpu_isa(&e) == 0);
        T_STR(e.id, "machine.isa");
        cdr_device *d = NULL;
        cdr_err open_err = { 0 };
        T_CHECK(cdr_device_open(CDR_DEV_CPU, 0, 1, &d, &open_err) == CDR_EUSER && !d);
    }
    unsetenv("CADRE_ISA");
    if (kept) setenv("CADRE_ISA", kept, 1);
    free(kept);
    T_STR(cdr_isa_name(0), "base");
    T_STR(cdr_isa_name(all), "amx");
    T_STR(cdr_isa_name(all & ~(uint32_t)CDR_ISA_AMX), "avx512_bf16");
    T_STR(cdr_isa_name(CDR_ISA_AVX2), "avx2");
    T_STR(cdr_isa_name(gpu), "sm90");
}

static void cpu_device(void)
{
    static const size_t sizes[] = { 1, 4096, 1 << 20, 100 << 20 };
    cdr_err err = { 0 };
    cdr_device *d = NULL;
    T_CHECK(cdr_device_open(CDR_DEV_CPU, 0, 0, &d, &err) == CDR_OK);
    if (!d) return;
    T_CHECK(d->kind == CDR_DEV_CPU && d->host_sees && d->n_threads == cdr_cpu_cores() && d->n_threads >= 1);
    T_CHECK(d->memory_bytes[0] > 64 << 20 && d->name[0]);
    for (int i = 0; i < CDR_COUNT(sizes); i++) {
        char *a = d->ops->alloc(d, 0, sizes[i], &err), *b = d->ops->alloc(d, 1, sizes[i], &err);
        T_CHECK(a && b && (uintptr_t)a % 4096 == 0 && (uintptr_t)b % 4096 == 0);
        T_CHECK(a[0] == 0 && a[sizes[i] - 1] == 0);
        T_CHECK(d->ops->fill(d, CDR_S_COMPUTE, a, 7, sizes[i]) == CDR_OK && d->ops->copy(d, CDR_S_IN, b, a, sizes[i]) == CDR_OK);
        T_CHECK(b[0] == 7 && memcmp(a, b, sizes[i]) == 0);
        d->ops->free(d, 0, a);
        d->ops->free(d, 1, b);
    }
    T_CHECK(d->ops->events(d, 3) == CDR_OK && d->ops->record(d, CDR_S_IN, 2) == CDR_OK && d->ops->wait(d, CDR_S_OUT, 2) == CDR_OK);
    T_CHECK(d->ops->sync(d, &err) == CDR_OK && !d->ops->kernel(d, "linear_fwd") && !d->ops->stream(d, CDR_S_COMPUTE));
    T_CHECK(!d->ops->alloc(d, 0, (size_t)1 << 60, &err));
    T_STR(err.id, "machine.memory");
    d->ops->close(d);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_device_open(CDR_DEV_CPU, 1, 0, &d, &err) == CDR_EUSER && !d);
    T_STR(err.id, "machine.no-device");
}

/* With a GPU and the plug-in the device opens; else the message says what is missing. */
static void cuda_device(void)
{
    cdr_err err = { 0 };
    cdr_device *d = NULL;
    cdr_status status = cdr_device_open(CDR_DEV_CUDA, 0, 1, &d, &err);
    if (status == CDR_OK) {
        T_CHECK(d && d->kind == CDR_DEV_CUDA && d->n_threads == 1 && err.status == CDR_OK);
        d->ops->close(d);
        return;
    }
    T_CHECK(status == CDR_EUSER && !d);
    T_STR(err.id, "machine.no-device");
    T_HAS(err.text, "machine.device=cuda: no device, as ");
    T_HAS(err.text, "Use machine.device=cpu, or ");
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(first_error_wins);
    T_RUN(broken_invariants_abort);
    T_RUN(log_lines);
    T_RUN(pool_pieces);
    T_RUN(freeze_is_per_thread);
    T_RUN(checked_sizes);
    T_RUN(texts);
    T_RUN(utf8_exhaustive);
    T_RUN(hash_streamed_equals_whole);
    T_RUN(philox_known_answers);
    T_RUN(draws_are_fixed);
    T_RUN(draws_are_distributed);
    T_RUN(clocks);
    T_RUN(files);
    T_RUN(file_from_pipe);
    T_RUN(plain_names);
    T_RUN(sizes_rates_durations);
    T_RUN(printed_numbers);
    T_RUN(nearest_names);
    T_RUN(isa_cap);
    T_RUN(cpu_device);
    T_RUN(cuda_device);
    return t_end();
}
