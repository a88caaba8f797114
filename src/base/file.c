/* file.c: whole files and directories. A file is written under a temporary name, flushed to the disk and
 * renamed, so that a reader sees the old one or the new one, never a part.
 */
#include "base/base.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static cdr_status fail_errno(cdr_err *err, const char *path, const char *what)
{
    const char *fix = errno == ENOENT ? " Check the path" : errno == EACCES ? " Check its permissions"
                    : errno == ENOSPC ? " Free some space" : "";
    return cdr_fail(err, CDR_EUSER, errno == ENOENT ? "file.missing" : "file.io", "%s: %s; %s.%s", path, what,
                    strerror(errno), fix);
}

static cdr_status open_read(const char *path, int *fd, struct stat *st, cdr_err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return fail_errno(err, path, "cannot be opened");
    if (fstat(*fd, st) != 0) {
        cdr_status s = fail_errno(err, path, "cannot be examined");
        close(*fd);
        return s;
    }
    if (S_ISDIR(st->st_mode)) {
        close(*fd);
        CDR_FAIL_ID(err, CDR_EUSER, "file.directory", "%s: is a directory, a file is expected here. Name a file in it", path);
    }
    return CDR_OK;
}

/* Reads to the end, whatever size the file had when it was opened: also pipes. */
cdr_status cdr_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, cdr_err *err)
{
    int fd;
    struct stat st;
    CDR_TRY(open_read(path, &fd, &st, err));
    size_t expect = S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size : 4096;
    size_t cap = CDR_MIN(expect, max_bytes) + 2, n = 0;
    char *buf = cdr_alloc(cap);
    cdr_status status = CDR_OK;
    for (;;) {
        if (n + 1 == cap) {
            char *more = cdr_alloc(cap * 2);
            memcpy(more, buf, n);
            cdr_free(buf);
            buf = more;
            cap *= 2;
        }
        ssize_t k = read(fd, buf + n, CDR_MIN(cap - 1 - n, (size_t)1 << 30));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) status = fail_errno(err, path, "cannot be read");
        if (k <= 0) break;
        n += (size_t)k;
        if (n > max_bytes) {
            status = cdr_fail(err, CDR_EDATA, "file.too-large", "%s: is larger than %zu bytes, the limit for this kind of file. "
                              "Check that it is the file you mean", path, max_bytes);
            break;
        }
    }
    close(fd);
    if (status != CDR_OK) {
        cdr_free(buf);
        return status;
    }
    buf[n] = 0;
    *data = buf;
    if (bytes) *bytes = n;
    return CDR_OK;
}

static cdr_status write_all(int fd, const char *at, size_t left, const char *path, cdr_err *err)
{
    while (left > 0) {
        ssize_t k = write(fd, at, CDR_MIN(left, (size_t)1 << 30));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return fail_errno(err, path, "cannot be written");
        at += k;
        left -= (size_t)k;
    }
    return CDR_OK;
}

/* Directory part of a path: "." where there is none. */
static void parent_of(const char *path, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s", path);
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/') out[--n] = 0;
    char *slash = strrchr(out, '/');
    if (!slash) snprintf(out, PATH_MAX, ".");
    else if (slash == out) out[1] = 0;
    else *slash = 0;
}

cdr_status cdr_file_write(const char *path, const void *data, size_t bytes, cdr_err *err)
{
    char part[PATH_MAX], dir[PATH_MAX];
    if (snprintf(part, sizeof part, "%s.part%ld", path, (long)getpid()) >= (int)sizeof part)
        CDR_FAIL_ID(err, CDR_EUSER, "file.io", "%.200s...: the path is too long, at most %d characters. Take a shorter one", path, PATH_MAX - 1);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return fail_errno(err, path, "cannot be created");
    cdr_status status = write_all(fd, data, bytes, path, err);
    if (status == CDR_OK && fsync(fd) != 0) status = fail_errno(err, path, "cannot be flushed to the disk");
    if (close(fd) != 0 && status == CDR_OK) status = fail_errno(err, path, "cannot be closed");
    if (status == CDR_OK && rename(part, path) != 0) status = fail_errno(err, path, "cannot be replaced");
    if (status != CDR_OK) {
        unlink(part);
        return status;
    }
    parent_of(path, dir);
    return cdr_sync_dir(dir, err);
}

cdr_status cdr_sync_dir(const char *path, cdr_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, path, "the directory cannot be opened");
    cdr_status status = CDR_OK;
    /* EINVAL: a file system that has nothing to flush for a directory */
    if (fsync(fd) != 0 && errno != EINVAL) status = fail_errno(err, path, "the directory cannot be flushed to the disk");
    close(fd);
    return status;
}

cdr_status cdr_make_dirs(const char *path, cdr_err *err)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        CDR_FAIL_ID(err, CDR_EUSER, "file.io", "\"%.200s\": is no path for a directory; it is empty or too long. Take another one", path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return fail_errno(err, part, "the directory cannot be made");
    }
    if (!cdr_is_dir(path))
        CDR_FAIL_ID(err, CDR_EUSER, "file.io", "%s: is a file, a directory is needed here. Remove it or take another path", path);
    return CDR_OK;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

/* Symbolic links are removed, not followed. Nothing there is no error. */
cdr_status cdr_remove_tree(const char *path, cdr_err *err)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return CDR_OK;
    return fail_errno(err, path, "cannot be removed");
}

bool cdr_exists(const char *path) { return access(path, F_OK) == 0; }

bool cdr_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool cdr_plain_name(const char *name)
{
    if (!name || !name[0] || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return false;
    for (const char *c = name; *c; c++)
        if (*c == '/' || (unsigned char)*c < 0x20 || *c == 0x7f) return false;
    return true;
}
