/* map.c: read-only mappings, and what happens when a mapped file becomes shorter under its reader.
 *
 * The kernel answers a read behind the new end with SIGBUS, which would kill the process without a word. The first mapping installs
 * a handler that knows all mappings: a fault inside one of them prints the one error line, with the file's name, and leaves with the
 * exit code of broken data (3); any other SIGBUS goes where it went before. Nothing is unwound: the thread that faulted may be any, in
 * the middle of a product. Files on disk are whole or temporary at any moment (file.c), so leaving is safe.
 * A file that was cut inside its last page gives zeros there without a fault: cdr_map_check, which whoever keeps a mapping for long
 * calls now and then, compares size and time of change. A mapping needs no descriptor, and keeps none: a corpus may have thousands of files.
 * So the check asks for the path again; where that is another file by now, or gone, what is mapped is out of everybody's reach.
 * The table is process-wide, as signal handlers are; it is read in the handler, so it holds no pointers to freed memory.
 */
#include "base/base.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_GUARDED = 4096, MAX_MESSAGE = 500 };       /* mappings at a time; a release has some hundred shards */

typedef struct {
    _Atomic(uintptr_t) begin;                         /* 0: free */
    uintptr_t end;
    char message[MAX_MESSAGE];                        /* made beforehand: a handler formats nothing */
} guarded;

static guarded guards[MAX_GUARDED];
static _Atomic(int) n_guards;                         /* rows that were ever used */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    int n = atomic_load(&n_guards);
    for (int i = 0; i < n; i++) {
        uintptr_t begin = atomic_load(&guards[i].begin);
        if (begin == 0 || at < begin || at >= guards[i].end) continue;
        ssize_t k = write(STDERR_FILENO, guards[i].message, strlen(guards[i].message));
        (void)k;
        _exit(3);
    }
    if ((before.sa_flags & SA_SIGINFO) && before.sa_sigaction) before.sa_sigaction(sig, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(sig);
    else (void)sigaction(sig, &before, NULL);         /* the access is repeated, and ends the process as it would have */
}

/* The row of a mapping; where all are taken (a corpus of thousands of small texts) a fault in it ends the process as it would have. */
static void guard(const char *path, const void *data, size_t bytes)
{
    static bool installed;
    bool found = false;
    pthread_mutex_lock(&lock);
    if (!installed) {
        struct sigaction a = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };
        sigemptyset(&a.sa_mask);
        installed = sigaction(SIGBUS, &a, &before) == 0;
    }
    for (int i = 0; i < MAX_GUARDED && !found; i++) {
        guarded *g = &guards[i];
        if (atomic_load(&g->begin) != 0) continue;
        (void)snprintf(g->message, sizeof g->message, "error: %.300s: became shorter than %zu bytes while it was read (or its disk failed); what was read of it "
                       "is lost. Leave the file alone, and start again [file.shrank]\n", path, bytes);
        g->end = (uintptr_t)data + bytes;
        atomic_store(&g->begin, (uintptr_t)data);
        if (i >= atomic_load(&n_guards)) atomic_store(&n_guards, i + 1);
        found = true;
    }
    pthread_mutex_unlock(&lock);
}

static void unguard(const void *data)
{
    int n = atomic_load(&n_guards);
    for (int i = 0; i < n; i++)
        if (atomic_load(&guards[i].begin) == (uintptr_t)data) atomic_store(&guards[i].begin, 0);
}

static cdr_status fail_errno(cdr_err *err, const char *path, const char *what)
{
    const char *fix = errno == ENOENT ? " Check the path" : errno == EACCES ? " Check its permissions" : "";
    return cdr_fail(err, CDR_EUSER, errno == ENOENT ? "file.missing" : "file.io", "%s: %s; %s.%s", path, what, strerror(errno), fix);
}

static int64_t changed_ns(const struct stat *st) { return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec; }

static cdr_status map(const char *path, int fd, cdr_map *m, cdr_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return fail_errno(err, path, "cannot be examined");
    if (S_ISDIR(st.st_mode))
        CDR_FAIL_ID(err, CDR_EUSER, "file.directory", "%s: is a directory, a file is expected here. Name a file in it", path);
    if (!S_ISREG(st.st_mode))
        CDR_FAIL_ID(err, CDR_EUSER, "file.kind", "%s: is not a regular file and cannot be mapped. Copy it to a file", path);
    size_t bytes = (size_t)st.st_size;
    const char *data = "";
    if (bytes > 0) {                                  /* an empty mapping does not exist */
        void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) return fail_errno(err, path, "cannot be mapped");
        guard(path, p, bytes);
        data = p;
    }
    *m = (cdr_map){ .data = data, .bytes = bytes, .changed_ns = changed_ns(&st), .device = st.st_dev, .inode = st.st_ino };
    return CDR_OK;
}

cdr_status cdr_map_open(const char *path, cdr_map *m, cdr_err *err)
{
    /* not blocking: a pipe is refused as what it is, not waited for */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail_errno(err, path, "cannot be opened");
    cdr_status status = map(path, fd, m, err);
    (void)close(fd);
    return status;
}

bool cdr_map_is(const cdr_map *m, int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (uint64_t)st.st_dev == m->device && (uint64_t)st.st_ino == m->inode;
}

cdr_status cdr_map_check(const char *path, const cdr_map *m, cdr_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0) return errno == ENOENT ? CDR_OK : fail_errno(err, path, "cannot be examined");
    if ((uint64_t)st.st_dev != m->device || (uint64_t)st.st_ino != m->inode) return CDR_OK;
    char was[32], is[32];
    cdr_format_count(was, (int64_t)m->bytes);
    cdr_format_count(is, st.st_size);
    if ((size_t)st.st_size != m->bytes)
        CDR_FAIL_ID(err, CDR_EDATA, "file.shrank", "%s: had %s bytes when it was opened and has %s now. Leave the file alone, and start again", path, was, is);
    if (changed_ns(&st) != m->changed_ns)
        CDR_FAIL_ID(err, CDR_EDATA, "file.changed", "%s: was written to while it was read. Leave the file alone, and start again", path);
    return CDR_OK;
}

void cdr_map_close(cdr_map *m)
{
    if (!m->data) return;
    if (m->bytes > 0) {
        unguard(m->data);
        munmap((void *)(uintptr_t)m->data, m->bytes);
    }
    *m = (cdr_map){ 0 };
}
